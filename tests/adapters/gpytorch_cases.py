"""GPyTorch models of every kind, trained for a few steps, for the battery."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gpytorch
import torch
from gpytorch import kernels as gk
from gpytorch import likelihoods as gl
from gpytorch import means as gm
from gpytorch import variational as gv
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from torch import Tensor, nn

from adapters.battery import Case, Moments

DOUBLE = torch.float64
POINTS = torch.rand(5, 2, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)


def data(n: int = 24, d: int = 2, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Points in the unit cube and a smooth function of them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, d, generator=generator, dtype=DOUBLE)
    y = torch.sin(6 * x[:, 0]) + x.sum(-1) + 0.1 * torch.randn(n, generator=generator, dtype=DOUBLE)
    return x, y


class Exact(gpytorch.models.ExactGP):
    """The model of GPyTorch's first tutorial."""

    def __init__(self, inputs: Any, targets: Tensor, likelihood: Any, kernel: Any, mean: Any) -> None:
        super().__init__(inputs, targets, likelihood)
        self.mean_module, self.covar_module = mean, kernel

    def forward(self, x: Tensor) -> MultivariateNormal:
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))


class Multitask(Exact):
    def forward(self, x: Tensor) -> MultivariateNormal:
        return MultitaskMultivariateNormal(self.mean_module(x), self.covar_module(x))


class IndependentOutputs(Exact):
    def forward(self, x: Tensor) -> MultivariateNormal:
        return MultitaskMultivariateNormal.from_batch_mvn(super().forward(x))


class Hadamard(Exact):
    """GPyTorch's Hadamard multitask tutorial: two inputs, and the product of two covariances."""

    def __init__(self, inputs: Any, targets: Tensor, likelihood: Any, kernel: Any, mean: Any) -> None:
        super().__init__(inputs, targets, likelihood, kernel, mean)
        self.task_covar_module: Any = gk.IndexKernel(num_tasks=2, rank=1)

    def forward(self, x: Tensor, i: Tensor) -> MultivariateNormal:  # type: ignore[override]
        return MultivariateNormal(self.mean_module(x), self.covar_module(x).mul(self.task_covar_module(i)))


class SlopesInSome(Exact):
    """Values, and the slope in the first of two coordinates."""

    def forward(self, x: Tensor) -> MultivariateNormal:
        return MultitaskMultivariateNormal(self.mean_module(x[..., :1]), self.covar_module(x))


class SumInForward(Exact):
    """A forward that adds two covariances, one of them scaled."""

    def __init__(self, inputs: Any, targets: Tensor, likelihood: Any, kernel: Any, mean: Any) -> None:
        super().__init__(inputs, targets, likelihood, kernel, mean)
        self.trend: Any = gk.LinearKernel()

    def forward(self, x: Tensor) -> MultivariateNormal:
        return MultivariateNormal(self.mean_module(x), self.covar_module(x) + 0.5 * self.trend(x))


class Deep(Exact):
    """GPyTorch's deep kernel tutorial: a network and ScaleToBounds before mean and kernel; with a kernel beside."""

    def __init__(self, inputs: Any, targets: Tensor, likelihood: Any, kernel: Any, mean: Any) -> None:
        super().__init__(inputs, targets, likelihood, kernel, mean)
        self.network = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2))
        self.scale_to_bounds = gpytorch.utils.grid.ScaleToBounds(-1.0, 1.0)
        self.beside: Any = gk.RBFKernel(active_dims=(1,))

    def forward(self, x: Tensor) -> MultivariateNormal:
        z = self.scale_to_bounds(self.network(x))
        return MultivariateNormal(self.mean_module(z), self.covar_module(z) + 0.1 * self.beside(x))


class DeepKernel(gk.Kernel):
    """A kernel of one's own with a network in it."""

    def __init__(self) -> None:
        super().__init__()
        self.network, self.base = nn.Sequential(nn.Linear(2, 3), nn.Tanh()), rbf(3)

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Any:
        return self.base(self.network(x1), self.network(x2), diag=diag, **params)


class NetworkMean(gm.Mean):
    def __init__(self, d: int = 2) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(d, 4), nn.Tanh(), nn.Linear(4, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)[..., 0]


