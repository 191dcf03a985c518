"""The documentation: its code prints what it says, its links lead somewhere, its import order is the code's."""

import ast
import contextlib
import doctest
import io
import re
import shlex
import sys
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
import torch
from matplotlib import pyplot as plt
from typer.testing import CliRunner

import matheron
from matheron import kernels
from matheron.cli import app

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs/build"))
public = import_module("public")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Pages that need a library of an environment of its own (`make test-gpflow` runs that one) or of `make docs`.
NEEDS = {
    "docs/tutorials/gpflow.md": "gpflow",
    "docs/tutorials/geometric.md": "geometric_kernels",
    "docs/tutorials/geostatistics.md": "pykrige",
}
SCREENSHOTS = {"optuna-dashboard.png"}  # of pages in a browser: no code here makes them
LONG = {  # `make test-slow` runs them
    *(str(page.relative_to(ROOT)) for page in (ROOT / "docs/gallery").glob("*.md")),
    "docs/travel.md",
    *(f"docs/tutorials/{page}.md" for page in ("fields", "control", "optuna", "dynamics")),
    *(f"docs/tutorials/{page}.md" for page in ("botorch", "gpytorch", "geostatistics")),
}
PAGES_WITH_CODE = [
    pytest.param(page, marks=[pytest.mark.slow] if str(page.relative_to(ROOT)) in LONG else [])
    for page in PAGES
    if "```python" in page.read_text()
]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def commanded(lines: str) -> str:
    """What the commands of a block print, each `$ matheron ...` on a line of its own."""
    printed = ""
    for line in lines.replace("\\\n", " ").splitlines():
        words = shlex.split(line)
        assert words[:2] == ["$", "matheron"], f"expected `$ matheron ...`, got {line}"
        result = CliRunner().invoke(app, words[2:], env={"COLUMNS": "200"})
        assert result.exit_code == 0, result.output
        printed += result.output
    return printed


@pytest.mark.parametrize("page", PAGES_WITH_CODE, ids=name)
def test_the_code_of_a_page_runs_and_prints_what_the_page_says(page, tmp_path, monkeypatch):
    if name(page) in NEEDS:
        pytest.importorskip(NEEDS[name(page)])
    monkeypatch.chdir(tmp_path)
    blocks = [(kind, body) for kind, body in FENCE.findall(page.read_text()) if kind in ("python", "console", "text")]
    names: dict = {"__name__": "docs"}
    for i, (kind, body) in enumerate(blocks):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            if kind == "python":
                exec(compile(body, f"{name(page)}, block {i}", "exec"), names)
            elif kind == "console":
                printed.write(commanded(body))
            else:
                continue
        shown = blocks[i + 1][1] if i + 1 < len(blocks) and blocks[i + 1][0] == "text" else ""
        same = doctest.OutputChecker().check_output(shown, printed.getvalue(), doctest.ELLIPSIS)
        assert same, f"block {i} of {name(page)} printed:\n{printed.getvalue()}"
    figures = set(re.findall(r"\]\(figures/([\w-]+\.png)\)", page.read_text())) - SCREENSHOTS
    assert figures <= {file.name for file in tmp_path.iterdir()}, "the page shows figures that its code does not write"
    plt.close("all")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_to_files_that_exist(page):
    prose = FENCE.sub("", page.read_text())
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", prose):
        assert "://" in target or (page.parent / target).exists(), f"{name(page)} links to {target}"


WRITTEN_ABOUT = [*sorted(ROOT.glob("*.md")), *PAGES[1:], ROOT / "benchmarks/README.md"]
ELSEWHERE = {"utils.py", "release.yml"}  # one that is not to be, and one of .github


@pytest.mark.parametrize("page", WRITTEN_ABOUT, ids=name)
def test_files_and_names_that_prose_mentions_exist(page):
    text = page.read_text()
    folders = [page.parent, ROOT, *(ROOT / folder for folder in ("docs", "src/matheron", "benchmarks"))]
    for file in set(re.findall(r"`(?:python )?([\w./-]+\.(?:py|md|toml|txt|yml))[` ]", text)) - ELSEWHERE:
        assert any((folder / file).exists() for folder in folders), f"{name(page)} names {file}"
    absent = {"matheron.commands", "matheron.adapters.geometric.translate"}  # entry points; a library that is not here
    for dotted in set(re.findall(r"`(matheron(?:\.\w+)+)[`(]", text)) - absent:
        found: object = matheron
        for i, part in enumerate(dotted.split(".")[1:], 2):
            if not hasattr(found, part):
                with contextlib.suppress(ImportError):
                    import_module(".".join(dotted.split(".")[:i]))
            assert hasattr(found, part), f"{name(page)} names {dotted}"
            found = getattr(found, part)


