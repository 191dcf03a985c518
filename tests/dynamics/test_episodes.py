"""From recorded episodes to a model that simulates them."""

import numpy as np
import pandas as pd
import pytest
import torch

import matheron
from matheron import kernels as K
from matheron.dynamics import fit_dynamics, transitions


def pendulum(x):
    return torch.stack([x[:, 1], -2 * torch.sin(x[:, 0]) + x[:, 2]], dim=1)


def recorded(generator, episodes=4, steps=25):
    torque = 2 * torch.rand(episodes, steps, 1, dtype=torch.float64, generator=generator) - 1
    start = 2 * torch.rand(episodes, 2, dtype=torch.float64, generator=generator) - 1
    return matheron.rollout(pendulum, start, steps, 0.1, controls=torque, method="rk4"), torque


@pytest.mark.slow
def test_a_learned_system_moves_as_the_true_one_does(generator):
    states, torque = recorded(generator)
    model = fit_dynamics(states, torque, kernel=1.0 * K.RBF([1.0, 1.0, 1.0]), seed=0)
    systems = matheron.draw(model, 32, generator=generator)
    plan = 0.3 * torch.ones(20, 1, dtype=torch.float64)
    simulated = matheron.rollout(systems, [0.2, 0.1], 20, method="change", controls=plan)
    true = matheron.rollout(pendulum, [0.2, 0.1], 20, 0.1, controls=plan, method="rk4")
    assert float((simulated.mean(0) - true[0]).abs().max()) < 0.05


def test_a_frame_an_array_and_a_list_have_the_same_transitions(generator):
    states, torque = recorded(generator, episodes=3, steps=5)
    rows = [
        {"run": name, "angle": float(s[0]), "velocity": float(s[1]), "torque": float(torque[e, min(t, 4), 0])}
        for e, name in enumerate(["c", "a", "b"])
        for t, s in enumerate(states[e])
    ]
    frame = pd.DataFrame(rows)
    expected = transitions(states, torque)
    unknown_at_the_end = frame.assign(torque=frame["torque"].where(frame.index % 6 != 5))  # no control follows it
    assert int(unknown_at_the_end["torque"].isna().to_numpy().sum()) == 3
    for X, Y in (
        transitions(list(states), list(torque)),
        transitions(states.numpy(), torque.numpy()),
        transitions(frame, "torque", states=["angle", "velocity"], episode="run"),
        transitions(unknown_at_the_end, ["torque"], states=["angle", "velocity"], episode="run"),
    ):
        torch.testing.assert_close(X, expected[0])
        torch.testing.assert_close(Y, expected[1])
    assert expected[0].shape == (15, 3)


def test_methods_say_what_is_learned():
    s = np.array([[0.0], [1.0], [4.0]])
    assert transitions(s)[1][:, 0].tolist() == [1.0, 3.0]
    assert transitions(s, method="next")[1][:, 0].tolist() == [1.0, 4.0]
    assert transitions(s, method="euler", dt=0.5)[1][:, 0].tolist() == [2.0, 6.0]


def test_times_say_how_long_each_step_was():
    states, times = [[[0.0], [1.0], [4.0]], [[5.0], [4.0]]], [[0.0, 0.5, 2.5], [1.0, 1.25]]
    assert transitions(states, time=times, method="euler")[1][:, 0].tolist() == [2.0, 1.5, -4.0]
    rows = [
        (run, t, s[0]) for run, (S, T) in enumerate(zip(states, times, strict=True)) for s, t in zip(S, T, strict=True)
    ]
    frame = pd.DataFrame(rows, columns=["run", "seconds", "angle"])
    frame["date"] = pd.to_datetime(frame["seconds"], unit="s")
    frame["duration"] = pd.to_timedelta(frame["seconds"].tolist(), unit="s")
    for column in ("seconds", "date", "duration"):
        Y = transitions(frame, states="angle", episode="run", time=column, method="euler")[1]
        assert Y[:, 0].tolist() == [2.0, 1.5, -4.0]


def test_transitions_that_touch_a_missing_value_are_left_out_with_a_warning():
    frame = pd.DataFrame({"angle": [0.0, 1.0, None, 3.0, 5.0, 8.0], "torque": [1.0, 1.0, 1.0, 1.0, None, 1.0]})
    with pytest.warns(UserWarning, match="3 of 5 transitions have missing values"):
        X, Y = transitions(frame, "torque", states="angle")
    assert (X[:, 0].tolist(), Y[:, 0].tolist()) == ([0.0, 3.0], [1.0, 2.0])
    padded = np.array([[[0.0], [1.0], [3.0]], [[5.0], [4.0], [np.nan]]])
    with pytest.warns(UserWarning, match="1 of 4 transitions"):
        assert transitions(padded)[1][:, 0].tolist() == [1.0, 2.0, -1.0]


