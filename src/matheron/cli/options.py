"""Options that several commands share, and their output as sentences or JSON."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

# Options by the panels of a command's help, in their order.
model_option = partial(typer.Option, rich_help_panel="The model")
points_option = partial(typer.Option, rich_help_panel="Where it is evaluated")
output_option = partial(typer.Option, rich_help_panel="Output")

Target = Annotated[str, model_option(metavar="COLUMN", help="Column to model.", show_default=False)]
Inputs = Annotated[
    str | None,
    model_option(
        metavar="COLUMNS", help="Columns that the target depends on, for example east,north. By default all others."
    ),
]
Exclude = Annotated[str | None, model_option(metavar="COLUMNS", help="Columns to leave out, for example id,name.")]
Encode = Annotated[
    str | None,
    model_option(metavar="COLUMNS", help="Columns of categories, for example soil. Each becomes columns of 0 and 1."),
]
KernelOption = Annotated[
    str | None,
    model_option(
        metavar="NAMES",
        help="rbf, matern-1/2, matern-3/2, matern-5/2, rational-quadratic, periodic or linear, or a sum such as "
        "periodic+matern-3/2. Its hyperparameters are fitted.",
        show_default="matern-5/2",
    ),
]
NoiseOption = Annotated[
    float | None,
    model_option(
        metavar="NUMBER",
        min=0,
        help="Standard deviation of the noise in the target's units, for example 0.1.",
        show_default="fitted",
    ),
]
LikelihoodOption = Annotated[
    str | None,
    model_option(
        metavar="NAME",
        help="Distribution of the target given the function: bernoulli or probit for yes and no, poisson for counts, "
        "binomial for successes out of --trials, student-t for measurements with outliers. The functions are then "
        "probabilities or rates.",
        show_default="normal errors",
    ),
]
Exposure = Annotated[
    str | None,
    model_option(
        metavar="COLUMN",
        help="With poisson: column of the area or time in which events were counted, for example hours.",
    ),
]
Trials = Annotated[str | None, model_option(metavar="COLUMN", help="With binomial: column of the number of trials.")]
Rows = Annotated[
    int,
    model_option(metavar="NUMBER", min=1, help="Largest number of rows to use. A longer table is sampled at random."),
]
ROWS = 50_000
Seed = Annotated[int, typer.Option(metavar="NUMBER", min=0, help="Random seed: the same seed gives the same result.")]
Quiet = Annotated[bool, output_option("--quiet", "-q", help="Print errors and warnings only.")]
AsJson = Annotated[bool, output_option("--json", help="Print one JSON object instead of sentences.")]
DataOption = Annotated[
    Path, typer.Argument(metavar="TABLE", help="Table of data, .csv or .parquet.", show_default=False)
]
SavedFunctions = Annotated[
    Path, typer.Argument(metavar="DRAW", help="Functions that `matheron sample --save` wrote.", show_default=False)
]
TableOut = Annotated[
    Path | None, output_option(metavar="FILE", help="Table to write, .csv or .parquet.", dir_okay=False)
]


class Voice:
    """The output of a command: sentences on stdout, or one JSON object; warnings go to stderr."""

    def __init__(self, quiet: bool, as_json: bool) -> None:
        self.quiet, self.as_json = quiet, as_json

    @property
    def progress(self) -> bool:
        """Whether progress bars are shown: on a terminal only."""
        return not self.quiet and not self.as_json and sys.stderr.isatty()

    def say(self, words: str) -> None:
        if not self.quiet and not self.as_json:
            typer.echo(words)

    def warn(self, words: str) -> None:
        """Print a warning, also with --quiet."""
        typer.secho(f"warning: {words}", fg="yellow", err=True)

    def result(self, facts: Mapping[str, object]) -> None:
        if self.as_json:
            typer.echo(json.dumps(facts, indent=2, default=str))  # default=str is for paths of files

    @contextmanager
    def warnings_in_words(self) -> Iterator[None]:
        """Print each warning once, on its own line, without its place in the code."""
        said: set[str] = set()

        def show(message: Warning | str, *_: object, **__: object) -> None:
            if str(message) not in said:
                said.add(str(message))
                self.warn(str(message))

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecations in other libraries do not concern a user
            warnings.simplefilter("default", UserWarning)
            warnings.showwarning = show
            yield


def check_writable(*files: Path | None, read: Sequence[Path | None]) -> None:
    """Raise an error, before any work, if a file cannot be written, or if it is also an input."""
    from ..tables.files import check_folder

    for file in files:
        if file is not None:
            check_folder(file)
            if any(other is not None and os.path.realpath(file) == os.path.realpath(other) for other in read):
                raise ValueError(f"{file} is also an input and would be overwritten; name another file to write")
