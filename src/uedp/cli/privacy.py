"""Commands for guarantees: account, calibrate, plan, certificate, ledger."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, Option

from uedp.cli import options
from uedp.cli.preview import preview_json, show_missed, show_preview
from uedp.cli.terminal import cell, number, plain, progress, say, say_json, show, table, with_flags
from uedp.errors import UserError

if TYPE_CHECKING:
    from uedp.accounting.certificate import Certificate
    from uedp.accounting.planning import Option as PlanOption
    from uedp.accounting.planning import Supply
    from uedp.accounting.profile import Profile
    from uedp.methods import PrivacySettings
    from uedp.training.api import Preview

account = typer.Typer(help="Compute the epsilon of given parameters.", no_args_is_help=True)
certificate = typer.Typer(help="Show, verify and sign certificates.", no_args_is_help=True)


@account.command("published")
def account_published(
    method: Annotated[Literal["user", "f_e", "f_e_plus"], Option(help="The method of the paper.")],
    users: options.Users,
    users_per_round: Annotated[int, Option(help="Users sampled per round.")],
    noise: options.PaperNoise,
    rounds: options.Rounds,
    entity_rate: float = Option(1.0, help="q_e."),
    sensitive: int = Option(1, help="Number of sensitive sentences (f_E+)."),
    sentences: int = Option(1, help="Number of all sentences (f_E+)."),
    delta: options.Delta = 1e-5,
    as_json: options.AsJson = False,
) -> None:
    """Compute epsilon as the paper does. Not a privacy guarantee."""
    from uedp.accounting import published

    setting = published.PublishedSetting(users, users_per_round, entity_rate, sensitive, sentences)
    rate = setting.rate(published.PublishedMethod(method))
    value = published.epsilon(rate, noise, rounds, delta)
    _answer({"epsilon": value}, delta, False, published.NOT_A_GUARANTEE, as_json)


@account.command("proven")
def account_proven(
    run: Path | None = Argument(None, metavar="[RUN]", help="A run, whose numbers are taken."),
    corpus: options.PlannedCorpus = None,
    epsilon_target: float = Option(
        8.0, "--epsilon", help="With --corpus: the target that the rest is chosen for."
    ),
    user_rate: float | None = Option(None, help="The sampling rate of users in a round."),
    rounds: int | None = Option(None, help="Number of rounds."),
    noise: float | None = Option(None, help="Noise multiplier, in units of the update clip."),
    entity_share: float | None = Option(
        None, help="How far one entity can move one update, in units of the update clip."
    ),
    entity_rate: options.EntityRate = 1.0,
    extended_rate: options.ExtendedRate = 1.0,
    delta: float | None = Option(None, help="The allowed probability of failure. Default: 1e-5."),
    as_json: options.AsJson = False,
) -> None:
    """Compute the proven epsilon of rotation; with an entity share of 0, of user-level DP.

    Numbers that are not given come from RUN, or are chosen for --corpus as in training.
    """
    from uedp.accounting.calibrate import rotation_profile

    if run is not None:
        _prove_run(run, delta, as_json)
        return
    if corpus is not None and noise is not None:
        share = entity_share or None  # the planner knows no share of 0
        fields = {"user_rate": user_rate, "rounds": rounds, "entity_share": share, "delta": delta}
        chosen = _chosen(corpus, epsilon_target, fields, as_json)
        user_rate, rounds, delta = chosen.user_rate, chosen.rounds, chosen.delta
        entity_share = chosen.entity_share if entity_share is None else entity_share
    values = {
        "--user-rate": user_rate,
        "--rounds": rounds,
        "--noise": noise,
        "--entity-share": entity_share,
    }
    missing = [flag for flag, value in values.items() if value is None]
    if user_rate is None or rounds is None or noise is None or entity_share is None:
        rest = "" if missing == ["--noise"] else ", or --corpus for all but --noise"
        raise UserError(f"account proven: give a RUN, or {', '.join(missing)}{rest}")
    profile = rotation_profile(noise, user_rate, entity_share, entity_rate, extended_rate)
    _prove(profile, rounds, 1e-5 if delta is None else delta, as_json)


@account.command("alg")
def account_alg(
    users: options.Users,
    holders: Annotated[int, Option(help="Number of other users who mention the entity.")],
    user_rate: options.UserRate,
    noise: options.PaperNoise,
    rounds: options.Rounds,
    delta: options.Delta = 1e-5,
    as_json: options.AsJson = False,
) -> None:
    """Compute the proven epsilon of the paper's mechanism, for an entity with so many holders."""
    from uedp.accounting.proven import UedpAlgProfile

    _prove(UedpAlgProfile(noise, user_rate, users, holders), rounds, delta, as_json)


