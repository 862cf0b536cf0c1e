"""Interrupts inside a round: nothing is charged, and the round is repeated as it was."""

import os
import shutil
import signal
import time

import pytest
import torch

from tests.models import tiny
from tests.training import worlds
from tests.training.runs import RoundWatcher, metrics, spent
from uedp.accounting import certificate as certificates
from uedp.corpus.sentence import Sentence
from uedp.entities.detection import Detection, detect
from uedp.mechanism import release as releasing
from uedp.mechanism import sampling
from uedp.methods import Attempt, ClippedMethod, rotation, uedp_alg
from uedp.training import checkpoint, engine
from uedp.training.round_key import FILE

SMALL = {"run__tokens_at_once": 64}  # several batches in a round


class Draws:
    """Everything that decided the sums of a run's rounds, and the sums before and after noise."""

    def __init__(self, monkeypatch):
        self.who, self.sums, self.noisy, self.masks = [], [], [], []
        draw, add = rotation.draw, releasing.add_once_
        release = ClippedMethod._losses

        def drawn(*arguments):
            found = draw(*arguments)
            usable = arguments[4].tobytes()
            self.who.append((found.users.tolist(), found.sentences.values.tolist(), usable))
            self.masks.append([])
            return found

        def added(noise, sums, deviation):
            self.sums.append([s.clone() for s in sums])
            add(noise, sums, deviation)
            self.noisy.append([s.clone() for s in sums])

        def losses(method, sentences):
            if self.masks:
                self.masks[-1].append(torch.get_rng_state().numpy().tobytes())
            return release(method, sentences)

        monkeypatch.setattr(rotation, "draw", drawn)
        monkeypatch.setattr(releasing, "add_once_", added)
        monkeypatch.setattr(ClippedMethod, "_losses", losses)


def interrupting(round_: int, batch: int, number=signal.SIGINT) -> RoundWatcher:
    """A bar that sends a signal when so many batches of a round (from 1) are done."""
    watcher = RoundWatcher()

    def within(part, text):
        watcher.texts.append((part, text))
        if text.startswith(f"round {round_} of") and f"batch {batch + 1} of" in text:
            os.kill(os.getpid(), number)

    watcher.within = within
    return watcher


def same(one, other) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_round_is_not_spent_and_is_repeated(
    number, train, saved, tmp_path, monkeypatch
):
    draws = Draws(monkeypatch)
    options = {"model": saved(dropout=0.2), **SMALL}
    outcome = train(progress=interrupting(3, 1, number), **options)
    assert not outcome.finished
    assert outcome.rounds == 2
    assert spent(tmp_path / "run") == [(0, 1), (1, 1)]
    assert outcome.certificate.rounds_spent == 2
    assert train.said[-2:] == [
        "stopping; this round is not spent, and is done again when the run resumes",
        "stopped with 2 of 4 rounds done; continue with `resume=True`",
    ]
    assert checkpoint.load_newest_checkpoint(tmp_path / "run")[1]["done"] == 2
    assert len(draws.who) == 3
    assert len(draws.sums) == 2  # no noise was drawn for the third
    torch.manual_seed(99)
    assert train(resume=True, **options).finished
    assert spent(tmp_path / "run") == [(n, 1) for n in range(4)]
    assert [row["round"] for row in metrics(tmp_path / "run")] == [1, 2, 3, 4]
    # participants, coins, lending and masks are the same; those of other rounds are not
    assert draws.who[3] == draws.who[2]
    assert draws.masks[3][0] == draws.masks[2][0]
    assert draws.masks[3][0] != draws.masks[1][0]
    others = [draws.who[n] for n in (0, 1, 2, 4)]
    assert all(a != b for n, a in enumerate(others) for b in others[:n])
    assert not (tmp_path / "run" / FILE).exists()
    certificates.verify(tmp_path / "run", corpus=tmp_path / "corpus")


def test_a_repeated_round_has_the_same_sum_and_fresh_noise(train, saved, tmp_path, monkeypatch):
    """Interrupted twice in the same round, in copies of the same run: equal before the noise."""
    draws = Draws(monkeypatch)
    options = {"model": saved(dropout=0.2), **SMALL}
    train(progress=interrupting(2, 1), **options)
    train(progress=interrupting(2, 2), resume=True, **options)
    assert spent(tmp_path / "run") == [(0, 1)]
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    shutil.copytree(tmp_path / "corpus", tmp_path / "other")
    train(resume=True, **options)
    train("copy", resume=True, data=worlds.training_data(tmp_path / "other"), **options)
    assert draws.who[1] == draws.who[2] == draws.who[3] == draws.who[6]
    assert same(draws.sums[1], draws.sums[4])
    assert not same(draws.noisy[1], draws.noisy[4])
    assert draws.who[4] != draws.who[7]  # the round after it is each one's own


