"""Functions in files: ONNX runtimes and torch.export give the values of the paths, at any number of points."""

import json
import sys

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import matheron
from matheron import kernels as k
from matheron import observe, transforms
from matheron.cli import app

DOUBLE, SINGLE = torch.float64, torch.float32
KERNEL = k.Matern(3.5, 0.5).on(0) * k.RationalQuadratic(0.3, 1.0).on(1) + k.Linear() + k.Periodic(2.0).on(0)


def paths_of(kernel, dtype: torch.dtype, s: int = 4, d: int = 2, **settings) -> matheron.Paths:
    X = torch.rand(20, d, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
    gp = matheron.ExactGP(kernel, X.to(dtype), torch.sin(5 * X.sum(1)).to(dtype), noise=0.1)
    return matheron.draw(gp, s, num_features=64, seed=0, **settings)


@pytest.fixture(scope="module")
def double() -> matheron.Paths:
    """A kernel of many parts, and a basis for some of the paths."""
    return paths_of(KERNEL, DOUBLE, paths_per_basis=3)


@pytest.fixture(scope="module")
def single() -> matheron.Paths:
    return paths_of(k.Matern(2.5, 0.8), SINGLE)


def points(paths, n: int, own: bool) -> torch.Tensor:
    shape = (paths.num_paths, n, paths.input_dim) if own else (n, paths.input_dim)
    return torch.rand(shape, generator=torch.Generator().manual_seed(n), dtype=DOUBLE).to(paths.dtype)


def assert_same(paths, call, own: bool) -> None:
    # In float32 each runtime, and the library, rounds what is added up: relative to its size they agree to 1e-6.
    summands = 1 + float(paths.update.v.abs().sum(1).max())
    for n in (1, 2, 25, 100):  # 25 is where torch.cdist changes its ways
        x = points(paths, n, own)
        expected, got = paths(x).numpy(), call(x)
        assert got.shape == expected.shape and got.dtype == expected.dtype
        tolerance = 1e-12 * np.abs(expected).max() if paths.dtype == DOUBLE else 1e-6 * summands
        assert np.abs(got - expected).max() <= tolerance


def test_a_program_of_torch_export_takes_any_number_of_points(double, tmp_path):
    double.export(tmp_path / "f.pt2")
    program = torch.export.load(tmp_path / "f.pt2").module()
    assert_same(double, lambda x: program(x).numpy(), own=False)


@pytest.mark.parametrize(
    ("dtype", "own"),
    [
        pytest.param("double", True, id="float64-own"),
        pytest.param("single", False, id="float32-shared"),
        pytest.param("double", False, id="float64-shared", marks=pytest.mark.slow),
        pytest.param("single", True, id="float32-own", marks=pytest.mark.slow),
    ],
)
def test_onnxruntime_gives_the_values_of_the_paths(dtype, own, tmp_path, request):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    paths = request.getfixturevalue(dtype)
    paths.export(tmp_path / "f.onnx", points="own" if own else "shared")
    assert [file.name for file in tmp_path.iterdir()] == ["f.onnx"], "weights are inside"
    session = runtime.InferenceSession(tmp_path / "f.onnx", providers=["CPUExecutionProvider"])
    assert_same(paths, lambda x: session.run(["f"], {"x": x.numpy()})[0], own)


def test_transforms_and_code_are_in_the_graph(tmp_path):
    """In onnxruntime too. Torch's exporter by itself rounds the numbers in code, such as 0.1 * f, to float32."""
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    f, g = (paths_of(k.Matern(2.5, 0.8), DOUBLE) for _ in range(2))
    network = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2)).double()
    inputs = transforms.Chain([transforms.Kumaraswamy([1.5, 2.0], 0.7), transforms.Log(10.0, [True, False])])
    parts = [f.of(inputs).map(transforms.Inverse(transforms.YeoJohnson(0.7))), f.clamp(-0.1, 0.3), abs(f) ** 0.3]
    parts += [getattr(f, name)() for name in ("softplus", "sigmoid", "tanh", "exp", "abs", "square")]
    parts += [(1 + f.square()).log(), (1 + f.square()).sqrt(), 1 / (1 + f.square())]
    parts += [f.map(getattr(torch, name)) for name in ("sin", "cos", "expm1", "relu")]
    parts += [f.square().map(torch.log1p), 40 + (40 * f).softplus()]
    parts += [
        f.map(lambda f: 0.1 * f / 0.3),
        f.map(lambda f: 0.3**f + torch.full_like(f, 0.7)),
        f.map(lambda f: f.clamp(max=0.1)),
    ]
    parts += [f.of(network) * g, g.map(lambda f: f.sin() * f), f.of(transforms.Round([True, False], tau=0.3))]
    slopes = f.condition_on(observe.gradient(points(f, 3, own=False)), torch.zeros(6), noise=1e-2)
    parts += [slopes, slopes.derivative(1)]
    h = matheron.stack(parts)
    h.export(tmp_path / "h.onnx")
    session = runtime.InferenceSession(tmp_path / "h.onnx", providers=["CPUExecutionProvider"])
    for n in (1, 9):
        x = points(f, n, own=False)
        expected, (got,) = h(x).numpy(), session.run(["f"], {"x": x.numpy()})
        assert np.abs(got - expected).max() <= 1e-12 * np.abs(expected).max()
    for part, name in ((f.of(network), "Network"), (g.map(lambda f: f**2), "a function of values")):
        with pytest.raises(TypeError, match=rf"no \.safetensors file holds {name}; write an \.onnx or a \.pt2 file"):
            part.export(tmp_path / "h.safetensors")
    assert [file.name for file in tmp_path.iterdir()] == ["h.onnx"]


