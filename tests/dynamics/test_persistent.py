"""Roll-outs in one kernel: the same trajectories as step by step, in every branch.

Without a CUDA device the kernel runs in Triton's interpreter on the CPU; with one, there, and the tests marked gpu too.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor

import matheron
from interpreter import device_of_kernels
from matheron import OutputPaths, Paths, SparseGP, draw, draw_prior
from matheron import kernels as K
from matheron.evaluate import fused
from matheron.evaluate.fused import recursion
from matheron.models.means import LinearMean, Mixed, Stacked
from matheron.models.transforms import Affine, Chain, Exp

DEVICE = device_of_kernels()  # before any kernel is loaded
gpu = pytest.mark.skipif(DEVICE != "cuda", reason="needs a CUDA device")
rollout_module = import_module("matheron.dynamics.rollouts")
S = 3


def gen(seed: int = 0, device: str = "cpu") -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


@pytest.fixture(autouse=True)
def served(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the interpreter the kernels serve a CPU."""
    if DEVICE == "cpu":
        monkeypatch.setattr(recursion, "serves", lambda record: fused.plan_of(record) is not None)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of steps of each launch."""
    counts: list[int] = []
    advance = recursion.Recursion.advance

    def counted(self: Any, x: Tensor, drive: Any, kept: Tensor, first: int, count: int, every: int, adds: bool) -> None:
        counts.append(count)
        advance(self, x, drive, kept, first, count, every, adds)

    monkeypatch.setattr(recursion.Recursion, "advance", counted)
    return counts


def stepwise(*args: Any, **settings: Any) -> Tensor:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rollout_module, "fused_rollout", lambda *_: None)
        return matheron.rollout(*args, **settings)


def sparse(kernel: K.Kernel, d: int = 3, s: int = S, *, ell: int = 30, seed: int = 1, **settings: Any) -> Paths:
    """Float64 paths of one output given 7 inducing values."""
    how = {name: settings.pop(name) for name in ("paths_per_basis", "features", "domain") if name in settings}
    Z = torch.rand(7, d, generator=gen(seed), dtype=torch.float64)
    u = torch.randn(7, generator=gen(seed + 1), dtype=torch.float64)
    return draw(SparseGP(kernel, Z, u, **settings), s, num_features=ell, generator=gen(seed + 2), **how).to(DEVICE)


def coregional(d: int, t: int, **settings: Any) -> Paths:
    B = torch.eye(t) + 0.4
    return draw_prior(
        K.Coregional(K.RBF(0.5), B) + K.Coregional(K.Matern(2.5, 0.7), torch.eye(t)),
        S,
        input_dim=d,
        num_features=20,
        generator=gen(),
        **settings,
    ).to(DEVICE)


EVERY_KIND = (
    K.RBF([0.4, 0.7, 0.9]) + 0.5 * K.Matern(0.5, 0.8) + K.Matern(1.5, 0.6).on(1) + K.RationalQuadratic(0.8, 0.5)
)
TWO_OF_A_KIND = K.RBF(0.5) + 0.3 * K.RBF([0.4, 0.9, 0.6])
INPUT = Chain([Affine(0.5, [0.1, 0.2, -0.3]), Affine([1.0, -2.0, 0.5], 1.0)])

# Drifts of 3 inputs: d_s outputs, and 3 - d_s controls.
DRIFTS: dict[str, Callable[[], Any]] = {
    "one output": lambda: sparse(K.RBF(0.7)),
    "a basis for all": lambda: [sparse(K.RBF(0.7)), sparse(K.RBF(0.5), seed=5)],
    "a basis for two paths each": lambda: [
        sparse(K.Matern(2.5, 0.7), s=5, paths_per_basis=2, seed=i) for i in range(2)
    ],
    "a basis each, and one for all of more features": lambda: [
        sparse(K.Matern(1.5, 0.7), paths_per_basis=1),
        sparse(K.RBF(0.7), ell=150),
    ],
    "three states and no control": lambda: [sparse(K.RBF(0.4 + 0.1 * i), seed=i) for i in range(3)],
    "kernels of every kind": lambda: [sparse(K.Matern(2.5, 0.8)), sparse(EVERY_KIND, features="sobol")],
    "two kernels of one kind": lambda: [sparse(TWO_OF_A_KIND), sparse(K.RBF(0.6))],
    "cosines": lambda: [sparse(K.RBF(0.7), features="cosine", paths_per_basis=1), sparse(K.RBF(0.6), ell=21)],
    "two outputs of one model": lambda: coregional(3, 2),
    "a model of two outputs given data, and one of one": lambda: [
        coregional(3, 2, paths_per_basis=1).condition_on(
            torch.rand(4, 3, generator=gen(1)), torch.rand(4, 2, generator=gen(2)), noise=0.1, generator=gen(3)
        ),
        sparse(K.RBF(0.7)),
    ],
    "harmonics for all beside a basis each": lambda: draw_prior(
        K.RBF(0.6) + K.Periodic(1.0, 0.8).on(0),
        S,
        input_dim=3,
        num_features=40,
        paths_per_basis=1,
        generator=gen(),
    ).to(DEVICE),
    "transforms and means": lambda: [
        sparse(K.RBF(0.7), input_transform=INPUT, output_transform=Affine(2.0, 0.4), mean=0.7),
        sparse(K.Matern(1.5, 0.4), input_transform=Affine(-0.2, 1.0), mean=LinearMean([1.0, -2.0, 0.5], 0.3)),
    ],
    "stacked and mixed means": lambda: coregional(
        3, 2, mean=Mixed(Stacked([LinearMean([1.0, 2.0, 3.0]), LinearMean([0.0, 1.0, 0.0])]), [[1.0, 0.5], [0.2, 1.0]])
    ),
    "a model without features": lambda: [draw_prior(0.0 * K.RBF(0.5), S, input_dim=3, mean=1.5).to(DEVICE)] * 2,
}


def setting(drift: Any, steps: int = 3) -> dict[str, Any]:
    """A start, controls of each trajectory's own, and correlated noise."""
    paths = OutputPaths(drift) if isinstance(drift, list) else drift
    s, t = paths.num_paths, paths.num_outputs
    B = torch.rand(t, t, generator=gen(11), dtype=torch.float64)
    return dict(
        initial_state=torch.rand(s, t, generator=gen(12), dtype=torch.float64),
        steps=steps,
        dt=0.1,
        controls=torch.rand(s, steps, 3 - t, generator=gen(13), dtype=torch.float64) if t < 3 else None,
        diffusion=0.1 * (B @ B.T + torch.eye(t)),
    )


