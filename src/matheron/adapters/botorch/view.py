"""PathModel gives paths the interface of a deterministic BoTorch model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from botorch.models.deterministic import DeterministicModel, GenericDeterministicModel
from torch import Tensor

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
