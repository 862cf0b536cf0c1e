"""Words that a pipeline trained on news takes for names elsewhere, declared public by hand.

Contract language capitalises its own terms, and AG's articles carry remnants of markup and the
names of the agencies that sent them. What stands in `public_words` is not protected as an entity;
it is still protected as part of its sentence and of its user's texts.
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
    """What some lists declare public, one phrase a line, and why."""
    return {
        phrase: _REASONS[name]
        for name in lists
        for phrase in (_FOLDER / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    }
