"""One self-contained HTML page of every experiment found in a folder: figures that can be asked, tables, settings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from .base import RefusedError, experiment
from .report import QUARTILES, Cell, Report, Row, Rows, Table, shown
from .results import read

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

# The columns of a table at which its keys end and its measurements begin, and the keys that can be the horizontal axis.
_MEASURED = ("trials", "runs", "studies", *QUARTILES)
_ACROSS = ("n", "steps", "d")
_COLOURS = "#4d4d4d #d55e00 #0072b2 #aa4499 #009e73 #56b4e9 #e69f00 #999933 #cc6677 #332288".split()
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 0 auto; padding: 1rem; color: #222; }
h1, h2 { font-weight: 600; } h2 { margin-top: 3rem; border-top: 1px solid #ddd; padding-top: 1rem; }
nav a { margin-right: 1rem; } .wide { overflow-x: auto; } summary { cursor: pointer; color: #555; }
table { border-collapse: collapse; font-size: 0.85rem; }
th, td { padding: 0.25rem 0.7rem; border-bottom: 1px solid #eee; }
th { text-align: left; } td { text-align: right; } td.word { text-align: left; } .refused { color: #b00020; }
"""


def write_page(folder: Path, out: Path) -> int:
    """Write the page of all results files of a folder, and of the folders in it; how many experiments it shows."""
    from plotly.offline import get_plotlyjs

    if not folder.is_dir():
        raise RefusedError(f"report: expected a folder of results, got {folder}, which is none")
    files = [file for file in sorted(folder.rglob("*.jsonl")) if file.stat().st_size]
    if not files:
        raise RefusedError(
            f"report: {folder} holds no results (*.jsonl); make some: matheron reproduce NAME --out {folder}"
        )
    sections = [_section(number, file, folder) for number, file in enumerate(files)]
    links = "".join(f'<a href="#{number}">{escape(title)}</a>' for number, (title, _, _) in enumerate(sections))
    page = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>matheron: results</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<style>{_STYLE}</style><script>{get_plotlyjs()}</script></head><body>"
        "<h1>Results of matheron's experiments</h1>"
        "<p>Click a name in a legend to switch its curve off and on; drag to zoom, double-click to zoom out.</p>"
        f"<nav>{links}</nav>{''.join(body for _, body, _ in sections)}</body></html>\n"
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page, encoding="utf-8")
    return sum(understood for _, _, understood in sections)


def _section(number: int, file: Path, folder: Path) -> tuple[str, str, bool]:
    """A results file's title, its part of the page, and whether it could be read. One bad file spoils no other."""
    name = str(file.relative_to(folder))
    try:
        header, report, failed = reported(file)
    except (RefusedError, KeyError, TypeError, ValueError, IndexError) as error:
        told = f"{type(error).__name__}: {error}" if not isinstance(error, RefusedError) else str(error)
        body = f'<h2 id="{number}">{escape(name)}</h2><p class="refused">Not understood: {escape(told)}</p>'
        return name, body, False
    title = f"{experiment(header['experiment']).title} ({header['scale']})"
    figure = interactive(report.table).to_html(
        full_html=False,
        include_plotlyjs=False,
        div_id=f"figure-{number}",
        config={"displaylogo": False, "responsive": True},
    )
    remarks = "".join(f"<p>{escape(remark)}</p>" for remark in report.remarks)
    failures = f'<p class="refused">{failed} trials failed.</p>' if failed else ""
    body = (
        f'<section><h2 id="{number}">{escape(title)}</h2><p>{escape(report.table.title)}.</p>'
        f"{failures}{figure}{remarks}"
        f"<details><summary>Table</summary>{_table(report.table)}</details>"
        f"<details><summary>Settings and machine</summary>{_settings(header, name)}</details></section>"
    )
    return title, body, True


def reported(file: Path) -> tuple[Row, Report, int]:
    """The header of a results file, its report, and how many of its trials failed."""
    header, good, failed = read(file)
    if not good:
        raise RefusedError("it has no finished trial yet")
    of = experiment(header["experiment"])
    return header, of.report(good, of.settings(header["scale"])), len(failed)


