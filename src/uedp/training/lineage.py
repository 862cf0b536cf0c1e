"""What a model has learned from before: no epsilon covers it, so it must not be the same corpus.

A run leaves a list beside its weights: the incidences that it, and the runs before it, were trained
on, by their digests, which hold neither text nor names. A run that begins with these weights reads
it. The same text detected otherwise has another incidence: that it is the same, nobody can tell
from here, so whatever was learned before is a caveat of the certificate.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from uedp.errors import UserError
from uedp.strict import parse_json
from uedp.training import folder

FILE = "lineage.json"


@dataclass(frozen=True)
class Learned:
    """One run that a model went through."""

    run: str
    method: str
    incidence: str


def of_model(name: str) -> tuple[Learned, ...]:
    """The runs that a model went through, none if it is not known to come from any."""
    path = Path(name).expanduser() / FILE
    if not path.is_file():
        return ()
    try:
        found = tuple(Learned(**entry) for entry in parse_json(path.read_bytes()))
        if not all(isinstance(value, str) for one in found for value in asdict(one).values()):
            raise TypeError
    except (ValueError, TypeError):
        raise UserError(f"{path}: damaged; what the model learned from is not known") from None
    return found


def refuse_the_same(before: tuple[Learned, ...], incidence: str, model: str) -> None:
    """An epsilon for one more run on a corpus says nothing of what a model has of it already."""
    for learned in before:
        if learned.incidence == incidence:
            raise UserError(
                f"model {model!r}: has learned from this corpus already (run {learned.run}, "
                f"{learned.method}), which the epsilon of another run would not cover; begin with "
                "a model that has not, or plan all rounds in one run"
            )


def write(out: Path, learned: tuple[Learned, ...]) -> None:
    folder.write(out / FILE, json.dumps([asdict(one) for one in learned], indent=2) + "\n")
