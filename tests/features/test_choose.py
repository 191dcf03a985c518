"""Which features a kernel gets, how many, and what is said of them."""

import copy

import numpy as np
import pytest
import torch

from matheron import ExactGP, draw, draw_prior, load
from matheron import kernels as K
from matheron.compare.samplers import decoupled_moments, moments
from matheron.features import KINDS
from matheron.lattice.planning import PLANNER
from standard import assert_unbiased, covariance, features_of

UNIT = (0.0, 1.0)
CHOICES = {  # kernel, dimensions, features, domain, what is said
    "few dimensions": (K.RBF(), 2, 100, None, "100 sobol"),
    "15 dimensions": (K.Matern(2.5), 15, 100, None, "100 sobol"),
    "16 dimensions": (K.Matern(2.5), 16, 100, None, "100 orthogonal"),
    "16 dimensions, not elliptical": (K.RBF() * K.RBF(), 16, 100, None, "100 sobol"),
    "16 dimensions, shifted": (K.SpectralMixture([1.0], [[1.0] * 16], [[1.0] * 16]), 16, 100, None, "100 sobol"),
    "16 dimensions, some active": (K.RBF().on([0, 1]), 16, 100, None, "100 sobol"),
    "periodic": (K.Periodic(), 1, 100, None, "harmonics holding 100.00% of the variance"),
    "periodic, too few features": (K.Periodic(0.01), 1, 20, None, "20 sobol"),
    "a domain": (K.RBF(0.3), 1, 8, UNIT, " modes, kernel within"),
    "a domain in two dimensions": (K.RBF(0.3), 2, 8, UNIT, "lattice of 1"),
    "a smooth kernel in three": (K.RBF(0.5), 3, 8, UNIT, "lattice of"),
    "a rough kernel in three": (K.Matern(1.5, 0.5), 3, 8, UNIT, "of the variance left out"),
    "a short lengthscale": (K.RBF(0.01), 1, 8, UNIT, "lattice of 1"),
    "a domain in four dimensions": (K.RBF(), 4, 100, UNIT, "100 sobol"),
    "a domain in four, two of them active": (K.RBF(0.3).on([1, 3]), 4, 8, UNIT, "lattice of 1"),
    "a domain, periodic": (K.Periodic(), 1, 100, UNIT, "harmonics holding 100.00% of the variance"),
    "a domain, periodic, many frequencies": (K.Periodic(0.01), 1, 20, UNIT, "lattice of"),
    "a domain and a sum": (K.RBF(0.3) + K.Linear() + 2 * K.Matern(2.5, 0.2), 1, 8, UNIT, "lattice of"),
    "linear": (K.Linear(), 3, 100, None, "3 explicit"),
    "constant": (K.Constant(), 3, 100, None, "1 constant"),
    "stationary times linear": (K.RBF() * K.Linear(), 3, 100, UNIT, "100 products with sobol"),
    "a sum": (K.RBF() + K.Linear() + 3 * K.Matern(0.5), 1, 100, None, "38 sobol; 1 explicit; 62 sobol"),
}


@pytest.mark.parametrize("name", CHOICES)
def test_auto_chooses_by_dimension_kernel_and_domain_and_says_so(name):
    kernel, d, ell, domain, said = CHOICES[name]
    features = features_of(kernel, d, ell, "auto", domain=domain)
    assert said in features.description
    assert features.description in repr(features)
    assert (features.domain is None) == all(choice.kind != "lattice" for choice in features.choices)
    assert sum(choice.num_features or 0 for choice in features.choices) == features.num_features


def test_what_was_chosen_is_a_record_that_files_keep(tmp_path):
    kernel = K.Matern(1.5, 0.5) + K.RBF() * K.Linear() + K.Periodic()
    paths = draw_prior(kernel, 2, input_dim=1, num_features=40, domain=UNIT, seed=0)
    lattice, *others = paths.prior.features.choices
    assert lattice.kind == "lattice" and [lattice.num_features] == lattice.modes and 0 < (lattice.error or 0) < 0.01
    assert sorted((c.kind, c.products) for c in others) == [("harmonics", False), ("sobol", True)]
    paths.save(tmp_path / "draw")
    assert load(tmp_path / "draw").prior.features.choices == paths.prior.features.choices


@pytest.mark.parametrize("kind", ["cosine", "sincos", "sobol", "orthogonal"])
def test_a_kind_that_is_named_is_taken(kind):
    assert features_of(K.RBF(), 1, 10, kind, domain=UNIT).description == f"10 {kind}"
    assert features_of(K.RBF() * K.Linear(), 1, 10, kind).description == f"10 products with {kind}"


def test_refuses_an_unknown_kind():
    listed = f"expected one of {', '.join(KINDS)} or a Features object, got 'rff'"
    with pytest.raises(ValueError, match=listed):
        draw_prior(K.RBF(), 1, input_dim=1, features="rff")


