import shutil
import socket
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from huggingface_hub import constants
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForTokenClassification,
)

from uedp.corpus.sentence import Span
from uedp.entities.detectors import Detector, load_detector
from uedp.entities.detectors.transformers import Tag, load_transformers, spans, tags
from uedp.errors import UserError

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
PIECES = ["in", "lives", ",", "'", "Ada", "Love", "##la", "##ce", "New", "York", "Bell", "x", "##s"]
LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-ORG"]
KNOWN = {"Ada": "B-PER", "Love": "I-PER", "New": "B-LOC", "York": "I-LOC", "Bell": "B-ORG"}
# Pieces inside a word are judged wrongly on purpose: a word goes by its first.
KNOWN |= {"##la": "B-LOC", "##s": "I-LOC"}


def wordpiece(**options: int) -> PreTrainedTokenizerFast:
    vocabulary = {token: index for index, token in enumerate(SPECIAL + PIECES)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return finished(tokenizer, vocabulary, **options)


def finished(
    tokenizer: Tokenizer, vocabulary: dict[str, int], **options: int
) -> PreTrainedTokenizerFast:
    around = [(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", None, around)
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names, **options)


def forced(
    vocabulary: dict[str, int],
    known: dict[str, str],
    *,
    limit: int = 64,
    blind: Iterable[int] = (),
    labels: list[str] = LABELS,
) -> BertForTokenClassification:
    """A BERT without layers whose label depends on the token alone, and is `O` where `blind`."""
    size = len(vocabulary) + 1  # one feature per token, and one for blind positions
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=size,
        num_hidden_layers=0,
        num_attention_heads=1,
        intermediate_size=4,
        max_position_embeddings=limit,
        id2label=dict(enumerate(labels)),
    )
    model = BertForTokenClassification(config)
    embeddings = model.bert.embeddings
    with torch.no_grad():
        for weights in (embeddings.token_type_embeddings.weight, model.classifier.weight):
            weights.zero_()
        embeddings.word_embeddings.weight.copy_(torch.eye(len(vocabulary), size))
        embeddings.position_embeddings.weight.zero_()
        embeddings.position_embeddings.weight[list(blind), -1] = 10.0
        # The feature of a token comes out of the norm as about the root of their number.
        model.classifier.bias.zero_()[0] = size**0.5 / 2
        model.classifier.weight[0, -1] = 1.0
        for token, label in known.items():
            model.classifier.weight[labels.index(label), vocabulary[token]] = 1.0
    return model


def saved(
    folder: Path, model: torch.nn.Module, tokenizer: PreTrainedTokenizerFast | None = None
) -> str:
    model.save_pretrained(folder)
    (tokenizer or wordpiece()).save_pretrained(folder)
    return str(folder)


def small(**options: object) -> BertConfig:
    sizes = {"hidden_size": 8, "num_hidden_layers": 0, "num_attention_heads": 1}
    return BertConfig(vocab_size=len(SPECIAL + PIECES), intermediate_size=8, **(sizes | options))


@pytest.fixture
def folder(tmp_path: Path) -> str:
    tokenizer = wordpiece()
    return saved(tmp_path / "model", forced(tokenizer.get_vocab(), KNOWN), tokenizer)


def found(detector: Detector, *texts: str) -> list[list[tuple[str, str]]]:
    return [
        [(text[span.start : span.end], span.label) for span in one]
        for text, one in zip(texts, detector.detect(texts), strict=True)
    ]


@pytest.mark.usefixtures("no_network")
def test_words_are_whole_and_entities_joined(folder: str) -> None:
    detector = load_detector(f"transformers:{folder}")
    (one,) = detector.detect(["in Ada  Lovelace , New Yorks, Bell"])
    assert one == [Span(3, 16, "PER"), Span(19, 28, "LOC"), Span(30, 34, "ORG")]
    assert detector.propagates


def test_every_text_has_its_list_whatever_its_length(folder: str) -> None:
    texts = [" in" * (number % 7) + " Ada" * (number % 2) for number in range(1500)]
    expected = [[("Ada", "PER")] if number % 2 else [] for number in range(1500)]
    assert found(load_transformers(folder), *texts) == expected


def test_padding_changes_nothing(tmp_path: Path) -> None:
    torch.manual_seed(7)
    config = small(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        initializer_range=1.0,  # so that each token's label depends on all the others
        id2label=dict(enumerate(LABELS)),
    )
    detector = load_transformers(saved(tmp_path / "model", BertForTokenClassification(config)))
    texts = ["Ada Lovelace lives in New York", "Bell", "", "x x x", "in New York , Ada lives"]
    together = found(detector, *texts)
    assert together == [found(detector, text)[0] for text in texts]
    assert len({label for one in together for _, label in one}) == 3


def test_long_texts_are_read_to_the_end(tmp_path: Path) -> None:
    tokenizer = wordpiece()
    # Truncation saved with a tokenizer must not cut the tail off.
    tokenizer.backend_tokenizer.enable_truncation(7)
    model = forced(tokenizer.get_vocab(), KNOWN, limit=16)
    detector = load_transformers(saved(tmp_path / "model", model, tokenizer))
    for words in range(1, 60):
        text = "in " * words + "Ada Lovelace"
        assert found(detector, text) == [[("Ada Lovelace", "PER")]]
    many = " , ".join(["New York"] * 100)
    assert found(detector, many) == [[("New York", "LOC")] * 100]


def test_tokens_are_judged_where_they_have_context(tmp_path: Path) -> None:
    # Room for 32 tokens, windows share 8; the model is blind at the first and last 4.
    tokenizer = wordpiece()
    blind = [1, 2, 3, 4, 29, 30, 31, 32]
    model = forced(tokenizer.get_vocab(), KNOWN, limit=34, blind=blind)
    detector = load_transformers(saved(tmp_path / "model", model, tokenizer))
    text = "in in in in" + " Bell" * 200 + " in" * 12
    assert found(detector, text) == [[("Bell", "ORG")] * 200]


def test_limit_of_the_tokenizer(tmp_path: Path) -> None:
    tokenizer = wordpiece(model_max_length=10)
    model = forced(tokenizer.get_vocab(), KNOWN, limit=64)
    seen: list[int] = []
    detector = load_transformers(saved(tmp_path / "model", model, tokenizer))
    detector._model.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    assert found(detector, "Bell " * 50) == [[("Bell", "ORG")] * 50]
    assert max(seen) == 10


def test_positions_that_begin_behind_the_padding(tmp_path: Path) -> None:
    # RoBERTa's 20 positions hold 18 tokens; a 19th is an index error.
    tokenizer = wordpiece()
    config = RobertaConfig(
        vocab_size=len(tokenizer.get_vocab()),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
        max_position_embeddings=20,
        pad_token_id=1,
        id2label=dict(enumerate(LABELS)),
    )
    model = RobertaForTokenClassification(config)
    with torch.no_grad():
        model.classifier.bias[LABELS.index("B-ORG")] = 100.0
    detector = load_transformers(saved(tmp_path / "model", model, tokenizer))
    assert found(detector, "x " * 50) == [[("x", "ORG")] * 50]


def test_byte_level_tokens(tmp_path: Path) -> None:
    # One token per byte, but for a `Z` with the space before it.
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *alphabet, "ĠZ"])}
    backend = Tokenizer(models.BPE(vocabulary, [("Ġ", "Z")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = finished(backend, vocabulary)
    model = forced(vocabulary, {"Z": "B-PER", "ĠZ": "B-PER"}, limit=20)
    detector = load_transformers(saved(tmp_path / "model", model, tokenizer))
    text = "Zoë saw Zoë, the 🐈 of Zürich's Zoo"
    assert found(detector, text) == [[(name, "PER") for name in ("Zoë", "Zoë", "Zürich", "Zoo")]]


B, I, O, X = Tag("PER", True), Tag("PER", False), Tag(None, False), Tag("LOC", False)  # noqa: E741


@pytest.mark.parametrize(
    ("text", "offsets", "judged", "expected"),
    [
        pytest.param("Ada Bo", [(0, 3), (4, 6)], [B, B], [(0, 3), (4, 6)], id="two begin"),
        pytest.param("Ada Bo", [(0, 3), (4, 6)], [I, I], [(0, 6)], id="begins inside"),
        pytest.param("Ada, Bo", [(0, 3), (3, 4), (5, 7)], [I, O, I], [(0, 3), (5, 7)], id="apart"),
        pytest.param("Ada Bo", [(0, 3), (4, 6)], [B, X], [(0, 3), (4, 6)], id="labels differ"),
        pytest.param("Adas", [(0, 2), (2, 3), (3, 4)], [B, O, X], [(0, 4)], id="pieces"),
        pytest.param("xAda", [(0, 1), (1, 4)], [O, B], [], id="first piece decides"),
        pytest.param("Ada,", [(0, 3), (3, 4)], [B, O], [(0, 3)], id="comma apart"),
        pytest.param("(Ada", [(0, 1), (1, 4)], [O, B], [(1, 4)], id="bracket apart"),
        pytest.param("东京都", [(0, 2), (2, 3)], [B, O], [(0, 2)], id="script without spaces"),
        pytest.param("दिल्ली", [(0, 1), (1, 4), (4, 6)], [B, O, O], [(0, 6)], id="vowel signs"),
        pytest.param("ë", [(0, 1), (0, 1)], [B, I], [(0, 1)], id="bytes of a letter"),
        pytest.param(" Ada", [(0, 0), (0, 4)], [O, B], [(1, 4)], id="space in the token"),
        pytest.param("", [], [], [], id="empty"),
    ],
)
def test_spans(
    text: str,
    offsets: list[tuple[int, int]],
    judged: list[Tag],
    expected: list[tuple[int, int]],
) -> None:
    assert [(span.start, span.end) for span in spans(text, offsets, judged)] == expected


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["O", "B-PER", "I-PER"], [Tag(None, False), Tag("PER", True), Tag("PER", False)]),
        (["S-LOC", "E-LOC", "O"], [Tag("LOC", True), Tag("LOC", False), Tag(None, False)]),
        (["O", "B_MISC"], [Tag(None, False), Tag("MISC", True)]),
        (["O", "PER", "S-ID"], [Tag(None, False), Tag("PER", False), Tag("S-ID", False)]),
    ],
)
def test_tags(names: list[str], expected: list[Tag]) -> None:
    assert tags(names, "") == expected


