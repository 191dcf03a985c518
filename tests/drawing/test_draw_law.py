"""The law of drawn paths, against the closed form: every kernel, model, basis, noise and mean."""

import importlib
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from matheron import ExactGP, SparseGP, draw, draw_prior
from matheron import kernels as K
from matheron.models.means import LinearMean
from standard import assert_marginals_ks, assert_moments, assert_uncorrelated, basis_error, exact_moments

draw_module = importlib.import_module("matheron.drawing")
sparse_module = importlib.import_module("matheron.paths.sparse")
NUM_PATHS = 4000
FRESH: dict[str, Any] = dict(num_features=128, paths_per_basis=1)  # a basis per path: its covariance averages out


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def points(n: int, d: int, seed: int) -> Tensor:
    return torch.rand(n, d, generator=gen(seed), dtype=torch.float64) * 1.2 - 0.1


def exact_gp(kernel, d: int, *, n: int = 4, noise: Any = 0.05, mean: Any = 0.0) -> ExactGP:
    y = torch.randn(n, generator=gen(2), dtype=torch.float64)
    return ExactGP(kernel, points(n, d, seed=1), y, noise, mean=mean)


def sparse_gp(kernel, d: int, *, m: int = 4, root="full", **settings) -> SparseGP:
    """A q(u) that is neither the prior's nor narrow, with a root that is not triangular."""
    q_mean = torch.randn(m, generator=gen(3), dtype=torch.float64)
    full = 0.4 * torch.randn(m, m, generator=gen(4), dtype=torch.float64)
    scale = {"full": full, "tril": full.tril(), "diagonal": full.diagonal().abs() + 0.2, "point mass": None}[root]
    return SparseGP(kernel, points(m, d, seed=5), q_mean, scale, **settings)


def assert_law(gp, *, x: Tensor | None = None, seed: int = 0, num_paths: int = NUM_PATHS, reference=None, **settings):
    """Paths of `gp` have the law of `reference`, which is `gp` unless a test says otherwise."""
    x = points(5, gp.input_dim, seed=6) if x is None else x
    f = draw(gp, num_paths, generator=gen(seed), **(FRESH | settings))(x)
    mean, cov = exact_moments(gp if reference is None else reference, x)
    assert_moments(f, mean, cov)
    assert_marginals_ks(f, mean, cov)


MIXTURE = K.SpectralMixture(
    weights=[0.7, 0.5], means=[[0.4, 1.0], [0.0, 0.3]], scales=[[0.3, 0.2], [0.5, 0.6]]
)  # two dimensions
KERNELS = {
    "RBF": (K.RBF(0.4), 2),
    "RBF, ARD": (K.RBF([0.3, 2.0]), 2),
    "Matern 1/2": (K.Matern(0.5, 0.6), 2),
    "Matern 3/2": (K.Matern(1.5, 0.6), 2),
    "Matern 5/2": (K.Matern(2.5, 0.5), 2),
    "Matern 0.8, ARD": (K.Matern(0.8, [0.4, 0.9]), 2),
    "rational quadratic": (K.RationalQuadratic(0.7, 0.5), 2),
    "periodic": (K.Periodic([0.9, 1.4], [0.8, 1.3]), 2),
    "cosine": (K.Cosine(0.9), 1),
    "spectral mixture": (MIXTURE, 2),
    "linear": (K.Linear([0.5, 2.0]), 2),
    "polynomial": (K.Polynomial(3, 0.5), 2),
    "constant": (K.Constant(1.7), 2),
    "scaled": (2.5 * K.Matern(2.5, 0.5), 2),
    "sum": (K.RBF(0.3) + 0.5 * K.Matern(1.5, 0.8), 2),
    "sum with a level and a trend": (K.RBF(0.3) + K.Linear() + K.Constant(0.5), 2),
    "product": (K.RBF(0.6) * K.Matern(1.5, 0.9), 2),
    "products with periodic and cosine": (K.Periodic(1.0, 0.7) * K.RBF(1.5) * K.Cosine(1.1), 1),
    "on some coordinates": (K.RBF(0.4).on(2) + K.Matern(1.5, 0.5).on([0, 1]), 3),
    "product across coordinates": (K.RBF(0.4).on(0) * K.Periodic(1.0, 0.8).on(1), 2),
    "stationary times linear": (K.RBF(0.5) * K.Linear([1.0, 0.4]), 2),
    "stationary times polynomial": (K.Matern(2.5, 0.7) * K.Polynomial(2, 0.5), 1),
    "everything": (1.5 * (K.RBF(0.5).on(0) + K.Linear().on(1)) * (K.Periodic(1.0, 0.9).on(1) + K.Constant(0.3)), 2),
}


