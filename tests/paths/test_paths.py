"""What paths are: the shape rule, the mean, indexing, and values that move and copy."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch

from examples import ALL, B2, LAYOUTS, MODELS, gen, model, paths_of, rand, randn
from matheron import ExactGP, JitterWarning, Paths, SparseGP, draw, draw_prior
from matheron import kernels as K
from matheron.models.transforms import Affine, Exp
from standard import exact_moments

CLOSE: dict[str, Any] = dict(rtol=1e-8, atol=1e-8)


# The shape rule.


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ALL)
def test_shapes_follow_the_rule(name, layout):
    paths = paths_of(name, 5, layout=layout)
    t = (2,) if "coupled" in name else ()
    assert (paths.num_paths, paths.input_dim, paths.num_outputs) == (5, 2, 2 if t else 1)
    assert paths(rand(3, 2)).shape == (5, 3, *t)
    assert paths(rand(5, 3, 2)).shape == (5, 3, *t)
    assert paths(rand(1, 3, 2)).shape == (5, 3, *t)
    assert paths(rand(0, 2)).shape == (5, 0, *t)
    assert paths(rand(5, 0, 2)).shape == (5, 0, *t)
    assert paths.mean(rand(3, 2)).shape == (3, *t)
    for x in (rand(3, 2), rand(5, 3, 2), rand(0, 2)):
        value, gradient = paths.value_and_grad(x)
        assert value.shape == (5, x.shape[-2], *t) and gradient.shape == (5, x.shape[-2], *t, 2)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ALL)
def test_own_points_are_the_diagonal_of_shared_points(name, layout):
    paths, x = paths_of(name, 5, layout=layout), rand(5, 3, 2)
    whole = paths(x.reshape(-1, 2)).unflatten(1, (5, 3))  # [s, s, 3, ...]
    own = torch.stack([whole[i, i] for i in range(5)])
    torch.testing.assert_close(paths(x), own, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(paths(x[:1]), paths(x[0]), rtol=1e-11, atol=1e-11)


def test_one_path_of_one_observation_in_one_dimension_works():
    paths = draw(ExactGP(K.RBF(0.5), [[0.3]], [1.0], 0.0), 1, num_features=8, generator=gen())
    torch.testing.assert_close(paths([[0.3]]), torch.ones(1, 1, dtype=torch.float64))
    assert paths(rand(1, 4, 1)).shape == (1, 4)
    assert paths.value_and_grad([[0.3]])[1].shape == (1, 1, 1)
    sparse = draw(SparseGP(K.RBF(0.5), [[0.3]], [1.0]), 1, generator=gen())
    torch.testing.assert_close(sparse([[0.3]]), torch.ones(1, 1, dtype=torch.float64))


def test_sixty_four_dimensions_hit_their_data():
    X, y = rand(20, 64, seed=1), randn(20, seed=2)
    paths = draw(ExactGP(K.Matern(2.5, 2.0), X, y, 0.0), 3, num_features=100, generator=gen())
    torch.testing.assert_close(paths(X), y.expand(3, -1), **CLOSE)
    assert paths.value_and_grad(X)[1].shape == (3, 20, 64)


def test_numpy_and_lists_are_answered_with_the_same_numbers():
    paths, x = paths_of("exact"), rand(4, 2)
    for other in (x.numpy(), x.tolist(), x.float().numpy().astype(np.float64)):
        answer = paths(other)
        assert isinstance(answer, torch.Tensor) and answer.dtype == torch.float64
        torch.testing.assert_close(answer, paths(x), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(paths.value_and_grad(x.numpy())[1], paths.value_and_grad(x)[1])
    torch.testing.assert_close(paths.mean(x.numpy()), paths.mean(x))
    numpy_gp = ExactGP(K.Matern(2.5, 0.5), rand(5, 2, seed=1).numpy(), randn(5, seed=2).numpy(), np.float64(0.1))
    same = draw(numpy_gp, 5, num_features=24, paths_per_basis=2, generator=gen(7))
    torch.testing.assert_close(same(x), paths(x), rtol=0, atol=0)


# The mean is exact.


@pytest.mark.parametrize("features", ["cosine", "sobol", "auto"])
@pytest.mark.parametrize("name", MODELS)
def test_the_mean_is_the_closed_form_whatever_the_basis(name, features):
    paths, x = paths_of(name, 2, features=features, num_features=3), rand(7, 2)
    gp = model(name)
    inner = x if gp.input_transform is None else gp.input_transform(x)
    mean, _ = exact_moments(gp, inner)
    mean = mean if gp.output_transform is None else gp.output_transform(mean)
    torch.testing.assert_close(paths.mean(x), mean, **CLOSE)


@pytest.mark.parametrize("name", ALL)
def test_a_path_without_weights_and_noise_is_the_mean(name, monkeypatch):
    monkeypatch.setattr(torch, "randn", lambda *shape, generator=None, **kw: torch.zeros(*shape, **kw))
    paths, x = paths_of(name, 3, features="cosine"), rand(7, 2)
    monkeypatch.undo()
    mean = paths.mean(x)
    torch.testing.assert_close(paths(x), mean.expand(3, *mean.shape), **CLOSE)
    assert paths_of(name, 3)(x).std(0).min() > 1e-3  # with them it is not


def test_the_mean_of_many_data_is_the_closed_form():
    gp = ExactGP(K.Matern(2.5, 0.3), rand(300, 2, seed=1), randn(300, seed=2), 0.01, mean=5.0)
    x = rand(50, 2)
    torch.testing.assert_close(draw(gp, 1, num_features=4).mean(x), exact_moments(gp, x)[0], **CLOSE)


# Prior + update.


@pytest.mark.parametrize("name", ["exact", "exact, composite", "sparse"])
def test_a_path_is_mean_plus_prior_plus_update_written_out(name):
    """By the weights and features that a user can see: w [s, ell] and v [s, m]."""
    paths, x = paths_of(name, 5, layout="several bases"), rand(6, 2)
    Phi = paths.prior.features(x)  # [g, n, ell]
    prior = torch.einsum("snl,sl->sn", Phi[paths.prior.basis_index % len(Phi)], paths.prior.weights)
    update = paths.update.weights @ model(name).kernel(x, paths.update.centres).mT
    mean = paths.mean_function(x)[:, 0]
    torch.testing.assert_close(paths(x), mean + prior + update, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", MODELS)
def test_prior_plus_update_is_the_path(name):
    """The same draw without its update is a path of the prior, and the update alone is what the data added."""
    paths, x = paths_of(name), rand(6, 2)[None]
    inner = x if paths.input_transform is None else paths.input_transform(x)
    prior, update = paths.prior.sums(inner), paths.update.sums(inner)
    assert prior is not None and update is not None
    f = prior.mT + update.mT + paths.mean_function(inner)
    f = f if paths.output_transform is None else paths.output_transform(f)
    torch.testing.assert_close(paths(x), f[..., 0] if paths.num_outputs == 1 else f)


@pytest.mark.parametrize("features", ["cosine", "sobol", "orthogonal", "equispaced"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_noise_free_paths_hit_their_data(features, layout):
    X, y = rand(6, 2, seed=1), randn(6, seed=2)
    gp = ExactGP(K.Matern(1.5, 0.4), X, y, 0.0, mean=3.0)
    paths = draw(gp, 5, num_features=50, features=features, domain=(0, 1), paths_per_basis=LAYOUTS[layout])
    torch.testing.assert_close(paths(X), y.expand(5, -1), **CLOSE)


def test_coupled_noise_free_paths_hit_the_output_that_was_observed():
    X, y, tasks = rand(6, 1, seed=1), randn(6, seed=2), torch.tensor([0, 1, 1, 0, 1, 0])
    paths = draw(ExactGP(K.Coregional(K.Matern(1.5, 0.4), B2), X, y, 0.0, tasks=tasks), 3, num_features=50)
    torch.testing.assert_close(paths(X)[:, torch.arange(6), tasks], y.expand(3, -1), **CLOSE)


def test_sparse_paths_pass_through_their_draws_of_u():
    u = randn(4, 5, seed=2)
    Z = rand(5, 2, seed=1)
    paths = draw(SparseGP(K.Matern(1.5, 0.4), Z, sample_u=lambda s, generator: u, mean=2.0), 4, num_features=30)
    torch.testing.assert_close(paths(Z), u, **CLOSE)
    with pytest.raises(TypeError, match="sample_u"):
        paths.mean(Z)


# Noise-free duplicates: jitter is visible, and counts as noise.


def test_noise_free_duplicates_warn_and_the_jitter_is_the_paths_noise():
    """At K + jitter I a path is a draw given data with noise `jitter`: it misses its data by as much."""
    X = rand(3, 1, seed=1).repeat(2, 1)
    y = randn(3, seed=2).repeat(2)
    with pytest.warns(JitterWarning, match=r"not positive definite.*duplicate points"):
        paths = draw(ExactGP(K.RBF(0.4), X, y, 0.0), 2000, num_features=64, generator=gen())
    error = paths(X) - y  # of each path at the data
    jitter = 1e-10  # the first that is tried; the prior's variance is one
    # Two noisy observations of one value: their posterior variance is jitter / 2.
    assert 0.8 < float(error.square().mean() / (jitter / 2)) < 1.2
    assert float((paths.mean(X) - y).abs().max()) < 1e-5


# Indexing.


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ALL)
def test_indexing_gives_the_same_functions(name, layout):
    assert_indexed(paths_of(name, 5, layout=layout), [3, 0, 3])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_index_may_be_of_any_kind(layout):
    paths = paths_of("exact, composite", 5, layout=layout)
    for index in (0, -1, slice(1, 4), slice(None, None, -2), torch.tensor([4, 1]), np.array([2, 3]), np.int64(3)):
        assert_indexed(paths, index)


def assert_indexed(paths, index):
    x = rand(4, 2)
    rows = torch.from_numpy(np.atleast_1d(np.arange(5)[index]).copy())
    some = paths[index]
    assert isinstance(some, Paths) and some.num_paths == len(some) == len(rows)
    torch.testing.assert_close(some(x), paths(x)[rows], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(some.mean(x), paths.mean(x))
    own = rand(len(rows), 4, 2, seed=3)
    torch.testing.assert_close(
        some(own), torch.cat([paths[int(r)](own[i : i + 1]) for i, r in enumerate(rows)]), rtol=1e-12, atol=1e-12
    )


def test_a_boolean_mask_and_iteration_choose_paths():
    paths, x = paths_of("exact", 4), rand(3, 2)
    torch.testing.assert_close(paths[torch.tensor([True, False, True, False])](x), paths(x)[::2])
    torch.testing.assert_close(torch.cat([path(x) for path in paths]), paths(x))


@pytest.mark.parametrize("index", [5, -6])
def test_a_path_that_is_not_there_is_refused(index):
    with pytest.raises(IndexError, match=f"path {index} of 5"):
        paths_of("exact", 5)[index]


def test_no_paths_at_all_are_refused():
    with pytest.raises(IndexError, match="at least one path of 5, got none"):
        paths_of("exact", 5)[3:3]


# A path is a value.


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ALL)
def test_to_single_precision_is_a_new_object_and_the_same_function(name, layout):
    paths, x = paths_of(name, layout=layout), rand(6, 2)
    before = paths(x)
    single = paths.to(torch.float32)
    assert (single.dtype, paths.dtype) == (torch.float32, torch.float64)
    assert single(x).dtype == torch.float32
    torch.testing.assert_close(single(x).double(), before, rtol=2e-4, atol=2e-4)
    torch.testing.assert_close(single.mean(x).double(), paths.mean(x), rtol=2e-4, atol=2e-4)
    torch.testing.assert_close(single.value_and_grad(x)[1].double(), paths.value_and_grad(x)[1], rtol=2e-3, atol=2e-3)
    assert torch.equal(paths(x), before)
    assert single.to(dtype=torch.float64).dtype == torch.float64


@pytest.mark.parametrize("name", ALL)
def test_a_parent_module_moves_its_paths(name):
    x = rand(6, 2)

    class Parent(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.paths = paths_of(name)

    parent = Parent()
    before = parent.paths(x)
    parent.to(torch.float32)
    assert parent.paths(x).dtype == torch.float32
    torch.testing.assert_close(parent.paths(x).double(), before, rtol=2e-4, atol=2e-4)
    parent.double()
    assert parent.paths(x).dtype == torch.float64


def _pickled(paths: Paths) -> Paths:
    return pickle.loads(pickle.dumps(paths))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("clone", [copy.deepcopy, copy.copy, _pickled], ids=["deepcopy", "copy", "pickle"])
def test_copies_are_the_same_function(name, clone):
    paths, x = paths_of(name), rand(6, 2)
    other = clone(paths)
    assert torch.equal(other(x), paths(x)) and torch.equal(other.mean(x), paths.mean(x))
    assert repr(other) == repr(paths)
    torch.testing.assert_close(other[1:3](x), paths(x)[1:3])
    assert torch.equal(other.to(torch.float32)(x), paths.to(torch.float32)(x))


def test_a_deep_copy_shares_no_memory():
    paths = paths_of("exact")
    mine = {b.data_ptr() for b in paths.buffers() if b.numel()}
    assert mine.isdisjoint(b.data_ptr() for b in copy.deepcopy(paths).buffers() if b.numel())


@pytest.mark.parametrize("name", ALL)
def test_a_state_dict_holds_all_of_the_function(name):
    """Loaded into another draw of the same model it makes that draw the first one."""
    first, second, x = paths_of(name, seed=1), paths_of(name, seed=2), rand(6, 2)
    assert not torch.allclose(first(x), second(x))
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(x), second(x))
    parent = torch.nn.ModuleList([paths_of(name, seed=2)])
    parent.load_state_dict({f"0.{key}": value for key, value in first.state_dict().items()})
    assert torch.equal(first(x), parent[0](x))


def test_every_tensor_of_a_path_is_a_buffer():
    for name in ALL:
        paths = paths_of(name)
        assert not list(paths.parameters())
        for module in paths.modules():
            loose = [key for key, value in vars(module).items() if isinstance(value, torch.Tensor)]
            assert not loose, f"{type(module).__name__} of {name} holds {loose} outside its buffers"


def test_a_path_says_what_it_is():
    assert (
        repr(paths_of("exact"))
        == "Paths(5 paths in 2 dimensions, given 5 observations; prior: 24 by leverage in 3 bases)"
    )
    assert repr(paths_of("exact")[0]).startswith("Paths(1 path in 2 dimensions")
    assert "no data" in repr(paths_of("prior"))
    assert "5 inducing points" in repr(paths_of("sparse"))
    assert "2 outputs" in repr(paths_of("exact, coupled"))


# Transforms.


def test_transforms_wrap_the_model_s_own_path():
    """output o f o input, with f the path of the model in its own space."""
    gp = model("exact, transforms")
    inner = ExactGP(gp.kernel, gp.train_inputs, gp.train_targets, gp.noise, mean=0.3)
    x = rand(6, 2)
    plain, paths = (draw(m, 5, num_features=24, paths_per_basis=2, generator=gen(7)) for m in (inner, gp))
    torch.testing.assert_close(paths(x), gp.output_transform(plain(gp.input_transform(x))))
    torch.testing.assert_close(paths.mean(x), gp.output_transform(plain.mean(gp.input_transform(x))))


def test_the_mean_under_a_bent_output_is_refused_and_values_are_not():
    gp = ExactGP(K.RBF(0.5), rand(4, 2), randn(4), 0.1, output_transform=Exp())
    paths = draw(gp, 3)
    assert (paths(rand(5, 2)) > 0).all()
    with pytest.raises(TypeError, match=r"no closed form.*average the paths"):
        paths.mean(rand(5, 2))


def test_a_domain_is_given_in_the_users_space():
    gp = ExactGP(K.RBF(0.1), rand(4, 1), randn(4), 0.01, input_transform=Affine(0.01))
    paths = draw(gp, 3, features="equispaced", domain=(0.0, 100.0), num_features=200)
    assert paths([[0.0], [100.0]]).isfinite().all()
    with pytest.raises(ValueError, match="domain"):
        paths([[150.0]])


def test_paths_of_a_prior_are_its_mean_plus_features():
    paths, x = draw_prior(K.RBF(0.5), 3, input_dim=1, mean=2.0, num_features=9, generator=gen()), rand(4, 1)
    torch.testing.assert_close(paths(x), 2.0 + paths.prior.weights @ paths.prior.features(x)[0].mT)
    assert torch.equal(paths.mean(x), torch.full((4,), 2.0, dtype=torch.float64))


def test_a_grid_is_written_into_an_array_that_is_mapped_to_a_file(tmp_path):
    paths = paths_of("exact", 3)
    axes = [np.linspace(0, 1, 4), np.linspace(0, 1, 5)]
    whole = paths.on_grid(axes)
    out = np.lib.format.open_memmap(tmp_path / "grid.npy", mode="w+", dtype=np.float64, shape=tuple(whole.shape))
    assert paths.on_grid(axes, out=out).data_ptr() == out.ctypes.data
    out.flush()
    np.testing.assert_array_equal(np.load(tmp_path / "grid.npy"), whole.numpy())
    with pytest.raises(TypeError, match=r"out: expected a tensor, or a contiguous NumPy array .* read-only"):
        paths.on_grid(axes, out=np.load(tmp_path / "grid.npy", mmap_mode="r"))
    with pytest.raises(TypeError, match=r"out: expected a tensor.* got str"):
        paths.on_grid(axes, out="grid.npy")  # pyright: ignore[reportArgumentType]
