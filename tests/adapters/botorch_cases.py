"""BoTorch models of every kind, trained for a few steps, for the battery."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import gpytorch
import numpy as np
import torch
from botorch import models
from botorch.models import fully_bayesian, map_saas
from botorch.models.gpytorch import GPyTorchModel
from botorch.models.likelihoods.sparse_outlier_noise import SparseOutlierGaussianLikelihood
from botorch.models.transforms import input as bi
from botorch.models.transforms import outcome as bo
from botorch.optim.fit import fit_gpytorch_mll_scipy
from botorch.utils.context_managers import delattr_ctx
from gpytorch.distributions import MultitaskMultivariateNormal
from gpytorch.likelihoods.noise_models import HomoskedasticNoise
from torch import Tensor

from adapters.battery import Case, Moments
from adapters.gpytorch_cases import DOUBLE, DeepKernel, Exact, data, rbf

# A domain that is not the unit cube, so that a transform left out is seen.
LOWER, WIDTH = torch.tensor([10.0, -4.0], dtype=DOUBLE), torch.tensor([5.0, 2.0], dtype=DOUBLE)
POINTS = LOWER + WIDTH * torch.rand(5, 2, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
BOUNDS = torch.stack([LOWER, LOWER + WIDTH])
YVAR = torch.linspace(0.05, 0.5, 24, dtype=DOUBLE)[:, None]


def problem(outputs: int = 1, n: int = 24, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Points in the domain above and targets `[n, m]`, positive, of scales that differ by output."""
    u, y = data(n, seed=seed)
    targets = torch.stack([(i + 1) * 3 * (y + 2) + i * u[:, 1] for i in range(outputs)], -1)
    return LOWER + WIDTH * u, targets


