"""Saved paths: what comes back is the same function, and what was not saved by us is refused and runs nothing."""

import errno
import hashlib
import json
import os
import pickle
import stat
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import matheron
from examples import ALL, B2, COMPOSITE, LAYOUTS, gen, paths_of, rand, randn, wave
from matheron import ExactGP, SparseGP, draw, draw_prior, load
from matheron import kernels as K
from matheron.core import FORMAT, REGISTRY, FileError, Value, save
from matheron.features import spherical_features
from matheron.models import means, transforms
from standard import KERNELS

# The tensors are the same to the bit; a product's order may differ with their layout in memory.
ROUNDING: dict[str, Any] = dict(rtol=1e-12, atol=1e-12)


def round_trip(paths: Any, folder: Path) -> Any:
    paths.save(folder / "draw.safetensors")
    return load(folder / "draw.safetensors")


def types_in(tree: dict[str, Any]) -> set[str]:
    return {tree["type"]}.union(*(types_in(part) for part in tree["parts"].values() if part is not None))


def tree_of(path: Path) -> dict[str, Any]:
    with safe_open(path, framework="pt") as file:
        return json.loads(file.metadata()["tree"])


def assert_same(again: Any, paths: Any, x: torch.Tensor) -> None:
    assert type(again) is type(paths) and repr(again) == repr(paths)
    torch.testing.assert_close(again(x), paths(x), **ROUNDING)
    torch.testing.assert_close(again.value_and_grad(x)[1], paths.value_and_grad(x)[1], **ROUNDING)
    torch.testing.assert_close(again[:1](x), paths[:1](x), **ROUNDING)


# What comes back.


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", [name for name in ALL if "callable" not in name])
def test_paths_come_back_as_the_same_functions(name, layout, tmp_path):
    paths, x = paths_of(name, layout=layout), rand(5, 2)
    again = round_trip(paths, tmp_path)
    assert_same(again, paths, x)
    before, after = paths.state_dict(), again.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[key], after[key]) for key in before)
    torch.testing.assert_close(again.mean(x), paths.mean(x), **ROUNDING)
    torch.testing.assert_close(again(rand(5, 3, 2)), paths(rand(5, 3, 2)), **ROUNDING)
    y = paths.mean(x[:1])
    given = [p.condition_on(x[:1], y, noise=0.1, generator=gen())(x) for p in (again, paths)]
    torch.testing.assert_close(*given, rtol=1e-10, atol=1e-10)


CUBE = transforms.Power(3.0)


