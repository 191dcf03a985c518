"""Inputs of a system besides its drift: controls, candidate actions, and process noise."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch
from torch import Tensor

from ..core.checks import ArrayLike, as_array, as_tensor
from ..core.modes import transformed

Controls = ArrayLike | Callable[..., ArrayLike]


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
    parameters = inspect.signature(function).parameters.values()
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
