"""Minimisers of paths, and the batched optimiser against SciPy's L-BFGS-B."""

from typing import Any, cast

import numpy as np
import pytest
import torch
from scipy import optimize

import matheron
from matheron import kernels as K
from matheron.core.boxes import Sobol
from matheron.models.transforms import Round
from matheron.thompson import minimize_together
from matheron.thompson.minima import scrambled
from matheron.thompson.quasi_newton import ENDINGS, GRADIENT, minimize_in_unit_box


def rosenbrock(x):
    z = 4 * x - 2
    return (100 * (z[..., 1:] - z[..., :-1] ** 2) ** 2 + (1 - z[..., :-1]) ** 2).sum(-1)


def ackley(x):
    z = 8 * x - 3
    d = x.shape[-1]
    root = (z.square().sum(-1) / d + 1e-12).sqrt()
    return -20 * torch.exp(-0.2 * root) - torch.exp(torch.cos(2 * np.pi * z).mean(-1))


def corner(x):
    """A linear function: the solution is a corner of the box."""
    return x @ torch.arange(1.0, x.shape[-1] + 1, dtype=x.dtype) * torch.tensor(-1.0, dtype=x.dtype)


def ill_conditioned(x):
    weights = 10.0 ** torch.linspace(0, 5, x.shape[-1], dtype=x.dtype)
    return (weights * (x - 0.3).square()).sum(-1)


def with_gradient(function):
    def objective(index, x):
        x = x.detach().requires_grad_()
        value = function(x)
        return value.detach(), torch.autograd.grad(value.sum(), x)[0]

    return objective


@pytest.mark.parametrize("function", [rosenbrock, ackley, corner, ill_conditioned])
@pytest.mark.parametrize("d", [2, 6])
def test_the_batched_optimiser_is_as_good_as_scipys(function, d, generator):
    starts = torch.rand(24, d, dtype=torch.float64, generator=generator)
    ours = minimize_in_unit_box(with_gradient(function), starts, max_iterations=1000)

    def one(x):
        value, gradient = with_gradient(function)(None, torch.tensor(x)[None])
        return value.item(), gradient[0].numpy()

    theirs = [optimize.minimize(one, s.numpy(), jac=True, method="L-BFGS-B", bounds=[(0, 1)] * d).fun for s in starts]
    assert float(ours.value.min()) <= min(theirs) + 1e-5
    if function is not ackley:  # with many valleys, which one a local search ends in is chance
        assert float(ours.value.median()) <= np.median(theirs) + 1e-4 * (1 + abs(np.median(theirs)))
    _, gradient = with_gradient(function)(None, ours.x)
    held = ((ours.x <= 0) & (gradient > 0)) | ((ours.x >= 1) & (gradient < 0))
    slope = torch.where(held, 0.0, gradient).norm(dim=1)
    assert float(slope.median()) < 1e-2 * (1 + float(with_gradient(function)(None, starts)[1].norm(dim=1).median()))
    assert bool(((ours.x >= 0) & (ours.x <= 1)).all())
    assert all(ENDINGS[i] != "running" for i in ours.ending.tolist())


def test_in_many_dimensions_the_batched_optimiser_takes_as_many_steps_as_scipys(generator):
    """Coupled variables, a third of which end at a bound."""
    d = 30
    Q = torch.linalg.qr(torch.randn(d, d, dtype=torch.float64, generator=generator))[0]
    A = Q * 10.0 ** torch.linspace(0, 3, d, dtype=torch.float64) @ Q.T
    target = torch.linspace(-0.3, 1.2, d, dtype=torch.float64)

    def gradient(x):
        return (x - target) @ A

    def objective(index, x):
        return ((x - target) * gradient(x)).sum(1) / 2, gradient(x)

    def one(x):
        value, slope = objective(None, torch.tensor(x)[None])
        return value.item(), slope[0].numpy()

    starts = torch.rand(8, d, dtype=torch.float64, generator=generator)
    ours = minimize_in_unit_box(objective, starts)
    theirs = [optimize.minimize(one, s.numpy(), jac=True, method="L-BFGS-B", bounds=[(0, 1)] * d) for s in starts]
    at_bounds = (ours.x <= 0) | (ours.x >= 1)
    assert bool((at_bounds.sum(1) > 5).all())
    assert ours.value.numpy() == pytest.approx([found.fun for found in theirs], rel=1e-5)
    assert ours.iterations.double().mean() < 1.3 * np.mean([found.nfev for found in theirs])


