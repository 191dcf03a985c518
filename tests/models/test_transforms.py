"""Transforms: each is undone by its inverse, and its derivative is autograd's."""

import copy
import math

import pytest
import torch

from matheron.models.transforms import (
    Affine,
    BoxCox,
    Chain,
    Columns,
    Exp,
    Imputed,
    Inverse,
    Kumaraswamy,
    Log,
    Masked,
    Monomials,
    OneHot,
    Power,
    Projected,
    Round,
    SignedExp,
    YeoJohnson,
)

WARP = Kumaraswamy(a=[0.7, 2.0, 1.0], b=[1.5, 0.4, 1.0], mask=[True, True, False])
TRANSFORMS = {  # with whether it is affine
    "affine": (Affine(2.0, -1.0), True),
    "affine, one a coordinate": (Affine([2.0, -0.5, 3.0], [0.0, 1.0, 2.0]), True),
    "exp": (Exp(), False),
    "signed exp": (Chain([Affine(1.0, -0.5), SignedExp()]), False),
    "power": (Power(-1.5), False),
    "exp of some": (Masked(Exp(), [True, False, True]), False),
    "affine of some": (Masked(Affine(2.0, 1.0), [True, False, True]), True),
    "log": (Log(), False),
    "log to base ten of some": (Log(10.0, mask=[True, False, True]), False),
    "warp": (WARP, False),
    "warp of all": (Kumaraswamy(1.7, 0.6), False),
    "a chain": (Chain([Affine(0.5, 0.1), WARP, Affine(3.0), Exp()]), False),
    "an affine chain": (Chain([Affine(0.5, 0.1), Affine([1.0, 2.0, -3.0])]), True),
    "no chain": (Chain([]), True),
    "an inverse": (Inverse(Chain([Affine(0.5, 0.1), SignedExp()])), False),
    "powers of both signs": (Chain([Affine(4.0, -2.0), YeoJohnson([0.0, 1.3, 2.0])]), False),
    "powers of positive numbers": (BoxCox([0.0, -0.7, 1e-9]), False),
    "nothing is missing": (Imputed([1.0, 2.0, 3.0]), False),
}
every_transform = pytest.mark.parametrize("name", TRANSFORMS)


