import dataclasses
import json
import math
import os
import shutil
import signal
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import transformers
import yaml
from safetensors import SafetensorError
from safetensors.torch import load_file

from tests.models import tiny
from tests.training import worlds
from uedp.accounting import certificate as certificates
from uedp.accounting.chain import read_chain
from uedp.accounting.ledger import CorpusLedger, close_run
from uedp.accounting.proven import epsilon
from uedp.errors import UserError
from uedp.methods import ClippedMethod
from uedp.methods.plain import Noiseless
from uedp.methods.uedp_alg import UedpAlg
from uedp.models.load import load_model
from uedp.training import build as building
from uedp.training import checkpoint, engine, loop, tasks, vectors
from uedp.training.build import _autocast, device_of, precision_of
from uedp.training.config import load_config, parse_config
from uedp.training.datasets import Texts
from uedp.training.metrics import FILE, Metrics
from uedp.training.plan import build_plan, rounding_margin
from uedp.training.run_dir import CONFIG, IDENTITY, RESULT

PRIVATE = ("rotation", "user-level", "uedp-alg")
OPEN = ("noiseless", "deidentified")


@pytest.fixture(autouse=True)
def quick_certificates(monkeypatch):
    """Without the table of missed mentions, which takes a second."""
    monkeypatch.setattr("uedp.accounting.statement.MISSED_CASES", ())


@pytest.fixture
def train(tmp_path, saved):
    """Run a config in a folder, on the usual material; collects what is said."""

    def command(out="run", *, resume=False, model=None, data=None, progress=None, **changes):
        command.said = []
        config = worlds.config(model or saved(), **changes)
        options = {} if progress is None else {"progress": progress}
        return loop.run(
            config,
            tmp_path / out,
            data=data or worlds.training_data(tmp_path / "corpus"),
            resume=resume,
            say=command.said.append,
            **options,
        )

    return command


class Watching:
    """A progress bar that calls back after every round."""

    def __init__(self, after=lambda done: None):
        self.after, self.notes = after, []

    @contextmanager
    def stage(self, name, total, unit) -> Iterator["Watching"]:
        self.resumed = None
        yield self

    def advance(self, items, position=None):
        if self.resumed is None:
            self.resumed = position
        else:
            self.after(position)

    def note(self, text):
        self.notes.append(text)


def stopping_after(done: int, number: int = signal.SIGINT, times: int = 1) -> Watching:
    def stop(position):
        if position == done:
            for _ in range(times):
                os.kill(os.getpid(), number)

    return Watching(stop)


class DeathError(Exception):
    """Stands in for a death; that of a process is in test_killed.py."""


@contextmanager
def dying_in(number: int, kind=ClippedMethod) -> Iterator[None]:
    """Rounds of a method die at a number, when they are spent and nothing is made of them yet."""
    round_ = kind.round

    def dies(self, at):
        if at == number:
            raise DeathError
        return round_(self, at)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "round", dies)
        yield


def spent(folder: Path):
    records, _ = read_chain(folder / "ledger.jsonl")
    return [(r["first"], r["count"]) for r in records if r["kind"] == "rounds"]


def metrics(folder: Path):
    return [json.loads(line) for line in (folder / FILE).read_text().splitlines()]


def weights(folder: Path):
    return load_file(folder / "model.safetensors")


def alike(one, other) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


def everything(*folders: Path):
    """Every file with its content and when it was written."""
    return {
        path: (path.read_bytes(), path.stat().st_mtime_ns)
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file()
    }


# --- a run from beginning to end -----------------------------------------------------------------


def test_rotation_with_little_noise_learns(train, tmp_path):
    outcome = train(
        privacy__noise=0.1,
        privacy__rounds=25,
        optimiser__rate=0.02,
        run__evaluate_every=10,
    )
    assert outcome.finished
    assert outcome.rounds == 25
    assert outcome.before["perplexity"] > 500  # random weights
    assert outcome.after["perplexity"] < 5
    rows = metrics(tmp_path / "run")
    assert [row["round"] for row in rows] == list(range(1, 26))
    assert [row["round"] for row in rows if "perplexity" in row] == [10, 20]
    assert rows[19]["perplexity"] < rows[9]["perplexity"] < outcome.before["perplexity"]
    result = json.loads((tmp_path / "run" / RESULT).read_text())
    assert result == {"before": outcome.before, "after": outcome.after, "rounds": 25}
    said = outcome.certificate.statement.splitlines()
    assert train.said[: len(said)] == said
    assert train.said[len(said) :] == [
        f"before training: perplexity {outcome.before['perplexity']:.4g}",
        f"after training: perplexity {outcome.after['perplexity']:.4g}",
    ]


@pytest.mark.parametrize("method", PRIVATE)
def test_private_methods_are_certified(method, train, tmp_path):
    outcome = train(privacy__method=method, privacy__rounds=2)
    assert certificates.verify(tmp_path / "run") == outcome.certificate
    assert outcome.certificate.private
    assert outcome.certificate.method == method
    assert (outcome.certificate.rounds_planned, outcome.certificate.rounds_spent) == (2, 2)
    assert "\n".join(train.said).startswith(outcome.certificate.statement)
    assert spent(tmp_path / "run") == [(0, 1), (1, 1)]
    (entry,) = CorpusLedger(tmp_path / "corpus").entries()
    assert (entry.run, entry.planned, entry.counted) == (outcome.certificate.run, 2, 2)
    assert entry.closed
    total = outcome.certificate.corpus_total
    assert (total.epsilon, total.runs) == (pytest.approx(outcome.certificate.epsilon), 1)


