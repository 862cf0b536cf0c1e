"""The runs that a model, or its vocabulary, comes from.

No epsilon covers earlier training, so a private run must not start from a model that has learned
from the same corpus. A run leaves a list beside its weights: the corpora that it and the runs
before it learned from, by digests that hold neither text nor names, and the origin of each run's
vocabulary. A run that starts from these weights, or takes its tokenizer or word list from there,
reads that list. Texts that were detected again in the same folder are recognised by a digest under
the key of the corpus. Elsewhere the same texts cannot be recognised, so any earlier training is a
caveat of the certificate.
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
    """One run that a model or its vocabulary went through; `words` is its vocabulary's origin."""

    run: str
    method: str
    incidence: str
    texts: str = ""  # under the key of the corpus
    words: str = "not known"

    def __post_init__(self) -> None:
        if not all(isinstance(value, str) for value in asdict(self).values()):
            raise TypeError("a lineage consists of names and digests")

    def learned_from(self, incidence: str, texts: str) -> bool:
        return self.incidence == incidence or (self.texts != "" and self.texts == texts)


def model_ancestors(name: str) -> tuple[Ancestor, ...]:
    """The known runs that a model went through."""
    return _read_lineage(Path(name).expanduser())


def vocabulary_ancestors(config: Config) -> tuple[Ancestor, ...]:
    """The known runs from whose texts the vocabulary of a config was made."""
    ancestors = (
        *model_ancestors(config.model.name),  # a saved model comes with its tokenizer
        *_ancestors_beside(config.model.tokenizer),
        *_ancestors_beside(config.vocabulary.path),
    )
    return tuple(ancestor for ancestor in ancestors if ancestor.words != _PUBLIC)


def _ancestors_beside(name: str | None) -> tuple[Ancestor, ...]:
    """The lineage of a file in a run, of a run, or of the vocabulary folder in it."""
    if name is None or not (path := Path(name).expanduser()).exists():
        return ()
    # nothing lies beside a link: look beside its target as well
    linked, target = (p if p.is_dir() else p.parent for p in (path, path.resolve()))
    for folder in (linked, target, linked.resolve().parent, target.parent):
        if (folder / FILE).is_file() or (folder / RUN_LEDGER).is_file():
            return _read_lineage(folder)
    return ()


def vocabulary_origin(ancestors: tuple[Ancestor, ...], incidence: str, texts: str) -> Origin:
    """What the certificate says about a vocabulary with these ancestors."""
    if any(ancestor.learned_from(incidence, texts) for ancestor in ancestors):
        return CORPUS_VOCABULARY
    return FOREIGN_VOCABULARY if ancestors else "public"


def refuse_reused_corpus(
    ancestors: tuple[Ancestor, ...], incidence: str, model: str, texts: str = ""
) -> None:
    """Refuse a model that has learned from this corpus: the new epsilon would not cover that."""
    for ancestor in ancestors:
        if ancestor.learned_from(incidence, texts):
            raise UserError(
                f"model {model!r}: has learned from this corpus already (run {ancestor.run}, "
                f"{ancestor.method}), which the epsilon of another run would not cover; start from "
                "a model that has not, or plan all rounds in one run"
            )


def run_as_ancestor(planned: PlannedRun) -> Ancestor:
    """The entry of a run in the lineage of its model."""
    return Ancestor(
        planned.run,
        planned.method,
        planned.shape.digest,
        planned.setup.texts,
        planned.setup.vocabulary,
    )


def write_lineage(folder: Path, ancestors: tuple[Ancestor, ...]) -> None:
    entries = [asdict(ancestor) for ancestor in ancestors]
    write_atomically(folder / FILE, json.dumps(entries, indent=2) + "\n")


def _read_lineage(folder: Path) -> tuple[Ancestor, ...]:
    """The lineage file of a folder, and any run that only the ledger beside it knows."""
    path = folder / FILE
    try:
        entries = parse_json(path.read_bytes()) if path.is_file() else ()
        listed = tuple(Ancestor(**entry) for entry in entries)
        runs = {ancestor.run for ancestor in listed}
        return (*listed, *(one for one in _ledger_lineage(folder) if one.run not in runs))
    except (ValueError, TypeError, KeyError):
        raise UserError(f"{path}: damaged; what the model learned from is not known") from None


def _ledger_lineage(run: Path) -> tuple[Ancestor, ...]:
    if not (run / RUN_LEDGER).is_file():
        return ()
    records, _ = read_chain(run / RUN_LEDGER)
    plan = next((record for record in records if record.get("kind") == "plan"), None)
    if plan is None:
        return ()
    planned = PlannedRun.from_record(plan)
    return (*(Ancestor(**fields) for fields in planned.lineage), run_as_ancestor(planned))
