"""The certificate: what a run guarantees, in words and numbers, checkable by a third party.

Only proven numbers enter it. All of it but `versions` and `created` follows from the run's ledger,
which holds what was decided (`uedp.accounting.decisions`), what was spent, and the hashes of the
model's files; `verify` computes it anew and compares the files. The ledger itself is a chain that
anybody could write: only a signature tells that it is the one its signatory saw.
"""

import dataclasses
import datetime
import decimal
import json
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

import uedp
from uedp.accounting.chain import read, read_sealed
from uedp.accounting.decisions import (
    CORPUS_VOCABULARY,
    FOREIGN_VOCABULARY,
    PRIVATE_VOCABULARY,
    Labels,
    Origin,
    Setup,
    Shape,
    StrictModel,
    Users,
)
from uedp.accounting.ledger import (
    RUN_LEDGER,
    CorpusLedger,
    PlannedRun,
    first_difference,
    refusing_malformed,
    spent_rounds,
    total_of,
)
from uedp.accounting.marks import check_mark
from uedp.accounting.missed import MISSED_CASES, missed_epsilon, missed_words
from uedp.accounting.model_files import refuse_other_files
from uedp.accounting.profile import PrivacyEvent, Profile
from uedp.accounting.proven import epsilon
from uedp.accounting.signature import SIGNATURE, check_signature
from uedp.accounting.vocabulary import VocabularyRelease
from uedp.errors import UserError
from uedp.files import write_atomically
from uedp.strict import parse_json

__all__ = [
    "ADJACENCY",
    "CERTIFICATE",
    "PRIVATE_VOCABULARY",
    "Certificate",
    "Labels",
    "Origin",
    "Setup",
    "Shape",
    "issue",
    "load_certificate",
    "rounded",
    "schema",
    "statement",
    "verify",
]

CERTIFICATE = "certificate.json"

ADJACENCY = (
    "Compared with the same corpus with these texts emptied (replacing a text costs two steps)."
)
NOT_PROTECTED = (
    "that a user took part",
    "sentence counts",
    "which sentences carry detected entities",
    "which users and sentences share an anonymous entity",
    "edits that change detection or linking",
    "mentions missed or split over several ids (see `missed_mentions`)",
    "facts about an entity in sentences that do not name it",
    "evaluation data",
    "what the model had learned before this run",
    "what later runs on the same corpus add (`corpus_total` is the sum so far)",
    "coverage, where it is stated",
)

LARGE_EPSILON = 20  # an epsilon from which on a guarantee says little

Probability = Annotated[float, Field(ge=0, le=1)]


class MissedMention(StrictModel):
    """Epsilon for an entity that was missed in some sentences, which are emptied with the rest.

    `sentences_per_user` of null: all sentences of each of these users.
    """

    users: int
    sentences_per_user: int | None
    epsilon: float | None
    words: str


class Corpus(StrictModel):
    """What all runs on the corpus came to when the certificate was issued."""

    epsilon: float | None
    delta: Probability
    runs: int
    unit: str
    seal: str  # of the corpus's ledger


class Certificate(StrictModel):
    """What a run guarantees. An epsilon of null means: none that is finite.

    `files` are those of the model, by SHA-256; there are none while rounds are left.
    """

    kind: Literal["uedp certificate"] = "uedp certificate"
    format: Literal[2] = 2
    statement: str
    private: bool
    unit: str
    adjacency: str
    not_protected: tuple[str, ...]
    caveats: tuple[str, ...]
    delta: Probability
    epsilon: float | None
    epsilon_user_alone: float | None
    missed_mentions: tuple[MissedMention, ...]
    corpus_total: Corpus | None
    method: str
    parameters: dict[str, float | int | bool | None]
    rounds_planned: int
    rounds_spent: int
    setup: Setup
    incidence: Shape
    run: str
    files: dict[str, str]
    ledger_seal: str
    versions: dict[str, str]
    created: str

    @property
    def missed_line(self) -> str:
        """What holds where the detector missed the entity; nothing where nothing holds at all."""
        return missed_line(self.missed_mentions) if self.private else ""


def issue(folder: Path) -> Certificate:
    """Certify the run in a folder from its ledger, and write `certificate.json` beside it."""
    certificate = _compute(
        folder,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        versions={
            "uedp": uedp.__version__,
            "python": platform.python_version(),
            "numpy": version("numpy"),
            "scipy": version("scipy"),
        },
    )
    write_atomically(folder / CERTIFICATE, certificate.model_dump_json(indent=2) + "\n")
    (folder / SIGNATURE).unlink(missing_ok=True)  # it was under the one before
    return certificate


