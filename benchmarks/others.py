"""The same problem in the libraries that have no paths, or are not always there. Each says what its call does.

A class has `name`, `package`, `tasks`, `devices`, and what the tasks call: `model`, `draw`, `values`, `gradient`. It
has `cost` where some sizes may take too long.
"""

from __future__ import annotations

import os
import warnings
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import gpytorch
import torch
from libraries import LENGTHSCALE, NOISE, BoTorch, Matheron, MatheronList, Problem, with_backward
from torch import Tensor


def _import(name: str) -> Any:
    """A library that need not be there: pip install -c constraints.txt -e '.[bench]'."""
    return import_module(name)


class GPyTorch:
    """The joint law of all points, then its Cholesky factor: cubic in N. Every call is a new sample."""

    name, package = "GPyTorch, dense", "gpytorch"
    tasks, devices = frozenset({"evaluate", "gradient"}), ("cpu", "cuda")

    @staticmethod
    def cost(N: int, n: int) -> tuple[float, float]:
        """What time and memory are in proportion to."""
        return N**3 + N * N * n + N * n * n, (N + n) ** 2

    class Model(gpytorch.models.ExactGP):
        def __init__(self, X: Tensor, y: Tensor):
            super().__init__(X, y, gpytorch.likelihoods.GaussianLikelihood())
            self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), gpytorch.kernels.MaternKernel(nu=2.5)

        def forward(self, x: Tensor) -> Any:
            mean: Any = self.mean_module(x)
            return gpytorch.distributions.MultivariateNormal(mean, self.covar_module(x))

    @staticmethod
    def model(problem: Problem) -> Any:
        model = GPyTorch.Model(*problem.data()).to(problem.device, problem.dtype)
        model.initialize(**{"covar_module.lengthscale": LENGTHSCALE, "likelihood.noise": NOISE})
        return model.eval().requires_grad_(False)

    @staticmethod
    def draw(model: Any, problem: Problem) -> Any:
        def sample(x: Tensor) -> Tensor:
            with gpytorch.settings.fast_computations(False, False, False):  # no Lanczos: Cholesky at every size
                return model(x).rsample(torch.Size([problem.s]))

        return sample

    @staticmethod
    def values(sample: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            return sample(x)

    @staticmethod
    def gradient(sample: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        return with_backward(sample, x)

    @staticmethod
    def mean(problem: Problem, x: Tensor) -> Tensor:
        with torch.no_grad(), gpytorch.settings.fast_computations(False, False, False):
            return GPyTorch.model(problem)(x).mean


class ScikitLearn:
    """`GaussianProcessRegressor.sample_y`: a singular value decomposition of the points' covariance. float64 alone."""

    name, package = "scikit-learn", "sklearn"
    tasks, devices = frozenset({"evaluate"}), ("cpu",)
    cost = GPyTorch.cost

    @staticmethod
    def model(problem: Problem) -> Any:
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import Matern

        X, y = problem.data()
        fixed: Any = None  # nothing is optimised
        model = GaussianProcessRegressor(Matern(LENGTHSCALE, nu=2.5), alpha=NOISE, optimizer=fixed)
        return model.fit(X.numpy(), y.numpy())

    @staticmethod
    def draw(model: Any, problem: Problem) -> Any:
        return model, problem.s

    @staticmethod
    def values(sample: Any, x: Tensor) -> Any:
        model, s = sample
        return model.sample_y(x.numpy(), n_samples=s, random_state=0)

    @staticmethod
    def mean(problem: Problem, x: Tensor) -> Tensor:
        return torch.as_tensor(ScikitLearn.model(problem).predict(x.numpy()))


class GPJax:
    """`sample_approx`, compiled by `jax.jit` before it is measured. A draw conditions, draws and calls at one point."""

    name, package = "GPJax", "gpjax"
    tasks, devices = frozenset({"draw", "evaluate", "gradient"}), ("cpu",)
    compiles = True

    @staticmethod
    def model(problem: Problem) -> Any:
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        gpjax, jax = _import("gpjax"), _import("jax")
        jax.config.update("jax_enable_x64", problem.dtype == torch.float64)
        X, y = (jax.numpy.asarray(value.numpy()) for value in problem.data())
        kernel = gpjax.kernels.Matern52(
            active_dims=list(range(problem.d)),
            lengthscale=jax.numpy.asarray(LENGTHSCALE, X.dtype),
            variance=jax.numpy.asarray(1.0, X.dtype),
            n_dims=problem.d,
        )
        prior = gpjax.gps.Prior(mean_function=gpjax.mean_functions.Zero(), kernel=kernel)
        likelihood = gpjax.likelihoods.Gaussian(obs_stddev=jax.numpy.asarray(NOISE**0.5, X.dtype))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # advice on float32: the problem is the same for all
            return prior * likelihood, gpjax.Dataset(X, y[:, None])

    @staticmethod
    def draw(model: Any, problem: Problem) -> Any:
        jax = _import("jax")
        joint, data = model
        sample = joint.condition(data).sample_approx(problem.s, jax.random.key(2), max(1, problem.ell // 2))
        sample(data.X[:1]).block_until_ready()  # until then it may still be at work

        def both(x: Any, ones: Any) -> Any:  # ones come from outside, or the compiler does a product beforehand
            values, pull = jax.vjp(sample, x)
            return values, pull(ones)[0]

        return jax.jit(sample), jax.jit(both), problem.s

    @staticmethod
    def values(sample: Any, x: Tensor) -> Any:
        return sample[0](x.numpy()).block_until_ready()

    @staticmethod
    def gradient(sample: Any, x: Tensor) -> Any:
        jax = _import("jax")
        ones = torch.ones(len(x), sample[2], dtype=x.dtype).numpy()
        return jax.block_until_ready(sample[1](x.numpy(), ones))

    @staticmethod
    def mean(problem: Problem, x: Tensor) -> Tensor:
        joint, data = GPJax.model(problem)
        return torch.as_tensor(joint.condition(data)(x.numpy()).mean.tolist()).to(x.dtype)


class GSTools:
    """`CondSRF`, one path, its kriging mean and variance included: a call makes no more, so S is 1. float64 alone.

    It is the kriging mean plus an unconditioned field scaled to the kriging variance. That has the posterior's mean and
    variance at each point, and not its correlations. The kriging variance takes n^2 operations a point.
    """

    name, package = "GSTools, one path", "gstools"
    tasks, devices = frozenset({"evaluate"}), ("cpu",)
    paths = 1

    @staticmethod
    def cost(N: int, n: int) -> tuple[float, float]:
        return N * n * n, N * n

    @staticmethod
    def model(problem: Problem) -> Any:
        gstools = _import("gstools")
        gstools.config.NUM_THREADS = torch.get_num_threads()
        X, y = problem.data()
        # Its Matern has sqrt(nu) r / length where ours has sqrt(2 nu) r / lengthscale.
        model = gstools.Matern(dim=problem.d, nu=2.5, len_scale=LENGTHSCALE / 2**0.5)
        return gstools.Krige(model, X.T.numpy(), y.numpy(), unbiased=False, exact=False, cond_err=NOISE)

    @staticmethod
    def draw(model: Any, problem: Problem) -> Any:
        gstools = _import("gstools")
        return gstools.CondSRF(model, mode_no=max(1, problem.ell // 2), seed=2)

    @staticmethod
    def values(field: Any, x: Tensor) -> Any:
        return field(x.T.numpy(), store=False, krige_store=False)  # what is stored is not computed again

    @staticmethod
    def mean(problem: Problem, x: Tensor) -> Tensor:
        return torch.as_tensor(GSTools.model(problem)(x.T.numpy(), return_var=False))


EVERY = (Matheron, MatheronList, BoTorch, GPyTorch, GPJax, ScikitLearn, GSTools)
LIBRARIES: dict[str, Any] = {
    library.name: library for library in EVERY if find_spec(getattr(library, "package", "torch")) is not None
}


def takes(library: Any, task: str, problem: Problem) -> bool:
    """Whether a library has such a call."""
    if problem.kernel != "matern" and not issubclass(library, Matheron):
        return False
    double = library.name in (ScikitLearn.name, GSTools.name)
    return (
        task in library.tasks
        and problem.device in library.devices
        and not (double and problem.dtype != torch.float64)
        and problem.s >= getattr(library, "paths", 1)
    )