@cache
class Ramps(K.Kernel):
    """x . x' on the first coordinate, by a class whose features are a plain function."""

    def forward(self, x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return x[..., :1] @ z[..., :1].mT

    def features(self, num_features: int, generator: torch.Generator) -> Any:
        return lambda x: x[:, :1]


class Levels(Value):
    """A map of a class: powers of the first coordinate."""

    def __init__(self, powers: torch.Tensor) -> None:
        super().__init__(powers=powers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, :1] ** self.powers.to(x)


def everything() -> dict[str, Any]:
    """Paths that together hold every kind of value there is."""
    X, y = rand(3, 2, seed=1), randn(3, seed=2)

    def prior(kernel: K.Kernel, d: int = 2, **settings: Any) -> Any:
        return draw_prior(kernel, 2, input_dim=d, num_features=6, generator=gen(), **settings)

    def posterior(**settings: Any) -> Any:
        return draw(ExactGP(K.RBF(0.5), X, y, 0.1, **settings), 2, num_features=6, generator=gen())

    def coupled(mean: Any) -> Any:
        gp = ExactGP(K.Coregional(K.RBF(0.5), B2), X, y, 0.1, tasks=[0, 1, 0], mean=mean)
        return draw(gp, 2, num_features=6, generator=gen())

    one, other = ExactGP(K.RBF(0.5), X, y, 0.1), ExactGP(K.Matern(0.5, 1.0), X, y, 0.2)
    two_means = means.Stacked([means.ConstantMean(1.0), means.LinearMean([1.0, 2.0])])
    mixed = means.Mixed(means.LinearMean([[1.0, 2.0], [0.0, 1.0]]), [[1.0, 0.5], [0.0, 2.0]])
    inputs = transforms.Chain([transforms.Affine([0.5, 0.4], 0.1), transforms.Kumaraswamy([1.2, 0.8], [0.9, 1.1])])
    settings: dict[str, Any] = dict(num_features=6, generator=gen())
    return {
        "composite": prior(COMPOSITE),
        "Matern of any order": prior(K.Matern(0.8, [0.4, 0.6])),
        "rational quadratic": prior(K.RationalQuadratic(0.7, 0.5)),
        "spectral mixture": prior(K.SpectralMixture([0.7], [[0.4, 1.0]], [[0.3, 0.2]])),
        "cosine, polynomial": prior(K.Cosine(0.9).on(0) + K.Polynomial(3, 0.5) + 2.0 * K.Constant(0.3)),
        "a class of one's own": prior(Ramps().on(1) + K.RBF(0.5)),
        "a map of one's own, in products": prior(
            K.from_features(Levels(torch.arange(4))) * K.Linear() * (K.RBF(0.5) + K.Constant(0.1))
        ),
        "fidelities": prior(
            K.ExponentialDecay(1.0, 1.0, 0.5).on(0) * K.RBF(0.5)
            + (K.Downsampling(1.0, 0.5) + K.LinearTruncated(1.0)).on(1)
        ),
        "the paper's features": prior(K.RBF(0.5), features="cosine"),
        "orthogonal": prior(K.RBF(0.5), features="orthogonal"),
        "equispaced": prior(K.RBF(0.5), features="equispaced", domain=(0.0, 1.0)),
        "derivatives": posterior().derivative(1),
        "stacked means": coupled(two_means),
        "mixed means": coupled(mixed),
        "transforms": posterior(input_transform=inputs, output_transform=transforms.Exp()),
        "log": posterior(input_transform=transforms.Log()),
        "rounded": posterior(input_transform=transforms.Round([True, False]), output_transform=transforms.SignedExp()),
        "choices": posterior(input_transform=transforms.Round([False, False], [[0, 1]]), output_transform=CUBE),
        "log of one": posterior(input_transform=transforms.Masked(transforms.Log(), [True, False])),
        "power transforms": posterior(
            input_transform=transforms.Chain([transforms.YeoJohnson([0.5, 1.5]), transforms.Imputed(0.0)]),
            output_transform=transforms.Inverse(transforms.BoxCox(0.0)),
        ),
        "maps of rows": posterior(
            input_transform=transforms.Chain(
                [
                    transforms.Columns(
                        [transforms.Monomials([[1, 1]]), transforms.OneHot([0.5], [0], 1, only_known=False)],
                        [[0, 1], [0]],
                        2,
                    ),
                    transforms.Projected([[1.0, 0.5], [0.0, 2.0]], [0.1, 0.2]),
                    transforms.Columns([transforms.Affine(), transforms.Missing()], [[0], [1]], 2),
                ]
            )
        ),
        "sparse": draw(SparseGP(K.RBF(0.5), X, y, 0.3 * torch.eye(3)), 2, **settings),
        "sparse, by draws": draw(SparseGP(K.RBF(0.5), X, sample_u=lambda s, g: randn(s, 3)), 2, **settings),
        "kept at points": posterior().refreshed([[0.2, 0.3]], seed=0, num_features=6),
        "outputs": draw(matheron.Outputs([one, other]), 2, **settings),
        "ensemble": draw(matheron.Ensemble([one, other]), 3, **settings),
        "batch": draw(matheron.Batch([one, other]), 2, **settings),
        "selected outputs": draw(
            matheron.SelectedOutputs(ExactGP(K.Coregional(K.RBF(0.5), B2), X, y, 0.1, tasks=[0, 1, 0]), [1]),
            2,
            **settings,
        ),
        "functions of functions": prior(K.RBF(0.5), 4).compose(
            matheron.stack([2 * prior(K.RBF(0.5)) - 1, prior(K.RBF(0.5)).exp() * posterior()])[..., [1, 0]],
            with_inputs=True,
        )
        + matheron.PosteriorMean(posterior())[[0, 0]],
        "some outputs of a map": matheron.stack([posterior(), posterior()]).tanh()[..., 1],
        "spherical, rotated": prior(K.Spherical(0.5) + K.Rotated(K.RBF([0.5, 0.2]), 30.0)),
        "spherical harmonics": prior(K.RBF(1.0), 3, features=spherical_features(K.RBF(1.0), torch.zeros(3), 1.0)),
        "with a kept factor": draw(one, 2, solver=matheron.solvers.Cholesky(keep=True), **settings),
        "given on a lattice": draw(one, 2, solver="lattice", domain=(0.0, 1.0), generator=gen()),
    }


def test_every_kind_of_value_comes_back(tmp_path):
    for name, paths in everything().items():
        (tmp_path / name).mkdir()
        x = rand(4, paths.input_dim) * 0.8 + 0.1
        assert_same(round_trip(paths, tmp_path / name), paths, x)


def test_every_kernel_of_the_battery_comes_back(tmp_path):
    for kernel, d in KERNELS.values():
        save(kernel, tmp_path / "kernel")
        again, x = load(tmp_path / "kernel"), rand(3, d)
        assert type(again) is type(kernel) and torch.equal(again(x), kernel(x))


def test_nothing_that_can_be_in_a_path_is_left_untested(tmp_path):
    """A new kernel must be in the battery; a new mean, transform or basis in `everything`."""
    seen: set[str] = set()
    for kernel, _ in KERNELS.values():
        save(kernel, tmp_path / "kernel")
        seen |= types_in(tree_of(tmp_path / "kernel"))
    of_fingerprints = draw_prior(K.Tanimoto(), 2, input_dim=2)  # which have no gradients, as all others do
    for name, paths in {**everything(), "fingerprints": of_fingerprints}.items():
        paths.save(tmp_path / name)
        seen |= types_in(tree_of(tmp_path / name))
    rooms = ("kernels", "models.means", "models.transforms", "evaluate", "features", "paths", "lattice")
    concrete = {name for name, kind in REGISTRY.items() if kind.__module__.removeprefix("matheron.").startswith(rooms)}
    abstract = {"Kernel", "Stationary", "Radial", "OwnKernel", "Mean", "Transform", "RowMap", "Basis"}
    abstract |= {"AbstractFunctions", "AbstractPaths", "Around", "PlacedFunctions", "PriorPlusUpdate"}
    abstract |= {"Update", "CentredUpdate", "Combined", "EvaluableFunctions"}
    derived = {"AveragedWaves", "Canonical", "CanonicalSlopes"}  # made again from the centres, never written
    assert concrete - seen - abstract - derived == set()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_keep_their_precision(dtype, tmp_path):
    paths = paths_of("exact", dtype=dtype)
    again = round_trip(paths, tmp_path)
    assert again.dtype == dtype and torch.equal(again(rand(3, 2)), paths(rand(3, 2)))


def test_a_loaded_path_owns_its_tensors(tmp_path):
    again = round_trip(paths_of("exact"), tmp_path)
    before = again(rand(3, 2))
    (tmp_path / "draw.safetensors").unlink()
    assert torch.equal(again(rand(3, 2)), before)
    assert again.to(torch.float32)(rand(3, 2)).dtype == torch.float32


# What cannot be saved.


def test_a_mean_that_is_a_function_of_the_user_s_is_refused_by_name(tmp_path):
    with pytest.raises(TypeError, match=r"save: mean_function is a CallableMean, which cannot be saved.*LinearMean"):
        paths_of("exact, callable mean").save(tmp_path / "draw.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_a_mean_that_is_a_module_is_refused_by_name(tmp_path):
    gp = ExactGP(K.RBF(), rand(2, 2), randn(2), 0.1, mean=torch.nn.Linear(2, 1).double())
    with pytest.raises(TypeError, match="save: mean_function is a CallableMean, which cannot be saved"):
        draw(gp, 1).save(tmp_path / "draw.safetensors")


def test_a_path_that_requires_grad_is_refused(tmp_path):
    gp = ExactGP(K.RBF(torch.tensor(0.5, requires_grad=True)), rand(2, 2), randn(2), 0.1)
    with pytest.raises(ValueError, match=r"save: drawn with detach=False.*draw with detach=True"):
        draw(gp, 1, detach=False).save(tmp_path / "draw.safetensors")


def test_a_kernel_of_the_user_s_own_does_not_pass_for_one_of_ours():
    ours = REGISTRY["RBF"]

    class RBF(K.Matern):
        pass

    assert REGISTRY["RBF"] is ours and RBF is not ours


# Whole or not at all.


def test_a_failed_save_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = tmp_path / "draw.safetensors"
    paths_of("exact").save(path)
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="the disk is full"):
        paths_of("sparse").save(path)
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.skipif(sys.platform == "win32", reason="limits as POSIX has them")
def test_a_file_that_does_not_fit_is_an_os_error_that_says_so_and_leaves_nothing(tmp_path):
    import resource

    path, paths = tmp_path / "draw.safetensors", paths_of("exact", num_features=2048)
    (tmp_path / "old").mkdir()
    old = tmp_path / "old" / "draw.safetensors"
    paths_of("sparse").save(old)
    before = old.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 14, limits[1]))  # of a file: as a full disk, for whoever writes it
    try:
        with pytest.raises(OSError, match=r"save: File too large while writing .* bytes") as refused:
            paths.save(path)
        with pytest.raises(OSError, match="File too large"):
            paths.save(old)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert refused.value.errno == errno.EFBIG and refused.value.filename == str(path)
    assert list(tmp_path.iterdir()) == [old.parent] and list(old.parent.iterdir()) == [old]
    assert old.read_bytes() == before