def load_certificate(folder: Path) -> Certificate:
    path = folder / CERTIFICATE
    if not path.is_file():
        raise UserError(f"{path}: no certificate; is this the folder of a run?")
    try:
        text = path.read_text(encoding="utf-8")
        found = Certificate.model_validate_json(text)
        parse_json(text)  # refuses a field that stands twice: others may read the other one
        return found
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "the file"
        raise UserError(f"{path}: {field} is wrong: {first['msg']}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8 text") from None
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None


def verify(folder: Path, public_key: Path | None = None, corpus: Path | None = None) -> Certificate:
    """Recompute a certificate from the run's ledger; raises with the fields that differ.

    Guarantees:
      - a change of any byte of the ledger, or of any field of the certificate but `created` and
        `versions`, is found (of an epsilon: by more than a millionth)
      - a file of the model that was changed, removed, or added beside the certified ones is found
      - with `public_key`, so is any byte of the certificate that was changed since it was signed
      - with `corpus`, so is a ledger that was cut or replaced since, and a sum over the runs on the
        corpus that its ledger does not give
    """
    claimed = load_certificate(folder)
    if public_key is not None:
        check_signature(folder / CERTIFICATE, public_key)
    true = _compute(folder, created=claimed.created, versions=claimed.versions)
    wrong = [
        difference
        for name in type(claimed).model_fields
        if (difference := _difference(name, getattr(true, name), getattr(claimed, name)))
    ]
    if wrong:
        raise UserError(f"{folder / CERTIFICATE}: by the ledger, {'; '.join(wrong)}")
    refuse_other_files(folder, claimed.files)
    if corpus is not None:
        _compare_with_corpus(folder, claimed, corpus)
    return claimed


def not_checked(certificate: Certificate, signed: bool, corpus: bool) -> tuple[str, ...]:
    """What a verification leaves open, for the person who relies on it."""
    unsigned = (
        "who issued this: the ledger is a chain that anybody can write anew from its first line; "
        "sign the certificate, and verify it with --public-key"
    )
    no_corpus = (
        "whether rounds were made again with a ledger that was cut, and whether the corpus is the "
        "one that is named: verify it with --corpus"
    )
    return (
        *(() if signed else (unsigned,)),
        *(() if corpus else (no_corpus,)),
        *(() if certificate.files else ("a model: none is certified, the run is not finished",)),
        "that the code which ran was unmodified, and that the weights are what its rounds made",
        "that texts belong to the users they are said to belong to, and that entities were found",
        "that rounding which depends on the batch stays within `rounding_margin`: the noise is "
        "raised for it, but the margin was measured, not proven",
        "what the model had learned before this run, beyond what its lineage says",
        "runs on copies of the texts elsewhere",
    )


def _compare_with_corpus(folder: Path, claimed: Certificate, corpus: Path) -> None:
    ledger = CorpusLedger(corpus)
    if not ledger.path.is_file():
        raise UserError(f"{ledger.path}: no such ledger; name the corpus the run was made on")
    if claimed.run not in ledger.runs():
        raise UserError(f"{ledger.path}: has no run {claimed.run}; was it made on another corpus?")
    path = folder / RUN_LEDGER
    records, seals = read_sealed(path)
    check_mark(corpus, claimed.run, path, seals, spent_rounds(records))
    total = claimed.corpus_total
    if total is None:
        return
    entered, marks = read_sealed(ledger.path)
    if total.seal not in marks:
        raise UserError(
            f"{ledger.path}: is not the ledger that corpus_total was computed from; it was cut or "
            "replaced"
        )
    upto = marks.index(total.seal) + 1
    true = _corpus_total(dataclasses.asdict(total_of(entered[:upto], total.seal, total.delta)))
    if wrong := _difference("corpus_total", true, total):
        raise UserError(f"{folder / CERTIFICATE}: by the ledger of the corpus, {wrong}")


def schema() -> dict[str, Any]:
    """The JSON schema of a certificate."""
    return Certificate.model_json_schema()


