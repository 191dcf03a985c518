"""--likelihood: counts, and yes and no in words, become functions of rates and probabilities."""

import io
import json

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.image import imread
from typer.testing import CliRunner

import matheron
from matheron.cli import app


def run(*args, code: int = 0):
    result = CliRunner().invoke(app, [str(a) for a in args], env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output + result.stderr
    return result


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    g, n = np.random.default_rng(0), 60
    x, area = np.sort(g.uniform(0, 6, n)), g.uniform(0.5, 2, n)
    rate = np.exp(1 + np.sin(x))
    frame = pd.DataFrame({"x": x, "area": area, "rate": rate, "count": g.poisson(area * rate)})
    frame["seen"] = np.where(g.uniform(size=n) < 1 / (1 + np.exp(-4 * np.sin(x))), "Yes", "no")
    frame["tree"] = np.where(frame.seen == "no", "ash", "oak")
    frame["three"], frame["hits"], frame["shots"] = np.arange(n) % 3, g.binomial(5, rate / 10), 5
    frame.loc[3, "seen"] = None
    file = tmp_path_factory.mktemp("outcomes") / "table.csv"
    frame.to_csv(file, index=False)
    return file


def test_counts_become_rates_per_exposure_and_files_remember_it(table, tmp_path):
    words = ["--target", "count", "--inputs", "x", "--likelihood", "poisson", "--exposure", "area"]
    said = run("fit", table, *words, "--save", tmp_path / "m.safetensors").output
    assert "Matern under Poisson, 60 outcomes" in said and "log density" in said and "noise" not in said
    out, plot, save = (tmp_path / name for name in ("s.csv", "p.png", "d.safetensors"))
    run("sample", tmp_path / "m.safetensors", "--at", table, "--out", out, "--plot", plot, "--save", save, "--paths", 4)
    frame, true = pd.read_csv(out), pd.read_csv(table).rate
    assert np.abs(frame.count_mean / true - 1).mean() < 0.2 and (frame.filter(like="path_") > 0).all(axis=None)
    assert imread(plot).ndim == 3
    again = run("evaluate", save, table).output
    np.testing.assert_allclose(pd.read_csv(io.StringIO(again)), frame, rtol=1e-9)
    paths = matheron.load(save)
    np.testing.assert_allclose(paths(torch.tensor(frame[["x"]].to_numpy())).exp()[1], frame.path_1)
    straight = run("fit", table, *words, "--json").output
    assert json.loads(straight)["hyperparameters"]["mean"] == pytest.approx(1.0, abs=0.8)


@pytest.mark.parametrize(
    ("target", "more", "said"),
    [
        ("seen", ["--likelihood", "bernoulli"], "1 of 60 rows has an empty"),
        ("tree", ["--likelihood", "probit"], "tree: oak counts as 1, ash as 0"),
        ("hits", ["--likelihood", "binomial", "--trials", "shots"], ""),
        ("rate", ["--likelihood", "student-t", "--kernel", "rbf"], ""),
    ],
)
def test_each_likelihood_gives_functions_in_its_own_range(table, tmp_path, target, more, said):
    result = run("sample", table, "--target", target, "--inputs", "x", *more, "--out", tmp_path / "s.csv", "--paths", 2)
    assert said in result.output + result.stderr
    values = pd.read_csv(tmp_path / "s.csv").iloc[:, 1:].to_numpy()
    assert np.isfinite(values).all() and values.min() > 0 and (target == "rate" or values.max() < 1)
    mean = values[:, 0]
    half = len(mean) // 2
    assert mean[:half].mean() > mean[half:].mean()


def test_minimize_looks_for_low_rates_and_high_probabilities(table, tmp_path):
    """Rates are least where sin(x) is, at 4.71, and probabilities are largest where it is largest, at 1.57."""
    out = tmp_path / "next.csv"
    counts = ["--target", "count", "--inputs", "x", "--likelihood", "poisson", "--exposure", "area"]
    said = json.loads(run("minimize", table, *counts, "--points", 8, "--out", out, "--json").output)
    frame, given = pd.read_csv(out), pd.read_csv(table)
    assert abs(frame.x.median() - 4.71) < 0.7 and (frame.count_mean > 0).all() and (frame.count_sd > 0).all()
    assert said["best"]["count"] == (given["count"] / given.area).min()
    run("minimize", table, "--target", "seen", "--inputs", "x", "--likelihood", "bernoulli", "--maximize", "--out", out)
    found = pd.read_csv(out)
    assert abs(found.x.median() - 1.57) < 1.0 and found.seen_mean.between(0.5, 1.0).all()


def test_a_field_is_of_rates(tmp_path):
    xarray = pytest.importorskip("xarray")
    g = np.random.default_rng(0)
    points = g.uniform(0, 6, (150, 2))
    counts = g.poisson(np.exp(1 + np.sin(points[:, 0])))
    pd.DataFrame({"lon": points[:, 0], "lat": points[:, 1], "count": counts}).to_csv(tmp_path / "s.csv", index=False)
    words = ["field", tmp_path / "s.csv", "--x", "lon,lat", "--value", "count", "--likelihood", "poisson"]
    said = run(*words, "--grid", "8x6", "--paths", 20, "--out", tmp_path / "r.nc", "--validate").output
    assert "Matern under Poisson" in said and "leave-one-out: RMSE" in said
    with xarray.open_dataset(tmp_path / "r.nc") as field:
        mean = field["mean"].mean("lat")
        assert float(field["count"].min()) > 0
        assert np.abs(mean / np.exp(1 + np.sin(field.lon)) - 1).mean() < 0.3
    result = run(*words, "--log", "--out", tmp_path / "l.nc", code=1)
    assert "--log: goes with normal errors" in result.stderr


def test_refusals(table):
    def refused(target: str, *more: str) -> str:
        return run("fit", table, "--target", target, "--inputs", "x", *more, code=1).stderr

    assert "column 'three' holds 3 different values, 0.0, 1.0, 2.0; expected two classes" in refused(
        "three", "--likelihood", "bernoulli"
    )
    assert "column 'rate': expected counts, whole numbers from 0" in refused("rate", "--likelihood", "poisson")
    assert "--likelihood: expected one of bernoulli" in refused("count", "--likelihood", "poison")
    assert "--noise: a --likelihood already has" in refused("count", "--likelihood", "poisson", "--noise", "1")
    assert "Give --trials" in refused("hits", "--likelihood", "binomial")
    assert "--exposure: goes with --likelihood poisson" in refused("count", "--exposure", "area")
    assert "at most as many successes as trials" in refused("count", "--likelihood", "binomial", "--trials", "shots")
