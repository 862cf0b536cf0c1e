"""Runs on a corpus that grows (Theorem 8): who is charged for which rounds."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as dp_accounting

from tests.accounting.plans import planned
from tests.accounting.worlds import Law, World, law, rotation_laws
from uedp.accounting.growth import UNKNOWN, PastRun, charged, epoch_of, growth_lines, growth_of
from uedp.accounting.ledger import CorpusLedger, CorpusTotal, PlannedRun
from uedp.accounting.proven import (
    FairSharesProfile,
    RotationProfile,
    UedpAlgProfile,
    UserLevelProfile,
    guarantee,
)
from uedp.accounting.vocabulary import VocabularyRelease
from uedp.corpus.sentence import Sentence
from uedp.corpus.store import Corpus
from uedp.entities.detection import Detection, detect
from uedp.entities.extension import extend
from uedp.errors import UserError

DELTA = 1e-5
EPOCHS = 10
CHAIN = tuple((f"incidence-{number}", f"texts-{number}") for number in range(1, EPOCHS + 1))


@pytest.fixture(autouse=True)
def one_case(monkeypatch):
    """One kind of late mentions: each takes a second."""
    monkeypatch.setattr("uedp.accounting.growth.MISSED_CASES", ((1, 1),))


def noise_of(epoch: int) -> float:
    return 0.8 + 0.05 * epoch


def past(epoch: int, profile=None, rounds: int = 3, **options) -> PastRun:
    profile = profile or RotationProfile(noise_of(epoch), 0.1, 0.4)
    return PastRun(f"run-{epoch}", profile, rounds, *CHAIN[epoch - 1], **options)


def plan_at(epoch: int, profile, rounds: int, chain=CHAIN, **options) -> PlannedRun:
    incidence, texts = chain[epoch - 1]
    return planned(
        f"run-{epoch}-{rounds}",
        incidence,
        profile,
        rounds,
        texts=texts,
        epochs=tuple(chain[:epoch]) if epoch > 1 else (),
        **options,
    )


# --- who is charged ------------------------------------------------------------------------------


def test_who_is_charged_for_a_run():
    assert [charged(epoch, joined=3) for epoch in range(1, 6)] == [False, False, True, True, True]
    assert [charged(epoch, 2, left=4) for epoch in range(1, 6)] == [False, True, True, False, False]
    assert charged(UNKNOWN, joined=9)
    assert charged(UNKNOWN, joined=1, left=1)
    assert epoch_of(CHAIN, *CHAIN[3]) == 4
    assert epoch_of(CHAIN, CHAIN[3][0], "other texts") == UNKNOWN


def test_ten_epochs_of_arrivals_match_brute_force(tmp_path):
    """Every user's own rounds, found in the corpus as each run saw it, composed by another library.

    Some arrive in every epoch, some write again, some leave.
    """
    detection = Detection(("labels",))
    corpus = detect([Sentence("u1-a", "x"), Sentence("u1-b", "y")], tmp_path / "c", detection)
    ledger = CorpusLedger(corpus.folder)
    chain, rounds = [], 4
    for epoch in range(1, EPOCHS + 1):
        if epoch > 1:
            texts = [Sentence(f"u{epoch}-a", "x"), Sentence(f"u{epoch}-b", "z")]
            texts += [Sentence("u1-a", f"again in {epoch}")] * (epoch % 3 == 0)
            forget = [f"u{epoch - 3}-b"] if epoch > 3 else []
            corpus = extend(corpus, texts, detection, forget=forget).corpus
        chain.append((corpus.epochs[-1].incidence, ledger.keyed(corpus.epochs[-1].texts)))
        profile = UserLevelProfile(noise_of(epoch), 0.1)
        ledger.reserve(plan_at(epoch, profile, rounds, chain))
        ledger.close(f"run-{epoch}-{rounds}", rounds)
    theirs = {
        epoch: dp_accounting.from_gaussian_mechanism(
            noise_of(epoch), sampling_prob=0.1, value_discretization_interval=1e-3
        ).self_compose(rounds)
        for epoch in range(1, EPOCHS + 1)
    }
    names = corpus.user_names.to_pylist()
    seen = {name: [] for name in names}  # the epochs in whose rounds a user's text is
    for epoch in range(1, EPOCHS + 1):
        then = Corpus(corpus.folder, epoch)
        kept, _ = then.for_rounds()
        owners = then.incidence.sentence_user
        for user in np.unique(owners if kept is None else owners[kept]):
            seen[names[user]].append(epoch)
    totals = {row.epoch: row for row in ledger.total(DELTA).by_epoch}
    for name, epochs in seen.items():
        joined = int(name[1:].partition("-")[0])
        left = joined + 3 if name.endswith("b") and joined + 3 <= EPOCHS else None
        assert epochs == list(range(joined, left or EPOCHS + 1))
        whole = theirs[epochs[0]]
        for epoch in epochs[1:]:
            whole = whole.compose(theirs[epoch])
        brute = whole.get_epsilon_for_delta(DELTA)
        assert ledger.epsilon(DELTA, joined, left) == pytest.approx(brute, rel=4e-3)
        if left is None:
            assert totals[joined].epsilon == pytest.approx(brute, rel=4e-3)
            assert totals[joined].rounds == rounds * len(epochs)
    assert ledger.total(DELTA).epsilon == totals[1].epsilon


def test_ten_epochs_of_entities_match_brute_force(tmp_path):
    """The same for a user and an entity: every round counted for itself, one after the other."""
    ledger = CorpusLedger(tmp_path)
    single = []
    for epoch in range(1, EPOCHS + 1):
        profile = RotationProfile(noise_of(epoch), 0.1, 0.4)
        ledger.reserve(plan_at(epoch, profile, 2))
        single.append([(profile, 1)] * 2)
    runs = [past(epoch, rounds=2) for epoch in range(1, EPOCHS + 1)]
    stated = growth_of(CHAIN, runs, DELTA)
    totals = ledger.total(DELTA).by_epoch
    for joined in (1, 2, 6, 10):
        rounds = [event for epoch in single[joined - 1 :] for event in epoch]
        brute = guarantee(rounds).epsilon(DELTA)
        assert totals[joined - 1].epsilon == pytest.approx(brute, rel=1e-6)
        assert stated.by_joining_epoch[joined - 1].epsilon == pytest.approx(brute, rel=1e-6)
        assert ledger.epsilon(DELTA, joined) == pytest.approx(brute, rel=1e-6)
    epsilons = [row.epsilon for row in totals]
    assert epsilons == sorted(epsilons, reverse=True)  # who joins later pays no more
    assert ledger.epsilon(DELTA) == epsilons[0]
    (late,) = stated.late_mentions
    assert late.epoch == EPOCHS
    events = [(one.profile.missed(n < EPOCHS, 1), 1) for n, one in enumerate(runs, 1)] * 2
    assert late.epsilon == pytest.approx(guarantee(events).epsilon(DELTA), rel=1e-6)
    # found earlier, it pays less
    events = [(one.profile.missed(n < 4, 1), 2) for n, one in enumerate(runs, 1)]
    assert guarantee(events).epsilon(DELTA) < late.epsilon


def test_a_run_on_another_corpus_in_the_same_folder_is_charged_to_all(tmp_path):
    """It may have had the text of anybody, who left with the corpus and joins again."""
    ledger, profile = CorpusLedger(tmp_path), UserLevelProfile(1.0, 0.1)
    ledger.reserve(planned("before", "other", profile, 5, texts="other"))
    ledger.reserve(plan_at(1, profile, 5))
    ledger.reserve(plan_at(2, profile, 5))
    one, two = (row.epsilon for row in ledger.total(DELTA).by_epoch)
    assert one == pytest.approx(guarantee([(profile, 15)]).epsilon(DELTA))
    assert two == pytest.approx(guarantee([(profile, 10)]).epsilon(DELTA))
    assert ledger.epsilon(DELTA, 2) == two


def test_a_corpus_that_never_grew_is_recorded_as_ever(tmp_path):
    profile = UserLevelProfile(1.0, 0.1)
    alone = planned("run", "digest", profile, 5, texts="t")
    assert not {"epochs", "earlier"} & {*alone.record(), *alone.reservation()}
    ledger = CorpusLedger(tmp_path)
    ledger.reserve(alone)
    assert "by_epoch" not in ledger.total(DELTA).record()
    assert CorpusTotal.from_record(ledger.total(DELTA).record()) == ledger.total(DELTA)
    assert alone.growth is None


def test_runs_without_a_guarantee_hurt_those_who_were_there(tmp_path):
    ledger, profile = CorpusLedger(tmp_path), UserLevelProfile(1.0, 0.1)
    ledger.reserve(plan_at(1, None, 5, without_noise="noiseless"))
    ledger.reserve(plan_at(2, profile, 5))
    one, two = (row.epsilon for row in ledger.total(DELTA).by_epoch)
    assert one is None
    assert two == pytest.approx(guarantee([(profile, 5)]).epsilon(DELTA))


# --- plans ---------------------------------------------------------------------------------------


def test_a_plan_with_epochs_and_earlier_runs_is_read_back():
    words = VocabularyRelease(2.0, 50.0, 64, 16)
    earlier = (past(1, vocabulary=words, sentences_per_user=4), past(2))
    plan = plan_at(3, RotationProfile(1.0, 0.1, 0.4), 5, earlier=earlier)
    assert PlannedRun.from_record(plan.record()) == plan
    assert [run.epoch for run in plan.growth.runs] == [1, 2, 3]
    assert growth_lines(plan.growth)[0].startswith("This counts all 3 runs")


@pytest.mark.parametrize(
    "change",
    [
        lambda r: r["epochs"].pop(),
        lambda r: r["epochs"].append(["a"]),
        lambda r: r["epochs"].insert(0, r["epochs"][0]),
        lambda r: r["earlier"][0].update(rounds=-1),
        lambda r: r["earlier"][0].update(rounds=True),
        lambda r: r["earlier"][0].update(run=3),
        lambda r: r["earlier"][0].update(sentences_per_user=0),
        lambda r: r["earlier"][0].pop("profile"),
    ],
)
def test_a_plan_that_no_run_wrote_is_refused(change):
    record = plan_at(2, RotationProfile(1.0, 0.1, 0.4), 5, earlier=(past(1),)).record()
    change(record)
    with pytest.raises((KeyError, TypeError, ValueError)):
        PlannedRun.from_record(record)


def test_the_worst_case_is_the_epsilon_of_all_runs():
    for profile in (
        UserLevelProfile(1.0, 0.1),
        FairSharesProfile(1.5, 0.1, 0.4),
        UedpAlgProfile(2.0, 0.1, 50, 5),
    ):
        runs = [past(1, profile), past(2, profile)]
        stated = growth_of(CHAIN[:2], runs, DELTA)
        both = guarantee([(profile, 6)]).epsilon(DELTA)
        assert stated.by_joining_epoch[0].epsilon == pytest.approx(both)
        if profile.missed(1, 1) is None:
            assert stated.late_mentions == ()
            assert "Nothing is claimed" in growth_lines(stated)[-1]


def test_who_left_pays_for_the_rounds_before():
    runs = [past(1), past(2), past(3)]
    rows = growth_of(CHAIN[:3], runs, DELTA).by_joining_epoch
    assert rows[0].epsilon_left is None
    for row in rows[1:]:
        alone = [(run.profile.user_alone(), 3) for run in runs[: row.epoch - 1]]
        assert row.epsilon_left == pytest.approx(guarantee(alone).epsilon(DELTA))


# --- worlds --------------------------------------------------------------------------------------

Q, SHARE, NOISE = 0.5, 0.8, 1.0
PROFILE = RotationProfile(NOISE, Q, SHARE)


@dataclass(frozen=True)
class Touched(World):
    """A round's world in which the sentences that differ are named one by one."""

    touched: frozenset[tuple[int, int]] = frozenset()

    def gradient(self, owner: int, index: int, emptied: bool) -> float:
        return (
            0.0 if emptied and (owner, index) in self.touched else self.sentences[owner][index][1]
        )


