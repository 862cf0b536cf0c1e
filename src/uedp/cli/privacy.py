"""Commands on guarantees: account, calibrate, plan, certificate, ledger."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from uedp.accounting import certificate as certificates
from uedp.accounting import published
from uedp.accounting.calibrate import noise_for, rounds_for, share_for
from uedp.accounting.ledger import CorpusLedger, LedgerEntry, close_run
from uedp.accounting.missed import MISSED_CASES, Neighbour, missed_words, neighbours
from uedp.accounting.planning import FEW_USERS, Option, Supply, curves, options
from uedp.accounting.profile import Profile
from uedp.accounting.proven import RotationProfile, UedpAlgProfile, UserLevelProfile, epsilon
from uedp.accounting.signature import generate_key, sign_certificate
from uedp.accounting.statement import ADJACENCY, NO_FINITE_EPSILON, rounded, statement
from uedp.cli.terminal import plain, progress, show, table, with_flags
from uedp.corpus.store import Corpus
from uedp.errors import UserError
from uedp.mechanism.sampling import supply_of

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Delta = Annotated[float, typer.Option(help="The probability of failure that is allowed.")]
UserRate = Annotated[float, typer.Option(help="Probability that a user is drawn in a round.")]
Rounds = Annotated[int, typer.Option(help="Number of rounds.")]
Noise = Annotated[float, typer.Option(help="Noise, in units of the update clip.")]
Share = Annotated[
    float, typer.Option(help="How far one entity can move one update, in units of the update clip.")
]
Coin = Annotated[float, typer.Option(help="Probability that a lent entity is used (q_e).")]
ExtendedCoin = Annotated[
    float, typer.Option(help="The same for sentences without detected entities (q_s).")
]

account = typer.Typer(help="The epsilon of given parameters.", no_args_is_help=True)
certificate = typer.Typer(help="Certificates of runs.", no_args_is_help=True)


@account.command("published")
def account_published(
    method: Annotated[published.PublishedMethod, typer.Option(help="Whose epsilon.")],
    users: Annotated[int, typer.Option(help="Number of users.")],
    users_per_round: Annotated[int, typer.Option(help="Users sampled per round.")],
    noise: Annotated[float, typer.Option(help="The paper's z.")],
    rounds: Rounds,
    entity_rate: Annotated[float, typer.Option(help="q_e.")] = 1.0,
    sensitive: Annotated[int, typer.Option(help="Sensitive sentences (f_E+).")] = 1,
    sentences: Annotated[int, typer.Option(help="All sentences (f_E+).")] = 1,
    delta: Delta = 1e-5,
    as_json: AsJson = False,
) -> None:
    """The epsilon as the paper computed it. Not a privacy guarantee."""
    setting = published.PublishedSetting(users, users_per_round, entity_rate, sensitive, sentences)
    value = published.epsilon(setting.rate(method), noise, rounds, delta)
    _answer({"epsilon": value}, delta, False, published.NOT_A_GUARANTEE, as_json)


@account.command("proven")
def account_proven(
    user_rate: UserRate,
    rounds: Rounds,
    noise: Noise,
    entity_share: Share,
    entity_rate: Coin = 1.0,
    extended_rate: ExtendedCoin = 1.0,
    delta: Delta = 1e-5,
    as_json: AsJson = False,
) -> None:
    """The proven epsilon of rotation; with an entity share of 0, of user-level DP."""
    profile = _rotation(noise, user_rate, entity_share, entity_rate, extended_rate)
    _prove(profile, rounds, delta, as_json)


@account.command("alg")
def account_alg(
    users: Annotated[int, typer.Option(help="Number of users.")],
    holders: Annotated[int, typer.Option(help="Other users who mention the entity.")],
    user_rate: UserRate,
    noise: Annotated[float, typer.Option(help="The paper's z.")],
    rounds: Rounds,
    delta: Delta = 1e-5,
    as_json: AsJson = False,
) -> None:
    """The proven epsilon of the paper's own mechanism, for an entity with so many holders."""
    _prove(UedpAlgProfile(noise, user_rate, users, holders), rounds, delta, as_json)


