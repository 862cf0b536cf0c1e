"""Locks, atomic writes, modes. Scratch directories: tests/corpus/test_overwriting.py."""

import os
import stat
import threading
import time

import pytest

from uedp import files
from uedp.errors import UserError


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_locked_file_is_refused_with_the_given_message(tmp_path):
    path = tmp_path / "ledger"
    with path.open("wb") as first, path.open("ab") as second:
        files.lock_file(first, "busy")
        with pytest.raises(UserError, match="in use by another"):
            files.lock_file(second, "in use by another")


def test_a_lock_is_waited_for_until_the_timeout(tmp_path):
    path = tmp_path / "ledger"
    first = path.open("wb")
    files.lock_file(first, "busy")
    release = threading.Timer(0.2, first.close)
    release.start()
    with path.open("ab") as second:
        files.lock_file(second, "busy", timeout=30)
        assert first.closed
    release.join()
    with path.open("ab") as third, path.open("ab") as fourth:
        files.lock_file(third, "busy")
        began = time.monotonic()
        with pytest.raises(UserError, match="busy"):
            files.lock_file(fourth, "busy", timeout=0.1)
        assert time.monotonic() - began >= 0.1


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "config.yaml"
    files.write_atomically(path, "old\n")

    def fail(file):
        raise OSError("no space left")

    monkeypatch.setattr(files, "fsync_file", fail)
    with pytest.raises(OSError, match="no space"):
        files.write_atomically(path, "new\n")
    assert path.read_text() == "old\n"
    assert set(tmp_path.iterdir()) <= {path, files.partial_path(path)}


def test_the_partial_file_of_a_killed_process_is_no_obstacle(tmp_path):
    path = tmp_path / "config.yaml"
    files.partial_path(path).write_text("a longer text that was never finished")
    files.write_atomically(path, "new\n")
    assert path.read_text() == "new\n"
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_file_is_private_and_a_replaced_one_keeps_its_mode(tmp_path):
    old_mask = os.umask(0)
    try:
        path = tmp_path / "result.json"
        files.write_atomically(path, "1")
        assert mode(path) == 0o600
        path.chmod(0o640)
        files.write_atomically(path, "2")
        assert mode(path) == 0o640
    finally:
        os.umask(old_mask)


def test_only_empty_directories_are_removed(tmp_path):
    inner = tmp_path / "outer" / "inner"
    inner.mkdir(parents=True)
    (tmp_path / "outer" / "file").touch()
    files.remove_empty([inner, inner.parent])
    assert not inner.exists()
    assert inner.parent.exists()
