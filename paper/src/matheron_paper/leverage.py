"""Errors of one basis relative to the posterior's own spread, in closed form: against n, and against the noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

import matheron
from matheron import kernels
from matheron.compare.metrics import gaussian_wasserstein
from matheron.compare.samplers import moments

from .base import Experiment, Settings, Trial, scales
from .report import Report, Row, Rows, grouped, quartile_table, quartiles

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from matheron import ExactGP, SparseGP

# The kind of features of each method. BoTorch has its own.
FEATURES = {"paper": "cosine", "Sobol": "sobol", "leverage": "leverage", "domain": "leverage"}
METHODS = {
    "paper": "the paper's cosines",
    "BoTorch": "BoTorch's pairs",
    "Sobol": "Sobol pairs",
    "leverage": "by leverage",
    "domain": "by leverage, given the domain",
}
_NUM_DATA, _NOISE = 256, 1e-4  # the value of each when the other is varied

SCALES = scales(
    trials=(16, 4, 2),
    dims=([2, 4, 8], [2, 4, 8], [2]),
    num_data=([4, 16, 64, 256, 1024], [4, 16, 64, 256], [4, 32]),
    noise=([1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1], [1e-6, 1e-4, 1e-2], [1e-4, 1e-2]),
    num_features=(1024, 1024, 128),
    num_test=(512, 200, 40),
)


def cases(settings: Settings) -> list[Row]:
    most = min(_NUM_DATA, max(settings["num_data"]))
    pairs = [(n, _NOISE) for n in settings["num_data"]] + [(most, noise) for noise in settings["noise"]]
    return [{"d": d, "n": n, "noise": noise} for d in settings["dims"] for n, noise in dict.fromkeys(pairs)]


def run(trial: Trial, settings: Settings, device: torch.device) -> Row:
    """One random problem in the unit cube, and every kind of features on it."""
    d, n, noise = trial.case["d"], trial.case["n"], trial.case["noise"]
    generator = trial.generator("problem")
    X = torch.rand(n, d, generator=generator, dtype=torch.float64).to(device)
    x = torch.rand(settings["num_test"], d, generator=generator, dtype=torch.float64).to(device)
    gp = matheron.ExactGP(kernels.Matern(2.5, 0.25 * math.sqrt(d)), X, torch.zeros_like(X[:, 0]), noise=noise)
    found = maps(gp, settings["num_features"], trial)
    return {"rows": [{"method": method, "relative": relative_error(gp, Phi, x)} for method, Phi in found]}


def maps(gp: ExactGP | SparseGP, ell: int, trial: Trial) -> list[tuple[str, Callable[[Tensor], Tensor]]]:
    """Every kind of features as a map from points to Phi `[n, ell]`."""
    found: list[tuple[str, Callable[[Tensor], Tensor]]] = []
    for method, kind in FEATURES.items():
        domain = (0.0, 1.0) if method == "domain" else None
        paths = matheron.draw(gp, 1, num_features=ell, features=kind, domain=domain, generator=trial.generator(method))
        phi = paths.prior.features
        found.append((method, lambda x, phi=phi: phi(x)[0]))
    theirs = botorch_map(gp, ell, trial)
    return found if theirs is None else [found[0], ("BoTorch", theirs), *found[1:]]


def botorch_map(gp: ExactGP | SparseGP, ell: int, trial: Trial) -> Callable[[Tensor], Tensor] | None:
    """The features of BoTorch's pathwise draws; None where BoTorch is not installed."""
    try:
        from botorch.sampling.pathwise.features.generators import gen_kernel_features
        from gpytorch.kernels import MaternKernel
    except ImportError:
        return None
    kernel = MaternKernel(2.5, ard_num_dims=gp.input_dim).to(gp.train_inputs)
    kernel.lengthscale = gp.kernel.lengthscale
    with torch.random.fork_rng(devices=[]):  # BoTorch draws from torch's global generator
        torch.manual_seed(int(torch.randint(2**31, (), generator=trial.generator("BoTorch"))))
        phi = gen_kernel_features(kernel, num_inputs=gp.input_dim, num_outputs=ell)
    return lambda x: phi(x).detach()


