"""Functions form an algebra: what is made of paths is what its formula says, wherever paths are taken."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import matheron
from examples import rand, randn
from matheron import AbstractFunctions, AbstractPaths, kernels
from matheron.models import transforms
from standard import assert_moments, assert_paths, close

S = 4
ROWS = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)


def prior(seed: int, d: int = 2, s: int = S, kernel: Any = None, **settings: Any) -> matheron.Paths:
    kernel = kernels.RBF(0.5) if kernel is None else kernel
    return matheron.draw_prior(kernel, s, input_dim=d, num_features=32, seed=seed, **settings)


def given(seed: int, n: int = 5, **settings: Any) -> matheron.Paths:
    gp = matheron.ExactGP(kernels.Matern(1.5, 0.4), rand(n, 2, seed=9), randn(n, seed=9), 0.05, **settings)
    return matheron.draw(gp, S, num_features=32, seed=seed)


def linear(d: int, e: int) -> torch.nn.Module:
    network = torch.nn.Sequential(torch.nn.Linear(d, 4), torch.nn.Tanh(), torch.nn.Linear(4, e)).double()
    with torch.no_grad():
        for i, parameter in enumerate(network.parameters()):
            parameter.copy_(randn(*parameter.shape, seed=i))
    return network


F, G, P, Q = prior(1), prior(2), given(3, mean=0.7), given(4, mean=lambda x: x[..., 0])
ONE, THREE = prior(5, d=1), prior(6, d=3)
TWO = matheron.draw_prior(kernels.Coregional(kernels.RBF(0.5), torch.eye(2)), S, input_dim=2, num_features=32, seed=7)
POSITIVE = given(8, output_transform=transforms.Exp())
SCALED = given(8, output_transform=transforms.Affine(2.0, 3.0), mean=0.4)
OWN = P.condition_on([[0.5, 0.5]], ROWS[:, None], noise=0.1, seed=0)
NETWORK = linear(3, 2)
Formula = Callable[[Tensor], Tensor]


def rows(numbers: Tensor, like: Tensor) -> Tensor:
    return numbers.view(-1, *[1] * (like.ndim - 1))


# Functions, and what they are at points [n, d] or [s, n, d].
CASES: dict[str, tuple[AbstractFunctions, Formula]] = {
    "a sum": (2 * F - G / 3 + 1, lambda x: 2 * F(x) - G(x) / 3 + 1),
    "a sum of posteriors": (2 * P - 3.0 * SCALED, lambda x: 2 * P(x) - 3 * SCALED(x)),
    "numbers of each path": (
        ROWS * F - G + ROWS,
        lambda x: rows(ROWS, x) * F(x).unsqueeze(-1) - 0,
    ),
    "side by side": (F + P - POSITIVE, lambda x: F(x) + P(x) - POSITIVE(x)),
    "a mean that moves": (0.5 * Q - P, lambda x: 0.5 * Q(x) - P(x)),
    "numbers and a mean that moves": (Q * ROWS, lambda x: Q(x) * ROWS[:, None]),
    "nested sums": (2 * (F + G) - (F - 1) / 2, lambda x: 2 * (F(x) + G(x)) - (F(x) - 1) / 2),
    "one minus": (1 - F, lambda x: 1 - F(x)),
    "a product": (F * P, lambda x: F(x) * P(x)),
    "a product with outputs": (TWO * F, lambda x: TWO(x) * F(x)[..., None]),
    "numbers of each output": (
        TWO * np.array([[1.0, 2.0]]) + torch.tensor([[0.0, 1.0]]),
        lambda x: TWO(x) * torch.tensor([1.0, 2.0]) + torch.tensor([0.0, 1.0]),
    ),
    "a quotient": (F / POSITIVE, lambda x: F(x) / POSITIVE(x)),
    "one over": (2 / POSITIVE, lambda x: 2 / POSITIVE(x)),
    "a power": (POSITIVE**1.5, lambda x: POSITIVE(x) ** 1.5),
    "exp": (F.exp(), lambda x: F(x).exp()),
    "log": (POSITIVE.log(), lambda x: POSITIVE(x).log()),
    "sigmoid": (F.map(torch.sigmoid), lambda x: torch.sigmoid(F(x))),
    "softplus": (F.softplus(), lambda x: torch.nn.functional.softplus(F(x))),
    "softplus far from zero": ((60 * F).softplus(), lambda x: torch.logaddexp(60 * F(x), torch.zeros(()))),
    "tanh of outputs": (TWO.tanh(), lambda x: torch.tanh(TWO(x))),
    "an absolute value": (abs(F), lambda x: F(x).abs()),
    "a square": (F.square(), lambda x: F(x) ** 2),
    "a root": (POSITIVE.sqrt(), lambda x: POSITIVE(x).sqrt()),
    "cut": (F.clamp(-0.5, 0.5), lambda x: F(x).clamp(-0.5, 0.5)),
    "a transform": (F.map(transforms.Power(3.0)), lambda x: F(x) ** 3),
    "a scaling": (
        TWO.map(transforms.Affine([2.0, 3.0], [0.0, 1.0])),
        lambda x: TWO(x) * torch.tensor([2.0, 3.0]) + torch.tensor([0.0, 1.0]),
    ),
    "outputs mixed by a transform": (
        TWO.map(transforms.Monomials([[1, 1], [0, 2], [3, 0]])),
        lambda x: torch.stack([TWO(x).prod(-1), TWO(x)[..., 1] ** 2, TWO(x)[..., 0] ** 3], -1),
    ),
    "a function of one's own": (F.map(lambda f: f.sin() * f), lambda x: F(x).sin() * F(x)),
    "of several outputs": (TWO.map(lambda f: f.softmax(-1)), lambda x: TWO(x).softmax(-1)),
    "of several outputs one": (TWO.map(lambda f: f[..., 0] * f[..., 1]), lambda x: TWO(x).prod(-1)),
    "layers": (ONE.compose(F.tanh()), lambda x: ONE(F(x).tanh()[..., None])),
    "with inputs": (
        THREE.compose(F, with_inputs=True),
        lambda x: THREE(torch.cat([x.expand(S, -1, -1), F(x)[..., None]], -1)),
    ),
    "of a network": (F.of(NETWORK), lambda x: F(NETWORK(x))),
    "a sum of a network": ((F - G).of(NETWORK), lambda x: F(NETWORK(x)) - G(NETWORK(x))),
    "numbers of each path, of a network": (
        (ROWS * F + ROWS).of(NETWORK),
        lambda x: ROWS[:, None] * F(NETWORK(x)) + ROWS[:, None],
    ),
    "a posterior of each path's mean": (
        0.5 * OWN + matheron.PosteriorMean(OWN),
        lambda x: 0.5 * OWN(x) + own_mean_of(OWN, x),
    ),
    "layers of a network": (
        THREE.compose(F, with_inputs=True).of(NETWORK),
        lambda x: THREE(torch.cat([NETWORK(x).expand(S, -1, -1), F(NETWORK(x))[..., None]], -1)),
    ),
    "coordinates": (matheron.Coordinates.beside(F), lambda x: x.expand(S, -1, -1)),
    "a warp": (matheron.Coordinates.beside(TWO) + 0.1 * TWO, lambda x: x + 0.1 * TWO(x)),
    "coordinates of a transform": (
        2 * matheron.Coordinates.beside(F).of(transforms.Affine([2.0, 0.5], 0.1)),
        lambda x: (2 * (x * torch.tensor([2.0, 0.5]) + 0.1)).expand(S, -1, -1),
    ),
    "of a transform": (P.of(transforms.Affine([2.0, 0.5], 0.1)), lambda x: P(x * torch.tensor([2.0, 0.5]) + 0.1)),
    "side by side with a map": (
        matheron.stack([F, TWO, G.exp()]),
        lambda x: torch.cat([F(x)[..., None], TWO(x), G(x).exp()[..., None]], -1),
    ),
    "some of those": (
        matheron.stack([F, TWO, G.exp()])[..., [3, 1]],
        lambda x: torch.stack([G(x).exp(), TWO(x)[..., 0]], -1),
    ),
    "some outputs of a product": ((TWO * F)[..., -1], lambda x: TWO(x)[..., 1] * F(x)),
    "a mean": (matheron.PosteriorMean(P)[[0] * S] + F, lambda x: F(x) + mean_of(P, x)),
    "nearer to the mean": (
        P * 0.3 + 0.7 * matheron.PosteriorMean(P)[[0] * S],
        lambda x: 0.3 * P(x) + 0.7 * mean_of(P, x),
    ),
}
CASES["numbers of each path"] = (
    ROWS * F - G + ROWS,
    lambda x: ROWS[:, None] * F(x) - G(x) + ROWS[:, None],
)
SUMS = (
    "a sum",
    "a sum of posteriors",
    "numbers of each path",
    "numbers of each path, of a network",
    "a mean that moves",
    "a scaling",
    "nested sums",
    "nearer to the mean",
)


def mean_of(paths: AbstractFunctions, x: Tensor) -> Tensor:
    return paths.mean(x) if x.ndim == 2 else paths.mean(x.flatten(0, 1)).unflatten(0, x.shape[:2])


def own_mean_of(paths: AbstractFunctions, x: Tensor) -> Tensor:
    """The same of paths whose posteriors are each path's own."""
    if x.ndim == 2:
        return paths.mean(x)
    return torch.stack([paths.mean(points)[i] for i, points in enumerate(x)])


