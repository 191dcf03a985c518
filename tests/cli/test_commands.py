"""sample, fit, evaluate, minimize: from a table to functions, and what is said of tables that will not do."""

import errno
import io
import json
import math
import os
import re
import signal
import subprocess
import sys
import tracemalloc
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.image import imread
from typer.testing import CliRunner

import matheron
from matheron.cli import app, data, pictures, sampling
from matheron.compare.samplers import moments

SMALL = ["--paths", "3"]


def run(*args, code: int = 0):
    result = CliRunner().invoke(app, [str(a) for a in args], env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output + result.stderr
    assert "Traceback" not in result.output + result.stderr
    return result


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Tables of one and of two inputs, and a draw of each that was sampled once."""
    folder = tmp_path_factory.mktemp("tables")
    rng = np.random.default_rng(0)
    time, depth = np.sort(rng.uniform(0, 24, 16)), rng.uniform(0, 10, 16)
    temperature = 15 + 5 * np.sin(time / 24 * 2 * math.pi) - 0.3 * depth
    frame = pd.DataFrame({"time": time, "depth": depth, "temp": temperature, "kind": ["a", "b"] * 8})
    frame[["time", "temp"]].to_csv(folder / "one.csv", index=False)
    frame[["time", "depth", "temp"]].to_parquet(folder / "two.parquet")
    frame.to_csv(folder / "kinds.csv", index=False)
    run("sample", folder / "one.csv", "--target", "temp", *SMALL, "--save", folder / "one.safetensors", "--quiet")
    return folder


def test_sample_writes_values_a_picture_and_functions_that_agree(folder, tmp_path):
    out, plot, save = tmp_path / "s.parquet", tmp_path / "p.png", tmp_path / "d.safetensors"
    data = folder / "one.csv"
    words = run(
        "sample", data, "--target", "temp", *SMALL, "--out", out, "--plot", plot, "--save", save, "--grid", "50"
    ).output
    table, observed = pd.read_parquet(out), pd.read_csv(data)
    assert list(table.columns) == ["time", "temp_mean", "path_0", "path_1", "path_2"] and len(table) == 50
    assert table.time.min() == observed.time.min() and table.time.max() == observed.time.max()
    paths = matheron.load(save)
    points = torch.tensor(table[["time"]].to_numpy())
    np.testing.assert_allclose(paths(points).numpy(), table[["path_0", "path_1", "path_2"]].to_numpy().T)
    near = np.interp(observed.time, table.time, table.temp_mean)
    assert np.abs(near - observed.temp).max() < 1.0
    assert imread(plot).ndim == 3 and "16 observations of temp at time" in words and str(save) in words


def test_the_seed_decides_and_defaults_are_the_same_twice(folder, tmp_path):
    tables = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        out = tmp_path / f"{name}.csv"
        run("sample", folder / "one.csv", "--target", "temp", *SMALL, "--grid", "9", "--out", out, "--seed", seed, "-q")
        tables.append(pd.read_csv(out))
    assert tables[0].equals(tables[1]) and not np.allclose(tables[0].path_1, tables[2].path_1)


def test_two_inputs_are_sampled_at_points_of_a_table(folder, tmp_path):
    points = pd.DataFrame({"depth": [1.0, 2.0], "note": ["x", "y"], "time": [3.0, 4.0]})
    points.to_csv(tmp_path / "at.csv", index=False)
    out, plot = tmp_path / "s.csv", tmp_path / "p.png"
    run(
        "sample",
        folder / "two.parquet",
        "--target",
        "temp",
        *SMALL,
        "--at",
        tmp_path / "at.csv",
        "--out",
        out,
        "-q",
        "--plot",
        plot,
    )
    table = pd.read_csv(out)
    assert list(table.columns[:3]) == ["time", "depth", "temp_mean"] and table.time.tolist() == [3.0, 4.0]
    assert imread(plot).shape[1] > imread(plot).shape[0]


def test_three_inputs_are_cut_along_each_of_them(tmp_path):
    X = np.random.default_rng(0).normal(size=(12, 3))
    frame = pd.DataFrame(X, columns=list("abc")).assign(y=X.sum(1))
    frame.to_csv(tmp_path / "t.csv", index=False)
    run(
        "sample", tmp_path / "t.csv", "--target", "y", *SMALL, "--plot", tmp_path / "p.png", "--out", tmp_path / "s.csv"
    )
    table = pd.read_csv(tmp_path / "s.csv")
    np.testing.assert_allclose(table[list("abc")], X)  # the data's own points
    assert (tmp_path / "p.png").stat().st_size > 10_000


def test_fit_prints_hyperparameters_in_the_table_s_units(folder):
    words = run("fit", folder / "two.parquet", "--target", "temp").output
    assert "Matern.lengthscale[depth]" in words and "noise standard dev" in words
    facts = json.loads(run("fit", folder / "two.parquet", "--target", "temp", "--json").output)
    assert facts["inputs"] == ["time", "depth"] and facts["observations"] == 16
    assert 1 < facts["hyperparameters"]["Matern.lengthscale[time]"] < 100


def test_evaluate_gives_what_the_functions_give_whatever_the_chunks(folder, tmp_path, monkeypatch):
    points = pd.DataFrame({"time": np.linspace(0, 24, 41)})
    points.to_csv(tmp_path / "at.csv", index=False)
    monkeypatch.setattr("matheron.cli.data.rows_per_chunk", lambda _: 7)
    printed = run("evaluate", folder / "one.safetensors", tmp_path / "at.csv")
    out = tmp_path / "v.parquet"
    facts = json.loads(run("evaluate", folder / "one.safetensors", tmp_path / "at.csv", "--out", out, "--json").output)
    assert facts == {"paths": 3, "points": 41, "points_with_gaps": 0, "out": str(out)}
    expected = matheron.load(folder / "one.safetensors")(torch.tensor(points.to_numpy())).numpy().T
    np.testing.assert_allclose(pd.read_parquet(out)[["path_0", "path_1", "path_2"]], expected)
    lines = printed.output.splitlines()
    assert len(lines) == 42 and lines[0].startswith("time,temp_mean,path_0")


def test_functions_saved_without_a_table_are_evaluated_at_columns_by_number(tmp_path):
    paths = matheron.draw_prior(matheron.kernels.RBF(), 2, input_dim=2, num_features=8)
    paths.save(tmp_path / "d.safetensors")
    (tmp_path / "at.csv").write_text("x0,x1\n0.1,0.2\n")
    words = run("evaluate", tmp_path / "d.safetensors", tmp_path / "at.csv").output
    assert float(words.splitlines()[1].split(",")[3]) == pytest.approx(float(paths([[0.1, 0.2]])[0]))


def test_a_large_table_is_evaluated_in_bounded_memory(folder, tmp_path, monkeypatch):
    rows = 40_000
    pd.DataFrame({"time": np.linspace(0, 24, rows)}).to_parquet(tmp_path / "at.parquet", row_group_size=1000)
    monkeypatch.setattr("matheron.cli.data.rows_per_chunk", lambda _: 1000)
    tracemalloc.start()
    run("evaluate", folder / "one.safetensors", tmp_path / "at.parquet", "--out", tmp_path / "v.parquet", "-q")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(pd.read_parquet(tmp_path / "v.parquet")) == rows
    assert peak < 1.6e6  # its five columns have as many bytes


def test_minimize_suggests_points_near_the_minimum(tmp_path):
    x = np.linspace(0, 1, 14)
    frame = pd.DataFrame({"a": x, "b": (x * 7) % 1, "cost": (x - 0.3) ** 2 + ((x * 7) % 1 - 0.6) ** 2})
    frame.to_csv(tmp_path / "t.csv", index=False)
    words = run("minimize", tmp_path / "t.csv", "--target", "cost", "--points", "3", "--out", tmp_path / "n.csv").output
    table = pd.read_csv(tmp_path / "n.csv")
    assert len(table) == 3 and np.abs(table.a.median() - 0.3) < 0.2 and "Try next" in words
    facts = json.loads(
        run("minimize", tmp_path / "t.csv", "--target", "cost", "--maximize", "--bounds", "a=2:3", "--json").output
    )
    assert all(2 <= point["a"] <= 3 for point in facts["points"]) and facts["best"]["cost"] == frame.cost.max()


def test_rows_with_empty_cells_are_left_out_and_counted(tmp_path):
    (tmp_path / "t.csv").write_text("a,y\n1,2\n2,\n3,4\n,5\n5,6\n")
    words = run("fit", tmp_path / "t.csv", "--target", "y").output
    assert "2 of 5 rows have an empty or infinite cell and are left out" in words and "3 observations" in words


def test_every_command_counts_rows_with_gaps_however_quiet_it_is(tmp_path):
    """A fit leaves them out; as points they have no values, and stay where they are. So does a row without a target."""
    rows = "".join(f"{i},{i % 3},{(i * 5) % 7},{math.sin(i)}\n" for i in range(9))
    table, save, out = tmp_path / "t.csv", tmp_path / "d.safetensors", tmp_path / "s.csv"
    table.write_text("a,b,c,y\n" + rows + "9,,1,2\n20,1,1,\n,1,1,inf\n")
    left_out = "3 of 12 rows have an empty or infinite cell and are left out"
    no_values = "2 of 12 points have an empty or infinite cell and no values (NaN)"
    assert left_out in run("fit", table, "--target", "y", "--quiet").stderr
    result = run("minimize", table, "--target", "y", "--points", "1", "--json")
    assert left_out in result.stderr and json.loads(result.stdout)["rows_with_gaps"] == 3
    for command in (
        ["sample", table, "--target", "y", *SMALL, "--out", out, "--save", save, "--json"],
        ["evaluate", save, table, "--out", out, "--quiet"],
        ["sample", table, "--target", "y", *SMALL, "--at", table, "--out", out],
    ):
        result = run(*command)
        written = pd.read_csv(out)
        assert no_values in result.stderr and (left_out in result.stderr or command[0] == "evaluate")
        assert "--json" not in command or json.loads(result.stdout)["points_with_gaps"] == 2
        assert written.path_0.isna().tolist() == [False] * 9 + [True, False, True] == written.y_mean.isna().tolist()
        assert written.a.isna().tolist() == [False] * 11 + [True]


def test_points_beyond_the_data_are_sampled_and_points_beyond_saved_functions_are_named(folder, tmp_path):
    (tmp_path / "at.csv").write_text("time\n-100\n200\n")
    out = tmp_path / "s.csv"
    run("sample", folder / "one.csv", "--target", "temp", *SMALL, "--at", tmp_path / "at.csv", "--out", out, "-q")
    assert pd.read_csv(out).notna().all(axis=None)
    words = run("evaluate", folder / "one.safetensors", tmp_path / "at.csv", code=1).stderr
    assert "expected points inside the domain" in words and "matheron sample ... --at" in words


def test_values_printed_have_empty_cells_for_points_with_gaps(folder, tmp_path):
    (tmp_path / "at.csv").write_text("time\n1\nNA\n")
    result = run("evaluate", folder / "one.safetensors", tmp_path / "at.csv")
    assert result.stdout.splitlines()[2] == ",,,,"
    assert "1 of 2 points has an empty or infinite cell and no values (NaN)" in result.stderr


def test_a_category_that_is_missing_is_a_gap(folder, tmp_path):
    frame = pd.read_csv(folder / "kinds.csv")
    frame.loc[3, "kind"] = None
    frame.to_csv(tmp_path / "t.csv", index=False)
    out = tmp_path / "s.csv"
    run("sample", tmp_path / "t.csv", "--target", "temp", "--encode", "kind", *SMALL, "--out", out, "-q")
    written = pd.read_csv(out)
    assert written.kind.equals(frame.kind) and written.path_0.isna().tolist() == frame.kind.isna().tolist()


def test_minimize_chooses_among_categories(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"flour": rng.choice(["rye", "spelt", "wheat"], 40), "salt": rng.uniform(0, 3, 40)})
    frame["faults"] = (frame.salt - 2) ** 2 + frame.flour.map({"rye": 1.0, "spelt": 0.0, "wheat": 3.0})
    frame.to_csv(tmp_path / "t.csv", index=False)
    command = ["minimize", tmp_path / "t.csv", "--target", "faults", "--encode", "flour", "--out", tmp_path / "n.csv"]
    words = run(*command).output
    table = pd.read_csv(tmp_path / "n.csv")
    assert list(table.columns) == ["flour", "salt", "faults_mean", "faults_sd"]
    assert (table.flour == "spelt").all() and (np.abs(table.salt - 2) < 0.2).all()
    best = frame.loc[frame.faults.idxmin()]
    assert f"flour = {best.flour}, salt = {best.salt:.6g}" in words
    run(*command, "--maximize", "-q")
    assert (pd.read_csv(tmp_path / "n.csv").flour == "wheat").all()


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_dates_are_numbers_to_the_model_and_dates_again_in_what_is_written(tmp_path, kind):
    days = pd.date_range("2024-02-20", periods=30)
    frame = pd.DataFrame({"day": days, "level": (np.arange(30) - 20.0) ** 2})
    table = tmp_path / f"t.{kind}"
    frame.to_csv(table, index=False) if kind == "csv" else frame.to_parquet(table)
    words = run("fit", table, "--target", "level", "--save", tmp_path / "m.safetensors").output
    assert "day: dates, as days since 2024-02-20" in words
    X = matheron.load(tmp_path / "m.safetensors").input_transform.inverse(
        matheron.load(tmp_path / "m.safetensors").train_inputs
    )
    np.testing.assert_allclose(X[:, 0], np.arange(30), atol=1e-9)
    suggested = tmp_path / f"n.{kind}"
    words = run("minimize", table, "--target", "level", "--points", "2", "--out", suggested).output
    assert "at\n  day = 2024-03-11\n" in words
    dates = pd.to_datetime((pd.read_csv if kind == "csv" else pd.read_parquet)(suggested).day)
    assert (np.abs((dates - pd.Timestamp("2024-03-11")).dt.days) <= 1).all() and (dates == dates.dt.normalize()).all()
    command = ["minimize", table, "--target", "level", "--bounds", "day=2024-02-22:2024-02-25", "--json"]
    points = json.loads(run(*command).stdout)["points"]
    assert all("2024-02-22" <= point["day"] < "2024-02-26" for point in points)
    grid = tmp_path / "s.csv"
    run("sample", tmp_path / "m.safetensors", *SMALL, "--grid", "30", "--out", grid, "-q", "--plot", tmp_path / "p.png")
    assert pd.to_datetime(pd.read_csv(grid).day).tolist() == list(days)


def test_points_of_dates_are_evaluated_by_their_dates(tmp_path):
    times = pd.date_range("2024-02-20 06:00", periods=25, freq="37min")
    frame = pd.DataFrame({"time": times, "level": np.sin(np.arange(25) / 4)})
    frame.to_csv(tmp_path / "t.csv", index=False)
    save = tmp_path / "d.safetensors"
    words = run("sample", tmp_path / "t.csv", "--target", "level", *SMALL, "--save", save).output
    assert "time: dates, as hours since 2024-02-20T06:00:00" in words
    (tmp_path / "at.csv").write_text('time\n2024-02-20T07:30\n"20 Feb 2024 09:00"\n')
    printed = run("evaluate", save, tmp_path / "at.csv", code=1).stderr
    assert "but '20 Feb 2024 09:00' in row 2 is none" in printed
    (tmp_path / "at.csv").write_text("time\n2024-02-20T07:30\n2024-02-20T09:00\n")
    printed = pd.read_csv(io.StringIO(run("evaluate", save, tmp_path / "at.csv").stdout))
    expected = matheron.load(save)(torch.tensor([[1.5], [3.0]], dtype=torch.float64))
    np.testing.assert_allclose(printed.path_0, expected[0])
    (tmp_path / "at.csv").write_text("time\n7.5\n")
    assert "holds 7.5, expected dates, such as 2024-02-20T06:00:00" in run(
        "evaluate", save, tmp_path / "at.csv", code=1
    ).stderr.replace("np.float64(7.5)", "7.5")


KERNELS = {
    "rbf": "RBF",
    "matern-1/2": "Matern",
    "rational-quadratic": "RationalQuadratic",
    "periodic": "Periodic",
    "linear + Periodic": "Linear + Periodic",
}


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_and_the_noise_can_be_named(folder, tmp_path, kernel):
    save = tmp_path / "m.safetensors"
    words = run("fit", folder / "one.csv", "--target", "temp", "--kernel", kernel, "--noise", "0.25", "--save", save)
    gp = matheron.load(save)
    assert words.output.splitlines()[1].startswith(f"{KERNELS[kernel]}, 16 observations")
    assert "noise standard dev  0.25" in " ".join(words.output.split()).replace("dev 0.25", "dev  0.25")
    scale = float(gp.output_transform.scale)
    np.testing.assert_allclose(gp.noise.sqrt() * scale, 0.25)


def test_the_named_default_kernel_is_the_default(folder):
    facts = [
        json.loads(run("fit", folder / "one.csv", "--target", "temp", *kernel, "--json").stdout)["hyperparameters"]
        for kernel in ([], ["--kernel", "matern-5/2"])
    ]
    assert facts[0].keys() == facts[1].keys()
    np.testing.assert_allclose([*facts[0].values()], [*facts[1].values()], rtol=1e-2)


def test_columns_can_be_left_out(folder):
    words = run("fit", folder / "kinds.csv", "--target", "temp", "--exclude", "kind,depth").output
    assert "16 observations of temp at time\n" in words


def test_of_a_long_table_so_many_rows_are_used_and_the_best_is_among_them(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 10, 400)
    frame = pd.DataFrame({"x": x, "y": (x - 4) ** 2 + 0.1 * rng.normal(size=400)})
    frame.to_csv(tmp_path / "t.csv.gz", index=False)
    command = [tmp_path / "t.csv.gz", "--target", "y", "--rows", "50"]
    result = run("fit", *command, "-q")
    assert "50 of 400 rows are used, drawn at random; --rows 400 uses all" in result.stderr
    facts = json.loads(run("minimize", *command, "--json").stdout)
    assert facts["best"]["y"] == frame.y.min()
    assert json.loads(run("fit", *command, "--json").stdout)["observations"] == 50


def test_categories_are_refused_with_a_word_or_encoded(folder, tmp_path):
    data, save = folder / "kinds.csv", tmp_path / "d.safetensors"
    refused = run("fit", data, "--target", "temp", code=1).stderr
    assert "column 'kind' holds text ('a' in row 1; 16 of 16 cells)" in refused and "--encode kind" in refused
    run("sample", data, "--target", "temp", "--encode", "kind", *SMALL, "--save", save, "-q")
    (tmp_path / "at.csv").write_text("kind,time,depth\nb,3,4\n")
    assert len(run("evaluate", save, tmp_path / "at.csv").output.splitlines()) == 2
    (tmp_path / "at.csv").write_text("kind,time,depth\nc,3,4\n")
    assert "which is none of a, b" in run("evaluate", save, tmp_path / "at.csv", code=1).stderr


def test_categories_are_sampled_at_the_data_s_own_points(folder, tmp_path):
    data, out = folder / "kinds.csv", tmp_path / "s.csv"
    command = ["sample", data, "--target", "temp", "--inputs", "time,kind", "--encode", "kind", *SMALL, "--out", out]
    run(*command, "-q")
    frame, written = pd.read_csv(data), pd.read_csv(out)
    assert list(written.kind) == list(frame.kind) and np.allclose(written.time, frame.time)
    assert "a grid cannot run over categories" in run(*command, "--grid", "5x5x5", code=1).stderr


def test_a_picture_is_at_categories_that_there_are(folder, tmp_path, monkeypatch):
    """Along time, too: of two categories that are equally frequent neither has a median of one."""
    seen = []
    real = pictures.cut
    monkeypatch.setattr(pictures, "cut", lambda *args: (seen.append(real(*args)), seen[-1])[1])
    command = ["sample", folder / "kinds.csv", "--target", "temp", *SMALL, "--encode", "kind", "--inputs"]
    run(*command, "time,kind", "--plot", tmp_path / "p.png", "-q")
    along_time, along_kind = seen
    assert (along_time[:, 1:].sum(1) == 1).all() and len(along_time) == 300
    assert torch.equal(along_kind[:, 1:], torch.eye(2, dtype=torch.float64))
    run(*command, "kind", "--plot", tmp_path / "p.png", "-q")
    assert torch.equal(seen[-1], torch.eye(2, dtype=torch.float64))


def test_a_picture_says_what_its_bands_are_and_joins_no_categories(folder, tmp_path, monkeypatch):
    figures = []
    real = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda figure, *args, **how: (figures.append(figure), real(figure, *args, **how))
    )
    command = ["sample", folder / "kinds.csv", "--target", "temp", *SMALL, "-q", "--plot", tmp_path / "p.png"]
    run(*command, "--encode", "kind", "--inputs", "time,kind")
    along_time, along_kind = figures[0].axes
    assert any(line.get_linestyle() != "None" for line in along_time.lines)
    assert all(line.get_linestyle() == "None" for line in along_kind.lines)
    assert [tick.get_text() for tick in along_kind.get_xticklabels()] == sorted(
        set(pd.read_csv(folder / "kinds.csv").kind)
    )
    words = [text.get_text() for text in along_time.get_legend().get_texts()]
    assert any(word.startswith("function") for word in words)
    (tmp_path / "two.csv").write_text("east,north,ore\n" + "".join(f"{i % 5},{i % 7},{i % 3}\n" for i in range(30)))
    run("sample", tmp_path / "two.csv", "--target", "ore", *SMALL, "-q", "--plot", tmp_path / "p.png")
    mean, *_, deviation, bar, _ = figures[1].axes
    assert (mean.get_xlabel(), mean.get_ylabel(), bar.get_xlabel()) == ("east", "north", "ore")
    assert (mean.get_title(), deviation.get_title()) == ("mean", "standard deviation")


def test_no_command_writes_over_what_it_reads(folder, tmp_path):
    data, save = tmp_path / "one.csv", folder / "one.safetensors"
    data.write_bytes((folder / "one.csv").read_bytes())
    before = data.read_bytes(), save.read_bytes()
    for command in (
        ["sample", data, "--target", "temp", "--out", tmp_path / "." / "one.csv"],
        ["sample", folder / "one.csv", "--target", "temp", "--at", data, "--out", data],
        ["minimize", data, "--target", "temp", "--out", data],
        ["evaluate", save, data, "--out", data],
        ["sample", save, "--save", save],
    ):
        assert "is also an input and would be overwritten" in run(*command, code=1).stderr
    assert (data.read_bytes(), save.read_bytes()) == before


def test_what_is_doubtful_in_a_table_is_said(tmp_path):
    """An index without a name is no input, a mark such as -9999 and copies of rows are."""
    rows = "".join(f"{i},{i / 3},{math.sin(i)}\n" for i in range(9))
    (tmp_path / "t.csv").write_text(",a,y\n" + rows + "9,1.1,-9999\n0,0,0\n")
    words = run("fit", tmp_path / "t.csv", "--target", "y").output
    assert "a column without a name is left out" in words and "11 observations of y at a\n" in words
    assert "y is -9999 in 1 of 11 rows: if that means no data" in words
    assert "1 row is a copy of others" in words


def test_a_picture_s_band_is_the_posterior_s_and_with_many_data_that_of_the_paths(monkeypatch):
    X = torch.linspace(0, 1, 6, dtype=torch.float64)[:, None]
    gp = matheron.ExactGP(matheron.kernels.Matern(2.5, 0.3), X, X[:, 0].sin(), noise=1e-2)
    paths, x = matheron.draw(gp, 5, seed=0), torch.rand(9, 1, dtype=torch.float64)
    covariance = moments(gp, x)[1]
    torch.testing.assert_close(data.deviation(paths, gp)(x), covariance.diagonal().sqrt())
    monkeypatch.setattr(data, "EXACT", 5)
    torch.testing.assert_close(data.deviation(paths, gp)(x), paths(x).std(0))


def test_minimize_sees_a_function_of_many_waves(tmp_path):
    t = np.random.default_rng(0).uniform(0, 50, 250)
    pd.DataFrame({"t": t, "y": np.sin(2 * np.pi * t)}).to_csv(tmp_path / "waves.csv", index=False)
    answer = json.loads(run("minimize", tmp_path / "waves.csv", "--target", "y", "--json").output)
    # A draw may be lowest where data leave a gap, but nowhere where they say that it is not.
    assert all(point["y_mean"] - 2 * point["y_sd"] < -0.9 for point in answer["points"])


def test_minimize_suggests_whole_numbers_and_yes_or_no_where_the_table_has_them(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"layers": rng.integers(1, 9, 25), "wide": rng.uniform(size=25) < 0.5, "rate": rng.uniform(size=25)}
    )
    frame["loss"] = 0.1 * (frame.layers - 4.4) ** 2 + 0.5 * frame.wide + (frame.rate - 0.3) ** 2
    frame["units"] = rng.integers(1, 9, 25).astype(float)
    frame.loc[3, "units"] = np.nan  # whole numbers with a gap are floats to pandas
    frame.to_csv(tmp_path / "t.csv", index=False)
    command = ["minimize", tmp_path / "t.csv", "--target", "loss", "--out", tmp_path / "n.csv"]
    words = run(*command).output
    table = pd.read_csv(tmp_path / "n.csv")
    assert [str(kind) for kind in table.dtypes[:4]] == ["int64", "bool", "float64", "int64"]
    assert set(table.layers) <= {4, 5} and not table.wide.any()
    assert "layers, units: whole numbers" in words and "--bounds layers=1.0:8.0" in words
    run(*command, "--bounds", "layers=1.0:8.0", "-q")
    layers = pd.read_csv(tmp_path / "n.csv").layers
    assert (np.abs(layers - 4.4) < 0.3).all() and (layers % 1 != 0).any()


def test_minimize_says_what_the_posterior_says_with_digits_enough(tmp_path):
    """Of northings in metres the last digits count; the deviation is the posterior's own."""
    rng = np.random.default_rng(0)
    north = 4_600_000 + rng.uniform(0, 100, 12)
    pd.DataFrame({"north": north, "y": np.sin(north / 20)}).to_csv(tmp_path / "t.csv", index=False)
    command = ["minimize", tmp_path / "t.csv", "--target", "y", "--points", "2"]
    run("fit", tmp_path / "t.csv", "--target", "y", "--save", tmp_path / "m.safetensors", "-q")
    points = pd.DataFrame(json.loads(run(*command, "--json").output)["points"])
    covariance = moments(matheron.load(tmp_path / "m.safetensors"), torch.tensor(points[["north"]].to_numpy()))[1]
    np.testing.assert_allclose(points["y_sd"], covariance.diagonal().sqrt(), rtol=1e-4, atol=1e-6)
    shown = [line.split()[0] for line in run(*command).output.splitlines()[-2:]]
    np.testing.assert_allclose([float(value) for value in shown], points.north, rtol=0, atol=5e-3)


def test_names_with_commas_are_quoted(tmp_path):
    (tmp_path / "t.csv").write_text('"a, m",b=c,y\n' + "".join(f"{i},{i % 3},{i * i}\n" for i in range(6)))
    words = run("fit", tmp_path / "t.csv", "--target", "y", "--inputs", '"a, m"').output
    assert "6 observations of y at a, m\n" in words
    command = ["minimize", tmp_path / "t.csv", "--target", "y", "--points", "1", "--json"]
    (point,) = json.loads(run(*command, "--bounds", '"a, m=7:9",b=c=1:1.5').output)["points"]
    assert 7 <= point["a, m"] <= 9 and 1 <= point["b=c"] <= 1.5


def test_columns_that_are_constant_are_named(tmp_path):
    (tmp_path / "t.csv").write_text("a,c,y\n" + "".join(f"{i},3,7\n" for i in range(5)))
    result = run("fit", tmp_path / "t.csv", "--target", "y")
    assert "c: the same in all rows" in result.output and "R^2 undefined" in result.output
    assert "the target 'y' is constant" in result.stderr


def test_one_row_is_sampled_around_it(tmp_path):
    """A box of one point is no map: neither in a table nor in a picture."""
    (tmp_path / "t.csv").write_text("a,b,y\n5,0,2\n")
    words = ["--out", tmp_path / "s.csv", "--plot", tmp_path / "p.png", "--grid", "5x4"]
    run("sample", tmp_path / "t.csv", "--target", "y", *SMALL, *words, "-q")
    table, pixels = pd.read_csv(tmp_path / "s.csv"), imread(tmp_path / "p.png")[..., :3]
    assert len(table.drop_duplicates(["a", "b"])) == 20 and table.a.min() < 5 < table.a.max()
    assert (np.ptp(pixels, axis=2) > 0.1).mean() > 0.2  # maps in colours, not colour bars alone


def test_one_row_can_be_fitted_but_says_nothing_of_where_to_look(tmp_path):
    (tmp_path / "t.csv").write_text("a,y\n1,2\n")
    assert "1 observation" in run("fit", tmp_path / "t.csv", "--target", "y").output
    assert "expected at least two" in run("minimize", tmp_path / "t.csv", "--target", "y", code=1).stderr


ONE = ["--target", "temp", "--quiet"]
WRONG = {
    "a column that is not there": (["fit", "one.csv", "--target", "tmp"], 1, "has no column 'tmp'; it has time, temp"),
    "an input that is not there": (["fit", "one.csv", *ONE, "--inputs", "x"], 1, "has no column 'x'"),
    "the target among the inputs": (["fit", "one.csv", *ONE, "--inputs", "time,temp"], 1, "is the target"),
    "no file": (["fit", "none.csv", *ONE], 1, "no file"),
    "no target": (["fit", "one.csv"], 2, "--target"),
    "no target to sample": (["sample", "one.csv", "--out", "s.csv"], 2, "Give --target"),
    "nothing to do": (["sample", "one.csv", *ONE], 2, "nothing to do"),
    "a bad grid": (["sample", "one.csv", *ONE, "--out", "s.csv", "--grid", "4x5"], 2, "such as 50, got '4x5'"),
    "a grid and points": (
        ["sample", "one.csv", *ONE, "--out", "s.csv", "--grid", "4", "--at", "one.csv"],
        2,
        "not both",
    ),
    "a grid over categories": (
        ["sample", "kinds.csv", *ONE, "--encode", "kind", "--out", "s.csv", "--grid", "4"],
        1,
        "a grid cannot run over categories",
    ),
    "points that are not there": (
        ["sample", "one.csv", *ONE, "--out", "s.csv", "--at", "none.csv"],
        1,
        "no file none.csv",
    ),
    "a folder that is not ours": (
        ["fit", "one.csv", *ONE, "--save", "/proc/m.safetensors"],
        1,
        "nothing can be written into /proc",
    ),
    "a folder that is not there": (["sample", "one.csv", *ONE, "--out", "no/s.csv"], 1, "no folder no"),
    "an ending that is not known": (["sample", "one.csv", *ONE, "--plot", "p.gif"], 1, "ends in .png, .pdf, .svg"),
    "no paths in a file": (["evaluate", "one.csv", "one.csv"], 1, "not a complete safetensors file"),
    "no model in a file": (["sample", "one.safetensors", "--out", "s.csv"], 1, "expected a model that"),
    "a model in place of functions": (["evaluate", "model.safetensors", "one.csv"], 1, "got a model (ExactGP); draw"),
    "a saved model's columns": (["sample", "one.safetensors", *ONE, "--out", "s.csv"], 2, "has its columns"),
    "points without a column": (["evaluate", "one.safetensors", "bad.csv"], 1, "has no column 'time'; it has a"),
    "bounds of a stranger": (["minimize", "one.csv", *ONE, "--bounds", "x=0:1"], 1, "'x' is not among the inputs"),
    "bounds in no order": (["minimize", "one.csv", *ONE, "--bounds", "time=1:0"], 1, "expected low < high"),
    "bounds that are words": (["minimize", "one.csv", *ONE, "--bounds", "time=low"], 1, "expected time=low:high"),
    "a constant target's only input": (["fit", "flat.csv", "--target", "y"], 1, "no input varies"),
    "nothing but empty cells": (["fit", "gaps.csv", "--target", "y"], 1, "every row has an empty cell"),
    "an input twice": (["fit", "one.csv", *ONE, "--inputs", "time,time"], 1, "expected different columns"),
    "text in the target": (["fit", "kinds.csv", "--target", "kind"], 1, "name another column with --target"),
    "text in the target first": (["fit", "words.csv", "--target", "b"], 1, "'b' holds text"),
    "text among points to try": (["minimize", "kinds.csv", *ONE], 1, "if it names categories, add --encode kind"),
    "bounds twice": (["minimize", "one.csv", *ONE, "--bounds", "time=0:1,time=0:2"], 1, "'time' is given twice"),
    "bounds without an end": (["minimize", "one.csv", *ONE, "--bounds", "time=0:inf"], 1, "expected time=low:high"),
    "bounds of a category": (
        ["minimize", "kinds.csv", *ONE, "--encode", "kind", "--bounds", "kind=0:1"],
        1,
        "'kind' is a category and has no bounds",
    ),
    "a kernel that is not known": (
        ["fit", "one.csv", *ONE, "--kernel", "rbf+matern"],
        1,
        "--kernel: expected one of rbf, matern-1/2",
    ),
    "a negative noise": (["fit", "one.csv", *ONE, "--noise", "-1"], 2, "--noise"),
    "the target left out": (["fit", "one.csv", *ONE, "--exclude", "temp"], 1, "--exclude: 'temp' is the target"),
    "an input left out": (
        ["fit", "kinds.csv", *ONE, "--inputs", "time", "--exclude", "time"],
        1,
        "'time' is one of --inputs",
    ),
    "a stranger left out": (["fit", "one.csv", *ONE, "--exclude", "x"], 1, "has no column 'x'"),
    "a saved model's kernel": (
        ["sample", "one.safetensors", "--out", "s.csv", "--kernel", "rbf", "--noise", "1"],
        2,
        "leave out --kernel, --noise",
    ),
    "a number that is too large": (
        ["fit", "large.csv", "--target", "y"],
        1,
        "column 'a' holds 1e+308 in row 2, expected numbers up to 1e+150",
    ),
    "text in a column with a space": (["fit", "order.csv", "--target", "y"], 1, "--encode 'Order ID'"),
    "days and months that look alike": (["fit", "days.csv", "--target", "y"], 1, "write them as 2024-12-31"),
    "a date among others that is none": (["fit", "noday.csv", "--target", "y"], 1, "but 'soon' in row 2 is none"),
    "no other column": (["fit", "bad.csv", "--target", "a"], 1, "at least one column besides 'a'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_mistakes_are_named_in_a_line_with_an_exit_code(case, folder, model, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "bad.csv").write_text("a\n1\n")
    (folder / "large.csv").write_text("a,y\n1,2\n1e308,3\n")
    (folder / "order.csv").write_text("Order ID,y\nA-1,2\nB-2,3\n")
    (folder / "days.csv").write_text("day,y\n01/02/2024,2\n03/02/2024,3\n")
    (folder / "noday.csv").write_text("day,y\n2024-02-01,2\nsoon,3\n")
    (folder / "flat.csv").write_text("a,y\n1,2\n1,3\n")
    (folder / "gaps.csv").write_text("a,y\n1,\n,3\n")
    (folder / "words.csv").write_text("a,b\nx,y\nz,w\n")
    command, code, words = WRONG[case]
    if words.endswith("/proc") and sys.platform != "linux":
        pytest.skip("/proc is a folder of Linux")
    monkeypatch.setattr(data, "fit", lambda *_, **__: pytest.fail("a fit, before the mistake was found"))
    result = run(*command, code=code)
    assert words in " ".join(result.stderr.replace("│", " ").split())
    assert not (folder / "s.csv").exists()


@contextmanager
def full_disk():
    """No file can grow beyond a kilobyte: what happens on a full disk, but that the system's word is another."""
    import resource

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.fixture(scope="module")
def model(folder):
    run("fit", folder / "one.csv", "--target", "temp", "--save", folder / "model.safetensors", "-q")
    return folder / "model.safetensors"


@pytest.mark.skipif(sys.platform == "win32", reason="limits as POSIX has them")
@pytest.mark.parametrize("option", ["--out=s.csv", "--out=s.parquet", "--plot=p.png", "--plot=p.pdf"])
def test_a_full_disk_is_said_in_a_line_and_what_was_there_stays(option, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = option.split("=")[1]
    Path(file).write_text("precious")
    with full_disk():
        words = run("sample", model, *SMALL, option, code=1).stderr
    assert words == f"error: {file}: cannot be written: {os.strerror(errno.EFBIG)}\n"
    assert [other.name for other in tmp_path.iterdir()] == [file] and Path(file).read_text() == "precious"


def test_an_error_of_the_system_while_functions_are_saved_is_said_in_a_line(model, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "d.safetensors")

    monkeypatch.setattr("matheron.core.saving.save", full)
    words = run("sample", model, *SMALL, "--save", tmp_path / "d.safetensors", code=1).stderr
    assert words == f"error: d.safetensors: {os.strerror(errno.ENOSPC)}\n"


@pytest.mark.skipif(sys.platform == "win32", reason="symbolic links need privileges")
def test_a_loop_of_symbolic_links_is_named(folder, tmp_path):
    a, b = tmp_path / "a.csv", tmp_path / "b.csv"
    a.symlink_to(b)
    b.symlink_to(a)
    leads_nowhere = f"error: {a} is a symbolic link that leads to no file\n"
    assert run("fit", a, "--target", "y", code=1).stderr == leads_nowhere
    assert run("minimize", a, "--target", "y", "--out", tmp_path / "o.csv", code=1).stderr == leads_nowhere
    assert leads_nowhere == run("evaluate", folder / "one.safetensors", a, "--out", tmp_path / "o.csv", code=1).stderr


@pytest.mark.skipif(sys.platform == "win32", reason="signals as POSIX has them")
@pytest.mark.parametrize("module", ["typer", "torch"])
def test_an_interrupt_while_modules_are_imported_prints_no_traceback(module, folder):
    code = f"""
import os, signal, sys

class Interrupted:
    def find_spec(self, name, *_):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background inherits that it is ignored
sys.meta_path.insert(0, Interrupted())
sys.argv = ["matheron", "fit", {str(folder / "one.csv")!r}, "--target", "temp"]
from matheron.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode in (130, -signal.SIGINT) and "Traceback" not in done.stderr


def test_debug_shows_the_traceback(folder):
    result = CliRunner().invoke(app, ["--debug", "fit", str(folder / "none.csv"), "--target", "y"])
    assert isinstance(result.exception, FileNotFoundError)


def test_the_points_of_a_grid_are_those_of_the_whole():
    axes = [torch.linspace(0, 1, 3), torch.linspace(2, 3, 4), torch.linspace(5, 6, 2)]
    blocks = list(sampling._grid_blocks(axes, 5))
    assert max(map(len, blocks)) == 5
    torch.testing.assert_close(torch.cat(blocks), torch.cartesian_prod(*axes))


def test_info_names_the_columns_of_the_table(folder, tmp_path):
    frame = pd.DataFrame({"day": pd.date_range("2024-02-20", periods=8), "kind": ["a", "b"] * 4, "y": range(8)})
    frame.to_csv(tmp_path / "t.csv", index=False)
    for command, option in (("fit", []), ("sample", SMALL)):
        save = tmp_path / f"{command}.safetensors"
        run(command, tmp_path / "t.csv", "--target", "y", "--encode", "kind", *option, "--save", save, "-q")
        words = " ".join(run("info", save).output.split())
        assert "target y inputs day (days since 2024-02-20), kind (one of a, b)" in words
        assert "8 observations" in words and "checksum OK" in words and "inducing" not in words


def test_one_of_anything_is_singular(tmp_path):
    (tmp_path / "t.csv").write_text("a,y\n1,2\n")
    save, out = tmp_path / "d.safetensors", tmp_path / "s.csv"
    command = ["sample", tmp_path / "t.csv", "--target", "y", "--paths", "1", "--save", save, "--out", out]
    words = run(*command, "--at", tmp_path / "t.csv").output + run("info", save).output
    words += run("evaluate", save, tmp_path / "t.csv", "--out", out).output
    assert "1 function drawn" in words and "1 function at 1 point:" in words
    assert not re.search(r"\b1 (\w+ )?(functions|observations|points|paths|rows|inputs|outputs)\b", words)


def test_a_saved_model_takes_the_table_s_place(folder, tmp_path):
    model = tmp_path / "m.safetensors"
    run("fit", folder / "one.csv", "--target", "temp", "--save", model, "-q")
    outs = [tmp_path / "a.csv", tmp_path / "b.csv"]
    run("sample", model, *SMALL, "--grid", "11", "--out", outs[0], "-q")
    run("sample", folder / "one.csv", "--target", "temp", *SMALL, "--grid", "11", "--out", outs[1], "-q")
    a, b = (pd.read_csv(out) for out in outs)
    np.testing.assert_allclose(a, b, rtol=1e-6)
