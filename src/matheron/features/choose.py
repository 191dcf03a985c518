"""From a kernel to a finite basis for its prior: which features each term gets, and how many."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..kernels import Kernel
from ..kernels.spectral import Elliptical
from ..kernels.terms import Term
from ..value import in_own_memory
from .basis import Basis, Cosines, Pairs
from .box import LARGEST_DIM
from .explicit import explicit, monomial_count
from .features import Asked, Choice, Features, merged, root_of
from .fourier import RANDOM_KINDS, fourier
from .harmonics import harmonic_series, harmonics
from .leverage import leverage
from .modulated import OnLattice, lattice_in, powers_in, powers_of, same_modes
from .proposal import Component, components
from .series import LARGEST_ERROR, Modes, NoJointLattice, Placed, lattices, pieces_of

LATTICE_KINDS = ("lattice", "equispaced")
KINDS = ("auto", "leverage", *RANDOM_KINDS, *LATTICE_KINDS)
# "auto" takes the harmonics of a kernel that repeats itself when they hold this share of its variance.
CAPTURED_SHARE = 0.99
# Modes of a lattice at the most: as many weights as fill this many bytes, for all paths.
LARGEST_LATTICE, LATTICE_MEMORY = 1 << 20, 1 << 29
# In a graph every mode is summed over by torch's own operations, and kept: few are all that is practical.
LARGEST_IN_GRAPH = 4096
# In several dimensions, where random frequencies hold what lies beyond its modes, "auto" needs no more.
LARGEST_COMPLETED, COMPLETED_MEMORY = 1 << 18, 1 << 27
# In one dimension there are modes alone, with more memory for their weights; where that does not do, no lattice.
LINE_MEMORY = 1 << 30
# A rough kernel's modes in one dimension, and how many times the share they may leave out if these do not do (see
# `Modes`). With 2^16 of them, variances of Matern-1/2 a ten-thousandth of the domain away from a datum are right to a
# twentieth (tests/features/test_choose.py). Data are solved for on fewer, and to more accuracy.
LARGEST_FINE, FINE_MEMORY, LOOSER = 1 << 16, 1 << 26, 160.0
LARGEST_FINE_JOINT, LOOSER_JOINT = 1 << 13, 10.0
# Without data: paths drawn from a prior may be conditioned later, which reduces the variance.
_UNKNOWN_SHARE = 0.01
# Monomials, each with frequencies of its own by leverage: beyond, products are random.
LARGEST_ENVELOPES = 32
# From this many dimensions orthogonal directions beat Sobol points (by about 10% of the kernel's error).
ORTHOGONAL_FROM_DIM = 16


def build_features(kernel: Kernel, asked: Asked) -> Features:
    """A basis for the prior of `kernel`."""
    kind, domain, accuracy, reference = asked.kind, asked.domain, asked.accuracy, asked.reference
    input_dim, num_features = asked.input_dim, asked.num_features
    if kind not in KINDS:
        raise ValueError(f"features: expected one of {', '.join(KINDS)} or a Features object, got {kind!r}")
    if kind in LATTICE_KINDS and domain is None:
        raise ValueError(f'features="{kind}" needs domain=(lower, upper): the box where the paths will be called')
    terms = [t for t in kernel.terms(input_dim) if bool(t.variance > 0) and all(bool(c.any()) for c in t.forms)]
    if kind == "leverage" and asked.posterior is None:
        raise ValueError('features="leverage" needs data, or inducing points: without them use "auto"')
    # A prior on modes alone, where it is asked for, can be given data on its lattice.
    completed = kind == "auto" or (kind == "lattice" and asked.posterior is not None)
    completed = completed and domain is not None and not accuracy.joined
    completed = completed and len(_with_components(terms, input_dim)) == sum(bool(t.stationary) for t in terms)
    on_lattices, terms = _lattices(kernel, terms, asked, completed)
    if accuracy.joined:
        _require_joint(on_lattices, terms, input_dim, num_features)
    chosen = _with_components(terms, input_dim) if kind in ("auto", "leverage") and asked.posterior is not None else []
    terms = [t for t in terms if not any(t is other for other, _ in chosen)]
    sizes = [sum(_size(t, reference) for t, _ in chosen)] if chosen else []
    counts = iter(_allocate(num_features, sizes + [_size(t, reference) for t in terms if t.stationary]))
    blocks: list[tuple[Basis, Tensor | None]] = []
    apart: list[tuple[Basis, Tensor | None]] = []  # beyond modes: what data are given on is without these
    choices = [_choice(basis) for basis, *_ in on_lattices]
    used_domain = domain if on_lattices else None
    sampled: list[tuple[list[tuple[Term, list[Component]]], int, Tensor | None]] = []
    for basis, _, beyond in on_lattices:
        parts = [(t, found) for t in beyond if (found := components(t, input_dim)) is not None]
        sampled += [(parts, num_features, lattice_in(basis).beyond(input_dim))] if beyond else []
    sampled += [(chosen, next(counts), None)] if chosen else []
    for of, count, beyond in sampled:
        random = leverage(of, count, [root_of(t.coupling, kernel.num_outputs) for t, _ in of], asked, beyond)
        if beyond is not None:
            apart += random
        else:
            blocks += random
        how = "spectrum" if asked.posterior is None else "leverage"
        choices.append(Choice(how, sum(b.size for b, _ in random)))
    for term in terms:
        count = next(counts) if term.stationary else num_features
        bases, choice = _bases(term, count, asked)
        blocks += [(basis, term.coupling) for basis in bases]
        choices.append(choice)
    blocks = [*((placed.basis, placed.coupling) for placed in on_lattices), *merged(apart), *merged(blocks)]
    roots = [root_of(B, kernel.num_outputs) for _, B in blocks]
    # A file's tensors are in memory of their own: so that loaded paths have the same values, these are, too.
    bases = [b.mapped(in_own_memory) if isinstance(b, Pairs | Cosines) else b for b, _ in blocks]
    return Features(bases, roots, asked.origin, used_domain, choices)


def _lattices(kernel: Kernel, terms: list[Term], asked: Asked, completed: bool) -> tuple[list[Placed], list[Term]]:
    """The terms that go on lattices, and the others."""
    kind, domain, to, input_dim = asked.kind, asked.domain, asked.accuracy, asked.input_dim
    if kind in ("leverage", *RANDOM_KINDS) or domain is None:
        return [], terms
    discrete = [t for t in terms if t.stationary and not t.forms and _repeats(t, input_dim, asked.num_features)]
    left = [t for t in terms if not any(t is other for other in discrete)]
    alike = {(id(t.coupling), powers_of(piece)) for t, piece in pieces_of(left)}
    weights = to.num_paths * kernel.num_outputs * max(1, len(alike))  # of lattices of as many modes each
    most = asked.num_features if kind == "equispaced" else LARGEST_LATTICE  # the old name, whose features are counted
    if torch.is_grad_enabled() and kernel.requires_graph():
        most = min(most, LARGEST_IN_GRAPH)

    def within(most: int, memory: int) -> int:
        return max(1, min(most, memory // (8 * weights)))

    several, one = Modes(within(most, LATTICE_MEMORY)), Modes(within(most, LINE_MEMORY))
    if to.joined:
        one = Modes(one.largest, LARGEST_FINE_JOINT, LOOSER_JOINT)
    elif completed and kind == "auto":
        several = Modes(within(min(most, LARGEST_COMPLETED), COMPLETED_MEMORY))
        one = Modes(one.largest, within(LARGEST_FINE, FINE_MEMORY), LOOSER)
    scale = _UNKNOWN_SHARE * sum(_size(t, domain) for t in left if t.stationary)
    tolerance = to.tolerance / 2 if input_dim == 1 else to.tolerance
    # A mean by the lattice's kernel errs as much as that does; in one dimension modes are few, and a smooth posterior
    # sees all of an image.
    images = tolerance * (0.04 if input_dim == 1 else 0.1 if to.joined else 1.0)
    # A quarter: where a posterior is smooth and its points are dense, all of what is left out is seen.
    left_out = 0.25 * tolerance * (scale if to.posterior_variance is None else to.posterior_variance)
    made, rest = lattices(
        left,
        input_dim,
        domain,
        asked.origin,
        left_out=left_out,
        images=images,
        several=several,
        one=one,
        largest_error=math.inf if kind == "equispaced" else LARGEST_ERROR,
        joint=to.joined,
        refused=to.largest,
        completed=completed,
    )
    return made, rest + discrete


def _choice(basis: OnLattice) -> Choice:
    of, powers = lattice_in(basis), powers_in(basis)
    return Choice("lattice", of.size, bool(powers), left_out=of.left_out, error=of.error, modes=of.shape)


def _require_joint(made: list[Placed], rest: list[Term], input_dim: int, count: int) -> None:
    """All of the kernel is on one lattice, but for terms that have exact features of their own."""
    exact = [not t.stationary or (not t.forms and _repeats(t, input_dim, count)) for t in rest]
    if not made or not same_modes([basis for basis, *_ in made]) or not all(exact):
        others = len(exact) - sum(exact)
        raise NoJointLattice(f"{len(made)} lattices, and {others} terms that have none")


def _repeats(term: Term, input_dim: int, count: int) -> bool:
    """Whether `count` features hold the term's whole spectrum: then it needs no lattice."""
    series = harmonic_series(term, input_dim, count)
    return series is not None and series.tail == 0


