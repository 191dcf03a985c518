"""How kernels compose: any expression is a kernel, and has features that converge to it."""

from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from matheron import kernels as K
from standard import assert_unbiased, covariance, features_of, kernel_error

POINTS = torch.tensor([[0.0, 0.0], [0.3, -0.4], [-0.8, 0.9], [0.3, -0.4]], dtype=torch.float64)


def positive(low: float = 0.3, high: float = 2.0) -> st.SearchStrategy[float]:
    return st.floats(low, high).map(lambda v: round(v, 3))


def pair() -> st.SearchStrategy[list[float]]:
    return st.lists(positive(), min_size=2, max_size=2)


one_dimensional = st.one_of(
    st.builds(K.RBF, positive()),
    st.builds(K.Matern, st.sampled_from([0.5, 1.2, 2.5]), positive()),
    st.builds(K.Periodic, positive(), positive()),
    st.builds(K.Cosine, positive()),
    st.builds(K.Linear, positive()),
    st.builds(K.Polynomial, st.integers(1, 3), positive(0.0)),
)
leaves = st.one_of(
    st.builds(lambda k, i: k.on(i), one_dimensional, st.integers(0, 1)),
    st.builds(K.RBF, pair()),
    st.builds(K.Matern, st.sampled_from([0.5, 1.5, 3.7]), pair()),
    st.builds(K.RationalQuadratic, positive(), pair()),
    st.builds(K.Periodic, pair(), pair()),
    st.builds(
        lambda w, m, s: K.SpectralMixture([w, 0.5], [m, [0.0, 0.3]], [s, [0.2, 0.4]]), positive(), pair(), pair()
    ),
    st.builds(K.Linear, pair()),
    st.builds(K.Polynomial, st.integers(1, 2), positive(0.0)),
    st.builds(K.Constant, positive()),
)
expressions = st.recursive(
    leaves,
    lambda k: st.one_of(
        st.builds(lambda a, b: a + b, k, k),
        st.builds(lambda a, b: a * b, k, k),
        st.builds(lambda c, a: c * a, positive(), k),
        st.builds(lambda a: a.on([1, 0]), k),
    ),
    max_leaves=4,
)