def test_the_key_of_a_round_says_nothing_about_its_noise(train, tmp_path, monkeypatch):
    """All that is on disk while a round is computed gives its sum, and not what is released."""
    contents = []

    def within(part, text):
        if not contents:
            folder = tmp_path / "run"
            contents.extend(p.read_bytes() for p in folder.rglob("*") if p.is_file())

    watcher = RoundWatcher()
    watcher.within = within
    keys, token = [], engine.RoundKey.begin
    monkeypatch.setattr(
        engine.RoundKey, "begin", lambda self, n: keys.append(token(self, n)) or keys[-1]
    )
    urandom, given = os.urandom, []

    def spy(size):
        given.append(urandom(size))
        return given[-1]

    monkeypatch.setattr(os, "urandom", spy)
    train(progress=watcher, privacy__rounds=1)
    assert any(keys[0].hex().encode() in content for content in contents)
    noise = [secret for secret in given if len(secret) == 32 and secret != keys[0]]
    assert len(noise) >= 1  # a key that was drawn for the noise alone
    for secret in noise:
        assert not any(secret in c or secret.hex().encode() in c for c in contents)


def test_a_signal_after_the_sum_waits_for_the_round(train, tmp_path, monkeypatch):
    add = releasing.add_once_

    def interrupted(*arguments):
        if len(spent(tmp_path / "run")) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        add(*arguments)

    monkeypatch.setattr(releasing, "add_once_", interrupted)
    outcome = train()
    assert outcome.rounds == 2
    assert checkpoint.load_newest_checkpoint(tmp_path / "run")[1]["done"] == 2
    assert "stopping after this round; interrupt again to stop at once" in train.said
    monkeypatch.undo()
    assert train(resume=True).finished


def test_a_signal_while_the_ledger_is_written_waits_for_the_round(train, tmp_path, monkeypatch):
    spend = engine.RunLedger.spend

    def interrupted(self):
        os.kill(os.getpid(), signal.SIGINT)
        spend(self)

    monkeypatch.setattr(engine.RunLedger, "spend", interrupted)
    outcome = train()
    assert outcome.rounds == 1
    assert spent(tmp_path / "run") == [(0, 1)]


def test_a_signal_while_a_round_begins_does_not_wait_for_its_end(train, tmp_path, monkeypatch):
    begin = engine.RoundKey.begin

    def interrupted(self, number):
        if number == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return begin(self, number)

    monkeypatch.setattr(engine.RoundKey, "begin", interrupted)
    assert train().rounds == 1
    assert spent(tmp_path / "run") == [(0, 1)]


def test_a_second_signal_stops_at_once(train, saved, tmp_path):
    """While the first one's checkpoint is written, or in a round that cannot be abandoned."""
    watcher = interrupting(2, 1)
    said = []

    def say(line):
        said.append(line)
        if line.startswith("stopping; "):
            os.kill(os.getpid(), signal.SIGTERM)

    began = time.monotonic()
    with pytest.raises(SystemExit) as stop:
        train(progress=watcher, say=say, **SMALL)
    assert stop.value.code == 128 + signal.SIGTERM
    assert time.monotonic() - began < 30
    assert spent(tmp_path / "run") == [(0, 1)]
    # no checkpoint was written, so the round cannot be repeated with the weights that it began with
    assert train(resume=True, **SMALL).finished
    assert (
        "round 2 was begun and cannot be repeated (the weights that it began with are lost): it "
        "counts as spent"
    ) in train.said
    assert spent(tmp_path / "run") == [(n, 1) for n in range(4)]


@pytest.mark.parametrize("lost", ["deleted", "of another run", "of an earlier round"])
def test_a_round_without_its_key_is_never_drawn_again_for_free(lost, train, tmp_path):
    train(progress=interrupting(1, 1), **SMALL)
    early = (tmp_path / "run" / FILE).read_text()
    train(progress=interrupting(3, 1), resume=True, **SMALL)
    path = tmp_path / "run" / FILE
    if lost == "deleted":
        path.unlink()
    elif lost == "of another run":
        path.write_text(path.read_text().replace('"run": "', '"run": "x'))
    else:
        path.write_text(early)
    outcome = train(resume=True, **SMALL)
    assert outcome.finished
    assert f"round 3 was begun and cannot be repeated ({FILE} is not as this run left it): it " in (
        "\n".join(train.said)
    )
    assert spent(tmp_path / "run") == [(n, 1) for n in range(4)]
    assert [row["round"] for row in metrics(tmp_path / "run")] == [1, 2, 4]


