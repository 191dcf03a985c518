"""Functions drawn from Gaussian processes, on NumPy and JAX arrays, without torch.

    f = matheron_portable.load("f.safetensors")    # what paths.export("f.safetensors") of matheron wrote
    f(x)                                           # points [n, d] -> values [s, n], of s functions
    f.value_and_grad(x)                            # and gradients [s, n, d], in closed form

Points `[s, n, d]` are each function's own. t outputs add an axis after n: `[s, n, t]` and `[s, n, t, d]`. JAX arrays
give JAX arrays, under `jit`, `vmap`, `grad` and `lax.scan`, in their own dtype: with float32 JAX rounds the numbers of
a float64 file. A file is data; nothing in it is run.

A file is a tree of parts, each a map from points `[1 or s, n, d]` to values `[s, n, t]`: a function for each kind of
part is below. Points and values are hyper-dual numbers, which carry their derivatives.
"""

from __future__ import annotations

import json
import math
import operator
import os
import sys
from collections.abc import Callable, Sequence
from functools import reduce
from types import SimpleNamespace
from typing import Any

import numpy as np
from safetensors import safe_open

__all__ = ["Functions", "load"]
FORMAT = "matheron-functions-1"
# NumPy evaluates points in blocks, so that no array has more numbers than this.
_BLOCK = 1 << 22


def load(path: str | os.PathLike[str]) -> Functions:
    """The functions in a file that `paths.export("f.safetensors")` wrote.

    >>> import tempfile, numpy as np, matheron, matheron_portable
    >>> paths = matheron.draw_prior(matheron.kernels.RBF(0.3), 4, input_dim=2)  # where there is torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     paths.export(f"{folder}/f.safetensors")
    ...     f = matheron_portable.load(f"{folder}/f.safetensors")
    >>> f
    Functions(num_paths=4, input_dim=2, num_outputs=1)
    >>> f(np.random.rand(10, 2)).shape, f.value_and_grad(np.random.rand(4, 3, 2))[1].shape
    ((4, 10), (4, 3, 2))
    """
    with safe_open(os.fspath(path), framework="np") as file:
        metadata = file.metadata() or {}
        if metadata.get("format") != FORMAT:
            raise ValueError(
                f"{path}: expected a file of format {FORMAT!r}, got {metadata.get('format')!r}; write one in matheron "
                'with paths.export("f.safetensors"), also of paths that were saved: matheron.load(path).export(...)'
            )
        return Functions(
            _node(json.loads(metadata["functions"]), "", {name: file.get_tensor(name) for name in file.keys()})
        )


def _node(tree: dict[str, Any], prefix: str, tensors: dict[str, Any]) -> SimpleNamespace:
    """A part of the description, with the arrays and numbers that are its own, and its parts in order."""
    own = {name[len(prefix) :]: a for name, a in tensors.items() if name.startswith(prefix)}
    parts = {name: _node(part, f"{prefix}{name}.", tensors) for name, part in tree["parts"].items()}
    parts = parts["parts"].parts if "parts" in parts else list(parts.values())
    none = dict.fromkeys(("frequencies", "phases", "projections", "members", "place", "domain", "mask"))
    return SimpleNamespace(kind=tree["kind"], **none | tree["fields"] | own, parts=parts)


