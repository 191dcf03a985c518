"""docs/paper.md, the paper item by item: its code can be imported, its commands exist, no equation is missing."""

import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup

from matheron.cli import app
from matheron_paper import experiment, names

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/paper.md").read_text()
CODE = sorted(set(re.findall(r"`(matheron(?:_paper)?(?:\.\w+)+)`", PAGE)))
COMMANDS = sorted(set(re.findall(r"`(matheron [^`]*)`", PAGE)))
TESTS = sorted(set(re.findall(r"`pytest -k (test_\w+)`", PAGE)))
LABEL = r"`((?:eqn|thm|cor|prop|fig|sec|apdx):[\w-]+)`"


def resolved(name: str) -> object:
    """What a dotted name stands for: a module, or what is in one."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found = import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            found = getattr(found, part)
        return found
    raise ImportError(name)


def parsed(command: str) -> dict[str, object]:
    """The arguments of a command as `matheron` reads them; nothing is run."""
    _, name, *words = shlex.split(command)
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    assert name in group.commands, f"matheron has no command {name}"
    return group.commands[name].make_context(name, words).params


@pytest.mark.parametrize("name", CODE)
def test_code_that_the_page_names_exists(name):
    resolved(name)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_the_page_exist_with_their_options(command):
    params = parsed(command)
    if command.startswith("matheron reproduce") and not params["show_list"]:
        assert params["name"] in names()
        assert params["scale"] in experiment(str(params["name"])).scales


def test_the_page_has_every_experiment():
    assert {word for command in COMMANDS for word in command.split()[2:3]} >= set(names())


@pytest.mark.parametrize("test", TESTS)
def test_tests_that_the_page_names_exist(test):
    files = [*(ROOT / "tests").rglob("test_*.py"), *(ROOT / "paper/tests").glob("test_*.py")]
    assert any(f"def {test}(" in file.read_text() for file in files)


def test_equations_and_propositions_that_code_and_pages_name_have_rows():
    rows = set(re.findall(LABEL, "\n".join(line for line in PAGE.splitlines() if line.startswith("|"))))
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "paper/src").rglob("*.py"), *(ROOT / "docs").rglob("*.md")]
    named = {label for file in files for label in re.findall(r"(?:eqn|thm|cor|prop|fig|apdx):[\w-]+", file.read_text())}
    assert len(named) > 30 and named <= rows


def test_every_numbered_equation_has_a_row():
    table = PAGE.split("## Equations")[1].split("## Statements")[0]
    firsts = [line.split("|")[1] for line in table.splitlines() if line.startswith("| (")]
    found: list[int] = []
    for first in firsts:
        for low, high in re.findall(r"\((\d+)\)(?: to \((\d+)\))?", first):
            found += range(int(low), int(high or low) + 1)
    assert sorted(found) == list(range(1, 48))


def test_every_row_has_all_columns_and_rows_with_code_say_what_shows_it():
    tables = PAGE.split("## Sections")[0]
    rows = [re.split(r" *\| *", line)[1:-1] for line in tables.splitlines() if line.startswith("| ")]
    assert {len(row) for row in rows} == {5}
    assert all(bool(row[3]) == (row[2] != "none") for row in rows)


@pytest.mark.parametrize("wrong", ["matheron.drawn", "matheron.no_such_module.draw"])
def test_a_name_that_is_gone_is_noticed(wrong):
    with pytest.raises((AttributeError, ImportError)):
        resolved(wrong)


@pytest.mark.parametrize("wrong", ["matheron paint", "matheron reproduce overview --fast"])
def test_a_command_that_is_gone_is_noticed(wrong):
    with pytest.raises(Exception, match=r"no command paint|No such option"):
        parsed(wrong)