@pytest.mark.parametrize("method", OPEN)
def test_methods_without_noise_get_no_certificate(method, train, tmp_path):
    outcome = train(privacy__method=method, privacy__rounds=2)
    assert outcome.certificate is None
    assert outcome.finished
    assert train.said[0] == f"{method}: this run will have no privacy guarantee."
    files = {path.name for path in (tmp_path / "run").iterdir()}
    assert "ledger.jsonl" not in files
    assert certificates.CERTIFICATE not in files
    (entry,) = CorpusLedger(tmp_path / "corpus").entries()
    assert (entry.method, entry.exposed) == (method, "no noise was added")
    assert CorpusLedger(tmp_path / "corpus").epsilon(1e-5) == math.inf
    with pytest.raises(UserError, match="all runs on this corpus would come to inf"):
        train("later", privacy__corpus_budget=1e6)


@pytest.mark.parametrize(
    ("kind", "how"), [("gpt2", "full"), ("gpt2", "lora"), ("llama", "lora"), ("llama", "last:1")]
)
def test_the_folder_is_a_model_that_transformers_loads(kind, how, train, saved, tmp_path):
    outcome = train(model=saved(kind), model__train=how, privacy__rounds=2)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "run")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "run")
    ids = torch.tensor([tokenizer("the day is")["input_ids"]])
    with torch.no_grad():
        expected = outcome.model(input_ids=ids).logits
        before = getattr(tiny, kind)()(input_ids=ids).logits
        assert torch.allclose(loaded(input_ids=ids).logits, expected, atol=1e-4)
    assert not torch.allclose(before, expected, atol=1e-2)
    assert loaded.config.use_cache  # off in training only
    assert loaded.config.pad_token_id == tokenizer.pad_token_id is not None
    assert (tmp_path / "run" / "adapter").is_dir() == (how == "lora")
    assert not outcome.model.training
    text = (tmp_path / "run" / "config.json").read_text()
    assert str(tmp_path) not in text


def test_the_config_in_the_folder_is_the_whole_config(train, tmp_path, saved):
    train(privacy__rounds=1)
    values = yaml.safe_load((tmp_path / "run" / CONFIG).read_text())
    assert values["privacy"]["delta"] == 1e-5  # a default, spelled out
    assert worlds.config(saved(), privacy__rounds=1) == load_config(tmp_path / "run" / CONFIG)


def test_without_held_out_users_nothing_is_measured(train, tmp_path):
    quiet = worlds.training_data(tmp_path / "corpus", held_out=False)
    outcome = train(data=quiet, progress=stopping_after(2))
    assert (outcome.before, outcome.after) == ({}, {})
    # resuming begins where it stopped, although nothing was measured at the start
    finished = train(data=quiet, resume=True, run__checkpoint_seconds=0)
    assert (finished.before, finished.after) == ({}, {})
    assert [row["round"] for row in metrics(tmp_path / "run")] == [1, 2, 3, 4]
    assert [p.name for p in (tmp_path / "run" / "checkpoints").iterdir()] == ["00000004"]
    result = json.loads((tmp_path / "run" / RESULT).read_text())
    assert result == {"before": {}, "after": {}, "rounds": 4}


def test_training_drops_out_and_evaluation_does_not(train, monkeypatch):
    modes = {"trained": set(), "evaluated": set()}
    losses, evaluate = tasks.NextWord.losses, tasks.NextWord.evaluate

    def spy(self, model, *rest):
        modes["trained"].add(model.training)
        return losses(self, model, *rest)

    def spy_too(self, model, *rest):
        modes["evaluated"].add(model.training)
        return evaluate(self, model, *rest)

    monkeypatch.setattr(tasks.NextWord, "evaluate", spy_too)
    build = building.build_method

    def built(*arguments):
        method = build(*arguments)  # tries a few sentences, without dropout
        monkeypatch.setattr(tasks.NextWord, "losses", spy)
        return method

    monkeypatch.setattr(building, "build_method", built)
    train(privacy__rounds=3, run__evaluate_every=1)
    assert modes == {"trained": {True}, "evaluated": {False}}


def test_the_average_is_what_is_measured_and_saved(train, tmp_path, saved):
    outcome = train(optimiser__average=0.9, privacy__seed=1)
    state, _ = checkpoint.load_newest_checkpoint(tmp_path / "run")
    names = [name for name, _ in outcome.model.named_parameters()]
    found = dict(outcome.model.named_parameters())
    for number, name in enumerate(names):
        assert torch.equal(found[name].detach(), state[f"optimiser.average.{number}"])
        assert torch.equal(weights(tmp_path / "run")[name], found[name].detach())
    assert not torch.equal(state[names[0]], found[names[0]].detach())  # the last step's
    last = train("last", privacy__seed=1)
    assert last.after["perplexity"] != outcome.after["perplexity"]
    assert not [
        n for n in checkpoint.load_newest_checkpoint(tmp_path / "last")[0] if "average" in n
    ]


