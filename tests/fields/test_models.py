"""Models of the trade: names, oblique anisotropy, drift, the sphere, variograms, cokriging, space and time."""

import math
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr

import matheron
from matheron import fields, kernels
from matheron.compare.samplers import moments
from matheron.fields import field_models as models
from matheron.fields.field_models import RasterMean


def points(n, d=2, seed=0):
    return torch.rand(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# Covariances by name


@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("spherical", lambda h: np.where(h < 1, 1 - 1.5 * h + 0.5 * h**3, 0.0)),
        ("exponential", lambda h: np.exp(-3 * h)),
        ("gaussian", lambda h: np.exp(-3 * h**2)),
    ],
)
def test_a_name_stands_for_its_formula(name, formula):
    r = np.linspace(0, 500, 23)
    k = fields.covariance(name, range=300.0, sill=2.5)
    np.testing.assert_allclose(k(np.zeros((1, 1)), r[:, None])[0], 2.5 * formula(r / 300), atol=1e-12)


def test_ranges_hold_along_and_across_an_angle():
    k = fields.covariance("spherical", range=[4.0, 1.0], angle=30.0)
    along = np.array([math.cos(math.radians(30)), math.sin(math.radians(30))])
    across = np.array([-along[1], along[0]])
    k_along, k_across = (k(np.zeros((1, 2)), (np.array([[0.5], [2.0]]) * v))[0] for v in (along, across))
    plain = kernels.Spherical(1.0)
    np.testing.assert_allclose(k_along, plain([[0.0]], [[0.125], [0.5]])[0], atol=1e-12)
    np.testing.assert_allclose(k_across, plain([[0.0]], [[0.5], [2.0]])[0], atol=1e-12)


def test_names_that_are_none_are_refused():
    with pytest.raises(ValueError, match="expected one of spherical, exponential, gaussian, got 'cubic'"):
        fields.covariance("cubic", range=1.0)
    with pytest.raises(ValueError, match="in up to 3 dimensions, got 4"):
        matheron.draw_prior(kernels.Spherical(), 1, input_dim=4)
    with pytest.raises(TypeError, match="expected a stationary kernel"):
        matheron.draw_prior(kernels.Rotated(kernels.Linear(), 10.0), 1, input_dim=2)
    with pytest.raises(ValueError, match="at least 2 dimensions, got 1"):
        matheron.draw_prior(kernels.Rotated(kernels.RBF(), 10.0), 1, input_dim=1)


@pytest.mark.parametrize("kernel", [kernels.Spherical(0.7), kernels.Rotated(kernels.Matern(1.5, [0.6, 0.2]), 40.0)])
def test_draws_have_the_kernel_s_covariance(kernel):
    x = points(12)
    paths = matheron.draw_prior(
        kernel, 4000, input_dim=2, num_features=2048, generator=torch.Generator().manual_seed(0)
    )
    f = paths(x)
    assert float((f.mT @ f / 4000 - kernel(x)).abs().max()) < 5 / math.sqrt(4000) + 5 / math.sqrt(2048)


def test_the_spherical_measure_s_density_is_the_kernel_s_transform():
    """In 1, 2 and 3 dimensions by quadrature over radii: k(r) = int S(t) cos(t . r)."""
    from scipy import special

    u = (np.arange(400_000) + 0.5) * 0.01
    r = np.array([0.2, 0.5, 0.9])
    for d in (1, 2, 3):
        theta = torch.zeros(len(u), d, dtype=torch.float64)
        theta[:, 0] = torch.from_numpy(u)
        S = kernels.Spherical(1.0).measure(d).density(theta)
        assert S is not None
        ur = u * r[:, None]
        wave = {1: 2 * np.cos(ur), 2: 2 * np.pi * u * special.j0(ur), 3: 4 * np.pi * u**2 * np.sinc(ur / np.pi)}[d]
        k = (wave * S.numpy()).sum(1) * 0.01
        np.testing.assert_allclose(k, kernels.Spherical(1.0)([[0.0]], r[:, None])[0], atol=3e-3)


