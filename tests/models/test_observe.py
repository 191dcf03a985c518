"""What is observed other than values: identities that given paths keep, what models of functionals can do, refusals."""

import math
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

import matheron
from matheron import Batch, ExactGP, SparseGP, draw, draw_prior, observe, transforms
from matheron import kernels as K
from matheron.solvers import Cholesky
from standard import assert_moments

DOUBLE = torch.float64


def points(n: int, d: int = 2, seed: int = 0) -> Tensor:
    return torch.rand(n, d, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


X, Z, LATER = points(12, seed=1), points(6, seed=2), points(7, seed=3)
Y = (5 * X[:, 0]).sin() + X[:, 1]


def model(kernel=None, noise=(1e-4, 1e-3), **settings: Any) -> ExactGP:
    kernel = K.Matern(2.5, 0.5) if kernel is None else kernel
    return ExactGP(
        kernel, [observe.value(X), observe.gradient(Z)], [Y, torch.zeros(6, 2)], noise=list(noise), **settings
    )


def test_blocks_stacks_and_one_after_another_are_one_model():
    blocks = model()
    stacked = ExactGP(
        K.Matern(2.5, 0.5),
        observe.stack([observe.value(X), observe.gradient(Z)]),
        torch.cat([Y, torch.zeros(12, dtype=DOUBLE)]),
        noise=torch.tensor([1e-4] * 12 + [1e-3] * 12, dtype=DOUBLE),
    )
    assert torch.equal(draw(blocks, 3, seed=0)(LATER), draw(stacked, 3, seed=0)(LATER))


def given_slopes(gp: Any) -> Any:
    return draw(gp, 2).condition_on(observe.derivative(Z, 0), torch.zeros(6), noise=0.1)


def test_nothing_observed_has_no_values():
    paths, several = draw(model(), 2), matheron.stack([draw(model(), 2)] * 3)
    assert paths.at(observe.gradient(X[:0])).shape == (2, 0)
    assert several.at(observe.value(X[:0])).shape == (2, 0, 3)
    assert several.at(observe.mean(X[:0], X[:0], output=1)).shape == (2, 0)


def test_values_alone_are_the_model_of_points():
    plain, observed = ExactGP(K.RBF(), X, Y, 1e-2), ExactGP(K.RBF(), observe.value(X), Y, 1e-2)
    assert torch.equal(draw(plain, 3, seed=0)(LATER), draw(observed, 3, seed=0)(LATER))
    assert torch.equal(observed.train_inputs, X)


@pytest.mark.parametrize(
    "what",
    [
        observe.derivative(LATER, 0),
        observe.gradient(LATER),
        observe.derivative(LATER, (0, 1)),
        observe.mean(LATER, LATER + 0.2),
        observe.integral(LATER, LATER + 0.2),
        observe.combine(LATER.expand(3, -1, -1), points(3, 7, seed=4)),
        observe.value(LATER) - observe.value(LATER + 0.1),
        observe.derivative(LATER, 0) - 0.1 * observe.derivative(LATER, (1, 1)),
    ],
    ids=["slopes", "gradients", "mixed second", "averages", "integrals", "sums", "increments", "heat"],
)
@pytest.mark.parametrize("kind", ["exact", "prior", "kept factor", "transformed", "cosines", "lattice"])
def test_what_is_observed_without_noise_is_met(kind, what):
    smooth: K.Kernel = K.RBF(0.6)
    settings: dict[str, Any] = {}
    if kind == "transformed":
        inward, outward = transforms.Affine([2.0, 3.0], [0.1, 0.2]), transforms.Affine(3.0, 1.0)
        linear = matheron.means.LinearMean([1.0, 2.0], 0.5)
        gp = ExactGP(K.RBF(1.6), X, Y, 1e-2, mean=linear, input_transform=inward, output_transform=outward)
    else:
        gp = ExactGP(smooth, X, Y, 1e-2)
    if kind == "prior":
        paths = draw_prior(smooth, 4, input_dim=2, seed=0)
    else:
        settings = {"kept factor": dict(solver=Cholesky(keep=True)), "lattice": dict(domain=(-0.5, 1.5))}.get(kind, {})
        settings |= dict(features="cosine") if kind == "cosines" else {}
        paths = draw(gp, 4, seed=0, **settings)
    y = torch.linspace(-1, 1, paths.at(what).shape[1], dtype=DOUBLE)
    given = paths.condition_on(what, y, noise=0.0)
    scale = float(paths.at(what).abs().max())
    torch.testing.assert_close(given.at(what), y.expand(4, -1), atol=1e-5 * scale, rtol=0)
    assert given.update.num_data == paths.update.num_data + len(y)


def test_functionals_of_paths_are_their_gradients_sums_and_averages():
    paths = draw(model(), 5, seed=0)
    f, df = paths.value_and_grad(LATER)
    torch.testing.assert_close(paths.at(observe.value(LATER)), f)
    torch.testing.assert_close(paths.at(observe.derivative(LATER, 1)), df[..., 1])
    torch.testing.assert_close(paths.at(observe.gradient(LATER)), df.flatten(1))
    weights = points(3, 7, seed=5)
    torch.testing.assert_close(paths.at(observe.combine(LATER.expand(3, -1, -1), weights)), f @ weights.mT)
    grid = (torch.arange(400, dtype=DOUBLE) + 0.5) / 400
    inside = paths(torch.cartesian_prod(0.2 + 0.3 * grid, 0.1 + 0.4 * grid)).mean(1)
    torch.testing.assert_close(paths.at(observe.mean([[0.2, 0.1]], [[0.5, 0.5]]))[:, 0], inside, atol=1e-5, rtol=0)
    whole = paths.at(observe.integral([[0.2, 0.1]], [[0.5, 0.5]]))[:, 0]
    torch.testing.assert_close(whole, 0.12 * inside, atol=1e-6, rtol=0)


def test_sums_and_multiples_of_functionals_are_those_of_their_values():
    paths = draw(model(), 3, seed=0)
    a, b = observe.derivative(LATER, 0), observe.value(LATER)
    torch.testing.assert_close(paths.at(2.0 * a - b), 2 * paths.at(a) - paths.at(b))
    torch.testing.assert_close(paths.at(a * torch.arange(7)), paths.at(a) * torch.arange(7))
    torch.testing.assert_close(paths.at(np.float64(2.0) * a / 4), paths.at(a) / 2)
    torch.testing.assert_close(paths.at(cast(Any, sum([a, b]))), paths.at(a) + paths.at(b))


def test_rows_of_functionals_are_functionals():
    paths = draw(model(), 3, seed=0)
    what = observe.combine(LATER.expand(4, -1, -1), points(4, 7, seed=4)) + observe.derivative(LATER[:4], 0)
    torch.testing.assert_close(paths.at(what[-1]), paths.at(what)[:, -1:])
    torch.testing.assert_close(paths.at(observe.stack(list(what))), paths.at(what))
    torch.testing.assert_close(paths.at(observe.stack(row for row in what)), paths.at(what))
    assert len(observe.stack(what)) == 4
    with pytest.raises(IndexError):
        what[4]


def test_functionals_in_blocks_are_those_at_once(monkeypatch):
    paths = draw(model(), 3, seed=0)
    what = observe.stack([observe.gradient(LATER), observe.combine(LATER.expand(9, -1, -1), points(9, 7, seed=6))])
    whole = paths.at(what)
    monkeypatch.setattr("matheron.paths.functionals.MEMORY_BUDGET", 2000)
    torch.testing.assert_close(paths.at(what), whole, atol=1e-12, rtol=1e-12)


def test_every_output_is_observed_where_none_is_named():
    kernel = K.Coregional(K.RBF(0.5), [[1.0, 0.5], [0.5, 1.0]])
    gp = ExactGP(
        kernel, [observe.value(X), observe.derivative(Z, 0)], [torch.stack([Y, -Y], 1), torch.zeros(6, 2)], 1e-3
    )
    paths = draw(gp, 4)
    assert paths.at(observe.gradient(LATER)).shape == (4, 14, 2)
    assert paths.at(observe.gradient(LATER, output=1)).shape == (4, 14)
    each = torch.tensor([0, 1, 0, 1, 0, 1, 0])
    f = paths.value_and_grad(LATER)[1][..., 0]  # [s, n, t]
    own = f.gather(-1, each[:, None].expand(4, 7, 1))[..., 0]
    torch.testing.assert_close(paths.at(observe.derivative(LATER, 0, output=each)), own)


@pytest.mark.parametrize("paths", ["independent", "selected"])
def test_slopes_of_one_of_several_models_are_given_to_it(paths):
    several: Any = draw(
        matheron.Outputs([ExactGP(K.RBF(0.5), X, Y, 1e-2), ExactGP(K.RBF(0.7), X, -Y, 1e-2)]), 4, seed=0
    )
    if paths == "independent":
        given = several.condition_on(observe.derivative(Z, 0, output=1), [0.5] * 6, noise=0.0)
        got = given.at(observe.derivative(Z, 0, output=1))
        assert torch.equal(given(LATER)[..., 0], several(LATER)[..., 0])
    else:
        given = several[..., 1].condition_on(observe.derivative(Z, 0), [0.5] * 6, noise=0.0)
        got = given.at(observe.derivative(Z, 0))
    torch.testing.assert_close(got, torch.full((4, 6), 0.5, dtype=DOUBLE), atol=1e-8, rtol=0)


def test_targets_may_be_each_paths_own():
    paths = draw(model(), 3, seed=0)
    y = torch.arange(21, dtype=DOUBLE).reshape(3, 7)
    given = paths.condition_on(observe.derivative(LATER, 1), y, noise=0.0)
    torch.testing.assert_close(given.at(observe.derivative(LATER, 1)), y, atol=1e-7, rtol=0)


def test_targets_and_noise_of_gradients_may_have_a_row_for_each_point():
    paths, y, noise = draw(model(), 6, seed=0), points(6, seed=4), points(6, seed=5)
    given = paths.condition_on(observe.gradient(LATER[:6]), y, noise=0.0)  # as many points as paths
    torch.testing.assert_close(given.at(observe.gradient(LATER[:6])), y.flatten().expand(6, -1), atol=1e-6, rtol=0)
    one = ExactGP(K.RBF(), observe.gradient(Z), y, noise)
    both = ExactGP(K.RBF(), [observe.value(X[:1]), observe.gradient(Z)], [1.0, y], [0.1, noise])
    assert torch.equal(one.noise, noise.flatten())
    assert torch.equal(both.noise[1:], noise.flatten())
    assert torch.equal(both.train_targets[1:], y.flatten())
    two = K.Coregional(K.RBF(), [[1.0, 0.5], [0.5, 1.0]])
    rows = ExactGP(two, [observe.value(X[:1]), observe.derivative(Z[:1], 0)], [[[1.0, 2.0]], [[3.0, 4.0]]], [0.1, 0.2])
    assert rows.noise.tolist() == [0.1, 0.1, 0.2, 0.2]


def test_a_slope_under_an_input_transform_that_is_not_affine_is_met():
    paths = draw(ExactGP(K.RBF(0.9), X, Y, 1e-3, input_transform=transforms.Log()), 3, seed=0)
    given = paths.condition_on(observe.derivative(Z, 0), [0.3] * 6, noise=0.0)
    torch.testing.assert_close(
        given.at(observe.derivative(Z, 0)), torch.full((3, 6), 0.3, dtype=DOUBLE), atol=1e-8, rtol=0
    )


def test_models_and_paths_are_saved(tmp_path):
    gp = ExactGP(K.RBF(0.5), [observe.gradient(Z), observe.mean(X, X + 0.1)], torch.zeros(24), 1e-2)
    gp.save(tmp_path / "gp.safetensors")
    again = matheron.load(tmp_path / "gp.safetensors")
    assert isinstance(again, ExactGP)
    paths = draw(again, 3, seed=0)
    assert torch.equal(paths(LATER), draw(gp, 3, seed=0)(LATER))
    paths.save(tmp_path / "paths.safetensors")
    loaded = matheron.load(tmp_path / "paths.safetensors")
    assert torch.equal(loaded(LATER), paths(LATER))
    more = loaded.condition_on(observe.derivative(LATER, 0), [0.0] * 7, noise=0.0)
    assert float(more.at(observe.derivative(LATER, 0)).abs().max()) < 1e-6


def test_single_precision_has_its_digits():
    wide = draw(model(), 3, seed=0)
    narrow = draw(model(), 3, seed=0, dtype=torch.float32)
    assert narrow.dtype == torch.float32
    torch.testing.assert_close(narrow(LATER).double(), wide(LATER), atol=1e-3, rtol=0)
    torch.testing.assert_close(wide.float()(LATER).double(), wide(LATER), atol=1e-3, rtol=0)


def test_observations_of_every_kind_in_single_precision():
    """Features are chosen with waves in single precision and factors of derivatives and averages in double."""
    gap = observe.derivative(Z, (0, 1)) - 0.1 * observe.derivative(Z, 0)
    mixture = [observe.value(X), gap, observe.mean(Z, Z + 0.2)]
    y = torch.cat([Y, torch.zeros(12, dtype=DOUBLE)])
    wide, narrow = (
        draw(ExactGP(K.RBF(0.7), [part.to(dtype) for part in mixture], y.to(dtype), noise=1e-2), 3, seed=0)
        for dtype in (DOUBLE, torch.float32)
    )
    torch.testing.assert_close(narrow.mean(LATER).double(), wide.mean(LATER), rtol=0, atol=1e-4)


@pytest.mark.parametrize("features", ["cosine", "sobol"])
def test_gradients_reach_hyperparameters(features: str):
    def total(lengthscale: float) -> tuple[Tensor, Tensor]:
        at = torch.tensor(lengthscale, dtype=DOUBLE, requires_grad=True)
        paths = draw(model(K.Matern(2.5, at)), 3, detach=False, seed=0, features=features)
        return paths(LATER).sum(), at

    value, at = total(0.5)
    (slope,) = torch.autograd.grad(value, at)
    h = 1e-5
    expected = (total(0.5 + h)[0] - total(0.5 - h)[0]) / (2 * h)
    torch.testing.assert_close(slope, expected.detach(), rtol=1e-4, atol=0)


@pytest.mark.parametrize("inward", [None, transforms.Log()], ids=["a record", "an input transform"])
def test_functionals_of_paths_are_differentiated_in_their_points_and_boxes(inward):
    paths = draw(ExactGP(K.RBF(0.7), X, Y, 1e-2, input_transform=inward), 3, seed=0)

    def total(z: Tensor) -> Tensor:
        what = [observe.gradient(z), observe.mean(z, z + 0.1), observe.combine(z[None], torch.ones(1, len(z)))]
        return paths.at([*what, observe.derivative(z, (0, 1))]).sum()

    z, direction = LATER.clone().requires_grad_(), points(7, seed=6)
    (slope,) = torch.autograd.grad(total(z), z)
    expected = (total(LATER + 1e-5 * direction) - total(LATER - 1e-5 * direction)) / 2e-5
    torch.testing.assert_close((slope * direction).sum(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(torch.func.jacrev(total)(LATER), slope)
    assert not paths.at(observe.gradient(LATER)).requires_grad


def test_functionals_of_paths_are_differentiated_in_hyperparameters():
    def total(lengthscale: float) -> tuple[Tensor, Tensor]:
        at = torch.tensor(lengthscale, dtype=DOUBLE, requires_grad=True)
        paths = draw(model(K.RBF(at)), 3, detach=False, seed=0, features="cosine")
        return paths.at([observe.gradient(LATER), observe.mean(LATER, LATER + 0.1)]).sum(), at

    value, at = total(0.5)
    expected = (total(0.5 + 1e-5)[0] - total(0.5 - 1e-5)[0]) / 2e-5
    torch.testing.assert_close(torch.autograd.grad(value, at)[0], expected.detach(), rtol=1e-4, atol=0)


def test_the_likelihood_and_what_is_left_out_are_those_of_the_dense_formulas():
    gp = model()
    K_nn = K.coupled_covariance(gp.kernel, gp.sites, gp.sites) + gp.noise.diag()
    y = gp.train_targets
    expected = torch.distributions.MultivariateNormal(torch.zeros_like(y), K_nn).log_prob(y)
    torch.testing.assert_close(matheron.log_marginal_likelihood(gp), expected)
    keep = torch.arange(1, len(y))
    weights = torch.linalg.solve(K_nn[1:, 1:], K_nn[1:, 0])
    torch.testing.assert_close(matheron.leave_one_out(gp).mean[0], weights @ y[keep])


def test_diagnosis_knows_the_bases_of_models_of_functionals():
    gp = model(noise=(1e-2, 1e-2))
    diagnosis = matheron.diagnose(draw(gp, 1000, seed=0), gp, LATER)
    assert diagnosis.basis is not None
    assert diagnosis.basis.w2 < 0.1 * math.sqrt(float(matheron.samplers.moments(gp, LATER).covariance.trace()))


def test_refreshed_paths_keep_their_values():
    paths = draw(model(), 3, seed=0)
    fresh = paths.refreshed(LATER[:2])
    torch.testing.assert_close(fresh(LATER[:2]), paths(LATER[:2]), atol=1e-6, rtol=0)


def test_averages_take_as_many_nodes_as_the_kernel_needs():
    lower, upper = torch.zeros(1, 1, dtype=DOUBLE), torch.ones(1, 1, dtype=DOUBLE)
    smooth = ExactGP(K.RationalQuadratic(2.0, 5.0), observe.mean(lower, upper), [1.0], 0.1)
    wiggly = ExactGP(K.RationalQuadratic(2.0, 0.05), observe.mean(lower, upper), [1.0], 0.1)
    assert len(smooth.sites.points) < len(wiggly.sites.points)
    h = (torch.arange(4000, dtype=DOUBLE) + 0.5) / 4000
    variance = (
        2 * ((1 - h) * (1 + 0.25 * (h / 0.05) ** 2) ** -2).mean()
    )  # of an average: the density of |x - x'| is 2 (1 - h)
    torch.testing.assert_close(K.coupled_diagonal(wiggly.kernel, wiggly.sites)[0], variance, rtol=1e-5, atol=0)


def test_rough_kernels_warn_where_averages_are_not_found():
    with pytest.warns(observe.QuadratureWarning, match="nodes"):
        ExactGP(K.Matern(0.5, 0.01), observe.mean([[0.0, 0.0]], [[1.0, 1.0]]), [1.0], 0.1)


class Warped(K.Kernel):
    """A kernel of a user's own, without a closed form for its derivatives."""

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return K.Matern(2.5, 0.5).to(x).forward(x + 0.1 * (3 * x).sin(), z + 0.1 * (3 * z).sin())

    def features(self, num_features, generator):
        prior = draw_prior(K.Matern(2.5, 0.5), 1, input_dim=2, num_features=num_features, generator=generator)
        return lambda x: prior.prior.features(x + 0.1 * (3 * x).sin())[0]


def test_kernels_of_ones_own_are_differentiated_automatically():
    gp = ExactGP(Warped(), [observe.value(X), observe.gradient(Z)], [Y, torch.zeros(6, 2)], noise=1e-3)
    paths = draw(gp, 3, seed=0)
    given = paths.condition_on(observe.gradient(LATER), torch.zeros(14), noise=0.0)
    assert float(given.at(observe.gradient(LATER)).abs().max()) < 1e-5


class WithFeatures(K.Kernel):
    """Kernels of a user's own, whose covariance torch cannot differentiate."""

    def features(self, num_features, generator):
        return draw_prior(K.RBF(), 1, input_dim=2, num_features=num_features, generator=generator).prior.features


class WithCdist(WithFeatures):
    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return (-0.5 * torch.cdist(x, z).square()).exp()


class WithNumPy(WithFeatures):
    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        gaps = x.detach().numpy()[..., :, None, :] - z.detach().numpy()[..., None, :, :]
        return torch.from_numpy(np.exp(-0.5 * (gaps**2).sum(-1)))


class WithRoot(WithFeatures):
    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        r = (x[..., :, None, :] - z[..., None, :, :]).square().sum(-1).sqrt()
        return (1 + r) * (-r).exp()


def many_kinds() -> ExactGP:
    """A model of weighted sums, of which no two are the same about their points."""
    return ExactGP(
        K.RBF(0.5), observe.combine(points(60, seed=4).reshape(20, 3, 2), points(20, 3)), torch.zeros(20), 0.1
    )


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: ExactGP(K.Matern(0.5), observe.gradient(Z), torch.zeros(12), 0.1), TypeError, "smoother kernel"),
        (lambda: ExactGP(K.Matern(1.5), observe.derivative(Z, (0, 0)), torch.zeros(6), 0.1), TypeError, "order 2"),
        (lambda: ExactGP(K.RBF(), observe.gradient(Z), torch.zeros(6), 0.1), ValueError, r"expected \[12\]"),
        (lambda: ExactGP(K.RBF(), cast(Any, [observe.value(X), X]), [Y, Y], 0.1), TypeError, r"observe.value\(X\)"),
        (
            lambda: ExactGP(K.RBF(), [observe.value(X), observe.value(X[:, :1])], [Y, Y], 0.1),
            ValueError,
            "as many inputs",
        ),
        (lambda: ExactGP(K.RBF(), observe.value(X, output=1), Y, 0.1), ValueError, "one output"),
        (lambda: ExactGP(K.RBF(), observe.value(X), Y, 0.1, tasks=[0] * 12), ValueError, "tasks"),
        (lambda: model().train_inputs, TypeError, "functionals"),
        (lambda: observe.derivative(X, 2), ValueError, "below 2"),
        (lambda: observe.derivative(X, (0, 0, 0)), ValueError, "second derivative"),
        (lambda: observe.derivative(X, cast(Any, 1.0)), ValueError, "a coordinate, or two"),
        (lambda: observe.value(X) + observe.value(X, output=0), ValueError, "output= for both"),
        (lambda: observe.value(X) * float("nan"), ValueError, "finite"),
        (lambda: draw(model(), 2)(cast(Any, observe.gradient(X))), TypeError, r"paths.at\(...\)"),
        (
            lambda: draw(ExactGP(WithCdist(), observe.gradient(Z), torch.zeros(12), 0.1), 2),
            TypeError,
            "not torch.cdist",
        ),
        (lambda: draw(ExactGP(WithNumPy(), observe.gradient(Z), torch.zeros(12), 0.1), 2), TypeError, "no NumPy"),
        (
            lambda: draw(ExactGP(WithRoot(), observe.gradient(Z), torch.zeros(12), 0.1), 2),
            ValueError,
            "coincident points",
        ),
        (lambda: observe.combine(X, X), ValueError, r"\[n, p, d\]"),
        (lambda: observe.mean(X, X), ValueError, "above those of lower"),
        (lambda: observe.value(X, output=[0, 1]), ValueError, "one for each row"),
        (lambda: draw(model(), 2).at(cast(Any, X)), TypeError, r"paths\(x\)"),
        (lambda: draw(model(), 2).at(observe.value(X[:, :1])), ValueError, "2 dimensions"),
        (lambda: draw(many_kinds(), 2, solver="lattice", domain=(0, 1)), ValueError, "not translates of 16"),
        (lambda: draw(model(), 2).derivative(2), ValueError, "below 2"),
        (lambda: given_slopes(ExactGP(K.Matern(0.5), X, Y, 0.1)), TypeError, "smoother kernel"),
        (lambda: given_slopes(SparseGP(K.Matern(0.5), Z, q_mean=Y[:6])), TypeError, "smoother kernel"),
        (lambda: given_slopes(Batch([ExactGP(K.RBF(), X, Y, 0.1)])), TypeError, "each of paths.members"),
        (
            lambda: draw(ExactGP(K.RBF(), X, Y.abs(), 0.1, output_transform=transforms.Exp()), 2).condition_on(
                observe.derivative(Z, 0), [0.0] * 6, noise=0.1
            ),
            TypeError,
            "not affine",
        ),
        (
            lambda: draw(ExactGP(K.RBF(), X, Y, 0.1, input_transform=transforms.Log()), 2).condition_on(
                observe.derivative(Z, (0, 0)), [0.0] * 6, noise=0.1
            ),
            TypeError,
            "second derivatives",
        ),
    ],
)
def test_refusals_say_what_to_do(make, error, match):
    with pytest.raises(error, match=match):
        make()


