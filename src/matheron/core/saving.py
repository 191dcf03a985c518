"""Saved values: safetensors plus a JSON tree over a fixed registry. Loading runs no code."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import re
import secrets
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TypedDict

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from .checks import as_device, check_finite
from .value import REGISTRY, Json, Parts, Value

FORMAT = "matheron-3"


class Tree(TypedDict):
    """A value as JSON: its class, its fields, which of its tensors there are, and its parts."""

    type: str
    fields: dict[str, Json]
    buffers: dict[str, bool]
    parts: dict[str, Tree | None]


class FileError(ValueError):
    """A file without a valid value of this library: incomplete, changed, of another kind, or with parts that do not
    fit."""


def save(value: Value, path: str | os.PathLike[str], notes: dict[str, Json] | None = None) -> None:
    """Write a value to `path`; the file appears when it is complete. `notes` are JSON that `read_notes` returns."""
    tensors: dict[str, Tensor] = {}
    if value.requires_graph():
        raise ValueError(
            "save: drawn with detach=False, so tensors require grad, and a file holds no graph; draw with detach=True"
        )
    tree = _describe(value, "", tensors)
    header = json.dumps(tree)
    tensors = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    written = "" if notes is None else json.dumps(notes, sort_keys=True)
    metadata = {"format": FORMAT, "tree": header, "checksum": _checksum(header + written, tensors)}
    metadata |= {"notes": written} if written else {}
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"save: no folder {path.parent}; make it first")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        temporary.touch()
        # the permissions of any new file; safetensors makes files that only their owner can read
        mode = temporary.stat().st_mode
        _write(tensors, temporary, metadata, path)
        temporary.chmod(mode)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _write(tensors: dict[str, Tensor], temporary: Path, metadata: dict[str, str], path: Path) -> None:
    try:
        save_file(tensors, temporary, metadata=metadata)
    except SafetensorError as error:  # this is not an OSError, even if the disk is full
        code = re.search(r"os error (\d+)", str(error))
        if code is None:
            raise
        number = int(code[1])
        size = sum(tensor.nbytes for tensor in tensors.values())
        raise OSError(
            number, f"save: {os.strerror(number)} while writing {size:,} bytes; nothing is kept of them", str(path)
        ) from error


def load(path: str | os.PathLike[str], device: torch.device | str = "cpu") -> Value:
    """Read back what `save` wrote.

    >>> import tempfile, matheron
    >>> from matheron import kernels
    >>> paths = matheron.draw_prior(kernels.RBF(), 2, input_dim=1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     paths.save(f"{folder}/draw.safetensors")
    ...     again = matheron.load(f"{folder}/draw.safetensors")
    >>> bool((again([[0.3]]) == paths([[0.3]])).all())
    True
    """
    path, device = Path(path), as_device(device)
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    try:
        with safe_open(path, framework="np") as file:  # with NumPy, reading is three times as fast
            metadata = file.metadata() or {}
            names = file.keys() if metadata.get("format") == FORMAT else []
            # They are cloned, because tensors in the file are aligned to 8 bytes only, and the last bit of a product
            # depends on the alignment.
            tensors = {name: torch.from_numpy(file.get_tensor(name)).clone() for name in names}
    except (SafetensorError, OSError, ValueError, TypeError, AttributeError) as error:
        # TypeError and AttributeError come from unknown dtypes
        raise FileError(f"{path} is not a complete safetensors file (truncated, or another kind): {error}") from error
    if metadata.get("format") != FORMAT:
        raise FileError(
            f"{path} is a safetensors file but not one of ours: format {metadata.get('format')!r}, not {FORMAT!r}"
        )
    header = metadata.get("tree", "")
    if metadata.get("checksum") != _checksum(header + metadata.get("notes", ""), tensors):
        raise FileError(f"{path} was changed since it was saved: its checksum does not match")
    try:
        value = _rebuild(json.loads(header), "", tensors)
        return value if device.type == "cpu" else value.to(device)
    except (LookupError, TypeError, AttributeError, ValueError, RuntimeError, RecursionError) as error:
        raise FileError(f"{path} does not describe a value of this version of matheron: {error!r}") from error


def read_notes(path: str | os.PathLike[str]) -> dict[str, Json]:
    """The notes that a file was saved with; none where there are none."""
    try:
        with safe_open(Path(path), framework="pt") as file:
            notes = json.loads((file.metadata() or {}).get("notes", "{}"))
    except (SafetensorError, OSError, ValueError) as error:
        raise FileError(f"{path} is not a complete safetensors file (truncated, or another kind): {error}") from error
    return notes if isinstance(notes, dict) else {}


def _describe(value: Value, prefix: str, tensors: dict[str, Tensor]) -> Tree:
    """The JSON tree of a value; its tensors go to `tensors` under dotted names."""
    name = type(value).__name__
    if (known := REGISTRY.get(name)) is not type(value):
        advice = value.instead_of_saving if known is None else f"Give it another name than that of {known.__module__}"
        raise TypeError(
            f"save: {prefix.rstrip('.') or 'the value'} is a {name}, which cannot be saved: a file has no code. "
            f"{advice}, or pickle the paths at your own risk"
        )
    if not _of_library(value):
        from .own_function import check_kept

        check_kept(value, _check)
    buffers = {}
    for key, tensor in value._buffers.items():
        if key in value._non_persistent_buffers_set:
            continue
        buffers[key] = tensor is not None
        if tensor is not None:
            tensors[prefix + key] = tensor
    parts = {
        key: _describe(part, f"{prefix}{key}.", tensors) if isinstance(part, Value) else None
        for key, part in value._modules.items()
    }
    return {"type": name, "fields": {f: getattr(value, f) for f in value.fields}, "buffers": buffers, "parts": parts}


def _of_library(value: Value) -> bool:
    return type(value).__module__.split(".")[0] == "matheron"


def _rebuild(tree: Tree, prefix: str, tensors: dict[str, Tensor]) -> Value:
    """The value of a tree: attributes of registered classes are set, constructors are not run."""
    # some classes are in parts of the library that are imported when they are first used
    if tree["type"] not in REGISTRY:
        for part in ("drawing", "compare.samplers", "fields"):
            import_module(f"matheron.{part}")
    kind = REGISTRY.get(tree["type"])
    if kind is None:
        raise KeyError(f"no saved value is called {tree['type']!r}")
    fields = kind.read_fields(tree["fields"])
    if set(fields) != set(kind.fields):
        raise KeyError(f"{tree['type']} has fields {kind.fields}, got {sorted(fields)}")
    value = kind.__new__(kind)
    Value.__init__(value)
    for name, field in fields.items():
        object.__setattr__(value, name, field)
    for name, present in tree["buffers"].items():
        value.register_buffer(name, tensors[prefix + name] if present else None)
    for name, part in tree["parts"].items():
        value.add_module(name, None if part is None else _rebuild(part, f"{prefix}{name}.", tensors))
    _check(value)
    value.restore()
    value._frozen = True
    return value


def _check(value: Value) -> None:
    """Raise a ValueError if the parts of a value do not fit, before anything is made of them."""
    kind = type(value)
    parameters, name = _parameters(kind), kind.__name__
    _check_numbers(value)
    sizes: dict[str, int] = {}
    for buffer, axes in _axes(kind):
        tensor = value._buffers[buffer]
        if tensor is None:
            if buffer in parameters and "None" not in str(parameters[buffer].annotation):
                raise ValueError(f"{name}.{buffer}: expected a tensor, got none")
            continue
        if tensor.ndim != len(axes):
            raise ValueError(f"{name}.{buffer}: expected axes [{' '.join(axes)}], got {list(tensor.shape)}")
        for axis, size in zip(axes, tensor.shape, strict=True):
            if sizes.setdefault(axis, int(axis) if axis.isdigit() else size) != size:
                wanted = f"[{' '.join(axes)}], {axis} of {sizes[axis]}"
                raise ValueError(f"{name}.{buffer}: expected {wanted}, got {size}")
    for part_name, part in value._modules.items():
        allowed = _types_of_part(kind, part_name)
        for each in part if isinstance(part, Parts) else [part]:
            names = {"None"} if each is None else {base.__name__ for base in type(each).__mro__}
            if allowed and not allowed & names:
                raise ValueError(f"{name}.{part_name}: expected {' | '.join(allowed)}, got {type(each).__name__}")
    if kind.check is Value.check and not kind.shapes:
        _construct(value, parameters)
    value.check()


# Tensors by their names, which mean the same in every class: those that are not floating-point numbers, those that may
# be infinite or NaN because something is unknown, and those that are never negative.
_NUMBERED = ("tasks", "basis_index", "owner", "outputs", "powers", "columns", "orders", "starts")
_DTYPES = dict.fromkeys(_NUMBERED, torch.int64) | {"mask": torch.bool}
_UNKNOWN, _POSITIVE = ("energy",), ("noise", "jitter", "amplitudes", "period")


def _check_numbers(value: Value) -> None:
    """Raise a ValueError if a tensor has a dtype or numbers that no constructor produces."""
    if not _of_library(value):
        return  # a user's class checks its own tensors
    for name, tensor in value._buffers.items():
        if tensor is None:
            continue
        wanted = (_DTYPES[name],) if name in _DTYPES else (torch.float32, torch.float64)
        full = f"{type(value).__name__}.{name}"
        if tensor.dtype not in wanted:
            raise ValueError(f"{full}: expected {' or '.join(map(str, wanted))}, got {tensor.dtype}")
        if tensor.is_floating_point() and name not in _UNKNOWN:
            check_finite(tensor, full, "the file was not written by this library")
        if name in _POSITIVE and bool((tensor < 0).any()):
            raise ValueError(f"{full}: expected numbers >= 0, got a smallest of {tensor.min().item():.4g}")


@cache
def _parameters(kind: type[Value]) -> Mapping[str, inspect.Parameter]:
    parameters = inspect.signature(kind.__init__).parameters
    return {name: one for name, one in parameters.items() if one.kind is not one.VAR_KEYWORD}


@cache
def _axes(kind: type[Value]) -> list[tuple[str, list[str]]]:
    """The names of the tensors whose axes a class states, and these."""
    entries = (entry.split(":") for entry in kind.shapes.split(",") if entry)
    return [(name.strip(), axes.split()) for name, axes in entries]


@cache
def _types_of_part(kind: type[Value], name: str) -> set[str]:
    """What the constructor says that a part is, in its annotation; nothing where that has none of our types."""
    parameters = _parameters(kind)
    wanted = parameters.get(name) or next((p for p in parameters.values() if p.kind is p.VAR_POSITIONAL), None)
    words = set() if wanted is None else set(re.findall(r"\w+", str(wanted.annotation)))
    return words if words & set(_BASES) else set()


# The classes of parts, as the annotations of constructors name them.
_BASES = ("Kernel", "Mean", "Transform", "Features", "Basis", "PriorPaths", "UpdatePaths")
_BASES += ("AbstractFunctions", "AbstractPaths")


def _construct(value: Value, parameters: Mapping[str, inspect.Parameter]) -> None:
    """Let the constructor check kernels, means and transforms: these take what they keep, by the same names."""
    make: Callable[..., Value] = type(value)
    kept = {f: getattr(value, f) for f in value.fields} | value._buffers | value._modules
    given = {}
    for name, parameter in list(parameters.items())[1:]:
        if parameter.kind is parameter.VAR_POSITIONAL:
            make(*kept["parts"])  # sums and products
            return
        if name in kept:
            given[name] = kept[name]
        elif parameter.default is parameter.empty:
            if any(isinstance(value, REGISTRY[base]) for base in ("Kernel", "Mean", "Transform")):
                raise ValueError(f"{type(value).__name__}: expected {name}, got none")
            return  # the constructor of this value takes something else
    made = make(**given)
    for name in value.fields:
        if getattr(made, name) != getattr(value, name):
            raise ValueError(
                f"{type(value).__name__}.{name}: expected {getattr(made, name)!r}, got {getattr(value, name)!r}"
            )


def _checksum(header: str, tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256(header.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name}:{tensor.dtype}:{list(tensor.shape)}".encode())
        digest.update(tensor.numpy().data)
    return digest.hexdigest()
