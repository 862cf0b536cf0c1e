"""What is trained can be clipped, computes what it did before, and is saved as a plain model."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from tests.models import tiny
from uedp.errors import UserError
from uedp.mechanism.clip import Engine
from uedp.mechanism.clip.reference import clipped_sum
from uedp.models import awd_lstm
from uedp.models.load import load_model
from uedp.models.trainable import make_trainable, save_model, trained_names

MODELS = {
    "gpt2": lambda: tiny.gpt2(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0),
    "llama": lambda: tiny.llama(pad_token_id=0),
    "opt": tiny.opt,
    "bert classifier": lambda: tiny.bert(num_labels=3),
    "gpt2 classifier": lambda: tiny.gpt2(labels=3),
}
TEXTS = ["the end", "then what is left of it?", "the", "no", "all the same to me"]
OWNERS = [0, 1, 0, 2, 1]


@pytest.fixture(autouse=True)
def asked() -> Iterator[None]:
    """Whoever asks the network fails the test."""
    with tiny.no_network() as attempts:
        yield
    assert not attempts


def batch(texts: list[str] = TEXTS) -> Any:
    tokenizer = tiny.tokenizer()
    tokenizer.pad_token = tokenizer.eos_token
    return tokenizer(texts, padding=True, return_tensors="pt")


def logits(model: nn.Module) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(**batch()).logits
    return found


def losses(model: nn.Module, order: list[int]) -> Tensor:
    """Of each sentence, by its own tokens: the next one, or its label."""
    inputs = {name: tensor[order] for name, tensor in batch().items()}
    found = model(**inputs).logits
    if found.dim() == 2:
        labels = torch.tensor(order) % 3
        return nn.functional.cross_entropy(found, labels, reduction="none")
    mask = inputs["attention_mask"][:, 1:]
    targets = inputs["input_ids"][:, 1:]
    each = nn.functional.cross_entropy(found[:, :-1].mT, targets, reduction="none")
    return (each * mask).sum(1) / mask.sum(1).clamp(min=1)


def shaken(model: nn.Module) -> nn.Module:
    """As after some training: LoRA begins with a zero, which would hide mistakes."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data += 0.05 * torch.randn_like(parameter)
    return model


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        (kind, how)
        for kind in MODELS
        for how in ("full", "lora", "lora-b", "lora:1", "last:2")
        if (kind, how) != ("opt", "full")  # refused: see below
    ],
)
def test_the_engine_clips_it_exactly(kind, how):
    model = shaken(make_trainable(MODELS[kind](), how, rank=2))
    exact = copy.deepcopy(model).double()
    clips = [0.5, 0.1, 0.2, 9.0, 0.3]
    expected, norms = clipped_sum(exact, lambda i: losses(exact, [i])[0], OWNERS, clips, 0.4)
    found = Engine(model).clipped_sum(
        lambda order: losses(model, list(order)),
        OWNERS,
        torch.tensor(clips),
        0.4,
    )
    assert torch.allclose(found.sentence_norms.double(), norms, rtol=1e-4)
    trained = [p for p in model.parameters() if p.requires_grad]
    for parameter, wanted in zip(trained, expected, strict=True):
        got = found.gradients[parameter] if parameter in found.gradients else 0 * parameter
        # factors divide by upper bounds of the norms
        assert torch.allclose(got.double(), wanted, rtol=2e-3, atol=1e-5)


def test_a_layer_without_a_rule_is_refused_by_name_if_it_is_trained():
    with pytest.raises(UserError, match=r"embed_positions \(OPTLearnedPositionalEmbedding\)"):
        Engine(make_trainable(tiny.opt(), "full"))
    Engine(make_trainable(tiny.opt(), "lora"))


