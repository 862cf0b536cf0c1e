"""Theorem 4 attacked by enumeration, and a vocabulary's way through accountant and ledger."""

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from tests.accounting.plans import planned
from tests.accounting.test_proven import gaussian_delta, gaussian_epsilon
from uedp.accounting import certificate as certificates
from uedp.accounting.calibrate import noise_for
from uedp.accounting.certificate import (
    PRIVATE_VOCABULARY,
    Certificate,
    Shape,
    issue,
    load_certificate,
    verify,
)
from uedp.accounting.chain import read_chain
from uedp.accounting.ledger import RUN_LEDGER, Budget, CorpusLedger, RunLedger
from uedp.accounting.proven import (
    RotationProfile,
    UedpAlgProfile,
    UserLevelProfile,
    epsilon,
    guarantee,
)
from uedp.accounting.vocabulary import (
    MissedInVocabulary,
    VocabularyRelease,
    release_for,
    with_threshold,
)
from uedp.errors import UserError

DELTA = 1e-5
RELEASE = with_threshold(8.0, 16, 4, 1e-7)
ROUNDS = RotationProfile(2.0, 0.1, 0.3)
FEW = settings(max_examples=25, deadline=None)


# --- the sensitivity, by enumeration --------------------------------------------------------------


def arrangements(sizes):
    """Every way for sets of at most these sizes to fall on words: for each word, who moves it."""
    universe = range(sum(sizes))
    own = [
        [set(c) for n in range(size + 1) for c in itertools.combinations(universe, n)]
        for size in sizes
    ]
    for sets in itertools.product(*own):
        yield np.array([sum(word in moved for moved in sets) for word in universe])


SIZES = [(1,), (3,), (2, 1), (2, 2), (3, 1), (3, 2), (1, 1, 1), (2, 2, 1), (2, 2, 2)]


@pytest.mark.parametrize("sizes", SIZES)
def test_no_arrangement_moves_the_counts_farther(sizes):
    """And one moves them as far: the shift is the largest there is."""
    pair = _pair_of(sizes, noise=1.0, threshold=30.0)
    claimed = pair.shifts[0] ** 2 * sizes[0]
    largest = max(int((moved**2).sum()) for moved in arrangements(sizes))
    assert largest == pytest.approx(claimed)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(("noise", "threshold"), [(0.2, 2.5), (1.0, 3.0), (5.0, 12.0)])
def test_no_arrangement_releases_a_word_more_probably(sizes, noise, threshold):
    release, holders = _release_of(sizes, noise, threshold)
    claimed = _claimed_failure(release, holders)
    deviation = noise * math.sqrt(sizes[0])
    largest = 0.0
    for moved in arrangements(sizes):
        new = moved[moved > 0]
        stays = special.log_ndtr((threshold - new) / deviation).sum()
        largest = max(largest, -np.expm1(stays))
    assert largest <= claimed * (1 + 1e-12)
    if len(sizes) <= 2:  # of a user, or a user and an entity, it is the exact one
        assert largest == pytest.approx(claimed, rel=1e-9)
    else:
        assert claimed <= 2 * largest


def _release_of(sizes, noise, threshold):
    """A release, and users in which a mention was missed, that move sets of these sizes."""
    if len(sizes) == 1:
        return VocabularyRelease(noise, threshold, sizes[0], None), 0
    assert set(sizes[:-1]) == {sizes[0]}
    return VocabularyRelease(noise, threshold, sizes[0], sizes[-1]), len(sizes) - 2


def _pair_of(sizes, noise, threshold):
    """The Gaussian within the pair."""
    release, holders = _release_of(sizes, noise, threshold)
    profile = MissedInVocabulary(release, holders) if holders else release
    return next(iter(profile.pairs().values())).pairs[0]


def _claimed_failure(release, holders):
    profile = MissedInVocabulary(release, holders) if holders else release
    return next(iter(profile.pairs().values())).weights[1]


# --- worlds that exist ----------------------------------------------------------------------------


def released_sets(counts, release):
    """Probabilities of every set of words that may be released, as two columns' worth of bits."""
    at_least = special.ndtr((np.array(counts) - release.threshold) / release.deviation)
    chances = np.where(np.array(counts) > 0, at_least, 0.0)  # no one gives it: it is not there
    total = np.ones(1)
    for chance in chances:
        total = np.concatenate([total * (1 - chance), total * chance])
    return total


