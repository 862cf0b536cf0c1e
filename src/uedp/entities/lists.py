"""A person's own word on entities: public ones, sensitive ones, other names for the same."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from uedp.corpus.readers import Columns, Source, csv_records
from uedp.entities.categories import BASE
from uedp.errors import UserError


@dataclass(frozen=True)
class Lists:
    """`public`: entity -> why it needs no protection. `sensitive`: entity -> category.
    `aliases`: other name -> entity."""

    public: Mapping[str, str] = field(default_factory=dict)
    sensitive: Mapping[str, str] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)


def read_lists(allow: Path | None, deny: Path | None, aliases: Path | None) -> Lists:
    """Three optional CSV files with headers `entity,reason`, `entity,category`, `alias,entity`.

    Guarantees:
      - nothing is declared public without a reason
    """
    sensitive = _pairs(deny, "entity", "category", "name one of the categories")
    for entity, category in sensitive.items():
        if category not in BASE:
            raise UserError(
                f"{deny}: unknown category {category!r} of {entity!r}; "
                f"choose among {', '.join(BASE)}"
            )
    return Lists(
        public=_pairs(allow, "entity", "reason", "say why it is public; the reason goes on record"),
        sensitive=sensitive,
        aliases=_pairs(aliases, "alias", "entity", "name what it stands for"),
    )


def _pairs(path: Path | None, key: str, value: str, remedy: str) -> dict[str, str]:
    if path is None:
        return {}
    pairs = {}
    for number, fields in csv_records(Source(path), Columns(user=key, text=value)):
        left, right = fields[key].strip(), fields[value].strip()
        if not left or not right:
            missing = key if not left else value
            raise UserError(f"{path}:{number}: empty {missing!r}; {remedy}")
        pairs[left] = right
    return pairs
