"""Secrets to plant in a corpus before anything is detected in it, and to look for in the model.

A secret is a number drawn at random, told after a prompt that names a person: `Call Edith Kovacs
at 212-555-0183 .` Some are told by many users, since what is repeated is remembered: a number that
many hold is for user-level privacy many small things, for user-entity privacy one. Others are drawn
alike and left out. Whatever a model says of those, it cannot have learned (Carlini et al. 2019).
"""

import gzip
import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from uedp.corpus.sentence import Sentence, Span
from uedp.errors import UserError
from uedp.files import scratch_dir
from uedp.sample.words import FIRST_NAMES, LAST_NAMES

PHONE = "212-555-####"  # the digits that stand there are no secret
PROMPT = "Call {name} at"
REPEATS = (1, 2, 4, 8, 16)

_BLANK = "#"
_END = " ."


@dataclass(frozen=True)
class Secret:
    """What follows a prompt; how many users told it, none of them if it was left out.

    `repeats` of one that was left out is 0.
    """

    prompt: str
    secret: str
    format: str
    repeats: int
    planted: bool

    @property
    def text(self) -> str:
        """The sentence that tells it."""
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
    """The sentences and those that tell the secrets; and the secrets, with those left out.

    `each` secrets are told by as many users as each entry of `repeats` says; as many again, or
    `left_out`, are told by nobody. A `#` in the mask is a digit drawn at random. Those who tell are
    new users with nothing else to say, or users that there are. The name and the number are marked,
    as PERSON and PHONE, for the detector `labels`.

    Guarantees:
      - what was there comes first, unchanged and in order
      - a secret with `r` repeats is told once by each of `r` users
      - no two secrets have a name or a number in common
      - which are planted, and how often, is drawn after names and numbers, and apart from them
      - the same seed gives the same secrets
    """
    texts = list(sentences)
    count = each * len(repeats)
    everyone = count + (count if left_out is None else left_out)
    _check(repeats, each, everyone - count, mask, prompt, everyone)
    chance = random.Random(seed)
    people = chance.sample(range(len(FIRST_NAMES) * len(LAST_NAMES)), everyone)
    names = [
        f"{FIRST_NAMES[n // len(LAST_NAMES)]} {LAST_NAMES[n % len(LAST_NAMES)]}" for n in people
    ]
    numbers = [filled(mask, n) for n in chance.sample(range(size(mask)), everyone)]
    told = [r for r in repeats for _ in range(each)] + [0] * (everyone - count)
    chance.shuffle(told)
    secrets = [
        Secret(prompt.format(name=name), number, mask, r, r > 0)
        for name, number, r in zip(names, numbers, told, strict=True)
    ]
    known = sorted({sentence.user for sentence in texts})
    planted: list[Sentence] = []
    for secret, name in zip(secrets, names, strict=True):
        if holders == "existing":
            if secret.repeats > len(known):
                raise UserError(
                    f"repeats {secret.repeats}: there are only {len(known)} users to tell a secret"
                )
            users = chance.sample(known, secret.repeats)
        else:
            users = [f"planted-{len(planted) + n:06d}" for n in range(secret.repeats)]
        planted += (Sentence(user, secret.text, None, _marks(secret, name)) for user in users)
    if holders == "new" and (taken := {s.user for s in planted} & set(known)):
        raise UserError(f"user {min(taken)!r}: planted already; plant in the corpus as it was")
    return texts + planted, secrets


def size(mask: str) -> int:
    """How many numbers have this form."""
    return int(10 ** mask.count(_BLANK))


def filled(mask: str, number: int) -> str:
    """The number's digits in place of the mask's blanks."""
    digits = iter(f"{number:0{mask.count(_BLANK)}d}")
    return "".join(next(digits) if c == _BLANK else c for c in mask)


def drawn(mask: str, most: int, seed: int = 0) -> list[str]:
    """All that have this form, in order, or `most` of them drawn at random."""
    if size(mask) <= most:
        return [filled(mask, n) for n in range(size(mask))]
    return [filled(mask, n) for n in random.Random(seed).sample(range(size(mask)), most)]


def write(sentences: Iterable[Sentence], path: Path) -> None:
    """As JSON lines that `uedp detect` reads, compressed if the name ends in `.gz`."""
    fields = (
        {
            "user": sentence.user,
            "text": sentence.text,
            "label": sentence.label,
            "marks": [mark._asdict() for mark in sentence.marks],
        }
        for sentence in sentences
    )
    with scratch_dir(path) as folder:
        draft = folder / "draft"
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(draft, "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in fields)
        draft.replace(path)


def save(secrets: Sequence[Secret], path: Path) -> None:
    path.write_text(json.dumps([asdict(secret) for secret in secrets], indent=1) + "\n")


def load(path: Path) -> list[Secret]:
    """The secrets in a file that `save` wrote."""
    try:
        return [Secret(**values) for values in json.loads(path.read_text(encoding="utf-8"))]
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, TypeError):
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
    repeats: Sequence[int], each: int, left_out: int, mask: str, prompt: str, everyone: int
) -> None:
    if each < 1 or left_out < 0 or not repeats or min(repeats) < 1:
        raise UserError(
            f"repeats {list(repeats)}, each {each}, left out {left_out}: at least one secret must "
            "be told at least once"
        )
    if size(mask) < 2 * everyone:
        raise UserError(
            f"mask {mask!r}: has {size(mask):,} numbers, too few to hide {everyone:,} secrets "
            f"among; give it more blanks ({_BLANK})"
        )
    people = len(FIRST_NAMES) * len(LAST_NAMES)
    if everyone > people:
        raise UserError(f"{everyone:,} secrets: there are names for {people:,} only; plant fewer")
    if "{name}" not in prompt:
        raise UserError(f"prompt {prompt!r}: must hold {{name}}, so that each secret has its own")