def test_the_callers_random_numbers_are_left_alone(train, saved):
    before = torch.get_rng_state()
    train(model=saved(dropout=0.2), privacy__rounds=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_evaluation_takes_as_much_at_once_as_fits(train, monkeypatch):
    rooms, evaluate = [], tasks.NextWord.evaluate

    def small(self, model, precision, room):
        rooms.append(room)
        if room > 200:
            raise torch.OutOfMemoryError
        return evaluate(self, model, precision, room)

    monkeypatch.setattr(tasks.NextWord, "evaluate", small)
    train(privacy__rounds=1, run__tokens_at_once=800)
    assert rooms == [800, 400, 200, 200]  # and remembers it

    def never(self, model, precision, room):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(tasks.NextWord, "evaluate", never)
    with pytest.raises(torch.OutOfMemoryError):
        train("other")


def test_a_new_model(train, tmp_path):
    """An AWD-LSTM, with dropout masks that sentences share; resumed, it is the same."""
    options = {
        "model": "awd-lstm",
        "model__tokenizer": "bytes",
        "model__sizes": {"embedding_size": 8, "hidden_size": 12, "num_hidden_layers": 2},
        "privacy__seed": 1,
    }
    whole = train("whole", **options)
    train("broken", progress=stopping_after(2), **options)
    broken = train("broken", resume=True, **options)
    assert alike(whole.model.state_dict(), broken.model.state_dict())
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "whole")
    assert alike(whole.model.state_dict(), loaded.state_dict())


def test_half_precision_on_a_cpu(train):
    outcome = train(run__precision="bfloat16", privacy__rounds=8, privacy__noise=0.1)
    stated = outcome.certificate
    assert stated.setup.precision == "bfloat16"
    # how far rounding may move others is charged, not excepted
    assert stated.parameters["rounding_margin"] > 10 * rounding_margin("float32", 10)
    assert outcome.after["perplexity"] < outcome.before["perplexity"] / 2
    assert all(p.dtype == torch.float32 for p in outcome.model.parameters())


# --- classification ------------------------------------------------------------------------------


def test_a_classifier_learns_and_loads(train, saved, tmp_path):
    outcome = train(
        model=saved("bert"),
        task__kind="classification",
        privacy__method="noiseless",
        privacy__rounds=12,
        model__dropout=0.0,
    )
    assert outcome.after["error rate"] < outcome.before["error rate"] or (
        outcome.after["error rate"] == 0
    )
    assert outcome.after["loss"] < outcome.before["loss"]
    loaded = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "run")
    assert loaded.config.id2label == {0: "named", 1: "plain"}
    words = transformers.AutoTokenizer.from_pretrained(tmp_path / "run")
    texts = ["the Ann is good", "the day is good"]
    guesses = []
    for text in texts:
        ids = torch.tensor([words(text)["input_ids"]])
        with torch.no_grad():
            guesses.append(loaded.config.id2label[int(loaded(input_ids=ids).logits.argmax())])
    wrong = sum(g != t for g, t in zip(guesses, ["named", "plain"], strict=True))
    assert (wrong == 0) == (outcome.after["error rate"] == 0)


@pytest.mark.parametrize("method", PRIVATE)
def test_classifiers_train_by_every_method(method, train, saved, tmp_path):
    outcome = train(
        model=saved("bert"),
        task__kind="classification",
        privacy__method=method,
        privacy__rounds=1,
        model__train="last:1",
    )
    assert certificates.verify(tmp_path / "run") == outcome.certificate
    assert outcome.after.keys() == {"error rate", "loss", "sentences"}


def test_a_probe_reads_each_text_once(train, saved, tmp_path, monkeypatch):
    read_chain, encode = [], vectors.Encoder._encode

    def counted(self, texts):
        read_chain.extend([len(texts)] * (len(texts) > 2))  # it is tried with two
        return encode(self, texts)

    monkeypatch.setattr(vectors.Encoder, "_encode", counted)
    options = {
        "model": saved("bert"),
        "task__kind": "classification",
        "model__train": "probe",
        "privacy__rounds": 20,
        "optimiser__rate": 0.1,
        "run__vectors": str(tmp_path / "vectors"),
    }
    plain = train(privacy__method="noiseless", **options)
    assert read_chain == [120, 15]
    assert plain.after["loss"] < plain.before["loss"] == pytest.approx(math.log(2), rel=1e-4)
    for method in PRIVATE:
        outcome = train(method, privacy__method=method, **options)
        assert certificates.verify(tmp_path / method) == outcome.certificate
    assert read_chain == [120, 15]  # what is kept is not read again
    # measured on texts, a saved probe does what it did on vectors
    loaded = load_model(tmp_path / "run", "classification")
    held = worlds.training_data(tmp_path / "corpus").held_out
    task = tasks.build_task(
        "classification", held.texts, held.labels, ["named", "plain"], loaded.tokenizer, 32
    )
    measured = task.evaluate(loaded.model, torch.no_grad, 1 << 12)
    assert measured["loss"] == pytest.approx(plain.after["loss"], rel=1e-4)


def test_a_saved_head_keeps_its_order(train, saved, tmp_path):
    first = train(
        "first",
        model=saved("bert"),
        task__kind="classification",
        task__labels=["plain", "named"],  # not in the order of the alphabet
        privacy__method="noiseless",
        privacy__rounds=12,
        model__dropout=0.0,
    )
    assert first.model.config.id2label == {0: "plain", 1: "named"}
    second = train(
        "second",
        model=tmp_path / "first",
        task__kind="classification",
        privacy__method="noiseless",
        privacy__rounds=1,
        optimiser__rate=1e-9,
    )
    assert second.model.config.id2label == {0: "plain", 1: "named"}
    assert second.before["loss"] == pytest.approx(first.after["loss"], rel=1e-4)


