"""BoTorch's own names over matheron's paths: same signatures and shapes, and the law of the model."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from botorch import models
from botorch.acquisition import thompson_sampling
from botorch.acquisition import utils as acquisition_utils
from botorch.acquisition.multi_objective import utils as pareto_utils
from botorch.acquisition.objective import GenericMCObjective, ScalarizedPosteriorTransform
from botorch.models.transforms import input as bi
from botorch.optim import optimize_acqf, optimize_acqf_discrete
from botorch.sampling.pathwise import posterior_samplers
from gpytorch.kernels import RBFKernel, ScaleKernel

from adapters.botorch_cases import BOUNDS, DOUBLE, member_moments, problem, saas
from matheron.adapters import botorch as ours

X, Y = problem()
X2, Y2 = problem(outputs=2)


MODELS: dict[str, Callable[[], Any]] = {
    "one output": lambda: models.SingleTaskGP(X, Y),
    "two outputs": lambda: models.SingleTaskGP(X2, Y2),
    "a list": lambda: models.ModelListGP(models.SingleTaskGP(X, Y), models.SingleTaskGP(X2, Y2[:, 1:])),
    "a batch": lambda: models.SingleTaskGP(X.expand(4, -1, -1), Y.expand(4, -1, -1)),
    "an ensemble": saas,
}
PAIRS: dict[str, tuple[Any, Any]] = {
    "get_matheron_path_model": (ours.get_matheron_path_model, posterior_samplers.get_matheron_path_model),
    "PathwiseThompsonSampling": (ours.PathwiseThompsonSampling, thompson_sampling.PathwiseThompsonSampling),
    "get_optimal_samples": (ours.get_optimal_samples, acquisition_utils.get_optimal_samples),
    "sample_optimal_points": (ours.sample_optimal_points, pareto_utils.sample_optimal_points),
}


def made(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # inputs that are not scaled
        return MODELS[name]()


@pytest.mark.parametrize("name", PAIRS)
def test_signatures_are_botorchs(name: str) -> None:
    mine, theirs = (inspect.signature(function).parameters for function in PAIRS[name])
    assert [(p.name, p.default, p.kind) for p in mine.values()] == [
        (p.name, p.default, p.kind) for p in theirs.values()
    ]


@pytest.mark.parametrize("as_batch", [False, True])
@pytest.mark.parametrize("sample_shape", [None, (1,), (5,), (2, 3)], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_a_path_model_has_the_shapes_of_botorchs(name: str, sample_shape: Any, as_batch: bool) -> None:
    model, shape = made(name), None if sample_shape is None else torch.Size(sample_shape)
    theirs = posterior_samplers.get_matheron_path_model(model, shape, ensemble_as_batch=as_batch)
    mine = ours.get_matheron_path_model(model, shape, ensemble_as_batch=as_batch)
    assert (mine.batch_shape, mine.num_outputs) == (theirs.batch_shape, theirs.num_outputs)
    assert mine._is_ensemble == theirs._is_ensemble
    for batch in [(), (1,), (3,), (4,), (5, 1), (7, 5, 1), (7, 5, 3)]:
        points = BOUNDS[0] + (BOUNDS[1] - BOUNDS[0]) * torch.rand(*batch, 6, 2, dtype=DOUBLE)
        try:
            expected = theirs(points).shape
        except RuntimeError:
            continue  # theirs does not broadcast so
        assert mine(points).shape == expected


def test_an_ensembles_members_have_each_their_own_posterior() -> None:
    model, x = saas(), X[:4] + 0.1
    values = ours.get_matheron_path_model(model, torch.Size([4000]))(x)[..., 0]  # [s, members, n]
    for i, exact in enumerate(member_moments(model, x)):
        sd = exact.covariance.diagonal().sqrt()
        assert float(((values[:, i].mean(0) - exact.mean) / sd).abs().max()) < 5 / 4000**0.5
        torch.testing.assert_close(values[:, i].T.cov(), exact.covariance, rtol=0.1, atol=0.1 * float(sd.max()) ** 2)


def _one_hot(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, torch.nn.functional.one_hot((7 * x[:, 0]).long() % 3, 3)], -1)


CALLED: dict[str, Any] = {
    "several points of one": (lambda x: x, lambda: bi.InputPerturbation(torch.rand(3, 2, dtype=DOUBLE)), 2),
    "after another": (
        lambda x: x,
        lambda: bi.ChainedInputTransform(
            unit=bi.Normalize(2), near=bi.InputPerturbation(0.1 * torch.rand(3, 2, dtype=DOUBLE))
        ),
        2,
    ),
    "fewer columns": (_one_hot, lambda: bi.OneHotToNumeric(5, categorical_features={2: 3}), 3),
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", CALLED)
def test_input_transforms_of_any_kind_are_called_as_they_are(name: str, training: bool) -> None:
    columns, transform, dim = CALLED[name]
    kernel = ScaleKernel(RBFKernel(ard_num_dims=dim)).double()
    model = models.SingleTaskGP(columns(X), Y, covar_module=kernel, input_transform=transform())
    model.train(training)
    points, before = columns(X[:4] + 0.1), copy.deepcopy(model.state_dict())
    paths = ours.get_matheron_path_model(model, torch.Size([4000]))
    assert model.training == training and all(torch.equal(before[key], v) for key, v in model.state_dict().items())
    with torch.no_grad():
        law = model.eval().posterior(points)
    values = paths(points)
    assert values.shape == (4000, *law.mean.shape)
    assert float(((values.mean(0) - law.mean) / law.variance.sqrt()).abs().max()) < 5 / 4000**0.5
    torch.testing.assert_close(values.var(0), law.variance, rtol=0.12, atol=0)


@pytest.mark.filterwarnings("ignore:Data")  # inputs that are not scaled
def test_input_transforms_of_a_list_are_called_each_for_its_outputs() -> None:
    near = [bi.InputPerturbation(width * torch.rand(3, 2, dtype=DOUBLE)) for width in (0.5, 2.0)]
    first = models.SingleTaskGP(X2, Y2, input_transform=near[0])
    second = models.SingleTaskGP(X, Y, input_transform=near[1])
    model, points = models.ModelListGP(first, second), X[:4] + 0.1
    paths = ours.get_matheron_path_model(model, torch.Size([4000]))
    with torch.no_grad():
        laws: list[Any] = [member.eval().posterior(points) for member in (first, second)]
    mean, variance = (torch.cat([getattr(law, name) for law in laws], -1) for name in ("mean", "variance"))
    values = paths(points)
    assert values.shape == (4000, 12, 3)
    assert float(((values.mean(0) - mean) / variance.sqrt()).abs().max()) < 5 / 4000**0.5


def test_outputs_are_selected_in_the_order_asked() -> None:
    model = ours.get_matheron_path_model(made("two outputs"), torch.Size([3]))
    points = X[:5]
    torch.testing.assert_close(model.subset_output([1])(points), model(points)[..., [1]])
    torch.testing.assert_close(model.subset_output([-1, 0])(points), model(points)[..., [1, 0]])
    with pytest.raises(IndexError):
        model.subset_output([2])


@pytest.mark.parametrize("name", ["one output", "an ensemble"])
def test_pathwise_thompson_sampling_is_optimised(name: str) -> None:
    torch.manual_seed(0)  # BoTorch's search is local, and takes no generator
    acquisition = ours.PathwiseThompsonSampling(made(name))
    chosen, value = optimize_acqf(acquisition, BOUNDS, q=2, num_restarts=6, raw_samples=256)
    assert chosen.shape == (2, 2)
    assert isinstance(acquisition.samples, ours.MatheronPathModel)
    random = BOUNDS[0] + (BOUNDS[1] - BOUNDS[0]) * torch.rand(300, 2, 2, dtype=DOUBLE)
    assert value is not None
    assert float(value) >= float(acquisition(random).max()) - 1e-3 * abs(float(value))


@pytest.mark.parametrize("name", ["one output", "a batch", "an ensemble"])
def test_optimal_samples_have_botorchs_shapes_and_are_optimal(name: str) -> None:
    model = made(name)
    settings: Any = {"num_optima": 3, "raw_samples": 64, "num_restarts": 3}
    x, f = ours.get_optimal_samples(model, BOUNDS, **settings)
    x_theirs, f_theirs = acquisition_utils.get_optimal_samples(model, BOUNDS, **settings)
    assert (x.shape, f.shape) == (x_theirs.shape, f_theirs.shape)
    assert bool((x >= BOUNDS[0] - 1e-9).all() and (x <= BOUNDS[1] + 1e-9).all())


def test_points_chosen_one_after_the_other_have_each_a_path_of_their_own() -> None:
    torch.manual_seed(0)
    acquisition = ours.PathwiseThompsonSampling(models.SingleTaskGP(X[:3], Y[:3]))
    points, _ = optimize_acqf(acquisition, BOUNDS, q=3, num_restarts=2, raw_samples=16, sequential=True)
    assert points.shape == (3, 2) and len(points.round(decimals=2).unique(dim=0)) > 1
    drawn = []
    redraw, acquisition.redraw = (
        acquisition.redraw,
        lambda batch_size: (drawn.append(batch_size), redraw(batch_size))[1],
    )
    optimize_acqf_discrete(acquisition, q=2, choices=torch.rand(50, 2, dtype=DOUBLE))
    assert drawn == [1, 1]


def test_optima_of_several_outputs_need_one_number_of_them() -> None:
    with pytest.raises(ValueError, match="expected one output, got 2; give a posterior_transform or an objective"):
        ours.get_optimal_samples(models.SingleTaskGP(X2, Y2), BOUNDS, 4)


def test_optimal_samples_are_transformed() -> None:
    flipped = ScalarizedPosteriorTransform(weights=torch.tensor([-1.0], dtype=DOUBLE))
    model = made("one output")
    settings: Any = {"num_optima": 2, "raw_samples": 128, "num_restarts": 4}
    _, lowest = ours.get_optimal_samples(model, BOUNDS, posterior_transform=flipped, **settings)
    _, highest = ours.get_optimal_samples(model, BOUNDS, **settings)
    assert float(lowest.max()) < float(highest.min())
    with pytest.raises(ValueError, match="expected posterior_transform or objective, got both"):
        objective = GenericMCObjective(lambda Z, X=None: Z[..., 0])
        ours.get_optimal_samples(model, BOUNDS, 2, posterior_transform=flipped, objective=objective)


def test_pareto_sets_of_drawn_functions() -> None:
    sets, fronts = ours.sample_optimal_points(made("two outputs"), BOUNDS, num_samples=2, num_points=3)
    assert (sets.shape, fronts.shape) == ((2, 3, 2), (2, 3, 2))
    for front in fronts:  # no point of a front is below another in every output
        beaten = (front[:, None] > front[None]).all(-1)
        assert not bool(beaten.any())
    from botorch.exceptions.errors import UnsupportedError

    with pytest.raises(UnsupportedError, match="num_points: expected 1 for one objective"):
        ours.sample_optimal_points(made("one output"), BOUNDS, num_samples=2, num_points=3)
