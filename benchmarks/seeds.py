"""The command of a benchmark that is an experiment: seeds that go on where they stopped, in several processes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from matheron_paper import Experiment, run
from matheron_paper.report import grouped, quartiles


def parser(words: str | None, seeds: str, quick: str) -> argparse.ArgumentParser:
    """The options that all of them have; `seeds` and `quick` say what these are here."""
    options = argparse.ArgumentParser(description=words, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seeds", type=int, help=seeds)
    options.add_argument("--quick", action="store_true", help=f"{quick}: a smoke test, not a result")
    options.add_argument("--workers", type=int, default=1, help="processes, each with a thread or more")
    options.add_argument("--time-limit", type=float, help="seconds: no run starts that would end later")
    options.add_argument("--out", type=Path, default=Path("results"), help="folder of the results")
    return options


def run_and_exit(experiment: Experiment, args: argparse.Namespace, scale: str | None = None) -> NoReturn:
    """Run it at the scale that was asked for; the exit code says whether a trial failed."""
    if args.quick:
        print("a smoke test, not a result")
    scale = scale or ("quick" if args.quick else "full")
    done = run(experiment, scale, out=args.out, workers=args.workers, trials=args.seeds, time_limit=args.time_limit)
    sys.exit(1 if done.failed else 0)


def lines_of_ends(
    rows: Sequence[Mapping[str, Any]], by: list[str], more: Callable[[tuple], tuple] = lambda key: ()
) -> list[tuple]:
    """A line of a table per group of runs: what `more` says, their number, the median of "half", the quartiles of
    "last", and the median of "seconds"."""
    half, last, seconds = (grouped(rows, by, name) for name in ("half", "last", "seconds"))
    return [
        (*key, *more(key), len(ends), quartiles(half[key])[1], *quartiles(ends), quartiles(seconds[key])[1])
        for key, ends in last.items()
    ]