@pytest.mark.parametrize("name", CASES)
def test_what_is_made_of_paths_is_what_its_formula_says(name):
    h, formula = CASES[name]
    x = rand(5, h.input_dim)
    own = rand(S, 3, h.input_dim, seed=2)
    assert h.num_paths == len(h) == S and h(x).shape == (S, 5, *([h.num_outputs] if h.num_outputs > 1 else []))
    close(h(x), formula(x))
    close(h(own), formula(own))
    close(h(x.numpy()), formula(x))
    some = h[[3, 0, 0]]
    assert type(some) is type(h)
    close(some(x), formula(x)[[3, 0, 0]])
    axes = [torch.linspace(0.1, 0.9, 2 + i, dtype=torch.float64) for i in range(h.input_dim)]
    listed = formula(torch.cartesian_prod(*axes)).unflatten(1, [len(axis) for axis in axes])
    close(h.on_grid(axes), listed)
    assert h.to(torch.float32).dtype == torch.float32
    torch.testing.assert_close(h.to(torch.float32)(x).double(), formula(x), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", CASES)
def test_gradients_follow(name):
    h, formula = CASES[name]
    for x in (rand(4, h.input_dim, seed=3), rand(S, 3, h.input_dim, seed=4)):
        at, also = x.clone().requires_grad_(), x.clone().requires_grad_()
        values, expected = h(at), formula(also)
        G = randn(*values.shape, seed=5)
        (slope,), (wanted,) = (
            torch.autograd.grad(f, point, G, create_graph=True) for f, point in ((values, at), (expected, also))
        )
        close(slope, wanted)
        if wanted.requires_grad:  # derivatives of derivatives
            close(torch.autograd.grad(slope.square().sum(), at)[0], torch.autograd.grad(wanted.square().sum(), also)[0])
        value, gradient = h.value_and_grad(x)
        close(value, expected.detach())
        pulled = gradient * G[..., None]
        pulled = pulled if pulled.ndim == 3 else pulled.sum(2)
        close(pulled if x.ndim == 3 else pulled.sum(0), slope.detach())
    x, of = rand(4, h.input_dim, seed=3), torch.tensor([3, 0, 0, -1])
    every, slopes = h.value_and_grad(x)
    value, gradient = h.value_and_grad(x, of=of)
    close(value, every[of, torch.arange(4)])
    close(gradient, slopes[of, torch.arange(4)])


UNSAVED = ("network", "function of one's own", "of several outputs", "a mean that moves")


@pytest.mark.parametrize("name", CASES)
def test_functions_are_copied_and_kept_in_files(name, tmp_path):
    h, formula = CASES[name]
    x = rand(5, h.input_dim)
    copies: list[Any] = [copy.copy(h), copy.deepcopy(h)]
    if any(part in name for part in UNSAVED):
        with pytest.raises(TypeError, match=r"which cannot be saved: a file has no code"):
            h.save(tmp_path / "h")
    else:
        h.save(tmp_path / "h")
        copies += [matheron.load(tmp_path / "h"), pickle.loads(pickle.dumps(h))]
    for other in copies:
        assert type(other) is type(h) and repr(other) == repr(h)
        close(other(x), formula(x))
    assert not list(h.parameters()) and not h.requires_graph()


@pytest.mark.parametrize("name", SUMS)
def test_a_sum_is_one_record_where_its_paths_agree(name):
    h, _ = CASES[name]
    records = h._records()
    assert records is not None and len(records) == 1
    if name == "nearer to the mean":  # their waves, and the functions of the data once
        assert records is not None and len(records[0].terms) == len(P.record.terms)


def test_a_draw_less_itself_is_nothing():
    close((P - P)(rand(3, 2)), torch.zeros(S, 3).double())
    close((2 * P[:2] - P[2:])(rand(3, 2)), 2 * P(rand(3, 2))[:2] - P(rand(3, 2))[2:])


def test_numbers_are_lists_tensors_and_arrays_of_any_dtype_without_loss_of_digits():
    x, numbers = rand(3, 2), [1, -2, 3, 7]
    wanted = F(x) / torch.tensor(numbers)[:, None]
    for given in (numbers, tuple(numbers), torch.tensor(numbers), torch.tensor(numbers).float(), np.array(numbers)):
        torch.testing.assert_close((F / given)(x), wanted, rtol=1e-14, atol=1e-14)
    close(
        ([1, 2, 3, 4] * F - [0.0, 1.0, 0.0, 1.0])(x), torch.arange(1, 5)[:, None] * F(x) - torch.tensor([[0], [1]] * 2)
    )


def test_sums_of_lattice_draws_and_of_float32_are_right():
    lattice: dict[str, Any] = dict(domain=(-0.1, 1.1), kernel=kernels.Matern(1.5, 0.3))
    f, g, x = prior(1, **lattice), prior(2, **lattice), rand(6, 2)
    close((2 * f - g + 1)(x), 2 * f(x) - g(x) + 1)
    close((2 * f - g + 1).value_and_grad(x)[1], 2 * f.value_and_grad(x)[1] - g.value_and_grad(x)[1])
    narrow = (P.float() - 2 * P).to(torch.float64)
    torch.testing.assert_close(narrow(x), -P(x), rtol=1e-4, atol=1e-4)
    assert (P.float() + P).dtype == torch.float64
    several = matheron.draw_prior(kernels.RBF(0.5), 16, input_dim=2, num_features=16, paths_per_basis=8, seed=0)
    other = several[[*range(8, 16), *range(8)]]  # whose bases are others, path by path
    own = rand(16, 3, 2)
    for at in (x, own):
        close((several - 2 * other)(at), several(at) - 2 * other(at))
    close((several + prior(1, s=16))(x), several(x) + prior(1, s=16)(x))


# What is known of the law.


def test_a_sum_has_the_mean_of_its_paths():
    x = rand(5, 2)
    close((2 * P - Q / 2 + 1).mean(x), 2 * P.mean(x) - Q.mean(x) / 2 + 1)
    close((ROWS * P).mean(x), ROWS[:, None] * P.mean(x))
    close((3 * P - 1).variance(x), 9 * P.variance(x))
    own = P.condition_on([[0.5, 0.5]], ROWS[:, None], noise=0.1, seed=0)
    close((own - P).mean(x), own.mean(x) - P.mean(x))
    close(matheron.PosteriorMean(own)(x), own.mean(x))
    close(matheron.PosteriorMean(own)[[2, 0]](x), own.mean(x)[[2, 0]])
    assert matheron.PosteriorMean(P).num_paths == 1
    estimate, error = (P - Q).variance(x, samples=True)
    assert estimate.shape == error.shape == (5,)


def test_draws_of_a_sum_have_its_law():
    """Of independent draws: 2 f - g, with the sum of the covariances."""
    X, kernel = rand(4, 2, seed=1), kernels.RBF(0.4)
    gp = matheron.ExactGP(kernel, X, randn(4, seed=1), 0.1)
    settings: dict[str, Any] = dict(num_features=512, paths_per_basis=8)
    f, g = (matheron.draw(gp, 4000, seed=i, **settings) for i in range(2))
    x = rand(5, 2, seed=2)
    K, k = kernel(X) + 0.1 * torch.eye(4), kernel(X, x)
    C = kernel(x) - k.mT @ torch.linalg.solve(K, k)
    assert_moments((2 * f - g)(x), f.mean(x), 5 * C, basis_error=0.02)


def test_stacks_and_outputs_of_paths_are_paths(tmp_path):
    both = matheron.stack([P, given(6)])
    assert isinstance(both, matheron.OutputPaths)
    assert_paths(both, tmp_path)
    assert isinstance(both[..., 0], matheron.Paths) and isinstance(TWO[..., 1], AbstractPaths)
    x = rand(3, 2)
    close(TWO[..., 1].mean(x), TWO.mean(x)[:, 1])
    close(TWO[2, ..., 1](x), TWO(x)[2:3, :, 1])
    close(TWO[..., 1].condition_on(x, x[:, 0], noise=0.0)(x), x[:, 0].expand(S, -1).contiguous())
    assert TWO[..., :] is TWO


def test_stacks_of_two_precisions_take_data():
    both = matheron.stack([P.float(), Q])
    assert both.dtype == torch.float64
    x, y = rand(2, 2), rand(2, 2, seed=1)
    given = both.condition_on(x, y, noise=0.0, seed=0)
    torch.testing.assert_close(given(x), y.expand(S, -1, -1), rtol=1e-4, atol=1e-4)
    assert [f.dtype for f in given.functions] == [torch.float32, torch.float64]


def test_paths_of_a_network_have_its_law_and_take_data():
    z = P.of(NETWORK)
    x = rand(4, 3)
    assert isinstance(z, matheron.Paths) and z.input_dim == 3
    close(z.mean(x), P.mean(NETWORK(x)))
    close(z.variance(x), P.variance(NETWORK(x)))
    more = z.condition_on(x, x[:, 0], noise=0.0, seed=0)
    torch.testing.assert_close(more(x), x[:, 0].expand(S, -1), rtol=1e-5, atol=1e-5)
    close(more(x), P.condition_on(NETWORK(x).detach(), x[:, 0], noise=0.0, seed=0)(NETWORK(x)).detach())
    with torch.no_grad():
        before = z(x)
        first = next(NETWORK.parameters())
        first += 1.0  # the path has its own
        close(z(x), before)
        first -= 1.0
    trained = P.of(NETWORK, detach=False)
    assert torch.autograd.grad(trained(x).sum(), first)[0].abs().max() > 0


def test_networks_with_normalised_batches_take_points_of_each_path_too():
    network = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)).double()
    network(randn(50, 3))  # what it learned of a batch
    z, x, own = F.of(network), rand(5, 3), rand(S, 6, 3)
    network.eval()
    close(z(x), F(network(x)).detach())
    close(z(own), F(network(own.flatten(0, 1)).unflatten(0, (S, 6))).detach())
    close(z.to_module()(own), z(own))


