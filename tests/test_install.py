"""The install: what `make` asks for exists in the public registry, and the core needs no GP library."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import matheron

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PAPER = tomllib.loads((ROOT / "paper/pyproject.toml").read_text())["project"]
LIBRARY, *PAPER_NEEDS = PAPER["dependencies"]  # the library with some of its extras, and the rest
OPTIONAL = PROJECT["optional-dependencies"]
MAKEFILE = (ROOT / "Makefile").read_text()
# What a machine may have beside the public registry; certificates, proxies and time-outs stay.
ELSEWHERE = ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL", "PIP_NO_INDEX", "PIP_CONSTRAINT")
EVERYTHING_OPTIONAL = """
gpytorch linear_operator botorch sklearn gpflow tensorflow geometric_kernels gpjax jax optuna ot pandas pyarrow xarray
dask zarr rasterio bokeh plotly triton finufft
""".split()


def pip(*arguments: str, python: str | None = None) -> subprocess.CompletedProcess:
    """Ask pip what it would install from the public registry alone, for any version of Python; wheels stay there."""
    environment = {name: value for name, value in os.environ.items() if name not in ELSEWHERE}
    target = ["--python-version", python, "--only-binary=:all:", "--target", "unused"] if python else []
    metadata = ["--use-feature=fast-deps", "--dry-run", "--ignore-installed"]  # several GB less than without the first
    command = [sys.executable, "-m", "pip", "install", "-q", *metadata, *target, *arguments]
    environment["PIP_CONFIG_FILE"] = os.devnull
    try:
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=400)
    except subprocess.TimeoutExpired:
        pytest.skip("the public package registry did not answer within 400 s")


@pytest.fixture(scope="module")
def registry() -> None:
    """Skips where the registry cannot be reached, and says why. Whatever fails after that is our mistake."""
    asked = pip("--retries", "1", "--timeout", "20", "--no-deps", "iniconfig")
    if asked.returncode:
        pytest.skip(f"the public package registry cannot be reached: {asked.stderr.strip().splitlines()[-1]}")


def extras(target: str) -> list[str]:
    """The requirements of the extras that a rule of the Makefile installs."""
    rule = MAKEFILE.split(f"\n$({target})")[1].split("\n\n")[0]
    asked = re.findall(r"-e '\.\[([\w,]+)\]'", rule)
    assert len(asked) == 1, f"expected one install of extras in the rule of $({target})"
    return [requirement for extra in asked[0].split(",") for requirement in OPTIONAL[extra]]


@pytest.mark.slow
@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_all_that_make_installs_resolves_against_the_public_registry(python, registry):
    requirements = PROJECT["dependencies"] + extras("BASE") + extras("DOCS") + extras("PEERS") + PAPER_NEEDS
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    answer = pip("-c", "constraints.txt", *requirements, *build, python=python)
    assert answer.returncode == 0, answer.stderr


@pytest.mark.slow
def test_gpflow_s_environment_resolves_against_the_public_registry(registry):
    requirements = PROJECT["dependencies"] + extras("GPFLOW") + ["pytest", "pytest-xdist", "hypothesis"]
    answer = pip("-c", "constraints.txt", "-c", "constraints-gpflow.txt", *requirements, python="3.11")
    assert answer.returncode == 0, answer.stderr


@pytest.mark.slow
def test_geometrickernels_environment_resolves_against_the_public_registry(registry, tmp_path):
    ours = (ROOT / "constraints.txt").read_text().splitlines()
    (tmp_path / "constraints.txt").write_text("\n".join(line for line in ours if not line.startswith("numpy==")))
    requirements = PROJECT["dependencies"] + extras("GEOMETRIC") + ["pytest", "pytest-xdist", "hypothesis"]
    constraints = ("-c", str(tmp_path / "constraints.txt"), "-c", "constraints-geometric.txt")
    answer = pip(*constraints, *requirements)  # one of them has no wheel, so it is asked for this version of Python
    assert answer.returncode == 0, answer.stderr


def test_the_paper_s_experiments_ask_for_extras_that_make_installs():
    assert LIBRARY.startswith("matheron[")
    asked = {requirement for extra in re.findall(r"\w+", LIBRARY.split("]")[0])[1:] for requirement in OPTIONAL[extra]}
    assert asked and asked <= set(extras("BASE"))


def built(source: Path, folder: Path) -> list[Path]:
    """An sdist and a wheel, in this order, as `make dist` builds them."""
    environment = os.environ | {"PIP_CONSTRAINT": str(ROOT / "constraints.txt")}
    command = [sys.executable, "-m", "build", "--outdir", str(folder), str(source)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(folder.iterdir(), key=lambda file: file.suffix)


@pytest.fixture(scope="module")
def distributions(tmp_path_factory) -> list[Path]:
    """Of the library."""
    return built(ROOT, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def paper(tmp_path_factory) -> list[Path]:
    """Of the paper's experiments."""
    return built(ROOT / "paper", tmp_path_factory.mktemp("paper"))


