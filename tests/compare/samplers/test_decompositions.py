import pytest
import torch

import matheron
from compare.samplers.models import exact, points, q, sparse
from matheron import SparseGP, kernels
from matheron.compare.metrics import empirical_moments, gaussian_wasserstein
from matheron.compare.samplers import decoupled_moments, moments, orthogonal, weight_space_moments, weight_space_sparse
from standard import assert_moments


def features(gp, ell, seed=5):
    generator = torch.Generator().manual_seed(seed)
    return matheron.draw(gp, 1, num_features=ell, features="cosine", generator=generator).prior.features


def u():
    return (2 * points(6, seed=1)).cos().sum(1)


def noise_free():
    return SparseGP(kernels.Matern(1.5, 0.3), points(6, seed=1), u(), mean=0.2)


def test_a_linear_model_passes_through_u():
    gp = noise_free()
    values = weight_space_sparse(gp, 3, num_features=64)(gp.inducing_points)
    torch.testing.assert_close(values, u().expand(3, 6), rtol=0, atol=1e-6)


def test_the_orthogonal_part_is_zero_at_the_inducing_points():
    gp = noise_free()
    paths = orthogonal(gp, 3, num_features=64)
    torch.testing.assert_close(paths(gp.inducing_points), u().expand(3, 6), rtol=0, atol=1e-6)
    x = points(4, seed=3)
    assert (paths(x) - paths.mean(x)).abs().max() > 0.01


def test_the_weight_space_update_has_its_closed_form(generator):
    gp, x = sparse(), points(5, seed=3)
    phi = features(gp, 64)
    mean, cov = weight_space_moments(gp, phi, x)
    paths = weight_space_sparse(gp, 4000, features=phi, generator=generator)
    assert_moments(paths(x), mean, cov)
    torch.testing.assert_close(paths.mean(x), mean)


def test_the_orthogonal_decomposition_keeps_the_mean_and_adds_independent_parts(generator):
    gp, x = sparse(jitter=1e-2), points(5, seed=3)
    phi = features(gp, 64)
    K, K_x = gp.kernel(gp.inducing_points), gp.kernel(x, gp.inducing_points)
    K = K + 1e-2 * torch.eye(len(K))
    A = torch.linalg.solve(K, K_x.mT).mT @ q(gp)[1]
    point = SparseGP(gp.kernel, gp.inducing_points, torch.zeros(10), jitter=1e-2)  # u = 0: f_perp alone
    cov = A @ A.mT + weight_space_moments(point, phi, x).covariance
    paths = orthogonal(gp, 4000, features=phi, generator=generator)
    torch.testing.assert_close(paths.mean(x), moments(gp, x).mean)
    assert_moments(paths(x), moments(gp, x).mean, cov)


@pytest.mark.parametrize("sampler", [weight_space_sparse, orthogonal])
def test_both_do_harm_where_decoupled_paths_do_not(sampler, generator):
    """As many inducing points as half the features: a linear model that must pass through them has little left."""
    Z = points(48, 2, seed=1)
    gp = SparseGP(kernels.Matern(2.5, 0.15), Z, Z.sum(1), 0.05 * torch.ones(48), jitter=1e-6)
    x = points(128, seed=3)
    phi = features(gp, 96)
    truth = moments(gp, x)
    decoupled = gaussian_wasserstein(*decoupled_moments(gp, phi, x), *truth)
    other = gaussian_wasserstein(*empirical_moments(sampler(gp, 20_000, features=phi, generator=generator), x), *truth)
    assert other > 1.3 * decoupled


@pytest.mark.parametrize("sampler", [weight_space_sparse, orthogonal])
def test_any_q_of_u_will_do_but_has_no_known_mean(sampler, generator):
    known = sparse()
    mean, root = q(known)

    def sample_u(s, g):
        return mean + torch.randn(s, len(root), generator=g, dtype=torch.float64) @ root.mT

    gp = SparseGP(known.kernel, known.inducing_points, mean=0.2, jitter=known.jitter, sample_u=sample_u)
    phi, x = features(gp, 64), points(3, seed=3)
    a = sampler(gp, 4000, features=phi, generator=generator)
    b = sampler(known, 4000, features=phi, generator=generator)(x)
    assert_moments(a(x), b.mean(0), b.mT.cov(), basis_error=0.05)  # the second's own sampling error: sqrt(2 / 4000)
    with pytest.raises(TypeError, match="only known by its draws"):
        a.mean(x)


def test_a_model_of_data_is_refused():
    with pytest.raises(TypeError, match=r"expected a sparse model.*samplers\.weight_space"):
        orthogonal(exact(), 2)


def test_draws_of_u_alone_may_be_in_single_precision():
    """Their weights were solved for u, of which nothing is kept that they could be solved for again."""
    Z = torch.linspace(0, 1, 12, dtype=torch.float64)[:, None]

    def sample_u(s, generator):
        return torch.randn(s, 12, generator=generator, dtype=torch.float64)

    gp = SparseGP(kernels.RBF(0.2), Z, sample_u=sample_u)
    paths = [orthogonal(gp, 3, num_features=64, seed=0, dtype=dtype) for dtype in (torch.float32, torch.float64)]
    single, double = (p(Z.to(p.dtype)).double() for p in paths)
    torch.testing.assert_close(single, double, rtol=1e-4, atol=1e-4)