def calibrate(
    epsilon_target: Annotated[float, typer.Option("--epsilon", help="The target.")],
    user_rate: UserRate,
    rounds: Annotated[int | None, typer.Option(help="Number of rounds; left out: find it.")] = None,
    entity_share: Annotated[
        float | None, typer.Option(help="Entity share; left out, with noise given: find it.")
    ] = None,
    noise: Annotated[float | None, typer.Option(help="Noise; left out: find it.")] = None,
    entity_rate: Coin = 1.0,
    extended_rate: ExtendedCoin = 1.0,
    delta: Delta = 1e-5,
    as_json: AsJson = False,
) -> None:
    """Find noise, rounds or entity share for a target epsilon: whichever is left out."""
    missing = [
        name
        for name, value in (("noise", noise), ("rounds", rounds), ("entity share", entity_share))
        if value is None
    ]
    if len(missing) != 1:
        raise UserError(
            "calibrate: leave out exactly one of --noise, --rounds and --entity-share; "
            f"left out: {', '.join(missing) or 'none'}"
        )

    def rotation(noise: float, share: float) -> Profile:
        return _rotation(noise, user_rate, share, entity_rate, extended_rate)

    if noise is None and rounds is not None and entity_share is not None:
        share = entity_share
        noise = noise_for(epsilon_target, delta, rounds, lambda z: rotation(z, share))
    elif rounds is None and noise is not None and entity_share is not None:
        rounds = rounds_for(epsilon_target, delta, rotation(noise, entity_share))
        if rounds == 0:
            raise UserError(f"noise {noise:g}: not even one round stays within; raise it")
    elif noise is not None and rounds is not None:
        level = noise
        entity_share = share_for(epsilon_target, delta, rounds, lambda s: rotation(level, s))
    assert noise is not None and rounds is not None and entity_share is not None  # noqa: PT018
    profile = rotation(noise, entity_share)
    found = {
        "noise": noise,
        "rounds": rounds,
        "entity_share": entity_share,
        "epsilon": epsilon(profile, rounds, delta),
    }
    _answer(found, delta, True, _words(profile, found["epsilon"], delta), as_json)


