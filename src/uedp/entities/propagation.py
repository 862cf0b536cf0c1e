"""Propagation: a surface that models find often enough is protected in its other places too.

A model judges by context and misses some mentions of a name, so its hits are evidence for the
other places where the same words stand. One hit is weak evidence: on informal text a model marks
`it` or `later` once somewhere. So the places of each surface are counted first (`Evidence`), and
only a surface that was found in enough of them is looked for everywhere (`KnownSurfaces`).

One author uses a word in one sense (Gale, Church and Yarowsky, 1992: one sense per discourse). So
less evidence is asked for in the text of a user where a model found the surface, and a surface may
spread within that text alone.
"""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any

from uedp.corpus.sentence import Span
from uedp.entities.ordinary import is_ordinary
from uedp.entities.words import fold, words

_RARE = 5  # places: so few prove nothing
_ABBREVIATION = 3  # letters: shorter ones have many meanings
LONGEST = 32  # words: a longer hit is a stretch of text, not a name that recurs

Key = tuple[str, ...]  # the words of a surface, folded
Form = tuple[str, ...]  # the same words as they are written


@dataclass(frozen=True)
class Rule:
    """When a surface spreads, by the share of its places in which a model found it.

    A surface is counted with its case, and a place inside a longer hit counts neither way. A name
    is a surface with a capital letter that is rarer without it, whose words are not ordinary
    English, and which models do not mostly take for something that is not protected.

    - `share`: below one half the detectors have judged most of its places to be something else.
    - `name_share`: the capital speaks for a name, too.
    - `sure_share`: several words with capitals, or an abbreviation of three letters, are the same
      name whoever writes them; and any other name is, in the text of a user where a model found
      it. That a model misses most of its places says more about the model, and a hit in twenty
      guards against a typing error.
    - `ordinary_share`, `ordinary_hits`: if all its words are ordinary in lower case, a chance hit
      would make thousands of sentences sensitive, and a capital letter may be that of a sentence.
      So two places in three, and not by a single hit. (Several words with capitals, as in Red Sea,
      are a name.) In the text of one user: `share` of the places there, and as many hits.
    - `noise_share`: an ordinary word in lower case that was found in fewer of its places than this
      is an error of the model, and is dropped even where it was hit. Nothing else is: a false hit
      costs a little utility, a missed name is a weaker guarantee.
    """

    share: float = 0.5
    name_share: float = 0.4
    sure_share: float = 0.05
    ordinary_share: float = 2 / 3
    ordinary_hits: int = 2
    noise_share: float = 0.1


