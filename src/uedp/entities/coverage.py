"""How much of what people marked as sensitive a detection finds.

A miss is a risk whatever the category, so a mark counts as found by any mention over it; whether
the category agrees is a column of its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from uedp.corpus.sentence import Span
from uedp.corpus.store import Corpus
from uedp.entities.words import words
from uedp.entities.categories import UNIONS, category_of
from uedp.errors import UserError


@dataclass
class Tally:
    """Counts for one category of marks."""

    marks: int = 0
    exact: int = 0  # some mention has the same ends
    covered: int = 0  # every word lies in some mention
    same_category: int = 0  # some mention of the same category overlaps
    words: int = 0
    words_covered: int = 0
    sentences: int = 0
    sentences_found: int = 0  # treated as sensitive: holds some mention
    sentences_complete: int = 0  # every word of every mark of this category is covered

    def add(self, other: "Tally") -> None:
        for name in (f.name for f in fields(self)):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def rates(self) -> dict[str, float]:
        return {
            "span_recall_exact": _share(self.exact, self.marks),
            "span_recall_covered": _share(self.covered, self.marks),
            "span_recall_same_category": _share(self.same_category, self.marks),
            "word_recall": _share(self.words_covered, self.words),
            "sentence_recall": _share(self.sentences_found, self.sentences),
            "sentence_recall_complete": _share(self.sentences_complete, self.sentences),
        }


def coverage(corpus: Corpus) -> dict[str, Any]:
    """The marks of a corpus against its mentions, per category (unions too) and per mark's label.

    `extra` counts mentions that overlap no mark: they cost utility, never privacy.
    """
    by_category: dict[str, Tally] = {}
    by_label: dict[str, Tally] = {}
    mentions = extra = 0
    for sentence, found in zip(corpus, corpus.spans(), strict=True):
        spans = [span for span, _ in found]
        mentions += len(spans)
        extra += sum(not any(_overlap(span, mark) for mark in sentence.marks) for span in spans)
        for tallies, names_of in ((by_category, _categories), (by_label, _label)):
            for name, marks in _grouped(sentence.marks, names_of).items():
                tallies.setdefault(name, Tally()).add(_compare(sentence.text, marks, spans))
    if not by_label:
        raise UserError(
            f"{corpus.folder}: holds no human marks to compare with; "
            "read them with --marks or --reader conll"
        )
    return {
        "categories": _with_rates(by_category),
        "labels": _with_rates(by_label),
        "mentions": mentions,
        "extra": extra,
    }


def _with_rates(tallies: dict[str, Tally]) -> dict[str, dict[str, float]]:
    return {name: {**asdict(tally), **tally.rates()} for name, tally in sorted(tallies.items())}


def _categories(mark: Span) -> list[str]:
    category = category_of(mark.label)
    return [category, *(name for name, members in UNIONS.items() if category in members)]


def _label(mark: Span) -> list[str]:
    return [mark.label]


def _grouped(marks: Sequence[Span], names_of: Callable[[Span], list[str]]) -> dict[str, list[Span]]:
    groups: dict[str, list[Span]] = {}
    for mark in marks:
        for name in names_of(mark):
            groups.setdefault(name, []).append(mark)
    return groups


def _compare(text: str, marks: Sequence[Span], spans: Sequence[Span]) -> Tally:
    tally = Tally(sentences=1, sentences_found=int(bool(spans)))
    complete = True
    for mark in marks:
        # a mark of punctuation alone has no words; then its own extent is the one word
        inside = [
            (mark.start + a, mark.start + b) for _, a, b in words(text[mark.start : mark.end])
        ]
        inside = inside or [(mark.start, mark.end)]
        covered = sum(any(s.start <= a and b <= s.end for s in spans) for a, b in inside)
        tally.marks += 1
        tally.exact += any(s[:2] == mark[:2] for s in spans)
        tally.covered += covered == len(inside)
        tally.same_category += any(
            _overlap(s, mark) and category_of(s.label) == category_of(mark.label) for s in spans
        )
        tally.words += len(inside)
        tally.words_covered += covered
        complete &= covered == len(inside)
    tally.sentences_complete = int(complete)
    return tally


def _overlap(a: Span, b: Span) -> bool:
    return a.start < b.end and b.start < a.end


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 1.0
