"""CSV with any delimiter, and AG's news."""

import csv
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import chain

from uedp.corpus.readers.base import OnError, raise_error, register_reader, reported_to
from uedp.corpus.records import Columns, quoted, sentence_from
from uedp.corpus.sentence import Sentence
from uedp.corpus.source import Source
from uedp.errors import UserError

csv.field_size_limit(sys.maxsize)  # the default of 128 KiB is shorter than a long e-mail thread

_DECLARED = re.compile(rb"sep=([,;|\t])", re.IGNORECASE)  # Excel writes it above the header
_COMMON = (",", ";", "\t", "|")  # the delimiters that are recognised, in order of preference


@register_reader("csv", ".csv", ".tsv")
def read_csv(source: Source, columns: Columns, on_error: OnError) -> Iterator[Sentence]:
    for number, fields in csv_records(source, columns.require, on_error):
        with reported_to(on_error):
            yield sentence_from(f"{source}:{number}", fields, columns)


_AG_HEADERS = (
    ["label", "text"],
    ["class index", "title", "description"],
    ["class", "title", "description"],
)


@register_reader("ag", has_users=False)
def read_ag(source: Source, columns: Columns, on_error: OnError) -> Iterator[Sentence]:
    """AG's news: `label,text`, or the original `class,title,description`; the latter also bare."""
    rows = _csv_rows(source, on_error, ",")
    first = next(rows, None)
    if first is None:
        return
    header = [name.strip().lower() for name in first[1]]
    expected = len(header) if header in _AG_HEADERS else 3
    for number, row in rows if header in _AG_HEADERS else chain([first], rows):
        where = f"{source}:{number}"
        with reported_to(on_error):
            if len(row) != expected:
                raise UserError(
                    f"{where}: {len(row)} fields, AG has {expected}; quote those with commas"
                )
            if not row[0].strip().isdecimal():
                raise UserError(f"{where}: class {quoted(row[0])} is not a number; AG's are 1 to 4")
            fields = {"label": row[0], "text": " ".join(row[1:])}
            yield sentence_from(where, fields, Columns(user=None, label="label"))


def _csv_rows(
    source: Source, on_error: OnError, delimiter: str = ""
) -> Iterator[tuple[int, list[str]]]:
    """Rows with the line they begin on; an error in the first, perhaps the header, is raised.

    The delimiter is, in this order: the source's own, that of a first line `sep=;` (as written by
    Excel), the one given here, or the common one that divides the first line into most fields.
    """
    line = 0
    undecodable: list[UserError] = []  # errors of the current row

    def text(numbered: tuple[int, bytes]) -> str:
        nonlocal line
        line, raw = numbered
        try:
            return source.decoded(line, raw)
        except UserError as error:
            undecodable.append(error)
            return raw.decode(errors="replace")  # not used, but shows where the row ends

    report: OnError = raise_error
    with closing(source.lines()) as lines:  # or an error would keep the file open
        opening = next((each for each in lines if each[1].strip()), None)
        if opening is None:
            return
        line = opening[0] - 1
        declared = _DECLARED.fullmatch(opening[1].strip())
        numbered: Iterable[tuple[int, bytes]] = lines
        if not declared:
            numbered = chain([opening], lines)
        else:
            line += 1
        delimiter = source.delimiter or (
            declared[1].decode() if declared else delimiter or _sniffed(source, opening[1])
        )
        # strict: a stray quote is an error, not a field that silently swallows the rest of the file
        rows = csv.reader(map(text, numbered), delimiter=delimiter, strict=True)
        while True:
            first = line + 1
            undecodable.clear()
            try:
                row = next(rows, None)
            except csv.Error as error:
                ends = f" on line {line}" if line > first else ""
                invalid = UserError(f"{source}:{first}: {error}{ends}; correct the quoting")
                # only after a row of one line is it clear where the next row begins
                (raise_error if ends else report)(invalid)
                continue
            if row is None:
                return
            if undecodable:
                report(undecodable[0])
            elif row:
                yield first, row
                report = on_error


def _sniffed(source: Source, line: bytes) -> str:
    """The common delimiter that divides a line into most fields."""
    if source.suffix == ".tsv" and b"\t" in line:
        return "\t"
    text = line.decode(errors="replace").splitlines()[:1]
    return max(_COMMON, key=lambda each: len(next(csv.reader(text, delimiter=each), [])))


def csv_records(
    source: Source,
    check_header: Callable[[str, list[str]], object],
    on_error: OnError = raise_error,
) -> Iterator[tuple[int, dict[str, str]]]:
    """Numbered rows of a CSV file with a header, as fields by name.

    Args:
        check_header: called with the place and the names in the header; raises if one is missing
    """
    rows = _csv_rows(source, on_error)
    header = next(rows, None)
    if header is None:
        return
    names = [name.strip() for name in header[1]]
    try:
        check_header(f"{source}:{header[0]}", names)
    except UserError:
        other = _sniffed(source, "".join(names).encode())
        if len(names) > 1 or other not in names[0]:
            raise
        shown = "tab" if other == "\t" else other
        raise UserError(
            f"{source}:{header[0]}: a single column; its fields seem to be separated by "
            f"{shown!r}: use `delimiter={shown!r}`"
        ) from None
    for number, row in rows:
        with reported_to(on_error):
            if len(row) != len(names):
                raise UserError(
                    f"{source}:{number}: {len(row)} fields, the header has {len(names)}; "
                    "quote fields that hold the delimiter or line ends"
                )
            yield number, dict(zip(names, row, strict=True))
