"""Small worlds in which a round's output is known exactly, to attack the accountant with.

A world is a mixture of Gaussians on a line for each of two neighbouring corpora. It is produced
by enumerating every outcome of a mechanism written here a second time, plainly, on purpose
without the product's code.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy import special


@dataclass(frozen=True)
class Law:
    """`sum_i weights_i N(means_i, noise^2)`."""

    means: np.ndarray
    weights: np.ndarray

    def density(self, at: np.ndarray, noise: float) -> np.ndarray:
        z = (at[:, None] - self.means) / noise
        return np.exp(-z * z / 2) @ self.weights / (noise * math.sqrt(2 * math.pi))

    def mass(self, low: np.ndarray, high: np.ndarray, noise: float) -> np.ndarray:
        upper = special.ndtr((high[:, None] - self.means) / noise)
        return (upper - special.ndtr((low[:, None] - self.means) / noise)) @ self.weights


def law(outcomes: list[tuple[float, float]]) -> Law:
    """From (mean, probability) pairs; equal means are merged."""
    merged: dict[float, float] = {}
    for mean, probability in outcomes:
        key = round(mean, 12)
        merged[key] = merged.get(key, 0.0) + probability
    kept = {mean: p for mean, p in merged.items() if p > 0}
    return Law(np.array(list(kept)), np.array(list(kept.values())))


def divergence(upper: Law, lower: Law, noise: float, epsilon: float) -> float:
    """`H_{e^eps}(upper || lower)`, from below: the sum over cells of what is surely positive.

    Each cell contributes the positive part of its exact masses, which is never more than the
    integral of the positive part; 4,000 cells leave about 1e-7.
    """
    edge = max(np.abs(upper.means).max(), np.abs(lower.means).max()) + 9 * noise
    grid = np.linspace(-edge, edge, 4001)
    cells = upper.mass(grid[:-1], grid[1:], noise) - math.exp(epsilon) * lower.mass(
        grid[:-1], grid[1:], noise
    )
    return float(np.maximum(cells, 0.0).sum())


@dataclass(frozen=True)
class World:
    """Users' sentences as (entities, gradient); the emptied corpus has zeros where touched."""

    sentences: tuple[tuple[tuple[frozenset[int], float], ...], ...]
    user: int
    entity: int | None  # None: only the user differs

    def gradient(self, owner: int, index: int, emptied: bool) -> float:
        entities, value = self.sentences[owner][index]
        touched = owner == self.user or (self.entity is not None and self.entity in entities)
        return 0.0 if emptied and touched else value


def clip(value: float, bound: float) -> float:
    return max(-bound, min(bound, value))


def rotation_laws(world: World, q: float, coin: float, share: float, m: int = 1) -> tuple[Law, Law]:
    """The round of section 5 on (full, emptied), in units of beta; `share = m c / beta`."""
    users = range(len(world.sentences))
    entities = sorted({e for own in world.sentences for es, _ in own for e in es})
    holders = {
        e: [u for u in users if any(e in es for es, _ in world.sentences[u])] for e in entities
    }
    laws: tuple[list, list] = ([], [])
    orders = list(itertools.permutations(users))
    for order in orders:
        lent = {e: min(holders[e], key=order.index) for e in entities}
        chosen = [_selected(world, u, lent, m) for u in users]
        for coins in itertools.product((0, 1), repeat=len(entities)):
            up = dict(zip(entities, coins, strict=True))
            chance = math.prod(coin if c else 1 - coin for c in coins) / len(orders)
            if chance == 0:
                continue
            for side, outcomes in enumerate(laws):
                updates = [
                    clip(
                        sum(
                            clip(world.gradient(u, i, emptied=side == 1), share / m)
                            for i in chosen[u]
                            if all(up[e] for e in world.sentences[u][i][0])
                        ),
                        1.0,
                    )
                    for u in users
                ]
                for drawn in itertools.product((0, 1), repeat=len(users)):
                    p = math.prod(q if d else 1 - q for d in drawn)
                    total = sum(d * v for d, v in zip(drawn, updates, strict=True))
                    outcomes.append((total, chance * p))
    return law(laws[0]), law(laws[1])


def _selected(world: World, user: int, lent: dict[int, int], m: int) -> list[int]:
    """Sentences whose entities are all lent to the user, each entity at most m times, in order."""
    taken: dict[int, int] = {}
    chosen = []
    for index, (entities, _) in enumerate(world.sentences[user]):
        if any(lent[e] != user for e in entities) or any(taken.get(e, 0) >= m for e in entities):
            continue
        for e in entities:
            taken[e] = taken.get(e, 0) + 1
        chosen.append(index)
    return chosen


def random_worlds(rng: np.random.Generator, count: int, share: float) -> Iterator[World]:
    """Up to three users, two entities, three sentences each; gradients that oppose or agree."""
    for _ in range(count):
        users = int(rng.integers(1, 4))
        sentences = []
        for _user in range(users):
            own = []
            for _sentence in range(int(rng.integers(1, 4))):
                entities = frozenset(int(e) for e in range(2) if rng.random() < 0.5)
                value = float(rng.choice([-1, 1])) * float(rng.choice([share, 1.0, share / 2, 0.0]))
                own.append((entities, value))
            sentences.append(tuple(own))
        mentioned = sorted({e for own in sentences for es, _ in own for e in es})
        entity = int(rng.choice(mentioned)) if mentioned and rng.random() < 0.9 else None
        yield World(tuple(sentences), int(rng.integers(users)), entity)


def worst_worlds() -> list[World]:
    """Theorem 2's extremal shapes for a share of one half.

    User 0 is under attack and always gives a full update. User 1 alone mentions entity 0 and has
    other text besides, which agrees with the entity's sentence or opposes it.
    """
    attacked = ((frozenset[int](), 1.0),) * 2
    entity = (frozenset({0}), 0.5)
    agree = (entity, (frozenset[int](), 0.5))
    oppose = (entity, (frozenset[int](), -0.5), (frozenset[int](), -0.5))
    return [World((attacked, other), user=0, entity=0) for other in (agree, oppose)]
