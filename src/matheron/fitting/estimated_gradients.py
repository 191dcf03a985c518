"""Gradients of the log marginal likelihood that are estimated with random probes, for many data.

`Pathwise` solves with products of the covariance, in any number of dimensions:

    d log p / dtheta  =  1/2 a' K_theta a - 1/2 tr(K^-1 K_theta),      a = K^-1 (y - m)
    tr(K^-1 K_theta)  =  tr(P^-1 K_theta) + E[(K^-1 u - P^-1 u)' K_theta P^-1 u],      u ~ N(0, P)

P is the preconditioner, a low-rank matrix plus a diagonal. The trace with P^-1 is exact and costs one pass over
K_theta, and only the difference between K and P is estimated with probes (Wenger et al., 2022). Probes from the prior,
as in a draw, would make all of the trace random. All steps use the same random numbers. Solutions then change little
between steps, and the last ones are good initial guesses.

`OnLattice` solves on a Fourier lattice, in up to three dimensions.

Let f = Phi L w on a lattice, where L_j L_j^T = H_j is the covariance of its mode j (a matrix for several outputs, a
number for one). With Lambda the noise and M = I + L' Phi' Lambda^-1 Phi L,

    d log p / d H_j  =  1/2 (a_j a_j' - E[b_j b_j']),      a = L'^-1 u,    b = L'^-1 (w - v),
    M u  =  L' Phi' Lambda^-1 (y - m),      M v  =  w - L' Phi' Lambda^-1 eps,

since L' Phi' K^-1 (y - m) = u, and w - v has the covariance L' Phi' K^-1 Phi L. This is the pathwise estimator of Lin
et al. (2024), in weight space. Powers and couplings depend on the kernel, but modes do not. While one box serves, the
data are therefore transformed once and for all, and a gradient costs the same for any number of data. Monomials of
linear and polynomial terms, and constants, are explicit functions beside the lattice. They have weights of their own,
and log p has slopes in their variances as in those of modes.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ..core.sites import Sites
from ..evaluate import Products
from ..features import LARGEST_DIM
from ..features.explicit import monomial_count, monomials
from ..kernels import Kernel
from ..kernels.algebra import root_of
from ..kernels.base import Term
from ..lattice import FourierLattice
from ..lattice.basis import Lattice
from ..lattice.box import Box, joined
from ..lattice.coefficients import lattice_of
from ..lattice.series import LARGEST_ERROR, Modes, bases_of, scale_of, sized_box, with_series
from ..lattice.system import LARGEST_BESIDE, LARGEST_INFORMATION, Information, Joint, System, rows_of
from ..models.means import Mean
from ..solvers import PCG, ConvergenceWarning, Solver, State
from ..solvers.operator import KernelOperator
from ..solvers.pcg import PCGState
from ..solvers.preconditioner import LowRank, default_rank
from .hyperparameters import Hyperparameters, Leaf, log_prior
from .likelihood import Dense, accumulate, likelihood_with_gradient


class NotOnLattice(ValueError):
    """A model cannot be fitted on a lattice."""


class OnLattice:
    """An estimate of the gradient of log p(y | hyperparameters) + log prior in the vector."""

    fresh = 0.3  # a box is chosen again when a hyperparameter has moved by this much on its logarithmic scale
    # with at most this many data, a box is refused if it leaves out more than this fraction of the noise variance
    few, too_much = 30_000, 0.3
    # The error of a solve enters the gradient multiplied by the size of the weights, which is hundreds of times too
    # large. Therefore the tolerance is small, and many iterations are allowed.
    solver = FourierLattice(tolerance=0.02, head=4000, max_iterations=2000)

    def __init__(self, of: Dense, num_probes: int, seed: int) -> None:
        h, X, y, tasks = of.hyperparameters, of.X, of.y, of.tasks
        # repeated inputs are merged instead of using a lattice, which would need ever more modes as the noise
        # approaches zero
        self.merged = Merged.of(of)
        if self.merged is not None:
            return
        self.hyperparameters, self.X, self.y, self.tasks, self.priors = h, X, y, tasks, of.priors
        # Tensors of the kernel's size are on the CPU; those of the size of the data or of the modes are on the data's
        # device.
        self.domain = torch.stack(X.aminmax(dim=0)).cpu()  # [2, d]
        self.origin = self.domain.mean(0)
        generator = torch.Generator().manual_seed(seed)
        xi = torch.randn(num_probes, len(X), generator=generator, dtype=torch.float64, device="cpu")
        self.xi = xi.to(X)  # [s, n]
        self.seed = int(torch.randint(2**31, (1,), generator=generator, device="cpu"))
        # Fixed variances [n], or ones for a fitted noise variance. The transforms of the data are divided by these.
        self.relative = torch.ones_like(y) if isinstance(h.noise, Leaf) else h.noise.expand(len(y))
        self.rows = rows_of(tasks, h.kernel.num_outputs)
        if any(not len(y[mine]) for mine in self.rows):
            raise NotOnLattice("an output has no data")
        # The lattice has a constant function for each output, which gives the gradient of the mean: see `_solved`.
        stationary = with_series(h.kernel.to("cpu").terms(X.shape[1]))
        if not isinstance(h.mean, Mean) and not any(len(self.rows) == 1 or t.coupling is not None for t in stationary):
            raise NotOnLattice("its mean is fitted, and each output needs a stationary term")
        self.made: tuple[Tensor, Box, list[int]] | None = None
        self.projections: list[Tensor] = []
        self.guess: Tensor | None = None

    @staticmethod
    def can(h: Hyperparameters, X: Tensor) -> bool:
        """Whether a model may be on one lattice: noise, stationary terms, few monomials beside them, a constant or
        fixed mean."""
        d = X.shape[1]
        noisy = isinstance(h.noise, Leaf) or bool((h.noise > 0).all())
        level = isinstance(h.mean, Mean) or len(h.mean) == 1
        terms = h.kernel.to("cpu").terms(d)
        beside = beside_of(terms, d)
        every = bool(with_series(terms)) and len(with_series(terms)) + len(beside) == len(terms)
        few = h.kernel.num_outputs * sum(monomial_count(list(t.forms)) for t in beside) <= LARGEST_BESIDE
        return d <= LARGEST_DIM and noisy and level and every and few

    def __call__(self, vector: Tensor) -> Tensor:
        if self.merged is not None:
            return self.merged(vector)
        h, d = self.hyperparameters, self.X.shape[1]

        def slopes(leaves: list[Tensor]) -> Sequence[Tensor | None]:
            t, fitted = len(self.rows), isinstance(h.noise, Leaf)
            kernel, noise, mean = h.model([leaf.cpu() for leaf in leaves], t, torch.arange(t, device="cpu"))
            # the noise variance that multiplies the relative ones, [t]
            scale = noise if fitted else torch.ones(t, dtype=torch.float64, device="cpu")
            terms = beside_of(kernel.terms(d), d)
            explicit = [monomials(list(term.forms)) for term in terms]
            variances = [term.variance * c for term, (_, c) in zip(terms, explicit, strict=True)]  # [k] each
            box = self._box(vector.detach(), kernel, float(noise.detach().min()), [A for A, _ in explicit])
            bases = [(basis, part.terms[0].coupling) for basis, part in bases_of(box, d)]
            couplings = [*(B for _, B in bases), *(term.coupling for term in terms)]
            m = None if isinstance(h.mean, Mean) else mean(self.domain[:1])[0].expand(t)  # [t]
            joint = self._joint([basis for basis, _ in bases], [V.detach().sqrt() for V in variances], couplings)
            slope, own, level, spread = self._solved(joint, scale.detach(), None if m is None else m.detach())
            total = (spread * scale.log()).sum()
            for V, term, G in zip(variances, terms, own, strict=True):  # [k, t, t]
                total = total + (_coupled(G, term.coupling) * V).sum()
            for basis, B in bases:
                total = total + (_coupled(slope, B) * basis.amplitudes.square()).sum()  # slope [h + 1, t, t]
            if m is not None:
                total = total + (level * m).sum()
            if self.priors:
                total = total + log_prior(h.leaves, leaves, self.priors).to(total)
            return torch.autograd.grad(total, leaves, allow_unused=True)

        return h.pulled_back(vector, slopes)

    def _joint(
        self, lattices: Sequence[Lattice], scales: Sequence[Tensor], couplings: Sequence[Tensor | None]
    ) -> Joint:
        """Lattices and the monomials beside them, of a term each with these scales, where the data are."""
        device, t = self.X.device, len(self.rows)
        beside = [Products(A[None], a[None], self.origin) for A, a in zip(self.projections, scales, strict=True)]
        roots = [None if t == 1 else root_of(None if B is None else B.detach(), t) for B in couplings]
        return Joint(
            [basis.mapped(Tensor.detach).to(device) for basis in lattices],
            [basis.to(device) for basis in beside],
            [None if R is None else R.to(device) for R in roots],
        )

    def _box(self, vector: Tensor, kernel: Kernel, noise: float, projections: list[Tensor]) -> Box:
        """The box of a lattice with the terms of this kernel: the last one, while hyperparameters are near its own."""
        d = self.X.shape[1]
        same = len(projections) == len(self.projections) and all(map(torch.equal, projections, self.projections))
        if self.made is None or not same or float((vector - self.made[0]).abs().max()) > self.fresh:
            self.projections = projections
            box, order = one_box(kernel, self.domain, noise)
            if box.left_out > self.too_much * noise and len(self.X) <= self.few:
                raise NotOnLattice("the kernel is too rough for the modes that memory allows")
            self.made, self.guess = (vector, box, order), None
            self._transform(box)
        _, box, order = self.made
        terms = with_series(kernel.terms(d))
        return replace(box, terms=tuple(terms[i] for i in order))

    @torch.no_grad()
    def _transform(self, box: Box) -> None:
        """What is left of the data: the Toeplitz matrices, and for each output Phi' Lambda^-1 times y, one, and the
        probes' noise."""
        bases = bases_of(box, self.X.shape[1])
        lattices, couplings = [basis for basis, _ in bases], [part.terms[0].coupling for _, part in bases]
        X, precision = self.X - self.origin.to(self.X), 1 / self.relative
        ones = [torch.ones(A.shape[1], dtype=torch.float64, device="cpu") for A in self.projections]
        joint = self._joint(lattices, ones, [*couplings, *[None] * len(ones)])
        alone = Joint(joint.lattices, roots=joint.roots[: len(bases)])
        self.generator = Information.of(alone, X, precision, self.tasks).generator
        mean = self.hyperparameters.mean
        self.residual = self.y - mean.at(Sites(self.X, self.tasks)) if isinstance(mean, Mean) else self.y
        rows = torch.stack([self.residual * precision, precision, *(self.xi * precision.sqrt())])  # [2 + s, n]
        # The monomials [n, k], and for the data of each output their products with these rows and with each other.
        E = torch.cat([X[:, :0], *(basis.values(X[None])[0] for basis in joint.beside)], dim=1)
        weighted = (E * precision[:, None]).mT  # [k, n]
        self.transformed_beside = torch.stack([rows[:, mine] @ E[mine] for mine in self.rows])  # [t, 2 + s, k]
        self.corner = torch.stack([weighted[:, mine] @ E[mine] for mine in self.rows])  # [t, k, k]
        parts = [joint.adjoints(X, some, 1e-9, self.tasks) for some in torch.cat([rows, weighted]).split(4)]
        each = [torch.cat(of_rows).split([len(rows), len(weighted)]) for of_rows in zip(*parts, strict=True)]
        self.transformed, self.cross = zip(*each, strict=True)  # for each output, [2 + s, c] and [k, c]
        generator = torch.Generator().manual_seed(self.seed)
        size = joint.num_outputs * joint.size + joint.num_beside
        w = torch.randn(len(self.xi), size, generator=generator, dtype=torch.float64, device="cpu")
        self.w = w.to(X)  # [s, t c + e]

    @torch.no_grad()
    def _solved(self, joint: Joint, scale: Tensor, m: Tensor | None) -> tuple[Tensor, list[Tensor], Tensor, Tensor]:
        """Slopes of log p in covariances, in the mean's levels and in the logarithms of the noise's scales.

        They are `[h + 1, t, t]` for the covariances of modes, and `[k, t, t]` for those of each term beside the
        lattice. Levels and scales have `[t]` each."""
        t, h = len(self.rows), joint.lattice.num_pairs
        on, scale = t * joint.size, scale.to(self.X)
        level = torch.zeros_like(scale) if m is None else m.to(scale)
        each = list(zip(self.transformed, level, scale, strict=True))  # for each output
        data = [(T[0] - m_i * T[1]) / s_i for T, m_i, s_i in each]  # [c]
        eps = joint.unmixed([T[2:] / s_i.sqrt() for T, _, s_i in each])
        A, T = _mixing(joint), self.transformed_beside
        data_beside = (T[:, 0] - level[:, None] * T[:, 1]) / scale[:, None]  # [t, k]
        eps_beside = (T[:, 2:] / scale[:, None, None].sqrt() @ A.mT).sum(0)  # [s, e]
        first = [joint.unmixed([row[None] for row in data]), (A @ data_beside[..., None]).sum(0).mT]
        b = torch.cat([torch.cat(first, dim=1), self.w - torch.cat([eps, eps_beside], dim=1)])  # [1 + s, t c + e]
        generator = torch.stack([T / s_i for T, s_i in zip(self.generator, scale, strict=True)])
        cross = joint.unmixed([A_i @ C / s_i for A_i, C, s_i in zip(A, self.cross, scale, strict=True)])  # [e, t c]
        corner = (A @ (self.corner / scale[:, None, None]) @ A.mT).sum(0)  # [e, e]
        system = System(joint, Information(generator, cross, corner))
        if float(system.information.max()) > LARGEST_INFORMATION:
            raise NotOnLattice("the noise is too small for this number of data")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the search reports solves that did not converge
            head = system.head(len(b), self.solver.head)
            U, _ = system.solve(b, self.guess, head, self.solver.tolerance, self.solver.max_iterations)
        self.guess = U
        explained = torch.cat([U[:1], self.w - U[1:]])
        a = torch.stack(joint.normalised(joint.mixed(explained[:, :on])), dim=-1)  # [1 + s, c, t]
        G = _slope(a)
        slope = torch.cat([G[:h] + G[h : 2 * h], G[2 * h :]]).cpu()
        levels = a[0, -1]  # the derivative for the constant mode is that for the mean's level
        beside = [_slope(own.mT).cpu() for own in joint.normalised_beside(explained[:, on:])]
        # |y - m - f|^2 over the noise, from the reduced data, and the number of weights that the data determine
        V, C = joint.mixed(U[:, :on]), U[:, on:] @ A  # for each output, [1 + s, c] and [t, 1 + s, k]
        both = torch.stack([V_i @ cross_i.mT for V_i, cross_i in zip(V, self.cross, strict=True)])
        more = ((2 * both + C @ self.corner) * C).sum(2) / scale[:, None]  # [t, 1 + s]
        left = system.energies(U[:1]) + more[:, 0]
        determined = system.energies(U[1:]) / len(self.xi) + more[:, 1:].mean(1)
        left -= 2 * (C[:, 0] * data_beside).sum(1)
        for i, mine in enumerate(self.rows):
            r = self.residual[mine] - level[i]
            left[i] += (r.square() / self.relative[mine]).sum() / scale[i] - (len(r) - determined[i])
            left[i] -= 2 * (V[i][0] @ data[i])
        return slope, beside, levels.cpu(), 0.5 * left.cpu()


