"""The audit of synthetic text as rows of tables and as a page, for the curator."""

from collections.abc import Mapping
from dataclasses import dataclass

from uedp.audit.people import GroupTest, PeopleTest
from uedp.audit.synthetic import CURATOR_ONLY, RUNS, SyntheticAudit
from uedp.audit.text_quality import Quality
from uedp.report.templates import stylesheet, template

_MEASURES = (
    ("words in a text, mean", "words_mean", ",.1f"),
    ("different words", "vocabulary", ",.0f"),
    ("distinct-1", "distinct_1", ".3f"),
    ("distinct-2", "distinct_2", ".3f"),
    ("distinct-3", "distinct_3", ".3f"),
    ("runs of 4 words that another text has", "shared", ".1%"),
    ("runs of 4 words repeated in the text", "repeated", ".1%"),
    ("copies of another text", "duplicates", ".1%"),
)
_OWN = "people with a {what} of their own"


@dataclass(frozen=True)
class LeakageRow:
    """A row: what, in the training part, held out, the excess, p-value, remark."""

    what: str
    trained: str
    held_out: str
    excess: str = ""
    p_value: str = ""
    remark: str = ""


def quality_rows(quality: Quality) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """The kinds of text, and for each measure its name and the values."""
    kinds = list(quality.diversity)

    def row(name: str, values: Mapping[str, float], style: str) -> tuple[str, list[str]]:
        return name, [format(values[kind], style) if kind in values else "" for kind in kinds]

    rows = [
        row(name, {kind: getattr(quality.diversity[kind], field) for kind in kinds}, style)
        for name, field, style in _MEASURES
    ]
    rows += [
        row("divergence of words from training, bits", quality.word_divergence, ".3f"),
        row("divergence of lengths from training, bits", quality.length_divergence, ".3f"),
    ]
    if quality.pair_perplexity:
        rows.append(row("word pairs: perplexity held out", quality.pair_perplexity, ",.0f"))
    if quality.perplexity is not None:
        rows.append(row("perplexity under the reference", quality.perplexity, ",.1f"))
    return kinds, rows


def findings(audit: SyntheticAudit) -> list[LeakageRow]:
    """What the texts have in common with people of either part."""
    runs, names, near, planted = audit.runs, audit.names, audit.nearest, audit.secrets
    rows = [
        *(_of_people(_OWN.format(what=_runs(n)), t, audit) for n, t in runs.people.items()),
        _of_groups("longest run, words, by groups", runs.words, audit, ".2f"),
        _of_groups("nearness, cosine, by groups", audit.nearness, audit, ".4f", tested=False),
        _of_people("people with a name only they wrote", names.people, audit),
    ]
    if near is not None:
        rows.append(
            LeakageRow(
                f"nearest text of {near.texts:,}",
                f"{near.share:.1%}",
                f"{1 - near.share:.1%}",
                f"{near.share - near.expected:+.1%} (chance: {near.low - near.expected:+.1%} to "
                f"{near.high - near.expected:+.1%})",
                *_judged(near.p_value, audit),
            )
        )
    if planted is not None:
        rows.append(
            LeakageRow(
                "secrets: planted, left out",
                _interval(planted.emitted),
                _interval(planted.left_out_emitted),
                "",
                *_judged(planted.p_value, audit),
            )
        )
    return rows


def synthetic_page(audit: SyntheticAudit, name: str) -> str:
    """A page of its own, without scripts and without anything from elsewhere."""
    kinds, rows = quality_rows(audit.quality)
    return template("synthetic.html").render(
        name=name,
        audit=audit,
        note=CURATOR_ONLY,
        kinds=kinds,
        rows=rows,
        findings=findings(audit),
        style=stylesheet(),
    )


def _runs(length: str) -> str:
    return f"text, {min(RUNS)} words or more" if length == "whole" else f"run of {length} words"


def _interval(shares: Mapping[str, float]) -> str:
    return (
        f"{shares['emitted']:.0f} of {shares['of']:.0f} "
        f"({shares['low']:.1%} to {shares['high']:.1%})"
    )


def _judged(p_value: float, audit: SyntheticAudit, smallest: float = 0.0) -> tuple[str, str]:
    if smallest > audit.level:
        return f"{p_value:.3g}", "too few to tell"
    return f"{p_value:.3g}", "ALARM" if p_value <= audit.level else ""


def _of_people(what: str, test: PeopleTest | None, audit: SyntheticAudit) -> LeakageRow:
    if test is None:
        return LeakageRow(what, "", "")
    ratio = "" if test.ratio is None else f"x {test.ratio:.2f} "
    interval = f"from {test.low:.2f}" if test.high is None else f"{test.low:.2f} to {test.high:.2f}"
    return LeakageRow(
        what,
        f"{test.train:,} of {test.train_of:,}",
        f"{test.held_out:,} of {test.held_out_of:,}",
        f"{ratio}({interval})" if test.train + test.held_out else "",
        *_judged(test.p_value, audit, test.smallest),
    )


def _of_groups(
    what: str, test: GroupTest | None, audit: SyntheticAudit, style: str, tested: bool = True
) -> LeakageRow:
    if test is None:
        return LeakageRow(what, "", "")
    excess = f"{test.excess:+{style}} ({test.low:+{style}} to {test.high:+{style}})"
    judged = _judged(test.p_value, audit) if tested else ("", "")
    return LeakageRow(
        what, format(test.train, style), format(test.held_out, style), excess, *judged
    )
