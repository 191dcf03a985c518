"""Paths conditioned on a lattice: weights given data, and what more data need. No centres are kept."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ..core.sites import Sites
from ..core.value import Parts
from ..evaluate import Basis, PathTerm, Recorder, WeightedSum
from ..features import nearest
from ..kernels import Kernel
from ..models.means import Mean
from ..models.streamed import Chunk
from ..paths.prior import PriorPaths
from ..paths.update import Update
from ..solvers import JitterWarning, Solver, Stats
from .basis import Lattice
from .joint_basis import Joint
from .solver import (
    LARGEST_INFORMATION,
    LARGEST_MEAN_ERROR,
    FourierLattice,
    MisfitWarning,
    information_of,
    mean_error,
    right_hand_side,
)
from .system import DataSpace, Information, Preconditioner, System, largest_dense
from .tail import split_tail, values_at, variances_at, with_tail

# Numbers in a block of the data's right-hand sides.
_BLOCK = 1 << 23
# Points whose variances are solved for together, the share of one that it may err by, and the error of transforms.
_ROWS, _SHARE, _ACCURACY = 64, 1e-3, 1e-12
# Points times numbers of a transform: about a minute of one CPU core.
_LARGEST_WORK = 1 << 27
# Places at which the lattice's error is measured, fewer where data are so many that to find neighbours takes long; and
# data that each of them is given: the nearest ones.
_PLACES, _DISTANCES, _NEIGHBOURS = (24, 256), 1 << 21, 16
# Paths with data of their own whose means are compared.
_PATHS = 8
# The largest error of many places is this many times that of these (measured, uniform data and clusters).
_OF_ALL = 2.0
# The same limit for statistics that are kept in float32.
LARGEST_IN_FLOAT32 = 1e5
# Points about the origin, their tasks, precisions, and the rows that the weights are given there.
_Few = tuple[Tensor, Tensor | None, Tensor, Tensor]


class LatticeUpdate(Update):
    """An update whose paths have the data in the weights of their prior already: it adds no terms to them.

    `rhs [s, t c + e]` and `rhs_mean [1 or s, t c + e]` are the right-hand sides of the paths and of their mean,
    `generator` (its real and imaginary parts), `cross` and `corner` the matrix (see `system.Information`): all
    that is left of the data, and all that more data need. `energy [1 or s]` is (y - mean)^T Lambda^-1 (y - mean).
    `mean_weights [1 or s, t, c + k]` are coefficients of the mean on the lattice's functions and on the
    explicit ones `beside` it.
    """

    fields = ("data_count", "own_targets")
    misfit: float | None = None  # (y - mean)^T (K + noise)^-1 (y - mean) per datum; files do not keep it
    local_error: float = 0.0  # of the mean, see `local_error`; nor this

    def __init__(
        self,
        kernel: Kernel,
        basis: Lattice,
        beside: Sequence[Basis],
        origin: Tensor,
        information: Information,
        rhs_mean: Tensor,
        energy: Tensor,
        mean_weights: Tensor,
        num_data: int,
        own: bool,
        solver_stats: Stats | None = None,
        misfit: float | None = None,
        local_error: float = 0.0,
    ) -> None:
        super().__init__(
            origin=origin,
            generator=torch.view_as_real(information.generator),
            cross=information.cross,
            corner=information.corner,
            rhs=information.rhs,
            rhs_mean=rhs_mean,
            energy=energy,
            mean_weights=mean_weights,
        )
        self.kernel, self.basis, self.beside = kernel, basis, Parts(beside)
        self.data_count, self.own_targets, self.solver_stats = num_data, own, solver_stats
        self.misfit, self.local_error = misfit, local_error

    def check(self) -> None:
        """ValueError where what is left of the data does not fit the lattice."""
        if type(self.data_count) is not int or self.data_count < 0 or not isinstance(self.basis, Lattice):
            raise ValueError(f"LatticeUpdate: expected a lattice and a number of data, got {self.data_count!r}")
        s, p, e = *self.rhs.shape, len(self.corner)
        q = s if self.own_posteriors else 1
        size, t = sum(basis.size for basis in (self.basis, *self.beside)), self.kernel.num_outputs
        wanted = {
            "rhs_mean": (q, p),
            "energy": (q,),
            "corner": (e, e),
            "cross": (e, self.cross.shape[-1]),
            "mean_weights": (q, t, size),
            "generator": (t, *(2 * n - 1 for n in self.basis.shape), 2),
        }
        for name, shape in wanted.items():
            got = tuple(getattr(self, name).shape)
            if got != shape:
                raise ValueError(f"LatticeUpdate.{name}: expected {list(shape)}, got {list(got)}")
        self.kernel.terms(len(self.origin))  # says whether it fits the dimensions

    def check_beside(self, prior: PriorPaths) -> None:
        fits = len(self.rhs) == prior.num_paths and self.kernel.num_outputs == prior.num_outputs
        if not fits or self.origin.shape != prior.origin.shape or self.origin.dtype != prior.origin.dtype:
            raise ValueError("Paths: expected a prior and an update of as many paths, outputs and dimensions")

    @property
    def num_data(self) -> int:
        return self.data_count

    @property
    def own_posteriors(self) -> bool:
        return self.own_targets

    @property
    def information(self) -> Information:
        return Information(torch.view_as_complex(self.generator.contiguous()), self.rhs, self.cross, self.corner)

    def __getitem__(self, index: Tensor) -> LatticeUpdate:
        names = ["rhs", *(("rhs_mean", "energy", "mean_weights") if self.own_posteriors else ())]
        return self.replaced(**{name: getattr(self, name)[index] for name in names})

    def terms(self) -> list[PathTerm]:
        return []

    def mean_terms(self) -> list[PathTerm]:
        bases: list[Basis] = [self.basis, *self.beside]
        parts = self.mean_weights.split([basis.size for basis in bases], dim=2)
        return [WeightedSum(basis, W, None, self.origin) for basis, W in zip(bases, parts, strict=True)]

    def variance(self, prior: PriorPaths, x: Tensor) -> Tensor:
        t = self.kernel.num_outputs
        sites = Sites.every_output(x, t)
        return _variance_of(self, prior)(sites.points, sites.outputs).reshape(len(x), t).to(x)

    def given(
        self, prior: PriorPaths, mean: Mean, new: Chunk, solver: Solver, generator: torch.Generator
    ) -> tuple[PriorPaths, LatticeUpdate]:
        """On the lattice, whatever the solver: the data before are there."""
        settings = solver if isinstance(solver, FourierLattice) else FourierLattice()
        return condition_on_lattice(prior, self, mean, new, settings, generator)


def condition_on_lattice(
    prior: PriorPaths, update: Update, mean: Mean, new: Chunk, settings: FourierLattice, generator: torch.Generator
) -> tuple[PriorPaths, LatticeUpdate]:
    """The same paths given more data on the lattice, with a warning where the mean is not accurate there."""
    given = given_on_lattice(prior, update, mean, [new], settings, generator)
    warn_of_misfit(given[1], tolerance=1e-3, stacklevel=6)
    return given


@torch.no_grad()
def given_on_lattice(
    prior: PriorPaths,
    update: Update,
    mean: Mean,
    chunks: Iterable[Chunk],
    settings: FourierLattice,
    generator: torch.Generator,
) -> tuple[PriorPaths, LatticeUpdate]:
    """The same paths given (more) data, which come in chunks and are read once.

        (I + S^T Lambda^-1 S) u = w + S^T Lambda^-1 (y - mean - eps),     f = S w

    in float64 whatever the paths' dtype. The mean is one more row, with w = 0 and eps = 0; where each path has its own
    y, as many as there are paths. What a prior has beyond the lattice's modes is noise of the data: rough, and nearly
    independent at any two of them. Each path knows its own.
    """
    whole = prior
    prior, beyond = split_tail(prior)
    basis = Joint.of(prior.features, update.kernel)
    known = update if isinstance(update, LatticeUpdate) else None
    if basis is None or (update.num_data and known is None) or whole.kept is not None:
        raise ValueError(
            'solver="lattice" needs paths whose prior is on one lattice and whose data, if any, were solved for on it: '
            'draw with domain=(lower, upper) and solver="lattice", or a prior with domain= and features="lattice"; '
            'refreshed paths, which are kept at points, take solver="cholesky"'
        )
    s, dtype, origin = len(prior.w), prior.w.dtype, prior.features.origin.double()
    w = basis.of_paths(prior.w.double())  # [s, t c + e]
    total, rhs_mean, energy, num_data = _nothing(basis, w) if known is None else _before(known)
    few: list[_Few] | None = [] if known is None else None
    error = 0.0
    for sites, y, noise in chunks:
        X, tasks = sites.points, sites.outputs
        noise = noise if known is None else _with_floor(noise, basis)
        y = y.double() - mean.at(sites).double()
        new, new_mean, new_energy, kept = _information(
            basis, X.double() - origin, tasks, y, noise, s, generator, beyond
        )
        total, rhs_mean, energy = total + new, rhs_mean + new_mean, energy + new_energy
        num_data += len(X)
        error = max(error, local_error(basis, update.kernel, origin, kept, y, noise))
        few = None if few is None or num_data > largest_dense(w.is_cuda) else [*few, kept]
    system = System(basis, total)
    largest = float(system.information.max())
    _require_digits(largest, known is not None and dtype == torch.float32)
    rows, start = torch.cat([total.rhs, rhs_mean]), None
    precondition: Preconditioner
    if few and num_data <= int((system.information > 0.1).sum()):
        X, precision = torch.cat([part[0] for part in few]), torch.cat([part[2] for part in few])
        each = [part[1] for part in few if part[1] is not None]
        values = torch.cat([part[3] for part in few], dim=1)  # y - eps of every path, then y
        precondition = DataSpace(basis, X, precision, torch.cat(each) if each else None)
        start = precondition.given(torch.cat([w, torch.zeros_like(rhs_mean)]), values)
    else:
        precondition = system.head(len(rows), settings.head)
        if known is not None and len(rhs_mean) == len(known.mean_weights):
            start = torch.cat([w, basis.weights(known.mean_weights.double())])
    u, stats = system.solve(rows, start, precondition, settings)
    misfit = system.misfit(energy, rhs_mean, u[s:]) / max(1, num_data)
    bases = list(prior.features.bases)
    assert isinstance(bases[0], Lattice)
    kept_update = LatticeUpdate(
        update.kernel,
        bases[0],
        bases[len(basis.lattices) :],
        prior.features.origin,
        total.to(dtype),
        rhs_mean.to(dtype),
        energy.to(dtype),
        basis.coefficients(u[s:]).to(dtype),
        num_data,
        own=len(rhs_mean) > 1 or (known is not None and known.own_posteriors),
        solver_stats=stats,
        misfit=misfit,
        local_error=error,
    )
    weights = basis.with_weights(prior.w.double(), u[:s]).to(dtype)  # [s, t, ell]
    return whole.replaced(w=with_tail(whole, weights)), kept_update


class LatticeVariance:
    """Variances of paths that were given data on a lattice: phi(x)^T M^-1 phi(x), M as in `given_on_lattice`.

    By conjugate gradients for every point, whose error in a variance is at most `_SHARE` of it; the law is that of the
    lattice's kernel, to the tolerance of the draw. What lies beyond the modes no data say anything of.
    """

    requires_grad = False  # nothing on a lattice is in a graph

    @torch.no_grad()
    def __init__(self, update: LatticeUpdate, prior: PriorPaths) -> None:
        on_modes, self.beyond = split_tail(prior)
        basis = Joint.of(on_modes.features, update.kernel)
        assert basis is not None
        self.basis, self.origin = basis, prior.features.origin.double()
        self.system = System(basis, update.information.to(torch.float64))
        self.head = self.system.head(_ROWS, None)

    @torch.no_grad()
    def __call__(self, x: Tensor, tasks: Tensor | None) -> Tensor:
        """`[n, d] -> [n]`, each of its own task."""
        X, size = x.double() - self.origin, self.system.information.numel()
        most = max(1, _LARGEST_WORK // (self.basis.num_outputs * math.prod(self.system.size)))
        if len(X) > most:
            modes = " x ".join(map(str, self.basis.lattice.shape))
            raise TypeError(
                f"variance: on a lattice of {modes} modes expected at most {most} values at once, which take a minute, "
                f"got {len(X)}; ask for fewer at a time, or use samples=True for an estimate from these paths"
            )
        step = max(1, min(_ROWS, _BLOCK // size))
        blocks = [slice(i, i + step) for i in range(0, len(X), step)]
        parts = [self._some(X[some], None if tasks is None else tasks[some]) for some in blocks]
        variance = torch.cat([X[:0, 0], *parts])
        return variance if self.beyond is None else variance + variances_at(self.beyond, X, tasks)

    def _some(self, X: Tensor, tasks: Tensor | None) -> Tensor:
        phi = self.basis.adjoint(X, torch.eye(len(X), device="cpu").to(X), _ACCURACY, tasks)  # [p, t c + e]
        prior, directions = phi.square().sum(1), max(1.0, 0.1 * self.system.effective_dimension)
        u, error = None, _SHARE * float(prior.max())
        while True:  # for what the prior's variance is not to err by, then for what turns out to be left of it
            settings = FourierLattice(tolerance=math.sqrt(error / directions))
            u, _ = self.system.solve(phi, u, self.head, settings)
            variance = ((2 * phi - self.system.product(u)) * u).sum(1).clamp_min(0)  # errors of u count by the square
            needed = _SHARE * max(float(variance.min()), 1e-10 * float(prior.max()))
            if error <= 2 * needed:
                return variance
            error = needed


_variance_of = Recorder(LatticeVariance)


def error_of_mean(update: LatticeUpdate, tolerance: float) -> float:
    """What the mean may err by on the lattice, in posterior standard deviations."""
    return max(mean_error(update.misfit, tolerance), _OF_ALL * update.local_error)


def warn_of_misfit(update: LatticeUpdate, tolerance: float, stacklevel: int) -> None:
    """Say so where the mean is beyond the lattice's accuracy: of data that are unlikely, or of a kernel so rough that
    its modes are too few for the data."""
    error = error_of_mean(update, tolerance)
    if not error > LARGEST_MEAN_ERROR:
        return
    if mean_error(update.misfit, tolerance) > LARGEST_MEAN_ERROR:
        why = (
            f"the prior finds these data unlikely: (y - mean)^T (K + noise)^-1 (y - mean) is {update.misfit:.2g} per "
            "datum and not about 1"
        )
        what = "fit the model, draw with a smaller tolerance="
    else:
        why = "the lattice has too few modes for a kernel as rough as this one and data as precise as these"
        what = "draw fewer paths (which leaves memory for more modes), with a smaller domain= or tolerance="
    warnings.warn(
        f"{why}, so that the mean may err by {error:.1g} posterior standard deviations on the lattice; {what}, or with "
        'solver="cholesky"',
        MisfitWarning,
        stacklevel=stacklevel,
    )


def local_error(basis: Joint, kernel: Kernel, origin: Tensor, data: _Few, y: Tensor, noise: Tensor) -> float:
    """The largest error of the mean by the lattice's kernel, in posterior standard deviations, over a few places.

    Both means, by the lattice's kernel and by the exact one, are of the nearest data alone: a cost that is linear in
    their number, and an error that is seen through the data, whatever its cause. Places are half in the data's box and
    half between neighbours among them. `y [r, n]` are the data less the prior mean, points about the origin.
    """
    X, tasks, precision, _ = data
    n, k, device = len(X), min(_NEIGHBOURS, len(X)), X.device
    if n < 2:
        return 0.0
    generator = torch.Generator().manual_seed(0xE4404)  # not one that data may have been made with
    p = min(max(_DISTANCES // n, _PLACES[0]), _PLACES[1]) // 2
    u = torch.rand(2 * p, X.shape[1], generator=generator, dtype=torch.float64, device="cpu").to(X)
    some = torch.randint(n, (p,), generator=generator, device="cpu").to(device)
    lower, upper = X.aminmax(dim=0)
    side = (upper - lower).clamp_min(1e-300)
    beside = nearest(X[some] / side, X / side, min(5, n))[:, 1:]  # [p, 4]: a datum is the nearest to itself
    number = torch.arange(p, device=device)
    between = torch.lerp(X[some], X[beside[number, number % beside.shape[1]]], u[:p, :1])
    x = torch.cat([between, torch.lerp(lower, upper, u[p:])])  # [2 p, d]
    near = nearest(x / side, X / side, k)  # [2 p, k]
    index = torch.arange(len(x) * (k + 1), device=device).view(len(x), k + 1)  # a place, then its data
    Z = torch.cat([x[:, None], X[near]], dim=1).flatten(0, 1)  # [2 p (1 + k), d]
    # the output of a place is that of the datum nearest to it
    of = None if tasks is None else torch.cat([tasks[near[:, :1]], tasks[near]], dim=1)
    i, j = torch.tril_indices(k + 1, k + 1, device=device)
    of_pairs = basis.covariances(Z, index[:, i].flatten(), index[:, j].flatten(), None if of is None else of.flatten())
    by_lattice = Z.new_empty(len(x), k + 1, k + 1)
    by_lattice[:, i, j] = by_lattice[:, j, i] = of_pairs.view(len(x), -1)
    exact, points = torch.zeros_like(by_lattice), (Z + origin)[index]
    for B, part in kernel.to(device, torch.float64).coupled():
        K = part.forward(points, points)
        exact += K if B is None or of is None else K * B[of[:, :, None], of[:, None]]
    rows = y.reshape(-1, n)[:_PATHS, near].movedim(0, -1)  # [p, k, r]
    m, variance = _kriged(exact, noise.double().expand(n)[near], rows)
    m_lattice, _ = _kriged(by_lattice, 1 / precision[near], rows)
    error = (m_lattice - m).abs().amax(1) / variance.sqrt()
    return float(torch.nan_to_num(error, nan=0.0).max())


def _kriged(K: Tensor, noise: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The mean `[p, r]` and variance `[p]` at places, the first of `[p, 1 + k, 1 + k]`, given y `[p, k, r]`."""
    v, jitter = K[:, 0, 0], 1e-10 * K.diagonal(dim1=1, dim2=2).mean(1)
    L = torch.linalg.cholesky_ex(K[:, 1:, 1:] + (noise + jitter[:, None]).diag_embed()).L
    w = torch.cholesky_solve(K[:, 1:, :1], L)  # [p, k, 1]
    variance = v - (w * K[:, 1:, :1]).sum((1, 2))
    return (w * y).sum(1), variance.clamp_min(1e-9 * v.clamp_min(1e-300))


