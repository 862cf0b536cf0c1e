"""Changes to what a corpus protects: tried, written as lists, taken back, applied."""

import shlex
import stat
import time
from pathlib import Path

import pytest

from tests.entities.test_detection import files_of
from uedp.accounting.marks import Mark
from uedp.corpus.store import Corpus
from uedp.entities.detection import lists_of, relink
from uedp.entities.lists import Lists, read_lists
from uedp.errors import UserError
from uedp.mechanism.sampling import usable_share
from uedp.studio.draft import Draft, Figures
from uedp.studio.list_files import list_file, lists_folder, read_list_files, write_list_files
from uedp.studio.protection import command


def settled(draft: Draft) -> Draft:
    """Wait until nothing is computed any more; an endless wait is the test's time limit."""
    while draft.progressed.busy:
        time.sleep(0.01)
    assert draft.progressed.error == ""
    return draft


@pytest.fixture
def draft(corpus):
    opened = Draft(corpus.folder)
    yield opened
    opened.close()


def surfaces(view, name):
    number = view.numbers.get(name)
    return 0 if number is None else int((view.entity == number).sum())


def test_a_miss_is_on_the_list_and_in_the_numbers(draft, corpus):
    assert surfaces(draft.view, "smallville") == 0
    draft.add("sensitive", "Smallville", "gpe")
    assert read_lists(deny=list_file(draft.folder, "sensitive")).sensitive == {"Smallville": "gpe"}
    settled(draft)
    assert surfaces(draft.view, "smallville") == 60
    assert draft.after.exact
    assert draft.after.entities == draft.before.entities + 1
    assert draft.after.usable < draft.before.usable
    other = relink(corpus, corpus.folder.with_name("other"), lists=draft.choice.lists)
    assert draft.after.usable == usable_share(other.incidence)


def test_a_false_hit_and_an_alias(draft):
    draft.add("public", "Ann Lee", "a false hit")
    settled(draft)
    assert surfaces(draft.view, "annlee") == 0
    assert draft.after.usable > draft.before.usable
    draft.undo()
    draft.add("aliases", "Bob", "Ann Lee")
    settled(draft)
    assert surfaces(draft.view, "bob") == 0
    assert surfaces(draft.view, "annlee") > surfaces(draft.base, "annlee")


def test_nothing_changes_the_corpus_but_apply(draft, corpus):
    before = files_of(corpus.folder)
    draft.add("sensitive", "Smallville", "gpe")
    draft.protect(frozenset({"person"}), draft.applied.detectors, ("months",), False)
    settled(draft)
    assert files_of(corpus.folder) == before
    draft.undo()
    draft.apply()
    settled(draft)
    assert not draft.changed
    assert lists_of(Corpus(corpus.folder)).sensitive == {"Smallville": "gpe"}
    assert Figures.of(Corpus(corpus.folder).incidence) == draft.before == draft.after


def test_the_command_does_what_apply_does(draft, corpus, tmp_path, run):
    other = relink(corpus, tmp_path / "other")
    draft.add("sensitive", "Smallville", "gpe")
    draft.add("public", "Bob", 'he said "so", twice')
    draft.protect(frozenset({"person", "gpe"}), draft.applied.detectors, ("months",), False)
    shown = shlex.split(command(corpus.folder, draft.applied, draft.choice))
    assert shown[:3] == ["uedp", "entities", str(corpus.folder)]
    assert run("entities", other.folder, *shown[3:]).code == 0
    settled(draft).apply()
    settled(draft)
    assert files_of(corpus.folder) == files_of(other.folder)
    # what was applied can be taken off again
    draft.remove("public", "Bob")
    shown = shlex.split(command(corpus.folder, draft.applied, draft.choice))
    assert run("entities", other.folder, *shown[3:]).code == 0
    settled(draft).apply()
    settled(draft)
    assert lists_of(Corpus(corpus.folder)).public == {}
    assert files_of(corpus.folder) == files_of(other.folder)


def test_without_a_detector_only_its_hits_are_missing(draft):
    draft.protect(draft.applied.categories, frozenset({"labels"}), (), True)
    settled(draft)
    assert {name for bits in draft.view.detectors for name in draft.view._names(int(bits))} == {
        "labels"
    }
    assert surfaces(draft.view, "zoe@example.org") == 0
    assert surfaces(draft.view, "annlee") == surfaces(draft.base, "annlee")
    with pytest.raises(UserError, match="all detectors"):
        draft.apply()


def test_undo_goes_back_step_by_step(draft):
    assert not draft.can_undo
    draft.add("sensitive", "Smallville", "gpe")
    draft.add("sensitive", "March", "date")
    draft.undo()
    assert draft.choice.lists.sensitive == {"Smallville": "gpe"}
    assert read_list_files(draft.folder).sensitive == {"Smallville": "gpe"}
    draft.undo()
    assert not draft.changed
    assert not list_file(draft.folder, "sensitive").exists()
    with pytest.raises(UserError, match="nothing to undo"):
        draft.undo()


