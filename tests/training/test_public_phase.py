"""Public text first: it spends nothing, resumes at any moment, and is on the certificate."""

import json
import signal
from dataclasses import replace

import numpy as np
import peft
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from tests.training import victim, worlds
from tests.training.runs import metrics, refused, same_tensors, spent, stopping_after
from uedp.accounting import certificate as certificates
from uedp.accounting.chain import read_chain
from uedp.accounting.ledger import CorpusLedger
from uedp.errors import UserError
from uedp.training import checkpoint, loop, optimise, public_phase
from uedp.training.build import prepare
from uedp.training.config import load_config
from uedp.training.datasets import Texts
from uedp.training.engine import PrivacyEngine
from uedp.training.lineage import model_ancestors
from uedp.training.public_phase import public_steps, sentences_of_step
from uedp.training.run_dir import CONFIG, RESULT

STEPS = 5
OPTIONS = {
    "model__train": "lora",
    "model__rank": 2,
    "public__steps": STEPS,
    "public__sentences": 3,
    "public__rate": 0.02,
    "optimiser__rate": 0.02,
    "privacy__seed": 1,
}


@pytest.fixture
def train_public(train, tmp_path):
    """Train with public text first, from a seed unless asked otherwise."""

    def run_config(out="run", *, public=None, data=None, **changes):
        data = data or worlds.training_data(tmp_path / "corpus")
        data = replace(data, public=public or worlds.public_text())
        outcome = train(out, data=data, **OPTIONS | changes)
        run_config.said = train.said
        return outcome

    return run_config


def test_a_run_learns_from_public_text_first(train_public, tmp_path):
    outcome = train_public(privacy__seed=None, public__declared_by="the newspaper")
    folder = tmp_path / "run"
    assert outcome.finished
    assert (outcome.before["perplexity"], outcome.after["perplexity"]) > (0, 0)
    # random weights: any English is better than none
    assert outcome.public["perplexity"] < outcome.before["perplexity"]
    assert json.loads((folder / RESULT).read_text())["public"] == outcome.public
    curve = metrics(folder / "public")
    assert [row["round"] for row in curve] == list(range(1, STEPS + 1))
    assert curve[-1]["loss"] < curve[0]["loss"]
    assert len(metrics(folder)) == 4
    assert not (folder / "public" / "checkpoints").exists()
    assert f"after {STEPS} steps on public text: perplexity" in "\n".join(train_public.said)
    # the public text is on the certificate, in words, and the rounds are what was spent
    stated = outcome.certificate
    assert stated.private
    text = stated.setup.public
    assert (text.name, text.sentences, text.steps) == ("weather.txt", 4, STEPS)
    assert text.digest == worlds.public_text().digest
    (caveat,) = [line for line in stated.caveats if "weather.txt" in line]
    assert "declared public by the newspaper: texts in it are not protected" in caveat
    assert f"({4} sentences, SHA-256 {text.digest[:12]}; {STEPS} steps of 3 sentences)" in caveat
    assert caveat in stated.statement
    assert any("declared public" in line for line in stated.not_protected)
    assert certificates.verify(folder, corpus=tmp_path / "corpus") == stated
    questions = certificates.not_checked(stated, True, True)
    assert any("somebody declared it so" in line for line in questions)
    assert any("`public=...`" in line for line in questions)


def test_half_precision_learns_from_public_text_what_float32_does(train_public):
    options = {"public__steps": 12, "public__rate": 3e-3}
    whole = train_public("whole", run__precision="float32", **options)
    half = train_public("half", run__precision="bfloat16", **options)
    assert half.public["perplexity"] == pytest.approx(whole.public["perplexity"], rel=0.02)
    assert whole.public["perplexity"] < 0.9 * whole.before["perplexity"]


def test_gradients_of_public_steps_are_cut(train_public, monkeypatch):
    real, factors, norms = public_phase._gradient, iter([1.0, 1e4, 1.0, 1e4, 1.0]), []

    def large(*given):
        gradient, loss = real(*given)
        factor = next(factors)
        return [part * factor for part in gradient], loss

    class Noted(optimise.Adam):
        def step(self, gradients, rate, deviation):
            norms.append(float(torch.nn.utils.get_total_norm(gradients)))
            super().step(gradients, rate, deviation)

    monkeypatch.setattr(public_phase, "_gradient", large)
    monkeypatch.setattr(optimise, "Adam", Noted)
    train_public(privacy__rounds=1)
    of_public = norms[:STEPS]
    assert of_public[1] == pytest.approx(1, rel=1e-3)
    assert of_public[3] == pytest.approx(1, rel=1e-3)
    assert max(of_public) < 1.01


