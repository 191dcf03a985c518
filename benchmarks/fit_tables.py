"""matheron.fit on 26 small tables, beside scikit-learn, and on 8 of outcomes: log marginal likelihood and CPU time.

    python benchmarks/fit_tables.py --data DATA --out new.json
    python benchmarks/fit_tables.py --data DATA --out new.json --against old.json      the difference to another run
    python benchmarks/fit_tables.py --only wave trend --starts 2 --no-peer

DATA is a folder of NAME.csv.gz as for `fit.py`; without it scikit-learn's own tables and synthetic ones remain.
scikit-learn's model has the same kernel, no mean on standardised targets, and its default single start. Outcomes are
classes, counts, successes, and measurements with outliers, and their likelihood is Laplace's approximation. One line
per table: nats of matheron's fit, of scikit-learn's, of the run compared with, and CPU seconds.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import sklearn.datasets
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk

import matheron
from matheron import kernels as K
from matheron import likelihoods

toys: Any = sklearn.datasets
BOUNDS: Any = (1e-3, 1e3)


class Table(NamedTuple):
    name: str
    X: np.ndarray
    y: np.ndarray
    kernel: Any
    peer: Any = None  # scikit-learn's kernel, without noise
    tasks: np.ndarray | None = None
    likelihood: likelihoods.Likelihood | None = None


def ard(name: str, X: np.ndarray, y: np.ndarray, smoothness: float = 1.5, length: float = 1.0) -> Table:
    """A table for a Matern kernel with a lengthscale per column, where matheron's first start has `length`."""
    X, y = np.asarray(X, float), np.asarray(y, float)
    keep = np.ptp(X, axis=0) > 0
    X = X[:, keep]
    ones: Any = np.ones(X.shape[1])
    peer = sk.ConstantKernel(1.0, (1e-6, 1e6)) * sk.Matern(ones, BOUNDS, nu=smoothness)
    return Table(name, X, y, 1.0 * K.Matern(smoothness, torch.full((X.shape[1],), length, dtype=torch.float64)), peer)


def periodic(name: str, X: np.ndarray, y: np.ndarray, trend: bool) -> Table:
    constant: Any = (1e-6, 1e6)
    kernel, peer = 1.0 * K.Periodic(1.0, 1.0), sk.ConstantKernel(1.0, constant) * sk.ExpSineSquared(1.0, 1.0)
    if trend:
        kernel, peer = kernel + 1.0 * K.RBF(1.0), peer + sk.ConstantKernel(1.0, constant) * sk.RBF(1.0, BOUNDS)
    return Table(name, X, y, kernel, peer)


