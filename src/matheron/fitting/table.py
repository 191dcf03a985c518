"""summary: a model's hyperparameters in the user's units, as a table that prints."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..core.checks import many
from ..kernels import Coregional, Kernel, Periodic, Product, Rotated, SpectralMixture
from ..models import ExactGP, LatentGP, Outputs
from ..models.means import ConstantMean, LinearMean
from ..models.transforms import Affine
from .evidence import LeaveOneOut, scores
from .hyperparameters import Buffer, Units, buffers

# With more observations than this, a summary does not factor the covariance to compute the likelihood.
_LARGEST_FACTOR = 5000


@dataclass(frozen=True)
class Summary:
    """Hyperparameters by label, the log marginal likelihood of the data, and how good the fit is.

    Units are the user's. The fit is judged by how well each observation is predicted from all the others. The last two
    are None where there are too many data for a dense factor.

    >>> import matheron
    >>> from matheron import kernels
    >>> gp = matheron.ExactGP(kernels.RBF(0.3), X=[[0.0], [0.5], [1.0]], y=[0.0, 1.0, 0.0], noise=1e-2)
    >>> "noise" in str(matheron.summary(gp))
    True
    """

    title: str
    rows: dict[str, float] = field(default_factory=dict)
    log_likelihood: float | None = None
    leave_one_out: LeaveOneOut | None = None

    def __str__(self) -> str:
        width = max(map(len, self.rows), default=0)
        lines = [self.title, *(f"  {label:<{width}}  {value:.4g}" for label, value in self.rows.items())]
        if self.log_likelihood is not None:
            lines.append(f"  log marginal likelihood {self.log_likelihood:.2f}")
        if self.leave_one_out is not None:
            scores = self.leave_one_out.lines()
            lines += [f"  leave-one-out{f'[{i}]' if len(scores) > 1 else ''}: {s}" for i, s in enumerate(scores)]
        return "\n".join(lines)

    __repr__ = __str__


def summary(gp: ExactGP | LatentGP | Outputs, names: Sequence[str] | None = None) -> Summary:
    """The hyperparameters of a model in the user's units, its likelihood, and how good the fit is.

    For that, each observation is predicted from all the others (`leave_one_out`): the root mean square error, R^2, and
    the share of observations that their 95% intervals cover. For more than 5000 observations neither these nor the
    likelihood are computed.

    Lengthscales and periods are in the units of their columns, variances in the targets' squared. Polynomial's offset
    stays in standardised units, in which alone it has a meaning. Lengthscales of a `Rotated` kernel are along its
    angle, in degrees counter-clockwise from the first axis, and across it. Of independent `Outputs`, each model's rows
    are listed, and the log likelihood is the sum of theirs.

    Args:
        gp: what `matheron.fit` returned, or any `ExactGP` whose transforms are affine, or `Outputs` of such models; of
            a `LatentGP` the likelihood is Laplace's, and the outcomes are predicted.
        names: of the columns of X; where not given those of the table that X was, or x0, x1, ...

    >>> import torch, matheron
    >>> from matheron import kernels
    >>> X = torch.linspace(0, 10, 40, dtype=torch.float64)[:, None]
    >>> gp = matheron.fit(2.0 * kernels.RBF(1.0), X, 50 + 3 * torch.sin(X[:, 0]), noise=1e-2, seed=0)
    >>> print(matheron.summary(gp, names=["time"]))  # doctest: +ELLIPSIS
    RBF, 40 observations in 1 dimension
      RBF.outputscale     ...
      RBF.lengthscale     ...
      noise standard dev  0.1
      mean                ...
      log marginal likelihood ...
      leave-one-out: RMSE ..., R^2 1, 95% intervals cover 100.0%
    """
    if isinstance(gp, Outputs):
        return _of_outputs(gp, names)
    if not isinstance(gp, ExactGP | LatentGP):
        raise TypeError(f"gp: expected an ExactGP, or Outputs of these, got {type(gp).__name__}")
    expression, what = expression_name(gp.kernel), "observation"
    if isinstance(gp, ExactGP):
        rows = _rows(gp, names)
    else:
        expression, what = f"{expression} under {type(gp.likelihood).__name__}", "outcome"
        rows = _rows(gp.gaussian, names, noise=False)
        for name, number in gp.likelihood._buffers.items():
            if number is not None and number.ndim == 0:
                _put(rows, f"{type(gp.likelihood).__name__}.{name}", float(number))
    value = left_out = None
    if gp.num_data <= _LARGEST_FACTOR:
        with torch.no_grad():
            value, left_out = scores(gp)
    title = f"{expression}, {many(gp.num_data, what)} in {many(gp.input_dim, 'dimension')}"
    return Summary(title, rows, None if value is None else float(value), left_out)


def _rows(gp: ExactGP, names: Sequence[str] | None, noise: bool = True) -> dict[str, float]:
    """Hyperparameters by label, in the user's units."""
    d = gp.input_dim
    names = gp.input_names or [f"x{i}" for i in range(d)] if names is None else [str(name) for name in names]
    if len(names) != d:
        raise ValueError(f"names: expected {d}, one per column of X, got {len(names)}")
    units = units_of(gp)
    rows: dict[str, float] = {}
    turned = list(_turned(gp.kernel))
    for buffer in buffers(gp.kernel, units):
        inside = any(buffer.owner is part for _, parts in turned for part in parts)
        _add(rows, buffer, names, inside)
    for kernel, _ in turned:
        _put(rows, f"{expression_name(kernel)}.angle (degrees)", kernel.angle)
    if noise:
        _add_noise(rows, gp, units.output_scale)
    _add_mean(rows, gp, units, names)
    return rows


