"""OwnFunction: a user's torch module or function as part of a value."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from .value import Value


class OwnFunction(Value):
    """A torch module or a function, called as it is.

    A module's parameters become buffers here: they are copied, moved and differentiated with the value that has this as
    a part. The module itself is left alone, and training it further changes nothing here. It is called in evaluation
    mode. Neither can be saved: a file holds no code.
    """

    saveable = False
    instead_of_saving = "Save what it is applied to, and apply it again to what is loaded"

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.names: list[str] = []
        if not isinstance(function, nn.Module):
            self.function = (function,)
            return
        tensors = {**dict(function.named_parameters()), **dict(function.named_buffers())}
        self.names = list(tensors)
        for i, tensor in enumerate(tensors.values()):
            self.register_buffer(f"tensor_{i}", tensor + 0 if isinstance(tensor, nn.Parameter) else tensor.clone())
        # This is a copy without the graph. Its tensors are never read, because each call puts the buffers in their
        # place. It is in a tuple so that its parameters are not registered as this value's.
        copies: dict[int, Tensor] = {
            id(t): nn.Parameter(t.detach().clone(), requires_grad=False) for t in function.parameters()
        }
        copies.update({id(t): t.detach().clone() for t in function.buffers()})
        self.function = (copy.deepcopy(function, copies).eval(),)

    def forward(self, x: Tensor, **named: Tensor | None) -> Tensor:
        (function,) = self.function
        if not isinstance(function, nn.Module):
            return function(x, **named)
        tensors = {name: getattr(self, f"tensor_{i}") for i, name in enumerate(self.names)}
        return torch.func.functional_call(function, tensors, (x,), named)

    def __repr__(self) -> str:
        (function,) = self.function
        return getattr(function, "__name__", type(function).__name__)


class OwnFeatures(OwnFunction):
    """A user's map from points to features."""

    instead_of_saving = "Write the map as a subclass of matheron.core.Value, which is found by its name"


def as_features(function: Callable[..., Tensor]) -> Value:
    """A map from points to features as part of a value; a Value is returned unchanged."""
    return function if isinstance(function, Value) else OwnFeatures(function)
