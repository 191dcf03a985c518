"""Roll-outs: Euler-Maruyama along each path's own drift."""

import math
from functools import partial
from importlib import import_module
from typing import Any, cast

import pytest
import torch

import matheron
from matheron import kernels as K
from matheron.models.transforms import Affine


def decay(x):
    return -x[:, :1]


def spiral(x):
    return torch.stack([x[:, 1], -x[:, 0]], dim=1)


@pytest.fixture
def drift(generator):
    Z = torch.rand(8, 3, dtype=torch.float64, generator=generator)
    gps = [
        matheron.SparseGP(K.RBF(0.7), Z, torch.randn(8, dtype=torch.float64, generator=generator) * 0.3) for _ in "ab"
    ]
    return [matheron.draw(gp, 5, num_features=64, paths_per_basis=2, generator=generator) for gp in gps]


def test_a_rollout_is_the_written_out_recursion(drift, generator):
    controls = torch.rand(5, 7, 1, dtype=torch.float64, generator=generator)
    start = torch.rand(5, 2, dtype=torch.float64, generator=generator)
    Sigma = torch.tensor([[0.02, 0.01], [0.01, 0.03]], dtype=torch.float64)
    seed = torch.Generator().manual_seed(7)
    states = matheron.rollout(drift, start, 7, 0.1, controls=controls, diffusion=Sigma, generator=seed)
    noise = torch.randn(64, 5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(7))  # a block of steps
    s = start
    for t in range(7):
        x = torch.cat([s, controls[:, t]], dim=1)
        f = torch.stack([torch.cat([paths[i](x[i : i + 1]) for i in range(5)])[:, 0] for paths in drift], dim=1)
        s = s + f * 0.1 + noise[t] @ torch.linalg.cholesky(Sigma * 0.1).T
        torch.testing.assert_close(states[:, t + 1], s)


def test_several_outputs_of_one_model_are_a_drift(generator):
    k = K.Coregional(K.RBF(0.5), torch.tensor([[1.0, 0.3], [0.3, 1.0]]))
    paths = matheron.draw_prior(k, 4, input_dim=2, num_features=32, generator=generator)
    states = matheron.rollout(paths, [0.1, 0.2], 3, 0.05)
    start = torch.tensor([0.1, 0.2], dtype=torch.float64).expand(4, 2)
    torch.testing.assert_close(states[:, 1], start + 0.05 * paths(start[:, None])[:, 0])


def test_controls_may_be_shared_own_a_function_of_time_or_a_policy(drift):
    c = torch.linspace(0, 1, 6, dtype=torch.float64)[:, None]
    table = matheron.rollout(drift, [0.5, 0.5], 6, 0.1, controls=c)
    own = matheron.rollout(drift, [0.5, 0.5], 6, 0.1, controls=c.expand(5, 6, 1))
    of_time = matheron.rollout(drift, [0.5, 0.5], 6, 0.1, controls=lambda time: c[round(time / 0.1)])
    policy = matheron.rollout(
        drift, [0.5, 0.5], 6, 0.1, controls=lambda time, state: c[round(time / 0.1)] + 0 * state[:, :1]
    )
    for other in (own, of_time, policy):
        torch.testing.assert_close(table, other)


def test_a_policy_of_one_control_may_leave_out_its_axis_where_that_is_clear(drift):
    full, short = (
        matheron.rollout(drift, [0.5, 0.5], 4, 0.1, controls=policy)
        for policy in (lambda time, state: -state[:, :1], lambda time, state: -state[:, 0])
    )
    assert torch.equal(full, short)
    start = torch.rand(5, 2, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"policy returned shape \[5\].*return \[5, d_c\]"):
        matheron.rollout(lambda x: x[:, :2] + x[:, 2:3], start, 4, 0.1, controls=lambda time, state: -state[:, 0])


