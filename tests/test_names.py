"""Names: of columns, of classes, and of what lies inside the library, which tests leave alone.

A table whose columns are others, or in another order, than the model's is an error.
"""

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pandas import DataFrame
from sklearn.compose import TransformedTargetRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF
from sklearn.model_selection import GridSearchCV
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import matheron
from matheron import fields, observe, thompson
from matheron import kernels as K
from matheron.adapters.sklearn import sample_y
from matheron.compare import samplers
from matheron.core import ArrayLike

TABLE = DataFrame(np.random.default_rng(0).random((12, 2)), columns=["a", "b"])
Y = np.sin(5 * TABLE["a"]) - TABLE["b"]
SWAPPED = TABLE[["b", "a"]]
REFUSAL = r"expected the columns 'a', 'b', in this order, got 'b', 'a'; use \w+\[\['a', 'b'\]\]"


def exact(X: ArrayLike = TABLE) -> matheron.ExactGP:
    return matheron.ExactGP(K.RBF([0.3, 0.5]), X, Y, noise=1e-2)


def few(model: object) -> matheron.AbstractPaths:
    paths = matheron.draw(model, 3, num_features=16, seed=0)
    assert isinstance(paths, matheron.AbstractPaths)
    return paths


def test_points_in_a_table_with_its_columns_in_another_order_are_refused_wherever_points_are_given():
    paths = few(exact())
    assert paths.input_names == ("a", "b")
    asked: list[Callable[..., object]] = [
        paths,
        paths.mean,
        lambda x: paths.std(x, samples=True),
        paths.value_and_grad,
        lambda x: paths.value_and_grad(x[:2], of=[0, 1]),
        lambda x: paths.condition_on(x, Y, noise=0.1, seed=0),
        lambda x: matheron.diagnose(paths, exact(), x),
        lambda x: samplers.moments(exact(), x),
        lambda x: matheron.draw(exact(), 2, num_features=16, where=x),
    ]
    for ask in asked:
        ask(TABLE)
        with pytest.raises(ValueError, match=REFUSAL):
            ask(SWAPPED)


def averages(table: DataFrame) -> matheron.observe.Functionals:
    return observe.mean(table, table + 0.1)


def sums(table: DataFrame) -> matheron.observe.Functionals:
    return observe.combine(table, np.ones((2, len(table))))


FUNCTIONALS = [
    observe.value,
    lambda table: observe.derivative(table, 1),
    observe.gradient,
    averages,
    sums,
    lambda table: 2.0 * observe.value(table)[2:] - observe.derivative(table, 0)[2:],
    lambda table: [observe.value(table.to_numpy()), observe.gradient(table)],
]


@pytest.mark.parametrize("of", FUNCTIONALS)
def test_models_of_functionals_keep_the_columns_of_their_tables(of, tmp_path):
    whole = of(TABLE)
    n = sum(map(len, whole)) if isinstance(whole, list) else len(whole)
    gp = matheron.ExactGP(K.RBF([0.3, 0.5]), whole, np.zeros(n), noise=1e-2)
    paths = few(gp)
    paths.save(tmp_path / "paths")
    gp.save(tmp_path / "gp")
    loaded = matheron.load(tmp_path / "paths")
    assert isinstance(loaded, matheron.AbstractPaths) and torch.equal(loaded(TABLE), paths(TABLE))
    given = paths.condition_on(whole, np.zeros(n), noise=0.1, seed=0)
    for made in (paths, loaded, few(matheron.load(tmp_path / "gp")), given):
        assert made.input_names == ("a", "b")
        with pytest.raises(ValueError, match=REFUSAL):
            made(SWAPPED)
        with pytest.raises(ValueError, match=REFUSAL):
            made.at(of(SWAPPED))
    with pytest.raises(ValueError, match=REFUSAL):
        paths.condition_on(of(SWAPPED), np.zeros(n), noise=0.1)
    with pytest.raises(ValueError, match=REFUSAL):
        samplers.moments(gp, of(SWAPPED))
    assert paths.at(of(TABLE)).shape == (3, n)


