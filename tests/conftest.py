"""Settings and fixtures for all tests."""

import os
from collections.abc import Callable

# One thread, so that tests beside each other do not compete, and sums are the same on every machine. Set before torch
# is there, for the processes that tests start, and below for this one, where a plugin may have imported it already.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))

# The same examples every time, and no clock: a slow machine must not fail a test.
settings.register_profile("matheron", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("matheron")


@pytest.fixture
def generator() -> torch.Generator:
    """A generator with a seed of its own: tests do not touch torch's."""
    return torch.Generator().manual_seed(20200712)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets how many numbers a block of an evaluation holds, so that small problems are cut into blocks too."""
    from matheron.evaluate import BLOCKS

    def shrink(numbers: int) -> None:
        monkeypatch.setattr(BLOCKS, "cpu_block", numbers)
        monkeypatch.setattr(BLOCKS, "small", 0)

    return shrink
