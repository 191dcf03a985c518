"""simulate: paths on a grid of any size, computed lazily in blocks, on one machine or many."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from ..core.checks import ArrayLike
from ..core.value import Value
from ..paths import BatchPaths, shares_work
from .targets import Grid, Targets, as_targets, need

if TYPE_CHECKING:
    from dask.array import Array
    from xarray import DataArray

# One block of a field: some paths at some of the targets. Workers compute these.


class Functions(Protocol):
    """Functions that a field can be computed from: paths, and objects that are called in the same way."""

    @property
    def num_paths(self) -> int: ...
    @property
    def num_outputs(self) -> int: ...
    @property
    def input_dim(self) -> int: ...
    @property
    def dtype(self) -> torch.dtype: ...
    def __call__(self, x: Tensor, /) -> Tensor: ...
    def __getitem__(self, index: slice, /) -> Functions: ...
    def on_grid(self, axes: Sequence[ArrayLike], /) -> Tensor: ...
    def named_modules(self, *, remove_duplicate: bool) -> Iterator[tuple[str, nn.Module]]: ...


def on_cells(
    functions: Functions, mask: np.ndarray | None, *axes: np.ndarray, order: tuple[int, ...], at_points: bool
) -> np.ndarray:
    """Values `[s, n1, n2, ...]`, or `[s, t, n1, n2, ...]`, on the grid of some axes, one for each of the field's dims.

    Args:
        mask: `[n1, n2, ...]`; values are NaN where it is False.
        order: for each of the functions' inputs, its axis.
        at_points: evaluate at the points of a mask one by one, and not on a grid.
    """
    if mask is None or mask.all():
        return _on_grid(functions, axes, order)
    out = _empty(functions, mask.shape)
    if mask.any():
        if at_points:
            index = np.nonzero(mask)
            cells = np.stack([axes[dim][index[dim]] for dim in order], axis=1)  # [n, d]
            out[..., mask] = _at(functions, cells)
        else:
            box = _box(mask)
            inner = _on_grid(functions, [axis[s] for axis, s in zip(axes, box, strict=True)], order)
            out[(..., *box)] = np.where(mask[box], inner, np.nan)
    return out


def on_list(functions: Functions, mask: np.ndarray | None, points: np.ndarray) -> np.ndarray:
    """Values `[s, n]`, or `[s, t, n]`, at points `[n, d]`; NaN where the mask is False."""
    if mask is None:
        return _at(functions, points)
    out = _empty(functions, mask.shape)
    out[..., mask] = _at(functions, points[mask])
    return out


def _on_grid(functions: Functions, axes: Sequence[np.ndarray], order: tuple[int, ...]) -> np.ndarray:
    """Values on a whole grid: the functions' axes are in the order of their inputs, the field's in its own."""
    inputs = [np.array(axes[dim]) for dim in order]  # copies, since arrays from other processes are read-only
    f = functions.on_grid(inputs)  # [s, n of each input, t]
    dims = [1 + order.index(dim) for dim in range(len(axes))]
    if functions.num_outputs > 1:
        dims = [f.ndim - 1, *dims]
    return f.permute(0, *dims).cpu().numpy()  # not contiguous: writing copies it anyway


@torch.no_grad()
def _at(functions: Functions, points: np.ndarray) -> np.ndarray:
    f = functions(torch.from_numpy(np.array(points)))  # [s, n] or [s, n, t]
    return np.ascontiguousarray((f.mT if functions.num_outputs > 1 else f).cpu().numpy())


def _box(mask: np.ndarray) -> tuple[slice, ...]:
    """The smallest box of cells that holds every True."""
    sides = []
    for axis in range(mask.ndim):
        along = np.flatnonzero(mask.any(axis=tuple(i for i in range(mask.ndim) if i != axis)))
        sides.append(slice(int(along[0]), int(along[-1]) + 1))
    return tuple(sides)


def _empty(functions: Functions, shape: tuple[int, ...]) -> np.ndarray:
    """NaN for every path, output and cell."""
    outputs = [functions.num_outputs] if functions.num_outputs > 1 else []
    return np.full((functions.num_paths, *outputs, *shape), np.nan, dtype=numpy_dtype(functions))


def numpy_dtype(functions: Functions) -> np.dtype:
    return np.dtype(str(functions.dtype).removeprefix("torch."))


# The default size of a block: 64 MB in float64.
BLOCK = 1 << 23

Chunks = str | int | Mapping[Hashable, int] | Mapping[str, int]
# The sizes of the blocks along each dim.
GridCuts = tuple[tuple[int, ...], ...]


def simulate(
    paths: Functions, grid: Grid, *, chunks: Chunks = "auto", inputs: Sequence[str] | None = None, name: str = "field"
) -> DataArray:
    """Evaluate paths on a grid as a lazy `xarray.DataArray` with dims `(path, y, x)`, or with the grid's own names.

    Nothing is computed until it is asked for (`.compute()`, `.to_zarr(...)`, `matheron.fields.write`). Each block
    evaluates the same functions at its own coordinates, by the same evaluator, so that blocks agree to rounding
    wherever they were computed.

    Args:
        paths: functions from `draw_field`, or from `matheron.draw`. Without a domain the latter uses few random
            features, which cause visible stripes in single realisations.
        grid: where. A mapping of named axes in the order of the paths' inputs, `{"x": ..., "y": ...}`: the field's
            dims are the same names reversed, as rasters are stored. Or an xarray object whose coordinates are the grid:
            its dims reversed are the inputs, and attributes and CRS are kept. Cells that are NaN (or False) in a
            DataArray stay NaN. Or a table of points (a DataFrame, a GeoDataFrame), or points `[n, d]`: dims
            `(path, point)`.
        chunks: cells along each axis of a block, or a mapping of dims to sizes, where a dim left out is not cut.
            "auto" makes blocks of about 64 MB, with up to 64 paths in each; fewer, of more cells, on a lattice.
        inputs: names of the coordinates or columns that are the inputs of the paths, in order, if they differ from the
            above. By default these are the `input_names` of the paths, if the grid has all of them.
        name: of the DataArray.

    A model of several outputs adds a dim `output` after `path`.

    >>> import numpy as np, matheron
    >>> from matheron import fields, kernels
    >>> gp = matheron.ExactGP(kernels.RBF(0.3), X=[[0.2, 0.1], [0.7, 0.9]], y=[0.0, 1.0], noise=1e-4)
    >>> field = fields.simulate(matheron.draw(gp, 8), {"x": np.linspace(0, 1, 30), "y": np.linspace(0, 2, 20)})
    >>> field.dims, field.shape
    (('path', 'y', 'x'), (8, 20, 30))
    >>> field.mean("path").compute().shape
    (20, 30)
    """
    xr, _ = need("xarray"), need("dask.array")
    if not all(hasattr(paths, name) for name in ("num_paths", "on_grid", "input_dim")) or isinstance(paths, BatchPaths):
        raise TypeError(f"paths: expected paths of one model, as matheron.draw gives, got {type(paths).__name__}")
    targets = as_targets(grid, paths.input_dim, inputs, getattr(paths, "input_names", None))
    _check_corners(paths, targets)
    outputs, data = paths.num_outputs, _blocks(paths, targets, _cuts(targets, paths, chunks))
    lead = {"path": np.arange(paths.num_paths)} | ({"output": np.arange(outputs)} if outputs > 1 else {})
    coords = dict(targets.coords.items()) | lead
    field = xr.DataArray(data, dims=(*lead, *targets.dims), coords=coords, name=name, attrs=dict(targets.attrs))
    for coordinate, about in zip(targets.inputs, getattr(paths, "coordinate_attrs", ()), strict=False):
        field = field.assign_coords({coordinate: field[coordinate].assign_attrs(about)})
    return field if targets.crs is None else with_crs(field, targets.crs)


def with_crs(field: DataArray, crs: object) -> DataArray:
    """Add a coordinate reference system to a field, and describe its coordinates by the CF conventions.

    Args:
        field: of a grid, whose last two dims are y and x; a list of points is given an attribute `crs`.
        crs: anything that pyproj reads.

    >>> import numpy as np, matheron
    >>> from matheron import fields, kernels
    >>> paths = matheron.draw_prior(kernels.RBF(10.0), 2, input_dim=2)
    >>> field = fields.simulate(paths, {"x": np.arange(0.0, 50.0), "y": np.arange(0.0, 30.0)})
    >>> fields.with_crs(field, "EPSG:32633")["x"].attrs["standard_name"]
    'projection_x_coordinate'
    """
    need("rioxarray")
    if "point" in field.dims:
        return field.assign_attrs(crs=str(crs))
    # The template's geotransform describes its own grid, and would be wrong for another one.
    field = field.drop_vars(field.rio.grid_mapping, errors="ignore")
    cells = [dim for dim in field.dims if dim not in ("path", "output")]
    if len(cells) < 2:
        return field.rio.write_crs(crs)
    y, x = cells[-2:]
    described = field.rio.set_spatial_dims(x, y).rio.write_crs(crs).rio.write_coordinate_system()
    return described.assign_coords({dim: described[dim].assign_attrs(field[dim].attrs) for dim in (y, x)})


def _check_corners(paths: Functions, targets: Targets) -> None:
    """Call a path at the corners of the grid, so that a path that is not defined there raises an error before any
    work."""
    if targets.axes is not None:
        ends = [np.array([axis.min(), axis.max()]) for axis in (targets.axes[i] for i in targets.order)]
        corners = np.stack([v.ravel() for v in np.meshgrid(*ends)], axis=1)
    else:
        assert targets.points is not None
        known = targets.points[np.isfinite(targets.points).all(axis=1)]
        if not len(known):
            return
        corners = known[np.concatenate([known.argmin(0), known.argmax(0)])]
    with torch.no_grad():
        (paths[:1] if paths.num_paths > 2 else paths)(torch.from_numpy(corners))


def _cuts(targets: Targets, paths: Functions, chunks: Chunks, *, together: int = 64, alone: int = 2) -> GridCuts:
    """The sizes of the blocks along the paths and each of the targets' dims.

    Args:
        together: paths in a block by default, where they share the work of a point.
        alone: where they share nothing, as on a lattice: a block with few cells per side costs more per cell.
    """
    core = need("dask.array.core")
    dims = ("path", *targets.dims)
    shape = (paths.num_paths, *targets.shape)
    if isinstance(chunks, Mapping):
        unknown = [dim for dim in chunks if dim not in dims]
        if unknown:
            raise ValueError(f"chunks: expected sizes for {list(dims)}, got {unknown}")
        sizes = tuple(dict(chunks.items()).get(dim, -1) for dim in dims)
    elif isinstance(chunks, int) and not isinstance(chunks, bool) and chunks > 0:
        sizes = (-1, *(chunks for _ in targets.dims))
    elif chunks == "auto":
        few = min(paths.num_paths, together if shares_work(paths) else alone)
        sides = _sides(targets, few * paths.num_outputs)
        more = BLOCK // max(1, math.prod(sides) * paths.num_outputs)  # more paths fit if one block has all cells
        sizes = (min(paths.num_paths, together, max(few, more)), *sides)
    else:
        raise ValueError(f"chunks: expected 'auto', a whole number of cells, or a mapping of dims, got {chunks!r}")
    return core.normalize_chunks(sizes, shape)


def whole_paths(paths: Functions, grid: Grid, inputs: Sequence[str] | None = None) -> dict[Hashable, int]:
    """Chunks for blocks of the usual size that have all paths."""
    targets = as_targets(grid, paths.input_dim, inputs, getattr(paths, "input_names", None))
    sides = _sides(targets, paths.num_paths * paths.num_outputs)
    return {"path": -1, **dict(zip(targets.dims, sides, strict=True))}


def _sides(targets: Targets, numbers: int) -> list[int]:
    """A block's sides, with this many numbers per cell: all of a short axis, a long one cut evenly in whole tiles."""
    side = max(1, math.floor((BLOCK / numbers) ** (1 / len(targets.dims))))
    sides = []
    for n in targets.shape:
        count = max(1, math.ceil(n / side))
        even = math.ceil(n / count)
        tile = 256 if even >= 256 else 16
        sides.append(n if count == 1 else math.ceil(even / tile) * tile)
    return sides


