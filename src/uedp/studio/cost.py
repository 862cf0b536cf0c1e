"""What settings would use of a corpus, and how long they would take: only what is known."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from uedp.accounting.planning import FEW_USERS, Supply, run_signal
from uedp.accounting.proven import FairSharesProfile
from uedp.errors import UserError
from uedp.incidence import Incidence
from uedp.mechanism.fair import Sharing, fair_supply
from uedp.mechanism.sampling import supply_of
from uedp.progress import duration
from uedp.report.charts import cut
from uedp.report.run_record import RunRecord
from uedp.studio.epsilons import Knobs

_FEWEST_ROUNDS = 5  # of a run, to tell how long its rounds take


class CorpusSupply:
    """What each method can use of a corpus in a round."""

    def __init__(self, incidence: Incidence) -> None:
        self.incidence = incidence
        self._fair = lru_cache(64)(lambda share: fair_supply(incidence, Sharing(share)))
        self._lent = lru_cache(1)(lambda: supply_of(incidence))

    def of(self, knobs: Knobs) -> Supply:
        if not knobs.protects_entities:
            counts = np.bincount(self.incidence.sentence_user, minlength=self.incidence.users)
            every = self.incidence.sentences
            return Supply(self.incidence.users, counts.astype(np.float64), sentences=every)
        if knobs.method == FairSharesProfile.method:
            return self._fair(knobs.entity_share)
        return self._lent()

    def sentences(self, knobs: Knobs) -> float:
        """That a round is expected to use."""
        return knobs.user_rate * float(self.of(knobs).sentences_per_user.sum())

    def signal(self, knobs: Knobs, noise: float) -> float:
        """The planner's figure for the run; it only compares runs on one corpus."""
        share = knobs.entity_share if knobs.protects_entities else 1.0
        return run_signal(knobs.rounds, knobs.user_rate, self.of(knobs).signal(share), noise)


@dataclass(frozen=True)
class MeasuredPace:
    """The time of rounds: so many seconds each, and so many for each sentence; and who says so."""

    source: str
    per_round: float
    per_sentence: float

    @classmethod
    def given(cls, text: str) -> "MeasuredPace":
        """Of seconds that somebody knows, from a benchmark or a dry run."""
        try:
            seconds = float(text)
        except ValueError:
            seconds = math.nan
        if not 0 < seconds < math.inf:
            raise UserError(f"seconds a round {text[:40]!r}: must be a number above 0")
        return cls("as you gave them", seconds, 0.0)

    @classmethod
    def of(cls, record: RunRecord) -> "MeasuredPace | None":
        """A line through the rounds of a run; None if it has too few."""
        seconds, sentences = (record.metrics.get(name) for name in ("seconds", "sentences"))
        if seconds is None or sentences is None:
            return None
        known = np.isfinite(seconds) & np.isfinite(sentences) & (seconds > 0) & (sentences > 0)
        x, y = sentences[known], seconds[known]
        if len(x) < _FEWEST_ROUNDS:
            return None
        # a round that saved or evaluated took longer than rounds do: lines through the rest
        usual = y <= 3 * np.median(y)
        x, y = x[usual], y[usual]
        spread = float(((x - x.mean()) ** 2).sum())
        slope = float(((x - x.mean()) * (y - y.mean())).sum()) / spread if spread else 0.0
        start = float(y.mean() - slope * x.mean())
        if slope <= 0 or start < 0:  # the noise of the clock: in proportion, then
            slope, start = float(y.mean() / x.mean()), 0.0
        source = f"as in run {cut(record.name)} ({len(seconds):,} rounds measured)"
        return cls(source, start, slope)

    def seconds(self, sentences: float) -> float:
        return self.per_round + self.per_sentence * sentences


@dataclass(frozen=True)
class Fact:
    """One line of the estimate: what it is of, what is known, and how."""

    name: str
    value: str
    note: str = ""


def facts(knobs: Knobs, supply: CorpusSupply | None, pace: MeasuredPace | None) -> Sequence[Fact]:
    """What is known of a run with these settings, and what is not, in words."""
    users = knobs.users * knobs.user_rate
    few = f"fewer than {FEW_USERS}: the noise is shared by too few" if users < FEW_USERS else ""
    found = [Fact("Users in a round", f"about {users:,.0f}", few)]
    sentences = None
    if supply is None:
        found.append(Fact("Sentences in a round", _UNKNOWN, "there is no corpus"))
    elif knobs.users != (known := supply.incidence.users):
        note = f"the corpus has {known:,} users; set the same number to see them"
        found.append(Fact("Sentences in a round", _UNKNOWN, note))
    else:
        sentences = supply.sentences(knobs)
        every = supply.incidence.sentences
        usable = float(supply.of(knobs).sentences_per_user.sum()) / every
        note = f"of {every:,} in the corpus, {usable:.0%} can be used at a time"
        found.append(Fact("Sentences in a round", f"about {sentences:,.0f}", note))
    return [*found, _time(knobs, sentences, pace)]


def _time(knobs: Knobs, sentences: float | None, pace: MeasuredPace | None) -> Fact:
    if pace is None:
        note = "give the seconds of a round, or open the studio with a run that has some"
        return Fact("Time of all rounds", _UNKNOWN, note)
    if pace.per_sentence and sentences is None:
        return Fact("Time of all rounds", _UNKNOWN, "the sentences in a round are not known")
    each = pace.seconds(sentences or 0.0)
    note = f"{duration(each)} a round, {pace.source}"
    return Fact("Time of all rounds", f"about {duration(knobs.rounds * each)}", note)


_UNKNOWN = "not known"
