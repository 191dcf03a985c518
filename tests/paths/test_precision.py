"""Digits: rounding costs no more than is expected of it, and is measured where that may be too much."""

import pytest
import torch

from examples import rand, randn
from matheron import ExactGP, Sites, draw
from matheron import kernels as K
from matheron.paths.precision import expected_error
from matheron.solvers import Cholesky, KernelOperator


@pytest.mark.filterwarnings("ignore:k.X, X. . noise is not positive definite")
@pytest.mark.parametrize("noise", [1.0, 0.1, 1e-4, 0.0])
@pytest.mark.parametrize("scale", [1.0, 1e4])
@pytest.mark.parametrize("near", [1.0, 0.01])
def test_what_rounding_is_expected_to_cost_holds_for_what_is_measured(noise, scale, near):
    """Sums in float32 err by no more, and no posterior deviation is less."""
    X, kernel = near * rand(300, 2).sort(0).values.float(), (scale * K.Matern(2.5, 0.3)).float()
    operator = KernelOperator(kernel, Sites(X), torch.full((300,), noise * scale))
    state = Cholesky().init(operator)
    v = state.solve(scale**0.5 * randn(300, 8))[0].mT.contiguous()
    rows = torch.arange(300)
    errors = operator.product_rows(rows, v.float().mT.contiguous()) - operator.product_rows(rows, v.mT.contiguous())
    error, least = expected_error(operator, v.float(), state.largest)
    assert errors.square().mean().sqrt() < error
    assert least == 0 if noise == 0 else 0 < least < float(state.deviations(rows).min())


@pytest.mark.parametrize("noise, measured", [(0.1, False), (1e-4, True)])
def test_digits_are_measured_only_where_they_may_be_too_few(noise, measured, monkeypatch):
    asked = []
    monkeypatch.setattr(KernelOperator, "product_rows", lambda self, rows, V: asked.append(rows) or V[rows])
    draw(ExactGP(K.Matern(2.5, 0.3), rand(300, 2).float(), randn(300).float(), noise), 8, seed=0)
    assert bool(asked) == measured
