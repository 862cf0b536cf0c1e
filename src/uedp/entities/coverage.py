"""How much of what people marked as sensitive a detection finds.

A miss is a risk whatever the category, so a mark counts as found by any mention over it; whether
the category agrees is a column of its own.
"""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import accumulate
from typing import Any

from uedp.corpus.sentence import Span
from uedp.corpus.store import Corpus
from uedp.entities.categories import UNIONS, category_of, expand_categories
from uedp.entities.detection import Detection, detect
from uedp.entities.words import words
from uedp.errors import UserError
from uedp.files import scratch_dir, write_atomically
from uedp.progress import SILENT, Progress


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


def require_marks(corpus: Corpus) -> None:
    if not any(len(batch.column(0).flatten()) for batch in corpus.batches(["marks"])):
        raise UserError(
            f"{corpus.folder}: holds no human marks to compare with; "
            "read them with `marks=...` or `reader='conll'`"
        )


def coverage(corpus: Corpus, progress: Progress = SILENT) -> dict[str, Any]:
    """The marks of a corpus against its mentions, per category (unions too) and per mark's label.

    `extra` counts mentions that overlap no mark: they cost utility, never privacy.
    """
    require_marks(corpus)
    by_category: dict[str, Tally] = {}
    by_label: dict[str, Tally] = {}
    mentions = extra = 0
    with progress.stage("comparing", len(corpus), "sentences") as meter:
        for sentence, found in zip(corpus, corpus.spans(), strict=True):
            mentioned = _Mentions([span for span, _ in found])
            marked = _Extents(sentence.marks)
            mentions += len(found)
            extra += sum(not marked.overlap(span) for span, _ in found)
            for tallies, names_of in ((by_category, _categories), (by_label, _label)):
                for name, marks in _grouped(sentence.marks, names_of).items():
                    tallies.setdefault(name, Tally()).add(_compare(sentence.text, marks, mentioned))
            meter.advance(1)
    return {
        "categories": _with_rates(by_category),
        "labels": _with_rates(by_label),
        "mentions": mentions,
        "extra": extra,
    }


def compare_detectors(
    corpus: Corpus,
    detectors: Sequence[str] = (),
    categories: str | Iterable[str] = "all",
    *,
    propagate: bool = True,
    workers: int = 1,
    record: bool = False,
    progress: Progress = SILENT,
) -> dict[str, Any]:
    """The coverage of detectors on the text of a corpus; without any, of the corpus as detected.

    Args:
        record: keep the result in the corpus, for certificates; only without `detectors`
    """
    require_marks(corpus)
    if not detectors:
        result = coverage(corpus, progress)
        if record:
            record_coverage(corpus, result)
        detectors, propagate = corpus.info["detectors"], bool(corpus.info["propagated"])
        return {"detectors": list(detectors), "propagated": propagate, **result}
    if record:
        raise UserError("`record=True`: is for the corpus as detected; leave out `detectors=...`")
    detection = Detection(
        tuple(detectors), expand_categories(categories), propagate=propagate, workers=workers
    )
    with scratch_dir(corpus.folder.resolve()) as folder:
        detected = detect(
            corpus, folder / "detected", detection, total=len(corpus), progress=progress
        )
        result = coverage(detected, progress)
    return {"detectors": list(detectors), "propagated": propagate, **result}


def record_coverage(corpus: Corpus, result: dict[str, Any]) -> None:
    """Write what `coverage` found of the corpus itself into its `corpus.json`, for certificates."""
    if "labels" in corpus.info.get("detectors", ()):
        raise UserError(
            f"{corpus.folder}: was detected by its own marks, which cannot measure themselves"
        )
    every = result["categories"]["all"]
    found = {
        "marks": every["marks"],
        "sentences_found": every["sentence_recall"],
        "sentences_complete": every["sentence_recall_complete"],
    }
    path = corpus.folder / "corpus.json"
    write_atomically(path, json.dumps({**corpus.info, "coverage": found}, indent=2) + "\n")


def _with_rates(tallies: dict[str, Tally]) -> dict[str, dict[str, float]]:
    return {name: {**asdict(tally), **tally.rates()} for name, tally in sorted(tallies.items())}


def _category(span: Span) -> list[str]:
    return [category_of(span.label)]


def _categories(mark: Span) -> list[str]:
    (category,) = _category(mark)
    return [category, *(name for name, members in UNIONS.items() if category in members)]


def _label(mark: Span) -> list[str]:
    return [mark.label]


def _grouped(marks: Sequence[Span], names_of: Callable[[Span], list[str]]) -> dict[str, list[Span]]:
    groups: dict[str, list[Span]] = {}
    for mark in marks:
        for name in names_of(mark):
            groups.setdefault(name, []).append(mark)
    return groups


class _Extents:
    """Spans in order, so that it takes a search and not a walk to learn what lies where."""

    def __init__(self, spans: Iterable[Span]) -> None:
        ordered = sorted(spans)
        self._starts = [span.start for span in ordered]
        # how far the spans up to each one reach
        self._ends = list(accumulate((span.end for span in ordered), max))

    def cover(self, start: int, end: int) -> bool:
        """Whether one of them holds all of `start:end`."""
        before = bisect_right(self._starts, start)
        return before > 0 and self._ends[before - 1] >= end

    def overlap(self, span: Span) -> bool:
        """Whether one of them shares a character with `span`."""
        before = bisect_left(self._starts, span.end)
        return before > 0 and self._ends[before - 1] > span.start


class _Mentions:
    """What was found in a sentence."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self.ends = {span[:2] for span in spans}
        self.any = _Extents(spans)
        self._of = {name: _Extents(found) for name, found in _grouped(spans, _category).items()}

    def same_category(self, mark: Span) -> bool:
        found = self._of.get(category_of(mark.label))
        return found is not None and found.overlap(mark)


def _compare(text: str, marks: Sequence[Span], found: _Mentions) -> Tally:
    tally = Tally(sentences=1, sentences_found=int(bool(found.ends)))
    for mark in marks:
        # a mark of punctuation alone has no words; then its own extent is the one word
        inside = [
            (mark.start + a, mark.start + b) for _, a, b in words(text[mark.start : mark.end])
        ]
        inside = inside or [(mark.start, mark.end)]
        covered = sum(found.any.cover(a, b) for a, b in inside)
        tally.marks += 1
        tally.exact += mark[:2] in found.ends
        tally.covered += covered == len(inside)
        tally.same_category += found.same_category(mark)
        tally.words += len(inside)
        tally.words_covered += covered
    tally.sentences_complete = int(tally.covered == tally.marks)
    return tally


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 1.0