@pytest.mark.parametrize("dtype", [pytest.param(torch.float32, marks=pytest.mark.slow), torch.float64])
@pytest.mark.parametrize("name", DRIFTS)
def test_the_states_are_those_of_single_steps(name: str, dtype: torch.dtype, launches) -> None:
    drift = DRIFTS[name]()
    drift = [paths.to(dtype) for paths in drift] if isinstance(drift, list) else drift.to(dtype)
    wide = [paths.to(torch.float64) for paths in drift] if isinstance(drift, list) else drift.to(torch.float64)
    how = setting(drift)
    start = how["initial_state"].to(dtype)
    got = matheron.rollout(drift, **how | dict(initial_state=start), generator=gen(7))
    assert launches == [3] and got.dtype == dtype
    expected = stepwise(wide, **how | dict(initial_state=start.double()), generator=gen(7))
    assert launches == [3]
    assert (got[:, -1] - got[:, 0]).abs().mean() > 0.01  # they do move
    atol = 1e-12 if dtype == torch.float64 else 2e-6 * (1 + float(expected.abs().max()))
    torch.testing.assert_close(got.double(), expected, rtol=0, atol=atol)


NOISE = {
    "none": None,
    "one variance": 0.04,
    "one per state": [0.04, 0.01],
    "a covariance": [[0.04, 0.01], [0.01, 0.02]],
}


