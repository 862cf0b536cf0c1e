"""The command `uedp plan`: plans at one epsilon, compared."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer
from typer import Argument, Option

from uedp.cli import complete, options
from uedp.cli.preview import preview_json, show_missed, show_preview
from uedp.cli.terminal import number, progress, say, say_json, show, table
from uedp.errors import UserError

if TYPE_CHECKING:
    from uedp.accounting.planning import Option as PlanOption
    from uedp.training.api import Preview


def plan(
    epsilon_target: options.TargetEpsilon,
    corpus: Path | None = Argument(
        None,
        metavar="CORPUS",
        autocompletion=complete.corpora,
        help="A folder made by `uedp detect`; or give counts.",
    ),
    users: int | None = Option(None, help="Number of users, without a corpus."),
    sentences: int | None = Option(None, help="Number of sentences, without a corpus."),
    usable: float = Option(0.5, help="Share of sentences a round can use, without a corpus."),
    user_rate: list[float] = Option([0.02, 0.05, 0.1, 0.2], help="Rates to try; repeat."),
    rounds: list[int] = Option([100, 200, 500], help="Rounds to try; repeat."),
    entity_share: list[float] = Option([0.1, 0.2, 0.33, 0.5], help="Shares to try; repeat."),
    delta: options.Delta = 1e-5,
    best: int = Option(10, min=1, help="Number of plans to calibrate and show."),
    plot: Path | None = Option(None, help="Plot epsilon against rounds."),
    model: str | None = Option(
        None, metavar="MODEL", help="With a corpus: estimate the run of this model, too."
    ),
    public: Path | None = Option(None, help="With --model: public text to train on first."),
    changes: options.SetOption = [],  # noqa: B006 - Typer copies it
    time: str | None = Option(
        None, metavar="DURATION", help="With --model: how long a run may take, as 30m or 2h."
    ),
    as_json: options.AsJson = False,
) -> None:
    """Compare plans at one epsilon: the noise each needs, and its signal-to-noise ratio.

    With a corpus, both methods that protect entities are compared; from counts, rotation alone.
    With --model: their time, too, and all of what `uedp train --dry-run` shows of the chosen one.

    Examples:
      uedp plan corpus --epsilon 8
      uedp plan --epsilon 4 --users 20000 --sentences 600000 --plot epsilon.svg
      # with the time of each plan, and all that training would show
      uedp plan corpus --epsilon 8 --model gpt2 --time 2h
    """
    from dataclasses import asdict

    from uedp.accounting import planning
    from uedp.accounting.statement import EXACT_ARITHMETIC
    from uedp.corpus.store import Corpus
    from uedp.mechanism.fair import Sharing, fair_supply
    from uedp.mechanism.sampling import supply_of

    preview = None
    offers: dict[str, planning.Offer] = {"rotation": lambda share: supply}
    if corpus is not None:
        incidence = Corpus(corpus).incidence
        supply = supply_of(incidence)
        offers["fair-shares"] = lambda share: fair_supply(incidence, Sharing(share))
    else:
        supply = planning.Supply.of_counts(users, sentences, usable)
    if model is not None:
        if corpus is None:
            raise UserError("plan: --model needs a CORPUS to measure the time of a round with")
        preview = _previewed(epsilon_target, corpus, model, public, time, delta, changes)
    elif public is not None:
        raise UserError("plan: --public needs a --model, to measure the time of a step with")
    tried = []
    total = min(best, len(offers) * len(user_rate) * len(rounds) * len(entity_share))
    with progress().stage("calibrating", total, "options") as meter:
        for option in planning.best_options(
            epsilon_target, delta, offers, user_rate, rounds, entity_share, best
        ):
            tried.append(option)
            meter.advance(1)
    tried.sort(key=lambda option: -option.merit)
    share = tried[0].entity_share  # how many sentences are used does not depend on it
    used = {name: float(offer(share).sentences_per_user.sum()) for name, offer in offers.items()}
    if plot is not None:
        from uedp.report.plots import epsilon_curves

        epsilon_curves(planning.curves(tried[0].profile, tried[0].rounds, delta), delta, plot)
    if as_json:
        rows = [asdict(option) for option in tried]
        if preview is not None:
            for row, option in zip(rows, tried, strict=True):
                row["seconds"] = _seconds(preview, used[option.method], option)
        answer = {"epsilon": epsilon_target, "delta": delta, "options": rows}
        say_json(answer if preview is None else answer | {"estimate": preview_json(preview, None)})
        return
    timed = () if preview is None else ("time/round", "time in all")
    names = ("method", "user rate", "rounds", "entity share", "noise", "users/round", "merit")
    shown = table(*names, *timed)
    for option in tried:
        few = " (few)" if option.users_per_round < planning.FEW_USERS else ""
        shown.add_row(
            option.method,
            f"{option.user_rate:g}",
            f"{option.rounds:,}",
            f"{option.entity_share:g}",
            number(option.noise),
            f"{option.users_per_round:,.0f}{few}",
            f"{option.merit:,.1f}",
            *_times(preview, used[option.method], option),
        )
    show(f"epsilon {epsilon_target:g}, delta {delta:g}, user and entity; best first", shown)
    typer.echo(
        "\nmerit: signal-to-noise ratio of the whole run; more rounds take more compute.\n"
        f"(few): fewer than {planning.FEW_USERS} users per round; the noise is shared by too few."
    )
    if any(option.profile.pays_for_rounding for option in tried):
        typer.echo(EXACT_ARITHMETIC)
    if plot is not None:
        say(f"epsilon against rounds: {plot}")
    if preview is not None:
        typer.echo("\nthe plan that is chosen:")
        show_preview(preview, None)
        return
    show_missed(tried[0].profile, tried[0].rounds, delta, None, "the best plan")


def _previewed(
    epsilon: float,
    corpus: Path,
    model: str,
    public: Path | None,
    time: str | None,
    delta: float,
    changes: list[str],
) -> "Preview":
    from uedp.training import api
    from uedp.training.config import parse_config

    run = {} if time is None else {"time": time}
    privacy = {"epsilon": epsilon} | ({} if delta == 1e-5 else {"delta": delta})
    data = {"train": corpus, "public": public}
    values = {"privacy": privacy, "data": data, "model": {"name": model}, "run": run}
    return api.preview(parse_config(values, "plan", changes), progress())


def _seconds(preview: "Preview", sentences: float, option: "PlanOption") -> float:
    """How long an option takes: its rounds, and public text before them."""
    return preview.pace.public_seconds + option.rounds * _each(preview, sentences, option)


def _each(preview: "Preview", sentences: float, option: "PlanOption") -> float:
    return preview.pace.round_seconds(option.user_rate * sentences)


def _times(preview: "Preview | None", sentences: float, option: "PlanOption") -> list[str]:
    from uedp.progress import duration

    if preview is None:
        return []
    each, all_ = (time(preview, sentences, option) for time in (_each, _seconds))
    return [duration(each), duration(all_)]
