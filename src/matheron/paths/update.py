"""Updates: the second term of a posterior path, which data add to a prior path. The protocol, and code that its
implementations share.

`ExactUpdate` (exact.py) and `SparseUpdate` (sparse.py) are weighted sums of k(., z); `LatticeUpdate` (in `lattice`) has
coefficients of a Fourier lattice. Paths use the protocol alone.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, Self

import torch
from torch import Tensor

from ..core.functionals import Functionals, Observed
from ..core.value import Value, in_own_memory
from ..evaluate import Canonical, Float64Term, PathTerm, WeightedSum, sum_of
from ..kernels import Kernel
from ..models.means import Mean
from ..models.observations import Observations
from ..models.observed_functionals import check_smooth
from ..solvers import Solver, Stats

if TYPE_CHECKING:
    from .prior import PriorPaths


class Update(Value):
    """The terms that data add to s prior paths, and the quantities that conditioning on more data requires.

    A posterior path is mean + prior + update. The posterior mean is mean + `mean_terms`, whatever the prior's basis.
    """

    kernel: Kernel
    solver_stats: Stats | None = None  # how the weights were solved for; it is not saved

    @property
    @abstractmethod
    def num_data(self) -> int:
        """n, the observations that the paths are given."""

    @property
    def num_inducing(self) -> int:
        """m, the inducing points of a sparse model; zero for others."""
        return 0

    @property
    def num_centres(self) -> int:
        """The functions k(., z) that the update adds to each path."""
        return 0

    @property
    @abstractmethod
    def own_posteriors(self) -> bool:
        """Whether each path has a posterior of its own, because each was given targets of its own."""

    @abstractmethod
    def terms(self) -> list[PathTerm]:
        """The terms of the update, which evaluators add to the prior's."""

    def sums(self, x: Tensor) -> Tensor | None:
        """The updates at inner points `[1, n, d]`: `[s, t, n]`. None if the update has no terms."""
        return sum_of(self.terms(), x)

    def path_terms(self, prior: PriorPaths) -> list[PathTerm]:
        """The terms of prior + update."""
        return [*prior.terms(), *self.terms()]

    @abstractmethod
    def mean_terms(self) -> list[PathTerm]:
        """The terms of the posterior mean: one row, or one for each path if posteriors differ.

        Raises a TypeError if the mean is not known.
        """

    @abstractmethod
    def variance(self, prior: PriorPaths, sites: Observed) -> Tensor:
        """The posterior variance `[n]` at sites (or of functionals) in the model's space. Raises a TypeError if it is
        not known."""

    @abstractmethod
    def given(
        self, prior: PriorPaths, mean: Mean, new: Observations, solver: Solver, generator: torch.Generator
    ) -> tuple[PriorPaths, Update]:
        """The prior and the update of the same draw, given more data."""

    @abstractmethod
    def __getitem__(self, index: Tensor) -> Self:
        """The update of some of the paths."""

    def check_beside(self, prior: PriorPaths) -> None:
        """Raise a ValueError if this update does not fit these prior paths, which can be so in a damaged file."""

    def narrowed(self, prior: PriorPaths, old: tuple[PriorPaths, Update], mean: Mean) -> Update:
        """Adapt this update, a copy of `old` in another dtype, to a prior that was converted in the same way.

        If the dtype has too few digits for the sums of the update, the weights are solved for again.
        """
        return self

    def noise_variance(self) -> Tensor | None:
        """The noise variance of each output's observations, `[t]`; None where it is unknown or differs among them."""
        return None


def kernel_terms(kernel: Kernel, sites: Observed, weights: Tensor) -> list[PathTerm]:
    """The terms of sum_j v_j k(., z_j) for weights v `[s, c]` of c sites: a weighted sum for each coupled kernel.

    For functionals L_j it is sum_j v_j L_j k(., z), with a weighted sum for each order of derivatives. If weights are
    in float64 and sites in float32, the sums are computed in float64 (`precision.py`).
    """
    if len(sites) == 0:
        return []
    wide = weights.dtype != sites.points.dtype
    if wide:
        kernel, sites = kernel.to(weights.dtype), sites.to(weights.dtype)
    t = kernel.num_outputs
    if isinstance(sites, Functionals):
        from .functionals import functional_terms

        terms = functional_terms(kernel, sites, weights)
    else:
        terms = [
            WeightedSum(Canonical(k, sites.points), coupled_weights(B, sites.outputs, t, weights))
            for B, k in kernel.coupled()
        ]
    return [Float64Term(term) if wide else term for term in terms]


def coupled_weights(B: Tensor | None, outputs: Tensor | None, t: int, v: Tensor) -> Tensor:
    """The weights of one coupled kernel for each output, B[i, output_j] v_j: `[s, t, c]`."""
    if outputs is None:
        return v[:, None]
    return v[:, None].expand(-1, t, -1) if B is None else v[:, None] * B[:, outputs]


class KernelSum(Value):
    """sum_j v_j k(., z_j): weights v `[s, c]` at c sites."""

    shapes: ClassVar[str] = "v: s c"

    def __init__(self, kernel: Kernel, sites: Observed, v: Tensor) -> None:
        super().__init__(v=in_own_memory(v), kernel=kernel, sites=sites)

    def check(self) -> None:
        check_sites(self.kernel, self.sites, self.v)

    def terms(self) -> list[PathTerm]:
        return kernel_terms(self.kernel, self.sites, self.v)

    def __getitem__(self, index: Tensor) -> KernelSum:
        return KernelSum(self.kernel, self.sites, self.v[index])


def check_sites(kernel: Kernel, sites: Observed, v: Tensor) -> None:
    """Raise a ValueError if sites do not fit a kernel and weights `[s, c]`, which can be so in a damaged file."""
    t, outputs = kernel.num_outputs, sites.outputs
    kernel.terms(sites.points.shape[1])  # raises an error if the kernel does not fit the dimensions
    if v.shape[-1] != len(sites):
        raise ValueError(f"expected weights of {len(sites)} centres, got {v.shape[-1]}")
    if (outputs is None) != (t == 1):
        raise ValueError(f"expected sites with outputs for a kernel of {t} outputs, and for no other")
    if isinstance(sites, Functionals):
        check_smooth(kernel, sites)
    if outputs is not None and bool((outputs >= t).any()):
        raise ValueError(f"expected outputs below {t}")
