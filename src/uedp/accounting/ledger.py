"""Ledgers: every round of a run, and every run on a corpus.

A run first *reserves* its planned rounds in the ledger of its corpus. It then *spends* them in its
own ledger, a block at a time and always before the block's noisy sums are used. A *closed* run,
finished or ended early, spends no more.
"""

import hashlib
import hmac
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from uedp.accounting.chain import FIRST_SEAL, Chain, Record, of_kind, read_chain
from uedp.accounting.decisions import Setup, Shape, StrictModel
from uedp.accounting.growth import Growth, PastRun, charged, epoch_of, growth_of
from uedp.accounting.marks import Mark
from uedp.accounting.profile import (
    MIN_NOISE,
    PrivacyEvent,
    Profile,
    profile_from_record,
    profile_to_record,
)
from uedp.accounting.proven import MAX_ROUNDS, guarantee
from uedp.accounting.vocabulary import VocabularyRelease
from uedp.errors import UserError

RUN_LEDGER = "ledger.jsonl"
CORPUS_LEDGER = "ledger.jsonl"
_INFINITE = float("inf")
_TIMEOUT = 60.0  # seconds to wait for another run's entry: a run must not fail at its end


@dataclass(frozen=True)
class PlannedRun:
    """Everything that was decided before a run started: the first line of its ledger.

    `lineage` lists the runs that its model and its vocabulary come from. A run without noise has no
    `profile` and no ledger, only its entry in that of the corpus; `without_noise` is its method.
    `epochs` are the digests of the epochs of a corpus that was extended, up to the one of this run;
    `earlier` are the runs on this corpus whose model it trains on.

    Guarantees:
      - `from_record(record())` is equal to it
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
    epochs: tuple[tuple[str, str], ...] = ()
    earlier: tuple[PastRun, ...] = ()

    def __post_init__(self) -> None:
        if self.epochs and self.epochs[-1] != (self.shape.digest, self.setup.texts):
            raise ValueError("the last epoch is not the one that the run sees")
        if not 1 <= self.rounds <= MAX_ROUNDS:
            raise UserError(f"rounds {self.rounds}: must lie in 1..{MAX_ROUNDS:,}")

    @property
    def method(self) -> str:
        if self.profile is None:
            return self.without_noise or "noiseless"
        return self.profile.method

    @property
    def exposed(self) -> str | None:
        """Why there is no guarantee, if there is none."""
        if self.profile is None or self.profile.noise < MIN_NOISE:
            return "no noise was added"
        return self.setup.exposed

    @property
    def model_runs(self) -> tuple[PastRun, ...]:
        """The runs on this corpus that the model goes through, this one last."""
        assert self.profile is not None
        this = PastRun(
            self.run,
            self.profile,
            self.rounds,
            self.shape.digest,
            self.setup.texts,
            self.vocabulary,
            self.setup.sentences_per_user,
        )
        return (*self.earlier, this)

    @property
    def growth(self) -> Growth | None:
        """The guarantee by epochs; None for a run of its own on a corpus that has not grown."""
        if self.profile is None or not (self.epochs or self.earlier):
            return None
        chain = self.epochs or ((self.shape.digest, self.setup.texts),)
        return growth_of(chain, self.model_runs, self.delta)

    @property
    def beside(self) -> tuple[tuple[PrivacyEvent, int], ...]:
        """What is charged to the model besides the rounds of this run."""
        words = () if self.vocabulary is None else ((self.vocabulary, 1),)
        return (*words, *(event for run in self.earlier for event in run.events))

    def beside_missed(
        self, users: int, sentences: int | None
    ) -> tuple[tuple[PrivacyEvent, int], ...]:
        """What the earlier runs are charged for an entity that was missed in them as well."""
        missed = (run.events_missed(users, sentences) for run in self.earlier)
        return tuple(event for events in missed for event in events or ())

    def record(self) -> dict[str, Any]:
        return {
            "kind": "plan",
            "run": self.run,
            **self._releases(),
            "delta": self.delta,
            "shape": self.shape.model_dump(mode="json"),
            "setup": self.setup.model_dump(mode="json"),
            "lineage": [dict(one) for one in self.lineage],
            **self._epochs(),
            **({"earlier": [one.record() for one in self.earlier]} if self.earlier else {}),
        }

    def reservation(self) -> dict[str, Any]:
        """The entry in the ledger of the corpus."""
        return {
            "kind": "reserved",
            "run": self.run,
            "method": self.method,
            "incidence": self.shape.digest,
            "texts": self.setup.texts,
            **self._releases(),
            **self._epochs(),
            "exposed": self.exposed,
        }

    def _epochs(self) -> dict[str, Any]:
        return {"epochs": [list(pair) for pair in self.epochs]} if self.epochs else {}

    def _releases(self) -> dict[str, Any]:
        profile = None if self.profile is None else profile_to_record(self.profile)
        releases = {"profile": profile, "rounds": self.rounds}
        return releases | ({"vocabulary": asdict(self.vocabulary)} if self.vocabulary else {})

    @classmethod
    def from_record(cls, record: Record) -> "PlannedRun":
        """Raises KeyError, TypeError or ValueError for a record of any other kind."""
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
            vocabulary=_vocabulary(record),
            lineage=tuple(record["lineage"]),
            epochs=_epochs(record),
            earlier=tuple(PastRun.from_record(one) for one in record.get("earlier", ())),
        )


def planned_run(path: Path, records: Sequence[Record]) -> PlannedRun:
    """The plan in the records of a run's ledger."""
    plans = of_kind(records, "plan")
    if not plans:
        raise UserError(f"{path}: holds no plan; the run never started")
    with refusing_malformed(path, "run"):
        return PlannedRun.from_record(plans[0])


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


