import gzip
import json
import tempfile
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import surfaces
from uedp.corpus.readers import SkippedRecords, choose_reader, raise_error, read_sentences
from uedp.corpus.records import Columns, blank, user_name
from uedp.corpus.sentence import Sentence, Span
from uedp.corpus.source import Source
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
    reader = choose_reader("auto", Source(path))
    assert list(read_sentences(Source(path), reader, COLUMNS)) == EXPECTED


@pytest.mark.parametrize("make", [_jsonl, _csv, _parquet])
def test_gzip_reads_alike(make, tmp_path):
    plain = make(tmp_path)
    packed = plain.with_name(plain.name + ".gz")
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert (
        list(read_sentences(Source(packed), choose_reader("auto", Source(packed)), COLUMNS))
        == EXPECTED
    )


def test_conll_iob1(conll):
    sentences = list(read_sentences(Source(conll), "conll", Columns()))
    assert [s.user for s in sentences] == ["doc-00001"] * 2 + ["doc-00002"] * 2
    assert surfaces(sentences[0]) == [("EU", "ORG"), ("German", "MISC")]
    assert surfaces(sentences[1]) == [("Peter Blackburn", "PER")]
    assert surfaces(sentences[2]) == [("London", "LOC"), ("Paris", "LOC"), ("EU", "ORG")]
    assert sentences[3].text == "nothing here"
    assert sentences[3].marks == ()


def test_conll_iob2_decodes_to_the_same(conll):
    iob1 = list(read_sentences(Source(conll), "conll", Columns()))
    text = conll.read_text()
    for first in ("EU NNP I-", "German JJ I-", "Peter NNP I-", "London NNP I-"):
        text = text.replace(first, first.replace("I-", "B-"))
    conll.write_text(text)
    assert list(read_sentences(Source(conll), "conll", Columns())) == iob1


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
    found = list(read_sentences(Source(path), "ag", Columns(user=None)))
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
    first, second = read_sentences(Source(path), "presidio-research", Columns())
    assert surfaces(first) == [("Ann", "PERSON")]
    assert first.user != second.user


def _marked(marks: str) -> tuple[str, str]:
    return "x.jsonl", f'{{"user": "a", "text": "b", "marks": {marks}}}\n'


def _flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 0xFF]) + data[middle + 1 :]


_NOISE = "".join(chr(33 + (i * i * 7919) % 90) for i in range(5000))
_PACKED = gzip.compress(json.dumps({"user": "a", "text": _NOISE}).encode())

