"""The finite basis phi of a prior, equations (5) and (6) of the paper: k(x, x') ~ phi(x) . phi(x'), f = phi . w.

`FeatureSpec` holds what is asked of a basis. `Features` is the basis, with a record of what was chosen for each term of
the kernel. `fourier` makes random Fourier features: the paper's cosines, or pairs of a cosine and a sine.
`make_features` goes from a kernel to its features. If random Fourier features are asked for, and the kernel is one
stationary term, it makes them itself. In all other cases it calls `choose.py`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from ..core.boxes import BoxLike, as_box
from ..core.checks import ArrayLike, Names, as_count, as_points
from ..core.value import Parts, Value, in_own_memory
from ..evaluate import Basis, Cosines, Pairs
from ..kernels import Kernel
from ..kernels.algebra import root_of
from ..kernels.base import Term
from ..models.transforms import Transform
from ..solvers import FactoredPosterior

# The ways to draw random frequencies.
RANDOM_KINDS = ("cosine", "sincos", "sobol", "orthogonal")
# The kinds that only an engine can make, and the largest number of dimensions of a lattice.
LATTICE_KINDS, LARGEST_DIM = ("lattice", "equispaced"), 3
KINDS = ("auto", "leverage", *RANDOM_KINDS, *LATTICE_KINDS)


@dataclass(frozen=True, eq=False)
class FeatureSpec:
    """What is asked of the basis of a prior.

    `feature_spec` makes a spec of a user's arguments. Its `domain` and `where` are in the user's space, until `inside`
    maps them to the model's space.
    """

    kind: str | Features = "auto"  # "auto", "leverage", ..., or a basis that was made before
    num_features: int = 1024
    paths_per_basis: int | None = 64
    domain: Tensor | None = None  # [2, d], the box where functions will be called; float64, on the CPU
    tolerance: float = 1e-3  # the fraction of the posterior variance that may lie beyond a lattice's modes
    where: Tensor | None = None  # [r, d], points like those where functions will be called; float64, on the CPU
    num_paths: int = 1
    joint: bool = False  # all terms on one lattice, on which the data are solved for too
    largest_lattice: int | None = None  # the largest number of modes of such a lattice

    @property
    def num_bases(self) -> int:
        return math.ceil(self.num_paths / (self.paths_per_basis or self.num_paths))

    def basis_index(self, features: Features) -> Tensor:
        """Which of the bases each path uses, `[s]`."""
        path = torch.arange(self.num_paths, device=features.origin.device)
        return path // (self.paths_per_basis or self.num_paths) % features.num_bases

    def inside(self, transform: Transform | None, data: Tensor | None) -> FeatureSpec:
        """Map the domain and the points to the model's own space, and extend the domain to the data `[n, d]`."""
        domain, where = self.domain, self.where
        if transform is not None and (domain is not None or where is not None):
            transform = transform.to("cpu", torch.float64)
            if where is not None:
                where = transform(where).detach()
            if domain is not None:
                lower, upper = transform.image(domain).detach()
                flat = 0.5 * (upper <= lower)  # half a unit on both sides of a constant column
                domain = torch.stack([lower - flat, upper + flat])
        if data is not None and domain is not None:
            lower, upper = data.detach().double().cpu().aminmax(dim=0)
            domain = torch.stack([torch.minimum(domain[0], lower), torch.maximum(domain[1], upper)])
        return replace(self, domain=domain, where=where)


def feature_spec(
    features: str | Features,
    num_features: int,
    paths_per_basis: int | None,
    domain: BoxLike | None = None,
    tolerance: float = 1e-3,
    where: ArrayLike | None = None,
    *,
    num_paths: int,
    input_dim: int,
    names: Names = None,
) -> FeatureSpec:
    """Check a user's arguments and make a `FeatureSpec` of them.

    Args:
        names: the columns that tables of points and boxes must have.
    """
    if not isinstance(features, Features) and features not in KINDS:
        raise ValueError(f"features: expected one of {', '.join(KINDS)} or a Features object, got {features!r}")
    if features in LATTICE_KINDS and domain is None:
        raise ValueError(f'features="{features}" needs domain=(lower, upper): the box where the paths will be called')
    if not isinstance(tolerance, int | float) or not 0 < tolerance < 1:
        raise ValueError(f"tolerance: expected a number between 0 and 1, such as 1e-3, got {tolerance!r}")
    box = points = None
    if domain is not None:
        box = as_box(domain, "domain", input_dim=input_dim, names=names).double().cpu()
    if where is not None:
        points = as_points(where, "where", input_dim=input_dim, names=names).detach().double().cpu()
    return FeatureSpec(
        features,
        as_count(num_features, "num_features"),
        None if paths_per_basis is None else as_count(paths_per_basis, "paths_per_basis"),
        box,
        float(tolerance),
        points,
        num_paths,
    )


# The basis that is made, and the record of what was chosen.


