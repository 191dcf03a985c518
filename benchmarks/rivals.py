"""Ways to choose the next points, all of one form: (points `[n, d]` of the unit cube, values, q) -> points `[q, d]`."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from matheron_paper import Trial, style

Choose = Callable[[Tensor, Tensor, int], Tensor]


class Cube(NamedTuple):
    """The unit cube, the size of a batch, and how hard expected improvement's own maximum is searched for."""

    dim: int
    batch: int
    restarts: int
    raw_samples: int

    @property
    def box(self) -> Tensor:
        return torch.stack([torch.zeros(self.dim), torch.ones(self.dim)]).double()


class Method(NamedTuple):
    make: Callable[[Cube, Trial], Choose]
    color: str
    line: str = "-"
    hundred: bool = False  # whether it is run with batches of a hundred


def method(name: str, cube: Cube, trial: Trial) -> Choose:
    return METHODS[name].make(cube, trial)


def random(cube: Cube, trial: Trial) -> Choose:
    generator = trial.generator("search")
    return lambda X, y, q: torch.rand(q, cube.dim, generator=generator, dtype=torch.float64)


def thompson(greedy: bool = False, spread: float | None = 1.0, local: bool = False) -> Callable[[Cube, Trial], Choose]:
    """A model fitted to all values, and minimisers of q functions drawn of it.

    Args:
        greedy: one of q points is the posterior mean's minimiser (of four, where q is one).
        spread: as for `matheron.thompson.suggest`; None for those of `minimize_function`, from near the mean to draws.
        local: whether functions are minimised in a trust region.
    """

    def make(cube: Cube, trial: Trial) -> Choose:
        from matheron.thompson import suggest
        from matheron.thompson.fitting import fitted
        from matheron.thompson.loop import graded, side_after

        generator = trial.generator("search")
        first: list[int] = []

        def choose(X: Tensor, y: Tensor, q: int) -> Tensor:
            first.append(len(y))
            turn = (len(first) - 1) % 4
            due = greedy and (q > 1 or turn == 3)
            each = spread if spread is not None else graded(q) if q > 1 else graded(4)[-1 - turn]
            side = side_after(y.tolist(), first[0], cube.batch, cube.dim) if local else None
            return suggest(fitted(X, y), cube.box, q, greedy=due, spread=each, trust_region=side, generator=generator)

        return choose

    return make


def expected_improvement(noisy: bool) -> Callable[[Cube, Trial], Choose]:
    """BoTorch's, with its model and settings as in its tutorials; points of a batch one after the other."""

    def make(cube: Cube, trial: Trial) -> Choose:
        from botorch.acquisition.logei import qLogExpectedImprovement, qLogNoisyExpectedImprovement
        from botorch.fit import fit_gpytorch_mll
        from botorch.models import SingleTaskGP
        from botorch.models.transforms import Standardize
        from botorch.optim import optimize_acqf
        from gpytorch.mlls import ExactMarginalLogLikelihood

        torch.manual_seed(trial.generator("search").initial_seed() % 2**31)  # BoTorch takes no generator

        def choose(X: Tensor, y: Tensor, q: int) -> Tensor:
            model = SingleTaskGP(X, -y[:, None], outcome_transform=Standardize(1))
            fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
            if noisy:
                gain: Any = qLogNoisyExpectedImprovement(model, X, prune_baseline=True)
            else:
                gain = qLogExpectedImprovement(model, best_f=(-y).max())
            x, _ = optimize_acqf(
                gain, cube.box, q=q, num_restarts=cube.restarts, raw_samples=cube.raw_samples, sequential=True
            )
            return x.detach()

        return choose

    return make


def gp_sampler(cube: Cube, trial: Trial) -> Choose:
    """Optuna's GPSampler: q trials are asked for before any of them is told."""
    import optuna
    from optuna.distributions import FloatDistribution

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    space: Any = {f"x{i:02d}": FloatDistribution(0.0, 1.0) for i in range(cube.dim)}
    seed = trial.generator("search").initial_seed() % 2**31
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study = optuna.create_study(sampler=optuna.samplers.GPSampler(seed=seed, n_startup_trials=1))
    asked: list[Any] = []

    def choose(X: Tensor, y: Tensor, q: int) -> Tensor:
        told = len(study.trials) - len(asked)
        for trial, value in zip(asked, y[told:].tolist(), strict=bool(asked)):
            study.tell(trial, value)
        if not asked:
            for x, value in zip(X.tolist(), y.tolist(), strict=True):
                params = dict(zip(space, x, strict=True))
                study.add_trial(optuna.trial.create_trial(params=params, distributions=space, value=value))
        asked[:] = [study.ask(space) for _ in range(q)]
        return torch.tensor([[trial.params[name] for name in space] for trial in asked], dtype=torch.float64)

    return choose


