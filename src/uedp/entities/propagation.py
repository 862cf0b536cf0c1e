"""Propagation: a surface that models find often enough is protected in its other places too.

A model judges by context and misses some mentions of a name, so its hits are evidence for the
other places where the same words stand. One hit is weak evidence: on informal text a model marks
`it` or `later` once somewhere. So the places of each surface are counted first (`Evidence`), and
only a surface that was found in enough of them is looked for everywhere (`KnownSurfaces`).
"""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from uedp.corpus.sentence import Span
from uedp.entities.ordinary import is_ordinary
from uedp.entities.words import fold, words

_RARE = 2  # places: fewer prove nothing
LONGEST = 32  # words: a longer hit is a stretch of text, not a name that recurs

Key = tuple[str, ...]  # the words of a surface, folded
Form = tuple[str, ...]  # the same words as they are written


@dataclass(frozen=True)
class Rule:
    """When a surface spreads, by the share of its places in which a model found it.

    A surface is counted with its case, and a place inside a longer hit counts neither way.

    - `share`: below one half the detectors have judged most of its places to be something else.
    - `name_share`: a surface with a capital letter whose words are not ordinary English, and which
      is rarer without the capital, is a name wherever it stands (unless models mostly took it for
      something that is not protected). That a model misses most of its places says more about the
      model, and a hit in twenty guards against a typing error.
    - `ordinary_share`, `ordinary_hits`: if all its words are ordinary in lower case, a chance hit
      would make thousands of sentences sensitive, and a capital letter may be that of a sentence.
      So two places in three, and not by a single hit. (Several words with capitals, as in Red Sea,
      are a name.)
    - `noise_share`: an ordinary word in lower case that was found in fewer of its places than this
      is an error of the model, and is dropped even where it was hit. Nothing else is: a false hit
      costs a little utility, a missed name is a weaker guarantee.
    """

    share: float = 0.5
    name_share: float = 0.05
    ordinary_share: float = 2 / 3
    ordinary_hits: int = 2
    noise_share: float = 0.1


SPREAD = "spread"
# Why a surface does not spread, and why a hit is dropped.
TOO_FEW = "found in too few of its places"
TOO_FEW_ORDINARY = "an ordinary word, found in too few of its places"
TOO_LONG = f"longer than {LONGEST} words"
TOO_SHORT = "a single letter or digit"
NO_LETTER = "no letter or digit"
NOISE = "an ordinary word in lower case, rarely found"


@lru_cache(maxsize=1 << 16)
def parts(surface: str) -> tuple[Key, Form]:
    """The words of a surface, folded and as written."""
    found = list(words(surface))
    return tuple(word for word, _, _ in found), tuple(surface[a:b] for _, a, b in found)


@lru_cache(maxsize=1 << 16)
def ordinary(key: Key) -> bool:
    """Whether every word of a surface is ordinary English in lower case."""
    return bool(key) and all(map(is_ordinary, key))