class Choice(NamedTuple):
    """The record of the features that one term of a kernel has, or several terms that share frequencies.

    `kind` is "lattice", "spectrum" (frequencies beyond a lattice), "harmonics", "leverage", "constant", "explicit", or
    how frequencies were drawn ("sobol", ...). If a basis was not chosen here, `kind` describes it in words, and
    `num_features` is None.
    """

    kind: str
    num_features: int | None = None
    products: bool = False  # whether frequencies are multiplied by linear forms
    left_out: float | None = None  # the fraction of the variance that has no features
    error: float | None = None  # the largest difference from the kernel on the domain, relative to the variance
    modes: Sequence[int] | None = None  # the modes of a lattice, per dimension

    def is_sound(self) -> bool:
        """Whether every field has its type. In a file that was loaded it may not."""
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
            truncated = f", {left_out:.1g} of the variance left out" if left_out > 1e-12 else ""
            modes = " x ".join(map(str, self.modes or ()))
            return f"lattice of {modes} modes, kernel within {self.error:.1g}{truncated}"
        how = {
            "leverage": "by leverage",
            "spectrum": "beyond the modes",
            "harmonics": f"harmonics holding {1 - left_out:.2%} of the variance",
        }
        return f"{self.num_features} {'products with ' * self.products}{how.get(self.kind, self.kind)}"


# The roles of a basis in the prior: the modes of a lattice; functions that represent their part of the kernel exactly;
# random frequencies beyond the modes of a lattice; and random functions, which approximate some terms of the kernel.
LATTICE, EXACT, BEYOND, RANDOM = ROLES = ("lattice", "exact", "beyond", "random")


class Block(Value):
    """A basis with a root of the coupling of its outputs (None for one output) and its role in the prior."""

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
    """A finite basis phi of a prior: f(x) = phi(x) . w with standard normal weights w, equation (6) of the paper.

    The covariance phi(x) . phi(x') of f approximates k(x, x'). The basis is a list of blocks: lattices, random
    frequencies, explicit functions. Phases are taken about `origin`, so that points far from zero lose no digits. A
    basis with a lattice is wrong outside `domain`.

    >>> import torch, matheron
    >>> from matheron import kernels
    >>> prior = matheron.draw_prior(kernels.RBF(0.5), 2, input_dim=1, num_features=64, seed=0).prior
    >>> prior.features, prior.features(torch.zeros(3, 1, dtype=torch.float64)).shape
    (Features(64 sobol), torch.Size([1, 3, 64]))
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
        self.choices = tuple(Choice(*choice) for choice in self.choices)  # in a file, they are lists

    def with_blocks(self, blocks: Sequence[Block]) -> Features:
        """Replace the blocks, and keep the record, the origin and the domain."""
        return Features(blocks, self.origin, self.domain, self.choices)

    def select(self, index: Tensor | slice | int) -> Features:
        """Select some of the bases, where there are several versions."""
        index = slice(index, index + 1) if isinstance(index, int) else index
        return self.with_blocks([Block(b.basis.select(index), b.root, b.role) for b in self.blocks])

    @property
    def description(self) -> str:
        """What was chosen for the terms of the kernel, in words."""
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
        return sum(block.basis.size for block in self.blocks)

    @property
    def num_bases(self) -> int:
        return max((block.basis.num_bases for block in self.blocks), default=1)

    def forward(self, x: Tensor) -> Tensor:
        """Evaluate Phi, the features at points x: `[n, d] -> [g, n, ell]`, for each of g bases."""
        x = (x - self.origin)[None]
        blocks = [x[..., :0]]  # a zero kernel has no features
        blocks += [basis.values(x) * basis.scales()[:, None] for basis in self.bases]
        return torch.cat([b.expand(self.num_bases, -1, -1) for b in blocks], dim=-1)

    def __repr__(self) -> str:
        return f"Features({self.description})"


class Coupled(NamedTuple):
    """A basis with the coupling B `[t, t]` of its outputs (None for all ones, or for one output) and its role."""

    basis: Basis
    coupling: Tensor | None
    role: str

    def block(self, num_outputs: int) -> Block:
        # Tensors that are loaded from a file have memory of their own. Tensors of this basis get it too, so that loaded
        # paths have exactly the same values.
        basis = self.basis.mapped(in_own_memory) if isinstance(self.basis, Pairs | Cosines) else self.basis
        return Block(basis, None if num_outputs == 1 else root_of(self.coupling, num_outputs), self.role)


# Random Fourier features of a stationary term.


def fourier(
    term: Term, input_dim: int, count: int, *, kind: str, num_bases: int, generator: torch.Generator
) -> list[Basis]:
    """Make `count` random Fourier features of a term's stationary part, for each of `num_bases` independent bases.

    For "cosine" they are the paper's, with phases tau_i:

        phi_i(x) = sqrt(2 variance / ell) cos(theta_i . x + tau_i).

    Otherwise they are pairs cos(theta_i . x) and sin(theta_i . x) of the same amplitude. If the count is odd, one of
    them is a single cosine with a phase.
    """
    singles = count if kind == "cosine" else count % 2
    pairs = (count - singles) // 2
    device = term.variance.device  # the kernel's device, which can differ from the generator's
    measure, g = term.measure(input_dim), num_bases
    if kind == "orthogonal":
        from .quasi_random import stratified_frequencies

        theta, importance = stratified_frequencies(measure, pairs + singles, g, generator, device), None
    else:
        from .quasi_random import sobol

        shape = (g, pairs + singles, measure.num_uniforms)
        U = (sobol(*shape, generator) if kind == "sobol" else rand(shape, generator)).to(device)
        theta, importance = measure.frequencies(U), measure.importance(U)
    # weights of value one, with gradients
    variance = term.variance if importance is None else term.variance * importance
    amplitude = (2 / count * variance).sqrt().expand(theta.shape[:2])  # [g, f]
    bases: list[Basis] = []
    if pairs:
        bases.append(Pairs(theta[:, :pairs], amplitude[:, :pairs]))
    if singles:
        tau = 2 * math.pi * rand((num_bases, singles), generator).to(device)
        bases.append(Cosines(theta[:, pairs:], tau, amplitude[:, pairs:]))
    return bases


def rand(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Draw uniform numbers in the open interval (0, 1), on the generator's device."""
    U = torch.rand(shape, generator=generator, device=generator.device, dtype=torch.float64)
    return U.clamp_(2**-54, 1 - 2**-53)


