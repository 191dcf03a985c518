"""Several processes share a draw: the same paths as one makes alone; and where one of them dies, all end."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from examples import rand, randn
from matheron import ExactGP, draw, solvers
from matheron import kernels as K

ROOT = Path(__file__).parents[2]

SHARED = """
import os, sys, torch, torch.distributed as dist
from datetime import timedelta
from matheron import ExactGP, Sites, draw, kernels as K, solvers
from matheron.solvers.operator import KernelOperator
from matheron.solvers import State
dist.init_process_group("gloo", timeout=timedelta(seconds=60))
g = torch.Generator().manual_seed(0)
n = 301
X = torch.rand(n, 2, generator=g, dtype=torch.float64)
y = (5 * X).sin().sum(1)
kernel = K.Coregional(K.Matern(1.5, 0.3), [[1.0, 0.4], [0.4, 0.8]]) if "tasks" in sys.argv else K.Matern(1.5, 0.3)
tasks = torch.arange(n) % 2 if "tasks" in sys.argv else None
noise = 1e-3
if "clusters" in sys.argv:  # weights that float32 has too few digits for; every observation has noise of its own
    kernel, X = K.RBF(0.5), X[:7].repeat_interleave(43, 0) + 0.01 * torch.randn(n, 2, generator=g, dtype=torch.float64)
    X = X.float().double()
    noise = 10.0 ** (-6 + 2 * torch.rand(n, generator=g, dtype=torch.float64))
if "few" in sys.argv:  # a process of three has none of them
    X, y = X[:4], y[:4]
gp = ExactGP(kernel, X, y, noise, tasks=tasks)
"""

DRAW = (
    SHARED
    + """
single = "single" in sys.argv or "clusters" in sys.argv
dtype, tolerance = (torch.float32, 1e-3) if single else (torch.float64, 1e-4)
settings = dict(seed=1, features="sobol", num_features=64, dtype=dtype)
paths = draw(gp, 4, solver=solvers.PCG(tolerance=tolerance, rank=60, distributed=True), **settings)
alone = draw(gp, 4, solver=solvers.PCG(tolerance=tolerance, rank=60), **settings)
exact = draw(gp, 4, solver="cholesky", **settings)
x = X[:50].to(dtype)
v = paths.update.weights
all_v = [torch.empty_like(v) for _ in range(dist.get_world_size())]
dist.all_gather(all_v, v.contiguous())
assert all(torch.equal(v, other) for other in all_v), "processes have different paths"
assert v.dtype == exact.update.weights.dtype == alone.update.weights.dtype
assert v.dtype == (torch.float64 if "clusters" in sys.argv else dtype)
counts = [p.solver_stats.iterations for p in (paths, alone)]
assert abs(counts[0] - counts[1]) <= 2 + 0.2 * counts[1], counts
torch.testing.assert_close(paths(x), exact(x), rtol=1e-3, atol=2e-5 if "clusters" in sys.argv else 1e-3)
operator = KernelOperator(kernel, Sites(X, tasks), gp.noise)
rows = torch.arange(0, len(X), 3)
for share in (lambda state: state.deviations(rows), lambda state: State.deviations(state, rows)):
    states = [solvers.PCG(rank=60, distributed=d).init(operator) for d in (True, False)]
    torch.testing.assert_close(*map(share, states))
print("same paths", flush=True)
dist.destroy_process_group()
"""
)

DIE = (
    SHARED
    + """
from matheron.solvers.operator import KernelOperator
whole, products = KernelOperator.product_rows, []
def product_rows(self, index, V):
    products.append(1)
    if len(products) == 5 and dist.get_rank() == 1:
        print("dying", flush=True)
        os._exit(9)
    return whole(self, index, V)
KernelOperator.product_rows = product_rows
draw(gp, 4, solver=solvers.PCG(tolerance=1e-8, rank=5, distributed=True), seed=1, features="sobol")
print("finished", flush=True)
"""
)


def start(code: str, count: int, *arguments: str) -> list[subprocess.Popen[str]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    return [
        subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            env={**os.environ, **common, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("case", ["plain", "tasks", "single", "clusters", "few"])
@pytest.mark.parametrize("count", [2, 3])
def test_several_processes_make_the_paths_that_one_makes(count, case):
    for process in start(DRAW, count, case):
        out, err = process.communicate(timeout=240)
        assert process.returncode == 0 and "same paths" in out, err


@pytest.mark.slow
def test_where_one_process_dies_the_others_end_with_a_clear_error():
    began = time.monotonic()
    processes = start(DIE, 3)
    results = [process.communicate(timeout=240) for process in processes]
    assert time.monotonic() - began < 200
    assert processes[1].returncode == 9 and "dying" in results[1][0]
    for rank in (0, 2):
        assert processes[rank].returncode not in (0, None) and "finished" not in results[rank][0]
        assert "has lost the others: one of them ended or cannot be reached" in results[rank][1]


@pytest.mark.slow
def test_the_torchrun_example_runs():
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = [str(ROOT / "benchmarks/distributed.py"), "--size", "400", "--paths", "3", "--check"]
    done = subprocess.run(command + script, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "2 processes, n = 400" in done.stdout and "against a dense factor" in done.stdout


def test_without_a_group_it_is_refused():
    gp = ExactGP(K.RBF(0.4), rand(5, 2), randn(5), 0.1)
    with pytest.raises(RuntimeError, match=r"torch\.distributed to be initialised; start the script with torchrun"):
        draw(gp, 1, solver=solvers.PCG(distributed=True))


def test_one_process_has_every_row():
    everyone = solvers.Processes()
    assert everyone.part(7) == slice(0, 7) and torch.equal(everyone.gather(torch.arange(7), 7), torch.arange(7))
