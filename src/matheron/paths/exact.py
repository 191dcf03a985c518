"""Data, and ExactUpdate: Matheron's rule in function space, and the same paths given more data.

    v  =  (K_nn + sigma^2 I)^-1 (y - f - eps)          equation (11)

The same draw is conditioned on more data by solving for v again with the same w and eps, or by extending a kept factor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Self, final

import torch
from torch import Tensor

from ..core.checks import normals
from ..core.functionals import Observed
from ..core.sites import Sites, concatenated
from ..core.value import Value, in_own_memory
from ..evaluate import PathTerm, Recorder
from ..kernels import Kernel
from ..models.means import Mean
from ..models.observations import Observations
from ..solvers import Auto, Cholesky, CholeskyState, KernelOperator, Solver, State, Stats
from .compress_update import compressed, pays, with_compressed
from .kept_factor import Factor, extended_weights
from .posterior import PosteriorCovariance, variance_in_blocks
from .precision import choose_weight_dtype, narrows_badly
from .prior import PriorPaths, observed_before
from .spread import warn_of_spread, warn_of_spread_nearby
from .update import Update, check_sites, kernel_terms


class Data(Value):
    """Observations in the model's own space: sites, targets, noise variances `[n]`, and each path's draw of the noise.

    The targets y are `[n]`, or `[s, n]` where each path has its own. The noise of path i is sqrt(noise) xi_i, with
    standard normals xi `[s, n]`.
    """

    shapes = "noise: n, xi: s n"

    def __init__(self, sites: Observed, y: Tensor, noise: Tensor, xi: Tensor) -> None:
        super().__init__(y=in_own_memory(y), noise=in_own_memory(noise), xi=in_own_memory(xi), sites=sites)

    @staticmethod
    def none(like: Tensor, num_outputs: int, s: int) -> Data:
        """No observations of s paths, of the dtype and on the device of points `[*, d]`."""
        empty = like.new_zeros(0)
        return Data(Sites.empty(like, num_outputs), empty, empty, like.new_zeros(s, 0))

    def check(self) -> None:
        n, s = len(self.noise), len(self.xi)
        if self.y.shape not in ((n,), (s, n)) or len(self.sites) != n:
            raise ValueError(
                f"Data: expected sites and targets of {n} observations, got {len(self.sites)} and {list(self.y.shape)}"
            )
        dtypes = {tensor.dtype for tensor in (self.sites.points, self.y, self.noise, self.xi)}
        if len(dtypes) > 1:
            raise ValueError(f"Data: expected tensors of one dtype, got {sorted(map(str, dtypes))}")

    def __len__(self) -> int:
        return len(self.noise)

    @property
    def own_targets(self) -> bool:
        """Whether each path has targets of its own."""
        return self.y.ndim == 2

    def of_paths(self, index: Tensor) -> Data:
        """The same observations, for some of the paths."""
        return Data(self.sites, self.y[index] if self.own_targets else self.y, self.noise, self.xi[index])

    def rows(self, keep: list[int]) -> Data:
        """Some of the observations."""
        index = torch.tensor(keep, dtype=torch.long, device=self.noise.device)
        return Data(self.sites[index], self.y[..., keep], self.noise[keep], self.xi[:, keep])

    def joined(self, new: Data) -> Data:
        """These observations, then new ones."""
        s, y, more = len(new.xi), self.y, new.y
        if y.ndim == 2 or more.ndim == 2:
            y, more = y.expand(s, -1), more.expand(s, -1)
        return Data(
            concatenated(self.sites, new.sites),
            torch.cat([y, more], dim=-1),
            torch.cat([self.noise, new.noise]),
            torch.cat([self.xi, new.xi], dim=-1),
        )

    def without_repeats(self, num_old: int) -> Data:
        """The data without those noise-free ones after the first `num_old` that repeat another noise-free one.

        A repeated observation adds no information and makes K singular.
        """
        if not bool((self.noise[num_old:] == 0).any()):
            return self
        keys = self.sites.keys()
        if keys is None:
            return self
        # At its own data a path has the observed value, up to the solver's error. A repeated datum within this
        # tolerance is no contradiction.
        tolerance = torch.finfo(self.y.dtype).eps ** 0.4 * float(self.y.detach().abs().max()) if self.y.numel() else 0.0
        first: dict[tuple[float, ...], int] = {}
        keep = []
        for i, (key, exact) in enumerate(zip(map(tuple, keys.tolist()), (self.noise == 0).tolist(), strict=True)):
            seen = first.setdefault(key, i) if exact else i
            if seen == i or i < num_old:
                keep.append(i)
            elif float((self.y[..., seen] - self.y[..., i]).detach().abs().max()) > tolerance:
                raise ValueError(
                    "condition_on: noise-free observations at the same point "
                    f"{self.sites.places[i].tolist()} contradict each other; give them noise"
                )
        return self if len(keep) == len(self) else self.rows(keep)

    def noise_variance(self, num_outputs: int) -> Tensor | None:
        """The noise variance of each output's observations, `[t]`; None where there are none, or it differs."""
        noise, outputs = self.noise, self.sites.outputs
        each = [noise if outputs is None else noise[outputs == i] for i in range(num_outputs)]
        if any(len(own) == 0 or bool(own.max() - own.min() > 1e-6 * own.max()) for own in each):
            return None
        return torch.stack([own[0] for own in each])


