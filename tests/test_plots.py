"""Pictures: they show the numbers they claim to, and say what they cannot show."""

import json
import sys
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt
from matplotlib.collections import LineCollection, PathCollection, PolyCollection, QuadMesh
from pandas import DataFrame, Series

import matheron
from matheron import kernels as K
from matheron import plots

X = torch.tensor([[0.1], [0.5], [0.9]], dtype=torch.float64)
Y = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)


@pytest.fixture(autouse=True)
def close():
    yield
    plt.close("all")


def drawn(axes, label):
    (line,) = [line for line in axes.lines if line.get_label() == label]
    return torch.as_tensor(line.get_xydata())


def test_one_dimension_shows_the_paths_their_mean_and_the_data(generator):
    paths = matheron.draw(matheron.ExactGP(K.RBF(0.2), X, Y, noise=1e-4), 20, generator=generator)
    x = torch.linspace(0, 1, 50, dtype=torch.float64)
    axes = plots.plot_paths(paths, x, data=(X, Y))
    assert torch.allclose(drawn(axes, "mean")[:, 1], paths.mean(x[:, None]))
    assert torch.allclose(drawn(axes, "data"), torch.column_stack([X, Y]))
    values = torch.as_tensor(axes.lines[0].get_ydata())
    assert torch.allclose(values, paths(x[:, None])[0])
    assert len(axes.collections) == 1  # the band


def test_every_output_has_a_panel(generator):
    gp = matheron.ExactGP(K.RBF(0.2), X, Y, noise=1e-2)
    paths = matheron.draw(matheron.Outputs([gp, gp]), 4, num_features=16, generator=generator)
    axes = plots.plot_paths(paths, torch.linspace(0, 1, 10))
    assert [axis.get_ylabel() for axis in axes] == ["output 1", "output 2"]


def band(axes, label):
    """Lower and upper edge of a band, in the order of x."""
    (found,) = [c for c in axes.collections if c.get_label() == label]
    corners = torch.as_tensor(found.get_paths()[0].vertices)
    at = {float(v) for v in corners[:, 0]}
    rows = [corners[corners[:, 0] == v, 1] for v in sorted(at)]
    return torch.stack([row.min() for row in rows]), torch.stack([row.max() for row in rows])


def test_one_band_is_the_function_s_and_a_wider_one_is_that_of_new_observations(generator):
    transform = matheron.transforms.Affine(3.0, 1.0)
    gp = matheron.ExactGP(K.RBF(0.2), X, Y, noise=0.04, output_transform=transform)
    paths = matheron.draw(gp, 8, solver=matheron.solvers.Cholesky(keep=True), generator=generator)
    x = torch.linspace(0, 1, 30, dtype=torch.float64)
    axes, mean, sd = paths.plot(x), paths.mean(x[:, None]), paths.std(x[:, None])
    assert torch.allclose(torch.stack(band(axes, plots.FUNCTION)), torch.stack([mean - 2 * sd, mean + 2 * sd]))
    wider = (sd.square() + 9 * 0.04).sqrt()  # in a user's units
    for shown in (axes, paths.plot(x, noise=9 * 0.04), paths.plot(x, noise=np.full(30, 9 * 0.04))):
        both = torch.stack(band(shown, plots.OBSERVATION))
        assert torch.allclose(both, torch.stack([mean - 2 * wider, mean + 2 * wider]))
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert {plots.FUNCTION, plots.OBSERVATION} <= set(labels)


def test_the_band_of_laws_that_differ_from_path_to_path_is_that_of_their_mixture(generator):
    paths = matheron.draw(matheron.ExactGP(K.RBF(0.2), X, Y, noise=0.04), 2, generator=generator)
    x = torch.linspace(0, 1, 30, dtype=torch.float64)
    mean, variance = paths.mean(x[:, None]), paths.variance(x[:, None])
    scale = torch.tensor([1.0, 3.0])
    sd = (5 * variance + mean.square()).sqrt()  # (1 + 9) / 2 of the variance, and ((1 - 2)^2 + (3 - 2)^2) / 2 of means
    shown = band((scale * paths).plot(x), plots.FUNCTION)
    assert torch.allclose(torch.stack(shown), torch.stack([2 * mean - 2 * sd, 2 * mean + 2 * sd]))