def test_that_labels_come_from_the_corpus_is_said(train, saved):
    options = {"task__kind": "classification", "privacy__rounds": 1, "model__train": "last:1"}
    found = train(model=saved("bert"), **options)
    assert any(line.startswith("labels found in the corpus: named, plain") for line in train.said)
    assert any(caveat.startswith("which labels there are") for caveat in found.certificate.caveats)
    declared = train("named", model=saved("bert"), task__labels=["named", "plain"], **options)
    assert not any(line.startswith("labels found") for line in train.said)
    assert not any("labels" in caveat for caveat in declared.certificate.caveats)


def test_labels_that_cannot_be(train, saved, tmp_path):
    corpus = tmp_path / "corpus"
    options = {"model": saved("bert"), "task__kind": "classification"}
    unknown = dataclasses.replace(worlds.training_data(corpus), held_out=Texts(["a"], ["other"]))
    with pytest.raises(UserError, match="label 'other': not one of named, plain"):
        train(data=unknown, **options)
    with pytest.raises(UserError, match="label 'plain': not one of named, x; correct it"):
        train(task__labels=["named", "x"], **options)
    same = worlds.training_data(corpus, train=Texts(worlds.texts(), ["x"] * 120))
    with pytest.raises(UserError, match="at least two labels, found 1"):
        train(data=same, **options)
    assert not (tmp_path / "run").exists()


# --- the ledger ----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", PRIVATE)
def test_a_round_is_in_the_ledger_before_it_begins(method, train, tmp_path, monkeypatch):
    kind = UedpAlg if method == "uedp-alg" else ClippedMethod
    round_, on_disk = kind.round, []

    def spy(self, number):
        on_disk.append((number, len(spent(tmp_path / "run"))))
        return round_(self, number)

    monkeypatch.setattr(kind, "round", spy)
    train(privacy__method=method)
    assert on_disk == [(0, 1), (1, 2), (2, 3), (3, 4)]


def test_a_fixed_seed_is_not_private(train, tmp_path):
    outcome = train(privacy__seed=3, privacy__rounds=1)
    assert not outcome.certificate.private
    assert outcome.certificate.statement.startswith("This run has no privacy guarantee.\n")
    assert train.said[0] == "This run has no privacy guarantee."
    assert CorpusLedger(tmp_path / "corpus").epsilon(1e-5) == math.inf
    assert any("fixed seed" in caveat for caveat in outcome.certificate.caveats)
    certificates.verify(tmp_path / "run")


def test_nothing_is_trained_before_the_guarantee_was_stated(tmp_path):
    said = []

    def say(line):
        said.append(line)
        raise DeathError

    config = worlds.config("no such model")  # which is not even looked for
    with pytest.raises(DeathError):
        loop.run(config, tmp_path / "run", data=worlds.training_data(tmp_path / "corpus"), say=say)
    assert said[0].startswith("The model is (")
    assert not (tmp_path / "run").exists()


def test_a_corpus_over_its_budget_leaves_no_trace(train, tmp_path):
    train("first", privacy__corpus_budget=1e3)
    before = everything(tmp_path / "corpus")
    with pytest.raises(UserError, match="all runs on this corpus would come to"):
        train("deep/second", privacy__corpus_budget=1.0)
    assert everything(tmp_path / "corpus") == before
    assert not (tmp_path / "deep").exists()


def test_epsilon_so_far_is_never_too_small(train, saved):
    watching = Watching()
    train(privacy__rounds=30, progress=watching, privacy__noise=2.0)
    profile = build_plan(
        worlds.config(saved(), privacy__rounds=30, privacy__noise=2.0), worlds.incidence()
    ).profile
    for done, note in enumerate(watching.notes, 1):
        shown = float(note.split("epsilon ")[1].split()[0])
        if done % 7 == 0 or done in (1, 30):
            assert shown >= epsilon(profile, done, 1e-5) - 0.005
    assert "users" in watching.notes[0]
    assert len(watching.notes) == 30


# --- stopping ------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_after_its_round_with_a_checkpoint(number, train, tmp_path):
    handlers = signal.getsignal(number)
    outcome = train(progress=stopping_after(2, number))
    assert signal.getsignal(number) == handlers
    assert not outcome.finished
    assert outcome.rounds == 2
    assert checkpoint.load_newest_checkpoint(tmp_path / "run")[1]["done"] == 2
    assert train.said[-1] == "stopped after round 2; continue with `resume=True`"
    assert not (tmp_path / "run" / RESULT).exists()
    assert len(metrics(tmp_path / "run")) == 2


def test_the_certificate_of_a_run_that_stopped_is_that_of_its_plan(train, tmp_path):
    """That it stopped may depend on the data."""
    stopped = train(progress=stopping_after(2)).certificate
    assert (stopped.rounds_planned, stopped.rounds_spent) == (4, 2)
    assert certificates.verify(tmp_path / "run") == stopped
    finished = train(resume=True).certificate
    assert finished.epsilon == stopped.epsilon
    assert (finished.rounds_planned, finished.rounds_spent) == (4, 4)
    assert certificates.verify(tmp_path / "run") == finished


def test_asked_twice_it_stops_at_once(train, tmp_path):
    with pytest.raises(SystemExit) as stop:
        train(progress=stopping_after(2, signal.SIGTERM, times=2))
    assert stop.value.code == 128 + signal.SIGTERM
    assert train(resume=True).finished
    assert spent(tmp_path / "run") == [(n, 1) for n in range(4)]


