"""Paths given slopes, gradients, weighted sums and averages have the law of the dense closed form.

The closed form here knows no derivative of a kernel: a slope is a difference quotient of fourth order, an average is a
sum over many points, and so every functional is a weighted sum of values, whose covariance is `standard.covariance`.
"""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import matheron
from matheron import ExactGP, draw, draw_prior, observe
from matheron import kernels as K
from matheron.models.means import LinearMean
from matheron.solvers import PCG
from standard import assert_marginals_ks, assert_moments, basis_error, covariance

H = 1e-3
STENCIL = ((-2, 1 / 12), (-1, -8 / 12), (1, 8 / 12), (2, -1 / 12))
DOUBLE = torch.float64
BASES: dict[str, Any] = dict(seed=0, paths_per_basis=16)


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def points(n: int, d: int, seed: int) -> Tensor:
    return torch.rand(n, d, generator=gen(seed), dtype=DOUBLE)


class Rows:
    """Functionals of the library, and the same as weighted sums of values: points `[N, d]`, and weights `[n, N]`."""

    def __init__(self, seed: int, d: int, output: int | None = None) -> None:
        X, (A, B) = points(5, d, seed), (points(3, d, seed + 1), points(4, d, seed + 2))
        P, w = points(6, d, seed + 3).reshape(2, 3, d), torch.randn(2, 3, generator=gen(seed), dtype=DOUBLE)
        low = 0.6 * points(2, d, seed + 4)
        out = {} if output is None else {"output": output}
        self.blocks = [
            observe.value(X, **out),
            observe.gradient(A, **out),
            observe.derivative(B, d - 1, **out),
            observe.combine(P, w, **out),
        ]
        rows = [[(x, 1.0)] for x in X]
        rows += [self._slope(a, i) for a in A for i in range(d)] + [self._slope(b, d - 1) for b in B]
        rows += [[(p, float(v)) for p, v in zip(ps, vs, strict=True)] for ps, vs in zip(P, w, strict=True)]
        if d <= 2:
            self.blocks.append(observe.mean(low, low + 0.3, **out))
            nodes, weights = (torch.from_numpy(each) for each in np.polynomial.legendre.leggauss(12))
            cells = torch.cartesian_prod(*[(1 + nodes) / 2] * d).reshape(-1, d)
            each = torch.cartesian_prod(*[weights / 2] * d).reshape(-1, d).prod(-1).tolist()
            rows += [list(zip(lower + 0.3 * cells, each, strict=True)) for lower in low]
        self.points = torch.stack([x for row in rows for x, _ in row])
        self.weights = np.zeros((len(rows), len(self.points)))
        column = 0
        for i, row in enumerate(rows):
            for _, weight in row:
                self.weights[i, column] = weight
                column += 1

    @staticmethod
    def _slope(x: Tensor, i: int) -> list[tuple[Tensor, float]]:
        axis = torch.eye(len(x), dtype=DOUBLE)[i]
        return [(x + step * H * axis, weight / H) for step, weight in STENCIL]

    def __len__(self) -> int:
        return len(self.weights)


def moments(kernel, rows: Rows, y: Tensor, noise, x: Tensor, mean=None):
    """The posterior's mean `[n]` and covariance `[n, n]` at points x."""
    A, m = rows.weights, (lambda p: np.zeros(len(p))) if mean is None else mean
    K_nn = A @ covariance(kernel, rows.points, rows.points) @ A.T + np.diag(np.broadcast_to(noise, len(A)))
    K_xn = covariance(kernel, x, rows.points) @ A.T
    G = np.linalg.solve(K_nn, K_xn.T)
    residual = y.numpy() - A @ m(rows.points.numpy())
    cov = covariance(kernel, x, x) - K_xn @ G
    return torch.from_numpy(m(x.numpy()) + G.T @ residual), torch.from_numpy((cov + cov.T) / 2)