def trained(model: Any, steps: int = 5) -> Any:
    """A few steps on the marginal likelihood, or on the lower bound of a variational model; left in training mode."""
    model.train()
    if isinstance(model, gpytorch.models.ExactGP):
        mll: Any = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
        fit_gpytorch_mll_scipy(mll, options={"maxiter": steps})
        return model.train()
    mll = gpytorch.mlls.VariationalELBO(model.likelihood, model.model, num_data=24)
    optimizer = torch.optim.Adam(mll.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = -mll(model.model(*model.model.train_inputs), model.model.train_targets)
        loss.backward()
        optimizer.step()
    return model


UNIT = torch.rand(24, 3, generator=torch.Generator().manual_seed(2), dtype=DOUBLE)


def fidelities(**settings: Any) -> Callable[[], Any]:
    """A model of a function of one coordinate and of two fidelities in [0, 1]."""
    y = 3 * torch.sin(5 * UNIT[:, :1]) + UNIT[:, 1:2] * UNIT[:, 2:]
    return fitted(models.SingleTaskMultiFidelityGP, UNIT, y, **settings)


def fitted(kind: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[[], Any]:
    def fit() -> Any:
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # inputs that are not scaled, and too few steps: on purpose
            made = {name: value() if callable(value) else value for name, value in kwargs.items()}
            return trained(kind(*args, **made))

    return fit


def law_moments(law: Any) -> Moments:
    cov = law.covariance_matrix
    if isinstance(law, MultitaskMultivariateNormal) and not law._interleaved:
        n, t = law.event_shape
        cov = cov.reshape(t, n, t, n).permute(1, 0, 3, 2).reshape(n * t, n * t)
    return Moments(law.mean, cov)


def own_moments(model: Any, x: Tensor) -> Moments:
    """BoTorch's own posterior, in the units of the data."""
    with torch.no_grad():
        return law_moments(model.posterior(x).distribution)


def log_moments(model: Any, x: Tensor) -> Moments:
    """The posterior of the logarithm: standardised, if the model is."""
    chain = model.outcome_transform
    inner: Any = chain["standardize"] if isinstance(chain, bo.ChainedOutcomeTransform) else None
    with torch.no_grad(), delattr_ctx(model, "outcome_transform"):
        posterior = model.posterior(x)
    return law_moments((posterior if inner is None else inner.untransform_posterior(posterior)).distribution)


def member_moments(model: Any, x: Tensor) -> list[Moments]:
    """Of every member of a batch or an ensemble."""
    with torch.no_grad():
        law = model.posterior(x).distribution
    outputs = isinstance(law, MultitaskMultivariateNormal)
    means = law.mean.reshape(-1, *law.event_shape)
    covs = law.covariance_matrix.reshape(len(means), law.event_shape.numel(), -1)
    members = [Moments(m, c) for m, c in zip(means, covs, strict=True)]
    if not outputs:
        return members
    n, t = law.event_shape
    order = lambda c: c.reshape(t, n, t, n).permute(1, 0, 3, 2).reshape(n * t, n * t)  # noqa: E731
    return [Moments(m.mean, m.covariance if law._interleaved else order(m.covariance)) for m in members]


def kronecker_moments(model: Any, x: Tensor) -> Moments:
    """KroneckerMultiTaskGP's posterior has variances alone; calling it has the covariance, in the model's units."""
    with torch.no_grad():
        mean = model.posterior(x).mean
        law = law_moments(model(model.transform_inputs(x)))
    scale = model.outcome_transform.stdvs[0].repeat(len(x)) if hasattr(model, "outcome_transform") else 1.0
    return Moments(mean, torch.as_tensor(scale)[..., None] * law.covariance * scale)


def pair_moments(model: Any, x: Tensor) -> Moments:
    """The posterior of both tasks at every point, asked for pair by pair."""
    pairs = torch.cat([x.repeat_interleave(2, 0), torch.arange(2).repeat(len(x))[:, None]], -1)
    both = own_moments(model, pairs)
    return Moments(both.mean.reshape(len(x), 2), both.covariance)


def tasks(values: tuple[int, int] = (0, 1), column: int = 2) -> tuple[Tensor, Tensor]:
    x, y = problem(2, n=30)
    which = torch.arange(30) % 2
    task = torch.tensor(values, dtype=DOUBLE)[which][:, None]
    return torch.cat([x[:, :column], task, x[:, column:]], -1), y.gather(1, which[:, None])


def warped() -> Any:
    normalize = bi.Normalize(d=2)
    warp = bi.Warp(d=2, indices=[0], bounds=torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=DOUBLE))
    return bi.ChainedInputTransform(normalize=normalize, warp=warp)


def log_and_standardize() -> Any:
    return bo.ChainedOutcomeTransform(log=bo.Log(), standardize=bo.Standardize(m=1))


def saas(warp: bool = False, yvar: Tensor | None = None) -> Any:
    """A SaaS model with samples of its hyperparameters. NUTS needs JAX; the model, once it has samples, does not."""
    torch.manual_seed(0)
    x, y = problem()
    old = {name: getattr(fully_bayesian, name, None) for name in ("_HAS_JAX", "jnp")}
    fully_bayesian._HAS_JAX, fully_bayesian.jnp = True, np  # type: ignore[attr-defined]
    try:
        model = fully_bayesian.SaasFullyBayesianSingleTaskGP(
            x,
            y,
            yvar,
            input_transform=bi.Normalize(d=2),
            outcome_transform=bo.Standardize(m=1),
            use_input_warping=warp,
        )
    finally:
        for name, value in old.items():
            setattr(fully_bayesian, name, value)
    samples = {
        "mean": 0.1 * torch.randn(4, dtype=DOUBLE),
        "outputscale": 0.5 + torch.rand(4, dtype=DOUBLE),
        "lengthscale": 0.3 + torch.rand(4, 2, dtype=DOUBLE),
        "noise": 0.01 + 0.1 * torch.rand(4, dtype=DOUBLE),
        "c0": 0.7 + torch.rand(4, 2, dtype=DOUBLE),
        "c1": 0.7 + torch.rand(4, 2, dtype=DOUBLE),
    }
    model.load_mcmc_samples(samples)
    return model.eval()


def with_outliers(convex: bool) -> Any:
    """Two of the data have noise of their own, as relevance pursuit finds it."""
    x, y = problem()
    base = HomoskedasticNoise()
    likelihood = SparseOutlierGaussianLikelihood(base, 24, [3, 17], convex_parameterization=convex).double()
    model = models.SingleTaskGP(
        x, y + 20 * torch.eye(24)[:, [3]], likelihood=likelihood, input_transform=bi.Normalize(2)
    )
    likelihood.noise_covar.raw_rho.data = torch.tensor([0.99, 0.4], dtype=DOUBLE)
    return trained(model, steps=2)


class Custom(Exact, GPyTorchModel):
    """A user's own model: GPyTorch's, with BoTorch's interface."""

    _num_outputs = 1

    def __init__(self) -> None:
        x, y = problem()
        super().__init__(x, y[:, 0], gpytorch.likelihoods.GaussianLikelihood(), rbf(), gpytorch.means.ConstantMean())
        self.double()


_X, _Y = problem()
_X2, _Y2 = problem(2)
_CHOICES = torch.stack([torch.arange(24) % 3, torch.arange(24) // 5 % 2], -1).to(DOUBLE)  # and a fourth in the tests
_TX, _TY = tasks()
_batch = [problem(seed=i) for i in range(3)]
_BX, _BY = torch.stack([x for x, _ in _batch]), torch.stack([y for _, y in _batch])
_matern = lambda: gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(ard_num_dims=2))  # noqa: E731

CASES = [
    Case("a SingleTaskGP as it comes", fitted(models.SingleTaskGP, _X, _Y), own_moments, POINTS),
    Case(
        "normalised inputs and a kernel of one's own",
        fitted(models.SingleTaskGP, _X, _Y, input_transform=lambda: bi.Normalize(d=2), covar_module=_matern),
        own_moments,
        POINTS,
    ),
    Case(
        "inputs normalised by bounds in one column, no outcome transform",
        fitted(
            models.SingleTaskGP,
            _X,
            _Y,
            input_transform=lambda: bi.Normalize(d=2, indices=[0], bounds=BOUNDS[:, :1]),
            outcome_transform=None,
        ),
        own_moments,
        POINTS,
    ),
    Case(
        "standardised inputs",
        fitted(models.SingleTaskGP, _X, _Y, input_transform=lambda: bi.InputStandardize(d=2)),
        own_moments,
        POINTS,
    ),
    Case(
        "normalised and warped inputs", fitted(models.SingleTaskGP, _X, _Y, input_transform=warped), own_moments, POINTS
    ),
    Case(
        "inputs on a log scale, and then normalised",
        fitted(
            models.SingleTaskGP,
            _X,
            _Y,
            input_transform=lambda: bi.ChainedInputTransform(log=bi.Log10(indices=[0]), normalize=bi.Normalize(d=2)),
        ),
        own_moments,
        POINTS,
    ),
    Case(
        "test points alone transformed",
        fitted(
            models.SingleTaskGP,
            (_X - LOWER) / WIDTH,
            _Y,
            input_transform=lambda: bi.Normalize(d=2, bounds=BOUNDS, transform_on_train=False),
        ),
        own_moments,
        POINTS,
    ),
    Case("fixed noise", fitted(models.SingleTaskGP, _X, _Y, YVAR), own_moments, POINTS),
    Case(
        "a deep kernel and normalised inputs",
        fitted(models.SingleTaskGP, _X, _Y, covar_module=DeepKernel, input_transform=lambda: bi.Normalize(d=2)),
        own_moments,
        POINTS,
    ),
    *(
        Case(f"several fidelities: {name}", fidelities(**settings), own_moments, UNIT[:4])
        for name, settings in {
            "linear truncated": {"data_fidelities": [2]},
            "two of them": {"data_fidelities": [2], "iteration_fidelity": 1},
            "downsampling": {"data_fidelities": [2], "linear_truncated": False},
            "decay": {"data_fidelities": [2], "iteration_fidelity": 1, "linear_truncated": False},
        }.items()
    ),
    Case("outliers", lambda: with_outliers(convex=True), own_moments, POINTS),
    Case("outliers, in the targets' units", lambda: with_outliers(convex=False), own_moments, POINTS),
    Case("two outputs", fitted(models.SingleTaskGP, _X2, _Y2), own_moments, POINTS),
    Case(
        "two outputs, fixed noise, normalised inputs",
        fitted(models.SingleTaskGP, _X2, _Y2, YVAR * torch.ones(2), input_transform=lambda: bi.Normalize(d=2)),
        own_moments,
        POINTS,
    ),
    Case(
        "a batch of models with transforms of their own",
        fitted(models.SingleTaskGP, _BX, _BY, input_transform=lambda: bi.Normalize(d=2, batch_shape=torch.Size([3]))),
        member_moments,
        POINTS,
    ),
    Case(
        "a batch of models of two outputs",
        fitted(models.SingleTaskGP, _BX, torch.cat([_BY, 2 - _BY * _BX[..., :1]], -1)),
        member_moments,
        POINTS,
    ),
    Case(
        "logarithms",
        fitted(models.SingleTaskGP, _X, _Y, outcome_transform=bo.Log),
        log_moments,
        POINTS,
        inner=torch.log,
    ),
    Case(
        "logarithms, and these standardised",
        fitted(models.SingleTaskGP, _X, _Y, outcome_transform=log_and_standardize),
        log_moments,
        POINTS,
        inner=torch.log,
    ),
    Case(
        "categories beside normalised inputs",
        fitted(
            models.MixedSingleTaskGP,
            torch.cat([_X, _CHOICES], -1),
            _Y + _CHOICES[:, :1],
            cat_dims=[2, 3],
            input_transform=lambda: bi.Normalize(d=4, indices=[0, 1]),
        ),
        own_moments,
        torch.cat(
            [POINTS, torch.tensor([[0.0, 1.0], [1.0, 0.0], [2.0, 1.0], [0.0, 0.0], [3.0, 1.0]], dtype=DOUBLE)], -1
        ),
    ),
    Case("a model of one's own", lambda: trained(Custom()), own_moments, POINTS),
    Case(
        "a list of models",
        lambda: models.ModelListGP(
            fitted(models.SingleTaskGP, _X, _Y, input_transform=lambda: bi.Normalize(d=2))(),
            fitted(models.SingleTaskGP, *problem(n=16, seed=4), outcome_transform=None)(),
        ),
        own_moments,
        POINTS,
    ),
    Case("tasks", fitted(models.MultiTaskGP, _TX, _TY, task_feature=-1), own_moments, POINTS),
    Case(
        "one of two tasks, with fixed noise",
        fitted(models.MultiTaskGP, _TX, _TY, task_feature=-1, train_Yvar=torch.full_like(_TY, 0.2), output_tasks=[1]),
        own_moments,
        POINTS,
    ),
    Case(
        "tasks in reverse, numbered by twos, in the middle column",
        fitted(
            models.MultiTaskGP,
            *tasks((1, 3), column=1),
            task_feature=1,
            output_tasks=[3, 1],
            likelihood=gpytorch.likelihoods.GaussianLikelihood,
        ),
        own_moments,
        POINTS,
    ),
    Case(
        "tasks standardised each on its own, with normalised inputs",
        fitted(
            models.MultiTaskGP,
            _TX,
            _TY,
            task_feature=-1,
            input_transform=lambda: bi.Normalize(d=3, indices=[0, 1]),
            outcome_transform=lambda: bo.StratifiedStandardize(2, torch.tensor([0, 1])),
        ),
        pair_moments,
        POINTS,
    ),
    Case("Kronecker tasks", fitted(models.KroneckerMultiTaskGP, _X2, _Y2), kronecker_moments, POINTS),
    Case(
        "Kronecker tasks with correlated noise and transforms",
        fitted(
            models.KroneckerMultiTaskGP,
            _X2,
            _Y2,
            likelihood_rank=1,
            input_transform=lambda: bi.Normalize(d=2),
            outcome_transform=lambda: bo.Standardize(m=2),
        ),
        kronecker_moments,
        POINTS,
    ),
    Case(
        "a variational model",
        fitted(models.SingleTaskVariationalGP, _X, _Y, inducing_points=8, input_transform=lambda: bi.Normalize(d=2)),
        own_moments,
        POINTS,
    ),
    Case(
        "a variational model of two outputs",
        fitted(
            models.SingleTaskVariationalGP,
            _X2,
            _Y2,
            inducing_points=8,
            input_transform=lambda: bi.Normalize(d=2),
            outcome_transform=lambda: bo.Standardize(m=2),
        ),
        own_moments,
        POINTS,
    ),
    Case("samples of hyperparameters", saas, member_moments, POINTS),
    Case("samples of hyperparameters and of a warp", lambda: saas(warp=True), member_moments, POINTS),
    Case(
        "an ensemble of sparse axis-aligned models",
        fitted(map_saas.EnsembleMapSaasSingleTaskGP, _X, _Y, num_taus=3, input_transform=lambda: bi.Normalize(d=2)),
        member_moments,
        POINTS,
    ),
    Case(
        "a sum of sparse axis-aligned kernels",
        fitted(map_saas.AdditiveMapSaasSingleTaskGP, _X, _Y, num_taus=2, input_transform=lambda: bi.Normalize(d=2)),
        own_moments,
        POINTS,
    ),
]