class Merged:
    """The exact gradient, where many rows are copies of few: y may differ, inputs (and outputs) do not.

    The likelihood of c rows at one input with noise s has two factors. The first is that of one row, their mean y' with
    noise s / c. The second is that of their differences from y', which depends on the noise alone:

        sum_i log N(y_i | f, s)
            =  log N(y' | f, s / c) - (c - 1)/2 log(2 pi s) - 1/2 log c - 1/2 sum_i (y_i - y')^2 / s

    With noise of each row's own, means and sums are weighted by precisions.
    """

    def __init__(self, of: Dense, group: Tensor, first: Tensor) -> None:
        """`group [n]` says which of m rows each row is, and `first [m]` where these are."""
        h, m = of.hyperparameters, len(first)
        self.fitted = isinstance(h.noise, Leaf)
        precision = torch.ones_like(of.y) if isinstance(h.noise, Leaf) else 1 / h.noise.expand(len(of.y))

        def summed(values: Tensor) -> Tensor:
            return values.new_zeros(m).index_add(0, group, values)

        self.total = summed(precision)  # [m]
        self.y = summed(precision * of.y) / self.total
        self.spread = summed(precision * (of.y - self.y[group]).square())
        self.count = summed(torch.ones_like(of.y))
        self.hyperparameters, self.priors = h.at(first), of.priors
        self.X, self.tasks = of.X[first], None if of.tasks is None else of.tasks[first]

    @staticmethod
    def of(of: Dense, few: int = 1000, looked_at: int = 4096) -> Merged | None:
        """The gradient by distinct rows; None where these are more than `few`.

        For few distinct rows a dense factor is faster than a lattice, and exact. Some rows are looked at before
        all of them are.
        """
        rows = of.X if of.tasks is None else torch.cat([of.X, of.tasks[:, None].to(of.X)], dim=1)
        if len(rows) <= few or len(rows[:looked_at].unique(dim=0)) > few:
            return None
        if not isinstance(of.hyperparameters.noise, Leaf) and not bool((of.hyperparameters.noise > 0).all()):
            return None
        distinct, group = rows.unique(dim=0, return_inverse=True)
        if len(distinct) > few:
            return None
        number = torch.arange(len(rows), device=group.device)
        first = torch.full_like(number[: len(distinct)], len(rows)).scatter_reduce(0, group, number, "amin")
        return Merged(of, group, first)

    def __call__(self, vector: Tensor) -> Tensor:
        h = self.hyperparameters

        def slopes(leaves: list[Tensor]) -> list[Tensor | None]:
            kernel, noise, mean = h.model(leaves, len(self.X), self.tasks)
            scale = noise if self.fitted else torch.ones_like(self.total)
            value = likelihood_with_gradient(kernel, Sites(self.X, self.tasks), self.y, scale / self.total, mean)
            if not math.isfinite(value):
                return [leaf * math.nan for leaf in leaves]
            rest = torch.zeros_like(self.y[0])
            if self.fitted:
                scale = h.model(leaves, len(self.X), self.tasks)[1]
                rest = rest - 0.5 * ((self.count - 1) * scale.log() + self.spread / scale).sum()
            if self.priors:
                rest = rest + log_prior(h.leaves, leaves, self.priors).to(rest)
            if rest.requires_grad:
                rest.backward()
            return [leaf.grad for leaf in leaves]

        return h.pulled_back(vector, slopes)


