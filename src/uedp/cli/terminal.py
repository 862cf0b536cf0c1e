"""Progress bars and tables on a terminal; silence where there is none."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from uedp.progress import SILENT, Meter
from uedp.progress import Progress as ProgressProtocol

_QUIET_SECONDS = 1.0  # work that is done sooner needs no bar


class _Bar:
    """One stage as a bar that appears once the work has lasted a second."""

    def __init__(self, bars: Progress, name: str, total: int | None, unit: str) -> None:
        self._bars, self._total, self._unit = bars, total, unit
        self._task: TaskID = bars.add_task(name, total=total, rate="", visible=False)
        self._began = time.monotonic()
        self._items = 0

    def advance(self, items: int, position: int | None = None) -> None:
        self._items += items
        elapsed = time.monotonic() - self._began
        self._bars.update(
            self._task,
            completed=self._items if position is None else position,
            rate=f"{self._items:,} {self._unit}, {self._items / max(elapsed, 1e-9):,.0f}/s",
            visible=elapsed > _QUIET_SECONDS,
        )


class TerminalProgress:
    """Bars with rate and time left, on stderr, gone when the stage is done."""

    @contextmanager
    def stage(self, name: str, total: int | None, unit: str) -> Iterator[Meter]:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
            yield _Bar(bars, name, total, unit)


def progress() -> ProgressProtocol:
    return TerminalProgress() if sys.stderr.isatty() else SILENT


def show(title: str, table: Table) -> None:
    # a pipe has no width; without one, Rich would cut the table at 80 columns
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    if title:
        console.print(title, markup=False)
    console.print(table)


def table(*columns: str) -> Table:
    """An empty table: first column left, the others right."""
    result = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=any(columns))
    for number, column in enumerate(columns):
        result.add_column(column, justify="left" if number == 0 else "right")
    return result
