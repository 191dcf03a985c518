"""Frequencies by leverage: the kernel stays unbiased, and the posterior's error falls; nowhere does it rise."""

import math
import statistics
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

import matheron
from matheron import ExactGP, SparseGP, draw
from matheron import kernels as K
from matheron.compare.metrics import gaussian_wasserstein
from matheron.compare.samplers import decoupled_moments, moments
from matheron.features import Reference, reference_points
from matheron.features.leverage import resampled, summands
from matheron.solvers import FactoredPosterior
from standard import assert_unbiased, covariance


def rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def model(kernel: K.Kernel, d: int, n: int, noise: float = 1e-4, **settings) -> ExactGP:
    X = rand(n, d, seed=1)
    return ExactGP(kernel, X, torch.sin(5 * X.sum(-1)), noise=noise, **settings)


def error(gp, x: Tensor, features: str, seed: int = 0, num_features: int = 256, **settings) -> float:
    """Relative W2 of one basis, in closed form."""
    paths = draw(gp, 2, features=features, num_features=num_features, seed=seed, **settings)
    exact, implied = moments(gp, x), decoupled_moments(gp, paths, x)
    return gaussian_wasserstein(*implied, *exact) / math.sqrt(float(exact.covariance.diagonal().sum()))


def ratio(gp, x: Tensor, seeds: int = 5, **settings) -> float:
    """How many times plain features err more, by medians over seeds."""
    plain, ours = (
        statistics.median(error(gp, x, kind, seed, **settings) for seed in range(seeds))
        for kind in ("sobol", "leverage")
    )
    return plain / ours


KERNELS = {  # kernel and dimensions: all that features are made for
    "RBF": (K.RBF(0.5), 2),
    "Matern 1/2": (K.Matern(0.5, 0.5), 1),
    "one lengthscale per dimension": (K.Matern(2.5, [0.3, 1.0, 2.0]), 3),
    "rational quadratic": (K.RationalQuadratic(0.8, 0.6), 2),
    "shifted": (K.SpectralMixture([0.7, 0.5], [[0.4, 1.0], [0.0, 0.3]], [[0.3, 0.2], [0.5, 0.6]]), 2),
    "one shifted": (K.SpectralMixture([1.0], [[1.2]], [[0.3]]), 1),
    "atoms": (K.Periodic(0.6, 0.7), 1),
    "atoms in two dimensions": (K.Periodic([0.5, 0.8], [0.7, 0.9]), 2),
    "a sum": (K.RBF(1.0) + 0.01 * K.Matern(1.5, 0.1), 1),
    "a sum on different coordinates": (K.RBF(0.5).on(0) + 0.5 * K.Matern(2.5, 0.4).on([1, 2]), 3),
    "a sum in three dimensions": (K.RBF(1.0) + 0.1 * K.Matern(1.5, 0.5), 3),
    "shifted in three dimensions": (
        K.SpectralMixture([1.0, 0.3], [[0.4, 0.2, 0.1], [0.0] * 3], [[0.2] * 3, [0.5] * 3]),
        3,
    ),
    "a sum with atoms": (K.Periodic(0.6, 0.7) + 0.3 * K.RBF(0.4), 1),
    "a product": (K.RBF(0.6) * K.Matern(1.5, 0.9), 2),
    "a product of unlike lengthscales": (K.RBF([0.6, 2.0]) * K.Matern(1.5, [2.0, 0.9]), 2),
    "a product of three": (K.RationalQuadratic(0.5, 0.6) * K.Matern(1.5, 0.9) * K.RBF([1.0, 2.0, 1.0]), 3),
    "a product of RBFs, one shifted": (K.RBF([0.6, 2.0]) * K.SpectralMixture([1.0], [[0.8, 0.3]], [[0.2, 0.4]]), 2),
    "a product with atoms": (K.RBF(0.6) * K.Periodic(0.8, 0.4), 1),
    "a product across coordinates": (K.RBF(0.5).on(0) * K.Matern(2.5, 0.6).on(1), 2),
    "a product of shifted ones": (
        K.SpectralMixture([1.0], [[0.8]], [[0.2]]) * K.SpectralMixture([1.0], [[0.5]], [[0.3]]),
        1,
    ),
    "with a linear form": (K.Matern(2.5, 0.5) * K.Linear() + K.RBF(0.4) + K.Constant(0.5), 1),
    "with a square": (K.Matern(1.5, 0.8) * K.Polynomial(2), 2),
    "atoms with a linear form": (K.Periodic(0.6, 0.7) * K.Linear(), 2),
    "spherical": (K.Spherical([0.9, 1.6]), 2),
    "spherical in 3 dimensions, whose density has zeros": (K.Spherical(1.2), 3),
    "turned": (K.Rotated(K.Matern(1.5, [0.4, 1.5]), 30.0), 2),
    "turned on some coordinates, times another": (
        K.Rotated(K.RBF(0.5).on(0) * K.RBF([0.8, 0.6]).on([1, 2]), 40.0)
        * K.Rotated(K.Matern(2.5, 0.7), 10.0).on([1, 2]),
        3,
    ),
}


