"""Sentences and spans: the values that readers give, detectors read and the store keeps."""

from dataclasses import dataclass
from typing import NamedTuple


class Span(NamedTuple):
    """Characters `start:end` of a text, with a detector's or annotator's label (`PER`)."""

    start: int
    end: int
    label: str


@dataclass(frozen=True, slots=True)
class Sentence:
    """The unit of text that is clipped and counted as one.

    `marks` are spans annotated by people (gold labels), for coverage and for the `labels` detector;
    mentions are stored separately.
    """

    user: str
    text: str
    label: str | None = None
    marks: tuple[Span, ...] = ()
