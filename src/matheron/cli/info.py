"""The command `matheron info`: it describes a saved file, or the installed versions."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from .. import __version__
from ..core.checks import many
from ..core.saving import load, read_notes
from ..core.value import Json, Value
from ..paths import PriorPlusUpdate
from ..tables.encoding import EncodedColumns


def describe_file(file: Path) -> None:
    """Print the contents of a file that `save` wrote; other and damaged files raise a ValueError or OSError."""
    value = load(file)
    name = f"[bold]{_shown(str(file))}[/bold]"
    Console().print(f"{name}: {file.stat().st_size:,} bytes, checksum OK", highlight=False)
    _print([*_lines(value), *_of_table(read_notes(file))])


# Distributions that matheron uses: first the required ones, then those of its extras.
_NEEDED = ("numpy", "scipy", "safetensors", "finufft", "typer", "rich", "matplotlib")
_OPTIONAL = (
    *("gpytorch", "linear-operator", "botorch", "scikit-learn", "gpflow", "tensorflow", "optuna"),
    *("pandas", "pyarrow", "xarray", "dask", "zarr", "rasterio", "bokeh", "onnx", "onnxscript", "onnxruntime"),
    *("triton", "matheron-paper", "matheron-portable"),
)


def describe_environment() -> None:
    """Print the facts for a problem report: versions, the system, and the devices that torch can use."""
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    lines = [
        ("matheron", __version__),
        ("python", f"{platform.python_version()} ({platform.python_implementation()})"),
        ("system", platform.platform()),
        ("processor", f"{platform.machine()}, {many(os.cpu_count() or 1, 'core')}"),
        ("torch", f"{torch.__version__}, {many(torch.get_num_threads(), 'thread')}"),
        ("CUDA devices", ", ".join(gpus) or "none that torch can use"),
        ("needed", _versions(_NEEDED)),
        ("optional", _versions(_OPTIONAL)),
    ]
    _print(lines)


def _versions(names: tuple[str, ...]) -> str:
    """Return the versions of those distributions that are installed."""
    found = []
    for name in names:
        try:
            found.append(f"{name} {version_of(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found) or "none"


def _print(lines: list[tuple[str, str]]) -> None:
    """Print names and values in two columns."""
    out = Table(show_header=False, box=None)
    for name, words in lines:
        out.add_row(f"[dim]{name}[/dim]", _shown(words))
    Console().print(out, highlight=False)


def _shown(words: str) -> str:
    """Escape text from a file, which may contain markup and control sequences of a terminal."""
    return escape("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in words))


def _of_table(notes: Mapping[str, Json]) -> list[tuple[str, str]]:
    """Describe the columns of the table from which a command made the file."""
    if "inputs" not in notes:
        return []
    columns = EncodedColumns.from_json(notes)
    words = dict.fromkeys(columns.inputs, "")
    words |= {name: f" (one of {', '.join(known)})" for name, known in columns.categories.items()}
    words |= {name: f" ({unit} since {since})" for name, (unit, since) in columns.dates.items()}
    return [("target", str(notes.get("target"))), ("inputs", ", ".join(name + more for name, more in words.items()))]


def _lines(value: Value) -> list[tuple[str, str]]:
    tensors = [b for b in value.state_dict().values() if isinstance(b, Tensor)]
    kinds = sorted({str(b.dtype).removeprefix("torch.") for b in tensors})
    numbers = f"{sum(b.numel() for b in tensors):,} in {', '.join(kinds)}"
    if not isinstance(value, PriorPlusUpdate):
        return [("holds", " ".join(repr(value).split())), ("numbers", numbers)]
    update, inputs = value.update, many(value.input_dim, "input")
    centres = [(update.num_inducing, "inducing point"), (update.num_data, "observation")]
    lines = [
        ("holds", f"{many(value.num_paths, 'path')} of {inputs} and {many(value.num_outputs, 'output')}"),
        ("kernel", repr(update.kernel)),
        ("mean", repr(value.mean_function)),
        ("prior", f"{value.prior.features.description}; bases: {value.prior.num_bases}"),
        ("update", ", ".join(many(n, what) for n, what in centres if n) or "none"),
    ]
    for name in ("input_transform", "output_transform"):
        if (transform := getattr(value, name)) is not None:
            lines.append((name.replace("_", " "), repr(transform)))
    return [*lines, ("numbers", numbers)]
