"""Evaluation in blocks: the same numbers as in one piece, at bounded memory."""

import subprocess
import sys
from copy import copy
from functools import cache
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from examples import ALL, LAYOUTS, gen, paths_of, rand, randn
from matheron import ExactGP, Paths, Sites, draw, draw_prior, kernels
from matheron.evaluate import MEMORY_BUDGET, Cosines, Pairs, Record, bases
from matheron.paths import Data, ExactUpdate


@pytest.fixture
def blocks(monkeypatch) -> list[tuple[int, ...]]:
    """The shapes of the points of each block whose values are computed."""
    shapes: list[tuple[int, ...]] = []
    plain = Record.values
    monkeypatch.setattr(Record, "values", lambda record, x, of: shapes.append(tuple(x.shape)) or plain(record, x, of))
    return shapes


def points_like(shape: str) -> torch.Tensor:
    return rand(17, 2) if shape == "shared" else rand(5, 5, 2)


@pytest.mark.parametrize("shape", ["shared", "own"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ALL)
def test_blocks_give_the_same_values_and_gradients_as_one_piece(name, layout, shape, small_blocks, blocks):
    paths, x = paths_of(name, 5, layout=layout), points_like(shape)
    whole, gradient, mean = paths(x), paths.value_and_grad(x)[1], paths.mean(rand(11, 2))
    for block in (1, 100):  # a point each, and some
        small_blocks(block)
        blocks.clear()
        torch.testing.assert_close(paths(x), whole, rtol=1e-12, atol=1e-12)
        assert len(blocks) > 1
        value, slope = paths.value_and_grad(x)
        torch.testing.assert_close(value, whole, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(slope, gradient, rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(paths.mean(rand(11, 2)), mean, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", ["shared", "own"])
@pytest.mark.parametrize("name", ["exact", "exact, composite", "exact, coupled", "sparse, coupled"])
def test_blocks_give_the_same_gradients_by_autograd(name, shape, small_blocks):
    paths, x = paths_of(name, 5), points_like(shape).requires_grad_()
    direction = randn(*paths(x).shape, seed=4)
    (whole,) = torch.autograd.grad(paths(x), x, direction)
    small_blocks(150)
    f = paths(x)
    (gradient,) = torch.autograd.grad(f, x, direction, create_graph=True)
    torch.testing.assert_close(gradient, whole, rtol=1e-10, atol=1e-10)
    (second,) = torch.autograd.grad(gradient.sum(), x)
    assert second.isfinite().all() and second.abs().max() > 0


def test_a_path_that_is_the_same_everywhere_has_no_slope_in_blocks_either(small_blocks):
    paths, x = draw_prior(kernels.Constant(2.0), 3, input_dim=2), rand(9, 2).requires_grad_()
    small_blocks(8)
    (gradient,) = torch.autograd.grad(paths(x).sum(), x, create_graph=True)
    assert torch.equal(gradient, torch.zeros(9, 2, dtype=torch.float64))


def test_blocks_give_the_same_gradients_in_hyperparameters(small_blocks):
    lengthscale = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    gp = ExactGP(kernels.RBF(lengthscale), rand(5, 2, seed=1), randn(5, seed=2), 0.1)
    paths = draw(gp, 3, num_features=16, detach=False, generator=gen())
    (whole,) = torch.autograd.grad(paths(rand(9, 2)).square().sum(), lengthscale, retain_graph=True)
    small_blocks(60)
    (blocks,) = torch.autograd.grad(paths(rand(9, 2)).square().sum(), lengthscale)
    torch.testing.assert_close(blocks, whole)


def test_the_data_of_a_draw_are_met_in_blocks_too(small_blocks):
    gp = ExactGP(kernels.Matern(1.5, 0.4), rand(20, 2, seed=1), randn(20, seed=2), 0.0)
    settings: dict[str, Any] = dict(num_features=16, paths_per_basis=2)
    whole = draw(gp, 5, generator=gen(), **settings)
    small_blocks(40)
    torch.testing.assert_close(draw(gp, 5, generator=gen(), **settings)(rand(4, 2)), whole(rand(4, 2)))


def test_a_value_does_not_depend_on_the_other_points():
    """The same path gives the same number at the same point, to rounding, whatever is asked beside it."""
    paths, x = paths_of("exact, composite", 5), rand(3000, 2)
    whole = paths(x)
    for part in (slice(0, 1), slice(1234, 1236), slice(2990, None)):
        torch.testing.assert_close(paths(x[part]), whole[:, part], rtol=1e-12, atol=1e-12)


# Memory.


class LargestTensor(TorchDispatchMode):
    """Records the most bytes that any one operation's result holds."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self.largest = max(self.largest, leaf.numel() * leaf.element_size())
        return out


NUM_POINTS, NUM_PATHS, NUM_FEATURES = 600, 16, 512


@cache
def large_draw(layout: str) -> Paths:
    gp = ExactGP(kernels.Matern(2.5, 0.5), rand(128, 2, seed=1), randn(128, seed=2), 0.1)
    paths_per_basis = None if layout == "one basis" else 1
    return draw(gp, NUM_PATHS, num_features=NUM_FEATURES, paths_per_basis=paths_per_basis, generator=gen())


def large_problem(shape: str, layout: str):
    paths = copy(large_draw(layout))  # a new object, of which nothing is derived yet
    return paths, rand(NUM_POINTS, 2) if shape == "shared" else rand(NUM_PATHS, NUM_POINTS // 4, 2)


@pytest.mark.parametrize("how", ["values", "value and grad", "autograd"])
@pytest.mark.parametrize("layout", ["one basis", "a basis each"])
@pytest.mark.parametrize("shape", ["shared", "own"])
def test_no_array_of_all_points_by_features_is_ever_made(shape, layout, how, small_blocks, monkeypatch):
    """With blocks far below [n, ell], no tensor but the answer is much larger than a block."""
    block = 1 << 15
    small_blocks(block)
    monkeypatch.setattr(bases, "LARGEST_BATCH", block)
    paths, x = large_problem(shape, layout)
    copy(paths)(x[..., :2, :])  # the memory that blocks use again is there from now on
    answer = NUM_PATHS * x.shape[-2] * (1 if how == "values" else 2) * 8
    with LargestTensor() as mode:
        if how == "values":
            paths(x)
        elif how == "value and grad":
            paths.value_and_grad(x)
        else:
            x.requires_grad_()
            torch.autograd.grad(paths(x).sum(), x)
    assert NUM_POINTS * NUM_FEATURES * 8 > 4 * max(answer, block * 8), "the bound below would say nothing"
    assert mode.largest <= max(answer, 2 * block * 8)


def test_the_recorder_sees_a_large_array():
    with LargestTensor() as mode:
        paths, x = large_problem("shared", "one basis")
        paths.prior.features(x)
    assert mode.largest >= NUM_POINTS * NUM_FEATURES * 8


MEASURE = """
import resource, torch, matheron
from matheron import kernels

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # MiB on Linux

def gradient(x):
    x.requires_grad_()
    torch.autograd.grad(paths(x).sum(), x)

gp = matheron.ExactGP(kernels.RBF(0.5), torch.rand(64, 2), torch.randn(64), 0.1)
paths = matheron.draw(gp, 8, num_features=1024)
paths(torch.rand(8000, 2)), gradient(torch.rand(8000, 2))  # what stays: libraries, and the arena
before = peak()
paths(torch.rand(60_000, 2))
values = peak() - before
gradient(torch.rand(40_000, 2))
print(values, peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="measures resident memory as Linux counts it")
def test_memory_beyond_the_answer_stays_within_the_budget():
    """In a process of its own: one array [n, ell] would be 234 MiB here, and autograd's graph would keep over 100."""
    run = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True)
    values, autograd = map(float, run.stdout.split())
    budget = MEMORY_BUDGET / 2**20
    assert values < budget / 8 and autograd < budget / 8


def test_a_block_holds_at_least_one_point_of_one_path(small_blocks, blocks):
    small_blocks(0)
    paths = paths_of("exact", 3)
    blocks.clear()
    assert paths(rand(2, 2)).shape == (3, 2) and blocks == [(1, 1, 2)] * 2
    blocks.clear()
    assert paths(rand(3, 2, 2)).shape == (3, 2) and blocks == [(1, 1, 2)] * 6


# Bases of many functions, and many centres.


@pytest.fixture
def narrow(monkeypatch):
    """Pieces of a few functions, as if bases were large and points many."""
    monkeypatch.setattr(bases, "LARGEST_WIDTH", 7)
    monkeypatch.setattr(bases, "LARGEST_BATCH", 1)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["exact", "exact, composite", "exact, coupled", "sparse"])
def test_a_basis_in_pieces_gives_the_same_values_and_gradients(name, layout, request):
    shared, own, of = rand(9, 2), rand(5, 4, 2), torch.tensor([3, 0, 4, 4])

    def everything() -> list[torch.Tensor]:
        paths = paths_of(name, 5, layout=layout, features="sincos")
        x = shared.clone().requires_grad_()
        (pulled,) = torch.autograd.grad(paths(x).square().sum(), x)
        found = [paths(shared), paths(own), *paths.value_and_grad(shared), *paths.value_and_grad(own), pulled]
        return [*found, *paths.value_and_grad(own[0], of=of), paths.mean(shared)]

    whole = everything()
    request.getfixturevalue("narrow")
    for got, expected in zip(everything(), whole, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("features", ["cosine", "sincos"])
def test_at_few_points_a_basis_of_many_functions_is_evaluated_whole(features, monkeypatch):
    """A piece has a cost of its own: at one point, 64 paths of 8,200 functions took ten times as long as of 8,192."""
    paths = draw_prior(kernels.RBF(0.5), 3, input_dim=2, features=features, generator=gen())
    monkeypatch.setattr(bases, "LARGEST_WIDTH", 7)
    monkeypatch.setattr(Pairs if features == "sincos" else Cosines, "pieces", None)
    x = rand(3, 2)
    value, gradient = paths.value_and_grad(x)
    torch.testing.assert_close(paths(x), value)
    at = x.clone().requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(paths(at).sum(), at)[0], gradient.sum(0))


def test_many_centres_are_evaluated_many_points_at_a_time():
    """A block of a path with many centres has as many points as one with a few thousand."""
    gp = ExactGP(kernels.RBF(0.5), rand(4, 2), randn(4), 0.1)
    few = draw(gp, 2, num_features=16, generator=gen())
    m = 100_000
    data = Data(Sites(rand(m, 2)), randn(m), torch.ones(m, dtype=torch.float64), randn(2, m))
    update = ExactUpdate(gp.kernel, data, randn(2, m) / m, randn(1, m) / m)
    many = Paths(few.prior, update, few.mean_function)
    assert many.record.width(rand(1, 50, 2)) <= bases.LARGEST_WIDTH + 2
    x = rand(40, 2)
    expected = few.prior.sums(x[None])[:, 0] + update.v @ gp.kernel(x, update.centres).mT
    few(rand(20_000, 2))  # the memory that blocks use again is there from now on
    with LargestTensor() as mode:
        values = many(x)
    torch.testing.assert_close(values, expected, rtol=1e-9, atol=1e-9)
    assert mode.largest < 40 * m * 8 / 4


def test_nothing_is_derived_for_own_points_by_a_call_at_shared_ones(monkeypatch):
    asked: set[object] = set()  # what is derived of the five paths
    plain = Record.derived

    def derived(record: Record, make: Any, key: Any = None) -> Any:
        if record.num_paths == 5:
            asked.add(make)
        return plain(record, make, key)

    monkeypatch.setattr(Record, "derived", derived)
    paths = paths_of("exact", 5)
    for call in (paths, paths.value_and_grad):
        call(rand(3, 2))
    shared = set(asked)
    paths.mean(rand(3, 2))
    with_the_mean = set(asked)
    paths(rand(5, 3, 2))
    assert asked > with_the_mean >= shared  # for the first time now


@pytest.mark.parametrize("weights", ["the same at all points", "different"])
@pytest.mark.parametrize("features", ["sobol", "cosine"])
@pytest.mark.parametrize(
    "kernel",
    [kernels.Matern(2.5, 0.4), kernels.RBF(0.5).on([0]) * kernels.Periodic(1.0, 0.7).on([1]), kernels.Linear()],
)
def test_what_is_pulled_back_is_the_weighted_sum_of_gradients(generator, kernel, features, weights):
    """A weight per path is one function's gradient, which has a way of its own; paths with two bases are in it too."""
    X, y = (torch.rand(shape, generator=generator, dtype=torch.float64) for shape in ((6, 2), (6,)))
    gp = ExactGP(kernel, X, y, 0.1)
    paths = draw(gp, 4, num_features=32, features=features, paths_per_basis=2, generator=generator)
    x = torch.rand(700, 2, generator=generator, dtype=torch.float64).requires_grad_()
    a = torch.randn(4, 1 if weights != "different" else 700, generator=generator, dtype=torch.float64)
    (found,) = torch.autograd.grad((a * paths(x)).sum(), x)
    _, gradient = paths.value_and_grad(x.detach())
    torch.testing.assert_close(found, (a[..., None] * gradient).sum(0))
