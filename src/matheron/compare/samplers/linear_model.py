"""Samplers for the Bayesian linear model f(.) = phi(.) . w of a set of features, equation (6), in float64.

For t outputs, the weights are w = R omega with standard normal omega `[t, ell]`, where R is a root of the matrix that
couples the outputs. A row of the design matrix is then R[task] (x) phi(x).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import final

import torch
from torch import Tensor

from ...core.checks import ArrayLike, Names, Random, as_count, as_device, as_generator, normals
from ...core.functionals import Functionals, Observed
from ...core.sites import Sites
from ...evaluate import averaged_basis, values
from ...features import Block, Features, FeatureSpec, feature_spec, make_features
from ...lattice.basis import Lattice
from ...models import ExactGP, SparseGP
from ...models.libraries import describe
from ...models.means import Mean
from ...models.observed_functionals import by_quadrature
from ...models.transforms import Transform
from ...paths import ExactUpdate, Inducing, PriorPaths, PriorPlusUpdate, SparseUpdate, Update, mixed
from ...paths.matheron_rule import weight_space_update
from ...solvers.cholesky import safe_cholesky, solved
from .conditionals import Factored, PriorAt, single


def linear_features(gp: ExactGP | SparseGP, spec: FeatureSpec, generator: torch.Generator) -> tuple[Features, Tensor]:
    """Make features of the model's prior in float64, and return the index of the basis that each path uses, `[s]`."""
    centres = gp.centres.detach().double()
    spec = spec.inside(gp.input_transform, centres)
    features = make_features(gp.kernel.owned(), spec, generator, data=centres, like=centres)
    return features, spec.basis_index(features)


def design(features: Features, sites: Observed) -> Tensor:
    """Compute the design matrices Phi at n sites or of n functionals: `[g, n, t ell]` for g bases; f = Phi omega."""
    if isinstance(sites, Functionals) and sites.sides is not None:
        averages = _averaged_features(features)
        if averages is None:
            sites = by_quadrature(sites, lambda some: design(features, some).square().sum((0, 2)))
            return design(features, sites)
        rows = sites.of_parts(
            lambda part: design(*((features, part) if part.sides is None else (averages, part.as_points()))).mT
        )
        return rows.mT
    if isinstance(sites, Functionals):
        wide = sites.features(lambda at: design(features, at).transpose(0, 1).flatten(1))  # [n, g t ell]
        return wide.unflatten(1, (features.num_bases, -1)).transpose(0, 1)
    Phi, outputs = features(sites.points), sites.outputs  # [g, n, ell]
    if outputs is None:
        return Phi
    parts = Phi.split([basis.size for basis in features.bases], dim=-1)
    blocks = zip(features.roots, parts, strict=True)
    rows = [R[outputs][:, :, None] * part[:, :, None] for R, part in blocks if R is not None]  # [g, n, t, c]
    return torch.cat(rows, dim=-1).flatten(2)


def _averaged_features(features: Features) -> Features | None:
    """The averages of features over boxes; None where they are not known in closed form."""
    d = len(features.origin)
    if features.domain is not None:
        return None
    blocks = []
    for block in features.blocks:
        basis = averaged_basis(block.basis, d)
        if basis is None:
            return None
        blocks.append(Block(basis, block.root, block.role))
    return Features(blocks, torch.nn.functional.pad(features.origin, (0, d)), None, features.choices)


