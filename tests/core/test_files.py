"""Files: the format is read, answers come back bit for bit, and nothing that does not fit is believed."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from typer.testing import CliRunner

import matheron
from matheron import kernels as K
from matheron.cli import app
from matheron.core import FORMAT, FileError

FIXTURES = Path(__file__).parent.parent / "fixtures"
X = torch.tensor([[0.1, 0.2], [0.5, 0.9], [0.8, 0.4]], dtype=torch.float64)


def test_stored_files_of_the_format_are_read_and_mean_what_they_meant():
    said = json.loads((FIXTURES / f"{FORMAT}.json").read_text())
    for name, values in said["values"].items():
        paths = matheron.load(FIXTURES / f"{FORMAT}-{name}.safetensors")
        torch.testing.assert_close(paths(said["at"]), torch.tensor(values, dtype=torch.float64), rtol=1e-9, atol=1e-9)
        if name == "sparse":
            assert paths.condition_on([[0.0, 0.0]], [1.0], noise=0.1, seed=0).num_paths == paths.num_paths


def test_a_new_file_says_its_format(tmp_path):
    matheron.draw_prior(K.RBF(), 1, input_dim=1, num_features=4).save(tmp_path / "new")
    with safe_open(tmp_path / "new", framework="pt") as file:
        assert file.metadata()["format"] == FORMAT


@pytest.mark.parametrize("size", range(1, 14))
def test_loaded_paths_answer_bit_for_bit(tmp_path, size):
    """Odd sizes: in the file tensors then lie at multiples of 8 bytes, not of 64."""
    gp = matheron.ExactGP(K.RBF(0.4), torch.rand(size, 2, dtype=torch.float64), torch.rand(size), 0.1)
    paths = matheron.draw(gp, size, num_features=2 * size + 1, features="cosine", seed=size)
    paths.save(tmp_path / "draw")
    x = torch.rand(37, 2, dtype=torch.float64)
    again = matheron.load(tmp_path / "draw")
    assert all(tensor.data_ptr() % 64 == 0 for tensor in again.buffers() if tensor.numel())
    assert torch.equal(again(x), paths(x)) and torch.equal(again.mean(x), paths.mean(x))


def rewritten(source: Path, target: Path, change: Any) -> Path:
    """A file with another tree or other tensors, and a checksum that agrees with them."""
    with safe_open(source, framework="pt") as file:
        metadata, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}
    tree = json.loads(metadata["tree"])
    change(tree, tensors)
    header = json.dumps(tree, sort_keys=True)
    digest = hashlib.sha256((header + metadata.get("notes", "")).encode())
    for name in sorted(tensors):
        digest.update(f"{name}:{tensors[name].dtype}:{list(tensors[name].shape)}".encode())
        digest.update(tensors[name].numpy().tobytes())
    save_file(tensors, target, metadata=metadata | {"tree": header, "checksum": digest.hexdigest()})
    return target


def part(tree: dict[str, Any], *names: str) -> dict[str, Any]:
    for name in names:
        tree = tree["parts"][name]
    return tree


def shaped(name: str, *shape: int) -> Any:
    def change(_: Any, tensors: dict[str, Any]) -> None:
        assert name in tensors
        tensors[name] = torch.zeros(shape, dtype=tensors[name].dtype)

    return change


KERNEL = ("update", "kernel", "parts", "0", "kernel")  # 1.5 * Matern(1.5, [0.3, 0.6])
BAD: dict[str, Any] = {
    "weights of too few features": shaped("prior.w", 2, 1, 7),
    "weights without an axis": shaped("prior.w", 2, 8),
    "bases that are not there": lambda _, t: t["prior.basis_index"].fill_(9),
    "centres of another dimension": shaped("update.data.sites.points", 3, 5),
    "weights of other centres": shaped("update.v", 2, 4),
    "too many paths": shaped("update.v", 3, 3),
    "targets of other data": shaped("update.data.y", 7),
    "an origin of other dimensions": shaped("prior.features.origin", 3),
    "lengthscales of other dimensions": shaped("update.kernel.parts.0.kernel.lengthscale", 3),
    "a lengthscale below zero": lambda _, t: t["update.kernel.parts.0.kernel.lengthscale"].fill_(-1),
    "a mean of other dimensions": shaped("mean_function.weights", 1, 3),
    "a transform of other dimensions": shaped("input_transform.scale", 3),
    "an order in words": lambda tree, _: part(tree, *KERNEL)["fields"].update(nu="a"),
    "a coordinate that is not there": lambda tree, _: part(tree, "update", "kernel", "parts", "1", "parts", "0")[
        "fields"
    ].update(dims=[99]),
    "no kernel": lambda tree, _: part(tree, "update")["parts"].pop("kernel"),
    "no features": lambda tree, _: part(tree, "prior")["parts"].pop("features"),
    "no update": lambda tree, _: tree["parts"].update(update=None),
    "no weights": lambda tree, _: part(tree, "prior")["buffers"].pop("w"),
    "a mean for a kernel": lambda tree, _: part(tree, "update")["parts"].update(kernel=part(tree, "mean_function")),
    "a type that is none": lambda tree, _: tree.update(type="Nothing"),
    "an abstract type": lambda tree, _: tree.update(type="PriorPlusUpdate"),
    "a field that is none": lambda tree, _: part(tree, *KERNEL)["fields"].update(more=1),
    "a list for a tree": lambda tree, _: tree.update(parts=[]),
}


@pytest.mark.parametrize("name", BAD)
def test_parts_that_do_not_fit_are_refused_though_the_checksum_agrees(name, tmp_path):
    source = FIXTURES / f"{FORMAT}-exact.safetensors"
    assert isinstance(matheron.load(rewritten(source, tmp_path / "same", lambda *_: None)), matheron.Paths)
    bad = rewritten(source, tmp_path / "bad", BAD[name])
    with pytest.raises(FileError, match="does not describe a value of this version"):
        matheron.load(bad)


def test_a_small_file_does_not_ask_for_much_memory(tmp_path):
    """A product of [n, 1, 1] and [1, n] would be n^2 numbers: shapes are looked at before anything is made of them."""

    def change(_: Any, tensors: dict[str, Any]) -> None:
        n = 200_000
        tensors["prior.w"] = torch.zeros(n, 1, 1, dtype=torch.float64)
        tensors["prior.basis_index"] = torch.zeros(n, dtype=torch.long)

    with pytest.raises(FileError, match=r"expected weights of \d features"):
        matheron.load(rewritten(FIXTURES / f"{FORMAT}-exact.safetensors", tmp_path / "bad", change))


def test_every_bad_file_is_one_kind_of_error(tmp_path):
    whole = (FIXTURES / f"{FORMAT}-exact.safetensors").read_bytes()
    file = tmp_path / "file"
    other = {"x": torch.zeros(1)}
    for content in (b"", whole[:-9], whole[:900] + b"x" + whole[901:], whole + b"x"):
        file.write_bytes(content)
        with pytest.raises(FileError, match=str(file)):
            matheron.load(file)
    for metadata in (None, {"format": "matheron-99"}, {"format": "matheron-2"}):
        save_file(other, file, metadata=metadata)
        with pytest.raises(FileError, match="not one of ours"):
            matheron.load(file)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"save: no folder .*nowhere; make it first"):
        matheron.draw_prior(K.RBF(), 1, input_dim=1, num_features=4).save(tmp_path / "nowhere" / "draw")


def test_info_shows_a_files_words_and_obeys_none_of_them(tmp_path):
    words = "[red]loud[/red] \x1b[31mand\x07 [/nonsense]"
    source = FIXTURES / f"{FORMAT}-exact.safetensors"
    file = rewritten(
        source, tmp_path / "draw", lambda tree, _: part(tree, "prior", "features")["fields"].update(choices=[[words]])
    )
    shown = CliRunner().invoke(app, ["info", str(file)])
    assert shown.exit_code == 0, shown.output
    assert "[red]loud[/red]" in shown.output and "[/nonsense]" in shown.output
    assert "\x1b[31m" not in shown.output and "\x07" not in shown.output
