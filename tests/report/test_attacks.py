"""Results of audits on a page."""

import json
import math

import pytest

from tests.report.runs import PROFILE, finished_run
from uedp.report.attacks import alarms, attacks, extractions, strongest
from uedp.report.run_record import RunRecord


def mechanism(lower=0.7, raised=False, **changes):
    bound = {"epsilon": lower, "attack": "a", "guessed": "full", "right": 0.4, "wrong": 0.1}
    one = {
        "method": "rotation",
        "pair": "user and entity",
        "parameters": {"noise": PROFILE.noise, "user_rate": 0.05, "entity_share": 0.3},
        "rounds": 40,
        "runs": 1000,
        "confidence": 0.95,
        "proven": 2.4,
        "published": 0.5,
        "threshold": bound,
        "alarm": {"raised": raised},
    }
    return {"verdict": ["..."], "measured": [], "audits": [one | changes]}


def training(epsilon=0.4, claim=2.4, **changes):
    found = {"kind": "user", "score": "loss", "canaries": 200, "guesses": 20, "correct": 14}
    finding = found | {"epsilon": epsilon, "alarm": epsilon - 0.1, "claim": claim}
    audit = {"method": "rotation", "rounds": 40, "noise": PROFILE.noise, "confidence": 0.95}
    return audit | {"proven": 2.4, "findings": [finding]} | changes


@pytest.fixture
def record(tmp_path):
    def read(*contents):
        folder = finished_run(tmp_path / "run")
        (folder / "audits").mkdir()
        for place, content in enumerate(contents):
            (folder / "audits" / f"{place}.json").write_text(json.dumps(content))
        return RunRecord.read(folder)

    return read


def test_the_strongest_attack_on_this_plan_counts(record):
    found = attacks(read := record(mechanism(0.7), training(0.4), mechanism(9.9, rounds=41)))
    assert [one.of_this_plan for one in found] == [True, True, False]
    assert strongest(found).lower == 0.7
    assert found[0].published == 0.5
    assert alarms(read) == []


@pytest.mark.parametrize(
    "other",
    [
        {"method": "user-level"},
        {"rounds": 39},
        {"parameters": {"noise": 1.3, "user_rate": 0.05}},
        {"parameters": {"noise": PROFILE.noise, "user_rate": 0.06}},
        {"parameters": {"noise": PROFILE.noise, "user_rate": 0.05, "entity_share": 0.1}},
        {"parameters": None},
    ],
)
def test_an_audit_of_another_plan_says_nothing_of_this_run(record, other):
    (one,) = attacks(record(mechanism(5.0, raised=True, **other)))
    assert not one.of_this_plan
    assert strongest([one]) is None


def test_a_refuted_guarantee_is_an_alarm(record):
    assert len(alarms(record(mechanism(3.0, raised=True), training(3.0)))) == 2


def test_rules_that_rounds_broke_are_alarms(record):
    content = mechanism()
    content["measured"] = [{"method": "rotation", "broken": ["an entity moved too far"]}]
    assert alarms(record(content)) == ["an entity moved too far"]


def test_files_from_anybody_are_read_as_far_as_they_go(record):
    hostile = mechanism("<script>", raised="yes", runs="many", published=True, proven=10**400)
    hostile["audits"] += [None, 3, {}]
    hostile["measured"] = [None, {"method": "rotation", "broken": "all"}]
    strange = training(math.nan, claim="8")
    strange["findings"] += ["x", {}]
    read = record(hostile, strange, {"runs": [{"summary": {"groups": 3}, "kind": 4}]})
    assert strongest(attacks(read)) is None
    assert all(one.lower is None or one.lower != one.lower for one in attacks(read))
    assert alarms(read) == []
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
