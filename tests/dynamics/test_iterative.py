"""The iterative baseline draws from the same law as functions do."""

import pytest
import torch

import matheron
from matheron import kernels as K
from matheron.dynamics import IterativeDrift
from matheron.dynamics.iterative import downdate, times, times_transpose
from matheron.models.transforms import Affine


@pytest.mark.parametrize("left", [3.0, 1e-4, 1e-10, 1e-16])
def test_a_downdated_root_is_one_of_the_conditional_covariance(left, generator):
    """Of u = V^T xi given a^T xi + N(0, left): by Joseph's form, in which nothing is subtracted from a covariance."""
    V = torch.randn(4, 6, 6, dtype=torch.float64, generator=generator)
    a = torch.randn(4, 6, dtype=torch.float64, generator=generator)
    a[1, :3], a[2, 3:], a[3] = 0, 0, 0  # directions that nothing is learned about
    left = torch.full((4,), left, dtype=torch.float64)
    gain = a / (left + a.square().sum(1))[:, None]
    rest = torch.eye(6, dtype=torch.float64) - a[:, :, None] * gain[:, None]
    inner = rest.mT @ rest + left[:, None, None] * gain[:, :, None] * gain[:, None]
    root = downdate(V, a, left)
    torch.testing.assert_close(root.mT @ root, V.mT @ inner @ V, rtol=1e-12, atol=1e-12)


def test_a_downdated_identity_is_its_dense_cholesky_factor(generator):
    """Upper here: the factor of the matrix with rows and columns in reverse, reversed."""
    a = torch.randn(5, 32, dtype=torch.float64, generator=generator)
    left = torch.rand(5, dtype=torch.float64, generator=generator)
    eye = torch.eye(32, dtype=torch.float64).expand(5, 32, 32)
    whole = eye - a[:, :, None] * a[:, None] / (left + a.square().sum(1))[:, None, None]
    expected = torch.linalg.cholesky(whole.flip(1, 2)).flip(1, 2)
    torch.testing.assert_close(downdate(eye, a, left).mT, expected, rtol=1e-10, atol=1e-12)


def test_what_is_known_for_certain_has_no_spread_left(generator):
    """Values of u one after another, without noise: its covariance loses a rank each time, and ends at zero."""
    V = torch.randn(1, 8, 8, dtype=torch.float64, generator=generator)
    for i in range(8):
        V = downdate(V, V[..., i], torch.full((1,), 1e-20, dtype=torch.float64))
        assert bool(V.isfinite().all()) and float(V[..., : i + 1].norm()) < 1e-8
    assert float(V.norm()) < 1e-8


def sparse(generator, whitened, **settings):
    Z = torch.linspace(-1, 1, 5, dtype=torch.float64)[:, None]
    root = torch.randn(5, 5, dtype=torch.float64, generator=generator).tril() * 0.3
    mu = torch.randn(5, dtype=torch.float64, generator=generator)
    return matheron.SparseGP(K.Matern(2.5, 0.8), Z, mu, root, mean=0.3, whitened=whitened, jitter=1e-6, **settings)


def moments(gp, x):
    """The posterior's at x, densely."""
    Z, k, eye = gp.inducing_points, gp.kernel, torch.eye(len(gp.inducing_points), dtype=torch.float64)
    K_mm = k(Z) + gp.jitter * eye
    L = torch.linalg.cholesky(K_mm)
    mu, root = (L @ gp.q_mean, L @ gp.q_scale_tril) if gp.whitened else (gp.q_mean - 0.3, gp.q_scale_tril)
    A = torch.linalg.solve(K_mm, k(Z, x)).T
    return 0.3 + A @ mu, k(x) + A @ (root @ root.T - K_mm) @ A.T


@pytest.mark.parametrize("whitened", [False, True])
def test_values_at_fixed_inputs_have_the_sparse_posteriors_moments(whitened, generator):
    """Inputs known in advance: the sequence of values is then a draw from the posterior at these points."""
    gp, s = sparse(generator, whitened), 20000
    x = torch.tensor([[0.1], [0.4], [-0.7], [0.12], [1.8]], dtype=torch.float64)
    drift = IterativeDrift([gp], s, len(x), generator=generator)
    f = torch.cat([drift(point.expand(s, 1)) for point in x], dim=1)  # [s, 5]
    mean, covariance = moments(gp, x)
    deviation = covariance.diagonal().sqrt()
    assert float(((f.mean(0) - mean) / deviation).abs().max()) < 4 / s**0.5
    error = (torch.cov(f.T) - covariance) / torch.outer(deviation, deviation)
    assert float(error.abs().max()) < 4 * (2 / s) ** 0.5


def test_as_the_paper_writes_it_the_second_of_two_values_has_another_variance(generator):
    """The first value narrows the law of u, and the mean of u does not follow it."""
    gp, s = sparse(generator, True), 20000
    x = torch.tensor([[0.1], [0.4]], dtype=torch.float64)
    ratios = []
    for as_written in (False, True):
        drift = IterativeDrift([gp], s, len(x), generator=generator, as_written=as_written)
        f = torch.cat([drift(point.expand(s, 1)) for point in x], dim=1)
        ratios.append((f.var(0) / moments(gp, x)[1].diagonal()).tolist())
    assert ratios[0] == pytest.approx([1, 1], abs=0.04)
    assert ratios[1][0] == pytest.approx(1, abs=0.04) and abs(ratios[1][1] - 1) > 0.1


