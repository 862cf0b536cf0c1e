"""Reports: one HTML file about one or several runs, for the curator or for the public.

The *internal* report shows everything that is known of a run. The *public* one is rendered from
`PublicFacts` and the results of the checks, which say nothing that is computed from texts.
"""

import base64
import datetime
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import uedp
from uedp.accounting.attacker import (
    strength_for_user,
    strength_if_missed,
    strength_of,
)
from uedp.accounting.ledger import CorpusLedger, CorpusTotal, LedgerEntry
from uedp.accounting.profile import profile_type
from uedp.accounting.publishable import PublicFacts, public_facts
from uedp.accounting.statement import finite
from uedp.errors import UserError
from uedp.files import private_opener
from uedp.progress import SILENT, Progress
from uedp.report import wording
from uedp.report.attacks import (
    JOINT_CONFIDENCE,
    Attacks,
    Extracted,
    alarms,
    attacks,
    extractions,
)
from uedp.report.run_charts import (
    QUALITY,
    RunChart,
    epsilon_charts,
    measure_charts,
    quality_charts,
    round_charts,
)
from uedp.report.run_record import RunRecord
from uedp.report.templates import stylesheet, template
from uedp.report.verification import Status, Verification, verify_run
from uedp.report.wording import Decision, MissedCase

Kind = Literal["internal", "public"]
FILES: Mapping[Kind, str] = {"internal": "report.html", "public": "report-public.html"}

_SCRIPT = """
addEventListener("beforeprint", () => {
  for (const part of document.querySelectorAll("details")) part.open = true;
});
function reveal() {
  const part = location.hash && document.getElementById(location.hash.slice(1));
  if (part && part.tagName === "DETAILS") part.open = true;
}
addEventListener("hashchange", reveal);
reveal();
"""
_WHOLE = ("perplexity", "error rate")


@dataclass(frozen=True, eq=False)
class RunPage:
    """Everything that the page says of one run."""

    place: int
    name: str
    record: RunRecord
    verification: Verification
    decision: Decision
    attacks: Attacks
    alarms: Sequence[str] = ()
    extracted: Sequence[Extracted] = ()
    figures: Sequence[RunChart] = ()

    @property
    def quality(self) -> list[str]:
        """The measures on held-out text that were taken before or after training."""
        taken = {**(self.record.before or {}), **(self.record.after or {})}
        return [name for name in self.record.measures if name in taken]


@dataclass(frozen=True, eq=False)
class PublicPage:
    """Everything that the public page says of one model; no facts where it does not verify."""

    place: int
    facts: PublicFacts | None
    verification: Verification
    decision: Decision


@dataclass(frozen=True, eq=False)
class CorpusPage:
    """The corpus of the runs: what was spent on it, and what it holds. For the curator only."""

    total: CorpusTotal | None
    entries: Sequence[tuple[LedgerEntry, float | None]]
    numbers: Mapping[str, Any]


@dataclass(frozen=True)
class Report:
    """A report as the text of one HTML file, and how each run stands."""

    html: str
    kind: Kind
    statuses: Mapping[Path, Status]

    @property
    def failed(self) -> list[Path]:
        """The runs that do not verify."""
        return [run for run, status in self.statuses.items() if status == "failed"]

    def write(self, path: Path) -> None:
        """Write the file; an internal report is readable by its owner only."""
        path.parent.mkdir(parents=True, exist_ok=True)
        data = self.html.encode("utf-8", errors="replace")  # a folder's name may be no text
        opener = private_opener if self.kind == "internal" else None
        with open(path, "wb", opener=opener) as file:
            file.write(data)


def report(
    runs: Sequence[Path],
    kind: Kind = "internal",
    *,
    audits: Sequence[Path] = (),
    corpus: Path | None = None,
    public_key: Path | None = None,
    translate: Callable[[str], str] = str,
    progress: Progress = SILENT,
) -> Report:
    """Report on runs, in one HTML file that needs nothing else.

    Args:
        audits: Results of audits, beside those in the folders `audits` of the runs.
        corpus: The corpus of the runs, for what was spent on it, and what it holds.
        public_key: To check signatures with.
        translate: For lines that name parameters of Python, which a command line calls otherwise.

    Guarantees:
      - every run is verified now; no number of one that fails is shown as proven
      - the public kind is a function of `PublicFacts` and of which checks passed
    """
    if not runs:
        raise UserError("`runs=...`: name the folder of a run")
    if len({run.resolve() for run in runs}) < len(runs):
        raise UserError("a run is named twice; name each once")
    for path in audits:
        if not path.exists():
            raise UserError(f"{path}: no such file; name the result of an audit")
    records = [RunRecord.read(run, audits) for run in runs]
    with progress.stage("verifying", len(records), "runs") as meter:
        verified = []
        for record in records:
            verified.append(verify_run(record, public_key, corpus))
            meter.advance(1)
    statuses = {run: one.status for run, one in zip(runs, verified, strict=True)}
    if kind == "public":
        return Report(_public(records, verified), kind, statuses)
    pages = []
    with progress.stage("drawing", len(records), "runs") as meter:
        for place, (record, verification) in enumerate(zip(records, verified, strict=True), 1):
            pages.append(_run_page(place, record, verification))
            meter.advance(1)
    html = _render(
        "internal.html",
        pages=pages,
        corpus=None if corpus is None else _corpus_page(corpus, records, progress),
        comparison=_comparison(pages) if len(pages) > 1 else (),
        measures=_measures(pages),
        translate=translate,
        joint_confidence=JOINT_CONFIDENCE,
    )
    return Report(html, kind, statuses)


