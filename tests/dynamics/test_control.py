"""The systems of the benchmark of control are what they say, plans find what is best, and a loop learns."""

import importlib
from pathlib import Path

import pytest
import torch

import matheron
import matheron_paper
from matheron import kernels

FOLDER = Path(__file__).parent.parent.parent / "benchmarks"


@pytest.fixture
def control(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("control")


def test_the_cart_and_its_pole_gain_the_energy_that_is_put_in(control, generator):
    """From the tip's own place: kinetic and potential energy of a cart and of a uniform pole, by their definitions."""
    M, m, length, g = 0.5, 0.5, 0.6, 9.82
    state = torch.randn(20, 4, generator=generator, dtype=torch.float64).requires_grad_()
    u = torch.rand(20, 1, generator=generator, dtype=torch.float64)
    _, velocity, angle, speed = state.unbind(1)
    sideways = velocity + length / 2 * torch.cos(angle) * speed  # of the pole's centre
    upwards = -length / 2 * torch.sin(angle) * speed
    energy = M * velocity**2 / 2 + m * (sideways**2 + upwards**2) / 2 + m * length**2 / 24 * speed**2
    energy = energy + m * g * length / 2 * torch.cos(angle)
    (slope,) = torch.autograd.grad(energy.sum(), state)
    change = (slope * control.cart_pole(torch.cat([state, u], dim=1))).sum(1)
    torch.testing.assert_close(change, (10 * u[:, 0] - 0.1 * velocity) * velocity)


def test_a_plan_brings_a_known_system_where_it_should_be(control, generator):
    """A point moved by its control, 0.3 a step at most: nearest to 1 is full speed until it is there, and then rest."""
    moves = lambda x: 0.3 * x[:, 1:]  # noqa: E731
    cost = lambda s: (s[..., 0] - 1).square()  # noqa: E731
    start, guess = torch.zeros(1, dtype=torch.float64), torch.zeros(5, 1, dtype=torch.float64)
    found = control.plan(moves, start, guess, cost, candidates=256, iterations=8, generator=generator)[:, 0]
    assert found.shape == (5,) and bool((found.abs() <= 1).all())
    torch.testing.assert_close(found, torch.tensor([1.0, 1.0, 1.0, 0.33, 0.0], dtype=torch.float64), atol=0.2, rtol=0)


def test_a_plan_is_for_the_average_of_drawn_systems(control, generator):
    systems = matheron.draw_prior(kernels.RBF(), 3, input_dim=2, num_features=32, generator=generator).float()
    state, guess = torch.zeros(1), torch.zeros(4, 1, dtype=torch.float64)
    cost = lambda s: s[..., 0].tanh()  # noqa: E731

    def average(plan):
        return cost(matheron.rollout(systems, state, 4, method="change", actions=plan[None])[:, :, 1:]).mean()

    found = control.plan(systems, state, guess, cost, candidates=64, iterations=4, generator=generator)
    others = [average(2 * torch.rand(4, 1, generator=generator) - 1) for _ in range(20)]
    assert float(average(found)) < float(min(others))


@pytest.mark.slow
def test_the_benchmark_runs_and_its_first_trial_is_not_planned(control, tmp_path):
    done = matheron_paper.run(control.EXPERIMENT, "quick", out=tmp_path, workers=1)
    assert done.failed == 0 and done.report is not None
    assert done.report.table.rows[0][:2] == ("pendulum", 1)


@pytest.mark.long
def test_a_pendulum_is_swung_up_within_five_trials(control):
    system = control.SYSTEMS["pendulum"]
    trials = control.learn(system, control.SCALES["full"] | {"episodes": 5}, torch.Generator().manual_seed(0))
    assert len(trials) > 1 and control.solved(system, trials[-1][0])
    assert not control.solved(system, trials[0][0])
