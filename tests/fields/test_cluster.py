"""A real cluster, of several processes on this machine: right answers, also when a worker is killed."""

import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr
from distributed import Client, LocalCluster

import matheron
from matheron import fields, kernels

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster():
    with LocalCluster(
        n_workers=3, threads_per_worker=1, host="127.0.0.1", dashboard_address=":0", processes=True
    ) as cluster:
        yield cluster


@pytest.fixture
def client(cluster):
    with Client(cluster.scheduler_address, set_as_default=False) as client:
        client.wait_for_workers(2, timeout=120)  # one that was killed may not have come back yet
        yield client


def simulated(chunks=50, num_paths=4, features=512):
    g = torch.Generator().manual_seed(0)
    X = torch.rand(200, 2, generator=g, dtype=torch.float64)
    gp = matheron.ExactGP(kernels.Matern(1.5, 0.3), X, X[:, 0].sin(), noise=1e-4)
    paths = matheron.draw(gp, num_paths, num_features=features, generator=g)
    axes = {"x": np.linspace(0, 1, 300), "y": np.linspace(0, 1, 250)}
    return paths, fields.simulate(paths, axes, chunks=chunks)


def arrivals():
    return getattr(matheron.Paths, "arrived")  # noqa: B009


def count_arrivals():
    """Count in this process how often paths are unpickled."""
    plain = matheron.Paths.__setstate__
    setattr(matheron.Paths, "arrived", 0)  # noqa: B010 (pyright knows the attributes of Paths)

    def counted(self, state):
        setattr(matheron.Paths, "arrived", arrivals() + 1)  # noqa: B010
        plain(self, state)

    matheron.Paths.__setstate__ = counted


def test_workers_compute_the_same_field_and_do_not_receive_the_paths_with_every_block(client):
    _, field = simulated(chunks=25)  # 120 blocks
    client.run(count_arrivals)
    together = client.compute(field).result()
    arrived = client.run(arrivals)
    assert 1 <= max(arrived.values()) <= 2, arrived  # Dask may send a task twice
    np.testing.assert_allclose(together.values, field.compute(scheduler="sync").values, rtol=0, atol=1e-12)


@pytest.mark.parametrize("suffix", [".zarr", ".nc"])
def test_a_worker_killed_mid_run_costs_time_and_no_block(client, tmp_path, suffix, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent)
    from writing import chunks_of

    _, field = simulated(chunks=15)  # 340 blocks
    path = tmp_path / f"field{suffix}"
    victim = next(iter(client.run(os.getpid).values()))
    killed = []

    def kill():
        end = time.monotonic() + 120
        while time.monotonic() < end and len(chunks_of(path)) < 20:
            time.sleep(0.01)
        killed.append(len(chunks_of(path)))
        os.kill(victim, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    fields.write(field, path, scheduler=client.scheduler.address)
    killer.join()
    assert killed[0] < 340  # it was mid-run
    opened = xr.open_zarr(path)["field"] if suffix == ".zarr" else xr.open_dataarray(path)
    with opened:
        np.testing.assert_allclose(opened.values, field.compute(scheduler="sync").values, rtol=0, atol=1e-12)
    assert victim not in client.run(os.getpid).values()


def test_a_field_computed_while_a_worker_dies_is_whole(client):
    _, field = simulated(chunks=25)
    future = client.compute(field)
    time.sleep(0.3)
    os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)
    np.testing.assert_allclose(future.result().values, field.compute(scheduler="sync").values, rtol=0, atol=1e-12)


def test_the_command_computes_on_a_cluster(cluster, tmp_path):
    import pandas as pd
    from typer.testing import CliRunner

    from matheron.cli import app

    rng = np.random.default_rng(0)
    x, y = rng.random((2, 15))
    pd.DataFrame({"x": x, "y": y, "z": np.sin(5 * x) + y}).to_csv(tmp_path / "w.csv", index=False)
    words = ["field", str(tmp_path / "w.csv"), "--grid", "30x30", "--chunks", "10", "--paths", "3"]
    for name, where in (("here", []), ("there", ["--dask", cluster.scheduler_address])):
        result = CliRunner().invoke(app, [*words, "--out", str(tmp_path / f"{name}.nc"), *where])
        assert result.exit_code == 0, result.output
    with xr.open_dataset(tmp_path / "here.nc") as here, xr.open_dataset(tmp_path / "there.nc") as there:
        np.testing.assert_allclose(here["z"], there["z"], rtol=0, atol=1e-12)
