"""Ledgers of runs and corpora: plans, budgets, closing, and records that no run wrote."""

import json
import os
import re
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.accounting.chains import PROFILE, in_child, marked_run
from tests.accounting.plans import planned
from uedp.accounting.certificate import issue
from uedp.accounting.chain import Chain, read_chain
from uedp.accounting.decisions import Entities, Setup
from uedp.accounting.ledger import (
    RUN_LEDGER,
    Budget,
    CorpusLedger,
    PlannedRun,
    RunLedger,
    close_run,
    spent_rounds,
)
from uedp.accounting.missed import missed_epsilon
from uedp.accounting.pld import min_delta
from uedp.accounting.proven import RotationProfile, UserLevelProfile, epsilon, guarantee
from uedp.accounting.vocabulary import VocabularyRelease
from uedp.errors import UserError

# --- runs -----------------------------------------------------------------------------------------


def test_a_run_waits_for_another_that_enters_itself(tmp_path):
    """It may be at its end, after hours."""
    corpus = CorpusLedger(tmp_path)
    corpus.reserve(planned("run", "one", PROFILE, 10))
    ready = os.pipe()

    def holder() -> None:
        with Chain(corpus.path):
            os.write(ready[1], b".")
            time.sleep(0.3)

    child = in_child(holder)
    os.read(ready[0], 1)
    corpus.close("run", 10)
    os.waitpid(child, 0)
    assert corpus.entries()[0].closed
    for descriptor in ready:
        os.close(descriptor)


def test_a_run_spends_what_it_planned_and_no_more(tmp_path):
    with RunLedger.open(tmp_path, planned("run", "digest", PROFILE, 10)) as ledger:
        ledger.spend(4)
        ledger.spend()
        assert (ledger.spent, ledger.left) == (5, 5)
        before = (tmp_path / RUN_LEDGER).read_bytes()
        with pytest.raises(UserError, match="5 of 10 planned rounds are spent"):
            ledger.spend(6)
        for nonsense in (0, -1):
            with pytest.raises(ValueError, match="at least one"):
                ledger.spend(nonsense)
        assert (tmp_path / RUN_LEDGER).read_bytes() == before  # refused without a trace
        ledger.spend(5)
    with (
        RunLedger.open(tmp_path, planned("run", "digest", PROFILE, 10)) as ledger,
        pytest.raises(UserError, match="no more may be run"),
    ):
        ledger.spend()


@pytest.mark.parametrize(
    "other",
    [
        ("another", "digest", PROFILE, 10),
        ("run", "other", PROFILE, 10),
        ("run", "digest", RotationProfile(1.1, 0.05, 0.33), 10),
        ("run", "digest", UserLevelProfile(1.0, 0.05), 10),
        ("run", "digest", PROFILE, 11),
    ],
)
def test_another_plan_is_refused(tmp_path, other):
    with RunLedger.open(tmp_path, planned("run", "digest", PROFILE, 10)) as ledger:
        ledger.spend(3)
    with (
        pytest.raises(UserError, match="planned differently"),
        RunLedger.open(tmp_path, planned(*other)),
    ):
        pass
    assert spent_rounds(read_chain(tmp_path / RUN_LEDGER)[0]) == 3


def test_a_plan_has_rounds(tmp_path):
    for rounds in (0, -3):
        with (
            pytest.raises(UserError, match=f"rounds {rounds}"),
            RunLedger.open(tmp_path, planned("run", "digest", PROFILE, rounds)),
        ):
            pass
        with pytest.raises(UserError, match=f"rounds {rounds}"):
            CorpusLedger(tmp_path).reserve(planned("run", "digest", PROFILE, rounds))
    assert not (tmp_path / RUN_LEDGER).exists()


def test_resumed_and_uninterrupted_runs_certify_the_same(tmp_path):
    pieces, straight = tmp_path / "pieces", tmp_path / "straight"
    for folder, blocks in ((straight, [20]), (pieces, [7, 1, 12])):
        folder.mkdir()
        for block in blocks:
            with RunLedger.open(folder, planned("run", "digest", PROFILE, 20)) as ledger:
                for _ in range(block):
                    ledger.spend()
            with (folder / RUN_LEDGER).open("ab") as file:
                file.write(b'{"record": {"cou')  # killed while writing
    one, other = (issue(folder) for folder in (pieces, straight))
    assert one.epsilon == other.epsilon == epsilon(PROFILE, 20, 1e-5)
    assert one.rounds_spent == other.rounds_spent == 20


