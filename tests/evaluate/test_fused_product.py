"""k(X, X) V in the fused kernel: the blocked product's values, for any number of columns, and nothing n x n."""

import pytest
import torch

from interpreter import device_of_kernels
from matheron import Sites
from matheron import kernels as K
from matheron.solvers import covariance

DEVICE = device_of_kernels()

from matheron.evaluate.fused.product import make_products  # noqa: E402  (the interpreter must be asked for first)

B2 = [[1.0, 0.4], [0.4, 0.8]]
KERNELS = {
    "RBF": K.RBF([0.3, 0.6]),
    "Matern 1/2": K.Matern(0.5, 0.4),
    "scaled Matern 3/2": 2.5 * K.Matern(1.5, [0.3, 0.6]),
    "Matern 5/2": K.Matern(2.5, 0.4),
    "rational quadratic": K.RationalQuadratic(1.5, 0.4),
    "a sum": K.RBF(0.3) + 0.1 * K.Matern(1.5, 0.1).on(1),
}


def rand(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(DEVICE)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("name", KERNELS)
def test_it_is_the_blocked_product(name, dtype, tolerance):
    kernel, X, V = KERNELS[name].to(DEVICE, dtype), rand(70, 2).to(dtype), rand(70, 3, seed=1).to(dtype) - 0.5
    products = make_products(kernel, X, None)
    assert products is not None
    exact = KERNELS[name].to(DEVICE)(X.double()) @ V.double()
    assert (products(V) - exact).abs().max() < tolerance * exact.abs().max()


@pytest.mark.parametrize("columns", [1, 2, 16, 64, 65, 66])
def test_any_number_of_columns_will_do_and_an_odd_one_rides_along(columns):
    kernel, X, V = K.Matern(2.5, 0.4).to(DEVICE), rand(66, 1), rand(66, columns, seed=1)
    products = make_products(kernel, X, None)
    assert products is not None
    torch.testing.assert_close(products(V), kernel(X) @ V, rtol=1e-11, atol=1e-11)


def test_tasks_are_coupled():
    kernel = (K.Coregional(K.RBF(0.4), B2) + 0.5 * K.Matern(1.5, 0.5)).to(DEVICE)
    X, V, tasks = rand(20, 2), rand(20, 2, seed=1), (torch.arange(20) % 2).to(DEVICE)
    products = make_products(kernel, X, tasks)
    assert products is not None
    torch.testing.assert_close(products(V), covariance(kernel, Sites(X, tasks)) @ V, rtol=1e-11, atol=1e-11)


def test_kernels_that_are_not_radial_are_left_to_blocks():
    assert make_products(K.RBF(0.3) * K.Linear(), rand(5, 2), None) is None
    assert make_products(K.Periodic(1.0, 0.5), rand(5, 1), None) is None
