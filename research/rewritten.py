"""Public text in the spelling of the private text that it prepares for.

Nothing private decides anything here: how a corpus was tokenised is said in its documentation.
"""

import html
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from research.datasets import load_texts
from uedp.training.public_text import PublicText


def as_conll(text: str) -> str:
    """News as CoNLL-2003 has it: tokens between spaces, no markup, `percent` in full.

    AG's articles contain HTML entities that have lost their ampersands, and backslashes where lines
    ended.
    """
    text = _NUMBERED.sub(r"&#\1;", text)
    text = _NAMED.sub(r"&\1;", text)
    text = _TAG.sub(" ", html.unescape(html.unescape(text)))
    text = text.replace("\\", " ").replace("`", "'").replace("%", " percent")
    found = _TOKEN.findall(_CLITIC.sub(r" \1", text))
    return " ".join(_with_abbreviations(found))


_NUMBERED = re.compile(r"(?<!&)#(\d+);")
_NAMED = re.compile(r"(?<![&\w])(quot|amp|lt|gt|nbsp|mdash);")
_TAG = re.compile(r"<[^<>]*>")
_CLITIC = re.compile(r"(?<=\w)('(?:s|re|ve|ll|d|m)|n't)\b", re.IGNORECASE)
_TOKEN = re.compile(
    r"(?:[A-Za-z]\.){2,}"  # U.S.
    r"|[A-Z]\.(?=\s[A-Z])"  # J. Smith
    r"|\.\.\.|--|n't\b"
    r"|'(?:s|re|ve|ll|d|m)\b"
    r"|\w+(?:[-&/'.,:]\w+)*"  # 1,000  6-4  hat-trick  O'Hare
    r"|\S"
)
_TITLES = ("Mr", "Mrs", "Dr", "Jr", "Gen", "Sen", "Rep", "Gov", "Inc", "Corp", "Co", "Ltd", "St")
_MONTHS = ("Jan", "Feb", "Aug", "Sept", "Oct", "Nov", "Dec")
_ABBREVIATIONS = frozenset((*_TITLES, *_MONTHS, "vs"))


def _with_abbreviations(tokens: Iterable[str]) -> list[str]:
    joined: list[str] = []
    for token in tokens:
        if token == "." and joined and joined[-1] in _ABBREVIATIONS:
            joined[-1] += token
        else:
            joined.append(token)
    return joined


REWRITTEN: Mapping[str, tuple[str, Callable[[str], str]]] = MappingProxyType(
    {"ag-as-conll": ("ag-sentences", as_conll)}
)


def public_text(datasets: Path, name: str, most: int | None = None) -> PublicText:
    """The training part of a data set as public text, rewritten if it is named so."""
    data, rewrite = REWRITTEN.get(name, (name, str))
    found = load_texts(datasets / data, "train", most)
    both = zip(map(rewrite, found.texts), found.labels, strict=True)
    kept = [(text, label) for text, label in both if text]  # some were markup only
    return PublicText([text for text, _ in kept], [label for _, label in kept], name)
