"""rollout: simulate a system along drawn drift functions, in time linear in the number of steps."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..core.checks import ArrayLike, Random, as_array, as_count, as_generator, as_tensor
from ..core.modes import transformed
from ..core.value import Value
from ..models import GP
from ..models.libraries import ADAPTERS
from ..paths import AbstractFunctions, fused_recursion, has_domain, require_functions, stack

T = TypeVar("T")
Controls = ArrayLike | Callable[..., ArrayLike]
Drift = AbstractFunctions | Callable[[Tensor], Tensor]
# (state [s, (a,) d_s], control [s, (a,) d_c] or None, noise [s, (a,) d_s] or None) -> state [s, (a,) d_s]
Stepper = Callable[[Tensor, Tensor | None, Tensor | None], Tensor]

# Integration methods for a differential equation s' = f(s, c), and for a map in discrete time, where f is the next
# state or its change.
METHODS = ("euler", "heun", "rk4", "next", "change")
DISCRETE = ("next", "change")


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

    On a CUDA device the whole roll-out is a kernel (see `fused_rollout`), or where it cannot be, as under a policy or
    with Heun's method, a CUDA graph per step.

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
            f"{int(lost.sum())} of {lost.numel()} trajectories diverged, first that of path {path}, by step "
            f"{int(first.min()) * keep_every}; use a smaller dt, or a drift with data where they went",
            DivergenceWarning,
            stacklevel=3,
        )
        states = torch.where(bad.cummax(-1).values[..., None], torch.nan, states)
    return states


# One step of every trajectory, with as little overhead as the device allows.


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


# Inputs of a system besides its drift: controls, candidate actions, and process noise.


class Control:
    """The control at each step: an array, a function of time, a policy, none, or candidate sequences of actions.

    `given` is `[s, steps, d_c]` for an array of controls and `[a, steps, d_c]` for actions. `number` is d_c, where the
    drift determines it.
    """

    def __init__(
        self,
        controls: Controls | None,
        actions: ArrayLike | None,
        steps: int,
        dt: float,
        state: Tensor,
        number: int | None,
    ) -> None:
        self.num_paths, self.dt, self.number = state.shape[0], dt, number
        self.function = controls if callable(controls) else None
        self.policy = self.function is not None and _num_arguments(self.function) > 1
        self.given: Tensor | None = None
        self.name = "controls" if actions is None else "actions"
        if actions is not None:
            if controls is not None:
                raise ValueError("actions: expected actions or controls, got both")
            self.given = given = as_tensor(actions, "actions", like=state)
            if given.ndim != 3 or given.shape[1] < steps or len(given) == 0:
                raise ValueError(
                    f"actions: expected [a, {steps}, d_c], a sequence of {steps} each, got {list(given.shape)}"
                )
        elif controls is not None and not callable(controls):
            given, s = as_tensor(controls, "controls", like=state), self.num_paths
            one_each = given.ndim == 2 or (given.ndim == 3 and given.shape[0] in (1, s))
            if not one_each or given.shape[-2] < steps:
                raise ValueError(
                    f"controls: expected [{steps}, d_c] or [{s}, {steps}, d_c], or a function of time, "
                    f"got {list(given.shape)}"
                )
            self.given = given.expand(s, *given.shape[-2:])
        if self.function is None:
            self._check_number(None if self.given is None else self.given.shape[-1])

    def __call__(self, t: int, state: Tensor) -> Tensor | None:
        """The control at a step: `[s, d_c]`, or `[s, a, d_c]` for actions; None if there are no controls."""
        if self.function is not None:
            return self.value(t, state).to(state)
        if self.given is None:
            return None
        now = self.given[:, t]  # [s, d_c] or [a, d_c]
        return now.expand(len(state), -1, -1) if self.name == "actions" else now

    def value(self, t: int, *state: Tensor) -> Tensor:
        """The value of the user's function as `[s, d_c]`, moved to the device of the state."""
        assert self.function is not None
        c = as_array(self.function(t * self.dt, *state) if self.policy else self._at_time(t * self.dt))
        if self.policy and c.shape == (self.num_paths,) and self.num_paths > 1 and self.number != self.num_paths:
            if self.number is None:
                raise ValueError(
                    f"controls: the policy returned shape [{self.num_paths}]: one control per trajectory, or "
                    f"{self.num_paths} controls for all? return [{self.num_paths}, d_c]"
                )
            c = c[:, None]  # one control for all steps, without an axis for them
        c = c.reshape(1, -1) if c.ndim < 2 else c
        self._check_number(c.shape[-1])
        if c.ndim != 2 or len(c) not in (1, self.num_paths):
            raise ValueError(f"controls: expected [d_c] or [{self.num_paths}, d_c] at each time, got {list(c.shape)}")
        return c.expand(self.num_paths, -1)

    def _check_number(self, given: int | None) -> None:
        """Raise a ValueError if the drift takes another number of controls."""
        number = (given or 0) if self.number is None else self.number
        if number < 0:
            raise ValueError(
                f"drift: expected as many inputs as states, and controls beyond, got {-number} inputs too few"
            )
        if (given or 0) != number:
            found = "none" if given is None else f"{given}"
            raise ValueError(
                f"{self.name}: expected {number} per step, the drift's inputs beyond its states, got {found}"
            )

    def _at_time(self, time: float) -> ArrayLike:
        assert self.function is not None
        try:
            return self.function(time)
        except (TypeError, AttributeError, IndexError) as error:
            # for example, of a network or a function that takes the state
            name = getattr(self.function, "__name__", type(self.function).__name__)
            raise TypeError(
                f"controls: {name} takes one argument, so it was called with the time, and failed: "
                f"{error}; for a policy of the state use controls=lambda time, state: policy(state)"
            ) from error


