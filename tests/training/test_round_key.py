import json
import os
import stat

import pytest

from uedp.training.round_key import FILE, RoundKey


@pytest.fixture
def key(tmp_path):
    made = RoundKey(tmp_path, "a-run")
    made.reset()
    return made


def test_a_round_has_one_key_until_it_ends(key, tmp_path):
    first = key.begin(0)
    assert len(first) == 32
    assert RoundKey(tmp_path, "a-run").begin(0) == first == key.begin(0)
    key.end(0)
    assert first.hex() not in (tmp_path / FILE).read_text()
    second = key.begin(1)
    assert second != first
    key.end(1)
    assert key.begin(0) not in (first, second)  # never a key of a round that has ended
    key.remove()
    assert list(tmp_path.iterdir()) == []


def test_only_the_owner_can_read_it(key, tmp_path):
    for _ in range(2):
        key.begin(0)
        assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
        (tmp_path / FILE).chmod(0o644)  # a file that another hand opened to all is closed again
        key.end(0)
        assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600


def test_a_key_is_on_disk_before_it_is_used(key, tmp_path, monkeypatch):
    """Its content before its name, its name before `begin` returns."""
    synced, fsync = [], os.fsync

    def spy(descriptor):
        synced.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", spy)
    key.begin(0)
    assert synced == [(tmp_path / FILE).stat().st_ino, tmp_path.stat().st_ino]


def test_what_has_begun(key, tmp_path):
    assert key.state(0) == "not begun"
    key.begin(0)
    assert key.state(0) == "begun"
    assert key.state(1) == "not begun"  # entered in the ledger, killed before its key went
    key.end(0)
    assert key.state(1) == "not begun"
    # a ledger or a key file that is not the latest
    assert [key.state(number) for number in (0, 2, 3)] == ["unknown"] * 3


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"\xff",
        b"[]",
        b'{"run": "a-run", "round": 0}',
        b'{"run": "another", "round": 0, "key": null}',
        b'{"run": "a-run", "round": "0", "key": null}',
        b'{"run": "a-run", "round": true, "key": null}',
        b'{"run": "a-run", "round": 0, "key": "00"}',
        b'{"run": "a-run", "round": 0, "key": "key"}',
        b'{"run": "a-run", "round": 0, "key": 7}',
    ],
)
def test_a_file_that_this_run_did_not_write_is_unknown(content, key, tmp_path):
    key.begin(0)
    if content is None:
        (tmp_path / FILE).unlink()
    else:
        (tmp_path / FILE).write_bytes(content)
    assert key.state(0) == "unknown"
    fresh = key.begin(0)
    assert len(fresh) == 32
    assert json.loads((tmp_path / FILE).read_text())["key"] == fresh.hex()
