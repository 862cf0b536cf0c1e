"""Lists that override detection: public entities, sensitive entities, aliases."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from uedp.corpus.readers import csv_records
from uedp.corpus.records import blank, listed
from uedp.corpus.source import Source
from uedp.entities.canonical import canonical
from uedp.entities.categories import BASE
from uedp.entities.words import fold
from uedp.errors import UserError


@dataclass(frozen=True)
class Lists:
    """`public`: entity -> reason. `sensitive`: entity -> category. `aliases`: alias -> entity."""

    public: Mapping[str, str] = field(default_factory=dict)
    sensitive: Mapping[str, str] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for entry in (*self.public, *self.sensitive, *self.aliases, *self.aliases.values()):
            if _is_blank(entry):
                raise UserError(f"{entry!r}: a list entry without a visible character; drop it")
        sensitive = {canonical(entity): entity for entity in self.sensitive}
        for entity in self.public:
            if canonical(entity) in sensitive:
                raise UserError(
                    f"{entity!r} is on the allow-list and, as {sensitive[canonical(entity)]!r}, "
                    "on the deny-list; take it off one of them"
                )


def read_lists(
    allow: Path | str | None = None,
    deny: Path | str | None = None,
    aliases: Path | str | None = None,
) -> Lists:
    """Three optional CSV files with headers `entity,reason`, `entity,category`, `alias,entity`.

    Guarantees:
      - no entity is public without a reason, or both public and sensitive
      - a file without entries is an error
    """
    sensitive = _pairs(deny, "entity", "category")
    for entity, category in sensitive.items():
        if category not in BASE:
            raise UserError(
                f"{deny}: unknown category {category!r} of {entity!r}; "
                f"choose among {', '.join(BASE)}"
            )
    return Lists(
        public=_pairs(allow, "entity", "reason"),
        sensitive=sensitive,
        aliases=_pairs(aliases, "alias", "entity"),
    )


def _is_blank(entry: str) -> bool:
    """Whether an entry is blank, or has only characters that comparisons ignore."""
    return blank(entry) or not fold(entry)[0].strip()


_REMEDY = {
    "entity": "name the entity",
    "alias": "name the alias",
    "reason": "give the reason why it is public; it is recorded",
    "category": "name one of the categories",
}


def _pairs(path: Path | str | None, key: str, value: str) -> dict[str, str]:
    if path is None:
        return {}

    def check_header(where: str, names: list[str]) -> None:
        if names.count(key) != 1 or names.count(value) != 1:
            raise UserError(
                f"{where}: the columns are {listed(names)}; they must be `{key},{value}`"
            )

    pairs: dict[str, str] = {}
    for number, fields in csv_records(Source(Path(path)), check_header):
        for name in (key, value):
            if _is_blank(fields[name]):
                raise UserError(f"{path}:{number}: empty {name!r}; {_REMEDY[name]}")
        entry, meaning = fields[key].strip(), fields[value].strip()
        if pairs.setdefault(entry, meaning) != meaning:
            raise UserError(f"{path}:{number}: {entry!r} is listed twice, differently; keep one")
    if not pairs:
        raise UserError(f"{path}: has no entries; add some under `{key},{value}`, or omit the file")
    return pairs