@pytest.mark.parametrize(
    ("total", "sizes"),
    [
        (10, [1.0]),
        (10, [1.0, 1.0, 1.0]),
        (100, [5.0, 1e-9, 1e-9]),
        (7, [0.1, 0.2, 0.4]),
        (3, [1.0, 2.0, 3.0, 4.0]),
    ],
)
def test_features_are_shared_half_equally_and_half_in_proportion_and_none_is_lost(total, sizes):
    kernel = sum((size * K.Matern(0.5, 1.0 + i) for i, size in enumerate(sizes[1:], 1)), sizes[0] * K.Matern(0.5))
    counts = [choice.num_features or 0 for choice in features_of(kernel, 1, total, "cosine").choices]
    assert sum(counts) == max(total, len(sizes)) and min(counts) >= 1
    equal = total / len(sizes)
    exact = [(total * size / sum(sizes) + equal) / 2 for size in sizes]
    if total > len(sizes):
        assert all(abs(count - share) < len(sizes) for count, share in zip(counts, exact, strict=True))


def test_terms_that_grow_with_x_are_weighed_where_the_data_are():
    kernel = K.RBF() + K.Linear() * K.Matern(0.5)
    x = torch.full((4, 1), 3.0, dtype=torch.float64)
    assert features_of(kernel, 1, 100, "sobol").description == "50 sobol; 50 products with sobol"
    assert features_of(kernel, 1, 100, "sobol", reference=x).description == "30 sobol; 70 products with sobol"
    vanishing, zero = K.Linear() * K.RBF() + K.Linear() * K.Matern(0.5), torch.zeros(1, 1, dtype=torch.float64)
    said = features_of(vanishing, 1, 100, "sobol", reference=zero).description  # all of them at the point there is
    assert said == "2 times: 50 products with sobol"
    B = [[1.0, 0.0], [0.0, 5.0]]
    assert features_of(K.Coregional(K.RBF(), B) + K.RBF(), 1, 100, "sobol").description == "63 sobol; 37 sobol"


def test_bases_of_a_kind_are_merged():
    many = K.RBF(0.1) + K.RBF(0.2) + K.RBF(0.3) + K.Constant() + K.Constant()
    assert len(features_of(many, 1, 102, "sobol").bases) == 2  # pairs, and the constants
    assert len(features_of(many, 1, 101, "cosine", num_bases=3).bases) == 2


B = [[1.0, 0.6, -0.2], [0.6, 2.0, 0.3], [-0.2, 0.3, 0.5]]
SINGULAR = [[2.0, 4.0, 0.0], [4.0, 8.0, 0.0], [0.0, 0.0, 0.0]]


def test_outputs_are_coupled_by_a_root_of_each_term_s_matrix():
    kernel = K.Coregional(K.RBF(0.5), B) + K.Coregional(K.Linear(), SINGULAR) + 0.5 * K.Matern(0.5)
    features = features_of(kernel, 1, 16, "sincos", num_bases=400)
    couplings = [root @ root.mT for root in features.roots if root is not None]
    assert len(couplings) == len(features.bases)
    expected = [torch.tensor(B), torch.tensor(SINGULAR), torch.ones(3, 3)]
    for coupling in couplings:
        assert any(torch.allclose(coupling, E.double(), atol=1e-12) for E in expected)
    # sum over bases of (R R^T) (x) (Phi Phi^T) is the covariance over points and tasks
    x = torch.tensor([[0.1], [0.7], [1.2]], dtype=torch.float64)
    Phi = features(x).split([basis.size for basis in features.bases], dim=-1)
    total = sum(torch.einsum("gnc,gmc,ij->gnimj", P, P, C) for P, C in zip(Phi, couplings, strict=True))
    assert isinstance(total, torch.Tensor)
    tasks, points = torch.arange(3).repeat(3), x.repeat_interleave(3, dim=0)
    exact = torch.from_numpy(covariance(kernel, points, points, tasks, tasks))
    assert_unbiased(total.reshape(400, 9, 9) - exact)


