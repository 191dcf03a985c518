"""Paths: functions drawn from a Gaussian process. Call them, differentiate them, condition them, save them."""

from __future__ import annotations

from abc import abstractmethod
from typing import Self, final

import torch
from torch import Tensor

from ..evaluate import evaluate, evaluate_with_gradient, fused, single
from ..means import Mean
from ..solvers import Solver, Stats
from ..transforms import Transform
from ..updates import Data
from ..weigh import add
from .base import AbstractPaths
from .conditioning import given_more
from .grid import on_grid
from .observations import Observations, undone
from .prior import PriorPaths
from .rows import padded_value_and_grad
from .update import UpdatePaths


class PriorPlusUpdate(AbstractPaths):
    """Functions of one model: output o (mean + prior + update) o input."""

    def __init__(
        self,
        prior: PriorPaths,
        update: UpdatePaths,
        mean_function: Mean,
        input_transform: Transform | None = None,
        output_transform: Transform | None = None,
    ) -> None:
        super().__init__()
        self.prior = prior
        self.update = update
        self.mean_function = mean_function
        self.register_module("input_transform", input_transform)
        self.register_module("output_transform", output_transform)

    @abstractmethod
    def in_model_units(self) -> Self:
        """The same functions without their output transform."""

    @property
    def num_paths(self) -> int:
        return self.prior.w.shape[0]

    @property
    def num_outputs(self) -> int:
        return self.prior.w.shape[1]

    @property
    def input_dim(self) -> int:
        return self.prior.features.origin.shape[0]

    @property
    def dtype(self) -> torch.dtype:
        return self.prior.w.dtype

    @property
    def device(self) -> torch.device:
        return self.prior.w.device

    @property
    def solver_stats(self) -> Stats | None:
        """How the update was solved for: the solver, its iterations and residual. None where there was nothing to.

        >>> import matheron
        >>> from matheron import kernels
        >>> gp = matheron.ExactGP(kernels.RBF(), X=[[0.0]], y=[2.0], noise=0.1)
        >>> matheron.draw(gp, 1).solver_stats
        Stats(solver='Cholesky()', iterations=0, residual=None, converged=True, jitter=0.0)
        """
        return self.update.solver_stats

    def __repr__(self) -> str:
        m, n = self.update.num_inducing, len(self.update.noise)
        given = [f"{m} inducing points"] * (m > 0) + [f"{n} observations"] * (n > 0) or ["no data"]
        outputs = f", {self.num_outputs} outputs" if self.num_outputs > 1 else ""
        bases = f" in {self.prior.num_bases} bases" if self.prior.num_bases > 1 else ""
        dims = f"{self.input_dim} dimension{'s' if self.input_dim > 1 else ''}"
        prior = f"prior: {self.prior.features.description}{bases}"
        return f"Paths({self.num_paths} paths in {dims}{outputs}, given {' and '.join(given)}; {prior})"

    def _values(self, x: Tensor) -> Tensor:
        x = self._inner(x)
        if fused.supported(self, x):
            return self._outer(fused.evaluate(self, x))
        alone = single(self, x)
        if alone is not None:
            return self._outer(evaluate(alone.block, x, len(x), 1, alone.width, own=True, tied=False))
        own, tied = len(x) > 1, self.requires_graph()
        f = evaluate(self._block, x, self.num_paths, self.num_outputs, self._width(x), own=own, tied=tied)
        return self._outer(f)

    def _values_and_gradients(self, x: Tensor) -> tuple[Tensor, Tensor]:
        inner = self._inner(x)
        if fused.supported(self, inner):
            return self._chained(x, *fused.evaluate_with_gradient(self, inner))
        return self._chained(x, *self._blocks_with_gradient(inner, None))

    def _values_and_gradients_of(self, x: Tensor, owner: Tensor) -> tuple[Tensor, Tensor]:
        if fused.supported(self, x):
            return padded_value_and_grad(self, x, owner)
        x = x[:, None]
        f, df = self._chained(x, *self._blocks_with_gradient(self._inner(x), owner))
        return f[:, 0], df[:, 0]

    def _on_grid(self, axes: list[Tensor], out: Tensor) -> None:
        out.copy_(on_grid(self, axes))

    def _chained(self, x: Tensor, f: Tensor, df: Tensor) -> tuple[Tensor, Tensor]:
        """Values and gradients of the inner functions as those of the whole, at outer points x."""
        if self.input_transform is not None:
            df = df * self.input_transform.derivative(x)[..., None, :]
        if self.output_transform is not None:
            df = df * self.output_transform.derivative(f)[..., None]
        return self._outer(f), df

    def _inner(self, x: Tensor) -> Tensor:
        """Points in the model's own space, checked against the domain of its features."""
        x = x if self.input_transform is None else self.input_transform(x)
        domain = self.prior.features.domain
        if domain is not None and x.shape[1]:
            slack = 1e-6 * (domain[1] - domain[0])
            if bool((x < domain[0] - slack).any()) or bool((x > domain[1] + slack).any()):
                raise ValueError(
                    f"x: expected points inside the domain {domain[0].tolist()} to {domain[1].tolist()} of this "
                    f"lattice, got {x.amin((0, 1)).tolist()} to {x.amax((0, 1)).tolist()}; draw with a "
                    "larger domain=, or with features='sobol'"
                )
        return x

    def _outer(self, f: Tensor) -> Tensor:
        """Outputs `[s, n, t]` in a user's units."""
        return f if self.output_transform is None else self.output_transform(f)

    def _affine_output(self) -> None:
        if self.output_transform is not None and not self.output_transform.affine:
            raise TypeError("mean: under this output transform the mean has no closed form; average the paths instead")

    def _width(self, x: Tensor) -> int:
        """Numbers held a point (and a path, where each has its own): the widest basis, and the sums."""
        width = max(self.prior.width, self.update.width)
        if len(x) == 1:
            return width + self.num_paths * self.num_outputs
        gathered = self.input_dim // max(1, x.shape[1]) + 1 if self.prior.num_bases > 1 else 1
        return width * gathered + self.num_outputs

    def _block(self, x: Tensor, paths: slice | None) -> Tensor:
        """mean + prior + update at some points (of some paths), `[s, n, t]`."""
        f = add(self.prior.sums(x, paths), self.update.sums(x, paths))  # [s, t, n]
        m = self.mean_function(x)  # [1 or s, n, 1 or t]
        if f is None:
            return m.expand(self.num_paths if paths is None else -1, -1, self.num_outputs)
        return f.mT + m

    def _blocks_with_gradient(self, x: Tensor, owner: Tensor | None) -> tuple[Tensor, Tensor]:
        """Values and gradients at inner points `[1 or s, n, d]`, or of the paths `owner` at their `[p, n, d]`."""
        alone = single(self, x, owner)
        block = self._block_with_gradient if alone is None else alone.block_with_gradient
        width = self._width(x) * (1 + self.input_dim) if alone is None else 2 * alone.width
        own = alone is not None or owner is not None or len(x) > 1
        if owner is None:
            return evaluate_with_gradient(block, x, self.num_paths, self.num_outputs, width, own=own)

        def of_owners(x: Tensor, some: slice | None) -> tuple[Tensor, Tensor]:
            return block(x, owner if some is None else owner[some])

        return evaluate_with_gradient(of_owners, x, len(owner), self.num_outputs, width, own=own)

    def _block_with_gradient(self, x: Tensor, paths: slice | Tensor | None) -> tuple[Tensor, Tensor]:
        m, dm = self.mean_function.with_gradient(x)  # [1 or s, n, 1 or t], [1 or s, n, 1 or t, d]
        total = add(self.prior.sums(x, paths, gradient=True), self.update.sums(x, paths, gradient=True))
        if total is None:
            shape = (self.num_paths if paths is None else -1, -1, self.num_outputs)
            return m.expand(shape), dm.expand(*shape, -1)
        f, df = total  # [s, t, n], [s, t, n, d]
        return f.mT + m, df.transpose(1, 2) + dm


