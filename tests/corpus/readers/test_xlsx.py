import sys
from datetime import datetime

import openpyxl
import pytest

from uedp.corpus.readers import SkippedRecords, read_sentences
from uedp.corpus.records import Columns
from uedp.errors import UserError


@pytest.fixture
def book():
    made = openpyxl.Workbook()
    sheet = made.active
    for row in (["Author", None, "Body"], [None], [17, "x", "Hi Zoë"], ["ann", None, "=1+1"]):
        sheet.append(row)
    return made


def read(book, folder, **options):
    path = folder / "x.xlsx"
    book.save(path)
    columns = Columns("Author", "Body")
    return [(s.user, s.text) for s in read_sentences(path, columns=columns, **options)]


def test_rows_under_a_header(book, tmp_path):
    book.create_sheet("empty")
    skipped = SkippedRecords()  # a formula that was never computed has no value
    assert read(book, tmp_path, on_error=skipped) == [("17", "Hi Zoë")]
    assert "row 4: empty text in 'Body'" in skipped.first


def test_bad_workbooks(book, tmp_path):
    def refused(what):
        with pytest.raises(UserError) as error:
            read(book, tmp_path)
        assert what in str(error.value)

    refused("row 4: empty text")
    book.active["C4"] = datetime(2026, 1, 1)
    refused("row 4: 'Body' holds")
    book.create_sheet("Other").append(["Author", "Body"])
    refused("holds the sheets Sheet, Other; save the one")
    book = openpyxl.Workbook()
    refused("holds no rows")
    book.active.append(["who", "what"])
    refused("no column 'Author' or 'Body'; the columns are who, what")
    path = tmp_path / "x.xlsx"
    path.write_text("user,text\n")
    with pytest.raises(UserError, match="not an Excel workbook, or damaged"):
        list(read_sentences(path))


def test_without_openpyxl(book, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    path = tmp_path / "x.xlsx"
    book.save(path)
    with pytest.raises(UserError, match=r"run `pip install 'uedp\[xlsx\]'`, or save .* as CSV"):
        list(read_sentences(path))


def test_dimensions_that_lie(book, tmp_path):
    """A workbook may claim a billion cells."""
    from zipfile import ZipFile

    book.active["C4"] = "there"
    path = tmp_path / "x.xlsx"
    book.save(path)
    with ZipFile(path) as packed:
        parts = {name: packed.read(name) for name in packed.namelist()}
    name = "xl/worksheets/sheet1.xml"
    parts[name] = parts[name].replace(b'ref="A1:C4"', b'ref="A1:XFD1048576"')
    assert b"XFD1048576" in parts[name]
    with ZipFile(path, "w") as packed:
        for each, data in parts.items():
            packed.writestr(each, data)
    rows = [s.text for s in read_sentences(path, columns=Columns("Author", "Body"))]
    assert rows == ["Hi Zoë", "there"]
