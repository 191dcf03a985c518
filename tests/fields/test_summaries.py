"""Summaries: those of all paths at once, whatever the blocks; and what joint draws alone can say."""

from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from scipy import stats

import matheron
from matheron import fields, kernels
from matheron.fields import simulation

AXES = {"x": np.linspace(0, 1, 14), "y": np.linspace(0, 2, 11)}


def model(kernel=None, **settings):
    g = torch.Generator().manual_seed(1)
    X = torch.rand(15, 2, generator=g, dtype=torch.float64)
    y = torch.rand(15, generator=g, dtype=torch.float64)
    return matheron.ExactGP(kernel or 2.0 * kernels.Matern(1.5, 0.5), X, y, noise=1e-2, mean=1.0, **settings)


@pytest.fixture(scope="module")
def paths():
    return matheron.draw(model(), 300, num_features=128, generator=torch.Generator().manual_seed(0))


def test_maps_are_those_of_all_paths_at_once(paths):
    levels, thresholds = (0.0, 0.1, 0.5, 1.0), (0.5, 1.5)
    maps = fields.summarise(paths, AXES, quantiles=levels, above=thresholds, chunks={"y": 4, "x": 5}).compute()
    values = fields.simulate(paths, AXES).values
    expected = {
        "mean": values.mean(0),
        "std": values.std(0, ddof=1),
        "mean_error": values.std(0, ddof=1) / np.sqrt(300),
        "quantile": np.quantile(values, levels, axis=0),
        "probability": np.stack([(values > t).mean(0) for t in thresholds]),
    }
    for name, wanted in expected.items():
        np.testing.assert_allclose(maps[name].values, wanted, rtol=0, atol=1e-10, err_msg=name)


def test_the_errors_are_what_another_draw_would_differ_by():
    g = torch.Generator().manual_seed(0)
    several = [
        fields.summarise(matheron.draw_prior(kernels.RBF(0.5), 200, input_dim=2, generator=g), AXES, quantiles=())
        for _ in range(12)
    ]
    together: Any = xr.concat([maps.compute() for maps in several], "draw")
    for name in ("mean", "std"):
        z = (together[name] - {"mean": 0.0, "std": 1.0}[name]) / together[f"{name}_error"]
        assert 0.6 < float((z**2).mean()) ** 0.5 < 1.5, name


def test_maps_say_what_they_are_and_in_which_units(paths):
    field = fields.simulate(paths[:3], AXES, name="height").assign_attrs(units="m")
    maps = fields.summaries_of(field, quantiles=0.5, above=1.0)
    assert maps["std"].attrs == {"long_name": "standard deviation of height", "units": "m"}
    assert maps["probability"].attrs["units"] == "1" and maps["threshold"].attrs["units"] == "m"
    assert maps["quantile"].sizes["quantile_level"] == 1


def test_each_block_is_evaluated_once_for_all_its_maps(paths, tmp_path, monkeypatch):
    seen = []
    on_grid = simulation._on_grid
    monkeypatch.setattr(simulation, "_on_grid", lambda *args: (seen.append(1), on_grid(*args))[1])
    maps = fields.summarise(paths, AXES, above=[1.0], chunks={"y": 6, "x": 7})  # 4 blocks
    fields.write(maps, tmp_path / "maps.nc")
    assert len(seen) == 4
    monkeypatch.undo()
    with xr.open_dataset(tmp_path / "maps.nc") as read:
        np.testing.assert_allclose(read["probability"], maps["probability"], rtol=0, atol=1e-12)


def test_masked_cells_have_no_summary(paths):
    cells = xr.DataArray(np.ones((11, 14)), {"y": AXES["y"], "x": AXES["x"]}, ("y", "x"))
    cells[3, 4] = np.nan
    maps = fields.summarise(paths, cells, above=[1.0]).compute()
    for name in maps:
        assert np.isnan(maps[name].values[..., 3, 4]).all() and np.isnan(maps[name].values).sum() <= 3, name


def test_functionals_are_one_number_a_path(paths):
    field = fields.simulate(paths[:5], AXES, chunks=6)
    values = field.values
    cell = np.outer(np.gradient(AXES["y"]), np.gradient(AXES["x"]))
    np.testing.assert_allclose(fields.maximum(field), values.max((1, 2)))
    np.testing.assert_allclose(fields.area_above(field, 1.2), ((values > 1.2) * cell).sum((1, 2)))
    np.testing.assert_allclose(fields.volume_above(field, 1.2), (np.clip(values - 1.2, 0, None) * cell).sum((1, 2)))
    assert fields.area_above(field, -1e9).values == pytest.approx(cell.sum())


