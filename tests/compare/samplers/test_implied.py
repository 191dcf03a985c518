import pytest
import torch

import matheron
from compare.samplers.models import MODELS, exact, points, q, sparse
from matheron.compare.samplers import decoupled_moments, feature_covariance, moments
from matheron.models import transforms
from standard import assert_moments


@pytest.mark.parametrize("name", MODELS)
def test_decoupled_paths_have_the_law_that_their_basis_implies(name, generator):
    gp, x = MODELS[name](), points(4, seed=3)
    paths = matheron.draw(gp, 4000, num_features=24, paths_per_basis=None, generator=generator)
    mean, cov = decoupled_moments(gp, paths, x)
    assert_moments(paths(x), mean, cov.reshape(mean.numel(), -1))
    torch.testing.assert_close(mean, moments(gp, x).mean)
    assert (cov - moments(gp, x).covariance).abs().max() > 1e-3  # 24 features are few: the basis shows


def test_the_covariance_is_the_papers_formula():
    """k^(d) = M_k k^(w) + K K^-1 Sigma K^-1 K, with M_k as in the appendix."""
    gp, x = sparse(jitter=0.0, m=6), points(4, seed=3)
    phi = matheron.draw(gp, 1, num_features=24).prior.features
    Z = gp.inducing_points
    both = feature_covariance(phi, torch.cat([x, Z]))
    C_xx, C_xm, C_mm = both[:4, :4], both[:4, 4:], both[4:, 4:]
    G = torch.linalg.solve(gp.kernel(Z), gp.kernel(Z, x))  # K^-1 K_mx
    Sigma = q(gp)[1] @ q(gp)[1].mT
    expected = C_xx - C_xm @ G - G.mT @ C_xm.mT + G.mT @ C_mm @ G + G.mT @ Sigma @ G
    torch.testing.assert_close(decoupled_moments(gp, phi, x).covariance, expected, rtol=0, atol=1e-9)


def test_bases_count_as_often_as_they_are_used():
    gp, x = exact(), points(4, seed=3)
    paths = matheron.draw(gp, 6, num_features=24, paths_per_basis=4)  # four of the first, two of the second
    parts = [decoupled_moments(gp, paths[[i]], x).covariance for i in (0, 5)]
    torch.testing.assert_close(decoupled_moments(gp, paths, x).covariance, (4 * parts[0] + 2 * parts[1]) / 6)


def test_many_bases_are_averaged_in_blocks():
    gp, x = exact(), points(4, seed=3)
    paths = matheron.draw(gp, 9, num_features=4096, features="cosine", paths_per_basis=1)
    parts = [decoupled_moments(gp, paths[[i]], x).covariance for i in range(9)]
    torch.testing.assert_close(decoupled_moments(gp, paths, x).covariance, torch.stack(parts).mean(0))


def test_the_law_is_seen_through_transforms():
    gp, x = exact(), points(4, seed=3)
    phi = matheron.draw(gp, 1, num_features=24).prior.features
    plain = decoupled_moments(gp, phi, x)
    gp = gp.replaced(output_transform=transforms.Affine(2.0, 1.0))
    torch.testing.assert_close(decoupled_moments(gp, phi, x).covariance, 4 * plain.covariance)


def test_a_basis_is_features_or_paths():
    with pytest.raises(TypeError, match="basis: expected Features or Paths, got str"):
        decoupled_moments(exact(), "cosine", points(3))  # type: ignore[arg-type]
