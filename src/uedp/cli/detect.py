"""The command `uedp detect`: from texts to a corpus."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, Option

from uedp.cli import options
from uedp.cli.entities import say_propagation
from uedp.cli.terminal import plain, progress, say, say_json, split_commas, with_flags
from uedp.errors import UserError

if TYPE_CHECKING:
    from uedp.corpus.store import Corpus

_USERS = "Sentences and users"  # a section of the options


def detect(
    source: Annotated[
        Path, Argument(metavar="SOURCE", help="A file, or a folder: of files, a dataset or mail.")
    ],
    out: options.NewCorpus,
    reader: options.Reader = "auto",
    encoding: options.Encoding = None,
    delimiter: options.Delimiter = None,
    user: options.AuthorColumn = "user",
    text: options.TextColumn = "text",
    label: options.LabelColumn = None,
    marks: options.MarksColumn = None,
    skip_invalid: options.SkipInvalid = False,
    detector: options.Detectors = ["patterns"],  # noqa: B006 - Typer copies it
    categories: options.Categories = "default",
    split: str = Option(
        "auto",
        metavar="LANG",
        help="Split texts into sentences by the rules of a language.",
        rich_help_panel=_USERS,
    ),
    no_split: bool = Option(
        False, "--no-split", help="Keep every text whole.", rich_help_panel=_USERS
    ),
    normalise: bool = Option(
        False,
        "--normalise",
        help="Lowercase and remove punctuation, as in the paper.",
        rich_help_panel=_USERS,
    ),
    assign_users: str | None = Option(
        None,
        metavar="MEAN,STD",
        help="Group texts into random users of this size, as in the paper.",
        rich_help_panel=_USERS,
    ),
    hold_out: Path | None = Option(
        None,
        metavar="CORPUS",
        help="Write some users, with all their text, to this corpus instead.",
        rich_help_panel=_USERS,
    ),
    hold_out_share: float = Option(
        0.1,
        help="The share of users that --hold-out takes.",
        rich_help_panel=_USERS,
    ),
    seed: int = Option(
        0,
        help="The seed of --assign-users and --hold-out.",
        rich_help_panel=_USERS,
    ),
    propagate: options.Propagate = True,
    allow_list: Path | None = Option(
        None,
        metavar="FILE",
        help="CSV `entity,reason`: entities declared public; the reason is recorded.",
        rich_help_panel=options.ENTITIES,
    ),
    deny_list: Path | None = Option(
        None,
        metavar="FILE",
        help="CSV `entity,category`: entities that are always sensitive.",
        rich_help_panel=options.ENTITIES,
    ),
    aliases: Path | None = Option(
        None,
        metavar="FILE",
        help="CSV `alias,entity`: other names of an entity.",
        rich_help_panel=options.ENTITIES,
    ),
    public_list: options.PublicLists = [],  # noqa: B006 - Typer copies it
    workers: options.Workers = 1,
    engine: Literal["local", "ray"] = Option(
        "local",
        help="What runs the detectors: processes of this machine, or Ray, on the cluster "
        "RAY_ADDRESS or here. With ray, the same command continues one that was stopped.",
    ),
    overwrite: options.Overwrite = False,
    as_json: options.AsJson = False,
) -> None:
    """Read texts with their authors, detect sensitive entities, and write a corpus.

    Examples:
      uedp detect messages.jsonl --out corpus
      # columns by name, names by spaCy, a tenth of the users held out
      uedp detect mails.csv --user author --text body --out corpus \\
          --detector spacy:en_core_web_sm,patterns --hold-out others
      # many files, on the machines of a cluster
      uedp detect messages --out corpus --engine ray --workers 64
    """
    from uedp.corpus.readers import SkippedRecords
    from uedp.corpus.store import Corpus
    from uedp.entities.build import build_corpus

    skipped = SkippedRecords()
    warnings: list[str] = []
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
        detectors=split_commas(detector),
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
        public_lists=split_commas(public_list),
        workers=workers,
        engine=engine,
        on_note=say_note,
        skip_invalid=skipped if skip_invalid else False,
        overwrite=overwrite,
        on_warning=warnings.append,
        progress=progress(),
    )
    if skipped.count:
        first = plain(with_flags(skipped.first))
        typer.echo(f"skipped {skipped.count:,} invalid records, the first: {first}", err=True)
    say_changes(corpus.info["source"])
    held_out = None if hold_out is None else Corpus(hold_out)
    if as_json:
        say_json(
            {
                **_size(out, corpus),
                "held_out": None if held_out is None else _size(hold_out, held_out),
                "skipped_records": skipped.count,
                "propagation": corpus.info.get("propagation"),
                "warnings": [with_flags(warning) for warning in warnings],
            }
        )
        return
    _say_size(out, corpus)
    say_propagation(corpus)
    if held_out is not None:
        _say_size(hold_out, held_out)
        typer.echo(
            f"note: --evaluate {hold_out} measures on these other users; such measures are shown "
            "without noise and no guarantee covers them",
            err=True,
        )
    say_warnings(warnings)
    if warnings:
        hint = f"to see the entities and correct them without detecting again: uedp entities {out}"
        typer.echo(plain(hint), err=True)


def _size(path: Path | None, corpus: "Corpus") -> dict[str, Any]:
    from uedp.entities.breakdown import sentence_masks

    return {
        "corpus": str(path),
        "users": corpus.users,
        "sentences": len(corpus),
        "sensitive_sentences": int((sentence_masks(corpus) != 0).sum()),
        "entities": corpus.entities.num_rows,
    }


def _say_size(path: Path | None, corpus: "Corpus") -> None:
    size = _size(path, corpus)
    say(
        f"{path}: {size['users']:,} users, {size['sentences']:,} sentences, "
        f"{size['sensitive_sentences']:,} of them sensitive, {size['entities']:,} entities"
    )


def say_changes(source: dict[str, Any]) -> None:
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


def say_note(note: str) -> None:
    typer.echo(f"note: {plain(with_flags(note))}", err=True)


def say_warnings(warnings: Iterable[str]) -> None:
    for warning in warnings:
        typer.echo(f"warning: {plain(with_flags(warning))}", err=True)


def _mean_and_std(value: str) -> tuple[float, float]:
    try:
        numbers = [float(part) for part in value.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2):
        raise UserError(f"--assign-users {value!r}: give MEAN or MEAN,STD, such as 15,2")
    return numbers[0], numbers[1] if len(numbers) == 2 else 2.0
