"""write: a field to Zarr, NetCDF or GeoTIFF, block by block in bounded memory; a killed write can be resumed."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import warnings
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..core.progress import tracked
from .extras import need
from .geotiff import assemble_geotiff, check_raster
from .schedulers import Scheduler, client_of, finished

if TYPE_CHECKING:
    from dask.delayed import Delayed
    from xarray import DataArray, Dataset

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
    if path.suffix == ".zarr":
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
        with dask.config.set(scheduler="sync"), xr.open_zarr(store, consolidated=False) as opened:
            dataset = opened[names]  # in the order of the variables, which a store does not keep
            if path.suffix == ".nc":
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
