"""SparseGP: a frozen snapshot of a sparse model."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..core.checks import ArrayLike, as_points, as_tensor, many, names_of, positive
from ..core.sites import Sites, as_tasks
from ..kernels import Kernel
from ..kernels.own import as_kernel
from .means import MeanLike
from .single import Snapshot, mean_beside
from .transforms import Transform

SampleU = Callable[[int, torch.Generator], Tensor]


class SparseGP(Snapshot):
    """A sparse Gaussian process: inducing points Z and a distribution q(u) of the function's values there.

    Args:
        kernel: a `matheron.kernels` kernel.
        Z: inducing points `[m, d]`.
        q_mean: mean of q(u), `[m]`.
        q_scale_tril: any square root `[m, m]` of q(u)'s covariance, standard deviations `[m]`, or None for a point
            mass.
        mean: prior mean, as for ExactGP.
        whitened: False: u = f(Z), the mean function included. True: f(Z) = mean(Z) + chol(K_mm) u.
        jitter: K_mm means K_mm + jitter I throughout.
        sample_u: instead of q_mean and q_scale_tril, any q(u): a function (num_paths, generator) -> u `[num_paths, m]`.
        tasks: for a kernel of several outputs, which output each inducing point is of.
        input_transform, output_transform: as for ExactGP.

    >>> import matheron
    >>> from matheron import kernels
    >>> matheron.SparseGP(kernels.RBF(0.3), Z=[[0.0], [1.0]], q_mean=[0.0, 1.0], q_scale_tril=[0.1, 0.1])
    SparseGP(RBF(0.3), 2 inducing points in 1 dimension)
    """

    def __init__(
        self,
        kernel: Kernel,
        Z: ArrayLike,
        q_mean: ArrayLike | None = None,
        q_scale_tril: ArrayLike | None = None,
        mean: MeanLike = 0.0,
        whitened: bool = False,
        jitter: float = 0.0,
        sample_u: SampleU | None = None,
        tasks: ArrayLike | None = None,
        *,
        input_transform: Transform | None = None,
        output_transform: Transform | None = None,
    ) -> None:
        kernel = as_kernel(kernel)
        names, Z = names_of(Z), as_points(Z, "Z")
        m = Z.shape[0]
        if m < 1:
            raise ValueError("Z: expected at least one inducing point")
        if (q_mean is None) == (sample_u is None):
            raise ValueError("expected either q_mean (with q_scale_tril), or sample_u, a function that draws u")
        if sample_u is not None and (q_scale_tril is not None or not callable(sample_u)):
            raise ValueError(
                "sample_u: expected a function (num_paths, generator) -> [num_paths, m], and no q_scale_tril"
            )
        if q_mean is not None:
            q_mean = as_tensor(q_mean, "q_mean", like=Z)
            if q_mean.shape != (m,):
                raise ValueError(f"q_mean: expected [{m}], one per row of Z, got {list(q_mean.shape)}")
        if q_scale_tril is not None:
            q_scale_tril = as_tensor(q_scale_tril, "q_scale_tril", like=Z)
            if q_scale_tril.shape not in ((m,), (m, m)):
                raise ValueError(f"q_scale_tril: expected [{m}, {m}] or [{m}], got {list(q_scale_tril.shape)}")
        sites = Sites(Z, as_tasks(tasks, m, kernel.num_outputs))
        kernel.terms(Z.shape[1])
        mean = mean_beside(mean, Z, kernel.num_outputs)
        super().__init__(kernel, mean, sites, input_transform, output_transform, names)
        for name, value in dict(q_mean=q_mean, q_scale_tril=q_scale_tril).items():
            self.register_buffer(name, None if value is None else value.clone())
        # The function is in a tuple. If it is a module, it is then no submodule, and its parameters do not move with
        # the snapshot.
        self._sample_u = (sample_u,)
        self.whitened = bool(whitened)
        self.jitter = float(positive(jitter, "jitter", zero=True, max_ndim=0))

    q_mean: Tensor | None
    q_scale_tril: Tensor | None

    @property
    def inducing_points(self) -> Tensor:
        """Z `[m, d]`."""
        return self.sites.points

    @property
    def sample_u(self) -> SampleU | None:
        return self._sample_u[0]

    @property
    def num_inducing(self) -> int:
        return len(self.sites)

    def __repr__(self) -> str:
        points = many(self.num_inducing, "inducing point")
        return f"SparseGP({self.kernel!r}, {points} in {many(self.input_dim, 'dimension')})"
