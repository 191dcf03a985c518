"""ExactGP and SparseGP: snapshots of all that a path must know."""

import numpy as np
import pytest
import torch

import matheron
from examples import COUPLED, gen, rand, randn
from matheron import Batch, Ensemble, ExactGP, Outputs, SparseGP, draw
from matheron import kernels as K
from matheron.core import as_tasks
from matheron.models.means import CallableMean, ConstantMean, LinearMean


def test_an_exact_gp_knows_its_shapes():
    gp = ExactGP(K.RBF(), rand(5, 3), randn(5), 0.1)
    assert (gp.num_data, gp.input_dim, gp.num_outputs) == (5, 3, 1)
    assert gp.noise.shape == (5,) and gp.tasks is None
    assert repr(gp) == "ExactGP(RBF(1.0), 5 observations in 3 dimensions)"


def test_a_sparse_gp_knows_its_shapes():
    gp = SparseGP(K.Matern(1.5), rand(4, 1), randn(4), jitter=1e-6)
    assert (gp.num_inducing, gp.input_dim, gp.num_outputs, gp.jitter) == (4, 1, 1, 1e-6)
    assert repr(gp) == "SparseGP(Matern(nu=1.5, lengthscale=1.0), 4 inducing points in 1 dimension)"


@pytest.mark.parametrize("make", [np.asarray, torch.as_tensor, list], ids=["NumPy", "torch", "list"])
def test_numbers_of_every_kind_become_float64(make):
    X, y = [[0, 1], [2, 3]], [1, 2]
    gp = ExactGP(K.RBF(), make(X), make(y), 1)
    assert gp.train_inputs.dtype == gp.train_targets.dtype == gp.noise.dtype == torch.float64


def test_single_precision_data_stay_so_and_decide_for_the_rest():
    gp = ExactGP(K.RBF(), rand(2, 1).float(), randn(2), 0.1)
    assert gp.train_targets.dtype == gp.noise.dtype == torch.float32
    assert draw(gp, 1).dtype == torch.float32
    assert draw(gp, 1, dtype=torch.float64).dtype == torch.float64


def test_noise_is_one_number_or_one_a_point():
    X, y = rand(3, 1), randn(3)
    assert torch.equal(ExactGP(K.RBF(), X, y, 0.5).noise, torch.full((3,), 0.5, dtype=torch.float64))
    assert torch.equal(ExactGP(K.RBF(), X, y, [0.5]).noise, torch.full((3,), 0.5, dtype=torch.float64))
    assert torch.equal(
        ExactGP(K.RBF(), X, y, [0.1, 0.2, 0.0]).noise, torch.tensor([0.1, 0.2, 0.0], dtype=torch.float64)
    )


def test_every_output_at_every_point_becomes_one_observation_each():
    Y = randn(3, 2)
    gp = ExactGP(COUPLED, rand(3, 2), Y, [0.1, 0.2, 0.3])
    assert gp.num_data == 6 and gp.tasks is not None and gp.tasks.tolist() == [0, 1, 0, 1, 0, 1]
    assert torch.equal(gp.train_targets, Y.flatten())
    assert torch.equal(gp.noise, torch.tensor([0.1, 0.1, 0.2, 0.2, 0.3, 0.3], dtype=torch.float64))
    noises = rand(3, 2)
    assert torch.equal(ExactGP(COUPLED, rand(3, 2), Y, noises).noise, noises.flatten())


def test_means_of_every_kind_are_taken():
    def make(mean):
        return ExactGP(K.RBF(), rand(2, 2), randn(2), 0.1, mean=mean).mean

    assert isinstance(make(1), ConstantMean)
    assert isinstance(make(np.float32(1.0)), ConstantMean)
    assert isinstance(make(torch.tensor(1.0)), ConstantMean)
    assert isinstance(make(LinearMean([1.0, 2.0])), LinearMean)
    assert isinstance(make(torch.nn.Linear(2, 1)), CallableMean)
    assert isinstance(make(lambda x: x[..., 0]), CallableMean)


