"""Commands on text: sample, detect, inspect, coverage, deidentify, categories."""

import json
import os
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from uedp.cli.terminal import plain, progress, show, table
from uedp.corpus.readers import SkippedRecords
from uedp.corpus.store import Corpus
from uedp.entities.breakdown import breakdown, sentence_masks, widest_entities
from uedp.entities.build import build_corpus
from uedp.entities.categories import BASE, LABELS, UNIONS, expand_categories
from uedp.entities.detection import Detection
from uedp.entities.detection import detect as detect_entities
from uedp.errors import UserError
from uedp.files import scratch_dir

CorpusArgument = Annotated[
    Path, typer.Argument(metavar="CORPUS", help="A folder made by `uedp detect`.")
]
Detectors = Annotated[
    list[str],
    typer.Option(
        "--detector",
        help="labels, patterns[:REGION], spacy:NAME_OR_PATH, presidio[:NAME_OR_PATH], stanza:LANG, "
        "transformers:NAME_OR_PATH. Repeat it, or separate by commas, to unite several.",
    ),
]
Categories = Annotated[
    str, typer.Option(help="Which categories are sensitive, by commas; see `uedp categories`.")
]
Propagate = Annotated[
    bool, typer.Option(help="One hit of a model protects every mention of the same surface.")
]
Workers = Annotated[int, typer.Option(help="Processes that detect.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace --out if it is a corpus.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class Style(StrEnum):
    placeholder = "placeholder"
    pseudonym = "pseudonym"


def detect(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="A file, or a data set folder.")],
    out: Annotated[Path, typer.Option(help="The corpus folder to make.")],
    reader: Annotated[
        str,
        typer.Option(
            help="jsonl, csv, parquet, hf, conll, ag, presidio-research; auto: by file name."
        ),
    ] = "auto",
    user: Annotated[str, typer.Option(help="The column that says who wrote it.")] = "user",
    text: Annotated[str, typer.Option(help="The column with the text.")] = "text",
    label: Annotated[str | None, typer.Option(help="A column with a class label.")] = None,
    marks: Annotated[
        str | None, typer.Option(help="A column with human marks: a list of {start, end, label}.")
    ] = None,
    detector: Detectors = ["patterns"],  # noqa: B006 - Typer copies it
    categories: Categories = "all",
    split: Annotated[
        str | None,
        typer.Option(
            metavar="LANG", help="Cut texts into sentences by a language's rules (en, de, ...)."
        ),
    ] = None,
    normalise: Annotated[
        bool, typer.Option("--normalise", help="Lower-case, no punctuation, as the paper has it.")
    ] = False,
    assign_users: Annotated[
        str | None,
        typer.Option(
            metavar="MEAN,STD", help="Form users at random, their sizes normal: the paper's AG."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of --assign-users.")] = 0,
    propagate: Propagate = True,
    allow_list: Annotated[
        Path | None,
        typer.Option(help="CSV `entity,reason`: declared public; the reason is recorded."),
    ] = None,
    deny_list: Annotated[
        Path | None, typer.Option(help="CSV `entity,category`: always sensitive.")
    ] = None,
    aliases: Annotated[
        Path | None, typer.Option(help="CSV `alias,entity`: names of the same entity.")
    ] = None,
    workers: Workers = 1,
    skip_invalid: Annotated[
        bool, typer.Option("--skip-invalid", help="Leave bad records out and count them.")
    ] = False,
    overwrite: Overwrite = False,
) -> None:
    """Read text with owners, find what is sensitive in it, and write a corpus."""
    skipped = SkippedRecords()
    corpus = build_corpus(
        source,
        out,
        reader=reader,
        user=user,
        text=text,
        label=label,
        marks=marks,
        detectors=_split_commas(detector),
        categories=categories,
        split=split,
        normalise=normalise,
        assign_users=_mean_and_std(assign_users) if assign_users else None,
        seed=seed,
        propagate=propagate,
        allow_list=allow_list,
        deny_list=deny_list,
        aliases=aliases,
        workers=workers,
        skip_invalid=skipped if skip_invalid else False,
        overwrite=overwrite,
        progress=progress(),
    )
    if skipped.count:
        first = plain(skipped.first)
        typer.echo(f"left out {skipped.count:,} invalid records, the first: {first}", err=True)
    sensitive = int((sentence_masks(corpus) != 0).sum())
    typer.echo(
        f"{out}: {corpus.users:,} users, {len(corpus):,} sentences, "
        f"{sensitive:,} of them sensitive, {corpus.entities.num_rows:,} entities"
    )


def inspect(
    corpus: CorpusArgument,
    as_json: AsJson = False,
    plot: Annotated[
        Path | None, typer.Option(help="Write histograms to this .png, .svg or .pdf.")
    ] = None,
) -> None:
    """Describe a corpus: the paper's data table, and how far its entities spread."""
    opened = Corpus(corpus)
    if plot is not None:
        from uedp.report.plots import incidence_histograms

        incidence_histograms(opened.incidence, plot)
    numbers = breakdown(opened, progress())
    if as_json:
        typer.echo(json.dumps(numbers, indent=2))
        return
    _show_breakdown(corpus, opened, numbers)
    if plot is not None:
        typer.echo(f"\nhistograms: {plot}")


def coverage(
    corpus: CorpusArgument,
    detector: Detectors = [],  # noqa: B006 - Typer copies it
    categories: Categories = "all",
    propagate: Propagate = True,
    workers: Workers = 1,
    keep: Annotated[
        bool,
        typer.Option(
            "--record", help="Measure the corpus as it was detected; certificates then say it."
        ),
    ] = False,
    by_label: Annotated[
        bool, typer.Option("--by-label", help="Also a row per label of the marks.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare detectors, or what was detected already, with the human marks in a corpus."""
    from uedp.entities.coverage import coverage as compare
    from uedp.entities.coverage import record_coverage, require_marks

    opened = Corpus(corpus)
    require_marks(opened)
    names = _split_commas(detector)
    if keep and names:
        raise UserError("--record: is for the corpus as it was detected; leave out --detector")
    if not names:
        found = compare(opened, progress())
        if keep:
            record_coverage(opened, found)
        names, propagate = tuple(opened.info["detectors"]), bool(opened.info["propagated"])
    else:
        detection = Detection(
            names, expand_categories(categories), propagate=propagate, workers=workers
        )
        with scratch_dir(opened.folder.resolve()) as folder:
            made = detect_entities(
                opened, folder / "found", detection, total=len(opened), progress=progress()
            )
            found = compare(made, progress())
    result = {"detectors": list(names), "propagated": propagate, **found}
    if as_json:
        typer.echo(json.dumps(result, indent=2))
        return
    _show_coverage(result, by_label)
    if opened.info.get("normalised"):
        typer.echo(
            "note: this corpus is normalised; detectors see better before case is lost", err=True
        )


def deidentify(
    corpus: CorpusArgument,
    out: Annotated[Path, typer.Option(help="The corpus folder to make.")],
    style: Annotated[
        Style, typer.Option(help="[PERSON], or [PERSON-17] alike for every mention.")
    ] = (Style.placeholder),
    overwrite: Overwrite = False,
) -> None:
    """Replace every mention by a stand-in. This alone is no guarantee of privacy."""
    from uedp.entities.deidentify import deidentify as replace_mentions

    opened = Corpus(corpus)
    replace_mentions(opened, out, style.value, overwrite=overwrite, progress=progress())
    typer.echo(f"{out}: {len(opened):,} sentences, {opened.info['mentions']:,} mentions replaced")


def sample(
    out: Annotated[Path, typer.Option(help="A .jsonl or .jsonl.gz file.")],
    seed: Annotated[int, typer.Option(help="Another seed, another corpus.")] = 0,
    people: Annotated[int, typer.Option(help="How many people write.")] = 300,
    held_out: Annotated[
        Path | None, typer.Option(help="Put every fifth person into this file, not the other.")
    ] = None,
) -> None:
    """Write the bundled sample: made-up people, their messages, and what is sensitive in them."""
    from uedp.sample.generate import write_sample, write_sample_split

    for path in filter(None, (out, held_out)):
        if os.path.lexists(path):
            raise UserError(f"{path}: exists already; choose another name")
        if not path.parent.is_dir():
            raise UserError(f"{path.parent}: no such folder; make it, or choose another")
    least = 2 if held_out is None else 5
    if people < least:
        raise UserError(f"--people {people}: at least {least} are needed")
    if held_out is None:
        typer.echo(f"{out}: {write_sample(out, seed, people):,} messages by {people:,} people")
        return
    if held_out == out:
        raise UserError(f"--held-out {held_out}: is --out too; choose another")
    most, rest = write_sample_split(out, held_out, seed, people)
    others = people // 5
    typer.echo(f"{out}: {most:,} messages by {people - others:,} people")
    typer.echo(f"{held_out}: {rest:,} messages by {others:,} others")


def categories(as_json: AsJson = False) -> None:
    """List the categories, and which detector label means which."""
    meanings: dict[str, dict[str, list[str]]] = {name: {} for name in BASE}
    for origin, labels in LABELS.items():
        for name, category in labels.items():
            meanings[category].setdefault(origin, []).append(name)
    if as_json:
        unions = {name: sorted(members) for name, members in UNIONS.items()}
        typer.echo(json.dumps({"categories": meanings, "unions": unions}, indent=2))
        return
    shown = table("category", "what it is")
    shown.columns[1].justify = "left"
    for name, description in BASE.items():
        origins = "; ".join(
            f"{origin}: {', '.join(found)}" for origin, found in meanings[name].items()
        )
        shown.add_row(name, f"{description}\n[dim]{origins}[/dim]")
    shown.add_row("pii", f"any of {', '.join(sorted(UNIONS['pii']))}")
    shown.add_row("all", "any of the above")
    show("", shown)


def register(app: typer.Typer) -> None:
    for command in (sample, detect, inspect, coverage, deidentify, categories):
        app.command()(command)


def _show_breakdown(path: Path, corpus: Corpus, numbers: dict[str, Any]) -> None:
    top = table("", "")
    for name in ("users", "sentences", "entities", "vocabulary"):
        top.add_row(name, f"{numbers[name]:,}")
    show(plain(str(path)), top)
    sensitive = table("category", "sentences", "share")
    for name, count in numbers["sensitive"].items():
        if count or name == "all":
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
        widest.add_row(escape(plain(surface)), f"{holders:,}", f"{sentences:,}")
    show("\nheld by most users (for your eyes only: these names are private)", widest)


def _show_coverage(result: dict[str, Any], by_label: bool) -> None:
    columns = (
        ("span_recall_exact", "exact"),
        ("span_recall_covered", "covered"),
        ("span_recall_same_category", "same category"),
        ("word_recall", "words"),
        ("sentence_recall", "sentences found"),
        ("sentence_recall_complete", "sentences complete"),
    )
    title = f"recall of {', '.join(result['detectors'])} against human marks"
    shown = table("category", "marks", "sentences", *(name for _, name in columns))
    rows = list(result["categories"].items())
    if by_label:
        rows += result["labels"].items()
    for name, row in rows:
        rates = (f"{row[key]:.1%}" for key, _ in columns)
        shown.add_row(escape(plain(name)), f"{row['marks']:,}", f"{row['sentences']:,}", *rates)
    show(title, shown)
    typer.echo(f"{result['extra']:,} of {result['mentions']:,} mentions lie over no mark")


def _split_commas(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(name.strip() for value in values for name in value.split(",") if name.strip())


def _mean_and_std(value: str) -> tuple[float, float]:
    try:
        numbers = [float(part) for part in value.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2):
        raise UserError(f"--assign-users {value!r}: give MEAN or MEAN,STD, such as 15,2")
    return numbers[0], numbers[1] if len(numbers) == 2 else 2.0
