"""Training in one call, and what its result is good for: measuring it, letting it write."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from uedp.errors import UserError
from uedp.mechanism.clip import trainable_layers
from uedp.models.load import LoadedModel, load_model
from uedp.models.trainable import make_trainable
from uedp.progress import SILENT, Progress
from uedp.training import loop, tasks
from uedp.training.config import Config, parse
from uedp.training.config import load as load_config
from uedp.training.datasets import refuse_the_same_corpus
from uedp.training.lineage import of_all_words, of_model, origin_of_words
from uedp.training.loop import CONFIG, Outcome
from uedp.training.plan import Plan
from uedp.training.plan import build as build_plan
from uedp.training.provenance import Provenance, entities_of, users_of

if TYPE_CHECKING:
    from uedp.corpus.store import Corpus
    from uedp.incidence import Incidence

_ROOM = 1 << 13  # tokens evaluated at a time


def train(
    corpus: "Corpus | str | Path",
    model: str | Path | Mapping[str, Any],
    epsilon: float | None = None,
    out: str | Path = "run",
    *,
    evaluate: "Corpus | str | Path | None" = None,
    resume: bool = False,
    progress: Progress = SILENT,
    say: Callable[[str], None] = lambda line: None,
    **sections: Mapping[str, Any],
) -> Outcome:
    """Train a model on a corpus into the folder `out`; gives the model and its certificate.

    `sections` are those of a config: `privacy={"rounds": 100}, optimiser={"rate": 3e-3}`. A model
    is a name, or the fields of its section. `evaluate` is a corpus of other users to measure on.

    Guarantees:
      - those of `loop.run`; the folder's `config.yaml` is what `uedp train` would take
    """
    values: dict[str, dict[str, Any]] = {name: dict(own) for name, own in sections.items()}

    def put(section: str, field: str, value: Any) -> None:
        if field in values.setdefault(section, {}):
            raise UserError(f"{section}.{field}: given twice; leave one out")
        values[section][field] = value

    put("data", "train", _folder(corpus))
    if evaluate is not None:
        put("data", "evaluate", _folder(evaluate))
    if epsilon is not None:
        put("privacy", "epsilon", epsilon)
    for field, value in (model if isinstance(model, Mapping) else {"name": str(model)}).items():
        put("model", field, value)
    config = parse(values, "train")
    return loop.run(config, Path(out), resume=resume, progress=progress, say=say)


def _folder(corpus: "Corpus | str | Path") -> Path:
    return Path(corpus) if isinstance(corpus, str | Path) else corpus.folder


@dataclass(frozen=True, eq=False)
class Preview:
    """What a run would be: its plan, how many parameters it trains, what speaks against it."""

    plan: Plan
    parameters: int
    doubts: list[str]


def preview(config: Config) -> Preview:
    """Plan a run, and load its model, without training anything or leaving a trace.

    Guarantees:
      - a model with a layer that cannot be clipped is refused, as training would
    """
    from uedp.corpus.store import Corpus

    incidence = Corpus(config.data.train).incidence
    refuse_the_same_corpus(config, incidence)
    plan = build_plan(config, incidence, _previewed(config, incidence))
    settings = config.model
    labels = len(config.task.labels) or 2  # how many is told by the corpus; a head is small
    loaded = load_model(
        settings.name,
        config.task.kind,
        labels=labels if config.task.kind == "classification" else None,
        dropout=settings.dropout,
        seed=settings.seed,
        sizes=settings.sizes,
        tokenizer=settings.tokenizer,
    )
    model = make_trainable(
        loaded.model,
        settings.train,
        rank=settings.rank,
        alpha=settings.alpha,
        targets=settings.targets,
        seed=settings.seed,
    )
    if config.privacy.method in ("rotation", "user-level"):
        trainable_layers(model)
    count = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return Preview(plan, count, plan.doubts(count))


def _previewed(config: Config, incidence: "Incidence") -> Provenance:
    """What the plan of a run would put on record, as far as no text has to be read for it."""
    from uedp.corpus.store import Corpus

    info = Corpus(config.data.train).info
    words = of_all_words(config)
    origin = origin_of_words(words, incidence.digest, "") if words else None
    return Provenance(
        entities=entities_of(info),
        users=users_of(info),
        precision=loop.precision_of(config),
        words=None if config.vocabulary.source == "corpus" else origin,
        model=of_model(config.model.name),
        vocabulary=words,
    )


# --- a finished run ------------------------------------------------------------------------------


def evaluate(
    run: Path, corpus: Path | None = None, progress: Progress = SILENT
) -> Mapping[str, float]:
    """Measure the model of a run on a corpus: the one its config names, or another.

    Texts are cut as in training, so that numbers can be compared; they are computed in full
    precision.
    """
    from uedp.corpus.store import Corpus

    config, loaded = _finished(run)
    most = config.data.evaluate_sentences if corpus is None else None
    corpus = corpus or config.data.evaluate
    if corpus is None:
        raise UserError(f"{run / CONFIG}: data.evaluate names no corpus; name one with --corpus")
    texts: list[str] = []
    labels: list[str | None] = []
    for batch in Corpus(corpus).batches(("text", "label")):
        texts += batch.column("text").to_pylist()
        labels += batch.column("label").to_pylist()
    names: list[str] = []
    if config.task.kind == "classification":
        meaning = loaded.model.config.id2label
        names = [meaning[number] for number in sorted(meaning)]
    task = tasks.build(
        config.task.kind,
        texts[:most],
        labels[:most],
        names,
        loaded.tokenizer,
        min(config.model.max_tokens, loaded.max_tokens),
    )
    model = loaded.model.to("cuda" if torch.cuda.is_available() else "cpu")
    return task.evaluate(model, torch.no_grad, config.run.tokens_at_once or _ROOM, progress)


def generate(
    run: Path,
    prompt: str,
    *,
    tokens: int = 40,
    count: int = 1,
    temperature: float = 1.0,
    seed: int | None = None,
) -> list[str]:
    """Texts that begin with the prompt, as the model of a run goes on with it.

    A temperature of 0 gives the likeliest token each time. What is written is covered by the run's
    guarantee, however much of it there is; what is typed as a prompt is not.
    """
    if tokens < 1 or count < 1:
        raise UserError("generate: tokens and count must be at least 1")
    if not temperature >= 0:
        raise UserError(f"generate: temperature {temperature:g} must not be negative")
    config, loaded = _finished(run)
    if config.task.kind != "next-word":
        raise UserError(f"{run}: a model for {config.task.kind} cannot write")
    start = [loaded.tokenizer.bos_token_id, loaded.tokenizer.eos_token_id]
    ids = [
        next(token for token in start if token is not None),
        *loaded.tokenizer(prompt, add_special_tokens=False)["input_ids"],
    ]
    if len(ids) + tokens > loaded.max_tokens:
        raise UserError(
            f"generate: a prompt of {len(ids)} tokens and {tokens} more are too many for the "
            f"model, which takes {loaded.max_tokens}; ask for fewer"
        )
    copies = torch.tensor([ids] * (count if temperature > 0 else 1))
    how = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.default_generator.manual_seed(seed)
        found = loaded.model.generate(
            copies,
            attention_mask=torch.ones_like(copies),
            max_new_tokens=tokens,
            pad_token_id=loaded.tokenizer.pad_token_id,
            **(how if temperature > 0 else {"do_sample": False}),
        )
    texts: list[str] = loaded.tokenizer.batch_decode(found, skip_special_tokens=True)
    return texts if temperature > 0 else texts * count


def _finished(run: Path) -> tuple[Config, LoadedModel]:
    """The config and the model of a run."""
    if not (run / CONFIG).is_file():
        raise UserError(f"{run}: not a run; name the folder that `uedp train` was given as --out")
    config = load_config(run / CONFIG)
    if not (run / "config.json").is_file():
        raise UserError(f"{run}: not finished yet, so that it has no model; go on with --resume")
    return config, load_model(run, config.task.kind)