@dataclass(frozen=True)
class Growing:
    """Sentences as (epoch, entities then, entities since epoch 2, gradient), by their owners."""

    sentences: tuple[tuple[tuple[int, frozenset[int], frozenset[int], float], ...], ...]
    left: int | None  # who left when epoch 2 began

    def at(self, epoch: int, differs: Callable[[int, int], bool], flip: bool = False) -> Touched:
        """What a round of an epoch sees; `flip`: what arrived depends on what was released."""
        own, touched = [], set()
        for owner, every in enumerate(self.sentences):
            row: list[tuple[frozenset[int], float]] = []
            for index, (joined, then, since, value) in enumerate(every):
                if joined > epoch or (epoch == 2 and owner == self.left):
                    continue
                if differs(owner, index):
                    touched.add((owner, len(row)))
                sign = -1.0 if flip and joined == 2 else 1.0
                row.append((then if epoch == 1 else since, sign * value))
            own.append(tuple(row))
        return Touched(tuple(own), -1, None, frozenset(), frozenset(touched))


def growing_worlds(rng: np.random.Generator, count: int) -> list[Growing]:
    worlds = []
    for _ in range(count):
        users = []
        for _user in range(int(rng.integers(2, 4))):
            rows = []
            for _sentence in range(int(rng.integers(1, 4))):
                joined = int(rng.integers(1, 3))
                then = frozenset(e for e in range(2) if rng.random() < 0.4)
                late = frozenset(e for e in range(2) if rng.random() < 0.3)
                since = then | late if joined == 1 else then
                value = float(rng.choice([-1, 1])) * float(rng.choice([SHARE, 1.0, SHARE / 2]))
                rows.append((joined, then if joined == 1 else frozenset(), since, value))
            users.append(tuple(rows))
        left = 0 if rng.random() < 0.3 else None
        worlds.append(Growing(tuple(users), left))
    return worlds


