"""Frame: a kernel of one output at a model's points, which are split into inputs and tasks."""

# pyright: reportMissingImports=false

from __future__ import annotations

import gpflow
import numpy as np
import torch

from ...gp import SparseGP
from ...kernels import Kernel, coupled_covariance
from ...means import Mean
from ..refusal import BY_HAND
from .kernels import noise_variance, task_column, theirs, translate, value
from .means import one_each, over_tasks


class Frame:
    """A translated kernel, and points `[m, columns]` as inputs `[m, d]` and, beside a Coregion kernel, tasks `[m]`."""

    def __init__(self, kernel: gpflow.kernels.Kernel, points: np.ndarray) -> None:
        self.columns = points.shape[1]
        self.task = task_column(kernel, self.columns)
        self.kernel = translate(kernel, self.columns, self.task)
        self.inputs, self.tasks = points, None
        if self.task is not None:
            self.inputs, self.tasks = np.delete(points, self.task, axis=1), points[:, self.task].astype(int)
        compare(kernel, value(kernel(theirs(points[:8]), theirs(points[:8]))), self.kernel, self.inputs[:8], self.tasks)
        self.white = noise_variance(kernel, points)  # [m]

    def means(self, mean_function: gpflow.mean_functions.MeanFunction, num_outputs: int) -> list[Mean]:
        """One mean for each of the model's outputs."""
        if self.task is None:
            return one_each(mean_function, self.columns, num_outputs)
        if num_outputs > 1:
            raise TypeError(f"model: expected one latent function beside a Coregion kernel, got {num_outputs}")
        return [over_tasks(mean_function, self.columns, self.kernel.num_outputs, self.task)]

    def sparse(self, q_mu: np.ndarray, q_root: np.ndarray, mean: Mean, whiten: bool) -> SparseGP:
        """The model of q(u) = N(q_mu, q_root q_root^T), u less the mean function where it is not whitened."""
        return sparse(self.kernel, self.inputs, self.tasks, q_mu, q_root, mean, whiten, self.white)


def sparse(
    kernel: Kernel,
    Z: np.ndarray,
    tasks: np.ndarray | None,
    q_mu: np.ndarray,
    q_root: np.ndarray,
    mean: Mean,
    whiten: bool,
    white: np.ndarray,
) -> SparseGP:
    """A SparseGP from GPflow's q(u), which is of f(Z) less the mean function; `white [m]` counts as jitter."""
    if not np.allclose(white, white[0], rtol=1e-9, atol=0):
        raise TypeError(
            f"kernel: expected White noise that is the same at all inducing points, got {white.min():.4g} to "
            f"{white.max():.4g}; {BY_HAND}"
        )
    jitter = gpflow.config.default_jitter() + float(white[0])
    q_mean = q_mu if whiten else q_mu + _at(mean, Z, tasks)
    return SparseGP(kernel, Z, q_mean, q_root, mean, bool(whiten), jitter, tasks=tasks)


def _at(mean: Mean, points: np.ndarray, tasks: np.ndarray | None) -> np.ndarray:
    """m(x) `[m]`, of each point's own task."""
    m = mean(torch.from_numpy(points)).numpy()  # [m, 1 or t]
    return m[np.arange(len(m)), 0 if tasks is None or m.shape[1] == 1 else tasks]


def compare(
    kernel: gpflow.kernels.Kernel, K_theirs: np.ndarray, ours: Kernel, x: np.ndarray, tasks: np.ndarray | None
) -> None:
    """Their covariance of some points against ours: a user's subclass may have a formula of its own."""
    points = torch.from_numpy(x)
    i = None if tasks is None else torch.from_numpy(tasks[: len(x)])
    K = coupled_covariance(ours, points, i, points, i).numpy()
    if not np.allclose(K_theirs, K, rtol=1e-4, atol=1e-5 * np.abs(K).max()):
        raise TypeError(
            f"kernel: {type(kernel).__name__} disagrees with its translation at the model's points: some part has a "
            "formula of its own (a subclass), or GPflow ignores its active_dims (inside a kernel of several outputs "
            f"with plain InducingPoints); {BY_HAND}"
        )
