"""The Budget page: its stream of answers, and in a real Chromium."""

import json
import math
import shlex
import threading
from dataclasses import replace
from itertools import takewhile

import pytest
from starlette.testclient import TestClient

from tests.browser import DESKTOP, PHONE
from tests.report.runs import finished_run
from tests.studio.conftest import ADDRESS, Served, Studio
from uedp.accounting.calibrate import calibrate_entity_level, entity_level_profile
from uedp.accounting.missed import MISSED_CASES, missed_epsilon
from uedp.accounting.proven import UserLevelProfile, epsilon
from uedp.accounting.statement import rounded
from uedp.corpus.store import Corpus
from uedp.studio import budget, epsilons
from uedp.studio.epsilons import ENTITY, MISSED, USER, Knobs
from uedp.studio.server import create_app
from uedp.studio.settings import Settings

USERS = {"method": "user-level", "rounds": "30", "noise": "3"}  # quick to compute


@pytest.fixture
def studio():
    settings = Settings()
    with TestClient(create_app(settings), ADDRESS, follow_redirects=False) as client:
        client.get(f"/?token={settings.token}")
        yield Studio(client, settings)


def messages(studio, **values):
    answer = studio.get("/budget/epsilons", params=values)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


def by_unit(found):
    return {one["unit"]: one for one in found if one["kind"] == "number"}


# --- the stream ----------------------------------------------------------------------------------


def test_numbers_come_first_then_what_follows_then_charts(studio):
    found = messages(studio, **USERS)
    kinds = [message["kind"] for message in found]
    assert kinds[:4] == ["number", "meaning", "commands", "estimate"]
    assert kinds[-1] == "done"
    value = epsilon(UserLevelProfile(3.0, 0.1), 30, 1e-5)
    assert by_unit(found)["user"]["epsilon"] == value
    assert by_unit(found)["user"]["text"] == rounded(value)
    assert {
        name: one["text"] for name, one in by_unit(found).items() if name != "user"
    } == dict.fromkeys((ENTITY.name, *(unit.name for unit in MISSED)), "no promise")
    charts = {one["name"]: one for one in found if one["kind"] == "chart"}
    assert charts.keys() == {"noise", "rounds"}
    for chart in charts.values():
        assert chart["done"] == chart["of"]
        assert chart["svg"].startswith("<svg")
        assert "style=" not in chart["svg"]  # the policy forbids it


def test_a_target_is_solved_first(studio):
    found = messages(studio, **USERS, target="2")
    solved = calibrate_entity_level(2.0, 1e-5, 0.1, rounds=30, entity_share=0.0)
    assert found[0]["kind"] == "noise"
    assert solved.noise <= found[0]["value"] <= solved.noise * 1.00001
    assert by_unit(found)["user"]["epsilon"] == solved.epsilon <= 2
    command = next(one for one in found if one["kind"] == "commands")
    assert " --epsilon 2 " in command["train"]
    assert "--noise" not in command["train"]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"method": "fair-shares", "entity_share": "1.5"}, "entity share 1.5: must lie in 0..1"),
        ({"delta": "0.01"}, "delta 0.01: must be below one over the number of users"),
        ({"user_rate": "0.001"}, "user sampling rate 0.001: of 1,000 users a round would draw 1"),
        ({"noise": ""}, "must be a number"),
        ({**USERS, "target": "0"}, "epsilon 0.0: must be above 0"),
        ({**USERS, "delta": "1e-14"}, "delta 1e-14: lost in rounding"),
        ({"method": "<script>"}, "'<script>': choose one of"),
    ],
)
def test_a_refusal_is_shown_instead_of_numbers(studio, values, words):
    *before, refused = messages(studio, **values)
    assert refused["kind"] == "refused"
    assert words in refused["text"]
    assert not by_unit(before)


def test_no_noise_has_no_finite_epsilon(studio):
    found = messages(studio, **{**USERS, "noise": "0"})
    assert by_unit(found)["user"]["epsilon"] is None
    assert by_unit(found)["user"]["text"] == "no finite epsilon"
    assert by_unit(found)["user"]["success"] == "100%"


