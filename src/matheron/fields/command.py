"""`matheron field`: from a table of observations to a raster and a picture, with one command."""

from __future__ import annotations

import re
import time
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from .extras import need


def field(
    table: Annotated[Path, typer.Argument(help="CSV, Parquet or GeoPackage file of observations.", show_default=False)],
    x: Annotated[str, typer.Option(help="Columns of the coordinates, in order.")] = "x,y",
    value: Annotated[str, typer.Option(help="Column of the values.")] = "z",
    grid: Annotated[
        str | None, typer.Option(help="Cells along each coordinate: 1000x1000.", show_default="200")
    ] = None,
    paths: Annotated[int, typer.Option(min=2, help="How many realisations.")] = 50,
    out: Annotated[Path | None, typer.Option(help="Where the field goes: .nc, .zarr or .tif.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Where the figure goes: .png, .pdf or .svg.")] = None,
    above: Annotated[
        float | None, typer.Option(help="Threshold of the probability map.", show_default="75% of the data lie below")
    ] = None,
    crs: Annotated[
        str | None, typer.Option(help="Of the coordinates, e.g. EPSG:32633; a table may have its own.")
    ] = None,
    mask: Annotated[
        Path | None,
        typer.Option(help="A raster: cells that are empty in it stay empty. Without --grid its cells are it."),
    ] = None,
    log: Annotated[bool, typer.Option("--log", help="Model the logarithm of the values.")] = False,
    chunks: Annotated[int | None, typer.Option(min=1, help="Cells along the side of a block.")] = None,
    dask: Annotated[str | None, typer.Option(help="Address of a Dask scheduler, e.g. tcp://10.0.0.1:8786.")] = None,
    seed: Annotated[int, typer.Option(help="Of the realisations.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what stands at --out.")] = False,
) -> None:
    """Fit a Gaussian process to observations, and simulate fields that agree with them.

    A command that was stopped goes on where it was when it is given again.
    """
    try:
        for name in ("xarray", "dask", "pandas"):
            need(name)
        run(table, x, value, grid, paths, out, plot, above, crs, mask, log, chunks, dask, seed, overwrite)
    except (OSError, ValueError, TypeError, ImportError) as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        typer.secho("stopped; the same command goes on with the blocks that are left", err=True)
        raise typer.Exit(130) from None


def run(
    table: Path,
    x: str,
    value: str,
    grid: str | None,
    num_paths: int,
    out: Path | None,
    plot: Path | None,
    above: float | None,
    crs: str | None,
    mask: Path | None,
    log: bool,
    chunks: int | None,
    scheduler: str | None,
    seed: int,
    overwrite: bool,
) -> None:
    """What the command does, step by step, each said in a line."""
    import numpy as np
    import torch

    from .. import draw
    from .observations import read_observations
    from .simulate import simulate, whole_paths, with_crs
    from .summaries import summaries_of
    from .targets import as_targets
    from .write import FORMATS, write

    out = Path(table.stem + ".nc") if out is None and plot is None else out
    _check_outputs(out, plot, FORMATS, overwrite)
    names = [name.strip() for name in x.split(",") if name.strip()]
    wells = read_observations(table, names, value)
    typer.echo(f"{table.name}: {len(wells.values)} observations of {value}")
    for remark in wells.remarks:
        typer.echo(f"  {remark}")
    cells = _cells(grid, mask, wells)
    _check_overlap(as_targets(cells, len(names), names if mask is None else None), wells)
    gp = _fitted(wells, log, seed)
    box = _box(cells, wells)
    began = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a draw's features: the line below says what was drawn
        functions = draw(gp, num_paths, domain=box, generator=torch.Generator().manual_seed(seed))
    typer.echo(f"drawn: {functions!r} ({time.monotonic() - began:.1f} s)")
    side = whole_paths(functions, cells)
    size = side if chunks is None else {dim: n if dim == "path" else chunks for dim, n in side.items()}
    realised = simulate(functions, cells, chunks=size, name=_variable(value))
    reference = crs or wells.crs
    realised = realised if reference is None else with_crs(realised, reference)
    threshold = float(np.quantile(wells.values, 0.75)) if above is None else above
    maps = summaries_of(realised, quantiles=(0.05, 0.5, 0.95), above=[threshold])
    if out is not None:
        began = time.monotonic()
        whole = maps.assign({realised.name: realised}) if out.suffix not in (".tif", ".tiff") else realised
        where = write(whole, out, scheduler=scheduler, progress=True, overwrite=overwrite)
        shape = " x ".join(str(n) for n in realised.shape[1:])
        typer.echo(f"written: {where}, {num_paths} realisations of {shape} cells ({time.monotonic() - began:.1f} s)")
    if plot is not None:
        _draw_figure(functions, cells, wells, threshold, plot)
        typer.echo(f"drawn: {plot}")


def _fitted(wells: Any, log: bool, seed: int) -> Any:
    """The model, in the values' own units whether fitted to them or to their logarithms."""
    import numpy as np

    from ..fitting import summary
    from .models import fit_field

    if log and wells.values.min() <= 0:
        raise ValueError(f"--log: expected positive values of {wells.value_name}, got {wells.values.min():.4g}")
    began = time.monotonic()
    gp = fit_field(wells.points, np.log(wells.values) if log else wells.values, seed=seed, progress=True)
    words = str(summary(gp, names=list(wells.names)))
    typer.echo(f"fitted{' to the logarithm' if log else ''}: {words} ({time.monotonic() - began:.1f} s)")
    if log:
        from ..transforms import Chain, Exp

        gp = gp.replaced(output_transform=Chain([gp.output_transform, Exp()]))
    return gp


