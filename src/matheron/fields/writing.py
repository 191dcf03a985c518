"""write: a field to Zarr, NetCDF or GeoTIFF, block by block in bounded memory; a killed write can be resumed.

Blocks are computed in this thread, in several threads, or on a cluster.
"""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import warnings
from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Union, cast

import numpy as np
import torch

from ..core.progress import tracked
from .targets import need

if TYPE_CHECKING:
    from dask.delayed import Delayed
    from distributed import Client, Future
    from xarray import DataArray, Dataset

# None, "sync" (one block after another, each on all cores), "threads", the address of a scheduler, or a Client.
Scheduler = Union[str, "Client", None]
# The longest wait for an answer from a scheduler.
PATIENCE = "5s"


# The file of an unfinished store that says which field is being written.
_IDENTITY = "unfinished.json"
FORMATS = (".zarr", ".nc", ".tif", ".tiff")


def write(
    field: DataArray | Dataset,
    path: str | os.PathLike[str],
    *,
    scheduler: Scheduler = None,
    progress: bool = False,
    overwrite: bool = False,
) -> Path:
    """Write a field, or a Dataset of several, to `.zarr`, `.nc` (NetCDF) or `.tif` (GeoTIFF).

    Blocks are computed and written one by one, on a cluster by many workers at once, so that a field may be larger
    than memory. They are collected in a Zarr store `.partial` beside the file, and the file appears when all are
    there. After a kill, the same call resumes without the finished blocks.

    A GeoTIFF has a band for each map of a Dataset and each path, in the Dataset's order and with descriptions; it is
    tiled, compressed, and has overviews.

    Args:
        field: the result of `simulate`, or anything computed from it.
        path: the file; on a cluster in a folder that all workers see.
        scheduler: "sync", "threads", the address of a Dask scheduler, or a `distributed.Client`. None is the Client
            of this process where there is one, else "threads".
        progress: show a bar.
        overwrite: replace what is there already.

    >>> import numpy as np, tempfile, xarray, matheron
    >>> from matheron import fields, kernels
    >>> paths = matheron.draw_prior(kernels.RBF(0.3), 2, input_dim=2)
    >>> field = fields.simulate(paths, {"x": np.linspace(0, 1, 30), "y": np.linspace(0, 1, 20)}, chunks=10)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     xarray.open_dataarray(fields.write(field, folder + "/field.nc")).shape
    (2, 20, 30)
    """
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"path: expected a name that ends in {', '.join(FORMATS)}, got {path.name!r}")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"path: no folder {path.parent}; make it first")
    dataset = _as_dataset(field)
    wrong = [name for name in map(str, dataset.variables) if "/" in name or not name.strip(".")]
    if wrong:  # in Zarr and NetCDF they are paths
        raise ValueError(
            f"field: expected names of variables without '/', and not of dots alone, got {wrong}; rename them"
        )
    if path.suffix.lower() in (".tif", ".tiff"):
        check_raster(dataset)
    store = path.with_name(path.name + ".partial")
    if overwrite:
        for old in (path, store):
            shutil.rmtree(old) if old.is_dir() else old.unlink(missing_ok=True)
    elif path.exists():
        raise FileExistsError(f"path: {path} is there already; choose another name, or pass overwrite=True")
    try:
        _written(dataset, path, store, scheduler, progress)
    except Exception as error:
        if not _for_want_of_space(error):
            raise
        full = OSError(
            f"no space is left on the disk of {path}; finished blocks are kept in {store.name}: make room and do the "
            f"same again, or delete {store.name}"
        )
        full.errno = errno.ENOSPC
        raise full from None
    return path


def _written(dataset: Dataset, path: Path, store: Path, scheduler: Scheduler, progress: bool) -> None:
    """All blocks, in a store, and then the file."""
    with client_of(scheduler) as client:
        _open_store(dataset, store)
        tasks = _tasks(dataset, store)
        for _ in tracked(finished(tasks, client, scheduler), len(tasks), path.name, "blocks", show=progress):
            pass
    if path.suffix.lower() == ".zarr":
        os.replace(store, path)
        (path / _IDENTITY).unlink()
    else:
        _assemble(store, path, list(dataset.data_vars))
        shutil.rmtree(store)


