"""simulate: the same functions on a grid, whatever it is given as and however it is cut."""

from typing import cast

import cloudpickle
import geopandas
import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr

import matheron
from matheron import fields, kernels

X_AXIS, Y_AXIS = np.linspace(0, 1, 23), np.linspace(-1, 2, 17)
AXES = {"x": X_AXIS, "y": Y_AXIS}


def drawn(num_paths=5, kernel=None, **settings):
    g = torch.Generator().manual_seed(0)
    X = torch.rand(12, 2, generator=g, dtype=torch.float64)
    y = torch.rand(12, generator=g, dtype=torch.float64)
    gp = matheron.ExactGP(kernel or kernels.Matern(1.5, 0.4), X, y, noise=1e-4, mean=2.0)
    return matheron.draw(gp, num_paths, num_features=128, generator=g, **settings)


def at_points(paths, xs=X_AXIS, ys=Y_AXIS):
    """The field `[s, y, x]` as a list of points."""
    x, y = np.meshgrid(xs, ys)
    return paths(np.stack([x.ravel(), y.ravel()], axis=1)).reshape(paths.num_paths, len(ys), len(xs)).numpy()


def test_a_field_has_the_values_of_the_paths_at_its_cells():
    paths = drawn()
    field = fields.simulate(paths, AXES)
    assert field.dims == ("path", "y", "x") and field.chunks is not None
    np.testing.assert_allclose(field.values, at_points(paths), rtol=0, atol=1e-10)
    np.testing.assert_array_equal(field["y"], Y_AXIS)


@pytest.mark.parametrize("chunks", [4, {"path": 2, "y": 5, "x": 7}, {"y": 3}, "auto"])
@pytest.mark.parametrize("kernel", [kernels.Matern(1.5, 0.4), kernels.RBF(0.4)], ids=["matern", "rbf"])
def test_there_are_no_seams(chunks, kernel):
    paths = drawn(kernel=kernel)
    whole = paths.on_grid([X_AXIS, Y_AXIS]).numpy().transpose(0, 2, 1)
    field = fields.simulate(paths, AXES, chunks=chunks)
    np.testing.assert_allclose(field.values, whole, rtol=0, atol=1e-12)


