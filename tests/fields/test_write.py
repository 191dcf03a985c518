"""write: what is read back is what was simulated, and a killed write resumes."""

import argparse
import errno
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import rioxarray
import xarray as xr

import matheron
from matheron import fields, kernels
from matheron.fields import simulation

HERE = Path(__file__).parent


@pytest.fixture
def writing(monkeypatch):
    monkeypatch.syspath_prepend(HERE)
    import writing

    return writing


@pytest.fixture
def field(writing):
    return writing.field()


def reopened(path):
    if path.suffix == ".zarr":
        return xr.open_zarr(path)["field"]
    if path.suffix == ".nc":
        return xr.open_dataarray(path)
    return rioxarray.open_rasterio(path).sortby("y").rename(band="path")  # type: ignore[union-attr]


@pytest.mark.filterwarnings("error:Object at")  # of Zarr, about the file that identifies an unfinished store
@pytest.mark.parametrize("suffix", [".zarr", ".nc", ".tif"])
def test_what_is_read_back_is_what_was_simulated(field, tmp_path, suffix):
    field = fields.with_crs(field.assign_attrs(units="m"), "EPSG:32633")
    path = fields.write(field, tmp_path / f"field{suffix}")
    with reopened(path) as read:
        np.testing.assert_array_equal(read.values, field.values)
        np.testing.assert_allclose(read["x"], field["x"])
        np.testing.assert_allclose(read["y"], field["y"])
        assert read.rio.crs.to_epsg() == 32633
        if suffix != ".tif":
            assert read.attrs["units"] == "m"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [path.name]


def test_gdal_finds_a_netcdf_file_s_cells_and_crs(field, tmp_path):
    """As QGIS would: by the file's attributes, for the field and for its maps."""
    import rasterio

    field = fields.with_crs(field, "EPSG:32633")
    both = fields.summaries_of(field).assign(field=field)
    path = fields.write(both, tmp_path / "field.nc")
    assert "grid_mapping" not in field.attrs  # what was given is left as it was
    for name in ("field", "std"):
        with rasterio.open(f"NETCDF:{path}:{name}") as file:
            assert file.crs.to_epsg() == 32633
            half = (field["x"][1] - field["x"][0]) / 2
            assert file.bounds.left == pytest.approx(float(field["x"][0] - half))
            assert file.bounds.bottom < file.bounds.top


def test_a_geotiff_is_tiled_and_north_is_up(field, tmp_path):
    import rasterio

    with rasterio.open(fields.write(field, tmp_path / "field.tif")) as file:
        assert file.is_tiled and file.transform.e < 0 and file.count == 3
        assert file.descriptions == ("field path 0", "field path 1", "field path 2")
        np.testing.assert_array_equal(file.read(1)[::-1], field.values[0])
    downwards = field.isel(y=slice(None, None, -1))
    with rasterio.open(fields.write(downwards, tmp_path / "down.tif")) as file:
        np.testing.assert_array_equal(file.read(2), downwards.values[1])


def test_a_geotiff_has_maps_then_paths_described_compressed_and_with_overviews(tmp_path):
    """On axes that are no whole number of tiles, in either direction, and in blocks that are none."""
    import rasterio

    paths = matheron.draw_prior(kernels.RBF(0.3), 3, input_dim=2, seed=0)
    axes = {"x": np.linspace(0, 1, 300), "y": np.linspace(0, 1, 270)}
    field = fields.simulate(paths, axes, chunks={"x": 100, "y": 90}, name="level").compute().chunk(x=100, y=90)
    maps = fields.summaries_of(field, quantiles=[0.1, 0.9], above=[0.25])
    for name, whole in (
        ("up.tif", maps.assign(level=field)),
        ("down.tif", maps.assign(level=field).isel(y=slice(None, None, -1))),
    ):
        with rasterio.open(fields.write(whole, tmp_path / name)) as file:
            assert file.descriptions == (
                "mean", "mean_error", "std", "std_error", "quantile 0.1", "quantile 0.9", "probability above 0.25",
                "level path 0", "level path 1", "level path 2",
            )  # fmt: skip
            assert file.compression.name == "deflate" and file.overviews(1) == file.overviews(10) == [2, 4]
            np.testing.assert_array_equal(file.read(8)[::-1], field.values[0])
            np.testing.assert_array_equal(file.read(5)[::-1], maps["quantile"].values[0])
            small = file.read(8, out_shape=(135, 150))[::-1]
            np.testing.assert_allclose(small, field.values[0].reshape(135, 2, 150, 2).mean((1, 3)), atol=1e-6)


