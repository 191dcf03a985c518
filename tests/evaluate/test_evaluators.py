"""Evaluators: each takes some terms of a record, and the parts add up to the whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import matheron
from matheron import kernels as K
from matheron.evaluate import BLOCKS, Cosines, Evaluator, Float64Term, Points, Record, WeightedSum, evaluators

KERNEL = K.Matern(2.5, 0.4) + 0.5 * K.Linear() + K.RBF(0.3) * K.Linear()


def points(*shape: int) -> Tensor:
    return torch.rand(*shape, 2, generator=torch.Generator().manual_seed(4), dtype=torch.float64)


def drawn(s: int = 5, **settings: Any) -> matheron.Paths:
    X = points(9)
    gp = matheron.ExactGP(settings.pop("kernel", KERNEL), X, X.sum(1).sin(), noise=0.01, mean=0.3)
    paths = matheron.draw(gp, s, **{"num_features": 24, "features": "cosine", "seed": 1} | settings)
    assert isinstance(paths, matheron.Paths)
    return paths


class Toy(Evaluator):
    """Takes the terms of some kinds of bases, with the mean perhaps, and counts what it is asked."""

    kinds: tuple[type, ...]

    def __init__(self, kinds: tuple[type, ...] = (Cosines,), with_mean: bool = False) -> None:
        self.kinds, self.with_mean = kinds, with_mean
        self.asked: list[Points] = []
        self.calls: list[str] = []

    def take(self, record: Record, points: Points) -> tuple[Record | None, Record | None]:
        self.asked.append(points)
        mine = [t for t in record.terms if isinstance(t, WeightedSum) and isinstance(t.basis, self.kinds)]
        return record.parted(mine, self.with_mean) if mine and points != "traced" else (None, record)

    def values(self, record: Record, x: Tensor) -> Tensor:
        self.calls.append("values")
        return BLOCKS.values(record, x)

    def values_and_gradients(self, record: Record, x: Tensor, of: Tensor | None) -> tuple[Tensor, Tensor]:
        self.calls.append("gradients")
        return BLOCKS.values_and_gradients(record, x, of)

    def vjp(self, record: Record, x: Tensor, G: Tensor) -> Tensor:
        self.calls.append("vjp")
        return super().vjp(record, x, G)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Callable[[Evaluator], Evaluator]:
    """Register an evaluator for the length of a test."""

    def register(evaluator: Evaluator) -> Evaluator:
        monkeypatch.setattr(evaluators, "EVALUATORS", list(evaluators.EVALUATORS))
        evaluators.register(evaluator)
        return evaluator

    return register


def everything(paths: matheron.Paths) -> list[Tensor]:
    """Values and derivatives of every kind, at points of every kind."""
    found = []
    for x in (points(30), points(len(paths), 6)):
        tied = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(paths(tied).square().sum(), tied)
        (first,) = torch.autograd.grad(paths(tied).sum(), tied, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), tied)
        found += [paths(x), *paths.value_and_grad(x), slope, second]
    of = torch.tensor([-1, 0, 0])
    return [*found, *paths.value_and_grad(points(3), of=of), paths.mean(points(4))]


@pytest.mark.parametrize("with_mean", [False, True])
@pytest.mark.parametrize("s", [1, 5])
def test_parts_by_several_evaluators_add_up_to_the_whole(s, with_mean, registered):
    whole = everything(drawn(s))
    toy = registered(Toy(with_mean=with_mean))
    for got, expected in zip(everything(drawn(s)), whole, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)
    assert set(toy.calls) >= ({"values", "gradients", "vjp"} if s > 1 else {"values", "gradients"})


def test_an_evaluator_is_asked_once_for_each_kind_of_points(registered):
    toy = registered(Toy())
    paths = drawn()
    toy.asked.clear()
    for _ in range(3):
        paths(points(4))
        paths.value_and_grad(points(4))
        paths(points(5, 4))
        paths.value_and_grad(points(2), of=[0, 3])
        torch.func.vmap(lambda x: paths(x[None]))(points(4))
    assert sorted(toy.asked) == ["own", "shared", "traced"]
    paths.update.v.mul_(2.0)  # the record is made anew, and so is what each takes of it
    paths(points(4))
    assert sorted(toy.asked) == ["own", "shared", "shared", "traced"]


def test_what_one_takes_the_next_do_not_see(registered):
    first, second = registered(Toy()), registered(Toy((object,), with_mean=True))
    paths = drawn()
    chosen = paths.record.derived(evaluators._PARTS["shared"])
    assert [evaluator for evaluator, _ in chosen] == [first, second]  # and nothing is left for blocks
    mine, others = (record for _, record in chosen)
    kinds = [{type(term.basis) for term in part.terms if isinstance(term, WeightedSum)} for part in (mine, others)]
    assert kinds[0] == {Cosines} and Cosines not in kinds[1]
    assert len(mine.terms) + len(others.terms) == len(paths.record.terms)
    zero, kept = (record.mean(points(1, 1)) for record in (mine, others))
    assert not zero.any() and (kept == 0.3).all()


def test_the_last_evaluator_computes_a_record_without_terms():
    paths = matheron.draw_prior(0.0 * K.RBF(0.5), 2, input_dim=2, mean=1.5)
    value, gradient = paths.value_and_grad(points(4))
    assert (paths(points(4)) == 1.5).all() and (value == 1.5).all() and (gradient == 0).all()


def test_a_lattice_takes_its_terms_and_leaves_the_others():
    paths = drawn(domain=([0.0, 0.0], [1.0, 1.0]), features="auto")
    names = [type(evaluator).__name__ for evaluator, _ in paths.record.derived(evaluators._PARTS["own"])]
    assert names == ["LatticeTransforms", "Blocks"]
    x = points(5, 6)
    torch.testing.assert_close(paths(x), paths.record.values(x, slice(0, 5))[..., 0], rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("own", [False, True])
def test_terms_in_float64_are_a_part_of_their_own(own, monkeypatch):
    """Clusters of data with little noise: weights of 1e3, whose sums cancel in float32."""
    X = torch.rand(2, 2, generator=torch.Generator().manual_seed(1)).repeat_interleave(12, 0)
    X = X + 0.01 * torch.randn(24, 2, generator=torch.Generator().manual_seed(5))
    gp = matheron.ExactGP(K.RBF(0.5), X, (5 * X).sin().sum(1), 1e-6)
    paths = matheron.draw(gp, 3, num_features=16, features="sobol", seed=0)
    assert any(isinstance(term, Float64Term) for term in paths.record.terms)
    dtypes, values = [], BLOCKS.values
    monkeypatch.setattr(BLOCKS, "values", lambda record, x: dtypes.append(x.dtype) or values(record, x))
    x = X[:5].expand(3 if own else 1, -1, -1)
    f = paths(x)
    assert sorted(map(str, dtypes)) == ["torch.float32", "torch.float64"] and f.dtype == torch.float32
    exact = paths.record.values(x, slice(0, 3) if own else None)[..., 0]
    torch.testing.assert_close(f, exact, rtol=1e-5, atol=1e-5)
    tied = x[0].clone().requires_grad_()
    (slope,) = torch.autograd.grad(paths(tied).sum(), tied)
    torch.testing.assert_close(slope, paths.value_and_grad(x[0])[1].sum(0), rtol=1e-4, atol=1e-3)
