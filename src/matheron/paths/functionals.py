"""Linear functionals of paths: slopes, sums and averages of records, in a model's own space, and of functions."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..core.functionals import Functionals
from ..core.modes import in_graph
from ..core.sites import Sites
from ..evaluate import (
    MEMORY_BUDGET,
    Canonical,
    CanonicalSlopes,
    Record,
    WeightedSum,
    averaged_record,
    values,
    values_and_gradients,
)
from ..kernels import Kernel
from ..kernels.covariances import Averaged
from ..models.observations import Observations, is_observable
from ..models.observed_functionals import as_functionals, by_quadrature, check_observed, check_outputs, moved_inside
from ..models.transforms import Transform
from .update import coupled_weights

if TYPE_CHECKING:
    from .functions import EvaluableFunctions


def functionals_at(f: EvaluableFunctions, observed: Functionals | Sequence[Functionals]) -> Tensor:
    """The implementation of `f.at(observed)`: check a user's functionals and evaluate them for every path."""
    if not is_observable(observed):
        raise TypeError(
            f"observed: expected functionals of matheron.observe, got {type(observed).__name__}; paths(x) gives "
            "the values at points"
        )
    check_observed(observed, f.input_dim, f.input_names)
    like = torch.empty(0, dtype=f.dtype, device=f.device)
    functionals, _ = as_functionals(observed, "observed", partial(averaged, f), like)
    check_outputs(functionals, f.num_outputs)
    return functionals_of(f, functionals).squeeze(-1)