def masses(law: Law, grid: np.ndarray) -> np.ndarray:
    return law.mass(grid[:-1], grid[1:], NOISE)


def both_rounds(
    world: Growing, differs: Callable[[int, int], bool], epsilon: float
) -> tuple[float, float]:
    """The divergences of a round in each epoch together, from below, in both directions.

    Text that joins in epoch 2 depends on the release of epoch 1: its sign, on that of the sum.
    """
    grid = np.linspace(-12, 12, 241)
    first = [masses(one, grid) for one in rotation_laws(world.at(1, differs), Q, 1.0, SHARE)]
    found = [0.0, 0.0]
    for flip in (False, True):
        half = slice(120, None) if flip else slice(0, 120)
        laws = rotation_laws(world.at(2, differs, flip), Q, 1.0, SHARE)
        second = [masses(one, grid) for one in laws]
        full, emptied = (np.outer(first[side][half], second[side]) for side in (0, 1))
        for way, (upper, lower) in enumerate(((full, emptied), (emptied, full))):
            found[way] += float(np.maximum(upper - math.exp(epsilon) * lower, 0).sum())
    return found[0], found[1]


def cases(world: Growing):
    """For each user and entity: what differs, the epoch joined, and sentences found late."""
    for user in range(len(world.sentences)):
        for entity in (None, 0, 1):
            places = [(o, i) for o, rows in enumerate(world.sentences) for i in range(len(rows))]
            at = {place: world.sentences[place[0]][place[1]] for place in places}
            mine = {place for place in places if place[0] == user}
            named = {p for p, (j, then, since, _) in at.items() if entity in (then, since)[j - 1]}
            late = {p for p, (_, _, since, _) in at.items() if entity in since} - named - mine
            joined = min((at[place][0] for place in mine | named), default=2)
            yield user, mine | named, joined, late


