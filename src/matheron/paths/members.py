"""Paths of several models, held together."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..value import Parts, Value
from .base import AbstractPaths


class OfMembers(Value):
    """Paths of several models over the same inputs: `members`, which agree on what is asked of the first."""

    saveable = False

    def __init__(self, members: Sequence[AbstractPaths]) -> None:
        super().__init__()
        if not members:
            raise ValueError("expected at least one model's paths, got none")
        dims = {member.input_dim for member in members}
        if len(dims) > 1:
            raise ValueError(f"expected models of one input dimension, got {sorted(dims)}")
        self.members = Parts(members)

    @property
    def num_paths(self) -> int:
        return self.members[0].num_paths

    @property
    def num_outputs(self) -> int:
        return self.members[0].num_outputs

    @property
    def input_dim(self) -> int:
        return self.members[0].input_dim

    @property
    def dtype(self) -> torch.dtype:
        return self.members[0].dtype

    @property
    def device(self) -> torch.device:
        return self.members[0].device

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.members)} models: {self.members[0]!r}, ...)"
