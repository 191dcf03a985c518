"""fit_dynamics: from recorded episodes of a system to a model of it, in one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeGuard, cast

import torch
from torch import Tensor

from ..checks import ArrayLike, Random, as_generator, as_tensor
from ..fitting import fit
from ..gp import Outputs
from ..kernels import Kernel
from .stepper import METHODS

if TYPE_CHECKING:
    from pandas import DataFrame


def fit_dynamics(
    data: ArrayLike | DataFrame,
    controls: ArrayLike | Sequence[str] | None = None,
    *,
    states: str | Sequence[str] | None = None,
    episode: str | None = None,
    dt: float | None = None,
    method: str = "change",
    kernel: Kernel | None = None,
    seed: Random = None,
    progress: bool = False,
) -> Outputs:
    """Learn a system from episodes: a model per state, to be drawn from and simulated by `rollout`, same method.

    Args:
        data: states of one episode `[T + 1, d_s]`, of several (a list of such, of any lengths, or one array
            `[e, T + 1, d_s]`), or a pandas DataFrame, rows in the order of time.
        controls: what was applied between a state and the next, `[T, d_c]` per episode; for a DataFrame, the names of
            columns that hold the controls in the rows of the states that they act on.
        states: for a DataFrame, the names of its state columns.
        episode: for a DataFrame, the column that tells episodes apart; None is one episode.
        dt: time between states; needed by "euler" alone.
        method: what is learned of a transition: "change" s' - s, "next" s', or "euler" (s' - s) / dt, a drift.
        kernel: as for `matheron.fit`.
        seed, progress: as for `matheron.fit`.

    >>> import torch, matheron
    >>> from matheron.dynamics import fit_dynamics
    >>> torque = torch.rand(3, 20, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) - 0.5
    >>> pendulum = lambda x: torch.stack([x[:, 1], -torch.sin(x[:, 0]) + x[:, 2]], dim=1)
    >>> episodes = matheron.rollout(pendulum, torch.rand(3, 2).double(), 20, dt=0.1, controls=torque)
    >>> model = fit_dynamics(episodes, torque, seed=0)
    >>> systems = matheron.draw(model, 16)
    >>> matheron.rollout(systems, [1.0, 0.0], 50, method="change", controls=torch.zeros(50, 1)).shape
    torch.Size([16, 51, 2])
    """
    X, Y = transitions(data, controls, states=states, episode=episode, dt=dt, method=method)
    generator = as_generator(seed)
    return Outputs([fit(kernel, X, y, seed=generator, progress=progress) for y in Y.unbind(1)])


def transitions(
    data: ArrayLike | DataFrame,
    controls: ArrayLike | Sequence[str] | None = None,
    *,
    states: str | Sequence[str] | None = None,
    episode: str | None = None,
    dt: float | None = None,
    method: str = "change",
) -> tuple[Tensor, Tensor]:
    """Inputs (state, control) `[n, d_s + d_c]` and what the method says of the next state `[n, d_s]`.

    Arguments are those of `fit_dynamics`. No transition leads from one episode to the next.

    >>> from matheron.dynamics import transitions
    >>> X, Y = transitions([[[0.0], [1.0], [3.0]], [[5.0], [4.0]]])
    >>> X[:, 0].tolist(), Y[:, 0].tolist()
    ([0.0, 1.0, 5.0], [1.0, 2.0, -1.0])
    """
    if method not in ("change", "next", "euler"):
        raise ValueError(
            f"method: expected change, next or euler to learn, one of {', '.join(METHODS)}, got {method!r}"
        )
    if method == "euler" and not (dt is not None and dt > 0):
        raise ValueError(f'dt: expected a positive time between states for method="euler", got {dt!r}')
    if _is_frame(data):
        S, C = _from_frame(data, states, cast("str | Sequence[str] | None", controls), episode)
    else:
        S = _episodes(cast(ArrayLike, data), "data")
        C = None if controls is None else _episodes(cast(ArrayLike, controls), "controls")
    if C is not None and len(C) != len(S):
        raise ValueError(f"controls: expected those of {len(S)} episodes, got {len(C)}")
    inputs, targets = [], []
    for i, s in enumerate(S):
        now, after = s[:-1], s[1:]  # [T, d_s]
        if C is not None and len(C[i]) not in (len(now), len(s)):
            raise ValueError(f"controls: expected {len(now)} of episode {i}, one between states, got {len(C[i])}")
        inputs.append(now if C is None else torch.cat([now, C[i][: len(now)].to(now)], dim=1))
        targets.append(after if method == "next" else after - now)
    X, Y = torch.cat(inputs), torch.cat(targets)
    if len(X) == 0:
        raise ValueError("data: expected an episode of at least two states, got none")
    return X, Y / dt if method == "euler" and dt is not None else Y


def _episodes(values: ArrayLike, name: str) -> list[Tensor]:
    """Episodes `[T, d]` from one, a list of them, or an array of them."""
    if isinstance(values, list | tuple) and values and as_tensor(values[0], name).ndim == 2:
        parts = [as_tensor(part, name) for part in values]
    else:
        parts = [as_tensor(values, name)]
    parts = list(parts[0]) if len(parts) == 1 and parts[0].ndim == 3 else parts
    if any(part.ndim != 2 for part in parts) or len({part.shape[1] for part in parts}) != 1:
        shapes = [list(part.shape) for part in parts]
        raise ValueError(f"{name}: expected episodes [T, d] of one width d, got shapes {shapes}")
    return parts


def _is_frame(data: ArrayLike | DataFrame) -> TypeGuard[DataFrame]:
    return hasattr(data, "columns")


def _from_frame(
    frame: DataFrame, states: str | Sequence[str] | None, controls: str | Sequence[str] | None, episode: str | None
) -> tuple[list[Tensor], list[Tensor] | None]:
    """Episodes from a DataFrame, in the order in which they first appear."""
    if states is None:
        raise ValueError(f"states: expected the names of the state columns among {', '.join(map(str, frame.columns))}")
    states = [states] if isinstance(states, str) else states
    controls = [controls] if isinstance(controls, str) else controls
    for name in [*states, *(controls or []), *([] if episode is None else [episode])]:
        if name not in frame.columns:
            raise ValueError(f"{name!r} is not a column; expected one of {', '.join(map(str, frame.columns))}")
    if episode is not None and (missing := int(frame[episode].isna().to_numpy().sum())):
        raise ValueError(
            f"episode: expected a value in every row of {episode!r}, got {missing} missing; remove the rows"
        )
    groups = [frame] if episode is None else [group for _, group in frame.groupby(episode, sort=False)]

    def parts(columns: Sequence[str], rows: slice, name: str) -> list[Tensor]:
        return [as_tensor(group[list(columns)].iloc[rows].to_numpy(dtype=float), name) for group in groups]

    # Nothing follows an episode's last state: its row may well have no control.
    applied = parts(controls, slice(-1), "controls") if controls else None
    return parts(states, slice(None), "data"), applied
