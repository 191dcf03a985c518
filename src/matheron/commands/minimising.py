"""`matheron minimize`: where to try next, as a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import AsJson, Data, Inputs, Quiet, Seed, Target, Voice, check_writable

if TYPE_CHECKING:
    from torch import Tensor


def minimize(
    data: Data,
    target: Target,
    inputs: Inputs = None,
    points: Annotated[int, typer.Option(min=1, help="How many points to suggest.")] = 4,
    bounds: Annotated[str | None, typer.Option(help="Of inputs, a=0:1,b=-5:5; the data's box by default.")] = None,
    maximize: Annotated[bool, typer.Option("--maximize", help="Look for the largest value instead.")] = False,
    out: Annotated[Path | None, typer.Option(help="A table, .csv or .parquet.", dir_okay=False)] = None,
    seed: Seed = 0,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Suggest where to look next for a smaller target: Thompson sampling.

    Each point is the minimiser of a function of its own, drawn from the posterior: some explore, some improve on what
    is known. Try them, add the results to the table, and run the command again. Inputs that are whole numbers in the
    table stay whole, unless --bounds has a decimal point for them: a=0.0:10.0.
    """
    import torch

    from ..columns import listed
    from ..drawing import draw
    from ..tables import TableWriter, pandas
    from ..thompson import maximize as maximised
    from ..thompson import minimize as minimised
    from ..thompson.minima import Rounded
    from .data import EXACT, deviation, fitted, read_dataset

    voice = Voice(quiet, as_json)
    check_writable(out, read=[data])
    writer = None if out is None else TableWriter(out)
    with voice.warnings_in_words():
        numbers_only = "points to try are numbers: leave it out with --inputs, or correct these cells"
        dataset = read_dataset(data, target, listed(inputs), None, voice, numbers_only)
        if len(dataset.y) < 2:
            raise ValueError(f"{data}: one row says nothing of where to look; expected at least two")
        names = dataset.columns.names
        box, fractions = _box(dataset.box(), names, bounds)
        kinds = {name: kind for name, kind in dataset.kinds.items() if name not in fractions}
        whole = torch.tensor([name in kinds for name in names])
        gp = fitted(dataset, seed, voice)
        search = maximised if maximize else minimised
        drawn = draw(gp, points, seed=seed)
        rounded = Rounded(drawn, whole)
        cells = torch.stack([box[0].ceil() - 0.499, box[1].floor() + 0.499])  # whole numbers are their middles
        x = search(rounded, torch.where(whole, cells, box), generator=seed, progress=voice.progress).x
        x = rounded.rounded(x)  # [points, d]
        many = drawn if gp.num_data <= EXACT else draw(gp, 256, seed=seed + 1)
        # what all functions together expect there: the posterior's mean and deviation
        mean, sd = many.mean(x), deviation(many, gp)(x)
    table = pandas().DataFrame(x.numpy(), columns=names).astype(kinds)
    table[f"{target}_mean"], table[f"{target}_sd"] = mean.numpy(), sd.numpy()
    best = int(dataset.y.argmax() if maximize else dataset.y.argmin())
    row = pandas().DataFrame(dataset.X[best, None].numpy(), columns=names).astype(dataset.kinds).to_dict("records")[0]
    shown = {name: _rounded(column) for name, column in zip([*names, target], [*dataset.X.T, dataset.y], strict=True)}
    shown |= {name: str for name, kind in kinds.items() if kind == "bool"}
    value = shown[target](float(dataset.y[best]))
    voice.say(f"The {'largest' if maximize else 'smallest'} {target} of {len(dataset.y)}: {value} at")
    voice.say("  " + ", ".join(f"{name} = {shown[name](value)}" for name, value in row.items()))
    voice.say("Try next (with what the model expects there):")
    shown |= {f"{target}_mean": shown[target], f"{target}_sd": "{:.6g}".format}
    voice.say(table.to_string(index=False, formatters=shown))
    if numbers := [name for name, kind in kinds.items() if kind == "int64"]:
        low, high = box[:, names.index(numbers[0])].tolist()
        fractions = f"--bounds {numbers[0]}={low}:{high}"
        voice.say(f"{', '.join(numbers)}: whole numbers, as in the table; for fractions give {fractions}")
    if writer is not None:
        with writer:
            writer.write(table)
        voice.say(f"The points are in {out}")
    best_point = {**row, target: float(dataset.y[best])}
    voice.result({"best": best_point, "points": table.to_dict("records"), "out": out})


def _rounded(column: Tensor) -> Callable[[float], str]:
    """Numbers of a column in words, with digits enough to tell a ten-thousandth of its spread."""
    spread, largest = float(column.max() - column.min()), float(column.abs().max())
    digits = 6 if spread == 0 else max(6, 5 + math.ceil(math.log10(largest / spread)))
    return f"{{:.{digits}g}}".format


def _box(box: Tensor, names: Sequence[str], bounds: str | None) -> tuple[Tensor, set[str]]:
    """Bounds `[2, d]`: the data's, with those that the user gave; and the inputs for which these have fractions."""
    from ..columns import listed

    fractions = set()
    box = box.clone()
    for word in listed(bounds) or []:
        name, _, ends = word.rpartition("=")
        name = name.strip()
        if name not in names:
            raise ValueError(f"--bounds: {name!r} is not among the inputs, {', '.join(names)}")
        try:
            low, high = (float(end) for end in ends.split(":"))
        except ValueError:
            raise ValueError(f"--bounds: expected {name}=low:high, got {word.strip()!r}") from None
        if not low < high:
            raise ValueError(f"--bounds: expected low < high, got {word.strip()!r}")
        if "." in ends:
            fractions.add(name)
        box[0, names.index(name)], box[1, names.index(name)] = low, high
    flat = [name for name, low, high in zip(names, *box.tolist(), strict=True) if not low < high]
    if flat:
        raise ValueError(f"{flat[0]!r} is constant in the data; give --bounds {flat[0]}=low:high, or leave it out")
    return box, fractions