# Where paths are taken, these are.


def test_minimisers_are_those_of_the_formula():
    h = P.exp() + 2 * F
    found = matheron.minimize(h, [[0.0, 0.0], [1.0, 1.0]], seed=0, mesh_size=500, num_starts=8)
    mesh = torch.cartesian_prod(*[torch.linspace(0, 1, 31, dtype=torch.float64)] * 2)
    assert bool((found.value <= h(mesh).amin(1) + 1e-9).all())
    close(found.value, torch.stack([h(x[None])[i, 0] for i, x in enumerate(found.x)]))
    most = matheron.maximize(h, [[0.0, 0.0], [1.0, 1.0]], seed=0, mesh_size=500, num_starts=8)
    assert bool((most.value >= h(mesh).amax(1) - 1e-9).all())
    limited = matheron.minimize(F, [[0.0, 0.0], [1.0, 1.0]], constraints=G.exp() - 1, seed=0, mesh_size=500)
    assert bool((G(limited.x[:, None])[:, 0][limited.feasible] <= 1e-6).all())


def test_rollouts_go_along_them():
    drift = [0.5 * F - G, F.tanh()]
    states = matheron.rollout(drift, [0.1, 0.2], steps=4, dt=0.1)
    close(states[:, 1], states[:, 0] + 0.1 * matheron.stack(drift)(states[:, :1])[:, 0])