class Functions:
    """s functions of points in d dimensions, with t outputs; see the module."""

    def __init__(self, node: SimpleNamespace) -> None:
        self.num_paths, self.num_outputs = node.num_paths, node.num_outputs
        self.input_dim, self.dtype = node.input_dim, np.dtype(node.dtype)
        self._node = node.parts[0]

    def __repr__(self) -> str:
        return f"Functions(num_paths={self.num_paths}, input_dim={self.input_dim}, num_outputs={self.num_outputs})"

    def __call__(self, x: Any) -> Any:
        """Values `[s, n]` at points `[n, d]`, or `[s, n, d]`, each function's own."""
        return self._evaluated(x, 0)[0]

    def value_and_grad(self, x: Any) -> tuple[Any, Any]:
        """Values `[s, n]`, and gradients `[s, n, d]`."""
        f, df = self._evaluated(x, self.input_dim)
        return f, df

    def _evaluated(self, x: Any, slopes: int) -> list[Any]:
        xp, s, d = _namespace(x), self.num_paths, self.input_dim
        x = np.asarray(x, self.dtype) if xp is np else x + 0.0  # of whole numbers, fractions
        if x.ndim not in (2, 3) or x.shape[-1] != d or (x.ndim == 3 and x.shape[0] not in (1, s)):
            raise ValueError(f"x: expected points [n, {d}], or [{s}, n, {d}] for each its own, got {list(x.shape)}")
        x = x[None] if x.ndim == 2 else x
        step = max(1, _BLOCK // (_width(self._node, len(x)) * max(slopes, 1)))
        if xp is not np or x.shape[1] <= step:
            return self._block(x, slopes, xp)
        blocks = [self._block(block, slopes, np) for block in np.split(x, range(step, x.shape[1], step), axis=1)]
        return [np.concatenate(each, axis=1) for each in zip(*blocks, strict=True)]

    def _block(self, x: Any, slopes: int, xp: Any) -> list[Any]:
        axes = {1: xp.eye(slopes, dtype=x.dtype)[:, None, None]} if slopes else {}  # [d, 1, 1, d]
        f = _at(self._node, HyperDual({0: x} | axes))
        shape = (self.num_paths, x.shape[1], self.num_outputs)
        found = [xp.broadcast_to(f.parts[0], shape)]
        if slopes:
            found.append(xp.moveaxis(xp.broadcast_to(f.parts.get(1, 0.0), (slopes, *shape)), 0, -1))
        found = [a[:, :, 0] if self.num_outputs == 1 else a for a in found]
        return [a.astype(x.dtype) for a in found]


def _width(node: SimpleNamespace, rows: int) -> int:
    """The most features of any term at a point, for all versions of its basis, or for rows of points."""
    own = max(rows, node.weights.shape[0]) * node.weights.shape[-1] if hasattr(node, "weights") else 1
    return max([own, *(_width(part, rows) for part in node.parts)])


def _namespace(*arrays: Any) -> Any:
    jax = sys.modules.get("jax")  # anyone who has a JAX array has imported JAX
    return jax.numpy if jax is not None and any(isinstance(a, jax.Array) for a in arrays) else np


def _matmul(a: Any, b: Any) -> Any:
    """a b^T, on accelerators without TF32, whose eleven bits are too few for phases."""
    xp = _namespace(a, b)
    return a @ b.swapaxes(-1, -2) if xp is np else xp.matmul(a, b.swapaxes(-1, -2), precision="highest")


class HyperDual:
    """Numbers with their derivatives along sets of directions: the algebra of e_1, e_2, ... with e_i^2 = 0.

    `parts[s]` is the derivative along the set s, a whole number with a bit for each direction; `parts[0]` are the
    numbers themselves. What is missing is zero. Bit 0 is the gradient, with an axis of its own in front.
    """

    def __init__(self, parts: dict[int, Any]) -> None:
        self.parts, self.order = parts, max(parts, default=0).bit_length()
        self.value: Any = parts.get(0)
        self.xp = _namespace(self.value)

    def each(self, linear: Callable[[Any], Any]) -> HyperDual:
        """A linear map of the numbers."""
        return HyperDual({s: linear(a) for s, a in self.parts.items()})

    def __add__(self, other: Any) -> HyperDual:
        parts = dict(self.parts)
        for s, a in (other.parts if isinstance(other, HyperDual) else {0: other}).items():
            parts[s] = parts[s] + a if s in parts else a
        return HyperDual(parts)

    def __sub__(self, other: Any) -> HyperDual:
        return self + (other.each(lambda a: -a) if isinstance(other, HyperDual) else -other)

    def __mul__(self, other: Any) -> HyperDual:
        if not isinstance(other, HyperDual):
            return self.each(lambda a: a * other)
        parts: dict[int, Any] = {}
        for s, a in self.parts.items():
            for r, b in other.parts.items():
                if not s & r:  # no direction comes twice
                    parts[s | r] = parts[s | r] + a * b if s | r in parts else a * b
        return HyperDual(parts)

    def through(self, derivatives: Sequence[Any]) -> HyperDual:
        """g of the numbers, given g, g', g'', ... of the values: its Taylor series, which ends."""
        total = HyperDual({0: derivatives[0]})
        step = power = HyperDual({s: a for s, a in self.parts.items() if s})
        for i, slope in enumerate(derivatives[1:], 1):
            total, power = total + power * slope, power * step * (1 / (i + 1))
        return total


# Parts by their kind.


def _at(node: SimpleNamespace, x: HyperDual) -> HyperDual:
    """A part at points `[1 or s, n, d]`."""
    if node.kind not in _KINDS:
        raise ValueError(f"expected a file of this version of matheron_portable, got a part {node.kind!r}")
    return _KINDS[node.kind](node, x)


def _each(node: SimpleNamespace, x: Any) -> list[HyperDual]:
    return [_at(part, x) for part in node.parts]


def _sum(node: SimpleNamespace, x: HyperDual) -> HyperDual:
    each = (f * w[:, None] for w, f in zip(node.weights, _each(node, x), strict=True))
    return reduce(operator.add, each) + node.level[:, None]


def _ensemble(node: SimpleNamespace, x: HyperDual) -> HyperDual:
    shares = np.split(node.order, np.cumsum(node.counts)[:-1])
    each = zip(node.parts, shares, strict=True)
    whole = _joined([_at(part, x.each(lambda a, mine=mine: _rows(a, mine))) for part, mine in each], -3)
    return whole.each(lambda a: _rows(a, node.place))


def _rows(a: Any, index: Any) -> Any:
    """Some of the paths of `[..., 1 or s, n, t]`."""
    return a if index is None or a.shape[-3] == 1 else a[..., index, :, :]


def _joined(each: list[HyperDual], axis: int) -> HyperDual:
    xp, d = each[0].xp, max(f.parts[1].shape[0] if 1 in f.parts else 0 for f in each)
    parts = {0: [f.value for f in each]}
    if d:
        parts[1] = [xp.broadcast_to(f.parts.get(1, 0.0), (d, *f.value.shape)) for f in each]
    return HyperDual({s: xp.concatenate(some, axis) for s, some in parts.items()})


# The paths of one model: sums of terms.


def _model(node: SimpleNamespace, z: HyperDual) -> HyperDual:
    if node.domain is not None:
        outside = ((z.value < node.domain[0]) | (z.value > node.domain[1])).any(-1, keepdims=True)
        z = z + z.xp.where(outside, np.nan, 0.0)
    return reduce(operator.add, _each(node, z))


def _term(node: SimpleNamespace, z: HyperDual) -> HyperDual:
    """sum_c W_c phi_c(z): weights `[g, m, t, c]`, of the m paths of each of g versions of the basis."""
    (g, m, t, c), members = node.weights.shape, node.members
    z = z.each(lambda a: a[..., None, :, :, :] if members is None or a.shape[-3] == 1 else a[..., members, :, :])
    Phi = _waves(node, z) if node.kind == "Waves" else _centred(node, z)  # [1 or g, 1 or m, n, c]

    def weighted(Phi: Any) -> Any:
        Phi = _namespace(Phi).broadcast_to(Phi, (*Phi.shape[:-4], g, *Phi.shape[-3:-1], c))
        *first, k, n, _ = Phi.shape
        sums = _matmul(Phi, node.weights.reshape(g, k, -1, c))  # [g, k, n, m t / k]
        sums = sums.reshape(*first, k, n, m // k, t).swapaxes(-2, -3)  # [g, k, m / k, n, t]
        return _rows(sums.reshape(*first[:-1], g * m, n, t), node.place)

    return Phi.each(weighted)


def _waves(node: SimpleNamespace, z: HyperDual) -> HyperDual:
    """cos(theta_i . (z - origin) + tau_i) prod_j (a_ij . (z, 1))."""
    Phi = HyperDual({0: np.ones((1, 1, 1, 1), node.weights.dtype)})
    if node.frequencies is not None:
        P = (z - node.origin).each(lambda a: _matmul(a, node.frequencies[:, None]))
        Phi = _circle(P) if node.phases is None else _cosine(P + node.phases[:, None, None])
    for A in () if node.projections is None else node.projections.swapaxes(0, 1)[:, :, None]:  # [g, 1, c, d + 1]
        Phi = (z.each(lambda a, A=A: _matmul(a, A[..., :-1])) + A[..., None, :, -1]) * Phi
    return Phi


def _cosine(P: HyperDual) -> HyperDual:
    return P.through([P.xp.cos(P.value + i * (math.pi / 2)) for i in range(P.order + 1)])


def _circle(P: HyperDual) -> HyperDual:
    """Cosines, and then sines."""
    turn, both = [f(P.value) for f in (P.xp.cos, P.xp.sin)], lambda a, b: P.xp.concatenate([a, b], -1)
    turn = [*turn, *(-a for a in turn)] * (P.order // 4 + 1)  # cos, sin, -cos, -sin: derivative i starts at -i
    return P.each(lambda a: both(a, a)).through([both(turn[-i], turn[1 - i]) for i in range(P.order + 1)])


def _centred(node: SimpleNamespace, z: HyperDual) -> HyperDual:
    """k(z, z_j), a product of factors, or its derivatives along directions in z and in z_j."""
    q, p = len(node.left), len(node.right)
    z = HyperDual(z.parts | {2 << i: u[None, None, None] for i, u in enumerate(node.left)})
    Z = HyperDual({0: node.centres} | {2 << i: v for i, v in enumerate(node.right, q)})
    parts, wanted = reduce(operator.mul, _each(node, (z, Z))).parts, (2 << (p + q)) - 2
    return HyperDual({s & 1: parts.get(s, 0 * parts[s & 1]) for s in (wanted, wanted + 1) if s & 1 in parts})


def _factor(node: SimpleNamespace, points: tuple[HyperDual, HyperDual]) -> HyperDual:
    """profile(|E(z) - E(z_j)|^2), E = [A z, r cos(B z), r sin(B z)] about the origin; or a power of E(z) . E(z_j)."""
    terms, dot = [], node.profile == "dot"
    z, Z = (each - node.origin for each in points)
    lines = [each.each(lambda a: _matmul(a, node.A)) for each in (z, Z)]
    waves = [_circle(each.each(lambda a: _matmul(a, node.B))) * np.tile(node.r, 2) for each in (z, Z)]
    for E, C in (lines, waves):
        for e in range(C.value.shape[-1]):
            one, other = E.each(lambda a, e=e: a[..., e, None]), C.each(lambda a, e=e: a[..., e])
            terms.append(one * other if dot else (one - other) * (one - other))
    q = reduce(operator.add, terms)
    return q.through(_profile(node, q.value, q.order, q.xp))


def _profile(node: SimpleNamespace, q: Any, order: int, xp: Any) -> list[Any]:
    """k(q) and its derivatives. Roots are of q plus less than its rounding error: `jax.grad` is finite at centres."""
    eps, p, number, orders = float(xp.finfo(q.dtype).eps), node.power, node.number, range(order + 1)
    if node.profile == "rbf":
        k = xp.exp(-0.5 * q)
        return [(-0.5) ** i * k for i in orders]
    if node.profile == "dot":
        return [math.perm(p, i) * (q + number) ** max(p - i, 0) for i in orders]
    if node.profile == "rational_quadratic":
        factors = [math.prod(-(number + j) / (2 * number) for j in range(i)) for i in orders]
        return [factor * (1 + q / (2 * number)) ** (-number - i) for i, factor in enumerate(factors)]
    if node.profile == "spherical":
        r = xp.minimum(xp.sqrt(q + eps**2), 1.0)
        return [1 - 1.5 * r + 0.5 * r**3, 0.75 * (r - 1 / r)]
    s = xp.minimum(xp.sqrt(q + (eps / 10 if p else eps**2)), 1e4)
    decay = xp.exp(-s)
    m = {0: decay, 1: (1 + s) * decay}  # m[p] is the profile for nu = p + 1/2, by the recurrence of Bessel functions
    for j in range(2, p + 1):
        m[j] = m[j - 1] + s * s * m[j - 2] / ((2 * j - 1) * (2 * j - 3))
    for j in range(-1, p - order - 1, -1):
        m[j] = -decay / s if j == -1 else (m[j + 2] - m[j + 1]) * ((2 * j + 3) * (2 * j + 1)) / (s * s)
    return [m[p - i] / math.prod(-2 * (2 * (p - j) - 1) for j in range(i)) for i in orders]


# Maps of values, and transforms of points and of values.


def _map(name: str, x: HyperDual, *arguments: Any) -> HyperDual:
    """phi(x), given phi and phi' at its value."""
    return x.through(_FUNCTIONS[name](x.value, x.xp, *arguments))


def _clamp(f: Any, xp: Any, low: Any, high: Any) -> tuple[Any, Any]:
    low, high = (-math.inf if low is None else low), (math.inf if high is None else high)
    return xp.clip(f, low, high), ((f >= low) & (f <= high)).astype(f.dtype)


def _ndtr(f: Any, xp: Any) -> tuple[Any, Any]:
    erf = np.vectorize(math.erf, otypes=[f.dtype]) if xp is np else sys.modules["jax"].scipy.special.erf
    return 0.5 * (1 + erf(f / math.sqrt(2))), xp.exp(-0.5 * f * f) / math.sqrt(2 * math.pi)


_FUNCTIONS: dict[str, Callable[..., tuple[Any, Any]]] = {
    "abs": lambda f, xp: (xp.abs(f), xp.sign(f)),
    "atan": lambda f, xp: (xp.arctan(f), 1 / (1 + f * f)),
    "clamp": _clamp,
    "cos": lambda f, xp: (xp.cos(f), -xp.sin(f)),
    "exp": lambda f, xp: (xp.exp(f), xp.exp(f)),
    "expm1": lambda f, xp: (xp.expm1(f), xp.exp(f)),
    "log": lambda f, xp: (xp.log(f), 1 / f),
    "log1p": lambda f, xp: (xp.log1p(f), 1 / (1 + f)),
    "ndtr": _ndtr,
    "power": lambda f, xp, p: (f**p, p * f ** (p - 1)),
    "reciprocal": lambda f, xp: (1 / f, -1 / (f * f)),
    "relu": lambda f, xp: (xp.maximum(f, 0), (f > 0).astype(f.dtype)),
    "sigmoid": lambda f, xp: (0.5 * (1 + xp.tanh(f / 2)), 0.25 * (1 - xp.tanh(f / 2) ** 2)),
    "sin": lambda f, xp: (xp.sin(f), xp.cos(f)),
    "softplus": lambda f, xp: (xp.logaddexp(f, 0), 0.5 * (1 + xp.tanh(f / 2))),
    "sqrt": lambda f, xp: (xp.sqrt(f), 0.5 / xp.sqrt(f)),
    "square": lambda f, xp: (f * f, 2 * f),
    "tanh": lambda f, xp: (xp.tanh(f), 1 - xp.tanh(f) ** 2),
}


def _transformed(node: SimpleNamespace, x: HyperDual, inverse: bool = False) -> HyperDual:
    """A transform of each coordinate, or its inverse; those outside of its mask stay as they are."""
    if node.kind == "Inverse":
        return _transformed(node.parts[0], x, not inverse)
    inside, warps = (x if node.mask is None else x * node.mask + 0.5 * ~node.mask), _INVERSES if inverse else _WARPS
    y = _transformed(node.parts[0], inside, inverse) if node.parts else warps[node.kind](inside, node)
    return y if node.mask is None else y * node.mask + x * ~node.mask


def _warped(x: HyperDual, node: SimpleNamespace) -> HyperDual:
    """The distribution function of Kumaraswamy, 1 - (1 - u^a)^b."""
    u = _map("clamp", x * (1 - 2 * node.eps) + node.eps, node.eps, 1 - node.eps)
    return _map("power", _map("power", u, node.a) * -1.0 + 1, node.b) * -1.0 + 1


def _unwarped(y: HyperDual, node: SimpleNamespace) -> HyperDual:
    u = _map("power", _map("power", y * -1.0 + 1, 1 / node.b) * -1.0 + 1, 1 / node.a)
    return (u - node.eps) * (1 / (1 - 2 * node.eps))


def _box_cox(log: HyperDual, power: Any) -> HyperDual:
    """(x^p - 1) / p, given log x: for p = 0 the logarithm, to which a tiny p gives the same."""
    p = np.where(np.abs(power) < np.finfo(np.float64).eps, 1e-20, power)
    return _map("expm1", log * p) * (1 / p)


def _log_of_inverse(y: HyperDual, power: Any) -> HyperDual:
    p = np.where(np.abs(power) < np.finfo(np.float64).eps, 1e-20, power)
    return _map("log1p", y * p) * (1 / p)


def _signed(x: HyperDual, phi: Callable[[HyperDual, Any], HyperDual], power: Any = 1.0) -> HyperDual:
    """phi(x, p) for x >= 0, and -phi(-x, 2 - p) for x < 0, where phi(0, p) = 0."""
    return phi(_map("clamp", x, 0.0, None), power) - phi(_map("relu", x * -1.0), 2 - power)


_WARPS: dict[str, Callable[[HyperDual, SimpleNamespace], HyperDual]] = {
    "BoxCox": lambda x, node: _box_cox(_map("log", x), node.power),
    "Exp": lambda x, node: _map("exp", x),
    "Kumaraswamy": _warped,
    "Log": lambda x, node: _map("log", x) * (1 / np.log(node.base)),
    "Power": lambda x, node: _map("power", x, node.exponent),
    "SignedExp": lambda x, node: _signed(x, lambda u, p: _map("expm1", u)),
    "YeoJohnson": lambda x, node: _signed(x, lambda u, p: _box_cox(_map("log1p", u), p), node.power),
}
_INVERSES: dict[str, Callable[[HyperDual, SimpleNamespace], HyperDual]] = {
    "BoxCox": lambda y, node: _map("exp", _log_of_inverse(y, node.power)),
    "Exp": lambda y, node: _map("log", y),
    "Kumaraswamy": _unwarped,
    "Log": lambda y, node: _map("exp", y * np.log(node.base)),
    "Power": lambda y, node: _map("power", y, 1 / node.exponent),
    "SignedExp": lambda y, node: _signed(y, lambda u, p: _map("log1p", u)),
    "YeoJohnson": lambda y, node: _signed(y, lambda u, p: _map("expm1", _log_of_inverse(u, p)), node.power),
}
_KINDS: dict[str, Callable[..., HyperDual]] = {
    "Affine": lambda node, x: x.each(lambda a: _matmul(a, node.M.T)) + node.b,
    "Centred": _term,
    "Ensemble": _ensemble,
    "Factor": _factor,
    "Mapped": lambda node, x: _map(node.name, x, *node.arguments),
    "Model": _model,
    "Product": lambda node, x: reduce(operator.mul, _each(node, x)),
    "Selected": lambda node, x: x.each(lambda a: a[..., node.outputs]),
    "Sequential": lambda node, x: reduce(lambda x, part: _at(part, x), node.parts, x),
    "SideBySide": lambda node, x: _joined(_each(node, x), -1),
    "Sum": _sum,
    "Waves": _term,
    **dict.fromkeys((*_WARPS, "Inverse", "Masked"), _transformed),
}
