"""Who spent how much: every round of a run, and every run on a corpus.

A run first *reserves* its planned rounds in the ledger of its corpus, where a budget that they
would exceed is refused. It then *spends* rounds in its own ledger, a block at a time and always
before the block's noisy sums are used; more than was reserved is refused. What a run reserved
stays reserved if it stops early: the plan is what is certified, because stopping may depend on
the data. A plan may have a private vocabulary beside its rounds.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from uedp.accounting.chain import Chain, read
from uedp.accounting.proven import Alg, Profile, Rotation, UserLevel, guarantee
from uedp.accounting.vocabulary import VocabularyRelease
from uedp.errors import UserError

RUN_LEDGER = "ledger.jsonl"
CORPUS_LEDGER = "ledger.jsonl"
_METHODS: Mapping[str, type[Rotation] | type[UserLevel] | type[Alg]] = {
    "rotation": Rotation,
    "user-level": UserLevel,
    "uedp-alg": Alg,
}


def to_record(profile: Profile) -> dict[str, Any]:
    """A profile as plain values, `from_record` of which is equal to it."""
    for name, kind in _METHODS.items():
        if isinstance(profile, kind):
            return {"method": name, **asdict(profile)}
    raise TypeError(f"{type(profile).__name__} cannot be recorded")


def from_record(record: Mapping[str, Any]) -> Profile:
    fields = dict(record)
    profile: Profile = _METHODS[fields.pop("method")](**fields)
    return profile


def _planned(
    kind: str,
    run: str,
    digest: str,
    profile: Profile,
    rounds: int,
    vocabulary: VocabularyRelease | None,
) -> dict[str, Any]:
    if rounds < 1:
        raise UserError(f"rounds {rounds}: a run has at least 1")
    plan = {
        "kind": kind,
        "run": run,
        "incidence": digest,
        "profile": to_record(profile),
        "rounds": rounds,
    }
    return plan if vocabulary is None else {**plan, "vocabulary": asdict(vocabulary)}


def planned_vocabulary(record: Mapping[str, Any]) -> VocabularyRelease | None:
    """The private vocabulary of a plan or a reservation, if it has one."""
    fields = record.get("vocabulary")
    return None if fields is None else VocabularyRelease(**fields)


@dataclass(frozen=True)
class Budget:
    """The most that all runs on one corpus may spend together."""

    epsilon: float
    delta: float


class CorpusLedger:
    """Every run's reservation on one corpus, keyed by the digest of its incidence.

    Guarantees:
      - runs on the same incidence add up; runs on another incidence are kept apart
      - a reservation that would exceed the budget is refused and leaves no trace
      - reserving again for the same run and the same plan is the same reservation
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / CORPUS_LEDGER

    def reserve(
        self,
        run: str,
        digest: str,
        profile: Profile,
        rounds: int,
        budget: Budget | None = None,
        vocabulary: VocabularyRelease | None = None,
    ) -> None:
        entry = _planned("reserved", run, digest, profile, rounds, vocabulary)
        with Chain(self.path) as chain:
            if entry in chain.records:
                return
            if any(old.get("run") == run for old in chain.records):
                raise UserError(f"run {run} reserved another plan before; start a new run")
            if budget is not None:
                total = self._epsilon([*chain.records, entry], digest, budget.delta)
                if not total <= budget.epsilon:
                    raise UserError(
                        f"budget epsilon {budget.epsilon:g} (delta {budget.delta:g}): all runs on "
                        f"this corpus would come to {total:.4g}; plan fewer rounds or more noise"
                    )
            chain.append(entry)

    def epsilon(self, digest: str, delta: float) -> float:
        """What all runs reserved on an incidence come to."""
        records, _ = read(self.path)
        return self._epsilon(records, digest, delta)

    def runs(self, digest: str) -> list[str]:
        records, _ = read(self.path)
        return [r["run"] for r in records if r.get("incidence") == digest]

    @staticmethod
    def _epsilon(records: list[dict[str, Any]], digest: str, delta: float) -> float:
        ours = [record for record in records if record.get("incidence") == digest]
        rounds: list[tuple[Profile, int]] = [
            (from_record(record["profile"]), record["rounds"]) for record in ours
        ]
        vocabularies = [found for record in ours if (found := planned_vocabulary(record))]
        return guarantee([*rounds, *((one, 1) for one in vocabularies)]).epsilon(delta)


class RunLedger:
    """The rounds of one run.

    Guarantees:
      - a block of rounds is on disk before `spend` returns
      - no more rounds are spent than were planned, nor a vocabulary twice
      - opening an existing ledger continues it; a plan that differs is refused
    """

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self._plan = next(record for record in chain.records if record["kind"] == "plan")

    @classmethod
    @contextmanager
    def open(
        cls,
        folder: Path,
        run: str,
        digest: str,
        profile: Profile,
        rounds: int,
        vocabulary: VocabularyRelease | None = None,
    ) -> Iterator["RunLedger"]:
        plan = _planned("plan", run, digest, profile, rounds, vocabulary)
        with Chain(folder / RUN_LEDGER) as chain:
            planned = [record for record in chain.records if record["kind"] == "plan"]
            if not planned:
                chain.append(plan)
            elif planned[0] != plan:
                raise UserError(f"{chain.path}: this run was planned differently; start a new run")
            yield cls(chain)

    @property
    def spent(self) -> int:
        """Rounds that may have been used."""
        return spent_rounds(self._chain.records)

    @property
    def left(self) -> int:
        return int(self._plan["rounds"]) - self.spent

    @property
    def seal(self) -> str:
        return self._chain.seal

    def spend(self, rounds: int = 1) -> None:
        """Enter rounds before their noisy sums are used."""
        if rounds < 1:
            raise ValueError("at least one round is spent at a time")
        if rounds > self.left:
            raise UserError(
                f"{self._chain.path}: {self.spent} of {self._plan['rounds']} planned rounds are "
                "spent; no more may be run"
            )
        self._chain.append({"kind": "rounds", "first": self.spent, "count": rounds})

    @property
    def vocabulary_spent(self) -> bool:
        """Whether the private vocabulary may have been made."""
        return any(record["kind"] == "vocabulary" for record in self._chain.records)

    def spend_vocabulary(self) -> None:
        """Enter the private vocabulary before its noisy counts are used."""
        if planned_vocabulary(self._plan) is None:
            raise UserError(f"{self._chain.path}: no private vocabulary was planned")
        if self.vocabulary_spent:
            raise UserError(
                f"{self._chain.path}: the private vocabulary was made before, and making it again "
                "would cost again; use the one that was saved, or start a new run"
            )
        self._chain.append({"kind": "vocabulary"})


def spent_rounds(records: list[dict[str, Any]]) -> int:
    return sum(record["count"] for record in records if record["kind"] == "rounds")