def test_a_dataset_of_maps_is_written_too(field, tmp_path):
    maps = xr.Dataset({"mean": field.mean("path"), "first": field[0].compute()})
    for name in ("maps.nc", "maps.zarr", "maps.tif"):
        path = fields.write(maps, tmp_path / name, scheduler="threads")
        if name == "maps.tif":
            with rioxarray.open_rasterio(path) as read:  # type: ignore[union-attr]
                np.testing.assert_allclose(np.asarray(read)[0, ::-1], maps["mean"].values, rtol=0, atol=1e-12)
        else:
            with xr.open_dataset(path) as read:
                np.testing.assert_allclose(read["mean"], maps["mean"], rtol=0, atol=1e-12)
                np.testing.assert_array_equal(read["first"], maps["first"])


@pytest.mark.parametrize("suffix", ["nc", "zarr", "tif"])
def test_endings_in_capitals_are_of_the_same_formats_and_writing_warns_of_nothing(field, suffix, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        lower, upper = (fields.write(field, tmp_path / f"{name}") for name in (f"a.{suffix}", f"B.{suffix.upper()}"))
    assert upper.is_dir() == lower.is_dir()
    if suffix != "zarr":
        assert upper.read_bytes()[:4] == lower.read_bytes()[:4]  # what a format begins with
    else:
        xr.testing.assert_equal(xr.open_zarr(upper), xr.open_zarr(lower))


def count_blocks(monkeypatch, most=1000):
    """A list that grows with every block computed; after `most` of them comes an interrupt."""
    computed = []
    on_grid = simulation._on_grid

    def counted(*args):
        if len(computed) == most:
            raise KeyboardInterrupt
        computed.append(1)
        return on_grid(*args)

    monkeypatch.setattr(simulation, "_on_grid", counted)
    return computed


@pytest.mark.parametrize("suffix", [".zarr", ".nc"])
def test_a_stopped_write_goes_on_without_the_finished_blocks(field, tmp_path, suffix, monkeypatch):
    path = tmp_path / f"field{suffix}"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        count_blocks(patch, most=2)
        fields.write(field, path)
    with monkeypatch.context() as patch:
        computed = count_blocks(patch)
        fields.write(field, path)
    assert len(computed) == 6 - 2
    with reopened(path) as read:
        np.testing.assert_array_equal(read.values, field.values)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".zarr", ".nc", ".tif"])
def test_a_killed_write_goes_on_without_the_finished_blocks(writing, tmp_path, suffix, monkeypatch):
    path = tmp_path / f"field{suffix}"
    process = subprocess.Popen([sys.executable, str(HERE / "writing.py"), str(path), "0.2"], env={**os.environ})
    end = time.monotonic() + 60
    while len(writing.chunks_of(path)) < 4:
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    finished = writing.chunks_of(path)
    assert 4 <= len(finished) < 20
    assert not path.exists()
    finished[0].with_suffix(".0123.partial").write_bytes(b"torn")  # as if the kill had come while a chunk was written
    field = writing.field(chunks=8)
    with monkeypatch.context() as patch:
        computed = count_blocks(patch)
        fields.write(field, path)
    assert len(computed) == 20 - len(finished)
    with reopened(path) as read:
        np.testing.assert_array_equal(read.values, field.values)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name] and not list(path.rglob("*.partial"))


def test_a_write_that_is_stopped_at_its_end_evaluates_no_block_again(tmp_path, monkeypatch):
    """Also with blocks of zeros, and with masked ones, of which the store has no file."""
    paths = matheron.draw_prior(kernels.RBF(0.3), 3, input_dim=2, seed=0)
    cells = xr.DataArray(np.ones((8, 12)), {"y": np.linspace(0, 1, 8), "x": np.linspace(0, 1, 12)}, ("y", "x"))
    field = fields.simulate(paths, cells.where(cells["x"] > 0.3), chunks=4)
    maps = fields.summaries_of(field, above=[99.0])
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="stopped"):
        patch.setattr(sys.modules["matheron.fields.writing"], "_assemble", stopped)
        fields.write(maps, tmp_path / "maps.nc")
    with monkeypatch.context() as patch:
        computed = count_blocks(patch)
        fields.write(maps, tmp_path / "maps.nc")
    assert not computed


def stopped(*_):
    raise RuntimeError("stopped")


