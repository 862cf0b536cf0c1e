"""Training on a corpus that grows: from extension to a certificate that verifies."""

import json
import shutil
from dataclasses import replace

import pytest

from tests.conftest import marked
from tests.training import worlds
from uedp.accounting.certificate import issue, load_certificate, verify
from uedp.accounting.chain import Chain, read_chain
from uedp.accounting.ledger import RUN_LEDGER, CorpusLedger, PlannedRun, RunLedger
from uedp.accounting.proven import guarantee
from uedp.corpus.sentence import Sentence
from uedp.corpus.store import Corpus
from uedp.entities.detection import Detection, detect
from uedp.entities.extension import extend
from uedp.errors import UserError
from uedp.training import loop
from uedp.training.datasets import read_training_data
from uedp.training.provenance import refuse_other_corpus

DETECTION = Detection(("labels",))
SECRET = "the parrot sings at noon"


@pytest.fixture(autouse=True)
def no_missed_mentions(monkeypatch):
    """Their table takes a second."""
    for module in ("statement", "growth"):
        monkeypatch.setattr(f"uedp.accounting.{module}.MISSED_CASES", ())


def people(first: int, count: int) -> list[Sentence]:
    texts = []
    for number in range(first, first + count):
        name = worlds.NAMES[number % 4]
        texts.append(marked(f"user-{number}", f"the {name} is good", (name, "PER")))
        texts.append(Sentence(f"user-{number}", "the day is good"))
    return texts


def config_for(corpus, model, **changes):
    return worlds.config(model, **{"data__train": str(corpus), **changes})


@pytest.fixture(scope="module")
def first(tmp_path_factory, saved):
    """A corpus, and a finished run on it; copied for each test."""
    folder = tmp_path_factory.mktemp("growing")
    texts = [*people(0, 30), Sentence("leaver", SECRET)]
    detect(texts, folder / "corpus", DETECTION)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("uedp.accounting.statement.MISSED_CASES", ())
        loop.run(config_for(folder / "corpus", saved()), folder / "run")
    return folder


@pytest.fixture
def place(first, tmp_path):
    """The corpus and its run, extended by ten users, and one who left."""
    folder = tmp_path / "place"
    shutil.copytree(first, folder)
    extend(Corpus(folder / "corpus"), people(30, 10), DETECTION, forget=["leaver"])
    return folder


def go_on(place, out="run-2", **changes):
    options = {"model__continued": True, "privacy__noise": 1.2, **changes}
    config = config_for(place / "corpus", place / "run", **options)
    return loop.run(config, place / out)


def test_training_on_counts_the_earlier_run_and_verifies(place):
    outcome = go_on(place)
    certificate, corpus = outcome.certificate, place / "corpus"
    runs = PlannedRun.from_record(read_chain(place / "run-2" / RUN_LEDGER)[0][0]).model_runs
    assert [run.rounds for run in runs] == [4, 4]
    both, last = ([(r.profile, r.rounds) for r in some] for some in (runs, runs[1:]))
    assert certificate.epsilon == pytest.approx(guarantee(both).epsilon(1e-5))
    one, two = certificate.growth.by_joining_epoch
    assert one.epsilon == pytest.approx(certificate.epsilon, rel=1e-9)
    assert two.epsilon == pytest.approx(guarantee(last).epsilon(1e-5))
    alone = [(runs[0].profile.user_alone(), 4)]
    assert two.epsilon_left == pytest.approx(guarantee(alone).epsilon(1e-5))
    assert [run.epoch for run in certificate.growth.runs] == [1, 2]
    assert certificate.setup.earlier_runs == "none known"
    assert [row.runs for row in certificate.corpus_total.by_epoch] == [2, 1]
    assert "counts all 2 runs" in certificate.statement
    for name in ("run", "run-2"):  # that of before too, though the corpus was extended since
        refuse_other_corpus(verify(place / name, corpus=corpus), corpus)
    # and so on
    extend(Corpus(corpus), people(40, 5), DETECTION)
    config = config_for(corpus, place / "run-2", model__continued=True)
    third = loop.run(config, place / "run-3").certificate
    assert [run.epoch for run in third.growth.runs] == [1, 2, 3]
    epsilons = [row.epsilon for row in third.growth.by_joining_epoch]
    assert epsilons == sorted(epsilons, reverse=True)
    assert epsilons[0] > certificate.epsilon
    verify(place / "run-3", corpus=corpus)


def test_no_text_of_one_who_left_is_in_a_round(place):
    data = read_training_data(config_for(place / "corpus", "model"))
    assert SECRET not in list(data.train.texts)
    assert data.incidence.users == 40
    assert data.incidence.sentences == len(data.train.texts) == 80
    assert data.incidence.digest == Corpus(place / "corpus").epochs[-1].incidence
    config = config_for(place / "corpus", "model", privacy__method="deidentified")
    assert SECRET not in list(read_training_data(config).train.texts)


