"""Variances of the posterior itself: exact, or an estimate from the paths with its error."""

import pytest
import torch

import matheron
from examples import gen, model, rand, randn
from matheron import kernels as K
from matheron import observe
from matheron.models.transforms import Exp
from matheron.solvers import Cholesky
from standard import exact_moments

KEEP = dict(num_features=16, solver=Cholesky(keep=True))


def drawn(gp, s=3):
    return matheron.draw(gp, s, generator=gen(7), **KEEP)  # type: ignore[arg-type]


@pytest.mark.parametrize("settings", [KEEP, {}, dict(solver="cg")])
@pytest.mark.parametrize("name", ["exact", "exact, composite", "exact, coupled", "exact, transforms"])
def test_the_variance_is_the_closed_form_whatever_the_draw_kept(name, settings):
    gp, x = model(name), rand(7, 2)
    inner = x if gp.input_transform is None else gp.input_transform(x)
    scale = 3.0 if gp.output_transform is not None else 1.0  # of the example's output transform
    mean, cov = exact_moments(gp, inner)
    expected = scale**2 * cov.diagonal().reshape(mean.shape)
    paths = matheron.draw(gp, 3, seed=0, **settings)
    torch.testing.assert_close(paths.variance(x), expected, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(paths.std(x), expected.sqrt(), rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(paths[1].variance(x), expected, rtol=1e-8, atol=1e-10)


def test_the_variance_of_paths_given_more_data_is_that_of_all_the_data():
    gp, new, x = model("exact"), rand(4, 2, seed=9), rand(6, 2)
    given = drawn(gp).condition_on(new, randn(4), noise=0.2, generator=gen())
    X, noise = torch.cat([gp.train_inputs, new]), torch.cat([gp.noise, torch.full((4,), 0.2, dtype=torch.float64)])
    whole = matheron.ExactGP(gp.kernel, X, torch.zeros(len(X), dtype=torch.float64), noise)
    torch.testing.assert_close(given.variance(x), exact_moments(whole, x)[1].diagonal(), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", ["sparse", "sparse, whitened, composite", "sparse, coupled"])
def test_the_variance_of_a_sparse_posterior_is_the_closed_form_and_more_data_reduce_it(name):
    gp, x, new = model(name), rand(6, 2), rand(2, 2, seed=3)
    mean, cov = exact_moments(gp, torch.cat([x, new]))
    t = gp.num_outputs
    paths, variance = matheron.draw(gp, 3, seed=0), cov.diagonal().reshape(mean.shape)[:6]
    torch.testing.assert_close(paths.variance(x), variance, rtol=1e-7, atol=1e-9)
    given = paths.condition_on(new, randn(*mean[6:].shape), noise=0.2, seed=1)
    A = torch.linalg.solve(cov[-2 * t :, -2 * t :] + 0.2 * torch.eye(2 * t), cov[-2 * t :, : -2 * t])
    left = (cov[: -2 * t, : -2 * t] - cov[: -2 * t, -2 * t :] @ A).diagonal().reshape(variance.shape)
    torch.testing.assert_close(given.variance(x), left, rtol=1e-7, atol=1e-9)
    assert (left < variance).all()


def test_the_factor_is_made_once_and_again_where_there_are_more_data(monkeypatch):
    gp, x, made = model("exact"), rand(6, 2), []
    paths = matheron.draw(gp, 3, seed=0)
    factored = Cholesky.init
    monkeypatch.setattr(Cholesky, "init", lambda solver, operator: made.append(solver) or factored(solver, operator))
    first = paths.variance(x)
    torch.testing.assert_close(paths.variance(x[:2]), first[:2])
    assert len(made) == 1
    paths.condition_on(x[:1], [0.0], noise=0.1).std(x)
    assert len(made) == 3  # to condition, and for the variance


def test_beyond_some_thousand_data_variances_are_by_solves(monkeypatch):
    monkeypatch.setattr("matheron.paths.posterior.variance_solver", lambda n: matheron.solvers.PCG(tolerance=1e-3))
    X, x = rand(300, 2, seed=1), rand(9, 2)
    gp = matheron.ExactGP(K.Matern(1.5, 0.3), X, X[:, 0], 1e-3)
    expected = matheron.samplers.moments(gp, x).covariance.diagonal()
    torch.testing.assert_close(matheron.draw(gp, 2, seed=0).variance(x), expected, rtol=0.01, atol=0)


def test_the_variance_in_single_precision_has_its_digits():
    X, x = rand(200, 2, seed=1), rand(9, 2)
    gp = matheron.ExactGP(K.Matern(2.5, 0.5), X, X[:, 0], 1e-6)
    expected = matheron.samplers.moments(gp, x).covariance.diagonal()
    paths = matheron.draw(gp, 2, seed=0, dtype=torch.float32)
    torch.testing.assert_close(paths.variance(x), expected.float(), rtol=1e-3, atol=0)


@pytest.mark.parametrize(("d", "lengthscale", "noise"), [(1, 0.2, 1e-2), (1, 0.05, 1e-3), (2, 0.4, 1e-2)])
def test_on_a_lattice_the_variance_is_within_its_tolerance_also_given_more_data(d, lengthscale, noise):
    X, x, box = rand(600, d, seed=1), rand(9, d, seed=2), ([0.0] * d, [1.0] * d)
    whole = matheron.ExactGP(3.0 * K.Matern(2.5, lengthscale), X, X[:, 0], noise)
    part = matheron.ExactGP(whole.kernel, X[:300], X[:300, 0], noise)
    paths = matheron.draw(part, 2, seed=0, domain=box, solver="lattice")
    more = paths.condition_on(X[300:], X[300:, 0], noise=noise, seed=1)
    for gp, of in ((part, paths), (whole, more), (part, paths[1])):
        expected = matheron.samplers.moments(gp, x).covariance.diagonal()
        torch.testing.assert_close(of.variance(x), expected, rtol=0.01, atol=0)
        torch.testing.assert_close(of.std(x), expected.sqrt(), rtol=0.005, atol=0)


def test_on_a_lattice_coupled_outputs_have_their_variances_and_too_many_points_are_refused():
    kernel, X = K.Coregional(K.Matern(2.5, 0.3), [[1.0, 0.5], [0.5, 2.0]]), rand(200, 1, seed=1)
    gp = matheron.ExactGP(kernel, X, X[:, 0], 0.05, tasks=[0, 1] * 100)
    paths, x = matheron.draw(gp, 2, seed=0, domain=(0, 1), solver="lattice"), rand(5, 1)
    expected = matheron.samplers.moments(gp, x).covariance.reshape(10, 10).diagonal().reshape(5, 2)
    torch.testing.assert_close(paths.variance(x), expected, rtol=0.01, atol=0)
    with pytest.raises(TypeError, match="ask for fewer at a time, or use samples=True"):
        paths.variance(rand(10_000_000, 1))


def test_a_batch_has_its_members_variances():
    paths = matheron.draw(matheron.Batch([model("exact"), model("exact, composite")]), 3, seed=0)
    x = rand(4, 2)
    torch.testing.assert_close(paths.variance(x), torch.stack([member.variance(x) for member in paths.members]))
    torch.testing.assert_close(paths.std(x), paths.variance(x).sqrt())


def test_joined_paths_have_the_variance_of_their_members():
    x, one, two = rand(5, 2), model("exact"), model("exact, composite")
    outputs = drawn(matheron.Outputs([one, two]))
    each = [exact_moments(gp, x) for gp in (one, two)]
    expected = torch.stack([cov.diagonal() for _, cov in each], dim=-1)
    torch.testing.assert_close(outputs.variance(x), expected, rtol=1e-8, atol=1e-10)
    ensemble = drawn(matheron.Ensemble([one, two]), 4)  # two paths of each: the mixture's
    means = torch.stack([mean for mean, _ in each])
    mixture = expected.mean(-1) + means.var(0, unbiased=False)
    torch.testing.assert_close(ensemble.variance(x), mixture, rtol=1e-8, atol=1e-10)
    selected = drawn(matheron.SelectedOutputs(model("exact, coupled"), [1]))
    whole = drawn(model("exact, coupled"))
    torch.testing.assert_close(selected.variance(x), whole.variance(x)[:, 1])


def test_the_estimate_is_within_its_error_and_needs_no_factor():
    gp, x = model("exact"), rand(5, 2)
    paths = matheron.draw(gp, 4000, num_features=512, generator=gen(), paths_per_basis=8)
    value, error = paths.variance(x, samples=True)
    exact = exact_moments(gp, x)[1].diagonal()
    assert ((value - exact).abs() < 5 * error).all() and (error < 0.05 * exact).all()
    deviation, error = paths.std(x, samples=True)
    assert ((deviation - exact.sqrt()).abs() < 5 * error).all()
    torch.testing.assert_close(deviation, value.sqrt())


def test_what_has_no_closed_form_says_what_to_do():
    x = rand(3, 2)
    draws = matheron.SparseGP(K.RBF(0.5), rand(3, 2), sample_u=lambda s, generator: torch.zeros(s, 3))
    with pytest.raises(TypeError, match=r"known by its draws alone \(sample_u\); use samples=True"):
        matheron.draw(draws, 3).variance(x)
    bent = matheron.ExactGP(model("exact").kernel, rand(4, 2), randn(4), 0.1, output_transform=Exp())
    paths = drawn(bent, 50)
    with pytest.raises(TypeError, match="samples=True"):
        paths.variance(x)
    assert (paths.variance(x, samples=True).value > 0).all()
    linear = matheron.samplers.weight_space(model("exact"), 5, num_features=16)
    with pytest.raises(TypeError, match="samples=True"):
        linear.std(x)
    with pytest.raises(ValueError, match="at least two paths, got 1"):
        linear[0].variance(x, samples=True)
    with pytest.raises(ValueError, match=r"variance: expected points \[n, 2\]"):
        paths.variance(rand(50, 3, 2))


STENCIL = torch.tensor([[-2, 1 / 12], [-1, -8 / 12], [1, 8 / 12], [2, -1 / 12]], dtype=torch.float64)


def slope_variance(covariance_at, x: torch.Tensor, dim: int, t: int, h: float = 2e-2) -> torch.Tensor:
    """The variance `[n, t]` of df/dx_dim by difference quotients of a covariance `[p t, p t]` of values at p points."""
    axis = torch.eye(x.shape[1], dtype=x.dtype)[dim]
    rows = []
    for at in x:
        C = covariance_at(at + h * STENCIL[:, :1] * axis).reshape(4, t, 4, t)
        rows.append(torch.einsum("a,aibi,b->i", STENCIL[:, 1] / h, C, STENCIL[:, 1] / h))
    return torch.stack(rows)


SMOOTH = {
    "exact": K.Matern(3.5, 0.9),
    "exact, composite": K.RBF(0.9) * K.Linear() + 0.5 * K.RBF(0.7),
    "exact, coupled": K.Coregional(K.RBF(0.9), [[1.0, 0.5], [0.5, 2.0]]),
    "exact, transforms": K.RBF(0.9),
    "sparse": K.RBF(0.9),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_the_variance_of_a_derivative_is_that_of_difference_quotients_in_the_closed_form(name):
    gp, x = model(name).replaced(kernel=SMOOTH[name]), rand(5, 2)
    paths, t = matheron.draw(gp, 3, seed=0), gp.num_outputs
    whole = paths.gradient().variance(x).reshape(5, t, 2)
    for dim in range(2):
        expected = slope_variance(lambda at: matheron.samplers.moments(gp, at).covariance, x, dim, t)
        torch.testing.assert_close(whole[..., dim], expected, rtol=1e-4, atol=1e-6)
        twice = (2 * paths).derivative(dim).std(x).reshape(5, t)
        torch.testing.assert_close(twice, 2 * expected.sqrt(), rtol=1e-4, atol=1e-6)


def test_the_variance_of_a_second_derivative_given_slopes_is_that_of_the_dense_formulas():
    X, x = rand(6, 2), rand(5, 2, seed=1)
    blocks = [observe.value(X), observe.gradient(X[:3])]
    gp = matheron.ExactGP(K.RBF(0.5), blocks, [torch.zeros(6), torch.zeros(3, 2)], 1e-2)
    expected = matheron.samplers.moments(gp, observe.derivative(x, (0, 1))).covariance.diagonal()
    paths = matheron.draw(gp, 3, seed=0)
    torch.testing.assert_close(paths.derivative(0).derivative(1).variance(x), expected, rtol=1e-7, atol=1e-9)
    assert paths.derivative(0).std(X[:3]).max() < 0.1 < paths.derivative(0).std(x + 3).min()


def test_the_variance_of_a_derivative_on_a_lattice_is_the_closed_form_to_its_tolerance():
    gp, x = model("exact").replaced(kernel=K.RBF(0.5)), rand(5, 2)
    expected = matheron.draw(gp, 2).derivative(0).variance(x)
    on_lattice = matheron.draw(gp, 2, solver="lattice", domain=(-1, 2))
    torch.testing.assert_close(on_lattice.derivative(0).variance(x), expected, rtol=0.02, atol=0)


@pytest.mark.parametrize(
    ("functions", "match"),
    [
        (lambda: matheron.draw(model("exact").replaced(output_transform=Exp()), 2), "output transform"),
        (lambda: matheron.draw(model("exact").replaced(kernel=K.Matern(0.5)), 2), "smoother kernel"),
        (lambda: matheron.draw(model("exact").replaced(kernel=K.RBF()), 2).exp(), "samples=True"),
    ],
)
def test_variances_of_derivatives_that_are_not_known_are_refused(functions, match):
    with pytest.raises(TypeError, match=match):
        functions().derivative(0).variance(rand(3, 2))
