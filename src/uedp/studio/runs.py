"""The Runs page: all runs, one run live, verification, reports, and runs side by side."""

import re
from collections.abc import Container, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import anyio
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from uedp.accounting.attacker import strength_of
from uedp.accounting.certificate import not_checked, verify
from uedp.accounting.ledger import CorpusLedger
from uedp.accounting.limits import DEFAULT_DELTA
from uedp.accounting.model_files import refuse_other_files
from uedp.accounting.statement import epsilon_text
from uedp.errors import UserError
from uedp.report.run_charts import contradicted, run_charts, spent_so_far
from uedp.report.run_record import RunRecord
from uedp.studio.pages import page
from uedp.studio.run_folders import Live, RunFolder, find_run, run_folders, state_of
from uedp.studio.settings import Settings

_SANDBOX = "frame-ancestors 'none'; sandbox allow-scripts allow-modals"  # modals: to print
_MOST_COMPARED = 12
_QUICK_BYTES = 200_000_000  # of a model that is hashed without being asked


def routes(settings: Settings) -> list[Route]:
    runs = _Runs(settings)
    return [
        Route("/runs", runs.all),
        Route("/runs/view", runs.one),
        Route("/runs/live", runs.live),
        Route("/runs/verify", runs.verified),
        Route("/runs/report", runs.report),
        Route("/runs/compare", runs.compared),
    ]


