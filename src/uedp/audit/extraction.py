"""What a person fears: that a model gives away a number or a name it was trained on.

A text has a gap; what truly stood there is ranked among what could stand there as well, by how
likely the model finds each. Of planted secrets (Carlini et al. 2019) all or many numbers of the
same form are tried; of entities, others of the same category, in the entity's own sentence. Whoever
guesses by the rank that something was trained on is right how often? The controls, which were not
trained on, tell.
"""

import inspect
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from uedp.audit.bounds import at_least, at_most
from uedp.audit.secrets import Secret, drawn
from uedp.entities.categories import BASE
from uedp.errors import UserError
from uedp.incidence import Incidence, Ints
from uedp.progress import SILENT, Progress
from uedp.training.tasks import Precision, unmasked

if TYPE_CHECKING:
    from uedp.corpus.store import Corpus  # at run time only where it is used: it needs Arrow

T = TypeVar("T")
Floats = npt.NDArray[np.float64]

FALSE_POSITIVES = (0.001, 0.01, 0.1)
CHANCE = 1 / math.log(2)  # bits of exposure, on average, of what a model knows nothing of
ALTERNATIVES = 10_000
BEAMS = 10
ENTITIES, OTHERS = 1000, 100  # ranked from each corpus, and against how many

_TOGETHER = 32  # questions
_LONGEST = 400  # characters of a sentence with a gap

_ROOM = {"cuda": 1 << 15, "cpu": 1 << 12}  # tokens scored at a time
_CONFIDENCE = 0.95


# --- how likely a model finds each way to go on --------------------------------------------------


@dataclass(frozen=True, eq=False)
class Endings:
    """Ways in which a text can go on, as tokens.

    Those that differ in their last token alone share a context, and one pass gives all of them:
    to try all numbers of four digits takes a thousand rows.
    """

    contexts: list[tuple[int, ...]]
    place: Ints
    last: Ints

    @classmethod
    def of(cls, endings: Sequence[Sequence[int]]) -> "Endings":
        known = sorted({tuple(ending[:-1]) for ending in endings}, key=len)
        number = {context: place for place, context in enumerate(known)}
        place = np.array([number[tuple(ending[:-1])] for ending in endings])
        return cls(known, place, np.array([ending[-1] for ending in endings]))


@dataclass(frozen=True, eq=False)
class Question:
    """A text as far as it is given, and how it may go on."""

    prefix: Sequence[int]
    endings: Endings


@torch.no_grad()
def likelihoods(
    model: Any, questions: Sequence[Question], precision: Precision, room: int
) -> list[Floats]:
    """For each question, the log-likelihood of each ending after the prefix.

    Guarantees:
      - each is the sum over the ending's tokens of their log-likelihoods after all before them,
        whatever stands beside it in a batch
    """
    device = next(model.parameters()).device
    rows = [(q.prefix, context) for q in questions for context in q.endings.contexts]
    starts = np.array([len(prefix) for prefix, _ in rows])
    lengths = np.array([len(prefix) + len(context) for prefix, context in rows])
    order = np.argsort(lengths, kind="stable")
    # endings in the order in which their contexts come up
    firsts = np.cumsum([0, *(len(q.endings.contexts) for q in questions)])
    turn = np.argsort(order, kind="stable")[
        np.concatenate(
            [q.endings.place + first for q, first in zip(questions, firsts, strict=False)]
        )
    ]
    endings = np.argsort(turn, kind="stable")
    lasts = np.concatenate([q.endings.last for q in questions])
    found = np.empty(len(lasts))
    begin = 0
    while begin < len(order):
        end = begin + 1
        while end < len(order) and (end + 1 - begin) * lengths[order[end]] <= room:
            end += 1
        some = order[begin:end]
        width = int(lengths[some].max())
        kept = width - int(starts[some].min()) + 1
        ids = np.full((len(some), width), rows[0][0][0])
        for place, row in enumerate(some):
            ids[place, : lengths[row]] = [*rows[row][0], *rows[row][1]]
        given = torch.from_numpy(ids).to(device)
        with precision(), unmasked(model):
            logits = _last_logits(model, given, kept)
        total = logits.logsumexp(-1)
        offset = width - kept  # logits at place i are those after token offset + i
        steps = logits[:, :-1].gather(2, given[:, offset + 1 :, None])[:, :, 0] - total[:, :-1]
        at = np.arange(offset + 1, width)
        counted = (at >= starts[some, None]) & (at < lengths[some, None])
        inside = torch.where(torch.from_numpy(counted).to(device), steps, 0.0).double().sum(1)
        low, high = np.searchsorted(turn[endings], [begin, end])
        mine = endings[low:high]
        where = torch.from_numpy(turn[mine] - begin).to(device)
        final = torch.from_numpy(lengths[order[turn[mine]]] - 1 - offset).to(device)
        last = torch.from_numpy(lasts[mine]).to(device)
        closing = logits[where, final, last] - total[where, final]
        found[mine] = (inside[where] + closing.double()).cpu().numpy()
        begin = end
    return np.split(found, np.cumsum([len(q.endings.place) for q in questions])[:-1])