class Evidence:
    """The places of every surface that a model hit: how many there are, and how many were found.

    First `add` all hits, then `count` all texts, then ask. Memory grows with the distinct surfaces.

    Guarantees:
      - a place is a run of the surface's words as written, case included; `hits` of its `places`
        were hit as a whole, and one inside a longer hit is neither
      - time is linear in the text
      - nothing depends on the order of the texts
    """

    def __init__(self, rule: Rule | None = None) -> None:
        self.rule = rule or Rule()
        self._labels: dict[Key, Counter[str]] = {}
        self._lengths: dict[str, tuple[int, ...]] = {}
        self._places: dict[Key, dict[Form, int]] = {}
        self._hits: dict[Key, dict[Form, int]] = {}
        self._inside: Counter[Key] = Counter()  # places inside longer hits
        self._other: Counter[Key] = Counter()  # hits as something that is not protected

    def add(self, surface: str, label: str) -> None:
        """A model hit this surface."""
        key, _ = parts(surface)
        if not 1 <= len(key) <= LONGEST:
            return
        if key not in self._labels:
            self._labels[key] = Counter()
            known = self._lengths.get(key[0], ())
            self._lengths[key[0]] = tuple(sorted({*known, len(key)}))
        self._labels[key][label] += 1

    def add_other(self, surface: str) -> None:
        """A model hit this surface, but as something that is public or of a category not chosen."""
        self._other[parts(surface)[0]] += 1

    def count(self, text: str, hits: Sequence[Span]) -> None:
        """Count the places in one text; `hits` are those of all detectors in it."""
        tokens = list(words(text))
        if not any(word in self._lengths for word, _, _ in tokens):
            return
        found, covers = _extents(text, hits)
        for key, start, end in _runs(tokens, self._lengths, self._labels):
            hit = (start, end) in found
            if hit or not covers(start, end):
                form = parts(text[start:end])[1]
                places = self._places.setdefault(key, {})
                places[form] = places.get(form, 0) + 1
                if hit:
                    counts = self._hits.setdefault(key, {})
                    counts[form] = counts.get(form, 0) + 1
            else:
                self._inside[key] += 1

    def passes(self, key: Key, form: Form) -> bool:
        """Whether a surface spreads."""
        hits, places = self._of(key, form)
        if not hits or _single(key):
            return False
        share, enough = self._required(key, form)
        return hits >= max(enough, share * places)

    def dropped(self, surface: str) -> str | None:
        """Why a model's hit of this surface is not even kept where it is; None if it is."""
        if not any(map(str.isalnum, surface)):
            return NO_LETTER
        key, form = parts(surface)
        hits, places = self._of(key, form)
        if surface.islower() and ordinary(key) and hits < self.rule.noise_share * places:
            return NOISE
        return None

    def not_spread(self, key: Key, form: Form) -> str | None:
        """Why a surface that was hit does not spread; None if it does."""
        if self.passes(key, form):
            return None
        if len(key) > LONGEST or _single(key):
            return TOO_LONG if len(key) > LONGEST else TOO_SHORT
        return TOO_FEW_ORDINARY if ordinary(key) else TOO_FEW

    def outcomes(self) -> Counter[str]:
        """How many surfaces spread, and how many do not, by reason."""
        result: Counter[str] = Counter()
        for key, forms in self._hits.items():
            for form in forms:
                result[self.not_spread(key, form) or SPREAD] += 1
        return result

    def stands_alone(self, key: Key) -> bool:
        """Whether a surface is more often found by itself than as part of a longer hit.

        Then it is the same name there (`Kerry` in `John Kerry`); else it is not (`York`, `John`).
        """
        return sum(self._hits.get(key, {}).values()) >= self._inside[key]

    def spread(self) -> Iterator[tuple[Key, str, frozenset[Form], frozenset[Form]]]:
        """What passed: words, commonest label, the forms that passed, and variants to leave out.

        A single word in lower case that did not pass itself is left out if it was hit, or if it
        stands there often: `la` beside `LA` is a word of its own.
        """
        for key, labels in self._labels.items():
            forms = self._places.get(key, {})
            passed = frozenset(form for form in forms if self.passes(key, form))
            if passed:
                total = sum(forms[form] for form in passed)
                apart = frozenset(
                    form
                    for form, places in forms.items()
                    if _is_lower(form)
                    and form not in passed
                    and len(key) == 1
                    and (self._of(key, form)[0] or places > max(_RARE, total / 3))
                )
                yield key, labels.most_common(1)[0][0], passed, apart

    def unfound(self, known: "KnownSurfaces") -> Iterator[tuple[str, int]]:
        """The surfaces that were hit and do not spread, with the number of places not found."""
        for key, forms in self._hits.items():
            for form, hits in forms.items():
                missing = self._places[key][form] - hits
                if missing and not known.matches(key, form):
                    yield " ".join(form), missing

    def _required(self, key: Key, form: Form) -> tuple[float, int]:
        """The share of its places and the number of hits that a surface needs to spread."""
        rule, lower = self.rule, _is_lower(form)
        if ordinary(key) and not _is_title(form):
            return rule.ordinary_share, rule.ordinary_hits
        in_lower_case = sum(n for f, n in self._places[key].items() if _is_lower(f))
        is_name = not lower and self._places[key][form] >= in_lower_case
        contested = self._other[key] > self._labels[key].total()
        return rule.name_share if is_name and not contested else rule.share, 1

    def _of(self, key: Key, form: Form) -> tuple[int, int]:
        hits = self._hits.get(key, {}).get(form, 0)
        return hits, self._places.get(key, {}).get(form, 0)


