"""The certificate: what a run guarantees, in words and numbers, checkable by a third party.

Only proven numbers enter it. `delta`, `setup`, `versions`, `created` and the counts of `incidence`
are stated by whoever issues it; all else follows from these and the run's ledger, and `verify`
computes it anew. What is stated cannot be verified: a false statement that agrees with itself
passes.
"""

import dataclasses
import datetime
import decimal
import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

import uedp
from uedp.accounting.chain import read
from uedp.accounting.ledger import RUN_LEDGER, from_record, planned_vocabulary, spent_rounds
from uedp.accounting.proven import Alg, Missed, Profile, Rotation, UserLevel, epsilon
from uedp.accounting.vocabulary import MissedInVocabulary, VocabularyRelease
from uedp.errors import UserError

CERTIFICATE = "certificate.json"
MISSED_HOLDERS = (1, 2, 5, 10)

UNIT = {
    "rotation": "one user together with one sensitive entity: all text the user wrote, and all "
    "text of anyone that mentions the entity; a sentence with no detected entity counts as one",
    "user-level": "one user: all text the user wrote. Entities that several users mention are not "
    "protected",
    "uedp-alg": "one user together with one sensitive entity that at most the stated number of "
    "other users mention",
}
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
    "what other runs on the same corpus add (the ledger of the corpus keeps the sum)",
)

Origin = Literal["public", "from the corpus, not covered", "differentially private"]
PRIVATE_VOCABULARY: Origin = "differentially private"

