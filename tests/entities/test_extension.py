"""A corpus that grows: new text, new entities in old text, users who leave, and kills."""

import json
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from tests.entities.extender import DETECTION, KILLED, tree
from uedp.corpus.sentence import Sentence, Span
from uedp.corpus.store import Corpus
from uedp.entities.build import build_corpus
from uedp.entities.deidentify import deidentify
from uedp.entities.detection import Detection, detect, relink
from uedp.entities.detectors import register_detector
from uedp.entities.extend import extend_corpus
from uedp.entities.extension import extend
from uedp.entities.lists import Lists
from uedp.errors import UserError


@register_detector("marked-names")
class Marked:
    """A stand-in for a model: it finds a capitalised name before an exclamation mark."""

    propagates = True

    def __init__(self, argument: str | None) -> None:
        assert argument is None

    def detect(self, texts: Sequence[str]) -> Iterator[list[Span]]:
        for text in texts:
            found = re.finditer(r"[A-Z]\w+(?: [A-Z]\w+)*(?=!)", text)
            yield [Span(match.start(), match.end(), "PER") for match in found]


MODEL = Detection(("marked-names",))
OLD = [
    Sentence("ann", "Bob! was here"),
    Sentence("ben", "I saw Zorkan today"),
    Sentence("ben", "nothing to see"),
    Sentence("cat", "Bob and Ann Lee met"),
]
NEW = [Sentence("dan", "Zorkan! called"), Sentence("ann", "Ann Lee! knows Bob")]


def found(corpus: Corpus) -> list[set[str]]:
    """The names that each sentence mentions."""
    return [
        {text[span.start : span.end] for span, _ in spans}
        for text, spans in zip((s.text for s in corpus), corpus.spans(), strict=True)
    ]


def random_texts(rng: np.random.Generator, count: int, first: int = 0) -> list[Sentence]:
    names = ["Zorkan", "Mara Lund", "Ann Lee", "Bob", "Quill", "mark", "May"]
    texts = []
    for _ in range(count):
        words = ["the", "day", "is", str(rng.choice(names)), "good", str(rng.choice(names))]
        text = " ".join(rng.permutation(words)) + str(rng.choice(["!", ""], p=[0.4, 0.6]))
        texts.append(Sentence(f"u{first + rng.integers(4)}", text))
    return texts


def test_new_entities_are_found_in_old_text_and_ids_stay(tmp_path):
    """Guarantees of extend."""
    corpus = detect(OLD, tmp_path / "c", MODEL)
    before = tree(corpus.folder)
    assert found(corpus) == [{"Bob"}, set(), set(), {"Bob"}]
    grown = extend(corpus, NEW, MODEL)
    assert grown.late == 2
    after = grown.corpus
    assert found(after) == [
        *({"Bob"}, {"Zorkan"}, set(), {"Bob", "Ann Lee"}),
        *({"Zorkan"}, {"Ann Lee", "Bob"}),
    ]
    assert after.user_names.to_pylist() == ["ann", "ben", "cat", "dan"]
    assert after.entities["surface"].to_pylist() == ["Bob", "Zorkan", "Ann Lee"]
    assert after.incidence.sentence_user.tolist() == [0, 1, 1, 2, 3, 0]
    after.check_texts()
    assert after.hits.num_rows == 3
    assert after.evidence is not None
    # nothing that was there is changed, and it can be opened as it was
    now = tree(corpus.folder)
    assert {name: now[name] for name in before} == before
    was = Corpus(corpus.folder, 1)
    assert was.incidence.digest == corpus.incidence.digest
    assert found(was) == found(corpus)
    assert was.info == corpus.info


def test_a_corpus_of_one_epoch_has_no_trace_of_epochs(tmp_path):
    folder = detect(OLD, tmp_path / "c", MODEL).folder
    assert not (folder / "epochs").exists()
    assert "epochs" not in json.loads((folder / "corpus.json").read_text())


@pytest.mark.parametrize("seed", range(6))
def test_new_text_is_linked_as_if_all_were_detected_together(seed, tmp_path):
    """And older text has at least what it would have then, or had."""
    rng = np.random.default_rng(seed)
    parts = [random_texts(rng, 12, first) for first in (0, 2, 4)]
    corpus = detect(parts[0], tmp_path / "c", MODEL)
    had = found(corpus)
    for number, part in enumerate(parts[1:], 2):
        grown = extend(corpus, part, MODEL)
        whole = detect(
            list(chain.from_iterable(parts[:number])), tmp_path / f"whole-{number}", MODEL
        )
        ours, theirs = found(grown.corpus), found(whole)
        assert ours[len(corpus) :] == theirs[len(corpus) :]
        for old, mine, all_ in zip(had, ours, theirs, strict=False):
            assert old <= mine  # never lost
            assert {n for n in all_ if n not in ("mark", "May")} <= mine
        assert grown.corpus.user_names.to_pylist() == whole.user_names.to_pylist()
        corpus, had = grown.corpus, ours


