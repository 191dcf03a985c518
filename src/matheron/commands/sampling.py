"""`matheron sample`: from a table to functions, their values at points, a picture, and a file."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import AsJson, Encode, Inputs, Quiet, Seed, Voice, check_writable

if TYPE_CHECKING:
    from pandas import DataFrame
    from torch import Tensor

    from ..columns import Columns
    from ..gp import ExactGP
    from .data import Dataset

# A grid's points along each of so many inputs, where the user does not say how many.
_GRID = {1: 400, 2: 80}


def sample(
    data: Annotated[Path, typer.Argument(help="A table, .csv or .parquet, or a saved model.", show_default=False)],
    target: Annotated[str | None, typer.Option(help="The column to be modelled.", show_default=False)] = None,
    inputs: Inputs = None,
    encode: Encode = None,
    at: Annotated[Path | None, typer.Option(help="A table of points at which to evaluate.", dir_okay=False)] = None,
    grid: Annotated[str | None, typer.Option(help="Or a grid over the data's box: 200, 200x100, ...")] = None,
    paths: Annotated[int, typer.Option(min=1, help="How many functions.")] = 20,
    out: Annotated[Path | None, typer.Option(help="A table of values, .csv or .parquet.", dir_okay=False)] = None,
    plot: Annotated[Path | None, typer.Option(help="A picture, .png, .pdf or .svg.", dir_okay=False)] = None,
    save: Annotated[Path | None, typer.Option(help="A file for the functions, .safetensors.", dir_okay=False)] = None,
    seed: Seed = 0,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Draw functions that a table's data allow: fit a model, draw, evaluate at points, plot, and save.

    Points are those of --at, or a grid; by default a grid for up to two inputs, and the data's own points for more
    inputs and for categories.
    `matheron evaluate` evaluates the saved functions at other points later.
    """
    from ..columns import listed
    from ..drawing import draw
    from ..store import save as store
    from ..tables import TableWriter
    from .data import evaluated, rows_per_chunk
    from .picture import check_picture, picture

    if out is None and plot is None and save is None:
        raise typer.BadParameter("nothing to do: give --out samples.parquet, --plot p.png or --save draw.safetensors")
    if at is not None and grid is not None:
        raise typer.BadParameter("give --at or --grid, not both")
    voice = Voice(quiet, as_json)
    check_writable(out, plot, save, read=[data, at])
    if plot is not None:
        check_picture(plot)
    writer = None if out is None else TableWriter(out)
    with voice.warnings_in_words():
        gp, dataset = _model(data, target, listed(inputs), listed(encode), at, grid, seed, voice)
        columns, name = dataset.columns, dataset.target
        shape, box = None if grid is None else _shape(grid, columns), _with_room(dataset.box())
        margin = 0.1 * (box[1] - box[0])
        domain = (box[0] - margin, box[1] + margin) if gp.input_dim <= 3 else None
        drawn = draw(gp, paths, seed=seed, domain=domain)
        voice.say(f"{paths} functions drawn from the posterior")
        if writer is not None:
            with writer:
                for frame, x in _points(at, shape, dataset, box, rows_per_chunk(drawn)):
                    writer.write(evaluated(frame, columns, drawn, x, name))
            voice.say(f"Their values at {writer.rows:,} points are in {out}")
        if plot is not None:
            picture(drawn, gp, dataset, box, plot)
            voice.say(f"The picture is in {plot}")
        if save is not None:
            store(drawn, save, dataset.notes())
            voice.say(f"The functions are in {save}; evaluate them with: matheron evaluate {save} points.csv")
    voice.result(
        {
            "paths": paths,
            "observations": gp.num_data,
            "inputs": columns.names,
            "target": name,
            "points": None if writer is None else writer.rows,
            "out": out,
            "plot": plot,
            "saved": save,
        }
    )


def _model(
    data: Path,
    target: str | None,
    inputs: list[str] | None,
    encode: list[str] | None,
    at: Path | None,
    grid: str | None,
    seed: int,
    voice: Voice,
) -> tuple[ExactGP, Dataset]:
    """The model, and the data that it is of."""
    from ..columns import check_columns
    from ..tables import read_chunks
    from .data import fitted, loaded_model, read_dataset

    if data.suffix == ".safetensors":
        if target or inputs or encode:
            raise typer.BadParameter("a saved model knows its columns: leave out --target, --inputs and --encode")
        return loaded_model(data)
    if target is None:
        raise typer.BadParameter("which column is to be modelled? Give --target")
    dataset = read_dataset(data, target, inputs, encode, voice)
    if grid is not None:
        _shape(grid, dataset.columns)  # what is wrong with it is said before the fit
    if at is not None:
        for frame in islice(read_chunks(at, 1), 1):
            check_columns(frame, dataset.columns.inputs, str(at))
    return fitted(dataset, seed, voice), dataset


def _with_room(box: Tensor) -> Tensor:
    """The data's box `[2, d]`; a column that is constant gets some room, so that grids and pictures have an extent."""
    lower, upper = box
    room = (0.1 * lower.abs() + 0.1) * (lower == upper)
    return box + room * box.new_tensor([[-1.0], [1.0]])


def _shape(words: str, columns: Columns) -> list[int]:
    if columns.categories:
        raise ValueError("a grid cannot run over categories; give the points with --at")
    input_dim = len(columns.names)
    try:
        shape = [int(word) for word in words.lower().replace("*", "x").split("x")]
    except ValueError:
        shape = []
    if not shape or min(shape) < 1 or len(shape) not in (1, input_dim):
        example = "x".join(["50"] * input_dim)
        raise typer.BadParameter(f"--grid: expected numbers of points, one per input, such as {example}, got {words!r}")
    return shape * input_dim if len(shape) == 1 else shape


def _points(
    at: Path | None, shape: list[int] | None, dataset: Dataset, box: Tensor, rows: int
) -> Iterator[tuple[DataFrame, Tensor]]:
    """Tables of inputs, and the points that they are, some rows at a time."""
    import torch

    from ..tables import read_chunks
    from .data import points_of

    columns, d = dataset.columns, dataset.X.shape[1]
    if at is not None:
        done = 0
        for frame in read_chunks(at, rows):
            yield frame, points_of(frame, columns, str(at), done)
            done += len(frame)
        if not done:
            raise ValueError(f"{at} has column names but no rows")
        return
    if shape is None and d in _GRID and not columns.categories:
        shape = [_GRID[d]] * d
    if shape is None:
        blocks = iter(dataset.X.split(rows))
    else:
        axes = [torch.linspace(float(a), float(b), n, dtype=torch.float64) for a, b, n in zip(*box, shape, strict=True)]
        blocks = _grid_blocks(axes, rows)
    for x in blocks:
        yield columns.table(x.numpy()), x


def _grid_blocks(axes: list[Tensor], rows: int) -> Iterator[Tensor]:
    """The points of a grid, the last axis fastest, without ever holding all of them."""
    import math

    import torch

    total = math.prod(len(axis) for axis in axes)
    for start in range(0, total, rows):
        index = torch.arange(start, min(total, start + rows))
        where = torch.unravel_index(index, [len(axis) for axis in axes])
        yield torch.stack([axis[i] for axis, i in zip(axes, where, strict=True)], dim=1)
