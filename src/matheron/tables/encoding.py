"""Columns of a table as inputs of a model: which columns, their cells as numbers, and remarks on doubtful cells."""

from __future__ import annotations

import csv
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from ..models.likelihoods import Bernoulli, Binomial, Likelihood, Poisson, StudentT
from .files import pandas

if TYPE_CHECKING:
    from pandas import DataFrame, Series

    from ..core.value import Json

# The formats of dates: with the year first, with months in words, and d/m/y or m/d/y. The cells of a column together
# decide between the last two.
_DATE = re.compile(
    r"\s*(\d{4}[-/.]\d\d?[-/.]\d\d?|\d\d?[-/.]\d\d?[-/.](\d{4}|\d\d)|\d{4}-\d\d\s*$|"
    r"\d\d?[ -][a-z]{3,}[ ,.-]+\d{2,4}|[a-z]{3,}[ .]+\d\d?,? \d{4})(?!\d)",
    re.IGNORECASE,
)
_EITHER = re.compile(r"\s*(\d\d?)([-/.])(\d\d?)[-/.]\d")
_TIME = re.compile(r"\s*\d\d?:\d\d")
# The units of dates as numbers, in nanoseconds, and the precision to which such numbers are rounded when they become
# dates again.
_UNITS = {"days": (86_400 * 10**9, "s"), "hours": (3600 * 10**9, "s"), "seconds": (10**9, "ms")}
_THOUSANDS = re.compile(r"\s*[-+]?\d{1,3}(([,.' \u00a0\u202f])\d{3})(\2\d{3})*([.,]\d+)?\s*$")
# Numbers that mark missing values in many files of measurements.
_MARKS = {sign * mark for sign in (-1, 1) for mark in (99.0, 999.0, 9999.0, 99999.0, 999.9, 9999.9, 1e20, 1e30)}


@dataclass(frozen=True)
class EncodedColumns:
    """The columns of a table that are inputs of a model. A column of categories becomes a column of 0 and 1 for each
    category. Dates become numbers of days, hours or seconds.

    >>> import pandas
    >>> table = pandas.DataFrame({"a": [1.0, 2.0], "kind": ["x", "y"]})
    >>> columns = EncodedColumns(["a", "kind"], {"kind": ["x", "y"]})
    >>> columns.names, columns.matrix(table, "table").tolist()
    (['a', 'kind=x', 'kind=y'], [[1.0, 1.0, 0.0], [2.0, 0.0, 1.0]])
    """

    inputs: list[str]
    categories: dict[str, list[str]] = field(default_factory=dict)
    dates: dict[str, tuple[str, str]] = field(default_factory=dict)  # the inputs that are dates: their unit and origin

    @property
    def names(self) -> list[str]:
        """The names of the model's own columns."""
        return [n for i in self.inputs for n in ([f"{i}={c}" for c in self.categories[i]] if self.coded(i) else [i])]

    @property
    def places(self) -> dict[str, slice]:
        """The columns of the model that belong to each input."""
        widths = [len(self.categories[name]) if self.coded(name) else 1 for name in self.inputs]
        each = zip(self.inputs, widths, accumulate(widths), strict=True)
        return {name: slice(end - width, end) for name, width, end in each}

    def coded(self, name: str) -> bool:
        return name in self.categories

    def matrix(self, frame: DataFrame, source: str, advice: str | None = None) -> np.ndarray:
        """The inputs `[n, d]`, NaN in empty cells. `advice` is added to the error if cells hold text."""
        check_columns(frame, self.inputs, source)
        parts = []
        for name in self.inputs:
            if name in self.dates:
                parts.append(_since(frame, name, source, *self.dates[name])[:, None])
                continue
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
        """The table whose matrix is X `[n, d]`: columns of 0 and 1 are categories again, and numbers of days are dates.

        Cells are empty where X is NaN.
        """
        columns = {}
        for name, place in self.places.items():
            numbers = X[:, place.start]
            if self.coded(name):
                known = np.array([*self.categories[name], None], dtype=object)
                columns[name] = known[np.where(np.isnan(numbers), len(known) - 1, X[:, place].argmax(1))]
            else:
                columns[name] = dates_of(numbers, *self.dates[name]) if name in self.dates else numbers
        return pandas().DataFrame(columns)

    def to_json(self) -> dict[str, Json]:
        return asdict(self)

    @classmethod
    def from_json(cls, notes: Mapping[str, Json]) -> EncodedColumns:
        inputs, categories, dates = notes["inputs"], notes.get("categories", {}), notes.get("dates", {})
        return cls(
            list(cast(Sequence[str], inputs)),
            dict(cast(Mapping[str, list[str]], categories)),
            {name: (unit, since) for name, (unit, since) in cast(Mapping[str, list[str]], dates).items()},
        )


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
    dates += ", or leave it out with --exclude" if advice is None else ""
    if column.dtype.kind in "mM":
        raise ValueError(dates)
    text = column.astype(str).str.strip()
    decimal = frame.attrs.get("decimal", ".")  # a column that contains text keeps its decimal commas
    plain = text.str.replace(",", ".", regex=False) if decimal == "," else column
    converted = pandas().to_numeric(plain, errors="coerce")
    bad = converted.isna() & column.notna() & (text != "")
    if bool(bad.any()):
        row = int(np.flatnonzero(bad.to_numpy())[0])
        word, number = str(column.iloc[row]), f"1234{decimal}5"
        if _DATE.match(word) or _TIME.match(word):
            raise ValueError(f"{dates} ({word!r} in row {row + 1})")
        if _THOUSANDS.match(word):
            raise ValueError(
                f"{source}: column {name!r} holds {word!r} in row {row + 1} ({int(bad.sum())} of {len(column)} cells), "
                f"with a separator of thousands or another decimal sign; write plain numbers, such as {number}"
            )
        if advice is None:
            advice = f"leave it out with --exclude {quoted(name)}, correct it, or, if it names categories, add "
            advice += f"--encode {quoted(name)}"
        where = f"{source}: column {name!r} holds text ({word!r} in row {row + 1}; {int(bad.sum())} of {len(column)}"
        raise ValueError(f"{where} cells), expected plain numbers such as {number}, or empty cells; {advice}")
    return converted.to_numpy(dtype=float, na_value=np.nan)


