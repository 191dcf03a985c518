"""The command: what it prints, what it writes, and what it says when it cannot."""

import os
import platform
import re
import subprocess
import sys

import pytest
import torch
import typer
from matplotlib.image import imread
from rich.console import Console
from typer.testing import CliRunner

import matheron
from matheron import kernels
from matheron.cli import app, demo
from matheron.cli.demo.numbers import duration
from matheron.core import saving as store


def run(*args: str):
    return CliRunner().invoke(app, list(args), env={"COLUMNS": "200"})


@pytest.fixture(scope="module")
def demonstration(tmp_path_factory):
    """What `matheron demo --quick` writes and returns, run once."""
    out = tmp_path_factory.mktemp("demo") / "picture.png"
    return out, demo.run(out, seed=0, quick=True)


def test_the_version_is_the_package_s():
    assert run("--version").output.split() == ["matheron", matheron.__version__]


def test_info_without_a_file_prints_what_a_report_of_a_problem_needs():
    output = run("info").output
    for expected in (f"matheron {matheron.__version__}", f"torch {torch.__version__}", platform.python_version()):
        assert expected in " ".join(output.split()), expected
    assert platform.system() in output


def test_help_names_every_command():
    output = run("--help").output
    assert "demo" in output and "info" in output


@pytest.mark.parametrize("command", [[], ["fit"], ["report"]])
def test_help_has_a_short_option(command):
    assert run(*command, "-h").output == run(*command, "--help").output


LINES = {
    "the help": ["--help"],
    "the help of a command": ["sample", "--help"],
    "the help of the command for fields": ["field", "--help"],
    "the version": ["--version"],
    "a completion of commands": "matheron s",
    "a completion of options": "matheron minimize --",
}