def divergence(upper, lower, eps):
    return float(np.maximum(upper - math.exp(eps) * lower, 0.0).sum())


def random_worlds(rng, release, count):
    """Counts of eight words on the emptied corpus and on the full one."""
    for _ in range(count):
        emptied = rng.integers(0, 6, 8) * (rng.random(8) < rng.random())
        full = emptied.copy()
        for most in (release.words_per_user, release.words_per_sentence or 0):
            full[rng.permutation(8)[: rng.integers(0, most + 1)]] += 1
        yield emptied, full


@pytest.mark.parametrize(
    "release",
    [
        VocabularyRelease(0.6, 4.0, 4, 2),
        VocabularyRelease(1.5, 5.0, 3, 1),
        VocabularyRelease(0.4, 3.0, 2, 2),
        VocabularyRelease(1.0, 3.0, 5, None),
    ],
)
def test_no_small_world_is_above_the_bound(release):
    rng = np.random.default_rng(3)
    (full_side, emptied_side), *_ = guarantee([(release, 1)]).losses.values()
    closest = 0.0
    for emptied, full in random_worlds(rng, release, 400):
        without, with_ = (released_sets(counts, release) for counts in (emptied, full))
        for eps in (0.0, 0.3, 1.0, 2.5):
            for side, upper, lower in (
                (full_side, with_, without),
                (emptied_side, without, with_),
            ):
                found, bound = divergence(upper, lower, eps), side.delta(eps)
                assert found <= bound + 1e-12
                closest = max(closest, found / bound)
    assert closest > 0.3


def test_leaving_the_threshold_out_of_delta_is_caught():
    """A user's own words: only the chance that they are released tells, and it does."""
    release = VocabularyRelease(1.0, 5.0, 4, None)
    alone = released_sets([1, 1, 1, 1], release)
    nothing = released_sets([0, 0, 0, 0], release)
    eps = 6.0
    found = divergence(alone, nothing, eps)
    assert found == pytest.approx(release.failure, rel=1e-9)  # so the bound is attained
    assert found <= guarantee([(release, 1)]).delta(eps)
    assert found > 1.5 * gaussian_delta(eps, release.noise)


def test_counting_the_user_alone_is_caught():
    """A user and an entity that move the same words, which others have too."""
    release = VocabularyRelease(2.0, 500.0, 4, 2)
    moved = np.array([2, 2, 1, 1])
    shift = np.linalg.norm(moved) / math.sqrt(release.words_per_user)
    for eps in (0.1, 1.0):
        found = gaussian_delta(eps, release.noise / shift)
        assert found <= guarantee([(release, 1)]).delta(eps) <= found * 1.001
        assert found > 1.5 * guarantee([(release.user_alone(), 1)]).delta(eps)


# --- composition ----------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", [1e-9, 1e-6, 9e-6])
def test_with_gaussian_rounds_it_is_one_gaussian_and_a_failure(failure):
    """`delta = f + (1 - f) H`: the closed form of the whole run, in both directions."""
    release = with_threshold(6.0, 32, None, failure)
    rounds = UserLevelProfile(20.0, 1.0)
    together = guarantee([(rounds, 10), (release, 1)])
    noise = 1 / math.sqrt(10 / 20.0**2 + 1 / 6.0**2)
    left = (DELTA - release.failure) / (1 - release.failure)
    exact = gaussian_epsilon(left, noise)
    for side in together.losses["user"]:
        assert exact <= side.epsilon(DELTA) <= exact * 1.002
        assert side.infinite >= release.failure
    # the plain way, epsilon at what is left of delta, is not below it
    assert exact <= gaussian_epsilon(DELTA - release.failure, noise)


def test_a_failure_above_delta_leaves_no_epsilon():
    release = with_threshold(6.0, 32, None, 1.1 * DELTA)
    assert epsilon(UserLevelProfile(20.0, 0.1), 10, DELTA, (release, 1)) == math.inf
    assert epsilon(UserLevelProfile(20.0, 0.1), 10, 2 * DELTA, (release, 1)) < 2