def test_a_start_at_the_solution_ends_at_once():
    ours = minimize_in_unit_box(with_gradient(ill_conditioned), torch.full((1, 3), 0.3, dtype=torch.float64))
    assert int(ours.ending) == GRADIENT and int(ours.iterations) == 0


def test_problems_that_have_ended_are_called_no_more(generator):
    calls = []
    objective = with_gradient(lambda x: (x - 0.5).square().sum(-1))

    def counted(index, x):
        calls.append(index.tolist())
        return objective(index, x)

    starts = torch.rand(5, 2, dtype=torch.float64, generator=generator)
    starts[2] = 0.5
    minimize_in_unit_box(counted, starts)
    assert 2 in calls[0] and all(2 not in call for call in calls[1:])


def test_values_that_are_not_finite_are_stepped_back_from():
    def objective(index, x):  # a log barrier that is NaN beyond 0.5
        value = (x - 0.4).square().sum(-1) - 1e-3 * torch.log(0.5 - x).sum(-1)
        return value, 2 * (x - 0.4) + 1e-3 / (0.5 - x)

    ours = minimize_in_unit_box(objective, torch.tensor([[0.01, 0.02]], dtype=torch.float64))
    assert bool(torch.isfinite(ours.value).all()) and bool((ours.x < 0.5).all())


@pytest.fixture
def paths(generator):
    X = torch.rand(30, 2, dtype=torch.float64, generator=generator)
    gp = matheron.ExactGP(K.Matern(2.5, 0.2), X, torch.sin(6 * X[:, 0]) * X[:, 1], 1e-4)
    return matheron.draw(gp, 6, num_features=256, paths_per_basis=4, generator=generator)


BOUNDS = [[0.0, -0.5], [1.0, 0.7]]


def test_minima_are_no_worse_than_a_dense_list_of_points(paths, generator):
    minima = matheron.minimize(paths, BOUNDS, mesh_size=2048, num_starts=8, generator=generator)
    lower, upper = torch.tensor(BOUNDS, dtype=torch.float64)
    x = lower + (upper - lower) * torch.rand(20000, 2, dtype=torch.float64, generator=generator)
    assert bool((minima.value <= paths(x).amin(1) + 1e-9).all())
    torch.testing.assert_close(paths(minima.x[:, None])[:, 0], minima.value, rtol=1e-8, atol=1e-10)
    assert bool((minima.x >= lower).all()) and bool((minima.x <= upper).all())
    assert len(minima.ending) == 6


def test_maxima_are_minima_upside_down(paths, generator):
    maxima = matheron.maximize(paths, BOUNDS, mesh_size=1024, num_starts=4, generator=generator)
    lower, upper = torch.tensor(BOUNDS, dtype=torch.float64)
    x = lower + (upper - lower) * torch.rand(5000, 2, dtype=torch.float64, generator=generator)
    assert bool((maxima.value >= paths(x).amax(1) - 1e-9).all())


def test_a_generator_makes_the_search_repeatable(paths):
    runs = [
        matheron.minimize(paths, BOUNDS, mesh_size=256, num_starts=2, generator=torch.Generator().manual_seed(3))
        for _ in range(2)
    ]
    assert torch.equal(runs[0].x, runs[1].x)


@pytest.mark.parametrize("scale", [2.0**-10, 2.0**-40])
def test_minimisers_do_not_depend_on_the_units_of_values(scale):
    X, y = torch.linspace(0, 1, 5, dtype=torch.float64)[:, None], torch.tensor([1.0, -1.0, 0.5, -0.3, 2.0])
    models = [matheron.ExactGP(s**2 * K.Matern(2.5, 0.2), X, s * y, noise=s**2 * 1e-4) for s in (1.0, scale)]
    plain, small = (
        matheron.minimize(matheron.draw(gp, 4, seed=0), [[0.0], [1.0]], seed=0, mesh_size=256, num_starts=4)
        for gp in models
    )
    torch.testing.assert_close(small.x, plain.x, atol=1e-5, rtol=0)
    torch.testing.assert_close(small.value / scale, plain.value)


