"""The paper's baseline for roll-outs (appendix C, equation 47): each value of a drift given all values before it.

At each step the current input joins the inducing points and the value drawn there joins the inducing values, exactly
but for a jitter. The prior covariance of inducing points and visited inputs is kept as the inverse of its Cholesky
factor, which grows by a row. The inducing covariance is kept as a root that is downdated. With m inducing points, step
t therefore costs O((m + t)^2), and T steps cost O((m + T)^3). With the inverse, a step is two products with a vector,
whose cost on a GPU is that of reading it. Triangular solves with one right-hand side took three to six times as long
there, and two to ten times on a CPU, where the growing factor is copied for each.

The paper's augmented q keeps the mean of u as it was. Conditioning u on the value just drawn moves its mean too, and
here it is moved: without that the law is wrong. `as_written=True` keeps the mean as the paper does, to show the size of
the error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from ..core.checks import Random, as_generator
from ..models import SparseGP
from .rollouts import captured


class IterativeDrift:
    """A drift for `rollout` that conditions on every input and value so far, with one GP for each state.

    It can be called `steps` times, and holds `num_paths * (m + steps)^2` numbers per state. With `as_written` the mean
    of u stays what it was, as in the paper's text; the law of later values is then wrong.

    >>> import torch, matheron
    >>> from matheron import kernels
    >>> from matheron.dynamics import IterativeDrift
    >>> gp = matheron.SparseGP(kernels.RBF(), Z=[[0.0], [1.0]], q_mean=[-0.1, 0.1], q_scale_tril=[0.1, 0.1])
    >>> drift = IterativeDrift([gp], num_paths=3, steps=10)
    >>> matheron.rollout(drift, torch.zeros(3, 1, dtype=torch.float64), steps=10, dt=0.1).shape
    torch.Size([3, 11, 1])
    """

    def __init__(
        self,
        gps: Sequence[SparseGP],
        num_paths: int,
        steps: int,
        *,
        generator: Random = None,
        seed: int | None = None,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
        as_written: bool = False,
    ) -> None:
        device = torch.device(device)
        self.outputs = [_Conditional(gp, num_paths, steps, dtype, device, as_written) for gp in gps]
        g = as_generator(generator, seed)
        xi = torch.randn(steps, len(gps), num_paths, generator=g, device=g.device, dtype=torch.float64)
        self.xi = xi.to(device, dtype)  # [steps, d_s, s]
        # the number of the step, on the device, because a CUDA graph reads it
        self.at = torch.zeros(1, dtype=torch.int64, device=device)
        self.t = self.captured = 0
        # the number of steps that share a CUDA graph, which has room for all of them
        self.room = 64 if device.type == "cuda" else 1

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """A value of each drift at each path's own input, given all before: `[s, d] -> [s, d_s]`."""
        if self.t == len(self.xi):
            raise ValueError(f"IterativeDrift: expected {self.t} calls at most, got one more; make it for more steps")
        room = min((self.t // self.room + 1) * self.room, len(self.xi))
        self.t += 1
        if x.device.type != "cuda":
            return self._step(x, room)
        if room != self.captured:
            self._capture(x, room)
        self.x.copy_(x)
        self.graph.replay()
        return self.values.clone()

    def _step(self, x: Tensor, room: int) -> Tensor:
        """One step with room for this many visited points; points that are not visited yet have weight zero."""
        normals = self.xi.index_select(0, self.at)[0]  # [d_s, s]
        f = [output.draw(x, xi, self.at, room) for output, xi in zip(self.outputs, normals, strict=True)]
        self.at += 1
        return torch.stack(f, dim=1)

    def _capture(self, x: Tensor, room: int) -> None:
        """Record a step as a CUDA graph: one launch replaces about a hundred, whose overhead would dominate."""
        self.x = x.clone()
        state = [self.at, *(tensor for output in self.outputs for tensor in (output.V, output.f))]
        before = [tensor.clone() for tensor in state]
        self.graph, self.values = captured(lambda: self._step(self.x, room), warm_ups=1)
        self.captured = room
        for tensor, value in zip(state, before, strict=True):  # restore the state from before the capture
            tensor.copy_(value)
        for output in self.outputs:
            output.R.index_fill_(1, output.m + self.at, 0.0)


class _Conditional:
    """One output: the sparse posterior given the values drawn so far, which are at different inputs for each path."""

    # The jitter at visited points, relative to the prior variance. It is needed because these points lie close
    # together, and the factor is inverted.
    jitter: ClassVar = {torch.float64: 1e-8, torch.float32: 1e-4}

    def __init__(
        self, gp: SparseGP, s: int, steps: int, dtype: torch.dtype, device: torch.device, as_written: bool
    ) -> None:
        self.as_written = as_written
        if gp.q_mean is None or gp.num_outputs > 1:
            raise TypeError("IterativeDrift: expected a SparseGP of one output with a Gaussian q(u)")
        self.m, N = gp.num_inducing, gp.num_inducing + steps
        self.kernel, self.mean = gp.kernel.to(device, dtype), gp.mean.to(device, dtype)
        transforms = (gp.input_transform, gp.output_transform)
        self.inner, self.outer = (t if t is None else t.to(device, dtype) for t in transforms)
        Z = gp.inducing_points.to(device, dtype)
        eye = torch.eye(self.m, dtype=dtype, device=device)
        L = torch.linalg.cholesky(self.kernel.forward(Z, Z) + gp.jitter * eye)
        mu, root = _moments(gp, L, self.mean(Z)[:, 0])
        self.V = root.mT.repeat(s, 1, 1)  # [s, m, m], V^T V the covariance of f(Z)
        # lower triangular, such that R^T R is the inverse of K
        self.R = torch.zeros(s, N, N, dtype=dtype, device=device)
        self.R[:, : self.m, : self.m] = torch.linalg.solve_triangular(L, eye, upper=False)
        self.X = torch.zeros(s, N, Z.shape[1], dtype=dtype, device=device)
        self.X[:, : self.m] = Z
        # the mean of f(Z) and then the values drawn, both without the prior mean
        self.f = torch.zeros(s, N, dtype=dtype, device=device)
        self.f[:, : self.m] = mu

    def draw(self, x: Tensor, xi: Tensor, t: Tensor, room: int) -> Tensor:
        """Draw f(x) given all values so far, and add it to them as number t: `[s, d], [s], [1] -> [s]`."""
        m, n = self.m, self.m + room
        x = x if self.inner is None else self.inner(x)
        R, X, f = self.R[:, :n, :n], self.X[:, :n], self.f[:, :n]
        k = self.kernel.forward(x[:, None], X)  # [s, 1, n]
        a = times_transpose(k, R)  # [s, 1, n]
        b = times(a, R)  # [s, 1, n], K^-1 k
        prior = self.kernel.diag(x)  # [s]
        left = (prior - a.square().sum((1, 2))).clamp_min(0) + self.jitter[x.dtype] * prior
        spread = b[..., :m] @ self.V.mT  # [s, 1, m]
        variance = left + spread.square().sum((1, 2))
        deviation = variance.sqrt()
        value = (b[:, 0] * f).sum(1) + deviation * xi
        if not self.as_written:
            f[:, :m] += (spread @ self.V)[:, 0] * (xi / deviation)[:, None]  # Cov(u, f) / Var(f) (value - mean)
        self.V.copy_(downdate(self.V, spread[:, 0], left))
        pivot, row = left.rsqrt(), m + t
        R.index_copy_(1, row, b * -pivot[:, None, None])
        R.diagonal(dim1=1, dim2=2).index_copy_(1, row, pivot[:, None])
        X.index_copy_(1, row, x[:, None])
        f.index_copy_(1, row, value[:, None])
        value = value + self.mean(x[:, None])[:, 0, 0]
        return value if self.outer is None else self.outer(value[:, None])[:, 0]


def times_transpose(k: Tensor, R: Tensor, rows: int = 128) -> Tensor:
    """k R^T for a lower triangular R, skipping most of the zeros: `[s, 1, n], [s, n, n] -> [s, 1, n]`.

    R is read in blocks of rows, up to the diagonal only.
    """
    ends = [(i, min(i + rows, R.shape[1])) for i in range(0, R.shape[1], rows)]
    return torch.cat([k[..., :j] @ R[:, i:j, :j].mT for i, j in ends], dim=-1)


def times(a: Tensor, R: Tensor, rows: int = 128) -> Tensor:
    """a R for a lower triangular R, skipping most of the zeros."""
    return torch.cat([a[..., i:] @ R[:, i:, i : i + rows] for i in range(0, R.shape[1], rows)], dim=-1)


def downdate(V: Tensor, a: Tensor, left: Tensor) -> Tensor:
    """A root of V^T (I - a a^T / (left + a^T a)) V, the covariance of u = V^T xi given a^T xi + N(0, left).

    I - a a^T / (left + a^T a) = U U^T, where U is upper triangular with entries in closed form. Column j has
    sqrt(e_j / e_{j+1}) on the diagonal and -a_i a_j / sqrt(e_j e_{j+1}) above it, with e_j = left + sum_{i<j} a_i^2.
    U^T V costs O(m^2), by running sums. Nothing cancels, however small left > 0 is.

    `[s, m, m], [s, m], [s] -> [s, m, m]`
    """
    e = torch.cat([left[:, None], a.square()], dim=1).cumsum(1).sqrt()  # [s, m + 1], their roots
    before = (V * a[..., None]).cumsum(1)[:, :-1]  # [s, m - 1, m], sum_{k<j} a_k V_k at j > 0
    before = torch.nn.functional.pad(before, (0, 0, 1, 0))  # [s, m, m]
    return V * (e[:, :-1] / e[:, 1:])[..., None] - before * (a / (e[:, :-1] * e[:, 1:]))[..., None]


def _moments(gp: SparseGP, L: Tensor, prior_mean: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and a root of the covariance of f(Z) - mean(Z)."""
    assert gp.q_mean is not None
    mu, root = gp.q_mean.detach().to(L), gp.q_scale_tril
    root = torch.zeros_like(L) if root is None else root.detach().to(L)
    root = root.diag_embed() if root.ndim == 1 else root
    if gp.whitened:
        mu, root = L @ mu, L @ root
    else:
        mu = mu - prior_mean
    return mu, root
