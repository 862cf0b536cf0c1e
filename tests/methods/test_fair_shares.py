"""The method of fair shares: what it refuses, its schedule, and a round against a plain reading."""

import numpy as np
import pytest

from tests.training import worlds
from uedp.errors import UserError
from uedp.mechanism.fair import Sharing, fair_shares
from uedp.methods import PrivacySettings
from uedp.methods import fair_shares as method
from uedp.methods.fair_shares import sharing_schedule

SHARING = Sharing(0.4, 1)


def settings(**changes):
    return PrivacySettings(method="fair-shares", epsilon=8, **changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"entity_rate": 0.5}, "leave out privacy.entity_rate"),
        ({"sentences_per_entity": 2}, "leave out privacy.sentences_per_entity"),
        ({"entity_share": 1.2}, "privacy.entity_share 1.2: must be at most 1"),
    ],
)
def test_settings_of_other_rules_are_refused_with_a_remedy(changes, words):
    with pytest.raises(ValueError, match=words):
        settings(**changes)
    assert settings(extended_rate=0.5, entity_share=1.0, sentences_per_user=3).extended_rate == 0.5


def test_a_rule_that_gives_too_much_is_refused_in_its_round():
    def everything(incidence, sharing, key):
        return np.ones(incidence.sentences)

    with pytest.raises(UserError, match="must add up to at most 1"):
        sharing_schedule(everything, worlds.incidence(), Sharing(0.4), 1).at(0, 1)


def test_a_rule_that_is_no_function_of_the_key_is_refused_in_its_round():
    rng = np.random.default_rng(0)

    def moody(incidence, sharing, key):
        return fair_shares(incidence, sharing, int(rng.integers(2**40)))

    with pytest.raises(UserError, match="another result when called again"):
        sharing_schedule(moody, worlds.incidence(), SHARING, 1).at(0, 1)


def test_what_a_rule_of_ones_own_gives_is_rounded_down():
    def thirds(incidence, sharing, key):
        return np.where(incidence.extended, 1 / 3, 0.0)

    weights = sharing_schedule(thirds, worlds.incidence(), Sharing(0.4), 1).at(0, 1)
    assert set(weights.tolist()) == {0.0, np.floor(2**32 / 3) / 2**32}


def test_a_period_goes_on_as_it_was_in_a_resumed_run(monkeypatch):
    incidence = worlds.incidence()
    size = incidence.sentences + len(incidence.sentence_entities.values)
    monkeypatch.setattr(method, "_SIZE_PER_ROUND", size // 2)  # periods of three rounds
    one, other = (sharing_schedule(fair_shares, incidence, SHARING, None) for _ in range(2))
    assert one.state() == {}
    weights = one.at(3, 11)
    assert other.restore({**one.state(), "more": 1}) == {"more": 1}
    assert (other.at(4, 12) == weights).all()  # the key of a later round changes nothing
    assert (other.at(6, 13) == fair_shares(incidence, SHARING, 13)).all()
    assert (other.at(6, 13) != weights).any()


def test_with_a_seed_weights_depend_on_it_and_the_round_alone():
    one, other = (sharing_schedule(fair_shares, worlds.incidence(), SHARING, 5) for _ in range(2))
    seen = [one.at(number, number).copy() for number in range(6)]
    assert len({weights.tobytes() for weights in seen}) > 1
    for number in (5, 0, 3):
        assert (other.at(number, 77) == seen[number]).all()
