"""Optuna's own tests of samplers, on ours; and numbers that no model can square."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest

optuna = pytest.importorskip("optuna")
from optuna.samplers import BaseSampler  # noqa: E402
from optuna.testing.pytest_samplers import (  # noqa: E402
    BasicSamplerTestCase,
    MultiObjectiveSamplerTestCase,
    RelativeSamplerTestCase,
)

from matheron.thompson.optuna import ThompsonSampler  # noqa: E402

SMALL: dict[str, Any] = dict(n_startup_trials=1, num_features=32, mesh_size=64, num_starts=2)


class _OnOurs:
    @pytest.fixture
    def sampler(self) -> Callable[[], BaseSampler]:
        def make() -> BaseSampler:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                return ThompsonSampler(seed=0, **SMALL)

        return make


@pytest.mark.slow  # many short studies
class TestBasics(_OnOurs, BasicSamplerTestCase):
    pass


@pytest.mark.slow  # as many as there are pairs of distributions
class TestRelative(_OnOurs, RelativeSamplerTestCase):
    pass


class TestSeveralObjectives(_OnOurs, MultiObjectiveSamplerTestCase):
    pass


@pytest.mark.parametrize("scale", [1e160, 1e-160, -1e300])
def test_values_whose_squares_overflow_are_searched_like_others(scale):
    def chosen(scale: float) -> list[float]:
        direction = "minimize" if scale > 0 else "maximize"
        study = optuna.create_study(direction=direction, sampler=ThompsonSampler(seed=0, **SMALL))
        study.optimize(lambda trial: scale * (trial.suggest_float("x", -2, 2) - 1) ** 2, n_trials=5)
        return [trial.params["x"] for trial in study.trials]

    assert chosen(scale) == pytest.approx(chosen(1.0), abs=1e-3)


def test_one_startup_trial_is_one():
    study = optuna.create_study(sampler=ThompsonSampler(seed=0, **SMALL))
    asked: list[int] = []
    sampler = study.sampler
    relative = sampler.sample_relative
    sampler.sample_relative = lambda *args: asked.append(len(found := relative(*args))) or found
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1) ** 2, n_trials=3)
    assert asked == [0, 1, 1]


@pytest.mark.parametrize("seed", [-1, 0.5, True, "0"])
def test_a_seed_that_is_none_is_refused_at_once(seed):
    with pytest.raises((ValueError, TypeError), match="seed: expected a seed, a whole number from 0"):
        ThompsonSampler(seed=seed)
