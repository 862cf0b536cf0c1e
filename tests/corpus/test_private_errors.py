"""No error prints a private message, whichever field of whichever format it is in."""

import json
from email.message import EmailMessage

import openpyxl
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from uedp.corpus.readers import SkippedRecords
from uedp.entities.build import build_corpus
from uedp.entities.lists import read_lists
from uedp.errors import UserError
from uedp.training.config import load_config

SECRET = "Dear Wilhelmina, my biopsy results came back and my PIN is 8264, don't tell Bartholomew"
FEW = 14  # characters in a row
LONG = f"{SECRET}. " * 400


def leaked(message: str) -> bool:
    return any(SECRET[at : at + FEW] in message for at in range(len(SECRET) - FEW))


def refusal(source, folder, **options) -> str:
    """The error, also as `skip_invalid` keeps it."""
    messages = []
    for number, skipped in enumerate((False, SkippedRecords())):
        try:
            build_corpus(source, folder / f"corpus-{number}", skip_invalid=skipped, **options)
        except UserError as error:
            messages.append(str(error))
        if skipped:
            messages.append(skipped.first)
    assert any(messages)
    return " ".join(messages)


FIELDS = ("user", "text", "label", "marks")
GOOD = {"user": "ann", "text": "Hi Bob", "label": "a", "marks": []}
WRONG = {
    "a list": lambda text: [text],
    "an object": lambda text: {"body": text},
    "an object named so": lambda text: {text: 1},
    "marks of it": lambda text: [{"start": 0, "end": text, "label": "PER"}],
    "a mark beyond it": lambda text: [{"start": 0, "end": 10_000, "label": text}],
    "text itself": lambda text: text,
    "half a surrogate": lambda text: text + "\ud800",
}
COLUMNS = {"label": "label", "marks": "marks"}


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("how", WRONG)
@pytest.mark.parametrize("kind", ["jsonl", "json"])
def test_values_of_wrong_types(kind, how, field, tmp_path):
    row = {**GOOD, field: WRONG[how](SECRET)}
    path = tmp_path / f"x.{kind}"
    path.write_text(json.dumps(row if kind == "jsonl" else [row]))
    if (how, field) in {("text itself", name) for name in ("user", "text", "label")}:
        row["text"] = ""
        path.write_text(json.dumps(row if kind == "jsonl" else [row]))
    assert not leaked(refusal(path, tmp_path, **COLUMNS))


def tables(text):
    """(file name, content, options): files that are not what they are taken for."""
    yield "no-header.csv", f"ann,{text!r}\nben,hello\n", {}
    yield "no-header.tsv", f"ann\t{text}\nben\thello\n", {}
    yield "ragged.csv", f"user,text\nann,{text}\n", {}
    yield "quote.csv", f'user,text\nann,"{text}\nben,hello\n', {}
    yield "stray.csv", f'user,text\nann,"{text}" and more\n', {}
    yield "delimiter.csv", f"user;text\nann;{text}\n", {"delimiter": "|"}
    yield "marks.csv", f'user,text,marks\nann,Hi,"{text}"\n', {"marks": "marks"}
    yield "user.csv", f'user,text\n,"{text}"\n', {}
    yield "broken.jsonl", f'{{"user": "ann", "text": "{text}\n', {}
    yield "unquoted.jsonl", f'{{"user": "ann", "text": {text}}}\n', {}
    yield "twice.jsonl", f'{{"user": "ann", {json.dumps(text)}: 1, {json.dumps(text)}: 2}}\n', {}
    yield "string.jsonl", json.dumps(text), {}
    yield "fields.jsonl", json.dumps({text: 1, "user": "ann"}), {}
    yield "broken.json", f'[{{"user": "ann", "text": "{text}\n', {}
    yield "string.json", json.dumps([text]), {}
    yield "object.json", json.dumps({text: text}), {}
    yield "lines.json", f"{json.dumps({'user': 'a', 'text': text})}\n" * 2, {}
    yield "plain.conll", f"{text}\n", {"reader": "conll"}
    yield "plain-tabs.conll", f"-DOCSTART-\tO\n\n{text}\nx\t{text}\n", {"reader": "conll"}
    yield "tag.conll", f"-DOCSTART-\tO\n\nx\t{text}\n", {"reader": "conll"}
    yield "class.csv", f'"{text}","{text}","{text}"\n', {"reader": "ag"}
    yield "plain.mbox", f"{text}\n", {}
    yield "author.mbox", f"From a@b Sat Jan 3 01:05:34 1996\nFrom: {text}\n\n{text}\n", {}
    yield "author.eml", f"From: {text}\nSubject: {text}\n\n{text}\n", {}
    yield "text.parquet", text, {}
    yield "text.xlsx", text, {}
    yield "text.jsonl.gz", text, {}
    yield "text.jsonl", text, {}
    yield "name.jsonl", json.dumps({"user": "ann", "text": text}), {"text": "body"}


