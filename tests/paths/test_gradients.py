"""Gradients of paths: in x by autograd and in closed form, and in the model's hyperparameters."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from examples import ALL, LAYOUTS, TASKS, gen, model, paths_of, rand, randn
from matheron import ExactGP, Paths, SparseGP, draw, draw_prior
from matheron import kernels as K

# In x.


def points_like(shape: str, s: int = 5) -> Tensor:
    return {"shared": rand(3, 2), "own": rand(s, 3, 2), "a leading one": rand(1, 3, 2)}[shape]


SHAPES = ["shared", "own", "a leading one"]


@pytest.mark.parametrize("shape", ["shared", "own"])
@pytest.mark.parametrize("name", ALL)
def test_autograd_in_x_passes_gradcheck(name, shape):
    assert gradcheck(paths_of(name, 3), points_like(shape, 3).requires_grad_())


@pytest.mark.parametrize("shape", ["shared", "own"])
@pytest.mark.parametrize("name", ["exact", "sparse, coupled"])
def test_values_in_a_graph_may_be_written_into(name, shape):
    x = points_like(shape).requires_grad_()
    f = paths_of(name, 5)(x)
    (plain,) = torch.autograd.grad(f.sum(), x, retain_graph=True)
    (doubled,) = torch.autograd.grad(f.mul_(2).sum(), x)
    torch.testing.assert_close(doubled, 2 * plain)


@pytest.mark.parametrize("name", ["exact", "exact, composite", "sparse, coupled"])
def test_second_derivatives_in_x_pass_gradgradcheck(name):
    assert gradgradcheck(paths_of(name, 2, num_features=6), rand(2, 2).requires_grad_())


def jacobian(paths: Paths, x: Tensor) -> Tensor:
    """d f / d x by autograd, one output at a time: `[s, n, t, d]`."""
    x = x.clone().requires_grad_()
    f = paths(x)
    f = f[..., None] if paths.num_outputs == 1 else f
    rows = torch.zeros(*f.shape, x.shape[-1], dtype=x.dtype)
    for i in range(f.shape[0]):
        for j in range(f.shape[2]):
            (g,) = torch.autograd.grad(f[i, :, j].sum(), x, retain_graph=True)
            rows[i, :, j] = g if g.ndim == 2 else g[i if len(g) > 1 else 0]
    return rows


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ALL)
def test_value_and_grad_agree_with_autograd(name, layout):
    paths = paths_of(name, 5, layout=layout)
    for shape in SHAPES:
        x = points_like(shape)
        value, gradient = paths.value_and_grad(x.requires_grad_())
        assert not value.requires_grad and not gradient.requires_grad
        torch.testing.assert_close(value, paths(x).detach(), rtol=1e-11, atol=1e-11)
        expected = jacobian(paths, x.detach())
        gradient = gradient if paths.num_outputs > 1 else gradient[:, :, None]
        torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-9, msg=lambda text, s=shape: f"{s}: {text}")


@pytest.mark.parametrize("nu", [0.5, 0.8, 1.0, 1.5, 2.5])
def test_gradients_at_the_data_are_finite(nu):
    """A rough kernel has no derivative at its centre; the answer there is the smooth part's, not NaN."""
    X = rand(4, 2, seed=1)
    paths = draw(ExactGP(K.Matern(nu, 0.5), X, randn(4), 0.0), 3, num_features=16)
    assert paths.value_and_grad(X)[1].isfinite().all()
    x = X.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(paths(x).sum(), x)
    assert gradient.isfinite().all()
    torch.testing.assert_close(gradient, paths.value_and_grad(X)[1].sum(0), rtol=1e-8, atol=1e-8)


def test_the_closed_form_gradient_is_the_slope_of_the_path():
    """Against differences, which know nothing of either implementation."""
    paths, x, h = paths_of("exact, composite"), rand(4, 2), 1e-6
    gradient = paths.value_and_grad(x)[1]
    for i in range(2):
        step = torch.zeros(2, dtype=torch.float64).index_fill(0, torch.tensor(i), h)
        slope = (paths(x + step) - paths(x - step)) / (2 * h)
        torch.testing.assert_close(gradient[..., i], slope, rtol=1e-6, atol=1e-6)


