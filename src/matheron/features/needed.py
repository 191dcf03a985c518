"""How accurate a prior must be: its error is measured against the posterior variance."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.functionals import Observed
from ..core.sites import Sites
from ..kernels import Kernel, coupled_diagonal
from ..solvers import Cholesky, FactoredPosterior, KernelOperator


@torch.no_grad()
def posterior_scale(
    kernel: Kernel, X: Tensor, noise: Tensor, *, at_data: bool = False, num_places: int = 32, num_neighbours: int = 128
) -> float:
    """A typical posterior variance between the data X `[n, d]`, whose noise has variances `[n]`.

    An average over places in the data's bounding box, each given its nearest data: local kriging, at a cost linear in
    n. Of several outputs the one of largest variance counts, as if all data were of it. With `at_data` it is the
    geometric mean of that and of the average at the data, each given the others: where these lie on a line, at an edge
    or in clusters, much less is left open near them.

    Args:
        num_places: where the posterior variance is estimated, and as many data again with `at_data`.
        num_neighbours: data that each of them is given: the nearest ones.
    """
    coupled = [
        (1.0 if B is None else float(B.detach().diagonal().max()), k)
        for B, k in kernel.owned().to("cpu", torch.float64).coupled()
    ]
    X, noise = X.detach().double().cpu(), noise.detach().double().cpu().expand(len(X))
    generator = torch.Generator().manual_seed(0x1A771CE)  # not one that data may have been made with
    lower, upper = X.aminmax(dim=0)
    places = lower + (upper - lower) * torch.rand(
        num_places, X.shape[1], generator=generator, dtype=torch.float64, device="cpu"
    )
    scale = (upper - lower).clamp_min(1e-300)
    # The datum that a place is, and is not given.
    own = torch.full((num_places,), 0 if len(X) == 1 else -1, device="cpu")
    if at_data:
        chosen = torch.randint(len(X), (num_places,), generator=generator, device="cpu")
        places, own = torch.cat([places, X[chosen]]), torch.cat([own, chosen])
    near = nearest(places / scale, X / scale, min(num_neighbours, len(X)))  # [p, k]
    Z = X[near]  # [p, k, d]
    K, k_p = (torch.zeros((), dtype=torch.float64, device="cpu") for _ in range(2))
    v = torch.zeros(len(places), dtype=torch.float64, device="cpu")
    for size, part in coupled:
        K = K + size * part.forward(Z, Z)  # [p, k, k]
        k_p = k_p + size * part.forward(places[:, None], Z)  # [p, 1, k]
        v = v + size * part.diag(places)
    given = torch.where(near == own[:, None], 1e6 * v.mean(), noise[near])
    L = torch.linalg.cholesky_ex(K + (1e-10 * v.mean() + given).diag_embed()).L
    explained = torch.linalg.solve_triangular(L, k_p.mT, upper=False).square().sum((-2, -1))
    left = torch.nan_to_num(v - explained, nan=0.0).clamp_min(1e-10 * v)
    return float(left.unflatten(0, (-1, num_places)).mean(1).log().mean().exp())


def nearest(places: Tensor, X: Tensor, k: int) -> Tensor:
    """The numbers `[p, k]` of the points X `[n, d]` that are nearest to places `[p, d]`."""
    some = places.split(max(1, (1 << 23) // len(X)))  # distances that are in memory at once
    return torch.cat([torch.cdist(part, X).topk(k, largest=False).indices for part in some])


@torch.no_grad()
def posterior_at(kernel: Kernel, sites: Observed, noise: Tensor, largest: int = 4000) -> FactoredPosterior:
    """The posterior given data at some sites, of this noise: for the choice of a basis, which needs no targets."""
    kernel, sites = kernel.to(noise.device, torch.float64), sites.double()
    operator = KernelOperator(kernel, sites, noise.double() + 1e-10 * coupled_diagonal(kernel, sites).mean())
    state = Cholesky().init(operator) if len(sites) <= largest else None
    return FactoredPosterior(kernel, sites, operator.noise, state)


def to_come(kernel: Kernel, X: Tensor, noise: float = 1e-6) -> tuple[Sites, Tensor]:
    """Points `[n, d]` as data to come of every output, and a noise that is as small as theirs may be.

    Frequencies for little noise also serve for more: those for much noise do not serve for less.

    Args:
        noise: of the data to come, in variances of the prior.
    """
    sites = Sites.every_output(X, kernel.num_outputs)
    return sites, noise * coupled_diagonal(kernel.to(X.device, torch.float64), sites.double())
