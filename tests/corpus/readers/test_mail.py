import gzip
from email.message import EmailMessage

import pytest

from uedp.corpus.readers import SkippedRecords, choose_reader, read_sentences
from uedp.corpus.readers.mail import own_text
from uedp.corpus.records import Columns
from uedp.corpus.source import Source
from uedp.errors import UserError

SEPARATOR = "From ann@a.example Sat Jan  3 01:05:34 2026\n"


def message(body, author="Ann Lee <Ann@A.example>", subject="Lunch", html=None):
    made = EmailMessage()
    if author:
        made["From"] = author
    made["Subject"] = subject
    made.set_content(body)
    if html is not None:
        made.add_alternative(html, subtype="html")
    return made


def mbox(*bodies):
    return "\n".join(f"{SEPARATOR}From: {author}\n\n{body}\n" for author, body in bodies)


def read(path, **options):
    source = Source(path)
    found = [(s.user, s.text) for s in read_sentences(source, **options)]
    return found, dict(source.dropped)


def test_mbox(tmp_path):
    path = tmp_path / "x.mbox"
    path.write_text(
        mbox(
            ("Ann <ann@a.example>", "Hello.\n\n>From the start.\nFrom here on."),
            ("ben@b.example", "Thanks!\n\nOn Monday, Ann wrote:\n> Hello.\n>\n> From"),
            ("ANN@a.example", "Bye\n-- \nAnn Lee\n+44 20 7946 0958"),
            ("ben@b.example", "> only a quotation\n"),
        )
    )
    found, dropped = read(path)
    assert found == [
        ("ann@a.example", "Hello.\n\nFrom the start.\nFrom here on."),
        ("ben@b.example", "Thanks!"),
        ("ann@a.example", "Bye"),
    ]
    assert dropped == {"quoted lines": 5, "signatures": 1, "messages without own text": 1}
    packed = tmp_path / "y.mbox.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert read(packed)[0] == found


def test_a_line_that_looks_like_a_separator(tmp_path):
    path = tmp_path / "x.mbox"
    path.write_text(mbox(("a@b.example", "One.\n\nFrom Paris we went on.\n\nFrom 9 to 5.")))
    ((_, text),) = read(path)[0]
    assert text.endswith("From 9 to 5.")


OWN = {
    "On 3 May 2026, at 10:00, Ben Li wrote:\n\n> Hi\n\nFine.": "Fine.",
    "Yes.\n\nOn Monday, 3 May 2026 at 10:00, Benjamin\nLi <b@b.example> wrote:\n> Hi": "Yes.",
    "Ja.\n\nAm 3. Mai schrieb Ben Li:\n> Hallo": "Ja.",
    "In article <1@x> b@b.example writes:\n|> old\nnew": "new",
    "new\n-----Original Message-----\nFrom: Ben\nold": "new",
    "new\n\nFrom: Ben Li\nSent: Monday\nTo: Ann\n\nold": "new",
    "see below\n---------- Forwarded message ---------\nold": "see below",
    "new\n--\nAnn": "new",
    "AL> old\nnew": "new",
    "5 > 3, and a -- b": "5 > 3, and a -- b",
    "What I wrote:\nthis": "What I wrote:\nthis",
    "On Monday he wrote: never": "On Monday he wrote: never",
}


@pytest.mark.parametrize("text", OWN)
def test_own_text(text, tmp_path):
    source = Source(tmp_path)
    assert own_text(source, text) == OWN[text]
    assert own_text(source, text.replace("\n", "\r\n")) == OWN[text]
    assert bool(source.dropped) == (OWN[text] != text)


def test_html_without_quotations(tmp_path):
    page = (
        "<html><head><title>no</title><style>p {color: red}</style></head><body>"
        "<p>Dear&nbsp;Ben,</p><div>see <b>you</b><br>soon</div><script>no()</script>"
        '<div class="gmail_quote"><div>On Monday Ben wrote:</div>'
        "<blockquote>old <div>text</div></blockquote></div><p>Ann</p></body></html>"
    )
    made = EmailMessage()
    made["From"] = "a@a.example"
    made.set_content(page, subtype="html")
    path = tmp_path / "x.eml"
    path.write_bytes(made.as_bytes())
    ((user, text),), dropped = read(path)
    assert user == "a@a.example"
    assert text.replace("\xa0", " ").split() == ["Dear", "Ben,", "see", "you", "soon", "Ann"]
    assert dropped == {"quoted lines": 1}


def test_plain_text_is_preferred_and_attachments_are_not_read(tmp_path):
    made = message("plain text", html="<p>html</p>")
    made.add_attachment("attached words", filename="notes.txt")
    (tmp_path / "x.eml").write_bytes(made.as_bytes())
    assert read(tmp_path / "x.eml")[0] == [("ann@a.example", "plain text")]


def test_a_folder_of_messages(tmp_path):
    for place in ("b/deep", "a", "box/cur", "box/new", "box/tmp"):
        (tmp_path / place).mkdir(parents=True)
    names = ("b/deep/1.EML", "a/2.eml", "a/readme.txt", "box/cur/17.host:2,S", "box/tmp/18.host")
    for name in names:
        (tmp_path / name).write_bytes(message(f"in {name}").as_bytes())
    assert choose_reader("auto", Source(tmp_path)) == "eml"
    assert [text for _, text in read(tmp_path)[0]] == [
        "in a/2.eml",
        "in b/deep/1.EML",
        "in box/cur/17.host:2,S",
    ]


def test_headers_as_columns(tmp_path):
    (tmp_path / "x.eml").write_bytes(message("hello").as_bytes())
    (found,) = read_sentences(tmp_path / "x.eml", columns=Columns(text="subject", label="from"))
    assert (found.text, found.label) == ("Lunch", "Ann Lee <Ann@A.example>")


def test_what_is_not_mail(tmp_path):
    (tmp_path / "x.mbox").write_text("Dear Ann,\n")
    with pytest.raises(UserError, match=r"x.mbox:1: an mbox begins with a line `From ADDRESS"):
        read(tmp_path / "x.mbox")
    (tmp_path / "none").mkdir()
    with pytest.raises(UserError, match=r"none: holds no \.eml file"):
        read(tmp_path / "none", reader="eml")
    (tmp_path / "x.eml").write_bytes(message("hello", author=None).as_bytes())
    with pytest.raises(UserError, match="no address in `From`"):
        read(tmp_path / "x.eml")
    skipped = SkippedRecords()
    with pytest.raises(UserError, match="holds no sentences"):
        read(tmp_path / "x.eml", on_error=skipped)
    assert skipped.count == 1
