"""Paths of several models at points of their own, in the launches of one: the polish of hundreds of small searches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ...models.means import ConstantMean
from ..chunked import of_some
from ..record import Record
from . import can, plan_of
from .plan import Fourier, Plan, RadialPlan


def joined_gradients(records: Sequence[Record], x: Tensor, of: Tensor) -> tuple[Tensor, Tensor] | None:
    """Values and gradients of path of[i], counted in the models' order, at x[i]: `[p, 1, d], [p] -> [p, 1, 1],
    [p, 1, 1, d]`; None where kernels do not serve these models, or they differ."""
    if len(records) < 2 or not all(can(record, x) for record in records):
        return None
    made, _ = records[0].derived(lambda _: (join(records), records), key=tuple(map(id, records)))
    return None if made is None else gradients_of(*made, x, of)


def gradients_of(plan: Plan, mean: Tensor, x: Tensor, of: Tensor) -> tuple[Tensor, Tensor]:
    from . import launch

    return of_some(lambda points: launch.sums_with_gradient(plan, points, mean, None), plan.num_paths, x, of)


def join(records: Sequence[Record]) -> tuple[Plan, Tensor] | None:
    """The plans of models that agree in kind as one, its paths in their order, and each path's mean `[s, 1, 1]`."""
    kinds = {_kind(record) for record in records}
    if len(kinds) > 1 or None in kinds:
        return None
    plans = [plan for record in records if (plan := plan_of(record)) is not None]
    fourier = [_fourier(parts) for parts in zip(*(plan.fourier for plan in plans), strict=True)]
    radial = [_radial(parts) for parts in zip(*(plan.radial for plan in plans), strict=True)]
    bases = [len(plan.fourier[0].theta) if fourier else 1 for plan in plans]
    origin = torch.cat([plan.origin.expand(count, -1) for plan, count in zip(plans, bases, strict=True)])
    means = [record.mean(record.origin[None, None]).expand(record.num_paths, 1, 1) for record in records]
    return Plan(sum(plan.num_paths for plan in plans), 1, origin, fourier, radial), torch.cat(means)


def _kind(record: Record) -> tuple[object, ...] | None:
    """What plans must agree in; None for models that cannot be joined: of several outputs, with transforms, a domain, a
    mean that is not constant, or Fourier terms of two kinds."""
    plan = plan_of(record)
    plain = record.input_transform is None and record.output_transform is None and record.domain is None
    constant = record.num_outputs == 1 and isinstance(record.mean, ConstantMean)
    if plan is None or not plain or not constant or len(plan.fourier) > 1:
        return None
    fourier = [(part.theta.shape[1], part.tau is None) for part in plan.fourier]
    return *fourier, *((part.kind, part.isotropic, part.centres.shape[1]) for part in plan.radial)


def _fourier(parts: Sequence[Fourier]) -> Fourier:
    groups, index, paths, bases = [], [], 0, 0
    for part in parts:
        groups += [[row + paths for row in rows] for rows in part.groups]
        index.append(part.index + bases)
        paths, bases = paths + len(part.index), bases + len(part.theta)
    taus = [part.tau for part in parts if part.tau is not None]
    theta, weights = torch.cat([part.theta for part in parts]), torch.cat([part.weights for part in parts])
    return Fourier(theta, torch.cat(taus) if taus else None, weights, groups, torch.cat(index))


def _radial(parts: Sequence[RadialPlan]) -> RadialPlan:
    counts = torch.tensor([len(part.weights) for part in parts], device="cpu")
    index = torch.arange(len(parts), dtype=torch.int32, device="cpu").repeat_interleave(counts)
    return replace(
        parts[0],
        centres=torch.stack([part.centres for part in parts]),
        units=torch.stack([part.units for part in parts]),
        weights=torch.cat([part.weights for part in parts]),
        index=index.to(parts[0].weights.device),
    )
