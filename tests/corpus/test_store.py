import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.conftest import marked
from uedp import files
from uedp.corpus import folder as corpus_folder
from uedp.corpus import store
from uedp.corpus.digest import text_digest
from uedp.corpus.folder import new_corpus_folder
from uedp.corpus.sentence import Sentence
from uedp.corpus.store import Corpus, RowWriter, SentenceWriter
from uedp.entities.detection import Detection, detect
from uedp.errors import UserError
from uedp.files import scratch_dir


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
    with new_corpus_folder(path, overwrite) as work:
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
    with new_corpus_folder(path) as work:
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
    monkeypatch.setattr(
        corpus_folder, "_refuse_existing", lambda *arguments: None
    )  # checked too early
    with pytest.raises(UserError, match="cannot be put in place"):
        make(path)
    assert (path / "corpus.json").read_text() == "old"
    assert everything(tmp_path) == ["corpus", "corpus/corpus.json"]


def test_overwriting(old, tmp_path):
    with new_corpus_folder(old, overwrite=True) as work:
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
    monkeypatch.setattr(files, "_exchanged", lambda one, other: False)  # as on other systems
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
    with scratch_dir(tmp_path / "corpus") as folder:
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
    table = store.read_arrow(tmp_path / "sentences.arrow", store.SENTENCES)
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
    with pytest.raises(UserError, match=r"corpus\.json: .*build it again"):
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


# --- files that another hand has changed ----------------------------------------------------------


def small(path: Path) -> Corpus:
    """Two users, three sentences, marks, mentions and labels."""
    sentences = [
        marked("ann", "Zoë met Bob", ("Zoë", "PER"), ("Bob", "PER"), label="x"),
        marked("ben", "Bob left", ("Bob", "PER")),
        marked("ann", "nothing"),
    ]
    return detect(sentences, path, Detection(("labels",)))


def rewrite(path: Path, **columns: list[object]) -> None:
    """Replace columns of an Arrow file; what it holds is still valid Arrow."""
    table = pa.ipc.open_file(path.read_bytes()).read_all()
    for name, changed in columns.items():
        number = table.schema.get_field_index(name)
        kind = table.schema.field(number)
        table = table.set_column(number, kind, pa.array(changed, kind.type))
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)


def everything_in(corpus: Corpus) -> None:
    list(corpus)
    list(corpus.spans())
    assert corpus.entities.num_rows


def mark(start: int | None, end: int | None, label: str | None = "PER") -> dict[str, object]:
    return {"start": start, "end": end, "label": label}


CHANGED = {
    "a user beyond the last": ("sentences", {"user": [0, 2, 0]}),
    "a negative user": ("sentences", {"user": [0, -1, 0]}),
    "no user": ("sentences", {"user": [0, None, 0]}),
    "no text": ("sentences", {"text": ["a", None, "c"]}),
    "a mark past the end": ("sentences", {"marks": [[mark(0, 12)], [], []]}),
    "a mark of nothing": ("sentences", {"marks": [[mark(1, 1)], [], []]}),
    "a mark before the text": ("sentences", {"marks": [[mark(-1, 2)], [], []]}),
    "half a mark": ("sentences", {"marks": [[mark(0, None)], [], []]}),
    "a mark without a label": ("sentences", {"marks": [[mark(0, 1, None)], [], []]}),
    "no mark where one is": ("sentences", {"marks": [[None], [], []]}),
    "no list of marks": ("sentences", {"marks": [None, [], []]}),
    "one user twice": ("users", {"name": ["ann", "ann"]}),
    "no name": ("users", {"name": ["ann", None]}),
    "a mention of no sentence": ("mentions", {"sentence": [0, 0, 3]}),
    "mentions out of order": ("mentions", {"sentence": [1, 0, 0]}),
    "an unknown category": ("mentions", {"category": [0, 0, 99]}),
    "a negative category": ("mentions", {"category": [0, 0, -1]}),
    "an unknown entity": ("mentions", {"entity": [0, 1, 2]}),
    "a mention past its text": ("mentions", {"end": [3, 11, 9]}),
    "a mention that ends before it begins": ("mentions", {"start": [0, 11, 0]}),
}


