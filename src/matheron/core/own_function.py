"""A user's torch module or function as part of a value, and what a user's class has to keep so that it can be saved."""

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


def check_kept(value: Value, check: Callable[[Value], None]) -> None:
    """Raise a TypeError if a file would not have all that a value of a user's class is made of.

    Args:
        check: what is checked of a value when a file is read.
    """
    name, kind = type(value).__name__, type(value)
    lost = [key for key in vars(value) if not key.startswith("_") and key not in ("training", *kind.fields)]
    if lost and kind.restore is Value.restore:
        raise TypeError(
            f"save: {name} has {', '.join(lost)}, which a file would lose; for numbers, texts and lists write "
            f"`fields = ({', '.join(map(repr, lost))},)` in the class, make tensors of hyperparameters, or define "
            "`restore(self)`, which makes what follows from these"
        )
    try:
        check(value)
    except ValueError as error:
        raise TypeError(f"save: {error}; a class keeps what its constructor takes, by the same names") from error
