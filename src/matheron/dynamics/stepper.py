"""One Euler-Maruyama step of every trajectory, with as little overhead as the device allows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# (state [s, d_s], control [s, d_c] or None, noise [s, d_s] or None) -> state [s, d_s]
Stepper = Callable[[Tensor, Tensor | None, Tensor | None], Tensor]


def make_stepper(drift: Any, dt: float, state: Tensor, fast: bool = False) -> Stepper:
    """s + f(s, c) dt + noise. `fast`: no graph is kept, and on a GPU the step is replayed as a CUDA graph."""

    def step(state: Tensor, control: Tensor | None, noise: Tensor | None) -> Tensor:
        x = state if control is None else torch.cat([state, control], dim=1)  # [s, d_s + d_c]
        if hasattr(drift, "num_paths"):
            f = drift(x[:, None])  # [s, 1(, d_s)]
            f = f if state.shape[1] == 1 else f[:, 0]
        else:
            f = drift(x)
        following = torch.add(state, f, alpha=dt)
        return following if noise is None else following + noise

    return _Replayed(step) if fast and state.device.type == "cuda" and _capturable(drift) else step


def _capturable(drift: Any) -> bool:
    """Whether a graph can stand for the step: a check of points against a domain has to look at them."""
    return hasattr(drift, "num_paths") and all(getattr(part, "domain", None) is None for part in drift.modules())


class _Replayed:
    """A step captured once as a CUDA graph and then replayed: a launch a step instead of one an operation."""

    def __init__(self, step: Stepper) -> None:
        self.step = step
        self.graph: torch.cuda.CUDAGraph | None = None
        self.refused = False

    def __call__(self, state: Tensor, control: Tensor | None, noise: Tensor | None) -> Tensor:
        if self.graph is None and not self.refused:
            try:
                self._capture(state, control, noise)
            except RuntimeError:  # something in the step waits for the device; what else fails does so again below
                self.refused = True
        if self.graph is None:
            return self.step(state, control, noise)
        for kept, given in zip(self.inputs, (state, control, noise), strict=True):
            if kept is not None and given is not None:
                kept.copy_(given)
        self.graph.replay()
        return self.output.clone()

    def _capture(self, *given: Tensor | None) -> None:
        self.inputs = [None if t is None else t.clone() for t in given]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # warm up, as captures ask
            for _ in range(3):
                self.step(*self.inputs)  # type: ignore[arg-type]
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.output = self.step(*self.inputs)  # type: ignore[arg-type]
        self.graph = graph
