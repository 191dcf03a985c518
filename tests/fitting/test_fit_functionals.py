"""fit with functionals in place of points: the truth is found, in any units, with a noise for each block."""

import pytest
import torch
from torch import Tensor

import matheron
from matheron import draw_prior, observe
from matheron import kernels as K

DOUBLE = torch.float64


def points(n: int, d: int = 1, seed: int = 0) -> Tensor:
    return torch.rand(n, d, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def noisy(f: Tensor, deviation: float, seed: int) -> Tensor:
    return f + deviation * torch.randn(f.shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


TRUTH = 4.0 * K.RBF(0.2)
DEVIATIONS = (0.1, 2.0, 0.02)


def blocks(unit_x: float = 1.0, unit_y: float = 1.0, level: float = 0.0):
    """Values, slopes and integrals of a function that a known prior drew, each with noise of its own."""
    f = draw_prior(TRUTH, 1, input_dim=1, num_features=4000, seed=3)
    X, Z, lower = points(60, seed=1) * 3, points(60, seed=2) * 3, points(40, seed=3) * 3
    what = [observe.value(X), observe.derivative(Z, 0), observe.integral(lower, lower + 0.3)]
    ones = [1.0, 0.0, 0.3]
    units = [unit_y, unit_y / unit_x, unit_y * unit_x]
    y = [
        unit * (noisy(f.at(part)[0], deviation, seed) + level * one)
        for seed, (part, deviation, one, unit) in enumerate(zip(what, DEVIATIONS, ones, units, strict=True))
    ]
    X, Z, lower = X * unit_x, Z * unit_x, lower * unit_x
    what = [observe.value(X), observe.derivative(Z, 0), observe.integral(lower, lower + 0.3 * unit_x)]
    return what, y, units


@pytest.mark.parametrize(("unit_x", "unit_y", "level"), [(1.0, 1.0, 0.0), (1e3, 1e-2, 30.0), (1e-4, 1e5, -5.0)])
def test_the_truth_is_found_in_any_units(unit_x: float, unit_y: float, level: float):
    what, y, units = blocks(unit_x, unit_y, level)
    gp = matheron.fit(1.0 * K.RBF(1.0), what, y, seed=0)
    assert gp.input_transform is not None
    assert gp.output_transform is not None
    scale = float(gp.output_transform.derivative(torch.zeros(1, 1, dtype=DOUBLE)))
    noise = gp.noise.sqrt() * scale
    found = [float(part[0]) for part in noise.split([60, 60, 40])]
    for got, deviation, unit in zip(found, DEVIATIONS, units, strict=True):
        assert 0.7 < got / (deviation * unit) < 1.4  # three standard errors of sixty numbers
    numbers = matheron.summary(gp)
    assert "lengthscale" in str(numbers)
    x = torch.linspace(0.1, 2.9, 40, dtype=DOUBLE)[:, None]
    f = draw_prior(TRUTH, 1, input_dim=1, num_features=4000, seed=3)
    paths = matheron.draw(gp, 4, seed=0)
    error = paths.mean(x * unit_x) / unit_y - level - f(x)[0]
    assert float(error.square().mean().sqrt()) < 0.1
    lengthscale = next(value for name, value in gp.kernel.named_buffers() if "lengthscale" in name)
    slope = gp.input_transform(torch.tensor([[1.0], [0.0]], dtype=DOUBLE)).diff(dim=0).abs()
    assert 0.16 < float(lengthscale / slope) / unit_x < 0.25


def test_the_likelihood_at_the_end_is_a_top_of_the_dense_one():
    what, y, _ = blocks()
    gp = matheron.fit(1.0 * K.RBF(1.0), what, y, seed=0)
    top = float(matheron.log_marginal_likelihood(gp))
    for name, value in gp.kernel.named_buffers():
        for factor in (0.97, 1.03):
            other = gp.kernel.mapped(lambda b, value=value, factor=factor: b * factor if b is value else b)
            assert float(matheron.log_marginal_likelihood(gp.replaced(kernel=other))) < top, name
    index = torch.arange(3).repeat_interleave(torch.tensor([60, 60, 40]))
    for block in range(3):
        for factor in (0.9, 1.1):
            noise = torch.where(index == block, gp.noise * factor, gp.noise)
            assert float(matheron.log_marginal_likelihood(gp.replaced(noise=noise))) < top


def test_gradients_and_known_noise_for_several_outputs():
    kernel = K.Coregional(K.Matern(2.5, 0.4), [[1.0, 0.5], [0.5, 1.0]])
    X, Z = points(25, 2, seed=4), points(15, 2, seed=5)
    f = draw_prior(kernel, 1, input_dim=2, num_features=4000, seed=1)
    what = [observe.value(X), observe.gradient(Z)]
    y = [noisy(f.at(part)[0], 0.01, seed) for seed, part in enumerate(what)]
    gp = matheron.fit(kernel, what, y, noise=[1e-4, 1e-4], num_starts=1)
    truth, x = matheron.ExactGP(kernel, what, y, [1e-4, 1e-4]), points(20, 2, seed=6)
    errors = [matheron.draw(model, 2, seed=0).mean(x) - f(x)[0] for model in (gp, truth)]
    fitted, best = (float(error.square().mean().sqrt()) for error in errors)
    assert fitted < 1.5 * best  # of the model that the data are from
    assert gp.output_transform is not None
    scale = gp.output_transform.derivative(torch.zeros(1, 2, dtype=DOUBLE))[0]  # of each output
    assert gp.sites.outputs is not None
    torch.testing.assert_close(gp.noise.sqrt() * scale[gp.sites.outputs], torch.full_like(gp.noise, 0.01))


def test_the_gradient_of_the_likelihood_is_that_of_differences():
    what, y, _ = blocks()

    def value(lengthscale: float) -> Tensor:
        at = torch.tensor(lengthscale, dtype=DOUBLE, requires_grad=True)
        gp = matheron.ExactGP(4.0 * K.RBF(at), what, y, noise=[0.01, 4.0, 4e-4])
        total = matheron.log_marginal_likelihood(gp)
        return torch.stack([total.detach(), torch.autograd.grad(total, at)[0]])

    h = 1e-5
    slope = (value(0.25 + h)[0] - value(0.25 - h)[0]) / (2 * h)
    torch.testing.assert_close(value(0.25)[1], slope, rtol=1e-4, atol=0)


def test_slopes_alone_and_the_default_kernel():
    Z = points(40, seed=7) * 6
    gp = matheron.fit(None, observe.derivative(Z, 0), noisy(Z[:, 0].cos(), 0.01, 0), seed=0)
    x = torch.linspace(0.5, 5.5, 20, dtype=DOUBLE)[:, None]
    mean = matheron.draw(gp, 2, seed=0).mean(x)
    torch.testing.assert_close(mean - mean[0], (x.sin() - x[0].sin())[:, 0], atol=0.05, rtol=0)


@pytest.mark.parametrize(
    ("settings", "error", "match"),
    [
        ({"solver": "lattice"}, ValueError, "functionals and solver='cholesky'"),
        ({"solver": "cg"}, ValueError, "functionals and solver='cholesky'"),
        ({"likelihood": matheron.likelihoods.Poisson()}, TypeError, "with a likelihood, got functionals"),
    ],
)
def test_refusals(settings, error, match):
    what, y, _ = blocks()
    with pytest.raises(error, match=match):
        matheron.fit(1.0 * K.RBF(1.0), what, y, num_starts=1, **settings)