@pytest.mark.parametrize("name", KERNELS)
def test_paths_of_every_kernel_have_the_exact_posterior_law(name):
    kernel, d = KERNELS[name]
    assert_law(exact_gp(kernel, d))


@pytest.mark.parametrize("name", ["Matern 3/2", "sum with a level and a trend", "products with periodic and cosine"])
def test_paths_of_sparse_models_have_the_law_of_q(name):
    kernel, d = KERNELS[name]
    assert_law(sparse_gp(kernel, d))


@pytest.mark.parametrize("root", ["full", "tril", "diagonal", "point mass"])
@pytest.mark.parametrize("whitened", [False, True], ids=["unwhitened", "whitened"])
@pytest.mark.parametrize("jitter", [0.0, 0.1])
def test_every_form_of_q_gives_its_law(root, whitened, jitter):
    """The jitter is large, so that a law without its noise is found out."""
    gp = sparse_gp(K.Matern(2.5, 0.6), 2, root=root, whitened=whitened, jitter=jitter, mean=0.7)
    assert_law(gp, num_paths=2500)


@pytest.mark.parametrize("whitened", [False, True], ids=["unwhitened", "whitened"])
def test_draws_of_u_by_a_callable_give_the_law_of_what_it_draws(whitened):
    gaussian = sparse_gp(K.RBF(0.5), 2, whitened=whitened, mean=-0.5, jitter=0.05)
    q_mean, root = gaussian.q_mean, gaussian.q_scale_tril
    assert q_mean is not None and root is not None

    def sample_u(num_paths: int, generator: torch.Generator) -> Tensor:
        return q_mean + torch.randn(num_paths, len(q_mean), generator=generator, dtype=torch.float64) @ root.mT

    gp = SparseGP(K.RBF(0.5), gaussian.inducing_points, sample_u=sample_u, whitened=whitened, mean=-0.5, jitter=0.05)
    assert_law(gp, reference=gaussian)


FEATURES = ["cosine", "sincos", "sobol", "orthogonal", "equispaced", "auto"]


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("model", [exact_gp, sparse_gp], ids=["exact", "sparse"])
def test_every_basis_gives_the_law(features, model):
    domain = (-0.2, 1.2) if features in ("equispaced", "auto") else None
    tolerance = 1e-2 if features == "auto" else 1e-3  # fewer modes, and still far below what is seen here
    assert_law(model(K.Matern(1.5, 0.7), 2), features=features, domain=domain, tolerance=tolerance)


@pytest.mark.parametrize("features", ["cosine", "sincos", "sobol"])
def test_every_basis_gives_the_law_of_a_composition(features):
    kernel = K.RBF(0.5) * K.Matern(2.5, 1.0) + 0.5 * K.Periodic(1.2, 1.7) * K.Linear()
    assert_law(exact_gp(kernel, 1), features=features)


def test_equispaced_features_give_the_law_of_a_composition_of_stationary_kernels():
    kernel = K.RBF(0.5) * K.Matern(2.5, 1.0) + 0.5 * K.Periodic(1.2, 1.7)
    assert_law(exact_gp(kernel, 1), features="equispaced", domain=(-0.2, 1.2))