def _compute(folder: Path, created: str, versions: dict[str, str]) -> Certificate:
    path = folder / RUN_LEDGER
    records, seal = read(path)
    plan = next((record for record in records if record.get("kind") == "plan"), None)
    if plan is None:
        raise UserError(f"{path}: holds no plan; the run never began")
    with refusing_malformed(path, "run"):
        planned, spent = PlannedRun.read(plan), spent_rounds(records)
        changed = [
            difference
            for record in records
            if record["kind"] == "resume"
            and (difference := first_difference(plan["setup"], record["setup"], "setup"))
        ]
        files = _saved_files(records)
        total = _corpus_total(_last(records, "corpus"))
    if changed:
        raise UserError(
            f"{path}: rounds were computed with another setup than was planned: {changed[0]}"
        )
    profile, setup, rounds, delta = planned.profile, planned.setup, planned.rounds, planned.delta
    assert profile is not None  # `PlannedRun.read` needs one
    if spent > rounds:
        raise UserError(f"{path}: {spent} rounds spent, {rounds} planned")
    if files and spent < rounds:
        raise UserError(f"{path}: has a model, but {rounds - spent} rounds are left")
    stated = setup.vocabulary
    if (stated == PRIVATE_VOCABULARY) if planned.vocabulary is None else (stated == "public"):
        has = "no private vocabulary" if planned.vocabulary is None else "a private vocabulary"
        raise UserError(f"{path}: setup.vocabulary is {stated!r}, but the plan has {has}")
    words = planned.vocabulary
    value = epsilon(profile, rounds, delta, *_once(words))
    private = value < float("inf") and setup.exposed is None
    return Certificate(
        statement=statement(profile, value, delta, private, setup),
        private=private,
        unit=unit(profile, setup.users),
        adjacency=ADJACENCY,
        not_protected=NOT_PROTECTED,
        caveats=caveats(profile, setup, value),
        delta=delta,
        epsilon=_finite(value),
        epsilon_user_alone=_finite(
            epsilon(profile.user_alone(), rounds, delta, *_once(words and words.user_alone()))
        ),
        missed_mentions=missed_table(profile, rounds, delta, setup, words),
        corpus_total=total,
        method=profile.method,
        parameters=_parameters(plan, setup),
        rounds_planned=rounds,
        rounds_spent=spent,
        setup=setup,
        incidence=planned.shape,
        run=planned.run,
        files=files,
        ledger_seal=seal,
        versions=versions,
        created=created,
    )


def _last(records: list[dict[str, Any]], kind: str) -> dict[str, Any] | None:
    return next((record for record in reversed(records) if record["kind"] == kind), None)


def _saved_files(records: list[dict[str, Any]]) -> dict[str, str]:
    saved = _last(records, "saved")
    return {} if saved is None else {str(name): str(seal) for name, seal in saved["files"].items()}


def _corpus_total(record: Mapping[str, Any] | None) -> Corpus | None:
    if record is None:
        return None
    fields = {name: record[name] for name in Corpus.model_fields}
    if fields["epsilon"] is not None:
        fields["epsilon"] = _finite(fields["epsilon"])
    return Corpus(**fields)


def unit(profile: Profile, users: Users = "as given") -> str:
    """Who or what is protected."""
    return profile.unit_of_groups if users == "assigned at random" else profile.unit


def statement(
    profile: Profile, value: float, delta: float, private: bool, setup: Setup | None = None
) -> str:
    """The guarantee in one sentence; with a setup, lines follow: which entities, and caveats."""
    users: Users = "as given" if setup is None else setup.users
    sentence = (
        f"The model is ({rounded(value)}, {delta:g})-differentially private for "
        f"{unit(profile, users)}."
        if private
        else "This run has no privacy guarantee."
    )
    if setup is None:
        return sentence
    lines = [sentence]
    if private and profile.protects_entities and setup.entities is not None:
        lines.append(f"Entities: {setup.entities.describe()}.")
    return "\n".join([*lines, *(f"Caveat: {text}." for text in caveats(profile, setup, value))])


def rounded(value: float, digits: int = 4, down: bool = False) -> str:
    """A number in so many digits; up by default, for an epsilon must not promise too much."""
    context = decimal.Context(digits, decimal.ROUND_FLOOR if down else decimal.ROUND_CEILING)
    return f"{float(context.create_decimal(repr(value))):.{digits}g}"


def _once(release: PrivacyEvent | None) -> tuple[tuple[PrivacyEvent, int], ...]:
    return () if release is None else ((release, 1),)