# --- going on ------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [*PRIVATE, *OPEN])
def test_a_resumed_run_is_the_uninterrupted_one(method, train, saved, tmp_path):
    """With a seed, to the last bit: weights, optimiser, average, dropout, curve, ledger."""
    options = {
        "model": saved(dropout=0.2),
        "privacy__method": method,
        "privacy__seed": 7,
        "optimiser__average": 0.5,
        "run__evaluate_every": 3,
    }
    whole = train("whole", **options)
    assert not train("broken", progress=stopping_after(1), **options).finished
    torch.manual_seed(123)  # another process would have another state
    assert not train("broken", progress=stopping_after(3), resume=True, **options).finished
    broken = train("broken", resume=True, **options)
    assert broken.finished
    assert alike(weights(tmp_path / "whole"), weights(tmp_path / "broken"))
    state = [checkpoint.load_newest_checkpoint(tmp_path / name)[0] for name in ("whole", "broken")]
    assert alike(*state)
    assert (broken.before, broken.after) == (whole.before, whole.after)
    curves = [
        [{k: v for k, v in row.items() if k != "seconds"} for row in metrics(tmp_path / name)]
        for name in ("whole", "broken")
    ]
    assert curves[0] == curves[1]
    assert len(curves[0]) == 4
    if method in PRIVATE:
        assert spent(tmp_path / "broken") == spent(tmp_path / "whole")


def test_without_a_seed_a_resumed_run_has_noise_of_its_own(train, saved, tmp_path, monkeypatch):
    """Two processes that go on from the same checkpoint do not make the same sums."""
    sums = []
    round_ = ClippedMethod.round

    def spy(self, number):
        gradient = round_(self, number)
        sums.append((number, gradient.values[0].clone()))
        return gradient

    monkeypatch.setattr(ClippedMethod, "round", spy)
    train("one", model=saved(dropout=0.2), progress=stopping_after(3))
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    shutil.copytree(tmp_path / "corpus", tmp_path / "copy")  # or the second would be refused
    torch.manual_seed(0)
    train("one", model=saved(dropout=0.2), resume=True)
    torch.manual_seed(0)
    elsewhere = worlds.training_data(tmp_path / "copy")
    train("two", model=saved(dropout=0.2), resume=True, data=elsewhere)
    (a, one), (b, two) = sums[-2:]
    assert a == b == 3
    assert not torch.equal(one, two)


@pytest.mark.parametrize("method", PRIVATE)
def test_rounds_that_were_lost_count(method, train, tmp_path, monkeypatch):
    kind = UedpAlg if method == "uedp-alg" else ClippedMethod
    with dying_in(2, kind), pytest.raises(DeathError):
        train(privacy__method=method)
    assert spent(tmp_path / "run") == [(0, 1), (1, 1), (2, 1)]
    round_, numbers = kind.round, []

    def spy(self, number):
        numbers.append(number)
        return round_(self, number)

    monkeypatch.setattr(kind, "round", spy)
    outcome = train(privacy__method=method, resume=True)
    assert "3 rounds were spent after the last checkpoint; they count but are lost" in train.said
    assert numbers == [3]  # none again, not even by number: with a seed it would be the same noise
    assert spent(tmp_path / "run") == [(n, 1) for n in range(4)]
    assert outcome.finished
    assert certificates.verify(tmp_path / "run").rounds_spent == 4
    assert [row["round"] for row in metrics(tmp_path / "run")] == [1, 2, 4]


def test_when_all_rounds_are_lost_the_run_is_over(train, tmp_path):
    with dying_in(3), pytest.raises(DeathError):
        train()
    outcome = train(resume=True)
    assert outcome.finished
    assert outcome.after == outcome.before  # nothing was learned, and nothing more may be spent
    assert len(spent(tmp_path / "run")) == 4


@pytest.mark.parametrize("method", OPEN)
def test_without_a_ledger_lost_rounds_are_done_again(method, train, tmp_path):
    options = {"privacy__method": method, "privacy__seed": 1}
    with dying_in(2, Noiseless), pytest.raises(DeathError):
        train(**options)
    assert [row["round"] for row in metrics(tmp_path / "run")] == [1, 2]
    train(resume=True, **options)
    assert [row["round"] for row in metrics(tmp_path / "run")] == [1, 2, 3, 4]
    train("whole", **options)
    assert alike(weights(tmp_path / "whole"), weights(tmp_path / "run"))


def test_a_line_cut_off_is_removed_from_the_curve(train, tmp_path):
    train(progress=stopping_after(2))
    with (tmp_path / "run" / FILE).open("a") as file:
        file.write('{"round": 3, "ra')
    train(resume=True)
    assert [row["round"] for row in metrics(tmp_path / "run")] == [1, 2, 3, 4]


@pytest.mark.parametrize("method", ["rotation", "noiseless"])
def test_resuming_a_finished_run_does_nothing(method, train, saved, tmp_path, monkeypatch):
    first = train(privacy__method=method)
    before = everything(tmp_path / "run", tmp_path / "corpus")
    for forbidden in ("plan_run", "read_training_data", "save_model"):
        monkeypatch.setattr(engine, forbidden, lambda *_: pytest.fail("it was at work"))
    second = train(privacy__method=method, resume=True)
    assert everything(tmp_path / "run", tmp_path / "corpus") == before
    assert train.said == ["this run is finished; nothing is left to do"]
    assert second.finished
    assert second.certificate == first.certificate
    assert (second.before, second.after, second.rounds) == (first.before, first.after, 4)
    found = second.model.state_dict()
    assert all(torch.equal(found[n], t) for n, t in first.model.state_dict().items())


