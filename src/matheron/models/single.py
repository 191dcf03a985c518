"""ExactGP: an immutable snapshot of a model with all that paths need, and the base that other models share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from ..core.checks import ArrayLike, Names, as_names, many
from ..core.functionals import Functionals, Observed
from ..core.saving import save
from ..core.value import Json, Value
from ..kernels import Kernel
from ..kernels.own import as_kernel
from .means import ConstantMean, LinearMean, Mean, MeanLike, as_mean
from .observations import as_observations
from .observed_functionals import averaged_by, check_smooth, names_of_inputs
from .transforms import Transform


class Snapshot(Value):
    """Base of snapshots of models: a Value with copies of the model's tensors and parts. Functions are drawn from it;
    an ExactGP can be saved."""

    fields = ("input_names",)
    saveable = False

    input_names: Names
    kernel: Kernel
    mean: Mean
    sites: Observed
    input_transform: Transform | None
    output_transform: Transform | None

    def __init__(
        self,
        kernel: Kernel,
        mean: Mean,
        sites: Observed,
        input_transform: Transform | None,
        output_transform: Transform | None,
        input_names: Names,
    ) -> None:
        # Tensors are cloned, because the caller may write into them. Clones stay in the graph of their originals.
        super().__init__(kernel=kernel, mean=mean, sites=sites.mapped(torch.clone))
        self.input_names = input_names
        self.register_module("input_transform", input_transform)
        self.register_module("output_transform", output_transform)

    @classmethod
    def read_fields(cls, fields: dict[str, Json]) -> dict[str, Json]:
        return fields | {"input_names": as_names(fields.get("input_names"))}

    def check(self) -> None:
        as_names(self.input_names, self.input_dim)

    @property
    def centres(self) -> Tensor:
        """The points `[n, d]` that the update's basis functions k(., z) are centred at: data, or inducing points."""
        return self.sites.points

    @property
    def tasks(self) -> Tensor | None:
        """The output that each centre is of, `[n]`; None for one output."""
        return self.sites.outputs

    @property
    def input_dim(self) -> int:
        """The number of coordinates of a user's points. An input transform may map them to points of more or fewer
        coordinates."""
        d = self.sites.points.shape[1]
        return d if self.input_transform is None else self.input_transform.input_dim(d)

    @property
    def num_outputs(self) -> int:
        return self.kernel.num_outputs


class ExactGP(Snapshot):
    """A Gaussian process prior conditioned on observations y = f(X) + eps, eps ~ N(0, noise).

    Args:
        kernel: a `matheron.kernels` kernel.
        X: training inputs `[n, d]`. The names of a table's columns are kept as `input_names`: points that are given as
            a table later must have the same columns in the same order. What is observed other than values is given by
            functionals of `matheron.observe`, such as `observe.gradient(X)`: one, or a list of several.
        y: training targets `[n]`; for a kernel of t outputs `[n, t]` (every output at every point), or `[n]` with
            `tasks`. For a list of functionals, a list of their targets, or one after another.
        noise: variance of the observation noise, one number or one per observation; 0 is allowed. For a list of
            functionals, also a list.
        mean: prior mean, a number (or one per output) or any callable of points.
        tasks: which output each observation is of, `[n]` whole numbers.
        input_transform, output_transform: `matheron.transforms` between a user's space and the model's, in which X,
            y and noise are given: paths are called with a user's points and return values in a user's units.

    >>> import matheron
    >>> from matheron import kernels
    >>> matheron.ExactGP(kernels.RBF(0.3), X=[[0.0], [0.5], [1.0]], y=[0.0, 1.0, 0.0], noise=1e-4)
    ExactGP(RBF(0.3), 3 observations in 1 dimension)
    """

    saveable = True

    def __init__(
        self,
        kernel: Kernel,
        X: ArrayLike | Functionals | Sequence[Functionals],
        y: ArrayLike | Sequence[ArrayLike],
        noise: ArrayLike | Sequence[ArrayLike],
        mean: MeanLike = 0.0,
        tasks: ArrayLike | None = None,
        *,
        input_transform: Transform | None = None,
        output_transform: Transform | None = None,
    ) -> None:
        kernel = as_kernel(kernel)
        t, names = kernel.num_outputs, names_of_inputs(X)
        sites, y, noise = as_observations(X, y, noise, tasks, t, averaged=averaged_by(kernel, mean))
        if len(sites) < 1:
            raise ValueError("X: expected at least one observation; for none use matheron.draw_prior(kernel, ...)")
        kernel.terms(sites.points.shape[1])  # raises an error if the kernel does not fit the points
        check_smooth(kernel, sites)
        super().__init__(kernel, mean_beside(mean, sites.points, t), sites, input_transform, output_transform, names)
        for name, value in dict(train_targets=y, noise=noise).items():
            self.register_buffer(name, value.clone())

    train_targets: Tensor
    noise: Tensor

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a safetensors file, from which `matheron.load` reads it."""
        save(self, path)

    @property
    def train_inputs(self) -> Tensor:
        """X `[n, d]`; TypeError where functionals were observed, which `sites` has."""
        if isinstance(self.sites, Functionals):
            raise TypeError(
                "this model observes functionals (derivatives, sums or averages), and has no training inputs [n, d] "
                "with a value each; model.sites has the functionals. What was called is for models of values alone"
            )
        return self.sites.points

    @property
    def num_data(self) -> int:
        return len(self.sites)

    def __repr__(self) -> str:
        data = many(self.num_data, "observation")
        return f"ExactGP({self.kernel!r}, {data} in {many(self.input_dim, 'dimension')})"


def mean_beside(mean: MeanLike, X: Tensor, num_outputs: int) -> Mean:
    """Convert a mean to a `Mean`, and check that it has one output, or as many as the kernel. The outputs of a function
    are checked when paths are drawn."""
    mean = as_mean(mean)
    if isinstance(mean, ConstantMean | LinearMean):
        dims = mean.weights.shape[-1] if isinstance(mean, LinearMean) else X.shape[1]
        if dims != X.shape[1]:
            raise ValueError(f"mean: expected weights [{X.shape[1]}] for points in as many dimensions, got {dims}")
        outputs = mean.to(X.device, X.dtype)(X[:1]).shape[-1]
        if outputs not in (1, num_outputs):
            raise ValueError(f"mean: expected a number, or one per output ({num_outputs}), got {outputs} of them")
    return mean


Single = TypeVar("Single", bound=Snapshot)


def cast_model(gp: Single, dtype: torch.dtype | None, device: torch.device | str | None, detach: bool) -> Single:
    """The snapshot in the paths' dtype, on their device. With `detach` it shares nothing with the model.

    The kernel stays in float64, for its features.
    """
    gp = gp.owned() if detach else gp
    X = gp.sites.points
    new = gp.to(device or X.device, dtype or X.dtype)
    new._modules["kernel"] = gp.kernel
    return new
