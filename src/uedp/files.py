"""Temporary directories, and directories that are replaced as a whole."""

import ctypes
import fcntl
import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from uedp.signals import deferred

# In every scratch folder: locked for as long as its process lives; says what it stands beside.
OWNER = ".uedp-scratch"
SCRATCH = re.compile(r"\..+\.[0-9a-f]{12}")  # how scratch folders are named
REPLACED = "old"  # in a scratch folder: what is about to be replaced

_AT_WORKING_DIRECTORY, _EXCHANGE = -100, 2  # of Linux's renameat2


@contextmanager
def scratch(beside: Path) -> Iterator[Path]:
    """A hidden folder beside a path, on the same disk; gone at the end, whatever happens.

    Guarantees:
      - what was moved out of it stays; all else in it is removed, on Ctrl-C too
      - parents made for it are removed too, unless something else stands in them by then
      - what processes that were killed left beside the path is removed first (`clear_dead`)
      - only its owner can look into it
    """
    made = [parent for parent in beside.parents if not parent.exists()]
    clear_dead(beside.parent)
    folder: Path | None = None
    lock = -1
    try:
        folder, lock = _locked(beside)
        yield folder
    finally:
        with deferred():
            if folder is not None:
                _remove(folder)
                os.close(lock)
            for parent in made:
                with suppress(OSError):
                    parent.rmdir()


def clear_dead(parent: Path) -> None:
    """Remove the scratch folders that killed processes left in a folder.

    What one of them was about to replace is put back, should nothing stand in its place.

    Guarantees:
      - a folder whose process lives is left alone, and so is one that is not a scratch folder
    """
    with suppress(OSError):
        for folder in list(parent.iterdir()):
            if SCRATCH.fullmatch(folder.name) and folder.is_dir() and not folder.is_symlink():
                with suppress(OSError):
                    _clear_if_dead(folder)


def replace(new: Path, target: Path, work: Path) -> None:
    """Put `new` in the place of the folder `target`, which ends up in the scratch folder `work`.

    Where the system can, the two change places in one step; elsewhere a process that is killed
    between two steps leaves it to `clear_dead` to put the old one back.

    Guarantees:
      - if it fails, `target` is as it was
    """
    if _exchanged(new, target):
        return
    old = work / REPLACED
    try:
        target.rename(old)
        new.rename(target)
    finally:
        if old.exists() and not os.path.lexists(target):
            old.rename(target)


def make_private(folder: Path) -> None:
    """Let the owner alone read a folder and all that is in it."""
    folder.chmod(0o700)
    for parent, folders, files in os.walk(folder):
        for names, mode in ((folders, 0o700), (files, 0o600)):
            for name in names:
                path = Path(parent, name)
                if not path.is_symlink():
                    path.chmod(mode)


def private_opener(path: str, flags: int) -> int:
    """For `open`: a new file is its owner's alone, whatever the umask."""
    descriptor = os.open(path, flags, 0o600)
    if flags & os.O_CREAT and os.fstat(descriptor).st_mode & 0o777 != 0o600:
        os.fchmod(descriptor, 0o600)
    return descriptor


def sync(folder: Path) -> None:
    """See to it that all that is in a folder is on the disk."""
    for path in (*folder.rglob("*"), folder):
        sync_entry(path)


def sync_entry(path: Path) -> None:
    """See to it that a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _locked(beside: Path) -> tuple[Path, int]:
    """A new scratch folder and the lock on it."""
    while True:
        # the name is cut so that a long one still has room for the rest
        folder = beside.with_name(f".{beside.name[:40]}.{secrets.token_hex(6)}")
        folder.mkdir(mode=0o700, parents=True)
        folder.chmod(0o700)  # a umask may have taken the owner's own rights
        try:
            lock = os.open(folder / OWNER, os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:  # another process took it for a leftover: it was empty
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if (folder / OWNER).stat().st_ino == os.fstat(lock).st_ino:
                os.fchmod(lock, 0o600)
                os.write(lock, os.fsencode(beside.name))
                return folder, lock
        except (BlockingIOError, FileNotFoundError):
            pass
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)


def _clear_if_dead(folder: Path) -> None:
    try:
        lock = os.open(folder / OWNER, os.O_RDWR)
    except FileNotFoundError:
        folder.rmdir()  # killed before, or after, all else: it is empty, or not ours
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while its process lives
        name = os.fsdecode(os.read(lock, 4096))
        if name and Path(name).name == name:
            target = folder.with_name(name)
            if (folder / REPLACED).is_dir() and not os.path.lexists(target):
                (folder / REPLACED).rename(target)
        _remove(folder)
    finally:
        os.close(lock)


def _remove(folder: Path) -> None:
    """Remove a scratch folder, its mark last of all: whatever is left can be told for one."""
    with suppress(OSError):
        for path in [path for path in folder.iterdir() if path.name != OWNER]:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        (folder / OWNER).unlink(missing_ok=True)
        folder.rmdir()


def _exchanged(one: Path, other: Path) -> bool:
    """Let two names change places in one step; False where the system cannot."""
    if sys.platform != "linux":
        return False
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    where = ctypes.c_int(_AT_WORKING_DIRECTORY)
    code = rename(where, os.fsencode(one), where, os.fsencode(other), ctypes.c_uint(_EXCHANGE))
    return bool(code == 0)
