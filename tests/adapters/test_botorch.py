"""BoTorch models as snapshots, against BoTorch's own posterior; and paths as a BoTorch model."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from botorch import models
from botorch.acquisition import qExpectedImprovement, qSimpleRegret
from botorch.acquisition.analytic import PosteriorMean
from botorch.acquisition.thompson_sampling import PathwiseThompsonSampling
from botorch.generation.sampling import MaxPosteriorSampling
from botorch.models import fully_bayesian
from botorch.models.deterministic import MatheronPathModel
from botorch.models.transforms import input as bi
from botorch.models.transforms import outcome as bo
from botorch.optim import optimize_acqf
from botorch.utils.sampling import optimize_posterior_samples
from torch import Tensor

import matheron
from adapters.battery import Case, check
from adapters.botorch_cases import BOUNDS, CASES, DOUBLE, POINTS, fitted, problem, saas, tasks, warped
from matheron.adapters.botorch import PathModel

X, Y = problem()
X2, Y2 = problem(2)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_paths_have_the_moments_of_botorchs_own_posterior(case: Case, generator: torch.Generator) -> None:
    check(case, generator)


@pytest.mark.parametrize("case", [case for case in CASES if case.inner is not None], ids=str)
def test_beneath_a_transform_that_is_not_affine_the_mean_is_exact(case: Case) -> None:
    model = case.fit()
    gp: Any = matheron.describe(model)
    affine = None if isinstance(gp.output_transform, matheron.transforms.Exp) else gp.output_transform.transforms[0]
    gp = gp.replaced(output_transform=affine)
    expected: Any = case.moments(model, case.x)
    torch.testing.assert_close(matheron.draw(gp, 1).mean(case.x), expected.mean, rtol=1e-5, atol=0)


@pytest.mark.parametrize("case", [case for case in CASES if "samples" in str(case) or "ensemble" in str(case)], ids=str)
def test_the_paths_of_an_ensemble_are_spread_over_its_members(case: Case) -> None:
    model = case.fit()
    gp = matheron.describe(model)
    assert isinstance(gp, matheron.Ensemble) and len(gp.models) == model.batch_shape[0]
    assert matheron.draw(model, 5)(POINTS).shape == (5, len(POINTS))


def test_data_that_was_replaced_in_evaluation_mode_counts() -> None:
    model = fitted(models.SingleTaskGP, X, Y, input_transform=lambda: bi.Normalize(d=2))().eval()
    model.set_train_data(model.train_inputs[0] * 0.5 + 0.1, strict=False)
    ours, theirs = matheron.draw(model, 1).mean(POINTS), model.posterior(POINTS).mean[:, 0]
    torch.testing.assert_close(ours, theirs.detach(), rtol=1e-5, atol=1e-8)


def test_fantasies_are_data() -> None:
    model = fitted(models.SingleTaskGP, X, Y, input_transform=lambda: bi.Normalize(d=2))()
    model.posterior(POINTS)
    model = model.condition_on_observations(POINTS[:2] + 0.1, torch.tensor([[1.0], [2.0]], dtype=DOUBLE))
    ours, theirs = matheron.draw(model, 1).mean(POINTS), model.posterior(POINTS).mean[:, 0]
    torch.testing.assert_close(ours, theirs.detach(), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_gradients_reach_the_warp_in_either_mode(mode: str) -> None:
    model = fitted(models.SingleTaskGP, X, Y, input_transform=warped)()
    model.train(mode == "train")
    warp = model.input_transform["warp"]
    basis = matheron.draw(model, 2).prior.features  # its origin, the data's centre, moves with the warp: hold it

    def value() -> Tensor:
        paths = matheron.draw(model, 2, features=basis, detach=False, generator=torch.Generator().manual_seed(2))
        return (paths(POINTS) ** 2).sum()

    (gradient,) = torch.autograd.grad(value(), [warp.concentration1])
    h, values = 1e-6, []
    for step in (h, -2 * h):
        warp.concentration1.data.add_(step)
        model.train().train(mode == "train")  # BoTorch keeps transformed data in evaluation mode: have it renewed
        values.append(value())
    torch.testing.assert_close(gradient.sum(), (values[0] - values[1]) / (2 * h), rtol=1e-5, atol=0)


def test_training_the_model_further_changes_nothing_that_was_drawn() -> None:
    model = fitted(models.SingleTaskGP, X, Y, input_transform=warped)()
    paths = matheron.draw(model, 2)
    before = paths(POINTS)
    for tensor in [*model.parameters(), *model.buffers()]:
        tensor.data.copy_(tensor.data + 1 if tensor.is_floating_point() else tensor.data)
    assert torch.equal(paths(POINTS), before)


# Paths as a BoTorch model.


MODELS: dict[str, Callable[[], Any]] = {
    "one output": lambda: models.SingleTaskGP(X, Y),
    "two outputs": lambda: models.SingleTaskGP(X2, Y2),
    "a list": lambda: models.ModelListGP(models.SingleTaskGP(X, Y), models.SingleTaskGP(X2, Y2[:, 1:])),
    "a batch": lambda: models.SingleTaskGP(X.expand(4, -1, -1), Y.expand(4, -1, -1)),
    "a batch of two outputs": lambda: models.SingleTaskGP(X2.expand(4, -1, -1), Y2.expand(4, -1, -1)),
}
BATCHES = [(), (1,), (3,), (4,), (6, 1), (6, 3), (3, 4), (3, 1), (2, 6, 3), (2, 6, 1), (2, 6, 3, 4), (2, 1, 1, 1)]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("sample_shape", [(), (3,), (2, 3)], ids=str)
def test_a_path_model_has_the_shapes_of_botorchs_and_the_values_of_the_paths(name: str, sample_shape: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = MODELS[name]()
    theirs = MatheronPathModel(model, torch.Size(sample_shape))
    paths = matheron.draw(model, torch.Size(sample_shape).numel(), num_features=16)
    ours = PathModel(paths, sample_shape)
    assert (ours.batch_shape, ours.num_outputs, ours._is_ensemble) == (
        theirs.batch_shape,
        theirs.num_outputs,
        theirs._is_ensemble,
    )
    for batch in BATCHES:
        points = torch.rand(*batch, 5, 2, dtype=DOUBLE) + BOUNDS[0]
        try:
            shape = theirs(points).shape
        except RuntimeError:
            with pytest.raises(ValueError, match="X: expected batch axes that broadcast with"):
                ours(points)
            continue
        values = ours(points)
        assert values.shape == shape == ours.posterior(points).mean.shape
        assert values.shape == theirs.posterior(points).mean.shape
        _assert_values(values, paths, points, sample_shape)


def _assert_values(values: Tensor, paths: Any, points: Tensor, sample_shape: tuple[int, ...]) -> None:
    """Every entry is that of its own path, and of its own model of a batch, at its own points."""
    lead = values.shape[:-2]
    points = points.expand(*lead, *points.shape[-2:])
    count = len(getattr(paths, "batch_shape", []))
    for index in list(itertools.product(*map(range, lead)))[::5]:
        own = index[len(index) - count - len(sample_shape) :]
        number = 0
        for i, size in zip(own, sample_shape, strict=False):
            number = number * size + i
        path = paths[number]
        path = path.members[own[-1]] if count else path
        expected = path(points[index])[0]
        torch.testing.assert_close(values[index], expected.reshape(values.shape[-2:]), rtol=1e-9, atol=1e-9)


def test_a_sample_shape_must_hold_all_the_paths() -> None:
    paths = matheron.draw(MODELS["one output"](), 3)
    with pytest.raises(ValueError, match=r"sample_shape: expected 3 paths in all, got \[2\]"):
        PathModel(paths, [2])


@pytest.fixture(scope="module")
def trained_model() -> Any:
    return fitted(models.SingleTaskGP, X, Y, input_transform=lambda: bi.Normalize(d=2, bounds=BOUNDS))()


def test_posterior_samples_are_optimised_as_botorchs_are(trained_model: Any) -> None:
    paths = matheron.draw(trained_model, 3)
    x, f = optimize_posterior_samples(PathModel(paths), BOUNDS, raw_samples=256, num_restarts=4)  # type: ignore[arg-type]
    assert (x.shape, f.shape) == ((3, 2), (3, 1))
    grid = torch.cartesian_prod(*(torch.linspace(side[0], side[1], 40, dtype=DOUBLE) for side in BOUNDS.mT.tolist()))
    best = paths(grid).max(-1).values
    assert bool((f[:, 0] >= best - 1e-3 * best.abs()).all())
    torch.testing.assert_close(paths(x[:, None])[:, 0], f[:, 0])


def test_max_posterior_sampling_picks_each_paths_best_point(trained_model: Any) -> None:
    paths = matheron.draw(trained_model, 4)
    candidates = BOUNDS[0] + (BOUNDS[1] - BOUNDS[0]) * torch.rand(50, 2, dtype=DOUBLE)
    chosen = MaxPosteriorSampling(PathModel(paths))(candidates, num_samples=1)
    assert chosen.shape == (4, 1, 2)
    torch.testing.assert_close(chosen[:, 0], candidates[paths(candidates).argmax(-1)])


@pytest.mark.parametrize("kind", ["simple regret", "expected improvement", "posterior mean"])
def test_acquisition_functions_are_optimised_over_a_path(trained_model: Any, kind: str) -> None:
    paths = matheron.draw(trained_model, 1)
    model = PathModel(paths, sample_shape=[])
    acquisition: Any = {
        "simple regret": lambda: qSimpleRegret(model),
        "expected improvement": lambda: qExpectedImprovement(model, best_f=-100.0),
        "posterior mean": lambda: PosteriorMean(model),
    }[kind]()
    x, value = optimize_acqf(acquisition, BOUNDS, q=1, num_restarts=2, raw_samples=64)
    assert value is not None
    best = float(paths(x)) + (100.0 if kind == "expected improvement" else 0.0)
    assert abs(float(value) - best) < 1e-6 * abs(best)
    random = BOUNDS[0] + (BOUNDS[1] - BOUNDS[0]) * torch.rand(500, 2, dtype=DOUBLE)
    assert float(paths(x)) >= float(paths(random).max()) - 1e-3


def test_pathwise_thompson_sampling_takes_a_path_for_each_of_its_points(trained_model: Any) -> None:
    paths = matheron.draw(trained_model, 2)
    acquisition = PathwiseThompsonSampling(trained_model)
    acquisition.batch_size, acquisition.samples = 2, PathModel(paths)  # type: ignore[assignment]
    x, value = optimize_acqf(acquisition, BOUNDS, q=2, num_restarts=2, raw_samples=64)
    torch.testing.assert_close(value, paths(x[:, None]).sum())


# Refusals.


def multitask(**kwargs: Any) -> Any:
    return models.MultiTaskGP(*tasks(), task_feature=-1, **kwargs)


OUTCOMES = {
    "a power": bo.Power(0.5),
    "a bilog": bo.Bilog(),
    "the logarithm of one of two": bo.Log(outputs=[-1]),
    "a bilog of one of two, standardised": bo.ChainedOutcomeTransform(a=bo.Bilog(outputs=[0]), b=bo.Standardize(m=2)),
}


@pytest.mark.parametrize("name", OUTCOMES)
@pytest.mark.filterwarnings("ignore")
def test_outcomes_are_untransformed_as_botorch_does(name: str) -> None:
    model = models.SingleTaskGP(X2, Y2, torch.full_like(Y2, 1e-8), outcome_transform=None).eval()
    transform = OUTCOMES[name].train()
    with_transform = models.SingleTaskGP(X2, Y2, torch.full_like(Y2, 1e-8), outcome_transform=None).eval()
    transform(Y2)
    with_transform.outcome_transform = transform.eval()
    paths, inner = (matheron.draw(each, 5, seed=0) for each in (with_transform, model))
    expected, _ = transform.untransform(inner(X2 + 0.1))
    torch.testing.assert_close(paths(X2 + 0.1), expected)


@pytest.mark.parametrize("approximate", [False, True])
def test_inputs_are_rounded_as_botorch_does(approximate: bool) -> None:
    choices = None if approximate else {2: 2}
    x = torch.cat([X, X - 11], -1)
    transform = bi.Round(integer_indices=[0], categorical_features=choices, approximate=approximate, tau=0.1)
    model = models.SingleTaskGP(x, Y, input_transform=transform).eval()
    paths, test = matheron.draw(model, 5, seed=0), x.flip(1) * 0.9
    with torch.no_grad():
        torch.testing.assert_close(paths.mean(test), model.posterior(test).mean[:, 0], rtol=1e-5, atol=1e-5)
    if not approximate:
        torch.testing.assert_close(paths(transform(test)), paths(test))


class _Mirrored(bi.Normalize):
    def _transform(self, X: Any) -> Any:
        return 1 - super()._transform(X)


_SCALE, _SHIFT = torch.tensor([2.0, 3.0], dtype=torch.float64), torch.tensor([1.0, -1.0], dtype=torch.float64)
INPUTS: dict[str, Callable[[], Any]] = {
    "numbers by column": lambda: bi.AffineInputTransform(2, _SCALE, _SHIFT),
    "numbers by column, reversed": lambda: bi.AffineInputTransform(2, _SCALE, _SHIFT, reverse=True),
    "one scale for all": lambda: bi.AffineInputTransform(2, _SCALE[1], _SHIFT[None]),
    "the last column": lambda: bi.Normalize(d=2, indices=[-1]),
    "the last column, warped": lambda: bi.Warp(d=2, indices=[-1], bounds=BOUNDS[:, 1:]),
    "the first column from the right": lambda: bi.Log10(indices=[-2]),
}


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.filterwarnings("ignore")
def test_inputs_are_transformed_as_botorch_does(name: str) -> None:
    model = models.SingleTaskGP(X, Y, input_transform=INPUTS[name]()).eval()
    with torch.no_grad():
        expected = model.posterior(POINTS).mean[:, 0]
        torch.testing.assert_close(matheron.draw(model, 1, num_features=4).mean(POINTS), expected, rtol=1e-5, atol=1e-5)


REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "categories that are scaled": (
        lambda: models.MixedSingleTaskGP(
            torch.cat([X, X[:, :1].round()], -1), Y, cat_dims=[2], input_transform=bi.Normalize(d=3)
        ),
        TypeError,
        "expected whole numbers as the categories of a CategoricalKernel; .*input transforms to the other columns",
    ),
    "a transform of one's own": (
        lambda: models.SingleTaskGP(X, Y, input_transform=_Mirrored(d=2)),
        TypeError,
        "_Mirrored is not understood; .*; _Mirrored has a _transform of its own",
    ),
    "fewer columns": (
        lambda: models.SingleTaskGP(X, Y, input_transform=bi.FilterFeatures(torch.tensor([1]))),
        TypeError,
        r"FilterFeatures is not understood; .*use .*get_matheron_path_model\(model\), which calls",
    ),
    "an offset per point": (
        lambda: models.SingleTaskGP(X, Y, input_transform=bi.AffineInputTransform(2, _SCALE, 0.1 * X)),
        TypeError,
        "input transform: expected the same coefficient and offset for all points, got shape",
    ),
    "pairs": (
        lambda: models.PairwiseGP(torch.rand(4, 2, dtype=DOUBLE), torch.tensor([[0, 1], [2, 3]])),
        TypeError,
        r"model: botorch\..*PairwiseGP is not understood; expected one of .*SingleTaskGP.*; or describe the model by",
    ),
    "tensors": (
        lambda: models.HigherOrderGP(X, torch.rand(24, 2, 3, dtype=DOUBLE)),
        TypeError,
        "HigherOrderGP.forward to return the covariance .*, got another KroneckerProductLinearOperator",
    ),
    "strata of one task": (
        lambda: models.SingleTaskGP(
            torch.cat([X, torch.zeros(24, 1)], -1), Y, outcome_transform=bo.StratifiedStandardize(2, torch.tensor([0]))
        ),
        TypeError,
        "StratifiedStandardize is only understood for MultiTaskGP",
    ),
    "a warp in reverse": (
        lambda: models.SingleTaskGP(X, Y, input_transform=bi.Warp(d=2, indices=[0], reverse=True, bounds=BOUNDS)),
        TypeError,
        "Warp with reverse=True is not understood",
    ),
    "a logarithm in reverse": (
        lambda: models.SingleTaskGP(X, Y, input_transform=bi.Log10(indices=[1], reverse=True)),
        TypeError,
        "Log10 with reverse=True is not understood",
    ),
    "a task feature that is changed": (
        lambda: multitask(input_transform=bi.Normalize(d=3, bounds=torch.tensor([[0.0, 0, 0], [1, 1, 3]]))),
        TypeError,
        "Normalize changes the task feature, column 2; pass the other columns as its indices=",
    ),
    "a task without data, in training": (
        lambda: multitask(all_tasks=[0, 1, 2]),
        ValueError,
        "sets the covariance of tasks without data; call model.eval",
    ),
    "not fitted": (lambda: _unfitted(), ValueError, "it has no MCMC samples; call fit_fully_bayesian_model_nuts first"),
    "a function": (
        lambda: models.GenericDeterministicModel(lambda x: x[..., :1]),
        TypeError,
        "GenericDeterministicModel is not understood",
    ),
}


def _unfitted() -> fully_bayesian.SaasFullyBayesianSingleTaskGP:
    return saas().train()


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("ignore")
def test_what_is_not_understood_is_refused_by_name_with_a_way_out(name: str) -> None:
    make, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        matheron.draw(make(), 2)
