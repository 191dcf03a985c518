"""Options that several commands share, and how commands speak."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

Target = Annotated[str, typer.Option(help="The column to be modelled.", show_default=False)]
Inputs = Annotated[str | None, typer.Option(help="Columns it depends on, a,b,c; all others by default.")]
Exclude = Annotated[str | None, typer.Option(help="Columns to leave out, a,b,c.")]
Encode = Annotated[str | None, typer.Option(help="Columns of categories, each to become columns of 0 and 1.")]
KernelOption = Annotated[
    str | None,
    typer.Option(
        help="rbf, matern-1/2, matern-3/2, matern-5/2, rational-quadratic, periodic or linear, or a sum of these, "
        "such as periodic+matern-3/2. Its hyperparameters are fitted.",
        show_default="matern-5/2",
    ),
]
NoiseOption = Annotated[
    float | None,
    typer.Option(min=0, help="Standard deviation of the noise, in the target's units.", show_default="fitted"),
]
LikelihoodOption = Annotated[
    str | None,
    typer.Option(
        help="How the target follows from the function: bernoulli or probit (yes and no), poisson (counts), binomial "
        "(successes of --trials), or student-t (measurements with outliers). Functions are probabilities or rates.",
        show_default="normal errors",
    ),
]
Exposure = Annotated[str | None, typer.Option(help="For poisson: the column of the area or time counted in.")]
Trials = Annotated[str | None, typer.Option(help="For binomial: the column of the number of trials.")]
Rows = Annotated[
    int, typer.Option(min=1, help="The most rows that are used: of a longer table, so many drawn at random.")
]
ROWS = 50_000
Seed = Annotated[int, typer.Option(min=0, help="Random seed: the same seed gives the same result.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Only errors and warnings.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of words.")]
DataOption = Annotated[Path, typer.Argument(help="A table, .csv or .parquet.", show_default=False)]


class Voice:
    """Words for people on stdout, or one JSON object; warnings on stderr."""

    def __init__(self, quiet: bool, as_json: bool) -> None:
        self.quiet, self.as_json = quiet, as_json

    @property
    def progress(self) -> bool:
        """Whether progress bars are shown: to someone who watches."""
        return not self.quiet and not self.as_json and sys.stderr.isatty()

    def say(self, words: str) -> None:
        if not self.quiet and not self.as_json:
            typer.echo(words)

    def warn(self, words: str) -> None:
        """What a user must know, however quiet the command is."""
        typer.secho(f"warning: {words}", fg="yellow", err=True)

    def result(self, facts: Mapping[str, object]) -> None:
        if self.as_json:
            typer.echo(json.dumps(facts, indent=2, default=str))  # files as they were named

    @contextmanager
    def warnings_in_words(self) -> Iterator[None]:
        """Each warning once, on a line of its own, without the place in the code."""
        said: set[str] = set()

        def show(message: Warning | str, *_: object, **__: object) -> None:
            if str(message) not in said:
                said.add(str(message))
                self.warn(str(message))

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what other libraries will change is no news to a user
            warnings.simplefilter("default", UserWarning)
            warnings.showwarning = show
            yield


def check_writable(*files: Path | None, read: Sequence[Path | None]) -> None:
    """Before any work: folders that are not there, or not ours to write to, and files that are read."""
    from ..tables.files import check_folder

    for file in files:
        if file is not None:
            check_folder(file)
            if any(other is not None and os.path.realpath(file) == os.path.realpath(other) for other in read):
                raise ValueError(f"{file} is what is read, and would be lost; name another file to write")
