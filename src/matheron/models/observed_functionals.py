"""Observations of functionals (slopes, sums, averages) that models and paths are given, checked, with targets and
noise."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from ..core.checks import ArrayLike, Names, as_noise, as_tensor, check_names, common_names, level_outside, names_of
from ..core.functionals import Functionals, Observed
from ..kernels import Kernel, coupled_diagonal
from ..kernels.covariances import averages_in_closed_form, least_smoothness
from .means import ConstantMean, LinearMean, Mean
from .observations import Averaging, Observations, is_observable
from .observe import QuadratureWarning, stack
from .transforms import Transform


def as_observed(
    X: object,
    y: object,
    noise: object,
    tasks: ArrayLike | None,
    t: int,
    averaged: Averaging,
    num_paths: int | None,
    like: Tensor | None,
) -> Observations:
    """Check observations of functionals, which may be several blocks, each with its targets and its noise."""
    if tasks is not None:
        raise ValueError(
            "tasks: expected none with functionals; name the output in each, as in observe.value(X, output=1)"
        )
    functionals, counts = as_functionals(X, "X", averaged, like)
    check_outputs(functionals, t)
    several = t > 1 and functionals.outputs is None
    each = t if several else 1
    in_blocks = isinstance(X, list | tuple) and len(counts) > 1
    points, n = functionals.points, len(functionals)
    targets = _joined_blocks(y, [count * each for count in counts] if in_blocks else [n * each], points, num_paths)
    if targets.shape != (n * each,) and (num_paths is None or targets.shape != (num_paths, n * each)):
        wanted = f"[{n * each}], one number per functional" + (f" and output ({t})" if several else "")
        raise ValueError(f"y: expected {wanted}, got {list(targets.shape)}")
    if in_blocks and isinstance(noise, list | tuple) and len(noise) == len(counts):
        variance = torch.cat([_variances(own, m * each, points) for own, m in zip(noise, counts, strict=True)])
    else:
        variance = _variances(noise, n * each, points)
    if several:
        functionals = of_every_output(functionals, t)
    values = (
        functionals.alone
        and functionals.order == 0
        and functionals.sides is None
        and bool((functionals.weights == 1).all())
    )
    return Observations(functionals.sites if values else functionals, targets, variance)


def _variances(noise: object, count: int, like: Tensor) -> Tensor:
    """Noise variances `[count]`; those of gradients may be `[n, d]`, as their targets."""
    given = as_tensor(cast(ArrayLike, noise), "noise", like=like)
    return as_noise(given.flatten() if given.numel() == count else given, count, like=like)


def _joined_blocks(y: object, counts: list[int], like: Tensor, num_paths: int | None) -> Tensor:
    """Targets `[n]` or `[s, n]`, from one tensor or a list of one for each block; gradients may be `[n, d]`."""
    if not isinstance(y, list | tuple) or not 1 < len(y) == len(counts) != sum(counts):
        return _flat_targets(as_tensor(cast(ArrayLike, y), "y", like=like), sum(counts), num_paths)
    found = []
    for i, (own, count) in enumerate(zip(y, counts, strict=True)):
        flat = _flat_targets(torch.atleast_1d(as_tensor(own, f"y[{i}]", like=like)), count, num_paths)
        if flat.shape[-1] != count:
            raise ValueError(f"y[{i}]: expected {count} numbers, one per functional, got {list(flat.shape)}")
        found.append(flat)
    rows = max(flat.ndim for flat in found)
    return torch.cat([flat.expand(num_paths, -1) if flat.ndim < rows and num_paths else flat for flat in found], -1)


def _flat_targets(y: Tensor, count: int, num_paths: int | None) -> Tensor:
    """`[n]` or `[s, n]`: gradients `[n, d]`, or targets `[n, t]` of all outputs, in one row."""
    if y.ndim >= 2 and (num_paths is None or y.shape[0] != num_paths or y.numel() == count):
        return y.flatten()
    return y.flatten(1) if y.ndim > 2 else y


def prior_variance(kernel: Kernel, functionals: Functionals) -> Tensor:
    """The prior variance `[n]`. For several outputs it is that of the first kernel that they share."""
    if kernel.num_outputs > 1:
        functionals, kernel = functionals.of_outputs(None), kernel.coupled()[0][1]
    return coupled_diagonal(kernel.to(functionals.points.device, functionals.points.dtype), functionals)


def check_smooth(kernel: Kernel, sites: Observed) -> None:
    """Raise a TypeError if derivatives are observed that functions of the kernel do not have."""
    if not isinstance(sites, Functionals) or not sites.order:
        return
    smoothness = least_smoothness(kernel, list(sites.directions.unbind(1)))
    if sites.order > smoothness:
        has = "none" if smoothness == 0 else f"{smoothness:.0f} of them"
        raise TypeError(
            f"X: expected observations that functions of {kernel!r} have, got derivatives of order {sites.order}: they "
            f"have {has} in the mean square along these coordinates. Use a smoother kernel, such as Matern(2.5) or "
            "RBF(), or differences of values, observe.combine(points, weights)"
        )


def names_outputs(X: object) -> bool:
    """Whether some of these functionals are of one output that they name."""
    return any(part.outputs is not None for part in _each(X))


def as_functionals(X: Any, name: str, averaged: Averaging, like: Tensor | None = None) -> tuple[Functionals, list[int]]:
    """Functionals from what a user gives, one or a list, and how many rows each of a list has.

    The names of columns are left out: models and paths have them.
    """
    parts: list[Functionals] = []
    for part in X if isinstance(X, list | tuple) else [X]:
        if not is_observable(part):
            raise TypeError(
                f"{name}: expected functionals of matheron.observe throughout, got {type(part).__name__} among them; "
                "wrap points in observe.value(X)"
            )
        whole = stack(part) if isinstance(part, list | tuple) else cast(Functionals, part)
        whole = whole if like is None else whole.to(like.device, like.dtype)
        parts.append(whole if whole.sides is None else averaged(whole))
    whole = stack(parts)
    return whole if whole.input_names is None else whole.replaced(input_names=None), [len(part) for part in parts]


def averaged_by(kernel: Kernel, mean: object) -> Averaging:
    """Keep averages over boxes if the kernel and the mean have them in closed form, and otherwise replace them by
    quadrature."""

    def averaged(functionals: Functionals) -> Functionals:
        affine = not isinstance(mean, Mean | Callable) or isinstance(mean, ConstantMean | LinearMean)
        if affine and averages_in_closed_form(kernel, functionals.input_dim):
            return functionals
        return by_quadrature(functionals, partial(prior_variance, kernel))

    return averaged


def by_quadrature(
    functionals: Functionals,
    values_of: Callable[[Functionals], Tensor],
    tolerance: float = 1e-6,
    num_boxes: int = 8,
    most_nodes: int = 4096,
) -> Functionals:
    """Replace averages over boxes by sums over quadrature nodes. There are as few nodes as give values_of `[.., m]` to
    a tolerance, relative to its largest number.

    Args:
        values_of: a number for each functional, or several: its variance under a kernel, or values of functions.
        num_boxes: how many boxes, the largest, this is tried for.
        most_nodes: in all dimensions together.
    """
    if functionals.sides is None or not len(functionals):
        return functionals
    d, size = functionals.input_dim, functionals.sides.sum(-1)  # a transform may leave a side without length
    largest = size.topk(min(num_boxes, int((size > 0).sum()))).indices
    alone = torch.arange(len(largest), device=largest.device)
    some = functionals.atoms(largest, alone).replaced(weights=torch.ones_like(size[largest]))
    count, error, before = 1, float("inf"), values_of(some.by_nodes(1))
    while (2 * count) ** d <= most_nodes:
        after = values_of(some.by_nodes(2 * count))
        scale = float(after.detach().abs().max().clamp_min(1e-300))
        error, before = float((after - before).detach().abs().max()) / scale, after
        count *= 2
        if error <= tolerance:
            return functionals.by_nodes(count)
    warnings.warn(
        f"averages over boxes: with {count} quadrature nodes in each dimension they still change by {error:.1e} of "
        "the largest when the nodes are halved; smaller boxes are more precise, and their sums are integrals, too",
        QuadratureWarning,
        stacklevel=level_outside(),
    )
    return functionals.by_nodes(count)


def moved_inside(sites: Functionals, transform: Transform | None) -> Functionals:
    """Functionals of f(T(.)), T an input transform, as functionals of f: slopes by the chain rule."""
    x = sites.points
    if transform is None:
        return sites
    if sites.order == 0 and sites.sides is None:
        return sites.moved(transform(x), None)
    if sites.order > 1 and not transform.affine:
        raise TypeError(
            "X: second derivatives under an input transform that is not affine are not second derivatives of the "
            "model's own function; use first derivatives, or give the data in the model's units"
        )
    inner = transform(x)  # [N, e]
    identity = torch.eye(inner.shape[-1], dtype=x.dtype, device=x.device)
    return sites.moved(inner, transform.vjp(x, identity.expand(len(x), -1, -1)))  # [N, e, d]


def of_every_output(functionals: Functionals, num_outputs: int) -> Functionals:
    """Functionals that name no output, of every output in turn."""
    n, device = len(functionals), functionals.points.device
    if num_outputs == 1 or functionals.outputs is not None:
        return functionals
    repeated = functionals[torch.arange(n, device=device).repeat_interleave(num_outputs)]
    return repeated.of_outputs(torch.arange(num_outputs, device=device).repeat(n))


def check_observed(X: object, input_dim: int, names: Names) -> None:
    """Raise a ValueError if functionals have another number of inputs, or belong to other columns of a table."""
    for part in _each(X):
        if part.input_dim != input_dim:
            raise ValueError(f"x: expected functionals in {input_dim} dimensions, got {part!r}")
        check_names(part, "points", names)


def names_of_inputs(X: object) -> Names:
    """The names of the columns of points in a table, or in functionals that were made of one."""
    return common_names(_each(X)) if is_observable(X) else names_of(X)


def _each(X: object) -> Iterator[Functionals]:
    """The functionals in what a user gives, one or a list."""
    if isinstance(X, Functionals):
        yield X
    elif isinstance(X, list | tuple):
        for part in X:
            yield from _each(part)


def check_outputs(functionals: Functionals, num_outputs: int) -> None:
    """Raise a ValueError if functionals are of outputs that the functions do not have."""
    outputs = functionals.sites.outputs
    if outputs is None:
        return
    if num_outputs == 1:
        raise ValueError("output: given, but the functions have one output; leave it out")
    if bool((outputs >= num_outputs).any()):
        raise ValueError(f"output: expected numbers from 0 to {num_outputs - 1}, got up to {int(outputs.max())}")