@pytest.mark.parametrize("diffusion", NOISE)
@pytest.mark.parametrize("controls", ["none", "shared", "own", "of time", "of time, own"])
def test_any_controls_and_noise_give_the_same_states(controls: str, diffusion: str, launches) -> None:
    steps, d_c = 2, 0 if controls == "none" else 2
    drift = [sparse(K.RBF(0.7), 2 + d_c, 2, seed=i) for i in range(2)]
    shared, own = torch.rand(steps + 1, 2, generator=gen(1)), torch.rand(2, steps, 2, generator=gen(2))
    given = {
        "none": None,
        "shared": shared,
        "own": own,
        "of time": lambda time: shared[round(time / 0.1)],
        "of time, own": lambda time: own[:, round(time / 0.1)],
    }[controls]
    how: dict[str, Any] = dict(controls=given, diffusion=NOISE[diffusion])
    got = matheron.rollout(drift, [0.1, 0.9], steps, 0.1, generator=gen(7), **how)
    assert launches == [steps]
    torch.testing.assert_close(got, stepwise(drift, [0.1, 0.9], steps, 0.1, generator=gen(7), **how))


@pytest.mark.parametrize("diffusion", [None, 0.04])
@pytest.mark.parametrize("method", ["euler", "change", "next"])
def test_actions_and_maps_in_discrete_time_give_the_same_states(method: str, diffusion: Any, launches) -> None:
    """Three sequences for two paths: every sequence on every path, each trajectory with noise of its own."""
    drift = [sparse(K.RBF(0.7), s=2, seed=i) for i in range(2)]
    start = torch.tensor([[0.1, 0.9], [0.4, 0.2]], dtype=torch.float64)
    how: dict[str, Any] = dict(
        dt=0.1, method=method, actions=torch.rand(3, 3, 1, generator=gen()), diffusion=diffusion, keep_every=2
    )
    got = matheron.rollout(drift, start, 3, generator=gen(7), **how)
    assert launches == [3] and got.shape == (3, 2, 2, 2) and len(got[:, :, 1].flatten(0, 1).unique(dim=0)) == 6
    torch.testing.assert_close(got, stepwise(drift, start, 3, generator=gen(7), **how))


@pytest.mark.parametrize("diffusion", [None, 0.04])
def test_actions_over_several_launches_are_the_same(diffusion: Any, launches, monkeypatch) -> None:
    drift = [sparse(K.RBF(0.7), s=2, seed=i) for i in range(2)]
    how: dict[str, Any] = dict(actions=torch.rand(2, 3, 1, generator=gen()), diffusion=diffusion)
    expected = stepwise(drift, [0.1, 0.9], 3, 0.1, generator=gen(7), **how)
    # Two steps of two sequences in three inputs, or one of four.
    monkeypatch.setattr(
        rollout_module, "fused_rollout", partial(rollout_module.fused_rollout, table_size=2 * 2 * 3 + 1)
    )
    got = matheron.rollout(drift, [0.1, 0.9], 3, 0.1, generator=gen(7), **how)
    assert launches == ([2, 1] if diffusion is None else [1, 1, 1])
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("keep_every", [1, 2, 3, 6])
def test_thinned_states_over_several_launches_are_the_same(keep_every: int, launches, monkeypatch) -> None:
    drift = [sparse(K.RBF(0.7), s=2, seed=i) for i in range(2)]
    how: dict[str, Any] = dict(controls=torch.rand(5, 1, generator=gen()), diffusion=0.04, keep_every=keep_every)
    expected = stepwise(drift, [0.1, 0.9], 5, 0.1, generator=gen(7), **how)
    # Two steps of two paths in three inputs.
    monkeypatch.setattr(
        rollout_module, "fused_rollout", partial(rollout_module.fused_rollout, table_size=2 * 2 * 3 + 1)
    )
    got = matheron.rollout(drift, [0.1, 0.9], 5, 0.1, generator=gen(7), **how)
    assert launches == [2, 2, 1]
    torch.testing.assert_close(got, expected)


