"""The lists of a draft as files beside the corpus, in the form that the commands read.

CORPUS.lists/
  public.csv     entity,reason
  sensitive.csv  entity,category
  aliases.csv    alias,entity
"""

import csv
import io
from collections.abc import Mapping
from pathlib import Path

from uedp import files
from uedp.entities.lists import Lists, read_lists
from uedp.errors import UserError

# of each list: its file, its columns, and its option
KINDS = {
    "public": ("public.csv", ("entity", "reason"), "--public"),
    "sensitive": ("sensitive.csv", ("entity", "category"), "--deny"),
    "aliases": ("aliases.csv", ("alias", "entity"), "--alias"),
}


def lists_folder(corpus: Path) -> Path:
    """Beside the corpus, not inside: a corpus is replaced as a whole."""
    named = corpus.resolve() if corpus.name in ("", "..") else corpus
    return named.with_name(f"{named.name}.lists")


def list_file(corpus: Path, kind: str) -> Path:
    return lists_folder(corpus) / KINDS[kind][0]


def read_list_files(corpus: Path) -> Lists:
    """The lists beside a corpus; empty ones where there is no file."""
    public, sensitive, aliases = (
        path if path.is_file() else None for path in (list_file(corpus, kind) for kind in KINDS)
    )
    return read_lists(public, sensitive, aliases)


def write_list_files(corpus: Path, lists: Lists) -> None:
    """Write the lists beside a corpus; a list without entries has no file.

    Guarantees:
      - only their owner can read them
      - what is read back is what was written, whatever the entries contain
    """
    folder = lists_folder(corpus)
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)
    for kind, (_, header, _) in KINDS.items():
        entries: Mapping[str, str] = getattr(lists, kind)
        path = list_file(corpus, kind)
        if entries:
            files.write_atomically(path, _csv(header, entries))
        else:
            path.unlink(missing_ok=True)
    for kind in KINDS:
        if getattr(read_list_files(corpus), kind) != dict(getattr(lists, kind)):
            raise UserError(
                f"{list_file(corpus, kind)}: an entry cannot be written; mark less text"
            )


def _csv(header: tuple[str, str], entries: Mapping[str, str]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(sorted(entries.items()))
    return text.getvalue()
