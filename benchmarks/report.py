"""The numbers as a table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.table import Table


def table(rows: list[dict[str, Any]], quick: bool) -> Table:
    out = Table(title="small sizes: a smoke test, not a result" if quick else None, show_lines=True)
    for column in ("", "matheron", "BoTorch", "BoTorch /\nmatheron", "floor", "matheron /\nfloor", "target"):
        out.add_column(column, justify="left" if column == "" else "right")
    for row in rows:
        ours, theirs = row["matheron"], row["BoTorch"]
        out.add_row(
            _name(row),
            _cell(ours),
            _cell(theirs),
            _ratios(theirs, ours),
            _seconds(row["floor_seconds"]),
            f"{ours['seconds'] / row['floor_seconds']:.1f}x",
            _target(row, ours),
        )
    return out


def _name(row: dict[str, Any]) -> str:
    p = row["problem"]
    points = f", {row['num_points']:,} point{'s' if row['num_points'] > 1 else ''}" if row["num_points"] else ""
    return f"[bold]{row['case']}[/bold], {p['dtype']}\nn={p['n']}, ell={p['ell']}, S={p['s']}{points}"


def _cell(result: dict[str, Any]) -> str:
    lines = [_seconds(result["seconds"])]
    if "extra_bytes" in result:
        lines.append("out of memory" if result["extra_bytes"] is None else _size(result["extra_bytes"]))
    if "error" in result:
        lines.append(f"error {result['error']:.0e}")
    if result["scaled_by"] != 1:
        lines.append(f"[dim]scaled up {result['scaled_by']:g}x[/dim]")
    return "\n".join(lines)


def _ratios(theirs: dict[str, Any], ours: dict[str, Any]) -> str:
    lines = [f"[bold]{theirs['seconds'] / ours['seconds']:.1f}x[/bold]"]
    if theirs.get("extra_bytes") and ours.get("extra_bytes"):
        lines.append(f"{theirs['extra_bytes'] / ours['extra_bytes']:.0f}x")
    return "\n".join(lines)


def _target(row: dict[str, Any], ours: dict[str, Any]) -> str:
    lines = []
    for key, target, show in (("seconds", "target_seconds", _seconds), ("extra_bytes", "target_bytes", _size)):
        if row[target] is not None:
            met = ours[key] is not None and ours[key] <= row[target]
            lines.append(f"{show(row[target])} [{'green' if met else 'red'}]{'met' if met else 'missed'}[/]")
    return "\n".join(lines)


def _seconds(t: float) -> str:
    return f"{t:.2f} s" if t >= 1 else f"{1e3 * t:.3g} ms" if t >= 1e-3 else f"{1e6 * t:.0f} us"


def _size(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.0f} MB"


def footnotes(rows: list[dict[str, Any]], versions: dict[str, str], threads: int, repeats: int) -> Iterator[str]:
    """What the numbers are of, and the best rate of each kind of operation that was seen."""
    names = ", ".join(f"{name} {number}" for name, number in versions.items())
    yield f"d={rows[0]['problem']['d']}, Matern-5/2, {threads} threads, median of {repeats}; {names}"
    yield "under each time: memory beyond what was there before the call; error against the formula in float64"
    for dtype in ("float64", "float32"):
        seen = [row["ceilings"] for row in rows if row["problem"]["dtype"] == dtype]
        trig, exp, sqrt, flops = (max(c[key] for c in seen) / 1e9 for key in ("trig", "exp", "sqrt", "flops"))
        rates = f"cos {trig:.2f}, exp {exp:.2f}, sqrt {sqrt:.2f} G/s, square product {flops:.0f} GFLOP/s"
        yield f"ceilings in {dtype}: {rates}"