def first_difference(old: Any, new: Any, name: str = "") -> str | None:
    """The first field in which two plans differ, with both values; null is as good as absent."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in [*new, *(key for key in old if key not in new)]:
            inner = f"{name}.{key}" if name else str(key)
            if difference := first_difference(old.get(key), new.get(key), inner):
                return difference
        return None
    return None if old == new else f"{name} is {_short(old)}, not {_short(new)}"


def _epochs(record: Record) -> tuple[tuple[str, str], ...]:
    """The digests of epochs in a plan or a reservation."""
    pairs = [tuple(pair) for pair in record.get("epochs", ())]
    if not all(len(pair) == 2 and all(isinstance(d, str) for d in pair) for pair in pairs):
        raise TypeError("digests of epochs")
    if len({*pairs}) < len(pairs):
        raise ValueError("an epoch that stands twice")
    return tuple((incidence, texts) for incidence, texts in pairs)


def _vocabulary(record: Record) -> VocabularyRelease | None:
    """The private vocabulary of a plan or a reservation, if it has one."""
    fields = record.get("vocabulary")
    return None if fields is None else VocabularyRelease(**fields)


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
    """A run in the ledger of its corpus. `exposed` says why it counts as infinite."""

    run: str
    method: str
    incidence: str
    texts: str
    profile: Profile | None
    planned: int  # rounds
    counted: int  # rounds: those it spent if it is closed, else those it planned
    vocabulary: VocabularyRelease | None
    exposed: str | None
    closed: bool

    @property
    def events(self) -> list[tuple[PrivacyEvent, int]]:
        events = ((self.profile, self.counted), (self.vocabulary, 1))
        return [(event, count) for event, count in events if event is not None]

    @property
    def events_in_some_sentences(self) -> list[tuple[PrivacyEvent, int]]:
        """The same where runs on the corpus knew of different entities."""
        events = self.events
        if self.profile is None:
            return events
        return [(self.profile.in_some_sentences(), self.counted), *events[1:]]

    def epsilon(self, delta: float) -> float:
        return _INFINITE if self.exposed else guarantee(self.events).epsilon(delta)


class EpochTotal(StrictModel):
    """The total for those who joined a corpus in an epoch, or later."""

    epoch: Annotated[int, Field(ge=1)]
    epsilon: float | None
    runs: int
    rounds: int


class CorpusTotal(StrictModel):
    """The total of all runs on a corpus, and the seal of the ledger it was computed from.

    An epsilon of null means: no finite epsilon. `by_epoch` is empty if no run saw more than one.
    """

    epsilon: float | None
    delta: Annotated[float, Field(ge=0, le=1)]
    runs: int
    unit: str
    seal: str
    by_epoch: tuple[EpochTotal, ...] = ()

    def record(self) -> dict[str, Any]:
        """As a run's ledger keeps it."""
        return self.model_dump(exclude=set() if self.by_epoch else {"by_epoch"})

    @classmethod
    def from_record(cls, record: Record) -> "CorpusTotal":
        return cls(**{name: record[name] for name in cls.model_fields if name in record})