def test_a_page_of_the_gallery_has_fewer_than_forty_lines_of_code_and_one_picture():
    pages, listed = sorted((ROOT / "docs/gallery").glob("*.md")), (ROOT / "docs/gallery.md").read_text()
    assert len(pages) >= 24
    for page in pages:
        text = page.read_text()
        code = [body for kind, body in FENCE.findall(text) if kind == "python"]
        assert len(code) == 1 and len(code[0].splitlines()) < 40, name(page)
        assert re.findall(r"!\[.+\]\(figures/(.*)\)", text) == [f"gallery-{page.stem}.png"], name(page)
        assert f"- [{text.splitlines()[0].removeprefix('# ')}](gallery/{page.name})\n" in listed, name(page)


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text()
    for page in PAGES[1:]:
        assert f": {page.relative_to(ROOT / 'docs')}\n" in navigation, f"add {name(page)} to nav in mkdocs.yml"


def test_the_reference_has_every_public_name_once():
    shown = public.shown()
    missing = [name for name, thing in public.public_names().items() if not any(thing is other for other in shown)]
    assert len(public.public_names()) > 80 and not missing, f"add to a page of docs/reference: {missing}"
    assert len({id(thing) for thing in shown}) == len(shown), "a name is shown twice"


def test_the_readme_s_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"make ([a-z]+)", (ROOT / "README.md").read_text()))
    assert {"demo", "test"} <= targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_nothing_says_to_install_from_an_index_what_is_not_there():
    """There is no release yet: extras are installed in a clone."""
    files = [*PAGES, *(ROOT / "src").rglob("*.py"), *(ROOT / "paper").rglob("*.md")]
    assert not [file for file in files if re.search(r"pip install[^\n`]*matheron\b(?!-)", file.read_text())]


def test_the_notation_s_public_names_exist():
    X = torch.rand(4, 1, dtype=torch.float64)
    exact = matheron.ExactGP(kernels.RBF(), X, X[:, 0], noise=0.1)
    sparse = matheron.SparseGP(kernels.RBF(), X, X[:, 0])
    paths = matheron.draw(exact, 2, num_features=5, features="sincos")  # an odd number: pairs and a single cosine
    examples = [exact, sparse, paths, paths.prior, paths.update, *paths.prior.features.bases]
    of = {type(example).__name__: example for example in examples}
    names = re.findall(r"`(\w+)\.(\w+)`", (ROOT / "docs/notation.md").read_text())
    assert len(names) > 10
    for owner, member in names:
        assert hasattr(of[owner], member), f"{owner}.{member}"


def numbered(page: str) -> list[tuple[str, str]]:
    """The equations in a page's tables: number and label, which is empty for some."""
    return re.findall(r"^\| \((\d+)\)[ |,]*(?:`(eqn:\w+)`)?", (ROOT / "docs" / page).read_text(), re.MULTILINE)


def test_the_notation_explains_every_equation_that_the_code_names():
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "paper/src").rglob("*.py")]
    labels = {label for file in files for label in re.findall(r"eqn:\w+", file.read_text())}
    numbers = {number for file in files for number in re.findall(r"[Ee]quations? \((\d+)\)", file.read_text())}
    explained = {part for row in numbered("notation.md") for part in row}
    assert len(explained) > 20 and labels | numbers <= explained, f"add {labels | numbers - explained} to notation.md"


def test_the_index_of_the_paper_has_the_equations_of_the_notation():
    assert set(numbered("notation.md")) <= set(numbered("paper.md"))


def import_order() -> dict[str, int]:
    """The place of every room in the table of docs/architecture.md."""
    section = (ROOT / "docs/architecture.md").read_text().split("## The rooms")[1].split("\n## ")[0]
    lines = re.findall(r"^\| (\d+) \| ([^|]*) \|", section, re.MULTILINE)
    return {module: int(place) for place, line in lines for module in re.findall(r"`(\w+)`", line)}


def imports(file: Path, package: Path) -> set[str]:
    """The modules of the package, by their first name, that a file imports when it is imported."""
    found = set()
    for node in parsed(file).body:
        if isinstance(node, ast.ImportFrom) and node.level:
            parts = imported_from(node, file, package)
            found |= {parts[0]} if parts else {alias.name for alias in node.names}
    return found


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def imported_from(node: ast.ImportFrom, file: Path, package: Path) -> list[str] | None:
    """The module that names are imported from, by its parts within the package; None where it is of another."""
    parts = [part for part in (node.module or "").split(".") if part]
    if not node.level:
        return parts[1:] if parts[:1] == [package.name] else None
    own = file.relative_to(package).parts[:-1]
    return [*own[: len(own) - node.level + 1], *parts]


