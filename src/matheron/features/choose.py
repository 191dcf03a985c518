"""From a kernel to a finite basis for its prior: which features each term gets, and how many."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..core.engines import load_engines
from ..core.value import in_own_memory
from ..evaluate.bases import Basis, Cosines, Pairs
from ..kernels import Kernel
from ..kernels.spectral import Elliptical
from ..kernels.terms import Term
from .explicit import explicit, monomial_count
from .features import Asked, Choice, Features, merged, root_of
from .fourier import RANDOM_KINDS, fourier
from .harmonics import harmonic_series, harmonics
from .leverage.draw import leverage
from .leverage.proposal import Component, components

# Kinds that only an engine can make; and the dimensions of a lattice, at the most.
LATTICE_KINDS, LARGEST_DIM = ("lattice", "equispaced"), 3
KINDS = ("auto", "leverage", *RANDOM_KINDS, *LATTICE_KINDS)
# "auto" takes the harmonics of a kernel that repeats itself when they hold this share of its variance.
CAPTURED_SHARE = 0.99
# Monomials, each with frequencies of its own by leverage: beyond, products are random.
LARGEST_ENVELOPES = 32
# From this many dimensions orthogonal directions beat Sobol points (by about 10% of the kernel's error).
ORTHOGONAL_FROM_DIM = 16


class Planned(NamedTuple):
    """What an engine has chosen for some terms of a kernel, ahead of all other features."""

    blocks: list[tuple[Basis, Tensor | None]]  # bases, each with its coupling
    choices: list[Choice]
    tails: list[tuple[list[Term], Tensor]]  # terms whose frequencies with a coordinate beyond `[d]` are to be sampled
    terms: list[Term]  # those that are left to other features


def relevant_terms(kernel: Kernel, input_dim: int) -> list[Term]:
    """The terms of a kernel that are not zero everywhere."""
    return [t for t in kernel.terms(input_dim) if bool(t.variance > 0) and all(bool(c.any()) for c in t.forms)]


# Each is asked, in order, which terms of a kernel it takes: None where that is none. An engine adds its own.
PLANNERS: list[Callable[[Kernel, Asked], Planned | None]] = []


def build_features(kernel: Kernel, asked: Asked) -> Features:
    """A basis for the prior of `kernel`."""
    kind, domain, reference = asked.kind, asked.domain, asked.reference
    input_dim, num_features = asked.input_dim, asked.num_features
    if kind not in KINDS:
        raise ValueError(f"features: expected one of {', '.join(KINDS)} or a Features object, got {kind!r}")
    if kind in LATTICE_KINDS and domain is None:
        raise ValueError(f'features="{kind}" needs domain=(lower, upper): the box where the paths will be called')
    if kind == "leverage" and asked.posterior is None:
        raise ValueError('features="leverage" needs data, or inducing points: without them use "auto"')
    planned = _planned(kernel, asked)
    terms = planned.terms
    chosen = with_components(terms, input_dim) if kind in ("auto", "leverage") and asked.posterior is not None else []
    terms = [t for t in terms if not any(t is other for other, _ in chosen)]
    sizes = [sum(size_of(t, reference) for t, _ in chosen)] if chosen else []
    counts = iter(_allocate(num_features, sizes + [size_of(t, reference) for t in terms if t.stationary]))
    blocks: list[tuple[Basis, Tensor | None]] = []
    apart: list[tuple[Basis, Tensor | None]] = []  # beyond modes: what data are given on is without these
    choices = list(planned.choices)
    used_domain = domain if planned.blocks else None
    sampled: list[tuple[list[tuple[Term, list[Component]]], int, Tensor | None]] = []
    for tail, beyond in planned.tails:
        parts = [(t, found) for t in tail if (found := components(t, input_dim)) is not None]
        sampled.append((parts, num_features, beyond))
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
    blocks = [*planned.blocks, *merged(apart), *merged(blocks)]
    roots = [root_of(B, kernel.num_outputs) for _, B in blocks]
    # A file's tensors are in memory of their own: so that loaded paths have the same values, these are, too.
    bases = [b.mapped(in_own_memory) if isinstance(b, Pairs | Cosines) else b for b, _ in blocks]
    return Features(bases, roots, asked.origin, used_domain, choices)


def _planned(kernel: Kernel, asked: Asked) -> Planned:
    """What the first engine that takes some terms of the kernel has chosen; without one, all terms are left."""
    load_engines()
    for plan in PLANNERS:
        planned = plan(kernel, asked)
        if planned is not None:
            return planned
    return Planned([], [], [], relevant_terms(kernel, asked.input_dim))


def repeats(term: Term, input_dim: int, count: int) -> bool:
    """Whether `count` features hold the term's whole spectrum: then it needs no lattice."""
    series = harmonic_series(term, input_dim, count)
    return series is not None and series.tail == 0


def with_components(terms: list[Term], input_dim: int) -> list[tuple[Term, list[Component]]]:
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


def size_of(term: Term, reference: Tensor | None) -> float:
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
