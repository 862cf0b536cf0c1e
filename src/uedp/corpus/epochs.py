"""Epochs: what was added to a corpus after it was made, each in a folder of its own.

CORPUS/epochs/0002/
  epoch.json          what it adds, who left, and digests that chain from epoch to epoch
  sentences.arrow     as in the corpus; ids of users go on where the epoch before ended
  users.arrow         the users who joined
  mentions.arrow      mentions in its sentences, and those found late in older ones
  entities.arrow      the entities that were not known before
  evidence.arrow      entity, hits, places, detectors: what this epoch adds to each
  hits.arrow          raw hits in its sentences
  index-0002.sqlite   its words, users, entities and evidence (`uedp.corpus.index`); the first
                      extension also makes index-0001.sqlite, of the corpus as it was made

An epoch is never changed, and ids of users, sentences and entities never are. The first epoch is
the corpus as it was made: one that was never extended has no such folder.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from uedp.errors import UserError
from uedp.incidence import Ints
from uedp.strict import parse_json

FOLDER, MANIFEST = "epochs", "epoch.json"
FORMAT = 1
_NAME = re.compile(r"\d{4}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_COUNTS = ("users", "sentences", "entities", "mentions", "hits")


@dataclass(frozen=True)
class Epoch:
    """One epoch of a corpus: how much it added, who left, and the digests up to it.

    `incidence` and `texts` are the digests of the corpus as rounds of this epoch see it.
    """

    number: int
    folder: Path
    info: Mapping[str, Any]
    incidence: str
    texts: str

    @property
    def left(self) -> tuple[int, ...]:
        """The users who left when it began."""
        return tuple(self.info.get("left", ()))


def epoch_folder(corpus: Path, number: int) -> Path:
    return corpus / FOLDER / f"{number:04d}"


def read_epochs(corpus: Path, first: Mapping[str, Any], until: int | None = None) -> list[Epoch]:
    """The epochs of a corpus with this `corpus.json`, up to one of them.

    Guarantees:
      - digests chain: an epoch whose predecessor was changed, left out or replaced is refused
      - reads the manifests and nothing else
    """
    digests = str(first["incidence_digest"]), str(first["text_digest"])
    epochs = [Epoch(1, corpus, first, *digests)]
    parent = corpus / FOLDER
    there = parent.iterdir() if parent.is_dir() else ()
    numbers = sorted(int(path.name) for path in there if _NAME.fullmatch(path.name))
    if numbers != list(range(2, len(numbers) + 2)):
        raise _damaged(parent, f"epochs {numbers} where 2, 3, ... are expected")
    if until is not None and not 1 <= until <= len(numbers) + 1:
        raise UserError(f"{corpus}: has no epoch {until}, its latest is {len(numbers) + 1}")
    for number in numbers[: None if until is None else until - 1]:
        folder = epoch_folder(corpus, number)
        info = _manifest(folder / MANIFEST)
        before = epochs[-1]
        if info["epoch"] != number or info["previous"] != [before.incidence, before.texts]:
            raise _damaged(folder / MANIFEST, f"does not follow epoch {number - 1} of this corpus")
        epochs.append(
            Epoch(
                number,
                folder,
                info,
                chained(number, before.incidence, info["own_incidence_digest"]),
                chained(number, before.texts, info["own_text_digest"]),
            )
        )
    return epochs


def chained(number: int, before: str, own: str) -> str:
    """The digest of a corpus up to an epoch, from that of the epoch before."""
    return hashlib.sha256(f"uedp epoch {number} {before} {own}".encode()).hexdigest()


def incidence_digest(
    counts: Sequence[int], owners: Ints, sentence: Ints, entity: Ints, left: Sequence[int]
) -> str:
    """The digest of what an epoch adds to the incidence, and of who left.

    Args:
        counts: the users, sentences and entities before it and after it.
        owners: the users of its sentences.
        sentence, entity: its mentions, in any order, repeats allowed.
    """
    state = hashlib.sha256(json.dumps([*map(int, counts), sorted(map(int, left))]).encode())
    pairs = np.unique(np.stack([sentence, entity], axis=1).astype("<i8"), axis=0)
    state.update(np.ascontiguousarray(owners, dtype="<i4").data)
    state.update(f" mentions {len(pairs)} ".encode())
    state.update(np.ascontiguousarray(pairs).data)
    return state.hexdigest()


def merged_info(epochs: Sequence[Epoch]) -> dict[str, Any]:
    """The manifest of a corpus with all of these epochs."""
    info = dict(epochs[0].info)
    if len(epochs) == 1:
        return info
    for name in _COUNTS:
        info[name] = sum(epoch.info[name] for epoch in epochs)
    info.pop("coverage", None)  # it was measured before
    info.pop("hits_digest", None)
    report = dict(info["propagation"])
    versions = {name: [version] for name, version in info["detector_versions"].items()}
    for epoch in epochs[1:]:
        for name, version in epoch.info["detector_versions"].items():
            if version not in versions.setdefault(name, []):
                versions[name].append(version)
        added = epoch.info["propagation"]
        report["hits"] += added["hits"]
        report["mentions_added"] += added["mentions_added"]
        both = (report["dropped"], added["dropped"])
        reasons = sorted({*both[0], *both[1]})
        report["dropped"] = {r: sum(one.get(r, 0) for one in both) for r in reasons}
    info["propagation"] = report
    info["detector_versions"] = {name: ", then ".join(all_) for name, all_ in versions.items()}
    info["incidence_digest"], info["text_digest"] = epochs[-1].incidence, epochs[-1].texts
    info["epochs"] = len(epochs)
    return info


def _manifest(path: Path) -> dict[str, Any]:
    try:
        info = parse_json(path.read_bytes())
    except (OSError, ValueError):
        raise _damaged(path, "missing, or not JSON") from None
    if not isinstance(info, dict) or info.get("format") != FORMAT:
        raise _damaged(path, "of another version")
    for name in (*_COUNTS, "epoch"):
        if type(info.get(name)) is not int or info[name] < 0:
            raise _damaged(path, f"no number of {name}")
    for name in ("own_text_digest", "own_incidence_digest", "hits_digest"):
        if not _DIGEST.fullmatch(str(info.get(name))):
            raise _damaged(path, f"no {name}")
    left = info.get("left")
    if not isinstance(left, list) or not all(type(user) is int and user >= 0 for user in left):
        raise _damaged(path, "no list of those who left")
    for name in ("detector_versions", "propagation"):
        if not isinstance(info.get(name), dict):
            raise _damaged(path, f"no {name}")
    return info


def _damaged(path: Path, how: str) -> UserError:
    return UserError(f"{path}: {how}; the corpus is damaged, restore it from a copy")
