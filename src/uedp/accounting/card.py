"""The privacy card: a README for a model hub, and the same as JSON, beside the model.

Rendered from `PublicFacts` and from what a person gives for the hub: nothing that was computed from
private data without protection can appear.
"""

import math
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import Field, ValidationError

from uedp.accounting.certificate import CERTIFICATE, verify
from uedp.accounting.decisions import StrictModel
from uedp.accounting.publishable import (
    CHOSEN_BY_COUNTS,
    FROM_COUNTS,
    PublicDetector,
    PublicEntities,
    PublicFacts,
    public_facts,
)
from uedp.accounting.statement import (
    COVERAGE_NOT_PROTECTED,
    LARGE_EPSILON,
    NO_FINITE_EPSILON,
    PLAIN_WORDS,
    PUBLIC_NOT_PROTECTED,
    rounded,
)
from uedp.entities.categories import BASE
from uedp.errors import UserError
from uedp.files import write_atomically
from uedp.strict import parse_json, shortened

CARD = "privacy_card.json"
README = "README.md"
ASIDE = "privacy_card.md"  # where the card goes if a person edited the README

_SUSPICIONS = (0.001, 0.01, 0.1, 0.5)  # before looking at the model
_PIPELINES = {
    "CausalLM": "text-generation",
    "LMHeadModel": "text-generation",
    "SequenceClassification": "text-classification",
}
_OWN_MODELS = ("AwdLstm",)  # architectures that Transformers loads only with uedp imported


class HubMetadata(StrictModel):
    """What only a person can say of a model, in the terms of the Hugging Face hub."""

    license: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.+-]{0,60}$")] | None = None
    base_model: (
        Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?$")]
        | None
    ) = None
    language: tuple[Annotated[str, Field(pattern=r"^([a-z]{2,3}|code|multilingual)$")], ...] = ()


class PrivacyCard(StrictModel):
    """The card as JSON. `readme_sha256` is of the Markdown that was written with it."""

    kind: Literal["uedp privacy card"] = "uedp privacy card"
    format: Literal[1] = 1
    guarantee: str
    probability_factor: float | None
    attack_success: float | None
    hub: HubMetadata
    facts: PublicFacts
    readme_sha256: str


def hub_metadata(
    license: str | None = None,  # noqa: A002 - the hub's name of it
    base_model: str | None = None,
    language: tuple[str, ...] = (),
) -> HubMetadata:
    """What a person gives for the hub, checked."""
    try:
        return HubMetadata(license=license, base_model=base_model, language=language)
    except ValidationError as error:
        first = error.errors()[0]
        field = str(first["loc"][0])
        remedies = {
            "license": "give the hub's identifier, as mit or apache-2.0",
            "base_model": "give its name on the hub, as openai-community/gpt2, not a path",
            "language": "give a code of two or three letters, as en",
        }
        value = shortened(first["input"])
        raise UserError(f"`{field}=...` {value}: cannot be used; {remedies[field]}") from None


def write_card(run: Path, hub: HubMetadata | None = None, *, verified: bool = False) -> Path:
    """Write the card of a finished run beside its model; what was given before is kept.

    Args:
        verified: the certificate was issued or verified just now.

    Returns:
        The Markdown file.

    Guarantees:
      - a run that does not verify is refused
      - a README that a person edited is left as it is: the card goes to `privacy_card.md`
      - no file of the model is touched, and verification takes none of these for one
    """
    facts = public_facts(run)
    if not facts.finished:
        raise UserError(f"{run}: not finished, so there is no model to describe; resume the run")
    if not verified and (run / CERTIFICATE).is_file():
        verify(run)
    before = _written_before(run)
    hub = _merged(hub or HubMetadata(), HubMetadata() if before is None else before.hub)
    text = markdown(facts, hub, _architecture(run))
    card = PrivacyCard(
        guarantee=facts.guarantee,
        probability_factor=facts.probability_factor,
        attack_success=facts.attack_success,
        hub=hub,
        facts=facts,
        readme_sha256=_digest(text.encode()),
    )
    readme = run / README
    known = {card.readme_sha256} | ({before.readme_sha256} if before else set())
    edited = readme.exists() and _digest(readme.read_bytes()) not in known
    path = run / ASIDE if edited else readme
    write_atomically(path, text)
    write_atomically(run / CARD, card.model_dump_json(indent=2) + "\n")
    return path


