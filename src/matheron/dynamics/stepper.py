"""One step of every trajectory, with as little overhead as the device allows."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..core.modes import transformed
from ..paths import AbstractFunctions, has_domain

Drift = AbstractFunctions | Callable[[Tensor], Tensor]
# (state [s, (a,) d_s], control [s, (a,) d_c] or None, noise [s, (a,) d_s] or None) -> state [s, (a,) d_s]
Stepper = Callable[[Tensor, Tensor | None, Tensor | None], Tensor]

# Integration methods for a differential equation s' = f(s, c), and for a map in discrete time, where f is the next
# state or its change.
METHODS = ("euler", "heun", "rk4", "next", "change")
DISCRETE = ("next", "change")


def make_stepper(drift: Drift, dt: float, state: Tensor, method: str = "euler", fast: bool = False) -> Stepper:
    """A step of the method, with noise added at its end and the control held.

    With `fast`, autograd records nothing, and on a GPU the step is replayed as a CUDA graph.
    """

    def f(state: Tensor, control: Tensor | None) -> Tensor:
        x = state if control is None else torch.cat([state, control], dim=-1)  # [s, (a,) d_s + d_c]
        if not isinstance(drift, AbstractFunctions):
            return _known(drift, x.flatten(0, -2), state)
        x = x if x.ndim == 3 else x[:, None]
        if x.device.type != "cpu" or transformed() or bool((finite := torch.isfinite(x)).all()):
            return drift(x).reshape(state.shape)  # [s, a or 1(, d_s)]
        left = ~finite.all(-1, keepdim=True)  # [s, a or 1, 1]: diverged, and not points that paths take
        values = drift(torch.where(left, 0.0, x)).reshape(*x.shape[:-1], -1)
        return torch.where(left, torch.nan, values).reshape(state.shape)

    def step(state: Tensor, control: Tensor | None, noise: Tensor | None) -> Tensor:
        following = _advanced(method, lambda at: f(at, control), state, dt)
        return following if noise is None else following + noise

    # A captured graph cannot inspect points, so it cannot check them against a domain.
    capturable = isinstance(drift, AbstractFunctions) and not has_domain(drift)
    return _Replayed(step) if fast and state.device.type == "cuda" and capturable else step


def _known(drift: Callable[[Tensor], Tensor], x: Tensor, state: Tensor) -> Tensor:
    """Values of a known system at points `[r, d_s + d_c]`, in the shape of the states."""
    values = drift(x)
    if not isinstance(values, Tensor) or values.numel() != state.numel():
        expected, found = [len(x), state.shape[-1]], getattr(values, "shape", None)
        found = type(values).__name__ if found is None else list(found)
        raise ValueError(f"drift: expected a function {list(x.shape)} -> {expected}, it returned {found}")
    return values.reshape(state.shape)


def _advanced(method: str, f: Callable[[Tensor], Tensor], s: Tensor, dt: float) -> Tensor:
    """The state after a step without noise."""
    if method == "next":
        return f(s)
    k1 = f(s)
    if method == "change":
        return s + k1
    if method == "euler":
        return torch.add(s, k1, alpha=dt)
    if method == "heun":
        return s + dt / 2 * (k1 + f(s + dt * k1))
    k2 = f(s + dt / 2 * k1)
    k3 = f(s + dt / 2 * k2)
    return s + dt / 6 * (k1 + 2 * k2 + 2 * k3 + f(s + dt * k3))


class _Replayed:
    """A step captured once as a CUDA graph and then replayed: one launch per step instead of one per operation."""

    def __init__(self, step: Stepper) -> None:
        self.step = step
        self.graph: torch.cuda.CUDAGraph | None = None
        self.refused = False

    def __call__(self, state: Tensor, control: Tensor | None, noise: Tensor | None) -> Tensor:
        if self.graph is None and not self.refused:
            try:
                self._capture(state, control, noise)
            except RuntimeError:
                # the step waits for the device, which a graph cannot; other errors are raised again below
                self.refused = True
        if self.graph is None:
            return self.step(state, control, noise)
        for kept, given in zip(self.inputs, (state, control, noise), strict=True):
            if kept is not None and given is not None:
                kept.copy_(given)
        self.graph.replay()
        return self.output.clone()

    def _capture(self, state: Tensor, control: Tensor | None, noise: Tensor | None) -> None:
        control, noise = (None if given is None else given.clone() for given in (control, noise))
        self.inputs = (state.clone(), control, noise)
        self.graph, self.output = captured(lambda: self.step(*self.inputs), warm_ups=3)


def captured(step: Callable[[], Tensor], *, warm_ups: int) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    """A step as a CUDA graph, and the tensor that each replay writes its result to."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # CUDA requires a side stream before a capture
        for _ in range(warm_ups):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = step()
    return graph, output