def test_known_systems_have_the_right_law(generator):
    """An Ornstein-Uhlenbeck process: the discrete recursion's own mean and variance."""
    dt, steps, sigma2 = 0.1, 30, 0.5
    start = torch.full((20000, 1), 2.0, dtype=torch.float64)
    end = matheron.rollout(decay, start, steps, dt, diffusion=sigma2, generator=generator)[:, -1, 0]
    a = 1 - dt
    mean, variance = 2.0 * a**steps, sigma2 * dt * (1 - a ** (2 * steps)) / (1 - a**2)
    assert abs(float(end.mean()) - mean) < 4 * math.sqrt(variance / 20000)
    assert abs(float(end.var()) / variance - 1) < 4 * math.sqrt(2 / 20000)


def test_states_are_in_the_systems_own_units(generator):
    """A drift with transforms, against the same drift rescaled by hand."""
    Z = torch.rand(6, 1, dtype=torch.float64, generator=generator)
    u = torch.randn(6, dtype=torch.float64, generator=generator)
    inner = matheron.SparseGP(K.RBF(0.5), Z, u)
    outer = matheron.SparseGP(K.RBF(0.5), Z, u, input_transform=Affine(0.1, 0.5), output_transform=Affine(20.0, 1.0))
    draw = lambda gp: matheron.draw(gp, 3, num_features=32, generator=torch.Generator().manual_seed(1))  # noqa: E731
    plain, scaled = draw(inner), draw(outer)
    states = matheron.rollout(scaled, [4.0], 5, 0.01)
    s = torch.full((3, 1), 4.0, dtype=torch.float64)
    for t in range(5):
        s = s + 0.01 * (20 * plain((0.1 * s + 0.5)[:, None]) + 1)
        torch.testing.assert_close(states[:, t + 1], s)


def test_thinned_trajectories_are_the_kept_states(drift):
    whole = matheron.rollout(drift, [0.5, 0.5], 10, 0.1, controls=torch.zeros(10, 1))
    thin = matheron.rollout(drift, [0.5, 0.5], 10, 0.1, controls=torch.zeros(10, 1), keep_every=3)
    torch.testing.assert_close(thin, whole[:, ::3])


def test_gradients_flow_to_the_start_the_controls_and_the_diffusion(drift, monkeypatch):
    rollouts = import_module("matheron.dynamics.rollouts")
    monkeypatch.setattr(rollouts, "_with_checkpoints", partial(rollouts._with_checkpoints, length=3))
    start = torch.full((5, 2), 0.5, dtype=torch.float64, requires_grad=True)
    controls = torch.zeros(5, 1, dtype=torch.float64, requires_grad=True)
    diffusion = torch.tensor([0.01, 0.02], dtype=torch.float64, requires_grad=True)

    def simulate(start, controls, diffusion):
        seed = torch.Generator().manual_seed(0)
        return matheron.rollout(
            drift, start, 5, 0.1, controls=controls, diffusion=diffusion, gradients=True, generator=seed
        )

    assert torch.autograd.gradcheck(simulate, (start, controls, diffusion), fast_mode=True)
    plain = matheron.rollout(
        drift, start, 5, 0.1, controls=controls, diffusion=diffusion, generator=torch.Generator().manual_seed(0)
    )
    assert not plain.requires_grad
    torch.testing.assert_close(simulate(start, controls, diffusion).detach(), plain)


@pytest.mark.parametrize("gradients", [False, True])
def test_the_step_of_a_divergence_is_counted_in_all_steps(gradients):
    def explosive(x):
        return x**3 * 1e30

    start = torch.tensor([[2.0]], dtype=torch.float64)
    with pytest.warns(matheron.DivergenceWarning, match="of path 0, by step 8;"):
        matheron.rollout(explosive, start, 16, 0.1, keep_every=8, gradients=gradients)


def test_a_diverging_trajectory_is_named_and_leaves_the_others_alone():
    def explosive(x):
        return torch.where(x > 1, x**3 * 1e30, -x)

    start = torch.tensor([[0.5], [2.0], [0.1]], dtype=torch.float64)
    with pytest.warns(matheron.DivergenceWarning, match="1 of 3 trajectories diverged, first that of path 1, by step"):
        states = matheron.rollout(explosive, start, 20, 0.1)
    alone = matheron.rollout(explosive, start[[0, 2]], 20, 0.1)
    torch.testing.assert_close(states[[0, 2]], alone)
    assert bool(torch.isnan(states[1, -1]).all()) and bool(torch.isfinite(states[1, 0]).all())


