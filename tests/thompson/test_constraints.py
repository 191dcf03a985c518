"""Constraints and several objectives: each path's minimiser is that of its own drawn functions, as on a dense grid."""

from typing import Any

import numpy as np
import pytest
import torch

import matheron
from matheron import kernels as K
from matheron.thompson import InfeasibleWarning, minimize_function, suggest

BOX = [[0.0, 0.0], [1.0, 1.0]]
SMALL: dict[str, Any] = {"mesh_size": 4096, "num_starts": 24}
FAST: dict[str, Any] = {"mesh_size": 256, "num_starts": 6, "num_features": 128}
AXIS = torch.linspace(0, 1, 201, dtype=torch.float64)
GRID = torch.cartesian_prod(AXIS, AXIS)


def model(seed=0, lengthscale=0.3):
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(10, 2, generator=generator, dtype=torch.float64)
    y = torch.randn(10, generator=generator, dtype=torch.float64)
    return matheron.ExactGP(K.Matern(2.5, lengthscale), X, y, 1e-3)


@pytest.fixture(scope="module")
def pair():
    """Six draws of an objective and a constraint."""
    return matheron.draw(matheron.Outputs([model(0), model(1)]), 6, num_features=256, seed=0)


def disc(x):
    return (x - 0.4).square().sum(-1) - 0.04


def feasible_minimum(values, *constraints):
    """The lowest of values `[s, n]` where constraints `[n]` or `[s, n]` are met."""
    met = torch.stack([(c <= 0).expand_as(values) for c in constraints]).all(0)
    return torch.where(met, values, torch.inf).amin(1)


def assert_minimises(minima, paths, lowest, *, column=None):
    """Nothing on the grid is lower, and values are the paths' own at the points."""
    assert bool((minima.value <= lowest + 1e-6).all())
    assert bool((minima.value >= lowest - 0.05 * (1 + lowest.abs())).all())  # a grid is near to it
    own = paths(minima.x[:, None])[:, 0]
    torch.testing.assert_close(own if column is None else own[:, column], minima.value)


@pytest.mark.parametrize("limit", [0.0, -0.5])
def test_each_path_is_held_to_its_own_draw_of_the_constraint(pair, limit):
    minima = matheron.minimize(pair, BOX, constraints={1: limit} if limit else 1, seed=0, **SMALL)
    on_grid = pair(GRID)
    assert_minimises(minima, pair, feasible_minimum(on_grid[..., 0], on_grid[..., 1] - limit), column=0)
    drawn = pair(minima.x[:, None])[:, 0, 1]
    assert bool((drawn <= limit).all()) and bool(minima.feasible.all())
    assert minima.violation is not None and minima.violation.shape == (6, 1) and not bool(minima.violation.any())
    assert int((drawn > limit - 1e-3).sum()) >= 2  # active for some: free minima lie elsewhere


@pytest.mark.parametrize("kind", ["torch", "numpy", "several columns", "two functions"])
def test_a_constraint_that_is_known_is_the_same_for_all_paths(pair, kind):
    def line(x):
        return x[..., 0] - x[..., 1]

    constraints: Any = {
        "torch": disc,
        "numpy": lambda x: ((np.asarray(x) - 0.4) ** 2).sum(-1) - 0.04,
        "several columns": lambda x: torch.stack([disc(x), line(x)], dim=-1),
        "two functions": [disc, line],
    }[kind]
    objective = matheron.draw(model(0), 6, num_features=256, seed=0)
    minima = matheron.minimize(objective, BOX, constraints=constraints, seed=0, **SMALL)
    both = [disc(GRID)] if kind in ("torch", "numpy") else [disc(GRID), line(GRID)]
    assert_minimises(minima, objective, feasible_minimum(objective(GRID), *both))
    assert bool((disc(minima.x) <= 0).all()) and minima.violation is not None
    assert minima.violation.shape == (6, len(both))


