import copy
import math
import shutil
from pathlib import Path

import pytest
import torch
import transformers
import yaml
from safetensors.torch import load_model as load_tensors
from transformers import AutoTokenizer, TrainerCallback

import uedp
from tests.models import tiny
from tests.training import worlds
from tests.training.runs import (
    PLAIN,
    PRIVATE,
    SimulatedCrashError,
    crashing_in,
    metrics,
    same_tensors,
    snapshot,
    spent,
    stopping_after,
    weights,
)
from uedp.accounting import certificate as certificates
from uedp.accounting.certificate import verify
from uedp.accounting.chain import of_kind, read_chain
from uedp.accounting.ledger import CorpusLedger, close_run
from uedp.accounting.proven import epsilon
from uedp.entities.detection import Detection, detect
from uedp.errors import UserError
from uedp.mechanism import release
from uedp.methods import ClippedMethod, uedp_alg
from uedp.methods.plain import Noiseless
from uedp.methods.uedp_alg import UedpAlg
from uedp.models.load import load_model
from uedp.training import lineage, loop
from uedp.training.datasets import Texts, read_texts
from uedp.training.plan import build_plan
from uedp.training.run_dir import CONFIG
from uedp.training.trainer import UedpTrainer

OPTIONS = {"target_epsilon": 8, "rounds": 3, "user_rate": 0.25, "max_tokens": 32}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("engine")
    sentences = [
        uedp.Sentence(f"user {place // worlds.EACH}", text)
        for place, text in enumerate(worlds.texts())
    ]
    detect(sentences, folder / "corpus", Detection(["patterns"]))
    return folder / "corpus"


@pytest.fixture
def engine(corpus, tmp_path):
    def make(out="run", **options):
        return uedp.PrivacyEngine(corpus, run_dir=tmp_path / out, **{**OPTIONS, **options})

    return make


def test_the_loop_in_the_readme_runs(engine, corpus, tmp_path):
    model, tokenizer = tiny.gpt2(), tiny.tokenizer()
    start = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made, said = engine(say=(lines := []).append), []
    private = made.attach(model, tokenizer)
    assert "differentially private" in lines[0]
    for step in private.rounds():
        said.append((step.round, step.rounds))
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
        optimizer.step()
        optimizer.zero_grad()
    assert said == [(1, 3), (2, 3), (3, 3)]
    assert any(not torch.equal(a, b) for a, b in zip(start, model.parameters(), strict=True))
    certificate = verify(tmp_path / "run", corpus=corpus)
    assert certificate == made.certificate()
    assert certificate.epsilon <= 8
    assert (certificate.rounds_spent, certificate.rounds_planned) == (3, 3)
    saved = load_model(tmp_path / "run", "next-word").model
    for one, other in zip(saved.parameters(), model.parameters(), strict=True):
        assert torch.equal(one, other)
    measures = uedp.evaluate(tmp_path / "run", corpus)
    assert measures["perplexity"] > 1
    assert read_texts(corpus, 2).texts == worlds.texts()[:2]


