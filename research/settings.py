"""Configs shared by the experiments that train: fine-tuning, AWD-LSTM from scratch, classification.

Rates, rounds and shares were chosen on the validation parts: CoNLL's (`benchmarks/utility.py` has
the search) and, for classification, AG's. The test parts decided nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from research import paper, released_noise
from research.runs import Config, override
from uedp.training.config import CONSTANT_RATE, PROBE_DEFAULTS

DELTA = 1e-5
REPEATS = 3  # of cheap trials
EPSILONS = (8.0, 2.0)
ALG_ROUNDS = 10  # local steps are sequential and slow; more rounds would only add noise

FINE_TUNING: Config = {
    "privacy": {"method": "rotation", "delta": DELTA, "rounds": 200, "user_rate": 0.1},
    "model": {"name": "gpt", "train": "lora", "rank": 8, "max_tokens": 128},
    "optimiser": {"name": "adam", "rate": 2e-3, "decay": "linear", "warm_up": 0.05, "average": 0},
    "run": {"evaluate_every": 50, "checkpoint_seconds": 600, "tokens_at_once": 1 << 14},
}
LSTM: Config = override(
    FINE_TUNING,
    model__name="awd-lstm",
    model__train="full",
    model__max_tokens=64,
    model__sizes={"embedding_size": 100, "hidden_size": 1150, "num_hidden_layers": 3},
    vocabulary__source="public",
    privacy__rounds=150,
)
# The same on a processor: an AWD-LSTM whose rounds take seconds there.
SMALL_LSTM: Config = override(
    LSTM, model__sizes={"embedding_size": 100, "hidden_size": 200, "num_hidden_layers": 3}
)
TOPICS: Config = override(
    FINE_TUNING,
    model__name="bert",
    task__kind="classification",
    privacy__rounds=100,
    privacy__user_rate=0.05,
    run__tokens_at_once=1 << 16,
)
# Most articles mention an entity that another user mentions too. Hence a high user rate, and an
# entity share that lets one article fill the update clip.
TOPICS_ROTATION: Mapping[str, Any] = MappingProxyType(
    {"privacy__user_rate": 0.3, "privacy__entity_share": 1.0}
)
FLAT: Mapping[str, Any] = MappingProxyType(
    {f"optimiser__{name}": value for name, value in CONSTANT_RATE.items()}
)
# A linear classifier on the frozen encoder: far fewer weights than adapters.
PROBE: Mapping[str, Any] = MappingProxyType(
    {"model__train": "probe"}
    | {f"{part}__{name}": v for part, own in PROBE_DEFAULTS.items() for name, v in own.items()}
)
TOPICS_PROBE: Config = override(TOPICS, **PROBE)
PROBE_SHARES: Mapping[str, Any] = MappingProxyType({**TOPICS_ROTATION, "privacy__rounds": 200})
PROBE_RATES: Mapping[str, Any] = MappingProxyType(
    {name: PROBE_SHARES[name] for name in ("privacy__user_rate", "privacy__rounds")}
)
TOPICS_LSTM: Config = override(
    LSTM,
    task__kind="classification",
    privacy__rounds=100,
    privacy__user_rate=0.05,
    run__tokens_at_once=1 << 16,
)

NOISELESS_RATE = 1e-3
# AWD-LSTM learning rates by epsilon: chosen at 8 (`benchmarks/utility.py`), lower with more noise.
LSTM_RATES = {8.0: 8e-3, 2.0: 4e-3, 0.5: 2e-3}


@dataclass(frozen=True)
class FineTuningSettings:
    """Fine-tuning on one data set: user rates by method, entity share, rounds, learning rate."""

    rotation: float
    user_level: float
    plain: float
    share: float
    rounds: int
    step: float

    @property
    def flat(self) -> dict[str, Any]:
        """Fine-tuning with noise at a constant learning rate."""
        return {"privacy__rounds": self.rounds, "optimiser__rate": self.step, **FLAT}


DATA_SETTINGS = {
    "conll": FineTuningSettings(
        rotation=0.2, user_level=0.1, plain=0.1, share=0.4, rounds=200, step=3e-3
    ),
    "ag": FineTuningSettings(
        rotation=0.3, user_level=0.02, plain=0.02, share=1.0, rounds=100, step=4e-3
    ),
    "edgar": FineTuningSettings(
        rotation=0.2, user_level=0.1, plain=0.1, share=0.5, rounds=100, step=4e-3
    ),
}


def method_config(
    base: Config, method: str, epsilon: float | None = None, **changes: Any
) -> dict[str, dict[str, Any]]:
    """A base config with a method, its target epsilon if it has one, and other overrides."""
    target = {} if epsilon is None else {"privacy__epsilon": epsilon}
    return override(base, privacy__method=method, **target, **changes)


def published_config(base: Config, **changes: Any) -> dict[str, dict[str, Any]]:
    """UeDP-Alg at the paper's `z` and sampling rates, with the noise that its text describes.

    The clipping norm is that of the other runs: noise is relative to it, and Adam is scale-free.
    """
    settings = {
        "privacy__noise": paper.NOISE[base["model"]["name"]],
        "privacy__user_rate": paper.USER_RATE,
        "privacy__entity_rate": paper.ENTITY_RATE,
        "privacy__rounds": ALG_ROUNDS,
        **changes,
    }
    return override(base, privacy__method="uedp-alg", **settings)


# The released code's rounds at the smallest epsilon of each of the paper's figures that is not the
# accountant's least: 0.5 for AWD-LSTM, 0.185 for GPT-2; and its sentences in a local step.
RELEASED_ROUNDS = {"gpt": 48, "bert": 100, "awd-lstm": 42}
RELEASED_BATCH = 10


def released_config(base: Config, **changes: Any) -> dict[str, dict[str, Any]]:
    """UeDP-Alg with the noise of the released code, at the paper's clipping norm.

    Its noise is the square of a deviation that is proportional to that norm, so the norm matters.
    """
    name = base["model"]["name"]
    settings = {
        "privacy__user_rate": paper.USER_RATE,
        "privacy__entity_rate": paper.ENTITY_RATE,
        "privacy__rounds": RELEASED_ROUNDS[name],
        "privacy__update_clip": paper.UPDATE_CLIP,
        "method_options__z": paper.NOISE[name],
        "method_options__local_batch": RELEASED_BATCH,
        **changes,
    }
    return override(base, privacy__method=released_noise.NAME, **settings)


# The local steps of a probe are fast, so UeDP-Alg has as many rounds as the other methods.
PUBLISHED_PROBE = published_config(TOPICS_PROBE, privacy__rounds=TOPICS["privacy"]["rounds"])
