"""GPflow's models as snapshots: each kind against GPflow's own posterior, each kernel against its own matrix."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false

from __future__ import annotations

import numpy as np
import pytest
import torch

import matheron
from adapters.battery import Case, check

gpflow = pytest.importorskip("gpflow", reason="GPflow has an environment of its own: make test-gpflow")

import tensorflow as tf  # noqa: E402

from adapters import gpflow_cases as cases  # noqa: E402
from adapters.gpflow_cases import MODELS, X, Y, Z, kernel, svgp, trained, x  # noqa: E402
from matheron.adapters import gpflow as adapter  # noqa: E402
from matheron.adapters.gpflow import leaves, noise_variance  # noqa: E402

gk = gpflow.kernels


@pytest.mark.parametrize("case", MODELS, ids=str)
def test_paths_have_the_posterior_of(case, generator):
    check(case, generator)


@pytest.mark.parametrize("whiten", [True, False])
def test_gpflow_s_jitter_is_part_of_the_model(whiten, generator):
    with gpflow.config.as_context(gpflow.config.Config(jitter=0.05)):
        check(Case("a large jitter", svgp(kernel, whiten=whiten), cases.independent, x), generator)


def test_a_model_in_single_precision_is_read_in_double(generator):
    with gpflow.config.as_context(gpflow.config.Config(float=np.float32, jitter=1e-4)):
        points, targets = X.astype(np.float32), Y[:, :1].astype(np.float32)
        kernel = gk.Matern32(1.2, [0.8, 1.5]) * gk.Constant(0.7) + gk.White(0.1)
        model = trained(gpflow.models.SGPR((points, targets), kernel, Z.astype(np.float32), noise_variance=0.1))
        paths = matheron.draw(model, 2, generator=generator)
        mean, _ = model.predict_f(x.astype(np.float32))
    assert paths.dtype == torch.float64
    np.testing.assert_allclose(paths.mean(x), mean[:, 0], atol=1e-3 * np.abs(mean).max())


def negative_cosine():
    kernel = gk.Cosine(2.0, [0.5, 0.3], active_dims=[2, 1])
    kernel.lengthscales.assign([-0.5, 0.3])  # GPflow allows it
    return kernel


LENGTHSCALES = [0.5, 1.2, 2.0]
KERNELS = {
    "SquaredExponential": lambda: gk.SquaredExponential(2.0, LENGTHSCALES),
    "Matern12": lambda: gk.Matern12(2.0, 0.7),
    "Matern32": lambda: gk.Matern32(2.0, LENGTHSCALES),
    "Matern52": lambda: gk.Matern52(2.0, LENGTHSCALES),
    "Exponential": lambda: gk.Exponential(2.0, LENGTHSCALES),
    "RationalQuadratic": lambda: gk.RationalQuadratic(2.0, LENGTHSCALES, alpha=0.7),
    "Periodic": lambda: gk.Periodic(gk.SquaredExponential(2.0, LENGTHSCALES), [1.0, 2.0, 3.0]),
    "Periodic of some": lambda: gk.Periodic(gk.SquaredExponential(2.0, [0.3, 0.4], active_dims=[2, 0]), 1.5),
    "Cosine": lambda: gk.Cosine(2.0, LENGTHSCALES),
    "Cosine of one": lambda: gk.Cosine(2.0, 0.7, active_dims=[1]),
    "Cosine, negative": negative_cosine,
    "Linear": lambda: gk.Linear(LENGTHSCALES),
    "Polynomial": lambda: gk.Polynomial(3, 2.0, 0.5),
    "Polynomial, ARD": lambda: gk.Polynomial(2, LENGTHSCALES, 0.5),
    "Constant": lambda: gk.Constant(3.0),
    "White": lambda: gk.White(0.3),
    "slices": lambda: gk.Matern12(active_dims=slice(None, None, 2)) + gk.Linear([1.0, 2.0], active_dims=slice(1, 3)),
    "sums and products": lambda: (
        (gk.SquaredExponential() + gk.White(0.2)) * (gk.Linear() + gk.White(0.1)) * gk.Matern12()
    ),
}


@pytest.mark.parametrize("make", KERNELS.values(), ids=KERNELS)
def test_a_kernel_is_its_translation_between_points_and_white_besides_at_them(make):
    theirs = make()
    a, b = np.random.default_rng(0).standard_normal((2, 7, 3))
    ours = adapter.translate(theirs, 3)
    np.testing.assert_allclose(ours(a, b).numpy(), theirs(a, b).numpy(), rtol=1e-10, atol=1e-12)
    white = noise_variance(theirs, a)
    np.testing.assert_allclose(ours(a, a).numpy() + np.diag(white), theirs(a).numpy(), rtol=1e-10, atol=1e-12)


def test_every_kernel_that_is_understood_is_in_the_table():
    tried = {type(leaf) for make in KERNELS.values() for leaf in leaves(make())}
    assert set(adapter.translate.registry) - {object} == tried | {gk.Sum, gk.Product, gk.Coregion}


def test_training_on_changes_nothing_that_was_drawn():
    model = svgp(kernel)()
    paths = matheron.draw(model, 3, generator=torch.Generator().manual_seed(0))
    before = paths(x)
    trained(model, (X, Y[:, :1]))
    assert torch.equal(paths(x), before)
    assert not torch.allclose(matheron.draw(model, 3, generator=torch.Generator().manual_seed(0))(x), before)


class Wiggly(gk.SquaredExponential):
    """A subclass with a formula of its own."""

    def K_r2(self, r2):
        return self.variance * tf.exp(-0.25 * r2)


def of_kernel(kernel, X=X, Y=Y[:, :1]):
    return gpflow.models.GPR((X, Y), kernel)


def of_mean(mean):
    return gpflow.models.GPR((X, Y[:, :1]), kernel(), mean)


def of_inducing(kernel, inducing, **settings):
    return gpflow.models.SVGP(kernel, gpflow.likelihoods.Gaussian(), inducing, **settings)


def task(num_tasks: int, column: int):
    return gk.Coregion(num_tasks, rank=1, active_dims=[column])


def ignored_dims():
    """GPflow evaluates these kernels on all columns, but only with inducing points of all outputs at once."""
    kernel = gk.SeparateIndependent([gk.Matern12(active_dims=[0]), gk.Matern12(active_dims=[0])])
    m = 2 * len(Z)
    return of_inducing(kernel, cases.points(), q_mu=np.zeros((m, 1)), q_sqrt=np.eye(m)[None])


def tasks_in_outputs():
    points = gpflow.inducing_variables.InducingPoints(WITH_TASK[:9])
    inducing = gpflow.inducing_variables.SharedIndependentInducingVariables(points)
    return of_inducing(gk.SeparateIndependent([cases.task_kernel()] * 2), inducing, num_latent_gps=2)


WITH_TASK = cases.tasked(X, [0, 1])
DATA = (X, Y[:, :1])
REFUSALS = [
    (
        lambda: gpflow.models.GPMC(DATA, kernel(), gpflow.likelihoods.StudentT()),
        "gpflow.models.gpmc.GPMC is not understood; expected one of GPR, SGPR, SVGP, VGP; .* by hand",
    ),
    (lambda: gpflow.models.GPRFITC(DATA, kernel(), Z.copy()), "GPRFITC is not understood"),
    (lambda: gpflow.models.CGLB(DATA, kernel=kernel(), inducing_variable=Z.copy()), "CGLB is not understood"),
    (lambda: of_kernel(gk.ArcCosine()), "ArcCosine is not understood; expected one of Constant, .* by hand"),
    (lambda: of_kernel(gk.Matern12() + gk.ChangePoints([gk.Matern12()] * 2, [0.0])), "ChangePoints is not understood"),
    (lambda: of_kernel(gk.Periodic(gk.Matern12())), "expected Periodic of SquaredExponential, got one of Matern12"),
    (lambda: of_kernel(gk.Polynomial(2.5)), "whole degree of at least 1, got 2.5"),
    (lambda: of_kernel(Wiggly()), "the values of Wiggly at .* differ from those of its"),
    (lambda: of_kernel(cases.shared_kernel(), Y=Y), "SharedIndependent is not understood"),
    (lambda: of_mean(gpflow.mean_functions.Polynomial(2, 2)), "Polynomial is not understood.*any callable as its mean"),
    (lambda: of_mean(cases.linear_mean() * cases.linear_mean()), "mean_function: .*Product is not understood"),
    (lambda: of_kernel(gk.Matern12() * task(2, 1), WITH_TASK), "active_dims of Matern12 without column 1, which a"),
    (
        lambda: of_kernel(task(2, 1) + task(9, 2), WITH_TASK),
        r"the same column of X, .*, got columns \[\(1,\), \(2,\)\] of 3",
    ),
    (lambda: of_kernel(task(2, 0), WITH_TASK[:, 1:2]), "at least one other column, got .* of 1"),
    (lambda: of_kernel(cases.task_kernel(2), WITH_TASK, Y), "one latent function with a Coregion kernel, got 2"),
    (lambda: of_inducing(gk.Matern12() + gk.White() * gk.Linear(), Z.copy()), "the same White noise at all"),
    (
        lambda: of_inducing(gk.SquaredExponential(), gpflow.inducing_variables.Multiscale(Z, 0.1 + 0 * Z)),
        "inducing_variable: .*Multiscale is not understood; expected one of .*, InducingPoints,",
    ),
    (tasks_in_outputs, "Coregion kernel inside a kernel of several outputs is not understood"),
    (ignored_dims, "GPflow ignores active_dims"),
]


@pytest.mark.parametrize(("make", "message"), REFUSALS)
def test_what_is_not_understood_is_refused_by_name_with_a_way_out(make, message):
    with pytest.raises(TypeError, match=message):
        matheron.describe(make())
