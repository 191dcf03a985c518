"""Thompson sampling of Optuna's studies."""

import math
import multiprocessing
import os
import signal
import sys
import time
from typing import Any

import numpy as np
import optuna
import pytest
import torch
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState, create_trial

import matheron
from matheron import Paths
from matheron.fitting import FitWarning
from matheron.thompson.fitting import Refits, fitted
from matheron.thompson.optuna import Branches, ThompsonSampler, UnitCube, observations
from matheron.thompson.problem import Problem, simplex
from matheron.thompson.quasi_newton import minimize_in_unit_box

optuna.logging.set_verbosity(optuna.logging.ERROR)
SMALL: dict[str, Any] = {"n_startup_trials": 4, "num_features": 64, "mesh_size": 256, "num_starts": 4}
X: dict[str, Any] = {"x": FloatDistribution(0.0, 1.0)}
SPACES: dict[str, Any] = {
    "float": FloatDistribution(-3.0, 5.0),
    "log": FloatDistribution(1e-6, 10.0, log=True),
    "int": IntDistribution(-4, 9),
    "int with a step": IntDistribution(0, 20, step=5),
    "log int": IntDistribution(1, 1000, log=True),
    "step": FloatDistribution(-1.0, 1.0, step=0.25),
    "choices": CategoricalDistribution(["a", None, 3, True]),
}


def study_of(space, values, *, direction: Any = "minimize", sampler=None, state=TrialState.COMPLETE):
    """A study with trials at random parameters, and values by a function of the parameters."""
    rng, study = np.random.default_rng(0), optuna.create_study(direction=direction, sampler=sampler)
    cube = UnitCube(space)
    for _ in range(12):
        params = cube.decode(torch.tensor(rng.random(cube.dim)))
        study.add_trial(create_trial(params=params, distributions=space, value=values(params), state=state))
    return study


@pytest.mark.parametrize("kind", SPACES)
def test_values_survive_the_way_to_the_cube_and_back(kind):
    distribution = SPACES[kind]
    cube = UnitCube({"p": distribution})
    for u in torch.rand(200, cube.dim, dtype=torch.float64, generator=torch.Generator().manual_seed(0)):
        value = cube.decode(u)["p"]
        assert distribution._contains(distribution.to_internal_repr(value))
        snapped = cube.snap(u[None])
        torch.testing.assert_close(cube.encode([{"p": value}]), snapped)
        again = cube.decode(snapped[0])["p"]
        assert type(again) is type(value) and (value is again or again == pytest.approx(value))