def test_features_are_a_value():
    features = features_of(K.RBF(0.5) * K.Linear() + K.RBF(0.3) + K.Constant(), 2, 33, "sobol", num_bases=2)
    x = torch.rand(4, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert torch.equal(copy.deepcopy(features)(x), features(x))
    single = features.to(torch.float32)
    assert all(b.dtype == torch.float32 for b in single.buffers()) and features.origin.dtype == torch.float64
    torch.testing.assert_close(single(x.float()).double(), features(x), rtol=1e-4, atol=1e-4)


def test_what_lies_beyond_a_lattice_s_modes_is_on_lattices_of_higher_frequencies(monkeypatch):
    monkeypatch.setitem(vars(PLANNER), "with_tail", 8000)
    X = torch.rand(30, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def kinds(kernel: K.Kernel) -> list[str]:
        gp = ExactGP(kernel, X, X.sum(-1), noise=1e-3)
        paths = draw(gp, 64, domain=UNIT, seed=0)
        return [choice.kind for choice in paths.prior.features.choices]

    assert kinds(K.Matern(0.5, 0.5)) == ["lattice", "spectrum"]
    assert kinds(K.RBF(1.0)) == ["lattice"]


ROUGH = {  # kernel and dimensions
    "two": (K.Matern(0.5, 0.3), 2),
    "three": (K.Matern(1.5, 0.5), 3),
    "longer than the domain": (K.Matern(0.5, 5.0), 2),
    "no density": (K.Matern(0.5, 0.2) * K.Matern(2.5, [2.0, 0.4]), 2),
    "a sum": (K.RBF(0.5) + 1e-2 * K.Matern(0.5, 0.1), 2),
    "two outputs": (K.Coregional(K.Matern(0.5, 0.4), [[1.0, 0.6], [0.6, 0.5]]), 2),
}


@pytest.mark.parametrize("kind", ["auto", "lattice"])
@pytest.mark.parametrize("name", ROUGH)
def test_paths_on_a_lattice_of_few_modes_have_the_posterior_variance_near_data(name, kind, monkeypatch):
    """Below the shortest wavelength: there the modes alone leave a tenth of it."""
    monkeypatch.setitem(vars(PLANNER), "largest", 2000)
    kernel, d = ROUGH[name]
    g = torch.Generator().manual_seed(0)
    X = torch.rand(40, d, generator=g, dtype=torch.float64)
    gp = ExactGP(kernel, X, torch.zeros(40, 2) if kernel.num_outputs == 2 else X.sum(-1), noise=1e-4)
    paths = draw(gp, 32, paths_per_basis=1, domain=UNIT, features=kind, seed=0)
    lattice, *_, beyond = paths.prior.features.choices
    assert lattice.kind == "lattice" and (beyond.num_features or 0) > 500  # of a product, too
    x = torch.cat([(X + 0.003 * torch.randn(X.shape, generator=g, dtype=torch.float64)).clamp(0, 1), 1 - X])
    count = len(x) * kernel.num_outputs
    exact, drawn = (
        m.covariance.reshape(count, count).diagonal() for m in (moments(gp, x), decoupled_moments(gp, paths, x))
    )
    ratio = drawn / exact
    assert 0.85 < float(ratio.min()) and float(ratio.max()) < 1.15


@pytest.mark.parametrize("name", ROUGH)
def test_priors_on_a_lattice_of_few_modes_have_the_variogram_of_near_points(name, monkeypatch):
    """Below the shortest wavelength: there the modes alone, with all of the variance, have a hundredth of it."""
    monkeypatch.setitem(vars(PLANNER), "with_tail", 2000)
    kernel, d = ROUGH[name]
    paths = draw_prior(kernel, 512, input_dim=d, domain=UNIT, paths_per_basis=8, seed=0)
    assert "lattice" in [choice.kind for choice in paths.prior.features.choices]
    g = torch.Generator().manual_seed(1)
    x = 0.1 + 0.8 * torch.rand(40, d, generator=g, dtype=torch.float64)
    for h in (1e-3, 0.05):
        z = x + h * torch.nn.functional.normalize(torch.randn(40, d, generator=g, dtype=torch.float64))
        drawn = (paths(x) - paths(z)).square().mean(0).reshape(40, -1)
        for task, values in enumerate(drawn.unbind(-1)):
            i = np.full(40, task) if kernel.num_outputs == 2 else None
            k_xx, k_xz, k_zz = (np.diag(covariance(kernel, a, b, i, i)) for a, b in ((x, x), (x, z), (z, z)))
            assert float((values / torch.from_numpy(k_xx + k_zz - 2 * k_xz)).mean()) == pytest.approx(1, abs=0.1)


def test_in_one_dimension_a_rough_kernel_has_modes_alone_and_its_law_near_data_and_over_short_distances():
    kernel, g = K.Matern(0.5, 0.3), torch.Generator().manual_seed(0)
    X = 0.1 + 0.8 * torch.rand(12, 1, generator=g, dtype=torch.float64)
    gp = ExactGP(kernel, X, X.sum(-1), noise=1e-4)
    for paths, given in (
        (draw(gp, 2, domain=UNIT, seed=0), gp),
        (draw_prior(kernel, 2, input_dim=1, domain=UNIT), None),
    ):
        assert {choice.kind for choice in paths.prior.features.choices} == {"lattice"}
        for h in (1e-4, 1e-3, 0.05):
            x = torch.cat([X, X + h])
            if given is not None:
                exact, drawn = (m.covariance for m in (moments(given, x), decoupled_moments(given, paths, x)))
            else:
                Phi = paths.prior.features(x)[0]
                exact, drawn = torch.from_numpy(covariance(kernel, x, x)), Phi @ Phi.mT
            ratio = drawn.diagonal()[12:] / exact.diagonal()[12:]
            assert float((ratio - 1).abs().max()) < 0.05
            increments = [C.diagonal()[:12] + C.diagonal()[12:] - 2 * C.diagonal(12) for C in (exact, drawn)]
            assert float(increments[1].sum() / increments[0].sum()) == pytest.approx(1, abs=0.1)