Labels = Literal["none", "declared", "from the corpus, not covered"]
Probability = Annotated[float, Field(ge=0, le=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Setup(_Strict):
    """What cannot be recomputed and must be stated. What is not covered is a caveat."""

    noise_source: Literal["cipher", "fixed seed"] = "cipher"
    # differentially private exactly if one is in the ledger, where it is charged
    vocabulary: Origin = "public"
    # the names of what a classifier tells apart
    labels: Labels = "none"
    # of the passes; sums, norms, clip factors and noise are float32 or better
    precision: Literal["float32", "bfloat16"] = "float32"
    # of the model that the run began with
    earlier_runs: Literal["none known", "on other corpora"] = "none known"
    chosen_by: str = "clip bounds, rates and schedule: not stated"
    # for missed mentions; null: nothing bounds the sentences, or the share is the entity's
    sentences_per_user: Annotated[int, Field(ge=1)] | None = None
    sentence_share: Annotated[float, Field(gt=0, le=2)] | None = None


class Shape(_Strict):
    """The incidence the guarantee is about."""

    digest: str
    users: int
    sentences: int
    entities: int


class MissedMention(_Strict):
    """Epsilon for an entity that was missed, or has another id, in some users' text."""

    users: int
    epsilon: float | None


class Certificate(_Strict):
    """What a run guarantees. An epsilon of null means: none that is finite."""

    kind: Literal["uedp certificate"] = "uedp certificate"
    format: Literal[1] = 1
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
    method: str
    parameters: dict[str, float | int | bool | None]
    rounds_planned: int
    rounds_spent: int
    setup: Setup
    incidence: Shape
    run: str
    ledger_seal: str
    versions: dict[str, str]
    created: str


def issue(folder: Path, delta: float, shape: Shape, setup: Setup | None = None) -> Certificate:
    """Certify the run in a folder from its ledger, and write `certificate.json` beside it."""
    certificate = _compute(
        folder,
        delta,
        shape,
        setup or Setup(),
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        versions={
            "uedp": uedp.__version__,
            "dp-accounting": version("dp-accounting"),
            "python": platform.python_version(),
        },
    )
    target = folder / CERTIFICATE
    partial = target.with_suffix(".partial")
    partial.write_text(certificate.model_dump_json(indent=2) + "\n")
    partial.replace(target)
    return certificate


def load(folder: Path) -> Certificate:
    path = folder / CERTIFICATE
    if not path.is_file():
        raise UserError(f"{path}: no certificate; is this the folder of a run?")
    try:
        return Certificate.model_validate_json(path.read_text())
    except (ValidationError, UnicodeDecodeError) as error:
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            field = ".".join(map(str, first["loc"])) or "the file"
            raise UserError(f"{path}: {field} is wrong: {first['msg']}") from None
        raise UserError(f"{path}: not UTF-8 text") from None


def verify(folder: Path) -> Certificate:
    """Recompute a certificate from the run's ledger; raises with the fields that differ.

    Guarantees:
      - a change of any byte of the ledger, or of any field of the certificate that follows from
        the ledger and what is stated, is found (of an epsilon: by more than a millionth)
      - so is a change of `delta`, or of what `setup` says of noise, precision, words, labels (that
        they came from the corpus) and sentences, unless every field that follows from it is
        changed to agree
      - `created`, `versions`, and the names and counts that nothing follows from (`chosen_by`,
        the numbers of users, sentences and entities) are as stated
    """
    claimed = load(folder)
    true = _compute(
        folder,
        claimed.delta,
        claimed.incidence,
        claimed.setup,
        created=claimed.created,
        versions=claimed.versions,
    )
    wrong = [
        f"{name} is {_brief(theirs)}, not {_brief(mine)}"
        for name in type(claimed).model_fields
        if not _alike(mine := getattr(true, name), theirs := getattr(claimed, name))
    ]
    if wrong:
        raise UserError(
            f"{folder / CERTIFICATE}: by the ledger, at delta {claimed.delta:g}: {'; '.join(wrong)}"
        )
    return claimed


def schema() -> dict[str, Any]:
    """The JSON schema of a certificate."""
    return Certificate.model_json_schema()


def _compute(
    folder: Path, delta: float, shape: Shape, setup: Setup, created: str, versions: dict[str, str]
) -> Certificate:
    records, seal = read(folder / RUN_LEDGER)
    plan = next((record for record in records if record.get("kind") == "plan"), None)
    if plan is None:
        raise UserError(f"{folder / RUN_LEDGER}: holds no plan; the run never began")
    try:
        profile, rounds, spent = from_record(plan["profile"]), plan["rounds"], spent_rounds(records)
        run, digest, vocabulary = plan["run"], plan["incidence"], planned_vocabulary(plan)
    except (KeyError, TypeError) as error:
        raise UserError(f"{folder / RUN_LEDGER}: not the ledger of a run: {error}") from None
    if digest != shape.digest:
        raise UserError(f"{folder / CERTIFICATE}: incidence.digest is not the one in the ledger")
    if spent > rounds:
        raise UserError(f"{folder / RUN_LEDGER}: {spent} rounds spent, {rounds} planned")
    if (setup.vocabulary == PRIVATE_VOCABULARY) != (vocabulary is not None):
        planned = "no private vocabulary" if vocabulary is None else "a private vocabulary"
        raise UserError(
            f"{folder / CERTIFICATE}: setup.vocabulary is {setup.vocabulary!r}, but the ledger has "
            f"{planned}"
        )
    value = epsilon(profile, rounds, delta, *_once(vocabulary))
    method = plan["profile"]["method"]
    caveats = _caveats(setup)
    private = value < float("inf") and setup.noise_source != "fixed seed"
    return Certificate(
        statement=statement(method, value, delta, private),
        private=private,
        unit=UNIT[method],
        adjacency=ADJACENCY,
        not_protected=NOT_PROTECTED,
        caveats=caveats,
        delta=delta,
        epsilon=_finite(value),
        epsilon_user_alone=_finite(_user_alone(profile, rounds, delta, vocabulary)),
        missed_mentions=_missed(profile, rounds, delta, setup, vocabulary),
        method=method,
        parameters=_parameters(plan),
        rounds_planned=rounds,
        rounds_spent=spent,
        setup=setup,
        incidence=shape,
        run=run,
        ledger_seal=seal,
        versions=versions,
        created=created,
    )


def statement(method: str, value: float, delta: float, private: bool) -> str:
    """The guarantee in one sentence."""
    if not private:
        return "This run has no privacy guarantee."
    return f"The model is ({rounded(value)}, {delta:g})-differentially private for {UNIT[method]}."


def rounded(value: float, digits: int = 4, down: bool = False) -> str:
    """A number in so many digits; up by default, for an epsilon must not promise too much."""
    context = decimal.Context(digits, decimal.ROUND_FLOOR if down else decimal.ROUND_CEILING)
    return f"{float(context.create_decimal(repr(value))):.{digits}g}"


def _once(release: Profile | None) -> tuple[tuple[Profile, int], ...]:
    return () if release is None else ((release, 1),)


def _parameters(plan: dict[str, Any]) -> dict[str, float | int | bool | None]:
    rounds = {key: value for key, value in plan["profile"].items() if key != "method"}
    words = plan.get("vocabulary", {})
    # "words per user" says by itself what it is of
    return rounds | {k if "words" in k else f"vocabulary_{k}": v for k, v in words.items()}


def _user_alone(
    profile: Profile, rounds: int, delta: float, vocabulary: VocabularyRelease | None
) -> float:
    if isinstance(profile, Alg):
        alone: Profile = dataclasses.replace(profile, holders=0)
    elif isinstance(profile, Rotation | UserLevel):
        alone = UserLevel(profile.noise, profile.user_rate)
    else:
        raise TypeError(type(profile).__name__)
    return epsilon(alone, rounds, delta, *_once(vocabulary and vocabulary.user_alone()))


def _missed(
    profile: Profile,
    rounds: int,
    delta: float,
    setup: Setup,
    vocabulary: VocabularyRelease | None,
) -> tuple[MissedMention, ...]:
    if not isinstance(profile, Rotation):
        return ()
    # without a bound, a user's update may turn around: a shift of 2
    per_user = setup.sentences_per_user or 1
    share = 2.0 if setup.sentences_per_user is None else setup.sentence_share
    share = profile.entity_share if share is None else share
    table = []
    for users in MISSED_HOLDERS:
        missed = Missed(profile, users, per_user, share)
        words = vocabulary and MissedInVocabulary(vocabulary, users)
        value = epsilon(missed, rounds, delta, *_once(words))
        table.append(MissedMention(users=users, epsilon=_finite(value)))
    return tuple(table)


def _caveats(setup: Setup) -> tuple[str, ...]:
    caveats = []
    if setup.noise_source == "fixed seed":
        caveats.append("the noise came from a fixed seed: whoever knows it can remove the noise")
    if setup.vocabulary == "from the corpus, not covered":
        caveats.append("the vocabulary was taken from the corpus and is not covered")
    if setup.precision == "bfloat16":
        caveats.append("gradients were computed in half precision: its rounding is not covered")
    if setup.labels == "from the corpus, not covered":
        caveats.append("which labels there are was taken from the corpus and is not covered")
    if setup.earlier_runs == "on other corpora":
        caveats.append(
            "the model went through other runs before, on other corpora: what it learned there is "
            "not covered, also if their texts are in part the same"
        )
    if setup.chosen_by == Setup.model_fields["chosen_by"].default:
        caveats.append("who chose the clip bounds and rates, and on which data, is not stated")
    return tuple(caveats)


def _finite(value: float) -> float | None:
    return value if value < float("inf") else None


def _alike(mine: object, theirs: object) -> bool:
    """Equal, numbers up to the last digits that another processor may round differently."""
    if isinstance(mine, float) and isinstance(theirs, float):
        return abs(mine - theirs) <= 1e-6 * max(abs(mine), abs(theirs))
    if isinstance(mine, tuple) and isinstance(theirs, tuple):
        return len(mine) == len(theirs) and all(map(_alike, mine, theirs))
    if isinstance(mine, MissedMention) and isinstance(theirs, MissedMention):
        return mine.users == theirs.users and _alike(mine.epsilon, theirs.epsilon)
    return mine == theirs


def _brief(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 80 else text[:77] + "..."
