"""Paths of several models at points of their own, in the launches of one: the polish of hundreds of small searches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...means import ConstantMean
from ..chunked import of_some
from ..record import Record
from . import can, plan_of
from .plan import Fourier, Plan, Radial


@dataclass(eq=False)
class Joined:
    """The plans of several models as one, whose paths are in the models' order, and each path's mean `[s, 1, 1]`."""

    plan: Plan
    mean: Tensor

    def values_and_gradients(self, x: Tensor, of: Tensor) -> tuple[Tensor, Tensor]:
        """Of path of[i] at x[i]: `[p, 1, d], [p] -> [p, 1, 1], [p, 1, 1, d]`."""
        from . import launch

        return of_some(lambda p: launch.sums_with_gradient(self.plan, p, self.mean, None), self.plan.num_paths, x, of)


def joined_plan(records: Sequence[Record], x: Tensor) -> Joined | None:
    """The records as one plan for points `[p, 1, d]`, read once; None where kernels do not serve, or they differ."""
    if len(records) < 2 or not all(can(record, x) for record in records):
        return None
    made, _ = records[0].derived(lambda _: (join(records), records), key=tuple(map(id, records)))
    return made


def join(records: Sequence[Record]) -> Joined | None:
    """Models of one output and a constant mean, without transforms, whose plans have parts of the same kinds."""
    for record in records:
        plain = record.input_transform is None and record.output_transform is None and record.domain is None
        if not plain or record.num_outputs > 1 or not isinstance(record.mean, ConstantMean):
            return None
    plans = [plan for record in records if (plan := plan_of(record)) is not None]
    if len(plans) < len(records) or len({(len(plan.fourier), len(plan.radial)) for plan in plans}) > 1:
        return None
    fourier = [_fourier(parts) for parts in zip(*(plan.fourier for plan in plans), strict=True)]
    radial = [_radial(parts) for parts in zip(*(plan.radial for plan in plans), strict=True)]
    if any(part is None for part in (*fourier, *radial)) or len(fourier) > 1:
        return None
    bases = [len(plan.fourier[0].theta) if fourier else 1 for plan in plans]
    origin = torch.cat([plan.origin.expand(count, -1) for plan, count in zip(plans, bases, strict=True)])
    mean = torch.cat([record.mean(plan.origin[None, None]).expand(record.num_paths, 1, 1)
                      for record, plan in zip(records, plans, strict=True)])  # fmt: skip
    counts = [plan.num_paths for plan in plans]
    kept = [part for part in fourier if part is not None], [part for part in radial if part is not None]
    return Joined(Plan(sum(counts), 1, origin, *kept), mean)


def _fourier(parts: Sequence[Fourier]) -> Fourier | None:
    if len({(part.theta.shape[1], part.tau is None) for part in parts}) > 1:
        return None
    groups, index, paths, bases = [], [], 0, 0
    for part in parts:
        groups += [[row + paths for row in rows] for rows in part.groups]
        index.append(part.index + bases)
        paths, bases = paths + len(part.index), bases + len(part.theta)
    tau = torch.cat([part.tau for part in parts if part.tau is not None]) if parts[0].tau is not None else None
    return Fourier(
        torch.cat([part.theta for part in parts]),
        tau,
        torch.cat([part.weights for part in parts]),
        groups,
        torch.cat(index),
    )


def _radial(parts: Sequence[Radial]) -> Radial | None:
    if len({(part.kind, part.isotropic, part.centres.shape[1]) for part in parts}) > 1:
        return None
    counts = torch.tensor([len(part.weights) for part in parts])
    index = torch.arange(len(parts), dtype=torch.int32).repeat_interleave(counts)
    return Radial(
        parts[0].kind,
        parts[0].isotropic,
        torch.stack([part.centres for part in parts]),
        torch.stack([part.units for part in parts]),
        torch.cat([part.weights for part in parts]),
        index.to(parts[0].weights.device),
    )