def _cells(grid: str | None, mask: Path | None, wells: Any) -> Any:
    """The grid: the mask's own cells, or evenly spaced ones over the data, where the mask has values."""
    import numpy as np

    d = len(wells.names)
    raster = None if mask is None else _raster(mask, d)
    if grid is None and raster is not None:
        return raster
    sizes = _sizes(grid or "x".join(["200"] * d), d)
    low, high = wells.points.min(0), wells.points.max(0)
    room = 0.03 * (high - low)
    axes = {
        name: np.linspace(a, b, n) for name, a, b, n in zip(wells.names, low - room, high + room, sizes, strict=True)
    }
    if raster is None:
        return axes
    y, x = raster.dims
    inner = {name: axes[name] for name in wells.names}
    xr = need("xarray")
    shown = raster.sel(
        {
            x: xr.DataArray(inner[wells.names[0]], dims=wells.names[0]),
            y: xr.DataArray(inner[wells.names[1]], dims=wells.names[1]),
        },
        method="nearest",
    )
    shown = shown.drop_vars([n for n in (x, y) if n in shown.coords]).assign_coords(inner)
    return shown.transpose(*reversed(wells.names))


def _raster(mask: Path, d: int) -> Any:
    if d != 2:
        raise ValueError(f"--mask: a raster has two coordinates, got {d}")
    if not mask.exists():
        raise FileNotFoundError(f"--mask: no file {mask}")
    if mask.suffix in (".tif", ".tiff"):
        raster = need("rioxarray").open_rasterio(mask, masked=True).squeeze("band", drop=True)
    else:
        raster = need("xarray").open_dataarray(mask)
    if raster.ndim != 2:
        raise ValueError(f"--mask: expected one layer (y, x), got dimensions {list(raster.dims)}")
    return raster.load()


def _sizes(grid: str, d: int) -> list[int]:
    if not re.fullmatch(r"\d+(x\d+)*", grid):
        raise ValueError(f"--grid: expected numbers of cells such as 1000x1000, got {grid!r}")
    sizes = [int(n) for n in grid.split("x")]
    if len(sizes) != d or min(sizes) < 2:
        raise ValueError(f"--grid: expected {d} numbers of at least 2, one for each coordinate, got {grid!r}")
    return sizes


def _check_overlap(targets: Any, wells: Any) -> None:
    for i, name in enumerate(wells.names):
        axis, column = targets.axes[targets.order[i]], wells.points[:, i]
        if axis.max() < column.min() or axis.min() > column.max():
            raise ValueError(
                f"the grid misses the data: along {name} it goes from {axis.min():.6g} to {axis.max():.6g}, the "
                f"observations from {column.min():.6g} to {column.max():.6g}; are both in one coordinate system?"
            )


def _box(cells: Any, wells: Any) -> tuple[list[float], list[float]]:
    from .targets import as_targets

    targets = as_targets(cells, len(wells.names))
    assert targets.axes is not None
    axes = [targets.axes[i] for i in targets.order]
    low = [min(float(a.min()), float(c.min())) for a, c in zip(axes, wells.points.T, strict=True)]
    high = [max(float(a.max()), float(c.max())) for a, c in zip(axes, wells.points.T, strict=True)]
    return low, high


def _check_outputs(out: Path | None, plot: Path | None, formats: tuple[str, ...], overwrite: bool) -> None:
    """Before any work: what could not be written at the end."""
    for option, path, endings in (("--out", out, formats), ("--plot", plot, (".png", ".pdf", ".svg"))):
        if path is None:
            continue
        if path.suffix.lower() not in endings:
            raise ValueError(f"{option}: expected a name that ends in {', '.join(endings)}, got {path.name!r}")
        if not path.parent.is_dir():
            raise FileNotFoundError(f"{option}: no folder {path.parent}; make it first")
    if out is not None and out.exists() and not overwrite and not out.with_name(out.name + ".blocks").exists():
        raise FileExistsError(f"--out: {out} is there already; choose another name, or add --overwrite")


def _draw_figure(functions: Any, cells: Any, wells: Any, threshold: float, plot: Path) -> None:
    """The figure, of the same functions at the cells that a picture can show."""
    from .picture import picture, thinned
    from .simulate import simulate
    from .summaries import summarise

    if len(wells.names) != 2:
        raise ValueError(f"--plot: expected two coordinates, got {', '.join(wells.names)}")
    if isinstance(cells, dict):
        few: Any = {name: axis[thinned(axis)] for name, axis in cells.items()}
    else:
        few = cells.isel({dim: thinned(cells[dim].values) for dim in cells.dims})
    maps = summarise(functions, few, quantiles=(), above=[threshold]).compute(scheduler="sync")
    realisations = simulate(functions[:3], few).compute(scheduler="sync")
    picture(maps, realisations, wells.points, wells.values, plot, units=wells.value_name)


def _variable(name: str) -> str:
    """A column's name as a variable's: maps have names of their own."""
    taken = ("mean", "mean_error", "std", "std_error", "quantile", "probability", "x", "y", "path")
    return f"{name}_field" if name in taken else re.sub(r"\W", "_", name) or "field"