SPREAD = "spread"
SPREAD_WITHIN = "spread within the text of its authors"
# Why a surface does not spread, and why a hit is dropped.
TOO_FEW = "found in too few of its places"
TOO_FEW_ORDINARY = "an ordinary word, found in too few of its places"
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

    First `add` all hits, then `count` all texts, then ask. Memory grows with the distinct surfaces
    of every user.

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
        # of users in whose text a model hit a surface: hits and places, by form
        self._own: dict[tuple[str, Key], dict[Form, tuple[int, int]]] = {}

    def add(self, surface: str, label: str, user: str) -> None:
        """A model hit this surface in this user's text."""
        key, _ = parts(surface)
        if not 1 <= len(key) <= LONGEST:
            return
        self.watch(key, user)
        self._labels[key][label] += 1

    def watch(self, key: Key, user: str | None = None) -> None:
        """Count the places of a surface that models hit elsewhere, or in other text of a user."""
        if key not in self._labels:
            self._labels[key] = Counter()
            known = self._lengths.get(key[0], ())
            self._lengths[key[0]] = tuple(sorted({*known, len(key)}))
        if user is not None:
            self._own.setdefault((user, key), {})

    def add_other(self, surface: str) -> None:
        """A model hit this surface, but as something that is public or of a category not chosen."""
        self._other[parts(surface)[0]] += 1

    def count(self, text: str, hits: Sequence[Span], user: str) -> None:
        """Count the places in one text of a user; `hits` are those of all detectors in it."""
        tokens = list(words(text))
        if not any(word in self._lengths for word, _, _ in tokens):
            return
        found, covers = _extents(text, hits)
        for key, start, end in runs_of(tokens, self._lengths, self._labels):
            hit = (start, end) in found
            if hit or not covers(start, end):
                form = parts(text[start:end])[1]
                places = self._places.setdefault(key, {})
                places[form] = places.get(form, 0) + 1
                if hit:
                    counts = self._hits.setdefault(key, {})
                    counts[form] = counts.get(form, 0) + 1
                own = self._own.get((user, key))
                if own is not None:
                    own_hits, own_places = own.get(form, (0, 0))
                    own[form] = own_hits + hit, own_places + 1
            else:
                self._inside[key] += 1

    # Counts of several texts add up, so that those of an epoch can be kept and added to later.

    @property
    def keys(self) -> Set[Key]:
        """The surfaces that are counted."""
        return self._labels.keys()

    @property
    def own_keys(self) -> Set[tuple[str, Key]]:
        """The same by user, of users in whose text a model hit them."""
        return self._own.keys()

    def counts(self) -> dict[Key, dict[str, Any]]:
        """All that was counted of every surface, as values of JSON."""
        keys = {key for key in (*self._labels, *self._other) if 1 <= len(key) <= LONGEST}
        return {
            key: {
                "labels": dict(self._labels.get(key, ())),
                "hits": _listed(self._hits.get(key, {})),
                "places": _listed(self._places.get(key, {})),
                "inside": self._inside[key],
                "other": self._other[key],
            }
            for key in keys
        }

    def own_counts(self) -> dict[tuple[str, Key], list[tuple[Form, tuple[int, int]]]]:
        """The same by user."""
        return {pair: list(forms.items()) for pair, forms in self._own.items()}

    def merge(self, key: Key, counts: Mapping[str, Any]) -> None:
        """Add what was counted of a surface in other texts."""
        if counts["labels"]:
            self.watch(key)
            self._labels[key].update(counts["labels"])
        for mine, theirs in ((self._hits, counts["hits"]), (self._places, counts["places"])):
            for written, count in theirs:
                forms, form = mine.setdefault(key, {}), tuple(written)
                forms[form] = forms.get(form, 0) + count
        self._inside[key] += counts["inside"]
        self._other[key] += counts["other"]

    def merge_own(self, user: str, key: Key, counts: Sequence[tuple[Form, Any]]) -> None:
        """The same by user."""
        forms = self._own.setdefault((user, key), {})
        for written, (hits, places) in counts:
            before = forms.get(tuple(written), (0, 0))
            forms[tuple(written)] = before[0] + hits, before[1] + places

    def passes(self, key: Key, form: Form) -> bool:
        """Whether a surface spreads everywhere."""
        return self._enough(key, form, *self._of(key, form))

    def passes_within(self, user: str, key: Key, form: Form) -> bool:
        """Whether a surface spreads within this user's text, by the hits there."""
        hits, places = self._own.get((user, key), {}).get(form, (0, 0))
        return self._enough(key, form, hits, places, within=True)

    def dropped(self, surface: str) -> str | None:
        """Why a model's hit of this surface is not even kept where it is; None if it is."""
        if not any(map(str.isalnum, surface)):
            return NO_LETTER
        key, form = parts(surface)
        hits, places = self._of(key, form)
        if surface.islower() and ordinary(key) and hits < self.rule.noise_share * places:
            return NOISE
        return None

    def outcomes(self) -> Counter[str]:
        """How many surfaces spread, and how many do not, by reason."""
        within = {(key, form) for _, key, forms in self.spread_within() for form in forms}
        result: Counter[str] = Counter()
        for key, forms in self._hits.items():
            for form in forms:
                if self.passes(key, form):
                    result[SPREAD] += 1
                elif (key, form) in within:
                    result[SPREAD_WITHIN] += 1
                elif _single(key):
                    result[TOO_SHORT] += 1
                else:
                    result[TOO_FEW_ORDINARY if ordinary(key) else TOO_FEW] += 1
        return result

    def stands_alone(self, key: Key) -> bool:
        """Whether a surface is more often found by itself than as part of a longer hit.

        Then it is the same name there (`Kerry` in `John Kerry`); else it is not (`York`, `John`).
        """
        return sum(self._hits.get(key, {}).values()) >= self._inside[key]

    def label(self, key: Key) -> str:
        """The commonest label of its hits."""
        return self._labels[key].most_common(1)[0][0]

    def spread(self) -> Iterator[tuple[Key, frozenset[Form]]]:
        """What passed: words, and the forms that did."""
        for key in self._labels:
            passed = frozenset(f for f in self._places.get(key, ()) if self.passes(key, f))
            if passed:
                yield key, passed

    def spread_within(self) -> Iterator[tuple[str, Key, frozenset[Form]]]:
        """What passed within one user's text: user, words, and the forms that did."""
        for (user, key), forms in self._own.items():
            passed = frozenset(form for form in forms if self.passes_within(user, key, form))
            if passed:
                yield user, key, passed

    def apart(self, key: Key, passed: Container[Form], within: bool = False) -> frozenset[Form]:
        """The case variants of a surface that are words of their own, if these forms passed.

        - one word in lower case, if it was hit (and did not pass) or stands there more than a third
          as often as the forms that passed (`la` beside `LA`); `within` one user's text, a few
          places do not count against it
        - one word otherwise, or several in lower case, if it stands there more often than they do,
          and more than a few times (`Mr` beside `MR`)
        - nothing in capitals: a headline writes any name so
        """
        forms = self._places.get(key, {})
        total = sum(places for form, places in forms.items() if form in passed)

        def is_apart(form: Form, places: int) -> bool:
            if form in passed or "".join(form).isupper():
                return False
            if len(key) == 1 and _is_lower(form):
                often = places > max(_RARE if within else 0, total / 3)
                return often or self._of(key, form)[0] > 0
            return places > max(_RARE, total) and (len(key) == 1 or _is_lower(form))

        return frozenset(form for form, places in forms.items() if is_apart(form, places))

    def unfound(self, known: "KnownSurfaces") -> Iterator[tuple[str, int]]:
        """The surfaces that were hit and do not spread, with the number of places not found."""
        within: Counter[tuple[Key, Form]] = Counter()
        for (user, key), counts in self._own.items():
            for form, (hits, places) in counts.items():
                if known.matches(key, form, user):
                    within[key, form] += places - hits
        for key, forms in self._hits.items():
            for form, hits in forms.items():
                missing = self._places[key][form] - hits - within[key, form]
                if missing and not known.matches(key, form):
                    yield " ".join(form), missing

    def _enough(self, key: Key, form: Form, hits: int, places: int, within: bool = False) -> bool:
        """Whether so many hits of so many places, everywhere or `within` a user's text, suffice."""
        if not hits or _single(key):
            return False
        rule, least = self.rule, 1
        if ordinary(key) and not _is_title(form):
            share, least = rule.share if within else rule.ordinary_share, rule.ordinary_hits
        elif not self._is_name(key, form):
            share = rule.share
        else:
            share = rule.sure_share if within or _is_sure(form) else rule.name_share
        return hits >= max(least, share * places)

    def _is_name(self, key: Key, form: Form) -> bool:
        """Whether a surface that is not ordinary is written as a name, and mostly taken for one."""
        in_lower_case = sum(n for f, n in self._places[key].items() if _is_lower(f))
        contested = self._other[key] > self._labels[key].total()
        often = self._places[key][form] >= in_lower_case
        return often and not contested and not _is_lower(form)

    def _of(self, key: Key, form: Form) -> tuple[int, int]:
        hits = self._hits.get(key, {}).get(form, 0)
        return hits, self._places.get(key, {}).get(form, 0)


