"""What every kernel must pass, whatever it is made of."""

import inspect

import numpy as np
import pytest
import torch
from torch import Tensor

from matheron import kernels
from standard import KERNELS, ROUGH, covariance

every_kernel = pytest.mark.parametrize("name", KERNELS)


def case(name: str, n: int = 5, seed: int = 0, dtype=torch.float64):
    """The kernel, and points `[n, d]`."""
    kernel, d = KERNELS[name]
    x = torch.rand(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return kernel, (1.5 * x - 0.25).to(dtype)


def at(kernel, x: Tensor):
    """The kernel in the points' dtype, as paths hold it."""
    return kernel.to(x.device, x.dtype)


def types_in(kernel: kernels.Kernel) -> set[type]:
    return {type(kernel)}.union(*(types_in(part) for _, part in kernel.operands()))


# Those with a test of their own: of outputs, of fidelities from zero to one (test_fidelity.py), of fingerprints.
ELSEWHERE = {kernels.Coregional, kernels.Downsampling, kernels.ExponentialDecay, kernels.LinearTruncated}
ELSEWHERE |= {kernels.Tanimoto}


def test_every_kernel_that_is_exported_is_in_the_battery():
    exported = {
        kind
        for kind in vars(kernels).values()
        if isinstance(kind, type) and issubclass(kind, kernels.Kernel) and not inspect.isabstract(kind)
    }
    missing = exported.difference(*(types_in(kernel) for kernel, _ in KERNELS.values()), ELSEWHERE)
    assert not missing, f"add to KERNELS in tests/standard.py: {missing}"


@every_kernel
def test_values_are_the_formula_s(name):
    kernel, x = case(name)
    z = case(name, n=4, seed=1)[1]
    np.testing.assert_allclose(kernel(x, z), covariance(kernel, x, z), rtol=1e-9, atol=1e-12)
    assert torch.equal(kernel(x.numpy(), z.numpy()), kernel(x, z))


@every_kernel
def test_matrix_is_symmetric_positive_semidefinite_and_has_the_diagonal(name):
    kernel, x = case(name, n=12)
    x = torch.cat([x, x[:2]])  # with coincident points
    K = kernel(x)
    torch.testing.assert_close(K, K.mT, rtol=1e-13, atol=1e-14)
    assert torch.linalg.eigvalsh(K).min() > -1e-12 * K.diagonal().max()
    torch.testing.assert_close(kernel.diag(x), K.diagonal(), rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(K[:2], K[-2:], rtol=1e-7, atol=1e-7)  # a coincident point is the same point
    torch.testing.assert_close(kernel(x, x.clone()), K, rtol=1e-7, atol=1e-7)


@every_kernel
def test_leading_axes_broadcast(name):
    kernel, x = case(name, n=6)
    x, z = x.reshape(3, 1, 2, -1), torch.stack([x, x + 0.1])  # [3, 1, 2, d], [2, 6, d]
    K, dK = kernel.with_gradient(x, z)
    assert K.shape == (3, 2, 2, 6) and dK.shape == (x.shape[-1], 3, 2, 2, 6)
    for i, j in np.ndindex(3, 2):
        one, slopes = kernel.with_gradient(x[i, 0], z[j])
        torch.testing.assert_close(kernel(x, z)[i, j], one)
        torch.testing.assert_close(K[i, j], one)
        torch.testing.assert_close(dK[:, i, j], slopes)
        torch.testing.assert_close(kernel.diag(x)[i, 0], kernel.diag(x[i, 0]))


@every_kernel
def test_no_points_give_no_values(name):
    kernel, x = case(name, n=3)
    assert kernel(x, x[:0]).shape == (3, 0) and kernel(x[:0], x).shape == (0, 3) and kernel.diag(x[:0]).shape == (0,)


@every_kernel
def test_derivatives_are_autograd_s(name):
    kernel, z = case(name, n=4)
    x = torch.cat([case(name, n=3, seed=1)[1], z[:1]]).requires_grad_()  # the last at a centre
    K, dK = kernel.with_gradient(x.detach(), z)
    torch.testing.assert_close(K, kernel(x, z).detach())
    for j in range(4):
        (slope,) = torch.autograd.grad(kernel(x, z)[:, j].sum() + 0 * x.sum(), x)  # a constant is not of x
        torch.testing.assert_close(dK[:, :, j].mT, slope, rtol=1e-6, atol=1e-9)


@every_kernel
@pytest.mark.parametrize("num_problems", [1, 3])
def test_weighted_sums_and_their_gradients_are_those_of_the_matrix(name, num_problems):
    kernel, z = case(name, n=7)
    x = torch.stack([case(name, n=4, seed=1 + b)[1] for b in range(num_problems)])  # [B, n, d]
    W = torch.randn(num_problems, 2, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    value, gradient = kernel.weighted_with_gradient(x, z, W)
    K, dK = kernel.with_gradient(x, z)
    torch.testing.assert_close(value, torch.einsum("brm,bnm->brn", W, K))
    torch.testing.assert_close(gradient, torch.einsum("brm,dbnm->brnd", W, dK))


@every_kernel
def test_gradients_pass_gradcheck(name):
    kernel, x = case(name, n=2)
    x = x[:, :5].contiguous() if x.shape[1] > 5 else x  # 20 dimensions are no harder, only longer
    kernel = kernel if KERNELS[name][1] <= 5 else kernel.on(list(range(5)))
    x, z = x.requires_grad_(), (x.detach() + 0.3).requires_grad_()

    def values(x: Tensor, z: Tensor) -> Tensor:
        return kernel.forward(x, z) + 0 * x.sum()  # a constant is not of x

    assert torch.autograd.gradcheck(values, (x, z))
    assert torch.autograd.gradgradcheck(values, (x, z))


@every_kernel
def test_gradients_in_the_hyperparameters_pass_gradcheck(name):
    kernel, x = case(name, n=3)
    z = case(name, n=2, seed=1)[1]
    buffers: list[Tensor] = []
    kernel.mapped(lambda b: buffers.append(b) or b)
    inputs = [b.clone().requires_grad_() for b in buffers]

    def values(*tensors: Tensor) -> Tensor:
        replacements = iter(tensors)
        return kernel.mapped(lambda _: next(replacements)).forward(x, z)

    assert torch.autograd.gradcheck(values, inputs)


@every_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_at_coincident_points_are_finite(name, dtype):
    kernel, x = case(name, n=3, dtype=dtype)
    x = torch.cat([x, x]).requires_grad_()
    for z in (x, x.detach().clone()):
        (gradient,) = torch.autograd.grad(at(kernel, x).forward(x, z).sum() + 0 * x.sum(), x, create_graph=True)
        assert torch.isfinite(gradient).all()
        if name not in ROUGH and gradient.requires_grad:
            (second,) = torch.autograd.grad(gradient.sum() + 0 * x.sum(), x)
            assert torch.isfinite(second).all()
    K, dK = at(kernel, x).with_gradient(x.detach(), x.detach().clone())
    assert torch.isfinite(K).all() and torch.isfinite(dK).all()


# The bound is eps times the largest phase, some 10 turns; without care the offset alone costs 1e-3.
@every_kernel
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_single_precision_is_close_to_double_also_far_away(name, offset):
    kernel, x = case(name, n=6)
    x = (x * 8 + offset).float()  # to the points that float32 has there
    z = x[:3] + torch.tensor(0.25)
    K = kernel(x.double(), z.double())
    scale = K.abs().max()
    assert kernel(x, z).dtype == torch.float32
    torch.testing.assert_close(kernel(x, z).double() / scale, K / scale, rtol=1e-5, atol=3e-5)
    K32, dK32 = at(kernel, x).with_gradient(x, z)
    K64, dK64 = kernel.with_gradient(x.double(), z.double())
    torch.testing.assert_close(K32.double() / scale, K64 / scale, rtol=1e-5, atol=3e-5)
    scale = dK64.abs().max().clamp_min(1.0)
    torch.testing.assert_close(dK32.double() / scale, dK64 / scale, rtol=1e-4, atol=1e-5)


@every_kernel
@pytest.mark.parametrize("n", [1, 3])
def test_evaluation_changes_neither_points_nor_kernel(name, n):
    kernel, x = case(name, n=n)
    points, state = x.clone(), {key: value.clone() for key, value in kernel.state_dict().items()}
    before = kernel(x)
    kernel.with_gradient(x, x)
    kernel.diag(x)
    with torch.no_grad():
        kernel(x, x)
        (2.0 * kernel + kernel * kernel)(x)
    assert torch.equal(x, points)
    assert all(torch.equal(kernel.state_dict()[key], value) for key, value in state.items())
    assert torch.equal(kernel(x), before)


@every_kernel
def test_terms_sum_to_the_kernel(name):
    kernel, x = case(name)
    d = x.shape[1]
    extended = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], dim=1)  # (x, 1)
    total = torch.zeros(len(x), len(x), dtype=x.dtype)
    for term in kernel.terms(d):
        part = term.variance * torch.ones_like(total)
        for k in term.stationary:
            part = part * torch.from_numpy(covariance(k, x, x))
            torch.testing.assert_close(k.diag(x), torch.ones(len(x), dtype=x.dtype))
        for form in term.forms:
            part = part * ((extended * form) @ extended.mT)
        total = total + part
    torch.testing.assert_close(total, torch.from_numpy(covariance(kernel, x, x)), rtol=1e-9, atol=1e-12)


@every_kernel
def test_kernel_does_not_depend_on_dimensions_that_are_not_active(name):
    kernel, x = case(name)
    active = kernel.active_dims(x.shape[1])
    moved = x.clone()
    for i in set(range(x.shape[1])) - set(active):
        moved[:, i] += torch.arange(len(x))
    torch.testing.assert_close(kernel(moved), kernel(x))
