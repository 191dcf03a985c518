"""The demo's numbers as a table."""

from __future__ import annotations

from collections.abc import Callable

from rich.table import Table

from .numbers import Row, Sizes


def table(rows: list[Row], sizes: Sizes) -> Table:
    """A column for each way of sampling; what was not run says so."""
    out = Table()
    out.add_column("")
    for row in rows:
        out.add_column(row.name, justify="right")

    def line(name: str, words: Callable[[Row], str]) -> None:
        out.add_row(name, *[words(row) for row in rows])

    line(f"draw {sizes.num_paths} functions", lambda row: "[dim]none[/dim]" if row.draw is None else duration(row.draw))
    line(f"values at {sizes.few:,} points", lambda row: duration(row.few))
    line(f"values at {sizes.many:,} points", _many)
    line(f"W2 of {sizes.draws:,} draws", lambda row: f"{row.empirical:.3f}")
    line("W2 of their law", lambda row: f"{row.closed_form:.2g}")
    line("error of the mean", lambda row: f"{row.mean_error:.1g}")
    return out


def notes(rows: list[Row], sizes: Sizes) -> list[str]:
    """What the table cannot say in its cells."""
    chance, memory = rows[-1].empirical, sizes.many**2 * 8 / 1e9
    return [
        f"W2: the 2-Wasserstein distance to the exact posterior at {sizes.compared} points. Of the law it is in closed "
        f"form; of {sizes.draws:,} draws it holds chance too. Dense sampling is exact: its {chance:.3f} is all chance.",
        f"* not run. Its covariance needs {memory:.3g} GB; the factorisation alone takes that long, scaled up from "
        f"{sizes.few:,} points by the cube of their number. It gives values, not functions: for one more point it "
        "starts again.",
    ]


def _many(row: Row) -> str:
    return f"[green]{duration(row.many)}[/green]" if row.run else f"[red]over {duration(row.many)} *[/red]"


def duration(t: float) -> str:
    """Seconds in the unit that suits them."""
    for least, unit, name in ((5400, 3600, "hours"), (90, 60, "minutes"), (1, 1, "s")):
        if t >= least:
            return f"{t / unit:.2g} {name}"
    return f"{1e3 * t:.3g} ms" if t < 0.01 else f"{1e3 * t:.0f} ms"
