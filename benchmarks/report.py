"""Make docs/performance.md and its figures of the results that are kept in benchmarks/results.

    python benchmarks/report.py

Nothing is measured. The page shows results between the marks `<!-- FILE: section -->` and `<!-- end -->`; what stands
between is made anew.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import figures
import lattice_scaling
from results import ORDER, Results, count, seconds, size

ROOT = Path(__file__).parent.parent
RESULTS, PAGE, ASSETS = ROOT / "benchmarks" / "results", ROOT / "docs" / "performance.md", ROOT / "docs" / "assets"
MARKS = re.compile(r"(<!-- ([\w-]+): ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
MISSING = "*No results in the repository yet.*\n"
TASKS = {
    "draw": "draw",
    "evaluate": "evaluate",
    "gradient": "value and gradient of the sum over paths",
    "own": "value and gradient",
    "each": "value and gradient of every path",
    "grid": "grid: two axes",
}


def markdown(head: list[str], rows: list[list[str]]) -> str:
    """A table; columns without a cell are left out."""
    kept = [i for i in range(len(head)) if i == 0 or any(row[i] for row in rows)]
    lines = [[head[i] for i in kept], ["---"] * len(kept), *([row[i] for i in kept] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def machine(results: Results) -> str:
    about, versions = results.data["machine"], results.data["versions"]
    host = f"{about['cpu']}, {about['cores']} cores"
    on = f"{about['gpu']} (its host: {host})" if "gpu" in about else f"{host}, {about['threads']} threads"
    names = ", ".join(f"{name} {number}" for name, number in versions.items())
    return f"Measured on: {on}; {about['system']}; Python {about['python']}, {names}.\n"


def cell(row: dict[str, Any] | None) -> str:
    """Median, spread and memory of one measurement, or why there is none."""
    if row is None:
        return ""
    if "not_run" in row:
        least = row["not_run"]
        return f"not run: estimated {seconds(least['seconds'])}, {size(least['bytes'])}"
    if "failed" in row:
        return row["failed"]
    lines = [f"**{seconds(row['seconds'])}** ({seconds(row['least'])} to {seconds(row['most'])})", size(row["bytes"])]
    if "scaled_by" in row:
        lines.append(f"scaled up {row['scaled_by']:g}x")
    return "<br>".join(lines)


def against(results: Results, variable: str) -> str:
    """The sweep of one variable: a row for each task and value, a column for each library."""
    rows = []
    for task in ("draw", "evaluate", "gradient"):
        for dtype in ("float64", "float32"):
            sweep = results.sweep(task, variable, dtype)
            values = sorted({row[variable] for row in sweep})
            if (task == "draw" and variable == "N") or len(values) < 2:
                continue
            for value in values:
                of = {row["library"]: row for row in sweep if row[variable] == value}
                name = f"{task}, {variable}={count(value)}" + (", float32" if dtype == "float32" else "")
                rows.append([name, *(cell(of.get(library)) for library in ORDER)])
    return markdown(["", *ORDER], rows) if rows else ""


def headlines(results: Results) -> str:
    rows = []
    for ours in results.headlines():
        if ours["task"] == "grid":
            continue
        theirs = results.of(ours, "BoTorch")
        measured = theirs if theirs is not None and "seconds" in theirs else None
        errors = [f"{row['error']:.0e}" for row in (ours, theirs) if row is not None and row.get("error") is not None]
        rows.append(
            [
                name_of(ours),
                cell(ours),
                cell(theirs),
                "" if measured is None else f"{measured['seconds'] / ours['seconds']:.1f}",
                f"{measured['bytes'] / ours['bytes']:.0f}" if measured and ours["bytes"] > 1e6 else "",
                " and ".join(errors),
            ]
        )
    return markdown(["", "matheron", "BoTorch", "time, ratio", "memory, ratio", "errors"], rows)


def name_of(row: dict[str, Any]) -> str:
    many = {"own": " at {} points for each path", "draw": "", "grid": " of {} points each"}
    points = many.get(row["task"], " at {} points" if row["N"] > 1 else " at one point").format(count(row["N"]))
    return f"{TASKS[row['task']]}{points}, n={row['n']}, ell={row['ell']}, S={row['S']}, {row['dtype']}"


def floors(results: Results) -> str:
    rows = []
    for row in results.headlines():
        floor = row["floor"]
        parts = ", ".join(f"{name} {seconds(value)}" for name, value in floor["parts"].items())
        goal = row["goal"]
        met = "" if goal is None else f"{seconds(goal)}: {'met' if row['seconds'] <= goal else 'missed'}"
        ratio = f"{row['seconds'] / floor['seconds']:.1f}"
        rows.append([name_of(row), seconds(row["seconds"]), seconds(floor["seconds"]), ratio, parts, met])
    table = markdown(["", "matheron", "floor", "matheron / floor", "parts of the floor", "goal"], rows)
    return f"{table}\n{rates(results)}"


def rates(results: Results) -> str:
    """The best rate of each kind that was seen."""
    if "rates" in results.data:
        T = {key: value / 1e12 for key, value in results.data["rates"].items()}
        return (
            f"Rates that the device reached just before: {T['bytes']:.1f} TB/s copied; products of square matrices at "
            f"{T['float16']:.0f} (float16), {T['float32']:.0f} (float32) and {T['float64']:.0f} TFLOP/s (float64); "
            f"{T['special']:.1f} T/s of hardware cosines; {T['vector64']:.0f} TFLOP/s of float64 multiply-adds.\n"
        )
    said = []
    for dtype in ("float64", "float32"):
        seen = [row["rates"] for row in results.headlines() if row["dtype"] == dtype]
        if seen:
            most = {key: max(r[key] for r in seen) / 1e9 for key in seen[0]}
            three = ", ".join(f"{key} {most[key]:.2f}" for key in ("cos", "exp", "sqrt"))
            said.append(f"{dtype}: {three} G/s, square product {most['products']:.0f} GFLOP/s")
    return f"The best rates that were seen, {'; '.join(said)}. Each floor is at the rates just before its case.\n"


def grid(results: Results) -> str:
    row = next((row for row in results.headlines() if row["task"] == "grid"), None)
    listed = None if row is None else results.of(row, "matheron, as a list")
    if row is None or listed is None:
        return ""
    axis = count(row["N"])
    return (
        f"A grid of {axis} x {axis} points, RBF kernel, n={row['n']}, ell={row['ell']}, S={row['S']}, {row['dtype']}: "
        f"`on_grid` {seconds(row['seconds'])} and {size(row['bytes'])}; the same points as a list "
        f"{seconds(listed['seconds'])} and {size(listed['bytes'])}. That is {listed['seconds'] / row['seconds']:.2g} "
        "times as fast.\n"
    )


def figure(name: str) -> Callable[[Results], str]:
    title = {
        "figure-N": "Time and memory against N. Hollow points are scaled up from fewer points.",
        "figure-sizes": "Time against n, ell and S.",
    }[name]

    def shown(results: Results) -> str:
        link = f"![{title}](assets/performance-{results.name}-{name}.svg)"
        return f"{link}\n\n*{title}*\n" if figures.has(results, name) else ""

    return shown


def thompson(data: dict[str, Any]) -> str:
    rows = []
    for row in data["rows"]:
        p = ", ".join(f"{key}={value}" for key, value in row["problem"].items() if key not in ("dtype", "kernel"))
        ours, theirs = row["matheron"]["seconds"], row.get("BoTorch", {}).get("seconds")
        ratio = "" if theirs is None else f"{theirs / ours:.1f}"
        better = row.get("share_at_least_as_good")
        notes = "" if better is None else f"as good or better for {better:.0%} of {row['num_functions']} functions"
        case = f"{row['case']}, {row['problem']['dtype']}: {p}"
        rows.append([case, seconds(ours), "" if theirs is None else seconds(theirs), ratio, notes])
    return markdown(["", "matheron", "BoTorch", "ratio", "optima"], rows)


def rollout(data: dict[str, Any]) -> str:
    rows = []
    for dtype, library, median, least, most, floor in data["rows"]:
        spread = f"{median:.3g} ms ({least:.3g} to {most:.3g})"
        rows.append([f"{library}, {dtype}", spread, f"{floor:.3g} ms", f"{median / floor:.1f}"])
    table = markdown(["a step of one output", "time", "floor", "time / floor"], rows)
    whole = []
    for name, ways in data.get("whole", {}).items():
        ms = {way: 1e3 * statistics.median(times) for way, times in ways.items()}
        cells = [f"{ms[way]:.3g} ms" if way in ms else "-" for way in ("persistent", "graph", "floor")]
        whole.append([name, *cells, f"{ms['persistent'] / ms['floor']:.1f}" if "persistent" in ms else "-"])
    head = ["whole roll-outs", "in one kernel", "a CUDA graph a step", "floor", "one kernel / floor"]
    return f"{table}\n{markdown(head, whole)}" if whole else table


def scaling(data: dict[str, Any]) -> str:
    """The figure, and what a row of it says of the largest sizes."""
    title = "Processor seconds of one thread against n, N and modes, d = 2. Lines end at the largest size that was run."
    rows = []
    for panel in lattice_scaling.PANELS:
        of = [row for row in data["rows"] if row["panel"] == panel]
        for name in dict.fromkeys(row["name"] for row in of):
            mine = [row for row in of if row["name"] == name]
            cells = [f"{count(row['size'])}: {seconds(row['seconds'])}" for row in (mine[0], mine[-1])]
            rows.append([f"{lattice_scaling.PANELS[panel]}, {name}", *cells])
    table = markdown(["", "smallest", "largest"], rows)
    return f"![{title}](assets/performance-lattice-figure.svg)\n\n*{title}*\n\n{table}"


SECTIONS: dict[str, Callable[[Results], str]] = {
    "machine": machine,
    "headlines": headlines,
    "floors": floors,
    "grid": grid,
    "figure-N": figure("figure-N"),
    "figure-sizes": figure("figure-sizes"),
    **{f"against-{v}": (lambda results, v=v: against(results, v)) for v in ("N", "n", "ell", "S")},
}


# Sections of results of another form.
OWN: dict[str, Callable[[dict[str, Any]], str]] = {"thompson": thompson, "rollout": rollout, "scaling": scaling}


def section(name: str, of: str) -> str:
    file = RESULTS / f"{name}.json"
    if not file.exists():
        return MISSING if of in ("machine", *OWN) else ""
    data = json.loads(file.read_text())
    if of in OWN:
        return OWN[of](data)
    return SECTIONS[of](Results(name, data))


def refreshed(page: str) -> str:
    """The page with all that stands between marks made anew."""
    return MARKS.sub(lambda found: found[1] + section(found[2], found[3]) + found[4], page)


def main() -> None:
    for file in sorted(RESULTS.glob("*.json")):
        data = json.loads(file.read_text())
        if "sources" in data and not file.name.endswith(".part.json"):
            for path in figures.save(Results(file.stem, data), ASSETS):
                print(path.relative_to(ROOT))
    file = RESULTS / "lattice.json"
    if file.exists():
        lattice_scaling.figure(json.loads(file.read_text()), ASSETS / "performance-lattice-figure.svg")
    PAGE.write_text(refreshed(PAGE.read_text()))
    print(PAGE.relative_to(ROOT))


if __name__ == "__main__":
    main()
