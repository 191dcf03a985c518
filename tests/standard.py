"""What every kernel, every sampler and every kind of paths must pass.

Formulas are written a second time, in dense NumPy, beside tests of laws and of contracts.

Nothing here calls the library's mathematics: `covariance` has each kernel's formula of its own, and `exact_moments` the
closed form of each posterior. Tolerances come from the sampling error of what is compared.
"""

from __future__ import annotations

import copy
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import special, stats
from torch import Tensor

from matheron import AbstractPaths, ExactGP, SparseGP, kernels, load
from matheron.features import Features, FeatureSpec, make_features
from matheron.models import means

# The chance that a right sampler fails one assertion, shared among all of its numbers; seeds are fixed.
LEVEL = 1e-4

K = kernels
STATIONARY = {  # each with its number of dimensions, and with k(x, x) = 1
    "RBF": (K.RBF(0.6), 2),
    "RBF, one lengthscale per dimension": (K.RBF([0.3, 2.0, 0.7]), 3),
    "RBF in 20 dimensions": (K.RBF(2.0), 20),
    "Matern 1/2": (K.Matern(0.5, 0.8), 2),
    "Matern 3/2": (K.Matern(1.5, [0.5, 0.9]), 2),
    "Matern 5/2": (K.Matern(2.5, 0.5), 1),
    "Matern 5/2 in 20 dimensions": (K.Matern(2.5, 2.0), 20),
    "Matern 1.2": (K.Matern(1.2, 0.7), 2),
    "Matern 3.7": (K.Matern(3.7, 0.7), 2),
    "rational quadratic": (K.RationalQuadratic(0.8, [0.4, 0.9]), 2),
    "spherical": (K.Spherical([0.9, 1.6]), 2),
    "spherical in 3 dimensions": (K.Spherical(1.2), 3),
    "rotated": (K.Rotated(K.Matern(1.5, [0.4, 1.1]), 30.0), 2),
    "periodic": (K.Periodic([0.9, 1.4], [0.8, 1.3]), 2),
    "cosine": (K.Cosine(0.9), 1),
    "categorical": (K.Categorical([0.8, 2.0], 12), 2),
    "spectral mixture of one": (K.SpectralMixture([1.0], [[0.4, -0.7]], [[0.3, 0.2]]), 2),
    "on some coordinates": (K.Matern(1.5, [0.4, 0.8]).on([2, 0]), 3),
    "a product": (K.RBF(0.6) * K.Matern(1.5, 0.9), 2),
    "a product of two cosines": (K.Cosine(0.9) * K.Cosine(0.7), 1),
    "a product of cosine and periodic": (K.Cosine(0.9) * K.Periodic(1.1, 0.6), 1),
    "a product of spectral mixtures": (
        K.SpectralMixture([1.0], [[0.8]], [[0.2]]) * K.SpectralMixture([1.0], [[0.5]], [[0.3]]),
        1,
    ),
    "a product across coordinates": (K.RBF(0.5).on(0) * K.Periodic(1.0, 0.8).on(1), 2),
    "a product of periodic, radial and cosine": (K.Periodic(0.8, 0.7) * K.RationalQuadratic(2.0) * K.Cosine(1.1), 1),
}
# Those without a second derivative at coincident points.
ROUGH = ("Matern 1/2", "Matern 1.2", "spherical", "spherical in 3 dimensions")
KERNELS = STATIONARY | {
    "spectral mixture": (K.SpectralMixture([0.7, 0.5], [[0.4, 1.0], [0.0, -0.3]], [[0.3, 0.2], [0.5, 0.0]]), 2),
    "linear": (K.Linear([0.5, 2.0]), 2),
    "polynomial": (K.Polynomial(3, 0.5), 2),
    "polynomial without offset": (K.Polynomial(2, 0.0), 2),
    "constant": (K.Constant(1.7), 2),
    "scaled": (2.5 * K.Matern(2.5, 0.5), 2),
    "a scaled constant": (2.0 * (3.0 * K.Constant(0.5)), 1),
    "a sum": (K.RBF(0.4) + 0.5 * K.Matern(1.5, 0.8), 2),
    "a constant plus a sum": (K.Constant(0.5) + K.RBF(0.4) + K.Linear(), 2),
    "stationary times linear": (K.RBF(0.5) * K.Linear([1.0, 0.4]), 2),
    "stationary times polynomial": (K.Matern(2.5, 0.7) * K.Polynomial(2, 0.5), 1),
    "linear times linear": (K.Linear([0.7, 0.2]) * K.Linear(), 2),
    "linear times polynomial, on coordinates": (K.Linear().on(1) * K.Polynomial(2, 1.0).on(0), 2),
    "a product of sums": (
        1.5 * (K.RBF(0.5).on(0) + K.Linear().on(1)) * (K.Periodic(1.0, 0.9).on(1) + K.Constant(0.3)),
        2,
    ),
    "sums nested on coordinates": (((K.RBF(0.5) + K.Linear()).on(1) * K.Cosine(1.2).on(0)).on([2, 0]), 3),
}


