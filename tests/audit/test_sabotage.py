"""Break what runs, one part at a time: the audit, or a named check, must notice.

Each row of `SABOTAGES` breaks training's own code and names what has to report it. What has to
report it is also asked without the sabotage, and must then have nothing to say. Seeds of 32 bits
are caught where a round takes its noise: `tests/mechanism/test_noise.py`.
"""

import contextlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.audit import plans
from tests.models import tiny
from tests.training import worlds
from uedp.accounting.proven import FairSharesProfile, RotationProfile, UserLevelProfile
from uedp.audit.mechanism import cases
from uedp.audit.plans import plan_of
from uedp.audit.sensitivity import measure
from uedp.audit.verdict import conclusion
from uedp.corpus.sentence import Sentence, Span
from uedp.entities.detection import Detection, detect
from uedp.entities.detectors import register_detector
from uedp.entities.propagation import KnownSurfaces
from uedp.errors import UserError
from uedp.incidence import Incidence
from uedp.mechanism import fair
from uedp.mechanism import release as releasing
from uedp.mechanism import sampling as drawing
from uedp.mechanism.clip import Engine, clipping
from uedp.mechanism.clip.rules import TiedLookup
from uedp.methods import ClippedMethod, fair_shares, rotation
from uedp.models.trainable import make_trainable
from uedp.training import build, tasks
from uedp.training.plan import build_plan

# --- sabotages -----------------------------------------------------------------------------------


def crowding_one(patch) -> None:
    """Every sentence gets the whole share, however many mention the same entity."""
    patch.setattr(drawing, "crowding", lambda mentions: np.ones(len(mentions), int))


def crowding_after_coins(patch) -> None:
    """What a coin takes out makes room for the others."""

    def after(incidence, sampling, rng, key, usable=None):
        users = drawing.draw_users(incidence.users, sampling.user_rate, rng)
        place, sentences, mentions = drawing.select(incidence, users, sampling, key, usable)
        heads = drawing._coins(mentions, sampling, rng)
        rows = drawing.grouped(users, place[heads], sentences[heads])
        return drawing.Participants(users, rows, 1 / drawing.crowding(mentions.where(heads)))

    patch.setattr(rotation, "draw", after)


def a_share_for_everyone(patch) -> None:
    """Fair shares that are not divided among those who mention an entity."""
    patch.setattr(fair, "_filled", lambda incidence, selected, share: selected.astype(float))


def shares_among_the_drawn(patch) -> None:
    """What an undrawn user would have is given to the others."""

    def among(incidence, sampling, rng, weights):
        who = drawing.draw_weighted(incidence, sampling, rng, weights)
        selected = np.isin(np.arange(incidence.sentences), who.sentences.values)
        shared = fair._filled(incidence, selected, 0.3)
        return drawing.Participants(who.users, who.sentences, shared[who.sentences.values])

    patch.setattr(fair_shares, "draw_weighted", among)


def lending_among_the_drawn(patch) -> None:
    """An entity goes to a holder who can use it now."""
    original = drawing.draw

    def among(incidence, sampling, rng, key, usable=None):
        state = rng.bit_generator.state
        users = drawing.draw_users(incidence.users, sampling.user_rate, rng)
        rng.bit_generator.state = state
        mentions = incidence.sentence_entities
        row = mentions.row_of_value()
        kept = np.isin(incidence.sentence_user[row], users)
        seen = Incidence.build(
            incidence.sentence_user,
            row[kept],
            mentions.values[kept],
            incidence.users,
            incidence.entities,
        )
        return original(incidence, sampling, rng, key, drawing.lend(seen, key))

    patch.setattr(rotation, "draw", among)


