import pytest
import torch

import matheron
from compare.samplers.models import MODELS, exact, points, sparse, two_outputs
from matheron import Batch, Ensemble, ExactGP, Outputs, SelectedOutputs, SparseGP, kernels
from matheron.compare.samplers import moments
from matheron.models import transforms
from standard import exact_moments


@pytest.mark.parametrize("name", MODELS)
def test_moments_are_the_closed_form(name):
    gp, x = MODELS[name](), points(7, seed=3)
    mean, cov = exact_moments(gp, x)
    found = moments(gp, x)
    torch.testing.assert_close(found.mean, mean, rtol=0, atol=1e-10)
    torch.testing.assert_close(found.covariance.reshape(cov.shape), cov, rtol=0, atol=1e-10)


def test_several_outputs_have_an_axis_of_their_own():
    found = moments(two_outputs(), points(7, seed=3))
    assert found.mean.shape == (7, 2) and found.covariance.shape == (7, 2, 7, 2)


def test_moments_are_float64_whatever_the_data():
    gp, x = exact(), points(5, seed=3)
    single = ExactGP(gp.kernel, gp.train_inputs.float(), gp.train_targets.float(), gp.noise.float(), mean=0.3)
    found, expected = moments(single, x.float()), moments(gp, x)
    assert found.mean.dtype == found.covariance.dtype == torch.float64
    torch.testing.assert_close(found.covariance, expected.covariance, rtol=0, atol=1e-5)


def test_moments_pass_through_transforms():
    gp, x = exact(), points(5, seed=3)
    inner = transforms.Affine(2.0, 1.0)
    seen = ExactGP(
        gp.kernel,
        gp.train_inputs,
        gp.train_targets,
        gp.noise,
        mean=0.3,
        input_transform=inner,
        output_transform=transforms.Affine(-3.0, 5.0),
    )
    plain, found = moments(gp, inner(x)), moments(seen, x)
    torch.testing.assert_close(found.mean, 5 - 3 * plain.mean)
    torch.testing.assert_close(found.covariance, 9 * plain.covariance)
    paths = matheron.draw(seen, 2)
    torch.testing.assert_close(found.mean, paths.mean(x))


def test_independent_outputs_have_independent_moments():
    a, b = exact(), sparse()
    x = points(4, seed=3)
    found = moments(Outputs([a, b]), x)
    for i, gp in enumerate((a, b)):
        torch.testing.assert_close(found.mean[:, i], moments(gp, x).mean)
        torch.testing.assert_close(found.covariance[:, i, :, i], moments(gp, x).covariance)
    assert not found.covariance[:, 0, :, 1].any()


def test_some_outputs_have_their_part_of_the_moments():
    gp, x = two_outputs(), points(4, seed=3)
    whole = moments(gp, x)
    one, both = moments(SelectedOutputs(gp, [1]), x), moments(SelectedOutputs(gp, [1, 0]), x)
    torch.testing.assert_close(one, (whole.mean[:, 1], whole.covariance[:, 1, :, 1]))
    torch.testing.assert_close(both.mean, whole.mean.flip(1))
    torch.testing.assert_close(both.covariance, whole.covariance.flip(1, 3))


def test_an_ensemble_has_the_moments_of_the_mixture(generator):
    a = exact()
    b = ExactGP(kernels.RBF(0.2), a.train_inputs, 1 - a.train_targets, 0.05)
    x = points(3, seed=3)
    found = moments(Ensemble([a, b]), x)
    draws = matheron.draw(Ensemble([a, b]), 4000, num_features=256, paths_per_basis=16, generator=generator)(x)
    spread = found.covariance.diagonal().sqrt()
    assert ((draws.mean(0) - found.mean).abs() < 5 * spread / 4000**0.5).all()
    assert ((draws.var(0) / found.covariance.diagonal()).log().abs() < 0.15).all()  # sd of a log variance: 0.02 to 0.03


def test_a_batch_is_refused():
    with pytest.raises(TypeError, match=r"expected one exact or sparse model.*models"):
        moments(Batch([exact(), exact()]), points(3))


def test_draws_of_u_alone_have_no_closed_form():
    gp = SparseGP(kernels.RBF(0.4), points(3), sample_u=lambda s, g: torch.randn(s, 3, generator=g))
    with pytest.raises(TypeError, match="known by its draws alone"):
        moments(gp, points(2))


def test_a_transform_that_is_not_affine_has_no_closed_form():
    gp = exact()
    gp = gp.replaced(output_transform=transforms.Exp())
    with pytest.raises(TypeError, match="not affine"):
        moments(gp, points(2))


def test_points_of_the_wrong_dimension_are_refused():
    with pytest.raises(ValueError, match=r"expected points in 2 dimensions"):
        moments(exact(), points(3, 1))
