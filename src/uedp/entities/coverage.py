"""Recall of a detection against human marks.

A miss is a risk whatever the category, so a mark counts as found if any mention covers it; whether
the category agrees is a separate column.
"""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
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
class MarkCounts:
    """Counts for one category of marks."""

    marks: int = 0
    exact: int = 0  # some mention has the same ends
    covered: int = 0  # every word lies in some mention
    same_category: int = 0  # some mention of the same category overlaps
    words: int = 0
    words_covered: int = 0
    sentences: int = 0
    sentences_found: int = 0  # treated as sensitive: has some mention
    sentences_complete: int = 0  # every word of every mark of this category is covered

    def add(self, other: "MarkCounts") -> None:
        for name, count in asdict(other).items():
            setattr(self, name, getattr(self, name) + count)

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
    """Refuse a corpus without human marks."""
    if not any(len(batch.column(0).flatten()) for batch in corpus.batches(["marks"])):
        raise UserError(
            f"{corpus.folder}: has no human marks to compare with; "
            "read them with `marks=...` or `reader='conll'`"
        )


def coverage(corpus: Corpus, progress: Progress = SILENT) -> dict[str, Any]:
    """The marks of a corpus against its mentions, by category (unions included) and by label.

    `extra` counts mentions that overlap no mark: they cost utility, never privacy.
    """
    require_marks(corpus)
    by_category: dict[str, MarkCounts] = {}
    by_label: dict[str, MarkCounts] = {}
    mentions = extra = 0
    with progress.stage("comparing", len(corpus), "sentences") as meter:
        for sentence, mentioned in zip(corpus, corpus.spans(), strict=True):
            found = _Mentions([span for span, _ in mentioned])
            marked = _Extents(sentence.marks)
            mentions += len(mentioned)
            extra += sum(not marked.overlap(span) for span, _ in mentioned)
            for counts, names_of in ((by_category, _categories), (by_label, _label)):
                for name, marks in _grouped(sentence.marks, names_of).items():
                    counts.setdefault(name, MarkCounts()).add(_compare(sentence.text, marks, found))
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
    categories: str | Iterable[str] = "default",
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
    elif record:
        raise UserError("`record=True`: is for the corpus as detected; leave out `detectors=...`")
    else:
        chosen = expand_categories(categories)
        detection = Detection(tuple(detectors), chosen, propagate=propagate, workers=workers)
        with scratch_dir(corpus.folder.resolve()) as folder:
            out, total = folder / "detected", len(corpus)
            detected = detect(corpus, out, detection, total=total, progress=progress)
            result = coverage(detected, progress)
    return {"detectors": list(detectors), "propagated": propagate, **result}


def record_coverage(corpus: Corpus, result: dict[str, Any]) -> None:
    """Write the coverage of a corpus by its own mentions to its `corpus.json`, for certificates."""
    if "labels" in corpus.info.get("detectors", ()):
        raise UserError(f"{corpus.folder}: its mentions are its marks; there is nothing to measure")
    every = result["categories"]["all"]
    recorded = {
        "marks": every["marks"],
        "sentences_found": every["sentence_recall"],
        "sentences_complete": every["sentence_recall_complete"],
    }
    path = corpus.folder / "corpus.json"
    write_atomically(path, json.dumps({**corpus.info, "coverage": recorded}, indent=2) + "\n")


def _with_rates(counts: dict[str, MarkCounts]) -> dict[str, dict[str, float]]:
    return {name: {**asdict(one), **one.rates()} for name, one in sorted(counts.items())}


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
    """Sorted spans, to be searched in logarithmic time."""

    def __init__(self, spans: Iterable[Span]) -> None:
        ordered = sorted(spans)
        self._starts = [span.start for span in ordered]
        # the furthest end of the spans up to each one
        self._ends = list(accumulate((span.end for span in ordered), max))

    def cover(self, start: int, end: int) -> bool:
        """Whether one of them contains `start:end`."""
        before = bisect_right(self._starts, start)
        return before > 0 and self._ends[before - 1] >= end

    def overlap(self, span: Span) -> bool:
        """Whether one of them shares a character with `span`."""
        before = bisect_left(self._starts, span.end)
        return before > 0 and self._ends[before - 1] > span.start


class _Mentions:
    """The mentions of one sentence."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self.ends = {span[:2] for span in spans}
        self.any = _Extents(spans)
        self._of = {name: _Extents(group) for name, group in _grouped(spans, _category).items()}

    def same_category(self, mark: Span) -> bool:
        category = category_of(mark.label)
        return category in self._of and self._of[category].overlap(mark)


def _compare(text: str, marks: Sequence[Span], found: _Mentions) -> MarkCounts:
    counts = MarkCounts(sentences=1, sentences_found=int(bool(found.ends)))
    for mark in marks:
        # a mark of punctuation has no words; its own extent counts as one
        surface = text[mark.start : mark.end]
        inside = [(start, end) for _, start, end in words(surface)] or [(0, len(surface))]
        covered = sum(found.any.cover(mark.start + a, mark.start + b) for a, b in inside)
        counts.marks += 1
        counts.exact += mark[:2] in found.ends
        counts.covered += covered == len(inside)
        counts.same_category += found.same_category(mark)
        counts.words += len(inside)
        counts.words_covered += covered
    counts.sentences_complete = int(counts.covered == counts.marks)
    return counts


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 1.0