def calibrate(
    epsilon_target: options.TargetEpsilon,
    corpus: options.PlannedCorpus = None,
    user_rate: float | None = Option(None, help="The sampling rate of users in a round."),
    rounds: int | None = Option(None, help="Number of rounds. Default: solve."),
    entity_share: float | None = Option(
        None, help="Entity share. Default: solve, given noise and rounds."
    ),
    noise: float | None = Option(None, help="Noise multiplier. Default: solve."),
    entity_rate: options.EntityRate = 1.0,
    extended_rate: options.ExtendedRate = 1.0,
    delta: float | None = Option(None, help="The allowed probability of failure. Default: 1e-5."),
    as_json: options.AsJson = False,
) -> None:
    """Solve for the noise, the rounds or the entity share, whichever is left out.

    With --corpus, what else is left out is chosen as in training.
    """
    from uedp.accounting.calibrate import calibrate_rotation

    if corpus is not None:
        fields = {"user_rate": user_rate, "rounds": rounds, "delta": delta}
        chosen = _chosen(
            corpus, epsilon_target, fields | {"entity_share": entity_share or None}, as_json
        )
        user_rate, delta = chosen.user_rate, chosen.delta
        if noise is None:
            rounds = chosen.rounds
        if entity_share is None and (noise is None or rounds is None):
            entity_share = chosen.entity_share
    if user_rate is None:
        raise UserError("calibrate: give --user-rate, or --corpus to have it chosen")
    delta = 1e-5 if delta is None else delta
    solved = calibrate_rotation(
        epsilon_target,
        delta,
        user_rate,
        noise=noise,
        rounds=rounds,
        entity_share=entity_share,
        entity_rate=entity_rate,
        extended_rate=extended_rate,
    )
    names = ("noise", "rounds", "entity_share", "epsilon")
    values = {name: getattr(solved, name) for name in names}
    if corpus is not None:
        values["user_rate"] = user_rate
    _answer(values, delta, True, _words(solved.profile, solved.epsilon, delta), as_json)