BAD = {
    "missing column": ("x.jsonl", '{"user": "a", "txt": "b"}\n', ":1:", "`text='txt'`"),
    "missing column csv": ("x.csv", "user,x\na,b\n", ":1:", "`text=...`"),
    "missing user column": ("x.csv", "who,text\na,b\n", ":1:", "`assign_users=...`"),
    "empty file": ("x.jsonl", "", "x.jsonl:", "holds no sentences"),
    "header only": ("x.csv", "user,text\n", "x.csv:", "holds no sentences"),
    "null user": ("x.jsonl", '{"user": null, "text": "b"}\n', ":1:", "null user"),
    "blank user": ("x.csv", "user,text\n  ,b\n", ":2:", "null user"),
    "empty text": ("x.jsonl", '{"user": "a", "text": " "}\n', ":1:", "empty text"),
    "null text": ("x.jsonl", '{"user": "a", "text": null}\n', ":1:", "empty text"),
    "text a number": ("x.jsonl", '{"user": "a", "text": 7}\n', ":1:", "not text"),
    "text of nothing visible": (
        "x.jsonl",
        '{"user": "a", "text": "\u200b"}\n',
        ":1:",
        "empty text",
    ),
    "invalid UTF-8": ("x.jsonl", b'{"user": "a", "text": "\xff"}\n', ":1:", "UTF-8"),
    "invalid UTF-8 csv": ("x.csv", b"user,text\na,b\na,\xe9\n", ":3:", "UTF-8"),
    "broken JSON": ("x.jsonl", '{"user": "a", "text": "b"}\n{"user": \n', ":2:", "broken JSON"),
    "not an object": ("x.jsonl", "[1]\n", ":1:", "object"),
    "half a surrogate": ("x.jsonl", '{"user": "a", "text": "\\ud800"}\n', ":1:", "surrogate"),
    "ragged CSV": ("x.csv", "user,text\na,b\na,b,c\n", ":3:", "3 fields, the header has 2"),
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
        "needs `start` and `end`, whole numbers, and a `label`",
    ),
    "marks a number": (*_marked("5"), ":1:", "marks are 5"),
    "mark without fields": (*_marked("[7]"), ":1:", "not 7 (int)"),
    "mark beyond numbers": (*_marked('[{"start": 0, "end": 1e999, "label": "X"}]'), ":1:", "whole"),
    "mark between characters": (
        *_marked('[{"start": 0.5, "end": 1, "label": "X"}]'),
        ":1:",
        "whole numbers",
    ),
    "mark label half a surrogate": (
        *_marked('[{"start": 0, "end": 1, "label": "\\ud800"}]'),
        ":1:",
        "surrogate",
    ),
    "marks not JSON": ("x.csv", "user,text,marks\na,b,{{\n", ":2:", "marks: broken JSON"),
    "user half a surrogate": ("x.jsonl", '{"user": "\\ud800", "text": "b"}\n', ":1:", "surrogate"),
    "endless number": ("x.jsonl", f'{{"user": {"9" * 5000}}}\n', ":1:", "thousands of digits"),
    "endless nesting": ("x.jsonl", "[" * 100_000 + "\n", ":1:", "nested too deeply"),
    "two columns of a name": ("x.csv", "user,text,text\na,b,c\n", ":1:", "two columns"),
    "flipped bit": ("x.jsonl.gz", _flipped(_PACKED), "x.jsonl.gz:1:", "damaged gzip"),
    "truncated gzip": ("x.jsonl.gz", _PACKED[:-20], "x.jsonl.gz:1:", "damaged gzip"),
    "Parquet not gzip": ("x.parquet.gz", b"PAR1 and more", "x.parquet.gz:", "damaged gzip"),
    "Parquet truncated": ("x.parquet.gz", _PACKED[:-20], "x.parquet.gz:", "damaged gzip"),
    "damaged gzip": ("x.jsonl.gz", b"\x1f\x8b\x08\x00nonsense", "x.jsonl.gz:1:", "gzip"),
    "not Parquet": ("x.parquet", "hello", "x.parquet:", "not a Parquet file"),
    "one field": ("x.conll", "-DOCSTART- O\n\nEU I-ORG\nlamb\n", ":4:", "one field;"),
    "unknown tag": ("x.conll", "-DOCSTART- O\n\nEU ORG\n", ":3:", "'ORG'"),
    "no user yet": ("x.conll", "EU I-ORG\n", ":1:", "-DOCSTART-"),
    "tokens cut by blanks": (
        "x.conll",
        "-DOCSTART- O\n\nEU NNP I-ORG\nNew York NNP I-LOC\n",
        ":4:",
        "4 fields, the lines before have 3",
    ),
    "a line without the file's tabs": (
        "x.conll",
        "-DOCSTART-\tO\n\nEU\tI-ORG\nNew York I-LOC\n",
        ":4:",
        "one field;",
    ),
    "AG with an unknown header": ("x.ag", "Label,Title,Body\n1,a,b\n", ":1:", "class 'Label'"),
    "AG with four fields": ("x.ag", '"1","a","b","c"\n', ":1:", "AG has 3"),
}


