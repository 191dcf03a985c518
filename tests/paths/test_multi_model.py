"""Paths of several models at once: outputs, ensembles and batches have the members of Paths."""

import copy
import pickle

import pytest
import torch

import matheron
from matheron import kernels as K


def gp(seed, lengthscale=0.3, d=2):
    g = torch.Generator().manual_seed(seed)
    X = torch.rand(6, d, dtype=torch.float64, generator=g)
    return matheron.ExactGP(K.RBF(lengthscale), X, torch.randn(6, dtype=torch.float64, generator=g), 1e-2)


def coupled(seed):
    g = torch.Generator().manual_seed(seed)
    X = torch.rand(5, 2, dtype=torch.float64, generator=g)
    kernel = K.Coregional(K.Matern(1.5, 0.4), [[1.0, 0.5], [0.5, 1.0]])
    return matheron.ExactGP(kernel, X, torch.randn(5, 2, dtype=torch.float64, generator=g), 1e-2)


@pytest.fixture
def x(generator):
    return torch.rand(4, 2, dtype=torch.float64, generator=generator)


@pytest.fixture
def own(generator):
    return torch.rand(7, 4, 2, dtype=torch.float64, generator=generator)


def draw(model, **settings):
    return matheron.draw(model, 7, num_features=32, generator=torch.Generator().manual_seed(0), **settings)


JOINED = {
    "outputs": lambda: draw(matheron.Outputs([gp(1), coupled(2), gp(3)])),
    "ensemble": lambda: draw(matheron.Ensemble([gp(i, 0.2 + 0.1 * i) for i in range(3)])),
    "ensemble of coupled outputs": lambda: draw(matheron.Ensemble([coupled(i) for i in range(2)])),
    "batch": lambda: draw(matheron.Batch([gp(i) for i in range(6)], [2, 3])),
    "outputs of ensembles": lambda: draw(matheron.Outputs([matheron.Ensemble([gp(1), gp(2)]), gp(3)])),
}


def test_outputs_stand_side_by_side(x, own):
    paths = JOINED["outputs"]()
    assert paths.num_outputs == 4 and paths.num_paths == len(paths) == 7
    for points in (x, own, own.numpy()):
        first, middle, last = (member(points) for member in paths.functions)
        torch.testing.assert_close(paths(points), torch.cat([first[..., None], middle, last[..., None]], dim=-1))
    assert paths.mean(x).shape == (4, 4)


def test_outputs_are_independent_of_one_another():
    one = gp(1)
    f = torch.cat([matheron.draw(matheron.Outputs([one, one]), 4000, num_features=64)([[0.9, 0.1]])[:, 0]])
    f = f - f.mean(0)
    correlation = (f[:, 0] * f[:, 1]).mean() / (f[:, 0].std() * f[:, 1].std())
    assert abs(float(correlation)) < 4 / 4000**0.5


def test_an_ensembles_paths_are_spread_evenly_over_its_members(x, own):
    paths = JOINED["ensemble"]()
    assert sorted(torch.bincount(paths.owner).tolist()) == [2, 2, 3]
    for points in (x, own):
        values = paths(points)
        for i in range(7):
            here = points if points.ndim == 2 else points[i : i + 1]
            torch.testing.assert_close(values[i : i + 1], paths[i](here))


def test_fewer_paths_than_members_take_each_at_most_once():
    paths = matheron.draw(matheron.Ensemble([gp(i) for i in range(5)]), 3, num_features=16)
    assert paths.num_paths == 3 and len(paths.owner.unique()) == 3


def test_an_ensembles_mean_is_the_mean_of_its_members(x):
    paths = JOINED["ensemble"]()
    counts = torch.bincount(paths.owner).double()
    expected = sum(c * member.mean(x) for c, member in zip(counts, paths.members, strict=True)) / 7
    torch.testing.assert_close(paths.mean(x), expected)


def test_a_batch_has_leading_axes(x, own, generator):
    paths = JOINED["batch"]()
    assert paths(x).shape == (2, 3, 7, 4) and paths(own).shape == (2, 3, 7, 4) and paths.mean(x).shape == (2, 3, 4)
    each = torch.rand(2, 3, 1, 4, 2, dtype=torch.float64, generator=generator)
    torch.testing.assert_close(paths(each)[1, 2], paths.members[5](each[1, 2]))
    with pytest.raises(ValueError, match="x: expected"):
        paths(torch.rand(3, 2, 1, 4, 2))


