"""The configs that trained experiments share: fine-tuning, an AWD-LSTM from nothing, classifying.

Rates, rounds and shares were chosen on CoNLL's validation part (what was tried:
`benchmarks/utility.py`) and, for topics, on AG's; the test part decided nothing. Where two kinds of
training are tried, both are trials of the experiment, and the better by validation is told.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from research.runs import Config, changed
from uedp.training.config import EQUAL_STEPS, FOR_PROBES

DELTA = 1e-5
REPEATS = 3  # of what is cheap
EPSILONS = (8.0, 2.0)
PAPER_NOISE = {"gpt": 2.5, "bert": 2.5, "awd-lstm": 2.0}  # its z, by model
PAPER_USER_RATE, PAPER_ENTITY_RATE = 0.05, 0.5
ALG_ROUNDS = 10  # local steps go one after another, which takes long; more rounds add noise only

FINE_TUNING: Config = {
    "privacy": {"method": "rotation", "delta": DELTA, "rounds": 200, "user_rate": 0.1},
    "model": {"name": "gpt", "train": "lora", "rank": 8, "max_tokens": 128},
    "optimiser": {"name": "adam", "rate": 2e-3, "decay": "linear", "warm_up": 0.05, "average": 0},
    "run": {"evaluate_every": 50, "checkpoint_seconds": 600, "tokens_at_once": 1 << 14},
}
LSTM: Config = changed(
    FINE_TUNING,
    model__name="awd-lstm",
    model__train="full",
    model__max_tokens=64,
    model__sizes={"embedding_size": 100, "hidden_size": 1150, "num_hidden_layers": 3},
    vocabulary__source="public",
    privacy__rounds=150,
)
TOPICS: Config = changed(
    FINE_TUNING,
    model__name="bert",
    task__kind="classification",
    privacy__rounds=100,
    privacy__user_rate=0.05,
    run__tokens_at_once=1 << 16,
)
# Few articles name nobody that another user names: so for rotation users are drawn often, and one
# article may move an update as far as the clip allows.
TOPICS_ROTATION: Mapping[str, Any] = MappingProxyType(
    {"privacy__user_rate": 0.3, "privacy__entity_share": 1.0}
)
FLAT: Mapping[str, Any] = MappingProxyType(
    {f"optimiser__{name}": value for name, value in EQUAL_STEPS.items()}
)
# A linear classifier on the frozen encoder: far fewer weights than adapters have.
PROBE: Mapping[str, Any] = MappingProxyType(
    {"model__train": "probe"}
    | {f"{part}__{name}": v for part, own in FOR_PROBES.items() for name, v in own.items()}
)
TOPICS_PROBE: Config = changed(TOPICS, **PROBE)
PROBE_ROTATION: Mapping[str, Any] = MappingProxyType({**TOPICS_ROTATION, "privacy__rounds": 200})
TOPICS_LSTM: Config = changed(
    LSTM,
    task__kind="classification",
    privacy__rounds=100,
    privacy__user_rate=0.05,
    run__tokens_at_once=1 << 16,
)

DECAYED_RATE = 4e-3  # of fine-tuning with noise, at first
NOISELESS_RATE = 1e-3
# An LSTM from nothing, by epsilon: chosen at 8 (`benchmarks/utility.py`), shorter as noise grows.
LSTM_RATES = {8.0: 8e-3, 2.0: 4e-3, 0.5: 2e-3}


@dataclass(frozen=True)
class Corpus:
    """How often each method draws users, the entity share of rotation, and steps with noise."""

    rotation: float
    user_level: float
    plain: float
    share: float
    rounds: int
    step: float
    # what else a method is tried with, by name; user-level DP at the larger epsilon
    rotation_too: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    user_level_too: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def flat(self) -> dict[str, Any]:
        """Fine-tuning with noise, all steps alike."""
        return {"privacy__rounds": self.rounds, "optimiser__rate": self.step, **FLAT}

    @property
    def decayed(self) -> dict[str, Any]:
        """The same with steps that become shorter."""
        return {"privacy__rounds": self.rounds, "optimiser__rate": DECAYED_RATE}


CORPORA = {
    "conll": Corpus(
        rotation=0.2,
        user_level=0.1,
        plain=0.1,
        share=0.4,
        rounds=200,
        step=3e-3,
        rotation_too={"users-0.1": {"privacy__user_rate": 0.1}},
        user_level_too={"users-0.2": {"privacy__user_rate": 0.2}},
    ),
    "ag": Corpus(rotation=0.3, user_level=0.02, plain=0.02, share=1.0, rounds=100, step=4e-3),
    "edgar": Corpus(
        rotation=0.2,
        user_level=0.1,
        plain=0.1,
        share=0.5,
        rounds=100,
        step=4e-3,
        rotation_too={"share-0.7": {"privacy__entity_share": 0.7}},
    ),
}


def config(
    base: Config, method: str, epsilon: float | None = None, **changes: Any
) -> dict[str, dict[str, Any]]:
    """A base config for a method, at an epsilon if it has one, after changes."""
    target = {} if epsilon is None else {"privacy__epsilon": epsilon}
    return changed(base, privacy__method=method, **target, **changes)


def as_published(base: Config, **changes: Any) -> dict[str, dict[str, Any]]:
    """UeDP-Alg at the paper's `z` and rates, with the noise that its text describes.

    The clip is that of the other runs: noise is in units of it, and Adam takes no notice of scale.
    """
    asked = {
        "privacy__noise": PAPER_NOISE[base["model"]["name"]],
        "privacy__user_rate": PAPER_USER_RATE,
        "privacy__entity_rate": PAPER_ENTITY_RATE,
        "privacy__rounds": ALG_ROUNDS,
        **changes,
    }
    return changed(base, privacy__method="uedp-alg", **asked)


# A probe takes its local steps quickly, so that UeDP-Alg has as many rounds as the others.
PUBLISHED_PROBE = as_published(TOPICS_PROBE, privacy__rounds=TOPICS["privacy"]["rounds"])
