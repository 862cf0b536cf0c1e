import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import marked
from uedp import folders
from uedp.corpus import store
from uedp.corpus.sentence import Sentence
from uedp.corpus.store import Corpus, RowWriter, SentenceWriter, new_folder
from uedp.entities.detection import Detection, detect
from uedp.errors import UserError
from uedp.folders import scratch


def everything(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def put(folder: Path, name: str = "new") -> None:
    (folder / "corpus.json").write_text(name)


def make(
    path: Path,
    name: str = "new",
    overwrite: bool = False,
    meanwhile: Callable[[], None] = lambda: None,
) -> None:
    with new_folder(path, overwrite) as work:
        put(work, name)
        meanwhile()


def fails_with(failure: type[BaseException]) -> Callable[[], None]:
    def fail() -> None:
        raise failure

    return fail


@pytest.fixture
def old(tmp_path) -> Path:
    """A corpus of sorts that stands where the next one should go."""
    path = tmp_path / "corpus"
    path.mkdir()
    put(path, "old")
    (path / "extra").write_text("of the old one")
    return path


def test_a_folder_appears_when_done(tmp_path):
    path = tmp_path / "a" / "b" / "corpus"
    with new_folder(path) as work:
        put(work)
        assert not path.exists()
        assert work.parent.parent == path.parent  # on the same disk
        assert work.parent.name.startswith(".")
    assert everything(tmp_path) == ["a", "a/b", "a/b/corpus", "a/b/corpus/corpus.json"]


@pytest.mark.parametrize("failure", [UserError, KeyboardInterrupt, SystemExit])
def test_failure_leaves_nothing_not_even_parents(failure, tmp_path):
    with pytest.raises(failure):
        make(tmp_path / "a" / "b" / "corpus", meanwhile=fails_with(failure))
    assert everything(tmp_path) == []


@pytest.mark.parametrize("failure", [UserError, KeyboardInterrupt, SystemExit])
def test_failure_spares_the_old_corpus(failure, old, tmp_path):
    with pytest.raises(failure):
        make(old, overwrite=True, meanwhile=fails_with(failure))
    assert (old / "corpus.json").read_text() == "old"
    assert everything(tmp_path) == ["corpus", "corpus/corpus.json", "corpus/extra"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_appeared_meanwhile_is_spared(overwrite, tmp_path):
    path = tmp_path / "corpus"

    def meanwhile() -> None:
        path.mkdir()
        (path / "thesis.txt").write_text("years of work")

    with pytest.raises(UserError, match="exists"):
        make(path, overwrite=overwrite, meanwhile=meanwhile)
    assert everything(tmp_path) == ["corpus", "corpus/thesis.txt"]


def test_of_two_into_one_place_the_first_wins(tmp_path):
    path = tmp_path / "corpus"
    with pytest.raises(UserError, match="exists already"):
        make(path, "slow", meanwhile=lambda: make(path, "quick"))
    assert (path / "corpus.json").read_text() == "quick"
    assert everything(tmp_path) == ["corpus", "corpus/corpus.json"]


def test_even_in_the_last_moment_nothing_is_replaced_unasked(tmp_path, monkeypatch):
    path = tmp_path / "corpus"
    path.mkdir()
    put(path, "old")
    monkeypatch.setattr(store, "_refuse_existing", lambda *arguments: None)  # checked too early
    with pytest.raises(UserError, match="cannot be put in place"):
        make(path)
    assert (path / "corpus.json").read_text() == "old"
    assert everything(tmp_path) == ["corpus", "corpus/corpus.json"]


def test_overwriting(old, tmp_path):
    with new_folder(old, overwrite=True) as work:
        put(work)
        assert (old / "corpus.json").read_text() == "old"
    assert (old / "corpus.json").read_text() == "new"
    assert everything(tmp_path) == ["corpus", "corpus/corpus.json"]


def test_the_old_corpus_is_deleted_only_when_the_new_one_stands(old, monkeypatch):
    """An interrupt while files are deleted finds a whole corpus in place."""
    real, seen = shutil.rmtree, []

    def interrupted(folder, **options):
        seen.append((old / "corpus.json").read_text())
        real(folder, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make(old, overwrite=True)
    assert seen == ["new"]
    assert everything(old) == ["corpus.json"]


def test_the_old_corpus_comes_back_if_the_new_one_cannot_take_its_place(old, tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "_exchanged", lambda one, other: False)  # as on other systems
    real = Path.rename

    def rename(self, target):
        if self.name == "new":
            raise KeyboardInterrupt
        return real(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(KeyboardInterrupt):
        make(old, overwrite=True)
    assert (old / "corpus.json").read_text() == "old"
    assert everything(tmp_path) == ["corpus", "corpus/corpus.json", "corpus/extra"]


def test_a_second_interrupt_does_not_disturb_the_clearing_away(tmp_path, monkeypatch):
    real = shutil.rmtree

    def interrupted(folder, **options):
        os.kill(os.getpid(), signal.SIGINT)
        real(folder, **options)

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path / "a" / "corpus", meanwhile=fails_with(UserError))
    assert everything(tmp_path) == []


def test_a_link_is_followed(old, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(old)
    with pytest.raises(UserError, match="exists already"):
        make(link)
    make(link, overwrite=True)
    assert link.is_symlink()
    assert (link / "corpus.json").read_text() == "new"
    assert everything(tmp_path) == ["corpus", "corpus/corpus.json", "link"]


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o777])
def test_only_the_owner_can_read_a_corpus_whatever_the_umask(umask, tmp_path):
    before = os.umask(umask)
    try:
        corpus = detect(
            [Sentence("u", "mail a@b.example")], tmp_path / "c", Detection(("patterns",))
        )
    finally:
        os.umask(before)
    modes = {p: p.stat().st_mode & 0o777 for p in (corpus.folder, *corpus.folder.rglob("*"))}
    assert len(modes) > 8
    assert all(mode == (0o700 if path.is_dir() else 0o600) for path, mode in modes.items())


def test_a_long_name_leaves_room_for_a_hidden_one(tmp_path):
    for name in ("n" * 250, "名" * 80):
        make(tmp_path / name)
        assert everything(tmp_path / name) == ["corpus.json"]


def test_scratch_is_hidden_private_and_gone(tmp_path):
    with scratch(tmp_path / "corpus") as folder:
        assert folder.name.startswith(".corpus.")
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "x").write_text("x")
    assert everything(tmp_path) == []


def test_long_documents_are_not_piled_up(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "CHARACTERS", 10_000)
    writer = SentenceWriter(tmp_path)
    for _ in range(20):
        writer.append(Sentence("u", "x" * 4000))
    writer.append(marked("u", "y" + "z" * 200, *[("y", "PER")] * 200))
    writer.append(Sentence("u", "last"))
    writer.close()
    table = store.read_table(tmp_path / "sentences.arrow", store.SENTENCES)
    assert [b.num_rows for b in table.to_batches()] == [3] * 6 + [3, 1]
    assert table.num_rows == 22


def test_a_failure_is_not_hidden_by_the_closing_of_its_file(tmp_path):
    def broken() -> None:
        with RowWriter(tmp_path / "x.arrow", store.USERS) as rows:
            rows.append("\ud800")  # it could not be flushed
            raise UserError("line 2")

    with pytest.raises(UserError, match="line 2"):
        broken()


MANIFESTS = {
    "empty": b"",
    "not JSON": b"{",
    "not UTF-8": b"\xff",
    "not an object": b"[]",
    "no counts": b'{"format": 2}',
    "nonsense": b'{"format": 2, "users": "many"}',
    "less than none": b'{"format": 2, "users": -1}',
    "a key twice": b'{"format": 2, "users": 1, "users": 2}',
    "too deep": b'{"format": ' + b"[" * 100_000,
    "no digests": b'{"format": 2, "users": 0, "sentences": 0, "entities": 0, "mentions": 0}',
}


@pytest.mark.parametrize("case", MANIFESTS)
def test_a_damaged_manifest_is_named(case, tmp_path):
    (tmp_path / "corpus.json").write_bytes(MANIFESTS[case])
    with pytest.raises(UserError, match=r"corpus\.json: .*uedp detect"):
        Corpus(tmp_path)


def test_a_damaged_table_is_named(tmp_path):
    corpus = detect([Sentence("u", "x" * 500)], tmp_path / "c", Detection(("labels",)))
    path = corpus.folder / "sentences.arrow"
    data = path.read_bytes()
    for damage in (data[: len(data) // 2], b"", data[:20] + b"\xff" * (len(data) - 20)):
        path.write_bytes(damage)
        with pytest.raises(UserError, match=r"sentences\.arrow: .*damaged"):
            list(Corpus(corpus.folder))
    path.unlink()
    with pytest.raises(UserError, match=r"sentences\.arrow: missing"):
        list(Corpus(corpus.folder))


def test_manifest_keeps_what_it_is_given(tmp_path):
    corpus = detect([Sentence("u", "x")], tmp_path / "c", Detection(("labels",)))
    counts = {name: corpus.info[name] for name in ("users", "sentences", "entities", "mentions")}
    store.write_manifest(corpus.folder, {**counts, "note": "grüß"})
    assert Corpus(corpus.folder).info["note"] == "grüß"
    assert json.loads((corpus.folder / "corpus.json").read_text())["format"] == store.FORMAT