def test_public_text_that_makes_it_worse_is_told(train_public, monkeypatch):
    train_public("good")
    assert "made the model worse" not in "\n".join(train_public.said)
    real = public_phase._gradient

    def upwards(*given):
        gradient, loss = real(*given)
        return [-part for part in gradient], loss

    monkeypatch.setattr(public_phase, "_gradient", upwards)
    train_public("bad")
    assert "warning: the public text made the model worse" in "\n".join(train_public.said)


def test_public_text_spends_nothing(train_public, train, tmp_path):
    first = train_public(privacy__seed=None).certificate
    plain = train("plain", data=worlds.training_data(tmp_path / "other")).certificate
    assert first.epsilon == plain.epsilon
    assert spent(tmp_path / "run") == spent(tmp_path / "plain")
    kinds = [record["kind"] for record in read_chain(tmp_path / "run" / "ledger.jsonl")[0]]
    assert kinds.index("public") < kinds.index("rounds")
    assert kinds.count("public") == 1
    (entry,) = CorpusLedger(tmp_path / "corpus").entries()
    assert (entry.run, entry.counted) == (first.run, 4)
    assert plain.setup.public is None
    assert not any("public" in line for line in plain.caveats)


@pytest.mark.parametrize(("train_what", "done"), [("lora", 2), ("lora-b", 4), ("full", 2)])
def test_a_run_stopped_in_either_phase_ends_the_same(train_public, tmp_path, train_what, done):
    options = {"model__train": train_what, "privacy__rounds": 6}
    whole = train_public("whole", **options)
    stopped = train_public("broken", progress=stopping_after(done), **options)
    assert not stopped.finished
    assert stopped.rounds == 0
    assert stopped.certificate.rounds_spent == 0
    assert f"stopped with {done} of {STEPS} steps on public text" in train_public.said[-1]
    assert spent(tmp_path / "broken") == []
    finished = train_public("broken", resume=True, **options)
    assert finished.before == whole.before
    assert finished.public == whole.public
    assert same_tensors(whole.model.state_dict(), finished.model.state_dict())
    assert [row["round"] for row in metrics(tmp_path / "broken" / "public")] == [1, 2, 3, 4, 5]


def test_a_run_stopped_in_its_rounds_keeps_what_was_public(train_public, tmp_path):
    whole = train_public("whole", privacy__rounds=STEPS + 3)
    stopped = train_public("broken", privacy__rounds=STEPS + 3, progress=stopping_after(STEPS + 1))
    assert (stopped.finished, stopped.rounds) == (False, STEPS + 1)
    finished = train_public("broken", resume=True, privacy__rounds=STEPS + 3)
    assert same_tensors(whole.model.state_dict(), finished.model.state_dict())
    assert finished.public == whole.public == stopped.public


@pytest.mark.parametrize("point", victim.PUBLIC_POINTS)
def test_a_run_killed_in_public_text_resumes(point, saved, tmp_path, monkeypatch):
    monkeypatch.setattr("uedp.accounting.statement.MISSED_CASES", ())
    changes = OPTIONS | {"privacy__rounds": 2, "run__checkpoint_seconds": 0}
    config = worlds.config(saved(), **changes)
    out, corpus = tmp_path / "run", tmp_path / "corpus"
    killed = victim.process(config, out, corpus, False, point, 3 if point == "in a step" else 1)
    killed.join(60)
    assert killed.exitcode == -signal.SIGKILL
    assert spent(out) == []

    def finished(out, corpus, resume):
        data = worlds.training_data(corpus, public=worlds.public_text())
        return loop.run(config, out, data=data, resume=resume)

    broken = finished(out, corpus, True)
    whole = finished(tmp_path / "whole", tmp_path / "other", False)
    assert same_tensors(whole.model.state_dict(), broken.model.state_dict())
    assert spent(out) == [(0, 1), (1, 1)]
    assert certificates.verify(out, corpus=corpus) == broken.certificate
    kinds = [record["kind"] for record in read_chain(out / "ledger.jsonl")[0]]
    assert kinds.count("public") == 1
    assert not (out / "public" / "checkpoints").exists()


