"""The log marginal likelihood of an exact model, and its predictions of each observation from all the others."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.checks import many
from ..models import Batch, Ensemble, ExactGP, LatentGP, Outputs
from ..models.libraries import describe
from ..solvers import covariance
from ..solvers.cholesky import safe_cholesky, solved

_LOG_2_PI = math.log(2 * math.pi)


def log_marginal_likelihood(model: object) -> Tensor:
    """log p(y): the log density of the data under a Gaussian process, hyperparameters given.

        log p(y) = -1/2 r^T (K_nn + noise)^-1 r - 1/2 log |K_nn + noise| - n/2 log 2 pi,      r = y - mean(X)

    It is dense, computed in float64, and differentiable in whatever hyperparameters require grad. With an output
    transform it is the density of the *user's* y, T(y) for the model's y: each observation's log |T'(y)| is subtracted.
    So models with different transforms of the same data can be compared.

    Args:
        model: an `ExactGP`, or a model of another library that is one. The models of `Outputs` are independent, and
            their values are added; a `Batch` or an `Ensemble` has one value per model, `[b]`. Of a `LatentGP` it is
            Laplace's approximation, which can be differentiated once.

    >>> import torch, matheron
    >>> from matheron import kernels
    >>> lengthscale = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    >>> gp = matheron.ExactGP(kernels.RBF(lengthscale), X=[[0.0], [0.5], [1.0]], y=[0.0, 1.0, 0.0], noise=0.1)
    >>> value = matheron.log_marginal_likelihood(gp)
    >>> round(value.item(), 3)
    -3.352
    >>> round(torch.autograd.grad(value, lengthscale)[0].item(), 3)
    -0.013
    """
    if isinstance(model, LatentGP):
        from .laplace import laplace_evidence  # that module imports this one

        return laplace_evidence(model)
    gp = describe(model, detach=False)
    if isinstance(gp, Outputs):
        return torch.stack([log_marginal_likelihood(member) for member in gp.models]).sum(0)
    if isinstance(gp, Batch | Ensemble):
        values = torch.stack([log_marginal_likelihood(member) for member in gp.models])
        return values.reshape(gp.batch_shape) if isinstance(gp, Batch) else values
    gp = _exact(gp, "log_marginal_likelihood")
    return _log_likelihood(gp, *_factored(gp))


def _log_likelihood(gp: ExactGP, L: Tensor, r: Tensor) -> Tensor:
    a = torch.linalg.solve_triangular(L, r[:, None], upper=False)  # [n, 1]
    log_determinant = 2 * L.diagonal().log().sum()
    _, slope = _outer(gp, gp.train_targets.double())
    return -0.5 * (a.square().sum() + log_determinant + len(r) * _LOG_2_PI) - slope.abs().log().sum()


@dataclass(frozen=True, eq=False, repr=False)
class LeaveOneOut:
    """Predictions of each of the n observations of a model from all the others, in the order of the data.

    Printing shows a summary. Scores are one number, or one per output `[t]`.

    Attributes:
        log_density: log p(y_i | the others) `[n]`, of the user's y_i; its sum is a score to compare models by.
        standardized: (y_i - mean_i) / standard deviation_i `[n]` in the model's own space: standard normals where the
            model is right.
        targets: the observations y_i, `[n]`, in the user's units.
        tasks: which output each observation is of, `[n]`; None where there is one.

    >>> import matheron
    >>> from matheron import kernels
    >>> gp = matheron.ExactGP(kernels.RBF(0.3), X=[[0.0], [0.5], [1.0]], y=[0.0, 1.0, 0.0], noise=1e-2)
    >>> matheron.leave_one_out(gp).log_density.shape
    torch.Size([3])
    """

    log_density: Tensor
    standardized: Tensor
    targets: Tensor
    tasks: Tensor | None
    _num_outputs: int
    _mean: Tensor
    _variance: Tensor
    _affine: bool

    @property
    def rmse(self) -> Tensor:
        """Root mean square error of the predictions in the user's units. Predictions are means, or medians if the
        output transform is not affine."""
        return self._scores(lambda own: (self.targets - self._mean)[own].square().mean().sqrt())

    @property
    def r_squared(self) -> Tensor:
        """1 - (sum of squared errors) / (sum of squares about the targets' mean): 1 is perfect, 0 is no better than
        that mean, and below 0 is worse. NaN where targets do not vary."""

        def score(own: Tensor) -> Tensor:
            y, error = self.targets[own], (self.targets - self._mean)[own].square().sum()
            total = (y - y.mean()).square().sum()
            return torch.where(total > 0, 1 - error / total, torch.nan)

        return self._scores(score)

    @property
    def coverage(self) -> Tensor:
        """Share of observations within the central 95% interval of their predictions: near 0.95 if the model's
        uncertainty is right."""
        half_width = 1.959964  # for a standard normal variable
        return self._scores(lambda own: (self.standardized[own].abs() <= half_width).double().mean())

    def _scores(self, score: Callable[[Tensor], Tensor]) -> Tensor:
        """A score of some observations, for each output by itself."""
        if self.tasks is None:
            return score(torch.ones_like(self.targets, dtype=torch.bool))
        return torch.stack([score(self.tasks == i) for i in range(self._num_outputs)])

    def lines(self) -> list[str]:
        """The scores in words, a line per output."""
        each = zip(*(x.detach().reshape(-1).tolist() for x in (self.rmse, self.r_squared, self.coverage)), strict=True)
        explained = "undefined (the observations do not vary)"
        return [
            f"RMSE {e:.3g}, R^2 {explained if math.isnan(r) else f'{r:.3g}'}, 95% intervals cover {c:.1%}"
            for e, r, c in each
        ]

    def __repr__(self) -> str:
        lines = self.lines()
        each = lines if len(lines) == 1 else [f"output {i}: {line}" for i, line in enumerate(lines)]
        total = f"log density {float(self.log_density.detach().sum()):.4g} in all"
        title = f"{many(len(self.targets), 'observation')}, each predicted from the others"
        return "\n  ".join([title, *each, total])

    @property
    def mean(self) -> Tensor:
        """Mean of y_i given the others, `[n]`, in the user's units."""
        self._check("mean")
        return self._mean

    @property
    def variance(self) -> Tensor:
        """Variance of y_i given the others, its noise included, `[n]`, in the user's units."""
        self._check("variance")
        return self._variance

    def _check(self, what: str) -> None:
        if not self._affine:
            raise TypeError(f"{what}: under an output transform that is not affine it has no closed form")


def leave_one_out(model: object) -> LeaveOneOut:
    """Predictions of every observation from all the others, at the cost of one factorisation.

        mean_i = y_i - [K^-1 r]_i / [K^-1]_ii,      variance_i = 1 / [K^-1]_ii,      K = K_nn + noise, r = y - mean(X)

    Conventions are those of `log_marginal_likelihood`.

    Args:
        model: an `ExactGP`, or a model of another library that is one; of a `LatentGP` the outcomes are predicted,
            `OutcomesLeftOut`.

    >>> import matheron
    >>> from matheron import kernels
    >>> gp = matheron.ExactGP(kernels.RBF(0.3), X=[[0.0], [0.5], [1.0]], y=[0.0, 1.0, 0.0], noise=0.1)
    >>> left = matheron.leave_one_out(gp)
    >>> left
    3 observations, each predicted from the others
      RMSE 0.609, R^2 -0.67, 95% intervals cover 100.0%
      log density -3.351 in all
    >>> left.mean.round(decimals=3)
    tensor([0.2380, 0.0000, 0.2380], dtype=torch.float64)
    """
    if isinstance(model, LatentGP):
        from .laplace import outcomes_left_out  # that module imports this one

        return outcomes_left_out(model)
    gp = _exact(describe(model, detach=False), "leave_one_out")
    return _left_out(gp, *_factored(gp))


def scores(gp: ExactGP | LatentGP) -> tuple[Tensor, LeaveOneOut]:
    """The log marginal likelihood and what `leave_one_out` gives; of an exact model from one factorisation."""
    if isinstance(gp, LatentGP):
        return log_marginal_likelihood(gp), leave_one_out(gp)
    L, r = _factored(gp)
    return _log_likelihood(gp, L, r), _left_out(gp, L, r)


def _left_out(gp: ExactGP, L: Tensor, r: Tensor) -> LeaveOneOut:
    y = gp.train_targets.double()
    inverse = torch.linalg.solve_triangular(L, torch.eye(len(r), dtype=r.dtype, device=r.device), upper=False)
    precision = inverse.square().sum(0)  # [K^-1]_ii
    alpha = solved(L, r[:, None])[:, 0]  # K^-1 r
    mean, variance = y - alpha / precision, 1 / precision
    standardized = alpha / precision.sqrt()
    targets, at_y = _outer(gp, y)
    log_density = -0.5 * (standardized.square() + variance.log() + _LOG_2_PI) - at_y.abs().log()
    outer, slope = _outer(gp, mean)
    affine = gp.output_transform is None or gp.output_transform.affine
    return LeaveOneOut(
        log_density, standardized, targets, gp.sites.outputs, gp.num_outputs, outer, variance * slope.square(), affine
    )


def _exact(gp: object, name: str) -> ExactGP:
    if isinstance(gp, ExactGP):
        return gp
    raise TypeError(
        f"{name}: expected an ExactGP, or a model of a library that is one, got {type(gp).__name__}; a sparse model "
        "keeps inducing points instead of data, and several models have one value each: ask each of .models"
    )


def _factored(gp: ExactGP) -> tuple[Tensor, Tensor]:
    """L L^T = K_nn + noise `[n, n]`, and r = y - mean(X) `[n]`, in float64."""
    sites = gp.sites.double()
    K = covariance(gp.kernel.to(sites.points.device, torch.float64), sites)
    K = K + gp.noise.to(K).diag_embed()
    return safe_cholesky(K, "k(X, X) + noise")[0], gp.train_targets.double() - gp.mean.at(sites)


def _outer(gp: ExactGP, y: Tensor) -> tuple[Tensor, Tensor]:
    """Values `[n]` of the model's space in the user's, and the output transform's derivative there."""
    if gp.output_transform is None:
        return y, torch.ones_like(y)
    transform = gp.output_transform.to(y.device, torch.float64)
    values = y[:, None].expand(-1, gp.num_outputs)  # [n, t]
    return gp.sites.own(transform(values)), gp.sites.own(transform.derivative(values))
