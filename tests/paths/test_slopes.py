"""Derivatives of functions, as functions: against difference quotients, for every kind of function."""

from typing import Any

import pytest
import torch
from torch import Tensor

import matheron
from matheron import ExactGP, SparseGP, draw, observe, transforms
from matheron import kernels as K

DOUBLE = torch.float64


def points(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


X, AT, OWN = points(12, 2, seed=1), points(7, 2, seed=2), points(4, 7, 2, seed=3)
Y = (5 * X[:, 0]).sin() + X[:, 1]


def exact(kernel=None, noise=1e-2, settings: dict[str, Any] | None = None, **more: Any):
    kernel = K.Matern(2.5, 0.5) if kernel is None else kernel
    given: dict[str, Any] = settings or {}
    return draw(ExactGP(kernel, X, Y, noise, **more), 4, seed=0, **given)


def given_slopes():
    blocks, targets = [observe.value(X), observe.gradient(X[:4])], [Y, torch.zeros(4, 2)]
    return draw(ExactGP(K.Matern(3.5, 0.5), blocks, targets, 1e-2), 4, seed=0)


AFFINE: dict[str, Any] = dict(
    input_transform=transforms.Affine([2.0, 3.0], [0.1, 0.2]),
    output_transform=transforms.Affine(3.0, 1.0),
    mean=matheron.means.LinearMean([1.0, 2.0], 0.5),
)
KINDS = {
    "exact": lambda: exact(),
    "a basis per path": lambda: exact(K.RBF(0.5), settings=dict(features="cosine", paths_per_basis=1)),
    "on a lattice": lambda: exact(K.RBF(0.5), settings=dict(domain=(-0.5, 1.5))),
    "monomials, and a mean of one's own": lambda: exact(
        K.RBF(0.5) * K.Linear() + K.Linear(), mean=lambda x: x[..., 0] ** 2
    ),
    "behind affine transforms": lambda: exact(K.RBF(1.4), **AFFINE),
    "behind an exponential": lambda: exact(K.RBF(0.9), output_transform=transforms.Exp()),
    "two outputs": lambda: draw(
        ExactGP(K.Coregional(K.RBF(0.5), [[1.0, 0.5], [0.5, 1.0]]), X, torch.stack([Y, -Y], 1), 1e-2, mean=[1.0, 2.0]),
        4,
    ),
    "sparse": lambda: draw(SparseGP(K.Matern(2.5, 0.5), X, Y, 0.1 * torch.eye(12, dtype=DOUBLE)), 4),
    "given slopes": given_slopes,
    "a sum": lambda: 2 * exact() - given_slopes(),
    "a product": lambda: exact() * given_slopes(),
    "a map": lambda: exact().exp(),
    "side by side": lambda: matheron.stack([exact(), exact(K.RBF(0.5))]),
}


def quotient(f, x: Tensor, dim: int, h: float = 1e-5) -> Tensor:
    step = h * torch.eye(2, dtype=DOUBLE)[dim]
    return (f(x + step) - f(x - step)) / (2 * h)


@pytest.mark.parametrize("kind", KINDS)
def test_derivatives_are_difference_quotients_and_have_gradients(kind):
    f = KINDS[kind]()
    t, g = f.num_outputs, f.derivative(1)
    scale = float(f.value_and_grad(AT)[1].abs().max())
    for x in (AT, OWN):
        torch.testing.assert_close(g(x), quotient(f, x, 1), atol=1e-6 * scale, rtol=0)
        value, slope = g.value_and_grad(x)
        torch.testing.assert_close(value, g(x), atol=1e-9 * scale, rtol=0)
        for i in range(2):
            torch.testing.assert_close(slope[..., i], quotient(g, x, i), atol=1e-4 * scale, rtol=0)
    at = AT.clone().requires_grad_()
    (pulled,) = torch.autograd.grad(g(at).sum(), at)
    dims = (0, 2) if t > 1 else (0,)
    torch.testing.assert_close(pulled, g.value_and_grad(AT)[1].sum(dims), atol=1e-9 * scale**2, rtol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_derivatives_side_by_side_and_grids_are_points(kind):
    f = KINDS[kind]()
    t, gradient = f.num_outputs, f.gradient()
    assert gradient.num_outputs == 2 * t
    each = torch.stack([f.derivative(i)(AT).reshape(4, 7, t) for i in range(2)], dim=-1)
    torch.testing.assert_close(gradient(AT), each.flatten(-2), atol=1e-9, rtol=1e-9)
    axes = [torch.linspace(0, 1, 3, dtype=DOUBLE), torch.linspace(0, 1, 4, dtype=DOUBLE)]
    listed = f.derivative(0)(torch.cartesian_prod(*axes))
    torch.testing.assert_close(f.derivative(0).on_grid(axes).reshape(listed.shape), listed, atol=1e-8, rtol=1e-8)


def test_second_derivatives_are_functions_too():
    f = exact(K.RBF(0.5))
    h = f.derivative(0).derivative(1)
    torch.testing.assert_close(h(AT), quotient(f.derivative(0), AT, 1), atol=1e-5, rtol=0)
    torch.testing.assert_close(h(AT), f.at(observe.derivative(AT, (0, 1))), atol=1e-9, rtol=1e-9)
    hessian = f.gradient().gradient()
    assert hessian(AT).shape == (4, 7, 4)
    torch.testing.assert_close(hessian(AT)[..., 1], h(AT), atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "a basis per path"])
def test_hessians_are_second_derivatives_and_symmetric(kind):
    f = KINDS[kind]()
    t, hessian = f.num_outputs, f.gradient().gradient()
    assert hessian.num_outputs == 4 * t
    H = hessian(AT).unflatten(-1, (t, 2, 2))  # [s, n, t, d, d]
    scale = float(H.abs().max())
    torch.testing.assert_close(H, H.mT, atol=1e-9 * scale, rtol=0)
    for i in range(2):
        expected = torch.stack([quotient(f.derivative(i), AT, j) for j in range(2)], dim=-1).reshape(4, 7, t, 2)
        torch.testing.assert_close(H[..., i, :], expected, atol=1e-4 * scale, rtol=0)
    values, slopes = hessian.value_and_grad(AT)
    torch.testing.assert_close(values, hessian(AT), atol=1e-9 * scale, rtol=0)
    if kind in ("exact", "on a lattice", "a sum"):  # with closed forms of third order
        third = torch.stack([quotient(hessian, AT, j) for j in range(2)], dim=-1)
        torch.testing.assert_close(slopes, third, atol=1e-3 * float(slopes.abs().max()), rtol=0)


def test_derivatives_are_saved_moved_chosen_and_combined(tmp_path):
    g = exact(K.RBF(0.5)).derivative(0)
    g.save(tmp_path / "g.safetensors")
    loaded = matheron.load(tmp_path / "g.safetensors")
    assert torch.equal(loaded(AT), g(AT))
    torch.testing.assert_close(g.float()(AT).double(), g(AT), atol=1e-2, rtol=0)
    torch.testing.assert_close(g[[2, 0]](AT), g(AT)[[2, 0]])
    f = exact(K.RBF(0.5))
    torch.testing.assert_close((f + 0.5 * g)(AT), f(AT) + 0.5 * g(AT))
    torch.testing.assert_close(f.gradient()[..., 1](AT), f.derivative(1)(AT))


def test_the_mean_of_a_derivative_is_that_of_the_mean():
    f = exact(**AFFINE)
    torch.testing.assert_close(f.derivative(0).mean(AT), quotient(f.mean, AT, 0), atol=1e-5, rtol=0)
    own = f.condition_on(AT[:3], torch.arange(12, dtype=DOUBLE).reshape(4, 3), noise=0.1)
    for g in (f.derivative(0), own.derivative(0), f.derivative(0) - 2 * f.derivative(1), exact(K.RBF(0.5)).gradient()):
        expected = quotient(g.mean, AT, 1)
        torch.testing.assert_close(g.derivative(1).mean(AT), expected, atol=1e-4, rtol=1e-5)
        assert float(expected.abs().max()) > 0.1


def test_minimisers_of_a_drawn_function_have_no_slope():
    f = exact(K.RBF(0.5))
    found = matheron.minimize(f.derivative(0).square(), [[0.0, 0.0], [1.0, 1.0]])
    assert bool((found.value < 1e-6).all())


def test_a_derivative_takes_no_data_but_says_how():
    with pytest.raises(TypeError, match=r"observe\.derivative"):
        exact().derivative(0).condition_on(AT, torch.zeros(7), noise=0.1)
