import numpy as np
import pytest
import torch

import matheron
from compare.samplers.models import exact, points, sparse, two_outputs
from matheron import ExactGP, kernels
from matheron.compare.samplers import LinearModelPaths, weight_space, weight_space_moments
from standard import assert_moments


def features(gp, ell, seed=5):
    generator = torch.Generator().manual_seed(seed)
    return matheron.draw(gp, 1, num_features=ell, features="cosine", generator=generator).prior.features


def textbook(gp, phi, x):
    """`eqn:blm_posterior_moments`, with one noise variance an observation, in NumPy."""
    Phi, Phi_x = phi(gp.train_inputs)[0].numpy(), phi(x)[0].numpy()
    precision = Phi.T @ np.diag(1 / gp.noise.numpy()) @ Phi + np.eye(Phi.shape[1])
    mean = np.linalg.solve(precision, Phi.T @ ((gp.train_targets.numpy() - 0.3) / gp.noise.numpy()))
    return torch.from_numpy(0.3 + Phi_x @ mean), torch.from_numpy(Phi_x @ np.linalg.solve(precision, Phi_x.T))


@pytest.mark.parametrize("ell", [6, 64])  # fewer features than data, and more
@pytest.mark.parametrize("method", ["cholesky", "eigen", "pathwise"])
def test_the_three_methods_agree_in_law(method, ell, generator):
    gp, x = exact(), points(5, seed=3)
    phi = features(gp, ell)
    mean, cov = textbook(gp, phi, x)
    paths = weight_space(gp, 4000, features=phi, method=method, generator=generator)
    assert_moments(paths(x), mean, cov)
    torch.testing.assert_close(paths.mean(x), mean)
    torch.testing.assert_close(weight_space_moments(gp, phi, x), (mean, cov))


@pytest.mark.parametrize("method", ["cholesky", "eigen", "pathwise"])
def test_several_outputs_are_coupled(method, generator):
    gp, x = two_outputs(), points(3, seed=3)
    phi = features(gp, 32)
    mean, cov = weight_space_moments(gp, phi, x)
    paths = weight_space(gp, 4000, features=phi, method=method, generator=generator)
    assert_moments(paths(x), mean, cov.reshape(6, 6))
    torch.testing.assert_close(paths.mean(x), mean)


def test_they_are_functions(generator):
    paths = weight_space(exact(), 3, num_features=16, generator=generator)
    x = points(6, seed=3)
    torch.testing.assert_close(paths(x)[:, 2:4], paths(x[2:4]))
    own = paths(torch.stack([x, x + 1, x + 2]))
    torch.testing.assert_close(own[1], paths(x + 1)[1])
    value, gradient = paths.value_and_grad(x)
    torch.testing.assert_close(value, paths(x))
    assert gradient.shape == (3, 6, 2)


def test_fewer_paths_keep_their_own_bases(generator, tmp_path):
    paths = weight_space(exact(), 8, num_features=16, paths_per_basis=2, generator=generator)
    x = points(4, seed=3)
    some = paths[[1, 5, 4]]
    torch.testing.assert_close(some(x), paths(x)[[1, 5, 4]])
    pair = paths[4:6]
    torch.testing.assert_close(pair.mean(x), (paths[4].mean(x) + paths[5].mean(x)) / 2)
    torch.testing.assert_close(some.mean(x), (paths[1].mean(x) + 2 * paths[4].mean(x)) / 3)
    assert not torch.allclose(paths[1].mean(x), paths[4].mean(x))  # of two bases
    some.save(tmp_path / "paths.safetensors")
    again = matheron.load(tmp_path / "paths.safetensors")
    assert isinstance(again, LinearModelPaths)
    torch.testing.assert_close(again.mean(x), some.mean(x))


def test_paths_have_the_models_dtype():
    gp = exact()
    single = ExactGP(gp.kernel, gp.train_inputs.float(), gp.train_targets.float(), 0.01)
    assert weight_space(single, 2, num_features=16)(points(3)).dtype == torch.float32
    assert weight_space(gp, 2, num_features=16, dtype=torch.float32)(points(3)).dtype == torch.float32


def test_more_data_is_refused():
    with pytest.raises(TypeError, match="weight-space paths cannot be conditioned"):
        weight_space(exact(), 2, num_features=16).condition_on(points(1), [0.0], noise=0.1)


def test_without_noise_only_the_pathwise_update_is_left(generator):
    gp = ExactGP(kernels.Matern(2.5, 0.4), points(4), points(4)[:, 0], 0.0)
    for method in ("cholesky", "eigen"):
        with pytest.raises(ValueError, match=r'noise above zero.*method="pathwise"'):
            weight_space(gp, 2, num_features=16, method=method)
    values = weight_space(gp, 2, num_features=16, method="pathwise", generator=generator)(gp.train_inputs)
    torch.testing.assert_close(values, gp.train_targets.expand(2, 4), rtol=0, atol=1e-6)


def test_what_cannot_be_is_refused():
    with pytest.raises(TypeError, match="weight_space_sparse"):
        weight_space(sparse(), 2)
    with pytest.raises(ValueError, match=r"method: expected one of auto, cholesky, eigen, pathwise, got 'svd'"):
        weight_space(exact(), 2, method="svd")
    with pytest.raises(ValueError, match="num_paths: expected a whole number of at least 1"):
        weight_space(exact(), 0)
    with pytest.raises(ValueError, match="made for 1 dimensions"):
        weight_space(exact(), 2, features=matheron.draw_prior(kernels.RBF(), 1, input_dim=1).prior.features)


def test_the_same_generator_gives_the_same_functions():
    x = points(3, seed=3)
    a, b = (weight_space(exact(), 4, num_features=16, generator=torch.Generator().manual_seed(3))(x) for _ in range(2))
    assert torch.equal(a, b)
