"""Regression tables from a folder: inputs and a target standardised, split into training and test rows, with a model.

The folder holds `NAME.csv.gz` (rows: inputs, then the target; no header) and `hyperparameters.json`: noise and signal
as standard deviations and `ls` lengthscales of a Matern-3/2 kernel, by name.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import matheron
from matheron import kernels


@dataclass
class Table:
    """A table, 90% of it for training; everything is in standardised units."""

    name: str
    X: Tensor
    y: Tensor
    X_test: Tensor
    y_test: Tensor
    kernel: kernels.Kernel | None
    noise: float

    def gp(self, rows: int | None = None) -> matheron.ExactGP:
        assert self.kernel is not None, f"hyperparameters.json has no {self.name}"
        return matheron.ExactGP(self.kernel, self.X[:rows], self.y[:rows], self.noise)


def read(folder: Path, name: str, dtype: torch.dtype, device: str) -> Table:
    """A table of the folder; its split is the seeded permutation that others have used for these data."""
    rows = np.loadtxt(folder / f"{name}.csv.gz", delimiter=",")
    rows = (rows - rows.mean(0)) / np.where(rows.std(0) > 0, rows.std(0), 1.0)
    rows = rows[np.random.RandomState(0).permutation(len(rows))]
    data = torch.as_tensor(rows).to(device, dtype)
    cut = int(0.9 * len(data))
    known = json.loads((folder / "hyperparameters.json").read_text()).get(name)
    kernel, noise = None, 0.0
    if known is not None:
        kernel = known["signal"] ** 2 * kernels.Matern(1.5, torch.tensor(known["ls"], dtype=torch.float64))
        kernel, noise = kernel.to(torch.device(device)), known["noise"] ** 2
    return Table(name, data[:cut, :-1], data[:cut, -1], data[cut:, :-1], data[cut:, -1], kernel, noise)
