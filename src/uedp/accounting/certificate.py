"""The certificate: what a run guarantees, in words and numbers, checkable by a third party.

Only proven numbers enter it. All of it but `versions` and `created` follows from the run's ledger;
`verify` recomputes it and compares the model's files. The ledger itself is a chain that anybody
could write: only a signature shows that it is the one its signatory saw.
"""

import datetime
import json
import platform
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError

import uedp
from uedp.accounting.chain import Record, of_kind, read_chain
from uedp.accounting.decisions import PRIVATE_VOCABULARY, Setup, Shape, StrictModel
from uedp.accounting.growth import Growth, PastRun, growth_lines
from uedp.accounting.ledger import (
    RUN_LEDGER,
    CorpusLedger,
    CorpusTotal,
    PlannedRun,
    first_difference,
    planned_run,
    refusing_malformed,
    spent_rounds,
    total_of,
)
from uedp.accounting.marks import check_mark
from uedp.accounting.model_files import names_within, refuse_other_files
from uedp.accounting.proven import epsilon
from uedp.accounting.signature import SIGNATURE, check_signature
from uedp.accounting.statement import (
    ADJACENCY,
    MissedMention,
    caveats,
    finite,
    missed_line,
    missed_table,
    not_protected,
    statement,
    unit,
)
from uedp.errors import UserError
from uedp.files import write_atomically
from uedp.strict import parse_json

CERTIFICATE = "certificate.json"


class Certificate(StrictModel):
    """The guarantee of a run. An epsilon of null means: no finite epsilon.

    `files` are those of the model, by SHA-256; there are none while rounds are left. `growth` is
    the guarantee by epochs, of a model that was trained on, or on a corpus that was extended: then
    `epsilon` is the worst case, over all runs on the corpus that the model went through.
    """

    kind: Literal["uedp certificate"] = "uedp certificate"
    format: Literal[2] = 2
    statement: str
    private: bool
    unit: str
    adjacency: str
    not_protected: tuple[str, ...]
    caveats: tuple[str, ...]
    delta: Annotated[float, Field(ge=0, le=1)]
    epsilon: float | None
    epsilon_user_alone: float | None
    missed_mentions: tuple[MissedMention, ...]
    corpus_total: CorpusTotal | None
    growth: Growth | None = None
    method: str
    parameters: dict[str, float | int | bool | None]
    rounds_planned: int
    rounds_spent: int
    setup: Setup
    incidence: Shape
    run: str
    files: Annotated[dict[str, str], AfterValidator(names_within)]
    ledger_seal: str
    versions: dict[str, str]
    created: str

    @property
    def missed_line(self) -> str:
        """The epsilon where the detector missed the entity; empty without a guarantee."""
        return missed_line(self.missed_mentions) if self.private else ""


def issue(folder: Path, warn: Callable[[str], object] = warnings.warn) -> Certificate:
    """Certify the run in a folder from its ledger, and write `certificate.json` beside it.

    Guarantees:
      - a certificate that already says the same is left as it is, with its signature
      - a signature under a certificate that says something else is removed, and `warn` is told
    """
    versions = {name: version(name) for name in ("numpy", "scipy")}
    certificate = _compute(
        folder,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        versions={"uedp": uedp.__version__, "python": platform.python_version(), **versions},
    )
    with suppress(UserError):  # there is none yet, or it cannot be read
        before = load_certificate(folder)
        undated = {"created": before.created, "versions": before.versions}
        if not _differences(certificate.model_copy(update=undated), before):
            return before
    write_atomically(folder / CERTIFICATE, certificate.model_dump_json(indent=2) + "\n")
    signature = folder / SIGNATURE
    if signature.is_file():
        signature.unlink()
        warn(f"{signature}: removed, its certificate was replaced by a new one; sign that one")
    return certificate


def load_certificate(folder: Path) -> Certificate:
    path = folder / CERTIFICATE
    if not path.is_file():
        raise UserError(f"{path}: no certificate; is this the folder of a run?")
    try:
        text = path.read_text(encoding="utf-8")
        certificate = Certificate.model_validate_json(text)
        parse_json(text)  # refuses a field that stands twice: others may read the other one
        return certificate
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "the file"
        raise UserError(f"{path}: {field} is wrong: {first['msg']}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8 text") from None
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None


def schema() -> dict[str, Any]:
    """The JSON schema of a certificate."""
    return Certificate.model_json_schema()


