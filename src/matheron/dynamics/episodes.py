"""fit_dynamics: from recorded episodes of a system to a model of it, in one call."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import Tensor

from ..core.checks import ArrayLike, Random, as_generator, as_real
from ..fitting import fit
from ..kernels import Kernel
from ..models import Outputs
from .rollouts import METHODS

if TYPE_CHECKING:
    from pandas import DataFrame, Series


def fit_dynamics(
    data: ArrayLike | DataFrame,
    controls: ArrayLike | Sequence[str] | None = None,
    *,
    states: str | Sequence[str] | None = None,
    episode: str | None = None,
    time: ArrayLike | str | None = None,
    dt: float | None = None,
    method: str = "change",
    kernel: Kernel | None = None,
    seed: Random = None,
    progress: bool = False,
) -> Outputs:
    """Fit a model of a system to recorded episodes: one GP for each state. Draw from it, and use `rollout` with the
    same method.

    Args:
        data: states of one episode `[T + 1, d_s]`, of several (a list of such, of any lengths, or one array
            `[e, T + 1, d_s]`), or a pandas DataFrame, rows in the order of time.
        controls: what was applied between a state and the next, `[T, d_c]` per episode. For a DataFrame, the names of
            its columns of controls; each row has the control that acts on the state of that row.
        states: for a DataFrame, the names of its state columns.
        episode: for a DataFrame, the column, or level of the index, that tells episodes apart; None is one episode.
        time: times of the states, `[T + 1]` per episode, or the name of a column. "euler" uses them for steps of
            different lengths, and all methods use them to find missing rows.
        dt: time between states, if it is constant; only "euler" needs it.
        method: what is learned of a transition: "change" s' - s, "next" s', or "euler" (s' - s) / dt, a drift.
        kernel: as for `matheron.fit`.
        seed, progress: as for `matheron.fit`.

    Transitions with a missing value (NaN) in the state, the next state or the control are left out, with a warning. So
    records may have gaps, and episodes may be padded to one length. If times are given with "change" or "next",
    transitions that take longer than the others are left out too, because rows are missing there.

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
    X, Y = transitions(data, controls, states=states, episode=episode, time=time, dt=dt, method=method)
    generator = as_generator(seed)
    return Outputs([fit(kernel, X, y, seed=generator, progress=progress) for y in Y.unbind(1)])


def transitions(
    data: ArrayLike | DataFrame,
    controls: ArrayLike | Sequence[str] | None = None,
    *,
    states: str | Sequence[str] | None = None,
    episode: str | None = None,
    time: ArrayLike | str | None = None,
    dt: float | None = None,
    method: str = "change",
) -> tuple[Tensor, Tensor]:
    """Inputs (state, control) `[n, d_s + d_c]` and targets of the method `[n, d_s]`.

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
    if method == "euler" and time is None and (dt is None or _shape(dt) != () or not dt > 0):
        raise ValueError(
            f'dt: expected a positive time between states for method="euler", got {dt!r}; for steps of several lengths '
            "give time, the times of the states"
        )
    if dt is not None and time is not None:
        raise ValueError("dt: expected dt, or the times of the states, got both")
    if hasattr(data, "columns"):
        S, C, T = _from_frame(
            cast("DataFrame", data), states, cast("str | Sequence[str] | None", controls), episode, time
        )
    else:
        S = _episodes(cast(ArrayLike, data), "data")
        C = None if controls is None else _episodes(cast(ArrayLike, controls), "controls")
        T = None if time is None else _times(cast(ArrayLike, time), S)
    if C is not None and len(C) != len(S):
        raise ValueError(f"controls: expected those of {len(S)} episodes, got {len(C)}")
    inputs, targets = [], []
    for i, s in enumerate(S):
        now, after = s[:-1], s[1:]  # [T, d_s]
        if C is not None and len(C[i]) not in (len(now), len(s)):
            raise ValueError(f"controls: expected {len(now)} of episode {i}, one between states, got {len(C[i])}")
        inputs.append(now if C is None else torch.cat([now, C[i][: len(now)].to(now)], dim=1))
        targets.append(after if method == "next" else after - now)
    if sum(map(len, inputs)) == 0:
        raise ValueError("data: expected an episode of at least two states, got none")
    X, Y = torch.cat(inputs), torch.cat(targets)
    if T is not None:
        lengths = torch.cat([t.diff() for t in T])[:, None]  # [n, 1]
        if bool((lengths <= 0).any()):
            raise ValueError("time: expected times that increase within each episode; sort the rows by time")
        Y = Y / lengths.to(Y) if method == "euler" else torch.where(_one_step(lengths, method), Y, torch.nan)
    return _without_missing(X, Y / dt if method == "euler" and dt is not None else Y)


def _one_step(lengths: Tensor, method: str, *, jitter: float = 0.1, gap: float = 1.5) -> Tensor:
    """Which transitions are one step of a map in discrete time, of the usual length: `[n, 1]`.

    Args:
        jitter: largest deviation of a step from the usual length, in units of that length.
        gap: length beyond which a step spans a gap, in the same units.
    """
    known = lengths[~lengths.isnan()]
    usual = float(known.median()) if len(known) else 0.0
    near = known[known < gap * usual]
    if len(near) and float((near - usual).abs().max()) > jitter * usual:
        raise ValueError(
            f'time: steps are {float(near.min()):.4g} to {float(near.max()):.4g} long, and method="{method}" learns '
            'a map of one step; use method="euler"'
        )
    return lengths < gap * usual


def _without_missing(X: Tensor, Y: Tensor) -> tuple[Tensor, Tensor]:
    missing = X.isnan().any(1) | Y.isnan().any(1)
    if not bool(missing.any()):
        return X, Y
    if bool(missing.all()):
        raise ValueError(f"data: expected transitions without missing values, got none among {len(X)}")
    warnings.warn(
        f"{int(missing.sum())} of {len(X)} transitions have missing values (NaN), or lead over a gap in time, and are "
        "left out",
        stacklevel=3,
    )
    return X[~missing], Y[~missing]


def _numbers(values: ArrayLike, name: str) -> Tensor:
    """Finite numbers, or NaN."""
    tensor = as_real(values, name)
    tensor = tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.double()
    if bool(tensor.isinf().any()):
        raise ValueError(f"{name}: expected finite numbers, or NaN where one is missing, got infinite ones")
    return tensor


def _episodes(values: ArrayLike, name: str) -> list[Tensor]:
    """Episodes `[T, d]` from one, a list of them, or an array of them."""
    parts = _each(values, name, 2)
    if any(part.ndim != 2 for part in parts) or len({part.shape[1] for part in parts}) != 1:
        shapes = [list(part.shape) for part in parts]
        raise ValueError(f"{name}: expected episodes [T, d] of one width d, got shapes {shapes}")
    return parts


def _times(time: ArrayLike, S: Sequence[Tensor]) -> list[Tensor]:
    """Times `[T + 1]` of each episode; a single row is used for all episodes."""
    rows = _each(time, "time", 1)
    rows = rows * len(S) if len(rows) == 1 else rows
    shapes = [list(row.shape) for row in rows]
    if shapes != [[len(s)] for s in S]:
        raise ValueError(f"time: expected one per state, of each episode {[len(s) for s in S]}, got shapes {shapes}")
    return rows


def _each(values: ArrayLike, name: str, ndim: int) -> list[Tensor]:
    """One array per episode, from a single array, a list of arrays, or an array with an additional first axis."""
    listed = list(values) if isinstance(values, list | tuple) else []
    shapes = {_shape(part) for part in listed}
    several = len(shapes) > 1 or any(len(shape) == ndim for shape in shapes)
    parts = [_numbers(part, name) for part in (listed if several else [values])]
    return list(parts[0]) if len(parts) == 1 and parts[0].ndim == ndim + 1 else parts


def _shape(values: ArrayLike) -> tuple[int, ...]:
    return tuple(values.shape) if isinstance(values, Tensor) else np.asarray(values).shape


def _from_frame(
    frame: DataFrame,
    states: str | Sequence[str] | None,
    controls: str | Sequence[str] | None,
    episode: str | None,
    time: ArrayLike | str | None,
) -> tuple[list[Tensor], list[Tensor] | None, list[Tensor] | None]:
    """Episodes from a DataFrame, in the order in which they first appear: states, controls and times."""
    if {name for name in (episode, time) if isinstance(name, str)} & set(frame.index.names) - set(frame.columns):
        frame = frame.reset_index()
    known = ", ".join(map(str, frame.columns))
    if states is None:
        raise ValueError(f"states: expected the names of the state columns among {known}")
    states = [states] if isinstance(states, str) else list(states)
    controls = [controls] if isinstance(controls, str) else [] if controls is None else list(controls)
    times = [] if time is None else [time]
    for name in [*states, *controls, *times, *([] if episode is None else [episode])]:
        if not isinstance(name, str | int) or name not in frame.columns:
            raise ValueError(f"{name!r} is not a column; expected one of {known}")
    if episode is not None and (missing := int(frame[episode].isna().to_numpy().sum())):
        raise ValueError(
            f"episode: expected a value in every row of {episode!r}, got {missing} missing; remove the rows"
        )
    groups = [frame] if episode is None else [group for _, group in frame.groupby(episode, sort=False, observed=True)]

    def parts(columns: list, rows: slice, name: str) -> list[Tensor]:
        return [torch.stack([_column(group[c].iloc[rows], c, name) for c in columns], dim=1) for group in groups]

    # The last state of an episode has no successor, so its row may have no control.
    applied = parts(controls, slice(-1), "controls") if controls else None
    when = [t[:, 0] for t in parts(times, slice(None), "time")] if times else None
    return parts(states, slice(None), "data"), applied, when


def _column(series: Series, column: object, name: str) -> Tensor:
    """The numbers in a column, NaN in empty cells; dates and durations become seconds."""
    if series.dtype.kind == "M":
        series = series - series.min()
    if series.dtype.kind == "m":
        series = series.dt.total_seconds()
    try:
        return _numbers(series.to_numpy(dtype=float, na_value=np.nan), name)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: expected numbers in column {column!r}: {error}") from error
