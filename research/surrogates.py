"""De-identification with surrogates: every mention replaced by an invented name of its kind.

A stronger baseline than placeholders: sentences stay sentences, and training leaves surrogates out
of the loss, so that no invented name is learned either. It gives no guarantee for entities: missed
mentions stay, and so does the context of every name.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from uedp.entities.categories import category_of
from uedp.training.mentions import Row

if TYPE_CHECKING:
    from uedp.corpus.store import Corpus

_FIRST = (
    *("Anna", "Ben", "Clara", "David", "Ella", "Felix", "Grace", "Henry", "Ines", "Jonas"),
    *("Karen", "Leo", "Maria", "Nora", "Oscar", "Paula", "Rosa", "Simon", "Tara", "Victor"),
)
_LAST = (
    *("Abbott", "Barnes", "Carver", "Dalton", "Ellis", "Fischer", "Grant", "Hale", "Ivers"),
    *("Jensen", "Keller", "Lowell", "Mercer", "Norris", "Osborne", "Porter", "Reyes", "Stone"),
)
_PLACES = (
    *("Ashford", "Brookdale", "Clearwater", "Dunmore", "Eastport", "Fairview", "Glenwood"),
    *("Hillcrest", "Kingsbury", "Lakeside", "Milton", "Northfield", "Oakridge", "Riverton"),
)
_KINDS = ("Bank", "Group", "Industries", "Systems", "Union", "Partners", "United", "Foods")
_PEOPLES = ("Arlean", "Bordish", "Calvian", "Dorian", "Estrian", "Florian", "Galdic", "Harlish")


_NAMES: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "person": [f"{first} {last}" for first in _FIRST for last in _LAST],
        "loc": _PLACES,
        "gpe": _PLACES,
        "org": [f"{place} {kind}" for place in _PLACES for kind in _KINDS],
        "contact": [f"{first.lower()}@example.com" for first in _FIRST],
    }
)


def surrogate_texts(corpus: "Corpus", seed: int = 0) -> tuple[list[str], list[Row]]:
    """The texts of a corpus with surrogates, and where these are (sentence, start, end, category).

    Guarantees:
      - no character of a mention remains, overlapping mentions included
      - an entity has the same surrogate everywhere it is mentioned in one category
    """
    from uedp.entities.deidentify import merged_mentions

    key = np.random.default_rng(seed).integers(1 << 31, size=2).tolist()
    texts: list[str] = []
    rows: list[Row] = []
    for number, (sentence, mentions) in enumerate(zip(corpus, corpus.spans(), strict=True)):
        text, done = "", 0
        for start, end, span, entity in merged_mentions(mentions):
            category = category_of(span.label)
            choice = _NAMES.get(category, _PEOPLES)
            surrogate = choice[(entity * key[0] + key[1]) % len(choice)]
            text += sentence.text[done:start]
            rows.append((number, len(text), len(text) + len(surrogate), category))
            text, done = text + surrogate, end
        texts.append(text + sentence.text[done:])
    return texts, rows
