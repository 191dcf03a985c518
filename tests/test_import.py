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


def test_the_import_leaves_to_others_what_takes_long():
    code = "import torch, sys; before = set(sys.modules); import matheron; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(HEAVY) & set(done.stdout.split())
