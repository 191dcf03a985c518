import math

import pytest
import torch

import matheron
from matheron import (
    Batch,
    Diagnosis,
    Ensemble,
    ExactGP,
    Outputs,
    SelectedOutputs,
    SparseGP,
    diagnose,
    kernels,
)
from matheron.compare.metrics import empirical_moments, gaussian_wasserstein, kernel_error
from matheron.compare.samplers import decoupled_moments, location_scale, moments, orthogonal, weight_space
from matheron.models import transforms


def points(n, d, seed=0):
    return torch.rand(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def model(d=4, n=20):
    X = points(n, d)
    return ExactGP(kernels.Matern(2.5, 0.3), X, (3 * X).sin().sum(1), 1e-3)


def basis(found: Diagnosis):
    """The law that the basis implies, which these tests expect to be known."""
    assert found.basis is not None
    return found.basis


X_TEST = points(40, 4, seed=1)


def test_the_numbers_are_the_metrics(generator):
    gp = model()
    paths = matheron.draw(gp, 200, num_features=128, generator=generator)
    found = diagnose(paths, gp, X_TEST)
    truth = moments(gp, X_TEST)
    drawn, implied = empirical_moments(paths, X_TEST), decoupled_moments(gp, paths, X_TEST)
    assert found.paths.w2 == pytest.approx(gaussian_wasserstein(*drawn, *truth))
    assert basis(found).w2 == pytest.approx(gaussian_wasserstein(*implied, *truth))
    assert found.paths.mean_error == pytest.approx(float((drawn.mean - truth.mean).square().mean().sqrt()))
    assert basis(found).mean_error < 1e-10  # the mean is exact, whatever the basis
    relative = (drawn.covariance - truth.covariance).norm() / truth.covariance.norm()
    assert found.paths.covariance_error == pytest.approx(float(relative))
    assert found.kernel_error == pytest.approx(kernel_error(paths, gp.kernel, X_TEST))
    assert found.spread == pytest.approx(float(truth.covariance.trace().sqrt()))
    values = torch.linalg.eigvalsh(truth.covariance)
    assert found.effective_rank == pytest.approx(float(values.sum() ** 2 / values.square().sum()))
    assert (found.num_paths, found.num_values, found.num_features, found.num_bases) == (200, 40, 128, 4)


def test_the_floor_is_that_of_exact_draws(generator):
    """W2 of s exact draws falls with their root, and exact draws reach it."""
    gp = model()
    floors = [diagnose(matheron.draw(gp, s, num_features=8), gp, X_TEST).floor.w2 for s in (500, 8000)]
    assert floors[0] / floors[1] == pytest.approx(4, rel=0.1)
    draws = location_scale(gp, 500, generator=generator)
    measured = gaussian_wasserstein(*empirical_moments(draws, X_TEST), *moments(gp, X_TEST))
    assert floors[0] == pytest.approx(measured, rel=0.1)


def test_it_is_repeatable():
    gp = model()
    paths = matheron.draw(gp, 10, num_features=8)
    assert diagnose(paths, gp, X_TEST) == diagnose(paths, gp, X_TEST)


def test_it_prints_a_table_the_floor_and_advice(generator):
    gp = model()
    found = diagnose(matheron.draw(gp, 64, generator=generator), gp, X_TEST)
    text = str(found)
    for part in (
        "2-Wasserstein",
        "these paths",
        "exact draws",
        "their bases",
        "one basis",
        "effective rank",
        "kernel, RMS error",
    ):
        assert part in text
    assert f"{found.paths.w2:.3g}" in text and "Monte Carlo floor: 64 draws" in text
    assert found.advice.split(":")[0] in text


def test_a_good_draw_is_called_good(generator):
    gp = model()
    found = diagnose(matheron.draw(gp, 64, num_features=4096, generator=generator), gp, X_TEST)
    assert found.advice.startswith("Good enough") and basis(found).w2 < found.floor.w2


PLAIN = {  # dimensions, data, kernel, noise: where plain features err, relative to what the data leave open
    "one dimension": (1, 20, kernels.Matern(2.5, 0.3), 1e-4),
    "two": (2, 30, kernels.Matern(1.5, 1.2), 1e-6),
    "four": (4, 100, kernels.Matern(2.5, 0.5), 1e-6),
    "a small term": (1, 60, kernels.RBF(1.0) + 1e-3 * kernels.Matern(1.5, 0.05), 1e-5),
}


def problem(name: str) -> tuple[ExactGP, torch.Tensor]:
    d, n, kernel, noise = PLAIN[name]
    X = points(n, d, seed=3)
    return ExactGP(kernel, X, torch.sin(4 * X.sum(1)), noise), points(60, d, seed=4)


@pytest.mark.parametrize("name", PLAIN)
def test_plain_features_do_not_pass_where_data_leave_little(name):
    gp, x = problem(name)
    found = diagnose(matheron.draw(gp, 8, features="cosine", seed=0), gp, x)
    assert not found.advice.startswith("Good enough") and found.settings


@pytest.mark.parametrize("name", PLAIN)
def test_advice_followed_passes(name):
    gp, x = problem(name)
    found = diagnose(matheron.draw(gp, 64, features="cosine", num_features=256, seed=0), gp, x)
    again = diagnose(matheron.draw(gp, 64, seed=1, **found.settings), gp, x)
    assert again.advice.startswith("Good enough")


@pytest.mark.filterwarnings("ignore::matheron.SpreadWarning")
@pytest.mark.parametrize("settings", [{}, {"domain": ([0.0, 0.0], [1.0, 1.0])}])
def test_paths_given_more_data_than_their_basis_was_chosen_for_are_to_be_drawn_again_or_refreshed(settings):
    X, x, kernel = points(305, 2), points(60, 2, seed=4), kernels.Matern(2.5, 0.3)
    gp = ExactGP(kernel, X, torch.sin(7 * X).sum(1), 1e-6)
    few = matheron.draw(ExactGP(kernel, X[:5], gp.train_targets[:5], 1e-6), 32, seed=0, **settings)
    found = diagnose(few.condition_on(X[5:], gp.train_targets[5:], noise=1e-6, seed=1), gp, x)
    assert found.advice.startswith("Draw again: the basis was chosen given 5 of these 305 observations")
    assert "paths.refreshed(keep=points, where=x)" in found.advice and "domain" not in found.settings
    assert diagnose(matheron.draw(gp, 32, seed=1, **found.settings), gp, x).advice.startswith("Good enough")
    fresh = few.refreshed(points(10, 2, seed=5), where=X[5:], seed=2)
    fresh = fresh.condition_on(X[5:], gp.train_targets[5:], noise=1e-6, seed=1)
    assert diagnose(fresh, gp, x).advice.startswith("Good enough")


def test_good_enough_gets_no_easier_with_fewer_paths():
    gp, x = problem("four")
    errors = []
    for s in (4, 64, 512):
        found = diagnose(matheron.draw(gp, s, paths_per_basis=4, features="sobol", num_features=256, seed=0), gp, x)
        errors.append(basis(found).w2 / found.spread)
    assert errors == sorted(errors, reverse=True)


def test_one_basis_and_all_together_are_told_apart(generator):
    gp = model()
    found = diagnose(matheron.draw(gp, 64, num_features=32, paths_per_basis=1, generator=generator), gp, X_TEST)
    assert found.one_basis is not None and basis(found).w2 < 0.4 * found.one_basis.w2
    shared = diagnose(matheron.draw(gp, 64, num_features=32, paths_per_basis=None, generator=generator), gp, X_TEST)
    assert shared.one_basis == shared.basis


def test_in_few_dimensions_a_lattice_is_better(generator):
    gp, x = problem("one dimension")
    random = diagnose(matheron.draw(gp, 40, num_features=256, features="sobol", generator=generator), gp, x)
    assert random.advice.startswith("Other features: a lattice")
    paths = matheron.draw(gp, 40, generator=generator, **random.settings)
    assert basis(diagnose(paths, gp, x)).w2 < 0.2 * basis(random).w2


def test_too_few_modes_should_be_more_and_the_lattice_s_record_is_shown(generator):
    gp, x = model(d=1), points(40, 1, seed=1)
    paths = matheron.draw(gp, 4000, num_features=9, features="equispaced", domain=(0.0, 1.0), generator=generator)
    few = diagnose(paths, gp, x)
    assert few.advice.startswith("More modes: draw with features=")
    paths = matheron.draw(gp, 4000, generator=generator, **few.settings)
    many = diagnose(paths, gp, x)
    assert many.advice.startswith("Good enough")
    assert basis(many).w2 < 0.1 * basis(few).w2
    assert paths.prior.features.description in str(many).replace("\n", " ")


def test_a_weight_space_posterior_is_found_out(generator):
    X = points(400, 4)
    gp = ExactGP(kernels.Matern(2.5, 0.3), X, X.sum(1), 1e-3)
    ours = diagnose(matheron.draw(gp, 2000, num_features=256, generator=generator), gp, X_TEST)
    theirs = diagnose(weight_space(gp, 2000, num_features=256, generator=generator), gp, X_TEST)
    assert basis(theirs).w2 > 2 * basis(ours).w2 and basis(theirs).mean_error > 0.01
    assert theirs.paths.w2 == pytest.approx(basis(theirs).w2, rel=0.1)
    assert theirs.advice.startswith("Another sampler")
    followed = matheron.draw(gp, 2000, generator=generator, **theirs.settings)
    assert diagnose(followed, gp, X_TEST).advice.startswith("Good enough")


@pytest.mark.parametrize("whitened", [False, True])
def test_sparse_models_are_diagnosed(whitened, generator):
    Z = points(10, 4)
    gp = SparseGP(kernels.RBF(0.5), Z, Z.sum(1), 0.2 * torch.ones(10), whitened=whitened, jitter=1e-4)
    found = diagnose(matheron.draw(gp, 400, generator=generator), gp, X_TEST)
    assert basis(found).w2 < found.paths.w2 < 1.5 * found.floor.w2
    other = diagnose(orthogonal(gp, 400, generator=generator), gp, X_TEST)
    assert other.basis is None and "-" in str(other)


def test_several_outputs_are_diagnosed(generator):
    X = points(10, 4)
    kernel = kernels.Coregional(kernels.RBF(0.5), [[1.0, 0.8], [0.8, 1.0]])
    gp = ExactGP(kernel, X, torch.stack([X.sum(1), X.prod(1)], dim=1), 0.01)
    found = diagnose(matheron.draw(gp, 400, generator=generator), gp, X_TEST)
    assert found.num_values == 80 and found.basis is not None
    assert basis(found).w2 < found.paths.w2 < 1.5 * found.floor.w2
    some = SelectedOutputs(gp, [1])
    one = diagnose(matheron.draw(some, 400, generator=generator), some, X_TEST)
    assert one.num_values == 40 and basis(one).w2 < one.paths.w2 < 1.5 * one.floor.w2


def test_independent_outputs_and_ensembles_are_diagnosed(generator):
    a, b = model(), ExactGP(kernels.RBF(0.5), points(9, 4), torch.zeros(9), 0.01)
    outputs = diagnose(matheron.draw(Outputs([a, b]), 400, generator=generator), Outputs([a, b]), X_TEST)
    assert outputs.num_values == 80 and outputs.basis is not None and outputs.paths.w2 < 1.5 * outputs.floor.w2
    assert outputs.kernel_error is not None
    ensemble = diagnose(matheron.draw(Ensemble([a, b]), 400, generator=generator), Ensemble([a, b]), X_TEST)
    assert ensemble.basis is None and ensemble.kernel_error is None and ensemble.paths.w2 < 1.5 * ensemble.floor.w2


def test_transforms_are_seen_through(generator):
    gp = model()
    plain = diagnose(matheron.draw(gp, 50, generator=torch.Generator().manual_seed(0)), gp, X_TEST)
    gp = gp.replaced(output_transform=transforms.Affine(10.0, 3.0))
    scaled = diagnose(matheron.draw(gp, 50, generator=torch.Generator().manual_seed(0)), gp, X_TEST)
    assert scaled.paths.w2 == pytest.approx(10 * plain.paths.w2)
    gp = gp.replaced(output_transform=transforms.Exp())  # compared in the model's own space
    curved = diagnose(matheron.draw(gp, 50, generator=torch.Generator().manual_seed(0)), gp, X_TEST)
    assert curved.paths.w2 == pytest.approx(plain.paths.w2)


def test_paths_given_more_data_since_have_no_implied_law(generator):
    gp = model()
    paths = matheron.draw(gp, 50, generator=generator).condition_on(points(2, 4, seed=5), [0.0, 0.0], noise=0.1)
    assert diagnose(paths, gp, X_TEST).basis is None


def test_a_posterior_without_variance_is_no_obstacle(generator):
    gp = ExactGP(kernels.RBF(0.5), points(5, 4), torch.zeros(5), 0.0)
    found = diagnose(matheron.draw(gp, 10, generator=generator), gp, gp.train_inputs)
    assert found.spread < 1e-6 and math.isfinite(found.paths.w2)
    assert "2-Wasserstein" in str(found)


def test_what_cannot_be_compared_is_refused():
    gp = model()
    paths = matheron.draw(gp, 10, num_features=8)
    with pytest.raises(ValueError, match="expected paths of this model, 1 outputs in 2 dimensions"):
        diagnose(paths, model(d=2), points(4, 2))
    with pytest.raises(ValueError, match="expected at least two paths"):
        diagnose(paths[0], gp, X_TEST)
    with pytest.raises(ValueError, match="expected 1 to 4096 values"):
        diagnose(paths, gp, points(5000, 4))
    with pytest.raises(TypeError, match="got a batch"):
        diagnose(paths, Batch([gp, gp]), X_TEST)
    with pytest.raises(TypeError, match=r"paths: expected paths of one model, got a batch of 2 models; ask each of"):
        diagnose(matheron.draw(Batch([gp, gp]), 10, num_features=8), gp, X_TEST)  # type: ignore[arg-type]
