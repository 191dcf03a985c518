"""A value: a small module whose every tensor is a buffer, which is never changed once made."""

from __future__ import annotations

import functools
from abc import ABCMeta
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NoReturn, Self, TypeAlias, TypeVar, cast

import torch
from torch import Tensor, nn
from torch._C._nn import _parse_to

from .checks import ArrayLike, as_tensor
from .modes import in_graph, outside, plain

# What a JSON file can hold.
Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"

# Every concrete Value by its name. A saved file may name these and nothing else.
REGISTRY: dict[str, type[Value]] = {}


class _Frozen(ABCMeta):
    """Makes instances that cannot be changed once their constructors have run."""

    def __call__(cls, *args, **kwargs):
        value = super().__call__(*args, **kwargs)
        if "_buffers" not in value.__dict__:
            raise TypeError(f"{cls.__name__}: expected an __init__ that calls super().__init__(), got one without")
        value._frozen = True
        return value


class Value(nn.Module, metaclass=_Frozen):
    """Base of kernels, means, transforms, features, snapshots of models, and paths.

    A value is never changed: `to`, `float`, `double` and `replaced` return new ones, and writing an attribute raises.
    There are two exceptions, which write in place: a parent module that is moved, and `load_state_dict`.

    Tensors are buffers, also those that are assigned as attributes, and parts are submodules. So `state_dict`,
    `deepcopy` and pickling include all of a value. Other attributes (an order, a list of dimensions) are named in
    `fields` and must be JSON. A value consists of these three kinds of members alone: `mapped` copies them and
    `core/saving.py` writes them.
    """

    fields: ClassVar[tuple[str, ...]] = ()
    saveable: ClassVar[bool] = True
    # What to do instead, for the error that is raised when a value that is not saveable is saved.
    instead_of_saving: ClassVar[str] = "Use a constant or matheron.means.LinearMean for a mean function"
    # The axes of tensors, as in "w: s ell, index: s". A word has one size in all of them, and loaded files are checked
    # for this.
    shapes: ClassVar[str] = ""
    # Members for the library's own use. dir() leaves them out, and all members of the base classes.
    _internal: ClassVar[tuple[str, ...]] = (
        *("fields", "saveable", "instead_of_saving", "shapes", "mapped", "owned", "check", "restore", "read_fields"),
        *("requires_graph", "add_module", "register_buffer", "type", "half", "bfloat16"),
    )
    _frozen: bool = False

    def __init__(self, **members: ArrayLike | nn.Module | None) -> None:
        """Set the initial tensors and parts by name. None stands for an optional tensor that is absent."""
        super().__init__()
        # This does what register_load_state_dict_post_hook, register_buffer and add_module do, but without a handle and
        # without checks of the names. Assigning a part by its attribute takes five times as long.
        self._load_state_dict_post_hooks[-1] = _restored
        for name, member in members.items():
            if isinstance(member, nn.Module):
                self._modules[name] = member
            elif member is None or isinstance(member, Tensor):
                self._buffers[name] = member
            else:
                self._buffers[name] = as_tensor(member, name).clone()

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if cls.saveable and not cls.__name__.startswith("_"):
            known = REGISTRY.get(cls.__name__, cls)
            again = (known.__module__, known.__qualname__) == (cls.__module__, cls.__qualname__)
            # A user's class does not replace a class of the library that has the same name. A class that is defined
            # again, as in a notebook, replaces its earlier self.
            REGISTRY[cls.__name__] = cls if again else known
        if "restore" in cls.__dict__:
            setattr(cls, "restore", _may_write(cls.restore))  # noqa: B010

    def mapped(self, fn: Callable[[Tensor], Tensor]) -> Self:
        """A copy of this value with `fn` applied to every tensor; the value itself stays as it is."""
        new = object.__new__(type(self))
        state = dict(self.__getstate__())  # without the compiled code that torch.compile stores in it
        state["_buffers"] = {name: None if b is None else fn(b) for name, b in self._buffers.items()}
        state["_modules"] = {name: m.mapped(fn) if isinstance(m, Value) else m for name, m in self._modules.items()}
        object.__setattr__(new, "__dict__", state)
        return new

    def replaced(self, **changes: object) -> Self:
        """A copy with some attributes replaced; the value itself stays as it is."""
        new = self.mapped(lambda b: b)
        with new._thawed():
            for name, value in changes.items():
                setattr(new, name, value)
        new.restore()
        return new

    def to(self, *args, **kwargs) -> Self:
        """A copy on another device or in another floating dtype (integers keep theirs)."""
        device, dtype, *_ = _parse_to(*args, **kwargs)
        if dtype not in (None, torch.float32, torch.float64):
            raise TypeError(f"{type(self).__name__}: expected torch.float32 or torch.float64, got {dtype}")
        return self.mapped(lambda b: b.to(device=device, dtype=dtype if b.is_floating_point() else None))

    def float(self) -> Self:
        """A copy in single precision."""
        return self.to(torch.float32)

    def double(self) -> Self:
        """A copy in double precision."""
        return self.to(torch.float64)

    def half(self) -> Self:
        """TypeError: half precision is not enough for differences of nearby points."""
        return self.to(torch.float16)

    def bfloat16(self) -> Self:
        """TypeError: half precision is not enough for differences of nearby points."""
        return self.to(torch.bfloat16)

    def type(self, dst_type: torch.dtype | str) -> Self:
        """A copy in another floating dtype."""
        return self.to(getattr(torch, dst_type.removeprefix("torch.")) if isinstance(dst_type, str) else dst_type)

    def cpu(self) -> Self:
        """A copy on the CPU."""
        return self.to("cpu")

    def cuda(self, device: int | torch.device | None = None) -> Self:
        """A copy on a CUDA device."""
        return self.to(torch.device("cuda", device) if isinstance(device, int) else device or "cuda")

    def owned(self) -> Self:
        """Return a copy that shares no memory and no autograd graph with other tensors, and is no inference tensor."""
        with outside():
            return self.mapped(lambda b: plain(b).clone())

    @classmethod
    def read_fields(cls, fields: dict[str, Json]) -> dict[str, Json]:
        """The fields of a value from those in a file, where JSON has no type for them."""
        return fields

    def check(self) -> None:
        """Raise a ValueError if parts from a file or a state_dict do not fit together. It is called before
        `restore`."""

    def restore(self) -> None:
        """Recompute what is derived from the buffers and not saved. It is called after the buffers have been loaded."""

    def _load_from_state_dict(self, state_dict, prefix: str, local_metadata: dict[str, object], *args) -> None:
        # Buffers are replaced and never written into, because other values may share their memory.
        with self._thawed():
            super()._load_from_state_dict(
                state_dict, prefix, local_metadata | {"assign_to_params_buffers": True}, *args
            )

    def __setattr__(self, name: str, value) -> None:
        # `training` and private names belong to torch: parent modules, hooks and the compiler set them.
        if self._frozen and name != "training" and not name.startswith("_"):
            self._keep(name)
        # A tensor of a user's class becomes a buffer, also where the attribute was a number or None before.
        new = name not in self.__dict__.get("_buffers", ()) and not hasattr(type(self), name)
        if isinstance(value, Tensor) and new and not self._frozen:
            vars(self).pop(name, None)
            super().register_buffer(name, value.clone() if isinstance(value, nn.Parameter) else value)
        else:
            super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if self._frozen:
            self._keep(name)
        super().__delattr__(name)

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        if self._frozen:
            self._keep(name)
        super().register_buffer(name, tensor, persistent)

    def add_module(self, name: str, module: nn.Module | None) -> None:
        if self._frozen:
            self._keep(name)
        super().add_module(name, module)

    def _keep(self, name: str) -> NoReturn:
        kind = type(self).__name__
        raise AttributeError(
            f"{kind}.{name}: expected no change, a {kind} is a value; {kind}.replaced({name}=...) returns a new one"
        )

    @contextmanager
    def _thawed(self) -> Iterator[None]:
        before, self._frozen = self._frozen, False
        try:
            yield
        finally:
            self._frozen = before

    def requires_graph(self) -> bool:
        """Whether derivatives are being taken through any tensor of this value."""
        if any(b is not None and in_graph(b) for b in self._buffers.values()):
            return True
        return any(
            part.requires_graph() if isinstance(part, Value) else any(p.requires_grad for p in part.parameters())
            for part in self._modules.values()
            if part is not None
        )

    def __repr__(self) -> str:
        """The value as one would write it, `Matern(nu=2.5, lengthscale=[0.2, 0.4])`; long tensors by their shapes."""
        said = {name: repr(getattr(self, name)) for name in self.fields}
        kept = ((n, b) for n, b in self._buffers.items() if b is not None and n not in self._non_persistent_buffers_set)
        said |= {name: shown(buffer) for name, buffer in kept}
        parts = [repr(part) for part in self._modules.values() if part is not None]
        named = [f"{name}={text}" for name, text in said.items()] if len(said) > 1 or parts else list(said.values())
        return f"{type(self).__name__}({', '.join([*parts, *named])})"

    def __dir__(self) -> list[str]:
        """List what users call. Members of `torch.nn.Module` and those for the library's own use can be called, but are
        not listed."""
        kinds = [kind for kind in type(self).__mro__ if issubclass(kind, Value)]
        own = {name for kind in kinds for name in vars(kind)}
        own |= {*self._buffers, *self._modules, *vars(self), "state_dict", "load_state_dict"} - {"training"}
        own -= {name for kind in kinds for name in kind._internal}
        return sorted(name for name in own if not name.startswith("_") or name.startswith("__"))

    if TYPE_CHECKING:  # buffers and parts are attributes that a type checker cannot see

        def __getattr__(self, name: str) -> Any: ...