def _last_logits(model: Any, ids: Tensor, count: int) -> Tensor:
    """At the last positions alone: a head over many words costs more than the rest of a model."""
    accepts = "logits_to_keep" in inspect.signature(model.forward).parameters
    given = {"logits_to_keep": count} if accepts else {}
    logits: Tensor = model(input_ids=ids, **given).logits[:, -count:].float()
    return logits


class Scorer:
    """A causal model and its tokenizer, asked how likely texts are."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        max_tokens: int,
        precision: Precision = torch.no_grad,
        room: int | None = None,
    ) -> None:
        self._model, self._tokenizer, self._longest = model, tokenizer, max_tokens
        self._device = next(model.parameters()).device
        self._precision = precision
        self._room = room or _ROOM.get(self._device.type, _ROOM["cpu"])
        starts = (tokenizer.bos_token_id, tokenizer.eos_token_id)
        start = next((token for token in starts if token is not None), None)
        if start is None:
            raise UserError("the tokenizer has neither a start nor an end token; add one to it")
        self._start: int = start

    def question(self, before: str, candidates: Sequence[str], after: str = "") -> Question:
        """What stands in the gap? Each candidate is scored with what comes after."""
        prefix, endings = self.split([f"{before}{c}{after}" for c in candidates])
        return Question(prefix, Endings.of(endings))

    def answer(self, questions: Sequence[Question]) -> list[Floats]:
        """The log-likelihood of each ending, less a constant for each question."""
        return likelihoods(self._model, questions, self._precision, self._room)

    def split(self, texts: Sequence[str]) -> tuple[list[int], list[list[int]]]:
        """The tokens that all texts begin with, and those that each goes on with."""
        rows = self.tokens(texts)
        shortest = min(map(len, rows))
        first, last = min(rows), max(rows)  # no two part earlier
        shared = next((i for i in range(shortest) if first[i] != last[i]), shortest)
        shared = min(shared, shortest - 1)
        return rows[0][:shared], [row[shared:] for row in rows]

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Of each text, after a start token."""
        found = self._tokenizer(list(texts), add_special_tokens=False)["input_ids"]
        longest = max(map(len, found), default=0) + 1
        if longest > self._longest:
            raise UserError(
                f"a text of {longest} tokens is too long for the model, which takes {self._longest}"
            )
        return [[self._start, *ids] for ids in found]

    @torch.no_grad()
    def go_on(self, prompts: Sequence[str], tokens: int, beams: int = 1) -> list[list[str]]:
        """For each prompt its likeliest continuations by beam search; one beam is greedy."""
        rows = self.tokens(prompts)
        by_length: dict[int, list[int]] = {}
        for number, row in enumerate(rows):
            by_length.setdefault(len(row), []).append(number)
        found: list[list[str]] = [[] for _ in rows]
        for length, numbers in by_length.items():  # of one length, so that nothing is padded
            each = max(1, self._room // ((length + tokens) * beams))
            for some in (numbers[i : i + each] for i in range(0, len(numbers), each)):
                ids = torch.tensor([rows[i] for i in some], device=self._device)
                for number, ends in zip(some, self._beams(ids, tokens, beams), strict=True):
                    found[number] = self._tokenizer.batch_decode(ends, skip_special_tokens=True)
        return found

    def _beams(self, ids: Tensor, tokens: int, beams: int) -> Tensor:
        """(prompts, length) to (prompts, beams, tokens), likeliest first."""
        prompts, length = ids.shape
        held = ids[:, None]
        scores = torch.zeros(prompts, 1, device=ids.device)
        for _ in range(tokens):
            with self._precision(), unmasked(self._model):
                logits = _last_logits(self._model, held.flatten(0, 1), 1)[:, 0]
            steps = logits.log_softmax(-1).view(prompts, held.shape[1], -1)
            every = (scores[:, :, None] + steps).flatten(1)
            scores, chosen = every.topk(min(beams, every.shape[1]), 1)
            parents = (chosen // steps.shape[2])[:, :, None].expand(-1, -1, held.shape[2])
            added = (chosen % steps.shape[2])[:, :, None]
            held = torch.cat([held.gather(1, parents), added], 2)
        return held[:, :, length:]


class Completions:
    """The same candidates after many prompts, cut into tokens once where that is the same cut."""

    def __init__(self, scorer: Scorer, candidates: Sequence[str]) -> None:
        self._scorer, self._candidates = scorer, candidates
        self._known: tuple[list[list[int]], Endings] | None = None

    def after(self, prompt: str) -> Question:
        """How does the prompt go on?"""
        prefix = None if self._known is None else self._prefix(prompt, self._known[0])
        if self._known is None or prefix is None:
            prefix, cut = self._scorer.split([f"{prompt} {c}" for c in self._candidates])
            self._known = cut, Endings.of(cut)
        return Question(prefix, self._known[1])

    def _prefix(self, prompt: str, endings: list[list[int]]) -> list[int] | None:
        """What comes before the known endings, if some candidates are still cut that way."""
        some = range(0, len(endings), max(1, len(endings) // 8))
        rows = self._scorer.tokens([f"{prompt} {self._candidates[i]}" for i in some])
        prefixes = []
        for row, i in zip(rows, some, strict=True):
            if row[len(row) - len(endings[i]) :] != endings[i]:
                return None
            prefixes.append(row[: len(row) - len(endings[i])])
        return prefixes[0] if all(prefix == prefixes[0] for prefix in prefixes) else None


# --- ranks ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ranked:
    """What a model says of one gap.

    `rank` is that of the truth among `among` candidates, itself included; those that tie with it
    count half. `confidence` is the log (base 2) of the share of the truth in the likelihood of all
    candidates. `users` is how many users told it.
    """

    group: str
    member: bool
    users: int
    rank: float
    among: int
    confidence: float
    extracted: bool | None = None
    in_beams: bool | None = None

    @property
    def exposure(self) -> float:
        """Bits that the model saves who searches for the truth (Carlini et al. 2019).

        0 at the end of the list, `log2(among)` at its head, which caps it.
        """
        return math.log2(self.among) - math.log2(self.rank)


def rank(truth: float, others: Floats) -> tuple[float, float]:
    """The rank of the truth among itself and others, and its confidence.

    Guarantees:
      - a rank lies in 1 .. others + 1, and is in the middle if all are alike
    """
    better = np.count_nonzero(others > truth) + 0.5 * np.count_nonzero(others == truth)
    total = np.logaddexp.reduce(np.append(others, truth))
    return 1.0 + better, float(truth - total) / math.log(2)


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
    written = _written(scorer, secrets, 1), _written(scorer, secrets, beams)
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
                        confidence=confidence,
                        extracted=written[0][i],
                        in_beams=written[1][i],
                    )
                meter.advance(len(some))
    return [found[i] for i in range(len(secrets))]


def _written(scorer: Scorer, secrets: Sequence[Secret], beams: int) -> list[bool]:
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


@dataclass(frozen=True)
class Gap:
    """A mention taken out of its sentence, and others of its category to put there.

    `member` says that the entity is in the training corpus, told by so many `users`.
    """

    before: str
    truth: str
    after: str
    others: tuple[str, ...]
    category: str
    member: bool
    users: int


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
                        confidence=confidence,
                    )
                )
            meter.advance(len(some))
    return found


def _answers(scorer: Scorer, gaps: Sequence[Gap]) -> list[Floats]:
    return scorer.answer(
        [scorer.question(gap.before, [gap.truth, *gap.others], gap.after) for gap in gaps]
    )


def _chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """A few questions at a time, to fill batches."""
    return (items[i : i + _TOGETHER] for i in range(0, len(items), _TOGETHER))


# --- which entities to ask for -------------------------------------------------------------------


def entity_gaps(
    train: "Corpus",
    held_out: "Corpus",
    *,
    most: int = ENTITIES,
    alternatives: int = OTHERS,
    seed: int = 0,
) -> list[Gap]:
    """Gaps for entities that only one of two corpora mentions, about `most` from each.

    Guarantees:
      - per category, as many gaps from the one corpus as from the other
      - the others in a gap are drawn alike for all: as many from the one corpus as from the other,
        never the entity itself
      - the same seed gives the same gaps
    """
    chance = np.random.default_rng(seed)
    sides = [_mentioned(train, True, chance), _mentioned(held_out, False, chance)]
    common = sides[0].keys() & sides[1].keys()
    by_category: dict[str, tuple[list[Gap], list[Gap]]] = {}
    for side, mentioned in enumerate(sides):
        for name, gap in mentioned.items():
            if name not in common:
                by_category.setdefault(gap.category, ([], []))[side].append(gap)
    usable = {name: both for name, both in by_category.items() if min(map(len, both)) > 1}
    if not usable:
        raise UserError(
            f"{train.folder} and {held_out.folder}: in no category are there two entities that "
            "only the one mentions, and two that only the other does; hold out more users"
        )
    share = min(1.0, most / sum(min(map(len, both)) for both in usable.values()))
    found: list[Gap] = []
    for category in sorted(usable):
        both = usable[category]
        fewest = min(map(len, both))
        each = min(alternatives // 2, fewest - 1)
        for own in both:
            for place in chance.permutation(len(own))[: max(1, round(share * fewest))]:
                others: list[str] = []
                for pool in both:
                    free = np.delete(np.arange(len(pool)), place if pool is own else [])
                    others += (pool[i].truth for i in chance.choice(free, each, replace=False))
                found.append(replace(own[place], others=tuple(others)))
    return found


def _mentioned(corpus: "Corpus", member: bool, chance: np.random.Generator) -> dict[str, Gap]:
    """For each entity a mention of it, drawn at random, unless its sentence is very long."""
    table = corpus.mentions
    columns = (
        table[name].to_numpy() for name in ("entity", "sentence", "start", "end", "category")
    )
    rows = np.stack([np.asarray(column, dtype=np.int64) for column in columns])
    rows = rows[:, chance.permutation(rows.shape[1])]
    entities, first = np.unique(rows[0], return_index=True)
    users = Incidence.of(corpus.folder).holders.counts
    names = corpus.entities["name"].to_pylist()
    kinds = list(BASE)
    found = {}
    for entity, text, (start, end, category) in zip(
        entities.tolist(), corpus.texts(rows[1, first]), rows[2:, first].T.tolist(), strict=True
    ):
        if len(text) <= _LONGEST:
            found[names[entity]] = Gap(
                text[:start],
                text[start:end],
                text[end:],
                (),
                kinds[category],
                member,
                int(users[entity]),
            )
    return found


# --- what the ranks come to ----------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Roc:
    """How often members and others are taken for members, at every threshold.

    Guarantees:
      - both rates rise from 0 to 1
      - `at(x)` is the share of members above every threshold that at most a share `x` of the others
        lies above
    """

    members: Floats
    others: Floats

    def curve(self) -> tuple[Floats, Floats]:
        """False and true positive rates, from nobody taken for a member to everybody."""
        cuts = np.unique(np.concatenate([self.members, self.others]))[::-1]
        rates = [
            np.concatenate([[0.0], np.searchsorted(np.sort(-values), -cuts, "right") / len(values)])
            for values in (self.others, self.members)
        ]
        return rates[0], rates[1]

    def area(self) -> float:
        """The chance that a member scores above another, half of ties counted."""
        false, true = self.curve()
        return float(np.trapezoid(true, false))

    def hits(self, false_positives: float) -> int:
        """How many members are found with at most this share of the others."""
        allowed = math.floor(false_positives * len(self.others) + 1e-9)
        if allowed >= len(self.others):
            return len(self.members)
        threshold = np.sort(self.others)[::-1][allowed]
        return int(np.count_nonzero(self.members > threshold))


def roc(found: Sequence[Ranked]) -> Roc:
    """By confidence, of what was trained on against what was not."""
    values = {
        member: np.array([item.confidence for item in found if item.member is member])
        for member in (True, False)
    }
    for member, name in ((True, "in the training corpus"), (False, "left out of it")):
        if not len(values[member]):
            raise UserError(f"none of what is ranked is {name}; there is nothing to compare with")
    return Roc(values[True], values[False])


def summary(found: Sequence[Ranked]) -> dict[str, Any]:
    """What a table shows: exposure and extraction by group, and what guessing members comes to."""
    curve = roc(found)
    groups: dict[str, list[Ranked]] = {}
    for item in sorted(found, key=lambda item: (not item.member, item.users)):
        for name in _groups(item):
            groups.setdefault(name, []).append(item)
    return {
        "candidates": max(item.among for item in found),
        "largest_exposure": math.log2(max(item.among for item in found)),
        "exposure_by_chance": CHANCE,
        "groups": {name: _of_group(items) for name, items in groups.items()},
        "membership": {
            "members": len(curve.members),
            "others": len(curve.others),
            "area": curve.area(),
            "at": [_at(curve, rate) for rate in FALSE_POSITIVES],
        },
    }


def _groups(item: Ranked) -> Iterable[str]:
    inside, outside = ("planted", "left out") if item.extracted is not None else _HELD
    everyone = inside if item.member else outside
    return (everyone,) if item.group == everyone else (everyone, item.group)


_HELD = ("held in", "held out")


def _of_group(items: Sequence[Ranked]) -> dict[str, Any]:
    exposures = np.array([item.exposure for item in items])
    found: dict[str, Any] = {
        "count": len(items),
        "mean_exposure": float(exposures.mean()),
        "median_exposure": float(np.median(exposures)),
        "ranked_first": _share([item.rank == 1 for item in items]),
    }
    for name in ("extracted", "in_beams"):
        if all(getattr(item, name) is not None for item in items):
            found[name] = _share([getattr(item, name) for item in items])
    return found


def _at(curve: Roc, rate: float) -> dict[str, Any]:
    """`resolved` says that there are enough others to tell such a rate from none at all."""
    hits = curve.hits(rate)
    return {
        "false_positives": rate,
        "resolved": len(curve.others) * rate >= 1,
        "true_positives": _share([True] * hits + [False] * (len(curve.members) - hits)),
    }


def _share(found: Sequence[bool]) -> dict[str, float]:
    """A share, and where it may lie with 95% confidence (Clopper and Pearson 1934)."""
    hits, alpha = np.array([sum(found)]), (1 - _CONFIDENCE) / 2
    return {
        "share": float(hits[0]) / len(found),
        "low": float(at_least(hits, len(found), alpha)[0]),
        "high": float(at_most(hits, len(found), alpha)[0]),
    }


def rows(found: Sequence[Ranked]) -> list[dict[str, Any]]:
    """For JSON: numbers only, no text."""
    return [asdict(item) | {"exposure": item.exposure} for item in found]
