"""A digest of users, texts and labels, to detect changes."""

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


class TextDigest:
    """A hash over (user, text, label) of every sentence in order, a batch at a time.

    Guarantees:
      - equal for the same sentences, however they are divided into batches
      - different users, texts, labels or order give a different digest (up to SHA-256 collisions)
    """

    def __init__(self) -> None:
        self._sentences = 0
        self._users = hashlib.sha256()
        self._columns = [(hashlib.sha256(), hashlib.sha256()) for _ in ("text", "label")]

    def update(
        self, users: npt.ArrayLike, texts: Sequence[str], labels: Sequence[str | None]
    ) -> None:
        owners = np.asarray(users, dtype="<i8")
        if not len(owners) == len(texts) == len(labels):
            raise ValueError("users, texts and labels differ in length")
        self._sentences += len(owners)
        self._users.update(np.ascontiguousarray(owners).data)
        for (lengths, content), column in zip(self._columns, (texts, labels), strict=True):
            # a text in memory may have lone surrogates
            parts = [v if v is None else v.encode("utf-8", "surrogatepass") for v in column]
            # -1 for a missing value: no label differs from an empty one
            sizes = [-1 if part is None else len(part) for part in parts]
            lengths.update(np.array(sizes, dtype="<i8").data)
            content.update(b"".join(filter(None, parts)))

    def hexdigest(self) -> str:
        whole = hashlib.sha256(f"sentences {self._sentences} ".encode())
        for state in (self._users, *(state for pair in self._columns for state in pair)):
            whole.update(state.digest())
        return whole.hexdigest()


def text_digest(
    users: npt.ArrayLike, texts: Sequence[str], labels: Sequence[str | None], batch: int = 1 << 16
) -> str:
    """The digest of sentences in memory."""
    digest, owners = TextDigest(), np.asarray(users)
    if not len(owners) == len(texts) == len(labels):
        raise ValueError("users, texts and labels differ in length")
    for start in range(0, len(texts), batch):
        part = slice(start, start + batch)
        digest.update(owners[part], texts[part], labels[part])
    return digest.hexdigest()
