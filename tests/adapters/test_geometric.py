"""Kernels of GeometricKernels: values, features and draws against the library's own dense posterior, space by space."""

# pyright: reportMissingImports=false

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("geometric_kernels", reason="GeometricKernels has an environment of its own: make test-geometric")

from geometric_kernels import spaces
from geometric_kernels.kernels import MaternGeometricKernel, ProductGeometricKernel

import matheron
from examples import gen, rand, randn
from matheron import fields
from matheron import kernels as K
from matheron.adapters import geometric
from standard import assert_moments


def grid(rows: int, columns: int) -> np.ndarray:
    """The adjacency of a grid of streets, some of them longer."""
    A = np.zeros((rows * columns, rows * columns))
    for i in range(rows * columns):
        for j in ([i + 1] if (i + 1) % columns else []) + ([i + columns] if i + columns < len(A) else []):
            A[i, j] = A[j, i] = 1.0 / (1 + (i + j) % 3)
    return A


def torus(n: int, m: int) -> tuple[np.ndarray, np.ndarray]:
    """Vertices and triangles of a torus."""
    u, v = (a.ravel() for a in np.meshgrid(np.arange(n), np.arange(m), indexing="ij"))
    a, b = 2 * np.pi * u / n, 2 * np.pi * v / m
    vertices = np.stack([(2 + np.cos(b)) * np.cos(a), (2 + np.cos(b)) * np.sin(a), np.sin(b)], axis=1)

    def at(i: np.ndarray, j: np.ndarray) -> np.ndarray:
        return (i % n) * m + j % m

    triangles = [[at(u, v), at(u + 1, v), at(u, v + 1)], [at(u + 1, v), at(u + 1, v + 1), at(u, v + 1)]]
    return vertices, np.concatenate([np.stack(t, axis=1) for t in triangles])


@cache
def space_of(name: str) -> Any:
    return {
        "sphere": lambda: spaces.Hypersphere(2),
        "graph": lambda: spaces.Graph(grid(4, 6)),
        "mesh": lambda: spaces.Mesh(*torus(12, 8)),
        "SO(3)": lambda: spaces.SpecialOrthogonal(3),
        "SU(2)": lambda: spaces.SpecialUnitary(2),
        "circle": lambda: spaces.Circle(),
        "hypercube": lambda: spaces.HypercubeGraph(5),
        "Hamming": lambda: spaces.HammingGraph(4, 3),
        "sphere in five dimensions": lambda: spaces.Hypersphere(4),
        "hyperbolic plane": lambda: spaces.Hyperbolic(2),
    }[name]()


NUM = {"mesh": 60, "SO(3)": 10, "SU(2)": 8, "sphere in five dimensions": 25, "hyperbolic plane": 40}
SPACES = ["sphere", "graph", "mesh", "SO(3)", "SU(2)", "circle", "hypercube", "Hamming", "sphere in five dimensions"]
SPACES += ["hyperbolic plane"]


@cache
def kernel_of(name: str) -> Any:
    if name == "hyperbolic plane":
        return MaternGeometricKernel(space_of(name), num=NUM[name], key=torch.Generator().manual_seed(1))
    return MaternGeometricKernel(space_of(name), num=NUM.get(name))


PARAMS = {"nu": np.array([2.5]), "lengthscale": np.array([0.9])}


def points(name: str, n: int, seed: int = 0) -> tuple[Tensor, Any]:
    """Different points of a space `[n, d]`, and the same as the library has them."""
    space, random = space_of(name), np.random.RandomState(seed)
    if name in ("graph", "mesh"):
        elements = random.permutation(space.num_vertices)[:n, None]
    elif name == "hyperbolic plane":
        spatial = random.randn(n, 2)
        elements = np.concatenate([np.sqrt(1 + (spatial**2).sum(1, keepdims=True)), spatial], axis=1)
    else:
        elements = np.asarray(space.random(random, n)[1])
    flat: Any = elements.reshape(n, -1)
    flat = np.concatenate([flat.real, flat.imag], axis=1) if np.iscomplexobj(flat) else flat
    return torch.from_numpy(flat.astype(np.float64)), torch.from_numpy(elements)


def theirs(name: str, a: Any, b: Any) -> Tensor:
    """The library's own covariance."""
    params = {key: torch.from_numpy(value) for key, value in PARAMS.items()}
    return torch.as_tensor(kernel_of(name).K(params, a, b))


