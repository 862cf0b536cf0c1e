"""Mail: mbox files, .eml files, folders of them, and Maildir.

The author is the address in `From`. Quoted replies, forwarded messages and signatures are left out
and counted: a quotation is the text of another user, whom a guarantee for the user who quotes does
not protect.
"""

import os
import re
from collections.abc import Iterator
from email import message_from_bytes, policy
from email.message import EmailMessage
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, cast

from uedp.corpus.readers.base import OnError, register_reader, reported_to
from uedp.corpus.records import Columns, blank, sentence_from
from uedp.corpus.sentence import Sentence
from uedp.corpus.source import Source
from uedp.errors import UserError

# `From `, a weekday and a time: ordinary text that begins a paragraph so has hardly both
_SEPARATOR = re.compile(rb"From .*\b(Mon|Tue|Wed|Thu|Fri|Sat|Sun)\b.*\d:\d\d")
_ESCAPED = re.compile(rb">+From ")


@register_reader("mbox", ".mbox")
def read_mbox(source: Source, columns: Columns, on_error: OnError) -> Iterator[Sentence]:
    """One file of messages, each after a line `From ADDRESS DATE`."""
    lines: list[bytes] = []
    began, after_blank = 0, True
    for number, line in source.lines():
        if after_blank and _SEPARATOR.match(line):
            if began:
                yield from _sentence(source, f"{source}:{began}", lines, columns, on_error)
            lines, began = [], number
        elif began:
            lines.append(line[1:] if _ESCAPED.match(line) else line)
        elif line.strip():
            raise UserError(
                f"{source}:{number}: an mbox begins with a line `From ADDRESS DATE`; "
                "check `reader=...`"
            )
        after_blank = not line.strip()
    if began:
        yield from _sentence(source, f"{source}:{began}", lines, columns, on_error)


@register_reader("eml", ".eml", reads_folders=True)
def read_eml(source: Source, columns: Columns, on_error: OnError) -> Iterator[Sentence]:
    """A message, or all messages in a folder and the folders inside, by name."""
    found = False
    for path in mail_files(source.path) if source.path.is_dir() else [source.path]:
        found = True
        yield from _sentence(source, str(path), [path.read_bytes()], columns, on_error)
    if not found:
        raise UserError(f"{source}: holds no .eml file and no Maildir; check the folder")


def mail_files(folder: Path) -> Iterator[Path]:
    """The .eml files below a folder, and the messages of every Maildir, in order."""
    for place, folders, names in os.walk(folder):
        folders.sort()
        maildir = Path(place).name in ("cur", "new") and (Path(place).parent / "cur").is_dir()
        for name in sorted(names):
            if name.lower().endswith(".eml") or (maildir and not name.startswith(".")):
                yield Path(place) / name


def holds_mail(folder: Path) -> bool:
    return next(mail_files(folder), None) is not None


def _sentence(
    source: Source, where: str, lines: list[bytes], columns: Columns, on_error: OnError
) -> Iterator[Sentence]:
    """The author's own text of a message; none if nothing of it is the author's."""
    with reported_to(on_error):
        try:
            message = message_from_bytes(b"".join(lines), policy=policy.default)
            fields = _fields(source, message, columns)
        except Exception as error:  # a malformed message can raise almost anything
            raise UserError(
                f"{where}: a malformed message ({type(error).__name__}); remove it, or use "
                "`skip_invalid=True`"
            ) from None
        if columns.user == "user" and not fields["user"]:
            raise UserError(
                f"{where}: no address in `From`; remove the message, or use `skip_invalid=True`"
            )
        if columns.text == "text" and blank(fields["text"]):
            source.dropped["messages without own text"] += 1
            return
        yield sentence_from(where, fields, columns)


def _fields(source: Source, message: EmailMessage, columns: Columns) -> dict[str, Any]:
    """`user` and `text`, and the headers that are asked for."""
    asked = (columns.user, columns.text, columns.label)
    headers = {name: str(message[name]) for name in asked if name and message[name] is not None}
    return {**headers, "user": _author(message), "text": own_text(source, _body(message))}


def _author(message: EmailMessage) -> str:
    found = [each for each in getattr(message["from"], "addresses", ()) if each.domain]
    return str(found[0].addr_spec).lower() if found else ""