@pytest.mark.parametrize("kind", ["int", "int with a step", "step", "choices"])
def test_uniform_points_of_the_cube_are_uniform_values(kind):
    cube = UnitCube({"p": SPACES[kind]})
    points = torch.rand(4000, cube.dim, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    counts = cube.snap(points).unique(dim=0, return_counts=True)[1].double()
    expected = 4000 / len(counts)
    assert len(counts) == {"int": 14, "int with a step": 5, "step": 9, "choices": 4}[kind]
    assert float((counts - expected).abs().max()) < 4.5 * expected**0.5


def test_the_ends_of_a_range_are_reached_and_never_passed():
    for kind in ("float", "log", "int", "int with a step", "log int", "step"):
        cube, distribution = UnitCube({"p": SPACES[kind]}), SPACES[kind]
        low, high = (cube.decode(torch.tensor([u], dtype=torch.float64))["p"] for u in (0.0, 1.0))
        assert low == pytest.approx(distribution.low) and high == pytest.approx(distribution.high)
        assert distribution.low <= low and high <= distribution.high


@pytest.mark.parametrize("kind", SPACES)
@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_every_kind_of_parameter_is_led_to_its_optimum(kind, direction):
    """A well-sampled smooth function of the unit cube: suggestions lie near its best value."""
    space, sign = {"p": SPACES[kind]}, 1 if direction == "minimize" else -1
    cube = UnitCube(space)
    goal = cube.snap(torch.full((1, cube.dim), 0.7, dtype=torch.float64) * torch.linspace(1, 0.5, cube.dim))
    study = study_of(space, lambda p: sign * 5 * float((cube.encode([p]) - goal).square().sum()), direction=direction)
    sampler = ThompsonSampler(**SMALL, seed=0)
    found = []
    for _ in range(3):
        study.sampler = sampler
        trial = study.ask(space)
        found.append(float((cube.encode([trial.params]) - goal).norm()))
    assert sorted(found)[1] < 0.15, found


def test_a_mixed_space_is_searched_whole():
    space = {
        "k": CategoricalDistribution(["a", "b"]),
        "n": IntDistribution(1, 5),
        "r": FloatDistribution(0.01, 1, log=True),
    }

    def objective(p):
        return (p["k"] == "a") * 2.0 + (p["n"] - 4) ** 2 + (math.log10(p["r"]) + 1) ** 2

    study = study_of(space, objective, sampler=ThompsonSampler(**SMALL, seed=1))
    study.optimize(lambda trial: objective({n: trial._suggest(n, d) for n, d in space.items()}), n_trials=10)
    assert study.best_params["k"] == "b" and study.best_params["n"] == 4 and study.best_value < 0.1


def test_the_suggestion_is_the_paths_best_among_the_values_that_there_are():
    """All discrete: no other value of the parameters may be better for the drawn function than the one suggested."""
    space = {"i": IntDistribution(0, 11), "k": CategoricalDistribution(["a", "b", "c"])}
    cube, seen = UnitCube(space), {}
    study = study_of(space, lambda p: math.sin(p["i"]) + (p["k"] == "b"))

    def spy(model, count, **settings):
        seen["path"] = draw(model, count, **settings)
        return seen["path"]

    module = sys.modules["matheron.thompson.optuna"]
    draw = module.draw
    for number in range(3):
        study.sampler = ThompsonSampler(**{**SMALL, "mesh_size": 1024}, seed=number)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "draw", spy)
            found = study.ask(space).params
        every = cube.encode([{"i": i, "k": k} for i in range(12) for k in "abc"])
        values = seen["path"](every)[0]
        assert float(seen["path"](cube.encode([found]))) == pytest.approx(float(values.min()), abs=1e-9)


def test_a_single_value_needs_no_model():
    sampler = ThompsonSampler(**SMALL, seed=0)
    study = optuna.create_study(sampler=sampler)

    def objective(trial):
        fixed = trial.suggest_int("n", 3, 3) + trial.suggest_float("c", 2.0, 2.0)
        return fixed * trial.suggest_categorical("one", [1]) + trial.suggest_float("x", -1, 1) ** 2

    study.optimize(objective, n_trials=7)
    assert list(sampler.infer_relative_search_space(study, study.trials[-1])) == ["x"]
    assert {trial.params["n"] for trial in study.trials} == {3}
    only = optuna.create_study(sampler=ThompsonSampler(**SMALL))
    only.optimize(lambda trial: trial.suggest_int("n", 3, 3), n_trials=6)
    assert only.best_params == {"n": 3}


def test_conditional_parameters_are_modelled_once_a_trial_had_them():
    sampler = ThompsonSampler(**SMALL, seed=0)
    study = optuna.create_study(sampler=sampler)

    def objective(trial):
        x = trial.suggest_float("x", 0, 1)
        extra = trial.suggest_float("extra", 0, 1) if trial.number == 5 else 0.0
        return x + extra + trial.suggest_float("moving", 0, 1 + trial.number)

    for count, expected in ((5, ["moving", "x"]), (4, ["extra", "moving", "x"])):
        study.optimize(objective, n_trials=count)
        space = sampler.infer_relative_search_space(study, study.trials[-1])
        assert list(space) == expected
        assert space["moving"] == study.trials[-1].distributions["moving"]  # the latest range
    assert all(trial.state == TrialState.COMPLETE for trial in study.trials)


def test_a_branch_that_was_tried_once_with_bad_parameters_is_tried_again():
    def objective(trial):
        if trial.suggest_categorical("kind", ["good", "better"]) == "good":
            return 1.0 + (trial.suggest_float("x", 0, 1) - 0.3) ** 2
        return 0.8 + (trial.suggest_float("y", 0, 1) - 0.3) ** 2

    study = optuna.create_study(sampler=ThompsonSampler(**{**SMALL, "n_startup_trials": 7}, seed=1))
    for x in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
        study.enqueue_trial({"kind": "good", "x": x})
    study.enqueue_trial({"kind": "better", "y": 0.9})
    study.optimize(objective, n_trials=20)
    assert study.best_params["kind"] == "better"


