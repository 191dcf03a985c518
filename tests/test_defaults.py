"""Torch's default dtype and default device change nothing: numbers are those of the arguments, and on their devices."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._device import _device_constructors

import matheron
from examples import MODELS, model
from matheron import kernels as K
from matheron import solvers, thompson
from matheron.compare import samplers
from matheron.models.transforms import Exp, Kumaraswamy

X = [[0.05, 0.9], [0.3, 0.2], [0.45, 0.7], [0.6, 0.1], [0.75, 0.55], [0.95, 0.35]]
Y = [0.3, -0.2, 0.9, -1.1, 0.4, 0.1]
AT = [[0.11, 0.22], [0.5, 0.52], [0.81, 0.13]]
BOX: Any = ([0.0, 0.0], [1.0, 1.0])
SEARCH: Any = {"mesh_size": 64, "num_starts": 2, "seed": 0}


def exact(kernel: K.Kernel | None = None, **settings: Any) -> matheron.ExactGP:
    return matheron.ExactGP(kernel or K.Matern(2.5, 0.4), X, Y, noise=1e-2, **settings)


def uses(paths: matheron.AbstractPaths) -> list[Tensor]:
    value, gradient = paths.value_and_grad(AT)
    given = paths.condition_on(AT[:1], [[0.5] * value.shape[-1]] if value.ndim == 3 else [0.5], noise=0.1, seed=1)
    grid = paths.on_grid([[0.1, 0.4, 0.8], [0.2, 0.3]])
    return [paths(AT), paths([AT] * len(paths)), value, gradient, paths.mean(AT), given(AT), grid, paths[1:](AT)]


def drawn(kernel: K.Kernel | None = None, **settings: Any) -> list[Tensor]:
    settings = {"num_features": 64} | settings
    return uses(matheron.draw(exact(kernel), 3, seed=0, **settings))


def diagnosed() -> list[Tensor]:
    gp = exact()
    found = matheron.diagnose(matheron.draw(gp, 16, seed=0), gp, AT)
    return [torch.tensor([v for v in vars(found).values() if isinstance(v, float)], dtype=torch.float64, device="cpu")]


def optimised() -> list[Tensor]:
    study = thompson.minimize_function(lambda x: float((x - 0.3).square().sum()), BOX, 8, 2, **SEARCH)
    return [torch.tensor(study.points, dtype=torch.float64, device="cpu")]


def fitted(**settings: Any) -> list[Tensor]:
    return list(matheron.fit(1.0 * K.RBF([1.0, 1.0]), X, Y, seed=0, num_starts=1, **settings).buffers())


SUGGESTIONS: list[dict[str, Any]] = [
    *({}, {"trust_region": 0.3}, {"spread": 0.5}, {"greedy": True}, {"pending": AT}),
    *({"strategy": name} for name in ("weight-space", "function-space", "random")),
]
COMPOSITE = 0.5 * K.Matern(2.5, 0.5) * K.Periodic(0.8, 1.0) + K.Linear(0.3) + K.Spherical(0.6) + 1.0
CALLS: dict[str, Callable[[], Sequence[Tensor]]] = {
    **{f"paths of {name}": lambda name=name: uses(matheron.draw(model(name), 3, seed=0)) for name in MODELS},
    "leverage": lambda: drawn(),
    "leverage at points": lambda: drawn(K.RBF([0.5, 0.6]), where=AT),
    "composite": lambda: drawn(COMPOSITE),
    "products": lambda: drawn(K.Polynomial(2, 0.4) * K.RBF(0.5) + K.Matern(1.5, 0.5) * K.RationalQuadratic(1.0, 0.6)),
    "cosine": lambda: drawn(K.Cosine(0.7).on(0) * K.RBF(0.5), features="cosine"),
    "orthogonal": lambda: drawn(features="orthogonal"),
    "sobol": lambda: drawn(features="sobol", paths_per_basis=1),
    "lattice": lambda: drawn(domain=BOX, features="lattice", tolerance=0.05),
    "lattice and what lies beyond": lambda: drawn(K.Matern(0.5, 0.3), domain=BOX),
    "update on the lattice": lambda: drawn(K.RBF(0.5), domain=BOX, solver="lattice"),
    "conjugate gradients": lambda: drawn(solver="cg"),
    "block descent": lambda: drawn(solver=solvers.BlockDescent()),
    "float32": lambda: drawn(dtype=torch.float32),
    "variance": lambda: [matheron.draw(exact(), 2, seed=0, solver=solvers.Cholesky(keep=True)).variance(AT)],
    "prior": lambda: uses(matheron.draw_prior(COMPOSITE, 3, input_dim=2, seed=0)),
    "prior on a lattice": lambda: uses(matheron.draw_prior(K.RBF(0.3), 3, input_dim=2, seed=0, domain=BOX)),
    "ensemble": lambda: uses(matheron.draw(matheron.Ensemble([exact(), exact(K.RBF(0.5))]), 4, seed=0)),
    "outputs": lambda: uses(matheron.draw(matheron.Outputs([exact(), exact(K.RBF(0.5))]), 3, seed=0)),
    "transforms": lambda: [
        matheron.draw(exact(input_transform=Kumaraswamy(0.8, 1.2), output_transform=Exp()), 3, seed=0)(AT)
    ],
    "fit": lambda: fitted(),
    "fit with a linear mean": lambda: fitted(mean="linear"),
    "fit of a prior": lambda: fitted(priors={"lengthscale": torch.distributions.Uniform(number(0.1), number(5.3))}),
    "fit by probes": lambda: fitted(solver="cg"),
    "fit on a lattice": lambda: fitted(solver="lattice"),
    "likelihood": lambda: [matheron.log_marginal_likelihood(exact()), matheron.leave_one_out(exact()).mean],
    "moments": lambda: [*samplers.moments(exact(), AT)],
    "other samplers": lambda: [
        samplers.location_scale(exact(), 2, seed=0)(AT),
        samplers.weight_space(exact(), 2, num_features=64, seed=0)(AT),
    ],
    "minimize": lambda: [matheron.minimize(matheron.draw(exact(), 3, seed=0), BOX, **SEARCH).x],
    **{
        f"suggest {options}": lambda options=options: [thompson.suggest(exact(), BOX, 2, **SEARCH, **options)]
        for options in SUGGESTIONS
    },
    "minimize_function": optimised,
    "rollout": lambda: [matheron.rollout(matheron.draw(exact(), 2, seed=0), [0.1], 3, dt=0.1, actions=[[[0.2]] * 3])],
    "diagnose": diagnosed,
}


def number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64, device="cpu")


def results() -> dict[str, list[Tensor]]:
    return {name: [found.detach() for found in call()] for name, call in CALLS.items()}


def test_all_calls_give_the_same_numbers_under_another_default_dtype_and_another_default_device(tmp_path):
    """In a process of its own, which has remembered nothing."""
    code = f"""
import sys, torch
sys.path.insert(0, {str(Path(__file__).parent)!r})
import test_defaults
torch.set_default_dtype(torch.float16)
torch.set_default_device("meta")
torch.save(test_defaults.results(), {str(tmp_path / "found")!r})
"""
    command = [sys.executable, "-W", "ignore", "-c", code]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as other:
        expected = results()  # meanwhile
        _, trouble = other.communicate()
    assert other.returncode == 0, trouble
    found = torch.load(tmp_path / "found")
    assert found.keys() == expected.keys()
    for name, tensors in expected.items():
        for a, b in zip(tensors, found[name], strict=True):
            assert a.dtype == b.dtype and torch.equal(a, b), name


def test_every_tensor_that_the_library_makes_states_its_device():
    names = {make.__name__ for make in _device_constructors()}
    for file in sorted(Path(matheron.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                given = {keyword.arg for keyword in node.keywords}
                if ast.unparse(node.func.value) == "torch" and node.func.attr in names:
                    assert given & {"device", "out"}, f"{file}:{node.lineno}: {ast.unparse(node)} states no device"
