"""A field that is slow to compute, written by a process of its own: `python writing.py OUT SECONDS [ADDRESS]`."""

import sys
import time

import numpy as np
import torch

import matheron
from matheron import fields, kernels
from matheron.fields import simulation


def field(chunks=16):
    g = torch.Generator().manual_seed(0)
    X = torch.rand(10, 2, generator=g, dtype=torch.float64)
    gp = matheron.ExactGP(kernels.Matern(1.5, 0.4), X, X[:, 0], noise=1e-4)
    paths = matheron.draw(gp, 3, num_features=64, generator=g)
    axes = {"x": np.linspace(0, 1, 40), "y": np.linspace(0, 1, 32)}
    return fields.simulate(paths, axes, chunks=chunks)


def chunks_of(path):
    """The chunks that an unfinished write has in its store."""
    store = path.with_name(path.name + ".partial") / "field" / "c"
    return [file for file in store.rglob("*") if file.is_file() and file.suffix != ".partial"]


def slow_blocks(seconds):
    on_grid = simulation._on_grid

    def slowly(*args):
        time.sleep(seconds)
        return on_grid(*args)

    simulation._on_grid = slowly


if __name__ == "__main__":
    out, seconds, *address = sys.argv[1:]
    slow_blocks(float(seconds))
    fields.write(field(chunks=8), out, scheduler=address[0] if address else "sync")
