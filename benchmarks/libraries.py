"""The same problem in matheron and BoTorch: a Gaussian process, its paths, and their values. See also others.py."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import matheron
from matheron import kernels

try:
    from botorch.models import SingleTaskGP
    from botorch.sampling.pathwise import draw_kernel_feature_paths, draw_matheron_paths
    from gpytorch.kernels import MaternKernel
    from gpytorch.likelihoods import GaussianLikelihood
    from gpytorch.means import ZeroMean
except ImportError as error:
    raise SystemExit(f"no {error.name}: pip install -c constraints.txt -e '.[botorch]'") from error

LENGTHSCALE, NOISE = 0.2, 1e-2


@dataclass(frozen=True)
class Problem:
    """n observations in d dimensions, and s paths whose priors have ell features, all sharing one basis."""

    n: int
    ell: int
    s: int
    dtype: torch.dtype
    d: int = 4
    kernel: str = "matern"  # Matern-5/2; or "rbf"
    device: str = "cpu"

    def data(self) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(0)
        X = torch.rand(self.n, self.d, generator=generator, dtype=torch.float64)
        y = torch.sin(6 * X).sum(1) + 0.1 * torch.randn(self.n, generator=generator, dtype=torch.float64)
        return X.to(self.device, self.dtype), y.to(self.device, self.dtype)

    def points(self, *shape: int) -> Tensor:
        generator = torch.Generator().manual_seed(1)
        return torch.rand(*shape, self.d, generator=generator, dtype=torch.float64).to(self.device, self.dtype)


class Matheron:
    name = "matheron"
    tasks = frozenset({"draw", "evaluate", "gradient", "own", "each", "grid"})
    devices = ("cpu", "cuda")

    @staticmethod
    def model(problem: Problem) -> Any:
        X, y = problem.data()
        kernel = kernels.RBF(LENGTHSCALE) if problem.kernel == "rbf" else kernels.Matern(2.5, LENGTHSCALE)
        return matheron.ExactGP(kernel, X, y, NOISE)

    @staticmethod
    def draw(model: Any, problem: Problem) -> matheron.Paths:
        generator = torch.Generator(problem.device).manual_seed(2)
        return matheron.draw(
            model,
            problem.s,
            num_features=problem.ell,
            features="sobol",  # as many of them as the other libraries have
            paths_per_basis=None,
            generator=generator,
        )

    @staticmethod
    def values(paths: matheron.Paths, x: Tensor) -> Tensor:
        return paths(x)

    @staticmethod
    def value_and_grad(paths: matheron.Paths, x: Tensor) -> tuple[Tensor, Tensor]:
        return paths.value_and_grad(x)

    @staticmethod
    def gradient(paths: matheron.Paths, x: Tensor) -> tuple[Tensor, Tensor]:
        return with_backward(paths, x)

    @staticmethod
    def grid(paths: matheron.Paths, axis: Tensor) -> Tensor:
        return paths.on_grid([axis, axis])

    @staticmethod
    def plainly(paths: matheron.Paths, x: Tensor) -> Tensor:
        """mean + Phi w + k(., X) v of these very numbers in float64, written out."""
        f, x = paths.to(torch.float64), x.double()
        Phi = f.prior.features(x)[0]  # [n, ell]
        return (
            f.mean_function(x)[:, 0]
            + f.prior.weights @ Phi.mT
            + f.update.weights @ f.update.kernel(f.update.centres, x)
        )


class MatheronList(Matheron):
    """A grid's points as a list: what `on_grid` is compared with."""

    name = "matheron, as a list"
    tasks = frozenset({"grid"})

    @staticmethod
    def grid(paths: matheron.Paths, axis: Tensor) -> Tensor:
        return paths(torch.cartesian_prod(axis, axis))


class BoTorch:
    """`draw_matheron_paths`."""

    name = "BoTorch"
    tasks = frozenset({"draw", "evaluate", "gradient", "own"})
    devices = ("cpu", "cuda")

    @staticmethod
    def model(problem: Problem) -> Any:
        X, y = problem.data()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # advice on scaling and on float32: the problem is the same for both
            model = SingleTaskGP(
                X,
                y[:, None],
                likelihood=GaussianLikelihood(),
                covar_module=MaternKernel(nu=2.5),
                mean_module=ZeroMean(),
                outcome_transform=None,
            ).to(problem.device, problem.dtype)
        model.initialize(**{"covar_module.lengthscale": LENGTHSCALE, "likelihood.noise": NOISE})
        return model.eval().requires_grad_(False)

    @staticmethod
    def draw(model: Any, problem: Problem) -> Any:
        torch.manual_seed(2)  # it takes no generator

        def prior(model: Any, sample_shape: torch.Size) -> Any:
            return draw_kernel_feature_paths(model, sample_shape=sample_shape, num_features=problem.ell)

        with torch.no_grad():
            return draw_matheron_paths(model, torch.Size([problem.s]), prior_sampler=prior)

    @staticmethod
    def values(paths: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            return paths(x)

    @staticmethod
    def value_and_grad(paths: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        return with_backward(paths, x)  # each path has its own points, so the sum's gradient is each path's

    @staticmethod
    def gradient(paths: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        return with_backward(paths, x)

    @staticmethod
    def plainly(paths: Any, x: Tensor) -> Tensor:
        """As Matheron.plainly: sines, then cosines, then k(., X) v."""
        prior, update, x = paths["prior_paths"], paths["update_paths"], x.double()
        theta = prior.feature_map.weight.double() / prior.feature_map.kernel.lengthscale.double()  # [ell / 2, d]
        P = x @ theta.mT  # [n, ell / 2]
        Phi = torch.cat([P.sin(), P.cos()], dim=-1) / len(theta) ** 0.5
        lengthscale = float(prior.feature_map.kernel.lengthscale)
        K = kernels.Matern(2.5, lengthscale)(update.feature_map.points.double(), x)  # [n, N]
        return prior.weight.double() @ Phi.mT + update.weight.double() @ K


def with_backward(function: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Values, and the gradient of their sum in x."""
    x = x.clone().requires_grad_()
    value = function(x)
    return value.detach(), torch.autograd.grad(value.sum(), x)[0]
