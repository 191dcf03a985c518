"""What `import matheron` imports: nothing that takes long. A draw imports nothing that only some need."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import matheron

sys.path.insert(0, str(Path(__file__).parent.parent / "docs/build"))
exports = import_module("public").exports

# Optional libraries, and parts of others that take long to import and serve a few functions.
HEAVY = (
    *(
        "gpytorch",
        "botorch",
        "sklearn",
        "gpflow",
        "tensorflow",
        "optuna",
        "pandas",
        "pyarrow",
        "xarray",
        "dask",
        "distributed",
    ),
    *("zarr", "rasterio", "geopandas", "bokeh", "plotly", "ot", "finufft", "matplotlib", "sympy"),
    *("scipy.special", "scipy.optimize", "scipy.interpolate", "scipy.stats"),
)


# Parts of the library that are imported when they are first asked for.
LATER = {f"matheron.{name}" for name in ("bounds", "diagnostics", "dynamics", "fields", "fitting", "plots", "samplers")}


def test_the_import_leaves_to_others_what_takes_long_and_no_draw_imports_sympy(tmp_path):
    """SymPy takes a second or two, and some of torch's functions import it."""
    gp = matheron.ExactGP(matheron.kernels.RBF(), [[0.0]], [1.0], noise=0.1)
    matheron.samplers.weight_space(gp, 1, num_features=2).save(tmp_path / "paths")
    code = f"""
import sys, torch
before = set(sys.modules)
import matheron
matheron.draw, matheron.kernels, matheron.ExactGP
print(*(set(sys.modules) - before))
assert type(matheron.load({str(tmp_path / "paths")!r})).__name__ == "LinearModelPaths"  # of a part not imported yet
X = torch.rand(5, 2, dtype=torch.float64)
kernel = matheron.kernels.Matern(2.5, 0.4) + matheron.kernels.Linear(0.1)
gp = matheron.ExactGP(kernel, X, X[:, 0], noise=1e-4)
for domain in (None, (0.0, 1.0)):
    paths = matheron.draw(gp, 2, seed=0, domain=domain)
    matheron.minimize(paths, (0.0, 1.0), mesh_size=50, num_starts=2)
    paths.on_grid([torch.linspace(0, 1, 5)] * 2)
assert "sympy" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not {*HEAVY, *LATER, "matheron.thompson"} & set(done.stdout.split())


def test_the_package_lists_its_public_names_and_nothing_else():
    """What type checkers read, what Python finds, and what the reference shows are the same names; dir() lists those
    that users call, and leaves out classes of results, of combined functions and of warnings."""
    listed, unlisted = set(dir(matheron)), exports(matheron).difference(dir(matheron))
    assert listed < {*exports(matheron), "__version__"} and 35 <= len(listed) <= 48
    assert all(name[0].isupper() or name == "weight_space_update" for name in unlisted)
    everything: dict[str, object] = {}
    exec("from matheron import *", everything)
    assert set(everything) - {"__builtins__"} == exports(matheron)
    assert all(getattr(matheron, name) is everything[name] for name in exports(matheron))


def test_a_name_that_is_not_there_is_said_not_to_be():
    for name in ("nothing", "_nothing", "__main__"):
        with pytest.raises(AttributeError, match=f"module 'matheron' has no attribute '{name}'"):
            getattr(matheron, name)
    with pytest.raises(ImportError, match="cannot import name 'nothing' from 'matheron'"):
        exec("from matheron import nothing")


def test_the_import_takes_no_time_and_modules_are_found_when_they_are_asked_for(tmp_path):
    matheron.draw_prior(matheron.kernels.RBF(), 1, input_dim=1, num_features=2).save(tmp_path / "paths")
    code = f"""
import sys, matheron
assert not {{"torch", "numpy"}} & set(sys.modules)
matheron.features.Features, matheron.kernels.RBF  # as modules, without an import of their own
matheron.load({str(tmp_path / "paths")!r})  # of a class that nothing has imported yet
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
