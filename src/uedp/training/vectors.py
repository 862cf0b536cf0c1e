"""Sentence vectors from a frozen encoder, cached between runs."""

import hashlib
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from uedp.errors import UserError
from uedp.files import scratch_dir
from uedp.models.probe import mean_state
from uedp.progress import SILENT, Progress
from uedp.training.tasks import Classification

Vectors = npt.NDArray[np.float32]

_BATCH = {"cpu": 32, "cuda": 1024}  # texts
_ROUNDING = 1e-4  # far above rounding, far below the effect of attending to padding


class Encoder:
    """The mean of a model's last hidden states over the tokens of a text.

    Guarantees:
      - the vector of a text depends on that text and the weights only, up to rounding; an encoder
        that attends to padding is refused
      - vectors are read from `cache` only if the same model and tokenizer made them from the same
        texts; without `cache` nothing is written
    """

    def __init__(
        self,
        encoder: Any,
        tokenizer: Any,
        max_tokens: int,
        cache: Path | None = None,
        progress: Progress = SILENT,
    ) -> None:
        self._model, self._tokenizer, self.max_tokens = encoder, tokenizer, max_tokens
        self.dimensions = int(encoder.config.hidden_size)
        self._cache, self._progress = cache, progress
        self._digest = _encoder_digest(encoder, tokenizer) if cache is not None else ""
        self._checked = False

    def __call__(self, texts: Sequence[str]) -> Vectors:
        shape = (len(texts), self.dimensions)
        if self._cache is None or not len(texts):
            with tempfile.TemporaryFile() as file:  # without a name, and the map outlives it
                file.truncate(max(4 * shape[0] * shape[1], 1))
                return self._encode(texts, np.memmap(file, np.float32, "r+", shape=shape))
        path = self._cache / f"{self.key(texts)}.npy"
        if (cached := self._read_vectors(path, len(texts))) is not None:
            return cached
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with scratch_dir(path) as work:
            partial = work / path.name
            self._encode(texts, np.lib.format.open_memmap(partial, "w+", np.float32, shape))
            partial.chmod(0o600)  # vectors are as private as the texts
            partial.replace(path)
        cached = self._read_vectors(path, len(texts))
        assert cached is not None
        return cached

    def _read_vectors(self, path: Path, count: int) -> Vectors | None:
        try:
            vectors: Vectors = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError):  # missing, or damaged
            return None
        fits = vectors.shape == (count, self.dimensions) and vectors.dtype == np.float32
        return vectors if fits else None

    def key(self, texts: Sequence[str]) -> str:
        """The cache key of these texts with this encoder."""
        key = hashlib.sha256(f"{self._digest} {self.max_tokens}".encode())
        for text in texts:
            key.update(hashlib.sha256(text.encode()).digest())
        return key.hexdigest()[:16]

    def _check(self) -> None:
        """Refuse an encoder whose vector of a text changes when a longer text pads it."""
        self._checked = True
        alone, beside = ["a"], ["a", 40 * "longer "]
        single, padded = (
            self._encode(texts, np.zeros((len(texts), self.dimensions), np.float32))[0]
            for texts in (alone, beside)
        )
        if np.abs(padded - single).max() > _ROUNDING * max(float(np.abs(single).max()), 1e-12):
            raise UserError(
                f"model.train probe: {type(self._model).__name__} attends to padding, so that the "
                "vector of a text depends on other texts in its batch; choose another model"
            )

    @torch.inference_mode()
    def _encode(self, texts: Sequence[str], vectors: Vectors) -> Vectors:
        """Fill `vectors` and return it."""
        if not self._checked:
            self._check()
        self._model.eval()
        device = next(self._model.parameters()).device
        size = _BATCH.get(device.type, _BATCH["cpu"])
        task = Classification(
            texts, [None] * len(texts), (), self._tokenizer, self.max_tokens, self._progress
        )
        order = np.argsort(task.lengths, kind="stable")
        with self._progress.stage("encoding", len(texts), "texts") as meter:
            for start in range(0, len(order), size):
                rows = order[start : start + size]
                batch = task.batch(rows)
                ids, mask = (batch[name].to(device) for name in ("input_ids", "attention_mask"))
                vectors[rows] = mean_state(self._model, ids, mask).float().cpu().numpy()
                meter.advance(len(rows))
        return vectors


def encoder_for(
    model: Any, tokenizer: Any, max_tokens: int, cache: Path | None, progress: Progress
) -> Encoder | None:
    """The encoder of texts for a model that takes vectors, None for other models."""
    if getattr(getattr(model, "config", None), "model_type", None) != "uedp_probe":
        return None
    return Encoder(model.encoder, tokenizer, max_tokens, cache, progress)


def _encoder_digest(encoder: Any, tokenizer: Any) -> str:
    """A hash of everything that determines the vector of a text."""
    settings = encoder.config.to_dict()
    for name in ("_name_or_path", "transformers_version"):  # do not affect vectors
        settings.pop(name, None)
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode())
    backend = getattr(tokenizer, "backend_tokenizer", None)
    digest.update((backend.to_str() if backend is not None else repr(tokenizer)).encode())
    for name, tensor in sorted(encoder.state_dict().items()):
        if not name.startswith("pooler."):  # not used
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