def _written_before(run: Path) -> PrivacyCard | None:
    try:
        return PrivacyCard.model_validate_json((run / CARD).read_bytes())
    except (OSError, ValidationError):
        return None


def _merged(given: HubMetadata, before: HubMetadata) -> HubMetadata:
    return HubMetadata(
        license=given.license or before.license,
        base_model=given.base_model or before.base_model,
        language=given.language or before.language,
    )


def _architecture(run: Path) -> str:
    """The class of the model, by the `config.json` that is published with it."""
    try:
        (name, *_) = parse_json((run / "config.json").read_bytes())["architectures"]
        return str(name)
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _digest(data: bytes) -> str:
    return sha256(data).hexdigest()


# --- Markdown ------------------------------------------------------------------------------------


def markdown(facts: PublicFacts, hub: HubMetadata, architecture: str = "") -> str:
    """The card as a README for a model hub, with metadata in front."""
    body = _private(facts) if facts.private else _unprotected(facts)
    return f"---\n{_front_matter(facts, hub, architecture)}---\n\n" + "\n".join(body) + "\n"


def _front_matter(facts: PublicFacts, hub: HubMetadata, architecture: str) -> str:
    tags = ["uedp"]
    if facts.private:
        unit = "user-entity" if facts.protects_entities else "user-level"
        tags = ["differential-privacy", f"{unit}-differential-privacy", *tags]
    pipeline = (tag for suffix, tag in _PIPELINES.items() if architecture.endswith(suffix))
    own = architecture.startswith(_OWN_MODELS)
    values = {
        "license": hub.license,
        "language": list(hub.language),
        "base_model": hub.base_model,
        "library_name": "uedp" if own else "transformers",
        "pipeline_tag": next(pipeline, None),
        "tags": tags,
    }
    given = {name: value for name, value in values.items() if value}
    return str(yaml.safe_dump(given, sort_keys=False))


def _private(facts: PublicFacts) -> Iterator[str]:
    assert facts.epsilon is not None
    assert facts.delta is not None
    yield from (
        "# Privacy card",
        "",
        "This model was trained on private texts with differential privacy. "
        "What it can reveal about them is limited by a mathematical proof.",
        "",
        f"> {facts.guarantee}",
        "",
        "## What is protected",
        "",
        f"{facts.unit[0].upper()}{facts.unit[1:]}.",
        "",
        "The promise compares the training that took place with one in which these texts were "
        "empty. How well anybody can tell the two apart from the model is limited, and epsilon is "
        "the limit. (Replacing a text by another one counts as two such steps.)",
        "",
        "## Against whom",
        "",
        "Against anybody who has the model, for any time and with any computer, also if they know "
        f"the training code and every other text. Not against {_HOLDERS[facts.holders]}.",
        "",
    )
    yield from _strength(facts.epsilon, facts.delta, facts.attack_success or 1.0)
    yield from _limits(facts)
    if facts.protects_entities:
        yield from _entities(facts.entities)
    yield from _training(facts)
    yield from _checking(facts)
    yield from (
        "## Intended use and limits",
        "",
        "- The guarantee covers the weights and all that is made from them, such as generated "
        "text, however much. It does not cover prompts.",
        "- Training this model further on the same texts adds to what it may reveal; training it "
        "on other texts does not weaken this guarantee, but does not protect those texts.",
        "- Names in generated text may be those of real people by chance, or from what the model "
        "had learned before.",
        "- The guarantee says nothing about whether answers are true, fair or safe.",
        "- Whether this is enough for a purpose, or in law, is for people to decide.",
        "",
        "This card is generated from the certificate of the run. It states nothing that was "
        "counted or measured in the private texts. Epsilons are rounded up."
        + _DEPENDENCE.get(facts.withheld or "", ""),
    )


_DEPENDENCE = {
    CHOSEN_BY_COUNTS: " They depend on settings that were chosen by counts of the texts (see the "
    "caveats).",
    FROM_COUNTS: " They depend on counts of the texts, from which this method computes them.",
}
_HOLDERS = {
    None: "whoever holds the texts",
    "the curator": "the curator, who holds the texts and the records of training",
    "clients": "the clients, who hold the texts, and the server, which received single users' "
    "updates and has the records of training",
}


