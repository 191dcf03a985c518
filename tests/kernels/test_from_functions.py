"""Kernels of functions, of a class with features, and of a radial profile alone: one contract, tested by its laws."""

import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import matheron
from examples import gen, rand, randn
from matheron import kernels as K
from matheron.compare.metrics import kernel_error
from matheron.compare.samplers import moments
from matheron.core import REGISTRY, Value
from standard import assert_moments, assert_unbiased

B = torch.tensor([[1.0, 0.6], [0.6, 0.8]], dtype=torch.float64)


def bumps(x: Tensor, width: Tensor) -> Tensor:
    """Bells about a few places of the first coordinate."""
    places = torch.linspace(0, 1, 6).to(x)
    return torch.exp(-0.5 * ((x[:, :1] - places) / width) ** 2)


def laplace(x: Tensor, z: Tensor, rate: Tensor) -> Tensor:
    """exp(-rate |x - z|_1), of two-dimensional arrays alone."""
    assert x.ndim == z.ndim == 2
    return torch.exp(-rate * (x[:, None] - z[None]).abs().sum(-1))


def cauchy(num_features: int, generator: torch.Generator, rate: Tensor) -> Any:
    """Random cosines of laplace."""
    theta = torch.empty(2, num_features, dtype=torch.float64).cauchy_(generator=generator)
    tau = 2 * math.pi * torch.rand(num_features, generator=generator, dtype=torch.float64)
    return lambda x: math.sqrt(2 / num_features) * torch.cos(x @ (rate.to(x) * theta.to(x)) + tau.to(x))


def of_bumps() -> K.Kernel:
    return K.from_features(bumps, width=0.3)


def of_laplace() -> K.Kernel:
    return K.from_callables(laplace, cauchy, rate=1.5)


class Wendland(K.Radial):
    """(1 - r)^4 (4 r + 1) within r < 1, a covariance in up to three dimensions; its profile alone."""

    def radial(self, r2: Tensor) -> Tensor:
        r = r2.sqrt().clamp_max(1.0)
        return (1 - r) ** 4 * (4 * r + 1)


class Powered(K.Radial):
    """exp(-r^power), of which no spectrum has a closed form; its power is a tensor."""

    def __init__(self, lengthscale: Any = 1.0, power: Any = 1.5) -> None:
        super().__init__(lengthscale)
        self.register_buffer("power", torch.as_tensor(power, dtype=torch.float64))

    def radial(self, r2: Tensor) -> Tensor:
        return torch.exp(-(r2 ** (0.5 * self.power)))


class Harmonics(K.Kernel):
    """sum_j 2^-j cos(2 pi j (x - x')) of the first coordinate, as a registered class whose map is a plain function."""

    def __init__(self, decay: Any = 0.5) -> None:
        super().__init__(decay=torch.as_tensor(decay, dtype=torch.float64))

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        j = torch.arange(1, 9).to(x)
        turns = 2 * math.pi * (x[..., :, None, :1] - z[..., None, :, :1]) * j
        return (self.decay**j * turns.cos()).sum(-1)

    def features(self, num_features: int, generator: torch.Generator) -> Any:
        j = torch.arange(1, 9, dtype=torch.float64)

        def phi(x: Tensor) -> Tensor:
            turns, roots = 2 * math.pi * x[:, :1] * j.to(x), (self.decay.to(x) ** j.to(x)).sqrt()
            return torch.cat([roots * turns.cos(), roots * turns.sin()], dim=1)

        return phi


KERNELS = {
    "known features": of_bumps(),
    "a function with random features": of_laplace(),
    "a class": Harmonics(),
    "a profile": Wendland(1.4),
    "a profile with a lengthscale per dimension": Powered([0.5, 1.2]),
    "a sum, scaled": 1.7 * of_laplace() + 0.4 * Wendland(0.8) + of_bumps(),
    "on one coordinate": K.from_callables(laplace, cauchy, rate=1.0).on([1, 0]),
    "known features times stationary": of_bumps() * K.RBF(0.5),
    "random features times stationary": 2.0 * of_laplace() * K.Matern(2.5, 0.9),
    "random features times random features": of_laplace() * K.from_callables(laplace, cauchy, rate=0.5),
    "random features times linear": of_laplace() * (K.Linear([1.0, 0.5]) + K.Constant(0.3)),
    "random features times linear times stationary": of_laplace() * K.Polynomial(2, 0.5) * K.RBF(0.9),
    "three of them": of_bumps() * of_laplace() * Harmonics(0.3) * K.RBF(1.0),
}
# Products of three factors, or with a stationary one, take seconds each.
SLOW = {"random features times stationary", "random features times linear times stationary", "three of them"}
SLOW |= {"random features times random features"}
DEPENDS_ON_CHANCE = {name for name in KERNELS if "random" in name or "three" in name}


