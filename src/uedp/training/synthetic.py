"""Synthetic text: many texts of a model in a JSONL file, and beside it what they are.

FILE.jsonl        one text a line: id, text, prompt
FILE.about.json   the guarantee that covers the texts, the model, the settings, and counts

Text `i` is drawn from random numbers that follow from the seed and `i` alone. Texts are made in
batches that follow from the settings, each appended in one piece before the second file tells how
far the first one is good. So a process killed at any moment loses one batch, and what another
process appends is what the first would have written.
"""

import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import torch
from pydantic import ValidationError

import uedp
from uedp.accounting.certificate import CERTIFICATE, verify
from uedp.accounting.decisions import StrictModel
from uedp.accounting.model_files import model_files
from uedp.accounting.publishable import PublicTotal, publishable
from uedp.accounting.statement import missed_line
from uedp.corpus.source import Source
from uedp.errors import UserError
from uedp.files import fsync_file, lock_file, private_opener, sha256_of, write_atomically
from uedp.models.load import LoadedModel, start_token
from uedp.progress import SILENT, Meter, Progress
from uedp.strict import parse_json
from uedp.training.api import load_generator
from uedp.training.decoding import TokenSampling, sample_texts
from uedp.training.generation import rows_at_once

Drop = Literal["empty", "duplicates", "unfinished"]
DROPS: tuple[Drop, ...] = ("empty", "duplicates", "unfinished")

_AT_ONCE = {"cuda": 1024, "cpu": 64}  # texts: more would be lost with a killed process
_ATTEMPTS = 4  # texts drawn for each one that is wanted, before giving up on replacing dropped ones
_BREAKS = {"\u2028": "\\u2028", "\u2029": "\\u2029", "\x85": "\\u0085"}  # lines, for some readers

COVERED = (
    "These texts were drawn from the model alone, so its guarantee covers all of them, however "
    "many there are, and all that is computed from them (post-processing)."
)
NOT_COVERED = "These texts have no privacy guarantee: "
NOTES = (
    "The guarantee does not cover the prompts: give only prompts that are public.",
    "It ends where the training text comes in again: texts, settings or files that are chosen or "
    "changed after comparing them with the training text are not covered, nor is the report of "
    "such a comparison, which is for the curator only.",
)
"""What everybody who hands the texts on has to know."""


class TextGuarantee(StrictModel):
    """The guarantee of the model, as far as it may be published, and whether it holds here."""

    covered: bool
    words: str
    statement: str | None = None
    run: str | None = None
    epsilon: float | None = None
    delta: float | None = None
    unit: str | None = None
    missed_mentions: str | None = None
    all_runs: PublicTotal | None = None
    certificate: str | None = None


class Prompts(StrictModel):
    """Starts of texts: taken in turn, or drawn by their weights."""

    texts: tuple[str, ...] = ("",)
    weights: tuple[float, ...] | None = None


class TextSettings(StrictModel):
    """All that decides which texts are drawn, beside the model."""

    count: int
    seed: int
    tokens: int
    temperature: float
    top_k: int
    top_p: float
    drop: tuple[Drop, ...]
    at_once: int
    prompts: int
    prompts_digest: str

    @property
    def drawn_by(self) -> tuple[int, int]:
        """The seed and the size of batches: what a resumed file takes over."""
        return self.seed, self.at_once


class Counts(StrictModel):
    """Texts drawn and written, and what they were like, whether that was dropped or not."""

    drawn: int = 0
    written: int = 0
    empty: int = 0
    duplicates: int = 0
    unfinished: int = 0


class About(StrictModel):
    """What the file of texts is. `size` and `digest` (SHA-256) are of the part that is good."""

    kind: Literal["uedp synthetic text"] = "uedp synthetic text"
    format: Literal[1] = 1
    guarantee: TextGuarantee
    notes: tuple[str, ...] = NOTES
    model_digest: str
    settings: TextSettings
    counts: Counts = Counts()
    complete: bool = False
    size: int = 0
    digest: str = hashlib.sha256().hexdigest()
    versions: dict[str, str]


def about_path(out: Path) -> Path:
    """The file that describes a file of texts."""
    return out.with_name(f"{out.name.removesuffix('.jsonl')}.about.json")


def read_about(path: Path) -> About:
    try:
        text = path.read_bytes()
        parse_json(text)  # refuses a field that stands twice
        return About.model_validate_json(text)
    except (ValidationError, ValueError):
        raise UserError(
            f"{path}: not a description of synthetic text; choose another `out=...`"
        ) from None


