"""Settings that a config leaves out, chosen from counts of the corpus, the target and the time.

The planner maximises the signal-to-noise ratio of the whole run (`accounting.planning`), which
predicts the order of measured perplexities on CoNLL-2003 (docs/results.md), times a factor for runs
of few steps. The last percents of it would multiply the time, so it stops short of them.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from uedp.accounting import decisions
from uedp.accounting.planning import FEW_USERS, Supply, rough_noise
from uedp.incidence import Incidence
from uedp.mechanism.sampling import supply_of
from uedp.methods import method_named
from uedp.methods.base import PLANNED
from uedp.models.load import LoadedModel
from uedp.progress import SILENT, Progress
from uedp.training.build import Prepared, prepare
from uedp.training.config import Config, parse_config
from uedp.training.datasets import TrainingData
from uedp.training.estimate import Pace, measure_pace
from uedp.training.vocabulary import make_run_tokenizer

ROUNDS = (50, 100, 200)
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0)
RATES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)
_ENOUGH = 0.93  # of the best signal-to-noise ratio, for rate and rounds
_SHARE_ENOUGH = 0.98  # the same for the entity share
_FIRST_STEPS = 10  # rounds that a run loses on the way: 0.4 x 100 learns as 0.2 x 200 (CoNLL-2003)
_MORE_SIGNAL = 1.05  # that shorter users must give
_LEAST_CAP = 4
_DELTA = 1e-5


@dataclass(frozen=True)
class Choice:
    """A config with all numbers; the fields that the planner chose; and the reasons, in words."""

    config: Config
    fields: tuple[str, ...] = ()
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Option:
    rate: float
    rounds: int
    share: float
    cap: int | None
    score: float
    cost: float


def open_fields(config: Config) -> tuple[str, ...]:
    """The fields that the planner chooses for this config."""
    privacy = config.privacy
    method = method_named(privacy.method)
    if privacy.epsilon is None or not method.noises_gradients or method.profile_type is None:
        return ()
    given = set(privacy.model_fields_set)
    if not method.profile_type.protects_entities:
        given.add("entity_share")
    if {"user_rate", "rounds"} <= given:
        given.add("sentences_per_user")  # whoever sets both sets what a round takes
    return tuple(field for field in PLANNED if field not in given)


def settle(
    config: Config,
    data: TrainingData,
    attached: LoadedModel | None = None,
    progress: Progress = SILENT,
) -> tuple["Choice", Prepared | None]:
    """Choose what a config leaves out, measuring the speed of its model if that decides.

    The speed of an attached model does not count: its loop is not ours. What was prepared to
    measure it is returned, if a run can use it.
    """
    fields = open_fields(config)
    if attached is not None or not {"user_rate", "rounds"} & set(fields):
        return choose(config, data.incidence, progress=progress), None
    ready = prepare_to_measure(config, data, progress)
    choice = choose(config, data.incidence, measure_pace(ready, progress), progress)
    return choice, ready if config.vocabulary.source == "tokenizer" else None


def prepare_to_measure(config: Config, data: TrainingData, progress: Progress = SILENT) -> Prepared:
    """The model and its tasks; with words of the corpus in place of a private vocabulary.

    Those words are used to measure time and memory here, and are forgotten.
    """
    vocabulary = config.vocabulary
    if vocabulary.source == "tokenizer":
        return prepare(config, data, progress=progress)
    if vocabulary.source == "private":
        vocabulary = vocabulary.model_copy(update={"source": "corpus"})
    with TemporaryDirectory() as folder:
        words = make_run_tokenizer(vocabulary, Path(folder), data.train.texts, data.incidence)
        return prepare(config, data, tokenizer=str(words), progress=progress)


def choose(
    config: Config,
    incidence: Incidence,
    pace: Pace | None = None,
    progress: Progress = SILENT,
) -> Choice:
    """Choose the fields that a config leaves out; without a pace, time does not count.

    Guarantees:
      - a field that was set keeps its value
      - reads counts of the incidence and the pace, no text
      - the config says which fields were chosen by counts of the corpus (`privacy.chosen_by`)
    """
    fields = open_fields(config)
    if not fields or incidence.users < 1 or not incidence.sentences:
        return Choice(config)
    with progress.stage("choosing settings", None, "plans") as meter:
        planner = _Planner(config, incidence, fields, pace)
        for considered in planner.search():
            option = considered
            meter.advance(1)
    chosen = {
        "delta": planner.delta,
        "user_rate": option.rate,
        "rounds": option.rounds,
        "entity_share": option.share,
        "sentences_per_user": option.cap,
    }
    # the usual delta says nothing of the corpus
    fields = tuple(field for field in fields if field != "delta" or planner.delta != _DELTA)
    if not fields:
        return Choice(config)
    update = {field: chosen[field] for field in fields}
    privacy = config.privacy.model_copy(update=update | {"chosen_by": _chosen_by(config, fields)})
    done = config.model_copy(update={"privacy": privacy})
    return Choice(done, fields, tuple(_words(done, fields, planner, option)))


def choose_for_corpus(
    corpus: Path, epsilon: float, given: Mapping[str, Any], progress: Progress = SILENT
) -> Choice:
    """What the planner chooses for a corpus and a target beside given fields, whatever the time."""
    from uedp.corpus.store import Corpus

    privacy = {"epsilon": epsilon} | {k: v for k, v in given.items() if v is not None}
    config = parse_config({"privacy": privacy, "data": {"train": corpus}, "model": {"name": "-"}})
    return choose(config, Corpus(corpus).incidence, progress=progress)


class _Planner:
    def __init__(
        self, config: Config, incidence: Incidence, fields: Sequence[str], pace: Pace | None
    ) -> None:
        self._privacy, self._run = config.privacy, config.run
        self._fields, self._pace = fields, pace
        profile = method_named(config.privacy.method).profile_type
        self._entities = profile is not None and profile.protects_entities
        if self._entities:
            self._supply = supply_of(incidence)
        else:
            counts = np.bincount(incidence.sentence_user, minlength=incidence.users)
            self._supply = Supply(incidence.users, counts.astype(np.float64), None)
        self.users = incidence.users
        self.delta = _delta(incidence.users) if "delta" in fields else config.privacy.delta
        target = config.privacy.epsilon
        assert target is not None  # or nothing is chosen
        if config.vocabulary.source == "private":
            target *= 1 - config.vocabulary.share
        self._target = target
        self.limited = False  # whether time decided
        self.too_long = False  # whether even the shortest plan takes longer

    # --- the parts of a plan ---------------------------------------------------------------------

    def sentences(self, cap: int | None) -> float:
        """Sentences of all users that a round could use."""
        usable = self._supply.sentences_per_user
        return float((usable if cap is None else np.minimum(usable, cap)).sum())

    def seconds(self, rate: float, rounds: int, cap: int | None) -> float:
        assert self._pace is not None
        each = self._pace.round_seconds(rate * self.sentences(cap))
        return rounds * each + self._pace.evaluation_seconds(rounds, self._run.evaluate_every)

    def _score(self, rate: float, rounds: int, share: float) -> float:
        extended = self._privacy.extended_rate if self._entities else 1.0
        # without a clip of its own, one sentence can fill the update
        norms = self._supply.norms(share if self._entities else 1.0, extended)
        noise = rough_noise_cached(
            self._target, self.delta, rounds, rate, share if self._entities else 0.0
        )
        return math.sqrt(rounds) * rate * norms / noise * rounds / (rounds + _FIRST_STEPS)

    def _option(self, rate: float, rounds: int, share: float, cap: int | None) -> _Option:
        return _Option(rate, rounds, share, cap, self._score(rate, rounds, share), rate * rounds)

    def _caps(self, share: float) -> tuple[int | None, int | None]:
        """The limit of sentences per user, and the one if time is short."""
        if "sentences_per_user" not in self._fields:
            return self._privacy.sentences_per_user, self._privacy.sentences_per_user
        # gradients of different sentences are nearly orthogonal: so many of norm `share` add to 1
        filling = max(_LEAST_CAP, math.ceil(1 / share**2)) if self._entities else 4 * _LEAST_CAP
        usual = math.ceil(np.quantile(self._supply.sentences_per_user, 0.95))
        return max(filling, usual), filling

    def _rates(self) -> list[float]:
        if "user_rate" not in self._fields:
            return [self._privacy.user_rate]
        least = min(1.0, _rounded_up(FEW_USERS / self.users))
        return [least, *(rate for rate in RATES if rate > least)]

    def _share(self, rate: float, rounds: int) -> float:
        if "entity_share" not in self._fields:
            return self._privacy.entity_share
        scores = {share: self._score(rate, rounds, share) for share in SHARES}
        best = max(scores.values())
        return next(share for share in SHARES if scores[share] >= _SHARE_ENOUGH * best)

    # --- the search ------------------------------------------------------------------------------

    def search(self) -> Iterator[_Option]:
        """Plans that are considered; the last one is chosen."""
        rates = self._rates()
        rounds = ROUNDS if "rounds" in self._fields else (self._privacy.rounds,)
        start = min(rates, key=lambda rate: abs(math.log(rate / 0.1)))
        share = self._share(start, rounds[-1])
        usual, short = self._caps(share)
        yield (best := self._best(rates, rounds, share, usual))
        if short != usual and self.limited:
            too_long = self.too_long
            yield (other := self._best(rates, rounds, share, short))
            if too_long or other.score > _MORE_SIGNAL * best.score:
                best = other
        share = self._share(best.rate, best.rounds)
        yield self._option(best.rate, best.rounds, share, best.cap)

    def _best(
        self, rates: Sequence[float], rounds: Sequence[int], share: float, cap: int | None
    ) -> _Option:
        """The cheapest plan that has nearly the best score within the time."""
        within = {count: self._within_time(rates, count, cap) for count in rounds}
        within = {count: own for count, own in within.items() if own}
        if not within:
            self.limited = self.too_long = True
            return self._option(rates[0], rounds[0], share, cap)
        self.too_long = False
        most = max(self._score(own[-1], count, share) for count, own in within.items())
        self.limited = most < _ENOUGH * self._score(rates[-1], rounds[-1], share)
        enough = _ENOUGH * most
        found = []
        for count, own in within.items():
            low, high = 0, len(own) - 1
            if self._score(own[high], count, share) < enough:
                continue
            while low < high:  # the score grows with the rate
                middle = (low + high) // 2
                if self._score(own[middle], count, share) >= enough:
                    high = middle
                else:
                    low = middle + 1
            found.append(self._option(own[high], count, share, cap))
        return min(found, key=lambda option: option.cost)

    def _within_time(self, rates: Sequence[float], rounds: int, cap: int | None) -> list[float]:
        """The rates at which so many rounds end in time, the largest of them included."""
        if self._pace is None:
            return list(rates)
        kept = [rate for rate in rates if self.seconds(rate, rounds, cap) <= self._run.time]
        if kept and len(kept) < len(rates):
            per_rate = self.seconds(1.0, rounds, cap) - (base := self.seconds(0.0, rounds, cap))
            largest = _rounded_down((self._run.time - base) / per_rate)
            if largest > kept[-1]:
                kept.append(largest)
        return kept


@lru_cache(256)
def rough_noise_cached(
    target: float, delta: float, rounds: int, rate: float, share: float
) -> float:
    return rough_noise(target, delta, rounds, rate, share)


def _delta(users: int) -> float:
    """1e-5, or the power of ten below a tenth of one over the users."""
    return min(_DELTA, 10.0 ** math.floor(math.log10(0.1 / users) + 1e-9))


def _rounded_up(value: float, digits: int = 2) -> float:
    scale = 10.0 ** (digits - 1 - math.floor(math.log10(value)))
    return math.ceil(value * scale - 1e-9) / scale


def _rounded_down(value: float, digits: int = 2) -> float:
    scale = 10.0 ** (digits - 1 - math.floor(math.log10(value)))
    return math.floor(value * scale + 1e-9) / scale


# --- what is said and recorded -------------------------------------------------------------------

_BY_HAND = (
    *("delta", "rounds", "user_rate", "update_clip", "entity_share", "entity_rate"),
    *("extended_rate", "sentences_per_entity", "sentences_per_user"),
)


def _chosen_by(config: Config, fields: Sequence[str]) -> str:
    """Who chose what, for the ledger and the certificate."""
    planner = f"{decisions.BY_PLANNER}: {', '.join(fields)}"
    if config.privacy.chosen_by:
        return f"{planner}{decisions.OTHERS_BY}{config.privacy.chosen_by}"
    plain = _defaults(config)
    by_hand = [
        field
        for field in _BY_HAND
        if field not in fields and getattr(config.privacy, field) != getattr(plain.privacy, field)
    ]
    if by_hand or config.optimiser != plain.optimiser:
        return f"{planner}{decisions.OTHERS_BY}{decisions.NOT_STATED}"
    return f"{planner}{decisions.OTHERS_BY}the authors of uedp, on public data"


def _defaults(config: Config) -> Config:
    """The config without the fields that a person tunes."""
    values = config.model_dump(mode="json", include={"data", "model", "task"})
    kept = {"method": config.privacy.method, "epsilon": config.privacy.epsilon}
    return parse_config({"privacy": kept, **values})


def _words(
    config: Config, fields: Sequence[str], planner: _Planner, option: _Option
) -> Iterator[str]:
    privacy = config.privacy
    drawn = privacy.user_rate * planner.users
    sentences = privacy.user_rate * planner.sentences(privacy.sentences_per_user)
    parts = {
        "rounds": f"{privacy.rounds} rounds",
        "user_rate": f"each draws about {drawn:,.0f} of {planner.users:,} users with about "
        f"{sentences:,.0f} sentences (user_rate {privacy.user_rate:g})",
        "sentences_per_user": f"at most {privacy.sentences_per_user} sentences of a user in a "
        "round",
        "entity_share": f"one entity moves at most {privacy.entity_share:g} of a user's update",
        "delta": f"delta {privacy.delta:g}",
    }
    stated = [words for field, words in parts.items() if field in fields]
    yield f"Chosen from counts of this corpus: {'; '.join(stated)}."
    if "user_rate" not in fields and "rounds" not in fields:
        return
    if planner.too_long:
        yield (
            f"Even this takes longer than run.time, {duration(config.run.time)}; raise it, or "
            "choose a smaller model."
        )
    elif planner.limited:
        yield (
            f"This is what fits into run.time, {duration(config.run.time)}; more time would give "
            "more signal."
        )
    else:
        yield f"This has {_ENOUGH:.0%} of the signal that any number of users a round would give."


def duration(seconds: float) -> str:
    """A time for people: 40 s, 25 min, 3.5 h."""
    if seconds < 120:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} days"
