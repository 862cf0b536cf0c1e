"""Ordinary English words: those that no reader takes for a name when they are in lower case.

The list is generated (`benchmarks/ordinary_words.py`): words that edited public text writes in
lower case, and informal words added by hand.
"""

import re
from functools import cache
from importlib.resources import files

_ENDING = re.compile(r"(?:'s|s'|n't|'(?:d|ll|m|re|ve))\Z")


@cache
def ordinary_words() -> frozenset[str]:
    """The list, in lower case."""
    text = files(__package__).joinpath("ordinary_words.txt").read_text(encoding="utf-8")
    return frozenset(line for line in text.splitlines() if not line.startswith("#"))


def is_ordinary(word: str) -> bool:
    """Whether the lower-case form of a word is ordinary English (`to`, `May`, `it's`, `lol`).

    Single letters are; a word without letters is not.
    """
    lower = word.lower().replace("’", "'")
    if len(lower) == 1:
        return lower.isalpha()
    listed = ordinary_words()
    return lower in listed or _ENDING.sub("", lower) in listed