@pytest.mark.parametrize("num_features", [1, 2, 7])
def test_a_handful_of_features_gives_the_right_moments(num_features):
    """One feature a path is far from Gaussian, but over fresh bases the covariance is still unbiased."""
    gp, x = exact_gp(K.RBF(0.5), 1), points(4, 1, seed=6)
    f = draw(gp, 8000, num_features=num_features, paths_per_basis=1, features="sincos", generator=gen())(x)
    mean, cov = exact_moments(gp, x)
    assert_moments(f, mean, cov, basis_error=basis_error(num_features, num_bases=8000))


NOISES = {
    "one": 0.3,
    "one per point": torch.tensor([0.01, 0.5, 0.1, 1.0], dtype=torch.float64),
    "none": 0.0,
    "some without": torch.tensor([0.0, 0.5, 0.0, 0.2], dtype=torch.float64),
}
MEANS = {
    "constant": 2.0,
    "callable": lambda x: (3 * x[..., 0]).sin() + x[..., -1],
    "linear": LinearMean([1.5, -2.0], 0.5),
}


@pytest.mark.parametrize("noise", NOISES)
def test_noise_of_every_kind_gives_the_law(noise):
    assert_law(exact_gp(K.Matern(2.5, 0.6), 2, noise=NOISES[noise]))


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("model", [exact_gp, sparse_gp], ids=["exact", "sparse"])
def test_means_of_every_kind_give_the_law(mean, model):
    assert_law(model(K.RBF(0.6), 2, mean=MEANS[mean]), num_paths=2500)


def test_a_module_as_mean_gives_the_law():
    module = torch.nn.Linear(2, 1).double()
    same = exact_gp(K.RBF(0.6), 2, mean=lambda x: module(x)[..., 0])
    assert_law(exact_gp(K.RBF(0.6), 2, mean=module), reference=same, num_paths=2500)


def test_duplicate_data_with_noise_gives_the_law():
    X = points(3, 2, seed=1).repeat(2, 1)
    y = torch.randn(6, generator=gen(2), dtype=torch.float64)
    assert_law(ExactGP(K.RBF(0.5), X, y, 0.2))


def test_one_observation_and_one_inducing_point_give_the_law():
    assert_law(exact_gp(K.RBF(0.5), 1, n=1))
    assert_law(sparse_gp(K.RBF(0.5), 1, m=1))


def test_sixty_four_dimensions_give_the_law():
    assert_law(exact_gp(K.Matern(2.5, 3.0), 64), num_paths=2500)


def test_prior_paths_have_the_law_of_the_prior():
    kernel, x = K.RBF(0.5) * K.Linear() + K.Constant(0.3), points(5, 2, seed=6)
    f = draw_prior(kernel, NUM_PATHS, input_dim=2, mean=1.0, generator=gen(), **FRESH)(x)
    far = ExactGP(kernel, [[0.0, 0.0]], [0.0], 1e12, mean=1.0)  # an observation that says nothing
    mean, cov = exact_moments(far, x)
    assert_moments(f, mean, cov)
    assert_marginals_ks(f, mean, cov)


def test_paths_at_points_of_their_own_have_the_law():
    """The same points for each, so that the reference is the same; the evaluation is another."""
    gp, x = exact_gp(K.Matern(1.5, 0.6), 2), points(5, 2, seed=6)
    f = draw(gp, NUM_PATHS, generator=gen(), **FRESH)(x.expand(NUM_PATHS, -1, -1))
    mean, cov = exact_moments(gp, x)
    assert_moments(f, mean, cov)


def test_single_precision_has_the_law():
    assert_law(exact_gp(K.Matern(2.5, 0.5), 2), dtype=torch.float32)


# Several outputs.