def rbf(d: int = 2, batch: tuple[int, ...] = ()) -> Any:
    shape = torch.Size(batch)
    return gk.ScaleKernel(gk.RBFKernel(ard_num_dims=d, batch_shape=shape), batch_shape=shape)


def trained(model: Any, steps: int = 5, lr: float = 0.1) -> Any:
    """A few steps of Adam on the marginal likelihood. The model is left in training mode, as a user may have it."""
    model.double().train()
    mll: Any = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        by_task = [list(model.train_inputs)] if isinstance(model.likelihood, gl.HadamardGaussianLikelihood) else []
        loss = -mll(model(*model.train_inputs), model.train_targets, *by_task).sum()
        loss.backward()
        optimizer.step()
    return model


def exact(
    kernel: Callable[[], gk.Kernel] = rbf,
    mean: Callable[[], nn.Module] = gm.ConstantMean,
    likelihood: Callable[[], Any] = gl.GaussianLikelihood,
    kind: type[Exact] = Exact,
    inputs: Any = None,
    targets: Tensor | None = None,
) -> Callable[[], Any]:
    def fit() -> Any:
        torch.manual_seed(0)
        x, y = data()
        x, y = x if inputs is None else inputs, y if targets is None else targets
        return trained(kind(x, y, likelihood(), kernel(), mean()))

    return fit


def own_moments(model: Any, x: Tensor, *inputs: Tensor) -> Moments:
    """GPyTorch's own posterior at x."""
    model.eval()
    with torch.no_grad(), gpytorch.settings.skip_posterior_variances(False):
        law = model(x, *inputs)
        cov = law.covariance_matrix
    if isinstance(law, MultitaskMultivariateNormal) and not law._interleaved:
        n, t = law.event_shape
        cov = cov.reshape(t, n, t, n).permute(1, 0, 3, 2).reshape(n * t, n * t)
    return Moments(law.mean, cov)


def batch_moments(model: Any, x: Tensor) -> list[Moments]:
    both = own_moments(model, x)
    means = both.mean.reshape(-1, x.shape[-2])
    return [Moments(m, c) for m, c in zip(means, both.covariance.reshape(len(means), len(x), len(x)), strict=True)]


def at_tasks(num_tasks: int, as_column: bool) -> Callable[[Any, Tensor], Moments]:
    """The posterior of every task at every point, of a model that is asked for pairs of them."""

    def moments(model: Any, x: Tensor) -> Moments:
        points = x.repeat_interleave(num_tasks, 0)
        tasks = torch.arange(num_tasks).repeat(len(x))[:, None]
        pairs = (
            own_moments(model, torch.cat([points, tasks.to(x)], -1)) if as_column else own_moments(model, points, tasks)
        )
        return Moments(pairs.mean.reshape(len(x), num_tasks), pairs.covariance)

    return moments


def with_slopes(d: int, second: bool = False) -> tuple[Tensor, Tensor]:
    """Points, and at each the value of a smooth function, its gradient, and its second derivatives along the axes."""
    x, _ = data(16, d, seed=2)
    phase = torch.arange(d, dtype=DOUBLE)
    wave, slope = torch.sin(4 * x + phase), 4 * torch.cos(4 * x + phase)  # [n, d]
    parts = [wave.sum(-1, keepdim=True), slope, *([-16 * wave] if second else [])]
    y = torch.cat(parts, dim=1)
    return x, y + 0.05 * torch.randn(y.shape, generator=torch.Generator().manual_seed(3), dtype=DOUBLE)


def gradient_model(
    kernel: Callable[[], gk.Kernel],
    mean: Callable[[], nn.Module] = gm.ConstantMeanGrad,
    d: int = 2,
    second: bool = False,
    members: int = 0,
    kind: type[Exact] = Multitask,
    **noise: Any,
) -> Callable[[], Any]:
    """A model of GPyTorch's tutorials on derivative information."""
    x, y = with_slopes(d, second)
    y = y[:, :2] if kind is SlopesInSome else y
    t = y.shape[1]
    if members:
        x, y = x.expand(members, -1, -1), torch.stack([y * (1 + i) for i in range(members)])
    return exact(kernel, mean, lambda: gl.MultitaskGaussianLikelihood(num_tasks=t, **noise), kind, x, y)


