"""What reports say, in words for people who know nothing of differential privacy."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from uedp.accounting.attacker import FALSE_ALARMS, Strength, from_pair
from uedp.accounting.certificate import Certificate
from uedp.accounting.ledger import CorpusTotal
from uedp.accounting.publishable import PublicFacts, PublicTotal
from uedp.accounting.statement import LARGE_EPSILON, PLAIN_WORDS, rounded
from uedp.accounting.statement import epsilon_text as epsilon_text
from uedp.report.charts import number_text
from uedp.report.verification import Status


@dataclass(frozen=True)
class MissedCase:
    """The guarantee for an entity that detectors missed in the sentences that `words` says."""

    words: str
    epsilon: float | None
    strength: Strength | None


@dataclass(frozen=True)
class Decision:
    """The first page of a report: everything that somebody needs who has to decide.

    It is made from a certificate that was verified, or from what is published of it.
    """

    status: Status
    why_not: str
    protected: Sequence[str]
    strength: Strength | None = None
    user_alone: Strength | None = None
    protects_entities: bool = False
    missed: Sequence[MissedCase] = ()
    not_protected: Sequence[str] = ()
    caveats: Sequence[str] = ()
    statement: str = ""
    adjacency: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    total: CorpusTotal | PublicTotal | None = None

    @property
    def says_little(self) -> bool:
        return self.strength is not None and self.strength.epsilon > LARGE_EPSILON


def decision(
    certificate: Certificate,
    strength: Strength | None,
    user_alone: Strength | None,
    missed: Sequence[MissedCase],
    protects_entities: bool,
) -> Decision:
    """From a certificate that was verified; strengths are those of its plan."""
    setup = certificate.setup
    holders = certificate.parameters.get("holders")
    private = certificate.private and strength is not None
    return Decision(
        status="proven" if private else "none",
        why_not="" if private else setup.exposed or "the noise is too small for any bound",
        protected=protected(protects_entities, setup.users, certificate.unit, holders),
        strength=strength if private else None,
        user_alone=user_alone if private else None,
        protects_entities=protects_entities,
        missed=missed if private else (),
        not_protected=[PLAIN_WORDS.get(words, words) for words in certificate.not_protected],
        caveats=[sentence(words) for words in certificate.caveats],
        statement=certificate.statement.split("\n")[0],
        adjacency=certificate.adjacency,
        files=certificate.files,
        total=certificate.corpus_total,
    )


def public_decision(facts: PublicFacts) -> Decision:
    """From what may be published, and from nothing else."""
    strength, attacker = None, facts.attacker
    alone, delta = facts.epsilon_user_alone, facts.delta
    if attacker is not None and facts.epsilon is not None and delta is not None:
        power = {rate: attacker.found[f"{rate:g}"] for rate in FALSE_ALARMS}
        strength = Strength(facts.epsilon, delta, attacker.success, power)
    return Decision(
        status="proven" if strength is not None else "none",
        why_not=facts.why_not or "",
        protected=protected(facts.protects_entities, facts.users, facts.unit, None),
        strength=strength,
        user_alone=None if alone is None or delta is None else from_pair(alone, delta),
        protects_entities=facts.protects_entities,
        missed=[
            MissedCase(
                one.words,
                one.epsilon,
                None if one.epsilon is None or delta is None else from_pair(one.epsilon, delta),
            )
            for one in facts.missed_mentions
        ],
        not_protected=[PLAIN_WORDS.get(words, words) for words in facts.not_protected],
        caveats=[sentence(words) for words in facts.caveats],
        statement=facts.guarantee,
        adjacency=facts.adjacency,
        files=facts.files,
        total=facts.corpus_total,
    )


def protected(protects_entities: bool, users: str | None, unit: str, holders: object) -> list[str]:
    """What is protected, in sentences."""
    lines = ["All text that any one person wrote."]
    if users == "assigned at random":
        lines = [
            "All text of any one group of texts. The groups were put together at random, because "
            "it is not known who wrote what. A person whose texts are in more than one group is "
            "protected less."
        ]
    if not protects_entities:
        return [
            *lines,
            "Names and other sensitive entities that several people mention are not protected.",
        ]
    lines.append(
        "With it, any one sensitive entity, such as a name, a phone number or an address: all "
        "sentences of everybody that mention it."
    )
    if "at most the stated number" in unit:
        most = "This holds for an entity that at most {} other people mention."
        lines.append(
            most.format(f"{holders:,}")
            if isinstance(holders, int)
            else most.format("so many")[:-1] + " as the certificate says; the number was counted "
            "in the texts and is not published."
        )
    else:
        lines.append("A sentence in which no entity was found is protected as a whole.")
    return lines


# --- numbers -------------------------------------------------------------------------------------


def percent_up(share: float) -> str:
    """A bound in per cent, rounded up to a tenth; above 99% to a hundredth."""
    steps = 1000 if share <= 0.99 else 10_000
    return f"{100 * min(math.ceil(round(share * steps, 9)), steps) / steps:g}%"


def of_hundred(share: float) -> str:
    """A bound as so many out of a hundred, rounded up."""
    return str(min(math.ceil(round(share * 100, 9)), 100))


def factor_text(value: float) -> str:
    """A factor in three digits, rounded up: 2,980 or 3.1·10¹⁴."""
    return number_text(float(rounded(value, 3)))


def measure_text(value: float) -> str:
    """A measure in four digits."""
    return number_text(float(f"{value:.4g}"))


def delta_text(delta: float) -> str:
    """A delta in three digits, rounded up: 10⁻⁵."""
    return number_text(float(rounded(delta, 3)))


def lower_text(value: float) -> str:
    """A lower bound in three digits, rounded down."""
    return rounded(value, 3, down=True)


def chance_text(delta: float) -> str:
    """A small probability as one in so many, never as a smaller one."""
    return "0" if delta == 0 else f"1 in {math.floor(1 / delta + 1e-6):,}"


def sentence(words: str) -> str:
    """Words of a certificate as a sentence."""
    words = words.strip()
    return words[:1].upper() + words[1:] + ("" if words.endswith((".", "!", "?")) else ".")