@given(expressions)
@settings(max_examples=100)
def test_an_expression_is_a_kernel(kernel):
    K_xx = kernel(POINTS)
    np.testing.assert_allclose(K_xx, covariance(kernel, POINTS, POINTS), rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(K_xx, K_xx.mT)
    torch.testing.assert_close(kernel.diag(POINTS), K_xx.diagonal())
    assert torch.linalg.eigvalsh(K_xx).min() > -1e-11 * K_xx.diagonal().max()
    value, slope = kernel.with_gradient(POINTS, POINTS)
    torch.testing.assert_close(value, K_xx)
    assert torch.isfinite(slope).all()


def error_of(kernel, kind: str, num_features: int, num_bases: int) -> torch.Tensor:
    features = features_of(kernel, 2, num_features, kind, num_bases=num_bases, reference=POINTS)
    return kernel_error(features, kernel, POINTS).expand(num_bases, -1, -1)  # one basis where it is exact


@given(expressions, st.sampled_from(["cosine", "sincos", "sobol", "auto"]))
@settings(max_examples=100)
def test_features_of_an_expression_are_unbiased_and_converge(kernel, kind):
    # Of a series of harmonics "auto" may leave out so much of the variance for good.
    slack = float(kernel.diag(POINTS).max()) * (1e-4 if kind == "auto" else 1e-9)
    assert_unbiased(error_of(kernel, kind, num_features=48, num_bases=128), slack)
    few, many = (error_of(kernel, kind, ell, num_bases=16).square().mean().sqrt() for ell in (128, 2048))
    assert many <= 0.5 * few + slack  # as ell^-1/2: a quarter, less where quasi-random


def test_operators_build_what_they_say():
    a, b = K.RBF(0.5), K.Matern(1.5)
    x = POINTS[:, :1]
    for kernel, expected in (
        (a + b, a(x) + b(x)),
        (a + b + a, 2 * a(x) + b(x)),
        (a * b, a(x) * b(x)),
        (2 * a, 2 * a(x)),
        (a * 2.0, 2 * a(x)),
        (torch.tensor(2.0) * a, 2 * a(x)),
        (np.float64(2.0) * a, 2 * a(x)),
        (0.0 * a, 0 * a(x)),
        (a * torch.tensor(2.0) * b * 3, 6 * a(x) * b(x)),
    ):
        torch.testing.assert_close(kernel(x), expected)
    torch.testing.assert_close(a.on(1)(POINTS), a(POINTS[:, 1:]))
    torch.testing.assert_close(K.RBF([0.5, 2.0]).on([1, 0])(POINTS), K.RBF([2.0, 0.5])(POINTS))


def test_nested_sums_and_products_are_flat():
    a = K.RBF()
    assert len(((a + a) + (a + a)).parts) == 4
    assert len(((a * a) * (a * a)).parts) == 4
    assert len(((a * a) + (a * a)).parts) == 2


def test_a_kernel_on_coordinates_of_coordinates():
    kernel = K.RBF([0.3, 0.7]).on([1, 0]).on([2, 0])
    x = torch.rand(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(kernel(x), K.RBF([0.3, 0.7])(x[:, [0, 2]]))
    assert kernel.active_dims(3) == [0, 2]


ANYTHING: Any = K.RBF()
REFUSALS = {
    "negative outputscale": (lambda: -1.0 * K.RBF(), ValueError, "outputscale: expected zero or positive"),
    "an outputscale a dimension": (lambda: torch.ones(2) * K.RBF(), ValueError, "outputscale: expected at most 0 axis"),
    "text multiplied": (lambda: ANYTHING * "2", TypeError, "can't multiply|unsupported operand"),
    "no coordinates": (
        lambda: K.RBF().on([]),
        ValueError,
        "dims: expected different whole numbers from 0, at least one",
    ),
    "a coordinate twice": (lambda: K.RBF().on([0, 0]), ValueError, r"dims: .* got \[0, 0\]"),
    "a negative coordinate": (lambda: K.RBF().on(-1), ValueError, r"dims: .* got \[-1\]"),
    "a coordinate beyond": (lambda: K.RBF().on(2)(POINTS), ValueError, "dims: expected coordinates below 2"),
    "a coordinate beyond, in terms": (lambda: K.RBF().on(2).terms(2), ValueError, "dims: expected coordinates below 2"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refuses(name):
    build, error, message = REFUSALS[name]
    with pytest.raises(error, match=message):
        build()


def test_kernels_are_written_as_they_are_made():
    """Read back as Python, what a kernel says of itself is the kernel."""
    names = {name: getattr(K, name) for name in dir(K) if name[0].isupper()}
    x = torch.rand(4, 2, dtype=torch.float64)
    for kernel in (
        3.0 * K.Matern(nu=2.5, lengthscale=[0.2, 0.4]) + K.Linear(0.1),
        0.5 * (K.RBF(0.3) + K.Constant(2.0)) * K.Periodic(0.9, [1.5, 1.25]).on([1, 0]),
        (2.0 * K.RBF(0.3)).on([1]) * K.RationalQuadratic(0.75, 0.5),
        K.Polynomial(3, 0.5) + K.SpectralMixture([1.0], [[2.0, 0.5]], [[3.0, 0.1]]),
    ):
        torch.testing.assert_close(eval(repr(kernel), names)(x), kernel(x))
    assert repr(3.0 * K.Matern(2.5, [0.2, 0.4]) + K.Linear(0.1)) == (
        "3.0 * Matern(nu=2.5, lengthscale=[0.2, 0.4]) + Linear(0.1)"
    )


def test_numbers_are_added_and_divided_by_and_kernels_raised_to_powers():
    k, x = K.RBF(0.4), torch.rand(4, 2, dtype=torch.float64)
    for kernel, expected in (
        (k + 1, k(x) + 1),
        (1 + k, k(x) + 1),
        (k / 2, k(x) / 2),
        (k**2, k(x) ** 2),
        (k**1, k(x)),
        (np.float64(2) * k, 2 * k(x)),
        (k + cast(float, np.float32(0.5)), k(x) + 0.5),
        (sum([k, K.Linear()]), k(x) + K.Linear()(x)),
        (k + torch.tensor(0.25), k(x) + 0.25),
    ):
        assert isinstance(kernel, K.Kernel)
        torch.testing.assert_close(kernel(x), expected)
    assert sum([k]) is k


def test_what_is_no_kernel_is_refused():
    for power in (0, 0.5, -1, True):
        with pytest.raises(ValueError, match="power: expected a whole number of at least 1"):
            _ = K.RBF() ** cast(int, power)
    with pytest.raises(ZeroDivisionError):
        _ = K.RBF() / 0
    with pytest.raises(ValueError, match="zero or positive"):
        _ = K.RBF() + -1
    for bad in ("1", None, [1]):
        with pytest.raises(TypeError):
            _ = K.RBF() + cast(float, bad)
