"""Whether a change leaves draws as they are: some forty kinds of draws by another commit and by the working tree.

    python benchmarks/compare_draws.py HEAD~3          # the base commit
    python benchmarks/compare_draws.py HEAD --only lattice

Both are drawn on this machine by one thread, the base from a temporary git worktree. What comes from random numbers
alone (frequencies, phases, the weights w, the noise xi) must be the same to the bit; the update's weights and the
values at test points must agree to 1e-10 of their size. Tensors are compared by the names that they have in
`state_dict()`. Names that only one side has are listed and do not count as a difference: a rename changes them, and the
values show whether it changed anything else. No numbers are stored. The exit status is 1 where something differs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
TO_THE_BIT = ("frequencies", "phases", "projections", "w", "xi")
CLOSE = 1e-10


def cases() -> dict[str, Callable]:
    """Draws by name: each gives paths, and points to call them at."""
    import torch

    import matheron
    from matheron import kernels as K

    generator = torch.Generator().manual_seed(0)
    X1, X2, X4, X6 = (torch.rand(30, d, generator=generator, dtype=torch.float64) for d in (1, 2, 4, 6))
    x1, x2, x4, x6 = (torch.rand(50, d, generator=generator, dtype=torch.float64) for d in (1, 2, 4, 6))
    many = torch.rand(3000, 2, generator=generator, dtype=torch.float64)

    def y(X):
        return torch.sin(5 * X).sum(-1)

    def exact(kernel, X, noise: float | torch.Tensor = 1e-3, **more):
        return matheron.ExactGP(kernel, X, y(X), noise, **more)

    def sparse(whitened: bool):
        root = 0.1 * torch.eye(10, dtype=torch.float64)
        return matheron.SparseGP(K.Matern(2.5, 0.4), X2[:10], y(X2[:10]), root, whitened=whitened)

    def drawn(gp, x, **settings):
        return lambda: (matheron.draw(gp, 6, seed=1, **settings), x)

    matern = K.Matern(2.5, 0.4)
    coupled = K.Coregional(K.RBF(0.3), [[1.0, 0.7], [0.7, 1.0]])
    both = matheron.ExactGP(coupled, X2, torch.stack([y(X2), -y(X2)], 1), 1e-3)
    product = K.Matern(1.5, 0.4).on([0]) * K.RBF(0.7).on([1])
    found = {
        f"features {kind}": drawn(exact(matern, X2), x2, features=kind)
        for kind in ("auto", "leverage", "cosine", "sincos", "sobol", "orthogonal")
    }
    found |= {f"{d}-d": drawn(exact(matern, X), x) for d, X, x in ((1, X1, x1), (4, X4, x4), (6, X6, x6))}
    found |= {
        "a basis for each path": drawn(exact(matern, X4), x4, paths_per_basis=1),
        "one basis": drawn(exact(matern, X4), x4, paths_per_basis=None, num_features=301),
        "RBF": drawn(exact(K.RBF([0.3, 0.8]), X2), x2),
        "Matern-1/2": drawn(exact(K.Matern(0.5, 0.5), X2), x2),
        "rational quadratic": drawn(exact(K.RationalQuadratic(1.5, 0.4), X2), x2),
        "a periodic product": drawn(exact(K.RBF(2.0) * K.Periodic(0.4, 1.0), X1), x1),
        "a sum": drawn(exact(2.0 * K.RBF(0.8) + 0.1 * K.Matern(1.5, 0.1), X1), x1),
        "a product on dimensions": drawn(exact(product, X2), x2),
        "stationary times linear": drawn(exact(K.RBF(0.5) * K.Linear() + K.Polynomial(2), X2), x2),
        "mean and transforms": drawn(
            exact(
                matern,
                X2,
                mean=matheron.means.LinearMean([1.0, -1.0], 0.5),
                input_transform=matheron.transforms.Affine([0.5, 0.5], [2.0, 2.0]),
                output_transform=matheron.transforms.Affine([3.0], [2.0]),
            ),
            x2,
        ),
        "noise per datum": drawn(exact(matern, X2, noise=torch.linspace(1e-4, 1e-1, 30)), x2),
        "solver cholesky kept": drawn(exact(matern, X2), x2, solver=matheron.solvers.Cholesky(keep=True)),
        "solver cg": drawn(exact(matern, X2, noise=1e-1), x2, solver="cg"),
        "float32": drawn(exact(matern, X2), x2, dtype=torch.float32),
        "float32, little noise": drawn(exact(K.RBF(0.5), X2, noise=1e-6), x2, dtype=torch.float32),
        "sparse": drawn(sparse(False), x2),
        "sparse, whitened": drawn(sparse(True), x2),
        "sparse, float32": drawn(sparse(False), x2, dtype=torch.float32),
        "several outputs": drawn(both, x2),
        "several outputs, lattice": drawn(both, x2, domain=(0, 1)),
        "some outputs": drawn(matheron.SelectedOutputs(both, [1]), x2),
        "independent outputs": drawn(matheron.Outputs([exact(matern, X2), exact(K.RBF(0.3), X2)]), x2),
        "ensemble": drawn(matheron.Ensemble([exact(K.RBF(s), X2) for s in (0.2, 0.4, 0.8)]), x2),
        "batch": lambda: (matheron.draw(matheron.Batch([exact(K.RBF(s), X2) for s in (0.2, 0.4)]), 6, seed=1), x2),
        "lattice, 1-d": drawn(exact(matern, X1), x1, domain=(0, 1)),
        "lattice, 2-d": drawn(exact(matern, X2), x2, domain=(0, 1)),
        "lattice, rough": drawn(exact(K.Matern(0.5, 0.3), X2), x2, domain=(0, 1)),
        "lattice, equispaced": drawn(exact(matern, X2), x2, domain=(0, 1), features="equispaced"),
        "lattice, its solver": drawn(exact(matern, many, noise=1e-1), x2, domain=(0, 1), solver="lattice"),
        "stream": lambda: (
            matheron.draw(matheron.StreamedGP(matern, (many, y(many)), 1e-1, chunk=1000), 6, domain=(0, 1), seed=1),
            x2,
        ),
        "prior": lambda: (matheron.draw_prior(matern, 6, input_dim=2, seed=1), x2),
        "prior, lattice": lambda: (matheron.draw_prior(matern, 6, input_dim=2, domain=(0, 1), seed=1), x2),
    }
    more = (X4[:5, :2], torch.zeros(5, dtype=torch.float64))
    again = "features auto", "solver cholesky kept", "sparse", "lattice, 2-d", "prior", "float32", "mean and transforms"
    for name in again:
        found[f"condition_on, {name}"] = lambda make=found[name]: (
            make()[0].condition_on(*more, noise=1e-3, seed=2),
            x2,
        )
    return found


def write(out: Path, only: str) -> None:
    """Draw every kind, and keep tensors and values in a file."""
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    kept: dict[str, np.ndarray] = {}
    for name, make in cases().items():
        if only not in name:
            continue
        paths, x = make()
        for key, tensor in paths.state_dict().items():
            kept[f"{name}|{key}"] = tensor.detach().cpu().numpy()
        kept[f"{name}|VALUES"] = paths(x).detach().cpu().numpy()
    with out.open("wb") as file:
        np.savez(file, **kept)  # pyright: ignore[reportArgumentType]


def run(source: Path, out: Path, only: str) -> dict[str, np.ndarray]:
    environment = os.environ | {"PYTHONPATH": str(source / "src"), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).resolve()), "--write", str(out), "--only", only]
    subprocess.run(command, env=environment, check=True, cwd=out.parent)
    with np.load(out) as file:
        return dict(file)


def difference(key: str, a: np.ndarray, b: np.ndarray) -> str | None:
    """How two tensors of one name differ beyond what may be; None where they do not."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"{a.dtype}{list(a.shape)} became {b.dtype}{list(b.shape)}"
    if np.array_equal(a, b, equal_nan=a.dtype.kind in "fc"):
        return None
    largest = float(np.abs(a.astype(float) - b.astype(float)).max() / max(float(np.abs(a).max()), 1e-300))
    allowed = 0.0 if key.rsplit(".", 1)[-1] in TO_THE_BIT else max(CLOSE, 32 * float(np.finfo(a.dtype).eps))
    return None if largest <= allowed else f"differs by {largest:.1e} of its largest number, {allowed:.0e} allowed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", nargs="?", default="HEAD", help="the commit to compare with")
    parser.add_argument("--only", default="", help="kinds whose names contain this")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.write:
        write(arguments.write, arguments.only)
        return
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / "base"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(base), arguments.base], check=True)
        try:
            before = run(base, Path(folder) / "before.npz", arguments.only)
        finally:
            subprocess.run([*git, "remove", "--force", str(base)], check=True)
        after = run(ROOT, Path(folder) / "after.npz", arguments.only)
    kinds = sorted({key.split("|")[0] for key in before} | {key.split("|")[0] for key in after})
    failed = False
    for kind in kinds:
        ours = {key for key in after if key.startswith(f"{kind}|")}
        theirs = {key for key in before if key.startswith(f"{kind}|")}
        found = {key: difference(key, before[key], after[key]) for key in sorted(ours & theirs)}
        wrong = {key.split("|")[1]: text for key, text in found.items() if text is not None}
        failed = failed or bool(wrong) or not ours or not theirs
        print(f"{'DIFFERS' if wrong or not ours or not theirs else 'same':8s}{kind}: {len(found)} tensors compared")
        for name, text in wrong.items():
            print(f"        {name}: {text}")
        for side, names in (("base", theirs - ours), ("now", ours - theirs)):
            if names:
                print(f"        only {side}: {', '.join(sorted(name.split('|')[1] for name in names))}")
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
