"""RasterMean: a raster as a mean function, by bilinear interpolation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..models.means import Mean

if TYPE_CHECKING:
    from xarray import DataArray


class RasterMean(Mean):
    """m(x) `[..., n, 1]` from values `[n1, n2]` on a grid of two axes, each increasing; constant beyond the edges.

    >>> import torch
    >>> from matheron.fields.drift import RasterMean
    >>> mean = RasterMean(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 2.0]), torch.tensor([[0.0, 2.0], [1.0, 3.0]]))
    >>> mean(torch.tensor([[0.5, 1.0], [9.0, 0.0]], dtype=torch.float64))
    tensor([[1.5000],
            [1.0000]], dtype=torch.float64)
    """

    fields = ("coefficients",)

    def __init__(
        self, x_axis: Tensor, y_axis: Tensor, values: Tensor, coefficients: Sequence[float] = (0.0, 1.0)
    ) -> None:
        super().__init__(x_axis=x_axis.double(), y_axis=y_axis.double(), values=values.double())
        self.coefficients = [float(v) for v in coefficients]  # a and b of a + b c(x), in the user's units

    def forward(self, x: Tensor) -> Tensor:
        return self._interpolated(x)[0][..., None]

    def with_gradient(self, x: Tensor) -> tuple[Tensor, Tensor]:
        value, slopes = self._interpolated(x)
        return value[..., None], slopes[..., None, :]

    def _interpolated(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Values `[..., n]` and slopes `[..., n, 2]`."""
        (i, t, dt), (j, s, ds) = (self._cell(x[..., k], axis) for k, axis in enumerate((self.x_axis, self.y_axis)))
        a, b, c, d = self.values[i, j], self.values[i + 1, j], self.values[i, j + 1], self.values[i + 1, j + 1]
        low, high = a + t * (b - a), c + t * (d - c)
        across = ((b - a) * (1 - s) + (d - c) * s) * dt
        return low + s * (high - low), torch.stack([across, (high - low) * ds], dim=-1)

    @staticmethod
    def _cell(x: Tensor, axis: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The cell of each number, where in it, and the derivative of that: zero beyond the edges."""
        i = (torch.searchsorted(axis, x.contiguous()) - 1).clamp(0, len(axis) - 2)
        width = axis[i + 1] - axis[i]
        t = (x - axis[i]) / width
        inside = (t >= 0) & (t <= 1)
        return i, t.clamp(0, 1), inside / width


def as_raster(raster: DataArray) -> tuple[Tensor, Tensor, Tensor]:
    """The axes x, y and values `[x, y]` of an xarray raster `(y, x)`, increasing and without gaps."""
    if getattr(raster, "ndim", 0) != 2 or not hasattr(raster, "coords"):
        raise ValueError("raster: expected an xarray.DataArray of dims (y, x), e.g. rioxarray.open_rasterio(...)[0]")
    y, x = raster.dims
    raster = raster.sortby([y, x])
    values = np.asarray(raster.values, dtype=np.float64).T
    if not np.isfinite(values).all():
        raise ValueError("raster: expected values in every cell, got gaps; fill them, e.g. raster.interpolate_na(...)")
    if min(values.shape) < 2:
        raise ValueError(f"raster: expected at least two cells per side, got {list(values.T.shape)}")
    x_axis, y_axis = (torch.from_numpy(np.array(raster[name].values, dtype=np.float64)) for name in (x, y))
    return x_axis, y_axis, torch.from_numpy(values.copy())
