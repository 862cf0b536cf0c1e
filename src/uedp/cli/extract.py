"""Commands that attack models: audit extract and plant."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from uedp.cli import complete, options
from uedp.cli.audit import audit as audit
from uedp.cli.audit import check_outputs, save_or_print
from uedp.cli.terminal import number, plain, progress, say, say_json, show, table
from uedp.errors import UserError
from uedp.files import require_new_file

if TYPE_CHECKING:
    from uedp.audit.extraction import Extraction


@audit.command("extract")
def audit_extract(
    runs: Annotated[
        list[Path],
        Argument(metavar="RUN", help="The folders of finished runs.", autocompletion=complete.runs),
    ],
    secrets: Path | None = Option(None, help="The secrets to rank, planted by `uedp audit plant`."),
    held_out: Path | None = Option(
        None, help="A corpus with entities to compare with. Default: data.evaluate."
    ),
    reference: str | None = Option(
        None,
        metavar="MODEL",
        help="For entities: the model before training, a folder, a file or a name.",
    ),
    alternatives: int = Option(10_000, help="The most candidates to rank a secret among."),
    beams: int = Option(10, help="Beams of the search for secrets."),
    entities: int = Option(1000, help="Entities to rank, from each corpus."),
    others: int = Option(100, help="Other entities of its category to rank with."),
    seed: int = Option(0, help="The seed of the samples."),
    out: options.ResultsFile = None,
    plot: Path | None = Option(None, help="Plot exposures and ROC curves."),
    as_json: options.AsJson = False,
) -> None:
    """Try to extract planted secrets, or the entities of the training corpus, from models.

    Secrets or entities in the training text, and others that are not, are ranked among candidates.

    Examples:
      # secrets that were planted before detection
      uedp audit extract run --secrets secrets.json
      # the entities of the training corpus, in two runs
      uedp audit extract run other-run --held-out others --plot exposure.svg
    """
    from uedp.audit.extraction import extract
    from uedp.audit.secrets import load_secrets
    from uedp.report.audit_plots import extraction_figure

    check_outputs(out, plot)
    if len(set(runs)) < len(runs):
        raise UserError("audit extract: a run is named twice; name each once")
    wanted = None if secrets is None else load_secrets(secrets)
    results = [
        extract(
            run,
            wanted,
            held_out=held_out,
            reference=reference,
            alternatives=alternatives,
            beams=beams,
            entities=entities,
            others=others,
            seed=seed,
            progress=progress(),
        )
        for run in runs
    ]
    if plot is not None:
        extraction_figure({plain(one.run): one.ranked for one in results}, plot)
    answer = {"runs": [one.to_json() for one in results]}
    if not save_or_print(answer, out, as_json):
        _show_extraction(results)


def _show_extraction(results: Sequence["Extraction"]) -> None:
    from uedp.audit.ranks import FALSE_POSITIVES, summary

    summaries = [summary(one.ranked) for one in results]
    first, kind = summaries[0], results[0].kind
    inside, outside = ("planted", "left out") if kind == "secrets" else ("held in", "held out")
    columns = ["run", "method", "epsilon", "perplexity", inside, outside, "ranked first"]
    columns += ["generated", "in beams"] if kind == "secrets" else []
    columns += ["AUC", *(f"TPR at {rate:g}" for rate in FALSE_POSITIVES)]
    shown = table(*columns, left=(1,))
    for one, own in zip(results, summaries, strict=True):
        group, rates = own["groups"][inside], own["membership"]["at"]
        shares = ("extracted", "in_beams") if kind == "secrets" else ()
        shown.add_row(
            plain(one.run),
            one.method,
            "none" if one.epsilon is None else number(one.epsilon),
            "" if one.perplexity is None else f"{one.perplexity:,.4g}",
            f"{group['mean_exposure']:.2f}",
            f"{own['groups'][outside]['mean_exposure']:.2f}",
            f"{group['ranked_first']['share']:.1%}",
            *(f"{group[name]['share']:.1%}" for name in shares),
            f"{own['membership']['area']:.3f}",
            *(f"{r['true_positives']['share']:.3f}" if r["resolved"] else "-" for r in rates),
        )
    members = first["membership"]
    show(
        f"{members['members']:,} {kind} {inside}, {members['others']:,} {outside}, each ranked "
        f"among {first['candidates']:,}; mean exposure in bits:\n",
        shown,
    )
    by_users = [name for name in first["groups"] if name not in (inside, outside)]
    groups = table("mean exposure", *(plain(one.run) for one in results))
    for name in by_users:
        cells = (own["groups"].get(name) for own in summaries)
        groups.add_row(name, *("" if c is None else f"{c['mean_exposure']:.2f}" for c in cells))
    typer.echo()
    show("", groups)
    what = "" if kind == "entities" else "exact, " if first["exact"] else "estimated, "
    typer.echo(
        f"\nexposure: {what}at most {first['largest_exposure']:.1f} bits, by chance "
        f"{first['exposure_by_chance']:.2f} on average. TPR at a false positive rate; -: too few "
        f"{outside} to tell.\nOnly models with an epsilon have a guarantee; low ranks of others "
        "prove nothing."
    )


@audit.command("plant")
def audit_plant(
    source: Annotated[
        Path, Argument(metavar="SOURCE", help="A file or folder, as for `uedp detect`.")
    ],
    out: Annotated[Path, Option(help="The output with secrets, .jsonl or .jsonl.gz.")],
    secrets: Annotated[Path, Option(help="The output with the list of secrets, .json.")],
    reader: str = Option("auto", metavar="FORMAT", help="As for `uedp detect`."),
    user: options.AuthorColumn = "user",
    text: options.TextColumn = "text",
    label: options.LabelColumn = None,
    marks: str | None = Option(None, metavar="COLUMN", help="A column with human marks."),
    repeats: str = Option(
        "1,2,4,8,16", metavar="R,R,...", help="Numbers of users who write a secret."
    ),
    each: int = Option(10, help="Number of secrets per entry of --repeats."),
    left_out: int | None = Option(
        None, help="Number of secrets not planted. Default: as many as are."
    ),
    mask: str = Option(
        "212-555-####", metavar="FORMAT", help="The format of a secret; # is a digit."
    ),
    existing: bool = Option(False, "--existing", help="Plant secrets under existing users."),
    seed: int = Option(0, help="The seed of the secrets."),
    as_json: options.AsJson = False,
) -> None:
    """Plant random phone numbers in a text before detection, to search for after training.

    Examples:
      uedp audit plant messages.jsonl --out planted.jsonl --secrets secrets.json
      uedp audit plant mails.csv --user author --text body --repeats 1,10,100 \\
          --out planted.jsonl --secrets secrets.json
    """
    from uedp.audit.secrets import plant, save_secrets
    from uedp.corpus.readers import read_sentences
    from uedp.corpus.records import Columns
    from uedp.sample.generate import write_sentences

    for path in (out, secrets):
        require_new_file(path)
    try:
        counts = [int(count) for count in repeats.split(",")]
    except ValueError:
        raise UserError(f"--repeats {repeats}: write numbers with commas, such as 1,4,16") from None
    sentences, planted = plant(
        read_sentences(source, reader, Columns(user, text, label, marks)),
        repeats=counts,
        each=each,
        left_out=left_out,
        mask=mask,
        holders="existing" if existing else "new",
        seed=seed,
    )
    write_sentences(sentences, out)
    save_secrets(planted, secrets)
    written = [secret for secret in planted if secret.planted]
    holding = sum(secret.repeats for secret in written)
    if as_json:
        answer = {"sentences": len(sentences), "with_secrets": holding, "planted": len(written)}
        left = len(planted) - len(written)
        say_json({"out": str(out), "secrets": str(secrets), **answer, "left_out": left})
        return
    say(f"{out}: {len(sentences):,} sentences, {holding:,} with one of {len(written):,} secrets")
    say(f"{secrets}: these secrets, and {len(planted) - len(written):,} that are not planted")
