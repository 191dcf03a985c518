"""Several outputs: covariances between tasks, and what Coregional refuses."""

import numpy as np
import pytest
import torch

from matheron import Sites
from matheron import kernels as K
from standard import covariance

B = [[1.0, 0.6, -0.2], [0.6, 2.0, 0.3], [-0.2, 0.3, 0.5]]
C = [[0.4, 0.0, 0.1], [0.0, 0.0, 0.0], [0.1, 0.0, 0.3]]  # singular
KERNELS = {
    "one": K.Coregional(K.RBF(0.5), B),
    "scaled": 2.0 * K.Coregional(K.Matern(1.5, 0.5), B),
    "a sum": K.Coregional(K.RBF(0.5), B) + K.Coregional(K.Linear(), C),
    "shared by all tasks": K.Coregional(K.RBF(0.5), B) + 0.5 * K.Matern(0.5, 0.9),
    "a product": K.Coregional(K.RBF(0.5), B) * K.Coregional(K.RationalQuadratic(1.0, 2.0), B),
    "a product of sums": (K.Coregional(K.RBF(0.5), B) + K.Constant(0.3)) * (K.Linear() + K.Coregional(K.RBF(), C)),
    "on a coordinate": K.Coregional(K.RBF(0.5), B).on(1) + K.Coregional(K.RBF(0.2).on(0), C),
    "of a composition": K.Coregional(K.RBF(0.5) * K.Linear() + K.Constant(1.0), B),
}


def case(n: int, seed: int):
    g = torch.Generator().manual_seed(seed)
    return torch.rand(n, 2, generator=g, dtype=torch.float64), torch.randint(3, (n,), generator=g)


@pytest.mark.parametrize("name", KERNELS)
def test_covariances_between_tasks_are_the_formula_s(name):
    kernel = KERNELS[name]
    (x, i), (z, j) = case(8, seed=0), case(7, seed=1)
    assert kernel.num_outputs == 3
    got = K.coupled_covariance(kernel, Sites(x, i), Sites(z, j))
    np.testing.assert_allclose(got, covariance(kernel, x, z, i, j), atol=1e-12)


@pytest.mark.parametrize("name", KERNELS)
def test_matrix_over_points_and_tasks_is_positive_semidefinite(name):
    x, i = case(12, seed=0)
    matrix = K.coupled_covariance(KERNELS[name], Sites(x, i), Sites(x, i))
    torch.testing.assert_close(matrix, matrix.mT)
    assert torch.linalg.eigvalsh(matrix).min() > -1e-12


@pytest.mark.parametrize("name", KERNELS)
def test_terms_sum_to_the_covariance(name):
    kernel = KERNELS[name]
    x, i = case(6, seed=0)
    extended = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], dim=1)
    total = torch.zeros(len(x), len(x), dtype=x.dtype)
    for term in kernel.terms(2):
        part = term.variance * torch.ones_like(total)
        part = part if term.coupling is None else part * term.coupling[i[:, None], i]
        for k in term.stationary:
            part = part * torch.from_numpy(covariance(k, x, x))
        for form in term.forms:
            part = part * ((extended * form) @ extended.mT)
        total = total + part
    torch.testing.assert_close(total, torch.from_numpy(covariance(kernel, x, x, i, i)))


def test_one_output_needs_no_tasks():
    (x, _), (z, _) = case(4, seed=0), case(3, seed=1)
    assert torch.equal(K.coupled_covariance(K.RBF(), Sites(x), Sites(z)), K.RBF()(x, z))


REFUSALS = {
    "not square": (lambda: K.Coregional(K.RBF(), [[1.0, 0.0]]), ValueError, r"B: expected a square matrix .* \[1, 2\]"),
    "not symmetric": (lambda: K.Coregional(K.RBF(), [[1.0, 0.5], [0.0, 1.0]]), ValueError, "B: expected a symmetric"),
    "indefinite": (lambda: K.Coregional(K.RBF(), [[1.0, 2.0], [2.0, 1.0]]), ValueError, "smallest eigenvalue of -1"),
    "nested": (lambda: K.Coregional(K.Coregional(K.RBF(), B), B), ValueError, "expected a kernel of one output"),
    "other outputs": (
        lambda: K.Coregional(K.RBF(), B) + K.Coregional(K.RBF(), np.eye(2)),
        ValueError,
        r"expected kernels that couple the same outputs, got \[2, 3\]",
    ),
    "no tasks": (
        lambda: K.Coregional(K.RBF(), B)([[0.0]]),
        TypeError,
        "a Coregional kernel needs the outputs of its points",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refuses(name):
    build, error, message = REFUSALS[name]
    with pytest.raises(error, match=message):
        build()


def test_a_kernel_of_one_s_own_about_another_has_to_say_how_it_is_coupled():
    """It need not be linear in that one, as scaled and embedded kernels are."""

    class Squared(K.Kernel):
        def __init__(self, kernel):
            super().__init__()
            self.kernel = kernel

        def forward(self, x, z):
            return self.kernel.forward(x, z) ** 2

        def with_gradient(self, x, z):
            k, dk = self.kernel.with_gradient(x, z)
            return k**2, 2 * k * dk

        def diag(self, x):
            return self.kernel.diag(x) ** 2

        def terms(self, input_dim):
            return (self.kernel * self.kernel).terms(input_dim)

    kernel = Squared(K.Coregional(K.RBF(0.3), [[1.0, 0.5], [0.5, 1.0]]))
    X, tasks = torch.zeros(2, 1, dtype=torch.float64), torch.tensor([0, 1])
    with pytest.raises(TypeError, match="a Coregional kernel needs the outputs of its points"):
        K.coupled_covariance(kernel, Sites(X, tasks), Sites(X, tasks))
