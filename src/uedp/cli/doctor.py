"""The command `uedp doctor`: does everything work here?"""

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

import typer
from typer import Argument, Option

from uedp.cli import checks, complete, options
from uedp.cli.checks import Diagnosis
from uedp.cli.folder_checks import check_folder
from uedp.cli.terminal import cell, progress, say, say_json, show, table

_STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}


def doctor(
    folders: list[Path] = Argument(
        None,
        metavar="FOLDER",
        help="Corpora or runs to check as well.",
        autocompletion=complete.folders,
    ),
    network: bool = Option(False, "--network", help="Also ask whether the model hub is reached."),
    as_json: options.AsJson = False,
) -> None:
    """Check the installation, the machine, and corpora or runs: what works, and what to do.

    Trains nothing, and asks the network for nothing unless told to. Exits with 1 if there is a
    problem; warnings are none.

    Examples:
      uedp doctor
      uedp doctor corpus run
      uedp doctor --network --json
    """
    found: list[Diagnosis] = []
    with progress().stage("checking", None, "checks") as meter:
        for one in _checks(folders or [], network):
            found.append(one)
            meter.advance(1)
    counts = {status: sum(one.status == status for one in found) for status in _STYLES}
    problems, warnings = counts["problem"], counts["warning"]
    if as_json:
        rows = [asdict(one) for one in found]
        say_json({"problems": problems, "warnings": warnings, "checks": rows})
    else:
        _show(found)
        verdict = "everything needed works" if not problems else f"problems: {problems}"
        say(f"\n{verdict}; warnings: {warnings}")
    if problems:
        raise typer.Exit(1)


def _checks(folders: Iterable[Path], network: bool) -> Iterator[Diagnosis]:
    # those of folders first: a wrong name is refused before the slow ones
    of_folders = [one for folder in folders for one in check_folder(folder)]
    here = Path()
    every: dict[str, checks.Checker] = {
        "python": checks.python,
        "libraries": checks.libraries,
        "extras": checks.extras,
        "accelerator": checks.accelerator,
        "processor": checks.processor,
        "memory": checks.memory,
        "disk": partial(checks.disk, here),
        "temporary files": checks.temporary,
        "file locks": partial(checks.locking, here),
        "model hub": partial(checks.hub, network),
        "randomness": checks.randomness,
        "accountant": checks.accountant,
        "private round": checks.private_round,
    }
    for name, checker in every.items():
        yield from checks.run_check(name, checker)
    yield from of_folders


def _show(found: Iterable[Diagnosis]) -> None:
    rows = table("", "", "", left=(1, 2))
    for one in found:
        style = _STYLES[one.status]
        remedy = f"\n[dim]{cell(one.remedy)}[/dim]" if one.remedy else ""
        rows.add_row(f"[{style}]{one.status}[/{style}]", cell(one.name), cell(one.found) + remedy)
    show("", rows)
