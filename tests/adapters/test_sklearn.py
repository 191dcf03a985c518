"""scikit-learn's regressors, fitted for real, against their own `predict`; and `sample_y` against theirs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.compose import TransformedTargetRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk
from sklearn.model_selection import GridSearchCV
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, OneHotEncoder, RobustScaler, StandardScaler

import matheron
from adapters.battery import Case, Moments, check
from matheron.adapters.sklearn import noise_variance, sample_y, translate
from standard import assert_moments, basis_error

pytestmark = pytest.mark.filterwarnings(f"ignore::{ConvergenceWarning.__module__}.ConvergenceWarning")

rng = np.random.default_rng(11)
X = rng.uniform(-2, 2, (24, 2))
y = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] ** 2 + 0.1 * rng.standard_normal(24)
several = np.stack([y, 30 + 10 * np.cos(X[:, 0]) + 0.3 * rng.standard_normal(24), -y + X[:, 1]], axis=1)
x = rng.uniform(-2.5, 2.5, (6, 2))
LINE = slice(0, 1)  # the first column, for kernels of one dimension
ARD: Any = [0.7, 1.3]


def fitted(kernel, y=y, X=X, **settings):
    return lambda: GaussianProcessRegressor(kernel, random_state=0, **settings).fit(X, y)


def joint(mean, cov) -> Moments:
    """What `predict` answers, `[n, t]` and `[n, n, t]`, as one Gaussian of independent targets."""
    if mean.ndim == 1:
        return Moments(mean, cov)
    return Moments(mean, np.einsum("nmt,ts->ntms", cov, np.eye(mean.shape[1])).reshape(mean.size, mean.size))


def latent(model, x) -> Moments:
    """`predict` less the noise of WhiteKernels, which it adds to the diagonal."""
    mean, cov = model.predict(x, return_cov=True)
    white = model.kernel_.diag(x) - np.diag(model.kernel_(x, x))  # [n]: the same points, but not the same rows
    noise = np.multiply.outer(np.diag(white), np.ravel(model._y_train_std) ** 2).reshape(cov.shape)
    return joint(mean, cov - noise)


def smooth():
    return sk.ConstantKernel(2.0) * sk.RBF(ARD) + sk.WhiteKernel(0.05)


SCALE = np.array([1000.0, 0.01])


def piped(*scalers):
    return lambda: make_pipeline(*scalers, "passthrough", GaussianProcessRegressor(smooth())).fit(SCALE * X, y)


def piped_latent(model, x) -> Moments:
    return latent(model[-1], model[:-1].transform(x))


def targets(transformer, y):
    inner = make_pipeline(StandardScaler(), GaussianProcessRegressor(smooth(), normalize_y=True))
    return lambda: TransformedTargetRegressor(inner, transformer=transformer).fit(X, y)


def target_latent(model, x) -> Moments:
    """Both moments of scaled targets, scaled back."""
    inner = piped_latent(model.regressor_, x)
    unit = np.eye(len(np.ravel(model.transformer_.scale_)))
    offset = model.transformer_.inverse_transform(0 * unit[:1])[0]
    scale = np.diag(model.transformer_.inverse_transform(unit)) - offset
    mean = np.reshape(inner.mean, (len(x), -1)) * scale + offset
    repeated = np.tile(scale, len(x))
    return Moments(mean.reshape(np.shape(inner.mean)), repeated[:, None] * inner.covariance * repeated)


def searched(model, x) -> Moments:
    return latent(model.best_estimator_, x)


def _cube(values):
    return values**3


MODELS = [
    Case("the default", fitted(None, alpha=0.02), latent, x),
    Case("alpha for each", fitted(sk.Matern(0.8), alpha=rng.uniform(0.01, 0.2, 24)), latent, x),
    Case("normalised", fitted(smooth(), y * 7 + 100, normalize_y=True), latent, x),
    Case("several targets", fitted(smooth(), several), latent, x),
    Case("several targets, normalised", fitted(smooth(), several, normalize_y=True, alpha=1e-3), latent, x),
    Case("one target as a column", fitted(smooth(), y[:, None], normalize_y=True), latent, x),
    Case("white within a product", fitted(sk.ConstantKernel() * (sk.Matern(nu=1.5) + sk.WhiteKernel(0.1))), latent, x),
    Case("white that grows", fitted(sk.RBF() + sk.WhiteKernel(0.1, (0.01, 1)) * sk.DotProduct()), latent, x),
    Case("a power with white", fitted((sk.DotProduct() + sk.WhiteKernel(0.1)) ** 2 + sk.RBF()), latent, x),
    Case("periodic", fitted(sk.ExpSineSquared(1.2, 2.5) + sk.WhiteKernel(0.1), X=X[:, LINE]), latent, x[:, LINE]),
    Case("a scaler before", piped(StandardScaler()), piped_latent, SCALE * x),
    Case("scalers before", piped(MinMaxScaler((-1, 3)), RobustScaler(), MaxAbsScaler()), piped_latent, SCALE * x),
    Case("a scaler of targets", targets(StandardScaler(), y * 7 + 100), target_latent, x),
    Case("a scaler of targets and of inputs", targets(MinMaxScaler(), y * 7 + 100), target_latent, x),
    Case("a scaler of several targets", targets(StandardScaler(), several), target_latent, x),
    Case("a search", lambda: GridSearchCV(fitted(smooth())(), {"alpha": [0.1, 0.01]}, cv=2).fit(X, y), searched, x),
    Case("integers", fitted(smooth(), X=np.round(3 * X).astype(int), alpha=0.1), latent, np.round(3 * x)),
]


@pytest.mark.parametrize("case", MODELS, ids=str)
def test_paths_have_the_posterior_of(case, generator):
    check(case, generator)


KERNELS = {
    "ConstantKernel": sk.ConstantKernel(1.7),
    "WhiteKernel": sk.WhiteKernel(0.3),
    "RBF": sk.RBF(ARD),
    "Matern 1/2": sk.Matern(0.7, nu=0.5),
    "Matern 3/2": sk.Matern(ARD, nu=1.5),
    "Matern 5/2": sk.Matern(ARD, nu=2.5),
    "Matern 0.8": sk.Matern(ARD, nu=0.8),
    "Matern infinity": sk.Matern(ARD, nu=np.inf),
    "RationalQuadratic": sk.RationalQuadratic(0.6, 1.4),
    "ExpSineSquared": sk.ExpSineSquared(0.9, 1.3),
    "DotProduct": sk.DotProduct(0.6),
    "Sum": sk.RBF() + sk.WhiteKernel(0.1) + sk.DotProduct(),
    "Product": 2.0 * sk.RBF() * sk.DotProduct() * sk.Matern(nu=1.5),
    "Exponentiation": (sk.RBF() + sk.DotProduct(0.5)) ** 3,
    "white within": (sk.RBF() + sk.WhiteKernel(0.2)) * (sk.DotProduct() + sk.WhiteKernel(0.1)),
    "white in a power": (sk.DotProduct(0.3) + sk.WhiteKernel(0.2)) ** 3,
    "white alone": 3.0 * sk.WhiteKernel(0.2),
}


@pytest.mark.parametrize("theirs", KERNELS.values(), ids=KERNELS)
def test_a_kernel_is_its_translation_between_points_and_white_besides_at_them(theirs):
    d = 1 if isinstance(theirs, sk.ExpSineSquared) else 2
    a, b = np.random.default_rng(0).standard_normal((2, 7, 2))[..., :d]
    ours = translate(theirs, d)
    np.testing.assert_allclose(ours(a, b).numpy(), theirs(a, b), rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(
        ours(a, a).numpy() + np.diag(noise_variance(theirs, a)), theirs(a), rtol=1e-8, atol=1e-12
    )


def test_every_kernel_that_is_understood_is_in_the_table():
    assert set(translate.registry) - {object} == {type(kernel) for kernel in KERNELS.values()}


SAMPLED = {
    "white": fitted(smooth(), alpha=0.01),
    "normalised": fitted(smooth(), 50 + 5 * y, normalize_y=True),
    "several targets": fitted(smooth(), several, normalize_y=True),
    "one target as a column": fitted(smooth(), y[:, None]),
    "unfitted": lambda: GaussianProcessRegressor(smooth()),
    "unfitted, several targets": lambda: GaussianProcessRegressor(smooth(), n_targets=2),
    "unfitted, the default": GaussianProcessRegressor,
    "white that grows": fitted(sk.RBF() + sk.WhiteKernel(0.1, (0.01, 1)) * sk.DotProduct()),
}


@pytest.mark.parametrize("fit", SAMPLED.values(), ids=SAMPLED)
def test_sample_y_has_the_law_and_the_shape_of_the_library_s(fit):
    model, count = fit(), 1024
    expected = joint(*model.predict(x, return_cov=True))
    samples = sample_y(model, x, count, random_state=3)  # [n, s] or [n, t, s]
    assert samples.shape == model.sample_y(x, count).shape
    samples = np.moveaxis(samples, -1, 0).reshape(count, -1)  # point by point, as the moments
    atol = 1e-6 * expected.covariance.max()
    assert_moments(samples, expected.mean, expected.covariance, basis_error=basis_error(1024, count // 64), atol=atol)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("points", [x, x[:1], x.tolist()], ids=["points", "one point", "a list"])
def test_sample_y_takes_what_the_library_s_takes(count, points):
    model = fitted(smooth())()
    assert sample_y(model, points, count).shape == model.sample_y(points, count).shape


@pytest.mark.parametrize("kernel", [sk.RBF(), smooth()], ids=["functions alone", "functions and white"])
def test_sample_y_is_seeded_as_the_library_s(kernel):
    model = fitted(kernel, alpha=0.1)()
    assert np.array_equal(sample_y(model, x), sample_y(model, x, random_state=0))
    assert np.array_equal(sample_y(model, x, 2, 5), sample_y(model, x, 2, np.random.RandomState(5)))
    assert not np.allclose(sample_y(model, x, random_state=0), sample_y(model, x, random_state=1))
    state = np.random.RandomState(5)
    assert not np.allclose(sample_y(model, x, random_state=state), sample_y(model, x, random_state=state))
    assert not np.allclose(sample_y(model, x, random_state=None), sample_y(model, x, random_state=None))


def test_sample_y_leaves_torch_s_generator_alone():
    model = fitted(smooth())()
    torch.manual_seed(0)
    before = torch.get_rng_state()
    sample_y(model, x)
    assert torch.equal(before, torch.get_rng_state())


def test_samples_of_a_noise_free_fit_pass_through_the_data():
    model = fitted(sk.RBF(0.7, "fixed"), alpha=1e-10)()
    np.testing.assert_allclose(sample_y(model, X, 4), y[:, None].repeat(4, axis=1), atol=1e-3)


def test_fitting_again_changes_nothing_that_was_drawn(generator):
    model = fitted(smooth())()
    paths = matheron.draw(model, 3, generator=generator)
    before = paths(x)
    model.fit(X, -3 * y)
    model.X_train_[:] = 0.0  # type: ignore[index]
    assert torch.equal(paths(x), before)


class Wiggly(sk.RBF):
    """A subclass with a formula of its own."""

    def __call__(self, X, Y=None, eval_gradient=False):
        return np.square(super().__call__(X, Y))  # type: ignore[arg-type]


REFUSALS = [
    (fitted(sk.PairwiseKernel(1.0, metric="laplacian")), "kernels.PairwiseKernel is not understood; .* by hand"),
    (
        fitted(sk.RBF() + sk.PairwiseKernel(metric="linear")),
        "expected one of ConstantKernel, DotProduct, .* WhiteKernel",
    ),
    (fitted(sk.ExpSineSquared(), alpha=5.0, optimizer=None), "ExpSineSquared.* not positive definite in 2 dimensions"),
    (fitted(sk.RBF() ** 1.5), "Exponentiation by a whole number of at least 1, got 1.5; .* again of that class"),
    (fitted(Wiggly(), optimizer=None), "differ from those of its translation"),
    (lambda: GaussianProcessClassifier().fit(X, y > 0), "GaussianProcessClassifier is not understood"),
    (
        lambda: make_pipeline(OneHotEncoder(sparse_output=False), GaussianProcessRegressor()).fit(
            np.where(X > 0, "a", "b"), y
        ),
        r"numbers as the categories .*draw\(pipeline\[-1\], 64\), then paths\(pipeline\[:-1\].transform\(X\)\)",
    ),
    (
        lambda: make_pipeline(MinMaxScaler(clip=True), GaussianProcessRegressor()).fit(X, y),
        "clip=True is constant outside its range; use clip=False",
    ),
    (
        lambda: TransformedTargetRegressor(GaussianProcessRegressor(), func=np.cbrt, inverse_func=_cube).fit(X, y),
        r"got func=cbrt; draw from the regressor inside .* matheron.draw\(model.regressor_, 64\)",
    ),
]


@pytest.mark.parametrize(("make", "message"), REFUSALS)
def test_what_is_not_understood_is_refused_by_name_with_a_way_out(make, message):
    with pytest.raises(TypeError, match=message):
        matheron.describe(make())


def test_a_compound_kernel_is_refused():
    with pytest.raises(TypeError, match="CompoundKernel is not understood"):
        translate(sk.CompoundKernel([sk.RBF()]), 1)


def test_an_unfitted_regressor_is_refused_with_the_way_to_its_prior():
    model = GaussianProcessRegressor(smooth())
    with pytest.raises(ValueError, match=r"not fitted; call fit, or .* matheron.draw_prior\(matheron.adapters.sklearn"):
        matheron.draw(model, 3)
    assert matheron.draw_prior(translate(model.kernel, 2), 3, input_dim=2)(x).shape == (3, 6)


@pytest.mark.parametrize(("func", "inverse"), [(None, None), (np.log1p, np.expm1), (np.sqrt, np.square)])
def test_targets_that_a_function_changed_come_back(func, inverse):
    inner = fitted(smooth())()
    model = TransformedTargetRegressor(inner, func=func, inverse_func=inverse).fit(X, np.exp(y))
    paths, inside = (matheron.draw(each, 4, seed=0) for each in (model, model.regressor_))
    expected = inside(X).numpy() if inverse is None else inverse(inside(X).numpy())
    np.testing.assert_allclose(paths(X).numpy(), expected)


def test_pipelines_of_scalers_are_read_as_the_scalers():
    scalers = make_pipeline(StandardScaler(), "passthrough", MinMaxScaler())
    inner = make_pipeline(scalers, RobustScaler(), GaussianProcessRegressor(smooth()))
    model = TransformedTargetRegressor(inner, transformer=scalers).fit(SCALE * X, several)
    paths = matheron.draw(model, 3, seed=0)
    np.testing.assert_allclose(paths.mean(SCALE * x).numpy(), model.predict(SCALE * x))


def test_a_regressor_for_each_target_is_an_output_each():
    model = MultiOutputRegressor(make_pipeline(StandardScaler(), GaussianProcessRegressor(smooth()))).fit(X, several)
    paths = matheron.draw(model, 3, seed=0)
    np.testing.assert_allclose(paths.mean(x).numpy(), model.predict(x))
    assert paths(x).shape == (3, len(x), several.shape[1])


def test_log_targets_come_back_in_their_own_units(generator):
    model = TransformedTargetRegressor(fitted(smooth())(), func=np.log, inverse_func=np.exp).fit(X, np.exp(y))
    paths = matheron.draw(model, 2000, generator=generator)
    inner = latent(model.regressor_, x)
    values = paths(x).log()
    assert_moments(
        values,
        torch.as_tensor(inner.mean),
        torch.as_tensor(inner.covariance),
        basis_error=basis_error(1024, 2000 // 64 + 1),
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TransformedTargetRegressor(GaussianProcessRegressor()), "TransformedTargetRegressor is not fitted"),
        (lambda: MultiOutputRegressor(GaussianProcessRegressor()), "MultiOutputRegressor is not fitted"),
        (lambda: GridSearchCV(GaussianProcessRegressor(), {}), "this search has no best estimator; call fit"),
    ],
)
def test_what_is_not_fitted_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        matheron.describe(make())