def test_it_adds_up_with_rounds_of_either_unit():
    alone = epsilon(ROUNDS, 50, DELTA)
    beside = epsilon(ROUNDS, 50, DELTA, (RELEASE, 1))
    assert alone < beside < alone + epsilon(RELEASE, 1, DELTA)
    assert set(guarantee([(ROUNDS, 50), (RELEASE, 1)]).losses) == set(ROUNDS.pairs())
    users = UserLevelProfile(2.0, 0.1)
    of_user = epsilon(users, 50, DELTA, (RELEASE.user_alone(), 1))
    assert epsilon(users, 50, DELTA) < of_user < beside
    for unlike in (
        (ROUNDS, RELEASE.user_alone()),
        (users, RELEASE),
        (UedpAlgProfile(2.0, 0.1, 9, 3), RELEASE),
    ):
        with pytest.raises(UserError, match="do not add up"):
            guarantee([(unlike[0], 50), (unlike[1], 1)])


def test_missed_mentions_only_cost():
    ladder = [epsilon(RELEASE, 1, DELTA)]
    ladder += [epsilon(MissedInVocabulary(RELEASE, h), 1, DELTA) for h in (0, 1, 2, 5, 10)]
    assert ladder[0] == ladder[1]
    assert ladder == sorted(ladder)
    assert ladder[-1] > 5 * ladder[0]


def test_few_missed_sentences_give_few_words():
    """A sentence gives `words_per_sentence` at most, and all of a user's no more than its own."""
    by_sentences = [
        epsilon(MissedInVocabulary(RELEASE, 2, per_user), 1, DELTA)
        for per_user in (0, 1, 2, 1000, None)
    ]
    assert by_sentences == sorted(by_sentences)
    assert by_sentences[0] == epsilon(RELEASE, 1, DELTA)
    assert by_sentences[1] < by_sentences[3] == by_sentences[4]
    # one sentence of one user moves what another entity's sentence of another user would
    shift = math.sqrt(1 + (3 + 5) * RELEASE.words_per_sentence / RELEASE.words_per_user)
    (gaussian, _) = MissedInVocabulary(RELEASE, 1, 1).pairs()["user and missed entity"].pairs
    assert gaussian.shifts == pytest.approx((shift,))


@FEW
@given(
    noise=st.floats(0.5, 20),
    threshold=st.floats(0, 200),
    words=st.integers(1, 300),
    more=st.floats(1, 3),
    data=st.data(),
)
def test_a_higher_threshold_or_fewer_words_protect_more(noise, threshold, words, more, data):
    of_sentence = data.draw(st.integers(1, words))
    release = VocabularyRelease(noise, threshold, words, of_sentence)
    assert replace(release, threshold=threshold * more).failure <= release.failure
    assert release.user_alone().failure <= release.failure
    fewer = replace(release, words_per_sentence=data.draw(st.integers(1, of_sentence)))
    assert fewer.failure <= release.failure
    assert 0 <= release.failure <= 1


# --- calibration ----------------------------------------------------------------------------------


@FEW
@given(
    noise=st.floats(1e-3, 1e3),
    words=st.integers(1, 1000),
    failure=st.sampled_from([1e-12, 1e-7, 1e-3, 0.5]),
    data=st.data(),
)
def test_the_threshold_is_the_least(noise, words, failure, data):
    of_sentence = data.draw(st.none() | st.integers(1, words))
    release = with_threshold(noise, words, of_sentence, failure)
    assert release.failure <= failure
    lower = replace(release, threshold=release.threshold * (1 - 1e-6) - 1e-9)
    assert lower.failure > failure


@pytest.mark.parametrize("of_sentence", [16, None])
@pytest.mark.parametrize(("target", "share"), [(8.0, 0.3), (1.0, 0.5), (2.0, 1.0)])
def test_a_release_keeps_to_its_share(target, share, of_sentence):
    release = release_for(target, DELTA, share, words_per_sentence=of_sentence)
    assert epsilon(release, 1, DELTA) <= share * target
    assert release.failure <= 0.01 * DELTA
    less = with_threshold(0.999 * release.noise, 64, of_sentence, 0.01 * DELTA)
    assert epsilon(less, 1, DELTA) > share * target


def test_rounds_beside_a_release_meet_the_target_together():
    release = release_for(4.0, DELTA, 0.3)

    def rotation(noise: float) -> RotationProfile:
        return RotationProfile(noise, 0.1, 0.3)

    noise = noise_for(4.0, DELTA, 100, rotation, [(release, 1)])
    assert epsilon(rotation(noise), 100, DELTA, (release, 1)) <= 4.0
    assert epsilon(rotation(0.999 * noise), 100, DELTA, (release, 1)) > 4.0
    without = noise_for(4.0, DELTA, 100, rotation)
    assert without < noise < 1.08 * without