def _with_components(terms: list[Term], input_dim: int) -> list[tuple[Term, list[Component]]]:
    """The terms whose frequencies can be sampled by importance, with the components of their spectra."""
    stationary = [t for t in terms if t.stationary and monomial_count(list(t.forms)) <= LARGEST_ENVELOPES]
    found = [(t, components(t, input_dim)) for t in stationary]
    return [(t, parts) for t, parts in found if parts is not None]


def _bases(term: Term, count: int, asked: Asked) -> tuple[list[Basis], Choice]:
    """The bases of one term, and the record of them."""
    kind, num_bases, generator, input_dim = asked.kind, asked.num_bases, asked.generator, asked.input_dim
    if not term.stationary and not term.forms:
        zero = torch.zeros(1, 1, input_dim, dtype=torch.float64, device="cpu")
        return [Cosines(zero, zero[..., 0], term.variance.cpu().sqrt()[None, None])], Choice("constant", 1)
    if term.forms:
        random = kind if term.stationary and kind in RANDOM_KINDS else "sobol"
        bases = explicit(
            term, input_dim, count, kind=random, num_bases=num_bases, origin=asked.origin, generator=generator
        )
        what = random if term.stationary else "explicit"
        return bases, Choice(what, bases[0].size, products=bool(term.stationary))
    if kind not in RANDOM_KINDS:
        series = harmonic_series(term, input_dim, count)
        if series is not None and (kind in LATTICE_KINDS or series.captured >= CAPTURED_SHARE):
            bases = harmonics(term, series, num_bases=num_bases, generator=generator)
            size = sum(b.size for b in bases)
            return bases, Choice("harmonics", size, left_out=1 - series.captured)
        if kind in LATTICE_KINDS:
            raise ValueError(
                f'features="{kind}" needs a kernel of at most {LARGEST_DIM} dimensions whose frequencies on the domain '
                f"fit in memory, got one of {len(term.active_dims(input_dim))}; use a smaller domain, or features "
                '"sobol" or "auto"'
            )
        elliptical = isinstance(m := term.measure(input_dim), Elliptical) and getattr(m, "shift", None) is None
        kind = "orthogonal" if elliptical and input_dim >= ORTHOGONAL_FROM_DIM else "sobol"
    bases = fourier(term, input_dim, count, kind=kind, num_bases=num_bases, generator=generator)
    return bases, Choice(kind, count)


