"""Pareto fronts and hypervolumes, against Optuna's and against their definitions."""

import numpy as np
import pytest
import torch
from optuna._hypervolume import compute_hypervolume

from matheron.thompson.problem import improvements, nondominated


def rand(n, m, seed):
    return torch.rand(n, m, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("m", [1, 2, 4])
def test_a_front_is_what_nothing_dominates(m):
    F = (rand(60, m, m) * 6).round()  # with ties, and equal rows
    found = nondominated(F)
    dominated = ((F <= F[:, None]).all(-1) & (F < F[:, None]).any(-1)).any(1)
    assert not bool((found & dominated).any())
    assert F[found].unique(dim=0).shape == F[found].shape  # of equal rows one
    assert torch.equal(F[found].unique(dim=0), F[~dominated].unique(dim=0))
    assert nondominated(F[:0]).shape == (0,)


@pytest.mark.parametrize(("m", "tolerance"), [(2, 1e-12), (3, 5e-3)])
@pytest.mark.parametrize("n", [0, 1, 12])
def test_an_improvement_is_the_difference_of_two_hypervolumes(m, tolerance, n):
    """Also of points of the front, or beyond the reference, that add nothing."""
    front, reference = rand(n, m, 1), torch.full((m,), 0.8, dtype=torch.float64)
    F = torch.cat([rand(20, m, 2), front[:1]])

    def volume(rows):
        inside = rows[(rows < reference).all(1)]
        return compute_hypervolume(inside.numpy(), reference.numpy()) if len(inside) else 0.0

    expected = np.array([volume(torch.cat([front, point[None]])) - volume(front) for point in F])
    np.testing.assert_allclose(improvements(F, front, reference), expected, atol=tolerance)