def _nothing(basis: Joint, w: Tensor) -> tuple[Information, Tensor, Tensor, int]:
    """What is known before any data: the paths' weights are their right-hand sides."""
    shape, e = [basis.num_outputs, *(2 * n - 1 for n in basis.lattice.shape)], basis.num_beside
    empty = torch.zeros(shape, dtype=torch.complex128, device=w.device)
    nothing = Information(empty, w, w.new_zeros(e, w.shape[1] - e), w.new_zeros(e, e))
    return nothing, torch.zeros_like(w[:1]), w.new_zeros(1), 0


def _before(update: LatticeUpdate) -> tuple[Information, Tensor, Tensor, int]:
    information = update.information.to(torch.float64)
    return information, update.rhs_mean.double(), update.energy.double(), update.num_data


def _with_floor(noise: Tensor, basis: Joint) -> Tensor:
    """Noise of more data for paths on a lattice: as small as rounding allows where it is zero, or nearly."""
    smallest = basis.largest_variance / (0.1 * LARGEST_INFORMATION)
    if not bool((noise < smallest).any()):
        return noise
    warnings.warn(
        f"condition_on: noise below {smallest:.1e} is beyond what a lattice resolves, and counts as {smallest:.1e}",
        JitterWarning,
        stacklevel=6,
    )
    return noise.double().clamp_min(smallest)


