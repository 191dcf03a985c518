"""The experiment on Thompson sampling at a tiny scale, and its parts."""

import io
import json
import math
from typing import Any, cast

import pytest
import torch
from rich.console import Console

from matheron.thompson import Minima
from matheron_paper import Trial, experiment, run, thompson
from matheron_paper.thompson import METHODS, compared, flat, strategy_name

CPU = torch.device("cpu")
SETTINGS = thompson.SCALES["tiny"]


def trial(method, ell=None, d=2, number=0, **more):
    return Trial("thompson", {"d": d, "method": method, "ell": ell, **more}, number, 0)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("thompson")
    summary = run(experiment("thompson"), "tiny", out=out, workers=1, console=Console(file=io.StringIO(), width=200))
    lines = (out / "thompson-tiny.jsonl").read_text().splitlines()
    return out, [json.loads(line) for line in lines[1:]], summary


@pytest.mark.slow
def test_it_leaves_a_table_and_four_figures(finished):
    out, records, summary = finished
    assert summary.failed == summary.left == 0 and summary.finished == len(records) == 2 * (2 * 11 + 2)
    for figure in ("", "-full", "-ours", "-runtimes"):
        stem = f"thompson-tiny{figure}"
        assert (out / f"{stem}.png").stat().st_size > 1000 and (out / f"{stem}.pdf").stat().st_size > 1000
    assert len(summary.report.table.rows) == 2 * 11 + 2


@pytest.mark.slow
def test_regret_falls_and_is_never_negative(finished):
    for row in flat(finished[1]):
        assert row["regret"] == sorted(row["regret"], reverse=True) and row["regret"][-1] >= 0
        assert len(row["regret"]) == SETTINGS["rounds"]


@pytest.mark.slow
def test_all_strategies_of_a_trial_see_one_task_and_start_from_one_round(finished):
    for d in SETTINGS["dims"]:
        mine = [r for r in finished[1] if r["case"]["d"] == d and r["trial"] == 1]
        assert len({r["result"]["minimum"] for r in mine}) == 1
        first = {r["result"]["best"][0] for r in mine if r["case"]["method"] != "DIRECT"}
        assert len(first) == 1
    minima = {r["result"]["minimum"] for r in finished[1]}
    assert len(minima) == 2 * len(SETTINGS["dims"])  # other trials, other tasks


def test_a_trial_can_be_repeated():
    first, again = (thompson.run(trial("decoupled", 16), SETTINGS, CPU) for _ in range(2))
    assert first["best"] == again["best"]