def exact(gp: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """The posterior's mean and covariance, by the kernel's own matrices."""
    X, y = gp.train_inputs, gp.train_targets
    G = torch.linalg.solve(gp.kernel(X) + torch.diag(gp.noise), gp.kernel(X, x))
    return G.mT @ y, gp.kernel(x) - gp.kernel(x, X) @ G


@pytest.mark.parametrize("name", KERNELS)
def test_features_have_the_kernel_as_their_mean(name):
    kernel, x = KERNELS[name], torch.cat([rand(5, 2, seed=3), 2 * rand(2, 2, seed=4) - 1])
    prior = matheron.draw_prior(kernel, 200, input_dim=2, num_features=64, paths_per_basis=1, seed=0).prior
    Phi = prior.features(x)  # [g, n, ell]
    assert_unbiased(Phi @ Phi.mT - kernel(x), slack=2e-3)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in KERNELS]
)
def test_draws_have_the_posterior_s_law(name):
    gp = matheron.ExactGP(KERNELS[name], rand(9, 2), randn(9), 0.05)
    x = rand(6, 2, seed=3)
    paths = matheron.draw(gp, 4000, num_features=256, paths_per_basis=8, generator=gen())
    assert_moments(paths(x), *exact(gp, x), basis_error=0.03)
    torch.testing.assert_close(paths.mean(x), exact(gp, x)[0])
    torch.testing.assert_close(moments(gp, x).covariance, exact(gp, x)[1])