# From a kernel to its features.


def make_features(
    kernel: Kernel,
    spec: FeatureSpec,
    generator: torch.Generator,
    *,
    data: Tensor | None = None,
    posterior: FactoredPosterior | None = None,
    origin: Tensor | None = None,
    like: Tensor,
) -> Features:
    """Make a basis phi of a kernel's prior, with the dtype and the device of points `like [*, d]`.

    Args:
        spec: what is asked of the basis, in the model's own space.
        data: points `[n, d]` at which terms that grow with x are weighed. The default is the posterior's data.
        posterior: the posterior for which frequencies are chosen.
        origin: the point `[d]` about which phases are taken. The default is the centre of the data.
    """
    if isinstance(spec.kind, Features):
        return _as_given(spec.kind, kernel, like)
    if data is None and posterior is not None:
        data = posterior.sites.points
    reference = None if data is None or not len(data) else data.detach()
    # If all values of a column are whole numbers, so is its origin: differences of nodes are then whole numbers too.
    if origin is None and reference is not None:
        X = reference.double().cpu()
        mean = X.mean(0)
        origin = torch.where((X == X.round()).all(0), mean.round(), mean)
    elif origin is None:
        origin = torch.zeros(like.shape[1], dtype=torch.float64, device="cpu")
    kernel = kernel.to("cpu")  # a model's kernel can be on a GPU; features are chosen on the CPU
    features = _random_features(kernel, spec, origin, generator)
    if features is None:
        from .choose import chosen_features  # that module imports this one

        features = chosen_features(kernel, spec, generator, origin, reference, posterior)
    return features.to(like.device, like.dtype)


def _as_given(features: Features, kernel: Kernel, like: Tensor) -> Features:
    """Check features that a user gives against the kernel, and move them to the device and dtype of `like`."""
    d, t = like.shape[1], kernel.num_outputs
    if features.origin.shape[0] != d:
        raise ValueError(f"features: made for {features.origin.shape[0]} dimensions, got points in {d}")
    outputs = {1 if root is None else len(root) for root in features.roots} - {t}
    if outputs:
        raise ValueError(f"features: made for {outputs.pop()} outputs, got a kernel of {t}")
    return features.to(like.device, like.dtype)


def _random_features(kernel: Kernel, spec: FeatureSpec, origin: Tensor, generator: torch.Generator) -> Features | None:
    """Make random Fourier features if they are asked for and the kernel is one stationary term; otherwise None."""
    kind = spec.kind
    if not isinstance(kind, str) or kind not in RANDOM_KINDS or spec.domain is not None:
        return None
    term, *more = relevant_terms(kernel, len(origin)) or [None]
    if term is None or more or not term.stationary or term.forms or term.own:
        return None
    count, num_bases = spec.num_features, spec.num_bases
    bases = fourier(term, len(origin), count, kind=kind, num_bases=num_bases, generator=generator)
    root = None if kernel.num_outputs == 1 else root_of(term.coupling, kernel.num_outputs)
    blocks = [Block(basis.mapped(in_own_memory), root) for basis in bases]
    return Features(blocks, origin, None, [Choice(kind, count)])


def relevant_terms(kernel: Kernel, input_dim: int) -> list[Term]:
    """List the terms of a kernel that are not zero everywhere."""
    return [t for t in kernel.terms(input_dim) if bool(t.variance > 0) and all(bool(c.any()) for c in t.forms)]
