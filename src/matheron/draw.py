"""draw, draw_prior: the paper's algorithm, whole.

    f(.)        =  sum_i w_i phi_i(.)                                      a function from the prior, in weight space
    v           =  K_mm^-1 (u - f(Z))   or   (K_nn + noise)^-1 (y - f(X) - eps)
    (f | u)(.)  =  f(.) + sum_j v_j k(., z_j)                              the same function, given the data

Numbers are drawn in one order: frequencies, phases, w, then u, then eps. They are drawn in float64 on the generator's
device, so a CPU generator gives the same functions in any dtype on any device.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .checks import ArrayLike, as_count, as_dtype, as_tensor
from .describe import describe
from .features import Features, build_features
from .gp import Batch, Ensemble, ExactGP, Outputs, SelectedOutputs, SparseGP
from .kernels import Kernel
from .means import Mean, as_mean
from .paths import (
    AnyPaths,
    BatchPaths,
    EnsemblePaths,
    Inducing,
    OutputPaths,
    Paths,
    PriorPaths,
    SelectedPaths,
    UpdatePaths,
    at_tasks,
    update_given,
    values_at,
)
from .solvers import Cholesky, factor
from .transforms import Transform
from .updates import Data, exact_update


class _Basis(NamedTuple):
    """What a user says of the prior's basis."""

    num_features: int
    features: str | Features
    paths_per_basis: int | None
    domain: tuple[ArrayLike, ArrayLike] | None