def scattered(steps, s, generator):
    """Inputs `[steps, s, 1]` in no order, far enough apart for digits to be compared."""
    order = torch.stack([torch.randperm(steps, generator=generator) for _ in range(s)], dim=1)
    return 0.3 * order[..., None].double() - 1


@pytest.mark.parametrize("whitened", [False, True])
def test_values_are_the_dense_posteriors_cholesky_factor_times_the_same_normals(whitened, generator):
    """What makes each value given those before is a Cholesky factor of their joint covariance, row by row."""
    gp, steps, s = sparse(generator, whitened), 200, 2
    x = scattered(steps, s, generator)
    drift = IterativeDrift([gp], s, steps, generator=torch.Generator().manual_seed(5))
    f = torch.cat([drift(points) for points in x], dim=1)  # [s, steps]
    xi = torch.randn(steps, 1, s, dtype=torch.float64, generator=torch.Generator().manual_seed(5))[:, 0].mT
    for path in range(s):
        mean, covariance = moments(gp, x[:, path])
        expected = mean + torch.linalg.cholesky(covariance) @ xi[path]
        torch.testing.assert_close(f[path], expected, rtol=1e-6, atol=1e-6)


def test_room_for_points_to_come_changes_no_value(generator):
    """As CUDA graphs have it, whose shapes stay."""
    gp, s, steps = sparse(generator, True), 3, 50
    x = scattered(steps, s, generator)

    def values(room):
        drift = IterativeDrift([gp, gp], s, steps, generator=torch.Generator().manual_seed(6))
        drift.room = room
        return torch.stack([drift(points) for points in x])

    torch.testing.assert_close(values(16), values(1), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("n", [5, 128, 300])
def test_products_with_a_triangle_read_all_that_is_not_zero(n, generator):
    R = torch.randn(2, n, n, dtype=torch.float64, generator=generator).tril()
    k = torch.randn(2, 1, n, dtype=torch.float64, generator=generator)
    torch.testing.assert_close(times_transpose(k, R), k @ R.mT)
    torch.testing.assert_close(times(k, R), k @ R)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_values_on_a_device_are_those_on_the_cpu(generator):
    """Through several CUDA graphs, each of which must leave the state as it found it."""
    gp, s, steps = sparse(generator, True), 3, 150
    x = scattered(steps, s, generator)

    def values(device):
        drift = IterativeDrift([gp, gp], s, steps, generator=torch.Generator().manual_seed(6), device=device)
        return torch.stack([drift(points.to(device)) for points in x]).cpu()

    torch.testing.assert_close(values("cuda"), values("cpu"), rtol=1e-6, atol=1e-6)


def test_values_of_a_crowd_lie_on_a_smooth_function(generator):
    """Far more points than a smooth kernel has eigenvalues above rounding: jitter must keep the inverse from blowing
    up, and no more than its noise may show."""
    s, steps, root = 10, 400, 0.1 * torch.ones(3, dtype=torch.float64)
    gp = matheron.SparseGP(K.RBF(1.0), [[-1.0], [0.0], [1.0]], torch.zeros(3), root, jitter=1e-6)
    drift = IterativeDrift([gp], s, steps, generator=generator)
    x = 2 * torch.rand(steps, s, 1, dtype=torch.float64, generator=generator) - 1
    f = torch.cat([drift(points) for points in x], dim=1)  # [s, steps]
    largest = float(drift.outputs[0].R.abs().max())
    assert largest < 1.01e4  # the eigenvalues of K and a jitter of 1e-8 are no smaller
    x, order = x[..., 0].mT.sort(dim=1)
    rise, run_ = f.gather(1, order).diff(dim=1).abs(), x.diff(dim=1)
    assert float((rise - 2 * run_).max()) < 8 * 2**0.5 * 1e-4  # slopes of about 0.5, jitter of deviation 1e-4


def test_float32_stays_finite_where_points_crowd(generator):
    gp, s, steps = sparse(generator, False), 20, 100
    drift = IterativeDrift([gp], s, steps, generator=generator, dtype=torch.float32)
    x = 0.001 * torch.randn(steps, s, 1, generator=generator).cumsum(0)
    f = torch.cat([drift(points) for points in x], dim=1)
    assert bool(f.isfinite().all())
    assert float((f - f[:, :1]).abs().max()) < 0.5  # the points are neighbours, and so are the values


def test_one_call_too_many_is_refused(generator):
    drift = IterativeDrift([sparse(generator, False)], 2, 1, generator=generator)
    x = torch.zeros(2, 1, dtype=torch.float64)
    drift(x)
    with pytest.raises(ValueError, match="expected 1 calls at most, got one more; make it for more steps"):
        drift(x)


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
