"""The rows of one run, and how numbers are written."""

from __future__ import annotations

from typing import Any

from cases import SWEEPS

ORDER = ("matheron", "BoTorch", "GPJax", "GPyTorch, dense", "scikit-learn", "GSTools, one path")


class Results:
    """What one file in results/ holds."""

    def __init__(self, name: str, data: dict[str, Any]):
        self.name, self.data, self.rows = name, data, data["rows"]
        self.cuda = "gpu" in data["machine"]
        self.sweeps = SWEEPS["quick" if data["quick"] else "cuda" if self.cuda else "cpu"]
        self.base = dict(zip(("N", "n", "ell", "S"), self.sweeps.base, strict=True))

    def sweep(self, task: str, variable: str, dtype: str = "float64") -> list[dict[str, Any]]:
        """The rows in which all but `variable` are the base problem's."""
        fixed = {key: value for key, value in self.base.items() if key != variable}
        if task == "draw":
            fixed["N"] = 0
        fixed |= {"task": task, "dtype": dtype, "d": 4, "kernel": "matern"}
        return [row for row in self.rows if all(row[key] == value for key, value in fixed.items())]

    def headlines(self) -> list[dict[str, Any]]:
        """matheron's rows that have a floor."""
        return [row for row in self.rows if "floor" in row and "seconds" in row]

    def of(self, row: dict[str, Any], library: str) -> dict[str, Any] | None:
        """The same case in another library."""
        keys = ("task", "N", "n", "ell", "S", "d", "kernel", "dtype")
        return next((r for r in self.rows if r["library"] == library and all(r[k] == row[k] for k in keys)), None)


def seconds(t: float) -> str:
    if t >= 3600:
        return f"{t / 3600:,.0f} h"
    if t >= 120:
        return f"{t / 60:.0f} min"
    return f"{t:.3g} s" if t >= 1 else f"{1e3 * t:.3g} ms" if t >= 1e-3 else f"{1e6 * t:.3g} us"


def size(num_bytes: float) -> str:
    if num_bytes >= 1e12:
        return f"{num_bytes / 1e12:.3g} TB"
    return (
        f"{num_bytes / 1e9:.3g} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.3g} MB" if num_bytes >= 1e5 else "0 MB"
    )


def count(number: int) -> str:
    return f"{number:,}"