# --- what was decided -----------------------------------------------------------------------------

ENTITIES = Entities(
    detectors={"patterns": "uedp 1"}, categories=("person",), propagated=True, lists={}
)


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("setup.noise_source is 'fixed seed', not 'cipher'", {"noise_source": "fixed seed"}),
        ("setup.precision is 'bfloat16', not 'float32'", {"precision": "bfloat16"}),
        ("setup.texts", {"texts": "another"}),
        ("setup.entities", {"entities": ENTITIES}),
        ("setup.users", {"users": "assigned at random"}),
        ("setup.holders", {"holders": "clients"}),
        ("setup.vocabulary", {"vocabulary_origin": "from the corpus, not covered"}),
        ("setup.labels", {"labels": "declared"}),
        ("setup.earlier_runs", {"earlier_runs": "on other corpora"}),
        ("setup.chosen_by", {"chosen_by": "me"}),
        ("setup.sentences_per_user", {"sentences_per_user": 3}),
        ("setup.rounding_margin", {"rounding_margin": 0.01}),
        ("delta is 1e-06, not 1e-05", {"delta": 1e-6}),
        ("lineage", {"lineage": ({"run": "a"},)}),
    ],
)
def test_a_run_is_not_continued_with_anything_else(tmp_path, field, change):
    first = planned("run", "digest", PROFILE, 10, **change)
    with RunLedger.open(tmp_path, first) as ledger:
        ledger.spend(3)
    before = (tmp_path / RUN_LEDGER).read_bytes()
    with (
        pytest.raises(UserError, match="planned differently") as refused,
        RunLedger.open(tmp_path, planned("run", "digest", PROFILE, 10)),
    ):
        pass
    assert field in str(refused.value)
    assert (tmp_path / RUN_LEDGER).read_bytes() == before
    with RunLedger.open(tmp_path, first):
        pass
    resumed = read_chain(tmp_path / RUN_LEDGER)[0][-1]
    assert resumed == {"kind": "resume", "spent": 3, "setup": first.record()["setup"]}


def test_every_decision_is_in_the_first_line_and_survives_it():
    first = planned(
        "run", "d", PROFILE, 3, entities=ENTITIES, precision="bfloat16", lineage=({"run": "a"},)
    )
    record = json.loads(json.dumps(first.record()))
    assert PlannedRun.from_record(record) == first
    assert set(record["setup"]) == set(Setup.model_fields)


# --- corpora --------------------------------------------------------------------------------------


def test_all_runs_on_a_folder_add_up_whatever_was_detected(tmp_path):
    corpus = CorpusLedger(tmp_path)
    noisier = RotationProfile(2.0, 0.1, 0.5)
    corpus.reserve(planned("first", "one", PROFILE, 50))
    corpus.reserve(planned("second", "one", noisier, 30))
    corpus.reserve(planned("third", "another detection", PROFILE, 50))
    together = guarantee([(PROFILE, 100), (noisier, 30)]).epsilon(1e-5)
    assert corpus.epsilon(1e-5) == pytest.approx(together, rel=1e-6)
    assert [entry.run for entry in corpus.entries()] == ["first", "second", "third"]
    assert corpus.total(1e-5).runs == 3
    assert CorpusLedger(tmp_path / "none").epsilon(1e-5) == 0


def test_the_total_over_detections_covers_what_all_of_them_found(tmp_path):
    """An entity that only the second detection knew was not hidden as one by the first run.

    There it was a missed mention in five users' texts, say, and its epsilon exceeds the total.
    """
    corpus = CorpusLedger(tmp_path)
    corpus.reserve(planned("first", "one", PROFILE, 50))
    corpus.reserve(planned("second", "one", PROFILE, 1))
    assert corpus.total(1e-5).unit == "one user together with one sensitive entity"
    corpus.reserve(planned("third", "lists added", PROFILE, 1))
    total = corpus.total(1e-5)
    assert missed_epsilon(PROFILE, 51, 1e-5, 5, None) > total.epsilon
    assert total.unit == (
        "one user together with one sensitive entity, in the sentences where each of the 2 "
        "detections that runs used found it"
    )
    users = CorpusLedger(tmp_path / "users")
    users.folder.mkdir()
    for detection in ("one", "lists added"):
        users.reserve(planned(detection, detection, UserLevelProfile(1.0, 0.05), 10))
    assert "detections" not in users.total(1e-5).unit  # entities play no part


