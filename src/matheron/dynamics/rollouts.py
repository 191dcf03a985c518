"""rollout: simulate a system along drawn drift functions, in time linear in the number of steps."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..core.checks import ArrayLike, Random, as_array, as_count, as_generator, as_tensor
from ..core.modes import transformed
from ..core.value import Value
from ..models import GP
from ..models.libraries import ADAPTERS
from ..paths import AbstractFunctions, require_functions, stack
from .driving import Control, Controls, Noise
from .persistent import fused_rollout
from .stepper import DISCRETE, METHODS, Drift, Stepper, make_stepper

T = TypeVar("T")


class DivergenceWarning(UserWarning):
    """Some trajectories diverged to infinite or undefined values. The others are not affected."""


def rollout(
    drift: Drift | Sequence[AbstractFunctions],
    initial_state: ArrayLike,
    steps: int,
    dt: float | None = None,
    *,
    method: str = "euler",
    controls: Controls | None = None,
    actions: ArrayLike | None = None,
    diffusion: ArrayLike | None = None,
    keep_every: int = 1,
    gradients: bool = False,
    generator: Random = None,
    seed: int | None = None,
) -> Tensor:
    """Simulate s' = s + f(s, c) dt + sqrt(dt Sigma) eps, equation (17), each path along its own drift f.

    Methods of higher order ("heun", "rk4") integrate the drift over a step more precisely, and add the same noise at
    its end. A model in discrete time gives the next state, s' = f(s, c) + sqrt(Sigma) eps ("next"), or its change.

    Args:
        drift: paths with one output per state, called at [state, control]; a list of paths, one per state; or, for a
            known system, a function `[s, d_s + d_c] -> [s, d_s]`. Paths with input and output transforms take and give
            a system's own units.
        initial_state: `[d_s]` for all trajectories, or `[s, d_s]`.
        steps: how many.
        dt: step size. In discrete time it is 1, and need not be given.
        method: "euler", "heun" or "rk4" for a drift; "next" or "change" for a map in discrete time.
        controls: `[steps, d_c]`, `[s, steps, d_c]`, a function of time, or a policy, a function of (time, state), that
            returns `[d_c]` or `[s, d_c]`.
        actions: candidate sequences of controls, `[a, steps, d_c]`, instead of `controls`. Every sequence is applied
            to the system of every path. Each path is evaluated at a points and not copied.
        diffusion: Sigma, a variance: one number, one per state `[d_s]`, or a covariance `[d_s, d_s]`.
        keep_every: keep the first state and every k-th after it, k = keep_every.
        gradients: let gradients flow from the trajectory to the initial state, the controls and the diffusion. With
            checkpoints, memory grows with the states and not with the paths' features. Under transforms of `torch.func`
            (grad, vmap, ...) gradients always flow, without checkpoints.
        generator, seed: draws the process noise, a generator or a seed.

    Returns:
        states `[s, steps // keep_every + 1, d_s]`; with `actions`, `[a, s, steps // keep_every + 1, d_s]`.

    On a CUDA device the whole roll-out is a kernel (see `persistent`), or where it cannot be, as under a policy or with
    Heun's method, a CUDA graph per step.

    A trajectory that diverges is NaN from its first bad step on, and a `DivergenceWarning` names that step.

    >>> import torch, matheron
    >>> from matheron import kernels
    >>> drift = [matheron.draw_prior(kernels.RBF(), 10, input_dim=2) for _ in range(2)]
    >>> matheron.rollout(drift, [0.0, 1.0], steps=50, dt=0.1, diffusion=0.01).shape
    torch.Size([10, 51, 2])

    Which of 20 sequences of actions brings a system of one state and one control closest to 1, on average:

    >>> system = matheron.draw_prior(kernels.RBF(), 10, input_dim=2)
    >>> tried = matheron.rollout(system, [0.0], steps=5, method="change", actions=torch.rand(20, 5, 1))
    >>> tried.shape, int((tried[:, :, -1, 0] - 1).square().mean(1).argmin()) < 20
    (torch.Size([20, 10, 6, 1]), True)
    """
    steps, keep_every = as_count(steps, "steps"), as_count(keep_every, "keep_every")
    dt = _step_size(method, dt)
    f: Drift = _joined(drift) if isinstance(drift, Sequence) else _as_drift(drift)
    state = _initial(f, initial_state)  # [s, d_s]
    number = f.input_dim - f.num_outputs if isinstance(f, AbstractFunctions) else None
    control = Control(controls, actions, steps, dt, state, number)
    if actions is not None and control.given is not None:
        state = state[:, None].expand(-1, len(control.given), -1)  # [s, a, d_s]
    gradients = gradients or torch._C._are_functorch_transforms_active()
    noise = Noise(diffusion, 1.0 if method in DISCRETE else dt, state, as_generator(generator, seed))
    with torch.set_grad_enabled(gradients and torch.is_grad_enabled()):
        if gradients:
            step = make_stepper(f, dt, state, method)
            return _report(_with_checkpoints(step, state, steps, control, noise, keep_every), keep_every)
        kept = fused_rollout(f, dt, state, steps, control, noise, keep_every, method)
        if kept is not None:
            return _report(kept if kept.ndim == 3 else kept.transpose(0, 1).contiguous(), keep_every)
        step = make_stepper(f, dt, state, method, fast=True)
        kept = torch.empty(steps // keep_every + 1, *state.shape, dtype=state.dtype, device=state.device)
        kept[0] = state
        for t in range(steps):
            state = step(state, control(t, state), noise.draw())
            if (t + 1) % keep_every == 0:
                kept[(t + 1) // keep_every] = state
    return _report(_in_order(kept), keep_every)


def _step_size(method: str, dt: float | None) -> float:
    if method not in METHODS:
        raise ValueError(f"method: expected one of {', '.join(METHODS)}, got {method!r}")
    if dt is None and method not in DISCRETE:
        raise ValueError(f'dt: expected a step size for method="{method}"; for a map in discrete time use "next"')
    try:
        dt = 1.0 if dt is None else float(dt)
    except (TypeError, ValueError) as error:
        raise TypeError(f"dt: expected a positive number, the same for all steps, got {dt!r}") from error
    if not (math.isfinite(dt) and dt > 0):
        raise ValueError(f"dt: expected a positive number, got {dt!r}")
    return dt


def _in_order(kept: Tensor) -> Tensor:
    """States `[k, s, d_s]` as `[s, k, d_s]`, or `[k, s, a, d_s]` as `[a, s, k, d_s]`."""
    return kept.transpose(0, -2).contiguous()


def _with_checkpoints(
    step: Stepper, state: Tensor, steps: int, control: Control, noise: Noise, keep_every: int, length: int = 32
) -> Tensor:
    """The roll-out in segments of this length. The backward pass runs each segment again, so the graph of one segment
    exists at a time."""
    kept = [state]

    def segment(state: Tensor, start: int, stop: int, draws: Tensor) -> Tensor:
        states = []
        for t in range(start, stop):
            state = step(state, control(t, state), noise.coloured(draws[t - start]))
            states.append(state)
        return torch.stack(states)  # [k, s, (a,) d_s]

    for start in range(0, steps, length):
        stop = min(start + length, steps)
        draws = noise.take(stop - start)
        if torch._C._are_functorch_transforms_active():  # transforms of torch.func do not support checkpoints
            states = segment(state, start, stop, draws)
        else:
            states = checkpoint(segment, state, start, stop, draws, use_reentrant=False, preserve_rng_state=False)
        state = states[-1]
        kept += [s for t, s in enumerate(states, start + 1) if t % keep_every == 0]
    return _in_order(torch.stack(kept))


def _as_drift(drift: T) -> T:
    """The drift; a TypeError if it is a model from which no functions were drawn."""
    libraries = {base.__module__.split(".")[0] for base in type(drift).__mro__}
    if isinstance(drift, GP) or libraries & set(ADAPTERS):
        raise TypeError(
            f"drift: expected functions, got a model, {type(drift).__name__}; draw them first: "
            "rollout(matheron.draw(model, 64), ...)"
        )
    return drift


def _joined(drifts: Sequence[AbstractFunctions]) -> AbstractFunctions:
    for i, one in enumerate(drifts):
        if not isinstance(_as_drift(one), Value):
            raise TypeError(
                f"drift: expected a list of paths, one per state, got {type(one).__name__} at place {i}; a known "
                "system is one function [s, d_s + d_c] -> [s, d_s]"
            )
    return stack(drifts)


def _initial(drift: Drift, initial_state: ArrayLike) -> Tensor:
    """States `[s, d_s]`, as many as there are paths."""
    if isinstance(drift, Value):
        drift = require_functions(drift, "drift")
        like = torch.empty(0, dtype=drift.dtype, device=drift.device)
        state = as_tensor(initial_state, "initial_state", like=like)
        if state.ndim == 1:
            state = state.expand(drift.num_paths, -1)
        expected = (drift.num_paths, drift.num_outputs)
        if state.shape != expected:
            raise ValueError(
                f"initial_state: expected [{expected[1]}] or {list(expected)}, one state per output of the drift and "
                f"one row per path, got {list(as_array(initial_state).shape)}"
            )
        return state
    if not callable(drift):
        raise TypeError(f"drift: expected paths, a list of paths, or a function, got {type(drift).__name__}")
    state = as_tensor(initial_state, "initial_state")
    return state[None] if state.ndim == 1 else state


def _report(states: Tensor, keep_every: int = 1) -> Tensor:
    """The states `[..., k, d_s]` with NaN from the first bad step on, and a warning if any trajectory diverged.

    Under transforms of torch.func values cannot be inspected, so there is no warning.
    """
    if transformed():
        return states
    bad = ~torch.isfinite(states.detach()).all(-1)  # [(a,) s, k]
    if bool(bad.any()):
        lost = bad.any(-1)
        first = bad[lost].float().argmax(-1)
        path = int(lost.nonzero()[first.argmin(), -1])
        warnings.warn(
            f"{int(lost.sum())} of {lost.numel()} trajectories diverged, the first, of path {path}, by step "
            f"{int(first.min()) * keep_every}; a smaller dt, or a drift that is known where they went, may help",
            DivergenceWarning,
            stacklevel=3,
        )
        states = torch.where(bad.cummax(-1).values[..., None], torch.nan, states)
    return states
