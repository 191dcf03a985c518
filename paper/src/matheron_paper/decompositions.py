"""Appendix A, measured: sparse posteriors drawn in weight space and by orthogonal parts, against m and ell.

Distances are between closed forms: between the law of each sampler's draws, given a basis, and the sparse posterior.
"""

from __future__ import annotations

import torch

import matheron
from matheron.compare.metrics import gaussian_wasserstein
from matheron.compare.samplers import Moments, decoupled_moments, moments, weight_space_moments

from .base import Experiment, Settings, Trial, scales
from .report import Report, Row, Rows, quartile_table
from .sampling import optimal, problem
from .wasserstein import figure, flat_by

METHODS = ("weight-space", "orthogonal", "decoupled")
FEATURES: dict[str, str] = dict.fromkeys(METHODS, "cosine")

SCALES = scales(
    trials=(8, 4, 2),
    dims=([2, 4, 8], [2, 4, 8], [2]),
    num_data=(1024, 256, 32),
    num_inducing=([4, 16, 64, 256, 1024], [4, 16, 64, 256], [4, 16]),
    num_features=([1024, 4096, 16384], [128, 512, 2048], [32, 128]),
    num_test=(1024, 256, 24),
)


def cases(settings: Settings) -> list[dict[str, int]]:
    return [{"d": d, "m": m} for d in settings["dims"] for m in settings["num_inducing"]]


def run(trial: Trial, settings: Settings, device: torch.device) -> Row:
    """One random problem, a sparse posterior whose inducing points are the first m data, and a basis for each size."""
    d, m = trial.case["d"], trial.case["m"]
    generator = trial.generator("problem", shared=["d"])  # with the same data for every m
    X = torch.rand(settings["num_data"], d, generator=generator, dtype=torch.float64)
    exact, x = problem(X, settings["num_test"], generator, device)
    model = optimal(exact, exact.train_inputs[:m])
    truth = moments(model, x)
    rows = []
    for ell in settings["num_features"]:
        for method in METHODS:
            count = ell if method == "decoupled" else ell + m  # both have b = m + ell basis functions
            basis = matheron.draw(
                model, 1, num_features=count, features=FEATURES[method], generator=trial.generator(method, str(ell))
            )
            assert isinstance(basis, matheron.Paths)
            w2 = gaussian_wasserstein(*truth, *law(method, model, basis, x))
            rows.append({"method": method, "ell": ell, "w2": w2})
    return {"rows": rows}


def law(method: str, model: matheron.SparseGP, basis: matheron.Paths, x: torch.Tensor) -> Moments:
    """The moments at x of draws by a decomposition, whose features are those of the paths `basis`."""
    if method == "decoupled":
        return decoupled_moments(model, basis, x)
    if method == "weight-space":
        return weight_space_moments(model, basis, x)
    # f_perp is the process given u = 0. Here the process that the features represent takes its place.
    zero = torch.zeros_like(model.inducing_points[:, 0])
    given_zero = matheron.SparseGP(model.kernel, model.inducing_points, zero, zero, whitened=True)
    truth, perpendicular = moments(model, x), moments(given_zero, x).covariance
    return Moments(truth.mean, truth.covariance - perpendicular + weight_space_moments(given_zero, basis, x).covariance)


def report(records: Rows, settings: Settings) -> Report:
    rows = flat_by("m", records, METHODS)
    title = f"W2 to the sparse posterior at {settings['num_test']} test points, given {settings['num_data']} data"
    table = quartile_table(title, rows, ["d", "m", "method", "ell"], "w2", across="m")
    return Report(table, {"": lambda: figure(rows, settings, "m", "inducing points $m$", sharey=False)})


EXPERIMENT = Experiment("decompositions", __doc__, SCALES, cases, run, report, features=FEATURES)
