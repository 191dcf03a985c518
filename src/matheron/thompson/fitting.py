"""fitted: a Gaussian process of evaluations, as draws of it are to be minimised."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar

import torch
from botorch.exceptions.warnings import OptimizationWarning
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from botorch.optim.fit import fit_gpytorch_mll_scipy
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import MaternKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.priors import GammaPrior, Prior
from torch import Tensor


class FitWarning(UserWarning):
    """A model could not be fitted, and is used with the hyperparameters that it starts from."""


def fitted(X: Tensor, y: Tensor, bounds: Tensor | None = None, noise: float | None = None) -> SingleTaskGP:
    """A model of values y `[n, 1]` at X `[n, d]`, in the unit cube or in the box `bounds`. It is used as it is where
    its fit fails.

    BoTorch's `fit_gpytorch_mll` would try again from random ones, out of torch's global generator.
    """
    model = _model(X, y, bounds, noise)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OptimizationWarning)  # wherever the descent ended, it began higher
            fit_gpytorch_mll_scipy(ExactMarginalLogLikelihood(model.likelihood, model))
    except RuntimeError as error:  # torch.linalg's errors, and GPyTorch's of matrices
        warnings.warn(f"a model of {len(X)} values could not be fitted: {error}", FitWarning, stacklevel=2)
        model = _model(X, y, bounds, noise)
    return model.eval()


class _LengthscalePrior(Prior):
    """log p = -(l^2 + l^-2) / 10: that of Optuna's GPSampler. A fit is all that it serves; it has no samples.

    Long lengthscales are unlikely. Had they a heavy tail, a parameter of small effect might get one so long that no
    draw asks about it again: trials would agree in it for ever, and nothing would correct the lengthscale.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        torch.nn.Module.__init__(self)
        torch.distributions.Distribution.__init__(self, validate_args=False)

    def log_prob(self, x: Tensor) -> Tensor:
        return -0.1 * (x.square() + x.square().reciprocal())


def _model(X: Tensor, y: Tensor, bounds: Tensor | None, noise: float | None) -> SingleTaskGP:
    """A model of standardised values, before its fit: Matern-5/2, a lengthscale a coordinate, noise known or learned.

    Kernel, priors and the floor under the noise are those of Optuna's GPSampler. With BoTorch's own floor, 1e-4, draws
    of a function without noise would differ where its value is known, and search there for ever.
    """
    kernel = MaternKernel(
        2.5,
        ard_num_dims=X.shape[1],
        lengthscale_prior=_LengthscalePrior(),
        lengthscale_constraint=_above(1e-3, 1.0),
    )
    kernel = ScaleKernel(kernel, outputscale_prior=GammaPrior(2.0, 1.0), outputscale_constraint=_above(1e-4, 1.0))
    likelihood = GaussianLikelihood(noise_prior=GammaPrior(1.1, 30.0), noise_constraint=_above(1e-6, 1e-3))
    return SingleTaskGP(
        X,
        y,
        train_Yvar=None if noise is None else torch.full_like(y, noise),
        likelihood=likelihood if noise is None else None,
        covar_module=kernel,
        input_transform=None if bounds is None else Normalize(X.shape[1], bounds=bounds),
        outcome_transform=Standardize(1),
    )


def _above(floor: float, initial: float) -> GreaterThan:
    """Fitted on the scale of logarithms: a few dozen steps do, where GPyTorch's own scale may take hundreds."""
    logarithmic: Any = {"transform": torch.exp, "inv_transform": torch.log}
    return GreaterThan(floor, **logarithmic, initial_value=initial)