def _strength(epsilon: float, delta: float, success: float) -> Iterator[str]:
    yield from (
        "## How strongly",
        "",
        f"Epsilon is {epsilon:g} and delta is {delta:g}. Smaller is stronger.",
        "",
        f"- **Probabilities.** Anything that the model could show is at most e^{epsilon:g}, about "
        f"{_factor(epsilon)}, times as likely with the protected texts as with these texts left "
        f"blank, and the other way round, but for a probability of at most {delta:g} "
        f"(1 in {_one_in(delta)}) on top.",
        "- **Guessing.** Whoever has to guess which of two equally likely trainings took place is "
        f"right at most {_percent(success)} of the time. A coin is right 50% of the time.",
        f"- **Suspicion.** All but 1 in {_one_in(2 * delta)} models that training could have given "
        "let a suspicion that the protected texts were used, and not left blank, grow no further "
        "than this:",
        "",
        "| suspicion before | at most after seeing the model |",
        "|---|---|",
        *(f"| {_percent(p)} | {_percent(_after(p, epsilon))} |" for p in _SUSPICIONS),
        "",
        "The table is about the most telling of these models; guesses are counted over all that "
        "training could have given. All are limits for the worst case: an attacker who knows "
        "everything else, and texts that are the easiest to recognise. They are not what an attack "
        "has reached.",
        "",
    )
    if epsilon > LARGE_EPSILON:
        yield from (f"**An epsilon above {LARGE_EPSILON} says little.**", "")


def not_covered(facts: PublicFacts) -> tuple[str, ...]:
    """What the guarantee leaves out, one plain sentence each."""
    elsewhere = (COVERAGE_NOT_PROTECTED, PUBLIC_NOT_PROTECTED)  # not stated here; in the next line
    left = (words for words in facts.not_protected if words not in elsewhere)
    lines = [PLAIN_WORDS.get(words, f"{words}.") for words in left]
    if (text := facts.public_text) is not None:
        lines.append(
            f"Texts that were declared public and trained on first, without noise: "
            f"{text.sentences:,} sentences, SHA-256 `{text.sha256}`."
        )
    return tuple(lines)


_UNSEEN = (
    " This assumes that nobody chose the rounds, rates and noise of a run by what an earlier model "
    "shows."
)


def _limits(facts: PublicFacts) -> Iterator[str]:
    yield from ("## What is not covered", "")
    yield from (f"- {sentence}" for sentence in not_covered(facts))
    yield ""
    if facts.missed_mentions:
        yield from (
            "No detector finds every mention. If it missed the entity in some sentences, these "
            "are still protected, with a larger epsilon:",
            "",
            "| missed in | epsilon |",
            "|---|---|",
            *(f"| {row.words} | {_shown(row.epsilon)} |" for row in facts.missed_mentions),
            "",
        )
    if facts.epsilon_user_alone is not None and facts.protects_entities:
        yield from (f"For a user without an entity, epsilon is {facts.epsilon_user_alone:g}.", "")
    total = facts.corpus_total
    if total is not None:
        runs = "one run" if total.runs == 1 else f"{total.runs:,} runs"
        yield from (
            f"When this model was finished, there had been {runs} on these texts. Together: "
            f"epsilon {_shown(total.epsilon)}, delta {total.delta:g}, for {total.unit}."
            + (_UNSEEN if total.runs > 1 else ""),
            "",
        )
    caveats = facts.caveats if facts.public_text is None else facts.caveats[1:]
    if caveats:
        yield from ("Caveats of this run:", "")
        yield from (f"- {text[0].upper()}{text[1:]}." for text in caveats)
        yield ""


def _entities(entities: PublicEntities | None) -> Iterator[str]:
    yield from ("## What counts as a sensitive entity", "")
    if entities is None:
        yield from ("It is not stated which entities were looked for.", "")
        return
    yield "Found by:"
    yield ""
    yield from (f"- {_by(detector)}" for detector in entities.detectors)
    yield ""
    if not entities.names_sought:
        listed = " but those on a list" if "deny-list" in entities.lists else ""
        yield from (f"**Names were not looked for{listed}.**", "")
    yield from ("| category | meaning |", "|---|---|")
    yield from (f"| {name} | {BASE[name]} |" for name in entities.categories)
    yield ""
    if left_out := [name for name in BASE if name not in entities.categories]:
        yield from (f"Not protected as entities: {', '.join(left_out)}.", "")
    if entities.propagated:
        yield "What was found in enough of its places counts in all of them."
    else:
        yield "A hit counts only where it was made."
    if entities.lists:
        yield f"The curator gave lists of their own ({', '.join(entities.lists)})."
    if entities.public_lists:
        yield f"Public unless a person: {', '.join(entities.public_lists)}."
    yield (
        "The curator measured how many mentions were found; that figure is not protected, and "
        "not repeated here."
        if entities.coverage_measured
        else "How many mentions were found was not measured."
    )
    yield ""


