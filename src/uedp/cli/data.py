"""Commands for text: sample, detect, inspect, coverage, deidentify, categories."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, Option

from uedp.cli import options
from uedp.cli.entities import PublicLists, say_propagation
from uedp.cli.terminal import cell, number, plain, progress, say, say_json, show, table, with_flags
from uedp.errors import UserError

if TYPE_CHECKING:
    from uedp.corpus.store import Corpus

Detectors = Annotated[
    list[str],
    Option(
        "--detector",
        help="labels, patterns[:REGION], spacy:NAME_OR_PATH, presidio[:NAME_OR_PATH], stanza:LANG, "
        "transformers:NAME_OR_PATH. Repeat, or separate by commas, to combine several.",
    ),
]
Categories = Annotated[
    str, Option(help="The sensitive categories, separated by commas; see `uedp categories`.")
]
Propagate = Annotated[
    bool, Option(help="Protect names in all their places if they are found in enough of them.")
]
Workers = Annotated[int, Option(help="Number of processes for detection.")]


def detect(
    source: Annotated[
        Path, Argument(metavar="SOURCE", help="A file, or the folder of a dataset or of mail.")
    ],
    out: options.NewCorpus,
    reader: str = Option(
        "auto",
        help="jsonl, json, csv, xlsx, parquet, hf, mbox, eml, conll, ag, presidio-research; "
        "auto: by file name.",
    ),
    encoding: str | None = Option(None, help="Of a text file, such as cp1252. Default: UTF-8."),
    delimiter: str | None = Option(None, help="Of a CSV file, such as ';' or tab. Default: auto."),
    user: options.AuthorColumn = "user",
    text: options.TextColumn = "text",
    label: options.LabelColumn = None,
    marks: str | None = Option(
        None, help="A column with human marks: a list of {start, end, label}."
    ),
    detector: Detectors = ["patterns"],  # noqa: B006 - Typer copies it
    categories: Categories = "default",
    split: str = Option(
        "auto", metavar="LANG", help="Split texts into sentences by the rules of a language."
    ),
    no_split: bool = Option(False, "--no-split", help="Keep every text whole."),
    normalise: bool = Option(
        False, "--normalise", help="Lowercase and remove punctuation, as in the paper."
    ),
    assign_users: str | None = Option(
        None,
        metavar="MEAN,STD",
        help="Group texts into random users of this size, as in the paper.",
    ),
    seed: int = Option(0, help="Seed of --assign-users and --hold-out."),
    hold_out: Path | None = Option(
        None, help="Write some users, with all their text, to this corpus instead."
    ),
    hold_out_share: float = Option(0.1, help="The share of users that --hold-out takes."),
    propagate: Propagate = True,
    allow_list: Path | None = Option(
        None, help="CSV `entity,reason`: entities declared public; the reason is recorded."
    ),
    deny_list: Path | None = Option(
        None, help="CSV `entity,category`: entities that are always sensitive."
    ),
    aliases: Path | None = Option(None, help="CSV `alias,entity`: other names of an entity."),
    public_list: PublicLists = [],  # noqa: B006 - Typer copies it
    workers: Workers = 1,
    skip_invalid: bool = Option(
        False, "--skip-invalid", help="Skip invalid records and count them."
    ),
    overwrite: options.Overwrite = False,
) -> None:
    """Read texts with their authors, detect sensitive entities, and write a corpus."""
    from uedp.corpus.readers import SkippedRecords
    from uedp.corpus.store import Corpus
    from uedp.entities.build import build_corpus

    skipped = SkippedRecords()
    doubts: list[str] = []
    corpus = build_corpus(
        source,
        out,
        reader=reader,
        encoding=encoding,
        delimiter=delimiter,
        user=user,
        text=text,
        label=label,
        marks=marks,
        detectors=_split_commas(detector),
        categories=categories,
        split=None if no_split else split,
        normalise=normalise,
        assign_users=_mean_and_std(assign_users) if assign_users else None,
        seed=seed,
        hold_out=hold_out,
        hold_out_share=hold_out_share,
        propagate=propagate,
        allow_list=allow_list,
        deny_list=deny_list,
        aliases=aliases,
        public_lists=_split_commas(public_list),
        workers=workers,
        skip_invalid=skipped if skip_invalid else False,
        overwrite=overwrite,
        on_warning=doubts.append,
        progress=progress(),
    )
    if skipped.count:
        first = plain(with_flags(skipped.first))
        typer.echo(f"skipped {skipped.count:,} invalid records, the first: {first}", err=True)
    _say_changes(corpus.info["source"])
    _say_size(out, corpus)
    say_propagation(corpus)
    if hold_out is not None:
        _say_size(hold_out, Corpus(hold_out))
        typer.echo(
            f"note: --evaluate {hold_out} measures on these other users; such measures are shown "
            "without noise and no guarantee covers them",
            err=True,
        )
    _show_warnings(doubts)
    if doubts:
        hint = f"to see the entities and correct them without detecting again: uedp entities {out}"
        typer.echo(plain(hint), err=True)


def inspect(
    corpus: options.CorpusArgument,
    as_json: options.AsJson = False,
    plot: Path | None = Option(None, help="Write histograms to this .png, .svg or .pdf."),
) -> None:
    """Describe a corpus: its size, sensitive sentences, and how many users share entities."""
    from uedp.corpus.store import Corpus
    from uedp.entities.breakdown import breakdown
    from uedp.entities.warnings import corpus_warnings

    opened = Corpus(corpus)
    if plot is not None:
        from uedp.report.plots import incidence_histograms

        incidence_histograms(opened.incidence, plot)
    numbers = breakdown(opened, progress())
    doubts = corpus_warnings(opened)
    if as_json:
        say_json({**numbers, "warnings": doubts})
        return
    _show_breakdown(corpus, opened, numbers)
    _show_warnings(doubts)
    if plot is not None:
        say(f"\nhistograms: {plot}")


def coverage(
    corpus: options.CorpusArgument,
    detector: Detectors = [],  # noqa: B006 - Typer copies it
    categories: Categories = "default",
    propagate: Propagate = True,
    workers: Workers = 1,
    record: bool = Option(
        False, "--record", help="Store recall and precision of the corpus for its certificates."
    ),
    by_label: bool = Option(False, "--by-label", help="Also show a row per label of the marks."),
    epsilon: float = Option(8.0, help="Of the run in which errors are costed."),
    as_json: options.AsJson = False,
) -> None:
    """Measure detectors, or the corpus as detected, on human marks: errors and their cost."""
    from uedp.audit.detection import false_hit_costs, miss_costs
    from uedp.corpus.store import Corpus
    from uedp.entities.coverage import compare_detectors

    opened = Corpus(corpus)
    compared = compare_detectors(
        opened,
        _split_commas(detector),
        categories,
        propagate=propagate,
        workers=workers,
        record=record,
        progress=progress(),
    )
    result = {
        **compared.result,
        "false_hits": false_hit_costs(compared.errors),
        "misses": miss_costs(compared.errors, epsilon),
    }
    if as_json:
        say_json(result)
        return
    _show_coverage(result, by_label)
    if opened.info.get("normalised"):
        typer.echo("note: this corpus is normalised; detectors find more in cased text", err=True)


def deidentify(
    corpus: options.CorpusArgument,
    out: options.NewCorpus,
    style: Literal["placeholder", "pseudonym"] = Option(
        "placeholder", help="[PERSON], or the same [PERSON-17] for every mention."
    ),
    overwrite: options.Overwrite = False,
) -> None:
    """Replace every mention with a placeholder. This by itself is no privacy guarantee."""
    from uedp.corpus.store import Corpus
    from uedp.entities.deidentify import deidentify as replace_mentions

    opened = Corpus(corpus)
    replace_mentions(opened, out, style, overwrite=overwrite, progress=progress())
    say(f"{out}: {len(opened):,} sentences, {opened.info['mentions']:,} mentions replaced")


def sample(
    out: Annotated[Path, Option(help="A .jsonl or .jsonl.gz file.")],
    seed: int = Option(0, help="The seed of the corpus."),
    people: int = Option(300, help="Number of authors."),
    held_out: Path | None = Option(None, help="Write every fifth author to this file instead."),
) -> None:
    """Write the bundled sample: messages by fictional people, with annotated entities."""
    from uedp.sample.generate import write_sample, write_sample_split

    if held_out is None:
        say(f"{out}: {write_sample(out, seed, people):,} messages by {people:,} people")
        return
    most, rest = write_sample_split(out, held_out, seed, people)
    others = people // 5
    say(f"{out}: {most:,} messages by {people - others:,} people")
    say(f"{held_out}: {rest:,} messages by {others:,} others")


def categories(as_json: options.AsJson = False) -> None:
    """List the categories, and the detector labels that map to them."""
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


def _say_size(path: Path, corpus: "Corpus") -> None:
    from uedp.entities.breakdown import sentence_masks

    sensitive = int((sentence_masks(corpus) != 0).sum())
    say(
        f"{path}: {corpus.users:,} users, {len(corpus):,} sentences, "
        f"{sensitive:,} of them sensitive, {corpus.entities.num_rows:,} entities"
    )


def _say_changes(source: dict[str, Any]) -> None:
    """What reading left out or divided."""
    dropped = ", ".join(f"{count:,} {name}" for name, count in source.get("dropped", {}).items())
    if dropped:
        typer.echo(f"left out of the mail: {dropped}", err=True)
    split = source.get("split")
    if split and split["divided"]:
        cuts = f"; {split['cuts']:,} cuts at {split['max_words']} words" if split["cuts"] else ""
        typer.echo(
            f"split {split['divided']:,} of {split['texts']:,} texts into sentences{cuts} "
            "(--no-split keeps texts whole)",
            err=True,
        )


def _show_warnings(doubts: Iterable[str]) -> None:
    for doubt in doubts:
        typer.echo(f"warning: {plain(with_flags(doubt))}", err=True)


def _show_breakdown(path: Path, corpus: "Corpus", numbers: dict[str, Any]) -> None:
    from uedp.entities.breakdown import widest_entities

    top = table("", "")
    for name in ("users", "sentences", "entities", "vocabulary"):
        top.add_row(name, f"{numbers[name]:,}")
    show(plain(str(path)), top)
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
        shown.add_row(cell(name), f"{row['marks']:,}", f"{row['sentences']:,}", *rates)
    show(title, shown)
    _show_precision(result)
    _show_costs(result["false_hits"], result["misses"])


def _show_precision(result: dict[str, Any]) -> None:
    lost = result["false_hits"]["categories"]
    shown = table(
        "category", "mentions", "right", "exact", "same category", "F1 exact", "usable lost"
    )
    for name, row in result["precision"].items():
        rates = (row[f"precision{kind}"] for kind in ("", "_exact", "_same_category"))
        f1 = "-" if row["f1_exact"] is None else f"{row['f1_exact']:.1%}"
        cost = f"{lost[name]['usable_lost']:.1%}" if name in lost else "-"
        shown.add_row(name, f"{row['mentions']:,}", *(f"{r:.1%}" for r in rates), f1, cost)
    show("\nprecision", shown)
    if result["unjudged"]:
        say(f"{result['unjudged']:,} mentions are of categories that nobody marked; not judged")


def _show_costs(false_hits: dict[str, Any], misses: dict[str, Any]) -> None:
    say(
        f"\nfalse hits: a round can use {false_hits['usable']:.1%} of the sentences; without them "
        f"{false_hits['usable_without']:.1%}"
    )
    shown = table(
        "category", "entities", "never missed", "missed in users", "median", "90%", "99%", "all"
    )
    for name, row in misses["categories"].items():
        epsilons = (number(row["epsilon"][q], 3) for q in ("p50", "p90", "p99", "max"))
        never = f"{row['found_everywhere'] / row['entities']:.1%}"
        shown.add_row(name, f"{row['entities']:,}", never, f"{row['users_missed']:,}", *epsilons)
    show(
        f"\nmisses: epsilon of the marked entities, in a run with epsilon {misses['epsilon']:g} "
        f"({misses['rounds']} rounds, user rate {misses['user_rate']:g}, entity share "
        f"{misses['entity_share']:g})",
        shown,
    )


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