def test_imports_go_down_the_list_and_never_up():
    order, package = import_order(), ROOT / "src/matheron"
    for file in sorted(package.rglob("*.py")):
        module = file.relative_to(package).with_suffix("").parts[0]
        if module in ("__init__", "__main__"):
            continue
        assert module in order, f"add {module} to the rooms in docs/architecture.md"
        for imported in imports(file, package) - {module, "__version__"}:
            assert imported in order, f"{file} imports {imported}, which the import order does not have"
            assert order[imported] < order[module], f"{file} imports {imported}, further down the import order"


# What is beneath the type of paths, and what its own modules alone may ask of it.
BENEATH = {"evaluate", "paths.matheron_rule", "core.nufft", "core.arena"}
BENEATH |= {"lattice"}
WITHIN = {"modules", "record", "_records", "_values", "_values_and_gradients", "_on_grid", "_mean", "_given"}
APPLICATIONS = ("thompson", "dynamics", "fields", "cli", "plots", "adapters")


@pytest.mark.parametrize("application", APPLICATIONS)
def test_applications_know_the_type_of_paths_and_nothing_beneath(application):
    package = ROOT / "src/matheron"
    files = sorted(package.glob(f"{application}/**/*.py")) or [package / f"{application}.py"]
    for file in files:
        for node in ast.walk(parsed(file)):
            if isinstance(node, ast.ImportFrom):
                parts = imported_from(node, file, package) or [None]
                names = {alias.name for alias in node.names}
                beneath = {".".join(map(str, parts[:k])) for k in (1, 2)} & BENEATH
                assert not beneath, f"{file} imports {names} from {beneath}"
                known = {"Features", "spherical_features"}
                assert parts[0] != "features" or names <= known, f"{file} imports {names} from features"
                assert parts[0] != "paths" or len(parts) == 1, f"{file} imports {names} from a module of paths"
            elif isinstance(node, ast.Attribute) and node.attr in WITHIN:
                assert ast.unparse(node.value) in ("self", "outcome"), (
                    f"{file}: {ast.unparse(node)} is beneath the type"
                )


def test_no_module_is_hidden_by_a_name_that_its_package_exports():
    package = ROOT / "src/matheron"
    for file in sorted(package.rglob("__init__.py")):
        modules = {path.stem for path in file.parent.iterdir() if path.suffix == ".py" or path.is_dir()}
        nodes = [node for node in parsed(file).body if isinstance(node, ast.ImportFrom) and node.module]
        names = {alias.asname or alias.name for node in nodes for alias in node.names}
        assert not modules & names, f"{file}: `import` finds {modules & names} where there is a module of that name"


def test_a_name_stands_for_one_class_or_type_in_all_of_the_library():
    package = ROOT / "src/matheron"
    homes: dict[str, list[str]] = {}
    for file in sorted(package.rglob("*.py")):
        for node in parsed(file).body:
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(str(file.relative_to(package)))
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript | ast.BinOp):
                name = ast.unparse(node.targets[0])
                if len(name) > 1 and name[0].isupper() and not name.isupper():  # a type, such as Index = int | slice
                    homes.setdefault(name, []).append(str(file.relative_to(package)))
    assert not {name: files for name, files in homes.items() if len(files) > 1}


# Modules that tests look inside, for want of a public name: quadrature rules, table formats, GPU kernels' interpreter.
INSIDE = {
    "adapters.gpflow", "adapters.sklearn", "cli.demo.numbers", "cli.playground.command",
    "cli.playground.model", "cli.playground.page", "compare.bounds", "core.arena", "core.boxes", "dynamics.iterative",
    "evaluate.fused.product", "evaluate.own_points", "features.leverage", "features.quasi_random",
    "fitting.hyperparameters",
    "cli.field_data", "fields.field_models", "kernels.radial", "kernels.rational_quadratic", "lattice.planning",
    "paths.precision", "paths.sparse", "thompson.fitting", "thompson.minima", "thompson.problem",
    "thompson.quasi_newton", "thompson.strategies",
}  # fmt: skip
# Packages and modules with a page of the reference, or that are the map of a room.
DOCUMENTED = {"adapters.botorch", "adapters.gpytorch", "compare.metrics", "compare.samplers", "evaluate.fused"}
DOCUMENTED |= {"models.means", "models.transforms", "thompson.optuna", "__main__"}


def test_tests_stand_on_the_public_interface_but_for_a_few_modules():
    imported = set()
    for file in sorted(
        path for folder in ("tests", "paper/tests", "portable/tests") for path in (ROOT / folder).rglob("*.py")
    ):
        for node in ast.walk(parsed(file)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("matheron."):
                imported.add(str(node.module).removeprefix("matheron."))
    deep = {name for name in imported if "." in name or name == "__main__"} - DOCUMENTED
    assert deep == INSIDE, "add a public name, or the module to INSIDE; or take away what no test imports any more"
