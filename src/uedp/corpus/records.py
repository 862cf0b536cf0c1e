"""One record: its fields checked, and made into a sentence."""

import json
import math
import re
import reprlib
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from difflib import get_close_matches
from typing import Any

from uedp.corpus.sentence import Sentence, Span
from uedp.errors import UserError
from uedp.strict import DuplicateKeyError, parse_json

_WORD = re.compile(r"\w")
# Unicode's Default_Ignorable_Code_Point, less those in Cf: characters that are not displayed.
_IGNORABLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\ufff0-\ufff8"
    "\U000e0000-\U000e0fff]"
)


@dataclass(frozen=True)
class Columns:
    """The names of the fields of a record. `user=None`: the records carry no user."""

    user: str | None = "user"
    text: str = "text"
    label: str | None = None
    marks: str | None = None

    def require(self, where: str, present: Sequence[str]) -> list[str]:
        """The columns to read; a missing or ambiguous one is an error before the first row."""
        self.check(where, present)
        chosen = dict.fromkeys(filter(None, astuple(self)))
        for column in chosen:
            if present.count(column) > 1:
                raise UserError(f"{where}: two columns are called {column!r}; rename one of them")
        return list(chosen)

    def check(self, where: str, present: Collection[str]) -> None:
        """Refuse a record without one of the columns, and say which to name instead."""
        chosen = {name: column for name, column in asdict(self).items() if column is not None}
        missing = {name: column for name, column in chosen.items() if column not in present}
        if not missing:
            return
        taken = set(chosen.values())
        others = [name for name in present if name not in taken]
        remedies = [
            f"`{parameter}={_likely(parameter, column, others) or '...'}`"
            for parameter, column in missing.items()
        ]
        random = " (or use `assign_users=...` to form users at random)" if "user" in missing else ""
        raise UserError(
            f"{where}: no column {' or '.join(map(repr, missing.values()))}; "
            f"the columns are {listed(present)}; name {'them' if len(missing) > 1 else 'it'} with "
            f"{', '.join(remedies)}{random}"
        )


def sentence_from(where: str, fields: Mapping[str, Any], columns: Columns) -> Sentence:
    """The sentence of a record; `where` (file and line) begins the errors.

    Guarantees:
      - the text is not blank, and unless `columns.user` is None there is a user
      - names that look alike are one user (`user_name`)
      - every mark lies within the text
      - all of it can be written as UTF-8
    """
    columns.check(where, fields)
    text = _text(where, fields[columns.text], columns.text)
    user = ""
    if columns.user is not None:
        user = _user(where, fields[columns.user], columns.user)
    label = None
    if columns.label is not None:
        label = _label(where, fields[columns.label], columns.label)
    marks: tuple[Span, ...] = ()
    if columns.marks is not None:
        marks = _marks(where, fields[columns.marks], text)
    return Sentence(user, text, label, marks)


def json_value(where: str, text: str | bytes) -> Any:
    """A JSON value; what is wrong with it is an error that begins with `where`."""
    try:
        return parse_json(text)
    except DuplicateKeyError as error:
        raise UserError(f"{where}: {error}") from None
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if error.lineno > 1 else ""
        raise UserError(
            f"{where}: broken JSON at {line}column {error.colno} ({error.msg}); correct it"
        ) from None
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: invalid UTF-8 at byte {error.start}; convert it") from None
    except ValueError as error:
        if "nested" in str(error):
            raise UserError(f"{where}: JSON nested too deeply; flatten it") from None
        # the interpreter's limit on digits, which guards against slow input
        raise UserError(f"{where}: a number of thousands of digits; store it as a string") from None


def blank(text: str) -> bool:
    """Whether a text has no visible character: white space, controls, zero-width characters."""
    if _WORD.search(text):  # almost always, and at once
        return False
    return all(unicodedata.category(character)[0] in "CMZ" for character in text)


def user_name(name: str) -> str:
    """The canonical form of a user's name.

    Guarantees:
      - equal for names that differ only in Unicode composition or compatibility forms, in
        characters that are not displayed (zero-width, format, control characters, variation
        selectors), or in the amount of white space around or inside them
      - idempotent; blank for a blank name
    """
    if name.isascii() and name.isprintable() and "  " not in name and name == name.strip():
        return name
    while True:
        # white space first: some of it is control characters, whose removal would join words
        plain = " ".join(unicodedata.normalize("NFKC", name).split())
        shown = _IGNORABLE.sub("", plain)
        plain = "".join(c for c in shown if unicodedata.category(c) not in ("Cc", "Cf"))
        if plain == name:  # characters that are now adjacent may compose
            return name
        name = plain


_SYNONYMS = {
    "user": "author user_id userid user_name username from sender from_id sender_id author_id "
    "speaker writer account screen_name handle nick member customer customer_id who name id",
    "text": "body message content msg sentence comment post full_text utterance review description",
    "label": "class category topic target",
    "marks": "spans entities annotations",
}


