"""Commands that attack: audit mechanism, audit train, audit extract."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from uedp.cli.terminal import plain, progress, show, table
from uedp.errors import UserError

if TYPE_CHECKING:
    from uedp.audit.training import TrainingAudit
    from uedp.audit.verdict import MechanismAudit

audit = typer.Typer(help="Attack a guarantee, and see how much gets out.", no_args_is_help=True)


@audit.command("mechanism")
def audit_mechanism(
    method: Annotated[
        list[str] | None, typer.Option(help="rotation, user-level or uedp-alg; repeat. All.")
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(help="Target epsilon. Left out: 8, and for uedp-alg the paper's noise."),
    ] = None,
    noise: Annotated[
        float | None, typer.Option(help="Noise, in units of the update clip; the z of uedp-alg.")
    ] = None,
    user_rate: Annotated[
        float | None, typer.Option(help="Probability that a user is drawn. Left out: 0.1, 50/946.")
    ] = None,
    rounds: Annotated[int, typer.Option(help="Number of rounds.")] = 50,
    entity_share: Annotated[
        float, typer.Option(help="How far one entity moves an update, in units of its clip.")
    ] = 0.3,
    delta: Annotated[
        float, typer.Option(help="The probability of failure that is allowed.")
    ] = 1e-5,
    corpus: Annotated[
        Path | None, typer.Option(help="A folder of `uedp detect`: audit uedp-alg on it.")
    ] = None,
    released_code: Annotated[
        bool, typer.Option("--released-code", help="Also uedp-alg with its released code's noise.")
    ] = False,
    runs: Annotated[
        int | None, typer.Option(help="Runs on either corpus of every world. Left out: by time.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer runs: half a minute.")] = False,
    confidence: Annotated[float, typer.Option(help="Of each bound, and of the verdict.")] = 0.95,
    seed: Annotated[int | None, typer.Option(help="Makes the audit repeatable.")] = None,
    out: Annotated[Path | None, typer.Option(help="Save all that was found as JSON.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Bounds side by side, to a file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Attack draw, clip and noise with the worst content: lower bounds beside what is proven.

    Exits with 1 where an attack does better than what is proven allows.
    """
    from uedp.audit.cases import METHODS, Setting, cases
    from uedp.audit.verdict import document
    from uedp.corpus.store import Corpus
    from uedp.incidence import Incidence
    from uedp.report.audit_plots import mechanism_bounds
    from uedp.report.plots import new_figure

    if plot is not None:
        new_figure(plot, 1, 1)  # refuse a name now, not in some minutes
    if out is not None and out.is_dir():
        raise UserError(f"--out {out}: is a folder; name a file")
    setting = Setting(rounds, delta, entity_share, user_rate, epsilon, noise)
    incidence = None if corpus is None else Incidence.of(Corpus(corpus).folder)
    planned = cases(method or METHODS, setting, incidence, released_code)
    found = [
        case.audit(
            runs=case.runs_in(1.0 if quick else 20.0) if runs is None else runs,
            seed=None if seed is None else seed + number,
            confidence=confidence,
            among=len(planned),
            fit_curve=not quick,
            progress=progress(),
        )
        for number, case in enumerate(planned)
    ]
    answer = document(found)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(answer, indent=2, allow_nan=False) + "\n")
    if plot is not None:
        mechanism_bounds({f"{one.method}: {one.pair}": one for one in found}, plot)
    if as_json:
        typer.echo(json.dumps(answer, indent=2, allow_nan=False))
    else:
        _show_mechanism(found, answer["verdict"])
    if answer["alarm"]:
        raise typer.Exit(1)


