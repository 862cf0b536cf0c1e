"""Commands that attack: audit mechanism, audit train, audit extract."""

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from uedp.cli.terminal import plain, progress, show, table
from uedp.errors import UserError

if TYPE_CHECKING:
    from uedp.audit.extraction import Extraction
    from uedp.audit.sensitivity import Sensitivity
    from uedp.audit.training import TrainingAudit
    from uedp.audit.verdict import MechanismAudit

audit = typer.Typer(help="Attack a guarantee, and see how much gets out.", no_args_is_help=True)


@audit.command("mechanism")
def audit_mechanism(
    config: Annotated[
        Path | None,
        typer.Argument(
            metavar="[CONFIG]",
            help="A YAML file, as `uedp train` takes it, or the folder of a run: audit its plan.",
        ),
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="rotation, user-level or uedp-alg; repeat. All.")
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(help="Target epsilon. Left out: 8."),
    ] = None,
    noise: Annotated[
        float | None, typer.Option(help="Noise, in units of the update clip; the z of uedp-alg.")
    ] = None,
    user_rate: Annotated[
        float | None, typer.Option(help="Probability that a user is drawn. Left out: 0.1.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Number of rounds. Left out: 50.")] = None,
    entity_share: Annotated[
        float | None,
        typer.Option(help="How far one entity moves an update, in units of its clip. Left out: .3"),
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="The probability of failure allowed. Left out: 1e-5.")
    ] = None,
    changes: Annotated[
        list[str],
        typer.Option(
            "--set", metavar="SECTION.FIELD=VALUE", help="Another value in CONFIG; repeat it."
        ),
    ] = [],  # noqa: B006 - Typer copies it
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

    Also measures how far rounds of training's own code move, beside what the proof allows. Exits
    with 1 where an attack or a round does more than what is proven allows.
    """
    from uedp.audit.mechanism import cases
    from uedp.audit.plans import auditable_methods, plan_of, read_plan
    from uedp.audit.sensitivity import measurable, measure
    from uedp.audit.verdict import document
    from uedp.report.audit_plots import mechanism_bounds
    from uedp.report.plots import new_figure

    if plot is not None:
        new_figure(plot, 1, 1)  # refuse a name now, not in some minutes
    if out is not None and out.is_dir():
        raise UserError(f"--out {out}: is a folder; name a file")
    flags = {
        "rounds": rounds,
        "delta": delta,
        "entity_share": entity_share,
        "user_rate": user_rate,
        "epsilon": epsilon,
        "noise": noise,
    }
    given: dict[str, Any] = {name: value for name, value in flags.items() if value is not None}
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
        plans = [plan_of(name, **given) for name in method or auditable_methods()]
    planned = [case for plan in plans for case in cases(plan)]
    # on the corpus of a config too, beside the stress corpus
    places = [
        (plan, place)
        for plan in plans
        if measurable(plan)
        for place in dict.fromkeys((None, incidence))
    ]
    among = len(planned) + len(places)
    found = [
        case.audit(
            runs=case.runs_in(1.0 if quick else 20.0) if runs is None else runs,
            seed=None if seed is None else seed + number,
            confidence=confidence,
            among=among,
            fit_curve=not quick,
            progress=progress(),
        )
        for number, case in enumerate(planned)
    ]
    measured = [
        measure(
            plan,
            place,
            seed=seed,
            rounds=4 if quick else 12,
            chance=(1 - confidence) / among,
            progress=progress(),
        )
        for plan, place in places
    ]
    answer = document(found, measured)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(answer, indent=2, allow_nan=False) + "\n")
    if plot is not None:
        mechanism_bounds({f"{one.method}: {one.pair}": one for one in found}, plot)
    if as_json:
        typer.echo(json.dumps(answer, indent=2, allow_nan=False))
    else:
        if found:  # worlds are known for this profile
            _show_bounds(found)
        if measured:
            _show_measured(measured)
        typer.echo(
            "\n" + "\n".join(answer["verdict"]) + "\nchance of a false alarm, all audits "
            f"together: at most {1 - confidence:.2g}"
        )
    if answer["alarm"]:
        raise typer.Exit(1)


def _show_bounds(found: Sequence["MechanismAudit"]) -> None:
    from uedp.accounting.statement import NO_FINITE_EPSILON, rounded

    def sides(one: "MechanismAudit", bound: str) -> str:
        """A lower bound is rounded down."""
        each = (one.directions[side][bound].epsilon for side in ("full", "emptied"))
        return " / ".join(rounded(value, 3, down=True) for value in each)

    shown = table("method", "pair", "runs", "threshold", "Gaussian fit", "curve", "proven")
    shown.columns[1].justify = "left"
    for one in found:
        shown.add_row(
            one.method,
            one.pair,
            f"{one.runs:,}",
            sides(one, "threshold"),
            sides(one, "gaussian"),
            "" if one.curve is None else rounded(one.curve.epsilon, 3, down=True),
            NO_FINITE_EPSILON if one.proven is None else rounded(one.proven, 4),
        )
    show(
        f"lower bounds on epsilon at delta {found[0].delta:g} after {found[0].rounds:,} rounds, "
        f"each with {found[0].confidence:.0%} confidence\n",
        shown,
    )
    typer.echo(
        "\nthreshold, Gaussian fit: guessing the full / the emptied corpus. A threshold assumes "
        "nothing;\nthe fit assumes a Gaussian trade-off, curve the proven one at another noise."
    )


def _show_measured(measured: Sequence["Sensitivity"]) -> None:
    shown = table("method", "on", "emptied", "rounds", "largest shift", "allowed", "noise")
    shown.columns[1].justify = shown.columns[2].justify = "left"
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
    show("how far rounds of training's own code move, in update clips\n", shown)
    typer.echo("\nnoise: that of a round, as a part of what was planned.")


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
    from uedp.training.config import load_config

    if resume and out is None:
        raise UserError("audit train: say what to resume with --out")
    with tempfile.TemporaryDirectory(prefix="uedp-audit-") as scratch:
        found = training.audit(
            load_config(config, changes),
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
    from uedp.accounting.statement import rounded

    shown = table("kind", "score", "canaries", "guesses", "correct", "lower bound", "max provable")
    shown.add_column("proven", justify="right")
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
            rounded(one.most, 3, down=True),
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
        "\nmax provable: the bound if all guesses were right; no larger epsilon can be refuted.\n"
        f"chance of a false alarm, all bounds together: at most {1 - found.confidence:.2g}"
    )


@audit.command("extract")
def audit_extract(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Folders of finished runs, to compare.")
    ],
    secrets: Annotated[
        Path | None,
        typer.Option(help="Rank the secrets in this file, planted by `uedp audit plant`."),
    ] = None,
    held_out: Annotated[
        Path | None,
        typer.Option(help="A corpus of entities to hold against. Left out: data.evaluate."),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(help="For entities: the model before training; a folder, a file or a name."),
    ] = None,
    alternatives: Annotated[
        int, typer.Option(help="Numbers to try for each secret: all, if there are no more.")
    ] = 10_000,
    beams: Annotated[int, typer.Option(help="Continuations of a prompt to look among.")] = 10,
    entities: Annotated[int, typer.Option(help="Entities to rank, from each corpus.")] = 1000,
    others: Annotated[int, typer.Option(help="Entities of its category to rank one among.")] = 100,
    seed: Annotated[int, typer.Option(help="Draws entities and alternatives.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Save all that was found as JSON.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Exposures and ROC, to a file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Try to get planted secrets out of trained models, or the entities of their own corpus.

    What was trained on is ranked among what could stand in its place, and so is what was not.
    """
    from uedp.audit.extraction import extract
    from uedp.audit.secrets import load_secrets
    from uedp.report.extraction_plots import extraction_figure
    from uedp.report.plots import new_figure

    if plot is not None:
        new_figure(plot, 1, 1)  # refuse a name now, not in some minutes
    if out is not None and out.is_dir():
        raise UserError(f"--out {out}: is a folder; name a file")
    if len(set(runs)) < len(runs):
        raise UserError("audit extract: a run is named twice; name each once")
    wanted = None if secrets is None else load_secrets(secrets)
    found = [
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
    answer = {"runs": [one.to_json() for one in found]}
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(answer, indent=1, allow_nan=False) + "\n")
    if plot is not None:
        extraction_figure({plain(one.run): one.ranked for one in found}, plot)
    if as_json:
        typer.echo(json.dumps(answer, indent=1, allow_nan=False))
    else:
        _show_extraction(found)


