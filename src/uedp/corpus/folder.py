"""Putting a new corpus in the place of an old one, in one step."""

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from uedp import files
from uedp.errors import UserError
from uedp.signals import deferred

LEDGER = "ledger.jsonl"
LEDGERS = "ledger*"  # files of a corpus that stay when it is replaced


@contextmanager
def new_corpus_folder(
    path: Path, overwrite: bool = False, same_texts_as: Path | None = None
) -> Iterator[Path]:
    """A folder that appears at `path` only if the block succeeds.

    A link is followed: its target is created or replaced.

    Args:
        same_texts_as: a corpus of the same texts, whose ledger the new one shares

    Guarantees:
      - an existing `path` is refused before any work and again after it, or with `overwrite`
        replaced at the end; only a corpus is ever replaced
      - the ledger of a corpus that is replaced, and all files of that name, stay as they are
      - a failure, Ctrl-C included, leaves `path` as it was and nothing beside it
      - `path` is never part of a corpus; whenever the process is killed, the old corpus or the new
        one is there the next time it is opened
      - only its owner can read it, whatever the umask
      - with `same_texts_as`, the ledgers of both are one file: what was spent on these texts counts
        in both folders, and so does what either spends later
    """
    target = Path(os.path.realpath(path))
    files.clear_dead(target.parent)  # this may put back the corpus that is to be replaced
    _refuse_existing(path, target, overwrite)
    shares = same_texts_as is not None and not _is_same(same_texts_as, target)
    with files.scratch_dir(target) as work:
        new = work / "new"
        new.mkdir(mode=0o700)
        if same_texts_as is not None and shares:  # first of all, since it may be impossible
            _share_ledgers(same_texts_as, new, target)
        yield new
        _refuse_existing(path, target, overwrite)
        with deferred(), ExitStack() as stack:
            try:
                replaces = overwrite and target.exists()
                if replaces:
                    stack.enter_context(ledgers_locked(target))
                    _carry_ledgers(target, new)
                files.make_private(new)
                files.fsync_tree(new)  # before the name is on disk
                if replaces:
                    files.replace_dir(new, target, work)
                    for left in (new, work / files.REPLACED):
                        _carry_ledgers(left, target)  # of runs that started meanwhile
                else:
                    new.rename(target)  # fails unless it is an empty folder
                files.fsync_path(target.parent)
            except OSError as error:
                raise UserError(
                    f"{path}: cannot be put in place ({error.strerror}); another process may be "
                    "writing there, choose another `out=...`"
                ) from None


@contextmanager
def ledgers_locked(corpus: Path) -> Iterator[None]:
    """Lock the ledgers of a corpus, so that no run writes to them while it moves."""
    with ExitStack() as stack:
        for path in sorted(corpus.glob(LEDGERS)):
            file = stack.enter_context(path.open("rb"))
            files.lock_file(
                file, f"{path}: another process is writing this ledger; wait for it, or stop it"
            )
        yield


def _carry_ledgers(old: Path, new: Path) -> None:
    """Link the ledger files of one corpus into another that lacks them."""
    for path in old.glob(LEDGERS):
        if not (new / path.name).exists():
            try:
                # not a copy: a run may have the file open, and its writes must be in both
                os.link(path, new / path.name)
            except OSError:  # a file system without links
                shutil.copy2(path, new / path.name)


def _is_same(corpus: Path, target: Path) -> bool:
    return target.exists() and corpus.samefile(target)


def _share_ledgers(corpus: Path, new: Path, target: Path) -> None:
    """Give a new folder the ledger files of a corpus, which gets an empty ledger if it has none."""
    (corpus / LEDGER).touch(mode=0o600)
    for path in corpus.glob(LEDGERS):
        there = target / path.name
        if there.exists() and not there.samefile(path):
            raise UserError(
                f"{target}: has a ledger of its own, which cannot be that of {corpus} as well; "
                "choose another `out=...`"
            )
        try:
            os.link(path, new / path.name)
        except OSError as error:
            raise UserError(
                f"{target}: cannot share the ledger of {corpus} ({error.strerror}); choose an "
                "`out=...` on the same disk"
            ) from None


def _refuse_existing(path: Path, target: Path, overwrite: bool) -> None:
    if os.path.lexists(target):
        if not overwrite:
            raise UserError(
                f"{path}: exists already; choose another `out=...`, or use `overwrite=True`"
            )
        if not (target / "corpus.json").is_file():
            raise UserError(
                f"{path}: exists and is not a corpus, so it is not replaced; move it away"
            )