@pytest.mark.parametrize(
    ("words", "bad"),
    [
        ("noise -1", lambda: VocabularyRelease(-1.0, 5.0, 4, 2)),
        ("noise nan", lambda: VocabularyRelease(math.nan, 5.0, 4, 2)),
        ("threshold -1", lambda: VocabularyRelease(1.0, -1.0, 4, 2)),
        ("threshold inf", lambda: VocabularyRelease(1.0, math.inf, 4, 2)),
        ("words per user 0", lambda: VocabularyRelease(1.0, 5.0, 0, None)),
        ("words per sentence 0", lambda: VocabularyRelease(1.0, 5.0, 4, 0)),
        ("words per sentence 5", lambda: VocabularyRelease(1.0, 5.0, 4, 5)),
        ("failure probability 0", lambda: with_threshold(1.0, 4, 2, 0.0)),
        ("noise 0", lambda: with_threshold(0.0, 4, 2, 1e-7)),
        ("share 0", lambda: release_for(1.0, DELTA, 0.0)),
        ("share 1.5", lambda: release_for(1.0, DELTA, 1.5)),
        ("epsilon -0.5", lambda: release_for(-1.0, DELTA, 0.5)),
        ("delta 0", lambda: release_for(1.0, 0.0, 0.5)),
    ],
)
def test_nonsense_is_refused_by_name(words, bad):
    with pytest.raises(UserError, match=words):
        bad()


def test_no_noise_is_no_guarantee():
    none = VocabularyRelease(0.0, 50.0, 4, 2)
    assert none.failure == 1
    assert epsilon(ROUNDS, 10, DELTA, (none, 1)) == math.inf


# --- the ledger and the certificate ---------------------------------------------------------------

SHAPE = Shape(digest="d" * 64, users=946, sentences=14_040, entities=5000)


def make_run(folder, profile=ROUNDS, vocabulary=RELEASE, **options):
    folder.mkdir()
    options |= {"delta": DELTA, "sentences_per_user": 2}
    plan = planned("run", SHAPE.digest, profile, 20, vocabulary, **options)
    with RunLedger.open(folder, plan) as ledger:
        if vocabulary is not None:
            ledger.spend_vocabulary()
        ledger.spend(5)
    return folder


@pytest.fixture(autouse=True)
def short_table(monkeypatch):
    monkeypatch.setattr("uedp.accounting.statement.MISSED_CASES", ((1, None),))


def test_a_plan_without_a_vocabulary_is_recorded_as_ever(tmp_path):
    make_run(tmp_path / "run", vocabulary=None)
    plan = read_chain(tmp_path / "run" / RUN_LEDGER)[0][0]
    assert "vocabulary" not in plan


def test_a_vocabulary_is_made_once(tmp_path):
    with RunLedger.open(tmp_path, planned("run", "digest", ROUNDS, 20, RELEASE)) as ledger:
        assert not ledger.vocabulary_spent
        ledger.spend_vocabulary()
        assert ledger.vocabulary_spent
        ledger.spend(20)
    with RunLedger.open(tmp_path, planned("run", "digest", ROUNDS, 20, RELEASE)) as ledger:
        assert ledger.vocabulary_spent
        assert ledger.left == 0
        before = (tmp_path / RUN_LEDGER).read_bytes()
        with pytest.raises(UserError, match="made before"):
            ledger.spend_vocabulary()
    assert (tmp_path / RUN_LEDGER).read_bytes() == before


def test_a_vocabulary_that_was_not_planned_is_refused(tmp_path):
    with (
        RunLedger.open(tmp_path, planned("run", "digest", ROUNDS, 20)) as ledger,
        pytest.raises(UserError, match="no private vocabulary was planned"),
    ):
        ledger.spend_vocabulary()


@pytest.mark.parametrize("other", [None, replace(RELEASE, threshold=RELEASE.threshold + 1)])
def test_another_vocabulary_is_another_plan(tmp_path, other):
    make_run(tmp_path / "run")
    with (
        pytest.raises(UserError, match="planned differently"),
        RunLedger.open(tmp_path / "run", planned("run", SHAPE.digest, ROUNDS, 20, other)),
    ):
        pass
    corpus = CorpusLedger(tmp_path)
    corpus.reserve(planned("run", "one", ROUNDS, 20, RELEASE))
    with pytest.raises(UserError, match="reserved another plan"):
        corpus.reserve(planned("run", "one", ROUNDS, 20, other))