def units_of(gp: ExactGP) -> Units:
    """The scales of a model's affine transforms."""
    d, t = gp.input_dim, gp.num_outputs
    for transform in (gp.input_transform, gp.output_transform):
        if not (transform is None or isinstance(transform, Affine)):
            raise TypeError(f"gp: expected affine transforms, got {type(transform).__name__}; read gp.kernel instead")
    one = torch.ones((), dtype=torch.float64, device="cpu")
    inward = gp.input_transform or Affine()
    outward = gp.output_transform or Affine()
    x_scale, x_offset = (one * v.detach().cpu() for v in (inward.scale, inward.offset))
    scale, centre = (one * v.detach().cpu() for v in (outward.scale, outward.offset))
    return Units(
        (-x_offset / x_scale).expand(d), (1 / x_scale).abs().expand(d), centre.expand(t), scale.abs().expand(t)
    )


def _of_outputs(gp: Outputs, names: Sequence[str] | None) -> Summary:
    """The summaries of independent models one below the other, with the number of the output before each label."""
    members = [summary(member, names) for member in gp.models]  # type: ignore[arg-type]
    rows = {f"output {i}: {label}": value for i, one in enumerate(members) for label, value in one.rows.items()}
    likelihoods = [one.log_likelihood for one in members]
    known = [value for value in likelihoods if value is not None]
    title = "\n".join(f"output {i}: {one.title}" for i, one in enumerate(members))
    return Summary(title, rows, sum(known) if len(known) == len(members) else None)


def _turned(kernel: Kernel) -> Iterator[tuple[Rotated, list[Kernel]]]:
    """The rotated kernels of an expression, and the parts of each."""
    if isinstance(kernel, Rotated):
        yield kernel, list(_parts(kernel))
    else:
        for _, part in kernel.operands():
            yield from _turned(part)


def _parts(kernel: Kernel) -> Iterator[Kernel]:
    yield kernel
    for _, part in kernel.operands():
        yield from _parts(part)


def _add(rows: dict[str, float], buffer: Buffer, names: Sequence[str], turned: bool = False) -> None:
    """A row per number of a kernel's tensor; of a plane that is turned, the columns are along its angle and across."""
    value = buffer.value.detach().double().cpu() * buffer.unit
    short, owner = buffer.name.split(".")[-1], buffer.owner
    label = f"{expression_name(owner)}.{short}"
    if isinstance(owner, Periodic) and short == "lengthscale":
        label += " (of the phase)"
    columns = [names[i] for i in buffer.dims]
    columns = ["along", "across", *columns[2:]] if turned else columns
    for index in itertools.product(*map(range, value.shape)):
        if isinstance(owner, Coregional):
            if index[0] < index[1]:
                continue
            where = [str(i) for i in index]
        elif isinstance(owner, SpectralMixture):
            where = [str(index[0]), *(columns[i] for i in index[1:])]
        else:
            where = [columns[i] for i in index] if value.numel() > 1 else []
        _put(rows, label + (f"[{', '.join(where)}]" if where else ""), float(value[index]))


def expression_name(kernel: Kernel) -> str:
    """A kernel expression without its numbers: `RBF + Periodic * Matern`."""
    names = [expression_name(part) for _, part in kernel.operands()]
    if isinstance(kernel, Product):
        return " * ".join(f"({name})" if "+" in name else name for name in names)
    return " + ".join(names) or type(kernel).__name__


def _add_noise(rows: dict[str, float], gp: ExactGP, scale: Tensor) -> None:
    tasks = torch.zeros(gp.num_data, dtype=torch.long, device="cpu") if gp.tasks is None else gp.tasks.cpu()
    deviation = gp.noise.detach().double().cpu().sqrt() * scale[tasks]
    for i in range(gp.num_outputs):
        own = deviation[tasks == i]
        if not len(own):
            continue
        label = "noise standard dev" + (f"[{i}]" if gp.num_outputs > 1 else "")
        if math.isclose(float(own.min()), float(own.max()), rel_tol=1e-6):
            _put(rows, label, float(own[0]))
        else:
            _put(rows, f"{label}, smallest", float(own.min()))
            _put(rows, f"{label}, largest", float(own.max()))


def _add_mean(rows: dict[str, float], gp: ExactGP, units: Units, names: Sequence[str]) -> None:
    mean, t = gp.mean, gp.num_outputs
    if isinstance(mean, ConstantMean):
        value = mean.value.detach().double().cpu().expand(t) * units.output_scale + units.output_centre
    elif isinstance(mean, LinearMean):
        slopes = mean.weights.detach().double().cpu() / units.input_scale * units.output_scale[:, None]  # [t, d]
        value = mean.bias.detach().double().cpu() * units.output_scale + units.output_centre
        value = value - slopes @ units.input_centre
        for i, row in enumerate(slopes):
            for name, slope in zip(names, row, strict=True):
                _put(rows, f"mean slope[{name if t == 1 else f'{i}, {name}'}]", float(slope))
    else:
        return
    for i, level in enumerate(value):
        _put(rows, "mean" + (f"[{i}]" if t > 1 else ""), float(level))


def _put(rows: dict[str, float], label: str, value: float) -> None:
    """A label that is there already gets a number: a sum may have two RBFs."""
    unique, count = label, 1
    while unique in rows:
        count += 1
        unique = f"{label} #{count}"
    rows[unique] = value
