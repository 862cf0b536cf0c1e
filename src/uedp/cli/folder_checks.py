"""What `uedp doctor` checks about a corpus or a run."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from uedp.cli.checks import Diagnosis, run_check
from uedp.cli.terminal import number, with_flags
from uedp.errors import UserError
from uedp.files import OWNER, SCRATCH, is_locked

_RUN, _CORPUS, _CERTIFICATE = "run.json", "corpus.json", "certificate.json"


def check_folder(folder: Path) -> Iterator[Diagnosis]:
    """The checks of a folder, by what it holds."""
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "no such folder"
        raise UserError(f"{folder}: {what}; name the folder of a corpus or a run")
    if (folder / _CORPUS).exists():
        checks = [("corpus", _corpus), ("ledger", _ledger)]
    elif (folder / _RUN).exists() or (folder / _CERTIFICATE).exists():
        checks = [("run", _run), ("certificate", _certificate)]
    else:
        raise UserError(f"{folder}: neither a corpus nor a run; name the folder of one")
    for name, check in [*checks, ("permissions", _permissions), ("leftovers", _leftovers)]:
        for found in run_check(name, partial(_refusals_told, name, check, folder)):
            yield Diagnosis(f"{folder.name}: {found.name}", found.status, found.found, found.remedy)


def _refusals_told(
    name: str, check: Callable[[Path], Iterator[Diagnosis]], folder: Path
) -> Iterator[Diagnosis]:
    try:
        yield from check(folder)
    except UserError as error:
        found, _, remedy = with_flags(str(error)).rpartition("; ")
        yield Diagnosis(
            name, "problem", found or remedy, remedy if found else "restore it from a copy"
        )


def _corpus(folder: Path) -> Iterator[Diagnosis]:
    from uedp.corpus.store import Corpus
    from uedp.training.datasets import training_data_from

    corpus = Corpus(folder)
    size = f"{corpus.users:,} users, {len(corpus):,} sentences"
    yield Diagnosis("format", "ok", f"version {corpus.info['format']}; {size}")
    training_data_from(corpus)  # refuses texts that were changed
    yield Diagnosis("digests", "ok", "users, texts and incidence are as they were written")


def _ledger(folder: Path) -> Iterator[Diagnosis]:
    from uedp.accounting.ledger import CorpusLedger

    ledger = CorpusLedger(folder)
    entries = ledger.entries() if ledger.path.is_file() else []
    if not entries:
        yield Diagnosis("ledger", "ok", "no run was made on this corpus")
        return
    epsilon = number(ledger.total(1e-5).epsilon)
    found = f"{len(entries):,} runs, epsilon {epsilon} at delta 1e-05 together"
    yield Diagnosis("ledger", "ok", found)


def _run(folder: Path) -> Iterator[Diagnosis]:
    if (folder / "result.json").exists():
        yield Diagnosis("state", "ok", "finished")
    elif is_locked(folder / _RUN):
        yield Diagnosis("state", "ok", "in use by another process")
    else:
        remedy = f"uedp train --resume --out {folder}"
        yield Diagnosis("state", "warning", "stopped before it finished", remedy)


def _certificate(folder: Path) -> Iterator[Diagnosis]:
    from uedp.accounting.certificate import verify
    from uedp.accounting.signature import SIGNATURE

    if not (folder / _CERTIFICATE).exists():
        found = "none; a run without noise has none, others get it with the first round"
        yield Diagnosis(
            "certificate", "warning", found, "do not rely on a guarantee for this model"
        )
        return
    certificate = verify(folder)
    if certificate.private:
        found = f"consistent; epsilon {number(certificate.epsilon)}, delta {certificate.delta:g}"
        yield Diagnosis("certificate", "ok", found)
    else:
        found = "consistent, but it states no guarantee"
        yield Diagnosis("certificate", "warning", found, f"uedp certificate show {folder}")
    if (folder / SIGNATURE).exists():
        remedy = f"uedp certificate verify {folder} --public-key KEY.pub"
        yield Diagnosis("signature", "warning", "there is one; it was not checked here", remedy)


def _permissions(folder: Path) -> Iterator[Diagnosis]:
    if folder.stat().st_mode & 0o077:
        remedy = f"chmod -R go-rwx {folder}"
        yield Diagnosis("permissions", "warning", "others on this machine can open it", remedy)
    else:
        yield Diagnosis("permissions", "ok", "only its owner can open it")


def _leftovers(folder: Path) -> Iterator[Diagnosis]:
    """What a killed process left: it is removed by the next command that writes there."""
    places = (folder.resolve().parent, folder, folder / "checkpoints")
    scratch = [
        path
        for place in places
        if place.is_dir()
        for path in place.iterdir()
        if SCRATCH.fullmatch(path.name) and path.is_dir() and not is_locked(path / OWNER)
    ]
    partial_files = list(folder.rglob("*.partial"))
    names = [str(path) for path in (*scratch, *partial_files)]
    if names:
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        remedy = "remove them, if no command is running; the next one that writes there does, too"
        yield Diagnosis("leftovers", "warning", f"{', '.join(names[:3])}{more}", remedy)
    else:
        yield Diagnosis("leftovers", "ok", "no temporary files of killed processes")
