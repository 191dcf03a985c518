"""`matheron reproduce`: a figure of the paper with one command."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console


def reproduce(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Experiment to run, or all; --list shows them.")
    ] = None,
    scale: Annotated[
        str,
        typer.Option(
            metavar="SIZE",
            help="tiny takes seconds, to see that it runs; quick takes minutes on 2 cores; paper is for a GPU.",
        ),
    ] = "quick",
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for results, table and figures.")] = Path(
        "results"
    ),
    seed: Annotated[
        int, typer.Option(metavar="NUMBER", help="Random seed. Runs of different seeds are kept apart.")
    ] = 0,
    workers: Annotated[
        int | None, typer.Option(metavar="NUMBER", min=1, help="Processes. By default one per core, 1 on a GPU.")
    ] = None,
    device: Annotated[str, typer.Option(metavar="NAME", help="cpu or cuda.")] = "cpu",
    trials: Annotated[
        int | None, typer.Option(metavar="NUMBER", min=1, help="Trials per case, instead of the scale's.")
    ] = None,
    time_limit: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0, help="Stop cleanly before this time.")
    ] = None,
    dask: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Dask scheduler whose workers run the trials.")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Run only the cases with this entry, such as d=8. May be repeated."),
    ] = None,
    show_list: Annotated[bool, typer.Option("--list", help="List the experiments and stop.")] = False,
) -> None:
    """Reproduce one of the paper's figures, or all of them, with its table.

    Every finished trial is stored at once. A run that was stopped, or killed, resumes where it was when the same
    command is given again.
    """
    from rich.console import Console

    from . import runner
    from .base import RefusedError, experiment, names

    console = Console()
    if show_list or name is None:
        _list(console)
        raise typer.Exit(0 if show_list else 2)
    started, failed = time.monotonic(), 0
    try:
        if wrong := [entry for entry in only or [] if "=" not in entry]:
            raise RefusedError(f"--only: expected NAME=VALUE such as d=8, got {wrong[0]}")
        entries = dict(entry.split("=", 1) for entry in only or [])
        for one in names() if name == "all" else [name]:
            left = None if time_limit is None else max(0.0, time_limit - (time.monotonic() - started))
            summary = runner.run(
                experiment(one),
                scale,
                out=out,
                seed=seed,
                workers=workers,
                device=device,
                trials=trials,
                time_limit=left,
                dask=dask,
                only=entries,
                console=console,
            )
            failed += bool(summary.failed)
    except RefusedError as error:
        console.print(f"error: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
        raise typer.Exit(2) from None
    except OSError as error:  # a full disk, a folder that may not be written to
        where = f"{error.filename}: " if error.filename else ""
        console.print(f"error: {where}{error.strerror or error}", style="red", highlight=False, markup=False)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        console.print("stopped; the same command resumes with the trials that are left", highlight=False)
        raise typer.Exit(130) from None
    raise typer.Exit(1 if failed else 0)


def report(
    folder: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="Folder of results that `matheron reproduce` wrote, such as results."),
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Page to write, .html.", dir_okay=False)] = Path(
        "matheron-report.html"
    ),
) -> None:
    """Make one self-contained HTML page of the experiments found: figures, tables, settings, machine."""
    from .webpage import write_page

    count = write_page(folder, out)
    typer.echo(f"{count} experiments in {out}")


def _list(console: Console) -> None:
    from rich.table import Table

    from .base import experiment, names

    table = Table("name", "what it shows", "trials: quick, paper")
    for name in names():
        it = experiment(name)
        table.add_row(name, it.title, ", ".join(str(it.scales[scale]["trials"]) for scale in ("quick", "paper")))
    console.print(table)
    console.print("matheron reproduce NAME --scale quick", highlight=False)
