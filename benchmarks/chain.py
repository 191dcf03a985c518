"""A Triton kernel that does one thing: how fast is it done on this GPU?"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def chain(out, STEPS: tl.constexpr, DOUBLE: tl.constexpr):
    """Cosines of cosines, or float64 multiply-adds, 1024 a program and step."""
    i = tl.program_id(0) * 1024 + tl.arange(0, 1024)
    v = i.to(tl.float64 if DOUBLE else tl.float32) * 1e-6
    for _ in range(STEPS):
        v = v * v + 0.25 if DOUBLE else libdevice.fast_cosf(v)  # type: ignore[operator]
    tl.store(out + i, v)