def tables(folder: Path | None) -> Iterator[Table]:
    if folder is not None:
        for name in ("bike", "elevators", "keggdirected", "kin40k", "protein"):
            A = np.loadtxt(folder / f"{name}.csv.gz", delimiter=",")
            A = A[np.random.RandomState(0).permutation(len(A))[:300]]
            yield ard(name, A[:, :-1], A[:, -1])
        A = np.loadtxt(folder / "pol.csv.gz", delimiter=",")
        yield ard("pol", *(lambda B: (B[:, :-1], B[:, -1]))(A[np.random.RandomState(0).permutation(len(A))[:600]]))
    X, y = toys.load_diabetes(return_X_y=True)
    yield ard("diabetes", X, y)
    X, y = toys.load_linnerud(return_X_y=True)
    yield ard("linnerud", X, y[:, 0])
    X = toys.load_iris(return_X_y=True)[0]
    yield ard("iris", X[:, :3], X[:, 3])
    X = toys.load_wine(return_X_y=True)[0]
    yield ard("wine", X[:, 1:], X[:, 0])
    for i, make in enumerate((toys.make_friedman1, toys.make_friedman2, toys.make_friedman3)):
        noise = (1.0, 100.0, 0.1)[i]
        yield ard(f"friedman{i + 1}", *make(n_samples=200, noise=noise, random_state=0), smoothness=2.5)
    r = np.random.default_rng(0)
    t = r.uniform(0, 50, (250, 1))
    yield ard("waves", t, np.sin(2 * np.pi * t[:, 0]) + 0.1 * r.standard_normal(250), 2.5, 14.0)
    X = r.uniform(0, 10, (150, 3))
    wave = 0.2 * np.sin(2 * X[:, 0]) + 0.1 * r.standard_normal(150)
    yield ard("trend", X, X @ [3.0, 6.0, 9.0] + wave, 2.5)
    X = r.uniform(0, 10, (300, 2))
    yield ard("waves in 2-d", X, np.sin(6 * X[:, 0]) * np.cos(X[:, 1]) + 0.1 * r.standard_normal(300), 2.5, 3.0)
    X = r.standard_normal((200, 8))
    yield ard("six idle columns", X, np.sin(3 * X[:, 0]) + X[:, 1] ** 2 + 0.1 * r.standard_normal(200))
    X = r.standard_normal((150, 4))
    yield ard("mostly noise", X, 0.3 * np.sin(2 * X[:, 0]) + r.standard_normal(150), 2.5)
    X = r.uniform(0, 1, (100, 2))
    yield ard("no noise", X, np.sin(6 * X[:, 0]) + X[:, 1] ** 2, 2.5)
    X = np.append(r.uniform(0, 10, (80, 1)), [[1e5]], 0)
    yield ard("an input far away", X, np.sin(X[:, 0]) * (X[:, 0] < 20) + 0.1 * r.standard_normal(81), 2.5)
    X = np.repeat(r.uniform(0, 5, (50, 1)), 3, 0)
    yield ard("copies", X, np.sin(2 * X[:, 0]) + 0.3 * r.standard_normal(150), 2.5)
    t = r.uniform(0, 120, (100, 1))
    y = np.sin(2 * np.pi * t[:, 0] / 13) + 0.05 * t[:, 0] + 0.1 * r.standard_normal(100)
    yield periodic("period and trend", t, y, True)
    t = r.uniform(0, 1, (120, 1))
    yield periodic("77 turns", t, np.sin(2 * np.pi * 77 * t[:, 0]) + t[:, 0] + 0.1 * r.standard_normal(120), True)
    t = np.linspace(0, 20, 150)[:, None]
    y = np.sin(2 * np.pi * t[:, 0] / 1.3) + 0.7 * np.sin(2 * np.pi * t[:, 0] / 4.1) + 0.1 * r.standard_normal(150)
    yield Table("two periods", t, y, 1.0 * K.Periodic(1.0, 1.0) + 1.0 * K.Periodic(1.0, 1.0))
    t = r.uniform(0, 10, (160, 1))
    y = 2 * np.sin(t[:, 0] / 2) + 0.1 * r.standard_normal(160)
    y += 0.5 * np.sin(10 * t[:, 0] + 2 * np.cos(7 * t[:, 0]))
    yield Table("two scales", t, y, 1.0 * K.RBF(1.0) + 1.0 * K.RBF(1.0))
    t = r.uniform(0, 6, (160, 1))
    tasks = np.arange(160) % 2
    y = np.sin(2 * t[:, 0]) * (1 - 1.9 * tasks) + 0.1 * r.standard_normal(160)
    yield Table("two outputs", t, y, K.Coregional(K.RBF(1.0), torch.eye(2, dtype=torch.float64)), None, tasks)
    yield from outcomes()


