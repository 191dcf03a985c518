"""Thompson sampling with matheron's fit of hyperparameters and with BoTorch's: is the regret no worse?

    python benchmarks/fit_regret.py                16 seeds: about half an hour on one core
    python benchmarks/fit_regret.py --seeds 4 --budget 20 --functions Branin
    python benchmarks/fit_regret.py --quick        seconds: does it run?

Everything but the fit is the same: the first points, the draws and their minimiser. Regret is the lowest value found
less the minimum, in powers of ten; differences are paired by seed. BoTorch's model is SingleTaskGP with its own priors,
inputs normalised and outcomes standardised.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from botorch.test_functions import Branin, Hartmann, Rosenbrock
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from matheron.thompson import suggest
from matheron.thompson.fitting import fitted

FUNCTIONS = {"Branin": Branin, "Hartmann-6": lambda: Hartmann(dim=6), "Rosenbrock-4": lambda: Rosenbrock(dim=4)}
FLOOR = 1e-6  # below it logarithms of regrets say no more


def botorch_fitted(X: Tensor, y: Tensor, box: Tensor) -> Any:
    inward, outward = Normalize(X.shape[1], bounds=box), Standardize(1)
    model: Any = SingleTaskGP(X, y[:, None], input_transform=inward, outcome_transform=outward)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model


FITS: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {"matheron": fitted, "BoTorch": botorch_fitted}


def study(name: str, fit: str, seed: int, budget: int, q: int) -> tuple[float, float]:
    """log10 of the regret at the end, and the seconds that fits took."""
    function: Any = FUNCTIONS[name]().to(torch.float64)
    box = function.bounds.double()
    d = box.shape[1]
    first = torch.rand(2 * (d + 1), d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    X = box[0] + (box[1] - box[0]) * first
    y, took = function(X), 0.0
    generator = torch.Generator().manual_seed(1000 + seed)
    while len(y) < budget:
        began = time.perf_counter()
        model = FITS[fit](X, y, box)
        took += time.perf_counter() - began
        points = suggest(model, box, min(q, budget - len(y)), generator=generator, mesh_size=4096, num_starts=8)
        X = torch.cat([X, points.double()])
        y = torch.cat([y, function(points.double())])
    return math.log10(max(FLOOR, float(y.min()) - float(function.optimal_value))), took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--budget", type=int, default=60, help="evaluations in all")
    parser.add_argument("--q", type=int, default=4, help="evaluations per round")
    parser.add_argument("--functions", nargs="+", choices=list(FUNCTIONS), default=list(FUNCTIONS))
    parser.add_argument("--quick", action="store_true", help="one short study of each fit: does it run?")
    options = parser.parse_args()
    if options.quick:
        options.seeds, options.budget, options.functions = 2, 10, ["Branin"]
    for name in options.functions:
        ends: dict[str, list[float]] = {fit: [] for fit in FITS}
        spent = dict.fromkeys(FITS, 0.0)
        for seed in range(options.first, options.first + options.seeds):
            for fit in FITS:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    end, took = study(name, fit, seed, options.budget, options.q)
                ends[fit].append(end)
                spent[fit] += took
        differences = [a - b for a, b in zip(ends["matheron"], ends["BoTorch"], strict=True)]
        error = statistics.stdev(differences) / len(differences) ** 0.5 if len(differences) > 1 else math.nan
        medians = ", ".join(
            f"{fit} {statistics.median(values):.2f} ({spent[fit]:.1f} s)" for fit, values in ends.items()
        )
        print(
            f"{name:13} {options.budget} evaluations, {options.seeds} seeds: median log10 regret {medians}; "
            f"matheron - BoTorch {statistics.mean(differences):+.2f} +- {error:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