def quoted(name: str) -> str:
    """The name of a column, quoted so that a shell and `listed` read it as one name.

    >>> from matheron.tables.encoding import quoted
    >>> print(quoted("depth"), quoted("Order ID"), quoted("conc, mg/L"))
    depth 'Order ID' '"conc, mg/L"'
    """
    listed_name = '"' + name.replace('"', '""') + '"' if "," in name or '"' in name else name
    return shlex.quote(listed_name)


def find_dates(frame: DataFrame, name: str, source: str) -> tuple[str, str] | None:
    """The unit and the origin with which a column of dates becomes numbers; None for any other column.

    >>> import pandas
    >>> find_dates(pandas.DataFrame({"day": ["2024-03-01", "2024-03-09"]}), "day", "table")
    ('days', '2024-03-01')
    """
    dates = _as_dates(frame[name], name, source)
    if dates is None or not bool(dates.notna().any()):
        return None
    first, last = dates.min(), dates.max()
    midnights = bool((dates.dropna() == dates.dropna().dt.normalize()).all())
    hours = (last - first).total_seconds() / 3600
    unit, step = ("days", "D") if midnights or hours >= 48 else ("hours", "h") if hours >= 2 else ("seconds", "s")
    since = first.floor(step)
    return unit, str(since.date()) if since == since.normalize() and since.tz is None else since.isoformat()


def date_of(word: str, unit: str, since: str) -> float:
    """A date as text, as a number; ValueError if the text is not a date."""
    return float(_since(pandas().DataFrame({"date": [word.strip()]}), "date", word, unit, since)[0])


def dates_of(numbers: np.ndarray, unit: str, since: str) -> Series:
    """Numbers `[n]` as dates, to the second."""
    nanoseconds, rounding = _UNITS[unit]
    pd = pandas()
    spans = pd.Series(numbers).mul(nanoseconds).round().astype("Int64")
    return (pd.Timestamp(since) + pd.to_timedelta(spans, unit="ns")).dt.round(rounding)


