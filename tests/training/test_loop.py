import json
import re
import shutil
import signal
from contextlib import nullcontext

import pytest
import torch
import transformers

from tests.training import worlds
from tests.training.runs import (
    PLAIN,
    PRIVATE,
    RoundWatcher,
    metrics,
    same_tensors,
    spent,
    stopping_after,
    weights,
)
from uedp.accounting.proven import epsilon
from uedp.errors import UserError
from uedp.methods import ClippedMethod
from uedp.progress import SILENT
from uedp.training import build as building
from uedp.training import checkpoint, tasks
from uedp.training.config import load_config
from uedp.training.plan import build_plan, rounding_margin
from uedp.training.run_dir import CONFIG, RESULT


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
    # by then little is left to learn, and the noise decides which of the two is smaller
    assert max(rows[i]["perplexity"] for i in (9, 19)) < 0.1 * outcome.before["perplexity"]
    result = json.loads((tmp_path / "run" / RESULT).read_text())
    assert result == {"before": outcome.before, "after": outcome.after, "rounds": 25}
    said = outcome.certificate.statement.splitlines()
    assert train.said[: len(said)] == said
    assert [line for line in train.said[len(said) :] if "jumps" not in line] == [
        f"before training: perplexity {outcome.before['perplexity']:.4g}",
        f"after training: perplexity {outcome.after['perplexity']:.4g}",
    ]


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


def test_dropout_is_on_in_training_and_off_in_evaluation(train, monkeypatch):
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


def test_the_average_is_evaluated_and_saved(train, tmp_path, saved):
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


def test_training_leaves_the_callers_generators_unchanged(train, saved):
    before = torch.get_rng_state()
    train(model=saved(dropout=0.2), privacy__rounds=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_precision_of_evaluations_is_chosen_once(train, monkeypatch):
    asked, used, evaluate = [], [], tasks.NextWord.evaluate

    def faster():
        return nullcontext()

    def choose(self, model, given, evaluations):
        asked.append(evaluations)
        return faster

    def measure(self, model, precision, room, progress=SILENT):
        used.append((precision, room))
        return evaluate(self, model, precision, room, progress)

    monkeypatch.setattr(tasks.NextWord, "evaluation_precision", choose)
    monkeypatch.setattr(tasks.NextWord, "evaluate", measure)
    train(privacy__rounds=5, run__tokens_at_once=800, run__evaluate_every=2)
    assert asked == [4]
    assert used == [(faster, 800)] * 4  # before, after rounds 2 and 4, and at the end


def test_a_new_model_trains_and_resumes_identically(train, tmp_path):
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
    assert same_tensors(whole.model.state_dict(), broken.model.state_dict())
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "whole")
    assert same_tensors(whole.model.state_dict(), loaded.state_dict())


def test_half_precision_is_charged_to_the_rounding_margin(train):
    outcome = train(run__precision="bfloat16", privacy__rounds=8, privacy__noise=0.1)
    stated = outcome.certificate
    assert stated.setup.precision == "bfloat16"
    # how far rounding may move others is charged, not excepted
    assert stated.parameters["rounding_margin"] > 10 * rounding_margin("float32", 10)
    assert outcome.after["perplexity"] < outcome.before["perplexity"] / 2
    assert all(p.dtype == torch.float32 for p in outcome.model.parameters())


@pytest.mark.parametrize("method", ["noiseless", "fair-shares"])
def test_half_precision_learns_what_float32_does(train, method):
    """Each pass reads the weights that the round before has left."""
    options = {"privacy__method": method, "privacy__rounds": 8, "privacy__seed": 1}
    options |= {"privacy__noise": 0.01} if method == "fair-shares" else {"privacy__noise": None}
    whole = train("whole", run__precision="float32", **options)
    half = train("half", run__precision="bfloat16", **options)
    assert half.after["perplexity"] == pytest.approx(whole.after["perplexity"], rel=0.05)
    assert whole.after["perplexity"] < whole.before["perplexity"] / 2