V = TypeVar("V", bound=Value)


def shown(tensor: Tensor) -> str:
    """A number or a few of them, as one would write them; more by their shape."""
    if tensor.numel() > 8 or tensor.ndim > 2:
        return f"<{'x'.join(map(str, tensor.shape))} numbers>"
    if tensor.ndim == 0:
        text = f"{tensor.item():.6g}"
        return text if not tensor.is_floating_point() or set(text) & set(".en") else f"{text}.0"
    return f"[{', '.join(map(shown, tensor))}]"


def _restored(value: Value, _: object) -> None:
    value.check()
    value.restore()


def _may_write(restore: Callable[[V], None]) -> Callable[[V], None]:
    @functools.wraps(restore)
    def thawed(self: V) -> None:
        with self._thawed():
            restore(self)

    return thawed


class Parts(Value, Generic[V]):
    """Several values in order."""

    def __init__(self, parts: Iterable[V]) -> None:
        super().__init__(**{str(i): part for i, part in enumerate(parts)})

    def __repr__(self) -> str:
        return ", ".join(map(repr, self))

    def __iter__(self) -> Iterator[V]:
        return iter(cast(dict[str, V], self._modules).values())

    def __len__(self) -> int:
        return len(self._modules)

    def __getitem__(self, i: int) -> V:
        return list(self)[i]


def in_own_memory(tensor: Tensor) -> Tensor:
    """Return the tensor, copied if it is a view into larger memory. The last bit of a product depends on the alignment
    of its factors."""
    whole = tensor.is_contiguous() and tensor.storage_offset() == 0
    return tensor if whole else tensor.clone(memory_format=torch.contiguous_format)
