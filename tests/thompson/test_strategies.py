"""Strategies of Thompson sampling, and the loop around them."""

import inspect
import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
import torch

import matheron
from matheron import kernels as K
from matheron.compare.samplers import marginals, moments
from matheron.thompson import STRATEGIES, EvaluationWarning, Study, minimize_function, strategies, suggest
from matheron.thompson.strategies import toward_mean

BOX = [[0.0, 0.0], [1.0, 1.0]]


@pytest.fixture
def gp(generator):
    X = torch.rand(25, 2, dtype=torch.float64, generator=generator)
    return matheron.ExactGP(K.Matern(2.5, 0.3), X, (X - 0.4).square().sum(1) * 10 - 2, 1e-4)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_suggests_points_in_the_box(strategy, gp, generator):
    x = suggest(gp, BOX, 3, strategy=strategy, num_features=128, mesh_size=1000, num_starts=4, generator=generator)
    assert x.shape == (3, 2) and bool(((x >= 0) & (x <= 1)).all())
    assert len(x.unique(dim=0)) == 3  # a function each, a point each


@pytest.mark.parametrize("strategy", ["decoupled", "weight-space", "function-space"])
def test_with_much_data_the_suggestions_are_near_the_minimum(strategy, gp, generator):
    x = suggest(gp, BOX, 8, strategy=strategy, num_features=512, mesh_size=1500, num_starts=4, generator=generator)
    assert float((x - 0.4).norm(dim=1).median()) < 0.2


def test_function_space_and_decoupled_minimisers_have_one_law(generator):
    gp = matheron.ExactGP(K.Matern(2.5, 0.25), [[0.2], [0.8]], [-0.5, -0.5], 1e-3)
    settings: dict[str, Any] = {"num_features": 256, "mesh_size": 200, "num_starts": 4, "generator": generator}
    one = suggest(gp, [[0.0], [1.0]], 400, **settings)[:, 0].sort().values
    other = suggest(gp, [[0.0], [1.0]], 400, strategy="function-space", **settings)[:, 0].sort().values
    grid = torch.linspace(
        0.02, 0.98, 100, dtype=torch.float64
    )  # a mesh has no points at the ends, where many minima are
    gap = torch.searchsorted(one, grid) / 400 - torch.searchsorted(other, grid) / 400
    assert float(gap.abs().max()) < 1.95 * (2 / 400) ** 0.5  # Kolmogorov and Smirnov's bound at 0.1%


def test_marginals_are_those_of_the_posterior(gp, generator):
    x = torch.rand(30, 2, dtype=torch.float64, generator=generator)
    exact = moments(gp, x)
    mean, deviation = marginals(gp, x)
    torch.testing.assert_close(mean, exact.mean)
    torch.testing.assert_close(deviation, exact.covariance.diagonal().sqrt())
    sparse = matheron.SparseGP(K.RBF(0.4), x[:5], torch.ones(5), torch.full((5,), 0.2), mean=1.0, jitter=1e-6)
    exact, (mean, deviation) = moments(sparse, x), marginals(sparse, x)
    torch.testing.assert_close(mean, exact.mean)
    torch.testing.assert_close(deviation, exact.covariance.diagonal().clamp_min(0).sqrt(), atol=1e-6, rtol=1e-6)


def test_pending_points_are_given_the_mean(gp, generator):
    pending = torch.tensor([[0.4, 0.4]], dtype=torch.float64)
    x = suggest(gp, BOX, 4, pending=pending, num_features=128, mesh_size=500, num_starts=4, generator=generator)
    assert x.shape == (4, 2)
    with pytest.raises(ValueError, match="pending"):
        suggest(gp, BOX, 1, strategy="weight-space", pending=pending)


def test_unknown_strategies_are_refused(gp):
    with pytest.raises(ValueError, match="strategy: expected one of decoupled, weight-space"):
        suggest(gp, BOX, 1, strategy="greedy")
    with pytest.raises(ValueError, match="q: expected a whole number"):
        suggest(gp, BOX, 0)


def bowl(x):
    return float((x - 0.6).square().sum())


