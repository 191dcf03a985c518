"""Randomness is an argument: one seed, one function, on any dtype and in any block; torch's own state is left alone."""

import random
from typing import Any

import numpy as np
import pytest
import torch

import matheron
from examples import ALL, LAYOUTS, gen, model, paths_of, rand, randn
from matheron import SparseGP, draw, draw_prior
from matheron import kernels as K

FEATURES = ["cosine", "sincos", "sobol", "orthogonal", "equispaced"]
X = rand(6, 2, seed=30)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ALL)
def test_one_seed_is_one_function(name, layout):
    first, again, other = (paths_of(name, layout=layout, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first(X), again(X))
    assert not torch.allclose(first(X), other(X))


@pytest.mark.parametrize("features", FEATURES)
def test_one_seed_is_one_function_in_single_and_double_precision(features):
    """Numbers are drawn in float64 and then rounded: not a function of another seed, but this one to rounding."""
    settings: dict[str, Any] = dict(features=features, domain=(-1.0, 2.0), num_features=40)
    single, double = (paths_of("exact", dtype=dtype, **settings) for dtype in (torch.float32, torch.float64))
    assert single.dtype == torch.float32
    torch.testing.assert_close(single(X).double(), double(X), rtol=1e-3, atol=1e-3)


def test_blocks_do_not_change_what_is_drawn(small_blocks):
    whole = paths_of("exact, composite")
    small_blocks(50)
    torch.testing.assert_close(paths_of("exact, composite")(X), whole(X), rtol=1e-9, atol=1e-9)


def states() -> tuple[Any, ...]:
    return torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate()


@pytest.mark.parametrize("features", FEATURES)
def test_a_generator_leaves_every_global_state_untouched(features):
    before, seed = states(), torch.initial_seed()
    paths = paths_of("exact", features=features, domain=(-1.0, 2.0))
    paths.condition_on(X, randn(6), noise=0.1, generator=gen())
    draw(matheron.Ensemble([model("exact"), model("sparse")]), 3, features=features, domain=(-1, 2), generator=gen())
    draw_prior(K.Matern(1.5) * K.Linear(), 2, input_dim=1, generator=gen())
    assert states() == before and torch.initial_seed() == seed


def test_evaluation_draws_nothing():
    paths, before = paths_of("exact"), states()
    paths[:2].to(torch.float32)(X)
    paths.value_and_grad(X)
    paths.mean(X)
    paths(X.clone().requires_grad_()).sum().backward()
    assert states() == before


@pytest.mark.parametrize("name", ["prior", "exact", "sparse"])
def test_without_a_generator_torch_s_own_is_used_and_never_seeded(name):
    state = torch.get_rng_state()
    try:
        seed = torch.initial_seed()
        one, other = (paths_of(name, generator=None)(X) for _ in range(2))
        assert not torch.allclose(one, other), "the second draw began where the first did"
        assert torch.initial_seed() == seed
        torch.set_rng_state(state)
        assert torch.equal(paths_of(name, generator=None)(X), one)
    finally:
        torch.set_rng_state(state)


def test_a_generator_moves_on_from_draw_to_draw():
    generator = gen()
    one, other = (draw(model("exact"), 3, generator=generator)(X) for _ in range(2))
    assert not torch.allclose(one, other)


# The documented order of draws: frequencies, phases, w, then u, then eps.


def test_an_exact_model_draws_frequencies_phases_weights_and_noise_in_this_order():
    generator = gen(7)
    paths = paths_of("exact", 5, layout="one basis", features="cosine", seed=7)
    (basis,) = paths.prior.features.bases
    U = torch.rand(1, 24, 3, generator=generator, dtype=torch.float64)
    theta = K.Matern(2.5, 0.5).measure(2).frequencies(U)
    torch.testing.assert_close(basis.frequencies, theta)
    phases = torch.rand(1, 24, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(basis.phases, 2 * torch.pi * phases)
    w = torch.randn(5, 24, generator=generator, dtype=torch.float64)
    assert torch.equal(paths.prior.weights, w)
    assert torch.equal(paths.update.xi, torch.randn(5, 5, generator=generator, dtype=torch.float64))


def test_a_sparse_model_draws_u_before_the_noise_of_its_jitter():
    Z, q_mean, root = rand(3, 1), randn(3), randn(3, 3, seed=1)
    features = draw_prior(K.RBF(0.5), 1, input_dim=1, num_features=4).prior.features
    gp = SparseGP(K.RBF(0.5), Z, q_mean, root, jitter=0.1)
    paths = draw(gp, 2, features=features, generator=gen(3))
    generator = gen(3)
    w, u, eps = (torch.randn(2, k, generator=generator, dtype=torch.float64) for k in (4, 3, 3))
    assert torch.equal(paths.prior.weights, w)
    f = w @ features(Z)[0].mT
    K_mm = K.RBF(0.5)(Z) + 0.1 * torch.eye(3, dtype=torch.float64)
    residual = q_mean + u @ root.mT - f - 0.1**0.5 * eps
    torch.testing.assert_close(paths.update.weights @ K_mm, residual, rtol=1e-8, atol=1e-8)


def test_a_basis_may_be_used_again():
    """The features of one draw serve another: the same basis, new weights."""
    first = paths_of("exact", layout="several bases")
    second = paths_of("sparse", features=first.prior.features, seed=9)
    assert torch.equal(first.prior.features(X), second.prior.features(X))
    assert not torch.allclose(first.prior.weights, second.prior.weights)


GP = model("exact")
BOX = [[0.0], [1.0]]


def one_dimension(**random: Any) -> Any:
    return draw_prior(K.RBF(0.3), 3, input_dim=1, num_features=16, **random)


PLACES = {
    "draw": lambda **random: draw(GP, 2, num_features=16, **random)(X),
    "draw, outputs": lambda **random: draw(matheron.Outputs([GP, GP]), 2, num_features=16, **random)(X),
    "draw, ensemble": lambda **random: draw(matheron.Ensemble([GP, GP]), 2, num_features=16, **random)(X),
    "draw_prior": lambda **random: one_dimension(**random)([[0.3]]),
    "condition_on": lambda **random: one_dimension(seed=0).condition_on([[0.2]], [1.0], noise=0.1, **random)([[0.2]]),
    "minimize": lambda **random: (
        matheron.minimize(one_dimension(seed=0), BOX, mesh_size=8, max_iterations=1, **random).x
    ),
    "maximize": lambda **random: (
        matheron.maximize(one_dimension(seed=0), BOX, mesh_size=8, max_iterations=1, **random).x
    ),
    "suggest": lambda **random: matheron.thompson.suggest(None, BOX, 3, strategy="random", **random),
    "minimize_function": lambda **random: (
        matheron.thompson.minimize_function(
            lambda x: float(x.sum()), BOX, 3, kernel=K.RBF(0.3), num_initial=3, **random
        ).best_x
    ),
    "rollout": lambda **random: matheron.rollout([one_dimension(seed=0)], [0.0], 2, 0.1, diffusion=1.0, **random),
    "location_scale": lambda **random: matheron.samplers.location_scale(GP, 2, **random)(X),
    "weight_space": lambda **random: matheron.samplers.weight_space(GP, 2, num_features=8, **random)(X),
    "weight_space_sparse": lambda **random: matheron.samplers.weight_space_sparse(
        model("sparse"), 2, num_features=16, **random
    )(X),
    "orthogonal": lambda **random: matheron.samplers.orthogonal(model("sparse"), 2, num_features=16, **random)(X),
}


@pytest.mark.parametrize("name", PLACES)
def test_a_seed_is_taken_wherever_there_is_randomness(name):
    drawn = PLACES[name]
    expected = drawn(generator=torch.Generator().manual_seed(0))
    assert torch.equal(drawn(seed=0), expected)
    assert torch.equal(drawn(generator=0), expected)
    assert torch.equal(drawn(generator=np.int64(1)), drawn(seed=1))
    assert not torch.equal(drawn(seed=1), expected)


@pytest.mark.parametrize("name", PLACES)
def test_a_generator_and_a_seed_together_are_refused_everywhere(name):
    with pytest.raises(ValueError, match="got both"):
        PLACES[name](generator=gen(), seed=0)


@pytest.mark.parametrize("make", [np.random.default_rng, np.random.RandomState])
def test_a_numpy_generator_is_taken_and_moves_on(make):
    rng = make(0)
    first, second = one_dimension(generator=rng)([[0.3]]), one_dimension(generator=rng)([[0.3]])
    assert not torch.equal(first, second)
    assert torch.equal(one_dimension(generator=make(0))([[0.3]]), first)


@pytest.mark.parametrize(
    ("random", "kind", "message"),
    [
        ({"generator": True}, TypeError, "generator: expected a torch.Generator, a NumPy generator, or a seed"),
        ({"generator": "0"}, TypeError, "got str"),
        ({"generator": 0.5}, TypeError, "got float"),
        ({"seed": False}, TypeError, "seed: expected a seed"),
        ({"seed": gen()}, TypeError, "got Generator"),
        ({"seed": -1}, ValueError, "from 0 to"),
        ({"generator": 2**64}, ValueError, "from 0 to"),
    ],
)
def test_what_is_no_source_of_randomness_is_refused(random, kind, message):
    with pytest.raises(kind, match=message):
        one_dimension(**random)


@pytest.mark.parametrize("join", [matheron.Outputs, matheron.Ensemble, matheron.Batch])
def test_members_given_one_seed_have_noise_of_their_own(join):
    """A seed handed on to each member would give all of them the same noise."""
    paths = draw(join([GP, GP]), 2, seed=0)
    targets = [[0.0] * paths.num_outputs] * len(X) if join is matheron.Outputs else [0.0] * len(X)
    given = paths.condition_on(X, targets, noise=1.0, seed=0)
    first, second = (member.update.xi[:, -len(X) :] for member in getattr(given, "members", None) or given.functions)
    assert not torch.equal(first[: len(second)], second[: len(first)])