@pytest.mark.parametrize("name", KERNELS)
def test_the_kernel_is_unbiased_in_the_data_s_region_and_out_of_it(name):
    kernel, d = KERNELS[name]
    features = draw(model(kernel, d, 12), 400, features="leverage", num_features=33, paths_per_basis=1, seed=3)
    x = torch.cat([rand(3, d, seed=4), 3 + rand(2, d, seed=5)])
    Phi = features.prior.features(x)  # [g, n, ell]
    exact = torch.from_numpy(covariance(kernel, x, x))
    assert_unbiased(Phi @ Phi.mT - exact)


def test_amplitudes_wrong_by_five_percent_are_noticed():
    kernel, d = KERNELS["Matern 1/2"]
    paths = draw(model(kernel, d, 12), 400, features="leverage", num_features=33, paths_per_basis=1, seed=3)
    x = rand(4, d, seed=4)
    Phi = 1.05 * paths.prior.features(x)
    with pytest.raises(AssertionError):
        assert_unbiased(Phi @ Phi.mT - torch.from_numpy(covariance(kernel, x, x)))


@pytest.mark.parametrize(
    ("kernel", "d", "n", "least"),
    [
        (K.Matern(2.5, 0.3), 1, 20, 4.0),
        (K.Matern(1.5, 1.2), 2, 30, 3.0),
        (K.RBF(1.0) + 1e-3 * K.Matern(1.5, 0.05), 1, 40, 4.0),
        (K.Matern(2.5, [0.2, 2.0]), 2, 60, 2.0),
        (K.Rotated(K.Matern(2.5, [0.3, 1.5]), 30.0), 2, 60, 2.0),
        (K.Spherical(0.8), 1, 30, 2.5),
        (K.Matern(2.5, 0.5) * K.Linear(), 1, 30, 3.0),
        (K.Matern(1.5, 0.5) * K.Matern(2.5, 0.8), 1, 20, 4.0),
    ],
    ids=["one dimension", "two", "a small term", "ARD", "turned", "spherical", "a linear form", "a product"],
)
def test_the_posterior_s_error_is_some_times_less(kernel, d, n, least):
    gp, x = model(kernel, d, n), rand(100, d, seed=7)
    assert ratio(gp, x, seeds=3) > least


def test_in_six_dimensions_a_thousand_features_gain_and_fewer_where_it_is_said_where_they_serve():
    gp, x = model(K.Matern(2.5, 1.0), 6, 100), rand(100, 6, seed=7)
    assert ratio(gp, x, seeds=3, num_features=1024) > 2
    assert ratio(gp, x, seeds=3, domain=(0.0, 1.0)) > 1.8


