"""matheron_portable: the values and gradients of the paths, on NumPy and JAX arrays, where there is no torch."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import matheron
import matheron_portable
from matheron import kernels as k
from matheron import observe, transforms

SOURCE = Path(matheron_portable.__file__)
DOUBLE = torch.float64


def points(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(3), dtype=DOUBLE)


def model(kernel, d: int = 1, **settings) -> matheron.ExactGP:
    X = points(20, d)
    return matheron.ExactGP(kernel, X, torch.sin(5 * X.sum(1)), noise=1e-2, **settings)


def drawn(kernel, d: int = 1, **settings) -> matheron.AbstractPaths:
    return matheron.draw(model(kernel, d, **settings), 4, num_features=64, seed=0)


COUPLED = k.Coregional(k.RBF(0.3), [[1.0, 0.9], [0.9, 1.0]]) + k.Linear()
AFFINE = transforms.Affine([2.0, 0.5], [0.1, -0.3])
SQUARE = transforms.Projected([[2.0, 0.5], [0.3, 0.4]], [0.1, -0.3])
ROUGH = k.Matern(0.5, 0.3).on(0) + k.Matern(1.5, 0.4) * k.Periodic(1.0).on(1) + k.Spherical(0.9)
FUNCTIONS = {
    "rough": lambda: drawn(ROUGH, 2),
    "smooth": lambda: drawn(k.Matern(10.5, 0.5) + k.RationalQuadratic(0.7, 0.5) * k.RBF(1.0).on(0), 2),
    "polynomial": lambda: drawn(0.5 * k.Polynomial(3, 1.0) + k.Constant(2.0) + k.Linear() * k.RBF(0.5), 2),
    "turning": lambda: drawn(k.Rotated(k.RBF([0.5, 0.2]), 30.0) + k.Cosine(0.5).on(0) * k.RBF(0.5), 2),
    "scaled": lambda: drawn(k.RBF(0.3), 2, input_transform=AFFINE, output_transform=transforms.Affine(3.0, 10.0)),
    "projected": lambda: drawn(k.RBF(0.3), 2, input_transform=SQUARE, mean=matheron.means.LinearMean([1.0, 2.0])),
    "bases": lambda: matheron.draw(model(k.Matern(2.5, 0.3)), 10, paths_per_basis=4, num_features=64, seed=0),
    "pairs": lambda: matheron.draw(model(k.RBF(0.3)), 10, paths_per_basis=4, features="sincos", seed=0),
    "lattice": lambda: matheron.draw(model(k.Matern(1.5, 0.3)), 4, domain=(-0.1, 1.1), seed=0),
    "coupled": lambda: matheron.draw_prior(COUPLED, 3, input_dim=1, seed=0),
    "constant": lambda: matheron.draw_prior(k.Constant(2.0), 3, input_dim=2, seed=0),
    "outputs": lambda: matheron.draw(matheron.Outputs([model(k.RBF(0.3)), model(k.Matern(1.5, 0.3))]), 4, seed=0),
    "ensemble": lambda: matheron.draw(matheron.Ensemble([model(k.RBF(0.3)), model(k.Matern(1.5, 0.3))]), 7, seed=0),
    "selected": lambda: matheron.SelectedPaths(matheron.draw_prior(COUPLED, 3, input_dim=1, seed=0), [1]),
}


def given_slopes(kernel, d: int = 2) -> matheron.AbstractPaths:
    X, n = points(6, d), kernel.num_outputs
    blocks = [observe.value(X), observe.gradient(X[:3]), observe.derivative(X[3:], (0, d - 1))]
    y = [torch.sin(5 * points(len(block) * n, 1)[:, 0]) for block in blocks]
    return matheron.draw(matheron.ExactGP(kernel, blocks, y, 1e-2), 4, num_features=64, seed=0)


SLOPES = {
    "slopes": k.RBF([0.5, 0.8]),
    "slopes of a product": k.RBF(0.5).on(0) * k.Matern(3.5, 0.8).on(1) + k.Constant(2.0),
    "slopes of what turns": k.Rotated(k.RationalQuadratic(1.1, 0.7), 30.0) * k.Periodic(1.0, 1.3).on(0),
    "slopes of a polynomial": k.Polynomial(3, 0.5) + k.Matern(2.5, 0.9) + k.Linear() * k.RBF(0.9),
    "slopes of coupled outputs": k.Coregional(k.RBF(0.5), [[1.0, 0.5], [0.5, 1.0]]),
}
FUNCTIONS |= {name: lambda kernel=kernel: given_slopes(kernel) for name, kernel in SLOPES.items()}
FUNCTIONS["a derivative"] = lambda: drawn(k.Matern(3.5, 0.5) * k.RBF(0.9), 2).gradient()
FUNCTIONS["a second derivative"] = lambda: given_slopes(k.RBF(0.5)).derivative(0).derivative(1)


F, G = (matheron.draw_prior(k.RBF(0.3), 4, input_dim=1, seed=seed) for seed in (1, 2))
FUNCTIONS |= {
    "a sum as one": lambda: 2 * drawn(k.RBF(0.3)) + drawn(k.Matern(1.5, 0.3)),
    "a sum side by side": lambda: drawn(k.RBF(0.3)) - F.exp() / 3 + torch.arange(4.0),
    "a sum with numbers for each path": lambda: torch.arange(4.0) * drawn(k.RBF(0.3)) + torch.arange(4.0),
    "a mean of an ensemble": lambda: matheron.PosteriorMean(FUNCTIONS["ensemble"]())[[0, 0]],
    "a mean of outputs": lambda: matheron.PosteriorMean(FUNCTIONS["outputs"]()),
    "a product": lambda: F * G * F.sigmoid(),
    "maps": lambda: matheron.stack(
        [F.tanh(), F.softplus(), F.square(), abs(F), F.clamp(-0.5, 0.5), (F.square() + 1).sqrt(), (F.exp() + 1).log()]
    ),
    "more maps": lambda: matheron.stack(
        [
            *(F.map(function) for function in (torch.sin, torch.cos, torch.atan, torch.relu, torch.expm1)),
            *(F.exp().map(torch.log1p), 1 / F.exp(), F**3, F.map(torch.special.ndtr)),
        ]
    ),
    "layers": lambda: F.compose(G),
    "layers with inputs": lambda: drawn(k.RBF(0.3), 2).compose(F, with_inputs=True),
    "some outputs of a stack": lambda: matheron.stack([F, F.exp(), G])[..., [2, 1]],
}


WARPS = {
    "exp": transforms.Exp(),
    "signed exp": transforms.SignedExp(),
    "a power": transforms.Chain([transforms.Affine(0.1, 2.0), transforms.Power(1.5)]),
    "logarithms": transforms.Inverse(transforms.Log(10.0)),
    "Yeo and Johnson": transforms.Inverse(transforms.YeoJohnson(0.7)),
    "Yeo and Johnson's logarithm": transforms.Chain([transforms.YeoJohnson(2.0), transforms.YeoJohnson(0.0)]),
    "a chain and back": transforms.Inverse(transforms.Chain([transforms.Affine(0.5, 2.0), transforms.YeoJohnson(0.5)])),
    "Box and Cox": transforms.Chain(
        [transforms.Exp(), transforms.BoxCox(-0.5), transforms.Inverse(transforms.BoxCox(0.3))]
    ),
}
INNER = {
    "logarithms": transforms.Log(10.0, [True, False]),
    "masked": transforms.Masked(transforms.Chain([transforms.BoxCox(0.0), transforms.Exp()]), [False, True]),
    "warped": transforms.Kumaraswamy([1.5, 2.0], [0.7, 1.2], [False, True]),
    "warped and back": transforms.Chain(
        [transforms.Affine([0.5, 0.25], 0.2), transforms.Inverse(transforms.Kumaraswamy(1.5, 0.7)), AFFINE]
    ),
}
FUNCTIONS |= {f"outputs by {name}": lambda w=w: F.map(w) for name, w in WARPS.items()}
FUNCTIONS |= {f"inputs by {name}": lambda w=w: drawn(k.RBF(0.3), 2).of(w) for name, w in INNER.items()}
FUNCTIONS |= {
    "a model of logarithms": lambda: matheron.draw(
        matheron.ExactGP(k.RBF(0.3), points(9, 1), 1 + points(9, 1)[:, 0], 0.0, output_transform=transforms.Exp()),
        4,
        seed=0,
    ),
    "warped coordinates": lambda: F.compose((matheron.Coordinates.beside(F) + 0.1 * F).of(transforms.Power(2.0))),
}


def written(paths: matheron.AbstractPaths, folder: Path) -> matheron_portable.Functions:
    paths.export(folder / "f.safetensors")
    return matheron_portable.load(folder / "f.safetensors")


def close(got: np.ndarray, expected: torch.Tensor, tolerance: float = 1e-10) -> bool:
    assert got.shape == expected.shape and got.dtype == expected.numpy().dtype
    largest = float(expected.abs().max()) if expected.numel() else 0.0
    return bool(np.abs(got - expected.numpy()).max(initial=0.0) <= tolerance * max(1.0, largest))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients_are_those_of_the_paths(name, tmp_path):
    paths = FUNCTIONS[name]()
    f, s, d = written(paths, tmp_path), paths.num_paths, paths.input_dim
    for x in (points(30, d), points(1, 30, d), points(s, 7, d), points(s, 0, d)):
        expected, slopes = paths.value_and_grad(x)
        got, gradient = f.value_and_grad(x.numpy())
        assert close(got, expected) and close(gradient, slopes) and np.array_equal(f(x.numpy()), got)


def test_float32_stays_float32_and_blocks_change_nothing(tmp_path, monkeypatch):
    paths = drawn(k.Matern(2.5, 0.5)).to(torch.float32)
    f, x, own = written(paths, tmp_path), points(50, 1).float(), points(4, 50, 1).float()
    whole = [f.value_and_grad(at.numpy()) for at in (x, own)]
    summands = 1 + float(paths.update.v.abs().sum(1).max())  # the sizes of what is added up, rounded in either sum
    assert close(whole[0][0], paths(x), 2 * 1.2e-7 * summands)
    monkeypatch.setattr(matheron_portable, "_BLOCK", 1000)
    for at, (value, gradient) in zip((x, own), whole, strict=True):
        again, slope = f.value_and_grad(at.numpy())
        np.testing.assert_allclose(again, value, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(slope, gradient, rtol=1e-4, atol=1e-4)


def test_outside_the_domain_of_a_lattice_values_are_nan(tmp_path):
    f = written(FUNCTIONS["lattice"](), tmp_path)
    assert np.isnan(f(np.array([[0.5], [1.5]]))).tolist() == [[False, True]] * 4


def test_at_a_centre_gradients_are_finite_and_right(tmp_path):
    paths = drawn(ROUGH, 2)
    x = paths.update.centres[:3]
    assert close(written(paths, tmp_path).value_and_grad(x.numpy())[1], paths.value_and_grad(x)[1], 1e-7)


def test_points_of_other_shapes_and_files_of_other_kinds_are_refused(tmp_path):
    paths = drawn(k.RBF(0.3), 2)
    f = written(paths, tmp_path)
    for x in (np.zeros(2), np.zeros((5, 3)), np.zeros((3, 5, 2))):
        with pytest.raises(ValueError, match=r"expected points \[n, 2\], or \[4, n, 2\] for each its own, got"):
            f(x)
    paths.save(tmp_path / "draw.safetensors")
    with pytest.raises(ValueError, match=r"got 'matheron-3'; write one in matheron with paths.export"):
        matheron_portable.load(tmp_path / "draw.safetensors")
    with pytest.raises(FileNotFoundError):
        matheron_portable.load(tmp_path / "nothing.safetensors")


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # importing it raises
import numpy as np, matheron_portable
f, x = matheron_portable.load(sys.argv[1]), np.load(sys.argv[2])
np.savez(sys.argv[3], *f.value_and_grad(x))
"""


