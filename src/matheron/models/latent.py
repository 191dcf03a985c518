"""LatentGP: a function observed through outcomes, such as counts or classes, and its Gaussian approximation."""

from __future__ import annotations

import os

from torch import Tensor

from ..core.checks import Names, many
from ..core.saving import save
from ..core.value import Value
from ..kernels import Kernel
from .likelihoods import Likelihood
from .means import Mean
from .single import ExactGP


class LatentGP(Value):
    """A Gaussian process f whose data are outcomes y ~ p(y | f(X)), and the Gaussian that approximates f given y.

        p(f | y)  ~  N(f; K (K + W^-1)^-1 (z - m) + m,  (K^-1 + W)^-1),       z = f^ + W^-1 grad log p(y | f^)

    Laplace's approximation about the mode f^: the posterior of a Gaussian process given pseudo-targets z with noise of
    its own, 1 / W_i, for every datum. `gaussian` is that process, an `ExactGP`: draws, lattices, fields and roll-outs
    are its. All laws are those of the approximation. `matheron.approximate` and `matheron.fit` make one.

    Args:
        likelihood: p(y | f), of `matheron.likelihoods`.
        y: the outcomes `[n]`.
        gaussian: the `ExactGP` of the pseudo-targets.

    >>> import torch, matheron
    >>> from matheron import kernels, likelihoods
    >>> X = torch.linspace(0, 1, 10)[:, None]
    >>> gp = matheron.approximate(kernels.RBF(0.3), X, torch.arange(10), likelihood=likelihoods.Poisson())
    >>> isinstance(gp, matheron.LatentGP), matheron.draw(gp, 8)([[0.5]]).shape
    (True, torch.Size([8, 1]))
    """

    saveable = True
    y: Tensor
    likelihood: Likelihood
    gaussian: ExactGP

    def __init__(self, likelihood: Likelihood, y: Tensor, gaussian: ExactGP) -> None:
        super().__init__(likelihood=likelihood, y=y.clone(), gaussian=gaussian)
        self.check()

    def check(self) -> None:
        if not isinstance(self.likelihood, Likelihood) or not isinstance(self.gaussian, ExactGP):
            raise ValueError("LatentGP: expected a likelihood and an ExactGP")
        if self.y.shape != (self.gaussian.num_data,):
            raise ValueError(f"y: expected [{self.gaussian.num_data}], one per datum, got {list(self.y.shape)}")
        self.likelihood.check_size(len(self.y))
        self.likelihood.check_outcomes(self.y)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a safetensors file, from which `matheron.load` reads it."""
        save(self, path)

    @property
    def kernel(self) -> Kernel:
        return self.gaussian.kernel

    @property
    def mean(self) -> Mean:
        """The prior mean function, on the scale of the link."""
        return self.gaussian.mean

    @property
    def num_data(self) -> int:
        return self.gaussian.num_data

    @property
    def num_outputs(self) -> int:
        return self.gaussian.num_outputs

    @property
    def input_dim(self) -> int:
        return self.gaussian.input_dim

    @property
    def input_names(self) -> Names:
        return self.gaussian.input_names

    def __repr__(self) -> str:
        data = many(self.num_data, "outcome")
        return f"LatentGP({self.likelihood!r}, {self.kernel!r}, {data} in {many(self.input_dim, 'dimension')})"
