"""Fair shares: the guarantees of every rule, and the rule in use against a plain reading."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.mechanism.lending_suite import build, incidences
from tests.mechanism.sharing_suite import run_suite, sharings
from uedp.accounting.planning import ALIGNMENT
from uedp.errors import UserError
from uedp.incidence import Incidence
from uedp.mechanism.fair import Sharing, check_sharing_rule, fair_shares
from uedp.mechanism.lending import lend, random_order
from uedp.mechanism.release import Clips
from uedp.mechanism.sampling import Sampling, crowding, draw_weighted, rounded_down, select

WHOLE = Sharing(0.01)  # nobody's update is expected to be clipped


# --- rules ---------------------------------------------------------------------------------------


def all_of_it_to_one_sentence(incidence: Incidence, sharing: Sharing, key: int) -> np.ndarray:
    """A rule of one's own: each sentence whose hash is the smallest for all its entities."""
    order = random_order(np.arange(incidence.sentences), key)
    mentions = incidence.sentence_entities
    first = np.full(incidence.entities, np.uint64(2**64 - 1))
    np.minimum.at(first, mentions.values, order[mentions.row_of_value()])
    weights = (incidence.extended & (sharing.per_user is None)).astype(float)
    for sentence in np.flatnonzero(~incidence.extended):
        own = mentions[sentence]
        weights[sentence] = (first[own] == order[sentence]).all()
    if sharing.per_user is not None:
        for user in range(incidence.users):
            weights[incidence.user_sentences[user][sharing.per_user :]] = 0
    return weights


def equal_parts(incidence: Incidence, sharing: Sharing, key: int) -> np.ndarray:
    """One over how many mention the most frequent entity: 1/3, three times, is not above 1."""
    weights = 1 / crowding(incidence.sentence_entities)
    for user in range(incidence.users):
        weights[incidence.user_sentences[user][sharing.per_user or incidence.sentences :]] = 0
    return weights


