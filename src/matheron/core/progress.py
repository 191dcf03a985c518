"""Progress bars: rich's in a terminal; in a notebook one that needs no widgets."""

from __future__ import annotations

import html
import io
import time
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any, TypeVar

import rich
from rich import progress as bars
from rich.console import Console
from rich.progress import Progress, ProgressColumn, TaskID

T = TypeVar("T")


def progress_bar(*columns: str | ProgressColumn, show: bool = True, transient: bool = False) -> Progress:
    """A bar to be used in a `with` statement, as `rich.progress.Progress`; it shows nothing unless `show`.

    Its columns are those of rich: a description, a bar, the percentage, and the time left. In a notebook rich needs
    ipywidgets, which may not be installed. There the bar is a text that is displayed again as it changes.

    >>> from matheron.core.progress import progress_bar
    >>> with progress_bar(show=False) as bar:
    ...     bar.advance(bar.add_task("counting", total=3), 3)
    """
    if show and rich.get_console().is_jupyter:
        return _NotebookProgress(*columns, transient=transient)
    # The bar goes to stderr, because what is printed may go to a file or another command.
    return Progress(*columns, disable=not show, transient=transient, console=Console(stderr=True))


def tracked(items: Iterable[T], total: int | None, label: str, unit: str, *, show: bool) -> Iterator[T]:
    """Yield the items, with a progress bar if `show`."""
    counted = (bars.MofNCompleteColumn(), bars.TextColumn(unit))
    with progress_bar(*Progress.get_default_columns(), *counted, show=show) as bar:
        task = bar.add_task(label, total=total)
        for item in items:
            yield item
            bar.advance(task)


class _NotebookProgress(Progress):
    """The same table of tasks, shown by IPython's display and updated in place."""

    def __init__(
        self, *columns: str | ProgressColumn, transient: bool, refresh_every: float = 0.1, width: int = 100
    ) -> None:
        super().__init__(*columns, auto_refresh=False, transient=transient)
        self._transient, self._handle, self._shown = transient, None, 0.0
        self._refresh_every, self._width = refresh_every, width  # in seconds, and in characters

    def start(self) -> None:
        self.refresh()

    def stop(self) -> None:
        self.refresh()
        if self._transient and self._handle is not None:
            self._handle.update(_bundle(""), raw=True)

    def refresh(self) -> None:
        display = import_module("IPython.display").display
        page = Console(file=io.StringIO(), width=self._width, force_jupyter=False, force_terminal=False, no_color=True)
        with page.capture() as captured:
            page.print(self.get_renderable())
        bundle = _bundle(captured.get().rstrip())
        if self._handle is None:
            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)
        self._shown = time.monotonic()

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        super().advance(task_id, advance)
        self._refresh_now_and_then()

    def update(self, task_id: TaskID, **changes: Any) -> None:
        super().update(task_id, **changes)
        self._refresh_now_and_then()

    def _refresh_now_and_then(self) -> None:
        if time.monotonic() - self._shown >= self._refresh_every:
            self.refresh()


def _bundle(text: str) -> dict[str, str]:
    return {"text/plain": text, "text/html": f"<pre>{html.escape(text)}</pre>" if text else ""}
