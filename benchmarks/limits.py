"""What is too much for a library: measured smaller and scaled up, or not at all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cases import Case
from others import LIBRARIES

MOST_SECONDS, MOST_BYTES = 30.0, {"cpu": 8e9, "cuda": 100e9}  # of a call, for libraries that have a `cost`
LEAST_POINTS = 100  # a call at fewer says nothing of larger ones
# BoTorch's time and memory are linear in N: on a CPU more values than these are measured at fewer points and scaled up.
MOST_VALUES = {"evaluate": 640_000, "gradient": 64_000}


def smaller(case: Case, name: str, rows: list[dict[str, Any]]) -> tuple[Case, dict[str, Any]]:
    """The case as this library will run it, and what its row says of that: `scaled_by`, `paths`, `not_run`."""
    library, device = LIBRARIES[name], case.problem.device
    if hasattr(library, "cost"):
        estimate = estimated(library, case, rows)
        if estimate is not None and (estimate["seconds"] > MOST_SECONDS or estimate["bytes"] > MOST_BYTES[device]):
            return case, {"not_run": estimate}
    if hasattr(library, "paths"):  # no more than a limit in a call, whatever S is: one measurement serves them all
        sizes = {key: value for key, value in case.sizes().items() if key != "S"} | {"library": name}
        for row in rows:
            if "seconds" in row and all(row[key] == value for key, value in sizes.items()):
                return case, {key: row[key] for key in ("paths", "seconds", "least", "most", "repeats", "bytes")}
        return replace(case, problem=replace(case.problem, s=library.paths)), {"paths": library.paths}
    most = MOST_VALUES.get(case.task)
    if name == "BoTorch" and device == "cpu" and most is not None and case.num_points * case.problem.s > most:
        fewer = max(1, most // case.problem.s)
        return replace(case, num_points=fewer), {"scaled_by": case.num_points / fewer}
    return case, {}


def estimated(library: Any, case: Case, rows: list[dict[str, Any]]) -> dict[str, float] | None:
    """What a call would take, from the largest of this library's that were smaller; None if there is none."""
    wanted = library.cost(case.num_points, case.problem.n)
    known: tuple[float, float, dict[str, Any]] | None = None
    for row in rows:
        alike = row["library"] == library.name and "seconds" in row and row["N"] >= LEAST_POINTS
        if alike and all(row[key] == case.sizes()[key] for key in ("task", "dtype")):
            time, memory = library.cost(row["N"], row["n"])
            if time <= wanted[0] and (known is None or time > known[0]):
                known = time, memory, row
    if known is None:
        return None
    time, memory, row = known
    found = {"seconds": row["seconds"] * wanted[0] / time, "bytes": row["bytes"] * wanted[1] / memory}
    return found | {"from_N": row["N"], "from_n": row["n"]}
