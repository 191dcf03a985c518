"""Frame: a kernel of one output at a model's points, which are split into inputs and tasks."""

# pyright: reportMissingImports=false

from __future__ import annotations

from dataclasses import dataclass

import gpflow
import numpy as np
import torch

from ...core.sites import Sites
from ...kernels import Kernel, coupled_covariance
from ...models import SparseGP
from ...models.means import Mean
from ..refusal import BY_HAND
from .kernels import noise_variance, task_column, theirs, translate, value


@dataclass(frozen=True)
class Frame:
    """A translated kernel, and points as inputs `[m, d]` and, where it couples tasks, tasks `[m]`."""

    kernel: Kernel
    inputs: np.ndarray
    tasks: np.ndarray | None
    white: np.ndarray  # [m], what White kernels add to the points' variances
    task: int | None = None  # the column that the tasks were in

    def check(self, kernel: gpflow.kernels.Kernel, theirs: np.ndarray) -> None:
        """Their covariance of some points against ours: a user's subclass may have a formula of its own."""
        points = torch.from_numpy(self.inputs[: len(theirs)])
        i = None if self.tasks is None else torch.from_numpy(self.tasks[: len(theirs)])
        sites = Sites(points, i)
        ours = coupled_covariance(self.kernel, sites, sites).numpy()
        if not np.allclose(theirs, ours, rtol=1e-4, atol=1e-5 * np.abs(ours).max()):
            raise TypeError(
                f"kernel: {type(kernel).__name__} disagrees with its translation at the model's points: some part has "
                "a formula of its own (a subclass), or GPflow ignores its active_dims (inside a kernel of several "
                f"outputs with plain InducingPoints); {BY_HAND}"
            )

    def sparse(self, q_mu: np.ndarray, q_root: np.ndarray, mean: Mean, whiten: bool) -> SparseGP:
        """The model of q(u) = N(q_mu, q_root q_root^T), u less the mean function where it is not whitened.

        White noise at the inducing points counts as jitter.
        """
        white = self.white
        if not np.allclose(white, white[0], rtol=1e-9, atol=0):
            raise TypeError(
                f"kernel: expected White noise that is the same at all inducing points, got {white.min():.4g} to "
                f"{white.max():.4g}; {BY_HAND}"
            )
        jitter = gpflow.config.default_jitter() + float(white[0])
        if not whiten:
            i = None if self.tasks is None else torch.from_numpy(self.tasks)
            q_mu = q_mu + mean.at(Sites(torch.from_numpy(self.inputs), i)).numpy()
        return SparseGP(self.kernel, self.inputs, q_mu, q_root, mean, bool(whiten), jitter, tasks=self.tasks)


def framed(kernel: gpflow.kernels.Kernel, points: np.ndarray) -> Frame:
    """A kernel's translation at points `[m, columns]`, compared with the kernel itself there."""
    task = task_column(kernel, points.shape[1])
    inputs, tasks = points, None
    if task is not None:
        inputs, tasks = np.delete(points, task, axis=1), points[:, task].astype(int)
    frame = Frame(translate(kernel, points.shape[1], task), inputs, tasks, noise_variance(kernel, points), task)
    few = theirs(points[:8])
    frame.check(kernel, value(kernel(few, few)))
    return frame
