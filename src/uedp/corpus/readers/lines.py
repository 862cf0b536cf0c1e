"""Plain text: one text per line, and nobody who wrote it."""

from collections.abc import Iterator

from uedp.corpus.readers.base import OnError, register_reader, reported_to
from uedp.corpus.records import Columns, blank, sentence_from
from uedp.corpus.sentence import Sentence
from uedp.corpus.source import Source


# without its suffix: users of a private text must not be formed at random unless that is asked for
@register_reader("txt", has_users=False)
def read_lines(source: Source, columns: Columns, on_error: OnError) -> Iterator[Sentence]:
    for number, line in source.lines():
        with reported_to(on_error):
            text = source.decoded(number, line).strip()
            if not blank(text):
                yield sentence_from(f"{source}:{number}", {"text": text}, Columns(user=None))
