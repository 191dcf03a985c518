"""Drop-in replacements for BoTorch's functions of pathwise sampling: only the import changes.

    from matheron.adapters.botorch import get_matheron_path_model, PathwiseThompsonSampling, get_optimal_samples

Names, signatures and shapes are BoTorch's; the paths are drawn by matheron. Any model of `docs/models.md` works, draws
are independent, and evaluation uses bounded memory.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from botorch.acquisition.multi_objective.utils import random_search_optimizer
from botorch.acquisition.objective import MCAcquisitionObjective, ScalarizedPosteriorTransform
from botorch.acquisition.thompson_sampling import PathwiseThompsonSampling as _PathwiseThompsonSampling
from botorch.exceptions.errors import UnsupportedError
from botorch.models.deterministic import DeterministicModel, GenericDeterministicModel
from botorch.models.model import Model, ModelList
from botorch.utils.sampling import optimize_posterior_samples
from botorch.utils.transforms import is_ensemble
from torch import Size, Tensor, nn

from ...drawing import draw
from ...models import GP, Batch, Ensemble, Outputs
from ...models.libraries import describe
from ...paths import AbstractFunctions, BatchPaths


class PathModel(DeterministicModel):
    """Paths as a deterministic BoTorch model, with the shapes of BoTorch's MatheronPathModel.

    `model(X)` has shape `[*sample_shape, n, m]` at points `[n, d]` that all paths share. With points `[..., n, d]`, the
    last batch axes broadcast with `sample_shape`, so that each path can have its own points; other batch axes stay in
    front. Acquisition functions, `optimize_acqf`, `optimize_posterior_samples` and `MaxPosteriorSampling` accept it.

    Args:
        paths: paths from `matheron.draw`. For a batch of models, the batch's axes follow those of the samples. Paths of
            an ensemble are distributed over its members, which have no axis.
        sample_shape: the axes of the paths, `[num_paths]` by default. With `[]`, for a single path, points may have any
            batch axes, as `optimize_acqf` needs.

    >>> import torch, matheron
    >>> from botorch.models import SingleTaskGP
    >>> from matheron.adapters.botorch import PathModel
    >>> X = torch.rand(8, 2, dtype=torch.float64)
    >>> paths = matheron.draw(SingleTaskGP(X, X.sum(1, keepdim=True).sin()), 16)
    >>> PathModel(paths)(torch.rand(100, 2, dtype=torch.float64)).shape
    torch.Size([16, 100, 1])
    """

    def __init__(self, paths: AbstractFunctions | BatchPaths, sample_shape: Sequence[int] | None = None) -> None:
        super().__init__()
        shape = torch.Size([paths.num_paths] if sample_shape is None else sample_shape)
        if shape.numel() != paths.num_paths:
            raise ValueError(f"sample_shape: expected {paths.num_paths} paths in all, got {list(shape)}")
        self.paths, self.sample_shape = paths, shape
        self._models = torch.Size(getattr(paths, "batch_shape", []))  # the shape of a batch of models
        self._num_outputs = paths.num_outputs
        self._is_ensemble = len(shape) > 0

    @property
    def batch_shape(self) -> torch.Size:
        return self.sample_shape + self._models

    def forward(self, X: Tensor) -> Tensor:
        """Evaluate the paths at X, `[..., n, d] -> [..., n, m]`."""
        n, d = X.shape[-2:]
        own = self.batch_shape
        try:
            lead = torch.broadcast_shapes(X.shape[:-2], own)
        except RuntimeError as error:
            raise ValueError(
                f"X: expected batch axes that broadcast with {list(own)}, those of the paths, got shape "
                f"{list(X.shape)}; use X.unsqueeze(-3) for points that all paths share"
            ) from error
        X = X.reshape((1,) * (len(lead) + 2 - X.ndim) + X.shape)
        first = len(lead) - len(own)
        several = [first + i for i, size in enumerate(own) if size != 1]  # axes along which paths differ
        models = first + len(self.sample_shape)
        several = [i for i in several if i >= models] + [i for i in several if i < models]
        rest = [i for i in range(len(lead)) if i not in several]
        if all(X.shape[i] == 1 for i in several):  # shared points
            points = X.expand([1 if i in several else lead[i] for i in range(len(lead))] + [n, d]).reshape(-1, d)
        else:
            points = X.expand(lead + X.shape[-2:]).permute(*several, *rest, -2, -1)
            points = points.reshape(*self._models, self.paths.num_paths, -1, d)
        order = several + rest
        f = self.paths(points).reshape([lead[i] for i in order] + [n, self.num_outputs])
        return f.permute(*(order.index(i) for i in range(len(lead))), -2, -1)

    def subset_output(self, idcs: list[int]) -> DeterministicModel:
        """Return a model of the outputs `idcs`, in that order."""
        outputs = [int(torch.arange(self.num_outputs, device="cpu")[i]) for i in idcs]
        return GenericDeterministicModel(
            lambda X: self(X)[..., outputs], num_outputs=len(outputs), batch_shape=self.batch_shape
        )


class MatheronPathModel(PathModel):
    """Paths of a model as a deterministic BoTorch model, in place of BoTorch's `MatheronPathModel`.

    Args:
        model: a BoTorch or GPyTorch model.
        sample_shape: the shape of the draws, prepended to the model's `batch_shape`; one path by default.
        ensemble_as_batch: True if points have an axis for the members of an ensemble (`batch x members x n x d`), False
            if all members share the points.
        seed: the seed of the draws; torch's default generator is used by default.

    >>> import torch
    >>> from botorch.models import SingleTaskGP
    >>> from matheron.adapters.botorch import MatheronPathModel
    >>> X = torch.rand(8, 2, dtype=torch.float64)
    >>> paths = MatheronPathModel(SingleTaskGP(X, X.sum(1, keepdim=True).sin()), torch.Size([16]), seed=0)
    >>> paths(torch.rand(100, 2, dtype=torch.float64)).shape
    torch.Size([16, 100, 1])
    """

    def __init__(
        self, model: Model, sample_shape: Size | None = None, ensemble_as_batch: bool = False, seed: int | None = None
    ) -> None:
        shape = Size() if sample_shape is None else Size(sample_shape)
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        gp, called = _apart(model)
        super().__init__(draw(_with_members(gp), shape.numel(), generator=generator), shape)
        self.called = nn.ModuleList(called)  # one for each output, or empty
        several = is_ensemble(model)
        self.ensemble_as_batch = ensemble_as_batch or not several
        self._is_ensemble = several or len(shape) > 0

    def forward(self, X: Tensor) -> Tensor:
        """Evaluate the paths, `[..., n, d] -> [..., n, m]`; the axis before n is that of an ensemble's members."""
        if len(self.called) == 0:
            return self._at(X)
        values = {transform: self._at(transform(X)) for transform in set(self.called)}
        return torch.stack([values[transform][..., i] for i, transform in enumerate(self.called)], dim=-1)

    def _at(self, X: Tensor) -> Tensor:
        return super().forward(X if self.ensemble_as_batch else X.unsqueeze(-3))