@pytest.mark.parametrize("name", KERNELS)
def test_gradients_own_points_more_data_and_single_precision(name):
    gp = matheron.ExactGP(KERNELS[name], rand(9, 2), randn(9), 0.05)
    paths = matheron.draw(gp, 5, num_features=48, paths_per_basis=2, generator=gen())
    x = rand(7, 2, seed=2).requires_grad_()
    value, gradient = paths.value_and_grad(x.detach())
    (slope,) = torch.autograd.grad(paths(x).sum(), x)
    torch.testing.assert_close(gradient.sum(0), slope)
    own = rand(5, 7, 2, seed=5)
    at_own, slopes = paths.value_and_grad(own)
    each = [paths[i : i + 1].value_and_grad(own[i]) for i in range(5)]
    torch.testing.assert_close(at_own, torch.cat([f for f, _ in each]))
    torch.testing.assert_close(slopes, torch.cat([df for _, df in each]))
    torch.testing.assert_close(paths(own), at_own)
    assert paths(x[:0]).shape == paths(own[:, :0]).shape == paths.mean(x[:0])[None].expand(5, -1).shape == (5, 0)
    given = paths.condition_on([[0.5, 0.5]], [2.0], noise=0.0)
    torch.testing.assert_close(given([[0.5, 0.5]]), torch.full((5, 1), 2.0).double(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(paths.float()(x.detach().float()).double(), value, rtol=2e-3, atol=2e-3)


def test_sparse_models_have_the_law_of_their_posterior():
    kernel, Z, x = of_laplace() + of_bumps(), rand(5, 2), rand(6, 2, seed=3)
    root = 0.3 * torch.eye(5, dtype=torch.float64)
    gp = matheron.SparseGP(kernel, Z, randn(5), root)
    A = torch.linalg.solve(kernel(Z) + gp.jitter * torch.eye(5), kernel(Z, x)).mT
    covariance = kernel(x) + A @ (root @ root.mT - kernel(Z)) @ A.mT
    paths = matheron.draw(gp, 4000, num_features=256, paths_per_basis=8, generator=gen())
    mean = A @ randn(5) if not gp.whitened else paths.mean(x)
    assert_moments(paths(x), mean, covariance, basis_error=0.03, atol=1e-4)


def test_outputs_are_coupled():
    kernel = K.Coregional(of_laplace(), B) + K.Coregional(Wendland(0.9), 0.2 * torch.eye(2)) + 0.3 * of_bumps()
    X, tasks, x = rand(8, 2), [0, 1] * 4, rand(4, 2, seed=3)
    gp = matheron.ExactGP(kernel, X, randn(8), 0.05, tasks=tasks)
    paths = matheron.draw(gp, 4000, num_features=384, paths_per_basis=8, generator=gen())
    at, both = torch.tensor(tasks), torch.arange(2).repeat(4)

    def k(a: Tensor, i: Tensor, b: Tensor, j: Tensor) -> Tensor:
        coupled = of_laplace()(a, b) * B[i[:, None], j] + 0.2 * Wendland(0.9)(a, b) * (i[:, None] == j)
        return coupled + 0.3 * of_bumps()(a, b)

    points = x.repeat_interleave(2, 0)
    G = torch.linalg.solve(k(X, at, X, at) + 0.05 * torch.eye(8), k(X, at, points, both))
    covariance = k(points, both, points, both) - k(points, both, X, at) @ G
    assert_moments(paths(x).reshape(4000, -1), G.mT @ randn(8), covariance, basis_error=0.03)


def test_fit_finds_the_tensors_that_are_named_and_leaves_the_points_as_they_are():
    X = 5 + rand(120, 1)  # far from zero, where centred points would be others
    true = K.from_features(
        lambda x, width, slope: torch.cat([bumps(x - 5, width), slope * x], dim=1), width=0.12, slope=-0.5
    )
    with torch.no_grad():
        f = torch.linalg.cholesky(9 * true(X) + 1e-8 * torch.eye(120)) @ randn(120)
    y = f + 0.01 * randn(120, seed=1)
    start = 2.0 * true.replaced(width=torch.tensor(0.5, dtype=torch.float64))
    gp = matheron.fit(start, X, y, seed=0)
    found = dict(gp.kernel.named_buffers())
    assert abs(float(found["kernel.width"]) / 0.12 - 1) < 0.1
    torch.testing.assert_close(gp.train_inputs, X)
    assert "FeatureKernel.width" in matheron.summary(gp).rows
    gp = matheron.fit(K.Scaled(of_laplace(), 1.0), rand(40, 2), randn(40), seed=0, num_starts=2)
    assert matheron.summary(gp).rows["CallableKernel.rate"] > 0
    net = torch.nn.Linear(1, 3)  # of float32, as torch makes it
    gp = matheron.fit(K.from_features(net) + K.RBF(0.3), X, y, seed=0, num_starts=1)
    assert not [name for name in matheron.summary(gp).rows if "tensor" in name]
    fitted = matheron.fit(Powered(0.5, 1.2), rand(60, 2), randn(60), seed=0, num_starts=1)
    assert {"Powered.lengthscale", "Powered.power"} <= set(matheron.summary(fitted).rows)


class Steps(Value):
    """A map of a registered class: whether x is beyond each of some places."""

    def __init__(self, places: Tensor) -> None:
        super().__init__(places=places)

    def forward(self, x: Tensor) -> Tensor:
        return (x[:, :1] > self.places).to(x)


SAVED = {
    "a class whose map is a function": Harmonics(),
    "the same in a product": Harmonics() * K.RBF(0.5),
    "the same on a coordinate, coupled": K.Coregional(Harmonics().on([1]), B),
    "a map of a class": K.from_features(Steps(torch.tensor([0.2, 0.6], dtype=torch.float64))) + K.RBF(0.4),
    "a profile": Powered(0.5) + Harmonics(),
}


@pytest.mark.parametrize("name", SAVED)
def test_draws_of_classes_are_saved(name, tmp_path):
    tasks = [0, 1] * 3 if SAVED[name].num_outputs > 1 else None
    gp = matheron.ExactGP(SAVED[name], rand(6, 2), randn(6), 0.01, tasks=tasks)
    paths = matheron.draw(gp, 4, num_features=64, paths_per_basis=2, seed=0)
    paths.save(tmp_path / "f")
    loaded, x = matheron.load(tmp_path / "f"), rand(5, 2, seed=1)
    torch.testing.assert_close(loaded(x), paths(x), rtol=1e-12, atol=1e-12)
    data: Any = ([[0.3, 0.4]], [1.0]) if tasks is None else ([[0.3, 0.4]], [[1.0, 0.5]])
    both = [each.condition_on(*data, noise=0.01, seed=1)(x) for each in (loaded, paths)]
    torch.testing.assert_close(*both)


def test_a_file_whose_class_draws_other_features_since_is_refused(tmp_path, monkeypatch):
    matheron.draw_prior(Harmonics(), 2, input_dim=1).save(tmp_path / "f")
    monkeypatch.setattr(Harmonics, "features", lambda self, n, g: lambda x: x.expand(-1, 16))
    with pytest.raises(ValueError, match="expected the features that were saved; its code"):
        matheron.load(tmp_path / "f")


REFUSED = {
    "a kernel of functions": (of_laplace(), r"CallableKernel, which cannot be saved: .*subclass of kernels.Kernel"),
    "a map that is a function": (of_bumps(), r"OwnFeatures, which cannot be saved: .*subclass of matheron.core.Value"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_functions_say_that_they_cannot_be_saved(name, tmp_path):
    kernel, message = REFUSED[name]
    paths = matheron.draw(matheron.ExactGP(kernel, rand(4, 2), randn(4), 0.1), 2, num_features=16, seed=0)
    with pytest.raises(TypeError, match=message):
        paths.save(tmp_path / "f")


def slow(num_features: int, generator: torch.Generator, rate: Tensor) -> Any:
    return cauchy(num_features, generator, 0.8 * rate)  # of a lengthscale that is a quarter too long


def test_features_that_are_not_the_kernel_s_are_warned_of_with_numbers():
    points = 2 * rand(16, 2)
    with pytest.warns(K.FeatureWarning, match=r"CallableKernel: the mean of 2048 features differs from k by 0\.\d+"):
        wrong = K.from_callables(laplace, slow, rate=1.5, check_at=points)
    gp = matheron.ExactGP(wrong, points, randn(16), 0.1)
    with pytest.warns(K.FeatureWarning, match="Draws have the features' covariance in their prior"):
        matheron.draw(gp, 2, seed=0)
    right = K.check_features(of_laplace(), points)
    assert not right.found and 0 < right.chance < 0.2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in sorted(KERNELS):
            matheron.draw(matheron.ExactGP(KERNELS[name], rand(6, 2), randn(6), 0.1), 2, num_features=64, seed=0)


def test_descriptions_name_the_kernels_whose_features_were_used():
    X = rand(30, 2)

    def said(kernel: K.Kernel, **settings: Any) -> str:
        gp = matheron.ExactGP(kernel, X, randn(30), 1e-4)
        return matheron.draw(gp, 2, num_features=64, seed=0, **settings).prior.features.description

    assert said(of_laplace()) == "64 plain features of CallableKernel"
    assert said(of_laplace() * K.RBF(0.6)) == "64 products with features of CallableKernel by leverage"
    assert said(of_bumps()) == "6 plain features of FeatureKernel"


@pytest.mark.parametrize("d", [1, 2, 5, 40])
@pytest.mark.parametrize("lengthscale", [0.01, 3.0])
def test_a_profile_alone_has_the_spectrum_of_its_closed_form(d, lengthscale):
    class Own(K.Radial):
        def radial(self, r2: Tensor) -> Tensor:
            r = (3 * r2).sqrt()
            return (1 + r) * torch.exp(-r)

    REGISTRY.pop("Own", None)
    own, ours = Own(lengthscale), K.Matern(1.5, lengthscale)
    measure: Any = own.measure(d)
    wanted: Any = ours.measure(d)
    x = lengthscale / math.sqrt(d) * randn(5, d)
    assert measure.error < 1e-4
    for mine, theirs in zip(own.with_gradient(x, x), ours.with_gradient(x, x), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6 / lengthscale)
    theta = wanted.frequencies(rand(200, wanted.num_uniforms, seed=1))
    off = measure.log_density(theta) - wanted.log_density(theta)
    assert off.abs().quantile(0.95) < 0.05  # beyond lie the lowest and the highest frequencies, of little mass
    prior = matheron.draw_prior(
        own, 100, input_dim=d, num_features=64, paths_per_basis=1, features="cosine", seed=0
    ).prior
    Phi = prior.features(x)
    assert_unbiased(Phi @ Phi.mT - ours(x), slack=1e-4)


def test_paths_of_a_profile_are_as_good_as_those_of_its_closed_form():
    X, x = rand(40, 2), rand(30, 2, seed=4)
    own, ours = Powered(0.4, 1.0), K.Matern(0.5, 0.4)
    errors = [
        kernel_error(
            matheron.draw(matheron.ExactGP(k, X, X[:, 0], 1e-4), 16, paths_per_basis=1, seed=0).prior.features, ours, x
        ).rms
        for k in (own, ours)
    ]
    assert errors[0] < 1.2 * errors[1] + 1e-3


def test_a_profile_that_is_no_covariance_in_so_many_dimensions_is_refused():
    class Tent(K.Radial):
        def radial(self, r2: Tensor) -> Tensor:
            return (1 - r2.sqrt()).clamp_min(0.0)

    class Twice(Tent):
        def radial(self, r2: Tensor) -> Tensor:
            return 2 * torch.exp(-r2)

    class Flat(Tent):
        def radial(self, r2: Tensor) -> Tensor:
            return 0.75 + 0.25 * torch.exp(-r2)

    for name in ("Tent", "Twice", "Flat"):
        REGISTRY.pop(name, None)
    with pytest.raises(ValueError, match=r"Tent in 2 dimensions: the nearest kernel .* It is no covariance in so many"):
        matheron.draw_prior(Tent(), 2, input_dim=2)
    with pytest.warns(RuntimeWarning, match=r"Tent in 1 dimensions: .* differs from its profile by 0\.00\d"):
        matheron.draw_prior(Tent(), 2, input_dim=1)
    with pytest.raises(ValueError, match=r"Twice.radial: expected 1 at a distance of zero, got 2"):
        matheron.draw_prior(Twice(), 2, input_dim=1)
    with pytest.raises(ValueError, match=r"Flat.radial: expected a profile that falls to 1/2"):
        matheron.draw_prior(Flat(), 2, input_dim=1)


def test_diagnose_measures_them():
    gp = matheron.ExactGP(of_laplace() + of_bumps() * K.RBF(0.5), rand(20, 2), randn(20), 1e-2)
    found = matheron.diagnose(
        matheron.draw(gp, 64, paths_per_basis=1, num_features=512, seed=0), gp, rand(30, 2, seed=2)
    )
    assert found.basis is not None and found.basis.w2 < found.floor.w2
    wrong = matheron.ExactGP(2.0 * gp.kernel, *(getattr(gp, n) for n in ("train_inputs", "train_targets", "noise")))
    off = matheron.diagnose(
        matheron.draw(wrong, 64, paths_per_basis=1, num_features=512, seed=0), gp, rand(30, 2, seed=2)
    )
    assert off.basis is not None and off.basis.w2 > 2 * found.basis.w2


def test_what_does_not_fit_is_said():
    with pytest.raises(TypeError, match="phi: expected a map from points"):
        K.from_features(3.0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="sample_features: expected a function, got float"):
        K.from_callables(laplace, 3.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected other names for tensors than features"):
        K.from_features(bumps, features=1.0)
    with pytest.raises(ValueError, match=r"phi: expected a map from points \[n, d\] to features \[n, c\], got \[3\]"):
        K.from_features(lambda x: x[:, 0])(rand(3, 2))
    with pytest.raises(TypeError, match="features or a spectral measure of its own, got Scaled; check the parts"):
        K.check_features(2.0 * of_laplace(), rand(3, 2))
    uneven = K.from_callables(
        laplace, lambda n, g, rate: cauchy(n + int(torch.randint(9, (), generator=g)), g, rate), rate=1.0
    )
    with pytest.raises(ValueError, match=r"CallableKernel.features: expected maps of equally many features"):
        matheron.draw_prior(uneven, 8, input_dim=2, paths_per_basis=1, seed=0)
