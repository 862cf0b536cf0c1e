"""Lists that override detection: public entities, sensitive entities, aliases.

Three lists of public entities come with the package (`PUBLIC_LISTS`); none is used unless it is
switched on by name.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path

from uedp.corpus.readers import csv_records
from uedp.corpus.records import blank, listed, quoted
from uedp.corpus.source import Source
from uedp.entities.canonical import canonical, strict_form
from uedp.entities.categories import BASE
from uedp.entities.words import fold
from uedp.errors import UserError

# Name -> what it holds; each is a file in `public/`.
PUBLIC_LISTS: Mapping[str, str] = {
    "countries": "countries, continents and nationalities",
    "currencies": "names, codes and symbols of currencies",
    "months": "months and weekdays",
}


@dataclass(frozen=True)
class PublicList:
    """A list of public entities that comes with the package."""

    entries: tuple[str, ...]
    version: str

    def __str__(self) -> str:
        return f"version {self.version}, {len(self.entries)} entries"


@cache
def public_list(name: str) -> PublicList:
    """The shipped list of that name."""
    if name not in PUBLIC_LISTS:
        raise UserError(
            f"`public_lists={name!r}`: no such list; choose among {', '.join(PUBLIC_LISTS)}"
        )
    text = files(__package__).joinpath("public", f"{name}.txt").read_text(encoding="utf-8")
    first, *lines = text.splitlines()
    rows = (line.split(";") for line in lines if not line.startswith("#"))
    entries = dict.fromkeys(entry.strip() for row in rows for entry in row)
    return PublicList(tuple(entries), first.removeprefix("# version "))


@dataclass(frozen=True)
class Lists:
    """`public`: entity -> reason. `sensitive`: entity -> category. `aliases`: alias -> entity.

    `shipped` names public lists of the package. Theirs give way: to the deny-list, and wherever a
    detector takes the same words for a person (Jordan, April).
    """

    public: Mapping[str, str] = field(default_factory=dict)
    sensitive: Mapping[str, str] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    shipped: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for entry in (*self.public, *self.sensitive, *self.aliases, *self.aliases.values()):
            if _is_blank(entry):
                raise UserError(f"{entry!r}: a list entry without a visible character; drop it")
        sensitive = {canonical(entity): entity for entity in self.sensitive}
        for entity in self.public:
            if canonical(entity) in sensitive:
                raise UserError(
                    f"{quoted(entity, 24)} is on the allow-list and, as "
                    f"{quoted(sensitive[canonical(entity)], 24)}, "
                    "on the deny-list; take it off one of them"
                )
        object.__setattr__(self, "shipped", tuple(sorted(set(self.shipped))))
        for name in self.shipped:
            public_list(name)

    def with_more(self, more: "Lists") -> "Lists":
        """Both together; an entry of both keeps the reason, category or name that `more` gives."""
        return Lists(
            public={**self.public, **more.public},
            sensitive={**self.sensitive, **more.sensitive},
            aliases={**self.aliases, **more.aliases},
            shipped=(*self.shipped, *more.shipped),
        )

    def shipped_forms(self) -> frozenset[str]:
        """The strict forms that the shipped lists make public."""
        sensitive = {canonical(entity) for entity in self.sensitive}
        sensitive |= {
            canonical(a) for a, name in self.aliases.items() if canonical(name) in sensitive
        }
        return frozenset(
            strict_form(entry)
            for name in self.shipped
            for entry in public_list(name).entries
            if canonical(entry) not in sensitive
        )


def read_lists(
    allow: Path | str | None = None,
    deny: Path | str | None = None,
    aliases: Path | str | None = None,
    shipped: Iterable[str] = (),
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
                f"{deny}: unknown category {quoted(category)} of {quoted(entity, 24)}; "
                f"choose among {', '.join(BASE)}"
            )
    return Lists(
        public=_pairs(allow, "entity", "reason"),
        sensitive=sensitive,
        aliases=_pairs(aliases, "alias", "entity"),
        shipped=tuple(shipped),
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
            raise UserError(
                f"{path}:{number}: {quoted(entry, 24)} is listed twice, differently; keep one"
            )
    if not pairs:
        raise UserError(f"{path}: has no entries; add some under `{key},{value}`, or omit the file")
    return pairs
