"""The gradient of a sum over paths at points that all paths share, forward pass included: how many evaluations it
costs, and what BoTorch and GPJax (where it is installed) take for it. The rows of docs/performance.md, as a table.

    python benchmarks/pull_back.py                  # some minutes
    python benchmarks/pull_back.py --only "S=512"

Processor time of one core, the least of several turns, in which the libraries alternate: a busy machine changes it
little.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

PEERS = ("BoTorch", "GPJax")
TURNS, LEAST = 3, 0.1  # a shorter call is repeated within a turn


def seconds(call: Callable[[], Any]) -> float:
    """Processor time of a call."""
    count, start = 0, time.process_time()
    while (taken := time.process_time() - start) < LEAST or not count:
        call()
        count += 1
    return taken / count


def line(case: Any) -> str:
    from calls import prepare
    from limits import smaller
    from others import LIBRARIES

    calls, scales = {"values": prepare(replace(case, task="evaluate", headline=False), "matheron").call}, {}
    for name in ("matheron", *PEERS):
        if name in LIBRARIES:
            run, note = smaller(replace(case, headline=False), name, [])
            calls[name], scales[name] = prepare(run, name).call, note.get("scaled_by", 1)
    turns = [{name: scales.get(name, 1) * seconds(call) for name, call in calls.items()} for _ in range(TURNS)]
    found = {name: min(turn[name] for turn in turns) for name in calls}
    sizes = case.sizes()
    cells = [f"{sizes[key]:,}" for key in ("N", "n", "ell", "S")] + [sizes["dtype"], f"{1e3 * found['matheron']:.3g}"]
    cells += [f"{found['matheron'] / found['values']:.2f}"]
    cells += [f"{1e3 * found[name]:.3g}" if name in found else "" for name in PEERS]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose name contains this, such as 'S=512'")
    args = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):  # JAX has no setting for one thread
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    import torch

    torch.set_num_threads(1)
    from cases import cases

    print(f"| N | n | ell | S | dtype | matheron, ms | evaluations | {' | '.join(f'{name}, ms' for name in PEERS)} |")
    print("|" + "---|" * 9)
    for case in cases("cpu", False):
        if case.task == "gradient" and args.only in str(case):
            print(line(case), flush=True)


if __name__ == "__main__":
    main()
