"""The command `uedp extend`: more users, text and entities for a corpus, or fewer users."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from uedp.cli import options
from uedp.cli.detect import say_changes
from uedp.cli.terminal import plain, progress, say, say_json, with_flags

_USERS = "Sentences and users"  # a section of the options


def extend(
    corpus: options.CorpusArgument,
    source: Annotated[
        Path | None, Argument(metavar="NEW_DATA", help="A file, or a folder of a dataset or mail.")
    ] = None,
    forget: list[str] = Option(
        [],
        metavar="USER",
        help="A user who leaves: no later round uses the user's text. Repeat for several.",
    ),
    reader: options.Reader = "auto",
    encoding: options.Encoding = None,
    delimiter: options.Delimiter = None,
    user: options.AuthorColumn = "user",
    text: options.TextColumn = "text",
    label: options.LabelColumn = None,
    marks: options.MarksColumn = None,
    skip_invalid: options.SkipInvalid = False,
    split: str = Option(
        "same",
        metavar="LANG",
        help="Split texts by the rules of a language, or none. Default: as the corpus was.",
        rich_help_panel=_USERS,
    ),
    seed: int = Option(0, help="The seed of users formed at random.", rich_help_panel=_USERS),
    workers: options.Workers = 1,
    as_json: options.AsJson = False,
) -> None:
    """Add users, text and entities to a corpus, in place, as a new epoch; or let users leave it.

    Detectors, categories and lists are those of the corpus. Entities that are new are found in the
    older text too. What was there is not changed. Train on with `uedp train --continue RUN`.

    Examples:
      uedp extend corpus messages.jsonl
      # two users leave
      uedp extend corpus messages.jsonl --forget u003 --forget u007
      uedp extend corpus --forget u003
    """
    from uedp.corpus.readers import SkippedRecords
    from uedp.entities.extend import extend_corpus

    skipped = SkippedRecords()
    added = extend_corpus(
        corpus,
        source,
        forget=forget,
        reader=reader,
        encoding=encoding,
        delimiter=delimiter,
        user=user,
        text=text,
        label=label,
        marks=marks,
        split=split,
        workers=workers,
        seed=seed,
        skip_invalid=skipped if skip_invalid else False,
        progress=progress(),
    )
    if skipped.count:
        first = plain(with_flags(skipped.first))
        typer.echo(f"skipped {skipped.count:,} invalid records, the first: {first}", err=True)
    info = added.epoch.info
    if as_json:
        names = ("epoch", "users", "sentences", "entities", "mentions", "late_mentions")
        counts = {name: info[name] for name in names}
        say_json({**counts, "left": added.left, "left_out": added.left_out})
        return
    say_changes(info["source"])
    say(
        f"{corpus}: epoch {added.epoch.number} adds {info['users']:,} users, "
        f"{info['sentences']:,} sentences, {info['entities']:,} entities, and {added.late:,} "
        "mentions found late in older text"
    )
    if added.left:
        say(
            f"{added.left:,} {'user' if added.left == 1 else 'users'} left: no round from now on "
            "uses their text. It stays on the disk, and what models learned from it stays in them, "
            "within their epsilon"
        )
    if added.left_out:
        typer.echo(f"left out: {added.left_out:,} sentences of users who have left", err=True)
    if other := info["source"].get("on_the_other_side"):
        typer.echo(f"left out: {other:,} texts on the other side of the hold-out", err=True)
