"""Readers: files of text with users become a stream of sentences. One module per format.

Every reader names the file and the line or record in its errors, and holds one record in memory at
a time.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from uedp.corpus.readers import (
    conll,  # noqa: F401
    delimited,  # noqa: F401
    json_array,  # noqa: F401
    jsonl,  # noqa: F401
    lines,  # noqa: F401
    mail,  # noqa: F401
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
from uedp.corpus.readers.table import read_table
from uedp.corpus.records import Columns, listed
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
    "no_sentences",
    "open_source",
    "raise_error",
    "read_part",
    "read_sentences",
    "read_table",
]

READERS: Mapping[str, Reader] = {name: each.read for name, each in FORMATS.items()}

# Readers whose records never name a user, so that users must be assigned.
WITHOUT_USERS = frozenset(name for name, each in FORMATS.items() if not each.has_users)

# Readers whose records need no splitting.
WITH_SENTENCES = frozenset(name for name, each in FORMATS.items() if each.has_sentences)

_BY_SUFFIX = {suffix: name for name, each in FORMATS.items() for suffix in each.suffixes}
_OF_DATA_SETS = ("state.json", "dataset_dict.json")
_OTHERS = {
    ".xls": "save it as .xlsx or .csv",
    ".ods": "save it as .xlsx or .csv",
    ".zip": "unpack it, and name a file inside",
    ".pst": "export it as mbox",
    ".msg": "export it as .eml or mbox",
}


def open_source(
    path: Path, reader: str = "auto", encoding: str | None = None, delimiter: str | None = None
) -> tuple[Source, str]:
    """A file or a folder, and the reader for it.

    Guarantees:
      - the files of a folder that no reader takes as a whole are read in the order of their names
    """
    source = Source(path, encoding, delimiter)
    kind = choose_reader(reader, source)
    if path.is_dir() and not FORMATS[kind].reads_folders:
        source.read_as(_visible_files(path))
    return source, kind


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
        return "eml" if holds_mail(source.path) else _reader_of_files(source.path)
    if source.suffix in _OTHERS:
        raise UserError(f"{source}: this format has no reader; {_OTHERS[source.suffix]}")
    if source.suffix not in _BY_SUFFIX:
        raise UserError(f"{source}: no known suffix; name the format by `reader=...`: {known}")
    return _BY_SUFFIX[source.suffix]


def _reader_of_files(folder: Path) -> str:
    """The reader of all files in a folder; that of data sets if none is of another format."""
    paths = [path for path in sorted(folder.iterdir()) if path.is_file() and _is_visible(path)]
    if any(path.suffix == ".arrow" or path.name in _OF_DATA_SETS for path in paths):
        return "hf"
    formats = {path: _BY_SUFFIX.get(Source(path).suffix) for path in paths}
    known = sorted({kind for kind in formats.values() if kind})
    if not known:
        return "hf"
    if len(known) > 1:
        raise UserError(
            f"{folder}: holds files of several formats, {', '.join(known)}; name one of the files, "
            "or make a folder for each format"
        )
    for path, kind in formats.items():
        if kind is None:
            raise UserError(
                f"{path}: is not {known[0]} like other files of its folder; move it away, or use "
                f"`reader={known[0]!r}` to read it as that"
            )
    return known[0]


def _visible_files(folder: Path) -> Sequence[Path]:
    """The files of a folder by name, without those that are hidden or say that a job is done."""
    paths = [path for path in sorted(folder.iterdir()) if _is_visible(path)]
    if inner := [path.name for path in paths if not path.is_file()]:
        raise UserError(
            f"{folder}: holds {listed(inner, 3)}, not a file; only files are read, not the folders "
            "inside: move them away, or name one of them"
        )
    if not paths:
        raise UserError(f"{folder}: holds no files; check the path")
    return paths


def _is_visible(path: Path) -> bool:
    return not path.name.startswith((".", "_"))


def read_part(
    source: Source, reader: str, columns: Columns, on_error: OnError, in_folder: bool
) -> Iterator[Sentence]:
    """The sentences of one file.

    Guarantees:
      - users that a reader numbers are not those of another file in the folder
    """
    sentences = READERS[reader](source, columns, on_error)
    if in_folder and FORMATS[reader].numbers_users:
        name = source.path.name
        return (replace(sentence, user=f"{name} {sentence.user}") for sentence in sentences)
    return sentences


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
        sentences = read_table(source, columns, on_error)
    else:
        if not isinstance(source, Source):
            source, reader = open_source(Path(source), reader)
        kind = choose_reader(reader, source)
        if source.files:
            parts = (read_part(part, kind, columns, on_error, True) for part in source.parts())
            sentences = chain.from_iterable(parts)
        else:
            sentences = READERS[kind](source, columns, on_error)
    empty = True
    try:
        for sentence in sentences:
            empty = False
            yield sentence
    finally:
        if isinstance(source, Source):
            source.close()
    if empty:
        raise no_sentences(source)


def no_sentences(source: Source | TableSource) -> UserError:
    return UserError(f"{source}: holds no sentences; check the data and `reader=...`")
