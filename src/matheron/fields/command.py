"""`matheron field`: from a table of observations to a raster and a picture, with one command."""

from __future__ import annotations

import re
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from ..columns import listed
from ..tables import check_folder
from .extras import need
from .targets import EASTWARD, NORTHWARD

if TYPE_CHECKING:
    from xarray import DataArray, Dataset

    from ..gp import ExactGP
    from ..paths import AbstractPaths
    from .models import OnSphere
    from .observations import Observations
    from .simulation import Chunks

# Products of observations, twice, and cells: up to so many the standard deviation is exact, in about a minute.
_DEAR = 1e12


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
        str | None,
        typer.Option(
            help="Of the coordinates, e.g. EPSG:32633. A GeoPackage has its own, and is brought into the one given."
        ),
    ] = None,
    mask: Annotated[
        Path | None,
        typer.Option(
            help="A raster, whose cells without a value (or that are 0, of 0 and 1) stay empty and, without --grid, "
            "whose cells are the grid; or polygons (GeoPackage, GeoJSON, Shapefile): the field is inside them."
        ),
    ] = None,
    sphere: Annotated[
        bool | None,
        typer.Option(
            "--sphere/--plane",
            help="Coordinates are longitude and latitude in degrees, and distances the sphere's.",
            show_default="by the CRS",
        ),
    ] = None,
    log: Annotated[bool, typer.Option("--log", help="Model the logarithm of the values.")] = False,
    chunks: Annotated[int | None, typer.Option(min=1, help="Cells along the side of a block.")] = None,
    dask: Annotated[str | None, typer.Option(help="Address of a Dask scheduler, e.g. tcp://10.0.0.1:8786.")] = None,
    seed: Annotated[int, typer.Option(help="Of the realisations.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is at --out.")] = False,
) -> None:
    """Fit a Gaussian process to observations, and simulate fields that agree with them.

    A command that was stopped resumes where it was when it is given again.
    """
    for name in ("xarray", "dask", "pandas"):
        need(name)
    import torch

    from .. import draw
    from .cells import box_of, cells_for
    from .models import OnSphere
    from .observations import read_observations
    from .simulation import simulate, whole_paths, with_crs
    from .writing import FORMATS, write

    try:
        out = Path(table.stem + ".nc") if out is None and plot is None else out
        names = listed(x) or []
        _check_outputs(out, plot, FORMATS, overwrite)
        _check_coordinates(names, out, plot)
        wells = read_observations(table, names, value, _as_crs(crs))
        typer.echo(f"{table.name}: {len(wells.values)} observations of {value}")
        for remark in wells.remarks:
            typer.echo(f"  {remark}")
        reference = wells.crs
        sphere = bool(getattr(reference, "is_geographic", False)) if sphere is None else sphere
        if sphere:
            _check_degrees(wells)
            wells = wells if mask is not None else _across_the_dateline(wells)
        elif reference is None and [name[:3].lower() for name in names] == ["lon", "lat"]:
            typer.echo(f"  {' and '.join(names)} are taken for a plane; --sphere if they are degrees")
        cells = cells_for(grid, mask, wells, reference, sphere)
        box = box_of(cells, wells)
        gp = _fitted(wells, log, seed, sphere)
        began = time.monotonic()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a draw's features: the line below says what was drawn
            functions = draw(gp, paths, domain=None if sphere else box, generator=torch.Generator().manual_seed(seed))
        typer.echo(f"drawn: {functions!r} ({time.monotonic() - began:.1f} s)")
        where = OnSphere(functions) if sphere else functions
        side = whole_paths(where, cells)
        size = side if chunks is None else {dim: n if dim == "path" else chunks for dim, n in side.items()}
        realised = simulate(where, cells, chunks=size, name=_variable(value))
        realised = realised if reference is None else with_crs(realised, reference)
        threshold = float(np.quantile(wells.values, 0.75)) if above is None else above
        if out is not None:
            began = time.monotonic()
            whole = realised
            if out.suffix.lower() not in (".tif", ".tiff"):
                maps = _maps(gp, where, realised, cells, size, (0.05, 0.5, 0.95), threshold)
                whole = maps.assign({realised.name: realised})
            written = write(whole, out, scheduler=dask, progress=True, overwrite=overwrite)
            shape = " x ".join(str(n) for n in realised.shape[1:])
            typer.echo(f"written: {written}, {paths} realisations of {shape} cells ({time.monotonic() - began:.1f} s)")
        if plot is not None:
            _draw_figure(gp, where, cells, wells, threshold, plot, log, sphere)
            typer.echo(f"drawn: {plot}")
    except KeyboardInterrupt:
        typer.secho("stopped; the same command resumes with the blocks that are left", err=True)
        raise typer.Exit(130) from None


def _as_crs(crs: str | None) -> object:
    """A coordinate reference system by its name."""
    if crs is None:
        return None
    pyproj = need("pyproj")
    try:
        return pyproj.CRS.from_user_input(crs)
    except pyproj.exceptions.CRSError as error:
        raise ValueError(f"--crs: expected a name such as EPSG:32633, got {crs!r} ({error})") from None


def _check_coordinates(names: list[str], out: Path | None, plot: Path | None) -> None:
    """Before any work: what cannot be drawn or stored as a map."""
    lower = [name.lower() for name in names]
    if len(names) == 2 and lower[0] in NORTHWARD and lower[1] in EASTWARD:
        raise ValueError(f"--x: expected the eastward coordinate first, as in --x {names[1]},{names[0]}; got {names}")
    if plot is not None and len(names) != 2:
        raise ValueError(f"--plot: a map has two coordinates, got {', '.join(names)}; leave it out, and open --out")
    if out is not None and out.suffix.lower() in (".tif", ".tiff") and len(names) < 2:
        raise ValueError(f"--out: a raster has two coordinates, got {', '.join(names)}; write to .nc")