def test_names_of_functionals_are_those_of_all_tables_and_files_keep_them(tmp_path):
    both = [observe.value(TABLE), observe.gradient(SWAPPED)]
    for join in (observe.stack, lambda parts: exact(parts), lambda parts: parts[0] + parts[1][:12]):
        with pytest.raises(ValueError, match="expected the same columns in the same order, got 'a', 'b' and 'b', 'a'"):
            join(both)
    with pytest.raises(ValueError, match=r"upper: expected the columns 'a', 'b', in this order, got 'b', 'a'"):
        observe.mean(TABLE, SWAPPED + 1.0)
    assert observe.gradient(TABLE.to_numpy()).input_names is None
    gp = matheron.ExactGP(K.RBF(), observe.gradient(TABLE.to_numpy()), np.zeros(24), noise=1e-2)
    assert few(gp).input_names is None
    assert few(gp).at(observe.value(SWAPPED)).shape == (3, 12)


def test_paths_of_a_model_of_slopes_are_written_on_the_grid_of_its_columns():
    from xarray import DataArray

    gp = matheron.ExactGP(K.RBF([0.3, 0.5]), observe.gradient(TABLE), np.zeros(24), noise=1e-2)
    paths, axes = few(gp), {"a": [0.4, 0.5], "b": [0.1, 0.2, 0.3]}
    grid = paths.to_xarray(DataArray(np.zeros((2, 3)), coords=axes, dims=("a", "b")))
    at = paths(DataFrame({"a": [0.4], "b": [0.3]}))[:, 0]
    torch.testing.assert_close(torch.tensor(grid.sel(b=0.3, a=0.4).values), at)


def test_a_table_gives_the_values_of_its_numbers():
    x = torch.tensor(TABLE.to_numpy())
    assert torch.equal(few(exact())(TABLE), few(exact(x))(x))
    assert few(exact(x)).input_names is None


def test_tables_without_names_and_arrays_are_taken_by_position():
    paths = few(exact())
    plain = paths(TABLE.to_numpy())
    assert torch.equal(paths(DataFrame(TABLE.to_numpy())), plain)
    assert torch.equal(few(exact(TABLE.to_numpy()))(TABLE), plain)


def test_a_message_says_which_columns_are_missing_and_does_not_list_hundreds():
    paths = few(exact())
    with pytest.raises(ValueError, match="expected the columns 'a', 'b', in this order, got 'a', 'c'; 'b' is not ther"):
        paths(TABLE.rename(columns={"b": "c"}))
    with pytest.raises(ValueError, match=r"got 'a', 'b', 'c'; use x\[\['a', 'b'\]\]"):
        paths(TABLE.assign(c=0.0))
    wide = DataFrame(np.zeros((1, 100)), columns=[f"column{i}" for i in range(100)])
    gp = matheron.ExactGP(K.RBF(), wide, [0.0], noise=1.0)
    with pytest.raises(ValueError, match=r"100 in all.*use x\[list\(paths.input_names\)\]") as error:
        few(gp)(wide[wide.columns[::-1]])
    assert len(str(error.value)) < 500


def test_names_survive_whatever_is_made_of_paths(tmp_path):
    gp = exact()
    paths = few(gp)
    paths.save(tmp_path / "paths")
    gp.save(tmp_path / "gp")
    both = few(matheron.Outputs([gp, gp]))
    both.save(tmp_path / "both")
    made = [
        paths[1],
        paths.to(torch.float32),
        paths.condition_on(TABLE[:2], [0.0, 1.0], noise=0.1, seed=0),
        matheron.load(tmp_path / "paths"),
        few(matheron.load(tmp_path / "gp")),
        both,
        matheron.load(tmp_path / "both"),
        few(matheron.Ensemble([gp, gp])),
        matheron.draw(matheron.Batch([gp, gp]), 2, num_features=16),
        matheron.draw(gp, 2, domain=(0.0, 1.0), seed=0),
        samplers.weight_space(gp, 2, num_features=16),
    ]
    for each in made:
        assert each.input_names == ("a", "b")
        with pytest.raises(ValueError, match=REFUSAL):
            each(SWAPPED)


def test_a_file_with_names_that_do_not_fit_is_refused(tmp_path):
    exact().replaced(input_names=("a",)).save(tmp_path / "gp")
    with pytest.raises(ValueError, match="input_names: expected 2, one per dimension, got 1"):
        matheron.load(tmp_path / "gp")


