"""The command `matheron`. Subcommands are imported when they run, so that `--help` and completion need no torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from .. import __version__
from .evaluating import evaluate
from .exporting import export
from .fields import field
from .minimising import minimize
from .modelling import fit
from .playground.command import playground
from .sampling import sample


class _PlainFlags:
    """Commands whose help shows `--help` and not `--help <bool>`."""

    def get_params(self, ctx: Any) -> list[Any]:
        parameters = super().get_params(ctx)  # type: ignore[misc]
        for parameter in parameters:
            if getattr(parameter, "is_flag", False) and parameter.metavar is None:
                parameter.metavar = ""
        return parameters


class _Command(_PlainFlags, TyperCommand):
    """A command whose help shows flags without a type."""


class _InWords(_PlainFlags, TyperGroup):
    """The group of all commands. It prints a user's error as one line; other errors, and --debug, give a traceback."""

    def invoke(self, ctx: typer.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # the program that reads the output closed the pipe
            raise
        except (OSError, ValueError, ImportError) as error:
            if ctx.params.get("debug"):
                raise
            words = str(error)
            if isinstance(error, OSError) and error.strerror:  # an error of the system, such as a full disk
                words = ": ".join(str(part) for part in (error.filename, error.strerror) if part)
            typer.secho(f"error: {words}", fg="red", err=True)
            raise typer.Exit(1) from None


_MISSING = (
    "`matheron {}` is a command of matheron-paper, which is not installed. In a clone of the repository, install it "
    "with: pip install ./paper"
)


def _paragraphs(function: Callable[..., object]) -> str:
    """Return a docstring with one line per paragraph, which typer then wraps to the terminal's width."""
    return "\n\n".join(" ".join(lines.split()) for lines in (inspect.getdoc(function) or "").split("\n\n"))


class _OfThePaper(_Command):
    """A command of matheron-paper, which is looked for when the command runs, or when its own help is shown."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        from importlib.metadata import entry_points

        if entry := next(iter(entry_points(group="matheron.commands", name=self.name or "")), None):
            function, alone = entry.load(), typer.Typer(add_completion=False)
            alone.command(self.name, cls=_Command, help=_paragraphs(function))(function)
            return typer.main.get_command(alone).make_context(info_name, args, parent=parent, **extra)
        if {"--help", "-h"} & set(args) or extra.get(
            "resilient_parsing"
        ):  # the second is set while a shell completes options
            return super().make_context(info_name, args, parent=parent, **extra)
        raise ImportError(_MISSING.format(self.name))


app = typer.Typer(
    cls=_InWords,
    help="Draw functions from Gaussian process posteriors. Evaluate them anywhere.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},  # commands inherit them
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"matheron {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
) -> None:
    """Options that come before the command."""


def demo(
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="Picture to write, .png, .pdf or .svg.", dir_okay=False)
    ] = Path("matheron-demo.png"),
    seed: Annotated[int, typer.Option(metavar="NUMBER", help="Random seed.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="Use fewer points and draws: a second or two.")] = False,
) -> None:
    """Draw functions from a small Gaussian process posterior, measure their errors, and picture how they are made."""
    from .demo import run

    run(out, seed, quick)


def info(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="File that `paths.save` wrote.", show_default=False)
    ] = None,
) -> None:
    """Describe the contents of a saved file, or the installation. No code is run from a file.

    Without FILE, the versions of matheron and of the libraries that it uses are printed, with the system and its
    devices. Please add them to a report of a problem.
    """
    from .info import describe_environment, describe_file

    if file is None:
        describe_environment()
    else:
        describe_file(file)


TABLES, FILES, TRIALS = "From a table", "Saved functions", "See how it works"
_COMMANDS = {
    TABLES: (sample, fit, minimize, field),
    FILES: (evaluate, export, info),
    TRIALS: (demo, playground),
}
_OF_THE_PAPER = {
    "reproduce": "Reproduce one of the paper's figures, or all of them, with its table.",
    "report": "Make one self-contained HTML page of the experiments found: figures, tables, settings, machine.",
}
for panel, commands in _COMMANDS.items():
    for command in commands:
        app.command(cls=_Command, help=_paragraphs(command), rich_help_panel=panel)(command)
for name, summary in _OF_THE_PAPER.items():
    words = f"{summary}\n\n{_MISSING.format(name)}"
    app.command(name, cls=_OfThePaper, help=words, rich_help_panel=TRIALS)(lambda: None)


if __name__ == "__main__":
    app()
