"""Tests whether texts come closer to people who were trained on than to others like them.

People were put in the training part or held out at random, by a draw that is independent of what
they wrote. If texts have learned from nobody in particular, which of the people they come close to
were in the training part is that draw again. So all tests here permute people: they hold exactly,
whatever the texts are and however they depend on each other.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from uedp.accounting.divergence import Floats
from uedp.audit.bounds import at_least, at_most
from uedp.corpus.store import Corpus
from uedp.incidence import Ints

_DRAWS = 1999  # permutations: the smallest p-value is one in 2,000
_ALPHA = 0.05


@dataclass(frozen=True)
class PeopleTest:
    """How many people of either part were come close to, of how many.

    `ratio` is that of the two rates, with its 95% interval (None: without bound); `p_value` the
    probability of so many or more in the training part by chance, `smallest` that if all had been.
    """

    train: int
    train_of: int
    held_out: int
    held_out_of: int
    ratio: float | None
    low: float
    high: float | None
    p_value: float
    smallest: float


def compare_people(train: int, train_of: int, held_out: int, held_out_of: int) -> PeopleTest:
    """Hold the people come close to in the training part against those held out.

    Guarantees:
      - exact (hypergeometric): a p-value is at most `x` with probability at most `x`, if the
        parts were drawn at random
    """
    found = train + held_out
    law = stats.hypergeom(train_of + held_out_of, train_of, found)
    low: float | None = 0.0
    high: float | None = None
    if found:
        counts = np.array([train])
        low, high = (
            _odds(float(bound(counts, found, _ALPHA / 2)[0]), train_of, held_out_of)
            for bound in (at_least, at_most)
        )
    ratio = None
    if held_out and train_of:
        ratio = (train / train_of) / (held_out / held_out_of)
    return PeopleTest(
        train=train,
        train_of=train_of,
        held_out=held_out,
        held_out_of=held_out_of,
        ratio=ratio,
        low=low or 0.0,
        high=high,
        p_value=float(law.sf(train - 1)) if found else 1.0,
        smallest=float(law.sf(min(found, train_of) - 1)) if found else 1.0,
    )


def _odds(share: float, train_of: int, held_out_of: int) -> float | None:
    """The ratio of rates at which this share of what is found is in the training part."""
    return None if share >= 1 else share / (1 - share) * held_out_of / max(train_of, 1)


@dataclass(frozen=True)
class GroupTest:
    """A mean over groups of as many people of either part, and how much larger one is.

    The interval is Welch's at 95%, with groups as observations; the p-value permutes them.
    """

    train: float
    held_out: float
    excess: float
    low: float
    high: float
    p_value: float
    groups: tuple[int, int]


def compare_groups(train: Floats, held_out: Floats, rng: np.random.Generator) -> GroupTest:
    """Hold groups of people of the training part against groups that were held out.

    Guarantees:
      - a p-value is at most `x` with probability at most `x`, if the parts were drawn at random
    """
    together, count = np.concatenate([train, held_out]), len(train)

    found = float(train.mean() - held_out.mean())
    drawn = rng.permuted(np.tile(together, (_DRAWS, 1)), axis=1)
    # rounding must not make a permutation that is the same larger or smaller
    excess = drawn[:, :count].mean(1) - drawn[:, count:].mean(1)
    larger = int((excess >= found - 1e-9).sum())
    spread = [float(side.var(ddof=1)) / len(side) for side in (train, held_out)]
    reach = 0.0
    if sum(spread) > 0:
        parts = zip(spread, (len(train), len(held_out)), strict=True)
        freedom = sum(spread) ** 2 / sum(v**2 / (n - 1) for v, n in parts if v > 0)
        reach = float(stats.t.ppf(1 - _ALPHA / 2, freedom)) * math.sqrt(sum(spread))
    return GroupTest(
        train=float(train.mean()),
        held_out=float(held_out.mean()),
        excess=found,
        low=found - reach,
        high=found + reach,
        p_value=(1 + larger) / (1 + _DRAWS),
        groups=(len(train), len(held_out)),
    )


@dataclass(frozen=True)
class NearestTest:
    """The share of texts whose nearest text is of the training part, and the range by chance."""

    texts: int
    share: float
    expected: float
    low: float
    high: float
    p_value: float


def compare_nearest(
    owners: Ints, in_training: npt.NDArray[np.bool_], rng: np.random.Generator
) -> NearestTest:
    """Whose text is nearest to each of some texts, held against a draw of the training part.

    Args:
        owners: for each text, the user with the nearest text
        in_training: for every user

    Guarantees:
      - a p-value is at most `x` with probability at most `x`, if the parts were drawn at random
    """
    users, counts = np.unique(owners, return_counts=True)
    total, everybody, trained = len(owners), len(in_training), int(in_training.sum())
    found = int(counts[in_training[users]].sum())
    drawn = np.empty(_DRAWS)
    among = rng.hypergeometric(trained, everybody - trained, len(users), _DRAWS)
    for number, chosen in enumerate(among.tolist()):
        drawn[number] = rng.permutation(counts)[:chosen].sum()
    return NearestTest(
        texts=total,
        share=found / total,
        expected=trained / everybody,
        low=float(np.quantile(drawn, _ALPHA / 2)) / total,
        high=float(np.quantile(drawn, 1 - _ALPHA / 2)) / total,
        p_value=float(1 + (drawn >= found).sum()) / (1 + _DRAWS),
    )


# --- the people of two corpora -------------------------------------------------------------------


class People:
    """Everybody whose text is compared: those of the training part first, then those held out."""

    def __init__(self, train: Corpus, held_out: Corpus | None) -> None:
        self.train, self.held_out = train, held_out
        self.trained = train.users
        self.others = 0 if held_out is None else held_out.users
        self.remarks: list[str] = []
        if held_out is None:
            self.remarks.append(
                "no people were held out: what the texts have in common with the training text "
                "cannot be told from what anybody writes; name a corpus of other people by "
                "`held_out=...`"
            )
        elif same := set(train.user_names.to_pylist()) & set(held_out.user_names.to_pylist()):
            self.remarks.append(
                f"{len(same):,} user names are in both corpora; the tests take them for different "
                "people"
            )

    def texts_of(self, users: Ints) -> tuple[list[str], Ints]:
        """All texts of some users, of one part, and who wrote each."""
        held = bool(len(users)) and int(users[0]) >= self.trained
        corpus = self.held_out if held else self.train
        assert corpus is not None
        rows = corpus.incidence.user_sentences.take(users - (self.trained if held else 0))
        return corpus.texts(rows.values), np.repeat(users, rows.counts)

    def sample(self, held: bool, count: int, rng: np.random.Generator) -> list[str]:
        corpus = self.held_out if held else self.train
        assert corpus is not None
        return corpus.texts(rng.choice(len(corpus), min(count, len(corpus)), replace=False))

    def compare(self, found: Ints, among: Ints | None = None) -> PeopleTest | None:
        """Of these people, how many are of either part, if anybody was held out.

        Args:
            among: those who could have been found; by default everybody
        """
        if not self.others:
            return None
        counts = [self._by_part(found)]
        counts.append((self.trained, self.others) if among is None else self._by_part(among))
        (inside, outside), (inside_of, outside_of) = counts
        return compare_people(inside, inside_of, outside, outside_of)

    def _by_part(self, users: Ints) -> tuple[int, int]:
        inside = int((users < self.trained).sum())
        return inside, len(users) - inside


def user_groups(
    users: Sequence[int] | Ints, size: int, most: int, rng: np.random.Generator
) -> tuple[list[Ints], Ints]:
    """At most `most` groups of `size` people at random, and those who are left over."""
    order = rng.permutation(np.asarray(users))
    count = min(most, len(order) // size)
    groups = [order[i * size : (i + 1) * size] for i in range(count)]
    return groups, order[count * size :]
