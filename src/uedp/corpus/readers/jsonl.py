"""JSON lines: one object per line."""

from collections.abc import Iterator

from uedp.corpus.readers.base import OnError, register_reader, reported_to
from uedp.corpus.records import Columns, json_value, sentence_from
from uedp.corpus.sentence import Sentence
from uedp.corpus.source import Source
from uedp.errors import UserError

_OPENINGS = (b"[", b"{", b"[{")  # how an array or object over several lines begins


@register_reader("jsonl", ".jsonl", ".ndjson")
def read_jsonl(source: Source, columns: Columns, on_error: OnError) -> Iterator[Sentence]:
    first = True
    for number, line in source.lines():
        if not line.strip():
            continue
        where = f"{source}:{number}"
        if first and line.strip() in _OPENINGS:
            raise UserError(f"{where}: JSON over several lines; use `reader='json'`")
        first = False
        with reported_to(on_error):
            fields = json_value(where, source.decoded(number, line).rstrip())
            if not isinstance(fields, dict):
                hint = "; use `reader='json'` for a JSON array" if isinstance(fields, list) else ""
                raise UserError(f"{where}: a JSON {type(fields).__name__}, not an object{hint}")
            yield sentence_from(where, fields, columns)
