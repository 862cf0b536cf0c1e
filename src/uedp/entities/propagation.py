"""One hit protects every mention: known surfaces are found again wherever they stand."""

from collections import Counter
from collections.abc import Sequence

from uedp.corpus.sentence import Span
from uedp.entities.canonical import words


class KnownSurfaces:
    """Surfaces that were detected somewhere, to be found everywhere.

    Words are compared folded (case, punctuation, possessive), with one exception: text that is
    all lower case matches only a surface that was itself detected in lower case, or `US` would
    make every `us` sensitive and `May` every `may`.

    Guarantees:
      - every mention of an added surface of two or more characters, between word boundaries and
        under the exception above, is found unless it lies wholly inside a span already taken
      - found spans do not overlap each other; the longest surface wins, leftmost first
    """

    def __init__(self) -> None:
        self._surfaces: dict[tuple[str, ...], Counter[str]] = {}
        self._in_lower_case: set[tuple[str, ...]] = set()
        self._lengths: dict[str, list[int]] | None = None

    def __len__(self) -> int:
        return len(self._surfaces)

    def add(self, surface: str, label: str, any_case: bool = False) -> None:
        key = tuple(word for word, _, _ in words(surface))
        if sum(map(len, key)) < 2:
            return  # one letter would match initials, list bullets and articles
        self._surfaces.setdefault(key, Counter())[label] += 1
        if any_case or surface.islower():
            self._in_lower_case.add(key)
        self._lengths = None

    def find(self, text: str, taken: Sequence[Span] = ()) -> list[Span]:
        lengths = self._ready()
        tokens = list(words(text))
        found: list[Span] = []
        position = 0
        while position < len(tokens):
            span, used = self._longest_at(tokens, position, lengths, text)
            if span is not None and not any(
                other.start <= span.start and span.end <= other.end for other in taken
            ):
                found.append(span)
                position += used
            else:
                position += 1
        return found

    def _longest_at(
        self,
        tokens: Sequence[tuple[str, int, int]],
        position: int,
        lengths: dict[str, list[int]],
        text: str,
    ) -> tuple[Span | None, int]:
        for length in lengths.get(tokens[position][0], ()):
            window = tokens[position : position + length]
            key = tuple(word for word, _, _ in window)
            if len(window) == length and key in self._surfaces:
                start, end = window[0][1], window[-1][2]
                if key in self._in_lower_case or not text[start:end].islower():
                    label = self._surfaces[key].most_common(1)[0][0]
                    return Span(start, end, label), length
        return None, 0

    def _ready(self) -> dict[str, list[int]]:
        """How many words the surfaces that begin with a word have, longest first."""
        if self._lengths is None:
            by_first: dict[str, set[int]] = {}
            for key in self._surfaces:
                by_first.setdefault(key[0], set()).add(len(key))
            self._lengths = {
                first: sorted(found, reverse=True) for first, found in by_first.items()
            }
        return self._lengths