def test_a_round_that_fails_is_repeated_with_the_same_participants(
    train, saved, tmp_path, monkeypatch
):
    """Out of memory, for one, depends on who was drawn: drawing anew would prefer small draws."""
    draws = Draws(monkeypatch)
    losses, calls = ClippedMethod._losses, []

    def fails(method, sentences):
        calls.append(len(sentences))
        if len(draws.who) == 3:
            raise torch.OutOfMemoryError
        return losses(method, sentences)

    with monkeypatch.context() as patch:
        patch.setattr(ClippedMethod, "_losses", fails)
        with pytest.raises(torch.OutOfMemoryError):
            train(**SMALL)
    assert spent(tmp_path / "run") == [(0, 1), (1, 1)]
    assert train(resume=True, run__tokens_at_once=32).finished  # in smaller batches
    assert draws.who[3] == draws.who[2]
    assert spent(tmp_path / "run") == [(n, 1) for n in range(4)]


def test_stopping_by_the_draw_does_not_choose_among_draws(tmp_path, monkeypatch):
    """Somebody interrupts every round in which user 0 is drawn, as often as it takes.

    Drawn anew, the user would never take part; as it is, every attempt has the same draw.
    """
    from uedp.methods.randomness import Randomness

    keys = [os.urandom(32) for _ in range(400)]
    taken = 0
    for key in keys:
        for _ in range(3):  # attempts
            with Randomness(None, key).of_round(0, torch.device("cpu")) as (uniforms, _, _):
                users = sampling.draw_users(40, 0.25, uniforms)
        taken += 0 in users
    assert 60 < taken < 145  # 100 +- 4.6 deviations; 6 of 400 if each attempt were its own draw


@pytest.mark.parametrize("method", ["user-level", "noiseless"])
def test_other_clipped_and_plain_rounds_are_abandoned_too(method, train, tmp_path):
    options = {"privacy__method": method, **SMALL}
    outcome = train(progress=interrupting(2, 1), **options)
    assert outcome.rounds == 1
    assert train(resume=True, **options).finished
    assert [row["round"] for row in metrics(tmp_path / "run")] == [1, 2, 3, 4]


def test_a_method_that_moves_the_weights_finishes_its_round(train, tmp_path, monkeypatch):
    assert not uedp_alg.UedpAlg.abandonable
    weighted = uedp_alg.LocalUpdate.weighted_sum

    def interrupted(self, *arguments):
        os.kill(os.getpid(), signal.SIGINT)
        return weighted(self, *arguments)

    monkeypatch.setattr(uedp_alg.LocalUpdate, "weighted_sum", interrupted)
    outcome = train(privacy__method="uedp-alg")
    assert outcome.rounds == 1
    assert spent(tmp_path / "run") == [(0, 1)]


def test_a_method_that_adds_noise_before_it_enters_is_refused(train, tmp_path, monkeypatch):
    round_ = ClippedMethod.round
    monkeypatch.setattr(ClippedMethod, "round", lambda self, number, attempt: round_(self, number))
    with pytest.raises(engine.UserError, match=r"added noise before `enter\(\)`"):
        train()
    assert spent(tmp_path / "run") == [(0, 1)]  # and is charged: the noisy sum did exist


def test_a_loop_of_ones_own_is_interrupted_for_free(tmp_path, monkeypatch):
    draws = Draws(monkeypatch)
    made = made_engine(tmp_path)
    private = made.attach(tiny.gpt2(), tiny.tokenizer())
    optimizer = torch.optim.SGD(private.parameters, 0.1)
    losses = ClippedMethod._losses

    def interrupts(method, sentences):
        if len(draws.who) == 2:
            raise KeyboardInterrupt
        return losses(method, sentences)

    steps = private.rounds(optimizer)
    next(steps)
    optimizer.step()
    weights = [p.detach().clone() for p in private.parameters]
    with monkeypatch.context() as patch:
        patch.setattr(ClippedMethod, "_losses", interrupts)
        with pytest.raises(KeyboardInterrupt):
            next(steps)
    assert spent(tmp_path / "run") == [(0, 1)]
    # in the same process, and in another one
    assert next(private.rounds(optimizer)).round == 2
    assert draws.who[2] == draws.who[1]
    assert spent(tmp_path / "run") == [(0, 1), (1, 1)]
    tensors, info = checkpoint.load_newest_checkpoint(tmp_path / "run")
    assert info["done"] == 1
    assert same(weights, [tensors[n] for n, _ in private.model.named_parameters()])
    made.close()