def whole_moments(model: Any, x: Tensor) -> Moments:
    """GPyTorch's own posterior at x, of values and derivatives; of a RBFKernelGradGrad, whose covariance of some points
    with others GPyTorch fails to compute, by its own covariance of all points."""
    if not any(isinstance(part, gk.RBFKernelGradGrad) for part in model.modules()):
        return own_moments(model, x)
    with torch.no_grad():
        X, y = model.train_inputs[0], model.train_targets
        law = model.eval().forward(torch.cat([X, x]))
        K, n = law.covariance_matrix, y.numel()
        noise = model.likelihood._shaped_noise_covar(y.shape).to_dense()
        G = torch.linalg.solve(K[:n, :n] + noise, K[:n, n:])
        mean = law.mean.reshape(-1)
        of_rest = mean[n:] + G.mT @ (y.reshape(-1) - mean[:n])
        return Moments(of_rest.reshape(len(x), -1), K[n:, n:] - G.mT @ K[:n, n:])


def of_values(model: Any, x: Tensor) -> Any:
    """The same of values alone."""
    both = whole_moments(model, x)
    t = both.mean.shape[-1]
    if both.mean.ndim == 2:
        return Moments(both.mean[:, 0], both.covariance[::t, ::t])
    return [Moments(m[:, 0], c[::t, ::t]) for m, c in zip(both.mean, both.covariance, strict=True)]


def composite() -> gk.Kernel:
    smooth = gk.ScaleKernel(gk.MaternKernel(nu=1.5, active_dims=[0]))
    return smooth * gk.PeriodicKernel(active_dims=[1]) + gk.ScaleKernel(
        gk.LinearKernel() * gk.RQKernel(active_dims=[1])
    )


def tasked() -> tuple[Tensor, Tensor, Tensor]:
    x, y = data(30)
    tasks = torch.arange(30)[:, None] % 2
    return x, tasks, y + tasks[:, 0] * x[:, 1]


def two_targets() -> Tensor:
    x, y = data()
    return torch.stack([y, y * x[:, 0] - 1], -1)


def batches() -> tuple[Tensor, Tensor]:
    parts = [data(seed=i) for i in range(3)]
    return torch.stack([x for x, _ in parts]), torch.stack([y for _, y in parts])


def sgpr(d: int = 2) -> Callable[[], Any]:
    def fit() -> Any:
        torch.manual_seed(0)
        x, y = data(40, d)
        likelihood = gl.GaussianLikelihood()
        kernel = gk.InducingPointKernel(rbf(d), inducing_points=x[::4].clone(), likelihood=likelihood)
        return trained(Exact(x, y, likelihood, kernel, gm.ConstantMean()))

    return fit


def without_correction(model: Any, x: Tensor) -> Moments:
    return own_moments(model, x)


def model_list() -> Any:
    other, z = data(18, seed=3)
    members = [exact()(), exact(inputs=other, targets=z, kernel=lambda: gk.ScaleKernel(gk.MaternKernel()))()]
    return gpytorch.models.IndependentModelList(*members)


def list_moments(model: Any, x: Tensor) -> Moments:
    parts = [own_moments(member, x) for member in model.models]
    cov = torch.stack([p.covariance for p in parts])  # [t, n, n]
    n, t = len(x), len(parts)
    joint = torch.einsum("tij,tu->itju", cov, torch.eye(t, dtype=DOUBLE)).reshape(n * t, n * t)
    return Moments(torch.stack([p.mean for p in parts], -1), joint)


_x, _tasks, _y = tasked()
_batch_x, _batch_y = batches()
_fixed = torch.linspace(0.01, 0.2, 24, dtype=DOUBLE)
_two, _three = torch.Size([2]), torch.Size([3])

