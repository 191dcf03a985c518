"""What scikit-learn has before a regressor in a pipeline, against the pipeline's own `predict`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor, make_column_transformer
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.feature_selection import SelectKBest, VarianceThreshold, f_regression
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk
from sklearn.impute import IterativeImputer, KNNImputer, SimpleImputer
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    KBinsDiscretizer,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    PowerTransformer,
    QuantileTransformer,
    RobustScaler,
    SplineTransformer,
    StandardScaler,
)

import matheron
from adapters.battery import Case, Moments, check

pytestmark = pytest.mark.filterwarnings(f"ignore::{ConvergenceWarning.__module__}.ConvergenceWarning")

REST: Any = MinMaxScaler()
FIXED: Any = None  # no optimiser: hyperparameters stay as they are given
rng = np.random.default_rng(3)
# Two numbers, of which the second is positive, and one of four categories.
X = np.c_[rng.uniform(-2, 2, 30), rng.uniform(0.1, 4, 30), np.resize([0.0, 1.0, 2.0, 5.0], 30)]
y = np.sin(2 * X[:, 0]) + np.sqrt(X[:, 1]) + 0.3 * X[:, 2] + 0.1 * rng.standard_normal(30)
x = np.c_[rng.uniform(-2.5, 2.5, 8), rng.uniform(0.05, 4.5, 8), np.resize([0.0, 1.0, 2.0, 5.0], 8)]
holes = np.where(rng.uniform(size=X.shape) < 0.15, np.nan, X)
x_holes = x.copy()
x_holes[[0, 2, 5], [0, 1, 2]] = np.nan
codes = np.where(np.isnan(holes), -7.0, holes)  # what is missing by a number
x_codes = np.where(np.isnan(x_holes), -7.0, x_holes)


def numbers(*steps):
    """Steps of the first two columns, with the third as it is."""
    return make_column_transformer((make_pipeline(*steps), [0, 1]), remainder="passthrough")


READ = {  # with the data that they are fitted to, and called at
    "powers of both signs": (PowerTransformer(), X, x),
    "powers of positive numbers": (make_column_transformer((PowerTransformer("box-cox"), [1])), X, x),
    "powers as they are": (PowerTransformer(standardize=False), X, x),
    "monomials": (make_pipeline(StandardScaler(), PolynomialFeatures(3)), X, x),
    "products alone": (PolynomialFeatures(2, interaction_only=True, include_bias=False), X, x),
    "an imputer": (SimpleImputer(), holes, x_holes),
    "an imputer and where it was": (SimpleImputer(strategy="median", add_indicator=True), holes, x_holes),
    "an imputer of a code": (SimpleImputer(missing_values=-7, strategy="most_frequent"), codes, x_codes),
    "an imputer, then scales, then powers": (
        make_pipeline(SimpleImputer(), RobustScaler(), PowerTransformer()),
        holes,
        x_holes,
    ),
    "an imputer of a column without numbers": (
        SimpleImputer(),
        np.c_[X, np.full(30, np.nan)],
        np.c_[x, np.full(8, np.nan)],
    ),
    "categories": (make_column_transformer((OneHotEncoder(), [2]), (StandardScaler(), [0, 1])), X, x),
    "categories less one": (make_column_transformer((OneHotEncoder(drop="first"), [2]), remainder="passthrough"), X, x),
    "categories as whole numbers": (make_column_transformer((OrdinalEncoder(), [2]), remainder="passthrough"), X, x),
    "categories, some unknown": (
        make_column_transformer((OneHotEncoder(handle_unknown="ignore"), [2]), remainder=REST),
        X,
        x + np.array([0, 0, 3]),
    ),
    "columns of a column": (numbers(make_column_transformer((PowerTransformer(), [1]))), X, x),
    "columns left out": (
        make_column_transformer(("drop", [1]), ("passthrough", slice(2, 3)), (StandardScaler(), [0])),
        X,
        x,
    ),
    "columns by a mask, none of them": (
        make_column_transformer((StandardScaler(), [True, False, True]), (PCA(), []), remainder="drop"),
        X,
        x,
    ),
    "columns with weights": (
        ColumnTransformer(
            [("a", StandardScaler(), [0]), ("b", "passthrough", [1, 2])], transformer_weights={"a": 3.0, "b": 0.5}
        ),
        X,
        x,
    ),
    "columns twice": (make_column_transformer((StandardScaler(), [0, 1]), (PolynomialFeatures(2), [1, 0])), X, x),
    "a union": (
        FeatureUnion([("a", StandardScaler()), ("b", PCA(2, whiten=True)), ("c", "passthrough"), ("d", "drop")]),
        X,
        x,
    ),
    "principal components": (make_pipeline(StandardScaler(), PCA(2)), X, x),
    "columns that are chosen": (make_pipeline(VarianceThreshold(0.1), SelectKBest(f_regression, k=2)), X, x),
    "logarithms and roots": (
        make_column_transformer(
            (FunctionTransformer(np.log1p), [1]), (FunctionTransformer(np.sqrt), [1]), (FunctionTransformer(), [0])
        ),
        X,
        x,
    ),
    "a pipeline in columns in a pipeline": (
        make_pipeline(
            numbers(SimpleImputer(), PowerTransformer()), SimpleImputer(), PolynomialFeatures(2), StandardScaler()
        ),
        holes,
        x_holes,
    ),
}
CALLED = {
    "an imputer by neighbours": (KNNImputer(n_neighbors=3), holes, x_holes),
    "an imputer by regression": (IterativeImputer(max_iter=2, random_state=0), holes, x_holes),
    "quantiles": (QuantileTransformer(n_quantiles=10), X, x),
    "splines": (make_column_transformer((SplineTransformer(4), [0]), remainder="passthrough"), X, x),
    "bins": (
        make_column_transformer(
            (KBinsDiscretizer(3, quantile_method="averaged_inverted_cdf"), [0]), remainder="passthrough"
        ),
        X,
        x,
    ),
    "rows of length one": (make_pipeline(StandardScaler(), Normalizer()), X, x),
    "a function of one's own": (FunctionTransformer(lambda rows: np.c_[np.sin(rows), rows[:, :1]]), X, x),
    "categories that are rare": (
        make_column_transformer(
            (OneHotEncoder(min_frequency=8, handle_unknown="infrequent_if_exist"), [2]), remainder="passthrough"
        ),
        X,
        x,
    ),
    "a subclass with a formula of its own": (
        type(
            "Doubled",
            (StandardScaler,),
            {"transform": lambda self, X, copy=None: 2 * StandardScaler.transform(self, X)},
        )(),
        X,
        x,
    ),
}


def fitted(step, X=X, y=y):
    kernel = sk.ConstantKernel(2.0) * sk.Matern(1.5, nu=2.5) + sk.WhiteKernel(0.05)
    return make_pipeline(step, GaussianProcessRegressor(kernel, normalize_y=True, optimizer=FIXED)).fit(X, y)


def latent(model, x) -> Moments:
    """`predict` less WhiteKernel's noise."""
    inner = model[:-1].transform(x)
    mean, cov = model[-1].predict(inner, return_cov=True)
    white = model[-1].kernel_.diag(inner) - np.diag(model[-1].kernel_(inner, inner))
    return Moments(mean, cov - np.diag(white) * model[-1]._y_train_std ** 2)