def test_fields_and_pictures_of_them_are_made():
    h = F.exp() * P
    axes = {"x": np.linspace(0, 1, 5), "y": np.linspace(0, 1, 4)}
    field = h.to_xarray(axes)
    close(torch.from_numpy(field.values), h.on_grid([axes["x"], axes["y"]]).mT.contiguous())
    lazy = matheron.fields.simulate(h, axes, chunks=2)
    np.testing.assert_allclose(lazy.compute(scheduler="sync"), field)
    panels = h.plot([np.linspace(0, 1, 6), np.linspace(0, 1, 5)])
    assert len(panels) == 4
    assert ONE.exp().plot(np.linspace(0, 1, 6)).get_ylabel() == "f(x)"


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_the_same_in_inference_mode_and_at_no_points_there_are_none(name):
    h, _ = CASES[name]
    x = rand(4, h.input_dim, seed=3)
    value, gradient = h.value_and_grad(x)
    with torch.inference_mode():
        again, slope = h.value_and_grad(x)
        close(h(x), value)
    close(again, value)
    close(slope, gradient)
    for none in (rand(0, h.input_dim), rand(S, 0, h.input_dim)):
        value, slope = h.value_and_grad(none)
        assert value.shape == h(none).shape and slope.shape == (*value.shape, h.input_dim) and not value.numel()