class CorpusLedger:
    """Every run on one corpus folder, whatever was detected in it: it is the same people's text.

    The ledger also keeps a secret key. A run's own ledger states texts and lists as digests under
    this key, which tell nothing to those who do not have the corpus.

    Guarantees:
      - all runs of a folder add up; if they used different detections, the total is stated for
        the mentions that all of them found
      - a run without a guarantee counts as infinite
      - a closed run counts the rounds that it spent, an open one those that it reserved
      - a reservation that would exceed the budget is refused and leaves no trace
      - reserving again for the same run and the same plan is the same reservation
      - a run that was closed with rounds left reserves nothing more
      - whoever joined in an epoch is charged for the runs of that epoch and later ones, and for
        all runs of which no epoch of the corpus as it is now is known
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / CORPUS_LEDGER

    @cached_property
    def key(self) -> str:
        """The key of the corpus; if it has none, a new one, recorded with the first reservation."""
        return _key(self._read()) or secrets.token_hex(32)

    def keyed(self, digest: str) -> str:
        """A digest that only those with the corpus can compare."""
        return hmac.new(bytes.fromhex(self.key), digest.encode(), hashlib.sha256).hexdigest()

    def reserve(self, planned: PlannedRun, budget: Budget | None = None) -> None:
        reservation = planned.reservation()
        with self._open() as chain:
            if (known := _key(chain.records)) is not None and known != self.key:
                raise UserError(f"{self.path}: another run started at the same time; start again")
            for earlier in of_kind(chain.records, "reserved"):
                if earlier["run"] == planned.run:
                    self._check_earlier(chain.records, earlier, planned)
                    return
            if budget is not None:
                _refuse_over_budget(chain.records, planned, budget)
            if known is None:
                chain.append({"kind": "key", "key": self.key})
            chain.append(reservation)

    def refuse_over_budget(self, planned: PlannedRun, budget: Budget) -> None:
        """Refuse what `reserve` would refuse for its budget; changes nothing."""
        _refuse_over_budget(self._read(), planned, budget)

    def total_after(self, planned: PlannedRun, delta: float) -> CorpusTotal:
        """The total with this run in it; changes nothing."""
        return total_of([*self._read(), planned.reservation()], (), delta)

    def close(self, run: str, rounds: int, vocabulary: bool = False) -> None:
        """Record the rounds a run has spent; it cannot spend more."""
        closed = {"kind": "closed", "run": run, "rounds": rounds, "vocabulary": vocabulary}
        with self._open() as chain:
            self._entry(chain.records, run)
            if closed not in chain.records:
                chain.append(closed)

    def entries(self) -> list[LedgerEntry]:
        return _entries(self._read())

    def entry(self, run: str) -> LedgerEntry:
        return self._entry(self._read(), run)

    def epsilon(self, delta: float, joined: int = 1, left: int | None = None) -> float:
        """The epsilon of all runs on the corpus together.

        Args:
            joined, left: for those who joined in an epoch, and left when another one began: the
                epochs are those of the corpus that the last run saw.
        """
        records = self._read()
        entries, chain = _entries(records), _chain(records)
        return _epsilon(_charged(entries, chain, joined, left), delta, _differ(entries))

    def total(self, delta: float) -> CorpusTotal:
        records, seals = read_chain(self.path)
        _refuse_malformed(self.path, records)
        return total_of(records, seals, delta)

    @contextmanager
    def _open(self) -> Iterator[Chain]:
        with Chain(self.path, _TIMEOUT) as chain:
            _refuse_malformed(self.path, chain.records)
            yield chain

    def _read(self) -> Sequence[Record]:
        records = read_chain(self.path)[0] if self.path.is_file() else []
        _refuse_malformed(self.path, records)
        return records

    def _entry(self, records: Sequence[Record], run: str) -> LedgerEntry:
        for entry in _entries(records):
            if entry.run == run:
                return entry
        raise UserError(f"{self.path}: has no run {run}; was it made on another corpus?")

    def _check_earlier(
        self, records: Sequence[Record], earlier: Record, planned: PlannedRun
    ) -> None:
        if changed := first_difference(earlier, planned.reservation()):
            raise UserError(
                f"run {planned.run} reserved another plan before ({changed}); start a new run"
            )
        entry = self._entry(records, planned.run)
        if entry.closed and entry.counted < planned.rounds:
            raise UserError(
                f"run {planned.run}: was closed after {entry.counted} rounds, and cannot resume; "
                "start a new run"
            )


def _refuse_over_budget(records: Sequence[Record], planned: PlannedRun, budget: Budget) -> None:
    total = _epsilon(_entries([*records, planned.reservation()]), budget.delta)
    if not total <= budget.epsilon:
        why = f" ({planned.exposed})" if planned.exposed else ""
        raise UserError(
            f"budget epsilon {budget.epsilon:g} (delta {budget.delta:g}): all runs on this corpus "
            f"would come to {total:.4g}{why}; plan fewer rounds or more noise"
        )


def total_of(records: Sequence[Record], seals: Sequence[str], delta: float) -> CorpusTotal:
    entries = _entries(records)
    epsilon = _epsilon(entries, delta)
    return CorpusTotal(
        epsilon=epsilon if epsilon < _INFINITE else None,
        delta=delta,
        runs=len(entries),
        unit=_unit(entries, _chain(records)),
        seal=seals[-1] if seals else FIRST_SEAL,
        by_epoch=_by_epoch(entries, _chain(records), delta),
    )


def _chain(records: Sequence[Record]) -> tuple[tuple[str, str], ...]:
    """The digests of the epochs of the corpus that the last run saw."""
    reserved = of_kind(records, "reserved")
    if not reserved:
        return ()
    return _epochs(reserved[-1]) or (
        (reserved[-1]["incidence"], str(reserved[-1].get("texts", ""))),
    )


def _charged(
    entries: Sequence[LedgerEntry],
    chain: Sequence[tuple[str, str]],
    joined: int = 1,
    left: int | None = None,
) -> list[LedgerEntry]:
    return [e for e in entries if charged(epoch_of(chain, e.incidence, e.texts), joined, left)]


def _by_epoch(
    entries: Sequence[LedgerEntry], chain: Sequence[tuple[str, str]], delta: float
) -> tuple[EpochTotal, ...]:
    totals = []
    for joined in range(1, len(chain) + 1) if len(chain) > 1 else ():
        runs = _charged(entries, chain, joined)
        epsilon = _epsilon(runs, delta, True) if runs else 0.0
        totals.append(
            EpochTotal(
                epoch=joined,
                epsilon=epsilon if epsilon < _INFINITE else None,
                runs=len(runs),
                rounds=sum(entry.counted for entry in runs),
            )
        )
    return tuple(totals)


def _refuse_malformed(path: Path, records: Sequence[Record]) -> None:
    with refusing_malformed(path, "corpus"):
        if (key := _key(records)) is not None and len(bytes.fromhex(key)) != 32:
            raise ValueError("its key")
        for record in of_kind(records, "reserved"):
            _epochs(record)
        for entry in _entries(records):
            if not all(type(count) is int for count in (entry.counted, entry.planned)):
                raise ValueError("a number of rounds")
            if not 0 <= entry.counted <= entry.planned <= MAX_ROUNDS:
                raise ValueError(f"{entry.counted} of {entry.planned} rounds")
            if not all(isinstance(name, str) for name in (entry.run, entry.method)):
                raise ValueError("the name of a run")
            if entry.profile is None and not entry.exposed:
                raise ValueError("a run with neither a profile nor a reason for having none")


def _key(records: Sequence[Record]) -> str | None:
    keys = of_kind(records, "key")
    return keys[0]["key"] if keys else None


def _entries(records: Sequence[Record]) -> list[LedgerEntry]:
    closed = {record["run"]: record for record in of_kind(records, "closed")}
    entries = []
    for record in of_kind(records, "reserved"):
        end, profile = closed.get(record["run"]), record["profile"]
        entries.append(
            LedgerEntry(
                run=record["run"],
                method=record["method"],
                incidence=record["incidence"],
                texts=str(record.get("texts", "")),
                profile=None if profile is None else profile_from_record(profile),
                planned=record["rounds"],
                counted=record["rounds"] if end is None else end["rounds"],
                vocabulary=_vocabulary(record) if end is None or end["vocabulary"] else None,
                exposed=record["exposed"],
                closed=end is not None,
            )
        )
    return entries


def _differ(entries: Sequence[LedgerEntry]) -> bool:
    """Whether runs saw different entities, so that some sentences count as missed mentions."""
    return len({entry.incidence for entry in entries}) > 1


def _epsilon(entries: Sequence[LedgerEntry], delta: float, differ: bool | None = None) -> float:
    """Runs of one method compose; over methods, which protect different units, epsilons add."""
    if any(entry.exposed for entry in entries):
        return _INFINITE
    methods: dict[str, list[tuple[PrivacyEvent, int]]] = {}
    differ = _differ(entries) if differ is None else differ
    for entry in entries:
        events = entry.events_in_some_sentences if differ else entry.events
        methods.setdefault(entry.method, []).extend(events)
    try:
        return sum(guarantee(events).epsilon(delta / len(methods)) for events in methods.values())
    except UserError:  # more rounds together than this delta can be computed for
        return _INFINITE


def _unit(entries: Sequence[LedgerEntry], chain: Sequence[tuple[str, str]] = ()) -> str:
    """Whom the total protects: the unit of the method that protects least."""
    if any(entry.exposed for entry in entries):
        return "nobody: a run without a guarantee is among them"
    profiles = [entry.profile for entry in entries if entry.profile is not None]
    weakest = min(profiles, key=lambda profile: profile.protects_entities, default=None)
    if weakest is None:
        return "nobody: there are no runs"
    # the epochs of one corpus are one detection that grew
    seen = {e.incidence if not epoch_of(chain, e.incidence, e.texts) else "" for e in entries}
    detections = len(seen)
    if detections > 1 and weakest.protects_entities:
        # a sentence in which an earlier run knew of no such entity was not hidden with it there
        return (
            f"{weakest.short_unit}, in the sentences where each of the {detections} detections "
            "that runs used found it"
        )
    if len(chain) > 1 and weakest.protects_entities:
        return f"{weakest.short_unit}, in the sentences where it was found when they joined"
    return weakest.short_unit


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
        self._plan = of_kind(chain.records, "plan")[0]

    @classmethod
    @contextmanager
    def open(
        cls, folder: Path, planned: PlannedRun, corpus: Path | None = None
    ) -> Iterator["RunLedger"]:
        """`corpus` is the folder that keeps the high-water mark of this ledger."""
        plan = planned.record()
        with Chain(folder / RUN_LEDGER) as chain:
            _refuse_another(chain.path, chain.records, plan)
            with nullcontext(None) if corpus is None else Mark(corpus, planned.run) as mark:
                spent = spent_rounds(chain.records)
                if mark is not None and corpus is not None:
                    mark.check(chain.path, chain.seals, spent)
                    _refuse_older(chain.path, spent, CorpusLedger(corpus), planned.run)
                if of_kind(chain.records, "plan"):
                    # the setup of the rounds from here on; `verify` compares it
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
        """Record rounds before their noisy sums are used."""
        if rounds < 1:
            raise ValueError("at least one round is spent at a time")
        self.require(rounds)
        self._spend({"kind": "rounds", "first": self.spent, "count": rounds})

    def require(self, rounds: int = 1) -> None:
        """Refuse if fewer rounds are left."""
        if rounds > self.left:
            raise UserError(
                f"{self._chain.path}: {self.spent} of {self._plan['rounds']} planned rounds are "
                "spent; no more may be run"
            )

    @property
    def begun(self) -> str | None:
        """The digest of the key with which the next round began, None if it was not begun."""
        return None if self._mark is None else self._mark.begun(self.spent)

    def begin(self, digest: str) -> None:
        """Record, beside the corpus, that the next round begins with the key of this digest."""
        if self._mark is not None:
            self._mark.begin(self.spent, digest)

    @property
    def vocabulary_spent(self) -> bool:
        """Whether the private vocabulary may have been made."""
        return bool(of_kind(self._chain.records, "vocabulary"))

    def spend_vocabulary(self) -> None:
        """Record the private vocabulary before its noisy counts are used."""
        if self._plan.get("vocabulary") is None:
            raise UserError(f"{self._chain.path}: no private vocabulary was planned")
        if self.vocabulary_spent:
            raise UserError(
                f"{self._chain.path}: the private vocabulary was made before, and making it again "
                "would cost again; use the one that was saved, or start a new run"
            )
        self._spend({"kind": "vocabulary"})

    @property
    def words(self) -> Mapping[str, str] | None:
        """The vocabulary files of the run, by their hashes; None before they are recorded."""
        records = of_kind(self._chain.records, "words")
        return records[-1]["files"] if records else None

    def record_words(self, files: Mapping[str, str]) -> None:
        """Record the vocabulary files of the run before they are put in place."""
        self._chain.append({"kind": "words", "files": dict(sorted(files.items()))})

    def record_public(self, steps: int) -> None:
        """Record that training on public text has ended; again changes nothing."""
        if not of_kind(self._chain.records, "public"):
            self._chain.append({"kind": "public", "steps": steps, "before_round": self.spent})

    def record_saved(self, files: Mapping[str, str]) -> None:
        """Record the files of the model, by their hashes, once all rounds are spent."""
        if self.left:
            raise UserError(
                f"{self._chain.path}: {self.left} rounds are left; only a finished run has a model"
            )
        self._chain.append({"kind": "saved", "files": dict(sorted(files.items()))})

    def record_corpus(self, total: CorpusTotal) -> None:
        """Record the total of all runs on the corpus so far."""
        self._chain.append({"kind": "corpus", **total.record()})

    def _spend(self, record: Record) -> None:
        # random, so that rounds repeated after the ledger was cut do not get the same seals
        self._chain.append({**record, "nonce": secrets.token_hex(8)})
        self._advance()

    def _advance(self) -> None:
        if self._mark is not None:
            self._mark.advance(self.spent, self.seal)


def close_run(folder: Path, corpus: CorpusLedger) -> LedgerEntry:
    """End a run early, for good: the rounds it has spent count, and it cannot be resumed."""
    path = folder / RUN_LEDGER
    if not path.is_file():
        raise UserError(f"{path}: no such ledger; only a run with noise can be closed")
    with Chain(path) as chain:  # refused while the run is being trained
        planned = planned_run(path, chain.records)
        corpus.entry(planned.run)
        spent = spent_rounds(chain.records)
        with Mark(corpus.folder, planned.run) as mark:
            mark.check(path, chain.seals, spent)
            if not of_kind(chain.records, "closed"):
                chain.append({"kind": "closed", "spent": spent})
            mark.advance(spent, chain.seal)
        ledger = RunLedger(chain)
        corpus.close(planned.run, spent, ledger.vocabulary_spent)
        ledger.record_corpus(corpus.total(planned.delta))
    return corpus.entry(planned.run)


def spent_rounds(records: Sequence[Record]) -> int:
    counts: list[Any] = [record.get("count") for record in of_kind(records, "rounds")]
    if not all(type(count) is int and count > 0 for count in counts):
        raise UserError(f"{RUN_LEDGER}: a number of rounds that no run wrote; restore it")
    return sum(counts)


def refuse_another_plan(folder: Path, planned: PlannedRun) -> None:
    """Refuse to resume a run that was planned differently; changes nothing."""
    path = folder / RUN_LEDGER
    if path.is_file():
        _refuse_another(path, read_chain(path)[0], planned.record())


def _refuse_another(path: Path, records: Sequence[Record], plan: Record) -> None:
    plans = of_kind(records, "plan")
    if plans and (changed := first_difference(plans[0], plan)):
        raise UserError(
            f"{path}: this run was planned differently: {changed}; resume it as it was, or start "
            "a new run"
        )
    if plans and of_kind(records, "closed"):
        raise UserError(f"{path}: this run was closed, and cannot resume; start a new run")


def _refuse_older(path: Path, spent: int, corpus: CorpusLedger, run: str) -> None:
    """Refuse a copy of a run that was made before it was finished or closed."""
    for entry in corpus.entries():
        if entry.run == run and entry.closed and entry.counted > spent:
            raise UserError(
                f"{path}: has {spent} rounds where {corpus.path} has {entry.counted} of this run, "
                "which is finished or closed; its rounds cannot be repeated"
            )
