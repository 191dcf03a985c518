"""fit: maximum likelihood, or penalised by priors, of a kernel's hyperparameters, the noise and the mean."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from rich.progress import Progress
from scipy.optimize import minimize as scipy_minimize
from torch import Tensor

from ..checks import ArrayLike, as_count, as_generator, as_tensor
from ..gp import ExactGP
from ..kernels import Kernel, Matern
from ..means import CallableMean, ConstantMean, LinearMean, Mean, as_mean
from .hyperparameters import BOUNDS, Hyperparameters, Leaf, Prior, checked_priors, kernel_leaf
from .likelihood import Dense
from .priors import default_kernel_priors, weak_priors
from .starts import candidates
from .units import Units, buffers, standardising

# Starts are compared on this many observations, and followed on that many; the best goes on with all of them.
_SCREENED, _FOLLOWED = 256, 512
_ITERATIONS, _FIRST_ITERATIONS = 500, 60


class FitWarning(UserWarning):
    """A fit did not go as asked: a column that says nothing, or a search that found no better hyperparameters."""


def fit(
    kernel: Kernel | None,
    X: ArrayLike,
    y: ArrayLike,
    *,
    noise: ArrayLike | None = None,
    mean: Mean | ArrayLike | Callable[[Tensor], Tensor] | str | None = None,
    tasks: ArrayLike | None = None,
    priors: Mapping[str, Prior] | None = None,
    num_starts: int = 4,
    solver: str = "auto",
    seed: int | torch.Generator | None = None,
    progress: bool = False,
) -> ExactGP:
    """Fit a Gaussian process to data: every hyperparameter of a kernel expression, the noise and the mean.

    Inputs and targets are standardised inside. The model that comes back has its kernel in standardised units and the
    transforms to and from the user's, so that paths drawn from it take the user's points and give the user's units;
    `matheron.summary(gp)` prints its hyperparameters in the user's units. Columns that share a hyperparameter (one
    lengthscale for several) share a scale; give a lengthscale per column where columns have different units.

    Args:
        kernel: any expression of `matheron.kernels`. Its numbers, in the user's units, are where one of the starts
            begins; a number that is zero stays zero. A kernel without a scale has the targets' own variance. None:
            Matern-5/2 with a lengthscale per column and a scale, with the priors of `fitting.default_kernel_priors`.
        X, y, tasks: data as for `ExactGP`. NaN and infinities are refused: remove those rows first.
        noise: the variance of the noise where it is known, one number or one per observation; None fits it (one per
            task), with a floor of 1e-6 of the targets' variance.
        mean: None fits a constant (one per task), "linear" a linear function; a number, a Mean or a callable is kept
            as given, in the user's units.
        priors: by the name of a hyperparameter ("lengthscale", "noise", or in full "parts.0.lengthscale"): a torch
            distribution, or a function from values to their log density, in standardised units. The fit maximises
            log likelihood + log density. None is maximum likelihood; where there are fewer observations than
            hyperparameters, weak priors (`fitting.weak_priors`) take the place of what the data cannot say. `{}` is
            maximum likelihood always.
        num_starts: searches from the most likely of many random starts. 1 starts from the kernel's numbers alone and
            draws no random numbers.
        solver: "cholesky": exact gradients from dense factors.
        seed: of the random starts: a whole number or a generator; None is torch's default generator.
        progress: show a progress bar.

    >>> import torch, matheron
    >>> from matheron import kernels
    >>> X = torch.linspace(0, 10, 30, dtype=torch.float64)[:, None]
    >>> gp = matheron.fit(2.0 * kernels.RBF(1.0), X, 50 + 3 * torch.sin(X[:, 0]), seed=0)
    >>> paths = matheron.draw(gp, 8)
    >>> bool((paths(X).mean(0) - 50 - 3 * torch.sin(X[:, 0])).abs().max() < 0.05)
    True
    """
    if solver not in ("auto", "cholesky"):
        raise ValueError(f"solver: expected auto or cholesky, got {solver!r}")
    num_starts = as_count(num_starts, "num_starts")
    if kernel is None:
        d = _columns(X)
        kernel = 1.0 * Matern(2.5, torch.ones(d, dtype=torch.float64))
        if priors is None:
            usual = default_kernel_priors(d).items()
            priors = {name: prior for name, prior in usual if name != "noise" or noise is None}
    data = ExactGP(kernel, X, y, 0.0 if noise is None else noise, tasks=tasks)  # checks, and one row per observation
    user_X, user_y = data.train_inputs.double(), data.train_targets.double()
    units = standardising(kernel, user_X, user_y, data.tasks)
    _say_constant_columns(user_X, kernel)
    of = torch.zeros(len(user_y), dtype=torch.long, device=user_y.device) if data.tasks is None else data.tasks
    model_X = (user_X - units.input_centre) / units.input_scale  # [n, d]
    model_y = (user_y - units.output_centre[of]) / units.output_scale[of]  # [n]
    model_noise = None if noise is None else data.noise.double() / units.output_scale[of].square()
    found = maximised(
        kernel,
        model_X,
        model_y,
        noise=model_noise,
        mean=_mean_in(mean, units, user_X.shape[1], kernel.num_outputs),
        tasks=data.tasks,
        priors=priors,
        num_starts=num_starts,
        units=units,
        seed=seed,
        progress=progress,
    )
    inward, outward = units.transforms()
    dtype = data.train_inputs.dtype
    return ExactGP(
        found[0],
        model_X.to(dtype),
        model_y.to(dtype),
        found[1].to(dtype),
        found[2],
        data.tasks,
        input_transform=inward,
        output_transform=outward,
    )


def maximised(
    kernel: Kernel,
    X: Tensor,
    y: Tensor,
    *,
    noise: Tensor | None = None,
    mean: Mean | str | None = None,
    tasks: Tensor | None = None,
    priors: Mapping[str, Prior] | None = None,
    floors: Mapping[str, float] | None = None,
    first_noise: float = 1e-2,
    num_starts: int = 1,
    units: Units | None = None,
    seed: int | torch.Generator | None = None,
    progress: bool = False,
) -> tuple[Kernel, Tensor, Mean]:
    """The kernel, noise `[n]` and mean that maximise log likelihood + log prior of data as they are, in float64.

    Where `units` are given, the kernel's numbers are tried in the user's units and in the model's.
    """
    h, as_given = _hyperparameters(kernel, X, noise, mean, floors or {}, first_noise, units)
    if priors is None:
        priors = weak_priors(h.leaves) if len(y) < h.size else {}
    objective = Dense(h, X, y, tasks, checked_priors(priors, h.leaves))
    with Progress(disable=not progress, transient=True) as bar:
        task = bar.add_task("fitting", total=None)

        def report(words: str, value: float) -> None:
            bar.update(task, description=f"fitting, {words}: log likelihood {value:.2f}", advance=1)

        if num_starts == 1:
            best = as_given
        else:
            best = _best_start(objective, as_given, num_starts, seed, units is not None, report)
        fixed = _without_effect(objective, best)
        best, value = _climb(objective, best, fixed, as_given, _ITERATIONS, lambda v: report("all data", v))
    if not math.isfinite(value):
        warnings.warn(
            "the covariance has no Cholesky factor at the kernel's own hyperparameters, which are kept; give noise=, "
            "or a kernel that is less smooth",
            FitWarning,
            stacklevel=3,
        )
    with torch.no_grad():
        kernel, noise, mean = h.model([v.detach().clone() for v in h.decode(best)], len(X), tasks)
    return kernel, noise.clone(), mean


def _hyperparameters(
    kernel: Kernel, X: Tensor, noise: Tensor | None, mean: Mean | str | None, floors, first_noise: float, units
) -> tuple[Hyperparameters, Tensor]:
    """The hyperparameters, with the kernel's numbers read in the model's units; and their vector in the user's."""
    t, d = kernel.num_outputs, X.shape[1]
    kernel = kernel.owned().to(X.device)
    ones = Units(*(torch.ones(size, dtype=torch.float64, device=X.device) for size in (d, d, t, t)))
    listed = buffers(kernel, units or ones)
    leaves = [kernel_leaf(buffer, floors) for buffer in listed]
    noise_leaf = noise
    if noise is None:
        lower, upper = BOUNDS["noise"]
        start = torch.full((t,), first_noise, dtype=torch.float64, device=X.device)
        noise_leaf = Leaf("noise", "positive", start, (floors.get("noise", lower), upper))
    zeros = torch.zeros(t, dtype=torch.float64, device=X.device)
    means: Any = [Leaf("mean", "real", zeros)] if mean is None else mean
    if isinstance(mean, str):
        means = [Leaf("mean.weights", "real", zeros[:, None].expand(t, d)), Leaf("mean.bias", "real", zeros)]
    assert noise_leaf is not None
    h = Hyperparameters(kernel, leaves, noise_leaf, means)
    return h, h.encode({b.name: b.value.double() / b.unit for b in listed})


