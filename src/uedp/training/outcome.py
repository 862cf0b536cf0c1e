"""The outcome of a run, and its file in the run directory."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uedp.accounting.certificate import Certificate, load_certificate
from uedp.errors import UserError
from uedp.files import write_atomically
from uedp.models.load import load_model
from uedp.strict import parse_json
from uedp.training.config import Config
from uedp.training.metrics import finite
from uedp.training.run_dir import RESULT


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run: its model, certificate and measures.

    `public` are the measures after training on public text; None without any.
    """

    folder: Path
    model: Any
    tokenizer: Any
    certificate: Certificate | None
    before: Mapping[str, float]
    after: Mapping[str, float]
    rounds: int
    finished: bool
    public: Mapping[str, float] | None = None


def finished_outcome(out: Path, config: Config) -> Outcome:
    """The outcome of a finished run, read from its directory."""
    result, trained = read_result(out / RESULT), load_model(out, config.task.kind)
    return Outcome(
        folder=out,
        model=trained.model,
        tokenizer=trained.tokenizer,
        certificate=load_certificate(out) if config.private else None,
        before=result["before"],
        after=result["after"],
        rounds=result["rounds"],
        finished=True,
        public=result.get("public"),
    )


def read_result(path: Path) -> dict[str, Any]:
    try:
        result = parse_json(path.read_bytes())
    except ValueError:
        result = None
    shape = {"before": dict, "after": dict, "rounds": int}
    if isinstance(result, dict) and "public" in result:
        shape["public"] = dict
    if not isinstance(result, dict) or any(type(result.get(k)) is not v for k, v in shape.items()):
        raise UserError(f"{path}: damaged; restore it from a copy")
    return result


def write_result(
    out: Path,
    before: Mapping[str, float],
    after: Mapping[str, float],
    rounds: int,
    public: Mapping[str, float] | None = None,
) -> None:
    """Mark the run as finished, with its measures before and after training."""
    result: dict[str, Any] = {"before": finite(before), "after": finite(after), "rounds": rounds}
    if public is not None:
        result["public"] = finite(public)
    write_atomically(out / RESULT, json.dumps(result, indent=2) + "\n")
