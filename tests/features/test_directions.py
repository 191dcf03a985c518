"""Directions that are even: near-designs on the sphere, turned at random."""

import math

import pytest
import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from matheron import kernels as K
from matheron.features.quasi_random import even, near_design
from standard import features_of


def excess(u: Tensor, degree: int) -> float:
    """The mean of (u_i . u_j)^degree over all pairs above the sphere's, in units of that of independent directions."""
    n, d = u.shape
    sphere = math.prod((2 * t + 1) / (d + 2 * t) for t in range(degree // 2))
    return (float((u @ u.mT).pow(degree).mean()) - sphere) * n / (1 - sphere)


def sobol_directions(count: int, d: int) -> Tensor:
    U = SobolEngine(d, scramble=True, seed=0).draw(count, dtype=torch.float64).clamp(1e-9, 1 - 1e-9)
    return torch.nn.functional.normalize(torch.special.ndtri(U), dim=1)


@pytest.mark.parametrize("d", [3, 6, 12])
def test_near_designs_integrate_polynomials_better_than_a_sobol_net(d):
    u = near_design(256, d)
    torch.testing.assert_close(u.norm(dim=1), torch.ones(256, dtype=torch.float64))
    assert near_design(256, d) is u  # kept
    for degree, times in ((2, 2), (4, 10), (6, 1.5)):
        assert excess(u, degree) < excess(sobol_directions(256, d), degree) / times


def test_directions_are_even_in_every_range_of_radii():
    u = near_design(256, 5)
    for part in u.split(64):
        assert excess(part, 2) < 0.1 and excess(part, 4) < 0.3
        assert part.mean(0).norm() < 0.7 / math.sqrt(64)  # signs balance


@pytest.mark.parametrize("count", [1, 2, 7, 100, 513])
def test_radii_are_stratified_and_directions_are_unit_vectors(count):
    u, directions = even(3, count, 4, torch.Generator().manual_seed(0))
    assert u.shape == (3, count) and directions.shape == (3, count, 4)
    torch.testing.assert_close(directions.norm(dim=-1), torch.ones(3, count, dtype=torch.float64))
    assert ((u > 0) & (u < 1)).all()
    if count == 100:  # in sets of 96 and 4
        first = (96 * u[:, :96]).long()
        assert (first == torch.arange(96)).all() and (4 * u[:, 96:]).long().tolist() == [[0, 1, 2, 3]] * 3


def test_rotations_are_uniform_and_bases_are_turned_apart():
    (basis,) = features_of(K.RBF(), 3, 6, "orthogonal", num_bases=4000).bases
    Q = torch.nn.functional.normalize(basis.frequencies, dim=-1)
    torch.testing.assert_close(Q @ Q.mT, torch.eye(3, dtype=torch.float64).expand_as(Q))
    assert Q.mean(0).abs().max() < 5 / math.sqrt(3 * 4000)
    squares = Q.square().mean(0) - 1 / 3
    assert squares.abs().max() < 5 * math.sqrt(4 / 45 / 4000)  # the variance of a squared coordinate is 4 / 45