def refused(folder: Path, model: torch.nn.Module) -> str:
    with pytest.raises(UserError) as raised:
        load_transformers(saved(folder, model))
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_labels_without_a_meaning_are_refused(tmp_path: Path) -> None:
    model = BertForTokenClassification(small(num_labels=5))
    assert "LABEL_0 to LABEL_4" in refused(tmp_path, model)


def test_model_that_marks_every_word_is_refused(tmp_path: Path) -> None:
    model = BertForTokenClassification(small(id2label={0: "NOUN", 1: "VERB"}))
    assert "none of its labels is `O`" in refused(tmp_path, model)


def test_model_for_another_task_is_refused(tmp_path: Path) -> None:
    model = BertForSequenceClassification(small(id2label={0: "O", 1: "PER"}))
    assert "BertForSequenceClassification" in refused(tmp_path, model)


def test_model_without_trained_head_is_refused(tmp_path: Path) -> None:
    model = BertModel(small(id2label={0: "O", 1: "PER"}), add_pooling_layer=False)
    folder = saved(tmp_path, model)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace("BertModel", "BertForTokenClassification"))
    with pytest.raises(UserError, match=r"lacks weights \(classifier\.bias"):
        load_transformers(folder)


def test_damaged_model(folder: str) -> None:
    Path(folder, "model.safetensors").write_bytes(b"nothing of the kind")
    with pytest.raises(UserError, match=": cannot be loaded"):
        load_transformers(folder)


