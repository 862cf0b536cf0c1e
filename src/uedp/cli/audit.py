"""Commands that attack: audit mechanism, train, extract and plant."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from uedp.cli import options
from uedp.cli.terminal import STOPPED, number, plain, progress, say, show, table, with_flags
from uedp.errors import UserError
from uedp.files import require_new_file

if TYPE_CHECKING:
    from uedp.audit.extraction import Extraction
    from uedp.audit.sensitivity import Sensitivity
    from uedp.audit.training import TrainingAudit
    from uedp.audit.verdict import MechanismAudit

audit = typer.Typer(help="Attack a guarantee, and measure the leakage.", no_args_is_help=True)


@audit.command("mechanism")
def audit_mechanism(
    config: Path | None = Argument(
        None,
        metavar="[CONFIG]",
        help="The plan to audit: a YAML file, as for `uedp train`, or the folder of a run.",
    ),
    method: list[str] | None = Option(
        None, help="rotation, user-level, uedp-alg; repeat. Default: all."
    ),
    epsilon: float | None = Option(None, help="Target epsilon. Default: 8."),
    noise: float | None = Option(None, help="Noise multiplier, in update clips; z of uedp-alg."),
    user_rate: float | None = Option(None, help="The sampling rate of users. Default: 0.1."),
    rounds: int | None = Option(None, help="Number of rounds. Default: 50."),
    entity_share: float | None = Option(
        None, help="How far one entity can move an update, in clips. Default: 0.3."
    ),
    delta: float | None = Option(None, help="The allowed probability of failure. Default: 1e-5."),
    changes: options.SetOption = [],  # noqa: B006 - Typer copies it
    runs: int | None = Option(None, help="Runs on each corpus of a world. Default: by time."),
    quick: bool = Option(False, "--quick", help="Fewer runs, in half a minute."),
    confidence: options.Confidence = 0.95,
    seed: int | None = Option(None, help="Makes the audit reproducible."),
    out: options.ResultsFile = None,
    plot: Path | None = Option(None, help="Plot the bounds."),
    as_json: options.AsJson = False,
) -> None:
    """Attack sampling, clipping and noise in the worst case: lower bounds beside proven epsilons.

    Also measures how far rounds of the training code move, beside the proven bound. Exits with 1
    if an attack or a round exceeds a proven bound.
    """
    from uedp.audit.plans import audit_plans, auditable_methods, plan_of, read_plan
    from uedp.audit.verdict import document
    from uedp.report.audit_plots import mechanism_bounds

    _check_outputs(out, plot)
    flags = {
        "rounds": rounds,
        "delta": delta,
        "entity_share": entity_share,
        "user_rate": user_rate,
        "epsilon": epsilon,
        "noise": noise,
    }
    given = {name: value for name, value in flags.items() if value is not None}
    incidence = None
    if config is not None:
        if names := [*given, *(["method"] if method else [])]:
            flag = f"--{names[0].replace('_', '-')}"
            raise UserError(f"{flag}: {config} says what is audited; change it with --set")
        plan, incidence = read_plan(config, changes)
        plans = [plan]
    else:
        if changes:
            raise UserError(f"--set {changes[0]}: changes a config; name one")
        plans = [plan_of(name, **given) for name in method or auditable_methods()]  # type: ignore[arg-type]
    audits, measured = audit_plans(
        plans,
        incidence,
        runs=runs,
        quick=quick,
        confidence=confidence,
        seed=seed,
        progress=progress(),
    )
    answer = document(audits, measured)
    if plot is not None:
        mechanism_bounds({f"{one.method}: {one.pair}": one for one in audits}, plot)
    if not _save_or_print(answer, out, as_json):
        if audits:  # worlds are known for this profile
            _show_bounds(audits)
        if measured:
            _show_measured(measured)
        typer.echo(
            "\n" + "\n".join(answer["verdict"]) + "\nprobability of any false alarm: at most "
            f"{1 - confidence:.2g}"
        )
    if answer["alarm"]:
        raise typer.Exit(1)


def _check_outputs(out: Path | None, plot: Path | None) -> None:
    """Refuse the names of files now, not after minutes of work."""
    from uedp.report.plots import new_figure

    if plot is not None:
        new_figure(plot, 1, 1)
    if out is not None and out.is_dir():
        raise UserError(f"--out {out}: is a folder; name a file")


def _save_or_print(answer: object, out: Path | None, as_json: bool) -> bool:
    """Save the answer to `out` if given, and print it if `as_json`, which is returned."""
    text = json.dumps(answer, indent=2, allow_nan=False)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text + "\n")
    if as_json:
        typer.echo(text)
    return as_json


def _show_bounds(audits: Sequence["MechanismAudit"]) -> None:
    def sides(one: "MechanismAudit", bound: str) -> str:
        """A lower bound is rounded down."""
        each = (one.directions[side][bound].epsilon for side in ("full", "emptied"))
        return " / ".join(number(value, 3, down=True) for value in each)

    columns = ("method", "pair", "runs", "threshold", "Gaussian fit", "curve", "proven")
    shown = table(*columns, left=(1,))
    for one in audits:
        shown.add_row(
            one.method,
            one.pair,
            f"{one.runs:,}",
            sides(one, "threshold"),
            sides(one, "gaussian"),
            "" if one.curve is None else number(one.curve.epsilon, 3, down=True),
            number(one.proven),
        )
    first = audits[0]
    show(
        f"lower bounds on epsilon at delta {first.delta:g} after {first.rounds:,} rounds, "
        f"each with {first.confidence:.0%} confidence\n",
        shown,
    )
    typer.echo(
        "\nthreshold, Gaussian fit: guessing the full / the emptied corpus. A threshold assumes "
        "nothing;\nthe fit assumes a Gaussian trade-off, the curve the proven one at other noise."
    )


def _show_measured(measured: Sequence["Sensitivity"]) -> None:
    columns = ("method", "on", "emptied", "rounds", "largest shift", "allowed", "noise")
    shown = table(*columns, left=(1, 2))
    for one in measured:
        for name, shift in one.shifts.items():
            shown.add_row(
                one.method,
                one.on,
                name,
                f"{one.rounds:,}",
                f"{shift.found:.4f}",
                f"{shift.allowed:.4f}",
                f"{one.noise:.3f}",
            )
    typer.echo()
    show("how far rounds of the training code move, in update clips\n", shown)
    typer.echo("\nnoise: the noise of a round, relative to the plan.")


@audit.command("train")
def audit_train(
    config: Annotated[Path, Argument(metavar="CONFIG", help="A YAML file, as for `uedp train`.")],
    users: int = Option(200, help="Number of canary users to plant."),
    entities: int = Option(100, help="Number of canary entities to plant."),
    holders: int = Option(3, help="Number of users who mention a canary entity."),
    claimed: float | None = Option(None, help="The epsilon to test. Default: that of the plan."),
    confidence: options.Confidence = 0.95,
    seed: int | None = Option(None, help="Makes canaries and coins reproducible."),
    changes: options.SetOption = [],  # noqa: B006 - Typer copies it
    out: Path | None = Option(None, help="A folder for audit.json and scores.png."),
    resume: bool = Option(False, "--resume", help="Resume the audit in --out."),
    as_json: options.AsJson = False,
) -> None:
    """Train once with a random half of the canaries, and guess which were in the corpus.

    The ledger of the corpus is not charged, and the model is deleted: it must not be used. Exits
    with 1 if the guesses refute the epsilon.
    """
    from uedp.audit import training
    from uedp.report.audit_plots import score_histograms
    from uedp.training.config import load_config

    if resume and out is None:
        raise UserError("audit train: name the folder to resume with --out")
    with tempfile.TemporaryDirectory(prefix="uedp-audit-") as temporary:
        result = training.audit(
            load_config(config, changes),
            out or Path(temporary) / "audit",
            users=users,
            entities=entities,
            holders=holders,
            claimed=claimed,
            confidence=confidence,
            seed=seed,
            resume=resume,
            progress=progress(),
            say=lambda line: None if as_json else say(with_flags(line)),
        )
    if result is None:
        raise typer.Exit(STOPPED)
    if out is not None:
        score_histograms(result, out / "scores.png")
    if as_json:
        typer.echo(result.to_json(), nl=False)
    else:
        _show_training(result)
        if out is not None:
            say(f"audit: {out / training.AUDIT}")
    if result.refuted:
        raise typer.Exit(1)


def _show_training(result: "TrainingAudit") -> None:
    columns = ["kind", "score", "canaries", "guesses", "correct", "lower bound", "max provable"]
    columns += ["proven"] if result.claimed is None else ["proven", "claimed"]
    shown = table(*columns, "verdict", left=(1, len(columns)))
    for one in result.findings:
        covered = result.proven is not None and one.kind in result.covers
        claim = "none" if one.claim is None else f"{one.claim:g}"
        shown.add_row(
            one.kind,
            one.score,
            f"{one.canaries:,}",
            f"{one.guesses:,}",
            f"{one.correct:,}",
            number(one.epsilon, 3, down=True),
            number(one.most, 3, down=True),
            number(result.proven) if covered else "none",
            *([] if result.claimed is None else [claim]),
            one.verdict,
        )
    show(
        f"one run of {result.method}, {result.rounds:,} rounds: lower bounds on epsilon at delta "
        f"{result.delta:g}, each with {result.confidence:.0%} confidence\n",
        shown,
    )
    typer.echo(
        "\nmax provable: the bound if every guess were correct; no larger epsilon can be refuted.\n"
        f"probability of any false alarm: at most {1 - result.confidence:.2g}"
    )


@audit.command("extract")
def audit_extract(
    runs: Annotated[list[Path], Argument(metavar="RUN...", help="The folders of finished runs.")],
    secrets: Path | None = Option(None, help="The secrets to rank, planted by `uedp audit plant`."),
    held_out: Path | None = Option(
        None, help="A corpus with entities to compare with. Default: data.evaluate."
    ),
    reference: str | None = Option(
        None, help="For entities: the model before training, a folder, a file or a name."
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
    """
    from uedp.audit.extraction import extract
    from uedp.audit.secrets import load_secrets
    from uedp.report.audit_plots import extraction_figure

    _check_outputs(out, plot)
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
    if not _save_or_print(answer, out, as_json):
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
    reader: str = Option("auto", help="As for `uedp detect`."),
    user: options.AuthorColumn = "user",
    text: options.TextColumn = "text",
    label: options.LabelColumn = None,
    marks: str | None = Option(None, help="A column with human marks."),
    repeats: str = Option(
        "1,2,4,8,16", metavar="R,R,...", help="Numbers of users who write a secret."
    ),
    each: int = Option(10, help="Number of secrets per entry of --repeats."),
    left_out: int | None = Option(
        None, help="Number of secrets not planted. Default: as many as are."
    ),
    mask: str = Option("212-555-####", help="The secrets' format; # is a digit."),
    existing: bool = Option(False, "--existing", help="Plant secrets under existing users."),
    seed: int = Option(0, help="The seed of the secrets."),
) -> None:
    """Plant random phone numbers in a text before detection, to search for after training."""
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
    say(
        f"{out}: {len(sentences):,} sentences, {sum(x.repeats for x in written):,} with one of "
        f"{len(written):,} secrets"
    )
    say(f"{secrets}: these secrets, and {len(planted) - len(written):,} that are not planted")
