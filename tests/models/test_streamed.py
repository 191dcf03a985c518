"""Data that are read in chunks, against the closed form of all of them."""

import numpy as np
import pytest
import torch

import matheron
from matheron import kernels as K
from matheron.compare.samplers import moments
from matheron.features import posterior_scale

UNIT = (0.0, 1.0)


def data(n: int = 1500, d: int = 1) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.random((n, d))
    return X, np.sin(6 * X).sum(1) + 0.1 * rng.standard_normal(n)


def test_files_mappings_and_chunks_give_the_posterior_of_all_data(tmp_path):
    X, y = data()
    noise = 0.005 + 0.01 * np.random.default_rng(1).random(len(X))
    for name, array in dict(X=X, y=y, noise=noise).items():
        np.save(tmp_path / f"{name}.npy", array)
    files = {name: np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("X", "y", "noise")}
    kernel = K.Matern(2.5, 0.3) + K.Linear()
    chunks = [(X[i : i + 499], y[i : i + 499], noise[i : i + 499]) for i in range(0, len(X), 499)]
    x = torch.rand(40, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    exact = moments(matheron.ExactGP(kernel, X, y, noise=noise), x)
    sd = exact.covariance.diagonal().sqrt()
    for source, given in ((files, None), ((files["X"], files["y"]), files["noise"]), ([*chunks, (X[:0], y[:0])], 1.0)):
        gp = matheron.StreamedGP(kernel, source, given, chunk=600)
        paths = matheron.draw(gp, 100, domain=UNIT, seed=0)
        assert paths.update.num_data == len(X) and paths.update.num_centres == 0
        assert ((paths.mean(x) - exact.mean) / sd).abs().max() < 0.03
        z = (paths(x) - exact.mean) / sd
        assert float(z.square().mean()) == pytest.approx(1, abs=0.3)
    more = paths.condition_on([[0.5]], [2.0], noise=1e-4)
    assert abs(float(more.mean([[0.5]])) - 2) < abs(float(paths.mean([[0.5]])) - 2)


def test_data_of_several_outputs_give_their_posterior():
    rng, B = np.random.default_rng(0), torch.tensor([[1.0, 0.6], [0.6, 0.8]], dtype=torch.float64)
    kernel = K.Coregional(K.Matern(2.5, 0.3), B) + K.Coregional(K.RBF(0.3), torch.eye(2))
    X, tasks = rng.random((150, 1)), rng.integers(0, 2, 150)
    y = np.sin(6 * X[:, 0] + tasks) + 0.1 * rng.standard_normal(150)
    x = torch.rand(20, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    chunks = [(X[i : i + 99], y[i : i + 99], None, tasks[i : i + 99]) for i in range(0, 150, 99)]
    every = np.stack([np.sin(6 * X[:, 0]), np.cos(6 * X[:, 0])], axis=1)
    for data, given in (
        ((X, y), tasks),
        ({"X": X, "y": y, "tasks": tasks}, None),
        (chunks, None),
        ((X, every), None),
    ):
        gp = matheron.StreamedGP(kernel, data, 0.01, 0.3, chunk=120, tasks=given)
        if isinstance(data, tuple) and data[1].ndim == 2:
            exact = moments(matheron.ExactGP(kernel, X, every, 0.01, 0.3), x)
        else:
            exact = moments(matheron.ExactGP(kernel, X, y, 0.01, 0.3, tasks=tasks), x)
        paths = matheron.draw(gp, 100, domain=UNIT, seed=0)
        sd = exact.covariance.reshape(40, 40).diagonal().sqrt()
        assert ((paths.mean(x) - exact.mean).flatten() / sd).abs().max() < 0.05
        z = (paths(x) - exact.mean).flatten(1) / sd
        assert float(z.square().mean()) == pytest.approx(1, abs=0.3)
    assert paths.update.num_data == 300  # two numbers at each point


@pytest.mark.slow
def test_a_zarr_group_is_read_where_it_lies(tmp_path):
    zarr = pytest.importorskip("zarr")
    X, y = data(3000, 2)
    group = zarr.open_group(str(tmp_path / "data.zarr"), mode="w")
    for name, array in dict(X=X, y=y).items():
        group.create_array(name, shape=array.shape, dtype=array.dtype, chunks=(500, *array.shape[1:]))[:] = array
    gp = matheron.StreamedGP(K.RBF(0.3), zarr.open_group(str(tmp_path / "data.zarr"), mode="r"), 0.01, chunk=700)
    x = torch.rand(40, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    exact = moments(matheron.ExactGP(K.RBF(0.3), X, y, noise=0.01), x)
    mean = matheron.draw(gp, 2, domain=UNIT, seed=0).mean(x)
    assert ((mean - exact.mean) / exact.covariance.diagonal().sqrt()).abs().max() < 0.03


def test_a_sample_stands_for_all_data_where_a_lattice_is_sized():
    X, y = data(10_000, 2)
    gp = matheron.StreamedGP(K.Matern(2.5, 0.3), (X, y), 0.01, chunk=3000)
    whole = posterior_scale(gp.model.kernel, torch.from_numpy(X), torch.tensor(0.01))
    survey = gp.survey(gp.chunks(), sample_size=2000)
    assert survey.num_data == 10_000 and survey.sample.shape == (2000, 2)
    torch.testing.assert_close(survey.box, torch.stack([*torch.from_numpy(X).aminmax(dim=0)]))
    assert 0.5 < posterior_scale(gp.model.kernel, survey.sample, survey.noise) / whole < 2
    low = (survey.sample < 0.5).double().mean()
    assert 0.47 < float(low) < 0.53  # from all chunks alike


def test_refusals():
    X, y = data(20)
    kernel = K.RBF(0.3)
    with pytest.raises(TypeError, match="can be read once; give a list, or an object"):
        matheron.StreamedGP(kernel, ((X, y) for _ in range(2)), 0.1)
    with pytest.raises(ValueError, match=r"expected X \[n, d\] and y \[n\], or \[n, t\], got \[20, 1\] and \[19\]"):
        matheron.StreamedGP(kernel, (X, y[1:]), 0.1)
    with pytest.raises(ValueError, match="expected arrays X and y, got"):
        matheron.StreamedGP(kernel, {"X": X}, 0.1)
    with pytest.raises(ValueError, match="noise: expected a number, or one per observation, got none"):
        matheron.StreamedGP(kernel, (X, y))
    with pytest.raises(ValueError, match=r"noise: expected a number, or chunks \(X, y, noise\)"):
        matheron.StreamedGP(kernel, [(X, y)])
    with pytest.raises(ValueError, match="data from row 0: noise: expected variances above 0"):
        matheron.StreamedGP(kernel, (X, y), 0.0)
    with pytest.raises(
        ValueError, match=r"expected chunks \(X, y\), \(X, y, noise\) or \(X, y, noise, tasks\), got ndarray"
    ):
        matheron.StreamedGP(kernel, [X, y], 0.1)
    with pytest.raises(ValueError, match="expected at least one observation"):
        matheron.StreamedGP(kernel, [], 0.1)
    two = K.Coregional(kernel, torch.eye(2))
    with pytest.raises(ValueError, match=r"row 0: y: expected \[20, 2\], every output at every point, got \[20\]; or"):
        matheron.StreamedGP(two, [(X, y)], 0.1)
    with pytest.raises(ValueError, match=r"tasks: expected \[20\], one per observation, got \[19\]"):
        matheron.StreamedGP(two, (X, y), 0.1, tasks=[0] * 19)
    with pytest.raises(ValueError, match=r"tasks: expected none where data come in chunks; give each chunk"):
        matheron.StreamedGP(two, [(X, y)], 0.1, tasks=[0] * 20)
    with pytest.raises(ValueError, match=r"row 0: tasks: expected whole numbers from 0 to 1, got up to 2"):
        matheron.StreamedGP(two, [(X, y, None, [2] * 20)], 0.1)
    gp = matheron.StreamedGP(kernel, (X, y), 0.1, chunk=10)
    assert repr(gp) == "StreamedGP(RBF(0.3), 20 observations in 1 dimension)"
    with pytest.raises(ValueError, match=r"a StreamedGP is solved for on a lattice: it needs domain="):
        matheron.draw(gp, 1)
    with pytest.raises(ValueError, match=r"a StreamedGP is solved for on a lattice"):
        matheron.draw(gp, 1, domain=UNIT, solver="cholesky")
    with pytest.raises(ValueError, match="needs a kernel whose stationary terms"):
        matheron.draw(matheron.StreamedGP(kernel * K.Polynomial(12, 1.0), (X, y), 0.1), 1, domain=UNIT)
    broken = y.copy()
    broken[15] = np.nan
    with pytest.raises(ValueError, match=r"data from row 10: y: expected finite numbers, got 1 NaN"):
        matheron.draw(matheron.StreamedGP(kernel, (X, broken), 0.1, chunk=10), 1, domain=UNIT)
    with pytest.raises(ValueError, match=r"data from row 15: y: expected finite numbers, got 1 NaN"):
        list(matheron.StreamedGP(two, (X, np.stack([y, broken], 1)), 0.1, chunk=10).chunks())
    with pytest.raises(TypeError, match="StreamedGP"):
        matheron.log_marginal_likelihood(gp)


def test_the_second_reading_is_the_first_or_it_is_said(capsys):
    X, y = data(90)

    class Growing:
        count = 0

        def __iter__(self):
            self.count += 1
            return iter([(X[: 10 * self.count], y[: 10 * self.count])])

    gp = matheron.StreamedGP(K.RBF(0.3), Growing(), 0.1)
    with pytest.raises(ValueError, match=r"expected the same on a second reading, got \d+ observations, then \d+"):
        matheron.draw(gp, 1, domain=UNIT, progress=True)
    assert "reading data" in capsys.readouterr().err
