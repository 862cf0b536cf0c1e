"""Commands that attack mechanisms and training: audit mechanism and train."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from uedp.cli import complete, options
from uedp.cli.help import Commands
from uedp.cli.terminal import STOPPED, number, progress, say, show, table, with_flags
from uedp.errors import UserError
from uedp.files import write_atomically

if TYPE_CHECKING:
    from uedp.audit.sensitivity import Sensitivity
    from uedp.audit.training import TrainingAudit
    from uedp.audit.verdict import MechanismAudit


audit = Commands(
    name="audit",
    help="""Attack a guarantee, and measure the leakage.

    Examples:
      uedp audit mechanism --quick
      uedp audit extract run --secrets secrets.json
    """,
)


@audit.command("mechanism")
def audit_mechanism(
    config: Path | None = Argument(
        None,
        metavar="CONFIG",
        help="The plan to audit: a YAML file, as for `uedp train`, or the folder of a run.",
    ),
    method: list[str] | None = Option(
        None,
        metavar="METHOD",
        autocompletion=complete.audited_methods,
        help="One of rotation, fair-shares, user-level, uedp-alg; repeat. Default: all.",
    ),
    epsilon: float | None = Option(None, help="Target epsilon. Default: 8."),
    noise: float | None = Option(None, help="Noise multiplier, in update clips; z of uedp-alg."),
    user_rate: float | None = Option(None, help="The sampling rate of users. Default: 0.1."),
    rounds: int | None = Option(None, help="Number of rounds. Default: 50."),
    entity_share: float | None = Option(
        None, help="How far one entity can move an update, in clips. Default: 0.3."
    ),
    delta: float | None = Option(None, help="The delta of the guarantee. Default: 1e-5."),
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

    Examples:
      uedp audit mechanism --quick
      uedp audit mechanism run --out audit.json --plot bounds.svg
      uedp audit mechanism --method rotation --epsilon 2 --rounds 100
    """
    from uedp.audit.plans import audit_plans, auditable_methods, plan_of, read_plan
    from uedp.audit.verdict import document
    from uedp.report.audit_plots import mechanism_bounds

    check_outputs(out, plot)
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
    if not save_or_print(answer, out, as_json):
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


def check_outputs(out: Path | None, plot: Path | None) -> None:
    """Refuse the names of files now, not after minutes of work."""
    from uedp.report.plots import new_figure

    if plot is not None:
        new_figure(plot, 1, 1)
    if out is not None and out.is_dir():
        raise UserError(f"--out {out}: is a folder; name a file")


def save_or_print(answer: object, out: Path | None, as_json: bool) -> bool:
    """Save the answer to `out` if given, and print it if `as_json`, which is returned."""
    text = json.dumps(answer, indent=2, allow_nan=False)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, text + "\n")
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

    Examples:
      uedp audit train config.yaml --out audit
      uedp audit train config.yaml --users 500 --claimed 4 --seed 1 --json
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
