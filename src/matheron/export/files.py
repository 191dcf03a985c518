"""The flattening of functions as a file: of ONNX, of `torch.export`, or of its numbers alone."""

from __future__ import annotations

import json
import logging
import os
import secrets
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from safetensors.torch import save_file
from torch import nn

from ..core.checks import missing_extra
from ..core.value import Value
from .flatten import to_module
from .module import CalledModule, FeaturesModule, FunctionModule, OwnFactorModule, PartModule

if TYPE_CHECKING:
    from ..core.value import Json
    from ..paths import AbstractFunctions

# The format that `matheron_portable` reads.
FORMAT = "matheron-functions-1"
GraphPoints = Literal["shared", "own"]
# The number of points in the example that traces a graph. The graph takes any number of points.
_EXAMPLE = 5


def export(functions: AbstractFunctions, path: str | os.PathLike[str], points: GraphPoints = "shared") -> None:
    """Write functions to a file of the kind that its ending states. The file appears when it is complete. See
    `AbstractFunctions.export`."""
    path = Path(path)
    if path.suffix not in _WRITERS:
        raise ValueError(f"export: expected a file that ends in {', '.join(_WRITERS)}, got {path.name!r}")
    if points not in ("shared", "own"):
        raise ValueError(f'points: expected "shared" or "own", got {points!r}')
    if not path.parent.is_dir():
        raise FileNotFoundError(f"export: no folder {path.parent}; make it first")
    temporary = path.with_name(f".{secrets.token_hex(8)}-{path.name}")
    try:
        temporary.touch()
        # the permissions of any new file; safetensors makes files that only their owner can read
        mode = temporary.stat().st_mode
        _WRITERS[path.suffix](to_module(functions), temporary, points)
        temporary.chmod(mode)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def traced(module: FunctionModule, points: GraphPoints = "shared") -> torch.export.ExportedProgram:
    """The module as a graph for any number n of points `[n, d]`, or `[s, n, d]` for each path its own."""
    own = points == "own"
    shape = (module.num_paths, _EXAMPLE, module.input_dim) if own else (_EXAMPLE, module.input_dim)
    device = next((buffer.device for buffer in module.buffers()), torch.device("cpu"))
    x = torch.zeros(shape, dtype=getattr(torch, module.dtype), device=device)
    return torch.export.export(module, (x,), dynamic_shapes={"x": {int(own): torch.export.Dim("n", min=1)}})


def _write_program(module: FunctionModule, path: Path, points: GraphPoints) -> None:
    torch.export.save(traced(module, points), path)


def _write_onnx(module: FunctionModule, path: Path, points: GraphPoints) -> None:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise missing_extra("ONNX files need onnx and onnxscript", "onnx", error) from None
    with _without_advice():
        torch.onnx.export(
            traced(module.cpu(), points),
            f=path,
            input_names=["x"],
            output_names=["f"],
            dynamo=True,
            external_data=False,  # one file, of at most 2 GB
            verbose=False,
            custom_translation_table=_exact_constants(),
        )


def _exact_constants() -> dict[Callable, Callable]:
    """Operations with a number among their arguments, such as 0.1 * f, which torch's exporter rounds to float32."""
    import onnx_ir
    from onnxscript import opset18 as op

    def constant(number: float, dtype: int) -> Any:
        tensor: Any = onnx_ir.tensor(number, dtype=onnx_ir.DataType(dtype))
        return op.Constant(value=tensor)

    def scalar_tensor(s: float, dtype: int = 1, layout: str = "", device: str = "", pin_memory: bool = False) -> Any:
        return constant(s, 1 if dtype == -1 else dtype)  # 1 is float32

    def full_like(
        like: Any,
        fill_value: float,
        dtype: int = -1,
        layout: str = "",
        device: str = "",
        pin_memory: bool = False,
        memory_format: str = "",
    ) -> Any:
        number = constant(fill_value, like.dtype if dtype == -1 else dtype)
        shape: Any = op.Shape(like)
        return op.Expand(number, shape)

    def power_of(base: float, exponent: Any) -> Any:
        return op.Pow(constant(base, exponent.dtype), exponent)

    def masked_fill(values: Any, mask: Any, value: float) -> Any:
        return op.Where(mask, constant(value, values.dtype), values)

    aten = torch.ops.aten
    return {
        aten.scalar_tensor.default: scalar_tensor,
        aten.full_like.default: full_like,
        aten.pow.Scalar: power_of,
        aten.masked_fill.Scalar: masked_fill,
    }


@contextmanager
def _without_advice() -> Iterator[None]:
    """Suppress remarks that the exporter makes at every call: on libraries that it does not find, and on future changes
    of torch."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        logger.setLevel(level)


# The transforms that `matheron_portable` knows, and what else it does not.
_NUMBERS = ("BoxCox", "Exp", "Inverse", "Kumaraswamy", "Log", "Masked", "Power", "SignedExp", "YeoJohnson")
_BY_CODE = {
    CalledModule: "a function of values",
    FeaturesModule: "features by code of their own",
    OwnFactorModule: "a kernel by code of its own",
}


def _write_numbers(module: FunctionModule, path: Path, points: GraphPoints) -> None:
    for part in module.modules():
        if type(part) in _BY_CODE or (isinstance(part, Value) and type(part).__name__ not in _NUMBERS):
            name = _BY_CODE.get(type(part), type(part).__name__)
            raise TypeError(
                f"export: no .safetensors file holds {name}; write an .onnx or a .pt2 file, which holds its graph"
            )
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in module.state_dict().items()}
    save_file(tensors, path, metadata={"format": FORMAT, "functions": json.dumps(described(module), sort_keys=True)})


def described(module: nn.Module) -> dict[str, Json]:
    """A module as JSON: its class, fields and parts. Its buffers have names such as `function.terms.0.weights`."""
    names = module.fields if isinstance(module, PartModule | Value) else ()
    fields: dict[str, Json] = {name: getattr(module, name) for name in names}
    parts = {name: described(part) for name, part in module.named_children()}
    return {"kind": type(module).__name__.removesuffix("Module"), "fields": fields, "parts": parts}


_WRITERS: dict[str, Callable[[FunctionModule, Path, GraphPoints], None]] = {
    ".onnx": _write_onnx,
    ".pt2": _write_program,
    ".safetensors": _write_numbers,
}
