"""The command `matheron demo`: it draws functions given a few data, and shows them in numbers and a picture."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from .figure import picture as picture
from .numbers import Row as Row
from .numbers import Sizes as Sizes
from .numbers import measure as measure
from .numbers import notes as notes
from .numbers import problem as problem
from .numbers import same_draws as same_draws
from .numbers import table as table

SUFFIXES = (".png", ".pdf", ".svg")
QUICK = Sizes(num_features=256, many=5_000, few=256, draws=500, compared=64)


def run(out: Path, seed: int = 0, quick: bool = False) -> list[Row]:
    """Measure the ways of sampling, print a table, and write the picture."""
    if not out.parent.is_dir():
        raise FileNotFoundError(f"no folder {out.parent} for the picture; create it, or give another --out")
    if out.suffix not in SUFFIXES:
        raise ValueError(f"--out: expected a name that ends in {', '.join(SUFFIXES)}, got {out.name}")
    console, sizes, gp = Console(), QUICK if quick else Sizes(), problem()
    console.print(f"A Gaussian process with a Matern-5/2 kernel in one dimension, given {gp.num_data} data.")
    with Console(stderr=True).status("drawing and measuring"):
        prior, posterior = same_draws(gp, sizes, seed)
        rows = measure(gp, posterior, sizes, seed)
        picture(gp, prior, posterior, rows, sizes, out)
    console.print(table(rows, sizes))
    for note in notes(rows, sizes):
        console.print(note, highlight=False)
    console.print(f"The picture is in [bold]{out}[/bold]", soft_wrap=True, highlight=False)
    return rows
