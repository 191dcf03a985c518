"""`matheron reproduce`, as a user types it."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from matheron.cli import app
from matheron_paper import command, names, runner


def invoke(*words):
    return CliRunner().invoke(app, ["reproduce", *map(str, words)])


def test_the_list_names_every_experiment():
    result = invoke("--list")
    assert result.exit_code == 0
    assert all(name in result.output for name in names())


def test_without_a_name_the_list_is_shown_and_the_exit_code_says_so():
    result = invoke()
    assert result.exit_code == 2 and "wasserstein" in result.output


def test_an_experiment_is_run_and_its_table_printed(tmp_path):
    result = invoke("overview", "--scale", "tiny", "--out", tmp_path, "--workers", 1, "--seed", 3)
    assert result.exit_code == 0, result.output
    assert "decoupled, empirical" in result.output and "median" in result.output
    assert (tmp_path / "overview-tiny-seed3.png").exists()


def test_only_the_cases_that_are_asked_for_are_run(tmp_path):
    only = ["--only", "d=1", "--only", "posterior=sparse"]
    result = invoke("bounds", "--scale", "tiny", "--out", tmp_path, "--workers", 1, *only)
    assert result.exit_code == 0, result.output
    assert "bounds, tiny scale: 2 trials" in result.output
    _, *lines = (tmp_path / "bounds-tiny.jsonl").read_text().splitlines()
    assert [json.loads(line)["case"] for line in lines] == [{"d": 1, "posterior": "sparse"}] * 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing"], "expected one of posteriors"),
        (["overview", "--scale", "huge"], "scale: expected one of paper, quick, tiny"),
        (["overview", "--device", "cuda:99"], "cuda"),
        (["bounds", "--only", "d=3", "--scale", "tiny"], "no case has d=3; there are d=1, posterior=exact"),
        (["bounds", "--only", "d"], "expected NAME=VALUE such as d=8, got d"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(tmp_path, words, message):
    result = invoke(*words, "--out", tmp_path)
    assert result.exit_code == 2
    assert message in result.output and "Traceback" not in result.output


def test_ctrl_c_is_answered_with_how_to_go_on(tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "_run_open", interrupted)
    result = invoke("overview", "--scale", "tiny", "--out", tmp_path)
    assert result.exit_code == 130 and "the same command resumes" in result.output


def test_failed_trials_make_the_exit_code_one(tmp_path, monkeypatch):
    failed = runner.Summary(finished=1, failed=1, left=0, files=[], report=None)
    monkeypatch.setattr(runner, "run", lambda *_, **__: failed)
    assert invoke("overview", "--out", tmp_path).exit_code == 1


def test_its_own_help_has_its_options_and_the_library_s_help_its_first_line():
    own = " ".join(invoke("--help").output.split())
    assert "tiny takes seconds" in own
    assert "--time-limit" in own and "Every finished trial is stored at once" in own
    assert "--install-completion" not in own
    lines = {command.name: (command.help or "").splitlines()[:1] for command in app.registered_commands}
    for function in (command.reproduce, command.report):
        assert function.__doc__ and lines[function.__name__] == function.__doc__.splitlines()[:1]


def test_the_shell_completes_its_options():
    asked = {"_MATHERON_COMPLETE": "complete_bash", "COMP_WORDS": "matheron reproduce --t", "COMP_CWORD": "2"}
    found = CliRunner().invoke(app, [], env=asked, prog_name="matheron").output.split()
    assert {"--time-limit", "--trials"} <= set(found)


def test_its_options_are_read_without_torch():
    code = "import sys, matheron_paper.command; print('torch' in sys.modules)"
    path = ":".join(filter(None, sys.path))
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": path}, capture_output=True, text=True)
    assert done.stdout.split() == ["False"], done.stderr