@pytest.mark.parametrize("case", CHANGED)
def test_values_out_of_range_are_refused(case, tmp_path):
    """Guarantee of `Corpus`."""
    everything_in(small(tmp_path / "c"))
    name, columns = CHANGED[case]
    rewrite(tmp_path / "c" / f"{name}.arrow", **columns)
    with pytest.raises(UserError, match=rf"{name}\.arrow: .*damaged") as refused:
        everything_in(Corpus(tmp_path / "c"))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("table", ["sentences", "users", "mentions", "entities"])
@pytest.mark.parametrize("lie", [-1, 2**31 - 1, -(2**31), 2**24])
def test_an_offset_that_points_elsewhere_does_not_crash(table, lie, tmp_path):
    """Arrow follows it, into memory that is not there."""
    corpus = small(tmp_path / "c")
    path = corpus.folder / f"{table}.arrow"
    data = path.read_bytes()
    column = {"sentences": "text", "mentions": "label"}.get(table, "name")
    chunk = pa.ipc.open_file(data).read_all()[column].chunk(0)
    offsets = chunk.buffers()[1].to_pybytes()[: 4 * (len(chunk) + 1)]
    at = data.index(offsets) + 4
    path.write_bytes(data[:at] + lie.to_bytes(4, "little", signed=True) + data[at + 4 :])
    with pytest.raises(UserError, match=rf"{table}\.arrow: .*damaged"):
        everything_in(Corpus(corpus.folder))


def test_text_that_is_not_utf8_is_refused(tmp_path):
    corpus = small(tmp_path / "c")
    path = corpus.folder / "sentences.arrow"
    path.write_bytes(path.read_bytes().replace(b"nothing", b"noth\xffng"))
    with pytest.raises(UserError, match=r"sentences\.arrow: .*UTF8.*damaged"):
        everything_in(Corpus(corpus.folder))


def test_another_schema_is_refused(tmp_path):
    corpus = small(tmp_path / "c")
    for table in (pa.table({"name": [1, 2]}), pa.table({"name": ["a", "b"], "more": ["c", "d"]})):
        with pa.ipc.new_file(str(corpus.folder / "users.arrow"), table.schema) as writer:
            writer.write_table(table)
        with pytest.raises(UserError, match=r"users\.arrow: not the columns of a corpus"):
            list(Corpus(corpus.folder))


def test_rows_that_were_added_or_lost_are_noticed(tmp_path):
    corpus, other = small(tmp_path / "c"), tmp_path / "other"
    detect([Sentence("u", "one")], other, Detection(("labels",)))
    shutil.copy(other / "users.arrow", corpus.folder)
    with pytest.raises(UserError, match=r"users\.arrow: 1 rows for 2 users"):
        list(Corpus(corpus.folder))


def test_an_incidence_that_was_changed_is_refused(tmp_path):
    """Valid in itself, but not the one that was written."""
    corpus = small(tmp_path / "c")
    assert corpus.incidence.digest == corpus.info["incidence_digest"]
    np.save(corpus.folder / "incidence" / "sentence_user.npy", np.array([1, 0, 0], np.int32))
    with pytest.raises(UserError, match="was changed: its digest"):
        _ = Corpus(corpus.folder).incidence


def test_the_digest_of_texts_is_kept(tmp_path):
    corpus = small(tmp_path / "c")
    texts = ["Zoë met Bob", "Bob left", "nothing"]
    assert corpus.text_digest == text_digest([0, 1, 0], texts, ["x", None, None])


def test_names_that_look_alike_are_one_user_however_they_come(tmp_path):
    sentences = [Sentence(name, "x") for name in ("bob", "bob\u200b", " bob ", "b\u00adob", "Bob")]
    corpus = detect(sentences, tmp_path / "c", Detection(("labels",)))
    assert corpus.user_names.to_pylist() == ["bob", "Bob"]