def test_a_fit_keeps_the_angle_and_finds_the_lengths():
    g = torch.Generator().manual_seed(3)
    X = 100 * torch.rand(150, 2, generator=g, dtype=torch.float64)
    truth = 4.0 * kernels.Rotated(kernels.Matern(1.5, [60.0, 10.0]), 35.0)
    y = matheron.draw_prior(truth, 1, input_dim=2, num_features=4096, generator=g)(X)[0]
    gp = matheron.fit(truth, X, y, noise=1e-4, num_starts=1)
    found = matheron.summary(gp).rows
    along, across = (found[f"Matern.lengthscale[{way}]"] for way in ("along", "across"))
    assert 3 < along / across < 12 and 5 < across < 20, found


# External drift


def raster():
    x, y = np.linspace(0, 10, 41), np.linspace(0, 8, 33)
    return xr.DataArray(np.add.outer(np.cos(y), 0.3 * x**1.5), {"y": y, "x": x}, ("y", "x"))


def test_a_raster_is_a_mean_with_its_gradient():
    cells = raster()
    mean = RasterMean(*fields.field_models.as_raster(cells.isel(y=slice(None, None, -1))))
    x = points(50) * torch.tensor([12.0, 9.0]) - 1  # beyond the edges too
    inside = cells.interp(
        x=xr.DataArray(x[:, 0].clamp(0, 10).numpy(), dims="p"), y=xr.DataArray(x[:, 1].clamp(0, 8).numpy(), dims="p")
    )
    np.testing.assert_allclose(mean(x)[:, 0], inside, atol=1e-12)
    value, slope = mean.with_gradient(x)
    step = 1e-6
    for i in (0, 1):
        ahead = x.clone()
        ahead[:, i] += step
        numeric = (mean(ahead) - value) / step
        close = (numeric - slope[..., i]).abs()[:, 0]
        assert float(close.median()) < 1e-5  # all but those at an edge
    assert mean(x[None]).shape == (1, 50, 1)


def test_a_drift_is_found_and_is_part_of_the_paths(tmp_path):
    cells = raster()
    X = points(60) * torch.tensor([10.0, 8.0])
    c = RasterMean(*fields.field_models.as_raster(cells))(X)[:, 0]
    y = 7 - 2 * c + 0.1 * torch.sin(X[:, 0] * 2)
    gp = fields.fit_drift(X, y, cells, num_starts=1)
    np.testing.assert_allclose(gp.mean.coefficients, [7, -2], atol=0.2)
    paths = matheron.draw(gp, 3)
    field = fields.simulate(paths, cells, chunks=20).compute()
    assert float(np.abs(field - (7 - 2 * cells)).max()) < 1.0
    paths.save(tmp_path / "p.safetensors")
    again = matheron.load(tmp_path / "p.safetensors")
    torch.testing.assert_close(again(X), paths(X), rtol=0, atol=1e-11)


def test_several_variables_are_fitted_with_all_their_observations(monkeypatch):
    monkeypatch.setattr(models, "FITTED", 10)
    X = torch.linspace(0, 1, 12, dtype=torch.float64)[:, None].repeat(1, 2)
    tasks = torch.arange(12) % 2
    kernel = kernels.Coregional(kernels.Matern(1.5, 0.5), [[1.0, 0.5], [0.5, 1.0]])
    gp = fields.fit_field(X, X[:, 0].sin(), kernel, tasks=tasks, num_starts=1)
    assert gp.num_data == 12 and gp.num_outputs == 2
    noise = torch.full((12,), 0.1)
    assert fields.fit_field(X, X[:, 0].sin(), kernels.RBF(0.5), noise=noise, num_starts=1).num_data == 12


def test_many_observations_are_fitted_by_some_and_condition_by_all(monkeypatch):
    X, y = points(40), points(40)[:, 0].sin()
    monkeypatch.setattr(models, "FITTED", 10)
    few = fields.fit_field(X, 5 + 3 * y, noise=1e-3, num_starts=1)
    some = torch.randperm(40, generator=torch.Generator().manual_seed(0))[:10]
    alone = matheron.fit(
        models._first_guess(X, 5 + 3 * y, isotropic=False), X[some], (5 + 3 * y)[some], noise=1e-3, num_starts=1, seed=0
    )
    assert few.num_data == 40 and alone.num_data == 10
    torch.testing.assert_close(matheron.draw(few, 1, seed=0).mean(X), 5 + 3 * y, atol=0.1, rtol=0)
    np.testing.assert_allclose(float(few.noise[0]), float(alone.noise[0]), rtol=1e-6)


