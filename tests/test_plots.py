"""Pictures: they show the numbers they claim to, and say what they cannot show."""

from typing import Any

import pytest
import torch
from matplotlib import pyplot as plt

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


def test_two_dimensions_are_maps_of_mean_deviation_and_paths(generator):
    paths = matheron.draw_prior(K.RBF(0.3), 5, input_dim=2, num_features=32, generator=generator)
    x1, x2 = torch.linspace(0, 1, 6, dtype=torch.float64), torch.linspace(0, 2, 4, dtype=torch.float64)
    axes = plots.plot_paths(paths, [x1, x2])
    assert [axis.get_title() for axis in axes] == ["mean", "standard deviation", "path 1", "path 2"]
    shown = torch.as_tensor(axes[2].collections[0].get_array()).reshape(4, 6)
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
