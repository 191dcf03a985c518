"""Slopes, gradients and averages over boxes that are solved for on a lattice, against the dense closed form."""

from typing import Any

import pytest
import torch
from torch import Tensor

import matheron
from examples import rand, randn
from matheron import kernels as K
from matheron import observe
from matheron.compare.samplers import moments
from matheron.lattice import FourierLattice
from matheron.models.means import LinearMean
from matheron.models.transforms import Affine
from standard import assert_moments

UNIT = (0.0, 1.0)
SLOW = ("of one coordinate", "three dimensions", "Matern 3/2")
TIGHT = FourierLattice(tolerance=1e-5)


def blocks(n: int, d: int, seed: int = 0, side: float = 0.1, **of: Any) -> list[observe.Functionals]:
    lower = (1 - side) * rand(n, d, seed=seed + 2)
    return [
        observe.value(rand(n, d, seed=seed), **of),
        observe.gradient(rand(n, d, seed=seed + 1), **of),
        observe.mean(lower, lower + side, **of),
    ]


def model(kernel: K.Kernel, d: int, n: int, noise: Any, **settings: Any) -> matheron.ExactGP:
    """Values, gradients and averages of a function that the prior expects, each with a noise of its own."""
    of, (var, slope, cell) = blocks(n, d), noise
    drawn = matheron.draw_prior(kernel, 1, input_dim=d, seed=1, mean=settings.get("mean", 0.0))
    f = [drawn.at(block)[0] for block in of]
    y = [g + v**0.5 * randn(len(g), seed=9) for g, v in zip(f, noise, strict=True)]
    return matheron.ExactGP(kernel, of, y, noise=[var, slope, cell], **settings)


CASES: dict[str, tuple[K.Kernel, int, int, Any]] = {
    "RBF": (K.RBF(0.2), 1, 60, (1e-2, 1e-2, 1e-4)),
    "Matern 5/2": (K.Matern(2.5, 0.3), 1, 60, (1e-2, 1e-1, 1e-3)),
    "Matern 3/2": (K.Matern(1.5, 0.4), 1, 30, (1e-2, 1e1, 1e-2)),
    "two dimensions": (K.RBF([0.3, 0.6]), 2, 60, (1e-2, 1e-1, 1e-3)),
    "three dimensions": (K.RBF(0.7), 3, 16, (1e-1, 1.0, 1e-2)),
    "a sum": (K.RBF(0.5) + 0.1 * K.Matern(2.5, 0.4), 1, 60, (1e-2, 1e-1, 1e-3)),
    "of one coordinate": (K.RBF(0.3).on(0) + 2 * K.Linear() + K.Constant(), 2, 30, (1e-2, 1e-1, 1e-3)),
    "more data than weights": (K.RBF(0.3), 2, 120, (1e-1, 1.0, 1e-2)),
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in CASES])
def test_draws_given_values_gradients_and_averages_have_the_law_of_the_dense_closed_form(name):
    kernel, d, n, noise = CASES[name]
    gp, x = model(kernel, d, n, noise), rand(30, d, seed=6)
    paths = matheron.draw(gp, 400, domain=UNIT, solver=TIGHT, seed=3)
    exact = moments(gp, x)
    sd = exact.covariance.diagonal().sqrt()
    assert paths.update.num_centres == 0 and paths.solver_stats is not None and paths.solver_stats.converged
    assert ((paths.mean(x) - exact.mean) / sd).abs().max() < 0.03
    torch.testing.assert_close(paths.variance(x), exact.covariance.diagonal(), rtol=0.02, atol=0)
    of_slopes = moments(gp, slopes := observe.derivative(x[:8], d - 1))
    torch.testing.assert_close(
        paths.derivative(d - 1).variance(x[:8]), of_slopes.covariance.diagonal(), rtol=0.02, atol=0
    )
    assert_moments(paths(x), exact.mean, exact.covariance, basis_error=0.01)
    assert_moments(paths.at(slopes), of_slopes.mean, of_slopes.covariance, basis_error=0.02)