def outcomes() -> Iterator[Table]:
    def table(
        name: str, X: np.ndarray, y: np.ndarray, likelihood: likelihoods.Likelihood, length: float = 1.0
    ) -> Table:
        lengths = torch.full((X.shape[1],), length, dtype=torch.float64)
        return Table(name, X, y.astype(float), 1.0 * K.Matern(2.5, lengths), likelihood=likelihood)

    r = np.random.default_rng(1)
    X, y = toys.load_breast_cancer(return_X_y=True)
    yield table("tumours", X[:300, :8], y[:300], likelihoods.Bernoulli())
    X, y = toys.load_iris(return_X_y=True)
    yield table("irises", X[50:], y[50:] == 2, likelihoods.Bernoulli("probit"))
    X = r.uniform(0, 10, (400, 2))
    yes = r.uniform(size=400) < 1 / (1 + np.exp(-3 * np.sin(X[:, 0])))
    yield table("classes in 2-d", X, yes, likelihoods.Bernoulli())
    X = r.standard_normal((250, 6))
    counts = r.poisson(np.exp(1 + np.sin(2 * X[:, 0]) + 0.5 * X[:, 1]))
    yield table("counts, idle columns", X, counts, likelihoods.Poisson())
    X = r.uniform(0, 1, (120, 2))
    yield table("successes", X, r.binomial(10, 0.5 + 0.4 * np.sin(8 * X[:, 0])), likelihoods.Binomial(10))
    X = r.uniform(0, 10, (200, 2))
    y = np.sin(X[:, 0]) + 0.3 * X[:, 1] + 0.1 * r.standard_t(2, 200)
    yield table("outliers", X, y, likelihoods.StudentT())
    r = np.random.default_rng(2)
    t = r.uniform(0, 50, (250, 1))
    counts = r.poisson(np.exp(1 + np.sin(2 * np.pi * t[:, 0])))
    yield table("counts of waves", t, counts, likelihoods.Poisson(), 14.0)
    t = r.uniform(0, 10, (200, 1))
    counts = r.poisson(np.exp(1 + np.sin(t[:, 0] / 1.5) + 0.5 * np.sin(14 * t[:, 0]))).astype(float)
    kernel = 1.0 * K.Periodic(1.0, 1.0) + 1.0 * K.RBF(1.0)
    yield Table("counts with a period", t, counts, kernel, likelihood=likelihoods.Poisson())


def fitted(table: Table, starts: int, seed: int) -> tuple[float, float]:
    """The log marginal likelihood of matheron's fit, and its CPU time."""
    X, y = torch.from_numpy(table.X), torch.from_numpy(table.y)
    tasks = None if table.tasks is None else torch.from_numpy(table.tasks)
    begin = time.process_time()
    settings: Any = {"num_starts": starts, "seed": seed, "priors": {}}
    gp = matheron.fit(table.kernel, X, y, likelihood=table.likelihood, tasks=tasks, **settings)
    taken = time.process_time() - begin
    return float(matheron.log_marginal_likelihood(gp)), taken


def peer_fitted(table: Table) -> tuple[float, float]:
    """The same of scikit-learn's."""
    X, y = (table.X - table.X.mean(0)) / table.X.std(0), (table.y - table.y.mean()) / table.y.std()
    begin = time.process_time()
    model: Any = GaussianProcessRegressor(table.peer + sk.WhiteKernel(1.0, (1e-6, 1e2)), alpha=0.0).fit(X, y)
    taken = time.process_time() - begin
    return float(model.log_marginal_likelihood_value_ - len(y) * np.log(table.y.std())), taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="a folder of tables")
    parser.add_argument("--only", nargs="+", default=[""], help="tables whose names have one of these in them")
    parser.add_argument("--starts", type=int, default=4)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--no-peer", action="store_true", help="do not fit scikit-learn's model")
    parser.add_argument("--out", type=Path, help="a file for the results")
    parser.add_argument("--against", type=Path, help="results of another run")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    found: dict[str, dict[str, float]] = {}
    other = json.loads(options.against.read_text()) if options.against else {}
    for table in tables(options.data):
        if not any(part in table.name for part in options.only):
            continue
        for seed in options.seeds:
            name = f"{table.name}, {seed}"
            nats, seconds = fitted(table, options.starts, seed)
            found[name] = {"nats": nats, "seconds": seconds}
            line = f"{name:24} n {len(table.y):4} {nats:10.2f} nats {seconds:6.2f} s"
            if table.peer is not None and not options.no_peer and seed == options.seeds[0]:
                found[name]["peer"], taken = peer_fitted(table)
                line += f"   scikit-learn {found[name]['peer']:10.2f} ({taken:.2f} s)"
            if name in other:
                line += f"   {nats - other[name]['nats']:+8.2f} nats, time x {seconds / other[name]['seconds']:.2f}"
            print(line, flush=True)
    both = [name for name in found if name in other]
    total = sum(found[name]["seconds"] for name in found)
    print(f"CPU {total:.1f} s" + (f", {sum(other[name]['seconds'] for name in both):.1f} s" if both else ""))
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
