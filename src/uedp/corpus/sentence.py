"""The two values that flow from readers through detectors to disk."""

from dataclasses import dataclass
from typing import NamedTuple


class Span(NamedTuple):
    """Characters `start:end` of a text, with the label its finder gave (`PER`, `EMAIL_ADDRESS`)."""

    start: int
    end: int
    label: str


@dataclass(frozen=True, slots=True)
class Sentence:
    """One unit of text: what is clipped, counted and protected as one.

    `marks` are spans given by people (gold labels), kept for coverage and for the `labels`
    detector; detections are stored apart from them.
    """

    user: str
    text: str
    label: str | None = None
    marks: tuple[Span, ...] = ()
