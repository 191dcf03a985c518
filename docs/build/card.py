"""Make the picture that other sites show beside a link to this one: `python docs/build/card.py`."""

from __future__ import annotations

from pathlib import Path

import torch
from matplotlib import pyplot as plt

import matheron

X = torch.tensor([[0.08], [0.2], [0.45], [0.5], [0.86]], dtype=torch.float64)
gp = matheron.ExactGP(
    matheron.kernels.Matern(2.5, 0.14), X, torch.sin(9 * X[:, 0]), noise=1e-4
)
paths = matheron.draw(gp, 14, domain=(0, 1), seed=3)
x = torch.linspace(0, 1, 600, dtype=torch.float64)[:, None]

figure = plt.figure(figsize=(12, 6.3), facecolor="#102a43")
axes = figure.add_axes((0, 0, 1, 0.72))
axes.plot(x, paths(x).T, color="#7db8f0", linewidth=1.3, alpha=0.75)
axes.plot(x, paths.mean(x), color="white", linewidth=2, linestyle="--")
axes.plot(X, gp.train_targets, "o", color="#ee8722", markersize=11)
axes.set_xlim(0, 1)
axes.axis("off")
figure.text(0.05, 0.83, "matheron", color="white", fontsize=46, fontweight="bold")
words = "Functions drawn from Gaussian process posteriors"
figure.text(0.05, 0.745, words, color="#cfe3f7", fontsize=22)
figure.savefig(Path(__file__).parent.parent / "assets/card.png", dpi=75)
