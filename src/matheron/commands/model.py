"""The model that commands fit to a table, and the models that they find in files."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from ..columns import Columns
from ..drawing import draw
from ..fitting import FitWarning, fit
from ..gp import ExactGP
from ..paths import AbstractPaths
from ..solvers import Cholesky
from ..store import load, read_notes
from .data import Dataset
from .options import Voice

# Up to this many data standard deviations are the posterior's own; a few paths know theirs poorly.
EXACT = 2000


def fitted(dataset: Dataset, seed: int, voice: Voice) -> ExactGP:
    noun = "observation" if len(dataset.y) == 1 else "observations"
    voice.say(f"{len(dataset.y)} {noun} of {dataset.target} at {', '.join(dataset.columns.names)}")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "columns? .* constant", FitWarning)  # they were named when they were read
        return fit(None, dataset.X, dataset.y, seed=seed, progress=voice.progress)


def loaded_model(file: Path) -> tuple[ExactGP, Columns, str]:
    """A model that `matheron fit --save` wrote, with its columns and its target."""
    gp, notes = load(file), read_notes(file)
    if not isinstance(gp, ExactGP) or "inputs" not in notes:
        raise ValueError(f"{file} holds no model of a table; expected a file that `matheron fit --save` wrote")
    return gp, Columns.from_json(notes), str(notes["target"])


def loaded_paths(file: Path) -> tuple[AbstractPaths, Columns, str]:
    """Paths that `matheron sample --save` or `paths.save` wrote; columns x0, x1, ... where the file names none."""
    paths, notes = load(file), read_notes(file)
    if not isinstance(paths, AbstractPaths):
        raise ValueError(f"{file} holds no paths; expected a file that `matheron sample --save` wrote")
    if paths.num_outputs > 1:
        raise ValueError(f"{file} holds paths of {paths.num_outputs} outputs; expected one")
    names = notes or {"inputs": [f"x{i}" for i in range(paths.input_dim)], "target": "y"}
    return paths, Columns.from_json(names), str(names["target"])


def data_of(gp: ExactGP) -> tuple[Tensor, Tensor]:
    """The inputs `[n, d]` and targets `[n]` of a model, in the user's units."""
    X, y = gp.train_inputs.double(), gp.train_targets.double()
    X = X if gp.input_transform is None else gp.input_transform.inverse(X)
    return X, y if gp.output_transform is None else gp.output_transform(y)


def deviation(paths: AbstractPaths, gp: ExactGP) -> Callable[[Tensor], Tensor]:
    """The standard deviation at points, `[n]`: the posterior's, or of many data that of the paths."""
    if gp.num_data <= EXACT:
        return draw(gp, 1, num_features=2, solver=Cholesky(keep=True)).std
    return lambda x: paths(x).std(0) if paths.num_paths > 1 else x.new_zeros(len(x))
