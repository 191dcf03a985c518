"""The neuron, its experiment at a tiny scale, and the fits of its run times."""

import json
import time

import numpy as np
import pytest
import torch

import matheron
from matheron_paper import experiment, fitzhugh_nagumo, neuron, run
from matheron_paper.fitzhugh_nagumo import quadratic
from matheron_paper.neuron_simulation import METHODS, Stopwatch, seconds_by_steps, unlearned

CPU = torch.device("cpu")


def test_the_neuron_rests_without_current_and_spikes_with_it():
    rest = torch.tensor(neuron.REST, dtype=torch.float64)
    quiet = matheron.rollout(neuron.drift, rest, 800, 0.25, controls=torch.zeros(800, 1))
    assert float((quiet[0, :, 0] - rest[0]).abs().max()) < 0.05
    spiking = matheron.rollout(neuron.drift, rest, 800, 0.25, controls=torch.full((800, 1), 0.5))
    v = spiking[0, :, 0]
    assert int(((v[:-1] < 1) & (v[1:] >= 1)).sum()) >= 3
    lower, upper = torch.tensor(neuron.BOX, dtype=torch.float64)[:, :2]
    assert bool(((spiking[0] > lower) & (spiking[0] < upper)).all())


def test_training_targets_are_the_drift_with_the_noise_of_an_increment():
    x, y = neuron.transitions(20000, torch.Generator().manual_seed(20200712))
    noise = y - neuron.drift(x)
    variance = neuron.DIFFUSION / neuron.STEP
    assert float((noise.var(0) / variance - 1).abs().max()) < 4 * (2 / 20000) ** 0.5


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    out = tmp_path_factory.mktemp("neuron")
    summary = run(experiment("fitzhugh-nagumo"), "tiny", out=out, workers=1)
    lines = (out / "fitzhugh-nagumo-tiny.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines[1:]], summary


@pytest.mark.slow
def test_it_leaves_its_table_and_figure(results):
    records, summary = results
    assert summary.failed == summary.left == 0 and len(records) == 3
    sizes = {path.suffix: path.stat().st_size for path in summary.files}
    assert set(sizes) == {".jsonl", ".csv", ".md", ".png", ".pdf"} and min(sizes.values()) > 100


@pytest.mark.slow
def test_the_table_has_a_row_a_compared_time_and_the_file_every_number(results):
    _, summary = results
    table, settings = summary.report.table, fitzhugh_nagumo.SCALES["tiny"]
    assert [row[0] for row in table.compact.rows] == settings["timed_steps"]
    assert all(value is not None for row in table.compact.rows for value in row)
    assert len(table.rows) == 3 * settings["compared"] + 2 * len(settings["timed_steps"])


@pytest.mark.slow
def test_distances_take_the_place_of_states(results):
    law = results[0][0]["result"]
    assert "states" not in law and all(len(w2) == len(law["times"]) for w2 in law["w2"].values())
    same = {"times": [1.0], "states": {name: [[[0.0, 1.0], [2.0, 3.0]]] for name in ("truth", "floor", *METHODS[1:])}}
    same["states"]["iterative"] = [[[0.0, 5.0], [2.0, 7.0]]]  # all 4 further
    distances = fitzhugh_nagumo.with_distances(same)["w2"]
    assert distances["decoupled"][0] == pytest.approx(0, abs=0.1)
    assert distances["iterative"][0] == pytest.approx(4, abs=0.1)


@pytest.mark.slow
def test_without_the_library_of_distances_states_are_kept_and_the_rest_is_reported(results, monkeypatch):
    monkeypatch.setattr(fitzhugh_nagumo, "find_spec", lambda name: None)
    records = json.loads(json.dumps(results[0]))
    law = records[0]["result"]
    law["states"] = {name: [[[0.0, 1.0]]] for name in law.pop("w2")}
    assert fitzhugh_nagumo.with_distances(law) == law
    report = fitzhugh_nagumo.report(records, fitzhugh_nagumo.SCALES["tiny"])
    assert not report.figures and "need POT" in report.remarks[-1]
    assert report.table.compact is not None and report.table.compact.rows[0][2] is None


@pytest.mark.parametrize("method", METHODS[1:])
def test_seconds_are_those_of_a_simulation_on_its_way(method):
    sizes = {"num_features": 16, "batch": 4, "device": CPU, "generator": torch.Generator().manual_seed(0)}
    seconds = seconds_by_steps(method, unlearned(5, CPU), 8, [1, 200], **sizes)
    assert 0 < seconds[0] < seconds[1]


def test_a_stopwatch_adds_up_what_each_start_took():
    watch = Stopwatch([1, 3], CPU)
    for _ in range(2):
        watch.start()
        drift = watch.over(lambda x: time.sleep(0.01) or x)
        for _ in range(4):
            drift(torch.zeros(1))
    assert 0.02 <= watch.seconds[0] < watch.seconds[1] and watch.seconds[1] >= 0.06


def test_the_fit_finds_what_a_step_costs():
    m, overhead, slope = 7, 1e-3, 2e-8
    cost = overhead + slope * (m + np.arange(200)) ** 2.0
    seconds = {n: 0.5 + float(cost[:n].sum()) for n in (20, 50, 90, 150, 200)}
    fit = quadratic(seconds, m)
    assert fit.overhead == pytest.approx(overhead) and fit.slope == pytest.approx(slope)
    assert fit.r2 == pytest.approx(1)
    assert quadratic(dict(seconds) | {90: seconds[90] + 0.01}, m).r2 < 0.99


@pytest.mark.slow
def test_remarks_name_the_step_at_which_the_quadratic_part_passes(results):
    records = json.loads(json.dumps(results[0]))
    settings = {**fitzhugh_nagumo.SCALES["tiny"], "num_inducing": 2}
    cost = 9e-4 + 1e-5 * (2 + np.arange(20)) ** 2.0  # equal at m + t = sqrt(90), 7.5 steps
    for record in records:
        if record["case"] == {"part": "time", "method": "iterative"}:
            record["result"]["seconds"] = [float(cost[:n].sum()) for n in settings["timed_steps"]]
        if record["case"] == {"part": "time", "method": "decoupled"}:
            record["result"]["seconds"] = [0.5 + 0.002 * n for n in settings["timed_steps"]]
    said = " ".join(fitzhugh_nagumo.report(records, settings).remarks)
    assert "0.5 s to draw the functions and to start, 2 ms per step (R² = 1.000)" in said
    assert "0.9 ms + 1e+04 ns (m + t)²" in said and "from step 7 on" in said
