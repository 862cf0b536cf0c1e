"""De-identification: mentions replaced by placeholders. The usual remedy, and our baseline.

It gives no differential privacy: missed mentions stay, and the context of a name can identify it.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import SystemRandom
from typing import Literal

import numpy as np

from uedp.corpus.sentence import Sentence, Span
from uedp.corpus.store import Corpus
from uedp.entities.categories import category_of
from uedp.entities.detection import Detection, detect
from uedp.progress import SILENT, Progress

Style = Literal["placeholder", "pseudonym"]


def deidentify(
    corpus: Corpus,
    out: Path,
    style: Style = "placeholder",
    *,
    overwrite: bool = False,
    progress: Progress = SILENT,
) -> Corpus:
    """A new corpus with every mention replaced by `[PERSON]`, or by `[PERSON-17]` for pseudonyms.

    Guarantees:
      - no character of a mention remains, overlapping mentions included
      - no text of a user who left is in it
      - pseudonyms: each entity has its own number, overlapping mentions that of the longest; the
        numbers are random, so they reveal nothing of names or order
    """
    numbers: Sequence[int] | None = None
    if style == "pseudonym":
        numbers = list(range(1, corpus.entities.num_rows + 1))
        SystemRandom().shuffle(numbers)
    return detect(
        _replaced(corpus, numbers),
        out,
        Detection(("labels",)),  # the new texts have no marks, so nothing is detected
        origin={"deidentified": str(corpus.folder), "style": style},
        total=len(corpus),
        overwrite=overwrite,
        progress=progress,
    )


def deidentified_texts(corpus: Corpus) -> Iterator[str]:
    """The texts of a corpus with placeholders for mentions, in its order; of those who stayed."""
    return (sentence.text for sentence in _replaced(corpus, None))


def _replaced(corpus: Corpus, numbers: Sequence[int] | None) -> Iterator[Sentence]:
    kept, _ = corpus.for_rounds()
    stays = None if kept is None else np.isin(np.arange(len(corpus)), kept)
    for number, (sentence, mentions) in enumerate(zip(corpus, corpus.spans(), strict=True)):
        if stays is not None and not stays[number]:
            continue
        text, done = "", 0
        for start, end, span, entity in merged_mentions(mentions):
            name = category_of(span.label).upper()
            placeholder = f"[{name}]" if numbers is None else f"[{name}-{numbers[entity]}]"
            text += sentence.text[done:start] + placeholder
            done = end
        yield Sentence(sentence.user, text + sentence.text[done:], sentence.label)


def merged_mentions(mentions: Sequence[tuple[Span, int]]) -> Iterator[tuple[int, int, Span, int]]:
    """Overlapping mentions as one extent, with the longest of them."""
    groups: list[list[tuple[Span, int]]] = []
    end = 0
    for mention in sorted(mentions):
        if not groups or mention[0].start >= end:
            groups.append([])
        groups[-1].append(mention)
        end = max(end, mention[0].end)
    for group in groups:
        longest = max(group, key=lambda mention: mention[0].end - mention[0].start)
        yield (group[0][0].start, max(span.end for span, _ in group), *longest)