def test_paths_of_another_model_are_constraints_path_by_path(pair):
    objective, constraint = (matheron.draw(model(i), 6, num_features=256, seed=i) for i in range(2))
    minima = matheron.minimize(objective, BOX, constraints=constraint, seed=0, **SMALL)
    assert_minimises(minima, objective, feasible_minimum(objective(GRID), constraint(GRID)))
    assert bool((constraint(minima.x[:, None])[:, 0] <= 0).all())


def test_a_thin_feasible_set_between_the_points_of_the_mesh_is_found(pair):
    def thin(x):
        return (x[..., 0] - x[..., 1]).abs() - 1e-4

    objective = matheron.draw(model(0), 6, num_features=256, seed=0)
    minima = matheron.minimize(objective, BOX, constraints=thin, seed=0, **SMALL)
    assert_minimises(minima, objective, objective(AXIS[:, None].expand(-1, 2)).amin(1))
    assert bool((thin(minima.x) <= 0).all())


def test_where_nothing_is_feasible_the_violation_is_least_and_that_is_said(pair):
    limit = float(pair(GRID)[..., 1].amin()) - 0.5  # below all of every path
    with pytest.warns(InfeasibleWarning, match="for 6 paths of 6: their points have the least violation"):
        minima = matheron.minimize(pair, BOX, constraints={1: limit}, seed=0, **SMALL)
    assert not bool(minima.feasible.any()) and set(minima.ending) == {"infeasible: least violation"}
    assert "0 of them feasible" in repr(minima) and minima.violation is not None
    least = pair(GRID)[..., 1].amin(1) - limit
    assert bool((minima.violation[:, 0] <= least + 1e-6).all())
    assert bool((minima.violation[:, 0] >= least - 0.05).all())


def test_constraints_that_never_bind_leave_the_free_minimum(pair):
    objective = matheron.draw(model(0), 6, num_features=256, seed=0)
    free = matheron.minimize(objective, BOX, seed=0, **SMALL)
    slack = matheron.minimize(objective, BOX, constraints=lambda x: x.sum(-1) - 5, seed=0, **SMALL)
    torch.testing.assert_close(slack.value, free.value, atol=1e-6, rtol=1e-6)


def test_maxima_meet_the_same_constraints(pair):
    maxima = matheron.maximize(pair, BOX, constraints=[1, disc], seed=0, **SMALL)
    on_grid = pair(GRID)
    expected = -feasible_minimum(-on_grid[..., 0], on_grid[..., 1], disc(GRID))
    assert bool((maxima.value >= expected - 1e-6)[maxima.feasible].all())
    own = pair(maxima.x[:, None])[:, 0]
    torch.testing.assert_close(own[:, 0], maxima.value)
    assert bool((own[maxima.feasible, 1] <= 0).all())


def test_in_single_precision_constraints_are_met_too(pair):
    minima = matheron.minimize(pair.float(), BOX, constraints=[1, disc], seed=0, **SMALL)
    assert minima.x.dtype == torch.float32
    met = minima.feasible
    assert int(met.sum()) >= 5 and bool((pair.float()(minima.x[:, None])[met, 0, 1] <= 0).all())


def test_units_of_values_and_constraints_make_no_difference(pair):
    def scaled(a, b):
        gps = [model(0), model(1)]
        many = [gp.replaced(output_transform=matheron.transforms.Affine(s)) for gp, s in zip(gps, (a, b), strict=True)]
        paths = matheron.draw(matheron.Outputs(many), 6, num_features=256, seed=0)
        return matheron.minimize(paths, BOX, constraints=1, seed=0, **SMALL)

    torch.testing.assert_close(scaled(1.0, 1.0).x, scaled(1e6, 1e-5).x, atol=1e-3, rtol=0)


def test_of_several_objectives_points_are_on_each_path_s_own_front(pair):
    minima = matheron.minimize(pair, BOX, seed=0, **SMALL)
    assert minima.value.shape == (6, 2)
    torch.testing.assert_close(pair(minima.x[:, None])[:, 0], minima.value)
    on_grid = pair(GRID)  # [s, n, 2]
    better = (on_grid < minima.value[:, None] - 1e-3).all(-1)
    assert not bool(better.any())