def test_fixed_passes_are_refused_where_there_are_none(train):
    """Never computed otherwise in silence: the margin is only for them."""
    with pytest.raises(UserError, match=r"passes of one shape.*set it to float32"):
        train(run__precision="bfloat16-fixed", privacy__rounds=2, privacy__noise=0.1)
    assert rounding_margin("bfloat16-fixed", 10) == rounding_margin("float32", 10)


def test_the_epsilon_shown_is_never_too_small(train, saved):
    watching = RoundWatcher()
    train(privacy__rounds=30, progress=watching, privacy__noise=2.0)
    profile = build_plan(
        worlds.config(saved(), privacy__rounds=30, privacy__noise=2.0), worlds.incidence()
    ).profile
    for note in watching.notes:
        done, shown = re.match(r"round (\d+): .* users, .*, epsilon ([\d.]+) so far", note).groups()
        assert float(shown) >= epsilon(profile, int(done), 1e-5)
        assert float(shown) == pytest.approx(epsilon(profile, int(done), 1e-5), rel=0.01)
    assert watching.notes[0].startswith("round 1: ")
    assert watching.notes[-1].startswith("round 30: ")
    (line,) = [line for line in train.said if "jumps" in line]
    for done, words in ((1, "round 1"), (3, "3"), (30, "all 30")):
        shown = float(re.search(rf"([\d.]+) after {words}\b", line)[1])
        assert shown == pytest.approx(epsilon(profile, done, 1e-5), rel=0.01)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_after_its_round_with_a_checkpoint(number, train, tmp_path):
    handlers = signal.getsignal(number)
    outcome = train(progress=stopping_after(2, number))
    assert signal.getsignal(number) == handlers
    assert not outcome.finished
    assert outcome.rounds == 2
    assert checkpoint.load_newest_checkpoint(tmp_path / "run")[1]["done"] == 2
    assert train.said[-1] == "stopped with 2 of 4 rounds done; continue with `resume=True`"
    assert not (tmp_path / "run" / RESULT).exists()
    assert len(metrics(tmp_path / "run")) == 2


def test_a_second_signal_stops_at_once(train, tmp_path):
    with pytest.raises(SystemExit) as stop:
        train(progress=stopping_after(2, signal.SIGTERM, times=2))
    assert stop.value.code == 128 + signal.SIGTERM
    assert train(resume=True).finished
    assert spent(tmp_path / "run") == [(n, 1) for n in range(4)]


@pytest.mark.parametrize("method", [*PRIVATE, *PLAIN])
def test_a_resumed_run_equals_an_uninterrupted_one(method, train, saved, tmp_path):
    """With a seed, to the last bit: weights, optimiser, average, dropout, curve, ledger."""
    options = {
        "model": saved(dropout=0.2),
        "privacy__method": method,
        "privacy__seed": 7,
        "optimiser__average": 0.5,
        "optimiser__filter": "kalman",
        "run__evaluate_every": 3,
    }
    whole = train("whole", **options)
    assert not train("broken", progress=stopping_after(1), **options).finished
    torch.manual_seed(123)  # another process would have another state
    assert not train("broken", progress=stopping_after(3), resume=True, **options).finished
    broken = train("broken", resume=True, **options)
    assert broken.finished
    assert same_tensors(weights(tmp_path / "whole"), weights(tmp_path / "broken"))
    state = [checkpoint.load_newest_checkpoint(tmp_path / name)[0] for name in ("whole", "broken")]
    assert same_tensors(*state)
    assert (broken.before, broken.after) == (whole.before, whole.after)
    curves = [
        [{k: v for k, v in row.items() if k != "seconds"} for row in metrics(tmp_path / name)]
        for name in ("whole", "broken")
    ]
    assert curves[0] == curves[1]
    assert len(curves[0]) == 4
    if method in PRIVATE:
        assert spent(tmp_path / "broken") == spent(tmp_path / "whole")


def test_without_a_seed_a_resumed_run_draws_fresh_noise(train, saved, tmp_path, monkeypatch):
    """Two processes that go on from the same checkpoint do not make the same sums."""
    sums = []
    round_ = ClippedMethod.round

    def spy(self, number, attempt):
        gradient = round_(self, number, attempt)
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


def test_run_settings_may_change_when_a_run_is_resumed(train, tmp_path):
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