def verify(folder: Path, public_key: Path | None = None, corpus: Path | None = None) -> Certificate:
    """Recompute a certificate from the run's ledger; raises with the fields that differ.

    Guarantees:
      - a change of any byte of the ledger, or of any field of the certificate but `created` and
        `versions`, is detected (of an epsilon: by more than a millionth)
      - a file of the model that was changed, removed, or added beside the certified ones is too
      - with `public_key`, so is any byte of the certificate that was changed since it was signed
      - with `corpus`, so is a ledger that was cut or replaced since, and a sum over the runs on the
        corpus that its ledger does not give
    """
    claimed = load_certificate(folder)
    if public_key is not None:
        check_signature(folder / CERTIFICATE, public_key)
    if wrong := _differences(_compute(folder, claimed.created, claimed.versions), claimed):
        raise UserError(f"{folder / CERTIFICATE}: by the ledger, {'; '.join(wrong)}")
    refuse_other_files(folder, claimed.files)
    if corpus is not None:
        _compare_with_corpus(folder, claimed, corpus)
    return claimed


def not_checked(
    certificate: Certificate, signed: bool, corpus: bool, public: bool = False
) -> tuple[str, ...]:
    """The questions that a verification leaves open, for the person who relies on it."""
    text = certificate.setup.public
    federated = certificate.setup.holders == "clients"
    checked = {
        "who issued this: the ledger is a chain that anybody can write anew from its first line; "
        "sign the certificate, and verify it with `public_key=...`": signed,
        "whether rounds were repeated with a ledger that was cut, and whether the corpus is the "
        "one that is named: verify it with `corpus=...`": corpus,
        "a model: none is certified, the run is not finished": bool(certificate.files),
        "whether the public text is the one that is named: verify it with `public=...`": (
            public or text is None
        ),
        "that the public text is public: somebody declared it so": text is None,
        "that clients registered which of their sentences mention which entity, and divided the "
        "shares of entities among these": not federated,
    }
    return (
        *(question for question, answered in checked.items() if not answered),
        "that the code which ran was unmodified, and that the weights are what its rounds made",
        "that texts belong to the users they are said to belong to, and that entities were found",
        "that rounding which depends on the batch stays within `rounding_margin`: the noise is "
        "raised for it, but the margin was measured, not proven",
        "what the model had learned before this run, beyond what its lineage says",
        "runs on copies of the texts elsewhere",
    )


def _compute(folder: Path, created: str, versions: dict[str, str]) -> Certificate:
    path = folder / RUN_LEDGER
    records, seals = read_chain(path)
    planned = planned_run(path, records)
    with refusing_malformed(path, "run"):
        spent = spent_rounds(records)
        (plan, *_), saved = of_kind(records, "plan"), of_kind(records, "saved")
        saved_files = saved[-1]["files"].items() if saved else ()
        files = names_within({str(name): str(digest) for name, digest in saved_files})
        resumed = [
            first_difference(plan["setup"], record["setup"], "setup")
            for record in of_kind(records, "resume")
        ]
        totals = [CorpusTotal.from_record(record) for record in of_kind(records, "corpus")]
    _refuse_contradictions(path, planned, spent, bool(files))
    _refuse_public_out_of_order(path, records, planned, spent)
    if any(resumed):
        changed = next(filter(None, resumed))
        raise UserError(f"{path}: rounds were computed with another setup than planned: {changed}")
    profile, setup, rounds, delta = planned.profile, planned.setup, planned.rounds, planned.delta
    assert profile is not None  # a ledger without one is malformed
    words, growth = planned.vocabulary, planned.growth
    value = epsilon(profile, rounds, delta, *planned.beside)
    first, *alone = [event for run in planned.model_runs for event in run.events_user_alone]
    private = value < float("inf") and setup.exposed is None
    lines = [statement(profile, value, delta, private, setup)]
    return Certificate(
        statement="\n".join([*lines, *(growth_lines(growth) if private else ())]),
        private=private,
        unit=unit(profile, setup.users),
        adjacency=ADJACENCY,
        not_protected=not_protected(setup, grown=bool(planned.epochs)),
        caveats=caveats(profile, setup, value),
        delta=delta,
        epsilon=finite(value),
        epsilon_user_alone=finite(epsilon(*first, delta, *alone)),
        missed_mentions=missed_table(profile, rounds, delta, setup, words, planned.beside_missed),
        corpus_total=totals[-1] if totals else None,
        growth=growth,
        method=profile.method,
        parameters=_parameters(plan, setup),
        rounds_planned=rounds,
        rounds_spent=spent,
        setup=setup,
        incidence=planned.shape,
        run=planned.run,
        files=files,
        ledger_seal=seals[-1],
        versions=versions,
        created=created,
    )