def test_an_error_leaves_no_file_open(tmp_path):
    """Its traceback keeps the readers, which are generators, and they would keep the file."""
    path = tmp_path / "x.ag"
    path.write_text('"1","a","b"\n"1","a","b","c"\n')
    source = Source(path)
    with pytest.raises(UserError) as refusal:
        list(read_sentences(source, "ag", Columns(None)))
    assert refusal.traceback
    assert source._raw.closed


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named_with_line_and_remedy(case, tmp_path):
    name, content, where, what = BAD[case]
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    reader = {".conll": "conll", ".ag": "ag"}.get(path.suffix) or choose_reader(
        "auto", Source(path)
    )
    user = None if reader == "ag" else "user"
    columns = Columns(user, marks="marks" if "mark" in str(content) else None)
    with pytest.raises(UserError) as refusal:
        list(read_sentences(Source(path), reader, columns, raise_error))
    message = str(refusal.value)
    assert str(path) in message
    assert where in message
    assert what in message
    assert "\n" not in message


def test_unknown_reader_and_unknown_suffix(tmp_path):
    with pytest.raises(UserError, match="unknown reader; choose among ag, conll, csv"):
        choose_reader("xml", Source(tmp_path))
    (tmp_path / "notes.txt").touch()
    with pytest.raises(UserError, match=r"`reader=\.\.\.`: ag, conll, csv"):
        choose_reader("auto", Source(tmp_path / "notes.txt"))


BAD_USERS = {
    "NaN": ("NaN", "null user"),
    "blank": ('" \\u00a0"', "null user"),
    "invisible": ('"\\u200b\\ufeff"', "null user"),
    "object": ('{"id": 1}', "a string or a whole number"),
    "list": ("[]", "a string or a whole number"),
    "false": ("false", "a string or a whole number"),
    "fraction": ("1.5", "a string or a whole number"),
}


@pytest.mark.parametrize("case", BAD_USERS)
def test_only_strings_and_whole_numbers_are_users(case, tmp_path):
    value, what = BAD_USERS[case]
    path = tmp_path / "x.jsonl"
    path.write_text(f'{{"user": {value}, "text": "b"}}\n')
    with pytest.raises(UserError, match=f":1: .*{what}"):
        list(read_sentences(path))


def test_one_person_is_one_user(tmp_path):
    path = tmp_path / "x.jsonl"
    names = ["Zo\u00eb", "Zoe\u0308", " Zo\u00eb ", 7, "7"]
    path.write_text("".join(json.dumps({"user": name, "text": "b"}) + "\n" for name in names))
    assert [s.user for s in read_sentences(path)] == ["Zo\u00eb"] * 3 + ["7"] * 2


ONE_USER = {
    "zero-width space": "bob\u200b",
    "joiners": "b\u200do\u200cb",
    "word joiner": "\u2060bob",
    "byte order mark": "\ufeffbob",
    "soft hyphen": "bo\u00adb",
    "direction marks": "\u202ebob\u202c\u200e",
    "variation selector": "bob\ufe0f",
    "tag characters": "bob\U000e0041",
    "grapheme joiner": "bo\u034fb",
    "Hangul filler": "bob\u3164",
    "control characters": "b\x00ob\x07",
    "white space around": "\u00a0\u3000 bob\t\n",
    "fullwidth letters": "\uff42\uff4f\uff42",
    "mathematical letters": "\U0001d41b\U0001d428\U0001d41b",
}


@pytest.mark.parametrize("case", ONE_USER)
def test_names_that_look_alike_are_one_user(case, tmp_path):
    path = tmp_path / "x.jsonl"
    names = ["bob", ONE_USER[case]]
    path.write_text("".join(json.dumps({"user": name, "text": "b"}) + "\n" for name in names))
    assert [s.user for s in read_sentences(path)] == ["bob", "bob"]


def test_names_that_differ_are_different_users(tmp_path):
    names = ["bob", "Bob", "bo b", "b\u00f6b", "bob1", "\u0431\u043e\u0431"]
    assert len({user_name(name) for name in names}) == len(names)


