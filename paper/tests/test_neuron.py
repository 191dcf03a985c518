"""The neuron, its experiment at a tiny scale, and the fits of its run times."""

import json
import time

import numpy as np
import pytest
import torch

import matheron
from matheron_paper import experiment, fitzhugh_nagumo, neuron, run
from matheron_paper.fitzhugh_nagumo import quadratic
from matheron_paper.neuron import TIMED, Stopwatch, seconds_by_steps, unlearned

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
    assert [row[0] for row in table.compact.rows] == [5, 10, 15, 20]
    missing = [(row[0], i) for row in table.compact.rows for i, value in enumerate(row) if value is None]
    assert missing == [(15, 6)]  # functions are not simulated for 15 steps
    assert len(table.rows) == 4 * settings["compared"] + sum(map(len, settings["timed_steps"].values()))


def test_distances_are_between_all_states_that_are_finite():
    a = torch.randn(40, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    shifted = torch.cat([a + torch.tensor([3.0, 4.0]), torch.full((1, 2), torch.nan)])
    assert fitzhugh_nagumo.distance(a, a) == pytest.approx(0, abs=0.05)
    assert fitzhugh_nagumo.distance(a, shifted) == pytest.approx(5, abs=0.05)


@pytest.mark.parametrize("method", TIMED)
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
            record["result"]["seconds"] = [float(cost[:n].sum()) for n in settings["timed_steps"]["iterative"]]
        if record["case"] == {"part": "time", "method": "decoupled"}:
            record["result"]["seconds"] = [0.5 + 0.002 * n for n in settings["timed_steps"]["decoupled"]]
    said = " ".join(fitzhugh_nagumo.report(records, settings).remarks)
    assert "0.5 s to draw the functions and to start, 2 ms per step (R² = 1.000)" in said
    assert "0.9 ms + 1e+04 ns (m + t)²" in said and "from step 7 on" in said
