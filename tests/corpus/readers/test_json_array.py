import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uedp.corpus.readers import SkippedRecords, json_array, read_sentences
from uedp.corpus.readers.json_array import json_records
from uedp.corpus.source import Source
from uedp.errors import UserError

ROWS = [{"user": "ann", "text": 'Zoë said "no", \\ {[' * 3}, {"user": 7, "text": "\n\u2028 b"}]


def texts(path, **options):
    return [(s.user, s.text) for s in read_sentences(path, **options)]


EXPECTED = [(str(row["user"]), row["text"]) for row in ROWS]
SHAPES = {
    "array": ROWS,
    "messages": {"name": "export", "count": 2, "columns": ["user", "text"], "messages": ROWS},
    "behind": {"messages": ROWS, "about": {"nested": [{"user": "x", "text": "not read"}]}},
    "empty lists": {"none": [], "messages": ROWS},
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("chunk", [1, 3, 1 << 16])
def test_an_array_or_an_object_that_holds_one(shape, indent, chunk, tmp_path, monkeypatch):
    monkeypatch.setattr(json_array, "_CHUNK", chunk)
    path = tmp_path / "x.json"
    path.write_text(json.dumps(SHAPES[shape], indent=indent, ensure_ascii=indent is None))
    assert texts(path) == EXPECTED


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(JSON, max_size=5), st.integers(1, 9), st.sampled_from([None, 1]))
def test_the_same_elements_however_they_are_cut(tmp_path_factory, rows, chunk, indent):
    path = tmp_path_factory.mktemp("x") / "x.json"
    path.write_text(json.dumps(rows, indent=indent))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_array, "_CHUNK", chunk)
        assert [record for _, record in json_records(Source(path))] == rows


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be", "utf-32"])
def test_encodings(encoding, tmp_path):
    path = tmp_path / "x.json"
    path.write_bytes(("\ufeff" * (encoding == "utf-16-be") + json.dumps(ROWS)).encode(encoding))
    assert texts(path) == EXPECTED


BAD = {
    "lines": ('{"user": "a", "text": "b"}\n{"user": "a", "text": "c"}', "without an array"),
    "two lists": (
        '{"a": [{"user": 1, "text": "x"}], "b": [{}]}',
        "two arrays of objects",
    ),
    "no list": ('{"a": 1, "b": ["x"]}', "an object without an array of objects, with a, b"),
    "more": ('[{"user": "a", "text": "b"}] []', "more after the end"),
    "a word": ('"hello"', "not a JSON array of objects"),
    "cut": ('[{"user": "a", "text": "b"}, {"user": "a", "te', "record 2: broken JSON on line 1"),
    "no comma": ('[{"user": "a", "text": "b"}\n{}]', "record 1: broken JSON on line 2 (a comma"),
    "bad value": ('[\n\n{"user": nobody}]', "record 1: broken JSON on line 3"),
    "deep": ("[" * 100_000, "nested too deeply"),
    "digits": (f"[{'9' * 5000}]", "thousands of digits"),
    "empty": ("", "holds no sentences"),
    "nothing": ("[]", "holds no sentences"),
    "twice": ('[{"user": "a", "user": "b"}]', "the key 'user' stands twice"),
    "a number": ("[1]", "record 1: not an object but int"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arrays(case, tmp_path):
    content, what = BAD[case]
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(UserError) as error:
        texts(path)
    assert what in str(error.value)


def test_bad_records_can_be_skipped(tmp_path):
    path = tmp_path / "x.json"
    path.write_text(json.dumps([ROWS[0], 3, {"user": "a"}, ROWS[1]]))
    skipped = SkippedRecords()
    assert texts(path, on_error=skipped) == EXPECTED
    assert skipped.count == 2


def test_arrays_and_lines_taken_for_each_other(tmp_path):
    path = tmp_path / "x.jsonl"
    for indent in (None, 2):
        path.write_text(json.dumps(ROWS, indent=indent))
        with pytest.raises(UserError, match="use `reader='json'`"):
            texts(path)
        assert texts(path, reader="json") == EXPECTED


def test_one_record_is_held_at_a_time(tmp_path):
    """Whatever the size of the file."""
    path = tmp_path / "x.json"
    row = json.dumps({"user": "a", "text": "b" * 1000})
    path.write_text(f"[{','.join([row] * 2000)}]")
    with Source(path).characters() as stream:
        text = json_array._Text(Source(path), stream)
        assert text.skip("[")
        longest = 0
        for _ in range(2000):
            text.value("x")
            text.skip(",")
            longest = max(longest, len(text._held))
    assert longest < 2 * json_array._CHUNK + len(row)
