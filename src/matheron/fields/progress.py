"""A bar, for as long as blocks are computed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from ..progress import progress_bar

T = TypeVar("T")


def tracked(items: Iterable[T], total: int, label: str, *, show: bool) -> Iterator[T]:
    """The items as they come, counted by a bar where there is a terminal to show it in."""
    if not show:
        yield from items
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("blocks")]
    with progress_bar(*columns, TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()) as bar:
        task = bar.add_task(label, total=total)
        for item in items:
            yield item
            bar.advance(task)
