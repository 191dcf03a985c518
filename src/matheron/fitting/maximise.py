"""fit: hyperparameters of a kernel, noise and mean by maximum likelihood, with optional priors."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypedDict, Unpack, cast, overload

import torch
from torch import Tensor

from ..core.checks import ArrayLike, Names, as_count, as_tensor, seeded
from ..core.functionals import Functionals, Observed
from ..core.sites import Sites
from ..kernels import RBF, Kernel, Matern, Scaled, coupled_diagonal
from ..kernels.covariances import averages_in_closed_form
from ..kernels.own import as_kernel
from ..models import ExactGP, LatentGP
from ..models.likelihoods import Likelihood
from ..models.means import Mean
from ..models.observations import is_observable
from ..models.observed_functionals import by_quadrature, moved_inside, prior_variance
from ..solvers import Solver, as_solver
from .hyperparameters import NoiseBlocks, Prior, Units, default_kernel_priors, standardised_mean, standardising
from .laplace import fit_outcomes, fits_scale
from .search import FitWarning, maximised


class FitSettings(TypedDict, total=False):
    """The settings of `fit`, by name."""

    noise: ArrayLike | Sequence[ArrayLike] | None
    mean: Mean | ArrayLike | Callable[[Tensor], Tensor] | str | None
    tasks: ArrayLike | None
    priors: Mapping[str, Prior] | None
    num_starts: int
    num_data: int | Literal["auto"] | None
    solver: str | Solver
    seed: int | torch.Generator | None
    progress: bool


@overload
def fit(
    kernel: Kernel | None,
    X: ArrayLike | Functionals | Sequence[Functionals],
    y: ArrayLike | Sequence[ArrayLike],
    *,
    likelihood: None = None,
    **settings: Unpack[FitSettings],
) -> ExactGP: ...
@overload
def fit(
    kernel: Kernel | None, X: ArrayLike, y: ArrayLike, *, likelihood: Likelihood, **settings: Unpack[FitSettings]
) -> LatentGP: ...
@overload
def fit(
    kernel: Kernel | None,
    X: ArrayLike,
    y: ArrayLike,
    *,
    likelihood: Likelihood | None,
    **settings: Unpack[FitSettings],
) -> ExactGP | LatentGP: ...
@seeded
@torch.inference_mode(False)  # gradients are needed even if the caller is in inference mode
def fit(
    kernel: Kernel | None,
    X: ArrayLike | Functionals | Sequence[Functionals],
    y: ArrayLike | Sequence[ArrayLike],
    *,
    likelihood: Likelihood | None = None,
    noise: ArrayLike | Sequence[ArrayLike] | None = None,
    mean: Mean | ArrayLike | Callable[[Tensor], Tensor] | str | None = None,
    tasks: ArrayLike | None = None,
    priors: Mapping[str, Prior] | None = None,
    num_starts: int = 4,
    num_data: int | Literal["auto"] | None = "auto",
    solver: str | Solver = "auto",
    seed: int | torch.Generator | None = None,
    progress: bool = False,
) -> ExactGP | LatentGP:
    """Fit a Gaussian process to data: every hyperparameter of a kernel expression, the noise and the mean.

    Inputs and targets are standardised inside. The returned model has its kernel in standardised units, with
    transforms to and from the user's units, so that paths drawn from it take and return the user's units.
    `matheron.summary(gp)` prints its hyperparameters in the user's units, and how good the fit is. Columns that share a
    hyperparameter (one lengthscale for several) share a scale; give a lengthscale per column where columns have
    different units.

    Args:
        kernel: any expression of `matheron.kernels`. Its numbers, in the user's units, are one of the starting points.
            A number that is zero stays zero. A kernel without a scale has the variance of the targets. None is a
            Matern-5/2 with a lengthscale per column and a scale, with the priors of `fitting.default_kernel_priors`.
        X, y, tasks: data as for `ExactGP`. NaN and infinite values are refused: remove those rows first. In place of
            points, X may be functionals of `matheron.observe`, one block or a list of blocks.
        likelihood: one of `matheron.likelihoods`, if y are outcomes: counts, classes, or measurements with outliers.
            The fit then maximises the evidence of Laplace's approximation and returns a `LatentGP`, as
            `matheron.approximate` does. Only inputs are standardised, the mean is on the scale of the link, and `noise`
            and `tasks` are refused. At most 2000 outcomes are used with num_data="auto", and `solver` is that of
            `approximate`.
        noise: the known variance of the noise, one number or one per observation. None fits one variance, or one per
            task, or one per block of functionals, and each is at least 1e-6 of the targets' variance.
        mean: None fits a constant (one per task), and "linear" a linear function. A number, a Mean or a callable is
            kept as given, in the user's units.
        priors: a mapping from the name of a hyperparameter ("lengthscale", "noise", or in full "parts.0.lengthscale")
            to its prior. A prior is a torch distribution, or a function from values to their log density, in
            standardised units. The fit maximises log likelihood + log density. None means maximum likelihood, with weak
            priors (`fitting.weak_priors`) if there are fewer observations than hyperparameters. An empty mapping always
            means maximum likelihood.
        num_starts: how many starts the search is chosen from. For each there are several candidates, with much and
            little noise, short lengthscales, periods of a periodogram, and random numbers. The likeliest three get a
            few iterations, and the search goes on from the best of all. With up to 256 observations, it goes on from
            the best `num_starts`. With 1, the search starts from the kernel's own
            numbers and draws no random numbers. A second search follows, from a start with more or less noise, if a few
            iterations show that it may end higher.
        num_data: how many observations the hyperparameters are fitted to; the returned model holds all of them. A
            quarter of that number is chosen at random, and the others are their nearest neighbours, which show noise
            and short lengthscales. None uses all observations. "auto" uses all observations on a GPU, on a lattice,
            with a `solver` other than "auto", and otherwise at most 4000, with a `FitWarning` if there are more.
        solver: "cholesky" uses exact gradients from dense factors. "cg", or a value such as
            `matheron.solvers.PCG(tolerance=0.05)`, never forms the covariance: gradients are estimated from solves with
            random probes, in float32 on a GPU. "lattice" does the same on a Fourier lattice, in up to 3 dimensions, at
            a cost per step that does not depend on the number of observations. "auto" is "cholesky" for up to 8000
            observations (32,000 on a GPU, as far as its memory goes), and "cg" beyond. If the model fits on a lattice,
            "auto" is "lattice" from 4000 observations on (on a GPU from 10,000 in one dimension and 20,000 in more).
        seed: a whole number or a generator, for the random starts and the choice of `num_data` observations; None is
            torch's default generator.
        progress: show a bar with the estimated share of the work that is done and the estimated time left. Interrupting
            the fit (Ctrl-C) then ends the search and keeps the best hyperparameters found so far, with a `FitWarning`.
            Without the bar an interrupt is raised as usual.

    >>> import torch, matheron
    >>> from matheron import kernels
    >>> X = torch.linspace(0, 10, 30, dtype=torch.float64)[:, None]
    >>> gp = matheron.fit(2.0 * kernels.RBF(1.0), X, 50 + 3 * torch.sin(X[:, 0]), seed=0)
    >>> paths = matheron.draw(gp, 8)
    >>> bool((paths(X).mean(0) - 50 - 3 * torch.sin(X[:, 0])).abs().max() < 0.05)
    True

    Hyperparameters from 20 of the observations, and a model of all 30:

    >>> matheron.fit(2.0 * kernels.RBF(1.0), X, torch.sin(X[:, 0]), num_data=20, seed=0).num_data
    30
    """
    as_solver(solver)
    num_starts = as_count(num_starts, "num_starts")
    if isinstance(num_data, str) and num_data != "auto":
        raise ValueError(f'num_data: expected a number of observations, "auto" or None for all, got {num_data!r}')
    if num_data is not None and num_data != "auto":
        num_data = as_count(num_data, "num_data")
    if likelihood is not None:
        if noise is not None or tasks is not None:
            which = "tasks" if noise is None else "noise"
            raise ValueError(
                f"{which}: expected none with a likelihood, which has the distribution of outcomes; leave it out"
            )
        if is_observable(X):
            raise TypeError("X: expected points [n, d] with a likelihood, got functionals; leave likelihood out")
    default_priors = priors is None
    if kernel is None:
        if is_observable(X):
            d = _dimension(X)
        else:
            shape = as_tensor(cast(ArrayLike, X), "X").shape
            d = max(1, shape[1]) if len(shape) == 2 else 1  # other shapes raise an error in ExactGP
        kernel = Scaled(Matern(2.5, torch.ones(d, dtype=torch.float64, device="cpu")), 1.0)
        if priors is None:
            has_noise = noise is None if likelihood is None else fits_scale(likelihood)
            usual = default_kernel_priors(d).items()
            priors = {name: prior for name, prior in usual if name != "noise" or has_noise}
    if likelihood is not None:
        return fit_outcomes(
            as_kernel(kernel),
            cast(ArrayLike, X),
            cast(ArrayLike, y),
            likelihood,
            mean=mean,
            priors=priors,
            default_priors=default_priors,
            num_starts=num_starts,
            num_data=num_data,
            solver=solver,
            seed=seed,
            progress=progress,
        )
    if is_observable(X):
        closed = averages_in_closed_form(kernel, _dimension(X))
        X = X if closed else _with_nodes(X)
    # checks the arguments, and makes one row for each observation
    data = ExactGP(kernel, X, y, 0.0 if noise is None else noise, tasks=tasks)
    user_X, user_y = _apart(data.sites.points), _apart(data.train_targets)
    dtype, blocks = data.sites.points.dtype, None
    if is_observable(X):
        units = standardising(kernel, user_X, user_y[:1].expand(len(user_X)), None)  # the units of the inputs only
        sites = Functionals.of(data.sites).double().mapped(torch.detach)
        sites = observed = moved_inside(sites, units.transforms()[0].to(user_X))
        units, blocks = _units_of_functionals(units, sites, user_y, _rows_of(X), len(user_y))
        ones, tasks = sites.of_ones(), None
    else:
        units = standardising(kernel, user_X, user_y, data.tasks)
        sites = Sites((user_X - units.input_centre) / units.input_scale, data.tasks)
        observed, ones, tasks = sites.points, torch.ones_like(user_y), data.tasks
    _check_scale(units.output_scale)
    _say_constant_columns(_compared(data.sites), kernel, data.input_names)
    if len(user_y) > 1 and not is_observable(X) and bool((user_y == user_y[0]).all()):
        warnings.warn("y is constant, so the fitted hyperparameters are not meaningful", FitWarning, stacklevel=4)
    of = torch.zeros(len(user_y), dtype=torch.long, device=user_y.device) if sites.outputs is None else sites.outputs
    model_y = (user_y - units.output_centre[of] * ones) / units.output_scale[of]  # [n]
    fitted_kernel, fitted_noise, fitted_mean = maximised(
        kernel,
        observed,
        model_y,
        noise=None if noise is None else _apart(data.noise) / units.output_scale[of].square(),
        mean=standardised_mean(mean, units),
        tasks=sites.outputs,
        priors=priors,
        num_starts=num_starts,
        num_data=num_data,
        units=units,
        blocks=blocks,
        solver=solver,
        seed=seed,
        progress=progress,
    )
    inward, outward = units.transforms()
    return ExactGP(
        fitted_kernel,
        observed if isinstance(observed, Functionals) else observed.to(dtype),
        model_y.to(dtype),
        fitted_noise.to(dtype),
        fitted_mean,
        tasks,
        input_transform=inward,
        output_transform=outward,
    ).replaced(input_names=data.input_names)


def _with_nodes(X: Any, shortest: float = 0.1) -> Any:
    """Functionals whose averages over boxes have nodes for lengthscales down to this share of the points' spread.

    The kernel that is given is only where the search starts, in units that may be far from the data's.
    """
    ends = torch.cat(list(_ends(X)))
    spread = ends.amax(0) - ends.amin(0)
    kernel = RBF(shortest * torch.where(spread > 0, spread, 1.0))

    def resolved(part: Any) -> Any:
        if isinstance(part, list | tuple):
            return [resolved(each) for each in part]
        return by_quadrature(part, lambda functionals: prior_variance(kernel, functionals.double()))

    return resolved(X)


def _ends(X: Any) -> Iterator[Tensor]:
    """The points of functionals, and corners of boxes, `[N, d]` each."""
    if isinstance(X, list | tuple):
        for part in X:
            yield from _ends(part)
    elif isinstance(X, Functionals):
        yield X.points.double()
        if X.sides is not None:
            yield X.points.double() - X.sides.double() / 2
            yield X.points.double() + X.sides.double() / 2


def _rows_of(X: object) -> list[int]:
    """How many rows each block of functionals has."""
    if not isinstance(X, list | tuple):
        return [len(cast(Functionals, X))]
    return [sum(_rows_of(part)) for part in X]


def _dimension(X: object) -> int:
    """The dimension of the points of functionals."""
    while isinstance(X, list | tuple):
        X = next((part for part in X if is_observable(part)), X[0])
    return cast(Functionals, X).input_dim


def _units_of_functionals(
    units: Units, sites: Functionals, y: Tensor, rows: list[int], n: int
) -> tuple[Units, NoiseBlocks]:
    """The targets' scale, in which slopes are y / x and integrals y x, and a variance of noise for each block.

    A functional's own size is its standard deviation under an RBF kernel with lengthscale and variance one in the
    model's inputs. Targets over these sizes have the scale of values, and a block's noise has the square as its unit.
    """
    sizes = coupled_diagonal(RBF(1.0).to(y), sites.of_outputs(None)).clamp_min(1e-300)  # [n]
    ones, t = sites.of_ones(), len(units.output_scale)
    of = torch.zeros(n, dtype=torch.long, device=y.device) if sites.outputs is None else sites.outputs
    centre, scale = y.new_zeros(t), y.new_ones(t)
    for i in range(t):
        own = of == i
        weight = (ones / sizes)[own]
        if bool((weight != 0).any()):
            centre[i] = (weight * y[own]).sum() / (weight * ones[own]).sum()
        spread = (
            ((y - centre[i] * ones)[own].square() / sizes[own]).mean().sqrt() if bool(own.any()) else y.new_zeros(())
        )
        scale[i] = torch.where(spread > 1e-13 * centre[i].abs(), spread, 1.0)
    index = torch.repeat_interleave(torch.arange(len(rows), device=y.device), torch.tensor(rows, device=y.device))
    index = index.repeat_interleave(n // len(index))  # all outputs of a row belong to the row's block
    sums = y.new_zeros(len(rows)).index_add(0, index, sizes)
    unit = (sums / index.bincount(minlength=len(rows)))[index]
    return units._replace(output_centre=centre, output_scale=scale), NoiseBlocks(index, unit)


def _apart(value: Tensor) -> Tensor:
    """The numbers in float64, of no graph and no inference mode of the caller's."""
    return value.detach().double().clone()


