"""A corpus and models small enough to train in a second."""

from pathlib import Path
from typing import Any

import numpy as np

from tests.models import tiny
from uedp.incidence import Incidence
from uedp.training.config import Config, parse_config
from uedp.training.datasets import Texts, TrainingData
from uedp.training.public_text import PublicText

USERS, EACH = 40, 3
NAMES = ("Ann", "Bob", "Eve", "Joe")


def texts(users: int = USERS, each: int = EACH) -> list[str]:
    """Every other sentence of a user names someone."""
    return [
        f"the {NAMES[(user + number) % 4] if number % 2 else 'day'} is good"
        for user in range(users)
        for number in range(each)
    ]


def labels(users: int = USERS, each: int = EACH) -> list[str | None]:
    return ["named" if number % 2 else "plain" for _ in range(users) for number in range(each)]


def incidence(users: int = USERS, each: int = EACH) -> Incidence:
    named = [u * each + n for u in range(users) for n in range(each) if n % 2]
    return Incidence.build(
        np.repeat(np.arange(users), each),
        np.array(named),
        np.array([(s // each + s % each) % len(NAMES) for s in named]),
        users,
        len(NAMES),
    )


def training_data(corpus: Path, *, held_out: bool = True, **changes: Any) -> TrainingData:
    """All a run reads; `corpus` is the folder for its ledger."""
    corpus.mkdir(parents=True, exist_ok=True)
    values: dict[str, Any] = {
        "train": Texts(texts(), labels()),
        "incidence": incidence(),
        "ledger": corpus,
        "held_out": Texts(texts(5), labels(5)) if held_out else None,
    }
    return TrainingData(**values | changes)


def public_text(**changes: Any) -> PublicText:
    """Text by nobody in particular, for a few steps before the rounds."""
    texts = [f"rain in the {place} is rare in may" for place in ("north", "south", "east", "west")]
    return PublicText(**{"texts": texts, "labels": [None] * 4, "name": "weather.txt"} | changes)


def model(folder: Path, kind: str, **options: Any) -> Path:
    """A saved model; without dropout unless asked for, so that it is quick."""
    where = folder / "-".join([kind, *map(str, options.values())])
    if (where / "config.json").is_file():
        return where
    if kind == "gpt2":
        rate = options.pop("dropout", 0.0)
        options |= {"layers": 1, "resid_pdrop": rate, "embd_pdrop": rate, "attn_pdrop": rate}
    return tiny.saved(where, getattr(tiny, kind)(**options))


def config(where: Path | str, **changes: Any) -> Config:
    """Four rounds of rotation of a model; changes are given as section__field."""
    values: dict[str, dict[str, Any]] = {
        "privacy": {
            "method": "rotation",
            "noise": 1.0,
            "rounds": 4,
            "user_rate": 0.5,
            "entity_share": 1.0,
        },
        "data": {"train": "corpus"},
        "model": {"name": str(where), "train": "full", "max_tokens": 32},
        "optimiser": {"rate": 0.01},
        "run": {"device": "cpu", "checkpoint_seconds": 600},
    }
    for path, value in changes.items():
        section, field = path.split("__")
        values.setdefault(section, {})[field] = value
    if values["privacy"]["method"] in ("noiseless", "deidentified"):
        values["privacy"].pop("noise")
    return parse_config(values)