B2 = torch.tensor([[1.0, 0.8], [0.8, 1.5]], dtype=torch.float64)
W3 = torch.tensor([[1.0, 0.2], [-0.5, 0.7], [0.3, -1.0]], dtype=torch.float64)
COUPLED = {
    "coregional": K.Coregional(K.RBF(0.5), B2),
    "of low rank": K.Coregional(K.Matern(1.5, 0.6), W3 @ W3.mT),
    "two latent processes": K.Coregional(K.RBF(0.3), B2) + K.Coregional(2.0 * K.Matern(2.5, 0.8), torch.eye(2)),
    "a process of all tasks": K.Coregional(K.RBF(0.4), B2) + 0.5 * K.Matern(1.5, 0.9),
    "product with a plain kernel": K.Coregional(K.RBF(0.6), B2) * K.Periodic(1.0, 0.9) + K.Coregional(K.Constant(), B2),
}


@pytest.mark.parametrize("name", COUPLED)
@pytest.mark.parametrize("model", ["exact", "sparse"])
def test_coupled_outputs_observed_at_different_points_have_the_law(name, model):
    kernel, n = COUPLED[name], 5
    X, tasks = points(n, 1, seed=1), torch.arange(n) ** 2 % kernel.num_outputs
    level = torch.arange(kernel.num_outputs, dtype=torch.float64)
    y = torch.randn(n, generator=gen(2), dtype=torch.float64)
    if model == "exact":
        gp = ExactGP(kernel, X, y, 0.1, mean=level, tasks=tasks)
    else:
        root = 0.4 * torch.randn(n, n, generator=gen(4), dtype=torch.float64)
        gp = SparseGP(kernel, X, y, root, mean=level, tasks=tasks, whitened=True, jitter=0.05)
    assert_law(gp, x=points(3, 1, seed=6), num_paths=3000)


def test_every_output_at_every_point_is_the_same_as_tasks():
    X, Y = points(3, 1, seed=1), torch.randn(3, 2, generator=gen(2), dtype=torch.float64)
    noise = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
    whole = ExactGP(COUPLED["coregional"], X, Y, noise)
    by_task = ExactGP(COUPLED["coregional"], X.repeat(2, 1), Y.mT.flatten(), noise.repeat(2), tasks=[0, 0, 0, 1, 1, 1])
    x = points(4, 1, seed=6)
    mean, cov = exact_moments(by_task, x)
    torch.testing.assert_close(draw(whole, 1).mean(x), mean, rtol=1e-8, atol=1e-8)
    assert_moments(draw(whole, NUM_PATHS, generator=gen(), **FRESH)(x), mean, cov)


# The checks above are worth something: each finds a mistake.


@pytest.mark.parametrize("name", ["RBF", "Matern 3/2", "Matern 5/2"])
def test_a_lengthscale_wrong_by_five_percent_is_found(name):
    """By the covariance alone: the reference's mean is right."""
    kernel, d = KERNELS[name]
    gp, x = exact_gp(kernel, d), points(5, d, seed=6)
    f = draw(gp, 4 * NUM_PATHS, generator=gen(), **FRESH)(x)  # with NUM_PATHS one seed of ten would not find it
    mean, _ = exact_moments(gp, x)
    for wrong in (0.95, 1.05):
        _, cov = exact_moments(exact_gp(kernel.mapped(lambda b, wrong=wrong: b * wrong), d), x)
        with pytest.raises(AssertionError, match="covariance"):
            assert_moments(f, mean, cov)


def test_noise_dropped_from_the_update_is_found(monkeypatch):
    monkeypatch.setattr(draw_module, "normals", lambda shape, _: torch.zeros(shape, dtype=torch.float64))
    with pytest.raises(AssertionError, match="covariance"):
        assert_law(exact_gp(K.Matern(2.5, 0.6), 2, noise=0.3))


def test_jitter_without_its_noise_is_found(monkeypatch):
    monkeypatch.setattr(sparse_module, "normals", lambda shape, _: torch.zeros(shape, dtype=torch.float64))
    with pytest.raises(AssertionError, match="covariance"):
        assert_law(sparse_gp(K.RBF(0.6), 2, jitter=0.1, root="point mass"))


