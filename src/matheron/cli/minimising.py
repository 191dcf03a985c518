"""The command `matheron minimize`: it suggests the next points to try, as a table."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import options
from .options import ROWS, Voice, check_writable

if TYPE_CHECKING:
    from torch import Tensor

    from ..tables.encoding import EncodedColumns


def minimize(
    data: options.DataOption,
    target: options.Target,
    inputs: options.Inputs = None,
    exclude: options.Exclude = None,
    encode: options.Encode = None,
    kernel: options.KernelOption = None,
    noise: options.NoiseOption = None,
    likelihood: options.LikelihoodOption = None,
    exposure: options.Exposure = None,
    trials: options.Trials = None,
    rows: options.Rows = ROWS,
    points: Annotated[int, typer.Option(metavar="NUMBER", min=1, help="Number of points to suggest.")] = 4,
    bounds: Annotated[
        str | None,
        typer.Option(
            metavar="RANGES", help="Bounds of inputs, for example a=0:1,b=-5:5. By default the range of the data."
        ),
    ] = None,
    maximize: Annotated[bool, typer.Option("--maximize", help="Look for large values instead of small ones.")] = False,
    seed: options.Seed = 0,
    out: options.TableOut = None,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Suggest points to try next, by Thompson sampling, in order to minimise a column of a table.

    Example: matheron minimize trials.csv --target cost --bounds temperature=20:80 --out next.csv

    Each point is the minimiser of one function drawn from the posterior. Some points therefore explore, and some
    improve on the best known one. Try them, add the results to the table, and run the command again. Inputs that are
    whole numbers in the table stay whole, unless --bounds has a decimal point, as in a=0.0:10.0. Dates have bounds such
    as day=2024-03-01:2024-03-31. Columns of --encode take any category that the table has. With --likelihood the
    probability or the rate of the target is minimised.
    """
    import torch

    from ..drawing import draw
    from ..models.transforms import Round
    from ..tables.encoding import OutcomeColumn, listed, quoted
    from ..tables.files import TableWriter
    from ..thompson import maximize as maximised
    from ..thompson import minimize as minimised
    from .data import EXACT, check_kernel, deviation, fitted, read_dataset

    voice = Voice(quiet, as_json)
    check_writable(out, read=[data])
    writer = None if out is None else TableWriter(out)
    check_kernel(kernel)
    with voice.warnings_in_words():
        lists = {"inputs": listed(inputs), "exclude": listed(exclude), "encode": listed(encode)}
        outcomes = OutcomeColumn.of(likelihood, exposure, trials)
        dataset = read_dataset(data, target, rows=rows, seed=seed, voice=voice, outcomes=outcomes, **lists)
        if len(dataset.y) < 2:
            raise ValueError(f"{data}: expected at least two rows, got one; evaluate another point first")
        columns = dataset.columns
        box, fractions = _box(dataset.box(), columns, bounds)
        kinds = {name: kind for name, kind in dataset.kinds.items() if name not in fractions}
        whole = torch.tensor([name in kinds for name in columns.names], device="cpu")
        gp = fitted(dataset, kernel, noise, seed, voice)
        search = maximised if maximize else minimised
        drawn = draw(gp, points, seed=seed)
        groups = [list(range(*columns.places[name].indices(box.shape[1]))) for name in columns.categories]
        rounded = Round(whole, groups)
        cells = torch.stack([box[0].ceil() - 0.499, box[1].floor() + 0.499])  # cells of width one around whole numbers
        x = search(drawn.of(rounded), torch.where(whole, cells, box), generator=seed, progress=voice.progress).x
        x = rounded(x)  # [points, d]
        many = drawn if gp.num_data <= EXACT else draw(gp, 256, seed=seed + 1)
        # the posterior mean and standard deviation at the suggestions
        mean, sd = many.mean(x), deviation(many, gp)(x)
        if dataset.likelihood is not None:  # the functions become probabilities or rates
            mean, variance = dataset.likelihood.moments(mean, sd.square())
            sd = variance.sqrt()
    plain = {name: kind for name, kind in kinds.items() if name not in columns.dates}
    table = columns.table(x.numpy()).astype(plain)
    table[f"{target}_mean"], table[f"{target}_sd"] = mean.numpy(), sd.numpy()
    y = dataset.rates
    best = int(y.argmax() if maximize else y.argmin())
    whole_numbers = {name: kind for name, kind in dataset.kinds.items() if name not in columns.dates}
    row = columns.table(dataset.X[best, None].numpy()).astype(whole_numbers).to_dict("records")[0]
    shown: dict[str | int, Callable[[Any], str]] = {name: str for name in columns.inputs}
    shown |= {target: _rounded(y)}
    for name, place in columns.places.items():
        if not columns.coded(name) and name not in columns.dates and kinds.get(name) != "bool":
            shown[name] = _rounded(dataset.X[:, place.start])
        elif name in columns.dates and name in kinds:
            shown[name] = lambda date: str(date.date())
    value = shown[target](float(y[best]))
    voice.say(f"The {'largest' if maximize else 'smallest'} {target} of {len(y):,}: {value} at")
    voice.say("  " + ", ".join(f"{name} = {shown[name](value)}" for name, value in row.items()))
    voice.say("Try next (with what the model expects there):")
    shown |= {f"{target}_mean": shown[target], f"{target}_sd": "{:.6g}".format}
    voice.say(table.to_string(index=False, formatters=shown))
    if numbers := [name for name, kind in plain.items() if kind == "int64"]:
        low, high = box[:, columns.places[numbers[0]].start].tolist()
        fractions = f"--bounds {quoted(f'{numbers[0]}={low}:{high}')}"
        voice.say(f"{', '.join(numbers)}: whole numbers, as in the table; for fractions give {fractions}")
    if writer is not None:
        with writer:
            writer.write(table)
        voice.say(f"The points are in {out}")
    best_point = {**row, target: float(y[best])}
    voice.result(
        {
            "best": best_point,
            "points": table.to_dict("records"),
            "rows_with_gaps": dataset.rows_with_gaps,
            "out": out,
        }
    )