@pytest.fixture(scope="module")
def portable(tmp_path_factory) -> list[Path]:
    """Of the file that evaluates functions without torch."""
    return built(ROOT / "portable", tmp_path_factory.mktemp("portable"))


def interpreter(version: str) -> str | None:
    """A Python of that version which runs: on the path, or among those that pyenv has installed."""
    installed = sorted((Path.home() / ".pyenv/versions").glob(f"{version}.*/bin/python"))
    for python in filter(None, [shutil.which(f"python{version}"), *map(str, installed)]):
        if subprocess.run([python, "--version"], capture_output=True).returncode == 0:
            return python
    return None


@pytest.mark.slow
def test_the_wheel_is_typed_and_the_sdist_has_what_make_needs(distributions):
    sdist, wheel = distributions
    inside = set(zipfile.ZipFile(wheel).namelist())
    assert {"matheron/py.typed", "matheron/cli/__init__.py"} <= inside
    assert not any(word in name for name in inside for word in ("tests", "paper", "experiments"))
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {"Makefile", "constraints.txt", "README.md", "mkdocs.yml", "tests/conftest.py", "LICENSE"} <= names
    assert {"paper/pyproject.toml", "paper/src/matheron_paper/base.py", "paper/tests/conftest.py"} <= names


@pytest.mark.slow
def test_the_wheel_of_the_paper_s_experiments_is_typed_and_has_its_commands(paper):
    _, wheel = paper
    archive = zipfile.ZipFile(wheel)
    inside = set(archive.namelist())
    assert {"matheron_paper/py.typed", "matheron_paper/command.py"} <= inside
    assert {name.split("/")[0].split("-")[0] for name in inside} == {"matheron_paper"}
    (points,) = (name for name in inside if name.endswith("entry_points.txt"))
    assert "reproduce = matheron_paper.command:reproduce" in archive.read(points).decode()


def test_the_version_stands_in_one_place():
    for project in ("pyproject.toml", "paper/pyproject.toml", "portable/pyproject.toml"):
        table = tomllib.loads((ROOT / project).read_text())
        assert "version" not in table["project"] and table["project"]["dynamic"] == ["version"]
        path = (ROOT / project).parent / table["tool"]["hatch"]["version"]["path"]
        assert path.resolve() == ROOT / "src/matheron/__init__.py"
    assert f"\nversion: {matheron.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"## [{matheron.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.slow
def test_all_distributions_have_the_library_s_version_and_pass_twine(distributions, paper, portable):
    files = [*distributions, *paper, *portable]
    version = re.escape(matheron.__version__)
    assert all(re.search(rf"-{version}(\.tar\.gz|-py3-none-any\.whl)$", file.name) for file in files), files
    pytest.importorskip("twine", reason="twine is not installed; make setup")
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


DRAWN = """
import torch, matheron
gp = matheron.ExactGP(matheron.kernels.RBF(0.3), [[0.0], [1.0]], [0.0, 1.0], noise=1e-2)
for settings in ({}, {"domain": (0.0, 1.0)}, {"features": "leverage"}):
    paths = matheron.draw(gp, 4, **settings)
    assert paths(torch.rand(5, 1)).shape == (4, 5)
    assert matheron.minimize(paths, [[0.0], [1.0]]).x.shape == (4, 1)
paths.save("paths.safetensors")
x = torch.rand(5, 1, dtype=torch.float64)
assert torch.equal(matheron.load("paths.safetensors")(x), paths(x))
"""
PORTED = """
import numpy, torch, matheron, matheron_portable
gp = matheron.ExactGP(matheron.kernels.RBF(0.3), [[0.0], [1.0]], [0.0, 1.0], noise=1e-2)
paths = matheron.draw(gp, 4, features="cosine")
paths.export("functions.safetensors")
x = numpy.linspace(0, 1, 7)[:, None]
numpy.testing.assert_allclose(matheron_portable.load("functions.safetensors")(x), paths(x), atol=1e-9)
"""


