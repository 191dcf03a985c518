"""What is refused at the border: each error says what was expected, what came, and what to do."""

import math
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from sklearn.gaussian_process.kernels import RBF as GaussianKernel

import matheron
from examples import COUPLED, gen, paths_of, rand, randn
from matheron import ExactGP, SparseGP
from matheron import kernels as K

# Whatever a type checker would say of the arguments below.
draw: Any = matheron.draw
draw_prior: Any = matheron.draw_prior
rbf: Any = K.RBF

WORDS: Any = [["a", "b"]]
NOTHING: Any = None
NAN, INF = float("nan"), math.inf
GP = ExactGP(K.RBF(0.5), rand(3, 2), randn(3), 0.1)


def exact(**wrong: Any) -> ExactGP:
    return ExactGP(**({"kernel": K.RBF(0.5), "X": rand(3, 2), "y": randn(3), "noise": 0.1} | wrong))


def sparse(**wrong: Any) -> SparseGP:
    return SparseGP(**({"kernel": K.RBF(0.5), "Z": rand(3, 2), "q_mean": randn(3)} | wrong))


def coupled(**wrong: Any) -> ExactGP:
    return exact(**({"kernel": COUPLED, "tasks": [0, 1, 0]} | wrong))


def prior(*args: Any, **settings: Any):
    return draw_prior(*(args or (K.RBF(0.5), 2)), **({"input_dim": 2} | settings))


