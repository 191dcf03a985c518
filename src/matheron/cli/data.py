"""Tables and models for commands: choose columns and rows of a table, fit a model, and load models from files."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.checks import many
from ..core.saving import load, read_notes
from ..core.value import Json
from ..drawing import draw
from ..fitting import FitWarning, default_kernel_priors, fit
from ..kernels import RBF, Kernel, Linear, Matern, Periodic, RationalQuadratic
from ..models import ExactGP, LatentGP
from ..models.likelihoods import Bernoulli, Binomial, Likelihood, Poisson, StudentT
from ..paths import AbstractPaths
from ..solvers import Cholesky
from ..tables.encoding import (
    EncodedColumns,
    OutcomeColumn,
    check_columns,
    copies_remark,
    find_dates,
    no_data_remark,
    numbers,
)
from ..tables.files import pandas, read_table
from .options import Voice

if TYPE_CHECKING:
    from pandas import DataFrame

# Up to this number of data, standard deviations are computed from the posterior; beyond, they are estimated from paths.
EXACT = 2000
# The square of a larger number could overflow float64.
_LARGEST = 1e150
# Kernels by name, as functions of a variance and the columns' scales [d], which are lengthscales or periods.
_KERNELS: dict[str, Callable[[float, Tensor], Kernel]] = {
    "rbf": lambda variance, scale: variance * RBF(scale),
    "matern-1/2": lambda variance, scale: variance * Matern(0.5, scale),
    "matern-3/2": lambda variance, scale: variance * Matern(1.5, scale),
    "matern-5/2": lambda variance, scale: variance * Matern(2.5, scale),
    "rational-quadratic": lambda variance, scale: variance * RationalQuadratic(1.0, scale),
    "periodic": lambda variance, scale: variance * Periodic(torch.ones_like(scale), scale),
    "linear": lambda variance, scale: Linear(variance * scale.pow(-2)),
}


class TableData(NamedTuple):
    """Inputs X `[n, d]` and targets y `[n]` of the rows that are used: those without gaps, or a sample of them."""

    columns: EncodedColumns
    target: str
    X: Tensor
    y: Tensor
    kinds: Mapping[str, str] = {}  # "int64" or "bool" for inputs that are whole numbers or yes and no
    points: Tensor | None = None  # [m, d], the inputs of all rows that are used and of rows with gaps, which are NaN
    rows_with_gaps: int = 0
    likelihood: Likelihood | None = None  # if the targets are outcomes

    def notes(self) -> dict[str, Json]:
        """What a saved file stores about the table."""
        known = {} if self.likelihood is None else {"likelihood": _noted(self.likelihood)}
        return {**self.columns.to_json(), "target": self.target, "box": self.box().tolist(), **known}

    @property
    def rates(self) -> Tensor:
        """The targets on the scale of the functions: counts per exposure, or shares of trials."""
        return self.y if self.likelihood is None else self.likelihood.rates(self.y)

    def box(self) -> Tensor:
        """The smallest and the largest value of each input, `[2, d]`."""
        return torch.stack(self.X.aminmax(dim=0))


def read_dataset(
    file: Path,
    target: str,
    *,
    inputs: Sequence[str] | None,
    exclude: Sequence[str] | None,
    encode: Sequence[str] | None,
    rows: int,
    seed: int,
    voice: Voice,
    outcomes: OutcomeColumn | None = None,
) -> TableData:
    """Read the data of a file; if it has more than `rows` rows, that many are drawn at random with the seed."""
    frame = read_table(file, progress=voice.progress)
    source = str(file)
    check_columns(frame, [target, *(inputs or []), *(exclude or []), *(encode or [])], source)
    others = (target, None if outcomes is None else outcomes.beside)
    chosen = list(inputs) if inputs else [str(name) for name in frame.columns if name not in others]
    for name in exclude or []:
        if (inputs and name in inputs) or name == target:
            raise ValueError(f"--exclude: {name!r} is {'the target' if name == target else 'one of --inputs'}")
    chosen = [name for name in chosen if name not in (exclude or [])]
    nameless = [] if inputs else [name for name in chosen if re.fullmatch(r"Unnamed: \d+|", name)]
    if nameless:
        one = "a column without a name is" if len(nameless) == 1 else f"{len(nameless)} columns without names are"
        voice.warn(f"{one} left out; choose columns with --inputs")
        chosen = [name for name in chosen if name not in nameless]
    if not chosen:
        raise ValueError(f"{source}: expected at least one column besides {target!r}, which depends on it")
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
    plain = [name for name in chosen if name not in categories]
    columns = EncodedColumns(
        chosen, categories, {name: found for name in plain if (found := find_dates(frame, name, source))}
    )
    for name, (unit, since) in columns.dates.items():
        voice.say(f"{name}: dates, as {unit} since {since}")
    beside = remark = None
    if outcomes is None:
        y = numbers(frame, target, source, "correct these cells, or name another column with --target")
    else:
        y, beside, remark = outcomes.read(frame, target, source)
    X = columns.matrix(frame, source)
    whole = np.isfinite(X).all(1) & np.isfinite(y)
    whole &= True if beside is None else np.isfinite(beside)
    if remark is not None:
        voice.say(remark)
    if not whole.any():
        raise ValueError(f"{source}: every row has an empty cell in one of {', '.join([*chosen, target])}")
    _check_sizes(X, y, whole, columns, target, source)
    gaps = int((~whole).sum())
    if gaps:
        voice.warn(
            f"{gaps:,} of {many(len(whole), 'row')} {'has' if gaps == 1 else 'have'} an empty or infinite cell "
            f"and {'is' if gaps == 1 else 'are'} left out"
        )
    used = np.flatnonzero(whole)
    if len(used) > rows:
        used = _some_of(used, y, rows, seed)
        voice.warn(f"{rows:,} of {len(whole):,} rows are used, drawn at random; --rows {len(whole)} uses all")
    likelihood = None
    if outcomes is not None:
        kept = None if beside is None else beside[used]
        outcomes.check(y[used], kept, target, source)
        likelihood = outcomes.likelihood(None if kept is None else torch.from_numpy(kept))
    cells = np.column_stack([X, y])[used]
    named = list(zip([*columns.names, target], cells.T, strict=True))
    copies = copies_remark(cells) if outcomes is None else None  # equal rows are normal for outcomes
    for remark in (*(no_data_remark(name, column) for name, column in named), copies):
        if remark is not None:
            voice.say(remark)
    constant = [name for name, column in named if not np.ptp(column)]
    if len(cells) > 1 and set(columns.names) <= set(constant):
        raise ValueError(f"{source}: no input varies; the target cannot depend on {', '.join(chosen)}")
    if len(cells) > 1 and target in constant:
        voice.warn(f"the target {target!r} is constant, so the fitted hyperparameters are not meaningful")
        constant.remove(target)
    if len(cells) > 1 and constant:
        voice.say(f"{', '.join(constant)}: the same in all rows, so the data have no information about its effect")
    kinds = {name: kind for name in plain if name not in columns.dates and (kind := _whole_kind(frame[name]))}
    days = {name: X[used, columns.places[name].start] for name, (unit, _) in columns.dates.items() if unit == "days"}
    kinds |= {name: "int64" for name, values in days.items() if bool((values % 1 == 0).all())}
    shown = np.union1d(used, np.flatnonzero(~whole)) if len(used) < len(X) else slice(None)
    X_used, y_used, points = (torch.from_numpy(values) for values in (X[used], y[used], X[shown]))
    return TableData(columns, target, X_used, y_used, kinds, points, gaps, likelihood)


def _some_of(rows: np.ndarray, y: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Draw `count` rows at random, in order; the rows of the smallest and the largest target are always among them."""
    best = np.array([rows[y[rows].argmin()], rows[y[rows].argmax()]])
    others = np.setdiff1d(rows, best, assume_unique=True)
    drawn = np.random.default_rng(seed).choice(others, max(0, count - 2), replace=False)
    return np.sort(np.concatenate([best, drawn])[:count])