def read_prompts(path: Path) -> Prompts:
    """One prompt a line; in a .jsonl file `prompt` with, in all lines or none, its `weight`."""
    texts: list[str] = []
    weights: list[float] = []
    source = Source(path)
    for number, raw in source.lines():
        line = source.decoded(number, raw).rstrip("\r\n")
        if source.suffix != ".jsonl":
            texts.append(line)
            continue
        try:
            row = parse_json(line)
            prompt, weight = row["prompt"], row.get("weight")
            known = set(row) <= {"prompt", "weight"}
            valid = weight is None or (type(weight) in (int, float) and 0 <= weight < float("inf"))
            if not (isinstance(prompt, str) and known and valid):
                raise ValueError
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UserError(
                f'{path}: line {number}: write {{"prompt": "...", "weight": 1.5}}; the weight may '
                "be left out in all lines"
            ) from None
        texts.append(prompt)
        if weight is not None:
            weights.append(float(weight))
    if not texts:
        raise UserError(f"{path}: no prompts; write one on each line")
    if weights and (len(weights) < len(texts) or not sum(weights) > 0):
        raise UserError(f"{path}: give a weight in all lines, not all of them 0, or in none")
    return Prompts(texts=tuple(texts), weights=tuple(weights) or None)


def write_texts(
    folder: str | Path,
    out: str | Path,
    *,
    count: int,
    prompts: Prompts | None = None,
    sampling: TokenSampling | None = None,
    seed: int | None = None,
    drop: Sequence[str] = (),
    at_once: int | None = None,
    resume: bool = False,
    progress: Progress = SILENT,
) -> About:
    """Write texts that the model in a folder generates to `out`, and beside them what they are.

    Args:
        seed: by default a random one, which is recorded
        drop: texts to leave out, and to replace by others: `empty` ones, exact `duplicates`, and
            `unfinished` ones, which the limit of tokens cut
        at_once: texts in a batch; by default what fits in memory
        resume: continue the file if it was begun, with the same settings

    Guarantees:
      - with the same seed, model and kind of device, the file is the same to the byte, however
        often it was interrupted and resumed; it is refused with other settings or another model
      - every line of the part that `About.size` covers is whole
      - nothing but the model, the settings and the prompts has any part in the texts
    """
    folder, out, prompts = Path(folder), Path(out), prompts or Prompts()
    sampling = sampling or TokenSampling()
    _check(folder, out, count, seed, drop, at_once)
    with _open_locked(out, resume) as (file, before):
        loaded = load_generator(folder)
        loaded.model.to("cuda" if torch.cuda.is_available() else "cpu")
        texts = _Texts(loaded, prompts, sampling)
        old_seed, old_size = (None, None) if before is None else before.settings.drawn_by
        settings = TextSettings(
            count=count,
            seed=_chosen(seed, old_seed, lambda: secrets.randbits(48)),
            **{name: getattr(sampling, name) for name in TokenSampling.__dataclass_fields__},
            drop=tuple(name for name in DROPS if name in drop),
            at_once=_chosen(at_once, old_size, lambda: texts.at_once(count)),
            prompts=len(prompts.texts),
            prompts_digest=hashlib.sha256(prompts.model_dump_json().encode()).hexdigest(),
        )
        about = About(
            guarantee=text_guarantee(folder),
            model_digest=_model_digest(folder),
            settings=settings,
            versions={"uedp": uedp.__version__}
            | {name: version(name) for name in ("torch", "transformers")},
        )
        if before is not None:
            about = _continued(about, before, out)
        return _write(texts, about, file, out, progress)


def text_guarantee(folder: Path) -> TextGuarantee:
    """What the certificate beside a model says of text drawn from it, verified."""
    if not (folder / CERTIFICATE).is_file():
        return TextGuarantee(covered=False, words=f"{NOT_COVERED}the model has no certificate.")
    try:
        certificate = verify(folder)
    except UserError as error:
        words = f"{NOT_COVERED}the certificate of the model does not verify ({error})."
        return TextGuarantee(covered=False, words=words)
    facts = publishable(certificate)
    caveats = (f"Caveat: {text}." for text in facts.caveats)
    known: dict[str, Any] = {
        "statement": "\n".join((facts.guarantee, *caveats)),
        "run": certificate.run,
        "certificate": sha256_of(folder / CERTIFICATE),
    }
    if not certificate.private:
        return TextGuarantee(covered=False, words=f"{NOT_COVERED}{facts.why_not}.", **known)
    return TextGuarantee(
        covered=True,
        words=COVERED,
        epsilon=facts.epsilon,
        delta=facts.delta,
        unit=facts.unit,
        missed_mentions=missed_line(facts.missed_mentions) or None,
        all_runs=facts.corpus_total,
        **known,
    )