@given(st.text())
def test_the_form_of_a_name_is_its_own_form(name):
    """Guarantee of `user_name`; also of what it leaves."""
    form = user_name(name)
    assert user_name(form) == form
    assert blank(form) or not blank(name)
    assert user_name(f"\u200b {name}\u200d") == form


def test_a_key_that_stands_twice_is_named(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"user": "ann", "text": "b", "user": "ben"}\n')
    with pytest.raises(UserError, match=r"x.jsonl:1: the key 'user' stands twice"):
        list(read_sentences(path))


# --- data set folders ----------------------------------------------------------------------------


def test_a_folder_of_splits_names_them(tmp_path):
    parts = datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)})
    parts.save_to_disk(str(tmp_path / "parts"))
    with pytest.raises(UserError, match="holds the splits train; give one of the folders inside"):
        list(read_sentences(tmp_path / "parts", columns=COLUMNS))
    assert len(list(read_sentences(tmp_path / "parts" / "train", columns=COLUMNS))) == 3


def test_a_data_set_in_several_files_keeps_its_order(tmp_path):
    rows = [{"user": "a", "text": f"text {number}"} for number in range(1000)]
    whole = datasets.Dataset.from_list(rows)
    whole.select(range(999, -1, -1)).save_to_disk(str(tmp_path / "set"), num_shards=3)
    assert [s.text for s in read_sentences(tmp_path / "set")] == [row["text"] for row in rows[::-1]]


STATES = {
    "missing": None,
    "not JSON": b"{",
    "not an object": b"[]",
    "no files": b"{}",
    "a file elsewhere": b'{"_data_files": [{"filename": "../rows/data-00000-of-00001.arrow"}]}',
    "a path from the root": b'{"_data_files": [{"filename": "/etc/passwd"}]}',
    "no such file": b'{"_data_files": [{"filename": "x.arrow"}]}',
    "a name with a zero": b'{"_data_files": [{"filename": "x\\u0000"}]}',
    "a name that is a number": b'{"_data_files": [{"filename": 7}]}',
    "an entry that is none": b'{"_data_files": [null]}',
    "too deep": b"[" * 100_000,
}


@pytest.mark.parametrize("case", STATES)
def test_a_data_set_folder_that_is_none(case, tmp_path):
    path = _hf(tmp_path)
    (path / "state.json").unlink()
    if STATES[case] is not None:
        (path / "state.json").write_bytes(STATES[case])
    with pytest.raises(UserError, match="rows: not a data set saved with save_to_disk") as refused:
        list(read_sentences(path, columns=COLUMNS))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("lie", [-1, 2**31 - 1, 2**24, -(2**31)])
@pytest.mark.parametrize("column", ["body", "marks"])
def test_an_offset_that_points_elsewhere_does_not_crash(column, lie, tmp_path):
    path = _hf(tmp_path)
    file = path / "data-00000-of-00001.arrow"
    data = file.read_bytes()
    chunk = pa.ipc.open_stream(data).read_all()[column].chunk(0)
    at = data.index(chunk.buffers()[1].to_pybytes()[: 4 * (len(chunk) + 1)]) + 4
    file.write_bytes(data[:at] + lie.to_bytes(4, "little", signed=True) + data[at + 4 :])
    for on_error in (raise_error, SkippedRecords()):
        with pytest.raises(UserError, match="damaged data"):
            list(read_sentences(path, columns=COLUMNS, on_error=on_error))


@pytest.mark.parametrize("suffix", ["parquet", "hf"])
@pytest.mark.parametrize("unit", ["us", "ns"])
def test_columns_of_other_types_are_named(suffix, unit, tmp_path):
    """A moment beyond all calendars cannot even be looked at."""
    table = pa.table({"user": ["a"], "text": pa.array([2**62]).cast(pa.timestamp(unit))})
    path = tmp_path / "x.parquet"
    if suffix == "parquet":
        pq.write_table(table, path)
    else:
        path = tmp_path / "set"
        datasets.Dataset(table).save_to_disk(str(path))
    with pytest.raises(UserError, match="column 'text' holds timestamp"):
        list(read_sentences(path))


