"""The same draw, given more data."""

import importlib
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from examples import ALL, COUPLED, LAYOUTS, MODELS, gen, model, paths_of, rand, randn
from matheron import ExactGP, Paths, SparseGP, draw, draw_prior, load
from matheron import kernels as K
from matheron.models.transforms import Affine, Exp
from matheron.solvers import Cholesky
from standard import assert_marginals_ks, assert_moments, exact_moments

draw_module = importlib.import_module("matheron.drawing")
CLOSE: dict[str, Any] = dict(rtol=1e-7, atol=1e-7)
NEW_X = rand(3, 2, seed=20)
AT = rand(6, 2, seed=21)


def new_y(paths: Paths, seed: int = 22) -> Tensor:
    """Targets for NEW_X, `[3]` or `[3, t]`."""
    return randn(3, *(() if paths.num_outputs == 1 else (paths.num_outputs,)), seed=seed)


# The same draw.


@pytest.mark.parametrize("noise", [0.0, 0.2, torch.tensor([0.0, 0.1, 0.3])], ids=["none", "one", "one per point"])
@pytest.mark.parametrize("mean", [0.0, 2.0])
def test_the_result_is_a_fresh_draw_of_the_larger_model_with_the_same_weights_and_noise(noise, mean, monkeypatch):
    kernel = K.Matern(2.5, 0.5)
    X, y, y_new = rand(4, 2, seed=1), randn(4, seed=2), randn(3, seed=3)
    features = draw_prior(kernel, 4, input_dim=2, num_features=32, paths_per_basis=2, generator=gen(4)).prior.features
    settings: dict[str, Any] = dict(features=features, paths_per_basis=2)
    small = draw(ExactGP(kernel, X, y, 0.1, mean=mean), 4, generator=gen(5), **settings)
    given = small.condition_on(NEW_X, y_new, noise=noise, generator=gen(6))
    xi = torch.cat([small.update.xi, randn(4, 3, seed=6)], dim=1)
    monkeypatch.setattr(draw_module, "normals", lambda shape, generator: xi)
    noises = torch.cat([torch.full((4,), 0.1), torch.as_tensor(noise).expand(3)])
    large = ExactGP(kernel, torch.cat([X, NEW_X]), torch.cat([y, y_new]), noises, mean=mean)
    fresh = draw(large, 4, generator=gen(5), **settings)
    assert torch.equal(fresh.prior.weights, given.prior.weights)
    torch.testing.assert_close(given(AT), fresh(AT), **CLOSE)
    torch.testing.assert_close(given.mean(AT), exact_moments(large, AT)[0], **CLOSE)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ALL)
def test_paths_pass_through_new_noise_free_points(name, layout):
    paths = paths_of(name, 5, layout=layout)
    before, y = paths(AT), new_y(paths)
    given = paths.condition_on(NEW_X, y, noise=0.0)
    torch.testing.assert_close(given(NEW_X), y.expand(5, *y.shape), **CLOSE)
    torch.testing.assert_close(given.mean(NEW_X), y, **CLOSE)
    assert torch.equal(paths(AT), before), "the old paths changed"
    assert given.num_paths == 5 and not torch.allclose(given(AT), before)


@pytest.mark.parametrize("name", ALL)
def test_what_a_path_already_says_changes_nothing(name):
    """Each path conditioned on its own values is itself: the update has no residual to add."""
    paths = paths_of(name, 5)
    same = paths.condition_on(NEW_X, paths(NEW_X), noise=0.0)
    torch.testing.assert_close(same(AT), paths(AT), **CLOSE)
    assert same.mean(AT).shape == paths(AT).shape  # with targets of their own they have means of their own


@pytest.mark.parametrize("name", ["prior", "exact", "sparse", "exact, coupled"])
def test_far_from_all_data_nothing_changes(name):
    """And near it something does: the residual travels as the kernel does."""
    kernel_free = paths_of(name, 4)
    if name == "prior":
        kernel_free = draw_prior(K.RBF(0.3), 4, input_dim=2, generator=gen())
    given = kernel_free.condition_on(NEW_X, new_y(kernel_free), noise=0.01)
    far = NEW_X + 100.0
    torch.testing.assert_close(given(far), kernel_free(far), rtol=1e-9, atol=1e-9)
    assert (given(NEW_X) - kernel_free(NEW_X)).abs().max() > 0.1