def _blocks(paths: Functions, targets: Targets, cuts: GridCuts) -> Array:
    """The field as a Dask array, whose blocks call the paths at their own part of the targets.

    The paths are one node of the graph: each process receives them once. The name of that node, and with it the name
    of the array, is equal in every process for equal paths, so that a stopped write recognises its field.
    """
    array, delayed = need("dask.array"), need("dask").delayed
    name = fingerprint(paths)
    whole = delayed(paths, name=f"paths-{name}", traverse=False)
    cells = tuple(range(2, 2 + len(targets.dims)))  # indices of the result: path, output, and one for each dim
    mask: list[object] = [None, None]
    if targets.mask is not None:
        mask = [array.asarray(targets.mask).rechunk(cuts[1:]), cells]
    if targets.axes is None:
        assert targets.points is not None
        points = array.from_array(targets.points, chunks=(cuts[1], -1))
        block, where = on_list, [points, (*cells, 3)]  # 3 is the columns, all in one block
        settings: dict[str, Any] = {"concatenate": True}
    else:
        axes = [array.from_array(axis, chunks=(n,)) for axis, n in zip(targets.axes, cuts[1:], strict=True)]
        where = [part for axis, i in zip(axes, cells, strict=True) for part in (axis, (i,))]
        # If a mask keeps less than a quarter of the cells, it is cheaper to evaluate a list of points than whole
        # blocks.
        sparse = isinstance(targets.mask, np.ndarray) and targets.mask.mean() < 0.25
        settings = {"order": targets.order, "at_points": sparse}
        block = on_cells
    lead, parts, start = {0: 0} | ({} if paths.num_outputs == 1 else {1: paths.num_outputs}), [], 0
    settings |= {"meta": np.empty((0,) * (len(lead) + len(cells)), dtype=numpy_dtype(paths)), "align_arrays": False}
    for size in cuts[0]:
        some = whole if size == paths.num_paths else delayed(_part, pure=True)(whole, start, start + size)
        sizes = lead | {0: size}
        parts.append(array.blockwise(block, (*lead, *cells), some, None, *mask, *where, new_axes=sizes, **settings))
        start += size
    return array.concatenate(parts)


