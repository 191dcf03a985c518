"""Frame holds a kernel of one output and a model's points, which are split into inputs and tasks."""

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
    """A translated kernel and its points: inputs `[m, d]` and, for a kernel that couples tasks, tasks `[m]`."""

    kernel: Kernel
    inputs: np.ndarray
    tasks: np.ndarray | None
    white: np.ndarray  # [m], the variances that White kernels add at the points
    task: int | None = None  # the column of task numbers

    def check(self, kernel: gpflow.kernels.Kernel, theirs: np.ndarray) -> None:
        """Check the translation at some points, because a user's subclass of a kernel may have another formula."""
        points = torch.from_numpy(self.inputs[: len(theirs)])
        i = None if self.tasks is None else torch.from_numpy(self.tasks[: len(theirs)])
        sites = Sites(points, i)
        ours = coupled_covariance(self.kernel, sites, sites).numpy()
        if not np.allclose(theirs, ours, rtol=1e-4, atol=1e-5 * np.abs(ours).max()):
            raise TypeError(
                f"kernel: the values of {type(kernel).__name__} at the model's points differ from those of its "
                "translation: either a part of it is a subclass with its own formula, or GPflow ignores active_dims "
                f"(it does in a kernel of several outputs with plain InducingPoints); {BY_HAND}"
            )

    def sparse(self, q_mu: np.ndarray, q_root: np.ndarray, mean: Mean, whiten: bool) -> SparseGP:
        """Return the sparse model with q(u) = N(q_mu, q_root q_root^T).

        If u is not whitened, it is f(Z) minus the mean function. White noise at the inducing points becomes jitter.
        """
        white = self.white
        if not np.allclose(white, white[0], rtol=1e-9, atol=0):
            raise TypeError(
                f"kernel: expected the same White noise at all inducing points, got {white.min():.4g} to "
                f"{white.max():.4g}; {BY_HAND}"
            )
        jitter = gpflow.config.default_jitter() + float(white[0])
        if not whiten:
            i = None if self.tasks is None else torch.from_numpy(self.tasks)
            q_mu = q_mu + mean.at(Sites(torch.from_numpy(self.inputs), i)).numpy()
        return SparseGP(self.kernel, self.inputs, q_mu, q_root, mean, bool(whiten), jitter, tasks=self.tasks)


def framed(kernel: gpflow.kernels.Kernel, points: np.ndarray) -> Frame:
    """Translate a kernel, and check the translation at points `[m, columns]`."""
    task = task_column(kernel, points.shape[1])
    inputs, tasks = points, None
    if task is not None:
        inputs, tasks = np.delete(points, task, axis=1), points[:, task].astype(int)
    frame = Frame(translate(kernel, points.shape[1], task), inputs, tasks, noise_variance(kernel, points), task)
    few = theirs(points[:8])
    frame.check(kernel, value(kernel(few, few)))
    return frame
