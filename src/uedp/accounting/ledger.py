"""Who spent how much: every round of a run, and every run on a corpus.

A run first *reserves* its planned rounds in the ledger of its corpus, where a budget that they
would exceed is refused. It then *spends* rounds in its own ledger, a block at a time and always
before the block's noisy sums are used; more than was reserved is refused. An open run counts what
it reserved; one that is *closed*, being finished or by somebody's word, counts what it spent, and
spends no more. A run without a guarantee counts as infinite. A plan may have a private vocabulary
beside its rounds.
"""

import hashlib
import hmac
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from uedp.accounting.chain import Chain, read
from uedp.accounting.decisions import Setup, Shape
from uedp.accounting.marks import Mark
from uedp.accounting.profile import (
    LEAST_NOISE,
    PrivacyEvent,
    Profile,
    profile_from_record,
    profile_to_record,
)
from uedp.accounting.proven import guarantee
from uedp.accounting.vocabulary import VocabularyRelease
from uedp.errors import UserError

RUN_LEDGER = "ledger.jsonl"
CORPUS_LEDGER = "ledger.jsonl"
_INFINITE = float("inf")
_PATIENCE = (
    60.0  # seconds that a run waits for another to enter itself: it must not fail at its end
)


@dataclass(frozen=True)
class PlannedRun:
    """All that was decided before a run began: the first line of its ledger.

    `lineage` lists the runs that its model and its words come from. A run without noise has no
    `profile` and no ledger, only its entry in that of the corpus; `without_noise` is its method.

    Guarantees:
      - `read(record())` is equal to it
    """

    run: str
    profile: Profile | None
    rounds: int
    delta: float
    shape: Shape
    setup: Setup = field(default_factory=Setup)
    vocabulary: VocabularyRelease | None = None
    lineage: tuple[Mapping[str, str], ...] = ()
    without_noise: str | None = None

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise UserError(f"rounds {self.rounds}: a run has at least 1")

    @property
    def method(self) -> str:
        if self.profile is None:
            return self.without_noise or "noiseless"
        return self.profile.method

    @property
    def exposed(self) -> str | None:
        """Why there is no guarantee, if there is none."""
        if self.profile is None or self.profile.noise < LEAST_NOISE:
            return "no noise was added"
        return self.setup.exposed

    def record(self) -> dict[str, Any]:
        plan = {
            "kind": "plan",
            "run": self.run,
            "profile": None if self.profile is None else profile_to_record(self.profile),
            "rounds": self.rounds,
            "delta": self.delta,
            "shape": self.shape.model_dump(mode="json"),
            "setup": self.setup.model_dump(mode="json"),
            "lineage": [dict(one) for one in self.lineage],
        }
        return plan if self.vocabulary is None else {**plan, "vocabulary": asdict(self.vocabulary)}

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> "PlannedRun":
        """Raises KeyError, TypeError or ValueError for what is no such record."""
        for name, kinds in (("run", str), ("rounds", int), ("delta", int | float)):
            if not isinstance(record[name], kinds) or isinstance(record[name], bool):
                raise TypeError(f"{name} is {_short(record[name])}")
        return cls(
            run=record["run"],
            profile=profile_from_record(record["profile"]),
            rounds=record["rounds"],
            delta=record["delta"],
            shape=Shape.model_validate(record["shape"]),
            setup=Setup.model_validate(record["setup"]),
            vocabulary=planned_vocabulary(record),
            lineage=tuple(record["lineage"]),
        )

    def _reserved(self) -> dict[str, Any]:
        entry = {
            "kind": "reserved",
            "run": self.run,
            "method": self.method,
            "incidence": self.shape.digest,
            "texts": self.setup.texts,
            "profile": None if self.profile is None else profile_to_record(self.profile),
            "rounds": self.rounds,
            "exposed": self.exposed,
        }
        return (
            entry if self.vocabulary is None else {**entry, "vocabulary": asdict(self.vocabulary)}
        )