@pytest.mark.parametrize(
    ("t", "head"),
    [(1, 5), (2, None), *(pytest.param(t, head, marks=pytest.mark.slow) for t, head in [(1, None), (2, 5)])],
)
def test_a_solve_to_a_small_tolerance_is_that_of_the_features_by_dense_algebra(t, head):
    """The second and third solves go on from the first one's system, and bring kinds that it did not know."""
    d, n, x = 2, 50, rand(30, 2, seed=6)
    B = torch.tensor([[1.0, 0.5], [0.5, 0.9]], dtype=torch.float64)[:t, :t]
    kernel = K.RBF(0.4) + 3 * K.Linear() if t == 1 else K.Coregional(K.RBF(0.4) + 3 * K.Linear(), B)
    f = matheron.draw_prior(kernel, 2, input_dim=d, domain=UNIT, features="lattice", seed=0)
    phi, root = f.prior.features, torch.linalg.cholesky(B).contiguous()

    def of_one(observed: observe.Functionals) -> Tensor:
        """What is observed of the features: slopes by difference quotients, averages by nodes."""
        functionals = observed.by_nodes(8)
        step, total = 1e-5, 0
        for sign in (1, -1):
            shift = step * sign * (functionals.directions[:, 0] if functionals.order else 0)
            values = phi(functionals.points + shift)[0] * functionals.weights[:, None]
            total = total + (values * sign / (2 * step) if functionals.order else values / 2)
        return functionals.summed(total.mT).mT

    rows, y, noise, g = [], [], [], f
    for i, observed in enumerate(blocks(n, d, side=0.5, **({} if t == 1 else {"output": t - 1}))):
        rows.append(torch.kron(root[t - 1 : t], of_one(observed).contiguous()))
        y.append(randn(len(observed), seed=i))
        noise.append(torch.full_like(y[-1], 0.1))
        solver = FourierLattice(tolerance=1e-10, head=head)
        g = g.condition_on([observed], y[-1], noise=noise[-1], solver=solver, seed=1)
        assert g.solver_stats is not None and g.solver_stats.converged and g.update.num_centres == 0
    S, at = torch.cat(rows), torch.kron(root, phi(x)[0].contiguous())  # outputs one after another
    mean = at @ S.mT @ torch.linalg.solve(S @ S.mT + torch.cat(noise).diag(), torch.cat(y))
    torch.testing.assert_close(g.mean(x).reshape(len(x), t).mT.flatten(), mean, rtol=1e-5, atol=1e-5)


def test_iterations_are_few_where_slopes_determine_many_more_modes_than_the_head_has():
    """With a diagonal preconditioner beyond the head there would be hundreds."""
    X = rand(8000, 2, seed=3)
    y, slopes = torch.sin(9 * X).sum(1), 9 * torch.cos(9 * X[:4000])
    gp = matheron.ExactGP(
        K.Matern(2.5, 0.2), [observe.value(X), observe.gradient(X[:4000])], [y, slopes.flatten()], noise=[0.1, 0.1]
    )
    paths = matheron.draw(gp, 2, domain=UNIT, solver=FourierLattice(head=500), seed=0)
    assert paths.solver_stats is not None and paths.solver_stats.converged and paths.solver_stats.iterations <= 60


def test_data_in_two_steps_are_the_data_at_once_and_are_kept_in_files(tmp_path):
    gp, x = model(K.Matern(2.5, 0.3), 1, 60, (1e-2, 1e-1, 1e-3)), rand(30, 1, seed=6)
    exact, (a, b, c) = moments(gp, x), blocks(60, 1)
    y, noise = gp.train_targets.split(60), (1e-2, 1e-1, 1e-3)
    some = matheron.ExactGP(gp.kernel, [a, b], list(y[:2]), noise=list(noise[:2]))
    first = matheron.draw(some, 3, domain=UNIT, solver=TIGHT, seed=0)
    first.save(tmp_path / "paths.safetensors")
    loaded = matheron.load(tmp_path / "paths.safetensors")
    for paths in (first, loaded):
        both = paths.condition_on([c], y[2], noise=noise[2], solver=TIGHT, seed=1)
        assert ((both.mean(x) - exact.mean) / exact.covariance.diagonal().sqrt()).abs().max() < 0.03
        torch.testing.assert_close(both.variance(x), exact.covariance.diagonal(), rtol=0.02, atol=0)
    dense = first.at(c)  # averages of each path by nodes of their own
    torch.testing.assert_close(dense, torch.stack([first[i : i + 1].at(c)[0] for i in range(3)]))