def test_what_is_unpacked_has_no_name(tmp_path, monkeypatch):
    """Nothing of it can stay behind, whoever kills this process."""
    plain = _parquet(tmp_path)
    packed = plain.with_name("rows.parquet.gz")
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    for sentence in read_sentences(packed, columns=COLUMNS):
        assert sentence.text
        assert list(scratch.iterdir()) == []


def test_labels_are_words_or_numbers(tmp_path):
    path = tmp_path / "x.jsonl"
    columns = Columns(user=None, label="l")

    def label(value: str) -> str | None:
        path.write_text(f'{{"text": "b", "l": {value}}}\n')
        return next(read_sentences(path, columns=columns)).label

    assert [label(v) for v in ('"x"', "3", "null", "NaN", '""')] == ["x", "3", None, None, None]
    for bad in ('"\\ud800"', "[1]"):
        with pytest.raises(UserError, match=":1: "):
            label(bad)


@pytest.mark.parametrize("separator", ["\t", "  "], ids=["tabs", "padded"])
def test_conll_tokens_come_whole(separator, tmp_path):
    path = tmp_path / "x.conll"
    lines = ["-DOCSTART- -X- O", "", "10\u00a0000|CD|O", "in|IN|O", "\u200b|XX|O", "Rome|NNP|I-LOC"]
    path.write_text("\n".join(lines).replace("|", separator) + "\r\n")
    (sentence,) = read_sentences(path, "conll")
    assert sentence.text == "10\u00a0000 in \u200b Rome"
    assert surfaces(sentence) == [("Rome", "LOC")]


def test_conll_token_with_a_blank_between_tabs(tmp_path):
    path = tmp_path / "x.conll"
    path.write_text("-DOCSTART-\tO\n\nin\tIN\tO\nNew York\tNNP\tB-LOC\n")
    (sentence,) = read_sentences(path, "conll")
    assert surfaces(sentence) == [("New York", "LOC")]


def test_ag_as_kaggle_has_it(tmp_path):
    path = tmp_path / "ag.csv"
    path.write_text('Class Index,Title,Description\n3,"Wall St. Bears,",again\n')
    (sentence,) = read_sentences(path, "ag", Columns(user=None))
    assert (sentence.label, sentence.text) == ("3", "Wall St. Bears, again")


@pytest.mark.parametrize(
    ("column", "what"), [([1.5], "1.5 (float), not text"), ([b"\x00"], "(bytes), not text")]
)
def test_a_column_that_is_not_text(column, what, tmp_path):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"user": ["a"], "text": column}), path)
    with pytest.raises(UserError) as refusal:
        list(read_sentences(path))
    assert what in str(refusal.value)


def test_two_parquet_columns_of_a_name(tmp_path):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table([["a"], ["b"], ["c"]], names=["user", "text", "text"]), path)
    with pytest.raises(UserError, match="two columns are called 'text'"):
        list(read_sentences(path))


def test_a_damaged_parquet_page(tmp_path):
    path = tmp_path / "x.parquet"
    rows = {"user": ["a"] * 4000, "text": [f"text {i}" for i in range(4000)]}
    pq.write_table(pa.table(rows), path, compression="snappy")
    data = bytearray(path.read_bytes())
    data[200:4000] = bytes(byte ^ 0x55 for byte in data[200:4000])
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"x\.parquet: damaged data"):
        list(read_sentences(path))