def _part(paths: Functions, start: int, stop: int) -> Functions:
    return paths[start:stop]


def fingerprint(value: Functions) -> str:
    """A hash of the types, plain fields and tensors of a Value, equal in every process.

    Dask's own token of a torch module is that of its pickle, which differs between processes.
    """
    total = hashlib.sha256(
        f"{type(value).__qualname__}{[getattr(value, name, None) for name in ('radius', 'centre')]}".encode()
    )
    for name, module in value.named_modules(remove_duplicate=False):
        total.update(f"{name}:{type(module).__qualname__}".encode())
        for plain in getattr(module, "fields", ()):
            total.update(f"{plain}={getattr(module, plain)!r}".encode())
        for key, tensor in module._buffers.items():
            if tensor is not None:
                # expanded tensors have strides of zero and must be copied
                array = np.ascontiguousarray(tensor.detach().cpu().numpy())
                total.update(f"{key}{tensor.dtype}{list(tensor.shape)}".encode())
                total.update(array.reshape(-1).view(np.uint8).data)
        # such values have functions, which are neither tensors nor fields
        if isinstance(module, Value) and not module.saveable:
            import cloudpickle

            total.update(cloudpickle.dumps({k: v for k, v in vars(module).items() if not k.startswith("_")}))
    return total.hexdigest()[:32]