class OwnKernel(K.Kernel):
    """A kernel of features of one's own."""

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return 1 + x @ z.mT

    def features(self, num_features: int, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
        return lambda x: torch.cat([x, torch.ones_like(x[:, :1])], dim=1)


def made_of_code() -> dict[str, Paths]:
    """Paths whose gradients in x are taken by autograd in part."""
    X, y = rand(4, 2), randn(4)
    return {
        "a mean": draw(ExactGP(K.RBF(0.5), X, y, 0.1, mean=lambda x: x[..., 0].sin() * x[..., 1]), 3, seed=0),
        "a constant mean": draw(ExactGP(K.RBF(0.5), X, y, 0.1, mean=lambda x: torch.ones(x.shape[:-1])), 3, seed=0),
        "features": draw(ExactGP(OwnKernel(), X, y, 0.1), 3, seed=0),
        "a map of inputs": draw(ExactGP(K.RBF(0.5), X, y, 0.1), 3, seed=0).of(lambda x: x.flip(-1).square()),
        "a lattice": draw(ExactGP(K.RBF(0.5), X, y, 0.1), 3, domain=([0, 0], [1, 1]), seed=0),
    }


@pytest.mark.parametrize("name", made_of_code())
def test_gradients_of_code_of_ones_own_are_right_in_inference_mode_and_at_no_points(name):
    paths, x = made_of_code()[name], rand(3, 2)
    with torch.inference_mode():
        _, slopes = paths.value_and_grad(x)
    torch.testing.assert_close(slopes, jacobian(paths, x)[:, :, 0])
    for none in (rand(0, 2), rand(3, 0, 2)):
        (slope,) = torch.autograd.grad(paths(none.requires_grad_()).sum(), none, create_graph=True)
        assert slope.shape == none.shape and paths.value_and_grad(none)[1].shape == (3, 0, 2)


def test_single_precision_points_carry_gradients():
    paths = paths_of("exact", dtype=torch.float32)
    x = rand(3, 2).float().requires_grad_()
    paths(x).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, paths.value_and_grad(x.detach())[1].sum(0), rtol=1e-4, atol=1e-4)


def test_paths_of_a_detached_draw_keep_no_graph():
    lengthscale = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    y = randn(4, seed=2).requires_grad_()
    paths = draw(ExactGP(K.RBF(lengthscale), rand(4, 2, seed=1), y, 0.1, mean=lengthscale), 3)
    assert not paths.requires_graph()
    assert not paths(rand(5, 2)).requires_grad
    assert not paths.mean(rand(5, 2)).requires_grad


# In hyperparameters: the draw is a deterministic function of them once the seed is fixed.

X, Y, AT = rand(4, 2, seed=1), randn(4, seed=2), rand(3, 2, seed=3)


def exact(kernel: K.Kernel, **settings: Any) -> ExactGP:
    return ExactGP(kernel, **({"X": X, "y": Y, "noise": 0.1} | settings))


def sparse(**settings: Any) -> SparseGP:
    kernel = settings.pop("kernel", K.Matern(2.5, 0.5))
    given = {"Z": X, "q_mean": Y, "q_scale_tril": 0.3 * randn(4, 4, seed=4), "whitened": True, "jitter": 1e-3}
    return SparseGP(kernel, **(given | settings))