def test_a_parquet_row_that_is_not_utf8(tmp_path):
    path = tmp_path / "x.parquet"
    offsets, data = (pa.py_buffer(b) for b in (b"\0\0\0\0\1\0\0\0\2\0\0\0", b"b\xff"))
    text = pa.Array.from_buffers(pa.string(), 2, [None, offsets, data])
    pq.write_table(pa.table({"user": ["a", "a"], "text": text}), path)
    with pytest.raises(UserError, match="row 2: invalid UTF-8"):
        list(read_sentences(path))
    skipped = SkippedRecords()
    assert [s.text for s in read_sentences(path, on_error=skipped)] == ["b"]
    assert skipped.count == 1


LENIENT = {
    "jsonl": (
        "x.jsonl",
        b'{"user": "a", "text": "1"}\n{broken\n\xff\n{"user": "", "text": "c"}\n'
        b'{"user": "a", "text": "2"}\n',
        ["1", "2"],
        3,
        ":2: broken JSON",
    ),
    "csv": (
        "x.csv",
        b'user,text\na,1\na,"b"c\na,\xff\na,b,c\na,"3\n\xff,\n4"\na,2\n',
        ["1", "2"],
        4,
        ":3: ',' expected",
    ),
    "conll": (
        "x.conll",
        b"lost O\n\n-DOCSTART- O\n\n1 O\n\nbad ORG\nline O\n\nso is\xff O\nthis\n\n"
        b"-DOCSTART- \xff\n\n2 O\n\nand this O O\n",
        ["1", "2"],
        4,
        ":1: a sentence before any",
    ),
}


@pytest.mark.parametrize("case", LENIENT)
def test_bad_records_can_be_passed_over_and_counted(case, tmp_path):
    name, content, texts, count, first = LENIENT[case]
    path = tmp_path / name
    path.write_bytes(content)
    skipped = SkippedRecords()
    found = list(read_sentences(path, case, Columns(), skipped))
    assert [s.text for s in found] == texts
    assert skipped.count == count
    assert first in skipped.first
    if case == "conll":  # a bad byte in a -DOCSTART- line is no reason to merge two users
        assert [s.user for s in found] == ["doc-00001", "doc-00002"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.csv", b"user,te\xff\na,1\n"),  # the header
        ("x.csv", b'user,text\na,1\na,"2\na,3\n'),  # an open quote swallows what follows
        ("x.csv.gz", _flipped(_PACKED)),
    ],
    ids=["header", "open quote", "damaged"],
)
def test_what_cannot_be_passed_over(name, content, tmp_path):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UserError):
        list(read_sentences(path, on_error=SkippedRecords()))


def test_position_follows_a_columnar_file(tmp_path):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"user": ["a"] * 4096, "text": ["b"] * 4096}), path)
    source = Source(path)
    positions = [source.position for _ in read_sentences(source)]
    assert positions == sorted(positions)
    assert positions[2048] == pytest.approx(source.size / 2, rel=0.1)


def test_position_follows_the_compressed_file(tmp_path):
    path = tmp_path / "x.jsonl.gz"
    line = json.dumps({"user": "a", "text": "b" * 50}) + "\n"
    path.write_bytes(gzip.compress((line * 20000).encode(), compresslevel=0))
    source = Source(path)
    positions = [source.position for _ in read_sentences(source, "jsonl", Columns())]
    assert positions == sorted(positions)
    assert positions[len(positions) // 2] == pytest.approx(source.size / 2, rel=0.2)


def test_plain_text_is_read_by_lines(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("one text\r\n\n  another \n\u200b\nthe last")
    found = [s.text for s in read_sentences(Source(path), "txt", Columns(user=None))]
    assert found == ["one text", "another", "the last"]
    path.write_bytes(b"fine\n\xff\n")
    with pytest.raises(UserError, match=r"a\.txt:2: invalid UTF-8"):
        list(read_sentences(Source(path), "txt", Columns(user=None)))
    with pytest.raises(UserError, match="no known suffix"):  # users are not assigned unasked
        list(read_sentences(Source(path)))
