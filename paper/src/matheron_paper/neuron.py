"""The FitzHugh-Nagumo model neuron: the true system, models of its drift, and simulations along them.

A fast voltage v and a slow recovery w under an injected current I:

    dv/dt = v - v^3 / 3 - w + I,        dw/dt = (v + a - b w) / tau

The constants are FitzHugh's usual ones, a = 0.7, b = 0.8, tau = 12.5: at rest for I = 0, spiking for I = 0.5. The paper
names no constants, box or number of steps; these and the box below, which holds the limit cycle and the noise around
it, are ours.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import gpytorch
import torch
from torch import Tensor

import matheron
from matheron.dynamics import IterativeDrift
from matheron.models.transforms import Affine

from .report import Cell, Row

A, B, TAU = 0.7, 0.8, 12.5
DIFFUSION = 0.01  # the variance of each state per unit of time, as in the paper
STEP = 0.25  # as in the paper
REST = (-1.1994, -0.6243)  # the fixed point for I = 0, to four digits
# The ranges of v, w and I in which training inputs are drawn. They are mapped to [0, 1].
BOX = ((-3.0, -1.5, 0.0), (3.0, 2.5, 1.0))


def drift(x: Tensor) -> Tensor:
    """f(v, w, I): `[..., 3] -> [..., 2]`.

    >>> import torch
    >>> from matheron_paper import neuron
    >>> neuron.drift(torch.tensor([*neuron.REST, 0.0])).abs().max() < 1e-4
    tensor(True)
    """
    v, w, current = x.unbind(-1)
    return torch.stack([v - v**3 / 3 - w + current, (v + A - B * w) / TAU], dim=-1)


def sinusoidal_current(time: float) -> Tensor:
    """The test control, between 0 and 1 with a period of 100: it takes the neuron in and out of spiking."""
    return torch.tensor([0.5 - 0.5 * torch.cos(torch.tensor(2 * torch.pi * time / 100.0)).item()])


def transitions(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """n uniform inputs of the box `[n, 3]` and noisy Euler-Maruyama increments from them, over dt, `[n, 2]`."""
    lower, upper = torch.tensor(BOX, dtype=torch.float64)
    x = lower + (upper - lower) * torch.rand(n, 3, dtype=torch.float64, generator=generator)
    noise = torch.randn(n, 2, dtype=torch.float64, generator=generator) * (DIFFUSION * STEP) ** 0.5
    return x, drift(x) + noise / STEP


FEATURES = {"decoupled": "cosine"}
METHODS = ("truth", "decoupled", "iterative", "iterative, as written")
TIMED = ("decoupled", "iterative")
# The methods that are compared with the true system. The floor is a second set of true trajectories.
SETS = ("floor", "decoupled", "iterative", "iterative, as written")


class _Drifts(gpytorch.models.ApproximateGP):
    """Independent sparse GPs, one per state, over shared inducing locations: the paper's model."""

    def __init__(self, Z: Tensor, num_states: int) -> None:
        batch = torch.Size([num_states])
        q = gpytorch.variational.CholeskyVariationalDistribution(len(Z), batch_shape=batch)
        strategy = gpytorch.variational.VariationalStrategy(self, Z, q, learn_inducing_locations=True)
        super().__init__(gpytorch.variational.IndependentMultitaskVariationalStrategy(strategy, num_tasks=num_states))
        self.mean_module = gpytorch.means.ZeroMean(batch_shape=batch)
        kernel = gpytorch.kernels.MaternKernel(2.5, ard_num_dims=Z.shape[1], batch_shape=batch)
        kernel.lengthscale = torch.tensor(0.5)
        self.covar_module = gpytorch.kernels.ScaleKernel(kernel, batch_shape=batch)

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        mean = torch.as_tensor(self.mean_module(x))
        return gpytorch.distributions.MultivariateNormal(mean, self.covar_module(x))


def learn(num_data: int, num_inducing: int, steps: int, seed: int) -> tuple[list[matheron.SparseGP], list[float]]:
    """Type-2 maximum likelihood by stochastic gradients, on uniform transitions: one SparseGP a state.

    Inputs are normalised to [0, 1]^3 and targets standardised, and the snapshots know both. Also the learned variances
    of the increments over dt, whose truth is diffusion / dt.
    """
    generator = torch.Generator().manual_seed(seed)
    x, y = transitions(num_data, generator)
    lower, upper = torch.tensor(BOX, dtype=torch.float64)
    inner, centre, scale = (x - lower) / (upper - lower), y.mean(0), y.std(0)
    # GPyTorch initialises the variational distribution from the global generator
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _Drifts(inner[:num_inducing].clone(), y.shape[1]).double()
        likelihood = gpytorch.likelihoods.MultitaskGaussianLikelihood(y.shape[1], has_global_noise=False).double()
        bound = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=num_data)
        optimizer = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=0.05)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        targets = (y - centre) / scale
        for _ in range(steps):
            batch = torch.randint(num_data, (min(512, num_data),), generator=generator)
            optimizer.zero_grad()
            gain = torch.as_tensor(bound(model(inner[batch]), targets[batch]))
            (-gain).backward()
            optimizer.step()
            schedule.step()
    snapshot = matheron.describe(model.eval())
    assert isinstance(snapshot, matheron.Outputs)
    models = [
        gp.replaced(input_transform=_to_unit_cube(), output_transform=Affine(scale[i], centre[i]))
        for i, gp in enumerate(snapshot.models)
        if isinstance(gp, matheron.SparseGP)
    ]
    return models, (torch.as_tensor(likelihood.task_noises).detach() * scale.square()).tolist()


