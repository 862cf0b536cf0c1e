"""An estimate changes nothing, and says what a run then takes."""

import dataclasses

import numpy as np
import pytest
import torch

from tests.training import worlds
from tests.training.runs import metrics, snapshot
from uedp.accounting.certificate import load_certificate
from uedp.accounting.ledger import CorpusLedger
from uedp.errors import UserError
from uedp.incidence import Incidence, Rows
from uedp.mechanism.fixed.fixed_pass import FixedPass
from uedp.mechanism.packing import ONE_PER_ROW, SHARED_ROWS
from uedp.mechanism.release import chunks_of
from uedp.mechanism.sampling import Participants
from uedp.methods import ClippedMethod, clipped
from uedp.training import api, build, loop
from uedp.training.datasets import Texts, TrainingData
from uedp.training.estimate import Pace, estimate, measure_pace, sentences_per_round
from uedp.training.plan import build_plan
from uedp.training.tasks import NextWord


@pytest.fixture
def data(tmp_path):
    return worlds.training_data(tmp_path / "corpus")


@pytest.mark.parametrize("method", ["rotation", "user-level", "uedp-alg", "noiseless"])
def test_measuring_leaves_everything_as_it_was(method, data, saved, tmp_path):
    config = worlds.config(saved(dropout=0.1), privacy__method=method)
    ready = build.prepare(config, data)
    before = {name: value.clone() for name, value in ready.model.state_dict().items()}
    torch.manual_seed(5)
    state, files = torch.random.get_rng_state(), snapshot(tmp_path)
    pace = measure_pace(ready)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert snapshot(tmp_path) == files
    after = ready.model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert all(p.grad is None for p in ready.model.parameters())
    assert pace.per_token > 0
    assert pace.per_round > 0
    assert pace.evaluated > 0
    assert pace.tokens_per_sentence == pytest.approx(ready.task.lengths.mean())
    assert pace.held_out_tokens == ready.held_out.lengths.sum()


def test_passes_of_one_shape_are_timed_if_rounds_have_them(data, saved, monkeypatch):
    built, used = [], []

    def on_a_cpu(model, tokens, longest, dtype):
        built.append(FixedPass(model, 256, longest, dtype))
        return built[-1]

    original = FixedPass.clipped_sum
    monkeypatch.setattr(clipped, "fixed_pass", on_a_cpu)
    monkeypatch.setattr(
        FixedPass,
        "clipped_sum",
        lambda self, *arguments: (used.append(self), original(self, *arguments))[1],
    )
    pace = measure_pace(build.prepare(worlds.config(saved(), model__train="lora"), data))
    assert len(built) == 1  # for all rounds that are timed
    assert set(used) == set(built)
    assert pace.batch == 256


def test_the_sentences_of_a_round_are_those_that_are_drawn(data, saved, tmp_path):
    config = worlds.config(saved(), privacy__rounds=12, privacy__user_rate=0.9)
    plan = build_plan(config, data.incidence)
    loop.run(config, tmp_path / "run", data=data)
    drawn = np.mean([row["sentences"] for row in metrics(tmp_path / "run")])
    assert sentences_per_round(plan, data.incidence) == pytest.approx(drawn, rel=0.15)
    few = worlds.config(saved(), privacy__sentences_per_user=1, privacy__user_rate=0.5)
    assert sentences_per_round(build_plan(few, data.incidence), data.incidence) == 20
    whole = worlds.config(saved(), privacy__method="user-level", privacy__user_rate=0.5)
    assert sentences_per_round(build_plan(whole, data.incidence), data.incidence) == 60


