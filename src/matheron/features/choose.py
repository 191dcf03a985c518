"""Choose the features of each term of a kernel and their number, if they are not random Fourier features alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..evaluate import Basis, Cosines, Pairs, Products
from ..kernels import Kernel, OnDims
from ..kernels.base import Term, same_coupling
from ..kernels.own import is_unchecked, say_wrong_features
from ..kernels.radial import Elliptical
from ..solvers import FactoredPosterior
from ..solvers.base import load_engines
from .explicit import LARGEST_MONOMIAL_COUNT, explicit, harmonic_series, harmonics, monomial_count
from .features import (
    EXACT,
    LARGEST_DIM,
    LATTICE_KINDS,
    RANDOM,
    RANDOM_KINDS,
    Choice,
    Coupled,
    Features,
    FeatureSpec,
    fourier,
    relevant_terms,
)
from .leverage import Leverage, leverage, summands, whole_numbers
from .own import own_features, some_of
from .residuals import Reference


class Planned(NamedTuple):
    """What an engine chose for some terms of a kernel, before all other features are chosen."""

    parts: list[Coupled]
    choices: list[Choice]
    terms: list[Term]  # the terms that are left to other features


# A planner returns the features of the terms that its engine takes on a domain, or None. Engines add their planners to
# this list; the first answer is used.
Planner = Callable[[Kernel, FeatureSpec, Tensor, FactoredPosterior | None, torch.Generator], Planned | None]
PLANNERS: list[Planner] = []


def chosen_features(
    kernel: Kernel,
    spec: FeatureSpec,
    generator: torch.Generator,
    origin: Tensor,
    reference: Tensor | None,
    posterior: FactoredPosterior | None,
) -> Features:
    """Make the features of each term of a kernel: an engine's, frequencies by leverage, or plain ones.

    Args:
        origin: the point `[d]` about which phases are taken.
        reference: points `[n, d]` at which the variances of terms are compared, or None.
        posterior: the posterior for which frequencies are chosen, or None.
    """
    kind, d, t = spec.kind, len(origin), kernel.num_outputs
    if kind == "leverage" and posterior is None:
        raise ValueError('features="leverage" needs data, or inducing points: without them use "auto"')
    planned = _planned(kernel, spec, origin, posterior, generator)
    terms = planned.terms
    if reference is not None and len(reference):
        for part in (kernel for term in terms for kernel in (*term.own, *term.stationary) if is_unchecked(kernel)):
            say_wrong_features(part.mapped(Tensor.detach), some_of(reference))
    by_leverage = kind in ("auto", "leverage") and posterior is not None and not spec.joint
    found = [part for term in terms for part in summands(term, d)] if by_leverage else []
    if 2 * len(found) > spec.num_features:
        found = []  # there would be too few features for each of the tables
    chosen = [term for term in terms if any(part.term is term for part in found)]
    terms = [term for term in terms if not any(term is other for other in chosen)]
    sizes = [sum(size_of(term, reference) for term in chosen)] if chosen else []
    counts = iter(_allocate(spec.num_features, sizes + [size_of(t, reference) for t in terms if t.stationary or t.own]))
    parts: list[Coupled] = []
    choices = list(planned.choices)
    if found:
        assert posterior is not None
        parts += leverage(found, next(counts), spec, origin, posterior, generator)
        choices.append(Choice("leverage", sum(part.basis.size for part in parts)))
    for term in terms:
        count = next(counts) if term.stationary or term.own else spec.num_features
        bases, choice, exact = _bases(
            term, count, spec, origin, generator, reference, posterior if by_leverage else None
        )
        parts += [Coupled(basis, term.coupling, EXACT if exact else RANDOM) for basis in bases]
        choices.append(choice)
    everything = [*planned.parts, *merged(parts)]
    return Features([part.block(t) for part in everything], origin, spec.domain if planned.parts else None, choices)


def _planned(
    kernel: Kernel,
    spec: FeatureSpec,
    origin: Tensor,
    posterior: FactoredPosterior | None,
    generator: torch.Generator,
) -> Planned:
    """Ask the engines in order. The first one that takes some terms chooses; without one, all terms are left."""
    if spec.domain is not None:
        load_engines()
        for plan in PLANNERS:
            planned = plan(kernel, spec, origin, posterior, generator)
            if planned is not None:
                return planned
    return Planned([], [], relevant_terms(kernel, len(origin)))


def _bases(
    term: Term,
    count: int,
    spec: FeatureSpec,
    origin: Tensor,
    generator: torch.Generator,
    data: Tensor | None,
    posterior: FactoredPosterior | None,
) -> tuple[list[Basis], Choice, bool]:
    """Make the bases of one term: the bases, the record of them, and whether they represent the term exactly."""
    kind, num_bases, input_dim = spec.kind, spec.num_bases, len(origin)
    if term.own:
        reference = None
        if posterior is not None and posterior.kernel.num_outputs == 1:
            lengths = torch.ones(input_dim, dtype=torch.float64, device="cpu")
            reference = Reference(posterior, spec.domain, spec.where, lengths)
        bound = Leverage().bound(spec, one_dim=False)
        basis, chosen = own_features(term, count, num_bases, origin, generator, data, reference, bound)
        names = [type(kernel.kernel if isinstance(kernel, OnDims) else kernel).__name__ for kernel in term.own]
        product = bool(len(names) > 1 or term.stationary or term.forms)
        how = f"features of {' and '.join(names)}"
        how = f"{how} by leverage" if chosen else f"plain {how}"
        return [basis], Choice(how, basis.size, products=product), False
    if not term.stationary and not term.forms:
        zero = torch.zeros(1, 1, input_dim, dtype=torch.float64, device="cpu")
        return [Cosines(zero, zero[..., 0], term.variance.cpu().sqrt()[None, None])], Choice("constant", 1), True
    if term.forms:
        random = kind if term.stationary and kind in RANDOM_KINDS else "sobol"
        assert isinstance(random, str)
        bases = explicit(term, input_dim, count, kind=random, num_bases=num_bases, origin=origin, generator=generator)
        choice = Choice(random if term.stationary else "explicit", bases[0].size, products=bool(term.stationary))
        return bases, choice, not term.stationary and monomial_count(list(term.forms)) <= LARGEST_MONOMIAL_COUNT
    if kind not in RANDOM_KINDS:
        series = harmonic_series(term, input_dim, count)
        # For a periodic kernel, "auto" takes the harmonics if they hold 99% of its variance.
        if series is not None and (kind in LATTICE_KINDS or series.captured >= 0.99):
            bases = harmonics(term, series, num_bases=num_bases, generator=generator)
            size = sum(b.size for b in bases)
            return bases, Choice("harmonics", size, left_out=1 - series.captured), series.tail == 0
        if kind in LATTICE_KINDS:
            raise ValueError(
                f'features="{kind}" needs a kernel of at most {LARGEST_DIM} dimensions whose frequencies on the domain '
                f"fit in memory, got one of {len(term.active_dims(input_dim))}; use a smaller domain, or features "
                '"sobol" or "auto"'
            )
        elliptical = isinstance(m := term.measure(input_dim), Elliptical) and getattr(m, "shift", None) is None
        # From 16 dimensions on, the kernel's error with orthogonal directions is about 10% smaller than with Sobol
        # points.
        kind = "orthogonal" if elliptical and input_dim >= 16 else "sobol"
    assert isinstance(kind, str)
    bases = fourier(term, input_dim, count, kind=kind, num_bases=num_bases, generator=generator)
    return bases, Choice(kind, count), False


def merged(parts: list[Coupled]) -> list[Coupled]:
    """Concatenate Fourier bases of the same kind, number, role and coupling, so that they need one product."""
    groups: list[list[Coupled]] = []
    for part in parts:
        for group in groups:
            if _alike(group[0], part):
                group.append(part)
                break
        else:
            groups.append([part])
    return [group[0]._replace(basis=_joined([part.basis for part in group])) for group in groups]


def _alike(a: Coupled, b: Coupled) -> bool:
    """Whether two bases can be concatenated."""
    if type(a.basis) is not type(b.basis) or a.basis.num_bases != b.basis.num_bases or a.role != b.role:
        return False
    if isinstance(a.basis, Products) and isinstance(b.basis, Products):
        fourier = a.basis.fourier is not None and b.basis.fourier is not None
        if not fourier or a.basis.projections.shape[1] != b.basis.projections.shape[1]:
            return False
    elif not isinstance(a.basis, Pairs | Cosines):
        return False
    return same_coupling(a.coupling, b.coupling)


def _joined(bases: Sequence[Basis]) -> Basis:
    """Concatenate bases that are alike."""
    first = bases[0]
    if len(bases) == 1:
        return first
    buffers = {k: [getattr(basis, k) for basis in bases] for k in first._buffers}
    if isinstance(first, Products):
        cosines = _joined([basis.fourier for basis in bases if isinstance(basis, Products) and basis.fourier])
        assert isinstance(cosines, Cosines)
        A, amplitudes = torch.cat(buffers["projections"], dim=2), torch.cat(buffers["amplitudes"], dim=1)
        return Products(A, amplitudes, first.origin, cosines)
    return type(first)(**{k: torch.cat(each, dim=1) for k, each in buffers.items()})


def _allocate(total: int, sizes: list[float]) -> list[int]:
    """Share `total` features among terms, half equally and half in proportion to their sizes; at least one each.

    Sharing in proportion alone minimises the error of the kernel. However, data determine a large and smooth term
    better than a small one.
    """
    if not sizes:
        return []
    whole = sum(sizes) or 1.0  # the sum is zero if all terms vanish at all reference points
    return whole_numbers(total, np.array(sizes) / whole + 1 / len(sizes))


def size_of(term: Term, reference: Tensor | None) -> float:
    """Compute a term's mean variance over the reference points, or at (1, .., 1) if there are none."""
    size = float(term.variance.detach())
    if term.coupling is not None:
        size *= float(term.coupling.detach().diagonal().mean())
    if term.forms:
        x = (
            torch.ones(1, len(term.forms[0]) - 1, dtype=torch.float64, device="cpu")
            if reference is None
            else reference.detach().cpu()
        )
        x2 = torch.nn.functional.pad(x.double().square(), (0, 1), value=1.0)  # the squares of (x, 1)
        size *= float(torch.stack([x2 @ c.detach().cpu() for c in term.forms]).prod(0).mean())
    return size