SLOPES = {
    "values and slopes in one dimension": gradient_model(lambda: gk.ScaleKernel(gk.RBFKernelGrad()), d=1),
    "values and gradients": gradient_model(lambda: gk.ScaleKernel(gk.RBFKernelGrad(ard_num_dims=2))),
    "values and gradients of a rougher function, a linear mean, no noise by task": gradient_model(
        lambda: gk.ScaleKernel(gk.Matern52KernelGrad(ard_num_dims=2)),
        lambda: gm.LinearMeanGrad(2),
        has_task_noise=False,
    ),
    "values and gradients with correlated noise": gradient_model(
        lambda: gk.ScaleKernel(gk.Matern52KernelGrad()), rank=2
    ),
    "values and gradients with correlated noise alone": gradient_model(
        lambda: gk.ScaleKernel(gk.RBFKernelGrad()), rank=3, has_global_noise=False
    ),
    "values and gradients of a sum": gradient_model(
        lambda: gk.ScaleKernel(gk.Matern52KernelGrad()) + gk.ScaleKernel(gk.PolynomialKernelGrad(power=2))
    ),
    "values, gradients and second derivatives": gradient_model(
        lambda: gk.ScaleKernel(gk.RBFKernelGradGrad(ard_num_dims=2)), gm.ConstantMeanGradGrad, second=True
    ),
    "second derivatives in one dimension, a linear mean": gradient_model(
        lambda: gk.ScaleKernel(gk.RBFKernelGradGrad()), lambda: gm.LinearMeanGradGrad(1), d=1, second=True
    ),
}
_batch_of_slopes = gradient_model(
    lambda: gk.ScaleKernel(gk.RBFKernelGrad(batch_shape=_two), batch_shape=_two),
    lambda: gm.ConstantMeanGrad(batch_shape=_two),
    members=2,
    batch_shape=_two,
)

EXACT = [
    Case("an exact GP", exact(), own_moments, POINTS),
    Case("a composite kernel with active dims", exact(composite), own_moments, POINTS),
    Case("a sum in forward", exact(kind=SumInForward), own_moments, POINTS),
    Case("a deep kernel", exact(kind=Deep, mean=lambda: gm.LinearMean(2)), own_moments, POINTS),
    Case("a kernel with a network in it", exact(DeepKernel), own_moments, POINTS),
    Case("a zero mean", exact(mean=gm.ZeroMean), own_moments, POINTS),
    Case("a linear mean", exact(mean=lambda: gm.LinearMean(2)), own_moments, POINTS),
    Case("a network as mean", exact(mean=NetworkMean), own_moments, POINTS),
    Case(
        "a spectral mixture in two dimensions",
        exact(lambda: gk.SpectralMixtureKernel(num_mixtures=2, ard_num_dims=2)),
        own_moments,
        POINTS,
    ),
    Case("fixed noise", exact(likelihood=lambda: gl.FixedNoiseGaussianLikelihood(_fixed)), own_moments, POINTS),
    Case(
        "fixed noise and learned noise",
        exact(likelihood=lambda: gl.FixedNoiseGaussianLikelihood(_fixed, learn_additional_noise=True)),
        own_moments,
        POINTS,
    ),
    Case(
        "a batch of models",
        exact(
            lambda: rbf(batch=(3,)),
            lambda: gm.ConstantMean(batch_shape=_three),
            lambda: gl.GaussianLikelihood(batch_shape=_three),
            inputs=_batch_x,
            targets=_batch_y,
        ),
        batch_moments,
        POINTS,
    ),
    Case(
        "a batch of data with one kernel",
        exact(inputs=data()[0].expand(2, -1, -1), targets=torch.stack([data()[1], 2 - data()[1]])),
        batch_moments,
        POINTS,
    ),
    Case(
        "a multitask kernel",
        exact(
            lambda: gk.MultitaskKernel(rbf(), num_tasks=2, rank=1),
            lambda: gm.MultitaskMean(gm.ConstantMean(), num_tasks=2),
            lambda: gl.MultitaskGaussianLikelihood(num_tasks=2),
            Multitask,
            targets=two_targets(),
        ),
        own_moments,
        POINTS,
    ),
    Case(
        "a multitask kernel with correlated noise",
        exact(
            lambda: gk.MultitaskKernel(rbf(), num_tasks=2, rank=1),
            lambda: gm.MultitaskMean([gm.ConstantMean(), NetworkMean()], num_tasks=2),
            lambda: gl.MultitaskGaussianLikelihood(num_tasks=2, rank=1),
            Multitask,
            targets=two_targets(),
        ),
        own_moments,
        POINTS,
    ),
    Case(
        "as many points as tasks, with correlated noise",
        exact(
            lambda: gk.MultitaskKernel(rbf(), num_tasks=2, rank=1),
            lambda: gm.MultitaskMean(gm.ConstantMean(), num_tasks=2),
            lambda: gl.MultitaskGaussianLikelihood(num_tasks=2, rank=1),
            Multitask,
            data()[0][:2],
            two_targets()[:2],
        ),
        own_moments,
        POINTS,
    ),
    Case(
        "a linear model of coregionalisation",
        exact(
            lambda: gk.LCMKernel([gk.RBFKernel(), gk.MaternKernel()], num_tasks=2, rank=1),
            lambda: gm.MultitaskMean(gm.LinearMean(2), num_tasks=2),
            lambda: gl.MultitaskGaussianLikelihood(num_tasks=2, has_task_noise=False),
            Multitask,
            targets=two_targets(),
        ),
        own_moments,
        POINTS,
    ),
    Case(
        "independent outputs as a batch",
        exact(
            lambda: rbf(batch=(2,)),
            lambda: gm.ConstantMean(batch_shape=torch.Size([2])),
            lambda: gl.MultitaskGaussianLikelihood(num_tasks=2),
            IndependentOutputs,
            targets=two_targets(),
        ),
        own_moments,
        POINTS,
    ),
    Case(
        "tasks as a second input",
        exact(kind=Hadamard, inputs=(_x, _tasks), targets=_y, mean=lambda: gm.LinearMean(2)),
        at_tasks(2, as_column=False),
        POINTS,
    ),
    Case(
        "tasks as a column, with noise by task and a mean that sees it",
        exact(
            lambda: gk.MaternKernel(active_dims=[0, 1]) * gk.IndexKernel(num_tasks=2, rank=1, active_dims=[2]),
            lambda: gm.LinearMean(3),
            lambda: gl.HadamardGaussianLikelihood(num_tasks=2, task_feature_index=2),
            inputs=torch.cat([_x, _tasks], -1),
            targets=_y,
        ),
        at_tasks(2, as_column=True),
        POINTS,
    ),
    *[Case(name, fit, of_values, POINTS[:, : 1 if "in one dimension" in name else 2]) for name, fit in SLOPES.items()],
    Case(
        "values, and slopes in one of the coordinates",
        gradient_model(lambda: gk.ScaleKernel(gk.RBFKernelGrad(active_dims=(0,))), kind=SlopesInSome),
        of_values,
        POINTS,
    ),
    Case("a batch of models of values and gradients", _batch_of_slopes, of_values, POINTS),
    Case("collapsed sparse regression", sgpr(), own_moments, POINTS),
    Case("a list of models", model_list, list_moments, POINTS),
]


