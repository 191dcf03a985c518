"""How far a run is, and about how long it will take: a bar in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Self

from rich import progress as bars
from rich.console import Console

from .base import Case, Trial, canonical

# Seconds between lines if the output is not a terminal.
_LINE_EVERY = 10.0


class Costs:
    """What trials have cost so far, in seconds: by case where it is known, else over all."""

    def __init__(self) -> None:
        self._by_case: dict[str, list[float]] = defaultdict(list)

    def add(self, case: Case, seconds: float) -> None:
        self._by_case[canonical(dict(case))].append(seconds)

    def _known(self, trial: Trial) -> list[float]:
        return self._by_case.get(canonical(dict(trial.case))) or [s for known in self._by_case.values() for s in known]

    def mean(self, trial: Trial) -> float:
        known = self._known(trial)
        return sum(known) / len(known) if known else 0.0

    def longest(self, trial: Trial) -> float:
        return max(self._known(trial), default=0.0)


class Progress:
    """Counts finished trials; `left` is the estimate of the seconds that remain."""

    def __init__(self, console: Console, label: str, total: int) -> None:
        self.console, self.label, self.total, self.finished = console, label, total, 0
        self._last_line = time.monotonic()
        columns = [bars.TextColumn("{task.description}"), bars.BarColumn(), bars.MofNCompleteColumn()]
        columns += [bars.TimeElapsedColumn(), bars.TextColumn("{task.fields[left]}")]
        self._bar = bars.Progress(*columns, console=console, disable=not console.is_terminal)
        self._task = self._bar.add_task(label, total=total, left="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def advance(self, left: float) -> None:
        self.finished += 1
        words = f"about {duration(left)} left" if self.finished < self.total else ""
        self._bar.update(self._task, completed=self.finished, left=words)
        due = self.finished == self.total or time.monotonic() - self._last_line >= _LINE_EVERY
        if due and not self.console.is_terminal:
            self._last_line = time.monotonic()
            line = f"{self.label}: {self.finished} of {self.total} trials" + (f", {words}" if words else "")
            self.console.print(line, highlight=False)

    def part(self, of: float) -> None:
        """That much of the next trials is done, in trials."""
        self._bar.update(self._task, completed=self.finished + of)

    def note(self, text: str) -> None:
        """A line of its own, above the bar."""
        self.console.print(text, highlight=False, style="yellow", markup=False)


def duration(seconds: float) -> str:
    """Seconds in words: 40 s, 3 min, 2 h 10 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
