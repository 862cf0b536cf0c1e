import math

import pytest
import torch
from safetensors.torch import load_model as load_tensors
from transformers import TrainerCallback

import uedp
from tests.models import tiny
from tests.training import worlds
from uedp.accounting.certificate import verify
from uedp.accounting.chain import of_kind, read_chain
from uedp.accounting.ledger import CorpusLedger
from uedp.entities.detection import Detection, detect
from uedp.errors import UserError
from uedp.models.load import load_model
from uedp.training.datasets import read_texts
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


def test_the_loop_of_the_readme(engine, corpus, tmp_path):
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


def test_an_engine_whose_rounds_are_not_finished_certifies_no_model(engine):
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
