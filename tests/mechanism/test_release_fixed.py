"""Rounds in passes of one shape are the rounds of the engine."""

import numpy as np
import pytest
import torch

from tests.mechanism.fixed.small import (
    LONGEST,
    POISON,
    TOKENS,
    WORDS,
    adapted,
    padded_losses,
    poisoned,
)
from uedp.incidence import Rows
from uedp.mechanism.clip import Engine
from uedp.mechanism.fixed.fixed_pass import FixedPass
from uedp.mechanism.noise import SeededNoise
from uedp.mechanism.release import Clips, FixedPasses, release
from uedp.mechanism.sampling import Participants

# users of two passes, one without a sentence, one of too many tokens, one with too long a sentence
COUNTS = (3, 2, 0, 8, 1, 6, 2)
LENGTHS = [5, 9, 2, 17, 30, *[31] * 8, 40, 8, 8, 0, 12, 3, 25, 21, 20]


class World:
    def __init__(self, model=None) -> None:
        self.model = adapted() if model is None else model
        rng = np.random.default_rng(0)
        self.texts = [rng.integers(0, WORDS, length) for length in LENGTHS]
        self.engine = Engine(self.model)
        self.computed: list[int] = []  # by the engine

    def released(self, fixed: FixedPasses | None, multiplier: float = 0.0):
        offsets = np.concatenate([[0], np.cumsum(COUNTS)])
        who = Participants(
            np.arange(len(COUNTS)), Rows(offsets, np.arange(offsets[-1])), np.ones(offsets[-1])
        )
        self.computed, self.batches = [], []

        def of_engine(which):
            self.computed += which.tolist()
            return padded_losses(self.model, [self.texts[i] for i in which])

        sums, stats = release(
            self.engine,
            who,
            of_engine,
            np.maximum(LENGTHS, 2),
            Clips(0.05, 0.4),
            SeededNoise(1),
            multiplier,
            fixed=fixed,
            batch_done=lambda *done: self.batches.append(done),
        )
        return torch.cat([part.flatten() for part in sums]), stats

    def fixed(self, longest: int = LONGEST, for_all: bool = False) -> FixedPasses:
        def tokens(which):
            own = [self.texts[i] for i in which]
            return np.concatenate(own), np.array([len(text) for text in own])

        return FixedPasses(FixedPass(self.model, TOKENS, longest), tokens, for_all)


@pytest.mark.parametrize("multiplier", [0.0, 1.0])
def test_sums_noise_and_statistics_are_the_engines(multiplier):
    world = World()
    expected, stats = world.released(None, multiplier)
    assert sorted(world.computed) == list(range(len(LENGTHS)))
    found, found_stats = world.released(world.fixed(), multiplier)
    assert float((found - expected).norm()) <= 1e-3 * 0.05 * len(COUNTS)
    assert found_stats.users == stats.users
    assert found_stats.sentences == stats.sentences
    assert found_stats.sentences_clipped == stats.sentences_clipped
    assert found_stats.users_clipped == stats.users_clipped
    assert found_stats.mean_update == pytest.approx(stats.mean_update, rel=1e-4)
    # the user with too many tokens, and the one with too long a sentence
    assert sorted(world.computed) == list(range(5, 14))
    assert world.batches[0][0] == 0
    assert world.batches[-1][0] == world.batches[-1][1]


def test_a_sentence_that_is_not_finite_is_left_out_alone():
    world = World(poisoned())
    world.texts[1][3] = POISON
    expected, stats = world.released(None)
    found, found_stats = world.released(world.fixed())
    assert bool(torch.isfinite(found).all())
    assert found.any()
    assert float((found - expected).norm()) <= 1e-3 * 0.05 * len(COUNTS)
    assert found_stats.sentences_clipped == stats.sentences_clipped


def test_a_sentence_that_is_not_finite_moves_nobody_else():
    """Others are computed as without it, and not by the engine, which rounds otherwise."""
    world = World(poisoned())
    fixed = world.fixed()
    world.texts[1] = world.texts[1][:0]
    without, _ = world.released(fixed)
    computed = sorted(world.computed)
    world.texts[1] = np.array([3, POISON, 5, 7, 9, 2, 4, 1, 1])
    found, _ = world.released(fixed)
    assert float((found - without).norm()) <= 1e-7 * float(without.norm())  # added in another order
    assert sorted(world.computed) == computed


def test_passes_for_other_parameters_are_refused():
    world = World()
    other = World().fixed()
    with pytest.raises(ValueError, match="other parameters"):
        world.released(other)


def test_everybody_is_computed_in_passes_if_they_are_for_all():
    world = World()
    expected, stats = world.released(None)
    found, found_stats = world.released(world.fixed(longest=max(LENGTHS), for_all=True))
    assert not world.computed
    assert float((found - expected).norm()) <= 1e-3 * 0.05 * len(COUNTS)
    assert found_stats.users_clipped == stats.users_clipped
    assert found_stats.mean_update == pytest.approx(stats.mean_update, rel=1e-4)


def test_a_user_of_several_passes_adds_no_more_than_its_clip(monkeypatch):
    world = World()
    fixed = world.fixed(longest=max(LENGTHS), for_all=True)
    largest = slice(5, 13)  # the sentences of the user that does not fit
    monkeypatch.setattr(Clips, "of_sentences", lambda self, k: torch.full((len(k),), 1e3))
    whole, _ = world.released(fixed)
    world.texts[largest] = [np.zeros(0, dtype=np.int64)] * 8
    without, _ = world.released(fixed)
    assert 0.04 < float((whole - without).double().norm()) <= 0.05 * (1 + 1e-6)


def test_a_text_moves_nobody_else_in_passes_that_are_for_all():
    """Other users' parts are the same, up to the sum over sentences in float32."""
    world = World()
    fixed = world.fixed(longest=max(LENGTHS), for_all=True)
    world.texts[0] = world.texts[0][:1]  # no loss, no gradient: as if it were empty
    before, _ = world.released(fixed)
    world.texts[0] = np.full(1, WORDS - 1)
    after, _ = world.released(fixed)
    assert float((after - before).norm()) <= 1e-7


def test_a_user_that_is_not_finite_adds_nothing_and_stops_nobody():
    world = World(poisoned())
    fixed = world.fixed(longest=max(LENGTHS), for_all=True)
    world.texts[7] = np.full(31, POISON)
    spoilt, _ = world.released(fixed)
    world.texts[7] = np.zeros(0, dtype=np.int64)
    without, _ = world.released(fixed)
    assert torch.isfinite(spoilt).all()
    assert float((spoilt - without).norm()) <= 1e-6
