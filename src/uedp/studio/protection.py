"""What is protected, as a person chose it, and the command that makes it so."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from uedp.entities.categories import UNIONS
from uedp.entities.lists import Lists
from uedp.studio.list_files import KINDS, list_file


@dataclass(frozen=True)
class Protection:
    """What is protected: by which lists, in which categories, found by which detectors."""

    lists: Lists
    categories: frozenset[str]
    detectors: frozenset[str]
    propagate: bool


def command(corpus: Path, applied: Protection, choice: Protection) -> str:
    """The command that applies a choice, for a shell; empty if there is nothing to apply."""
    parts: list[str] = []
    old, new = applied.lists, choice.lists
    removed = any(getattr(old, k).items() - getattr(new, k).items() for k in KINDS)
    removed = removed or bool(set(old.shipped) - set(new.shipped))
    if removed:
        parts.append("--replace-lists")
    for kind, (_, _, option) in KINDS.items():
        entries = getattr(new, kind)
        if entries and (removed or entries != getattr(old, kind)):
            parts += [option, str(list_file(corpus, kind))]
    for name in new.shipped:
        if removed or name not in old.shipped:
            parts += ["--public-list", name]
    if choice.categories != applied.categories:
        parts += ["--categories", _categories(choice.categories)]
    if choice.propagate != applied.propagate:
        parts.append("--propagate" if choice.propagate else "--no-propagate")
    return shlex.join(["uedp", "entities", str(corpus), *parts]) if parts else ""


def _categories(chosen: frozenset[str]) -> str:
    unions = (name for name, members in UNIONS.items() if chosen == members)
    return next(unions, ",".join(sorted(chosen)))
