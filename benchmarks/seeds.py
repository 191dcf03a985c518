"""The command of a benchmark that is an experiment: seeds that go on where they stopped, in several processes."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NoReturn

from matheron.experiments import Experiment, run


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
