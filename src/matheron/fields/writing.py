"""write: a field to Zarr, NetCDF or GeoTIFF, block by block in bounded memory; a killed write can be resumed."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import warnings
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..core.progress import tracked
from ..core.value import Json
from .blocks import regions
from .extras import need
from .geotiff import assemble_geotiff, check_raster
from .schedulers import Scheduler, client_of, finished

if TYPE_CHECKING:
    from dask.delayed import Delayed
    from xarray import DataArray, Dataset

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
    store, record = path.with_name(path.name + ".partial"), path.with_name(path.name + ".blocks")
    if overwrite:
        for old in (path, store, record):
            shutil.rmtree(old) if old.is_dir() else old.unlink(missing_ok=True)
    elif path.exists():
        raise FileExistsError(f"path: {path} is there already; choose another name, or pass overwrite=True")
    try:
        _written(dataset, path, store, record, scheduler, progress)
    except Exception as error:
        if not _for_want_of_space(error):
            raise
        full = OSError(
            f"no space is left on the disk of {path}; finished blocks are kept in {store.name}: make room and do the "
            f"same again, or delete {store.name} and {record.name}"
        )
        full.errno = errno.ENOSPC
        raise full from None
    return path


def _written(dataset: Dataset, path: Path, store: Path, record: Path, scheduler: Scheduler, progress: bool) -> None:
    """All blocks, in a store, and then the file."""
    with client_of(scheduler) as client:
        header = {
            name: [v.data.name, list(v.shape), [list(c) for c in v.chunks or ()]] for name, v in _lazy(dataset).items()
        }
        manifest = Manifest(record, header)
        if "ready" not in manifest.done:
            manifest.begin()
            _create(dataset, store)
            manifest.add("ready")
        tasks = _tasks(dataset, store, manifest.done)
        for block in tracked(finished(tasks, client, scheduler), len(tasks), path.name, "blocks", show=progress):
            manifest.add(block)
    if path.suffix == ".zarr":
        os.replace(store, path)
    else:
        _assemble(store, path, list(dataset.data_vars))
        shutil.rmtree(store)
    manifest.end()


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
    field = field.map(lambda v: v if v.chunks is not None or not v.ndim else v.chunk())
    return _with_grid_mapping(field.unify_chunks())


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


def _create(dataset: Dataset, store: Path) -> None:
    """The store with its coordinates and attributes, and no values."""
    shutil.rmtree(store, ignore_errors=True)
    # Bytes shuffled and packed by LZ4: three times as fast as Zarr's default, and smaller for numbers of a field.
    packing = {"compressors": (need("zarr.codecs").BloscCodec(cname="lz4", clevel=1, shuffle="shuffle"),)}
    encoding = {}
    for name, variable in _lazy(dataset).items():
        block = tuple(max(c) for c in variable.chunks or ())
        fits = variable.dtype.itemsize * math.prod(block) < 2**31 - 64  # Blosc takes no more
        encoding[name] = {"chunks": block, **(packing if fits else {})}
    with warnings.catch_warnings():
        # readers use it, although the format does not define it yet
        warnings.filterwarnings("ignore", message="Consolidated metadata")
        dataset.drop_encoding().to_zarr(store, mode="w", compute=False, encoding=encoding, consolidated=True)


def _tasks(dataset: Dataset, store: Path, done: set[str]) -> list[Delayed]:
    """A task for every missing block. It writes the block and returns its name.

    Blocks of several variables at the same cells are one task: maps of one field share its values.
    """
    delayed = need("dask").delayed(_put, pure=False)
    groups: dict[str, list[tuple[str, tuple[slice, ...], Delayed]]] = {}
    for name, variable in _lazy(dataset).items():
        blocks = variable.data.to_delayed(optimize_graph=False)  # a key that two variables share stays one
        for index, region in regions(variable.chunks or ()):
            cut = [(d, i) for d, i, n in zip(variable.dims, index, blocks.shape, strict=True) if n > 1]
            label = " ".join(f"{dim}{i}" for dim, i in cut) or "all"
            groups.setdefault(label, []).append((name, region, blocks[index]))
    return [
        delayed([block for *_, block in parts], str(store.absolute()), [part[:2] for part in parts], label)
        for label, parts in groups.items()
        if label not in done
    ]


def _put(blocks: Sequence[np.ndarray], store: str, places: list[tuple[str, tuple[slice, ...]]], label: str) -> str:
    import zarr

    group = zarr.open_group(store, mode="r+", use_consolidated=False)
    for block, (name, region) in zip(blocks, places, strict=True):
        array = group[name]
        assert isinstance(array, zarr.Array)
        array[region] = np.asarray(block)
    return label


def _assemble(store: Path, path: Path, names: list[Hashable]) -> None:
    """The file, made of the store under another name and then put in its place."""
    xr, dask = need("xarray"), need("dask")
    temporary = path.with_name(f".{path.name}.new{path.suffix}")
    try:
        with dask.config.set(scheduler="sync"), xr.open_zarr(store, consolidated=False) as opened:
            dataset = opened[names]  # in their order, which a store does not keep
            if path.suffix == ".nc":
                dataset = dataset.drop_encoding()
                encoding = {
                    name: {"chunksizes": tuple(max(c) for c in v.chunks or ())} for name, v in _lazy(dataset).items()
                }
                dataset.to_netcdf(temporary, engine="netcdf4", encoding=encoding)
            else:
                assemble_geotiff(dataset, temporary)
        os.replace(temporary, path)
    except (OSError, RuntimeError) as error:  # of a full disk the libraries that write say less than that
        if shutil.disk_usage(path.parent).free < 1 << 20:  # the disk is full
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
        raise
    finally:
        temporary.unlink(missing_ok=True)


class Manifest:
    """A file of lines: first what is being written, then a line for every block that is there.

    A kill in the middle of a line leaves an incomplete one, which is ignored, so that block is computed again.
    """

    def __init__(self, path: Path, header: Mapping[str, Json]) -> None:
        self.path, self.header = path, json.loads(json.dumps(header))
        written = path.read_bytes() if path.exists() else b""
        *whole, rest = written.split(b"\n")
        self.torn, lines = bool(rest), []
        for line in whole:
            with suppress(ValueError):  # torn, or the end of one
                lines.append(json.loads(line))
        if lines and lines[0] != self.header:
            raise ValueError(
                f"{path.name}: an unfinished write of another field (or with other chunks) is there; finish that "
                "one, or replace it with overwrite=True (--overwrite at the command line)"
            )
        self.done = {line for line in lines[1:] if isinstance(line, str)}

    def begin(self) -> None:
        """Start anew: nothing is written yet. The file appears whole, or not at all."""
        temporary = self.path.with_name(self.path.name + ".new")
        temporary.write_text(json.dumps(self.header) + "\n")
        os.replace(temporary, self.path)
        self.done = set()

    def add(self, block: str) -> None:
        with self.path.open("ab") as file:
            file.write(("\n" * self.torn + json.dumps(block) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())
        self.torn = False
        self.done.add(block)

    def end(self) -> None:
        self.path.unlink()