def targets(rows: Rows, kernel, noise, seed: int) -> Tensor:
    """Targets that the prior finds likely."""
    A = rows.weights
    K_nn = A @ covariance(kernel, rows.points, rows.points) @ A.T + np.diag(np.broadcast_to(noise, len(A)))
    values, vectors = np.linalg.eigh(K_nn)
    z = np.random.default_rng(seed).standard_normal(len(A))
    return torch.from_numpy(vectors @ (np.sqrt(values.clip(0)) * z))


KERNELS = {
    "RBF": (K.RBF(0.5), 2),
    "RBF in six dimensions": (K.RBF(1.2), 6),
    "RBF, ARD": (K.RBF([0.4, 0.9]), 2),
    "Matern 3/2": (K.Matern(1.5, 0.6), 1),
    "Matern 5/2": (K.Matern(2.5, 0.6), 2),
    "Matern 5/2 in four dimensions": (K.Matern(2.5, 0.9), 4),
    "Matern 3.2": (K.Matern(3.2, 0.7), 2),
    "rational quadratic": (K.RationalQuadratic(1.1, 0.6), 2),
    "periodic": (K.Periodic(1.0, 1.3), 1),
    "a spectral mixture": (K.SpectralMixture([1.0], [[0.6, 0.2]], [[0.3, 0.4]]), 2),
    "linear": (K.Linear([1.0, 2.0]) + 0.3 * K.RBF(0.7), 2),
    "polynomial": (K.Polynomial(2, 0.5) + K.RBF(0.9), 2),
    "a sum of unlike scales": (K.Matern(2.5, 1.0) + 0.05 * K.RBF(0.2), 2),
    "a product across coordinates": (K.RBF(0.5).on(0) * K.Matern(2.5, 0.8).on(1), 2),
    "a product with a periodic one": (2.0 * K.RBF(0.7) * K.Periodic(1.0, 0.9).on(0), 2),
    "a product with a linear one": (K.RBF(0.7) * K.Linear(), 2),
    "rotated": (K.Rotated(K.RBF([0.9, 0.4]), 30.0), 2),
}


@pytest.mark.parametrize("noise", [1e-6, 1e-2, 1.0])
@pytest.mark.parametrize("name", KERNELS)
def test_draws_given_a_mixture_of_functionals_have_the_posteriors_law(name, noise):
    kernel, d = KERNELS[name]
    rows, x = Rows(10, d), points(6, d, 20)
    y = targets(rows, kernel, noise, 0)
    gp = ExactGP(kernel, rows.blocks, y, noise)
    paths = draw(gp, 2000, seed=1, paths_per_basis=16)
    mean, cov = moments(kernel, rows, y, noise, x)
    scale = float(cov.diagonal().max().sqrt())
    slack = 0.03 if "3/2" in name else 0.003  # of the difference quotients, and their rounding
    torch.testing.assert_close(paths.mean(x), mean, atol=slack * scale, rtol=0)
    closed = matheron.samplers.moments(gp, x)
    torch.testing.assert_close(closed.mean, paths.mean(x), atol=1e-6, rtol=0)
    torch.testing.assert_close(closed.covariance, cov, atol=slack * scale**2, rtol=0)
    assert_moments(paths(x), closed.mean, closed.covariance, basis_error=basis_error(1024, 125))


@pytest.mark.parametrize("name", ["RBF", "Matern 5/2", "a product with a linear one"])
def test_each_path_on_a_basis_of_its_own_has_the_marginal_law(name):
    kernel, d = KERNELS[name]
    rows, x = Rows(30, d), points(5, d, 40)
    y = targets(rows, kernel, 1e-2, 1)
    gp = ExactGP(kernel, rows.blocks, y, 1e-2)
    paths = draw(gp, 1000, seed=2, paths_per_basis=1, num_features=128)
    closed = matheron.samplers.moments(gp, x)
    assert_marginals_ks(paths(x), closed.mean, closed.covariance)
    assert_moments(paths(x), closed.mean, closed.covariance)


