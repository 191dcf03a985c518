"""The command `matheron evaluate`: it evaluates saved functions at the points of a table, block by block."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import AsJson, Quiet, SavedFunctions, Voice, check_writable, output_option


def evaluate(
    draw: SavedFunctions,
    points: Annotated[
        Path,
        typer.Argument(metavar="TABLE", help="Table of points, with the columns of the inputs.", show_default=False),
    ],
    out: Annotated[
        Path | None, output_option(metavar="FILE", help="Table to write, .csv or .parquet. By default CSV is printed.")
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Evaluate saved functions at the points of a table, which may be larger than memory.

    Example: matheron evaluate draw.safetensors points.csv --out values.parquet

    A row with an empty cell among its inputs gets the value NaN.
    """
    import torch

    from ..core.checks import many
    from ..core.progress import progress_bar
    from ..tables.files import TableWriter, read_chunks
    from .data import Evaluated, loaded_paths, rows_per_chunk

    if as_json and out is None:
        raise typer.BadParameter("--json needs --out, because values are printed as CSV without it")
    check_writable(out, read=[draw, points])
    voice = Voice(quiet or out is None, as_json)
    writer = None if out is None else TableWriter(out)
    paths, columns, target, likelihood = loaded_paths(draw)
    evaluated = Evaluated(paths, columns, target, likelihood)
    with voice.warnings_in_words(), progress_bar(show=voice.progress, transient=True) as bar:
        task = bar.add_task("points", total=None)

        def tables():
            for frame in read_chunks(points, rows_per_chunk(paths)):
                yield evaluated(frame, torch.from_numpy(columns.matrix(frame, str(points))))
                bar.update(task, completed=evaluated.rows, description=f"{evaluated.rows:,} points")

        try:
            if writer is not None:
                with writer:
                    for table in tables():
                        writer.write(table)
            else:
                for i, table in enumerate(tables()):
                    typer.echo(table.to_csv(index=False, header=i == 0), nl=False)
        except ValueError as error:
            beyond, inside, _ = str(error).partition("; draw with a larger domain")
            if not inside:
                raise
            advice = f"draw functions that reach them with: matheron sample ... --at {points}"
            raise ValueError(f"{points}: {beyond.removeprefix('x: ')}; {advice}") from None
    if not evaluated.rows:
        raise ValueError(f"{points} has column names but no rows")
    evaluated.warn(voice)
    voice.say(f"{many(paths.num_paths, 'function')} at {many(evaluated.rows, 'point')}: {out}")
    facts = {"paths": paths.num_paths, "points": evaluated.rows, "points_with_gaps": evaluated.gaps, "out": out}
    voice.result(facts)