class SharesAmongTheDrawn:
    """Broken: looks ahead in the generator to see who is drawn, and gives nothing to others."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def draw(self) -> None:
        self.rng.random(6)

    def __call__(self, incidence: Incidence, sharing: Sharing, key: int) -> np.ndarray:
        state = self.rng.bit_generator.state
        drawn = self.rng.random(incidence.users) < 0.5
        self.rng.bit_generator.state = state
        return fair_shares(incidence, sharing, key) * drawn[incidence.sentence_user]


def one_share_for_each_user(incidence: Incidence, sharing: Sharing, key: int) -> np.ndarray:
    """Broken: divides an entity among the sentences of each user alone, as rotation may."""
    everything, usable = np.arange(incidence.users), np.ones(incidence.sentences, dtype=bool)
    weights = np.zeros(incidence.sentences)
    for user in everything:
        some = Sampling(1.0, per_entity=None, per_user=sharing.per_user)
        _, sentences, mentions = select(incidence, np.array([user]), some, key, usable)
        weights[sentences] = 1 / crowding(mentions)
    return weights


def write_into_the_incidence(incidence: Incidence, sharing: Sharing, key: int) -> np.ndarray:
    weights = fair_shares(incidence, sharing, key)
    incidence.sentence_entities.values.flags.writeable = True
    incidence.sentence_entities.values[:] = 0
    return weights


@pytest.mark.parametrize("rule", [fair_shares, all_of_it_to_one_sentence, equal_parts])
def test_rule_keeps_its_guarantees(rule):
    run_suite(lambda: rule)


def test_rule_that_sees_who_is_drawn_fails():
    with pytest.raises(UserError, match="never on who was drawn"):
        run_suite(SharesAmongTheDrawn)


def test_rule_that_gives_every_user_a_share_fails():
    incidence = build([0, 1], [(0, 0), (1, 0)], 2, 1)
    with pytest.raises(UserError, match=r"mention entity 0 2 in all; .* add up to at most 1"):
        check_sharing_rule(one_share_for_each_user, incidence, WHOLE, [1])


def test_rule_that_selects_too_many_fails():
    incidence = build([0, 0], [], 1, 1)
    with pytest.raises(UserError, match="2 sentences of user 0; it must leave out all but 1"):
        check_sharing_rule(lambda *_: np.ones(2), incidence, Sharing(0.4, 1), [1])


def test_rule_that_changes_the_incidence_fails():
    incidence = build([0, 1], [(0, 0), (1, 1)], 2, 2)
    with pytest.raises(UserError, match="may only read it"):
        check_sharing_rule(write_into_the_incidence, incidence, WHOLE, [1])


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (np.zeros(3), "one float64 per sentence"),
        (np.zeros(2, dtype=bool), "one float64 per sentence"),
        (np.array([0.5, 1.5]), "outside 0..1"),
        (np.array([0.5, -0.5]), "outside 0..1"),
        (np.array([0.5, np.nan]), "outside 0..1"),
        (np.array([0.5, 0.5 + 1e-9]), "must add up to at most 1"),
    ],
)
def test_rule_must_give_a_weight_per_sentence(result, words):
    incidence = build([0, 1], [(0, 0), (1, 0)], 2, 1)
    with pytest.raises(UserError, match=words):
        check_sharing_rule(lambda *_: result, incidence, WHOLE, [1])


# --- the rule in use -----------------------------------------------------------------------------


def expected_norms(incidence: Incidence, sharing: Sharing, weights: np.ndarray) -> np.ndarray:
    owner = incidence.sentence_user
    total = np.bincount(owner, weights, minlength=incidence.users)
    squares = np.bincount(owner, weights**2, minlength=incidence.users)
    return sharing.entity_share * np.sqrt((1 - ALIGNMENT**2) * squares + ALIGNMENT**2 * total**2)


@settings(max_examples=300, deadline=None)
@given(incidences(), sharings, st.integers(0, 2**63))
def test_weights_of_an_entity_add_up_to_at_most_one_without_rounding(incidence, sharing, key):
    weights = fair_shares(incidence, sharing, key)
    clips = Clips(0.7, sharing.entity_share).of_sentences(weights).double().tolist()
    for entity in range(incidence.entities):
        own = incidence.entity_sentences[entity].tolist()
        assert sum((Fraction(weights[s]) for s in own), Fraction(0)) <= 1
        share = Fraction(0.7 * sharing.entity_share)
        assert sum((Fraction(clips[s]) for s in own), Fraction(0)) <= share


@settings(max_examples=300, deadline=None)
@given(incidences(), sharings, st.integers(0, 2**63))
def test_weights_are_max_min_fair(incidence, sharing, key):
    """What holds a sentence down: an entity or a user that is full, in which none has more."""
    weights = fair_shares(incidence, sharing, key)
    norms = expected_norms(incidence, sharing, weights)
    assert (norms <= 1 + 1e-7).all()
    selected = np.flatnonzero(weights > 0)
    counts = np.bincount(incidence.sentence_user, minlength=incidence.users)
    limited = counts if sharing.per_user is None else np.minimum(counts, sharing.per_user)
    used = np.bincount(incidence.sentence_user[selected], minlength=incidence.users)
    assert (used == limited).all()  # no selected sentence has nothing
    for sentence in selected[weights[selected] < 1].tolist():
        user, weight = incidence.sentence_user[sentence], weights[sentence] + 1e-7
        groups = [incidence.entity_sentences[e] for e in incidence.sentence_entities[sentence]]
        held = any(weights[own].sum() > 1 - 1e-7 and weights[own].max() <= weight for own in groups)
        own = incidence.user_sentences[user]
        assert held or (norms[user] > 1 - 1e-7 and weights[own].max() <= weight)


def test_the_parts_of_a_small_corpus():
    """Entity 0 in three sentences, entity 1 in two of which one has both; one without any."""
    incidence = build([0, 0, 1, 2, 2], [(0, 0), (1, 0), (2, 0), (2, 1), (3, 1)], 3, 2)
    third = pytest.approx(1 / 3, abs=1e-9)
    assert fair_shares(incidence, WHOLE, 1).tolist() == [
        third, third, third, pytest.approx(2 / 3, abs=1e-9), 1,
    ]  # fmt: skip


def test_a_user_who_is_clipped_anyway_leaves_more_to_others():
    """User 0 has thirty sentences of its own; both mention entity 0 in one sentence."""
    incidence = build([0] * 31 + [1], [(30, 0), (31, 0)], 2, 1)
    weights = fair_shares(incidence, Sharing(1.0), 1)
    assert weights[30] < 0.2
    assert weights[31] == pytest.approx(1 - weights[30], abs=1e-8)
    assert expected_norms(incidence, Sharing(1.0), weights)[0] == pytest.approx(1)
    assert fair_shares(incidence, WHOLE, 1).tolist() == [1.0] * 30 + [0.5, 0.5]


def test_sentences_are_selected_by_the_key_and_divide_what_others_leave():
    incidence = build([0] * 4 + [1], [(s, 0) for s in range(5)], 2, 1)
    seen = {fair_shares(incidence, Sharing(0.1, 1), key).tobytes() for key in range(40)}
    assert len(seen) == 4
    assert all(np.frombuffer(one).sum() == 1 for one in seen)


def test_many_sentences_of_one_entity_lose_next_to_nothing_in_rounding():
    incidence = build(range(1000), [(s, 0) for s in range(1000)], 1000, 1)
    weights = fair_shares(incidence, WHOLE, 1)
    assert (weights > 0).all()
    assert 1 - 1e-6 < weights.sum() <= 1


@given(st.lists(st.floats(0, 1), max_size=20))
def test_rounding_down_is_by_less_than_a_grid_step_and_sums_are_exact(values):
    weights = rounded_down(np.array(values))
    assert ((weights <= values) & (weights > np.array(values) - 2.0**-32)).all()
    assert Fraction(float(weights.sum())) == sum(map(Fraction, weights.tolist()), Fraction(0))


@given(incidences(), sharings, st.integers(0, 2**32))
def test_a_round_uses_all_sentences_of_the_drawn_that_have_a_weight(incidence, sharing, seed):
    weights = fair_shares(incidence, sharing, seed)
    who = draw_weighted(incidence, Sampling(0.5), np.random.default_rng(seed), weights)
    for position, user in enumerate(who.users.tolist()):
        own = incidence.user_sentences[user]
        assert who.sentences[position].tolist() == own[weights[own] > 0].tolist()
    assert (who.weights == weights[who.sentences.values]).all()


def test_only_sentences_without_an_entity_toss_coins():
    incidence = build([0] * 200, [(s, 0) for s in range(100)], 1, 1)
    weights = fair_shares(incidence, WHOLE, 1)
    sampling = Sampling(1.0, extended_rate=0.5)
    used = draw_weighted(incidence, sampling, np.random.default_rng(0), weights).sentences.values
    assert (used < 100).sum() == 100
    assert 30 < (used >= 100).sum() < 70


# --- how far a round moves -----------------------------------------------------------------------


def ball(vector: np.ndarray, radius: float) -> np.ndarray:
    return vector * min(1.0, radius / max(float(np.linalg.norm(vector)), 1e-300))


def updates(incidence: Incidence, clips: np.ndarray, gradients: np.ndarray) -> np.ndarray:
    """Each user's clipped update, one sentence after the other."""
    result = np.zeros((incidence.users, gradients.shape[1]))
    for user in range(incidence.users):
        own = incidence.user_sentences[user]
        total = sum((ball(gradients[s], clips[s]) for s in own), np.zeros(gradients.shape[1]))
        result[user] = ball(total, 1.0)
    return result


