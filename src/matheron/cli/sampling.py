"""The command `matheron sample`: it draws functions given a table, and writes values, a picture and a file."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import options
from .options import ROWS, Voice, check_writable, model_option, output_option, points_option

if TYPE_CHECKING:
    from pandas import DataFrame
    from torch import Tensor

    from ..models import ExactGP, LatentGP
    from ..tables.encoding import EncodedColumns, OutcomeColumn
    from .data import TableData

# The default number of grid points along each input, by the number of inputs.
_GRID = {1: 400, 2: 80}


def sample(
    data: Annotated[
        Path,
        typer.Argument(
            metavar="TABLE",
            help="Table of data, .csv or .parquet, or a model that `matheron fit --save` wrote.",
            show_default=False,
        ),
    ],
    target: Annotated[str | None, model_option(metavar="COLUMN", help="Column to model.", show_default=False)] = None,
    inputs: options.Inputs = None,
    exclude: options.Exclude = None,
    encode: options.Encode = None,
    kernel: options.KernelOption = None,
    noise: options.NoiseOption = None,
    likelihood: options.LikelihoodOption = None,
    exposure: options.Exposure = None,
    trials: options.Trials = None,
    rows: options.Rows = ROWS,
    at: Annotated[
        Path | None, points_option(metavar="TABLE", help="Table of points, .csv or .parquet.", dir_okay=False)
    ] = None,
    grid: Annotated[
        str | None, points_option(metavar="SIZE", help="Grid over the box of the data, for example 200 or 200x100.")
    ] = None,
    paths: Annotated[int, typer.Option(metavar="NUMBER", min=1, help="Number of functions to draw.")] = 20,
    seed: options.Seed = 0,
    out: options.TableOut = None,
    plot: Annotated[
        Path | None, output_option(metavar="FILE", help="Picture, .png, .pdf or .svg.", dir_okay=False)
    ] = None,
    save: Annotated[
        Path | None, output_option(metavar="FILE", help="File for the functions, .safetensors.", dir_okay=False)
    ] = None,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Fit a model to a table, draw functions from it, evaluate them at points, plot them and save them.

    Example: matheron sample wells.csv --target depth --paths 20 --out samples.parquet --plot depth.png

    The points are those of --at or of --grid. By default they are a grid for up to two inputs, and the table's rows for
    more inputs and for categories. Rows with empty cells are left out of the fit, and their values are NaN. Dates
    become days, hours or seconds since the first date. `matheron evaluate` evaluates saved functions at other points.
    """
    from ..core.checks import many
    from ..core.saving import save as store
    from ..drawing import draw
    from ..tables.encoding import OutcomeColumn, listed
    from ..tables.files import TableWriter
    from .data import Evaluated, rows_per_chunk
    from .pictures import check_picture, picture

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
        lists = {"inputs": listed(inputs), "exclude": listed(exclude), "encode": listed(encode)}
        outcomes = OutcomeColumn.of(likelihood, exposure, trials)
        gp, dataset = _model(data, target, lists, kernel, noise, outcomes, rows, at, grid, seed, voice)
        columns, name = dataset.columns, dataset.target
        shape, box = None if grid is None else _shape(grid, columns), _with_room(dataset.box())
        domain = _with_margin(_reach(box, at, dataset)) if gp.input_dim <= 3 else None
        drawn = draw(gp, paths, seed=seed, domain=domain)
        voice.say(f"{many(paths, 'function')} drawn from the posterior")
        evaluated = Evaluated(drawn, columns, name, dataset.likelihood)
        if writer is not None:
            with writer:
                for frame, x in _points(at, shape, dataset, box, rows_per_chunk(drawn)):
                    writer.write(evaluated(frame, x))
            evaluated.warn(voice)
            voice.say(f"Their values at {many(writer.rows, 'point')} are in {out}")
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
            "rows_with_gaps": dataset.rows_with_gaps,
            "inputs": columns.names,
            "target": name,
            "points": None if writer is None else writer.rows,
            "points_with_gaps": evaluated.gaps,
            "out": out,
            "plot": plot,
            "saved": save,
        }
    )


