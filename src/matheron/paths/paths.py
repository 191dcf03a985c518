"""Paths: functions drawn from a Gaussian process. Call them, differentiate them, condition them, save them."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
from torch import Tensor

from .. import store
from ..checks import ArrayLike, Random, as_generator, as_real, check_dim
from ..evaluate import evaluate, evaluate_with_gradient, fused, single
from ..means import Mean
from ..solvers import Solver, Stats, as_solver
from ..transforms import Transform
from ..value import Value
from ..weigh import add
from .conditioning import joined, update_given, without_repeats
from .grid import on_grid
from .observations import observed
from .prior import PriorPaths
from .rows import as_index, as_rows, padded_value_and_grad
from .update import UpdatePaths


class Paths(Value):
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
    Paths(8 paths in 1 dimension, given 3 observations; prior: 1024 sobol)
    >>> paths(torch.linspace(0, 1, 100)[:, None]).shape
    torch.Size([8, 100])
    """

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

    def __call__(self, x: ArrayLike) -> Tensor:
        """The paths at x: `[n, d] -> [s, n]`, `[s, n, d] -> [s, n]`; a trailing `[t]` for several outputs.

        Cost is linear in the number of points; memory beyond the answer is bounded by
        `matheron.evaluate.MEMORY_BUDGET`.
        """
        x = self._inner(self._points(x))
        if fused.supported(self, x):
            return self._outer(fused.evaluate(self, x))
        alone = single(self, x)
        if alone is not None:
            return self._outer(evaluate(alone.block, x, len(x), 1, alone.width, own=True, tied=False))
        own, tied = len(x) > 1, self.requires_graph()
        f = evaluate(self._block, x, self.num_paths, self.num_outputs, self._width(x), own=own, tied=tied)
        return self._outer(f)

    def value_and_grad(self, x: ArrayLike, *, of: ArrayLike | None = None) -> tuple[Tensor, Tensor]:
        """Values `[s, n]` and gradients `[s, n, d]` in x, in closed form and without a graph.

        For t outputs, `[s, n, t]` and `[s, n, t, d]`. With `of` `[p]`, x `[p, d]` is one point for each of the paths
        `of`, some of them several times perhaps and others not at all: `[p]` and `[p, d]`.

        >>> import torch, matheron
        >>> from matheron import kernels
        >>> paths = matheron.draw_prior(kernels.RBF(0.5), 4, input_dim=2)
        >>> value, gradient = paths.value_and_grad(torch.rand(10, 2))
        >>> value.shape, gradient.shape
        (torch.Size([4, 10]), torch.Size([4, 10, 2]))
        >>> paths.value_and_grad(torch.rand(3, 2), of=[0, 3, 3])[0].shape
        torch.Size([3])
        """
        owner = None
        if of is not None:
            x, owner = as_rows(self, x, of)
            if fused.supported(self, x):
                return padded_value_and_grad(self, x, owner)
        with torch.no_grad():
            outer = self._points(x) if owner is None else x[:, None]
            inner = self._inner(outer)
            if owner is None and fused.supported(self, inner):
                f, df = fused.evaluate_with_gradient(self, inner)
            else:
                f, df = self._blocks_with_gradient(inner, owner)
            if self.input_transform is not None:
                df = df * self.input_transform.derivative(outer)[..., None, :]
            if self.output_transform is not None:
                df = df * self.output_transform.derivative(f)[..., None]
            f, df = self._outer(f), df[..., 0, :] if self.num_outputs == 1 else df
            return (f, df) if owner is None else (f[:, 0], df[:, 0])

    def on_grid(self, axes: Sequence[ArrayLike]) -> Tensor:
        """The paths on a tensor grid: axes `[n1], [n2], ... -> [s, n1, n2, ...]` (and `[t]` for several outputs).

        The same values as a list of all the grid's points, for a fraction of the cost: see `evaluate.tensor_grid`.

        >>> import torch, matheron
        >>> from matheron import kernels
        >>> paths = matheron.draw_prior(kernels.RBF(0.1), 2, input_dim=2)
        >>> paths.on_grid([torch.linspace(0, 1, 50), torch.linspace(0, 2, 100)]).shape
        torch.Size([2, 50, 100])
        """
        return on_grid(self, axes)

    def mean(self, x: ArrayLike) -> Tensor:
        """The posterior mean at x `[n, d]`, exactly, whatever the basis: `[n]`, or `[n, t]` for several outputs.

        After `condition_on` with targets of each path's own the posteriors differ, and so do their means: `[s, n]`.

        >>> import matheron
        >>> from matheron import kernels
        >>> gp = matheron.ExactGP(kernels.RBF(), X=[[0.0]], y=[2.0], noise=0.0)
        >>> matheron.draw(gp, 1).mean([[0.0]])
        tensor([2.], dtype=torch.float64)
        """
        v_mean = self.update.v_mean
        if v_mean is None:
            raise TypeError("mean: this q(u) is known by its draws alone (sample_u); average the paths instead")
        if self.output_transform is not None and not self.output_transform.affine:
            raise TypeError("mean: under this output transform the mean has no closed form; average the paths instead")
        x = self._inner(self._points(x))
        if len(x) > 1:
            raise ValueError(f"mean: expected points [n, {self.input_dim}], got {list(x.shape)}")
        rows, t = len(v_mean), self.num_outputs

        def block(x: Tensor, _: slice | None) -> Tensor:
            m = self.mean_function(x).expand(rows, -1, t)  # [rows, n, t]
            update = self.update.sums(x, None, v=v_mean)
            return m if update is None else update.mT + m

        width = self.update.width + rows * t
        f = self._outer(evaluate(block, x, rows, t, width, own=False, tied=self.requires_graph()))
        return f[0] if rows == 1 else f

    def __getitem__(self, index: int | slice | Sequence[int] | Tensor) -> Paths:
        """Fewer paths; an integer keeps its axis."""
        chosen = as_index(index, self.num_paths, self.device)
        return self._with(self.prior[chosen], self.update[chosen])

    def __len__(self) -> int:
        return self.num_paths

    def condition_on(
        self,
        x: ArrayLike,
        y: ArrayLike,
        *,
        noise: ArrayLike,
        tasks: ArrayLike | None = None,
        solver: str | Solver = "auto",
        generator: Random = None,
        seed: int | None = None,
    ) -> Paths:
        """The same draw, given more data: new paths with the same w and noise, as if the data had always been there.

        Args:
            x: new points `[n, d]`, shared by all paths.
            y: their targets, `[n]` or `[s, n]` (each path its own, as in fantasies); `[..., n, t]` for t outputs
                without `tasks`.
            noise: variance of their noise, one number, one a point, or `[n, t]`; with 0 the paths pass through.
            tasks: which output each observation is of.
            solver: as for `draw`.
            generator, seed: draws the new observations' noise, a generator or a seed.

        >>> import matheron
        >>> from matheron import kernels
        >>> paths = matheron.draw_prior(kernels.RBF(0.5), 3, input_dim=1)
        >>> paths.condition_on([[0.2]], [1.0], noise=0.0)([[0.2]]).round(decimals=6)
        tensor([[1.],
                [1.],
                [1.]], dtype=torch.float64)
        """
        old = self.update
        if old.inducing is not None and old.inducing.root is None:
            raise TypeError("condition_on: this q(u) is known by its draws alone (sample_u), so its covariance is not")
        new = observed(self, x, y, noise, tasks, as_generator(generator, seed))
        if len(new.noise) == 0:
            return self
        data = without_repeats(joined(old, new), num_old=len(old.noise))
        m = old.num_inducing
        update = update_given(
            self.prior,
            self.mean_function,
            old.kernel,
            data,
            as_solver(solver),
            Z=old.centres[:m],
            Z_tasks=None if old.tasks is None else old.tasks[:m],
            inducing=old.inducing,
        )
        return self._with(self.prior, update)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the paths to a safetensors file; `matheron.load` reads them back, and runs no code."""
        store.save(self, path)

    def __repr__(self) -> str:
        m, n = self.update.num_inducing, len(self.update.noise)
        given = [f"{m} inducing points"] * (m > 0) + [f"{n} observations"] * (n > 0) or ["no data"]
        outputs = f", {self.num_outputs} outputs" if self.num_outputs > 1 else ""
        bases = f" in {self.prior.num_bases} bases" if self.prior.num_bases > 1 else ""
        dims = f"{self.input_dim} dimension{'s' if self.input_dim > 1 else ''}"
        prior = f"prior: {self.prior.features.description}{bases}"
        return f"Paths({self.num_paths} paths in {dims}{outputs}, given {' and '.join(given)}; {prior})"

    # How it is done.

    def _with(self, prior: PriorPaths, update: UpdatePaths) -> Paths:
        return Paths(prior, update, self.mean_function, self.input_transform, self.output_transform)

    def _points(self, x: ArrayLike) -> Tensor:
        """Points as `[1, n, d]` or `[s, n, d]`, in the paths' dtype and on their device."""
        x = as_real(x, "x").to(self.prior.w)
        if x.ndim not in (2, 3) or (x.ndim == 3 and x.shape[0] not in (1, self.num_paths)):
            raise ValueError(
                f"x: expected [n, {self.input_dim}] for all paths or [{self.num_paths}, n, {self.input_dim}] for each "
                f"its own, got {list(x.shape)}"
            )
        check_dim(x, "x", self.input_dim)
        return x[None] if x.ndim == 2 else x

    def _inner(self, x: Tensor) -> Tensor:
        """Points in the model's own space, checked against the domain of its features."""
        x = x if self.input_transform is None else self.input_transform(x)
        domain = self.prior.features.domain
        if domain is not None and x.shape[1]:
            slack = 1e-6 * (domain[1] - domain[0])
            if bool((x < domain[0] - slack).any()) or bool((x > domain[1] + slack).any()):
                raise ValueError(
                    f"x: expected points inside the domain {domain[0].tolist()} to {domain[1].tolist()} of these "
                    f"equispaced features, got {x.amin((0, 1)).tolist()} to {x.amax((0, 1)).tolist()}; draw with a "
                    "larger domain=, or with features='sobol'"
                )
        return x

    def _outer(self, f: Tensor) -> Tensor:
        """Outputs `[s, n, t]` as a user sees them."""
        f = f if self.output_transform is None else self.output_transform(f)
        return f.squeeze(-1) if f.shape[-1] == 1 else f

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
