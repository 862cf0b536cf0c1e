"""The files that make up a model, by their hashes: the subject of a certificate.

Every file in a run's folder is part of the model unless it is known to be something else: a loader
may prefer an unexpected file, such as a `model.safetensors` beside shards or an
`adapter_config.json` that changes what the others mean.
"""

from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from uedp.errors import UserError
from uedp.files import sha256_of
from uedp.strict import shortened

# Other files that a run leaves in its folder; no loader reads any of these.
_RECORDS = frozenset(
    [
        "certificate.json",
        "certificate.sig",
        "config.yaml",
        "ledger.jsonl",
        "lineage.json",
        "loggers.json",
        "metrics.jsonl",
        "privacy_card.json",
        "report-public.html",
        "report.html",
        "result.json",
        "round.key",
        "run.json",
    ]
)
_FOLDERS = frozenset(
    {"audits", "checkpoints", "mlflow", "public", "tensorboard", "vocabulary", "wandb"}
)
_PROSE = frozenset({".md", ".partial"})


def model_files(folder: Path) -> dict[str, str]:
    """The SHA-256 of every file of the model in a folder, by its path within.

    Guarantees:
      - every file is included but those that a run writes beside its model, hidden ones and `.md`
    """
    digests = {}
    for path in sorted(folder.rglob("*")):
        within = path.relative_to(folder)
        if not _belongs(within):
            continue
        if path.is_file():
            digests[within.as_posix()] = sha256_of(path)
        elif path.is_symlink():  # a linked folder is neither read nor certified
            digests[within.as_posix()] = "a link"
    return digests


def refuse_other_files(folder: Path, certified: Mapping[str, str]) -> None:
    """Raise unless a folder holds the certified files and no others that a loader could read."""
    here = model_files(folder)
    if missing := sorted(set(certified) - set(here)):
        raise UserError(f"{folder / missing[0]}: missing, but certified as part of the model")
    for name in certified:
        if here[name] != certified[name]:
            raise UserError(
                f"{folder / name}: is not the file that was certified (SHA-256 {here[name][:12]}, "
                f"not {certified[name][:12]})"
            )
    if more := sorted(set(here) - set(certified)):
        what = "is not part of the certified model" if certified else "no model was certified"
        raise UserError(
            f"{folder / more[0]}: {what}, and a loader could take it for one; move it away"
        )


def names_within(files: dict[str, str]) -> dict[str, str]:
    """The files as they are; ValueError for a name that leads out of their folder."""
    for name in files:
        path = PurePosixPath(name)
        if not name or "\0" in name or path.is_absolute() or ".." in path.parts:
            raise ValueError(f"a file of the model is called {shortened(name)}")
    return files


def _belongs(within: Path) -> bool:
    if any(part.startswith(".") for part in within.parts) or within.suffix in _PROSE:
        return False
    if len(within.parts) == 1:
        return within.name not in _RECORDS
    return within.parts[0] not in _FOLDERS
