import gzip
import json
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import surfaces
from uedp.corpus.readers import Columns, Source, fail, read, reader_named
from uedp.corpus.sentence import Sentence, Span
from uedp.errors import UserError

ROWS = [
    {
        "who": "ann",
        "body": "Call Bob.",
        "topic": 1,
        "marks": [{"start": 5, "end": 8, "label": "PER"}],
    },
    {"who": "ben", "body": 'A "quoted", two-\nline text', "topic": None, "marks": []},
    {"who": "ann", "body": "Naïve café 😀 in Zürich", "topic": 2, "marks": []},
]
COLUMNS = Columns(user="who", text="body", label="topic", marks="marks")
EXPECTED = [
    Sentence("ann", "Call Bob.", "1", (Span(5, 8, "PER"),)),
    Sentence("ben", 'A "quoted", two-\nline text'),
    Sentence("ann", "Naïve café 😀 in Zürich", "2"),
]


def _jsonl(folder: Path) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in ROWS) + "\n\n")
    return path


def _csv(folder: Path) -> Path:
    path = folder / "rows.csv"
    lines = ["who,body,topic,marks"]
    for row in ROWS:
        body, marks = (str(x).replace('"', '""') for x in (row["body"], json.dumps(row["marks"])))
        lines.append(f'{row["who"]},"{body}",{row["topic"] or ""},"{marks}"')
    path.write_text("\ufeff" + "\r\n".join(lines))
    return path


def _parquet(folder: Path) -> Path:
    path = folder / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS), path)
    return path


def _hf(folder: Path) -> Path:
    path = folder / "rows"
    datasets.Dataset.from_list(ROWS).save_to_disk(str(path))
    return path


@pytest.mark.parametrize("make", [_jsonl, _csv, _parquet, _hf])
def test_same_rows_from_every_format(make, tmp_path):
    path = make(tmp_path)
    reader = reader_named("auto", path)
    assert list(read(Source(path), reader, COLUMNS)) == EXPECTED


@pytest.mark.parametrize("make", [_jsonl, _csv, _parquet])
def test_gzip_reads_alike(make, tmp_path):
    plain = make(tmp_path)
    packed = plain.with_name(plain.name + ".gz")
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert list(read(Source(packed), reader_named("auto", packed), COLUMNS)) == EXPECTED


def test_conll_iob1(conll):
    sentences = list(read(Source(conll), "conll", Columns()))
    assert [s.user for s in sentences] == ["doc-00001"] * 2 + ["doc-00002"] * 2
    assert surfaces(sentences[0]) == [("EU", "ORG"), ("German", "MISC")]
    assert surfaces(sentences[1]) == [("Peter Blackburn", "PER")]
    assert surfaces(sentences[2]) == [("London", "LOC"), ("Paris", "LOC"), ("EU", "ORG")]
    assert sentences[3].text == "nothing here"
    assert sentences[3].marks == ()


def test_conll_iob2_decodes_to_the_same(conll):
    iob1 = list(read(Source(conll), "conll", Columns()))
    text = conll.read_text()
    for first in ("EU NNP I-", "German JJ I-", "Peter NNP I-", "London NNP I-"):
        text = text.replace(first, first.replace("I-", "B-"))
    conll.write_text(text)
    assert list(read(Source(conll), "conll", Columns())) == iob1


@pytest.mark.parametrize(
    "content",
    [
        'label,text\n3,"Wall St. Bears, again"\n1,Peace talks\n',
        '"3","Wall St. Bears,","again"\n"1","Peace","talks"\n',
    ],
)
def test_ag_with_header_or_in_the_original_form(content, tmp_path):
    path = tmp_path / "ag.csv"
    path.write_text(content)
    found = list(read(Source(path), "ag", Columns(user=None)))
    assert [(s.label, s.text) for s in found] == [
        ("3", "Wall St. Bears, again"),
        ("1", "Peace talks"),
    ]


def test_presidio_research(tmp_path):
    path = tmp_path / "marks.json"
    record = {
        "full_text": "I am Ann",
        "spans": [{"entity_type": "PERSON", "start_position": 5, "end_position": 8}],
    }
    path.write_text(json.dumps([record, {"full_text": "Hm", "spans": []}]))
    first, second = read(Source(path), "presidio-research", Columns())
    assert surfaces(first) == [("Ann", "PERSON")]
    assert first.user != second.user