HYPERPARAMETERS: dict[str, tuple[Callable[[Tensor], Any], Tensor]] = {
    "lengthscale": (lambda v: exact(K.RBF(v)), torch.tensor([0.4, 0.7])),
    "lengthscale of Matern": (lambda v: exact(K.Matern(1.5, v)), torch.tensor(0.5)),
    "lengthscale of rational quadratic": (lambda v: exact(K.RationalQuadratic(1.0, v)), torch.tensor(0.5)),
    "outputscale": (lambda v: exact(v * K.Matern(0.8, 0.5)), torch.tensor(2.0)),
    "period": (lambda v: exact(K.Periodic(1.0, v)), torch.tensor([0.9, 1.3])),
    "period of cosine": (lambda v: exact(K.Cosine(v).on(0) * K.RBF(0.5)), torch.tensor(0.9)),
    "spectral weights": (
        lambda v: exact(K.SpectralMixture(v, [[0.4, 1.0], [0.0, 0.3]], [[0.3, 0.2], [0.5, 0.6]])),
        torch.tensor([0.7, 0.4]),
    ),
    "spectral means": (
        lambda v: exact(K.SpectralMixture([0.7, 0.5], v, [[0.3, 0.2], [0.5, 0.6]])),
        torch.tensor([[0.4, 1.0], [0.1, 0.3]]),
    ),
    "variance of linear": (lambda v: exact(K.Linear(v) * K.RBF(0.6) + K.RBF(0.4)), torch.tensor([1.0, 0.5])),
    "offset": (lambda v: exact(K.Polynomial(2, v) + K.RBF(0.4)), torch.tensor(0.5)),
    "level": (lambda v: exact(K.Constant(v) + K.RBF(0.4)), torch.tensor(0.5)),
    "coupling": (
        lambda v: exact(K.Coregional(K.RBF(0.5), v @ v.mT + 0.1 * torch.eye(2)), tasks=TASKS[:4]),
        torch.tensor([[1.0, 0.2], [0.5, -0.7]]),
    ),
    "noise": (lambda v: exact(K.RBF(0.5), noise=v), torch.tensor([0.1, 0.2, 0.3, 0.4])),
    "mean": (lambda v: exact(K.RBF(0.5), mean=v), torch.tensor(0.7)),
    "targets": (lambda v: exact(K.RBF(0.5), y=v), Y),
    "q's mean": (lambda v: sparse(q_mean=v), Y),
    "q's root": (lambda v: sparse(q_scale_tril=v), 0.3 * randn(4, 4, seed=4)),
    "q's deviations": (lambda v: sparse(q_scale_tril=v, whitened=False), torch.tensor([0.3, 0.4, 0.5, 0.6])),
    "a sparse model's lengthscale": (lambda v: sparse(kernel=K.RBF(v)), torch.tensor(0.5)),
}


@pytest.mark.parametrize("name", HYPERPARAMETERS)
def test_gradients_in_hyperparameters_pass_gradcheck(name):
    make, value = HYPERPARAMETERS[name]

    def path(v: Tensor) -> Tensor:
        gp = make(v)
        settings: dict[str, Any] = dict(num_features=6, paths_per_basis=1, detach=False, generator=gen(5))
        settings["features"] = "sobol"  # frequencies move with the hyperparameters; those by leverage stay
        paths = draw(gp, 2, **settings)
        return torch.cat([paths(AT).flatten(), paths.mean(AT).flatten()])

    with warnings.catch_warnings():  # torch warns where a tensor of a graph becomes a number: none of ours may
        warnings.simplefilter("error")
        assert gradcheck(path, value.double().requires_grad_())


@pytest.mark.parametrize("name", ["inputs", "inducing points"])
def test_gradients_in_the_points_of_a_model_pass_gradcheck(name):
    """On a given basis: a new one is taken about the points' centre, which is no part of the graph."""
    features = draw_prior(K.Matern(2.5, 0.5), 1, input_dim=2, num_features=6, generator=gen(4)).prior.features

    def path(v: Tensor) -> Tensor:
        gp = sparse(Z=v) if name == "inducing points" else exact(K.Matern(2.5, 0.5), X=v)
        return draw(gp, 2, features=features, detach=False, generator=gen(5))(AT)

    assert gradcheck(path, X.clone().requires_grad_())


@pytest.mark.parametrize("features", ["cosine", "sincos", "sobol", "orthogonal", "equispaced"])
def test_every_basis_keeps_the_graph(features):
    def path(v: Tensor) -> Tensor:
        gp = ExactGP(K.RBF(v), X, Y, 0.1)
        settings: dict[str, Any] = dict(num_features=9, features=features, domain=(0.0, 1.0), detach=False)
        return draw(gp, 2, generator=gen(5), **settings)(AT)

    value = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    if features != "equispaced":
        assert gradcheck(path, value)
    else:  # the box is sized from the lengthscale in steps, so only that the graph is there and finite
        (gradient,) = torch.autograd.grad(path(value).sum(), value)
        assert gradient.isfinite() and gradient != 0