@pytest.mark.parametrize("how", ["full", "lora", "lora-b", "lora:1", "last:2"])
@pytest.mark.parametrize("kind", MODELS)
def test_what_the_model_computes_is_unchanged(kind, how):
    before = logits(MODELS[kind]())
    model = make_trainable(MODELS[kind](), how)
    assert torch.allclose(logits(model), before, atol=1e-5)
    assert not model.training


# --- full ----------------------------------------------------------------------------------------


def test_full_is_every_weight():
    model = tiny.gpt2().requires_grad_(False)
    make_trainable(model, "full")
    assert trained_names(model) == [name for name, _ in model.named_parameters()]


# --- lora ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "layers"),
    [
        ("gpt2", "attn.c_attn attn.c_proj mlp.c_fc mlp.c_proj"),
        ("llama", "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj"),
        ("opt", "k_proj v_proj q_proj out_proj fc1 fc2"),
    ],
)
def test_adapters_are_on_all_linear_layers_of_the_blocks_and_on_nothing_else(kind, layers):
    names = trained_names(make_trainable(MODELS[kind](), "lora"))
    assert len(names) == 3 * 2 * len(layers.split())  # blocks, factors
    for layer in layers.split():
        assert sum(f"{layer}.lora_A" in name for name in names) == 3
        assert sum(f"{layer}.lora_B" in name for name in names) == 3


@pytest.mark.parametrize("kind", ["bert classifier", "gpt2 classifier"])
def test_a_classifiers_head_is_trained_whole(kind):
    names = trained_names(make_trainable(MODELS[kind](), "lora"))
    head = [name for name in names if "lora_" not in name]
    assert len(head) == (2 if kind.startswith("bert") else 1)
    assert all(".modules_to_save.default." in name for name in head)


def test_adapters_have_the_rank_and_scale_asked_for_and_no_dropout():
    def layer(**options: Any) -> Any:
        return make_trainable(tiny.llama(), "lora", **options).get_base_model().model.layers[0]

    adapter = layer(rank=3, alpha=12).mlp.up_proj
    assert adapter.lora_A["default"].weight.shape == (3, 32)
    assert adapter.lora_B["default"].weight.shape == (48, 3)
    assert adapter.scaling["default"] == 4
    assert layer().mlp.up_proj.scaling["default"] == 2
    assert isinstance(adapter.lora_dropout["default"], nn.Identity)


def test_half_of_each_adapter_may_stay_as_it_was_drawn():
    whole, half = (make_trainable(tiny.bert(), how, rank=3) for how in ("lora", "lora-b"))
    left = set(trained_names(whole)) - set(trained_names(half))
    assert left == {name for name in trained_names(whole) if ".lora_A." in name}
    assert left
    # a classifier's head is trained whole all the same
    assert any("lora" not in name for name in trained_names(half))


def test_adapters_come_from_the_seed_alone():
    def start(seed: int) -> Tensor:
        model = make_trainable(tiny.gpt2(), "lora", seed=seed)
        return torch.cat([p.flatten() for n, p in model.named_parameters() if "lora_A" in n])

    before = torch.random.get_rng_state()
    one = start(1)
    assert torch.equal(before, torch.random.get_rng_state())
    torch.rand(7)
    assert torch.equal(one, start(1))
    assert not torch.equal(one, start(2))


def test_an_adapted_model_still_writes():
    model: Any = make_trainable(tiny.llama(), "lora")
    told = tiny.tokenizer()("the", return_tensors="pt")["input_ids"]
    written = model.generate(input_ids=told, max_new_tokens=4, do_sample=False, pad_token_id=0)
    assert written.shape == (1, 5)


def test_adapters_in_the_last_blocks_only():
    names = trained_names(make_trainable(tiny.llama(), "lora:1"))
    last = max(int(name.split(".layers.")[1].split(".")[0]) for name in names)
    assert names
    assert all(f".layers.{last}." in name for name in names)
    everywhere = trained_names(make_trainable(tiny.llama(), "lora"))
    assert names == [name for name in everywhere if f".layers.{last}." in name]
    halves = trained_names(make_trainable(tiny.llama(), "lora-b:1"))
    assert halves == [name for name in names if ".lora_B." in name]