def _rounded(column: Tensor) -> Callable[[float], str]:
    """Return a function that formats numbers of a column, with enough digits for 1e-4 of the column's spread."""
    spread, largest = float(column.max() - column.min()), float(column.abs().max())
    digits = 6 if spread == 0 else max(6, 5 + math.ceil(math.log10(largest / spread)))
    return f"{{:.{digits}g}}".format


def _box(box: Tensor, columns: EncodedColumns, bounds: str | None) -> tuple[Tensor, set[str]]:
    """Return bounds `[2, d]`, those of the user or else of the data, and the inputs whose bounds have fractions."""
    from ..tables.encoding import listed, quoted

    fractions, given = set(), set()
    box = box.clone()
    for place in map(columns.places.__getitem__, columns.categories):
        box[0, place], box[1, place] = 0.0, 1.0
    for word in listed(bounds) or []:
        name, _, ends = word.rpartition("=")
        name = name.strip()
        if name not in columns.inputs:
            raise ValueError(f"--bounds: {name!r} is not among the inputs, {', '.join(columns.inputs)}")
        if columns.coded(name):
            raise ValueError(
                f"--bounds: {name!r} is a category and has no bounds; to exclude some, leave out their rows"
            )
        if name in given:
            raise ValueError(f"--bounds: {name!r} is given twice; give one low:high for it")
        given.add(name)
        found = _ends(ends, columns.dates.get(name))
        if found is None:
            form = "low:high, two dates such as 2024-03-01" if name in columns.dates else "low:high"
            raise ValueError(f"--bounds: expected {name}={form}, got {word.strip()!r}")
        low, high = found
        if not low < high:
            raise ValueError(f"--bounds: expected low < high, got {word.strip()!r}")
        if "." in ends and name not in columns.dates:
            fractions.add(name)
        place = columns.places[name].start
        box[0, place], box[1, place] = low, high
    for name, place in columns.places.items():
        if not columns.coded(name) and not box[0, place.start] < box[1, place.start]:
            example = quoted(f"{name}=low:high")
            raise ValueError(f"{name!r} is constant in the data; give --bounds {example}, or --exclude {name}")
    return box, fractions


def _ends(words: str, dates: tuple[str, str] | None) -> tuple[float, float] | None:
    """Parse low:high as two numbers, or two dates as numbers; dates may have times, which contain colons too."""
    from ..tables.encoding import date_of

    for colon in (i for i, sign in enumerate(words) if sign == ":"):
        ends = words[:colon], words[colon + 1 :]
        try:
            low, high = (float(end) for end in ends) if dates is None else (date_of(end, *dates) for end in ends)
        except ValueError:
            continue
        if math.isfinite(low) and math.isfinite(high):
            return low, high
    return None
