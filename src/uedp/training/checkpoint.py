"""The state of a run on disk: written whole or not at all.

A checkpoint is a folder `checkpoints/ROUND`, complete as soon as it has that name. What the
ledger says decides what was spent; a checkpoint only says how far the weights have come.
"""

import json
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


def write(run: Path, done: int, tensors: Mapping[str, Tensor], info: Mapping[str, Any]) -> None:
    """Save after `done` rounds, then remove older checkpoints.

    Guarantees:
      - a checkpoint is there in full or not at all, whenever the process is killed
      - the one before is removed only once the new one is in place
    """
    target = run / FOLDER / f"{done:08d}"
    if target.exists():
        return
    with scratch(target) as work, deferred():
        folder = work / "new"
        folder.mkdir()
        save_file(
            {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()},
            folder / "state.safetensors",
        )
        (folder / "state.json").write_text(json.dumps({**info, "done": done}) + "\n")
        folder.rename(target)
    for older in sorted(target.parent.iterdir()):
        if older.name.isdigit() and int(older.name) < done:
            shutil.rmtree(older, ignore_errors=True)


def newest(run: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The latest complete checkpoint of a run, if there is one."""
    folder = run / FOLDER
    found = sorted(p for p in folder.iterdir() if p.name.isdigit()) if folder.is_dir() else []
    if not found:
        return None
    try:
        tensors = load_file(found[-1] / "state.safetensors")
        info: dict[str, Any] = json.loads((found[-1] / "state.json").read_text())
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(
            f"{found[-1]}: damaged ({error}); remove it to go on from an older one"
        ) from None
    return tensors, info