def test_prior_paths_given_data_are_posterior_paths(monkeypatch):
    kernel, X, y = K.Matern(1.5, 0.4), rand(5, 2, seed=1), randn(5, seed=2)
    prior = draw_prior(kernel, 3, input_dim=2, num_features=16, generator=gen(1))
    given = prior.condition_on(X, y, noise=0.1, generator=gen(2))
    monkeypatch.setattr(draw_module, "normals", lambda shape, generator: randn(*shape, seed=2))
    fresh = draw(ExactGP(kernel, X, y, 0.1), 3, features=prior.prior.features, generator=gen(0))
    difference = fresh(AT) - given(AT)
    w = fresh.prior.weights - prior.prior.weights  # the only thing in which the two draws differ
    Phi = prior.prior.features(torch.cat([AT, X]))[0]  # [n, ell]
    K_nn = kernel(X) + 0.1 * torch.eye(5)
    expected = w @ (Phi[:6] - kernel(AT, X) @ torch.linalg.solve(K_nn, Phi[6:])).mT
    torch.testing.assert_close(difference, expected, **CLOSE)


# Repeated calls, repeated points.


@pytest.mark.parametrize("name", ALL)
def test_two_calls_are_one_call(name):
    paths = paths_of(name, 4)
    y = new_y(paths)
    once = paths.condition_on(NEW_X, y, noise=0.0)
    twice = paths.condition_on(NEW_X[:1], y[:1], noise=0.0).condition_on(NEW_X[1:], y[1:], noise=0.0)
    torch.testing.assert_close(twice(AT), once(AT), **CLOSE)
    torch.testing.assert_close(twice.mean(AT), once.mean(AT), **CLOSE)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ALL)
def test_repeated_points_are_fine(name):
    """The same noise-free point twice, in one call and in two, says the same once: no jitter, no warning."""
    paths = paths_of(name, 4)
    y = new_y(paths)
    once = paths.condition_on(NEW_X, y, noise=0.0)
    again = once.condition_on(NEW_X, y, noise=0.0)
    together = paths.condition_on(NEW_X.repeat(2, 1), torch.cat([y, y]), noise=0.0)
    torch.testing.assert_close(again(AT), once(AT), **CLOSE)
    torch.testing.assert_close(together(AT), once(AT), **CLOSE)


def test_many_calls_stay_accurate():
    """As in Bayesian optimisation: one point a call, each passed through, none forgotten."""
    paths = draw_prior(K.Matern(2.5, 0.4), 3, input_dim=2, num_features=64, generator=gen())
    X, y = rand(15, 2, seed=1), randn(15, seed=2)
    for i in range(15):
        paths = paths.condition_on(X[i : i + 1], y[i : i + 1], noise=0.0)
    torch.testing.assert_close(paths(X), y.expand(3, -1), **CLOSE)
    torch.testing.assert_close(paths.mean(AT), exact_moments(ExactGP(K.Matern(2.5, 0.4), X, y, 0.0), AT)[0], **CLOSE)


def test_the_same_point_with_noise_counts_each_time():
    gp = model("exact")
    given = draw(gp, 1).condition_on(NEW_X[:1].repeat(3, 1), [1.0, 2.0, 3.0], noise=0.5)
    X = torch.cat([gp.train_inputs, NEW_X[:1].repeat(3, 1)])
    y = torch.cat([gp.train_targets, torch.tensor([1.0, 2.0, 3.0])])
    larger = ExactGP(gp.kernel, X, y, torch.cat([gp.noise, torch.full((3,), 0.5)]))
    torch.testing.assert_close(given.mean(AT), exact_moments(larger, AT)[0], **CLOSE)


def test_a_noise_free_point_where_data_had_noise_is_passed_through():
    paths = paths_of("exact")
    x = model("exact").train_inputs[:2]
    torch.testing.assert_close(
        paths.condition_on(x, [3.0, 4.0], noise=0.0)(x), torch.tensor([3.0, 4.0]).double().expand(5, 2), **CLOSE
    )


