"""Replacing a corpus: killed at any moment, the old or the new one is there, ledger and all."""

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.accounting.plans import planned
from tests.corpus.overwriter import KILLED, LEDGER, write
from uedp import files
from uedp.accounting.ledger import Budget, CorpusLedger
from uedp.accounting.proven import UserLevelProfile
from uedp.corpus.folder import new_corpus_folder
from uedp.corpus.store import Corpus
from uedp.errors import UserError
from uedp.files import scratch_dir


def texts(folder: Path) -> list[str]:
    return [sentence.text for sentence in Corpus(folder)]


@pytest.mark.parametrize("how", ["exchange", "renames"])
def test_killed_at_every_file_event(how, tmp_path):
    """Guarantee of `new_folder`, where two folders can change places in one step and elsewhere."""
    command = [sys.executable, "-m", "tests.corpus.overwriter", str(tmp_path), how]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["code"] for row in found] == [KILLED] * (len(found) - 1) + [0]
    assert len(found) > 40
    assert not [row for row in found if "failed" in row]
    # the old one first, at some moment the new one, and never anything else
    corpora = [row["before"] for row in found]
    turn = corpora.index(["new"])
    assert corpora == [["old"]] * turn + [["new"]] * (len(found) - turn)
    assert 0 < turn < len(found) - 1
    for row in found:
        assert row["carried"], row
        assert row["after"] == ["next"], row
        assert row["left"] == ["corpus"], row  # nothing of the killed process


def test_the_ledger_of_a_replaced_corpus_stays_and_counts(tmp_path):
    """A budget of 9 allows a run of 8 once, not once more for every `detect --overwrite`."""
    out = tmp_path / "corpus"
    write(out, "old")
    profile = UserLevelProfile(user_rate=0.1, noise=1.0)
    CorpusLedger(out).reserve(planned("first", "0" * 64, profile, 100))
    (out / "ledger.mark").write_text("beside it")
    before = (out / "ledger.jsonl").read_bytes()
    spent = CorpusLedger(out).epsilon(1e-5)
    write(out, "new", overwrite=True)
    assert texts(out) == ["new"]
    assert (out / "ledger.jsonl").read_bytes() == before
    assert (out / "ledger.mark").read_text() == "beside it"
    with pytest.raises(UserError, match="budget epsilon"):
        CorpusLedger(out).reserve(
            planned("second", "1" * 64, profile, 100), Budget(spent * 1.1, 1e-5)
        )


def test_a_run_that_has_the_ledger_open_writes_to_the_one_that_stays(tmp_path):
    out = tmp_path / "corpus"
    write(out, "old")
    (out / "ledger.jsonl").write_bytes(LEDGER)
    with (out / "ledger.jsonl").open("ab") as file:
        write(out, "new", overwrite=True)
        file.write(b"more\n")
    assert (out / "ledger.jsonl").read_bytes() == LEDGER + b"more\n"


def test_a_ledger_begun_in_the_meantime_is_not_lost(tmp_path):
    out = tmp_path / "corpus"
    write(out, "old")
    write(tmp_path / "other", "new")
    with new_corpus_folder(out, overwrite=True) as work:
        for path in (tmp_path / "other").iterdir():
            path.rename(work / path.name)
        (out / "ledger.jsonl").write_bytes(LEDGER)
    assert (out / "ledger.jsonl").read_bytes() == LEDGER
    assert texts(out) == ["new"]


def test_a_ledger_that_is_being_written_is_waited_for(tmp_path):
    out = tmp_path / "corpus"
    write(out, "old")
    (out / "ledger.jsonl").write_bytes(LEDGER)
    with (out / "ledger.jsonl").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="another process is writing this ledger"):
            write(out, "new", overwrite=True)
    assert texts(out) == ["old"]
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"]


def test_a_disk_without_links_gets_a_copy(tmp_path, monkeypatch):
    out = tmp_path / "corpus"
    write(out, "old")
    (out / "ledger.jsonl").write_bytes(LEDGER)

    def refused(*arguments, **options):
        raise OSError("not supported")

    monkeypatch.setattr(os, "link", refused)
    write(out, "new", overwrite=True)
    assert (out / "ledger.jsonl").read_bytes() == LEDGER


# --- scratch folders -----------------------------------------------------------------------------


def left_behind(beside: Path) -> Path:
    """A scratch folder whose process was killed."""
    code = (
        "import os, sys; from pathlib import Path; from uedp.files import scratch_dir\n"
        f"with scratch_dir(Path({str(beside)!r})) as folder:\n"
        "    (folder / 'private').write_text('x'); print(folder); sys.stdout.flush(); os._exit(9)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 9
    return Path(done.stdout.strip())


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path):
    folder = left_behind(tmp_path / "corpus")
    assert (folder / "private").is_file()
    with scratch_dir(tmp_path / "another corpus") as own:
        assert sorted(path.name for path in tmp_path.iterdir()) == [own.name]
    assert list(tmp_path.iterdir()) == []


def test_a_live_process_keeps_its_folder(tmp_path):
    with scratch_dir(tmp_path / "corpus") as one:
        with scratch_dir(tmp_path / "corpus") as other:
            files.clear_dead(tmp_path)
            assert one.is_dir()
            assert other.is_dir()
        assert one.is_dir()


def test_what_is_not_a_scratch_folder_is_left_alone(tmp_path):
    others = tmp_path / ".cache.0123456789ab"  # of another program, by chance
    others.mkdir()
    (others / "precious").write_text("x")
    file = tmp_path / ".file.0123456789ab"
    file.write_text("x")
    link = tmp_path / ".link.0123456789ab"
    link.symlink_to(left_behind(tmp_path / "elsewhere" / "corpus"))
    with scratch_dir(tmp_path / "corpus"):
        pass
    assert (others / "precious").is_file()
    assert file.is_file()
    assert (link / "private").is_file()


def test_a_name_that_leads_elsewhere_is_not_followed(tmp_path):
    """What a leftover says it stands beside is a name, never a path."""
    place = tmp_path / "inside"
    folder = left_behind(place / "corpus")
    (folder / files.OWNER).write_text("../outside")
    (folder / files.REPLACED).mkdir()
    files.clear_dead(place)
    assert not (tmp_path / "outside").exists()
    assert not folder.exists()