@contextmanager
def refusing_malformed(path: Path, owner: str) -> Iterator[None]:
    """Anybody can seal anything: refuse a record that no run would have written."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, UserError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"{path}: not the ledger of a {owner}: {reason}; restore it from a copy"
        ) from None


def planned_vocabulary(record: Mapping[str, Any]) -> VocabularyRelease | None:
    """The private vocabulary of a plan or a reservation, if it has one."""
    fields = record.get("vocabulary")
    return None if fields is None else VocabularyRelease(**fields)


def first_difference(old: Any, new: Any, name: str = "") -> str | None:
    """The first field in which two plans differ, with both values."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in [*new, *(key for key in old if key not in new)]:
            inner = f"{name}.{key}" if name else str(key)
            found = first_difference(old.get(key), new.get(key), inner)
            if found is not None:
                return found
        return None
    return None if old == new else f"{name} is {_short(old)}, not {_short(new)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# --- corpora -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Budget:
    """The most that all runs on one corpus may spend together."""

    epsilon: float
    delta: float


@dataclass(frozen=True)
class LedgerEntry:
    """A run as the ledger of its corpus has it. `exposed` says why it counts as infinite."""

    run: str
    method: str
    incidence: str
    profile: Profile | None
    planned: int
    counted: int  # rounds: those that were spent if it is closed, else those that were planned
    vocabulary: VocabularyRelease | None
    exposed: str | None
    closed: bool

    @property
    def releases(self) -> list[tuple[PrivacyEvent, int]]:
        events = ((self.profile, self.counted), (self.vocabulary, 1))
        return [(event, count) for event, count in events if event is not None]

    def epsilon(self, delta: float) -> float:
        return _INFINITE if self.exposed else guarantee(self.releases).epsilon(delta)


@dataclass(frozen=True)
class CorpusTotal:
    """What all runs on a corpus come to, and the seal of the ledger that says so."""

    epsilon: float
    delta: float
    runs: int
    unit: str
    seal: str


