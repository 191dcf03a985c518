"""The command `matheron export`: it writes saved functions to a file for another runtime."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from .options import AsJson, Quiet, SavedFunctions, Voice, check_writable


class WhosePoints(StrEnum):
    """Whether the points that a graph takes are shared by all functions, or each function has its own."""

    shared = "shared"
    own = "own"


def export(
    draw: SavedFunctions,
    out: Annotated[
        Path, typer.Argument(metavar="FILE", help="File to write, .onnx, .pt2 or .safetensors.", show_default=False)
    ],
    points: Annotated[
        WhosePoints,
        typer.Option(help="Whether all functions are called at shared points, or each function at its own."),
    ] = WhosePoints.shared,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Write saved functions for another runtime: ONNX, torch.export, or matheron_portable (NumPy and JAX).

    Example: matheron export draw.safetensors draw.onnx

    A .safetensors file works with both kinds of points. It contains only the functions: read it with matheron_portable,
    not with `matheron.load`.
    """
    from ..core.checks import many
    from ..core.saving import load, read_notes
    from ..paths import require_functions
    from ..tables.encoding import EncodedColumns

    check_writable(out, read=[draw])
    voice = Voice(quiet, as_json)
    try:
        paths = require_functions(load(draw), str(draw))
    except TypeError as error:
        raise ValueError(f"{error}; a file of these is written by `matheron sample --save`, or by save") from None
    notes = read_notes(draw)
    table = EncodedColumns.from_json(notes).names if "inputs" in notes else paths.input_names
    columns = list(table or [f"x{i}" for i in range(paths.input_dim)])
    try:
        paths.export(out, points=points.value)
    except TypeError as error:  # these functions cannot be exported
        raise ValueError(str(error)) from None
    shape = f"[n, {paths.input_dim}]" if points is WhosePoints.shared else f"[{paths.num_paths}, n, {paths.input_dim}]"
    voice.say(f"{many(paths.num_paths, 'function')} at points {shape} of {', '.join(columns)}: {out}")
    voice.result({"paths": paths.num_paths, "inputs": columns, "points": points.value, "out": out})