def _num_arguments(function: Callable[..., ArrayLike]) -> int:
    if isinstance(function, torch.nn.Module):
        function = function.forward
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # functions in C, such as torch.sin, have no signature
        return 1
    return sum(p.kind in kinds and p.default is p.empty for p in parameters)


class Noise:
    """sqrt(dt Sigma) eps for each step, or nothing."""

    # the number of steps whose noise is drawn together, and the largest number of values
    block, most_numbers = 64, 1 << 20

    def __init__(self, diffusion: ArrayLike | None, dt: float, state: Tensor, generator: torch.Generator) -> None:
        self.state, self.generator = state, generator
        self.left = state.new_empty(0, *state.shape)  # noise that was drawn and not used yet
        self.root = None if diffusion is None else dt**0.5 * _root(as_tensor(diffusion, "diffusion", like=state), state)

    def take(self, count: int) -> Tensor:
        """The standard normals of the next steps, `[count, *state.shape]`.

        They are drawn in blocks of a fixed number of steps, so the noise does not depend on how many steps are taken
        at a time. Without diffusion nothing is drawn.
        """
        if self.root is None:
            return self.state.new_empty(count, 0)
        shape, device = self.state.shape, self.generator.device
        block = max(1, min(self.block, self.most_numbers // max(1, self.state.numel())))
        while len(self.left) < count:
            eps = torch.randn(block, *shape, generator=self.generator, device=device, dtype=torch.float64)
            self.left = torch.cat([self.left, eps.to(self.state)])
        taken, self.left = self.left.split([count, len(self.left) - count])
        return taken

    def coloured(self, eps: Tensor) -> Tensor | None:
        if self.root is None:
            return None
        return eps * self.root if self.root.ndim < 2 else eps @ self.root.mT  # [s, (a,) d_s]

    def draw(self) -> Tensor | None:
        return None if self.root is None else self.coloured(self.take(1)[0])


def _root(variance: Tensor, state: Tensor) -> Tensor:
    """A square root of Sigma: a number, `[d_s]`, or `[d_s, d_s]`."""
    d = state.shape[-1]
    if variance.shape not in ((), (1,), (d,), (d, d)):
        raise ValueError(f"diffusion: expected a variance, [{d}] or [{d}, {d}], got {list(variance.shape)}")
    if variance.ndim == 2 and d > 1:
        return _root_of_matrix(variance)
    if not transformed() and bool((variance < 0).any()):
        raise ValueError(f"diffusion: expected variances >= 0, got {float(variance.min()):.4g}")
    return variance.reshape(-1).sqrt()


def _root_of_matrix(Sigma: Tensor) -> Tensor:
    """L `[d, d]` with L L^T = Sigma, which may be singular: states that no noise moves."""
    given, epsilon = Sigma.detach(), torch.finfo(Sigma.dtype).eps
    if not torch.allclose(given, given.mT, rtol=1e3 * epsilon, atol=1e3 * epsilon * float(given.abs().max())):
        raise ValueError("diffusion: expected a symmetric covariance, got a matrix that is not its own transpose")
    factor, failed = torch.linalg.cholesky_ex(Sigma)
    if not bool(failed):
        return factor
    values, vectors = torch.linalg.eigh(Sigma)
    rounding = 10 * len(Sigma) * epsilon * float(values.detach().abs().max())
    if float(values[0]) < -rounding:
        raise ValueError(
            f"diffusion: expected a covariance without negative eigenvalues, got {float(values[0]):.4g} among them"
        )
    return vectors * torch.where(values > rounding, values.clamp_min(epsilon * rounding).sqrt(), 0.0)


# Roll-outs on a GPU in a few launches: a fused kernel computes many steps of each trajectory. The states are the same
# as step by step, to rounding, with the same noise from the same generator. The paths must be such that the fused
# kernels serve them (see `evaluate.fused`), in up to 16 inputs, with affine transforms and means and without a domain.
# The dynamics must be a map in discrete time or use Euler's method, with controls that do not depend on the state. All
# else goes step by step.


def fused_rollout(
    drift: Drift,
    dt: float,
    state: Tensor,
    steps: int,
    control: Control,
    noise: Noise,
    keep_every: int,
    method: str = "euler",
    *,
    table_size: int = 1 << 20,
    most_steps: int = 1 << 12,
) -> Tensor | None:
    """The kept states `[s, (a,) steps // keep_every + 1, d_s]` from `state` `[s, (a,) d_s]`; None if the kernel cannot
    compute this roll-out.

    Args:
        table_size: numbers in a launch's table of noise and controls.
        most_steps: of a launch.
    """
    if control.policy or not isinstance(drift, AbstractFunctions) or method not in ("euler", *DISCRETE):
        return None
    start = state.flatten(0, -2)  # [r, d_s], the trajectories of a path one after the other
    rows, d_s = start.shape
    D = drift.input_dim
    d_c = D - d_s
    one = start[:: rows // len(state)]  # one state of each path
    f = fused_recursion(drift, dt if method == "euler" else 1.0, one)
    if f is None:
        return None
    x = torch.zeros(rows, D, dtype=state.dtype, device=state.device)
    x[:, :d_s] = start
    kept = torch.empty(rows, steps // keep_every + 1, d_s, dtype=state.dtype, device=state.device)
    kept[:, 0] = start
    driven = len(control.given) if noise.root is None and control.given is not None else rows
    count = max(1, min(most_steps, table_size // (driven * D)))
    for first in range(0, steps, count):
        count = min(count, steps - first)
        drive = _drive(x, first, count, d_c, control, noise)
        f.advance(x, drive, kept, first, count, keep_every, adds=method != "next")
    return kept.view(*state.shape[:-1], -1, d_s)


def _drive(x: Tensor, first: int, count: int, d_c: int, control: Control, noise: Noise) -> Tensor | None:
    """The terms that each step adds, `[count, g, D]`: its noise and the controls of the next step. Controls of the
    first step are in x.

    g is the number of trajectories, or of the actions that all paths share. Functions of time and the generator are
    asked in the order of the steps.
    """
    (rows, D), d_s = x.shape, x.shape[1] - d_c
    applied, eps = [], []
    if control.function is None:
        eps.append(noise.take(count))
    else:
        for t in range(first, first + count):
            applied.append(control.value(t))
            eps.append(noise.take(1))
    if noise.root is None and d_c == 0:
        return None
    if not d_c:
        table = x.new_zeros(count, rows, 0)
    elif control.given is None:
        table = torch.stack(applied).to(x)
    else:
        table = control.given[:, first : first + count].transpose(0, 1)  # [count, g, d_c]
    coloured = noise.coloured(torch.cat(eps))
    g = table.shape[1]
    drive = torch.zeros(count, g if coloured is None else rows, D, dtype=x.dtype, device=x.device)
    if coloured is not None:
        drive[..., :d_s] = coloured.flatten(1, -2)
    if d_c:
        x.view(-1, g, D)[..., d_s:] = table[0]
        drive.view(count, -1, g, D)[:-1, ..., d_s:] = table[1:, None]
    return drive
