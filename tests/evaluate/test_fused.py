"""The fused kernels: the same values, gradients and backward passes as blocks, in every branch.

Without a CUDA device they run in Triton's interpreter on the CPU; with one, there, and the tests marked gpu too.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from interpreter import device_of_kernels
from matheron import ExactGP, Paths, draw, draw_prior, load
from matheron import kernels as K
from matheron.evaluate import BLOCKS, Record, fused, sum_of, values, values_and_gradients
from matheron.models.means import LinearMean

DEVICE = device_of_kernels()
CUDA = DEVICE == "cuda"

from matheron.evaluate.fused import FusedKernels, launch  # noqa: E402  (the interpreter must be asked for first)

KERNELS = FusedKernels()
B2 = [[1.0, 0.4], [0.4, 0.8]]
EPS32 = torch.finfo(torch.float32).eps
gpu = pytest.mark.skipif(not CUDA, reason="needs a CUDA device")


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter pays for each step of a loop."""
    if not CUDA:
        monkeypatch.setattr(launch, "ROWS", (64, 1))


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def paths_of(
    kernel: K.Kernel,
    d: int,
    s: int = 3,
    n: int = 7,
    *,
    ell: int = 20,
    noise: float = 0.05,
    offset: float = 0.0,
    **settings: Any,
) -> Paths:
    """Float64 paths given n observations, on the device."""
    X = torch.rand(n, d, generator=gen(1), dtype=torch.float64) + offset
    shape = (n, kernel.num_outputs) if kernel.num_outputs > 1 else (n,)
    y = torch.randn(shape, generator=gen(2), dtype=torch.float64)
    mean = settings.pop("mean", 0.0)
    gp = ExactGP(kernel, X, y, noise, mean=mean)
    return draw(gp, s, num_features=ell, generator=gen(3), **settings).to(DEVICE)


def points(*shape: int, offset: float = 0.0, seed: int = 4) -> Tensor:
    return (torch.rand(shape, generator=gen(seed), dtype=torch.float64) + offset).to(DEVICE)


def reference(paths: Paths, x: Tensor) -> tuple[Tensor, Tensor]:
    """The values and gradients of blocks, in float64."""
    return paths.to(torch.float64).record.values_and_gradients(x.double(), None if len(x) == 1 else slice(0, len(x)))


def rounding(paths: Paths, x: Tensor) -> Tensor:
    """What float32 can be held to, `[s, n, t]`: 1e-5 of the prior's deviation, and roundings of the update's terms."""
    wide = paths.to(torch.float64)
    x = x.double()
    update = wide.update
    sizes = sum_of(update.replaced(v=update.v.abs()).terms(), x, None if len(x) == 1 else slice(0, len(x)))
    terms = torch.zeros((), dtype=torch.float64, device=x.device) if sizes is None else sizes.mT.abs()
    return 1e-5 * deviation(paths) + 8 * EPS32 * terms


def deviation(paths: Paths) -> Tensor:
    """The prior's standard deviation: of the paths' own finite sums, averaged over paths."""
    terms: Any = paths.prior.terms()
    return torch.stack([term.weights.double().square().sum(-1).mean() for term in terms]).sum().sqrt()