def test_transforms_of_torch_func_go_through():
    h = F.exp() * 2 - G
    x = rand(2)
    slope = torch.func.grad(lambda at: h(at[None]).sum())(x)
    close(slope, h.value_and_grad(x[None])[1].sum((0, 1)))
    many = torch.func.vmap(lambda at: h(at[None])[:, 0])(rand(3, 2))
    close(many, h(rand(3, 2)).mT.contiguous())


# What is refused.


def test_functions_that_do_not_pair_are_refused():
    with pytest.raises(ValueError, match=r"paired one by one, got \[4, 3\]; choose 3 of the others, g\[:3\]"):
        _ = F + prior(1, s=3)
    with pytest.raises(ValueError, match=r"got \[4, 1\]; repeat it, f\[\[0\] \* 4\]"):
        _ = F * G[0]
    close((F * G[[0] * S])(rand(3, 2)), F(rand(3, 2)) * G(rand(3, 2))[0])
    with pytest.raises(ValueError, match=r"expected functions of as many inputs, got \[1, 2\]"):
        _ = F - ONE
    with pytest.raises(ValueError, match=r"as many outputs, or of one, got \[2, 3\]"):
        _ = TWO + matheron.stack([F, F, G])
    with pytest.raises(ValueError, match=r"number: expected one, one for each path \[4\], or for each output too"):
        _ = F * torch.ones(3)
    with pytest.raises(ValueError, match=r"compose: expected an inner function of 1 outputs"):
        ONE.compose(TWO)
    with pytest.raises(ValueError, match=r"as many outputs, or of one, got \[2, 3\]"):
        _ = TWO * torch.ones(1, 2) + matheron.stack([F, F, G]) * torch.ones(1, 3)
    batch = matheron.draw(matheron.Batch([matheron.ExactGP(kernels.RBF(), rand(3, 2), randn(3), 0.1)] * 2), S)
    with pytest.raises(TypeError, match=r"functions: .* got a batch of 2 models; ask each of paths.members"):
        _ = F + batch  # type: ignore[operator]
    with pytest.raises(TypeError, match="unsupported operand"):
        F + "1"  # type: ignore[operator]
    with pytest.raises(ZeroDivisionError):
        _ = F / 0
    for method in ("exp", "to_module", "export"):
        with pytest.raises(AttributeError, match=f"{method}: paths of a batch .* ask each of paths.members"):
            getattr(batch, method)
    with pytest.raises(IndexError, match="output 2 of 2"):
        TWO[..., 2]
    with pytest.raises(IndexError, match="path -5 of 4"):
        F[[0, -5]]
    with pytest.raises(IndexError, match=r"expected 4 booleans, one for each path, got \[2\]"):
        F[[True, False]]
    for index in ("a", None, ..., 0.5, [[0, 1], [1, 2]]):
        with pytest.raises(TypeError, match="expected paths as a number, a slice, a list of numbers or 4 booleans"):
            F[index]  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"f: expected paths, .* got RBF"):
        matheron.Coordinates.beside(kernels.RBF())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Coordinates: expected a number of paths, got 0"):
        matheron.Coordinates(torch.zeros(2), 0)
    with pytest.raises(IndexError, match=r"expected f\[paths\], f\[..., outputs\]"):
        TWO[0, 1]  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"functions: expected paths, as matheron.draw gives them, got function"):
        matheron.stack([lambda x: x])  # type: ignore[list-item]


