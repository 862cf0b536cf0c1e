"""Results of audits on a page."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest

from tests.report.runs import CONFIG_OF_RUN, PROFILE, finished_run
from tests.training import worlds
from uedp.accounting.ledger import RUN_LEDGER, RunLedger
from uedp.accounting.plan_digest import plan_digest
from uedp.audit import one_run
from uedp.audit.bounds import GuessCounts
from uedp.audit.plans import audit_plans
from uedp.audit.verdict import document
from uedp.report.attacks import JOINT_CONFIDENCE, alarms, attacks, extractions
from uedp.report.run_record import AuditFile, RunRecord
from uedp.training.plan import build_plan

DELTA, ROUNDS = 1e-5, 40
PLAN = plan_digest(PROFILE, ROUNDS, DELTA, CONFIG_OF_RUN["privacy"], {})
TRAINED = plan_digest(PROFILE, ROUNDS, DELTA, CONFIG_OF_RUN["privacy"], {}, "float32")


def mechanism(right=430, wrong=200, raised=False, **changes):
    counts = GuessCounts(right, 850, wrong, 850)
    bound = {"epsilon": counts.epsilon(DELTA, 0.95), "attack": "a", "guessed": "full"}
    one = {
        "method": "rotation",
        "pair": "user and entity",
        "plan": PLAN,
        "parameters": {"noise": PROFILE.noise, "user_rate": 0.05, "entity_share": 0.3},
        "rounds": ROUNDS,
        "delta": DELTA,
        "runs": 1000,
        "confidence": 0.95,
        "proven": 2.4,
        "published": 0.5,
        "threshold": bound | {"counts": dataclasses.asdict(counts)},
        "alarm": {"raised": raised, "threshold": bound["epsilon"] - 0.1},
    }
    return {"verdict": ["..."], "measured": [], "audits": [one | changes]}


def training(correct=16, claim=2.4, **changes):
    epsilon = one_run.lower_bound(200, 20, correct, DELTA, 0.95)
    found = {"kind": "user", "score": "loss", "canaries": 200, "guesses": 20, "correct": correct}
    finding = found | {"epsilon": epsilon, "alarm": epsilon - 0.1, "claim": claim}
    audit = {"method": "rotation", "rounds": ROUNDS, "delta": DELTA, "confidence": 0.95}
    audit |= {"plan": TRAINED, "noise": PROFILE.noise, "proven": 2.4, "claimed": None}
    return audit | {"findings": [finding]} | changes


@pytest.fixture
def record(tmp_path):
    def read(*contents):
        folder = finished_run(tmp_path / "run")
        (folder / "audits").mkdir()
        for place, content in enumerate(contents):
            (folder / "audits" / f"{place}.json").write_text(json.dumps(content))
        return RunRecord.read(folder)

    return read


def test_bounds_on_this_plan_hold_together(record):
    """Each at 1 - .05/2, from its counts: the largest of several would not hold at .95."""
    found = attacks(record(mechanism(), training(), mechanism(800, 3, plan="0" * 64)))
    level = 1 - (1 - JOINT_CONFIDENCE) / 2
    by_mechanism = GuessCounts(430, 850, 200, 850).epsilon(DELTA, level)
    by_training = one_run.lower_bound(200, 20, 16, DELTA, level)
    assert [one.lower for one in found.own] == [by_mechanism, by_training]
    assert 0 < by_mechanism < GuessCounts(430, 850, 200, 850).epsilon(DELTA, 0.95)
    assert 0 < by_training < one_run.lower_bound(200, 20, 16, DELTA, 0.95)
    assert found.strongest.lower == max(by_mechanism, by_training)
    assert found.own[0].published == 0.5
    assert alarms(found) == []
    (other,) = found.others
    assert other.reason == "of another plan"


def test_the_largest_of_twenty_bounds_is_a_bound(record):
    """Twenty audits of a run of epsilon 1: the largest bound exceeds it once in twenty times."""
    rng, read = np.random.default_rng(0), record()
    repeats, above, above_alone = 200, 0, 0
    right = 1 / (1 + math.exp(-1.0))
    for correct in rng.binomial(20, right, (repeats, 20)).tolist():
        contents = [training(number) for number in correct]
        files = [AuditFile(Path("a.json"), "training", content) for content in contents]
        found = attacks(dataclasses.replace(read, audits=files))
        above += found.strongest.lower > 1
        above_alone += max(content["findings"][0]["epsilon"] for content in contents) > 1
    assert above <= 0.05 * repeats
    assert above_alone > 0.2 * repeats  # which is what the report must not print


@pytest.mark.parametrize(
    "changed",
    [
        {"profile": dataclasses.replace(PROFILE, noise=1.3)},
        {"profile": dataclasses.replace(PROFILE, user_rate=0.06)},
        {"profile": dataclasses.replace(PROFILE, entity_share=0.1)},
        {"profile": dataclasses.replace(PROFILE, entity_rate=0.5)},
        {"rounds": 39},
        {"delta": 1e-6},
        {"privacy": CONFIG_OF_RUN["privacy"] | {"update_clip": 0.5}},
        {"privacy": CONFIG_OF_RUN["privacy"] | {"sentences_per_entity": 1}},
        {"privacy": CONFIG_OF_RUN["privacy"] | {"sentences_per_user": 4}},
        {"options": {"sentences": 2}},
        {"precision": "bfloat16"},
    ],
    ids=str,
)
def test_an_audit_of_another_plan_says_nothing_of_this_run(record, changed):
    own = {"profile": PROFILE, "rounds": ROUNDS, "delta": DELTA}
    own |= {"privacy": CONFIG_OF_RUN["privacy"], "options": {}}
    digest = plan_digest(**own | changed)
    assert digest != plan_digest(**own)
    broken = {"method": "rotation", "plan": digest, "broken": ["an entity moved too far"]}
    content = mechanism(800, 3, raised=True, plan=digest) | {"measured": [broken]}
    found = attacks(read := record(content, training(20, plan=digest)))
    assert found.own == ()
    assert found.strongest is None
    assert {one.reason for one in found.others} == {"of another plan"}
    assert alarms(found) == []
    assert read.audits  # read, and not used


@pytest.mark.parametrize("plan", [None, 3, "", {"a": 1}])
def test_an_audit_that_does_not_name_its_plan_is_not_used(record, plan):
    found = attacks(record(mechanism(plan=plan), training(plan=plan)))
    assert [one.reason for one in found.others] == ["of another plan"] * 2


def test_how_the_noise_was_found_and_who_decided_do_not_make_another_plan(record):
    stated = CONFIG_OF_RUN["privacy"] | {"epsilon": None, "noise": PROFILE.noise, "seed": 3}
    stated |= {"chosen_by": "us", "corpus_budget": 9.0}
    digest = plan_digest(PROFILE, ROUNDS, DELTA, stated, {})
    assert attacks(record(mechanism(plan=digest))).strongest is not None


def test_bounds_that_cannot_hold_together_are_not_used(record):
    """Without counts a bound has a confidence of its own, which says nothing of several."""
    without = mechanism()
    del without["audits"][0]["threshold"]["counts"]
    missed = mechanism(pair="missed mention")
    uncovered = training(claim=None)
    found = attacks(record(without, missed, uncovered))
    assert found.own == ()
    reasons = [one.reason for one in found.others]
    assert reasons == ["without the counts of its guesses", "of another guarantee", "not covered"]


def test_a_real_audit_is_matched_to_the_run_of_its_plan(tmp_path):
    """The digests of an audit and of a run folder are made from different files."""
    data = worlds.training_data(tmp_path / "corpus", held_out=False)
    config = worlds.config("m", privacy__rounds=3)
    plan = build_plan(config, data.incidence)
    audits, measured = audit_plans([plan], runs=300, quick=True, seed=1)
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(config.to_yaml())
    with RunLedger.open(run, plan.planned("a-run")):
        assert (run / RUN_LEDGER).is_file()
    (tmp_path / "audit.json").write_text(json.dumps(document(audits, measured)))
    found = attacks(RunRecord.read(run, [tmp_path / "audit.json"]))
    assert len(found.own) == 3
    assert {one.reason for one in found.others} == {"of another guarantee"}
    for one, audit in zip(found.own, audits, strict=False):
        assert 0 <= one.lower <= audit.threshold.epsilon
    assert [one.plan for one in measured] == [plan.digest()]


def test_a_refuted_guarantee_is_an_alarm(record):
    assert len(alarms(attacks(record(mechanism(raised=True), training(20, proven=0.5))))) == 2


def test_an_epsilon_that_was_only_claimed_is_no_alarm_of_the_guarantee(record):
    """`--claimed 1` was refuted; what is proven was not."""
    assert alarms(attacks(record(training(20, claim=1.0, claimed=1.0)))) == []


def test_rules_that_rounds_broke_are_alarms(record):
    content = mechanism()
    broken = {"method": "rotation", "plan": PLAN, "broken": ["an entity moved too far"]}
    content["measured"] = [broken]
    assert alarms(attacks(record(content))) == ["an entity moved too far"]


def test_files_from_anybody_are_read_as_far_as_they_go(record):
    hostile = mechanism(raised="yes", runs="many", published=True, proven=10**400)
    for counts in (None, 3, {}, {"right": 5, "right_of": 3, "wrong": 0, "wrong_of": 1}):
        bound = hostile["audits"][0]["threshold"] | {"counts": counts}
        hostile["audits"].append(hostile["audits"][0] | {"threshold": bound})
    huge = {"right": 10**400, "right_of": 10**400, "wrong": -1, "wrong_of": True}
    hostile["audits"][0]["threshold"]["counts"] = huge
    hostile["audits"] += [None, 3, {}]
    hostile["measured"] = [None, {"method": "rotation", "plan": PLAN, "broken": "all"}]
    strange = training(claim="8")
    strange["findings"] += ["x", {}, {"canaries": 3, "guesses": 5, "correct": 4, "claim": 1}]
    read = record(hostile, strange, {"runs": [{"summary": {"groups": 3}, "kind": 4}]})
    found = attacks(read)
    assert found.strongest is None
    assert found.own == ()
    assert alarms(found) == []
    assert extractions(read)[0].groups == []


def test_extractions(record):
    share = {"share": 0.25, "low": 0.1, "high": 0.4}
    group = {"count": 4, "mean_exposure": 3.5, "ranked_first": share, "extracted": share}
    summary = {"candidates": 100, "exposure_by_chance": 1.4, "groups": {"planted": group}}
    run = {"run": "/home/me/runs/first/", "kind": "secrets", "method": "rotation", "epsilon": 8.0}
    (one,) = extractions(record({"runs": [run | {"summary": summary}]}))
    assert one.run == "first"
    (name, values) = one.groups[0]
    assert (name, values["mean_exposure"], values["ranked_first"]) == ("planted", 3.5, 0.25)
    assert values["in_beams"] is None
