"""BoTorch models as snapshots, against BoTorch's own posterior; and paths as a BoTorch model."""

from __future__ import annotations

import pytest
import torch

from adapters.battery import Case, check
from adapters.botorch_cases import CASES


@pytest.mark.parametrize("case", CASES, ids=str)
def test_paths_have_the_moments_of_botorchs_own_posterior(case: Case, generator: torch.Generator) -> None:
    check(case, generator)