def test_the_trials_tell_which_parameters_a_point_has():
    """Nested conditions, on a choice and on a number, beside choices that decide nothing."""
    generator = torch.Generator().manual_seed(0)
    u = torch.rand(200, 6, generator=generator, dtype=torch.float64)
    u[:, :3] = u[:, :3].round()

    def has(u: torch.Tensor) -> torch.Tensor:
        there = torch.ones_like(u, dtype=torch.bool)
        there[:, 3] = u[:, 0] > 0.5
        there[:, 4] = there[:, 3] & (u[:, 3] < 0.3)
        there[:, 5] = ~there[:, 3]
        return there

    X, new = u[:100], u[100:]
    branches = Branches(torch.where(has(X), X, 0.5), has(X))
    assert float((branches.active(new) == has(new)).all(1).double().mean()) > 0.95
    same = Branches(X[:5, :2], torch.tensor([[True, False]] * 3 + [[False, True]] * 2))
    assert same.active(X[:2, :2]).tolist() == [[False, True]] * 2  # nothing tells them apart: as the last of them


@pytest.mark.slow
def test_each_branch_of_a_conditional_space_is_minimised_in_its_own_parameters():
    def objective(trial):
        kind = trial.suggest_categorical("kind", ["a", "b", "c"])
        if kind == "a":
            return 1.0 + trial.suggest_float("xa", 0, 1)
        x, n = trial.suggest_float(f"x{kind}", 0, 1), trial.suggest_int(f"n{kind}", 0, 4)
        return (x - 0.3) ** 2 + 0.1 * abs(n - 3) + (kind == "b")

    study = optuna.create_study(sampler=ThompsonSampler(**{**SMALL, "n_startup_trials": 12}, seed=0))
    study.optimize(objective, n_trials=36)
    assert study.best_params["kind"] == "c" and study.best_params["nc"] == 3
    assert abs(study.best_params["xc"] - 0.3) < 0.05


def test_the_first_trials_are_the_independent_samplers():
    class Midpoint(optuna.samplers.RandomSampler):
        def sample_independent(self, study, trial, param_name, param_distribution):
            return 0.5

    study = optuna.create_study(sampler=ThompsonSampler(**SMALL, independent_sampler=Midpoint(), seed=0))
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=5)
    assert [trial.params["x"] == 0.5 for trial in study.trials] == [True] * 4 + [False]


def add(study, state, value=None, reported=(), x=0.5):
    values = dict(enumerate(reported))
    study.add_trial(
        create_trial(state=state, value=value, params={"x": x}, distributions=X, intermediate_values=values)
    )


def test_pruned_trials_count_between_the_median_and_the_worst_and_failed_ones_not_at_all():
    directions: list[Any] = [("minimize", 1.0), ("maximize", -1.0)]
    for direction, sign in directions:
        study = optuna.create_study(direction=direction)
        for value in (0.0, 1.0, 2.0, 3.0, 4.0):
            add(study, TrialState.COMPLETE, sign * value)
        for last in (-5.0, 3.5, 1e9):
            add(study, TrialState.PRUNED, reported=(sign * 7.0, sign * last))
        add(study, TrialState.PRUNED)
        add(study, TrialState.PRUNED, reported=(math.nan,))
        add(study, TrialState.FAIL)
        study.ask(X)  # running
        assert observations(study, X).values[:, 0].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 2.0, 3.5, 4.0]


def test_trials_outside_of_the_range_do_not_count():
    study = optuna.create_study()
    add(study, TrialState.COMPLETE, 1.0)
    other: dict[str, Any] = {"x": FloatDistribution(0.0, 2.0)}
    for value, x in ((2.0, 0.5), (3.0, 1.5)):
        study.add_trial(create_trial(value=value, params={"x": x}, distributions=other))
    study.add_trial(create_trial(value=4.0, params={}, distributions={}))
    assert observations(study, X).values[:, 0].tolist() == [1.0, 2.0]