def _check_scale(scale: Tensor) -> None:
    wrong = scale[(scale < 1e-150) | (scale > 1e150)]
    if len(wrong):
        raise ValueError(
            "y: expected targets with a standard deviation from 1e-150 to 1e150, whose square a float64 can hold, got "
            f"{float(wrong[0]):.3g}; use other units"
        )


def _compared(sites: Observed) -> Tensor:
    """Points `[m, d]` between which data show differences: a slope compares points nearby, and an average those of a
    box."""
    if not isinstance(sites, Functionals):
        return sites.points
    steps = [*sites.directions.unbind(1), *([] if sites.sides is None else [sites.sides])]
    return torch.cat([sites.points, *(sites.points + step for step in steps)])


def _say_constant_columns(X: Tensor, kernel: Kernel, names: Names) -> None:
    same = [i for i in kernel.active_dims(X.shape[1]) if bool((X[:, i] == X[0, i]).all())]
    constant = same if names is None else [names[i] for i in same]
    if constant and len(X) > 1:
        which = f"column {constant[0]!r} of X is" if len(constant) == 1 else f"columns {constant} of X are"
        warnings.warn(
            f"{which} constant: the data have no information about how the function varies there, and its lengthscale "
            "stays as given; remove the column if it is not needed",
            FitWarning,
            stacklevel=5,
        )
