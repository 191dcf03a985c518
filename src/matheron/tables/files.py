"""Tables in files: CSV and Parquet, read whole or in chunks, and written."""

from __future__ import annotations

import os
import re
import secrets
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from pandas import DataFrame
    from pyarrow.parquet import ParquetWriter

PARQUET = (".parquet", ".pq")
# The number of bytes of a file that decide its dialect.
HEAD = 1 << 16
_SEPARATORS = (",", ";", "\t", "|")
_SPACES = r"\s+"


def read_table(path: str | os.PathLike[str], *, progress: bool = False) -> DataFrame:
    """A whole file as a pandas DataFrame, with a progress bar where asked for.

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
        frame = _with_index(frame)
    else:
        frame, decimal = _read_csv(path, progress=progress)
        frame.attrs["decimal"] = decimal
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
                    frame = _with_index(batch.to_pandas())
                    _check_header(frame, path)
                    yield frame
        except pyarrow.ArrowInvalid as error:
            raise ValueError(f"{path} is not a Parquet file that can be read: {_first_line(error)}") from error
        return
    reader, decimal = _read_csv(path, chunksize=rows)
    with reader as chunks:
        while True:
            with _reading(path):
                frame = next(chunks, None)
            if frame is None:
                return
            frame.attrs["decimal"] = decimal
            _check_header(frame, path)
            yield frame


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn errors of pandas into sentences. A row that is longer than the header is an error and is not cut."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", pandas().errors.ParserWarning)
        try:
            yield
        except pandas().errors.ParserWarning:
            raise ValueError(f"{path}: rows have more cells than there are column names in the header") from None
        except UnicodeDecodeError:
            raise ValueError(
                f"{path} has letters that are not UTF-8, UTF-16 or Windows-1252: save it as UTF-8"
            ) from None
        except (ValueError, OSError, EOFError) as error:
            raise ValueError(f"{path} is not a table that can be read: {_first_line(error)}") from error


class TableWriter:
    """A CSV or Parquet file (by its ending) that is written one DataFrame at a time. It appears when it is complete."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        check_folder(self.path)
        if not self.path.name.endswith((".csv", ".csv.gz", *PARQUET)):
            raise ValueError(f"{self.path}: expected a name that ends in .csv, .csv.gz or .parquet")
        pandas()
        suffix = ".csv.gz" if self.path.name.endswith(".gz") else ""
        self.temporary = self.path.with_name(f".{self.path.name}.{secrets.token_hex(8)}{suffix}")
        self.parquet: ParquetWriter | None = None
        self.rows = 0

    def write(self, frame: DataFrame) -> None:
        with _writing(self.path):
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
        try:
            if self.parquet is not None:
                # Only the first error is reported.
                with _writing(self.path) if kind is None else suppress(OSError):
                    self.parquet.close()
            if kind is None and self.rows:
                os.replace(self.temporary, self.path)
        finally:
            self.temporary.unlink(missing_ok=True)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file with this content. If that fails, for example on a full disk, the old file stays and an OSError is
    raised."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with _writing(path):
            temporary.write_bytes(content)
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Add the name of the file to errors that occur while it is written."""
    try:
        yield
    except OSError as error:
        words = _first_line(error) if error.errno is None else os.strerror(error.errno)
        raise OSError(error.errno or 0, f"cannot be written: {words}", str(path)) from error


def check_folder(file: Path) -> None:
    """Raise an error early if a file cannot be written, by writing a temporary file in the same folder."""
    if not file.parent.is_dir():
        raise FileNotFoundError(f"no folder {file.parent} to write {file.name} into: make it first")
    try:
        tempfile.TemporaryFile(dir=file.parent).close()
    except OSError as error:
        raise PermissionError(
            f"nothing can be written into {file.parent}: {error.strerror}; name another place"
        ) from None


def pandas() -> ModuleType:
    """Import pandas and pyarrow; the error for a missing one names the extra that installs it."""
    try:
        import pandas
        import pyarrow  # noqa: F401
    except ImportError as error:
        from ..core.checks import missing_extra

        raise missing_extra("tables need pandas and pyarrow", "tables", error) from error
    return pandas


def _existing(path: str | os.PathLike[str]) -> Path:
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder, not a table")
    if not path.is_file():
        link = path.is_symlink()
        raise FileNotFoundError(f"{path} is a symbolic link that leads to no file" if link else f"no file {path}")
    if path.stat().st_size == 0:
        raise ValueError(f"{path} is empty")
    return path


def _is_parquet(path: Path) -> bool:
    return path.name.endswith(PARQUET)


def _read_csv(path: Path, *, progress: bool = False, **settings: Any) -> tuple[Any, str]:
    """Call pandas' `read_csv` with the dialect of the file's first lines; also return the decimal sign."""
    common = pandas().io.common
    with _reading(path), common.get_handle(path, "rb", compression="infer", is_text=False) as handles:
        head = handles.handle.read(HEAD)
    found = dialect(head, path)
    settings = {"skipinitialspace": True, "index_col": False, "low_memory": False, **found, **settings}
    decimal = str(found["decimal"])
    if not progress:
        with _reading(path):
            return pandas().read_csv(path, **settings), decimal
    from ..core.progress import progress_bar

    compression = common.infer_compression(path, "infer")
    with progress_bar(transient=True) as bar, bar.open(path, "rb", description=f"reading {path.name}") as file:
        with _reading(path):
            return pandas().read_csv(file, compression=compression, **settings), decimal


def _with_index(frame: DataFrame) -> DataFrame:
    """The index of a Parquet file of pandas, where it has a name, as columns."""
    return frame.reset_index() if any(name is not None for name in frame.index.names) else frame


def _check_header(frame: DataFrame, path: Path) -> None:
    names = [str(name) for name in frame.columns]
    if names and all(map(is_number, names)):
        raise ValueError(f"{path}: the first row is numbers ({', '.join(names[:3])}, ...), expected column names")
    frame.columns = [name.strip() for name in names]


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].removeprefix("Error tokenizing data. C error: ") if lines else type(error).__name__


# The dialect of a CSV file is found from its first bytes: encoding, separator, decimal sign, and where its names are.
# pandas itself finds only the separator (sep=None), with its Python engine. It reads 8 of the 18 kinds of files in
# tests/tables, and takes 0.51 s for 300,000 rows. Its C engine takes 0.05 s if it is given the dialect.


def dialect(head: bytes, path: Path) -> dict[str, object]:
    """Arguments of pandas' `read_csv` for a file that begins with these bytes.

    >>> from pathlib import Path
    >>> dialect(b"# heights\\nx;z\\n0,5;1,25\\n", Path("a.csv"))
    {'sep': ';', 'decimal': ',', 'encoding': 'utf-8-sig', 'skiprows': 1}
    """
    text, encoding = _text(head, path)
    if kind := {"{": "JSON", "[": "JSON", "<": "a web page"}.get(text.lstrip()[:1]):
        raise ValueError(f"{path} looks like {kind}: expected a CSV file, or a name that ends in .parquet")
    lines = text.splitlines()
    above = _comments_above(lines)
    body = [line.strip() for line in lines[above:] if line.strip()]
    if not body:
        raise ValueError(f"{path} is empty" if not above else f"{path} has comments but no table")
    separator = _separator(body)
    decimal = "." if separator == "," else _decimal(body[1:], separator)
    read: dict[str, object] = {"sep": separator, "decimal": decimal, "encoding": encoding, "skiprows": above}
    if above:  # the names can be in the last comment, as in files of NumPy's savetxt
        names = _cells(lines[above - 1].strip().lstrip("#").strip(), separator)
        first = [cell.replace(",", ".") if decimal == "," else cell for cell in _cells(body[0], separator)]
        if len(names) == len(first) and all(map(is_number, first)) and not any(map(is_number, names)):
            read |= {"header": None, "names": names}
    return read


def _decimal(rows: list[str], separator: str) -> str:
    """The decimal sign of most of the cells that have one."""
    text = "\n".join(cell for row in rows for cell in _cells(row, separator))
    commas, points = (
        len(re.findall(rf'^"?[-+]?\d*{sign}\d+(e[-+]?\d+)?"?$', text, re.M | re.I)) for sign in (",", r"\.")
    )
    return "," if commas > points else "."


def is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _text(head: bytes, path: Path) -> tuple[str, str]:
    """The text, and its encoding."""
    encoding = "utf-16" if head[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    if b"\x00" in head and encoding != "utf-16":
        raise ValueError(
            f"{path} is not text: expected a CSV file (save a sheet as one), or a name that ends in .parquet"
        )
    try:
        return head.decode(encoding, errors="strict" if len(head) < HEAD else "ignore"), encoding
    except UnicodeDecodeError:
        return head.decode("cp1252", errors="replace"), "cp1252"


def _comments_above(lines: list[str]) -> int:
    """The number of lines above the header: comments, or the line with which Excel states the separator."""
    above = 0
    for i, line in enumerate(lines):
        if line.lstrip().lower().startswith(("#", "sep=")):
            above = i + 1
        elif line.strip():
            break
    return above


def _separator(body: list[str]) -> str:
    """The most frequent separator in the header; spaces if there is none and the next row has as many cells."""
    header = body[0]
    found = max(_SEPARATORS, key=header.count)
    words = len(header.split())
    if found not in header and words > 1 and all(len(line.split()) == words for line in body[1:2]):
        return _SPACES
    return found


def _cells(line: str, separator: str) -> list[str]:
    cells = line.split() if separator == _SPACES else line.split(separator)
    return [cell.strip() for cell in cells]