def test_noise_and_random_controls_of_one_generator_come_in_the_order_of_the_steps(launches) -> None:
    drift = [sparse(K.RBF(0.7), s=2, seed=i) for i in range(2)]

    def run(rollout: Any) -> Tensor:
        g = gen(3)
        random = lambda time: torch.rand(1, generator=g)  # noqa: E731
        return rollout(drift, [0.1, 0.9], 3, 0.1, controls=random, diffusion=0.04, generator=g)

    torch.testing.assert_close(run(matheron.rollout), run(stepwise))
    assert launches == [3]


@pytest.mark.parametrize("offset", [0.0, 1000.0])  # near zero points have more digits than their differences
def test_float32_keeps_its_digits_far_from_zero_and_many_lengthscales_long(offset: float, launches) -> None:
    """A control hundreds of turns of a feature from the origin, which the state's change depends on."""
    Z = torch.rand(7, 2, generator=gen(), dtype=torch.float64) + torch.tensor([0.0, offset], dtype=torch.float64)
    gp = SparseGP(K.RBF([1.0, 0.0005]), Z, torch.randn(7, generator=gen(1)))
    paths = draw(gp, 4, num_features=64, generator=gen(2)).to(DEVICE, torch.float32)
    control = (torch.rand(4, 1, 1, generator=gen(3)) ** 3 + offset).to(DEVICE)
    change = matheron.rollout(paths, [0.0], 1, 0.1, controls=control)[:, 1, 0]
    x = torch.cat([torch.zeros_like(control), control], dim=-1)
    expected = 0.1 * paths.to("cpu", torch.float64)(x.double().cpu())[:, 0]
    assert launches == [1] and expected.abs().mean() > 0.01
    torch.testing.assert_close(change.double().cpu(), expected, rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, in the interpreter
def test_a_diverging_trajectory_is_named_and_leaves_the_others_alone(launches) -> None:
    paths = sparse(K.Matern(1.5, 0.3), 1, mean=LinearMean([5.0])).to(torch.float32)
    start = torch.tensor([[0.5], [3e38], [0.1]])
    with pytest.warns(
        matheron.DivergenceWarning, match="1 of 3 trajectories diverged, first that of path 1, by step 1"
    ):
        states = matheron.rollout(paths, start, 3, 0.1)
    alone = matheron.rollout(paths[[0, 2]], start[[0, 2]], 3, 0.1)
    assert launches == [3, 3]
    torch.testing.assert_close(states[[0, 2]], alone, rtol=0, atol=0)
    assert bool(states[1, 1:].isnan().all()) and bool(states[:, 0].isfinite().all())


DECLINED: dict[str, Callable[[], Any]] = {
    "a domain": lambda: sparse(K.RBF(0.1), 1, features="equispaced", domain=(-9.0, 9.0)),
    "an output transform that is not affine": lambda: sparse(K.RBF(0.1), 1, output_transform=Exp()),
    "a mean that is not affine": lambda: sparse(K.RBF(0.1), 1, mean=lambda x: x[..., 0].sin()),
    "a kernel without a fused one": lambda: sparse(K.RBF(0.1) + K.Linear(), 1),
    "more kernels than slots": lambda: sparse(K.Sum(*(K.RBF(0.01 * i) for i in range(2, 11))), 1),
    "members of two dtypes": lambda: [sparse(K.RBF(0.3), 2), sparse(K.RBF(0.3), 2, seed=5).to(torch.float32)],
    "seventeen inputs": lambda: [sparse(K.RBF(2.0), 17, seed=i) for i in range(17)],
    "paths of an ensemble": lambda: matheron.EnsemblePaths(
        [sparse(K.RBF(0.1), 1)], torch.zeros(S, dtype=torch.long, device=DEVICE)
    ),
}


@pytest.mark.parametrize("name", DECLINED)
def test_what_the_kernel_does_not_serve_goes_step_by_step(name: str, launches) -> None:
    drift = DECLINED[name]()
    start = [0.5] * (len(drift) if isinstance(drift, list) else 1)
    states = matheron.rollout(drift, start, 3, 0.05, diffusion=0.01, generator=gen())
    assert launches == [] and bool(states.isfinite().all())
    torch.testing.assert_close(states, stepwise(drift, start, 3, 0.05, diffusion=0.01, generator=gen()))


def test_a_policy_and_gradients_go_step_by_step(launches) -> None:
    drift = [sparse(K.RBF(0.7), seed=i) for i in range(2)]
    policy = lambda time, state: state[:, :1] * 0.5 + time  # noqa: E731
    start = torch.full((S, 2), 0.5, dtype=torch.float64, device=DEVICE, requires_grad=True)
    states = matheron.rollout(drift, start, 3, 0.1, controls=policy)
    tied = matheron.rollout(drift, start, 3, 0.1, controls=policy, gradients=True)
    table = torch.stack([policy(0.1 * t, states[:, t]) for t in range(3)], dim=1)
    assert launches == [] and tied.requires_grad
    torch.testing.assert_close(tied.detach(), states)
    torch.testing.assert_close(matheron.rollout(drift, start, 3, 0.1, controls=table), states)
    assert launches == [3]


def test_too_many_or_too_few_controls_are_refused(launches) -> None:
    drift = [sparse(K.RBF(0.7), seed=i) for i in range(2)]
    with pytest.raises(ValueError, match=r"controls: expected 1 per step.*got 2"):
        matheron.rollout(drift, [0.1, 0.2], 3, 0.1, controls=lambda time: [0.1, 0.2])
    for controls in (None, torch.zeros(3, 2)):
        with pytest.raises(ValueError, match="controls: expected 1 per step"):
            matheron.rollout(drift, [0.1, 0.2], 3, 0.1, controls=controls)
    assert launches == []


def test_noise_is_the_same_however_many_steps_are_taken_at_a_time() -> None:
    state = torch.zeros(3, 2, dtype=torch.float64)
    one, many = (rollout_module.Noise(0.1, 0.1, state, gen(3)) for _ in range(2))
    steps = 2 * rollout_module.Noise.block + 5
    rows = torch.cat([one.take(1) for _ in range(steps)])
    assert torch.equal(torch.cat([many.take(7), many.take(steps - 7)]), rows)
    assert abs(float(rows.std()) - 1) < 0.1 and len(rows.unique()) == rows.numel()
    long = matheron.rollout(lambda x: -x, state, 9, 0.1, diffusion=0.1, seed=0)
    assert torch.equal(matheron.rollout(lambda x: -x, state, 4, 0.1, diffusion=0.1, seed=0), long[:, :5])


# On a device: many trajectories, long ones, and what they cost.


def neuron(s: int, dtype: torch.dtype, **settings: Any) -> list[Paths]:
    Z = torch.rand(32, 3, generator=gen(), dtype=torch.float64)
    u = [0.1 * torch.randn(32, generator=gen(1 + i), dtype=torch.float64) for i in range(2)]
    mean = [LinearMean([-1.0, 0.0, 0.5], 0.2), LinearMean([0.0, -1.0, 0.0], 0.2)]
    gps = [SparseGP(K.Matern(2.5, 0.5), Z, u[i], torch.full((32,), 0.1), mean=mean[i]) for i in range(2)]
    return [draw(gp, s, num_features=1024, generator=gen(5), **settings).to("cuda", dtype) for gp in gps]


@gpu
@pytest.mark.gpu
@pytest.mark.parametrize("paths_per_basis", [None, 1, 64])
@pytest.mark.parametrize("s", [1, 100, 1500])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_many_trajectories_on_a_device_are_those_of_single_steps(s, paths_per_basis, dtype, launches) -> None:
    drift = neuron(s, dtype, paths_per_basis=paths_per_basis)
    for device in ("cpu", "cuda"):
        how: dict[str, Any] = dict(controls=torch.rand(20, 1, generator=gen()), diffusion=[0.01, 0.02], keep_every=3)
        got = matheron.rollout(drift, [0.5, 0.5], 20, 0.02, generator=gen(3, device), **how)
        expected = stepwise(drift, [0.5, 0.5], 20, 0.02, generator=gen(3, device), **how)
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-10 if dtype == torch.float64 else 2e-5)
    assert len(launches) == 2


