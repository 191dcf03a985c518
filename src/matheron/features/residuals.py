"""What data leave undetermined: a typical posterior variance, and residuals of functions at reference points."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ..core.functionals import Functionals, Observed
from ..core.modes import as_numpy, is_wrapped, outside, plain
from ..core.sites import Sites, concatenated
from ..kernels import Kernel, coupled_covariance, coupled_diagonal
from ..solvers import Cholesky, CholeskyState, FactoredPosterior, KernelOperator, covariance
from ..solvers.cholesky import solved
from .quasi_random import fixed_net


@torch.no_grad()
def posterior_scale(
    kernel: Kernel,
    X: Tensor,
    noise: Tensor,
    *,
    at_data: bool = False,
    onto: Callable[[Tensor], Tensor] | None = None,
) -> float:
    """Estimate a typical posterior variance between data X `[n, d]` whose noise has variances `[n]`.

    If there are several outputs, the one of largest variance counts, as if all data were of it.

    Args:
        at_data: whether to return the geometric mean of that average and the average at some of the data, each given
            the others. Near data that lie on a line, at an edge or in clusters, the variance is much smaller.
        onto: takes places to where functions are asked for, such as a sphere; None where that is the whole box.
    """
    coupled = [
        (1.0 if B is None else float(B.detach().diagonal().max()), k)
        for B, k in kernel.owned().to("cpu", torch.float64).coupled()
    ]
    X = X.detach().double().cpu()

    def joint(places: Tensor, near: Tensor) -> Tensor:
        Z = torch.cat([places[:, None], X[near]], dim=1)
        return torch.stack([size * part.forward(Z, Z) for size, part in coupled]).sum(0)

    return float(typical_variances(joint, X, noise, at_data=at_data, onto=onto))


@torch.no_grad()
def typical_variances(
    joint: Callable[[Tensor, Tensor], Tensor],
    X: Tensor,
    noise: Tensor,
    *,
    at_data: bool,
    onto: Callable[[Tensor], Tensor] | None = None,
    num_places: int = 32,
    num_neighbours: int = 128,
) -> Tensor:
    """Estimate typical posterior variances `[c]` of c observables between data at X `[n, d]`.

    The variances are averaged over random places in the data's bounding box. At each place they are given the nearest
    data alone (local kriging), so that the cost is linear in n.

    Args:
        joint: the prior covariance `[p, c + k, c + k]` of the observables at places `[p, d]` and of the data `[p, k]`.
        noise: the variances `[n]` of the data's noise.
        at_data, onto: as for `posterior_scale`.
        num_places: the number of places, and also of data with `at_data`.
        num_neighbours: the number of nearest data that each place is given.
    """
    X, noise = X.detach().double().cpu(), noise.detach().double().cpu().expand(len(X))
    generator = torch.Generator().manual_seed(0x1A771CE)  # a fixed seed that the user's data are unlikely to have
    lower, upper = X.aminmax(dim=0)
    u = torch.rand(num_places, X.shape[1], generator=generator, dtype=torch.float64, device="cpu")
    places = lower + (upper - lower) * u
    if onto is not None:
        places = onto(places)
    # For each place, the datum at the same position, which is then not given as data; -1 if there is none.
    own = torch.full((num_places,), 0 if len(X) == 1 else -1, device="cpu")
    if at_data:
        chosen = torch.randint(len(X), (num_places,), generator=generator, device="cpu")
        places, own = torch.cat([places, X[chosen]]), torch.cat([own, chosen])
    side = (upper - lower).clamp_min(1e-300)
    near = nearest(places / side, X / side, min(num_neighbours, len(X)))  # [p, k]
    K = joint(places, near)
    c = K.shape[-1] - near.shape[1]
    prior, of_data = K.diagonal(dim1=1, dim2=2).split([c, near.shape[1]], dim=1)
    of_data = of_data.clamp_min(1e-10 * float(of_data.max()))
    given = torch.where(near == own[:, None], 1e6 * of_data, noise[near]) + 1e-10 * of_data
    L = torch.linalg.cholesky_ex(K[:, c:, c:] + given.diag_embed()).L
    explained = torch.linalg.solve_triangular(L, K[:, c:, :c], upper=False).square().sum(1)
    left = torch.nan_to_num(prior - explained, nan=0.0).maximum(1e-10 * prior)  # [p, c]
    return left.unflatten(0, (-1, num_places)).mean(1).log().mean(0).exp()


def nearest(places: Tensor, X: Tensor, k: int) -> Tensor:
    """Find the indices `[p, k]` of the k points of X `[n, d]` that are nearest to each of some places `[p, d]`."""
    some = places.split(max(1, (1 << 23) // len(X)))  # limits how many distances are in memory at once
    return torch.cat([torch.cdist(part, X).topk(k, largest=False).indices for part in some])


class Reference:
    """Reference points x where the posterior matters, and the weights G = (K + noise)^-1 k(X, x) of the data there.

    Args:
        posterior: the kernel, the data and their noise.
        domain, where: the box where functions will be called, or points like those where they will; None if unknown.
        lengths: typical lengths `[d]` over which the functions vary.
        num_points: the number of reference points.
        largest_whole: the largest number of data of which all are used. Of more data, the nearest ones are used.
        num_data: the largest number of nearest data.
    """

    @outside()  # the choice of features is not differentiated
    def __init__(
        self,
        posterior: FactoredPosterior,
        domain: Tensor | None,
        where: Tensor | None,
        lengths: Tensor,
        num_points: int = 64,
        largest_whole: int = 4000,
        num_data: int = 1024,
    ) -> None:
        kernel, sites, lengths = posterior.kernel, posterior.sites.mapped(plain).double(), plain(lengths)
        kernel = kernel.mapped(plain) if any(map(is_wrapped, kernel.buffers())) else kernel
        X, noise, t = sites.places, plain(posterior.noise).double(), kernel.num_outputs
        x = kernel.nearest(reference_points(X.cpu(), plain(domain), plain(where), lengths, num_points).to(X.device))
        self.at_x = Sites(x, None if sites.outputs is None else torch.arange(len(x), device=X.device) % t)
        state = posterior.state if isinstance(posterior.state, CholeskyState) else None
        # A factor in float32 is accurate enough, unless it is in a graph.
        if state is None or len(X) > largest_whole or (state.L.dtype != torch.float64 and state.L.requires_grad):
            state = None  # the covariance is factored anew
            if len(X) > num_data:
                scale = lengths.to(X)
                chosen = nearest(x / scale, X / scale, num_data // len(x)).flatten().unique()
                sites, noise = sites[chosen], noise[chosen]
        if posterior.sites.points.dtype != torch.float64:
            kernel = kernel.to(X.device, torch.float64)
        K_Xx = coupled_covariance(kernel, sites, self.at_x)  # [n, r]
        if state is None:
            K = covariance(kernel, sites)
            K.diagonal().add_(noise + 1e-10 * K.diagonal().mean())
            G = solved(torch.linalg.cholesky(K), K_Xx)
        else:
            G, noise = solved(plain(state.L), K_Xx.to(state.L)), noise + state.jitter
        self.sites = concatenated(self.at_x, sites)  # r + n of them
        self.noise_variance = as_numpy(noise @ G.double().square())  # noise |G|^2, [r]
        # Rounding adds about eps^2 |G|^2 to the square of a residual. That is less than noise |G|^2 if there is noise.
        variance = float(coupled_diagonal(kernel, self.at_x).max())
        noisy = isinstance(sites, Sites) and float(noise.min()) > 1e-9 * variance
        self.G = G.float() if noisy else G

    def residual_power(self, values: Tensor) -> Tensor:
        """Compute |phi_c(x) - G^T phi_c(X)|^2 `[r, c]` of features from their values `[r + n, c]` at the sites."""
        at_x, at_X = values.to(self.G).split([len(self.at_x), len(self.G)])
        return torch.addmm(at_x, self.G.mT, at_X, alpha=-1).square_()

    @outside()
    def wave_power(self, theta: Tensor, products: Tensor | None, roots: Tensor | None, origin: Tensor) -> np.ndarray:
        """Compute |r_theta(x)|^2 `[r, k]` of k complex waves e^{i theta . (x - origin)}.

        Args:
            theta: the frequencies, `[k, d]`.
            products: the monomial that multiplies each wave, as coordinates of (x, 1), `[k, degree]`; or None.
            roots: for several outputs, the root R `[k, t, t]` of each wave's coupling. The powers of the wave times all
                columns of R are summed.
        """
        theta, total = theta.to(self.G.device), None

        def waves_at(x: Tensor) -> Tensor:
            turns = (x - plain(origin).to(x)) @ (theta.mT / (2 * math.pi))
            P = turns.frac_().mul_(2 * math.pi).to(self.G)  # large phases would lose digits in float32
            return torch.cat([P.cos(), P.sin()], dim=1)

        # derivatives of waves have closed forms
        if products is None and roots is None and isinstance(self.sites, Functionals):
            power = self.residual_power(self.sites.of_waves(waves_at, theta))
            return as_numpy(power.unflatten(1, (2, -1)).sum(1).double())
        columns = [None] if roots is None else [R for R in roots.to(self.G).unbind(-1) if bool(R.any())]
        for column in columns:

            def values(at: Sites, column: Tensor | None = column) -> Tensor:
                waves = waves_at(at.points)
                factor = None if column is None else column[:, at.outputs].mT  # [p, k]
                if products is not None:
                    powers = torch.nn.functional.pad(at.points, (0, 1), value=1.0)[:, products].prod(-1).to(waves)
                    factor = powers if factor is None else factor * powers
                return waves if factor is None else waves * factor.repeat(1, 2)

            power = self.residual_power(self.sites.features(values))
            total = power if total is None else total + power
        assert total is not None
        return as_numpy(total.unflatten(1, (2, -1)).sum(1).double())


def reference_points(
    X: Tensor, domain: Tensor | None, where: Tensor | None, lengths: Tensor, count: int = 64
) -> Tensor:
    """Choose points `[r, d]` that represent where paths will be called. They are the same at every draw.

    If `where` is given, they are some of its points. With a `domain`, three quarters of them are in that box. Otherwise
    half of them are in the data's box, widened by 40%. The others lie between neighbours among the data, which finds
    clusters. Most of these are close to a datum, at distances over three orders of magnitude, since different
    frequencies of a rough path matter at each.
    """
    n, d = X.shape
    if where is not None and len(where):
        count = min(len(where), count)
        return where[torch.arange(count, device="cpu") * len(where) // count]  # evenly spaced
    near = count // (4 if domain is not None else 2)
    points = fixed_net(count, d)
    if domain is None:
        low, high = X.aminmax(dim=0)
        half = torch.where(high > low, 0.7 * (high - low), lengths)
        low, size = (low + high) / 2 - half, 2 * half
    else:
        low, size = domain[0], domain[1] - domain[0]
    inside = low + size * points[near:]
    number = torch.arange(near, device="cpu")
    which = number % min(n, near) * n // min(n, near)  # evenly spaced
    some = X[which]
    if n == 1:
        return torch.cat([inside, some + lengths * (2 * points[:near] - 1)])
    scaled = X / size
    neighbours = torch.cdist(scaled[which], scaled).topk(min(n, 2 * d + 1), largest=False).indices
    other = X[neighbours[number, 1 + number % (neighbours.shape[1] - 1)]]
    # The distance from a datum, relative to the distance between it and its neighbour. A quarter of the points lie in
    # the middle, and the logarithms of the other distances are evenly spaced.
    u = points[:near, :1]
    between = torch.where((number % 4 == 0)[:, None], 0.2 + 0.6 * u, 0.5 * (1 / 3000) ** (1 - u))
    return torch.cat([inside, some + between * (other - some)])


@torch.no_grad()
def posterior_at(kernel: Kernel, sites: Observed, noise: Tensor, largest: int = 4000) -> FactoredPosterior:
    """Make the posterior given data at some sites with this noise. It has no targets: choosing a basis needs none.

    Args:
        largest: the largest number of data whose covariance is factored here.
    """
    kernel, sites = kernel.to(noise.device, torch.float64), sites.double()
    operator = KernelOperator(kernel, sites, noise.double() + 1e-10 * coupled_diagonal(kernel, sites).mean())
    state = Cholesky().init(operator) if len(sites) <= largest else None
    return FactoredPosterior(kernel, sites, operator.noise, state)


def to_come(kernel: Kernel, X: Tensor, noise: float = 1e-6) -> tuple[Sites, Tensor]:
    """Make sites of points `[n, d]` where data are expected, for every output, and a small noise for them.

    Frequencies that are chosen for little noise also serve for more, but not the other way round.

    Args:
        noise: the noise of the expected data, in variances of the prior.
    """
    sites = Sites.every_output(X, kernel.num_outputs)
    return sites, noise * coupled_diagonal(kernel.to(X.device, torch.float64), sites.double())
