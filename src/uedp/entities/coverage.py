"""Recall and precision of a detection against human marks.

A miss is a risk whatever the category, so a mark counts as found if any mention covers it, and a
mention as right if it overlaps any mark; whether the category agrees is a separate column.
"""

import json
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np

from uedp.corpus.sentence import Sentence, Span
from uedp.corpus.store import Corpus
from uedp.entities.canonical import canonical
from uedp.entities.categories import BASE, UNIONS, category_of, expand_categories
from uedp.entities.detection import Detection, detect
from uedp.entities.detectors.forms.dates import refined
from uedp.entities.words import words
from uedp.errors import UserError
from uedp.files import scratch_dir, write_atomically
from uedp.incidence import Incidence
from uedp.progress import SILENT, Progress

_MANY = 10_000  # pairs of a mark and a mention in one sentence: of more, only equal ones count
PROTECTED = "protected"  # the row of the categories that the corpus protects
# Who marks one kind of name marks all of them; the other categories are judged one by one.
_NAMES = frozenset(
    ("person", "loc", "org", "misc", "gpe", "norp", "fac", "product", "event", "law", "language")
) | {"work_of_art"}


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


@dataclass
class MentionCounts:
    """Counts for one category of mentions."""

    mentions: int = 0
    right: int = 0  # overlaps some mark
    exact: int = 0  # some mark has the same ends
    same_category: int = 0  # overlaps some mark of the same category

    def rates(self) -> dict[str, float]:
        return {
            "precision": _share(self.right, self.mentions),
            "precision_exact": _share(self.exact, self.mentions),
            "precision_same_category": _share(self.same_category, self.mentions),
        }


@dataclass
class DetectionErrors:
    """Where a detection and the marks disagree, by sentence and user: for what errors cost."""

    incidence: Incidence
    protected: frozenset[str] = frozenset(BASE)
    false: list[tuple[int, int, str]] = field(default_factory=list)  # sentence, entity, category
    # of each marked entity, by category and canonical form: users it was missed in, and in how
    # many sentences of each
    missed: dict[tuple[str, str], Counter[str]] = field(default_factory=dict)

    def without_false_hits(self, category: str | None = None) -> Incidence:
        """The incidence less false hits: those of one category, or all."""
        wrong = {hit[:2] for hit in self.false if category in (None, hit[2])}
        entities = self.incidence.sentence_entities
        pairs = zip(entities.row_of_value().tolist(), entities.values.tolist(), strict=True)
        kept = np.fromiter((pair not in wrong for pair in pairs), bool, len(entities.values))
        return Incidence.build(
            self.incidence.sentence_user,
            entities.row_of_value()[kept],
            entities.values[kept],
            self.incidence.users,
            self.incidence.entities,
        )


@dataclass
class Comparison:
    """What `coverage` reports, and the errors themselves."""

    result: dict[str, Any]
    errors: DetectionErrors


def require_marks(corpus: Corpus) -> None:
    """Refuse a corpus without human marks."""
    if not any(len(batch.column(0).flatten()) for batch in corpus.batches(["marks"])):
        raise UserError(
            f"{corpus.folder}: has no human marks to compare with; "
            "read them with `marks=...` or `reader='conll'`"
        )


def coverage(corpus: Corpus, progress: Progress = SILENT) -> dict[str, Any]:
    """The marks of a corpus against its mentions, by category (unions included) and by label.

    `categories` and `labels` have recall, by the category and the label of the mark; `precision`
    goes by the category of the mention. A mention of a category that nobody marked (a date, where
    only names are marked) cannot be judged: `unjudged` counts them, and precision leaves them out.
    `extra` counts mentions that overlap no mark: they cost utility, never privacy.
    """
    return compare(corpus, progress).result