# What is done, the error, and what it says.
REFUSALS: dict[str, tuple[Any, type[Exception], str]] = {
    # Data.
    "NaN inputs": (lambda: exact(X=[[NAN, 0.0]] * 3), ValueError, "X: expected finite numbers, got 3 NaN or infinite"),
    "infinite inputs": (lambda: exact(X=[[INF, 0.0]] * 3), ValueError, "X: expected finite numbers, got 3 NaN"),
    "NaN targets": (lambda: exact(y=[0.0, NAN, 1.0]), ValueError, "y: expected finite numbers, got 1 NaN or inf"),
    "infinite targets": (lambda: exact(y=[0.0, -INF, 1.0]), ValueError, "y: expected finite numbers"),
    "NaN noise": (lambda: exact(noise=NAN), ValueError, "noise: expected finite numbers"),
    "infinite noise": (lambda: exact(noise=[0.1, INF, 0.1]), ValueError, "noise: expected finite numbers"),
    "negative noise": (
        lambda: exact(noise=-1e-3),
        ValueError,
        "noise: expected variances >= 0, got a smallest of -0.001",
    ),
    "one negative noise": (lambda: exact(noise=[0.1, -0.2, 0.1]), ValueError, "got a smallest of -0.2"),
    "flat inputs": (
        lambda: exact(X=rand(3)),
        ValueError,
        r"X: expected points of shape \[n, d\], got shape \[3\]; for one",
    ),
    "batched inputs": (lambda: exact(X=rand(2, 3, 2)), ValueError, r"X: expected points of shape \[n, d\]"),
    "no inputs": (lambda: exact(X=rand(0, 2), y=randn(0)), ValueError, r"at least one observation.*draw_prior"),
    "too few targets": (
        lambda: exact(y=randn(2)),
        ValueError,
        r"y: expected \[3\], one number per row of X \[3, 2\], got \[2\]",
    ),
    "a column of targets": (lambda: exact(y=randn(3, 1)), ValueError, r"got \[3, 1\]; use y\[:, 0\]"),
    "a table's column of targets": (
        lambda: exact(y=pandas.DataFrame({"y": [1.0, 2.0, 3.0]})),
        ValueError,
        r"got \[3, 1\]; use np\.ravel\(y\)",
    ),
    "a list of rows for targets": (lambda: exact(y=[[1.0], [2.0], [3.0]]), ValueError, r"; use np\.ravel\(y\)"),
    "a table's column of inputs": (
        lambda: exact(X=pandas.Series([1.0, 2.0, 3.0])),
        ValueError,
        r"for one dimension use np\.c_\[X\]",
    ),
    "a table with categories": (
        lambda: exact(X=pandas.DataFrame({"a": [1.0, 2.0, 3.0], "kind": ["u", "v", "u"]})),
        TypeError,
        r"leave out kind, or make numbers of them, as pandas\.get_dummies does",
    ),
    "two columns of targets": (lambda: exact(y=randn(3, 2)), ValueError, r"for 2 outputs use kernels\.Coregional"),
    "another library's kernel": (
        lambda: exact(kernel=GaussianKernel(0.5)),
        TypeError,
        r"matheron\.adapters\.sklearn\.translate\(kernel, input_dim\) makes one of it",
    ),
    "a kernel's class": (lambda: exact(kernel=K.RBF), TypeError, "got the class RBF: make one of it"),
    "a number for targets": (lambda: exact(y=1.0), ValueError, r"y: expected \[3\]"),
    "too few noises": (
        lambda: exact(noise=[0.1, 0.2]),
        ValueError,
        r"noise: expected a variance, or one per point \(\[3\]\)",
    ),
    "a matrix of noise": (
        lambda: exact(noise=0.1 * np.eye(3)),
        ValueError,
        "noise: expected a variance, or one per point",
    ),
    # Dtypes.
    "half inputs": (
        lambda: exact(X=rand(3, 2).half()),
        TypeError,
        r"X: expected float32 or float64, got torch.float16; conv",
    ),
    "bfloat inputs": (
        lambda: exact(X=rand(3, 2).bfloat16()),
        TypeError,
        "X: expected float32 or float64, got torch.bfl",
    ),
    "complex inputs": (
        lambda: exact(X=rand(3, 2) * 1j),
        TypeError,
        "X: expected real numbers, got dtype torch.complex128",
    ),
    "boolean inputs": (
        lambda: exact(X=rand(3, 2) > 0.5),
        TypeError,
        r"X: expected real numbers, got dtype torch.bool; 1.0 \* X has",
    ),
    "words for inputs": (
        lambda: exact(X=[["a", "b"]] * 3),
        TypeError,
        "X: expected a tensor, a NumPy array or numbers, got l",
    ),
    "objects for inputs": (
        lambda: exact(X=np.array([[None]])),
        TypeError,
        "X: expected a tensor, a NumPy array or numbers",
    ),
    "ragged inputs": (
        lambda: exact(X=[[0.0], [1.0, 2.0]]),
        TypeError,
        "X: expected a tensor, a NumPy array or numbers",
    ),
    "complex targets": (lambda: exact(y=randn(3) * 1j), TypeError, "y: expected real numbers"),
    "words for noise": (
        lambda: exact(noise="small"),
        TypeError,
        "noise: expected a tensor, a NumPy array or numbers, got str",
    ),
    "nothing for noise": (
        lambda: exact(noise=None),
        TypeError,
        "noise: expected a tensor, a NumPy array or numbers, got Non",
    ),
    "a device that there is none of": (
        lambda: draw(GP, 1, device="gpu"),
        ValueError,
        'device: expected one such as "cpu", "cuda" or "cuda:1", got \'gpu\'',
    ),
    "a GPU that is not there": (lambda: draw(GP, 1, device="cuda:99"), ValueError, "device: cuda:99 is not there"),
    "a device to load to that there is none of": (
        lambda: matheron.load("draw.safetensors", device="gpu"),
        ValueError,
        'device: expected one such as "cpu"',
    ),
    "a device of a prior": (
        lambda: matheron.draw_prior(K.RBF(), 1, input_dim=1, device="cuda:99"),
        ValueError,
        "device: cuda:99 is not there",
    ),
    "a dtype that paths do not have": (
        lambda: draw(GP, 1, dtype=torch.float16),
        TypeError,
        "dtype: expected torch.float32 or",
    ),
    "an integer dtype for a prior": (
        lambda: prior(dtype=torch.int64),
        TypeError,
        "dtype: expected torch.float32 or torch.fl",
    ),
    # Kernels and means.
    "a word for a kernel": (
        lambda: exact(kernel="rbf"),
        TypeError,
        r"kernel: expected a kernel of matheron.kernels \(.*Matern, .*RBF, .*got builtins.str",
    ),
    "a class for a kernel": (lambda: exact(kernel=K.RBF), TypeError, "kernel: expected a kernel of matheron.kernels"),
    "a function for a kernel": (
        lambda: sparse(kernel=lambda x, z: 1.0),
        TypeError,
        "kernel: expected a kernel of matheron",
    ),
    "a word for a prior's kernel": (
        lambda: prior("rbf", 2),
        TypeError,
        "kernel: expected a kernel of matheron.kernels",
    ),
    "lengthscales of other dimensions": (
        lambda: exact(kernel=K.RBF([1.0] * 3)),
        ValueError,
        r"lengthscale: expected a numb",
    ),
    "coordinates that are not there": (
        lambda: exact(kernel=K.RBF().on(2)),
        ValueError,
        "dims: expected coordinates below 2",
    ),
    "a cosine of two dimensions": (
        lambda: exact(kernel=K.Cosine(1.0)),
        ValueError,
        "Cosine: expected points in one dimension, got 2",
    ),
    "a word for a mean": (
        lambda: exact(mean="zero"),
        TypeError,
        "mean: expected a number, one per output, or a callable, got s",
    ),
    "means of other outputs": (
        lambda: exact(mean=[1.0, 2.0]),
        ValueError,
        r"mean: expected a number, or one per output \(1\), g",
    ),
    "too many means": (
        lambda: coupled(mean=[1.0, 2.0, 3.0]),
        ValueError,
        r"mean: expected a number, or one per output \(2\), got 3",
    ),
    "a mean that is not finite": (lambda: exact(mean=NAN), ValueError, "mean: expected finite numbers"),
    "a mean of other points": (
        lambda: draw(exact(mean=lambda x: x[:1, :1, 0]), 1),
        ValueError,
        r"mean: expected a tensor \[1, 3\].*a column of the points is x\[\.\.\., 0\]",
    ),
    "a mean of two outputs": (
        lambda: draw(exact(mean=lambda x: x), 1),
        ValueError,
        "mean: expected one number per point for one output, got 2 of them",
    ),
    "a mean that answers NumPy": (lambda: draw(exact(mean=lambda x: np.ones(3)), 1), ValueError, "got ndarray"),
    # Tasks.
    "tasks of one output": (
        lambda: exact(tasks=[0, 0, 0]),
        ValueError,
        r"tasks: given, but the kernel has one output; wrap it",
    ),
    "targets without tasks": (
        lambda: coupled(tasks=None),
        ValueError,
        r"y: expected \[3, 2\], every output at every point, got \[3\]",
    ),
    "an output that is missing": (
        lambda: coupled(tasks=None, y=[[1.0, 2.0], [NAN, 1.0], [0.0, 1.0]]),
        ValueError,
        r"got 1 NaN or infinite of 6; where some outputs .* y\[row, task\], tasks=task",
    ),
    "too few tasks": (
        lambda: coupled(tasks=[0, 1]),
        ValueError,
        r"tasks: expected \[3\] whole numbers, got shape \[2\]",
    ),
    "a task too large": (
        lambda: coupled(tasks=[0, 1, 2]),
        ValueError,
        "tasks: expected whole numbers from 0 to 1, got up to 2",
    ),
    "a negative task": (lambda: coupled(tasks=[0, 1, -1]), ValueError, "tasks: expected whole numbers from 0 to 1"),
    "half a task": (lambda: coupled(tasks=[0, 0.5, 1]), ValueError, "tasks: expected .* whole numbers"),
    "inducing points without tasks": (
        lambda: sparse(kernel=COUPLED),
        ValueError,
        r"tasks: expected \[3\] whole numbers below 2",
    ),
    # q(u).
    "no q": (lambda: sparse(q_mean=None), ValueError, "expected either q_mean .* or sample_u"),
    "two qs": (lambda: sparse(sample_u=lambda s, g: 0), ValueError, "expected either q_mean .* or sample_u"),
    "a q that draws nothing": (lambda: sparse(q_mean=None, sample_u=3), ValueError, "sample_u: expected a function"),
    "a root beside draws": (
        lambda: sparse(q_mean=None, sample_u=lambda s, g: 0, q_scale_tril=np.eye(3)),
        ValueError,
        "sample_u: expected a function .* and no q_scale_tril",
    ),
    "q of other points": (
        lambda: sparse(q_mean=randn(4)),
        ValueError,
        r"q_mean: expected \[3\], one per row of Z, got \[4\]",
    ),
    "a root of another size": (
        lambda: sparse(q_scale_tril=np.eye(2)),
        ValueError,
        r"q_scale_tril: expected \[3, 3\] or \[3\], got",
    ),
    "a q that is not finite": (lambda: sparse(q_mean=[NAN, 0.0, 0.0]), ValueError, "q_mean: expected finite numbers"),
    "negative jitter": (lambda: sparse(jitter=-1e-6), ValueError, "jitter: expected zero or positive numbers"),
    "no inducing points": (
        lambda: sparse(Z=rand(0, 2), q_mean=randn(0)),
        ValueError,
        "Z: expected at least one inducing point",
    ),
    "draws of another shape": (
        lambda: draw(sparse(q_mean=None, sample_u=lambda s, g: torch.zeros(3)), 2),
        ValueError,
        r"sample_u: expected draws \[2, 3\], got \[3\]",
    ),
    "draws that are not finite": (
        lambda: draw(sparse(q_mean=None, sample_u=lambda s, g: torch.full((s, 3), NAN)), 2),
        ValueError,
        "sample_u: expected finite numbers",
    ),
    # Drawing.
    "no paths": (lambda: draw(GP, 0), ValueError, "num_paths: expected a whole number of at least 1, got 0"),
    "fewer than no paths": (
        lambda: draw(GP, -3),
        ValueError,
        "num_paths: expected a whole number of at least 1, got -3",
    ),
    "half a path": (lambda: draw(GP, 2.5), ValueError, "num_paths: expected a whole number of at least 1, got 2.5"),
    "true paths": (lambda: draw(GP, True), ValueError, "num_paths: expected a whole number of at least 1, got True"),
    "words for paths": (
        lambda: draw(GP, "ten"),
        ValueError,
        "num_paths: expected a whole number of at least 1, got 'ten'",
    ),
    "NaN paths": (lambda: draw(GP, NAN), ValueError, "num_paths: expected a whole number of at least 1, got nan"),
    "infinitely many paths": (
        lambda: draw(GP, INF),
        ValueError,
        "num_paths: expected a whole number of at least 1, got inf",
    ),
    "nothing for paths": (
        lambda: draw(GP, None),
        ValueError,
        "num_paths: expected a whole number of at least 1, got None",
    ),
    "no paths of a prior": (lambda: prior(K.RBF(), 0), ValueError, "num_paths: expected a whole number"),
    "no features": (
        lambda: draw(GP, 1, num_features=0),
        ValueError,
        "num_features: expected a whole number of at least 1",
    ),
    "no paths per basis": (
        lambda: draw(GP, 1, paths_per_basis=0),
        ValueError,
        "paths_per_basis: expected a whole number",
    ),
    "no dimensions": (lambda: prior(input_dim=0), ValueError, "input_dim: expected a whole number of at least 1"),
    "unknown features": (
        lambda: draw(GP, 1, features="haar"),
        ValueError,
        "features: expected one of auto, .* or a Features object, got 'haar'",
    ),
    "an unknown solver": (
        lambda: draw(GP, 1, solver="lu"),
        ValueError,
        "solver: expected one of auto, cg, .*lattice, got 'lu'",
    ),
    "features of other dimensions": (
        lambda: draw(GP, 1, features=prior(input_dim=3).prior.features),
        ValueError,
        "features: made for 3 dimensions, got points in 2",
    ),
    "features of other outputs": (
        lambda: draw(GP, 1, features=prior(COUPLED, 1).prior.features),
        ValueError,
        "features: made for 2 outputs, got a kernel of 1",
    ),
    "features of fewer outputs": (
        lambda: prior(COUPLED, 1, features=prior().prior.features),
        ValueError,
        "features: made for 1 outputs, got a kernel of 2",
    ),
    "a model of no library": (
        lambda: draw(object(), 1),
        TypeError,
        r"model: expected a model of .*ExactGP or SparseGP, got builtins.object",
    ),
    "a kernel for a model": (lambda: draw(K.RBF(), 1), TypeError, "model: expected a model of"),
    # Domains.
    "equispaced without a domain": (
        lambda: draw(GP, 1, features="equispaced"),
        ValueError,
        r"features=\"equispaced\" needs domain=\(lower, upper\)",
    ),
    "a domain of one side": (
        lambda: draw(GP, 1, domain=(0.0,)),
        ValueError,
        r"domain: expected \(lower, upper\), each a number or 2 of them, got shape",
    ),
    "an empty domain": (lambda: draw(GP, 1, domain=(1.0, 0.0)), ValueError, "domain: expected lower < upper"),
    "a domain of other dimensions": (
        lambda: draw(GP, 1, domain=([0.0] * 3, [1.0] * 3)),
        ValueError,
        r"domain: expected \(lower, upper\), each a number or 2 of them, got 3 and 3",
    ),
    "an infinite domain": (lambda: draw(GP, 1, domain=(0.0, INF)), ValueError, "domain: expected finite numbers"),
    "equispaced in four dimensions": (
        lambda: prior(features="equispaced", domain=(0, 1), input_dim=4),
        ValueError,
        "at most 3 dimensions.*got one of 4",
    ),
    "a point outside the domain": (
        lambda: prior(features="equispaced", domain=(0.0, 1.0))([[0.5, 1.5]]),
        ValueError,
        r"x: expected points inside the domain \[0.0, 0.0\] to \[1.0, 1.0\] .*got \[0.5, 1.5\] to .*larger domain",
    ),
    "orthogonal features of a periodic kernel": (
        lambda: prior(K.Periodic(), 1, features="orthogonal"),
        ValueError,
        r"orthogonal\" needs a kernel of one distance",
    ),
    # Evaluating.
    "points of other dimensions": (
        lambda: paths_of("exact")(rand(4, 3)),
        ValueError,
        r"x: expected points in 2 dimensions, got shape \[4, 3\]",
    ),
    "a flat point": (
        lambda: paths_of("exact")(rand(2)),
        ValueError,
        r"x: expected \[n, 2\] for all paths or \[5, n, 2\] for each its own, got \[2\]; for one point use x\[None\]",
    ),
    "a flat list": (lambda: paths_of("exact")([0.1, 0.2]), ValueError, r"for one point use np\.atleast_2d\(x\)"),
    "flat points": (
        lambda: draw_prior(K.RBF(), 2, input_dim=1)(rand(7)),
        ValueError,
        r"got \[7\]; for one dimension use x\[:, None\]",
    ),
    "points of other paths": (
        lambda: paths_of("exact")(rand(4, 3, 2)),
        ValueError,
        r"or \[5, n, 2\] for each its own, got \[4, 3, 2\]",
    ),
    "complex points": (lambda: paths_of("exact")(rand(4, 2) * 1j), TypeError, "x: expected real numbers"),
    "boolean points": (lambda: paths_of("exact")(rand(4, 2) > 0.5), TypeError, "x: expected real numbers"),
    "words for points": (
        lambda: paths_of("exact")(WORDS),
        TypeError,
        "x: expected a tensor, a NumPy array or numbers",
    ),
    "nothing for points": (
        lambda: paths_of("exact")(NOTHING),
        TypeError,
        "x: expected a tensor, a NumPy array or numbers, got None",
    ),
    "a gradient at NaN, of some paths": (
        lambda: paths_of("exact").value_and_grad([[NAN, 0.0]], of=[0]),
        ValueError,
        "x: expected finite numbers, got 1 NaN or infinite of 2",
    ),
    "gradients at points of other dimensions": (
        lambda: paths_of("exact").value_and_grad(rand(4, 3)),
        ValueError,
        "x: expected points in 2",
    ),
    "a mean at points of each path's own": (
        lambda: paths_of("exact").mean(rand(5, 3, 2)),
        ValueError,
        r"mean: expected points \[n, 2\], got \[5, 3, 2\]",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_it_is_refused(name):
    act, error, match = REFUSALS[name]
    with pytest.raises(error, match=match):
        act()


def test_what_the_refusals_start_from_is_accepted():
    """So each of them is refused for its one mistake."""
    for gp in (exact(), sparse(), coupled(), GP):
        assert draw(gp, 2)(rand(4, 2)).isfinite().all()
    assert prior()(rand(4, 2)).isfinite().all()


condition_on: Any = paths_of("exact").condition_on
evaluate: Any = paths_of("exact")


@pytest.mark.parametrize(
    "act",
    [
        lambda: draw(GP, 1, num_feature=8),
        lambda: draw(GP, 1, 8),
        lambda: draw_prior(K.RBF(), 1, input_dim=1, seeds=0),
        lambda: exact(noise_variance=0.1),
        lambda: sparse(q_scale=np.eye(3)),
        lambda: condition_on(rand(1, 2), [0.0], noise=0.1, noises=0.1),
        lambda: rbf(length_scale=0.1),
        lambda: evaluate(rand(1, 2), chunk=3),
    ],
)
def test_a_misspelled_argument_is_an_error_and_never_swallowed(act):
    with pytest.raises(TypeError, match=r"argument"):
        act()


def test_a_refused_draw_leaves_the_generator_where_it_was():
    generator = gen()
    state = generator.get_state()
    for bad in (dict(num_paths=0), dict(num_paths=1, dtype=torch.float16), dict(num_paths=1, num_features=0)):
        with pytest.raises((ValueError, TypeError)):
            draw(GP, **bad, generator=generator)
    assert torch.equal(generator.get_state(), state)


@pytest.mark.parametrize("call", ["draw", "draw_prior", "fit"])
def test_a_seed_by_another_library_s_name_is_refused_with_ours(call):
    X = torch.linspace(0, 1, 4, dtype=torch.float64)[:, None]
    gp = matheron.ExactGP(matheron.kernels.RBF(), X, X[:, 0], noise=0.1)
    calls = {
        "draw": lambda **others: matheron.draw(gp, 2, **others),
        "draw_prior": lambda **others: matheron.draw_prior(gp.kernel, 2, input_dim=1, **others),
        "fit": lambda **others: matheron.fit(None, X, X[:, 0], **others),
    }
    with pytest.raises(TypeError, match=rf"{call}\(\) has no argument 'random_state'; use seed=3$"):
        calls[call](random_state=3)
    with pytest.raises(TypeError, match=rf"{call}\(\) got an unexpected keyword argument 'nothing'"):
        calls[call](nothing=3)