def test_time_adds_up():
    pace = Pace(2.0, 0.5, 0.01, 0.001, 10.0, 1e9, 100.0, 50, 1000, 400)
    assert pace.round_seconds(30) == pytest.approx(2 + 0.5 + 3)
    assert pace.round_seconds(300) == pytest.approx(2 + 3 * 0.5 + 30)
    assert pace.evaluation_seconds(100, 25) == pytest.approx(
        5 * 0.4
    )  # before, at 25, 50, 75, after
    assert pace.evaluation_seconds(101, 25) == pytest.approx(6 * 0.4)
    assert pace.peak_memory(30) == pytest.approx(1e9 + 100 * 250)
    assert pace.peak_memory(300) == pytest.approx(1e9 + 100 * 950)
    assert pace.peak_memory(1) == 1e9
    padded = dataclasses.replace(pace, padding=((10.0, 1.5), (1000.0, 1.1)))
    assert padded.computed_tokens(1) == pytest.approx(15)
    assert padded.computed_tokens(100) == pytest.approx(1300)  # between the two
    assert padded.computed_tokens(5000) == pytest.approx(55_000)
    assert padded.round_seconds(100) == pytest.approx(2 + 1.3 * 0.5 + 13)


class Clock:
    """A clock that only rounds advance: each by a fixed cost, one per batch and one per token."""

    def __init__(self, per_round, per_batch, per_token):
        self.costs, self.now, self.tokens = (per_round, per_batch, per_token), 0.0, []

    def perf_counter(self):
        return self.now

    def seconds_of(self, method, incidence, lengths):
        """The cost of a round of all users, whose tokens are computed as `release` does."""
        drawn = Participants(
            np.arange(incidence.users),
            Rows(np.searchsorted(incidence.sentence_user, np.arange(incidence.users + 1)), None),
            None,
        )
        batch = method.settings.max_tokens
        chunks = [lengths[c] for c in chunks_of(drawn, lengths, batch, method.packing)]
        computed = sum(method.packing.tokens(own) for own in chunks)
        return float(np.dot(self.costs, [1, len(chunks), computed])), computed

    def round(self, method, number):
        seconds, computed = self.seconds_of(method, method.incidence, method.task.lengths)
        self.now += seconds
        self.tokens.append(computed)


@pytest.mark.parametrize("packing", [SHARED_ROWS, ONE_PER_ROW])
@pytest.mark.parametrize("costs", [(0.1, 0.0, 1e-4), (0.01, 0.3, 1e-3), (0.0, 0.01, 0.02)])
def test_an_estimate_is_right_for_rounds_that_are_larger_than_measured(
    packing, costs, saved, tmp_path, monkeypatch
):
    """Lengths and users are ragged, so that small rounds are padded otherwise than large ones."""
    rng, clock = np.random.default_rng(1), Clock(*costs)
    owners = np.sort(rng.integers(0, 300, 2000))
    texts = [("the day " * int(n))[:100] for n in np.exp(rng.normal(1.0, 0.7, 2000)) + 1]
    none = np.zeros(0, dtype=np.int64)
    everyone = Incidence.build(owners, none, none, 300, 0)
    labels = [None] * len(texts)
    data = TrainingData(Texts(texts, labels), everyone, tmp_path)
    config = worlds.config(saved(), privacy__method="user-level", run__tokens_at_once=2048)
    ready = build.prepare(config, data)
    monkeypatch.setattr(NextWord, "packing_for", lambda self, model: packing)
    monkeypatch.setattr(ClippedMethod, "round", lambda self, number: clock.round(self, number))
    monkeypatch.setattr("uedp.training.estimate.time", clock)
    pace = measure_pace(ready)
    method = build.build_method(build_plan(config, everyone), everyone, ready.model, ready.task)
    method.packing = packing
    truth, computed = clock.seconds_of(method, everyone, ready.task.lengths)
    assert max(clock.tokens) < computed / 2  # it was not simply timed
    assert pace.round_seconds(2000) == pytest.approx(truth, rel=0.15)


def test_few_tokens_are_timed_where_they_take_long(data, saved, monkeypatch):
    clock = Clock(0.0, 0.0, 1.0)
    ready = build.prepare(
        worlds.config(saved(), privacy__method="user-level", run__tokens_at_once=4096), data
    )
    monkeypatch.setattr(ClippedMethod, "round", lambda self, number: clock.round(self, number))
    monkeypatch.setattr("uedp.training.estimate.time", clock)
    measure_pace(ready)
    assert sum(clock.tokens) < 4 * 512


