"""Averages over blocks as observations, against the closed form."""

import pytest
import torch

import matheron
from matheron import fields, kernels
from matheron.models.transforms import Affine, Exp

D = 2
BLOCKS = [
    fields.block([0.1] * D, [0.3] * D, 3),
    fields.block([0.5, 0.4], [0.9, 0.8]),
    torch.tensor([[0.2, 0.9]]).double(),
]


def points(n, seed=0):
    return torch.rand(n, D, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def closed_form(kernel, X, y, averages, noise, noise_of_averages, mean, x):
    """The posterior of f(x) given values at X and averages over the blocks."""
    rows, Z = [torch.eye(len(X), dtype=torch.float64)], torch.cat([X, *BLOCKS])
    A = torch.zeros(len(X) + len(BLOCKS), len(Z), dtype=torch.float64)
    A[: len(X), : len(X)] = rows[0]
    start = len(X)
    for i, cells in enumerate(BLOCKS):
        A[len(X) + i, start : start + len(cells)] = 1 / len(cells)
        start += len(cells)
    N = torch.cat([torch.full((len(X),), noise), torch.full((len(BLOCKS),), noise_of_averages)]).double()
    C, K_xn = A @ kernel(Z, Z) @ A.mT + N.diag(), kernel(x, Z) @ A.mT
    residual = torch.cat([y, averages]) - mean
    return mean + K_xn @ torch.linalg.solve(C, residual), kernel(x, x) - K_xn @ torch.linalg.solve(C, K_xn.mT)


@pytest.mark.parametrize(
    "noise, noise_of_averages, moved", [(1e-4, 0.0, False), pytest.param(0.0, 1e-2, True, marks=pytest.mark.slow)]
)
def test_paths_given_averages_have_the_law_of_the_closed_form(noise, noise_of_averages, moved):
    kernel, X, x = 1.5 * kernels.Matern(1.5, [0.3, 0.5]), points(6), points(12, seed=1)
    y, averages = torch.sin(4 * X.sum(-1)), torch.tensor([0.5, -0.3, 0.8]).double()
    mean, covariance = closed_form(kernel, X, y, averages, noise, noise_of_averages, 0.2, x)
    inward, outward = (Affine(2.0, 0.1), Affine(3.0, 5.0)) if moved else (None, None)
    gp = matheron.ExactGP(kernel, X, y, noise, mean=0.2, input_transform=inward, output_transform=outward)
    to_user = inward.inverse if inward else lambda v: v
    scale, offset = (3.0, 5.0) if moved else (1.0, 0.0)
    blocks = [to_user(cells) for cells in BLOCKS]
    given = fields.given_averages(gp, blocks, scale * averages + offset, scale**2 * noise_of_averages)
    paths = matheron.draw(given, 20_000, seed=0, num_features=512)
    values = (paths(to_user(x)) - offset) / scale
    assert torch.allclose((paths.mean(to_user(x)) - offset) / scale, mean, atol=1e-6)
    sd = covariance.diagonal().sqrt()
    assert ((values.mean(0) - mean).abs() < 5 * sd / 20_000**0.5 + 1e-5).all()
    assert ((torch.cov(values.mT) - covariance).abs() < 0.06 * sd[:, None] * sd + 1e-5).all()


def test_an_average_without_noise_holds_for_every_path():
    gp = matheron.ExactGP(kernels.RBF(0.4), points(4), torch.zeros(4), noise=0.0)
    paths = matheron.draw(fields.given_averages(gp, BLOCKS, [0.3, 0.1, -0.2], noise=0.0), 5, seed=0)
    for cells, value in zip(BLOCKS, [0.3, 0.1, -0.2], strict=True):
        assert torch.allclose(paths(cells).mean(-1), torch.tensor(value).double(), atol=1e-4)


def test_one_point_is_a_block_and_agrees_with_an_observation_there():
    X, y = points(5), torch.arange(5).double()
    whole = matheron.ExactGP(kernels.Matern(2.5, 0.4), X, y, noise=0.1)
    some = matheron.ExactGP(kernels.Matern(2.5, 0.4), X[:3], y[:3], noise=0.1)
    given = fields.given_averages(some, [X[3:4], X[4:5]], y[3:], noise=0.1)
    x = points(20, seed=2)
    assert torch.allclose(matheron.draw(given, 1, seed=0).mean(x), matheron.draw(whole, 1, seed=0).mean(x), atol=1e-7)


@pytest.mark.parametrize(
    "wrong, message",
    [
        (dict(blocks=[]), "at least one"),
        (dict(blocks=[torch.zeros(3, 3)]), "blocks"),
        (dict(blocks=[torch.zeros(0, 2)]), "at least one point"),
        (dict(y=[1.0, 2.0]), "one average per block"),
        (dict(noise=-1.0), "noise"),
    ],
)
def test_what_is_wrong_is_said(wrong, message):
    gp = matheron.ExactGP(kernels.RBF(0.4), points(4), torch.zeros(4), noise=0.1)
    with pytest.raises(ValueError, match=message):
        fields.given_averages(**({"gp": gp, "blocks": BLOCKS[:1], "y": [1.0], "noise": 0.1} | wrong))


def test_a_model_on_a_log_scale_is_refused():
    gp = matheron.ExactGP(kernels.RBF(0.4), points(4), torch.zeros(4), noise=0.1, output_transform=Exp())
    with pytest.raises(ValueError, match="affine"):
        fields.given_averages(gp, BLOCKS[:1], [1.0], noise=0.1)
    with pytest.raises(TypeError, match="expected an ExactGP"):
        fields.given_averages(kernels.RBF(), BLOCKS[:1], [1.0], noise=0.1)  # type: ignore[arg-type]
    both = matheron.ExactGP(kernels.Coregional(kernels.RBF(0.4), torch.eye(2)), points(4), torch.zeros(4, 2), noise=0.1)
    with pytest.raises(ValueError, match="expected a model of one output, got 2"):
        fields.given_averages(both, BLOCKS[:1], [1.0], noise=0.1)
    with pytest.raises(ValueError, match="lower < upper"):
        fields.block([0.0], [0.0])


def test_averages_are_added_to_slopes():
    """A model that was given slopes, and then averages: both hold for every path."""
    Z = points(3, seed=4)
    gp = matheron.ExactGP(kernels.RBF(0.4), matheron.observe.gradient(Z), torch.ones(6), noise=0.0)
    paths = matheron.draw(fields.given_averages(gp, BLOCKS, [0.3, 0.1, -0.2], noise=0.0), 5, seed=0)
    for cells, value in zip(BLOCKS, [0.3, 0.1, -0.2], strict=True):
        assert torch.allclose(paths(cells).mean(-1), torch.tensor(value).double(), atol=1e-4)
    assert torch.allclose(paths.at(matheron.observe.gradient(Z)), torch.ones(6).double(), atol=1e-4)
