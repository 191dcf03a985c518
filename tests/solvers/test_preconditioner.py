"""Preconditioners of low rank: their digits, and how much memory they may take."""

import torch

from examples import rand
from matheron import Sites
from matheron import kernels as K
from matheron.solvers import Auto, BlockState, KernelOperator, PCGState, preconditioner


def noises(n: int, noise: float) -> torch.Tensor:
    return torch.full((n,), noise, dtype=torch.float64)


def test_sums_over_many_rows_keep_the_digits_of_single_precision():
    operator = KernelOperator(K.RBF(3.0).to("cpu", torch.float32), Sites(rand(50, 1).float()), noises(50, 0.1).float())
    P = preconditioner.LowRank(operator, 4)
    P.Q, V = rand(50_000, 4).float(), rand(50_000, 3, seed=1).float()  # all of one sign: the partial sums are large
    exact = P.Q.double().mT @ V.double()
    error, plain = ((found.double() / exact - 1).abs().max() for found in (P._inner(V), P.Q.mT @ V))
    assert error < 3e-7, plain


def test_a_preconditioner_in_single_precision_inverts_what_it_stands_for():
    """Its largest eigenvalues are a million times its noise: more than single precision has digits for."""
    kernel, X, noise = K.Matern(1.5, 0.3).to("cpu", torch.float32), rand(1500, 1).float(), noises(1500, 1e-4).float()
    errors = {}
    for wide in (True, False):
        limit = 1e5 if wide else float("inf")
        P = preconditioner.LowRank(KernelOperator(kernel, Sites(X), noise), 40, wide_from=limit)
        F = P.Q.double() @ P.L.mT
        A = torch.eye(1500).double() + F @ F.mT  # P, with D^1/2 at both sides taken off
        V = torch.linalg.eigh(A).eigenvectors[:, -3:]
        assert P.wide == wide
        errors[wide] = float((A @ (P(V * P.root_D).double() * P.root_D) - V).norm(dim=0).max())
    assert errors[True] < 0.1 < errors[False]


def test_auto_takes_block_descent_where_memory_holds_no_useful_preconditioner(monkeypatch):
    """A rank of 5 sqrt(n) is what it takes: with 400 observations 100, of 3200 bytes each."""
    kernel, X, noise = K.RBF(0.5), rand(400, 2), noises(400, 0.1)
    for memory, kind in ((100 * 3200, PCGState), (100 * 3200 - 1, BlockState)):
        monkeypatch.setattr(preconditioner, "memory_of", lambda *_, memory=memory: memory)
        assert isinstance(Auto(memory=1).init(KernelOperator(kernel, Sites(X), noise)), kind)
