"""Synthetic text: write it to a file, and compare it with the training text."""

from collections.abc import Mapping
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from uedp.cli import complete, options
from uedp.cli.audit import save_or_print
from uedp.cli.extract import audit as audit
from uedp.cli.terminal import (
    cell,
    number,
    progress,
    say,
    say_json,
    show,
    split_commas,
    table,
    with_flags,
)
from uedp.errors import UserError
from uedp.files import write_atomically

if TYPE_CHECKING:
    from uedp.audit.synthetic import SyntheticAudit
    from uedp.training.synthetic import About


def generate_file(
    folder: Path,
    out: Path,
    prompts: str | Path,
    sampling: Mapping[str, Any],
    *,
    count: int,
    seed: int | None,
    drop: str,
    resume: bool,
    as_json: bool,
) -> None:
    """Write texts to a file, and say what they are."""
    from uedp.training.decoding import TokenSampling
    from uedp.training.synthetic import Prompts, read_prompts, write_texts

    about = write_texts(
        folder,
        out,
        count=count,
        prompts=Prompts(texts=(prompts,)) if isinstance(prompts, str) else read_prompts(prompts),
        sampling=TokenSampling(**sampling),
        seed=seed,
        drop=split_commas([drop]),
        resume=resume,
        progress=progress(),
    )
    if as_json:
        say_json(about.model_dump(mode="json"))
    else:
        _show_file(about, out, folder)


def _show_file(about: "About", out: Path, folder: Path) -> None:
    from uedp.training.synthetic import about_path

    counts, settings, guarantee = about.counts, about.settings, about.guarantee
    say(f"{out}: {counts.written:,} texts, seed {settings.seed}")
    found = (
        f"{getattr(counts, name):,} {what}{' (left out)' if name in settings.drop else ''}"
        for name, what in (
            ("empty", "empty"),
            ("duplicates", "equal to an earlier one"),
            ("unfinished", f"cut at {settings.tokens:,} tokens"),
        )
    )
    say(f"of {counts.drawn:,} drawn: {', '.join(found)}")
    if counts.written < settings.count:
        say(
            f"fewer than the {settings.count:,} asked for: too many had to be left out; raise "
            "--temperature or --tokens, or drop less"
        )
    say(f"\n{guarantee.words}")
    if guarantee.covered:
        for line in (guarantee.statement or "").splitlines():
            say(line)
        say(guarantee.missed_mentions or "")
        if guarantee.all_runs is not None and guarantee.all_runs.runs > 1:
            say(
                f"All {guarantee.all_runs.runs} runs on the corpus together: epsilon "
                f"{number(guarantee.all_runs.epsilon)}."
            )
        for line in about.notes:
            say(line)
    say(f"\nwhat it is: {about_path(out)}")
    say(f"next, for the curator: uedp audit synthetic {out} --run {folder}")


@audit.command("synthetic")
def audit_synthetic(
    texts: Annotated[
        Path, Argument(metavar="FILE", help="Texts, .jsonl, written by `uedp generate --out`.")
    ],
    run: Path | None = Option(
        None, metavar="RUN", help="The run that generated them.", autocompletion=complete.runs
    ),
    corpus: Path | None = Option(
        None,
        metavar="CORPUS",
        help="The training corpus. Default: data.train of the run.",
        autocompletion=complete.corpora,
    ),
    held_out: Path | None = Option(
        None,
        metavar="CORPUS",
        help="A corpus of other people, held out at random. Default: data.evaluate of the run.",
        autocompletion=complete.corpora,
    ),
    secrets: Path | None = Option(
        None, metavar="FILE", help="The secrets that `uedp audit plant` planted."
    ),
    reference: str | None = Option(
        None, metavar="MODEL", help="A model to measure perplexity by: a folder, a file or a name."
    ),
    seed: int = Option(0, help="The seed of the samples."),
    examples: int = Option(
        0, "--show", help="Show so many of the closest texts. They are private."
    ),
    out: options.ResultsFile = None,
    html: Path | None = Option(None, metavar="FILE", help="Save the results as a page."),
    as_json: options.AsJson = False,
) -> None:
    """Measure the quality of synthetic text, and what of the training text it leaks.

    Everything is compared with people who were held out: phrases that anybody writes are no leak.
    Exits with 1 if the texts come closer to the people of the training part than chance allows.
    For the curator only: the figures are computed from the training text without noise.

    Examples:
      uedp audit synthetic texts.jsonl --run run
      uedp audit synthetic texts.jsonl --run run --secrets secrets.json
      # texts from anywhere
      uedp audit synthetic texts.jsonl --corpus corpus --held-out others
    """
    from uedp.audit.secrets import load_secrets
    from uedp.audit.synthetic import audit_texts

    for path in (out, html):
        if path is not None and path.is_dir():
            raise UserError(f"{path}: is a folder; name a file")
    train, other = corpus, held_out
    if run is not None and (train is None or other is None):
        from uedp.training.config import load_config

        data = load_config(run / "config.yaml").data
        train, other = train or data.train, other or data.evaluate
    if train is None:
        raise UserError("audit synthetic: name the run with --run, or its corpus with --corpus")
    found = audit_texts(
        texts,
        train,
        other,
        run=run,
        secrets=None if secrets is None else load_secrets(secrets),
        reference=reference,
        seed=seed,
        progress=progress(),
    )
    if html is not None:
        from uedp.report.synthetic import synthetic_page

        write_atomically(html, synthetic_page(found, texts.name))
    if not save_or_print(found.to_json(), out, as_json):
        _show_audit(found, texts)
        for id_, words, run_of_words in found.closest[:examples]:
            say(f"text {id_}: {words} words in the training text: {run_of_words}")
    if found.alarms:
        raise typer.Exit(1)


def _show_audit(found: "SyntheticAudit", texts: Path) -> None:
    from uedp.audit.synthetic import CURATOR_ONLY
    from uedp.report.synthetic import findings, quality_rows

    say(CURATOR_ONLY)
    people = f"{found.people[0]:,} people trained on, {found.people[1]:,} held out"
    say(f"\n{texts}: {found.texts:,} texts, compared with {people}")
    guarantee = found.guarantee
    say(guarantee["words"])
    if guarantee["covered"]:
        say(guarantee["statement"].splitlines()[0])
    for remark in found.remarks:
        say(f"note: {with_flags(remark)}")
    columns, rows = quality_rows(found.quality)
    shown = table("quality, of as many texts each", *columns)
    for name, values in rows:
        shown.add_row(name, *values)
    say("")
    show("", shown)
    shown = table("leakage", "trained on", "held out", "excess (95%)", "p-value", "", left=(5,))
    for one in findings(found):
        shown.add_row(*map(cell, astuple(one)))
    say("")
    show("", shown)
    say(f"\n{found.verdict}")
