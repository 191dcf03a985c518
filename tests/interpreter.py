"""Where tests of GPU kernels run: on a CUDA device, or in Triton's interpreter on the CPU."""

import importlib.metadata
import importlib.util
import os
import sys

import pytest
import torch


def device_of_kernels() -> str:
    """The device, to be asked for before the kernels are loaded; a module whose kernels cannot run is skipped."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed: pip install '.[gpu]'", allow_module_level=True)
    if torch.cuda.is_available():
        return "cuda"
    triton, numpy = (tuple(map(int, importlib.metadata.version(m).split(".")[:2])) for m in ("triton", "numpy"))
    if triton < (3, 7) and numpy >= (2, 4):
        pytest.skip("the interpreter of Triton below 3.7 does not run on NumPy from 2.4", allow_module_level=True)
    tile = sys.modules.get("matheron.evaluate.fused.tile")
    if tile is not None and not tile.INTERPRETED:
        pytest.skip("the kernels were loaded before Triton's interpreter was asked for", allow_module_level=True)
    os.environ["TRITON_INTERPRET"] = "1"
    return "cpu"
