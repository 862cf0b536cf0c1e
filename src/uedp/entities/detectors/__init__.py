"""Detectors: what in a sentence must be protected. One file each, one registry.

A detector is named `kind` or `kind:argument` (`patterns`, `spacy:en_core_web_sm`). To add one,
write a module with a class that follows `Detector`, enter it in `_LOADERS`, and give it `load` and
`version`.
"""

import importlib
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from typing import Protocol

from uedp.corpus.sentence import Sentence, Span
from uedp.errors import UserError


class Detector(Protocol):
    """Finds entities in sentences.

    `propagates` says whether one hit is evidence for every other mention of the same surface:
    true for models that judge by context and so miss some mentions, false for human marks and
    for patterns that always find the same form.
    """

    propagates: bool

    def detect(self, sentences: Sequence[Sentence]) -> Iterator[list[Span]]:
        """The spans found in each sentence, in order; one list per sentence, empty ones too."""


# kind -> (module with `load(argument)` and `version(argument)`,
#          what the argument is, or None if it takes none)
_LOADERS: dict[str, tuple[str, str | None]] = {
    "labels": ("labels", None),
    "patterns": ("patterns", "REGION"),
    "spacy": ("spacy", "NAME_OR_PATH"),
    "presidio": ("presidio", "NAME_OR_PATH"),
    "stanza": ("stanza", "LANG"),
    "transformers": ("transformers", "NAME_OR_PATH"),
}
KINDS = tuple(_LOADERS)


def load(name: str) -> Detector:
    """The detector called `name`, ready to run; imports only what that detector needs.

    Raises `UserError` with the exact install command when a library or model is missing.
    """
    kind, _, argument = name.partition(":")
    if kind not in _LOADERS:
        raise UserError(f"--detector {name!r}: unknown detector; choose among {', '.join(KINDS)}")
    module, takes = _LOADERS[kind]
    if argument and takes is None:
        raise UserError(f"--detector {name!r}: `{kind}` takes no argument; write `{kind}`")
    loader = importlib.import_module(f"uedp.entities.detectors.{module}")
    detector: Detector = loader.load(argument or None)
    return detector


def version(name: str) -> str:
    """What the detector called `name` is, exactly: its library and its model, with versions.

    Loads no model: workers may do that elsewhere.
    """
    kind, _, argument = name.partition(":")
    if kind not in _LOADERS:  # somebody's own, put in place of `load`
        return "version unknown"
    loader = importlib.import_module(f"uedp.entities.detectors.{_LOADERS[kind][0]}")
    found: str = loader.version(argument or None)
    return found


def package(name: str) -> str:
    """An installed package and its version."""
    try:
        return f"{name} {installed(name)}"
    except PackageNotFoundError:
        return f"{name}, version unknown"
