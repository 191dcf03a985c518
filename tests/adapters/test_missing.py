"""A library that is not installed is named, with the extra that brings it."""

import importlib
import sys

import pytest

import matheron


@pytest.mark.parametrize(
    ("adapter", "library"),
    [
        ("gpytorch", "gpytorch"),
        ("botorch", "botorch"),
        ("sklearn", "sklearn"),
        ("gpflow", "gpflow"),
        ("geometric", "geometric_kernels"),
    ],
)
def test_a_missing_library_names_its_extra(adapter, library, monkeypatch):
    for name in [name for name in sys.modules if name.startswith(f"matheron.adapters.{adapter}")]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name.split(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ImportError, match=rf"needs .*: pip install '\.\[{adapter}\]'"):
        importlib.import_module(f"matheron.adapters.{adapter}")
    assert matheron.draw_prior(matheron.kernels.RBF(), 1, input_dim=1, num_features=4)([[0.0]]).shape == (1, 1)