def _likely(parameter: str, column: str, present: Sequence[str]) -> str:
    """The column that is probably meant, quoted; empty if none is."""
    if parameter == "user" and column != "user" and "user" in present:
        return "'user'"
    plain = {re.sub(r"\W+", "_", name.strip().casefold()): name for name in reversed(present)}
    for name in (column.casefold(), parameter, *_SYNONYMS[parameter].split()):
        if name in plain:
            return repr(plain[name])
    close = get_close_matches(column.casefold(), plain, 1, 0.7)
    return repr(plain[close[0]]) if close else ""


_SHOWN = 30  # characters of a name that an error may print
_NAME = re.compile(r"[^\W\d][\w ./:()#&+?%\[\]-]*")


def quoted(value: str, most: int = 12) -> str:
    """The beginning of a value, quoted: errors may not print a private message."""
    return repr(value) if len(value) <= most else f"{value[: most - 3]!r}..."


def listed(names: Iterable[str], most: int = 20) -> str:
    """Names on one line; what is no name but text, as in a file without a header, is not shown.

    Where one of them is no name, the others may be short texts: then only single words are shown.
    """
    names = list(names)
    most_words = 3 if all(map(_is_name, names)) else 1
    shown = [
        name if _is_name(name) and len(name.split()) <= most_words else f"({len(name)} characters)"
        for name in names
    ]
    return ", ".join([*shown[:most], *(["..."] if len(shown) > most else [])])


def _is_name(text: str) -> bool:
    """Whether a text may be the name of a column: a few words, without a long number."""
    return (
        len(text) <= _SHOWN
        and len(text.split()) <= 3
        and _NAME.fullmatch(text) is not None
        and not re.search(r"\d{4}", text)
    )


_QUOTED = re.compile(r"""(['"]).*\1""")


def first_line(error: object) -> str:
    """The first line of an error from a library, shortened, without what it quotes."""
    line = (str(error).splitlines() or [type(error).__name__])[0]
    found = _QUOTED.search(line)
    if found and len(found[0]) > 14:
        line = line[: found.start()] + "..." + line[found.end() :]
    return line[:160]


def _text(where: str, value: Any, column: str) -> str:
    if value is not None and not isinstance(value, str):
        raise UserError(
            f"{where}: {column!r} holds {_shown(value)}, not text; choose a column with `text=...`"
        )
    text = _encodable(where, value or "")
    if blank(text):
        raise UserError(
            f"{where}: empty text in {column!r}; drop the row, or use `skip_invalid=True`"
        )
    return text


def _user(where: str, value: Any, column: str) -> str:
    if _missing(value):
        value = ""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise UserError(
            f"{where}: {column!r} holds {_shown(value)}; a user is a string or a whole number"
        )
    name = user_name(_encodable(where, str(value)))
    if blank(name):
        raise UserError(
            f"{where}: null user in {column!r}; name the user, drop the row, "
            "or use `skip_invalid=True`"
        )
    return name


def _label(where: str, value: Any, column: str) -> str | None:
    if _missing(value) or value == "":
        return None
    if not isinstance(value, str | int | float):
        raise UserError(
            f"{where}: {column!r} holds {_shown(value)}; a label is a string or a number"
        )
    return _encodable(where, str(value))


def _marks(where: str, value: Any, text: str) -> tuple[Span, ...]:
    if isinstance(value, str):  # a CSV cell holds them as JSON
        value = json_value(f"{where}: marks", value) if value.strip() else []
    if value is None:
        return ()
    if not isinstance(value, list):
        raise UserError(
            f"{where}: marks are {_shown(value)}; a list of `start`, `end`, `label` is expected"
        )
    return tuple(sorted(_mark(where, mark, text) for mark in value))


_KEYS = (("start", "start_position"), ("end", "end_position"), ("label", "entity_type"))


def _mark(where: str, mark: Any, text: str) -> Span:
    fields = mark if isinstance(mark, dict) else {}
    start, end, label = (
        next((fields[name] for name in names if name in fields), None) for names in _KEYS
    )
    if not (type(start) is type(end) is int and isinstance(label, str) and label):
        raise UserError(
            f"{where}: a mark needs `start` and `end`, whole numbers, and a `label`, "
            f"not {_shown(mark)}"
        )
    if not 0 <= start < end <= len(text):
        raise UserError(
            f"{where}: mark {start}:{end} lies outside its text of {len(text)} "
            "characters; count in Unicode characters from 0, the end exclusive"
        )
    return Span(start, end, _encodable(where, label))


def _missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _encodable(where: str, text: str) -> str:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise UserError(
                f"{where}: half a surrogate pair, which no UTF-8 file can hold; correct the text"
            ) from None
    return text


def _shown(value: Any) -> str:
    """A value of a wrong type, for an error: numbers, but no text."""
    kind = type(value).__name__
    if isinstance(value, dict):
        return f"an object with {listed(map(str, value)) or 'no fields'}"
    if isinstance(value, str):
        return f"a text of {len(value):,} characters"
    if isinstance(value, bytes | list | tuple):
        return f"{len(value):,} {'bytes' if isinstance(value, bytes) else 'elements'} ({kind})"
    return f"{reprlib.repr(value)} ({kind})"