# --- last:N --------------------------------------------------------------------------------------


def modules(model: nn.Module) -> set[str]:
    return {name.rpartition(".")[0] for name in trained_names(model)}


def test_the_last_blocks_and_what_follows():
    names = modules(make_trainable(tiny.gpt2(), "last:1"))
    assert {name for name in names if ".h." not in name} == {"transformer.ln_f"}
    assert {name.split(".")[2] for name in names if ".h." in name} == {"2"}


def test_the_final_norm_is_found_wherever_it_is_declared():
    """OPT declares it before the blocks."""
    names = modules(make_trainable(tiny.opt(), "last:2"))
    outside = {name for name in names if ".layers." not in name}
    assert outside == {"model.decoder.final_layer_norm"}
    blocks = {name.split(".")[3] for name in names if ".layers." in name}
    assert blocks == {"1", "2"}


def test_a_head_is_trained_unless_it_is_the_embedding():
    tied = modules(make_trainable(tiny.llama(), "last:1"))
    assert not {"lm_head", "model.embed_tokens"} & tied
    config = copy.deepcopy(tiny.llama().config)
    config.tie_word_embeddings = False
    untied = make_trainable(transformers.LlamaForCausalLM(config), "last:1")
    assert {"lm_head", "model.norm"} <= modules(untied)


def test_a_classifiers_head_may_be_all_that_is_trained():
    model = make_trainable(tiny.bert(num_labels=3), "last:0")
    assert modules(model) == {"bert.pooler.dense", "classifier"}


def test_our_own_models_have_blocks_too():
    config = awd_lstm.AwdLstmConfig(vocab_size=tiny.WORDS)
    names = trained_names(make_trainable(awd_lstm.AwdLstmForCausalLM(config), "last:1"))
    assert names
    assert not any("embed_tokens" in name for name in names)


@pytest.mark.parametrize(
    ("how", "options", "said"),
    [
        ("some", {}, "train 'some': must be `full`, `lora`, `lora-b`, `lora:N`"),
        ("last:", {}, "must be `full`, `lora`, `lora-b`, `lora:N`, `probe` or `last:N`"),
        ("last:4", {}, "choose at most 3"),
        ("lora:4", {}, "train 'lora:4': choose at most 3"),
        ("probe", {}, "train 'probe': for classification"),
        ("lora", {"rank": 0}, "rank 0: must be at least 1"),
        ("lora", {"alpha": 0.0}, "alpha 0.0: must be above 0"),
    ],
)
def test_ways_that_make_no_sense(how, options, said):
    with pytest.raises(UserError, match=said):
        make_trainable(tiny.gpt2(), how, **options)


class Bag(transformers.PreTrainedModel):
    """No blocks, no linear layers."""

    config_class = transformers.GPT2Config

    def __init__(self) -> None:
        super().__init__(transformers.GPT2Config())
        self.embed = nn.Embedding(5, 2)


def test_models_of_another_make():
    with pytest.raises(UserError, match="Bag has no linear layers to adapt"):
        make_trainable(Bag(), "lora")
    with pytest.raises(UserError, match="Bag is not made of blocks"):
        make_trainable(Bag(), "last:1")


# --- saving --------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["full", "lora", "lora-b", "lora:1", "last:1"])
@pytest.mark.parametrize("kind", MODELS)
def test_what_is_saved_loads_as_a_plain_model(tmp_path, kind, how):
    model = shaken(make_trainable(MODELS[kind](), how))
    before = copy.deepcopy(model.state_dict())
    save_model(model, tmp_path / "run", tiny.tokenizer())
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)

    name = "ForSequenceClassification" if "classifier" in kind else "ForCausalLM"
    reader = getattr(transformers, f"AutoModel{name}")
    plain = reader.from_pretrained(tmp_path / "run")
    assert "lora" not in "".join(trained_names(plain))
    assert torch.allclose(logits(plain), logits(model), atol=1e-4)
    assert not torch.allclose(logits(plain), logits(MODELS[kind]()), atol=1e-4)
    again = load_model(tmp_path / "run", "classification" if "classifier" in kind else "next-word")
    assert again.new_weights == ()
    assert (tmp_path / "run" / "adapter").exists() == how.startswith("lora")


