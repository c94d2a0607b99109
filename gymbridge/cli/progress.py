"""How far long work has come, on standard error: a bar in a terminal, a line a stage elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column
from rich.text import Text

__all__ = ["WorkProgress", "work_progress"]


class WorkProgress:
    """What is told of work that consists of stages, each of which consists of turns.

    Args:
        bars: where it is shown; None for lines on standard error.
    """

    def __init__(self, bars: Progress | None):
        self._bars = bars
        self._task: TaskID | None = None

    def stage(self, text: str, turns: int) -> None:
        """A stage of so many turns begins."""
        if self._bars is None:
            print(f"{text} …", file=sys.stderr, flush=True)
            return
        if self._task is not None:
            self._bars.remove_task(self._task)
        self._task = self._bars.add_task(text, total=turns, doing="")

    def turn(self, doing: str) -> None:
        """A turn begins: the bar moves on."""
        if self._bars is not None and self._task is not None:
            self._bars.update(self._task, advance=1, doing=doing)


class _DoingColumn(ProgressColumn):
    """What is being done, as much of it as there is room for: the other columns are told whole."""

    def render(self, task: Task) -> Text:
        return Text(task.fields["doing"], "dim", no_wrap=True, overflow="ellipsis")


@contextmanager
def work_progress() -> Iterator[WorkProgress]:
    """Shows progress as long as the block lasts; the bar is gone afterwards."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield WorkProgress(None)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(20, table_column=Column(no_wrap=True)),
        TimeElapsedColumn(table_column=Column(no_wrap=True)),
        _DoingColumn(),
    )
    # what envs print goes where it would go without the bar
    with Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False) as bars:
        yield WorkProgress(bars)
