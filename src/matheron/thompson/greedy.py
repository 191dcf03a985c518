"""Less exploration: draws nearer to the posterior mean, and the mean's own minimiser.

In ten dimensions the minimum of a draw lies where little is known, in every round, and the best point so far is hardly
used. Two remedies use it (Do et al., epsilon-greedy Thompson sampling, 2024). The first halves the draws' deviations
from the mean, as averages of four draws would. The second takes one point of each round at the minimum of the mean.
`docs/results/against.md` measures both.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..paths import AbstractFunctions, AbstractPaths, PosteriorMean


def graded(count: int) -> list[float]:
    """Evenly spaced spreads up to that of draws, so that some functions explore and others exploit."""
    return [(i + 1) / count for i in range(count)]


def toward_mean(paths: AbstractPaths, spread: float | Sequence[float]) -> AbstractFunctions:
    """mean + spread (f - mean): drawn functions with their deviations from the posterior mean on another scale, the
    same for all of them or one for each."""
    s = paths.num_paths
    w = torch.as_tensor(spread, dtype=paths.dtype, device=paths.device)
    mean = PosteriorMean(paths)
    mean = mean if mean.num_paths == s else mean[[0] * s]
    return paths * w + mean * (1 - w)


def is_at_datum(difference: Tensor, near: float = 1e-4) -> bool:
    """Whether a point is nearer than `near` to a datum in every coordinate. Differences `[n, d]` are shares of the
    box. An evaluation there would add no information."""
    return bool((difference.abs().amax(1) < near).any())
