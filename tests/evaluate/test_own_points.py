"""One sum a problem: own points and lone paths have the values and gradients of the general blocks."""

from typing import Any

import pytest
import torch

import matheron
from matheron import kernels as K
from matheron.evaluate import BLOCKS, WeightedSum
from matheron.evaluate.own_points import RadialSum, Waves, one_sum_each
from matheron.models.means import LinearMean

KERNELS = {
    "rbf": K.RBF([0.5, 1.3]),
    "matern12": K.Matern(0.5, 0.8),
    "matern32": K.Matern(1.5, [0.4, 0.9]),
    "matern52": 2.0 * K.Matern(2.5, 0.7),
    "rq": K.RationalQuadratic(1.7, 0.6),
    "sum": 0.5 * K.RBF(0.4) + 2.0 * K.Matern(1.5, 0.9).on(1),
    "any order": K.Matern(0.9, 0.8),
    "product": K.RBF(1.0) * K.Periodic(1.0, 1.4),  # no radial form: the update's own way
    "swapped": K.RBF([0.3, 2.0]).on([1, 0]),
}


def drawn(kernel, s=5, **settings: Any) -> Any:
    g = torch.Generator().manual_seed(3)
    X = torch.rand(7, 2, generator=g, dtype=torch.float64)
    gp = matheron.ExactGP(kernel, X, X.sum(1).sin(), noise=0.01, mean=LinearMean([0.3, -0.2], 0.7))
    settings = {"num_features": 33, "generator": g} | settings
    return matheron.draw(gp, s, **settings)


def points(s, n) -> torch.Tensor:
    return torch.rand(s, n, 2, generator=torch.Generator().manual_seed(8), dtype=torch.float64) * 3 - 1


def both(paths, x):
    """Values and gradients by terms of one sum for each path, and by those that serve all."""
    mine = paths.record.derived(one_sum_each)
    paths_in_turn = slice(0, len(x))
    value = mine.values(x, paths_in_turn)
    return (value, *mine.values_and_gradients(x, paths_in_turn)), paths.record.values_and_gradients(x, paths_in_turn)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("n", [1, 4])
