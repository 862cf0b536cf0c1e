"""Settings that a config leaves out, chosen from counts of the corpus, the target and the time.

The planner maximises a predicted signal-to-noise ratio of the whole run (`run_signal`). It puts the
trials in results/ in about the order measured (benchmarks/results/planner_order.json), and gives
for short runs the settings of benchmarks/results/demo_sweep.json. The last percents of the
ratio would multiply the time, so it stops short of them.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from uedp.accounting import decisions
from uedp.accounting.calibrate import noise_for
from uedp.accounting.limits import DEFAULT_DELTA, default_delta
from uedp.accounting.planning import FEW_USERS, RoughNoise, Supply, run_signal
from uedp.incidence import Incidence
from uedp.mechanism.fair import Sharing, fair_supply
from uedp.mechanism.sampling import supply_of
from uedp.methods import ClippedMethod, Method, PrivacySettings, method_named
from uedp.methods.base import PLANNED
from uedp.models.load import LoadedModel
from uedp.progress import SILENT, Meter, Progress, duration
from uedp.training.build import Prepared, precision_of, prepare
from uedp.training.config import ADAPTER_DEFAULTS, Config, default_config, parse_config
from uedp.training.datasets import TrainingData
from uedp.training.estimate import Pace, measure_pace
from uedp.training.plan import rounding_margin
from uedp.training.public_phase import public_steps
from uedp.training.vocabulary import make_run_tokenizer

ROUNDS = (15, 25, 50, 100, 200)
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.85, 1.0)
_STEPS = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
RATES = (*(float(f"{step}e{power}") for power in range(-4, 0) for step in _STEPS), 1.0)
CAPS = (1, 2, 4, 8, 16, 32, 64, 128, 256)  # sentences of a user in a round
_ENOUGH = 0.93  # of the best signal-to-noise ratio
_SHARE_ENOUGH = 0.98  # the same for the entity share
# of adapters (benchmarks/results/demo_sweep.json): a smaller norm weights sentences more equally
_SENTENCE_CLIP = 0.3
_USUAL_ROUNDS = 200
EVALUATED = 1000  # sentences: their mean loss is within a few percent of that of all


@dataclass(frozen=True)
class Choice:
    """A config with all numbers; the fields that the planner chose; and the reasons, in words."""

    config: Config
    fields: tuple[str, ...] = ()
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Option:
    method: str
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
    timed = attached is None and bool({"user_rate", "rounds"} & set(fields))
    public = data.public is not None and (timed or config.public.steps is None)
    if not timed and not public:
        return choose(config, data.incidence, progress=progress), None
    ready = prepare_to_measure(config, data, progress)
    steps, seconds = public_steps(ready)
    pace = replace(measure_pace(ready, progress), public_seconds=seconds) if timed else None
    choice = with_public_steps(choose(config, data.incidence, pace, progress), steps, seconds)
    return choice, ready if config.vocabulary.source == "tokenizer" else None


def with_public_steps(choice: Choice, steps: int, seconds: float) -> Choice:
    """A choice with its steps on public text, if there are any."""
    if not steps:
        return choice
    public = choice.config.public.model_copy(update={"steps": steps})
    words = (
        f"First {steps:,} {'step' if steps == 1 else 'steps'} of {public.sentences:,} sentences on "
        f"public text, without privacy: about {duration(seconds)}."
    )
    config = choice.config.model_copy(update={"public": public})
    return replace(choice, config=config, words=(words, *choice.words))


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
        planner, reason = _searched(config, incidence, fields, pace, meter)
    option = planner.chosen
    chosen = {
        "method": option.method,
        "delta": planner.delta,
        "user_rate": option.rate,
        "rounds": option.rounds,
        "entity_share": option.share,
        "sentences_per_user": option.cap,
    }
    # the usual delta says nothing of the corpus
    fields = tuple(field for field in fields if field != "delta" or planner.delta != DEFAULT_DELTA)
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
    by_counts = [f for f in fields if f != "method" or not _refused(config.privacy)]
    chosen_by = _chosen_by(config, by_counts) if by_counts else config.privacy.chosen_by
    privacy = config.privacy.model_copy(update=update | {"chosen_by": chosen_by})
    done = config.model_copy(update={"privacy": privacy, "optimiser": optimiser})
    return Choice(done, fields, tuple(_words(done, fields, planner, reason)))


def _searched(
    config: Config,
    incidence: Incidence,
    fields: Sequence[str],
    pace: Pace | None,
    meter: Meter,
) -> tuple["_Planner", str]:
    """The planner of the best method with its choice, and why that method, if it was open."""
    names: Sequence[str] = _RULES if "method" in fields else [config.privacy.method]
    planners: list[_Planner] = []
    reason = ""
    for name in names:
        if name == _RULES[1] and len(names) > 1 and (why := _unfit(config.privacy, incidence)):
            reason = why
            continue
        planner = _Planner(config, incidence, fields, pace, name)
        for _ in planner.search():
            meter.advance(1)
        planners.append(planner)
    if len(planners) == 1:
        return planners[0], reason
    meter.note("comparing methods")
    scores = [planner.exact_score() for planner in planners]
    best, other = (1, 0) if scores[1] > scores[0] else (0, 1)
    return planners[best], (
        f"by counts of this corpus its predicted signal-to-noise ratio is {scores[best]:.4g}, "
        f"that of {names[other]} {scores[other]:.4g}"
    )


_RULES = ("rotation", "fair-shares")
_LARGE = 2_000_000  # sentences and mentions, whose weights take several seconds


def _refused(privacy: PrivacySettings) -> str:
    """Why the settings, whatever the corpus, exclude fair shares; empty if they do not."""
    try:
        method_named(_RULES[1]).check(privacy)
    except ValueError as error:
        return str(error).partition(";")[0]
    return ""


def _unfit(privacy: PrivacySettings, incidence: Incidence) -> str:
    """Why fair shares are not considered, if they are not."""
    if reason := _refused(privacy):
        return reason
    if incidence.sentences + len(incidence.sentence_entities.values) > _LARGE:
        return f"{_RULES[1]} would take long on so large a corpus"
    return ""


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
        self,
        config: Config,
        incidence: Incidence,
        fields: Sequence[str],
        pace: Pace | None,
        method: str | None = None,
    ) -> None:
        self._privacy, self._run = config.privacy, config.run
        self._precision = precision_of(config)
        self._fields, self._pace = fields, pace
        self._incidence, self._method = incidence, method_named(method or config.privacy.method)
        profile = self._method.profile_type
        self._entities = profile is not None and profile.protects_entities
        self._shared = self._method.name == _RULES[1]
        if self._entities and not self._shared:
            self._supply = supply_of(incidence)
        else:
            counts = np.bincount(incidence.sentence_user, minlength=incidence.users)
            self._supply = Supply(incidence.users, counts.astype(np.float64), None)
        self.users = incidence.users
        self.delta = default_delta(incidence.users) if "delta" in fields else config.privacy.delta
        target = config.privacy.epsilon
        assert target is not None  # or nothing is chosen
        if config.vocabulary.source == "private":
            target *= 1 - config.vocabulary.share
        self._target = target
        self._noise = lru_cache(None)(_rough_noise(target, self.delta))
        self._signal = lru_cache(None)(self._signal_of)
        self.limited = False  # whether time decided
        self.too_long = False  # whether even the shortest plan takes longer

    # --- the parts of a plan ---------------------------------------------------------------------

    def _signal_of(self, share: float, cap: int | None) -> float:
        extended = self._privacy.extended_rate if self._entities else 1.0
        if not self._shared:
            return self._supply.signal(share, extended, cap)
        return fair_supply(self._incidence, Sharing(share, cap), extended).signal(share)

    def sentences(self, cap: int | None) -> float:
        """Sentences of all users that a round could use."""
        usable = self._supply.sentences_per_user
        return float((usable if cap is None else np.minimum(usable, cap)).sum())

    def seconds(self, rate: float, rounds: int, cap: int | None) -> float:
        assert self._pace is not None
        each = self._pace.round_seconds(rate * self.sentences(cap))
        evaluated = self._pace.evaluation_seconds(rounds, self._run.evaluate_every)
        return self._pace.public_seconds + rounds * each + evaluated

    def _score(self, rate: float, rounds: int, share: float, cap: int | None) -> float:
        if not self._entities:
            # without a clip of its own, one sentence can fill the update
            signal, noise = self._signal(1.0, cap), self._noise(rounds, rate, 0.0)
        else:
            signal = self._signal(share, cap)
            noise = self._noise(rounds, rate, share, self._shared)
        return run_signal(rounds, rate, signal, noise)

    def _option(self, rate: float, rounds: int, share: float, cap: int | None) -> _Option:
        score, cost = self._score(rate, rounds, share, cap), rate * rounds * self.sentences(cap)
        return _Option(self._method.name, rate, rounds, share, cap, score, cost)

    def _grid(self, field: str, values: Sequence[Any]) -> Sequence[Any]:
        """The values to try for a field; only one if it was set."""
        return values if field in self._fields else (getattr(self._privacy, field),)

    def _caps(self) -> Sequence[int]:
        largest = max(1, math.ceil(np.quantile(self._supply.sentences_per_user, 0.95)))
        caps = CAPS[::2] if self._shared else CAPS  # weights depend on them
        return [cap for cap in caps if cap < largest] + [largest]

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
        """Plans that are considered; afterwards `chosen` is the one to take."""
        grid = SHARES[::2] if self._shared else SHARES
        shares = self._grid("entity_share", grid) if self._entities else (1.0,)
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
            self.chosen, self._reached = shortest[1], shortest[1].score
            return
        self._reached = reached = max(option.score for option in within)
        self.limited = reached < _ENOUGH * most
        # the last percents would multiply the time; short of time, all of it is used
        enough = reached * (1 if self.limited else _ENOUGH)
        self.chosen = min(
            (option for option in within if option.score >= enough), key=lambda option: option.cost
        )

    def exact_score(self) -> float:
        """The best score that is reached, to compare methods by.

        With the noise that is proven for the chosen plan, and the weights of its sentences.
        """
        plan = self.chosen
        update = {
            "user_rate": plan.rate,
            "entity_share": plan.share,
            "sentences_per_user": plan.cap,
        }
        privacy = self._privacy.model_copy(update=update)
        assert issubclass(self._method, ClippedMethod)
        signal = self._method.supply(privacy, self._incidence).signal(plan.share)
        margin = rounding_margin(self._precision, plan.rate * self.users)
        noise = _exact_noise(self._method, privacy, self._target, self.delta, plan.rounds, margin)
        return self._reached * run_signal(plan.rounds, plan.rate, signal, noise) / plan.score


_rough_noise = lru_cache(16)(RoughNoise)


@lru_cache(16)
def _exact_noise(
    method: type[Method],
    privacy: PrivacySettings,
    target: float,
    delta: float,
    rounds: int,
    margin: float,
) -> float:
    nothing = np.zeros(0, dtype=np.int64)
    nobody = Incidence.build(nothing, nothing, nothing, 0, 0)
    return noise_for(
        target, delta, rounds, lambda z: method.profile(privacy, nobody, z).with_margin(margin)
    )


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
    if by_hand or config.optimiser != plain.optimiser or _public_by_hand(config, plain):
        return f"{planner}{decisions.OTHERS_BY}{decisions.NOT_STATED}"
    return f"{planner}{decisions.OTHERS_BY}the authors of uedp, on public data"


def _public_by_hand(config: Config, plain: Config) -> bool:
    """Whether a person chose how to train on public text."""
    names = ("steps", "sentences", "rate")
    return any(getattr(config.public, name) != getattr(plain.public, name) for name in names)


def _words(config: Config, fields: Sequence[str], planner: _Planner, reason: str) -> Iterator[str]:
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
    if stated:
        yield f"Chosen from counts of this corpus: {'; '.join(stated)}."
    if "method" in fields:
        yield f"Method {privacy.method}: {reason}."
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
