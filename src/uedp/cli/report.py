"""The command for reports."""

import webbrowser
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from uedp.cli.terminal import progress, refuse_corpus, say, with_flags
from uedp.errors import CheckFailedError, UserError


def report(
    runs: Annotated[list[Path], Argument(metavar="RUN", help="The folders of runs.")],
    out: Path | None = Option(
        None,
        help="The HTML file. Default: report.html in the run's folder (report-public.html for the "
        "public kind); for several runs, in this folder.",
    ),
    kind: Literal["internal", "public"] = Option(
        "internal",
        help="internal: everything, for the curator. public: only what may be published.",
    ),
    audit: list[Path] = Option(
        [],
        metavar="FILE",
        help="What `uedp audit ... --out FILE` wrote; repeat. RUN/audits/*.json are always read.",
    ),
    corpus: Path | None = Option(
        None, help="The corpus of the runs: what was spent on it in all, and what it holds."
    ),
    public_key: Path | None = Option(None, help="Check signatures with this key."),
    open_: bool = Option(False, "--open", help="Open the report in a browser."),
) -> None:
    """Write a report to read and sign: what is protected, how strongly, and what is not.

    One HTML file without anything from the network; print it for paper. Every run is verified while
    the report is written, and one that does not verify says so at the top.

    Exits with 1 if a run does not verify.

    Examples:

        uedp report run

        uedp report run --kind public --public-key officer.pem.pub

        uedp report run-1 run-2 run-3 --corpus corpus --out comparison.html
    """
    from uedp.report import page

    name = page.FILES[kind]
    target = out or (runs[0] / name if len(runs) == 1 else Path(name))
    if target.is_dir():
        raise UserError(f"--out {target}: is a folder; name a file")
    for run in runs:
        refuse_corpus(run)
    made = page.report(
        runs,
        kind,
        audits=audit,
        corpus=corpus,
        public_key=public_key,
        translate=with_flags,
        progress=progress(),
    )
    made.write(target)
    say(f"{kind} report: {target}")
    if kind == "internal":
        say("it is for the curator: do not publish it (--kind public writes one for others)")
    if open_:
        webbrowser.open(target.resolve().as_uri())
    if made.failed:
        raise CheckFailedError(f"{made.failed[0]}: does not verify; the report says why")