_KINDS = {
    "labels": "marks that people made in the texts",
    "patterns": "patterns for phone numbers, e-mail addresses, account numbers and the like",
    "spacy": "a spaCy pipeline",
    "presidio": "Presidio",
    "stanza": "Stanza",
    "transformers": "a token classification model with Transformers",
}


def _by(detector: PublicDetector) -> str:
    words = _KINDS.get(detector.kind, detector.kind)
    return words + (f" ({', '.join(detector.packages)})" if detector.packages else "")


_USERS = {
    "as given": "the authors that were given with the texts",
    "assigned at random": "groups of texts that were put together at random, not people",
}


def _training(facts: PublicFacts) -> Iterator[str]:
    yield from (
        "## How it was trained",
        "",
        "In every round users are drawn at random, the update that each contributes is limited in "
        "length, and random noise is added to their sum. Only noisy sums change the model. "
        "The noise of all rounds together gives epsilon.",
        "",
    )
    rows: dict[str, object] = {
        "method": facts.method or "left out",
        "noise": "from a cipher under secret keys",
        "precision": facts.precision,
        "users": _USERS.get(facts.users or ""),
        "vocabulary": facts.vocabulary,
        "earlier training on other corpora": facts.earlier_runs,
        "software": f"uedp {facts.uedp}",
        "date": facts.day,
    }
    for name, value in (facts.settings or {}).items():
        rows[name.replace("_", " ") + (" multiplier" * (name == "noise"))] = f"{value:,g}"
    yield from ("| | |", "|---|---|")
    yield from (f"| {name} | {value} |" for name, value in rows.items())
    yield ""
    if facts.withheld:
        yield from (f"Rates, noise and rounds are left out: {facts.withheld}.", "")


def _checking(facts: PublicFacts) -> Iterator[str]:
    yield from (
        "## How to check this",
        "",
        "Compare the model's files with these hashes (`sha256sum FILE`):",
        "",
        *_hashes(facts),
        "",
        "The curator has a certificate with all numbers, and a ledger from which "
        "`uedp certificate verify` recomputes them. They also state counts of the texts without "
        "noise, so it is for the curator to decide who gets them. "
        f"The ledger they belong to ends with the seal `{facts.ledger_seal}`.",
        "",
    )
    if facts.signature:
        yield from (
            "The certificate is signed (Ed25519). With the signer's public key, "
            "`uedp certificate verify FOLDER --public-key KEY.pub` shows that it is the one they "
            "signed:",
            "",
            f"    {facts.signature}",
            "",
        )
    else:
        yield from ("The certificate was not signed when this card was written.", "")


def _hashes(facts: PublicFacts) -> Iterator[str]:
    yield from ("| file | SHA-256 |", "|---|---|")
    yield from (f"| {name} | `{digest}` |" for name, digest in facts.files.items())


def _unprotected(facts: PublicFacts) -> Iterator[str]:
    yield from (
        "# Privacy card",
        "",
        "**This model has no privacy guarantee.**",
        "",
        f"The reason: {facts.why_not}.",
        "",
        "Names, numbers and whole sentences of the texts that it was trained on may be recovered "
        "from it. Do not give it to anybody who may not read those texts.",
        "",
        *_hashes(facts),
    )


def _after(prior: float, epsilon: float) -> float:
    """The largest belief after seeing the model, of somebody who held this one before.

    Guarantees:
      - exceeded with a probability of at most two deltas: that of a privacy loss above
        `epsilon + log 2` is at most `delta / (1 - 1/2)`; above epsilon alone it has no such bound
    """
    return prior / (prior + (1 - prior) * math.exp(-epsilon) / 2)


def _one_in(chance: float) -> str:
    """A probability as one in so many, never as a smaller one."""
    return f"{math.floor(round(1 / chance, 6)):,}"


def _percent(share: float) -> str:
    return f"{rounded(round(100 * share, 9))}%"  # not up by the last digits of a float


def _factor(epsilon: float) -> str:
    if epsilon > 700:
        return "infinity"
    digits = rounded(math.exp(epsilon), 3)
    return f"{float(digits):,.0f}" if 1000 <= float(digits) < 1e12 else digits


def _shown(epsilon: float | None) -> str:
    return NO_FINITE_EPSILON if epsilon is None else f"{epsilon:g}"
