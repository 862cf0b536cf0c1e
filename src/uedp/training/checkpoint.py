"""The state of a run on disk: written whole or not at all.

A checkpoint is a folder `checkpoints/ROUND`, complete as soon as it has that name, with the hashes
of its files. What the ledger says decides what was spent; a checkpoint only says how far the
weights have come.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from uedp.errors import UserError
from uedp.files import SCRATCH, fsync_path, fsync_tree, make_private, scratch_dir
from uedp.signals import deferred
from uedp.strict import parse_json

FOLDER = "checkpoints"
STATE, INFO, DIGESTS = "state.safetensors", "state.json", "digests.json"
_ROUND = re.compile(r"[0-9]{8,}")


def write(run: Path, done: int, tensors: Mapping[str, Tensor], info: Mapping[str, Any]) -> None:
    """Save after `done` rounds, then remove older checkpoints.

    Guarantees:
      - a checkpoint is there in full or not at all, whenever the process, or the machine, dies
      - the one before is removed only once the new one is in place
      - only its owner can read it
    """
    target = run / FOLDER / f"{done:08d}"
    if target.exists():
        return
    with scratch_dir(target) as work, deferred():
        folder = work / "new"
        folder.mkdir()
        # copies in memory of their own: weights may be tied, or views of one another
        own = {
            name: tensor.detach().to("cpu", copy=True).contiguous()
            for name, tensor in tensors.items()
        }
        try:
            save_file(own, folder / STATE)
        except SafetensorError as error:  # in place of an OSError
            raise UserError(
                f"{target}: cannot be written ({error}); free space, and use `resume=True`"
            ) from None
        (folder / INFO).write_text(json.dumps({**info, "done": done}) + "\n")
        digests = {name: _sha256(folder / name) for name in (STATE, INFO)}
        (folder / DIGESTS).write_text(json.dumps(digests) + "\n")
        make_private(folder)
        fsync_tree(folder)  # or the name could reach the disk before what it names
        folder.rename(target)
        fsync_path(target.parent)
    for older in target.parent.iterdir():
        if _ROUND.fullmatch(older.name) and int(older.name) < done:
            shutil.rmtree(older, ignore_errors=True)


def clear(run: Path) -> None:
    """Remove what a killed process was in the middle of writing; no other may be at work here."""
    for folder in (run, run / FOLDER):
        for path in folder.iterdir() if folder.is_dir() else ():
            if SCRATCH.fullmatch(path.name) and path.is_dir():
                shutil.rmtree(path, ignore_errors=True)


def newest(run: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The latest complete checkpoint of a run, if there is one.

    Guarantees:
      - one whose files are not those that were written is refused by name
    """
    folder = run / FOLDER
    rounds = folder.iterdir() if folder.is_dir() else ()
    found = sorted((p for p in rounds if _ROUND.fullmatch(p.name)), key=lambda p: int(p.name))
    if not found:
        return None
    try:
        digests = parse_json((found[-1] / DIGESTS).read_bytes())
        for name in (STATE, INFO):
            if not isinstance(digests, dict) or digests.get(name) != _sha256(found[-1] / name):
                raise ValueError(f"{name} is not the file that was written")
        info = parse_json((found[-1] / INFO).read_bytes())
        _check(info, int(found[-1].name))
        tensors = load_file(found[-1] / STATE)
    except (OSError, ValueError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"{found[-1]}: damaged ({reason}); remove it to go on from an older one"
        ) from None
    return tensors, info


def _check(info: Any, done: int) -> None:
    if not isinstance(info, dict) or type(info.get("done")) is not int or info["done"] != done:
        raise ValueError(f"{INFO} does not say that {done} rounds were done")
    before = info.get("before", {})
    if not isinstance(before, dict) or not all(type(v) in (int, float) for v in before.values()):
        raise ValueError(f"{INFO} does not say what was measured before training")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
