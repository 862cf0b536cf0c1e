"""The command `uedp coverage`: detectors against human marks."""

from typing import Any

import typer
from typer import Option

from uedp.cli import options
from uedp.cli.terminal import cell, number, progress, say, say_json, show, split_commas, table


def coverage(
    corpus: options.CorpusArgument,
    detector: options.Detectors = [],  # noqa: B006 - Typer copies it
    categories: options.Categories = "default",
    propagate: options.Propagate = True,
    workers: options.Workers = 1,
    record: bool = Option(
        False, "--record", help="Store recall and precision of the corpus for its certificates."
    ),
    by_label: bool = Option(False, "--by-label", help="Also show a row per label of the marks."),
    epsilon: float = Option(8.0, help="The epsilon of the run in which errors are costed."),
    as_json: options.AsJson = False,
) -> None:
    """Measure detectors, or the corpus as detected, on human marks: errors and their cost.

    Examples:
      # the corpus as it was detected, for its certificates
      uedp coverage corpus --record
      # detectors that might do better
      uedp coverage corpus --detector spacy:en_core_web_sm,patterns
    """
    from uedp.audit.detection import false_hit_costs, miss_costs
    from uedp.corpus.store import Corpus
    from uedp.entities.coverage import compare_detectors

    opened = Corpus(corpus)
    compared = compare_detectors(
        opened,
        split_commas(detector),
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
