"""The heat equation by collocation: u_t = kappa u_xx is observed, with zero targets, beside values.

The closed form of its covariances is written here by hand: for k(t, x) = a(t) b(x), the
operator L = d/dt - kappa d^2/dx^2 has Cov(L f, f) = a' b - kappa a b'' and Cov(L f, L f) = -a'' b + kappa^2 a b''''.
"""

import math

import pytest
import torch
from torch import Tensor

import matheron
from matheron import kernels, observe
from standard import assert_moments, basis_error

DOUBLE = torch.float64
KAPPA, SCALES = 0.1, (0.7, 0.4)
KERNEL = kernels.RBF(list(SCALES))


def points(n: int, seed: int) -> Tensor:
    return torch.rand(n, 2, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def heat(X: Tensor) -> observe.Functionals:
    return observe.derivative(X, 0) - KAPPA * observe.derivative(X, (1, 1))


def gaussian(r: Tensor, scale: float) -> list[Tensor]:
    """exp(-r^2 / 2) and its derivatives up to the fourth, by Hermite polynomials."""
    h = r / scale
    hermite = [1 + 0 * h, -h, h**2 - 1, 3 * h - h**3, h**4 - 6 * h**2 + 3]
    return [p * (-0.5 * h**2).exp() / scale**i for i, p in enumerate(hermite)]


def covariances(x: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of f and f, of L f and f, of L f and L f, at x and z."""
    a, b = (gaussian(x[:, None, i] - z[:, i], scale) for i, scale in enumerate(SCALES))
    return a[0] * b[0], a[1] * b[0] - KAPPA * a[0] * b[2], -a[2] * b[0] + KAPPA**2 * a[0] * b[4]


@pytest.mark.parametrize("noise", [1e-4, 1e-1])
def test_functions_given_the_heat_equation_have_the_law_of_the_closed_form(noise):
    X, C, x = points(6, 0), points(10, 1), points(5, 2)
    y = torch.sin(5 * X[:, 1])
    of_f, of_both, of_heat = covariances(X, X)[0], covariances(C, X)[1], covariances(C, C)[2]
    K_nn = torch.cat([torch.cat([of_f, of_both.mT], 1), torch.cat([of_both, of_heat], 1)])
    K_xn = torch.cat([covariances(x, X)[0], covariances(C, x)[1].mT], 1)
    G = torch.linalg.solve(K_nn + noise * torch.eye(16, dtype=DOUBLE), K_xn.mT)
    mean, cov = G[:6].mT @ y, covariances(x, x)[0] - K_xn @ G
    gp = matheron.ExactGP(KERNEL, [observe.value(X), heat(C)], [y, torch.zeros(10)], noise)
    paths = matheron.draw(gp, 2000, seed=0, paths_per_basis=8)
    torch.testing.assert_close(paths.mean(x), mean, atol=1e-7, rtol=0)
    assert_moments(paths(x), mean, cov, basis_error=basis_error(1024, 250), atol=1e-6)
    with pytest.raises(AssertionError):  # with another diffusivity
        wrong = observe.derivative(C, 0) - 2 * KAPPA * observe.derivative(C, (1, 1))
        other = matheron.ExactGP(KERNEL, [observe.value(X), wrong], [y, torch.zeros(10)], noise)
        assert_moments(matheron.draw(other, 2000, seed=0)(x), mean, cov, basis_error=basis_error(1024, 30), atol=1e-6)


def test_collocation_solves_the_heat_equation():
    """From sin(pi x) on [0, 1], cold at both ends: u = exp(-kappa pi^2 t) sin(pi x)."""

    def solution(X: Tensor) -> Tensor:
        return (-KAPPA * math.pi**2 * X[:, 0]).exp() * (math.pi * X[:, 1]).sin()

    ends, steps = torch.tensor([0.0, 1.0], dtype=DOUBLE), torch.linspace(0, 1, 12, dtype=DOUBLE)
    known = torch.cat([torch.cartesian_prod(ends[:1], steps), torch.cartesian_prod(steps, ends)])
    inside = torch.cartesian_prod(steps, steps)
    zero = torch.zeros(len(inside), dtype=DOUBLE)
    gp = matheron.ExactGP(KERNEL, [observe.value(known), heat(inside)], [solution(known), zero], [1e-10, 1e-8])
    paths = matheron.draw(gp, 8, seed=0)
    x = points(200, 3)
    torch.testing.assert_close(paths.mean(x), solution(x), atol=1e-4, rtol=0)
    torch.testing.assert_close(paths(x), solution(x).expand(8, -1), atol=2e-3, rtol=0)

    residual = paths.derivative(0) - KAPPA * paths.derivative(1).derivative(1)
    torch.testing.assert_close(residual(x), paths.at(heat(x)), atol=1e-6, rtol=0)
    assert float(residual(x).abs().max()) < 0.02