def test_the_corpus_pays_for_every_vocabulary(tmp_path):
    corpus = CorpusLedger(tmp_path)
    other = with_threshold(5.0, 8, 8, 1e-7)
    corpus.reserve(planned("first", "one", ROUNDS, 20, RELEASE))
    corpus.reserve(planned("second", "one", ROUNDS, 10))
    corpus.reserve(planned("third", "one", ROUNDS, 10, other))
    expected = guarantee([(ROUNDS, 40), (RELEASE, 1), (other, 1)]).epsilon(DELTA)
    assert corpus.epsilon(DELTA) == pytest.approx(expected, rel=1e-6)


def test_a_budget_counts_the_vocabulary(tmp_path):
    corpus = CorpusLedger(tmp_path)
    budget = Budget(epsilon(ROUNDS, 20, DELTA) * 1.001, DELTA)
    with pytest.raises(UserError, match="budget"):
        corpus.reserve(planned("run", "one", ROUNDS, 20, RELEASE), budget)
    corpus.reserve(planned("run", "one", ROUNDS, 20), budget)


def test_a_certificate_charges_it_and_verifies(tmp_path):
    folder = make_run(tmp_path / "run")
    shown = issue(folder)
    assert verify(folder) == shown == load_certificate(folder)
    assert shown.private
    assert shown.epsilon == epsilon(ROUNDS, 20, DELTA, (RELEASE, 1))
    users = UserLevelProfile(ROUNDS.noise, ROUNDS.user_rate)
    assert shown.epsilon_user_alone == epsilon(users, 20, DELTA, (RELEASE.user_alone(), 1))
    without = issue(make_run(tmp_path / "without", vocabulary=None))
    for more, less in (
        (shown.epsilon, without.epsilon),
        (shown.epsilon_user_alone, without.epsilon_user_alone),
        (shown.missed_mentions[0].epsilon, without.missed_mentions[0].epsilon),
    ):
        assert more > less
    assert shown.parameters["vocabulary_noise"] == RELEASE.noise
    assert shown.parameters["vocabulary_threshold"] == RELEASE.threshold
    assert shown.parameters["words_per_user"] == RELEASE.words_per_user
    assert shown.parameters["noise"] == ROUNDS.noise
    assert not any("vocabulary" in caveat for caveat in shown.caveats)
    assert Certificate.model_validate(json.loads(shown.model_dump_json())) == shown


def test_a_user_level_certificate_charges_it_too(tmp_path):
    release = RELEASE.user_alone()
    folder = make_run(tmp_path / "run", UserLevelProfile(2.0, 0.1), release)
    shown = issue(folder)
    assert shown.epsilon == epsilon(UserLevelProfile(2.0, 0.1), 20, DELTA, (release, 1))
    assert shown.epsilon == shown.epsilon_user_alone
    verify(folder)


@pytest.mark.parametrize(
    ("vocabulary", "stated"), [(RELEASE, "public"), (None, PRIVATE_VOCABULARY)]
)
def test_what_is_stated_of_it_must_agree_with_the_plan(tmp_path, vocabulary, stated):
    folder = make_run(tmp_path / "run", vocabulary=vocabulary, vocabulary_origin=stated)
    with pytest.raises(UserError, match=r"setup\.vocabulary"):
        issue(folder)


def test_private_words_beside_others_of_the_corpus_are_not_private(tmp_path):
    """What is charged covers the words it released, not a list that came with them."""
    folder = make_run(tmp_path / "run", vocabulary_origin="from the corpus, not covered")
    assert not issue(folder).private


def test_tampering_with_it_is_found(tmp_path):
    folder = make_run(tmp_path / "run")
    issue(folder)
    path = folder / certificates.CERTIFICATE
    whole = json.loads(path.read_text())
    for field, change in (
        ("setup.vocabulary", {"setup": {**whole["setup"], "vocabulary": "public"}}),
        ("parameters", {"parameters": {**whole["parameters"], "vocabulary_noise": 80.0}}),
        ("epsilon", {"epsilon": epsilon(ROUNDS, 20, DELTA)}),
    ):
        path.write_text(json.dumps({**whole, **change}))
        with pytest.raises(UserError, match=field):
            verify(folder)
