"""The nearest of many texts, by the words and pairs of words that two texts have in common."""

import numpy as np
from scipy import sparse

from uedp.accounting.divergence import Floats
from uedp.audit.word_runs import WordHashes
from uedp.incidence import Ints

TIED = -2
"""In place of a user: texts of several are equally near."""

_COLUMNS = 18  # bits of a hash
_COMMON = 0.2  # words and pairs in more of the texts than this tell nothing, and cost most
_AT_ONCE = 1024  # texts of a block
_SAME = 1e-9


class NearestTexts:
    """For each of some texts the nearest among blocks of others, and whose that is.

    Nearness is the cosine between counts of words and pairs, weighted by how rare they are among
    the texts asked about: no other text has a part in the weights.
    """

    def __init__(self, query: WordHashes) -> None:
        self._weights = np.ones(1 << _COLUMNS)
        counts = self._matrix(query)
        texts_with = np.bincount(counts.indices, minlength=1 << _COLUMNS)
        self._weights = np.log((1 + len(query)) / (1 + texts_with)) + 1
        self._weights[texts_with > max(1.0, _COMMON * len(query))] = 0
        self._query = self._matrix(query)
        self.nearness = np.zeros(len(query))
        self.owners = np.full(len(query), TIED, dtype=np.int64)

    def add(self, block: WordHashes, owners: Ints) -> Floats:
        """The nearness of the nearest text of a block to each text."""
        best = np.zeros(len(self.nearness))
        texts = self._matrix(block)
        for first in range(0, len(block), _AT_ONCE):
            own = owners[first : first + _AT_ONCE]
            found = (self._query @ texts[first : first + _AT_ONCE].T).toarray()
            nearest = found.max(1)
            owner = own[found.argmax(1)]
            others = (found >= nearest[:, None] - _SAME) & (own[None] != owner[:, None])
            owner = np.where(others.any(1), TIED, owner)
            same = (np.abs(nearest - self.nearness) <= _SAME) & (owner != self.owners)
            self.owners = np.where(same, TIED, self.owners)
            closer = nearest > self.nearness + _SAME
            self.owners = np.where(closer, owner, self.owners)
            self.nearness = np.maximum(self.nearness, nearest)
            best = np.maximum(best, nearest)
        return best

    def _matrix(self, words: WordHashes) -> sparse.csr_matrix:
        """(texts, columns), each row of length 1."""
        parts = [words.ngrams(n) for n in (1, 2)]
        hashes = np.concatenate([hashes for hashes, _ in parts])
        rows = np.concatenate([words.text_of[places] for _, places in parts])
        columns = (hashes >> np.uint64(64 - _COLUMNS)).astype(np.int64)
        shape = (len(words), 1 << _COLUMNS)
        matrix = sparse.csr_matrix((self._weights[columns], (rows, columns)), shape=shape)
        lengths = np.sqrt(np.asarray(matrix.multiply(matrix).sum(1)))[:, 0]
        scale = np.divide(1, lengths, out=np.zeros(len(words)), where=lengths > 0)
        return sparse.csr_matrix(sparse.diags(scale) @ matrix)
