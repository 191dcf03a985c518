"""progress=True: a bar in a terminal, and in a notebook that has no widgets."""

import builtins
import html
import itertools
import re
import sys
import time
import types

import pytest
import rich
import torch

import matheron
from matheron import kernels as K

BOX = [[0.0], [1.0]]


class ZMQInteractiveShell:
    """A notebook's shell, by the name that tells it."""


class Handle:
    def __init__(self, pictures: list[dict[str, str]]) -> None:
        self.pictures = pictures

    def update(self, bundle: dict[str, str], raw: bool) -> None:
        self.pictures.append(bundle)


@pytest.fixture
def pictures(monkeypatch) -> list[dict[str, str]]:
    """What a notebook without ipywidgets is asked to display."""
    shown: list[dict[str, str]] = []

    def display(bundle, *, raw, display_id):
        shown.append(bundle)
        return Handle(shown)

    module = types.ModuleType("IPython.display")
    module.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    monkeypatch.setattr(builtins, "get_ipython", ZMQInteractiveShell, raising=False)
    monkeypatch.setattr(rich, "_console", None)
    return shown


@pytest.fixture
def every_step(monkeypatch) -> None:
    """A clock that goes a second between two looks at it: a bar in a notebook is then shown at every step."""
    monkeypatch.setattr(time, "monotonic", itertools.count(time.monotonic()).__next__)


@pytest.mark.filterwarnings("error")  # rich's own bar would say: install ipywidgets
def test_minimize_shows_its_progress_in_a_notebook_and_clears_it(pictures):
    paths = matheron.draw_prior(K.RBF(0.3), 2, input_dim=1, num_features=16, seed=0)
    matheron.minimize(paths, BOX, mesh_size=64, num_starts=2, progress=True, seed=0)
    assert any("screening the mesh" in p["text/plain"] for p in pictures)
    assert any("polishing" in p["text/plain"] for p in pictures)
    assert pictures[-1] == {"text/plain": "", "text/html": ""}


def test_nothing_is_shown_unless_asked(pictures):
    paths = matheron.draw_prior(K.RBF(0.3), 2, input_dim=1, num_features=16, seed=0)
    matheron.minimize(paths, BOX, mesh_size=64, num_starts=2, seed=0)
    assert not pictures


def test_a_fit_says_how_many_per_cent_are_done_and_the_time_left(pictures, every_step):
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(80, 2, dtype=torch.float64, generator=generator)
    matheron.fit(1.0 * K.RBF([1.0, 1.0]), X, (3 * X).sin().sum(1), seed=0, num_data=50, progress=True)
    texts = [p["text/plain"] for p in pictures]
    shares = [int(found[1]) for text in texts if (found := re.search(r"(\d+)%", text))]
    assert shares == sorted(shares) and shares[0] == 0 and shares[-1] > 50
    assert max(b - a for a, b in itertools.pairwise(shares)) < 50
    assert any(re.search(r"\d:\d\d:\d\d", text) for text in texts)
    assert any("50 of 80 rows: start 1 of 12" in text for text in texts)  # three short searches for each of four
    assert any("━" in text for text in texts)
    assert all(p["text/plain"] in html.unescape(p["text/html"]) for p in pictures)