@pytest.mark.parametrize(("d", "tolerance"), [(2, 0.01), (4, 5 * 4096**-0.5)])
def test_a_task_has_the_papers_prior(d, tolerance, monkeypatch):
    """Phi Phi^T is Matern-5/2 at lengthscale sqrt(d / 100): nearly for equispaced features, at random for cosines."""
    monkeypatch.setattr("matheron.minimize", lambda *_, **__: Minima(torch.zeros(1, d), torch.zeros(1), [], 0))
    settings = {**SETTINGS, "task": {"num_features": 4096, "mesh_size": 8, "num_starts": 1}}
    function, _ = thompson.task(trial("random", d=d), settings, CPU)
    x = torch.rand(20, d, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 0.5
    r = math.sqrt(5) * torch.cdist(x, x) / math.sqrt(d / 100)
    Phi = function.prior.features(x)[0]
    assert float((Phi @ Phi.mT - (1 + r + r**2 / 3) * (-r).exp()).abs().max()) < tolerance


def test_the_minimum_is_not_above_what_a_fine_grid_finds():
    function, minimum = thompson.task(trial("random"), SETTINGS, CPU)
    axis = torch.linspace(0, 1, 60, dtype=torch.float64)
    assert minimum <= float(function(torch.cartesian_prod(axis, axis)).min()) + 1e-9


class Watched:
    """Remembers the points that a strategy asked for, in the order and the sizes in which it did."""

    def __init__(self, d):
        self.asked = []
        self.first = torch.rand(d, d, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        self.values = torch.randn(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).tolist()

    def __call__(self, x):
        self.asked.append(x)
        return torch.tensor([self.values.pop() for _ in x], dtype=torch.float64)


def watched(method, ell=None, d=2, **more):
    it, objective = trial(method, ell, d, **more), Watched(d)
    if method == "DIRECT":
        thompson.direct(it, SETTINGS, objective)
    else:
        thompson.rounds([it], SETTINGS, CPU, [cast(Any, objective)])
    return objective.asked


@pytest.mark.parametrize("method", ["random", "function-space", "weight-space", "decoupled"])
def test_rounds_are_of_d_points_in_the_cube(method):
    asked = watched(method, 16)
    assert [x.shape for x in asked] == [(2, 2)] * SETTINGS["rounds"]
    points = torch.cat(asked)
    assert bool(((points >= 0) & (points <= 1)).all()) and len(points.unique(dim=0)) > 4


@pytest.mark.parametrize(("kappa", "sizes"), [(1, [2, 1, 1, 1, 1, 1, 1]), (2, [2, 2, 2, 2]), (4, [2, 4, 2])])
def test_rounds_may_have_another_number_of_points_within_the_same_budget(kappa, sizes):
    assert [len(x) for x in watched("decoupled", 16, features="cosine", kappa=kappa)] == sizes
    result = thompson.run(trial("decoupled", 16, features="cosine", kappa=kappa), SETTINGS, CPU)
    assert len(result["best"]) == SETTINGS["rounds"]


def test_decoupled_draws_have_the_features_that_their_case_names(monkeypatch):
    seen = []

    def suggest(models, bounds, q, **settings):
        seen.append(settings["features"])
        return [torch.rand(q, 2, dtype=torch.float64)]

    monkeypatch.setattr("matheron.thompson.suggest_together", suggest)
    watched("decoupled", 16, features="cosine")
    watched("decoupled", 16)
    assert set(seen[:3]) == {"cosine"} and set(seen[3:]) == {"sobol"}
    names = {strategy_name(case) for case in thompson.cases(SETTINGS)}
    assert names == set(METHODS)


def record(method: str = "decoupled", ell: int | None = 16, number=0, last=0.5, **more: Any) -> dict[str, Any]:
    """A run's line in a results file, whose regret falls from 1 to `last`."""
    case = {"d": 2, "method": method, "ell": ell, **more}
    result = {"best": [1.0, last], "minimum": 0.0, "seconds": 1.0}
    return {"key": json.dumps([case, number]), "case": case, "trial": number, "result": result}


def test_tasks_that_only_the_numbers_of_points_a_round_were_tried_on_are_in_no_comparison_of_strategies():
    points: list[dict[str, Any]] = [{}, {"kappa": 1}, {"kappa": 16}]
    kappas = [record(features="cosine", number=number, **more) for number in range(3) for more in points]
    rows = flat([record("random", None), *kappas])
    assert len(rows) == 10 and {row["trial"] for row in compared(rows, SETTINGS)} == {0}
    assert compared(flat(kappas), SETTINGS) == flat(kappas)  # with nothing to compare, all are shown


def test_whether_the_points_a_round_matter_is_said_by_a_paired_test():
    """Regrets a tenth as large in all of six pairs: two of the 2^6 arrangements of signs are as extreme."""
    usual = [record(features="cosine", number=number, last=0.1 * (number + 1)) for number in range(7)]
    fewer = [record(features="cosine", kappa=1, number=number, last=0.01 * (number + 1)) for number in range(6)]
    floor = [record("random", None, number=number, last=0.0) for number in range(7)]
    (said,) = thompson.report([*usual, *fewer, *floor], SETTINGS).remarks
    assert "With 1 instead of 2 points a round" in said and "0.035 instead of 0.35" in said
    assert "in 6 pairs, its log10 differs by -1 with" in said and "p = 0.031" in said


def test_a_permutation_test_is_exact_for_few_pairs_and_close_for_many():
    """Of n differences of one size and sign, two of the 2^n arrangements of signs are as extreme."""
    test = thompson.permutation_test
    assert test(torch.ones(6, dtype=torch.float64)) == 2 / 2**6
    assert test(torch.tensor([1.0, -1.0], dtype=torch.float64)) == 1.0
    normal = torch.randn(40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for mean in (0.0, 0.4):  # against the two-sided normal tail
        x = normal - normal.mean() + mean
        z = abs(float(x.mean())) * math.sqrt(len(x)) / float(x.square().mean().sqrt())
        assert test(x) == pytest.approx(math.erfc(z / math.sqrt(2)), abs=0.02)


@pytest.mark.parametrize("of", [{"method": "random", "ell": None}, {"features": "cosine", "kappa": 16}])
def test_a_report_on_some_strategies_alone_has_the_figures_that_these_are_in(of, tmp_path):
    report = thompson.report([record(**of)], SETTINGS)
    assert set(report.figures) == ({"", "full", "runtimes"} if "method" in of else set())
    for figure in report.figures.values():
        assert figure().axes


def test_direct_goes_one_point_at_a_time_and_keeps_to_its_budget():
    asked = watched("DIRECT")
    assert [x.shape for x in asked] == [(1, 2)] * (2 * SETTINGS["rounds"])
    assert asked[0].tolist() == [[0.5, 0.5]]


def test_weight_space_has_as_many_basis_functions_as_decoupled(monkeypatch):
    seen = []

    def suggest(models, bounds, q, **settings):
        seen.append((settings["strategy"], models[0].num_data, settings["num_features"]))
        return [torch.rand(q, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(len(seen)))]

    monkeypatch.setattr("matheron.thompson.suggest_together", suggest)
    watched("weight-space", 16)
    watched("decoupled", 16)
    assert all(features == 16 + (n if strategy == "weight-space" else 0) for strategy, n, features in seen)
    assert [n for strategy, n, _ in seen if strategy == "decoupled"] == [2, 4, 6]


@pytest.mark.parametrize("method", METHODS[:5])
def test_trials_together_give_what_each_gives_alone_bit_for_bit(method):
    trials = [trial(method, 16, number=number) for number in (0, 3, 1)]
    shares = []
    together = thompson.run_together(trials, SETTINGS, CPU, shares.append)
    alone = [thompson.run(it, SETTINGS, CPU) for it in trials]
    assert [each["best"] for each in together] == [each["best"] for each in alone]
    assert [each["minimum"] for each in together] == [each["minimum"] for each in alone]
    assert len({tuple(each["best"]) for each in together}) == 3
    assert method == "DIRECT" or shares[-1] == 1.0


def test_runs_of_the_first_version_count_where_tasks_are_still_the_same():
    assert thompson.unchanged(1, {"d": 4}) and not thompson.unchanged(1, {"d": 2})
    assert not thompson.unchanged(0, {"d": 4})


def test_only_strategies_that_polish_their_points_run_together_so_that_others_are_stored_one_by_one():
    sizes = {case["method"]: thompson.together(case) for case in thompson.cases(SETTINGS)}
    assert {method for method, size in sizes.items() if size == thompson.TOGETHER} == {"weight-space", "decoupled"}
    assert {size for method, size in sizes.items() if method not in ("weight-space", "decoupled")} == {1}