def test_controls_of_each_path_are_not_taken_for_actions():
    """Of a function that takes states of one axis more, which no controls of paths fit."""
    controls = torch.tensor([[[1.0]] * 3, [[5.0]] * 3])
    with pytest.raises(RuntimeError, match="same number of dimensions"):
        matheron.rollout(lambda x: x[..., 1:], torch.zeros(2, 2, 1), 3, 1.0, controls=controls)


def test_what_does_not_fit_is_refused(drift):
    with pytest.raises(ValueError, match=r"initial_state: expected \[2\] or \[5, 2\]"):
        matheron.rollout(drift, [0.0, 0.0, 0.0], 3, 0.1)
    with pytest.raises(ValueError, match="dt: expected a positive number"):
        matheron.rollout(drift, [0.0, 0.0], 3, 0.0)
    with pytest.raises(ValueError, match=r"controls: expected \[3, d_c\]"):
        matheron.rollout(drift, [0.0, 0.0], 3, 0.1, controls=torch.zeros(2, 1))
    with pytest.raises(ValueError, match="diffusion: expected variances >= 0"):
        matheron.rollout(drift, [0.0, 0.0], 3, 0.1, controls=torch.zeros(3, 1), diffusion=-1.0)
    with pytest.raises(ValueError, match=r"diffusion: expected a variance, \[2\] or \[2, 2\]"):
        matheron.rollout(drift, [0.0, 0.0], 3, 0.1, controls=torch.zeros(3, 1), diffusion=[1.0, 1.0, 1.0])
    with pytest.raises(TypeError, match="drift: expected paths"):
        matheron.rollout(cast(Any, 3), [0.0], 3, 0.1)
    with pytest.raises(ValueError, match=r"controls: expected 1 per step, the drift's inputs .* got none"):
        matheron.rollout(drift, [0.0, 0.0], 3, 0.1)


# Candidate actions, and methods other than Euler's.


def test_actions_are_tried_on_every_path(drift, generator):
    actions = torch.rand(4, 6, 1, dtype=torch.float64, generator=generator)
    start = torch.rand(5, 2, dtype=torch.float64, generator=generator)
    tried = matheron.rollout(drift, start, 6, 0.1, actions=actions, keep_every=2)
    assert tried.shape == (4, 5, 4, 2)
    for a in range(4):
        alone = matheron.rollout(drift, start, 6, 0.1, controls=actions[a], keep_every=2)
        torch.testing.assert_close(tried[a], alone, rtol=1e-9, atol=1e-9)


def test_noise_differs_between_actions_and_paths(drift, generator):
    actions = torch.zeros(3, 2, 1, dtype=torch.float64)
    tried = matheron.rollout(drift, [0.1, 0.2], 2, 0.1, actions=actions, diffusion=[0.1, 0.4], generator=generator)
    first = (tried - matheron.rollout(drift, [0.1, 0.2], 2, 0.1, actions=actions))[:, :, 1]  # [a, s, 2]
    assert first.flatten(0, 1).unique(dim=0).shape == (15, 2)


