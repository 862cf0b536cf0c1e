"""Locks, atomic writes, temporary directories and private modes."""

import ctypes
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from uedp.errors import UserError
from uedp.signals import deferred

# A file in every scratch directory, locked while its process lives. It holds the name of the path
# that the directory stands beside.
OWNER = ".uedp-scratch"
SCRATCH = re.compile(r"\..+\.[0-9a-f]{12}")  # the names of scratch directories
REPLACED = "old"  # in a scratch directory: the directory that is being replaced

_POLL = 0.05  # seconds between two attempts to lock a file
_AT_WORKING_DIRECTORY, _EXCHANGE = -100, 2  # of Linux's renameat2


def lock_file(file: IO[bytes], busy: str, timeout: float = 0.0) -> None:
    """Lock an open file against other processes until it is closed.

    Args:
        busy: the message of the UserError if another process still holds it after `timeout` seconds
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise UserError(busy) from None
            time.sleep(_POLL)


def is_locked(path: Path) -> bool:
    """Whether another process holds `lock_file` on a file; it is never kept waiting for long."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no such file, or not ours to read
        return False
    return False


def write_atomically(path: Path, text: str) -> None:
    """Write a file that is the old one or the new one at any moment, never a part of it.

    It keeps the mode of the file it replaces; a new file is readable by its owner only.
    """
    partial = partial_path(path)
    with open(partial, "w", encoding="utf-8", opener=private_opener) as file:
        file.write(text)
        if path.exists():
            shutil.copymode(path, partial)
        fsync_file(file)
    partial.replace(path)


def require_new_file(path: Path) -> None:
    """Refuse a path that exists, or whose folder does not."""
    if os.path.lexists(path):
        raise UserError(f"{path}: exists already; choose another name")
    if not path.parent.is_dir():
        raise UserError(f"{path.parent}: no such folder; create it, or choose another")


def partial_path(path: Path) -> Path:
    """The file that `write_atomically` writes first, and leaves if its process is killed."""
    return path.with_name(f"{path.name}.partial")


@contextmanager
def scratch_dir(beside: Path) -> Iterator[Path]:
    """A hidden temporary directory beside a path, on the same disk.

    Guarantees:
      - it is removed at the end, on Ctrl-C too; files that were moved out of it stay
      - parents created for it are removed too, unless they hold something else by then
      - the scratch directories of killed processes beside the path are removed first
      - only its owner can read it
    """
    created = [parent for parent in beside.parents if not parent.exists()]
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
            remove_empty(created)


def clear_dead(parent: Path) -> None:
    """Remove the scratch directories that killed processes left in a directory.

    If one of them was replacing a directory that is now missing, the old one is put back.

    Guarantees:
      - the scratch directory of a live process, and any other directory, is not touched
    """
    with suppress(OSError):
        for folder in list(parent.iterdir()):
            if SCRATCH.fullmatch(folder.name) and folder.is_dir() and not folder.is_symlink():
                with suppress(OSError):
                    _clear_if_dead(folder)


def replace_dir(new: Path, target: Path, work: Path) -> None:
    """Replace the directory `target` by `new`; the old one ends up in the scratch directory `work`.

    On Linux the two are exchanged in one step. Elsewhere `clear_dead` puts the old one back after
    a process was killed between the two renames.

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
    """Make a directory and everything in it readable by its owner only."""
    folder.chmod(0o700)
    for parent, folders, files in os.walk(folder):
        for names, mode in ((folders, 0o700), (files, 0o600)):
            for name in names:
                path = Path(parent, name)
                if not path.is_symlink():
                    path.chmod(mode)


def private_opener(path: str, flags: int) -> int:
    """For `open`: a new file is readable by its owner only, whatever the umask."""
    descriptor = os.open(path, flags, 0o600)
    if flags & os.O_CREAT and os.fstat(descriptor).st_mode & 0o777 != 0o600:
        os.fchmod(descriptor, 0o600)
    return descriptor


def sha256_of(path: Path) -> str:
    """The hash of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fsync_tree(folder: Path) -> None:
    """Flush a directory and everything in it to disk."""
    for path in (*folder.rglob("*"), folder):
        fsync_path(path)


def fsync_path(path: Path) -> None:
    """Flush a file, or the names in a directory, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_file(file: IO[str] | IO[bytes]) -> None:
    """Flush an open file to disk."""
    file.flush()
    os.fsync(file.fileno())


def remove_empty(folders: Iterable[Path]) -> None:
    """Remove the directories that are empty, in the order given."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def _locked(beside: Path) -> tuple[Path, int]:
    """A new scratch directory and the lock on it."""
    while True:
        # cut, so that the name of a file with the longest name allowed still fits
        folder = beside.with_name(f".{beside.name[:40]}.{secrets.token_hex(6)}")
        folder.mkdir(mode=0o700, parents=True)
        folder.chmod(0o700)  # the umask may deny the owner's own rights
        try:
            lock = os.open(folder / OWNER, os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:  # removed by another process: it was empty
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
        folder.rmdir()  # empty if its process was killed first or last; fails if not ours
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
    """Remove a scratch directory, its owner file last: what a kill leaves is still recognised."""
    with suppress(OSError):
        for path in [path for path in folder.iterdir() if path.name != OWNER]:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        (folder / OWNER).unlink(missing_ok=True)
        folder.rmdir()


def _exchanged(one: Path, other: Path) -> bool:
    """Exchange two names in one step; False where the system cannot."""
    if sys.platform != "linux":
        return False
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    where = ctypes.c_int(_AT_WORKING_DIRECTORY)
    code = rename(where, os.fsencode(one), where, os.fsencode(other), ctypes.c_uint(_EXCHANGE))
    return bool(code == 0)
