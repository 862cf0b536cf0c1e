"""The command `uedp entities`: look at the entities of a corpus, and correct them."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer import Option

from uedp.cli import complete, options
from uedp.cli.terminal import cell, plain, progress, say, say_json, show, table
from uedp.errors import UserError
from uedp.files import private_opener

if TYPE_CHECKING:
    from uedp.corpus.store import Corpus
    from uedp.entities.review import Entity


def entities(
    corpus: options.CorpusArgument,
    category: str | None = Option(
        None,
        metavar="NAME,...",
        autocompletion=complete.categories,
        help="Only these categories, separated by commas.",
    ),
    doubtful: bool = Option(
        False, "--doubtful", help="Only those rarely found where they stand, or ordinary words."
    ),
    find: str | None = Option(None, metavar="TEXT", help="Only those that contain this text."),
    page: int = Option(1, min=1, help="Which page to show."),
    per_page: int = Option(25, min=0, help="Entities on a page; 0 for all."),
    as_json: options.AsJson = False,
    csv_file: Path | None = Option(
        None, "--csv", metavar="FILE", help="Write all that fit to this file, not only a page."
    ),
    public: Path | None = Option(
        None, help="CSV `entity,reason`: entities declared public, added to those of before."
    ),
    deny: Path | None = Option(
        None, help="CSV `entity,category`: entities that are always sensitive, likewise."
    ),
    alias: Path | None = Option(None, help="CSV `alias,entity`: other names, likewise."),
    public_list: options.PublicLists = [],  # noqa: B006 - Typer copies it
    replace_lists: bool = Option(
        False, "--replace-lists", help="Forget the lists of before; use those given here only."
    ),
    categories: str | None = Option(
        None,
        metavar="NAME,...",
        help="Protect these categories from now on; see `uedp categories`.",
    ),
    propagate: bool | None = Option(
        None, help="Whether names count in places where no detector found them."
    ),
    out: Path | None = Option(
        None, help="Write the corrected corpus here; without it, CORPUS is replaced."
    ),
    overwrite: options.Overwrite = False,
) -> None:
    """List the entities of a corpus by their users, and correct them without detecting again.

    Examples:
      uedp entities corpus --doubtful
      # declare some public, and write what is left to a new corpus
      uedp entities corpus --public public.csv --out corrected
      uedp entities corpus --category person,loc --csv entities.csv
    """
    from uedp.corpus.store import Corpus
    from uedp.entities.categories import expand_categories
    from uedp.entities.detection import lists_of, relink
    from uedp.entities.lists import Lists, read_lists
    from uedp.entities.review import EntityTable

    opened = Corpus(corpus)
    changes = (public, deny, alias, categories, propagate, out)
    if any(change is not None for change in changes) or public_list or replace_lists:
        _ = opened.hits  # refused before the lists are read
        before = Lists() if replace_lists else lists_of(opened)
        old = _size(opened)
        opened = relink(
            opened,
            out,
            lists=before.with_more(read_lists(public, deny, alias, public_list)),
            categories=None if categories is None else expand_categories(categories),
            propagate=propagate,
            overwrite=overwrite,
            progress=progress(),
        )
        if not as_json:
            say(f"{opened.folder}: linked again; before: {old}; now: {_size(opened)}")
            say_propagation(opened)
            _say_earlier_runs(opened.folder)
    elif overwrite:
        raise UserError("--overwrite: is for --out; nothing is to be written")
    listed = EntityTable(opened)
    try:
        fitting = listed.select(category, doubtful, find)
    except UserError as error:  # the flag has another name here
        raise UserError(str(error).replace("`categories=", "`category=")) from error
    if csv_file is not None:
        _write_csv(csv_file, listed.rows(fitting))
    size = per_page or max(len(fitting), 1)
    pages = max(-(-len(fitting) // size), 1)
    if page > pages:
        raise UserError(f"--page {page}: there are {pages:,} of {size:,} entities")
    shown = listed.rows(fitting[(page - 1) * size : page * size])
    if as_json:
        rows = [entity.row() for entity in shown]
        say_json({"entities": len(fitting), "page": page, "pages": pages, "rows": rows})
        return
    if len(opened.epochs) > 1:
        say(
            f"{opened.folder}: {len(opened.epochs)} epochs, see `uedp inspect`; "
            f"{len(opened.left):,} users have left"
        )
    _show(shown, len(fitting), page, pages)
    if csv_file is not None:
        say(f"{csv_file}: {len(fitting):,} entities (confidential: these names are private)")


def say_propagation(corpus: "Corpus") -> None:
    """What became of the detectors' hits: counts and reasons."""
    from uedp.entities.propagation import SPREAD, SPREAD_WITHIN

    report = corpus.info.get("propagation")
    if not isinstance(report, dict) or not report["hits"]:
        return
    dropped, surfaces = report["dropped"], dict(report["surfaces"])
    line = f"hits: {report['hits']:,}, of which {sum(dropped.values()):,} dropped"
    reasons = [f"{count:,} {reason}" for reason, count in dropped.items()]
    say(line + (f" ({'; '.join(reasons)})" if reasons else ""))
    if surfaces:
        spread, within = surfaces.pop(SPREAD, 0), surfaces.pop(SPREAD_WITHIN, 0)
        reasons = [f"{count:,} {reason}" for reason, count in surfaces.items()]
        line = f"surfaces that models found: {spread:,} count in all their places, {within:,} in "
        line += f"those of their authors ({report['mentions_added']:,} mentions more)"
        say(line + (f", others only where they were found ({'; '.join(reasons)})" * bool(reasons)))


