"""Folders that are there for the length of a block."""

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from uedp.signals import deferred


@contextmanager
def scratch(beside: Path) -> Iterator[Path]:
    """A hidden folder beside a path, on the same disk; gone at the end, whatever happens.

    Guarantees:
      - what was moved out of it stays; all else in it is removed, on Ctrl-C too
      - parents made for it are removed too, unless something else stands in them by then
    """
    made = [parent for parent in beside.parents if not parent.exists()]
    # the name is cut so that a long one still has room for the rest
    folder = beside.with_name(f".{beside.name[:40]}.{secrets.token_hex(6)}")
    try:
        folder.mkdir(mode=0o700, parents=True)
        yield folder
    finally:
        with deferred():
            shutil.rmtree(folder, ignore_errors=True)
            for parent in made:
                with suppress(OSError):
                    parent.rmdir()