def draw(
    model: Any,
    num_paths: int,
    *,
    num_features: int = 1024,
    features: str | Features = "auto",
    paths_per_basis: int | None = 64,
    domain: tuple[ArrayLike, ArrayLike] | None = None,
    solver: str = "auto",
    detach: bool = True,
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> AnyPaths:
    """Draw functions from a Gaussian process posterior, `eqn:decoupled_sample_path`.

    Args:
        model: a GPyTorch, BoTorch, scikit-learn or GPflow model, or a snapshot (`ExactGP`, `SparseGP`, ...).
        num_paths: how many functions.
        num_features: ell, the number of Fourier features of the prior.
        features: "auto", "cosine" (the paper's), "sincos", "sobol", "orthogonal", "equispaced", or a `Features`
            object, such as `other_paths.prior.features`.
        paths_per_basis: how many paths share one random basis; 1 is a basis a path, None one for all. Paths are
            independent given the basis; with one each they are independent altogether.
        domain: (lower, upper), each a number or one a dimension: where the paths will be called. "equispaced" needs
            it, and "auto" uses it in up to 3 dimensions.
        solver: "cholesky", "cg" (conjugate gradients, the covariance never formed), or "auto".
        detach: False keeps the graph from the paths to the model's hyperparameters.
        generator: where random numbers come from; None is torch's default generator.
        dtype, device: of the paths; the data's where not given.

    >>> import torch, matheron
    >>> from matheron import kernels
    >>> gp = matheron.ExactGP(kernels.RBF(0.3), X=[[0.0], [0.5], [1.0]], y=[0.0, 1.0, 0.0], noise=1e-4)
    >>> paths = matheron.draw(gp, 64)
    >>> paths(torch.rand(1000, 1)).shape
    torch.Size([64, 1000])
    """
    s, dtype = as_count(num_paths, "num_paths"), as_dtype(dtype)
    gp = describe(model, detach=detach)
    basis = _Basis(num_features, features, paths_per_basis, domain)
    settings: dict[str, Any] = dict(**basis._asdict(), solver=solver, detach=detach, dtype=dtype, device=device)
    generator = generator or torch.default_generator
    if isinstance(gp, SelectedOutputs):
        return SelectedPaths(draw(gp.model, s, generator=generator, **settings), gp.outputs)
    if isinstance(gp, Outputs | Batch):
        members = [draw(member, s, generator=generator, **settings) for member in gp.models]
        return OutputPaths(members) if isinstance(gp, Outputs) else BatchPaths(members, gp.batch_shape)
    if isinstance(gp, Ensemble):
        turns = torch.randperm(len(gp.models), generator=generator, device=generator.device).cpu()
        used, owner = turns[torch.arange(s) % len(turns)].unique(return_inverse=True)
        counts = torch.bincount(owner).tolist()
        members = [
            draw(gp.models[int(i)], count, generator=generator, **settings)
            for i, count in zip(used, counts, strict=True)
        ]
        return EnsemblePaths(members, owner.to(members[0].device))
    return _draw_one(gp, s, solver, detach, generator, dtype, device, basis)


def _draw_one(
    gp: ExactGP | SparseGP, s: int, solver: str, detach: bool, generator, dtype, device, basis: _Basis
) -> Paths:
    """One model's paths: the prior's, then the update that the model's data or inducing points ask for."""
    centres = gp.train_inputs if isinstance(gp, ExactGP) else gp.inducing_points
    centres = centres.to(dtype=dtype or centres.dtype, device=device or centres.device)
    centres = centres.detach().clone() if detach else centres

    def own(value: Any) -> Any:  # training the model on must not change a path once drawn
        return None if value is None else value.owned() if detach else value

    def placed(value: Any) -> Any:
        return None if value is None else value.to(centres.device, centres.dtype)

    kernel = own(gp.kernel)  # in float64 until its features are made
    mean, transforms = placed(own(gp.mean)), [placed(own(t)) for t in (gp.input_transform, gp.output_transform)]
    with torch.set_grad_enabled(not detach and torch.is_grad_enabled()):
        prior = _draw_prior(kernel, s, centres, basis, generator, data=centres, input_transform=transforms[0])
        given = _exact if isinstance(gp, ExactGP) else _sparse
        update = given(gp, placed(kernel), mean, prior, centres, solver, detach, generator)
    return Paths(prior, update, mean, *transforms)


def draw_prior(
    kernel: Kernel,
    num_paths: int,
    *,
    input_dim: int,
    mean: Mean | ArrayLike = 0.0,
    num_features: int = 1024,
    features: str | Features = "auto",
    paths_per_basis: int | None = 64,
    domain: tuple[ArrayLike, ArrayLike] | None = None,
    detach: bool = True,
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> Paths:
    """Draw functions from a prior, `eqn:bayes_linear`; `paths.condition_on` takes them on to a posterior.

    Arguments are those of `draw`.

    >>> import matheron
    >>> from matheron import kernels
    >>> k = kernels.Matern(1.5, 0.2) * kernels.Linear() + kernels.Periodic(1.0, 0.5)
    >>> matheron.draw_prior(k, 16, input_dim=1)([[0.1], [0.2]]).shape
    torch.Size([16, 2])
    """
    s, d = as_count(num_paths, "num_paths"), as_count(input_dim, "input_dim")
    if not isinstance(kernel, Kernel):
        raise TypeError(f"kernel: expected a kernel of matheron.kernels, got {type(kernel).__name__}")
    as_dtype(dtype)
    generator = generator or torch.default_generator
    kernel = kernel.owned() if detach else kernel
    mean_function = as_mean(mean)
    mean_function = (mean_function.owned() if detach else mean_function).to(torch.device(device), dtype)
    basis = _Basis(num_features, features, paths_per_basis, domain)
    where = torch.zeros(1, d, dtype=dtype, device=device)
    with torch.set_grad_enabled(not detach and torch.is_grad_enabled()):
        prior = _draw_prior(kernel, s, where, basis, generator)
    none = where.new_zeros(s, 0)
    tasks = torch.zeros(0, dtype=torch.long, device=where.device) if kernel.num_outputs > 1 else None
    update = UpdatePaths(kernel.to(where.device, dtype), where[:0], tasks, none, none[:1])
    return Paths(prior, update, mean_function)


def _draw_prior(
    kernel: Kernel,
    s: int,
    centres: Tensor,
    basis: _Basis,
    generator: torch.Generator,
    *,
    data: Tensor | None = None,
    input_transform: Transform | None = None,
) -> PriorPaths:
    """f(.) = sum_i w_i phi_i(.): a basis for some paths each, and weights for every path."""
    per_basis = s if basis.paths_per_basis is None else as_count(basis.paths_per_basis, "paths_per_basis")
    d, t = centres.shape[1], kernel.num_outputs
    features = basis.features
    if isinstance(features, Features):
        if features.origin.shape[0] != d:
            raise ValueError(f"features: made for {features.origin.shape[0]} dimensions, got points in {d}")
        outputs = {1 if root is None else len(root) for root in features.roots} - {t}
        if outputs:
            raise ValueError(f"features: made for {outputs.pop()} outputs, got a kernel of {t}")
    else:
        features = build_features(
            kernel.to("cpu"),  # where terms of all kinds meet; a model's may be on a GPU
            d,
            as_count(basis.num_features, "num_features"),
            kind=features,
            num_bases=math.ceil(s / per_basis),
            origin=centres.detach().double().mean(0).cpu(),
            domain=as_domain(basis.domain, d, input_transform, data),
            reference=None if data is None else data.detach(),
            generator=generator,
        )
    features = features.to(centres.device, centres.dtype)
    g = features.num_bases
    w = torch.randn(s, t, features.num_features, generator=generator, device=generator.device, dtype=torch.float64)
    w = w.to(centres)
    if t > 1:  # mix the outputs' independent weights with a root of B
        parts = w.split([b.size for b in features.bases], dim=-1)
        w = torch.cat([R @ part for R, part in zip(features.roots, parts, strict=True) if R is not None], dim=-1)
    basis_index = torch.arange(s, device=centres.device) // per_basis % g
    return PriorPaths(features, w, basis_index)


def _exact(gp, kernel, mean, prior, X, solver, detach, generator) -> UpdatePaths:
    """v = (K_nn + sigma^2 I)^-1 (y - f - eps), `eqn:matheron_gp_exact`."""
    y, noise = (value.detach() if detach else value for value in (gp.train_targets, gp.noise))
    tasks = None if gp.tasks is None else gp.tasks.to(X.device).clone()
    xi = _normals((len(prior.w), len(X)), generator).to(X)  # eps = sqrt(noise) xi
    data = Data(X, tasks, y.to(X).clone(), noise.to(X).clone(), xi)
    return update_given(prior, mean, kernel, data, solver)


def _sparse(gp, kernel, mean, prior, Z, solver, detach, generator) -> UpdatePaths:
    """v = K_mm^-1 (u - f_m), `eqn:matheron_gp_sparse`, u from q(u)."""
    s, m = len(prior.w), len(Z)
    tasks = None if gp.tasks is None else gp.tasks.to(Z.device).clone()
    q = (gp.q_mean, gp.q_scale_tril)
    q_mean, q_root = (None if v is None else (v.detach().clone() if detach else v).to(Z) for v in q)
    if q_mean is None:
        u = as_tensor(gp.sample_u(s, generator), "sample_u", like=Z)
        if u.shape != (s, m):
            raise ValueError(f"sample_u: expected draws [{s}, {m}], got {list(u.shape)}")
        rows = u.detach() if detach else u
    else:
        xi_u = _normals((s, m), generator).to(Z)
        q_root = torch.zeros(m, 0).to(Z) if q_root is None else q_root.diag_embed() if q_root.ndim == 1 else q_root
        u = q_mean if q_root.shape[1] == 0 else q_mean + xi_u @ q_root.mT  # [s, m]
        rows = torch.cat([u.expand(s, m), q_mean[None]])  # the mean is one more row
    jitter = torch.full((m,), gp.jitter, dtype=Z.dtype, device=Z.device)
    factored = factor(kernel, Z, tasks, jitter, "cholesky" if gp.whitened and solver == "auto" else solver)
    f_m = at_tasks(values_at(prior, mean, None, Z), tasks)  # [s + 1, m], the prior mean last
    if gp.whitened:
        if not isinstance(factored, Cholesky):
            raise ValueError('solver: a whitened q(u) is in terms of K_mm\'s Cholesky factor; use solver="cholesky"')
        rows = f_m[-1] + rows @ factored.L.mT
        q_root = None if q_root is None else factored.L @ q_root
    eps = (jitter + factored.jitter).sqrt() * _normals((s, m), generator).to(Z)
    if q_mean is None:
        v, v_mean = exact_update(factored, rows, f_m[:s], eps), None
    else:
        both = exact_update(factored, rows, f_m, torch.cat([eps, 0 * eps[:1]]))
        v, v_mean = both[:s], both[s]
    inducing = Inducing(v, v_mean, q_root, jitter[0] + factored.jitter)
    return UpdatePaths(kernel, Z, tasks, v, None if v_mean is None else v_mean[None], inducing=inducing)


def _normals(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, device=generator.device, dtype=torch.float64)


def as_domain(domain: Any, d: int, input_transform: Transform | None, data: Tensor | None) -> Tensor | None:
    """The box `[2, d]` where paths will be called, in the model's own space; it takes in the data."""
    if domain is None:
        return None
    if len(domain) != 2:
        raise ValueError("domain: expected a pair (lower, upper), each a number or one a dimension")
    lower, upper = (as_tensor(side, "domain").double().reshape(-1) for side in domain)
    if len(lower) not in (1, d) or len(upper) not in (1, d) or not bool((lower.expand(d) < upper.expand(d)).all()):
        raise ValueError(f"domain: expected lower < upper, each a number or {d} of them, got {domain}")
    box = torch.stack([lower.expand(d), upper.expand(d)])
    if input_transform is not None:
        box = input_transform.to("cpu", torch.float64)(box).sort(0).values.detach()
    if data is not None:
        lower, upper = data.detach().double().cpu().aminmax(dim=0)
        box = torch.stack([torch.minimum(box[0], lower), torch.maximum(box[1], upper)])
    return box