def _check_sizes(
    X: np.ndarray, y: np.ndarray, whole: np.ndarray, columns: EncodedColumns, target: str, source: str
) -> None:
    """Raise a ValueError for numbers so large that their squares are infinite."""
    for name, values in [*zip(columns.names, X.T, strict=True), (target, y)]:
        large = np.flatnonzero(whole & (np.abs(values, where=whole, out=np.zeros_like(values)) > _LARGEST))
        if len(large):
            raise ValueError(
                f"{source}: column {name!r} holds {values[large[0]]:g} in row {large[0] + 1}, expected numbers up to "
                f"{_LARGEST:g}, whose squares are finite; empty these cells if that stands for no data, or use other "
                "units"
            )


def _whole_kind(column: Any) -> str | None:
    """Return "bool" for yes and no, "int64" for whole numbers, else None; with gaps, whole numbers become floats."""
    inferred = pandas().api.types.infer_dtype(column, skipna=True)
    if inferred in ("boolean", "integer"):
        return "bool" if inferred == "boolean" else "int64"
    gaps = inferred == "floating" and bool(column.isna().any())
    return "int64" if gaps and bool((column.dropna() % 1 == 0).all()) else None


class Evaluated:
    """Evaluates paths at the points of tables; rows with a gap among their inputs get NaN, and are counted."""

    def __init__(
        self, paths: AbstractPaths, columns: EncodedColumns, target: str, likelihood: Likelihood | None = None
    ) -> None:
        self.paths, self.columns, self.target, self.likelihood = paths, columns, target, likelihood
        self.gaps = self.rows = 0

    def __call__(self, frame: DataFrame, x: Tensor) -> DataFrame:
        """Return a table of the inputs, the mean and every path at points x `[n, d]`; NaN where x is not finite."""
        whole = x.isfinite().all(1)
        at = x[whole].to(self.paths.dtype)
        values = torch.full((self.paths.num_paths + 1, len(x)), torch.nan, dtype=torch.float64, device="cpu")
        values[0, whole] = self.paths.mean(at).double().cpu()
        values[1:, whole] = self.paths(at).double().cpu()
        if self.likelihood is not None:  # turn functions into rates or probabilities
            values[1:] = self.likelihood.inverse_link(values[1:])
            exact = self.paths.update.num_data <= EXACT
            variance = self.paths.variance(at) if exact else self.paths(at).var(0, correction=0)
            values[0, whole] = self.likelihood.moments(values[0, whole], variance.double().cpu())[0]
        self.rows, self.gaps = self.rows + len(x), self.gaps + int((~whole).sum())
        names = [f"{self.target}_mean", *(f"path_{i}" for i in range(self.paths.num_paths))]
        out = pandas().DataFrame(dict(zip(names, values.numpy(), strict=True)))
        return pandas().concat([frame[self.columns.inputs].reset_index(drop=True), out], axis=1)

    def warn(self, voice: Voice) -> None:
        if self.gaps:
            have = "has" if self.gaps == 1 else "have"
            voice.warn(
                f"{self.gaps:,} of {many(self.rows, 'point')} {have} an empty or infinite cell and no values (NaN)"
            )