def test_a_list_of_points_is_a_box_too():
    """For functions on a lattice, in the plane and in a region's plane."""
    rng = np.random.default_rng(0)
    lonlat = rng.uniform(0, 5, (30, 2))
    lonlat[3] = np.nan
    known = np.delete(lonlat, 3, axis=0)
    model = fields.fit_sphere(known, known[:, 0], kernels.RBF(500.0), noise=0.1, num_starts=1)
    for gp in (model, matheron.ExactGP(kernels.RBF(2.0), known, known[:, 0], noise=0.1)):
        paths = fields.draw_field(gp, 2, lonlat, seed=0)
        assert "lattice" in repr(paths)
        f = fields.simulate(paths, lonlat).values
        assert np.isnan(f[:, 3]).all() and np.isfinite(np.delete(f, 3, axis=1)).all()


def test_rasters_that_are_none_are_refused():
    X, y = points(5), torch.rand(5, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"expected an xarray.DataArray of dims \(y, x\)"):
        fields.fit_drift(X, y, np.zeros((3, 3)))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least two cells per side"):
        fields.fit_drift(X, y, raster()[:1])
    gap = raster()
    gap[3, 3] = np.nan
    with pytest.raises(ValueError, match="got gaps"):
        fields.fit_drift(X, y, gap)


# The sphere


def test_chords_are_nearly_great_circles_and_the_date_line_is_no_edge():
    a, b = fields.on_sphere([[10.0, 50.0], [11.0, 50.5]])
    lon, lat = np.radians([10.0, 11.0]), np.radians([50.0, 50.5])
    h = np.sin((lat[1] - lat[0]) / 2) ** 2 + np.cos(lat[0]) * np.cos(lat[1]) * np.sin((lon[1] - lon[0]) / 2) ** 2
    assert float((a - b).norm()) == pytest.approx(2 * 6371 * np.arcsin(np.sqrt(h)), rel=1e-4)
    g = torch.Generator().manual_seed(0)
    paths = matheron.draw_prior(kernels.Matern(1.5, 2000.0), 2, input_dim=3, generator=g)
    world = fields.OnSphere(paths)
    both = world([[180.0, 10.0], [-180.0, 10.0], [0.0, 90.0], [77.0, 90.0]])
    torch.testing.assert_close(both[:, 0], both[:, 1])
    torch.testing.assert_close(both[:, 2], both[:, 3])
    field = fields.simulate(world, {"lon": np.linspace(-180, 180, 9), "lat": np.linspace(-90, 90, 5)}, chunks=3)
    assert field.dims == ("path", "lat", "lon")
    np.testing.assert_allclose(field[:, :, 0], field[:, :, -1], atol=1e-9)
    with pytest.raises(ValueError, match="latitudes beyond 90"):
        world([[10.0, 95.0]])
    with pytest.raises(ValueError, match="got of 2 inputs"):
        fields.OnSphere(matheron.draw_prior(kernels.RBF(), 1, input_dim=2))


def test_points_of_a_sphere_and_longitudes_with_latitudes_are_fitted_alike():
    """One lengthscale for all directions, whichever way they are given."""
    rng = np.random.default_rng(0)
    world = np.stack([rng.uniform(-180, 180, 60), rng.uniform(-60, 60, 60)], axis=1)
    y = np.sin(np.radians(world[:, 0])) + 0.1 * rng.standard_normal(60)
    by_hand = matheron.summary(fields.fit_field(fields.on_sphere(world), y, num_starts=1)).rows
    model = fields.fit_sphere(world, y, num_starts=1)
    assert model.centre is None and list(by_hand)[:3] == [
        "Matern.outputscale",
        "Matern.lengthscale",
        "noise standard dev",
    ]
    assert matheron.summary(model.inner).rows == by_hand
    country = world / [18.0, 6.0]  # where the plane's distances are the chords', nearly
    flat = fields.fit_sphere(country, y, num_starts=1)
    chords = matheron.summary(fields.fit_field(fields.on_sphere(country), y, num_starts=1)).rows
    assert flat.centre is not None
    for name, value in matheron.summary(flat.inner).rows.items():
        assert value == pytest.approx(chords[name], rel=0.03), name