def test_smoothness_counts_by_coordinate():
    kernel = K.Matern(0.5).on(0) * K.RBF(0.5).on(1)
    ExactGP(kernel, observe.derivative(Z, 1), torch.zeros(6), 0.1)
    with pytest.raises(TypeError, match="smoother"):
        ExactGP(kernel, observe.derivative(Z, 0), torch.zeros(6), 0.1)


SEVERAL = [observe.gradient(LATER), observe.mean(LATER, LATER + 0.2), observe.derivative(LATER, (0, 1))]


@pytest.mark.parametrize("outputs", [1, 2])
def test_moments_of_functionals_are_those_of_the_dense_formulas(outputs: int):
    B = torch.tensor([[1.0, 0.5], [0.5, 2.0]], dtype=DOUBLE)
    kernel = K.RBF(0.5) if outputs == 1 else K.Coregional(K.RBF(0.5), B)
    Ys = Y if outputs == 1 else torch.stack([Y, -Y], dim=1)
    inward = transforms.Affine([2.0, 0.5], [0.1, -0.3])
    outward = transforms.Affine(3.0, 7.0) if outputs == 1 else transforms.Affine([3.0, -2.0], [7.0, 1.0])
    mean = matheron.means.LinearMean(
        torch.tensor([1.0, -2.0], dtype=DOUBLE).expand(outputs, 2), torch.ones(outputs, dtype=DOUBLE)
    )
    gp = ExactGP(kernel, observe.value(X), Ys, 1e-2, mean, input_transform=inward, output_transform=outward)
    got = matheron.samplers.moments(gp, SEVERAL)
    # By finite differences and sums of the closed form at points, in the user's units.
    h, n = 1e-3, len(LATER)
    axes = h * torch.eye(2, dtype=DOUBLE)
    slopes = torch.stack([LATER[:, None] + axes, LATER[:, None] - axes], dim=2).flatten(0, 1)  # [2 n, 2, d]
    nodes = torch.cartesian_prod(*[(torch.arange(12, dtype=DOUBLE) + 0.5) / 12] * 2) * 0.2  # [144, d]
    corners = torch.stack([axes.sum(0), axes[0] - axes[1], axes[1] - axes[0], -axes.sum(0)])
    sums = [
        observe.combine(slopes, torch.tensor([[0.5 / h, -0.5 / h]], dtype=DOUBLE).expand(2 * n, 2)),
        observe.combine(LATER[:, None] + nodes, torch.full((n, 144), 1 / 144, dtype=DOUBLE)),
        observe.combine(
            LATER[:, None] + corners, torch.tensor([[0.25, -0.25, -0.25, 0.25]], dtype=DOUBLE).expand(n, 4) / h**2
        ),
    ]
    whole = observe.Functionals.concatenated(sums)
    at = matheron.samplers.moments(gp, whole.points)  # [N(, t)]
    W = torch.zeros(len(whole), len(whole.points), dtype=DOUBLE)
    W[whole.rows, torch.arange(len(whole.points))] = whole.weights
    expected = W @ at.mean
    assert got.mean.shape == expected.shape == ((28,) if outputs == 1 else (28, 2))
    torch.testing.assert_close(got.mean, expected, atol=2e-3, rtol=2e-4)
    C = at.covariance.reshape(len(W.mT), outputs, len(W.mT), outputs)
    C = torch.einsum("ni,itju,mj->ntmu", W, C, W).reshape(got.covariance.shape)
    torch.testing.assert_close(got.covariance, C, atol=2e-3 * float(C.abs().max()), rtol=0)
    if outputs == 2:
        one = matheron.samplers.moments(gp, observe.gradient(LATER, output=1))
        torch.testing.assert_close(one.mean, got.mean[:14, 1])
        torch.testing.assert_close(one.covariance, got.covariance[:14, 1, :14, 1])