def in_graph(record: Record, x: Tensor) -> Tensor:
    """The values as paths have them at points in a graph, by the fused kernels on whatever device they run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, "usable", lambda device: True)
        patch.setattr(fused.FusedKernels, "device_type", None)
        return values(record, x)


def assert_same(paths: Paths, x: Tensor, dtype: torch.dtype) -> None:
    """Values, gradients, and gradients pulled back, against blocks in float64."""
    paths, x = paths.to(dtype), x.to(dtype)
    f, df = reference(paths, x)
    seed = torch.randn(f.shape, generator=gen(5), dtype=torch.float64).to(x)
    tied = x.clone().requires_grad_()
    value = in_graph(paths.record, tied)
    (pulled,) = torch.autograd.grad(value, tied, seed)
    plain = KERNELS.values(paths.record, x) if dtype == torch.float64 else value.detach()
    both, slope = KERNELS.values_and_gradients(paths.record, x)
    assert value.dtype == slope.dtype == pulled.dtype == dtype and not plain.requires_grad
    if len(x) == 1:
        expected = torch.einsum("snt,sntd->nd", seed.double(), df)[None]
    else:
        expected = torch.einsum("snt,sntd->snd", seed.double(), df)
    if len(x) == 1:  # in a graph too, where points are more than a few
        pulled = KERNELS.vjp(paths.record, x, seed)
    scale = df.abs().amax() + deviation(paths)
    if dtype == torch.float64:
        for got in (value, plain, both):
            torch.testing.assert_close(got, f, rtol=1e-11, atol=1e-11 * float(f.abs().max() + 1))
        torch.testing.assert_close(slope, df, rtol=1e-11, atol=1e-11 * float(scale))
        torch.testing.assert_close(pulled, expected, rtol=1e-11, atol=1e-10 * float(scale))
        return
    bound = rounding(paths, x)
    for got in (value, plain, both):
        assert ((got.double() - f).abs() <= bound + 2 * EPS32 * f.abs()).all()
    spread = float(bound.max() / deviation(paths))  # a gradient's error is as large beside its own size
    torch.testing.assert_close(slope.double(), df, rtol=0, atol=4 * spread * float(scale))
    torch.testing.assert_close(pulled.double(), expected, rtol=0, atol=4 * spread * float(scale) * len(paths) ** 0.5)


EVERY_KIND = 0.5 * K.RBF([0.4, 0.7]) + K.Matern(0.5, 0.8) + K.Matern(1.5, 0.6).on(1) + K.RationalQuadratic(0.8, 0.5)
CASES = {  # kernel, dimensions, and how the paths are drawn
    "pairs in one dimension": (K.RBF(0.2), 1, {}),
    "every radial kernel": (EVERY_KIND, 2, {}),
    "Matern 5/2 with a basis for two paths each": (K.Matern(2.5, 0.6), 3, dict(paths_per_basis=2, s=5)),
    "cosines": (K.Matern(2.5, 0.6), 2, dict(features="cosine")),
    "cosines with a basis each": (K.RBF(0.6), 2, dict(features="cosine", paths_per_basis=1)),
    "more than a row of features": (K.Matern(1.5, 0.5), 4, dict(ell=140, n=70)),
    "an odd cosine beside pairs": (K.RBF(0.6), 2, dict(ell=21)),
    "seven dimensions": (K.Matern(2.5, 1.5), 7, {}),
    "seventeen dimensions": (K.RBF([1.0 + i for i in range(17)]), 17, dict(s=2)),
    "two outputs": (K.Coregional(K.RBF(0.5), B2) + K.Coregional(K.Matern(2.5, 0.7), torch.eye(2)), 2, {}),
    "two outputs with a basis each": (K.Coregional(K.RBF(0.5), B2), 2, dict(paths_per_basis=1)),
}
HOW = {"shared points": False, "own points": True}
SOME = [  # the interpreter takes a second each: by default half of them, with every case, precision and kind of points
    pytest.param(case, own, dtype, id=f"{case}, {how}, {dtype}", marks=[] if first else [pytest.mark.slow])
    for case in CASES
    for how, own in HOW.items()
    for dtype in (torch.float32, torch.float64)
    for first in [case != "seventeen dimensions" and own == (dtype == torch.float64)]
]


@pytest.mark.parametrize(("case", "own", "dtype"), SOME)
def test_fused_kernels_agree_with_blocks(
    case: str, own: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, d, settings = CASES[case]
    monkeypatch.setattr(launch, "FEW_SUMS", 0)  # shared points by tensor cores however few they are
    paths = paths_of(kernel, d, **settings)
    assert_same(paths, points(len(paths) if own else 1, 6, d), dtype)


@pytest.mark.parametrize("dtype", [pytest.param(torch.float32, marks=pytest.mark.slow), torch.float64])
def test_few_shared_points_row_by_row_are_the_same(dtype: torch.dtype) -> None:
    paths = paths_of(EVERY_KIND, 2)
    assert launch._by_rows(fused.plan_of(paths.record), fused.plan_of(paths.record).radial[0], points(1, 6, 2))  # type: ignore
    assert_same(paths, points(1, 6, 2), dtype)


def test_at_many_points_in_a_graph_gradients_are_pulled_back_by_a_kernel(monkeypatch) -> None:
    asked, vjp = [], launch.vjp
    monkeypatch.setattr(launch, "vjp", lambda plan, x, grad: asked.append(x) or vjp(plan, x, grad))
    paths, x = paths_of(K.RBF(0.5), 2), points(1, 33, 2).requires_grad_()
    f = in_graph(paths.record, x)
    seed = torch.randn(f.shape, generator=gen(5), dtype=torch.float64).to(x)
    (slope,) = torch.autograd.grad(f, x, seed)
    expected = torch.einsum("snt,sntd->nd", seed, reference(paths, x.detach())[1])[None]
    torch.testing.assert_close(slope, expected, rtol=1e-11, atol=1e-10)
    assert len(asked) == 1


@pytest.mark.parametrize(("own", "offset"), [(True, 0.0), (False, 1000.0)])  # near zero points have more digits
def test_float32_keeps_its_digits_far_from_zero_and_many_lengthscales_long(own, offset, monkeypatch) -> None:
    monkeypatch.setattr(launch, "FEW_SUMS", 0)
    paths = paths_of(K.RBF(0.0005), 1, offset=offset, ell=64).to(torch.float32)
    x = points(3 if own else 1, 200, 1, offset=offset).float()  # hundreds of turns of a feature from end to end
    f, _ = reference(paths, x)
    by_blocks = paths.record.values(x, slice(0, 3) if own else None)
    error = (KERNELS.values(paths.record, x).double() - f).abs().max()
    assert error < 1e-5 * deviation(paths)
    assert error < 0.2 * (by_blocks.double() - f).abs().max()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, in the interpreter
@pytest.mark.parametrize("own", [False, True], ids=["shared points", "own points"])
def test_a_point_that_is_not_a_number_or_far_away_spoils_no_other(own: bool, monkeypatch) -> None:
    monkeypatch.setattr(launch, "FEW_SUMS", 0)
    paths = paths_of(K.RBF(0.3), 2, s=2).to(torch.float32)
    x = points(2 if own else 1, 6, 2).float()
    clean = KERNELS.values(paths.record, x)
    x[:, 1, 0], x[:, 3, 1], x[:, 4] = torch.nan, torch.inf, 1e20
    spoilt = KERNELS.values(paths.record, x)
    assert spoilt[:, [1, 3]].isnan().all() and spoilt[:, 4].isfinite().all()
    torch.testing.assert_close(spoilt[:, [0, 2, 5]], clean[:, [0, 2, 5]], rtol=0, atol=0)


@pytest.mark.parametrize("few", [0, 1 << 13])
def test_some_paths_in_another_order_are_the_same(few: int, monkeypatch) -> None:
    monkeypatch.setattr(launch, "FEW_SUMS", few)
    paths = paths_of(K.RBF(0.5), 2, s=6, paths_per_basis=2)
    for some in (paths[[4, 1, 5]], paths[[3, 3, 0]], paths[2]):
        x = points(1, 5, 2)
        got = KERNELS.values_and_gradients(some.record, x)
        torch.testing.assert_close(got, reference(some, x), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(
    ("mean", "problems"), [(1.5, 1), (LinearMean([1.0, -2.0], 0.3), 3), (lambda x: (3 * x[..., 0]).sin(), 1)]
)
def test_the_mean_is_added(mean: Any, problems: int, monkeypatch) -> None:
    monkeypatch.setattr(KERNELS, "mean_block", 4)
    monkeypatch.setattr(launch, "FEW_SUMS", 0)
    assert_same(paths_of(K.RBF(0.5), 2, mean=mean), points(problems, 6, 2), torch.float64)


def test_priors_conditioned_paths_and_no_points_are_served() -> None:
    paths = draw_prior(K.Matern(2.5, 0.5), 3, input_dim=2, num_features=20, generator=gen()).to(DEVICE)
    assert_same(paths, points(1, 6, 2), torch.float64)
    more = paths.condition_on(points(4, 2), points(4), noise=0.1, generator=gen())
    assert_same(more, points(1, 6, 2), torch.float64)
    value, slope = KERNELS.values_and_gradients(more.record, points(1, 0, 2))
    assert value.shape == (3, 0, 1) and slope.shape == (3, 0, 1, 2)
    x = points(1, 0, 2).requires_grad_()
    assert torch.autograd.grad(in_graph(more.record, x).sum(), x)[0].shape == x.shape


def test_a_path_without_features_is_its_mean() -> None:
    paths = draw_prior(0.0 * K.RBF(0.5), 2, input_dim=2, mean=1.5).to(DEVICE)
    value, slope = KERNELS.values_and_gradients(paths.record, points(1, 4, 2))
    assert (value == 1.5).all() and value.shape == (2, 4, 1) and (slope == 0).all()


def test_gradients_vanish_at_the_centre_of_a_rough_kernel(monkeypatch) -> None:
    monkeypatch.setattr(launch, "FEW_SUMS", 0)
    paths = paths_of(K.Matern(0.5, 0.8), 2)
    x = paths.update.centres[None, :3].clone()
    value, slope = KERNELS.values_and_gradients(paths.record, x)
    f, df = reference(paths, x)
    torch.testing.assert_close(value, f, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(slope, df, rtol=1e-10, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("own", [False, True], ids=["shared points", "own points"])
def test_gradcheck_and_second_derivatives(own: bool, monkeypatch) -> None:
    monkeypatch.setattr(launch, "FEW_SUMS", 0)
    paths = paths_of(0.5 * K.Matern(2.5, 0.5) + K.RBF(0.4), 2, s=2, mean=lambda x: x[..., 0].square())
    x = points(2 if own else 1, 2, 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: in_graph(paths.record, x), x)
    assert torch.autograd.gradgradcheck(lambda x: in_graph(paths.record, x), x)


def test_a_plan_is_kept_until_the_paths_change() -> None:
    paths = paths_of(K.RBF(0.5), 2)
    plan = fused.plan_of(paths.record)
    assert plan is not None and fused.plan_of(paths.record) is plan
    paths.update.v.mul_(2.0)
    again = fused.plan_of(paths.record)
    assert again is not plan
    assert_same(paths, points(1, 4, 2), torch.float64)
    moved = torch.nn.ModuleList([paths]).to(torch.float32)[0]  # a parent module moves it in place
    assert fused.plan_of(moved.record).origin.dtype == torch.float32  # type: ignore[union-attr]


UNSERVED = {
    "a linear kernel": lambda: paths_of(K.RBF(0.5) + K.Linear(), 2),
    "a product in the update": lambda: paths_of(K.RBF(0.5) * K.Matern(1.5, 0.7), 2),
    "a Matern of another order": lambda: paths_of(K.Matern(1.2, 0.5), 2),
    "more than 64 dimensions": lambda: paths_of(K.RBF(8.0), 65),
}


@pytest.mark.parametrize("what", UNSERVED)
def test_what_has_no_kernel_is_left_to_blocks(what: str) -> None:
    paths = UNSERVED[what]()
    assert fused.plan_of(paths.record) is None and fused.plan_of(paths.record) is None
    assert not fused.serves(paths.record)
    assert torch.isfinite(paths(points(3, paths.input_dim))).all()


@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
@pytest.mark.parametrize("kernel", [K.RBF(0.5) + K.Linear(), K.RBF(0.5) * K.Matern(1.5, 0.7)], ids=["sum", "product"])
def test_a_term_without_a_kernel_leaves_the_others_theirs(kernel: K.Kernel, own: bool, monkeypatch) -> None:
    """Monomials, and an update that is not radial, in blocks; Fourier features and the mean in fused kernels."""
    paths = paths_of(kernel, 2, mean=LinearMean([1.0, -2.0], 0.3))
    x = points(3 if own else 1, 33, 2)
    f, df = reference(paths, x)
    monkeypatch.setattr(fused, "usable", lambda device: True)
    monkeypatch.setattr(fused.FusedKernels, "device_type", None)
    plans, sums = [], launch.sums
    monkeypatch.setattr(launch, "sums", lambda plan, *a, **b: plans.append(plan) or sums(plan, *a, **b))
    value, slope = values_and_gradients(paths.record, x)
    assert [len(plan.radial) for plan in plans] == [0] and plans[0].fourier
    torch.testing.assert_close(value, f, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(slope, df, rtol=1e-11, atol=1e-11)
    tied, seed = x.clone().requires_grad_(), torch.randn(f.shape, generator=gen(5), dtype=torch.float64).to(x)
    (pulled,) = torch.autograd.grad(values(paths.record, tied), tied, seed)
    expected = torch.einsum("snt,sntd->snd", seed, df)
    torch.testing.assert_close(pulled, expected if own else expected.sum(0, keepdim=True), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
def test_terms_that_are_summed_in_float64_beside_float32_ones_have_kernels_of_their_own(own: bool, monkeypatch) -> None:
    """Clusters of data with little noise: weights of 1e3, whose sums cancel."""
    X = torch.rand(2, 2, generator=gen(1)).repeat_interleave(12, 0) + 0.01 * torch.randn(24, 2, generator=gen(5))
    gp = ExactGP(K.RBF(0.5), X, (5 * X).sin().sum(1), 1e-6)
    paths = draw(gp, 3, num_features=16, features="sobol", seed=0).to(DEVICE)
    assert paths.dtype == torch.float32 and paths.update.v.dtype == torch.float64
    x = X[:5].to(DEVICE).expand(3 if own else 1, -1, -1)
    assert fused.plan_of(paths.record) is None
    exact, gradient = paths.record.values_and_gradients(x, slice(0, 3) if own else None)
    dtypes = []
    monkeypatch.setattr(fused, "usable", lambda device: True)
    monkeypatch.setattr(fused.FusedKernels, "device_type", None)
    monkeypatch.setattr(BLOCKS, "values_and_gradients", lambda *_: pytest.fail("blocks were used"))
    sums = launch.sums
    monkeypatch.setattr(launch, "sums", lambda plan, x, *a, **b: dtypes.append(x.dtype) or sums(plan, x, *a, **b))
    f, df = values_and_gradients(paths.record, x)
    assert set(dtypes) == {torch.float32, torch.float64}
    torch.testing.assert_close(f, exact, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(df, gradient, rtol=1e-4, atol=1e-4)
    if CUDA:
        torch.testing.assert_close(paths(x), exact[..., 0], rtol=1e-5, atol=1e-5)


def test_paths_in_a_graph_are_left_to_blocks() -> None:
    lengthscale = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    kernel = K.RBF(lengthscale)
    assert fused.plan_of(draw_prior(kernel, 2, input_dim=1, detach=False).record) is None


def test_a_cpu_is_not_served() -> None:
    assert not fused.serves(paths_of(K.RBF(0.5), 2).to("cpu").record)


# On a device: sizes that an interpreter would take hours for.


@gpu
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", range(16))
def test_random_shapes_on_a_device(seed: int, dtype: torch.dtype) -> None:
    pick = torch.Generator().manual_seed(100 + seed)

    def one_of(*choices: Any) -> Any:
        return choices[int(torch.randint(len(choices), (), generator=pick))]

    d = one_of(1, 2, 3, 4, 5, 6, 7, 9, 13, 16, 17, 25, 32, 33, 48, 64)
    reach = d**0.5
    kernel = one_of(
        K.RBF(0.5 * reach),
        0.7 * K.Matern(0.5, [reach] * d) + K.RBF(0.8 * reach),
        K.Matern(1.5, 0.5 * reach),
        K.Matern(2.5, 0.5 * reach) + 0.3 * K.RationalQuadratic(1.5, reach).on(list(range(0, d, 2))),
        K.Coregional(K.Matern(2.5, 0.5 * reach), B2),
    )
    s = one_of(1, 2, 17, 64, 70, 300)
    settings = dict(
        features=one_of("auto", "cosine", "sincos"), paths_per_basis=one_of(None, 1, 7, 64), ell=one_of(30, 333, 1024)
    )
    paths = paths_of(kernel, d, s, one_of(1, 65, 300), noise=0.1, **settings)
    assert_same(paths, points(1, one_of(1, 50, 129, 1000), d), dtype)
    assert_same(paths, points(s, one_of(1, 5, 33, 64), d), dtype)


@gpu
@pytest.mark.gpu
def test_float32_errs_by_less_than_1e_5_of_the_prior_over_many_features_and_points() -> None:
    paths = draw_prior(K.Matern(2.5, 0.2), 64, input_dim=4, num_features=4096, generator=gen()).to(
        "cuda", torch.float32
    )
    x = points(1, 20_000, 4).float()
    f = paths.to(torch.float64).record.values(x.double(), None)
    assert (KERNELS.values(paths.record, x).double() - f).abs().max() < 1e-5 * deviation(paths)


@gpu
@pytest.mark.gpu
def test_calls_on_a_device_are_fused_and_hold_little_memory(monkeypatch) -> None:
    paths = paths_of(K.Matern(2.5, 0.3), 4, 64, 1024, ell=4096).to(torch.float32)
    x = points(200_000, 4).float()
    paths(x[:1000])

    def refuse(*_: Any) -> Any:
        raise AssertionError("blocks were used")

    monkeypatch.setattr(Record, "values", refuse)
    monkeypatch.setattr(Record, "values_and_gradients", refuse)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    f = paths(x)
    held = torch.cuda.max_memory_allocated() - before
    assert f.shape == (64, 200_000) and held < 1.1 * f.nbytes + 2**25
    value, slope = paths.value_and_grad(x[:5000])
    torch.testing.assert_close(value, f[:, :5000], rtol=0, atol=1e-4)
    assert slope.shape == (64, 5000, 4)
    tied = x[:5000].clone().requires_grad_()
    (pulled,) = torch.autograd.grad(paths(tied).sum(), tied)
    torch.testing.assert_close(pulled, slope.sum(0), rtol=1e-3, atol=1e-2)


@gpu
@pytest.mark.gpu
def test_paths_move_to_a_device_and_back(tmp_path) -> None:
    here = paths_of(K.Matern(2.5, 0.3), 2, 5, 20).to("cpu")
    there = here.to("cuda")
    x = points(30, 2)
    torch.testing.assert_close(there(x).cpu(), here(x.cpu()), rtol=1e-10, atol=1e-10)
    more = there.condition_on(x[:3], torch.zeros(3), noise=0.0)
    torch.testing.assert_close(more(x[:3]), torch.zeros(5, 3, dtype=torch.float64, device="cuda"), rtol=0, atol=1e-6)
    more.save(tmp_path / "paths.safetensors")
    torch.testing.assert_close(load(tmp_path / "paths.safetensors")(x.cpu()), more(x).cpu(), rtol=1e-9, atol=1e-9)
    assert there.device.type == "cuda" and there.mean(x).device.type == "cuda"


@gpu
@pytest.mark.gpu
@pytest.mark.parametrize("features", ["cosine", "sincos"])
@pytest.mark.parametrize("d", [33, 48, 64])
def test_many_dimensions_on_a_device(d: int, features: str) -> None:
    paths = paths_of(K.Matern(2.5, 0.5 * d**0.5), d, 70, 100, ell=300, noise=0.1, features=features)
    assert_same(paths, points(1, 1000, d), torch.float32)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_models_joined_for_own_points_are_each_models_own(dtype: torch.dtype) -> None:
    """Other data, lengthscales, bases and numbers of paths in each; one launch for all."""
    members = []
    for i, (s, scale) in enumerate([(2, 0.3), (1, 0.5), (3, [0.2, 0.9])]):
        X = torch.rand(7, 2, generator=gen(i), dtype=torch.float64) + i
        kernel = K.Matern(2.5, torch.tensor(scale, dtype=torch.float64).expand(2).clone())
        gp = ExactGP(kernel, X, X.sum(1), 0.05, mean=float(i))
        settings: Any = {"features": "sobol", "num_features": 20, "paths_per_basis": 2 - i % 2}
        members.append(draw(gp, s, generator=gen(i), **settings).to(DEVICE, dtype))
    made = fused.join([member.record for member in members])
    assert made is not None
    of = torch.tensor([5, 0, 2, 2, 3, 1, 5], device=DEVICE)  # paths 0, 1 | 2 | 3, 4, 5; the fifth of them not at all
    x = points(len(of), 2).to(dtype)
    value, gradient = (each[:, 0] for each in fused.gradients_of(*made, x[:, None], of))
    owner, first = torch.tensor([0, 0, 1, 2, 2, 2])[of.cpu()], torch.tensor([0, 2, 3])
    for i, member in enumerate(members):
        mine = (owner == i).nonzero()[:, 0]
        rows = (of.cpu()[mine] - first[i]).to(DEVICE)
        f, df = member.to(torch.float64).value_and_grad(x[mine.to(DEVICE)].double(), of=rows)
        tolerance = 1e-11 if dtype == torch.float64 else 2e-4
        torch.testing.assert_close(value[mine.to(DEVICE), 0].double(), f, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(gradient[mine.to(DEVICE), 0].double(), df, rtol=tolerance, atol=10 * tolerance)


def test_models_that_differ_in_kind_are_not_joined() -> None:
    one, other = paths_of(K.Matern(2.5, 0.3), 2, features="sobol"), paths_of(K.RBF(0.3), 2, features="sobol")
    linear = paths_of(K.RBF(0.3), 2, features="sobol", mean=LinearMean([1.0, 2.0]))
    assert fused.join([one.record, one.record]) is not None
    assert fused.join([one.record, other.record]) is None and fused.join([other.record, linear.record]) is None
