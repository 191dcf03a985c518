"""SpectralMeasure: what features need to know of a stationary kernel (Bochner's theorem)."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor


class SpectralMeasure(ABC):
    """`frequencies` maps uniforms `[..., num_uniforms]` to frequencies `[..., input_dim]`, in radians a unit of x."""

    num_uniforms: int
    input_dim: int

    @abstractmethod
    def frequencies(self, U: Tensor) -> Tensor:
        """Frequencies `[..., d]` from uniforms `[..., p]` in (0, 1); differentiable in the hyperparameters."""

    def importance(self, U: Tensor) -> Tensor | None:
        """Weights `[...]` that are one in value and carry the gradient of what no map of uniforms can (a discrete
        choice, a Gamma's shape): density / density.detach(). None where there is nothing of the kind."""
        return None

    def atoms(self) -> tuple[Tensor, Tensor] | None:
        """A discrete measure's frequencies `[a, d]` and masses `[a]`, all but 1e-15 of it; None where not discrete."""
        return None

    @property
    def density_dims(self) -> list[int] | None:
        """The coordinates that the density is over, the measure being zero on the others; None without a density."""
        return None

    def log_density(self, theta: Tensor) -> Tensor | None:
        """The logarithm `[...]` of `density(theta)`."""
        return None

    def density(self, theta: Tensor) -> Tensor | None:
        """S(theta) `[...]` at frequencies `[..., d]`, with respect to volume in the coordinates `density_dims`.

        It is that of the symmetric measure, S(theta) = S(-theta), and k(r) is the integral of S(theta) cos(theta . r);
        differentiable in the hyperparameters. None where there is no density: atoms, sums of measures on different
        coordinates, convolutions without a closed form.

        >>> from matheron import kernels
        >>> import torch
        >>> kernels.RBF(2.0).measure(1).density(torch.zeros(1, 1, dtype=torch.float64))
        tensor([0.7979], dtype=torch.float64)
        """
        log_density = self.log_density(theta)
        return None if log_density is None else log_density.exp()