@pytest.mark.parametrize("name", ALL)
def test_noise_free_points_that_contradict_each_other_are_refused(name):
    paths = paths_of(name, 4)
    y = new_y(paths)
    given = paths.condition_on(NEW_X, y, noise=0.0)
    with pytest.raises(ValueError, match=r"condition_on: noise-free observations at the same point .* contradict"):
        given.condition_on(NEW_X[:1], y[:1] + 1.0, noise=0.0)
    with pytest.raises(ValueError, match="give them noise"):
        paths.condition_on(NEW_X[:1].repeat(2, 1), torch.cat([y[:1], y[1:2]]), noise=0.0)


def test_a_repeated_value_of_a_path_in_single_precision_is_no_contradiction():
    """What a path says at a point it was given is that value to the solver's rounding."""
    paths = draw(ExactGP(K.RBF(0.5), rand(6, 2, seed=1).float(), randn(6, seed=2).float(), 0.0), 4, generator=gen())
    x = rand(6, 2, seed=1)[:3].float()
    again = paths.condition_on(x, paths(x), noise=0.0)
    torch.testing.assert_close(again(AT), paths(AT), rtol=1e-2, atol=1e-2)


# Targets of their own.


@pytest.mark.parametrize("name", ALL)
def test_each_path_may_have_its_own_targets(name):
    paths = paths_of(name, 4)
    y = torch.stack([new_y(paths, seed=i) for i in range(4)])
    given = paths.condition_on(NEW_X, y, noise=0.0)
    torch.testing.assert_close(given(NEW_X), y, **CLOSE)
    torch.testing.assert_close(given.mean(NEW_X), y, **CLOSE)
    for i in range(4):  # as if each path had been conditioned alone
        alone = paths[i].condition_on(NEW_X, y[i], noise=0.0)
        torch.testing.assert_close(given(AT)[i : i + 1], alone(AT), **CLOSE)
        torch.testing.assert_close(given.mean(AT)[i], alone.mean(AT), **CLOSE)
        torch.testing.assert_close(given[i].mean(AT), alone.mean(AT), **CLOSE)
    shared = given.condition_on(AT[:1], paths.mean(AT[:1]), noise=0.0)  # and then the same for all
    torch.testing.assert_close(shared(NEW_X), y, **CLOSE)


def test_one_path_may_have_its_own_targets():
    given = paths_of("exact", 1).condition_on(NEW_X, randn(1, 3), noise=0.0)
    torch.testing.assert_close(given(NEW_X), randn(1, 3), **CLOSE)


# The law.


def conditioned_moments(gp: Any, x: Tensor, x_new: Tensor, y: Tensor, noise: float) -> tuple[Tensor, Tensor]:
    """The moments at x of the model's posterior given more data, from its joint moments at (x, x_new).

    That is what conditioning means for any Gaussian law; for a sparse model it is the variational posterior's.
    """
    mean, cov = (np.asarray(m) for m in exact_moments(gp, torch.cat([x, x_new])))
    mean, y_flat = mean.reshape(-1), np.asarray(y).reshape(-1)
    n = len(x) * gp.num_outputs
    gain = cov[:n, n:] @ np.linalg.inv(cov[n:, n:] + noise * np.eye(len(y_flat)))
    new_mean = mean[:n] + gain @ (y_flat - mean[n:])
    return torch.from_numpy(new_mean), torch.from_numpy(cov[:n, :n] - gain @ cov[n:, :n])


@cache
def many_paths(name: str) -> Any:
    return draw(model(name), 4000, num_features=96, paths_per_basis=1, generator=gen())