def test_there_are_no_seams_on_a_lattice():
    paths = drawn(domain=([0, -1], [1, 2]))
    whole = paths.on_grid([X_AXIS, Y_AXIS]).numpy().transpose(0, 2, 1)
    np.testing.assert_allclose(fields.simulate(paths, AXES, chunks=6).values, whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("scheduler", ["sync", "threads"])
def test_schedulers_of_one_machine_agree(scheduler):
    paths = drawn()
    field = fields.simulate(paths, AXES, chunks=6)
    np.testing.assert_allclose(field.compute(scheduler=scheduler).values, at_points(paths), rtol=0, atol=1e-10)


def test_nothing_is_computed_before_it_is_asked_for(monkeypatch):
    paths = drawn()
    monkeypatch.setattr(type(paths), "on_grid", lambda *_: pytest.fail("evaluated"))
    fields.simulate(paths, {"x": np.arange(100_000.0), "y": np.arange(100_000.0)}, chunks=20_000)


def test_a_field_s_name_is_that_of_its_paths_grid_and_blocks():
    name = fields.simulate(drawn(), AXES, chunks=5).data.name
    assert name == fields.simulate(drawn(), AXES, chunks=5).data.name  # other objects, the same functions
    others = [
        fields.simulate(drawn(4), AXES, chunks=5),
        fields.simulate(drawn(), AXES, chunks=6),
        fields.simulate(drawn(), {"x": X_AXIS + 1, "y": Y_AXIS}, chunks=5),
        fields.simulate(drawn()[[0, 1, 2, 4, 3]], AXES, chunks=5),
    ]
    assert len({name, *(other.data.name for other in others)}) == 5


def test_the_default_blocks_are_bounded_whatever_the_grid_and_the_paths():
    for s, n in ((1, 20_000), (3000, 3000)):
        axes = {"x": np.arange(float(n)), "y": np.arange(float(n))}
        field = fields.simulate(matheron.draw_prior(kernels.RBF(), s, input_dim=2, num_features=4), axes)
        assert 2**18 <= np.prod([max(c) for c in field.chunksizes.values()]) <= 2**25


def test_blocks_of_paths_on_a_lattice_have_few_paths_and_many_cells():
    paths = matheron.draw_prior(kernels.RBF(0.3), 6, input_dim=2, domain=(0.0, 1.0))
    large, small = (fields.simulate(paths, {"x": np.linspace(0, 1, n), "y": np.linspace(0, 1, n)}) for n in (2000, 50))
    assert large.chunks == ((2, 2, 2), (2000,), (2000,)) and small.chunks == ((6,), (50,), (50,))


# An xarray object as the grid


def template(**attrs):
    cells = xr.DataArray(np.zeros((17, 23)), {"y": Y_AXIS, "x": X_AXIS}, ("y", "x"), attrs=attrs)
    cells["x"].attrs["units"] = "km"
    return cells


def test_masked_cells_stay_empty_and_the_others_are_as_without_a_mask():
    paths = drawn()
    cells = template()
    cells[2:9, 5:] = np.nan
    cells[:, :3] = np.nan
    field = fields.simulate(paths, cells, chunks=5)
    expected = np.where(cells.notnull(), at_points(paths), np.nan)
    np.testing.assert_allclose(field.values, expected, rtol=0, atol=1e-10)


def test_a_sparse_mask_is_evaluated_at_its_points_alone(monkeypatch):
    paths = drawn()
    cells = template() == 1  # False everywhere
    cells[3, 4] = cells[10, 20] = True
    monkeypatch.setattr(type(paths), "on_grid", lambda *_: pytest.fail("evaluated a whole block"))
    field = fields.simulate(paths, cells, chunks=5)
    expected = np.where(cells, at_points(paths), np.nan)
    np.testing.assert_allclose(field.values, expected, rtol=0, atol=1e-10)


def test_blocks_without_a_cell_are_not_evaluated(monkeypatch):
    cells = template()
    cells[:, 12:] = np.nan
    paths, seen = drawn(), []
    on_grid = type(paths).on_grid
    monkeypatch.setattr(
        type(paths), "on_grid", lambda self, axes: (seen.append(max(map(max, axes[:1]))), on_grid(self, axes))[1]
    )
    fields.simulate(paths, cells, chunks=6).compute(scheduler="sync")
    assert max(seen) <= X_AXIS[11]


def test_a_lazy_template_gives_a_lazy_mask():
    paths = drawn()
    cells = template()
    cells[4:, 5:9] = np.nan
    field = fields.simulate(paths, cells.chunk(7), chunks=5)
    np.testing.assert_array_equal(np.isnan(field.values), np.broadcast_to(cells.isnull(), field.shape))


def test_attributes_units_and_crs_are_kept():
    cells = template(source="a survey", _FillValue=-9).rio.write_crs("EPSG:32633")
    cells[0, 0] = -9
    field = fields.simulate(drawn(), cells)
    assert field.attrs["source"] == "a survey" and "_FillValue" not in field.attrs
    assert field["x"].attrs["units"] == "km"
    assert field.rio.crs.to_epsg() == 32633
    assert np.isnan(field.values[:, 0, 0]).all() and np.isfinite(field.values[:, 0, 1]).all()


def test_a_field_has_no_geotransform_of_its_template_s_other_cells():
    cells = template().rio.write_crs("EPSG:32633").rio.write_transform()
    field = fields.simulate(drawn(), cells.isel(x=slice(3, None)))
    assert "GeoTransform" not in field["spatial_ref"].attrs
    assert field["y"].attrs["standard_name"] == "projection_y_coordinate"


def test_a_raster_of_one_band_is_a_grid_and_a_line_has_a_crs_too():
    paths, cells = drawn(), template()
    np.testing.assert_array_equal(fields.simulate(paths, cells.expand_dims(band=[1])), fields.simulate(paths, cells))
    line = matheron.draw_prior(kernels.RBF(0.4), 2, input_dim=1, num_features=8)
    assert fields.with_crs(fields.simulate(line, {"x": X_AXIS}), "EPSG:32633").rio.crs.to_epsg() == 32633


def test_names_of_the_data_s_columns_say_which_dimension_is_which():
    data = pd.DataFrame({"east": [0.1, 0.9], "north": [0.0, 1.0]})
    gp = matheron.ExactGP(kernels.RBF([0.3, 3.0]), data, [0.0, 1.0], noise=1e-3)
    stored = xr.DataArray(np.zeros((3, 2)), {"east": [0.0, 0.5, 1.0], "north": [0.0, 1.0]}, ("east", "north"))
    paths = matheron.draw(gp, 2, seed=0)
    field = fields.simulate(paths, stored)
    np.testing.assert_allclose(field[:, 1, 0], paths([[0.5, 0.0]])[:, 0], atol=1e-10)


def test_a_dataset_s_coordinates_are_a_grid_and_inputs_names_their_order():
    paths = drawn()
    grid = xr.Dataset(coords={"y": Y_AXIS, "x": X_AXIS})
    assert fields.simulate(paths, grid).dims == ("path", "y", "x")
    stored = xr.DataArray(np.zeros((23, 17)), {"x": X_AXIS, "y": Y_AXIS}, ("x", "y"))
    with pytest.raises(ValueError, match=r"not in a raster's order.*inputs=\('x', 'y'\)"):
        fields.simulate(paths, stored)
    field = fields.simulate(paths, stored, inputs=("x", "y"))
    assert field.dims == ("path", "x", "y")
    np.testing.assert_allclose(field.transpose("path", "y", "x").values, at_points(paths), rtol=0, atol=1e-10)


def test_axes_may_have_any_names_and_number():
    for d in (1, 3):
        paths = matheron.draw_prior(kernels.RBF(0.4), 3, input_dim=d, num_features=64)
        names = ["time", "depth", "east"][:d]
        axes = {name: np.linspace(0, 1, 4 + i) for i, name in enumerate(names)}
        field = fields.simulate(paths, axes, chunks=3)
        assert field.dims == ("path", *reversed(names))
        whole = paths.on_grid(list(axes.values())).numpy()
        np.testing.assert_allclose(field.values, whole.transpose(0, *range(d, 0, -1)), rtol=0, atol=1e-12)


# Targets that are no grid


def test_tables_and_meshes_are_targets_too():
    paths = drawn()
    points = np.random.default_rng(0).random((40, 2))
    expected = paths(points).numpy()
    table = pd.DataFrame({"name": ["a"] * 40, "x": points[:, 0], "y": points[:, 1]})
    geo = geopandas.GeoDataFrame(geometry=geopandas.points_from_xy(*points.T), crs="EPSG:4326")
    for grid, inputs in ((table, ("x", "y")), (table[["x", "y"]], None), (points, None), (geo, None)):
        field = fields.simulate(paths, grid, chunks=7, inputs=inputs)
        assert field.dims == ("path", "point")
        np.testing.assert_allclose(field.values, expected, rtol=0, atol=1e-12)
    assert "x" in fields.simulate(paths, geo).coords and fields.simulate(paths, geo).attrs["crs"] == "EPSG:4326"
    points[3] = np.nan
    assert np.flatnonzero(np.isnan(fields.simulate(paths, points).values).all(axis=0)).tolist() == [3]


def test_no_points_have_no_values():
    paths = matheron.draw_prior(kernels.RBF(0.3), 3, input_dim=2, seed=0)
    assert fields.simulate(paths, np.zeros((0, 2))).compute().shape == (3, 0)


def test_several_outputs_are_a_dim_of_their_own():
    g = torch.Generator().manual_seed(0)
    X = torch.rand(9, 2, generator=g, dtype=torch.float64)
    kernel = kernels.Coregional(kernels.RBF(0.5), [[1.0, 0.7], [0.7, 1.0]])
    paths = matheron.draw(matheron.ExactGP(kernel, X, X, noise=1e-3), 3, num_features=64, generator=g)
    field = fields.simulate(paths, AXES, chunks=8)
    assert field.dims == ("path", "output", "y", "x") and field.sizes["output"] == 2
    whole = paths.on_grid([X_AXIS, Y_AXIS]).numpy().transpose(0, 3, 2, 1)
    np.testing.assert_allclose(field.values, whole, rtol=0, atol=1e-12)
    points = fields.simulate(paths, X.numpy(), chunks=4)
    np.testing.assert_allclose(points.values, paths(X).mT.numpy(), rtol=0, atol=1e-12)


def test_single_precision_stays():
    paths = drawn().float()
    field = fields.simulate(paths, AXES, chunks=5)
    assert field.dtype == np.float32 and field.compute().dtype == np.float32


# Paths on their way


def test_paths_travel_once_with_all_blocks_and_parts():
    paths = matheron.draw_prior(kernels.RBF(0.4), 4, input_dim=2, num_features=4096)
    field = fields.simulate(paths, AXES, chunks={"path": 2, "x": 4, "y": 4})  # 60 blocks
    blob = cloudpickle.dumps(field)
    assert len(blob) < 1.2 * len(cloudpickle.dumps(paths))
    np.testing.assert_array_equal(cloudpickle.loads(blob).compute(scheduler="threads"), field.compute())


def test_a_mean_that_is_a_function_travels():
    paths = matheron.draw_prior(kernels.RBF(), 2, input_dim=2, mean=lambda x: x.sum(-1), num_features=8)
    field = fields.simulate(paths, {"x": X_AXIS[:3], "y": Y_AXIS[:3]}, chunks=2)
    other = cloudpickle.loads(cloudpickle.dumps(field))
    np.testing.assert_allclose(other.values, paths.on_grid([X_AXIS[:3], Y_AXIS[:3]]).mT, atol=1e-12)


# What is refused


@pytest.mark.parametrize(
    ("grid", "settings", "message"),
    [
        ({"x": X_AXIS}, {}, "expected 2 names, one for each of the paths' inputs"),
        ({"x": X_AXIS, "y": Y_AXIS, "z": Y_AXIS}, {}, "expected 2 names"),
        ({"x": X_AXIS, "y": []}, {}, "finite numbers .* along y"),
        ({"x": X_AXIS, "y": ["a"]}, {}, "expected numbers along y"),
        ({"x": X_AXIS, "y": [np.nan]}, {}, "finite numbers"),
        (AXES, {"inputs": ("x", "z")}, r"got no \['z'\]"),
        (AXES, {"chunks": 0}, "chunks: expected 'auto'"),
        (AXES, {"chunks": {"z": 3}}, r"chunks: expected sizes for \['path', 'y', 'x'\], got \['z'\]"),
        (np.zeros((4, 3)), {}, r"points \[n, 2\]"),
        (pd.DataFrame({"x": ["a"], "y": [1.0]}), {}, "expected numbers in column x, got (object|str)"),
        (pd.DataFrame({"x": pd.date_range("2020", periods=2), "y": 1.0}), {}, "numbers in column x, got datetime64"),
        ({"x": X_AXIS, "y": pd.date_range("2020", periods=3)}, {}, "along y, got datetime64.*give days or years"),
        (xr.Dataset(coords={"y": np.array(["2020"], "M8[ns]"), "x": X_AXIS}), {}, "along y, got datetime64"),
        (xr.DataArray(np.zeros((3, 3)), dims=("y", "x")), {}, "expected coordinates for every dimension"),
        (xr.DataArray([["a"]], {"y": [0.0], "x": [0.0]}, ("y", "x")), {}, "numbers or of True and False"),
    ],
)
def test_a_grid_that_does_not_fit_is_refused(grid, settings, message):
    with pytest.raises(ValueError, match=message):
        fields.simulate(drawn(2), grid, **settings)


def test_cells_beyond_a_lattice_s_domain_are_refused_before_any_block():
    paths = drawn(domain=([0, -1], [1, 2]))
    with pytest.raises(ValueError, match="expected points inside the domain"):
        fields.simulate(paths, {"x": X_AXIS + 0.1, "y": Y_AXIS})
    assert np.isnan(fields.simulate(paths, np.full((3, 2), np.nan)).values).all()
    with pytest.raises(ValueError, match="expected points inside the domain"):
        fields.simulate(paths, np.array([[0.5, 0.5], [np.nan, 0.0], [0.5, 2.1]]))


def test_what_is_no_path_is_refused():
    with pytest.raises(TypeError, match="expected paths of one model"):
        fields.simulate(cast(matheron.AbstractPaths, kernels.RBF()), AXES)


def test_missing_packages_are_named(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(ImportError, match=r"pip install '\.\[fields\]'"):
        fields.simulate(drawn(1), AXES)


def test_small_fields_are_had_at_once():
    paths = drawn()
    field = paths.to_xarray(AXES, name="level")
    assert field.chunks is None and field.name == "level"
    np.testing.assert_allclose(field.values, at_points(paths), rtol=0, atol=1e-10)


def test_dask_s_own_operations_work_on_it():
    field = fields.simulate(drawn(), AXES, chunks=6)
    mean = field.mean("path").compute(scheduler="sync")
    np.testing.assert_allclose(mean, field.values.mean(0), rtol=0, atol=1e-12)