def _size(corpus: "Corpus") -> str:
    incidence = corpus.incidence
    sensitive = incidence.sentences - int(incidence.extended.sum())
    share = sensitive / max(incidence.sentences, 1)
    return f"{incidence.entities:,} entities, {sensitive:,} sensitive sentences ({share:.1%})"


def _say_earlier_runs(folder: Path) -> None:
    from uedp.accounting.ledger import CorpusLedger

    ledger = CorpusLedger(folder)
    runs = len(ledger.entries()) if ledger.path.is_file() else 0
    if runs:
        typer.echo(
            f"note: {runs:,} earlier runs on these texts stay in the ledger. They knew other "
            "entities: the total of all runs holds where each detection found the entity",
            err=True,
        )


def _show(shown: "Sequence[Entity]", count: int, page: int, pages: int) -> None:
    if not count:
        say("no entity fits")
        return
    rows = table("entity", "category", "users", "sentences", "mentions", "found", "by", left=(1, 6))
    for entity in shown:
        rows.add_row(
            cell(entity.surface) + (" [dim](ordinary word)[/dim]" if entity.ordinary else ""),
            entity.category,
            f"{entity.users:,}",
            f"{entity.sentences:,}",
            f"{entity.mentions:,}",
            "" if entity.found is None else f"{entity.found:.0%}",
            cell(", ".join(map(_short, entity.detectors)) or "a list"),
        )
    show("entities by their users (confidential: these names are private)", rows)
    say(f"\npage {page:,} of {pages:,}, {count:,} entities; found: share of its places with a hit")


def _short(detector: str) -> str:
    """A detector without the path of its model."""
    kind, _, argument = detector.partition(":")
    return f"{kind}:{Path(argument).name}" if argument else kind


def _write_csv(path: Path, rows: "Sequence[Entity]") -> None:
    with open(path, "w", newline="", encoding="utf-8", opener=private_opener) as file:
        writer = csv.writer(file)
        writer.writerow(
            ("entity", "category", "users", "sentences", "mentions", "found", "by", "ordinary")
        )
        for entity in rows:
            values: list[Any] = [entity.category, entity.users, entity.sentences, entity.mentions]
            found = "" if entity.found is None else entity.found
            by = " ".join(map(_short, entity.detectors))
            writer.writerow([plain(entity.surface), *values, found, by, entity.ordinary])
