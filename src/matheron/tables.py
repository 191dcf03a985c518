"""Tables in files: CSV and Parquet, read whole or in chunks, their columns as numbers."""

from __future__ import annotations

import os
import re
import secrets
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Self, cast

import numpy as np

from .dialect import HEAD, dialect, is_number
from .value import Json

if TYPE_CHECKING:
    from pandas import DataFrame
    from pyarrow.parquet import ParquetWriter

PARQUET = (".parquet", ".pq")
_DATE = re.compile(r"\s*(\d{4}[-/.]\d\d?[-/.]\d\d?|\d\d?[-/.]\d\d?[-/.](\d{4}|\d\d)|\d\d?:\d\d)\b")
# Numbers that stand for no number in many files of measurements.
_MARKS = {sign * mark for sign in (-1, 1) for mark in (99.0, 999.0, 9999.0, 99999.0, 999.9, 9999.9, 1e20, 1e30)}


def read_table(path: str | os.PathLike[str]) -> DataFrame:
    """A whole file as a pandas DataFrame.

    CSV files may be separated by commas, semicolons, tabs, bars or spaces, have decimal commas, a byte-order mark,
    comments (#) above the table, or be compressed (.gz, .zip, .xz). The first row must hold the names of the columns;
    it may be the last comment.
    """
    path = _existing(path)
    if _is_parquet(path):
        try:
            frame = pandas().read_parquet(path)
        except (OSError, ValueError) as error:
            raise ValueError(f"{path} is not a Parquet file that can be read: {_first_line(error)}") from error
    else:
        with _reading(path):
            frame = pandas().read_csv(path, **_dialect(path))
    _check_header(frame, path)
    if not len(frame):
        raise ValueError(f"{path} has column names but no rows")
    return frame


def read_chunks(path: str | os.PathLike[str], rows: int) -> Iterator[DataFrame]:
    """A file as DataFrames of at most this many rows."""
    path = _existing(path)
    if _is_parquet(path):
        import pyarrow
        import pyarrow.parquet

        try:
            with pyarrow.parquet.ParquetFile(path) as file:
                for batch in file.iter_batches(batch_size=rows):
                    frame = batch.to_pandas()
                    _check_header(frame, path)
                    yield frame
        except pyarrow.ArrowInvalid as error:
            raise ValueError(f"{path} is not a Parquet file that can be read: {_first_line(error)}") from error
        return
    with _reading(path):
        chunks = pandas().read_csv(path, chunksize=rows, **_dialect(path))
    with chunks:
        while True:
            with _reading(path):
                frame = next(chunks, None)
            if frame is None:
                return
            _check_header(frame, path)
            yield frame


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """What pandas finds wrong with a file, in words; a row that is longer than the header is an error, not cut."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", pandas().errors.ParserWarning)
        try:
            yield
        except pandas().errors.ParserWarning:
            raise ValueError(f"{path}: rows have more cells than there are column names in the header") from None
        except (ValueError, OSError, EOFError) as error:
            raise ValueError(f"{path} is not a table that can be read: {_first_line(error)}") from error


class TableWriter:
    """A CSV or Parquet file, by its name's ending, written a DataFrame at a time; it appears whole, or not at all."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not self.path.parent.is_dir():
            raise ValueError(f"no folder {self.path.parent} to write {self.path.name} into")
        if not self.path.name.endswith((".csv", ".csv.gz", *PARQUET)):
            raise ValueError(f"{self.path}: expected a name that ends in .csv, .csv.gz or .parquet")
        pandas()
        suffix = ".csv.gz" if self.path.name.endswith(".gz") else ""
        self.temporary = self.path.with_name(f".{self.path.name}.{secrets.token_hex(8)}{suffix}")
        self.parquet: ParquetWriter | None = None
        self.rows = 0

    def write(self, frame: DataFrame) -> None:
        if _is_parquet(self.path):
            import pyarrow
            import pyarrow.parquet

            table = pyarrow.Table.from_pandas(frame, preserve_index=False)
            if self.parquet is None:
                self.parquet = pyarrow.parquet.ParquetWriter(self.temporary, table.schema)
            self.parquet.write_table(table)
        else:
            frame.to_csv(self.temporary, mode="w" if self.rows == 0 else "a", header=self.rows == 0, index=False)
        self.rows += len(frame)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if self.parquet is not None:
            self.parquet.close()
        if kind is None and self.rows:
            os.replace(self.temporary, self.path)
        self.temporary.unlink(missing_ok=True)


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
        columns, first = {}, 0
        for name in self.inputs:
            if self.coded(name):
                known = np.array(self.categories[name])
                columns[name] = known[X[:, first : first + len(known)].argmax(1)]
                first += len(known)
            else:
                columns[name] = X[:, first]
                first += 1
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
        raise ValueError(f"{source}: column {name!r} holds text ({text!r} in row {row + 1}; {share}); {advice}")
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


def pandas() -> ModuleType:
    """pandas, and pyarrow beside it; the extra is named where they are missing."""
    try:
        import pandas
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise ImportError(f"tables need pandas and pyarrow: pip install 'matheron[tables]' ({error})") from error
    return pandas


def _existing(path: str | os.PathLike[str]) -> Path:
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder, not a table")
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    if path.stat().st_size == 0:
        raise ValueError(f"{path} is empty")
    return path


def _is_parquet(path: Path) -> bool:
    return path.name.endswith(PARQUET)


def _dialect(path: Path) -> dict[str, object]:
    """How a CSV file is to be read, from its first lines."""
    with pandas().io.common.get_handle(path, "rb", compression="infer", is_text=False) as handles:
        head = handles.handle.read(HEAD)
    return {"skipinitialspace": True, "index_col": False, "low_memory": False, **dialect(head, path)}


def _check_header(frame: DataFrame, path: Path) -> None:
    names = [str(name) for name in frame.columns]
    if names and all(map(is_number, names)):
        raise ValueError(f"{path}: the first row is numbers ({', '.join(names[:3])}, ...), expected column names")
    frame.columns = [name.strip() for name in names]


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].removeprefix("Error tokenizing data. C error: ") if lines else type(error).__name__
