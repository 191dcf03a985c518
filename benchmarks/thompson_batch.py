"""Trials of Thompson sampling one by one and together: seconds per trial, and whether results agree.

    python benchmarks/thompson_batch.py                                         a minute on one core
    python benchmarks/thompson_batch.py --scale paper --device cuda --trials 1 8 32 --rounds 17 --d 8

The strategies are those of `matheron reproduce thompson`, for fewer rounds. Printed for each: the seconds of choosing
points per trial and round, for every number of trials together, and the largest difference between what a trial found
alone and among others. On a CPU that is zero. On a GPU sums are taken in another order; points then differ by rounding,
and, once that sends a search into another basin, by more.
"""

from __future__ import annotations

import argparse

import torch

from matheron_paper import Trial
from matheron_paper import thompson as paper


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--scale", default="tiny", choices=paper.SCALES)
    options.add_argument("--device", default="cpu")
    options.add_argument("--trials", type=int, nargs="+", default=[1, 3], help="how many are run together")
    options.add_argument("--rounds", type=int, default=4)
    options.add_argument("--d", type=int, default=2)
    args = options.parse_args()
    settings = {**paper.SCALES[args.scale], "rounds": args.rounds, "dims": [args.d]}
    device = torch.device(args.device)
    print(f"{'strategy':24s} " + " ".join(f"{f'{count} together':>14s}" for count in args.trials) + "   difference")
    for case in paper.cases(settings):
        if case["method"] in ("random", "DIRECT"):
            continue
        trials = [Trial("thompson", case, number, 0) for number in range(max(args.trials))]
        paper.run_together(trials[:1], {**settings, "rounds": 2}, device)  # kernels are compiled
        found, seconds = [], []
        for count in args.trials:
            results = paper.run_together(trials[:count], settings, device)
            found.append(results[0]["best"])
            seconds.append(results[0]["seconds"] / (args.rounds - 1))
        difference = max(abs(a - b) for best in found for a, b in zip(best, found[0], strict=True))
        times = " ".join(f"{1e3 * each:11.1f} ms" for each in seconds)
        print(f"{case['method']:16s} {case['ell'] or '':7} {times}   {difference:.2g}", flush=True)


if __name__ == "__main__":
    main()
