"""The grammar of the sample corpus, read from `grammar.txt`, which explains its notation."""

from collections.abc import Mapping
from importlib.resources import files

TOPICS: tuple[str, ...] = ("billing", "travel", "hiring", "support")


def _parse_rules(text: str) -> dict[str, tuple[str, ...]]:
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


RULES: Mapping[str, tuple[str, ...]] = _parse_rules(
    files(__package__).joinpath("grammar.txt").read_text(encoding="utf-8")
)