@pytest.mark.parametrize("centre", [(28.0, -29.0), (180.0, 0.0), (77.0, 90.0), (-10.0, -89.0)])
def test_a_region_s_plane_keeps_distances_within_its_stated_distortion(centre):
    rng = np.random.default_rng(0)
    x, y, z = directions = rng.standard_normal((3, 4000))
    lonlat = np.degrees([np.arctan2(y, x), np.arctan2(z, np.hypot(x, y))]).T
    chord = np.linalg.norm(
        directions.T / np.linalg.norm(directions.T, axis=1, keepdims=True) - fields.on_sphere([centre], 1.0).numpy(),
        axis=1,
    )
    angle = 2 * np.degrees(np.arcsin(chord / 2))
    near = lonlat[angle < 25]
    assert len(near) > 100
    plane, space = fields.on_plane(near, centre), fields.on_sphere(near)
    from_centre = np.hypot(*plane.numpy().T)
    np.testing.assert_allclose(from_centre, 6371 * np.radians(angle[angle < 25]), rtol=1e-9)
    arcs = 2 * 6371 * torch.asin(torch.cdist(space, space) / 2 / 6371)
    ratio = (torch.cdist(plane, plane) / arcs)[~torch.eye(len(near), dtype=torch.bool)]
    assert 1 - 1e-9 < float(ratio.min()) and float(ratio.max()) < 1.033


def test_regions_are_told_from_continents_wherever_they_are():
    rng = np.random.default_rng(0)
    y = rng.standard_normal(40)
    boxes = {
        "country": ([24, -32], [32, -26], True), "dateline": ([165, -30], [195, 0], True),
        "pole": ([-180, 70], [180, 90], True), "hemisphere": ([-90, -60], [90, 60], False),
        "ring": ([-180, 50], [180, 60], False),
    }  # fmt: skip
    for name, (low, high, region) in boxes.items():
        lonlat = rng.uniform(low, high, (40, 2))
        model = fields.fit_sphere(lonlat, y, kernels.Matern(1.5, 500.0), noise=0.1, mean=0.0, num_starts=1)
        assert (model.centre is not None) == region, name
    few = rng.uniform([0, 0], [5, 5], (40, 2))
    world = {"lon": np.linspace(-180, 180, 9), "lat": np.linspace(-80, 80, 5)}
    settings: dict[str, Any] = dict(noise=0.1, mean=0.0, num_starts=1)
    assert fields.fit_sphere(few, y, kernels.RBF(900.0), around=world, **settings).centre is None
    model = fields.fit_sphere(few, y, kernels.RBF(900.0), **settings)
    paths = fields.draw_field(model, 2, {"lon": [0.0, 5.0], "lat": [0.0, 5.0]}, seed=0)
    with pytest.raises(ValueError, match=r"outside of the box.*fields.draw_field\(model, 2, grid\)"):
        fields.simulate(paths, {"lon": [0.0, 9.0], "lat": [0.0, 9.0]})
    with pytest.raises(ValueError, match="around=grid"):
        fields.krige(fields.fit_sphere(few, y, kernels.RBF(900.0), **settings), world)


def test_a_field_on_the_sphere_has_the_posterior_s_law():
    """Mean and covariance of many functions at places all over the sphere, against the closed form."""
    rng = np.random.default_rng(0)
    X = np.stack([rng.uniform(-180, 180, 15), np.degrees(np.arcsin(rng.uniform(-1, 1, 15)))], axis=1)
    gp = matheron.ExactGP(kernels.Matern(1.5, 2500.0), fields.on_sphere(X), rng.standard_normal(15), noise=0.1)
    places = np.stack([rng.uniform(-180, 180, 12), rng.uniform(-90, 90, 12)], axis=1)
    paths = fields.draw_field(fields.OnSphere(gp), 3000, places, seed=0)
    assert "spherical harmonics" in repr(paths)
    f = paths(places).numpy()
    mean, covariance = (v.numpy() for v in moments(gp, fields.on_sphere(places)))
    variance = np.diag(covariance)
    assert np.abs((f.mean(0) - mean) / np.sqrt(variance / 3000)).max() < 4.5
    error = np.sqrt((np.outer(variance, variance) + covariance**2) / 3000)
    assert (np.abs(np.cov(f.T) - covariance) / error).max() < 5


