"""What `import matheron` imports beside torch: nothing that takes long and that only some need."""

from __future__ import annotations

import subprocess
import sys

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


def test_the_import_leaves_to_others_what_takes_long_and_no_draw_imports_sympy():
    """SymPy takes a second or two, and some of torch's functions import it."""
    code = """
import sys, torch
before = set(sys.modules)
import matheron
print(*(set(sys.modules) - before))
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
    assert not set(HEAVY) & set(done.stdout.split())