def rows_per_chunk(paths: AbstractPaths) -> int:
    """Return the number of rows whose values take about 64 MiB."""
    return max(256, (1 << 23) // (paths.num_paths + paths.input_dim + 1))


def fitted(dataset: TableData, kernel: str | None, noise: float | None, seed: int, voice: Voice) -> ExactGP | LatentGP:
    """Fit a model to the data: the kernel has a name, and `noise` is the noise's standard deviation if it is known."""
    likelihood = dataset.likelihood
    if likelihood is not None and noise is not None:
        raise ValueError("--noise: a --likelihood already has the distribution of errors; leave one of them out")
    count = many(len(dataset.y), "observation")
    voice.say(f"{count} of {dataset.target} at {', '.join(dataset.columns.names)}")
    latent = likelihood is not None and not likelihood.follows_targets
    expression = None if kernel is None else named_kernel(kernel, dataset.X, None if latent else dataset.y)
    priors = None
    if expression is not None:
        has = {name.split(".")[-1] for name, _ in expression.named_buffers()}
        has |= {"noise"} if noise is None and not latent else set()
        priors = {name: prior for name, prior in default_kernel_priors(dataset.X.shape[1]).items() if name in has}
    variance = None if noise is None else noise**2
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(columns? .*|y is) constant", FitWarning)  # read_dataset has reported them
        settings = {"noise": variance, "priors": priors, "seed": seed, "progress": voice.progress}
        return fit(expression, dataset.X, dataset.y, likelihood=likelihood, **settings)


def check_kernel(words: str | None) -> list[str]:
    """Check a sum of kernels, such as "periodic+rbf", and return the names in it."""
    names = [] if words is None else [word.strip().lower() for word in words.split("+")]
    for name in names:
        if name not in _KERNELS:
            known = ", ".join(_KERNELS)
            raise ValueError(f"--kernel: expected one of {known}, or a sum such as periodic+rbf, got {name!r}")
    return names


def named_kernel(words: str, X: Tensor, y: Tensor | None) -> Kernel:
    """Return the sum of kernels with these names, with a lengthscale for each column.

    Hyperparameters start at values that suit the data's units; without y, the variance is 1.
    """
    names = check_kernel(words)
    scale = X.std(0, correction=0)
    scale = torch.where(scale > 0, scale, 1.0)
    variance = 1.0 if y is None else float(y.var(correction=0)) or 1.0
    parts = [_KERNELS[name](variance / len(names), scale) for name in names]
    return sum(parts[1:], parts[0])


def loaded_model(file: Path) -> tuple[ExactGP | LatentGP, TableData]:
    """Load a model that `matheron fit --save` wrote, with its data."""
    whole, notes = load(file), read_notes(file)
    gp = whole.gaussian if isinstance(whole, LatentGP) else whole
    if not isinstance(gp, ExactGP) or "inputs" not in notes:
        raise ValueError(f"{file}: expected a model that `matheron fit --save` wrote, got {_contents(whole)}")
    X, y = gp.train_inputs.double(), gp.train_targets.double()
    X = X if gp.input_transform is None else gp.input_transform.inverse(X)
    y = y if gp.output_transform is None else gp.output_transform(y)
    columns, target = EncodedColumns.from_json(notes), str(notes["target"])
    if isinstance(whole, LatentGP):
        return whole, TableData(columns, target, X, whole.y.double(), likelihood=whole.likelihood)
    return gp, TableData(columns, target, X, y)


def _contents(value: object) -> str:
    """Say in words what a saved file holds."""
    if isinstance(value, AbstractPaths):
        return "functions"
    return f"a model ({type(value).__name__})" if isinstance(value, ExactGP | LatentGP) else type(value).__name__


def loaded_paths(file: Path) -> tuple[AbstractPaths, EncodedColumns, str, Likelihood | None]:
    """Load paths that `matheron sample --save` or `paths.save` wrote. Columns without names are x0, x1, ..."""
    paths, notes = load(file), read_notes(file)
    if not isinstance(paths, AbstractPaths):
        raise ValueError(
            f"{file}: expected functions that `matheron sample --save` wrote, got {_contents(paths)}; draw functions "
            "from a model with: matheron sample MODEL --save draw.safetensors"
        )
    if paths.num_outputs > 1:
        raise ValueError(f"{file}: expected functions with one output, got {paths.num_outputs} outputs")
    names = notes or {"inputs": [f"x{i}" for i in range(paths.input_dim)], "target": "y"}
    return paths, EncodedColumns.from_json(names), str(names["target"]), _LINKS.get(str(names.get("likelihood")))


# Likelihoods by their names in saved files. Files have no exposures or numbers of trials, because rates and
# probabilities do not depend on them.
_LINKS: dict[str, Likelihood] = {
    "bernoulli": Bernoulli(),
    "probit": Bernoulli("probit"),
    "binomial": Binomial(1),
    "poisson": Poisson(),
    "student-t": StudentT(),
}


def _noted(likelihood: Likelihood) -> str:
    if isinstance(likelihood, Bernoulli) and likelihood.link == "probit":
        return "probit"
    return next(name for name, kind in _LINKS.items() if type(kind) is type(likelihood))


def deviation(paths: AbstractPaths, gp: ExactGP | LatentGP) -> Callable[[Tensor], Tensor]:
    """Return a function for the standard deviation at points, `[n]`: the posterior's, or for many data the paths'."""
    if gp.num_data <= EXACT:
        return draw(gp, 1, num_features=2, solver=Cholesky(keep=True)).std
    return lambda x: paths(x).std(0) if paths.num_paths > 1 else x.new_zeros(len(x))