class _Texts:
    """Draws texts by number."""

    def __init__(self, loaded: LoadedModel, prompts: Prompts, sampling: TokenSampling) -> None:
        self._loaded, self._sampling = loaded, sampling
        tokenizer = loaded.tokenizer
        start = start_token(tokenizer)
        ids = tokenizer(list(prompts.texts), add_special_tokens=False)["input_ids"]
        self._prompts = [
            (text, [start, *own]) for text, own in zip(prompts.texts, ids, strict=True)
        ]
        self._sums = None if prompts.weights is None else np.cumsum(prompts.weights)
        settings = getattr(loaded.model, "generation_config", None)
        ends = getattr(settings, "eos_token_id", None)
        ends = {*ends} if isinstance(ends, list) else {ends}
        self._ends = frozenset((ends | {tokenizer.eos_token_id}) - {None})
        self._longest = max(len(own) for _, own in self._prompts)
        if self._longest + sampling.tokens > loaded.max_tokens:
            raise UserError(
                f"generate: a prompt of {self._longest} tokens and {sampling.tokens} more are too "
                f"many for the model, which takes {loaded.max_tokens}; ask for fewer"
            )

    def at_once(self, count: int) -> int:
        device = next(self._loaded.model.parameters()).device
        fit = rows_at_once(self._loaded.model, self._longest + self._sampling.tokens, device)
        return min(fit, count, _AT_ONCE.get(device.type, _AT_ONCE["cpu"]))

    def draw(self, numbers: range, seed: int, meter: Meter) -> list[tuple[str, str, bool, bool]]:
        """For each number the prompt, the text, and whether it is empty and was cut."""
        draws = np.empty((len(numbers), self._sampling.tokens))
        rows: list[tuple[str, list[int]]] = []
        for row, number in enumerate(numbers):
            rng = np.random.default_rng([seed, number])
            rows.append(self._prompt(number, rng.random()))
            draws[row] = rng.random(self._sampling.tokens)
        texts = self._sampled([ids for _, ids in rows], draws, meter)
        decode = self._loaded.tokenizer.decode
        return [
            (
                prompt,
                decode(text, skip_special_tokens=True),
                not decode(text[len(ids) :], skip_special_tokens=True).strip(),
                text[-1] not in self._ends,
            )
            for (prompt, ids), text in zip(rows, texts, strict=True)
        ]

    def _prompt(self, number: int, draw: float) -> tuple[str, list[int]]:
        place = number % len(self._prompts)
        if self._sums is not None:
            place = int(np.searchsorted(self._sums, draw * self._sums[-1], side="right"))
        return self._prompts[place]

    def _sampled(
        self, prompts: Sequence[list[int]], draws: np.ndarray, meter: Meter
    ) -> list[list[int]]:
        """All of the texts; in halves if memory is short."""
        told = 0

        def tell(texts: int) -> None:
            nonlocal told
            told += texts
            meter.advance(texts)

        try:
            return sample_texts(
                self._loaded.model, prompts, draws, self._sampling, self._ends, tell
            )
        except torch.OutOfMemoryError:
            if len(prompts) < 2:
                raise
        meter.advance(-told)
        torch.cuda.empty_cache()
        middle = len(prompts) // 2
        return [
            text
            for low, high in pairwise((0, middle, len(prompts)))
            for text in self._sampled(prompts[low:high], draws[low:high], meter)
        ]


def _write(texts: _Texts, about: About, file: IO[bytes], out: Path, progress: Progress) -> About:
    settings, counts = about.settings, about.counts
    most = settings.count * (_ATTEMPTS if settings.drop else 1)
    digest, seen = _read_back(file, about, out)
    if not about.complete:
        write_about(about, out)
    with progress.stage("generating", settings.count, "texts") as meter:
        meter.advance(counts.written)
        while not about.complete:
            numbers = range(counts.drawn, min(counts.drawn + settings.at_once, most))
            drawn = texts.draw(numbers, settings.seed, meter)
            lines, counts = _kept(drawn, numbers, settings, counts, seen)
            meter.advance(counts.written - about.counts.written - len(drawn))  # some were dropped
            file.write(lines)
            fsync_file(file)
            digest.update(lines)
            about = about.model_copy(
                update={
                    "counts": counts,
                    "size": about.size + len(lines),
                    "digest": digest.hexdigest(),
                    "complete": counts.written == settings.count or counts.drawn == most,
                }
            )
            write_about(about, out)
    return about


def write_about(about: About, out: Path) -> None:
    write_atomically(about_path(out), about.model_dump_json(indent=2) + "\n")


