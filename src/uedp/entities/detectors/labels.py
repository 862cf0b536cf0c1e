"""The `labels` detector: the marks that people gave."""

from collections.abc import Iterator, Sequence

from uedp.corpus.sentence import Sentence, Span
from uedp.entities.detectors import register_detector
from uedp.errors import UserError


@register_detector("labels", version="human marks")
class Labels:
    """Human marks; they are taken as complete, so nothing is propagated."""

    propagates = False

    def __init__(self, argument: str | None = None) -> None:
        if argument:
            raise UserError(f"detector 'labels:{argument}': takes no argument; write `labels`")

    def detect(self, texts: Sequence[str]) -> Iterator[Sequence[Span]]:
        return (() for _ in texts)  # a bare text has none

    def marks(self, sentences: Sequence[Sentence]) -> Iterator[Sequence[Span]]:
        return (sentence.marks for sentence in sentences)
