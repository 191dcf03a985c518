"""Weighted sums of basis functions: the same with and without a graph, in blocks, and with their gradients."""

import pytest
import torch
from torch import Tensor

from matheron import kernels as K
from matheron.core.arena import arena
from matheron.evaluate import Canonical, Cosines, Pairs, Products

D, SIZE = 3, 6


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def pairs(g: int):
    return Pairs(randn(g, SIZE // 2, D), randn(g, SIZE // 2, seed=1).abs())


def cosines(g: int):
    return Cosines(randn(g, SIZE, D), randn(g, SIZE, seed=1), randn(g, SIZE, seed=2).abs())


def monomials(g: int):
    return Products(randn(g, 2, SIZE, D + 1), randn(g, SIZE, seed=1).abs(), randn(D, seed=3))


def one_factor(g: int):
    return Products(randn(g, 1, SIZE, D + 1), randn(g, SIZE, seed=1).abs(), randn(D, seed=3))


def products(g: int):
    return Products(randn(g, 2, SIZE, D + 1), randn(g, SIZE, seed=1).abs(), randn(D, seed=3), cosines(g))


def canonical(g: int):
    return Canonical(K.Matern(1.5, 0.8) + K.Linear() * K.RBF(), randn(SIZE, D))


def by_hand(basis, x: Tensor) -> Tensor:
    """The basis functions at x `[B, n, d]`, written out."""
    if isinstance(basis, Canonical):
        return basis.kernel(x, basis.centres)
    if isinstance(basis, Products):
        whole = x + basis.origin[:, None]
        extended = torch.cat([whole, torch.ones(*whole.shape[:-1], 1).to(x)], dim=-1)
        value = torch.einsum(
            "gpcd,bnd->bpnc" if len(basis.origin) == 1 else "bpcd,bnd->bpnc", basis.projections, extended
        )
        return value.prod(1) * (1 if basis.fourier is None else by_hand(basis.fourier, x))
    phase = torch.einsum("gcd,bnd->bnc" if basis.num_bases == 1 else "bcd,bnd->bnc", basis.frequencies, x)
    if isinstance(basis, Pairs):
        return torch.cat([phase.cos(), phase.sin()], dim=-1)
    return (phase + basis.phases[:, None]).cos()


bases = pytest.mark.parametrize("build", [pairs, cosines, monomials, one_factor, products, canonical])
# one problem; several that share a basis; several with a basis each
problems = pytest.mark.parametrize(("B", "g"), [(1, 1), (3, 1), (3, 3)])


@bases
@problems
def test_values_are_the_basis_functions_and_the_sums_weigh_them(build, B, g):
    basis, x, W = build(g), randn(B, 5, D, seed=4), randn(B, 2, SIZE, seed=5)
    Phi = by_hand(basis, x)
    assert basis.size == SIZE and basis.num_bases == (1 if build is canonical else g)
    torch.testing.assert_close(basis.values(x), Phi)
    expected = torch.einsum("bnc,brc->brn", Phi, W)
    torch.testing.assert_close(basis.weighted(x, W), expected)
    torch.testing.assert_close(basis.sums(x, W, gradient=False), expected)
    with torch.no_grad(), arena():
        torch.testing.assert_close(basis.weighted(x, W), expected)


@bases
@problems
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_autograd_s(build, B, g, dtype):
    basis = build(g).to(dtype)
    x, W = randn(B, 5, D, seed=4).to(dtype).requires_grad_(), randn(B, 2, SIZE, seed=5).to(dtype)
    sums = basis.weighted(x, W)
    expected = torch.stack([torch.autograd.grad(sums[:, r].sum(), x, retain_graph=True)[0] for r in range(2)], dim=1)
    with torch.no_grad(), arena():
        value, gradient = basis.sums(x, W, gradient=True)
    tolerance = 1e-4 if dtype == torch.float32 else 1e-10
    torch.testing.assert_close(value, sums.detach(), rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(gradient, expected, rtol=tolerance, atol=tolerance)


@bases
def test_nothing_that_is_given_is_changed(build):
    basis, x, W = build(1), randn(1, 5, D, seed=4), randn(1, 2, SIZE, seed=5)
    before = [t.clone() for t in (x, W, *basis.buffers())]
    with torch.no_grad():
        basis.values(x)
        basis.weighted(x, W)
        basis.weighted_with_gradient(x, W)
    assert all(torch.equal(a, b) for a, b in zip(before, (x, W, *basis.buffers()), strict=True))


@bases
def test_versions_of_a_basis_are_selected(build):
    basis, x = build(3), randn(1, 5, D, seed=4)
    chosen = basis.select(torch.tensor([2, 0]))
    if build is canonical:
        assert chosen is basis
        return
    assert chosen.num_bases == 2 and basis.select(slice(1, 2)).num_bases == 1
    both = x.expand(3, -1, -1)
    torch.testing.assert_close(chosen.values(both[:2]), basis.values(both)[[2, 0]])
    torch.testing.assert_close(chosen.scales(), basis.scales()[[2, 0]])


@pytest.mark.parametrize("build", [pairs, cosines, products])
def test_gradients_reach_the_basis_itself(build):
    basis = build(1)
    x, W = randn(1, 5, D, seed=4), randn(1, 2, SIZE, seed=5)
    theta = (basis if build is not products else basis.fourier).frequencies.clone().requires_grad_()

    def sums(frequencies: Tensor) -> Tensor:
        new = basis.mapped(lambda b: frequencies if b.shape == theta.shape else b)
        return new.weighted(x, W)

    assert torch.autograd.gradcheck(sums, theta)