def test_every_guard_is_in_attach(engine, corpus, tmp_path):
    entries = len(CorpusLedger(corpus).entries())

    class Mixing(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = tiny.gpt2()
            self.config = self.inner.config

        def forward(self, input_ids):
            output = self.inner(input_ids=input_ids)
            output.logits = output.logits - output.logits.mean(0, keepdim=True)
            return output

    with pytest.raises(UserError, match=r"changes with the sentences beside it|mixes sentences"):
        engine().attach(Mixing(), tiny.tokenizer())
    unknown = tiny.gpt2()
    unknown.transformer.wte = torch.nn.EmbeddingBag(tiny.WORDS, 32)
    with pytest.raises(UserError, match="EmbeddingBag"):
        engine().attach(unknown, tiny.tokenizer())
    frozen = tiny.gpt2().requires_grad_(False)
    with pytest.raises(UserError, match="requires_grad"):
        engine().attach(frozen, tiny.tokenizer())
    with pytest.raises(UserError, match="user_rate"):
        engine(user_rate=0.01).attach(tiny.gpt2(), tiny.tokenizer())
    with pytest.raises(UserError, match=r"give the model"):
        engine().attach()
    assert not (tmp_path / "run").exists()
    assert len(CorpusLedger(corpus).entries()) == entries


def test_a_model_that_learned_from_the_corpus_is_refused(engine, tmp_path):
    first = engine("first", rounds=1)
    for _ in first.attach(tiny.gpt2(), tiny.tokenizer()).rounds():
        pass
    trained = load_model(tmp_path / "first", "next-word")
    assert trained.model.name_or_path
    with pytest.raises(UserError, match="has learned from this corpus already"):
        engine("second").attach(trained.model, trained.tokenizer)


def test_an_interrupted_run_resumes_with_weights_optimizer_and_unspent_rounds(engine, tmp_path):
    torch.manual_seed(0)
    model = tiny.gpt2()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    first = engine(rounds=4)
    private = first.attach(model, tiny.tokenizer())
    private.plan.config.run.__dict__["checkpoint_seconds"] = 0.0  # a checkpoint every round
    for step in private.rounds(optimizer):
        optimizer.step()
        if step.round == 3:
            break
    with pytest.raises(UserError, match="another process"):
        engine(rounds=4, resume=True).attach(tiny.gpt2(), tiny.tokenizer())
    first.close()
    assert first.out.joinpath("ledger.jsonl").is_file()
    fresh = tiny.gpt2()
    again = torch.optim.Adam(fresh.parameters(), lr=0.01)
    said: list[str] = []
    second = engine(rounds=4, resume=True, say=said.append)
    rounds = []
    for step in second.attach(fresh, tiny.tokenizer()).rounds(again):
        rounds.append(step.round)
        if step.round == 4:
            assert again.state_dict()["state"][0]["step"] == 2
        again.step()
    # the third round was spent, and lost with the process before its checkpoint
    assert rounds == [4]
    assert any("1 rounds were spent after the last checkpoint" in line for line in said)
    assert second.certificate().rounds_spent == 4


def test_an_unfinished_engine_certifies_no_model(engine):
    made = engine("part")
    private = made.attach(tiny.gpt2(), tiny.tokenizer())
    private.round(0)
    certificate = made.certificate()
    assert (certificate.rounds_spent, certificate.files) == (1, {})
    made.close()
    assert made.certificate() == certificate


def test_bad_settings_are_refused_when_the_engine_is_made(corpus):
    for options, complaint in (
        ({"target_epsilon": -1}, "privacy.epsilon -1"),
        ({"target_epsilon": 8, "noise": 1.0}, "give either epsilon or noise"),
        ({"target_epsilon": 8, "user_rat": 1.0}, "privacy.user_rat: no such field"),
    ):
        with pytest.raises(UserError, match=f"PrivacyEngine: .*{complaint}"):
            uedp.PrivacyEngine(corpus, **options)


def test_callbacks_see_rounds_as_steps_and_nothing_private(engine):
    seen = []

    class Watching(TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            seen.append(("begin", state.max_steps))

        def on_step_end(self, args, state, control, model=None, optimizer=None, **kwargs):
            seen.append(("step", state.global_step))
            assert model is not None
            assert optimizer is not None
            control.should_training_stop = state.global_step == 2
            assert not state.log_history
            return control

        def on_train_end(self, args, state, control, **kwargs):
            seen.append(("end", state.global_step))

    model = tiny.gpt2()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    halved = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    made = engine("callbacks")
    UedpTrainer(model, made, tiny.tokenizer(), optimizer, halved, [Watching()]).train()
    assert seen == [("begin", 3), ("step", 1), ("step", 2), ("end", 2)]
    assert math.isclose(optimizer.param_groups[0]["lr"], 0.025)
    assert len(of_kind(read_chain(made.out / "ledger.jsonl")[0], "rounds")) == 2
    assert made.certificate().rounds_spent == 2


def test_a_model_in_memory_is_known_to_have_learned_from_the_corpus(engine):
    model = tiny.gpt2()
    for _ in engine("memory", rounds=1).attach(model, tiny.tokenizer()).rounds():
        pass
    with pytest.raises(UserError, match="has learned from this corpus already"):
        engine("again").attach(model, tiny.tokenizer())


def test_a_parameter_unfrozen_after_attaching_is_refused(engine):
    model = tiny.gpt2()
    model.transformer.wpe.requires_grad_(False)
    made = engine("unfrozen")
    rounds = made.attach(model, tiny.tokenizer()).rounds()
    next(rounds)
    assert model.transformer.wpe.weight.grad is None
    model.transformer.wpe.requires_grad_(True)
    with pytest.raises(UserError, match="not those that were attached"):
        next(rounds)
    made.close()


def test_no_stale_or_ordinary_gradient_is_left_for_the_optimizer(engine):
    model = tiny.gpt2()
    model.transformer.wpe.requires_grad_(False)
    model.transformer.wpe.weight.grad = torch.ones_like(model.transformer.wpe.weight)
    made = engine("stale")
    next(made.attach(model, tiny.tokenizer()).rounds())
    assert model.transformer.wpe.weight.grad is None
    made.close()


def test_a_model_in_half_precision_pays_for_its_rounding(engine):
    made = engine("half")
    private = made.attach(tiny.gpt2().to(torch.bfloat16), tiny.tokenizer())
    assert private.plan.setup().precision == "bfloat16"
    assert private.plan.clips.margin > 0.01
    next(private.rounds())
    made.close()


def test_rounds_go_on_where_an_earlier_loop_stopped(engine):
    model = tiny.gpt2()
    made = engine("twice")
    private = made.attach(model, tiny.tokenizer())
    for _ in private.rounds():
        break
    with torch.no_grad():
        model.lm_head.weight.add_(1.0)  # what the loop's owner did since
    changed = model.lm_head.weight.detach().clone()
    assert [step.round for step in private.rounds()] == [2, 3]
    assert torch.equal(model.lm_head.weight, changed)
    assert list(private.rounds()) == []
    with pytest.raises(UserError, match="this run is finished"):
        engine("twice", resume=True).attach(model, tiny.tokenizer())
    assert made.certificate().rounds_spent == 3


def test_a_module_of_ones_own_is_saved_by_its_tensors(engine, tmp_path):
    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = tiny.gpt2()

        def forward(self, input_ids):
            return self.inner(input_ids=input_ids)

    model = Own()
    made = engine("own", rounds=1)
    for _ in made.attach(model, tiny.tokenizer()).rounds():
        pass
    assert "model.safetensors" in verify(tmp_path / "own").files
    other = Own()
    load_tensors(other, tmp_path / "own" / "model.safetensors")
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)


def edited(folder: Path, section: str, **fields) -> None:
    """As a person would, in the folder of the run."""
    values = yaml.safe_load((folder / CONFIG).read_text())
    values[section] |= fields
    (folder / CONFIG).write_text(yaml.safe_dump(values))


def unclippable(folder: Path) -> Path:
    config = transformers.MambaConfig(
        vocab_size=tiny.WORDS, hidden_size=16, num_hidden_layers=1, state_size=4
    )
    return tiny.saved(folder, transformers.MambaForCausalLM(config))


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


@pytest.mark.parametrize("method", PLAIN)
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


@pytest.mark.parametrize("method", PRIVATE)
def test_a_round_is_in_the_ledger_before_its_noise(method, train, tmp_path, monkeypatch):
    module = uedp_alg if method == "uedp-alg" else release
    add_noise, on_disk = module.add_once_, []

    def spy(*arguments):
        on_disk.append(len(spent(tmp_path / "run")))
        add_noise(*arguments)

    monkeypatch.setattr(module, "add_once_", spy)
    train(privacy__method=method)
    assert on_disk == [1, 2, 3, 4]


def test_a_fixed_seed_is_not_private(train, tmp_path):
    outcome = train(privacy__seed=3, privacy__rounds=1)
    assert not outcome.certificate.private
    assert outcome.certificate.statement.startswith("This run has no privacy guarantee.\n")
    assert train.said[0] == "This run has no privacy guarantee."
    assert CorpusLedger(tmp_path / "corpus").epsilon(1e-5) == math.inf
    assert any("fixed seed" in caveat for caveat in outcome.certificate.caveats)
    certificates.verify(tmp_path / "run")


def test_the_guarantee_is_stated_before_anything_is_trained(tmp_path):
    said = []

    def say(line):
        said.append(line)
        raise SimulatedCrashError

    config = worlds.config("no such model")  # which is not even looked for
    with pytest.raises(SimulatedCrashError):
        loop.run(config, tmp_path / "run", data=worlds.training_data(tmp_path / "corpus"), say=say)
    assert said[0].startswith("The model is (")
    assert not (tmp_path / "run").exists()


def test_a_run_over_the_corpus_budget_leaves_no_trace(train, tmp_path):
    train("first", privacy__corpus_budget=1e3)
    before = snapshot(tmp_path / "corpus")
    with pytest.raises(UserError, match="all runs on this corpus would come to"):
        train("deep/second", privacy__corpus_budget=1.0)
    assert snapshot(tmp_path / "corpus") == before
    assert not (tmp_path / "deep").exists()


def test_the_certificate_of_a_stopped_run_covers_its_plan(train, tmp_path):
    """That it stopped may depend on the data."""
    stopped = train(progress=stopping_after(2)).certificate
    assert (stopped.rounds_planned, stopped.rounds_spent) == (4, 2)
    assert certificates.verify(tmp_path / "run") == stopped
    finished = train(resume=True).certificate
    assert finished.epsilon == stopped.epsilon
    assert (finished.rounds_planned, finished.rounds_spent) == (4, 4)
    assert certificates.verify(tmp_path / "run") == finished


@pytest.mark.parametrize("method", PRIVATE)
def test_lost_rounds_stay_spent(method, train, tmp_path, monkeypatch):
    kind = UedpAlg if method == "uedp-alg" else ClippedMethod
    with crashing_in(2, kind), pytest.raises(SimulatedCrashError):
        train(privacy__method=method)
    assert spent(tmp_path / "run") == [(0, 1), (1, 1), (2, 1)]
    round_, numbers = kind.round, []

    def spy(self, number, attempt):
        numbers.append(number)
        return round_(self, number, attempt)

    monkeypatch.setattr(kind, "round", spy)
    outcome = train(privacy__method=method, resume=True)
    assert "3 rounds were spent after the last checkpoint; they count but are lost" in train.said
    assert numbers == [3]  # none again, not even by number: with a seed it would be the same noise
    assert spent(tmp_path / "run") == [(n, 1) for n in range(4)]
    assert outcome.finished
    assert certificates.verify(tmp_path / "run").rounds_spent == 4
    assert [row["round"] for row in metrics(tmp_path / "run")] == [1, 2, 4]


def test_a_run_that_lost_all_rounds_is_finished(train, tmp_path):
    with crashing_in(3), pytest.raises(SimulatedCrashError):
        train()
    outcome = train(resume=True)
    assert outcome.finished
    assert outcome.after == outcome.before  # nothing was learned, and nothing more may be spent
    assert len(spent(tmp_path / "run")) == 4


@pytest.mark.parametrize("method", PLAIN)
def test_lost_rounds_without_noise_are_repeated(method, train, tmp_path):
    options = {"privacy__method": method, "privacy__seed": 1}
    with crashing_in(2, Noiseless), pytest.raises(SimulatedCrashError):
        train(**options)
    assert [row["round"] for row in metrics(tmp_path / "run")] == [1, 2]
    train(resume=True, **options)
    assert [row["round"] for row in metrics(tmp_path / "run")] == [1, 2, 3, 4]
    train("whole", **options)
    assert same_tensors(weights(tmp_path / "whole"), weights(tmp_path / "run"))


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


def test_resuming_on_another_incidence_is_refused(train, tmp_path):
    train(progress=stopping_after(1))
    other = worlds.training_data(
        tmp_path / "corpus", incidence=worlds.incidence(30, 4), train=Texts(["a b"] * 120, [])
    )
    with pytest.raises(UserError, match=r"this run was planned differently: shape\.digest is"):
        train(resume=True, data=other)


def test_deleting_the_seed_makes_no_run_private(train, tmp_path):
    train(privacy__seed=3, progress=stopping_after(2))
    edited(tmp_path / "run", "privacy", seed=None)
    with pytest.raises(UserError, match=r"setup.noise_source is 'fixed seed', not 'cipher'"):
        train(resume=True)
    assert len(spent(tmp_path / "run")) == 2


def test_resuming_in_another_precision_is_refused(train, tmp_path):
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
def test_resuming_on_other_texts_or_labels_is_refused(train, tmp_path, change):
    train(progress=stopping_after(2))
    before = snapshot(tmp_path / "run", tmp_path / "corpus")
    with pytest.raises(UserError, match=r"setup\.texts is"):
        train(resume=True, data=worlds.training_data(tmp_path / "corpus", **change))
    assert snapshot(tmp_path / "run", tmp_path / "corpus") == before


def test_resuming_with_another_detection_is_refused(train, tmp_path):
    info = {"detectors": ["patterns"], "categories": ["person"], "propagated": True}
    train(data=worlds.training_data(tmp_path / "corpus", info=info), progress=stopping_after(2))
    other = worlds.training_data(tmp_path / "corpus", info={**info, "propagated": False})
    with pytest.raises(UserError, match=r"setup\.entities\.propagated is True, not False"):
        train(resume=True, data=other)


def test_recorded_digests_reveal_nothing_about_texts(train, tmp_path):
    """Who knows all texts but one could try what that one says against a plain hash."""
    first = train("one", privacy__rounds=1).certificate
    again = train("two", privacy__rounds=1).certificate
    other = worlds.training_data(tmp_path / "elsewhere")
    elsewhere = train("three", privacy__rounds=1, data=other).certificate
    plain = other.text_digest
    assert first.setup.texts == again.setup.texts != elsewhere.setup.texts
    ledgers = [(tmp_path / run / "ledger.jsonl").read_text() for run in ("one", "two", "three")]
    assert not any(plain in text for text in ledgers)


def test_the_weights_of_another_run_do_not_verify(train, tmp_path):
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


def test_a_stopped_run_has_no_certified_model(train, tmp_path):
    stopped = train(progress=stopping_after(2)).certificate
    assert stopped.files == {}
    certificates.verify(tmp_path / "run")
    (tmp_path / "run" / "model.safetensors").write_bytes(b"from elsewhere")
    with pytest.raises(UserError, match="no model was certified"):
        certificates.verify(tmp_path / "run")
    assert train(resume=True).certificate.files


def test_files_added_to_an_unfinished_run_are_not_certified(train, tmp_path):
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


def test_a_run_counts_all_planned_rounds_until_it_is_closed(train, tmp_path):
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


def test_a_refused_run_leaves_no_trace(train, tmp_path):
    model = unclippable(tmp_path / "mamba")
    for changes, complaint in [
        ({"model": model}, "mixer"),
        ({"model": tmp_path / "nowhere"}, "no such folder"),
        ({"run__device": "abacus"}, "run.device 'abacus': not available on this machine"),
        ({"privacy__user_rate": 0.01}, "too few to hide among"),
        ({"model__train": "last:7"}, "choose at most 1, the blocks of the model"),
    ]:
        with pytest.raises(UserError, match=complaint) as refused:
            train("a/run", **changes)
        assert "\n" not in str(refused.value)
        assert not (tmp_path / "a").exists()
        assert not list((tmp_path / "corpus").iterdir())
    # without clipping, any model will do
    assert train(model=model, privacy__method="noiseless", privacy__rounds=1).finished


# --- attacks -------------------------------------------------------------------------------------


class Wrapped(torch.nn.Module):
    def __init__(self, inner=None):
        super().__init__()
        self.inner = inner or tiny.gpt2(layers=1)
        self.config = self.inner.config

    def forward(self, **inputs):
        return self.inner(**inputs)


def test_a_tensor_that_is_no_parameter_gets_no_gradient_without_noise(engine):
    class Hiding(Wrapped):
        def __init__(self):
            super().__init__()
            self.hidden = [torch.nn.Parameter(torch.zeros(tiny.WORDS))]

        def forward(self, **inputs):
            output = super().forward(**inputs)
            output.logits = output.logits + self.hidden[0]
            return output

    with pytest.raises(UserError, match="no parameter of the model"):
        engine("hidden").attach(Hiding(), tiny.tokenizer())


def test_a_model_that_mixes_only_padded_sentences_is_refused(engine):
    class MixingPadded(Wrapped):
        def forward(self, position_ids=None, **inputs):
            output = self.inner(position_ids=position_ids, **inputs)
            if position_ids is None:  # sentences that share rows come with their positions
                output.logits = output.logits - output.logits.mean(0, keepdim=True)
            return output

    with pytest.raises(UserError, match="changes with the sentences beside it"):
        engine("padded").attach(MixingPadded(), tiny.tokenizer())


@pytest.mark.parametrize("again", [Wrapped, copy.deepcopy, lambda model: model.transformer])
def test_a_trained_model_in_another_shape_is_known_to_have_learned(engine, again):
    model = tiny.gpt2(layers=1)
    made = engine("shape", method="noiseless", target_epsilon=None)
    made.attach(model, tiny.tokenizer()).round(0)
    made.close()
    with pytest.raises(UserError, match="has learned from this corpus already"):
        engine("again").attach(again(model), tiny.tokenizer())


def test_a_model_loaded_from_a_run_is_known_inside_another_module(engine, tmp_path):
    for _ in engine("inner", rounds=1).attach(tiny.gpt2(layers=1), tiny.tokenizer()).rounds():
        pass
    trained = load_model(tmp_path / "inner", "next-word").model
    with pytest.raises(UserError, match="has learned from this corpus already"):
        engine("outer").attach(Wrapped(trained), tiny.tokenizer())


def test_a_model_trained_in_another_run_since_it_was_attached_is_refused(engine):
    model = tiny.gpt2(layers=1)
    plain = engine("plain", rounds=1, method="noiseless", target_epsilon=None)
    made, others = engine("private"), plain.attach(model, tiny.tokenizer())
    private = made.attach(model, tiny.tokenizer())
    others.round(0)
    plain.close()
    with pytest.raises(UserError, match=f"trained in run {others.name} since"):
        private.round(0)
    assert made.certificate().rounds_spent == 0
    made.close()


def test_a_tokenizer_made_from_the_corpus_leaves_no_guarantee(engine, tmp_path):
    made = engine("words")
    digest = made.attach(tiny.gpt2(layers=1), tiny.tokenizer()).plan.shape.digest
    made.close()
    tiny.tokenizer().save_pretrained(tmp_path / "tokenizer")
    ancestor = lineage.Ancestor("earlier", "noiseless", digest, words="from the corpus")
    lineage.write_lineage(tmp_path / "tokenizer", (ancestor,))
    made = engine("corpus words")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "tokenizer")
    assert not made.attach(tiny.gpt2(layers=1), tokenizer).plan.private
    made.close()


