"""A folder of many files of one format is read as one source."""

import gzip
import json

import pytest

from uedp.corpus.readers import SkippedRecords, choose_reader, open_source, read_sentences
from uedp.corpus.records import Columns
from uedp.corpus.source import Source
from uedp.errors import UserError


def lines(*rows):
    return "".join(json.dumps({"user": user, "text": text}) + "\n" for user, text in rows)


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "many"
    folder.mkdir()
    (folder / "b.jsonl").write_text(lines(("ann", "second")))
    (folder / "a.jsonl").write_text(lines(("ben", "first")))
    with gzip.open(folder / "c.JSONL.gz", "wt") as file:
        file.write(lines(("ann", "third")))
    return folder


def texts(path, reader="auto", columns=Columns()):  # noqa: B008 - frozen
    return [sentence.text for sentence in read_sentences(path, reader, columns)]


def test_files_are_read_in_the_order_of_their_names(folder):
    (folder / ".hidden").write_text("no JSON")
    (folder / "_SUCCESS").write_text("")
    (folder / "aa.jsonl").write_text("\n")  # without a record
    assert texts(folder) == ["first", "second", "third"]
    assert texts(folder, "jsonl") == ["first", "second", "third"]


def test_the_position_passes_through_all_files(folder):
    source, kind = open_source(folder)
    assert (source.size, source.position) == (sum(p.stat().st_size for p in folder.iterdir()), 0)
    positions = [source.position for _ in read_sentences(source, kind)]
    assert positions == sorted(positions)
    assert source.position == source.size


@pytest.mark.parametrize(
    ("name", "content", "reader"),
    [
        ("x.csv", "user,text\nann,a,b\n", "csv"),
        ("x.txt", b"\xff\n", "txt"),
        ("x.jsonl", "{\n", "jsonl"),
        ("x.json", "[{", "json"),
        ("x.parquet", "PAR", "parquet"),
    ],
)
def test_an_error_names_the_file(name, content, reader, tmp_path):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    columns = Columns(user=None) if reader == "txt" else Columns()
    with pytest.raises(UserError, match=rf"/{name}:"):
        texts(tmp_path, reader, columns)


def test_invalid_records_of_all_files_are_counted(folder):
    (folder / "a.jsonl").write_text("oops\n" + lines(("ann", "ok")))
    (folder / "b.jsonl").write_text("[]\n[]\n")
    skipped = SkippedRecords()
    found = list(read_sentences(folder, on_error=skipped))
    assert [sentence.text for sentence in found] == ["ok", "third"]
    assert skipped.count == 3
    assert skipped.first.startswith(f"{folder}/a.jsonl:1: ")


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("d.csv", "holds files of several formats, csv, jsonl; name one of the files"),
        ("notes.md", "notes.md: is not jsonl like other files of its folder; move it away"),
        ("inner/", "holds inner, not a file; only files are read"),
    ],
)
def test_a_folder_that_is_not_of_one_format_is_refused(name, error, folder):
    (folder / name).mkdir() if name.endswith("/") else (folder / name).write_text("x")
    with pytest.raises(UserError, match=error):
        texts(folder)


def test_an_empty_folder_and_one_without_sentences_are_refused(tmp_path):
    with pytest.raises(UserError, match="not a data set"):
        texts(tmp_path)
    with pytest.raises(UserError, match="holds no files"):
        texts(tmp_path, "jsonl")
    (tmp_path / "a.jsonl").write_text("\n")
    with pytest.raises(UserError, match=f"{tmp_path}: holds no sentences"):
        texts(tmp_path)


def test_mail_and_data_sets_are_read_as_before(tmp_path):
    for name, kind in (("a.eml", "eml"), ("state.json", "hf"), ("a.arrow", "hf")):
        folder = tmp_path / name.replace(".", "-")
        folder.mkdir()
        (folder / name).write_text("From: ann@x.example\n\nhello\n")
        assert choose_reader("auto", Source(folder)) == kind


def test_users_that_a_reader_numbers_are_of_one_file(tmp_path):
    for name in ("a.conll", "b.conll"):
        (tmp_path / name).write_text("-DOCSTART- O\n\nBob B-PER\n\n-DOCSTART- O\n\nLee O\n")
    users = [sentence.user for sentence in read_sentences(tmp_path, "conll")]
    assert len(set(users)) == 4
    alone = [sentence.user for sentence in read_sentences(tmp_path / "a.conll", "conll")]
    assert alone == ["doc-00001", "doc-00002"]
    record = [{"full_text": "Bob", "spans": []}]
    for name in ("a.json", "b.json"):
        (tmp_path / "other").mkdir(exist_ok=True)
        (tmp_path / "other" / name).write_text(json.dumps(record))
    users = [each.user for each in read_sentences(tmp_path / "other", "presidio-research")]
    assert len(set(users)) == 2
