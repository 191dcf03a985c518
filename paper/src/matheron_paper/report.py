"""Report: what an experiment shows, as a table (CSV, Markdown, the terminal) and figures (PNG, PDF)."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table as RichTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

QUARTILES = ("25%", "median", "75%")

# The value of a field in a line of results. Each experiment has its own fields.
Cell = Any
Row = dict[str, Cell]
Rows = Sequence[Mapping[str, Cell]]


@dataclass(frozen=True)
class Table:
    """A title, the columns' names, and rows of numbers and words.

    `compact` is the same in fewer lines, to be read in its place; the CSV file has every row and digit.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    compact: Table | None = None

    def markdown(self) -> str:
        if self.compact:
            return self.compact.markdown()
        lines = ["| " + " | ".join(self.columns) + " |", "|" + "---|" * len(self.columns)]
        lines += ["| " + " | ".join(map(shown, row)) + " |" for row in self.rows]
        return "\n".join(lines) + "\n"

    def save(self, stem: Path) -> list[Path]:
        """Write `stem.csv`, with every digit, and `stem.md`, to be read."""
        paths = [stem.with_name(stem.name + suffix) for suffix in (".csv", ".md")]
        with open(paths[0], "w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([self.columns, *self.rows])
        paths[1].write_text(f"**{self.title}**\n\n{self.markdown()}")
        return paths

    def print(self, console: Console) -> None:
        if self.compact:
            return self.compact.print(console)
        table = RichTable(title=self.title, title_justify="left")
        for i, name in enumerate(self.columns):
            words = any(isinstance(row[i], str) for row in self.rows)
            table.add_column(name, justify="left" if words else "right")
        for row in self.rows:
            table.add_row(*map(shown, row))
        console.print(table)


@dataclass(frozen=True)
class Report:
    """A table, figures by name ("" is the main one; each is made when it is asked for), and remarks."""

    table: Table
    figures: Mapping[str, Callable[[], Figure]] = field(default_factory=dict)
    remarks: Sequence[str] = ()

    def save(self, stem: Path) -> list[Path]:
        """Write the table and the figures side by side, `stem.csv`, `stem.md`, `stem.png`, `stem.pdf`.

        Without matplotlib the figures are left out: ImportError, after the table is safe.
        """
        paths = self.table.save(stem)
        from .style import save_figure

        for name, figure in self.figures.items():
            paths += save_figure(figure, stem.with_name("-".join(filter(None, [stem.name, name]))))
        return paths


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """The quartiles; the middle one is the median."""
    low, middle, high = np.quantile(np.asarray(values, dtype=float), [0.25, 0.5, 0.75])
    return float(low), float(middle), float(high)


def grouped(rows: Rows, by: Sequence[str], value: str) -> dict[tuple[Cell, ...], list[float]]:
    """The values of rows that agree on `by`, in the order in which the groups are first met."""
    groups: dict[tuple[Cell, ...], list[float]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in by), []).append(row[value])
    return groups


def quartile_table(title: str, rows: Rows, by: Sequence[str], value: str, across: str | None = None) -> Table:
    """One line a group: how many trials, and the quartiles of the value. Read with one of `by` across the page."""
    groups = grouped(rows, by, value)
    lines = [(*group, len(values), *quartiles(values)) for group, values in groups.items()]
    compact = None if across is None else _across(title, groups, by, across)
    return Table(title, [*by, "trials", *QUARTILES], lines, compact)


def _across(title: str, groups: Mapping[tuple[Cell, ...], Sequence[float]], by: Sequence[str], across: str) -> Table:
    """Medians, with quartiles in brackets: a column for each value of `across`."""
    i = list(by).index(across)
    columns = sorted({group[i] for group in groups})
    lines: dict[tuple[Cell, ...], dict[Cell, Sequence[float]]] = {}
    for group, values in groups.items():
        lines.setdefault(group[:i] + group[i + 1 :], {})[group[i]] = values
    rows = []
    for group, cells in lines.items():
        counts = sorted({len(values) for values in cells.values()})
        trials = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        rows.append([*group, *(_cell(cells.get(column)) for column in columns), trials])
    names = [*by[:i], *by[i + 1 :], *(f"{across} = {column}" for column in columns), "trials"]
    return Table(f"{title}: medians and quartiles", names, rows)


def _cell(values: Sequence[float] | None) -> str:
    if not values:
        return ""
    low, middle, high = map(shown, quartiles(values))
    return middle if len(values) == 1 else f"{middle} ({low} to {high})"


def shown(value: Cell) -> str:
    """A number to three digits, whole numbers and words as they are."""
    if value is None:
        return ""
    return f"{value:.3g}" if isinstance(value, float) else str(value)