def test_a_basis_shared_where_it_should_be_fresh_is_found():
    with pytest.raises(AssertionError, match="covariance"):
        assert_law(exact_gp(K.Matern(1.5, 0.6), 2), paths_per_basis=None, features="cosine")


def test_a_covariance_forgotten_in_q_is_found():
    with pytest.raises(AssertionError, match=r"mean|covariance"):
        assert_law(sparse_gp(K.RBF(0.6), 2), reference=sparse_gp(K.RBF(0.6), 2, root="point mass"))


def test_a_mean_that_is_added_but_never_subtracted_is_found():
    gp = exact_gp(K.RBF(0.6), 2, mean=0.3)
    wrong = exact_gp(K.RBF(0.6), 2, mean=0.3)
    wrong = wrong.replaced(train_targets=wrong.train_targets + 0.3)
    with pytest.raises(AssertionError, match="mean"):
        assert_law(gp, reference=wrong)


# Independence.


@cache
def pairs_of_paths(paths_per_basis: int, num_pairs: int = NUM_PATHS, **settings: Any) -> tuple[Tensor, Tensor]:
    """Neighbours in one large draw, less their mean: `[r, n]` each. Pairs share a basis where two paths do."""
    gp, x = exact_gp(K.RBF(0.5), 1), points(3, 1, seed=6)
    mean, _ = exact_moments(gp, x)
    settings = dict(num_features=1, features="cosine", paths_per_basis=paths_per_basis) | settings
    f = draw(gp, 2 * num_pairs, generator=gen(), **settings)(x) - mean
    return f[::2], f[1::2]


def test_two_paths_of_one_basis_are_uncorrelated_over_bases():
    assert_uncorrelated(*pairs_of_paths(2, 1000, features="auto", num_features=16))


@pytest.mark.parametrize("paths_per_basis", [1, 2])
def test_neighbours_are_uncorrelated_whether_or_not_they_share_a_basis(paths_per_basis):
    assert_uncorrelated(*pairs_of_paths(paths_per_basis))


def test_with_a_basis_each_paths_are_independent_and_with_a_shared_one_not():
    """Independent variables have uncorrelated squares; paths that share a small random basis share its variance."""
    alone, shared = pairs_of_paths(1), pairs_of_paths(2)
    centred = [[f.square() - f.square().mean(0) for f in pair] for pair in (alone, shared)]
    assert_uncorrelated(*centred[0])
    with pytest.raises(AssertionError):
        assert_uncorrelated(*centred[1])


@pytest.mark.parametrize("model", [exact_gp, sparse_gp], ids=["exact", "sparse"])
def test_weights_noise_and_frequencies_are_drawn_apart(model):
    """Over a basis per path: w with the noise (or with u), frequencies with w, frequencies with the noise."""
    gp = model(K.Matern(1.5, 0.6), 1)
    paths = draw(gp, NUM_PATHS, num_features=6, features="cosine", paths_per_basis=1, generator=gen())
    (basis,) = paths.prior.features.bases
    w, theta, tau = paths.prior.weights, basis.frequencies[..., 0].clamp(-20, 20), basis.phases
    Z = gp.train_inputs if isinstance(gp, ExactGP) else gp.inducing_points
    # What the update adds to a path at its centres holds the noise (or u); less the prior path it is independent of it.
    noise = paths.update.xi if isinstance(gp, ExactGP) else paths(Z) - paths.mean(Z)
    drawn = {"w": w, "theta": theta, "tau": tau - tau.mean(), "noise": noise}
    for a, b in [("w", "noise"), ("w", "theta"), ("w", "tau"), ("theta", "noise"), ("theta", "tau"), ("tau", "noise")]:
        assert_uncorrelated(drawn[a], drawn[b])
