"""What comes in at the border: taken, copied, or refused with the truth; and never written into."""

import re
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.optimize import Bounds

import matheron
from matheron import ExactGP, SparseGP, draw, draw_prior
from matheron import kernels as K
from matheron.core import as_array, as_box, as_tensor
from matheron.models.means import ConstantMean, LinearMean
from matheron.models.transforms import Affine

PLAIN = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])


def read_only() -> np.ndarray:
    array = PLAIN.copy()
    array.flags.writeable = False
    return array


TAKEN: dict[str, Any] = {
    "strides below zero": PLAIN[::-1][::-1].copy()[::-1],
    "big-endian": PLAIN[::-1].astype(">f8"),
    "long double": PLAIN[::-1].astype(np.longdouble),
    "objects that are numbers": PLAIN[::-1].astype(object),
    "unsigned": PLAIN[::-1].astype(np.uint16),
    "a frame": pd.DataFrame(PLAIN[::-1], columns=["a", "b"]),
    "a frame with reordered columns": pd.DataFrame(PLAIN[::-1][:, ::-1], columns=["b", "a"])[["a", "b"]],
    "a frame with nullable columns": pd.DataFrame(PLAIN[::-1], columns=["a", "b"]).astype("Float64"),
    "a frame of two kinds of columns": pd.DataFrame({"a": [5, 3, 1], "b": [6.0, 4.0, 2.0]}),
    "nested lists": PLAIN[::-1].tolist(),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", TAKEN)
def test_arrays_that_torch_does_not_know_are_taken_as_they_are(name):
    assert torch.equal(as_tensor(TAKEN[name], "x"), torch.tensor(PLAIN[::-1].copy()))


@pytest.mark.filterwarnings("error")
def test_a_read_only_array_is_copied():
    array = read_only()
    as_array(array).zero_()
    assert (array == PLAIN).all()


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        (np.ma.masked_array(PLAIN, PLAIN > 4), TypeError, "masked array"),
        (pd.DataFrame({"a": [1.0, None]}).astype("Float64"), ValueError, "1 NaN or infinite of 2"),
        (pd.DataFrame({"a": ["one", "two"]}), TypeError, "expected numbers"),
        (np.array(["2020-01-01"], dtype="M8[D]"), TypeError, "datetime64"),
        (np.array(["one"]), TypeError, "dtype <U3"),
        (torch.eye(2).to_sparse(), TypeError, r"dense tensor, got layout torch\.sparse_coo"),
        ([[1.0], [1.0, 2.0]], TypeError, "expected a tensor, a NumPy array or numbers, got list"),
    ],
)
def test_what_holds_no_plain_numbers_is_refused_with_the_truth(value, kind, message):
    with pytest.raises(kind, match=message):
        as_tensor(value, "x")


def test_nan_points_are_refused_as_nan_data_are():
    paths = draw_prior(K.RBF(), 2, input_dim=1, num_features=8)
    for call in (paths, paths.value_and_grad, paths.mean):
        with pytest.raises(ValueError, match="x: expected finite numbers, got 1 NaN or infinite of 2"):
            call([[0.0], [float("nan")]])


def test_a_trajectory_may_diverge_without_stopping_the_others():
    paths = draw_prior(K.RBF(), 2, input_dim=1, num_features=8, mean=lambda x: x[..., 0] ** 3)
    start = torch.tensor([[0.0], [1e100]], dtype=torch.float64)
    with pytest.warns(matheron.DivergenceWarning, match="1 of 2 trajectories diverged, first that of path 1"):
        states = matheron.rollout([paths], start, 4, 0.1)
    assert states[0].isfinite().all() and states[1, 2:].isnan().all()


def test_a_mean_function_that_writes_in_place_does_not_change_the_points():
    x = torch.rand(5, 1, dtype=torch.float64)
    before = x.clone()
    paths = draw(ExactGP(K.RBF(), [[0.5]], [0.0], 0.1, mean=lambda z: z.mul_(2).sum(-1)), 2, num_features=8)
    paths(x)
    paths.value_and_grad(x)
    assert torch.equal(x, before)