def _mixing(joint: Joint) -> Tensor:
    """From weights beside a lattice to each output's coefficients of the monomials there: `[t, e, k]`."""
    each = zip(joint.beside, joint.roots[len(joint.lattices) :], strict=True)
    parts = [(R[:, :, None, None] * basis.scales()[0].diag()).flatten(1, 2) for basis, R in each]  # [t, t k, k]
    nothing = joint.lattice.period.new_zeros(0, 0)
    return torch.stack([torch.block_diag(nothing, *(A[i] for A in parts)) for i in range(joint.num_outputs)])


def _slope(own: Tensor) -> Tensor:
    """1/2 (a a' - mean of b b') of a and probes b, rows `[1 + s, c, t]`: `[c, t, t]`."""
    a, probes = own[0], own[1:].transpose(0, 1)  # [c, t], [c, s, t]
    return 0.5 * (a[:, :, None] * a[:, None] - probes.mT @ probes / probes.shape[1])


def _coupled(G: Tensor, B: Tensor | None) -> Tensor:
    """Slopes `[c]` in the variances of functions of outputs with a coupling, from those in covariances `[c, t, t]`."""
    return G.sum((1, 2)) if B is None else (G * B).sum((1, 2))


def beside_of(terms: Sequence[Term], input_dim: int) -> list[Term]:
    """The terms without a stationary part: monomials; a constant has the form 1."""
    one = torch.zeros(input_dim + 1, dtype=torch.float64, device="cpu")
    one[-1] = 1.0
    return [t if t.forms else replace(t, forms=(one,)) for t in terms if not t.stationary]


