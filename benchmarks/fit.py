"""matheron.fit on regression tables of the UCI repository: time, hyperparameters, likelihood and test error.

    python benchmarks/fit.py DATA                                  pol and elevators, 1000 rows each, beside GPyTorch
    python benchmarks/fit.py DATA --rows 3000 --starts 2 --go-on     how much GPyTorch gains from where matheron ends
    python benchmarks/fit.py DATA --rows 0 --device cuda --go-on     both whole
    python benchmarks/fit.py DATA --names protein --rows 0 --device cuda --no-peer
    python benchmarks/fit.py DATA --names protein --rows 0 --device cuda --no-peer --solver cholesky
    python benchmarks/fit.py DATA --names pol bike --rows 5000 --no-peer --num-data 1000 2000 all    fits to some rows

DATA is a folder of NAME.csv.gz, rows of inputs with the target last and no header. Tables are standardised whole; the
training rows are the first 90% of `numpy.random.RandomState(0).permutation`, and the first ROWS of these where ROWS is
not 0. The model is a Matern-3/2 kernel with a lengthscale per input, a scale, a constant mean and noise; GPyTorch's is
the same, fitted by L-BFGS from the same numbers. With --num-data the hyperparameters are fitted to so many of the
training rows. RMSE and NLPD (the mean negative log predictive density of the targets) are at the other 10%, given all
training rows. One JSON line per fit; with --out they are added to a file.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import matheron
from matheron import kernels


def table(folder: Path, name: str, rows: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training inputs and targets, and test inputs and targets, standardised."""
    A = np.loadtxt(folder / f"{name}.csv.gz", delimiter=",")
    deviation = A.std(0)
    A = (A - A.mean(0)) / np.where(deviation > 0, deviation, 1.0)
    order = np.random.RandomState(0).permutation(len(A))
    cut = int(0.9 * len(A))
    train, test = order[:cut][: rows or cut], order[cut:]
    return tuple(torch.from_numpy(part) for rows in (train, test) for part in (A[rows, :-1], A[rows, -1]))  # type: ignore


def fitted(
    X: Tensor, y: Tensor, solver: str, starts: int, num_data: str | int | None, progress: bool
) -> tuple[Any, float, float]:
    """A model, the seconds that its fit took, and the seconds of CPU time."""
    kernel = 1.0 * kernels.Matern(1.5, torch.ones(X.shape[1], dtype=torch.float64))
    _wait(X)
    begin, begin_cpu = time.perf_counter(), time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", matheron.FitWarning)  # constant columns
        gp = matheron.fit(kernel, X, y, num_starts=starts, num_data=num_data, solver=solver, seed=0, progress=progress)  # type: ignore[arg-type]
    _wait(X)
    return gp, time.perf_counter() - begin, time.process_time() - begin_cpu