def test_infinite_values_are_held_to_the_finite_ones():
    study = optuna.create_study()
    for value in (math.inf, 1.0, -2.0, -math.inf):
        add(study, TrialState.COMPLETE, value)
    assert observations(study, X).values[:, 0].tolist() == [1.0, 1.0, -2.0, -2.0]
    hopeless = optuna.create_study(sampler=ThompsonSampler(**SMALL))
    for _ in range(6):
        add(hopeless, TrialState.COMPLETE, math.inf)
    assert 0 <= hopeless.ask(X).params["x"] <= 1  # nothing to fit: uniform


@pytest.mark.parametrize(
    ("values", "held"),
    [
        ([1e6, 0.1, 0.5, 1e6, 0.2], [0.5, 0.1, 0.5, 0.5, 0.2]),
        ([1e6, 0.1, 1e3, 1e6, 0.2, 1e3], [0.2, 0.1, 0.2, 0.2, 0.2, 0.2]),  # one penalty beyond another
        ([1e6, 0.1, 0.5, 0.2], None),  # a value like any other: nobody else has it
        ([1.0, 0.1, 0.5, 1.0, 0.2], None),  # not far
        ([1.0, 1e-9, 2e-9, 0.7, 3e-9, 0.7], None),  # what was tried before the optimum was found
        ([5.0, 5.0, 1.0, 1.0], None),  # no spread to compare with
    ],
    ids=["a penalty", "two", "one value", "near", "converged", "two values"],
)
@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_penalties_are_held_to_the_other_values(values, held, direction):
    study, sign = optuna.create_study(direction=direction), 1 if direction == "minimize" else -1
    for value in values:
        add(study, TrialState.COMPLETE, sign * value)
    assert observations(study, X).values[:, 0].tolist() == (held or values)


def test_a_study_goes_on_through_pruned_and_failed_trials():
    study = optuna.create_study(sampler=ThompsonSampler(**SMALL, seed=3), pruner=optuna.pruners.NopPruner())

    def objective(trial):
        x = trial.suggest_float("x", 0, 1)
        trial.report(x + 1, 0)
        if trial.number % 4 == 1:
            raise optuna.TrialPruned
        if trial.number % 4 == 2:
            raise RuntimeError("this one failed")
        return math.nan if trial.number == 7 else (x - 0.3) ** 2

    study.optimize(objective, n_trials=14, catch=RuntimeError)
    states = [trial.state for trial in study.trials]
    assert {TrialState.PRUNED, TrialState.FAIL, TrialState.COMPLETE} == set(states) and len(states) == 14
    assert study.best_value < 0.01


def test_equal_values_and_equal_points_can_be_modelled():
    study = optuna.create_study(sampler=ThompsonSampler(**SMALL, seed=0))
    for _ in range(6):
        add(study, TrialState.COMPLETE, 1.0)
    assert 0 <= study.ask(X).params["x"] <= 1


def test_a_model_that_cannot_be_fitted_is_used_as_it_is(monkeypatch):
    monkeypatch.setattr("matheron.fitting.likelihood._factor", lambda *_: None)
    with pytest.warns(FitWarning, match="not finite at the kernel's own hyperparameters, which are kept"):
        study = study_of(X, lambda p: (p["x"] - 0.2) ** 2, sampler=ThompsonSampler(**SMALL, seed=0))
        assert 0 <= study.ask(X).params["x"] <= 1