CASES = {name: (content, options) for name, content, options in tables(SECRET)}


@pytest.mark.parametrize("name", CASES)
def test_files_that_are_not_what_they_seem(name, tmp_path):
    content, options = CASES[name]
    path = tmp_path / name
    for encoding in ("utf-8", "utf-16-le"):
        path.write_bytes(content.encode(encoding))
        assert not leaked(refusal(path, tmp_path, **options)), encoding
    path.write_bytes(content.encode() + b"\xff\xe9\n" + content.encode())
    assert not leaked(refusal(path, tmp_path, **options))


def test_tables(tmp_path):
    frame = pandas.DataFrame({"user": [1, SECRET, 2.5], "text": ["a", SECRET, "b"]})
    assert not leaked(refusal(frame, tmp_path))
    assert not leaked(refusal(frame.rename(columns={"text": SECRET}), tmp_path))
    pq.write_table(pa.table({"user": ["a"], "text": [[SECRET]]}), tmp_path / "x.parquet")
    assert not leaked(refusal(tmp_path / "x.parquet", tmp_path))
    pq.write_table(pa.table({"user": ["a"], SECRET: ["b"]}), tmp_path / "y.parquet")
    assert not leaked(refusal(tmp_path / "y.parquet", tmp_path))
    book = openpyxl.Workbook()
    book.active.append(["ann", SECRET])
    book.create_sheet(SECRET[:30].replace(",", "")).append(["x"])
    book.save(tmp_path / "x.xlsx")
    assert not leaked(refusal(tmp_path / "x.xlsx", tmp_path))


def test_mail(tmp_path):
    message = EmailMessage()
    message["Subject"] = SECRET
    message.set_content(LONG)
    (tmp_path / "x.eml").write_bytes(message.as_bytes())
    found = refusal(tmp_path / "x.eml", tmp_path)
    assert "no address in `From`" in found
    assert not leaked(found)


@pytest.mark.parametrize(
    "content",
    [
        "{0},{0}\n",
        "entity,category\n{0},person\n{0},{0}\n",
        "entity,category\n{0},{0}\n",
        "entity,category\n{0}\n",
        "entity,category\n{0},\n",
    ],
)
def test_lists(content, tmp_path):
    path = tmp_path / "list.csv"
    path.write_text(content.format(f'"{SECRET}"'))
    with pytest.raises(UserError) as error:
        read_lists(deny=path)
    assert not leaked(str(error.value).replace(SECRET[:21], ""))


@pytest.mark.parametrize(
    "content",
    [
        json.dumps({"user": "ann", "text": SECRET}),
        f"{json.dumps({'user': 'ann', 'text': SECRET})}\n" * 2,
        json.dumps({"data": SECRET}),
        json.dumps({"privacy": {"epsilon": SECRET}}),
        json.dumps([SECRET]),
        f"user,text\nann,{SECRET}\n",
        f"{SECRET}: {SECRET}",
        f"- {SECRET}\n: *{SECRET}",
        f"text: '{SECRET}",
        f"'{SECRET.replace(chr(39), '')}': 1\n'{SECRET.replace(chr(39), '')}': 2\n",
        f"text: !!int '{SECRET.replace(chr(39), '')}'",
    ],
)
def test_messages_taken_for_a_config(content, tmp_path):
    path = tmp_path / "messages.yaml"
    path.write_text(content)
    with pytest.raises(UserError) as error:
        load_config(path)
    message = str(error.value)
    assert not any(SECRET[at : at + 45] in message for at in range(len(SECRET) - 45))


def test_what_counts_as_a_leak():
    """The search itself."""
    assert leaked(f"x {SECRET[20:40]} y")
    assert not leaked(SECRET[: FEW - 1])


def test_a_short_message_in_a_file_without_a_header(tmp_path):
    (tmp_path / "x.csv").write_text("ann@example.org,I have cancer\nbob@example.org,so do I\n")
    assert "cancer" not in refusal(tmp_path / "x.csv", tmp_path)
