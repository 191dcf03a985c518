"""StreamedGP: a model whose data are read in chunks, from disk or from wherever they come, and are never held whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from .checks import ArrayLike, as_count, as_noise, as_points, as_tensor
from .gp import ExactGP
from .kernels import Kernel
from .means import MeanLike
from .transforms import Transform

# Rows that are read at a time, and rows of a sample that represent all where a lattice is sized.
CHUNK, _SAMPLE = 1 << 20, 20_000


# X `[n, d]`, y `[n]`, noise `[n]`.
Chunk = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Survey:
    """What one reading of the data tells: how many, their bounding box `[2, d]`, and some of them at random with the
    noise `[m]` that makes them say as much as all do."""

    num_data: int
    num_chunks: int
    box: Tensor
    sample: Tensor
    noise: Tensor


@final
class StreamedGP:
    """An exact model of more data than memory holds: `matheron.draw` reads them twice, chunk by chunk.

    Args:
        kernel: of one output, in up to 3 dimensions.
        data: (X, y), arrays `[n, d]` and `[n]` that can be sliced (memory-mapped files, Zarr or HDF5 arrays); a Zarr
            group, or any mapping, with arrays "X", "y" and perhaps "noise"; or chunks (X, y) or (X, y, noise) in a list
            or any object that can be iterated over again from the start.
        noise: variance of the observation noise: a number, or an array `[n]` where data are arrays. Above 0.
        mean, input_transform, output_transform: as in `ExactGP`; data are in the model's own space.
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
        *,
        input_transform: Transform | None = None,
        output_transform: Transform | None = None,
        chunk: int = CHUNK,
    ) -> None:
        self.chunk = as_count(chunk, "chunk")
        if getattr(kernel, "num_outputs", 1) > 1:
            raise ValueError(f"kernel: expected one output, got {kernel.num_outputs}; use ExactGP")
        self._arrays, self._chunks, self._noise = _source(data, noise)
        first = next((c for c in (_checked(*raw, 0, None) for raw in self._raw()) if len(c[0])), None)
        if first is None:
            raise ValueError("data: expected at least one observation, got none")
        X, y, some = first
        # The model of one datum: all that there is to it but data, checked.
        self.model = ExactGP(
            kernel,
            X[:1],
            y[:1],
            some[:1],
            mean,
            input_transform=input_transform,
            output_transform=output_transform,
        )

    def __repr__(self) -> str:
        d = self.model.input_dim
        count = "chunks of observations" if self._arrays is None else f"{self._arrays[0].shape[0]} observations"
        return f"StreamedGP({self.model.kernel!r}, {count} in {d} dimension{'s' if d > 1 else ''})"

    @property
    def num_chunks(self) -> int | None:
        """How many chunks a reading has; None where the source does not tell."""
        if self._arrays is not None:
            return -(-self._arrays[0].shape[0] // self.chunk)
        return None

    def chunks(self) -> Iterator[Chunk]:
        """X `[n, d]`, y `[n]` and noise `[n]` of some data at a time, float64, checked; from the start."""
        row = 0
        for X, y, noise in self._raw():
            X, y, noise = _checked(X, y, noise, row, self.model.input_dim)
            row += len(X)
            for i in range(0, len(X), self.chunk):
                cut = slice(i, i + self.chunk)
                yield X[cut], y[cut], noise[cut]

    def survey(self, chunks: Iterable[Chunk]) -> Survey:
        """One reading of the data, `chunks`."""
        generator = torch.Generator().manual_seed(0x57EA)  # for the size of a lattice alone
        count, num_chunks, lower, upper = 0, 0, None, None
        keys, sample, noise = torch.empty(0), torch.empty(0, self.model.input_dim), torch.empty(0)
        for X, _, some in chunks:
            count, num_chunks = count + len(X), num_chunks + 1
            low, high = X.aminmax(dim=0)
            lower = low if lower is None else torch.minimum(lower, low)
            upper = high if upper is None else torch.maximum(upper, high)
            drawn = torch.rand(len(X), generator=generator, dtype=torch.float64)
            if len(keys) == _SAMPLE:  # only smaller keys can enter
                keep = drawn < keys.max()
                X, some, drawn = X[keep], some[keep], drawn[keep]
            keys, order = torch.cat([keys.double(), drawn]).sort()
            sample = torch.cat([sample.double(), X])[order][:_SAMPLE]
            noise, keys = torch.cat([noise.double(), some])[order][:_SAMPLE], keys[:_SAMPLE]
        assert lower is not None and upper is not None
        return Survey(count, num_chunks, torch.stack([lower, upper]), sample, noise * (len(sample) / count))

    def _raw(self) -> Iterator[tuple[ArrayLike, ArrayLike, ArrayLike]]:
        if self._chunks is not None:
            for chunk in self._chunks:
                if not isinstance(chunk, tuple | list) or len(chunk) not in (2, 3):
                    raise ValueError(
                        f"data: expected chunks (X, y) or (X, y, noise), got {type(chunk).__name__}; two arrays of all "
                        "data are a tuple (X, y)"
                    )
                noise = chunk[2] if len(chunk) == 3 else self._noise
                if noise is None:
                    raise ValueError("noise: expected a number, or chunks (X, y, noise), got neither")
                yield chunk[0], chunk[1], noise
            return
        assert self._arrays is not None
        X, y = self._arrays
        for i in range(0, X.shape[0], self.chunk):
            cut = slice(i, i + self.chunk)
            yield X[cut], y[cut], self._noise[cut] if getattr(self._noise, "ndim", 0) else self._noise


def _source(data: Any, noise: Any) -> tuple[tuple[Any, Any] | None, Iterable[Any] | None, Any]:
    """A pair of arrays, or else chunks that can be read again; and the noise that goes with them."""
    if isinstance(data, Mapping) or (hasattr(data, "keys") and hasattr(data, "__getitem__")):
        missing = [name for name in ("X", "y") if name not in data]
        if missing:
            raise ValueError(f"data: expected arrays X and y, got {sorted(data.keys())}")
        if "noise" in data and noise is None:
            noise = data["noise"]
        data = (data["X"], data["y"])
    if isinstance(data, tuple) and len(data) == 2 and all(hasattr(part, "shape") for part in data):
        X, y = data
        if len(X.shape) != 2 or tuple(y.shape) != (X.shape[0],):
            raise ValueError(f"data: expected X [n, d] and y [n], got {list(X.shape)} and {list(y.shape)}")
        if noise is None:
            raise ValueError("noise: expected a number, or one per observation, got none")
        shape = tuple(getattr(noise, "shape", ()))
        if shape not in ((), (X.shape[0],)):
            raise ValueError(f"noise: expected a number or [{X.shape[0]}], one per observation, got {list(shape)}")
        return (X, y), None, noise
    if not hasattr(data, "__iter__"):
        raise TypeError(f"data: expected (X, y), a Zarr group or chunks, got {type(data).__name__}")
    if iter(data) is data:
        raise TypeError(
            f"data: are read twice, and a {type(data).__name__} can be read once; give a list, or an object whose "
            "__iter__ starts again"
        )
    if getattr(noise, "ndim", 0):
        raise ValueError("noise: expected a number where data come in chunks; give each chunk its own, (X, y, noise)")
    return None, data, noise


def _checked(X: ArrayLike, y: ArrayLike, noise: ArrayLike, row: int, input_dim: int | None) -> Chunk:
    """One chunk as float64, finite, of one length; errors name the row that it starts at."""
    try:
        X = as_points(X, "X", input_dim=input_dim).double()
        y = as_tensor(y, "y", like=X)
        if y.shape != X.shape[:1]:
            raise ValueError(f"y: expected [{len(X)}], one number per row of X {list(X.shape)}, got {list(y.shape)}")
        noise = as_noise(noise, len(X), like=X)
        if not bool((noise > 0).all()):
            raise ValueError("noise: expected variances above 0, which the solve on a lattice needs")
    except (TypeError, ValueError) as error:
        raise type(error)(f"data from row {row}: {error}") from error
    return X, y, noise
