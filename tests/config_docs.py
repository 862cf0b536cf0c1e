"""Writes docs/configuration.md from the classes of the config: `python -m tests.config_docs`."""

import re
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from uedp.methods import method_named, method_names
from uedp.methods.base import PLANNED
from uedp.training.config import Config

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"

_OPENING = """\
# Configuration

Every field of a config, its default, and the reason for the default. Written from the classes that
validate configs (`python -m tests.config_docs`); a test compares the two.

A config is a YAML file with the sections below. `uedp train CONFIG` reads it, `--set
section.field=value` changes a field, and the common fields have flags (`uedp train --help` names
the field of each). `config.yaml` in a run directory holds all fields as the run uses them.

**Chosen by the planner** means: if the config gives an epsilon and leaves the field out, it is
chosen before training from counts of the corpus (users, sentences, usable sentences, token lengths)
and, for `uedp train`, from the measured speed of the model and `run.time`. No guarantee covers such
counts, so the certificate names the fields that were chosen by them. The number in brackets is used
where nothing can be planned: with a given `noise`, or by a method that adds none.
"""


def page() -> str:
    parts = [_OPENING]
    for name, field in Config.model_fields.items():
        if name == "method_options":
            parts += _options()
        else:
            section = field.annotation
            assert isinstance(section, type)
            parts.append(f"## `{name}`\n\n{_words(section)}\n\n{_table(section, name)}")
    return "\n".join(parts)


def _options() -> list[str]:
    parts = [
        "## `method_options`\n\nOptions that one method has; the other methods have none.\n",
    ]
    for name in method_names():
        options = method_named(name).options_type
        if options.model_fields and options.__module__.startswith("uedp."):
            parts.append(f"### `{name}`\n\n{_words(options)}\n\n{_table(options, '')}")
    return parts


def _words(section: type[BaseModel]) -> str:
    paragraphs = re.split(r"\n\s*\n", section.__doc__ or "")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _table(section: type[BaseModel], name: str) -> str:
    rows = ["| field | type | default | meaning, and why this default |", "|---|---|---|---|"]
    for field, info in section.model_fields.items():
        default = _default(info)
        if name == "privacy" and field in PLANNED:
            default = f"chosen by the planner ({default})"
        meaning = (info.description or "").replace("|", "\\|")
        rows.append(f"| `{field}` | {_type(info)} | {default} | {meaning} |")
    return "\n".join(rows) + "\n"


def _default(info: FieldInfo) -> str:
    if info.default_factory is not None:
        return "none"
    if info.default is PydanticUndefined:
        return "required"
    if isinstance(info.default, bool):
        return f"`{str(info.default).lower()}`"
    return "none" if info.default in (None, ()) else f"`{info.default}`"


_NAMES = {str: "text", Path: "path", bool: "true or false", int: "whole number", float: "number"}


def _type(info: FieldInfo) -> str:
    words = _annotation(info.annotation)
    return " ".join(filter(None, [words, *map(_limit, _constraints(info))]))


def _annotation(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation in _NAMES:
        return _NAMES[annotation]
    if str(origin).endswith("Literal"):
        return ", ".join(f"`{value}`" for value in arguments)
    if origin is tuple:
        return "list of texts"
    if origin is dict:
        return "numbers by name"
    if hasattr(annotation, "__metadata__"):
        limits = [limit for part in annotation.__metadata__ for limit in _parts(part)]
        return " ".join([_annotation(arguments[0]), *filter(None, map(_limit, limits))])
    given = [one for one in arguments if one is not type(None)]
    return " or ".join(_annotation(one) for one in given)


def _constraints(info: FieldInfo) -> list[Any]:
    return [limit for part in info.metadata for limit in _parts(part)]


def _parts(part: Any) -> list[Any]:
    return list(part.metadata) if isinstance(part, FieldInfo) else [part]


_LIMITS = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}


def _limit(limit: Any) -> str:
    found = [
        f"{word} {_number(getattr(limit, name))}"
        for name, word in _LIMITS.items()
        if getattr(limit, name, None) is not None
    ]
    return ", ".join(found)


def _number(value: float) -> str:
    return "2^63" if value == 2**63 else f"{value:g}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