@pytest.mark.parametrize("kernel", [kernels.Matern(1.5, [900.0, 900.0, 500.0]), kernels.Matern(0.5, 20.0)])
def test_kernels_without_harmonics_get_many_frequencies(kernel):
    """One that depends on directions, and one too short for any number of harmonics that memory holds."""
    X = fields.on_sphere([[0.0, 0.0], [120.0, 50.0], [-100.0, -30.0]])
    gp = matheron.ExactGP(kernel, X, torch.rand(3), noise=0.1)
    world = {"lon": np.linspace(-180, 180, 5), "lat": np.linspace(-80, 80, 3)}
    assert "16384" in repr(fields.draw_field(fields.OnSphere(gp), 2, world, seed=0))


# Variograms


def test_the_empirical_variogram_is_half_the_mean_squared_difference():
    X, y = points(60), points(60, 1, seed=1)[:, 0]
    v = fields.variogram(X, y, bins=6, largest=0.9)
    d, half = torch.cdist(X, X).numpy(), ((y[:, None] - y) ** 2 / 2).numpy()
    upper = np.triu(np.ones_like(d), 1).astype(bool)
    for i in range(6):
        inside = upper & (d > 0.15 * i) & (d <= 0.15 * (i + 1))
        assert v.pairs[i] == inside.sum()
        assert v.gamma[i] == pytest.approx(half[inside].mean()) and v.lags[i] == pytest.approx(d[inside].mean())


def test_the_data_s_variogram_is_the_model_s_that_they_were_drawn_from():
    g = torch.Generator().manual_seed(0)
    X = 20 * torch.rand(1500, 2, generator=g, dtype=torch.float64)
    kernel = fields.covariance("exponential", range=3.0, sill=2.0)
    y = matheron.draw_prior(kernel, 1, input_dim=2, num_features=8192, generator=g)(X)[0]
    y = 5 + y + 0.5 * torch.randn(1500, generator=g, dtype=torch.float64)
    gp = matheron.ExactGP(kernel, X, y, noise=0.25, mean=5.0)
    v = fields.variogram(X, y, bins=8, largest=4.0)
    np.testing.assert_allclose(v.gamma, fields.model_variogram(gp, v.lags), rtol=0.25)
    assert fields.model_variogram(gp, [0.0]) == 0 and fields.model_variogram(gp, [1e-9]) == pytest.approx(
        0.25, rel=1e-3
    )
    scaled = matheron.ExactGP(
        fields.covariance("exponential", range=1.5, sill=0.5), X / 2, (y - 5) / 2, noise=0.0625,
        input_transform=matheron.transforms.Affine(0.5), output_transform=matheron.transforms.Affine(2.0, 5.0),
    )  # fmt: skip
    np.testing.assert_allclose(fields.model_variogram(scaled, v.lags), fields.model_variogram(gp, v.lags), rtol=1e-9)


def test_variograms_of_data_from_the_model_lie_in_its_band_as_often_as_it_says():
    g = torch.Generator().manual_seed(0)
    X = 10 * torch.rand(80, 2, generator=g, dtype=torch.float64)
    gp = matheron.ExactGP(
        kernels.Matern(1.5, 2.0), X / 3, torch.zeros(80), noise=0.1,
        input_transform=matheron.transforms.Affine(1 / 3), output_transform=matheron.transforms.Affine(5.0, 100.0),
    )  # fmt: skip
    L = torch.linalg.cholesky(kernels.Matern(1.5, 2.0)(X / 3) + 0.1 * torch.eye(80))
    y = 100 + 5 * L @ torch.randn(80, 200, generator=g, dtype=torch.float64)
    low, high = fields.variogram(X, y[:, 0], bins=6).band(gp, level=0.8, seed=1)
    gamma = np.stack([fields.variogram(X, column, bins=6).gamma for column in y.mT])
    inside = ((gamma > low) & (gamma < high)).mean(0)
    np.testing.assert_allclose(inside, 0.8, atol=5 * np.sqrt(0.16 / 200 + 0.16 / 200))


