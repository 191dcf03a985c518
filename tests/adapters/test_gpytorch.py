"""GPyTorch models as snapshots: every kind against GPyTorch's own posterior; every kernel against its own matrix."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import gpytorch
import pytest
import torch
from gpytorch import kernels as gk
from gpytorch import likelihoods as gl
from gpytorch import means as gm
from gpytorch import variational as gv
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from torch import Tensor
from torch.testing import assert_close

import matheron
from adapters.battery import Case, check
from adapters.gpytorch_cases import (
    EXACT,
    POINTS,
    SLOPES,
    SPARSE,
    Exact,
    Hadamard,
    NetworkMean,
    Sparse,
    data,
    exact,
    gradient_model,
    mixing,
    own_moments,
    rbf,
    sgpr,
    sparse,
    tasked,
    whole_moments,
)
from matheron import observe
from matheron.adapters.gpytorch import REGISTRIES, translate
from standard import assert_moments

CHOLESKY = gv.CholeskyVariationalDistribution


@pytest.mark.parametrize("case", [*EXACT, *SPARSE], ids=str)
def test_paths_have_the_moments_of_gpytorchs_own_posterior(case: Case, generator: torch.Generator) -> None:
    check(case, generator)


def test_collapsed_regression_follows_the_setting_of_the_diagonal_correction(generator: torch.Generator) -> None:
    case = Case("collapsed", sgpr(), own_moments, POINTS)
    with gpytorch.settings.sgpr_diagonal_correction(False):
        model = check(case, generator)
        without = matheron.draw(model, 1).mean(POINTS)
    model.train()  # its caches are of the setting above
    assert (matheron.draw(model, 1).mean(POINTS) - without).abs().max() > 1e-4


@pytest.mark.parametrize("name", SLOPES)
def test_models_of_gradients_give_functions_of_one_output_with_gpytorchs_moments(name: str) -> None:
    model, x = SLOPES[name](), POINTS[:, : 1 if "in one dimension" in name else 2]
    expected, d = whole_moments(model, x), x.shape[1]
    gp = matheron.describe(model)
    paths = matheron.draw(model, 1024, paths_per_basis=1, num_features=256, seed=0)
    assert gp.num_outputs == paths.num_outputs == 1
    ours = matheron.samplers.moments(model, x)
    t, scale = expected.mean.shape[1], float(expected.covariance.diagonal().max())
    assert_close(ours.mean, expected.mean[:, 0], atol=1e-6, rtol=1e-6)
    assert_close(ours.covariance, expected.covariance[::t, ::t], atol=1e-6 * scale, rtol=0)
    keep = torch.arange(t) % t <= d  # values and gradients of every point
    keep = keep.repeat(len(x))
    order = torch.arange(len(x) * (d + 1)).reshape(len(x), d + 1)
    both = torch.cat([paths(x)[..., None], paths.at(observe.gradient(x)).unflatten(1, (-1, d))], -1).flatten(1)
    assert both.shape[1] == order.numel()
    assert_moments(both, expected.mean.reshape(-1)[keep], expected.covariance[keep][:, keep], atol=1e-5 * scale)


@pytest.mark.parametrize(
    "fit", [exact(), sgpr(), sparse(gv.VariationalStrategy, CHOLESKY)], ids=["exact", "sgpr", "svgp"]
)
def test_a_model_in_float32_has_paths_in_float32(fit: Callable[[], Any], generator: torch.Generator) -> None:
    x = POINTS.float()
    case = Case("float32", lambda: fit().float(), own_moments, x, tolerance=1e-4)  # what float32 can hold
    assert matheron.draw(check(case, generator), 2)(x).dtype == torch.float32


def test_the_jitter_of_the_model_is_that_of_the_snapshot() -> None:
    for dtype, jitter in ((torch.float64, 1e-6), (torch.float32, 1e-4)):
        gp = matheron.describe(Sparse(gv.VariationalStrategy, CHOLESKY).to(dtype))
        assert isinstance(gp, matheron.SparseGP)
        assert gp.jitter == gpytorch.settings.variational_cholesky_jitter.value(dtype) == jitter


# Kernels.


def randomised(kernel: Any) -> Any:
    torch.manual_seed(0)
    for parameter in kernel.double().parameters():
        parameter.data.normal_(std=0.5)
    return kernel


with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    STRUCTURES = {
        "a sum over columns": gk.AdditiveStructureKernel(gk.ScaleKernel(gk.RBFKernel()), num_dims=3),
        "a product over columns": gk.ProductStructureKernel(gk.MaternKernel(), num_dims=2, active_dims=(2, 0)),
    }
KERNELS = STRUCTURES | {
    "rbf": gk.RBFKernel(),
    "rbf, ard": gk.RBFKernel(ard_num_dims=3),
    "rbf, constrained": gk.RBFKernel(lengthscale_constraint=gpytorch.constraints.Interval(0.1, 2.0)),
    "rbf, some dims, ard": gk.RBFKernel(ard_num_dims=2, active_dims=(2, 0)),
    "matern 1/2": gk.MaternKernel(nu=0.5, ard_num_dims=3),
    "matern 3/2": gk.MaternKernel(nu=1.5),
    "matern 5/2": gk.MaternKernel(nu=2.5, active_dims=(1,)),
    "rational quadratic": gk.RQKernel(ard_num_dims=3),
    "periodic": gk.PeriodicKernel(),
    "periodic, ard": gk.PeriodicKernel(ard_num_dims=3),
    "cosine, one dim": gk.CosineKernel(active_dims=(1,)),
    "spectral mixture": gk.SpectralMixtureKernel(num_mixtures=3, ard_num_dims=3),
    "spectral mixture, one dim": gk.SpectralMixtureKernel(num_mixtures=2, ard_num_dims=1, active_dims=(1,)),
    "linear": gk.LinearKernel(),
    "linear, ard": gk.LinearKernel(ard_num_dims=3),
    "polynomial": gk.PolynomialKernel(power=3),
    "constant": gk.ConstantKernel(),
    "scale of some dims": gk.ScaleKernel(gk.RBFKernel(active_dims=(1,))),
    "scale with dims": gk.ScaleKernel(gk.RBFKernel(), active_dims=(0, 1)),
    "scale of a sum": gk.ScaleKernel(gk.RBFKernel(active_dims=(1,)) + gk.LinearKernel(active_dims=(2,))),
    "dims within dims": gk.ScaleKernel(gk.AdditiveKernel(gk.RBFKernel(active_dims=(1,))), active_dims=(2, 0)),
    "product": gk.MaternKernel() * gk.PeriodicKernel(active_dims=(0,)) * gk.ConstantKernel(),
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_is_translated_to_rounding(name: str) -> None:
    kernel = randomised(KERNELS[name])
    x, z = data(7, 3)[0], data(5, 3, seed=1)[0]
    ours = translate(kernel, 3)
    torch.testing.assert_close(ours(x, z), kernel(x, z).to_dense(), rtol=1e-12, atol=1e-12)
    if not isinstance(kernel, gk.ProductStructureKernel):  # whose diagonal GPyTorch fails to compute
        torch.testing.assert_close(ours.diag(x), kernel(x, diag=True), rtol=1e-12, atol=1e-12)


def test_every_kernel_of_the_registry_is_in_a_test() -> None:
    tested = {type(k) for kernel in KERNELS.values() for k in [kernel, *kernel.sub_kernels()]}
    tested |= {type(k) for fit in SLOPES.values() for k in fit().modules() if isinstance(k, gk.Kernel)}
    tested |= {gk.IndexKernel, gk.MultitaskKernel, gk.LCMKernel, gk.InducingPointKernel}  # by models, in the battery
    known = set(REGISTRIES["kernels"].registry) - {object}
    assert {kind for kind in known if kind.__module__.startswith("gpytorch.")} == tested  # BoTorch's are its own


def test_a_batch_of_kernels_is_not_one_kernel() -> None:
    with pytest.raises(ValueError, match=r"got a batch of them, \[2\]; index it first"):
        translate(gk.RBFKernel(batch_shape=torch.Size([2])), 1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_repeated_points_and_a_short_lengthscale_are_no_reason_to_refuse(dtype: torch.dtype) -> None:
    x, y = data(3)
    kernel = gk.MaternKernel(nu=0.5)
    kernel.lengthscale = torch.tensor(0.03)
    model = Exact(x.repeat(4, 1), y.repeat(4), gl.GaussianLikelihood(), kernel, gm.ConstantMean()).to(dtype)
    assert isinstance(matheron.describe(model), matheron.ExactGP)


# Gradients and snapshots.


GRADIENTS = {
    "exact": exact(),
    "a network as mean": exact(mean=NetworkMean),
    "tasks": exact(kind=Hadamard, inputs=tasked()[:2], targets=tasked()[2]),
    "values and gradients": SLOPES["values and gradients of a rougher function, a linear mean, no noise by task"],
    "values and gradients, correlated noise": SLOPES["values and gradients with correlated noise"],
    "collapsed": sgpr(),
    "whitened": sparse(gv.VariationalStrategy, CHOLESKY),
    "unwhitened": sparse(gv.UnwhitenedVariationalStrategy, CHOLESKY),
    "natural": sparse(gv.VariationalStrategy, gv.NaturalVariationalDistribution),
    "natural, triangular": sparse(gv.VariationalStrategy, gv.TrilNaturalVariationalDistribution),
    "iterative root": sparse(gv.CiqVariationalStrategy, CHOLESKY),
    "mixed": sparse(gv.VariationalStrategy, CHOLESKY, (2,), mixing, num_tasks=3),
}


def direction(name: str, parameter: Tensor) -> Tensor:
    """A direction that keeps a matrix symmetric and the centre of inducing points, the origin of a basis, in place."""
    random = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1), dtype=parameter.dtype)
    if "inducing_points" in name:
        return random - random.mean(-2, keepdim=True)
    return random + random.mT if "natural_mat" in name else random


def along(model: Any, directions: list[Tensor], step: float) -> None:
    for parameter, direction in zip(model.parameters(), directions, strict=True):
        parameter.data.add_(direction, alpha=step)


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_reach_the_raw_parameters_and_agree_with_finite_differences(name: str) -> None:
    model = GRADIENTS[name]()
    parameters = list(model.parameters())
    directions = [direction(name, parameter) for name, parameter in model.named_parameters()]

    def value() -> Tensor:
        generator = torch.Generator().manual_seed(2)
        # Frequencies that move with the hyperparameters: those by leverage stay, and only amplitudes have a gradient.
        paths = matheron.draw(model, 2, features="sobol", detach=False, generator=generator)
        return (paths(POINTS) ** 2).sum()

    gradients = torch.autograd.grad(value(), parameters)  # it raises for a parameter that has none
    h = 1e-6
    along(model, directions, h)
    above = value()
    along(model, directions, -2 * h)
    difference = (above - value()) / (2 * h)
    slope = sum((g * d).sum() for g, d in zip(gradients, directions, strict=True))
    torch.testing.assert_close(slope, difference, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", GRADIENTS)
def test_training_the_model_further_changes_nothing_that_was_drawn(name: str) -> None:
    model = GRADIENTS[name]()
    paths = matheron.draw(model, 2)
    before = paths(POINTS)
    assert not paths.requires_graph()
    for parameter in model.parameters():
        parameter.data.add_(0.1)
    assert torch.equal(paths(POINTS), before)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", GRADIENTS)
def test_a_model_on_the_gpu_has_paths_on_the_gpu(name: str) -> None:
    model = GRADIENTS[name]()
    on_cpu = matheron.draw(model, 2, features="sobol", generator=torch.Generator().manual_seed(0))(POINTS)
    paths = matheron.draw(model.cuda(), 2, features="sobol", generator=torch.Generator().manual_seed(0))
    assert paths(POINTS.cuda()).device.type == "cuda"
    torch.testing.assert_close(paths(POINTS.cuda()).cpu(), on_cpu, rtol=1e-6, atol=1e-8)


# Refusals.


class OfFeatures(Exact):
    def forward(self, x: Tensor) -> MultivariateNormal:
        return MultivariateNormal(self.mean_module(x), self.covar_module(torch.tanh(x)))


class Noisy(Exact):
    def forward(self, x: Tensor) -> MultivariateNormal:
        return MultivariateNormal(self.mean_module(x), self.covar_module(x + torch.rand_like(x)))


class Centred(Exact):
    def forward(self, x: Tensor) -> MultivariateNormal:
        return MultivariateNormal(self.mean_module(x), self.covar_module(x - x.mean(-2, keepdim=True)))


def linear_mean() -> Any:
    mean: Any = gm.LinearMean(2)
    torch.nn.init.ones_(mean.weights)
    return mean


class Doubled(gk.RBFKernel):
    def forward(self, x1: Tensor, x2: Tensor, **params: Any) -> Tensor:
        return 2 * super().forward(x1, x2, **params)


class Squared(Exact):
    def forward(self, x: Tensor) -> MultivariateNormal:
        K: Any = self.covar_module(x)
        return MultivariateNormal(self.mean_module(x), K.mul(K))


class DoubledMean(Exact):
    def forward(self, x: Tensor) -> MultivariateNormal:
        return MultivariateNormal(2 * self.mean_module(x), self.covar_module(x))


def untrained(kernel: Any = None, kind: type[Exact] = Exact, mean: Any = None, likelihood: Any = None) -> Any:
    x, y = data()
    parts = likelihood or gl.GaussianLikelihood(), kernel or rbf(), mean or gm.ConstantMean()
    return kind(x, y, *parts).double()


def inducing_points_within() -> Any:
    likelihood = gl.GaussianLikelihood()
    return untrained(gk.ScaleKernel(gk.InducingPointKernel(rbf(), data(4)[0], likelihood)), likelihood=likelihood)


REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "kernel": (
        lambda: untrained(gk.PiecewisePolynomialKernel()),
        TypeError,
        r"kernel: gpytorch.*\.PiecewisePolynomialKernel is not understood; expected one of AdditiveKernel, .*; or "
        r"describe the model by hand with matheron.ExactGP",
    ),
    "kernel within": (lambda: untrained(rbf() + gk.RFFKernel(8)), TypeError, "RFFKernel is not understood"),
    "subclass": (lambda: untrained(Doubled()), TypeError, "Doubled has a forward of its own"),
    "derivatives": (
        lambda: untrained(gk.RBFKernelGrad(ard_num_dims=2)),
        TypeError,
        "a kernel of values and gradients, which is only understood in exact models whose forward returns a Multitask",
    ),
    "a product of gradients": (
        lambda: gradient_model(lambda: gk.RBFKernelGrad() * gk.Matern52KernelGrad())(),
        TypeError,
        r"to return the covariance of its kernels or of their sum or product, got another",
    ),
    "cosine": (
        lambda: untrained(gk.ScaleKernel(gk.CosineKernel())),
        TypeError,
        "CosineKernel, a .*, is not positive definite in 2 dimensions; use a product of",
    ),
    "inducing points within": (
        inducing_points_within,
        TypeError,
        "expected an InducingPointKernel as the whole kernel",
    ),
    "two task columns": (
        lambda: untrained(gk.IndexKernel(2, active_dims=(0,)) * gk.IndexKernel(2, active_dims=(1,))),
        TypeError,
        r"at most one column of task numbers, got IndexKernels of columns \[0, 1\]",
    ),
    "task column as a coordinate": (
        lambda: untrained(gk.RBFKernel() * gk.IndexKernel(2, active_dims=(1,))),
        TypeError,
        "RBF takes column 1 as a coordinate, but it holds task numbers; give the kernel active_dims of the other",
    ),
    "features that are random": (
        lambda: untrained(kind=Noisy),
        TypeError,
        r"Noisy.forward passes different values to its kernels when it is called twice",
    ),
    "features that depend on the other points": (
        lambda: untrained(kind=Centred),
        TypeError,
        r"Centred.forward maps a point to something else where it is alone; .*ScaleToBounds does",
    ),
    "a mean of the inputs, and a kernel of features": (
        lambda: untrained(kind=OfFeatures, mean=linear_mean()),
        TypeError,
        r"OfFeatures.forward to return the mean of its mean_module, .* one module of what its kernel takes",
    ),
    "forward": (
        lambda: untrained(kind=Squared),
        TypeError,
        r"Squared.forward to return the covariance of its kernels .*, got another \w+;",
    ),
    "mean": (
        lambda: untrained(kind=DoubledMean, mean=gm.LinearMean(2)),
        TypeError,
        "DoubledMean.forward to return the mean of its mean_module",
    ),
    "likelihood": (
        lambda: untrained(likelihood=_Other()),
        TypeError,
        "likelihood: .*_Other is not understood; expected one of FixedNoiseGaussianLikelihood, GaussianLikelihood",
    ),
    "strategy": (
        lambda: Sparse(gv.BatchDecoupledVariationalStrategy, CHOLESKY),
        TypeError,
        "BatchDecoupledVariationalStrategy has a forward of its own",
    ),
    "nothing learned": (
        lambda: Sparse(gv.UnwhitenedVariationalStrategy, CHOLESKY),
        ValueError,
        "not initialised; train the model, or call it once",
    ),
    "no data": (
        lambda: Exact(None, None, gl.GaussianLikelihood(), rbf(), gm.ConstantMean()),  # type: ignore[arg-type]
        ValueError,
        "has no training data; call set_train_data",
    ),
    "deep": (
        gpytorch.models.deep_gps.DeepGP,
        TypeError,
        "DeepGP is not understood; expected one of ApproximateGP, Exact",
    ),
}


class _Other(gl.gaussian_likelihood._GaussianLikelihoodBase):
    def __init__(self) -> None:
        super().__init__(gl.noise_models.HomoskedasticNoise())


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_understood_is_refused_by_name_with_a_way_out(name: str) -> None:
    make, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        matheron.draw(make(), 2)


def test_noise_that_couples_outputs_which_the_kernel_keeps_apart_is_refused() -> None:
    class Apart(Exact):
        def forward(self, x: Tensor) -> MultivariateNormal:
            return MultitaskMultivariateNormal.from_batch_mvn(super().forward(x))

    two = torch.Size([2])
    x, y = data()
    likelihood = gl.MultitaskGaussianLikelihood(num_tasks=2, rank=1)
    model = Apart(x, torch.stack([y, -y], -1), likelihood, rbf(batch=(2,)), gm.ConstantMean(batch_shape=two)).double()
    with pytest.raises(TypeError, match="MultitaskGaussianLikelihood of rank 1 couples outputs that are independent"):
        matheron.describe(model)


def test_a_variational_classifier_keeps_its_likelihood():
    from matheron.adapters.gpytorch import likelihood_of

    class Classifier(gpytorch.models.ApproximateGP):
        def __init__(self, Z):
            q = gpytorch.variational.CholeskyVariationalDistribution(len(Z))
            super().__init__(gpytorch.variational.VariationalStrategy(self, Z, q))
            self.mean_module, self.covar_module = gpytorch.means.ConstantMean(), gpytorch.kernels.RBFKernel()

        def forward(self, x):
            mean: Any = self.mean_module(x)
            return gpytorch.distributions.MultivariateNormal(mean, self.covar_module(x))

    Z, likelihood = torch.linspace(0, 1, 5, dtype=torch.float64)[:, None], gpytorch.likelihoods.BernoulliLikelihood()
    model = Classifier(Z).double().eval()
    model(Z)
    paths = matheron.draw(model, 4000, paths_per_basis=None, seed=0)
    with torch.no_grad():
        expected = likelihood(model(Z)).probs
    found = likelihood_of(likelihood).mean_of(paths)(Z)
    torch.testing.assert_close(found.mean(0), expected, atol=0.02, rtol=0)
    student = gpytorch.likelihoods.StudentTLikelihood().double()
    ours, f, y = likelihood_of(student), torch.zeros(3, dtype=torch.float64), torch.tensor([-1.0, 0.1, 9.0]).double()
    torch.testing.assert_close(ours.log_density(f, y), student.forward(f).log_prob(y).detach())
    with pytest.raises(TypeError, match=r"likelihood: .*LaplaceLikelihood is not understood"):
        likelihood_of(gpytorch.likelihoods.LaplaceLikelihood())