def plan(
    epsilon_target: Annotated[float, typer.Option("--epsilon", help="The target.")],
    corpus: Annotated[Path | None, typer.Argument(help="A corpus folder; or give counts.")] = None,
    users: Annotated[int | None, typer.Option(help="Number of users, without a corpus.")] = None,
    sentences: Annotated[int | None, typer.Option(help="Number of sentences.")] = None,
    usable: Annotated[
        float, typer.Option(help="Share of sentences a round can use, without a corpus.")
    ] = 0.5,
    user_rate: Annotated[list[float], typer.Option(help="Rates to try; repeat.")] = [  # noqa: B006
        0.02,
        0.05,
        0.1,
        0.2,
    ],
    rounds: Annotated[list[int], typer.Option(help="Rounds to try; repeat.")] = [  # noqa: B006
        100,
        200,
        500,
    ],
    entity_share: Annotated[list[float], typer.Option(help="Shares to try; repeat.")] = [  # noqa: B006
        0.1,
        0.2,
        0.33,
        0.5,
    ],
    delta: Delta = 1e-5,
    best: Annotated[int, typer.Option(help="How many rows to show.")] = 15,
    plot: Annotated[Path | None, typer.Option(help="Epsilon against rounds, to a file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare ways to run at one epsilon: noise needed, and signal against noise, best first."""
    supply = _supply(corpus, users, sentences, usable)
    tried: list[Option] = []
    total = len(user_rate) * len(rounds) * len(entity_share)
    with progress().stage("calibrating", total, "options") as meter:
        for option in options(epsilon_target, delta, supply, user_rate, rounds, entity_share):
            tried.append(option)
            meter.advance(1)
    tried.sort(key=lambda option: -option.merit)
    if plot is not None:
        from uedp.report.plots import epsilon_curves

        epsilon_curves(curves(tried[0].profile, tried[0].rounds, delta), delta, plot)
    if as_json:
        rows = [asdict(option) for option in tried]
        typer.echo(
            json.dumps({"epsilon": epsilon_target, "delta": delta, "options": rows}, indent=2)
        )
        return
    shown = table("user rate", "rounds", "entity share", "noise", "users/round", "merit")
    for option in tried[:best]:
        few = " (few)" if option.users_per_round < FEW_USERS else ""
        shown.add_row(
            f"{option.user_rate:g}",
            f"{option.rounds:,}",
            f"{option.entity_share:g}",
            _number(option.noise),
            f"{option.users_per_round:,.0f}{few}",
            f"{option.merit:,.1f}",
        )
    show(f"epsilon {epsilon_target:g}, delta {delta:g}, user and entity; best first", shown)
    typer.echo(
        "\nmerit: signal against noise over the whole run; more rounds cost more computing.\n"
        f"(few): fewer than {FEW_USERS} users per round; the noise is shared by too few."
    )
    if plot is not None:
        typer.echo(f"epsilon against rounds: {plot}")
    first = tried[0]
    show_missed(first.profile, first.rounds, delta, None, "the best of these")


def show_missed(
    profile: Profile, rounds: int, delta: float, most: int | None, name: str = "this plan"
) -> None:
    """How share, rate and sentences per user move the epsilon of missed mentions."""
    found: list[Neighbour] = []
    with progress().stage("missed mentions", None, "plans") as meter:
        for neighbour in neighbours(profile, rounds, delta, most):
            found.append(neighbour)
            meter.advance(1)
    shown = table("", "noise", *(missed_words(*case) for case in MISSED_CASES))
    for row in found:
        values = (_number(e if e < float("inf") else None, 3) for e in row.epsilons)
        shown.add_row(
            name if row is found[0] else row.change,
            rounded(row.profile.noise),
            *values,
        )
    show("\nepsilon where the detector missed the entity, at the noise that each plan needs", shown)


@certificate.command("show")
def certificate_show(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    as_json: AsJson = False,
) -> None:
    """Print a run's certificate in words."""
    shown = certificates.load_certificate(run)
    if as_json:
        typer.echo(shown.model_dump_json(indent=2))
        return
    typer.echo("not verified: this is what the file says; check it with `uedp certificate verify`")
    _say_statement(shown)
    typer.echo(f"{plain(shown.adjacency)}\n")
    rows = table("", "")
    rows.columns[1].justify = "left"
    rows.add_row("epsilon, user and entity", _number(shown.epsilon))
    rows.add_row("epsilon, user alone", _number(shown.epsilon_user_alone))
    for missed in shown.missed_mentions:
        rows.add_row(_text(f"epsilon, missed in {missed.words}"), _number(missed.epsilon))
    rows.add_row("delta", f"{shown.delta:g}")
    if shown.corpus_total is not None:
        total = shown.corpus_total
        rows.add_row(f"epsilon, all {total.runs} runs on the corpus", _number(total.epsilon))
    rows.add_row("method", _text(shown.method))
    rows.add_row("rounds planned, spent", f"{shown.rounds_planned:,}, {shown.rounds_spent:,}")
    for name, value in shown.parameters.items():
        rows.add_row(_text(name.replace("_", " ")), _text(value))
    for name, text in (("not protected", shown.not_protected), ("caveats", shown.caveats)):
        rows.add_row(name, "\n".join(map(_text, text)) or "none")
    for name, digest in shown.files.items():
        rows.add_row(_text(name), _text(digest))
    show("", rows)


@certificate.command("verify")
def certificate_verify(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    public_key: Annotated[
        Path | None, typer.Option(help="Of whoever signed it; without, nothing is `verified`.")
    ] = None,
    corpus: Annotated[
        Path | None, typer.Option(help="The corpus of the run, for its curator: checks more.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Recompute a certificate from the run's ledger, and compare the model's files."""
    checked = certificates.verify(run, public_key, corpus)
    if corpus is not None:
        from uedp.training.provenance import refuse_other_corpus

        refuse_other_corpus(checked, corpus)
    signed = public_key is not None
    open_questions = certificates.not_checked(checked, signed, corpus is not None)
    left_open = [with_flags(text) for text in open_questions]
    if as_json:
        found = {
            "verified": signed,
            "consistent": True,
            "private": checked.private,
            "epsilon": checked.epsilon,
            "delta": checked.delta,
            "statement": checked.statement,
            "caveats": checked.caveats,
            "not_checked": left_open,
        }
        typer.echo(json.dumps(found, indent=2))
        return
    model = f"{len(checked.files)} files of the model" if checked.files else "no model"
    word, by = ("verified", f"signed by {public_key}, ") if signed else ("consistent", "")
    typer.echo(f"{word}: {plain(by)}ledger intact, every number recomputed, {model} compared")
    _say_statement(checked)
    typer.echo("Not checked:")
    for text in left_open:
        typer.echo(f"- {text}")


@certificate.command("keygen")
def certificate_keygen(
    out: Annotated[Path, typer.Option(help="The file for the private key; .pub goes beside it.")],
) -> None:
    """Make a key to sign certificates with."""
    public = generate_key(out)
    typer.echo(f"private key: {plain(str(out))} (keep it)\npublic key: {plain(str(public))}")


@certificate.command("sign")
def certificate_sign(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    key: Annotated[Path, typer.Option(help="A private key, made by `uedp certificate keygen`.")],
) -> None:
    """Sign a certificate, and with it the ledger and the model's files; it is recomputed before."""
    checked = certificates.verify(run)
    written = sign_certificate(run / certificates.CERTIFICATE, key)
    typer.echo(f"signature: {plain(str(written))}")
    _say_statement(checked)


def ledger(
    corpus: Annotated[
        Path, typer.Argument(metavar="CORPUS", help="A folder made by `uedp detect`.")
    ],
    close: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="End a run early, for good: its rounds so far count, not those it planned. That "
            "holds if the text had no part in when it was ended.",
        ),
    ] = None,
    delta: Delta = 1e-5,
    as_json: AsJson = False,
) -> None:
    """What every run on a corpus spent, and all of them together."""
    opened = CorpusLedger(Corpus(corpus).folder)
    if close is not None:
        ended = close_run(close, opened)
        certificates.issue(close, lambda text: typer.echo(f"warning: {plain(text)}", err=True))
        if not as_json:
            typer.echo(f"closed: run {plain(ended.run)} after {ended.counted:,} rounds")
    entries = opened.entries()
    if not entries:
        if as_json:
            typer.echo(json.dumps({"runs": [], "epsilon": 0.0, "delta": delta, "unit": ""}))
        else:
            typer.echo("no run was made on this corpus")
        return
    total = opened.total(delta)
    if as_json:
        found = [_entry(entry, delta) for entry in entries]
        answer = {"runs": found, "epsilon": total.epsilon, "delta": delta, "unit": total.unit}
        typer.echo(json.dumps(answer, indent=2))
        return
    rows = table("run", "method", "rounds", "", "epsilon", "")
    rows.columns[3].justify = rows.columns[5].justify = "left"
    for entry in entries:
        fields = _entry(entry, delta)
        rows.add_row(
            _text(entry.run),
            _text(entry.method),
            f"{entry.counted:,} of {entry.planned:,}",
            "closed" if entry.closed else "open: counts what it planned",
            _number(fields["epsilon"]),
            _text(entry.exposed or ""),
        )
    show("", rows)
    runs = "this run" if total.runs == 1 else f"all {total.runs} runs together"
    value = _number(total.epsilon)
    typer.echo(f"\n{runs}: epsilon {value} at delta {delta:g}, for {total.unit}")


@certificate.command("schema")
def certificate_schema() -> None:
    """Print the JSON schema of certificates."""
    typer.echo(json.dumps(certificates.schema(), indent=2))


def register(app: typer.Typer) -> None:
    app.command()(calibrate)
    app.command()(plan)
    app.command()(ledger)
    app.add_typer(account, name="account")
    app.add_typer(certificate, name="certificate")


def _say_statement(certificate: certificates.Certificate) -> None:
    """The guarantee, and the lines that belong to it, as text and nothing else."""
    sentence, *lines = certificate.statement.split("\n")
    for line in (sentence, certificate.missed_line, *lines):
        if line:
            typer.echo(plain(line))


def _text(value: object) -> str:
    """What a file says, for a table: neither a terminal nor Rich finds anything in it to obey."""
    return escape(plain(str(value)))


def _entry(entry: LedgerEntry, delta: float) -> dict[str, Any]:
    value = entry.epsilon(delta)
    return {
        "run": entry.run,
        "method": entry.method,
        "rounds_planned": entry.planned,
        "rounds_counted": entry.counted,
        "closed": entry.closed,
        "epsilon": value if value < float("inf") else None,
        "without_guarantee": entry.exposed,
    }


def _rotation(noise: float, rate: float, share: float, coin: float, extended: float) -> Profile:
    if share == 0:
        return UserLevelProfile(noise, rate)
    return RotationProfile(noise, rate, share, entity_rate=coin, extended_rate=extended)


def _prove(profile: Profile, rounds: int, delta: float, as_json: bool) -> None:
    if rounds < 0:
        raise UserError(f"rounds {rounds}: must not be negative")
    value = epsilon(profile, rounds, delta)
    finite = value < float("inf")
    _answer(
        {"epsilon": value if finite else None},
        delta,
        finite,
        _words(profile, value, delta),
        as_json,
    )


def _words(profile: Profile, value: float, delta: float) -> str:
    private = value < float("inf")
    return f"{statement(profile, value, delta, private)} {ADJACENCY}"


def _answer(
    found: dict[str, Any], delta: float, is_guarantee: bool, words: str, as_json: bool
) -> None:
    if as_json:
        answer = {**found, "delta": delta, "guarantee": is_guarantee, "words": words}
        typer.echo(json.dumps(answer, indent=2))
        return
    for name, value in found.items():
        # a share rounded up, or a noise rounded down, would miss the target
        text = _number(value, 6, down=name == "entity_share")
        typer.echo(f"{name.replace('_', ' ')}: {text}")
    typer.echo(words)


def _number(value: float | None, digits: int = 4, down: bool = False) -> str:
    return NO_FINITE_EPSILON if value is None else rounded(value, digits, down)


def _supply(corpus: Path | None, users: int | None, sentences: int | None, usable: float) -> Supply:
    if corpus is not None:
        return supply_of(Corpus(corpus).incidence)
    if users is None or sentences is None:
        raise UserError("plan: give a corpus folder, or --users and --sentences")
    if users < 1 or sentences < 1 or not 0 <= usable <= 1:
        raise UserError("plan: --users and --sentences must be above 0, --usable in 0..1")
    return Supply.of_counts(users, sentences, usable)