def unlearned(num_inducing: int, device: torch.device) -> list[matheron.SparseGP]:
    """Models of the same shape without training: how long a simulation takes does not depend on what was learned."""
    generator = torch.Generator().manual_seed(0)
    Z = torch.rand(num_inducing, 3, generator=generator, dtype=torch.float64).to(device)
    kernel, inputs = matheron.kernels.Matern(2.5, 0.5), _to_unit_cube()
    deviations = torch.full((num_inducing,), 0.1, dtype=torch.float64, device=device)
    return [
        matheron.SparseGP(kernel, Z, torch.zeros_like(deviations), deviations, jitter=1e-6, input_transform=inputs)
        for _ in range(2)
    ]


def _to_unit_cube() -> Affine:
    lower, upper = torch.tensor(BOX, dtype=torch.float64)
    return Affine(1 / (upper - lower), -lower / (upper - lower))


def simulate(
    method: str,
    gps: list[matheron.SparseGP],
    num_paths: int,
    steps: int,
    *,
    num_features: int,
    batch: int,
    keep_every: int,
    generator: torch.Generator,
    device: torch.device,
    watch: Stopwatch | None = None,
) -> tuple[Tensor, float]:
    """Trajectories `[s, steps // keep_every + 1, 2]` from rest under the sinusoidal current, and the seconds they took.

    `method` is one of METHODS. The iterative ones go `batch` paths at a time for their memory's sake, and may be
    watched on the way. The last leaves the mean of u as it was, as the paper's text does.
    """
    watch = watch or Stopwatch((), device)
    controls = torch.stack([sinusoidal_current(t * STEP) for t in range(steps)]).to(device, torch.float64)
    settings: Row = dict(controls=controls, diffusion=DIFFUSION, keep_every=keep_every, generator=generator)
    rest = torch.tensor(REST, dtype=torch.float64, device=device)
    _wait(device)
    start = time.perf_counter()
    if method.startswith("iterative"):
        parts = []
        sizes: Row = {"dtype": torch.float64, "device": device, "as_written": method != "iterative"}
        for first in range(0, num_paths, batch):
            s = min(batch, num_paths - first)
            watch.start()
            conditioned = IterativeDrift(gps, s, steps, generator=generator, **sizes)
            parts.append(matheron.rollout(watch.over(conditioned), rest.expand(s, 2), steps, STEP, **settings))
        states = torch.cat(parts)
    elif method == "decoupled":
        paths = matheron.draw(
            matheron.Outputs(gps),
            num_paths,
            num_features=num_features,
            features=FEATURES["decoupled"],
            generator=generator,
            device=device,
            dtype=torch.float64,
        )
        states = matheron.rollout(paths, rest, steps, STEP, **settings)
    else:
        states = matheron.rollout(drift, rest.expand(num_paths, 2), steps, STEP, **settings)
    _wait(device)
    return states, time.perf_counter() - start


def seconds_by_steps(
    method: str, gps: list[matheron.SparseGP], num_paths: int, at: Sequence[int], **sizes: Cell
) -> list[float]:
    """Seconds for a number of steps: of one iterative simulation on its way, and per simulation along functions."""
    simulate(method, gps, num_paths, 3, keep_every=3, **sizes)  # warm up
    if method == "iterative":
        watch = Stopwatch(at, sizes["device"])
        simulate(method, gps, num_paths, at[-1], keep_every=at[-1], watch=watch, **sizes)
        return watch.seconds
    return [simulate(method, gps, num_paths, steps, keep_every=steps, **sizes)[1] for steps in at]


class Stopwatch:
    """Seconds since the start at which a drift has been called so often, summed over starts."""

    def __init__(self, at: Sequence[int], device: torch.device) -> None:
        self.at, self.device = list(at), device
        self.seconds = [0.0] * len(self.at)

    def start(self) -> None:
        _wait(self.device)
        self.calls, self.began = 0, time.perf_counter()

    def over(self, drift: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """The drift, watched."""

        def watched(x: Tensor) -> Tensor:
            f = drift(x)
            self.calls += 1
            if self.calls in self.at:
                _wait(self.device)
                self.seconds[self.at.index(self.calls)] += time.perf_counter() - self.began
            return f

        return watched


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