FAST: dict[str, Any] = {"mesh_size": 300, "num_starts": 4, "num_features": 128}


def test_the_loop_finds_a_minimum_with_known_hyperparameters(generator):
    study = minimize_function(bowl, BOX, 20, 2, kernel=K.RBF(0.5), generator=generator, **FAST)
    assert len(study.points) == 20 and study.best_value < 1e-2
    assert float((study.best_x - 0.6).norm()) < 0.1


def test_the_loop_fits_a_model_where_none_is_given(generator):
    study = minimize_function(bowl, BOX, 12, 3, noise=1e-6, generator=generator, **FAST)
    assert study.best_value < 0.05


def test_errors_and_nans_are_reported_and_survived(generator):
    calls = 0

    def fragile(x):
        nonlocal calls
        calls += 1
        if calls % 4 == 0:
            raise RuntimeError("the rig is busy")
        return float("nan") if calls % 5 == 0 else bowl(x)

    with pytest.warns(EvaluationWarning, match="the function raised RuntimeError: the rig is busy"):
        study = minimize_function(fragile, BOX, 16, kernel=K.RBF(0.5), generator=generator, **FAST)
    assert len(study.points) == 16 and study.values.count(None) == len(study.failures) == calls // 4 + calls // 5


def test_a_function_that_always_fails_says_so(generator):
    with pytest.warns(EvaluationWarning):
        study = minimize_function(lambda x: float("inf"), BOX, 5, kernel=K.RBF(), generator=generator, **FAST)
    with pytest.raises(ValueError, match="every evaluation failed"):
        _ = study.best


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda x: None, "returned None"),
        (lambda x: [1.0, 2.0], "expected one number, got 2"),
        (lambda: 0, "positional"),
    ],
)
@pytest.mark.filterwarnings("ignore::matheron.thompson.EvaluationWarning")
def test_a_function_that_fails_from_the_first_is_not_called_to_the_end_of_the_budget(wrong, said, generator):
    with pytest.raises(ValueError, match=f"all of the first 6 evaluations failed, the last at .*{said}"):
        minimize_function(wrong, BOX, 500, kernel=K.RBF(), generator=generator, **FAST)


def test_a_study_says_what_it_found_in_a_line(generator):
    study = minimize_function(bowl, BOX, 8, kernel=K.RBF(0.5), generator=generator, **FAST)
    assert repr(study).startswith(f"Study(8 evaluations in 2 dimensions; best {study.best_value:.4g} at [")
    study.values[0] = None
    assert "8 evaluations in 2 dimensions, 1 failed; best" in repr(study)
    assert repr(Study([[0.0], [1.0]], [[0.5]], [None], ["no"])) == "Study(1 evaluation in 1 dimension, 1 failed)"


def test_a_study_goes_on_from_its_file(tmp_path, generator):
    state = tmp_path / "study.json"
    first = minimize_function(bowl, BOX, 8, kernel=K.RBF(0.5), state=state, generator=generator, **FAST)
    calls = []
    again = minimize_function(
        lambda x: calls.append(x) or bowl(x), BOX, 11, kernel=K.RBF(0.5), state=state, generator=generator, **FAST
    )
    assert len(calls) == 3 and again.points[:8] == first.points
    with pytest.raises(ValueError, match="a study of other bounds"):
        minimize_function(bowl, [[0.0, 0.0], [2.0, 1.0]], 3, kernel=K.RBF(), state=state)
    state.write_text("{")
    with pytest.raises(ValueError, match="not a study"):
        minimize_function(bowl, BOX, 3, kernel=K.RBF(), state=state)


def test_a_search_that_was_stopped_among_its_first_points_takes_the_others_of_them(tmp_path):
    """With one seed a search begins with one list of points, resumed or not: none of these is evaluated twice."""
    settings = {"kernel": K.RBF(0.5), "seed": 0, **FAST}
    whole = minimize_function(bowl, BOX, 7, **settings)
    for budget in (2, 5, 7):
        study = minimize_function(bowl, BOX, budget, num_initial=6, state=tmp_path / "study.json", **settings)
    assert study.points[:6] == whole.points[:6]
    assert [path.name for path in tmp_path.iterdir()] == ["study.json"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="kills as POSIX does")
