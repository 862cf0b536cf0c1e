from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from tests.models import tiny
from uedp.errors import UserError
from uedp.models.trainable import make_trainable
from uedp.training.tasks import IGNORED, ProbeClassification, build_task
from uedp.training.vectors import Encoder

Make = Callable[..., Encoder]


@pytest.fixture
def encoder() -> Make:
    def make(tokens: int = 16, cache: Path | None = None, model: Any = None) -> Encoder:
        own: Any = model or tiny.bert()
        return Encoder(own.base_model, tiny.tokenizer(pad_token="<|end|>"), tokens, cache)

    return make


def test_a_vector_depends_on_its_text_only(encoder: Make) -> None:
    """Guarantee of Encoder; the mean is over the text's own tokens."""
    encode = encoder()
    texts = ["one", "", "a much longer text than sixteen bytes hold", "two"]
    together = encode(texts)
    assert together.shape == (4, encode.dimensions)
    assert np.isfinite(together).all()
    for text, row in zip(texts, together, strict=True):
        assert np.allclose(encode([text])[0], row, atol=1e-5)
    ids = torch.tensor([encode._tokenizer("one")["input_ids"]])
    with torch.inference_mode():
        states = encode._model(input_ids=ids).last_hidden_state[0]
    assert np.allclose(together[0], states.mean(0).numpy(), atol=1e-5)


def test_vectors_are_cached_for_the_same_texts_and_weights(encoder: Make, tmp_path: Path) -> None:
    """Guarantee of Encoder."""
    first, again, shorter = (encoder(tokens, tmp_path) for tokens in (16, 16, 8))
    changed = tiny.bert()
    with torch.no_grad():
        changed.get_input_embeddings().weight[5] += 1  # type: ignore[operator]
    other = encoder(16, tmp_path, changed)
    keys = {first.key(texts) for texts in (["a", "b"], ["ab"], ["b", "a"], ["a"], [])}
    assert len(keys) == 5
    assert again.key(["a"]) == first.key(["a"])
    assert first.key(["a"]) not in (shorter.key(["a"]), other.key(["a"]))
    saved = np.full((1, first.dimensions), 7, np.float32)
    np.save(tmp_path / f"{first.key(['a'])}.npy", saved)
    assert np.array_equal(again(["a"]), saved)
    assert not np.array_equal(again(["b"]), saved)
    assert (tmp_path / f"{first.key(['b'])}.npy").stat().st_mode & 0o777 == 0o600
    assert np.array_equal(encoder(16)(["a"]), encoder(16)(["a"]))
    assert not np.array_equal(encoder(16)(["a"]), saved)


def test_other_tokenizers_and_settings_make_other_vectors(encoder: Make, tmp_path: Path) -> None:
    """Guarantee of Encoder."""
    own: Any = tiny.bert()
    first = encoder(16, tmp_path, own)
    words = tiny.tokenizer(pad_token="<|end|>")
    words.add_tokens(["ab"])
    assert Encoder(own.base_model, words, 16, tmp_path).key(["a"]) != first.key(["a"])
    heads: Any = tiny.bert()
    heads.load_state_dict(own.state_dict())
    heads.config.num_attention_heads = 2
    assert encoder(16, tmp_path, heads).key(["a"]) != first.key(["a"])


def test_damaged_vectors_are_computed_again(encoder: Make, tmp_path: Path) -> None:
    encode = encoder(16, tmp_path)
    good = np.array(encode(["a", "b"]))  # a copy: the file is about to be cut
    (path,) = tmp_path.iterdir()
    for content in (b"", path.read_bytes()[:100]):
        path.write_bytes(content)
        assert np.array_equal(encode(["a", "b"]), good)
    np.save(path, good[:1].astype(np.float64))
    assert np.array_equal(encode(["a", "b"]), good)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_an_encoder_that_attends_to_padding_is_refused() -> None:
    """Guarantee of Encoder: FNet mixes tokens without regard to the mask."""
    config = transformers.FNetConfig(
        vocab_size=tiny.WORDS, hidden_size=32, intermediate_size=48, num_hidden_layers=2
    )
    torch.manual_seed(0)
    model = make_trainable(transformers.FNetForSequenceClassification(config), "probe")
    encode = Encoder(model.encoder, tiny.tokenizer(pad_token="<|end|>"), 60)
    with pytest.raises(UserError, match="FNetModel attends to padding"):
        encode(["one text"])


def test_a_task_on_vectors_has_the_labels_of_the_texts(encoder: Make) -> None:
    encode = encoder()
    texts, labels = ["one", " ", "two", "three"], ["x", "x", None, "y"]
    task = build_task("classification", texts, labels, ["x", "y"], None, 16, encode)
    assert isinstance(task, ProbeClassification)
    batch = task.batch(np.array([3, 0, 1, 2]))
    assert batch["labels"].tolist() == [1, 0, IGNORED, IGNORED]
    assert np.allclose(batch["vectors"][1], encode(["one"])[0], atol=1e-5)
    assert task.lengths.tolist() == [1] * 4
