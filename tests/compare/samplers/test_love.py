import pytest
import torch
from gpytorch.utils.interpolation import Interpolation

import matheron
from compare.samplers.models import exact, points, two_outputs
from matheron import ExactGP, kernels
from matheron.compare.metrics import empirical_moments, gaussian_wasserstein
from matheron.compare.samplers import decoupled_moments, love, moments


def grid(q, d):
    axis = torch.linspace(0, 1, q, dtype=torch.float64)
    return torch.stack(torch.meshgrid(*[axis] * d, indexing="ij"), dim=-1).reshape(-1, d)


def on_grid(q, d, kernel=None, noise=1e-3):
    X = grid(q, d)
    return ExactGP(kernel or kernels.Matern(2.5, 0.35), X, (4 * X).sin().sum(1), noise, mean=0.5)


def interpolated(gp, x):
    """KISS-GP's posterior by dense algebra: what LOVE approximates with Lanczos."""
    axes = [0.2 * torch.arange(-2, 8, dtype=torch.float64)] * 2  # the data's six, and two on either side
    U = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).reshape(-1, len(axes))

    def weights(p):
        index, value = Interpolation().interpolate(axes, p)
        return torch.zeros(len(p), len(U), dtype=torch.float64).scatter_add_(1, index, value)

    K, W, W_x = gp.kernel(U), weights(gp.train_inputs), weights(x)
    torch.testing.assert_close(W @ K @ W.mT, gp.kernel(gp.train_inputs))  # the data are represented exactly
    G = torch.linalg.solve(W @ K @ W.mT + gp.noise.diag(), W @ K @ W_x.mT)
    return 0.5 + G.mT @ (gp.train_targets - 0.5), W_x @ K @ W_x.mT - (W_x @ K @ W.mT) @ G


def test_with_many_iterations_it_is_kernel_interpolation(generator):
    """Where the spectrum has gaps: Lanczos from one vector finds one of several equal eigenvectors."""
    gp = on_grid(6, 2, kernels.Matern(2.5, [0.5, 0.7]), noise=0.3)
    x = points(40, seed=3)
    mean, R = love(gp, 1, num_iterations=1000, generator=generator).location_and_root(x)
    expected_mean, expected_cov = interpolated(gp, x)
    torch.testing.assert_close(mean, expected_mean, rtol=0, atol=1e-4)
    assert gaussian_wasserstein(mean, R @ R.mT, expected_mean, expected_cov) < 1e-3 * float(expected_cov.trace()) ** 0.5


def test_draws_have_loves_own_law(generator):
    gp, x = on_grid(6, 2), points(5, seed=3)
    draws = love(gp, 4000, generator=generator)
    mean, R = love(gp, 1, generator=generator).location_and_root(x)
    found = empirical_moments(draws, x)
    spread = (R @ R.mT).diagonal().sqrt()
    assert ((found.mean - mean).abs() < 5 * spread / 4000**0.5 + 1e-4).all()
    assert draws(x[None]).shape == (4000, 5)


def test_it_improves_with_n_and_stays_behind_decoupled_paths(generator):
    x = points(64, seed=3)
    errors, ours = [], []
    for q in (4, 8, 16):
        gp = on_grid(q, 2, kernels.Matern(2.5, 0.2))
        truth = moments(gp, x)
        mean, R = love(gp, 1, generator=generator).location_and_root(x)
        errors.append(gaussian_wasserstein(mean, R @ R.mT, *truth))
        phi = matheron.draw(gp, 1, num_features=1024, features="cosine", generator=generator).prior.features
        ours.append(gaussian_wasserstein(*decoupled_moments(gp, phi, x), *truth))
    assert errors[0] > errors[1] > errors[2]
    assert all(our < error for our, error in zip(ours, errors, strict=True))


def test_the_global_seed_is_left_alone(generator):
    torch.manual_seed(0)
    before = torch.get_rng_state()
    a = love(on_grid(6, 1), 2, generator=torch.Generator().manual_seed(1))(points(3, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(a, love(on_grid(6, 1), 2, generator=torch.Generator().manual_seed(1))(points(3, 1)))


def test_what_is_not_a_grid_is_refused():
    with pytest.raises(ValueError, match="expected training inputs on a regular grid"):
        love(exact(), 2)
    gp = on_grid(4, 2)
    with pytest.raises(ValueError, match="got 15 on one of 4 x 4"):
        love(ExactGP(gp.kernel, gp.train_inputs[1:], gp.train_targets[1:], 1e-3), 2)


def test_kernels_that_are_not_toeplitz_are_refused():
    with pytest.raises(TypeError, match="expected a stationary kernel"):
        love(on_grid(4, 2, kernels.RBF() + kernels.Linear()), 2)
    tilted = kernels.SpectralMixture(weights=[1.0], means=[[1.0, 1.0]], scales=[[0.1, 0.1]])
    with pytest.raises(ValueError, match="even in every coordinate"):
        love(on_grid(4, 2, tilted), 2)(points(3))
    with pytest.raises(TypeError, match="exact model of one output"):
        love(two_outputs(), 2)