def test_the_noise_that_is_learned_is_the_noise_that_there_is():
    """Without noise, less than 1e-4 of the variance, BoTorch's own floor: draws agree where the value is known."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(40, 2, dtype=torch.float64, generator=generator)
    f = (torch.sin(4 * x[:, :1]) + x[:, 1:] ** 2) * 30 + 7
    noise = 0.3 * f.std() * torch.randn(40, 1, dtype=torch.float64, generator=generator)
    y = f + noise
    models: list[Any] = [fitted(x, values[:, 0]) for values in (f, y)]
    learned = [float(model.noise[0]) for model in models]
    assert learned[0] < 3e-5
    # The logarithm of a variance from 40 numbers has the deviation (2 / 40)^1/2: three of them are a factor of two.
    share = float(noise.var() / y.var())
    assert share / 2 < learned[1] < share * 2


def test_the_model_is_the_top_of_gpsampler_s_penalised_likelihood():
    """The same model in BoTorch, at the hyperparameters found here: nothing is left to gain."""
    models, gpytorch = pytest.importorskip("botorch.models"), pytest.importorskip("gpytorch")
    x = torch.rand(25, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    noise = torch.randn(25, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    y = torch.sin(5 * x[:, 0]) + x[:, 1] ** 2 + 0.1 * noise
    mine: Any = fitted(x, y)
    gamma = gpytorch.priors.GammaPrior
    base = gpytorch.kernels.MaternKernel(2.5, ard_num_dims=2)
    kernel = gpytorch.kernels.ScaleKernel(base, outputscale_prior=gamma(2.0, 1.0))
    floor = gpytorch.constraints.GreaterThan(1e-6)
    likelihood = gpytorch.likelihoods.GaussianLikelihood(noise_prior=gamma(1.1, 30.0), noise_constraint=floor)
    peer = models.SingleTaskGP(x, y[:, None], covar_module=kernel, likelihood=likelihood).train()
    base.lengthscale, kernel.outputscale = mine.kernel.kernel.lengthscale, mine.kernel.outputscale
    likelihood.noise, peer.mean_module.constant = mine.noise[0], mine.mean.value[0]
    value = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, peer)(peer(x), peer.train_targets) * len(x)
    value = value - 0.1 * (base.lengthscale.square() + base.lengthscale.pow(-2)).sum()  # which is no prior of theirs
    slopes = torch.autograd.grad(value, list(peer.parameters()))
    assert max(float(slope.abs().max()) for slope in slopes) < 2e-2


def test_a_parameter_of_small_effect_is_not_forgotten():
    """All but the first trials agree in it: draws must still differ there, or no trial would ever tell."""
    x = torch.rand(40, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x[8:, 1] = 0.0
    y = 5 * (x[:, :1] - 0.3) ** 2 + 0.04 * (x[:, 1:] - 0.4) ** 2
    model: Any = fitted(x, y[:, 0])
    forgotten, other = model.kernel.kernel.lengthscale.flip(0)
    assert other < forgotten < 10  # where the prior is exp(-(l^2 - 1) / 10), e^-10


def test_a_fit_leaves_torchs_own_generator_alone():
    before = torch.get_rng_state()
    study = study_of(X, lambda p: math.sin(20 * p["x"]), sampler=ThompsonSampler(**SMALL, seed=0))
    study.ask(X)
    assert torch.equal(torch.get_rng_state(), before)


def test_random_numbers_depend_on_the_seed_and_the_trials_number_alone():
    def suggestions(seed, skip=0):
        study = study_of(X, lambda p: math.sin(20 * p["x"]))
        study.sampler = ThompsonSampler(**SMALL, seed=seed)
        for _ in range(skip):
            add(study, TrialState.FAIL)
        return [study.ask(X).params["x"] for _ in range(2)]  # no result is told: the model stays the same

    first = suggestions(5)
    assert first == suggestions(5) and first[0] != first[1]
    assert suggestions(5, skip=1)[0] == first[1]  # as another worker with the same seed would have it
    assert suggestions(6) != first and suggestions(None) != suggestions(None)


def test_reseeding_gives_other_numbers():
    study = study_of(X, lambda p: math.sin(20 * p["x"]))
    trial = study.trials[-1]
    sampler = ThompsonSampler(**SMALL, seed=5)
    before = [sampler.sample_relative(study, trial, X), sampler.sample_independent(study, trial, "z", X["x"])]
    assert before == [sampler.sample_relative(study, trial, X), sampler.sample_independent(study, trial, "z", X["x"])]
    sampler.reseed_rng()
    after = [sampler.sample_relative(study, trial, X), sampler.sample_independent(study, trial, "z", X["x"])]
    assert after[0] != before[0] and after[1] != before[1]


def test_parameters_of_one_trial_are_independent_at_first():
    sampler = ThompsonSampler(**SMALL, seed=5)
    study = optuna.create_study(sampler=sampler)
    params = study.ask({"a": X["x"], "b": X["x"]}).params
    assert params["a"] != params["b"]


@pytest.mark.parametrize("hypervolume", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_several_objectives_spread_over_the_front(hypervolume):
    """Two parabolas with minima at 0.2 and 0.8: between those every point is optimal, and none elsewhere."""
    sizes: dict[str, Any] = {"n_startup_trials": 5, "num_features": 256, "mesh_size": 1024, "num_starts": 8}
    sampler = ThompsonSampler(**sizes, hypervolume=hypervolume, seed=0)
    study = optuna.create_study(directions=["minimize", "maximize"], sampler=sampler)

    def objective(trial):
        x, y = trial.suggest_float("x", 0, 1), trial.suggest_float("y", 0, 1)
        return (x - 0.2) ** 2 + y, -((x - 0.8) ** 2) - y

    study.optimize(objective, n_trials=18)
    chosen = np.array([[t.params["x"], t.params["y"]] for t in study.trials[8:]])
    assert np.median(chosen[:, 1]) < 0.05
    assert ((chosen[:, 0] > 0.1) & (chosen[:, 0] < 0.9)).mean() > 0.7
    assert chosen[:, 0].min() < 0.4 and chosen[:, 0].max() > 0.6


def test_weights_are_uniform_on_the_simplex():
    generator = torch.Generator().manual_seed(0)
    weights = torch.stack([simplex(3, generator) for _ in range(4000)])
    torch.testing.assert_close(weights.sum(1), torch.ones(4000, dtype=torch.float64))
    torch.testing.assert_close(weights.mean(0), torch.full((3,), 1 / 3, dtype=torch.float64), atol=0.015, rtol=0)
    torch.testing.assert_close(weights.var(0), torch.full((3,), 1 / 18, dtype=torch.float64), atol=0.005, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_constraints_are_met_where_the_objective_alone_would_not(direction):
    """The best feasible point has x + y = 1, on the constraint; without it the optimum is a corner."""
    sign = 1.0 if direction == "minimize" else -1.0

    def objective(trial):
        x, y = trial.suggest_float("x", 0, 1), trial.suggest_float("y", 0, 1)
        trial.set_user_attr("limits", (1 - x - y, x - 0.9))
        return sign * (x + 2 * y)

    sampler = ThompsonSampler(
        **{**SMALL, "num_features": 256, "mesh_size": 1024},
        seed=0,
        constraints_func=lambda trial: trial.user_attrs["limits"],
    )
    study = optuna.create_study(direction=direction, sampler=sampler)
    study.optimize(objective, n_trials=18)
    feasible = [t for t in study.trials if max(t.user_attrs["limits"]) <= 0]
    late = [t for t in study.trials[9:] if max(t.user_attrs["limits"]) <= 0.05]
    assert len(late) >= 6
    assert min(sign * t.value for t in feasible if t.value is not None) < 1.2  # the best is 1.1, at (0.9, 0.1)
    assert all(t.system_attrs["constraints"] == t.user_attrs["limits"] for t in study.trials)


def test_constraints_that_nothing_meets_are_violated_as_little_as_can_be():
    """Half of the trials have it by `constraints_func`, half by a name, as from Optuna 5 on; and the sampler reads it
    either way."""
    small = {**SMALL, "num_features": 256, "mesh_size": 512}
    by_function = ThompsonSampler(**small, seed=1, constraints_func=lambda t: (1 + t.params["x"],))
    study = optuna.create_study(sampler=by_function)
    study.optimize(lambda trial: -trial.suggest_float("x", 0, 1), n_trials=6)
    study.sampler = ThompsonSampler(**small, seed=1)

    def objective(trial):
        x = trial.suggest_float("x", 0, 1)
        trial.storage.set_trial_system_attr(
            trial._trial_id, "constraints:0", 1 + x
        )  # what set_constraint("0", ...) does
        return -x

    study.optimize(objective, n_trials=6)
    assert np.median([t.params["x"] for t in study.trials[6:]]) < 0.1
    assert observations(study, {"x": FloatDistribution(0, 1)}).constraints.isnan().sum() == 0


def test_one_trial_of_four_is_at_the_minimum_of_the_mean_and_no_other_worker_tries_it_too(monkeypatch):
    """Eight workers ask at once, twice; the first eight trials are uniform."""
    asked = []
    real = Problem.of_means

    def spied(self):
        asked.append(len(study.trials) - 1)
        return real(self)

    monkeypatch.setattr(Problem, "of_means", spied)
    space: dict[str, Any] = {"x": FloatDistribution(0, 1), "y": FloatDistribution(0, 1)}
    study = optuna.create_study(sampler=ThompsonSampler(**{**SMALL, "n_startup_trials": 8}, seed=0))
    for _ in range(2):
        trials = [study.ask(space) for _ in range(8)]
        for trial in trials:
            study.tell(trial, (trial.params["x"] - 0.3) ** 2 + (trial.params["y"] - 0.6) ** 2)
    assert asked == [11]  # and not 15, which was asked for while 11 was running
    model = fitted(*_told(study, 8))
    greedy = study.trials[11].params
    axis = torch.linspace(0, 1, 41, dtype=torch.float64)
    mean = matheron.draw(model, 1).mean
    lowest = float(mean(torch.cartesian_prod(axis, axis)).min())
    assert float(mean([[greedy["x"], greedy["y"]]])) <= lowest + 1e-9


def test_a_mean_that_is_lowest_at_a_trial_leaves_the_draw(monkeypatch):
    """Five values of one int, all tried: the mean's minimiser is among them, and the trial is a draw's."""
    drawn = []
    real = ThompsonSampler._suggestion

    def spied(self, cube, X, seen, problem, generator):
        drawn.append(isinstance(problem.objectives[0].functions, Paths))
        return real(self, cube, X, seen, problem, generator)

    monkeypatch.setattr(ThompsonSampler, "_suggestion", spied)
    study = optuna.create_study(sampler=ThompsonSampler(**{**SMALL, "n_startup_trials": 3}, seed=0))
    for n in (0, 1, 2):
        study.enqueue_trial({"n": n})
    study.optimize(lambda trial: (trial.suggest_int("n", 0, 2) - 1) ** 2, n_trials=4)
    assert drawn == [False, True]


def _told(study, count):
    points = [[t.params["x"], t.params["y"]] for t in study.trials[:count]]
    return torch.tensor(points, dtype=torch.float64), torch.tensor([t.value for t in study.trials[:count]]).double()


def test_a_long_study_is_refitted_now_and_then_and_always_has_all_its_data(monkeypatch):
    module, sizes = sys.modules["matheron.thompson.fitting"], []
    real = module.fitted

    def spy(X, y, *args):
        sizes.append(len(y))
        return real(X[:40], y[:40])

    monkeypatch.setattr(module, "fitted", spy)
    points = torch.rand(1200, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    values = points.sum(1).sin()
    refits = Refits()
    for n in range(101, 131):
        assert refits.model(points[:n], values[:n]).num_data == n
    assert sizes == [100, 105, 110, 115, 120, 126]
    other = Refits().model(points[:130], values[:130])  # of a process that began just now
    same = refits.model(points[:130], values[:130])
    assert torch.equal(other.kernel(points[:5]), same.kernel(points[:5]))
    Refits().model(points, values)
    assert sizes[-1] <= 500


def test_an_unknown_distribution_and_counts_of_nothing_are_refused():
    with pytest.raises(TypeError, match=r"p: expected a FloatDistribution, IntDistribution or Cat.* got object"):
        UnitCube({"p": object()})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="mesh_size: expected a whole number"):
        ThompsonSampler(mesh_size=0)


def test_without_optuna_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.delitem(sys.modules, "matheron.thompson.optuna")
    with pytest.raises(ImportError, match=r"pip install '\.\[optuna\]'"):
        import matheron.thompson.optuna  # noqa: F401


def objective(trial):
    x, y = trial.suggest_float("x", 0, 1), trial.suggest_int("n", 0, 10)
    return (x - 0.4) ** 2 + 0.1 * (y - 3) ** 2


def work(url, seed, count, hang_at):
    """A worker process: it knows the storage, and none of the others."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    torch.set_num_threads(1)
    study = optuna.load_study(study_name="shared", storage=url, sampler=ThompsonSampler(**SMALL, seed=seed))

    def slow(trial):
        value = objective(trial)
        if hang_at is not None and len(study.get_trials(deepcopy=False)) > hang_at:
            trial.set_user_attr("hanging", os.getpid())
            time.sleep(600)
        return value

    study.optimize(slow, n_trials=count)