class KnownSurfaces:
    """Surfaces to be found everywhere.

    Words are compared folded (case, punctuation, possessive). In which case they count depends on
    how a surface was added: a name that passed the evidence counts in any case, unless its words
    are ordinary (`US` must not make every `us` sensitive, nor `May` every `may`) or the text shows
    that a variant is a word of its own (`Evidence.apart`); an entry of a
    person's own list counts in any case; another name of an entity (an alias) counts in any case
    but not in lower case if its words are ordinary.

    Guarantees:
      - every mention of an added surface, between word boundaries and under the rule above, is
        found, inside other mentions too; one that passed only within a user's text, there
      - a surface added with `always` is found in any case, however short, symbols included
    """

    def __init__(self) -> None:
        self._labels: dict[Key, Counter[str]] = {}
        self._lengths: dict[str, tuple[int, ...]] = {}  # in words, by first word
        self._in_any_case: set[Key] = set()
        self._with_capitals: set[Key] = set()
        self._forms: dict[Key, set[Form]] = {}
        self._apart: dict[Key, frozenset[Form]] = {}
        self._own: dict[tuple[str, Key], frozenset[Form]] = {}  # by user
        self._own_apart: dict[Key, frozenset[Form]] = {}
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
        """Add the surfaces that passed, everywhere or within the text of some users."""
        for key, passed in evidence.spread():
            self._add_weighed(evidence, key)
            self._forms.setdefault(key, set()).update(passed)
            if not ordinary(key):
                self._apart[key] = evidence.apart(key, passed)
        of_any_user: dict[Key, set[Form]] = {}
        for user, key, passed in evidence.spread_within():
            self._own[user, key] = passed
            of_any_user.setdefault(key, set()).update(passed)
        for key, forms in of_any_user.items():
            self._add_weighed(evidence, key)
            if not ordinary(key):
                self._own_apart[key] = evidence.apart(key, forms, within=True)

    def matches(self, key: Key, form: Form, user: str | None = None) -> bool:
        """Whether these words, written so, are looked for: everywhere, or in this user's text."""
        if key in self._in_any_case or form in self._forms.get(key, ()):
            return True
        if key in self._with_capitals and not _is_lower(form):
            return True
        if key in self._apart and form not in self._apart[key]:
            return True
        if user is None or (user, key) not in self._own:
            return False
        variant = key in self._own_apart and form not in self._own_apart[key]
        return variant or form in self._own[user, key]

    def find(self, text: str, hits: Sequence[Span] = (), user: str | None = None) -> list[Span]:
        """The mentions in a user's text in which detectors made these hits."""
        return [*self._find_words(text, hits, user), *self._find_literal(text)]

    def rules(self) -> dict[Key, Any]:
        """For each surface, in which case and in whose text it counts: to be compared."""
        own: dict[Key, dict[str, frozenset[Form]]] = {}
        for (user, key), forms in self._own.items():
            own.setdefault(key, {})[user] = forms
        return {
            key: (
                key in self._in_any_case,
                key in self._with_capitals,
                frozenset(self._forms.get(key, ())),
                self._apart.get(key),
                own.get(key),
                self._own_apart.get(key),
                key in self._not_inside,
            )
            for key in self._labels
        }

    def _only_alone(self, key: Key) -> bool:
        listed = key in self._in_any_case or key in self._with_capitals
        return key in self._not_inside and not listed

    def _add_weighed(self, evidence: Evidence, key: Key) -> None:
        self._add_key(key, evidence.label(key))
        if not evidence.stands_alone(key):
            self._not_inside.add(key)

    def _add_key(self, key: Key, label: str) -> None:
        self._labels.setdefault(key, Counter())[label] += 1
        lengths = self._lengths.get(key[0], ())
        if len(key) not in lengths:
            self._lengths[key[0]] = tuple(sorted((*lengths, len(key))))

    def _find_words(self, text: str, hits: Sequence[Span], user: str | None) -> Iterator[Span]:
        _, covered = _extents(text, hits)
        for key, start, end in runs_of(list(words(text)), self._lengths, self._labels):
            if self._only_alone(key) and covered(start, end):
                continue
            if self.matches(key, parts(text[start:end])[1], user):
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


def _listed(counts: Mapping[Form, int]) -> list[tuple[Form, int]]:
    return list(counts.items())


def _is_lower(form: Form) -> bool:
    return "".join(form).islower()


def _is_title(form: Form) -> bool:
    """Whether several words are written as the parts of one name: Red Sea, Bank of England."""
    ends = form[0], form[-1]
    return len(form) > 1 and all(word[0].isupper() and not word.isupper() for word in ends)


def _is_sure(form: Form) -> bool:
    """Whether a name is the same whoever writes it: Ann Lee, Bank of England, NATO."""
    if len(form) > 1:
        return form[0][0].isupper() and form[-1][0].isupper()
    return form[0].isupper() and sum(map(str.isalpha, form[0])) >= _ABBREVIATION


def _single(key: Key) -> bool:
    return sum(map(len, key)) < 2


def runs_of(
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