def _check_degrees(wells: Observations) -> None:
    """On the sphere coordinates are a longitude and a latitude."""
    if len(wells.names) != 2:
        raise ValueError(f"--sphere: expected longitude and latitude, got {', '.join(wells.names)}")
    for name, column, most in zip(wells.names, wells.points.T, (360.0, 90.0), strict=True):
        if np.abs(column).max() > most:
            raise ValueError(
                f"--crs or --sphere: expected longitude and latitude in degrees, got {name} from {column.min():.6g} to "
                f"{column.max():.6g}; name another --crs, or add --plane"
            )


def _across_the_dateline(wells: Observations) -> Observations:
    """Observations whose longitudes have no jump, so that a grid goes the short way round."""
    from .cells import unwrapped

    east, points = unwrapped(wells.points[:, 0]), wells.points.copy()
    if (east != points[:, 0]).any():
        typer.echo(f"  {wells.names[0]} crosses the line where it begins again: {east.min():.6g} to {east.max():.6g}")
        points[:, 0] = east
    return replace(wells, points=points)


def _fitted(wells: Observations, log: bool, seed: int, sphere: bool) -> ExactGP:
    """The model, in the values' own units whether fitted to them or to their logarithms."""
    from ..fitting import summary
    from ..kernels import Matern
    from .models import EARTH, fit_field, on_sphere

    if log and wells.values.min() <= 0:
        raise ValueError(f"--log: expected positive values of {wells.value_name}, got {wells.values.min():.4g}")
    began = time.monotonic()
    values = np.log(wells.values) if log else wells.values
    points, kernel, names = wells.points, None, list(wells.names)
    if sphere:  # one lengthscale for all directions, in km along chords
        points, names = on_sphere(wells.points), None
        kernel = float(values.var()) * Matern(1.5, EARTH / 20)
    gp = fit_field(points, values, kernel, seed=seed, progress=True)
    words = str(summary(gp, names=names))
    where = " on the sphere, in km" if sphere else ""
    typer.echo(f"fitted{where}{' to the logarithm' if log else ''}: {words} ({time.monotonic() - began:.1f} s)")
    if log:
        from ..transforms import Affine, Chain, Exp

        gp = gp.replaced(output_transform=Chain([gp.output_transform or Affine(), Exp()]))
    return gp


def _check_outputs(out: Path | None, plot: Path | None, formats: tuple[str, ...], overwrite: bool) -> None:
    """Before any work: what could not be written at the end."""
    for option, path, endings in (("--out", out, formats), ("--plot", plot, (".png", ".pdf", ".svg"))):
        if path is None:
            continue
        if path.suffix.lower() not in endings:
            raise ValueError(f"{option}: expected a name that ends in {', '.join(endings)}, got {path.name!r}")
        check_folder(path)
    if out is not None and out.exists() and not overwrite and not out.with_name(out.name + ".blocks").exists():
        raise FileExistsError(f"--out: {out} is there already; choose another name, or add --overwrite")


def _maps(
    gp: ExactGP,
    functions: AbstractPaths | OnSphere,
    realised: DataArray,
    cells: DataArray | dict[str, np.ndarray],
    chunks: Chunks,
    quantiles: tuple[float, ...],
    threshold: float,
) -> Dataset:
    """The summaries of realisations, with the posterior's own mean and, where it is not too dear, standard deviation.

    What is exact has no error beside it.
    """
    from .kriging import LARGEST, krige, mean
    from .models import OnSphere
    from .summaries import summaries_of

    maps = summaries_of(realised, quantiles=quantiles, above=[threshold])
    if gp.output_transform is not None and not gp.output_transform.affine:
        return maps
    if gp.num_data <= LARGEST and gp.num_data**2 * realised[0].size <= _DEAR:
        exact = krige(OnSphere(gp) if isinstance(functions, OnSphere) else gp, cells, chunks=chunks)
    else:
        exact = mean(functions, cells, chunks=chunks).to_dataset()
    maps = maps.drop_vars([f"{name}_error" for name in exact.data_vars])
    return maps.assign({name: (maps[name].dims, v.data, maps[name].attrs) for name, v in exact.data_vars.items()})


def _draw_figure(
    gp: ExactGP,
    functions: AbstractPaths | OnSphere,
    cells: DataArray | dict[str, np.ndarray],
    wells: Observations,
    threshold: float,
    plot: Path,
    log: bool,
    degrees: bool,
) -> None:
    """The figure, of the same functions at the cells that a picture can show."""
    from .picture import picture, thinned
    from .simulation import simulate, whole_paths

    if isinstance(cells, dict):
        few = {name: axis[thinned(axis)] for name, axis in cells.items()}
    else:
        few = cells.isel({dim: thinned(cells[dim].values) for dim in cells.dims})
    chunks = whole_paths(functions, few)
    maps = _maps(gp, functions, simulate(functions, few, chunks=chunks), few, chunks, (), threshold)
    maps = maps.compute(scheduler="sync")
    realisations = simulate(functions[:3], few).compute(scheduler="sync")
    data = (wells.points, wells.values)
    picture(maps, realisations, *data, plot, units=wells.value_name, log=log, degrees=degrees)


def _variable(name: str) -> str:
    """A column's name as a variable's: maps have names of their own."""
    taken = ("mean", "mean_error", "std", "std_error", "quantile", "probability", "x", "y", "path")
    return f"{name}_field" if name in taken else re.sub(r"\W", "_", name) or "field"