def wide_bases(features: Features, shares: Tensor, width: int = 1 << 13) -> Iterator[Callable[[Observed], Tensor]]:
    """Yield functions that map n sites to `[n, g t ell]`, the design of g bases with columns scaled by sqrt(share).

    Bases are joined until they have about `width` columns for each output. The sum of share * Phi Phi^T over all bases
    is then computed with a few products of wide matrices.
    """
    on_lattices = [isinstance(basis, Lattice) for basis in features.bases]
    if any(on_lattices):
        for basis, root, lattice in zip(features.bases, features.roots, on_lattices, strict=True):
            for part in basis.parts(width, features.origin.shape[0]) if lattice else [basis]:
                one = features.with_blocks([Block(part, root)])
                yield from wide_bases(one, shares if part.num_bases > 1 else shares.sum()[None], width)
        return
    step = max(1, width // features.num_features)
    for start in range(0, features.num_bases, step):
        cut = slice(start, start + step)
        some = features.select(cut)
        scale = shares[cut, None, None].sqrt()

        def wide(sites: Observed, some: Features = some, scale: Tensor = scale) -> Tensor:
            return (design(some, sites) * scale).transpose(0, 1).flatten(1)

        yield wide


def shared_bases(basis: Features | PriorPlusUpdate, device: torch.device) -> tuple[Features, Tensor]:
    """Return features in float64 and the share `[g]` of each basis; for paths, the share of paths that use it."""
    if isinstance(basis, PriorPlusUpdate):
        features, index = basis.prior.features, basis.prior.basis_index
        counts = torch.bincount(index, minlength=features.num_bases).double()
    elif isinstance(basis, Features):
        features, counts = basis, torch.ones(basis.num_bases, dtype=torch.float64, device="cpu")
    else:
        raise TypeError(f"basis: expected Features or Paths, got {type(basis).__name__}")
    return features.to(device, torch.float64), (counts / counts.sum()).to(device)


def feature_covariance(basis: Features | PriorPlusUpdate, x: Observed | Tensor) -> Tensor:
    """Compute k^(w)(x, x), the covariance `[n, n]` of the prior with these features; for several bases, their mean.

    x are points `[n, d]` after the model's input transform, or sites if there are several outputs.

    >>> import matheron, torch
    >>> from matheron import kernels
    >>> from matheron.compare.samplers import feature_covariance
    >>> paths = matheron.draw_prior(kernels.RBF(), 1, input_dim=1, features="sincos")
    >>> feature_covariance(paths, torch.zeros(1, 1, dtype=torch.float64))
    tensor([[1.]], dtype=torch.float64)
    """
    sites = (Sites(x) if isinstance(x, Tensor) else x).owned().double()
    features, shares = shared_bases(basis, sites.points.device)
    K = sites.points.new_zeros(len(sites), len(sites))
    with torch.no_grad():
        for wide in wide_bases(features, shares):
            Phi = wide(sites)  # [n, g t ell]
            K += Phi @ Phi.mT
    return K


# Weight-space posteriors of the linear model with random features, with which decoupled sampling is compared.
# Appendix A of the paper has two other decompositions of a sparse posterior, and both are inaccurate. They require a
# linear model of ell features to interpolate given values (u or zero) at the m inducing points. Few of its functions
# do so, and these vary wildly elsewhere. Decoupled paths use the functions k(., Z) for this.


METHODS = ("auto", "cholesky", "eigen", "pathwise")


@final
class LinearModelPaths(PriorPlusUpdate):
    """Functions phi(.) . w with w drawn from a posterior; they have all methods of paths, except `condition_on`.

    `mean_weights` `[g, t, ell]` are the posterior means of w for each basis.

    >>> import matheron
    >>> from matheron import kernels
    >>> from matheron.compare.samplers import LinearModelPaths, weight_space
    >>> gp = matheron.ExactGP(kernels.RBF(0.3), X=[[0.0], [1.0]], y=[0.0, 1.0], noise=1e-2)
    >>> isinstance(weight_space(gp, 4, num_features=16), LinearModelPaths)
    True
    """

    prior: PriorPaths

    def __init__(
        self,
        prior: PriorPaths,
        update: Update,
        mean: Mean,
        mean_weights: Tensor | None,
        input_transform: Transform | None = None,
        output_transform: Transform | None = None,
        input_names: Names = None,
    ) -> None:
        super().__init__(prior, update, mean, input_transform, output_transform, input_names)
        self.register_buffer("mean_weights", mean_weights)

    def _mean(self, x: Tensor) -> Tensor:
        """Compute the posterior mean of the linear model; for several bases, that of the mixture."""
        self._affine_output()
        if self.mean_weights is None:
            raise TypeError("mean: this q(u) is only known by its draws (sample_u); average the paths instead")
        bases, counts = self.prior.basis_index.unique(return_counts=True)
        prior = PriorPaths(self.prior.features, self.mean_weights[bases], bases)
        terms = [*prior.terms(), *self.update.mean_terms()]
        record = replace(self.record, num_paths=len(bases), terms=terms)
        means = record.outer(values(record, record.inner(x)))
        return torch.tensordot(counts.to(means) / counts.sum(), means, dims=1)

    def _variance(self, x: Tensor) -> Tensor:
        raise TypeError("variance: weight-space paths do not store it; use samples=True, or samplers.moments")

    def _chosen(self, index: Tensor) -> LinearModelPaths:
        used = self.prior.basis_index[index].unique()
        means = self.mean_weights
        kept = means if means is None or self.prior.num_bases == 1 else means[used]
        return self.replaced(prior=self.prior[index], update=self.update[index], mean_weights=kept)

    def _given(self, *_: object) -> LinearModelPaths:
        raise TypeError(
            "condition_on: weight-space paths cannot be conditioned; call weight_space with a model of all the data"
        )

    def _refreshed(self, *_: object) -> LinearModelPaths:
        raise TypeError("refreshed: weight-space paths cannot be refreshed; call weight_space with a model of all data")


def weight_space(
    model: object,
    num_paths: int,
    *,
    num_features: int = 1024,
    features: str | Features = "cosine",
    paths_per_basis: int | None = None,
    domain: tuple[ArrayLike, ArrayLike] | None = None,
    method: str = "auto",
    generator: Random = None,
    seed: int | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> LinearModelPaths:
    """Draw functions phi(.) . w from the posterior of a linear model, equation (7).

        w | y  ~  N((Phi^T Phi + sigma^2 I)^-1 Phi^T y,  sigma^2 (Phi^T Phi + sigma^2 I)^-1)

    The other arguments are those of `matheron.draw`, with the paper's defaults: cosines, and one basis for all paths.

    Args:
        method: "cholesky" factorises the `[ell, ell]` precision, "eigen" the `[n, n]` matrix Phi Phi^T (Woodbury), and
            "pathwise" uses Matheron's rule for w, equation (12). "auto" is "cholesky" if ell <= n, and "eigen"
            otherwise. All agree in law, but the first two need noise.

    >>> import torch, matheron
    >>> from matheron import kernels
    >>> from matheron.compare.samplers import weight_space
    >>> gp = matheron.ExactGP(kernels.RBF(0.3), X=[[0.0], [0.5], [1.0]], y=[0.0, 1.0, 0.0], noise=1e-4)
    >>> weight_space(gp, 64, num_features=256)(torch.rand(1000, 1)).shape
    torch.Size([64, 1000])
    """
    s, gp = as_count(num_paths, "num_paths"), single(describe(model))
    if not isinstance(gp, ExactGP):
        raise TypeError("model: expected an exact model, got a sparse one; use samplers.weight_space_sparse")
    if method not in METHODS:
        raise ValueError(f"method: expected one of {', '.join(METHODS)}, got {method!r}")
    generator = as_generator(generator, seed)
    spec = feature_spec(features, num_features, paths_per_basis, domain, num_paths=s, input_dim=gp.input_dim)
    with torch.no_grad():
        phi, basis_index = linear_features(gp, spec, generator)
        at = PriorAt(gp)
        omega = normals((s, gp.num_outputs * phi.num_features), generator).to(at.centres)
        eps = normals((s, gp.num_data), generator).to(at.centres) if method == "pathwise" else None
        y, noise = gp.train_targets.detach().to(at.centres) - at.mean_m, gp.noise.detach().to(at.centres)
        means = omega.new_zeros(phi.num_bases, omega.shape[1])
        for g in basis_index.unique().tolist():
            Phi, mine = design(phi.select(g), at.sites)[0], basis_index == g  # [n, t ell], [s]
            if eps is not None:
                zero = torch.zeros_like(y)[None]
                means[g] = weight_space_update(Phi, torch.zeros_like(omega[:1]), y, noise, zero)[0]
                omega[mine] = weight_space_update(Phi, omega[mine], y, noise, noise.sqrt() * eps[mine])
            else:
                means[g], omega[mine] = _posterior(Phi, y, noise, omega[mine], method)
        return linear_model_paths(gp, phi, omega, means, basis_index, None, dtype, device)


def _posterior(Phi: Tensor, y: Tensor, noise: Tensor, zeta: Tensor, method: str) -> tuple[Tensor, Tensor]:
    """Compute the posterior mean of the weights `[ell]`, and draws `[s, ell]` from standard normals zeta."""
    if not bool((noise > 0).all()):
        raise ValueError(f'method: expected noise above zero for "{method}", got 0; use method="pathwise"')
    n, ell = Phi.shape
    Phi, y = Phi / noise.sqrt()[:, None], y / noise.sqrt()  # scaled so that the noise variance is one
    if method == "cholesky" or (method == "auto" and ell <= n):
        L, _ = safe_cholesky(Phi.mT @ Phi + torch.eye(ell, dtype=Phi.dtype, device=Phi.device), "Phi^T Phi / noise + I")
        mean = solved(L, (Phi.mT @ y)[:, None])[:, 0]  # [ell]
        return mean, mean + torch.linalg.solve_triangular(L.mT, zeta.mT, upper=True).mT  # [s, ell]
    values, U = torch.linalg.eigh(Phi @ Phi.mT)  # [n], [n, n]
    values = values.clamp_min(0)
    mean = Phi.mT @ (U @ ((U.mT @ y) / (1 + values)))  # [ell]
    # (I + Phi^T Phi)^-1/2 = I - Phi^T U diag(shrink) U^T Phi, with shrink = (1 - (1 + values)^-1/2) / values, in a form
    # without cancellation for small values.
    root = (1 + values).sqrt()
    shrink = 1 / (root * (1 + root))
    return mean, mean + zeta - ((zeta @ Phi.mT) @ U * shrink) @ U.mT @ Phi  # [s, ell]


def linear_model_paths(
    gp: ExactGP | SparseGP,
    phi: Features,
    omega: Tensor,
    means: Tensor | None,
    basis_index: Tensor,
    inducing: Inducing | None,
    dtype: torch.dtype | None,
    device: torch.device | str | None,
) -> LinearModelPaths:
    """Make paths from drawn weights omega `[s, t ell]`, with an update on k(., Z) if `inducing` is given."""
    like = gp.centres
    kernel = gp.kernel.owned().to(like.device, torch.float64)
    update = ExactUpdate.empty(kernel, omega[:, : like.shape[1]], len(omega))
    if inducing is not None:
        update = SparseUpdate.without_data(kernel, inducing)

    def by_output(flat: Tensor) -> Tensor:
        return mixed(phi, flat.reshape(len(flat), -1, phi.num_features))  # [s, t, ell]

    prior = PriorPaths(phi, by_output(omega), basis_index)
    inward, outward = (None if t is None else t.owned() for t in (gp.input_transform, gp.output_transform))
    mean = gp.mean.owned()
    paths = LinearModelPaths(
        prior, update, mean, None if means is None else by_output(means), inward, outward, gp.input_names
    )
    return paths.to(like.device if device is None else as_device(device), dtype or like.dtype)


def weight_space_sparse(
    model: object,
    num_paths: int,
    *,
    num_features: int = 1024,
    features: str | Features = "cosine",
    paths_per_basis: int | None = None,
    domain: tuple[ArrayLike, ArrayLike] | None = None,
    generator: Random = None,
    seed: int | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> LinearModelPaths:
    """Draw functions phi(.) . w from a sparse model's posterior in weight space, equation (18).

        w | u  =  w + Phi^T (Phi Phi^T)^-1 (u - Phi w),      u ~ q(u),  Phi = phi(Z)

    Arguments are those of `weight_space`.

    >>> import matheron
    >>> from matheron import kernels
    >>> from matheron.compare.samplers import weight_space_sparse
    >>> sparse = matheron.SparseGP(kernels.RBF(0.3), [[0.0], [1.0]], [0.0, 1.0])
    >>> weight_space_sparse(sparse, 8, num_features=64)([[0.5]]).shape
    torch.Size([8, 1])
    """
    basis = (features, num_features, paths_per_basis, domain)
    return _draw(model, num_paths, basis, as_generator(generator, seed), dtype, device, orthogonal=False)


def orthogonal(
    model: object,
    num_paths: int,
    *,
    num_features: int = 1024,
    features: str | Features = "cosine",
    paths_per_basis: int | None = None,
    domain: tuple[ArrayLike, ArrayLike] | None = None,
    generator: Random = None,
    seed: int | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> LinearModelPaths:
    """Draw functions from a sparse model's posterior as a sum of independent parts, f = f_par + f_perp (appendix A).

        f_par(.)   =  k(., Z) K_mm^-1 u,      u ~ q(u)
        f_perp(.)  =  phi(.) . (w - Phi^T (Phi Phi^T)^-1 Phi w)           zero at Z

    The features are those of f_perp, whose covariance is k - k(., Z) K_mm^-1 k(Z, .), equation (19). Arguments are
    those of `weight_space`.

    >>> import matheron
    >>> from matheron import kernels
    >>> from matheron.compare.samplers import orthogonal
    >>> sparse = matheron.SparseGP(kernels.RBF(0.3), [[0.0], [1.0]], [0.0, 1.0])
    >>> orthogonal(sparse, 8, num_features=64)([[0.5]]).shape
    torch.Size([8, 1])
    """
    basis = (features, num_features, paths_per_basis, domain)
    return _draw(model, num_paths, basis, as_generator(generator, seed), dtype, device, orthogonal=True)


def _draw(
    model: object,
    num_paths: int,
    basis: tuple[str | Features, int, int | None, tuple[ArrayLike, ArrayLike] | None],
    generator: torch.Generator,
    dtype: torch.dtype | None,
    device: torch.device | str | None,
    *,
    orthogonal: bool,
) -> LinearModelPaths:
    s, gp = as_count(num_paths, "num_paths"), single(describe(model))
    if not isinstance(gp, SparseGP):
        raise TypeError("model: expected a sparse model, got an exact one; use samplers.weight_space")
    spec = feature_spec(*basis, num_paths=s, input_dim=gp.input_dim)
    with torch.no_grad():
        phi, basis_index = linear_features(gp, spec, generator)
        at = PriorAt(gp)
        update = Factored(gp, at)
        omega = normals((s, gp.num_outputs * phi.num_features), generator).to(at.centres)
        u = update.draws(s, generator)  # [s, m], minus the prior mean
        eps = update.noise.sqrt() * normals((s, len(at.centres)), generator).to(at.centres)
        aim, known = 0 * u if orthogonal else u, gp.q_mean is not None
        mean_aim = update.target if known and not orthogonal else 0 * u[0]
        means = omega.new_zeros(phi.num_bases, omega.shape[1])
        for g in basis_index.unique().tolist():
            Phi, mine = design(phi.select(g), at.sites)[0], basis_index == g  # [m, t ell], [s]
            omega[mine] = weight_space_update(Phi, omega[mine], aim[mine], update.noise, eps[mine])
            means[g] = weight_space_update(Phi, 0 * omega[:1], mean_aim, update.noise, 0 * eps[:1])[0]
        inducing = None
        if orthogonal:
            v = solved(update.L, u.mT).mT  # [s, m]
            v_mean = solved(update.L, update.target[:, None])[:, 0] if known else None  # [m]
            root = (u.new_zeros(u.shape[1], 0) if update.root is None else update.root) if known else None
            assert isinstance(at.sites, Sites)
            inducing = Inducing(at.sites, v, v_mean, root, update.noise[0])
        return linear_model_paths(gp, phi, omega, means if known else None, basis_index, inducing, dtype, device)