def test_blocks_of_uneven_sizes_are_written_whole(field, tmp_path):
    """A part of a field, whose first block is smaller: no two tasks write into one chunk of the store."""
    uneven = field.isel(x=slice(3, None), y=slice(5, 30))
    for scheduler in ("sync", "threads"):
        path = fields.write(uneven, tmp_path / f"{scheduler}.zarr", scheduler=scheduler)
        with reopened(path) as read:
            np.testing.assert_array_equal(read.values, uneven.values)


def test_an_unfinished_write_of_another_field_is_not_continued(field, tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        count_blocks(patch, most=2)
        fields.write(field, tmp_path / "field.zarr", scheduler="sync")
    with pytest.raises(
        ValueError, match=r"an unfinished write of another field.*replace it with overwrite=True \(--overwrite"
    ):
        fields.write(field.isel(path=[0]), tmp_path / "field.zarr")
    path = fields.write(field.isel(path=[0]), tmp_path / "field.zarr", overwrite=True)
    with reopened(path) as read:
        np.testing.assert_array_equal(read.values, field.values[:1])


def test_what_is_there_is_kept_unless_asked(field, tmp_path):
    path = fields.write(field, tmp_path / "field.nc")
    before = path.read_bytes()
    with pytest.raises(FileExistsError, match="overwrite=True"):
        fields.write(field, path)
    assert path.read_bytes() == before
    fields.write(field.isel(path=[0]), path, overwrite=True)
    with reopened(path) as read:
        assert read.sizes["path"] == 1


@pytest.mark.parametrize("suffix", [".zarr", ".nc", ".tif"])
@pytest.mark.parametrize("when", ["blocks", "file"])
def test_a_full_disk_is_named_and_leaves_nothing_under_the_file_s_name(field, tmp_path, suffix, when, monkeypatch):
    """Whatever a library makes of it: NetCDF's says no more than that there was an error."""
    writing, path = sys.modules["matheron.fields.writing"], tmp_path / f"field{suffix}"

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    def vague(*_, **__):
        (tmp_path / f".{path.name}.new{suffix}").write_text("half")
        raise RuntimeError("NetCDF: HDF error")

    with monkeypatch.context() as patch:
        if when == "blocks":
            patch.setattr(writing, "_put", full)
        else:
            patch.setattr(writing.shutil, "disk_usage", lambda _: argparse.Namespace(free=0))
            patch.setattr(xr.Dataset, "to_netcdf", vague)
            patch.setattr(writing, "assemble_geotiff", vague)
            patch.setattr(writing.os, "replace", full) if suffix == ".zarr" else None
        with pytest.raises(
            OSError, match=r"no space is left on the disk of .*finished blocks are kept in field\..*partial"
        ):
            fields.write(field, path, scheduler="sync")
    assert not path.exists() and not (tmp_path / f".{path.name}.new{suffix}").exists()
    with reopened(fields.write(field, path)) as read:
        np.testing.assert_array_equal(np.asarray(read), field.values)


def test_what_cannot_be_written_is_refused_before_any_work(field, tmp_path, monkeypatch):
    for name in ("mg/l", ".."):
        with pytest.raises(ValueError, match=f"names of variables without '/'.*got .'{name}'"):
            fields.write(field.rename(name), tmp_path / "field.nc")
    with pytest.raises(ValueError, match=r"ends in \.zarr, \.nc"):
        fields.write(field, tmp_path / "field.csv")
    with pytest.raises(FileNotFoundError, match="make it first"):
        fields.write(field, tmp_path / "none" / "field.nc")
    with pytest.raises(TypeError, match="DataArray or Dataset"):
        fields.write(field.values, tmp_path / "field.nc")
    uneven = field.isel(x=[0, 1, 4])
    with pytest.raises(ValueError, match="evenly spaced"):
        fields.write(uneven, tmp_path / "field.tif")
    with pytest.raises(ValueError, match="write points to"):
        fields.write(field[:, 0], tmp_path / "field.tif")
    with pytest.raises(ValueError, match="scheduler: expected 'sync'"):
        fields.write(field, tmp_path / "field.nc", scheduler="fast")
    monkeypatch.setattr("matheron.fields.writing.PATIENCE", "0.2s")
    with pytest.raises(OSError, match="no Dask scheduler answers at"):
        fields.write(field, tmp_path / "field.nc", scheduler="tcp://127.0.0.1:1")
    assert not list(tmp_path.iterdir())
