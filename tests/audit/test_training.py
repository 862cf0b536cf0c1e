"""The audit of a training run: canaries are one step of adjacency each, an honest run is cleared,
and a run without its noise is caught."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.training import worlds
from uedp.audit.canaries import Canaries, draw_canaries
from uedp.audit.training import (
    AUDIT,
    CANARIES,
    LEDGER,
    RUN,
    Finding,
    RunAttack,
    TrainingAudit,
    audit,
    losses,
)
from uedp.audit.white_box import Decoder, Gradients, WhiteBox, evidence, sentence_losses
from uedp.errors import UserError
from uedp.incidence import Incidence
from uedp.mechanism import release
from uedp.mechanism.clip import reference
from uedp.methods import Attempt, Gradient
from uedp.methods.plain import Noiseless
from uedp.models.load import load_model
from uedp.models.trainable import make_trainable
from uedp.training import loop, tasks
from uedp.training.config import Config
from uedp.training.datasets import Texts, TrainingData
from uedp.training.plan import build_plan

Saved = Callable[..., Path]
COUNTS: dict[str, Any] = {"users": 60, "entities": 40, "seed": 2, "refresh": 2}


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """The folder of a tiny model, by kind and options; made once."""
    folder = tmp_path_factory.mktemp("models")
    return lambda kind, **options: worlds.model(folder, kind, **options)


def planted(
    config: Config, folder: Path, seed: int = 0, **options: Any
) -> tuple[Canaries, TrainingData]:
    natural = worlds.training_data(folder / "corpus", held_out=False)
    counts = {"users": 10, "entities": 8, "holders": 3} | options
    canaries = draw_canaries(config, natural, **counts, rng=np.random.default_rng(seed))
    (folder / "ledger").mkdir(exist_ok=True)
    return canaries, canaries.plant(natural, folder / "ledger")


def with_coins(canaries: Canaries, coins: Iterable[Any]) -> Canaries:
    turned = (replace(one, inside=bool(c)) for one, c in zip(canaries.canaries, coins, strict=True))
    return replace(canaries, canaries=tuple(turned))


# --- canaries ------------------------------------------------------------------------------------


def test_a_coin_is_one_step_of_adjacency(tmp_path: Path) -> None:
    """Guarantees of Canaries.plant."""
    config = worlds.config("m", privacy__entity_share=0.3)
    canaries, _ = planted(config, tmp_path)
    natural = worlds.training_data(tmp_path / "corpus", held_out=False)
    none = with_coins(canaries, np.zeros(18)).plant(natural, tmp_path)
    assert list(none.train.texts[: len(natural.train.texts)]) == list(natural.train.texts)
    assert not any(none.train.texts[len(natural.train.texts) :])
    incidence = none.incidence
    assert (incidence.users, incidence.entities) == (40 + 10 + 8, 4 + 8)
    for turned, canary in enumerate(canaries.canaries):
        one = with_coins(canaries, np.arange(18) == turned).plant(natural, tmp_path)
        assert one.incidence.digest == incidence.digest
        changed = [
            place
            for place, (a, b) in enumerate(zip(none.train.texts, one.train.texts, strict=True))
            if a != b
        ]
        assert {one.train.texts[place] for place in changed} == {canary.text}
        if canary.kind == "user":
            user = 40 + turned
            assert changed == incidence.user_sentences[user].tolist()
            assert incidence.extended[changed].all()
            assert len(changed) == canaries.copies == 4  # clipped to .3 each, a whole update
        else:
            entity = 4 + turned - 10
            assert changed == incidence.entity_sentences[entity].tolist()
            assert len(incidence.holders[entity]) == 3
            assert (incidence.holders[entity] >= 50).all()  # who carry nothing else
            assert [len(incidence.sentence_entities[place]) for place in changed] == [1, 1, 1]


def test_coins_are_fair_and_texts_are_their_own(tmp_path: Path) -> None:
    config = worlds.config("m")
    many, _ = planted(config, tmp_path, users=400, entities=400)
    inside = np.array([canary.inside for canary in many.canaries])
    assert 330 < inside.sum() < 470  # five deviations: a false alarm once in a million
    assert len({canary.text for canary in many.canaries}) == 800
    assert sum(canary.shown for canary in many.canaries) == 160
    shown = np.array([canary.shown for canary in many.canaries])
    assert 0.3 < inside[shown].mean() < 0.7
    assert Canaries.from_json(many.to_json()) == many
    labelled, material = planted(worlds.config("m", task__kind="classification"), tmp_path)
    assert {canary.label for canary in labelled.canaries} == {"named", "plain"}
    assert set(material.train.labels[120:]) == {"named", "plain", None}


def test_words_of_a_large_corpus_are_used(tmp_path: Path) -> None:
    texts = Texts([f"word{i} other{i}" for i in range(700)], [None] * 700)
    owners, none = np.repeat(np.arange(100), 7), np.zeros(0, dtype=np.int64)
    natural = TrainingData(texts, Incidence.build(owners, none, none, 100, 0), tmp_path)
    found = draw_canaries(worlds.config("m"), natural, 20, 20, 2, np.random.default_rng(0))
    config = worlds.config("m", privacy__method="noiseless")
    assert found.copies == 4
    plain = draw_canaries(config, natural, 20, 20, 2, np.random.default_rng(0))
    assert (plain.copies, plain.mentions) == (7, 7)  # as others have
    known = {word for text in texts.texts for word in text.split()}
    for canary in found.canaries:
        new = [word for word in canary.text.split() if word not in known]
        assert len(new) == (canary.kind == "entity")  # its name


@pytest.mark.parametrize("kind", ["next-word", "classification"])
def test_a_canary_that_is_out_has_no_loss_and_no_gradient(
    saved: Saved, tmp_path: Path, kind: Any
) -> None:
    options: dict[str, Any] = {"labels": 2} if kind == "classification" else {}
    config = worlds.config(saved("gpt2", **options), task__kind=kind)
    _, material = planted(config, tmp_path)
    loaded = load_model(config.model.name, kind, labels=2 if options else None)
    task = tasks.build_task(
        kind,
        material.train.texts,
        material.train.labels,
        ["named", "plain"],
        loaded.tokenizer,
        32,
    )
    out = [place for place, text in enumerate(material.train.texts) if not text]
    assert len(out) > 10
    assert not losses(loaded.model, task, len(task.lengths))[out].any()
    total = sentence_losses(loaded.model, task, np.array(out)).sum()
    found = torch.autograd.grad(total, list(loaded.model.parameters()), allow_unused=True)
    assert all(part is None or not part.any() for part in found)


# --- the white box -------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "how"), [("gpt2", "full"), ("llama", "lora")])
def test_gradients_are_those_of_one_sentence_each(
    saved: Saved, kind: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load_model(saved(kind), "next-word")
    model: Any = make_trainable(loaded.model, how, rank=2).train()
    texts = ["a b", "some longer text", "ca ca ca"]
    task = tasks.build_task("next-word", texts, [None] * 3, [], loaded.tokenizer, 32)
    gradients = Gradients(model, task, 3)
    model.config.use_cache = False  # as in the loop
    with tasks.without_padding_warning(model):
        rows, norms = gradients.now()
    assert gradients._together
    assert model.training
    for row, norm, place in zip(rows, norms, range(3), strict=True):
        loss = sentence_losses(model, task, np.array([place])).sum()
        trained = [p for p in model.parameters() if p.requires_grad]
        flat = gradients.flat(torch.autograd.grad(loss, trained))
        assert torch.allclose(row, flat, atol=1e-5)
        assert norm == pytest.approx(float(flat.norm()), rel=1e-4)
    gradients._together = False  # as where torch.func fails
    assert torch.allclose(gradients.now()[0], rows, atol=1e-5)
    monkeypatch.setattr("uedp.audit.white_box._MAX_BYTES", {"cpu": 3 * 4 * 100})
    part = Gradients(model, task, 3)
    some, whole = part.now()
    assert some.shape == (3, 100)
    assert torch.allclose(whole, norms, rtol=1e-4)
    assert torch.allclose(some[0], part.flat(torch.split(rows[0], 64)), atol=1e-5)


def test_a_decoder_reads_off_who_took_part() -> None:
    """Rows with much in common, and a sum of some of them under a background of others."""
    torch.manual_seed(0)
    common = torch.randn(3000) / 50
    rows = torch.randn(60, 3000) / 70 + common
    took_part = torch.arange(50) % 3 == 0
    background = 40 * common + torch.randn(3000) / 100
    released = took_part.float() @ rows[:50] + background
    variance = np.r_[np.full(50, 0.25), np.full(10, 40.0)]
    decoder = Decoder.of(rows, variance, 0.01)
    estimates = decoder.read(released)[:50]
    apart = estimates - np.median(estimates)  # what is common to all says nothing of one
    assert np.abs(apart - took_part.numpy()).max() < 0.3
    # what is scaled to rise by one does
    rise = decoder.read(released + rows[7])[7] - estimates[7]
    assert rise == pytest.approx(1, abs=1e-3)
    noisy = [decoder.read(0.01 * torch.randn(3000))[:50] for _ in range(40)]
    assert np.std(noisy) == pytest.approx(decoder.deviation[:50].mean(), rel=0.1)


def test_evidence_rises_with_the_estimate() -> None:
    estimates = np.linspace(-1, 2, 31)
    found = evidence(estimates, np.full(31, 0.5), {0: 0.9, 1: 0.1})
    assert (np.diff(found) > 0).all()
    assert found[0] > np.log(0.9) - 1e-3  # taking no part says little
    twice = evidence(estimates, np.full(31, 0.1), {0: 0.25, 1: 0.5, 2: 0.25})
    assert (np.diff(twice) > 0).all()


def loss_of(task: tasks.Task, model: nn.Module, place: int) -> Callable[[int], Tensor]:
    return lambda _: sentence_losses(model, task, np.array([place])).sum()


@pytest.mark.parametrize("method", ["rotation", "user-level"])
def test_updates_are_those_the_mechanism_makes(saved: Saved, tmp_path: Path, method: str) -> None:
    """A canary's row is what its user, or its entity lent to one user, adds to a round's sum."""
    config = worlds.config(
        saved("llama"),
        privacy__method=method,
        privacy__noise=0.0,
        privacy__user_rate=1.0,
        privacy__entity_share=0.3,
    )
    canaries, material = planted(config, tmp_path, users=2, entities=2, holders=1)
    loaded = load_model(config.model.name, "next-word")
    model = make_trainable(loaded.model, "full").train()
    own = canaries.texts()
    task = tasks.build_task("next-word", own.texts, own.labels, [], loaded.tokenizer, 32)
    plan = build_plan(config, material.incidence)
    box = WhiteBox(plan, material.incidence, model, task, canaries, every=3)
    assert [box.before_round(number) for number in range(4)] == [True, False, False, True]
    assert box._updates is not None
    rows, _ = box._updates
    share = plan.clips.share
    for place, copies in enumerate([4, 4, *[canaries.mentions] * 2]):
        sums, _ = reference.clipped_sum(
            model,
            loss_of(task, model, place),
            [0] * copies,
            [share * plan.clips.update] * copies,
            plan.clips.update,
        )
        assert torch.allclose(rows[place], box._gradients.flat(sums), atol=1e-5)


def test_watching_changes_nothing_and_sees_no_coin(saved: Saved, tmp_path: Path) -> None:
    """Guarantee of WatchedRounds: the weights are those of a run that nobody watched. The evidence
    depends on the coins only through the output of the rounds."""
    config = worlds.config(saved("llama"), privacy__rounds=2, privacy__seed=1)
    canaries, material = planted(config, tmp_path)
    plain = loop.run(config, tmp_path / "plain", data=material)
    seen = []
    for name, told in (("a", canaries), ("b", with_coins(canaries, np.zeros(18)))):
        attack = RunAttack(told, Texts(["the day"], [None]), tmp_path / f"{name}.json", 1)
        found = loop.run(config, tmp_path / name, data=material, watch=attack.watch)
        pairs = zip(found.model.parameters(), plain.model.parameters(), strict=True)
        assert all(torch.equal(ours, theirs) for ours, theirs in pairs)
        attack.keep()
        seen.append(attack.seen)
    assert seen[0] == seen[1]
    assert any(seen[0]["evidence"])


# --- the audit -----------------------------------------------------------------------------------


# of ten seeds each, with these settings, nearly all are refuted without noise and none with it
OFTEN: dict[str, Any] = {"privacy__rounds": 6, "privacy__user_rate": 0.8, "privacy__seed": 3}
SABOTAGED: dict[str, Any] = {"privacy__noise": 20.0, **OFTEN}


def by_name(found: TrainingAudit) -> dict[tuple[str, str], Finding]:
    return {(one.kind, one.score): one for one in found.findings}


def run(config: Config, tmp_path: Path, **options: Any) -> TrainingAudit:
    natural = worlds.training_data(tmp_path / "corpus", held_out=False)
    found = audit(config, tmp_path / "audit", data=natural, **(COUNTS | options))
    assert found is not None
    return found


def test_a_run_without_noise_gives_its_canaries_away(saved: Saved, tmp_path: Path) -> None:
    config = worlds.config(saved("llama"), privacy__method="noiseless", **OFTEN)
    found = run(config, tmp_path)
    rows = by_name(found)
    assert list(rows) == [
        (kind, score) for kind in ("user", "entity") for score in ("white box", "black box")
    ]
    assert rows["user", "white box"].epsilon > 1.5
    assert rows["entity", "white box"].epsilon > 1.5
    assert all(one.alarm <= one.epsilon <= one.most for one in found.findings)
    assert 2.5 < rows["user", "white box"].most < 2.7  # 44 canaries
    assert found.proven is None
    assert {one.verdict for one in found.findings} == {"nothing is claimed"}
    assert not found.refuted
    assert (found.rounds, found.rounds_seen) == (6, 6)
    # no trace in the ledger of the corpus, nor of the model
    assert not any((tmp_path / "corpus").iterdir())
    assert not (tmp_path / "audit" / RUN).exists()
    assert not (tmp_path / "audit" / LEDGER).exists()
    assert TrainingAudit.from_json((tmp_path / "audit" / AUDIT).read_text()) == found


@pytest.mark.parametrize("method", ["rotation", "user-level"])
@pytest.mark.parametrize("sabotaged", [False, True])
def test_noise_that_is_left_out_is_caught(
    saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, sabotaged: bool
) -> None:
    """An honest run is cleared but for a chance of 5%; the seed is fixed. The same run without
    its noise is refuted, though its ledger says all is well."""
    if sabotaged:
        monkeypatch.setattr(release, "add_once_", lambda noise, sums, deviation: None)
    config = worlds.config(saved("llama"), privacy__method=method, **SABOTAGED)
    found = run(config, tmp_path)
    assert found.proven is not None
    assert found.proven < 2
    rows = by_name(found)
    assert rows["user", "white box"].claim == found.proven
    assert rows["entity", "white box"].claim == (found.proven if method == "rotation" else None)
    assert found.refuted == sabotaged
    if sabotaged:
        assert rows["user", "white box"].epsilon > 1.2 * found.proven
        assert rows["user", "white box"].verdict == "REFUTED"
    else:
        assert all(one.epsilon <= found.proven for one in found.findings if one.claim)
        assert {one.verdict for one in found.findings} <= {"not refuted", "nothing is claimed"}


def test_a_claim_of_ones_own(saved: Saved, tmp_path: Path) -> None:
    """`privacy.noise 0` is allowed, and proves nothing; a claim for it is refuted."""
    config = worlds.config(
        saved("llama"), privacy__method="user-level", **SABOTAGED | {"privacy__noise": 0.0}
    )
    found = run(config, tmp_path, entities=0, claimed=1.0)
    assert found.proven is None
    assert [one.kind for one in found.findings] == ["user", "user"]
    assert found.findings[0].verdict == "REFUTED"
    assert found.refuted


def test_classifiers_are_audited_too(saved: Saved, tmp_path: Path) -> None:
    config = worlds.config(
        saved("bert", num_labels=2), task__kind="classification", privacy__rounds=1
    )
    found = run(config, tmp_path, users=20, entities=20)
    assert len(found.findings) == 4
    assert all(np.isfinite(one.scores).all() and any(one.scores) for one in found.findings)


def test_an_audit_that_was_killed_goes_on(
    saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = worlds.config(
        saved("llama"), privacy__method="noiseless", privacy__rounds=5, run__checkpoint_seconds=0
    )
    natural = worlds.training_data(tmp_path / "corpus", held_out=False)
    options: dict[str, Any] = {
        "data": natural,
        "users": 20,
        "entities": 0,
        "refresh": 2,
        "seed": 0,
    }
    real, out = Noiseless.round, tmp_path / "audit"

    def killed(self: Noiseless, number: int, attempt: Attempt) -> Gradient:
        if number == 3:
            raise RuntimeError("killed")
        return real(self, number, attempt)

    monkeypatch.setattr(Noiseless, "round", killed)
    with pytest.raises(RuntimeError, match="killed"):
        audit(config, out, **options)
    monkeypatch.undo()
    coins = (out / CANARIES).read_bytes()
    with pytest.raises(UserError, match="holds an audit already; continue it with `resume=True`"):
        audit(config, out, **options)
    found = audit(config, out, resume=True, **options)
    assert found is not None
    assert (out / CANARIES).read_bytes() == coins
    assert (found.rounds, found.rounds_seen) == (5, 4)  # round 2 was seen, but not kept
    said: list[str] = []
    assert audit(config, out, resume=True, say=said.append, **options) == found
    assert said == ["this audit is finished; nothing is left to do"]
    with pytest.raises(UserError, match="holds a finished audit; choose another"):
        audit(config, out, **options)


BAD: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "method": (
        {"privacy__method": "uedp-alg"},
        {},
        "privacy.method uedp-alg: this audit attacks gradients",
    ),
    "few": ({}, {"users": 7}, "users 7: fewer than 20"),
    "none": ({}, {"users": 0, "entities": 0}, "there is nothing to guess"),
    "holders": ({}, {"holders": 0}, "holders 0"),
    "claim": ({}, {"claimed": -1.0}, "claimed -1"),
    "confidence": ({}, {"confidence": 1.0}, "confidence 1"),
    "resume": ({}, {"resume": True}, "holds no audit to resume"),
    "users": ({"privacy__user_rate": 0.001}, {}, "too few to hide among"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_audited_is_refused_and_leaves_nothing(
    saved: Saved, tmp_path: Path, case: str
) -> None:
    changes, options, said = BAD[case]
    config = worlds.config(saved("llama"), **changes)
    with pytest.raises(UserError, match=said):
        run(config, tmp_path, **options)
    assert not (tmp_path / "audit").exists()


def test_a_folder_with_something_else_in_it_is_refused(saved: Saved, tmp_path: Path) -> None:
    (tmp_path / "audit").mkdir()
    (tmp_path / "audit" / "letter").write_text("dear")
    with pytest.raises(UserError, match="exists and is not an audit"):
        run(worlds.config(saved("llama")), tmp_path)
    assert [path.name for path in (tmp_path / "audit").iterdir()] == ["letter"]