def test_detecting_anew_does_not_empty_the_budget(tmp_path):
    """A budget of 9 allowed 8 and 8 again: one for each detection of the same text."""
    corpus = CorpusLedger(tmp_path)
    budget = Budget(epsilon(PROFILE, 60, 1e-5) * 1.1, 1e-5)
    corpus.reserve(planned("first", "one detection", PROFILE, 60), budget)
    with pytest.raises(UserError, match="budget"):
        corpus.reserve(planned("second", "another detection", PROFILE, 60), budget)


def test_a_total_can_be_known_before_anything_is_reserved(tmp_path):
    corpus, plan = CorpusLedger(tmp_path), planned("first", "one", PROFILE, 20)
    before = corpus.total_after(plan, 1e-5)
    assert list(tmp_path.iterdir()) == []
    corpus.reserve(plan)
    assert corpus.total(1e-5).epsilon == before.epsilon == epsilon(PROFILE, 20, 1e-5)
    second, content = planned("second", "one", PROFILE, 30), corpus.path.read_bytes()
    both = corpus.total_after(second, 1e-5)
    assert both.runs == 2
    assert both.epsilon == pytest.approx(epsilon(PROFILE, 50, 1e-5), rel=1e-6)
    tight = Budget(before.epsilon * 1.01, 1e-5)
    with pytest.raises(UserError) as known:
        corpus.refuse_over_budget(second, tight)
    with pytest.raises(UserError, match=re.escape(str(known.value))):
        corpus.reserve(second, tight)
    corpus.refuse_over_budget(second, Budget(both.epsilon, 1e-5))
    assert corpus.path.read_bytes() == content


def test_a_budget_is_refused_before_and_leaves_no_trace(tmp_path):
    corpus = CorpusLedger(tmp_path)
    budget = Budget(epsilon(PROFILE, 100, 1e-5) * 1.001, 1e-5)
    corpus.reserve(planned("first", "one", PROFILE, 60), budget)
    before = corpus.path.read_bytes()
    with pytest.raises(UserError, match=r"budget epsilon .* would come to"):
        corpus.reserve(planned("second", "one", PROFILE, 41), budget)
    assert corpus.path.read_bytes() == before
    corpus.reserve(planned("third", "one", PROFILE, 40), budget)
    with pytest.raises(UserError, match="budget"):
        corpus.reserve(planned("fourth", "one", PROFILE, 1), budget)
    assert corpus.epsilon(1e-5) <= budget.epsilon


@pytest.mark.parametrize("limit", [float("nan"), -1.0, 0.0])
def test_a_budget_of_nothing_allows_nothing(tmp_path, limit):
    with pytest.raises(UserError, match="budget"):
        CorpusLedger(tmp_path).reserve(planned("run", "one", PROFILE, 1), Budget(limit, 1e-5))


EXPOSED = {
    "no noise": planned("run", "one", UserLevelProfile(0.0, 0.1), 1),
    "noiseless": planned("run", "one", None, 1, without_noise="noiseless"),
    "deidentified": planned("run", "one", None, 1, without_noise="deidentified"),
    "a seed": planned("run", "one", PROFILE, 1, noise_source="fixed seed"),
    "words": planned("run", "one", PROFILE, 1, vocabulary_origin="from the corpus, not covered"),
}


@pytest.mark.parametrize("case", EXPOSED)
def test_a_run_without_a_guarantee_is_beyond_any_budget(tmp_path, case):
    corpus, budget = CorpusLedger(tmp_path), Budget(1e9, 1e-5)
    with pytest.raises(UserError, match=r"come to inf \(") as refused:
        corpus.reserve(EXPOSED[case], budget)
    assert EXPOSED[case].exposed in str(refused.value)
    corpus.reserve(EXPOSED[case])
    assert corpus.epsilon(1e-5) == float("inf")
    assert corpus.total(1e-5).epsilon is None
    assert corpus.entries()[0].exposed
    with pytest.raises(UserError, match="come to inf"):
        corpus.reserve(planned("later", "one", PROFILE, 1), budget)
    corpus.close("run", 1)  # that it is over takes nothing back
    assert corpus.epsilon(1e-5) == float("inf")


