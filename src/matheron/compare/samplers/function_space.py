"""Samplers that return values instead of functions, such as location-scale sampling: exact, at cubic cost."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ...core.checks import ArrayLike, Random, as_array, as_count, as_generator, normals
from ...models import GP, ExactGP, Outputs, SelectedOutputs, SparseGP
from ...models.libraries import describe
from ...solvers.cholesky import solved
from .closed_form import Posterior, selected
from .conditionals import Factored, PriorAt, inner_points, single

# A function that draws values of the process at fixed points: count -> [count, n], or [count, n, t].
DrawValues = Callable[[int], Tensor]


class ValueDraws(ABC):
    """Draws of the values of a Gaussian process at points, all of which must be given in one call.

    It is called as `Paths` are, `[n, d] -> [s, n]` or `[s, n, d] -> [s, n]`, with a trailing `[t]` for several outputs.
    It does not represent functions: a second call draws new values, independent of the first.

    >>> import matheron
    >>> from matheron import kernels
    >>> from matheron.compare.samplers import ValueDraws, location_scale
    >>> draws = location_scale(matheron.ExactGP(kernels.RBF(), X=[[0.0]], y=[2.0], noise=1.0), 4)
    >>> isinstance(draws, ValueDraws), bool((draws([[0.0]]) == draws([[0.0]])).any())
    (True, False)
    """

    def __init__(self, num_paths: int, generator: torch.Generator) -> None:
        self.num_paths = as_count(num_paths, "num_paths")
        self.generator = generator

    @abstractmethod
    def at(self, x: ArrayLike) -> DrawValues:
        """Factorise the covariance at points x `[n, d]` once, and return a function that draws values there."""

    def __call__(self, x: ArrayLike) -> Tensor:
        """Draw values at points x: `[n, d] -> [s, n]`, or `[s, n, d] -> [s, n]` with points for each draw."""
        x = as_array(x)
        if x.ndim != 3:
            return self.at(x)(self.num_paths)
        if len(x) not in (1, self.num_paths):
            raise ValueError(f"x: expected [n, d] or [{self.num_paths}, n, d], got {list(x.shape)}")
        return self.at(x[0])(self.num_paths) if len(x) == 1 else torch.cat([self.at(own)(1) for own in x])

    def blocks(self, x: ArrayLike, block_size: int = 1024) -> Iterator[Tensor]:
        """Yield all draws at x `[n, d]` in blocks `[b, n]`; the factorisation is computed once."""
        draw, left = self.at(x), self.num_paths
        while left > 0:
            yield draw(min(block_size, left))
            left -= block_size


def location_scale(
    model: object, num_paths: int, *, generator: Random = None, seed: int | None = None
) -> LocationScale:
    """Draw values of a posterior by location-scale sampling, equation (2).

        f_* | y  =  m_{*|n} + K_{**|n}^1/2 zeta,      zeta ~ N(0, I)

    Args:
        model: an exact or sparse model, or several models as outputs.
        num_paths: the number of draws.
        generator, seed: where random numbers come from: a generator or a seed; torch's default generator if neither.

    >>> import torch, matheron
    >>> from matheron import kernels
    >>> from matheron.compare.samplers import location_scale
    >>> gp = matheron.ExactGP(kernels.RBF(0.3), X=[[0.0], [0.5], [1.0]], y=[0.0, 1.0, 0.0], noise=1e-4)
    >>> location_scale(gp, 64)(torch.rand(100, 1)).shape
    torch.Size([64, 100])
    """
    return LocationScale(describe(model), num_paths, as_generator(generator, seed))


class LocationScale(ValueDraws):
    """Location-scale draws of one model, of several independent models, or of some outputs of a model."""

    def __init__(self, gp: GP, num_paths: int, generator: torch.Generator) -> None:
        super().__init__(num_paths, generator)
        self.gp = gp
        for member in gp.models if isinstance(gp, Outputs) else [gp]:
            # raises an error early for models that cannot be sampled
            single(member.model if isinstance(member, SelectedOutputs) else member)

    def at(self, x: ArrayLike) -> DrawValues:
        return self._at(self.gp, x)

    def _at(self, gp: GP, x: ArrayLike) -> DrawValues:
        if isinstance(gp, Outputs):
            parts = [self._at(member, x) for member in gp.models]
            return lambda count: torch.cat([_with_axis(draw(count)) for draw in parts], dim=-1)
        if isinstance(gp, SelectedOutputs):
            whole = self._at(gp.model, x)
            return lambda count: selected(_with_axis(whole(count)), gp.outputs)
        gp = single(gp)
        inner = inner_points(gp, x)
        if isinstance(gp, SparseGP) and gp.q_mean is None:
            return in_user_units(gp, self._of_u(gp, inner))
        return in_user_units(gp, joint_draws(Posterior(gp), inner, self.generator))

    def _of_u(self, gp: SparseGP, x: Tensor) -> DrawValues:
        """Draw u, then f given u, which is Gaussian, for a q(u) that is only known by its draws."""
        with torch.no_grad():
            at = PriorAt(gp, x)
            update = Factored(gp, at)
            G = solved(update.L, at.K_mx)  # K_mm^-1 K_m*, [m, n]
            R = root(at.K_xx - at.K_mx.mT @ G)

        def draw(count: int) -> Tensor:
            f = at.mean_x + update.draws(count, self.generator) @ G
            return f + normals((count, R.shape[1]), self.generator).to(R) @ R.mT

        return draw


def joint_draws(posterior: Posterior, x: Tensor, generator: torch.Generator) -> DrawValues:
    """Return a function that draws joint values `[count, n t]` at points `[n, d]` after the input transform.

    >>> import matheron, torch
    >>> from matheron import kernels
    >>> from matheron.compare.samplers import Posterior, joint_draws
    >>> posterior = Posterior(matheron.ExactGP(kernels.RBF(), X=[[0.0]], y=[2.0], noise=1.0))
    >>> x = torch.rand(5, 1, dtype=torch.float64)
    >>> joint_draws(posterior, x, torch.Generator().manual_seed(0))(3).shape
    torch.Size([3, 5])
    """
    mean, C = posterior.moments(x)
    mean = mean.reshape(-1)
    return gaussian_draws(mean, root(C.reshape(len(mean), -1)), generator)


def gaussian_draws(mean: Tensor, R: Tensor, generator: torch.Generator) -> DrawValues:
    """Return a function that draws from N(mean, R R^T), with mean `[n]` and root R `[n, r]`."""
    return lambda count: mean + normals((count, R.shape[1]), generator).to(R) @ R.mT


def in_user_units(gp: ExactGP | SparseGP, draw: DrawValues) -> DrawValues:
    """Apply the output transform to draws `[count, n t]`, and return them in the model's dtype."""

    def transformed(count: int) -> Tensor:
        f = draw(count).unflatten(1, (-1, gp.num_outputs))  # [count, n, t]
        transform = gp.output_transform
        f = (f if transform is None else transform.to(f.device, f.dtype)(f)).detach().to(gp.centres.dtype)
        return f[..., 0] if gp.num_outputs == 1 else f

    return transformed


def root(C: Tensor) -> Tensor:
    """Return R with R R^T = C `[n, n]`, without jitter.

    It is the Cholesky factor, or a root from eigenvectors if C is numerically singular.
    """
    L, failed = torch.linalg.cholesky_ex(C)
    if not bool(failed):
        return L
    values, vectors = torch.linalg.eigh(C)
    return vectors * values.clamp_min(0).sqrt()


def _with_axis(f: Tensor) -> Tensor:
    return f[..., None] if f.ndim == 2 else f