def test_an_estimate_states_what_the_certificate_will(data, saved, tmp_path):
    config = worlds.config(saved(), privacy__noise=2.0, privacy__sentences_per_user=2)
    ledger = CorpusLedger(data.ledger)
    ready = build.prepare(config, data)
    plan = build.plan_run(config, data, ledger)
    assembly = build.assemble(plan, data, prepared=ready)
    found = estimate(plan, assembly, measure_pace(ready), ledger)
    assert not (data.ledger / "ledger.jsonl").exists()
    loop.run(config, tmp_path / "run", data=data)
    issued = load_certificate(tmp_path / "run")
    assert found.epsilon == issued.epsilon
    assert found.epsilon_user_alone == issued.epsilon_user_alone
    assert list(found.missed_mentions.values()) == [m.epsilon for m in issued.missed_mentions]
    assert found.corpus_total.epsilon == issued.corpus_total.epsilon
    again = estimate(plan, assembly, measure_pace(ready), ledger)
    assert again.corpus_total.runs == 2
    assert again.corpus_total.epsilon > found.corpus_total.epsilon
    assert again.parameters == sum(p.numel() for p in ready.model.parameters())
    assert found.seconds > 4 * found.seconds_per_round  # and evaluations
    assert found.signal_to_noise == plan.signal_to_noise(found.parameters)


def test_a_budget_that_training_would_refuse_is_refused(data, saved, monkeypatch):
    monkeypatch.setattr("uedp.accounting.statement.MISSED_CASES", ())
    monkeypatch.setattr(api, "read_training_data", lambda *given: data)
    config = worlds.config(saved(), privacy__noise=2.0, privacy__corpus_budget=1000.0)
    assert api.preview(config).estimate.corpus_total.runs == 1
    privacy = config.privacy.model_copy(update={"corpus_budget": 0.5})
    tight = config.model_copy(update={"privacy": privacy})
    with pytest.raises(UserError, match=r"budget epsilon 0\.5 .* all runs on this corpus would"):
        api.preview(tight)
    assert not (data.ledger / "ledger.jsonl").exists()


def test_a_preview_chooses_what_training_does(data, saved, monkeypatch):
    monkeypatch.setattr("uedp.accounting.statement.MISSED_CASES", ())
    monkeypatch.setattr(api, "read_training_data", lambda *given: data)
    config = worlds.config(saved(), privacy__noise=None, privacy__epsilon=8)
    privacy = {"epsilon": 8.0, "rounds": 5}
    opened = config.model_copy(update={"privacy": type(config.privacy)(**privacy)})
    found = api.preview(opened)
    chosen = {"user_rate", "entity_share", "sentences_per_user", "method"}
    assert set(found.choice.fields) == chosen
    assert found.plan.config.privacy == found.choice.config.privacy
    assert found.estimate.users_per_round >= 20
    assert dataclasses.asdict(found.estimate)["epsilon"] <= 8


@pytest.mark.slow
@pytest.mark.parametrize("how", ["full", "lora"])
def test_rounds_take_as_long_as_estimated(how, data, saved, tmp_path):
    """On idle cores; `benchmarks/estimate.py` does the same with real models."""
    config = worlds.config(saved(), model__train=how, privacy__rounds=20, privacy__user_rate=0.9)
    ready = build.prepare(config, data)
    pace = measure_pace(ready)
    loop.run(config, tmp_path / "run", data=data)
    rows = metrics(tmp_path / "run")
    truth = np.median([row["seconds"] for row in rows])
    expected = pace.round_seconds(np.median([row["sentences"] for row in rows]))
    assert expected == pytest.approx(truth, rel=0.5)  # rounds of milliseconds on any machine
