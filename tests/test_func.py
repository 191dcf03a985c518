"""torch.func's transforms of paths: the derivatives that autograd takes, in every kernel's own formulas."""

import pytest
import torch
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap

import matheron
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


def test_many_points_and_paths_under_a_transform_are_cut_into_blocks(monkeypatch):
    monkeypatch.setattr("matheron.evaluate.chunked._CPU_BLOCK", 1 << 12)
    X = torch.rand(12, 2, dtype=torch.float64)
    paths = matheron.draw(matheron.ExactGP(K.Matern(1.5, 0.4), X, X.sum(1), noise=1e-2), 40, seed=0)
    x = torch.rand(3, 50, 2, dtype=torch.float64)
    torch.testing.assert_close(vmap(paths)(x), torch.stack([paths(one) for one in x]))
    torch.testing.assert_close(
        vmap(grad(lambda points: paths(points).sum()))(x),
        torch.stack([paths.value_and_grad(one)[1].sum(0) for one in x]),
    )
