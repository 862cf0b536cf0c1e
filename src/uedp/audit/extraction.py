"""What a person fears: that a model gives away a number or a name it was trained on.

A text has a gap; what truly stood there is ranked among what could stand there as well, by how
likely the model finds each. Of planted secrets (Carlini et al. 2019) all or many numbers of the
same form are tried; of entities, others of the same category, in the entity's own sentence. Whoever
guesses by the rank that something was trained on is right how often? The controls, which were not
trained on, tell.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from uedp.audit.gaps import ENTITIES, OTHERS, Gap, entity_gaps
from uedp.audit.ranks import Ranked, rank, summary
from uedp.audit.scoring import Completions, Endings, Floats, Question, Scorer
from uedp.audit.secrets import Secret, drawn, size
from uedp.errors import UserError
from uedp.models.load import LoadedModel, load_model
from uedp.progress import SILENT, Progress
from uedp.training.config import Config, load_config
from uedp.training.outcome import read_result
from uedp.training.run_dir import CONFIG, RESULT

T = TypeVar("T")

ALTERNATIVES = 10_000
BEAMS = 10

_TOGETHER = 32  # questions


def rank_secrets(
    scorer: Scorer,
    secrets: Sequence[Secret],
    *,
    alternatives: int = ALTERNATIVES,
    beams: int = BEAMS,
    seed: int = 0,
    progress: Progress = SILENT,
) -> list[Ranked]:
    """Each secret among all numbers of its form, or `alternatives` drawn from them.

    Also whether the model writes it after its prompt: by always taking the likeliest token, and
    among the likeliest of so many `beams`.

    Guarantees:
      - with all numbers of the form, exposure is exact; with some it is estimated from the rank
        among them, and cannot exceed `log2(alternatives + 1)`
      - a secret is not ranked against other secrets, unless all numbers are tried
    """
    extracted, in_beams = written(scorer, secrets), written(scorer, secrets, beams)
    found: dict[int, Ranked] = {}
    with progress.stage("ranking secrets", len(secrets), "secrets") as meter:
        for mask in sorted({secret.format for secret in secrets}):
            of_form = [i for i, secret in enumerate(secrets) if secret.format == mask]
            tried = drawn(mask, alternatives, seed)
            place = {number: i for i, number in enumerate(tried)}
            for i in of_form:
                place.setdefault(secrets[i].secret, len(place))
            forms = Completions(scorer, list(place))
            for some in _chunks(of_form):
                questions = [forms.after(secrets[i].prompt) for i in some]
                for i, scores in zip(some, scorer.answer(questions), strict=True):
                    own = place[secrets[i].secret]
                    others = np.delete(scores[: len(tried)], own if own < len(tried) else [])
                    position, confidence = rank(scores[own], others)
                    found[i] = Ranked(
                        group=f"{secrets[i].repeats} users" if secrets[i].planted else "left out",
                        member=secrets[i].planted,
                        users=secrets[i].repeats,
                        rank=position,
                        among=len(others) + 1,
                        space=size(mask),
                        confidence=confidence,
                        extracted=extracted[i],
                        in_beams=in_beams[i],
                    )
                meter.advance(len(some))
    return [found[i] for i in range(len(secrets))]


def likelihood(scorer: Scorer, secrets: Sequence[Secret]) -> Floats:
    """The log-likelihood of each secret given its prompt, batched; no alternatives are scored.

    The difference to the model before training is the membership score: what training on the
    corpus added, whatever digits and names were likely already.

    Guarantees:
      - the same as scoring each secret on its own
    """
    if not secrets:
        return np.empty(0)
    told = scorer.tokens([f"{secret.prompt} {secret.secret}" for secret in secrets])
    questions = []
    for row, prompt in zip(told, scorer.tokens([s.prompt for s in secrets]), strict=True):
        cut = next((i for i, (a, b) in enumerate(zip(row, prompt, strict=False)) if a != b), None)
        cut = len(prompt) if cut is None else cut  # the last word may be tokenized differently
        questions.append(Question(row[:cut], Endings.of([row[cut:]])))
    found = [answer for some in _chunks(questions, 1024) for answer in scorer.answer(some)]
    return np.concatenate(found)


def written(scorer: Scorer, secrets: Sequence[Secret], beams: int = 1) -> list[bool]:
    """Whether the model goes on with the secret after its prompt."""
    if not secrets:
        return []
    prompts = [secret.prompt for secret in secrets]
    told = scorer.tokens([f"{secret.prompt} {secret.secret}" for secret in secrets])
    asked = scorer.tokens(prompts)
    longest = max(len(long) - len(short) for long, short in zip(told, asked, strict=True))
    ends = scorer.go_on(prompts, longest, beams)
    return [
        any(text.strip().startswith(secret.secret) for text in texts)
        for secret, texts in zip(secrets, ends, strict=True)
    ]


def rank_entities(
    scorer: Scorer,
    gaps: Sequence[Gap],
    reference: Scorer | None = None,
    progress: Progress = SILENT,
) -> list[Ranked]:
    """Each entity among others of its category in its own sentence, all of it scored.

    With a reference (the model before training), by how much training raised a likelihood.
    """
    found = []
    with progress.stage("ranking entities", len(gaps), "entities") as meter:
        for some in _chunks(gaps):
            scores = _answers(scorer, some)
            if reference is not None:
                before = _answers(reference, some)
                scores = [after - own for after, own in zip(scores, before, strict=True)]
            for gap, of_gap in zip(some, scores, strict=True):
                position, confidence = rank(of_gap[0], of_gap[1:])
                inside = "held in" if gap.member else "held out"
                found.append(
                    Ranked(
                        group=f"{gap.category}, {inside}",
                        member=gap.member,
                        users=gap.users,
                        rank=position,
                        among=len(of_gap),
                        space=len(of_gap),
                        confidence=confidence,
                    )
                )
            meter.advance(len(some))
    return found


def _answers(scorer: Scorer, gaps: Sequence[Gap]) -> list[Floats]:
    return scorer.answer(
        [scorer.question(gap.before, [gap.truth, *gap.others], gap.after) for gap in gaps]
    )


def _chunks(items: Sequence[T], together: int = _TOGETHER) -> Iterator[Sequence[T]]:
    """A few questions at a time, to fill batches."""
    return (items[i : i + together] for i in range(0, len(items), together))


# --- a finished run ------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Extraction:
    """What was got out of the model of one run; `kind` is `secrets` or `entities`."""

    run: str
    kind: str
    method: str
    epsilon: float | None
    perplexity: float | None
    found: Sequence[Ranked]

    def to_json(self) -> dict[str, Any]:
        """Numbers only: no secret, no entity and no text of the corpus."""
        own = asdict(self) | {"summary": summary(self.found)}
        own["found"] = [asdict(item) | {"exposure": item.exposure} for item in self.found]
        return own


def extract(
    run: Path,
    secrets: Sequence[Secret] | None = None,
    *,
    held_out: Path | None = None,
    reference: str | None = None,
    alternatives: int = ALTERNATIVES,
    beams: int = BEAMS,
    entities: int = ENTITIES,
    others: int = OTHERS,
    seed: int = 0,
    progress: Progress = SILENT,
) -> Extraction:
    """Attack the model of a run: for the secrets, or without any for the entities of its corpus.

    Held-out entities come from the corpus that the run was evaluated on, or another. The reference
    is a model that was not trained on the corpus, such as that which the run began with.
    """
    config, loaded = _opened(run)
    scorer = _scorer(loaded)
    if secrets is not None:
        found = rank_secrets(
            scorer, secrets, alternatives=alternatives, beams=beams, seed=seed, progress=progress
        )
    else:
        found = rank_entities(
            scorer,
            _gaps(run, config, held_out, entities, others, seed),
            None if reference is None else _scorer(load_model(reference)),
            progress,
        )
    return Extraction(
        str(run),
        "entities" if secrets is None else "secrets",
        config.privacy.method,
        _epsilon(run, config),
        read_result(run / RESULT)["after"].get("perplexity"),
        found,
    )


def _gaps(
    run: Path, config: Config, held_out: Path | None, most: int, others: int, seed: int
) -> list[Gap]:
    from uedp.corpus.store import Corpus

    other = held_out or config.data.evaluate
    if other is None:
        raise UserError(
            f"{run / CONFIG}: data.evaluate names no corpus; name one of other users with "
            "--held-out, or planted secrets with --secrets"
        )
    return entity_gaps(
        Corpus(config.data.train), Corpus(other), most=most, others=others, seed=seed
    )


def _epsilon(run: Path, config: Config) -> float | None:
    from uedp.accounting import certificate

    return certificate.load_certificate(run).epsilon if config.private else None


def _scorer(loaded: LoadedModel) -> Scorer:
    model = loaded.model.to("cuda" if torch.cuda.is_available() else "cpu")
    return Scorer(model, loaded.tokenizer, loaded.max_tokens)


def _opened(run: Path) -> tuple[Config, LoadedModel]:
    if not (run / CONFIG).is_file():
        raise UserError(f"{run}: not a run; name the folder that `uedp train` was given as --out")
    config = load_config(run / CONFIG)
    if not (run / RESULT).is_file():
        raise UserError(f"{run}: not finished yet; go on with `uedp train --resume`")
    if config.task.kind != "next-word":
        raise UserError(f"{run}: a model for {config.task.kind} cannot be asked for words")
    return config, load_model(run)