class Sparse(gpytorch.models.ApproximateGP):
    """The model of GPyTorch's variational tutorials."""

    def __init__(
        self,
        strategy: type,
        distribution: type,
        batch: tuple[int, ...] = (),
        wrap: Callable[[Any], Any] = lambda strategy: strategy,
        kernel_batch: tuple[int, ...] | None = None,
        z_batch: tuple[int, ...] = (),
    ) -> None:
        z = data(10, seed=5)[0].expand(*z_batch, -1, -1).clone()
        q = distribution(10, batch_shape=torch.Size(batch))
        super().__init__(wrap(strategy(self, z, q, learn_inducing_locations=True)))
        shape = batch if kernel_batch is None else kernel_batch
        self.mean_module: Any = gm.ConstantMean(batch_shape=torch.Size(shape))
        self.covar_module: Any = rbf(batch=shape)
        if strategy is gv.CiqVariationalStrategy:
            # GPyTorch's iterative root stops after m + 1 steps: its own predictions are good to 1e-5 only where K_mm is
            # well conditioned.
            self.covar_module.base_kernel.lengthscale = 0.2

    def forward(self, x: Tensor) -> MultivariateNormal:
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))


def sparse(*args: Any, num_tasks: int = 1, steps: int = 8, **kwargs: Any) -> Callable[[], Any]:
    """A few steps on the evidence lower bound: natural gradients for natural parameters, Adam for the rest."""

    def fit() -> Any:
        torch.manual_seed(0)
        model = Sparse(*args, **kwargs).double()
        x, y = data(40)
        likelihood = gl.GaussianLikelihood() if num_tasks == 1 else gl.MultitaskGaussianLikelihood(num_tasks)
        likelihood.double()
        y = y if num_tasks == 1 else torch.stack([y * (i + 1) - i * x[:, 0] for i in range(num_tasks)], -1)
        mll: Any = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(x))
        natural = [p for name, p in model.named_parameters() if ".natural_" in name]
        others = [p for name, p in model.named_parameters() if ".natural_" not in name] + list(likelihood.parameters())
        optimizers: list[Any] = [torch.optim.Adam(others, lr=0.05)]
        if natural:
            optimizers.append(gpytorch.optim.NGD(natural, num_data=len(x), lr=0.1))
        for _ in range(steps):
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss = -mll(model(x), y).sum()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
        return model

    return fit


