"""From a file to a model of it: which columns, which rows, which numbers, and the fit; and models found in files."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..checks import many
from ..columns import Columns, check_columns, copies_remark, no_data_remark, numbers
from ..drawing import draw
from ..fitting import FitWarning, fit
from ..gp import ExactGP
from ..paths import AbstractPaths
from ..solvers import Cholesky
from ..store import load, read_notes
from ..tables import pandas, read_table
from ..value import Json
from .options import Voice

if TYPE_CHECKING:
    from pandas import DataFrame, Series

# Up to this many data standard deviations are the posterior's own; a few paths know theirs poorly.
EXACT = 2000


class Dataset(NamedTuple):
    """Inputs X `[n, d]` and targets y `[n]` of the rows that are whole."""

    columns: Columns
    target: str
    X: Tensor
    y: Tensor
    kinds: Mapping[str, str] = {}  # of inputs that are whole numbers or yes and no, "int64" or "bool"

    def notes(self) -> dict[str, Json]:
        """What a saved file must remember of the table."""
        return {**self.columns.to_json(), "target": self.target, "box": self.box().tolist()}

    def box(self) -> Tensor:
        """The smallest and the largest of each input, `[2, d]`."""
        return torch.stack(self.X.aminmax(dim=0))


def read_dataset(
    file: Path,
    target: str,
    inputs: Sequence[str] | None,
    encode: Sequence[str] | None,
    voice: Voice,
    advice: str | None = None,
) -> Dataset:
    """The data of a file; `advice` is for someone whose inputs hold text, where it is not to encode it."""
    frame = read_table(file)
    source = str(file)
    check_columns(frame, [target, *(inputs or []), *(encode or [])], source)
    chosen = list(inputs) if inputs else [str(name) for name in frame.columns if name != target]
    nameless = [] if inputs else [name for name in chosen if re.fullmatch(r"Unnamed: \d+|", name)]
    if nameless:
        one = "a column without a name is" if len(nameless) == 1 else f"{len(nameless)} columns without names are"
        voice.say(f"{one} left out; --inputs says which to take")
        chosen = [name for name in chosen if name not in nameless]
    if not chosen:
        raise ValueError(f"{source}: no column but {target!r}; there must be one that it depends on")
    if target in chosen:
        raise ValueError(f"--inputs: {target!r} is the target; leave it out")
    if len(set(chosen)) < len(chosen):
        raise ValueError(f"--inputs: expected different columns, got {', '.join(chosen)}")
    stray = [name for name in encode or [] if name not in chosen]
    if stray:
        raise ValueError(f"--encode: {stray[0]!r} is not among the inputs, {', '.join(chosen)}")
    categories = {name: sorted(frame[name].dropna().astype(str).unique()) for name in encode or []}
    for name, values in categories.items():
        if len(values) > 50:
            raise ValueError(f"--encode: {name!r} has {len(values)} different values, more than 50: is it a category?")
    columns = Columns(chosen, categories)
    X = columns.matrix(frame, source, advice)
    y = numbers(frame, target, source, "correct these cells, or name another column with --target")
    whole = np.isfinite(X).all(1) & np.isfinite(y)
    if not whole.any():
        raise ValueError(f"{source}: every row has an empty cell in one of {', '.join([*chosen, target])}")
    left_out = int((~whole).sum())
    if left_out:
        voice.say(f"{left_out} of {len(whole)} rows have an empty or infinite cell and are left out")
    rows = np.column_stack([X, y])[whole]
    named = list(zip([*columns.names, target], rows.T, strict=True))
    for remark in (*(no_data_remark(name, column) for name, column in named), copies_remark(rows)):
        if remark is not None:
            voice.say(remark)
    constant = [name for name, column in named if not np.ptp(column)]
    if len(rows) > 1 and set(columns.names) <= set(constant):
        raise ValueError(f"{source}: no input varies; the target cannot depend on {', '.join(chosen)}")
    if len(rows) > 1 and constant:
        voice.say(f"{', '.join(constant)}: the same in all rows, so that the fit can say nothing of it")
    cells = ((str(name), column) for name, column in frame[chosen].items())
    kinds = {name: kind for name, column in cells if not columns.coded(name) and (kind := _whole_kind(column))}
    return Dataset(columns, target, torch.from_numpy(X[whole]), torch.from_numpy(y[whole]), kinds)


def _whole_kind(column: Series) -> str | None:
    """Whether cells are yes and no ("bool") or whole numbers ("int64"); whole numbers with gaps are read as floats."""
    inferred = pandas().api.types.infer_dtype(column, skipna=True)
    if inferred in ("boolean", "integer"):
        return "bool" if inferred == "boolean" else "int64"
    gaps = inferred == "floating" and bool(column.isna().any())
    return "int64" if gaps and bool((column.dropna() % 1 == 0).all()) else None


def points_of(frame: DataFrame, columns: Columns, source: str, first_row: int = 0) -> Tensor:
    """Points `[n, d]` at which to evaluate: no cell may be empty."""
    X = columns.matrix(frame, source)
    bad = ~np.isfinite(X).all(1)
    if bad.any():
        row = first_row + int(np.flatnonzero(bad)[0]) + 1
        raise ValueError(f"{source}: row {row} has an empty or infinite cell among {', '.join(columns.inputs)}")
    return torch.from_numpy(X)


def evaluated(frame: DataFrame, columns: Columns, paths: AbstractPaths, x: Tensor, target: str) -> DataFrame:
    """The inputs of a table beside the mean and every path at them."""
    values = paths(x.to(paths.dtype)).double().cpu().numpy()  # [s, n]
    mean = paths.mean(x.to(paths.dtype)).double().cpu().numpy()  # [n]
    out = {f"{target}_mean": mean} | {f"path_{i + 1}": path for i, path in enumerate(values)}
    return pandas().concat([frame[columns.inputs].reset_index(drop=True), pandas().DataFrame(out)], axis=1)


def rows_per_chunk(paths: AbstractPaths) -> int:
    """The number of rows whose numbers take about 64 MiB."""
    return max(256, (1 << 23) // (paths.num_paths + paths.input_dim + 1))


def fitted(dataset: Dataset, seed: int, voice: Voice) -> ExactGP:
    count = many(len(dataset.y), "observation")
    voice.say(f"{count} of {dataset.target} at {', '.join(dataset.columns.names)}")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "columns? .* constant", FitWarning)  # they were named when they were read
        return fit(None, dataset.X, dataset.y, seed=seed, progress=voice.progress)


def loaded_model(file: Path) -> tuple[ExactGP, Dataset]:
    """A model that `matheron fit --save` wrote, and its data."""
    gp, notes = load(file), read_notes(file)
    if not isinstance(gp, ExactGP) or "inputs" not in notes:
        raise ValueError(f"{file} holds no model of a table; expected a file that `matheron fit --save` wrote")
    X, y = gp.train_inputs.double(), gp.train_targets.double()
    X = X if gp.input_transform is None else gp.input_transform.inverse(X)
    y = y if gp.output_transform is None else gp.output_transform(y)
    return gp, Dataset(Columns.from_json(notes), str(notes["target"]), X, y)


def loaded_paths(file: Path) -> tuple[AbstractPaths, Columns, str]:
    """Paths that `matheron sample --save` or `paths.save` wrote; columns x0, x1, ... where the file names none."""
    paths, notes = load(file), read_notes(file)
    if not isinstance(paths, AbstractPaths):
        raise ValueError(f"{file} holds no paths; expected a file that `matheron sample --save` wrote")
    if paths.num_outputs > 1:
        raise ValueError(f"{file} holds paths of {paths.num_outputs} outputs; expected one")
    names = notes or {"inputs": [f"x{i}" for i in range(paths.input_dim)], "target": "y"}
    return paths, Columns.from_json(names), str(names["target"])


def deviation(paths: AbstractPaths, gp: ExactGP) -> Callable[[Tensor], Tensor]:
    """The standard deviation at points, `[n]`: the posterior's, or of many data that of the paths."""
    if gp.num_data <= EXACT:
        return draw(gp, 1, num_features=2, solver=Cholesky(keep=True)).std
    return lambda x: paths(x).std(0) if paths.num_paths > 1 else x.new_zeros(len(x))
