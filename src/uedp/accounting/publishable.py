"""What may leave the curator: a whitelist of the certificate, with a reason for every field.

A public report and a privacy card are rendered from `PublicFacts` and nothing else. A certificate
states more: counts of the corpus without noise, recall on a person's marks, and words that people
typed (names of files, models and persons).
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from uedp.accounting.attacker import FALSE_ALARMS, from_pair, strength_as_certified
from uedp.accounting.attacker import success_bound as success_bound
from uedp.accounting.certificate import CERTIFICATE, Certificate, load_certificate
from uedp.accounting.decisions import (
    BY_PLANNER,
    NOT_STATED,
    OTHERS_BY,
    Entities,
    Holders,
    Labels,
    Origin,
    Precision,
    Setup,
    StrictModel,
    Users,
)
from uedp.accounting.ledger import RUN_LEDGER
from uedp.accounting.model_files import model_files
from uedp.accounting.profile import Profile, profile_type
from uedp.accounting.signature import SIGNATURE
from uedp.accounting.statement import caveats, rounded
from uedp.entities.categories import BASE
from uedp.entities.detectors import BUILT_IN
from uedp.entities.lists import PUBLIC_LISTS

# Fields of a certificate that are published, and why each may be. A field of a part is named with
# a dot; one that is not listed in either table fails a test.
PUBLISHED: Mapping[str, str] = {
    "private": "follows from the plan",
    "unit": "fixed words of the method",
    "adjacency": "fixed words",
    "not_protected": "fixed words",
    "delta": "the guarantee itself, and at most the order of magnitude of the users",
    "epsilon": "the guarantee itself: a person's target, rounded up",
    "epsilon_user_alone": "the guarantee itself, in two digits, rounded up",
    "missed_mentions": "the guarantee itself, in two digits, rounded up",
    "corpus_total.epsilon": "the guarantee of all runs together, rounded up",
    "corpus_total.delta": "belongs to that epsilon",
    "corpus_total.runs": "counts what the curator did, not what the corpus holds",
    "corpus_total.unit": "fixed words",
    "method": "a person's choice; left out where the planner chose it by counts",
    "parameters": (
        "rates, share and noise as a person chose them; left out where the planner chose any by "
        "counts, or where counts are among them. What they allow an attacker is the guarantee "
        "itself, in whole per cent, rounded up"
    ),
    "rounds_planned": "as for `parameters`",
    "caveats": "written anew from published fields only",
    "setup.noise_source": "one of two words",
    "setup.precision": "one of three words",
    "setup.users": "one of two words",
    "setup.holders": "one of two words",
    "setup.vocabulary": "one of four words",
    "setup.labels": "one of three words",
    "setup.earlier_runs": "one of two words",
    "setup.chosen_by": "which settings the planner chose by counts; a person's words are left out",
    "setup.sentences_per_user": "as for `parameters`",
    "setup.public.digest": "of text that somebody declared public",
    "setup.public.sentences": "of text that somebody declared public",
    "setup.public.steps": "of text that somebody declared public",
    "setup.public.sentences_per_step": "of text that somebody declared public",
    "setup.entities.detectors": "the kinds of uedp, and versions of public packages; no paths",
    "setup.entities.categories": "a person's choice among the categories of uedp",
    "setup.entities.propagated": "a person's choice",
    "setup.entities.public_lists": "the lists that are part of uedp",
    "setup.entities.lists": "which kinds of list a person gave, without their length or digest",
    "setup.entities.coverage": "whether it was measured, without the figures",
    "files": "names and hashes of the files that are published with the model",
    "ledger_seal": "a hash over digests of secret random keys: nothing can be tested against it",
    "versions.uedp": "public software",
    "created": "the day on which the certificate was issued",
}
WITHHELD: Mapping[str, str] = {
    "kind": "says that it is a certificate",
    "format": "of the certificate",
    "statement": "names detectors, models, lists and coverage; `PublicFacts.guarantee` replaces it",
    "corpus_total.by_epoch": "for the curator; the worst case is published as the total",
    "growth": "for the curator; the worst case is published as `epsilon`",
    "corpus_total.seal": "of a ledger that stays with the corpus",
    "rounds_spent": "equal to the planned ones in a finished run",
    "setup.rounding_margin": "gives the number of users away: it is a multiple of its root",
    "setup.texts": "a keyed digest, which only the curator can compare",
    "setup.public.name": "the name of a file, which may name a client",
    "setup.public.declared_by": "a person's words",
    "setup.entities.propagation": "a person's thresholds, perhaps tuned on the corpus",
    "incidence.digest": "a plain hash of who mentions what",
    "incidence.users": "counted in the corpus, without noise",
    "incidence.sentences": "counted in the corpus, without noise",
    "incidence.entities": "counted in the corpus, without noise",
    "run": "says to the second when training began; with `created`, how long it took",
    "versions": "of other software: says nothing about the guarantee",
}

_DIGITS, _FEWER_DIGITS = 3, 2
# of a profile's fields; any other, such as a number of holders, may be counted in the corpus
_SETTINGS = ("noise", "user_rate", "entity_share", "entity_rate", "extended_rate")
_NO_NUMBERS = ("extended_share", "reveal_draw", "rounding_margin")  # not published, not counted
# settings that the planner may choose (`uedp.methods.base`, whose import takes seconds)
CHOSEN = (
    *("user_rate", "rounds", "entity_share", "sentences_per_user", "delta", "method"),
    "update_clip",
)
# why settings are left out
CHOSEN_BY_COUNTS = "some were chosen by counts of the corpus"
FROM_COUNTS = "this method computes its epsilon from counts of the corpus"
SEVERAL_RUNS = "the model went through several runs on these texts, each with settings of its own"
_LISTS = {"public": "allow-list", "sensitive": "deny-list", "aliases": "alias list"}
_HASH = re.compile(r"[0-9a-f]{64}")
_FILE = re.compile(r"[A-Za-z0-9][\w./-]{0,100}")
_SIGNATURE = re.compile(r"[A-Za-z0-9+/=]{40,200}")
_VERSION = re.compile(r"\d[\w.+-]{0,30}")
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_PACKAGE = re.compile(
    r"\b(uedp|phonenumbers|spacy|stanza|transformers|presidio-analyzer"
    r"|[a-z]{2}_core_(?:web|news)_(?:sm|md|lg|trf)) (\d[\w.]{0,20})(?=,|$)"
)
_LANGUAGE = re.compile(r"[a-z]{2,3}(-[a-z]{2,8})?")
_OWN = "a detector of the curator's own"


class PublicMissed(StrictModel):
    """Epsilon where the entity was missed in the sentences that `words` says; null: not finite."""

    words: str
    epsilon: float | None


class PublicAttacker(StrictModel):
    """How often the best attacker is right at most, in whole per cent, rounded up.

    `success`: about two equally likely corpora. `found`: of those whose texts were used, at so many
    false alarms among the others.
    """

    success: float
    found: dict[str, float]


class PublicTotal(StrictModel):
    """The guarantee of all runs on the corpus together; null: no finite epsilon."""

    epsilon: float | None
    delta: float
    runs: int
    unit: str


class PublicDetector(StrictModel):
    """A detector by its kind, and the public packages that it consists of."""

    kind: str
    packages: tuple[str, ...] = ()


class PublishedText(StrictModel):
    """Text that was declared public and trained on first, without noise."""

    sha256: str
    sentences: int
    steps: int
    sentences_per_step: int


class PublicEntities(StrictModel):
    """What counted as a sensitive entity."""

    detectors: tuple[PublicDetector, ...]
    categories: tuple[str, ...]
    names_sought: bool
    propagated: bool
    lists: tuple[str, ...]
    public_lists: tuple[str, ...]
    coverage_measured: bool


class PublicFacts(StrictModel):
    """Everything that may be published about a run.

    `settings` are null where they were chosen by counts of the corpus or contain such; `withheld`
    says so. An epsilon of null means: no finite epsilon, or no guarantee.

    Guarantees:
      - a function of the certificate and the files beside it that are published with the model
      - nothing is counted or measured in the corpus, but what a private guarantee itself consists
        of: epsilons (rounded up) and delta, which depend on settings; `chosen_by_counts` names
        those of them that the planner chose
      - no word that a person typed: no path, no name of a model, file or person
    """

    private: bool
    finished: bool
    why_not: str | None  # why there is no guarantee
    unit: str
    protects_entities: bool
    adjacency: str
    not_protected: tuple[str, ...]
    caveats: tuple[str, ...]
    epsilon: float | None
    delta: float | None
    epsilon_user_alone: float | None
    attacker: PublicAttacker | None
    missed_mentions: tuple[PublicMissed, ...]
    corpus_total: PublicTotal | None
    method: str | None
    settings: dict[str, int | float] | None
    withheld: str | None
    chosen_by_counts: tuple[str, ...]
    noise_source: str | None
    precision: Precision | None
    users: Users | None
    holders: Holders | None
    vocabulary: Origin | None
    labels: Labels | None
    earlier_runs: str | None
    public_text: PublishedText | None
    entities: PublicEntities | None
    files: dict[str, str]
    ledger_seal: str | None
    signature: str | None
    uedp: str | None
    day: str | None

    @property
    def guarantee(self) -> str:
        """The guarantee in one sentence."""
        if not self.private or self.epsilon is None:
            return "This model has no privacy guarantee."
        pair = f"({self.epsilon:g}, {self.delta:g})"
        return f"The model is {pair}-differentially private for {self.unit}."

    @property
    def probability_factor(self) -> float | None:
        """How many times as likely anything is with the texts as with them blank, up to delta."""
        return None if self.epsilon is None else _up(math.exp(self.epsilon), _DIGITS)

    @property
    def attack_success(self) -> float | None:
        """The most often that an attacker is right about one of two equally likely corpora."""
        return None if self.attacker is None else self.attacker.success


def public_facts(run: Path) -> PublicFacts:
    """What may be published about the run in a folder."""
    path = run / SIGNATURE
    signature = path.read_text(encoding="ascii", errors="replace") if path.is_file() else None
    if (run / CERTIFICATE).is_file() or (run / RUN_LEDGER).is_file():
        return publishable(load_certificate(run), signature)
    return publishable(None, files=model_files(run))


def publishable(
    certificate: Certificate | None,
    signature: str | None = None,
    files: Mapping[str, str] | None = None,
) -> PublicFacts:
    """What may be published of a certificate; None: of a run without noise, which has none.

    Args:
        signature: the content of the signature file beside it.
        files: the hashes of a model's files, where no certificate has them.
    """
    if certificate is None:
        return _without_certificate(files or {})
    setup, profile = certificate.setup, profile_type(certificate.method)
    chosen, by_counts = _chosen_by_counts(setup)
    settings, withheld = _settings(certificate, by_counts)
    private, total = certificate.private, certificate.corpus_total
    value = math.inf if certificate.epsilon is None else certificate.epsilon
    signature = (signature or "").strip()
    return PublicFacts(
        private=private,
        finished=bool(certificate.files),
        why_not=None if private else setup.exposed or "the noise is too small for any bound",
        unit=certificate.unit,
        protects_entities=profile.protects_entities,
        adjacency=certificate.adjacency,
        not_protected=certificate.not_protected,
        caveats=caveats(cast(Profile, profile), _cleaned(setup, chosen, by_counts), value),
        epsilon=_up(certificate.epsilon, _DIGITS) if private else None,
        delta=certificate.delta if private else None,
        epsilon_user_alone=_up(certificate.epsilon_user_alone, _FEWER_DIGITS) if private else None,
        attacker=_attacker(certificate),
        missed_mentions=tuple(
            PublicMissed(words=row.words, epsilon=_up(row.epsilon, _FEWER_DIGITS))
            for row in certificate.missed_mentions
            if private
        ),
        corpus_total=None
        if total is None
        else PublicTotal(
            epsilon=_up(total.epsilon, _DIGITS),
            delta=total.delta,
            runs=total.runs,
            unit=total.unit,
        ),
        method=None if "method" in chosen else certificate.method,
        settings=settings,
        withheld=withheld,
        chosen_by_counts=chosen,
        noise_source=setup.noise_source,
        precision=setup.precision,
        users=setup.users,
        holders=setup.holders,
        vocabulary=setup.vocabulary,
        labels=setup.labels,
        earlier_runs=setup.earlier_runs,
        public_text=_public_text(setup),
        entities=None if setup.entities is None else _entities(setup.entities),
        files=_hashes(certificate.files),
        ledger_seal=_matching(_HASH, certificate.ledger_seal),
        signature=_matching(_SIGNATURE, signature),
        uedp=_matching(_VERSION, certificate.versions.get("uedp", "")),
        day=_matching(_DAY, certificate.created[:10]),
    )


def _attacker(certificate: Certificate) -> PublicAttacker | None:
    if not certificate.private or certificate.epsilon is None:
        return None
    strength = strength_as_certified(
        certificate.method,
        certificate.parameters,
        certificate.rounds_planned,
        from_pair(certificate.epsilon, certificate.delta),
    )
    return PublicAttacker(
        success=_percent_up(strength.success),
        found={f"{rate:g}": _percent_up(strength.power[rate]) for rate in FALSE_ALARMS},
    )


def _percent_up(share: float) -> float:
    """In whole per cent; above 99, where these would say nothing, in hundredths of one."""
    steps = 100 if share <= 0.99 else 10_000
    return min(math.ceil(round(share * steps, 9)), steps) / steps


def _without_certificate(files: Mapping[str, str]) -> PublicFacts:
    empty: dict[str, Any] = dict.fromkeys(PublicFacts.model_fields)
    nothing = ("not_protected", "caveats", "missed_mentions", "chosen_by_counts")
    return PublicFacts(
        **empty
        | dict.fromkeys(nothing, ())
        | {
            "private": False,
            "finished": True,
            "why_not": "it was trained without noise",
            "unit": "nobody",
            "protects_entities": False,
            "adjacency": "",
            "files": _hashes(files),
        }
    )


def _chosen_by_counts(setup: Setup) -> tuple[tuple[str, ...], bool]:
    """The settings that the planner chose, and whether it chose any, of known names or not."""
    words = {word.strip() for word in setup.chosen_by_planner.split(",")}
    return tuple(field for field in CHOSEN if field in words), bool(setup.chosen_by_planner)


def _settings(
    certificate: Certificate, by_counts: bool
) -> tuple[dict[str, int | float] | None, str | None]:
    """Rates, share, noise and rounds; or why they are left out."""
    if by_counts:
        return None, CHOSEN_BY_COUNTS
    if certificate.growth is not None and len(certificate.growth.runs) > 1:
        return None, SEVERAL_RUNS
    given = {
        name: value
        for name, value in certificate.parameters.items()
        if not name.startswith(("vocabulary_", "words_per_")) and (name, value) != ("margin", 0)
    }
    if given.keys() - {*_SETTINGS, *_NO_NUMBERS}:
        return None, FROM_COUNTS
    settings: dict[str, int | float] = {
        name: float(value) for name in _SETTINGS if (value := given.get(name)) is not None
    }
    settings["rounds"] = certificate.rounds_planned
    if certificate.setup.sentences_per_user is not None:
        settings["sentences_per_user"] = certificate.setup.sentences_per_user
    return settings, None


def _cleaned(setup: Setup, chosen: tuple[str, ...], by_counts: bool) -> Setup:
    """A setup for `caveats`, without anything that a person typed or that was measured."""
    others = "people named on the certificate" if setup.chooser_stated else NOT_STATED
    planner = f"{BY_PLANNER}: {', '.join(chosen) or 'not said which'}{OTHERS_BY}{others}"
    stated = others if setup.chooser_stated else Setup().chosen_by
    public, entities = setup.public, setup.entities
    if public is not None:
        update = {"name": "public text", "declared_by": "the curator"}
        public = public.model_copy(update=update)
    if entities is not None:
        entities = entities.model_copy(update={"coverage": None})
    return setup.model_copy(
        update={
            "chosen_by": planner if by_counts else stated,
            "public": public,
            "entities": entities,
        }
    )


def _public_text(setup: Setup) -> PublishedText | None:
    text = setup.public
    if text is None:
        return None
    return PublishedText(
        sha256=_matching(_HASH, text.digest) or "",
        sentences=text.sentences,
        steps=text.steps,
        sentences_per_step=text.sentences_per_step,
    )


def _entities(stated: Entities) -> PublicEntities:
    detectors = (_detector(name, version) for name, version in sorted(stated.detectors.items()))
    return PublicEntities(
        detectors=tuple(dict.fromkeys(detectors)),
        categories=tuple(name for name in BASE if name in stated.categories),
        names_sought=stated.names_sought,
        propagated=stated.propagated,
        lists=tuple(words for name, words in _LISTS.items() if name in stated.lists),
        public_lists=tuple(name for name in PUBLIC_LISTS if name in stated.public_lists),
        coverage_measured=stated.coverage is not None,
    )


def _detector(name: str, version: str) -> PublicDetector:
    kind, _, argument = name.partition(":")
    if kind not in BUILT_IN:
        return PublicDetector(kind=_OWN)
    packages = [" ".join(found) for found in _PACKAGE.findall(version)]
    if kind == "stanza" and _LANGUAGE.fullmatch(argument):
        packages.append(f"language {argument}")
    return PublicDetector(kind=kind, packages=tuple(packages))


def _hashes(files: Mapping[str, str]) -> dict[str, str]:
    return {
        name: digest
        for name, digest in sorted(files.items())
        if _FILE.fullmatch(name) and _HASH.fullmatch(digest)
    }


def _matching(pattern: re.Pattern[str], text: str) -> str | None:
    return text if pattern.fullmatch(text) else None


def _up(value: float | None, digits: int) -> float | None:
    return None if value is None else float(rounded(value, digits))