def test_reserving_again_is_the_same_reservation(tmp_path):
    corpus = CorpusLedger(tmp_path)
    budget = Budget(epsilon(PROFILE, 60, 1e-5) * 1.001, 1e-5)
    corpus.reserve(planned("run", "one", PROFILE, 60), budget)
    before = corpus.path.read_bytes()
    corpus.reserve(planned("run", "one", PROFILE, 60), budget)  # a resumed run
    assert corpus.path.read_bytes() == before
    for other in (
        ("one", PROFILE, 59),
        ("another", PROFILE, 60),
        ("one", UserLevelProfile(1.0, 0.1), 60),
    ):
        with pytest.raises(UserError, match=r"reserved another plan before \(\w"):
            corpus.reserve(planned("run", *other))
    with pytest.raises(UserError, match="reserved another plan"):
        corpus.reserve(planned("run", "one", PROFILE, 60, noise_source="fixed seed"))
    assert corpus.path.read_bytes() == before


def test_a_torn_reservation_is_mended_and_the_others_stay(tmp_path):
    corpus = CorpusLedger(tmp_path)
    corpus.reserve(planned("first", "one", PROFILE, 10))
    with corpus.path.open("ab") as file:
        file.write(b'{"record"')
    corpus.reserve(planned("second", "one", PROFILE, 10))
    assert [entry.run for entry in corpus.entries()] == ["first", "second"]
    assert corpus.epsilon(1e-5) == pytest.approx(epsilon(PROFILE, 20, 1e-5), rel=1e-6)


def test_over_methods_epsilons_add_and_the_weaker_unit_holds(tmp_path):
    corpus, users = CorpusLedger(tmp_path), UserLevelProfile(1.0, 0.05)
    corpus.reserve(planned("first", "one", users, 10))
    corpus.reserve(planned("second", "one", PROFILE, 10))
    added = epsilon(users, 10, 0.5e-5) + epsilon(PROFILE, 10, 0.5e-5)
    total = corpus.total(1e-5)
    assert total.epsilon == pytest.approx(added)
    assert total.unit.startswith("one user; entities")


def test_a_closed_run_counts_what_it_spent_and_is_over(tmp_path):
    plan, run, corpus = marked_run(tmp_path, 3)
    ledger = CorpusLedger(corpus)
    assert ledger.epsilon(1e-5) == epsilon(PROFILE, 10, 1e-5)
    entry = close_run(run, ledger)
    assert (entry.counted, entry.planned, entry.closed) == (3, 10, True)
    assert ledger.epsilon(1e-5) == epsilon(PROFILE, 3, 1e-5)
    assert read_chain(run / RUN_LEDGER)[0][-1]["epsilon"] == epsilon(PROFILE, 3, 1e-5)
    close_run(run, ledger)  # again: the same
    assert ledger.epsilon(1e-5) == epsilon(PROFILE, 3, 1e-5)
    with pytest.raises(UserError, match="was closed after 3 rounds, and cannot resume"):
        ledger.reserve(plan)
    with (
        pytest.raises(UserError, match="this run was closed, and cannot resume"),
        RunLedger.open(run, plan, corpus),
    ):
        pass


def test_a_run_is_not_closed_with_a_ledger_that_was_cut(tmp_path):
    _, run, corpus = marked_run(tmp_path, 3)
    path = run / RUN_LEDGER
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
    with pytest.raises(UserError, match="not the ledger that had 3"):
        close_run(run, CorpusLedger(corpus))
    assert not CorpusLedger(corpus).entries()[0].closed


def test_only_runs_of_the_corpus_are_closed(tmp_path):
    _, run, corpus = marked_run(tmp_path, 3)
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(UserError, match="has no run run-1"):
        close_run(run, CorpusLedger(tmp_path / "elsewhere"))
    with pytest.raises(UserError, match="has no run nobody"):
        CorpusLedger(corpus).close("nobody", 3)
    with pytest.raises(UserError, match="no such ledger"):
        close_run(tmp_path, CorpusLedger(corpus))


def test_a_vocabulary_that_was_never_made_costs_nothing_once_closed(tmp_path):
    words = VocabularyRelease(5.0, 50.0, 4, 2)
    corpus = CorpusLedger(tmp_path)
    corpus.reserve(planned("run", "one", PROFILE, 10, words))
    dear = corpus.epsilon(1e-5)
    corpus.close("run", 4, vocabulary=False)
    assert corpus.epsilon(1e-5) == epsilon(PROFILE, 4, 1e-5) < dear


def test_the_key_of_a_corpus_stays_and_is_its_owners(tmp_path):
    first = CorpusLedger(tmp_path)
    assert not first.path.exists()
    said = first.keyed("digest")
    first.reserve(planned("run", "one", PROFILE, 10))
    assert CorpusLedger(tmp_path).keyed("digest") == said != CorpusLedger(tmp_path).keyed("other")
    assert first.path.stat().st_mode & 0o077 == 0
    (tmp_path / "other").mkdir()
    assert CorpusLedger(tmp_path / "other").keyed("digest") != said