def _show_extraction(found: Sequence["Extraction"]) -> None:
    from uedp.accounting.statement import rounded
    from uedp.audit.ranks import FALSE_POSITIVES, summary

    summaries = [summary(one.ranked) for one in found]
    first, kind = summaries[0], found[0].kind
    inside, outside = ("planted", "left out") if kind == "secrets" else ("held in", "held out")
    shown = table("run", "method", "epsilon", "perplexity", inside, outside, "ranked first")
    shown.columns[1].justify = "left"
    for name in ("written", "in beams") if kind == "secrets" else ():
        shown.add_column(name, justify="right")
    for name in ("area", *(f"TPR at {rate:g}" for rate in FALSE_POSITIVES)):
        shown.add_column(name, justify="right")
    for one, own in zip(found, summaries, strict=True):
        group, rates = own["groups"][inside], own["membership"]["at"]
        shares = ("extracted", "in_beams") if kind == "secrets" else ()
        shown.add_row(
            plain(one.run),
            one.method,
            "none" if one.epsilon is None else rounded(one.epsilon),
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
    groups = table("mean exposure", *(plain(one.run) for one in found))
    for name in by_users:
        cells = (own["groups"].get(name) for own in summaries)
        groups.add_row(name, *("" if c is None else f"{c['mean_exposure']:.2f}" for c in cells))
    typer.echo()
    show("", groups)
    what = "" if kind == "entities" else "exact, " if first["exact"] else "estimated, "
    typer.echo(
        f"\nexposure: {what}at most {first['largest_exposure']:.1f} bits, by chance "
        f"{first['exposure_by_chance']:.2f} on average. TPR: the share of {inside} found while at "
        f"most\nsuch a share of {outside} is taken for one (-: too few {outside} to tell). Of the "
        "models asked, only those with\nan epsilon carry a guarantee; low ranks of others prove "
        "nothing."
    )


@audit.command("plant")
def audit_plant(
    source: Annotated[
        Path, typer.Argument(metavar="SOURCE", help="What `uedp detect` would be given.")
    ],
    out: Annotated[Path, typer.Option(help="The file with secrets in it, .jsonl or .jsonl.gz.")],
    secrets: Annotated[Path, typer.Option(help="A .json file for the list of secrets.")],
    reader: Annotated[str, typer.Option(help="As of `uedp detect`.")] = "auto",
    user: Annotated[str, typer.Option(help="The column that says who wrote it.")] = "user",
    text: Annotated[str, typer.Option(help="The column with the text.")] = "text",
    label: Annotated[str | None, typer.Option(help="A column with a class label.")] = None,
    marks: Annotated[str | None, typer.Option(help="A column with human marks.")] = None,
    repeats: Annotated[
        str, typer.Option(metavar="R,R,...", help="By how many users secrets are told.")
    ] = "1,2,4,8,16",
    each: Annotated[int, typer.Option(help="Secrets for each entry of --repeats.")] = 10,
    left_out: Annotated[
        int | None, typer.Option(help="Secrets told by nobody. Left out: as many as are told.")
    ] = None,
    mask: Annotated[str, typer.Option(help="The form of a secret; # is a digit.")] = "212-555-####",
    existing: Annotated[
        bool, typer.Option("--existing", help="Let users tell them that there are, not new ones.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Another seed, other secrets.")] = 0,
) -> None:
    """Put made-up phone numbers into a corpus, before detection, to look for after training."""
    from uedp.audit.secrets import plant, save_secrets, write_sentences
    from uedp.corpus.readers import read_sentences
    from uedp.corpus.records import Columns

    for path in (out, secrets):
        if os.path.lexists(path):
            raise UserError(f"{path}: exists already; choose another name")
        if not path.parent.is_dir():
            raise UserError(f"{path.parent}: no such folder; make it, or choose another")
    try:
        counts = [int(count) for count in repeats.split(",")]
    except ValueError:
        raise UserError(f"--repeats {repeats}: write numbers by commas, as 1,4,16") from None
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
    told = [secret for secret in planted if secret.planted]
    typer.echo(
        f"{plain(str(out))}: {len(sentences):,} sentences, {sum(s.repeats for s in told):,} of "
        f"which tell one of {len(told):,} secrets\n"
        f"{plain(str(secrets))}: these, and {len(planted) - len(told):,} that nobody tells"
    )


def register(app: typer.Typer) -> None:
    app.add_typer(audit, name="audit")
