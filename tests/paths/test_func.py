"""torch.func's transforms of paths: the derivatives that autograd takes, in every kernel's own formulas."""

import copy
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap

import matheron
from examples import paths_of, rand, randn
from matheron import kernels as K

KERNELS = {
    "RBF": K.RBF([0.4, 0.7]),
    "Matern 3/2": K.Matern(1.5, [0.4, 0.7]),
    "Matern 5/2": K.Matern(2.5, 0.5),
    "Matern 1.8": K.Matern(1.8, 0.5),
    "rational quadratic": K.RationalQuadratic(1.2, 0.6),
    "sum and product": 0.5 * K.Matern(2.5, 0.5) * K.Periodic(0.8, 1.0) + K.Linear(0.3) + 1.0,
    "one dimension": K.Matern(2.5, 0.3).on(0) + K.RBF(0.5).on(1),
}


@pytest.mark.parametrize("domain", [None, ([0.0, 0.0], [1.0, 1.0])], ids=["leverage", "lattice"])
@pytest.mark.parametrize("name", KERNELS)
def test_func_s_derivatives_are_autograd_s(name, domain):
    X = torch.rand(12, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    gp = matheron.ExactGP(KERNELS[name], X, X.sum(1).sin(), noise=1e-2)
    paths = matheron.draw(gp, 3, domain=domain, num_features=64, seed=0)
    x = torch.cat([X[:1], 0.1 + 0.8 * torch.rand(4, 2, dtype=torch.float64)])  # a datum among them

    def at(point):
        return paths(point[None])[:, 0]

    expected = paths.value_and_grad(x)[1].transpose(0, 1)  # [n, s, d]
    torch.testing.assert_close(vmap(at)(x), paths(x).T)
    torch.testing.assert_close(vmap(jacrev(at))(x), expected)
    torch.testing.assert_close(vmap(jacfwd(at))(x), expected)
    torch.testing.assert_close(vmap(grad(lambda point: at(point).sum()))(x), expected.sum(1))
    torch.testing.assert_close(jvp(paths, (x,), (torch.ones_like(x),))[1], expected.sum(-1).T)
    curvature = torch.autograd.functional.hessian(lambda point: at(point).sum(), x[1])
    torch.testing.assert_close(hessian(lambda point: at(point).sum())(x[1]), curvature)
    torch.testing.assert_close(jacrev(jacrev(at))(x[1]).sum(0), curvature)


def test_many_points_and_paths_under_a_transform_are_cut_into_blocks(small_blocks):
    small_blocks(1 << 12)
    X = torch.rand(12, 2, dtype=torch.float64)
    paths = matheron.draw(matheron.ExactGP(K.Matern(1.5, 0.4), X, X.sum(1), noise=1e-2), 40, seed=0)
    x = torch.rand(3, 50, 2, dtype=torch.float64)
    torch.testing.assert_close(vmap(paths)(x), torch.stack([paths(one) for one in x]))
    torch.testing.assert_close(
        vmap(grad(lambda points: paths(points).sum()))(x),
        torch.stack([paths.value_and_grad(one)[1].sum(0) for one in x]),
    )


BOX = (0.0, 1.0)
X, Y = rand(8, 2, seed=1), randn(8, seed=2)
PATHS = {
    "prior": lambda: paths_of("prior", 2),
    "random features": lambda: paths_of("exact", 2, features="sobol"),
    "leverage": lambda: paths_of("exact", 2),
    "one path": lambda: paths_of("exact", 1),
    "composite": lambda: paths_of("exact, composite", 2),
    "transforms": lambda: paths_of("exact, transforms", 2),
    "several outputs": lambda: paths_of("exact, coupled", 2),
    "sparse": lambda: paths_of("sparse", 2),
    "sparse, several outputs": lambda: paths_of("sparse, coupled", 2),
    "lattice": lambda: paths_of("exact", 2, domain=BOX, features="lattice", tolerance=0.1),
    "update on the lattice": lambda: matheron.draw(
        matheron.ExactGP(K.RBF(0.5), X, Y, noise=0.1), 2, domain=BOX, solver="lattice", seed=0
    ),
    "conditioned": lambda: paths_of("exact", 2).condition_on(X[:2], Y[:2], noise=0.1, seed=0),
    "float32": lambda: paths_of("exact", 2).float(),
    "ensemble": lambda: matheron.draw(
        matheron.Ensemble([matheron.ExactGP(K.RBF(scale), X, Y, noise=0.1) for scale in (0.3, 0.5)]), 2, seed=0
    ),
    "drawn in inference mode": torch.inference_mode()(lambda: paths_of("exact, transforms", 2, features="sobol")),
}
TRANSFORMS = {
    "call": lambda f, x: f(x[0]),
    "autograd": lambda f, x: torch.autograd.grad(f(at := x[0].clone().requires_grad_()), at)[0],
    "inference": lambda f, x: torch.inference_mode()(f)(x[0].clone()),
    "vmap": lambda f, x: vmap(f)(x),
    "grad": lambda f, x: grad(f)(x[0]),
    "vmap(grad)": lambda f, x: vmap(grad(f))(x),
    "jvp": lambda f, x: jvp(f, (x[0],), (torch.ones_like(x[0]),))[1],
    "hessian": lambda f, x: hessian(f)(x[0]),
    "vmap(hessian)": lambda f, x: vmap(hessian(f))(x),
    "grad(grad)": lambda f, x: grad(lambda at: grad(f)(at).sum())(x[0]),
    "jacrev(jacrev)": lambda f, x: jacrev(jacrev(f))(x[0]),
    "another's gradient": lambda f, x: grad(lambda a: a * f(x[0]))(x[0, 0]),  # plain points inside a transform
}


@pytest.mark.parametrize("kind", PATHS)
def test_no_transform_is_remembered_by_the_paths_that_it_was_first_used_on(kind):
    """Each transform first, on paths that were never called, and then others."""
    paths = PATHS[kind]()
    x = (0.1 + 0.8 * rand(2, 2, seed=5)).to(paths.dtype)

    def of(paths):
        return lambda point: paths(point[None]).sum()

    expected = {name: transform(of(copy.deepcopy(paths)), x) for name, transform in TRANSFORMS.items()}
    gradients = [paths.value_and_grad(at[None])[1].flatten(0, -2).sum(0) for at in x]
    tolerance: Any = {"rtol": 1e-4, "atol": 1e-4} if paths.dtype == torch.float32 else {"rtol": 1e-8, "atol": 1e-8}
    torch.testing.assert_close(expected["vmap(grad)"], torch.stack(gradients), **tolerance)
    torch.testing.assert_close(expected["jacrev(jacrev)"], expected["hessian"], **tolerance)
    for first, transform in TRANSFORMS.items():
        fresh = copy.deepcopy(paths)
        transform(of(fresh), x)
        for second in ("call", "autograd", "vmap(grad)", "jvp", "hessian"):
            found = TRANSFORMS[second](of(fresh), x)
            torch.testing.assert_close(found, expected[second], **tolerance, msg=f"{second} after {first} is wrong")


HYPERPARAMETERS = {
    "lengthscale": lambda theta: K.Matern(2.5, theta),
    "outputscale": lambda theta: theta * K.RBF(0.5),
    "alpha": lambda theta: K.RationalQuadratic(theta, 0.5),
    "period": lambda theta: K.Periodic(theta, 0.8) * K.RBF(1.0),
    "lengthscale of a periodic kernel": lambda theta: K.Periodic(0.8, theta),
    "lengthscale of a spherical kernel": lambda theta: K.Spherical(theta),
    "one of two factors": lambda theta: K.Matern(1.5, theta) * K.RationalQuadratic(1.0, 0.6) + K.Linear(0.3),
}


@pytest.mark.parametrize("settings", [{}, {"features": "sobol"}, {"domain": BOX, "tolerance": 0.1}], ids=str)
@pytest.mark.parametrize("name", HYPERPARAMETERS)
def test_func_s_derivatives_in_a_hyperparameter_are_autograd_s(name, settings):
    def drawn(theta, **more):
        gp = matheron.ExactGP(HYPERPARAMETERS[name](theta), X, Y, noise=0.1)
        return matheron.draw(gp, 2, seed=0, num_features=64, detach=False, **settings, **more)(X + 0.01).sum()

    theta = torch.tensor(0.7, dtype=torch.float64)
    leaf = theta.clone().requires_grad_()
    (expected,) = torch.autograd.grad(drawn(leaf), leaf)
    torch.testing.assert_close(grad(drawn)(theta), expected)
    torch.testing.assert_close(jvp(drawn, (theta,), (torch.ones_like(theta),))[1], expected)


def test_a_first_draw_inside_a_transform_or_inference_mode_leaves_nothing_behind():
    """Tables are kept by the process, so that this takes one of its own."""
    code = """
import torch, matheron
from matheron import kernels as K
X = torch.rand(8, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
kernel = K.Matern(2.5, 0.5) * K.RationalQuadratic(1.0, 1.0) + K.Spherical(0.7) + K.Periodic(0.8, 1.0)
def drawn(scale):
    gp = matheron.ExactGP(scale * kernel, X, X.sum(1), noise=0.1)
    return sum(matheron.draw(gp, 2, seed=0, detach=False, **more)(X).sum() for more in ({}, {"domain": (0.0, 1.0)}))
one = torch.ones((), dtype=torch.float64)
inside = torch.func.grad(drawn)(one)
with torch.inference_mode():
    matheron.draw(matheron.ExactGP(K.Matern(1.5, 0.3), X, X[:, 0], noise=0.1), 2, seed=0)(torch.rand(20000, 1))
leaf = one.clone().requires_grad_()
torch.testing.assert_close(torch.autograd.grad(drawn(leaf), leaf)[0], inside)
torch.testing.assert_close(torch.func.grad(drawn)(one), inside)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_draws_from_a_batch_of_targets_by_vmap():
    def drawn(y, detach):
        return matheron.draw(matheron.ExactGP(K.RBF(0.5), X, y, noise=0.1), 2, seed=0, detach=detach)(X)

    several = torch.stack([Y, 2 * Y])
    batched = vmap(lambda y: drawn(y, False), randomness="same")(several)
    torch.testing.assert_close(batched, torch.stack([drawn(y, True) for y in several]))
    with pytest.raises(TypeError, match="got a batch of torch"):
        vmap(lambda y: drawn(y, True), randomness="same")(several)