def test_slopes_of_draws_have_the_posteriors_law():
    kernel, d = K.Matern(2.5, 0.6), 2
    rows, x = Rows(50, d), points(3, d, 60)
    y = targets(rows, kernel, 1e-2, 2)
    gp = ExactGP(kernel, rows.blocks, y, 1e-2)
    slopes, A = observe.gradient(x), []
    for at in x:
        for i in range(d):
            A.append(Rows._slope(at, i))
    P = torch.stack([p for row in A for p, _ in row])
    W = np.kron(np.eye(len(A)), [weight for _, weight in A[0]])
    K_nn = rows.weights @ covariance(kernel, rows.points, rows.points) @ rows.weights.T + 1e-2 * np.eye(len(rows))
    K_xn = W @ covariance(kernel, P, rows.points) @ rows.weights.T
    G = np.linalg.solve(K_nn, K_xn.T)
    cov = W @ covariance(kernel, P, P) @ W.T - K_xn @ G
    got = draw(gp, 3000, seed=3, paths_per_basis=8).at(slopes)
    assert_moments(got, G.T @ y.numpy(), (cov + cov.T) / 2, basis_error=basis_error(1024, 375), atol=1e-4)


def test_a_wrong_lengthscale_or_a_dropped_noise_is_found():
    kernel, rows, x = K.RBF(0.5), Rows(10, 2), points(6, 2, 20)
    y = targets(rows, kernel, 1e-2, 0)
    closed = matheron.samplers.moments(ExactGP(kernel, rows.blocks, y, 1e-2), x)
    for wrong in (ExactGP(K.RBF(0.55), rows.blocks, y, 1e-2), ExactGP(kernel, rows.blocks, y, 1e-6)):
        with pytest.raises(AssertionError):
            assert_moments(draw(wrong, 2000, seed=1)(x), closed.mean, closed.covariance)


@pytest.mark.parametrize("mean", [1.5, LinearMean([1.0, -2.0], 0.5), lambda x: (x[..., 0] * 3).sin() * x[..., 1]])
def test_prior_means_enter_by_what_the_functionals_make_of_them(mean):
    kernel, rows, x = K.RBF(0.5), Rows(70, 2), points(6, 2, 80)
    y = targets(rows, kernel, 1e-2, 3)

    def in_numpy(p: np.ndarray) -> np.ndarray:
        at = torch.from_numpy(p)
        if callable(mean):
            return np.asarray(mean(at)).reshape(-1)
        return np.full(len(p), mean)

    gp = ExactGP(kernel, rows.blocks, y, 1e-2, mean=mean)
    expected, cov = moments(kernel, rows, y, 1e-2, x, in_numpy)
    torch.testing.assert_close(draw(gp, 2).mean(x), expected, atol=2e-3, rtol=0)
    assert_moments(draw(gp, 2000, seed=1, paths_per_basis=8)(x), draw(gp, 1).mean(x), cov, basis_error=0.01)


def test_outputs_that_are_coupled_learn_from_each_others_slopes():
    kernel = K.Coregional(K.RBF(0.5), [[1.0, 0.8], [0.8, 1.3]]) + K.Coregional(K.Matern(2.5, 0.8), [[0.2, 0], [0, 0.4]])
    rows, x = (Rows(90, 2, output=0), Rows(120, 2, output=1)), points(4, 2, 100)
    A = np.block(
        [
            [rows[0].weights, np.zeros((len(rows[0]), len(rows[1].points)))],
            [np.zeros((len(rows[1]), len(rows[0].points))), rows[1].weights],
        ]
    )
    P = torch.cat([each.points for each in rows])
    tasks = np.repeat([0, 1], [len(each.points) for each in rows])
    both, of = x.repeat_interleave(2, 0), np.tile([0, 1], len(x))
    y = torch.randn(len(A), generator=gen(1), dtype=DOUBLE)
    K_nn = A @ covariance(kernel, P, P, tasks, tasks) @ A.T + 0.1 * np.eye(len(A))
    K_xn = covariance(kernel, both, P, of, tasks) @ A.T
    G = np.linalg.solve(K_nn, K_xn.T)
    cov = covariance(kernel, both, both, of, of) - K_xn @ G
    gp = ExactGP(kernel, [*rows[0].blocks, *rows[1].blocks], y, 0.1)
    paths = draw(gp, 2000, seed=4, paths_per_basis=8)
    torch.testing.assert_close(paths.mean(x).flatten(), torch.from_numpy(G.T @ y.numpy()), atol=2e-3, rtol=0)
    assert_moments(paths(x).flatten(1), paths.mean(x).flatten(), (cov + cov.T) / 2, basis_error=0.01, atol=1e-6)


