"""CoNLL column files."""

import re
from collections.abc import Iterator, Sequence
from itertools import chain

from uedp.corpus.readers.base import OnError, register_reader, reported_to
from uedp.corpus.records import Columns, blank, quoted
from uedp.corpus.sentence import Sentence, Span
from uedp.corpus.source import Source
from uedp.errors import UserError

_DOCSTART = re.compile(rb"-DOCSTART-(?=[ \t]|$)")


@register_reader("conll", has_sentences=True, numbers_users=True)
def read_conll(source: Source, columns: Columns, on_error: OnError) -> Iterator[Sentence]:
    """Column files: token first, tag last; a blank line ends a sentence, -DOCSTART- starts a user.

    IOB1 and IOB2 decode alike: `B-` opens an entity, and so does `I-` after another type. A
    sentence with a bad line is left out as a whole.
    """
    user, documents = "", 0
    layout = _Layout()
    tokens: list[tuple[str, str]] = []
    invalid = False  # an error of the sentence was reported; its other lines are skipped
    for number, raw in chain(source.lines(), [(0, b"")]):
        line = raw.strip(b" \t\r\n")  # no other white space: a token may consist of it
        if line and not _DOCSTART.match(line):
            if invalid:
                continue
            where = f"{source}:{number}"
            invalid = True
            with reported_to(on_error):
                tokens.append(layout.token_and_tag(where, source.decoded(number, line)))
                if not user and columns.user is not None:
                    raise UserError(
                        f"{where}: a sentence before any -DOCSTART- line; add one per user, "
                        "or use `assign_users=...`"
                    )
                invalid = False
            continue
        if tokens and not invalid:
            sentence = _conll_sentence(user, tokens)
            if blank(sentence.text):
                on_error(UserError(f"{where}: the sentence ends without visible text; drop it"))
            else:
                yield sentence
        tokens, invalid = [], False
        if line:
            documents += 1
            user = f"doc-{documents:05d}"


class _Layout:
    """The separator and the number of fields of a column file, taken from its first token line."""

    def __init__(self) -> None:
        self._separator = ""
        self._width = 0

    def token_and_tag(self, where: str, line: str) -> tuple[str, str]:
        separator = self._separator or ("\t" if "\t" in line else " ")
        fields = line.split(separator)
        if separator == " ":  # columns may be padded; between tabs an empty field counts
            fields = [field for field in fields if field]
        if len(fields) < 2:
            raise UserError(f"{where}: one field; a token and its tag are needed")
        if self._width and len(fields) != self._width:
            raise UserError(
                f"{where}: {len(fields)} fields, the lines before have {self._width}; "
                "separate them by tabs if a token holds a blank"
            )
        token, tag = fields[0], fields[-1]
        prefix, dash, kind = tag.partition("-")
        if tag != "O" and not (dash and kind and prefix in ("B", "I")):
            raise UserError(
                f"{where}: tag {quoted(tag)} is neither O nor B-TYPE or I-TYPE; "
                "is this IOB1 or IOB2?"
            )
        self._separator, self._width = separator, len(fields)
        return token, tag


def _conll_sentence(user: str, tokens: Sequence[tuple[str, str]]) -> Sentence:
    text = " ".join(token for token, _ in tokens)
    marks: list[Span] = []
    position, kind, start, end = 0, "", 0, 0
    for token, tag in (*tokens, ("", "O")):
        prefix, _, tag_kind = tag.partition("-")
        if kind and (tag_kind != kind or prefix == "B"):
            marks.append(Span(start, end, kind))
            kind = ""
        if tag_kind and not kind:
            kind, start = tag_kind, position
        end = position + len(token)
        position = end + 1
    return Sentence(user, text, None, tuple(marks))