def largest_excess(rule, examples: int = 40) -> float:
    """Over small corpora, everything emptied and every draw: how far beyond the bound.

    An entity may move each drawn user by its part, the sum of its weights in that user's sentences
    times the share, and all drawn users together by the share; a user by 1.
    """
    rng, worst = np.random.default_rng(0), -np.inf
    for _ in range(examples):
        users, entities = 3, 2
        owners = rng.integers(users, size=7)
        mentions = [(s, e) for s in range(7) for e in range(entities) if rng.random() < 0.4]
        incidence = build(owners, mentions, users, entities)
        sharing = Sharing(float(rng.choice([0.3, 1.0])), rng.choice([None, 2]))
        weights = rule(incidence, sharing, int(rng.integers(2**40)))
        clips = sharing.entity_share * weights
        direction = rng.normal(size=3)
        aligned = rng.choice([-9.0, 9.0], size=(7, 1)) * direction
        for gradients in (rng.normal(size=(7, 3)) * 10 ** rng.uniform(-1, 2), aligned):
            full = updates(incidence, clips, gradients)
            for entity in range(entities):
                named = np.isin(np.arange(7), incidence.entity_sentences[entity])
                left = np.where(named[:, None], 0.0, gradients)
                moved = full - updates(incidence, clips, left)
                own = np.bincount(owners[named], clips[named], minlength=users)
                worst = max(worst, float((np.linalg.norm(moved, axis=1) - own).max()))
                for draw in range(1 << users):  # also those that nobody would draw
                    drawn = [user for user in range(users) if draw >> user & 1]
                    shift = float(np.linalg.norm(moved[drawn].sum(axis=0)))
                    worst = max(worst, shift - sharing.entity_share)
            assert (np.linalg.norm(full, axis=1) <= 1 + 1e-9).all()
    return worst


def test_an_emptied_entity_moves_the_drawn_users_by_parts_of_its_share():
    assert largest_excess(fair_shares) <= 1e-9
    assert largest_excess(one_share_for_each_user) > 0.1
    assert largest_excess(lambda one, _, key: lend(one, key).astype(float)) > 0.1