def test_users_who_leave_are_in_no_later_round(tmp_path):
    corpus = extend(detect(OLD, tmp_path / "c", MODEL), NEW, MODEL).corpus
    gone = extend(corpus, [Sentence("ben", "again"), Sentence("eve", "Hi")], MODEL, forget=["ben"])
    assert (gone.left, gone.left_out) == (1, 1)
    kept, incidence = gone.corpus.for_rounds()
    assert kept.tolist() == [0, 3, 4, 5, 6]
    assert (incidence.users, incidence.sentences) == (4, 5)
    assert incidence.sentence_user.tolist() == [0, 1, 2, 0, 3]
    assert gone.corpus.incidence.users == 5  # ids stay
    assert corpus.for_rounds()[0] is None
    later = extend(gone.corpus, [Sentence("ben", "me too"), Sentence("fay", "x")], MODEL)
    assert later.left_out == 1
    assert later.corpus.for_rounds()[1].users == 5
    for names, reason in ((["ben"], "has left already"), (["nobody"], "no user of this corpus")):
        with pytest.raises(UserError, match=reason):
            extend(later.corpus, (), MODEL, forget=names)


def test_a_deidentified_copy_has_no_text_of_one_who_left(tmp_path):
    corpus = extend(detect(OLD, tmp_path / "c", MODEL), NEW, MODEL, forget=["ben"]).corpus
    copy = deidentify(corpus, tmp_path / "d")
    assert copy.user_names.to_pylist() == ["ann", "cat", "dan"]
    with pytest.raises(UserError, match="is de-identified"):
        extend_corpus(copy, tmp_path / "more.jsonl")


def test_aliases_and_lists_of_the_corpus_hold_in_later_epochs(tmp_path):
    lists = Lists(sensitive={"Projekt X": "misc"}, aliases={"Big Blue": "Ibm Corp"})
    detection = Detection(("marked-names",), lists=lists)
    corpus = detect([Sentence("a", "Big Blue is large")], tmp_path / "c", detection)
    assert found(corpus) == [set()]
    grown = extend(corpus, [Sentence("b", "Ibm Corp! and projekt x")], detection).corpus
    assert found(grown) == [{"Big Blue"}, {"Ibm Corp", "projekt x"}]
    again = extend(grown, [Sentence("c", "BIG BLUE, or PROJEKT X")], detection).corpus
    assert found(again)[2] == {"BIG BLUE", "PROJEKT X"}
    assert again.entities.num_rows == 2


def test_nothing_new_is_refused_and_leaves_nothing(tmp_path):
    corpus = detect(OLD, tmp_path / "c", MODEL)
    before = tree(corpus.folder)
    with pytest.raises(UserError, match="nothing to add"):
        extend(corpus, [], MODEL)

    def fails() -> Iterator[Sentence]:
        yield NEW[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extend(corpus, fails(), MODEL)
    assert tree(corpus.folder) == before
    assert not (corpus.folder / "epochs").exists()


def test_two_extensions_at_once_do_not_both_follow_the_same_epoch(tmp_path):
    corpus = detect(OLD, tmp_path / "c", MODEL)

    def meanwhile() -> Iterator[Sentence]:
        extend(corpus, NEW, MODEL)
        yield Sentence("x", "late")

    with pytest.raises(UserError, match="another process meanwhile"):
        extend(corpus, meanwhile(), MODEL)
    assert len(Corpus(corpus.folder).epochs) == 2


def test_killed_at_every_file_event(tmp_path):
    """Guarantee of extend: complete or not at all."""
    command = [sys.executable, "-m", "tests.entities.extender", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["code"] for row in rows] == [KILLED] * (len(rows) - 1) + [0]
    assert len(rows) > 10
    epochs = [row["epochs"] for row in rows]
    assert epochs == sorted(epochs)
    assert set(epochs) == {1, 2}
    assert all(row["first"] and row["again"] for row in rows)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("epoch.json", lambda text: text.replace(b'"epoch": 2', b'"epoch": 3')),
        ("epoch.json", lambda text: text.replace(b'"left": []', b'"left": [0]')),
        ("epoch.json", lambda text: b"{"),
        ("sentences.arrow", lambda text: text.replace(b"called", b"killed")),
        ("mentions.arrow", None),
    ],
)
def test_a_changed_epoch_is_refused(tmp_path, name, change):
    corpus = extend(detect(OLD, tmp_path / "c", MODEL), NEW, MODEL).corpus
    path = corpus.epochs[-1].folder / name
    if change is None:
        path.unlink()
    else:
        assert change(path.read_bytes()) != path.read_bytes()
        path.write_bytes(change(path.read_bytes()))
    with pytest.raises(UserError, match=re.escape(str(corpus.folder))):
        Corpus(corpus.folder).check_texts()


