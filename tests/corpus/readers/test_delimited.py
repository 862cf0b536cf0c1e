import pytest

from uedp.corpus.readers import read_sentences
from uedp.corpus.source import Source
from uedp.errors import UserError

ROWS = [("ann", "Hi; there, you | all"), ("ben", 'two\nlines, "quoted"'), ("zoë", "tab\there")]


def written(path, delimiter, encoding="utf-8", before=""):
    lines = [delimiter.join(("user", "text", "n"))]
    for number, row in enumerate(ROWS):
        cells = ['"{}"'.format(cell.replace('"', '""')) for cell in row]
        lines.append(delimiter.join((*cells, str(number))))
    path.write_bytes((before + "\r\n".join(lines)).encode(encoding))
    return path


def rows(path, **options):
    return [(s.user, s.text) for s in read_sentences(Source(path, **options))]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_the_delimiter_is_recognised(delimiter, tmp_path):
    assert rows(written(tmp_path / "x.csv", delimiter)) == ROWS
    assert rows(written(tmp_path / "x.csv", delimiter), delimiter=delimiter) == ROWS


def test_a_delimiter_that_is_declared_or_given(tmp_path):
    path = written(tmp_path / "x.csv", ";", before="sep=;\r\n")
    assert rows(path) == ROWS
    assert rows(written(path, ":"), delimiter=":") == ROWS
    assert rows(written(path, "\t"), delimiter="tab") == ROWS
    assert rows(written(tmp_path / "x.tsv", ",")) == ROWS


def test_a_wrong_delimiter_names_the_right_one(tmp_path):
    path = written(tmp_path / "x.csv", ";")
    with pytest.raises(UserError, match=r"x.csv:1: a single column.*use `delimiter=';'`"):
        rows(path, delimiter="|")
    with pytest.raises(UserError, match="`delimiter='tab'`"):
        rows(written(path, "\t"), delimiter="|")
    for bad in ("", ";;", '"', "\n", "é"):
        with pytest.raises(UserError, match=r"`delimiter=.*give one character"):
            rows(path, delimiter=bad)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_byte_order_marks(encoding, tmp_path):
    assert rows(written(tmp_path / "x.csv", ";", encoding)) == ROWS


@pytest.mark.parametrize("encoding", ["cp1252", "latin-1", "utf-16-le", "UTF-8"])
def test_an_encoding_that_is_given(encoding, tmp_path):
    assert rows(written(tmp_path / "x.csv", ",", encoding), encoding=encoding) == ROWS


def test_encodings_that_do_not_fit(tmp_path):
    path = written(tmp_path / "x.csv", ",", "cp1252")
    with pytest.raises(UserError, match=r"x.csv:5: invalid UTF-8 .*`encoding='cp1252'`"):
        rows(path)
    path = written(path, ",", "utf-16-le")
    with pytest.raises(UserError, match="use `encoding='utf-16-le'`"):
        rows(path)
    path.write_bytes(path.read_bytes() + b"\x00")
    with pytest.raises(UserError, match=r"x.csv:5: not text in `encoding='utf-16-le'`"):
        rows(path, encoding="utf-16-le")
    path.write_bytes(b"\xff\xfe" + path.read_bytes())
    with pytest.raises(UserError, match=r"x.csv:5: invalid UTF-16"):
        rows(path)
    for bad in ("english", "rot13", "\0"):
        with pytest.raises(UserError, match=r"`encoding=.*unknown"):
            rows(path, encoding=bad)


COLUMNS = {
    "author,body": "name them with `user='author'`, `text='body'`",
    "From,Message": "name them with `user='From'`, `text='Message'`",
    "user,body": "no column 'text'; the columns are user, body; name it with `text='body'`",
    "usr,text": "`user='usr'`",
    "x,y": "name them with `user=...`, `text=...` (or use `assign_users=...`",
    "ann,Hello my dear old friend Wilhelmina": "the columns are ann, (35 characters)",
}


@pytest.mark.parametrize("header", COLUMNS)
def test_likely_columns_are_named(header, tmp_path):
    path = tmp_path / "x.csv"
    path.write_text(f"{header}\na,b\n")
    with pytest.raises(UserError) as error:
        rows(path)
    assert COLUMNS[header] in str(error.value)