def test_a_variogram_is_drawn_with_the_model_s():
    from matplotlib.figure import Figure

    X = points(40)
    ax = Figure().subplots()
    gp = matheron.ExactGP(kernels.RBF(0.5), X, X[:, 0], noise=0.1)
    assert fields.variogram(X, X[:, 0]).plot(gp, ax=ax) is ax
    assert len(ax.lines) == 1 and ax.get_xlabel() == "distance"
    both = Figure().subplots()
    fields.variogram(X, X[:, 0]).plot(matheron.ExactGP(kernels.RBF([0.5, 0.2]), X, X[:, 0], noise=0.1), ax=both)
    assert len(both.lines) == 2
    with pytest.raises(ValueError, match="at least 2"):
        fields.variogram(X[:1], X[:1, 0])


def test_a_variogram_of_many_points_is_of_some_and_a_model_of_logarithms_has_none_of_values():
    X = points(3100)
    v = fields.variogram(X, X[:, 0], bins=3)
    assert len(v.points) == 3000 and int(v.pairs.sum()) < 3000 * 2999 / 2
    gp = matheron.ExactGP(kernels.RBF(0.5), X[:9], X[:9, 0], noise=0.1, output_transform=matheron.transforms.Exp())
    with pytest.raises(TypeError, match="a model of the values themselves"):
        fields.model_variogram(gp, [0.1])


def test_what_has_no_variogram_is_refused():
    X = points(20)
    gp = matheron.ExactGP(kernels.RBF(0.5), X, X[:, 0], noise=0.1)
    counts = matheron.fit(kernels.RBF(0.5), X, torch.ones(20), likelihood=matheron.likelihoods.Poisson(), num_starts=1)
    v = fields.variogram(X, X[:, 0], bins=3)
    models: list[Any] = [matheron.Outputs([gp, gp]), counts]
    for model in models:
        for of in (v.band, lambda model: fields.model_variogram(model, [0.1])):
            with pytest.raises(TypeError, match="model: expected an ExactGP of one output"):
                of(model)
    with pytest.raises(ValueError, match=r"in 2 dimensions, got 1.*variogram\(model.points\(lonlat\), y\)"):
        v.band(matheron.ExactGP(kernels.RBF(0.5), X[:, :1], X[:, 0], noise=0.1))
    with pytest.raises(ValueError, match="up to 0 apart, got no pair"):
        fields.variogram(torch.ones(5, 2), torch.rand(5))
    with pytest.raises(ValueError, match="bins: expected a whole number of at least 1"):
        fields.variogram(X, X[:, 0], bins=0)


# Cokriging; space and time


def test_a_variable_seen_elsewhere_lowers_the_uncertainty_of_another():
    X = points(30)
    tasks = torch.tensor([0] * 10 + [1] * 20)
    kernel = kernels.Coregional(kernels.Matern(1.5, 0.4), [[1.0, 0.9], [0.9, 1.0]])
    both = matheron.ExactGP(kernel, X, X[:, 0], noise=1e-4, tasks=tasks)
    alone = matheron.ExactGP(kernels.Matern(1.5, 0.4), X[:10], X[:10, 0], noise=1e-4)
    axes = {"x": np.linspace(0, 1, 8), "y": np.linspace(0, 1, 8)}
    co, single = fields.krige(both, axes)["std"].sel(output=0), fields.krige(alone, axes)["std"]
    assert bool((co <= single + 1e-9).all()) and float(co.mean()) < 0.8 * float(single.mean())


def test_space_and_time_are_three_axes():
    kernel = kernels.Matern(1.5, [0.3, 0.3]).on([0, 1]) * kernels.Matern(0.5, 5.0).on(2)
    X = points(20, 3)
    paths = matheron.draw(matheron.ExactGP(kernel, X, X[:, 0], noise=1e-3), 2)
    axes = {"x": np.linspace(0, 1, 6), "y": np.linspace(0, 1, 5), "time": np.arange(4.0)}
    field = fields.simulate(paths, axes, chunks={"time": 1})
    assert field.dims == ("path", "time", "y", "x") and field.chunksizes["time"] == (1, 1, 1, 1)
    np.testing.assert_allclose(field.values[:, 2, 3, 4], paths([[axes["x"][4], axes["y"][3], 2.0]])[:, 0], atol=1e-10)