@pytest.mark.filterwarnings("ignore:Skipping features without any observed values")
@pytest.mark.parametrize("name", [*READ, *CALLED])
def test_the_mean_and_the_deviation_are_those_of_predict(name):
    step, X, x = (READ | CALLED)[name]
    model = fitted(step, X)
    paths = matheron.draw(model, 2, num_features=64, solver=matheron.solvers.Cholesky(keep=True), seed=0)
    assert paths.input_dim == X.shape[1]
    expected = latent(model, x)
    np.testing.assert_allclose(paths.mean(x).numpy(), expected.mean, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(paths.variance(x).numpy(), np.diag(expected.covariance), rtol=1e-5, atol=1e-7)
    inside = matheron.draw(model[-1], 2, num_features=64, seed=0)
    np.testing.assert_allclose(paths(x).numpy(), inside(model[:-1].transform(x)).numpy(), atol=1e-6)


@pytest.mark.parametrize("name", ["columns twice", "a pipeline in columns in a pipeline", "an imputer by neighbours"])
def test_draws_have_the_posterior_of_the_pipeline(name, generator):
    step, X, x = (READ | CALLED)[name]
    check(Case(name, lambda: fitted(step, X), latent, x), generator)


@pytest.mark.filterwarnings("ignore:Skipping features without any observed values")
@pytest.mark.parametrize("name", READ)
def test_what_is_read_has_gradients_and_can_be_saved(name, tmp_path):
    step, X, x = READ[name]
    paths = matheron.draw(fitted(step, X), 3, num_features=64, seed=0)
    points = torch.tensor(x, requires_grad=True)
    values = paths(points)  # [s, n]
    expected = torch.stack([torch.autograd.grad(f.sum(), points, retain_graph=True)[0] for f in values])
    found, gradients = paths.value_and_grad(x)
    torch.testing.assert_close(found, values.detach())
    torch.testing.assert_close(gradients, expected)
    own = torch.tensor(x)[torch.tensor([3, 0])]  # points of some paths alone
    torch.testing.assert_close(paths.value_and_grad(own, of=[2, 0])[1], expected[[2, 0], [3, 0]])
    paths.save(tmp_path / "paths.safetensors")
    again = matheron.load(tmp_path / "paths.safetensors")
    assert isinstance(again, matheron.Paths) and torch.equal(again(x), paths(x))


def test_gradients_are_those_of_differences():
    paths = matheron.draw(fitted(READ["columns twice"][0]), 2, num_features=64, seed=0)
    points, h = torch.tensor(x), 1e-5
    steps = torch.eye(3, dtype=torch.float64) * h
    expected = torch.stack([(paths(points + e) - paths(points - e)) / (2 * h) for e in steps], dim=-1)
    torch.testing.assert_close(paths.value_and_grad(points)[1], expected, rtol=1e-4, atol=1e-5)


def test_paths_of_a_pipeline_are_minimised_in_its_own_units():
    paths = matheron.draw(fitted(make_pipeline(StandardScaler(), PolynomialFeatures(2))), 4, num_features=64, seed=0)
    box = torch.tensor([[-2.0, 0.1, 0.0], [2.0, 4.0, 5.0]], dtype=torch.float64)
    minima = matheron.minimize(paths, box, mesh_size=512, num_starts=8, seed=0)
    mesh = box[0] + (box[1] - box[0]) * torch.rand(
        4000, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    assert minima.x.shape == (4, 3) and bool((minima.value <= paths(mesh).amin(1)).all())
    suggested = matheron.thompson.suggest(
        fitted(numbers(StandardScaler())), box, 2, mesh_size=256, num_starts=4, seed=0
    )
    assert bool(((suggested >= box[0]) & (suggested <= box[1])).all())


def test_a_grid_has_the_values_of_its_points():
    paths = matheron.draw(fitted(make_pipeline(StandardScaler(), PolynomialFeatures(2))), 3, num_features=64, seed=0)
    axes = [torch.linspace(-1, 1, 4), torch.linspace(0.5, 2, 3), torch.tensor([0.0, 5.0])]
    points = torch.cartesian_prod(*axes)
    torch.testing.assert_close(paths.on_grid(axes), paths(points).unflatten(1, (4, 3, 2)))


def test_columns_by_name_take_the_columns_that_the_names_had():
    table = pd.DataFrame(X, columns=["a", "b", "kind"])
    step = make_column_transformer((OneHotEncoder(), ["kind"]), (KNNImputer(), ["b"]), (StandardScaler(), ["a"]))
    model = fitted(step, table)
    paths = matheron.draw(model, 2, num_features=64, seed=0)
    rows = pd.DataFrame(x, columns=table.columns)
    np.testing.assert_allclose(paths.mean(rows).numpy(), model.predict(rows), atol=1e-6)


def test_more_data_are_given_in_the_units_of_the_pipeline():
    model = fitted(READ["columns twice"][0])
    paths = matheron.draw(model, 3, num_features=64, seed=0).condition_on(x[:2], [7.0, -7.0], noise=0.0, seed=0)
    torch.testing.assert_close(paths(x[:2]), torch.tensor([[7.0, -7.0]] * 3, dtype=torch.float64), atol=1e-4, rtol=0)


def test_missing_numbers_that_nothing_fills_in_are_refused():
    paths = matheron.draw(fitted(make_column_transformer((SimpleImputer(), [0]), remainder="passthrough")), 2, seed=0)
    paths(np.array([[np.nan, 1.0, 1.0]]))
    with pytest.raises(ValueError, match="x: expected finite numbers, got 1 NaN or infinite of 3"):
        paths(np.array([[1.0, np.nan, 1.0]]))
    with pytest.raises(ValueError, match="x: expected finite numbers"):
        paths(np.array([[np.inf, 1.0, 1.0]]))


def test_a_category_that_was_never_seen_is_refused_as_in_scikit_learn():
    paths = matheron.draw(fitted(READ["categories"][0]), 2, seed=0)
    with pytest.raises(ValueError, match=r"category of column 0, one of \[0.0, 1.0, 2.0, 5.0\], got 3"):
        paths(np.array([[1.0, 1.0, 3.0]]))


@pytest.mark.parametrize("name", CALLED)
def test_what_is_called_says_that_it_has_no_gradient_and_no_file(name, tmp_path):
    step, X, x = CALLED[name]
    paths = matheron.draw(fitted(step, X), 2, num_features=64, seed=0)
    for attempt in (lambda: paths.value_and_grad(x), lambda: paths(torch.tensor(x, requires_grad=True))):
        with pytest.raises(
            TypeError, match=r"gradients cannot pass through it; .* paths\(pipeline\[:-1\].transform\(X\)\)"
        ):
            attempt()
    with pytest.raises(TypeError, match=r"Called, which cannot be saved: .*ave paths of the pipeline's last step"):
        paths.save(tmp_path / "paths.safetensors")


class ByRank(TransformerMixin, BaseEstimator):
    """Not a map of points: a row's place among the others."""

    def fit(self, X, y=None):
        self.n_features_in_ = X.shape[1]
        return self

    def transform(self, X):
        return np.argsort(np.argsort(X, axis=0), axis=0).astype(float)


class Wordless(TransformerMixin, BaseEstimator):
    """Does not say how many columns it has."""

    def fit(self, X, y=None):
        return self

    def transform(self, X):
        return X


def test_what_is_no_map_of_points_is_refused_with_the_way_out():
    paths = matheron.draw(fitted(ByRank()), 2, seed=0)
    with pytest.raises(
        TypeError, match=r"ByRank for one row depends on the other rows, .* paths = matheron.draw\(pipeline\[-1\], 64"
    ):
        paths(x)
    with pytest.raises(TypeError, match="Wordless does not say how many columns it takes; set n_features_in_"):
        matheron.describe(fitted(Wordless()))
    words = pd.DataFrame({"a": X[:, 0], "kind": np.resize(["oak", "elm"], 30)})
    with pytest.raises(TypeError, match="expected numbers as the categories of OneHotEncoder"):
        matheron.describe(fitted(make_column_transformer((OneHotEncoder(), ["kind"]), remainder="passthrough"), words))


def test_fitting_the_pipeline_again_changes_nothing_that_was_drawn():
    model = fitted(CALLED["splines"][0])
    paths = matheron.draw(model, 2, seed=0)
    before = paths(x)
    model.fit(3 * X, -y)
    assert torch.equal(paths(x), before)


@pytest.mark.parametrize("targets", [np.exp(y), np.c_[np.exp(y), y]], ids=["one target", "two targets"])
def test_targets_of_a_power_transform_come_back_in_their_own_units(targets):
    inner = make_pipeline(numbers(StandardScaler()), GaussianProcessRegressor(optimizer=FIXED, alpha=0.1))
    steps = make_pipeline(StandardScaler(), PowerTransformer())
    model: Any = TransformedTargetRegressor(inner, transformer=steps, check_inverse=False).fit(X, targets)
    paths, inside = (matheron.draw(each, 3, num_features=64, seed=0) for each in (model, model.regressor_))
    values = inside(x).numpy()
    expected = model.transformer_.inverse_transform(values.reshape(-1, np.size(targets[0])))
    np.testing.assert_allclose(paths(x).numpy(), expected.reshape(values.shape), rtol=1e-6)


def test_a_target_s_transformer_that_is_not_read_is_refused():
    model = TransformedTargetRegressor(GaussianProcessRegressor(), transformer=QuantileTransformer(n_quantiles=10)).fit(
        X, y
    )
    with pytest.raises(
        TypeError, match=r"QuantileTransformer is not understood; .* model.transformer_.inverse_transform"
    ):
        matheron.describe(model)


def test_what_paths_cannot_know_of_a_pipeline_is_said():
    model = fitted(READ["monomials"][0])
    box = ([-2.0, 0.1, 0.0], [2.0, 4.0, 5.0])
    with pytest.raises(TypeError, match="Monomials: this transform of inputs has no inverse"):
        matheron.thompson.suggest(model, box, 1, trust_region=0.5, mesh_size=64)
    with pytest.raises(TypeError, match=r"domain: the box that .*KNNImputer maps the domain to is not known"):
        matheron.draw(fitted(KNNImputer()), 1, domain=box)