def plan(
    epsilon_target: options.TargetEpsilon,
    corpus: Path | None = Argument(None, help="A corpus folder; or give counts."),
    users: int | None = Option(None, help="Number of users, without a corpus."),
    sentences: int | None = Option(None, help="Number of sentences, without a corpus."),
    usable: float = Option(0.5, help="Share of sentences a round can use, without a corpus."),
    user_rate: list[float] = Option([0.02, 0.05, 0.1, 0.2], help="Rates to try; repeat."),
    rounds: list[int] = Option([100, 200, 500], help="Rounds to try; repeat."),
    entity_share: list[float] = Option([0.1, 0.2, 0.33, 0.5], help="Shares to try; repeat."),
    delta: options.Delta = 1e-5,
    best: int = Option(15, help="Number of rows to show."),
    plot: Path | None = Option(None, help="Plot epsilon against rounds."),
    model: str | None = Option(None, help="With a corpus: estimate the run of this model, too."),
    changes: options.SetOption = [],  # noqa: B006 - Typer copies it
    time: str | None = Option(None, help="With --model: how long a run may take, as 30m or 2h."),
    as_json: options.AsJson = False,
) -> None:
    """Compare plans at one epsilon: the noise each needs, and its signal-to-noise ratio.

    With --model: their time, too, and all of what `uedp train --dry-run` shows of the chosen one.
    """
    from dataclasses import asdict

    from uedp.accounting import planning
    from uedp.corpus.store import Corpus
    from uedp.mechanism.sampling import supply_of

    preview = None
    if corpus is not None:
        supply = supply_of(Corpus(corpus).incidence)
    else:
        supply = planning.Supply.of_counts(users, sentences, usable)
    if model is not None:
        if corpus is None:
            raise UserError("plan: --model needs a CORPUS to measure the time of a round with")
        preview = _previewed(epsilon_target, corpus, model, time, delta, changes)
    tried = []
    total = len(user_rate) * len(rounds) * len(entity_share)
    with progress().stage("calibrating", total, "options") as meter:
        for option in planning.options(
            epsilon_target, delta, supply, user_rate, rounds, entity_share
        ):
            tried.append(option)
            meter.advance(1)
    tried.sort(key=lambda option: -option.merit)
    if plot is not None:
        from uedp.report.plots import epsilon_curves

        epsilon_curves(planning.curves(tried[0].profile, tried[0].rounds, delta), delta, plot)
    if as_json:
        rows = [asdict(option) for option in tried]
        if preview is not None:
            for row, option in zip(rows, tried, strict=True):
                row["seconds"] = _seconds(preview, supply, option)
        answer = {"epsilon": epsilon_target, "delta": delta, "options": rows}
        say_json(answer if preview is None else answer | {"estimate": preview_json(preview, None)})
        return
    timed = () if preview is None else ("time/round", "time in all")
    shown = table("user rate", "rounds", "entity share", "noise", "users/round", "merit", *timed)
    for option in tried[:best]:
        few = " (few)" if option.users_per_round < planning.FEW_USERS else ""
        shown.add_row(
            f"{option.user_rate:g}",
            f"{option.rounds:,}",
            f"{option.entity_share:g}",
            number(option.noise),
            f"{option.users_per_round:,.0f}{few}",
            f"{option.merit:,.1f}",
            *_times(preview, supply, option),
        )
    show(f"epsilon {epsilon_target:g}, delta {delta:g}, user and entity; best first", shown)
    typer.echo(
        "\nmerit: signal-to-noise ratio of the whole run; more rounds take more compute.\n"
        f"(few): fewer than {planning.FEW_USERS} users per round; the noise is shared by too few."
    )
    if plot is not None:
        say(f"epsilon against rounds: {plot}")
    if preview is not None:
        typer.echo("\nthe plan that is chosen:")
        show_preview(preview, None)
        return
    show_missed(tried[0].profile, tried[0].rounds, delta, None, "the best plan")


def _previewed(
    epsilon: float, corpus: Path, model: str, time: str | None, delta: float, changes: list[str]
) -> "Preview":
    from uedp.training import api
    from uedp.training.config import parse_config

    run = {} if time is None else {"time": time}
    privacy = {"epsilon": epsilon} | ({} if delta == 1e-5 else {"delta": delta})
    values = {"privacy": privacy, "data": {"train": corpus}, "model": {"name": model}, "run": run}
    return api.preview(parse_config(values, "plan", changes), progress())


def _seconds(preview: "Preview", supply: "Supply", option: "PlanOption") -> float:
    """How long the rounds of an option take."""
    usable = float(supply.sentences_per_user.sum())
    return option.rounds * preview.pace.round_seconds(option.user_rate * usable)


def _times(preview: "Preview | None", supply: "Supply", option: "PlanOption") -> list[str]:
    from uedp.training.choose import duration

    if preview is None:
        return []
    seconds = _seconds(preview, supply, option)
    return [duration(seconds / option.rounds), duration(seconds)]


def _chosen(corpus: Path, epsilon: float, given: dict[str, Any], quiet: bool) -> "PrivacySettings":
    """What the planner chooses for a corpus; said in words, unless JSON is printed."""
    from uedp.training.choose import choose_for_corpus

    choice = choose_for_corpus(corpus, epsilon, given, progress())
    for line in () if quiet else choice.words:
        say(line)
    return choice.config.privacy