def test_weights_say_which_point_of_the_front_it_is(pair):
    first = matheron.minimize(pair, BOX, weights=[1.0, 0.0], seed=0, **SMALL)
    lowest = pair(GRID).amin(1)  # [s, 2]
    torch.testing.assert_close(first.value[:, 0], lowest[:, 0], atol=0.02, rtol=0.02)
    each = torch.tensor([[1.0, 0.0]] * 3 + [[0.0, 1.0]] * 3)
    mixed = matheron.minimize(pair, BOX, weights=each, seed=0, **SMALL)
    torch.testing.assert_close(mixed.value[3:, 1], lowest[3:, 1], atol=0.02, rtol=0.02)


def test_objectives_and_constraints_go_together():
    gps = matheron.Outputs([model(i) for i in range(3)])
    paths = matheron.draw(gps, 4, num_features=256, seed=0)
    minima = matheron.minimize(paths, BOX, constraints=2, seed=0, **SMALL)
    on_grid = paths(GRID)
    better = (on_grid[..., :2] < minima.value[:, None] - 1e-3).all(-1) & (on_grid[..., 2] <= 0)
    assert minima.value.shape == (4, 2) and bool(minima.feasible.all()) and not bool(better.any())


REFUSED = [
    ({"constraints": 2}, ValueError, r"constraints: expected outputs 0 to 1 of these functions, got 2"),
    ({"constraints": [0, 1]}, ValueError, "expected an output that is none, to be minimised, got all 2"),
    ({"constraints": "1"}, TypeError, "constraints: expected functions of points, numbers of outputs, or drawn"),
    ({"constraints": lambda x: x[0] - 1}, ValueError, r"returns \[n\], .* got \[2\] for \[3, 2\]; .* is x\[..., 0\]"),
    ({"constraints": matheron.draw_prior(K.RBF(), 3, input_dim=2)}, ValueError, "expected 6 paths in 2 .* got 3"),
    ({"constraints": 1, "weights": [0.5, 0.5]}, ValueError, "weights: given, but there is one objective"),
    ({"weights": [0.5, -0.5]}, ValueError, r"weights: expected \[2\] or \[6, 2\] numbers, none negative"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "kind", "message"), REFUSED)
def test_what_is_no_constraint_is_refused(pair, settings: Any, kind, message):
    with pytest.raises(kind, match=message):
        matheron.minimize(pair, BOX, **settings)


# Suggestions.


