"""Tanimoto: k of sets, counts and other numbers, its random features, and Thompson sampling over a list."""

import math
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from torch import Tensor

import matheron
from examples import gen, rand, randn
from matheron import kernels as K
from standard import assert_moments, assert_unbiased


def sets(n: int, d: int = 30, seed: int = 0) -> Tensor:
    return (rand(n, d, seed=seed) < 0.3).double()


def counts(n: int, d: int = 30, seed: int = 0) -> Tensor:
    return (rand(n, d, seed=seed) * 4 - 2).clamp_min(0).ceil() * sets(n, d, seed + 7)


def numbers(n: int, d: int = 30, seed: int = 0) -> Tensor:
    return 10 ** (3 * randn(n, d, seed=seed)) * sets(n, d, seed + 7)


def formula(x: Tensor, z: Tensor) -> Tensor:
    """Point by point, in Python."""

    def one(a: list[float], b: list[float]) -> float:
        most = sum(map(max, a, b))
        return sum(map(min, a, b)) / most if most else 1.0

    return torch.tensor([[one(a, b) for b in z.tolist()] for a in x.tolist()], dtype=torch.float64)


POINTS = {"sets": sets, "counts": counts, "other numbers": numbers}


@pytest.mark.parametrize("kind", POINTS)
def test_values_are_the_formula_s_and_its_diagonal_is_one(kind):
    x, z = torch.cat([POINTS[kind](6), torch.zeros(1, 30)]), POINTS[kind](5, seed=1)
    z[0] = 0.0
    torch.testing.assert_close(K.Tanimoto()(x, z), formula(x, z))
    torch.testing.assert_close(K.Tanimoto()(x), formula(x, x))
    torch.testing.assert_close(K.Tanimoto().forward(x.expand(2, 7, 30), z)[1], formula(x, z))
    assert bool((K.Tanimoto().diag(x) == 1).all())


@pytest.mark.parametrize("kind", POINTS)
def test_features_are_unbiased_and_err_as_is_said(kind):
    x = torch.cat([POINTS[kind](5), 2 * POINTS[kind](1), torch.zeros(1, 30)])
    x[1] = x[0] + POINTS[kind](1, seed=3)[0]  # points that have much in common
    ell, draws = 32, 2000
    prior = matheron.draw_prior(K.Tanimoto(), draws, input_dim=30, num_features=ell, paths_per_basis=1, seed=0).prior
    Phi = prior.features(x)  # [g, n, ell]
    error = Phi @ Phi.mT - formula(x, x)
    assert_unbiased(error)
    said = (1 - formula(x, x).square()) / ell
    torch.testing.assert_close(error.square().mean(0), said, rtol=0.25, atol=1e-4)


@pytest.mark.parametrize("kind", POINTS)
def test_draws_have_the_posterior_s_law(kind):
    X, x, y = POINTS[kind](12), torch.cat([POINTS[kind](4, seed=5), POINTS[kind](12)[:2]]), randn(12)
    gp = matheron.ExactGP(1.5 * K.Tanimoto(), X, y, 0.1)
    paths = matheron.draw(gp, 4000, num_features=256, paths_per_basis=8, generator=gen())
    G = torch.linalg.solve(1.5 * formula(X, X) + 0.1 * torch.eye(12), 1.5 * formula(X, x))
    assert_moments(paths(x), G.mT @ y, 1.5 * formula(x, x) - 1.5 * formula(x, X) @ G, basis_error=0.03)
    assert paths.prior.features.description == "256 plain features of Tanimoto"
    given = paths[:5].condition_on(x[:1], [3.0], noise=0.0)
    torch.testing.assert_close(given(x[:1]), torch.full((5, 1), 3.0).double())
    torch.testing.assert_close(paths.float()(x.float()).double(), paths(x), rtol=1e-4, atol=1e-4)


def test_draws_are_saved_with_their_hashes(tmp_path):
    gp = matheron.ExactGP(K.Tanimoto(), counts(9), randn(9), 0.1)
    paths = matheron.draw(gp, 4, num_features=64, seed=0)
    paths.save(tmp_path / "f")
    assert torch.equal(matheron.load(tmp_path / "f")(counts(5, seed=2)), paths(counts(5, seed=2)))


@pytest.mark.slow
def test_products_and_sums_with_other_columns_have_the_posterior_s_law():
    bits = list(range(30))
    kernel = K.Tanimoto().on(bits) * K.RBF(0.5).on([30]) + 0.5 * K.RBF(0.7).on([30])
    X, x, y = torch.cat([sets(12), rand(12, 1)], 1), torch.cat([sets(5, seed=5), rand(5, 1, seed=2)], 1), randn(12)

    def k(a: Tensor, b: Tensor) -> Tensor:
        r2 = (a[:, None, 30] - b[None, :, 30]).square()
        return formula(a[:, :30], b[:, :30]) * torch.exp(-2 * r2) + 0.5 * torch.exp(-r2 / 0.98)

    paths = matheron.draw(matheron.ExactGP(kernel, X, y, 0.1), 4000, num_features=384, paths_per_basis=8, seed=0)
    G = torch.linalg.solve(k(X, X) + 0.1 * torch.eye(12), k(X, x))
    assert_moments(paths(x), G.mT @ y, k(x, x) - k(x, X) @ G, basis_error=0.03)