def _show_mechanism(found: Sequence["MechanismAudit"], verdict: Sequence[str]) -> None:
    from uedp.accounting.certificate import rounded
    from uedp.accounting.published import NOT_A_GUARANTEE

    def sides(one: "MechanismAudit", bound: str) -> str:
        """A lower bound is rounded down."""
        each = (one.directions[side][bound].epsilon for side in ("full", "emptied"))
        return " / ".join(rounded(value, 3, down=True) for value in each)

    shown = table("method", "pair", "runs", "threshold", "Gaussian fit", "curve", "proven")
    shown.add_column("published", justify="right")
    shown.columns[1].justify = "left"
    for one in found:
        shown.add_row(
            one.method,
            one.pair,
            f"{one.runs:,}",
            sides(one, "threshold"),
            sides(one, "gaussian"),
            "" if one.curve is None else rounded(one.curve.epsilon, 3, down=True),
            "none that is finite" if one.proven is None else rounded(one.proven, 4),
            "" if one.published is None else f"{one.published:.2f}",
        )
    first = found[0]
    show(
        f"lower bounds on epsilon at delta {first.delta:g} after {first.rounds:,} rounds, "
        f"each with {first.confidence:.0%} confidence\n",
        shown,
    )
    typer.echo(
        "\nthreshold, Gaussian fit: guessing the full / the emptied corpus. A threshold assumes "
        "nothing;\nthe fit assumes a Gaussian trade-off, curve the proven one at another noise."
    )
    if any(one.published is not None for one in found):
        typer.echo(f"published: {NOT_A_GUARANTEE}")
    typer.echo(
        "\n" + "\n".join(verdict) + "\nchance of a false alarm, all audits together: at most "
        f"{1 - first.confidence:.2g}"
    )


_STOPPED = 130  # what a shell expects of a command that Ctrl-C ended


@audit.command("train")
def audit_train(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="A YAML file, as `uedp train` takes it.")
    ],
    users: Annotated[int, typer.Option(help="How many canary users to plant.")] = 200,
    entities: Annotated[int, typer.Option(help="How many canary entities to plant.")] = 100,
    holders: Annotated[int, typer.Option(help="How many users mention a canary entity.")] = 3,
    claimed: Annotated[
        float | None, typer.Option(help="An epsilon to hold against. Left out: the plan's.")
    ] = None,
    confidence: Annotated[float, typer.Option(help="Of each bound, and of the verdict.")] = 0.95,
    seed: Annotated[int | None, typer.Option(help="Makes canaries and coins repeatable.")] = None,
    changes: Annotated[
        list[str],
        typer.Option("--set", metavar="SECTION.FIELD=VALUE", help="Another value; repeat it."),
    ] = [],  # noqa: B006 - Typer copies it
    out: Annotated[
        Path | None, typer.Option(help="A folder for audit.json and scores.png.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with that in --out.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Train once with canaries in the corpus, and guess which of them were in.

    The corpus's ledger is left alone and the model is removed: it is not to be used. Exits with 1
    where guesses are better than the epsilon allows.
    """
    from uedp.audit import training
    from uedp.report.audit_training_plots import score_histograms
    from uedp.training.config import load

    if resume and out is None:
        raise UserError("audit train: say what to resume with --out")
    with tempfile.TemporaryDirectory(prefix="uedp-audit-") as scratch:
        found = training.audit(
            load(config, changes),
            out or Path(scratch) / "audit",
            users=users,
            entities=entities,
            holders=holders,
            claimed=claimed,
            confidence=confidence,
            seed=seed,
            resume=resume,
            progress=progress(),
            say=lambda line: None if as_json else print(plain(line), flush=True),
        )
    if found is None:
        raise typer.Exit(_STOPPED)
    if out is not None:
        score_histograms(found, out / "scores.png")
    if as_json:
        typer.echo(found.to_json(), nl=False)
    else:
        _show_training(found)
        if out is not None:
            typer.echo(f"audit: {plain(str(out / training.AUDIT))}")
    if found.refuted:
        raise typer.Exit(1)


def _show_training(found: "TrainingAudit") -> None:
    from uedp.accounting.certificate import rounded

    shown = table("kind", "score", "canaries", "guesses", "correct", "lower bound", "proven")
    if found.claimed is not None:
        shown.add_column("claimed", justify="right")
    shown.add_column("verdict")
    shown.columns[1].justify = "left"
    for one in found.findings:
        covered = found.proven is not None and one.kind in found.covers
        claim = "none" if one.claim is None else f"{one.claim:g}"
        shown.add_row(
            one.kind,
            one.score,
            f"{one.canaries:,}",
            f"{one.guesses:,}",
            f"{one.correct:,}",
            rounded(one.epsilon, 3, down=True),
            rounded(found.proven or 0.0) if covered else "none",
            *([] if found.claimed is None else [claim]),
            one.verdict,
        )
    show(
        f"one run of {found.method}, {found.rounds:,} rounds: lower bounds on epsilon at delta "
        f"{found.delta:g}, each with {found.confidence:.0%} confidence\n",
        shown,
    )
    typer.echo(
        "\nchance of a false alarm, all bounds together: at most "
        f"{1 - found.confidence:.2g}. Few canaries, or much noise, prove little."
    )


def register(app: typer.Typer) -> None:
    app.add_typer(audit, name="audit")