def test_a_model_of_an_earlier_epoch_is_refused_unless_its_run_is_counted(place, saved):
    """Its digests are not those of the corpus as it is now."""
    config = config_for(place / "corpus", place / "run")
    with pytest.raises(UserError, match="has learned from this corpus already"):
        loop.run(config, place / "other")
    ledger = CorpusLedger(place / "corpus")
    assert len(ledger.entries()) == 1
    # on a corpus that was not extended as well
    again = config_for(place / "corpus", place / "run", model__continued=True)
    assert loop.run(again, place / "fine").certificate.growth is not None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"privacy__method": "user-level"}, "do not add up"),
        ({"privacy__epsilon": 0.5, "privacy__noise": None}, "choose a larger one"),
        ({"privacy__entity_rate": 0.5}, "no coins"),
        ({"data__public": "news.txt", "public__reader": "txt"}, "public text comes before"),
    ],
)
def test_what_would_not_add_up_is_refused(place, change, reason, monkeypatch):
    monkeypatch.chdir(place)
    (place / "news.txt").write_text("rain in the north is rare in may\n" * 3)
    with pytest.raises(UserError, match=reason):
        go_on(place, **change)
    assert not (place / "run-2").exists()


def test_only_a_finished_run_of_this_corpus_is_trained_on(place, saved, tmp_path):
    weights = next((place / "run").glob("*.safetensors"))
    content = weights.read_bytes()
    weights.write_bytes(content[:-4] + b"\0\0\0\1")
    with pytest.raises(UserError, match="safetensors"):
        go_on(place)
    weights.write_bytes(content)
    with pytest.raises(UserError, match="holds no run with noise"):
        loop.run(config_for(place / "corpus", saved(), model__continued=True), place / "x")
    detect(people(0, 30), tmp_path / "other", DETECTION)
    with pytest.raises(UserError, match="has no run"):
        loop.run(config_for(tmp_path / "other", place / "run", model__continued=True), place / "x")
    seeded = config_for(place / "corpus", saved(), privacy__seed=1)
    loop.run(seeded, place / "seeded")
    config = config_for(place / "corpus", place / "seeded", model__continued=True)
    with pytest.raises(UserError, match="has no guarantee"):
        loop.run(config, place / "x")


def test_a_run_that_hides_an_earlier_one_does_not_verify(place):
    """Whoever writes a ledger anew can state fewer rounds; the corpus knows better."""
    go_on(place)
    folder = place / "run-2"
    plan = PlannedRun.from_record(read_chain(folder / RUN_LEDGER)[0][0])
    fewer = replace(plan, earlier=(replace(plan.earlier[0], rounds=1),))
    records = read_chain(folder / RUN_LEDGER)[0]
    (folder / RUN_LEDGER).unlink()
    with Chain(folder / RUN_LEDGER) as chain:
        for record in (fewer.record(), *records[1:]):
            chain.append(record)
    issue(folder)
    verify(folder)  # by itself it is consistent
    with pytest.raises(UserError, match="is not as it is stated"):
        verify(folder, corpus=place / "corpus")


def test_a_changed_figure_is_named(place):
    go_on(place)
    path = place / "run-2" / "certificate.json"
    values = json.loads(path.read_text())
    values["growth"]["by_joining_epoch"][1]["epsilon"] = 0.1
    path.write_text(json.dumps(values))
    with pytest.raises(UserError, match=r"growth\.by_joining_epoch"):
        verify(place / "run-2")


def test_a_run_is_resumed_on_the_epoch_it_began_with(first, saved, tmp_path, monkeypatch):
    """And not at all if somebody has left since."""
    shutil.copytree(first / "corpus", tmp_path / "corpus")
    config, spend = config_for(tmp_path / "corpus", saved()), RunLedger.spend

    def stopped(ledger, rounds=1):
        if ledger.spent == 2:
            raise KeyboardInterrupt
        spend(ledger, rounds)

    monkeypatch.setattr(RunLedger, "spend", stopped)
    for name in ("run-a", "run-b"):
        with pytest.raises(KeyboardInterrupt):
            loop.run(config, tmp_path / name)
    monkeypatch.undo()
    monkeypatch.setattr("uedp.accounting.statement.MISSED_CASES", ())
    extend(Corpus(tmp_path / "corpus"), people(30, 10), DETECTION)
    assert loop.run(config, tmp_path / "run-a", resume=True).finished
    shape = load_certificate(tmp_path / "run-a").incidence
    assert shape.digest == Corpus(tmp_path / "corpus", 1).incidence.digest
    extend(Corpus(tmp_path / "corpus"), (), DETECTION, forget=["leaver"])
    with pytest.raises(UserError, match="users have left since this run began"):
        loop.run(config, tmp_path / "run-b", resume=True)


def test_a_model_of_another_detection_is_not_trained_on(place):
    """Where only the later detection found an entity, the earlier rounds did not hide it."""
    texts = [*people(0, 30), Sentence("user-3", "a sunny day")]
    detect(texts, place / "again", DETECTION)
    for path in (place / "corpus").glob("ledger*"):  # as `detect --overwrite` keeps it
        shutil.copy(path, place / "again" / path.name)
    config = config_for(place / "again", place / "run", model__continued=True)
    with pytest.raises(UserError, match="another detection"):
        loop.run(config, place / "run-2")
    assert not (place / "run-2").exists()


def test_a_model_of_an_epoch_that_was_taken_back_is_not_trained_on(place):
    go_on(place)
    shutil.rmtree(place / "corpus" / "epochs" / "0002")
    extend(Corpus(place / "corpus"), people(50, 3), DETECTION)
    config = config_for(place / "corpus", place / "run-2", model__continued=True)
    with pytest.raises(UserError, match="an epoch that the corpus no longer has"):
        loop.run(config, place / "run-3")
