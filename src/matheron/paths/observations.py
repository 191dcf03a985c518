"""What paths are given: observations in a user's units, checked, and data in the model's own space, one output each."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ..core.checks import ArrayLike, as_noise, as_points, as_real, as_tensor, column_hint
from ..core.sites import Sites, as_tasks
from ..core.value import Value, in_own_memory
from ..models.transforms import Transform

if TYPE_CHECKING:
    from .base import AbstractPaths


class Observations(NamedTuple):
    """Targets `[n]`, or `[s, n]` where each path has its own, at n sites, and noise variances `[n]`.

    They are in a user's units.
    """

    sites: Sites
    y: Tensor
    noise: Tensor

    def only(self, keep: Tensor, outputs: Tensor | None) -> Observations:
        """Some of the observations, of outputs that are numbered anew."""
        return Observations(Sites(self.sites.points[keep], outputs), self.y[..., keep], self.noise[keep])


def observed(
    paths: AbstractPaths, x: ArrayLike, y: ArrayLike, noise: ArrayLike, tasks: ArrayLike | None
) -> Observations:
    """What `condition_on` was given, checked; every output at every point becomes as many observations."""
    like, t = torch.empty(0, dtype=paths.dtype, device=paths.device), paths.num_outputs
    x = as_points(x, "x", input_dim=paths.input_dim, like=like, names=paths.input_names)
    given, y = y, as_tensor(y, "y", like=like)
    several = t > 1 and tasks is None
    shape = (len(x), t) if several else (len(x),)
    if y.shape not in (shape, (paths.num_paths, *shape)):
        hint = column_hint(given) if t == 1 and y.shape == (len(x), 1) else ""
        raise ValueError(f"y: expected {list(shape)} or {[paths.num_paths, *shape]}, got {list(y.shape)}{hint}")
    if several:
        noise = as_real(noise, "noise")
        whole = noise.shape == shape
        noise = noise.reshape(-1) if whole else as_noise(noise, len(x), like=like).repeat_interleave(t)
        tasks = torch.arange(t, device="cpu").repeat(len(x))
        x, y = x.repeat_interleave(t, 0), y.flatten(-2)
    noise = as_noise(noise, len(x), like=like)
    tasks = as_tasks(tasks, len(x), t)
    return Observations(Sites(x, None if tasks is None else tasks.to(paths.device)), y, noise)


def undone(transform: Transform | None, t: int, data: Observations) -> tuple[Tensor, Tensor]:
    """Targets and noise before the output transform; each observation has its own output's."""
    y, noise = data.y, data.noise
    if transform is None:
        return y, noise
    if not transform.affine and bool((noise > 0).any()):
        raise ValueError("noise: under an output transform that is not affine only noise-free data (0) can be undone")
    inner = transform.inverse(y[..., None].expand(*y.shape, t))  # [..., n, t]
    slope = transform.derivative(inner)
    inner, slope = data.sites.own(inner), data.sites.own(slope)
    slope = slope if slope.ndim == 1 else slope[0]  # where there is noise it is the same everywhere
    return inner, torch.where(noise > 0, noise / slope.square(), noise)


class Data(Value):
    """Observations in the model's own space: sites, targets, noise variances `[n]`, and each path's draw of the noise.

    The targets y are `[n]`, or `[s, n]` where each path has its own. The noise of path i is sqrt(noise) xi_i, with
    standard normals xi `[s, n]`.
    """

    shapes = "noise: n, xi: s n"

    def __init__(self, sites: Sites, y: Tensor, noise: Tensor, xi: Tensor) -> None:
        super().__init__(y=in_own_memory(y), noise=in_own_memory(noise), xi=in_own_memory(xi), sites=sites)

    @staticmethod
    def none(like: Tensor, num_outputs: int, s: int) -> Data:
        """No observations of s paths, of the dtype and on the device of points `[*, d]`."""
        empty = like.new_zeros(0)
        return Data(Sites.empty(like, num_outputs), empty, empty, like.new_zeros(s, 0))

    def check(self) -> None:
        n, s = len(self.noise), len(self.xi)
        if self.y.shape not in ((n,), (s, n)) or len(self.sites) != n:
            raise ValueError(
                f"Data: expected sites and targets of {n} observations, got {len(self.sites)} and {list(self.y.shape)}"
            )
        dtypes = {tensor.dtype for tensor in (self.sites.points, self.y, self.noise, self.xi)}
        if len(dtypes) > 1:
            raise ValueError(f"Data: expected tensors of one dtype, got {sorted(map(str, dtypes))}")

    def __len__(self) -> int:
        return len(self.noise)

    @property
    def own_targets(self) -> bool:
        """Whether each path has targets of its own."""
        return self.y.ndim == 2

    def of_paths(self, index: Tensor) -> Data:
        """The same observations, for some of the paths."""
        return Data(self.sites, self.y[index] if self.own_targets else self.y, self.noise, self.xi[index])

    def rows(self, keep: list[int]) -> Data:
        """Some of the observations."""
        index = torch.tensor(keep, dtype=torch.long, device=self.noise.device)
        return Data(self.sites[index], self.y[..., keep], self.noise[keep], self.xi[:, keep])

    def joined(self, new: Data) -> Data:
        """These observations, then new ones."""
        s, y, more = len(new.xi), self.y, new.y
        if y.ndim == 2 or more.ndim == 2:
            y, more = y.expand(s, -1), more.expand(s, -1)
        return Data(
            Sites.concatenated(self.sites, new.sites),
            torch.cat([y, more], dim=-1),
            torch.cat([self.noise, new.noise]),
            torch.cat([self.xi, new.xi], dim=-1),
        )

    def without_repeats(self, num_old: int) -> Data:
        """The data less those after the first `num_old` that are noise-free and repeat a noise-free one.

        A repeated observation adds no information and makes K singular.
        """
        if not bool((self.noise[num_old:] == 0).any()):
            return self
        X, outputs = self.sites.points, self.sites.outputs
        keys = X if outputs is None else torch.cat([X, outputs[:, None].to(X)], dim=1)
        # At its own data a path has the value to the solver's rounding: that is no contradiction.
        tolerance = torch.finfo(self.y.dtype).eps ** 0.4 * float(self.y.detach().abs().max()) if self.y.numel() else 0.0
        first: dict[tuple[float, ...], int] = {}
        keep = []
        for i, (key, exact) in enumerate(zip(map(tuple, keys.tolist()), (self.noise == 0).tolist(), strict=True)):
            seen = first.setdefault(key, i) if exact else i
            if seen == i or i < num_old:
                keep.append(i)
            elif float((self.y[..., seen] - self.y[..., i]).detach().abs().max()) > tolerance:
                raise ValueError(
                    f"condition_on: noise-free observations at the same point {list(key)} contradict each other; "
                    "give them noise"
                )
        return self if len(keep) == len(self) else self.rows(keep)

    def noise_variance(self, num_outputs: int) -> Tensor | None:
        """The noise variance of each output's observations, `[t]`; None where there are none, or it differs."""
        noise, outputs = self.noise, self.sites.outputs
        each = [noise if outputs is None else noise[outputs == i] for i in range(num_outputs)]
        if any(len(own) == 0 or bool(own.max() - own.min() > 1e-6 * own.max()) for own in each):
            return None
        return torch.stack([own[0] for own in each])