@pytest.mark.parametrize("seed", range(4))
def test_growing_worlds_stay_within_the_bound(seed):
    """Claims 1 and 3 of Theorem 8, with text that answers to what was released."""
    rng = np.random.default_rng(seed)
    losses = (0.0, 0.3, 1.0, 2.0)
    whole = guarantee([(PROFILE, 2)])
    since = guarantee([(PROFILE, 1)])
    tried = 0
    for world in growing_worlds(rng, 6):
        for _, differs, joined, late in cases(world):
            bound = whole if joined == 1 else since
            for epsilon in losses:
                worst = max(both_rounds(world, lambda o, i, d=differs: (o, i) in d, epsilon))
                assert worst <= bound.delta(epsilon) + 1e-9
            owners = [owner for owner, _ in late]
            if not owners:
                continue
            each = max(map(owners.count, owners))
            events = [(PROFILE.missed(len({*owners}), each), 1), (PROFILE.missed(0, each), 1)]
            late_bound = guarantee(events)
            for epsilon in losses:
                worst = max(both_rounds(world, lambda o, i, d=differs | late: (o, i) in d, epsilon))
                assert worst <= late_bound.delta(epsilon) + 1e-9
                tried += 1
    assert tried


_NAMED = (1, frozenset(), frozenset({0}), 1.0)
LATE = Growing(((_NAMED,),) * 4 + ((_NAMED, (2, *_NAMED[1:])),), None)


