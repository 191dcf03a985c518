"""`matheron field`, as a user types it; and what it says of bad files."""

import re
from typing import Any

import geopandas
import numpy as np
import pandas as pd
import pytest
import rioxarray
import torch
import xarray as xr
from matplotlib.image import imread
from typer.testing import CliRunner

from matheron import fields
from matheron.cli import app
from matheron.cli import fields as command
from matheron.cli.field_data import read_observations
from matheron.compare.samplers import moments
from matheron.fields import field_models as models


def invoke(*words):
    return CliRunner().invoke(app, ["field", *map(str, words)], env={"COLUMNS": "200"})


def wells(n=25, east=500_000.0, north=4_649_000.0):
    rng = np.random.default_rng(0)
    x, y = rng.random((2, n)) * [[1000.0], [800.0]]
    z = 10 + 3 * np.sin(x / 200) + np.cos(y / 150)
    return pd.DataFrame({"x": x + east, "y": y + north, "z": z})


@pytest.fixture
def quick_fit(monkeypatch):
    """A model without a search for its hyperparameters: the search has tests of its own."""
    fit = models.fit

    def at_once(kernel, X, y, **settings):
        quick: dict[str, Any] = {**settings, "num_starts": 1, "noise": 1e-2, "mean": float(y.mean())}
        return fit(kernel, X, y, **quick)

    monkeypatch.setattr(models, "fit", at_once)


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "wells.csv"
    wells().to_csv(path, index=False)
    return path


def test_a_table_becomes_a_raster_and_a_picture(table, tmp_path):
    out, plot = tmp_path / "field.nc", tmp_path / "field.png"
    words = ["--grid", "30x20", "--paths", 12, "--out", out, "--plot", plot, "--crs", "EPSG:32633", "--above", 11]
    result = invoke(table, *words)
    assert result.exit_code == 0, result.output
    assert "25 observations of z" in result.output and "Matern.lengthscale[x]" in result.output
    assert "12 realisations of 20 x 30 cells" in result.output
    with xr.open_dataset(out) as data:
        assert data["z"].dims == ("path", "y", "x") and data.rio.crs.to_epsg() == 32633
        np.testing.assert_allclose(data["probability"][0], (data["z"] > 11).mean("path"), atol=1e-12)
        seen = wells()
        near = data["mean"].interp(x=xr.DataArray(seen["x"]), y=xr.DataArray(seen["y"]))
        assert float(np.abs(near - seen["z"]).mean()) < 0.3  # the field agrees with the data
    pixels = imread(plot)
    assert pixels.shape[0] > 500 and len(np.unique(pixels[::5, ::5].reshape(-1, pixels.shape[-1]), axis=0)) > 200


@pytest.mark.usefixtures("quick_fit")
@pytest.mark.parametrize("dear", [1e12, 1.0], ids=["few", "many"])
@pytest.mark.parametrize("words", [[], ["--crs", "EPSG:4326"], ["--log"]], ids=["plane", "sphere", "log"])
def test_mean_and_deviation_are_the_posterior_s_own_where_it_has_them(words, dear, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "_DEAR", dear)
    wells(east=0.0, north=0.0).assign(x=lambda t: t.x / 50, y=lambda t: t.y / 50).to_csv(
        tmp_path / "w.csv", index=False
    )
    fitted, models_of = command._fitted, []
    monkeypatch.setattr(command, "_fitted", lambda *args: models_of.append(fitted(*args)) or models_of[0])
    on_sphere = "--crs" in words
    out = ["--out", tmp_path / "f.nc", "--plot", tmp_path / "f.png"]
    result = invoke(tmp_path / "w.csv", "--grid", "7x6", "--chunks", 4, "--paths", 3, *words, *out)
    assert result.exit_code == 0, result.output
    with xr.open_dataset(tmp_path / "f.nc") as data:
        x = torch.cartesian_prod(torch.tensor(data["x"].values), torch.tensor(data["y"].values))
        own = {name: data[name].transpose("x", "y").values.ravel() for name in ("mean", "std")}
        assert ("mean_error" in data, "std_error" in data) == (words == ["--log"], words == ["--log"] or dear == 1.0)
        sample = data["z"].transpose("x", "y", "path").values.reshape(42, 3)
    if words == ["--log"]:  # no closed form: what the paths say
        np.testing.assert_allclose(own["mean"], sample.mean(1))
        return
    mean, covariance = moments(*(models_of[0].inner, models_of[0].points(x)) if on_sphere else (models_of[0], x))
    np.testing.assert_allclose(own["mean"], mean, rtol=1e-7)
    std = covariance.diagonal().sqrt() if dear > 1 else sample.std(1, ddof=1)
    np.testing.assert_allclose(own["std"], std, rtol=1e-5)


