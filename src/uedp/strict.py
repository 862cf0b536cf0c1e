"""Strict parsers of JSON and YAML, for files that may be hostile."""

import json
import re
from collections.abc import Hashable
from typing import Any

import yaml

_LONG_QUOTE = re.compile(r"""(['"]).{24,}\1""")  # perhaps private text
_DEEPEST = 32  # levels; a config has three


def parse_json(text: str | bytes) -> Any:
    """Parse JSON.

    Guarantees:
      - any error in the text is a ValueError with a message of one line
      - a duplicate key in an object is refused by name
    """
    try:
        return json.loads(text, object_pairs_hook=_object)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def parse_yaml(text: str) -> Any:
    """Parse YAML of plain values, lists and mappings.

    Guarantees:
      - any error in the text is a ValueError with a message of one line
      - a duplicate key in a mapping is refused by name; anchors, aliases and merged mappings,
        which could make a small file huge, are refused
    """
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:  # without its extract: the text may be private
        mark = error.problem_mark or error.context_mark
        line = f"line {mark.line + 1}: " if mark else ""
        raise ValueError(f"not YAML: {line}{error.problem or error.context}"[:120]) from None
    except Exception as error:  # a malformed value can raise almost anything
        reason = " ".join(str(error).split()) or type(error).__name__
        reason = _LONG_QUOTE.sub("...", reason)[:120]
        syntax = "not YAML: " if isinstance(error, yaml.YAMLError) else ""
        raise ValueError(f"{syntax}{reason}") from None


def shortened(value: object, most: int = 40) -> str:
    """A value as Python writes it, for an error; a long one is cut."""
    shown = repr(value)
    return shown if len(shown) <= most + 2 else f"{shown[: most - 2]}..."


class DuplicateKeyError(ValueError):
    """A key that stands twice in a mapping."""

    def __init__(self, key: object) -> None:
        super().__init__(f"the key {shortened(key, 12)} stands twice; leave one out")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        keys = [key for key, _ in pairs]
        raise DuplicateKeyError(next(key for key in keys if keys.count(key) > 1))
    return values


# for values inside a longer text; raises what `json` does, and DuplicateKeyError
DECODER = json.JSONDecoder(object_pairs_hook=_object)


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    _depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            line = event.start_mark.line + 1
            raise ValueError(f"line {line}: an anchor or alias; write the value out")
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ValueError("nested too deeply")
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                raise ValueError(f"line {key_node.start_mark.line + 1}: << is not known here")
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise ValueError(f"line {key_node.start_mark.line + 1}: a key that is a collection")
            if key in seen:
                raise DuplicateKeyError(key)
            seen.add(key)
        return super().construct_mapping(node, deep)