def test_with_a_corpus(original, tmp_path):
    finished_run(tmp_path / "runs" / "timed", rounds=10)
    settings = Settings(original, (tmp_path / "runs",))
    users = Corpus(original).incidence.users
    with TestClient(create_app(settings), ADDRESS) as client:
        client.get(f"/?token={settings.token}")
        studio = Studio(client, settings)
        page = studio.get("/budget").text
        assert f'value="{users}"' in page
        assert '<option value="0/timed">timed</option>' in page
        given = {**USERS, "users": str(users), "user_rate": "0.5", "pace": "0/timed"}
        (estimate,) = (m for m in messages(studio, **given) if m["kind"] == "estimate")
        assert estimate["signal"] > 0
        assert estimate["total"] is None  # no run was made on it
        shown = {fact["name"]: fact["note"] for fact in estimate["facts"]}
        assert "as in run timed" in shown["Time of all rounds"]


def test_a_mistake_in_the_time_leaves_the_numbers(studio):
    found = messages(studio, **USERS, seconds="x")
    assert by_unit(found)["user"]["epsilon"] > 0
    (estimate,) = (one for one in found if one["kind"] == "estimate")
    assert "seconds a round 'x': must be a number" in estimate["facts"][0]["value"]
    answer = studio.get("/budget/epsilons", params={**USERS, "pace": "0/../x"})
    assert answer.status_code == 403


def test_work_stops_when_nobody_waits(monkeypatch):
    """A page that moved on costs one point at most."""
    computed = []
    bound = epsilons.bound
    monkeypatch.setattr(epsilons, "bound", lambda *a: computed.append(a) or bound(*a))
    waiting = threading.Event()
    waiting.set()
    stream = budget._Budget(Settings())._messages(dict(USERS), waiting.is_set)
    assert next(stream)["kind"] == "number"
    waiting.clear()
    assert all(message["kind"] != "chart" for message in stream)
    assert len(computed) == 1


# --- the commands --------------------------------------------------------------------------------


def test_the_commands_run_as_they_are_copied(run, original, monkeypatch):
    """`uedp train --dry-run` plans exactly what the page showed."""
    monkeypatch.setattr("uedp.accounting.missed.neighbours", lambda *_: iter(()))
    users = str(Corpus(original).incidence.users)
    given = {"users": users, "user_rate": "0.5", "rounds": "3", "noise": "4", "target": "4"}
    stream = budget._Budget(Settings())._messages(given, lambda: True)
    found = list(takewhile(lambda message: message["kind"] != "numbered", stream))
    command = next(one for one in found if one["kind"] == "commands")
    line = command["train"].replace("CORPUS", str(original)).replace("MODEL", "awd-lstm")
    sizes = "model.sizes={embedding_size: 8, num_hidden_layers: 1}"
    more = ["--tokenizer", "bytes", "--set", sizes, "--set", "model.max_tokens=8"]
    outcome = run(*shlex.split(line)[1:], *more, "--dry-run", "--json")
    assert outcome.code == 0, outcome.err
    planned = json.loads(outcome.out)
    numbers = by_unit(found)
    assert planned["epsilon"] == numbers["entity"]["epsilon"]
    assert planned["epsilon_user_alone"] == numbers["user"]["epsilon"]
    assert [*planned["missed_mentions"].values()] == [
        numbers[unit.name]["epsilon"] for unit in MISSED
    ]
    assert planned["chosen"] == []


# --- in Chromium ---------------------------------------------------------------------------------


def shown(page):
    """The numbers on the page, by unit, once none is stale."""
    page.wait_for_selector("#results:not([aria-busy])", timeout=60_000)
    assert page.query_selector("[data-unit].stale, #meaning.stale, [data-command].stale") is None
    rows = page.query_selector_all("[data-unit]")
    return {
        row.get_attribute("data-unit"): row.query_selector(".epsilon").inner_text() for row in rows
    }


