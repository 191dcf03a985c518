"""Some outputs of a model that couples more."""

import pytest
import torch

import matheron
from matheron import kernels

X = torch.linspace(0, 1, 6, dtype=torch.float64)[:, None]
B = torch.tensor([[1.0, 0.8, 0.3], [0.8, 1.0, 0.5], [0.3, 0.5, 1.0]], dtype=torch.float64)
POINTS = torch.rand(4, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def three_tasks() -> matheron.ExactGP:
    kernel = kernels.Coregional(kernels.Matern(1.5, 0.3), B)
    return matheron.ExactGP(kernel, X, torch.cos(4 * X).expand(-1, 3), noise=0.01)


@pytest.fixture
def all_paths() -> matheron.Paths:
    return matheron.draw(three_tasks(), 5, generator=torch.Generator().manual_seed(1))


def selected(outputs: list[int]) -> matheron.AbstractPaths:
    gp = matheron.SelectedOutputs(three_tasks(), outputs)
    return matheron.draw(gp, 5, generator=torch.Generator().manual_seed(1))


def test_the_outputs_are_those_of_the_whole_in_the_order_asked_for(all_paths):
    paths = selected([2, 0])
    assert (paths.num_outputs, paths.num_paths, paths.input_dim) == (2, 5, 1)
    assert torch.equal(paths(POINTS), all_paths(POINTS)[..., [2, 0]])
    assert torch.equal(paths.mean(POINTS), all_paths.mean(POINTS)[..., [2, 0]])
    assert torch.equal(paths[3](POINTS), all_paths[3](POINTS)[..., [2, 0]])
    for ours, whole in zip(paths.value_and_grad(POINTS), all_paths.value_and_grad(POINTS), strict=True):
        assert torch.equal(ours, whole[:, :, [2, 0]])


def test_one_output_has_no_axis(all_paths):
    paths = selected([1])
    assert torch.equal(paths(POINTS), all_paths(POINTS)[..., 1])
    value, gradient = paths.value_and_grad(POINTS)
    assert value.shape == (5, 4) and gradient.shape == (5, 4, 1)


def test_more_data_of_the_selected_outputs_is_met():
    x, generator = torch.tensor([[0.15], [0.85]], dtype=torch.float64), torch.Generator().manual_seed(2)
    y = torch.tensor([[1.0, -1.0], [2.0, 0.5]], dtype=torch.float64)
    every = selected([2, 0]).condition_on(x, y, noise=0.0, generator=generator)
    torch.testing.assert_close(every(x), y.expand(5, 2, 2), rtol=1e-6, atol=1e-6)
    by_task = selected([2, 0]).condition_on(x, y[:, 1], noise=0.0, tasks=[1, 1])
    torch.testing.assert_close(by_task(x)[..., 1], y[:, 1].expand(5, 2), rtol=1e-6, atol=1e-6)
    one = selected([1]).condition_on(x, y[:, 0], noise=0.0)
    torch.testing.assert_close(one(x), y[:, 0].expand(5, 2), rtol=1e-6, atol=1e-6)


def test_a_file_has_them_all(tmp_path):
    paths = selected([2, 0])
    paths.save(tmp_path / "draw.safetensors")
    assert torch.equal(matheron.load(tmp_path / "draw.safetensors")(POINTS), paths(POINTS))


def test_outputs_that_are_not_there_and_targets_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"outputs: expected whole numbers below 3, at least one, got \[3\]"):
        matheron.SelectedOutputs(three_tasks(), [3])
    with pytest.raises(ValueError, match=r"y: expected \[2, 2\] or \[5, 2, 2\], got \[2\]"):
        selected([2, 0]).condition_on(X[:2], torch.zeros(2), noise=0.0)
    with pytest.raises(ValueError, match="tasks"):
        selected([1]).condition_on(X[:2], torch.zeros(2), noise=0.0, tasks=[0, 0])


def test_it_says_what_it_is():
    gp = matheron.SelectedOutputs(three_tasks(), [2])
    assert repr(gp).startswith("SelectedOutputs(ExactGP(Coregional(")
    assert repr(gp).endswith("), 18 observations in 1 dimension), [2] of 3)")
    assert gp.owned().outputs == [2]