def test_fit_keeps_the_names_and_its_summary_shows_them():
    gp = matheron.fit(None, TABLE, Y, num_starts=1)
    assert gp.input_names == ("a", "b")
    assert "Matern.lengthscale[a]" in matheron.summary(gp).rows
    with pytest.raises(ValueError, match=REFUSAL):
        few(gp)(SWAPPED)
    with pytest.warns(UserWarning, match="column 'b' of X is constant"):
        matheron.fit(None, TABLE.assign(b=1.0), Y, num_starts=1)
    assert fields.fit_field(TABLE, Y, num_starts=1).input_names == ("a", "b")
    of_slopes = matheron.fit(None, [observe.value(TABLE), observe.gradient(TABLE)], [Y, np.ones((12, 2))], num_starts=1)
    assert of_slopes.input_names == ("a", "b")
    assert "Matern.lengthscale[a]" in matheron.summary(of_slopes).rows


def test_models_whose_columns_differ_are_not_joined():
    with pytest.raises(ValueError, match="expected the same columns in the same order"):
        matheron.Outputs([exact(), exact(SWAPPED)])
    assert matheron.Outputs([exact(TABLE.to_numpy()), exact()]).input_names == ("a", "b")


@pytest.mark.parametrize("bounds", [lambda x: x.agg(["min", "max"]), lambda x: (x.min(), x.max())])
def test_bounds_with_names_are_checked(bounds):
    paths, box = few(exact()), TABLE.agg(["min", "max"]).to_numpy()

    def found(within: ArrayLike) -> torch.Tensor:
        return matheron.minimize(paths, within, mesh_size=32, num_starts=1, seed=0).x

    assert torch.equal(found(bounds(TABLE)), found(box))
    with pytest.raises(ValueError, match="bounds: expected the columns 'a', 'b', in this order"):
        found(bounds(SWAPPED))
    with pytest.raises(ValueError, match="domain: expected the columns 'a', 'b', in this order"):
        matheron.draw(exact(), 2, domain=bounds(SWAPPED))


def test_suggestions_are_within_bounds_of_the_model_s_columns():
    bounds, swapped = TABLE.agg(["min", "max"]), SWAPPED.agg(["min", "max"])
    ways = [{}, {"trust_region": 0.3}, {"strategy": "weight-space"}, {"strategy": "function-space"}]
    for way in ways:
        settings: Any = {"mesh_size": 32, "seed": 0, **way}
        assert thompson.suggest(exact(), bounds, q=2, **settings).shape == (2, 2)
        with pytest.raises(ValueError, match=f"bounds: {REFUSAL}"):
            thompson.suggest(exact(), swapped, q=2, **settings)
    with pytest.raises(ValueError, match=f"pending: {REFUSAL}"):
        thompson.suggest(exact(), bounds, q=1, mesh_size=32, seed=0, pending=SWAPPED[:1])


def test_scikit_learn_s_names_are_kept_through_what_is_around_a_regressor():
    def regressor() -> GaussianProcessRegressor:
        return GaussianProcessRegressor(RBF(0.5, "fixed"), alpha=1e-2)

    around = [
        regressor(),
        make_pipeline(StandardScaler(), regressor()),
        make_pipeline("passthrough", regressor()),
        make_pipeline(StandardScaler().set_output(transform="pandas"), regressor()),
        TransformedTargetRegressor(regressor(), transformer=StandardScaler()),
        GridSearchCV(make_pipeline(StandardScaler(), regressor()), {}, cv=2),
    ]
    for model in around:
        paths = few(model.fit(TABLE, Y))
        assert paths.input_names == ("a", "b"), model
        with pytest.raises(ValueError, match=REFUSAL):
            paths(SWAPPED)
        assert few(model.fit(TABLE.to_numpy(), Y)).input_names is None, model
    two = MultiOutputRegressor(regressor()).fit(TABLE, np.column_stack([Y, Y]))
    assert few(two).input_names == ("a", "b")
    with pytest.raises(ValueError, match=REFUSAL):
        sample_y(regressor().fit(TABLE, Y), SWAPPED)


def test_chunks_of_a_stream_have_one_order_of_columns():
    halves = [(TABLE[:6], Y[:6]), (TABLE[6:], Y[6:])]
    paths = matheron.draw(matheron.StreamedGP(K.RBF(0.3), halves, noise=0.1), 2, domain=(0.0, 1.0), seed=0)
    assert paths.input_names == ("a", "b")
    mixed = matheron.StreamedGP(K.RBF(0.3), [halves[0], (SWAPPED[6:], Y[6:])], noise=0.1)
    with pytest.raises(ValueError, match=f"data from row 6: X: {REFUSAL}"):
        matheron.draw(mixed, 2, domain=(0.0, 1.0))