def test_nothing_private_reaches_the_public_steps(train_public, tmp_path):
    """The weights after public text are the same for other users, texts and entities."""
    learned = []
    for users in (worlds.USERS, worlds.USERS + 7):
        texts = [text.replace("day", "night") if users > worlds.USERS else text
                 for text in worlds.texts(users)]  # fmt: skip
        data = worlds.training_data(
            tmp_path / f"corpus-{users}",
            train=Texts(texts, worlds.labels(users)),
            incidence=worlds.incidence(users),
        )
        out = f"run-{users}"
        train_public(out, data=data, progress=stopping_after(STEPS), privacy__seed=None)
        learned.append(_public_part(tmp_path / out))
    assert all(value.any() for value in learned[0].values())
    assert same_tensors(*learned)


def _public_part(folder):
    """What adapters learned from public text, from the checkpoint before the first round."""
    tensors, info = checkpoint.load_newest_checkpoint(folder)
    assert info["done"] == 0
    return {n.removeprefix("public."): v for n, v in tensors.items() if n.startswith("public.")}


def test_the_rounds_start_with_new_adapters(train_public, tmp_path):
    stopped = train_public(progress=stopping_after(STEPS))  # the last step is taken
    assert (stopped.finished, stopped.rounds) == (False, 0)
    tensors, _ = checkpoint.load_newest_checkpoint(tmp_path / "run")
    learned = _public_part(tmp_path / "run")
    second = [name for name in learned if "lora_B" in name]
    assert second
    assert not any(tensors[name].any() for name in second)
    assert all(learned[name].any() for name in second)
    assert all((learned[name] != tensors[name]).any() for name in learned)