def all_differ(study):
    """No point was tried twice, but for ends of the range, where many functions have their minima."""
    inside = [trial.params["x"] for trial in study.trials if 0 < trial.params["x"] < 1]
    return len(set(inside)) == len(inside) > 5


@pytest.mark.slow
def test_workers_share_a_file_and_one_may_be_killed_in_the_middle_of_a_trial(tmp_path):
    url = f"sqlite:///{tmp_path}/study.db"
    study = optuna.create_study(study_name="shared", storage=url)
    context = multiprocessing.get_context("spawn")
    # Workers have the same seed: they must suggest different points all the same. The third will be killed.
    workers = [
        context.Process(target=work, args=(url, 7, count, hang)) for count, hang in ((5, None), (5, None), (20, 5))
    ]
    for process in workers:
        process.start()
    doomed, deadline = workers[2], time.monotonic() + 240
    while not any("hanging" in trial.user_attrs for trial in study.trials) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert doomed.pid is not None
    os.kill(doomed.pid, signal.SIGKILL)
    for process in workers:
        process.join(240)
    assert [process.exitcode for process in workers] == [0, 0, -signal.SIGKILL]

    (left,) = [trial for trial in study.trials if trial.state == TrialState.RUNNING]
    assert left.user_attrs["hanging"] == doomed.pid  # what it was doing is there to be seen
    done = [trial for trial in study.trials if trial.state == TrialState.COMPLETE]
    assert len(done) >= 10 and all_differ(study)

    # Another process takes the study up again, with the old seed, and goes on from what is there.
    again = optuna.load_study(study_name="shared", storage=url, sampler=ThompsonSampler(**SMALL, seed=7))
    again.optimize(objective, n_trials=3)
    assert len(again.trials) == len(study.trials) == len(done) + 4
    assert all_differ(again) and again.best_value < 0.2