@pytest.mark.parametrize("name", JOINED)
def test_values_and_gradients_agree_with_autograd(name, x):
    paths = JOINED[name]()
    value, gradient = paths.value_and_grad(x)
    tied = x.clone().requires_grad_()
    torch.testing.assert_close(value, paths(x))
    f = paths(tied)
    assert gradient.shape == (*f.shape, 2)
    flat, expected = f.flatten(), gradient.reshape(-1, 2)
    points = (
        torch.arange(4).reshape([4 if i == f.shape.index(4) else 1 for i in range(f.ndim)]).expand(f.shape).flatten()
    )
    for i in range(0, len(flat), 5):
        torch.testing.assert_close(torch.autograd.grad(flat[i], tied, retain_graph=True)[0][points[i]], expected[i])


@pytest.mark.parametrize("name", JOINED)
def test_they_are_values(name, x, tmp_path):
    paths = JOINED[name]()
    paths.save(tmp_path / "draw.safetensors")
    for again in (
        matheron.load(tmp_path / "draw.safetensors"),
        copy.deepcopy(paths),
        pickle.loads(pickle.dumps(paths)),
    ):
        torch.testing.assert_close(again(x), paths(x), rtol=1e-12, atol=1e-12)
    single = paths.to(torch.float32)
    assert single(x).dtype == torch.float32 and paths(x).dtype == torch.float64
    torch.testing.assert_close(single(x).double(), paths(x), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", JOINED)
@pytest.mark.parametrize("index", [3, slice(1, 6, 2), [5, 0], torch.tensor([True] * 2 + [False] * 5)])
def test_fewer_paths_are_the_same_paths(name, index, x):
    paths = JOINED[name]()
    axis = 2 if name == "batch" else 0
    chosen = torch.arange(7)[[index] if isinstance(index, int) else index]
    torch.testing.assert_close(paths[index](x), paths(x).index_select(axis, chosen))


def test_outputs_are_conditioned_each_on_its_own(x, generator):
    paths = JOINED["outputs"]()
    y = torch.randn(4, 4, dtype=torch.float64, generator=generator)
    torch.testing.assert_close(paths.condition_on(x, y, noise=0.0)(x), y.expand(7, 4, 4), rtol=1e-6, atol=1e-6)
    own_y = torch.randn(7, 4, 4, dtype=torch.float64, generator=generator)
    torch.testing.assert_close(paths.condition_on(x, own_y, noise=0.0)(x), own_y, rtol=1e-6, atol=1e-6)
    some = paths.condition_on(x, y[:, 0], noise=0.0, tasks=[3, 1, 3, 2])
    torch.testing.assert_close(some.functions[0](x), paths.functions[0](x))
    torch.testing.assert_close(some(x)[:, [0, 2], 3], y[[0, 2], 0].expand(7, 2), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(some(x)[:, 1, 1], y[1, 0].expand(7), rtol=1e-6, atol=1e-6)
    with pytest.raises(ValueError, match=r"y: expected \[4, 4\] or \[7, 4, 4\], got \[4, 3\]"):
        paths.condition_on(x, y[:, :3], noise=0.0)


def test_ensembles_and_batches_are_conditioned_member_by_member(x, generator):
    y = torch.randn(4, dtype=torch.float64, generator=generator)
    own_y = torch.randn(7, 4, dtype=torch.float64, generator=generator)
    ensemble = JOINED["ensemble"]()
    torch.testing.assert_close(ensemble.condition_on(x, y, noise=0.0)(x), y.expand(7, 4), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(ensemble.condition_on(x, own_y, noise=0.0)(x), own_y, rtol=1e-6, atol=1e-6)
    batch = JOINED["batch"]()
    torch.testing.assert_close(batch.condition_on(x, y, noise=0.0)(x), y.expand(2, 3, 7, 4), rtol=1e-6, atol=1e-6)


def test_models_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"Outputs: expected models of one input dimension, got \[1, 2\]"):
        matheron.Outputs([gp(0), gp(1, d=1)])
    with pytest.raises(ValueError, match="Ensemble: expected at least one model"):
        matheron.Ensemble([])
