"""The `transformers` detector: a token classification model of Hugging Face Transformers."""

import hashlib
import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from uedp.corpus.sentence import Span
from uedp.entities.detectors import package_version, register_detector, required
from uedp.entities.words import UNSPACED
from uedp.errors import UserError
from uedp.hf_hub import max_tokens, read_saved

_CHUNK = 1024  # sentences sorted by length together
_TOKENS_PER_BATCH = 8192
_OVERLAP = 128  # tokens that two windows of a long text share, at most
_HASHED = ("*.json", "*.safetensors", "*.bin")  # the files of a model
_DEFAULT_WINDOW = 512  # for models that set no limit

_PREFIXED = re.compile(r"([BIESLUM])[-_](.+)")  # IOB, IOBES, BILOU, BMES
_BEGINS = frozenset("BSU")
_UNSPACED = re.compile(f"[{UNSPACED}]")

Indices = npt.NDArray[np.int64]


class Tag(NamedTuple):
    """A model's label: `B-PER` is a `PER` and begins it; `O` is no entity."""

    label: str | None
    begins: bool


class Window(NamedTuple):
    """As many tokens of one text, from `start` on, as the model takes."""

    text: int
    start: int
    tokens: list[int]


class Transformers:
    """Entities by word: a word has the label of its first token, whatever the tokenizer.

    Guarantees:
      - every token of every text is classified: a text longer than the model's limit is covered by
        overlapping windows, and each token is classified where it has most context
      - spans begin and end at words, so a word is never protected in part
    """

    propagates = True

    def __init__(self, model: Any, tokenizer: Any, tags: Sequence[Tag]) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._tags = tags
        # The special tokens around a text go around each window.
        probe = self._encode(["a"])
        special = probe["special_tokens_mask"][0]
        ids = probe["input_ids"][0]
        leading, trailing = special.index(0), special[::-1].index(0)
        self._before, self._after = ids[:leading], ids[len(ids) - trailing :]
        self._window = max(1, max_tokens(model, tokenizer, _DEFAULT_WINDOW) - leading - trailing)
        self._overlap = min(_OVERLAP, self._window // 4)

    def detect(self, texts: Sequence[str]) -> Iterator[list[Span]]:
        for first in range(0, len(texts), _CHUNK):
            chunk = list(texts[first : first + _CHUNK])
            encoded = self._encode(chunk)
            inner = slice(len(self._before), -len(self._after) or None)
            tokens = [ids[inner] for ids in encoded["input_ids"]]
            windows = [window for text, ids in enumerate(tokens) for window in self._cut(text, ids)]
            judged = [np.empty(len(ids), dtype=np.int64) for ids in tokens]
            for window, labels in zip(windows, self._classify(windows), strict=True):
                # Windows are in order; the later one has more context for the second half of the
                # tokens they share.
                skip = self._overlap // 2 if window.start else 0
                judged[window.text][window.start + skip :][: len(labels) - skip] = labels[skip:]
            for text, offsets, labels in zip(chunk, encoded["offset_mapping"], judged, strict=True):
                yield spans(text, offsets[inner], [self._tags[label] for label in labels.tolist()])

    def _encode(self, texts: list[str]) -> Any:
        return self._tokenizer(
            texts,
            truncation=False,  # also undoes a truncation saved with the tokenizer
            padding=False,
            return_attention_mask=False,
            return_offsets_mapping=True,
            return_special_tokens_mask=True,
            verbose=False,  # no warning of long texts, which are windowed below
        )

    def _cut(self, text: int, tokens: list[int]) -> Iterator[Window]:
        start = 0
        while start < len(tokens):
            yield Window(text, start, tokens[start : start + self._window])
            if start + self._window >= len(tokens):
                return
            start += self._window - self._overlap

    def _classify(self, windows: Sequence[Window]) -> list[Indices]:
        """The label index of each token of each window."""
        labels: list[Indices] = [np.empty(0, dtype=np.int64)] * len(windows)
        longest_first = sorted(range(len(windows)), key=lambda index: -len(windows[index].tokens))
        while longest_first:
            width = len(windows[longest_first[0]].tokens) + len(self._before) + len(self._after)
            rows = max(1, _TOKENS_PER_BATCH // width)
            batch, longest_first = longest_first[:rows], longest_first[rows:]
            predicted = self._forward([windows[index].tokens for index in batch], width)
            for index, row in zip(batch, predicted, strict=True):
                labels[index] = row[len(self._before) :][: len(windows[index].tokens)]
        return labels

    def _forward(self, batch: list[list[int]], width: int) -> Indices:
        import torch

        ids = torch.full((len(batch), width), self._tokenizer.pad_token_id or 0)
        mask = torch.zeros((len(batch), width), dtype=torch.long)
        for row, tokens in enumerate(batch):
            whole = self._before + tokens + self._after
            ids[row, : len(whole)] = torch.tensor(whole)
            mask[row, : len(whole)] = 1
        device = self._model.device
        with torch.inference_mode():
            logits = self._model(input_ids=ids.to(device), attention_mask=mask.to(device)).logits
        predicted: Indices = logits.argmax(-1).cpu().numpy()
        return predicted


def _version(argument: str | None) -> str:
    """The library, and the model's revision in the cache or a hash of its files."""
    from huggingface_hub import snapshot_download

    library, folder = package_version("transformers"), Path(argument or "").expanduser()
    if not folder.is_dir():
        try:
            revision = Path(snapshot_download(argument or "", local_files_only=True)).name[:12]
        except (OSError, ValueError):
            revision = "unknown"
        return f"{library}, revision {revision}"
    state = hashlib.sha256()
    for path in sorted(path for kind in _HASHED for path in folder.glob(kind)):
        state.update(path.name.encode())
        with path.open("rb") as file:
            state.update(hashlib.file_digest(file, "sha256").digest())
    return f"{library}, files {state.hexdigest()[:12]}"


@register_detector("transformers", version=_version)
def load_transformers(argument: str | None) -> Transformers:
    """The model in a folder, in the local cache, or on the hub, in this order.

    A cached model is used without asking the hub for a newer one: the same command gives the same
    entities, with and without a network.
    """
    if argument is None:
        raise UserError(
            "detector 'transformers': name a model or its folder; "
            "write e.g. `transformers:dslim/bert-base-NER`"
        )
    asked = f"detector 'transformers:{argument}'"
    with required(asked, "Transformers", "uedp"):
        import transformers  # noqa: F401
    return read_saved(argument, asked, partial(_read, asked))


def tags(names: Sequence[str], asked: str) -> list[Tag]:
    """The tags of the model's labels, in the order of its outputs."""
    if all(re.fullmatch(r"LABEL_\d+", name) for name in names):
        raise UserError(
            f"{asked}: its labels are {names[0]} to {names[-1]}, without a meaning; choose a model "
            "trained to find entities, or name its labels (`id2label`) in its config.json"
        )
    entities = [name for name in names if name != "O"]
    if len(entities) == len(names):
        raise UserError(
            f"{asked}: none of its labels is `O` (no entity), so it marks every word "
            f"({', '.join(names[:5])}, ...); choose a model trained to find entities"
        )
    # A label like `S_ID` has a prefix only if all have.
    prefixed = all(_PREFIXED.fullmatch(name) for name in entities)
    matches = [_PREFIXED.fullmatch(name) if prefixed else None for name in names]
    return [
        Tag(match[2], match[1] in _BEGINS) if match else Tag(None if name == "O" else name, False)
        for name, match in zip(names, matches, strict=True)
    ]


def spans(text: str, offsets: Sequence[tuple[int, int]], judged: Sequence[Tag]) -> list[Span]:
    """The entities of a text, from the offsets and the tags of its tokens."""
    entities: list[Span] = []
    for start, end, tag in _words(text, offsets, judged):
        if tag.label is None:
            continue
        last = entities[-1] if entities and not tag.begins else None
        if last and last.label == tag.label and not text[last.end : start].strip():
            entities[-1] = last._replace(end=end)
        else:
            entities.append(Span(start, end, tag.label))
    return entities


def _words(
    text: str, offsets: Sequence[tuple[int, int]], judged: Sequence[Tag]
) -> Iterator[tuple[int, int, Tag]]:
    """Words, each with the tag of its first token.

    The text decides what a word is, not the tokenizer, which may take `Smith,` or a whole line for
    one word: adjacent letters and digits belong together, other characters stand apart.
    """
    word: tuple[int, int, Tag] | None = None
    for (start, end), tag in zip(offsets, judged, strict=True):
        while start < end and text[start].isspace():  # byte-level tokens begin with the space
            start += 1
        if start >= end:
            continue
        # Tokens overlap where one character was split into bytes.
        if word and (start < word[1] or (start == word[1] and _in_one_word(text, start))):
            word = (word[0], max(end, word[1]), word[2])
        else:
            if word:
                yield word
            word = (start, end, tag)
    if word:
        yield word


def _in_one_word(text: str, position: int) -> bool:
    pair = text[position - 1 : position + 1]
    return not _UNSPACED.search(pair) and all(unicodedata.category(c)[0] in "LMN" for c in pair)


def _read(asked: str, source: str, local: bool) -> Transformers:
    import torch
    from transformers import AutoConfig, AutoModelForTokenClassification, AutoTokenizer

    # Code from the model's repository is never run, and no question about it is asked.
    options = {"local_files_only": local, "trust_remote_code": False}
    config = AutoConfig.from_pretrained(source, **options)
    trained_for = ", ".join(config.architectures or [])
    if trained_for and "ForTokenClassification" not in trained_for:
        raise UserError(
            f"{asked}: the model was trained for something else ({trained_for}); "
            "choose one for token classification"
        )
    named = tags([config.id2label[index] for index in sorted(config.id2label)], asked)
    tokenizer = AutoTokenizer.from_pretrained(source, **options)
    if not tokenizer.is_fast:
        raise UserError(
            f"{asked}: its tokenizer gives no offsets; "
            "choose a model with a fast tokenizer (tokenizer.json)"
        )
    model, report = AutoModelForTokenClassification.from_pretrained(
        source, config=config, dtype=torch.float32, output_loading_info=True, **options
    )
    if report["missing_keys"]:
        missing = ", ".join(sorted(report["missing_keys"])[:3])
        raise UserError(f"{asked}: the saved model lacks weights ({missing}); it is not trained")
    model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
    return Transformers(model, tokenizer, named)