def _parameters(plan: dict[str, Any], setup: Setup) -> dict[str, float | int | bool | None]:
    rounds = {key: value for key, value in plan["profile"].items() if key != "method"}
    rounds["rounding_margin"] = setup.rounding_margin
    words = plan.get("vocabulary", {})
    # "words per user" says by itself what it is of
    return rounds | {k if "words" in k else f"vocabulary_{k}": v for k, v in words.items()}


def missed_table(
    profile: Profile | None,
    rounds: int,
    delta: float,
    setup: Setup,
    vocabulary: VocabularyRelease | None,
) -> tuple[MissedMention, ...]:
    if profile is None or profile.missed(1, 1) is None:
        return ()
    most = setup.sentences_per_user
    return tuple(
        MissedMention(
            users=users,
            sentences_per_user=sentences,
            epsilon=_finite(
                missed_epsilon(profile, rounds, delta, users, sentences, most, vocabulary)
            ),
            words=missed_words(users, sentences),
        )
        for users, sentences in MISSED_CASES
    )


def missed_line(table: Sequence[MissedMention]) -> str:
    """What stands right below a statement: what holds where the detector missed the entity."""
    cases = [
        f"in {row.words}: epsilon "
        + ("none that is finite" if row.epsilon is None else rounded(row.epsilon))
        for row in table
    ]
    return f"If the detector missed the entity {'; '.join(cases)}." if cases else ""


def caveats(profile: Profile, setup: Setup, value: float) -> tuple[str, ...]:
    """What the number does not cover, one sentence each."""
    found = []
    if setup.noise_source == "fixed seed":
        found.append("the noise came from a fixed seed: whoever knows it can remove the noise")
    if setup.vocabulary == CORPUS_VOCABULARY:
        found.append(
            "the vocabulary or the tokenizer was made from this corpus, outside of what is charged "
            "here: which words are in it is not covered"
        )
    if setup.vocabulary == FOREIGN_VOCABULARY:
        found.append(
            "the vocabulary or the tokenizer was made from another corpus: what it tells of that "
            "is not covered, also if the texts are in part the same"
        )
    if value == float("inf"):
        found.append("with this noise and so many rounds there is no finite epsilon")
    if LARGE_EPSILON < value < float("inf"):
        found.append(
            f"an epsilon above {LARGE_EPSILON} says little: it bounds odds by a factor of e^epsilon"
        )
    if setup.users == "assigned at random":
        found.append(
            "who wrote what is not known: users are groups of texts put together at random, and "
            "people are not protected beyond the texts in one group"
        )
    if setup.entities is None and profile.protects_entities:
        found.append("which entities were looked for, and by which detectors, is not stated")
    if setup.labels == "from the corpus, not covered":
        found.append("which labels there are was taken from the corpus and is not covered")
    if setup.earlier_runs == "on other corpora":
        found.append(
            "the model went through other runs before, on other corpora: what it learned there is "
            "not covered, also if their texts are in part the same"
        )
    if setup.chosen_by == Setup.model_fields["chosen_by"].default:
        found.append("who chose the clip bounds and rates, and on which data, is not stated")
    return tuple(found)


def _finite(value: float) -> float | None:
    return value if value < float("inf") else None


def _difference(name: str, mine: object, theirs: object) -> str | None:
    """What of a field is not as it should be, named down to the part that differs."""
    if _alike(mine, theirs):
        return None
    if isinstance(mine, Setup | Shape | Corpus) and isinstance(theirs, type(mine)):
        for inner in type(mine).model_fields:
            found = _difference(f"{name}.{inner}", getattr(mine, inner), getattr(theirs, inner))
            if found:
                return found
    return f"{name} is {_brief(theirs)}, not {_brief(mine)}"


def _alike(mine: object, theirs: object) -> bool:
    """Equal, numbers up to the last digits that another processor may round differently."""
    if isinstance(mine, float) and isinstance(theirs, float):
        return abs(mine - theirs) <= 1e-6 * max(abs(mine), abs(theirs))
    if isinstance(mine, tuple) and isinstance(theirs, tuple):
        return len(mine) == len(theirs) and all(map(_alike, mine, theirs))
    if isinstance(mine, StrictModel) and isinstance(theirs, type(mine)):
        return all(_alike(getattr(mine, n), getattr(theirs, n)) for n in type(mine).model_fields)
    if isinstance(mine, dict) and isinstance(theirs, dict):
        return mine.keys() == theirs.keys() and all(_alike(mine[k], theirs[k]) for k in mine)
    return mine == theirs


def _brief(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 80 else text[:77] + "..."