def test_where_and_how_often_may_change(train, tmp_path):
    train(progress=stopping_after(1))
    assert train(resume=True, run__evaluate_every=2).finished
    assert "perplexity" in metrics(tmp_path / "run")[1]
    assert load_config(tmp_path / "run" / CONFIG).run.evaluate_every == 2


def test_every_round_can_have_a_checkpoint(train, tmp_path, monkeypatch):
    written, write = [], checkpoint.write_checkpoint

    def spy(run, done, *rest):
        written.append(done)
        write(run, done, *rest)

    monkeypatch.setattr(checkpoint, "write_checkpoint", spy)
    train(run__checkpoint_seconds=0)
    assert written == [0, 1, 2, 3, 4, 4]


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["rotation", "noiseless"])
def test_two_processes_are_never_at_work_in_one_folder(method, train, tmp_path, saved):
    refused = []

    def another(done):
        with pytest.raises(UserError, match="run: another process is using this run") as no:
            loop.run(
                worlds.config(saved(), privacy__method=method),
                tmp_path / "run",
                data=worlds.training_data(tmp_path / "corpus"),
                resume=True,
            )
        refused.append(str(no.value))

    outcome = train(privacy__method=method, progress=Watching(another))
    assert len(refused) == 4
    assert outcome.finished
    if method == "rotation":
        assert spent(tmp_path / "run") == [(n, 1) for n in range(4)]


def test_a_run_is_resumed_as_it_was_planned(train, tmp_path):
    train(progress=stopping_after(1))
    before = everything(tmp_path / "run")
    with pytest.raises(UserError, match=r"config.yaml: privacy.rounds is 4, not 5; resume"):
        train(resume=True, privacy__rounds=5)
    with pytest.raises(UserError, match=r"optimiser.rate is 0.01, not 0.5"):
        train(resume=True, optimiser__rate=0.5)
    assert everything(tmp_path / "run") == before


def test_a_run_is_resumed_on_the_incidence_it_was_planned_for(train, tmp_path):
    train(progress=stopping_after(1))
    other = worlds.training_data(
        tmp_path / "corpus", incidence=worlds.incidence(30, 4), train=Texts(["a b"] * 120, [])
    )
    with pytest.raises(UserError, match=r"this run was planned differently: shape\.digest is"):
        train(resume=True, data=other)


def test_a_run_without_its_config_is_refused(train, tmp_path):
    train(progress=stopping_after(1))
    (tmp_path / "run" / CONFIG).unlink()
    with pytest.raises(UserError, match=r"config.yaml: cannot be read: No such file"):
        train(resume=True)


def test_a_ledger_that_lost_rounds_is_refused(train, tmp_path):
    train(progress=stopping_after(3))
    ledger = tmp_path / "run" / "ledger.jsonl"
    ledger.write_text("".join(ledger.read_text().splitlines(keepends=True)[:2]))
    with pytest.raises(UserError, match="has 1 rounds, and is not the ledger that had 3"):
        train(resume=True)
    # nor if its mark was set back with it: then the checkpoint tells
    (mark,) = (tmp_path / "corpus").glob("ledger-mark-*")
    mark.write_text("".join(mark.read_text().splitlines(keepends=True)[:2]))
    with pytest.raises(UserError, match="3 rounds were done, but its ledger has 1"):
        train(resume=True)


# --- resumed as it was ---------------------------------------------------------------------------


def edited(folder: Path, section: str, **fields) -> None:
    """As a person would, in the folder of the run."""
    values = yaml.safe_load((folder / CONFIG).read_text())
    values[section] |= fields
    (folder / CONFIG).write_text(yaml.safe_dump(values))


def test_a_seed_that_is_deleted_from_the_config_makes_no_run_private(train, tmp_path):
    train(privacy__seed=3, progress=stopping_after(2))
    edited(tmp_path / "run", "privacy", seed=None)
    with pytest.raises(UserError, match=r"setup.noise_source is 'fixed seed', not 'cipher'"):
        train(resume=True)
    assert len(spent(tmp_path / "run")) == 2


def test_half_precision_is_not_resumed_in_full(train, tmp_path):
    train(run__precision="bfloat16", progress=stopping_after(2))
    with pytest.raises(UserError, match=r"setup.precision is 'bfloat16', not 'float32'"):
        train(run__precision="float32", resume=True)
    found = train(run__precision="bfloat16", resume=True).certificate
    assert found.setup.precision == "bfloat16"
    assert found.setup.rounding_margin > 0
    stretches = [
        r for r in read_chain(tmp_path / "run" / "ledger.jsonl")[0] if r["kind"] == "resume"
    ]
    assert [r["setup"]["precision"] for r in stretches] == ["bfloat16"]


@pytest.mark.parametrize(
    "change",
    [
        {"train": Texts([*worlds.texts()[1:], "other"], worlds.labels())},
        {"train": Texts(worlds.texts()[::-1], worlds.labels())},
        {"train": Texts(worlds.texts(), ["named", *worlds.labels()[1:]])},
    ],
)
def test_other_texts_or_labels_are_refused_though_the_incidence_is_the_same(
    train, tmp_path, change
):
    train(progress=stopping_after(2))
    before = everything(tmp_path / "run", tmp_path / "corpus")
    with pytest.raises(UserError, match=r"setup\.texts is"):
        train(resume=True, data=worlds.training_data(tmp_path / "corpus", **change))
    assert everything(tmp_path / "run", tmp_path / "corpus") == before


