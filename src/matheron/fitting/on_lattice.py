"""The gradient of the log marginal likelihood in up to three dimensions, estimated on a Fourier lattice.

With f = Phi D w on a lattice, D^2 = diag(c) its modes' powers, Lambda the noise and M = I + D Phi' Lambda^-1 Phi D,

    d log p / d log c_j  =  1/2 (u_j^2 - E[(w_j - v_j)^2]),
    M u  =  D Phi' Lambda^-1 (y - m),      M v  =  w - D Phi' Lambda^-1 eps,

since D Phi' K^-1 (y - m) = u and w - v has the covariance D Phi' K^-1 Phi D: the pathwise estimator of Lin et al.
(2024), in weight space. Powers depend on the kernel, modes do not: while one box serves, the data are transformed once
and for all, and a gradient costs the same for any number of them.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ..features import LARGEST_DIM, Joint
from ..features.box import Box, joined
from ..features.series import LARGEST_ERROR, lattice_of, sized_box
from ..kernels import Kernel
from ..means import Mean
from ..nufft import adjoint_at
from ..solvers import ConvergenceWarning, FourierLattice
from ..solvers.lattice import LARGEST_INFORMATION
from ..solvers.toeplitz import Information, System
from .hyperparameters import Hyperparameters, Leaf, Prior, log_prior
from .likelihood import mean_at

# A box serves until a hyperparameter has moved by so much on its logarithmic scale.
_FRESH = 0.3
# Modes at the most; the share of the noise's variance that may lie beyond them; and a correlation's error.
_LARGEST, _BEYOND, _IMAGES = 200_000, 3e-4, 1e-6
# Up to this many data a box that leaves out more of the noise's variance than this is not used.
_FEW, _TOO_MUCH = 30_000, 0.3
_SETTINGS = FourierLattice(tolerance=0.02, head=2000, max_iterations=200)
_ACCURACY = 1e-9  # of the data's transforms


class NotOnLattice(ValueError):
    """A model cannot be fitted on a lattice."""


class OnLattice:
    """An estimate of the gradient of log p(y | hyperparameters) + log prior in the vector."""

    def __init__(
        self, h: Hyperparameters, X: Tensor, y: Tensor, priors: Mapping[str, Prior], num_probes: int, seed: int
    ) -> None:
        self.hyperparameters, self.X, self.y, self.priors = h, X, y, priors
        lower, upper = X.aminmax(dim=0)
        self.domain, self.centred = torch.stack([lower, upper]), X - (lower + upper) / 2
        generator = torch.Generator().manual_seed(seed)
        self.xi = torch.randn(num_probes, len(X), generator=generator, dtype=torch.float64)  # [s, n]
        self.seed = int(torch.randint(2**31, (1,), generator=generator))
        # fixed variances [n], or one that is fitted, in the units of which the data's transforms are kept
        self.relative = torch.ones_like(y) if isinstance(h.noise, Leaf) else h.noise.expand(len(y))
        self.made: tuple[Tensor, Box, list[int]] | None = None
        self.guess: Tensor | None = None

    @staticmethod
    def can(h: Hyperparameters, X: Tensor, tasks: Tensor | None) -> bool:
        """Whether a model may be on one lattice: one output, noise, stationary terms, a constant or fixed mean."""
        d = X.shape[1]
        plain = tasks is None and h.kernel.num_outputs == 1 and d <= LARGEST_DIM and X.device.type == "cpu"
        noisy = isinstance(h.noise, Leaf) or bool((h.noise > 0).all())
        level = isinstance(h.mean, Mean) or len(h.mean) == 1
        return plain and noisy and level and all(t.stationary and not t.forms for t in h.kernel.terms(d))

    def __call__(self, vector: Tensor) -> Tensor:
        h = self.hyperparameters

        def slopes(leaves: list[Tensor]) -> Sequence[Tensor | None]:
            kernel, noise, mean = h.model(leaves, len(self.X), None)
            fitted = isinstance(h.noise, Leaf)
            scale = noise[0] if fitted else noise.new_ones(())  # of the relative variances
            box = self._box(vector.detach(), kernel, float(noise.detach().min()))
            power = lattice_of(box, self.X.shape[1]).amplitudes.square()  # [pairs + 1]
            m = mean_at(mean, self.X, None) if isinstance(h.mean, Mean) else mean(self.X[:1])[0, 0]
            slope, level, spread = self._solved(power.detach(), float(scale.detach()), m.detach())
            seen = power > 0
            total = (slope[seen] * power[seen].log()).sum() + spread * scale.log()
            if not isinstance(h.mean, Mean):
                total = total + level * m
            if self.priors:
                total = total + log_prior(h.leaves, leaves, self.priors)
            return torch.autograd.grad(total, leaves, allow_unused=True)

        return h.pulled_back(vector, slopes)

    def _box(self, vector: Tensor, kernel: Kernel, noise: float) -> Box:
        """The box of a lattice with the terms of this kernel: the last one, while hyperparameters are near its own."""
        terms = kernel.terms(self.X.shape[1])
        if self.made is None or float((vector - self.made[0]).abs().max()) > _FRESH:
            box, order = one_box(kernel, self.domain, noise)
            if box.left_out > _TOO_MUCH * noise and len(self.X) <= _FEW:
                raise NotOnLattice("the kernel is too rough for the modes that memory allows")
            self.made, self.guess = (vector, box, order), None
            self._transform(box)
        _, box, order = self.made
        return replace(box, terms=tuple(terms[i] for i in order))

    @torch.no_grad()
    def _transform(self, box: Box) -> None:
        """What is left of the data: Phi' Lambda^-1 Phi, and Phi' Lambda^-1 times y, one, and the probes' noise."""
        lattice = lattice_of(box, self.X.shape[1])
        precision = 1 / self.relative
        weights = torch.complex(precision, torch.zeros_like(precision))[None]
        shape = [2 * k - 1 for k in lattice.shape]
        self.generator = adjoint_at(weights, lattice.angles(self.centred), shape, accuracy=_ACCURACY)[0]
        mean = self.hyperparameters.mean
        self.residual = self.y - mean_at(mean, self.X, None) if isinstance(mean, Mean) else self.y
        rows = [self.residual * precision, precision, *(self.xi * precision.sqrt())]
        parts = [lattice.adjoint(self.centred, torch.stack(rows[i : i + 4]), _ACCURACY) for i in range(0, len(rows), 4)]
        self.transformed = torch.cat(parts)  # [2 + s, c]
        self.lattice = lattice
        generator = torch.Generator().manual_seed(self.seed)
        self.w = torch.randn(len(self.xi), lattice.size, generator=generator, dtype=torch.float64)  # [s, c]

    @torch.no_grad()
    def _solved(self, power: Tensor, scale: float, m: Tensor) -> tuple[Tensor, float, float]:
        """Slopes of log p in the logarithms of powers `[pairs + 1]`, in the mean's level, and in the noise's log."""
        lattice = self.lattice.mapped(lambda v: power.sqrt() if v is self.lattice.amplitudes else v)
        basis = Joint([lattice])
        a, fixed = lattice.scales()[0], isinstance(self.hyperparameters.mean, Mean)
        data = self.transformed[0] if fixed else self.transformed[0] - m * self.transformed[1]
        b = torch.cat([(a * data / scale)[None], self.w - a * self.transformed[2:] / scale**0.5])  # [1 + s, c]
        none = b.new_zeros(0, len(a))
        system = System(basis, Information(self.generator[None] / scale, b, none, b.new_zeros(0, 0)))
        if float(system.information.max()) > LARGEST_INFORMATION:
            raise NotOnLattice("the noise is too small beside the data's number")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a step that is a little off is corrected by the next
            U, _ = system.solve(b, self.guess, system.head(len(b), _SETTINGS.head), _SETTINGS)
        self.guess = U
        explained = (self.w - U[1:]).square().mean(0)  # [c]
        each = 0.5 * (U[0].square() - explained)
        h = lattice.num_pairs
        slope = torch.cat([each[:h] + each[h : 2 * h], each[2 * h :]])
        r = self.residual if fixed else self.residual - m
        # |y - m - Phi D u|^2 over the noise, from what is left of the data
        left = float((r.square() / self.relative).sum()) / scale - float(U[0] @ b[0]) - float(U[0].square().sum())
        spread = 0.5 * (left - (len(r) - float(explained.sum())))
        level = float(U[0, -1] / a[-1]) if float(a[-1]) > 0 else 0.0
        return slope, level, spread


def one_box(kernel: Kernel, domain: Tensor, noise: float) -> tuple[Box, list[int]]:
    """A box for a kernel's terms on a domain `[2, d]`, that leaves out little of the noise's variance; and the numbers
    of its terms among the kernel's."""
    d = domain.shape[1]
    with torch.no_grad():
        every = kernel.owned().terms(d)
        terms = [t for t in every if bool(t.variance > 0)]
        share = _BEYOND * noise / max(1, len(terms))
        boxes = [sized_box(t, d, domain, left_out=share, images=_IMAGES, largest=_LARGEST) for t in terms]
        if any(box is None for box in boxes):
            raise NotOnLattice("the kernel has no Fourier series on the data's box")
        made = joined([box for box in boxes if box is not None], _LARGEST, float("inf"))
        if len(made) != 1 or lattice_of(made[0], d).error > LARGEST_ERROR:
            raise NotOnLattice("the kernel's terms do not fit on one lattice")
    numbers = {id(t): i for i, t in enumerate(every)}
    return made[0], [numbers[id(t)] for t in made[0].terms]