@torch.no_grad()
def test_values_and_gradients_are_those_of_the_general_blocks(name, n):
    paths = drawn(KERNELS[name])
    (value, again, gradient), (f, df) = both(paths, points(5, n))
    torch.testing.assert_close(value, f, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(again, f, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(gradient, df, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("features", ["cosine", "sobol", "orthogonal"])
@pytest.mark.parametrize("paths_per_basis", [None, 1, 2])
@pytest.mark.parametrize("order", [None, [4, 0, 3, 1, 2, 0]])
@torch.no_grad()
def test_every_path_has_its_own_basis_and_weights(features, paths_per_basis, order):
    paths = drawn(KERNELS["matern52"], features=features, paths_per_basis=paths_per_basis)
    paths = paths if order is None else paths[order]
    for n in (1, 3):
        (value, _, gradient), (f, df) = both(paths, points(len(paths), n))
        torch.testing.assert_close(value, f, rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(gradient, df, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("paths_per_basis", [1, 6])
@torch.no_grad()
def test_blocks_of_some_paths_are_those_of_all(paths_per_basis, small_blocks):
    paths = drawn(KERNELS["sum"], s=18, paths_per_basis=paths_per_basis)
    x = points(18, 5)
    (value, _, gradient), (f, df) = both(paths, x)
    torch.testing.assert_close(value, f, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(gradient, df, rtol=1e-10, atol=1e-10)
    whole, (_, slopes) = paths(x), paths.value_and_grad(x)
    small_blocks(100)
    torch.testing.assert_close(paths(x), whole, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(paths.value_and_grad(x)[1], slopes, rtol=1e-12, atol=1e-12)


@torch.no_grad()
def test_one_path_at_many_points_takes_half_the_cosines(monkeypatch):
    paths = drawn(KERNELS["rbf"], s=1, num_features=64)
    x = points(1, 50)
    taken = []
    monkeypatch.setattr(torch.Tensor, "cos_", lambda P: taken.append(P.numel()) or torch.cos(P, out=P))
    torch.testing.assert_close(paths(x[0]), paths.record.values(x, None)[..., 0], rtol=1e-11, atol=1e-11)
    assert taken == [50 * 32]


def taken(paths, points):
    """The kinds of terms that blocks compute at points of a kind; whether they are the record's own."""
    record, rest = BLOCKS.take(paths.record, points)
    assert rest is None and record is not None
    return {type(term) for term in record.terms}, record is paths.record


def test_shared_points_several_outputs_and_hyperparameters_in_a_graph_are_left_to_the_general_way():
    paths = drawn(KERNELS["rbf"])
    assert taken(paths, "own") == ({Waves, RadialSum}, False)
    assert taken(paths, "shared") == ({WeightedSum}, True)
    assert taken(drawn(KERNELS["rbf"], s=1), "shared") == ({Waves, RadialSum}, False)  # alone with its points
    assert taken(paths, "traced") == ({WeightedSum}, True)
    icm = matheron.draw_prior(K.Coregional(K.RBF(), torch.eye(2)), 3, input_dim=2)
    assert taken(icm, "own") == ({WeightedSum}, True)


def test_an_unusual_term_does_not_keep_the_others_from_half_the_cosines():
    kernel = K.Matern(2.5, 0.7) + 0.5 * K.Linear()
    paths = drawn(kernel)
    assert taken(paths, "own") == ({Waves, WeightedSum}, False)
    (value, again, gradient), (f, df) = both(paths, points(5, 3))
    torch.testing.assert_close(value, f, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(again, f, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(gradient, df, rtol=1e-10, atol=1e-10)


def test_what_was_derived_goes_with_the_tensors_it_was_derived_from():
    paths, x = drawn(KERNELS["matern52"]), points(5, 3)
    before = paths.record.derived(one_sum_each)
    assert paths.record.derived(one_sum_each) is before
    wanted = paths(x)
    moved = torch.nn.ModuleList([paths]).float()[0]  # in place
    assert moved.record.derived(one_sum_each) is not before  # type: ignore[operator,union-attr]
    torch.testing.assert_close(moved(x.float()).double(), wanted, rtol=1e-4, atol=1e-4)
    paths = drawn(KERNELS["matern52"], num_features=32)
    paths(x)
    paths.prior.w.mul_(0)
    paths.update.v.mul_(0)
    torch.testing.assert_close(paths(x), paths.mean_function(x)[..., 0])


@torch.no_grad()
def test_float32_keeps_its_digits_far_from_zero():
    gp = matheron.ExactGP(K.Matern(2.5, 0.3), [[1000.0, 1000.0]], [1.0], noise=0.01)
    paths = matheron.draw(gp, 3, num_features=64, generator=torch.Generator().manual_seed(0))
    x = (1000 + points(3, 20)).float()
    torch.testing.assert_close(paths.to(torch.float32)(x).double(), paths(x.double()), rtol=0, atol=1e-4)


@torch.no_grad()
def test_a_path_through_a_centre_has_a_finite_gradient():
    for kernel in KERNELS.values():
        paths = drawn(kernel)
        at = paths.update.centres[:3].expand(5, -1, -1)
        assert torch.isfinite(paths.value_and_grad(at)[1]).all()


@pytest.mark.parametrize("name", ["matern52", "product"])
@pytest.mark.parametrize("paths_per_basis", [None, 2])
def test_a_point_for_each_of_some_paths(name, paths_per_basis):
    paths = drawn(KERNELS[name], paths_per_basis=paths_per_basis)
    x, of = points(5, 7), torch.tensor([0, 0, 3, 1, 4, 3, -1])
    value, gradient = paths.value_and_grad(x[0], of=of)
    f, df = paths.value_and_grad(x[:1].expand(5, -1, -1))
    torch.testing.assert_close(value, f[of, torch.arange(7)], rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(gradient, df[of, torch.arange(7)], rtol=1e-10, atol=1e-10)
    side_by_side = matheron.OutputPaths([paths, paths[[1, 0, 2, 3, 4]]])
    both, slopes = side_by_side.value_and_grad(x[0], of=of)
    torch.testing.assert_close(both[:, 0], value, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(slopes[:, 0], gradient, rtol=1e-10, atol=1e-10)
    some = matheron.SelectedPaths(side_by_side, [1]).value_and_grad(x[0], of=of)
    torch.testing.assert_close(some, (both[:, 1], slopes[:, 1]), rtol=0, atol=0)
    turns = torch.tensor([3, 1, 4, 0, 2]).repeat(5)[:-1]  # several points of each path, of one of them fewer
    value, gradient = paths.value_and_grad(x.flatten(0, 1)[:24], of=turns)
    each = [paths[int(i)].value_and_grad(point[None]) for i, point in zip(turns, x.flatten(0, 1), strict=False)]
    torch.testing.assert_close(value, torch.cat([f[0] for f, _ in each]), rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(gradient, torch.cat([df[0] for _, df in each]), rtol=1e-10, atol=1e-10)


def test_a_point_for_each_of_some_paths_under_transforms_and_in_an_ensemble():
    g = torch.Generator().manual_seed(3)
    X = torch.rand(7, 2, generator=g, dtype=torch.float64) * 10
    gp = matheron.ExactGP(
        K.RBF(0.4),
        X,
        3 + X.sum(1).sin(),
        noise=0.01,
        input_transform=matheron.transforms.Affine(0.1, 0.0),
        output_transform=matheron.transforms.Affine(2.0, 3.0),
    )
    x, of = points(1, 6)[0] * 3, torch.tensor([2, 0, 1, 1, 2, 2])
    several = [matheron.draw(gp, 3, generator=g), matheron.draw(matheron.Ensemble([gp, gp]), 3, generator=g)]
    for paths in several:
        value, gradient = paths.value_and_grad(x, of=of)
        f, df = paths.value_and_grad(x)
        torch.testing.assert_close(value, f[of, torch.arange(6)], rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(gradient, df[of, torch.arange(6)], rtol=1e-10, atol=1e-10)


def test_points_that_do_not_go_with_their_paths_are_refused():
    paths = drawn(KERNELS["rbf"])
    with pytest.raises(ValueError, match=r"x: expected \[3, 2\], a point for each of `of`, got \[2, 2\]"):
        paths.value_and_grad(points(1, 2)[0], of=[0, 1, 2])
    with pytest.raises(IndexError):
        paths.value_and_grad(points(1, 2)[0], of=[0, 5])
