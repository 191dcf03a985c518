"""Paths that are conditioned on a lattice: their weights given data, and the statistics that more data require. No
centres are kept."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from ..core.checks import level_outside
from ..core.functionals import Functionals, Observed
from ..core.value import Parts
from ..evaluate import Basis, PathTerm, Recorder, WeightedSum
from ..features import nearest
from ..kernels import Kernel
from ..models.means import Mean
from ..models.observations import Observations
from ..paths.prior import PriorPaths
from ..paths.update import Update
from ..solvers import Auto, JitterWarning, Operator, Solver, State, Stats
from .basis import Lattice
from .kinds import TooManyKinds, covariances_of_groups, functionals_at, located, mean_atoms
from .system import LARGEST_INFORMATION, DataSpace, Information, Joint, System, largest_dense, right_hand_side
from .tail import can_condition_on_lattice, split_tail, values_at, variances_at, with_tail

# If the error of the mean on the lattice may be larger than this, in posterior standard deviations, there is a warning,
# or the data are solved for densely.
LARGEST_MEAN_ERROR = 0.1


@dataclass(frozen=True)
class FourierLattice(Solver[State]):
    """Conjugate gradients on a lattice's weights; `draw(..., domain=..., solver="lattice")`.

    Args:
        tolerance: where a path may stop, as the root mean square of its error in posterior standard deviations.
        head: how many weights the preconditioner factors densely at the most; None is 4000 on a CPU and 12,000 on a
            GPU.
        max_iterations: then it stops, with a warning.
        progress: show how far the data are read, where they come in chunks (`StreamedGP`).

    >>> import torch, matheron
    >>> from matheron import kernels, lattice
    >>> X = torch.rand(5000, 1, dtype=torch.float64)
    >>> gp = matheron.ExactGP(kernels.Matern(2.5, 0.2), X, torch.sin(9 * X[:, 0]), noise=0.01)
    >>> paths = matheron.draw(gp, 2, domain=(0, 1), solver=lattice.FourierLattice(tolerance=1e-3))
    >>> paths.solver_stats.converged
    True
    """

    shorthand: ClassVar[str] = "lattice"
    for_centres: ClassVar[bool] = False
    tolerance: float = 0.01
    head: int | None = None
    max_iterations: int = 1000
    progress: bool = False

    def init(self, operator: Operator) -> State:
        raise ValueError(
            'solver="lattice" solves for the weights of a lattice, of an exact model with noise: give '
            "domain=(lower, upper), or use another solver"
        )

    def solve(self, state: State, b: Tensor, guess: Tensor | None = None) -> tuple[Tensor, Stats]:
        raise TypeError('solver="lattice" has no state of its own')

    def condition(
        self, prior: PriorPaths, update: Update, mean: Mean, new: Observations, generator: torch.Generator
    ) -> tuple[PriorPaths, Update]:
        """Condition on the lattice. A few data that are more precise than the lattice of a rough prior are conditioned
        on exactly."""
        tailed = isinstance(new.sites, Functionals) and split_tail(prior)[1] is not None
        if not isinstance(update, LatticeUpdate) and (tailed or not can_condition_on_lattice(prior, update, new)):
            return Auto().condition(prior, update, mean, new, generator)
        return condition_on_lattice(prior, update, mean, new, self, generator)


class MisfitWarning(UserWarning):
    """Warns that data are very unlikely under the prior, so that the mean on a lattice is not accurate."""


class LatticeUpdate(Update):
    """An update for paths whose prior weights were conditioned on the data: it adds no terms to them.

    `rhs [s, t c + e]` and `rhs_mean [1 or s, t c + e]` are the right-hand sides of the paths and of their mean.
    `generator` (its real and imaginary parts), `cross` and `corner` make the matrix (see `system.Information`). This is
    all that is kept of the data, and all that conditioning on more data needs. `kinds` has the functionals that were
    observed other than values, see `kinds`. `energy [1 or s]` is (y - mean)^T Lambda^-1 (y - mean).
    `mean_weights [1 or s, t, c + k]` are coefficients of the mean on the lattice's functions and on the explicit ones
    `beside` it.
    """

    fields = ("data_count", "own_targets")
    kinds: Functionals | None
    misfit: float | None = None  # (y - mean)^T (K + noise)^-1 (y - mean) per datum; it is not saved
    local_error: float = 0.0  # the error of the mean that the function `local_error` found; it is not saved

    def __init__(
        self,
        kernel: Kernel,
        basis: Lattice,
        beside: Sequence[Basis],
        origin: Tensor,
        information: Information,
        rhs: Tensor,
        rhs_mean: Tensor,
        energy: Tensor,
        mean_weights: Tensor,
        num_data: int,
        own: bool,
        solver_stats: Stats | None = None,
        misfit: float | None = None,
        local_error: float = 0.0,
        kinds: Functionals | None = None,
    ) -> None:
        super().__init__(
            origin=origin,
            generator=torch.view_as_real(information.generator),
            cross=information.cross,
            corner=information.corner,
            rhs=rhs,
            rhs_mean=rhs_mean,
            energy=energy,
            mean_weights=mean_weights,
        )
        self.kernel, self.basis, self.beside = kernel, basis, Parts(beside)
        self.register_module("kinds", kinds)
        self.data_count, self.own_targets, self.solver_stats = num_data, own, solver_stats
        self.misfit, self.local_error = misfit, local_error

    def check(self) -> None:
        """Raise a ValueError where what is kept of the data does not fit the lattice."""
        if type(self.data_count) is not int or self.data_count < 0 or not isinstance(self.basis, Lattice):
            raise ValueError(f"LatticeUpdate: expected a lattice and a number of data, got {self.data_count!r}")
        s, p, e = *self.rhs.shape, len(self.corner)
        q = s if self.own_posteriors else 1
        size, t = sum(basis.size for basis in (self.basis, *self.beside)), self.kernel.num_outputs
        num_kinds = 0 if self.kinds is None else len(self.kinds)
        wanted = {
            "rhs_mean": (q, p),
            "energy": (q,),
            "corner": (e, e),
            "cross": (e, self.cross.shape[-1]),
            "mean_weights": (q, t, size),
            "generator": (t * (1 + num_kinds), *(2 * n - 1 for n in self.basis.shape), 2),
        }
        for name, shape in wanted.items():
            got = tuple(getattr(self, name).shape)
            if got != shape:
                raise ValueError(f"LatticeUpdate.{name}: expected {list(shape)}, got {list(got)}")
        self.kernel.terms(len(self.origin))  # raises an error if the kernel does not fit the dimensions

    def check_beside(self, prior: PriorPaths) -> None:
        fits = len(self.rhs) == prior.num_paths and self.kernel.num_outputs == prior.num_outputs
        if (
            not fits
            or self.origin.shape != prior.features.origin.shape
            or self.origin.dtype != prior.features.origin.dtype
        ):
            raise ValueError("Paths: expected a prior and an update of as many paths, outputs and dimensions")

    @property
    def num_data(self) -> int:
        return self.data_count

    @property
    def own_posteriors(self) -> bool:
        return self.own_targets

    @property
    def information(self) -> Information:
        generator = torch.view_as_complex(self.generator.double().contiguous())
        return Information(generator, self.cross.double(), self.corner.double())

    def __getitem__(self, index: Tensor) -> LatticeUpdate:
        names = ["rhs", *(("rhs_mean", "energy", "mean_weights") if self.own_posteriors else ())]
        return self.replaced(**{name: getattr(self, name)[index] for name in names})

    def terms(self) -> list[PathTerm]:
        return []

    def mean_terms(self) -> list[PathTerm]:
        bases: list[Basis] = [self.basis, *self.beside]
        parts = self.mean_weights.split([basis.size for basis in bases], dim=2)
        return [WeightedSum(basis, W, None, self.origin) for basis, W in zip(bases, parts, strict=True)]

    def variance(self, prior: PriorPaths, sites: Observed) -> Tensor:
        return _variance_of(self, prior)(sites).to(sites.points)

    def given(
        self, prior: PriorPaths, mean: Mean, new: Observations, solver: Solver, generator: torch.Generator
    ) -> tuple[PriorPaths, LatticeUpdate]:
        """Condition on the lattice, whatever the solver, because the earlier data are represented there."""
        settings = solver if isinstance(solver, FourierLattice) else FourierLattice()
        return condition_on_lattice(prior, self, mean, new, settings, generator)


def condition_on_lattice(
    prior: PriorPaths,
    update: Update,
    mean: Mean,
    new: Observations,
    settings: FourierLattice,
    generator: torch.Generator,
) -> tuple[PriorPaths, LatticeUpdate]:
    """Condition paths on more data on the lattice. There is a warning if the mean is not accurate there."""
    given = given_on_lattice(prior, update, mean, [new], settings, generator)
    warn_of_misfit(given[1], tolerance=1e-3)
    return given


class _Seen(NamedTuple):
    """The data of a chunk: places relative to the origin, the channel of each, targets minus the mean, noise and
    precisions."""

    X: Tensor  # [n, d]
    channels: Tensor | None  # [n]
    y: Tensor  # [1 or s, n]
    noise: Tensor  # [n]
    precision: Tensor  # [n]


class Conditioning:
    """Matheron's rule on a lattice, step by step, in float64 whatever the paths' dtype (see `system`).

        M m = S^T Lambda^-1 (y - mean),        M u = w + S^T Lambda^-1 (y - mean - eps)

    `add` adds data, chunk by chunk. `solve_mean` gives m, for each y if paths have targets of their own; it needs no
    random number. `add_noise` draws eps at data that were added, and `paths` gives u. The further lattices of a prior,
    its `tail`, count as noise of the data: they are rough, and nearly independent at any two data. Each path knows its
    own values of this noise.
    """

    def __init__(
        self,
        basis: Joint,
        kernel: Kernel,
        mean: Mean,
        origin: Tensor,
        settings: FourierLattice,
        known: LatticeUpdate | None = None,
        tail: PriorPaths | None = None,
    ) -> None:
        self.basis, self.kernel, self.mean, self.origin = basis, kernel, mean, origin.double()
        self.settings, self.known, self.tail = settings, known, tail
        self.local_error = 0.0
        self.few: list[_Seen] | None = [] if known is None else None  # the data themselves, as long as they are few
        self.eps: list[Tensor] = []  # the noise that was drawn for these, [s, n] each
        self.rhs: Tensor | None = None  # the right-hand sides of the paths, without w: [s, t c + e]
        if known is None:
            self.information, self.num_data = Information.none(basis), 0
            zero = self.information.corner.new_zeros(1, basis.num_outputs * basis.size + basis.num_beside)
            self.rhs_mean, self.energy = zero, zero[:, 0]
        else:
            self.information, self.num_data = known.information, known.num_data
            self.rhs_mean, self.energy = known.rhs_mean.double(), known.energy.double()

    def add(self, chunk: Observations) -> _Seen:
        """Take in some data."""
        sites, y, noise = chunk
        if self.tail is not None and isinstance(sites, Functionals):
            raise ValueError(
                "condition_on: the prior of these paths has lattices of higher frequencies, with which only values can "
                'be given; draw it with features="lattice", or the data at once with solver="cg"'
            )
        try:
            kinds, places, channels, scale = located(sites, self.basis.num_outputs, self.basis.kinds)
        except TooManyKinds as reason:
            raise ValueError(
                f'solver="lattice": {reason}, such as gradients and averages over boxes of equal size are; use '
                'solver="cg" or "cholesky"'
            ) from None
        self.basis = self.basis.with_kinds(kinds)
        X, n = places - self.origin, len(sites)
        y = (y.double() - self.mean.at(sites).double()).reshape(-1, n)  # [1 or s, n]
        noise = noise.double().expand(n)
        if scale is not None:
            y, noise = y / scale, noise / scale.square()
        noise = noise if self.known is None else _with_floor(noise, self.basis, channels)
        if not bool((noise > 0).all()):
            raise ValueError('solver="lattice" needs noise above 0 at every datum; use solver="cholesky"')
        precision = 1 / (noise if self.tail is None else noise + _variance_of_tail(self.tail, X, channels, noise))
        more = Information.of(self.basis, X, precision, channels)
        self.information = self.information.with_channels(self.basis) + more
        self.rhs_mean = self.rhs_mean + right_hand_side(self.basis, X, y, precision, channels)
        self.energy = self.energy + (y.square() * precision).sum(1)
        self.num_data += n
        seen = _Seen(X, channels, y, noise, precision)
        self.local_error = max(self.local_error, local_error(self.basis, self.kernel, self.origin, seen))
        if self.few is not None:
            self.few = [*self.few, seen] if self.num_data <= largest_dense(X.device) else None
        return seen

    def add_noise(self, seen: _Seen, s: int, generator: torch.Generator, block: int = 1 << 23) -> None:
        """Draw the noise of s paths at data that were added, for blocks of data."""
        X, channels, _, noise, precision = seen
        parts, step = [], max(2, 2 * (block // (2 * max(1, len(X)))))
        for i in range(0, s, step):
            shape = min(step, s - i), len(X)
            xi = torch.randn(shape, generator=generator, device=generator.device, dtype=torch.float64).to(X)
            eps = xi.mul_(noise.sqrt())
            if self.tail is not None:
                eps += values_at(self.tail[torch.arange(i, i + len(eps), device=X.device)], X, channels)
            parts.append((right_hand_side(self.basis, X, eps, precision, channels), eps if self.few else eps[:, :0]))
        rows, eps = map(torch.cat, zip(*parts, strict=True))
        self.rhs = -rows if self.rhs is None else self.rhs - rows
        self.eps = [*self.eps, eps] if self.few else []

    def solve_mean(self, s: int) -> None:
        """Solve for the weights of the mean given all data, with a preconditioner for the mean and s paths."""
        self.system = System(self.basis, self.information)
        largest, known, settings = float(self.system.information.max()), self.known, self.settings
        _require_digits(largest, known is not None and known.rhs.dtype == torch.float32)
        self.data_space, start = None, None
        if self.few and self.num_data <= int((self.system.information > 0.1).sum()):
            X, precision = torch.cat([each.X for each in self.few]), torch.cat([each.precision for each in self.few])
            channels = [each.channels for each in self.few if each.channels is not None]
            self.data_space = DataSpace(self.basis, X, precision, torch.cat(channels) if channels else None)
            start = self.data_space.given(torch.zeros_like(self.rhs_mean), self._values)
        elif known is not None and len(self.rhs_mean) == len(known.mean_weights):
            start = self.basis.weights(known.mean_weights.double())
        self.precondition = self.data_space or self.system.head(s + len(self.rhs_mean), settings.head)
        self.u_mean, self.stats = self._solved(self.rhs_mean, start)
        self.misfit = self.system.misfit(self.energy, self.rhs_mean, self.u_mean) / max(1, self.num_data)

    @property
    def _values(self) -> Tensor:
        """y minus the mean, for all data while there are few: `[1 or s, n]`."""
        return torch.cat([each.y for each in self.few or ()], dim=1)

    def _solved(self, rhs: Tensor, start: Tensor | None) -> tuple[Tensor, Stats]:
        settings = self.settings
        return self.system.solve(
            rhs, start, self.precondition, settings.tolerance, settings.max_iterations, repr(settings)
        )

    def mean_error(self, tolerance: float) -> float:
        """An estimate of the largest error of the mean, in posterior standard deviations, on a lattice of this
        tolerance."""
        return mean_error(self.misfit, tolerance, self.local_error)

    def paths(self, prior: PriorPaths) -> tuple[PriorPaths, LatticeUpdate]:
        """The paths of a prior given all data."""
        on_modes, _ = split_tail(prior)
        dtype, known, basis = prior.w.dtype, self.known, self.basis
        w = basis.of_paths(on_modes.w.double())  # [s, t c + e]
        before = w if known is None else known.rhs.double()
        rhs, start = before if self.rhs is None else before + self.rhs, None if known is None else w
        rhs = rhs + self.rhs_mean if known is None else rhs + (self.rhs_mean - known.rhs_mean.double())
        if self.data_space is not None:
            start = self.data_space.given(w, self._values - torch.cat(self.eps, dim=1))
        u, stats = self._solved(rhs, start)
        bases = list(on_modes.features.bases)
        assert isinstance(bases[0], Lattice)
        update = LatticeUpdate(
            self.kernel,
            bases[0],
            bases[len(basis.lattices) :],
            prior.features.origin,
            self.information.to(dtype),
            rhs.to(dtype),
            self.rhs_mean.to(dtype),
            self.energy.to(dtype),
            basis.coefficients(self.u_mean).to(dtype),
            self.num_data,
            own=len(self.rhs_mean) > 1 or (known is not None and known.own_posteriors),
            solver_stats=_worse(stats, self.stats),
            misfit=self.misfit,
            local_error=self.local_error,
            kinds=None if basis.kinds is None else basis.kinds.to(dtype),
        )
        weights = basis.with_weights(on_modes.w.double(), u).to(dtype)  # [s, t, ell]
        return prior.replaced(w=with_tail(prior, weights)), update


def _worse(a: Stats, b: Stats) -> Stats:
    """The statistics of the slower of two solves."""
    converged = a.converged and b.converged
    residual = max(a.residual or 0.0, b.residual or 0.0)
    return Stats(a.solver, max(a.iterations, b.iterations), residual, converged)


@torch.no_grad()
def given_on_lattice(
    prior: PriorPaths,
    update: Update,
    mean: Mean,
    chunks: Iterable[Observations],
    settings: FourierLattice,
    generator: torch.Generator,
) -> tuple[PriorPaths, LatticeUpdate]:
    """Condition paths on (more) data, which are read once, in chunks."""
    on_modes, tail = split_tail(prior)
    basis = Joint.of(on_modes.features, update.kernel)
    known = update if isinstance(update, LatticeUpdate) else None
    if basis is not None and known is not None and known.kinds is not None:
        basis = basis.with_kinds(known.kinds.double())
    if basis is None or (update.num_data and known is None) or prior.kept is not None:
        raise ValueError(
            'solver="lattice" needs paths whose prior is on one lattice and whose data, if any, were solved for on it: '
            'draw with domain=(lower, upper) and solver="lattice", or a prior with domain= and features="lattice"; '
            'refreshed paths, which are kept at points, take solver="cholesky"'
        )
    conditioning = Conditioning(basis, update.kernel, mean, prior.features.origin, settings, known, tail)
    for chunk in chunks:
        conditioning.add_noise(conditioning.add(chunk), len(prior.w), generator)
    conditioning.solve_mean(len(prior.w))
    return conditioning.paths(prior)


# The variances of paths on a lattice.


class LatticeVariance:
    """Variances of paths that were conditioned on a lattice: phi(x)^T M^-1 phi(x), with M as in `system`.

    Conjugate gradients solve for every point, with an error of at most a share `_share` of each variance. The law is
    that of the lattice's kernel, within the tolerance of the draw. Data have no information on frequencies above the
    modes.
    """

    requires_grad = False  # tensors on a lattice are in no graph
    # The number of points whose variances are solved for together; the size of their right-hand sides; the relative
    # error of a variance; and the error of transforms.
    _rows, _block, _share, _accuracy = 64, 1 << 23, 1e-3, 1e-12
    _largest_work = 1 << 27  # points times the size of a transform: about a minute of one CPU core

    @torch.no_grad()
    def __init__(self, update: LatticeUpdate, prior: PriorPaths) -> None:
        on_modes, self.tail = split_tail(prior)
        basis = Joint.of(on_modes.features, update.kernel)
        assert basis is not None
        self.basis, self.origin = basis, prior.features.origin.double()
        self.system = System(basis.with_kinds(update.kinds), update.information)
        self.head = self.system.head(self._rows)

    @torch.no_grad()
    def __call__(self, sites: Observed) -> Tensor:
        """Variances `[n]` of values at sites or of functionals."""
        kinds, places, channels, scale = located(sites, self.basis.num_outputs)
        if self.tail is not None and kinds is not None:
            raise TypeError(
                "variance: of paths with lattices of higher frequencies expected points, got functionals; "
                'draw the prior with features="lattice"'
            )
        basis = self.basis.with_kinds(kinds)
        X, size = places - self.origin, self.system.information.numel()
        most = max(1, self._largest_work // (self.basis.num_outputs * math.prod(self.system.size)))
        if len(X) > most:
            modes = " x ".join(map(str, self.basis.lattice.shape))
            raise TypeError(
                f"variance: on a lattice of {modes} modes expected at most {most} values at once, which take a minute, "
                f"got {len(X)}; ask for fewer at a time, or use samples=True for an estimate from these paths"
            )
        step = max(1, min(self._rows, self._block // size))
        blocks = [slice(i, i + step) for i in range(0, len(X), step)]
        parts = [self._some(basis, X[some], None if channels is None else channels[some]) for some in blocks]
        variance = torch.cat([X[:0, 0], *parts])
        variance = variance if self.tail is None else variance + variances_at(self.tail, X, channels)
        return variance if scale is None else variance * scale.square()

    def _some(self, basis: Joint, X: Tensor, channels: Tensor | None) -> Tensor:
        phi = basis.adjoint(X, torch.eye(len(X), device="cpu").to(X), self._accuracy, channels)  # [p, t c + e]
        prior, directions = phi.square().sum(1), max(1.0, 0.1 * self.system.effective_dimension)
        u, error = None, self._share * float(prior.max())
        while True:  # first to the accuracy that the prior variance needs, then to that of the variance found
            u, _ = self.system.solve(phi, u, self.head, math.sqrt(error / directions))
            # the square of the error of u enters
            variance = ((2 * phi - self.system.product(u)) * u).sum(1).clamp_min(0)
            needed = self._share * max(float(variance.min()), 1e-10 * float(prior.max()))
            if error <= 2 * needed:
                return variance
            error = needed


_variance_of = Recorder(LatticeVariance)


# The error of the mean on a lattice.


def mean_error(misfit: float | None, tolerance: float, local: float = 0.0, of_all: float = 2.0) -> float:
    """A bound on the error of the mean, in posterior standard deviations, as measured over many kernels and data.

    `misfit` is (y - mean)^T (K + noise)^-1 (y - mean) per datum, which is about one if the model is right. `local` is
    the `local_error`. The largest error over many places is `of_all` times that of these few (measured, for uniform
    data and clusters).
    """
    unlikely = 0.0 if misfit is None else 20 * min(tolerance, 1e-3) * math.sqrt(max(0.0, misfit))
    return max(unlikely, of_all * local)


def warn_of_misfit(update: LatticeUpdate, tolerance: float) -> None:
    """Warn if the mean is not accurate on the lattice.

    The data are then unlikely under the prior, or the kernel is so rough that the lattice has too few modes.
    """
    error = mean_error(update.misfit, tolerance, update.local_error)
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
        f"{why}, so the error of the mean on the lattice may be {error:.1g} posterior standard deviations; {what}, or "
        'with solver="cholesky"',
        MisfitWarning,
        stacklevel=level_outside(),
    )


def local_error(
    basis: Joint,
    kernel: Kernel,
    origin: Tensor,
    data: _Seen,
    *,
    neighbours: int = 16,
    places: tuple[int, int] = (24, 256),
    distances: int = 1 << 21,
    covariances: int = 1 << 23,
    paths: int = 8,
) -> float:
    """The largest error of the mean by the lattice's kernel, in posterior standard deviations, over a few places.

    Both means, by the lattice's kernel and by the exact one, are conditioned on the nearest data alone, so the cost is
    linear in the number of data. Errors of any cause are found if they matter given the data. Half of the places are in
    the data's box, and half between neighbouring data.

    Args:
        basis: the lattice, and what is beside it.
        kernel: the exact one.
        origin: that of the data.
        data: some or all of them.
        neighbours: data that each place is given.
        places: how many at the least and at the most.
        distances: from places to data, at the most: fewer places where data are so many that to find neighbours takes
            long.
        covariances: of atoms of functionals, at the most: fewer places where functionals have many.
        paths: with data of their own, whose means are compared.
    """
    X, channels, y, noise, precision = data
    n, k, device, t = len(X), min(neighbours, len(X)), X.device, basis.num_outputs
    if n < 2:
        return 0.0
    generator = torch.Generator().manual_seed(0xE4404)  # a fixed seed that the user's data are unlikely to have
    p = min(max(distances // n, places[0]), places[1]) // 2
    if basis.kinds is not None:  # covariances of functionals take longer
        p = max(4, min(p, 32, round(covariances / (2 * ((k + 1) * mean_atoms(basis.kinds)) ** 2))))
    u = torch.rand(2 * p, X.shape[1], generator=generator, dtype=torch.float64, device="cpu").to(X)
    some = torch.randint(n, (p,), generator=generator, device="cpu").to(device)
    lower, upper = X.aminmax(dim=0)
    side = (upper - lower).clamp_min(1e-300)
    beside = nearest(X[some] / side, X / side, min(5, n))[:, 1:]  # [p, 4]: a datum is the nearest to itself
    number = torch.arange(p, device=device)
    between = torch.lerp(X[some], X[beside[number, number % beside.shape[1]]], u[:p, :1])
    x = torch.cat([between, torch.lerp(lower, upper, u[p:])])  # [2 p, d]
    near = nearest(x / side, X / side, k)  # [2 p, k]
    # each row has a place, and then its nearest data
    index = torch.arange(len(x) * (k + 1), device=device).view(len(x), k + 1)
    Z = torch.cat([x[:, None], X[near]], dim=1).flatten(0, 1)  # [2 p (1 + k), d]
    # at a place, it is the value of the same output as that of the nearest datum
    of = None if channels is None else torch.cat([channels[near[:, :1]] % t, channels[near]], dim=1)
    i, j = torch.tril_indices(k + 1, k + 1, device=device)
    of_pairs = basis.covariances(Z, index[:, i].flatten(), index[:, j].flatten(), None if of is None else of.flatten())
    by_lattice = Z.new_empty(len(x), k + 1, k + 1)
    by_lattice[:, i, j] = by_lattice[:, j, i] = of_pairs.view(len(x), -1)
    exact, points, kernel = torch.zeros_like(by_lattice), Z + origin, kernel.to(device, torch.float64)
    if basis.kinds is not None and of is not None:
        exact = covariances_of_groups(kernel, functionals_at(basis.kinds, points, of.flatten(), t), index)
    else:
        for B, part in kernel.coupled():
            K = part.forward(points[index], points[index])
            exact += K if B is None or of is None else K * B[of[:, :, None], of[:, None]]
    rows = y[:paths, near].movedim(0, -1)  # [p, k, r]
    m, variance = _kriged(exact, noise[near], rows)
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


def _with_floor(noise: Tensor, basis: Joint, channels: Tensor | None) -> Tensor:
    """Replace noise of zero, or nearly zero, by the smallest noise that rounding allows on a lattice."""
    each = noise.new_tensor(basis.largest_variances()) / (0.1 * LARGEST_INFORMATION)
    of_outputs = each.view(-1, basis.num_outputs).amax(1)  # the largest over the outputs of each kind of observation
    smallest = of_outputs[:1] if channels is None else of_outputs[channels // basis.num_outputs]
    if not bool((noise < smallest).any()):
        return noise
    least = float(smallest.max())
    warnings.warn(
        f"condition_on: a lattice cannot represent noise below {least:.1e}; smaller noise counts as {least:.1e}",
        JitterWarning,
        stacklevel=level_outside(),
    )
    return torch.maximum(noise, smallest)


def _variance_of_tail(tail: PriorPaths, X: Tensor, tasks: Tensor | None, noise: Tensor) -> Tensor:
    """The variance of the frequencies above the modes, at data."""
    variance = variances_at(tail, X, tasks)
    if bool((variance > noise).any()):
        most = float(variance.max())
        warnings.warn(
            f"condition_on: the modes of this prior's lattice leave out a variance of {most:.1e}, which counts as "
            'noise of the data and is more than their own; for paths closer to the data draw with features="lattice"',
            JitterWarning,
            stacklevel=level_outside(),
        )
    return variance


def _require_digits(largest: float, in_float32: bool, largest_in_float32: float = 1e5) -> None:
    """Raise a ValueError if the statistics, which may be in float32, have too few digits relative to the prior's
    precision."""
    if largest > LARGEST_INFORMATION:
        raise ValueError(
            f'solver="lattice": the data determine a weight {largest:.0e} times better than the prior, which is beyond '
            f'{LARGEST_INFORMATION:.0e}, what rounding allows: the noise is too small; use solver="cholesky"'
        )
    if in_float32 and largest > largest_in_float32:
        raise ValueError(
            "condition_on: these paths keep what is left of their data in float32, which has too few digits for more "
            "data; draw with dtype=torch.float64"
        )