def get_matheron_path_model(
    model: Model, sample_shape: Size | None = None, ensemble_as_batch: bool = False
) -> MatheronPathModel:
    """Draw paths from a model's posterior as a deterministic model, like `botorch.sampling.pathwise`.

    >>> import torch
    >>> from botorch.models import SingleTaskGP
    >>> from matheron.adapters.botorch import get_matheron_path_model
    >>> X = torch.rand(8, 2, dtype=torch.float64)
    >>> model = SingleTaskGP(X, X.sum(1, keepdim=True).sin())
    >>> get_matheron_path_model(model, torch.Size([16]))(torch.rand(100, 2, dtype=torch.float64)).shape
    torch.Size([16, 100, 1])
    """
    return MatheronPathModel(model, sample_shape, ensemble_as_batch)


class PathwiseThompsonSampling(_PathwiseThompsonSampling):
    """Thompson sampling as an acquisition function, in place of BoTorch's class of the same name.

    If points are chosen one after the other (`sequential=True`, or from a list of choices), each has its own path.

    >>> import torch
    >>> from botorch.models import SingleTaskGP
    >>> from matheron.adapters.botorch import PathwiseThompsonSampling
    >>> X = torch.rand(8, 2, dtype=torch.float64)
    >>> acquisition = PathwiseThompsonSampling(SingleTaskGP(X, X.sum(1, keepdim=True).sin()))
    >>> acquisition(torch.rand(5, 3, 2, dtype=torch.float64)).shape  # 5 batches of q = 3 points, a path for each of q
    torch.Size([5])
    """

    X_pending: Tensor | None = None

    def set_X_pending(self, X_pending: Tensor | None = None) -> None:
        """Set the points that were already chosen, and draw a new path for the next point."""
        super().set_X_pending(X_pending)
        self.samples = None

    def redraw(self, batch_size: int) -> None:
        """Draw one path for each of the q points; for an ensemble, each path is of one member."""
        self.samples = get_matheron_path_model(self.model, Size([batch_size]))  # type: ignore[assignment]
        if is_ensemble(self.model):
            if len(self.model.batch_shape) > 1:
                raise NotImplementedError("model: expected an ensemble with one axis of members, got more")
            members = self.model.batch_shape[0]
            self.ensemble_indices = torch.randint(members, (batch_size, 1, self.model.num_outputs), device="cpu")