def test_noise_that_is_not_known_or_cannot_be_seen_has_no_band(generator):
    x = torch.linspace(0, 1, 10, dtype=torch.float64)
    differs = matheron.ExactGP(K.RBF(0.2), X, Y, noise=[0.1, 0.2, 0.3])
    tiny, sparse = matheron.ExactGP(K.RBF(0.2), X, Y, noise=1e-8), matheron.SparseGP(K.RBF(0.2), X, Y)
    for model in (differs, tiny, sparse):
        axes = matheron.draw(model, 4, generator=generator).plot(x)
        assert [c.get_label().startswith("function") for c in axes.collections] == [True]
    axes = matheron.draw(differs, 4, generator=generator).plot(x, noise=0.2)
    assert plots.OBSERVATION in [c.get_label() for c in axes.collections]


def test_every_output_s_noise_is_its_own(generator):
    quiet, loud = (matheron.ExactGP(K.RBF(0.2), X, Y, noise=noise) for noise in (0.01, 1.0))
    coupled = matheron.ExactGP(K.Coregional(K.RBF(0.2), torch.eye(2)), X, torch.stack([Y, Y], 1), noise=0.25)
    for model, wanted in ((matheron.Outputs([quiet, loud]), [0.01, 1.0]), (coupled, [0.25, 0.25])):
        axes = matheron.draw(model, 4, generator=generator).plot(torch.tensor([0.1, 30.0, 40.0]))
        for axis, noise in zip(axes, wanted, strict=True):  # far from the data, where means are 0
            function = band(axis, [c.get_label() for c in axis.collections][-1])[1][-1]
            assert torch.isclose(
                band(axis, plots.OBSERVATION)[1][-1].square() - function.square(), torch.tensor(4 * noise).double()
            )


def test_paths_know_the_variance_of_their_observations_noise(generator):
    scaled = matheron.transforms.Affine(3.0, 1.0)
    quiet, loud = (matheron.ExactGP(K.RBF(0.2), X, Y, noise=v, output_transform=scaled) for v in (0.01, 1.0))

    def of(model):
        return matheron.draw(model, 4, num_features=8, generator=generator).noise_variance

    torch.testing.assert_close(of(quiet), torch.tensor([0.09]).double())
    torch.testing.assert_close(of(matheron.Ensemble([quiet, loud])), torch.tensor([(0.09 + 9.0) / 2]).double())
    coupled = matheron.ExactGP(
        K.Coregional(K.RBF(0.2), torch.eye(2)), X, [1.0, 2.0, 3.0], [0.1, 0.2, 0.1], tasks=[0, 1, 0]
    )
    torch.testing.assert_close(of(coupled), torch.tensor([0.1, 0.2]).double())
    torch.testing.assert_close(of(matheron.SelectedOutputs(coupled, [1])), torch.tensor([0.2]).double())
    curved = matheron.ExactGP(K.RBF(0.2), X, Y, noise=0.1, output_transform=matheron.transforms.Exp())
    assert of(curved) is None and matheron.draw_prior(K.RBF(), 2, input_dim=1).noise_variance is None
    given = matheron.draw(quiet, 4, num_features=8, generator=generator).condition_on([[0.3]], [1.0], noise=0.5)
    assert given.noise_variance is None


def test_categories_are_bars_and_points_that_no_line_joins(generator):
    gp = matheron.ExactGP(K.Categorical(1.0, categories=3), [[0.0], [1.0], [2.0]], Y, noise=0.1)
    paths = matheron.draw(gp, 5, generator=generator)
    axes = paths.plot([0.0, 1.0, 2.0])
    assert all(line.get_linestyle() == "None" for line in axes.lines)
    assert not any(isinstance(c, PolyCollection) for c in axes.collections)
    bars = [c for c in axes.collections if isinstance(c, LineCollection)]
    assert [len(c.get_segments()) for c in bars] == [3, 3]
    assert list(axes.get_xticks()) == [0, 1, 2]
    values = torch.stack([torch.as_tensor(line.get_ydata()) for line in axes.lines])
    assert any(torch.allclose(values[i : i + 5], paths([[0.0], [1.0], [2.0]])) for i in range(len(values) - 4))


