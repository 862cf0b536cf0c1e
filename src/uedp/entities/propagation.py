"""Propagation: one hit protects every mention of the same surface."""

import re
from collections import Counter
from collections.abc import Iterator

from uedp.corpus.sentence import Span
from uedp.entities.words import fold, words


class KnownSurfaces:
    """Surfaces that were detected somewhere, to be found everywhere.

    Words are compared folded (case, punctuation, possessive), with one exception: text in lower
    case matches only a surface that was itself detected in lower case, or `US` would make every
    `us` sensitive and `May` every `may`.

    Guarantees:
      - every mention of an added surface of two or more letters or digits, between word
        boundaries and under the exception above, is found, inside other mentions too
      - a surface added with `always` is found in any case, however short, symbols included
    """

    def __init__(self) -> None:
        self._labels: dict[tuple[str, ...], Counter[str]] = {}
        self._in_lower_case: set[tuple[str, ...]] = set()
        self._lengths: dict[str, set[int]] = {}  # in words, by first word
        self._literal: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._labels) + len(self._literal)

    def add(self, surface: str, label: str, always: bool = False) -> None:
        key = tuple(word for word, _, _ in words(surface))
        if sum(map(len, key)) < 2:
            # a single letter would match initials, bullets and articles; C++ has no other words
            if always and (literal := fold(surface)[0].strip()):
                self._literal[literal] = label
            return
        self._labels.setdefault(key, Counter())[label] += 1
        if always or surface.islower():
            self._in_lower_case.add(key)
        self._lengths.setdefault(key[0], set()).add(len(key))

    def find(self, text: str) -> list[Span]:
        return [*self._find_words(text), *self._find_literal(text)]

    def _find_words(self, text: str) -> Iterator[Span]:
        tokens = list(words(text))
        for position, (first, start, _) in enumerate(tokens):
            for length in sorted(self._lengths.get(first, ())):
                window = tokens[position : position + length]
                key = tuple(word for word, _, _ in window)
                if len(window) < length or key not in self._labels:
                    continue
                end = window[-1][2]
                if key in self._in_lower_case or not text[start:end].islower():
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