def _for_want_of_space(error: BaseException | None) -> bool:
    """Whether an error means that a disk or a quota is full."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    return error is not None and _for_want_of_space(error.__cause__ or error.__context__)


def _as_dataset(field: DataArray | Dataset) -> Dataset:
    """A Dataset whose every variable is a Dask array in blocks of one size along each dim."""
    import xarray as xr

    if isinstance(field, xr.DataArray):
        field = field.to_dataset(name=field.name or "field")
    if not isinstance(field, xr.Dataset):
        raise TypeError(f"field: expected an xarray DataArray or Dataset, got {type(field).__name__}")
    field = field.map(lambda v: v if v.chunks is not None or not v.ndim else v.chunk()).unify_chunks()
    uneven = {dim: max(sizes) for dim, sizes in field.chunks.items() if len(set(sizes[:-1]) | {max(sizes)}) > 1}
    return _with_grid_mapping(field.chunk(uneven))


def _with_grid_mapping(dataset: Dataset) -> Dataset:
    """Every map refers to the coordinate that holds the CRS: without that, GDAL and QGIS would not find it.

    As an attribute and not as xarray's encoding, so that the CRS is a coordinate again when the file is opened.
    """
    found = [v.encoding.get("grid_mapping", v.attrs.get("grid_mapping")) for v in dataset.data_vars.values()]
    name = next((name for name in [*found, "spatial_ref"] if name in dataset.coords), None)
    if name is None:
        return dataset
    dataset = dataset.copy()
    for variable in dataset.data_vars.values():
        variable.encoding.pop("grid_mapping", None)
        if variable.ndim > 1:
            variable.attrs["grid_mapping"] = name
    return dataset


def _lazy(dataset: Dataset) -> dict[str, DataArray]:
    return {str(name): v for name, v in dataset.data_vars.items() if v.chunks is not None}


def _open_store(dataset: Dataset, store: Path) -> None:
    """Make the store, with its coordinates and attributes and no values, unless it is there; a ValueError if it is that
    of another field."""
    identity = json.dumps(
        {name: [v.data.name, list(v.shape), [list(c) for c in v.chunks or ()]] for name, v in _lazy(dataset).items()}
    )
    written = store / _IDENTITY
    if not written.exists():  # there is no store, or one that was stopped while it was made
        shutil.rmtree(store, ignore_errors=True)
        _create(dataset, store)
        temporary = written.with_suffix(".new")
        temporary.write_text(identity)
        os.replace(temporary, written)
    elif written.read_text() != identity:
        raise ValueError(
            f"{store.name}: an unfinished write of another field (or with other chunks) is there; finish that one, or "
            "replace it with overwrite=True (--overwrite at the command line)"
        )
    else:
        for torn in store.rglob("*.partial"):  # files that Zarr was writing when it was killed
            torn.unlink()


def _create(dataset: Dataset, store: Path) -> None:
    # LZ4 with shuffled bytes is three times as fast as Zarr's default, and gives smaller files for floating-point
    # fields.
    packing = {"compressors": (need("zarr.codecs").BloscCodec(cname="lz4", clevel=1, shuffle="shuffle"),)}
    encoding = {}
    for name, variable in _lazy(dataset).items():
        block = tuple(max(c) for c in variable.chunks or ())
        fits = variable.dtype.itemsize * math.prod(block) < 2**31 - 64  # the limit of Blosc
        encoding[name] = {"chunks": block, **(packing if fits else {})}
    with warnings.catch_warnings():
        # readers use it, although the format does not define it yet
        warnings.filterwarnings("ignore", message="Consolidated metadata")
        dataset.drop_encoding().to_zarr(store, mode="w", compute=False, encoding=encoding, consolidated=True)


def _tasks(dataset: Dataset, store: Path) -> list[Delayed]:
    """A task for every missing block.

    Blocks of several variables at the same cells are one task: maps of one field share its values. A block is missing
    if the store has no file for its chunk. Zarr writes these under another name, and then renames them. It writes none
    for blocks of NaN alone, which a mask makes without a call of the paths.
    """
    delayed, group = need("dask").delayed(_put, pure=False), need("zarr").open_group(store, mode="r")
    groups: dict[tuple[tuple[Hashable, int], ...], list[tuple[str, tuple[slice, ...], Delayed]]] = {}
    missing = set()
    for name, variable in _lazy(dataset).items():
        # without optimisation, blocks that variables share keep one key
        blocks = variable.data.to_delayed(optimize_graph=False)
        everywhere = need("dask.array.core").slices_from_chunks(variable.chunks)
        for index, region in zip(np.ndindex(blocks.shape), everywhere, strict=True):
            cut = tuple((d, i) for d, i, n in zip(variable.dims, index, blocks.shape, strict=True) if n > 1)
            groups.setdefault(cut, []).append((name, region, blocks[index]))
            if not (store / name / group[name].metadata.encode_chunk_key(index)).exists():
                missing.add(cut)
    return [
        delayed([block for *_, block in parts], str(store.absolute()), [part[:2] for part in parts])
        for cut, parts in groups.items()
        if cut in missing
    ]


def _put(blocks: Sequence[np.ndarray], store: str, places: list[tuple[str, tuple[slice, ...]]]) -> None:
    import zarr

    group = zarr.open_group(store, mode="r+", use_consolidated=False)
    for block, (name, region) in zip(blocks, places, strict=True):
        array = group[name]
        assert isinstance(array, zarr.Array)
        array[region] = np.asarray(block)


def _assemble(store: Path, path: Path, names: list[Hashable]) -> None:
    """The file, made of the store under another name and then put in its place."""
    xr, dask = need("xarray"), need("dask")
    temporary = path.with_name(f".{path.name}.new{path.suffix}")
    try:
        with dask.config.set(scheduler="sync"), xr.open_zarr(store, consolidated=True) as opened:
            dataset = opened[names]  # in the order of the variables, which a store does not keep
            if path.suffix.lower() == ".nc":
                dataset = dataset.drop_encoding()
                encoding = {
                    name: {"chunksizes": tuple(max(c) for c in v.chunks or ())} for name, v in _lazy(dataset).items()
                }
                dataset.to_netcdf(temporary, engine="netcdf4", encoding=encoding)
            else:
                assemble_geotiff(dataset, temporary)
        os.replace(temporary, path)
    except (OSError, RuntimeError) as error:  # if the disk is full, the libraries that write raise less clear errors
        if shutil.disk_usage(path.parent).free < 1 << 20:  # the disk is full
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
        raise
    finally:
        temporary.unlink(missing_ok=True)


# GeoTIFF: a band for each map and each path, with descriptions; tiled, compressed, with overviews.


def check_raster(dataset: Dataset) -> None:
    """Raise a ValueError if a Dataset is not a raster: the last two dims must be evenly spaced and equal for all
    variables."""
    shapes = {(v.dims[-2:], v.shape[-2:]) for v in dataset.data_vars.values() if v.ndim >= 2}
    spatial = len(shapes) == 1 and not {"path", "point", "output"} & set(next(iter(shapes))[0])
    if not spatial or any(v.ndim < 2 for v in dataset.data_vars.values() if v.ndim):
        raise ValueError("field: expected one grid (y, x) for a GeoTIFF; write points to .nc or .zarr")
    for name in next(iter(shapes))[0]:
        axis = np.asarray(dataset[name], dtype=np.float64)
        steps = np.diff(axis)
        if len(steps) == 0 or steps[0] == 0 or np.abs(steps - steps[0]).max() > 1e-6 * abs(steps[0]):
            raise ValueError(
                f"field: a GeoTIFF's cells are evenly spaced, two per side or more; {name} is not; use .nc"
            )


def assemble_geotiff(dataset: Dataset, path: Path, *, tile: int = 256, smallest: int = 64) -> None:
    """Write a lazy Dataset, one block at a time.

    Args:
        tile: the side of a tile: a multiple of 16, as the format asks.
        smallest: the longer side of the smallest overview, at least.
    """
    rasterio, core, _ = need("rasterio"), need("dask.array.core"), need("rioxarray")
    y, x = next(v.dims[-2:] for v in dataset.data_vars.values() if v.ndim >= 2)
    if dataset[y][-1] > dataset[y][0]:  # rows go from north to south
        dataset = dataset.isel({y: slice(None, None, -1)})
    height, width, crs = dataset.sizes[y], dataset.sizes[x], dataset.rio.crs
    layers = {str(n): v for n, v in dataset.data_vars.items() if v.ndim >= 2}
    variables = {n: v if np.issubdtype(v.dtype, np.floating) else v.astype(np.float64) for n, v in layers.items()}
    bands = [(n, index) for n, v in variables.items() for index in np.ndindex(v.shape[:-2])]
    profile = dict(
        driver="GTiff",
        height=height,
        width=width,
        count=len(bands),
        dtype=np.result_type(*(v.dtype for v in variables.values())).name,
        crs=None if crs is None else crs.to_wkt(),
        transform=dataset.rio.set_spatial_dims(x, y).rio.transform(recalc=True),
        nodata=float("nan"),
        tiled=True,
        blockxsize=tile,
        blockysize=tile,
        interleave="band",
        compress="deflate",
        predictor=3,  # for floating-point numbers: their bytes are stored by significance
        BIGTIFF="IF_SAFER",
    )
    with rasterio.open(path, "w", **profile) as file:
        for band, (name, index) in enumerate(bands, start=1):
            file.set_band_description(band, _described(variables[name], name, index))
        number = {band: i for i, band in enumerate(bands, start=1)}
        for name, variable in variables.items():
            *lead, rows, columns = variable.chunks or tuple((n,) for n in variable.shape)
            # Whole tiles, about as large as the blocks: if a compressed tile is written twice, it takes the space
            # twice.
            whole = [_in_tiles(n, max(sizes), tile) for n, sizes in ((height, rows), (width, columns))]
            for *some, down, along in core.slices_from_chunks((*lead, *whole)):
                values = np.asarray(variable[(*some, down, along)])
                for index in np.ndindex(values.shape[:-2]):
                    band = number[name, tuple(s.start + i for s, i in zip(some, index, strict=True))]
                    file.write(values[index], band, window=rasterio.windows.Window.from_slices(down, along))
    levels = [2**i for i in range(1, 16) if max(height, width) >= smallest * 2**i]
    with rasterio.Env(COMPRESS_OVERVIEW="DEFLATE", PREDICTOR_OVERVIEW="3"):
        with rasterio.open(path, "r+") as file:
            file.build_overviews(levels, rasterio.enums.Resampling.average)


def _in_tiles(n: int, size: int, tile: int) -> tuple[int, ...]:
    """The sizes of parts of n cells, each a whole number of tiles, at least as large as `size` (but for the last)."""
    step = -(-size // tile) * tile
    return tuple(min(step, n - start) for start in range(0, n, step))


def _described(variable: DataArray, name: str, index: tuple[int, ...]) -> str:
    """What a band holds: "mean", "quantile 0.05", "probability above 1600", "height path 3"."""
    words = [name]
    for dim, i in zip(variable.dims[:-2], index, strict=True):
        value = variable[dim].values[i] if dim in variable.coords else i
        label = {"quantile_level": "", "threshold": "above "}.get(str(dim), f"{dim} ")
        words.append(f"{label}{value:g}" if np.issubdtype(type(value), np.number) else f"{label}{value}")
    return " ".join(words)


# Schedulers that compute blocks.


@contextmanager
def client_of(scheduler: Scheduler) -> Iterator[Client | None]:
    """A `distributed.Client` for an address or a Client; None for a local scheduler.

    With None, the current Client of this process is used if there is one, as elsewhere in Dask.
    """
    if scheduler in ("sync", "threads"):
        yield None
    elif scheduler is None:
        try:
            client = need("distributed").get_client()
        except (ImportError, ValueError):
            client = None
        yield client
    elif isinstance(scheduler, str):
        if ":" not in scheduler:
            raise ValueError(
                f"scheduler: expected 'sync', 'threads' or a Dask scheduler's address such as tcp://10.0.0.1:8786, "
                f"got {scheduler!r}"
            )
        distributed = need("distributed")
        try:
            client = distributed.Client(scheduler, timeout=PATIENCE, set_as_default=False)
        except OSError:
            raise OSError(f"no Dask scheduler answers at {scheduler}; start one with `dask scheduler`") from None
        with closing(client):
            yield client
    elif not hasattr(scheduler, "scheduler_info"):
        raise TypeError(f"scheduler: expected a name, an address or a Client, got {type(scheduler).__name__}")
    else:
        yield scheduler


def finished(tasks: Sequence[Delayed], client: Client | None, scheduler: Scheduler) -> Iterator[None]:
    """Yield results of Dask's delayed tasks in the order in which they finish. On a cluster all are one graph."""
    if client is not None:
        futures = cast("list[Future]", client.compute(list(tasks), retries=2))
        try:
            for future in need("distributed").as_completed(futures, loop=client.loop):
                yield future.result()
                future.release()
        finally:
            client.cancel([future for future in futures if not future.done()])
    elif scheduler == "sync":
        for task in tasks:
            yield task.compute(scheduler="sync")
    else:
        yield from _in_threads(tasks)


def _in_threads(tasks: Sequence[Delayed]) -> Iterator[None]:
    """Compute blocks in parallel, each on one thread; their number is that of torch's threads."""
    threads = torch.get_num_threads()
    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        try:
            for future in as_completed([pool.submit(task.compute, scheduler="sync") for task in tasks]):
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)
            torch.set_num_threads(threads)