def smallest(requirement: str, python: str) -> str:
    """The requirement with the smallest version of its range, or the smallest one that has wheels for this Python."""
    first_with_wheels = {
        "3.12": {"scipy": "1.11.2"},
        "3.13": {"numpy": "2.1.0", "scipy": "1.14.1", "matplotlib": "3.9.2"},
    }
    name, _, version = requirement.partition(">=")
    return f"{name}=={first_with_wheels.get(python, {}).get(name, version)}"


class Clean:
    """An environment with nothing in it, and what is run there."""

    def __init__(self, version: str, folder: Path):
        python = interpreter(version)
        if python is None:
            pytest.skip(f"Python {version} is not here; that its requirements resolve is tested above")
        subprocess.run([python, "-m", "venv", folder / "clean"], check=True)
        scripts = "Scripts" if os.name == "nt" else "bin"
        self.folder, self.python = folder, str(folder / "clean" / scripts / "python")

    def run(self, *arguments: str, code: int = 0) -> str:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [self.python, *arguments]
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def install(self, *arguments: str) -> None:
        self.run("-m", "pip", "install", "-q", *arguments)


# For Python 3.12 and 3.13 the registry's torch comes with several GB of CUDA packages: these run by command.
@pytest.mark.parametrize(
    "version",
    [
        pytest.param("3.11", marks=pytest.mark.slow),
        *(pytest.param(v, marks=pytest.mark.long) for v in ("3.12", "3.13")),
    ],
)
def test_wheels_and_sdist_install_and_draw_in_a_clean_environment(
    version, distributions, paper, portable, tmp_path, registry
):
    clean = Clean(version, tmp_path)
    sdist, wheel = map(str, distributions)
    clean.install("-c", str(ROOT / "constraints.txt"), wheel)
    for library in ("gpytorch", "botorch", "sklearn", "gpflow"):
        clean.run("-c", f"import importlib.util; assert importlib.util.find_spec({library!r}) is None")
    clean.run("-c", DRAWN)
    assert clean.run("-m", "matheron", "--version").split()[1] == matheron.__version__
    assert "torch" in clean.run("-m", "matheron", "info")
    assert "pip install ./paper" in clean.run("-m", "matheron", "reproduce", "--list", code=1)
    clean.install("--no-deps", str(paper[1]), str(portable[1]))
    assert "--time-limit" in clean.run("-m", "matheron", "reproduce", "--help")
    clean.run("-c", PORTED)
    clean.install("--no-deps", "--force-reinstall", sdist)
    clean.run("-c", DRAWN)


@pytest.mark.long
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
@pytest.mark.parametrize("end", ["smallest", "newest"])
def test_both_ends_of_the_ranges_of_the_dependencies_draw(end, version, distributions, portable, tmp_path, registry):
    """The smallest versions that pyproject.toml allows, and the newest of the registry."""
    clean = Clean(version, tmp_path)
    core = PROJECT["dependencies"]
    clean.install(*(smallest(one, version) if end == "smallest" else one for one in core))
    clean.install("--no-deps", str(distributions[1]), str(portable[1]))
    clean.run("-c", DRAWN)
    clean.run("-c", PORTED)
    clean.run("-m", "matheron", "demo", "--quick")


def test_every_requirement_has_a_pinned_version():
    def names(file: str) -> set[str]:
        pins = re.findall(r"^([\w.-]+)==", (ROOT / file).read_text(), re.MULTILINE)
        return {re.sub(r"[-_.]+", "-", pin).lower() for pin in pins}

    for extra, requirements in {"": PROJECT["dependencies"] + PAPER_NEEDS, **OPTIONAL}.items():
        pinned = names("constraints.txt") | (
            names(f"constraints-{extra}.txt") if extra in ("gpflow", "geometric") else set()
        )
        asked = {re.sub(r"[-_.]+", "-", re.split(r"[\[<>=;~!]", one)[0]).lower() for one in requirements}
        assert asked <= pinned, f"pin {sorted(asked - pinned)} in constraints.txt"


def test_the_core_imports_and_draws_without_any_optional_library():
    code = f"""
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {EVERYTHING_OPTIONAL!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
import torch, matheron, matheron.cli.main
X = torch.rand(8, 1, dtype=torch.float64)
gp = matheron.ExactGP(matheron.kernels.Matern(2.5, 0.3), X, X[:, 0].sin(), noise=1e-2)
paths = matheron.draw(gp, 4)
more = paths.condition_on(X[:1] + 2, torch.zeros(1), noise=0.1)
assert more.value_and_grad(X)[1].shape == (4, 8, 1)
assert matheron.minimize(paths, [[0.0], [1.0]]).x.shape == (4, 1)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