def _prove_run(run: Path, delta: float | None, as_json: bool) -> None:
    """The epsilon of a run's plan, computed again from its ledger."""
    from uedp.accounting.chain import read_chain
    from uedp.accounting.ledger import RUN_LEDGER, planned_run
    from uedp.accounting.proven import epsilon
    from uedp.accounting.statement import ADJACENCY, statement

    path = run / RUN_LEDGER
    if not path.is_file():
        raise UserError(f"{run}: has no ledger; name the folder of a run with a guarantee")
    planned = planned_run(path, read_chain(path)[0])
    if planned.profile is None:
        raise UserError(f"{run}: this run adds no noise and has no epsilon")
    delta = planned.delta if delta is None else delta
    events = () if planned.vocabulary is None else ((planned.vocabulary, 1),)
    value = epsilon(planned.profile, planned.rounds, delta, *events)
    proven = _finite(value) is not None and planned.setup.exposed is None
    stated = statement(planned.profile, value, delta, proven, planned.setup)
    words = f"{stated}\n{ADJACENCY}"
    _answer({"epsilon": value if proven else None}, delta, proven, words, as_json)


@certificate.command("show")
def certificate_show(run: options.RunArgument, as_json: options.AsJson = False) -> None:
    """Print the certificate of a run."""
    from uedp.accounting.certificate import load_certificate

    shown = load_certificate(run)
    if as_json:
        typer.echo(shown.model_dump_json(indent=2))
        return
    typer.echo("not verified: this is what the file says; check it with `uedp certificate verify`")
    _say_statement(shown)
    say(shown.adjacency)
    typer.echo()
    rows = table("", "", left=(1,))
    rows.add_row("epsilon, user and entity", number(shown.epsilon))
    rows.add_row("epsilon, user without entity", number(shown.epsilon_user_alone))
    for missed in shown.missed_mentions:
        rows.add_row(cell(f"epsilon, missed in {missed.words}"), number(missed.epsilon))
    rows.add_row("delta", f"{shown.delta:g}")
    if shown.corpus_total is not None:
        rows.add_row(
            f"epsilon on the corpus, {_runs(shown.corpus_total.runs)}",
            number(shown.corpus_total.epsilon),
        )
        rows.add_row("which is for", cell(shown.corpus_total.unit))
    rows.add_row("method", cell(shown.method))
    rows.add_row("rounds planned, spent", f"{shown.rounds_planned:,}, {shown.rounds_spent:,}")
    for name, value in shown.parameters.items():
        rows.add_row(cell(name.replace("_", " ")), cell(value))
    for name, texts in (("not protected", shown.not_protected), ("caveats", shown.caveats)):
        rows.add_row(name, "\n".join(map(cell, texts)) or "none")
    for name, digest in shown.files.items():
        rows.add_row(cell(name), cell(digest))
    show("", rows)


@certificate.command("verify")
def certificate_verify(
    run: options.RunArgument,
    public_key: Path | None = Option(
        None, help="The signer's public key; required for `verified`."
    ),
    corpus: Path | None = Option(None, help="The corpus of the run, if you have it: checks more."),
    as_json: options.AsJson = False,
) -> None:
    """Recompute a certificate from the run's ledger, and compare the model's files."""
    from uedp.accounting.certificate import not_checked, verify
    from uedp.training.provenance import refuse_other_corpus

    checked = verify(run, public_key, corpus)
    if corpus is not None:
        refuse_other_corpus(checked, corpus)
    signed = public_key is not None
    left_open = [with_flags(line) for line in not_checked(checked, signed, corpus is not None)]
    if as_json:
        answer = {
            "verified": signed,
            "consistent": True,
            "private": checked.private,
            "epsilon": checked.epsilon,
            "delta": checked.delta,
            "statement": checked.statement,
            "caveats": checked.caveats,
            "not_checked": left_open,
        }
        say_json(answer)
        return
    model = f"{len(checked.files)} files of the model" if checked.files else "no model"
    verdict = f"verified: signed by {public_key}," if signed else "consistent:"
    say(f"{verdict} ledger intact, every number recomputed, {model} compared")
    _say_statement(checked)
    typer.echo("Not checked:")
    for line in left_open:
        say(f"- {line}")


@certificate.command("keygen")
def certificate_keygen(
    out: Annotated[Path, Option(help="The file for the private key; .pub goes beside it.")],
) -> None:
    """Generate a key to sign certificates with."""
    from uedp.accounting.signature import generate_key

    public = generate_key(out)
    typer.echo(f"private key: {plain(str(out))} (keep it)\npublic key: {plain(str(public))}")


