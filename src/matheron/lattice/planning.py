"""Which terms of a kernel go on a lattice, and on how many modes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..core.functionals import Functionals
from ..features import LATTICE_KINDS, Choice, FeatureSpec, posterior_scale
from ..features.choose import Planned, size_of
from ..features.explicit import harmonic_series, monomial_count
from ..features.features import BEYOND, LATTICE, Coupled, relevant_terms
from ..kernels import Kernel
from ..kernels.base import Term
from ..solvers import FactoredPosterior
from .basis import Lattice, same_modes
from .kinds import scale_of_functionals
from .series import LARGEST_ERROR, LatticeBlock, Modes, NoJointLattice, Seen, grouped, lattices, with_series
from .system import LARGEST_BESIDE
from .tail import Shells


@dataclass(frozen=True)
class LatticePlanner:
    """Puts the terms of a kernel that have a Fourier series on lattices, and chooses the numbers of modes.

    Attributes:
        largest, memory: modes of a lattice at the most; and bytes that the weights of all paths may fill.
        in_graph: the same where hyperparameters have derivatives: every mode is then summed over by torch's own
            operations, and kept.
        with_tail, memory_with_tail: the same in two and three dimensions, where further lattices can hold what lies
            beyond the modes, for "auto"; memory is that of all of these lattices.
        first: modes of the first lattice, where there are further ones.
        usual_tolerance, finer: for a smaller tolerance than the usual one, the first lattice and those after it have
            more modes, in proportion to this power of the tolerance. A tenth of the tolerance has four times the modes,
            and waves half as long in a plane.
        plane, space: how these are made in two dimensions, and in three.
        line_memory: in one dimension there are modes alone, with more memory for their weights; where that does not do,
            no lattice.
        fine, fine_memory, looser: a rough kernel's modes in one dimension, and how many times the share they may leave
            out if these do not do (see `Modes`). With 2^16 of them, variances of Matern-1/2 a ten-thousandth of the
            domain away from a datum are right to a twentieth (tests/features/test_choose.py).
        fine_joint, looser_joint: the same where data are solved for on the lattice: fewer, to more accuracy.
        unknown_share: of the prior's variance, what is taken for the posterior's without data: paths drawn from a prior
            may be conditioned later, which reduces the variance.
    """

    largest: int = 1 << 20
    memory: int = 1 << 29
    in_graph: int = 4096
    with_tail: int = 1 << 18
    memory_with_tail: int = 1 << 27
    first: int = 1 << 16
    usual_tolerance: float = 1e-3
    finer: float = 0.6
    plane: Shells = field(default_factory=Shells)
    space: Shells = field(default_factory=lambda: Shells(period=0.58, first_modes=5.0, growth=3.0, modes=0.55))
    line_memory: int = 1 << 30
    fine: int = 1 << 16
    fine_memory: int = 1 << 26
    looser: float = 160.0
    fine_joint: int = 1 << 13
    looser_joint: float = 10.0
    unknown_share: float = 0.01

    def __call__(
        self,
        kernel: Kernel,
        spec: FeatureSpec,
        origin: Tensor,
        posterior: FactoredPosterior | None,
        generator: torch.Generator,
    ) -> Planned | None:
        """Make lattices for the terms of a kernel that have one on the domain. None if no lattice is requested."""
        kind, d = spec.kind, len(origin)
        if kind not in ("auto", *LATTICE_KINDS):
            return None
        # For functionals, the number of modes is only known if the data are also solved for on the lattice.
        if posterior is not None and isinstance(posterior.sites, Functionals) and not spec.joint:
            return None
        terms = relevant_terms(kernel, d)
        if kind in LATTICE_KINDS and any(t.stationary and t.forms for t in terms):
            raise ValueError(
                f'features="{kind}": expected terms that are stationary, or linear or polynomial by themselves, got '
                f'{kernel!r}, in which a stationary kernel is multiplied with a linear one; use features="auto"'
            )
        # If a lattice was requested, a prior that consists of modes can be conditioned on data on its lattice.
        tailed = (kind == "auto" or (kind == "lattice" and posterior is not None)) and not spec.joint
        made, rest = self._lattices(kernel, terms, spec, posterior, tailed)
        if spec.joint:
            _require_joint(made, rest, d, spec.num_features)
        parts = [Coupled(placed.basis, placed.coupling, LATTICE) for placed in made]
        choices = [_choice(placed.basis) for placed in made]
        for placed in made:
            if placed.tail:
                k = len(placed.box.dims)
                shells = self.space if k == 3 else self.plane
                shells = replace(shells, shortest=shells.shortest / self._more(spec) ** (1 / k))
                tail = shells.lattices(placed, d)
                parts += [Coupled(basis, placed.coupling, BEYOND) for basis in tail]
                choices.append(Choice("spectrum", sum(basis.size for basis in tail)))
        return Planned(parts, choices, rest)

    def _lattices(
        self,
        kernel: Kernel,
        terms: list[Term],
        spec: FeatureSpec,
        posterior: FactoredPosterior | None,
        tailed: bool,
    ) -> tuple[list[LatticeBlock], list[Term]]:
        """The lattices, with further lattices or with the whole variance, and the terms that have none."""
        kind, domain = spec.kind, spec.domain
        assert domain is not None
        input_dim = domain.shape[1]
        waves = [t for t in terms if t.stationary and not (t.forms or t.own)]
        discrete = [t for t in waves if _repeats(t, input_dim, spec.num_features)]
        if spec.joint and len(discrete) == len(waves):  # data are solved for on a lattice, so that one term is on it
            discrete = discrete[1:]
        left = [t for t in terms if not any(t is other for other in discrete)]
        alike = grouped(with_series(left))
        # `alike` lattices, with equally many modes each
        weights = spec.num_paths * kernel.num_outputs * max(1, len(alike))
        # "equispaced" is the old name, whose number of features is the number of modes
        most = spec.num_features if kind == "equispaced" else self.largest
        if torch.is_grad_enabled() and kernel.requires_graph():
            most = min(most, self.in_graph)

        def within(most: int, memory: int) -> int:
            return max(1, min(most, memory // (8 * weights)))

        several, one = Modes(within(most, self.memory)), Modes(within(most, self.line_memory))
        if spec.joint:
            one = Modes(one.largest, self.fine_joint, self.looser_joint)
        elif tailed and kind == "auto":
            more = self._more(spec)
            first = within(int(more * min(most // 4, self.first)), int(more * self.memory_with_tail / self.plane.total))
            several = Modes(
                within(int(more * min(most, self.with_tail)), int(more * self.memory_with_tail)), first=first
            )
            one = Modes(one.largest, within(self.fine, self.fine_memory), self.looser)
        elif tailed:
            several = several._replace(first=within(most // 4, int(self.memory / self.plane.total)))
        needed, seen = _needed(kernel, spec, posterior, input_dim)
        if needed is None:
            needed = self.unknown_share * sum(size_of(t, domain) for t in left if t.stationary)
        tolerance = spec.tolerance / 2 if input_dim == 1 else spec.tolerance
        # The mean has an error of the same size as the lattice's kernel. In one dimension there are few modes, so that
        # a small error costs little. The periodic images of a smooth kernel overlap the whole domain, so that the box
        # must be longer.
        images = tolerance * (0.04 if input_dim == 1 else 0.1 if spec.joint else 1.0)
        # A quarter of the tolerance: in a smooth posterior with dense points, the whole left-out variance appears as
        # error.
        made, rest = lattices(
            left,
            input_dim,
            domain,
            left_out=0.25 * tolerance * needed,
            images=images,
            several=several,
            one=one,
            largest_error=math.inf if kind == "equispaced" else LARGEST_ERROR,
            joint=spec.joint,
            refused=spec.largest_lattice,
            tailed=tailed,
            seen=seen,
        )
        return made, rest + discrete

    def _more(self, spec: FeatureSpec) -> float:
        """The factor by which this tolerance needs more modes than the usual one, if there are further lattices."""
        return max(1.0, (self.usual_tolerance / spec.tolerance) ** self.finer)


def _repeats(term: Term, input_dim: int, count: int) -> bool:
    """Whether `count` features represent the whole spectrum of the term. Then it needs no lattice."""
    series = harmonic_series(term, input_dim, count)
    return series is not None and series.tail == 0


# The planner that `draw` uses.
PLANNER = LatticePlanner()


def _needed(
    kernel: Kernel, spec: FeatureSpec, posterior: FactoredPosterior | None, input_dim: int
) -> tuple[float | None, Seen | None]:
    """A typical posterior variance between the data, relative to which the modes are chosen; None if there are no data.

    Other kinds of data than values have posterior variances of their own, and the same share of them may be missing.
    With functionals, the second result is therefore the factor by which each frequency counts more than for values
    alone.
    """
    if posterior is None:
        return None, None
    # In one dimension there are few modes, even if they also resolve clusters of data.
    sites, one, seen = posterior.sites, input_dim == 1, None
    if isinstance(sites, Functionals):
        scale, seen = scale_of_functionals(posterior.kernel, sites, posterior.noise)
    else:
        scale = posterior_scale(posterior.kernel, sites.points.detach(), posterior.noise, at_data=spec.joint or one)
    # If the data are also solved for on the lattice, the truncation error enters both terms and cancels to first order.
    # A tolerance ten times larger then gives the same error in the variance (below 1e-3, benchmarks/lattice.py). In one
    # dimension this does not help, because the mean in the gaps between clusters of data needs as many modes as before.
    return scale * (10 if spec.joint and not one else 1), seen


def _choice(basis: Lattice) -> Choice:
    return Choice("lattice", basis.size, left_out=basis.left_out, error=basis.error, modes=basis.shape)


def _require_joint(made: list[LatticeBlock], rest: list[Term], input_dim: int, count: int) -> None:
    """Raise an error unless the whole kernel is on one lattice, except for terms that have exact features of their
    own."""
    plain = [t for t in rest if not t.own]
    exact = [
        not t.forms and _repeats(t, input_dim, count)
        if t.stationary
        else monomial_count(list(t.forms)) <= LARGEST_BESIDE
        for t in plain
    ]
    exact += [False] * (len(rest) - len(plain))
    if not made or not same_modes([basis for basis, *_ in made]) or not all(exact):
        others = len(exact) - sum(exact)
        why = f"{len(made)} lattices, and {others} terms that have none"
        if len(made) > 1 and not others:
            why += "; one for all terms would have too many modes for this many paths, two periods or over 3 dimensions"
        raise NoJointLattice(why)