def turbo(cube: Cube, trial: Trial) -> Choose:
    """TuRBO-1 (Eriksson et al., 2019): Thompson sampling on candidates in a trust region about the best point.

    Constants are those of the paper and of BoTorch's tutorial; when the region has shrunk to nothing, a new one begins
    from uniform points, with data of its own.
    """
    from botorch.fit import fit_gpytorch_mll
    from botorch.generation import MaxPosteriorSampling
    from botorch.models import SingleTaskGP
    from gpytorch.constraints import Interval
    from gpytorch.kernels import MaternKernel, ScaleKernel
    from gpytorch.likelihoods import GaussianLikelihood
    from gpytorch.mlls import ExactMarginalLogLikelihood

    d = cube.dim
    generator = trial.generator("search")
    torch.manual_seed(generator.initial_seed() % 2**31)  # BoTorch takes no generator
    state = {"length": 0.8, "successes": 0, "failures": 0, "since": 0, "best": math.inf, "seen": 0}
    tolerance = math.ceil(max(4, d) / cube.batch)

    def rand(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    def adapt(y: Tensor) -> None:
        new = y[int(state["seen"]) :]
        better = len(new) and float(new.min()) < state["best"] - 1e-3 * abs(state["best"])
        if state["seen"] and math.isfinite(state["best"]):
            state["successes"], state["failures"] = (
                (state["successes"] + 1, 0) if better else (0, state["failures"] + 1)
            )
        if state["successes"] == 10:
            state["length"], state["successes"] = min(2 * state["length"], 1.6), 0
        elif state["failures"] == tolerance:
            state["length"], state["failures"] = state["length"] / 2, 0
        if len(new):
            state["best"] = min(state["best"], float(new.min()))
        state["seen"] = len(y)

    def choose(X: Tensor, y: Tensor, q: int) -> Tensor:
        adapt(y)
        if state["length"] < 0.5**7:
            state.update(length=0.8, successes=0, failures=0, since=len(y), best=math.inf)
        X, y = X[int(state["since"]) :], y[int(state["since"]) :]
        if len(y) < 2 * (d + 1) and state["since"]:
            return rand(q, d)
        z = -(y - y.mean()) / y.std().clamp_min(1e-9)
        inner: Any = MaternKernel(nu=2.5, ard_num_dims=d, lengthscale_constraint=Interval(0.005, 4.0))
        kernel = ScaleKernel(inner)
        model = SingleTaskGP(
            X, z[:, None], covar_module=kernel, likelihood=GaussianLikelihood(noise_constraint=Interval(1e-8, 1e-3)),
            outcome_transform=None, input_transform=None,
        )  # fmt: skip
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        centre = X[y.argmin()]
        weights = inner.lengthscale.detach().squeeze(0).double()
        weights = weights / weights.mean()
        weights = weights / weights.log().mean().exp()
        lower, upper = ((centre + sign * weights * state["length"] / 2).clamp(0, 1) for sign in (-1, 1))
        count = min(5000, max(2000, 200 * d))
        candidates = lower + (upper - lower) * rand(count, d)
        mask = rand(count, d) <= min(20 / d, 1.0)
        mask[torch.arange(count), torch.randint(d, (count,), generator=generator)] = True
        candidates = torch.where(mask, candidates, centre)
        with torch.no_grad():
            return MaxPosteriorSampling(model=model, replacement=False)(candidates, num_samples=q)

    return choose


METHODS = {
    "random": Method(random, style.EXACT, ":", hundred=True),
    "qLogEI": Method(expected_improvement(noisy=False), style.WEIGHT_SPACE, "-."),
    "qLogNEI": Method(expected_improvement(noisy=True), style.LOVE, "-."),
    "TuRBO": Method(turbo, style.FRESH, "--", hundred=True),
    "GPSampler": Method(gp_sampler, style.EXACT_POSTERIOR, "--"),
    "Thompson": Method(thompson(), style.DECOUPLED, "--", hundred=True),
    "Thompson, local": Method(thompson(local=True), style.DECOUPLED, ":", hundred=True),
    "Thompson, greedy": Method(thompson(greedy=True), style.SPARSE, hundred=True),
    "Thompson, half": Method(thompson(spread=0.5), style.DECOUPLED, "-.", hundred=True),
    "Thompson, half, greedy": Method(thompson(greedy=True, spread=0.5), style.LOVE, hundred=True),
    "Thompson, graded": Method(thompson(greedy=True, spread=None), style.UPDATE, hundred=True),
    "Thompson, graded, local": Method(thompson(greedy=True, spread=None, local=True), style.UPDATE, ":", hundred=True),
}