def test_what_has_no_law_says_why():
    x = rand(2, 2)
    with pytest.raises(TypeError, match="mean: PointwiseProduct has none; the mean of a product is not"):
        (F * G).mean(x)
    with pytest.raises(TypeError, match="mean: Mapped has none; the mean of a function of f"):
        F.exp().mean(x)
    with pytest.raises(TypeError, match="mean: Composition has none"):
        ONE.compose(F).mean(x)
    with pytest.raises(TypeError, match="variance: that of a sum depends on how its functions vary together"):
        (F + G).variance(x)
    for h in (F + G, F * G, F.exp(), ONE.compose(F), matheron.stack([F, G.exp()])):
        with pytest.raises(TypeError, match=f"condition_on: {type(h).__name__} takes no data; .*[Gg]ive data"):
            h.condition_on(x, x[:, 0], noise=0.0)
        with pytest.raises(TypeError, match="refreshed: "):
            h.refreshed(x)
    with pytest.raises(TypeError, match="which is made of such"):
        matheron.diagnose(F.exp(), matheron.ExactGP(kernels.RBF(), x, x[:, 0], 0.1), x)  # type: ignore[arg-type]


def test_maps_and_networks_that_do_not_fit_are_refused():
    with pytest.raises(
        ValueError, match=r"on values \[3, 4\] that returns \[3, 4\], or \[3, 4, t\] for t outputs, got \[\]"
    ):
        F.map(lambda f: f.sum())
    with pytest.raises(TypeError, match=r"map: .* on values \[3, 4, 2\], got an error: .*cannot be multiplied"):
        TWO.map(torch.nn.Linear(3, 1))
    with pytest.raises(TypeError, match=r"map: .*got an error: .*numpy"):
        F.map(np.sin)  # type: ignore[arg-type]
    for mixing in (lambda f: f - f.mean(), lambda f: f.softmax(-1), lambda f: f.flip(0).flip(1).cumsum(0)):
        with pytest.raises(
            ValueError, match="takes each by itself, got one that mixes those of several points or paths"
        ):
            F.map(mixing)
    with pytest.raises(
        ValueError, match="map: expected a transform of 1 outputs, those of the functions, got one of 2"
    ):
        F.map(transforms.Affine([1.0, 2.0]))
    with pytest.raises(TypeError, match=r"map: .* got functions of points; g\(f\(x\)\) is g.compose\(f\)"):
        F.map(G)
    with pytest.raises(TypeError, match=r"network: .* got functions; f\(g\(x\)\) is f.compose\(g\)"):
        F.of(TWO)
    with pytest.raises(TypeError, match=r"inner: .* got code of your own; f\(network\(x\)\) is f.of\(network\)"):
        F.compose(NETWORK)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"clamp: expected min, max or both, in this order, got 2 and 1"):
        F.clamp(2, 1)
    with pytest.raises(TypeError, match="through which gradients flow, got one without"):
        F.map(lambda f: torch.as_tensor(np.sin(f.detach().numpy())))
    with pytest.raises(TypeError, match="map: expected a function of values, got float"):
        F.map(1.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="clamp: expected min, max or both"):
        F.clamp()
    with pytest.raises(ValueError, match=r"network: expected a map from \[..., n, 3\] to \[..., n, 1\]"):
        ONE.of(NETWORK)
    with pytest.raises(ValueError, match="give input_dim="):
        F.of(NETWORK, input_dim=4)
    for mixing in (lambda x: x - x.mean(0), lambda x: (x - x.amin(-2, True)) / (x.amax(-2, True) - x.amin(-2, True))):
        with pytest.raises(ValueError, match="network: expected a map of each point by itself, got one that maps"):
            F.of(mixing)
    assert F.of(lambda x: x[..., :2], input_dim=5).input_dim == 5


def test_broken_files_are_refused(tmp_path):
    from safetensors import safe_open

    from core.test_files import rewritten

    (2 * F - G).save(tmp_path / "h")

    def shorter(tree: Any, tensors: Any) -> None:
        tensors["weights"] = tensors["weights"][:1].clone()

    with safe_open(tmp_path / "h", framework="pt") as file:
        assert "weights" in file.keys()
    with pytest.raises(ValueError, match="expected weights of 2 functions"):
        matheron.load(rewritten(tmp_path / "h", tmp_path / "bad", shorter))
