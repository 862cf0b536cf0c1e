"""Words that the NER pipeline mistakes for names, declared public by hand.

Contracts capitalise their own terms; AG's articles contain remnants of markup and the names of news
agencies. A public word is not protected as an entity. It is still protected as part of its sentence
and of its user's texts.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

_FOLDER = Path(__file__).parent / "public_words"
_REASONS = {
    "ordinary": "an ordinary word",
    "contracts": "contract language",
    "news": "markup, a news agency, or an ordinary word",
}


def public_words(lists: Iterable[str]) -> Mapping[str, str]:
    """The phrases of some lists, one per line of a file, each with the reason it is public."""
    return {
        phrase: _REASONS[name]
        for name in lists
        for phrase in (_FOLDER / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    }