class CentredUpdate(Update):
    """An update that is a weighted sum sum_j v_j k(., z_j): weights v `[s, c]` at c sites, the centres.

    `v_mean [1 or s, c]` are the weights of the mean. Weights are in float64 where the dtype of the centres has too few
    digits for their sums (`precision.py`).
    """

    v: Tensor
    v_mean: Tensor | None
    data: Data
    kernel: Kernel

    @property
    def sites(self) -> Observed:
        """The centres."""
        raise NotImplementedError

    @property
    def centres(self) -> Tensor:
        """The points `[c, d]` of the centres."""
        return self.sites.points

    @property
    def weights(self) -> Tensor:
        """v: `[s, c]`."""
        return self.v

    @property
    def num_centres(self) -> int:
        return self.v.shape[1]

    @property
    def num_data(self) -> int:
        return len(self.data)

    @property
    def y(self) -> Tensor:
        """The targets `[n]`, or `[s, n]` where each path has its own."""
        return self.data.y

    @property
    def noise(self) -> Tensor:
        """The noise variances of the data, `[n]`."""
        return self.data.noise

    @property
    def xi(self) -> Tensor:
        """The standard normals behind each path's noise, `[s, n]`."""
        return self.data.xi

    @property
    def own_posteriors(self) -> bool:
        return self.data.own_targets

    def noise_variance(self) -> Tensor | None:
        return self.data.noise_variance(self.kernel.num_outputs)

    def terms(self) -> list[PathTerm]:
        return kernel_terms(self.kernel, self.sites, self.v)

    def mean_terms(self) -> list[PathTerm]:
        if self.v_mean is None:
            raise TypeError("mean: this q(u) is known by its draws alone (sample_u); average the paths instead")
        return kernel_terms(self.kernel, self.sites, self.v_mean)

    def check_beside(self, prior: PriorPaths) -> None:
        if len(self.v) != prior.num_paths or self.kernel.num_outputs != prior.num_outputs:
            raise ValueError("Paths: expected a prior and an update of as many paths and outputs")
        if self.centres.shape[1] != len(prior.features.origin) or self.centres.dtype != prior.features.origin.dtype:
            raise ValueError("Paths: expected a prior and an update in as many dimensions, and of one dtype")

    def mapped(self, fn: Callable[[Tensor], Tensor]) -> Self:
        """A copy with `fn` applied to every tensor. Weights that need float64 beside centres in float32 keep it where
        the centres' dtype stays the same: `.to(torch.float32)` changes nothing."""
        new = super().mapped(fn)
        if new.v.dtype != self.v.dtype and new.centres.dtype == self.centres.dtype:
            for name in ("v", "v_mean"):
                weights = self._buffers[name]
                new._buffers[name] = None if weights is None else weights.to(new.v.device)
        return new

    def narrowed(self, prior: PriorPaths, old: tuple[PriorPaths, Update], mean: Mean) -> Update:
        before = old[1]
        assert isinstance(before, CentredUpdate)
        if self.centres.dtype == before.centres.dtype or not narrows_badly((old[0], before), (prior, self)):
            return self
        return self.solved_again(prior, old[0], before, mean)

    def solved_again(self, prior: PriorPaths, old_prior: PriorPaths, old: CentredUpdate, mean: Mean) -> Update:
        """Solve again for the update of the same data and noise, with a prior that has fewer digits than the old
        one."""
        raise NotImplementedError

    def posterior(self, solver: Solver | None = None) -> PosteriorCovariance:
        """The posterior covariance given all data and inducing values of this update, by a kept factor or by a
        solver."""
        raise NotImplementedError

    def guess(self, rows: int, n: int) -> Tensor | None:
        """Weights of n data from which iterations start, `[rows, n]`, for the paths and the means; zero for new data.

        None where there are none.
        """
        if not self.num_data or self.v_mean is None:
            return None
        v = torch.cat([self.v, self.v_mean.expand(rows - len(self.v), -1)])[:, self.num_inducing :]
        return torch.nn.functional.pad(v.detach(), (0, n - self.num_data))

    def spread_is_due(self, data: Data) -> bool:
        """Whether the spread of the paths is checked again, now that there are more data than this update was given.

        A check takes a tenth of the time of a call that adds one datum to a few. So it is made each time that the data
        have grown by an eighth.
        """
        every = max(8, len(data) // 8)
        return self.num_data // every < len(data) // every

    def joined_data(self, prior: PriorPaths, new: Observations, generator: torch.Generator) -> Data | None:
        """These data and new ones, whose noise is drawn; None where the new ones repeat the old."""
        n, xi = self.num_data, normals((prior.num_paths, len(new.noise)), generator).to(new.y)
        data = self.data.joined(Data(new.sites, new.y, new.noise, xi)).without_repeats(num_old=n)
        return None if len(data) == n and data.own_targets == self.data.own_targets else data


@final
class ExactUpdate(CentredUpdate):
    """sum_j v_j k(., x_j), centred at n observations.

    `compressed [s, n]`, if given, are weights for the kernel of the lattice on which the prior is drawn. Evaluators
    then see no centres (`compress_update.py`).
    """

    shapes = "v: s n, v_mean: r n, compressed: s n"

    def __init__(
        self,
        kernel: Kernel,
        data: Data,
        v: Tensor,
        v_mean: Tensor,
        *,
        factor: Factor | None = None,
        compressed: Tensor | None = None,
        solver_stats: Stats | None = None,
    ) -> None:
        compressed = None if compressed is None else in_own_memory(compressed.to(v.dtype))
        weights = dict(v=in_own_memory(v), v_mean=in_own_memory(v_mean), compressed=compressed)
        super().__init__(**weights, kernel=kernel, data=data)
        self._modules["factor"], self.solver_stats = factor, solver_stats

    v_mean: Tensor
    factor: Factor | None
    compressed: Tensor | None

    @staticmethod
    def empty(kernel: Kernel, like: Tensor, s: int) -> ExactUpdate:
        """The update of s paths that are given no data yet, of the dtype and on the device of points `[*, d]`."""
        data = Data.none(like, kernel.num_outputs, s)
        return ExactUpdate(kernel.to(like.device, like.dtype), data, like.new_zeros(s, 0), like.new_zeros(1, 0))

    def check(self) -> None:
        check_sites(self.kernel, self.sites, self.v)
        if len(self.v_mean) != (len(self.v) if self.own_posteriors else 1) or self.v.dtype != self.v_mean.dtype:
            raise ValueError("ExactUpdate: expected a mean, one per path where each has its own targets")
        if len(self.data.xi) != len(self.v):
            raise ValueError(f"ExactUpdate: expected the noise of {len(self.v)} paths, got {len(self.data.xi)}")
        if self.factor is not None and self.factor.size != self.num_data:
            raise ValueError(
                f"ExactUpdate: expected a factor of {self.num_data} observations, got one of {self.factor.size}"
            )

    @property
    def sites(self) -> Observed:
        return self.data.sites

    def path_terms(self, prior: PriorPaths) -> list[PathTerm]:
        sites = self.sites
        if self.compressed is None or not isinstance(sites, Sites):
            return super().path_terms(prior)
        return with_compressed(prior, sites, self.compressed)

    def __getitem__(self, index: Tensor) -> ExactUpdate:
        return self.replaced(
            data=self.data.of_paths(index),
            v=self.v[index],
            v_mean=self.v_mean[index] if self.own_posteriors else self.v_mean,
            compressed=None if self.compressed is None else self.compressed[index],
        )

    def variance(self, prior: PriorPaths, sites: Observed) -> Tensor:
        return variance_in_blocks(_posterior_of(self), sites, self.num_centres)

    def posterior(self, solver: Solver | None = None) -> PosteriorCovariance:
        # The jitter that was added to the diagonal counts as noise, as it does in the paths. There was a warning then.
        jitter = 0.0 if self.solver_stats is None else self.solver_stats.jitter
        operator = KernelOperator(self.kernel.double(), self.sites.double(), self.noise.double() + jitter)
        return PosteriorCovariance(operator, self.factor if solver is None else None, solver, self.requires_graph())

    def solved_again(self, prior: PriorPaths, old_prior: PriorPaths, old: CentredUpdate, mean: Mean) -> ExactUpdate:
        solver = Auto() if self.factor is None else Cholesky(keep=True)
        return exact_update(prior, mean, self.kernel, self.data, solver)

    def given(
        self, prior: PriorPaths, mean: Mean, new: Observations, solver: Solver, generator: torch.Generator
    ) -> tuple[PriorPaths, ExactUpdate]:
        """Condition on more data. A kept factor is extended, unless a solver that keeps none is requested.

        Iterations start from the old weights.
        """
        data = self.joined_data(prior, new, generator)
        if data is None:
            return prior, self
        watch = self.spread_is_due(data)
        extend = isinstance(solver, Auto) or (isinstance(solver, Cholesky) and solver.keep)
        if extend and self.factor is not None and not (torch.is_grad_enabled() and data.y.requires_grad):
            grown = extended_weights(self, self.factor, prior, mean, data, watch)
            if grown is not None:
                (v, factor), s = grown, len(self.v)
                stats = Stats("Cholesky(keep=True), extended", jitter=float(factor.jitter))
                return prior, ExactUpdate(self.kernel, data, v[:s], v[s:], factor=factor, solver_stats=stats)
            solver = Cholesky(keep=True)
        return prior, exact_update(prior, mean, self.kernel, data, solver, old=self, watch_spread=watch)


_posterior_of = Recorder(ExactUpdate.posterior)


def update_weights(
    state: State, y: Tensor, f: Tensor, eps: Tensor, guess: Tensor | None = None
) -> tuple[Tensor, Stats]:
    """v = (K_nn + sigma^2 I)^-1 (y - f - eps), equation (11): the weights of k(., X).

    With K_mm for K_nn + sigma^2 I and u for y this is equation (10); eps is then the noise of the jitter. Unless a
    graph is kept, the weights are returned in float64; `precision.py` decides how many of the digits matter.
    """
    b = (y - f - eps).mT  # [n, s]
    v, stats = state.solve(b if b.requires_grad else b.double(), None if guess is None else guess.mT)  # [n, s]
    return v.mT.contiguous(), stats  # [s, n]


class WeightsGivenData(NamedTuple):
    """Weights v `[s + r, n]` of s paths and of their r means, the noise eps of each, and the statistics of the
    solve."""

    v: Tensor
    eps: Tensor
    stats: Stats


def weights_given_data(state: State, data: Data, f: Tensor, guess: Tensor | None = None) -> WeightsGivenData:
    """`update_weights` of s paths and of their mean, which is treated as one more path: the one with w = 0 and eps = 0.

    Where each path has targets of its own there are s means. The jitter that a factor needed counts as noise.

    Args:
        f: values before the data, `[s + 1, n]`: those of the paths, then the prior mean.
        guess: where iterations start, `[s + r, n]`.
    """
    s, y = len(data.xi), data.y
    if y.ndim == 2:
        y, f = torch.cat([y, y]), torch.cat([f, f[s:].expand(s - 1, -1)])
    eps = (data.noise + state.jitter).sqrt() * torch.cat([data.xi, torch.zeros_like(f[s:])])
    v, stats = update_weights(state, y, f, eps, guess)
    return WeightsGivenData(v, eps, stats)


def exact_update(
    prior: PriorPaths,
    mean: Mean,
    kernel: Kernel,
    data: Data,
    solver: Solver,
    *,
    state: State | None = None,
    old: ExactUpdate | None = None,
    watch_spread: bool = False,
) -> ExactUpdate:
    """The update of prior paths given data, equation (11).

    Args:
        state: that of the data's covariance, where there is one already; the solver makes it otherwise.
        old: an update given the first of the data, from whose weights iterations start.
        watch_spread: warn where the prior's basis, which was not chosen for all of the data, has too few functions.
    """
    s, X = len(data.xi), data.sites.points
    operator = KernelOperator(kernel, data.sites, data.noise)
    state = solver.init(operator) if state is None else state
    f = observed_before(prior, mean, data.sites)  # [s + 1, n]
    start = None
    if old is not None and not isinstance(state, CholeskyState):
        start = old.guess(2 * s if data.own_targets else s + 1, len(data))
    v, eps, stats = weights_given_data(state, data, f, start)
    if watch_spread and isinstance(state, CholeskyState):
        warn_of_spread(prior, operator, state.jitter, v[:s] - v[s:], state.last_block)
    elif watch_spread:
        warn_of_spread_nearby(prior, operator, f[:s] - f[s] + eps[:s])
    wide, graph = v, torch.is_grad_enabled() and v.requires_grad
    if v.dtype != X.dtype:
        v = v.to(X) if graph else choose_weight_dtype(operator, v, state.deviations, largest=state.largest)
        # these weights need a more accurate factor too
        if isinstance(state, CholeskyState) and v.dtype != X.dtype == state.L.dtype:
            in_double = KernelOperator(kernel.double(), data.sites.double(), data.noise.double())
            state = state.solver.init(in_double)
            v, eps, stats = weights_given_data(state, data, f)
            wide = v
    factor = on_lattice = None
    if isinstance(state, CholeskyState):
        if state.solver.keep:
            factor = Factor.of(state.L, state.jitter)
        if (
            prior.features.domain is not None
            and not graph
            and isinstance(data.sites, Sites)
            and pays(prior.features, s, len(X))
        ):
            residual = data.y - f[:s] - eps[:s]
            on_lattice = compressed(prior, kernel, data.sites, data.noise + state.jitter, residual, wide[:s], state)
    return ExactUpdate(kernel, data, v[:s], v[s:], factor=factor, compressed=on_lattice, solver_stats=stats)
