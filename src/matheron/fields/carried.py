"""Sending paths to other processes: they are pickled once, and unpickled once in each process.

All tasks of a graph refer to the paths by one key. In this process the key stands for the object itself. Its pickle is
computed once for all tasks and workers. Unpickling returns the object that the process already has, if any. A
scheduler that only forwards the bytes never unpickles them.
"""

from __future__ import annotations

import hashlib
import pickle
import threading
from collections.abc import Iterator, Sequence
from typing import Protocol, cast
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor, nn

from ..core.checks import ArrayLike
from ..core.value import Value

_known: WeakValueDictionary[str, Carried] = WeakValueDictionary()
_lock = threading.Lock()
# The number of times that this process pickled and unpickled paths, for tests.
counts = {"packed": 0, "unpacked": 0}


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


class Carried:
    """Paths and their fingerprint."""

    def __init__(self, token: str, paths: Functions | None = None, blob: bytes | None = None) -> None:
        self.token, self._paths, self._blob = token, paths, blob
        self._lock = threading.Lock()
        self._parts: dict[tuple[int, int], Functions] = {}

    @property
    def paths(self) -> Functions:
        with self._lock:
            if self._paths is None:
                assert self._blob is not None
                self._paths = cast(Functions, pickle.loads(self._blob))
                counts["unpacked"] += 1
            return self._paths

    def part(self, start: int, stop: int) -> Functions:
        """Some of the paths, always the same object, so that values derived from it are computed once."""
        paths = self.paths
        if (start, stop) == (0, paths.num_paths):
            return paths
        with self._lock:
            if (start, stop) not in self._parts:
                self._parts[start, stop] = paths[start:stop]
            return self._parts[start, stop]

    def __reduce__(self) -> tuple[object, ...]:
        with self._lock:
            if self._blob is None:
                self._blob = _packed(self._paths)
                counts["packed"] += 1
        return _restored, (self.token, self._blob)

    def __dask_tokenize__(self) -> str:
        return self.token


def carried(paths: Functions) -> Carried:
    """The paths as they travel; the same object for equal paths."""
    return _restored(fingerprint(paths), None, paths)


def _restored(token: str, blob: bytes | None, paths: Functions | None = None) -> Carried:
    with _lock:
        known = _known.get(token)
        if known is None:
            known = _known[token] = Carried(token, paths, blob)
        return known


def _packed(value: object) -> bytes:
    try:
        return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError):  # a mean that is a lambda
        import cloudpickle

        return cloudpickle.dumps(value)


def fingerprint(value: Functions) -> str:
    """A hash of the types, plain fields and tensors of a Value, equal in every process."""
    total = hashlib.sha256(
        f"{type(value).__qualname__}{[getattr(value, name, None) for name in ('radius', 'centre')]}".encode()
    )
    for name, module in value.named_modules(remove_duplicate=False):
        total.update(f"{name}:{type(module).__qualname__}".encode())
        for plain in getattr(module, "fields", ()):
            total.update(f"{plain}={getattr(module, plain)!r}".encode())
        for key, tensor in module._buffers.items():
            if tensor is not None:
                array = np.ascontiguousarray(tensor.detach().cpu().numpy())  # a stride of zero, too, as bytes
                total.update(f"{key}{tensor.dtype}{list(tensor.shape)}".encode())
                total.update(array.reshape(-1).view(np.uint8).data)
        if isinstance(module, Value) and not module.saveable:  # what is not in tensors and fields: a function
            total.update(_packed({k: v for k, v in vars(module).items() if not k.startswith("_")}))
    return total.hexdigest()[:32]
