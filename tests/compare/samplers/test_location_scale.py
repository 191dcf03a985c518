import pytest
import torch

from compare.samplers.models import MODELS, exact, points, q, sparse, two_outputs
from matheron import Ensemble, ExactGP, Outputs, SelectedOutputs, SparseGP, kernels
from matheron.compare.samplers import location_scale, moments
from matheron.models import transforms
from standard import assert_marginals_ks, assert_moments


@pytest.mark.parametrize("name", MODELS)
def test_draws_have_the_posteriors_law(name, generator):
    gp, x = MODELS[name](), points(5, seed=3)
    mean, cov = moments(gp, x)
    draws = location_scale(gp, 4000, generator=generator)(x)
    cov = cov.reshape(mean.numel(), -1)
    assert_moments(draws, mean, cov)
    assert_marginals_ks(draws, mean, cov)


def test_shapes_follow_the_rule(generator):
    x = points(5, seed=3)
    one, both = SelectedOutputs(two_outputs(), [1]), two_outputs()
    several = Outputs([exact(), both, one])
    for gp, tail in ((exact(), ()), (both, (2,)), (Outputs([exact(), sparse()]), (2,)), (one, ()), (several, (4,))):
        draws = location_scale(gp, 3, generator=generator)
        assert draws(x).shape == (3, 5, *tail)
        assert draws(x[None]).shape == (3, 5, *tail)
        assert draws(x.expand(3, -1, -1)).shape == (3, 5, *tail)
    with pytest.raises(ValueError, match=r"expected \[n, d\] or \[3, n, d\]"):
        draws(x.expand(2, -1, -1))


def test_some_outputs_have_their_own_law(generator):
    gp, x = SelectedOutputs(two_outputs(), [1]), points(5, seed=3)
    assert_moments(location_scale(gp, 4000, generator=generator)(x), *moments(gp, x))


def test_each_path_at_its_own_points_has_that_points_law(generator):
    gp = exact()
    x = points(500, seed=4)[:, None]  # one point per path
    draws = location_scale(gp, 500, generator=generator)(x)[:, 0]
    mean, cov = moments(gp, x[:, 0])
    assert_marginals_ks(((draws - mean) / cov.diagonal().sqrt())[:, None], torch.zeros(1), torch.eye(1))


def test_a_covariance_that_is_singular_is_no_obstacle(generator):
    gp = ExactGP(kernels.RBF(1.0), points(4), points(4)[:, 0], 0.0)
    x = torch.cat([gp.train_inputs, gp.train_inputs, points(30, seed=3)])
    draws = location_scale(gp, 100, generator=generator)(x)
    assert draws.isfinite().all()
    torch.testing.assert_close(draws[:, :4], gp.train_targets.expand(100, 4), rtol=0, atol=1e-5)
    torch.testing.assert_close(draws[:, :4], draws[:, 4:8], rtol=0, atol=1e-6)


def test_any_q_of_u_can_be_drawn_from(generator):
    known = sparse()
    mean, root = q(known)

    def sample_u(s, g):
        return mean + torch.randn(s, len(root), generator=g, dtype=torch.float64) @ root.mT

    gp = SparseGP(known.kernel, known.inducing_points, mean=0.2, jitter=known.jitter, sample_u=sample_u)
    x = points(5, seed=3)
    assert_moments(location_scale(gp, 4000, generator=generator)(x), *moments(known, x))


def test_blocks_are_as_many_draws_of_the_same_law(generator):
    gp, x = exact(), points(4, seed=3)
    blocks = list(location_scale(gp, 4000, generator=generator).blocks(x, 1500))
    assert [len(block) for block in blocks] == [1500, 1500, 1000]
    assert_moments(torch.cat(blocks), *moments(gp, x))


def test_draws_have_the_models_dtype_and_pass_through_its_transform(generator):
    gp = exact()
    single = ExactGP(
        gp.kernel, gp.train_inputs.float(), gp.train_targets.float(), 0.01, output_transform=transforms.Exp()
    )
    draws = location_scale(single, 50, generator=generator)(points(4).float())
    assert draws.dtype == torch.float32 and (draws > 0).all()


def test_an_ensemble_is_refused():
    with pytest.raises(TypeError, match="expected one exact or sparse model"):
        location_scale(Ensemble([exact()]), 2)


def test_no_draws_are_an_empty_tensor():
    gp = exact()
    x = points(4, seed=3)
    assert location_scale(gp, 3, seed=0).at(x)(0).shape == (0, 4)