@pytest.mark.parametrize("kind", MODELS)
def test_the_adapter_alone_gives_the_model_back(tmp_path, kind):
    import peft

    model = shaken(make_trainable(MODELS[kind](), "lora", rank=3))
    save_model(model, tmp_path / "run")
    again = peft.PeftModel.from_pretrained(MODELS[kind](), tmp_path / "run" / "adapter")
    assert torch.allclose(logits(again), logits(model), atol=1e-5)


def test_half_precision_is_rounded_once(tmp_path):
    """The adapters stay exact, and their product is added before it is rounded."""
    from safetensors.torch import load_file

    model: Any = shaken(make_trainable(tiny.llama().bfloat16(), "lora"))
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.float32}
    layer = model.get_base_model().model.layers[0].mlp.up_proj
    product = layer.lora_B["default"].weight @ layer.lora_A["default"].weight
    wanted = (layer.base_layer.weight.float() + 2 * product).bfloat16()
    save_model(model, tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    assert torch.equal(weights["model.layers.0.mlp.up_proj.weight"], wanted)
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}


def test_tied_weights_stay_tied_and_are_written_once(tmp_path):
    from safetensors.torch import load_file

    save_model(make_trainable(tiny.llama(), "lora"), tmp_path)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert plain.lm_head.weight is plain.model.embed_tokens.weight


def test_no_path_of_this_machine_is_written(tmp_path):
    folder = tiny.saved(tmp_path / "secret place" / "model", tiny.gpt2())
    for how in ("full", "lora"):
        loaded = load_model(folder)
        save_model(make_trainable(loaded.model, how), tmp_path / how, loaded.tokenizer)
        for path in (tmp_path / how).rglob("*"):
            assert path.is_dir() or b"secret place" not in path.read_bytes(), path


def test_other_files_stay_and_nothing_else_is_left(tmp_path):
    (tmp_path / "ledger.jsonl").write_text("kept")
    save_model(make_trainable(tiny.gpt2(), "lora"), tmp_path)
    save_model(make_trainable(tiny.gpt2(), "lora"), tmp_path)
    assert (tmp_path / "ledger.jsonl").read_text() == "kept"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "adapter",
        "config.json",
        "generation_config.json",
        "ledger.jsonl",
        "model.safetensors",
    ]
    assert sorted(path.name for path in (tmp_path / "adapter").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]


def test_a_save_that_fails_leaves_the_old_model(tmp_path, monkeypatch):
    model: Any = tiny.gpt2()
    save_model(model, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(*arguments: object, **options: object) -> None:
        (Path(arguments[0]) / "model.safetensors").write_bytes(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr(model, "save_pretrained", full)
    with pytest.raises(OSError, match="no space"):
        save_model(model, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_first_save_that_is_cut_short_is_not_taken_for_a_model(tmp_path, monkeypatch):
    """config.json comes last: before it, `load_model` sees no model."""
    put = Path.replace
    seen: list[str] = []

    def record(self: Path, target: Path) -> Path:
        seen.append(target.name)
        return put(self, target)

    monkeypatch.setattr(Path, "replace", record)
    save_model(tiny.gpt2(), tmp_path)
    assert "model.safetensors" in seen
    assert seen[-1] == "config.json"


def test_saving_prints_nothing(tmp_path, capfd):
    save_model(make_trainable(tiny.gpt2(), "lora"), tmp_path)
    assert capfd.readouterr() == ("", "")
