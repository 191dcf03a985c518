"""Paths conditioned on a lattice: weights given data, and what more data need. No centres are kept."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ..evaluate import Term, WeightedSum
from ..features import Lattice
from ..kernels import Kernel
from ..means import Mean
from ..solvers import FourierLattice, Stats
from ..solvers.lattice import LARGEST_INFORMATION, Information, System, right_hand_side, toeplitz_generator
from .prior import Prior, PriorPaths
from .update import UpdatePaths

# Numbers in a block of the data's right-hand sides.
_BLOCK = 1 << 23
# The same limit for statistics that are kept in float32.
LARGEST_IN_FLOAT32 = 1e5
# X `[n, d]`, y `[n]` or `[s, n]`, noise `[n]`: some of the data, in the model's own space.
Chunk = tuple[Tensor, Tensor, Tensor]


class LatticeUpdate(UpdatePaths):
    """An update without centres: the paths' weights are given the data already.

    `rhs [s, c]` and `rhs_mean [1 or s, c]` are the right-hand sides of the paths and of their mean, `generator` (its
    real and imaginary parts) that of the Toeplitz matrix: all that is left of the data, and all that more data need.
    """

    fields = ("data_count",)

    def __init__(
        self,
        kernel: Kernel,
        basis: Lattice,
        origin: Tensor,
        information: Information,
        rhs_mean: Tensor,
        mean_weights: Tensor,
        num_data: int,
        own: bool,
        solver_stats: Stats | None = None,
    ) -> None:
        like = information.rhs
        none = like.new_zeros(len(like), 0)
        y = none if own else none[0]
        super().__init__(
            kernel, like.new_zeros(0, len(origin)), None, none, none[: len(rhs_mean)], y=y, solver_stats=solver_stats
        )
        self.data_count = num_data
        self.basis = basis
        self.register_buffer("origin", origin)
        self.register_buffer("generator", torch.view_as_real(information.generator))
        self.register_buffer("rhs", like)
        self.register_buffer("rhs_mean", rhs_mean)
        self.register_buffer("mean_weights", mean_weights)

    @property
    def num_data(self) -> int:
        return self.data_count

    @property
    def information(self) -> Information:
        return Information(torch.view_as_complex(self.generator.contiguous()), self.rhs)

    def __getitem__(self, index: Tensor) -> LatticeUpdate:
        own = self.y.ndim == 2
        information = self.information
        return LatticeUpdate(
            self.kernel,
            self.basis,
            self.origin,
            Information(information.generator, self.rhs[index]),
            self.rhs_mean[index] if own else self.rhs_mean,
            self.mean_weights[index] if own else self.mean_weights,
            self.num_data,
            own,
            self.solver_stats,
        )

    def terms(self, v: Tensor | None = None) -> list[Term]:
        """None for the paths, whose weights hold it; for v, which stands for the mean, the mean's sum."""
        if v is None:
            return []
        return [WeightedSum(self.basis, self.mean_weights[:, None], None, self.origin)]


def the_lattice(prior: Prior) -> Lattice | None:
    """The lattice that all of a prior of one output is on; None where there is none."""
    bases = list(prior.features.bases) if isinstance(prior, PriorPaths) else []
    alone = len(bases) == 1 and isinstance(bases[0], Lattice) and prior.num_outputs == 1
    return bases[0] if alone else None