BAD = {
    "missing column": ("x.jsonl", '{"user": "a", "txt": "b"}\n', ":1:", "--text"),
    "missing column csv": ("x.csv", "user,txt\na,b\n", ":1:", "--text"),
    "missing user column": ("x.csv", "who,text\na,b\n", ":1:", "--assign-users"),
    "empty file": ("x.jsonl", "", "x.jsonl:", "holds no sentences"),
    "header only": ("x.csv", "user,text\n", "x.csv:", "holds no sentences"),
    "null user": ("x.jsonl", '{"user": null, "text": "b"}\n', ":1:", "null user"),
    "blank user": ("x.csv", "user,text\n  ,b\n", ":2:", "null user"),
    "empty text": ("x.jsonl", '{"user": "a", "text": " "}\n', ":1:", "empty text"),
    "null text": ("x.jsonl", '{"user": "a", "text": null}\n', ":1:", "empty text"),
    "text a number": ("x.jsonl", '{"user": "a", "text": 7}\n', ":1:", "empty text"),
    "invalid UTF-8": ("x.jsonl", b'{"user": "a", "text": "\xff"}\n', ":1:", "UTF-8"),
    "invalid UTF-8 csv": ("x.csv", b"user,text\na,b\na,\xe9\n", ":3:", "UTF-8"),
    "broken JSON": ("x.jsonl", '{"user": "a", "text": "b"}\n{"user": \n', ":2:", "broken JSON"),
    "not an object": ("x.jsonl", "[1]\n", ":1:", "object"),
    "half a surrogate": ("x.jsonl", '{"user": "a", "text": "\\ud800"}\n', ":1:", "surrogate"),
    "ragged CSV": ("x.csv", "user,text\na,b\na,b,c\n", ":3:", "3 fields where the header has 2"),
    "open quote": ("x.csv", 'user,text\na,"b\n', ":2:", "quoting"),
    "span past the end": (
        "x.jsonl",
        '{"user": "a", "text": "b", "marks": [{"start": 0, "end": 2, "label": "PER"}]}\n',
        ":1:",
        "0:2 lies outside",
    ),
    "span of nothing": (
        "x.jsonl",
        '{"user": "a", "text": "b", "marks": [{"start": 1, "end": 1, "label": "PER"}]}\n',
        ":1:",
        "lies outside",
    ),
    "mark without label": (
        "x.jsonl",
        '{"user": "a", "text": "b", "marks": [{"start": 0, "end": 1}]}\n',
        ":1:",
        "needs `start`, `end` and `label`",
    ),
    "damaged gzip": ("x.jsonl.gz", b"\x1f\x8b\x08\x00nonsense", "x.jsonl.gz:1:", "gzip"),
    "not Parquet": ("x.parquet", "hello", "x.parquet:", "not a Parquet file"),
    "one field": ("x.conll", "-DOCSTART- O\n\nEU I-ORG\nlamb\n", ":4:", "one field, 'lamb'"),
    "unknown tag": ("x.conll", "-DOCSTART- O\n\nEU ORG\n", ":3:", "'ORG'"),
    "no user yet": ("x.conll", "EU I-ORG\n", ":1:", "-DOCSTART-"),
    "AG with four fields": ("x.ag", '"1","a","b","c"\n', ":1:", "AG has 3"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named_with_line_and_remedy(case, tmp_path):
    name, content, where, what = BAD[case]
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    reader = {".conll": "conll", ".ag": "ag"}.get(path.suffix) or reader_named("auto", path)
    user = None if reader == "ag" else "user"
    columns = Columns(user, marks="marks" if "mark" in str(content) else None)
    with pytest.raises(UserError) as refusal:
        list(read(Source(path), reader, columns, fail))
    message = str(refusal.value)
    assert str(path) in message
    assert where in message
    assert what in message
    assert "\n" not in message


def test_unknown_reader_and_unknown_suffix(tmp_path):
    with pytest.raises(UserError, match="unknown reader; choose among jsonl, csv"):
        reader_named("xml", tmp_path)
    with pytest.raises(UserError, match="add --reader"):
        reader_named("auto", tmp_path / "notes.txt")


def test_bad_records_can_be_passed_over_and_counted(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"user": "a", "text": "b"}\n{broken\n{"user": "", "text": "c"}\n')
    skipped: list[UserError] = []
    found = list(read(Source(path), "jsonl", Columns(), skipped.append))
    assert [s.text for s in found] == ["b"]
    assert [":2:" in str(skipped[0]), ":3:" in str(skipped[1])] == [True, True]


def test_position_follows_the_compressed_file(tmp_path):
    path = tmp_path / "x.jsonl.gz"
    line = json.dumps({"user": "a", "text": "b" * 50}) + "\n"
    path.write_bytes(gzip.compress((line * 20000).encode(), compresslevel=0))
    source = Source(path)
    positions = [source.position for _ in read(source, "jsonl", Columns())]
    assert positions == sorted(positions)
    assert positions[len(positions) // 2] == pytest.approx(source.size / 2, rel=0.2)