def test_what_the_caller_computes_in_does_not_change_a_round(engine):
    made = engine("ambient", seed=3)
    private = made.attach(tiny.gpt2(layers=1), tiny.tokenizer())
    expected = private.round(0).values
    with torch.autocast("cpu", torch.bfloat16):
        for one, other in zip(expected, private.round(0).values, strict=True):
            assert torch.equal(one, other)
    torch.set_default_dtype(torch.bfloat16)
    try:
        sums = private.round(0).values
    finally:
        torch.set_default_dtype(torch.float32)
    for one, other in zip(expected, sums, strict=True):
        assert other.dtype == torch.float32
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-4)
    made.close()


def test_quantised_weights_count_as_half_precision(engine):
    model = Wrapped()
    model.codes = torch.nn.Parameter(torch.zeros(4, dtype=torch.uint8), requires_grad=False)
    made = engine("quantised")
    assert made.attach(model, tiny.tokenizer()).plan.setup().precision == "bfloat16"
    made.close()


def test_a_run_with_rounds_left_is_not_finished(engine):
    made = engine("left")
    private = made.attach(tiny.gpt2(layers=1), tiny.tokenizer())
    with pytest.raises(UserError, match="3 rounds are left"):
        private.finish()
    assert not list(made.out.glob("*.safetensors"))
    with pytest.raises(UserError, match="this engine has a model"):
        made.attach(tiny.gpt2(layers=1), tiny.tokenizer())
    assert [step.round for step in private.rounds()] == [1, 2, 3]
    assert private.finished


