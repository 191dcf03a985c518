"""The experiments stand on matheron's public interface: what its reference documents, and nothing inside."""

import ast
import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

import matheron_paper

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs/build"))
public = import_module("public")
FILES = sorted(Path(matheron_paper.__file__).parent.glob("*.py"))


def documented() -> set[str]:
    """The full names of all that users may import: what the reference shows, and the modules and packages it is in."""
    pages = "\n".join(page.read_text() for page in (ROOT / "docs/reference").glob("*.md"))
    shown = re.findall(r"^::: (matheron[\w.]*)$", pages, re.MULTILINE)
    names = {*public.public_names(), *shown, "matheron.__version__"}
    return names | {name.rpartition(".")[0] for name in names}


def used(tree: ast.AST) -> set[str]:
    """The full names of what code takes from matheron, by imports and as attributes of modules that it imported."""
    taken = {}  # local name -> full name
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            taken |= {one.asname or "matheron": one.name for one in node.names if one.name.split(".")[0] == "matheron"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "matheron":
            taken |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
    modules = {local: name for local, name in taken.items() if name not in public.public_names()}
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    owned = [(node.value.id, node.attr) for node in attributes if isinstance(node.value, ast.Name)]
    return {*taken.values(), *(f"{modules[owner]}.{name}" for owner, name in owned if owner in modules)}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_experiment_takes_only_what_is_documented(file):
    tree = ast.parse(file.read_text())
    assert used(tree) <= documented(), f"not in docs/reference: {sorted(used(tree) - documented())}"
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    private = [ast.unparse(node) for node in attributes if re.match("_[^_]", node.attr)]
    assert all(name.startswith(("self._", "os._exit")) for name in private), private


@pytest.mark.parametrize(
    ("code", "inside"),
    [
        ("from matheron.core.checks import ArrayLike", "matheron.core.checks.ArrayLike"),
        ("from matheron.paths import PriorPlusUpdate", "matheron.paths.PriorPlusUpdate"),
        ("from matheron import paths", "matheron.paths"),
        ("import matheron.solvers.cholesky", "matheron.solvers.cholesky"),
        ("import matheron\nmatheron.features.Pairs", "matheron.features"),
        ("from matheron import thompson as t\nt.strategies.draw", "matheron.thompson.strategies"),
    ],
)
def test_what_lies_inside_is_noticed(code, inside):
    assert inside in used(ast.parse(code)) - documented()


def test_what_the_experiments_take_is_seen():
    everything = set().union(*(used(ast.parse(file.read_text())) for file in FILES))
    assert {"matheron.draw", "matheron.compare.samplers.moments", "matheron.thompson.suggest_together"} <= everything
