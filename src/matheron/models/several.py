"""Outputs, Ensemble, Batch, SelectedOutputs: snapshots of several models, or of some outputs of one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..core.checks import Names, common_names
from ..core.value import Parts, Value
from .single import ExactGP
from .sparse import SparseGP


class _Several(Value):
    """Snapshots of several models over the same inputs."""

    saveable = False

    def __init__(self, models: Iterable[GP]) -> None:
        super().__init__()
        models = list(models)
        if not models:
            raise ValueError(f"{type(self).__name__}: expected at least one model, got none")
        for model in models:
            if not isinstance(model, GP):
                raise TypeError(
                    f"{type(self).__name__}: expected snapshots such as ExactGP, got {type(model).__name__}; "
                    "matheron.describe makes one of a model"
                )
        self.models = Parts(models)
        dims = {model.input_dim for model in self.models}
        if len(dims) > 1:
            raise ValueError(f"{type(self).__name__}: expected models of one input dimension, got {sorted(dims)}")
        common_names(self.models)

    @property
    def input_names(self) -> Names:
        """The names of the inputs' columns, where a model was made with a table."""
        return common_names(self.models)

    @property
    def input_dim(self) -> int:
        return self.models[0].input_dim

    @property
    def num_outputs(self) -> int:
        return self.models[0].num_outputs

    def __repr__(self) -> str:
        first = ", ".join(map(repr, list(self.models)[:3]))
        return f"{type(self).__name__}({first}{', ...' if len(self.models) > 3 else ''})"


class Outputs(_Several):
    """Independent models as outputs: values have a trailing axis, `[..., t]`.

    >>> import matheron
    >>> from matheron import kernels
    >>> gp = matheron.ExactGP(kernels.RBF(0.3), X=[[0.0], [1.0]], y=[0.0, 1.0], noise=1e-2)
    >>> matheron.draw(matheron.Outputs([gp, gp]), 8)([[0.5]]).shape
    torch.Size([8, 1, 2])
    """

    @property
    def num_outputs(self) -> int:
        return sum(model.num_outputs for model in self.models)


class Ensemble(_Several):
    """Models of the same data, such as MCMC samples of hyperparameters; paths are distributed over them.

    >>> import matheron
    >>> from matheron import kernels
    >>> gps = [matheron.ExactGP(kernels.RBF(s), X=[[0.0], [1.0]], y=[0.0, 1.0], noise=1e-2) for s in (0.3, 0.5)]
    >>> matheron.draw(matheron.Ensemble(gps), 8)([[0.5]]).shape
    torch.Size([8, 1])
    """


class Batch(_Several):
    """A batch of models: values have a leading axis, `[b, s, n]`.

    >>> import matheron
    >>> from matheron import kernels
    >>> gp = matheron.ExactGP(kernels.RBF(0.3), X=[[0.0], [1.0]], y=[0.0, 1.0], noise=1e-2)
    >>> matheron.draw(matheron.Batch([gp, gp]), 8)([[0.5]]).shape
    torch.Size([2, 8, 1])
    """

    def __init__(self, models: Iterable[GP], batch_shape: Sequence[int] | None = None) -> None:
        super().__init__(models)
        self.batch_shape = list(batch_shape or [len(self.models)])


class SelectedOutputs(Value):
    """Some outputs of a model that couples more outputs, such as the tasks that are of interest.

    >>> import matheron
    >>> from matheron import kernels
    >>> k = kernels.Coregional(kernels.RBF(0.3), [[1.0, 0.9], [0.9, 1.0]])
    >>> gp = matheron.ExactGP(k, X=[[0.0], [1.0]], y=[0.0, 1.0], noise=1e-2, tasks=[0, 1])
    >>> matheron.draw(matheron.SelectedOutputs(gp, [1]), 8)([[0.5]]).shape
    torch.Size([8, 1])
    """

    saveable = False

    def __init__(self, model: ExactGP | SparseGP, outputs: Sequence[int]) -> None:
        super().__init__()
        self.model, self.outputs = model, [int(i) for i in outputs]
        if not self.outputs or not all(0 <= i < model.num_outputs for i in self.outputs):
            raise ValueError(f"outputs: expected whole numbers below {model.num_outputs}, at least one, got {outputs}")

    @property
    def input_dim(self) -> int:
        return self.model.input_dim

    @property
    def input_names(self) -> Names:
        return self.model.input_names

    @property
    def num_outputs(self) -> int:
        return len(self.outputs)

    def __repr__(self) -> str:
        return f"SelectedOutputs({self.model!r}, {self.outputs} of {self.model.num_outputs})"


GP = ExactGP | SparseGP | Outputs | Ensemble | Batch | SelectedOutputs


def leaves(gp: GP) -> list[ExactGP | SparseGP]:
    """The exact and sparse models that a model consists of."""
    if isinstance(gp, _Several):
        return [leaf for model in gp.models for leaf in leaves(model)]
    return [gp.model if isinstance(gp, SelectedOutputs) else gp]