def one_box(
    kernel: Kernel, domain: Tensor, noise: float, largest: int = 200_000, beyond: float = 3e-4, images: float = 1e-6
) -> tuple[Box, list[int]]:
    """A box for a kernel's terms on a domain `[2, d]`, that leaves out little of the noise's variance; and the numbers
    of its terms among the kernel's (`with_series`).

    Args:
        largest: modes at the most.
        beyond: the share of the noise's variance that may lie beyond them.
        images: a correlation's error.
    """
    d = domain.shape[1]
    with torch.no_grad():
        every = with_series(kernel.owned().terms(d))
        terms = [t for t in every if bool(t.variance > 0)]
        share = beyond * noise / max(1, len(terms))
        boxes = [
            sized_box(t, d, domain, left_out=share / scale_of(t), images=images, modes=Modes(largest)) for t in terms
        ]
        if any(box is None for box in boxes):
            raise NotOnLattice("the kernel has no Fourier series on the data's box")
        made = joined([box for box in boxes if box is not None], largest, float("inf"))
        if len(made) != 1 or lattice_of(made[0], d).error > LARGEST_ERROR:
            raise NotOnLattice("the kernel's terms do not fit on one lattice")
    numbers = {id(t): i for i, t in enumerate(every)}
    return made[0], [numbers[id(t)] for t in made[0].terms]