def exact(function, count=60, noise=1e-6):
    """A model that knows its function well."""
    X = torch.rand(count, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return matheron.ExactGP(9.0 * K.RBF(0.7), X, function(X), noise)


def bowl(x):
    return (x - 0.9).square().sum(-1)


def line(x):
    return x.sum(-1) - 1


@pytest.mark.parametrize("constraints", ["a model", "an output", "a function"])
@pytest.mark.parametrize(
    "settings",
    [{}, {"spread": 0.5, "greedy": True}, {"trust_region": 0.6}, {"strategy": "weight-space", "num_features": 512}],
    ids=str,
)
def test_suggestions_are_near_the_constrained_minimum_where_much_is_known(constraints, settings):
    """The nearest point to (0.9, 0.9) with x + y <= 1 is (0.5, 0.5)."""
    joint = matheron.Outputs([exact(bowl), exact(line)])
    one: Any = {"a model": exact(line), "an output": 1, "a function": line}[constraints]
    gp = joint if constraints == "an output" else joint.models[0]
    x = suggest(gp, BOX, 3, constraints=one, seed=0, **{**FAST, **settings})
    torch.testing.assert_close(x, torch.full((3, 2), 0.5, dtype=torch.float64), atol=0.03, rtol=0)


def test_suggestions_are_the_minimisers_of_draws_with_the_same_seed():
    joint = matheron.Outputs([model(0), model(1)])
    x = suggest(joint, BOX, 3, constraints=1, features="sobol", num_features=64, mesh_size=256, num_starts=8, seed=5)
    generator = torch.Generator().manual_seed(5)
    domain = (BOX[0], BOX[1])
    paths = matheron.draw(joint, 3, features="sobol", num_features=64, domain=domain, generator=generator)
    minima = matheron.minimize(paths, BOX, constraints=1, mesh_size=256, num_starts=8, generator=generator)
    assert torch.equal(x, minima.x)


def test_pending_points_are_given_to_constraints_too():
    x = suggest(model(0), BOX, 2, constraints=model(1), pending=[[0.5, 0.5]], seed=0, **FAST)
    assert x.shape == (2, 2)


@pytest.mark.parametrize("strategy", ["function-space", "random"])
def test_constraints_need_functions_that_are_drawn(strategy):
    with pytest.raises(ValueError, match="constraints: expected a strategy that draws functions"):
        suggest(model(0), BOX, 1, constraints=line, strategy=strategy)


def test_a_greedy_point_is_of_one_objective():
    with pytest.raises(ValueError, match="greedy: expected one objective"):
        suggest(matheron.Outputs([model(0), model(1)]), BOX, 1, greedy=True, **FAST)


def test_a_known_front_has_a_point_for_every_weight():
    """Where z_1 = ((x - 0.2) / 0.6)^2 and z_2 = ((x - 0.8) / 0.6)^2 the scalarisation with weights w and 1 - w is
    lowest at w z_1 = (1 - w) z_2."""
    fronts = [lambda x, at=at: (x[:, 0] - at).square() + x[:, 1] for at in (0.2, 0.8)]
    paths = matheron.draw(matheron.Outputs([exact(f, count=200, noise=1e-9) for f in fronts]), 5, seed=0)
    w = torch.linspace(0.1, 0.9, 5, dtype=torch.float64)
    minima = matheron.minimize(paths, BOX, weights=torch.stack([w, 1 - w], dim=1), seed=0, **SMALL)
    ratio = ((1 - w) / w).sqrt()
    torch.testing.assert_close(minima.x[:, 0], (0.2 + 0.8 * ratio) / (1 + ratio), atol=0.02, rtol=0)
    assert float(minima.x[:, 1].max()) < 1e-3


# The loop. The lowest of x + 2 y where x + y >= 1 and x <= 0.9 is 1.1, at (0.9, 0.1).


def test_the_loop_finds_a_minimum_on_constraints_that_it_learns():
    def function(x):
        a, b = x.tolist()
        return 1 - a - b, a + 2 * b, a  # a constraint, the objective, and a constraint with a limit

    study = minimize_function(function, BOX, 15, 3, constraints=[0, {2: 0.9}], seed=0, **FAST)
    assert study.feasible[study.best] and 1.1 <= study.best_value < 1.2
    assert all((max(c) <= 0) == met for c, met in zip(study.constraints, study.feasible, strict=True) if c)
    assert f"{study.feasible.count(True)} feasible; best 1.1" in repr(study)


def test_the_loop_keeps_to_constraints_that_are_known():
    known = [lambda x: 1 - x.sum(-1), lambda x: x[..., 0] - 0.9]
    study = minimize_function(lambda x: float(x[0] + 2 * x[1]), BOX, 12, constraints=known, seed=0, **FAST)
    assert all(study.feasible) and 1.1 <= study.best_value < 1.11


def test_a_loop_without_a_feasible_point_has_the_one_of_least_violation():
    def function(x):
        return float(x.sum()), 1 + float(x[0])

    study = minimize_function(function, BOX, 9, constraints=1, seed=0, **FAST)
    assert not any(study.feasible) and study.best == min(range(9), key=lambda i: study.points[i][0])
    assert "0 feasible; least violation: value" in repr(study) and study.front == []


def test_the_loop_spreads_over_a_known_front():
    """Parabolas with minima at x = 0.2 and 0.8, both lower for y = 0: the front is 0.2 <= x <= 0.8, y = 0."""

    def function(x):
        return torch.stack([(x[0] - 0.2) ** 2 + x[1], (x[0] - 0.8) ** 2 + x[1]])

    study = minimize_function(function, BOX, 18, 4, num_objectives=2, seed=0, **FAST)
    x, F = study.front_x, study.front_values
    assert len(study.front) >= 8 and f"a front of {len(study.front)} points" in repr(study)
    torch.testing.assert_close(F, torch.stack([function(row) for row in x]))
    late = torch.tensor(study.points[8:])
    assert float(late[:, 1].median()) < 0.02 and float(x[:, 0].std()) > 0.07
    assert float(x[:, 0].min()) > 0.15 and float(x[:, 0].max()) < 0.85
    others = torch.tensor([value for value in study.values if value is not None], dtype=torch.float64)
    assert not bool(((others[:, None] <= F).all(-1) & (others[:, None] < F).any(-1)).any())
    with pytest.raises(ValueError, match=r"several objectives have no best point; their Pareto front is study.front"):
        _ = study.best


def test_several_objectives_keep_to_constraints():
    def function(x):
        return float(x[0]), float(x[1]), 1 - float(x.sum())

    study = minimize_function(function, BOX, 15, 3, constraints=2, num_objectives=2, seed=0, **FAST)
    front = study.front_x
    assert len(front) >= 3 and bool((front.sum(1) >= 1).all()) and float(front.sum(1).min()) < 1.05


def test_a_study_with_constraints_goes_on_from_its_file(tmp_path):
    def function(x):
        return float(x.sum()), 0.5 - float(x[0])

    settings: dict[str, Any] = {"constraints": 1, "state": tmp_path / "study.json", **FAST}
    minimize_function(function, BOX, 8, seed=0, **settings)
    study = minimize_function(function, BOX, 11, seed=1, **settings)
    assert len(study.points) == len(study.constraints) == 11
    with pytest.raises(ValueError, match=r"holds a study of 1 objective and 1 constraint, expected 1 and 0"):
        minimize_function(lambda x: 0.0, BOX, 12, state=tmp_path / "study.json")


def test_a_failed_evaluation_has_no_constraints():
    def fragile(x):
        if x[0] > 0.5:
            raise RuntimeError("no answer")
        return float(x.sum()), 0.2 - float(x[0])

    with pytest.warns(matheron.thompson.EvaluationWarning):
        study = minimize_function(fragile, BOX, 12, constraints=1, seed=0, **FAST)
    failed = [value is None for value in study.values]
    assert any(failed) and [limit is None for limit in study.constraints] == failed and study.feasible[study.best]


@pytest.mark.parametrize(
    ("settings", "kind", "message"),
    [
        ({"constraints": 5}, ValueError, r"expected numbers from 0 to 1, of 1 objective and 1 constraint, got \[5\]"),
        ({"constraints": model()}, TypeError, "constraints: expected functions of points, or which of the function's"),
        ({"num_objectives": 2, "trust_region": True}, ValueError, "trust_region: expected one objective"),
        ({"constraints": 1, "strategy": "function-space"}, ValueError, "strategy: function-space draws are of values"),
    ],
)
def test_wrong_settings_of_the_loop_are_said_before_anything_is_evaluated(settings: Any, kind, message):
    def function(x):
        raise AssertionError("it was evaluated")

    with pytest.raises(kind, match=message):
        minimize_function(function, BOX, 8, **settings)


def test_a_function_of_two_numbers_is_asked_what_they_are():
    with (
        pytest.warns(matheron.thompson.EvaluationWarning),
        pytest.raises(ValueError, match="expected one number, got 2; for more than one give num_objectives"),
    ):
        minimize_function(lambda x: (1.0, 2.0), BOX, 20, seed=0)
