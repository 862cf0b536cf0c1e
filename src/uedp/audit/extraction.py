"""Extract numbers and names that a model was trained on.

A text has a gap; its true content is ranked among alternatives by the model's likelihood. Planted
secrets (Carlini et al. 2019) are ranked among all or many numbers of the same form; entities among
others of the same category, in the entity's own sentence. Controls, which were not trained on, show
how well the rank tells members from others.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from uedp.accounting.certificate import load_certificate
from uedp.accounting.divergence import Floats
from uedp.audit.ranks import Ranked, rank, summary
from uedp.audit.scoring import Completions, Scorer
from uedp.audit.secrets import Secret, mask_size, sample_mask
from uedp.corpus.store import Corpus
from uedp.entities.categories import BASE
from uedp.errors import UserError
from uedp.models.load import LoadedModel, load_model
from uedp.progress import SILENT, Progress
from uedp.training.config import Config, load_config
from uedp.training.outcome import read_result
from uedp.training.run_dir import CONFIG, RESULT

T = TypeVar("T")

ALTERNATIVES = 10_000
BEAMS = 10

ENTITIES, OTHERS = 1000, 100  # ranked from each corpus, and among how many others

_TOGETHER = 32  # questions at a time, to fill batches
_LONGEST = 400  # characters of a sentence with a gap


def rank_secrets(
    scorer: Scorer,
    secrets: Sequence[Secret],
    *,
    alternatives: int = ALTERNATIVES,
    beams: int = BEAMS,
    seed: int = 0,
    progress: Progress = SILENT,
) -> list[Ranked]:
    """Rank each secret among all numbers of its form, or `alternatives` drawn from them.

    Also whether the model writes it after its prompt: by greedy decoding, and by beam search.

    Guarantees:
      - with all numbers of the form, exposure is exact; with some it is estimated from the rank
        among them, and cannot exceed `log2(alternatives + 1)`
      - a secret is not ranked against other secrets, unless all numbers are tried
    """
    extracted, in_beams = written(scorer, secrets), written(scorer, secrets, beams)
    ranked: dict[int, Ranked] = {}
    with progress.stage("ranking secrets", len(secrets), "secrets") as meter:
        for mask in sorted({secret.format for secret in secrets}):
            of_form = [i for i, secret in enumerate(secrets) if secret.format == mask]
            tried = sample_mask(mask, alternatives, seed)
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
                    ranked[i] = Ranked(
                        group=f"{secrets[i].repeats} users" if secrets[i].planted else "left out",
                        member=secrets[i].planted,
                        users=secrets[i].repeats,
                        rank=position,
                        among=len(others) + 1,
                        space=mask_size(mask),
                        confidence=confidence,
                        extracted=extracted[i],
                        in_beams=in_beams[i],
                    )
                meter.advance(len(some))
    return [ranked[i] for i in range(len(secrets))]


def written(scorer: Scorer, secrets: Sequence[Secret], beams: int = 1) -> list[bool]:
    """Whether the model continues each prompt with its secret."""
    if not secrets:
        return []
    prompts = [secret.prompt for secret in secrets]
    whole = scorer.tokens([f"{secret.prompt} {secret.secret}" for secret in secrets])
    longest = max(
        len(long) - len(short) for long, short in zip(whole, scorer.tokens(prompts), strict=True)
    )
    ends = scorer.continuations(prompts, longest, beams)
    return [
        any(text.strip().startswith(secret.secret) for text in texts)
        for secret, texts in zip(secrets, ends, strict=True)
    ]


@dataclass(frozen=True)
class Gap:
    """A mention taken out of its sentence, and others of its category to put there.

    `member` says that the entity is in the training corpus; `users` is how many mention it.
    """

    before: str
    truth: str
    after: str
    others: tuple[str, ...]
    category: str
    member: bool
    users: int


def entity_gaps(
    train: Corpus, held_out: Corpus, *, most: int = ENTITIES, others: int = OTHERS, seed: int = 0
) -> list[Gap]:
    """Gaps for entities that only one of two corpora mentions, about `most` from each.

    Guarantees:
      - per category, as many gaps from the one corpus as from the other
      - the others in a gap are drawn alike for all: as many from the one corpus as from the other,
        never the entity itself
      - the same seed gives the same gaps
    """
    rng = np.random.default_rng(seed)
    sides = [_mentioned(train, True, rng), _mentioned(held_out, False, rng)]
    common = sides[0].keys() & sides[1].keys()
    by_category: dict[str, tuple[list[Gap], list[Gap]]] = {}
    for side, mentioned in enumerate(sides):
        for name, gap in mentioned.items():
            if name not in common:
                by_category.setdefault(gap.category, ([], []))[side].append(gap)
    usable = {name: both for name, both in by_category.items() if min(map(len, both)) > 1}
    if not usable:
        raise UserError(
            f"{train.folder} and {held_out.folder}: no category has two entities that only the "
            "first mentions and two that only the second mentions; hold out more users"
        )
    share = min(1.0, most / sum(min(map(len, both)) for both in usable.values()))
    gaps: list[Gap] = []
    for category in sorted(usable):
        both = usable[category]
        fewest = min(map(len, both))
        each = min(others // 2, fewest - 1)
        for own in both:
            for place in rng.permutation(len(own))[: max(1, round(share * fewest))]:
                drawn: list[str] = []
                for pool in both:
                    free = np.delete(np.arange(len(pool)), place if pool is own else [])
                    drawn += (pool[i].truth for i in rng.choice(free, each, replace=False))
                gaps.append(replace(own[place], others=tuple(drawn)))
    return gaps


def _mentioned(corpus: Corpus, member: bool, rng: np.random.Generator) -> dict[str, Gap]:
    """For each entity a random mention of it, unless its sentence is very long."""
    columns = ("entity", "sentence", "start", "end", "category")
    mentions = (corpus.mentions[name].to_numpy() for name in columns)
    rows = np.stack([np.asarray(column, dtype=np.int64) for column in mentions])
    rows = rows[:, rng.permutation(rows.shape[1])]
    entities, first = np.unique(rows[0], return_index=True)
    users = corpus.incidence.holders.counts
    names = corpus.entities["name"].to_pylist()
    kinds = list(BASE)
    gaps = {}
    for entity, text, (start, end, category) in zip(
        entities.tolist(), corpus.texts(rows[1, first]), rows[2:, first].T.tolist(), strict=True
    ):
        if len(text) <= _LONGEST:
            parts, count = (text[:start], text[start:end], text[end:]), int(users[entity])
            gaps[names[entity]] = Gap(*parts, (), kinds[category], member, count)
    return gaps


def rank_entities(
    scorer: Scorer,
    gaps: Sequence[Gap],
    reference: Scorer | None = None,
    progress: Progress = SILENT,
) -> list[Ranked]:
    """Rank each entity among others of its category in its own sentence, all of it scored.

    With a reference (the model before training), by how much training raised the likelihood.
    """
    ranked = []
    with progress.stage("ranking entities", len(gaps), "entities") as meter:
        for some in _chunks(gaps):
            scores = _answers(scorer, some)
            if reference is not None:
                before = _answers(reference, some)
                scores = [after - own for after, own in zip(scores, before, strict=True)]
            for gap, of_gap in zip(some, scores, strict=True):
                position, confidence = rank(of_gap[0], of_gap[1:])
                inside = "held in" if gap.member else "held out"
                ranked.append(
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
    return ranked


def _answers(scorer: Scorer, gaps: Sequence[Gap]) -> list[Floats]:
    questions = (scorer.question(g.before, [g.truth, *g.others], g.after) for g in gaps)
    return scorer.answer(list(questions))


def _chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    return (items[i : i + _TOGETHER] for i in range(0, len(items), _TOGETHER))


@dataclass(frozen=True, eq=False)
class Extraction:
    """What was extracted from the model of one run; `kind` is `secrets` or `entities`."""

    run: str
    kind: str
    method: str
    epsilon: float | None
    perplexity: float | None
    ranked: Sequence[Ranked]

    def to_json(self) -> dict[str, Any]:
        """Numbers only: no secret, no entity and no text of the corpus."""
        values = asdict(self) | {"summary": summary(self.ranked)}
        del values["ranked"]
        values["found"] = [asdict(item) | {"exposure": item.exposure} for item in self.ranked]
        return values


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

    Args:
        held_out: A corpus of other users; by default the one that the run was evaluated on.
        reference: A model not trained on the corpus, such as the one that the run started from.
    """
    config, loaded = _opened(run)
    scorer = _scorer(loaded)
    if secrets is not None:
        ranked = rank_secrets(
            scorer, secrets, alternatives=alternatives, beams=beams, seed=seed, progress=progress
        )
    else:
        other = held_out or config.data.evaluate
        if other is None:
            raise UserError(
                f"{run / CONFIG}: data.evaluate names no corpus; give one of other users by "
                "`held_out=...`, or planted secrets by `secrets=...`"
            )
        corpora = Corpus(config.data.train), Corpus(other)
        gaps = entity_gaps(*corpora, most=entities, others=others, seed=seed)
        before = None if reference is None else _scorer(load_model(reference))
        ranked = rank_entities(scorer, gaps, before, progress)
    return Extraction(
        str(run),
        "entities" if secrets is None else "secrets",
        config.privacy.method,
        load_certificate(run).epsilon if config.private else None,
        read_result(run / RESULT)["after"].get("perplexity"),
        ranked,
    )


def _scorer(loaded: LoadedModel) -> Scorer:
    model = loaded.model.to("cuda" if torch.cuda.is_available() else "cpu")
    return Scorer(model, loaded.tokenizer, loaded.max_tokens)


def _opened(run: Path) -> tuple[Config, LoadedModel]:
    if not (run / CONFIG).is_file():
        raise UserError(f"{run}: not a run directory; name one that training wrote")
    config = load_config(run / CONFIG)
    if not (run / RESULT).is_file():
        raise UserError(f"{run}: not finished; resume the run with `resume=True`")
    if config.task.kind != "next-word":
        raise UserError(f"{run}: a model for {config.task.kind} does not generate text")
    return config, load_model(run)