def test_only_a_finished_run_has_a_model(tmp_path):
    with RunLedger.open(tmp_path, planned("run", "digest", PROFILE, 2)) as ledger:
        ledger.spend()
        with pytest.raises(UserError, match="1 rounds are left; only a finished run has a model"):
            ledger.record_saved({"config.json": "0"})
        ledger.spend()
        ledger.record_saved({"config.json": "0"})


def test_rounds_that_are_too_many_together_count_as_infinite(tmp_path):
    corpus = CorpusLedger(tmp_path)
    for number in range(3):
        corpus.reserve(planned(f"run-{number}", "one", UserLevelProfile(50.0, 0.01), 1_000_000))
    delta = 1.1 * min_delta(1_000_000)
    assert corpus.entries()[0].epsilon(delta) < 500
    assert corpus.epsilon(delta) == float("inf")


def test_absurd_numbers_of_rounds_are_refused_early(tmp_path):
    """They would keep `verify` computing for minutes."""
    with pytest.raises(UserError, match=r"rounds 1000000000: must lie in 1\.\.10,000,000"):
        planned("run", "digest", PROFILE, 10**9)
    with RunLedger.open(tmp_path, planned("run", "digest", PROFILE, 2)) as ledger:
        ledger.spend()
    resealed(tmp_path / RUN_LEDGER, 0, "rounds", 10**9)
    with pytest.raises(UserError, match="not the ledger of a run: rounds 1000000000"):
        issue(tmp_path)
    corpus = CorpusLedger(tmp_path / "corpus")
    corpus.folder.mkdir()
    corpus.reserve(planned("run", "digest", PROFILE, 2))
    resealed(corpus.path, 1, "rounds", 10**9)
    with pytest.raises(UserError, match="not the ledger of a corpus: 1000000000 of 1000000000"):
        corpus.total(1e-5)


# --- sealed by another hand ----------------------------------------------------------------------

_ABSENT = "left out"


def resealed(path: Path, number: int, field: str, value: object) -> None:
    """Change a field of a record and seal the whole file anew, as anybody can."""
    records, _ = read_chain(path)
    if value is _ABSENT:
        del records[number][field]
    else:
        records[number][field] = value
    path.unlink()
    with Chain(path) as chain:
        for record in records:
            chain.append(record)


@pytest.mark.parametrize("value", [_ABSENT, None, "x", -1, 2.5, [], {}], ids=repr)
@pytest.mark.parametrize(
    ("number", "field"),
    [(0, "key"), (1, "run"), (1, "profile"), (1, "rounds"), (1, "method"), (2, "rounds")],
)
def test_a_corpus_ledger_that_no_run_wrote_is_no_crash(tmp_path, number, field, value):
    run, ledger = planned("one", "d", UserLevelProfile(2.0, 0.05), 3), CorpusLedger(tmp_path)
    ledger.reserve(run)
    ledger.close("one", 3)
    resealed(ledger.path, number, field, value)
    for use in (
        lambda: (CorpusLedger(tmp_path).keyed("x"), CorpusLedger(tmp_path).total(1e-5)),
        lambda: CorpusLedger(tmp_path).entries(),
        lambda: CorpusLedger(tmp_path).reserve(planned("two", "d", UserLevelProfile(2.0, 0.05), 3)),
        lambda: CorpusLedger(tmp_path).close("one", 2),
    ):
        with suppress(UserError):  # nothing else may come of it
            use()


@pytest.mark.parametrize("value", [_ABSENT, None, "x", -1, 2.5, [], {}], ids=repr)
@pytest.mark.parametrize(
    ("number", "field"),
    [(0, "kind"), (0, "run"), (0, "delta"), (0, "rounds"), (0, "setup"), (1, "kind"), (1, "count")],
)
def test_a_run_ledger_that_no_run_wrote_is_no_crash(tmp_path, number, field, value):
    run, corpus = planned("one", "d", UserLevelProfile(2.0, 0.05), 3), CorpusLedger(tmp_path)
    (folder := tmp_path / "run").mkdir()
    corpus.reserve(run)
    with RunLedger.open(folder, run) as ledger:
        ledger.spend()
    resealed(folder / RUN_LEDGER, number, field, value)

    def resumed() -> None:
        with RunLedger.open(folder, run):
            pass

    for use in (lambda: issue(folder), resumed):
        with suppress(UserError):  # nothing else may come of it
            use()
