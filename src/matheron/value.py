"""A value: a small module whose every tensor is a buffer, which is never changed once made."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor, nn

# Every concrete Value by name: what a saved file may name, and nothing else.
REGISTRY: dict[str, type[Value]] = {}


class Value(nn.Module):
    """Base of kernels, means, transforms, features and paths.

    Tensors are buffers and parts are submodules, so that `state_dict`, `deepcopy` and pickling reach all of it. What
    is neither (an order, a list of dimensions) is named in `fields` and must be JSON. Those three together are all
    that a Value is: `mapped` copies them and `matheron.store` writes them.
    """

    fields: ClassVar[tuple[str, ...]] = ()
    saveable: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self.register_load_state_dict_post_hook(_restored)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.saveable and not cls.__name__.startswith("_"):
            REGISTRY.setdefault(cls.__name__, cls)  # a user's class of the same name does not take its place

    def mapped(self, fn: Callable[[Tensor], Tensor]) -> Self:
        """A copy of this value with `fn` applied to every tensor; the value itself stays as it is."""
        new = copy.copy(self)
        new.__dict__ = dict(self.__dict__)
        new._buffers = {name: None if b is None else fn(b) for name, b in self._buffers.items()}
        new._modules = {name: m.mapped(fn) if isinstance(m, Value) else m for name, m in self._modules.items()}
        return new

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """A copy on another device or in another floating dtype (integers keep theirs)."""
        device, dtype, *_ = torch._C._nn._parse_to(*args, **kwargs)  # type: ignore[attr-defined]
        return self.mapped(lambda b: b.to(device=device, dtype=dtype if b.is_floating_point() else None))

    def owned(self) -> Self:
        """A copy that shares no memory and no graph with anything else."""
        return self.mapped(lambda b: b.detach().clone())

    def restore(self) -> None:
        """Make again what follows from the buffers and is not saved; called once they are in place."""

    def _load_from_state_dict(self, state_dict: Any, prefix: str, local_metadata: dict[str, Any], *args: Any) -> None:
        # Buffers are replaced, not written into: other values may share their memory.
        super()._load_from_state_dict(state_dict, prefix, local_metadata | {"assign_to_params_buffers": True}, *args)

    def requires_graph(self) -> bool:
        """Whether any tensor of this value is tied to an autograd graph."""
        if any(b is not None and b.requires_grad for b in self._buffers.values()):
            return True
        return any(
            part.requires_graph() if isinstance(part, Value) else any(p.requires_grad for p in part.parameters())
            for part in self._modules.values()
            if part is not None
        )

    if TYPE_CHECKING:  # buffers and parts are attributes that a type checker cannot see

        def __getattr__(self, name: str) -> Any: ...


def _restored(value: Value, _: Any) -> None:
    value.restore()


class Parts(Value):
    """Several values in order."""

    def __init__(self, parts: Iterable[Value]) -> None:
        super().__init__()
        for i, part in enumerate(parts):
            self.add_module(str(i), part)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._modules.values())

    def __len__(self) -> int:
        return len(self._modules)

    def __getitem__(self, i: int) -> Any:
        return list(self._modules.values())[i]