def run_without_torch(python: str, folder: Path, path: str) -> None:
    """Values and gradients in another process, which has no torch, against the paths' own."""
    paths, x = drawn(ROUGH, 2), points(9, 2)
    paths.export(folder / "f.safetensors")
    np.save(folder / "x.npy", x.numpy())
    files = [str(folder / name) for name in ("f.safetensors", "x.npy", "out.npz")]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"PYTHONPATH": path}
    command = [python, "-c", WITHOUT_TORCH, *files]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with np.load(folder / "out.npz") as out:
        value, gradient = paths.value_and_grad(x)
        assert close(out["arr_0"], value) and close(out["arr_1"], gradient)


def test_it_needs_no_torch(tmp_path):
    run_without_torch(sys.executable, tmp_path, str(SOURCE.parent))


@pytest.mark.slow
def test_the_wheel_is_one_module_and_runs_in_an_environment_without_torch(tmp_path):
    root, environment = SOURCE.parents[2], tmp_path / "clean"
    build = [sys.executable, "-m", "build", "--outdir", str(tmp_path / "dist"), str(root / "portable")]
    limits = os.environ | {"PIP_CONSTRAINT": str(root / "constraints.txt")}
    done = subprocess.run(build, env=limits, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    python = str(environment / "bin/python")
    install = [python, "-m", "pip", "install", "-q", "-c", str(root / "constraints.txt"), str(wheel)]
    done = subprocess.run(install, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"the registry cannot be reached: {done.stderr.strip().splitlines()[-1]}")
    missing = subprocess.run([python, "-c", "import torch"], capture_output=True)
    assert missing.returncode != 0, "expected an environment without torch"
    run_without_torch(python, tmp_path, "")


def run_the_page_s_code(folder: Path) -> None:
    """The example of docs/travel.md, which is not run with the page's other code since it needs JAX."""
    (block,) = re.findall(r"^```py\n(.*?)^```$", (SOURCE.parents[2] / "docs/travel.md").read_text(), re.M | re.S)
    matheron.draw(model(k.Matern(2.5, [0.4, 0.8]), 2), 8, num_features=64, seed=0).export(folder / "f.safetensors")
    names: dict = {}
    exec(block.replace('"f.safetensors"', repr(str(folder / "f.safetensors"))), names)
    assert names["states"].shape == (100, 8, 2) and bool(np.isfinite(names["sensitivity"]).all())


@pytest.mark.slow  # compiles for half a minute
def test_jax_gives_the_same_under_jit_vmap_grad_and_scan(tmp_path):
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    try:
        for name in ("rough", "projected", "ensemble", "slopes of a product", "layers with inputs", "outputs by exp"):
            paths = FUNCTIONS[name]()
            f, d = written(paths, tmp_path), paths.input_dim
            x = points(9, d)
            value, gradient = paths.value_and_grad(x)
            at = jnp.asarray(x.numpy())
            assert close(np.asarray(jax.jit(f)(at)), value)
            assert all(map(close, map(np.asarray, jax.jit(f.value_and_grad)(at)), (value, gradient)))
            by_jax = jax.vmap(jax.jacrev(lambda x, f=f: f(x[None])[:, 0]), out_axes=1)(at)
            assert close(np.asarray(by_jax), gradient, 1e-8)
        run_the_page_s_code(tmp_path)
        narrow = FUNCTIONS["lattice"]().to(torch.float32)  # its frequencies are in float64
        at = jnp.asarray(points(9, 1).float().numpy())
        f = written(narrow, tmp_path)
        assert close(np.asarray(f(at)), narrow(points(9, 1)), 1e-4)
        assert {each.dtype for each in f.value_and_grad(at)} == {at.dtype}
        np.testing.assert_allclose(f(jnp.zeros((1, 1), int)), narrow([[0.0]]), atol=1e-4)
        f, paths = written(drawn(k.RBF(0.5)), tmp_path), drawn(k.RBF(0.5))

        def step(x, _):
            x = x + 0.1 * f(x[:, None])  # each path its own point
            return x, x

        _, states = jax.jit(lambda x: jax.lax.scan(step, x, None, length=20))(jnp.zeros((4, 1)))
        x = torch.zeros(4, 1, dtype=DOUBLE)
        for state in np.asarray(states):
            x = x + 0.1 * paths(x[:, None])
            assert close(state, x)
    finally:
        jax.config.update("jax_enable_x64", before)