def functionals_of(f: EvaluableFunctions, functionals: Functionals) -> Tensor:
    """Functionals of every path, `[s, n, t]`, or `[s, n, 1]` where each of them is of one output."""
    if not len(functionals):
        outputs = f.num_outputs if functionals.outputs is None else 1
        return torch.empty(f.num_paths, 0, outputs, dtype=f.dtype, device=f.device)
    # the largest number of atoms that are evaluated together
    most = max(1, MEMORY_BUDGET // (8 * f.num_paths * f.num_outputs * (f.input_dim + 1)))
    firsts = torch.arange(0, len(functionals.weights), most, device=functionals.starts.device)
    rows = torch.searchsorted(functionals.starts, firsts)
    edges = sorted({0, *rows.tolist(), len(functionals)})
    blocks = [functionals[first:last] for first, last in itertools.pairwise(edges)]
    return torch.cat([_at_once(f, block) for block in blocks], dim=1)


def averaged(f: EvaluableFunctions, functionals: Functionals) -> Functionals:
    """Keep averages over boxes if these functions have them in closed form, and no graph needs their boxes; otherwise
    replace them by quadrature, which can be differentiated in the boxes."""
    closed = _has_averages(f) and not (torch.is_grad_enabled() and in_graph(functionals.boxes))
    return functionals if closed else by_quadrature(functionals, partial(functionals_of, f))


def _has_averages(f: EvaluableFunctions) -> bool:
    """Whether averages over boxes are known in closed form. There must be one record, and boxes must be boxes in its
    inner coordinates."""
    records = f._records()
    if records is None or len(records) > 1 or f.num_outputs > 1:
        return False
    (record,) = records
    inward, outward = record.input_transform, record.output_transform
    affine = inward is None or (inward.affine and inward.elementwise)
    affine = affine and (outward is None or outward.affine)
    return affine and record.derived(averaged_record, "averages") is not None


def _at_once(f: EvaluableFunctions, functionals: Functionals) -> Tensor:
    if functionals.sides is not None:
        (record,) = f._records() or []
        y = functionals_of_record(record, moved_inside(functionals, record.input_transform))[..., None]  # [s, n, 1]
        level = record.outer(torch.zeros_like(y))  # L(a f + b) = a L f + b L 1
        return record.outer(y) + (functionals.of_ones()[:, None] - 1) * level
    sites = functionals.sites
    graph = torch.is_grad_enabled() and (in_graph(sites.points) or f.requires_graph())
    if functionals.order > (0 if graph else 1):

        def at(some: Sites) -> Tensor:
            y = f._values(some.points[None])  # [s, m, t]
            y = y if some.outputs is None else some.own(y)[..., None]
            return y.transpose(0, 1).flatten(1)  # [m, s t]

        return functionals.features(at).unflatten(1, (f.num_paths, -1)).transpose(0, 1)
    each, place = functionals.distinct()
    if functionals.order:
        y, dy = f._values_and_gradients(each.points[None])  # [s, m, t], [s, m, t, d]
        y, dy = y[:, place], dy[:, place]
    else:
        y = f._values(each.points[None])[:, place]
        dy = y[..., None]
    if sites.outputs is not None:
        return functionals.of_gradients(y, dy)[..., None]
    of_each = [functionals.of_gradients(y[..., i : i + 1], dy[..., i : i + 1, :]) for i in range(y.shape[-1])]
    return torch.stack(of_each, dim=-1)


def functionals_of_record(record: Record, sites: Functionals) -> Tensor:
    """Functionals, in the model's own space, of a record's functions: `[s, n]`."""
    if sites.sides is not None:
        averages = record.derived(averaged_record, "averages")
        if averages is None:
            return functionals_of_record(record, by_quadrature(sites, partial(functionals_of_record, record)))

        def of_kind(part: Functionals) -> Tensor:
            known, at = (record, part) if part.sides is None else (averages, part.as_points())
            return functionals_of_record(known, at)

        return sites.of_parts(of_kind)
    if record.requires_grad or sites.order > 1 or (torch.is_grad_enabled() and in_graph(sites.points)):

        def at(some: Sites) -> Tensor:
            return some.own(values(record, some.points[None])).mT  # [m, s]

        return sites.features(at).mT

    def of_order(part: Functionals) -> Tensor:
        each, place = part.distinct()
        if not part.order:
            f = values(record, each.points[None])[:, place]
            return part.of_gradients(f, f[..., None])
        f, df = values_and_gradients(record, each.points[None])
        return part.of_gradients(f[:, place], df[:, place])

    return sites.of_parts(of_order)


def functional_terms(kernel: Kernel, sites: Functionals, v: Tensor) -> list[WeightedSum]:
    """sum_j v_j L_j k(., z) for functionals L_j as terms: their atoms are centres, by the order of the derivative."""
    atoms = (v if sites.alone else v[:, sites.rows]) * sites.weights  # [s, N]
    terms = []
    for order, at in sites.parts():
        z, outputs = sites.points[at], sites.sites.outputs
        outputs, box = None if outputs is None else outputs[at], _is_of_boxes(sites, at)
        for B, k in kernel.coupled():
            k, z = (Averaged(k, sites.input_dim), sites.boxes[at]) if box else (k, z)
            W = coupled_weights(B, outputs, kernel.num_outputs, atoms[:, at])
            basis = Canonical(k, z) if order == 0 else CanonicalSlopes(k, z, sites.directions[at, :order])
            terms.append(WeightedSum(basis, W))
    return terms


def _is_of_boxes(sites: Functionals, at: slice | Tensor) -> bool:
    """Whether these atoms, which are all of one kind, are averages over boxes."""
    return sites.sides is not None and bool((sites.sides[at] != 0).any())


def undone(transform: Transform, t: int, data: Observations) -> Observations:
    """Convert targets and noise to the space before the output transform. Each observation has the transform of its own
    output.

    For functionals the transform must be affine.
    """
    sites, y, noise = data
    if isinstance(sites, Functionals):
        if not transform.affine:
            raise TypeError(
                "X: under an output transform that is not affine slopes, sums and averages are not linear in the "
                "model's own function; observe values, or give the data in the model's units"
            )
        zero = y.new_zeros(len(sites), t)
        scale, level = sites.own(transform.derivative(zero)), sites.own(transform(zero))
        return Observations(sites, (y - sites.of_ones() * level) / scale, noise / scale.square())
    if not transform.affine and bool((noise > 0).any()):
        raise ValueError("noise: under an output transform that is not affine only noise-free data (0) can be undone")
    inner = transform.inverse(y[..., None].expand(*y.shape, t))  # [..., n, t]
    slope = transform.derivative(inner)
    inner, slope = sites.own(inner), sites.own(slope)
    # where there is noise, the transform is affine and its slope is constant
    slope = slope if slope.ndim == 1 else slope[0]
    return Observations(sites, inner, torch.where(noise > 0, noise / slope.square(), noise))