def test_axes_have_the_names_of_columns(generator):
    table = DataFrame({"depth": [0.1, 0.5, 0.9], "east": [1.0, 2.0, 0.0], "ore": Y.numpy()})
    x = torch.linspace(0, 1, 5, dtype=torch.float64)

    def drawn_from(columns, targets=table["ore"]):
        return matheron.draw(matheron.ExactGP(K.RBF(0.2), table[columns], targets, noise=0.1), 4, generator=generator)

    line, data = drawn_from(["depth"]), (table[["depth"]], table["ore"])
    assert (line.plot(x).get_xlabel(), line.plot(x).get_ylabel()) == ("depth", "f(depth)")
    assert line.plot(x, data=data).get_ylabel() == "ore"
    sheet = drawn_from(["depth", "east"])
    panels = sheet.plot([x, x], data=(table[["depth", "east"]], table["ore"]))
    assert {axis.get_xlabel() for axis in panels} == {"depth"} and panels[0].get_ylabel() == "east"
    assert "ore" in [axis.get_xlabel() for axis in panels[0].figure.axes]  # of the bar
    plain = matheron.draw_prior(K.RBF(0.3), 3, input_dim=1, generator=generator)
    assert plain.plot(Series(x.numpy(), name="time"), data=(table["depth"], table["ore"])).get_xlabel() == "time"
    minima = matheron.minimize(sheet, [[0.0, 0.0], [1.0, 1.0]], mesh_size=32, num_starts=1, generator=generator)
    shown = minima.plot(paths=sheet)
    assert (shown.get_xlabel(), shown.get_ylabel()) == ("depth", "east")
    states = torch.zeros(3, 4, 2)
    panels = plots.plot_trajectories(states, names=["angle", "speed"])
    assert [axis.get_ylabel() for axis in panels] == ["angle", "speed"]
    with pytest.raises(ValueError, match="names: expected 2, one per state, got 1"):
        plots.plot_trajectories(states, names=["angle"])
    with pytest.raises(ValueError, match="data: expected the columns 'depth', 'east', in this order"):
        sheet.plot([x, x], data=(table[["east", "depth"]], table["ore"]))


def meshes(axes):
    return [next(c for c in axis.collections if isinstance(c, QuadMesh)) for axis in axes]


def test_maps_of_values_share_a_scale_and_light_is_high_in_all_of_them(generator):
    gp = matheron.ExactGP(K.RBF(0.3), torch.rand(9, 2, generator=generator), torch.linspace(-3, 5, 9), noise=0.1)
    side = torch.linspace(0, 1, 8, dtype=torch.float64)
    axes = matheron.draw(gp, 5, generator=generator).plot([side, side], data=(gp.train_inputs, gp.train_targets))
    *values, deviation = meshes(axes)
    assert len({mesh.get_clim() for mesh in values}) == 1
    low, high = values[0].get_clim()
    for mesh in values:
        shown = mesh.get_array()
        assert shown is not None and low <= shown.min() and shown.max() <= high
    for mesh in (values[0], deviation):
        light = mesh.get_cmap()(np.linspace(0, 1, 20))[:, :3] @ [0.2126, 0.7152, 0.0722]
        assert (np.diff(light) > 0).all()
    for axis in axes[:-1]:  # data in the colours of the map
        (points,) = [c for c in axis.collections if isinstance(c, PathCollection)]
        np.testing.assert_allclose(np.asarray(points.get_array()), gp.train_targets)
        assert points.get_clim() == (low, high) and points.get_cmap() == values[0].get_cmap()
    bars = [axis for axis in axes[0].figure.axes if axis not in list(axes)]
    assert len(bars) == 2 and {bar.get_ylabel() for bar in bars} == {""}  # below the panels, not between them
    assert bars[0].get_xlabel() == "f($x_1$, $x_2$)" and "without noise" in bars[1].get_xlabel()