def test_areas_of_degrees_are_those_of_the_earth():
    """All of it, and a zone of 60 degrees, which has half of it."""
    earth = 4 * np.pi * 6371.0**2
    world = {"lon": np.arange(-179.5, 180.0), "lat": np.arange(-89.5, 90.0)}
    north = xr.DataArray(world["lat"], dims="lat")
    field = xr.DataArray(np.zeros((1, 180, 360)), {"path": [0], **world}, ("path", "lat", "lon")) + (abs(north) < 30)
    field = fields.with_crs(field.transpose("path", "lat", "lon"), "EPSG:4326")
    assert fields.area_above(field, -1.0).values == pytest.approx(earth, rel=1e-9)
    assert fields.area_above(field, 0.5).values == pytest.approx(earth / 2, rel=1e-9)
    assert fields.connected_area(field, 0.5).values == pytest.approx(earth / 2, rel=1e-9)


def test_connected_areas_are_found_across_blocks():
    values = np.zeros((2, 6, 8))
    values[0, 2, 1:7] = 1  # one river of six cells through every block, and a lake of four
    values[0, 4:, :2] = 1
    axes = {"y": np.arange(6.0), "x": np.arange(8.0)}
    field = xr.DataArray(values, {"path": [0, 1], **axes}, ("path", "y", "x"))
    for chunked in (field, field.chunk({"y": 2, "x": 3})):
        np.testing.assert_allclose(fields.connected_area(chunked, 0.5), [6.0, 0.0])


def test_the_maximum_of_joint_draws_is_not_that_of_cells_drawn_alone(paths):
    """What maps of cells cannot give: independent cells with the right marginals have far larger maxima."""
    values = fields.simulate(paths, AXES).values.reshape(300, -1)
    shuffled = np.random.default_rng(0).permuted(values, axis=0)
    result: Any = stats.ks_2samp(values.max(1), shuffled.max(1))
    assert result.pvalue < 1e-6


# Kriging


def dense(gp, points):
    """Posterior mean and standard deviation, written out."""
    X, x = gp.train_inputs, torch.as_tensor(points)
    K = gp.kernel(X) + gp.noise.diag_embed()
    k = gp.kernel(x, X)
    mean = gp.mean(x)[:, 0] + k @ torch.linalg.solve(K, gp.train_targets - gp.mean(X)[:, 0])
    variance = gp.kernel.diag(x) - (k @ torch.linalg.inv(K) * k).sum(1)
    return mean.numpy(), variance.sqrt().numpy()


def test_kriging_is_the_posterior_in_closed_form():
    gp = model()
    maps = fields.krige(gp, AXES, chunks=5).compute()
    x, y = np.meshgrid(AXES["x"], AXES["y"])
    mean, std = dense(gp, np.stack([x.ravel(), y.ravel()], 1))
    np.testing.assert_allclose(maps["mean"].values.ravel(), mean, atol=1e-9)
    np.testing.assert_allclose(maps["std"].values.ravel(), std, atol=1e-9)
    paths = matheron.draw(gp, 2)
    np.testing.assert_allclose(maps["mean"].values.ravel(), paths.mean(np.stack([x.ravel(), y.ravel()], 1)), atol=1e-9)
    gp = matheron.ExactGP(kernels.RBF(0.4) * kernels.Linear(), gp.train_inputs, gp.train_targets, 0.01)
    _, std = dense(gp, np.stack([x.ravel(), y.ravel()], 1))
    np.testing.assert_allclose(fields.krige(gp, AXES)["std"].values.ravel(), std, atol=1e-7)


def test_the_mean_alone_is_kriging_s(paths):
    mean = fields.mean(paths, AXES, chunks=6)
    assert mean.dims == ("y", "x")
    np.testing.assert_allclose(mean.values, fields.krige(model(), AXES)["mean"].values, atol=1e-8)
    on_lattice = matheron.draw(model(), 2, domain=([0, 0], [1, 2]), seed=0)
    np.testing.assert_allclose(fields.mean(on_lattice, AXES).values, mean.values, atol=1e-8)
    own = paths[:2].condition_on([[0.5, 0.5]], [[0.0], [1.0]], noise=0.1)
    with pytest.raises(TypeError, match="have a mean each"):
        fields.mean(own, AXES)


