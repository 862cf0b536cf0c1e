"""What a frozen encoder makes of texts: a vector each, kept for the next time."""

import hashlib
import json
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

_AT_ONCE = {"cpu": 32, "cuda": 1024}  # texts in a batch
_SAME = 1e-4  # rounding is far below, an encoder that looks at padding above


class Encoder:
    """The mean of a model's last states over the tokens of a text.

    Guarantees:
      - a text's vector depends on that text and the weights alone, up to rounding; an encoder that
        looks at padding is refused
      - vectors are read from `keep` only if they were made of the same texts by the same model
        and tokenizer; without it nothing is written
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
        self._made_by = _digest(encoder, tokenizer) if keep is not None else ""
        self._checked = False

    def __call__(self, texts: Sequence[str]) -> Vectors:
        if self._keep is None:
            return self._encode(texts)
        path = self._keep / f"{self.key(texts)}.npy"
        if (kept := self._kept(path, len(texts))) is not None:
            return kept
        found = self._encode(texts)
        path.parent.mkdir(parents=True, exist_ok=True)
        with scratch_dir(path) as work:
            np.save(work / path.name, found)
            (work / path.name).replace(path)
        return found

    def _kept(self, path: Path, count: int) -> Vectors | None:
        try:
            kept: Vectors = np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError):  # none, or damaged
            return None
        fits = kept.shape == (count, self.dimensions) and kept.dtype == np.float32
        return kept if fits else None

    def key(self, texts: Sequence[str]) -> str:
        """A short name for these texts as these weights see them."""
        key = hashlib.sha256(f"{self._made_by} {self.tokens}".encode())
        for text in texts:
            key.update(hashlib.sha256(text.encode()).digest())
        return key.hexdigest()[:16]

    def _check(self) -> None:
        """Try whether a text keeps its vector beside a longer one, whatever is asked for later."""
        self._checked = True
        short = "short"
        alone, beside = (self._encode(texts)[0] for texts in ([short], [short, 40 * "longer "]))
        if np.abs(beside - alone).max() > _SAME * max(float(np.abs(alone).max()), 1e-12):
            raise UserError(
                f"train 'probe': {type(self._model).__name__} looks at padding, so that what it "
                "makes of a text depends on the texts beside it; choose another model"
            )

    @torch.inference_mode()
    def _encode(self, texts: Sequence[str]) -> Vectors:
        if not self._checked:
            self._check()
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
                found[rows] = mean_state(self._model, ids, mask).float().cpu().numpy()
                meter.advance(len(rows))
        return found


def encoder_for(
    model: Any, tokenizer: Any, tokens: int, keep: Path | None, progress: Progress = SILENT
) -> Encoder | None:
    """The encoder of a model that takes vectors; other models read texts themselves."""
    if getattr(getattr(model, "config", None), "model_type", None) != "uedp_probe":
        return None
    return Encoder(model.encoder, tokenizer, tokens, keep, progress)


def _digest(encoder: Any, tokenizer: Any) -> str:
    """Of all that decides what becomes of a text."""
    settings = encoder.config.to_dict()
    for name in ("_name_or_path", "transformers_version"):  # where it lay, and who wrote it
        settings.pop(name, None)
    made_by = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode())
    words = getattr(tokenizer, "backend_tokenizer", None)
    made_by.update((words.to_str() if words is not None else repr(tokenizer)).encode())
    for name, tensor in sorted(encoder.state_dict().items()):
        if not name.startswith("pooler."):  # not used here
            made_by.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            made_by.update(tensor.detach().cpu().flatten().view(torch.uint8).numpy().tobytes())
    return made_by.hexdigest()[:16]