def test_gradients_flow_to_actions(drift):
    actions = torch.rand(3, 40, 1, dtype=torch.float64, requires_grad=True)
    matheron.rollout(drift, [0.1, 0.2], 40, 0.05, actions=actions, gradients=True)[:, :, -1].square().sum().backward()
    step, bump = 1e-6, torch.zeros_like(actions)
    bump[1, 7] = step

    def loss(actions):
        return matheron.rollout(drift, [0.1, 0.2], 40, 0.05, actions=actions)[:, :, -1].square().sum()

    with torch.no_grad():
        slope = (loss(actions + bump) - loss(actions - bump)) / (2 * step)
    assert actions.grad is not None
    torch.testing.assert_close(actions.grad[1, 7, 0], slope, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("jacobian", [torch.func.jacrev, torch.func.jacfwd])
def test_a_rollout_is_linearised_by_torch_func(drift, jacobian):
    actions = torch.rand(3, 40, 1, dtype=torch.float64, requires_grad=True)

    def last(actions):
        return matheron.rollout(drift, [0.1, 0.2], 40, 0.05, actions=actions, gradients=True)[:, :, -1].mean((1, 2))

    expected = torch.stack([torch.autograd.grad(value, actions, retain_graph=True)[0] for value in last(actions)])
    torch.testing.assert_close(jacobian(last)(actions.detach()), expected, rtol=1e-6, atol=1e-9)


def test_rollouts_under_vmap_are_those_one_by_one(drift):
    start = torch.rand(3, 2, dtype=torch.float64)
    controls = torch.rand(3, 20, 1, dtype=torch.float64)

    def rolled(start, controls, variance):
        return matheron.rollout(drift, start, 20, 0.05, controls=controls, diffusion=variance, seed=0)

    variance = torch.tensor([0.0, 0.1, 0.2], dtype=torch.float64)
    together = torch.func.vmap(rolled, randomness="same")(start, controls, variance)
    torch.testing.assert_close(together, torch.stack(list(map(rolled, start, controls, variance))))


def test_torch_func_differentiates_a_rollout_that_was_not_told_to_keep_gradients(drift):
    controls = torch.rand(20, 1, dtype=torch.float64)

    def last(controls, gradients=False):
        return matheron.rollout(drift, [0.1, 0.2], 20, 0.05, controls=controls, gradients=gradients)[:, -1].sum()

    expected = torch.func.grad(lambda c: last(c, gradients=True))(controls)
    assert bool((expected != 0).any())
    torch.testing.assert_close(torch.func.grad(last)(controls), expected)


@pytest.mark.parametrize(("method", "order"), [("euler", 1), ("heun", 2), ("rk4", 4)])
def test_errors_shrink_with_the_order_of_the_method(method, order):
    start = torch.tensor([1.0, 0.0], dtype=torch.float64)
    exact = torch.tensor([math.cos(1.0), -math.sin(1.0)], dtype=torch.float64)

    def error(steps):
        return float((matheron.rollout(spiral, start, steps, 1 / steps, method=method)[0, -1] - exact).norm())

    assert abs(math.log2(error(16) / error(32)) - order) < 0.2


def test_maps_in_discrete_time_need_no_step_size(drift, generator):
    x = torch.tensor([0.3, 0.4, 0.5], dtype=torch.float64)
    value = torch.cat([paths(x[None]) for paths in drift], dim=1)  # [s, 2]
    following = matheron.rollout(drift, x[:2], 1, method="next", controls=x[None, 2:])
    changed = matheron.rollout(drift, x[:2], 1, method="change", controls=x[None, 2:])
    torch.testing.assert_close(following[:, 1], value)
    torch.testing.assert_close(changed[:, 1], x[:2] + value)
    noisy = matheron.rollout(
        lambda x: 0 * x, torch.zeros(20000, 1), 1, method="next", diffusion=0.25, generator=generator
    )
    assert abs(float(noisy[:, 1].std()) - 0.5) < 0.01


def test_noise_may_move_some_states_alone(generator):
    Sigma = torch.tensor([[0.0, 0.0, 0.0], [0.0, 4.0, 2.0], [0.0, 2.0, 1.0]])  # of rank one
    start = torch.zeros(20000, 3)
    states = matheron.rollout(lambda x: 0 * x, start, 1, 0.25, diffusion=Sigma, generator=generator)[:, 1]
    assert float(states[:, 0].abs().max()) == 0
    torch.testing.assert_close(states.T.cov(), 0.25 * Sigma, rtol=0.05, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "midpoint", "dt": 0.1}, "method: expected one of euler, heun, rk4, next, change, got 'midpoint'"),
        ({"method": "heun"}, 'dt: expected a step size for method="heun"'),
        ({"dt": 0.1, "actions": torch.zeros(2, 3, 1)}, r"actions: expected \[a, 4, d_c\], a sequence of 4 each"),
        ({"dt": 0.1, "actions": torch.zeros(4, 1)}, r"actions: expected \[a, 4, d_c\]"),
        ({"dt": 0.1, "actions": torch.zeros(2, 4, 1), "controls": torch.zeros(4, 1)}, "expected actions or controls"),
    ],
)
def test_what_a_rollout_refuses_of_methods_and_actions(drift, settings, message):
    with pytest.raises(ValueError, match=message):
        matheron.rollout(drift, [0.1, 0.2], 4, **settings)


