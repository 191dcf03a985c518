"""Mean functions: their values, their gradients, and what they share with what they were made of."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from matheron.models.means import CallableMean, ConstantMean, LinearMean, Mixed, Stacked, as_mean


def module() -> nn.Module:
    torch.nn.init.normal_((layer := nn.Linear(2, 1).double()).weight, generator=torch.Generator().manual_seed(0))
    return nn.Sequential(layer, nn.Tanh())


def wave(x: Tensor) -> Tensor:
    return x[..., 0].sin() * x[..., 1]


def two_waves(x: Tensor) -> Tensor:
    return torch.stack([x[..., 0].sin(), x[..., 1] ** 2], dim=-1)


MEANS = {
    "a constant": (ConstantMean(1.5), 1),
    "a constant an output": (ConstantMean([1.0, -2.0, 0.5]), 3),
    "linear": (LinearMean([1.0, 2.0], 3.0), 1),
    "linear, two outputs": (LinearMean([[1.0, 2.0], [0.0, -1.0]], [3.0, 0.0]), 2),
    "a function": (CallableMean(wave), 1),
    "a function of two outputs": (CallableMean(two_waves), 2),
    "a function that is constant": (CallableMean(lambda x: torch.zeros(x.shape[:-1], dtype=x.dtype)), 1),
    "a module": (CallableMean(module()), 1),
    "stacked": (Stacked([ConstantMean(1.0), LinearMean([1.0, 2.0]), CallableMean(wave)]), 3),
    "mixed": (Mixed(Stacked([LinearMean([1.0, 2.0]), CallableMean(wave)]), [[1.0, -0.5], [0.0, 2.0], [1.0, 1.0]]), 3),
    "mixed, of one that serves all": (Mixed(ConstantMean(2.0), [[1.0, 0.5]]), 1),
}


@pytest.mark.parametrize("shape", [(4,), (3, 4), (0,)])
@pytest.mark.parametrize("name", MEANS)
def test_values_and_gradients_are_of_one_shape_and_autograd_s(name, shape):
    mean, t = MEANS[name]
    x = torch.rand(*shape, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    value, gradient = mean.with_gradient(x.detach())
    assert mean(x).shape == value.shape == (*shape, t) and gradient.shape == (*shape, t, 2)
    torch.testing.assert_close(value, mean(x).detach())
    for j in range(t):
        (expected,) = torch.autograd.grad(mean(x)[..., j].sum() + 0 * x.sum(), x)
        torch.testing.assert_close(gradient[..., j, :], expected)
    assert not value.requires_grad and not gradient.requires_grad


def test_values_are_the_formulas():
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
    assert ConstantMean([1.0, 2.0])(x).tolist() == [[1, 2], [1, 2]]
    assert LinearMean([1.0, 2.0], 3.0)(x).tolist() == [[1 + 4 + 3], [3 + 8 + 3]]
    assert LinearMean([[1.0, 0.0], [0.0, 1.0]], [0.0, 1.0])(x).tolist() == [[1, 3], [3, 5]]
    torch.testing.assert_close(as_mean(wave)(x), wave(x)[:, None])
    source = module()
    torch.testing.assert_close(as_mean(source)(x), source(x).detach())
    assert Mixed(ConstantMean([1.0, 2.0]), [[1.0, 1.0], [0.0, 3.0]])(x).tolist() == [[3, 6], [3, 6]]


@pytest.mark.parametrize("given", [0, 1.5, [1.0, 2.0], (1.0, 2.0), torch.tensor(2.0)])
def test_numbers_are_constant_means(given):
    assert isinstance(as_mean(given), ConstantMean)


def test_what_is_a_mean_already_is_left_alone():
    mean = LinearMean([1.0])
    assert as_mean(mean) is mean


def test_a_module_s_further_training_does_not_reach_the_mean():
    x, source = torch.ones(3, 2, dtype=torch.float64), module()
    mean = as_mean(source).owned()
    before = mean(x)
    with torch.no_grad():
        for p in source.parameters():
            p.add_(1.0)
    assert torch.equal(mean(x), before) and not torch.allclose(source(x), before)
    assert not mean.requires_graph()
    assert all(p.requires_grad for p in source.parameters())


def test_a_module_keeps_its_graph_where_it_is_asked_for():
    x, source = torch.ones(3, 2, dtype=torch.float64), module()
    mean = as_mean(source)
    assert mean.requires_graph()
    gradients = torch.autograd.grad(mean.to(torch.float64)(x).sum(), list(source.parameters()))
    expected = torch.autograd.grad(source(x).sum(), list(source.parameters()))
    for ours, theirs in zip(gradients, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", MEANS)
def test_means_move_to_another_dtype_and_are_copied(name):
    mean = MEANS[name][0].owned()
    x = torch.rand(3, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    single = mean.to(torch.float32)
    assert single(x.float()).dtype == torch.float32
    torch.testing.assert_close(single(x.float()).double(), mean(x), rtol=1e-5, atol=1e-5)
    assert torch.equal(copy.deepcopy(mean)(x), mean(x))
    if "a function that" not in name:  # a lambda cannot be pickled
        assert torch.equal(pickle.loads(pickle.dumps(mean))(x), mean(x))


WORD: Any = "zero"
NUMBER: Any = lambda x: 0.0  # noqa: E731
REFUSALS = {
    "a matrix": (
        lambda: ConstantMean([[1.0]]),
        ValueError,
        r"mean: expected a number or one per output, got shape \[1, 1\]",
    ),
    "not finite": (lambda: ConstantMean(float("nan")), ValueError, "mean: expected finite numbers"),
    "weights without an axis": (lambda: LinearMean(1.0), ValueError, r"weights: expected \[d\], or \[t, d\]"),
    "text": (lambda: as_mean(WORD), TypeError, "mean: expected a number, one per output, or a callable, got str"),
    "a function of another shape": (
        lambda: as_mean(lambda x: x.sum())(torch.zeros(3, 2)),
        ValueError,
        r"mean: expected a tensor \[3\] for points \[3, 2\], got \[\]",
    ),
    "a function that answers no tensor": (
        lambda: as_mean(NUMBER)(torch.zeros(3, 2)),
        ValueError,
        r"mean: expected a tensor \[3\] .* got float",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refuses(name):
    build, error, message = REFUSALS[name]
    with pytest.raises(error, match=message):
        build()
