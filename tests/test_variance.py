"""Variances of the posterior itself: exact from a kept factor, or an estimate from the paths with its error."""

import pytest
import torch

import matheron
from examples import gen, model, paths_of, rand, randn
from matheron.solvers import Cholesky
from matheron.transforms import Exp
from standard import exact_moments

KEEP = dict(num_features=16, solver=Cholesky(keep=True))


def drawn(gp, s=3):
    return matheron.draw(gp, s, generator=gen(7), **KEEP)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["exact", "exact, composite", "exact, coupled", "exact, transforms"])
def test_the_variance_is_the_closed_form(name):
    gp, x = model(name), rand(7, 2)
    inner = x if gp.input_transform is None else gp.input_transform(x)
    scale = 3.0 if gp.output_transform is not None else 1.0  # of the example's output transform
    mean, cov = exact_moments(gp, inner)
    expected = scale**2 * cov.diagonal().reshape(mean.shape)
    paths = drawn(gp)
    torch.testing.assert_close(paths.variance(x), expected, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(paths.std(x), expected.sqrt(), rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(paths[1].variance(x), expected, rtol=1e-8, atol=1e-10)


def test_the_variance_of_paths_given_more_data_is_that_of_all_the_data():
    gp, new, x = model("exact"), rand(4, 2, seed=9), rand(6, 2)
    given = drawn(gp).condition_on(new, randn(4), noise=0.2, generator=gen())
    X, noise = torch.cat([gp.train_inputs, new]), torch.cat([gp.noise, torch.full((4,), 0.2, dtype=torch.float64)])
    whole = matheron.ExactGP(gp.kernel, X, torch.zeros(len(X), dtype=torch.float64), noise)
    torch.testing.assert_close(given.variance(x), exact_moments(whole, x)[1].diagonal(), rtol=1e-8, atol=1e-10)


def test_joined_paths_have_the_variance_of_their_members():
    x, one, two = rand(5, 2), model("exact"), model("exact, composite")
    outputs = drawn(matheron.Outputs([one, two]))
    each = [exact_moments(gp, x) for gp in (one, two)]
    expected = torch.stack([cov.diagonal() for _, cov in each], dim=-1)
    torch.testing.assert_close(outputs.variance(x), expected, rtol=1e-8, atol=1e-10)
    ensemble = drawn(matheron.Ensemble([one, two]), 4)  # two paths of each: the mixture's
    means = torch.stack([mean for mean, _ in each])
    mixture = expected.mean(-1) + means.var(0, unbiased=False)
    torch.testing.assert_close(ensemble.variance(x), mixture, rtol=1e-8, atol=1e-10)
    selected = drawn(matheron.SelectedOutputs(model("exact, coupled"), [1]))
    whole = drawn(model("exact, coupled"))
    torch.testing.assert_close(selected.variance(x), whole.variance(x)[:, 1])


def test_the_estimate_is_within_its_error_and_needs_no_factor():
    gp, x = model("exact"), rand(5, 2)
    paths = matheron.draw(gp, 4000, num_features=512, generator=gen(), paths_per_basis=8)
    value, error = paths.variance(x, samples=True)
    exact = exact_moments(gp, x)[1].diagonal()
    assert ((value - exact).abs() < 5 * error).all() and (error < 0.05 * exact).all()
    deviation, error = paths.std(x, samples=True)
    assert ((deviation - exact.sqrt()).abs() < 5 * error).all()
    torch.testing.assert_close(deviation, value.sqrt())


def test_what_has_no_closed_form_says_what_to_do():
    x = rand(3, 2)
    with pytest.raises(
        TypeError, match=r"of a sparse posterior use matheron\.samplers\.moments\(model, x\), or use samples=True"
    ):
        paths_of("sparse").variance(x)
    bent = matheron.ExactGP(model("exact").kernel, rand(4, 2), randn(4), 0.1, output_transform=Exp())
    paths = drawn(bent, 50)
    with pytest.raises(TypeError, match="samples=True"):
        paths.variance(x)
    assert (paths.variance(x, samples=True).value > 0).all()
    linear = matheron.samplers.weight_space(model("exact"), 5, num_features=16)
    with pytest.raises(TypeError, match="samples=True"):
        linear.std(x)
    with pytest.raises(ValueError, match="at least two paths, got 1"):
        linear[0].variance(x, samples=True)
    with pytest.raises(ValueError, match=r"variance: expected points \[n, 2\]"):
        paths.variance(rand(50, 3, 2))