def test_conjugate_gradients_find_what_the_factor_finds():
    X = points(300, 2, 5)
    y, dy = (5 * X[:, 0]).sin(), torch.stack([5 * (5 * X[:, 0]).cos(), 0 * X[:, 0]], dim=1)
    gp = ExactGP(K.Matern(2.5, 0.5), [observe.value(X), observe.gradient(X)], [y, dy], noise=[1e-3, 1e-2])
    x = points(20, 2, 6)
    exact, iterated = draw(gp, 2), draw(gp, 2, solver=PCG(tolerance=1e-4))
    assert iterated.solver_stats is not None and "PCG" in iterated.solver_stats.solver
    assert bool(((exact.mean(x) - iterated.mean(x)).abs() < 0.01 * exact.std(x)).all())


@pytest.mark.parametrize("kind", ["exact", "sparse", "prior"])
def test_paths_that_are_given_functionals_later_have_the_law(kind):
    kernel, x, rows = K.Matern(2.5, 0.6), points(5, 2, 7), Rows(140, 2)
    y = targets(rows, kernel, 1e-2, 5)
    X, first = points(4, 2, 8), torch.randn(4, generator=gen(9), dtype=DOUBLE)
    if kind == "exact":
        paths = draw(ExactGP(kernel, X, first, 1e-2), 2000, **BASES)
    elif kind == "sparse":
        root = 0.1 * torch.eye(4, dtype=DOUBLE)
        paths = draw(matheron.SparseGP(kernel, X, first, root), 2000, **BASES)
    else:
        paths = draw_prior(kernel, 2000, input_dim=2, **BASES)
    given = paths.condition_on(rows.blocks, y, noise=1e-2, seed=1)
    K_zz = covariance(kernel, X, X)
    S = None if kind == "prior" else 1e-2 * np.eye(4)
    A, everything = rows.weights, torch.cat([x, rows.points])
    prior_mean, prior_cov = np.zeros(len(everything)), covariance(kernel, everything, everything)
    if S is not None:
        B = np.linalg.solve(K_zz + (S if kind == "exact" else 1e-10 * np.eye(4)), covariance(kernel, X, everything))
        prior_mean = B.T @ first.numpy()
        prior_cov = prior_cov - covariance(kernel, everything, X) @ B + (B.T @ S @ B if kind == "sparse" else 0)
    n = len(x)
    A_all = np.block([[np.eye(n), np.zeros((n, A.shape[1]))], [np.zeros((len(A), n)), A]])
    m, C = A_all @ prior_mean, A_all @ prior_cov @ A_all.T
    G = np.linalg.solve(C[n:, n:] + 1e-2 * np.eye(len(A)), C[n:, :n])
    mean, cov = m[:n] + G.T @ (y.numpy() - m[n:]), C[:n, :n] - C[:n, n:] @ G
    torch.testing.assert_close(given.mean(x), torch.from_numpy(mean), atol=2e-3, rtol=0)
    torch.testing.assert_close(given.variance(x), torch.from_numpy(np.diag(cov).copy()), atol=1e-3, rtol=2e-2)
    assert_moments(given(x), given.mean(x), (cov + cov.T) / 2, basis_error=0.01, atol=1e-6)
