"""What a run will guarantee and cost, shown before it starts."""

import json
import re
import shlex
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from uedp.cli.terminal import number, progress, say, show, table, with_flags

if TYPE_CHECKING:
    from uedp.accounting.profile import Profile
    from uedp.training.api import Preview
    from uedp.training.config import Config

# the flags of `uedp train`, by the fields that they set
FLAGS = {
    "data.train": "--corpus",
    "data.evaluate": "--evaluate",
    "data.public": "--public",
    "model.name": "--model",
    "model.tokenizer": "--tokenizer",
    "model.train": "--train",
    "task.kind": "--task",
    "privacy.method": "--method",
    "privacy.epsilon": "--epsilon",
    "privacy.noise": "--noise",
    "privacy.delta": "--delta",
    "privacy.rounds": "--rounds",
    "privacy.user_rate": "--user-rate",
    "privacy.entity_share": "--entity-share",
    "optimiser.rate": "--rate",
    "run.time": "--time",
}


def with_flag(text: str) -> str:
    """A message with the flag after the first config field: privacy.epsilon (--epsilon)."""
    return _FIELD.sub(lambda field: f"{field[0]} ({FLAGS[field[0]]})", text, count=1)


_FIELD = re.compile(rf"(?<![\w./-])({'|'.join(map(re.escape, FLAGS))})(?![\w/-]|\.\w|=)")


def show_preview(preview: "Preview", out: Path | None) -> None:
    """Show what a run guarantees and costs, and the command that makes it."""
    from uedp.progress import duration

    plan, cost = preview.plan, preview.estimate
    for line in (*plan.summary, *preview.choice.words):
        say(with_flag(with_flags(line)))
    rows = table("", "")
    for name, value in plan.describe().items():
        if value is not None:
            rows.add_row(name, value if isinstance(value, str) else f"{value:,.6g}")
    rows.add_row("sentences per user, at most", str(plan.sampling.per_user or "all"))
    rows.add_row("sentences per round", f"about {cost.sentences_per_round:,.0f}")
    rows.add_row("tokens per round", f"about {cost.tokens_per_round:,.0f}")
    rows.add_row("trained parameters", f"{cost.parameters:,}")
    rows.add_row("time per round, measured", duration(cost.seconds_per_round))
    if cost.public_seconds:
        public = plan.config.public
        steps = f"{public.steps:,} steps of {public.sentences:,} sentences"
        rows.add_row("public text first", f"{steps}, about {duration(cost.public_seconds)}")
    rows.add_row("time in all", f"about {duration(cost.seconds)}")
    rows.add_row("peak memory", f"about {cost.memory_bytes / 1e9:.1f} GB")
    if cost.signal_to_noise is not None:
        rows.add_row("signal-to-noise ratio, at most", f"{cost.signal_to_noise:.2g}")
    if cost.epsilon_user_alone is not None:
        rows.add_row("epsilon, user without entity", number(cost.epsilon_user_alone))
    for words, value in cost.missed_mentions.items():
        rows.add_row(f"epsilon, missed in {words}", number(value))
    if cost.corpus_total is not None:
        runs = cost.corpus_total.runs
        of = "this run" if runs == 1 else f"all {runs} runs"
        rows.add_row(f"epsilon on the corpus, {of}", number(cost.corpus_total.epsilon))
    show("", rows)
    privacy = plan.config.privacy
    # of a model that is trained on, its figures count earlier runs as well, and these would not
    if plan.private and plan.profile is not None and not plan.provenance.earlier:
        show_missed(plan.profile, plan.rounds, privacy.delta, privacy.sentences_per_user)
    if cost.corpus_total is not None and cost.corpus_total.runs > 1:
        say(f"the epsilon of all runs on the corpus is for {cost.corpus_total.unit}")
    for warning in preview.warnings:
        say(f"warning: {warning}")
    typer.echo("\nnothing was trained; to train exactly this:")
    say(command_of(plan.config, out))


def preview_json(preview: "Preview", out: Path | None) -> dict[str, Any]:
    """The same for programs."""
    plan, cost = preview.plan, preview.estimate
    return {
        **asdict(replace(cost, corpus_total=None)),
        "corpus_total": None if cost.corpus_total is None else cost.corpus_total.epsilon,
        "corpus_total_for": None if cost.corpus_total is None else cost.corpus_total.unit,
        "plan": plan.describe() | {"sentences per user": plan.sampling.per_user},
        "chosen": list(preview.choice.fields),
        "words": [*plan.summary, *preview.choice.words],
        "warnings": preview.warnings,
        "command": command_of(plan.config, out),
    }


def command_of(config: "Config", out: Path | None) -> str:
    """The command that makes a run of a config, with every field that is not a default."""
    from uedp.methods.base import PLANNED
    from uedp.training.config import parse_config

    named = {"privacy": {"epsilon", "noise", "method"}, "data": {"train"}, "model": {"name"}}
    # some defaults depend on these, so that a field may be a default without them or with them
    kinds = named | {"model": {"name", "train"}, "task": {"kind"}, "optimiser": {"name"}}
    given = config.model_dump(mode="json")
    plain = [
        parse_config(config.model_dump(mode="json", include=part)).model_dump(mode="json")
        for part in (named, kinds)
    ]
    always = {"data.train", "model.name", "privacy.epsilon", "privacy.noise"}
    always |= {f"privacy.{field}" for field in PLANNED}  # or the planner would choose again
    fields = {
        f"{section}.{field}": value
        for section, values in given.items()
        for field, value in values.items()
        if value is not None
        and (
            f"{section}.{field}" in always
            or any(value != each[section].get(field) for each in plain)
        )
    }
    words = ["uedp", "train"]
    for name, value in fields.items():
        if name in FLAGS:
            words += [FLAGS[name], _plain_value(value)]
        else:
            words += ["--set", f"{name}={json.dumps(_whole(value))}"]
    return shlex.join([*words, "--out", str(out or "run")])


def _plain_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(_whole(value))


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value == int(value) else value


def show_missed(
    profile: "Profile", rounds: int, delta: float, most: int | None, name: str = "this plan"
) -> None:
    """Show how share, rate and sentences per user move the epsilon of missed mentions."""
    from uedp.accounting.missed import MISSED_CASES, missed_words, neighbours

    shown = table("", "noise", *(missed_words(*case) for case in MISSED_CASES))
    with progress().stage("missed mentions", None, "plans") as meter:
        for neighbour in neighbours(profile, rounds, delta, most):
            first = not shown.rows
            shown.add_row(
                name if first else neighbour.change,
                number(neighbour.profile.noise),
                *(number(value, 3) for value in neighbour.epsilons),
            )
            meter.advance(1)
    if shown.rows:
        title = "\nepsilon if the detector missed the entity, at the noise that each plan needs"
        show(title, shown)
