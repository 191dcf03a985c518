"""Stationary and linear kernels against scikit-learn's, and what they refuse."""

import math
from typing import Any, cast

import numpy as np
import pytest
import torch
from scipy import special
from sklearn.gaussian_process import kernels as sklearn

import matheron
from matheron import kernels as K
from standard import covariance

THREE: Any = [0.3, 2.0, 0.7]
PEERS = {
    "RBF": (K.RBF(0.6), sklearn.RBF(0.6), 3),
    "RBF, one lengthscale per dimension": (K.RBF(THREE), sklearn.RBF(THREE), 3),
    "Matern 1/2": (K.Matern(0.5, 0.8), sklearn.Matern(0.8, nu=0.5), 2),
    "Matern 3/2": (K.Matern(1.5, THREE), sklearn.Matern(THREE, nu=1.5), 3),
    "Matern 5/2": (K.Matern(2.5, 0.8), sklearn.Matern(0.8, nu=2.5), 64),
    "Matern 1.2": (K.Matern(1.2, 0.8), sklearn.Matern(0.8, nu=1.2), 2),
    "Matern 3.7": (K.Matern(3.7, 0.8), sklearn.Matern(0.8, nu=3.7), 2),
    "rational quadratic": (K.RationalQuadratic(0.7, 0.4), sklearn.RationalQuadratic(0.4, alpha=0.7), 2),
    "periodic": (K.Periodic(1.3, 0.7), sklearn.ExpSineSquared(1.3, periodicity=0.7), 1),
    "linear": (K.Linear() + K.Constant(0.49), sklearn.DotProduct(0.7), 3),
    "polynomial": (K.Polynomial(3, 0.49), sklearn.DotProduct(0.7) ** 3, 3),
    "a composition": (
        2.0 * K.RBF(0.5) * K.Linear() + K.Constant(0.3),
        sklearn.ConstantKernel(2.0) * sklearn.RBF(0.5) * sklearn.DotProduct(0.0) + sklearn.ConstantKernel(0.3),
        2,
    ),
}