def _beyond(prior: PriorPaths, X: Tensor, tasks: Tensor | None, noise: Tensor) -> Tensor:
    """The variance of what lies beyond the modes, at data."""
    variance = variances_at(prior, X, tasks)
    if bool((variance > noise).any()):
        most = float(variance.max())
        warnings.warn(
            f"condition_on: a variance of {most:.1e} lies beyond the modes of this prior's lattice, and counts as "
            'noise of the data, which have less; draw the prior with features="lattice" for paths as near to them',
            JitterWarning,
            stacklevel=7,
        )
    return variance


def _require_digits(largest: float, in_float32: bool) -> None:
    """Rounding of the statistics is below what the prior says of every weight."""
    if largest > LARGEST_INFORMATION:
        raise ValueError(
            f'solver="lattice": the data determine a weight {largest:.0e} times better than the prior, which is beyond '
            f'{LARGEST_INFORMATION:.0e}, what rounding allows: the noise is too small; use solver="cholesky"'
        )
    if in_float32 and largest > LARGEST_IN_FLOAT32:
        raise ValueError(
            "condition_on: these paths keep what is left of their data in float32, which has too few digits for more "
            "data; draw with dtype=torch.float64"
        )


def _information(
    basis: Joint,
    X: Tensor,
    tasks: Tensor | None,
    y: Tensor,
    noise: Tensor,
    s: int,
    generator: torch.Generator,
    beyond: PriorPaths | None,
) -> tuple[Information, Tensor, Tensor, _Few]:
    """What some data, less the mean, say: the statistics with the paths' right-hand sides `[s, t c + e]`, the mean's
    `[1 or s, t c + e]` and energy `[1 or s]`, and where data are few the data themselves."""
    if not bool((noise > 0).all()):
        raise ValueError('solver="lattice" needs noise above 0 at every datum; use solver="cholesky"')
    y, noise = y.reshape(-1, len(X)), noise.double().expand(len(X))  # [1 or s, n], [n]
    precision = 1 / (noise if beyond is None else noise + _beyond(beyond, X, tasks, noise))
    T, cross, corner = information_of(basis, X, precision, tasks)
    rhs_mean = right_hand_side(basis, X, y, precision, tasks)
    parts, values, step = [], [], max(2, 2 * (_BLOCK // (2 * max(1, len(X)))))
    for i in range(0, s, step):
        count = min(step, s - i)
        xi = torch.randn(count, len(X), generator=generator, device=generator.device, dtype=torch.float64).to(X)
        eps = xi.mul_(noise.sqrt())
        if beyond is not None:
            eps += values_at(beyond[torch.arange(i, i + count, device=X.device)], X, tasks)
        parts.append(right_hand_side(basis, X, eps, precision, tasks))
        if len(X) <= largest_dense(X.is_cuda):
            values.append(eps)
    few = (X, tasks, precision, torch.cat([y - torch.cat(values), y]) if values else y)
    energy = (y.square() * precision).sum(1)
    return Information(T, rhs_mean - torch.cat(parts), cross, corner), rhs_mean, energy, few