@pytest.mark.filterwarnings("ignore:Fixed parameter")
def test_trials_enqueued_outside_of_the_range_do_not_count():
    """Optuna takes any value that is enqueued; the model is of the range."""
    study = optuna.create_study(sampler=ThompsonSampler(n_startup_trials=4, mesh_size=256, num_starts=4, seed=0))
    study.enqueue_trial({"k": 50})
    study.optimize(lambda trial: -trial.suggest_int("k", 0, 10), n_trials=8)
    assert study.trials[0].params["k"] == 50
    assert len(observations(study, {"k": IntDistribution(0, 10)}).values) == 7
    assert all(0 <= trial.params["k"] <= 10 for trial in study.trials[1:])


def test_meshes_of_many_coordinates_have_fewer_points(monkeypatch):
    sizes = []
    at = Problem.at
    monkeypatch.setattr(Problem, "at", lambda problem, x: (sizes.append(len(x)), at(problem, x))[1])
    study = optuna.create_study(sampler=ThompsonSampler(n_startup_trials=4, seed=0))
    study.optimize(lambda trial: float(trial.suggest_categorical("c", list(range(200)))), n_trials=5)
    assert max(sizes) * 200 < 1.1 * 2**20


def test_searches_have_no_coordinates_for_choices(monkeypatch):
    """A parameter of 200 choices is 200 coordinates of the model; what moves is the float alone."""
    widths = []

    def counted(objective, x, **settings):
        widths.append(x.shape[1])
        return minimize_in_unit_box(objective, x, **settings)

    monkeypatch.setattr("matheron.thompson.problem.minimize_in_unit_box", counted)
    study = optuna.create_study(sampler=ThompsonSampler(n_startup_trials=4, mesh_size=256, num_starts=4, seed=0))
    study.optimize(
        lambda trial: trial.suggest_float("x", 0, 1) + trial.suggest_categorical("c", list(range(200))), n_trials=6
    )
    assert widths and set(widths) == {1}
