"""Readers: files of text with users become a stream of sentences. One module per format.

Every reader names the file and the line or record in its errors, and holds one record in memory at
a time.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from uedp.corpus.readers import (
    conll,  # noqa: F401
    delimited,  # noqa: F401
    json_array,  # noqa: F401
    jsonl,  # noqa: F401
    lines,  # noqa: F401
    mail,  # noqa: F401
    table,
    xlsx,  # noqa: F401
)
from uedp.corpus.readers.base import (
    FORMATS,
    OnError,
    Reader,
    SkippedRecords,
    raise_error,
)
from uedp.corpus.readers.delimited import csv_records
from uedp.corpus.readers.mail import holds_mail
from uedp.corpus.records import Columns
from uedp.corpus.sentence import Sentence
from uedp.corpus.source import Source, TableSource
from uedp.errors import UserError, did_you_mean

__all__ = [
    "READERS",
    "WITHOUT_USERS",
    "WITH_SENTENCES",
    "OnError",
    "SkippedRecords",
    "choose_reader",
    "csv_records",
    "raise_error",
    "read_sentences",
]

READERS: Mapping[str, Reader] = {name: each.read for name, each in FORMATS.items()}

# Readers whose records never name a user, so that users must be assigned.
WITHOUT_USERS = frozenset(name for name, each in FORMATS.items() if not each.has_users)

# Readers whose records need no splitting.
WITH_SENTENCES = frozenset(name for name, each in FORMATS.items() if each.has_sentences)

_BY_SUFFIX = {suffix: name for name, each in FORMATS.items() for suffix in each.suffixes}
_OTHERS = {
    ".xls": "save it as .xlsx or .csv",
    ".ods": "save it as .xlsx or .csv",
    ".zip": "unpack it, and name a file inside",
    ".pst": "export it as mbox",
    ".msg": "export it as .eml or mbox",
}


def choose_reader(name: str, source: Source) -> str:
    """`name` if it is a reader; for `auto`, the reader of the file's suffix."""
    if name in READERS:
        return name
    known = ", ".join(sorted(READERS))
    if name != "auto":
        raise UserError(
            f"`reader={name!r}`: unknown reader; choose among {known}{did_you_mean(name, READERS)}"
        )
    if source.path.is_dir():
        return "eml" if holds_mail(source.path) else "hf"
    if source.suffix in _OTHERS:
        raise UserError(f"{source}: this format has no reader; {_OTHERS[source.suffix]}")
    if source.suffix not in _BY_SUFFIX:
        raise UserError(f"{source}: no known suffix; name the format by `reader=...`: {known}")
    return _BY_SUFFIX[source.suffix]


def read_sentences(
    source: Source | TableSource | Path | str,
    reader: str = "auto",
    columns: Columns = Columns(),  # noqa: B008 - frozen
    on_error: OnError = raise_error,
) -> Iterator[Sentence]:
    """The sentences of a source.

    Guarantees:
      - every sentence has text that is not blank and, unless `columns.user` is None, a user
      - every mark lies within its text
      - a record that breaks this goes to `on_error` with file, line and remedy
      - a source without sentences is an error
    """
    if isinstance(source, TableSource):
        sentences = table.read_table(source, columns, on_error)
    else:
        source = source if isinstance(source, Source) else Source(Path(source))
        sentences = READERS[choose_reader(reader, source)](source, columns, on_error)
    empty = True
    for sentence in sentences:
        empty = False
        yield sentence
    if empty:
        raise UserError(f"{source}: holds no sentences; check the data and `reader=...`")