def test_an_owned_snapshot_shares_no_memory():
    X, y = rand(3, 2), randn(3)
    gp = ExactGP(K.RBF(0.5), X, y, 0.1)
    owned = gp.owned()
    X.zero_(), y.zero_(), gp.kernel.lengthscale.fill_(9.0)  # type: ignore[union-attr]
    assert owned.train_inputs.abs().min() > 0 and owned.train_targets.abs().min() > 0
    assert float(owned.kernel.lengthscale) == 0.5


def test_tasks_are_whole_numbers_of_outputs():
    assert as_tasks([0, 1, 1], 3, 2).tolist() == [0, 1, 1]  # type: ignore[union-attr]
    assert as_tasks(np.array([0.0, 1.0]), 2, 2).dtype == torch.long  # type: ignore[union-attr]
    assert as_tasks(None, 3, 1) is None


def test_q_is_given_by_its_moments_or_by_its_draws():
    Z = rand(3, 1)
    drawn = draw(SparseGP(K.RBF(), Z, sample_u=lambda s, generator: torch.ones(s, 3)), 2)
    fixed = draw(SparseGP(K.RBF(), Z, torch.ones(3)), 2)
    for paths in (drawn, fixed):
        torch.testing.assert_close(paths(Z), torch.ones(2, 3).double(), rtol=1e-6, atol=1e-6)


def test_a_callable_q_is_given_the_number_of_paths_and_the_generator():
    seen = []

    def sample_u(num_paths: int, generator: torch.Generator) -> torch.Tensor:
        seen.append((num_paths, generator))
        return torch.zeros(num_paths, 3)

    generator = gen()
    draw(SparseGP(K.RBF(), rand(3, 1), sample_u=sample_u), 7, generator=generator)
    assert seen == [(7, generator)]


def test_any_root_of_q_s_covariance_will_do():
    """A triangular root, a symmetric one, a rotated one: the same law, so the same covariance kept for more data."""
    C = randn(4, 4) @ randn(4, 4).mT + torch.eye(4)
    values, vectors = torch.linalg.eigh(C)
    Q, _ = torch.linalg.qr(randn(4, 4, seed=1))
    L = torch.linalg.cholesky(C)
    for root in (L, vectors * values.sqrt() @ vectors.mT, L @ Q):
        gp = SparseGP(K.Matern(1.5, 0.5), rand(4, 1), randn(4), root)
        kept = draw(gp, 1).update.inducing.root
        torch.testing.assert_close(kept @ kept.mT, C, rtol=1e-9, atol=1e-9)


def test_containers_hold_models_of_the_same_inputs():
    one, other = (ExactGP(K.RBF(), rand(3, d), randn(3), 0.1) for d in (1, 2))
    assert Outputs([one, one]).num_outputs == 2 and Ensemble([one, one]).num_outputs == 1
    for kind in (Outputs, Ensemble, Batch):
        with pytest.raises(ValueError, match=r"expected models of one input dimension, got \[1, 2\]"):
            kind([one, other])
        with pytest.raises(ValueError, match="expected at least one model, got none"):
            kind([])


def test_a_model_is_saved_and_drawn_from_again(tmp_path):
    kernel = K.Coregional(2.0 * K.Matern(1.5, 0.4), [[1.0, 0.3], [0.3, 2.0]])
    X, y = torch.rand(6, 1, dtype=torch.float64), torch.rand(6, 2, dtype=torch.float64)
    scaled = matheron.transforms.Affine(2.0, 1.0)
    gp = matheron.ExactGP(kernel, X, y, noise=0.1, mean=3.0, input_transform=scaled, output_transform=scaled)
    gp.save(tmp_path / "model.safetensors")
    again = matheron.load(tmp_path / "model.safetensors")
    assert isinstance(again, matheron.ExactGP) and repr(again) == repr(gp)
    assert bool((matheron.draw(again, 2, seed=0)(X) == matheron.draw(gp, 2, seed=0)(X)).all())
    odd = matheron.ExactGP(kernel, X, y, noise=0.1, mean=lambda x: x[..., 0])
    with pytest.raises(TypeError, match="which cannot be saved: a file has no code"):
        odd.save(tmp_path / "odd.safetensors")
