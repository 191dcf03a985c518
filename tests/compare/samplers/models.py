"""Small models that the samplers' tests share."""

import torch

from matheron import ExactGP, SparseGP, kernels


def points(n, d=2, seed=0):
    return torch.rand(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def exact(n=12, d=2):
    X = points(n, d)
    noise = torch.linspace(0.01, 0.03, n, dtype=torch.float64)
    return ExactGP(kernels.Matern(2.5, 0.4), X, (3 * X).sin().sum(1), noise, mean=0.3)


def two_outputs(n=8):
    X = points(n)
    kernel = kernels.Coregional(kernels.RBF(0.3), [[1.0, 0.5], [0.5, 2.0]])
    kernel = kernel + kernels.Coregional(kernels.Matern(1.5, 0.5), [[1.0, 0.0], [0.0, 0.2]])
    return ExactGP(kernel, X, torch.stack([X.sum(1), -X.prod(1)], dim=1), 0.01, mean=[0.1, -0.2])


def sparse(whitened=False, jitter=1e-3, m=10):
    Z = points(m, seed=1)
    root = 0.3 * torch.eye(m, dtype=torch.float64) + 0.05 * points(m, m, seed=2).tril()
    return SparseGP(kernels.RBF(0.4), Z, (2 * Z).cos().sum(1), root, mean=0.2, whitened=whitened, jitter=jitter)


def q(gp):
    """Mean and root of q(u)."""
    assert gp.q_mean is not None and gp.q_scale_tril is not None
    return gp.q_mean, gp.q_scale_tril


MODELS = {
    "exact": exact,
    "two outputs": two_outputs,
    "sparse": sparse,
    "whitened": lambda: sparse(whitened=True),
}
