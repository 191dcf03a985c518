"""How far one basis's paths are from the posterior: frequencies by leverage against plain ones; and what a draw costs.

python benchmarks/leverage.py                         # relative W2, in closed form, over all cases
python benchmarks/leverage.py --seeds 8 --processes 16  # the same for the record
python benchmarks/leverage.py --region far            # elsewhere: wide, far, apart, clusters
python benchmarks/leverage.py --bounds                # what errors may be far from data, against gains among them
python benchmarks/leverage.py --time [--device cuda]  # seconds for a draw
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from statistics import median
from unittest.mock import patch

import torch
from torch import Tensor

import matheron
from matheron import kernels as K
from matheron.compare.metrics import gaussian_wasserstein
from matheron.compare.samplers import Moments, decoupled_moments, moments
from matheron.features import choose
from matheron.features.leverage import Leverage, leverage

CASES = {  # name: (d, n, kernel, noise)
    "1, 20, Matern-5/2 .3": (1, 20, K.Matern(2.5, 0.3), 1e-4),
    "2, 30, Matern-3/2 1.2, 1e-6": (2, 30, K.Matern(1.5, 1.2), 1e-6),
    "2, 30, Matern-3/2 1.2, 1e-2": (2, 30, K.Matern(1.5, 1.2), 1e-2),
    "2, 60, Matern-5/2 .5": (2, 60, K.Matern(2.5, 0.5), 1e-4),
    "4, 400, Matern-5/2 .5, 1e-6": (4, 400, K.Matern(2.5, 0.5), 1e-6),
    "4, 400, Matern-5/2 .5, 1e-2": (4, 400, K.Matern(2.5, 0.5), 1e-2),
    "6, 200, Matern-5/2 1": (6, 200, K.Matern(2.5, 1.0), 1e-4),
    "8, 256, Matern-5/2 1": (8, 256, K.Matern(2.5, 1.0), 1e-4),
    "8, 256, RBF 1.5": (8, 256, K.RBF(1.5), 1e-4),
    "1, 60, RBF(1) + 1e-3 Matern-3/2(.05)": (1, 60, K.RBF(1.0) + 1e-3 * K.Matern(1.5, 0.05), 1e-5),
    "4, 200, RBF(2) + .01 Matern-5/2(.3)": (4, 200, K.RBF(2.0) + 0.01 * K.Matern(2.5, 0.3), 1e-5),
    # others of our own
    "1, 10, RBF .2": (1, 10, K.RBF(0.2), 1e-6),
    "1, 100, Matern-1/2 .5": (1, 100, K.Matern(0.5, 0.5), 1e-3),
    "1, 200, RBF(.5) * Periodic": (1, 200, K.RBF(0.5) * K.Periodic(1.0, 0.1), 1e-4),
    "1, 40, Periodic + Matern-3/2": (1, 40, K.Periodic(0.7, 0.3) + 0.1 * K.Matern(1.5, 0.4), 1e-4),
    "1, 50, spectral mixture": (1, 50, K.SpectralMixture([1.0, 0.5], [[2.0], [0.0]], [[0.3], [1.0]]), 1e-4),
    "2, 100, RationalQuadratic": (2, 100, K.RationalQuadratic(1.0, 0.4), 1e-4),
    "2, 200, ARD Matern-5/2 (.2, 2)": (2, 200, K.Matern(2.5, [0.2, 2.0]), 1e-4),
    "3, 1000, Matern-3/2 .5": (3, 1000, K.Matern(1.5, 0.5), 1e-3),
    "3, 200, RBF on 0 * Matern on (1, 2)": (3, 200, K.RBF(0.5).on(0) * K.Matern(2.5, 0.8).on([1, 2]), 1e-4),
    "4, 300, additive": (4, 300, K.Matern(2.5, 0.4).on([0, 1]) + K.RBF(0.5).on([2, 3]), 1e-4),
    "4, 200, RBF * Matern-3/2": (4, 200, K.RBF(1.0) * K.Matern(1.5, 2.0), 1e-4),
    "5, 2000, Matern-5/2 1": (5, 2000, K.Matern(2.5, 1.0), 1e-2),
    "10, 500, Matern-5/2 2": (10, 500, K.Matern(2.5, 2.0), 1e-4),
    "12, 500, RBF 2": (12, 500, K.RBF(2.0), 1e-3),
    "20, 1000, Matern-3/2 4": (20, 1000, K.Matern(1.5, 4.0), 1e-4),
    "20, 10, Matern-5/2 2": (20, 10, K.Matern(2.5, 2.0), 1e-4),
    "3, 1, Matern-5/2 .5": (3, 1, K.Matern(2.5, 0.5), 1e-4),
    "4, 100, Matern-5/2 .5, noise 10": (4, 100, K.Matern(2.5, 0.5), 10.0),
    "6, 20, Matern-5/2 .3, 1e-1": (6, 20, K.Matern(2.5, 0.3), 1e-1),
}
# Kernels that are not radial, nor sums of radial ones on some of the coordinates.
REST = ("*", "Periodic", "mixture")
TIMED = {  # of 100 data in 4 dimensions
    "Matern-5/2": K.Matern(2.5, 0.5),
    "a sum of 2": K.RBF(0.5) + 0.1 * K.Matern(1.5, 0.3),
    "a sum of 5": sum((0.1 * K.Matern(nu, 0.3) for nu in (0.5, 1.5, 2.5)), K.RBF(0.5) + K.RationalQuadratic(1.0, 0.4)),
    "a product": K.RBF([0.5, 1.0, 0.3, 2.0]) * K.Matern(1.5, 0.4),
    "times Linear": K.Linear() * K.RBF(0.5),
    "times Polynomial(2)": K.Polynomial(2) * K.Matern(2.5, 0.8),
    "times Periodic": K.RBF(0.5).on(0) * K.Periodic(1.0, 0.3).on(0),
    "additive": K.Matern(2.5, 0.4).on([0, 1]) + K.RBF(0.5).on([2, 3]),
}
REGIONS = ("box", "wide", "wider", "far", "apart", "clusters")
# Of int S^2 / q, which the squared error grows by where values are independent: docs/theory.md.
BOUNDS = (1.2, 1.3, 1.5, 1.7, 2.0)


def problem(case: str, region: str, seed: int, num_points: int) -> tuple[matheron.ExactGP, Tensor]:
    """Data in the unit cube (or five clusters in it), and test points in the region."""
    d, n, kernel, noise = CASES[case]
    g = torch.Generator().manual_seed(seed)
    X = torch.rand(n, d, generator=g, dtype=torch.float64)
    x = torch.rand(num_points, d, generator=g, dtype=torch.float64)
    if region == "clusters":
        centres = torch.rand(5, d, generator=g, dtype=torch.float64)
        pick = torch.randint(5, (n + num_points,), generator=g)
        both = centres[pick] + 0.05 * torch.randn(n + num_points, d, generator=g, dtype=torch.float64)
        X, x = both[:n], both[n:]
    x = {"wide": 2 * x - 0.5, "wider": 3 * x - 1, "far": x + 5, "apart": 10 * x - 4.5}.get(region, x)
    return matheron.ExactGP(kernel, X, torch.zeros(n, dtype=torch.float64), noise=noise), x


def relative_w2(
    gp: matheron.ExactGP,
    x: Tensor,
    exact: Moments,
    num_features: int,
    seed: int,
    bound: float = Leverage.far,
    **settings,
) -> float:
    """W2 between the law of paths that share one basis and the posterior, over sqrt(trace of its covariance)."""
    with patch.object(choose, "leverage", partial(leverage, settings=Leverage(far=bound))):
        paths = matheron.draw(gp, 2, num_features=num_features, seed=seed, **settings)
    implied = decoupled_moments(gp, paths, x)
    distance = gaussian_wasserstein(implied.mean, implied.covariance, exact.mean, exact.covariance)
    return distance / math.sqrt(float(exact.covariance.trace()))


def errors_of(case: str, region: str, args: argparse.Namespace) -> tuple[float, dict[str, float]]:
    """The share of the variance that data leave open, and errors by kind of features: medians over seeds."""
    errors: dict[str, list[float]] = {}
    variance = []
    for seed in range(args.seeds):
        gp, x = problem(case, region, seed, args.points)
        exact = moments(gp, x)
        variance.append(float((exact.covariance.diagonal() / gp.kernel.diag(x)).mean()))
        box = (x.amin(0).tolist(), x.amax(0).tolist())
        kinds: dict[str, dict] = {"plain": {"features": plain_kind(gp)}}
        if args.bounds:
            kinds |= {str(b): {"features": "leverage", "bound": b} for b in BOUNDS}
        else:
            kinds |= {"cosine": {"features": "cosine"}, "leverage": {"features": "leverage"}}
            kinds |= {"domain": {"features": "leverage", "domain": box}}
        for name, settings in kinds.items():
            errors.setdefault(name, []).append(relative_w2(gp, x, exact, args.features, seed, **settings))
    return median(variance), {name: median(values) for name, values in errors.items()}


def each_case(args: argparse.Namespace, region: str) -> Iterator[tuple[str, tuple[float, dict[str, float]]]]:
    """The errors of every case, in order, by several processes of one thread each where they are asked for."""
    cases = [case for case in CASES if not args.only or args.only in case]
    of = partial(errors_of, region=region, args=args)
    if args.processes == 1:
        yield from ((case, of(case)) for case in cases)
        return
    with ProcessPoolExecutor(args.processes, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        yield from zip(cases, pool.map(of, cases), strict=True)


def accuracy(args: argparse.Namespace) -> None:
    """Independent frequencies and even ones, both from the spectrum; by leverage; and by leverage for the box."""
    gains: dict[tuple[str, str], list[float]] = {}
    losses: dict[tuple[str, str], float] = {}
    print(f"{'case':40} {'variance':>8} {'cosine':>7} {'plain':>6} {'leverage':>8} {'domain':>6}   plain over both")
    for case, (variance, middle) in each_case(args, args.region):
        group = "the rest" if any(word in case for word in REST) else "radial kernels and sums"
        for name in ("leverage", "domain"):
            ratio = middle["plain"] / middle[name]
            losses[name, group] = max(losses.get((name, group), 0.0), 1 / ratio)
            if variance <= 0.1:
                gains.setdefault((name, group), []).append(ratio)
        print(
            f"{case:40} {variance:8.2g} {middle['cosine']:7.3f} {middle['plain']:6.3f} "
            f"{middle['leverage']:8.3f} {middle['domain']:6.3f}   "
            f"{middle['plain'] / middle['leverage']:.2f} {middle['plain'] / middle['domain']:.2f}",
            flush=True,
        )
    for (name, group), loss in losses.items():
        print(f"{name}, {group}: largest loss {loss:.2f}", end="")
        if found := gains.get((name, group)):
            mean = math.exp(sum(math.log(g) for g in found) / len(found))
            among = f"{len(found)} cases of a variance of at most a tenth"
            print(f"; geometric mean {mean:.2f}, least {min(found):.2f}, {among}", end="")
        print()


def bounded(args: argparse.Namespace) -> None:
    """The same for other bounds on errors far from data: gains in the box, and the largest loss elsewhere."""
    found = {region: [errors for _, errors in each_case(args, region)] for region in ("box", "far", "wider", "apart")}
    print("bound   gain in the box: mean, least, below 2   largest loss: shifted box, 3 times as wide, 10 times")
    for b in map(str, BOUNDS):
        gains = [errors["plain"] / errors[b] for variance, errors in found["box"] if variance <= 0.1]
        mean = math.exp(sum(map(math.log, gains)) / len(gains))
        losses = "  ".join(
            f"{max(errors[b] / errors['plain'] for _, errors in found[region]):.2f}" for region in list(found)[1:]
        )
        print(
            f"{b:>5}   {mean:.2f}  {min(gains):.2f}  {sum(g < 2 for g in gains)} of {len(gains)}   {losses}", flush=True
        )


def plain_kind(gp: matheron.ExactGP) -> str:
    """Sobol, or orthogonal frequencies from 16 dimensions."""
    return "orthogonal" if gp.input_dim >= 16 else "sobol"


def timed(args: argparse.Namespace) -> None:
    """Seconds for a draw, the best of some: the two kinds in turn."""
    device = torch.device(args.device)
    of_each = [(100, 8, name) for name in TIMED]
    for n, s, name in (*of_each, (1024, 64, "Matern-5/2"), (4096, 64, "Matern-5/2")):
        X = torch.rand(n, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(device)
        gp = matheron.ExactGP(TIMED[name], X, X.sum(-1).sin(), noise=1e-4)
        best = {}
        for _ in range(args.repeats):
            for kind in ("sobol", "leverage"):
                best[kind] = min(best.get(kind, math.inf), seconds(gp, s, kind, device))
        plain, ours = best["sobol"] * 1e3, best["leverage"] * 1e3
        print(f"n={n}, S={s}, ell=1024, {args.device}, {name}: plain {plain:.1f} ms, leverage {ours:.1f} ms, ", end="")
        print(f"{ours - plain:.1f} more, ratio {ours / plain:.2f}", flush=True)
    X = torch.rand(100, 4, dtype=torch.float64).to(device)
    gp = matheron.ExactGP(K.Matern(2.5, 0.5), X, X.sum(-1), noise=1e-4)
    for kind in ("sobol", "leverage"):
        taken = seconds(gp, 1563, kind, device, paths_per_basis=1)
        print(f"1563 fresh bases, n=100, {kind}: {taken:.2f} s", flush=True)


def seconds(gp: matheron.ExactGP, s: int, kind: str, device: torch.device, **settings) -> float:
    generator = torch.Generator(device).manual_seed(0)
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    matheron.draw(gp, s, features=kind, generator=generator, **settings)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--region", choices=REGIONS, default="box")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--points", type=int, default=300)
    parser.add_argument("--features", type=int, default=1024)
    parser.add_argument("--processes", type=int, default=1, help="cases at once, of one thread each")
    parser.add_argument("--only", help="cases whose name contains this")
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--bounds", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    run = timed if args.time or args.device != "cpu" else bounded if args.bounds else accuracy
    run(args)


if __name__ == "__main__":
    main()
