"""The runs that a model, or its vocabulary, comes from.

No epsilon covers earlier training, so a private run must not start from a model that has learned
from the same corpus; unless it trains on from a finished run and counts its rounds
(`continued_runs`). A run leaves a list beside its weights: the corpora that it and the runs before
it learned from, by digests that hold neither text nor names, and the origin of each run's
vocabulary. A run that starts from these weights, or takes its tokenizer or word list from there,
reads that list. Texts that were detected again in the same folder are recognised by a digest under
the key of the corpus, runs in its ledger by their names. Elsewhere the same texts cannot be
recognised, so any earlier training is a caveat of the certificate. Text that was declared public is
listed by a plain digest, and recognised wherever it lies: who declares a text public in one run
cannot protect it in the next.
"""

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from uedp.accounting.certificate import refuse_other_run
from uedp.accounting.chain import of_kind, read_chain
from uedp.accounting.decisions import (
    CORPUS_VOCABULARY,
    FOREIGN_VOCABULARY,
    PRIVATE_VOCABULARY,
    Origin,
)
from uedp.accounting.growth import PastRun
from uedp.accounting.ledger import (
    RUN_LEDGER,
    CorpusLedger,
    PlannedRun,
    planned_run,
    refusing_malformed,
    spent_rounds,
)
from uedp.accounting.marks import check_mark
from uedp.accounting.model_files import refuse_other_files
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
    public: str = ""  # the plain digest of text that was declared public

    def __post_init__(self) -> None:
        if not all(isinstance(value, str) for value in asdict(self).values()):
            raise TypeError("a lineage consists of names and digests")

    def learned_from(self, incidence: str, texts: str) -> bool:
        return self.incidence == incidence or (self.texts != "" and self.texts == texts)

    def learned_from_any(self, epochs: Sequence[tuple[str, str]]) -> bool:
        """Whether it learned from any epoch of a corpus."""
        return any(self.learned_from(*epoch) for epoch in epochs)

    @property
    def what(self) -> str:
        return "on text declared public" if self.public else self.method


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


def vocabulary_origin(
    ancestors: Sequence[Ancestor],
    epochs: Sequence[tuple[str, str]],
    earlier: Sequence[PastRun] = (),
) -> Origin:
    """What the certificate says about a vocabulary with these ancestors.

    Args:
        epochs: the digests of the corpus in each of its epochs.
        earlier: runs on it that are counted, with the vocabularies they made privately.
    """
    counted = {run.run for run in earlier}
    stated = [one.words for one in ancestors if one.run in counted]
    others = [one for one in ancestors if one.run not in counted]
    if CORPUS_VOCABULARY in stated or any(one.learned_from_any(epochs) for one in others):
        return CORPUS_VOCABULARY
    if FOREIGN_VOCABULARY in stated or others:
        return FOREIGN_VOCABULARY
    private = any(run.vocabulary is not None for run in earlier)
    return PRIVATE_VOCABULARY if private else "public"


def refuse_reused_corpus(
    ancestors: Sequence[Ancestor],
    epochs: Sequence[tuple[str, str]],
    model: str,
    runs: Collection[str] = (),
    plain: Callable[[], str] = lambda: "",
) -> None:
    """Refuse a model that has learned from this corpus: the new epsilon would not cover that.

    Args:
        ancestors: the runs that the model went through and that the new one does not count.
        epochs: the digests of the corpus in each of its epochs.
        runs: all runs in the ledger of the corpus.
        plain: computes the digest of its texts that needs no key.
    """
    for ancestor in ancestors:
        known = ancestor.run in runs and not ancestor.public
        known = known or ancestor.learned_from_any(epochs)
        if known or (ancestor.public and ancestor.public == plain()):
            raise UserError(
                f"model {model!r}: has learned from this corpus already (run {ancestor.run}, "
                f"{ancestor.what}), which the epsilon of another run would not cover; start from "
                "a model that has not, plan all rounds in one run, or train on from a finished run "
                "with `model.continued`"
            )


def continued_runs(run: Path, ledger: CorpusLedger) -> tuple[PastRun, ...]:
    """The runs on a corpus that the model of a finished run went through, that one last.

    Guarantees:
      - refused unless every one of them is closed in the ledger of the corpus, has a guarantee, and
        is charged there with the rounds that are counted here
      - refused if the run is not finished, if its ledger was cut, or if a file of its model is not
        the one it saved
    """
    path = run / RUN_LEDGER
    if not path.is_file():
        raise UserError(f"model.name {str(run)!r}: holds no run with noise to train on from")
    records, seals = read_chain(path)
    planned, spent = planned_run(path, records), spent_rounds(records)
    with refusing_malformed(path, "run"):
        saved = of_kind(records, "saved")
        files = (
            {str(name): str(digest) for name, digest in saved[-1]["files"].items()} if saved else {}
        )
    if not files or spent != planned.rounds:
        raise UserError(
            f"{run}: is not finished: {spent} of {planned.rounds} rounds are spent; resume it, and "
            "train on from it then"
        )
    if planned.exposed:
        raise UserError(f"{run}: has no guarantee ({planned.exposed}), so none can go on from it")
    ledger.entry(planned.run)
    check_mark(ledger.folder, planned.run, path, seals, spent)
    refuse_other_files(run, files)
    for past in planned.model_runs:
        refuse_other_run(ledger, past)
    return planned.model_runs


def run_as_ancestors(planned: PlannedRun) -> tuple[Ancestor, ...]:
    """The entries of a run in the lineage of its model: its public text, if any, and its corpus."""
    run = Ancestor(
        planned.run,
        planned.method,
        planned.shape.digest,
        planned.setup.texts,
        planned.setup.vocabulary,
    )
    text = planned.setup.public
    if text is None:
        return (run,)
    return Ancestor(planned.run, "noiseless", "", words=_PUBLIC, public=text.digest), run


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
    return (*(Ancestor(**fields) for fields in planned.lineage), *run_as_ancestors(planned))