def expected(knobs):
    profile = entity_level_profile(
        knobs.noise, knobs.user_rate, knobs.entity_share, method=knobs.method
    )
    values = {
        USER.name: epsilon(profile.user_alone(), knobs.rounds, knobs.delta),
        ENTITY.name: epsilon(profile, knobs.rounds, knobs.delta),
    }
    for unit, case in zip(MISSED, MISSED_CASES, strict=True):
        values[unit.name] = missed_epsilon(profile, knobs.rounds, knobs.delta, *case)
    return {
        name: rounded(v) if math.isfinite(v) else "no finite epsilon" for name, v in values.items()
    }


def test_sliders_give_the_accountants_values(browser):
    knobs = Knobs(noise=6.0, rounds=40)
    with Served(Settings()) as served, browser.page(DESKTOP) as w:
        page = w.page
        page.goto(served.url)
        page.fill("#noise", "6")
        page.fill("#rounds", "40")
        assert shown(page) == expected(knobs)
        # by the keyboard alone: from the number back to its slider, and some steps
        page.focus("#user_rate-slider")
        for _ in range(5):
            page.keyboard.press("ArrowLeft")
        rate = float(page.input_value("#user_rate"))
        assert 0.09 < rate < 0.1
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.id") == "user_rate"
        knobs = replace(knobs, user_rate=rate)
        assert shown(page) == expected(knobs)
        page.wait_for_selector("[data-chart=rounds]:not(.stale) svg")
        assert w.accessibility_violations() == []
        assert not w.overflows()


def test_holding_epsilon_solves_for_the_noise(browser):
    with Served(Settings()) as served, browser.page(PHONE, color_scheme="dark") as w:
        page = w.page
        page.goto(served.url)
        page.select_option("#method", "user-level")
        assert page.is_disabled("#entity_share")
        assert page.is_disabled("#target")
        page.focus("#hold")
        page.keyboard.press("Space")
        assert page.is_disabled("#noise")
        page.fill("#target", "2")
        values = shown(page)
        solved = calibrate_entity_level(2.0, 1e-5, 0.1, rounds=200, entity_share=0.0)
        assert float(page.input_value("#noise")) == pytest.approx(solved.noise, rel=1e-5)
        assert values["user"] == rounded(solved.epsilon)
        assert values["entity"] == "no promise"
        for name in ("noise", "rounds"):
            page.wait_for_selector(f"[data-chart={name}]:not(.stale) svg")
        assert " --epsilon 2 " in page.inner_text("[data-command=train] code")
        assert w.accessibility_violations() == []
        assert not w.overflows()
        # a refusal takes the place of the numbers
        page.fill("#delta", "0.5")
        page.wait_for_selector("#refused:not([hidden])")
        assert "must be below one over the number of users" in page.inner_text("#refused")
        assert not page.is_visible("#numbers")
        assert page.is_disabled("[data-command=train] button")
        assert w.accessibility_violations() == []
        page.fill("#delta", "0.00001")
        assert shown(page) == values


def test_only_the_latest_answer_is_shown(browser, monkeypatch):
    """Numbers are grey from the moment a knob moves; an answer to what was asked before is lost."""
    held = threading.Event()
    bound = epsilons.bound

    def slow(event, rounds, delta):
        if rounds == 31:
            held.wait(20)
        return bound(event, rounds, delta)

    monkeypatch.setattr(epsilons, "bound", slow)
    with Served(Settings()) as served, browser.page() as w:
        page = w.page
        page.goto(served.url)
        page.select_option("#method", "user-level")
        before = shown(page)
        with page.expect_request(lambda request: "rounds=31" in request.url):
            page.fill("#rounds", "31")
        assert page.query_selector("[data-unit=user].stale") is not None
        assert page.query_selector("[data-chart=noise].stale") is not None
        page.fill("#rounds", "900")
        after = shown(page)
        held.set()
        assert after["user"] == rounded(epsilon(UserLevelProfile(1.5, 0.1), 900, 1e-5))
        assert after != before
        page.wait_for_timeout(300)  # for an answer that must not come
        assert shown(page) == after
