"""The curves of one run, or of several over each other."""

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from uedp.accounting.attacker import epsilon_spent, strength_of
from uedp.report.charts import ChartMark, Line, line_chart
from uedp.report.run_record import RunRecord

_SIZE = (440, 270)
_POINTS = 10  # of epsilon against rounds
_HELD_OUT = "On held-out text; lower is better."
# measures of quality that are drawn together, in the order in which they are wanted
QUALITY = (
    ("perplexity on names", "on names"),
    ("perplexity on other tokens", "on other words"),
    ("error rate with entities", "sentences with entities"),
    ("error rate without entities", "sentences without entities"),
)
_CLIPPED = {
    "users_clipped": "Users whose update was clipped",
    "sentences_clipped": "Sentences whose gradient was clipped",
}


@dataclass(frozen=True)
class RunChart:
    """A chart and its caption; `proven` if it shows a guarantee, which may turn out to be void."""

    title: str
    note: str
    svg: str
    proven: bool = False


def run_charts(records: Sequence[RunRecord], void: Container[Path] = ()) -> list[RunChart]:
    """Measures on held-out text, epsilon spent, users drawn and clips reached, by rounds.

    Args:
        void: folders of runs of which no epsilon is drawn.
    """
    return [*measure_charts(records), *epsilon_charts(records, void), *round_charts(records)]


def measure_charts(records: Sequence[RunRecord]) -> Iterator[RunChart]:
    """Measures on held-out text: of one run in one chart, of several in one for each measure."""
    names = list(dict.fromkeys(name for record in records for name in record.measures))
    if any(name.startswith("perplexity") for name in names):
        names = [name for name in names if not name.startswith("bits")]
    # perplexity per word is of another order, and says the same
    names = [name for name in names if "per word" not in name]
    if not names:
        return
    log = any(name.startswith("perplexity") for name in names)
    if len(records) == 1:
        lines = [Line(name, *records[0].series(name)) for name in names]
        title = names[0] if len(names) == 1 else "Perplexity" if log else "Error rate"
        yield _chart(title[0].upper() + title[1:], _HELD_OUT, lines, title.lower(), log=log)
        return
    for name in names:
        lines = [Line(record.name, *record.series(name)) for record in records]
        yield _chart(name[0].upper() + name[1:], _HELD_OUT, lines, name, log=log)


def epsilon_charts(records: Sequence[RunRecord], void: Container[Path] = ()) -> Iterator[RunChart]:
    """Epsilon spent, where there is a guarantee."""
    lines = []
    for record in records:
        if record.folder not in void and (spent := spent_so_far(record)):
            label = "epsilon" if len(records) == 1 else record.name
            lines.append(Line(label, [*map(float, spent)], [*spent.values()]))
    if not lines:
        return
    mark = None
    if len(records) == 1 and (rounds := records[0].rounds_planned) is not None:
        mark = ChartMark(f"planned: {rounds:,} rounds", x=rounds)
    note = "Of the rounds so far. The ledger charges all planned rounds until the run is closed."
    yield replace(_chart("Epsilon spent", note, lines, "epsilon", mark=mark), proven=True)


def round_charts(records: Sequence[RunRecord]) -> Iterator[RunChart]:
    """What rounds did."""
    if lines := [*_lines(records, "users", "users")]:
        yield _chart("Users drawn in a round", "Private: for the curator only.", lines, "users")
    note = "Their share. Private: for the curator only."
    if len(records) == 1:
        both = [line for name in _CLIPPED for line in _lines(records, name, name.partition("_")[0])]
        if both := [*both, *_lines(records, "mean_update", "mean length of updates, in clips")]:
            yield _chart("Clips reached", note, both, "share clipped")
        return
    for name, title in _CLIPPED.items():
        if lines := [*_lines(records, name, name)]:
            yield _chart(title, note, lines, "share clipped")


def _lines(records: Sequence[RunRecord], name: str, label: str) -> Iterator[Line]:
    for record in records:
        x, y = record.series(name)
        if len(x):
            yield Line(label if len(records) == 1 else record.name, x, y)


def quality_charts(record: RunRecord) -> Iterator[RunChart]:
    """Measures on names and on all other text; of everything, where these were not taken."""
    lines = [line for name, label in QUALITY for line in _lines([record], name, label)]
    if not lines:
        yield from measure_charts([record])
    elif record.task == "classification":
        title = "Errors on names and on other sentences"
        yield _chart(title, _HELD_OUT, lines, "error rate")
    else:
        title = "Perplexity on names and on other words"
        yield _chart(title, _HELD_OUT, lines, "perplexity", log=True)


def _chart(
    title: str,
    note: str,
    lines: Sequence[Line],
    y_label: str,
    log: bool = False,
    mark: ChartMark | None = None,
) -> RunChart:
    svg = line_chart(lines, title, "round", y_label, log_y=log, mark=mark, size=_SIZE)
    return RunChart(title, note, svg)


def spent_so_far(record: RunRecord) -> dict[int, float]:
    """Epsilon after some of the rounds that were done; empty where there is no guarantee.

    Nor is there one where the certificate states another epsilon than the plan has.
    """
    if record.planned is None or contradicted(record):
        return {}
    done = min(record.rounds_done, record.planned.rounds)
    return epsilon_spent(record.planned, done, _POINTS)


def contradicted(record: RunRecord) -> bool:
    """Whether the certificate of a run states another epsilon than follows from its ledger."""
    if record.certificate is None or record.planned is None:
        return False
    strength, stated = strength_of(record.planned), record.certificate.epsilon
    if strength is None:
        return record.certificate.private
    return stated is None or abs(stated - strength.epsilon) > _ALIKE * strength.epsilon


_ALIKE = 1e-6  # what another processor may round differently
