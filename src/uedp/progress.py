"""Progress-reporting protocol."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol


class Meter(Protocol):
    """The progress of one stage."""

    def advance(self, items: int, position: int | None = None) -> None:
        """Add items; `position` is the progress toward the total, if that counts otherwise."""

    def within(self, part: float, text: str) -> None:
        """Show in words that a part, from 0 to 1, of the next item is done."""

    def note(self, text: str) -> None:
        """Set the text shown with the bar."""


class Progress(Protocol):
    """Shows stages: on a terminal, in a notebook, or nowhere."""

    def stage(self, name: str, total: int | None, unit: str) -> AbstractContextManager[Meter]: ...


class _Silent:
    def advance(self, items: int, position: int | None = None) -> None:
        pass

    def within(self, part: float, text: str) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    @contextmanager
    def stage(self, name: str, total: int | None, unit: str) -> Iterator[Meter]:
        yield self


SILENT: Progress = _Silent()


def duration(seconds: float) -> str:
    """A time for people: 40 s, 25 min, 3.5 h."""
    if seconds < 120:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} days"