def test_folder_without_model(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=": cannot be loaded"):
        load_transformers(str(tmp_path))


def test_loading_is_silent(folder: str, capfd: pytest.CaptureFixture[str]) -> None:
    found(load_transformers(folder), "in " * 100)
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("path", ["./model", "/no/such", "~/no", "a/b/c"])
def test_missing_folder(path: str) -> None:
    with pytest.raises(UserError, match=f"{path}': no such folder"):
        load_transformers(path)


def test_unreachable_hub_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[object] = []

    def refuse(*args: object, **_: object) -> NoReturn:
        attempts.append(args)
        raise socket.gaierror("Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    began = time.monotonic()
    with pytest.raises(UserError, match="`hf download no-such-owner/no-such-model`") as raised:
        load_transformers("no-such-owner/no-such-model")
    assert time.monotonic() - began < 5
    assert len(attempts) <= 2
    assert "\n" not in str(raised.value)


def test_offline_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="not in the local cache"):
        load_transformers("no-such-owner/no-such-model")


@pytest.mark.usefixtures("no_network")
def test_cached_model_is_used_without_asking_the_hub(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "hub" / "models--owner--name"
    shutil.copytree(folder, repository / "snapshots" / ("0" * 40))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    assert found(load_transformers("owner/name"), "Ada") == [[("Ada", "PER")]]


def test_no_argument() -> None:
    with pytest.raises(UserError, match="transformers:dslim/bert-base-NER"):
        load_detector("transformers")


def test_missing_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UserError, match="pip install"):
        load_transformers("owner/name")
