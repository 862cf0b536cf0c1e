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
    missed: frozenset[tuple[int, int]] = frozenset()  # (owner, index): the entity is there unseen

    def gradient(self, owner: int, index: int, emptied: bool) -> float:
        entities, value = self.sentences[owner][index]
        touched = owner == self.user or (self.entity is not None and self.entity in entities)
        touched = touched or (owner, index) in self.missed
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


# --- an entity that several users hold, unseen in some of them -----------------------------------


def cells_divergence(
    upper: tuple[np.ndarray, np.ndarray],
    lower: tuple[np.ndarray, np.ndarray],
    noise: float,
    epsilons: np.ndarray,
    cells: int,
) -> np.ndarray:
    """`H_{e^eps}(upper || lower)` of mixtures in several dimensions, (means, weights), from below.

    As in `divergence`: a cell's exact masses, of which the positive part counts.
    """
    means = np.vstack([upper[0], lower[0]])
    edges = [
        np.linspace(low - 7 * noise, high + 7 * noise, cells + 1)
        for low, high in zip(means.min(axis=0), means.max(axis=0), strict=True)
    ]

    def masses(law: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        total = np.zeros((cells,) * len(edges))
        for mean, weight in zip(*law, strict=True):
            part = np.full((), weight)
            for axis, edge in enumerate(edges):
                along = np.diff(special.ndtr((edge - mean[axis]) / noise))
                part = np.multiply.outer(part, along)
            total += part
        return total

    above, below = masses(upper), masses(lower)
    return np.array([np.maximum(above - math.exp(e) * below, 0.0).sum() for e in epsilons])


def holder_laws(
    q: float, offset: np.ndarray, user: np.ndarray, rests: np.ndarray, moves: np.ndarray
) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """(full, emptied) as (means, weights): every draw of the user and of the holders enumerated.

    Holder `i` gives `rests[i]` on the emptied corpus and `rests[i] + moves[i]` on the full one.
    """
    full, emptied = [], []
    for drawn in itertools.product((0, 1), repeat=len(rests)):
        chance = math.prod(q if d else 1 - q for d in drawn)
        up = np.array(drawn, dtype=float)
        emptied.append((up @ rests, chance))
        for mine, p in ((0.0, 1 - q), (1.0, q)):
            full.append((offset + mine * user + up @ (rests + moves), chance * p))
    return tuple(  # type: ignore[return-value]
        (np.array([mean for mean, _ in law]), np.array([p for _, p in law]))
        for law in (full, emptied)
    )


def random_holders(
    rng: np.random.Generator, moves: tuple[float, ...], offset: float, dimensions: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Offset, user's update, rests and moves, anywhere within what Theorem 3 admits."""

    def within(bound: float) -> np.ndarray:
        way = rng.normal(size=dimensions)
        # the bound itself more often than not: the worst worlds lie there
        return way / np.linalg.norm(way) * bound * min(1.0, rng.uniform(0, 2))

    rests, moved = [], []
    for bound in moves:
        rest = within(1.0)
        move = within(bound)
        # shortened until the update is within its clip; zero always is, but for rounding
        while np.linalg.norm(rest + move) > 1 + 1e-12:
            move = move * 0.8 if np.linalg.norm(move) > 1e-3 else move * 0
        rests.append(rest)
        moved.append(move)
    return within(offset), within(1.0), np.array(rests), np.array(moved)


def missed_worlds(rng: np.random.Generator, count: int, share: float) -> Iterator[World]:
    """Random corpora in which up to two more users hold the entity, unseen in one sentence each."""
    for world in random_worlds(rng, count, share):
        if world.entity is None or len(world.sentences) < 2:
            continue
        others = rng.permutation([u for u in range(len(world.sentences)) if u != world.user])
        missed = set()
        for owner in others[: int(rng.integers(1, 3))]:
            unseen = [
                index
                for index, (entities, _) in enumerate(world.sentences[owner])
                if world.entity not in entities
            ]
            if unseen:
                missed.add((int(owner), int(rng.choice(unseen))))
        if missed:
            yield World(world.sentences, world.user, world.entity, frozenset(missed))


def worst_missed_worlds() -> dict[str, World]:
    """Shapes near the worst for a share of one half; user 0 is under attack, user 1 is lent to."""
    attacked = ((frozenset[int](), 1.0),) * 2
    entity, unseen = (frozenset({0}), 0.5), (frozenset[int](), 0.5)
    agree, oppose = (frozenset[int](), 0.5), (frozenset[int](), -0.5)
    return {
        "another user, agreeing": World(
            (attacked, (entity, agree), (unseen, agree)), 0, 0, frozenset({(2, 0)})
        ),
        "another user, opposing": World(
            (attacked, (entity, oppose, oppose), (unseen, oppose, oppose)),
            0,
            0,
            frozenset({(2, 0)}),
        ),
        "the lent user": World((attacked, (entity, unseen)), 0, 0, frozenset({(1, 1)})),
        "the lent user, opposing": World(
            (attacked, (entity, unseen, oppose, oppose)), 0, 0, frozenset({(1, 1)})
        ),
        "all of another user": World(
            (attacked, (entity, agree), (unseen,) * 2), 0, 0, frozenset({(2, 0), (2, 1)})
        ),
    }