def points(n: int, d: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("name", PEERS)
def test_values_and_the_battery_s_formulas_are_scikit_learn_s(name):
    kernel, peer, d = PEERS[name]
    x, z = points(6, d), points(5, d, seed=1)
    expected = peer(x.numpy(), z.numpy())
    np.testing.assert_allclose(kernel(x, z), expected, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(covariance(kernel, x, z), expected, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("nu", [0.05, 0.3, 4.5, 12.0, 30.0, 50.0])
def test_matern_of_any_order_is_right_at_all_distances(nu, dtype):
    r = torch.logspace(-9, 2, 60, dtype=dtype)[:, None]
    s = math.sqrt(2 * nu) * r.double().numpy()[:, 0]
    with np.errstate(over="ignore", invalid="ignore"):
        # log K_nu keeps what K_nu times s^nu would lose to overflow; where K_nu itself overflows, k is 1 to rounding
        log = (1 - nu) * math.log(2) - special.gammaln(nu) + nu * np.log(s) + np.log(special.kve(nu, s)) - s
    expected = np.where(np.isfinite(log), np.exp(log), 1.0)
    value = K.Matern(nu)(r, torch.zeros(1, 1, dtype=dtype))[:, 0]
    np.testing.assert_allclose(value, expected, rtol=1e-4 if dtype == torch.float32 else 1e-10, atol=1e-7)


def test_matern_tends_to_rbf_as_nu_grows():
    x = points(5, 2)
    errors = [float((K.Matern(nu, 0.5)(x) - K.RBF(0.5)(x)).abs().max()) for nu in (10.0, 20.0, 40.0)]
    assert errors[0] < 0.03
    assert errors[0] > 1.8 * errors[1] > 1.8 * 1.8 * errors[2]  # as 1 / nu


def test_points_far_beyond_the_lengthscale_have_no_covariance_and_finite_gradients():
    x = torch.tensor([[0.0], [1e6]], dtype=torch.float64)
    for kernel in (K.RBF(), K.Matern(0.5), K.Matern(2.5), K.Matern(1.2), K.RationalQuadratic()):
        value, slope = kernel.with_gradient(x, x)
        assert value[0, 1] < 1e-11 and torch.isfinite(slope).all()


def test_nearby_points_in_many_dimensions_keep_their_distance():
    """In more than 16 dimensions distances are taken by products, which cancel; about a centre they lose little."""
    x = points(4, 64) + 1e3
    near = x + 1e-4
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-6)):
        value = K.Matern(0.5, 3.0)(x.to(dtype), near.to(dtype))
        exact = covariance(K.Matern(0.5, 3.0), x.to(dtype), near.to(dtype))
        np.testing.assert_allclose(value, exact, atol=tolerance)
        assert (K.Matern(0.5, 3.0)(x.to(dtype)).diagonal() == 1).all()  # a point has no distance to itself


@pytest.mark.parametrize("kernel", [K.Matern(0.5, 0.5), K.RBF(0.5)], ids=["rough", "smooth"])
def test_two_groups_of_points_in_many_dimensions_keep_their_distances_in_single_precision(kernel):
    """Each is as far from their centre as the other, which would cost float32 all digits of a distance by products."""
    g = torch.Generator().manual_seed(0)
    near = (0.02 * torch.rand(12, 20, generator=g)).float()
    x = torch.cat([near, near + 64])
    single, double = kernel(x, x), kernel(x.double(), x.double())
    torch.testing.assert_close(single.double(), double, rtol=0, atol=1e-4)
    gp = matheron.ExactGP(kernel, x, x.sum(1).sin(), noise=1e-3)
    assert torch.isfinite(matheron.draw(gp, 2, seed=0)(x)).all()


REFUSALS = {
    "negative lengthscale": (lambda: K.RBF(-1.0), "lengthscale: expected positive numbers, got a smallest of -1"),
    "zero lengthscale": (lambda: K.RBF([1.0, 0.0]), "lengthscale: expected positive"),
    "a lengthscale that is not a number": (lambda: K.Matern(1.5, float("nan")), "lengthscale: expected finite"),
    "a matrix of lengthscales": (
        lambda: K.RBF([[1.0, 2.0]]),
        r"lengthscale: expected at most 1 axis, got shape \[1, 2\]",
    ),
    "a lengthscale too many": (
        lambda: K.RBF([1.0, 2.0])(np.zeros((3, 1))),
        r"lengthscale: expected a number or one per dim",
    ),
    "zero nu": (lambda: K.Matern(0.0), "nu: expected a positive number up to 50, got 0.0"),
    "infinite nu": (lambda: K.Matern(math.inf), "nu: .* got inf; for the limit of large nu use RBF"),
    "nu too large": (lambda: K.Matern(51.0), "use RBF"),
    "nu not a number": (lambda: K.Matern(math.nan), "nu: expected"),
    "several alphas": (lambda: K.RationalQuadratic([1.0, 2.0]), "alpha: expected at most 0 axis"),
    "zero period": (lambda: K.Periodic(1.0, 0.0), "period: expected positive"),
    "periods for other dimensions": (
        lambda: K.Periodic(1.0, [1.0, 2.0])(np.zeros((3, 3))),
        "period: expected a number",
    ),
    "cosine in two dimensions": (
        lambda: K.Cosine()(np.zeros((3, 2))),
        r"Cosine: expected points in one dimension, got 2",
    ),
    "mixture shapes": (lambda: K.SpectralMixture([1.0], [1.0], [[1.0]]), r"expected weights \[q\], means \[q, d\]"),
    "negative weights": (lambda: K.SpectralMixture([-1.0], [[1.0]], [[1.0]]), "weights: expected zero or positive"),
    "mixture dimensions": (
        lambda: K.SpectralMixture([1.0], [[1.0]], [[1.0]])(np.zeros((3, 2))),
        "SpectralMixture: expected points in 1 dimensions, .*, got 2",
    ),
    "negative variance": (lambda: K.Linear(-1.0), "variance: expected zero or positive"),
    "variances for other dimensions": (lambda: K.Linear([1.0, 2.0])(np.zeros((3, 3))), "variance: expected a number"),
    "degree zero": (lambda: K.Polynomial(0), "degree: expected a whole number of at least 1, got 0"),
    "half a degree": (lambda: K.Polynomial(1.5), "degree: expected a whole number"),  # type: ignore[arg-type]
    "negative offset": (lambda: K.Polynomial(2, -1.0), "offset: expected zero or positive"),
    "negative constant": (lambda: K.Constant(-1.0), "value: expected zero or positive"),
    "points without an axis": (
        lambda: K.RBF()([1.0, 2.0]),
        r"expected points of shape \[n, d\] and \[m, d\], got \[2\]",
    ),
    "points in other dimensions": (lambda: K.RBF()(np.zeros((3, 2)), np.zeros((3, 1))), "z: expected points in 2 dim"),
    "points that are not finite": (lambda: K.RBF()([[math.inf]]), "x: expected finite numbers, got 1 NaN or infinite"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refuses(name):
    build, message = REFUSALS[name]
    with pytest.raises(ValueError, match=message):
        build()


def test_refuses_points_that_are_not_numbers():
    with pytest.raises(TypeError, match="x: expected a tensor, a NumPy array or numbers, got"):
        K.RBF()(cast(Any, [["a"]]))
    with pytest.raises(TypeError, match=r"expected float32 or float64, got torch\.float16"):
        K.RBF()(torch.zeros(2, 1, dtype=torch.float16))


def test_choices_are_alike_or_different():
    x = torch.cartesian_prod(torch.arange(4.0), torch.arange(3.0)).double()
    different = (x[:, None] != x).double() @ torch.tensor([1 / 0.7, 1 / 2.0], dtype=torch.float64)
    torch.testing.assert_close(K.Categorical([0.7, 2.0], categories=4)(x), torch.exp(-different))
    with pytest.raises(
        ValueError, match=r"Categorical\(categories=4\): expected categories that differ by less than that"
    ):
        K.Categorical(1.0, categories=4)([[0.0]], [[7.0]])


def test_columns_of_choices_are_not_scaled_by_a_fit(generator):
    x = torch.randint(4, (40, 1), generator=generator).double()
    y = torch.tensor([0.0, 3.0, -1.0, 5.0], dtype=torch.float64)[x[:, 0].long()]
    y = y + 0.1 * torch.randn(40, generator=generator, dtype=torch.float64)
    gp = matheron.fit(K.Categorical(1.0, categories=4), x, y, seed=0)
    mean = matheron.draw(gp, 1).mean([[0.0], [1.0], [2.0], [3.0]])
    assert float((mean - torch.tensor([0.0, 3.0, -1.0, 5.0])).abs().max()) < 0.2


def test_draws_over_a_box_of_choices_are_on_a_lattice(generator):
    x = torch.cartesian_prod(torch.linspace(0, 1, 4), torch.arange(4.0)).double()
    gp = matheron.ExactGP(K.RBF(0.3).on(0) * K.Categorical(1.0, 4).on(1), x[::3], x[::3].sum(1).sin(), 0.01)
    paths = matheron.draw(gp, 4000, domain=([0.0, 0.0], [1.0, 3.0]), generator=generator)
    exact = matheron.draw(gp, 1, solver=matheron.solvers.Cholesky(keep=True)).variance(x)
    torch.testing.assert_close(paths(x).var(0), exact, rtol=0.12, atol=1e-4)
