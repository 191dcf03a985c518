"""Features: a finite basis of a prior, and the record of what was chosen for each term of its kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..core.value import Parts, Value, in_own_memory
from ..evaluate import Basis, Cosines, Pairs, Products
from ..kernels.base import same_coupling


class Choice(NamedTuple):
    """What one term of a kernel got, or several terms that share frequencies.

    `kind` is "lattice", "spectrum" (frequencies beyond a lattice), "harmonics", "leverage", "constant", "explicit", or
    how frequencies were drawn ("sobol", ...).
    Of a basis that was not chosen here it is a description and `num_features` is None.
    """

    kind: str
    num_features: int | None = None
    products: bool = False  # frequencies times linear forms
    left_out: float | None = None  # the share of the variance that has no features
    error: float | None = None  # the largest difference from the kernel on the domain, in variances
    modes: Sequence[int] | None = None  # of a lattice, per dimension

    def is_sound(self) -> bool:
        """Whether all is of its type: in a file it may not be."""
        shares = [v for v in (self.left_out, self.error) if v is not None]
        whole = [self.num_features or 0, *(self.modes or ())]
        return (
            isinstance(self.kind, str)
            and isinstance(self.products, bool)
            and all(isinstance(v, int | float) for v in shares)
            and all(isinstance(v, int) for v in whole)
        )

    def __str__(self) -> str:
        if self.num_features is None:
            return self.kind
        left_out = self.left_out or 0.0
        if self.kind == "lattice":
            beyond = f", {left_out:.1g} of the variance beyond them" if left_out > 1e-12 else ""
            modes = " x ".join(map(str, self.modes or ()))
            return f"lattice of {modes} modes, kernel within {self.error:.1g}{beyond}"
        how = {
            "leverage": "by leverage",
            "spectrum": "beyond the modes",
            "harmonics": f"harmonics holding {1 - left_out:.2%} of the variance",
        }
        return f"{self.num_features} {'products with ' * self.products}{how.get(self.kind, self.kind)}"


# What a basis is in the prior: a lattice's modes; functions that have their part of the kernel exactly; random
# frequencies beyond the modes of a lattice; or random functions of some terms, of which more would be needed.
LATTICE, EXACT, BEYOND, RANDOM = ROLES = ("lattice", "exact", "beyond", "random")


class Block(Value):
    """A basis, a root of the coupling of its outputs (None for one output), and its role in the prior."""

    fields = ("role",)

    def __init__(self, basis: Basis, root: Tensor | None = None, role: str = RANDOM) -> None:
        super().__init__(root=root, basis=basis)
        self.role = role

    basis: Basis
    root: Tensor | None
    role: str

    def check(self) -> None:
        if self.role not in ROLES or not isinstance(self.basis, Basis):
            raise ValueError(f"Block: expected a basis and a role, one of {', '.join(ROLES)}, got {self.role!r}")
        if self.root is not None and (self.root.ndim != 2 or self.root.shape[0] != self.root.shape[1]):
            raise ValueError(f"Block: expected a square root of a coupling, got {list(self.root.shape)}")


class Features(Value):
    """phi: x -> Phi, a finite basis of a prior: f(x) = phi(x) . w with w standard normal has covariance about k.

    A list of blocks (lattices, random frequencies, explicit functions), an origin about which phases are taken so that
    a far offset costs no digits, and a domain outside which a lattice is wrong.
    """

    fields = ("choices",)
    shapes = "origin: d, domain: 2 d"

    def check(self) -> None:
        if not all(Choice(*choice).is_sound() for choice in self.choices) or len(self.blocks) < 1:
            raise ValueError("Features: expected a record of what was chosen, and at least one basis")
        d = len(self.origin)
        if self.domain is not None and bool((self.domain[0] > self.domain[1]).any()):
            raise ValueError(f"Features: expected a domain from lower to upper, got {self.domain.tolist()}")
        if len({None if root is None else len(root) for root in self.roots}) > 1:
            raise ValueError("Features: expected roots of couplings of as many outputs, or none")
        for basis in self.bases:
            theta, projections = getattr(basis, "frequencies", None), getattr(basis, "projections", None)
            fits = theta is None or theta.shape[-1] == d
            fits = fits and (projections is None or projections.shape[-1] == d + 1)
            if not fits or any(i >= d for i in getattr(basis, "dims", ())):
                raise ValueError(f"Features: expected bases in {d} dimensions")
        if len({basis.num_bases for basis in self.bases} - {1}) > 1:
            raise ValueError("Features: expected bases of as many versions each")

    def __init__(
        self, blocks: Sequence[Block], origin: Tensor, domain: Tensor | None, choices: Sequence[Choice] | str
    ) -> None:
        super().__init__(origin=origin, domain=domain, blocks=Parts(blocks))
        self.choices: tuple[Choice, ...] = (Choice(choices),) if isinstance(choices, str) else tuple(choices)

    blocks: Parts[Block]

    def restore(self) -> None:
        self.choices = tuple(Choice(*choice) for choice in self.choices)  # lists, in a file

    def with_blocks(self, blocks: Sequence[Block]) -> Features:
        """The same record, origin and domain with other blocks."""
        return Features(blocks, self.origin, self.domain, self.choices)

    def select(self, index: Tensor | slice | int) -> Features:
        """Some of the versions of features that have several."""
        index = slice(index, index + 1) if isinstance(index, int) else index
        return self.with_blocks([Block(b.basis.select(index), b.root, b.role) for b in self.blocks])

    @property
    def description(self) -> str:
        """What was chosen, in words."""
        counts = Counter(map(str, self.choices))
        return "; ".join(what if n == 1 else f"{n} times: {what}" for what, n in counts.items())

    @property
    def bases(self) -> list[Basis]:
        return [block.basis for block in self.blocks]

    @property
    def roots(self) -> list[Tensor | None]:
        return [block.root for block in self.blocks]

    @property
    def num_features(self) -> int:
        return sum(basis.size for basis in self.bases)

    @property
    def num_bases(self) -> int:
        return max((basis.num_bases for basis in self.bases), default=1)

    def forward(self, x: Tensor) -> Tensor:
        """Phi: `[n, d] -> [g, n, ell]`, one per basis."""
        x = (x - self.origin)[None]
        blocks = [x[..., :0]]  # a kernel that is zero has no features
        blocks += [basis.values(x) * basis.scales()[:, None] for basis in self.bases]
        return torch.cat([b.expand(self.num_bases, -1, -1) for b in blocks], dim=-1)

    def __repr__(self) -> str:
        return f"Features({self.description})"


class Coupled(NamedTuple):
    """A basis, the coupling B `[t, t]` of its outputs (None: all ones, or one output), and its role."""

    basis: Basis
    coupling: Tensor | None
    role: str

    def block(self, num_outputs: int) -> Block:
        # A file's tensors are in memory of their own: so that loaded paths have the same values, these are, too.
        basis = self.basis.mapped(in_own_memory) if isinstance(self.basis, Pairs | Cosines) else self.basis
        return Block(basis, root_of(self.coupling, num_outputs), self.role)


def merged(parts: list[Coupled]) -> list[Coupled]:
    """Fourier bases of the same kind, number, role and coupling side by side: one product instead of many."""
    merged: list[Coupled] = []
    for part in parts:
        for i, other in enumerate(merged):
            if part.role == other.role and same_coupling(part.coupling, other.coupling):
                both = _joined(other.basis, part.basis) if part.basis.num_bases == other.basis.num_bases else None
                if both is not None:
                    merged[i] = other._replace(basis=both)
                    break
        else:
            merged.append(part)
    return merged


def _joined(a: Basis, b: Basis) -> Basis | None:
    """Two bases as one; None where they are of different kinds."""
    if type(a) is type(b) and isinstance(a, Pairs | Cosines):
        return type(a)(**{k: torch.cat([getattr(a, k), getattr(b, k)], dim=1) for k in a._buffers})
    if isinstance(a, Products) and isinstance(b, Products) and a.projections.shape[1] == b.projections.shape[1]:
        if a.fourier is not None and b.fourier is not None:
            A = torch.cat([a.projections, b.projections], dim=2)
            cosines = _joined(a.fourier, b.fourier)
            assert isinstance(cosines, Cosines)
            return Products(A, torch.cat([a.amplitudes, b.amplitudes], dim=1), a.origin, cosines)
    return None


def root_of(B: Tensor | None, num_outputs: int) -> Tensor | None:
    """R with R R^T = B, `[t, t]`; None for one output."""
    if num_outputs == 1:
        return None
    if B is None:
        return torch.nn.functional.pad(
            torch.ones(num_outputs, 1, dtype=torch.float64, device="cpu"), (0, num_outputs - 1)
        )
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
