"""GPyTorch models as snapshots: every kind against GPyTorch's own posterior; every kernel against its own matrix."""

from __future__ import annotations

import pytest
import torch

from adapters.battery import Case, check
from adapters.gpytorch_cases import EXACT, SPARSE


@pytest.mark.parametrize("case", [*EXACT, *SPARSE], ids=str)
def test_paths_have_the_moments_of_gpytorchs_own_posterior(case: Case, generator: torch.Generator) -> None:
    check(case, generator)
