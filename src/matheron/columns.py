"""Columns of a table: which of them are a model's inputs, their cells as numbers, and what is doubtful in them."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, cast

import numpy as np

from .tables import pandas

if TYPE_CHECKING:
    from pandas import DataFrame

    from .value import Json

_DATE = re.compile(
    r"\s*(\d{4}[-/.]\d\d?[-/.]\d\d?|\d\d?[-/.]\d\d?[-/.](\d{4}|\d\d)|\d\d?:\d\d|\d{4}-\d\d\s*$|"
    r"\d\d?[ -][a-z]{3,}[ ,.-]+\d{2,4}|[a-z]{3,}[ .]+\d\d?,? \d{4})(?!\d)",
    re.IGNORECASE,
)
# Numbers that stand for no number in many files of measurements.
_MARKS = {sign * mark for sign in (-1, 1) for mark in (99.0, 999.0, 9999.0, 99999.0, 999.9, 9999.9, 1e20, 1e30)}


@dataclass(frozen=True)
class Columns:
    """Which columns of a table are a model's inputs. Those with categories become one column of 0 and 1 per category.

    >>> import pandas
    >>> table = pandas.DataFrame({"a": [1.0, 2.0], "kind": ["x", "y"]})
    >>> columns = Columns(["a", "kind"], {"kind": ["x", "y"]})
    >>> columns.names, columns.matrix(table, "table").tolist()
    (['a', 'kind=x', 'kind=y'], [[1.0, 1.0, 0.0], [2.0, 0.0, 1.0]])
    """

    inputs: list[str]
    categories: dict[str, list[str]] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The names of the model's own columns."""
        return [n for i in self.inputs for n in ([f"{i}={c}" for c in self.categories[i]] if self.coded(i) else [i])]

    @property
    def places(self) -> dict[str, slice]:
        """The model's own columns that each input has."""
        widths = [len(self.categories[name]) if self.coded(name) else 1 for name in self.inputs]
        each = zip(self.inputs, widths, accumulate(widths), strict=True)
        return {name: slice(end - width, end) for name, width, end in each}

    def coded(self, name: str) -> bool:
        return name in self.categories

    def matrix(self, frame: DataFrame, source: str, advice: str | None = None) -> np.ndarray:
        """The inputs `[n, d]`, NaN where a cell is empty; advice is for someone whose cells hold text."""
        check_columns(frame, self.inputs, source)
        parts = []
        for name in self.inputs:
            if not self.coded(name):
                parts.append(numbers(frame, name, source, advice)[:, None])
                continue
            cells = frame[name]
            known = self.categories[name]
            text = cells.astype(str).to_numpy()
            strange = sorted(set(text[cells.notna().to_numpy()]) - set(known))
            if strange:
                raise ValueError(f"{source}: column {name!r} holds {strange[0]!r}, which is none of {', '.join(known)}")
            coded = np.stack([(text == c).astype(float) for c in known], axis=1)
            coded[cells.isna().to_numpy()] = np.nan
            parts.append(coded)
        return np.concatenate(parts, axis=1) if parts else np.zeros((len(frame), 0))

    def table(self, X: np.ndarray) -> DataFrame:
        """The table whose matrix is X `[n, d]`: columns of 0 and 1 are categories again."""
        columns = {
            name: np.array(self.categories[name])[X[:, place].argmax(1)] if self.coded(name) else X[:, place.start]
            for name, place in self.places.items()
        }
        return pandas().DataFrame(columns)

    def to_json(self) -> dict[str, Json]:
        return asdict(self)

    @classmethod
    def from_json(cls, notes: Mapping[str, Json]) -> Columns:
        inputs, categories = notes["inputs"], notes.get("categories", {})
        return cls(list(cast(Sequence[str], inputs)), dict(cast(Mapping[str, list[str]], categories)))


def check_columns(frame: DataFrame, names: Sequence[str], source: str) -> None:
    missing = [name for name in names if name not in frame.columns]
    if missing:
        there = ", ".join(map(str, frame.columns[:20])) + (", ..." if len(frame.columns) > 20 else "")
        noun = f"column {missing[0]!r}" if len(missing) == 1 else f"columns {', '.join(map(repr, missing))}"
        raise ValueError(f"{source} has no {noun}; it has {there}")


def numbers(frame: DataFrame, name: str, source: str, advice: str | None = None) -> np.ndarray:
    """A column as floats `[n]`, NaN where a cell is empty; ValueError, with advice, where it holds text or dates."""
    column = frame[name]
    if column.dtype.kind in "biuf" or str(column.dtype).lower() in ("int64", "float64", "boolean"):
        return column.to_numpy(dtype=float, na_value=np.nan)
    dates = f"{source}: column {name!r} holds dates; make it a number, such as days since the first"
    dates += ", or leave it out with --inputs" if advice is None else ""
    if column.dtype.kind in "mM":
        raise ValueError(dates)
    converted = pandas().to_numeric(column, errors="coerce")
    bad = converted.isna() & column.notna() & (column.astype(str).str.strip() != "")
    if bool(bad.any()):
        row = int(np.flatnonzero(bad.to_numpy())[0])
        text = str(column.iloc[row])
        share = f"{int(bad.sum())} of {len(column)} cells"
        if _DATE.match(text):
            raise ValueError(f"{dates} ({text!r} in row {row + 1})")
        if advice is None:
            advice = f"leave it out with --inputs, correct it, or, if it names categories, add --encode {name}"
        where = f"{source}: column {name!r} holds text ({text!r} in row {row + 1}; {share})"
        raise ValueError(f"{where}, expected plain numbers such as 1234.5, or empty cells; {advice}")
    return converted.to_numpy(dtype=float, na_value=np.nan)


def no_data_remark(name: str, values: np.ndarray) -> str | None:
    """What to say of a column in which a number such as -9999, far from all others, seems to mark missing values.

    >>> import numpy as np
    >>> no_data_remark("z", np.array([1.0, 2.5, -9999.0, 2.0]))
    'z is -9999 in 1 of 4 rows: if that means no data, empty these cells'
    """
    for mark in _MARKS.intersection(values.tolist()):
        rest = values[values != mark]
        if len(rest) > 1 and np.abs(rest - mark).min() > 2 * np.ptp(rest):
            times = len(values) - len(rest)
            return f"{name} is {mark:g} in {times} of {len(values)} rows: if that means no data, empty these cells"
    return None


def copies_remark(rows: np.ndarray) -> str | None:
    """What to say of a table `[n, c]` in which whole rows are repeated.

    >>> import numpy as np
    >>> copies_remark(np.array([[1.0, 2.0], [3.0, 4.0], [1.0, 2.0]]))
    '1 row is a copy of others: the fit takes equal values for repeated measurements with little noise'
    """
    copies = len(rows) - len(np.unique(rows, axis=0))
    if not copies:
        return None
    one = "1 row is a copy" if copies == 1 else f"{copies} rows are copies"
    return f"{one} of others: the fit takes equal values for repeated measurements with little noise"


def listed(words: str | None) -> list[str] | None:
    """The names in a,b,c; None where nothing was given. A name with a comma stands in double quotes.

    >>> from matheron.columns import listed
    >>> listed('depth, "conc, mg/L"')
    ['depth', 'conc, mg/L']
    """
    if words is None:
        return None
    cells = next(csv.reader([words], skipinitialspace=True), [])
    names = [cell.strip() for cell in cells if cell.strip()]
    if not names:
        raise ValueError(f"expected names separated by commas, got {words!r}")
    return names
