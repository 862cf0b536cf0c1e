"""The Budget page: knobs, and what the accountant says of them.

One request asks for all that depends on the knobs. Its answer is a stream of JSON lines: first the
numbers, one by one, then charts whose points are added as they are computed. When a knob moves, the
page drops the stream, and the server stops computing after the point at hand.
"""

import json
import math
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from threading import Event
from time import perf_counter
from typing import Any

import anyio
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from uedp.accounting.decisions import Shape
from uedp.accounting.ledger import CorpusLedger, PlannedRun
from uedp.accounting.limits import default_delta
from uedp.accounting.statement import named_epsilon, rounded
from uedp.corpus.store import Corpus
from uedp.errors import UserError
from uedp.report.charts import ChartMark, Line, line_chart
from uedp.studio import epsilons
from uedp.studio.commands import check_command, train_command
from uedp.studio.controls import CONTROLS, METHOD_WORDS
from uedp.studio.cost import CorpusSupply, Fact, MeasuredPace, facts
from uedp.studio.epsilons import (
    ENTITY,
    SLOWEST,
    UNITS,
    USER,
    Curves,
    EpsilonBound,
    Knobs,
    StoppedError,
    Waiting,
    percent,
)
from uedp.studio.pages import page
from uedp.studio.run_folders import Live, RunFolder, find_run, run_folders
from uedp.studio.settings import Settings

Message = dict[str, Any]
_COMPUTING = 2  # answers at a time; others wait, and pages are served meanwhile
_DRAWN_EVERY = 0.4  # seconds between two drawings of a chart that still grows
_SIZE = (440, 300)


def routes(settings: Settings) -> list[Route]:
    budget = _Budget(settings)
    return [Route("/budget", budget.show), Route("/budget/epsilons", budget.epsilons)]


class _Budget:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._limiter: anyio.CapacityLimiter | None = None
        self._supply: CorpusSupply | None = None
        self._live = Live()

    async def show(self, request: Request) -> Response:
        supply = await anyio.to_thread.run_sync(self._corpus)
        start = Knobs()
        if supply is not None:
            users = supply.incidence.users
            start = replace(start, users=users, delta=default_delta(users))
        return page(
            self._settings,
            "budget.html",
            section="budget",
            controls=CONTROLS,
            methods=METHOD_WORDS,
            start=asdict(start),
            units=UNITS,
            main=(USER.name, ENTITY.name),
            runs=await anyio.to_thread.run_sync(self._timed_runs),
        )

    async def epsilons(self, request: Request) -> Response:
        """The stream for the knobs of the query."""
        values = dict(request.query_params)
        if values.get("pace"):
            find_run(self._settings, values["pace"])  # refuses a folder that was not given
        lines = self._lines(values)
        return StreamingResponse(lines, media_type="application/x-ndjson")

    async def _lines(self, values: dict[str, str]) -> AsyncIterator[bytes]:
        """The messages, each computed in a thread; once nobody reads them, no more are."""
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(_COMPUTING)
        gone = Event()
        messages = self._messages(values, lambda: not gone.is_set())
        step = partial(next, messages, None)
        try:
            while True:
                message = await anyio.to_thread.run_sync(
                    step, abandon_on_cancel=True, limiter=self._limiter
                )
                if message is None:
                    return
                yield json.dumps(message, allow_nan=False).encode() + b"\n"
        finally:
            gone.set()

    def _messages(self, values: dict[str, str], waiting: Waiting) -> Iterator[Message]:
        try:
            knobs = Knobs.read(values)
            knobs.check()
            noise = epsilons.solved_noise(knobs, waiting)
            yield from self._answers(knobs, noise, values, waiting)
            yield {"kind": "done"}
        except UserError as error:
            yield {"kind": "refused", "text": in_words(str(error))}
        except StoppedError:
            return

    def _answers(
        self, knobs: Knobs, noise: float, values: Mapping[str, str], waiting: Waiting
    ) -> Iterator[Message]:
        profile = knobs.profile(noise)
        if knobs.target is not None:
            yield {"kind": "noise", "value": float(rounded(noise, 6))}
        quick = (unit for unit in UNITS if unit is not SLOWEST)
        for unit in (*quick, SLOWEST):
            event = unit.event(profile)
            if event is None:
                yield {"kind": "number", "unit": unit.name, "text": "no promise", "success": ""}
                continue
            found = epsilons.bound(event, knobs.rounds, knobs.delta)
            yield {
                "kind": "number",
                "unit": unit.name,
                "text": found.text,
                "epsilon": found.epsilon if math.isfinite(found.epsilon) else None,
                "success": percent(found.success),
            }
            if unit is (ENTITY if knobs.protects_entities else USER):
                yield {"kind": "meaning", "text": meaning(unit, found)}
                yield {
                    "kind": "commands",
                    "check": check_command(knobs),
                    "train": train_command(knobs, self._settings.corpus),
                }
                yield self._estimate(knobs, noise, values)
            if not waiting():
                return
        yield {"kind": "numbered"}
        yield from self._charts(knobs, noise, waiting)

    def _estimate(self, knobs: Knobs, noise: float, values: Mapping[str, str]) -> Message:
        """Time and signal; what is wrong with them does not concern the guarantee."""
        try:
            supply = self._corpus()
            known = facts(knobs, supply, self._pace(values))
            message: Message = {"kind": "estimate", "facts": [asdict(fact) for fact in known]}
            if supply is not None and knobs.users == supply.incidence.users and noise > 0:
                message["signal"] = supply.signal(knobs, noise)
                message["total"] = self._total(supply, knobs, noise)
            return message
        except UserError as error:
            return {"kind": "estimate", "facts": [asdict(Fact("Not known", str(error)))]}

    def _pace(self, values: Mapping[str, str]) -> MeasuredPace | None:
        """How long rounds take: as given, or as in a run on the page."""
        if values.get("seconds", "").strip():
            return MeasuredPace.given(values["seconds"])
        if not values.get("pace"):
            return None
        return self._pace_of(find_run(self._settings, values["pace"]))

    def _total(self, supply: CorpusSupply, knobs: Knobs, noise: float) -> str | None:
        """The epsilon of all runs on the corpus if this one is made, in words; None: the first."""
        assert self._settings.corpus is not None
        ledger, of = CorpusLedger(self._settings.corpus), supply.incidence
        if not ledger.path.is_file() or not ledger.entries():
            return None
        shape = Shape(
            digest=of.digest, users=of.users, sentences=of.sentences, entities=of.entities
        )
        planned = PlannedRun("this run", knobs.profile(noise), knobs.rounds, knobs.delta, shape)
        total = ledger.total_after(planned, knobs.delta)
        return f"{named_epsilon(total.epsilon)}, for {total.unit} ({total.runs} runs with this one)"

    def _charts(self, knobs: Knobs, noise: float, waiting: Waiting) -> Iterator[Message]:
        marks = {
            "rounds": ChartMark(f"now: {knobs.rounds:,} rounds", x=knobs.rounds),
            "noise": ChartMark(f"now: noise {rounded(noise)}", x=noise) if noise > 0 else None,
        }
        kinds = {"rounds": epsilons.rounds_curves, "noise": epsilons.noise_curves}
        for name, begin in kinds.items():
            curves, work = begin(knobs, noise)
            drawn = perf_counter()
            for _ in work:
                if not waiting():
                    return
                if perf_counter() - drawn > _DRAWN_EVERY and len(curves.points) < curves.total:
                    yield _chart(name, curves, marks[name])
                    drawn = perf_counter()
            yield _chart(name, curves, marks[name])

    def _corpus(self) -> CorpusSupply | None:
        """What the corpus supplies; read again when a detection has replaced it."""
        folder = self._settings.corpus
        if folder is None:
            return None
        corpus = Corpus(folder)
        digest = corpus.info["incidence_digest"]
        if self._supply is None or self._supply.incidence.digest != digest:
            self._supply = CorpusSupply(corpus.incidence)
        return self._supply

    def _timed_runs(self) -> dict[str, str]:
        """The names of the runs shown whose rounds were timed, by their keys."""
        runs = run_folders(self._settings)
        return {run.key: run.name for run in runs if self._pace_of(run) is not None}

    def _pace_of(self, run: RunFolder) -> MeasuredPace | None:
        with suppress(UserError, OSError):
            return MeasuredPace.of(self._live.record(run.folder))
        return None