class Pathwise:
    """An estimate of the gradient of log p(y | hyperparameters) + log prior in the vector."""

    # the preconditioner is made again when a hyperparameter has moved by this much on its logarithmic scale
    fresh = 0.2

    def __init__(self, of: Dense, solver: Solver, num_probes: int, seed: int) -> None:
        self.hyperparameters, self.y, self.tasks, self.priors = of.hyperparameters, of.y, of.tasks, of.priors
        self.X = of.X.float() if of.X.is_cuda else of.X
        self.solver, self.num_probes, self.seed = solver, num_probes, seed
        self.guess: Tensor | None = None  # [n, 1 + s]
        self.iterations = 0
        # the vector it was made at, the preconditioner, and its probes u and v [n, s]
        self.made: tuple[Tensor, LowRank, Tensor, Tensor] | None = None

    def __call__(self, vector: Tensor) -> Tensor:
        h = self.hyperparameters

        def slopes(leaves: list[Tensor]) -> list[Tensor | None]:
            kernel, noise, mean = h.model(leaves, len(self.X), self.tasks)
            m = mean.at(Sites(self.X.double(), self.tasks))  # [n]
            with torch.no_grad():
                weights = self._weights(vector.detach(), kernel.owned(), noise.detach(), m.detach())
            accumulate(kernel.to(self.X.dtype), Sites(self.X, self.tasks), weights)
            rest = (m * weights.a.double()).sum() + (noise * weights.diagonal().double()).sum()
            if self.priors:
                rest = rest + log_prior(h.leaves, leaves, self.priors).to(rest)
            if rest.requires_grad:
                rest.backward()
            return [leaf.grad for leaf in leaves]

        return h.pulled_back(vector, slopes)

    def _weights(self, vector: Tensor, kernel: Kernel, noise: Tensor, m: Tensor) -> _Weights:
        """d log p / dK, from solves whose initial guesses are the last step's solutions."""
        X = self.X
        operator = KernelOperator(kernel.to(X.dtype), Sites(X, self.tasks), noise.to(X))
        P, u, v, state = self._preconditioned(vector, operator)
        b = torch.cat([(self.y - m).to(X)[:, None], u], dim=1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # if a solve does not converge, later steps correct it
            V, stats = state.solve(b, self.guess)
        self.guess, self.iterations = V, self.iterations + stats.iterations
        return _Weights(V[:, 0], P, V[:, 1:] - v, v)

    def _preconditioned(self, vector: Tensor, operator: KernelOperator) -> tuple[LowRank, Tensor, Tensor, State]:
        """A preconditioner, which may be that of an earlier step, its probes, and a state to solve with."""
        own = isinstance(self.solver, PCG) and not self.solver.distributed
        if self.made is None or float((vector - self.made[0]).abs().max()) >= self.fresh:
            rank = self.solver.rank if isinstance(self.solver, PCG) else None
            P = LowRank(operator, min(default_rank(operator) if rank is None else rank, operator.size), share=1.0)
            u, v = P.probes(self.num_probes, torch.Generator().manual_seed(self.seed))
            self.made = vector, P, u, v
            if self.guess is not None:
                self.guess = torch.cat([self.guess[:, :1], v], dim=1)
        _, P, u, v = self.made
        return P, u, v, PCGState(self.solver, operator, P) if own else self.solver.init(operator)


class _Weights:
    """d log p / dK = 1/2 (a a' - P^-1 - mean of e v'), made symmetric and computed block by block."""

    def __init__(self, a: Tensor, P: LowRank, e: Tensor, v: Tensor) -> None:
        self.a, self.P = a, P
        share = -0.5 / e.shape[1]
        self.left = torch.cat([a[:, None], share * e, share * v], dim=1)  # [n, 1 + 2 s]
        self.right = torch.cat([a[:, None], v, e], dim=1)

    def diagonal(self) -> Tensor:
        return 0.5 * ((self.left * self.right).sum(1) - self.P.inverse_diagonal())

    def __call__(self, rows: slice, columns: slice) -> Tensor:
        W = self.left[rows] @ self.right[columns].mT - self.P.inverse(rows, columns)
        return W.mul_(0.5)
