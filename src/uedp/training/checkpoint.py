"""Checkpoints of a run, written completely or not at all.

A checkpoint is a folder `checkpoints/ROUND` with the hashes of its files, and is complete once it
has that name. The ledger determines which rounds were spent, not the checkpoint.
"""

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
from uedp.files import SCRATCH, fsync_path, fsync_tree, make_private, scratch_dir, sha256_of
from uedp.signals import deferred
from uedp.strict import parse_json

FOLDER = "checkpoints"
STATE, INFO, DIGESTS = "state.safetensors", "state.json", "digests.json"
_ROUND = re.compile(r"[0-9]{8,}")


def write_checkpoint(
    run: Path, done: int, tensors: Mapping[str, Tensor], info: Mapping[str, Any]
) -> None:
    """Write a checkpoint after `done` rounds, then remove older ones.

    Guarantees:
      - a checkpoint is complete or absent, whenever the process or the machine dies
      - an older checkpoint is removed only once the new one is in place
      - only its owner can read it
    """
    target = run / FOLDER / f"{done:08d}"
    if target.exists():
        return
    with scratch_dir(target) as work, deferred():
        folder = work / "new"
        folder.mkdir()
        # copied: weights may be tied, or views of one another
        copies = {k: v.detach().to("cpu", copy=True).contiguous() for k, v in tensors.items()}
        try:
            save_file(copies, folder / STATE)
        except SafetensorError as error:  # raised instead of OSError
            raise UserError(
                f"{target}: cannot be written ({error}); free space, and use `resume=True`"
            ) from None
        (folder / INFO).write_text(json.dumps({**info, "done": done}) + "\n")
        digests = {name: sha256_of(folder / name) for name in (STATE, INFO)}
        (folder / DIGESTS).write_text(json.dumps(digests) + "\n")
        make_private(folder)
        fsync_tree(folder)  # or the name could reach the disk before the content
        folder.rename(target)
        fsync_path(target.parent)
    for older in target.parent.iterdir():
        if _ROUND.fullmatch(older.name) and int(older.name) < done:
            shutil.rmtree(older, ignore_errors=True)


def remove_scratch(run: Path) -> None:
    """Remove scratch directories of a killed process; the caller must hold the run's lock."""
    for folder in (run, run / FOLDER):
        for path in folder.iterdir() if folder.is_dir() else ():
            if SCRATCH.fullmatch(path.name) and path.is_dir():
                shutil.rmtree(path, ignore_errors=True)


def load_newest_checkpoint(run: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The tensors and the information of the newest checkpoint, None if there is none.

    Guarantees:
      - a checkpoint whose files were changed is refused by name
    """
    paths = (run / FOLDER).iterdir() if (run / FOLDER).is_dir() else ()
    rounds = [path for path in paths if _ROUND.fullmatch(path.name)]
    if not rounds:
        return None
    newest = max(rounds, key=lambda path: int(path.name))
    try:
        digests = parse_json((newest / DIGESTS).read_bytes())
        for name in (STATE, INFO):
            if not isinstance(digests, dict) or digests.get(name) != sha256_of(newest / name):
                raise ValueError(f"{name} is not the file that was written")
        info = parse_json((newest / INFO).read_bytes())
        _check(info, int(newest.name))
        tensors = load_file(newest / STATE)
    except (OSError, ValueError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"{newest}: damaged ({reason}); remove it to continue from an older one"
        ) from None
    return tensors, info


def _check(info: Any, done: int) -> None:
    if not isinstance(info, dict) or type(info.get("done")) is not int or info["done"] != done:
        raise ValueError(f"{INFO} does not state {done} finished rounds")
    for name in ("before", "public"):
        measures = info.get(name, {})
        if not isinstance(measures, dict) or not all(
            type(value) in (int, float) for value in measures.values()
        ):
            raise ValueError(f"{INFO} lacks the measures {name} training")