def _body(message: EmailMessage) -> str:
    part = message.get_body(("plain", "html"))
    if part is None:
        return ""
    try:
        text = str(part.get_content())
    except LookupError:  # an unknown charset
        text = cast(bytes, part.get_payload(decode=True)).decode("latin-1")
    return _shown_text(text) if part.get_content_subtype() == "html" else text


_QUOTE = re.compile(r"\s*[A-Z]{0,3}\|?>")  # also `AB> ` and `|>`
_ATTRIBUTION = re.compile(
    r"(On\b.*\bwrote|In article\b.*\b(wrote|writes)|\S+@\S+.*\b(wrote|writes)"
    r"|Am\b.*\bschrieb\b.*|Le\b.*\ba écrit|El\b.*\bescribió):?\s*",
    re.DOTALL,
)
_SIGNATURE = re.compile(r"--\s*|_{20,}\s*")
_ORIGINAL = re.compile(
    r"\s*(-{2,}\s*(Original|Forwarded|Ursprüngliche)\b.*-{2,}|Begin forwarded message:)\s*",
    re.IGNORECASE,
)
_HEADER = re.compile(r"\s*\*?(From|Von|De):\*? .*")
_NEXT_HEADER = re.compile(r"\s*\*?(Sent|Date|To|Gesendet|Envoyé|Enviado):\*? .*")


def own_text(source: Source, text: str) -> str:
    """A message without quotations, forwarded messages and signature; what goes is counted.

    Guarantees:
      - no line that begins with `>` stays, nor does anything behind `-- ` on a line of its own
    """
    lines = text.replace("\r\n", "\n").split("\n")
    kept: list[str] = []
    for number, line in enumerate(lines):
        following = lines[number + 1] if number + 1 < len(lines) else ""
        if _SIGNATURE.fullmatch(line):
            source.dropped["signatures"] += 1
            break
        if _ORIGINAL.fullmatch(line) or (_HEADER.match(line) and _NEXT_HEADER.match(following)):
            source.dropped["forwarded or quoted messages"] += 1
            break
        if _QUOTE.match(line):
            source.dropped["quoted lines"] += 1 + _drop_attribution(kept)
        else:
            kept.append(line)
    if left := _drop_attribution(kept):  # an HTML message marks what it quotes otherwise
        source.dropped["quoted lines"] += left
    return "\n".join(kept).strip()


def _drop_attribution(kept: list[str]) -> int:
    """Drop the lines that introduce a quotation, such as `On Monday, Ann wrote:`; how many."""
    while kept and not kept[-1].strip():
        kept.pop()
    for size in (1, 2, 3):  # it may be wrapped
        if len(kept) >= size and _ATTRIBUTION.fullmatch("\n".join(kept[-size:])):
            del kept[-size:]
            return size
    return 0


_HIDDEN = frozenset({"script", "style", "title", "template", "blockquote"})
# fmt: off
_BREAKS = frozenset({
    "br", "p", "div", "li", "tr", "table", "pre", "hr", "ul", "ol", "h1", "h2", "h3", "h4", "h5",
    "h6",
})
# fmt: on


class _Shown(HTMLParser):
    """The text of an HTML message, without quotations."""

    _BREAKS = frozenset(
        [
            "br",
            "p",
            "div",
            "li",
            "tr",
            "table",
            "h1",
            "h2",
            "h3",
            "h4",
            "h5",
            "h6",
            "pre",
            "hr",
            "ul",
            "ol",
        ]
    )
    _HIDDEN = frozenset(["script", "style", "title", "template", "blockquote"])

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self._hidden: list[str] = []  # open tags, from the first that hides

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        quote = any(
            name == "class" and "gmail_quote" in (value or "") for name, value in attributes
        )
        if tag in _HIDDEN or quote or (self._hidden and tag == self._hidden[0]):
            if (tag == "blockquote" or quote) and not self._hidden:
                self.parts.append("\n> \n")  # counted as a quotation, with what introduces it
            self._hidden.append(tag)
        if tag in _BREAKS:
            self.parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        if tag in self._hidden:
            while self._hidden.pop() != tag:
                pass
        if tag in _BREAKS:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.parts.append(re.sub(r"\s+", " ", data))


def _shown_text(html: str) -> str:
    parser = _Shown()
    parser.feed(html)
    parser.close()
    text = re.sub(r"[ \t]*\n[ \t]*", "\n", "".join(parser.parts))
    return re.sub(r"\n{3,}", "\n\n", text).strip()
