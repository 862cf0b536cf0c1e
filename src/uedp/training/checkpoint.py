"""The state of a run on disk: written whole or not at all.

A checkpoint is a folder `checkpoints/ROUND`, complete as soon as it has that name. What the
ledger says decides what was spent; a checkpoint only says how far the weights have come.
"""

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from uedp.errors import UserError
from uedp.folders import scratch
from uedp.signals import deferred

FOLDER = "checkpoints"
STATE, INFO = "state.safetensors", "state.json"
_SCRATCH = re.compile(r"\..+\.[0-9a-f]{12}")  # how `scratch` names folders


def write(run: Path, done: int, tensors: Mapping[str, Tensor], info: Mapping[str, Any]) -> None:
    """Save after `done` rounds, then remove older checkpoints.

    Guarantees:
      - a checkpoint is there in full or not at all, whenever the process, or the machine, dies
      - the one before is removed only once the new one is in place
    """
    target = run / FOLDER / f"{done:08d}"
    if target.exists():
        return
    with scratch(target) as work, deferred():
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
                f"{target}: cannot be written ({error}); make room, and go on with --resume"
            ) from None
        (folder / INFO).write_text(json.dumps({**info, "done": done}) + "\n")
        for path in (folder / STATE, folder / INFO, folder):
            _sync(path)  # or the name could reach the disk before what it names
        folder.rename(target)
        _sync(target.parent)
    for older in target.parent.iterdir():
        if older.name.isdigit() and int(older.name) < done:
            shutil.rmtree(older, ignore_errors=True)


def clear(run: Path) -> None:
    """Remove what a killed process was in the middle of writing; no other may be at work here."""
    for folder in (run, run / FOLDER):
        for path in folder.iterdir() if folder.is_dir() else ():
            if _SCRATCH.fullmatch(path.name) and path.is_dir():
                shutil.rmtree(path, ignore_errors=True)


def newest(run: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The latest complete checkpoint of a run, if there is one."""
    folder = run / FOLDER
    found = sorted(p for p in folder.iterdir() if p.name.isdigit()) if folder.is_dir() else []
    if not found:
        return None
    try:
        tensors = load_file(found[-1] / STATE)
        info: dict[str, Any] = json.loads((found[-1] / INFO).read_text())
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(
            f"{found[-1]}: damaged ({error}); remove it to go on from an older one"
        ) from None
    return tensors, info


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
