"""No stripes: a realisation's power is spread over frequencies as that of exact draws is.

A prior of few random frequencies has the right covariance, and yet shows as stripes in single realisations: its power
is in single waves. Each octave's largest power over its mean tells.
"""

import math

import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr
from typer.testing import CliRunner

import matheron
from matheron import fields, kernels
from matheron.cli import app
from matheron.compare.samplers import moments
from matheron.fields import field_models as models

SIDE = 48
REALISATIONS = 6


def peaks(realisations):
    """The largest power over the mean power in each octave, and the octave's share of the variance: `[s, octaves]`.

    Windowed by Hann's window, so that edges make no waves of their own.
    """
    window = np.outer(np.hanning(SIDE), np.hanning(SIDE))
    f = realisations - realisations.mean(axis=(1, 2), keepdims=True)
    power = np.abs(np.fft.fft2(f * window)) ** 2
    k = np.fft.fftfreq(SIDE, 1 / SIDE)
    octave = np.floor(np.log2(np.maximum(np.hypot(*np.meshgrid(k, k)), 0.5))).astype(int)
    octaves = range(math.ceil(np.log2(SIDE)) - 1)
    ratio = np.stack([power[:, octave == o].max(1) / power[:, octave == o].mean(1) for o in octaves], axis=1)
    share = np.stack([power[:, octave == o].sum(1) / power.sum((1, 2)) for o in octaves], axis=1)
    return ratio, share


def worst(realisations, mean, covariance):
    """The largest ratio, over octaves with a thousandth of the variance, of their peaks to those of exact draws."""
    L = np.linalg.cholesky(covariance + 1e-9 * np.trace(covariance) / len(covariance) * np.eye(len(covariance)))
    z = np.random.default_rng(0).standard_normal((64, len(covariance)))
    exact, share = peaks((mean + z @ L.T).reshape(-1, SIDE, SIDE))
    ours, _ = peaks(np.asarray(realisations))
    held = share.mean(0) > 1e-3
    assert held.sum() >= 2
    return float((np.median(ours, axis=0) / np.median(exact, axis=0))[held].max())


def data(n, low, high, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(low, high, (n, 2))
    return X, np.sin(X[:, 0] / 3) + rng.standard_normal(n) / 2


def posterior(model, axes):
    """Mean and covariance of a model of two coordinates on a grid `(y, x)`, in closed form."""
    x, y = axes.values()
    points = np.stack([v.ravel() for v in np.meshgrid(x, y)], axis=1)
    inner = model.inner if isinstance(model, fields.OnSphere) else model
    points = model.points(points) if isinstance(model, fields.OnSphere) else points
    mean, covariance = moments(inner, torch.as_tensor(points))
    return mean.numpy(), covariance.numpy()


PLACES = {
    "plane": (None, {"x": (0.0, 10.0), "y": (0.0, 8.0)}),
    "country": (60.0, {"lon": (24.0, 32.0), "lat": (-32.0, -26.0)}),
    "pole": (300.0, {"lon": (-180.0, 180.0), "lat": (75.0, 90.0)}),
    "dateline": (200.0, {"lon": (170.0, 195.0), "lat": (-25.0, -5.0)}),
    "continent": (600.0, {"lon": (-15.0, 50.0), "lat": (-35.0, 36.0)}),
    "globe": (1500.0, {"lon": (-180.0, 180.0), "lat": (-88.0, 88.0)}),
}


def model_at(place):
    """A model of a few data there, its kernel given."""
    length, box = PLACES[place]
    low, high = np.array(list(box.values())).T
    axes = {name: np.linspace(ends[0], ends[1], SIDE) for name, ends in box.items()}
    X, y = data(12, low, high)
    if length is None:
        return matheron.ExactGP(kernels.Matern(1.5, 1.0), X, y, noise=0.05), axes
    place_of = fields.fit_sphere(X, y, kernels.RBF(length), around=axes, noise=0.05, mean=0.0, num_starts=1)
    gp = matheron.ExactGP(kernels.Matern(1.5, length), place_of.points(X), y, noise=0.05)
    return place_of.with_inner(gp), axes


@pytest.mark.parametrize("place", PLACES)
def test_a_realisation_has_no_stripes(place):
    model, axes = model_at(place)
    paths = fields.draw_field(model, REALISATIONS, axes, seed=0)
    assert worst(fields.simulate(paths, axes), *posterior(model, axes)) < 2


def test_a_command_s_realisations_have_no_stripes(tmp_path, monkeypatch):
    """In degrees, with a model that is not searched for."""
    fit = models.fit
    monkeypatch.setattr(models, "fit", lambda k, X, y, **_: fit(k, X, y, noise=0.05, mean=0.0, num_starts=1))
    X, y = data(25, (24.0, -32.0), (32.0, -26.0))
    pd.DataFrame({"lon": X[:, 0], "lat": X[:, 1], "z": y}).to_csv(tmp_path / "w.csv", index=False)
    words = ["--x", "lon,lat", "--crs", "EPSG:4326", "--grid", f"{SIDE}x{SIDE}", "--paths", str(REALISATIONS)]
    result = CliRunner().invoke(app, ["field", str(tmp_path / "w.csv"), *words, "--out", str(tmp_path / "f.nc")])
    assert result.exit_code == 0, result.output
    with xr.open_dataset(tmp_path / "f.nc") as field:
        axes = {name: field[name].values for name in ("lon", "lat")}
        model = fields.fit_sphere(X, y, around=axes)
        assert worst(field["z"], *posterior(model, axes)) < 2