@torch.no_grad()
def given_on_lattice(
    prior: Prior,
    update: UpdatePaths,
    mean: Mean,
    chunks: Iterable[Chunk],
    settings: FourierLattice,
    generator: torch.Generator,
) -> tuple[PriorPaths, LatticeUpdate]:
    """The same paths given (more) data, which come in chunks and are read once.

        (I + D Phi* Lambda^-1 Phi D) u = w + D Phi* Lambda^-1 (y - mean - eps)

    in float64 whatever the paths' dtype. The mean is one more row, with w = 0 and eps = 0; where each path has its own
    y, as many as there are paths.
    """
    basis = the_lattice(prior)
    if (
        basis is None
        or not isinstance(prior, PriorPaths)
        or (update.num_data and not isinstance(update, LatticeUpdate))
    ):
        raise ValueError(
            'solver="lattice" needs paths of one output whose prior is on one lattice and whose data, if any, were '
            'solved for on it: draw with domain=(lower, upper), features="lattice" and solver="lattice"'
        )
    double, origin = basis.to(torch.float64), prior.features.origin.double()
    s, dtype = len(prior.w), prior.w.dtype
    if isinstance(update, LatticeUpdate):
        known, rhs_mean, guess = update.information, update.rhs_mean.double(), prior.w[:, 0].double()
        total = Information(known.generator.to(torch.complex128), known.rhs.double())
        num_data = update.num_data
    else:
        shape = [2 * n - 1 for n in basis.shape]
        empty = torch.zeros(shape, dtype=torch.complex128, device=prior.w.device)
        total, guess, num_data = Information(empty, prior.w[:, 0].double()), None, 0
        rhs_mean = torch.zeros_like(total.rhs[:1])
    for X, y, noise in chunks:
        new, new_mean = _information(double, origin, X, y, noise, mean, s, generator)
        total, num_data = total + new, num_data + len(X)
        rhs_mean = rhs_mean + new_mean
    system = System(double, total.generator, settings.head)
    largest = float(system.information.max())
    if largest > LARGEST_INFORMATION:
        raise ValueError(
            f'solver="lattice": the data determine a weight {largest:.0e} times better than the prior, which is beyond '
            f'{LARGEST_INFORMATION:.0e}, what rounding allows: the noise is too small; use solver="cholesky"'
        )
    if isinstance(update, LatticeUpdate) and dtype == torch.float32 and largest > LARGEST_IN_FLOAT32:
        raise ValueError(
            "condition_on: these paths keep what is left of their data in float32, which has too few digits for more "
            "data; draw with dtype=torch.float64"
        )
    rows = torch.cat([total.rhs, rhs_mean])
    start = None
    if guess is not None and len(rhs_mean) == len(update.mean_weights):
        start = torch.cat([guess, _divided(update.mean_weights.double(), double.scales())])
    u, stats = system.solve(rows, start, settings)
    posterior = PriorPaths(prior.features, u[:s, None].to(dtype), prior.basis_index)
    kept = LatticeUpdate(
        update.kernel,
        basis,
        prior.features.origin,
        Information(
            total.generator.to(torch.complex64 if dtype == torch.float32 else torch.complex128), total.rhs.to(dtype)
        ),
        rhs_mean.to(dtype),
        (u[s:] * double.scales()).to(dtype),
        num_data,
        own=len(rhs_mean) > 1 or (isinstance(update, LatticeUpdate) and update.y.ndim == 2),
        solver_stats=stats,
    )
    return posterior, kept


def _information(
    basis: Lattice, origin: Tensor, X: Tensor, y: Tensor, noise: Tensor, mean: Mean, s: int, generator: torch.Generator
) -> tuple[Information, Tensor]:
    """What some data say: the generator, the paths' right-hand sides `[s, c]`, the mean's `[1 or s, c]`."""
    if not bool((noise > 0).all()):
        raise ValueError('solver="lattice" needs noise above 0 at every datum; use solver="cholesky"')
    about = X.double() - origin
    y = y.double() - mean(X[None])[0, :, 0].double()
    precision = 1 / noise.double().expand(len(X))
    T = toeplitz_generator(basis, about, precision)
    rhs_mean = right_hand_side(basis, about, y.reshape(-1, len(X)), precision)
    parts, step = [], max(2, 2 * (_BLOCK // (2 * max(1, len(X)))))
    for i in range(0, s, step):
        count = min(step, s - i)
        xi = torch.randn(count, len(X), generator=generator, device=generator.device, dtype=torch.float64).to(about)
        eps = xi.mul_((1 / precision).sqrt())
        parts.append(right_hand_side(basis, about, eps, precision))
    return Information(T, rhs_mean - torch.cat(parts)), rhs_mean


def _divided(W: Tensor, scales: Tensor) -> Tensor:
    return torch.where(scales > 0, W / torch.where(scales > 0, scales, 1.0), 0.0)