@certificate.command("sign")
def certificate_sign(
    run: options.RunArgument,
    key: Annotated[Path, Option(help="A private key, made by `uedp certificate keygen`.")],
) -> None:
    """Verify a certificate, then sign it, and with it the ledger and the model's files."""
    from uedp.accounting.certificate import CERTIFICATE, verify
    from uedp.accounting.signature import sign_certificate

    checked = verify(run)
    say(f"signature: {sign_certificate(run / CERTIFICATE, key)}")
    _say_statement(checked)


@certificate.command("schema")
def certificate_schema() -> None:
    """Print the JSON schema of certificates."""
    from uedp.accounting.certificate import schema

    say_json(schema())


def ledger(
    corpus: options.CorpusArgument,
    close: Path | None = Option(
        None,
        metavar="RUN",
        help="End a run early, for good: it is charged for its rounds so far, not for those it "
        "planned. Valid only if the decision to stop did not depend on the text.",
    ),
    delta: options.Delta = 1e-5,
    as_json: options.AsJson = False,
) -> None:
    """Show the epsilon of every run on a corpus, and of all of them together."""
    from uedp.accounting import certificate as certificates
    from uedp.accounting.ledger import CorpusLedger, close_run
    from uedp.corpus.store import Corpus

    opened = CorpusLedger(Corpus(corpus).folder)
    if close is not None:
        ended = close_run(close, opened)
        certificates.issue(close, lambda text: typer.echo(f"warning: {plain(text)}", err=True))
        if not as_json:
            say(f"closed: run {ended.run} after {ended.counted:,} rounds")
    entries = [(entry, _finite(entry.epsilon(delta))) for entry in opened.entries()]
    total = opened.total(delta) if entries else None
    if as_json:
        runs = [
            {
                "run": entry.run,
                "method": entry.method,
                "rounds_planned": entry.planned,
                "rounds_counted": entry.counted,
                "closed": entry.closed,
                "epsilon": value,
                "without_guarantee": entry.exposed,
            }
            for entry, value in entries
        ]
        spent = total.epsilon if total else 0.0
        unit = total.unit if total else ""
        say_json({"runs": runs, "epsilon": spent, "delta": delta, "unit": unit})
        return
    if total is None:
        typer.echo("no run was made on this corpus")
        return
    rows = table("run", "method", "rounds", "", "epsilon", "", left=(3, 5))
    for entry, value in entries:
        rows.add_row(
            cell(entry.run),
            cell(entry.method),
            f"{entry.counted:,} of {entry.planned:,}",
            "closed" if entry.closed else "open: charged for all planned rounds",
            number(value),
            cell(entry.exposed or ""),
        )
    show("", rows)
    shown = f"epsilon {number(total.epsilon)} at delta {delta:g}, for {total.unit}"
    say(f"\n{_runs(total.runs)}: {shown}")


def _say_statement(stated: "Certificate") -> None:
    """Print the guarantee, and the lines that belong to it."""
    sentence, *lines = stated.statement.split("\n")
    for line in filter(None, (sentence, stated.missed_line, *lines)):
        say(line)


def _runs(count: int) -> str:
    return "this run" if count == 1 else f"all {count:,} runs together"


def _finite(value: float) -> float | None:
    return value if value < float("inf") else None


def _prove(profile: "Profile", rounds: int, delta: float, as_json: bool) -> None:
    from uedp.accounting.proven import epsilon

    value = epsilon(profile, rounds, delta)
    finite = _finite(value)
    words = _words(profile, value, delta)
    _answer({"epsilon": finite}, delta, finite is not None, words, as_json)


def _words(profile: "Profile", value: float, delta: float) -> str:
    from uedp.accounting.statement import ADJACENCY, statement

    return f"{statement(profile, value, delta, _finite(value) is not None)} {ADJACENCY}"


def _answer(values: dict[str, Any], delta: float, proven: bool, words: str, as_json: bool) -> None:
    if as_json:
        say_json({**values, "delta": delta, "guarantee": proven, "words": words})
        return
    for name, value in values.items():
        # a share rounded up, or a noise rounded down, would miss the target
        say(f"{name.replace('_', ' ')}: {number(value, 6, down=name == 'entity_share')}")
    typer.echo(words)
