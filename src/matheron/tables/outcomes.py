"""Columns of outcomes: yes and no as words or numbers, counts, and the exposures or trials of the counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..models.likelihoods import Bernoulli, Binomial, Likelihood, Poisson, StudentT
from .encoding import check_columns, numbers

if TYPE_CHECKING:
    from pandas import DataFrame

LIKELIHOODS = ("bernoulli", "probit", "binomial", "poisson", "student-t")
_YES, _NO = ("yes", "y", "true", "t", "present", "positive"), ("no", "n", "false", "f", "absent", "negative")


@dataclass(frozen=True)
class OutcomeColumn:
    """A likelihood by its name, and the column of exposures or trials that it takes.

    >>> from matheron.tables.outcomes import OutcomeColumn
    >>> OutcomeColumn.of("poisson", exposure="area", trials=None)
    OutcomeColumn(kind='poisson', beside='area')
    """

    kind: str
    beside: str | None = None

    @staticmethod
    def of(kind: str | None, exposure: str | None, trials: str | None) -> OutcomeColumn | None:
        """The options of a command, checked; None if no likelihood was given."""
        if kind is not None and kind not in LIKELIHOODS:
            raise ValueError(f"--likelihood: expected one of {', '.join(LIKELIHOODS)}, got {kind!r}")
        if exposure is not None and kind != "poisson":
            raise ValueError("--exposure: goes with --likelihood poisson, whose counts are in areas or times")
        if trials is not None and kind != "binomial":
            raise ValueError("--trials: goes with --likelihood binomial, whose counts are of trials")
        if kind == "binomial" and trials is None:
            raise ValueError("--likelihood binomial: which column has the numbers of trials? Give --trials")
        return None if kind is None else OutcomeColumn(kind, exposure or trials)

    def read(self, frame: DataFrame, name: str, source: str) -> tuple[np.ndarray, np.ndarray | None, str | None]:
        """Outcomes `[n]`, exposures or trials `[n]`, NaN where a cell is empty; and a remark on how they are read."""
        beside = None
        if self.beside is not None:
            check_columns(frame, [self.beside], source)
            beside = numbers(frame, self.beside, source, "correct these cells, or name another column")
            if bool((beside <= 0).any()):
                raise ValueError(
                    f"{source}: column {self.beside!r} holds {np.nanmin(beside):g}, expected numbers above 0"
                )
        if self.kind in ("bernoulli", "probit"):
            y, remark = _two_classes(frame, name, source)
            return y, beside, remark
        return numbers(frame, name, source, "correct these cells, or name another column with --target"), beside, None

    def likelihood(self, beside: Tensor | None) -> Likelihood:
        if self.kind in ("bernoulli", "probit"):
            return Bernoulli("logit" if self.kind == "bernoulli" else "probit")
        if self.kind == "binomial":
            assert beside is not None
            return Binomial(beside)
        return StudentT() if self.kind == "student-t" else Poisson(1.0 if beside is None else beside)

    def check(self, y: np.ndarray, beside: np.ndarray | None, name: str, source: str) -> None:
        """Raise a ValueError with the column's name if it holds numbers that cannot be outcomes."""
        try:
            self.likelihood(None if beside is None else torch.from_numpy(beside)).check_outcomes(torch.from_numpy(y))
        except ValueError as error:
            raise ValueError(f"{source}: column {name!r}: {str(error).removeprefix('y: ')}") from None


def _two_classes(frame: DataFrame, name: str, source: str) -> tuple[np.ndarray, str | None]:
    """Zeros and ones `[n]`, NaN in empty cells, and a remark on which class counts as 1 if that is not obvious."""
    column: Any = frame[name]
    known = column[column.notna()]
    if column.dtype.kind in "biuf" or str(column.dtype).lower() in ("int64", "float64", "boolean"):
        words = known.astype(float)
    else:
        words = known.astype(str).str.strip().str.lower()
        words = words[words != ""]
    classes = sorted(words.unique())
    if len(classes) > 2:
        some = ", ".join(map(str, classes[:4])) + (", ..." if len(classes) > 4 else "")
        raise ValueError(
            f"{source}: column {name!r} holds {len(classes)} different values, {some}; expected two classes, such as "
            "yes and no, or 0 and 1"
        )
    out = np.full(len(column), np.nan)
    rows = frame.index.get_indexer(words.index)
    plain = all(word in (0.0, 1.0) for word in classes) or all(word in (*_YES, *_NO) for word in classes)
    if plain:
        out[rows] = [float(word in (1.0, *_YES)) for word in words]
        return out, None
    if len(classes) < 2:
        raise ValueError(f"{source}: column {name!r} holds {classes[0]} in all rows; write 1 or 0, or yes or no")
    out[rows] = [float(word == classes[1]) for word in words]
    return out, f"{name}: {classes[1]} counts as 1, {classes[0]} as 0"