def test_degrees_that_are_not_said_to_be_are_remarked_on(tmp_path, quick_fit):
    data = wells(east=0.0, north=0.0) / [100.0, 100.0, 1.0]
    data.set_axis(["lon", "lat", "z"], axis=1).to_csv(tmp_path / "w.csv", index=False)
    result = invoke(tmp_path / "w.csv", "--x", "lon,lat", "--grid", "4x4", "--paths", 2, "--out", tmp_path / "f.nc")
    assert "lon and lat are taken for a plane; --sphere if they are degrees" in result.output


def test_a_mask_that_is_no_raster_is_refused_in_a_line(table, tmp_path):
    result = invoke(table, "--mask", table, "--out", tmp_path / "f.nc")
    assert result.exit_code == 1 and "--mask: expected a GeoTIFF, NetCDF or Zarr file" in result.stderr


def test_one_seed_gives_one_field_and_another_another(table, tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        assert (
            invoke(table, "--grid", "9x8", "--paths", 3, "--seed", seed, "--out", tmp_path / f"{name}.nc").exit_code
            == 0
        )
    a, b, c = (xr.open_dataset(tmp_path / f"{name}.nc")["z"].values for name in "abc")
    np.testing.assert_array_equal(a, b)
    assert np.abs(a - c).max() > 0.01


@pytest.mark.usefixtures("quick_fit")
def test_parquet_and_geopackage_are_read_and_have_their_own_crs(table, tmp_path):
    data = wells()
    data.to_parquet(tmp_path / "wells.parquet")
    points = geopandas.GeoDataFrame(data[["z"]], geometry=geopandas.points_from_xy(data.x, data.y), crs="EPSG:32633")
    points.to_file(tmp_path / "wells.gpkg")
    read = {}
    for source in (table, tmp_path / "wells.parquet", tmp_path / "wells.gpkg"):
        out = tmp_path / f"{source.suffix[1:]}.zarr"
        result = invoke(source, "--grid", "8x7", "--paths", 2, "--out", out)
        assert result.exit_code == 0, result.output
        read[source.suffix] = xr.open_zarr(out)
    np.testing.assert_allclose(read[".csv"]["z"], read[".parquet"]["z"], atol=1e-9)
    np.testing.assert_allclose(read[".csv"]["z"], read[".gpkg"]["z"], atol=1e-6)
    assert read[".gpkg"].rio.crs.to_epsg() == 32633 and read[".csv"].rio.crs is None


@pytest.mark.usefixtures("quick_fit")
def test_a_mask_s_empty_cells_stay_empty_with_its_own_grid_and_with_another(table, tmp_path):
    y, x = np.linspace(4_649_900, 4_648_900, 11), np.linspace(499_900, 501_100, 13)
    land = xr.DataArray(np.ones((11, 13), dtype="float32"), {"y": y, "x": x}, ("y", "x"))
    land[:, :5] = np.nan
    land.rio.write_crs("EPSG:32633").rio.to_raster(tmp_path / "land.tif")
    result = invoke(table, "--mask", tmp_path / "land.tif", "--paths", 3, "--out", tmp_path / "field.tif")
    assert result.exit_code == 0, result.output
    with rioxarray.open_rasterio(tmp_path / "field.tif") as field:  # type: ignore[union-attr]
        np.testing.assert_array_equal(np.isnan(np.asarray(field)), np.broadcast_to(land.isnull(), field.shape))
        assert field.attrs["long_name"] == (
            "mean", "std", "quantile 0.05", "quantile 0.5", "quantile 0.95", field.attrs["long_name"][5],
            "z path 0", "z path 1", "z path 2",
        )  # fmt: skip
        assert field.attrs["long_name"][5].startswith("probability above 1")
    result = invoke(
        table, "--mask", tmp_path / "land.tif", "--grid", "40x30", "--paths", 3, "--out", tmp_path / "fine.nc",
        "--plot", tmp_path / "fine.png",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    with xr.open_dataset(tmp_path / "fine.nc") as fine:
        empty = fine["z"].isnull().values
        assert (empty == empty[:, :1, :]).all() and 5 < empty[0, 0].sum() < 20


@pytest.mark.usefixtures("quick_fit")
def test_a_mask_may_be_of_zeros_and_ones_in_another_coordinate_system(table, tmp_path):
    y, x = np.linspace(4_649_600, 4_649_200, 41), np.linspace(500_000, 500_600, 61)
    land = xr.DataArray(np.ones((41, 61), dtype="uint8"), {"y": y, "x": x}, ("y", "x")).rio.write_crs("EPSG:32633")
    land[:, x < 500_300] = 0
    land.rio.reproject("EPSG:4326", nodata=255).rio.to_raster(tmp_path / "LAND.TIF")
    words = ("--mask", tmp_path / "LAND.TIF", "--crs", "EPSG:32633", "--grid", "40x30", "--paths", 2)
    result = invoke(table, *words, "--out", tmp_path / "f.nc")
    assert result.exit_code == 0, result.output
    with xr.open_dataset(tmp_path / "f.nc") as field:
        inside = (field["x"] > 500_300) & (field["x"] < 500_600) & (field["y"] > 4_649_200) & (field["y"] < 4_649_600)
        inside = inside.transpose("y", "x").values
        assert (field["z"][0].notnull().values == inside).mean() > 0.97 and 0.05 < inside.mean() < 0.4
    xr.Dataset({"a": land, "b": land}).to_netcdf(tmp_path / "two.nc")
    result = invoke(table, "--mask", tmp_path / "two.nc", "--out", tmp_path / "g.nc")
    assert result.exit_code == 1 and "expected one variable in two.nc, got a, b" in result.stderr


def test_a_geometry_is_brought_into_the_crs_that_is_asked_for(tmp_path):
    data = wells()
    points = geopandas.GeoDataFrame(data[["z"]], geometry=geopandas.points_from_xy(data.x, data.y), crs="EPSG:32633")
    points.to_crs("EPSG:4326").assign(x=0.0, y=0.0).to_parquet(tmp_path / "wells.parquet")
    read = read_observations(tmp_path / "wells.parquet", ["x", "y"], "z", "EPSG:32633")
    np.testing.assert_allclose(read.points, data[["x", "y"]], atol=1e-3)
    degrees = read_observations(tmp_path / "wells.parquet", ["lon", "lat"], "z")
    assert np.abs(degrees.points - [15.0, 42.0]).max() < 0.1 and degrees.crs == "EPSG:4326"


@pytest.mark.usefixtures("quick_fit")
def test_polygons_are_a_mask_in_whatever_coordinate_system_they_are(table, tmp_path):
    """A triangle, given in degrees, over data in metres: cells are filled where their centres are inside."""
    shapely = pytest.importorskip("shapely")
    corners = [(500_100.0, 4_649_100.0), (500_900.0, 4_649_100.0), (500_100.0, 4_649_700.0)]
    shape = geopandas.GeoSeries([shapely.Polygon(corners)], crs="EPSG:32633")
    shape.to_crs("EPSG:4326").to_file(tmp_path / "region.geojson")
    words = ("--crs", "EPSG:32633", "--grid", "9x7", "--paths", 2, "--out", tmp_path / "in.nc")
    result = invoke(table, "--mask", tmp_path / "region.geojson", *words)
    assert result.exit_code == 0, result.output
    with xr.open_dataset(tmp_path / "in.nc") as field:
        x, y = (field[name].values for name in ("x", "y"))
        assert abs(x[0] - 500_100) < 5 and abs(x[-1] - 500_900) < 5 and abs(y[-1] - 4_649_700) < 5
        depth = 1 - (x - x[0]) / (x[-1] - x[0]) - (y[:, None] - y[0]) / (y[-1] - y[0])  # of the triangle, at its edge 0
        filled = field["z"].notnull().values[0]
        assert filled[1:-1, 1:-1][depth[1:-1, 1:-1] > 0.02].all() and not filled[depth < -0.02].any()
    points = geopandas.GeoSeries(geopandas.points_from_xy([500_100.0], [4_649_100.0]), crs="EPSG:32633")
    points.to_file(tmp_path / "points.gpkg")
    result = invoke(table, "--mask", tmp_path / "points.gpkg", "--out", tmp_path / "none.nc")
    assert result.exit_code == 1 and "expected polygons in points.gpkg, got none" in result.output


@pytest.mark.slow
@pytest.mark.usefixtures("quick_fit")
def test_a_grid_goes_the_short_way_across_the_dateline_and_once_round_the_earth_at_the_most(tmp_path):
    rng = np.random.default_rng(0)
    east, lat = rng.uniform(170, 190, 12), rng.uniform(-20, -5, 12)
    words = ["--x", "lon,lat", "--sphere", "--grid", "6x4", "--paths", "2"]
    for name, lon in (("pacific", np.where(east > 180, east - 360, east)), ("world", np.linspace(-180, 179, 12))):
        pd.DataFrame({"lon": lon, "lat": lat, "z": np.sin(east)}).to_csv(tmp_path / "t.csv", index=False)
        result = invoke(tmp_path / "t.csv", *words, "--out", tmp_path / f"{name}.nc")
        assert result.exit_code == 0, result.output
        assert ("crosses the date line" in result.output) == (name == "pacific")
    pacific, world = (xr.open_dataset(tmp_path / f"{name}.nc").lon.values for name in ("pacific", "world"))
    assert 169 < pacific.min() < pacific.max() < 191
    assert (world.min(), world.max()) == (-180, 180)


def test_longitudes_and_latitudes_are_of_the_sphere_where_the_crs_says_so(tmp_path):
    """Near a pole longitudes of 0 and 180 degrees are neighbours: the field there must not depend on the longitude."""
    rng = np.random.default_rng(0)
    lon, lat = rng.uniform(-180, 180, 40), rng.uniform(70, 89.9, 40)
    z = 5 + 8 * np.cos(np.radians(lat)) * np.cos(np.radians(lon))
    pd.DataFrame({"lon": lon, "lat": lat, "z": z}).to_csv(tmp_path / "ice.csv", index=False)
    words = ("--x", "lon,lat", "--grid", "8x6", "--paths", 3)
    result = invoke(tmp_path / "ice.csv", *words, "--crs", "EPSG:4326", "--out", tmp_path / "a.nc")
    assert result.exit_code == 0 and "on the sphere, in km" in result.output, result.output
    result = invoke(tmp_path / "ice.csv", *words, "--sphere", "--out", tmp_path / "b.nc")
    assert result.exit_code == 0, result.output
    plane = invoke(tmp_path / "ice.csv", *words, "--crs", "EPSG:4326", "--plane", "--out", tmp_path / "c.nc")
    assert plane.exit_code == 0 and "sphere" not in plane.output
    by_crs, asked, flat = (xr.open_dataset(tmp_path / f"{name}.nc")["z"] for name in "abc")
    np.testing.assert_array_equal(by_crs, asked)
    across = [field.isel(lat=-1).std("lon").mean() for field in (by_crs, flat)]
    assert across[0] < 0.3 * across[1] and float(by_crs["lat"].max()) == 90
    swapped = invoke(tmp_path / "ice.csv", "--x", "lat,lon", "--sphere", "--out", tmp_path / "d.nc")
    assert swapped.exit_code == 1 and "expected the eastward coordinate first, as in --x lon,lat" in swapped.output


def test_a_crs_that_is_none_is_refused(table, tmp_path):
    result = invoke(table, "--crs", "EPSG:nonsense", "--out", tmp_path / "f.nc")
    assert result.exit_code == 1 and "--crs: expected a name such as EPSG:32633" in result.output


def test_text_and_dates_are_refused_with_advice_that_the_command_can_take(tmp_path):
    data = wells().assign(when="2024-05-01", kind="sand")
    data.to_csv(tmp_path / "w.csv", index=False)
    result = invoke(tmp_path / "w.csv", "--value", "kind", "--out", tmp_path / "f.nc")
    assert result.exit_code == 1 and "name another column" in result.output and "--encode" not in result.output
    result = invoke(tmp_path / "w.csv", "--x", "when,y", "--out", tmp_path / "f.nc")
    assert result.exit_code == 1 and "column 'when' holds dates; make it a number" in result.output


@pytest.mark.usefixtures("quick_fit")
def test_logarithms_keep_a_field_positive(tmp_path):
    data = wells()
    data["z"] = np.exp(data["z"] - 12)
    data.to_csv(tmp_path / "w.csv", index=False)
    result = invoke(tmp_path / "w.csv", "--log", "--grid", "9x8", "--paths", 20, "--out", tmp_path / "f.nc")
    assert result.exit_code == 0, result.output
    with xr.open_dataset(tmp_path / "f.nc") as field:
        assert float(field["z"].min()) > 0
    data["z"] -= 1
    data.to_csv(tmp_path / "w.csv", index=False)
    result = invoke(tmp_path / "w.csv", "--log", "--out", tmp_path / "g.nc")
    assert result.exit_code == 1 and "--log: expected positive values of z" in result.stderr


@pytest.mark.usefixtures("quick_fit")
def test_a_stopped_command_goes_on(table, tmp_path, monkeypatch):
    words = [table, "--grid", "12x12", "--chunks", 4, "--paths", 2, "--out", tmp_path / "f.nc"]
    from matheron.fields import simulation

    on_grid, computed = simulation._on_grid, []

    def stopped(*args):
        computed.append(1)
        if len(computed) == 7:  # a block's realisations, and its mean and deviation
            raise KeyboardInterrupt
        return on_grid(*args)

    with monkeypatch.context() as patch:
        patch.setattr(simulation, "_on_grid", stopped)
        result = invoke(*words)
    assert result.exit_code == 130 and "the same command resumes" in result.stderr
    result = invoke(*words)
    assert result.exit_code == 0 and re.search(r"([1-6])/\1 blocks", result.output), result.output


@pytest.mark.usefixtures("quick_fit")
def test_what_is_stopped_before_anything_is_written_does_not_promise_to_resume(table, tmp_path, monkeypatch):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(models, "fit", stopped)
        result = invoke(table, "--grid", "4x4", "--out", tmp_path / "f.nc")
    assert (
        result.exit_code == 130 and "stopped; nothing was written" in result.stderr and "resumes" not in result.stderr
    )
    monkeypatch.setattr(command, "_draw_figure", stopped)
    words = ["--grid", "4x4", "--paths", 2, "--out", tmp_path / "f.nc", "--plot", tmp_path / "f.png"]
    result = invoke(table, *words)
    assert result.exit_code == 130 and "f.nc was written" in result.stderr and "resumes" not in result.stderr


@pytest.mark.usefixtures("quick_fit")
def test_a_full_disk_is_an_error_in_a_line(table, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("matheron.fields.writing._put", full)
    result = invoke(table, "--grid", "4x4", "--paths", 2, "--out", tmp_path / "f.zarr")
    assert result.exit_code == 1 and "no space is left on the disk of" in result.stderr, result.output
    assert not (tmp_path / "f.zarr").exists()


@pytest.mark.usefixtures("quick_fit")
def test_quiet_says_nothing_but_what_was_left_out(tmp_path):
    data = wells()
    data.loc[3, "z"] = np.nan
    data.to_csv(tmp_path / "w.csv", index=False)
    result = invoke(tmp_path / "w.csv", "--grid", "4x4", "--paths", 2, "--out", tmp_path / "f.nc", "-q")
    assert result.exit_code == 0 and result.stdout == ""
    assert result.stderr.strip() == "1 of 25 rows has no number in x, y or z and is left out"


# Cross-validation and variogram


@pytest.mark.usefixtures("quick_fit")
@pytest.mark.parametrize("words", [[], ["--log"], ["--sphere"]], ids=["values", "logarithms", "sphere"])
def test_every_observation_is_predicted_from_the_others(words, tmp_path):
    data = wells(east=0.0, north=0.0) / ([50.0, 50.0, 1.0] if "--sphere" in words else 1.0)
    data.to_csv(tmp_path / "w.csv", index=False)
    figure = tmp_path / "v.png"
    out = ["--grid", "4x4", "--paths", 2, "--out", tmp_path / "f.nc", "--variogram", figure]
    result = invoke(tmp_path / "w.csv", "--validate", *out, *words)
    assert result.exit_code == 0, result.output
    found = re.search(r"leave-one-out.*: RMSE (\S+), R\^2 (\S+), (\S+)% of 25 observations in", result.output)
    assert found and ("of the logarithm" in found[0]) == (words == ["--log"])
    X, y = data[["x", "y"]].to_numpy(), data["z"].to_numpy()
    y = np.log(y) if words == ["--log"] else y
    with xr.open_dataset(tmp_path / "f.nc") as field:
        axes = {name: field[name].values for name in "xy"}
    gp = fields.fit_sphere(X, y, around=axes).inner if words == ["--sphere"] else fields.fit_field(X, y)
    K = gp.kernel(gp.train_inputs) + gp.noise.diag_embed()
    scale = float(gp.output_transform.derivative(torch.zeros(1, 1, dtype=torch.float64)))  # type: ignore[union-attr]
    errors, sds = [], []
    for i in range(25):  # as the word says: without one, n times
        rest = [j for j in range(25) if j != i]
        weights = torch.linalg.solve(K[rest][:, rest], K[rest, i])
        r = gp.train_targets - gp.mean(gp.train_inputs)[:, 0]
        errors.append(scale * float(r[i] - weights @ r[rest]))
        sds.append(scale * float(K[i, i] - weights @ K[rest, i]) ** 0.5)
    errors, sds = np.array(errors), np.array(sds)
    expected = (
        np.sqrt((errors**2).mean()),
        1 - (errors**2).sum() / ((y - y.mean()) ** 2).sum(),
        100 * (np.abs(errors) < 1.96 * sds).mean(),
    )
    for got, want, digits in zip(found.groups(), expected, (1e-3, 1e-3, 0.06), strict=True):
        assert float(got) == pytest.approx(want, abs=digits * max(1.0, abs(want) * (digits < 0.01)))
    assert imread(figure).shape[0] > 300


# Coordinate reference systems


@pytest.mark.usefixtures("quick_fit")
def test_coordinates_of_a_table_are_brought_into_another_system(tmp_path):
    """Metres given as degrees and brought back are the metres."""
    from pyproj import Transformer

    data = wells()
    data.to_csv(tmp_path / "metres.csv", index=False)
    lon, lat = Transformer.from_crs("EPSG:32633", "EPSG:4326", always_xy=True).transform(data.x, data.y)
    data.assign(x=lon, y=lat).to_csv(tmp_path / "degrees.csv", index=False)
    words = ["--grid", "5x4", "--paths", 2]
    degrees = ["--crs", "EPSG:4326", "--to", "EPSG:32633"]
    assert invoke(tmp_path / "metres.csv", *words, "--crs", "EPSG:32633", "--out", tmp_path / "a.nc").exit_code == 0
    result = invoke(tmp_path / "degrees.csv", *words, *degrees, "--out", tmp_path / "b.nc")
    assert result.exit_code == 0, result.output
    with xr.open_dataset(tmp_path / "a.nc") as a, xr.open_dataset(tmp_path / "b.nc") as b:
        np.testing.assert_allclose(b["x"], a["x"], atol=1e-3)
        np.testing.assert_allclose(b["z"], a["z"], atol=1e-4)
        assert b.rio.crs.to_epsg() == 32633
    result = invoke(tmp_path / "degrees.csv", *words, "--to", "EPSG:32633", "--out", tmp_path / "c.nc")
    assert result.exit_code == 1 and "--to: say what the coordinates are now with --crs" in result.stderr


@pytest.mark.parametrize("system", ["EPSG:32632", "EPSG:2056", "EPSG:3857"])
def test_degrees_in_a_system_of_metres_are_refused_and_the_way_out_named(tmp_path, system, monkeypatch):
    monkeypatch.setattr(models, "fit", lambda *_, **__: pytest.fail("fitted"))
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"lon": rng.uniform(7, 9, 9), "lat": rng.uniform(46, 48, 9), "z": rng.random(9)})
    table.to_csv(tmp_path / "w.csv", index=False)
    result = invoke(tmp_path / "w.csv", "--x", "lon,lat", "--crs", system, "--out", tmp_path / "f.nc")
    assert result.exit_code == 1 and "--crs: expected coordinates in metres" in result.stderr, result.output
    assert f"--crs EPSG:4326, and --to {system}" in result.stderr and "lon from 7" in result.stderr


def test_coordinates_far_from_where_their_system_is_used_are_remarked_on(tmp_path):
    table = wells().assign(x=lambda t: t.x / 1000, y=lambda t: t.y / 1000)  # kilometres
    table.to_csv(tmp_path / "w.csv", index=False)
    [remark] = read_observations(tmp_path / "w.csv", ["x", "y"], "z", "EPSG:32633").remarks
    assert "not where EPSG:32633 is used" in remark and "is --crs right, and their unit?" in remark
    wells().to_csv(tmp_path / "w.csv", index=False)
    assert read_observations(tmp_path / "w.csv", ["x", "y"], "z", "EPSG:32633").remarks == []


@pytest.mark.usefixtures("quick_fit")
def test_the_command_takes_the_kernel_of_the_sphere_where_asked(tmp_path):
    rng = np.random.default_rng(0)
    lon, lat = rng.uniform(0, 30, (2, 40))
    z = np.sin(np.radians(6 * lon)) + np.cos(np.radians(5 * lat))
    pd.DataFrame({"lon": lon, "lat": lat, "z": z}).to_csv(tmp_path / "s.csv", index=False)
    words = [tmp_path / "s.csv", "--x", "lon,lat", "--grid", "5x4", "--paths", "2", "--great-circle"]
    result = invoke(*words, "--sphere", "--out", tmp_path / "s.nc", "--variogram", tmp_path / "v.png")
    assert result.exit_code == 0 and "fitted on the sphere, in km: SphereMatern" in result.output, result.output
    assert "spherical harmonics" in result.output and (tmp_path / "v.png").exists()
    with xr.open_dataset(tmp_path / "s.nc") as maps:
        assert np.isfinite(maps["std"]).all()
    plane = invoke(*words, "--out", tmp_path / "p.nc")
    assert plane.exit_code == 1 and "--great-circle: expected longitude and latitude" in plane.output


def test_the_command_fits_longitudes_and_latitudes_as_fit_sphere_does(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.uniform([175, -20], [185, -10], (25, 2))
    y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(25)
    pd.DataFrame({"lon": (X[:, 0] + 180) % 360 - 180, "lat": X[:, 1], "z": y}).to_csv(tmp_path / "w.csv", index=False)
    words = ["--x", "lon,lat", "--crs", "EPSG:4326", "--grid", "6x5", "--paths", 2, "--out", tmp_path / "f.nc"]
    result = invoke(tmp_path / "w.csv", *words)
    assert result.exit_code == 0 and "on the sphere, in km (projected about" in result.output, result.output
    with xr.open_dataset(tmp_path / "f.nc") as field:
        axes = {name: field[name].values for name in ("lon", "lat")}
        maps = fields.krige(fields.fit_sphere(X, y, around=axes), axes)
        for name in ("mean", "std"):
            np.testing.assert_allclose(field[name], maps[name], rtol=1e-6)


# Bad files


def test_a_point_twice_with_two_values_is_explained_by_noise(tmp_path, quick_fit):
    data = wells()
    again = data.iloc[:2].assign(z=data["z"].iloc[:2] + 0.3)
    pd.concat([data, again]).to_csv(tmp_path / "w.csv", index=False)
    result = invoke(tmp_path / "w.csv", "--grid", "8x8", "--paths", 3, "--out", tmp_path / "f.nc")
    assert result.exit_code == 0 and "2 rows repeat places of others" in result.output, result.output
    with xr.open_dataset(tmp_path / "f.nc") as field:
        assert bool(np.isfinite(field["z"]).all())


def test_copies_of_rows_are_told_from_places_that_were_measured_again(tmp_path):
    data = wells()
    pd.concat([data, data.iloc[:2], data.iloc[3:4].assign(z=1.0)]).to_csv(tmp_path / "w.csv", index=False)
    copies, places = read_observations(tmp_path / "w.csv", ["x", "y"], "z").remarks
    assert copies.startswith("2 rows are copies of others") and places.startswith("1 row repeats a place of others")


def test_rows_without_numbers_are_left_out_and_counted(tmp_path):
    data = wells()
    data.loc[3, "z"] = np.nan
    data.loc[5, "x"] = np.nan
    data.to_csv(tmp_path / "w.csv", index=False)
    read = read_observations(tmp_path / "w.csv", ["x", "y"], "z")
    assert len(read.values) == 23
    assert read.remarks == ["2 of 25 rows have no number in x, y or z and are left out"]


BAD = {
    "missing column": ("x,y,level\n1,2,3\n", "w.csv has no column 'z'; it has x, y, level"),
    "text": (
        "x,y,z\n0,0,1\n1,0,low\n0,1,3\n1,1,n/a?\n",
        "column 'z' holds text ('low' in row 2; 2 of 4 cells)",
    ),
    "empty": ("", "w.csv is empty"),
    "no rows": ("x,y,z\n", "w.csv has column names but no rows"),
    "one point": ("x,y,z\n1,2,3\n", "expected at least 3 rows with numbers, got 1"),
    "nothing but gaps": ("x,y,z\n1,2,\n1,3,\n2,2,\n3,3,\n", "expected at least 3 rows with numbers, got 0"),
    "one value": ("x,y,z\n0,0,1\n1,0,1\n0,1,1\n", "z has the same value in all rows, so there is nothing to fit"),
    "a line": ("x,y,z\n0,5,1\n1,5,2\n2,5,3\n", "y is the same in all rows"),
}


@pytest.mark.parametrize("case", BAD, ids=str)
def test_a_bad_table_is_refused_in_a_line(case, tmp_path):
    text, message = BAD[case]
    (tmp_path / "w.csv").write_text(text)
    result = invoke(tmp_path / "w.csv", "--out", tmp_path / "f.nc")
    assert result.exit_code == 1 and message in result.stderr and "Traceback" not in result.output


def test_a_grid_that_misses_the_data_is_refused(table, tmp_path):
    cells = xr.DataArray(np.ones((4, 4)), {"y": np.linspace(44, 45, 4), "x": np.linspace(14, 15, 4)}, ("y", "x"))
    cells.to_netcdf(tmp_path / "degrees.nc")
    result = invoke(table, "--mask", tmp_path / "degrees.nc", "--out", tmp_path / "f.nc")
    assert result.exit_code == 1
    assert "the grid and the data do not overlap: along x it goes from 14 to 15" in result.stderr
    assert "one coordinate system?" in result.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--grid", "many"], "--grid: expected numbers of cells such as 1000x1000, got 'many'"),
        (["--grid", "10"], "--grid: expected 2 numbers of at least 2"),
        (["--out", "f.csv"], "--out: expected a name that ends in .zarr"),
        (["--plot", "f.doc"], "--plot: expected a name that ends in .png"),
        (["--out", "nowhere/f.nc"], "no folder nowhere to write f.nc into"),
        (["--mask", "none.tif"], "--mask: no file none.tif"),
        (["--value", "x"], "expected different columns"),
        (["--x", "y,x"], "--x: expected the eastward coordinate first, as in --x x,y"),
        (["--x", "x/km,y"], "--x: expected names that a coordinate can have in a file, got ['x/km']"),
        (["--x", "x,y,z", "--plot", "f.png"], "--plot: a map has two coordinates, got x, y, z"),
        (["--x", "x", "--out", "f.tif"], "--out: a raster has two coordinates, got x"),
        (["--crs", "EPSG:4326"], "expected longitude and latitude in degrees, got x from 500"),
        (["--x", "east,north"], "--x and --value say which to take"),
    ],
)
def test_options_that_cannot_be_are_refused_before_any_work(table, tmp_path, words, message, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(models, "fit", lambda *_, **__: pytest.fail("fitted"))
    result = invoke(table, *words)
    assert result.exit_code == 1 and message in result.stderr, result.stderr


def test_files_of_no_known_kind_and_none_at_all_are_refused(tmp_path):
    (tmp_path / "w.xyz").write_text("a b c\n1 2 3\n")
    (tmp_path / "w.parquet").write_text("not parquet")
    (tmp_path / "w.gpkg").write_text("not a geopackage")
    for name, message in (
        ("w.xyz", "has no columns 'x', 'y', 'z'"), ("none.csv", "no file"), ("none.gpkg", "no file"),
        ("w.parquet", "is not a Parquet file that can be read"), ("w.gpkg", "is not a table that can be read"),
    ):  # fmt: skip
        result = invoke(tmp_path / name)
        assert result.exit_code == 1 and message in result.stderr, result.stderr


def test_what_stands_at_out_is_kept_unless_asked(table, tmp_path, quick_fit):
    out = tmp_path / "f.nc"
    out.write_text("mine")
    result = invoke(table, "--out", out)
    assert result.exit_code == 1 and "add --overwrite" in result.stderr and out.read_text() == "mine"
    assert invoke(table, "--grid", "5x5", "--paths", 2, "--out", out, "--overwrite").exit_code == 0


# The fit


def test_a_fit_of_many_observations_is_given_all_of_them(monkeypatch):
    g = torch.Generator().manual_seed(0)
    X = 100 * torch.rand(300, 2, generator=g, dtype=torch.float64)
    y = 5 + (X[:, 0] / 20).sin() + 0.1 * torch.randn(300, generator=g, dtype=torch.float64)
    monkeypatch.setattr(models, "FITTED", 80)
    gp = fields.fit_field(X, y, num_starts=1)
    assert gp.num_data == 300
    maps = fields.krige(gp, X.numpy()[:50]).compute()
    residual = maps["mean"].values - (5 + (X[:50, 0] / 20).sin()).numpy()
    assert np.abs(residual).mean() < 0.06  # better than 80 observations of that noise could


def test_a_reader_that_geopandas_lacks_is_named_and_the_file_not_blamed(tmp_path, monkeypatch):
    def without_engine(path):
        raise ImportError("The 'read_file' function requires the 'pyogrio' package")

    monkeypatch.setattr(geopandas, "read_file", without_engine)
    (tmp_path / "a.gpkg").write_bytes(b"x")
    with pytest.raises(ImportError, match="requires the 'pyogrio' package"):
        read_observations(tmp_path / "a.gpkg", ["x", "y"], "z")
