"""Observations of averages over blocks, in addition to points (in geostatistics, a change of support)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core.boxes import as_box
from ..core.checks import ArrayLike, as_count, as_noise, as_points, as_tensor
from ..models import ExactGP, observe


def block(lower: ArrayLike, upper: ArrayLike, num: int = 4) -> Tensor:
    """The points `[num^d, d]` that represent a box: the midpoints of num cells along each side.

    >>> from matheron import fields
    >>> fields.block([0.0, 0.0], [1.0, 2.0], num=2)
    tensor([[0.2500, 0.5000],
            [0.2500, 1.5000],
            [0.7500, 0.5000],
            [0.7500, 1.5000]], dtype=torch.float64)
    """
    low, high = as_box((lower, upper), "lower and upper").double()
    middle = (torch.arange(as_count(num, "num"), dtype=torch.float64, device="cpu") + 0.5) / num
    axes = [a + (b - a) * middle for a, b in zip(low, high, strict=True)]
    return torch.cartesian_prod(*axes).reshape(-1, len(low))


def given_averages(gp: ExactGP, blocks: Sequence[ArrayLike], y: ArrayLike, noise: ArrayLike) -> ExactGP:
    """Condition a model also on averages of the field over blocks: y_b = mean of f over block b + eps.

    Each average is one more observation, a weighted sum of values (`observe.combine`). A draw therefore factorises as
    many rows as there are data and blocks, however many points represent a block. Averages over boxes, with as many
    points as the kernel needs, are `observe.mean(lower, upper)`.

    Args:
        gp: the kernel, the mean, and the observations.
        blocks: for each average the points `[q, d]` whose mean it is: `fields.block(...)`, or those of a mesh that
            lie in a polygon.
        y: the averages `[b]`, in the user's units.
        noise: variance of the errors of the averages, one number or `[b]`.

    >>> import torch, matheron
    >>> from matheron import fields, kernels
    >>> gp = matheron.ExactGP(kernels.Matern(1.5, 0.3), X=[[0.1], [0.9]], y=[0.0, 1.0], noise=1e-4)
    >>> cell = fields.block([0.4], [0.6], num=8)
    >>> paths = matheron.draw(fields.given_averages(gp, [cell], [2.0], noise=1e-6), 4, seed=0)
    >>> paths(cell).mean(-1).round(decimals=2)
    tensor([2., 2., 2., 2.], dtype=torch.float64)
    """
    if not isinstance(gp, ExactGP):
        raise TypeError(f"gp: expected an ExactGP, such as matheron.fit returns, got {type(gp).__name__}")
    if gp.num_outputs > 1:
        raise ValueError(f"gp: expected a model of one output, got {gp.num_outputs}")
    like, inward, outward = gp.sites.points.detach().double(), gp.input_transform, gp.output_transform
    if outward is not None and not outward.affine:
        raise ValueError(
            "gp: expected an affine output transform, or none; the mean of a block does not pass through it"
        )
    if len(blocks) < 1:
        raise ValueError("blocks: expected at least one")
    cells = [as_points(b, "blocks", input_dim=gp.input_dim, like=like, names=gp.input_names) for b in blocks]
    if any(len(cell) < 1 for cell in cells):
        raise ValueError("blocks: expected at least one point in each")
    y = as_tensor(y, "y", like=like)
    if y.shape != (len(cells),):
        raise ValueError(f"y: expected [{len(cells)}], one average per block, got {list(y.shape)}")
    noise = as_noise(noise, len(cells), like=like)
    if inward is not None:
        cells = [inward(cell) for cell in cells]
    if outward is not None:
        y, noise = outward.inverse(y[:, None])[:, 0], noise / outward.derivative(y[:, None])[:, 0].square()
    averages = [observe.combine(cell[None], cell.new_full((1, len(cell)), 1 / len(cell))) for cell in cells]
    known = [observe.Functionals.of(gp.sites.to(like.dtype)), *averages]
    return ExactGP(
        gp.kernel,
        observe.Functionals.concatenated(known),
        torch.cat([gp.train_targets.to(like), y]),
        torch.cat([gp.noise.to(like), noise]),
        gp.mean,
        input_transform=inward,
        output_transform=outward,
    ).replaced(input_names=gp.input_names)