def clipping_by_pieces(patch) -> None:
    """A user too large for memory is taken for several."""
    original = releasing.chunks_of

    def cut(participants, lengths, max_tokens, packing, taken=()):
        for rows in original(participants, lengths, max_tokens, packing, taken):
            if packing.tokens(lengths[rows]) <= max_tokens:
                yield rows
                continue
            each = max(1, max_tokens // int(lengths[rows].max()))
            yield from np.split(rows, range(each, len(rows), each))

    patch.setattr(releasing, "chunks_of", cut)


def division_by_the_drawn(patch) -> None:
    """A mean over who was drawn, instead of over who is drawn on average."""
    original = ClippedMethod.round

    def mean(self, number, *attempt):
        found = original(self, number, *attempt)
        scale = self.settings.expected_users / max(found.stats.users, 1)
        return replace(found, values=[value * scale for value in found.values])

    patch.setattr(ClippedMethod, "round", mean)


def less_noise(patch) -> None:
    """What `release` asks for, less a twentieth."""
    original = releasing.add_once_
    patch.setattr(
        releasing,
        "add_once_",
        lambda noise, sums, deviation: original(noise, sums, 0.95 * deviation),
    )


def tied_cross_term_dropped(patch) -> None:
    """An embedding that is the head too, measured as if it were two matrices."""

    def apart(self, *arguments):
        self._lookup.add_products(*arguments)
        self._head.add_products(*arguments)

    patch.setattr(TiedLookup, "add_products", apart)


def tied_cross_term_dropped_unchecked(patch) -> None:
    """The same where the engine's own trial of the model does not see it."""
    tied_cross_term_dropped(patch)
    patch.setattr(Engine, "check", lambda self, losses, sentences, half=False: None)


def adapter_scale_left_out(patch) -> None:
    """Norms as if adapters were added without their scale, alpha / rank."""
    original = clipping._factors
    patch.setattr(
        clipping,
        "_factors",
        lambda norms, bounds, *more: original(norms / _SCALE, bounds, *more),
    )


def padding_predicting(patch) -> None:
    """The end token is to be predicted wherever a shorter sentence is filled up with it."""
    original = tasks.NextWord.batch

    def filled(self, sentences):
        batch = original(self, sentences)
        batch["labels"] = batch["labels"].masked_fill(batch["labels"] == tasks.IGNORED, 0)
        return batch

    patch.setattr(tasks.NextWord, "batch", filled)


def padding_predicting_unchecked(patch) -> None:
    """The same where neither trial of the model sees it."""
    padding_predicting(patch)
    patch.setattr(build, "refuse_mixing", lambda model, task: None)
    patch.setattr(Engine, "check", lambda self, losses, sentences, half=False: None)


def one_entity_not_propagated(patch) -> None:
    original = KnownSurfaces.find

    def find(
        self: KnownSurfaces, text: str, hits: Sequence[Span] = (), user: str | None = None
    ) -> list[Span]:
        spans = original(self, text, hits, user)
        return [s for s in spans if text[s.start : s.end].lower() != "acme"]

    patch.setattr(KnownSurfaces, "find", find)


# --- what has to notice --------------------------------------------------------------------------

PLAN = plans.plan(RotationProfile(1.0, 0.3, 0.3, entity_rate=0.6, extended_rate=0.7))
USERS = plans.plan(UserLevelProfile(1.0, 0.3))
FAIR = plans.plan(FairSharesProfile(1.0, 0.3, 0.3))


def rounds_measured() -> list[str]:
    """`uedp audit mechanism`: how far rounds move (uedp.audit.sensitivity)."""
    return measure(PLAN, seed=1, rounds=4, scanned=60, chance=1e-6).broken


def rounds_of_users_measured() -> list[str]:
    """The same of user-level privacy."""
    return measure(USERS, seed=1, rounds=2, scanned=60, chance=1e-6).broken


def rounds_of_fair_shares_measured() -> list[str]:
    """The same of fair shares."""
    return measure(FAIR, seed=1, rounds=2, scanned=30, chance=1e-6).broken


@cache
def _case():
    plan = plan_of("rotation", rounds=50, epsilon=8.0, entity_share=0.5)
    return next(case for case in cases(plan) if case.claim.target == "user and entity")


def runs_attacked() -> list[str]:
    """`uedp audit mechanism`: guesses that are better than what is proven allows.

    At a confidence of 99.9%, so that a false alarm comes once in a thousand seeds.
    """
    found = _case().audit(
        runs=1500, seed=0, confidence=0.999, attacks=["likelihood"], fit_curve=False
    )
    return [line for line in conclusion([found]) if line.startswith("ALARM")]


_SCALE = 4.0
TEXTS = ["z" * (4 + place % 9) for place in range(worlds.USERS * worlds.EACH)]


class Bigram(torch.nn.Module):
    """The smallest model whose head is its embedding; when a word comes again and again, both
    parts of its gradient go the same way."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(tiny.WORDS, 16)
        self.head = torch.nn.Linear(16, tiny.WORDS, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, input_ids):
        return SimpleNamespace(logits=self.head(self.embedding(input_ids)))


def _plan(**privacy):
    fields = {f"privacy__{name}": value for name, value in privacy.items()}
    config = worlds.config("model", privacy__method="user-level", privacy__user_rate=1.0, **fields)
    return build_plan(config, worlds.incidence())


def _moved(model: torch.nn.Module) -> list[str]:
    """Everyone is drawn; how far emptying each of some users moves the sum of a real model."""
    plan = _plan(noise=0.0, update_clip=0.01, seed=1)

    def sums(texts: Sequence[str]) -> torch.Tensor:
        task = tasks.NextWord(texts, tiny.tokenizer(), 32)
        method = build.build_method(plan, worlds.incidence(), model, task, contextlib.nullcontext)
        found = torch.cat([value.flatten() for value in method.round(0).values])
        return found * plan.expected_users / plan.clips.update

    try:
        full, others = sums(TEXTS), []
        for user in range(0, worlds.USERS, 5):
            own = worlds.incidence().user_sentences[user]
            others.append(sums(["" if s in own else t for s, t in enumerate(TEXTS)]))
        nothing = float(sums([""] * len(TEXTS)).norm())
    except UserError as refusal:
        return [str(refusal)]
    largest = max(float((full - other).norm()) for other in others)
    broken = [f"a user moved the sum by {largest:.3f} clips"] if largest > 1 + 1e-4 else []
    return broken + (["an empty corpus moved the sum"] if nothing > 0 else [])


def tied_model_measured() -> list[str]:
    """A run of a model whose head is its embedding."""
    return _moved(Bigram())


def adapters_measured() -> list[str]:
    """A run that trains adapters."""
    plain = tiny.gpt2(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    return _moved(make_trainable(plain, "lora", rank=2, alpha=2 * _SCALE))


def model_tried() -> list[str]:
    """A private run begins: the model is tried with some of its sentences."""
    task = tasks.NextWord(TEXTS, tiny.tokenizer(), 32)
    try:
        build.build_method(_plan(), worlds.incidence(), Bigram(), task, contextlib.nullcontext)
    except UserError as refusal:
        return [str(refusal)]
    return []


def every_mention_found(folder) -> list[str]:
    """A detector that recognises a name at the start of a sentence only; names are looked for by
    hand in the texts, and each has to be a mention of its entity."""

    @register_detector("first-of-three")
    class FirstWord:
        propagates = True

        def __init__(self, argument):
            pass

        def detect(self, texts):
            for text in texts:
                name = re.match(r"(Acme|Brill|Cobb)\b", text)
                yield [Span(0, name.end(), "ORG")] if name else []

    texts = [
        "Acme rose.",
        "Brill fell.",
        "Cobb too.",
        "We like Acme, not Brill.",
        "Ask Cobb at Acme",
        "Acme again.",  # found in two of its four places
    ]
    corpus = detect(
        [Sentence(str(place), text) for place, text in enumerate(texts)],
        folder / "corpus",
        Detection(("first-of-three",)),
    )
    ids = {name: place for place, name in enumerate(corpus.entities["surface"].to_pylist())}
    incidence = Incidence.of(corpus.folder)
    return [
        f"sentence {place} mentions {name} and is not linked to it"
        for place, text in enumerate(texts)
        for name in ("Acme", "Brill", "Cobb")
        if name in text and ids[name] not in incidence.sentence_entities[place]
    ]


# --- the matrix ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """What is broken, what has to notice, and what it has to say."""

    sabotage: Callable[[pytest.MonkeyPatch], None]
    noticed_by: Callable[..., list[str]]
    saying: str


SABOTAGES = [
    Row(crowding_one, rounds_measured, "emptying an entity moved"),
    Row(crowding_one, runs_attacked, "does better than the proven epsilon"),
    Row(crowding_after_coins, rounds_measured, "decided how the clips of sentences were divided"),
    Row(a_share_for_everyone, rounds_of_fair_shares_measured, "emptying an entity moved"),
    Row(shares_among_the_drawn, rounds_of_fair_shares_measured, "clips of sentences were divided"),
    Row(lending_among_the_drawn, rounds_measured, "who else was drawn decided"),
    Row(lending_among_the_drawn, runs_attacked, "does better than the proven epsilon"),
    Row(clipping_by_pieces, rounds_measured, "emptying a user moved"),
    Row(clipping_by_pieces, rounds_of_users_measured, "emptying a user moved"),
    Row(division_by_the_drawn, rounds_measured, "moved a round's sum"),
    Row(less_noise, rounds_measured, "of the noise that was planned"),
    Row(tied_cross_term_dropped, model_tried, "not what the layers' rules give"),
    Row(tied_cross_term_dropped_unchecked, tied_model_measured, "a user moved the sum"),
    Row(adapter_scale_left_out, adapters_measured, "a user moved the sum"),
    Row(padding_predicting, model_tried, "changes with the sentences beside it"),
    Row(padding_predicting_unchecked, tied_model_measured, "an empty corpus moved the sum"),
    Row(one_entity_not_propagated, every_mention_found, "is not linked to it"),
]


def _asked(check: Callable[..., list[str]], folder) -> list[str]:
    return check(folder) if check is every_mention_found else check()


@pytest.mark.parametrize(
    "row", SABOTAGES, ids=lambda row: f"{row.sabotage.__name__}-{row.noticed_by.__name__}"
)
def test_a_sabotage_is_noticed(row, monkeypatch, tmp_path):
    row.sabotage(monkeypatch)
    found = _asked(row.noticed_by, tmp_path)
    assert any(row.saying in line for line in found), found


@pytest.mark.parametrize(
    "check", dict.fromkeys(row.noticed_by for row in SABOTAGES), ids=lambda one: one.__name__
)
def test_without_sabotage_there_is_nothing_to_say(check, tmp_path):
    assert _asked(check, tmp_path) == []
