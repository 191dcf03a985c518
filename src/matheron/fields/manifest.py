"""Manifest: which blocks of a file are written, so that a write that was killed resumes where it was."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from ..value import Json


class Manifest:
    """A file of lines: first what is being written, then a line for every block that is there.

    A kill in the middle of a line leaves a torn one, which is not counted: that block is computed again.
    """

    def __init__(self, path: Path, header: Mapping[str, Json]) -> None:
        self.path, self.header = path, json.loads(json.dumps(header))
        self.torn = path.exists() and not path.read_bytes().endswith(b"\n")
        lines = self._lines() if path.exists() else []
        if lines and lines[0] != self.header:
            raise ValueError(
                f"{path.name}: an unfinished write of another field (or with other chunks) is there; finish that "
                "one, or replace it with overwrite=True (--overwrite at the command line)"
            )
        self.done = {line for line in lines[1:] if isinstance(line, str)}

    def begin(self) -> None:
        """Start anew: nothing is written yet. The file appears whole, or not at all."""
        temporary = self.path.with_name(self.path.name + ".new")
        temporary.write_text(json.dumps(self.header) + "\n")
        os.replace(temporary, self.path)
        self.done = set()

    def add(self, block: str) -> None:
        with self.path.open("ab") as file:
            file.write(("\n" * self.torn + json.dumps(block) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())
        self.torn = False
        self.done.add(block)

    def end(self) -> None:
        self.path.unlink()

    def _lines(self) -> list[Json]:
        found = []
        for line in self.path.read_bytes().split(b"\n")[:-1]:  # what follows the last newline is torn
            try:
                found.append(json.loads(line))
            except ValueError:
                continue  # torn, or the end of one
        return found