def test_integrals_and_opposite_slopes_are_of_the_kinds_of_averages_and_slopes():
    X, lower = rand(50, 2), 0.9 * rand(40, 2, seed=1)
    y, slopes = randn(50, seed=2), randn(40, seed=3)
    of = [observe.derivative(X, 0), observe.mean(lower, lower + 0.1)]
    same = [-2.0 * observe.derivative(X, 0), observe.integral(lower, lower + 0.1)]
    a = matheron.ExactGP(K.RBF(0.3), of, [y, slopes], noise=[0.1, 0.01])
    b = matheron.ExactGP(K.RBF(0.3), same, [-2 * y, 0.01 * slopes], noise=[0.4, 1e-6])
    f, g = (matheron.draw(gp, 2, domain=UNIT, solver=TIGHT, seed=0) for gp in (a, b))
    assert len(f.update.kinds) == len(g.update.kinds) == 2
    torch.testing.assert_close(f.mean(X), g.mean(X), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("mean", [LinearMean([1.0, -2.0], 0.5), lambda x: (3 * x[..., 0]).sin()])
def test_prior_means_and_transforms_are_passed_through(mean):
    gp = model(
        K.RBF(0.3),
        2,
        30,
        (1e-2, 1e-1, 1e-3),
        mean=mean,
        input_transform=Affine([2.0, 0.5], [0.1, -0.2]),
        output_transform=Affine([3.0], [1.0]),
    )
    x = (rand(30, 2, seed=6) - torch.tensor([0.1, -0.2])) / torch.tensor([2.0, 0.5])
    ends = torch.tensor([[-0.06, 0.3], [0.55, 2.5]], dtype=torch.float64)
    paths = matheron.draw(gp, 2, domain=(ends[0], ends[1]), tolerance=3e-4, solver=TIGHT, seed=0)
    exact = moments(gp, x)
    sd = exact.covariance.diagonal().sqrt()
    assert ((paths.mean(x) - exact.mean) / sd).abs().max() < 0.03
    slopes = observe.gradient(x[:5])
    more = paths.condition_on(slopes, randn(10), noise=1.0, seed=0).mean(x)
    dense = matheron.draw(gp, 2, seed=0).condition_on(slopes, randn(10), noise=1.0, seed=0).mean(x)
    assert ((more - dense) / sd).abs().max() < 0.03


def test_auto_takes_the_lattice_for_many_functionals():
    X = rand(1500, 1)
    gp = matheron.ExactGP(
        K.RBF(0.2),
        [observe.value(X), observe.gradient(X)],
        [X[:, 0].sin(), X[:, 0].cos()],
        noise=[1e-2, 1e-2],
    )
    stats = matheron.draw(gp, 2, domain=UNIT, seed=0).solver_stats
    assert stats is not None and "FourierLattice" in stats.solver


def test_what_is_not_of_a_few_kinds_is_refused_with_the_way_out():
    lower, X = 0.5 * rand(40, 2), rand(40, 2, seed=1)
    many = observe.mean(lower, lower + 0.1 + 0.3 * rand(40, 2, seed=2))
    sums = observe.combine(rand(120, 2, seed=3).view(40, 3, 2), randn(40, 3))
    for observed in (many, sums):
        gp = matheron.ExactGP(K.RBF(0.3), observed, randn(40), noise=0.01)
        with pytest.raises(ValueError, match=r'boxes of equal size.*solver="cg"'):
            matheron.draw(gp, 2, domain=UNIT, solver="lattice")
        paths = matheron.draw_prior(K.RBF(0.3), 2, input_dim=2, domain=UNIT, features="lattice")
        with pytest.raises(ValueError, match=r'boxes of equal size.*solver="cg"'):
            paths.condition_on(observed, randn(40), noise=0.01, solver="lattice")
    steps = observe.combine(torch.stack([X, X + 0.01], dim=1), torch.tensor([[-1.0, 1.0]]).expand(40, -1))
    paths = matheron.draw(matheron.ExactGP(K.RBF(0.3), steps, randn(40), noise=0.01), 2, domain=UNIT, solver="lattice")
    assert len(paths.update.kinds) == 1  # increments over equal steps are of one kind
    with pytest.raises(ValueError, match="noise"):
        none = matheron.ExactGP(K.RBF(0.3), observe.gradient(X), randn(80), noise=0.0)
        matheron.draw(none, 2, domain=UNIT, solver="lattice")