class SparseTasks(Sparse):
    """Inducing points of two tasks, with the task as a third column."""

    def __init__(self) -> None:
        super().__init__(gv.VariationalStrategy, gv.CholeskyVariationalDistribution)
        z, tasks, _ = tasked()
        q = gv.CholeskyVariationalDistribution(10)
        self.variational_strategy = gv.VariationalStrategy(
            self, torch.cat([z, tasks], -1)[:10], q, learn_inducing_locations=False
        )
        self.covar_module = gk.RBFKernel(active_dims=(0, 1)) * gk.IndexKernel(num_tasks=2, rank=1, active_dims=(2,))


def sparse_tasks() -> Any:
    torch.manual_seed(0)
    model, likelihood = SparseTasks().double(), gl.GaussianLikelihood().double()
    x, tasks, y = tasked()
    mll: Any = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(x))
    optimizer = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=0.05)
    for _ in range(8):
        optimizer.zero_grad()
        loss = -mll(model(torch.cat([x, tasks], -1)), y)
        loss.backward()
        optimizer.step()
    return model


def exact_ciq(model: Any, x: Tensor) -> Moments:
    """GPyTorch's own posterior with its iterative square root taken to convergence."""
    settings = gpytorch.settings
    with settings.num_contour_quadrature(60), settings.minres_tolerance(1e-14), settings.max_cg_iterations(1000):
        both = own_moments(model, x)
    diagonal = model.variational_strategy._ngd()  # natural gradients have it answer variances alone
    return Moments(both.mean, both.covariance.diagonal() if diagonal else both.covariance)


_DISTRIBUTIONS = (
    gv.CholeskyVariationalDistribution,
    gv.MeanFieldVariationalDistribution,
    gv.DeltaVariationalDistribution,
    gv.NaturalVariationalDistribution,
    gv.TrilNaturalVariationalDistribution,
)
_STRATEGIES = (gv.VariationalStrategy, gv.UnwhitenedVariationalStrategy, gv.CiqVariationalStrategy)
_Cholesky = gv.CholeskyVariationalDistribution


def independent(strategy: Any) -> Any:
    return gv.IndependentMultitaskVariationalStrategy(strategy, num_tasks=2)


def mixing(strategy: Any) -> Any:
    return gv.LMCVariationalStrategy(strategy, num_tasks=3, num_latents=2)


SPARSE = [
    Case(
        f"{strategy.__name__} of a {distribution.__name__}",
        sparse(strategy, distribution),
        exact_ciq if strategy is gv.CiqVariationalStrategy else own_moments,
        POINTS,
    )
    for strategy in _STRATEGIES
    for distribution in _DISTRIBUTIONS
] + [
    Case("tasks as a column of inducing points", sparse_tasks, at_tasks(2, as_column=True), POINTS),
    Case("large batches", sparse(gv.LargeBatchVariationalStrategy, _Cholesky), own_moments, POINTS),
    Case("a batch of sparse models", sparse(gv.VariationalStrategy, _Cholesky, (3,)), batch_moments, POINTS),
    Case(
        "independent tasks with points of their own",
        sparse(gv.VariationalStrategy, _Cholesky, (2,), independent, z_batch=(2,), num_tasks=2),
        own_moments,
        POINTS,
    ),
    Case(
        "independent tasks of one law",
        sparse(gv.VariationalStrategy, _Cholesky, (), independent, num_tasks=2),
        own_moments,
        POINTS,
    ),
    Case(
        "mixed latent functions",
        sparse(gv.VariationalStrategy, _Cholesky, (2,), mixing, num_tasks=3),
        own_moments,
        POINTS,
    ),
    Case(
        "mixed latent functions, unwhitened, of one kernel",
        sparse(gv.UnwhitenedVariationalStrategy, _Cholesky, (2,), mixing, kernel_batch=(), num_tasks=3),
        own_moments,
        POINTS,
    ),
]