def relative_error(gp: ExactGP | SparseGP, Phi: Callable[[Tensor], Tensor], x: Tensor) -> float:
    """W2 between the law of paths in one basis and the posterior, over the root of the posterior's trace.

    C = J J^T + sigma^2 G^T G with G = (K + sigma^2 I)^-1 k(X, x) and J = Phi(x) - G^T Phi(X).
    """
    X, k, noise = gp.train_inputs, gp.kernel, gp.noise
    exact = moments(gp, x)
    G = torch.linalg.solve(k(X, X) + noise.diag_embed(), k(X, x))  # [n, m]
    J = Phi(x) - G.mT @ Phi(X)  # [m, ell]
    C = J @ J.mT + (G.mT * noise) @ G
    distance = gaussian_wasserstein(exact.mean, C, exact.mean, exact.covariance)
    return distance / math.sqrt(float(exact.covariance.trace()))


def flat(records: Rows) -> list[Row]:
    """One row per method and trial, in the order in which the table shows them."""
    rows = [{**record["case"], **row} for record in records for row in record["result"]["rows"]]
    order = list(METHODS).index
    return sorted(rows, key=lambda row: (row["d"], row["n"], row["noise"], order(row["method"])))


def report(records: Rows, settings: Settings) -> Report:
    rows = flat(records)
    title = f"W2 relative to the posterior's spread, one basis of {settings['num_features']} features"
    table = quartile_table(title, rows, ["d", "n", "noise", "method"], "relative", across="method")
    return Report(table, {"": lambda: figure(rows)}, [gain(rows)])


def gain(rows: Rows) -> str:
    """How many times less the features by leverage err than the paper's and Sobol's, with and without the domain."""
    medians = {key: quartiles(v)[1] for key, v in grouped(rows, ["d", "n", "noise", "method"], "relative").items()}
    parts = []
    for ours in ("leverage", "domain"):
        for other in ("paper", "Sobol"):
            ratios = [medians[(*case, other)] / medians[(*case, m)] for *case, m in medians if m == ours]
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            parts.append(
                f"{METHODS[other]} err {mean:.1f} times as much as those {METHODS[ours]} "
                f"({min(ratios):.1f} to {max(ratios):.1f})"
            )
    return f"Geometric means over all cases, medians over trials: {'; '.join(parts)}."


def figure(rows: Rows) -> Figure:
    """Above against n, below against the noise; one panel per dimension."""
    from .style import DIMENSIONS, MARKERS, group_band, legend_below, panels

    dims = sorted({row["d"] for row in rows})
    most = max(row["n"] for row in rows if row["noise"] != _NOISE)
    drawing, axes = panels(2, len(dims), width=3.2 * len(dims) + 0.6, height=6.4, sharey=True)
    for (above, below), d in zip(axes.T, dims, strict=True):
        for i, method in enumerate(METHODS):
            mine = [row for row in rows if row["d"] == d and row["method"] == method]
            if not mine:
                continue
            look: Row = {"color": DIMENSIONS[i], "marker": MARKERS[i], "label": METHODS[method]}
            group_band(above, [row for row in mine if row["noise"] == _NOISE], "n", "relative", **look)
            group_band(below, [row for row in mine if row["n"] == most], "noise", "relative", **look)
        above.set(title=f"$d = {d}$", xlabel="training points $n$", yscale="log")
        above.set_xscale("log", base=2)
        below.set(xlabel="noise variance", xscale="log", yscale="log")
    for axis in axes[:, 0]:
        axis.set_ylabel("relative 2-Wasserstein distance")
    legend_below(drawing, 4)
    return drawing


EXPERIMENT = Experiment("leverage", __doc__, SCALES, cases, run, report, features=FEATURES)