def points() -> torch.Tensor:
    return torch.rand(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 0.9 + 0.05


@every_transform
def test_inverse_undoes_it_both_ways(name):
    transform, affine = TRANSFORMS[name]
    x = points()
    y = transform(x)
    assert y.shape == x.shape and transform.affine is affine
    torch.testing.assert_close(transform.inverse(y), x)
    torch.testing.assert_close(transform(transform.inverse(y)), y)


@every_transform
def test_derivative_is_autograd_s(name):
    transform, _ = TRANSFORMS[name]
    x = points().requires_grad_()
    (expected,) = torch.autograd.grad(transform(x).sum(), x)
    torch.testing.assert_close(transform.derivative(x.detach()).expand_as(x), expected)
    assert torch.autograd.gradcheck(transform, x)


@every_transform
def test_transforms_move_to_another_dtype_and_are_copied(name):
    transform, _ = TRANSFORMS[name]
    x = points()
    single = transform.to(torch.float32)
    assert single(x.float()).dtype == torch.float32
    torch.testing.assert_close(single(x.float()).double(), transform(x), rtol=1e-4, atol=1e-5)
    assert torch.equal(copy.deepcopy(transform)(x), transform(x))


def test_values_are_the_formulas():
    x = torch.tensor([[0.25, 0.5, 4.0]], dtype=torch.float64)
    assert Affine([2.0, 4.0, 1.0], 1.0)(x).tolist() == [[1.5, 3.0, 5.0]]
    torch.testing.assert_close(Log(2.0)(x), x.log2())
    warped = 1 - (1 - 0.25**0.7) ** 1.5
    assert float(WARP(x)[0, 0]) == pytest.approx(warped, abs=1e-6)  # eps moves it by so much
    assert float(WARP(x)[0, 2]) == 4.0
    assert float(Chain([Exp(), Affine(2.0)])(x)[0, 0]) == pytest.approx(2 * math.exp(0.25))


def test_warp_is_flat_outside_its_interval_as_the_clamp_makes_it():
    x = torch.tensor([[-0.5, 1.5, 7.0], [0.0, 1.0, -7.0]], dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(WARP(x).sum(), x)
    torch.testing.assert_close(WARP.derivative(x.detach()), expected)
    assert expected[0, :2].tolist() == [0, 0] and expected[:, 2].tolist() == [1, 1]
    assert torch.isfinite(expected).all()


def test_coordinates_that_a_log_leaves_alone_may_be_zero_or_negative():
    log = Log(mask=[True, False, False])
    x = torch.tensor([[1.0, 0.0, -2.0]], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(log(x).sum(), x)
    assert log(x).tolist() == [[0.0, 0.0, -2.0]] and gradient.tolist() == [[1, 1, 1]]
    assert log.derivative(x.detach()).tolist() == [[1, 1, 1]]


def test_refuses_what_cannot_be_undone():
    with pytest.raises(ValueError, match="scale: expected numbers other than zero"):
        Affine([1.0, 0.0])
    with pytest.raises(ValueError, match="a: expected positive numbers"):
        Kumaraswamy(0.0, 1.0)


def test_rounded_inputs_are_whole_numbers_and_gradients_pass_straight_through():
    x = torch.tensor([[0.4, 2.6, -1.2, 0.3, 0.5]], dtype=torch.float64, requires_grad=True)
    rounded = Round([False, True, True, False, False], groups=[[0, 3, 4]])
    assert rounded(x).tolist() == [[0, 3, -1, 0, 1]]
    (gradient,) = torch.autograd.grad(rounded(x).sum(), x)
    assert torch.equal(gradient, torch.ones_like(x)) and torch.equal(rounded.derivative(x), gradient)
    assert torch.equal(rounded(rounded.inverse(rounded(x))), rounded(x))


def test_steps_of_some_width_are_smooth():
    soft = Round([True, False], tau=0.1)
    x = torch.tensor([[0.45, 0.3], [2.9, 7.5]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(soft, x)
    torch.testing.assert_close(soft.derivative(x.detach()), torch.autograd.grad(soft(x).sum(), x)[0])
    torch.testing.assert_close(Round([True, False], tau=1e-3)(x)[:, 0], x[:, 0].round())


def test_a_power_has_an_exponent():
    with pytest.raises(ValueError, match="exponent: expected a number other than zero, got 0"):
        Power(0)


ROW_MAPS = {
    "columns": Columns([Exp(), Affine([2.0, 3.0]), Monomials([[1, 1]])], [[2], [0, 0], [0, 1]], num_inputs=3),
    "categories": OneHot([1.0, 2.0, 0.0], [0, 0, 2], 3, only_known=False, kept=[0, 2]),
    "monomials": Monomials([[0, 0, 0], [2, 0, 1], [0, 3, 0]]),
    "projected": Projected([[1.0, -2.0], [0.5, 0.0], [0.0, 3.0]], [0.1, 0.2]),
    "a chain": Chain([Affine(2.0, -1.0), Monomials([[1, 0, 2], [0, 2, 0]]), Projected([[1.0], [-1.0]], [0.5]), Exp()]),
}


@pytest.mark.parametrize("name", ROW_MAPS)
def test_a_map_of_rows_has_the_vector_jacobian_products_of_autograd(name):
    transform, x = ROW_MAPS[name], (points() - 0.3).requires_grad_()
    y = transform(x)
    cotangent = torch.rand(*x.shape[:-1], 5, y.shape[-1], generator=torch.Generator().manual_seed(1)).to(x)
    found = transform.vjp(x.detach(), cotangent)  # [n, t, d]
    jacobian = torch.stack([torch.autograd.functional.jacobian(transform, row.detach()) for row in x])
    torch.testing.assert_close(found, cotangent @ jacobian)
    assert transform.input_dim(y.shape[-1]) == 3 and not transform.elementwise


@pytest.mark.parametrize("name", [*ROW_MAPS, *TRANSFORMS])
def test_the_image_of_a_box_holds_the_image_of_its_points(name):
    transform = ROW_MAPS[name] if name in ROW_MAPS else TRANSFORMS[name][0]
    low = 0.05 if name in TRANSFORMS else -0.7
    box = torch.tensor([[low] * 3, [0.9] * 3], dtype=torch.float64)
    inside = box[0] + (box[1] - box[0]) * torch.rand(500, 3, generator=torch.Generator().manual_seed(1)).to(box)
    lower, upper = transform.image(box)
    y = transform(inside)
    assert bool(((y >= lower - 1e-12) & (y <= upper + 1e-12)).all())
