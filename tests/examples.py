"""Small models and paths of every layout, for the identities that all must satisfy."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from matheron import ExactGP, Paths, SparseGP, draw, draw_prior
from matheron import kernels as K
from matheron.models.means import LinearMean
from matheron.models.transforms import Affine


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=gen(seed), dtype=torch.float64)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=gen(seed), dtype=torch.float64)


COMPOSITE = K.RBF([0.4, 0.7]) * K.Linear() + 0.5 * K.Matern(2.5, 0.6).on(1) + K.Constant(0.3) + K.Periodic(1.0, 0.8)
B2 = torch.tensor([[1.0, 0.8], [0.8, 1.5]], dtype=torch.float64)
COUPLED = K.Coregional(K.RBF(0.5), B2) + K.Coregional(K.Matern(2.5, 0.8), torch.eye(2)) + 0.3 * K.RBF(1.0)
TASKS = [0, 1, 1, 0, 1]


def wave(x: Tensor) -> Tensor:
    """A mean that no registry knows."""
    return (3 * x[..., 0]).sin() + x[..., 1].square()


def _exact(kernel: K.Kernel, noise: Any, **settings: Any) -> ExactGP:
    return ExactGP(kernel, rand(5, 2, seed=1), randn(5, seed=2), noise, **settings)


def _sparse(kernel: K.Kernel, **settings: Any) -> SparseGP:
    return SparseGP(kernel, rand(5, 2, seed=1), randn(5, seed=2), 0.4 * randn(5, 5, seed=3), **settings)


@cache
def _models() -> dict[str, Any]:
    noises = torch.tensor([0.0, 0.1, 0.3, 0.0, 0.2], dtype=torch.float64)
    return {
        "exact": _exact(K.Matern(2.5, 0.5), 0.1),
        "exact, composite": _exact(COMPOSITE, noises, mean=LinearMean([1.0, -2.0], 0.5)),
        "exact, callable mean": _exact(K.RBF(0.5), 0.05, mean=wave),
        "exact, transforms": _exact(
            K.Matern(1.5, 0.5),
            0.1,
            mean=0.3,
            input_transform=Affine([2.0, -0.5], [0.1, 1.0]),
            output_transform=Affine(3.0, -1.0),
        ),
        "exact, coupled": _exact(COUPLED, 0.1, mean=[0.5, -1.0], tasks=TASKS),
        "sparse": _sparse(K.Matern(2.5, 0.5)),
        "sparse, whitened, composite": _sparse(COMPOSITE, whitened=True, jitter=1e-3, mean=1.0),
        "sparse, coupled": _sparse(COUPLED, whitened=True, mean=[0.5, -1.0], tasks=TASKS),
    }


MODELS = list(_models())
# How many paths share a basis: the prior's sums are taken in another way for each.
LAYOUTS = {"one basis": None, "several bases": 2, "a basis each": 1}


def model(name: str) -> Any:
    return _models()[name]


def paths_of(name: str, num_paths: int = 5, *, layout: str = "several bases", seed: int = 7, **settings: Any) -> Paths:
    """Paths of a model, or of a prior where the name is "prior"."""
    settings = dict(num_features=24, paths_per_basis=LAYOUTS[layout], generator=gen(seed)) | settings
    if name == "prior":
        return draw_prior(COMPOSITE, num_paths, input_dim=2, **settings)
    return draw(model(name), num_paths, **settings)


ALL = ["prior", *MODELS]
