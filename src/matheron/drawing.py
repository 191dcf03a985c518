"""draw, draw_prior: the paper's whole algorithm.

    f(.)        =  sum_i w_i phi_i(.)                                      a function from the prior, in weight space
    v           =  K_mm^-1 (u - f(Z))   or   (K_nn + noise)^-1 (y - f(X) - eps)
    (f | u)(.)  =  f(.) + sum_j v_j k(., z_j)                              the same function, given the data

Numbers are drawn in one order: frequencies, phases, w, then u, then eps. They are drawn in float64 on the generator's
device, so a CPU generator gives the same functions in any dtype on any device. Frequencies by leverage are computed in
single precision, and differ between devices by its rounding.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypedDict, Unpack, overload

import torch

from .core.checks import (
    ArrayLike,
    Random,
    as_count,
    as_device,
    as_dtype,
    as_generator,
    as_points,
    normals,
    seeded,
)
from .features import Features, FeatureSpec, feature_spec, make_features, posterior_at, to_come
from .kernels import Kernel
from .kernels.own import as_kernel
from .lattice.draw_on_lattice import drawn_from_stream, drawn_on_lattice
from .models import GP, Batch, Ensemble, ExactGP, LatentGP, Outputs, SelectedOutputs, SparseGP, cast_model
from .models.libraries import describe
from .models.means import MeanLike, as_mean
from .models.streamed import StreamedGP
from .paths import (
    AbstractPaths,
    BatchPaths,
    Data,
    EnsemblePaths,
    ExactUpdate,
    OutputPaths,
    Paths,
    SelectedPaths,
    exact_update,
    prior_on,
    sparse_update,
)
from .solvers import Auto, Cholesky, FactoredPosterior, Solver, as_solver
from .solvers.operator import KernelOperator


class DrawSettings(TypedDict, total=False):
    """The settings of `draw`, by name."""

    num_features: int
    features: str | Features
    paths_per_basis: int | None
    domain: tuple[ArrayLike, ArrayLike] | None
    tolerance: float
    where: ArrayLike | None
    solver: str | Solver
    detach: bool
    generator: Random
    seed: int | None
    dtype: torch.dtype | None
    device: torch.device | str | None
    progress: bool


@overload
def draw(
    model: ExactGP | SparseGP | StreamedGP | LatentGP, num_paths: int, **settings: Unpack[DrawSettings]
) -> Paths: ...
@overload
def draw(model: Batch, num_paths: int, **settings: Unpack[DrawSettings]) -> BatchPaths: ...
@overload
def draw(model: object, num_paths: int, **settings: Unpack[DrawSettings]) -> AbstractPaths: ...
@seeded
def draw(
    model: object,
    num_paths: int,
    *,
    num_features: int = 1024,
    features: str | Features = "auto",
    paths_per_basis: int | None = 64,
    domain: tuple[ArrayLike, ArrayLike] | None = None,
    tolerance: float = 1e-3,
    where: ArrayLike | None = None,
    solver: str | Solver = "auto",
    detach: bool = True,
    generator: Random = None,
    seed: int | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    progress: bool = False,
) -> AbstractPaths | BatchPaths:
    """Draw functions from a Gaussian process posterior, by decoupled sampling.

    Each function is a path of the prior plus an update that makes it agree with the data, equation (13):

        (f | u)(.)  =  sum_i w_i phi_i(.) + sum_j v_j k(., z_j)

    Args:
        model: a model of GPyTorch, BoTorch, scikit-learn or GPflow, or a model of matheron such as `ExactGP` or
            `SparseGP`. A `StreamedGP` has its data read in chunks. For a `LatentGP`, latent functions are drawn.
        num_paths: the number of functions.
        num_features: the number ell of Fourier features of the prior. Lattice features choose their own number.
        features: the kind of features. "leverage" samples frequencies by their leverage given the data, and "cosine"
            are the features of the paper. Others are "sincos", "sobol" and "orthogonal". "lattice" uses equispaced
            frequencies, and "equispaced" at most `num_features` of these. "auto" is "lattice" where that is possible,
            and otherwise "leverage". A `Features` object, such as `other_paths.prior.features`, is used as it is.
        paths_per_basis: the number of paths that share a random basis. Paths are independent given their basis. 1
            gives each path its own basis, so that all paths are independent, and None gives all paths the same.
        domain: the box (lower, upper) in which the paths will be called; each is a number, or one per dimension. If
            it is given, "auto" chooses a lattice for stationary terms of up to 3 dimensions. In more dimensions,
            frequencies are chosen for the box.
        tolerance: for lattice features, the largest fraction of the posterior variance that may be lost; it sets the
            number of modes. Slopes and local extrema depend on higher frequencies than the variance does. By default,
            rough paths are too smooth at the finest scale; use 1e-5 or 1e-6 where this matters.
        where: points `[n, d]` that are typical of those at which the paths will be called. Frequencies are chosen for
            them.
        solver: "cholesky"; "cg" for conjugate gradients, which never store the covariance; "lattice" for many data in
            up to 3 dimensions, which needs `domain`; "auto"; or a solver such as
            `matheron.solvers.PCG(tolerance=1e-3)`. `paths.solver_stats` reports which solver ran, and its iterations.
        detach: whether to cut the graph; with False, paths are differentiable in the model's hyperparameters.
        generator, seed: where random numbers come from: a generator or a seed; torch's default generator if neither.
        dtype, device: those of the paths; by default those of the data.
        progress: whether to show a progress bar while a solver iterates or data are read in chunks.

    Returns:
        The paths. For a batch of models they are `BatchPaths`, whose members are paths.

    Reference: Wilson et al., Efficiently Sampling Functions from Gaussian Process Posteriors, ICML 2020.

    >>> import torch, matheron
    >>> from matheron import kernels
    >>> gp = matheron.ExactGP(kernels.RBF(0.3), X=[[0.0], [0.5], [1.0]], y=[0.0, 1.0, 0.0], noise=1e-4)
    >>> paths = matheron.draw(gp, 64)
    >>> paths(torch.rand(1000, 1)).shape
    torch.Size([64, 1000])
    """
    s, dtype, solver = as_count(num_paths, "num_paths"), as_dtype(dtype), as_solver(solver, progress)
    device = None if device is None else as_device(device)
    streamed = isinstance(model, StreamedGP)
    gp = model.model if streamed else model if isinstance(model, GP) else describe(model, detach=detach)
    random = as_generator(generator, seed)
    asked = (features, num_features, paths_per_basis, domain, tolerance, where)
    spec = feature_spec(*asked, num_paths=s, input_dim=gp.input_dim, names=gp.input_names)
    if streamed:
        return drawn_from_stream(model, s, spec, solver, detach, random, dtype, device)

    def drawn(one: GP, count: int) -> AbstractPaths:
        """Draw paths of a model that may contain other models. Its leaves are exact and sparse models."""
        if isinstance(one, SelectedOutputs):
            return SelectedPaths(drawn(one.model, count), one.outputs)
        if isinstance(one, Outputs):
            return OutputPaths([drawn(member, count) for member in one.models])
        if isinstance(one, Ensemble):
            turns = torch.randperm(len(one.models), generator=random, device=random.device).cpu()
            used, owner = turns[torch.arange(count, device="cpu") % len(turns)].unique(return_inverse=True)
            counts = torch.bincount(owner).tolist()
            members = [drawn(one.models[int(i)], n) for i, n in zip(used, counts, strict=True)]
            return EnsemblePaths(members, owner.to(members[0].device))
        if isinstance(one, Batch):
            raise TypeError("model: expected a batch of models to be outermost, got one within another model")
        return _draw_one(cast_model(one, dtype, device, detach), replace(spec, num_paths=count), solver, detach, random)

    if isinstance(gp, Batch):
        return BatchPaths([drawn(member, s) for member in gp.models], gp.batch_shape)
    paths = drawn(gp, s)
    return paths.replaced(outcomes=repr(model.likelihood)) if isinstance(model, LatentGP) else paths


def _draw_one(
    gp: ExactGP | SparseGP, spec: FeatureSpec, solver: Solver, detach: bool, generator: torch.Generator
) -> Paths:
    """Draw paths of one model: factor the covariance, draw the prior's paths, and solve for the update that makes them
    agree with the data."""
    sites, Z, s = gp.sites, gp.sites.points, spec.num_paths
    spec = spec.inside(gp.input_transform, Z)
    noise = gp.noise if isinstance(gp, ExactGP) else Z.new_full((len(Z),), gp.jitter)
    if isinstance(gp, SparseGP) and gp.whitened and isinstance(solver, Auto):
        solver = Cholesky()  # because q(u) is whitened by the Cholesky factor
    if spec.domain is not None or not solver.for_centres:
        on_lattice = drawn_on_lattice(gp, s, spec, solver, detach, generator)
        if on_lattice is not None:
            return on_lattice
    with torch.set_grad_enabled(not detach and torch.is_grad_enabled()):
        kernel = gp.kernel.to(Z.device, Z.dtype)  # in the model's dtype; features are made from the float64 kernel
        state = solver.init(KernelOperator(kernel, sites, noise))  # K_nn + noise, or K_mm
        posterior = FactoredPosterior(kernel, sites, noise, state)
        features = make_features(gp.kernel, spec, generator, posterior=posterior, like=Z)  # phi
        n, index = len(sites) if isinstance(gp, ExactGP) else 0, spec.basis_index(features)
        prior = prior_on(features, index, kernel.num_outputs, Z, generator, n)  # f(.) = sum_i w_i phi_i(.)
        if isinstance(gp, ExactGP):
            xi = normals((s, len(sites)), generator).to(Z)  # eps = sqrt(noise) xi
            data = Data(sites, gp.train_targets, noise, xi)
            update = exact_update(prior, gp.mean, kernel, data, state.solver, state=state)  # sum_j v_j k(., x_j)
        else:
            update = sparse_update(gp, prior, posterior, generator)  # sum_j v_j k(., z_j)
    return Paths(prior, update, gp.mean, gp.input_transform, gp.output_transform, gp.input_names)


@seeded
def draw_prior(
    kernel: Kernel,
    num_paths: int,
    *,
    input_dim: int,
    mean: MeanLike = 0.0,
    num_features: int = 1024,
    features: str | Features = "auto",
    paths_per_basis: int | None = 64,
    domain: tuple[ArrayLike, ArrayLike] | None = None,
    tolerance: float = 1e-3,
    where: ArrayLike | None = None,
    detach: bool = True,
    generator: Random = None,
    seed: int | None = None,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> Paths:
    """Draw functions from a Gaussian process prior, equation (6); `paths.condition_on` conditions them on data.

    The other arguments are those of `draw`.

    Args:
        kernel: the prior's covariance.
        num_paths: the number of functions.
        input_dim: the number of input dimensions.
        mean: the prior's mean, a number or a function of points.
        where: points `[n, d]` of data that will be given later. The basis is chosen for them, so that the conditioned
            paths have the spread of the posterior, even for many and precise data.

    >>> import matheron
    >>> from matheron import kernels
    >>> k = kernels.Matern(1.5, 0.2) * kernels.Linear() + kernels.Periodic(1.0, 0.5)
    >>> matheron.draw_prior(k, 16, input_dim=1)([[0.1], [0.2]]).shape
    torch.Size([16, 2])
    """
    s, d = as_count(num_paths, "num_paths"), as_count(input_dim, "input_dim")
    as_dtype(dtype)
    device, generator = as_device(device), as_generator(generator, seed)
    kernel = as_kernel(kernel).owned() if detach else as_kernel(kernel)
    mean_function = as_mean(mean)
    mean_function = (mean_function.owned() if detach else mean_function).to(device, dtype)
    asked = (features, num_features, paths_per_basis, domain, tolerance)
    spec = feature_spec(*asked, num_paths=s, input_dim=d)
    centres, posterior = torch.zeros(1, d, dtype=dtype, device=device), None
    X = centres[:0] if where is None else as_points(where, "where", input_dim=d, like=centres).detach()
    if len(X):
        sites, noise = to_come(kernel, X)
        centres, posterior = sites.points, posterior_at(kernel, sites, noise)
    with torch.set_grad_enabled(not detach and torch.is_grad_enabled()):
        spec = spec.inside(None, centres if len(X) else None)
        phi = make_features(kernel, spec, generator, posterior=posterior, like=centres)
        prior = prior_on(phi, spec.basis_index(phi), kernel.num_outputs, centres, generator)
    return Paths(prior, ExactUpdate.empty(kernel, centres, s), mean_function)
