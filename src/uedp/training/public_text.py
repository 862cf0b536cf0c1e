"""Text that a person declares public: read, identified, and compared with what is private.

Nothing private may decide what is learned from it, so sentences that also stand in the private
corpus are counted but never left out: what was left out would tell of them without noise. A few
such sentences are greetings and quotations, and a warning. Many are a copy, and refused.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from uedp.accounting.decisions import DECLARED_BY, DeclaredText
from uedp.corpus import readers
from uedp.corpus.column import Column
from uedp.corpus.digest import text_digest
from uedp.corpus.normalise import Splitter
from uedp.corpus.records import Columns
from uedp.corpus.source import Source
from uedp.errors import UserError
from uedp.progress import SILENT, Progress
from uedp.training.config import PublicSettings

_WORDS = 5  # of a sentence that is not common to many people's texts
_COPIED = 0.01  # the share of such sentences in common from which on one is a copy of the other


@dataclass(frozen=True, eq=False)
class PublicText:
    """Sentences that were declared public, and their labels, if any.

    Of a corpus, `folder` and `incidence` (its digest) are known, and the names of those who wrote
    it, unless they are groups formed at random.
    """

    texts: Sequence[str]
    labels: Sequence[str | None]
    name: str
    folder: Path | None = None
    users: frozenset[str] = frozenset()
    incidence: str = ""

    @cached_property
    def digest(self) -> str:
        return plain_digest(self.texts)

    def stated(self, settings: PublicSettings) -> DeclaredText:
        """What the ledger and the certificate say of it; its steps must be known by now."""
        assert settings.steps is not None
        return DeclaredText(
            name=self.name,
            digest=self.digest,
            sentences=len(self.texts),
            steps=settings.steps,
            sentences_per_step=settings.sentences,
            declared_by=settings.declared_by or DECLARED_BY,
        )


def plain_digest(texts: Sequence[str]) -> str:
    """A hash of sentences in their order, whoever wrote them."""
    return text_digest([0] * len(texts), texts, [None] * len(texts))


def read_public_file(
    path: Path, settings: PublicSettings, progress: Progress = SILENT
) -> PublicText:
    """The sentences of a file of any format that detection reads; no detector runs."""
    try:
        source = Source(path)
        reader = settings.reader
        if reader == "auto" and source.suffix == ".txt":
            reader = "txt"
        reader = readers.choose_reader(reader, source)
        language = settings.split
        if language == "auto":
            language = "none" if reader in readers.WITH_SENTENCES else "en"
        divide = None if language == "none" else Splitter(language)
        labels: list[str | None] = []

        def sentences() -> Iterator[str]:
            columns = Columns(None, settings.text, settings.label)
            with progress.stage("reading public text", source.size or None, "sentences") as meter:
                for record in readers.read_sentences(source, reader, columns):
                    for piece in divide(record) if divide else (record,):
                        labels.append(piece.label)
                        yield piece.text
                        meter.advance(1, source.position if source.size else None)

        return PublicText(Column.of(sentences()), labels, name_of(path))
    except UserError as error:
        # readers name the parameters of detection
        raise UserError(f"data.public: {_PARAMETER.sub(_field, str(error))}") from None


_PARAMETER = re.compile(r"`(reader|text|label|split)=([^`]+)`")


def _field(parameter: re.Match[str]) -> str:
    name, value = parameter.groups()
    return f"public.{name}" if value == "..." else f"public.{name}={value}"


def name_of(path: Path) -> str:
    return " ".join(path.resolve().name.split())


# --- what it has in common with other texts ------------------------------------------------------


@dataclass(frozen=True)
class Overlap:
    """Distinct sentences that two texts have in common, and those of five words or more."""

    common: int
    longer: int
    share: float  # of the longer sentences of the side that has fewer

    @property
    def copied(self) -> bool:
        return self.share > _COPIED


def overlap(one: Iterable[str], other: Iterable[str]) -> Overlap:
    """Count common sentences, whatever their case, punctuation and white space.

    Guarantees:
      - symmetric; a sentence that stands several times on a side counts once
    """
    (short, long), (other_short, other_long) = map(_distinct, (one, other))
    longer = long & other_long
    fewest = min(len(long), len(other_long))
    share = len(longer) / fewest if fewest else 0.0
    return Overlap(len(short & other_short) + len(longer), len(longer), share)


def _distinct(texts: Iterable[str]) -> tuple[set[int], set[int]]:
    """Hashes of the normalised texts: of short ones and of longer ones."""
    short: set[int] = set()
    long: set[int] = set()
    for text in texts:
        words = _WORD.findall(text.casefold())
        (long if len(words) >= _WORDS else short).add(hash(" ".join(words)))
    return short, long


_WORD = re.compile(r"\w+")
