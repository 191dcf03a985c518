"""How accurate a prior must be: its error counts against what the data leave of the variance."""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels import Kernel

# Points at which the posterior variance is estimated, and data that each of them is given: the nearest ones.
_PLACES, _NEIGHBOURS = 32, 128
# Without data: paths drawn from a prior may be conditioned later.
_UNKNOWN = 0.01


@torch.no_grad()
def posterior_scale(kernel: Kernel, X: Tensor | None, noise: Tensor | None) -> float:
    """A typical posterior variance between the data X `[n, d]`, whose noise has variances `[n]`.

    An average over places in the data's bounding box, each given its nearest data: local kriging, at a cost linear in
    n. Without data, a hundredth of the variance.
    """
    kernel = kernel.to("cpu", torch.float64).owned()
    plain = [k for B, k in kernel.coupled()]
    sizes = [1.0 if B is None else float(B.diagonal().max()) for B, _ in kernel.coupled()]
    origin = torch.zeros(1, 1 if X is None else X.shape[1], dtype=torch.float64)
    if X is None or noise is None or len(X) == 0:
        return _UNKNOWN * sum(s * _stationary_variance(k, origin.shape[1]) for s, k in zip(sizes, plain, strict=True))
    X, noise = X.detach().double().cpu(), noise.detach().double().cpu().expand(len(X))
    generator = torch.Generator().manual_seed(0)
    lower, upper = X.aminmax(dim=0)
    places = lower + (upper - lower) * torch.rand(_PLACES, X.shape[1], generator=generator, dtype=torch.float64)
    scale = (upper - lower).clamp_min(1e-300)
    count = min(_NEIGHBOURS, len(X))
    near = torch.cdist(places / scale, X / scale).topk(count, largest=False).indices  # [p, k]
    Z = X[near]  # [p, k, d]
    K = sum(s * k.forward(Z, Z) for s, k in zip(sizes, plain, strict=True))  # [p, k, k]
    k_p = sum(s * k.forward(places[:, None], Z) for s, k in zip(sizes, plain, strict=True))  # [p, 1, k]
    v = sum(s * k.diag(places) for s, k in zip(sizes, plain, strict=True))  # [p]
    assert isinstance(K, Tensor) and isinstance(k_p, Tensor) and isinstance(v, Tensor)
    jitter = 1e-10 * v.mean() + noise[near]
    L = torch.linalg.cholesky_ex(K + jitter.diag_embed()).L
    explained = torch.linalg.solve_triangular(L, k_p.mT, upper=False).square().sum((-2, -1))
    left = torch.nan_to_num(v - explained, nan=0.0).clamp_min(1e-10 * v)
    return float(left.mean())


def _stationary_variance(kernel: Kernel, input_dim: int) -> float:
    try:
        terms = kernel.terms(input_dim)
    except ValueError:
        return 1.0
    return sum(float(t.variance) for t in terms if t.stationary and not t.forms)