def test_saving_again_replaces_the_file(tmp_path):
    path = tmp_path / "draw.safetensors"
    paths_of("exact").save(path)
    paths_of("sparse").save(str(path))
    assert_same(load(str(path)), paths_of("sparse"), rand(3, 2))


@pytest.mark.skipif(sys.platform == "win32", reason="permissions as POSIX has them")
def test_a_saved_file_has_the_permissions_of_any_other(tmp_path):
    (tmp_path / "other").write_bytes(b"")
    paths_of("exact").save(tmp_path / "draw.safetensors")
    modes = {stat.S_IMODE(os.stat(tmp_path / name).st_mode) for name in ("other", "draw.safetensors")}
    assert len(modes) == 1


# Files that are not ours.


@pytest.fixture
def small(tmp_path) -> Path:
    path = tmp_path / "small.safetensors"
    draw_prior(K.RBF(0.5), 1, input_dim=1, num_features=2, generator=gen()).save(path)
    return path


def test_a_file_that_is_not_there_is_said_so(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no file .*nothing\.safetensors"):
        load(tmp_path / "nothing.safetensors")
    with pytest.raises(FileNotFoundError, match="no file"):
        load(tmp_path)


def test_a_truncated_file_is_refused_wherever_it_ends(small):
    whole = small.read_bytes()
    for end in [*range(0, len(whole), 29), len(whole) - 1]:
        small.write_bytes(whole[:end])
        with pytest.raises(ValueError, match="is not a complete safetensors file"):
            load(small)
    small.write_bytes(whole + b"\0")
    with pytest.raises(ValueError, match="is not a complete safetensors file"):
        load(small)


def test_one_byte_changed_anywhere_is_refused(small):
    """Every seventh, which meets the lengths, the names, the tree, the checksum and the numbers."""
    whole = small.read_bytes()
    load(small)
    for i in range(0, len(whole), 7):
        small.write_bytes(whole[:i] + bytes([whole[i] ^ (0x01 if i % 2 else 0x80)]) + whole[i + 1 :])
        with pytest.raises(ValueError, match=r"safetensors file|was changed since it was saved"):
            load(small)


class Mischief:
    """Unpickled, it would leave a trace."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return (Path.touch, (self.trace,))


def test_files_of_other_kinds_are_refused_and_run_nothing(tmp_path):
    path, trace = tmp_path / "draw.safetensors", tmp_path / "trace"
    for content in (b"", b"hello, I am a text file\n", b"\xff" * 64, pickle.dumps(Mischief(trace))):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="is not a complete safetensors file"):
            load(path)
    torch.save({"paths": Mischief(trace)}, path)
    with pytest.raises(ValueError, match="is not a complete safetensors file"):
        load(path)
    assert not trace.exists()


def test_a_safetensors_file_of_another_program_is_refused(tmp_path):
    path = tmp_path / "weights.safetensors"
    for metadata in (None, {"format": "pt"}, {"format": "matheron-0", "tree": "{}", "checksum": ""}):
        save_file({"weight": torch.zeros(2)}, path, metadata=metadata)
        with pytest.raises(ValueError, match="is a safetensors file but not one of ours"):
            load(path)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_numbers_of_a_kind_that_no_value_has_are_refused(dtype, tmp_path):
    path = tmp_path / "weights.safetensors"
    metadata = {"format": FORMAT, "tree": "{}", "checksum": ""}
    save_file({"weight": torch.zeros(2).to(dtype)}, path, metadata=metadata)
    with pytest.raises(FileError, match="is not a complete safetensors file"):
        load(path)


# Files made to deceive: with a checksum that is right.


def forge(path: Path, change, tensors_change=None) -> None:
    """Rewrite a saved file with its tree (or header, and tensors) changed, and the checksum that belongs to it."""
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}
    tree = json.loads(metadata["tree"])
    tree = change(tree) or tree
    if tensors_change is not None:
        tensors_change(tensors)
    header = tree if isinstance(tree, str) else json.dumps(tree, sort_keys=True)
    digest = hashlib.sha256(header.encode())
    for name in sorted(tensors):
        digest.update(f"{name}:{tensors[name].dtype}:{list(tensors[name].shape)}".encode())
        digest.update(tensors[name].numpy().tobytes())
    save_file(tensors, path, metadata=metadata | {"tree": header, "checksum": digest.hexdigest()})


def set_type(name: Any):
    return lambda tree: tree["parts"]["update"]["parts"]["kernel"].update(type=name)


def set_choices(choices: Any):
    return lambda tree: tree["parts"]["prior"]["parts"]["features"]["fields"].update(choices=choices)


FORGERIES = {
    "a record that is a number": set_choices(5),
    "a record of numbers": set_choices([5]),
    "a record with text for a number": set_choices([["lattice", "many"]]),
    "a record with text for a share": set_choices([["lattice", 5, False, "all"]]),
    "a record with text for modes": set_choices([["lattice", 5, False, 0.1, 0.1, "ab"]]),
    "a record too long": set_choices([["lattice", *range(9)]]),
    "an unknown kernel": set_type("Sigmoid"),
    "a module path": set_type("os.system"),
    "a builtin": set_type("eval"),
    "a class that is no value": set_type("Module"),
    "a type that is no name": set_type(["RBF"]),
    "a field too many": lambda tree: tree["parts"]["update"]["parts"]["kernel"]["fields"].update(forward="evil"),
    "a field too few": lambda tree: tree["parts"]["prior"]["parts"]["features"]["fields"].clear(),
    "a tensor that is not there": lambda tree: tree["buffers"].update(ghost=True),
    "a buffer in a method's place": lambda tree: tree["parts"]["update"]["buffers"].update(sums=False),
    "a buffer too few": lambda tree: tree["parts"]["prior"]["buffers"].pop("w"),
    "a part in a method's place": lambda tree: tree["parts"].update(save=None),
    "a part too few": lambda tree: tree["parts"]["prior"]["parts"].pop("features"),
    "a list": lambda tree: [tree],
    "a number": lambda tree: 7,
    "no type": lambda tree: tree.pop("type") and None,
}


def test_the_forger_can_write_a_file_that_loads(small):
    """So what is refused below is refused for what it says, not for its checksum."""
    before = load(small)(rand(2, 1))
    forge(small, lambda tree: None)
    assert torch.equal(load(small)(rand(2, 1)), before)


@pytest.mark.parametrize("name", FORGERIES)
def test_a_tree_changed_with_its_checksum_is_refused_and_runs_nothing(name, small):
    forge(small, FORGERIES[name])
    with pytest.raises(ValueError, match="does not describe a value of this version of matheron"):
        load(small)


def test_tensors_that_do_not_fit_each_other_are_refused(small):
    forge(small, lambda tree: None, lambda t: t.update({"prior.w": torch.zeros(1, 1, 5, dtype=torch.float64)}))
    with pytest.raises(ValueError, match="does not describe a value"):
        load(small)


def test_a_basis_that_does_not_exist_is_refused(tmp_path):
    path = tmp_path / "draw.safetensors"
    draw_prior(K.RBF(0.5), 4, input_dim=1, num_features=2, paths_per_basis=2).save(path)
    forge(path, lambda tree: None, lambda t: t.update({"prior.basis_index": torch.tensor([0, 0, 1, 9])}))
    with pytest.raises(ValueError, match="does not describe a value"):
        load(path)


def as_dtype(dtype: torch.dtype):
    return lambda tensor: tensor.to(dtype)


DAMAGE: dict[str, Any] = {
    "int64": as_dtype(torch.int64),
    "int32": as_dtype(torch.int32),
    "bool": as_dtype(torch.bool),
    "half": as_dtype(torch.float16),
    "complex": as_dtype(torch.complex64),
    "NaN": lambda t: t * torch.nan if t.is_floating_point() else t - 1,
    "negative": lambda t: ~t if t.dtype == torch.bool else -t - 1,
    "none": lambda t: t[:0] if t.ndim else t[None],
    "twice": lambda t: torch.cat([t, t]) if t.ndim else t.expand(2),
    "another axis": lambda t: t[None],
}


def damaged(path: Path) -> Any:
    """Every file in which one thing is wrong: a tensor, one that is missing, a field, or a part."""
    with safe_open(path, framework="pt") as file:
        tensors = list(file.keys())
    for name in tensors:
        for what, change in DAMAGE.items():
            yield f"{name} {what}", lambda tree: None, lambda t, n=name, c=change: t.update({n: c(t[n]).contiguous()})

    def inside(tree: dict[str, Any], at: tuple[str, ...] = ()) -> Any:
        yield at, tree
        for name, part in tree["parts"].items():
            if part is not None:
                yield from inside(part, (*at, name))

    for at, node in inside(tree_of(path)):

        def here(tree: dict[str, Any], at: tuple[str, ...] = at) -> dict[str, Any]:
            for name in at:
                tree = tree["parts"][name]
            return tree

        for kind, wrong in (("buffers", (False,)), ("parts", (None,)), ("fields", (None, "x", [], {}))):
            for name in node[kind]:
                for other in wrong:

                    def change(tree: Any, here=here, kind=kind, name=name, other=other) -> None:
                        here(tree)[kind][name] = other

                    yield f"{at} {name} {other!r}", change, None
                yield f"{at} {name} gone", lambda tree, h=here, k=kind, n=name: h(tree)[k].pop(n) and None, None


def used(paths: Any) -> None:
    """What a user may do with paths that were loaded."""
    x = torch.tensor([[0.3, 0.4], [0.6, 0.2]], dtype=torch.float64)
    for each in (paths, paths[:1], paths.float()):
        each(x)
    paths(x.expand(paths.num_paths, -1, -1))
    paths.value_and_grad(x)
    assert repr(paths)
    if getattr(getattr(paths, "update", None), "v_mean", 0) is not None:
        y = paths.mean(x[:1])
        paths.condition_on(x[:1], y, noise=0.1, seed=0)(x)


@pytest.mark.filterwarnings("ignore::matheron.lattice.MisfitWarning")
@pytest.mark.parametrize(
    "name", ["sparse", "sparse, by draws", "stacked means", "ensemble", "batch", "given on a lattice", "keep"]
)
def test_a_file_with_one_thing_wrong_is_refused_or_is_as_good_as_another(name, tmp_path):
    """None is loaded that fails once it is used."""
    gp = ExactGP(K.RBF(0.5), rand(3, 2, seed=1), randn(3, seed=2), 0.1)
    keep = lambda: draw(gp, 2, num_features=6, seed=0, solver=matheron.solvers.Cholesky(keep=True))  # noqa: E731
    paths, path = keep() if name == "keep" else everything()[name], tmp_path / "draw.safetensors"
    paths.save(path)
    used(load(path))
    refused = 0
    for label, change, tensors_change in damaged(path):
        paths.save(path)
        forge(path, change, tensors_change)
        try:
            again = load(path)
        except FileError:
            refused += 1
            continue
        try:
            used(again)
        except Exception as error:
            raise AssertionError(f"{label}: loaded, and then {error!r}") from error
    assert refused > 100


def test_noise_below_zero_and_centres_without_targets_are_refused_by_name(tmp_path):
    path = tmp_path / "draw.safetensors"
    for name, change, message in (
        ("update.data.noise", lambda t: -t, r"Data\.noise: expected numbers >= 0"),
        ("update.data.noise", lambda t: t * torch.nan, r"Data\.noise: expected finite numbers"),
        (
            "update.v",
            lambda t: t.long(),
            r"ExactUpdate\.v: expected .*float64, got torch\.int64",
        ),
        ("update.data.y", lambda t: t[:0], "expected sites and targets of 5 observations"),
    ):
        paths_of("exact").save(path)
        forge(path, lambda tree: None, lambda t, n=name, c=change: t.update({n: c(t[n])}))
        with pytest.raises(FileError, match=message):
            load(path)
    everything()["batch"].save(path)
    forge(path, lambda tree: tree["fields"].update(batch_shape=None))
    with pytest.raises(FileError, match="batch_shape: expected 2 models in all, got None"):
        load(path)


def test_a_tree_too_deep_is_refused(small):
    forge(small, lambda tree: '{"buffers": {}, "fields": {}, "type": "Parts", "parts": {"0": ' * 5000)
    with pytest.raises(ValueError, match="does not describe a value"):
        load(small)


def test_only_values_can_be_named():
    """The registry holds subclasses of Value, and nothing else."""
    assert all(issubclass(kind, Value) for kind in REGISTRY.values())
    assert "CallableMean" not in REGISTRY and wave(torch.zeros(1, 2)).shape == (1,)


@pytest.mark.parametrize("features", ["leverage", "sobol"])
def test_an_odd_number_of_features_in_several_bases_is_loaded_bit_for_bit(tmp_path, features):
    """Pairs and a single cosine are parts of one tensor as they are drawn, and tensors of their own in a file."""
    kernel = K.Matern(1.5, [4.6, 3.0, 2.1, 0.8, 0.4]) * K.Matern(2.5, 1.2)
    gp = ExactGP(kernel, rand(21, 5, seed=1), rand(21, seed=2), noise=1e-2)
    paths = draw(gp, 5, num_features=101, paths_per_basis=2, features=features, seed=0)
    x = rand(7, 5, seed=3)
    paths.save(tmp_path / "paths.safetensors")
    assert torch.equal(load(tmp_path / "paths.safetensors")(x), paths(x))


def test_a_class_that_is_defined_again_as_in_a_notebook_is_the_one_that_files_name(tmp_path):
    cell = """
class Shifted(kernels.RBF):
    pass
"""
    names: dict[str, Any] = {"kernels": K, "__name__": "a_notebook"}
    for _ in range(2):
        exec(cell, names)
    save(names["Shifted"](0.5), tmp_path / "kernel")
    assert type(load(tmp_path / "kernel")) is names["Shifted"]