@pytest.mark.parametrize("method", ["change", "next"])
def test_a_map_is_not_learned_over_rows_that_are_missing(method, generator):
    states, _ = recorded(generator, episodes=2, steps=9)
    seconds = np.arange(10) / 10 + np.random.default_rng(0).uniform(-1e-3, 1e-3, 10)  # no clock is exact
    frame = pd.DataFrame(
        {
            "run": np.repeat(["a", "b"], 10),
            "date": pd.to_datetime(np.tile(seconds, 2), unit="s"),
            "angle": states[..., 0].flatten().numpy(),
            "velocity": states[..., 1].flatten().numpy(),
        }
    )
    settings = {"states": ["angle", "velocity"], "episode": "run", "time": "date", "method": method}
    X, Y = transitions(frame, **settings)
    with pytest.warns(UserWarning, match="2 of 15 transitions .* lead over a gap in time"):
        some = transitions(frame.drop(index=[4, 14, 15]), **settings)
    kept = [0, 1, 2, 5, 6, 7, 8, 9, 10, 11, 15, 16, 17]
    assert torch.equal(some[0], X[kept]) and torch.equal(some[1], Y[kept])


def test_episodes_and_times_may_be_the_index_of_a_frame(generator):
    states, _ = recorded(generator, episodes=2, steps=3)
    frame = pd.DataFrame(
        {"run": np.repeat([0, 1], 4), "t": np.tile(np.arange(4.0), 2), "angle": states[..., 0].flatten()}
    )
    X, Y = transitions(frame, states="angle", episode="run", time="t")
    for levels in (["run", "t"], ["run"]):
        again = transitions(frame.set_index(levels), states="angle", episode="run", time="t")
        assert torch.equal(again[0], X) and torch.equal(again[1], Y)


@pytest.mark.parametrize(
    ("data", "settings", "message"),
    [
        (np.zeros((3, 1)), {"method": "rk4"}, "method: expected change, next or euler to learn"),
        (np.zeros((3, 1)), {"method": "euler"}, "dt: expected a positive time between states"),
        (np.zeros((1, 2)), {}, "at least two states, got none"),
        ([np.zeros((3, 1)), np.zeros((3, 2))], {}, "expected episodes .* of one width d"),
        (np.zeros((2, 3, 1)), {"controls": np.zeros((1, 2, 1))}, "controls: expected those of 2 episodes, got 1"),
        (
            np.zeros((4, 1)),
            {"controls": np.zeros((2, 1))},
            "controls: expected 3 of episode 0, one between states, got 2",
        ),
        (pd.DataFrame({"a": [1.0, 2.0]}), {}, "states: expected the names of the state columns among a"),
        (pd.DataFrame({"a": [1.0, 2.0]}), {"states": "whole"}, "'whole' is not a column; expected one of a"),
        (
            pd.DataFrame({"a": [1.0, 2.0, 3.0], "run": ["one", None, None]}),
            {"states": ["a"], "episode": "run"},
            "episode: expected a value in every row of 'run', got 2 missing",
        ),
        (pd.DataFrame({"a": []}), {"states": "a"}, "at least two states, got none"),
        (pd.DataFrame({"a": ["x", "y"]}), {"states": "a"}, "data: expected numbers in column 'a'"),
        (np.full((3, 1), np.nan), {}, "without missing values, got none among 2"),
        (np.full((3, 1), np.inf), {}, "expected finite numbers, or NaN where one is missing"),
        (
            np.zeros((4, 1)),
            {"time": [0.0, 1.0, 2.0, 3.25]},
            'steps are 1 to 1.25 long, and method="change" learns a map of one',
        ),
        (np.zeros((3, 1)), {"time": [0.0, 2.0, 1.0], "method": "euler"}, "expected times that increase"),
        (np.zeros((3, 1)), {"time": [0.0, 2.0], "method": "euler"}, r"of each episode \[3\], got shapes \[\[2\]\]"),
        (np.zeros((3, 1)), {"time": [0.0, 1.0, 2.0], "dt": 1.0}, "expected dt, or the times of the states, got both"),
        (np.zeros((3, 1)), {"dt": np.ones(2), "method": "euler"}, "for steps of several lengths give time"),
    ],
)
def test_what_is_no_record_of_a_system_is_refused(data, settings, message):
    with pytest.raises(ValueError, match=message):
        transitions(data, **settings)