class _Runs:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._live = Live()

    # --- pages -----------------------------------------------------------------------------------

    async def all(self, request: Request) -> Response:
        rows, problems = await anyio.to_thread.run_sync(self._rows)
        ledger = await anyio.to_thread.run_sync(self._ledger, rows)
        return page(
            self._settings,
            "runs.html",
            section="runs",
            rows=rows,
            problems=problems,
            ledger=ledger,
        )

    async def one(self, request: Request) -> Response:
        run, record = await self._asked(request)
        return page(
            self._settings,
            "run.html",
            section="runs",
            run=run,
            record=record,
            state=state_of(record),
            epsilon=epsilon_words(record),
            quick=_quick(record),
        )

    async def live(self, request: Request) -> Response:
        """State and curves of a run; 204 if nothing has changed since `seen`."""
        _, record = await self._asked(request)
        state = state_of(record)
        version = f"{state} {record.rounds_done} {record.certificate is not None}"
        if request.query_params.get("seen") == version:
            return Response(status_code=204)
        charts = await anyio.to_thread.run_sync(run_charts, [record])
        spent = await anyio.to_thread.run_sync(_spent_so_far, record)
        planned = record.rounds_planned
        return JSONResponse(
            {
                "version": version,
                "state": state,
                "rounds": f"{record.rounds_done:,}"
                + ("" if planned is None else f" of {planned:,}"),
                "spent": spent,
                "charts": [asdict(chart) for chart in charts],
            }
        )

    async def verified(self, request: Request) -> Response:
        run, record = await self._asked(request)
        return JSONResponse(await anyio.to_thread.run_sync(self._verification, run, record))

    async def report(self, request: Request) -> Response:
        """The internal report, written now, with its own content policy and in a sandbox."""
        run, record = await self._asked(request)
        html, policy = await anyio.to_thread.run_sync(self._report, run, record)
        return HTMLResponse(html, headers={"Content-Security-Policy": policy})

    async def compared(self, request: Request) -> Response:
        keys = list(dict.fromkeys(request.query_params.getlist("run")))
        if not 1 < len(keys) <= _MOST_COMPARED:
            raise UserError(
                f"choose two to {_MOST_COMPARED} runs to compare; these are {len(keys)}"
            )
        runs = [find_run(self._settings, key) for key in keys]
        records = [await anyio.to_thread.run_sync(self._live.record, run.folder) for run in runs]
        void = await anyio.to_thread.run_sync(_other_models, records)
        charts = await anyio.to_thread.run_sync(run_charts, records, void)
        return page(
            self._settings,
            "compare.html",
            section="runs",
            runs=list(zip(runs, records, strict=True)),
            table=comparison(records, void),
            charts=charts,
        )

    # --- what they show --------------------------------------------------------------------------

    async def _asked(self, request: Request) -> tuple[RunFolder, RunRecord]:
        run = find_run(self._settings, request.query_params.get("run", ""))
        return run, await anyio.to_thread.run_sync(self._live.record, run.folder)

    def _rows(self) -> tuple[list["Row"], list[str]]:
        rows, problems = [], []
        for run in run_folders(self._settings):
            try:
                record = self._live.record(run.folder)
                words = epsilon_words(record)
            except (UserError, OSError) as error:
                problems.append(f"{run.name}: {error}")
                continue
            rows.append(Row(run, record, state_of(record), words, _quick(record)))
        return rows, problems

    def _ledger(self, rows: Sequence["Row"]) -> "LedgerTable | None":
        """The runs in the ledger of the corpus, whether their folders are known or not."""
        if self._settings.corpus is None:
            return None
        ledger = CorpusLedger(self._settings.corpus)
        try:
            entries = ledger.entries()
            if not entries:
                return LedgerTable()
            total = ledger.total(DEFAULT_DELTA)
        except UserError as error:
            return LedgerTable(problem=str(error))
        folders = {row.record.run: row.run for row in rows if row.record.run is not None}
        shown = [
            {
                "run": entry.run,
                "folder": folders.get(entry.run),
                "method": entry.method,
                "rounds": f"{entry.counted:,} of {entry.planned:,}",
                "closed": entry.closed,
                "epsilon": epsilon_text(entry.epsilon(DEFAULT_DELTA)),
                "exposed": entry.exposed,
            }
            for entry in entries
        ]
        return LedgerTable(shown, epsilon_text(total.epsilon), total.unit)

    def _report(self, run: RunFolder, record: RunRecord) -> tuple[str, str]:
        from uedp.report.page import content_policy, report

        corpus = self._corpus_of(record)
        written = report([run.folder], "internal", corpus=corpus, translate=_as_flags)
        return written.html, f"{content_policy()}; {_SANDBOX}"

    def _corpus_of(self, record: RunRecord) -> Path | None:
        """The corpus, if its ledger has this run."""
        if self._settings.corpus is None or record.run is None:
            return None
        try:
            entries = CorpusLedger(self._settings.corpus).entries()
        except UserError:
            return None
        known = any(entry.run == record.run for entry in entries)
        return self._settings.corpus if known else None

    def _verification(self, run: RunFolder, record: RunRecord) -> dict[str, Any]:
        """Whether the ledger, the certificate and the model agree; nobody's word is taken."""
        if record.certificate is None and record.without_noise:
            text = "The method adds no noise: there is nothing to certify."
            return {"verdict": "no guarantee", "text": text, "open": []}
        corpus = self._corpus_of(record)
        try:
            certificate = verify(run.folder, corpus=corpus)
        except (UserError, OSError) as error:
            return {"verdict": "does not verify", "text": str(error), "open": []}
        text = "The ledger is intact, every number was computed again, and "
        text += (
            f"the {len(certificate.files)} files of the model are the certified ones."
            if certificate.files
            else "there is no model yet."
        )
        left = not_checked(certificate, signed=False, corpus=corpus is not None)
        return {"verdict": "consistent", "text": text, "open": [_as_flags(line) for line in left]}


@dataclass(frozen=True)
class Row:
    """A run in the list. `quick`: it is verified without being asked."""

    run: RunFolder
    record: RunRecord
    state: str
    epsilon: str
    quick: bool


@dataclass(frozen=True)
class LedgerTable:
    """The runs on a corpus, and what they have spent together."""

    entries: Sequence[dict[str, Any]] = ()
    total: str = ""
    unit: str = ""
    delta: float = DEFAULT_DELTA
    problem: str = ""


