"""PathModel: paths as BoTorch takes its own, as a deterministic model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from botorch.models.deterministic import DeterministicModel, GenericDeterministicModel
from torch import Tensor

from ...paths import AbstractPaths, BatchPaths


class PathModel(DeterministicModel):
    """Paths as a BoTorch model, with the shapes of BoTorch's own MatheronPathModel.

    `model(X)` is `[*sample_shape, n, m]` at points `[n, d]` that all paths share. The batch of points `[..., n, d]` is
    broadcast with `sample_shape`, so that a path may have its own; what comes before that stays in front. Acquisition
    functions, `optimize_acqf`, `optimize_posterior_samples` and `MaxPosteriorSampling` take it.

    Args:
        paths: what `matheron.draw` returns. A batch of models has its axes after the samples'; paths of an ensemble are
            spread over its members, which have none.
        sample_shape: the paths' axes, `[num_paths]` where not given; `[]` for a single path, whose points may have any
            batch: what `optimize_acqf` needs.
    """

    def __init__(self, paths: AbstractPaths | BatchPaths, sample_shape: Sequence[int] | None = None) -> None:
        super().__init__()
        shape = torch.Size([paths.num_paths] if sample_shape is None else sample_shape)
        if shape.numel() != paths.num_paths:
            raise ValueError(f"sample_shape: expected {paths.num_paths} paths in all, got {list(shape)}")
        self.paths, self.sample_shape = paths, shape
        self._num_outputs = paths.num_outputs
        self._is_ensemble = len(shape) > 0

    @property
    def batch_shape(self) -> torch.Size:
        return self.sample_shape + self._models

    @property
    def _models(self) -> torch.Size:
        """The shape of a batch of models."""
        return torch.Size(getattr(self.paths, "batch_shape", []))

    def forward(self, X: Tensor) -> Tensor:
        """The paths at X, `[..., n, d] -> [..., n, m]`."""
        n, d = X.shape[-2:]
        own, s, b = self.batch_shape, len(self.sample_shape), len(self._models)
        try:
            lead = torch.broadcast_shapes(X.shape[:-2], own)
        except RuntimeError as error:
            raise ValueError(
                f"X: expected a batch that broadcasts with {list(own)}, the paths', got {list(X.shape)}; use "
                "X.unsqueeze(-3) for points that all paths share"
            ) from error
        e = len(lead) - len(own)
        if X.shape[e:-2].numel() == 1 or X.ndim - 2 <= e:  # shared points
            points = X.reshape(-1, d)  # [e n, d]
        else:  # a path's own: [e, s, b, n, d] -> [b, s, e n, d]
            order = (*range(e + s, e + s + b), *range(e, e + s), *range(e), e + s + b, e + s + b + 1)
            points = X.expand(lead + X.shape[-2:]).permute(order).reshape(*self._models, self.paths.num_paths, -1, d)
        f = self.paths(points).reshape(self._models + self.sample_shape + lead[:e] + (n, self.num_outputs))
        return f.permute(*range(b + s, b + s + e), *range(b, b + s), *range(b), b + s + e, b + s + e + 1)

    def subset_output(self, idcs: list[int]) -> DeterministicModel:
        """The model of some outputs, in the order asked."""
        outputs = [int(torch.arange(self.num_outputs)[i]) for i in idcs]
        return GenericDeterministicModel(
            lambda X: self(X)[..., outputs], num_outputs=len(outputs), batch_shape=self.batch_shape
        )