def test_fit_finds_the_scale_and_leaves_fingerprints_as_they_are():
    X = counts(80, 40)
    y = 5.0 + torch.linalg.cholesky(9.0 * formula(X, X) + 0.01 * torch.eye(80)) @ randn(80)
    gp = matheron.fit(1.0 * K.Tanimoto(), X, y, seed=0)
    torch.testing.assert_close(gp.train_inputs, X)
    assert 4.0 < matheron.summary(gp).rows["Tanimoto.outputscale"] < 20.0


def test_what_has_no_meaning_is_refused():
    with pytest.raises(ValueError, match=r"Tanimoto: expected numbers >= 0, got a smallest of -1"):
        K.Tanimoto()([[-1.0, 2.0]])
    paths = matheron.draw_prior(K.Tanimoto(), 2, input_dim=30, num_features=8, seed=0)
    with pytest.raises(TypeError, match="has no gradient; choose from a list of them with"):
        paths.value_and_grad(sets(3))


LISTS: dict[str, Any] = {
    "an array of bytes": lambda x: x.numpy().astype(np.uint8),
    "booleans": lambda x: x.bool(),
    "floats": lambda x: x,
    "a sparse matrix": lambda x: scipy.sparse.csr_matrix(x.numpy()),
}


@pytest.mark.parametrize("kind", LISTS)
@pytest.mark.parametrize("maximize", [False, True])
def test_the_best_of_a_list_is_that_of_all_its_values(kind, maximize):
    candidates = sets(500)
    gp = matheron.ExactGP(K.Tanimoto(), candidates[:40], randn(40), 0.1)
    paths = matheron.draw(gp, 12, num_features=64, seed=0)
    values = paths(candidates) * (-1 if maximize else 1)
    exclude = torch.arange(40)
    found = matheron.thompson.best_of(
        paths, LISTS[kind](candidates), maximize=maximize, distinct=False, exclude=exclude, block_size=64
    )
    assert found.index.tolist() == (values[:, 40:].argmin(1) + 40).tolist()
    torch.testing.assert_close(found.value, paths(candidates)[torch.arange(12), found.index])


def test_no_candidate_is_chosen_twice_and_each_function_has_the_best_that_is_left():
    candidates, paths = sets(30), matheron.draw_prior(K.Tanimoto(), 20, input_dim=30, num_features=4, seed=0)
    found = matheron.thompson.best_of(paths, candidates, block_size=7)
    values, taken = paths(candidates), []
    for i, j in enumerate(found.index.tolist()):
        free = [k for k in range(30) if k not in taken]
        assert j in free and math.isclose(values[i, j], values[i, free].min())
        taken.append(j)
    every = matheron.thompson.best_of(paths[:1], candidates, distinct=False, exclude=[j for j in range(30) if j != 17])
    assert every.index.tolist() == [17]


def test_what_is_excluded_may_be_a_mask_and_is_not_taken_in_place_of_undefined_values():
    best_of, paths = matheron.thompson.best_of, matheron.draw_prior(K.RBF(0.3), 4, input_dim=1, seed=0)
    x = torch.rand(30, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    evaluated = torch.arange(30) % 2 == 0
    expected = best_of(paths, x, exclude=range(0, 30, 2)).index
    for mask in (evaluated, evaluated.numpy()):
        assert torch.equal(best_of(paths, x, exclude=mask).index, expected)
    nowhere = (-1 - paths.square()).log()
    assert not bool(evaluated[best_of(nowhere, x, exclude=evaluated).index].any())
    with pytest.raises(ValueError, match="candidates: expected at least 4 that are not excluded, got 0"):
        best_of(paths, x, exclude=torch.ones(30, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"exclude: expected numbers of candidates from 0 to 29, got \[1.5\]"):
        best_of(paths, x, exclude=[1.5])  # type: ignore[list-item]


def test_lists_that_do_not_fit_are_refused():
    paths = matheron.draw_prior(K.Tanimoto(), 4, input_dim=30, num_features=4, seed=0)
    with pytest.raises(ValueError, match="candidates: expected 30 columns, got 29"):
        matheron.thompson.best_of(paths, sets(9, 29))
    with pytest.raises(ValueError, match=r"candidates: expected at least 4 that are not excluded, got 3"):
        matheron.thompson.best_of(paths, sets(9), exclude=range(6))
    with pytest.raises(ValueError, match="exclude: expected numbers of candidates from 0 to 8"):
        matheron.thompson.best_of(paths, sets(9), exclude=[9])
    with pytest.raises(ValueError, match=r"candidates: expected points \[n, d\], got shape \[30\]"):
        matheron.thompson.best_of(paths, sets(1)[0])
    with pytest.raises(ValueError, match=r"functions: expected one output, got 2; give one of them"):
        matheron.thompson.best_of(matheron.stack([paths, paths]), sets(9))


def test_error_bars_of_the_features_shrink_with_their_number():
    x = sets(20)
    chance = [K.check_features(K.Tanimoto(), x, ell).chance for ell in (64, 1024)]
    assert math.isclose(chance[0] / chance[1], 4.0, rel_tol=0.2)
