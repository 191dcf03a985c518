"""Vector fields without curl or divergence: zero to rounding, and the law of the dense closed form of their kernel.

The closed form here is that of the vector field itself: with H(r) = -grad grad k(r), a gradient has the covariance H,
and a curl tr(H) I - H, in two dimensions and in three.
"""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import matheron
from matheron import fields, kernels
from standard import assert_moments, basis_error

DOUBLE = torch.float64
KINDS = [("curl", 2), ("curl", 3), ("divergence", 2), ("divergence", 3)]
RBF, MATERN = 1.3 * kernels.RBF(0.6), kernels.Matern(2.5, 0.7)


def points(n: int, d: int, seed: int) -> Tensor:
    return torch.rand(n, d, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def drawn(kind: str, kernel, X: Tensor, v: Tensor, noise, num_paths: int, **settings: Any):
    draw = fields.curl_free if kind == "curl" else fields.divergence_free
    return draw(kernel, X, v, noise, num_paths, **settings)


def hessian(kernel, r: Tensor) -> Tensor:
    """H(r) `[.., d, d]` of differences `[.., d]`."""
    d = r.shape[-1]
    eye, outer = torch.eye(d, dtype=DOUBLE), r[..., :, None] * r[..., None, :]
    if kernel is RBF:
        k = 1.3 * (-0.5 * r.square().sum(-1) / 0.6**2).exp()[..., None, None]
        return k * (eye / 0.6**2 - outer / 0.6**4)
    a = (math.sqrt(5) * r.norm(dim=-1) / 0.7)[..., None, None]
    return 5 / (3 * 0.7**2) * (-a).exp() * ((1 + a) * eye - 5 / 0.7**2 * outer)


def covariance(kind: str, kernel, x: Tensor, z: Tensor) -> Tensor:
    """Of vectors at x and z, point by point: `[n d, m d]`."""
    H = hessian(kernel, x[:, None] - z)  # [n, m, d, d]
    if kind == "divergence":
        H = H.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None] * torch.eye(x.shape[1], dtype=DOUBLE) - H
    return H.transpose(1, 2).flatten(2).flatten(0, 1)


@pytest.mark.parametrize("kernel", [RBF, MATERN], ids=["RBF", "Matern 5/2"])
@pytest.mark.parametrize("kind, d", KINDS)
def test_fields_have_the_law_of_the_vector_kernels_posterior(kind, d, kernel):
    X, x = points(8, d, 0), points(4, d, 1)
    v = torch.randn(8, d, generator=torch.Generator().manual_seed(2), dtype=DOUBLE)
    noise = 0.05 + points(8, d, 3)
    K_xn = covariance(kind, kernel, x, X)
    G = torch.linalg.solve(covariance(kind, kernel, X, X) + noise.flatten().diag(), K_xn.mT)
    mean, cov = G.mT @ v.flatten(), covariance(kind, kernel, x, x) - K_xn @ G
    flow = drawn(kind, kernel, X, v, noise, 2000, seed=1, paths_per_basis=8)
    torch.testing.assert_close(flow.mean(x).flatten(), mean, atol=1e-6, rtol=0)
    assert_moments(flow(x).flatten(1), mean, cov, basis_error=basis_error(1024, 250))
    if kernel is RBF:
        other = drawn(kind, 1.3 * kernels.RBF(0.66), X, v, noise, 2000, seed=0, paths_per_basis=8)
        with pytest.raises(AssertionError):
            assert_moments(other(x).flatten(1), mean, cov, basis_error=basis_error(1024, 250))