def _best_start(
    objective: Dense, as_given: Tensor, num_starts: int, seed: Any, both: bool, report: Callable[[str, float], None]
) -> Tensor:
    """The best end of searches from the most likely of many starts, on some of the data."""
    generator = as_generator(seed)
    h = objective.hyperparameters
    order = torch.randperm(len(objective.y), generator=generator, device=generator.device).to(objective.X.device)
    few = objective.some(order[:_SCREENED])
    starts = [as_given, *([h.encode()] if both else []), *candidates(h, 8 * num_starts, generator)]
    values = [few(start)[0] for start in starts]
    ranked = sorted(range(len(starts)), key=lambda i: -values[i])
    chosen = [starts[i] for i in ranked[:num_starts]]
    some = objective.some(order[:_FOLLOWED])
    ends = []
    for i, start in enumerate(chosen):
        words = f"start {i + 1} of {num_starts}"
        fixed = _without_effect(some, start)
        ends.append(_climb(some, start, fixed, as_given, _FIRST_ITERATIONS, lambda v, words=words: report(words, v)))
    return max(ends, key=lambda end: end[1])[0]


def _without_effect(objective: Dense, vector: Tensor) -> Tensor:
    """Entries of the vector whose gradient is exactly zero at two places: data and priors say nothing of them."""
    step = torch.linspace(0.01, 0.02, len(vector), dtype=torch.float64, device=vector.device)
    gradients = [objective(vector + k * step)[1] for k in (1, -1)]
    none = (gradients[0] == 0) & (gradients[1] == 0)
    return none & ~none.all()  # all of them: no likelihood, rather than no effect