def epsilon_words(record: RunRecord) -> str:
    """The epsilon of a run, as its certificate states it, or else by the ledger."""
    if record.certificate is None or record.without_noise:
        return ledger_epsilon(record) + (" planned" if record.planned is not None else "")
    return (
        epsilon_text(record.certificate.epsilon) if record.certificate.private else "no guarantee"
    )


def ledger_epsilon(record: RunRecord) -> str:
    """The epsilon of the plan in a run's ledger, computed now.

    Guarantees:
      - no number, where the certificate states another one
    """
    if record.without_noise:
        return "no guarantee: no noise"
    planned = record.planned
    if planned is None:
        return "not known"
    if planned.exposed is not None:
        return f"no guarantee: {planned.exposed}"
    if contradicted(record):
        return "not proven: the certificate states another"
    strength = strength_of(planned)
    return epsilon_text(None if strength is None else strength.epsilon)


def _spent_so_far(record: RunRecord) -> str | None:
    """The epsilon of the rounds that were done, in words; None where there is none."""
    spent = spent_so_far(record)
    if not spent or record.planned is None:
        return None
    return f"{epsilon_text(spent[max(spent)])}, at delta {record.planned.delta:g}"


def _quick(record: RunRecord) -> bool:
    """Whether verifying takes a moment only."""
    if record.certificate is None:
        return False
    sizes = []
    for name in record.certificate.files:
        try:
            sizes.append((record.folder / name).stat().st_size)
        except (OSError, ValueError):
            continue
    return sum(sizes) <= _QUICK_BYTES


def _as_flags(text: str) -> str:
    """Parameters of the library as flags of the command that takes them."""
    return re.sub(
        r"`([a-z_]+)=\.\.\.`",
        lambda found: f"uedp certificate verify --{found[1].replace('_', '-')}",
        text,
    )


_COMPARED = (
    ("method", "privacy", "method"),
    ("model", "model", "name"),
    ("trained", "model", "train"),
    ("rounds", "privacy", "rounds"),
    ("user sampling rate", "privacy", "user_rate"),
    ("entity share", "privacy", "entity_share"),
    ("clipping norm", "privacy", "update_clip"),
    ("delta", "privacy", "delta"),
    ("optimiser", "optimiser", "name"),
    ("learning rate", "optimiser", "rate"),
)


def _other_models(records: Sequence[RunRecord]) -> set[Path]:
    """The runs whose models are not those that were certified; large ones are not looked at."""
    found = set()
    for record in records:
        if record.certificate is not None and _quick(record):
            try:
                refuse_other_files(record.folder, record.certificate.files)
            except (UserError, OSError):
                found.add(record.folder)
    return found


def _compared_epsilon(record: RunRecord, void: Container[Path]) -> str:
    if record.folder in void:
        return "not proven: the model is not the certified one"
    unchecked = record.certificate is not None and not _quick(record)
    return ledger_epsilon(record) + (", model not checked" if unchecked else "")


def comparison(
    records: Sequence[RunRecord], void: Container[Path] = ()
) -> list[tuple[str, list[str]]]:
    """Settings and results by rows; settings that all runs share are left out."""
    rows = [("state", [state_of(record) for record in records])]
    rows.append(("epsilon, at most", [_compared_epsilon(record, void) for record in records]))
    plans = [None if record.planned is None else record.planned.profile for record in records]
    settings = [("noise multiplier", ["" if p is None else f"{p.noise:.4g}" for p in plans])]
    for name, section, field in _COMPARED:
        given = [record.setting(section, field) for record in records]
        settings.append((name, ["" if value is None else f"{value}" for value in given]))
    rows += [(name, values) for name, values in settings if len(set(values)) > 1]
    names = dict.fromkeys(name for record in records for name in record.measures)
    for name in names:
        measured = [record.series(name)[1] for record in records]
        if any(len(values) for values in measured):
            rows.append(
                (name, [f"{values[-1]:,.4g}" if len(values) else "" for values in measured])
            )
    return rows
