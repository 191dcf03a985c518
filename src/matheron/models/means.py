"""Mean functions: constants, linear functions, torch modules, callables, and combinations of several."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from numbers import Real
from typing import cast

import numpy as np
import torch
from torch import Tensor

from ..core.checks import ArrayLike, as_tensor
from ..core.functionals import Functionals, Observed
from ..core.jacobian import jacobian
from ..core.own_function import OwnFunction
from ..core.value import Parts, Value


class Mean(Value):
    """A mean function m, `[..., n, d] -> [..., n, t]`, where t is 1 for a single output.

    >>> import torch
    >>> from matheron import means
    >>> m = means.as_mean(2.0)
    >>> isinstance(m, means.Mean), m(torch.zeros(3, 1)).shape
    (True, torch.Size([3, 1]))
    """

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Compute m(x), `[..., n, t]`."""

    @abstractmethod
    def with_gradient(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Compute m(x) `[..., n, t]` and its gradient `[..., n, t, d]`."""

    def at(self, sites: Observed) -> Tensor:
        """Compute m at each site for the site's output, or the values of functionals of m, `[n]`."""
        X = sites.points
        alike = all(b is None or (b.dtype, b.device) == (X.dtype, X.device) for b in self._buffers.values())
        mean = self if alike and not self._modules else self.to(X.device, X.dtype)
        if isinstance(sites, Functionals) and sites.order == 1 and not mean.requires_graph():
            m, dm = mean.with_gradient(X[None])  # [1, N, 1 or t], [1, N, 1 or t, d]
            return sites.of_gradients(m, dm)[0].to(X)
        if isinstance(sites, Functionals):
            return sites.at_centres().features(lambda some: mean.at(some)[:, None])[:, 0].to(X)
        m = mean(X[None])[0]  # [n, 1 or t]
        if sites.outputs is None and m.shape[-1] > 1:
            raise ValueError(f"mean: expected one number per point for one output, got {m.shape[-1]} of them")
        return sites.own(m).to(X)


class ConstantMean(Mean):
    """A constant mean, with one number per output.

    >>> import torch
    >>> from matheron import means
    >>> means.ConstantMean([1.0, 2.0])(torch.zeros(3, 1)).shape
    torch.Size([3, 2])
    """

    def __init__(self, value: ArrayLike = 0.0) -> None:
        value = as_tensor(value, "mean").double().clone()
        if value.ndim > 1:
            raise ValueError(f"mean: expected a number or one per output, got shape {list(value.shape)}")
        super().__init__(value=value.reshape(-1))

    def forward(self, x: Tensor) -> Tensor:
        return self.value.expand(*x.shape[:-1], -1)

    def with_gradient(self, x: Tensor) -> tuple[Tensor, Tensor]:
        value = self(x)
        return value, value.new_zeros(*value.shape, x.shape[-1])


class LinearMean(Mean):
    """weights . x + bias, with weights `[d]` or `[t, d]` and bias a number or `[t]`.

    >>> from matheron.models.means import LinearMean
    >>> LinearMean([1.0, 2.0], 3.0)(torch.ones(1, 2, dtype=torch.float64))
    tensor([[6.]], dtype=torch.float64)
    """

    def __init__(self, weights: ArrayLike, bias: ArrayLike = 0.0) -> None:
        weights, bias = as_tensor(weights, "weights").double().clone(), as_tensor(bias, "bias").double().clone()
        if weights.ndim not in (1, 2):
            raise ValueError(f"weights: expected [d], or [t, d] for t outputs, got shape {list(weights.shape)}")
        super().__init__(weights=weights.reshape(-1, weights.shape[-1]), bias=bias.reshape(-1))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weights.mT + self.bias

    def with_gradient(self, x: Tensor) -> tuple[Tensor, Tensor]:
        value = self(x)
        return value, self.weights.expand(*value.shape, x.shape[-1])


class CallableMean(Mean):
    """A mean that calls a function or a torch module: of points `[..., n, d]` to `[..., n]` or `[..., n, t]`.

    The parameters of a module become buffers, which are copied, moved and differentiated with paths; the module itself
    is copied, so that further training of it changes nothing here. The mean cannot be saved: a file contains no code.

    >>> import torch
    >>> from matheron import means
    >>> means.CallableMean(lambda x: x.sum(-1))(torch.ones(3, 2)).shape
    torch.Size([3, 1])
    >>> means.CallableMean(torch.nn.Linear(2, 1))(torch.ones(3, 2)).shape
    torch.Size([3, 1])
    """

    saveable = False

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__(called=OwnFunction(function))

    def forward(self, x: Tensor) -> Tensor:
        value = self.called(x.clone())  # a copy, because the function may write into its points
        if not isinstance(value, Tensor) or value.shape[: x.ndim - 1] != x.shape[:-1]:
            got = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(
                f"mean: expected a tensor {list(x.shape[:-1])} for points {list(x.shape)}, got {got}; a column of the "
                "points is x[..., 0]"
            )
        return value if value.ndim == x.ndim else value[..., None]

    def with_gradient(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return jacobian(self, x)


class Stacked(Mean):
    """Several means as one mean with an output for each.

    >>> import torch
    >>> from matheron import means
    >>> means.Stacked([means.ConstantMean(1.0), means.ConstantMean(2.0)])(torch.zeros(1, 1)).tolist()
    [[1.0, 2.0]]
    """

    def __init__(self, means: Sequence[Mean]) -> None:
        super().__init__()
        self.means = Parts(means)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([mean(x) for mean in self.means], dim=-1)

    def with_gradient(self, x: Tensor) -> tuple[Tensor, Tensor]:
        values, gradients = zip(*(mean.with_gradient(x) for mean in self.means), strict=True)
        return torch.cat(values, dim=-1), torch.cat(gradients, dim=-2)


class Mixed(Mean):
    """The mean A m(x), whose outputs are linear combinations (the rows of A `[t, p]`) of those of another mean.

    >>> import torch
    >>> from matheron import means
    >>> means.Mixed(means.ConstantMean([1.0, 2.0]), [[1.0, 1.0]])(torch.zeros(1, 1).double()).tolist()
    [[3.0]]
    """

    def __init__(self, mean: Mean, A: ArrayLike) -> None:
        super().__init__(A=as_tensor(A, "A").double().clone())
        self.mean = mean

    def forward(self, x: Tensor) -> Tensor:
        m = self.mean(x)  # [..., n, 1 or p]
        return m.expand(*m.shape[:-1], self.A.shape[1]) @ self.A.mT  # [..., n, t]

    def with_gradient(self, x: Tensor) -> tuple[Tensor, Tensor]:
        m, dm = self.mean.with_gradient(x)  # [..., n, 1 or p], [..., n, 1 or p, d]
        p = self.A.shape[1]
        return m.expand(*m.shape[:-1], p) @ self.A.mT, self.A @ dm.expand(*dm.shape[:-2], p, -1)


MeanLike = Mean | ArrayLike | Callable[[Tensor], Tensor]


def as_mean(mean: MeanLike) -> Mean:
    """Return a `Mean` for a number, one number per output, a torch module or a callable.

    >>> from matheron import means
    >>> means.as_mean(2.0)
    ConstantMean([2.])
    """
    if isinstance(mean, Mean):
        return mean
    if isinstance(mean, Real | Tensor | np.ndarray | list | tuple):
        return ConstantMean(cast(ArrayLike, mean))
    if callable(mean):
        return CallableMean(mean)
    raise TypeError(f"mean: expected a number, one per output, or a callable, got {type(mean).__name__}")