@pytest.mark.parametrize("name", SPACES)
def test_values_are_the_library_s(name):
    (x, a), (z, b) = points(name, 7), points(name, 5, seed=1)
    ours = geometric.translate(kernel_of(name), PARAMS)
    torch.testing.assert_close(ours(x, z), theirs(name, a, b))
    torch.testing.assert_close(ours.diag(x), theirs(name, a, a).diagonal())
    torch.testing.assert_close(ours.forward(torch.stack([x, x]), z)[1], theirs(name, a, b))
    torch.testing.assert_close(ours.nearest(x), x)


@pytest.mark.parametrize("name", SPACES)
def test_features_have_the_kernel_as_their_mean(name):
    found = K.check_features(geometric.translate(kernel_of(name), PARAMS), points(name, 8)[0], 512)
    assert not found.found, str(found)
    if name in ("sphere", "graph", "mesh", "circle", "hypercube", "hyperbolic plane"):
        assert found.chance < 1e-9 and found.bias < 1e-9


@pytest.mark.parametrize("name", SPACES)
def test_draws_have_the_law_of_the_library_s_posterior(name):
    (X, a), (x, b), y = points(name, 9), points(name, 6, seed=3), randn(9)
    gp = matheron.ExactGP(1.7 * geometric.translate(kernel_of(name), PARAMS), X, y, 0.05)
    paths = matheron.draw(gp, 3000, num_features=256, paths_per_basis=30, generator=gen())
    G = torch.linalg.solve(1.7 * theirs(name, a, a) + 0.05 * torch.eye(9), 1.7 * theirs(name, a, b))
    covariance = 1.7 * theirs(name, b, b) - G.mT @ (1.7 * theirs(name, a, b))
    exact = name in ("sphere", "graph", "mesh", "circle", "hypercube", "hyperbolic plane")
    assert_moments(paths(x), G.mT @ y, covariance, basis_error=0.0 if exact else 0.06)
    given = paths[:4].condition_on(x[:1], [2.0], noise=0.0)
    torch.testing.assert_close(given(x[:1]), torch.full((4, 1), 2.0).double(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(paths[:4].float()(x.float()).double(), paths[:4](x), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(paths[:4](x.expand(4, -1, -1)), paths[:4](x))
    assert "features of GeometricKernel" in paths.prior.features.description


def test_a_product_with_time_has_the_posterior_s_law():
    nodes, a = points("graph", 10)
    later, b = points("graph", 6, seed=3)
    X, x, y = torch.cat([nodes, rand(10, 1)], 1), torch.cat([later, rand(6, 1, seed=2)], 1), randn(10)
    kernel = geometric.translate(kernel_of("graph"), PARAMS).on(0) * K.RBF(0.5).on(1)

    def k(at: Any, p: Tensor, other: Any, q: Tensor) -> Tensor:
        return theirs("graph", at, other) * torch.exp(-2 * (p[:, 1:] - q[:, 1:].mT).square())

    paths = matheron.draw(matheron.ExactGP(kernel, X, y, 0.05), 3000, num_features=512, paths_per_basis=6, seed=0)
    G = torch.linalg.solve(k(a, X, a, X) + 0.05 * torch.eye(10), k(a, X, b, x))
    assert_moments(paths(x), G.mT @ y, k(b, x, b, x) - G.mT @ k(a, X, b, x), basis_error=0.04)


def test_gradients_on_the_sphere_are_those_of_autograd():
    (X, _), (x, _) = points("sphere", 9), points("sphere", 5, seed=3)
    gp = matheron.ExactGP(geometric.translate(kernel_of("sphere"), PARAMS), X, randn(9), 0.05)
    paths = matheron.draw(gp, 3, generator=gen())
    value, gradient = paths.value_and_grad(x)
    step = torch.linalg.cross(x, points("sphere", 5, seed=4)[0])  # along the sphere
    ahead, behind = (paths(torch.nn.functional.normalize(x + h * step, dim=-1)) for h in (1e-4, -1e-4))
    torch.testing.assert_close((gradient * step).sum(-1), (ahead - behind) / 2e-4, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(value, paths(x))


def test_fit_finds_the_lengthscale_and_leaves_nodes_as_they_are():
    X, a = points("mesh", 96)
    true = {"nu": torch.tensor([2.5]).double(), "lengthscale": torch.tensor([1.5]).double()}
    covariance = torch.as_tensor(kernel_of("mesh").K(true, a, a))
    y = torch.linalg.cholesky(4 * covariance + 1e-4 * torch.eye(96)) @ randn(96)
    gp = matheron.fit(1.0 * geometric.translate(kernel_of("mesh"), PARAMS), X, y, seed=0, num_starts=2)
    torch.testing.assert_close(gp.train_inputs, X)
    assert 1.0 < matheron.summary(gp).rows["GeometricKernel.lengthscale"] < 2.2


WRONG: dict[str, tuple[str, list[list[float]], str]] = {
    "columns": ("sphere", [[1.0, 0.0]], r"Hypersphere\(2\): expected points \[n, 3\], vectors of length 1, got 2"),
    "length": ("sphere", [[1.0, 1.0, 0.0]], r"Hypersphere\(2\): expected points that are vectors of length 1, got \[1"),
    "a node between nodes": ("graph", [[1.5]], r"Graph\(24.*: expected points that are whole numbers of nodes from 0"),
    "no such node": ("mesh", [[96.0]], r"Mesh\(96.*whole numbers of nodes from 0 to 95, got \[96.0\]"),
    "a reflection": (
        "SO(3)",
        [[1, 0, 0, 0, 1, 0, 0, 0, -1]],
        r"SpecialOrthogonal\(3\): .* rotation matrices, row by row",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_errors_name_the_space(what):
    name, wrong, message = WRONG[what]
    with pytest.raises(ValueError, match=message):
        geometric.translate(kernel_of(name), PARAMS)(torch.tensor(wrong, dtype=torch.float64))


def test_kernels_that_are_not_understood_are_refused_and_the_truncation_is_said(tmp_path):
    both = ProductGeometricKernel(kernel_of("sphere"), kernel_of("circle"))
    with pytest.raises(TypeError, match=r"ProductGeometricKernel on Hypersphere\(2\) x Circle\(\) is not understood"):
        geometric.translate(both)
    with pytest.raises(TypeError, match=r"expected one of geometric_kernels.kernels, got matheron.kernels.radial.RBF"):
        geometric.translate(K.RBF())
    with pytest.raises(TypeError, match=r"matheron.adapters.geometric.translate\(kernel, params\) makes one of it"):
        matheron.ExactGP(kernel_of("sphere"), [[0.0, 0.0, 1.0]], [0.0], 0.1)
    with pytest.raises(ValueError, match=r"params: expected one positive number for 'lengthscale' on Circle\(\)"):
        geometric.translate(kernel_of("circle"), {**PARAMS, "lengthscale": np.array([-1.0])})
    few = MaternGeometricKernel(space_of("sphere"), num=4)
    with pytest.warns(RuntimeWarning, match=r"Hypersphere\(2\): the last of 4 levels has \d+\.\d% of the variance"):
        geometric.translate(few, {**PARAMS, "lengthscale": np.array([0.2])})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = geometric.translate(kernel_of("sphere"))  # the library's own parameters, of a smooth kernel
    assert "25 levels" in repr(ours)
    paths = matheron.draw(matheron.ExactGP(ours, points("sphere", 4)[0], randn(4), 0.1), 2, seed=0)
    with pytest.raises(TypeError, match=r"GeometricKernel, which cannot be saved: .* draw again with the same seed"):
        paths.save(tmp_path / "f")


@pytest.mark.parametrize("nu", [1.5, 2.5, float("inf")])
def test_the_matern_kernel_of_the_sphere_is_that_of_fields(nu):
    kernel = MaternGeometricKernel(spaces.Hypersphere(2), num=40)
    theirs = geometric.translate(kernel, {"nu": np.array([nu]), "lengthscale": np.array([0.7])})
    x = torch.nn.functional.normalize(randn(9, 3), dim=1)
    ours = fields.SphereMatern(nu, 0.7, radius=1.0)(x, x)
    torch.testing.assert_close(ours, theirs(x, x), atol=2e-3 if nu < 2 else 2e-5, rtol=0)


def test_fields_are_fitted_with_the_kernel_of_a_sphere():
    kernel = MaternGeometricKernel(spaces.Hypersphere(2), num=20)
    k = geometric.translate(kernel, {"nu": np.array([2.5]), "lengthscale": np.array([0.5])})
    lonlat = np.stack([np.linspace(-175, 175, 60), 80 * np.sin(np.arange(60))], axis=1)
    x = fields.on_sphere(lonlat, radius=1.0)
    y = 2 * x[:, 0] + torch.sin(3 * x[:, 1])
    model = fields.fit_sphere(lonlat, y, 1.0 * k, noise=1e-2, radius=1.0, num_starts=1)
    paths = fields.draw_field(model, 400, lonlat[::7], seed=0)
    assert float((paths(lonlat[::7]).mean(0) - y[::7]).abs().max()) < 0.1