@pytest.mark.parametrize("line", LINES)
def test_help_and_completion_import_nothing_that_takes_long(line):
    """Torch takes two seconds; with none of these, all takes less than a third of a second."""
    words, asked = LINES[line], {}
    if isinstance(words, str):
        place = str(words.count(" "))
        words, asked = [], {"_MATHERON_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": place}
    code = f"""
import atexit, sys
from matheron.cli import app
atexit.register(lambda: print(*sys.modules, file=sys.stderr))
app({words!r}, prog_name="matheron")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **asked})
    assert done.returncode == 0 and done.stdout.strip()
    assert not {"torch", "numpy", "scipy", "pandas", "matplotlib", "matheron.cli.demo"} & set(done.stderr.split())


def test_every_command_s_line_in_the_help_is_that_of_its_own_help():
    listed = " ".join(run("--help").output.replace("│", " ").split())
    for command in ("field", "sample", "demo", "info"):
        own = " ".join(run(command, "--help").output.split()).partition("[OPTIONS]")[2]
        assert re.search(rf"{command} ([^.]+\.)", listed)[1] in own  # type: ignore[index]


def test_the_demo_writes_a_picture_with_the_paper_s_colours(demonstration):
    out, _ = demonstration
    pixels = torch.as_tensor(imread(out)[..., :3]).reshape(-1, 3)
    for colour in ("#ee8722", "#8250b4", "#2a72c8", "#000000"):
        rgb = torch.tensor([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
        assert int(((pixels - rgb).abs().amax(1) < 0.02).sum()) > 500, colour


def test_the_demo_s_paths_have_the_exact_mean_and_nearly_the_exact_law(demonstration):
    ours, papers, dense = demonstration[1]
    assert max(ours.mean_error, papers.mean_error) < 1e-9
    assert ours.closed_form < 1e-2 < papers.closed_form  # 256 equispaced features against 256 random ones
    assert ours.empirical < 2 * dense.empirical  # both are chance, of 500 draws
    assert papers.empirical > ours.empirical


def test_the_demo_does_not_claim_to_have_run_dense_sampling_at_many_points(demonstration):
    _, rows = demonstration
    assert [row.run for row in rows] == [True, True, False]
    console = Console(width=200, record=True)
    console.print(demo.table(rows, demo.QUICK), *demo.notes(rows, demo.QUICK))
    words = console.export_text()
    assert "over" in words and "* not run" in words and "scaled up" in words


def test_the_demo_s_distances_depend_on_the_seed_alone(demonstration, monkeypatch):
    monkeypatch.setattr(demo.numbers, "seconds", lambda call, warm=False: 1.0)  # and not on how often a call is timed
    gp, sizes = demo.problem(), demo.QUICK
    again = demo.measure(gp, demo.same_draws(gp, sizes, 0)[1], sizes, 0)
    for row, first in zip(again, demonstration[1], strict=True):
        assert (row.empirical, row.closed_form) == (first.empirical, first.closed_form)


def test_the_demo_says_where_the_picture_is(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "measure", lambda *args: [])  # the numbers have their own tests
    monkeypatch.setattr(demo, "picture", lambda *args: args[-1].write_bytes(b""))
    monkeypatch.setattr(demo, "notes", lambda *args: [])
    out = tmp_path / "here.png"
    result = run("demo", "--quick", "--out", str(out))
    assert result.exit_code == 0 and f"The picture is in {out}" in result.output.replace("\n", "") and out.exists()


@pytest.mark.parametrize(
    ("out", "words"),
    [("no-such-folder/a.png", "no folder no-such-folder"), ("a.xyz", "expected a name that ends in .png")],
)
def test_the_demo_refuses_a_place_it_cannot_write_to_before_it_starts(out, words):
    result = run("demo", "--out", out)
    assert result.exit_code == 1 and words in result.stderr


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.00314, "3.14 ms"), (0.42, "420 ms"), (2.21, "2.2 s"), (600, "10 minutes"), (9000, "2.5 hours")],
)
def test_durations_have_the_unit_that_suits_them(seconds, words):
    assert duration(seconds) == words


def test_info_says_what_a_saved_draw_holds(tmp_path):
    kernel = 2.0 * kernels.Matern(1.5, [0.2, 0.3]) + kernels.Linear()
    gp = matheron.ExactGP(kernel, torch.rand(5, 2), torch.rand(5), noise=0.1, mean=3.0)
    paths = matheron.draw(gp, 7, num_features=32)
    paths.save(tmp_path / "draw.safetensors")
    result = run("info", str(tmp_path / "draw.safetensors"))
    assert result.exit_code == 0
    for words in (
        "7 paths",
        "2 inputs",
        "5 observations",
        "0.2, 0.3",
        "Linear",
        paths.prior.features.description,
        "float32",
    ):
        assert words in result.output


def test_info_describes_other_values_too(tmp_path):
    store.save(kernels.RBF(0.25), tmp_path / "kernel.safetensors")
    assert "RBF" in run("info", str(tmp_path / "kernel.safetensors")).output


def test_info_explains_what_is_wrong_with_a_file(tmp_path):
    draw, broken = tmp_path / "draw.safetensors", tmp_path / "broken.safetensors"
    matheron.draw_prior(kernels.RBF(), 1, input_dim=1, num_features=4).save(draw)
    broken.write_bytes(draw.read_bytes()[:-8])
    for file, words in ((tmp_path / "none", "no file"), (broken, "not a complete safetensors file")):
        result = run("info", str(file))
        assert result.exit_code == 1 and words in result.stderr and "Traceback" not in result.output


def test_the_shell_can_complete_commands_and_options():
    assert "--install-completion" in run("--help").output
    asked = {"_MATHERON_COMPLETE": "complete_bash", "COMP_WORDS": "matheron re", "COMP_CWORD": "1"}
    assert {"report", "reproduce"} <= set(CliRunner().invoke(app, [], env=asked, prog_name="matheron").output.split())


@pytest.fixture
def without_the_paper(monkeypatch):
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: [])


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["reproduce"], 1),
        (["reproduce", "overview", "--scale", "tiny"], 1),
        (["report", "a"], 1),
        (["report", "--help"], 0),
    ],
)
def test_without_the_paper_s_experiments_the_command_says_how_to_install_them(without_the_paper, words, code):
    result = run(*words)
    said = f"`matheron {words[0]}` is a command of matheron-paper, which is not installed."
    output = " ".join(result.output.split())
    assert result.exit_code == code and said in output and "pip install ./paper" in output
    assert "Traceback" not in output


def test_without_the_paper_s_experiments_the_shell_completes_other_options(without_the_paper):
    asked = {"_MATHERON_COMPLETE": "complete_bash", "COMP_WORDS": "matheron reproduce --", "COMP_CWORD": "2"}
    result = CliRunner().invoke(app, [], env=asked, prog_name="matheron")
    assert result.output.split() == ["--help"] and not result.stderr


def test_help_lists_the_paper_s_commands_without_looking_for_them(monkeypatch):
    def looked_for(**_):
        raise AssertionError

    monkeypatch.setattr("importlib.metadata.entry_points", looked_for)
    assert {"reproduce", "report"} <= set(run("--help").output.split())


def test_no_option_is_named_by_its_metavar():
    """Typer 0.27 takes a metavar that differs from an option's name in case alone for its flag (--KERNEL)."""

    def options(command, path):
        yield from ((path, each) for each in command.params if each.param_type_name == "option")
        for name, inner in getattr(command, "commands", {}).items():
            yield from options(inner, [*path, name])

    found = list(options(typer.main.get_command(app), []))
    assert len(found) > 50
    wrong = [(path, each.name) for path, each in found if (each.metavar or "").lower() == each.name]
    assert not wrong
