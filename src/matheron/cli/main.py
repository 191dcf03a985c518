"""The `matheron` command. Each command imports what it needs when it runs: `--help` and completion import no torch."""

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
from .minimising import minimize
from .modelling import fit
from .playground.command import playground
from .sampling import sample


class _InWords(TyperGroup):
    """What a user may have got wrong is said on one line; a traceback is for our own mistakes, and for --debug."""

    def invoke(self, ctx: typer.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # whoever read our output had enough of it
            raise
        except (OSError, ValueError, ImportError) as error:
            if ctx.params.get("debug"):
                raise
            words = str(error)
            if isinstance(error, OSError) and error.strerror:  # of the system, such as a disk that is full
                words = ": ".join(str(part) for part in (error.filename, error.strerror) if part)
            typer.secho(f"error: {words}", fg="red", err=True)
            raise typer.Exit(1) from None


_MISSING = (
    "`matheron {}` is a command of matheron-paper, which is not installed. In a clone of the repository, install it "
    "with: pip install ./paper"
)


def _paragraphs(function: Callable[..., object]) -> str:
    """The docstring, a line per paragraph: its line breaks are not those of a terminal."""
    return "\n\n".join(" ".join(lines.split()) for lines in (inspect.getdoc(function) or "").split("\n\n"))


def _function(name: str) -> Callable[..., object] | None:
    """The function of a command that takes long to import; None where the distribution that has it is not installed."""
    if name == "field":
        from .fields import field

        return field
    from importlib.metadata import entry_points

    return next((entry.load() for entry in entry_points(group="matheron.commands", name=name)), None)


class _Later(TyperCommand):
    """A command whose function is imported when it runs, or when its own help is shown."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        function = _function(self.name or "")
        if function is not None:
            alone = typer.Typer(add_completion=False)
            alone.command(self.name, help=_paragraphs(function))(function)
            return typer.main.get_command(alone).make_context(info_name, args, parent=parent, **extra)
        if "--help" in args or extra.get("resilient_parsing"):  # the latter for a shell that completes its options
            return super().make_context(info_name, args, parent=parent, **extra)
        raise ImportError(_MISSING.format(self.name))


app = typer.Typer(
    cls=_InWords,
    help="Draw functions from Gaussian process posteriors. Evaluate them anywhere.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
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
    """What all commands have in common."""


def demo(
    out: Annotated[Path, typer.Option(help="Where the picture goes.", dir_okay=False)] = Path("matheron-demo.png"),
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer points and draws: a second or two.")] = False,
) -> None:
    """Condition a Gaussian process on a few data, draw functions, measure them, and picture how they come about."""
    from .demo import run

    run(out, seed, quick)


def info(file: Annotated[Path, typer.Argument(help="What `paths.save` wrote.", show_default=False)]) -> None:
    """Say what a saved file holds. Nothing in it is run."""
    from .info import describe_file

    describe_file(file)


for name, summary in {
    "field": "Fit a Gaussian process to observations, and simulate fields that agree with them.",
    "reproduce": "Reproduce one of the paper's figures, or all of them, with its table.",
    "report": "Make one self-contained HTML page of the experiments found: figures, tables, settings, machine.",
}.items():
    words = summary if name == "field" else f"{summary}\n\n{_MISSING.format(name)}"
    app.command(name, cls=_Later, help=words)(lambda: None)
for command in (demo, info, playground, sample, fit, evaluate, export, minimize):
    app.command(help=_paragraphs(command))(command)


if __name__ == "__main__":
    app()