def _model(
    data: Path,
    target: str | None,
    lists: dict[str, list[str] | None],
    kernel: str | None,
    noise: float | None,
    outcomes: OutcomeColumn | None,
    rows: int,
    at: Path | None,
    grid: str | None,
    seed: int,
    voice: Voice,
) -> tuple[ExactGP | LatentGP, TableData]:
    """Load or fit the model, and return it with its data."""
    from ..tables.encoding import check_columns
    from ..tables.files import read_chunks
    from .data import check_kernel, fitted, loaded_model, read_dataset

    if data.suffix == ".safetensors":
        given = {"target": target, **lists, "kernel": kernel, "noise": noise, "likelihood": outcomes}
        if strange := [f"--{name}" for name, words in given.items() if words is not None]:
            raise typer.BadParameter(f"a saved model has its columns and its kernel; leave out {', '.join(strange)}")
        return loaded_model(data)
    if target is None:
        raise typer.BadParameter("which column is to be modelled? Give --target")
    check_kernel(kernel)
    dataset = read_dataset(data, target, rows=rows, seed=seed, voice=voice, outcomes=outcomes, **lists)
    if grid is not None:
        _shape(grid, dataset.columns)  # raises errors before the fit
    if at is not None:
        for frame in islice(read_chunks(at, 1), 1):
            check_columns(frame, dataset.columns.inputs, str(at))
    return fitted(dataset, kernel, noise, seed, voice), dataset


def _with_room(box: Tensor) -> Tensor:
    """Widen the data's box `[2, d]` where a column is constant, so that grids and pictures have an extent."""
    lower, upper = box
    room = (0.1 * lower.abs() + 0.1) * (lower == upper)
    return box + room * box.new_tensor([[-1.0], [1.0]])


def _with_margin(box: Tensor) -> tuple[Tensor, Tensor]:
    margin = 0.1 * (box[1] - box[0])
    return box[0] - margin, box[1] + margin


def _reach(box: Tensor, at: Path | None, dataset: TableData) -> Tensor:
    """Extend the box `[2, d]` to all points at which functions are evaluated, which the draw's domain must contain."""
    import torch

    from ..tables.files import read_chunks

    own = [] if dataset.points is None else [dataset.points]
    frames = () if at is None else read_chunks(at, 1 << 20)
    for x in chain(own, (torch.from_numpy(dataset.columns.matrix(frame, str(at))) for frame in frames)):
        both = torch.cat([box, x[x.isfinite().all(1)]])
        box = torch.stack([both.amin(0), both.amax(0)])
    return box


def _shape(words: str, columns: EncodedColumns) -> list[int]:
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
    at: Path | None, shape: list[int] | None, dataset: TableData, box: Tensor, rows: int
) -> Iterator[tuple[DataFrame, Tensor]]:
    """Yield tables of inputs and their points, some rows at a time."""
    import torch

    from ..tables.files import read_chunks

    columns, d = dataset.columns, dataset.X.shape[1]
    if at is not None:
        done = 0
        for frame in read_chunks(at, rows):
            yield frame, torch.from_numpy(columns.matrix(frame, str(at)))
            done += len(frame)
        if not done:
            raise ValueError(f"{at} has column names but no rows")
        return
    if shape is None and d in _GRID and not columns.categories:
        shape = [_GRID[d]] * d
    if shape is None:
        blocks = iter((dataset.X if dataset.points is None else dataset.points).split(rows))
    else:
        axes = [
            torch.linspace(float(a), float(b), n, dtype=torch.float64, device="cpu")
            for a, b, n in zip(*box, shape, strict=True)
        ]
        blocks = _grid_blocks(axes, rows)
    for x in blocks:
        yield columns.table(x.numpy()), x


def _grid_blocks(axes: list[Tensor], rows: int) -> Iterator[Tensor]:
    """Yield the points of a grid in blocks; the last axis varies fastest."""
    import math

    import torch

    total = math.prod(len(axis) for axis in axes)
    for start in range(0, total, rows):
        index = torch.arange(start, min(total, start + rows), device="cpu")
        where = torch.unravel_index(index, [len(axis) for axis in axes])
        yield torch.stack([axis[i] for axis, i in zip(axes, where, strict=True)], dim=1)
