"""Time and signal: only what is known."""

from dataclasses import replace

import numpy as np
import pytest

from tests.report.runs import finished_run
from tests.training import worlds
from uedp.errors import UserError
from uedp.report.run_record import RunRecord
from uedp.studio.cost import CorpusSupply, MeasuredPace, facts
from uedp.studio.epsilons import METHODS, Knobs
from uedp.training.estimate import sentences_per_round
from uedp.training.plan import build_plan


@pytest.fixture
def supply():
    return CorpusSupply(worlds.incidence())


@pytest.fixture
def knobs(supply):
    return Knobs(users=supply.incidence.users, user_rate=0.5, rounds=100, entity_share=1.0)


@pytest.mark.parametrize("method", METHODS)
def test_sentences_are_those_that_training_expects(supply, knobs, method):
    config = worlds.config("model", privacy__method=method)
    expected = sentences_per_round(build_plan(config, supply.incidence), supply.incidence)
    # rotation is averaged over several lendings here
    assert supply.sentences(replace(knobs, method=method)) == pytest.approx(expected, rel=0.15)


def test_signal_orders_settings(supply, knobs):
    signal = supply.signal(knobs, 1.0)
    assert supply.signal(knobs, 2.0) == pytest.approx(signal / 2)
    assert supply.signal(replace(knobs, rounds=400), 1.0) > 1.9 * signal
    assert supply.signal(replace(knobs, user_rate=0.25), 1.0) == pytest.approx(signal / 2)


def record_of(tmp_path, seconds, sentences):
    record = RunRecord.read(finished_run(tmp_path / "run", rounds=4))
    rounds = np.arange(1.0, len(seconds) + 1)
    columns = {"round": rounds, "seconds": np.array(seconds), "sentences": np.array(sentences)}
    return replace(record, metrics=columns)


def test_the_pace_of_a_run_is_a_line_through_its_rounds(tmp_path):
    sentences = np.array([100.0, 200, 300, 400, 500, 600])
    record = record_of(tmp_path, 0.5 + 0.01 * sentences, sentences)
    pace = MeasuredPace.of(record)
    assert pace.seconds(1000) == pytest.approx(10.5)
    assert pace.source == "as in run run (6 rounds measured)"


def test_a_round_that_saved_does_not_count(tmp_path):
    sentences = np.array([100.0, 200, 300, 400, 500, 600])
    seconds = 0.5 + 0.01 * sentences
    seconds[2] = 900.0
    assert MeasuredPace.of(record_of(tmp_path, seconds, sentences)).seconds(1000) == pytest.approx(
        10.5
    )


def test_few_or_equal_rounds_are_not_a_line(tmp_path):
    record = record_of(tmp_path, [1.0] * 6, [50.0] * 6)
    assert MeasuredPace.of(record).seconds(100) == pytest.approx(2.0)
    assert MeasuredPace.of(replace(record, metrics={})) is None
    few = {name: values[:3] for name, values in record.metrics.items()}
    assert MeasuredPace.of(replace(record, metrics=few)) is None


def test_what_is_not_known_is_said(supply, knobs, tmp_path):
    def said(*given):
        return {fact.name: f"{fact.value}: {fact.note}" for fact in facts(*given)}

    nothing = said(knobs, None, None)
    assert nothing["Sentences in a round"] == "not known: there is no corpus"
    assert nothing["Time of all rounds"].startswith("not known: give the seconds of a round")
    other = said(replace(knobs, users=10_000), supply, None)
    assert "set the same number" in other["Sentences in a round"]
    assert said(knobs, supply, None)["Sentences in a round"].startswith("about ")
    pace = MeasuredPace.of(record_of(tmp_path, [1.0] * 6, [50.0] * 6))
    timed = said(knobs, supply, pace)
    assert "as in run run (6 rounds measured)" in timed["Time of all rounds"]
    assert said(knobs, None, pace)["Time of all rounds"].startswith("not known: the sentences")
    few = said(replace(knobs, users=100, user_rate=0.1), None, None)
    assert "too few" in few["Users in a round"]


def test_seconds_that_somebody_knows(knobs):
    timed = facts(knobs, None, MeasuredPace.given("3"))[-1]
    assert (timed.value, timed.note) == ("about 5 min", "3 s a round, as you gave them")
    for text in ("", "x", "0", "-1", "nan", "inf"):
        with pytest.raises(UserError, match="must be a number above 0"):
            MeasuredPace.given(text)
