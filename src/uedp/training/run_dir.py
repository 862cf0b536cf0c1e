"""The run directory: its lock, the identity of its run, and the check before resuming."""

import json
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from uedp import files
from uedp.accounting.decisions import OTHERS_BY
from uedp.errors import UserError
from uedp.methods import method_named
from uedp.methods.base import PLANNED
from uedp.strict import parse_json
from uedp.training.config import Config, default_config, load_config

CONFIG = "config.yaml"
IDENTITY = "run.json"
RESULT = "result.json"  # written last: a run that has one is finished
_LOOKED_AT = 0.2  # seconds: somebody may be looking whether the run is being trained
_NAME = re.compile(r"[\w.-]{1,150}")  # becomes part of a file name beside the corpus


@contextmanager
def lock_run_dir(out: Path) -> Iterator[IO[bytes]]:
    """Lock a run directory against other processes, and open its identity file.

    If the identity is still empty at the end, no run has started, and everything created here is
    removed. A run directory is readable by its owner only, whatever the umask.
    """
    if out.exists() and not out.is_dir():
        raise UserError(f"{out}: not a folder; choose another `out=...`")
    created = [folder for folder in (out, *out.parents) if not folder.exists()]
    out.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(out / IDENTITY, "a+b", opener=files.private_opener) as file:
        busy = f"{out}: another process is using this run; wait for it, or stop it"
        files.lock_file(file, busy, _LOOKED_AT)
        try:
            yield file
        finally:
            if os.fstat(file.fileno()).st_size:
                files.make_private(out)
            else:
                (out / IDENTITY).unlink(missing_ok=True)
                files.remove_empty(created)


def as_planned(config: Config, out: Path) -> Config:
    """The config, with the numbers of the run in a directory for what the planner chose."""
    if not (out / CONFIG).is_file():
        return config
    saved = load_config(out / CONFIG)
    given, planned = config.privacy, saved.privacy
    update: dict[str, Any] = {
        field: getattr(planned, field)
        for field in (*PLANNED, "update_clip")
        if field not in given.model_fields_set
    }
    profile = method_named(planned.method).profile_type
    if profile is None or not profile.protects_entities:
        update.pop("method", None)  # the planner never chooses one that protects less
    stated = OTHERS_BY + (given.chosen_by or "")
    if given.chosen_by is None or (planned.chosen_by or "").endswith(stated):
        update["chosen_by"] = planned.chosen_by
    sections: dict[str, Any] = {"privacy": given.model_copy(update=update)}
    if "evaluate_sentences" not in config.data.model_fields_set:
        limit = {"evaluate_sentences": saved.data.evaluate_sentences}
        sections["data"] = config.data.model_copy(update=limit)
    if config.public.steps is None:
        steps = {"steps": saved.public.steps}
        sections["public"] = config.public.model_copy(update=steps)
    if config.optimiser == default_config(config).optimiser:
        sections["optimiser"] = saved.optimiser
    return config.model_copy(update=sections)


def existing_run(identity: IO[bytes], out: Path, config: Config, resume: bool) -> str | None:
    """The name of the run in a directory, None if it is empty; refuse any run but this config's."""
    identity.seek(0)
    if not (text := identity.read()):
        if any(path.name != IDENTITY for path in out.iterdir()):
            raise UserError(f"{out}: exists and is not a run; choose another `out=...`")
        if resume:
            raise UserError(f"{out}: holds no run to resume; leave out `resume=True`")
        return None
    if not resume:
        raise UserError(f"{out}: holds a run already; add `resume=True` to continue it")
    # a run killed at its start has not written anything yet, its config included
    new = {path.name for path in out.iterdir()} <= {IDENTITY, files.partial_path(out / CONFIG).name}
    planned = config if new else load_config(out / CONFIG)
    if changed := _differences(planned, config):
        raise UserError(
            f"{out / CONFIG}: {changed[0]}; resume a run as it was planned, or choose another "
            "`out=...`"
        )
    files.make_private(out)
    try:
        name = parse_json(text)["run"]
    except (ValueError, KeyError, TypeError):
        name = None
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UserError(f"{out / IDENTITY}: damaged; start a new run in another directory")
    return name


def name_run(identity: IO[bytes]) -> str:
    """Name the run and write its identity: from here on the directory holds a run."""
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}"
    Path(identity.name).parent.chmod(0o700)
    identity.write(json.dumps({"run": name}).encode() + b"\n")
    files.fsync_file(identity)
    return name


def _differences(planned: Config, given: Config) -> list[str]:
    """The fields that differ, apart from section `run`, which does not change the result."""
    old, new = planned.model_dump(exclude={"run"}), given.model_dump(exclude={"run"})
    return [
        f"{section}.{field} is {value!r}, not {new[section].get(field)!r}"
        for section, fields in old.items()
        for field, value in fields.items()
        if value != new[section].get(field)
    ]