def gpytorch_fitted(X: Tensor, y: Tensor, start: dict[str, Any] | None) -> tuple[dict[str, Any], float]:
    """The same model in GPyTorch, by SciPy's L-BFGS-B on its own raw parameters; 25 steps of it from a given start."""
    import gpytorch
    from scipy.optimize import minimize

    class Model(gpytorch.models.ExactGP):
        def __init__(self, likelihood: Any) -> None:
            super().__init__(X, y, likelihood)
            self.mean_module: Any = gpytorch.means.ConstantMean()
            base = gpytorch.kernels.MaternKernel(1.5, ard_num_dims=X.shape[1])
            self.covar_module: Any = gpytorch.kernels.ScaleKernel(base)

        def forward(self, x: Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    floor = gpytorch.constraints.GreaterThan(1e-6)
    likelihood: Any = gpytorch.likelihoods.GaussianLikelihood(noise_constraint=floor).to(X)
    model: Any = Model(likelihood).to(X).train()
    likelihood.initialize(noise=1e-2)
    if start is not None:
        likelihood.initialize(noise=max(start["noise"], 1.1e-6))
        model.covar_module.initialize(outputscale=start["outputscale"])
        model.covar_module.base_kernel.initialize(lengthscale=torch.tensor(start["lengthscales"]).to(X))
        model.mean_module.initialize(constant=start["mean"])
    mll: Any = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    parameters = list(model.parameters())
    begin = time.perf_counter()

    def downhill(v: np.ndarray) -> tuple[float, np.ndarray]:
        torch.nn.utils.vector_to_parameters(torch.from_numpy(v).to(X), parameters)
        model.zero_grad()
        try:
            with gpytorch.settings.fast_computations(False, False, False):
                loss = -mll(model(X), y)
            loss.backward()
        except RuntimeError:  # NaN, or no factor, where a line search goes too far
            return 1e10, np.zeros_like(v)
        gradient = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        return float(loss.detach()), torch.nn.utils.parameters_to_vector(gradient).cpu().numpy()

    start_vector = torch.nn.utils.parameters_to_vector(parameters).detach().cpu().numpy().copy()
    found = minimize(
        downhill, start_vector, jac=True, method="L-BFGS-B", options={"maxiter": 300 if start is None else 25}
    )
    at_start = downhill(start_vector)[0]
    torch.nn.utils.vector_to_parameters(torch.from_numpy(found.x).to(X), parameters)
    facts = {
        "log_likelihood_at_start": -at_start * len(y),
        "log_likelihood": -float(found.fun) * len(y),
        "outputscale": float(model.covar_module.outputscale.detach()),
        "lengthscales": model.covar_module.base_kernel.lengthscale[0].tolist(),
        "noise": float(likelihood.noise.detach()),
    }
    return facts, time.perf_counter() - begin


def described(gp: Any, X_test: Tensor, y_test: Tensor, device: str) -> dict[str, Any]:
    """Hyperparameters in the table's units, the exact likelihood where a factor fits, and the error of the mean."""
    rows = matheron.summary(gp, [str(i) for i in range(gp.input_dim)]).rows
    facts = {
        "outputscale": rows["Matern.outputscale"],
        "lengthscales": [rows[f"Matern.lengthscale[{i}]"] for i in range(gp.input_dim)],
        "noise": rows["noise standard dev"] ** 2,
        "mean": rows["mean"],
    }
    if gp.num_data <= (50_000 if device == "cuda" else 5000):
        facts["log_likelihood"] = float(matheron.log_marginal_likelihood(gp))
    dense = gp.num_data <= (50_000 if device == "cuda" else 15_000)
    solver = matheron.solvers.Cholesky(keep=True) if dense else "auto"
    paths, x = matheron.draw(gp, 1, seed=0, num_features=64, solver=solver), X_test.to(gp.train_inputs)
    errors = (paths.mean(x) - y_test.to(x)).square()
    facts["rmse"] = float(errors.mean().sqrt())
    if dense:
        variance = paths.variance(x) + facts["noise"]
        facts["nlpd"] = float(0.5 * (errors / variance + variance.log() + math.log(2 * math.pi)).mean())
    return facts


def _wait(X: Tensor) -> None:
    if X.is_cuda:
        torch.cuda.synchronize()


def _apart(a: dict[str, Any], b: dict[str, Any], X: Tensor) -> float:
    """The largest difference of the logarithms of two fits' hyperparameters, where the data can tell."""
    pairs = [(a["outputscale"], b["outputscale"]), (a["noise"], b["noise"])]
    varying = (X.std(0) > 0).tolist()
    pairs += [(p, q) for p, q, on in zip(a["lengthscales"], b["lengthscales"], varying, strict=True) if on and q < 20]
    return max(abs(math.log(p / q)) for p, q in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="a folder of tables")
    parser.add_argument("--names", nargs="+", default=["pol", "elevators"])
    parser.add_argument("--rows", type=int, default=1000, help="training rows; 0 is all of them")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--solver", default="auto")
    parser.add_argument("--starts", type=int, default=4)
    parser.add_argument(
        "--num-data", nargs="+", default=["auto"], help='rows that are fitted to: numbers, "auto", "all"'
    )
    parser.add_argument("--go-on", action="store_true", help="GPyTorch's search goes on from where matheron's ended")
    parser.add_argument("--no-peer", action="store_true", help="do not fit GPyTorch's model")
    parser.add_argument("--progress", action="store_true")
    parser.add_argument("--out", type=Path, help="a file to which results are added")
    options = parser.parse_args()
    for name, num_data in itertools.product(options.names, options.num_data):
        X, y, X_test, y_test = (part.to(options.device) for part in table(options.data, name, options.rows))
        on = {"auto": "auto", "all": None}[num_data] if num_data in ("auto", "all") else int(num_data)
        gp, seconds, cpu = fitted(X, y, options.solver, options.starts, on, options.progress)
        line: dict[str, Any] = {"table": name, "n": len(y), "d": X.shape[1], "solver": options.solver}
        line |= {"num_data": on, "device": options.device, "seconds": round(seconds, 2), "cpu_seconds": round(cpu, 2)}
        line["matheron"] = described(gp, X_test, y_test, options.device)
        if options.device == "cuda":
            line["peak_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
        if not options.no_peer:
            line["gpytorch"], taken = gpytorch_fitted(X, y, line["matheron"] if options.go_on else None)
            line["gpytorch_seconds"] = round(taken, 2)
            line["largest_log_difference"] = round(_apart(line["matheron"], line["gpytorch"], X), 4)
        print(json.dumps(line), flush=True)
        if options.out is not None:
            with options.out.open("a") as file:
                file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
