"""`matheron field`: from a table of observations to a raster and a picture, with one command."""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import Exposure, LikelihoodOption, Quiet, Trials, model_option, output_option, points_option

if TYPE_CHECKING:
    import numpy as np
    from xarray import DataArray, Dataset

    from ..fields.simulation import Chunks
    from ..fields.sphere import OnSphere
    from ..models import ExactGP, LatentGP
    from ..paths import AbstractPaths
    from .field_data import FieldData

# The limit on observations^2 times cells up to which the standard deviation is exact, which then takes about a minute.
_DEAR = 1e12
# At most this many observations are left out in turn, and each is predicted from at most this many.
_VALIDATED = 4000


def field(
    table: Annotated[
        Path, typer.Argument(metavar="TABLE", help="Observations: CSV, Parquet or GeoPackage file.", show_default=False)
    ],
    x: Annotated[str, model_option(metavar="COLUMNS", help="Columns of the coordinates, in order.")] = "x,y",
    value: Annotated[str, model_option(metavar="COLUMN", help="Column of the values.")] = "z",
    crs: Annotated[
        str | None,
        model_option(
            metavar="SYSTEM",
            help="Coordinate reference system of the input, for example EPSG:4326. A GeoPackage that has another is "
            "brought into this one.",
        ),
    ] = None,
    to: Annotated[
        str | None,
        model_option(
            metavar="SYSTEM", help="Coordinate reference system of the model and of the output, for example EPSG:32633."
        ),
    ] = None,
    sphere: Annotated[
        bool | None,
        model_option(
            "--sphere/--plane",
            help="Coordinates are longitude and latitude in degrees, and distances are those on the sphere.",
            show_default="by the CRS",
        ),
    ] = None,
    great_circle: Annotated[
        bool,
        model_option(
            "--great-circle",
            help="With --sphere, the Matern kernel of the sphere itself, in great-circle distances. Without it a "
            "region is projected, and wider data have distances through the Earth.",
        ),
    ] = False,
    log: Annotated[bool, model_option("--log", help="Model the logarithm of the values.")] = False,
    likelihood: LikelihoodOption = None,
    exposure: Exposure = None,
    trials: Trials = None,
    validate: Annotated[
        bool, model_option("--validate", help="Predict every observation from all the others, and print the errors.")
    ] = False,
    grid: Annotated[
        str | None,
        points_option(
            metavar="SIZE", help="Number of cells along each coordinate, for example 1000x1000.", show_default="200"
        ),
    ] = None,
    mask: Annotated[
        Path | None,
        points_option(
            metavar="FILE",
            help="Raster or polygons (GeoPackage, GeoJSON, Shapefile) of the region. Cells outside of it, or without "
            "a value in the raster (or with 0, of 0 and 1), stay empty. Without --grid a raster's cells are the grid.",
        ),
    ] = None,
    chunks: Annotated[
        int | None, points_option(metavar="NUMBER", min=1, help="Cells along the side of a block.")
    ] = None,
    dask: Annotated[
        str | None,
        points_option(metavar="ADDRESS", help="Dask scheduler to compute on, for example tcp://10.0.0.1:8786."),
    ] = None,
    paths: Annotated[int, typer.Option(metavar="NUMBER", min=2, help="Number of realisations.")] = 50,
    seed: Annotated[int, typer.Option(metavar="NUMBER", help="Random seed.")] = 0,
    out: Annotated[Path | None, output_option(metavar="FILE", help="Field to write: .nc, .zarr or .tif.")] = None,
    overwrite: Annotated[bool, output_option("--overwrite", help="Replace the file of --out.")] = False,
    plot: Annotated[Path | None, output_option(metavar="FILE", help="Figure of the maps: .png, .pdf or .svg.")] = None,
    above: Annotated[
        float | None,
        output_option(
            metavar="NUMBER", help="Threshold of the map of probabilities.", show_default="the data's 75% quantile"
        ),
    ] = None,
    variogram: Annotated[
        Path | None, output_option(metavar="FILE", help="Figure of the variogram of the data and of the model.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Simulate fields on large grids that agree with observations, by a fitted Gaussian process.

    Example: matheron field wells.csv --x east,north --value depth --grid 1000x1000 --out depth.nc --plot depth.png

    With --likelihood the fields are rates or probabilities. A command that was stopped resumes when it is given again.
    """
    import numpy as np

    from ..fields.targets import need
    from ..tables.encoding import OutcomeColumn, listed

    for name in ("xarray", "dask", "pandas"):
        need(name)
    import torch

    from ..fields.posterior import draw_field
    from ..fields.simulation import simulate, whole_paths, with_crs
    from ..fields.writing import FORMATS, write
    from .field_data import box_of, cells_for, check_degrees, read_observations

    say = (lambda _: None) if quiet else typer.echo
    written = None
    try:
        out = Path(table.stem + ".nc") if out is None and plot is None else out
        names = listed(x) or []
        _check_outputs(out, plot, variogram, FORMATS, overwrite)
        _check_coordinates(names, out, plot)
        outcomes = OutcomeColumn.of(likelihood, exposure, trials)
        if outcomes is not None and (log or variogram is not None):
            which = "--log" if log else "--variogram"
            raise ValueError(f"{which}: goes with normal errors; leave it or --likelihood out")
        wells = read_observations(table, names, value, _as_crs(crs, "--crs"), _as_crs(to, "--to"), outcomes)
        say(f"{table.name}: {len(wells.values)} observations of {value}")
        for remark in wells.remarks:  # remarks on omitted or doubtful data, printed with --quiet too
            typer.echo(f"  {remark}", err=True)
        reference = wells.crs
        sphere = bool(getattr(reference, "is_geographic", False)) if sphere is None else sphere
        if sphere:
            check_degrees(wells.points, wells.names)
            wells = wells if mask is not None else _across_the_dateline(wells, say)
        elif great_circle:
            raise ValueError(
                "--great-circle: expected longitude and latitude; name a --crs of degrees, or add --sphere"
            )
        elif reference is None and [name[:3].lower() for name in names] == ["lon", "lat"]:
            typer.echo(f"  {' and '.join(names)} are taken for a plane; --sphere if they are degrees", err=True)
        cells = cells_for(grid, mask, wells, reference, sphere)
        box_of(cells, wells)
        model = _fitted(wells, log, seed, sphere, great_circle, cells, say)
        if validate:
            say(_validated(model, log))
        if variogram is not None:
            _draw_variogram(model, wells, log, variogram)
            say(f"drawn: {variogram}")
        model = _of_values(model) if log else model
        began = time.monotonic()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings of the draw's features; the line below says what was drawn
            functions = draw_field(model, paths, cells, generator=torch.Generator().manual_seed(seed))
        say(f"drawn: {functions!r} ({time.monotonic() - began:.1f} s)")
        functions = functions if wells.likelihood is None else wells.likelihood.mean_of(functions)
        side = whole_paths(functions, cells)
        size = side if chunks is None else {dim: n if dim == "path" else chunks for dim, n in side.items()}
        realised = simulate(functions, cells, chunks=size, name=_variable(value))
        realised = realised if reference is None else with_crs(realised, reference)
        threshold = float(np.quantile(wells.rates, 0.75)) if above is None else above
        if out is not None:
            began = time.monotonic()
            maps = _maps(model, functions, realised, cells, size, (0.05, 0.5, 0.95), threshold)
            whole = maps.assign({realised.name: realised})
            written = write(whole, out, scheduler=dask, progress=not quiet, overwrite=overwrite)
            shape = " x ".join(str(n) for n in realised.shape[1:])
            say(f"written: {written}, {paths} realisations of {shape} cells ({time.monotonic() - began:.1f} s)")
        if plot is not None:
            _draw_figure(model, functions, cells, wells, threshold, plot, log, sphere)
            say(f"drawn: {plot}")
    except KeyboardInterrupt:
        begun = out is not None and out.with_name(out.name + ".partial").exists()
        left = "the same command resumes with the blocks that are left" if begun else "nothing was written"
        typer.secho(f"stopped; {left if written is None else f'{written} was written'}", err=True)
        raise typer.Exit(130) from None


def _as_crs(crs: str | None, option: str) -> object:
    """A coordinate reference system by its name."""
    from ..fields.targets import need

    if crs is None:
        return None
    pyproj = need("pyproj")
    try:
        return pyproj.CRS.from_user_input(crs)
    except pyproj.exceptions.CRSError as error:
        raise ValueError(f"{option}: expected a name such as EPSG:32633, got {crs!r} ({error})") from None


def _check_coordinates(names: list[str], out: Path | None, plot: Path | None) -> None:
    """Raise errors before any work if the coordinates cannot be drawn or stored as a map."""
    from ..fields.targets import EASTWARD, NORTHWARD

    paths = [name for name in names if "/" in name or name == "path"]
    if paths:  # a file has these names for its groups, and for the dimension of the realisations
        raise ValueError(f"--x: expected names that a coordinate can have in a file, got {paths}; rename the columns")
    lower = [name.lower() for name in names]
    if len(names) == 2 and lower[0] in NORTHWARD and lower[1] in EASTWARD:
        raise ValueError(f"--x: expected the eastward coordinate first, as in --x {names[1]},{names[0]}; got {names}")
    if plot is not None and len(names) != 2:
        raise ValueError(f"--plot: a map has two coordinates, got {', '.join(names)}; leave it out, and open --out")
    if out is not None and out.suffix.lower() in (".tif", ".tiff") and len(names) < 2:
        raise ValueError(f"--out: a raster has two coordinates, got {', '.join(names)}; write to .nc")


def _across_the_dateline(wells: FieldData, say: Callable[[str], None]) -> FieldData:
    """Observations with longitudes without a jump, so that a grid spans the shorter way around the Earth."""
    from .field_data import unwrapped

    east, points = unwrapped(wells.points[:, 0]), wells.points.copy()
    if (east != points[:, 0]).any():
        say(
            f"  {wells.names[0]} crosses the date line, or 0 degrees; it is now counted from {east.min():.6g} to "
            f"{east.max():.6g}"
        )
        points[:, 0] = east
    return replace(wells, points=points)


def _fitted(
    wells: FieldData,
    log: bool,
    seed: int,
    sphere: bool,
    great_circle: bool,
    cells: DataArray | dict[str, np.ndarray],
    say: Callable[[str], None],
) -> ExactGP | LatentGP | OnSphere:
    """The model of the values, or of their logarithms."""
    import numpy as np

    from ..fields.field_models import fit_field, fit_sphere
    from ..fields.sphere import SphereMatern
    from ..fitting import summary

    if log and wells.values.min() <= 0:
        raise ValueError(f"--log: expected positive values of {wells.value_name}, got {wells.values.min():.4g}")
    began, where = time.monotonic(), ""
    values, show = np.log(wells.values) if log else wells.values, say is typer.echo
    if sphere:
        kernel = None
        if great_circle:
            follows = wells.likelihood is None or wells.likelihood.follows_targets
            kernel = (float(values.var()) if follows else 1.0) * SphereMatern(1.5, 1000.0)
        settings: dict[str, Any] = dict(around=cells, seed=seed, progress=show, likelihood=wells.likelihood)
        model = fit_sphere(wells.points, values, kernel, **settings)
        words = summary(model.inner)
        where = " on the sphere, in km"
        if model.centre is not None:
            where += " (projected about {:g}, {:g})".format(*model.centre)
    else:
        model = fit_field(wells.points, values, likelihood=wells.likelihood, seed=seed, progress=show)
        words = summary(model, names=list(wells.names))
    say(f"fitted{where}{' to the logarithm' if log else ''}: {words} ({time.monotonic() - began:.1f} s)")
    return model


def _of_values(model: ExactGP | LatentGP | OnSphere) -> ExactGP | LatentGP | OnSphere:
    """The model of values whose logarithms were fitted."""
    from ..fields.sphere import OnSphere
    from ..models.transforms import Affine, Chain, Exp

    if isinstance(model, OnSphere):
        return model.with_inner(_of_values(model.inner))
    return model.replaced(output_transform=Chain([model.output_transform or Affine(), Exp()]))


def _validated(model: ExactGP | LatentGP | OnSphere, log: bool) -> str:
    """One line with the result of leave-one-out cross-validation."""
    import torch

    from ..fields.sphere import OnSphere
    from ..fitting.evidence import leave_one_out
    from ..models import LatentGP

    gp = model.inner if isinstance(model, OnSphere) else model
    if isinstance(gp, LatentGP):
        return f"leave-one-out: {leave_one_out(gp).lines()[0]}"
    some = torch.randperm(gp.num_data, generator=torch.Generator().manual_seed(0), device="cpu")[:_VALIDATED]
    if gp.num_data > _VALIDATED:
        gp = gp.replaced(sites=gp.sites[some], train_targets=gp.train_targets[some], noise=gp.noise[some])
    left_out = leave_one_out(gp)
    rmse, explained, inside = (float(score) for score in (left_out.rmse, left_out.r_squared, left_out.coverage))
    return (
        f"leave-one-out{' of the logarithm' if log else ''}: RMSE {rmse:.4g}, R^2 {explained:.3f}, "
        f"{100 * inside:.1f}% of {len(some)} observations in their 95% intervals"
    )


def _draw_variogram(model: ExactGP | LatentGP | OnSphere, wells: FieldData, log: bool, out: Path) -> None:
    """The variogram of the data, in km where they are longitudes and latitudes, and the model's."""
    import numpy as np
    from matplotlib.figure import Figure

    from ..fields.sphere import OnSphere
    from ..fields.variograms import variogram
    from ..models import LatentGP

    on_sphere = isinstance(model, OnSphere)
    # models with a likelihood were refused before, because they have no variogram
    assert not isinstance(model, LatentGP)
    points = model.points(wells.points) if on_sphere else wells.points
    figure = Figure(figsize=(6, 3.8), layout="constrained")
    ax = figure.subplots()
    values = np.log(wells.values) if log else wells.values
    variogram(points, values).plot(model, ax=ax)
    ax.set_title(f"log {wells.value_name}" if log else wells.value_name)
    ax.set_xlabel("distance in km" if on_sphere else "distance")
    figure.savefig(out, dpi=120)


def _check_outputs(
    out: Path | None, plot: Path | None, variogram: Path | None, formats: tuple[str, ...], overwrite: bool
) -> None:
    """Raise errors before any work if an output could not be written at the end."""
    from ..tables.files import check_folder

    figures = (".png", ".pdf", ".svg")
    for option, path, endings in (
        ("--out", out, formats),
        ("--plot", plot, figures),
        ("--variogram", variogram, figures),
    ):
        if path is None:
            continue
        if path.suffix.lower() not in endings:
            raise ValueError(f"{option}: expected a name that ends in {', '.join(endings)}, got {path.name!r}")
        check_folder(path)
    if out is not None and out.exists() and not overwrite:
        raise FileExistsError(f"--out: {out} is there already; choose another name, or add --overwrite")


def _maps(
    model: ExactGP | LatentGP | OnSphere,
    functions: AbstractPaths | OnSphere,
    realised: DataArray,
    cells: DataArray | dict[str, np.ndarray],
    chunks: Chunks,
    quantiles: tuple[float, ...],
    threshold: float,
) -> Dataset:
    """Summaries of realisations, with the exact mean and, if it is affordable, the exact standard deviation.

    Exact maps have no map of standard errors.
    """
    from ..fields.posterior import LARGEST, krige, mean
    from ..fields.sphere import OnSphere
    from ..fields.summaries import summaries_of
    from ..models import LatentGP

    maps = summaries_of(realised, quantiles=quantiles, above=[threshold])
    inner = model.inner if isinstance(model, OnSphere) else model
    if isinstance(inner, LatentGP) or not (inner.output_transform is None or inner.output_transform.affine):
        return maps
    if model.num_data <= LARGEST and model.num_data**2 * realised[0].size <= _DEAR:
        exact = krige(model, cells, chunks=chunks)
    else:
        exact = mean(functions, cells, chunks=chunks).to_dataset()
    maps = maps.drop_vars([f"{name}_error" for name in exact.data_vars])
    return maps.assign({name: (maps[name].dims, v.data, maps[name].attrs) for name, v in exact.data_vars.items()})


def _draw_figure(
    model: ExactGP | LatentGP | OnSphere,
    functions: AbstractPaths | OnSphere,
    cells: DataArray | dict[str, np.ndarray],
    wells: FieldData,
    threshold: float,
    plot: Path,
    log: bool,
    degrees: bool,
) -> None:
    """The figure, of the same functions at the cells that a picture can show."""
    from ..fields.simulation import simulate, whole_paths
    from .pictures import field_figure, thinned

    if isinstance(cells, dict):
        few = {name: axis[thinned(axis)] for name, axis in cells.items()}
    else:
        few = cells.isel({dim: thinned(cells[dim].values) for dim in cells.dims})
    chunks = whole_paths(functions, few)
    maps = _maps(model, functions, simulate(functions, few, chunks=chunks), few, chunks, (), threshold)
    maps = maps.compute(scheduler="sync")
    realisations = simulate(functions[:3], few).compute(scheduler="sync")
    data = (wells.points, wells.rates)
    field_figure(maps, realisations, *data, plot, units=wells.value_name, log=log, degrees=degrees)


def _variable(name: str) -> str:
    """A column's name as a variable's: maps have names of their own."""
    taken = ("mean", "mean_error", "std", "std_error", "quantile", "probability", "x", "y", "path")
    return f"{name}_field" if name in taken else re.sub(r"\W", "_", name) or "field"