@gpu
@pytest.mark.gpu
def test_long_trajectories_on_a_device_agree_in_law(launches) -> None:
    """Chaos takes trajectories apart; their law stays: means within sampling error, of independent noise."""
    drift = neuron(2000, torch.float32)
    how: dict[str, Any] = dict(controls=torch.rand(1000, 1, generator=gen()), diffusion=0.05, keep_every=100)
    a = matheron.rollout(drift, [0.5, 0.5], 1000, 0.02, generator=gen(3), **how)[:, 1:]
    b = stepwise(drift, [0.5, 0.5], 1000, 0.02, generator=gen(4), **how)[:, 1:]
    error = (a.var(0) + b.var(0)).div(2000).sqrt()
    assert ((a.mean(0) - b.mean(0)).abs() < 5 * error).all()
    assert ((a.var(0) / b.var(0)).log().abs() < 0.5).all() and sum(launches) == 1000


@gpu
@pytest.mark.gpu
@pytest.mark.parametrize("name", [*DECLINED, "a mean that waits for the device"])
def test_the_graph_of_a_step_or_the_step_itself_serves_the_rest(name: str, launches) -> None:
    waits = lambda x: x[..., 0] * float(x.abs().max() > -1)  # noqa: E731
    drift = DECLINED[name]() if name in DECLINED else sparse(K.RBF(0.1), 1, mean=waits)
    here = [paths.to("cpu") for paths in drift] if isinstance(drift, list) else drift.to("cpu")
    start = [0.5] * (len(drift) if isinstance(drift, list) else 1)
    there = matheron.rollout(drift, start, 5, 0.05, diffusion=0.01, generator=gen())
    expected = matheron.rollout(here, start, 5, 0.05, diffusion=0.01, generator=gen())
    single: dict[str, Any] = dict(rtol=1e-3, atol=1e-4) if name == "members of two dtypes" else {}
    torch.testing.assert_close(there.cpu(), expected, **single)
    assert launches == []


COMPILE = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from matheron.evaluate.fused.steps import advance

names = advance.arg_names
numbers = {"each", "driven", "count", "first", "every", "kept_s", "F", "M"}
fixed = dict(T=3, TP=4, D=4, DP=4, BITS=10, KINDS=2, SLOTS=1, LINEAR=True, BF=64)
for split in (True, False):
    for choice in (True, False):
        constants = {**fixed, "SPLIT": split, "ADDS": choice, "DRIVEN": choice}
        types = {"at": "*i64", **dict.fromkeys(numbers, "i32"), **dict.fromkeys(constants, "constexpr")}
        signature = {name: types.get(name, "*fp32" if split else "*fp64") for name in names}
        source = ASTSource(advance, signature, {(names.index(name),): value for name, value in constants.items()})
        print(len(compile(source, target=GPUTarget("cuda", 90, 32)).asm["cubin"]))
"""


@pytest.mark.slow
def test_the_kernel_compiles_for_a_gpu_where_there_is_none(tmp_path):
    """The interpreter takes what the compiler does not; Triton brings its own assembler."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) == 4 and min(map(int, done.stdout.split())) > 1000
