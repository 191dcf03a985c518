"""`matheron evaluate`: saved functions at the points of a table, streamed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import AsJson, Quiet, Voice, check_writable


def evaluate(
    draw: Annotated[Path, typer.Argument(help="What `matheron sample --save` wrote.", show_default=False)],
    points: Annotated[Path, typer.Argument(help="A table with the inputs' columns.", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="A table, .csv or .parquet; else CSV is printed.")] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Evaluate saved functions at the points of a table, some rows at a time: the table may be larger than memory."""
    from ..progress import progress_bar
    from ..tables import TableWriter, read_chunks
    from .data import evaluated, loaded_paths, points_of, rows_per_chunk

    if as_json and out is None:
        raise typer.BadParameter("--json needs --out: values are printed as CSV otherwise")
    check_writable(out, read=[draw, points])
    voice = Voice(quiet or out is None, as_json)
    writer = None if out is None else TableWriter(out)
    paths, columns, target = loaded_paths(draw)
    done = 0
    with voice.warnings_in_words(), progress_bar(show=voice.progress, transient=True) as bar:
        task = bar.add_task("points", total=None)

        def tables():
            nonlocal done
            for frame in read_chunks(points, rows_per_chunk(paths)):
                x = points_of(frame, columns, str(points), done)
                yield evaluated(frame, columns, paths, x, target)
                done += len(frame)
                bar.update(task, completed=done, description=f"{done:,} points")

        if writer is not None:
            with writer:
                for table in tables():
                    writer.write(table)
        else:
            for i, table in enumerate(tables()):
                typer.echo(table.to_csv(index=False, header=i == 0), nl=False)
    if not done:
        raise ValueError(f"{points} has column names but no rows")
    voice.say(f"{paths.num_paths} functions at {done:,} points: {out}")
    voice.result({"paths": paths.num_paths, "points": done, "out": out})