def _refuse_contradictions(path: Path, planned: PlannedRun, spent: int, saved: bool) -> None:
    if spent > planned.rounds:
        raise UserError(f"{path}: {spent} rounds spent, {planned.rounds} planned")
    if saved and spent < planned.rounds:
        raise UserError(f"{path}: has a model, but {planned.rounds - spent} rounds are left")
    stated = planned.setup.vocabulary
    made = any(run.vocabulary is not None for run in planned.model_runs)
    if (stated == "public") if made else (stated == PRIVATE_VOCABULARY):
        has = "a private vocabulary" if made else "no private vocabulary"
        raise UserError(f"{path}: setup.vocabulary is {stated!r}, but the plan has {has}")


def _refuse_public_out_of_order(
    path: Path, records: Sequence[Record], planned: PlannedRun, spent: int
) -> None:
    """Public text comes before the first round, in as many steps as were planned."""
    text = planned.setup.public
    with refusing_malformed(path, "run"):
        ended = [(record["before_round"], record["steps"]) for record in of_kind(records, "public")]
    expected = [] if text is None else [(0, text.steps)]
    if ended != expected and (ended or spent):
        raise UserError(
            f"{path}: setup.public does not agree with the records: training on public text ended "
            f"{_brief(ended)} (round, steps), not {_brief(expected)}"
        )


def _parameters(plan: Mapping[str, Any], setup: Setup) -> dict[str, float | int | bool | None]:
    rounds = {key: value for key, value in plan["profile"].items() if key != "method"}
    rounds["rounding_margin"] = setup.rounding_margin
    words = plan.get("vocabulary", {})
    # "words per user" says by itself what it is of
    return rounds | {k if "words" in k else f"vocabulary_{k}": v for k, v in words.items()}


def _compare_with_corpus(folder: Path, claimed: Certificate, corpus: Path) -> None:
    ledger = CorpusLedger(corpus)
    if not ledger.path.is_file():
        raise UserError(f"{ledger.path}: no such ledger; name the corpus the run was made on")
    ledger.entry(claimed.run)
    path = folder / RUN_LEDGER
    records, seals = read_chain(path)
    for past in planned_run(path, records).earlier:
        refuse_other_run(ledger, past)
    check_mark(corpus, claimed.run, path, seals, spent_rounds(records))
    total = claimed.corpus_total
    if total is None:
        return
    entered, seals = read_chain(ledger.path)
    if total.seal not in seals:
        raise UserError(
            f"{ledger.path}: is not the ledger that corpus_total was computed from; it was cut or "
            "replaced"
        )
    until = seals.index(total.seal) + 1
    true = total_of(entered[:until], seals[:until], total.delta)
    if wrong := _difference("corpus_total", true, total):
        raise UserError(f"{folder / CERTIFICATE}: by the ledger of the corpus, {wrong}")


def refuse_other_run(ledger: CorpusLedger, past: PastRun) -> None:
    """Refuse a run that a model is said to have gone through, if the corpus knows another one."""
    entry = ledger.entry(past.run)
    true = (entry.profile, entry.counted, entry.vocabulary, entry.incidence, entry.texts)
    stated = (past.profile, past.rounds, past.vocabulary, past.incidence, past.texts)
    if entry.exposed or not entry.closed or true != stated:
        raise UserError(
            f"{ledger.path}: run {past.run}, which the model went through, is not as it is stated: "
            "by the ledger of the corpus, it has other rounds, is not finished, or has no guarantee"
        )


def _differences(true: StrictModel, claimed: StrictModel) -> list[str]:
    """The fields that differ, with both values."""
    fields = type(true).model_fields
    compared = (_difference(name, getattr(true, name), getattr(claimed, name)) for name in fields)
    return [difference for difference in compared if difference]


def _difference(name: str, true: object, claimed: object) -> str | None:
    """A field that differs, named down to the part that does, with both values."""
    if isinstance(true, StrictModel) and isinstance(claimed, type(true)):
        return next((f"{name}.{inner}" for inner in _differences(true, claimed)), None)
    return None if _alike(true, claimed) else f"{name} is {_brief(claimed)}, not {_brief(true)}"


def _alike(true: object, claimed: object) -> bool:
    """Equal, numbers up to the last digits that another processor may round differently."""
    if isinstance(true, float) and isinstance(claimed, float):
        return abs(true - claimed) <= 1e-6 * max(abs(true), abs(claimed))
    if isinstance(true, tuple) and isinstance(claimed, tuple):
        return len(true) == len(claimed) and all(map(_alike, true, claimed))
    if isinstance(true, StrictModel) and isinstance(claimed, type(true)):
        return all(_alike(getattr(true, n), getattr(claimed, n)) for n in type(true).model_fields)
    if isinstance(true, dict) and isinstance(claimed, dict):
        return true.keys() == claimed.keys() and all(_alike(true[k], claimed[k]) for k in true)
    return true == claimed


def _brief(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 80 else text[:77] + "..."