@pytest.mark.parametrize(
    "kernel, value, distance",
    [
        (lambda v: K.RationalQuadratic(v, 0.5), 0.8, 1.5),
        (lambda v: K.Periodic(v, 0.9), 0.7, 0.35),
        (lambda v: K.Periodic(v, 0.9) * K.RBF(0.7), 0.7, 0.35),
    ],
    ids=["alpha of rational quadratic", "lengthscale of periodic", "lengthscale of periodic in a product"],
)
def test_gradients_that_no_map_of_uniforms_carries_are_right_on_average(kernel, value, distance):
    """E f(x) f(z) = k(x, z), so the mean of its derivative over many bases is dk."""
    v = torch.tensor(value, dtype=torch.float64, requires_grad=True)
    x = torch.tensor([[0.1], [0.1 + distance]], dtype=torch.float64)
    settings: dict[str, Any] = dict(num_features=32, features="sincos", paths_per_basis=1, generator=gen(1))
    f = draw_prior(kernel(v), 4000, input_dim=1, detach=False, **settings)(x)  # [s, 2]
    product = f[:, 0] * f[:, 1]
    (expected,) = torch.autograd.grad(kernel(v)(x[:1], x[1:])[0, 0], v)
    groups = product.reshape(40, -1).mean(1)
    slopes = torch.stack([torch.autograd.grad(g, v, retain_graph=True)[0] for g in groups])
    error = slopes.std() / len(slopes) ** 0.5
    assert error < 0.2 * expected.abs()  # a wrong sign or a lost gradient would show
    assert abs(slopes.mean() - expected) < 4 * error


def test_gradients_reach_new_data_through_condition_on():
    paths = paths_of("exact", 2)

    def path(x: Tensor, y: Tensor) -> Tensor:
        return paths.condition_on(x, y, noise=0.01, generator=gen(3))(AT)

    assert gradcheck(path, (rand(2, 2, seed=8).requires_grad_(), randn(2, seed=9).requires_grad_()))


def test_a_model_trains_through_its_paths():
    """A step down the gradient of a loss of paths lowers the loss."""
    log_lengthscale = torch.tensor(0.0, dtype=torch.float64, requires_grad=True)

    def loss() -> Tensor:
        gp = ExactGP(K.Matern(2.5, log_lengthscale.exp()), X, Y, 0.1)
        return draw(gp, 16, detach=False, generator=gen(1))(AT).square().mean()

    before = loss()
    before.backward()
    assert log_lengthscale.grad is not None
    with torch.no_grad():
        log_lengthscale -= 0.05 * log_lengthscale.grad.sign()
    assert loss() < before


def test_the_graph_of_a_sparse_and_transformed_model_is_kept_where_asked():
    gp = model("sparse, whitened, composite")
    gp = gp.replaced(q_mean=gp.q_mean.clone().requires_grad_())
    paths = draw(gp, 2, num_features=8, detach=False, generator=gen())
    assert paths.requires_graph() and paths(AT).requires_grad
    with torch.no_grad():
        assert not paths(AT).requires_grad


@pytest.mark.parametrize("own", [False, True], ids=["one path", "points of their own"])
def test_gradients_kept_beside_values_are_those_of_all_paths_together(own):
    X = torch.rand(12, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    gp = ExactGP(K.Matern(2.5, [0.4, 0.7]), X, X.sum(1).sin(), 1e-2, mean=0.3)
    paths = draw(gp, 3, num_features=32, seed=0)
    x = torch.rand(16, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    weights = torch.rand(16, dtype=torch.float64, generator=torch.Generator().manual_seed(2))

    def slope(f):  # of all paths at shared points, whose gradient is pulled back
        return torch.autograd.grad((f * weights).sum(), x, create_graph=True)[0]

    expected = [slope(paths(x)[i]) for i in range(3)]
    found = [slope(paths(x.expand(3, -1, -1))[i] if own else paths[i](x)[0]) for i in range(3)]
    torch.testing.assert_close(found, expected)
    curved = [[torch.autograd.grad(each.square().sum(), x)[0] for each in some] for some in (found, expected)]
    torch.testing.assert_close(*curved)
    plain = torch.autograd.grad((paths[0](x)[0] * weights).sum(), x)[0]
    torch.testing.assert_close(plain, expected[0].detach())
