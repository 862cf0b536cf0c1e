"""How long work tells how far it is, without knowing who listens."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol


class Meter(Protocol):
    """One stage of work under way."""

    def advance(self, items: int, position: int | None = None) -> None:
        """`items` more are done; `position` is how far along the total is, if not the items."""

    def note(self, text: str) -> None:
        """What to show beside the bar in place of the rate."""


class Progress(Protocol):
    """Something that shows stages: a terminal, a notebook, nothing."""

    def stage(self, name: str, total: int | None, unit: str) -> AbstractContextManager[Meter]: ...


class _Silent:
    def advance(self, items: int, position: int | None = None) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    @contextmanager
    def stage(self, name: str, total: int | None, unit: str) -> Iterator[Meter]:
        yield self


SILENT: Progress = _Silent()