def compare(corpus: Corpus, progress: Progress = SILENT) -> Comparison:
    """The coverage of a corpus, with the errors it counts."""
    require_marks(corpus)
    judged = _judged_categories(corpus)
    protected = frozenset(corpus.info.get("categories", BASE))
    by_category: dict[str, MarkCounts] = {}
    by_label: dict[str, MarkCounts] = {}
    precision: dict[str, MentionCounts] = {}
    errors = DetectionErrors(corpus.incidence, protected)
    entities = _MarkedEntities()
    mentions = extra = unjudged = 0
    with progress.stage("comparing", len(corpus), "sentences") as meter:
        for number, (sentence, mentioned) in enumerate(zip(corpus, corpus.spans(), strict=True)):
            text, spans = sentence.text, [span for span, _ in mentioned]
            found, marked = _Spans(text, spans), _Spans(text, sentence.marks)
            kept: set[int] = set()  # an entity of which another mention here is right is no error
            wrong: dict[int, str] = {}
            for span, entity in mentioned:
                category, right = _category(text, span), marked.any.overlap(span)
                mentions += 1
                extra += not right
                if category not in judged:
                    unjudged += 1
                elif not right:
                    wrong[entity] = category
                if right or category not in judged:
                    kept.add(entity)
                if category in judged:
                    for name in with_unions(category, protected):
                        _count_mention(precision.setdefault(name, MentionCounts()), span, marked)
            errors.false += [(number, e, name) for e, name in wrong.items() if e not in kept]
            names = [with_unions(_category(text, mark), protected) for mark in sentence.marks]
            for name, marks in _grouped(sentence.marks, names).items():
                by_category.setdefault(name, MarkCounts()).add(_compare(text, marks, found))
            labels = [[mark.label] for mark in sentence.marks]
            for name, marks in _grouped(sentence.marks, labels).items():
                by_label.setdefault(name, MarkCounts()).add(_compare(text, marks, found))
            entities.add(sentence, mentioned)
            meter.advance(1)
    errors.missed = entities.missed()
    recall = _with_rates(by_category)
    return Comparison(
        {
            "categories": recall,
            "labels": _with_rates(by_label),
            "precision": {
                name: {**asdict(one), **one.rates(), "f1_exact": _f1(one, recall.get(name))}
                for name, one in sorted(precision.items())
            },
            "mentions": mentions,
            "unjudged": unjudged,
            "extra": extra,
        },
        errors,
    )


def compare_detectors(
    corpus: Corpus,
    detectors: Sequence[str] = (),
    categories: str | Iterable[str] = "default",
    *,
    propagate: bool = True,
    workers: int = 1,
    record: bool = False,
    progress: Progress = SILENT,
) -> Comparison:
    """Detectors on the text of a corpus against its marks; without any, the corpus as detected.

    Args:
        record: keep the result in the corpus, for certificates; only without `detectors`
    """
    require_marks(corpus)
    if not detectors:
        compared = compare(corpus, progress)
        if record:
            record_coverage(corpus, compared.result)
        detectors, propagate = corpus.info["detectors"], bool(corpus.info["propagated"])
    elif record:
        raise UserError("`record=True`: is for the corpus as detected; leave out `detectors=...`")
    else:
        chosen = expand_categories(categories)
        detection = Detection(tuple(detectors), chosen, propagate=propagate, workers=workers)
        with scratch_dir(corpus.folder.resolve()) as folder:
            out, total = folder / "detected", len(corpus)
            detected = detect(corpus, out, detection, total=total, progress=progress)
            compared = compare(detected, progress)
    compared.result = {"detectors": list(detectors), "propagated": propagate, **compared.result}
    return compared


def record_coverage(corpus: Corpus, result: dict[str, Any]) -> None:
    """Write the coverage of a corpus by its own mentions to its `corpus.json`, for certificates."""
    if len(corpus.epochs) > 1:
        raise UserError(f"{corpus.folder}: was extended; coverage is recorded before that")
    if "labels" in corpus.info.get("detectors", ()):
        raise UserError(f"{corpus.folder}: its mentions are its marks; there is nothing to measure")
    protected, mentions = (result[part].get(PROTECTED) for part in ("categories", "precision"))
    if protected is None:
        raise UserError(f"{corpus.folder}: none of its marks is of a category that it protects")
    recorded = {
        "marks": protected["marks"],
        "sentences_found": protected["sentence_recall"],
        "sentences_complete": protected["sentence_recall_complete"],
        "precision": mentions["precision"] if mentions else None,
    }
    path = corpus.folder / "corpus.json"
    write_atomically(path, json.dumps({**corpus.info, "coverage": recorded}, indent=2) + "\n")


def _with_rates(counts: dict[str, MarkCounts]) -> dict[str, dict[str, float]]:
    return {name: {**asdict(one), **one.rates()} for name, one in sorted(counts.items())}


def _judged_categories(corpus: Corpus) -> frozenset[str]:
    """The categories of which a mention without a mark is an error."""
    marked: set[str] = set()
    for sentence in corpus:
        marked.update(_category(sentence.text, mark) for mark in sentence.marks)
    return frozenset(marked | _NAMES if marked & _NAMES else marked)


