import pytest

from tests.training.runs import DEEP, metrics, refused, stopping_after
from uedp.training.metrics import FILE, Metrics


def test_resuming_drops_an_incomplete_line(train, tmp_path):
    train(progress=stopping_after(2))
    with (tmp_path / "run" / FILE).open("a") as file:
        file.write('{"round": 3, "ra')
    train(resume=True)
    assert [row["round"] for row in metrics(tmp_path / "run")] == [1, 2, 3, 4]


def test_values_that_are_not_finite_become_null(tmp_path):
    with Metrics(tmp_path, 0) as found:
        found.add({"round": 1, "perplexity": float("nan"), "rate": float("inf"), "users": 3})
    assert metrics(tmp_path) == [{"round": 1, "perplexity": None, "rate": None, "users": 3}]


@pytest.mark.parametrize(
    "line",
    [
        b"garbage",
        b"{}",
        b"[]",
        b"7",
        b"\xff",
        b'{"round": "1"}',
        b'{"round": 1e999}',
        b'{"round": 0.5}',
        b'{"round": 1, "round": 2}',
        b'{"round": -1',
        DEEP,
        b"",
    ],
)
def test_damaged_metrics_are_refused_with_their_line(line, tmp_path):
    path = tmp_path / FILE
    path.write_bytes(b'{"round": 1}\n' + line + b'\n{"round": 3}\n')
    before = path.read_bytes()
    message = refused(lambda: Metrics(tmp_path, 3))
    assert message.startswith(f"{path}:")
    assert "damaged" in message
    assert path.read_bytes() == before


def test_an_incomplete_last_line_is_dropped(tmp_path):
    path = tmp_path / FILE
    path.write_bytes(b'{"round": 1}\n{"round": 2, "rate": 0.\xff')
    with Metrics(tmp_path, 3):
        pass
    assert path.read_bytes() == b'{"round": 1}\n'