def test_a_grid_with_coordinates_of_these_names_is_read_by_them():
    paths = few(exact())
    a, b = np.linspace(0, 1, 3), np.linspace(0, 1, 4)
    right, other = (paths.to_xarray(axes) for axes in ({"a": a, "b": b}, {"b": b, "a": a}))
    np.testing.assert_allclose(other.transpose(*right.dims), right)
    at = fields.simulate(paths, SWAPPED).compute()
    np.testing.assert_allclose(at, paths(TABLE))


# Names of the library's own.

ROOT = Path(__file__).parents[1]
# Modules that are documented themselves, beside the rooms: what these export is for everybody.
DOCUMENTED = {"compare.samplers", "compare.metrics", "compare.bounds", "models.means", "models.transforms"}
DOCUMENTED |= {"kernels.radial", "kernels.composed_measures", "thompson.optuna"}
DOCUMENTED |= {f"adapters.{library}" for library in ("botorch", "gpflow", "gpytorch", "sklearn")}
# Folders of tests that still import more than is held here, and the number of the others' modules inside. These are
# limits that tests make small, quadratures, transforms and GPU kernels, of which no public function says enough. A test
# of what a user sees imports `matheron` and its rooms, so that modules can be moved and merged; the number only falls.
WAITING = ("adapters", "cli", "compare", "dynamics", "fields", "fitting", "lattice", "tables", "thompson", "paper")
MODULES_INSIDE = 22


def is_module(name: str) -> bool:
    path = ROOT / "src" / name.replace(".", "/")
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def imported(file: Path) -> Iterator[str]:
    """The dotted names of the library that a file imports, or names in a string to set them."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("setattr", "delattr", "patch"):
            yield from (arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant) and type(arg.value) is str)


def inside(name: str) -> tuple[str, str] | None:
    """The module inside a room that a name is of, a package inside it as one, and what is asked of it; None for names
    that are documented."""
    if not re.match(r"matheron\.\w", name):
        return None
    parts = name.split(".")
    end = next(end for end in range(len(parts), 0, -1) if is_module(".".join(parts[:end])))
    module, asked = parts[1:end], ".".join(parts[end:])
    if len(module) < 2 or ".".join(module) in DOCUMENTED:
        return None
    package = ROOT / "src" / "matheron" / module[0] / module[1]
    return ".".join(["matheron", *(module[:2] if package.is_dir() else module)]), f"{'.'.join(parts[:end])}:{asked}"


def test_tests_stand_on_the_public_interface():
    files = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "paper" / "tests").rglob("*.py")]
    held = [file for file in files if not set(file.relative_to(ROOT).parts) & set(WAITING)]
    assert len(held) > 40
    found = {file: [each for name in imported(file) if (each := inside(name)) is not None] for file in held}
    modules = {str(file.relative_to(ROOT)): sorted({module for module, _ in names}) for file, names in found.items()}
    assert not {file: names for file, names in modules.items() if len(names) > 1}, "one module inside for each file"
    assert sum(map(len, modules.values())) <= MODULES_INSIDE
    for module, asked in {each for names in found.values() for each in names}:
        home, _, name = asked.partition(":")
        assert import_module(module).__doc__, f"{module}: expected a docstring"
        thing = getattr(import_module(home), name) if name else None
        assert not callable(thing) or thing.__doc__, f"{asked}: expected a docstring"


def test_the_search_for_names_inside_knows_them():
    assert inside("matheron.core.Value") is inside("matheron.models.means.Mean") is inside("numpy.linalg") is None
    assert inside("matheron.adapters.sklearn.sample_y") is inside("matheron_paper.cli.app") is None
    assert inside("matheron.core.value.Value") == ("matheron.core.value", "matheron.core.value:Value")
    fused = "matheron.evaluate.fused"
    assert inside(f"{fused}.launch") == (fused, f"{fused}.launch:")


def test_no_two_modules_define_a_class_of_the_same_name():
    files = (ROOT / "src" / "matheron").rglob("*.py")
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in files]
    counts = Counter(name for tree in trees for name in {n.name for n in ast.walk(tree) if isinstance(n, ast.ClassDef)})
    assert counts["ExactGP"] == 1 and not [name for name, count in counts.items() if count > 1]