def _category(text: str, span: Span) -> str:
    """The category of a span; a year or a weekday alone is no date, whoever marked it."""
    return refined(category_of(span.label), text[span.start : span.end])


def with_unions(category: str, protected: frozenset[str]) -> list[str]:
    """The rows that a category counts in: its own, and those of unions."""
    unions = {**UNIONS, PROTECTED: protected}
    del unions["default"]
    return [category, *(name for name, members in unions.items() if category in members)]


def _grouped(spans: Sequence[Span], names: Sequence[Sequence[str]]) -> dict[str, list[Span]]:
    groups: dict[str, list[Span]] = {}
    for span, names_of_span in zip(spans, names, strict=True):
        for name in names_of_span:
            groups.setdefault(name, []).append(span)
    return groups


def _count_mention(counts: MentionCounts, span: Span, marked: "_Spans") -> None:
    counts.mentions += 1
    counts.right += marked.any.overlap(span)
    counts.exact += span[:2] in marked.ends
    counts.same_category += marked.same_category(span)


class _MarkedEntities:
    """The sentences of each marked entity, and the detected entities that its marks overlap."""

    def __init__(self) -> None:
        self._sentences: dict[tuple[str, str], list[tuple[str, set[int]]]] = {}

    def add(self, sentence: Sentence, mentioned: Sequence[tuple[Span, int]]) -> None:
        here: dict[tuple[str, str], set[int]] = {}
        few = len(mentioned) * len(sentence.marks) < _MANY
        with_ends: dict[tuple[int, int], set[int]] = {}
        for span, entity in mentioned:
            with_ends.setdefault((span.start, span.end), set()).add(entity)
        for mark in sentence.marks:
            key = _category(sentence.text, mark), canonical(sentence.text[mark.start : mark.end])
            found = here.setdefault(key, set())
            found |= with_ends.get((mark.start, mark.end), set())
            if few:
                found |= {e for s, e in mentioned if s.start < mark.end and mark.start < s.end}
        for key, entities in here.items():
            self._sentences.setdefault(key, []).append((sentence.user, entities))

    def missed(self) -> dict[tuple[str, str], Counter[str]]:
        """By user, the sentences that do not mention the entity under its most frequent id.

        What protects a marked entity is one detected entity. Where another was detected, or the
        same one under another form, the mention was missed.
        """
        result = {}
        for key, sentences in self._sentences.items():
            detected = Counter(entity for _, entities in sentences for entity in entities)
            own = detected.most_common(1)[0][0] if detected else None
            result[key] = Counter(user for user, entities in sentences if own not in entities)
        return result


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


class _Spans:
    """The mentions or the marks of one sentence."""

    def __init__(self, text: str, spans: Sequence[Span]) -> None:
        self._text = text
        self.ends = {span[:2] for span in spans}
        self.any = _Extents(spans)
        names = [[_category(text, span)] for span in spans]
        self._of = {name: _Extents(group) for name, group in _grouped(spans, names).items()}

    def same_category(self, span: Span) -> bool:
        category = _category(self._text, span)
        return category in self._of and self._of[category].overlap(span)


def _compare(text: str, marks: Sequence[Span], found: _Spans) -> MarkCounts:
    counts = MarkCounts(sentences=1, sentences_found=int(bool(found.ends)))
    for mark in marks:
        covered, inside = _covered_words(text, mark, found)
        counts.marks += 1
        counts.exact += mark[:2] in found.ends
        counts.covered += covered == inside
        counts.same_category += found.same_category(mark)
        counts.words += inside
        counts.words_covered += covered
    counts.sentences_complete = int(counts.covered == counts.marks)
    return counts


def _covered_words(text: str, mark: Span, found: _Spans) -> tuple[int, int]:
    """Of the words of a mark, those inside some mention, and all."""
    # a mark of punctuation has no words; its own extent counts as one
    surface = text[mark.start : mark.end]
    inside = [(start, end) for _, start, end in words(surface)] or [(0, len(surface))]
    return sum(found.any.cover(mark.start + a, mark.start + b) for a, b in inside), len(inside)


def _f1(mentions: MentionCounts, recall: dict[str, float] | None) -> float | None:
    """Of exact extents; None where nothing is marked."""
    if recall is None or not recall["marks"]:
        return None
    precision, found = _share(mentions.exact, mentions.mentions), recall["span_recall_exact"]
    return 2 * precision * found / (precision + found) if precision + found else 0.0


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 1.0