def test_a_sparse_posterior_gains_too():
    Z = rand(30, 2, seed=1)
    gp = SparseGP(K.Matern(2.5, 0.8), Z, q_mean=torch.zeros(30), q_scale_tril=0.01 * torch.ones(30), jitter=1e-6)
    assert ratio(gp, rand(100, 2, seed=7), seeds=3) > 2


def test_several_outputs_gain_too():
    tasks = torch.arange(40) % 2
    kernel = K.Coregional(K.Matern(2.5, 0.8), [[1.0, 0.5], [0.5, 2.0]]) + 0.1 * K.RBF(0.3)
    gp = model(kernel, 2, 40, tasks=tasks)
    assert ratio(gp, rand(60, 2, seed=7), seeds=3) > 2


ELSEWHERE = {
    "far from data": (model(K.Matern(2.5, 0.5), 4, 60), 5 + rand(100, 4, seed=7)),
    "far from many data, and apart": (model(K.Matern(2.5, 0.5), 4, 150), 5 + 10 * rand(100, 4, seed=7)),
    "far from many data in six dimensions": (model(K.Matern(0.5, 1.8), 6, 100), 5 + 5 * rand(100, 6, seed=7)),
    "far from data in three dimensions, and apart": (model(K.Matern(2.5, 0.7), 3, 60), 5 + 10 * rand(60, 3, seed=7)),
    "far from data on two coordinates of their own, and apart": (
        model(K.Matern(1.5, 0.8).on(0) * K.Matern(1.5, 0.5).on(1), 2, 40),
        5 + 30 * rand(60, 2, seed=7),
    ),
    "far from data for a product in one dimension, and apart": (
        model(K.Matern(0.5, 0.5) * K.RBF(0.8), 1, 20),
        5 + 100 * rand(60, 1, seed=7),
    ),
    "far from data for a sum of a large term and a small one, and apart": (
        model(K.RBF(2.0) + 0.01 * K.Matern(2.5, 0.3), 4, 150),
        10 * rand(80, 4, seed=7) - 4.5,
    ),
    "outside of their box": (model(K.Matern(2.5, 0.5), 2, 40), 2 * rand(100, 2, seed=7) - 0.5),
    "one datum": (model(K.Matern(2.5, 0.5), 3, 1), rand(100, 3, seed=7)),
    "noise so large that data say nothing": (model(K.Matern(2.5, 0.5), 3, 50, noise=100.0), rand(100, 3, seed=7)),
    "duplicates": (
        ExactGP(K.RBF(0.5), torch.full((5, 2), 0.5), torch.zeros(5), noise=1e-2),
        rand(100, 2, seed=7),
    ),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_nowhere_is_the_error_more_than_a_tenth_larger(name):
    gp, x = ELSEWHERE[name]
    assert ratio(gp, x) > 1 / 1.1


def test_clusters_gain_too():
    X = torch.cat([0.02 * rand(20, 2, seed=1), 1 + 0.02 * rand(20, 2, seed=2)])
    gp = ExactGP(K.Matern(2.5, 0.5), X, X.sum(-1), noise=1e-6)
    assert ratio(gp, X + 0.003, seeds=3) > 2


@pytest.mark.parametrize("kernel, d, n", [(K.Matern(2.5, 0.5), 2, 30), (K.Matern(0.5, 0.3), 4, 300)], ids=["", "rough"])
def test_single_precision_draws_the_same_functions(kernel, d, n):
    """Also where frequencies are so large that float32 has no digits for their phases; places are numbers of its."""
    gp, x = model(kernel, d, n, noise=1e-2), rand(20, d, seed=7).float().double()
    gp = ExactGP(kernel, gp.train_inputs.float().double(), gp.train_targets.float().double(), 1e-2)
    double, single = (draw(gp, 3, seed=0, dtype=dtype) for dtype in (torch.float64, torch.float32))
    torch.testing.assert_close(single(x.float()).double(), double(x), rtol=1e-3, atol=1e-3)


def test_points_named_are_the_reference_points():
    gp = model(K.Matern(1.5, 0.5), 4, 60, noise=1e-3)
    where = 0.1 * rand(200, 4, seed=8) + X_near(gp)
    told: list[dict[str, Any]] = [{"where": where}, {}]
    named, unnamed = (
        statistics.median(error(gp, where[:80], "leverage", seed, **how) for seed in range(5)) for how in told
    )
    assert named < 1.05 * unnamed
    X, lengths = gp.train_inputs, torch.ones(4)
    assert torch.isin(reference_points(X, None, where, lengths), where).all()
    box = torch.tensor([[5.0] * 4, [6.0] * 4], dtype=torch.float64)
    inside = reference_points(X, box, None, lengths)
    assert ((inside >= 5).all(-1).double().mean()) > 0.7
    with pytest.raises(ValueError, match=r"where: expected points in 4 dimensions"):
        draw(gp, 2, where=rand(3, 2))


def X_near(gp: ExactGP) -> Tensor:
    return gp.train_inputs[:1]


def test_leverage_needs_data():
    with pytest.raises(ValueError, match=r'features="leverage" needs data, or inducing points'):
        matheron.draw_prior(K.RBF(), 2, input_dim=1, features="leverage")


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_any_number_of_features_will_do(count):
    gp = model(K.RBF(0.5) + K.Periodic(0.6, 0.7) + K.Matern(0.5), 1, 5)
    paths = draw(gp, 3, num_features=count, seed=0)
    assert torch.isfinite(paths(rand(4, 1))).all() and paths.prior.num_features <= max(3, count)


def test_atoms_of_next_to_no_weight_take_no_more_features_than_there_are():
    paths = draw(model(K.Periodic(1e5, 0.7), 1, 5), 2, features="leverage", num_features=2, seed=0)
    assert paths.prior.num_features == 2


def test_few_atoms_are_taken_exactly():
    features = draw(model(K.Periodic(1.0, 0.7), 1, 5), 2, features="leverage", num_features=200, seed=0).prior.features
    x = rand(6, 1, seed=2)
    torch.testing.assert_close((features(x) @ features(x).mT)[0], K.Periodic(1.0, 0.7)(x, x), rtol=1e-9, atol=1e-9)


GRADIENTS = {
    "lengthscales": (lambda v: K.Matern(2.5, v), torch.tensor([0.5, 0.8])),
    "rational quadratic": (lambda v: K.RationalQuadratic(v[0], v[1]), torch.tensor([0.8, 0.6])),
    "a sum": (lambda v: v[0] * K.RBF(v[1]) + K.Matern(1.5, 0.3), torch.tensor([1.5, 0.7])),
    "a product": (lambda v: K.RBF(v[0]) * K.Matern(1.5, v[1]), torch.tensor([0.5, 0.9])),
    "a shift": (lambda v: K.SpectralMixture([1.0], v[None], [[0.4, 0.3]]), torch.tensor([0.5, 0.7])),
    "a period": (lambda v: K.Periodic(v[0], v[1]), torch.tensor([0.8, 0.9])),
    "a range": (lambda v: K.Spherical(v), torch.tensor([0.9, 1.3])),
    "a form": (lambda v: K.RBF(v[0]) * K.Linear(v[1]), torch.tensor([0.8, 1.3])),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_the_gradient_of_the_kernel_is_unbiased_in_hyperparameters(name):
    """Over many bases the prior's covariance has the derivative of k, here by finite differences of k itself."""
    make, value = GRADIENTS[name]
    value = value.double().requires_grad_()
    d = 1 if name == "a period" else 2
    x, z = rand(1, d, seed=4), rand(1, d, seed=5)
    kernel = make(value)
    gp = ExactGP(kernel, rand(8, d, seed=1), torch.zeros(8), noise=1e-2)
    paths = draw(gp, 100, features="leverage", num_features=40, paths_per_basis=1, detach=False, seed=0)
    both = paths.prior.features(torch.cat([x, z]))
    implied = (both[:, 0] * both[:, 1]).sum(-1)  # [g]
    each = torch.eye(len(implied), dtype=torch.float64)
    (gradients,) = torch.autograd.grad(implied, value, each, is_grads_batched=True)
    step = 1e-5
    with torch.no_grad():
        moves = step * torch.eye(len(value), dtype=torch.float64)
        exact = torch.stack([(make(value + m)(x, z) - make(value - m)(x, z))[0, 0] / (2 * step) for m in moves])
    assert_unbiased(gradients.detach() - exact)


def test_draws_in_inference_mode_leave_nothing_behind_that_gradients_stumble_over():
    def total(v: Tensor, **settings) -> Tensor:
        kernel = K.Matern(1.5, v[0]) + K.RBF(v[1]).on(0)
        return draw(model(kernel, 17, 12), 2, num_features=20, seed=0, **settings)(rand(3, 17)).sum()

    value = torch.tensor([0.5, 0.6], dtype=torch.float64, requires_grad=True)
    with torch.inference_mode():
        total(value.detach())
    (gradient,) = torch.autograd.grad(total(value, detach=False), value)
    assert bool(gradient.isfinite().all())


def test_amplitudes_follow_the_density_with_frequencies_held():
    """d log a^2 = d log S at the same frequencies, by finite differences."""
    value = torch.tensor([0.5, 0.8], dtype=torch.float64, requires_grad=True)
    gp = ExactGP(K.Matern(2.5, value), rand(8, 2, seed=1), torch.zeros(8), noise=1e-2)
    (basis,) = draw(gp, 2, num_features=12, detach=False, seed=0).prior.features.bases
    assert not basis.frequencies.requires_grad
    log_power = 2 * basis.amplitudes[0].log()
    found = torch.stack([torch.autograd.grad(p, value, retain_graph=True)[0] for p in log_power])  # [f, 2]
    step, theta = 1e-6, basis.frequencies[0]
    for i, move in enumerate(step * torch.eye(2, dtype=torch.float64)):
        up, down = (K.Matern(2.5, value.detach() + s * move).measure(2).log_density(theta) for s in (1, -1))
        assert up is not None and down is not None
        torch.testing.assert_close(found[:, i], (up - down) / (2 * step), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "kernel", [K.RBF(0.3), K.Matern(0.5, 2.0), K.RationalQuadratic(0.4, 0.7), K.Spherical(0.9)], ids=repr
)
def test_a_table_has_the_mass_of_the_spectrum_between_any_two_radii(kernel):
    """By the radii of plain frequencies, which know nothing of the density."""
    (summand,) = summands(kernel.terms(2)[0], 2)
    shells = summand.radial[0].shells
    U = SobolEngine(kernel.measure(2).num_uniforms, scramble=True, seed=0).draw(1 << 14, dtype=torch.float64)
    theta = kernel.measure(2).frequencies(U.clamp(1e-9, 1 - 1e-9))
    log_radius = (theta / kernel.measure(2).scale).norm(dim=1).log()
    for share in (0.05, 0.3, 0.6, 0.95):
        t = float(log_radius.quantile(share))
        assert float(shells.masses[shells.middles < t].sum()) == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize("order", [1, -1])
def test_a_sum_shares_its_features_by_what_the_data_leave_open(order):
    """Many data determine the smooth and large term: most features then go to the small one, whatever the order."""
    terms = [K.RBF(1.0), 1e-3 * K.Matern(1.5, 0.2).on(0)][::order]

    def share(n: int) -> float:
        gp = model(terms[0] + terms[1], 2, n, noise=1e-5)
        settings = {"features": "leverage", "domain": (0.0, 1.0), "num_features": 256}
        (basis,) = draw(gp, 2, seed=0, **settings).prior.features.bases
        of_small = basis.frequencies[0][:, 1] == 0  # it depends on one coordinate
        assert float(basis.amplitudes[0][of_small].square().sum()) == pytest.approx(1e-3, rel=0.3)
        return float(of_small.double().mean())

    assert share(2) < 0.35 and share(60) > 0.6


def pool_of_waves(count: int, seed: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    theta = 2.0 * torch.randn(1, count, generator=g, dtype=torch.float64)
    return theta, 2 * math.pi * torch.rand(count, generator=g, dtype=torch.float64)


def test_features_chosen_from_a_pool_have_its_kernel_in_the_mean_and_gain_given_the_data():
    """The pool is fixed, so that the choice alone is random: of few, whose weights are far from equal."""
    gp = model(K.RBF(0.5), 1, 12, noise=1e-4)
    reference = Reference(FactoredPosterior(gp.kernel, gp.sites, gp.noise, None), None, None, torch.ones(1))
    theta, tau = pool_of_waves(300, 0)
    generator, x = torch.Generator().manual_seed(1), torch.cat([rand(4, 1, seed=2), 2 + rand(2, 1, seed=3)])

    def phi(at: Tensor) -> Tensor:
        return math.sqrt(2 / 300) * torch.cos(at @ theta + tau)

    found = [resampled(phi(reference.sites.points), reference, 40, 4.0, generator) for _ in range(500)]
    chosen, factors = (torch.stack(each) for each in zip(*[f for f in found if f is not None], strict=True))
    assert chosen.shape == (500, 40)
    Phi = phi(x)[:, chosen] * factors  # [n, g, c]
    assert_unbiased(torch.einsum("ngc,mgc->gnm", Phi, Phi) - phi(x) @ phi(x).mT)
    with pytest.raises(AssertionError):  # all of equal weight
        Phi = phi(x)[:, chosen] * math.sqrt(300 / 40)
        assert_unbiased(torch.einsum("ngc,mgc->gnm", Phi, Phi) - phi(x) @ phi(x).mT)
    assert resampled(phi(reference.sites.points), reference, 40, 1.0, generator) is None  # nothing may be lost far away


def test_a_measure_without_tables_is_drawn_otherwise():
    paths = draw(model(K.SpectralMixture([1.0], [[0.4, 0.2]], [[0.3, 0.0]]), 2, 5), 2, num_features=64, seed=0)
    assert [choice.kind for choice in paths.prior.features.choices] == ["sobol"]


def test_of_a_spectrum_in_more_parts_than_there_are_features_plain_ones_are_drawn():
    mixture = K.SpectralMixture([1.0] * 6, [[float(i)] for i in range(6)], [[0.3]] * 6)
    few, many = (draw(model(mixture, 1, 5), 2, num_features=count, seed=0) for count in (8, 64))
    assert {choice.kind for choice in few.prior.features.choices} == {"sobol"} and few.prior.num_features == 8
    assert many.prior.features.description == "64 by leverage"


@pytest.mark.parametrize("n", [1, 2])
def test_terms_that_leave_dimensions_alone_are_drawn_given_very_few_data(n):
    kernel = K.Matern(2.5, 0.5) + 0.3 * K.RationalQuadratic(1.5, 1.0).on([0])
    paths = draw(model(kernel, 3, n, noise=0.1), 4, num_features=30, seed=0)
    assert bool(torch.isfinite(paths(rand(5, 3))).all())


LAWS = {  # where default draws once were 1.5 to 28 times as far from the posterior as exact draws
    "turned": (K.Rotated(K.Matern(2.5, [1.5, 0.3]), 30.0), 2, 200, 1e-6),
    "spherical": (K.Spherical(2.5), 3, 300, 1e-4),
    "a linear form": (K.Matern(2.5, 0.5) * K.Linear(), 1, 60, 1e-6),
    "smooth, with many precise data": (K.Matern(2.5, 5.0), 2, 300, 1e-6),
    "atoms in a product": (K.RBF(0.5).on(0) * K.Periodic(0.7, 1.0).on(1) * K.Matern(1.5, 1.0).on(2), 3, 300, 1e-5),
}


@pytest.mark.parametrize("kernel, noise", [(K.Spherical(0.6), 1e-3), (K.Matern(0.5, 0.5), 0.0)])
def test_rough_functions_gain_close_to_data_too(kernel, noise):
    """A thousandth of the box away, where the frequencies that matter are far above those between data."""
    gp = model(kernel, 3, 90, noise=noise)
    x = gp.train_inputs[:40] + 1e-3 * torch.randn(40, 3, generator=torch.Generator().manual_seed(1)).double()
    assert ratio(gp, x, seeds=3, num_features=1024) > 1.45


@pytest.mark.parametrize("domain", [None, (0.0, 1.0)], ids=["no domain", "a domain"])
@pytest.mark.parametrize("d, n, lengthscale, noise", [(1, 12, 0.3, 1e-4), (3, 12, 1.5, 1e-4), (3, 6, 1.5, 1e-6)])
def test_rough_functions_have_their_law_close_to_data_and_to_data_that_nearly_coincide(
    d, n, lengthscale, noise, domain
):
    """W2 of 512 draws with the covariance of their bases over that of 512 exact draws, both expected."""
    X = rand(n, d, seed=1)
    X[-1] = X[0] + 1e-3 * rand(d, seed=2)
    gp = ExactGP(K.Matern(0.5, lengthscale), X, torch.sin(6 * X).sum(-1), noise=noise)
    step = torch.nn.functional.normalize(torch.randn(4 * n, d, generator=torch.Generator().manual_seed(1)).double())
    x, s = X.repeat(4, 1) + 1e-3 * step, 512
    exact, ours = moments(gp, x), decoupled_moments(gp, draw(gp, s, domain=domain, seed=0), x)
    eigenvalues, vectors = torch.linalg.eigh(exact.covariance)
    root = vectors * eigenvalues.clamp_min(0).sqrt()
    f = root @ torch.randn(len(x), s, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    floor = gaussian_wasserstein(exact.mean, f @ f.mT / s, *exact)
    assert math.hypot(1, gaussian_wasserstein(*ours, *exact) / floor) < 1.25


@pytest.mark.slow
@pytest.mark.parametrize("name", LAWS)
def test_default_draws_are_as_near_the_posterior_as_exact_ones(name):
    kernel, d, n, noise = LAWS[name]
    gp, x, s = model(kernel, d, n, noise=noise), rand(100, d, seed=7), 6000
    exact = moments(gp, x)
    eigenvalues, vectors = torch.linalg.eigh(exact.covariance)
    root = vectors * eigenvalues.clamp_min(0).sqrt()

    def distance(f: Tensor) -> float:
        return gaussian_wasserstein(f.mean(0), torch.cov(f.mT), *exact)

    generator = torch.Generator().manual_seed(1)
    normals = [torch.randn(s, 100, generator=generator, dtype=torch.float64) for _ in range(8)]
    floor = math.sqrt(statistics.mean(distance(exact.mean + z @ root.mT) ** 2 for z in normals))
    ours = math.sqrt(statistics.mean(distance(draw(gp, s, seed=seed)(x)) ** 2 for seed in range(2)))
    assert ours < 1.3 * floor


def test_far_from_data_the_monomial_that_is_most_of_the_variance_has_its_features():
    kernel = K.SpectralMixture([0.1, 0.9], [[2.0], [0.5]], [[0.02], [0.4]]) * K.Polynomial(2) + 0.1 * K.Matern(2.5, 1.0)
    gp = ExactGP(kernel, torch.full((2, 1), 0.15), torch.zeros(2), noise=5e-3)  # where it is next to nothing
    assert ratio(gp, 5 + 5 * rand(40, 1, seed=7)) > 1 / 1.8