def _allocate(total: int, sizes: list[float]) -> list[int]:
    """`total` shared half equally, half in proportion to the sizes; at least one each.

    In proportion alone minimises the kernel's error. But data determine a large and smooth term, and a small one less.
    """
    if not sizes:
        return []
    whole = sum(sizes) or 1.0  # zero where all terms vanish at all of the reference points
    sizes = [size / whole + 1 / len(sizes) for size in sizes]
    scale = total / sum(sizes)
    counts = [max(1, int(size * scale)) for size in sizes]
    while sum(counts) > max(total, len(counts)):  # what the smallest were given, the largest gives up
        counts[counts.index(max(counts))] -= 1
    by_remainder = sorted(range(len(sizes)), key=lambda i: counts[i] - sizes[i] * scale)
    for i in by_remainder[: max(0, total - sum(counts))]:
        counts[i] += 1
    return counts


def _size(term: Term, reference: Tensor | None) -> float:
    """A term's mean variance over the reference points (at (1, .., 1) where there are none)."""
    size = float(term.variance.detach())
    if term.coupling is not None:
        size *= float(term.coupling.detach().diagonal().mean())
    if term.forms:
        x = (
            torch.ones(1, len(term.forms[0]) - 1, dtype=torch.float64, device="cpu")
            if reference is None
            else reference.detach().cpu()
        )
        x2 = torch.nn.functional.pad(x.double().square(), (0, 1), value=1.0)  # of (x, 1)
        size *= float(torch.stack([x2 @ c.detach().cpu() for c in term.forms]).prod(0).mean())
    return size