def _chart(name: str, curves: Curves, mark: ChartMark | None) -> Message:
    labels = {"noise": "noise multiplier", "rounds": "rounds"}
    lines = []
    for unit in curves.units:
        x, y = curves.of(unit)
        lines.append(Line(unit.short, x, [v if math.isfinite(v) else None for v in y]))
    svg = line_chart(
        lines,
        f"Epsilon against {labels[name]}",
        labels[name],
        "epsilon",
        log_x=True,
        log_y=True,
        mark=mark,
        size=_SIZE,
    )
    return {
        "kind": "chart",
        "name": name,
        "svg": svg,
        "done": len(curves.points),
        "of": curves.total,
    }


def meaning(unit: epsilons.Unit, bound: EpsilonBound) -> list[str]:
    """An epsilon in sentences for somebody who knows no differential privacy."""
    if math.isinf(bound.epsilon):
        return [
            "With these settings nothing is guaranteed: there is no finite epsilon. "
            "Raise the noise, or plan fewer rounds."
        ]
    texts = {
        USER.name: "the text of one user",
        ENTITY.name: "the text of one user, and all text that names one entity,",
    }
    factor = math.exp(min(bound.epsilon, 700.0))
    times = f"{math.ceil(factor):,}" if factor < 1e6 else f"e^{bound.text}"
    return [
        "Think of an attacker who knows everything about the data but one thing: whether "
        f"{texts[unit.name]} was there or was left blank. The attacker looks at the model and "
        "guesses. A coin toss is right half of the time.",
        f"With the model, the attacker is right at most {percent(bound.success)} of the time, "
        "whatever the attacker knows or computes.",
        f"This follows from everything the accountant knows. Epsilon {bound.text} and delta "
        f"{bound.delta:g} alone would only say: at most {percent(bound.success_by_epsilon)}. They "
        f"say that the probability of anything the model does changes by a factor of at most "
        f"{times}, plus delta.",
    ]


_WORDS = {
    "privacy.delta": "delta",
    "privacy.user_rate": "user sampling rate",
    "privacy.rounds": "rounds",
    "privacy.entity_share": "entity share",
    "privacy.epsilon": "epsilon",
    "privacy.noise": "noise",
}


def in_words(text: str) -> str:
    """A refusal, with the names that the page has for the settings."""
    return re.sub("|".join(map(re.escape, _WORDS)), lambda found: _WORDS[found[0]], text)
