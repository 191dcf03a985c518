"""What `import matheron` costs, beside torch."""

from __future__ import annotations

import subprocess
import sys

# Optional libraries, and parts of others that take long to import and serve a few functions.
HEAVY = (
    *("gpytorch", "botorch", "sklearn", "gpflow", "optuna", "pandas", "pyarrow", "xarray", "dask", "distributed"),
    *("zarr", "rasterio", "geopandas", "bokeh", "plotly", "ot", "finufft", "matplotlib", "sympy"),
    *("scipy.special", "scipy.optimize"),
)


def test_the_import_is_within_a_third_of_a_second_of_torch_s_and_imports_nothing_optional():
    code = "import torch, sys; before = set(sys.modules); import matheron; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-X", "importtime", "-c", code], capture_output=True, text=True, check=True)
    assert not set(HEAVY) & set(done.stdout.split())
    lines = [line.removeprefix("import time:").split("|") for line in done.stderr.splitlines() if "|" in line]
    seconds = {name.strip(): int(total) / 1e6 for _, total, name in lines if total.strip().isdigit()}
    # A busy machine slows both: torch takes more than a second and a half on an idle one.
    assert seconds["matheron"] <= max(0.3, 0.35 * seconds["torch"])