@final
class Paths(PriorPlusUpdate):
    """Functions drawn from a Gaussian process, a batch of them: a value that is never changed.

        (f | u)(.)  =  mean(.) + sum_i w_i phi_i(.) + sum_j v_j k(., z_j)          eqn:decoupled_sample_path
                                 `-- prior            `-- update

    Points `[n, d]` are every path's, and give `[s, n]`; points `[s, n, d]` are each path's own (a leading 1
    broadcasts). A model of t outputs adds a trailing axis `[..., t]`.

    >>> import torch, matheron
    >>> from matheron import kernels
    >>> gp = matheron.ExactGP(kernels.Matern(2.5, 0.2), X=[[0.1], [0.5], [0.9]], y=[0.0, 1.0, 0.0], noise=1e-6)
    >>> paths = matheron.draw(gp, 8)
    >>> paths
    Paths(8 paths in 1 dimension, given 3 observations; prior: 1024 by leverage)
    >>> paths(torch.linspace(0, 1, 100)[:, None]).shape
    torch.Size([8, 100])
    """

    def in_model_units(self) -> Paths:
        return Paths(self.prior, self.update, self.mean_function, self.input_transform)

    def _mean(self, x: Tensor) -> Tensor:
        v_mean = self.update.v_mean
        if v_mean is None:
            raise TypeError("mean: this q(u) is known by its draws alone (sample_u); average the paths instead")
        self._affine_output()
        rows, t = len(v_mean), self.num_outputs

        def block(x: Tensor, _: slice | None) -> Tensor:
            m = self.mean_function(x).expand(rows, -1, t)  # [rows, n, t]
            update = self.update.sums(x, None, v=v_mean)
            return m if update is None else update.mT + m

        x, width = self._inner(x), self.update.width + rows * t
        f = self._outer(evaluate(block, x, rows, t, width, own=False, tied=self.requires_graph()))
        return f if self.update.y.ndim == 2 else f[0]

    def _chosen(self, index: Tensor) -> Paths:
        return self._with(self.prior[index], self.update[index])

    def _given(self, data: Observations, solver: Solver, generator: torch.Generator) -> Paths:
        old = self.update
        if old.inducing is not None and old.inducing.root is None:
            raise TypeError("condition_on: this q(u) is known by its draws alone (sample_u), so its covariance is not")
        y, noise = undone(self.output_transform, self.num_outputs, data)
        shape = (self.num_paths, len(noise))
        xi = torch.randn(shape, generator=generator, device=generator.device, dtype=torch.float64).to(y)
        new = Data(self._inner(data.x[None])[0], data.tasks, y, noise, xi)
        return self._with(self.prior, given_more(old, self.prior, self.mean_function, new, solver))

    def _with(self, prior: PriorPaths, update: UpdatePaths) -> Paths:
        return Paths(prior, update, self.mean_function, self.input_transform, self.output_transform)
