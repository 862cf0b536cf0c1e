"""One JSON text: an array of objects, or an object that holds such an array."""

import json
from collections.abc import Iterator
from typing import Any, TextIO

from uedp.corpus.readers.base import OnError, register_reader, reported_to
from uedp.corpus.records import Columns, listed, sentence_from
from uedp.corpus.sentence import Sentence
from uedp.corpus.source import Source
from uedp.errors import UserError
from uedp.strict import DECODER, DuplicateKeyError

_CHUNK = 1 << 16  # characters read at once
# An error this close to the end of what was read may only mean that the rest is missing: the
# longest value that fails as a whole is a pair of \uXXXX escapes.
_UNSURE = 16
_NUMBER = 3  # how much of a number may be missing behind what is a number already: `1` of `1e+5`
_BLANKS = " \t\r\n"


@register_reader("json", ".json")
def read_json(source: Source, columns: Columns, on_error: OnError) -> Iterator[Sentence]:
    for where, record in json_records(source):
        with reported_to(on_error):
            if not isinstance(record, dict):
                raise UserError(f"{where}: not an object but {type(record).__name__}")
            yield sentence_from(where, record, columns)


@register_reader("presidio-research", has_sentences=True, numbers_users=True)
def read_presidio_research(
    source: Source, columns: Columns, on_error: OnError
) -> Iterator[Sentence]:
    """presidio-research's JSON array of texts with character spans; each record is its own user."""
    for number, (where, record) in enumerate(json_records(source), 1):
        with reported_to(on_error):
            if not isinstance(record, dict):
                raise UserError(f"{where}: not an object; each needs `full_text` and `spans`")
            fields = {**record, "user": f"record-{number:06d}"}
            yield sentence_from(where, fields, Columns(text="full_text", marks="spans"))


def json_records(source: Source) -> Iterator[tuple[str, Any]]:
    """The elements of the array, each with its place for errors; one is held at a time.

    Of an object, the array is the one value that is an array with an object in first place.
    """
    with source.characters() as stream:
        text = _Text(source, stream)
        opening = text.next_character()
        if opening == "[":
            yield from _elements(source, text)
        elif opening == "{":
            yield from _elements_of_value(source, text)
        elif opening:
            raise UserError(f"{source}: not a JSON array of objects; check `reader=...`")
        if text.next_character():
            raise UserError(
                f"{source}:{text.line}: more after the end of the JSON; if every line is an "
                "object of its own, use `reader='jsonl'`"
            )


def _elements(source: Source, text: "_Text") -> Iterator[tuple[str, Any]]:
    """Behind the opening bracket of an array: its elements, up to the closing bracket."""
    if text.skip("]"):
        return
    number = 0
    while True:
        number += 1
        where = f"{source}: record {number}"
        yield where, text.value(where)
        if text.skip("]"):
            return
        if not text.skip(","):
            raise text.broken(where, "a comma or ] is missing")


def _elements_of_value(source: Source, text: "_Text") -> Iterator[tuple[str, Any]]:
    """Behind the opening brace of an object: the elements of its array of objects."""
    names: list[str] = []
    found = False
    while not text.skip("}"):
        if names and not text.skip(","):
            raise text.broken(str(source), "a comma or } is missing")
        name = text.value(str(source))
        if not isinstance(name, str) or not text.skip(":"):
            raise text.broken(str(source), "a name and a colon are needed")
        names.append(name)
        if not text.skip("["):
            text.value(str(source))
        elif text.starts_with("{"):
            if found:
                raise UserError(
                    f"{source}: holds two arrays of objects, one in {listed([name])}; leave one"
                )
            found = True
            yield from _elements(source, text)
        else:
            for _ in _elements(source, text):
                pass
    if not found:
        raise UserError(
            f"{source}: an object without an array of objects, with {listed(names)}; "
            "if it is a single record, use `reader='jsonl'`"
        )


class _Text:
    """JSON text read in chunks, and a place in it."""

    def __init__(self, source: Source, stream: TextIO) -> None:
        self._source = source
        self._stream = stream
        self._held = ""
        self._at = 0
        self._ended = False
        self.line = 1

    def skip(self, character: str) -> bool:
        """Move behind the next character if it is this one."""
        found = self.starts_with(character)
        self._at += found
        return found

    def starts_with(self, character: str) -> bool:
        self._to_value()
        return self._held[self._at : self._at + 1] == character

    def next_character(self) -> str:
        """Move behind the next character that is not white space; empty at the end."""
        self._to_value()
        self._at += 1
        return self._held[self._at - 1 : self._at]

    def value(self, where: str) -> Any:
        """Move behind the next value."""
        self._to_value()
        size = _CHUNK
        while True:
            try:
                value, end = DECODER.raw_decode(self._held, self._at)
            except json.JSONDecodeError as error:
                cut = error.msg.startswith("Unterminated string")
                if not self._ended and (cut or error.pos >= len(self._held) - _UNSURE):
                    self._read(size)
                    size *= 2  # so that a long value is tried few times
                    continue
                raise self.broken(where, error.msg, error.pos) from None
            except RecursionError:
                raise UserError(f"{where}: JSON nested too deeply; flatten it") from None
            except DuplicateKeyError as error:
                raise UserError(f"{where}: {error}") from None
            except ValueError:  # the interpreter's limit on digits, which guards against slow input
                raise UserError(
                    f"{where}: a number of thousands of digits; store it as a string"
                ) from None
            if end < len(self._held) - _NUMBER or self._ended:
                self.line += self._held.count("\n", self._at, end)
                self._at = end
                return value
            self._read(size)  # a number may go on

    def broken(self, where: str, what: str, at: int | None = None) -> UserError:
        line = self.line + self._held.count("\n", self._at, at or self._at)
        return UserError(f"{where}: broken JSON on line {line} ({what}); correct it")

    def _to_value(self) -> None:
        while True:
            while self._held[self._at : self._at + 1] in _BLANKS and self._at < len(self._held):
                self.line += self._held[self._at] == "\n"
                self._at += 1
            if self._at < len(self._held) or self._ended:
                return
            self._read(_CHUNK)

    def _read(self, size: int) -> None:
        more = self._stream.read(size)
        self._ended = not more
        self._held = self._held[self._at :] + more
        self._at = 0
