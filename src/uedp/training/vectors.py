"""What a frozen encoder makes of texts: a vector each, kept for the next time."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from uedp.models.probe import mean_state
from uedp.progress import SILENT, Progress
from uedp.training.tasks import Classification

Vectors = npt.NDArray[np.float32]

_AT_ONCE = {"cpu": 32, "cuda": 1024}  # texts in a batch


class Encoder:
    """The mean of a model's last states over the tokens of a text.

    Guarantees:
      - a text's vector depends on that text and the weights alone, up to rounding
      - vectors are read from `keep` only if they were made of the same texts by the same weights;
        without it nothing is written
    """

    def __init__(
        self,
        encoder: Any,
        tokenizer: Any,
        tokens: int,
        keep: Path | None = None,
        progress: Progress = SILENT,
    ) -> None:
        self._model, self._tokenizer, self.tokens = encoder, tokenizer, tokens
        self.dimensions = int(encoder.config.hidden_size)
        self._keep, self._progress = keep, progress
        weights = hashlib.sha256()
        for name, tensor in sorted(encoder.state_dict().items()):
            if not name.startswith("pooler."):  # not used here
                weights.update(tensor.cpu().numpy().tobytes())
        self._weights = weights.hexdigest()[:16]

    def __call__(self, texts: Sequence[str]) -> Vectors:
        if self._keep is None:
            return self._encode(texts)
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
        self._model.eval()
        device = next(self._model.parameters()).device
        at_once = _AT_ONCE.get(device.type, _AT_ONCE["cpu"])
        task = Classification(texts, [None] * len(texts), (), self._tokenizer, self.tokens)
        order = np.argsort(task.lengths, kind="stable")
        found = np.zeros((len(texts), self.dimensions), np.float32)
        with self._progress.stage("encoding", len(texts), "texts") as meter:
            for start in range(0, len(order), at_once):
                rows = order[start : start + at_once]
                batch = task.batch(rows)
                ids, mask = (batch[name].to(device) for name in ("input_ids", "attention_mask"))
                found[rows] = mean_state(self._model, ids, mask).cpu().numpy()
                meter.advance(len(rows))
        return found