def _since(frame: DataFrame, name: str, source: str, unit: str, since: str) -> np.ndarray:
    """A column of dates as numbers `[n]`, NaN where a cell is empty."""
    column, first = frame[name], pandas().Timestamp(since)
    dates = _as_dates(column, name, source)
    if dates is None and bool(column.isna().all()):
        return np.full(len(column), np.nan)
    if dates is None:
        example = column.dropna().iloc[0]
        raise ValueError(f"{source}: column {name!r} holds {example!r}, expected dates, such as {since}")
    if dates.dt.tz is not None:
        dates = dates.dt.tz_convert("UTC").dt.tz_localize(None)
    first = first if first.tz is None else first.tz_convert("UTC").tz_localize(None)
    spans = (dates - first).dt.total_seconds().to_numpy(dtype=float, na_value=np.nan)
    return spans * (1e9 / _UNITS[unit][0])


def _as_dates(column: Any, name: str, source: str) -> Series | None:
    """A column as dates; None if its first cell is not a date, ValueError if a later one is not."""
    pd = pandas()
    if column.dtype.kind == "M":
        return column
    filled = column[column.notna()]
    if column.dtype.kind in "biufm" or not len(filled):
        return None
    if pd.api.types.infer_dtype(filled) in ("date", "datetime", "datetime64"):
        return pd.to_datetime(column)
    text = filled.astype(str).str.strip()
    first = str(text.iloc[0])
    if not _DATE.match(first):
        return None
    wanted = {"errors": "coerce", "utc": bool(re.search(r":\d\d.*(Z|[-+]\d\d:?\d\d)$", first))}
    if either := _EITHER.match(first):
        wanted["dayfirst"] = either[2] == "." or _day_first(text, name, source)
    iso = re.match(r"\d{4}-\d\d", first)
    dates = pd.to_datetime(column, format="ISO8601" if iso else "mixed", **wanted)
    bad = np.flatnonzero(dates.isna().to_numpy() & column.notna().to_numpy())
    if len(bad):
        word, row = str(column.iloc[bad[0]]), int(bad[0]) + 1
        raise ValueError(
            f"{source}: column {name!r} holds dates, such as {first!r}, but {word!r} in row {row} is none; correct it, "
            f"or leave the column out with --exclude {quoted(name)}"
        )
    return dates


def _day_first(text: Series, name: str, source: str) -> bool:
    """Whether 03/04/2024 means the third of April, as far as the cells of the column determine it."""
    parts = text.str.extract(r"^(\d\d?)[-/.](\d\d?)").astype(float)
    days, months = bool((parts[0] > 12).any()), bool((parts[1] > 12).any())
    if days == months:
        raise ValueError(
            f"{source}: column {name!r} holds dates such as {text.iloc[0]!r}, whose day and month cannot be told "
            "apart; write them as 2024-12-31"
        )
    return days


def no_data_remark(name: str, values: np.ndarray) -> str | None:
    """A remark on a column in which a number such as -9999, far from all others, seems to mark missing values.

    >>> import numpy as np
    >>> no_data_remark("z", np.array([1.0, 2.5, -9999.0, 2.0]))
    'z is -9999 in 1 of 4 rows: if that means no data, empty these cells'
    """
    for mark in _MARKS.intersection(np.unique(values).tolist()):
        rest = values[values != mark]
        if len(rest) > 1 and np.abs(rest - mark).min() > 2 * np.ptp(rest):
            times = len(values) - len(rest)
            return f"{name} is {mark:g} in {times} of {len(values)} rows: if that means no data, empty these cells"
    return None


def copies_remark(rows: np.ndarray) -> str | None:
    """A remark on a table `[n, c]` in which whole rows are repeated.

    >>> import numpy as np
    >>> copies_remark(np.array([[1.0, 2.0], [3.0, 4.0], [1.0, 2.0]]))
    '1 row is a copy of others: the fit treats equal values as repeated measurements with little noise'
    """
    copies = len(rows) - len(np.unique(rows, axis=0))
    if not copies:
        return None
    one = "1 row is a copy" if copies == 1 else f"{copies} rows are copies"
    return f"{one} of others: the fit treats equal values as repeated measurements with little noise"


def listed(words: str | None) -> list[str] | None:
    """The names in the text a,b,c; None if nothing was given. A name that contains a comma is in double quotes.

    >>> from matheron.tables.encoding import listed
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


LIKELIHOODS = ("bernoulli", "probit", "binomial", "poisson", "student-t")
_YES, _NO = ("yes", "y", "true", "t", "present", "positive"), ("no", "n", "false", "f", "absent", "negative")


@dataclass(frozen=True)
class OutcomeColumn:
    """A likelihood by its name, and the column of exposures or trials that it takes.

    >>> from matheron.tables.encoding import OutcomeColumn
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