def interactive(table: Table) -> Figure:
    """A table's medians with their quartiles: curves, a panel for each dimension or quantity; or bars."""
    from plotly.graph_objects import Bar, Figure, Scatter
    from plotly.subplots import make_subplots

    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    keys = table.columns[: min(i for i, name in enumerate(table.columns) if name in _MEASURED)]
    across = next((key for key in _ACROSS if key in keys and len({row[key] for row in rows}) > 1), None)
    if across is None:
        names = [", ".join(shown(row[key]) for key in keys) for row in rows]
        bars = Bar(x=names, y=[row["median"] for row in rows], error_y=_bars(rows), marker_color=_COLOURS[2])
        return _finished(Figure(bars))
    facet = next((key for key in ("quantity", "d") if key in keys and key != across), None)
    panels = sorted({row[facet] for row in rows}) if facet else [None]
    names = [key for key in keys if key not in (across, facet) and not _follows(key, across, rows)]
    figure = make_subplots(
        1, len(panels), subplot_titles=[_name({facet: panel}, [facet]) for panel in panels] if facet else None
    )
    colours: dict[str, str] = {}
    for column, panel in enumerate(panels, start=1):
        curves: dict[str, list[Row]] = {}
        for row in rows:
            if facet is None or row[facet] == panel:
                curves.setdefault(_name(row, names), []).append(row)
        for name, points in curves.items():
            new = name not in colours
            colour = colours.setdefault(name, _COLOURS[len(colours) % len(_COLOURS)])
            points = sorted(points, key=lambda row: row[across])
            curve = Scatter(
                x=[row[across] for row in points],
                y=[row["median"] for row in points],
                error_y=_bars(points),
                name=name,
                legendgroup=name,
                showlegend=new,
                mode="lines+markers",
                line_color=colour,
            )
            figure.add_trace(curve, 1, column)
        positive = all(row["median"] > 0 for points in curves.values() for row in points)
        figure.update_xaxes(title_text=across, type="log" if across == "n" else "linear", row=1, col=column)
        figure.update_yaxes(type="log" if positive else "linear", row=1, col=column)
    return _finished(figure)


def _finished(figure: Figure) -> Figure:
    figure.update_layout(
        template="plotly_white", height=440, margin={"t": 40, "r": 20}, font_family="system-ui, sans-serif"
    )
    return figure


def _follows(key: str, across: str, rows: Rows) -> bool:
    """Whether a column says nothing beyond the horizontal axis, as evaluations do where each d has its own number."""
    pairs = {(row[across], row[key]) for row in rows}
    return len(pairs) == len({x for x, _ in pairs})


def _name(row: Mapping[str, Cell], names: Sequence[str]) -> str:
    said = [
        str(row[key]) if isinstance(row[key], str) else f"{key} = {shown(row[key])}"
        for key in names
        if row[key] is not None
    ]
    return ", ".join(said) or "median"


def _bars(rows: Rows) -> Row | None:
    if not all(QUARTILES[0] in row and QUARTILES[2] in row for row in rows):
        return None
    up = [row[QUARTILES[2]] - row[QUARTILES[1]] for row in rows]
    down = [row[QUARTILES[1]] - row[QUARTILES[0]] for row in rows]
    return {"type": "data", "symmetric": False, "array": up, "arrayminus": down, "thickness": 1}


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(str(name))}</th>" for name in table.columns)
    cells = [
        "".join(f"<td{' class=word' if isinstance(cell, str) else ''}>{escape(shown(cell))}</td>" for cell in row)
        for row in table.rows
    ]
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(f"<tr>{row}</tr>" for row in cells)}</table></div>'


def _settings(header: Mapping[str, Cell], name: str) -> str:
    said = {"file": name, "seed": header["seed"], **header["settings"], **header.get("made with", {})}
    words = {str(key): value if isinstance(value, str) else json.dumps(value) for key, value in said.items()}
    rows = "".join(f"<tr><th>{escape(key)}</th><td class=word>{escape(word)}</td></tr>" for key, word in words.items())
    return f'<div class="wide"><table>{rows}</table></div>'