def test_the_command_writes_what_paths_export_does(double, tmp_path):
    double.save(tmp_path / "draw.safetensors")

    def run(*arguments: object):
        return CliRunner().invoke(app, ["export", *map(str, arguments)])

    out = tmp_path / "f.pt2"
    result = run(tmp_path / "draw.safetensors", out, "--points", "own", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.output) == {"paths": 4, "inputs": ["x0", "x1"], "points": "own", "out": str(out)}
    program = torch.export.load(out).module()
    assert_same(double, lambda x: program(x).numpy(), own=True)
    said = run(tmp_path / "draw.safetensors", tmp_path / "f.safetensors").output
    assert "4 functions at points [n, 2] of x0, x1" in said
    rough = paths_of(k.Matern(0.8, 0.3), DOUBLE)
    rough.save(tmp_path / "rough.safetensors")
    (2 * double.exp()).save(tmp_path / "sum.safetensors")  # what is made of paths, too
    assert run(tmp_path / "sum.safetensors", tmp_path / "sum.pt2", "--quiet").exit_code == 0
    refused = run(tmp_path / "rough.safetensors", tmp_path / "g.pt2")
    assert refused.exit_code == 1 and "nu = 1/2, 3/2, 5/2" in refused.stderr
    assert not (tmp_path / "g.pt2").exists()
    matheron.draw(matheron.Batch([matheron.ExactGP(KERNEL, [[0.0, 0.0]], [1.0], 0.1)] * 2), 3).save(tmp_path / "batch")
    refused = run(tmp_path / "batch", tmp_path / "g.pt2")
    assert refused.exit_code == 1 and "a batch of 2 models; ask each of paths.members" in " ".join(
        refused.stderr.split()
    )


def test_functions_without_tensors_are_written_too(tmp_path):
    x = matheron.Coordinates(torch.zeros(2, dtype=DOUBLE), 3)
    x.export(tmp_path / "x.pt2", points="own")
    at = torch.rand(3, 7, 2, dtype=DOUBLE)
    assert torch.equal(torch.export.load(tmp_path / "x.pt2").module()(at), at)


def test_what_is_wrong_with_a_file_is_said_before_any_work(single, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"ends in \.onnx, \.pt2, \.safetensors, got 'f\.pt'"):
        single.export(tmp_path / "f.pt")
    with pytest.raises(ValueError, match='"shared" or "own", got \'each\''):
        single.export(tmp_path / "f.pt2", points="each")
    with pytest.raises(FileNotFoundError, match=r"no folder .*nowhere; make it first"):
        single.export(tmp_path / "nowhere" / "f.pt2")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ImportError, match=r"ONNX files need onnx and onnxscript.*\[onnx\]"):
        single.export(tmp_path / "f.onnx")
    assert not list(tmp_path.iterdir())


def test_a_file_of_the_flattening_is_no_saved_path(single, tmp_path):
    single.export(tmp_path / "f.safetensors")
    with pytest.raises(ValueError, match="format 'matheron-functions-1', not 'matheron-3'"):
        matheron.load(tmp_path / "f.safetensors")