def _public(records: Sequence[RunRecord], verified: Sequence[Verification]) -> str:
    pages = []
    for place, (record, verification) in enumerate(zip(records, verified, strict=True), 1):
        if verification.status in ("failed", "unfinished"):
            facts, decision = None, Decision(verification.status, "", ())
        else:
            facts = public_facts(record.folder)
            decision = wording.public_decision(facts)
        pages.append(PublicPage(place, facts, verification, decision))
    return _render("public.html", pages=pages)


def content_policy() -> str:
    """What a browser may do with a report: run its one script, known by its hash, and no more."""
    digest = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _render(name: str, **context: Any) -> str:
    return template(name).render(
        **context,
        style=stylesheet(),
        own_style=stylesheet("report.css"),
        script=_SCRIPT,
        policy=content_policy(),
        day=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        version=uedp.__version__,
        words=wording,
    )


# --- one run -------------------------------------------------------------------------------------


def _run_page(place: int, record: RunRecord, verification: Verification) -> RunPage:
    found = attacks(record)
    return RunPage(
        place=place,
        name=record.name,
        record=record,
        verification=verification,
        decision=_decision(record, verification),
        alarms=alarms(found),
        attacks=found,
        extracted=extractions(record),
        figures=_figures(record, verification),
    )


def _decision(record: RunRecord, verification: Verification) -> Decision:
    certificate, planned = verification.certificate, record.planned
    if certificate is None or planned is None:
        why = "no noise was added" if verification.status == "none" else ""
        return Decision(verification.status, why, ())
    missed = [
        MissedCase(
            row.words, row.epsilon, strength_if_missed(planned, row.users, row.sentences_per_user)
        )
        for row in certificate.missed_mentions
    ]
    return wording.decision(
        certificate,
        strength_of(planned),
        strength_for_user(planned),
        missed,
        profile_type(certificate.method).protects_entities,
    )


def _figures(record: RunRecord, verification: Verification) -> list[RunChart]:
    void = _void([(record, verification)])
    return [
        *quality_charts(record),
        *epsilon_charts([record], void),
        *round_charts([record]),
    ]


def _void(verified: Iterable[tuple[RunRecord, Verification]]) -> set[Path]:
    """The runs that do not verify: no epsilon is drawn of them."""
    return {
        record.folder
        for record, verification in verified
        if verification.status not in ("proven", "unfinished")
    }


# --- several runs, and their corpus --------------------------------------------------------------


def _comparison(pages: Sequence[RunPage]) -> list[RunChart]:
    """Charts with one line per run."""
    records = [page.record for page in pages]
    void = _void((page.record, page.verification) for page in pages)
    return [*measure_charts(records), *epsilon_charts(records, void)]


def _measures(pages: Sequence[RunPage]) -> list[str]:
    """The measures that a table of runs has a column for."""
    wanted = (*_WHOLE, *(name for name, _ in QUALITY))
    return [name for name in wanted if any(name in page.record.measures for page in pages)]


def _corpus_page(folder: Path, records: Sequence[RunRecord], progress: Progress) -> CorpusPage:
    from uedp.corpus.store import Corpus
    from uedp.entities.breakdown import breakdown

    corpus: Corpus = Corpus(folder)
    deltas = {record.planned.delta for record in records if record.planned is not None}
    delta = min(deltas, default=1e-5)
    ledger = CorpusLedger(corpus.folder)
    entries = ledger.entries()
    return CorpusPage(
        total=ledger.total(delta) if entries else None,
        entries=[(entry, finite(entry.epsilon(delta))) for entry in entries],
        numbers=breakdown(corpus, progress),
    )