def test_a_killed_run_loses_only_the_evaluation_in_flight(tmp_path):
    state, script = tmp_path / "study.json", tmp_path / "run.py"
    script.write_text(
        "import sys, time, matheron\n"
        "from matheron import kernels as K\n"
        "def slow(x):\n    time.sleep(0.05)\n    return float((x - 0.6).square().sum())\n"
        "matheron.thompson.minimize_function(\n"
        "    slow, [[0.0, 0.0], [1.0, 1.0]], 10000, kernel=K.RBF(0.5), state=sys.argv[1],\n"
        "    mesh_size=100, num_starts=2, num_features=32)\n"
    )
    process = subprocess.Popen([sys.executable, str(script), str(state)])
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (state.exists() and len(json.loads(state.read_text())["points"]) >= 8):
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    kept = json.loads(state.read_text())
    assert len(kept["points"]) == len(kept["values"]) >= 8
    study = minimize_function(bowl, BOX, len(kept["points"]) + 2, kernel=K.RBF(0.5), state=state, **FAST)
    assert study.points[: len(kept["points"])] == kept["points"]


def test_the_mesh_of_suggestions_is_that_of_minimize(gp, monkeypatch):
    sizes = []

    def minimize_together(many, bounds, *, mesh_size, **settings):
        sizes.append(mesh_size)
        return [matheron.minimize(many[0], bounds, mesh_size=8, num_starts=1)]

    monkeypatch.setattr("matheron.thompson.strategies.minimize_together", minimize_together)
    suggest(gp, BOX, 1, num_features=8)
    assert sizes == [inspect.signature(matheron.thompson.minimize_together).parameters["mesh_size"].default]


@pytest.mark.parametrize("features", [None, "auto", "sobol"])
def test_functions_are_drawn_for_the_box_and_on_no_lattice(features, gp, monkeypatch):
    drawn = []

    def recorded(*args, **settings):
        drawn.append((settings["domain"], draw(*args, **settings)))
        return drawn[-1][1]

    draw = strategies.draw
    monkeypatch.setattr(strategies, "draw", recorded)
    suggest(gp, BOX, 2, features=features, mesh_size=64, num_starts=2, seed=0)
    ((domain, paths),) = drawn
    torch.testing.assert_close(torch.stack(domain), torch.tensor(BOX).double())
    assert [choice.kind for choice in paths.prior.features.choices] == [features if features == "sobol" else "leverage"]


def test_each_model_needs_a_generator(gp):
    with pytest.raises(ValueError, match="expected one for each model, got 2 models and 1"):
        matheron.thompson.suggest_together([gp, gp], BOX, 1, generators=[torch.Generator()])