def test_settings_that_a_backend_makes_with_its_first_figure_are_kept(generator, monkeypatch):
    """As a notebook's does: it becomes interactive, and shows no figure where that is undone."""
    real = plt.new_figure_manager

    def first_figure(*args, **settings):
        matplotlib.interactive(True)
        return real(*args, **settings)

    monkeypatch.setattr(plt, "new_figure_manager", first_figure)
    paths = matheron.draw_prior(K.RBF(0.3), 3, input_dim=1, num_features=8, generator=generator)
    with matplotlib.rc_context({"interactive": False, "axes.grid": False}):
        paths.plot(torch.linspace(0, 1, 5))
        assert matplotlib.is_interactive() and not matplotlib.rcParams["axes.grid"]


def test_a_diagnosis_is_text_in_a_notebook_too(generator, monkeypatch):
    gp = matheron.ExactGP(K.RBF(0.2), X, Y, noise=1e-2)
    found = matheron.diagnose(matheron.draw(gp, 16, generator=generator), gp, torch.linspace(0, 1, 20)[:, None])
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)  # where rich displays what it prints
    assert "2-Wasserstein" in str(found) and "2-Wasserstein" in found._repr_html_()


NOTEBOOK = (
    "import torch, matheron\n"
    "gp = matheron.ExactGP(matheron.kernels.RBF(0.3), [[0.0], [1.0]], [0.0, 1.0], noise=0.01)\n"
    "paths, x = matheron.draw(gp, 8, seed=0), torch.linspace(0, 1, 20)",
    "paths.plot(x);",
    "from matplotlib import pyplot as plt\nplt.plot([0, 1], [0, 1]);",
    "matheron.diagnose(paths, gp, x[:, None])",
)


