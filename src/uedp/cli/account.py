"""Commands for epsilons: account, calibrate."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, Option

from uedp.cli import complete, options
from uedp.cli.help import Commands
from uedp.cli.terminal import number, progress, refuse_corpus, say, say_json
from uedp.errors import UserError

if TYPE_CHECKING:
    from uedp.accounting.profile import Profile
    from uedp.methods import PrivacySettings


account = Commands(
    name="account",
    help="""Compute the epsilon of given parameters.

    Examples:
      uedp account proven run
      uedp account proven --corpus corpus --noise 0.9
    """,
)


@account.command("published")
def account_published(
    method: Annotated[Literal["user", "f_e", "f_e_plus"], Option(help="The method of the paper.")],
    users: options.Users,
    users_per_round: Annotated[int, Option(help="Users sampled per round.")],
    noise: options.PaperNoise,
    rounds: options.Rounds,
    entity_rate: float = Option(1.0, help="The sampling rate of entities (q_e)."),
    sensitive: int = Option(1, help="Number of sensitive sentences (f_E+)."),
    sentences: int = Option(1, help="Number of all sentences (f_E+)."),
    delta: options.Delta = 1e-5,
    as_json: options.AsJson = False,
) -> None:
    """Compute epsilon as the paper does. Not a privacy guarantee.

    Examples:
      uedp account published --method f_e --users 5000 --users-per-round 250 \\
          --noise 2.5 --rounds 100 --entity-rate 0.5
    """
    from uedp.accounting import published

    setting = published.PublishedSetting(users, users_per_round, entity_rate, sensitive, sentences)
    rate = setting.rate(published.PublishedMethod(method))
    value = published.epsilon(rate, noise, rounds, delta)
    _answer({"epsilon": value}, delta, False, published.NOT_A_GUARANTEE, as_json)


@account.command("proven")
def account_proven(
    run: Path | None = Argument(
        None, metavar="RUN", autocompletion=complete.runs, help="A run, whose numbers are taken."
    ),
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
    delta: float | None = Option(None, help="The delta of the guarantee. Default: 1e-5."),
    method: options.EntityMethod = None,
    as_json: options.AsJson = False,
) -> None:
    """Compute the proven epsilon of rotation or fair shares; with share 0, of user-level DP.

    Numbers that are not given come from RUN, or are chosen for --corpus as in training.

    Examples:
      uedp account proven run
      uedp account proven --corpus corpus --noise 0.9
      uedp account proven --user-rate 0.05 --rounds 200 --noise 0.9 \\
          --entity-share 0.3
    """
    from uedp.accounting.calibrate import entity_level_profile

    if run is not None:
        refuse_corpus(run)
        _prove_run(run, delta, as_json)
        return
    if corpus is not None and noise is not None:
        share = entity_share or None  # the planner knows no share of 0
        rates = {"entity_rate": entity_rate, "extended_rate": extended_rate, "method": method}
        fields = {"user_rate": user_rate, "rounds": rounds, "entity_share": share, "delta": delta}
        chosen = _chosen(corpus, epsilon_target, fields | rates, as_json)
        user_rate, rounds, delta = chosen.user_rate, chosen.rounds, chosen.delta
        method = chosen.method
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
    method = method or "rotation"
    profile = entity_level_profile(
        noise, user_rate, entity_share, entity_rate, extended_rate, method
    )
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
    """Compute the proven epsilon of the paper's mechanism, for an entity with so many holders.

    Examples:
      uedp account alg --users 5000 --holders 20 --user-rate 0.05 --noise 2.5 \\
          --rounds 100
    """
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
    delta: float | None = Option(None, help="The delta of the guarantee. Default: 1e-5."),
    method: options.EntityMethod = None,
    as_json: options.AsJson = False,
) -> None:
    """Solve for the noise, the rounds or the entity share, whichever is left out.

    With --corpus, what else is left out is chosen as in training.

    Examples:
      # the noise
      uedp calibrate --epsilon 8 --user-rate 0.05 --rounds 200 --entity-share 0.3
      # all but the target chosen for a corpus
      uedp calibrate --epsilon 8 --corpus corpus
    """
    from uedp.accounting.calibrate import calibrate_entity_level

    if corpus is not None:
        rates = {"entity_rate": entity_rate, "extended_rate": extended_rate, "method": method}
        fields = {"user_rate": user_rate, "rounds": rounds, "delta": delta, **rates}
        chosen = _chosen(
            corpus, epsilon_target, fields | {"entity_share": entity_share or None}, as_json
        )
        user_rate, delta, method = chosen.user_rate, chosen.delta, chosen.method
        if noise is None:
            rounds = chosen.rounds
        if entity_share is None and (noise is None or rounds is None):
            entity_share = chosen.entity_share
    if user_rate is None:
        raise UserError("calibrate: give --user-rate, or --corpus to have it chosen")
    delta = 1e-5 if delta is None else delta
    solved = calibrate_entity_level(
        epsilon_target,
        delta,
        user_rate,
        noise=noise,
        rounds=rounds,
        entity_share=entity_share,
        entity_rate=entity_rate,
        extended_rate=extended_rate,
        method=method or "rotation",
    )
    names = ("noise", "rounds", "entity_share", "epsilon")
    values = {name: getattr(solved, name) for name in names}
    if corpus is not None:
        values |= {"user_rate": user_rate, "method": method}
    _answer(values, delta, True, _words(solved.profile, solved.epsilon, delta), as_json)


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
    value = epsilon(planned.profile, planned.rounds, delta, *planned.beside)
    proven = value < math.inf and planned.setup.exposed is None
    stated = statement(planned.profile, value, delta, proven, planned.setup)
    words = f"{stated}\n{ADJACENCY}"
    _answer({"epsilon": value if proven else None}, delta, proven, words, as_json)


def _prove(profile: "Profile", rounds: int, delta: float, as_json: bool) -> None:
    from uedp.accounting.proven import epsilon

    value = epsilon(profile, rounds, delta)
    proven, words = value < math.inf, _words(profile, value, delta)
    _answer({"epsilon": value if proven else None}, delta, proven, words, as_json)


def _words(profile: "Profile", value: float, delta: float) -> str:
    from uedp.accounting.statement import ADJACENCY, EXACT_ARITHMETIC, statement

    rounding = f"\n{EXACT_ARITHMETIC}" if profile.pays_for_rounding else ""
    return f"{statement(profile, value, delta, value < math.inf)} {ADJACENCY}{rounding}"


def _answer(values: dict[str, Any], delta: float, proven: bool, words: str, as_json: bool) -> None:
    if as_json:
        say_json({**values, "delta": delta, "guarantee": proven, "words": words})
        return
    for name, value in values.items():
        # a share rounded up, or a noise rounded down, would miss the target
        shown = value if name == "method" else number(value, 6, down=name == "entity_share")
        say(f"{name.replace('_', ' ')}: {shown}")
    typer.echo(words)