def _climb(
    objective: Dense,
    start: Tensor,
    fixed: Tensor,
    as_given: Tensor,
    iterations: int,
    report: Callable[[float], None],
) -> tuple[Tensor, float]:
    """L-BFGS-B from a start, uphill; what has no effect stays as given. The end and its value."""
    n = len(objective.y)
    start = torch.where(fixed, as_given, start)
    best, best_value = start, -math.inf

    def downhill(numbers: Any) -> tuple[float, Any]:
        nonlocal best, best_value
        vector = torch.as_tensor(numbers, dtype=torch.float64).to(start)
        value, gradient = objective(vector)
        if value > best_value:
            best, best_value = vector.clone(), value
        report(best_value)
        if not math.isfinite(value):
            return 1e10, 0.0 * numbers
        return -value / n, (-(gradient * ~fixed) / n).cpu().numpy()

    scipy_minimize(
        downhill,
        start.cpu().numpy(),
        jac=True,
        method="L-BFGS-B",
        bounds=objective.hyperparameters.limits(),
        options={"maxiter": iterations, "ftol": 1e-10, "gtol": 1e-6},
    )
    return best, best_value


def _columns(X: ArrayLike) -> int:
    shape = as_tensor(X, "X").shape
    return shape[1] if len(shape) == 2 else 1  # anything else is refused by ExactGP


def _mean_in(mean: Any, units: Units, d: int, t: int) -> Mean | str | None:
    """A fixed mean in the model's units; None and "linear" are fitted."""
    if mean is None or (isinstance(mean, str) and mean == "linear"):
        return mean
    if isinstance(mean, str):
        raise ValueError(f'mean: expected None, "linear", a number, a Mean or a callable, got {mean!r}')
    mean = as_mean(mean)
    centre, scale = units.output_centre, units.output_scale
    if isinstance(mean, ConstantMean):
        return ConstantMean((mean.value.to(centre) - centre) / scale)
    if isinstance(mean, LinearMean):
        weights, bias = mean.weights.to(centre), mean.bias.to(centre)
        level = bias + weights @ units.input_centre  # [t]
        return LinearMean((weights * units.input_scale).expand(t, d) / scale[:, None], (level - centre) / scale)
    inner, (x_scale, x_centre) = mean, (units.input_scale, units.input_centre)

    def rescaled(x: Tensor) -> Tensor:
        value = inner.to(x.device, x.dtype)(x * x_scale.to(x) + x_centre.to(x))
        return (value - centre.to(x)) / scale.to(x)

    return CallableMean(rescaled)


def _say_constant_columns(X: Tensor, kernel: Kernel) -> None:
    if len(X) < 2:
        return
    used = kernel.active_dims(X.shape[1])
    constant: Sequence[int] = [i for i in used if bool((X[:, i] == X[0, i]).all())]
    if constant:
        which = f"column {constant[0]} of X is" if len(constant) == 1 else f"columns {constant} of X are"
        warnings.warn(
            f"{which} constant: the data say nothing of how the function varies there, and its lengthscale stays as "
            "given; remove the column if it is not needed",
            FitWarning,
            stacklevel=3,
        )