def test_moments_of_functionals_are_those_of_draws():
    gp = model(K.RBF(0.5))
    paths = draw(gp, 4000, seed=0)
    expected = matheron.samplers.moments(gp, SEVERAL)
    assert_moments(paths.at(SEVERAL), expected.mean, expected.covariance, atol=1e-3)
    sparse = matheron.SparseGP(gp.kernel, X, torch.zeros(12), torch.eye(12) * 0.3)
    sparse_moments = matheron.samplers.moments(sparse, SEVERAL)
    assert_moments(draw(sparse, 4000, seed=0).at(SEVERAL), *sparse_moments, atol=1e-3)


def test_moments_refuse_outputs_of_several_models_and_rough_kernels():
    several = matheron.Outputs([ExactGP(K.RBF(0.5), X, Y, 1e-2), ExactGP(K.RBF(0.7), X, -Y, 1e-2)])
    both = matheron.samplers.moments(several, observe.gradient(LATER))
    assert both.mean.shape == (14, 2)
    alone = matheron.samplers.moments(several.models[1], observe.gradient(LATER))
    torch.testing.assert_close(both.mean[:, 1], alone.mean)
    with pytest.raises(TypeError, match="name no output"):
        matheron.samplers.moments(several, observe.gradient(LATER, output=1))
    with pytest.raises(TypeError, match="smoother kernel"):
        matheron.samplers.moments(ExactGP(K.Matern(0.5), X, Y, 0.1), observe.gradient(LATER))
    with pytest.raises(TypeError, match="not affine"):
        gp = ExactGP(K.RBF(), X, Y, 0.1, output_transform=transforms.Exp())
        matheron.samplers.moments(gp, observe.gradient(LATER))
