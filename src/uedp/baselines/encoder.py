"""A frozen encoder: what a saved model makes of a text, as one vector."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from uedp.models.load import load
from uedp.progress import SILENT, Progress
from uedp.training.tasks import Classification

Vectors = npt.NDArray[np.float32]

_AT_ONCE = 32  # texts in a batch


class Encoder:
    """The mean of a model's last states over the tokens of a text; what was made is kept.

    Guarantees:
      - a text's vector depends on that text and the weights alone, up to rounding
      - vectors are read from `keep` only if they were made of the same texts by the same weights
    """

    def __init__(
        self, model: str | Path, tokens: int, keep: Path, progress: Progress = SILENT
    ) -> None:
        loaded = load(model, "classification", labels=2)  # its head is not used
        self._model, self._tokenizer = loaded.model.base_model, loaded.tokenizer
        self.tokens = min(tokens, loaded.max_tokens)
        self.dimensions = int(self._model.config.hidden_size)
        self._keep, self._progress = keep, progress
        weights = hashlib.sha256()
        for name, tensor in sorted(self._model.state_dict().items()):
            if not name.startswith("pooler."):  # of the head too: drawn anew if it was not saved
                weights.update(tensor.numpy().tobytes())
        self._weights = weights.hexdigest()[:16]

    def __call__(self, texts: Sequence[str]) -> Vectors:
        path = self._keep / f"{self.key(texts)}.npy"
        if path.exists():
            kept: Vectors = np.load(path)
            return kept
        found = self._encode(texts)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial.npy")
        np.save(partial, found)
        partial.replace(path)
        return found

    def key(self, texts: Sequence[str]) -> str:
        """A short name for these texts as these weights see them."""
        key = hashlib.sha256(f"{self._weights} {self.tokens}".encode())
        for text in texts:
            key.update(hashlib.sha256(text.encode()).digest())
        return key.hexdigest()[:16]

    @torch.inference_mode()
    def _encode(self, texts: Sequence[str]) -> Vectors:
        task = Classification(texts, [None] * len(texts), (), self._tokenizer, self.tokens)
        order = np.argsort(task.lengths, kind="stable")
        found = np.zeros((len(texts), self.dimensions), np.float32)
        with self._progress.stage("encoding", len(texts), "texts") as meter:
            for start in range(0, len(order), _AT_ONCE):
                rows = order[start : start + _AT_ONCE]
                batch = task.batch(rows)
                ids, mask = batch["input_ids"], batch["attention_mask"]
                states = self._model(input_ids=ids, attention_mask=mask).last_hidden_state
                total = (states * mask[..., None]).sum(1)
                found[rows] = (total / mask.sum(1, keepdim=True)).numpy()
                meter.advance(len(rows))
        return found
