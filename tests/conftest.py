"""Settings and fixtures for all tests."""

import pytest
import torch
from hypothesis import settings

# The same examples every time, and no clock: a slow machine must not fail a test.
settings.register_profile("matheron", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("matheron")


@pytest.fixture
def generator() -> torch.Generator:
    """A generator with a seed of its own: tests do not touch torch's."""
    return torch.Generator().manual_seed(20200712)