def _array(x) -> np.ndarray:
    return np.asarray(x.detach().cpu().double() if isinstance(x, Tensor) else x, dtype=np.float64)


def covariance(kernel, x, z, i=None, j=None) -> np.ndarray:
    """k(x, z) `[n, m]` in NumPy, by the formulas in the kernels' docstrings; i and j are tasks."""
    x, z = _array(x), _array(z)
    r = x[:, None] - z[None]  # [n, m, d]
    match kernel:
        case kernels.RBF():
            return np.exp(-0.5 * _scaled_squares(r, kernel.lengthscale))
        case kernels.Matern():
            s = np.sqrt(2 * kernel.nu * _scaled_squares(r, kernel.lengthscale))
            safe = np.where(s > 1e-9, s, 1.0)
            value = 2 ** (1 - kernel.nu) / special.gamma(kernel.nu) * safe**kernel.nu * special.kv(kernel.nu, safe)
            return np.where(s > 1e-9, value, 1.0)
        case kernels.RationalQuadratic():
            alpha = float(kernel.alpha)
            return (1 + _scaled_squares(r, kernel.lengthscale) / (2 * alpha)) ** -alpha
        case kernels.Spherical():
            h = np.minimum(np.sqrt(_scaled_squares(r, kernel.lengthscale)), 1.0)
            return 1 - 1.5 * h + 0.5 * h**3
        case kernels.Rotated():
            a = np.radians(kernel.angle)
            R = np.eye(x.shape[1])
            R[:2, :2] = [[np.cos(a), np.sin(a)], [-np.sin(a), np.cos(a)]]
            return covariance(kernel.kernel, x @ R.T, z @ R.T, i, j)
        case kernels.Periodic():
            return np.exp(-2 * _scaled_squares(np.sin(np.pi * r / _array(kernel.period)), kernel.lengthscale))
        case kernels.Categorical():
            m, a = kernel.categories + 1 - kernel.categories % 2, np.exp(-1 / _array(kernel.lengthscale))
            j = np.arange(1, m // 2 + 1)
            D = (1 + 2 * np.cos(2 * np.pi * r[..., None] * j / m).sum(-1)) / m
            return (a + (1 - a) * D).prod(-1)
        case kernels.Cosine():
            return np.cos(2 * np.pi * r[..., 0] / float(kernel.period))
        case kernels.SpectralMixture():
            parts = zip(_array(kernel.weights), _array(kernel.means), _array(kernel.scales), strict=True)
            gaussians = [
                w * np.exp(-2 * np.pi**2 * (s**2 * r**2).sum(-1)) * np.cos(2 * np.pi * r @ mu) for w, mu, s in parts
            ]
            return np.sum(gaussians, axis=0)
        case kernels.Linear():
            return (_array(kernel.variance) * x) @ z.T
        case kernels.Polynomial():
            return (x @ z.T + float(kernel.offset)) ** kernel.degree
        case kernels.Constant():
            return np.full((len(x), len(z)), float(kernel.value))
        case kernels.Scaled():
            return float(kernel.outputscale) * covariance(kernel.kernel, x, z, i, j)
        case kernels.Sum():
            return np.sum([covariance(k, x, z, i, j) for k in kernel.parts], axis=0)
        case kernels.Product():
            return np.prod([covariance(k, x, z, i, j) for k in kernel.parts], axis=0)
        case kernels.OnDims():
            return covariance(kernel.kernel, x[:, kernel.dims], z[:, kernel.dims], i, j)
        case kernels.Coregional():
            return _array(kernel.B)[np.asarray(i)[:, None], np.asarray(j)] * covariance(kernel.kernel, x, z)
    raise TypeError(f"standard.covariance has no formula for {type(kernel).__name__}; write one")


def _scaled_squares(r: np.ndarray, lengthscale) -> np.ndarray:
    return ((r / _array(lengthscale)) ** 2).sum(-1)


def features_of(
    kernel,
    input_dim: int,
    num_features: int,
    kind: str,
    *,
    num_bases: int = 1,
    domain=None,
    reference=None,
    seed: int = 0,
) -> Features:
    """Features of a kernel's prior about an origin that is not zero; `domain` is a pair of numbers."""
    sides = None if domain is None else torch.tensor(domain, dtype=torch.float64)[:, None].expand(2, input_dim)
    origin = torch.linspace(-0.3, 0.5, input_dim, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    spec = FeatureSpec(kind, num_features, 1, sides, num_paths=num_bases)
    return make_features(kernel, spec, generator, data=reference, origin=origin, like=origin[None])


def kernel_error(features: Features, kernel, x: Tensor) -> Tensor:
    """Phi Phi^T - k(x, x) of each basis, `[g, n, n]`."""
    Phi = features(x)  # [g, n, ell]
    return Phi @ Phi.mT - torch.from_numpy(covariance(kernel, x, x))


def assert_unbiased(error: Tensor, slack: float = 1e-9) -> None:
    """Errors `[g, ...]` of many independent bases are zero in the mean, within the spread that they show."""
    g = len(error)
    bound = stats.t.isf(LEVEL / 2 / error[0].numel(), g - 1) * error.std(0) / math.sqrt(g) + slack
    _assert_within(_array(error.mean(0)), _array(bound), "mean over bases")


def exact_moments(gp: ExactGP | SparseGP, x, *, q_mean=None, q_cov=None) -> tuple[Tensor, Tensor]:
    """Closed-form posterior mean and covariance of f at x `[n, d]`: `[n]`, `[n, n]`.

    For t outputs `[n, t]` and `[n t, n t]`, point by point, as `paths(x).reshape(s, -1)` has them. For a SparseGP with
    `sample_u`, give the mean `[m]` and the covariance `[m, m]` of what it draws.
    """
    x, t = _array(x), gp.num_outputs
    points = np.repeat(x, t, axis=0)  # [n t, d]
    tasks = np.tile(np.arange(t), len(x))
    exact = isinstance(gp, ExactGP)
    Z = _array(gp.train_inputs if exact else gp.inducing_points)
    at = np.zeros(len(Z), dtype=int) if gp.tasks is None else np.asarray(gp.tasks)
    K_zz, K_xz = covariance(gp.kernel, Z, Z, at, at), covariance(gp.kernel, points, Z, tasks, at)
    K_xx = covariance(gp.kernel, points, points, tasks, tasks)
    m_z, m_x = _prior_mean(gp.mean, Z, at), _prior_mean(gp.mean, points, tasks)
    if exact:
        K_zz = K_zz + np.diag(_array(gp.noise))
        q_mean, Sigma = _array(gp.train_targets), np.zeros_like(K_zz)
    else:
        K_zz = K_zz + gp.jitter * np.eye(len(Z))
        q_mean = _array(gp.q_mean if q_mean is None else q_mean)
        Sigma = _q_cov(gp) if q_cov is None else _array(q_cov)
        if gp.whitened:  # f(Z) = m(Z) + L u
            L = np.linalg.cholesky(K_zz)
            q_mean, Sigma = m_z + L @ q_mean, L @ Sigma @ L.T
    A = K_xz @ np.linalg.pinv(K_zz, rcond=1e-14, hermitian=True)  # [n t, m]
    mean = m_x + A @ (q_mean - m_z)
    cov = K_xx + A @ (Sigma - K_zz) @ A.T
    return torch.from_numpy(mean.reshape(len(x), t) if t > 1 else mean), torch.from_numpy((cov + cov.T) / 2)


def _q_cov(gp: SparseGP) -> np.ndarray:
    if gp.q_scale_tril is None:
        return np.zeros((gp.num_inducing, gp.num_inducing))
    root = _array(gp.q_scale_tril)
    return np.diag(root**2) if root.ndim == 1 else root @ root.T


def _prior_mean(mean: means.Mean, x: np.ndarray, tasks: np.ndarray) -> np.ndarray:
    """m(x) `[n]`, of each point's own task."""
    match mean:
        case means.ConstantMean():
            value = np.broadcast_to(_array(mean.value), (len(x), mean.value.numel()))
        case means.LinearMean():
            value = x @ _array(mean.weights).T + _array(mean.bias)
        case means.CallableMean():
            value = _array(mean.called(torch.from_numpy(x))).reshape(len(x), -1)
        case _:  # a module, or a combination of means
            value = _array(mean(torch.from_numpy(x)))
    return np.broadcast_to(value, (len(x), max(value.shape[1], tasks.max() + 1)))[np.arange(len(x)), tasks]


def basis_error(num_features: int, num_bases: int = 1, kurtosis: float = 6.0) -> float:
    """The relative standard deviation of the covariance of paths that share `num_bases` random bases.

    A random basis averages num_features products phi_i(x) phi_i(x'), of variance `kurtosis` squared means at most.
    """
    return math.sqrt(kurtosis / (num_features * num_bases))


def assert_moments(samples, mean, cov, *, basis_error: float = 0.0, atol: float = 1e-9) -> None:
    """The samples `[s, ...]`, draws of N(mean, cov), have that mean and that covariance.

    Entry by entry, within the sampling error; and all together in the covariance's leading directions, which finds a
    lengthscale that is 5% wrong in some thousand samples. `basis_error` widens the covariance's bounds by what a finite
    random basis, shared by several paths, adds (see the function of that name). `atol` is rounding.
    """
    F = _array(samples).reshape(len(samples), -1)
    mean, C = _array(mean).reshape(-1), _array(cov)
    s, n = F.shape
    assert mean.shape == (n,) and C.shape == (n, n), f"samples {F.shape}, mean {mean.shape}, cov {C.shape}"
    assert np.isfinite(F).all(), "samples are not finite"
    variance = np.clip(np.diag(C), 0, None)
    spread = stats.norm.isf(LEVEL / 2 / n)
    _assert_within(F.mean(0) - mean, spread * np.sqrt(variance / s) + atol, "mean")
    error2 = (np.outer(variance, variance) + C**2) / s + basis_error**2 * np.outer(variance, variance)
    residual = F - mean
    spread = stats.norm.isf(LEVEL / 2 / (n * (n + 1) / 2))
    _assert_within(residual.T @ residual / s - C, spread * np.sqrt(error2) + atol, "covariance")
    _assert_whitened(residual, C, basis_error, atol)


def _assert_whitened(residual: np.ndarray, C: np.ndarray, basis_error: float, atol: float) -> None:
    """In r leading eigenvectors, scaled: the mean squared is chi^2_r, the covariance's error chi^2_{r (r + 1) / 2}."""
    s = len(residual)
    values, vectors = np.linalg.eigh(C)
    leading = values > max(0.02 * values[-1], 100 * atol)
    r = int(leading.sum())
    if r == 0:
        return
    G = residual @ vectors[:, leading] / np.sqrt(values[leading])  # [s, r]
    shift = s * (G.mean(0) ** 2).sum()
    bound = stats.chi2.isf(LEVEL, r)
    assert shift < bound, f"mean: chi^2 of {shift:.1f} over {r} directions, expected below {bound:.1f}"
    W = G.T @ G / s
    deviation = s / 2 * ((W - np.eye(r)) ** 2).sum()
    bound = stats.chi2.isf(LEVEL, r * (r + 1) / 2) * (1 + s * basis_error**2)
    assert deviation < bound, f"covariance: chi^2 of {deviation:.1f} over {r} directions, expected below {bound:.1f}"


def _assert_within(error: np.ndarray, bound: np.ndarray, what: str) -> None:
    ratio = np.abs(error) / bound
    worst = np.unravel_index(ratio.argmax(), ratio.shape)
    where = f"{what} at {[int(i) for i in worst]}"
    assert ratio[worst] < 1, f"{where}: off by {error[worst]:.4g}, expected within {bound[worst]:.4g}"


def assert_marginals_ks(samples, mean, cov, *, atol: float = 1e-9) -> None:
    """Each marginal of the samples `[s, ...]` passes a Kolmogorov-Smirnov test against N(mean_i, cov_ii).

    The samples must be independent: draw with paths_per_basis=1. A marginal without variance must be its mean.
    """
    F = _array(samples).reshape(len(samples), -1)
    mean, variance = _array(mean).reshape(-1), np.diag(_array(cov))
    for i, (f, m, v) in enumerate(zip(F.T, mean, variance, strict=True)):
        if v < atol:
            assert np.abs(f - m).max() < 10 * math.sqrt(atol), f"marginal {i} has no variance but is not its mean"
            continue
        p = stats.kstest(f, stats.norm(m, math.sqrt(v)).cdf).pvalue
        assert p > LEVEL / len(mean), f"marginal {i}: KS p-value {p:.2g}, expected above {LEVEL / len(mean):.2g}"


def assert_uncorrelated(a, b) -> None:
    """Paired draws `[s]` or `[s, n]` of two variables of mean zero and any law have no correlation, within error."""
    a, b = (_array(v).reshape(len(v), -1) for v in (a, b))
    product = a[:, :, None] * b[:, None, :]  # [s, n, m]
    error = product.std(0) / math.sqrt(len(a))
    spread = stats.norm.isf(LEVEL / 2 / error.size)
    _assert_within(product.mean(0), spread * error + 1e-12, "covariance of the two")


# What every kind of paths must pass: each member says the same as the plain call at a list of points.


def assert_paths(paths: AbstractPaths, folder: Path, *, takes_data: bool = True, saved: bool = True) -> None:
    """The contract of AbstractPaths, for paths of at least three functions of the unit square."""
    s, t, d = paths.num_paths, paths.num_outputs, paths.input_dim
    assert isinstance(paths, AbstractPaths) and s >= 3 and d == 2 and len(paths) == s
    g = torch.Generator().manual_seed(0)
    x = torch.rand(4, d, generator=g, dtype=torch.float64).to(paths.dtype)
    whole = _assert_values(paths, x, (t,) if t > 1 else ())
    _assert_gradients(paths, x, whole)
    _assert_grid(paths)
    _assert_chosen(paths, x, whole)
    _assert_value_semantics(paths, x, whole, folder if saved else None)
    if takes_data:
        _assert_given(paths, x, g)
    else:
        with pytest.raises(TypeError, match="condition_on"):
            paths.condition_on(x, whole[0], noise=0.0)


def _assert_values(paths: AbstractPaths, x: Tensor, outputs: tuple[int, ...]) -> Tensor:
    s, (n, d) = len(paths), x.shape
    whole = paths(x)
    assert whole.shape == (s, n, *outputs) and whole.dtype == paths.dtype and whole.device == paths.device
    close(paths(x[None]), whole)
    close(paths(x.numpy()), whole)
    own = x.expand(s, n, d)
    close(paths(own), whole)
    shifted = own + torch.arange(s).to(x)[:, None, None] / s  # a path's own points are its own
    close(paths(shifted), torch.stack([paths(shifted[i])[i] for i in range(s)]))
    assert paths(x[:0]).shape == (s, 0, *outputs)
    assert paths.mean(x).shape == (n, *outputs)
    with pytest.raises(ValueError, match="x: expected"):
        paths(x.expand(s + 1, n, d))
    with pytest.raises(ValueError, match="in 2 dimensions"):
        paths(torch.cat([x, x], dim=1))
    return whole


def _assert_gradients(paths: AbstractPaths, x: Tensor, whole: Tensor) -> None:
    s, (n, d) = len(paths), x.shape
    value, gradient = paths.value_and_grad(x)
    close(value, whole)
    assert gradient.shape == (*whole.shape, d) and not gradient.requires_grad
    at = x.clone().requires_grad_()
    weights = torch.randn(whole.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(x)
    (pulled,) = torch.autograd.grad(paths(at), at, weights)
    close(pulled, (gradient * weights[..., None]).transpose(0, 1).flatten(1, -2).sum(1))
    own_value, own_gradient = paths.value_and_grad(x.expand(s, n, d))
    close(own_value, whole)
    close(own_gradient, gradient)
    of, rows = torch.tensor([s - 1, 0, 0, 1, -1]), torch.tensor([0, 1, 2, 3, 1])
    value, slope = paths.value_and_grad(x[rows], of=of)
    close(value, whole[of, rows])
    close(slope, gradient[of, rows])


def _assert_grid(paths: AbstractPaths) -> None:
    axes = [torch.linspace(0.1, 0.9, 3, dtype=paths.dtype), torch.linspace(0.0, 1.0, 4, dtype=paths.dtype)]
    listed = paths(torch.cartesian_prod(*axes)).unflatten(1, (3, 4))
    close(paths.on_grid(axes), listed)
    out = torch.full_like(listed, math.nan).contiguous()
    assert paths.on_grid(axes, out=out) is out
    close(out, listed)
    with pytest.raises(ValueError, match="out: expected contiguous"):
        paths.on_grid(axes, out=out[:, :2])
    with pytest.raises(ValueError, match="axes: expected 2, one per dimension, got 1"):
        paths.on_grid(axes[:1])


def _assert_chosen(paths: AbstractPaths, x: Tensor, whole: Tensor) -> None:
    s = len(paths)
    mask = torch.arange(s) > 0
    for index, rows in [(1, [1]), (-1, [s - 1]), (slice(None, None, -2), range(s)[::-2]), ([2, 0, 2], [2, 0, 2])]:
        some = paths[index]
        assert type(some) is type(paths) and len(some) == len(rows)
        close(some(x), whole[list(rows)])
    close(paths[mask](x), whole[1:])
    assert len(list(paths)) == s  # iteration ends
    with pytest.raises(IndexError, match=f"path {s} of {s}"):
        paths[s]


def _assert_value_semantics(paths: AbstractPaths, x: Tensor, whole: Tensor, folder: Path | None) -> None:
    copies = [copy.copy(paths), copy.deepcopy(paths), pickle.loads(pickle.dumps(paths))]
    if folder is not None:
        paths.save(folder / "paths.safetensors")
        copies.append(load(folder / "paths.safetensors"))
    for other in copies:
        assert type(other) is type(paths) and repr(other) == repr(paths)
        close(other(x), whole)
        close(other.mean(x), paths.mean(x))
    single = paths.to(torch.float32)
    assert single.dtype == single(x).dtype == torch.float32 and paths.dtype == torch.float64
    torch.testing.assert_close(single(x).double(), whole, rtol=1e-3, atol=1e-3)
    assert torch.equal(paths(x), whole)
    assert not list(paths.parameters()) and not paths.requires_graph()


def _assert_given(paths: AbstractPaths, x: Tensor, g: torch.Generator) -> None:
    """More data are met: shared targets, targets of each path's own, noise of every shape, single outputs."""
    s, n, t = len(paths), len(x), paths.num_outputs
    outputs = (t,) if t > 1 else ()
    hit: dict[str, Any] = dict(rtol=1e-5, atol=1e-5)
    y = torch.randn(n, *outputs, generator=g, dtype=torch.float64).to(x)
    given = paths.condition_on(x, y, noise=0.0, generator=g)
    assert type(given) is type(paths)
    torch.testing.assert_close(given(x), y.expand(s, *y.shape), **hit)
    torch.testing.assert_close(given.mean(x), y, **hit)
    own = torch.randn(s, n, *outputs, generator=g, dtype=torch.float64).to(x)
    given = paths.condition_on(x, own, noise=0.0, generator=g)
    torch.testing.assert_close(given(x), own, **hit)
    torch.testing.assert_close(given.mean(x), own, **hit)  # posteriors of their own, and so their means
    torch.testing.assert_close(given[[2, 0]].mean(x), own[[2, 0]], **hit)
    first = given[0]
    torch.testing.assert_close(first.mean(x), own[0], **hit)
    for noise in (1e-3, torch.full((n,), 1e-3), torch.full((n, *outputs), 1e-3)):
        assert paths.condition_on(x, y, noise=noise, generator=g)(x).isfinite().all()
    exact_and_not = torch.full((n, *outputs), 0.5).to(x)
    exact_and_not[0] = 0.0
    given = paths.condition_on(x, y, noise=exact_and_not, generator=g)
    torch.testing.assert_close(given(x)[:, 0], y[0].expand(s, *outputs), **hit)
    if t > 1:
        tasks = torch.arange(n) % t
        given = paths.condition_on(x, y[:, 0], noise=0.0, tasks=tasks, generator=g)
        torch.testing.assert_close(given(x)[:, torch.arange(n), tasks], y[:, 0].expand(s, n), **hit)
    assert paths.condition_on(x[:0], y[:0], noise=0.0) is paths
    with pytest.raises(ValueError, match="y: expected"):
        paths.condition_on(x, y[:-1], noise=0.0)


def close(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)