def test_another_detection_is_refused(train, tmp_path):
    info = {"detectors": ["patterns"], "categories": ["person"], "propagated": True}
    train(data=worlds.training_data(tmp_path / "corpus", info=info), progress=stopping_after(2))
    other = worlds.training_data(tmp_path / "corpus", info={**info, "propagated": False})
    with pytest.raises(UserError, match=r"setup\.entities\.propagated is True, not False"):
        train(resume=True, data=other)


def test_what_is_put_on_record_tells_nothing_of_the_texts(train, tmp_path):
    """Who knows all texts but one could try what that one says against a plain hash."""
    first = train("one", privacy__rounds=1).certificate
    again = train("two", privacy__rounds=1).certificate
    other = worlds.training_data(tmp_path / "elsewhere")
    elsewhere = train("three", privacy__rounds=1, data=other).certificate
    plain = other.text_digest
    assert first.setup.texts == again.setup.texts != elsewhere.setup.texts
    ledgers = [(tmp_path / run / "ledger.jsonl").read_text() for run in ("one", "two", "three")]
    assert not any(plain in text for text in ledgers)


# --- the certificate is about this model ---------------------------------------------------------


def test_weights_of_a_run_without_noise_do_not_verify(train, tmp_path):
    train("private", privacy__rounds=1)
    train("open", privacy__method="noiseless", privacy__rounds=1)
    certificates.verify(tmp_path / "private")
    shutil.copy(tmp_path / "open" / "model.safetensors", tmp_path / "private")
    with pytest.raises(UserError, match=r"model.safetensors: is not the file that was certified"):
        certificates.verify(tmp_path / "private")


@pytest.mark.parametrize("how", ["full", "lora"])
def test_every_file_of_the_model_is_certified(how, train, tmp_path):
    outcome = train(model__train=how, privacy__rounds=1)
    files = outcome.certificate.files
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(files)
    assert ("adapter/adapter_model.safetensors" in files) == (how == "lora")
    assert not {"ledger.jsonl", "metrics.jsonl", "lineage.json"} & set(files)
    for name in files:
        original = (tmp_path / "run" / name).read_bytes()
        (tmp_path / "run" / name).write_bytes(original + b" ")
        with pytest.raises(UserError, match="is not the file that was certified"):
            certificates.verify(tmp_path / "run")
        (tmp_path / "run" / name).write_bytes(original)
    certificates.verify(tmp_path / "run", corpus=tmp_path / "corpus")


def test_a_run_that_stopped_has_no_certified_model(train, tmp_path):
    stopped = train(progress=stopping_after(2)).certificate
    assert stopped.files == {}
    certificates.verify(tmp_path / "run")
    (tmp_path / "run" / "model.safetensors").write_bytes(b"from elsewhere")
    with pytest.raises(UserError, match="no model was certified"):
        certificates.verify(tmp_path / "run")
    assert train(resume=True).certificate.files


def test_what_was_laid_beside_an_unfinished_run_is_not_certified(train, tmp_path):
    """A loader would take it, and nothing that the rounds made is in it."""
    train(progress=stopping_after(2))
    laid = tmp_path / "run" / "adapter_config.json"
    laid.write_text("{}")
    assert laid.name not in train(resume=True).certificate.files
    with pytest.raises(UserError, match=r"adapter_config.json: is not part of the certified model"):
        certificates.verify(tmp_path / "run")
    laid.unlink()
    certificates.verify(tmp_path / "run")


def test_a_link_to_a_folder_is_not_certified(train, tmp_path):
    """What it leads to could be changed at any time."""
    train(progress=stopping_after(2))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run" / "additional_chat_templates").symlink_to(tmp_path / "elsewhere")
    train(resume=True)
    with pytest.raises(UserError, match="additional_chat_templates: is not part of the certified"):
        certificates.verify(tmp_path / "run")


# --- what all runs come to -----------------------------------------------------------------------


def test_a_run_counts_its_plan_until_it_is_closed(train, tmp_path):
    corpus = CorpusLedger(tmp_path / "corpus")
    planned = train(progress=stopping_after(1)).certificate
    profile = build_plan(worlds.config("m"), worlds.incidence()).profile
    assert corpus.epsilon(1e-5) == pytest.approx(planned.epsilon)
    close_run(tmp_path / "run", corpus)
    assert corpus.epsilon(1e-5) == pytest.approx(epsilon(profile, 1, 1e-5))
    with pytest.raises(UserError, match=r"was closed"):
        train(resume=True)
    second = train("second", privacy__rounds=2).certificate.corpus_total
    assert second.runs == 2
    assert second.epsilon == pytest.approx(epsilon(profile, 3, 1e-5), rel=1e-6)
    certificates.verify(tmp_path / "second", corpus=tmp_path / "corpus")


def test_a_checkpoint_of_another_model_is_refused(train, tmp_path, saved):
    copy = tmp_path / "model"
    tiny.saved(copy, tiny.gpt2())
    train(model=copy, progress=stopping_after(1))
    tiny.saved(copy, tiny.llama())
    with pytest.raises(UserError, match=r"its checkpoint does not fit .*was the model changed"):
        train(model=copy, resume=True)


