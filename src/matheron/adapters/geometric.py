"""GeometricKernels: kernels on spheres, graphs, meshes, matrix groups and other spaces, as kernels of matheron.

A kernel of the library and its parameters become one kernel with features of its own. Where the library has
eigenfunctions of the Laplacian, these are the features, and they are exact. Where it has the sums of each level alone
(matrix groups), they are random phases, whose mean is the kernel. On spaces that are not compact they are those that
the kernel itself is made of.

Points are `[n, d]`: nodes and words are whole numbers, matrices are flattened row by row, and complex ones are their
real parts and then their imaginary ones. It computes in float64, by the library's torch backend.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ..core.checks import as_array
from ..core.modes import transformed
from ..kernels.own import OwnKernel, pairwise
from .refusal import full_name, needs

with needs("GeometricKernels", "geometric"):
    import geometric_kernels.torch  # noqa: F401
    from geometric_kernels import spaces
    from geometric_kernels.kernels import BaseGeometricKernel, MaternKarhunenLoeveKernel, default_feature_map


class GeometricKernel(OwnKernel):
    """A kernel of GeometricKernels on its space; its lengthscale is a hyperparameter, and its smoothness is fixed."""

    saveable = False
    instead_of_saving = "Keep the kernel and the model, and draw again with the same seed"
    checked: ClassVar = True

    def __init__(self, kernel: Any, tensors: dict[str, Any], fixed: dict[str, Tensor]) -> None:
        super().__init__(tensors)
        self.theirs = (kernel, fixed)

    def __repr__(self) -> str:
        return f"GeometricKernel({self.space_name}, {self.truncation})"

    @property
    def space(self) -> Any:
        return self.theirs[0].space

    @property
    def space_name(self) -> str:
        return str(self.space)

    @property
    def truncation(self) -> str:
        """What is left out of the kernel's series, in words."""
        kernel = self.theirs[0]
        if not isinstance(kernel, MaternKarhunenLoeveKernel):
            return "by the features that it is made of"
        share = self.last_share()
        return f"{kernel.num_levels} levels, the last of which has {share:.1g} of the variance"

    def last_share(self) -> float:
        """The share of the variance in the last level of the series, but for all that a finite space has: then zero."""
        kernel = self.theirs[0]
        whole = getattr(self.space, "num_vertices", None)
        if isinstance(self.space, spaces.HypercubeGraph | spaces.HammingGraph):
            whole = self.space.dimension + 1
        if whole is not None and kernel.num_levels >= whole:
            return 0.0
        with torch.no_grad():
            each = np.asarray(kernel.eigenvalues(self._params()).detach())[:, 0]
        each = each * np.asarray(kernel.eigenfunctions.num_eigenfunctions_per_level)
        return float(each[-1] / each.sum())

    def _params(self) -> dict[str, Tensor]:
        return {**self.theirs[1], **{name: value.double().reshape(-1) for name, value in self.tensors.items()}}

    def _elements(self, x: Tensor) -> Tensor:
        """Points `[n, d]` as elements of the space."""
        space = self.space
        if x.shape[-1] != width_of(space):
            raise ValueError(
                f"{self.space_name}: expected points [n, {width_of(space)}], {described(space)}, got {x.shape[-1]} "
                "columns"
            )
        if not transformed():
            off = (x - self.nearest(x)).detach().abs()
            if off.numel() and float(off.max()) > 1e-3:
                worst = x.detach()[int(off.amax(-1).argmax())].tolist()
                raise ValueError(f"{self.space_name}: expected points that are {described(space)}, got {worst}")
        return elements(space, self.nearest(x) if is_discrete(space) else x)

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        kernel, params = self.theirs[0], self._params()

        def k(a: Tensor, b: Tensor) -> Tensor:
            left = self._elements(a.double())
            return kernel.K(params, left, left if b is a else self._elements(b.double()))

        return pairwise(k, x, z).to(x)

    def diag(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1]).double()
        return self.theirs[0].K_diag(self._params(), self._elements(flat)).reshape(x.shape[:-1]).to(x)

    def nearest(self, x: Tensor) -> Tensor:
        return nearest_on(self.space, x)

    def features(self, num_features: int, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
        kernel, params = self.theirs[0], self._params()
        if isinstance(kernel, MaternKarhunenLoeveKernel) and not has_eigenfunctions(kernel):
            return self._random_phases(num_features, generator)
        phi = default_feature_map(kernel=kernel)

        def features(x: Tensor) -> Tensor:
            return phi(self._elements(x.double()), params, normalize=kernel.normalize)[1].to(x)

        return features

    def _random_phases(self, num_features: int, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
        """sqrt(a_l / c_l) G_l(x, u_i) of levels l and random points u_i of the space, c_l of them.

        G_l is the sum of the products of the eigenfunctions of level l, and a_l their variance: the mean of
        G_l(x, u) G_l(u, x') over the space is G_l(x, x'). A level has phases by its share of the variance.
        """
        kernel = self.theirs[0]
        variance = kernel.eigenvalues(self._params())[:, 0]  # [l]
        share = variance.detach() * torch.as_tensor(
            kernel.eigenfunctions.num_eigenfunctions_per_level, device=variance.device
        )
        counts = (num_features * share / share.sum()).ceil().long()  # [l]
        phases = kernel.space.random(generator, int(counts.max()))[1]
        taken = torch.arange(len(phases), device=counts.device)[:, None] < counts  # [i, l]
        amplitudes = (variance / counts).sqrt().expand(len(phases), -1)[taken]

        def features(x: Tensor) -> Tensor:
            X = self._elements(x.double())
            Phi = kernel.eigenfunctions.phi_product(X, phases.to(X.dtype))[:, taken] * amplitudes  # [n, c]
            return (torch.cat([Phi.real, Phi.imag], dim=1) if Phi.is_complex() else Phi).to(x)

        return features


def translate(kernel: Any, params: Mapping[str, Any] | None = None) -> GeometricKernel:
    """A kernel of GeometricKernels as one of matheron's, with features for draws.

    Args:
        kernel: such as `geometric_kernels.kernels.MaternGeometricKernel(space)`.
        params: its parameters by name, `kernel.init_params()` by default: "lengthscale", which `matheron.fit` fits, and
            "nu", the smoothness, which is fixed.
    """
    if not isinstance(kernel, BaseGeometricKernel):
        raise TypeError(f"kernel: expected one of geometric_kernels.kernels, got {full_name(kernel)}")
    factors: list[Any] = kernel.space if isinstance(kernel.space, list) else [kernel.space]
    where = " x ".join(map(str, factors))
    params = dict(kernel.init_params() if params is None else params)
    if isinstance(kernel.space, list):
        raise TypeError(
            f"kernel: {type(kernel).__name__} on {where} is not understood; expected a Matern kernel on one space; "
            "translate the kernel of each factor, and multiply them: k1.on([0, 1, 2]) * k2.on([3])"
        )
    if not set(params) <= {"nu", "lengthscale"}:
        raise TypeError(
            f"kernel: {type(kernel).__name__} on {where} is not understood, which has the parameters {sorted(params)}; "
            "expected a Matern kernel with nu and lengthscale alone. Others, such as Hodge kernels on the edges of a "
            "graph, are kernels.from_callables(k, sample_features)"
        )
    missing = {"nu", "lengthscale"} - set(params)
    if missing:
        raise ValueError(f"params: expected nu and lengthscale for a kernel on {where}, got {sorted(params)}")
    values = {name: as_array(value).detach().double().reshape(-1) for name, value in params.items()}
    for name, value in values.items():
        if value.numel() != 1 or not float(value) > 0:
            raise ValueError(f"params: expected one positive number for {name!r} on {where}, got {value.tolist()}")
    ours = GeometricKernel(kernel, {"lengthscale": values["lengthscale"]}, {"nu": values["nu"]})
    if isinstance(kernel, MaternKarhunenLoeveKernel) and ours.last_share() > 0.01:
        warnings.warn(
            f"{where}: the last of {kernel.num_levels} levels has {ours.last_share():.1%} of the variance; the kernel "
            "is cut off there, and draws are smoother than its smoothness says; make it with more levels, num=",
            RuntimeWarning,
            stacklevel=2,
        )
    return ours


def has_eigenfunctions(kernel: Any) -> bool:
    """Whether each eigenfunction is known, and not only the sums of the products of those of a level."""
    space = kernel.space
    if isinstance(space, spaces.Hypersphere):
        return kernel.num_levels <= kernel.eigenfunctions.num_computed_levels
    return not isinstance(space, spaces.CompactMatrixLieGroup | spaces.HammingGraph)


def shape_of(space: Any) -> list[int]:
    """The shape of an element."""
    shape: Any = space.element_shape
    sizes: list[int] = shape() if callable(shape) else shape  # type: ignore[assignment]
    return list(sizes)


def is_complex(space: Any) -> bool:
    return isinstance(space, spaces.SpecialUnitary)


def is_discrete(space: Any) -> bool:
    return isinstance(space, spaces.Graph | spaces.Mesh | spaces.HypercubeGraph | spaces.HammingGraph)


def width_of(space: Any) -> int:
    """Columns of a point."""
    return math.prod(shape_of(space)) * (2 if is_complex(space) else 1)


def described(space: Any) -> str:
    """What a point of a space is, in words."""
    if hasattr(space, "num_vertices"):
        return f"whole numbers of nodes from 0 to {space.num_vertices - 1}"
    if is_discrete(space):
        return "words of whole numbers"
    if isinstance(space, spaces.Hypersphere):
        return "vectors of length 1"
    if isinstance(space, spaces.Circle):
        return "angles in radians"
    if is_complex(space):
        return "special unitary matrices, real parts row by row and then imaginary ones"
    if isinstance(space, spaces.SpecialOrthogonal):
        return "rotation matrices, row by row"
    shape = shape_of(space)
    return "matrices of the space, row by row" if len(shape) > 1 else "vectors of the space"


def elements(space: Any, x: Tensor) -> Tensor:
    """Points `[n, d]` in the form that the library takes."""
    shape = shape_of(space)
    if is_discrete(space):
        x = x.round().long()
        return x.bool() if isinstance(space, spaces.HypercubeGraph) else x
    if is_complex(space):
        x = torch.complex(*x.chunk(2, dim=-1))
    return x.reshape(len(x), *shape)


def nearest_on(space: Any, x: Tensor) -> Tensor:
    """The points of a space nearest to points of R^d, `[..., d]`; where that is not known, the points themselves."""
    if hasattr(space, "num_vertices"):
        return x.round().clamp(0, space.num_vertices - 1)
    if is_discrete(space):
        return x.round().clamp(0, 1) if isinstance(space, spaces.HypercubeGraph) else x.round()
    if isinstance(space, spaces.Hypersphere):
        return torch.nn.functional.normalize(x, dim=-1)
    if isinstance(space, spaces.SpecialOrthogonal):
        U, _, V = torch.linalg.svd(x.reshape(*x.shape[:-1], space.n, space.n))
        # if the nearest orthogonal matrix is a reflection, the last direction is reversed
        sign = torch.linalg.det(U @ V)
        U = torch.cat([U[..., :-1], U[..., -1:] * sign[..., None, None]], dim=-1)
        return (U @ V).flatten(-2)
    if isinstance(space, spaces.Hyperbolic):  # points of the hyperboloid at the same horizontal coordinates
        height = (1 + x[..., 1:].square().sum(-1, keepdim=True)).sqrt()
        return torch.cat([height, x[..., 1:]], dim=-1)
    return x
