"""The iterative baseline draws from the same law as functions do."""

import pytest
import torch

import matheron
from matheron import kernels as K
from matheron.dynamics import IterativeDrift, fitzhugh_nagumo
from matheron.dynamics.iterative import downdate
from matheron.transforms import Affine


def test_a_downdated_factor_is_the_factor_of_the_difference(generator):
    A = torch.randn(4, 6, 6, dtype=torch.float64, generator=generator)
    v = torch.randn(4, 6, dtype=torch.float64, generator=generator)
    whole = A @ A.mT + v[..., None] * v[:, None]
    S = downdate(torch.linalg.cholesky(whole), v)
    torch.testing.assert_close(S @ S.mT, A @ A.mT)
    assert bool((S.triu(1) == 0).all())


def sparse(generator, whitened, **settings):
    Z = torch.linspace(-1, 1, 5, dtype=torch.float64)[:, None]
    root = torch.randn(5, 5, dtype=torch.float64, generator=generator).tril() * 0.3
    mu = torch.randn(5, dtype=torch.float64, generator=generator)
    return matheron.SparseGP(K.Matern(2.5, 0.8), Z, mu, root, mean=0.3, whitened=whitened, jitter=1e-6, **settings)


@pytest.mark.parametrize("whitened", [False, True])
def test_values_at_fixed_inputs_have_the_sparse_posteriors_moments(whitened, generator):
    """Inputs known in advance: the sequence of values is then a draw from the posterior at these points."""
    gp, s = sparse(generator, whitened), 20000
    x = torch.tensor([[0.1], [0.4], [-0.7], [0.12], [1.8]], dtype=torch.float64)
    drift = IterativeDrift([gp], s, len(x), generator=generator)
    f = torch.cat([drift(point.expand(s, 1)) for point in x], dim=1)  # [s, 5]
    Z, k = gp.inducing_points, gp.kernel
    assert gp.q_mean is not None and gp.q_scale_tril is not None
    K_mm = k(Z) + 1e-6 * torch.eye(5, dtype=torch.float64)
    L = torch.linalg.cholesky(K_mm)
    mu, root = (L @ gp.q_mean, L @ gp.q_scale_tril) if whitened else (gp.q_mean - 0.3, gp.q_scale_tril)
    A = torch.linalg.solve(K_mm, k(Z, x)).T
    mean = 0.3 + A @ mu
    covariance = k(x) + A @ (root @ root.T - K_mm) @ A.T
    deviation = covariance.diagonal().sqrt()
    assert float(((f.mean(0) - mean) / deviation).abs().max()) < 4 / s**0.5
    error = (torch.cov(f.T) - covariance) / torch.outer(deviation, deviation)
    assert float(error.abs().max()) < 4 * (2 / s) ** 0.5


def test_rollouts_agree_in_law_at_short_horizons(generator):
    gps = [sparse(generator, False), sparse(generator, True)]
    two = [matheron.SparseGP(g.kernel.on(0), torch.cat([g.inducing_points, g.inducing_points], 1), g.q_mean,
                             g.q_scale_tril, mean=0.3, whitened=g.whitened, jitter=1e-6) for g in gps]  # fmt: skip
    s, steps = 8000, 6
    start = torch.zeros(s, 2, dtype=torch.float64)
    drift = IterativeDrift(two, s, steps, generator=generator)
    iterative = matheron.rollout(drift, start, steps, 0.3, diffusion=0.01, generator=generator)[:, -1]
    paths = [matheron.draw(gp, s, num_features=128, paths_per_basis=16, generator=generator) for gp in two]
    decoupled = matheron.rollout(paths, start, steps, 0.3, diffusion=0.01, generator=generator)[:, -1]
    deviation = decoupled.std(0)
    assert float(((iterative.mean(0) - decoupled.mean(0)) / deviation).abs().max()) < 4 * (2 / s) ** 0.5
    assert float((iterative.std(0) / deviation - 1).abs().max()) < 4 * (1 / s) ** 0.5
    quantiles = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    gap = iterative.quantile(quantiles, dim=0) - decoupled.quantile(quantiles, dim=0)
    assert float((gap / deviation).abs().max()) < 0.1


def test_a_point_visited_twice_has_the_same_value(generator):
    drift = IterativeDrift([sparse(generator, False)], 10, 3, generator=generator)
    x = torch.full((10, 1), 0.33, dtype=torch.float64)
    first = drift(x)
    drift(x + 1)
    torch.testing.assert_close(drift(x), first, rtol=1e-3, atol=1e-3)


def test_transforms_are_undone(generator):
    transforms = {"input_transform": Affine(0.5, 0.1), "output_transform": Affine(4.0, 2.0)}
    plain = sparse(torch.Generator().manual_seed(1), False)
    dressed = sparse(torch.Generator().manual_seed(1), False, **transforms)
    x = torch.rand(6, 1, dtype=torch.float64, generator=generator)
    inner = IterativeDrift([plain], 6, 1, generator=torch.Generator().manual_seed(2))(0.5 * x + 0.1)
    outer = IterativeDrift([dressed], 6, 1, generator=torch.Generator().manual_seed(2))(x)
    torch.testing.assert_close(outer, 4 * inner + 2)


def test_models_known_by_their_draws_alone_are_refused():
    gp = matheron.SparseGP(K.RBF(), [[0.0]], sample_u=lambda s, g: torch.zeros(s, 1))
    with pytest.raises(TypeError, match="expected a SparseGP of one output with a Gaussian q"):
        IterativeDrift([gp], 2, 3)


def test_the_neuron_rests_without_current_and_spikes_with_it():
    rest = torch.tensor(fitzhugh_nagumo.REST, dtype=torch.float64)
    quiet = matheron.rollout(fitzhugh_nagumo.drift, rest, 800, 0.25, controls=torch.zeros(800, 1))
    assert float((quiet[0, :, 0] - rest[0]).abs().max()) < 0.05
    spiking = matheron.rollout(fitzhugh_nagumo.drift, rest, 800, 0.25, controls=torch.full((800, 1), 0.5))
    v = spiking[0, :, 0]
    assert int(((v[:-1] < 1) & (v[1:] >= 1)).sum()) >= 3
    lower, upper = torch.tensor(fitzhugh_nagumo.BOX, dtype=torch.float64)[:, :2]
    assert bool(((spiking[0] > lower) & (spiking[0] < upper)).all())


def test_training_targets_are_the_drift_with_the_noise_of_an_increment(generator):
    x, y = fitzhugh_nagumo.transitions(20000, generator)
    noise = y - fitzhugh_nagumo.drift(x)
    variance = fitzhugh_nagumo.DIFFUSION / fitzhugh_nagumo.STEP
    assert float((noise.var(0) / variance - 1).abs().max()) < 4 * (2 / 20000) ** 0.5
