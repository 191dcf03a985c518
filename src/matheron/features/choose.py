"""From a kernel to a finite basis for its prior: which features each term gets, and how many."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..kernels import Kernel
from ..kernels.spectral import Elliptical
from ..kernels.terms import Term
from ..value import Parts, Value
from .basis import Basis, Cosines, Pairs
from .equispaced import LARGEST_DIM, equispaced, fourier_series
from .explicit import explicit
from .fourier import RANDOM_KINDS, fourier

KINDS = ("auto", *RANDOM_KINDS, "equispaced")
# "auto" takes equispaced features when they hold this share of the prior's variance, and err by this much at the most
# where the box wraps around.
CAPTURED_SHARE, LARGEST_WRAP = 0.99, 0.01
# From this many dimensions orthogonal directions beat Sobol points (by about 10% of the kernel's error).
ORTHOGONAL_FROM_DIM = 16


class Features(Value):
    """phi: x -> Phi, a finite basis of a prior: f(x) = phi(x) . w with w standard normal has covariance about k.

    A list of bases (Fourier, equispaced, explicit), an origin about which phases are taken so that a far offset costs
    no digits, and a domain outside which an equispaced basis is wrong. For several outputs each basis has a root of
    its coupling B.
    """

    fields = ("description",)

    def __init__(
        self,
        bases: Sequence[Basis],
        roots: Sequence[Tensor | None],
        origin: Tensor,
        domain: Tensor | None,
        description: str,
    ) -> None:
        super().__init__()
        self.bases = Parts(bases)
        self.description = description
        self.register_buffer("origin", origin)
        self.register_buffer("domain", domain)
        for i, root in enumerate(roots):
            self.register_buffer(f"root_{i}", root)

    @property
    def roots(self) -> list[Tensor | None]:
        return [getattr(self, f"root_{i}") for i in range(len(self.bases))]

    @property
    def num_features(self) -> int:
        return sum(basis.size for basis in self.bases)

    @property
    def num_bases(self) -> int:
        return max((basis.num_bases for basis in self.bases), default=1)

    def forward(self, x: Tensor) -> Tensor:
        """Phi: `[n, d] -> [g, n, ell]`, one a basis."""
        x = (x - self.origin)[None]
        blocks = [x[..., :0]]  # a kernel that is zero has no features
        blocks += [basis.values(x) * basis.scales()[:, None] for basis in self.bases]
        return torch.cat([b.expand(self.num_bases, -1, -1) for b in blocks], dim=-1)

    def extra_repr(self) -> str:
        return self.description


def build_features(
    kernel: Kernel,
    input_dim: int,
    num_features: int,
    *,
    kind: str,
    num_bases: int,
    origin: Tensor,
    domain: Tensor | None,
    reference: Tensor | None,
    generator: torch.Generator,
) -> Features:
    """A basis for the prior of `kernel`. `reference` points weigh the terms that grow with x, where there are any."""
    if kind not in KINDS:
        raise ValueError(f"features: expected one of {', '.join(KINDS)} or a Features object, got {kind!r}")
    if kind == "equispaced" and domain is None:
        raise ValueError('features="equispaced" needs domain=(lower, upper): the box where the paths will be called')
    terms = [t for t in kernel.terms(input_dim) if bool(t.variance > 0) and all(bool(c.any()) for c in t.forms)]
    fourier_terms = [t for t in terms if t.stationary]
    counts = iter(_allocate(num_features, [_size(t, reference) for t in fourier_terms]))
    blocks: list[tuple[Basis, Tensor | None]] = []
    notes: list[str] = []
    used_domain = None
    for term in terms:
        count = next(counts) if term.stationary else num_features
        bases, note = _bases(term, input_dim, count, kind, num_bases, origin, domain, generator)
        blocks += [(basis, term.coupling) for basis in bases]
        notes.append(note)
        used_domain = domain if note.startswith("equispaced") else used_domain
    blocks = _merged(blocks)
    roots = [_root(B, kernel.num_outputs) for _, B in blocks]
    return Features([b for b, _ in blocks], roots, origin, used_domain, _summary(notes))


def _bases(term, input_dim, count, kind, num_bases, origin, domain, generator) -> tuple[list[Basis], str]:
    """The bases of one term, and what they are in words."""
    if not term.stationary and not term.forms:
        zero = torch.zeros(1, 1, input_dim, dtype=torch.float64)
        return [Cosines(zero, zero[..., 0], term.variance.cpu().sqrt()[None, None])], "1 constant"
    if term.forms:
        random = kind if term.stationary and kind in RANDOM_KINDS else "sobol"
        bases = explicit(
            term, input_dim, count, kind=random, num_bases=num_bases, origin=origin.cpu(), generator=generator
        )
        what = f"products with {random}" if term.stationary else "explicit"
        return bases, f"{bases[0].size} {what}"
    if kind not in RANDOM_KINDS:
        series = fourier_series(
            term, input_dim, count, domain, largest_wrap=1.0 if kind == "equispaced" else LARGEST_WRAP
        )
        if kind == "equispaced" and series is None:
            raise ValueError(
                f'features="equispaced" needs a kernel of at most {LARGEST_DIM} dimensions that decays with distance '
                f'in each, got one of {len(term.active_dims(input_dim))}; use "sobol" or "auto"'
            )
        if series is not None and (kind == "equispaced" or series.captured >= CAPTURED_SHARE):
            bases = equispaced(term, series, num_bases=num_bases, generator=generator)
            size, share = sum(b.size for b in bases), f"holding {series.captured:.2%} of the variance"
            if series.wrap is None:
                return bases, f"{size} harmonics {share}"
            wraps = "" if series.wrap <= LARGEST_WRAP else f", correlations within {series.wrap:.1g}"
            return bases, f"equispaced, {size} features {share}{wraps}"
        elliptical = isinstance(m := term.measure(input_dim), Elliptical) and getattr(m, "shift", None) is None
        kind = "orthogonal" if elliptical and input_dim >= ORTHOGONAL_FROM_DIM else "sobol"
    return fourier(term, input_dim, count, kind=kind, num_bases=num_bases, generator=generator), f"{count} {kind}"


def _allocate(total: int, sizes: list[float]) -> list[int]:
    """`total` shared in proportion to the sizes, which minimises the summed squared kernel error; at least one each."""
    if not sizes:
        return []
    if not any(sizes):  # terms that vanish at all of the reference points
        sizes = [1.0] * len(sizes)
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
            torch.ones(1, len(term.forms[0]) - 1, dtype=torch.float64)
            if reference is None
            else reference.double().cpu()
        )
        x2 = torch.cat([x.detach().square(), torch.ones(len(x), 1, dtype=torch.float64)], dim=1)
        size *= float(torch.stack([x2 @ c.detach().cpu() for c in term.forms]).prod(0).mean())
    return size


def _merged(blocks: list[tuple[Basis, Tensor | None]]) -> list[tuple[Basis, Tensor | None]]:
    """Fourier bases of the same kind, number and coupling side by side: one product instead of many."""
    merged: list[tuple[Basis, Tensor | None]] = []
    for basis, B in blocks:
        for i, (other, other_B) in enumerate(merged):
            same = type(basis) is type(other) and isinstance(basis, Pairs | Cosines) and B is other_B
            if same and basis.num_bases == other.num_bases:
                parts = {k: torch.cat([getattr(other, k), getattr(basis, k)], dim=1) for k in basis._buffers}
                merged[i] = (type(basis)(**parts), B)
                break
        else:
            merged.append((basis, B))
    return merged


def _root(B: Tensor | None, num_outputs: int) -> Tensor | None:
    """R with R R^T = B, `[t, t]`; None for one output."""
    if num_outputs == 1:
        return None
    if B is None:
        return torch.nn.functional.pad(torch.ones(num_outputs, 1, dtype=torch.float64), (0, num_outputs - 1))
    smallest = 64 * len(B) * torch.finfo(B.dtype).eps * B.detach().diagonal().max()
    factor, failed = torch.linalg.cholesky_ex(B)
    regular = not bool(failed) and bool(factor.detach().diagonal().square().min() > smallest)
    return factor if regular else _singular_root(B, smallest)


def _singular_root(B: Tensor, smallest: Tensor) -> Tensor:
    """Cholesky's factor of a singular B, column by column; a pivot of zero, or of rounding, has a column of zeros.

    A root by eigenvectors would have no derivative: zero is an eigenvalue, and often several times.
    """
    left, columns = B, []
    for i, row in enumerate(torch.eye(len(B), dtype=B.dtype, device=B.device)):
        pivot = left[i, i]
        columns.append(left[:, i] / pivot.sqrt() if bool(pivot > smallest) else 0 * row)
        left = left - columns[-1][:, None] * columns[-1]
    return torch.stack(columns, dim=1)


def _summary(notes: list[str]) -> str:
    return "; ".join(notes)
