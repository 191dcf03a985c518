"""Non-uniform transforms, by the libraries and by our own."""

from types import ModuleType, SimpleNamespace
from typing import Any

import finufft
import pytest
import torch
from torch import Tensor

from matheron.core import nufft


class FakePlan:
    """What cufinufft.Plan takes, checked as it checks, on a CPU by finufft."""

    def __init__(self, nufft_type, n_modes, n_trans=1, eps=1e-6, isign=None, dtype="complex64", **options) -> None:
        assert set(options) <= {"gpu_device_id", "gpu_stream"}
        self.shape = (n_trans, *n_modes) if nufft_type == 1 else (n_trans,)
        self.kind, self.options = nufft_type, options
        self.plan = finufft.Plan(nufft_type, n_modes, n_trans, eps, isign, dtype)

    def setpts(self, x: Tensor, y: Tensor | None = None, z: Tensor | None = None) -> None:
        axes = [axis for axis in (x, y, z) if axis is not None]
        assert all(axis.dtype == torch.float64 and axis.is_contiguous() and axis.ndim == 1 for axis in axes)
        assert all(float(axis.abs().max()) <= torch.pi + 1e-12 for axis in axes)
        self.shape = self.shape if self.kind == 1 else (*self.shape, len(x))
        self.plan.setpts(*(axis.numpy() for axis in axes))

    def execute(self, data: Tensor, out: Tensor) -> Tensor:
        assert data.dtype == out.dtype == torch.complex128 and data.is_contiguous() and out.shape == self.shape
        return out.copy_(torch.from_numpy(self.plan.execute(data.numpy()).reshape(out.shape)))


@pytest.mark.parametrize("shape", [(9,), (5, 7), (5, 3, 7)])
def test_cufinufft_is_called_as_it_asks_and_gives_what_our_own_transforms_give(shape, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    x = 20 * torch.rand(40, len(shape), generator=generator, dtype=torch.float64) - 10
    F, c = (torch.randn(3, *size, generator=generator, dtype=torch.complex128) for size in (shape, (40,)))
    monkeypatch.setattr(nufft, "finufft", lambda: None)
    own = nufft.series_at(F, x), nufft.adjoint_at(c, x, shape)
    monkeypatch.setattr(nufft, "_plan", fake_plan)
    both = nufft.series_at(F.mT.contiguous().mT if F.ndim > 2 else F, x), nufft.adjoint_at(c, x, shape)
    for a, b in zip(both, own, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)


def fake_plan(kind, shape, count, x, accuracy=None):
    library: Any = ModuleType("cufinufft")
    library.Plan = FakePlan
    settings = (kind, shape, count, accuracy or 1e-11, -1 if kind == 1 else 1, "complex128")
    return nufft.on_device(library, settings, x, gpu_device_id=0, gpu_stream=0)


def test_each_device_has_its_library_and_other_devices_have_none(monkeypatch):
    monkeypatch.setattr(nufft, "cufinufft", lambda: "for a GPU")
    devices: list[Any] = [SimpleNamespace(device=SimpleNamespace(type=name)) for name in ("cpu", "cuda", "mps")]
    assert [nufft.library_for(x) for x in devices] == [finufft, "for a GPU", None]


def test_a_transform_prints_nothing_where_torch_has_more_threads_than_openmp(capfd):
    before = torch.get_num_threads()
    torch.set_num_threads(64)
    try:
        nufft.series_at(torch.ones(1, 33, dtype=torch.complex128), torch.zeros(40, 1, dtype=torch.float64))
    finally:
        torch.set_num_threads(before)
    printed = capfd.readouterr()
    assert printed.out == printed.err == ""
