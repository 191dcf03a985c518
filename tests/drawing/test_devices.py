"""What users call gives on a GPU what it gives on a CPU, and gives it there; `pytest -m gpu` where there is one.

Random numbers come from a generator on the CPU, so that both have the same. MATHERON_DEVICE=cpu runs all of it without
a GPU, to see that the tests themselves are right.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import matheron
from examples import MODELS, gen, model, rand, randn
from matheron import kernels as K
from matheron import solvers, thompson
from matheron.compare.samplers import location_scale, moments, weight_space

DEVICE = os.environ.get("MATHERON_DEVICE", "cuda")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICE == "cuda" and not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def agree(of: Callable[[str], Any], tolerance: float = 1e-8) -> None:
    """The results on both devices, and where they are."""
    here, there = (as_list(of(device)) for device in ("cpu", DEVICE))
    assert len(here) == len(there) > 0
    for a, b in zip(here, there, strict=True):
        assert a.device.type == "cpu" and b.device.type == DEVICE
        scale = float(a.abs().max()) if a.numel() else 1.0
        torch.testing.assert_close(b.cpu(), a, rtol=tolerance, atol=tolerance * max(scale, 1e-3))


def as_list(found: Any) -> list[Tensor]:
    return [found] if isinstance(found, Tensor) else list(found)


def data(d: int, n: int = 40, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    X = rand(n, d, seed=1)
    return X.to(dtype), (X.sum(1).mul(5).sin() + 0.1 * randn(n, seed=2)).to(dtype)


def exact(
    device: str, d: int = 2, kernel: K.Kernel | None = None, dtype: torch.dtype = torch.float64
) -> matheron.ExactGP:
    X, y = data(d, dtype=dtype)
    return matheron.ExactGP(kernel or K.Matern(2.5, 0.4), X.to(device), y.to(device), noise=1e-2)


def uses(paths: matheron.AbstractPaths, d: int, device: str) -> list[Tensor]:
    """Values at shared and own points, gradients, the mean, more data, some of the paths, and a copy."""
    x = rand(7, d, seed=3).to(device, paths.dtype)
    own = rand(paths.num_paths, 3, d, seed=4).to(device, paths.dtype)
    value, gradient = paths.value_and_grad(x)
    outputs = () if value.ndim == 2 else (value.shape[-1],)
    given = paths.condition_on(x[:3], torch.zeros(3, *outputs).to(x), noise=0.1, generator=gen(5))
    copy = pickle.loads(pickle.dumps(paths))
    return [paths(x), paths(own), value, gradient, paths.mean(x), given(x), paths[1:3](x), copy(x)]


@pytest.mark.parametrize("name", MODELS)
def test_paths_of_every_model(name):
    def of(device: str) -> list[Tensor]:
        gp = model(name)
        paths = matheron.draw(gp.to(device, torch.float64), 5, num_features=64, features="sobol", generator=gen())
        return uses(paths, 2, device)

    agree(of)


@pytest.mark.parametrize("name", MODELS)
def test_frequencies_by_leverage_agree_to_the_rounding_of_single_precision(name):
    """Leverage is computed in float32. Draws of ill-conditioned models differed by up to 1.3e-4 on an H200."""

    def of(device: str) -> Tensor:
        return matheron.draw(model(name).to(device, torch.float64), 5, generator=gen())(rand(7, 2, seed=3).to(device))

    agree(of, 1e-3)


@pytest.mark.parametrize("d", [1, 2, 3, 5])
@pytest.mark.parametrize("features", ["auto", "leverage", "sobol", "cosine", "lattice"])
def test_every_kind_of_features_with_a_domain_and_points_given_on_the_device(features, d):
    if features == "lattice" and d > 3:
        pytest.skip("lattices are for three dimensions")

    def of(device: str) -> list[Tensor]:
        box = torch.zeros(d).to(device), torch.ones(d).to(device)
        where = None if features == "lattice" else rand(20, d, seed=8).to(device)
        options: dict[str, Any] = {"features": features, "generator": gen()}
        if where is not None:
            options["num_features"] = 512
        gp = exact(device, d, K.RBF(0.5))
        found = uses(matheron.draw(gp, 4, domain=box, **options), d, device)
        if where is not None:
            found += uses(matheron.draw(gp, 4, where=where, paths_per_basis=2, **options), d, device)
        return found

    agree(of, 1e-6)


@pytest.mark.parametrize("solver", ["cholesky", "cg", "lattice", solvers.BlockDescent()], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_every_solver(solver, dtype):
    options: dict[str, Any] = {"domain": ([0.0, 0.0], [1.0, 1.0])} if solver == "lattice" else {"features": "sobol"}
    tolerance = 1e-4 if dtype == torch.float64 else 5e-3  # iterations stop a little apart
    agree(
        lambda device: uses(
            matheron.draw(exact(device, 2, dtype=dtype), 4, solver=solver, generator=gen(), **options), 2, device
        ),
        tolerance,
    )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"strategy": "weight-space"},
        {"strategy": "random"},
        {"trust_region": 0.3},
        {"spread": 0.5},
        {"greedy": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("bounds", ["list", "device"])
def test_suggestions(options, bounds):
    def of(device: str) -> Tensor:
        box: Any = [[0.0, 0.0], [1.0, 1.0]]
        box = box if bounds == "list" else torch.tensor(box, dtype=torch.float64, device=device)
        x = thompson.suggest(exact(device), box, 3, generator=gen(), mesh_size=512, num_starts=8, **options)
        return x.to(device) if options.get("strategy") == "random" and bounds == "list" else x

    agree(of, 1e-4)


def test_suggestions_in_function_space_and_beside_pending_points():
    box = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    suggest = partial(thompson.suggest, q=2, mesh_size=4096)
    agree(lambda on: suggest(exact(on), box.to(on), strategy="function-space", generator=gen()))
    agree(lambda on: suggest(exact(on), box.to(on), pending=rand(2, 2).to(on), generator=gen()), 1e-4)


def test_searches_and_a_whole_optimisation():
    box = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    search: dict[str, Any] = {"mesh_size": 512, "num_starts": 8}
    agree(lambda on: matheron.minimize(matheron.draw(exact(on), 6, seed=0), box.to(on), seed=0, **search).x, 1e-4)
    agree(lambda on: matheron.maximize(matheron.draw(exact(on), 6, seed=0), box, seed=0, **search).value, 1e-6)
    study = thompson.minimize_function(
        lambda x: float((x - 0.3).square().sum()), box.to(DEVICE), 12, 3, seed=0, **search
    )
    assert study.best_value < 0.1


def test_moments_likelihoods_and_other_samplers():
    x = rand(6, 2)
    agree(lambda on: moments(exact(on), x.to(on)))
    agree(lambda on: location_scale(exact(on), 4, generator=gen())(x.to(on)), 1e-6)
    agree(lambda on: weight_space(exact(on), 4, num_features=128, generator=gen())(x.to(on)), 1e-6)
    agree(lambda on: matheron.log_marginal_likelihood(exact(on)))
    agree(lambda on: [matheron.leave_one_out(exact(on)).mean, matheron.leave_one_out(exact(on)).variance])


def test_a_fit_and_its_diagnosis():
    def of(device: str) -> list[Tensor]:
        X, y = data(2, 60)
        gp = matheron.fit(1.0 * K.Matern(2.5, [1.0, 1.0]), X.to(device), y.to(device), seed=0)
        paths = matheron.draw(gp, 64, generator=gen())
        found = matheron.diagnose(paths, gp, rand(20, 2, seed=3).to(device))
        assert str(found)
        return [paths(rand(5, 2, seed=4).to(device))]

    agree(of, 1e-3)


def test_a_fit_on_a_lattice():
    """Outputs beside explicit terms: everything that a gradient is made of."""

    def of(device: str) -> Tensor:
        kernel = K.Coregional(K.RBF(0.3) + K.Constant(0.4), [[1.2, 0.7], [0.7, 0.9]]) + 0.2 * K.Polynomial(2, 0.4)
        X, y = (value.to(device) for value in data(1, 200))
        tasks = (torch.arange(200) % 2).to(device)
        settings: Any = dict(tasks=tasks, priors={"noise": torch.distributions.Gamma(1.1, 30.0)}, solver="lattice")
        gp = matheron.fit(kernel, X, y, num_starts=1, seed=0, **settings)
        return torch.stack([matheron.log_marginal_likelihood(gp)])

    agree(of, 1e-3)

    def fitted(device: str) -> Tensor:
        X, y = data(2, 300)
        gp = matheron.fit(1.0 * K.RBF([1.0, 1.0]), X.to(device), y.to(device), solver="lattice", num_starts=1, seed=0)
        return torch.cat([value.reshape(-1) for value in gp.kernel.buffers()])

    agree(fitted, 1e-3)


def test_grids_and_fields():
    axes = [torch.linspace(0, 1, 9, dtype=torch.float64), torch.linspace(0, 1, 8, dtype=torch.float64)]
    draw = partial(matheron.draw, features="sobol")
    agree(lambda on: draw(exact(on), 3, generator=gen()).on_grid([a.to(on) for a in axes]))


def test_roll_outs_with_actions():
    def of(device: str) -> Tensor:
        X, y = data(2)
        gp = matheron.ExactGP(K.RBF(0.6), X.to(device), y.to(device), noise=1e-2)
        paths = matheron.draw(gp, 4, generator=gen())
        return matheron.rollout(
            paths, torch.zeros(1, dtype=torch.float64, device=device), 6, dt=0.1, actions=rand(3, 6, 1).to(device)
        )

    agree(of, 1e-6)
