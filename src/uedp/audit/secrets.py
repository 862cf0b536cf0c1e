"""Secrets to plant in a corpus before detection, and to look for in the trained model.

A secret is a random number that follows a prompt with a person's name: `Call Edith Kovacs at
212-555-0183 .` Some are held by many users, since repetition makes a model remember: for user-level
privacy such a number is many small things, for user-entity privacy one. Others are drawn alike and
left out; a model cannot have learned those (Carlini et al. 2019).
"""

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from uedp.corpus.sentence import Sentence, Span
from uedp.errors import UserError
from uedp.sample.words import FIRST_NAMES, LAST_NAMES

PHONE = "212-555-####"  # only the blanks are secret
PROMPT = "Call {name} at"
REPEATS = (1, 2, 4, 8, 16)

_BLANK = "#"
_END = " ."


@dataclass(frozen=True)
class Secret:
    """A number that follows a prompt, and how many users hold it: 0 if it was left out."""

    prompt: str
    secret: str
    format: str
    repeats: int
    planted: bool

    @property
    def text(self) -> str:
        """The sentence that contains it."""
        return f"{self.prompt} {self.secret}{_END}"


def plant(
    sentences: Iterable[Sentence],
    *,
    repeats: Sequence[int] = REPEATS,
    each: int = 10,
    left_out: int | None = None,
    mask: str = PHONE,
    prompt: str = PROMPT,
    holders: Literal["new", "existing"] = "new",
    seed: int = 0,
) -> tuple[list[Sentence], list[Secret]]:
    """Add sentences with secrets to a corpus; returns all sentences, and all secrets.

    Names and numbers are marked as PERSON and PHONE, for the detector `labels`.

    Args:
        repeats: `each` secrets are planted under so many users, for every entry.
        left_out: The number of secrets not planted; by default as many as are.
        mask: The form of a number; every `#` is a random digit.
        holders: Whether secrets go to new users, who say nothing else, or to existing ones.

    Guarantees:
      - the given sentences come first, unchanged and in order
      - a secret with `r` repeats is in one sentence of each of `r` users
      - no two secrets have a name or a number in common
      - which are planted, and how often, is drawn after names and numbers, and independently
      - the same seed gives the same secrets
    """
    texts = list(sentences)
    planted_count = each * len(repeats)
    count = planted_count + (planted_count if left_out is None else left_out)
    _check(repeats, each, count - planted_count, mask, prompt, count)
    rng = random.Random(seed)
    people = rng.sample(range(len(FIRST_NAMES) * len(LAST_NAMES)), count)
    names = [
        f"{FIRST_NAMES[n // len(LAST_NAMES)]} {LAST_NAMES[n % len(LAST_NAMES)]}" for n in people
    ]
    numbers = [fill_mask(mask, n) for n in rng.sample(range(mask_size(mask)), count)]
    times = [r for r in repeats for _ in range(each)] + [0] * (count - planted_count)
    rng.shuffle(times)
    secrets = [
        Secret(prompt.format(name=name), number, mask, r, r > 0)
        for name, number, r in zip(names, numbers, times, strict=True)
    ]
    known = sorted({sentence.user for sentence in texts})
    planted: list[Sentence] = []
    for secret, name in zip(secrets, names, strict=True):
        if holders == "existing":
            if secret.repeats > len(known):
                raise UserError(
                    f"repeats {secret.repeats}: the corpus has only {len(known)} users to hold a "
                    "secret"
                )
            users = rng.sample(known, secret.repeats)
        else:
            users = [f"planted-{len(planted) + n:06d}" for n in range(secret.repeats)]
        planted += (Sentence(user, secret.text, None, _marks(secret, name)) for user in users)
    if holders == "new" and (taken := {s.user for s in planted} & set(known)):
        raise UserError(f"user {min(taken)!r}: planted already; plant in the original corpus")
    return texts + planted, secrets


def mask_size(mask: str) -> int:
    """How many numbers have this form."""
    return int(10 ** mask.count(_BLANK))


def fill_mask(mask: str, number: int) -> str:
    """The number's digits in place of the mask's blanks."""
    digits = iter(f"{number:0{mask.count(_BLANK)}d}")
    return "".join(next(digits) if c == _BLANK else c for c in mask)


def sample_mask(mask: str, most: int, seed: int = 0) -> list[str]:
    """All numbers of this form, in order, or `most` of them drawn at random."""
    numbers: Sequence[int] = range(mask_size(mask))
    if len(numbers) > most:
        numbers = random.Random(seed).sample(numbers, most)
    return [fill_mask(mask, n) for n in numbers]


def save_secrets(secrets: Sequence[Secret], path: Path) -> None:
    path.write_text(json.dumps([asdict(secret) for secret in secrets], indent=1) + "\n")


def load_secrets(path: Path) -> list[Secret]:
    """The secrets in a file that `save_secrets` wrote."""
    try:
        return TypeAdapter(list[Secret]).validate_json(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError:
        raise UserError(
            f"{path}: not a list of secrets; name the file that was written when they were planted"
        ) from None


def _marks(secret: Secret, name: str) -> tuple[Span, ...]:
    marks = [
        Span(start, start + len(surface), label)
        for surface, label in ((name, "PERSON"), (secret.secret, "PHONE"))
        if (start := secret.text.find(surface)) >= 0
    ]
    return tuple(sorted(marks))


def _check(
    repeats: Sequence[int], each: int, left_out: int, mask: str, prompt: str, count: int
) -> None:
    if each < 1 or left_out < 0 or not repeats or min(repeats) < 1:
        raise UserError(
            f"repeats {list(repeats)}, each {each}, left out {left_out}: plant at least one secret "
            "at least once"
        )
    if mask_size(mask) < 2 * count:
        raise UserError(
            f"mask {mask!r}: has {mask_size(mask):,} numbers, too few to hide {count:,} secrets "
            f"among; give it more blanks ({_BLANK})"
        )
    people = len(FIRST_NAMES) * len(LAST_NAMES)
    if count > people:
        raise UserError(f"{count:,} secrets: there are names for {people:,} only; plant fewer")
    if "{name}" not in prompt:
        raise UserError(
            f"prompt {prompt!r}: must contain {{name}}, so that each secret has its own"
        )
