"""Names and grammar of the sample corpus. People and organisations are invented."""

from collections.abc import Mapping
from importlib.resources import files

import yaml


def _data(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _parse_rules(text: str) -> dict[str, tuple[str, ...]]:
    """The rules of `grammar.txt`, which explains its notation."""
    rules: dict[str, list[str]] = {}
    current: list[str] = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        body = line
        if not line[0].isspace():
            name, body = line.split(":", 1)
            current = rules.setdefault(name, [])
        # A bar between spaces separates alternatives; inside a choice it has none.
        current += [alternative.strip() for alternative in body.split(" | ") if alternative]
    return {name: tuple(alternatives) for name, alternatives in rules.items()}


TOPICS: tuple[str, ...] = ("billing", "travel", "hiring", "support")
RULES: Mapping[str, tuple[str, ...]] = _parse_rules(_data("grammar.txt"))
NAMES: Mapping[str, list[str]] = yaml.safe_load(_data("words.yaml"))  # by kind
FIRST_NAMES, LAST_NAMES = NAMES["first_names"], NAMES["last_names"]