@pytest.mark.parametrize("settings", [{}, dict(domain=(-0.2, 1.2)), dict(features="cosine")], ids=str)
@pytest.mark.parametrize("kind, d", KINDS)
def test_curl_or_divergence_is_zero_to_rounding(kind, d, settings):
    X, x = points(20, d, 0), points(30, d, 1)
    flow = drawn(kind, RBF, X, torch.sin(5 * X), 1e-4, 6, seed=0, **settings)
    assert (flow.num_paths, flow.num_outputs) == (6, d)
    dv = flow.value_and_grad(x)[1]  # [s, n, d, d]
    whole = flow.gradient()(x).unflatten(-1, (d, d))
    torch.testing.assert_close(whole, dv)
    zero = dv - dv.mT if kind == "curl" else dv.diagonal(dim1=-2, dim2=-1).sum(-1)
    assert float(zero.abs().max()) < 1e-9 * float(dv.abs().max())
    not_zero = dv.diagonal(dim1=-2, dim2=-1).sum(-1) if kind == "curl" else dv - dv.mT
    assert float(not_zero.abs().max()) > 0.1 * float(dv.abs().max())


@pytest.mark.parametrize("kind, d", KINDS)
def test_velocities_without_noise_are_met_and_fields_are_functions(kind, d, tmp_path):
    X = points(6, d, 0)
    v = torch.randn(6, d, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
    flow = drawn(kind, MATERN, X, v, 0.0, 3, seed=0)
    torch.testing.assert_close(flow(X), v.expand(3, -1, -1), atol=1e-6, rtol=0)
    own = points(3, d, 2)[:, None]
    torch.testing.assert_close(flow(own)[:, 0], flow(own[:, 0])[[0, 1, 2], [0, 1, 2]])
    axes = [torch.linspace(0, 1, n, dtype=DOUBLE) for n in (3, 4, 2)[:d]]
    torch.testing.assert_close(flow.on_grid(axes).flatten(1, -2), flow(torch.cartesian_prod(*axes)))
    flow.save(tmp_path / "flow.safetensors")
    loaded = matheron.load(tmp_path / "flow.safetensors")
    assert isinstance(loaded, matheron.AbstractFunctions)
    assert torch.equal(loaded(X), flow(X))
    field = flow.to_xarray(dict(zip("xyz", axes, strict=False)))
    assert set(field.dims) > set("xyz"[:d])


def test_noise_is_a_number_or_one_for_each_place_or_each_component():
    X, v = points(5, 2, 0), points(5, 2, 1)
    each, place = points(5, 2, 2), points(5, 1, 3)

    def at(noise):
        return fields.divergence_free(RBF, X, v, noise, 2, seed=0).mean(X)

    assert torch.equal(at(0.1), at(torch.full((5, 2), 0.1, dtype=DOUBLE)))
    assert torch.equal(at(place[:, 0]), at(place.expand(5, 2)))
    assert not torch.allclose(at(each), at(each.flip(1)))


def test_a_linear_kernel_adds_a_current_that_is_the_same_everywhere():
    X = points(10, 2, 0)
    current = torch.tensor([3.0, -1.0], dtype=DOUBLE)
    flow = fields.divergence_free(0.01 * kernels.RBF(0.3) + 100.0 * kernels.Linear(), X, current.expand(10, 2), 1e-4, 4)
    far = 100 + points(3, 2, 1)
    torch.testing.assert_close(flow.mean(far), current.expand(3, 2), atol=0.05, rtol=0)


X2 = points(4, 2, 0)


@pytest.mark.parametrize(
    "make, error, match",
    [
        (lambda: fields.divergence_free(RBF, X2, torch.zeros(4), 0.1, 2), ValueError, r"velocities: expected \[4, 2\]"),
        (lambda: fields.curl_free(RBF, X2, torch.zeros(4, 2), torch.zeros(2, 2), 2), ValueError, "each place"),
        (lambda: fields.divergence_free(RBF, X2[:, :1], X2[:, :1], 0.1, 2), ValueError, "two or three dimensions"),
        (lambda: fields.curl_free(kernels.Matern(0.5), X2, X2, 0.1, 2), TypeError, "smoother kernel"),
        (lambda: fields.curl_free(kernels.Coregional(RBF, torch.eye(2)), X2, X2, 0.1, 2), ValueError, "one output"),
        (lambda: fields.curl_free("RBF", X2, X2, 0.1, 2), TypeError, "kernel of matheron.kernels"),  # pyright: ignore
    ],
)
def test_refusals_say_what_to_do(make, error, match):
    with pytest.raises(error, match=match):
        make()
