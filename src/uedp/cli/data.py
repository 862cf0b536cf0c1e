"""Commands for text: sample, inspect, deidentify, categories."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Option

from uedp.cli import options
from uedp.cli.detect import say_warnings
from uedp.cli.terminal import cell, plain, progress, say, say_json, show, table

if TYPE_CHECKING:
    from uedp.corpus.store import Corpus


def sample(
    out: Annotated[Path, Option(metavar="FILE", help="A .jsonl or .jsonl.gz file.")],
    seed: int = Option(0, help="The seed of the corpus."),
    people: int = Option(300, help="Number of authors."),
    held_out: Path | None = Option(
        None, metavar="FILE", help="Write every fifth author to this file instead."
    ),
) -> None:
    """Write the bundled sample: messages by fictional people, with annotated entities.

    Examples:
      uedp sample --out messages.jsonl
      uedp sample --people 50 --held-out others.jsonl --out messages.jsonl
    """
    from uedp.sample.generate import write_sample, write_sample_split

    if held_out is None:
        say(f"{out}: {write_sample(out, seed, people):,} messages by {people:,} people")
        return
    most, rest = write_sample_split(out, held_out, seed, people)
    others = people // 5
    say(f"{out}: {most:,} messages by {people - others:,} people")
    say(f"{held_out}: {rest:,} messages by {others:,} others")


def inspect(
    corpus: options.CorpusArgument,
    as_json: options.AsJson = False,
    plot: Path | None = Option(
        None, metavar="FILE", help="Write histograms to this .png, .svg or .pdf."
    ),
) -> None:
    """Describe a corpus: its size, sensitive sentences, and how many users share entities.

    Examples:
      uedp inspect corpus
      uedp inspect corpus --plot histograms.svg --json
    """
    from uedp.corpus.store import Corpus
    from uedp.entities.breakdown import breakdown
    from uedp.entities.warnings import corpus_warnings

    opened = Corpus(corpus)
    if plot is not None:
        from uedp.report.plots import incidence_histograms

        incidence_histograms(opened.incidence, plot)
    numbers = breakdown(opened, progress())
    doubts = corpus_warnings(opened)
    if len(opened.epochs) > 1:
        numbers["epochs"] = _epoch_rows(opened)
    if as_json:
        say_json({**numbers, "warnings": doubts})
        return
    _show_breakdown(corpus, opened, numbers)
    say_warnings(doubts)
    if plot is not None:
        say(f"\nhistograms: {plot}")


def deidentify(
    corpus: options.CorpusArgument,
    out: options.NewCorpus,
    style: Literal["placeholder", "pseudonym"] = Option(
        "placeholder", help="[PERSON], or the same [PERSON-17] for every mention."
    ),
    overwrite: options.Overwrite = False,
    as_json: options.AsJson = False,
) -> None:
    """Replace every mention with a placeholder. This by itself is no privacy guarantee.

    Examples:
      uedp deidentify corpus --out without-names
      uedp deidentify corpus --style pseudonym --out pseudonyms --overwrite
    """
    from uedp.corpus.store import Corpus
    from uedp.entities.deidentify import deidentify as replace_mentions

    opened = Corpus(corpus)
    replace_mentions(opened, out, style, overwrite=overwrite, progress=progress())
    replaced = opened.info["mentions"]
    if as_json:
        say_json({"corpus": str(out), "sentences": len(opened), "mentions_replaced": replaced})
        return
    say(f"{out}: {len(opened):,} sentences, {replaced:,} mentions replaced")


def categories(as_json: options.AsJson = False) -> None:
    """List the categories, and the detector labels that map to them.

    Examples:
      uedp categories
      uedp categories --json
    """
    from uedp.entities.categories import BASE, LABELS, UNIONS

    meanings: dict[str, dict[str, list[str]]] = {name: {} for name in BASE}
    for origin, labels in LABELS.items():
        for name, category in labels.items():
            meanings[category].setdefault(origin, []).append(name)
    if as_json:
        unions = {name: sorted(members) for name, members in UNIONS.items()}
        say_json({"categories": meanings, "unions": unions})
        return
    shown = table("category", "meaning", left=(1,))
    for name, description in BASE.items():
        origins = "; ".join(f"{origin}: {', '.join(x)}" for origin, x in meanings[name].items())
        shown.add_row(name, f"{description}\n[dim]{origins}[/dim]")
    shown.add_row("pii", f"any of {', '.join(sorted(UNIONS['pii']))}")
    shown.add_row(
        "default", "all but percent, year and calendar: what is protected unless you choose"
    )
    shown.add_row("all", "any of the above")
    show("", shown)


def _show_breakdown(path: Path, corpus: "Corpus", numbers: dict[str, Any]) -> None:
    from uedp.entities.breakdown import widest_entities

    top = table("", "")
    for name in ("users", "sentences", "entities", "vocabulary"):
        top.add_row(name, f"{numbers[name]:,}")
    show(plain(str(path)), top)
    if "epochs" in numbers:
        _show_epochs(numbers["epochs"])
    sensitive = table("category", "sentences", "share")
    for name, count in numbers["sensitive"].items():
        if (count and name != "default") or name == "all":
            sensitive.add_row(name, f"{count:,}", f"{count / max(numbers['sentences'], 1):.1%}")
    show("\nsentences that mention", sensitive)
    spread = table("", "p50", "p90", "p99", "max")
    for key, name in (
        ("sentences_per_user", "sentences per user"),
        ("holders", "users per entity"),
    ):
        spread.add_row(name, *(f"{numbers[key][q]:,}" for q in ("p50", "p90", "p99", "max")))
    show("\nspread", spread)
    widest = table("entity", "users", "sentences")
    for surface, holders, sentences in widest_entities(corpus):
        widest.add_row(cell(surface), f"{holders:,}", f"{sentences:,}")
    show("\nentities with the most users (confidential: these names are private)", widest)


def _epoch_rows(corpus: "Corpus") -> list[dict[str, int]]:
    names = ("users", "sentences", "entities", "mentions", "late_mentions")
    return [
        {
            "epoch": epoch.number,
            **{name: int(epoch.info.get(name, 0)) for name in names},
            "left": len(epoch.left),
        }
        for epoch in corpus.epochs
    ]


def _show_epochs(rows: list[dict[str, int]]) -> None:
    shown = table("epoch", "users", "sentences", "entities", "mentions", "found late", "left")
    for row in rows:
        shown.add_row(*(f"{value:,}" for value in row.values()))
    show("\nepochs: what each added, mentions found late in older text, and users who left", shown)
