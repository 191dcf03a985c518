"""Averages over boxes in closed form, with slopes and values: against fine quadrature, in one to eight dimensions."""

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

import matheron
from matheron import ExactGP, draw, draw_prior, observe
from matheron import kernels as K
from standard import assert_moments, basis_error

DOUBLE = torch.float64


def points(n: int, d: int, seed: int = 0) -> Tensor:
    return torch.rand(n, d, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def rule(low: float, high: float, kinks: list[float], pieces: int) -> tuple[Tensor, Tensor]:
    """Points and weights of an average over an interval, by twelve nodes in each piece between kinks."""
    nodes, weights = np.polynomial.legendre.leggauss(12)
    ends = sorted({low, high, *(kink for kink in kinks if low < kink < high)})
    cuts = np.unique(np.concatenate([np.linspace(a, b, pieces + 1) for a, b in itertools.pairwise(ends)]))
    at = [(a + b) / 2 + (b - a) / 2 * nodes for a, b in itertools.pairwise(cuts)]
    w = [(b - a) / 2 * weights / (high - low) for a, b in itertools.pairwise(cuts)]
    return torch.from_numpy(np.concatenate(at)), torch.from_numpy(np.concatenate(w))


def by_fine_quadrature(kernel: K.Kernel, a: tuple[float, float], b: tuple[float, float]) -> float:
    """The covariance of the averages over two intervals, the integrand cut where it has kinks."""
    pieces = 1 + int(1.5 * max(a[1] - a[0], b[1] - b[0]))
    x, w = rule(*a, list(b), pieces)
    inner = [rule(*b, [float(at)], pieces) for at in x]
    u = torch.cat([at - z for at, (z, _) in zip(x, inner, strict=True)])
    v = torch.cat([at * weights for at, (_, weights) in zip(w, inner, strict=True)])
    return float(v @ kernel(u[:, None], torch.zeros(1, 1, dtype=DOUBLE))[:, 0])


ONE_DIMENSION = [K.RBF(0.7), K.Matern(0.5, 0.7), K.Matern(1.5, 0.7), K.Matern(2.5, 0.7), K.Matern(3.5, 0.7)]


@pytest.mark.parametrize("kernel", ONE_DIMENSION, ids=repr)
@pytest.mark.parametrize(
    ("a", "b"), [((0.0, 0.3), (0.1, 0.6)), ((0.0, 3.0), (0.9, 0.91)), ((0.0, 0.02), (0.0, 0.02)), ((-3, 3), (1, 4.5))]
)
def test_averages_have_the_covariance_of_fine_quadrature(kernel, a, b):
    boxes = [observe.mean(torch.tensor([[low]], dtype=DOUBLE), [[high]]) for low, high in (a, b)]
    got = K.coupled_covariance(kernel, *boxes)
    assert abs(float(got) - by_fine_quadrature(kernel, a, b)) < 1e-11


@pytest.mark.parametrize("nu", [1.5, 2.5, np.inf])
@pytest.mark.parametrize("side", [1e-6, 1e-3, 2e-3, 5e-3, 9e-3, 1.1e-2])
def test_thin_boxes_lose_no_digits(nu, side):
    kernel = K.RBF(1.0) if nu == np.inf else K.Matern(nu, 1.0)
    for low in (0.0, 0.3 * side, 1.0):
        thin = [observe.mean([[at]], torch.tensor([[at + side]], dtype=DOUBLE)) for at in (0.0, low)]
        expected = by_fine_quadrature(kernel, (0.0, side), (low, low + side))
        assert abs(float(K.coupled_covariance(kernel, *thin)) - expected) < 3e-10


def kernel_in(d: int) -> K.Kernel:
    """An RBF with a lengthscale for each coordinate, and a product of Matern kernels of one coordinate each."""
    product = K.Matern(1.5, 0.9).on(0)
    for i in range(1, d):
        product = product * K.Matern(2.5 if i % 2 else 3.5, 0.8 + 0.1 * i).on(i)
    return 0.7 * K.RBF([0.6 + 0.1 * i for i in range(d)]) + 0.5 * product


@pytest.mark.parametrize("d", range(1, 9))
def test_averages_values_and_slopes_have_the_covariance_of_their_factors_in_any_dimension(d):
    """The reference integrates each factor by itself, in one dimension, and differentiates by difference quotients."""
    low = points(3, d, 1)
    high, x, kernel = low + 0.2 + points(3, d, 2), points(2, d, 3), kernel_in(d)
    got = K.coupled_covariance(kernel, observe.mean(low, high), observe.stack([observe.value(x), observe.gradient(x)]))
    own = K.coupled_covariance(kernel, observe.mean(low, high), observe.mean(low, high))
    parts = [[K.RBF(0.6 + 0.1 * i) for i in range(d)]]
    parts += [[K.Matern(1.5, 0.9)] + [K.Matern(2.5 if i % 2 else 3.5, 0.8 + 0.1 * i) for i in range(1, d)]]
    for i, j in itertools.product(range(3), range(2)):
        value, slopes = 0.0, np.zeros(d)
        for scale, factors in zip((0.7, 0.5), parts, strict=True):
            means, steps = np.zeros(d), np.zeros(d)
            for k, factor in enumerate(factors):
                z, w = rule(float(low[i, k]), float(high[i, k]), [float(x[j, k])], 4)
                at = x[j, k] + 1e-5 * torch.tensor([0.0, 1.0, -1.0], dtype=DOUBLE)
                f = (factor(at[:, None], z[:, None]) @ w).numpy()
                means[k], steps[k] = f[0], (f[1] - f[2]) / 2e-5
            value += scale * means.prod()
            slopes += scale * means.prod() / means * steps
        assert abs(float(got[i, j]) - value) < 1e-11
        np.testing.assert_allclose(got[i, 2 + j * d : 2 + (j + 1) * d], slopes, atol=1e-8)
    for i in range(3 if d <= 2 else 1):
        expected = sum(
            scale
            * np.prod([by_fine_quadrature(f, *[(float(low[i, k]), float(high[i, k]))] * 2) for k, f in enumerate(p)])
            for scale, p in zip((0.7, 0.5), parts, strict=True)
        )
        assert abs(float(own[i, i]) - expected) < 1e-10


@pytest.mark.parametrize("d", [1, 2, 8])
def test_draws_given_averages_and_slopes_have_the_posteriors_law(d):
    """The closed form of the moments is that of sums over quadrature nodes where there can be enough of these."""
    kernel, low, x = K.RBF(0.6) if d <= 2 else kernel_in(d), 0.6 * points(4, d, 5), points(4, d, 6)
    blocks = [observe.mean(low, low + 0.5), observe.gradient(x[:2]), observe.value(points(5, d, 7))]
    y = torch.randn(9 + 2 * d, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
    gp = ExactGP(kernel, blocks, y, 1e-2)
    assert len(gp.sites.points) == len(y)  # one atom a box
    paths, at = (
        draw(gp, 1000, seed=0, num_features=512, paths_per_basis=16),
        observe.stack([observe.value(x), observe.mean(low, low + 0.3)]),
    )
    closed = matheron.samplers.moments(gp, at)
    if d <= 2:
        nodes = ExactGP(kernel, [blocks[0].by_nodes(24), *blocks[1:]], y, 1e-2)
        fine = matheron.samplers.moments(nodes, at.by_nodes(24))
        torch.testing.assert_close(closed.mean, fine.mean, atol=1e-6, rtol=0)
        torch.testing.assert_close(closed.covariance, fine.covariance, atol=1e-6, rtol=0)
    torch.testing.assert_close(paths.mean(x), closed.mean[:4], atol=1e-9, rtol=0)
    torch.testing.assert_close(paths.variance(x), closed.covariance.diagonal()[:4], atol=1e-9, rtol=0)
    assert_moments(paths.at(at), closed.mean, closed.covariance, basis_error=basis_error(512, 62))


@pytest.mark.parametrize("features", ["cosine", "leverage"])
@pytest.mark.parametrize("d", [2, 6])
def test_averages_of_draws_are_those_of_their_values_and_are_met_where_they_are_given(d, features):
    inward, outward = matheron.transforms.Affine([2.0] * d, [0.1] * d), matheron.transforms.Affine(3.0, 7.0)
    low = points(3, d, 8)
    gp = ExactGP(K.RBF(1.5), points(6, d), torch.randn(6), 1e-2, input_transform=inward, output_transform=outward)
    paths = draw(gp, 3, seed=0, features=features)
    nodes = observe.mean(low, low + 0.2).by_nodes(12 if d == 2 else 4)
    torch.testing.assert_close(paths.at(observe.mean(low, low + 0.2)), paths.at(nodes), atol=1e-6, rtol=0)
    whole = paths.at(observe.integral(low, low + 0.2))
    torch.testing.assert_close(whole, 0.2**d * paths.at(nodes), atol=1e-6 * 0.2**d, rtol=0)
    given = paths.condition_on(observe.mean(low, low + 0.2), [1.0, 2.0, 3.0], noise=0.0)
    torch.testing.assert_close(given.at(nodes), torch.tensor([1.0, 2.0, 3.0]).double().expand(3, 3), atol=1e-5, rtol=0)
    f, df = given.value_and_grad(low)
    step = 1e-5 * torch.eye(d, dtype=DOUBLE)[0]
    torch.testing.assert_close(df[..., 0], (given(low + step) - given(low - step)) / 2e-5, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(given.derivative(0)(low), df[..., 0], atol=1e-9, rtol=1e-9)
    assert torch.equal(f, given(low))


def test_the_cells_of_a_raster_have_the_covariances_of_boxes_alone():
    edges = torch.linspace(0, 1, 6, dtype=DOUBLE)
    lower, x = torch.cartesian_prod(edges[:-1], edges[:-1]), points(7, 2)
    cells, kernel = observe.mean(lower, lower + 0.2), K.RBF([0.4, 0.7])
    both = observe.stack([observe.value(x), cells])
    got = K.coupled_covariance(kernel, cells, both)
    one_by_one = [K.coupled_covariance(kernel, cells, both[i : i + 1]) for i in range(len(both))]
    torch.testing.assert_close(got, torch.cat(one_by_one, 1), atol=1e-12, rtol=0)


def test_hyperparameters_have_gradients_through_averages():
    low, y = points(5, 3), torch.randn(5, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)

    def evidence(length: Tensor) -> Tensor:
        gp = ExactGP(K.RBF(length), observe.mean(low, low + 0.4), y, 0.1)
        return matheron.log_marginal_likelihood(gp)

    length = torch.tensor(0.6, dtype=DOUBLE, requires_grad=True)
    (slope,) = torch.autograd.grad(evidence(length), length)
    with torch.no_grad():
        expected = (evidence(length + 1e-5) - evidence(length - 1e-5)) / 2e-5
    torch.testing.assert_close(slope, expected, rtol=1e-6, atol=1e-8)


def test_averages_in_float32_and_in_files_are_those_in_float64(tmp_path):
    low, x = points(6, 4), points(5, 4, 1)
    gp = ExactGP(K.RBF(0.9), [observe.mean(low, low + 0.1), observe.gradient(x)], torch.ones(26), 1e-2)
    paths = draw(gp, 3, seed=0)
    narrow = draw(gp, 3, seed=0, dtype=torch.float32)
    torch.testing.assert_close(narrow(x).double(), paths(x), atol=1e-4, rtol=0)
    paths.save(tmp_path / "f.safetensors")
    again = matheron.load(tmp_path / "f.safetensors")
    assert torch.equal(again(x), paths(x))
    assert torch.equal(again.at(observe.mean(low, low + 0.1)), paths.at(observe.mean(low, low + 0.1)))


def test_kernels_without_a_closed_form_keep_quadrature():
    low = points(3, 2)
    for kernel in (K.Matern(2.5, 0.6), K.RBF(0.6) * K.Linear(), K.RationalQuadratic(1.0, 0.6), K.RBF(0.5) * K.RBF(0.9)):
        gp = ExactGP(kernel, observe.mean(low, low + 0.2), torch.zeros(3), 1e-2)
        assert len(gp.sites.points) > 3
    curved = ExactGP(K.RBF(0.6), observe.mean(low, low + 0.2), torch.zeros(3), 1e-2, mean=lambda x: x[..., 0] ** 2)
    assert len(curved.sites.points) > 3
    lattice = draw_prior(K.RBF(0.5), 3, input_dim=2, domain=(0.0, 1.5), seed=0)
    given = lattice.condition_on(observe.mean(low, low + 0.2), [1.0, 2.0, 3.0], noise=1e-8)
    torch.testing.assert_close(
        given.at(observe.mean(low, low + 0.2)).mean(0), torch.tensor([1.0, 2, 3]).double(), atol=1e-3, rtol=0
    )
