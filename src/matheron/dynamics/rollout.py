"""rollout: simulate a system along drawn drift functions, in time linear in the number of steps."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..checks import ArrayLike, Random, as_array, as_count, as_generator, as_tensor
from ..describe import ADAPTERS
from ..gp import GP
from ..paths import AbstractPaths, OutputPaths, require_paths
from ..value import Value
from .persistent import rolled
from .stepper import DISCRETE, METHODS, Stepper, make_stepper

# Steps between two checkpoints of a roll-out with gradients: the graph of one segment exists at a time.
_SEGMENT = 32
# Steps whose noise is drawn at once, and numbers at the most.
_BLOCK, _NUMBERS = 64, 1 << 20

Controls = ArrayLike | Callable[..., ArrayLike]


class DivergenceWarning(UserWarning):
    """Some trajectories left the finite numbers; the others are as they would have been without them."""


def rollout(
    drift: Any,
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
    """Simulate s' = s + f(s, c) dt + sqrt(dt Sigma) eps, `eqn:euler_maruyama`, each path along its own drift f.

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
            answers `[d_c]` or `[s, d_c]`.
        actions: candidate sequences of controls, `[a, steps, d_c]`, in place of `controls`: every one is tried on every
            path's system. Paths are evaluated at a points each, not copied.
        diffusion: Sigma, a variance: one number, one per state `[d_s]`, or a covariance `[d_s, d_s]`.
        keep_every: keep the first state and every so many after it.
        gradients: let gradients flow from the trajectory to the initial state, the controls and the diffusion, with
            checkpoints, so that memory grows with the states and not with the paths' features.
        generator, seed: draws the process noise, a generator or a seed.

    Returns:
        states `[s, steps // keep_every + 1, d_s]`; with `actions`, `[a, s, steps // keep_every + 1, d_s]`.

    On a CUDA device the whole roll-out is a kernel (see `persistent`), or where it cannot be, as under a policy, a
    CUDA graph a step.

    A trajectory that diverges is NaN from its first bad step on, which a `DivergenceWarning` names.

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
    if isinstance(drift, Sequence):
        drift = OutputPaths([_as_drift(part) for part in drift])
    drift = _as_drift(drift)
    state = _initial(drift, initial_state)  # [s, d_s]
    if actions is not None:
        control: _Controls | _Actions = _Actions(actions, controls, steps, state)
        state = state[:, None].expand(-1, control.number, -1)  # [s, a, d_s]
    else:
        control = _Controls(controls, steps, dt, state)
    if isinstance(drift, AbstractPaths):
        control.check(drift.input_dim - drift.num_outputs)
    noise = _Noise(diffusion, 1.0 if method in DISCRETE else dt, state, as_generator(generator, seed))
    with torch.set_grad_enabled(gradients and torch.is_grad_enabled()):
        if gradients:
            step = make_stepper(drift, dt, state, method)
            return _report(_with_checkpoints(step, state, steps, control, noise, keep_every))
        if actions is None and method == "euler":
            kept = rolled(drift, dt, state, steps, control, noise, keep_every)
            if kept is not None:
                return _report(kept, keep_every)
        step = make_stepper(drift, dt, state, method, fast=True)
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
    dt = 1.0 if dt is None else dt
    if not (math.isfinite(dt) and dt > 0):
        raise ValueError(f"dt: expected a positive number, got {dt!r}")
    return dt


def _in_order(kept: Tensor) -> Tensor:
    """States `[k, s, d_s]` as `[s, k, d_s]`, or `[k, s, a, d_s]` as `[a, s, k, d_s]`."""
    return kept.transpose(0, -2).contiguous()