def test_folders_that_are_not_what_was_asked_for(train, tmp_path):
    with pytest.raises(UserError, match="holds no run to resume; leave out `resume=True`"):
        train("a/b/run", resume=True)
    assert not (tmp_path / "a").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(
        UserError, match=r"mine: exists and is not a run; choose another `out=\.\.\.`"
    ):
        train("mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="file: not a folder"):
        train("file")
    train("run", privacy__rounds=1)
    with pytest.raises(UserError, match="run: holds a run already; add `resume=True`"):
        train("run", privacy__rounds=1)
    (tmp_path / "run" / IDENTITY).write_text("what?")
    with pytest.raises(UserError, match=r"run.json: damaged"):
        train("run", privacy__rounds=1, resume=True)
    (tmp_path / "empty").mkdir()
    assert train("empty", privacy__rounds=1).finished


def test_a_run_killed_as_it_began_can_begin_again(train, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / IDENTITY).touch()
    assert train(privacy__rounds=1).finished


def unclippable(folder: Path) -> Path:
    config = transformers.MambaConfig(
        vocab_size=tiny.WORDS, hidden_size=16, num_hidden_layers=1, state_size=4
    )
    return tiny.saved(folder, transformers.MambaForCausalLM(config))


def test_what_is_refused_leaves_nothing(train, tmp_path):
    model = unclippable(tmp_path / "mamba")
    for changes, complaint in [
        ({"model": model}, "mixer"),
        ({"model": tmp_path / "nowhere"}, "no such folder"),
        ({"run__device": "abacus"}, "run.device 'abacus': there is no such device here"),
        ({"privacy__user_rate": 0.01}, "too few to hide among"),
        ({"model__train": "last:7"}, "at most 1, the blocks of the model"),
    ]:
        with pytest.raises(UserError, match=complaint) as refused:
            train("a/run", **changes)
        assert "\n" not in str(refused.value)
        assert not (tmp_path / "a").exists()
        assert not list((tmp_path / "corpus").iterdir())
    # without clipping, any model will do
    assert train(model=model, privacy__method="noiseless", privacy__rounds=1).finished


def test_a_full_disk_is_said_in_a_line_and_the_run_goes_on_later(train, tmp_path, monkeypatch):
    save, calls = checkpoint.save_file, []

    def full(*arguments):
        calls.append(1)
        if len(calls) == 3:
            raise SafetensorError("No space left on device")
        return save(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_file", full)
        with pytest.raises(UserError, match=r"cannot be written .No space left.*`resume=True`"):
            train(run__checkpoint_seconds=0)
    assert train(resume=True).finished
    assert spent(tmp_path / "run") == [(n, 1) for n in range(4)]


def test_doubts_are_said(train):
    train(privacy__user_rate=0.2, privacy__rounds=1)
    assert any(line.startswith("warning: a round draws about 8 users") for line in train.said)
    train("other", privacy__rounds=1)
    assert not any(line.startswith("warning") for line in train.said)


def test_tensorboard_sees_the_same(train, monkeypatch, tmp_path):
    scalars = []

    class SummaryWriter:
        def __init__(self, folder, purge_step):
            scalars.append((folder, purge_step))

        def add_scalar(self, name, value, step):
            scalars.append((name, value, step))

        def close(self):
            scalars.append("closed")

    installed = types.ModuleType("torch.utils.tensorboard")
    installed.SummaryWriter = SummaryWriter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", installed)
    train(privacy__rounds=2)
    rows = metrics(tmp_path / "run")
    assert scalars[0] == (str(tmp_path / "run" / "tensorboard"), 1)
    assert scalars[1:-1] == [(n, v, row["round"]) for row in rows for n, v in row.items()]
    assert scalars[-1] == "closed"


def test_curves_are_json_whatever_happens(tmp_path):
    with Metrics(tmp_path, 0) as found:
        found.add({"round": 1, "perplexity": float("nan"), "rate": float("inf"), "users": 3})
    assert metrics(tmp_path) == [{"round": 1, "perplexity": None, "rate": None, "users": 3}]


def test_devices_and_precision():
    assert device_of(worlds.config("m", run__device="auto")).type in ("cpu", "cuda")
    with pytest.raises(UserError, match=r"run.device 'cuda:77'"):
        device_of(worlds.config("m", run__device="cuda:77"))
    cpu = torch.device("cpu")
    with _autocast(False, cpu)():
        assert not torch.is_autocast_enabled("cpu")
    with _autocast(True, cpu)():
        assert torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize(
    ("device", "method", "asked", "found"),
    [
        ("cpu", "noiseless", "auto", "float32"),
        ("cuda", "noiseless", "auto", "bfloat16"),
        # in half precision, who else was drawn would move everybody's gradient
        ("cuda", "rotation", "auto", "float32"),
        ("cuda", "user-level", "auto", "float32"),
        ("cuda", "rotation", "bfloat16", "bfloat16"),
        ("cuda", "noiseless", "float32", "float32"),
    ],
)
def test_private_runs_are_in_float32_unless_told_otherwise(
    device, method, asked, found, monkeypatch
):
    monkeypatch.setattr(building, "device_of", lambda config: torch.device(device))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    budget = {} if method == "noiseless" else {"epsilon": 8}
    values = {"privacy": {"method": method, **budget}, "data": {"train": "c"}}
    config = parse_config({**values, "model": {"name": "m"}, "run": {"precision": asked}})
    assert precision_of(config) == found
