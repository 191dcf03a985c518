"""The FitzHugh-Nagumo model neuron, a fast voltage v and a slow recovery w under an injected current I.

    dv/dt = v - v^3 / 3 - w + I,        dw/dt = (v + a - b w) / tau

The constants are FitzHugh's usual ones, a = 0.7, b = 0.8, tau = 12.5: at rest for I = 0, spiking for I = 0.5. The paper
names no constants, box or number of steps; these and the box below, which holds the limit cycle and the noise around
it, are ours.
"""

from __future__ import annotations

import torch
from torch import Tensor

A, B, TAU = 0.7, 0.8, 12.5
DIFFUSION = 0.01  # the variance of each state per unit of time, as in the paper
STEP = 0.25  # as in the paper
REST = (-1.1994, -0.6243)  # the fixed point for I = 0, to four digits
# The ranges of v, w and I in which training inputs are drawn. They are mapped to [0, 1].
BOX = ((-3.0, -1.5, 0.0), (3.0, 2.5, 1.0))


def drift(x: Tensor) -> Tensor:
    """f(v, w, I): `[..., 3] -> [..., 2]`.

    >>> import torch
    >>> from matheron_paper import neuron
    >>> neuron.drift(torch.tensor([*neuron.REST, 0.0])).abs().max() < 1e-4
    tensor(True)
    """
    v, w, current = x.unbind(-1)
    return torch.stack([v - v**3 / 3 - w + current, (v + A - B * w) / TAU], dim=-1)


def sinusoidal_current(time: float) -> Tensor:
    """The test control, between 0 and 1 with a period of 100: it takes the neuron in and out of spiking."""
    return torch.tensor([0.5 - 0.5 * torch.cos(torch.tensor(2 * torch.pi * time / 100.0)).item()])


def transitions(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """n uniform inputs of the box `[n, 3]` and noisy Euler-Maruyama increments from them, over dt, `[n, 2]`."""
    lower, upper = torch.tensor(BOX, dtype=torch.float64)
    x = lower + (upper - lower) * torch.rand(n, 3, dtype=torch.float64, generator=generator)
    noise = torch.randn(n, 2, dtype=torch.float64, generator=generator) * (DIFFUSION * STEP) ** 0.5
    return x, drift(x) + noise / STEP