def test_snapshots_and_hyperparameters_own_their_memory():
    X, y, noise, lengthscale = np.zeros((2, 1)), np.ones(2), np.full(2, 0.1), torch.ones(1, dtype=torch.float64)
    weights, scale = np.ones(1), torch.ones(1, dtype=torch.float64)
    kernel = K.RBF(lengthscale)
    gp = ExactGP(kernel, X, y, noise, mean=LinearMean(weights), output_transform=Affine(scale))
    sparse = SparseGP(kernel, X, y, noise)
    constant = ConstantMean(y)
    for given in (X, y, noise, lengthscale, weights, scale):
        given[...] = 7.0
    held = [gp.train_inputs, gp.train_targets, gp.noise, kernel.lengthscale, gp.mean.weights, constant.value]
    assert gp.output_transform is not None
    held += [gp.output_transform.scale, sparse.inducing_points, sparse.q_mean, sparse.q_scale_tril]
    assert not any(bool((tensor == 7).any()) for tensor in held)


def test_the_graph_reaches_data_and_hyperparameters_through_the_copies():
    y, lengthscale = torch.ones(2, dtype=torch.float64, requires_grad=True), torch.ones((), requires_grad=True)
    gp = ExactGP(K.RBF(lengthscale), [[0.0], [1.0]], y, 0.1)
    draw(gp, 1, num_features=8, detach=False, seed=0)([[0.5]]).sum().backward()
    assert y.grad is not None and lengthscale.grad is not None and float(y.grad.abs().sum()) > 0


REFUSED = {
    "on a fraction": (lambda: K.RBF().on(cast(int, [0.7])), TypeError, "dims: expected whole numbers, got"),
    "one output": (lambda: K.Coregional(K.RBF(), [[2.0]]), ValueError, "at least two outputs"),
    "a tiny lengthscale": (lambda: K.RBF(1e-320), ValueError, "lengthscale: expected numbers from 1e-150"),
    "no dimension": (lambda: ExactGP(K.RBF(), np.zeros((3, 0)), [0.0] * 3, 0.1), ValueError, "at least one dimension"),
    "sparse inputs": (lambda: ExactGP(K.RBF(), torch.eye(2).to_sparse(), [0.0] * 2, 0.1), TypeError, "X: .*dense"),
    "nu in words": (lambda: K.Matern("a"), ValueError, "nu: expected a positive number up to 50, got 'a'"),  # type: ignore[arg-type]
    "a domain of one number": (
        lambda: draw_prior(K.RBF(), 1, input_dim=1, domain=1),  # type: ignore[arg-type]
        ValueError,
        "domain: expected .lower, upper.",
    ),
    "no paths": (
        lambda: draw_prior(K.RBF(), 1, input_dim=1).value_and_grad(np.zeros((0, 1)), of=[]),
        ValueError,
        "of: expected whole numbers, the paths of the points, at least one",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_each_of_these_is_refused_in_words(name):
    call, kind, message = REFUSED[name]
    with pytest.raises(kind, match=message):
        call()


PAIRS = [(-5, 10), (0, 15)]  # Branin's box, as SciPy writes it


def test_scipys_pairs_in_two_dimensions_are_refused_and_both_readings_shown():
    paths = draw_prior(K.RBF(), 1, input_dim=2, num_features=8)
    shown = [re.escape("[[-5, 10], [0, 15]]"), re.escape("[[-5, 0], [10, 15]]")]
    for message in shown:
        with pytest.raises(ValueError, match=f"bounds: .*{message}"):
            matheron.minimize(paths, PAIRS)
        with pytest.raises(ValueError, match=f"domain: .*{message}"):
            draw_prior(K.RBF(), 1, input_dim=2, domain=PAIRS)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "box",
    [
        Bounds([-5, 0], [10, 15]),  # type: ignore[arg-type]
        [[-5, 0], [10, 15]],
        ([-5, 0], [10, 15]),
        ((-5, 0), (10, 15)),
        np.array([[-5, 0], [10, 15]]),
        torch.tensor([[-5.0, 0.0], [10.0, 15.0]]),
        pd.DataFrame({"a": [-5, 10], "b": [0, 15]}, index=["min", "max"]),
        pd.DataFrame([[-5, 0], [10, 15]]),  # whose columns are called 0 and 1
        [(0, 0), (10, 15)],  # as pairs it would be empty
    ],
    ids=str,
)
def test_boxes_of_every_other_form_are_taken(box):
    sides = as_box(box, "bounds", input_dim=2)
    assert sides[1].tolist() == [10, 15] and sides.shape == (2, 2)