@pytest.mark.slow
def test_a_notebook_shows_every_figure_and_each_table_once(tmp_path, monkeypatch):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    kernel = tmp_path / "kernels" / "here" / "kernel.json"
    kernel.parent.mkdir(parents=True)
    launch = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    kernel.write_text(json.dumps({"argv": launch, "display_name": "here", "language": "python"}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    monkeypatch.delenv("MPLBACKEND", raising=False)
    cells = [nbformat.v4.new_code_cell(code) for code in NOTEBOOK]
    book = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(book, kernel_name="here", timeout=300).execute()
    shown = [[set(output.get("data", {})) for output in cell["outputs"]] for cell in book["cells"]]
    assert "image/png" in shown[1][0] and "image/png" in shown[2][0]
    assert shown[3] == [{"text/plain", "text/html"}]


def test_two_dimensions_are_maps_of_mean_deviation_and_paths(generator):
    paths = matheron.draw_prior(K.RBF(0.3), 5, input_dim=2, num_features=32, generator=generator)
    x1, x2 = torch.linspace(0, 1, 6, dtype=torch.float64), torch.linspace(0, 2, 4, dtype=torch.float64)
    axes = plots.plot_paths(paths, [x1, x2])
    assert [axis.get_title() for axis in axes] == ["mean", "path 1", "path 2", "standard deviation"]
    shown = torch.as_tensor(axes[1].collections[0].get_array()).reshape(4, 6)
    assert torch.allclose(shown.T, paths.on_grid([x1, x2])[0])


def test_axes_of_the_caller_are_drawn_into(generator):
    paths = matheron.draw_prior(K.RBF(0.3), 3, input_dim=1, num_features=8, generator=generator)
    _, own = plt.subplots()
    assert plots.plot_paths(paths, torch.linspace(0, 1, 5), axes=own) is own
    with pytest.raises(ValueError, match="axes: expected 1, one per panel, got 2"):
        plots.plot_paths(paths, torch.linspace(0, 1, 5), axes=plt.subplots(1, 2)[1])


def test_minima_are_where_they_were_found(generator):
    paths = matheron.draw_prior(K.RBF(0.4), 6, input_dim=2, num_features=32, generator=generator)
    box = [[0.0, 0.0], [1.0, 1.0]]
    minima = matheron.minimize(paths, box, mesh_size=200, num_starts=2, generator=generator)
    axes = plots.plot_minima(minima, paths=paths, bounds=box)
    assert torch.allclose(torch.as_tensor(axes.lines[0].get_xydata()), minima.x)


def test_minima_in_one_dimension_lie_on_their_paths(generator):
    paths = matheron.draw_prior(K.RBF(0.4), 6, input_dim=1, num_features=32, generator=generator)
    minima = matheron.minimize(paths, [[0.0], [1.0]], mesh_size=200, num_starts=2, generator=generator)
    points = torch.as_tensor(plots.plot_minima(minima, paths=paths).lines[-1].get_xydata())
    assert torch.allclose(points[:, 1], minima.value)


def test_fans_have_the_quantiles_of_the_trajectories(generator):
    states = torch.randn(400, 30, 2, generator=generator, dtype=torch.float64).cumsum(1)
    axes = plots.plot_trajectories(states, dt=0.5)
    median = drawn(axes[1], "median")
    assert torch.allclose(median[:, 1], states[..., 1].median(0).values, atol=0.2)
    assert torch.allclose(median[:, 0], 0.5 * torch.arange(30, dtype=torch.float64))


def test_a_diagnosis_is_shown_by_its_distances(generator):
    gp = matheron.ExactGP(K.RBF(0.2), X, Y, noise=1e-2)
    found = matheron.diagnose(matheron.draw(gp, 16, generator=generator), gp, torch.linspace(0, 1, 20)[:, None])
    bars: Any = plots.plot_diagnosis(found).patches
    assert found.basis is not None
    assert [bar.get_height() for bar in bars] == [found.paths.w2, found.floor.w2, found.basis.w2]


def test_what_cannot_be_shown_is_refused(generator):
    paths = matheron.draw_prior(K.RBF(0.3), 2, input_dim=3, num_features=8, generator=generator)
    with pytest.raises(ValueError, match="plot: expected paths in 1 or 2 dimensions, got 3"):
        plots.plot_paths(paths, torch.rand(5, 3))
    flat = matheron.draw_prior(K.RBF(0.3), 2, input_dim=2, num_features=8, generator=generator)
    with pytest.raises(ValueError, match="x: expected the two axes of a grid"):
        plots.plot_paths(flat, torch.rand(5, 2))
    with pytest.raises(ValueError, match="two axes that increase"):
        flat.plot([[0.0, 0.0], [1.0, 1.0]])
    line = matheron.draw_prior(K.RBF(0.3), 2, input_dim=1, num_features=8, generator=generator)
    with pytest.raises(ValueError, match=r"data: expected inputs \[n, 1\] and n targets"):
        plots.plot_paths(line, torch.rand(5), data=(torch.rand(3, 2), torch.rand(3)))
    with pytest.raises(ValueError, match=r"states: expected \[s, steps, d_s\]"):
        plots.plot_trajectories(torch.rand(5, 3))


def test_paths_minima_and_diagnoses_plot_themselves(generator):
    gp = matheron.ExactGP(K.RBF(0.2), X, Y, noise=1e-2)
    paths = matheron.draw(gp, 8, num_features=32, generator=generator)
    x = torch.linspace(0, 1, 20, dtype=torch.float64)
    assert torch.allclose(drawn(paths.plot(x, data=(X, Y)), "data")[:, 1], Y)
    minima = matheron.minimize(paths, [[0.0], [1.0]], mesh_size=100, num_starts=2, generator=generator)
    assert len(minima.plot(paths=paths).lines) == 8 + 1
    assert len(matheron.diagnose(paths, gp, x[:, None]).plot().patches) == 3