@pytest.mark.parametrize("noise", [0.0, 0.3])
@pytest.mark.parametrize("name", [name for name in MODELS if "transforms" not in name])
def test_the_law_given_more_data_is_the_posterior_s_own_conditional(name, noise):
    gp, x = model(name), AT[:4]
    paths = many_paths(name)
    y = new_y(paths[0])
    f = paths.condition_on(NEW_X, y, noise=noise, generator=gen(1))(x)
    mean, cov = conditioned_moments(gp, x, NEW_X, y, noise)
    assert_moments(f.reshape(4000, -1), mean, cov)
    assert_marginals_ks(f.reshape(4000, -1), mean, cov)
    torch.testing.assert_close(
        paths[:1].condition_on(NEW_X, y, noise=noise).mean(x).reshape(-1), mean, rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("root", ["full", "deviations", "point mass"])
def test_a_sparse_posterior_of_every_form_is_conditioned_on(root):
    scale = {"full": 0.4 * randn(4, 4, seed=3), "deviations": rand(4, seed=3), "point mass": None}[root]
    gp = SparseGP(K.RBF(0.5), rand(4, 2, seed=1), randn(4, seed=2), scale, mean=1.0, jitter=0.05)
    y = randn(3, seed=5)
    paths = draw(gp, 4000, num_features=96, paths_per_basis=1, generator=gen())
    given = paths.condition_on(NEW_X[:2], y[:2], noise=0.1, generator=gen(1))
    given = given.condition_on(NEW_X[2:], y[2:], noise=0.1, generator=gen(2))  # the second call is exact too
    assert_moments(given(AT[:4]), *conditioned_moments(gp, AT[:4], NEW_X, y, 0.1))


def test_a_sparse_posterior_conditioned_as_if_it_were_the_prior_is_found():
    """The update with k in place of k_q has another law, and the check above would see it."""
    gp, y, paths = model("sparse"), randn(3, seed=5), many_paths("sparse")
    residual = y - paths(NEW_X) - 0.1**0.5 * randn(4000, 3)
    k_nn = gp.kernel(NEW_X) + 0.1 * torch.eye(3)
    wrong = paths(AT[:4]) + torch.linalg.solve(k_nn, residual.mT).mT @ gp.kernel(AT[:4], NEW_X).mT
    with pytest.raises(AssertionError):
        assert_moments(wrong, *conditioned_moments(gp, AT[:4], NEW_X, y, 0.1))


def test_a_q_known_by_its_draws_alone_cannot_be_conditioned_on():
    gp = SparseGP(K.RBF(0.5), rand(4, 2), sample_u=lambda s, generator: randn(s, 4))
    with pytest.raises(TypeError, match=r"known by its draws alone \(sample_u\), so its covariance is not"):
        draw(gp, 2).condition_on(NEW_X, randn(3), noise=0.0)


def test_a_point_that_a_point_mass_already_fixes_may_be_given_again():
    """There the sparse posterior has no variance left: nothing to update, and nothing that may break."""
    Z, u = rand(4, 2, seed=1), randn(4, seed=2)
    paths = draw(SparseGP(K.RBF(0.5), Z, u), 3, generator=gen())
    with pytest.warns(UserWarning, match="jitter"):
        given = paths.condition_on(Z[:2], u[:2], noise=0.0)
    torch.testing.assert_close(given(AT), paths(AT), rtol=1e-3, atol=1e-3)


# Several outputs, transforms.


@pytest.mark.parametrize("name", ["exact, coupled", "sparse, coupled"])
def test_some_outputs_may_be_observed_and_the_others_learn_from_them(name):
    paths = paths_of(name, 4)
    given = paths.condition_on(NEW_X, [1.0, 2.0, 3.0], noise=0.0, tasks=[0, 1, 0])
    values = given(NEW_X)[:, torch.arange(3), torch.tensor([0, 1, 0])]
    torch.testing.assert_close(values, torch.tensor([1.0, 2.0, 3.0]).double().expand(4, 3), **CLOSE)
    others = (given(NEW_X) - paths(NEW_X))[:, torch.arange(3), torch.tensor([1, 0, 1])]
    assert others.abs().max() > 0.05
    whole = paths.condition_on(NEW_X[:1], [[1.0, 2.0]], noise=0.0)
    by_task = paths.condition_on(NEW_X[:1].repeat(2, 1), [2.0, 1.0], noise=0.0, tasks=[1, 0])
    torch.testing.assert_close(whole(AT), by_task(AT), **CLOSE)


def test_the_same_point_of_two_outputs_is_no_repetition():
    paths = draw_prior(COUPLED, 3, input_dim=2, generator=gen())
    given = paths.condition_on(NEW_X[:1].repeat(2, 1), [1.0, -1.0], noise=0.0, tasks=[0, 1])
    torch.testing.assert_close(given(NEW_X[:1])[:, 0], torch.tensor([1.0, -1.0]).double().expand(3, 2), **CLOSE)


def test_affine_transforms_are_undone_with_their_noise():
    """In the user's space the variance of the noise is the model's times the slope squared."""
    gp = model("exact, transforms")
    inner = ExactGP(gp.kernel, gp.train_inputs, gp.train_targets, gp.noise, mean=0.3)
    plain = draw(inner, 4, num_features=24, generator=gen(1))
    paths = draw(gp, 4, num_features=24, generator=gen(1))
    y = randn(3, seed=5)
    given = paths.condition_on(NEW_X, y, noise=torch.tensor([0.0, 0.9, 1.8]), generator=gen(2))
    undone = gp.output_transform.inverse(y)
    expected = plain.condition_on(
        gp.input_transform(NEW_X), undone, noise=torch.tensor([0.0, 0.1, 0.2]), generator=gen(2)
    )
    torch.testing.assert_close(given(AT), gp.output_transform(expected(gp.input_transform(AT))), **CLOSE)


def test_each_output_s_own_transform_is_undone():
    scale, offset = [2.0, -5.0], [1.0, 10.0]
    gp = ExactGP(COUPLED, rand(4, 2), randn(4), 0.1, tasks=[0, 1, 0, 1], output_transform=Affine(scale, offset))
    given = draw(gp, 3, generator=gen()).condition_on(NEW_X, [[1.0, 20.0]] * 3, noise=0.0)
    torch.testing.assert_close(given(NEW_X), torch.tensor([1.0, 20.0]).double().expand(3, 3, 2), **CLOSE)
    noisy = draw(gp, 1, generator=gen()).condition_on(NEW_X, [[1.0, 20.0]] * 3, noise=0.5)
    torch.testing.assert_close(noisy.update.noise[4:], torch.tensor([0.5 / 4, 0.5 / 25] * 3).double())


def test_a_bent_transform_is_undone_without_noise_and_refused_with_it():
    gp = ExactGP(K.RBF(0.5), rand(4, 2, seed=1), randn(4, seed=2), 0.1, output_transform=Exp())
    paths = draw(gp, 3, generator=gen())
    given = paths.condition_on(NEW_X, [0.5, 1.0, 4.0], noise=0.0)
    torch.testing.assert_close(given(NEW_X), torch.tensor([0.5, 1.0, 4.0]).double().expand(3, 3), **CLOSE)
    with pytest.raises(ValueError, match=r"noise: under an output transform that is not affine only noise-free"):
        paths.condition_on(NEW_X, [0.5, 1.0, 4.0], noise=0.1)


# The rest.


def test_a_conditioned_path_is_a_path_like_any_other(tmp_path):
    given = paths_of("sparse", 4).condition_on(NEW_X, randn(4, 3), noise=0.1)
    given.save(tmp_path / "draw.safetensors")
    again = load(tmp_path / "draw.safetensors")
    for other in (again, given.to(torch.float64), given[:]):
        torch.testing.assert_close(other(AT), given(AT), rtol=1e-13, atol=1e-13)
        more = other.condition_on(AT[:1], [1.0], noise=0.0)
        torch.testing.assert_close(more(AT), given.condition_on(AT[:1], [1.0], noise=0.0)(AT), **CLOSE)
    value, gradient = given.value_and_grad(AT)
    assert value.shape == (4, 6) and gradient.shape == (4, 6, 2)


def test_no_new_data_changes_nothing():
    for name in ALL:
        paths = paths_of(name)
        shape = (0,) if paths.num_outputs == 1 else (0, paths.num_outputs)
        same = paths.condition_on(rand(0, 2), torch.zeros(shape), noise=0.0)
        assert torch.equal(same(AT), paths(AT))


def test_conjugate_gradients_condition_as_cholesky_does():
    paths = paths_of("exact")
    one, other = (
        paths.condition_on(NEW_X, randn(3), noise=0.1, solver=solver, generator=gen()) for solver in ("cg", "cholesky")
    )
    torch.testing.assert_close(one(AT), other(AT), **CLOSE)


def test_new_noise_is_drawn_from_the_generator_alone():
    paths = paths_of("exact")
    state = torch.get_rng_state()
    one = paths.condition_on(NEW_X, randn(3), noise=0.5, generator=gen(1))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(one(AT), paths.condition_on(NEW_X, randn(3), noise=0.5, generator=gen(1))(AT))
    assert not torch.allclose(one(AT), paths.condition_on(NEW_X, randn(3), noise=0.5, generator=gen(2))(AT))


BAD = {
    "points of another dimension": (dict(x=rand(3, 3)), "x: expected points in 2 dimensions"),
    "points of their own": (dict(x=rand(5, 3, 2)), r"x: expected points of shape \[n, d\]"),
    "too few targets": (dict(y=randn(2)), r"y: expected \[3\] or \[5, 3\], got \[2\]"),
    "targets of other paths": (dict(y=randn(4, 3)), r"y: expected \[3\] or \[5, 3\], got \[4, 3\]"),
    "targets that are not numbers": (dict(y=[1.0, float("nan"), 0.0]), "y: expected finite numbers, got 1 NaN"),
    "infinite points": (dict(x=[[float("inf"), 0.0]] * 3), "x: expected finite numbers"),
    "negative noise": (dict(noise=-0.1), "noise: expected variances >= 0, got a smallest of -0.1"),
    "noise of another shape": (dict(noise=[0.1, 0.2]), r"noise: expected a variance, or one per point \(\[3\]\)"),
    "tasks where there are none": (dict(tasks=[0, 0, 0]), "tasks: given, but the kernel has one output"),
    "an unknown solver": (dict(solver="magic"), "solver: expected one of auto, cg, .*lattice, got 'magic'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_data_are_refused(name):
    wrong, match = BAD[name]
    with pytest.raises(ValueError, match=match):
        paths_of("exact").condition_on(**({"x": NEW_X, "y": randn(3), "noise": 0.1} | wrong))


def test_noise_must_be_said():
    with pytest.raises(TypeError, match="noise"):
        paths_of("exact").condition_on(NEW_X, randn(3))  # type: ignore[call-arg]


def test_tasks_that_do_not_exist_are_refused():
    with pytest.raises(ValueError, match="tasks: expected whole numbers from 0 to 1, got up to 2"):
        paths_of("exact, coupled").condition_on(NEW_X, randn(3), noise=0.1, tasks=[0, 1, 2])


def test_data_outside_the_domain_of_the_features_are_refused():
    paths = draw_prior(K.RBF(0.3), 2, input_dim=1, features="equispaced", domain=(0.0, 1.0))
    with pytest.raises(ValueError, match=r"x: expected points inside the domain \[0.0\] to \[1.0\]"):
        paths.condition_on([[2.0]], [0.0], noise=0.0)


@pytest.mark.parametrize("whitened", [False, True])
def test_a_sparse_model_in_float32_is_given_data_as_in_float64(whitened):
    """The covariance given q(u) is a difference of large matrices: in float32 nothing would be left of it."""
    Z, at = rand(40, 2, seed=1).float(), rand(50, 2, seed=2)
    kernel, q_mean = 2.0 * K.RBF(0.5), torch.sin(5 * Z[:, 0].double())
    L = torch.linalg.cholesky(kernel(Z.double(), Z.double()) + 1e-6 * torch.eye(40))
    q = (torch.linalg.solve(L, q_mean), 0.1 * torch.eye(40)) if whitened else (q_mean, 0.1 * L)
    given = []
    for dtype in (torch.float64, torch.float32):
        gp = SparseGP(kernel, Z.to(dtype), *(part.to(dtype) for part in q), whitened=whitened, jitter=1e-6)
        paths = draw(gp, 16, features="sobol", seed=0)
        given.append(paths.condition_on(NEW_X, [0.1, 0.2, 0.3], noise=1e-4, seed=3))
    exact, narrow = (paths(at) for paths in given)
    assert narrow.dtype == torch.float32
    assert float((narrow - exact).abs().max()) < 0.1 * float(exact.std(0).mean())
    again = given[1].to(torch.float32).condition_on(NEW_X + 0.1, [0.1, 0.2, 0.3], noise=1e-4, seed=4)
    assert torch.equal(again(at), given[1].condition_on(NEW_X + 0.1, [0.1, 0.2, 0.3], noise=1e-4, seed=4)(at))


def _unlikely() -> ExactGP:
    """Targets without a pattern for a prior of few functions: weights are many times those of data that it would draw.

    All numbers are float32's, so that its model is the same one.
    """
    X, y = (3 * rand(60, 1, seed=1)).float().double(), randn(60, seed=2).float().double()
    return ExactGP(K.Periodic(0.5, 0.5625) + 0.0625 * K.Linear(), X, y, noise=2.0**-11)


@pytest.mark.parametrize("how", ["drawn", "rounded", "given more", "factor extended"])
def test_single_precision_of_data_that_the_prior_finds_unlikely_has_the_mean(how):
    """A float32 factor has digits enough for weights of likely data; these need one in float64, and sums as wide."""
    gp = _unlikely()
    many = how in ("given more", "factor extended")
    new = (torch.tensor([[0.25], [1.5]]), torch.tensor([2.0, -1.0]))
    x = (3 * rand(50, 1, seed=3)).float()
    exact = gp
    if many:
        exact = ExactGP(
            gp.kernel,
            torch.cat([gp.train_inputs, new[0].double()]),
            torch.cat([gp.train_targets, new[1].double()]),
            noise=2.0**-11,
        )
    mean, covariance = exact_moments(exact, x.double())
    solver = Cholesky(keep=True) if how == "factor extended" else "auto"
    paths = draw(gp, 8, seed=0, solver=solver, dtype=torch.float64 if how == "rounded" else torch.float32).float()
    paths = paths.condition_on(*new, noise=2.0**-11, seed=1) if many else paths
    errors = (paths.mean(x).double() - mean) / covariance.diagonal().sqrt()
    assert paths.dtype == torch.float32
    assert float(errors.abs().max()) < 0.01


def test_a_sparse_models_paths_in_single_precision_keep_their_values():
    """Inducing points that are close give weights whose sums float32 has too few digits for."""
    Z = torch.linspace(0, 1, 12, dtype=torch.float64)[:, None]
    gp = SparseGP(K.RBF(1.0), Z, torch.sin(9 * Z[:, 0]), 0.05 * torch.eye(12), jitter=1e-6)
    paths, x = draw(gp, 6, features="sobol", seed=0), rand(40, 1, seed=4).float()
    single = paths.float()
    spread = float(paths(x.double()).std(0).mean())
    assert single.dtype == torch.float32
    assert float((single(x).double() - paths(x.double())).abs().max()) < 0.02 * spread
    given = [p.condition_on([[0.5]], [0.3], noise=1e-3, seed=1) for p in (single, paths)]
    assert float((given[0](x).double() - given[1](x.double())).abs().max()) < 0.1 * spread


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_sparse_posterior_whose_inducing_points_are_close_is_given_data(dtype):
    """k_q is far less than k there: as a product with K_mm^-1 (Sigma - K_mm) K_mm^-1 nothing would be left of it."""
    Z, x = (torch.linspace(0, 1, n, dtype=torch.float64)[:, None] for n in (60, 33))
    gp = SparseGP(K.RBF(0.25), Z, torch.sin(5 * Z[:, 0]), torch.full((60,), 1e-3).double(), jitter=1e-8)
    paths = draw(gp, 400, num_features=128, features="sincos", seed=1).to(dtype)
    x = x.to(dtype)
    before = float((paths(x) - paths.mean(x)).square().mean())
    given = paths.condition_on([[0.5]], [0.5], noise=2.0**-13, seed=2)
    after = float((given(x) - given.mean(x)).square().mean())
    near = (given([[0.5]]) - given.mean([[0.5]])).std()
    assert after < before and float(near) < 1.1 * float((paths([[0.5]]) - paths.mean([[0.5]])).std())