def _with_checkpoints(step: Stepper, state: Tensor, steps: int, control, noise: _Noise, keep_every: int) -> Tensor:
    """The roll-out in segments, each of which is run again in the backward pass."""
    kept = [state]

    def segment(state: Tensor, start: int, stop: int, draws: list[Tensor | None]) -> Tensor:
        states = []
        for t in range(start, stop):
            state = step(state, control(t, state), noise.coloured(draws[t - start]))
            states.append(state)
        return torch.stack(states)  # [k, s, (a,) d_s]

    for start in range(0, steps, _SEGMENT):
        stop = min(start + _SEGMENT, steps)
        draws = [noise.normals() for _ in range(start, stop)]
        states = checkpoint(segment, state, start, stop, draws, use_reentrant=False, preserve_rng_state=False)
        state = states[-1]
        kept += [s for t, s in enumerate(states, start + 1) if t % keep_every == 0]
    return _in_order(torch.stack(kept))


class _Noise:
    """sqrt(dt Sigma) eps for each step, or nothing."""

    def __init__(self, diffusion: ArrayLike | None, dt: float, state: Tensor, generator: torch.Generator) -> None:
        self.state, self.generator = state, generator
        self.left = state.new_empty(0, *state.shape)  # drawn and not yet taken
        self.root = None if diffusion is None else _root(as_tensor(diffusion, "diffusion", like=state) * dt, state)

    def take(self, count: int) -> Tensor:
        """The standard normals of the next steps, `[count, *state.shape]`.

        They are drawn in blocks of a fixed number of steps: the same ones however many are taken at a time.
        """
        shape, device = self.state.shape, self.generator.device
        block = max(1, min(_BLOCK, _NUMBERS // max(1, self.state.numel())))
        while len(self.left) < count:
            eps = torch.randn(block, *shape, generator=self.generator, device=device, dtype=torch.float64)
            self.left = torch.cat([self.left, eps.to(self.state)])
        taken, self.left = self.left.split([count, len(self.left) - count])
        return taken

    def normals(self) -> Tensor | None:
        return None if self.root is None else self.take(1)[0]

    def coloured(self, eps: Tensor | None) -> Tensor | None:
        if self.root is None or eps is None:
            return None
        return eps * self.root if self.root.ndim < 2 else eps @ self.root.mT  # [s, (a,) d_s]

    def draw(self) -> Tensor | None:
        return self.coloured(self.normals())


def _root(variance: Tensor, state: Tensor) -> Tensor:
    """A square root of dt Sigma: a number, `[d_s]`, or `[d_s, d_s]`."""
    d = state.shape[-1]
    if variance.shape not in ((), (1,), (d,), (d, d)):
        raise ValueError(f"diffusion: expected a variance, [{d}] or [{d}, {d}], got {list(variance.shape)}")
    if variance.ndim == 2 and d > 1:
        factor, failed = torch.linalg.cholesky_ex(variance)
        if bool(failed):
            raise ValueError("diffusion: expected a positive definite covariance")
        return factor
    if bool((variance < 0).any()):
        raise ValueError(f"diffusion: expected variances >= 0, got {float(variance.min()):.4g}")
    return variance.reshape(-1).sqrt()


def _as_drift(drift: Any) -> Any:
    """The drift, or a TypeError where it is a model, of which functions are yet to be drawn."""
    libraries = {base.__module__.split(".")[0] for base in type(drift).__mro__}
    if isinstance(drift, GP) or libraries & set(ADAPTERS):
        raise TypeError(
            f"drift: expected functions, got a model, {type(drift).__name__}; draw them first: "
            "rollout(matheron.draw(model, 64), ...)"
        )
    return drift


def _initial(drift: Any, initial_state: ArrayLike) -> Tensor:
    """States `[s, d_s]`, as many as there are paths."""
    if isinstance(drift, Value):
        drift = require_paths(drift, "drift")
        like = torch.empty(0, dtype=drift.dtype, device=drift.device)
        state = as_tensor(initial_state, "initial_state", like=like)
        if state.ndim == 1:
            state = state.expand(drift.num_paths, -1)
        expected = (drift.num_paths, drift.num_outputs)
        if state.shape != expected:
            raise ValueError(
                f"initial_state: expected [{expected[1]}] or {list(expected)}, one state an output of the drift and "
                f"one row per path, got {list(as_array(initial_state).shape)}"
            )
        return state
    if not callable(drift):
        raise TypeError(f"drift: expected paths, a list of paths, or a function, got {type(drift).__name__}")
    state = as_tensor(initial_state, "initial_state")
    return state[None] if state.ndim == 1 else state


class _Controls:
    """What is applied at step t: `[s, d_c]`, or None; an array, a function of time, or a policy."""

    def __init__(self, controls: Controls | None, steps: int, dt: float, state: Tensor) -> None:
        self.num_paths, self.dt = state.shape[0], dt
        self.function = controls if callable(controls) else None
        self.policy = self.function is not None and _num_arguments(self.function) > 1
        self.given: Tensor | None = None  # [s, steps, d_c]
        if controls is not None and not callable(controls):
            given, s = as_tensor(controls, "controls", like=state), self.num_paths
            if (
                given.ndim not in (2, 3)
                or given.shape[-2] < steps
                or (given.ndim == 3 and given.shape[0] not in (1, s))
            ):
                raise ValueError(
                    f"controls: expected [{steps}, d_c] or [{s}, {steps}, d_c], or a function of time, "
                    f"got {list(given.shape)}"
                )
            self.given = given.expand(s, *given.shape[-2:])
        self.number: int | None = None  # d_c, where it is known

    def check(self, number: int) -> None:
        """ValueError where the drift takes another number of controls."""
        self.number = number
        if self.function is None:
            _check_number(None if self.given is None else self.given.shape[-1], number, "controls")

    def __call__(self, t: int, state: Tensor) -> Tensor | None:
        if self.function is not None:
            return self.answer(t, state).to(state)
        return None if self.given is None else self.given[:, t]

    def answer(self, t: int, *state: Tensor) -> Tensor:
        """The function's own answer, `[s, d_c]`, on whatever device."""
        assert self.function is not None
        c = as_array(self.function(t * self.dt, *state) if self.policy else self.function(t * self.dt))
        c = c.reshape(1, -1) if c.ndim < 2 else c
        if self.number is not None:
            _check_number(c.shape[-1], self.number, "controls")
        if c.ndim != 2 or len(c) not in (1, self.num_paths):
            raise ValueError(f"controls: expected [d_c] or [{self.num_paths}, d_c] at each time, got {list(c.shape)}")
        return c.expand(self.num_paths, -1)


def _check_number(given: int | None, number: int, name: str) -> None:
    if number < 0:
        raise ValueError(f"drift: expected as many inputs as states, and controls beyond, got {-number} inputs too few")
    if (given or 0) != number:
        found = "none" if given is None else f"{given}"
        raise ValueError(f"{name}: expected {number} a step, the drift's inputs beyond its states, got {found}")


class _Actions:
    """Candidate sequences of controls: at step t `[s, a, d_c]`, the same for every path."""

    def __init__(self, actions: ArrayLike, controls: Controls | None, steps: int, state: Tensor) -> None:
        if controls is not None:
            raise ValueError("actions: expected actions or controls, got both")
        given = as_tensor(actions, "actions", like=state)
        if given.ndim != 3 or given.shape[1] < steps or len(given) == 0:
            raise ValueError(
                f"actions: expected [a, {steps}, d_c], a sequence of {steps} each, got {list(given.shape)}"
            )
        self.given, self.number, self.num_paths = given, len(given), len(state)

    def check(self, number: int) -> None:
        _check_number(self.given.shape[-1], number, "actions")

    def __call__(self, t: int, state: Tensor) -> Tensor:
        return self.given[:, t].expand(self.num_paths, -1, -1)


def _num_arguments(function: Callable[..., Any]) -> int:
    if isinstance(function, torch.nn.Module):
        function = function.forward
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return sum(p.kind in kinds and p.default is p.empty for p in parameters)


def _report(states: Tensor, keep_every: int = 1) -> Tensor:
    """The states `[..., k, d_s]`, with a word on those that diverged: NaN from the first bad step on."""
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