class CorpusLedger:
    """Every run on one corpus folder, whatever was detected in it: it is the same people's text.

    The ledger also keeps a secret key. What a run's own ledger says of texts and lists is a digest
    under it, which tells nothing to those who do not have the corpus.

    Guarantees:
      - all runs of a folder add up
      - a run without a guarantee counts as infinite
      - a closed run counts the rounds that it spent, an open one those that it reserved
      - a reservation that would exceed the budget is refused and leaves no trace
      - reserving again for the same run and the same plan is the same reservation
      - a run that was closed with rounds left reserves nothing more
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / CORPUS_LEDGER

    @cached_property
    def key(self) -> str:
        """Of the corpus; a new one, written down with the first reservation, if it has none."""
        return _key(self._read()) or secrets.token_hex(32)

    def keyed(self, digest: str) -> str:
        """A digest that only those with the corpus can compare."""
        return hmac.new(bytes.fromhex(self.key), digest.encode(), hashlib.sha256).hexdigest()

    def reserve(self, planned: PlannedRun, budget: Budget | None = None) -> None:
        entry = planned._reserved()
        with Chain(self.path, _PATIENCE) as chain:
            _refuse_malformed(self.path, chain.records)
            if (known := _key(chain.records)) is not None and known != self.key:
                raise UserError(f"{self.path}: another run began at the same time; begin again")
            before = [
                old
                for old in chain.records
                if old.get("run") == planned.run and old["kind"] == "reserved"
            ]
            if before:
                if changed := first_difference(before[0], entry):
                    raise UserError(
                        f"run {planned.run} reserved another plan before ({changed}); start a new "
                        "run"
                    )
                self._refuse_closed(chain.records, planned)
                return
            if budget is not None:
                total = _total(_entries([*chain.records, entry]), budget.delta)
                if not total <= budget.epsilon:
                    why = f" ({planned.exposed})" if planned.exposed else ""
                    raise UserError(
                        f"budget epsilon {budget.epsilon:g} (delta {budget.delta:g}): all runs on "
                        f"this corpus would come to {total:.4g}{why}; plan fewer rounds or more "
                        "noise"
                    )
            if known is None:
                chain.append({"kind": "key", "key": self.key})
            chain.append(entry)

    def close(self, run: str, rounds: int, vocabulary: bool = False) -> None:
        """Enter what a run has spent; it cannot spend more."""
        entry = {"kind": "closed", "run": run, "rounds": rounds, "vocabulary": vocabulary}
        with Chain(self.path, _PATIENCE) as chain:
            _refuse_malformed(self.path, chain.records)
            if not any(entry.run == run for entry in _entries(chain.records)):
                raise UserError(f"{self.path}: has no run {run}; was it made on another corpus?")
            if entry not in chain.records:
                chain.append(entry)

    def entries(self) -> list[LedgerEntry]:
        return _entries(self._read())

    def epsilon(self, delta: float) -> float:
        """What all runs on the corpus come to."""
        return _total(self.entries(), delta)

    def total(self, delta: float) -> CorpusTotal:
        records, seal = read(self.path)
        _refuse_malformed(self.path, records)
        return total_of(records, seal, delta)

    def runs(self) -> list[str]:
        return [entry.run for entry in self.entries()]

    def _read(self) -> list[dict[str, Any]]:
        records = read(self.path)[0] if self.path.is_file() else []
        _refuse_malformed(self.path, records)
        return records

    @staticmethod
    def _refuse_closed(records: Sequence[Mapping[str, Any]], planned: PlannedRun) -> None:
        (ours,) = (entry for entry in _entries(records) if entry.run == planned.run)
        if ours.closed and ours.counted < planned.rounds:
            raise UserError(
                f"run {planned.run}: was closed after {ours.counted} rounds, and cannot go on; "
                "begin a new run"
            )


def total_of(records: Sequence[Mapping[str, Any]], seal: str, delta: float) -> CorpusTotal:
    entries = _entries(records)
    return CorpusTotal(_total(entries, delta), delta, len(entries), _unit(entries), seal)


def _refuse_malformed(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    with refusing_malformed(path, "corpus"):
        if (key := _key(records)) is not None and len(bytes.fromhex(key)) != 32:
            raise ValueError("its key")
        for entry in _entries(records):
            counts = entry.counted, entry.planned
            if any(type(n) is not int for n in counts) or not 0 <= entry.counted <= entry.planned:
                raise ValueError("a number of rounds")
            if not all(isinstance(name, str) for name in (entry.run, entry.method)):
                raise ValueError("the name of a run")
            if entry.profile is None and not entry.exposed:
                raise ValueError("a run without a profile that is not said to have no guarantee")


def _key(records: Sequence[Mapping[str, Any]]) -> str | None:
    return next((record["key"] for record in records if record["kind"] == "key"), None)


def _entries(records: Sequence[Mapping[str, Any]]) -> list[LedgerEntry]:
    closed = {record["run"]: record for record in records if record["kind"] == "closed"}
    found = []
    for record in records:
        if record["kind"] != "reserved":
            continue
        end, words = closed.get(record["run"]), planned_vocabulary(record)
        profile = record["profile"]
        found.append(
            LedgerEntry(
                run=record["run"],
                method=record["method"],
                incidence=record["incidence"],
                profile=None if profile is None else profile_from_record(profile),
                planned=record["rounds"],
                counted=record["rounds"] if end is None else end["rounds"],
                vocabulary=words if end is None or end["vocabulary"] else None,
                exposed=record["exposed"],
                closed=end is not None,
            )
        )
    return found


def _total(entries: Sequence[LedgerEntry], delta: float) -> float:
    """Runs of one method compose; over methods, which protect different things, epsilons add."""
    if any(entry.exposed for entry in entries):
        return _INFINITE
    methods: dict[str, list[tuple[PrivacyEvent, int]]] = {}
    for entry in entries:
        methods.setdefault(entry.method, []).extend(entry.releases)
    try:
        return sum(guarantee(rounds).epsilon(delta / len(methods)) for rounds in methods.values())
    except UserError:  # more rounds together than this delta can be computed for
        return _INFINITE


def _unit(entries: Sequence[LedgerEntry]) -> str:
    """Whom the total is for: of the methods, one that protects least."""
    if any(entry.exposed for entry in entries):
        return "nobody: a run without a guarantee is among them"
    profiles = [entry.profile for entry in entries if entry.profile is not None]
    weakest = min(profiles, key=lambda profile: profile.protects_entities, default=None)
    return "nobody: there are no runs" if weakest is None else weakest.short_unit


# --- runs ----------------------------------------------------------------------------------------


class RunLedger:
    """The rounds of one run.

    Guarantees:
      - a block of rounds is on disk before `spend` returns
      - no more rounds are spent than were planned, nor a vocabulary twice
      - opening an existing ledger continues it; a plan that differs is refused, naming the field
      - given its corpus, a ledger that was cut or replaced since is refused
      - a ledger that was closed is not continued
    """

    def __init__(self, chain: Chain, mark: Mark | None = None) -> None:
        self._chain, self._mark = chain, mark
        self._plan = next(record for record in chain.records if record.get("kind") == "plan")

    @classmethod
    @contextmanager
    def open(
        cls, folder: Path, planned: PlannedRun, corpus: Path | None = None
    ) -> Iterator["RunLedger"]:
        """`corpus` is the folder that keeps the mark of how far this ledger has come."""
        plan = planned.record()
        marked = nullcontext(None) if corpus is None else Mark.open(corpus, planned.run)
        with Chain(folder / RUN_LEDGER) as chain:
            _refuse_another(chain.path, chain.records, plan)
            with marked as mark:
                spent = spent_rounds(chain.records)
                if mark is not None and corpus is not None:
                    mark.check(chain.path, chain.seals, spent)
                    _refuse_an_older(chain.path, spent, CorpusLedger(corpus), planned.run)
                if any(record.get("kind") == "plan" for record in chain.records):
                    # what this stretch of rounds is computed with; `verify` compares it
                    chain.append({"kind": "resume", "spent": spent, "setup": plan["setup"]})
                else:
                    chain.append(plan)
                ledger = cls(chain, mark)
                ledger._advance()
                yield ledger

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
        self._enter({"kind": "rounds", "first": self.spent, "count": rounds})

    @property
    def vocabulary_spent(self) -> bool:
        """Whether the private vocabulary may have been made."""
        return any(record.get("kind") == "vocabulary" for record in self._chain.records)

    def spend_vocabulary(self) -> None:
        """Enter the private vocabulary before its noisy counts are used."""
        if planned_vocabulary(self._plan) is None:
            raise UserError(f"{self._chain.path}: no private vocabulary was planned")
        if self.vocabulary_spent:
            raise UserError(
                f"{self._chain.path}: the private vocabulary was made before, and making it again "
                "would cost again; use the one that was saved, or start a new run"
            )
        self._enter({"kind": "vocabulary"})

    @property
    def words(self) -> Mapping[str, str] | None:
        """The files of the words that the run made, by their hashes; None if it made none yet."""
        found = [record["files"] for record in self._chain.records if record.get("kind") == "words"]
        return found[-1] if found else None

    def record_words(self, files: Mapping[str, str]) -> None:
        """Enter the words that the run made, before they are put in place."""
        self._chain.append({"kind": "words", "files": dict(sorted(files.items()))})

    def record_saved(self, files: Mapping[str, str]) -> None:
        """Enter the files of the model, by their hashes, once all rounds are spent."""
        if self.left:
            raise UserError(
                f"{self._chain.path}: {self.left} rounds are left; only a finished run has a model"
            )
        self._chain.append({"kind": "saved", "files": dict(sorted(files.items()))})

    def record_corpus(self, total: CorpusTotal) -> None:
        """Enter what all runs on the corpus come to by now."""
        finite = total.epsilon if total.epsilon < _INFINITE else None
        self._chain.append({"kind": "corpus", **asdict(total), "epsilon": finite})

    def _enter(self, record: Mapping[str, Any]) -> None:
        # by chance, so that rounds made again after the ledger was cut do not get the same seals
        self._chain.append({**record, "nonce": secrets.token_hex(8)})
        self._advance()

    def _advance(self) -> None:
        if self._mark is not None:
            self._mark.advance(self.spent, self.seal)


def _refuse_an_older(path: Path, spent: int, corpus: CorpusLedger, run: str) -> None:
    """Refuse a copy of a run that was made before it was finished or closed."""
    for entry in corpus.entries():
        if entry.run == run and entry.closed and entry.counted > spent:
            raise UserError(
                f"{path}: has {spent} rounds where {corpus.path} has {entry.counted} of this run, "
                "which is over; rounds that were made before are not made again"
            )


def refuse_another_plan(folder: Path, planned: PlannedRun) -> None:
    """Refuse to go on with a run that was planned otherwise; leaves everything as it is."""
    path = folder / RUN_LEDGER
    if path.is_file():
        _refuse_another(path, read(path)[0], planned.record())


def close_run(folder: Path, corpus: CorpusLedger) -> LedgerEntry:
    """End a run early, for good: what it has spent counts, and it cannot be resumed."""
    path = folder / RUN_LEDGER
    if not path.is_file():
        raise UserError(f"{path}: no such ledger; only a run with noise can be closed")
    with Chain(path) as chain:  # refused while the run is being trained
        plan = next((record for record in chain.records if record.get("kind") == "plan"), None)
        if plan is None:
            raise UserError(f"{path}: holds no plan; the run never began")
        with refusing_malformed(path, "run"):
            run, delta = (planned := PlannedRun.read(plan)).run, planned.delta
        if run not in corpus.runs():
            raise UserError(f"{corpus.path}: has no run {run}; was it made on another corpus?")
        spent = spent_rounds(chain.records)
        with Mark.open(corpus.folder, run) as mark:
            mark.check(path, chain.seals, spent)
            if not _is_closed(chain.records):
                chain.append({"kind": "closed", "spent": spent})
            mark.advance(spent, chain.seal)
        ledger = RunLedger(chain)
        corpus.close(run, spent, ledger.vocabulary_spent)
        ledger.record_corpus(corpus.total(delta))
    (entry,) = (entry for entry in corpus.entries() if entry.run == run)
    return entry


def spent_rounds(records: Sequence[Mapping[str, Any]]) -> int:
    counts: list[Any] = [
        record.get("count") for record in records if record.get("kind") == "rounds"
    ]
    if not all(type(count) is int and count > 0 for count in counts):
        raise UserError(f"{RUN_LEDGER}: a number of rounds that no run wrote; restore it")
    return sum(counts)


def _is_closed(records: Sequence[Mapping[str, Any]]) -> bool:
    return any(record.get("kind") == "closed" for record in records)


def _refuse_another(
    path: Path, records: Sequence[Mapping[str, Any]], plan: Mapping[str, Any]
) -> None:
    first = next((record for record in records if record.get("kind") == "plan"), None)
    if first is None:
        return
    if changed := first_difference(first, plan):
        raise UserError(
            f"{path}: this run was planned differently: {changed}; resume it as it was, or start "
            "a new run"
        )
    if _is_closed(records):
        raise UserError(f"{path}: this run was closed, and cannot go on; start a new run")
