"""What a model has learned from before: no epsilon covers it, so it must not be the same corpus.

A run leaves a list beside its weights: the corpora that it and the runs before it learned from, by
digests that hold neither text nor names, and where each run's words came from. A run that begins
with these weights reads it, and so does one that takes its tokenizer or its word list from there.
Texts that were detected anew in the same folder are still known, by a digest under the key of the
corpus; elsewhere nobody can tell that they are the same, so whatever was learned before is a caveat
of the certificate.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from uedp.accounting.chain import read_chain
from uedp.accounting.decisions import CORPUS_VOCABULARY, FOREIGN_VOCABULARY, Origin
from uedp.accounting.ledger import RUN_LEDGER, PlannedRun
from uedp.errors import UserError
from uedp.files import write_atomically
from uedp.strict import parse_json
from uedp.training.config import Config

FILE = "lineage.json"
_PUBLIC = "public"


@dataclass(frozen=True)
class Ancestor:
    """One run that a model, or its words, went through; `words` tells where its words are from."""

    run: str
    method: str
    incidence: str
    texts: str = ""  # under the key of the corpus
    words: str = "not known"

    def __post_init__(self) -> None:
        if not all(isinstance(value, str) for value in asdict(self).values()):
            raise TypeError("a lineage is made of names and digests")

    def is_of(self, incidence: str, texts: str) -> bool:
        return self.incidence == incidence or (self.texts != "" and self.texts == texts)


def of_model(name: str) -> tuple[Ancestor, ...]:
    """The runs that a model went through, none if it is not known to come from any."""
    return _read(Path(name).expanduser() / FILE)


def of_words(name: str | None) -> tuple[Ancestor, ...]:
    """The runs whose texts a tokenizer or a word list was made from, as far as is known.

    It may be a file of a run, the run's folder, or the folder of words in it.
    """
    if name is None:
        return ()
    path = Path(name).expanduser()
    if not path.exists():
        return ()
    # a link to a file has nothing beside it: look beside what it leads to as well
    linked, true = (one if one.is_dir() else one.parent for one in (path, path.resolve()))
    for place in (linked, true, linked.resolve().parent, true.parent):
        if (place / FILE).is_file() or (place / RUN_LEDGER).is_file():
            return tuple(one for one in _read(place / FILE) if one.words != _PUBLIC)
    return ()


def of_all_words(config: Config) -> tuple[Ancestor, ...]:
    """The same for all words of a run: a saved model brings the tokenizer it was made with."""
    return (
        *(one for one in of_model(config.model.name) if one.words != _PUBLIC),
        *of_words(config.model.tokenizer),
        *of_words(config.vocabulary.path),
    )


def origin_of_words(words: tuple[Ancestor, ...], incidence: str, texts: str) -> Origin:
    """What the certificate has to say of words with this lineage."""
    if any(one.is_of(incidence, texts) for one in words):
        return CORPUS_VOCABULARY
    return FOREIGN_VOCABULARY if words else "public"


def refuse_reused_corpus(
    before: tuple[Ancestor, ...], incidence: str, model: str, texts: str = ""
) -> None:
    """An epsilon for one more run on a corpus says nothing of what a model has of it already."""
    for learned in before:
        if learned.is_of(incidence, texts):
            raise UserError(
                f"model {model!r}: has learned from this corpus already (run {learned.run}, "
                f"{learned.method}), which the epsilon of another run would not cover; begin with "
                "a model that has not, or plan all rounds in one run"
            )


def write(out: Path, learned: tuple[Ancestor, ...]) -> None:
    write_atomically(out / FILE, json.dumps([asdict(one) for one in learned], indent=2) + "\n")


def _read(path: Path) -> tuple[Ancestor, ...]:
    """What the file says, and what the ledger of a run beside it says, should they differ."""
    try:
        told = (
            tuple(Ancestor(**entry) for entry in parse_json(path.read_bytes()))
            if path.is_file()
            else ()
        )
        runs = {one.run for one in told}
        return (*told, *(one for one in _of_ledger(path.parent) if one.run not in runs))
    except (ValueError, TypeError, KeyError):
        raise UserError(f"{path}: damaged; what the model learned from is not known") from None


def _of_ledger(run: Path) -> tuple[Ancestor, ...]:
    if not (run / RUN_LEDGER).is_file():
        return ()
    plan = next((one for one in read_chain(run / RUN_LEDGER)[0] if one.get("kind") == "plan"), None)
    if plan is None:
        return ()
    planned = PlannedRun.from_record(plan)
    return (*(Ancestor(**fields) for fields in planned.lineage), entry_of(planned))


def entry_of(planned: PlannedRun) -> Ancestor:
    """A run as the lineage of its model will have it."""
    return Ancestor(
        planned.run,
        planned.method,
        planned.shape.digest,
        planned.setup.texts,
        planned.setup.vocabulary,
    )