def test_the_last_word_on_an_entity_holds(draft):
    draft.add("public", "Bob", "a false hit")
    draft.add("sensitive", "bob", "person")
    assert draft.choice.lists.public == {}
    draft.add("public", "Bob", "a false hit")
    assert draft.choice.lists.sensitive == {}


@pytest.mark.parametrize(
    ("kind", "entry", "meaning", "words"),
    [
        ("public", "Bob", " ", "both fields"),
        ("public", "", "x", "both fields"),
        ("public", "\u200b", "x", "visible character"),
        ("sensitive", "Bob", "nonsense", "unknown category"),
    ],
)
def test_what_cannot_be_listed_is_refused(draft, kind, entry, meaning, words):
    with pytest.raises(UserError, match=words):
        draft.add(kind, entry, meaning)
    assert not draft.changed
    assert not lists_folder(draft.folder).exists()


def test_circular_aliases_are_refused(draft):
    draft.add("aliases", "Bob", "Ann Lee")
    draft.add("aliases", "Ann Lee", "Zoë")
    with pytest.raises(UserError, match=r"leads back|two different"):
        draft.add("aliases", "Zoë", "Bob")


def test_lists_are_found_again(draft):
    draft.add("sensitive", "Smallville", "gpe")
    again = Draft(draft.folder)
    assert again.choice.lists.sensitive == {"Smallville": "gpe"}
    assert settled(again).after == settled(draft).after
    again.close()


def test_lists_are_private_and_hold_anything(tmp_path):
    hostile = {'a "b", c': "x", "=1+1": "y", "שלום": "z", "line\nbreak": "w", "e;f": ", ,"}
    lists = Lists(public=hostile, aliases=dict.fromkeys(hostile, "q"))
    write_list_files(tmp_path / "c", lists)
    assert read_list_files(tmp_path / "c") == lists
    folder = lists_folder(tmp_path / "c")
    modes = {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert (stat.S_IMODE(folder.stat().st_mode), modes) == (0o700, {0o600})


def test_a_corpus_in_use_by_a_run_is_not_replaced(draft, corpus):
    before = files_of(corpus.folder)
    draft.add("sensitive", "Smallville", "gpe")
    settled(draft)
    with Mark(corpus.folder, "20261116-000000-00000000"):  # as a run holds it while it trains
        assert draft.locked_by_a_run()
        with pytest.raises(UserError, match="training run is using this corpus"):
            draft.apply()
    after = files_of(corpus.folder)
    assert {name: after[name] for name in before} == before
    assert not draft.locked_by_a_run()


def test_a_failed_apply_says_why_and_leaves_everything(draft, corpus, monkeypatch):
    before = files_of(corpus.folder)
    draft.add("sensitive", "Smallville", "gpe")

    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("uedp.studio.draft.relink", full)
    draft.apply()
    while draft.progressed.busy:
        time.sleep(0.01)
    assert "No space left" in draft.progressed.error
    assert draft.changed
    assert draft.after.exact  # what `apply` interrupted was computed after all
    assert draft.after != draft.before
    assert files_of(corpus.folder) == before
    draft.undo()
    assert draft.progressed.error == ""


def test_a_corpus_may_be_the_working_directory(corpus, monkeypatch):
    monkeypatch.chdir(corpus.folder)
    assert lists_folder(Path()).resolve() == lists_folder(corpus.folder).resolve()
    opened = Draft(Path())
    opened.add("sensitive", "Smallville", "gpe")
    assert settled(opened).after.usable < opened.before.usable
    opened.close()


def test_a_corpus_replaced_by_a_command_is_followed(draft, corpus):
    draft.add("sensitive", "Smallville", "gpe")
    relink(corpus, lists=Lists(sensitive={"Smallville": "gpe"}))
    draft.refresh()
    assert not settled(draft).changed
    assert surfaces(draft.view, "smallville") == 60


def test_nothing_is_left_beside_the_corpus_but_lists(corpus, tmp_path):
    opened = Draft(corpus.folder)
    opened.add("sensitive", "Smallville", "gpe")
    opened.add("sensitive", "March", "date")  # while the first is being computed
    opened.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cor pus", "cor pus.lists"]


def test_a_corpus_without_hits_is_only_looked_at(tmp_path):
    from tests.studio.conftest import ORDINARY
    from uedp.entities.detection import Detection, detect

    made = detect(ORDINARY, tmp_path / "n", Detection(("labels",), normalised=True))
    opened = Draft(made.folder)
    assert "normalised" in opened.refusal
    with pytest.raises(UserError, match="not corrected"):
        opened.add("sensitive", "Smallville", "gpe")
    opened.close()
