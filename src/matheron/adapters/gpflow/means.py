"""Translation of GPflow's mean functions that are affine in x: x -> A x + b with A `[q, d]` and b `[q]`."""

# pyright: reportMissingImports=false

from __future__ import annotations

from functools import singledispatch

import numpy as np
from gpflow import mean_functions as gm

from ...models.means import ConstantMean, LinearMean, Mean
from ..refusal import refusal
from .kernels import value


@singledispatch
def affine(mean: object, input_dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Return A `[q, d]` and b `[q]` of a mean function x -> A x + b of q outputs; q = 1 stands for all outputs."""
    raise refusal("mean_function", mean, affine, "an ExactGP or a SparseGP takes any callable as its mean")


affine.register(gm.Zero, lambda mean, input_dim: (np.zeros((1, input_dim)), np.zeros(1)))
affine.register(gm.Identity, lambda mean, input_dim: (np.eye(input_dim), np.zeros(input_dim)))


@affine.register
def _(mean: gm.Constant, input_dim: int) -> tuple[np.ndarray, np.ndarray]:
    b = value(mean.c).reshape(-1)
    return np.zeros((len(b), input_dim)), b


@affine.register
def _(mean: gm.Linear, input_dim: int) -> tuple[np.ndarray, np.ndarray]:
    A, b = value(mean.A).T, value(mean.b).reshape(-1)
    q = max(len(A), len(b))
    return np.broadcast_to(A, (q, input_dim)), np.broadcast_to(b, (q,))


@affine.register
def _(mean: gm.Additive, input_dim: int) -> tuple[np.ndarray, np.ndarray]:
    (A1, b1), (A2, b2) = (affine(part, input_dim) for part in (mean.add_1, mean.add_2))
    return A1 + A2, b1 + b2


def of_outputs(mean: gm.MeanFunction, input_dim: int, num_outputs: int) -> tuple[np.ndarray, np.ndarray]:
    """Return A `[t, d]` and b `[t]` for a model of t outputs."""
    A, b = affine(mean, input_dim)
    return np.broadcast_to(A, (num_outputs, input_dim)), np.broadcast_to(b, (num_outputs,))


def one_each(mean: gm.MeanFunction, input_dim: int, num_outputs: int) -> list[Mean]:
    """Return one mean function for each of a model's outputs."""
    A, b = of_outputs(mean, input_dim, num_outputs)
    return [linear(A[i : i + 1], b[i : i + 1]) for i in range(num_outputs)]


def linear(A: np.ndarray, b: np.ndarray) -> Mean:
    """The mean x -> A x + b, with A `[t, d]` and b `[t]`."""
    return LinearMean(A.copy(), b.copy()) if A.any() else ConstantMean(b.copy())
