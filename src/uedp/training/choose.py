"""Settings that a config leaves out, chosen from counts of the corpus, the target and the time.

The planner maximises a predicted signal-to-noise ratio of the whole run (`Supply.signal`), times a
factor for runs of few steps. It gives about the best settings that were found on CoNLL-2003, and
for short runs those of benchmarks/results/demo_sweep.json. The last percents of the ratio would
multiply the time, so it stops short of them.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from uedp.accounting import decisions
from uedp.accounting.planning import FEW_USERS, RoughNoise, Supply
from uedp.incidence import Incidence
from uedp.mechanism.sampling import supply_of
from uedp.methods import method_named
from uedp.methods.base import PLANNED
from uedp.models.load import LoadedModel
from uedp.progress import SILENT, Progress
from uedp.training.build import Prepared, prepare
from uedp.training.config import ADAPTER_DEFAULTS, Config, default_config, parse_config
from uedp.training.datasets import TrainingData
from uedp.training.estimate import Pace, measure_pace
from uedp.training.vocabulary import make_run_tokenizer

ROUNDS = (15, 25, 50, 100, 200)
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0)
_STEPS = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
RATES = (*(float(f"{step}e{power}") for power in range(-4, 0) for step in _STEPS), 1.0)
CAPS = (1, 2, 4, 8, 16, 32, 64, 128, 256)  # sentences of a user in a round
_ENOUGH = 0.93  # of the best signal-to-noise ratio
_SHARE_ENOUGH = 0.98  # the same for the entity share
_FIRST_STEPS = 25  # rounds that a run loses on the way: more rounds beat more users in short runs
# of adapters (benchmarks/results/demo_sweep.json): a smaller norm weights sentences more equally
_SENTENCE_CLIP = 0.3
_USUAL_ROUNDS = 200
EVALUATED = 1000  # sentences: their mean loss is within a few percent of that of all
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


def limit_evaluation(config: Config) -> Config:
    """The config with a limit on what is evaluated, if the run is planned and has none.

    On a processor, evaluating a whole held-out corpus would take longer than training.
    """
    open_ = "rounds" in open_fields(config) and "evaluate_sentences" not in (
        config.data.model_fields_set
    )
    if config.data.evaluate is None or not open_:
        return config
    data = config.data.model_copy(update={"evaluate_sentences": EVALUATED})
    return config.model_copy(update={"data": data})


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
    optimiser = config.optimiser
    if _adapts(config):
        if "entity_share" in fields and "update_clip" not in config.privacy.model_fields_set:
            update["update_clip"] = float(f"{_SENTENCE_CLIP / option.share:.2g}")
            fields = (*fields, "update_clip")
        if "rounds" in fields and optimiser == default_config(config).optimiser:
            optimiser = optimiser.model_copy(update=_steps(optimiser.rate, option.rounds))
    privacy = config.privacy.model_copy(update=update | {"chosen_by": _chosen_by(config, fields)})
    done = config.model_copy(update={"privacy": privacy, "optimiser": optimiser})
    return Choice(done, fields, tuple(_words(done, fields, planner, option)))


def _adapts(config: Config) -> bool:
    """Whether the defaults of adapters under noise apply, which were tuned for 200 rounds."""
    return bool(default_config(config).optimiser.rate == ADAPTER_DEFAULTS["optimiser"]["rate"])


def _steps(rate: float, rounds: int) -> dict[str, float]:
    """Longer steps, averaged over fewer rounds, for a run of fewer rounds than the usual 200."""
    longer = float(f"{rate * math.sqrt(_USUAL_ROUNDS / rounds):.2g}")
    return {"rate": longer, "average": max(0.0, 1 - 0.05 * _USUAL_ROUNDS / rounds)}


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
        self._noise = lru_cache(None)(_rough_noise(target, self.delta))
        extended = config.privacy.extended_rate if self._entities else 1.0
        self._signal = lru_cache(None)(lambda share, cap: self._supply.signal(share, extended, cap))
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

    def _score(self, rate: float, rounds: int, share: float, cap: int | None) -> float:
        if not self._entities:
            # without a clip of its own, one sentence can fill the update
            signal, noise = self._signal(1.0, cap), self._noise(rounds, rate, 0.0)
        else:
            signal, noise = self._signal(share, cap), self._noise(rounds, rate, share)
        return math.sqrt(rounds) * rate * signal / noise * rounds / (rounds + _FIRST_STEPS)

    def _option(self, rate: float, rounds: int, share: float, cap: int | None) -> _Option:
        score, cost = self._score(rate, rounds, share, cap), rate * rounds * self.sentences(cap)
        return _Option(rate, rounds, share, cap, score, cost)

    def _grid(self, field: str, values: Sequence[Any]) -> Sequence[Any]:
        """The values to try for a field; only one if it was set."""
        return values if field in self._fields else (getattr(self._privacy, field),)

    def _caps(self) -> Sequence[int]:
        largest = max(1, math.ceil(np.quantile(self._supply.sentences_per_user, 0.95)))
        return [cap for cap in CAPS if cap < largest] + [largest]

    def _rates(self) -> Sequence[float]:
        least = min(1.0, _rounded_up(FEW_USERS / self.users))
        return [least, *(rate for rate in RATES if rate > least)]

    @staticmethod
    def _with_least_share(options: Sequence[_Option]) -> _Option:
        """A smaller share also limits what a missed mention costs."""
        enough = _SHARE_ENOUGH * max(option.score for option in options)
        return next(option for option in options if option.score >= enough)

    # --- the search ------------------------------------------------------------------------------

    def search(self) -> Iterator[_Option]:
        """Plans that are considered; the last one is chosen."""
        shares = self._grid("entity_share", SHARES) if self._entities else (1.0,)
        within: list[_Option] = []
        shortest: tuple[float, _Option] | None = None
        most = 0.0  # the best score, whatever the time
        for rounds, cap in product(
            self._grid("rounds", ROUNDS), self._grid("sentences_per_user", self._caps())
        ):
            for rate in self._grid("user_rate", self._rates()):
                best = self._with_least_share(
                    [self._option(rate, rounds, share, cap) for share in shares]
                )
                most = max(most, best.score)
                seconds = self.seconds(rate, rounds, cap) if self._pace else 0.0
                if shortest is None or seconds < shortest[0]:
                    shortest = seconds, best
                if seconds <= self._run.time:
                    within.append(best)
            yield best
        assert shortest is not None
        if not within:
            self.limited = self.too_long = True
            yield shortest[1]
            return
        reached = max(option.score for option in within)
        self.limited = reached < _ENOUGH * most
        # the last percents would multiply the time; short of time, all of it is used
        enough = reached * (1 if self.limited else _ENOUGH)
        yield min(
            (option for option in within if option.score >= enough), key=lambda option: option.cost
        )


_rough_noise = lru_cache(16)(RoughNoise)


def _delta(users: int) -> float:
    """1e-5, or the power of ten below a tenth of one over the users."""
    return min(_DELTA, 10.0 ** math.floor(math.log10(0.1 / users) + 1e-9))


def _rounded_up(value: float, digits: int = 2) -> float:
    scale = 10.0 ** (digits - 1 - math.floor(math.log10(value)))
    return math.ceil(value * scale - 1e-9) / scale


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
    plain = default_config(config)
    by_hand = [
        field
        for field in _BY_HAND
        if field not in fields and getattr(config.privacy, field) != getattr(plain.privacy, field)
    ]
    if by_hand or config.optimiser != plain.optimiser:
        return f"{planner}{decisions.OTHERS_BY}{decisions.NOT_STATED}"
    return f"{planner}{decisions.OTHERS_BY}the authors of uedp, on public data"


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
        "sentences_per_user": f"at most {privacy.sentences_per_user} "
        f"{'sentence' if privacy.sentences_per_user == 1 else 'sentences'} of a user in a round",
        "entity_share": "one entity moves at most "
        f"{'all' if privacy.entity_share == 1 else f'{privacy.entity_share:g}'} of a user's update",
        "update_clip": f"update_clip {privacy.update_clip:g}",
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