@pytest.mark.parametrize("older", ["before this round", "of the round before", "a whole folder"])
def test_an_older_key_file_is_no_way_to_draw_anew(older, train, tmp_path):
    """A round begins, is interrupted, and the file is put back as it was before that."""
    run, path, copies = tmp_path / "run", tmp_path / "run" / FILE, {}

    def keep(done):
        if done == 2:
            copies["before this round"] = path.read_text()
            shutil.copytree(run, tmp_path / "backup")

    watcher = interrupting(3, 1)
    within = watcher.within

    def seen(part, text):
        if text.startswith("round 2 of"):
            copies["of the round before"] = path.read_text()
        within(part, text)

    watcher.after, watcher.within = keep, seen
    train(progress=watcher, run__checkpoint_seconds=0, **SMALL)
    assert spent(run) == [(0, 1), (1, 1)]
    if older == "a whole folder":
        for name in (FILE, "ledger.jsonl"):
            shutil.copyfile(tmp_path / "backup" / name, run / name)
        train.said.clear()
    else:
        path.write_text(copies[older])
    train(resume=True, **SMALL)
    assert f"round 3 was begun and cannot be repeated ({FILE} is not as this run left it)" in (
        "\n".join(train.said)
    )
    assert [row["round"] for row in metrics(run)] == [1, 2, 4]


def test_a_method_that_draws_without_the_key_is_refused(train, tmp_path, monkeypatch):
    """Its rounds would be drawn anew after every interruption."""
    round_ = ClippedMethod.round

    def draws_afresh(self, number, attempt):
        return round_(self, number, Attempt(enter=attempt.enter))

    monkeypatch.setattr(ClippedMethod, "round", draws_afresh)
    with pytest.raises(engine.UserError, match="its round was not drawn by the key of the attempt"):
        train()
    assert spent(tmp_path / "run") == [(0, 1)]


def made_engine(tmp_path, resume=False, say=lambda line: None):
    if not resume:
        pairs = enumerate(worlds.texts())
        sentences = [Sentence(f"user {place // worlds.EACH}", text) for place, text in pairs]
        detect(sentences, tmp_path / "corpus", Detection(["patterns"]))
    return engine.PrivacyEngine(
        tmp_path / "corpus",
        noise=1.0,
        rounds=3,
        run_dir=tmp_path / "run",
        user_rate=0.5,
        max_tokens=32,
        resume=resume,
        say=say,
    )


def test_a_first_round_is_not_repeated_with_the_weights_of_another_model(tmp_path, monkeypatch):
    """A process with a loop of its own is killed: nothing says which weights it began with."""
    draws = Draws(monkeypatch)
    made = made_engine(tmp_path)
    steps = made.attach(tiny.gpt2(), tiny.tokenizer()).rounds()
    with monkeypatch.context() as patch:
        patch.setattr(engine.PrivateRun, "save_checkpoint", lambda *arguments: None)  # killed
        patch.setattr(releasing, "add_once_", lambda *arguments: None)
        patch.setattr(ClippedMethod, "_losses", lambda *arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            next(steps)
    made.close()
    said = []
    again = made_engine(tmp_path, resume=True, say=said.append)
    model = tiny.gpt2()
    with torch.no_grad():
        next(model.parameters()).add_(1)
    assert next(again.attach(model, tiny.tokenizer()).rounds()).round == 2
    assert "round 1 was begun and cannot be repeated (the weights that it began with are lost)" in (
        "\n".join(said)
    )
    assert draws.who[1] != draws.who[0]
    again.close()


def test_a_loop_that_is_interrupted_after_the_entry_goes_on(tmp_path, monkeypatch):
    made = made_engine(tmp_path)
    private = made.attach(tiny.gpt2(), tiny.tokenizer())
    with monkeypatch.context() as patch:

        def interrupted(*arguments):
            raise KeyboardInterrupt

        patch.setattr(releasing, "add_once_", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(private.rounds())
    assert spent(tmp_path / "run") == [(0, 1)]
    assert [step.round for step in private.rounds()] == [2, 3]
    assert private.finished