def one_control():
    """A system of one state and one control."""
    return matheron.draw_prior(K.RBF(), 2, input_dim=2, num_features=8, seed=0)


GP = matheron.ExactGP(K.RBF(), [[0.0, 0.0]], [0.0], 0.1)


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (
            lambda: matheron.rollout(GP, [0.0], 2, 0.1),
            TypeError,
            "drift: expected functions, got a model, ExactGP; draw",
        ),
        (lambda: matheron.rollout([cast(Any, GP)], [0.0], 2, 0.1), TypeError, "got a model, ExactGP; draw them first"),
        (lambda: matheron.rollout(one_control(), [0.0], 2, 0.1), ValueError, "controls: expected 1 per step.*got none"),
        (
            lambda: matheron.rollout(one_control(), [0.0], 2, 0.1, controls=torch.zeros(2, 3)),
            ValueError,
            "controls: expected 1 per step, the drift's inputs beyond its states, got 3",
        ),
        (
            lambda: matheron.rollout(one_control(), [0.0], 2, 0.1, controls=lambda t: torch.zeros(3)),
            ValueError,
            "controls: expected 1 per step.*got 3",
        ),
        (
            lambda: matheron.rollout(one_control(), [0.0], 2, 0.1, controls=lambda t: torch.zeros(5, 1)),
            ValueError,
            r"controls: expected \[d_c\] or \[2, d_c\] at each time, got \[5, 1\]",
        ),
        (
            lambda: matheron.rollout(
                matheron.draw_prior(K.RBF(), 2, input_dim=1), [0.0], 2, 0.1, controls=torch.zeros(2, 1)
            ),
            ValueError,
            "controls: expected 0 per step.*got 1",
        ),
        (
            lambda: matheron.rollout(one_control(), [0.0], 2, actions=torch.zeros(4, 2, 2), method="next"),
            ValueError,
            "actions: expected 1 per step.*got 2",
        ),
        (
            lambda: matheron.rollout(one_control(), [0.0], 2, 0.1, controls=torch.sin),  # has no signature
            TypeError,
            "controls: sin takes one argument, so it was called with the time, and failed",
        ),
        (
            lambda: matheron.rollout(one_control(), [0.0], 2, 0.1, controls=torch.nn.Linear(1, 1)),
            TypeError,
            "controls: Linear takes one argument, so it was called with the time, .*lambda time, state: policy",
        ),
        (
            lambda: matheron.rollout([cast(Any, lambda x: x)], [0.0], 2, 0.1),
            TypeError,
            "drift: expected a list of paths, one per state, got function at place 0",
        ),
        (lambda: matheron.rollout(lambda x: x[:, :1], [0.0, 1.0], 2, 0.1), ValueError, r"-> \[1, 2\], it returned"),
        (
            lambda: matheron.rollout(lambda x: x, [0.0], 2, cast(Any, [0.1, 0.2])),
            TypeError,
            "dt: expected a positive number, the same for all steps",
        ),
        (
            lambda: matheron.rollout(lambda x: x, [0.0], 2, 0.1, diffusion=-0.5),
            ValueError,
            "diffusion: expected variances >= 0, got -0.5",
        ),
        (
            lambda: matheron.rollout(lambda x: x, [0.0, 1.0], 2, 0.1, diffusion=[[1.0, 0.0], [0.0, -1.0]]),
            ValueError,
            "diffusion: expected a covariance without negative eigenvalues, got -1 among them",
        ),
        (
            lambda: matheron.rollout(lambda x: x, [0.0, 1.0], 2, 0.1, diffusion=[[1.0, 0.5], [0.0, 1.0]]),
            ValueError,
            "diffusion: expected a symmetric covariance",
        ),
    ],
)
def test_a_model_for_a_drift_and_wrong_controls_are_named(call, kind, message):
    with pytest.raises(kind, match=message):
        call()
