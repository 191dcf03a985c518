"""Functions drawn from Gaussian processes, on NumPy and JAX arrays, without torch.

    f = matheron_portable.load("f.safetensors")    # what paths.export("f.safetensors") of matheron wrote
    f(x)                                           # points [n, d] -> values [s, n], of s functions
    f.value_and_grad(x)                            # and gradients [s, n, d], in closed form

Points `[s, n, d]` are each function's own. t outputs add an axis after n: `[s, n, t]` and `[s, n, t, d]`. JAX arrays
give JAX arrays, under `jit`, `vmap`, `grad` and `lax.scan`, in their own dtype: with float32 JAX rounds the numbers of
a float64 file. A file is data; nothing in it is run.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
from safetensors import safe_open

__all__ = ["Functions", "load"]
FORMAT = "matheron-functions-1"
# NumPy evaluates points in blocks, so that no array has more numbers than this.
_BLOCK = 1 << 22

Slope = Callable[[int], Any]  # the derivatives [g, N, c] of features in coordinate i
Features = tuple[Any, Slope]


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
        tensors = {name: file.get_tensor(name) for name in file.keys()}
    return Functions(_node(json.loads(metadata["functions"]), "", tensors))


def _node(tree: dict[str, Any], prefix: str, tensors: dict[str, Any]) -> SimpleNamespace:
    """A part of the description, with the arrays that are its own, and its parts in order."""
    own = {name[len(prefix) :]: a for name, a in tensors.items() if name.startswith(prefix)}
    parts = {name: _node(part, f"{prefix}{name}.", tensors) for name, part in tree["parts"].items()}
    none = dict.fromkeys(("phases", "frequencies", "members", "place", "slope", "M", "scale", "domain"))
    arrays = {name: a for name, a in own.items() if "." not in name}
    return SimpleNamespace(kind=tree["kind"], **none | tree["fields"] | arrays, parts=parts)


class Functions:
    """s functions of points in d dimensions, with t outputs; see the module."""

    def __init__(self, node: SimpleNamespace) -> None:
        self.num_paths, self.num_outputs = node.num_paths, node.num_outputs
        self.input_dim, self.dtype = node.input_dim, np.dtype(node.dtype)
        self._node, self._width = node.parts["function"], _width(node)

    def __repr__(self) -> str:
        return f"Functions(num_paths={self.num_paths}, input_dim={self.input_dim}, num_outputs={self.num_outputs})"

    def __call__(self, x: Any) -> Any:
        """Values `[s, n]` at points `[n, d]`, or `[s, n, d]`, each function's own."""
        return self._evaluated(x, gradient=False)[0]

    def value_and_grad(self, x: Any) -> tuple[Any, Any]:
        """Values `[s, n]`, and gradients `[s, n, d]`."""
        return self._evaluated(x, gradient=True)

    def _evaluated(self, x: Any, gradient: bool) -> tuple[Any, Any]:
        xp = _namespace(x)
        x = np.asarray(x, self.dtype) if xp is np else x
        if x.ndim == 3 and x.shape[0] == 1:
            x = x[0]
        if x.ndim not in (2, 3) or x.shape[-1] != self.input_dim or (x.ndim == 3 and x.shape[0] != self.num_paths):
            s, d = self.num_paths, self.input_dim
            raise ValueError(f"x: expected points [n, {d}], or [{s}, n, {d}] for each its own, got {list(x.shape)}")
        step = max(1, _BLOCK // (self._width * (self.num_paths if x.ndim == 3 else 1)))
        if xp is not np or x.shape[-2] <= step:
            return self._shown(_values(self._node, x, xp, gradient), xp)
        blocks = np.split(x, range(step, x.shape[-2], step), axis=-2)
        f, df = zip(*(self._shown(_values(self._node, block, np, gradient), np) for block in blocks), strict=True)
        return np.concatenate(f, axis=1), np.concatenate(df, axis=1) if gradient else None

    def _shown(self, pair: tuple[Any, Any], xp: Any) -> tuple[Any, Any]:
        """`[s, t, n]` and `[s, t, n, d]` as users see them."""
        single = self.num_outputs == 1

        def shown(a: Any) -> Any:
            a = a[:, 0] if single else xp.moveaxis(a, 1, 2)
            return a.astype(self.dtype, copy=False) if xp is np else a

        return _each(shown, pair)


def _namespace(x: Any) -> Any:
    jax = sys.modules.get("jax")  # anyone who has a JAX array has imported JAX
    return jax.numpy if jax is not None and isinstance(x, jax.Array) else np


def _width(node: SimpleNamespace) -> int:
    """The most features of any term."""
    own = node.weights.shape[-1] if hasattr(node, "weights") else 1
    return max([own, *map(_width, node.parts.values())])


def _matmul(xp: Any, a: Any, b: Any) -> Any:
    """a b^T, on accelerators without TF32, whose eleven bits are too few for phases."""
    return np.matmul(a, b.swapaxes(-1, -2)) if xp is np else xp.matmul(a, b.swapaxes(-1, -2), precision="highest")


def _values(node: SimpleNamespace, x: Any, xp: Any, gradient: bool) -> tuple[Any, Any]:
    """Values `[s, t, n]` and gradients `[s, t, n, d]` of a part; None without `gradient`."""
    if node.kind == "Model":
        return _model(node, x, xp, gradient)
    if node.kind == "Selected":
        return _each(lambda a: a[:, node.outputs], _values(node.parts["part"], x, xp, gradient))
    if node.kind == "Mapped":
        f, df = _values(node.parts["part"], x, xp, gradient)
        value, slope = _mapped(node.name, node.arguments, f, xp)
        return value, None if df is None else slope[..., None] * df
    if node.kind == "Coordinates":
        shape = (node.count, *x.shape[-2:])
        eye = xp.broadcast_to(xp.eye(x.shape[-1], dtype=x.dtype)[:, None], (*shape[:1], shape[2], shape[1], shape[2]))
        return xp.moveaxis(xp.broadcast_to(x, shape), 1, 2), eye if gradient else None
    if node.kind == "Warped":
        return _warped(node, x, xp, gradient)
    if node.kind == "Composed":
        z, dz = _values(node.parts["inner"], x, xp, gradient)  # [s, e, n], [s, e, n, d]
        f, df = _values(node.parts["outer"], xp.moveaxis(z, 1, 2), xp, gradient)
        return f, None if df is None else xp.einsum("stne,send->stnd", df, dz)
    parts = list(node.parts["parts"].parts.values())
    if node.kind == "Sum":
        f, df = node.level[..., None], 0.0
        for w, pair in zip(node.weights[..., None], (_values(part, x, xp, gradient) for part in parts), strict=True):
            f, df = f + w * pair[0], df + w[..., None] * pair[1] if gradient else None
        return f, df
    if node.kind == "Product":
        f, df = _values(parts[0], x, xp, gradient)
        for g, dg in (_values(part, x, xp, gradient) for part in parts[1:]):
            f, df = f * g, None if df is None else g[..., None] * df + f[..., None] * dg
        return f, df
    if node.kind == "SideBySide":
        return _joined([_values(part, x, xp, gradient) for part in parts], 1, xp)
    if node.kind != "Ensemble":
        raise ValueError(f"expected a file of this version of matheron_portable, got a part {node.kind!r}")
    ends = np.cumsum([0, *node.counts])
    shares = [x if x.ndim == 2 else x[node.order[a:b]] for a, b in pairwise(ends)]
    whole = _joined([_values(p, share, xp, gradient) for p, share in zip(parts, shares, strict=True)], 0, xp)
    return _each(lambda a: a[node.place], whole)


def _warped(node: SimpleNamespace, x: Any, xp: Any, gradient: bool) -> tuple[Any, Any]:
    """values(part(points(x))), with transforms of each coordinate and of each output."""
    points, values = node.parts.get("points"), node.parts.get("values")
    z, inner = (x, None) if points is None else _transformed(points, x, xp)
    f, df = _values(node.parts["part"], z, xp, gradient)
    if df is not None and inner is not None:
        df = df * (inner if x.ndim == 2 else inner[:, None])
    if values is None:
        return f, df
    out, outer = (xp.moveaxis(a, 2, 1) for a in _transformed(values, xp.moveaxis(f, 1, 2), xp))
    return out, None if df is None else df * outer[..., None]


def _transformed(node: SimpleNamespace, x: Any, xp: Any, inverse: bool = False) -> tuple[Any, Any]:
    """A transform, or its inverse, of each coordinate of x `[..., d]`, and its derivative."""
    if node.kind == "Inverse":
        return _transformed(node.parts["transform"], x, xp, not inverse)
    if node.kind == "Chain":
        slope, parts = xp.ones_like(x), list(node.parts["transforms"].parts.values())
        for part in reversed(parts) if inverse else parts:
            x, own = _transformed(part, x, xp, inverse)
            slope = slope * own
        return x, slope
    mask = getattr(node, "mask", None)
    inside = x if mask is None else xp.where(mask, x, 0.5)  # masked entries have no logarithm
    if node.kind == "Masked":
        y, slope = _transformed(node.parts["transform"], inside, xp, inverse)
    else:
        y, slope = _warp(node, inside, xp, inverse)
    return (y, slope + xp.zeros_like(x)) if mask is None else (xp.where(mask, y, x), xp.where(mask, slope, 1.0))


def _warp(node: SimpleNamespace, x: Any, xp: Any, inverse: bool) -> tuple[Any, Any]:
    if node.kind == "Affine":
        return (
            ((x - node.offset) / node.scale, 1 / node.scale) if inverse else (x * node.scale + node.offset, node.scale)
        )
    if node.kind in ("Exp", "Log"):
        rate = np.log(node.base) if node.kind == "Log" else 1.0
        if inverse == (node.kind == "Log"):
            return xp.exp(rate * x), rate * xp.exp(rate * x)
        return xp.log(x) / rate, 1 / (rate * x)
    if node.kind == "SignedExp":
        if inverse:
            return xp.sign(x) * xp.log1p(abs(x)), 1 / (1 + abs(x))
        return xp.sign(x) * xp.expm1(abs(x)), xp.exp(abs(x))
    if node.kind == "Power":
        p = 1 / node.exponent if inverse else node.exponent
        return x**p, p * x ** (p - 1)
    if node.kind == "Kumaraswamy":
        a, b, eps = node.a, node.b, node.eps
        if inverse:
            v = (1 - x) ** (1 / b)
            u = (1 - v) ** (1 / a)
            return (u - eps) / (1 - 2 * eps), u * v / ((1 - v) * (1 - x) * a * b * (1 - 2 * eps))
        u = xp.clip(x * (1 - 2 * eps) + eps, eps, 1 - eps)
        slope = a * b * u ** (a - 1) * (1 - u**a) ** (b - 1) * (1 - 2 * eps)
        return 1 - (1 - u**a) ** b, slope * ((x >= 0) & (x <= 1))
    if node.kind not in ("BoxCox", "YeoJohnson"):
        raise ValueError(f"expected a file of this version of matheron_portable, got a transform {node.kind!r}")
    p, sign, shift = node.power, 1.0, 0.0
    if node.kind == "YeoJohnson":  # the logarithm of 1 + |x|
        p, sign, shift = xp.where(x < 0, 2 - node.power, node.power), xp.where(x < 0, -1.0, 1.0), 1.0
    zero = abs(p) < np.finfo(np.float64).eps
    safe, magnitude = xp.where(zero, 1.0, p), sign * x
    if inverse:
        u = xp.exp(xp.where(zero, magnitude, xp.log1p(safe * magnitude) / safe))
        return sign * (u - shift), u ** (1 - p)
    log = xp.log(magnitude + shift)
    return sign * xp.where(zero, log, xp.expm1(safe * log) / safe), xp.exp((p - 1) * log)


def _mapped(name: str, arguments: list, f: Any, xp: Any) -> tuple[Any, Any]:
    """phi(f) and phi'(f)."""
    if name == "ndtr":
        erf = np.vectorize(math.erf, otypes=[f.dtype]) if xp is np else sys.modules["jax"].scipy.special.erf
        return 0.5 * (1 + erf(f / math.sqrt(2))), xp.exp(-0.5 * f * f) / math.sqrt(2 * math.pi)
    if name == "clamp":
        low, high = (-math.inf if arguments[0] is None else arguments[0]), arguments[1]
        inside = (f >= low) & (f <= (math.inf if high is None else high))
        return xp.clip(f, low, high), inside.astype(f.dtype)
    if name == "power":
        return f ** arguments[0], arguments[0] * f ** (arguments[0] - 1)
    known: dict[str, Callable[[Any], tuple[Any, Any]]] = {
        "abs": lambda f: (xp.abs(f), xp.sign(f)),
        "atan": lambda f: (xp.arctan(f), 1 / (1 + f * f)),
        "cos": lambda f: (xp.cos(f), -xp.sin(f)),
        "exp": lambda f: (xp.exp(f), xp.exp(f)),
        "expm1": lambda f: (xp.expm1(f), xp.exp(f)),
        "log": lambda f: (xp.log(f), 1 / f),
        "log1p": lambda f: (xp.log1p(f), 1 / (1 + f)),
        "reciprocal": lambda f: (1 / f, -1 / (f * f)),
        "relu": lambda f: (xp.maximum(f, 0), (f > 0).astype(f.dtype)),
        "sigmoid": lambda f: (0.5 * (1 + xp.tanh(f / 2)), 0.25 * (1 - xp.tanh(f / 2) ** 2)),
        "sin": lambda f: (xp.sin(f), xp.cos(f)),
        "softplus": lambda f: (xp.logaddexp(f, 0), 0.5 * (1 + xp.tanh(f / 2))),
        "sqrt": lambda f: (xp.sqrt(f), 0.5 / xp.sqrt(f)),
        "square": lambda f: (f * f, 2 * f),
        "tanh": lambda f: (xp.tanh(f), 1 - xp.tanh(f) ** 2),
    }
    if name not in known:
        raise ValueError(f"expected a file of this version of matheron_portable, got a function {name!r}")
    return known[name](f)


def _each(function: Callable[[Any], Any], pair: tuple[Any, Any]) -> tuple[Any, Any]:
    return function(pair[0]), None if pair[1] is None else function(pair[1])


def _joined(pairs: list[tuple[Any, Any]], axis: int, xp: Any) -> tuple[Any, Any]:
    f, df = zip(*pairs, strict=True)
    return xp.concatenate(f, axis), None if df[0] is None else xp.concatenate(df, axis)


def _model(node: SimpleNamespace, x: Any, xp: Any, gradient: bool) -> tuple[Any, Any]:
    """scale (level + slope . z + sum of terms at z) + offset, z = x M + b."""
    z, diagonal = x, node.M is not None and node.M.ndim == 1
    if node.M is not None:
        z = (x * node.M if diagonal else _matmul(xp, x, node.M.T)) + node.b
    if node.domain is not None:
        outside = ((z < node.domain[0]) | (z > node.domain[1])).any(-1)[..., None]
        z = xp.where(outside, xp.nan, z)
    flat = xp.zeros_like(z[None] if z.ndim == 2 else z)  # [1 or s, n, e]
    f = node.level[..., None] + flat[..., 0][:, None]  # [s, t, n]
    df = node.level[..., None, None] * 0 + flat[:, None] if gradient else None  # [s, t, n, e]
    if node.slope is not None:
        f, df = f + _matmul(xp, node.slope, z), None if df is None else df + node.slope[:, None]
    for term in node.parts["terms"].parts.values():
        more, slopes = _term(term, z, xp, gradient)
        f, df = f + more, None if df is None else df + slopes
    if df is not None and node.M is not None:
        df = df * node.M if diagonal else _matmul(xp, df, node.M)
    if node.scale is None:
        return f, df
    return f * node.scale[:, None] + node.offset[:, None], None if df is None else df * node.scale[:, None, None]


def _term(node: SimpleNamespace, z: Any, xp: Any, gradient: bool) -> tuple[Any, Any]:
    """sum_c W_c phi_c(z): weights `[g, m, t, c]`, of the m paths of each of g versions of the basis."""
    W, own = node.weights, z.ndim == 3
    g, m, t, c = W.shape
    if own:
        mine = (z if node.members is None else z[node.members]).reshape(g, -1, z.shape[-1])  # [g, m n, e]
    else:
        mine = z[None]
    Phi, slope = _FEATURES[node.kind](node, mine, xp)

    def weighted(Phi: Any) -> Any:
        Phi = xp.broadcast_to(Phi, (g, mine.shape[1], c))
        rows = W.reshape(g * m, t, c) if own else W.reshape(g, m * t, c)
        sums = _matmul(xp, rows, Phi.reshape(g * m, -1, c) if own else Phi).reshape(g * m, t, -1)
        return sums if node.place is None else sums[node.place]  # [s, t, n]

    slopes = xp.stack([weighted(slope(i)) for i in range(z.shape[-1])], -1) if gradient else None
    return weighted(Phi), slopes


def _waves(node: SimpleNamespace, z: Any, xp: Any) -> Features:
    theta = node.frequencies  # [g, f, e]
    P = _matmul(xp, z - node.origin, theta) + (0 if node.phases is None else node.phases[:, None])  # [g, N, f]
    if node.phases is not None:
        return xp.cos(P), lambda i: -xp.sin(P) * theta[:, None, :, i]
    C, S = xp.cos(P), xp.sin(P)
    both = partial(xp.concatenate, axis=-1)
    return both([C, S]), lambda i: both([-S * theta[:, None, :, i], C * theta[:, None, :, i]])


def _products(node: SimpleNamespace, z: Any, xp: Any) -> Features:
    A = node.projections  # [g, p, c, e + 1]
    forms = [_matmul(xp, z, A[:, j, :, :-1]) + A[:, j, None, :, -1] for j in range(A.shape[1])]
    slopes: list[Slope] = [partial(lambda j, i: A[:, j, None, :, i], j) for j in range(A.shape[1])]
    if node.frequencies is not None:
        cosines, slope = _waves(node, z, xp)
        forms, slopes = [*forms, cosines], [*slopes, slope]

    def product_rule(i: int) -> Any:
        return sum(math.prod(forms[:j] + forms[j + 1 :], start=own(i)) for j, own in enumerate(slopes))

    return math.prod(forms[1:], start=forms[0]), product_rule


def _centred(node: SimpleNamespace, z: Any, xp: Any) -> Features:
    """k(z, z_j), or its derivatives along directions in z_j and z: products of factors, each with its derivatives along
    every set of the directions. Sets are whole numbers, a bit for each direction; coordinate i is one more of these."""
    factors = [_factor(factor, z, xp) for factor in node.parts["factors"].parts.values()]

    def along(i: int | None) -> Any:
        first, *others = [factor(i) for factor in factors]
        for other in others:
            first = [sum(first[a] * other[s ^ a] for a in _subsets(s)) for s in range(len(first))]
        return first[-1]

    return along(None), along


def _factor(node: SimpleNamespace, z: Any, xp: Any) -> Callable[[int | None], list[Any]]:
    """profile(|E(z) - E(z_j)|^2), E = [A z, r cos(B z), r sin(B z)] about the origin; or a power of E(z) . E(z_j)."""
    z, A, B, r, C = z - node.origin, node.linear, node.frequencies, node.sizes, node.centres
    C, left = (C, list(node.left)) if C.ndim == 3 else (C[None], [])  # [sets of directions in z_j, c, e]
    P = _matmul(xp, z, B)
    turns, p, dot = [xp.cos(P), -xp.sin(P), -xp.cos(P), xp.sin(P)], len(C), node.profile == "dot"

    def embedded(ways: list[Any]) -> Any:
        """E(z), differentiated along directions."""
        n, size = len(ways), math.prod((B @ u for u in ways), start=r)
        line = _matmul(xp, z, A) if n == 0 else xp.broadcast_to((A @ ways[0]) * (n == 1), (*P.shape[:-1], len(A)))
        return xp.concatenate([line, size * turns[n % 4], size * turns[(n + 3) % 4]], -1)

    def inner(E: list[Any], s: int) -> Any:
        """E(z) . E(z_j), or |E(z) - E(z_j)|^2, differentiated along the set s."""
        if dot:
            return _matmul(xp, E[s // p], C[s % p])

        def difference(a: int, e: int) -> Any:
            of_z = E[a // p][..., e, None] if a % p == 0 else 0.0
            return of_z - C[a, :, e] if a < p else of_z

        pairs = [(a, s ^ a, 2.0) for a in _subsets(s) if a & s & -s] or [(0, 0, 1.0)]
        return sum(w * difference(a, e) * difference(b, e) for e in range(C.shape[-1]) for a, b, w in pairs)

    E, order = [embedded([u for j, u in enumerate(left) if s >> j & 1]) for s in range(1 << len(left))], len(left) + 2
    q = [inner(E, s) for s in range(p * len(E))]
    profile = _profile(node, q[0], order + p.bit_length() - 1, xp)

    def along(i: int | None) -> list[Any]:
        if i is None:
            return [_composed(profile, q, s) for s in range(len(q))]
        ways = [*left, np.eye(z.shape[-1], dtype=node.origin.dtype)[i]]
        more = [embedded([u for j, u in enumerate(ways) if s >> j & 1]) for s in range(len(E), 2 * len(E))]
        whole = [*q, *(inner([*E, *more], s) for s in range(len(q), 2 * len(q)))]
        return [_composed(profile, whole, s) for s in range(len(whole))]

    return along


def _composed(profile: list[Any], q: list[Any], s: int) -> Any:
    """The derivative of profile(q) along a set: a sum over its partitions (Faa di Bruno)."""
    return sum(math.prod((q[part] for part in parts), start=profile[len(parts)]) for parts in _partitions(s))


def _subsets(s: int) -> list[int]:
    return [a for a in range(s + 1) if a & s == a]


def _partitions(s: int) -> list[list[int]]:
    if s == 0:
        return [[]]
    return [[a, *rest] for a in _subsets(s) if a & s & -s for rest in _partitions(s ^ a)]


def _profile(node: SimpleNamespace, q: Any, count: int, xp: Any) -> list[Any]:
    """k(q) and its first derivatives. Roots are of q plus less than its rounding error: so `jax.grad` is finite at
    centres."""
    eps, numbers, orders = float(xp.finfo(q.dtype).eps), node.numbers, range(count)
    if node.profile == "rbf":
        k = xp.exp(-0.5 * q)
        return [(-0.5) ** i * k for i in orders]
    if node.profile == "dot":
        n, u = node.power, q + numbers.flat[0]
        return [math.perm(n, i) * u ** max(n - i, 0) for i in orders]
    if node.profile == "rational_quadratic":
        alpha, base = numbers.flat[0], 1 + q / (2 * numbers.flat[0])
        return [math.prod(-(alpha + j) / (2 * alpha) for j in range(i)) * base ** (-alpha - i) for i in orders]
    if node.profile == "spherical":
        r = xp.minimum(xp.sqrt(q + eps**2), 1.0)
        return [1 - 1.5 * r + 0.5 * r**3, (r**2 - 1) * 0.75 / r]
    if node.profile != "matern":
        raise ValueError(f"expected a file of this version of matheron_portable, got a profile {node.profile!r}")
    row = numbers if numbers.ndim == 1 else numbers[0]
    powers = {j + (0 if row is numbers else node.lowest): float(c) for j, c in enumerate(row) if c}
    rough, far, found = len(powers) == 1, 87.0 if q.dtype == np.float32 else 700.0, []
    s = xp.minimum(xp.sqrt(q + (eps**2 if rough else eps / 10)), far)
    decay = xp.exp(-s)
    for _ in orders:
        found.append(sum(c * s**j for j, c in powers.items()) * decay)
        after: dict[int, float] = {}
        for j, c in powers.items():  # the derivative of c s^j exp(-s) with respect to q = s^2
            after[j - 2] = after.get(j - 2, 0.0) + j * c / 2
            after[j - 1] = after.get(j - 1, 0.0) - c / 2
        largest = max(map(abs, after.values()))
        # drops the coefficients that cancel up to rounding
        powers = {j: c for j, c in after.items() if abs(c) > 1e-6 * largest * eps**0.5}
    return found


_FEATURES: dict[str, Callable[[SimpleNamespace, Any, Any], Features]] = {
    "Waves": _waves,
    "Products": _products,
    "Centred": _centred,
    "Slopes": _centred,
}
