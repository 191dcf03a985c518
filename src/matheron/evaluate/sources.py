"""What an evaluator derives from paths once, and keeps for as long as their tensors stay as they were."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

P = TypeVar("P")


class Sources:
    """The tensors of some modules, as they are now."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        owners = [part for module in modules for part in module.modules()]
        self.tensors = [
            (part._buffers, name, b, None if b.is_inference() else b._version, b.requires_grad)
            for part in owners
            for name, b in part._buffers.items()
            if b is not None
        ]

    def stand(self) -> bool:
        """Whether they are still those of the modules, unchanged, and as before in a graph or not.

        A parent module that is moved moves them in place; an optimiser writes into them.
        """
        for owner, name, tensor, version, tied in self.tensors:  # a plain loop: this is in every call's way
            if owner.get(name) is not tensor or tensor.requires_grad is not tied:
                return False
            if version is not None and tensor._version != version:  # an inference tensor has none
                return False
        return True


class Derived(Generic[P]):
    """One thing a Paths, made by `make` when first asked for, and again when the paths' tensors have changed."""

    def __init__(self, make: Callable[[Any], P | None]) -> None:
        self.make = make
        self.made: WeakKeyDictionary[Any, tuple[P | None, Sources]] = WeakKeyDictionary()

    def __call__(self, paths: Any) -> P | None:
        """What `make` makes of the paths; None where it makes nothing of them."""
        known = self.made.get(paths)
        if known is not None and known[1].stand():
            return known[0]
        made = self.make(paths)
        self.made[paths] = (made, Sources([paths.prior, paths.update, paths.mean_function]))
        return made


def transformed(x: Tensor) -> bool:
    """Whether x is under a transform of torch.func, forward differentiation or compilation."""
    return (
        torch.compiler.is_compiling()
        or torch._C._functorch.is_functorch_wrapped_tensor(x)  # type: ignore[attr-defined]
        or getattr(torch.autograd.forward_ad, "_current_level", -1) >= 0
    )