def test_kriging_on_the_sphere_is_that_of_its_points():
    lonlat = np.stack([np.linspace(170, 190, 9), np.linspace(-20, 30, 9) ** 2 / 20], axis=1)
    X = fields.on_sphere(lonlat)
    gp = matheron.ExactGP(kernels.Matern(1.5, 900.0), X, np.sin(np.arange(9.0)), noise=1e-2)
    grid = {"lon": np.array([171.0, 180.0, 183.0]), "lat": np.array([-3.0, 12.0])}
    maps = fields.krige(fields.OnSphere(gp), grid)
    lon, lat = np.meshgrid(grid["lon"], grid["lat"])
    mean, std = dense(gp, fields.on_sphere(np.stack([lon.ravel(), lat.ravel()], axis=1)))
    np.testing.assert_allclose(maps["mean"].values.ravel(), mean, atol=1e-9)
    np.testing.assert_allclose(maps["std"].values.ravel(), std, atol=1e-9)
    alone = fields.mean(fields.OnSphere(matheron.draw(gp, 1, seed=0)), grid)
    np.testing.assert_allclose(alone.values.ravel(), mean, atol=1e-8)
    assert alone["lat"].attrs["units"] == "degrees_north"


def test_kriging_agrees_with_the_paths_within_their_error():
    paths = matheron.draw(model(), 300, num_features=4096, generator=torch.Generator().manual_seed(0))
    exact = fields.krige(model(), AXES).compute()
    estimate = fields.summarise(paths, AXES, quantiles=()).compute()
    for name in ("mean", "std"):
        z = (estimate[name] - exact[name]) / estimate[f"{name}_error"]
        assert float(np.abs(z).max()) < 6 and float((z**2).mean()) < 4, name


def test_kriging_undoes_units_and_has_several_outputs():
    scaled = model(
        input_transform=matheron.transforms.Affine([2.0, 0.5], 0.1),
        output_transform=matheron.transforms.Affine(3.0, 5.0),
    )
    maps = fields.krige(scaled, AXES).compute()
    paths = matheron.draw(scaled, 500, generator=torch.Generator().manual_seed(0))
    estimate = fields.summarise(paths, AXES, quantiles=()).compute()
    for name in ("mean", "std"):
        assert float(np.abs((estimate[name] - maps[name]) / estimate[f"{name}_error"]).max()) < 6
    g = torch.Generator().manual_seed(0)
    X = torch.rand(9, 2, generator=g, dtype=torch.float64)
    kernel = kernels.Coregional(kernels.Matern(1.5, 0.5), [[1.0, 0.7], [0.7, 2.0]])
    both = matheron.ExactGP(kernel, X, X.sin(), noise=1e-3)
    maps = fields.krige(both, AXES).compute()
    estimate = fields.summarise(matheron.draw(both, 500, generator=g), AXES, quantiles=()).compute()
    assert maps["mean"].dims == ("output", "y", "x")
    for name in ("mean", "std"):
        assert float(np.abs((estimate[name] - maps[name]) / estimate[f"{name}_error"]).max()) < 6


# What is refused


def test_refusals(paths):
    with pytest.raises(ValueError, match="quantiles: expected probabilities"):
        fields.summarise(paths, AXES, quantiles=[5, 95])
    with pytest.raises(ValueError, match="above: expected thresholds"):
        fields.summarise(paths, AXES, above=[np.nan])
    with pytest.raises(ValueError, match="at least 2 for a summary"):
        fields.summarise(paths[:1], AXES)
    with pytest.raises(ValueError, match="got a list of points"):
        fields.area_above(fields.simulate(paths, np.zeros((3, 2))), 0.0)
    with pytest.raises(TypeError, match=r"no closed form; estimate them from paths: fields\.summarise"):
        fields.krige(model(output_transform=matheron.transforms.Exp()), AXES)
    with pytest.raises(IndexError, match="leave out chunks of path"):
        fields.krige(model(), AXES, chunks={"path": 1}).compute()
    with pytest.raises(TypeError, match="expected an ExactGP of at most"):
        fields.krige(matheron.SparseGP(kernels.RBF(), [[0.0, 0.0]], [0.0]), AXES)