def _kept(
    drawn: Sequence[tuple[str, str, bool, bool]],
    numbers: range,
    settings: TextSettings,
    counts: Counts,
    seen: set[bytes],
) -> tuple[bytes, Counts]:
    """The lines of a batch, and the counts after it."""
    found, lines = counts.model_dump(), []
    for number, (prompt, text, empty, cut) in zip(numbers, drawn, strict=True):
        if found["written"] == settings.count:
            break
        key = _key(text)
        traits: dict[Drop, bool] = {"empty": empty, "duplicates": key in seen, "unfinished": cut}
        for name, holds in traits.items():
            found[name] += holds
        found["drawn"] += 1
        if any(traits[name] for name in settings.drop):
            continue
        found["written"] += 1
        seen.add(key)
        line = json.dumps({"id": number, "text": text, "prompt": prompt}, ensure_ascii=False)
        for character, escaped in _BREAKS.items():
            line = line.replace(character, escaped)
        lines.append(line + "\n")
    return "".join(lines).encode(), Counts(**found)


def _key(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _read_back(file: IO[bytes], about: About, out: Path) -> tuple[Any, set[bytes]]:
    """The digest and the keys of the texts so far; what stands after them is cut off."""
    digest, seen = hashlib.sha256(), set()
    file.seek(0)
    while (left := about.size - file.tell()) > 0 and (line := file.readline(left)):
        digest.update(line)
        with suppress(ValueError, KeyError, TypeError, AttributeError):  # the digest tells
            seen.add(_key(json.loads(line)["text"]))
    if digest.hexdigest() != about.digest:
        raise UserError(f"{out}: was changed since; choose another `out=...`")
    if file.seek(0, os.SEEK_END) > about.size:  # of a batch that was not entered
        file.truncate(about.size)
    return digest, seen


def _continued(now: About, before: About, out: Path) -> About:
    """What was begun, if it was begun so."""
    path = about_path(out)
    for name, old in before.settings.model_dump().items():
        new = getattr(now.settings, name)
        if old != new:
            what = "other prompts" if name == "prompts_digest" else f"{name} is {old}, not {new}"
            raise UserError(
                f"{path}: {what}; resume with the settings it was begun with, or choose another "
                "`out=...`"
            )
    if before.model_digest != now.model_digest:
        raise UserError(f"{path}: begun with another model; choose another `out=...`")
    if before.guarantee != now.guarantee:
        raise UserError(
            f"{path}: begun when the model had another certificate; choose another `out=...`"
        )
    return before


@contextmanager
def _open_locked(out: Path, resume: bool) -> Iterator[tuple[IO[bytes], About | None]]:
    """The file of texts, locked, and its description if it was begun."""
    path = about_path(out)
    created = not out.exists()
    if not created and not resume:
        raise UserError(
            f"{out}: exists already; add `resume=True` to continue it, or choose another `out=...`"
        )
    if created and path.exists() and not resume:
        raise UserError(f"{path}: exists already; choose another `out=...`")
    if not created and not path.is_file() and out.stat().st_size:  # empty: killed at its start
        raise UserError(f"{out}: has no {path.name} beside it; choose another `out=...`")
    with open(out, "a+b", opener=private_opener if created else None) as file:
        lock_file(file, f"{out}: another process is writing it; wait for it, or stop it")
        before = read_about(path) if path.is_file() else None
        try:
            yield file, before
        finally:
            if created and not path.is_file():  # refused: nothing was begun
                out.unlink(missing_ok=True)


def _check(
    folder: Path,
    out: Path,
    count: int,
    seed: int | None,
    drop: Sequence[str],
    at_once: int | None,
) -> None:
    if count < 1:
        raise UserError(f"`count={count}`: must be at least 1")
    if seed is not None and seed < 0:
        raise UserError(f"`seed={seed}`: must not be negative")
    if at_once is not None and at_once < 1:
        raise UserError(f"`at_once={at_once}`: must be at least 1")
    if unknown := sorted(set(drop) - set(DROPS)):
        raise UserError(f"`drop={unknown[0]}`: must be some of {', '.join(DROPS)}")
    if out.suffix != ".jsonl":
        raise UserError(f"{out}: name a file that ends in .jsonl")
    if not out.parent.is_dir():
        raise UserError(f"{out.parent}: no such folder; create it, or choose another")
    if folder.resolve() in out.resolve().parents:
        raise UserError(
            f"{out}: lies in the folder of the model, and would count as part of it; choose "
            "another folder"
        )


def _chosen(given: int | None, begun: int | None, default: Callable[[], int]) -> int:
    value = begun if given is None else given
    return default() if value is None else value


def _model_digest(folder: Path) -> str:
    files = json.dumps(model_files(folder), sort_keys=True)
    return hashlib.sha256(files.encode()).hexdigest()