def test_the_saved_adapter_has_both_parts(train_public, saved, tmp_path):
    outcome = train_public(privacy__noise=0.1)
    base = transformers.AutoModelForCausalLM.from_pretrained(saved())
    adapted = peft.PeftModel.from_pretrained(base, tmp_path / "run" / "adapter")
    assert adapted.peft_config["default"].r == 4
    merged = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "run")
    ids = torch.arange(8).reshape(1, 8)
    with torch.no_grad():
        expected = merged(ids).logits
        plain = transformers.AutoModelForCausalLM.from_pretrained(saved())(ids).logits
        torch.testing.assert_close(adapted(ids).logits, expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(outcome.model.eval()(ids).logits, expected, rtol=1e-4, atol=1e-5)
        assert not torch.allclose(plain, expected, atol=1e-3)


def test_another_public_text_is_not_resumed(train_public):
    train_public(progress=stopping_after(2))
    other = worlds.public_text(texts=["it rains in june and july", *worlds.public_text().texts[1:]])
    message = refused(lambda: train_public(public=other, resume=True))
    assert "setup.public.digest is" in message
    message = refused(lambda: train_public(resume=True, public__steps=9))
    assert "public.steps is 5, not 9" in message


def test_a_custom_loop_cannot_leave_public_text_out(saved, tmp_path):
    config = worlds.config(saved(), **OPTIONS)
    data = worlds.training_data(tmp_path / "corpus", public=worlds.public_text())
    with PrivacyEngine.from_config(config, tmp_path / "run", data=data) as engine:
        private = engine.attach()
        with pytest.raises(UserError, match="planned to train on public text before"):
            next(private.rounds())
    assert spent(tmp_path / "run") == []


def test_a_loss_that_is_not_finite_is_refused(train_public, monkeypatch):
    real = public_phase.mean_gradient
    monkeypatch.setattr(
        public_phase, "mean_gradient", lambda *given: (real(*given)[0], float("nan"))
    )
    assert "step 1 is not finite; lower public.rate, which is 0.02" in refused(train_public)


def test_what_was_declared_public_cannot_be_protected_later(train_public, train, tmp_path):
    """Whoever trains on a text without noise cannot then state an epsilon for it."""
    texts = [f"rain in the {number} is rare in may" for number in range(worlds.USERS * worlds.EACH)]
    public = worlds.public_text(texts=texts, labels=[None] * len(texts))
    first = train_public("first", public=public, privacy__seed=None)
    ancestors = model_ancestors(str(first.folder))
    assert [one.what for one in ancestors] == ["on text declared public", "rotation"]
    data = worlds.training_data(
        tmp_path / "elsewhere",
        train=Texts(texts, [None] * len(texts)),
        incidence=worlds.incidence(worlds.USERS // 2, 2 * worlds.EACH),  # by others, it seems
    )
    message = refused(lambda: train("second", model=first.folder, data=data))
    assert "has learned from this corpus already" in message
    assert "on text declared public" in message
    assert not (tmp_path / "second").exists()


def test_public_text_of_an_earlier_run_is_a_caveat(train_public, train, tmp_path):
    first = train_public("first", privacy__seed=None)
    users = worlds.USERS + 1
    data = worlds.training_data(
        tmp_path / "others",
        train=Texts(worlds.texts(users), worlds.labels(users)),
        incidence=worlds.incidence(users),
    )
    later = train("later", model=first.folder, data=data).certificate
    assert later.private
    assert later.setup.earlier_runs == "on other corpora"
    assert later.setup.public is None


@given(st.integers(0, 40), st.integers(1, 20), st.integers(1, 15), st.integers(0, 3))
def test_steps_use_every_sentence_before_one_twice(step, count, of, seed):
    taken = np.concatenate([sentences_of_step(n, count, of, seed) for n in range(step + 1)])
    assert len(taken) == (step + 1) * count
    for start in range(0, len(taken), of):
        part = taken[start : start + of]
        assert len(set(part.tolist())) == len(part)
        assert set(part.tolist()) <= set(range(of))


@pytest.mark.parametrize(
    ("seconds", "sentences", "steps"),
    [
        (0.001, 4, 4),  # three passes of four sentences in steps of three
        (0.001, 3000, 500),  # as many as are worth it
        (60.0, 3000, 20),  # in a third of an hour
        (9999.0, 3000, 1),
    ],
)
def test_steps_are_chosen_by_text_and_time(saved, tmp_path, monkeypatch, seconds, sentences, steps):
    monkeypatch.setattr(public_phase, "_step_seconds", lambda ready: seconds)
    config = worlds.config(saved(), **OPTIONS | {"public__steps": None})
    text = worlds.public_text(texts=["so it rains"] * sentences, labels=[None] * sentences)
    data = worlds.training_data(tmp_path / "corpus", public=text)
    ready = prepare(config, data)
    assert public_steps(ready) == (steps, steps * seconds)
    assert public_steps(replace(ready, public=None)) == (0, 0.0)


def test_words_of_the_corpus_do_not_decide_the_steps(saved, tmp_path, monkeypatch):
    """How long a step takes would tell how many words there are."""
    monkeypatch.setattr(public_phase, "_step_seconds", lambda ready: 9999.0)
    config = worlds.config(saved(), **OPTIONS | {"public__steps": None})
    data = worlds.training_data(tmp_path / "corpus", public=worlds.public_text())
    ready = prepare(config, data)
    assert public_steps(ready)[0] == 1
    for source, steps in (("private", 4), ("corpus", 4), ("public", 1)):
        words = config.vocabulary.model_copy(update={"source": source})
        other = config.model_copy(update={"vocabulary": words})
        assert public_steps(replace(ready, config=other))[0] == steps


def test_chosen_steps_are_kept_when_a_run_resumes(train_public, tmp_path, monkeypatch):
    options = {"public__steps": None, "run__time": 30.0}
    monkeypatch.setattr(public_phase, "_step_seconds", lambda ready: 2.5)
    train_public(progress=stopping_after(2), **options)
    assert load_config(tmp_path / "run" / CONFIG).public.steps == 4
    monkeypatch.setattr(public_phase, "_step_seconds", None)  # not measured again
    outcome = train_public(resume=True, **options)
    assert outcome.certificate.setup.public.steps == 4


def test_a_run_without_noise_after_public_text(train_public, tmp_path):
    options = {"privacy__method": "noiseless", "privacy__rounds": 3}
    stopped = train_public(progress=stopping_after(2), **options)
    assert (stopped.finished, stopped.certificate) == (False, None)
    assert train_public(resume=True, **options).finished
    (entry,) = CorpusLedger(tmp_path / "corpus").entries()
    assert entry.exposed  # as without public text
    assert [one.what for one in model_ancestors(str(tmp_path / "run"))] == [
        "on text declared public",
        "noiseless",
    ]


def test_measuring_a_step_changes_nothing(saved, tmp_path):
    config = worlds.config(saved(dropout=0.2), **OPTIONS | {"public__sentences": 40})
    data = worlds.training_data(tmp_path / "corpus", public=worlds.public_text())
    ready = prepare(config, data)
    before = {name: p.clone() for name, p in ready.model.state_dict().items()}
    state = torch.get_rng_state()
    assert public_steps(ready)[1] > 0
    assert same_tensors(before, ready.model.state_dict())
    assert torch.equal(state, torch.get_rng_state())
    assert all(p.grad is None for p in ready.model.parameters())