def test_an_epoch_taken_out_breaks_the_chain(tmp_path):
    corpus = extend(detect(OLD, tmp_path / "c", MODEL), NEW, MODEL).corpus
    extend(corpus, [Sentence("x", "y")], MODEL)
    epochs = corpus.folder / "epochs"
    (epochs / "0002").rename(tmp_path / "kept")
    with pytest.raises(UserError, match="where 2, 3"):
        Corpus(corpus.folder)
    (epochs / "0003").rename(epochs / "0002")
    with pytest.raises(UserError, match="does not follow epoch 1"):
        Corpus(corpus.folder)


def test_an_index_that_is_damaged_is_refused(tmp_path):
    corpus = extend(detect(OLD, tmp_path / "c", MODEL), NEW, MODEL).corpus
    (corpus.folder / "epochs/0002/index-0001.sqlite").write_bytes(b"no database" * 1000)
    with pytest.raises(UserError, match="missing or damaged"):
        extend(corpus, [Sentence("x", "y")], MODEL)


@pytest.mark.parametrize("table", ["users", "entities"])
def test_nobody_gets_a_second_id_unnoticed(tmp_path, table):
    """An index that has lost a name takes its user or entity for a new one."""
    corpus = extend(detect(OLD, tmp_path / "c", MODEL), NEW, MODEL).corpus
    with sqlite3.connect(corpus.folder / "epochs/0002/index-0001.sqlite") as index:
        index.execute(f"DELETE FROM {table}")
    index.close()
    again = extend(corpus, [Sentence("ann", "Bob! again")], MODEL).corpus
    with pytest.raises(UserError, match="is listed twice"):
        again.check_texts()


def test_what_cannot_grow_is_refused(tmp_path):
    normalised = detect(OLD, tmp_path / "n", Detection(("marked-names",), normalised=True))
    with pytest.raises(UserError, match="normalised"):
        extend(normalised, NEW, MODEL)
    grown = extend(detect(OLD, tmp_path / "c", MODEL), NEW, MODEL).corpus
    with pytest.raises(UserError, match="keep their ids"):
        relink(grown, tmp_path / "out")
    with pytest.raises(UserError, match="with the detectors it was made with"):
        extend(grown, NEW, DETECTION)


# --- from a file ---------------------------------------------------------------------------------


def write(path: Path, *rows: tuple[str, str]) -> Path:
    lines = (json.dumps({"user": user, "text": text}) for user, text in rows)
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_file_is_read_as_the_corpus_was(tmp_path):
    first = write(tmp_path / "a.jsonl", ("ann", "One is here. Two is there."))
    corpus = build_corpus(first, tmp_path / "c", on_warning=lambda line: None)
    more = write(tmp_path / "b.jsonl", ("ann", "Call 555-123-4567. Bye now."), ("bob", "Hello."))
    grown = extend_corpus(corpus, more).corpus
    assert (len(grown), grown.users) == (5, 2)
    assert found(grown)[2] == {"555-123-4567"}
    whole = extend_corpus(grown, more, split="none").corpus
    assert len(whole) == 7


def test_users_held_out_stay_out(tmp_path):
    names = [f"user-{number}" for number in range(30)]
    first = write(tmp_path / "a.jsonl", *((name, "hello there") for name in names))
    build_corpus(
        first, tmp_path / "c", hold_out=tmp_path / "h", hold_out_share=0.3, on_warning=print
    )
    more = write(tmp_path / "b.jsonl", *((f"user-{number}", "more") for number in range(60)))
    sides = [extend_corpus(tmp_path / side, more).corpus for side in ("c", "h")]
    train, held = (set(side.user_names.to_pylist()) for side in sides)
    assert not train & held
    assert len(train | held) == 60


def test_groups_of_new_texts_are_new_users(tmp_path):
    lines = "\n".join(f"text number {number}" for number in range(60))
    (tmp_path / "a.txt").write_text(lines)
    corpus = build_corpus(
        tmp_path / "a.txt", tmp_path / "c", reader="txt", on_warning=lambda line: None
    )
    grown = extend_corpus(corpus, tmp_path / "a.txt").corpus
    assert grown.users == 2 * corpus.users
    people = build_corpus(
        write(tmp_path / "p.jsonl", ("a", "b")), tmp_path / "p", on_warning=lambda line: None
    )
    with pytest.raises(UserError, match="its users are people"):
        extend_corpus(people, tmp_path / "a.txt", reader="txt")
