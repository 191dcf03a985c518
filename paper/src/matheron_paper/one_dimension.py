"""The example that figures 1 and 2 share: functions on [0, 1], observed in two bands, and sparse posteriors of them."""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

import matheron
from matheron import AbstractPaths, kernels
from matheron.compare.metrics import EmpiricalMoments, blocks
from matheron.compare.samplers import Moments, ValueDraws

from .base import Trial
from .report import Cell
from .sampling import NOISE, factors, kernel, optimal

# The bands that contain data. A few observations lie in the same bands as many.
BANDS = ((0.2, 0.3), (0.65, 0.75))
_FEW = (0.2, 0.3, 0.65, 0.75)
# The number of points of a curve that are stored for the figure. Their distance is a twenty-fifth of a lengthscale.
_SHOWN = 256


def data(trial: Trial, device: torch.device) -> dict[int, matheron.ExactGP]:
    """Models of n = 4 and of n = 1000 observations of the same function, drawn from the prior."""
    generator = Trial("posteriors", {}, trial.number, trial.seed).generator("problem")  # the same in both figures
    many = torch.rand(1000, generator=generator, dtype=torch.float64)
    many = torch.cat([low + (high - low) * half for (low, high), half in zip(BANDS, many.chunk(2), strict=True)])
    X = torch.cat([torch.tensor(_FEW, dtype=torch.float64), many])[:, None]  # [1004, 1]
    k = kernel(1)
    K = k(X, X) + NOISE * torch.eye(len(X), dtype=X.dtype)
    y = torch.linalg.cholesky(K) @ torch.randn(len(X), generator=generator, dtype=X.dtype)
    X, y = X.to(device), y.to(device)
    parts = {4: slice(0, 4), 1000: slice(4, None)}
    return {n: matheron.ExactGP(k, X[part], y[part], noise=NOISE) for n, part in parts.items()}


def grid(num_test: int, device: torch.device) -> Tensor:
    """The test points, `[*, 1]`."""
    return torch.linspace(0, 1, num_test, dtype=torch.float64, device=device)[:, None]


def sparse(gp: matheron.ExactGP, m: int) -> matheron.SparseGP:
    """The sparse posterior of m inducing points that maximise Titsias's bound, with its optimal q(u)."""
    X, y = gp.train_inputs.cpu(), gp.train_targets.cpu()

    def negative_bound(z: np.ndarray) -> tuple[float, np.ndarray]:
        Z = torch.tensor(z, dtype=torch.float64)[:, None].requires_grad_()
        value = -_bound(gp.kernel, X, y, Z)
        value.backward()
        assert Z.grad is not None
        return float(value.detach()), Z.grad[:, 0].numpy()

    start = np.linspace(0.1, 0.9, m)
    found = minimize(negative_bound, start, jac=True, method="L-BFGS-B", bounds=[(0.0, 1.0)] * m)
    Z = torch.tensor(np.sort(found.x), dtype=torch.float64)[:, None]
    return optimal(gp, Z.to(gp.train_inputs.device))


def _bound(k: kernels.Kernel, X: Tensor, y: Tensor, Z: Tensor) -> Tensor:
    """log N(y | 0, Q_nn + sigma^2 I) - tr(K_nn - Q_nn) / (2 sigma^2), less a constant."""
    A, LB = factors(k, X, Z)
    c = torch.linalg.solve_triangular(LB, (A @ y)[:, None], upper=False) / math.sqrt(NOISE)  # [m, 1]
    fit = LB.diagonal().log().sum() + (y.square().sum() / NOISE - c.square().sum()) / 2
    return -fit - (k.diag(X).sum() / NOISE - A.square().sum()) / 2


def empirical(draws: AbstractPaths | ValueDraws, x: Tensor, num_shown: int) -> tuple[Moments, Tensor]:
    """The moments of draws at x, and the first few of them."""
    found, shown = EmpiricalMoments(), []
    for block in blocks(draws, x):
        found.add(block)
        shown = shown or [block[:num_shown]]
    return found.moments, shown[0]


def curve(values: Tensor) -> list[Cell]:
    """Values at the test points `[..., *]` as the figure's file holds them: some of the points, to four decimals."""
    step = max(1, values.shape[-1] // _SHOWN)
    return torch.round(values[..., ::step].cpu(), decimals=4).tolist()


def law(of: Moments, x: Tensor) -> dict[str, list[Cell]]:
    """A mean and standard deviations, as curves, and the points they are at."""
    sd = of.covariance.diagonal().clamp_min(0).sqrt()
    return {"x": curve(x[:, 0]), "mean": curve(of.mean), "sd": curve(sd)}
