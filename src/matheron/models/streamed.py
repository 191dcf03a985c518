"""StreamedGP: a model whose data are read in chunks and are never in memory as a whole."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from ..core.checks import ArrayLike, Names, as_array, as_count, as_points, many, names_of
from ..kernels import Kernel
from ..kernels.own import as_kernel
from .means import MeanLike
from .observations import Observations, as_observations
from .single import ExactGP
from .transforms import Transform


@dataclass(frozen=True)
class Survey:
    """The result of one reading of the data: their number, their bounding box `[2, d]`, and a random sample with the
    noise `[m]` that gives it the information of all data."""

    num_data: int
    num_chunks: int
    box: Tensor
    sample: Tensor
    noise: Tensor


@final
class StreamedGP:
    """An exact model of more data than memory holds: `matheron.draw` reads them twice, chunk by chunk.

    Args:
        kernel: in up to 3 dimensions.
        data: (X, y), arrays `[n, d]` and `[n]` that can be sliced, such as memory-mapped files, Zarr or HDF5 arrays.
            A Zarr group, or any mapping, may have arrays "X", "y" and perhaps "noise" and "tasks". Chunks (X, y),
            (X, y, noise) or (X, y, noise, tasks) may come in a list, or in any object that can be iterated over again
            from the start. For a kernel of several outputs y is `[n, t]`, or `[n]` with `tasks`.
        noise: variance of the observation noise: a number, or an array like y where data are arrays. Above 0.
        mean, input_transform, output_transform: as in `ExactGP`; data are in the model's own space.
        tasks: which output each observation is of, an array `[n]` where data are arrays.
        chunk: rows that are read at a time.

    >>> import numpy as np, matheron
    >>> from matheron import kernels
    >>> X = np.random.default_rng(0).random((50_000, 1))  # or np.load("X.npy", mmap_mode="r")
    >>> gp = matheron.StreamedGP(kernels.RBF(0.1), (X, np.sin(9 * X[:, 0])), noise=0.01, chunk=10_000)
    >>> matheron.draw(gp, 4, domain=(0, 1), seed=0)([[0.5]]).shape
    torch.Size([4, 1])
    """

    def __init__(
        self,
        kernel: Kernel,
        data: object,
        noise: ArrayLike | None = None,
        mean: MeanLike = 0.0,
        tasks: ArrayLike | None = None,
        *,
        input_transform: Transform | None = None,
        output_transform: Transform | None = None,
        chunk: int = 1 << 20,
    ) -> None:
        self.chunk = as_count(chunk, "chunk")
        kernel = as_kernel(kernel)
        self._arrays, self._chunks, self._noise, self._tasks = _source(data, noise, tasks)
        each = ((names_of(raw[0]), _checked(*raw, kernel.num_outputs, 0, None, None)) for raw in self._raw())
        names, first = next(((names, c) for names, c in each if len(c.sites)), (None, None))
        if first is None:
            raise ValueError("data: expected at least one observation, got none")
        one = first.sites[:1]
        # A model of one datum, which checks everything except the other data.
        self.model = ExactGP(
            kernel,
            one.points,
            first.y[:1],
            first.noise[:1],
            mean,
            one.outputs,
            input_transform=input_transform,
            output_transform=output_transform,
        ).replaced(input_names=names)

    def __repr__(self) -> str:
        count = "chunks of observations" if self._arrays is None else f"{self._arrays[0].shape[0]} observations"
        return f"StreamedGP({self.model.kernel!r}, {count} in {many(self.model.input_dim, 'dimension')})"

    @property
    def num_chunks(self) -> int | None:
        """How many chunks a reading has; None where the source does not tell."""
        return None if self._arrays is None else -(-self._arrays[0].shape[0] // self._rows)

    @property
    def _rows(self) -> int:
        """Of arrays, at a time: as many observations as a chunk has, of all outputs together."""
        each = self._arrays[1].shape[1:] if self._arrays is not None else ()
        return max(1, self.chunk // max(1, math.prod(each)))

    def chunks(self) -> Iterator[Observations]:
        """Some data at a time, float64, checked; from the start."""
        row = 0
        for raw in self._raw():
            sites, y, noise = _checked(
                *raw, self.model.num_outputs, row, self.model.centres.shape[1], self.model.input_names
            )
            # the number of the row in the source
            row += len(sites) // (self.model.num_outputs if raw[3] is None else 1)
            for i in range(0, len(sites), self.chunk):
                cut = slice(i, i + self.chunk)
                yield Observations(sites[cut], y[cut], noise[cut])

    def survey(self, chunks: Iterable[Observations], sample_size: int = 20_000) -> Survey:
        """Read the data once, from `chunks`. A sample of them represents all when the size of a lattice is chosen."""
        generator = torch.Generator().manual_seed(0x57EA)  # its only use is to choose the size of a lattice
        count, num_chunks, d = 0, 0, self.model.centres.shape[1]
        lower, upper = (torch.full((d,), end, dtype=torch.float64, device="cpu") for end in (math.inf, -math.inf))
        keys, sample, noise = (torch.empty(shape, dtype=torch.float64, device="cpu") for shape in (0, (0, d), 0))
        for chunk in chunks:
            X, some = chunk.sites.points, chunk.noise
            count, num_chunks = count + len(X), num_chunks + 1
            low, high = X.aminmax(dim=0)
            lower, upper = torch.minimum(lower, low), torch.maximum(upper, high)
            drawn = torch.rand(len(X), generator=generator, dtype=torch.float64, device="cpu")
            if len(keys) == sample_size:  # only smaller keys can enter
                keep = drawn < keys.max()
                X, some, drawn = X[keep], some[keep], drawn[keep]
            keys, order = torch.cat([keys, drawn]).sort()
            keys, order = keys[:sample_size], order[:sample_size]
            sample, noise = torch.cat([sample, X])[order], torch.cat([noise, some])[order]
        return Survey(count, num_chunks, torch.stack([lower, upper]), sample, noise * (len(sample) / count))

    def _raw(self) -> Iterator[tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike | None]]:
        """X, y, noise and tasks as they come."""
        if self._chunks is not None:
            for chunk in self._chunks:
                if not isinstance(chunk, tuple | list) or len(chunk) not in (2, 3, 4):
                    raise ValueError(
                        f"data: expected chunks (X, y), (X, y, noise) or (X, y, noise, tasks), got "
                        f"{type(chunk).__name__}; two arrays of all data are a tuple (X, y)"
                    )
                X, y, *others = chunk
                own, tasks = (*others, None, None)[:2]
                noise = self._noise if own is None else own
                if noise is None:
                    raise ValueError("noise: expected a number, or chunks (X, y, noise), got neither")
                yield X, y, noise, tasks
            return
        assert self._arrays is not None
        X, y = self._arrays
        for i in range(0, X.shape[0], self._rows):
            cut = slice(i, i + self._rows)
            noise = self._noise[cut] if getattr(self._noise, "ndim", 0) else self._noise
            assert noise is not None
            yield X[cut], y[cut], noise, None if self._tasks is None else self._tasks[cut]


def _source(data: Any, noise: Any, tasks: Any) -> tuple[tuple[Any, Any] | None, Iterable[Any] | None, Any, Any]:
    """A pair of arrays, or else chunks that can be read again; and the noise and the tasks that go with them."""
    if isinstance(data, Mapping) or (hasattr(data, "keys") and hasattr(data, "__getitem__")):
        missing = [name for name in ("X", "y") if name not in data]
        if missing:
            raise ValueError(f"data: expected arrays X and y, got {sorted(data.keys())}")
        if "noise" in data and noise is None:
            noise = data["noise"]
        if "tasks" in data and tasks is None:
            tasks = data["tasks"]
        data = (data["X"], data["y"])
    if isinstance(data, tuple) and len(data) == 2 and all(hasattr(part, "shape") for part in data):
        X, y = data
        if len(X.shape) != 2 or len(y.shape) not in (1, 2) or y.shape[0] != X.shape[0]:
            raise ValueError(f"data: expected X [n, d] and y [n], or [n, t], got {list(X.shape)} and {list(y.shape)}")
        if noise is None:
            raise ValueError("noise: expected a number, or one per observation, got none")
        shape = tuple(getattr(noise, "shape", ()))
        if shape not in ((), (X.shape[0],), tuple(y.shape)):
            raise ValueError(f"noise: expected a number or [{X.shape[0]}], one per observation, got {list(shape)}")
        if tasks is not None and not hasattr(tasks, "shape"):
            tasks = as_array(tasks)
        if tasks is not None and tuple(tasks.shape) != (X.shape[0],):
            raise ValueError(f"tasks: expected [{X.shape[0]}], one per observation, got {list(tasks.shape)}")
        return (X, y), None, noise, tasks
    if not hasattr(data, "__iter__"):
        raise TypeError(f"data: expected (X, y), a Zarr group or chunks, got {type(data).__name__}")
    if iter(data) is data:
        raise TypeError(
            f"data: are read twice, and a {type(data).__name__} can be read once; give a list, or an object whose "
            "__iter__ starts again"
        )
    if getattr(noise, "ndim", 0):
        raise ValueError("noise: expected a number where data come in chunks; give each chunk its own, (X, y, noise)")
    if tasks is not None:
        raise ValueError(
            "tasks: expected none where data come in chunks; give each chunk its own, (X, y, noise, tasks)"
        )
    return None, data, noise, None


def _checked(
    X: ArrayLike,
    y: ArrayLike,
    noise: ArrayLike,
    tasks: ArrayLike | None,
    num_outputs: int,
    row: int,
    input_dim: int | None,
    names: Names,
) -> Observations:
    """One chunk as float64, finite, one row per observation; errors name the row that it starts at."""
    try:
        X = as_points(X, "X", input_dim=input_dim, names=names).double()
        chunk = as_observations(X, y, noise, tasks, num_outputs)
        if not bool((chunk.noise > 0).all()):
            raise ValueError("noise: expected variances above 0, which the solve on a lattice needs")
    except (TypeError, ValueError) as error:
        raise type(error)(f"data from row {row}: {error}") from error
    return chunk
