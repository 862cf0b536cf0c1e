"""Output of the commands: progress bars, tables, JSON, and messages with flags."""

import json
import re
import shlex
import sys
import time
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import Any

import typer
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from uedp.errors import UserError
from uedp.progress import SILENT, Meter
from uedp.progress import Progress as ProgressProtocol

STOPPED = 130  # the exit code that shells expect after Ctrl-C

_QUIET_SECONDS = 1.0  # stages that end sooner show no bar
_REFRESH_SECONDS = 0.1
_SPEED_SECONDS = 600.0  # the window for estimating the time left: a step may take a minute
_PARAMETER = re.compile(r"`([a-z][a-z_]*)=([^`]+)`")
_FLAGS = {
    "detectors": "detector",
    "public_lists": "public-list",
}  # parameters that have a flag of another name
_QUOTES = "'\""
_SPECIAL = re.compile(r"[\s;|&<>()$`*?]")


class _Bars(Progress):
    """Bars with the note of their stage on the line below."""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        for task in self.tasks:
            if task.visible and task.fields["note"]:
                yield Text(f"  {task.fields['note']}", style="dim", no_wrap=True)


class _Bar:
    """The progress bar of one stage."""

    def __init__(self, bars: Progress, task: TaskID, unit: str) -> None:
        self._bars, self._task, self._unit = bars, task, unit
        self._began = self._shown = time.monotonic()
        self._items = self._done = 0
        self._at_first: int | None = None

    def note(self, text: str) -> None:
        self._bars.update(self._task, note=plain(text))

    def within(self, part: float, text: str) -> None:
        now = time.monotonic()
        if now - self._shown >= _REFRESH_SECONDS:
            self._shown = now
            self._bars.update(self._task, completed=self._done + part, rate=plain(text))

    def advance(self, items: int, position: int | None = None) -> None:
        self._items += items
        now = time.monotonic()
        self._done = done = self._items if position is None else position
        if self._at_first is None:  # a resumed run starts part of the way
            self._at_first, self._began = self._items, now
            self._bars.reset(self._task, completed=done)
        if now - self._shown < _REFRESH_SECONDS:  # drawing the bar costs more than most items
            return
        self._shown = now
        speed = (self._items - self._at_first) / max(now - self._began, _REFRESH_SECONDS)
        rate = f"{self._items:,} {self._unit}"
        if speed >= 1:
            rate += f", {speed:,.0f}/s"
        self._bars.update(self._task, completed=done, rate=rate)


class TerminalProgress:
    """Bars with rate and time left on stderr, removed when the stage ends.

    A bar appears once its stage has lasted a second, whether or not it has advanced.
    """

    @contextmanager
    def stage(self, name: str, total: int | None, unit: str) -> Iterator[Meter]:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
        )
        with _Bars(
            *columns,
            console=Console(stderr=True),
            transient=True,
            speed_estimate_period=_SPEED_SECONDS,
        ) as bars:
            task = bars.add_task(name, total=total, rate="", note="", visible=False)
            appear = Timer(_QUIET_SECONDS, bars.update, (task,), {"visible": True})
            appear.daemon = True
            appear.start()
            try:
                yield _Bar(bars, task, unit)
            finally:
                appear.cancel()


def progress() -> ProgressProtocol:
    return TerminalProgress() if sys.stderr.isatty() else SILENT


def plain(text: str) -> str:
    """The text on one line, its control characters escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def with_flags(text: str) -> str:
    """A message of the library for the command line: parameters become flags.

    `overwrite=True` becomes --overwrite, `corpus=...` becomes --corpus, `reader='hf'` becomes
    --reader hf and `propagate=False` becomes --no-propagate, each with its backticks.
    `build_corpus` becomes the command that calls it.
    """
    return _PARAMETER.sub(_flag, text).replace("`build_corpus`", "`uedp detect`")


def _flag(parameter: re.Match[str]) -> str:
    name, value = parameter.groups()
    flag = _FLAGS.get(name, name).replace("_", "-")
    if value in ("True", "..."):
        return f"--{flag}"
    if value == "False":
        return f"--no-{flag}"
    value = value.strip(_QUOTES)
    # quoted where a shell would take it apart, so that it can be pasted
    return f"--{flag} {shlex.quote(value) if _SPECIAL.search(value) else value}"


def show(title: str, table: Table) -> None:
    # a pipe has no width; without one, Rich would cut the table at 80 columns
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    if title:
        console.print(title, markup=False)
    console.print(table)


def cell(value: object) -> str:
    """Text for a table, with the control characters and the markup of Rich escaped."""
    return escape(plain(str(value)))


def number(value: float | None, digits: int = 4, down: bool = False) -> str:
    """A rounded number: up, so that an epsilon is never understated, or `down`."""
    from uedp.accounting.statement import epsilon_text

    return epsilon_text(value, digits, down)


def say(text: str, err: bool = False) -> None:
    """Print a line of text that may come from files; a line break at the start is kept."""
    # not typer.echo, which would write over a progress bar
    line = "\n" * text.startswith("\n") + plain(text.removeprefix("\n"))
    print(line, flush=True, file=sys.stderr if err else sys.stdout)


def say_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, allow_nan=False))


def table(*columns: str, left: Container[int] = ()) -> Table:
    """An empty table; the first column and those in `left` are left-justified."""
    result = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=any(columns))
    for place, column in enumerate(columns):
        result.add_column(column, justify="left" if place == 0 or place in left else "right")
    return result


def refuse_corpus(run: Path) -> None:
    """Refuse a corpus where a run is expected."""
    if (run / "corpus.json").exists():
        raise UserError(f"{run}: is a corpus, not a run; name a folder that training wrote")


def split_commas(values: Iterable[str]) -> tuple[str, ...]:
    """The names in values that are repeated, separated by commas, or both."""
    return tuple(name.strip() for value in values for name in value.split(",") if name.strip())
