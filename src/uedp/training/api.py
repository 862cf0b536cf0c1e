"""Training, previews, evaluation and generation, one call each."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from uedp.accounting.ledger import CorpusLedger
from uedp.errors import UserError
from uedp.models.load import LoadedModel, load_model, start_token
from uedp.progress import SILENT, Progress
from uedp.training import loop
from uedp.training.build import assemble, check_corpus, plan_run, task_of_run
from uedp.training.choose import (
    Choice,
    choose,
    limit_evaluation,
    prepare_to_measure,
    with_public_steps,
)
from uedp.training.config import Config, load_config, parse_config
from uedp.training.datasets import read_texts, read_training_data
from uedp.training.estimate import Estimate, Pace, estimate, measure_pace
from uedp.training.generation import continuations
from uedp.training.loggers import require_loggers
from uedp.training.outcome import Outcome
from uedp.training.plan import Plan
from uedp.training.public_phase import public_steps
from uedp.training.run_dir import CONFIG

if TYPE_CHECKING:
    from uedp.corpus.store import Corpus


def train(
    corpus: "Corpus | str | Path",
    model: str | Path | Mapping[str, Any],
    epsilon: float | None = None,
    out: str | Path = "run",
    *,
    evaluate: "Corpus | str | Path | None" = None,
    public: "Corpus | str | Path | None" = None,
    resume: bool = False,
    progress: Progress = SILENT,
    say: Callable[[str], None] = lambda line: None,
    **sections: Mapping[str, Any],
) -> Outcome:
    """Train a model on a corpus into the directory `out`.

    Args:
        model: a name, or the fields of the config's model section.
        evaluate: a corpus of other users to evaluate on.
        public: text that anybody may read, to train on first: a corpus or a file.
        sections: further sections of a config, such as `privacy={"rounds": 100}`.

    Guarantees:
      - those of `loop.run`; the directory holds the resolved `config.yaml`
    """
    values: dict[str, dict[str, Any]] = {name: dict(fields) for name, fields in sections.items()}

    def put(section: str, field: str, value: Any) -> None:
        if field in values.setdefault(section, {}):
            raise UserError(f"{section}.{field}: given twice; remove one")
        values[section][field] = value

    put("data", "train", _folder(corpus))
    if evaluate is not None:
        put("data", "evaluate", _folder(evaluate))
    if public is not None:
        put("data", "public", _folder(public))
    if epsilon is not None:
        put("privacy", "epsilon", epsilon)
    for field, value in (model if isinstance(model, Mapping) else {"name": str(model)}).items():
        put("model", field, value)
    config = parse_config(values, "train")
    return loop.run(config, Path(out), resume=resume, progress=progress, say=say)


def _folder(corpus: "Corpus | str | Path") -> Path:
    return Path(corpus) if isinstance(corpus, str | Path) else corpus.folder


@dataclass(frozen=True, eq=False)
class Preview:
    """The plan of a run, what it will cost, why it was planned so, and warnings."""

    plan: Plan
    estimate: Estimate
    choice: Choice
    pace: Pace
    warnings: list[str]

    @property
    def parameters(self) -> int:
        return self.estimate.parameters


def preview(config: Config, progress: Progress = SILENT) -> Preview:
    """Plan a run, load its model and time a few small rounds, without training or writing anything.

    Guarantees:
      - everything that training would refuse before its first round is refused, a budget included
      - what the planner chooses is what training would choose, up to the measured speed
    """
    require_loggers(config)
    config = limit_evaluation(config)
    data = read_training_data(config, progress)
    ledger = CorpusLedger(data.ledger)
    check_corpus(config, data, ledger)
    ready = prepare_to_measure(config, data, progress)
    steps, seconds = public_steps(ready)
    pace = replace(measure_pace(ready, progress), public_seconds=seconds)
    choice = with_public_steps(choose(config, data.incidence, pace, progress), steps, seconds)
    plan = plan_run(choice.config, data, ledger)
    assembly = assemble(plan, data, prepared=ready)
    cost = estimate(plan, assembly, pace, ledger)
    return Preview(plan, cost, choice, pace, list(assembly.warnings))


# --- a finished run ------------------------------------------------------------------------------


def evaluate(
    run: str | Path, corpus: str | Path | None = None, progress: Progress = SILENT
) -> Mapping[str, float]:
    """Evaluate the model of a run on a corpus: by default the one that its config names.

    Texts are truncated as in training, so that results are comparable. Computes in float32, or
    faster where a sample shows that the perplexity is the same within 0.1%. If the corpus has
    entities, also measures names and other tokens apart, and single categories (`: CATEGORY`).
    """
    config, trained = _finished(Path(run))
    limit = config.data.evaluate_sentences if corpus is None else None
    corpus = corpus or config.data.evaluate
    if corpus is None:
        raise UserError(f"{Path(run) / CONFIG}: data.evaluate names no corpus; give `corpus=...`")
    task = task_of_run(config, trained, read_texts(Path(corpus), limit), progress)
    model = trained.model.to("cuda" if torch.cuda.is_available() else "cpu")
    precision = task.evaluation_precision(model, nullcontext)
    return task.evaluate(model, precision, config.run.tokens_at_once, progress)


def generate(
    folder: str | Path,
    prompt: str | Sequence[str],
    *,
    tokens: int = 40,
    count: int = 1,
    temperature: float = 1.0,
    seed: int | None = None,
    progress: Progress = SILENT,
) -> list[str]:
    """Generate texts that continue a prompt, with the model of a finished run or of a folder.

    Of several prompts, each is continued `count` times, in order. At temperature 0 every token is
    the most likely one. The run's guarantee covers any amount of generated text, but not the
    prompt. The same seed gives the same texts on the same kind of device.
    """
    folder = Path(folder)
    prompts = [prompt] if isinstance(prompt, str) else list(prompt)
    if tokens < 1 or count < 1 or not prompts:
        raise UserError("generate: tokens, count and the number of prompts must be at least 1")
    if not temperature >= 0:
        raise UserError(f"generate: temperature {temperature:g} must not be negative")
    loaded = load_generator(folder)
    tokenizer = loaded.tokenizer
    start = start_token(tokenizer)
    rows = tokenizer(prompts, add_special_tokens=False)["input_ids"]
    rows = [[start, *ids] for ids in rows for _ in range(count)]
    longest = max(map(len, rows))
    if longest + tokens > loaded.max_tokens:
        raise UserError(
            f"generate: a prompt of {longest} tokens and {tokens} more are too many for the "
            f"model, which takes {loaded.max_tokens}; ask for fewer"
        )
    texts = continuations(
        loaded.model.to("cuda" if torch.cuda.is_available() else "cpu"),
        rows,
        tokens=tokens,
        temperature=temperature,
        seed=seed,
        padding=tokenizer.pad_token_id,
        progress=progress,
    )
    decoded: list[str] = tokenizer.batch_decode(texts, skip_special_tokens=True)
    return decoded


def load_generator(folder: Path) -> LoadedModel:
    """The model of a finished run, or of any other folder, if it generates text."""
    if (folder / CONFIG).is_file() or not (folder / "config.json").is_file():
        config, loaded = _finished(folder)
        if config.task.kind != "next-word":
            raise UserError(f"{folder}: a model for {config.task.kind} cannot generate text")
        return loaded
    return load_model(folder, "next-word")


def _finished(run: Path) -> tuple[Config, LoadedModel]:
    """The config and the model of a finished run."""
    if not (run / CONFIG).is_file():
        raise UserError(f"{run}: not a run directory; name one that training wrote")
    config = load_config(run / CONFIG)
    if not (run / "config.json").is_file():
        raise UserError(
            f"{run}: not finished, so it has no model yet; continue it with `resume=True`"
        )
    return config, load_model(run, config.task.kind)