def test_with_a_trust_region_points_are_near_the_best_and_lower_there(gp):
    """In the region about the best data, cut at the box, and no higher than any point of a fine mesh of the region."""
    box = torch.as_tensor(BOX, dtype=torch.float64)
    best = gp.train_inputs[gp.train_targets.argmin()]
    x = suggest(gp, box, 4, trust_region=0.2, seed=0, num_features=64)
    half = 0.1 * (box[1] - box[0]) + 1e-9
    assert bool(((x - best).abs() <= half).all()) and bool(((x >= box[0]) & (x <= box[1])).all())
    paths = matheron.draw(gp, 4, num_features=64, seed=0, features="leverage", domain=(0.0, 1.0))
    low, high = torch.maximum(best - half, box[0]), torch.minimum(best + half, box[1])
    mesh = low + (high - low) * torch.rand(2000, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert bool((paths.value_and_grad(x, of=range(4))[0] <= paths(mesh).amin(1) + 1e-6).all())


def test_a_trust_region_follows_lengthscales_and_units():
    """A model in units of its own: sides are long where lengthscales are, and as the box is."""
    X = torch.tensor([[50.0, 5.0]], dtype=torch.float64)
    inward = matheron.transforms.Affine(torch.tensor([0.01, 0.1], dtype=torch.float64), torch.zeros(2))
    gp = matheron.ExactGP(K.RBF([0.8, 0.2]), inward(X), [0.0], 1e-6, input_transform=inward)
    x = suggest(
        gp, [[0.0, 0.0], [100.0, 10.0]], 200, trust_region=0.1, seed=0, num_features=64, mesh_size=64, num_starts=1
    )
    reach = ((x - X) / torch.tensor([100.0, 10.0], dtype=torch.float64)).abs().amax(0)
    torch.testing.assert_close(reach, 0.05 * torch.tensor([2.0, 0.5], dtype=torch.float64), rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    "warp", [matheron.transforms.Log(10.0, [True, False]), matheron.transforms.Kumaraswamy([0.5, 1.0], 1.0)]
)
def test_a_trust_region_takes_models_whose_inputs_are_warped(warp):
    """Sides are in the box as the model sees it, where a logarithm of 1e-4 to 1 is four units long."""
    X = torch.tensor([[0.1, 0.5]], dtype=torch.float64)
    box = torch.tensor([[1e-4, 0.0], [1.0, 1.0]], dtype=torch.float64)
    inner = warp(box)[1] - warp(box)[0]
    gp = matheron.ExactGP(K.RBF(0.3 * inner), warp(X), [0.0], 1e-6, input_transform=warp)
    x = suggest(gp, box, 200, trust_region=0.1, seed=0, num_features=64, mesh_size=64, num_starts=1)
    reach = ((x - X) / (box[1] - box[0])).abs().amax(0)
    torch.testing.assert_close(reach, torch.full((2,), 0.05, dtype=torch.float64), rtol=1e-6, atol=0)


def test_a_search_with_a_trust_region_goes_on_where_it_was(tmp_path):
    """Stopped and resumed it has the region that it would have had: sides follow from the values."""
    settings = {"kernel": K.RBF(0.5), "trust_region": True, "q": 2, **FAST}

    def bowl(x):
        return float((x - 0.3).square().sum())

    study = minimize_function(bowl, BOX, 14, state=tmp_path / "study.json", seed=0, **settings)
    study = minimize_function(bowl, BOX, 18, state=tmp_path / "study.json", seed=0, **settings)
    assert len(study.values) == 18 and study.best_value < 0.01
    with pytest.raises(ValueError, match="trust_region: expected a share of the box above zero"):
        suggest(None, BOX, 1, strategy="random", trust_region=0.5)


def test_a_greedy_point_is_the_minimiser_of_the_mean_and_the_others_are_draws_own(gp):
    settings: dict[str, Any] = {"num_features": 128, "mesh_size": 500, "num_starts": 4, "seed": 0}
    plain, greedy = suggest(gp, BOX, 3, **settings), suggest(gp, BOX, 3, greedy=True, **settings)
    assert torch.equal(plain[1:], greedy[1:]) and not torch.equal(plain[0], greedy[0])
    axis = torch.linspace(0, 1, 41, dtype=torch.float64)
    lowest = float(marginals(gp, torch.cartesian_prod(axis, axis))[0].min())
    assert float(moments(gp, greedy[:1]).mean) <= lowest + 1e-9
    in_region = suggest(gp, BOX, 3, greedy=True, trust_region=0.1, **settings)
    torch.testing.assert_close(in_region[0], greedy[0], atol=1e-4, rtol=0.0)


def test_a_mean_that_is_lowest_at_a_datum_leaves_the_draws(generator):
    rough = matheron.ExactGP(K.Matern(0.5, 1.0), [[0.2, 0.2], [0.7, 0.6]], [0.0, -1.0], 1e-6)
    settings: dict[str, Any] = {"num_features": 64, "mesh_size": 200, "num_starts": 2, "seed": 0}
    assert torch.equal(suggest(rough, BOX, 2, **settings), suggest(rough, BOX, 2, greedy=True, **settings))


def test_a_greedy_point_in_ten_dimensions_is_found_from_the_data(generator):
    X = torch.rand(40, 10, dtype=torch.float64, generator=generator)
    gp = matheron.ExactGP(K.Matern(2.5, 1.0), X, (X - 0.5).square().sum(1), 1e-4)
    x = suggest(gp, [[0.0] * 10, [1.0] * 10], 1, greedy=True, num_features=64, mesh_size=64, num_starts=2, seed=0)
    assert float(moments(gp, x).mean) < float(moments(gp, X).mean.min()) - 0.05


def test_greedy_needs_functions_that_are_drawn(gp):
    with pytest.raises(ValueError, match="greedy: expected a strategy that draws functions, got 'function-space'"):
        suggest(gp, BOX, 2, greedy=True, strategy="function-space")


def test_functions_of_less_spread_are_nearer_to_the_mean_by_that_share(gp):
    """Their values and gradients, and the minimiser that is found: of the same draws with smaller deviations."""
    settings: dict[str, Any] = {"num_features": 128, "mesh_size": 500, "num_starts": 4}
    paths = matheron.draw(gp, 3, num_features=128, seed=0, features="leverage", domain=(0.0, 1.0))
    near = toward_mean(paths, 0.3)
    x = torch.rand(5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    expected = paths.mean(x) + 0.3 * (paths(x) - paths.mean(x))  # [s, n]
    torch.testing.assert_close(near(x), expected)
    torch.testing.assert_close(near(x.expand(3, -1, -1)), expected)
    value, gradient = near.value_and_grad(x.detach(), of=torch.tensor([0, 2, 1, 1, 0]))
    chosen = expected[torch.tensor([0, 2, 1, 1, 0]), torch.arange(5)]
    torch.testing.assert_close(value, chosen.detach())
    torch.testing.assert_close(gradient, torch.autograd.grad(chosen.sum(), x)[0])
    found = suggest(gp, BOX, 3, spread=0.3, seed=0, **settings)
    axis = torch.linspace(0, 1, 41, dtype=torch.float64)
    mesh = near(torch.cartesian_prod(axis, axis)).amin(1)
    assert bool((near.value_and_grad(found, of=torch.arange(3))[0] <= mesh.detach() + 1e-9).all())
    in_region = suggest(gp, BOX, 3, spread=0.3, trust_region=2.0, seed=0, **settings)
    torch.testing.assert_close(in_region, found, atol=1e-4, rtol=0.0)


def test_each_function_has_a_spread_of_its_own(gp):
    settings: dict[str, Any] = {"num_features": 128, "mesh_size": 500, "num_starts": 4, "seed": 0}
    several = suggest(gp, BOX, 3, spread=[0.2, 0.5, 1.0], **settings)
    for i, spread in enumerate([0.2, 0.5, 1.0]):
        torch.testing.assert_close(several[i], suggest(gp, BOX, 3, spread=spread, **settings)[i], atol=1e-6, rtol=0.0)


def test_a_spread_is_positive_and_of_functions(gp):
    with pytest.raises(ValueError, match="spread: expected positive numbers, got 0"):
        suggest(gp, BOX, 2, spread=0)
    with pytest.raises(ValueError, match=r"spread: expected a number, or one for each of 2 points, got shape \[3\]"):
        suggest(gp, BOX, 2, spread=[0.5, 0.5, 1.0])
    with pytest.raises(ValueError, match="spread: expected a strategy that draws functions, got 'function-space'"):
        suggest(gp, BOX, 2, spread=0.5, strategy="function-space")


def test_rounds_go_from_the_mean_to_draws(monkeypatch):
    asked = []

    def watched(*args, greedy=False, spread=1.0, **settings):
        asked.append((args[2], greedy, spread))
        return suggest(*args, greedy=greedy, spread=spread, **settings)

    monkeypatch.setattr("matheron.thompson.loop.suggest", watched)
    settings: dict[str, Any] = {"kernel": K.RBF(0.3), "mesh_size": 32, "num_starts": 2, "num_features": 32, "seed": 0}

    def minimized(budget: int, **more: Any) -> list[Any]:
        asked.clear()
        minimize_function(lambda x: float(x.square().sum()), BOX, budget, num_initial=6, **settings, **more)
        return asked[1:]

    assert minimized(14) == 2 * [(1, False, 1.0), (1, False, 0.75), (1, False, 0.5), (1, True, 0.25)]
    assert minimized(14, q=4) == 2 * [(4, True, [0.25, 0.5, 0.75, 1.0])]
    assert minimized(10, q=2, spread=0.3) == 2 * [(2, True, 0.3)]


@pytest.mark.parametrize("scale", [1e-12, 1e-250, 1e250])
def test_a_function_in_any_units_is_minimised(scale):
    settings: dict[str, Any] = {"mesh_size": 256, "num_starts": 4, "num_features": 128, "seed": 0}
    study = minimize_function(lambda x: scale * bowl(x), BOX, 14, 2, **settings)
    plain = minimize_function(bowl, BOX, 14, 2, **settings)
    assert study.best_value <= 10 * scale * plain.best_value


def test_a_function_may_return_an_array_of_one_number():
    settings: dict[str, Any] = {"kernel": K.RBF(0.5), "mesh_size": 32, "num_starts": 2, "num_features": 32, "seed": 0}
    one, other = (
        minimize_function(function, BOX, 8, **settings)
        for function in (bowl, lambda x: torch.tensor([[bowl(x)]], dtype=torch.float64).numpy())
    )
    assert one.values == other.values


@pytest.mark.parametrize("kind", ["ensemble", "outputs"])
def test_regions_and_greedy_points_take_several_models_of_one_function(gp, kind):
    settings: dict[str, Any] = {"num_features": 64, "mesh_size": 256, "num_starts": 4, "seed": 0}
    several = matheron.Ensemble([gp, gp]) if kind == "ensemble" else matheron.Outputs([gp])
    found = suggest(several, BOX, 2, trust_region=0.5, greedy=True, **settings)
    expected = suggest(gp, BOX, 2, greedy=True, **settings)
    torch.testing.assert_close(found[0], expected[0], atol=1e-4, rtol=0.0)  # the mean is that of its members
    assert bool(((found >= 0) & (found <= 1)).all())


def test_one_number_is_a_bound_in_every_dimension_of_a_region(gp):
    settings: dict[str, Any] = {"num_features": 64, "mesh_size": 64, "num_starts": 2, "seed": 0}
    both = [suggest(gp, box, 2, trust_region=0.5, greedy=True, **settings) for box in ((0.0, 1.0), BOX)]
    torch.testing.assert_close(*both)
    with pytest.raises(ValueError, match=r"trust_region: expected a share of the box above zero.*got 'wide'"):
        suggest(gp, BOX, 2, trust_region="wide")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "kind", "message"),
    [
        ({"noise": -1.0}, ValueError, "noise: expected a variance >= 0, got -1.0"),
        ({"strategy": "ucb"}, ValueError, "strategy: expected one of .*, got 'ucb'"),
        ({"num_feature": 3}, TypeError, "minimize_function has no setting 'num_feature'; expected one of num_features"),
        ({"strategy": "random", "trust_region": True}, ValueError, "trust_region: expected a strategy that draws"),
        ({"spread": [0.5, 1.0], "q": 3}, ValueError, "spread: expected a number, or one for each of 3 points"),
        ({"mesh_size": 0}, ValueError, "mesh_size: expected a whole number of at least 1"),
        ({"kernel": K.RBF([1.0, 2.0, 3.0])}, ValueError, "lengthscale"),
        ({"kernel": "RBF"}, TypeError, "kernel: expected a kernel of matheron.kernels"),
        ({"state": "nowhere/study.json"}, FileNotFoundError, "no folder nowhere to write study.json into"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_evaluated(settings: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        minimize_function(lambda x: pytest.fail("the function was called"), BOX, 8, **settings)


def test_a_last_round_that_is_cut_short_takes_the_first_spreads() -> None:
    study = minimize_function(bowl, BOX, 8, 3, kernel=K.RBF(0.5), num_initial=3, spread=[0.2, 0.6, 1.0], seed=0, **FAST)
    assert len(study.values) == 8
