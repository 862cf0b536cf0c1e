import pyarrow as pa
import pytest

from uedp.corpus.column import Column

VALUES = ["a", "", None, "ä\0b", "c", "d", None]


@pytest.fixture(params=[[7], [3, 0, 4], [1] * 7])
def column(request):
    chunks, start = [], 0
    for size in request.param:
        chunks.append(pa.array(VALUES[start : start + size], pa.string()))
        start += size
    return Column(pa.chunked_array(chunks, pa.string()))


def test_a_column_reads_like_a_list(column):
    assert list(column) == VALUES
    assert [column[n] for n in range(-7, 7)] == VALUES * 2
    for place in (7, -8):
        with pytest.raises(IndexError):
            column[place]
    for part in (slice(2), slice(1, 5), slice(4, 2), slice(None, None, -2), slice(3, 99)):
        assert list(column[part]) == VALUES[part]
        assert column[part] == VALUES[part]
        assert [column[part][n] for n in range(len(VALUES[part]))] == VALUES[part]
    assert column == VALUES == column
    assert column != VALUES[:-1]
    assert column != [*VALUES[:-1], "x"]
    assert column != 7
    assert not Column.of([])
    assert list(Column.of(iter(["x", "y"] * 3000))) == ["x", "y"] * 3000