def test_no_round_is_made_after_the_ledger_was_closed(engine):
    made = engine("closed")
    model = tiny.gpt2(layers=1)
    rounds = made.attach(model, tiny.tokenizer()).rounds()
    next(rounds)
    model.zero_grad()
    made.close()
    with pytest.raises(ValueError, match="closed file"):
        next(rounds)
    assert all(p.grad is None for p in model.parameters())


def test_a_callback_that_fails_leaves_the_run_to_be_resumed(engine):
    class Failing(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            raise RuntimeError("no")

    for resume in (False, True):
        model = tiny.gpt2(layers=1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        made = engine("failing", resume=resume)
        with pytest.raises(RuntimeError, match="no"):
            UedpTrainer(model, made, tiny.tokenizer(), optimizer, callbacks=[Failing()]).train()
    assert len(of_kind(read_chain(made.out / "ledger.jsonl")[0], "rounds")) == 2


def test_models_that_cannot_be_trained_are_refused_by_name(engine, corpus):
    with pytest.raises(UserError, match="Sequential: has no parameters"):
        engine().attach(torch.nn.Sequential(), tiny.tokenizer())
    with pytest.raises(UserError, match=r"Linear: .*config\.id2label"):
        engine(task="classification", labels=("a", "b")).attach(
            torch.nn.Linear(2, 2), tiny.tokenizer()
        )
    with pytest.raises(UserError, match="either target_epsilon or epsilon"):
        uedp.PrivacyEngine(corpus, target_epsilon=8, epsilon=9)
