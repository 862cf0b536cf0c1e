"""Settings of the Budget page as commands to copy."""

import json
import shlex
from pathlib import Path

from uedp.studio.epsilons import Knobs


def check_command(knobs: Knobs) -> str:
    """The command that prints the guarantee of these settings: with a target, its noise too."""
    share = knobs.entity_share if knobs.protects_entities else 0
    words = ["uedp", "account", "proven"] if knobs.target is None else ["uedp", "calibrate"]
    words += _target(knobs)
    words += _flags(user_rate=knobs.user_rate, rounds=knobs.rounds, entity_share=share)
    words += _flags(delta=knobs.delta)
    return shlex.join(words + (_flags(method=knobs.method) if knobs.protects_entities else []))


def train_command(knobs: Knobs, corpus: Path | None = None) -> str:
    """The command that trains with these settings; CORPUS and MODEL are to be filled in."""
    words = ["uedp", "train", "--corpus", "CORPUS" if corpus is None else str(corpus)]
    words += ["--model", "MODEL", *_flags(method=knobs.method), *_target(knobs)]
    words += _flags(delta=knobs.delta, rounds=knobs.rounds, user_rate=knobs.user_rate)
    if knobs.protects_entities:
        words += _flags(entity_share=knobs.entity_share)
    return shlex.join([*words, "--out", "run"])


def _target(knobs: Knobs) -> list[str]:
    return _flags(noise=knobs.noise) if knobs.target is None else _flags(epsilon=knobs.target)


def _flags(**values: str | float) -> list[str]:
    """Numbers with all their digits, so that the command computes exactly the same."""
    words = []
    for name, value in values.items():
        if isinstance(value, float) and value == int(value):
            value = int(value)
        text = value if isinstance(value, str) else json.dumps(value)
        words += [f"--{name.replace('_', '-')}", text]
    return words