@pytest.mark.parametrize(
    "wrong",
    [
        [(PROFILE, 1)],  # the rounds since it was found only
        [(PROFILE, 2)],  # the rounds before as if it had been known
    ],
)
def test_charging_a_late_entity_too_little_is_caught(wrong):
    """Sabotage: five users named it in epoch 1, where nobody knew of it."""
    everything = max(both_rounds(LATE, lambda owner, index: True, 1.5))
    assert everything > 1.02 * guarantee(wrong).delta(1.5)
    right = guarantee([(PROFILE.missed(5, 1), 1), (PROFILE.missed(0, 1), 1)])
    assert everything <= right.delta(1.5)


def test_forgetting_that_somebody_was_there_before_is_caught():
    """Sabotage: an accountant that charges one who joined first for the second epoch only."""
    none = frozenset()
    world = Growing((((1, none, none, 1.0),), ((2, none, frozenset({1}), 1.0),)), None)
    worst = max(both_rounds(world, lambda owner, index: owner == 0, 0.3))
    assert worst > guarantee([(UserLevelProfile(NOISE, Q), 1)]).delta(0.3)
    assert worst <= guarantee([(UserLevelProfile(NOISE, Q), 2)]).delta(0.3)


# --- coins ---------------------------------------------------------------------------------------


def test_a_sentence_left_as_it_is_reveals_the_coin_of_its_entity():
    """A round that flips a coin for an entity hides the emptied sentence behind it only if no other
    sentence shows how it fell: detections that differ, and epochs, leave some as they are."""
    profile = RotationProfile(1.0, 1.0, 2.0, entity_rate=0.5, extended_rate=0.5)
    # a user, who adds 1, and an entity that turns the update of another around; which of the two
    # it is shows in a sentence of the entity that is left as it is
    emptied, full = law([(0.0, 0.5), (-1.0, 0.5)]), law([(1.0, 0.5), (2.0, 0.5)])
    grid = np.linspace(-12, 12, 4001)
    upper, lower = (masses(one, grid) for one in (emptied, full))
    worst = float(np.maximum(upper - math.exp(0.5) * lower, 0).sum())
    assert worst > 1.02 * guarantee([(profile, 1)]).delta(0.5)
    assert worst <= guarantee([(profile.in_some_sentences(), 1)]).delta(0.5)
    always = replace(profile, entity_rate=1.0)
    assert always.in_some_sentences() is always


def test_the_total_over_detections_reveals_coins(tmp_path):
    profile = RotationProfile(1.0, 0.2, 0.5, entity_rate=0.3, extended_rate=0.3)
    one, two = CorpusLedger(tmp_path / "one"), CorpusLedger(tmp_path / "two")
    for ledger, digests in ((one, "aa"), (two, "ab")):
        ledger.folder.mkdir()
        for number, digest in enumerate(digests):
            ledger.reserve(planned(f"run-{number}", digest, profile, 5))
    assert one.epsilon(DELTA) == pytest.approx(guarantee([(profile, 10)]).epsilon(DELTA))
    some = guarantee([(profile.in_some_sentences(), 10)]).epsilon(DELTA)
    assert two.epsilon(DELTA) == pytest.approx(some)
    assert some > one.epsilon(DELTA)


def test_a_plan_whose_last_epoch_is_not_its_own_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="not the one that the run sees"):
        replace(plan_at(2, UserLevelProfile(1.0, 0.1), 5), epochs=CHAIN[:1])
    with pytest.raises(UserError, match="has no run"):
        CorpusLedger(tmp_path).entry("run")