class KnownSurfaces:
    """Surfaces to be found everywhere.

    Words are compared folded (case, punctuation, possessive). In which case they count depends on
    how a surface was added: a name that passed the evidence counts in any case, unless its words
    are ordinary (`US` must not make every `us` sensitive, nor `May` every `may`); an entry of a
    person's own list counts in any case; another name of an entity (an alias) counts in any case
    but not in lower case if its words are ordinary.

    Guarantees:
      - every mention of an added surface, between word boundaries and under the rule above, is
        found, inside other mentions too
      - a surface added with `always` is found in any case, however short, symbols included
    """

    def __init__(self) -> None:
        self._labels: dict[Key, Counter[str]] = {}
        self._lengths: dict[str, tuple[int, ...]] = {}  # in words, by first word
        self._in_any_case: set[Key] = set()
        self._with_capitals: set[Key] = set()
        self._forms: dict[Key, set[Form]] = {}
        self._apart: dict[Key, frozenset[Form]] = {}
        self._not_inside: set[Key] = set()
        self._literal: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._labels) + len(self._literal)

    def add(self, surface: str, label: str, always: bool = False) -> None:
        """Add an entry of a list (`always`), or another name of an entity."""
        key, _ = parts(surface)
        if _single(key):
            # a single letter would match initials, bullets and articles; C++ has no other words
            if always and (literal := fold(surface)[0].strip()):
                self._literal[literal] = label
            return
        self._add_key(key, label)
        if always or surface.islower() or not ordinary(key):
            self._in_any_case.add(key)
        else:
            self._with_capitals.add(key)

    def add_evidence(self, evidence: Evidence) -> None:
        """Add the surfaces that passed."""
        for key, label, passed, apart in evidence.spread():
            self._add_key(key, label)
            self._forms.setdefault(key, set()).update(passed)
            if not ordinary(key):
                self._apart[key] = apart
            if not evidence.stands_alone(key):
                self._not_inside.add(key)

    def matches(self, key: Key, form: Form) -> bool:
        """Whether these words, written so, are looked for."""
        if key in self._in_any_case or form in self._forms.get(key, ()):
            return True
        if key in self._with_capitals and not _is_lower(form):
            return True
        return key in self._apart and form not in self._apart[key]

    def find(self, text: str, hits: Sequence[Span] = ()) -> list[Span]:
        """The mentions in a text in which detectors made these hits."""
        return [*self._find_words(text, hits), *self._find_literal(text)]

    def _only_alone(self, key: Key) -> bool:
        listed = key in self._in_any_case or key in self._with_capitals
        return key in self._not_inside and not listed

    def _add_key(self, key: Key, label: str) -> None:
        self._labels.setdefault(key, Counter())[label] += 1
        lengths = self._lengths.get(key[0], ())
        if len(key) not in lengths:
            self._lengths[key[0]] = tuple(sorted((*lengths, len(key))))

    def _find_words(self, text: str, hits: Sequence[Span]) -> Iterator[Span]:
        _, covered = _extents(text, hits)
        for key, start, end in _runs(list(words(text)), self._lengths, self._labels):
            if self._only_alone(key) and covered(start, end):
                continue
            if self.matches(key, parts(text[start:end])[1]):
                yield Span(start, end, self._labels[key].most_common(1)[0][0])

    def _find_literal(self, text: str) -> Iterator[Span]:
        if not self._literal:
            return
        folded, origins = fold(text)
        for surface, label in self._literal.items():
            for match in re.finditer(re.escape(surface), folded):
                around = (
                    folded[match.start() - 1 : match.start()],
                    folded[match.end() : match.end() + 1],
                )
                edges = surface[0], surface[-1]
                # not inside a longer word: no X in Xerox
                if any(a.isalnum() and e.isalnum() for a, e in zip(around, edges, strict=True)):
                    continue
                yield Span(origins[match.start()], origins[match.end() - 1] + 1, label)


def _is_lower(form: Form) -> bool:
    return "".join(form).islower()


def _is_title(form: Form) -> bool:
    """Whether several words are written as the parts of one name: Red Sea, Bank of England."""
    ends = form[0], form[-1]
    return len(form) > 1 and all(word[0].isupper() and not word.isupper() for word in ends)


def _single(key: Key) -> bool:
    return sum(map(len, key)) < 2


def _runs(
    tokens: Sequence[tuple[str, int, int]],
    lengths: Mapping[str, tuple[int, ...]],
    known: Container[Key],
) -> Iterator[tuple[Key, int, int]]:
    """The runs of words that are known, with their extents."""
    for position, (first, start, _) in enumerate(tokens):
        for length in lengths.get(first, ()):
            run = tokens[position : position + length]
            if len(run) == length and (key := tuple(word for word, _, _ in run)) in known:
                yield key, start, run[-1][2]


def _extents(
    text: str, hits: Sequence[Span]
) -> tuple[set[tuple[int, int]], Callable[[int, int], bool]]:
    """The extents of the words of some hits, and whether one of them contains a stretch of text."""
    extents = set()
    for hit in hits:
        inside = list(words(text[hit.start : hit.end]))
        if inside:
            extents.add((hit.start + inside[0][1], hit.start + inside[-1][2]))
    ordered = sorted(extents)
    starts = [start for start, _ in ordered]
    furthest = list(accumulate((end for _, end in ordered), max))

    def contain(start: int, end: int) -> bool:
        before = bisect_right(starts, start)
        return before > 0 and furthest[before - 1] >= end

    return extents, contain
