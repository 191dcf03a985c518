"""The dialect of a CSV file, from its first bytes: encoding, separator, decimal sign, and where its names are."""

from __future__ import annotations

import re
from pathlib import Path

# Bytes of a file that are looked at.
HEAD = 1 << 16
_SEPARATORS = (",", ";", "\t", "|")
_SPACES = r"\s+"


def dialect(head: bytes, path: Path) -> dict[str, object]:
    """Arguments of pandas' `read_csv` for a file that begins with these bytes.

    >>> from pathlib import Path
    >>> dialect(b"# heights\\nx;z\\n0,5;1,25\\n", Path("a.csv"))
    {'sep': ';', 'decimal': ',', 'encoding': 'utf-8-sig', 'skiprows': 1}
    """
    text, encoding = _text(head, path)
    if text.lstrip()[:1] in ("{", "["):
        raise ValueError(f"{path} looks like JSON: expected a CSV file, or a name that ends in .parquet")
    lines = text.splitlines()
    above = _comments_above(lines)
    body = [line.strip() for line in lines[above:] if line.strip()]
    if not body:
        raise ValueError(f"{path} is empty" if not above else f"{path} has comments but no table")
    separator = _separator(body)
    decimal = "." if separator == "," else _decimal(body[1:], separator)
    read: dict[str, object] = {"sep": separator, "decimal": decimal, "encoding": encoding, "skiprows": above}
    if above:  # the last comment may hold the names, as in files of NumPy's savetxt
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
    """How many lines stand above the header, the last of them a comment, or Excel's word on the separator."""
    above = 0
    for i, line in enumerate(lines):
        if line.lstrip().lower().startswith(("#", "sep=")):
            above = i + 1
        elif line.strip():
            break
    return above


def _separator(body: list[str]) -> str:
    """The sign that is most frequent in the header; spaces where there is none and the next row has as many cells."""
    header = body[0]
    found = max(_SEPARATORS, key=header.count)
    words = len(header.split())
    if found not in header and words > 1 and all(len(line.split()) == words for line in body[1:2]):
        return _SPACES
    return found


def _cells(line: str, separator: str) -> list[str]:
    cells = line.split() if separator == _SPACES else line.split(separator)
    return [cell.strip() for cell in cells]
