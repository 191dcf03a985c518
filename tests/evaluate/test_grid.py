"""Paths on a grid are the paths at the list of its points."""

import subprocess
import sys

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import matheron
from matheron import kernels as K
from matheron.evaluate import grid
from matheron.models.transforms import Affine

B = torch.tensor([[1.0, 0.5], [0.5, 2.0]], dtype=torch.float64)
KERNELS = {
    "RBF": K.RBF([0.3, 0.4]),
    "Matern, which does not separate": K.Matern(2.5, 0.3),
    "sum of separable kernels": 2.0 * K.RBF(0.3) + K.Periodic(1.0, [0.5, 1.0]) + K.Constant(0.5),
    "product over dimensions": K.RBF(0.3).on(0) * K.Matern(1.5, 0.2).on(1),
    "linear in a coordinate": K.RBF(0.3).on(1) * K.Polynomial(2, 0.5).on(0) + K.Linear(0.3).on(1),
    "separable and not": K.RBF(0.3).on(0) * K.Matern(1.5, 0.2).on(1) + K.Linear(),
    "coupled": K.Coregional(K.RBF(0.3), B) + K.Coregional(K.Matern(0.5, 0.3), B),
}


def draw(kernel, generator, **settings):
    X = torch.rand(12, 2, dtype=torch.float64, generator=generator)
    t = kernel.num_outputs
    y = torch.randn(12, t, dtype=torch.float64, generator=generator)
    gp = matheron.ExactGP(kernel, X, y if t > 1 else y[:, 0], 1e-2, mean=lambda x: x.sum(-1))
    return matheron.draw(gp, 5, num_features=65, generator=generator, **settings)


@pytest.mark.parametrize("settings", [{}, {"paths_per_basis": 1}, {"paths_per_basis": 2, "features": "cosine"}])
@pytest.mark.parametrize("name", KERNELS)
def test_a_grid_gives_the_values_of_its_list_of_points(name, settings, generator):
    paths = draw(KERNELS[name], generator, **settings)
    a, b = torch.linspace(0, 1, 7), torch.linspace(-1, 2, 9)
    listed = paths(torch.cartesian_prod(a, b)).unflatten(1, (7, 9))
    torch.testing.assert_close(paths.on_grid([a, b]), listed, rtol=1e-11, atol=1e-11)


def test_one_and_three_dimensions_and_small_blocks(generator, monkeypatch):
    monkeypatch.setattr(grid, "_BLOCK", {"cpu": 300})
    for d in (1, 3):
        paths = matheron.draw_prior(K.RBF(0.3), 2, input_dim=d, num_features=33, generator=generator)
        axes = [torch.linspace(0, 1, 4 + i) for i in range(d)]
        points = torch.cartesian_prod(*axes).reshape(-1, d)
        listed = paths(points).unflatten(1, [len(axis) for axis in axes])
        torch.testing.assert_close(paths.on_grid(axes), listed, rtol=1e-11, atol=1e-11)


def test_transforms_apply_on_a_grid(generator):
    X = torch.rand(6, 2, dtype=torch.float64, generator=generator)
    gp = matheron.ExactGP(
        K.RBF(0.3),
        X,
        X.sum(1),
        1e-2,
        input_transform=Affine([2.0, 0.5], [0.1, -0.2]),
        output_transform=Affine(3.0, 1.0),
    )
    paths = matheron.draw(gp, 3, num_features=64, generator=generator)
    axes = [torch.linspace(0, 1, 5), torch.linspace(0, 1, 6)]
    listed = paths(torch.cartesian_prod(*axes)).unflatten(1, (5, 6))
    torch.testing.assert_close(paths.on_grid(axes), listed, rtol=1e-11, atol=1e-11)


def test_trigonometric_functions_are_of_the_axes_and_not_of_the_grid(generator):
    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            if func.overloadpacket in (
                torch.ops.aten.cos,
                torch.ops.aten.sin,
                torch.ops.aten.polar,
                torch.ops.aten.exp,
            ):
                largest = max(largest, out.numel())
            return out

    paths = draw(K.RBF(0.3), generator)
    with Watch():
        paths.on_grid([torch.linspace(0, 1, 50), torch.linspace(0, 1, 60)])
    assert 0 < largest <= 60 * 65


def test_axes_that_do_not_fit_are_refused(generator):
    paths = draw(K.RBF(0.3), generator)
    with pytest.raises(ValueError, match="axes: expected 2, one per dimension, got 1"):
        paths.on_grid([[0.0, 1.0]])
    with pytest.raises(ValueError, match="axes: expected lists of numbers"):
        paths.on_grid([[[0.0, 1.0]], [0.0]])


MEASURE = """
import resource, torch, matheron
from matheron import kernels as K

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # MiB on Linux

X, y = torch.rand(20, 3, dtype=torch.float64), torch.randn(20, dtype=torch.float64)
gp = matheron.ExactGP(K.RBF(0.2), X, y, 0.1, mean=lambda x: x.sum(-1))
paths = matheron.draw(gp, 1, num_features=16, features="sobol")
axes = [torch.linspace(0, 1, n, dtype=torch.float64) for n in (120, 130, 140)]
paths.on_grid([axis[:8] for axis in axes])  # what stays
out = torch.zeros(1, 120, 130, 140, dtype=torch.float64) + 1
before = peak()
paths.on_grid(axes, out=out)
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="measures resident memory as Linux counts it")
def test_the_list_of_a_grids_points_is_never_made():
    """In a process of its own: the list would be 50 MiB here, and one more array of values 17."""
    run = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True)
    assert float(run.stdout) < 24