def get_optimal_samples(
    model: Model,
    bounds: Tensor,
    num_optima: int,
    raw_samples: int = 1024,
    num_restarts: int = 20,
    posterior_transform: ScalarizedPosteriorTransform | None = None,
    objective: MCAcquisitionObjective | None = None,
    return_transformed: bool = False,
) -> tuple[Tensor, Tensor]:
    """Maximise drawn paths: return maximisers and their values, like the function of `botorch.acquisition.utils`.

    >>> import torch
    >>> from botorch.models import SingleTaskGP
    >>> from matheron.adapters.botorch import get_optimal_samples
    >>> X = torch.rand(8, 2, dtype=torch.float64)
    >>> model, box = SingleTaskGP(X, X.sum(1, keepdim=True).sin()), torch.tensor([[0.0, 0.0], [1.0, 1.0]]).double()
    >>> [tensor.shape for tensor in get_optimal_samples(model, box, num_optima=4, raw_samples=64, num_restarts=2)]
    [torch.Size([4, 2]), torch.Size([4, 1])]
    """
    if posterior_transform is not None and objective is not None:
        raise ValueError("get_optimal_samples: expected posterior_transform or objective, got both")
    if posterior_transform is not None and not isinstance(posterior_transform, ScalarizedPosteriorTransform):
        kind = type(posterior_transform).__name__
        raise ValueError(f"posterior_transform: expected a ScalarizedPosteriorTransform, got {kind}")
    if model.num_outputs > 1 and posterior_transform is None and objective is None:
        raise ValueError(
            f"get_optimal_samples: expected one output, got {model.num_outputs}; give a posterior_transform or an "
            "objective that combines them into one"
        )
    transform = objective if posterior_transform is None else posterior_transform.evaluate
    return optimize_posterior_samples(
        MatheronPathModel(model, Size([num_optima]), ensemble_as_batch=True),  # type: ignore[arg-type]
        bounds,
        raw_samples=raw_samples,
        num_restarts=num_restarts,
        sample_transform=transform,
        return_transformed=return_transformed,
    )


def sample_optimal_points(
    model: Model,
    bounds: Tensor,
    num_samples: int,
    num_points: int,
    optimizer: Callable[..., tuple[Tensor, Tensor]] = random_search_optimizer,
    maximize: bool = True,
    optimizer_kwargs: Mapping[str, object] | None = None,
) -> tuple[Tensor, Tensor]:
    """Optimise drawn paths, like BoTorch's function; for several outputs, return Pareto sets and fronts.

    >>> import torch
    >>> from botorch.models import SingleTaskGP
    >>> from matheron.adapters.botorch import sample_optimal_points
    >>> X = torch.rand(8, 2, dtype=torch.float64)
    >>> model = SingleTaskGP(X, torch.stack([X[:, 0], -X[:, 0]], 1))
    >>> box = torch.tensor([[0.0, 0.0], [1.0, 1.0]]).double()
    >>> sets, fronts = sample_optimal_points(model, box, num_samples=3, num_points=4)
    >>> sets.shape, fronts.shape
    (torch.Size([3, 4, 2]), torch.Size([3, 4, 2]))
    """
    if model.num_outputs == 1 and num_points > 1:
        raise UnsupportedError("num_points: expected 1 for one objective, whose optimum is one point")
    paths = draw(describe(model), num_samples)
    models = [PathModel(paths[i], sample_shape=[]) for i in range(num_samples)]
    settings = dict(bounds=bounds, num_points=num_points, maximize=maximize, **(optimizer_kwargs or {}))
    pairs = [optimizer(model=one, **settings) for one in models]
    inputs, outputs = (torch.stack(parts).to(bounds) for parts in zip(*pairs, strict=True))
    return inputs, outputs


def _apart(model: Model) -> tuple[GP, list[nn.Module]]:
    """Return the model as a snapshot, and for each output an input transform that a snapshot cannot contain.

    Such a transform adds columns, or makes several points from one.
    """
    try:
        return describe(model), []
    except TypeError:
        members = cast(list[Model], list(model.models) if isinstance(model, ModelList) else [model])
        if all(getattr(member, "input_transform", None) is None for member in members):
            raise
        bare: list[Any] = copy.deepcopy(members)
        called: list[nn.Module] = []
        for member in bare:
            member.eval()  # in evaluation mode, BoTorch stores the transformed data
            transform = getattr(member, "input_transform", None)
            called += [nn.Identity() if transform is None else transform] * member.num_outputs
            member.input_transform, member._has_transformed_inputs = None, False
        gps = [describe(member) for member in bare]
        return Outputs(gps) if isinstance(model, ModelList) else gps[0], called


def _with_members(gp: GP) -> GP:
    """Turn an ensemble, or outputs that are ensembles, into a batch: BoTorch's paths have an axis of members."""
    if isinstance(gp, Ensemble):
        return Batch(gp.models)
    if isinstance(gp, Outputs):
        counts = {len(model.models) for model in gp.models if isinstance(model, Ensemble)}
        if len(counts) > 1:
            raise ValueError(f"model: expected ensembles with the same number of members, got {sorted(counts)}")
        if counts:
            (count,) = counts
            each = [model.models if isinstance(model, Ensemble) else [model] * count for model in gp.models]
            return Batch([Outputs(row) for row in zip(*each, strict=True)])
    return gp
