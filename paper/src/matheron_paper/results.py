"""Results: a file that every finished trial is appended to at once.

JSON lines. The first is a header that says which run this is; each of the others is one trial. A line is on the disk
before the next trial is counted as done, so a killed run loses the trials in flight and no others. A line that was torn
in the middle is cut away when the file is next opened.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

try:
    import fcntl
except ImportError:  # Windows has no fcntl, so that two runs at once on the same file are not noticed
    fcntl = None

from .base import Experiment, RefusedError, experiment
from .report import Cell, Row

FORMAT = 1
# The fields that headers of older files lack. For the runs in these files, they had the values of today.
_ADDED = ("features",)
# The fields of a trial's line that a run needs.
_FIELDS = {"case": dict, "trial": int, "device": str}
_FIELDS_OF_DONE = {**_FIELDS, "seconds": int | float, "result": dict}
# A function of (older version, case): whether trials of that version are still valid for the case.
Unchanged = Callable[[int, Mapping[str, Cell]], bool]
_FIRST_BYTES = b'{"matheron results"'


class ResultsError(RefusedError):
    """The file holds another run, or is in use, or is damaged."""


class Results:
    """The results of one run, read back and open for more.

    Args:
        path: the file; it is made, with its folders, where there is none.
        header: which run this is. A file with another header is refused.
        made_with: noted beside the header, and not compared.
        unchanged: (older version, case) -> whether a trial of that version counts. Of a file of an older version these
            are kept, and the others run anew; lines that are added say their version. Without it such a file is
            refused.
    """

    def __init__(
        self,
        path: Path,
        header: Mapping[str, Cell],
        made_with: Mapping[str, Cell] | None = None,
        unchanged: Unchanged | None = None,
    ) -> None:
        self.path, self._version, self._unchanged = path, header.get("version"), unchanged
        self._older: int | None = None  # the version of the file, if it is older
        self.records: dict[str, Row] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(path, "a+b")
        try:
            self._lock()
            lines, end = self._whole_lines()
            if lines:
                self._check(lines[0], header)
                for number, line in enumerate(lines[1:], start=2):
                    self._take(self._parse(line, number))
            if end < self._file.seek(0, os.SEEK_END):  # the last line is incomplete
                self._file.truncate(end)
                os.fsync(self._file.fileno())
            if not lines:
                self._write({"matheron results": FORMAT, **header, "made with": dict(made_with or {})})
                _sync_folder(path.parent)
        except BaseException:
            self._file.close()
            raise

    def append(self, key: str, record: Mapping[str, Cell]) -> None:
        """Add a trial; it is on the disk when this returns. A later record of the same key replaces the earlier."""
        line = {"key": key, **record}
        if self._older is not None:
            line["version"] = self._version
        self._write(line)
        self._take(line)

    @property
    def done(self) -> set[str]:
        """The keys of the trials that ended well."""
        return {key for key, record in self.records.items() if "error" not in record}

    def check_fields(self) -> None:
        """Every trial's line holds what a run needs of it; ResultsError names one that does not."""
        for key, record in self.records.items():
            for name, kind in (_FIELDS if "error" in record else _FIELDS_OF_DONE).items():
                if not isinstance(record.get(name), kind) or isinstance(record[name], bool):
                    found = "nothing" if name not in record else repr(record[name])[:40]
                    raise ResultsError(
                        f"{self.path}: the line of trial {key} has {found} for {name!r}, not what this experiment has; "
                        "delete that line, or use another --out"
                    )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # if the disk is full, there was an error when the line was written
            self._file.close()

    def _write(self, line: Mapping[str, Cell]) -> None:
        try:
            self._file.write(json.dumps(line).encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:  # the incomplete line is removed when the file is next opened
            raise ResultsError(
                f"{self.path}: a trial could not be written ({error.strerror or error}); make room, and the same "
                "command resumes with the trials that are left"
            ) from error

    def _take(self, record: Row) -> None:
        if current(record, self._older, self._version, self._unchanged):
            self.records[record["key"]] = record

    def _lock(self) -> None:
        if fcntl is None:
            return
        try:
            # the system releases the lock however the process ends
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ResultsError(
                f"{self.path}: another run is writing to this file; wait for it, or use another --out"
            ) from None

    def _whole_lines(self) -> tuple[list[bytes], int]:
        """The file's lines, and where they end: what a kill left of a last one is not among them."""
        self._file.seek(0)
        content = self._file.read()
        *lines, torn = content.split(b"\n")
        end = len(content) - len(torn)
        # after a crash, the middle of a line can be missing although its end is there
        if len(lines) > 1 and not _is_json(lines[-1]):
            end -= len(lines.pop()) + 1
        if not lines and not (torn.startswith(_FIRST_BYTES) or _FIRST_BYTES.startswith(torn.rstrip(b"\0"))):
            raise self._foreign()
        return lines, end

    def _parse(self, line: bytes, number: int) -> Row:
        try:
            record = json.loads(line)
            if not isinstance(record["key"], str):
                raise TypeError
        except (ValueError, TypeError, KeyError):
            raise ResultsError(f"{self.path}: line {number} is damaged; delete that line, or the file") from None
        return record

    def _foreign(self) -> ResultsError:
        return ResultsError(f"{self.path}: expected a results file of matheron; use another --out")

    def _check(self, line: bytes, header: Mapping[str, Cell]) -> None:
        found = json.loads(line) if _is_json(line) else None
        if not isinstance(found, dict) or found.get("matheron results") != FORMAT:
            raise self._foreign()
        known = {k: v for k, v in header.items() if k in found or k not in _ADDED}
        version = found.get("version")
        if self._unchanged and isinstance(version, int) and isinstance(self._version, int) and version < self._version:
            self._older = version
            del known["version"]
        differences = list(_differences({k: found.get(k) for k in known}, known))
        if differences:
            raise ResultsError(
                f"{self.path} holds a run with other settings ({'; '.join(differences)}); runs are never mixed: use "
                "another --out, or delete the file"
            )


def read(path: Path, maker: Callable[[str], Experiment] = experiment) -> tuple[Row, list[Row], list[Row]]:
    """The header of a file, its trials that count and ended well, and those that failed.

    Of a file that a newer version of the experiment has gone on with, the trials count that count for that version; one
    that none has is taken as it is. `maker` finds the experiment by its name.
    """
    written = [line for line in path.read_bytes().split(b"\n") if line]
    if len(written) > 1 and not _is_json(written[-1]):  # a run that was killed, or that is writing, left it incomplete
        written.pop()
    header, *lines = [json.loads(line) for line in written] or [None]
    if not isinstance(header, dict) or header.get("matheron results") != FORMAT:
        raise ResultsError(f"{path}: its first line is not the header of a results file")
    of = maker(header["experiment"])
    older = header["version"] if any("version" in line for line in lines) else None
    # a later record of a trial replaces the earlier
    last = {line["key"]: line for line in lines if current(line, older, of.version, of.unchanged)}.values()
    good = [line for line in last if "error" not in line]
    return header, good, [line for line in last if "error" in line]


def current(record: Row, older: int | None, version: Cell, unchanged: Unchanged | None) -> bool:
    """Whether a line of a file whose header says an older version counts as one of this version."""
    if older is None or record.get("version") == version:
        return True
    if unchanged is None or not isinstance(record.get("case"), dict):
        return False
    return unchanged(record.get("version", older), record["case"])


def _differences(there: Cell, here: Cell, name: str = ""):
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        for key in sorted({*there, *here}):
            yield from _differences(there.get(key), here.get(key), f"{name}.{key}".strip("."))
    elif there != here:
        yield f"{name} is {there!r} there and {here!r} here"


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _sync_folder(folder: Path) -> None:
    """Make a new file's name as lasting as its content."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