def test_data_at_a_minimum_gives_no_nan(generator):
    gp = matheron.ExactGP(K.Matern(0.5, 0.3), [[0.5]], [-5.0], 0.0)
    minima = matheron.minimize(matheron.draw(gp, 3, generator=generator), [[0.0], [1.0]], mesh_size=257)
    assert bool(torch.isfinite(minima.x).all()) and bool(torch.isfinite(minima.value).all())


def test_bounds_that_do_not_fit_are_refused(paths):
    with pytest.raises(ValueError, match=r"bounds: expected \(lower, upper\), each a number or 2 of them, got 3 and 3"):
        matheron.minimize(paths, [[0.0] * 3, [1.0] * 3])
    with pytest.raises(ValueError, match="lower < upper"):
        matheron.minimize(paths, [[0.0, 1.0], [1.0, 1.0]])
    with pytest.raises(ValueError, match="num_starts: expected a whole number of at least 1"):
        matheron.minimize(paths, BOUNDS, num_starts=0)
    coupled = matheron.draw_prior(K.Coregional(K.RBF(), torch.eye(2)), 2, input_dim=2)
    with pytest.raises(ValueError, match="one output"):
        minimize_together([coupled], BOUNDS, generators=[torch.Generator()])


@pytest.mark.parametrize("d", [1, 8])
def test_a_mesh_made_on_a_device_is_the_engines(d):
    """The same numbers from wherever it goes on; a GPU makes them itself."""
    for first, count in ((0, 1), (0, 100), (1, 7), (100, 300)):
        engine, fresh = (Sobol(d, seed=5) for _ in range(2))
        if first:
            engine.next(first)
        expected = engine.next(count)
        assert torch.equal(scrambled(fresh, first, count, torch.device("cpu")), expected)


def test_paths_of_several_models_are_minimised_together_as_each_alone():
    """Other numbers of paths, data and kernels in each; to the last bit, and with the same accounts."""
    many = []
    for i in range(3):
        generator = torch.Generator().manual_seed(i)
        X = torch.rand(5 + i, 2, generator=generator, dtype=torch.float64)
        gp = matheron.ExactGP(K.Matern(2.5, 0.2 + 0.1 * i), X, X.sum(1).sin(), noise=1e-3)
        many.append(matheron.draw(gp, i + 1, num_features=64, generator=generator))
    box, sizes = [[-1.0, 0.0], [1.0, 1.0]], cast(Any, {"mesh_size": 100, "num_starts": 5})
    generators = [torch.Generator().manual_seed(i) for i in range(3)]
    for i, found in enumerate(minimize_together(many, box, generators=generators, **sizes)):
        alone = matheron.minimize(many[i], box, seed=i, **sizes)
        assert torch.equal(found.x, alone.x) and torch.equal(found.value, alone.value)
        assert (found.ending, found.num_evaluations) == (alone.ending, alone.num_evaluations)
    with pytest.raises(ValueError, match="expected one for each of the paths, at least one, got 3 and 1"):
        minimize_together(many, box, generators=generators[:1], **sizes)


def test_the_minimum_over_whole_numbers_is_that_of_all_of_them():
    """Beside a fraction, which is searched for too."""
    whole = torch.tensor([True, True, False])
    paths = matheron.draw_prior(K.Matern(2.5, [2.0, 3.0, 0.5]), 8, input_dim=3, seed=0)
    rounded = Round(whole)
    found = matheron.minimize(paths.of(rounded), [[-0.499, -0.499, 0.0], [8.499, 8.499, 1.0]], seed=0)
    axes = [torch.arange(9.0), torch.arange(9.0), torch.linspace(0, 1, 401)]
    lowest = paths(torch.cartesian_prod(*axes).double()).amin(1)
    assert bool((found.value <= lowest + 1e-9).all())
    torch.testing.assert_close(paths(rounded(found.x)[:, None])[:, 0], found.value)
