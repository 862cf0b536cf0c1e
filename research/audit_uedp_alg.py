"""Attack UeDP-Alg as published: at the paper's settings, on a corpus, with its released code.

    python -m research.audit_uedp_alg [--corpus FOLDER] [--released-code] [--quick] [--out FILE]

FOLDER is one of `uedp detect`. Without it the world is as large as the paper's CoNLL.
"""

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from uedp.accounting import published
from uedp.accounting.calibrate import noise_for
from uedp.accounting.divergence import Floats
from uedp.accounting.proven import UedpAlgProfile
from uedp.audit.mechanism import Case, Mechanism
from uedp.audit.plans import plan_of
from uedp.audit.verdict import Claim, conclusion, document
from uedp.audit.worlds import LARGE, TARGETS, ZERO, Distribution, Target, World, threats
from uedp.errors import UserError
from uedp.incidence import Incidence
from uedp.mechanism.estimators import Weights, draw_uedp_alg, f_e_plus
from uedp.mechanism.sampling import Sampling

ENTITY_RATE = 0.5
CONLL = published.PublishedSetting(
    946, 50, entity_rate=ENTITY_RATE, sensitive=11_176, sentences=14_040
)
HOLDERS = 112  # of its most common entity
NOISE = 2.0
USER_RATE = CONLL.users_per_round / CONLL.users
_CLIP = 0.1
_COIN_DRAWS = 300


def uedp_alg_cases(
    incidence: Incidence | None = None,
    *,
    holders: int = HOLDERS,
    entity: int | None = None,
    released_code: bool = False,
    user_rate: float = USER_RATE,
    noise: float = NOISE,
    epsilon: float | None = None,
    rounds: int = 50,
    delta: float = 1e-5,
) -> list[Case]:
    """UeDP-Alg for a user, an entity, and both.

    Args:
        incidence: A corpus; by default a world as large as the paper's CoNLL, with an entity of
            `holders` other users.
        entity: The entity to attack in the corpus; by default the one that most users mention.
        released_code: Draw the noise as the paper's code does, with its variance for a standard
            deviation. Nothing is claimed of that but the published epsilon.
        epsilon: Calibrate the noise to this, with accounting that is proven.
    """
    if incidence is None:
        users, sensitive, sentences = CONLL.users, CONLL.sensitive, CONLL.sentences
        weights = Weights(np.ones(users), np.ones(sensitive), 1.0, sentences - sensitive)
    else:
        entity = most_held(incidence) if entity is None else entity
        users, sentences = incidence.users, incidence.sentences
        sensitive = sentences - int(incidence.extended.sum())
        holders = len(incidence.holders[entity])
        weights = Weights.of(incidence)

    def profile(z: float) -> UedpAlgProfile:
        return UedpAlgProfile(z, user_rate, users, holders)

    if epsilon is not None:
        noise = noise_for(epsilon, delta, rounds, profile)
    rate = user_rate * ENTITY_RATE * sensitive / sentences
    claimed = published.epsilon(rate, noise, rounds, delta)
    sampling, method = Sampling(user_rate, ENTITY_RATE), "uedp-alg"
    if released_code:
        estimator = f_e_plus(sampling, weights, _CLIP, noise)
        noise *= estimator.deviation  # the code draws with `sigma^2` for a deviation
        method += ", released code"
    plan = plan_of(method="uedp-alg", noise=noise, user_rate=user_rate, entity_rate=ENTITY_RATE)
    multiplier = noise * (user_rate * users + 1)
    mechanism = replace(Mechanism.of(plan), multiplier=multiplier)
    cases = []
    for target, attacked, worlds in threats(profile(noise), sampling):
        if incidence is not None and entity is not None:
            worlds = [world_on(incidence, user_rate, entity, target)]
        claim = Claim(method, target, attacked, rounds, delta, claimed)
        cases.append(Case(claim, mechanism, worlds))
    return cases


# --- the worst content on a real incidence -------------------------------------------------------


def most_held(incidence: Incidence) -> int:
    """The entity that most users mention."""
    if not incidence.entities:
        raise UserError("the corpus has no entities: detect some, or audit without a corpus")
    return int(np.argmax(incidence.holders.counts))


def user_beside(incidence: Incidence, entity: int) -> int:
    """A user to attack together with an entity.

    One who does not mention it, if possible, so that all its holders count; and one with a
    sentence without entities, which is used whenever its user is drawn.
    """
    holds = np.zeros(incidence.users, dtype=np.bool_)
    holds[incidence.holders[entity]] = True
    surely = np.zeros(incidence.users, dtype=np.bool_)
    surely[incidence.sentence_user[incidence.extended]] = True
    return int(np.lexsort((-incidence.user_sentences.counts, ~surely, holds))[0])


def world_on(
    incidence: Incidence, user_rate: float, entity: int, target: Target = "user and entity"
) -> World:
    """The worst content for UeDP-Alg on the incidence of a corpus.

    A sentence of the user under attack, or with the entity under attack, pushes its user's update
    up to the clip, however much else there is; all other sentences of the entity's holders push it
    down to the clip. Nobody else has a gradient.

    Which sentences are used depends on coins that entities share, so the distributions of the sum
    are averages over some hundred draws of the mechanism's own coins. They only guide the attack:
    its bounds do not depend on them.
    """
    assert target in TARGETS
    empties = np.zeros(incidence.sentences, dtype=np.bool_)
    gradients = np.zeros(incidence.sentences)
    holders = 0
    if target != "user":
        mentioning, owners = incidence.entity_sentences[entity], incidence.sentence_user
        holds = np.zeros(incidence.users, dtype=np.bool_)
        holds[owners[mentioning]] = True
        rest = holds[owners]
        rest[mentioning] = False
        gradients[rest] = -1.0
        times = np.maximum(incidence.sentence_entities.counts, 1)  # a sentence counts so often
        against = np.bincount(owners[rest], times[rest], minlength=incidence.users)
        gradients[mentioning] = LARGE + against[owners[mentioning]]
        empties[mentioning] = True
        holders = int(holds.sum())
    if target != "entity":
        attacked = user_beside(incidence, entity)
        own = incidence.user_sentences[attacked]
        gradients[own], empties[own] = LARGE, True
        holders -= int(target != "user" and attacked in incidence.holders[entity])
    sides = np.where(empties, 0.0, gradients), gradients
    emptied, full = (_average(incidence, side, user_rate) for side in sides)
    name = f"{holders} other holders in the corpus"
    return World(name, incidence, gradients, empties, emptied, full)


def _average(incidence: Incidence, gradients: Floats, user_rate: float) -> Distribution:
    """The distribution of UeDP-Alg's sum, averaged over draws of the entities' coins.

    Given the coins, everyone's update is known, and users are drawn independently: so each coin
    draw is one round with everyone in it.
    """
    rng, everyone = np.random.default_rng(0), Sampling(1.0, ENTITY_RATE)
    seen: Counter[tuple[tuple[float, int], ...]] = Counter()
    for _ in range(_COIN_DRAWS):
        drawn = draw_uedp_alg(incidence, everyone, rng, np.ones(incidence.entities))
        rows = drawn.sentences
        moves = np.bincount(
            rows.row_of_value(), gradients[rows.values] * drawn.weights, minlength=len(rows)
        )
        values, counts = np.unique(np.clip(moves, -1.0, 1.0), return_counts=True)
        seen[tuple(zip(values.tolist(), counts.tolist(), strict=True))] += 1
    outcomes: list[tuple[float, float]] = []
    for updates, times in seen.items():
        total = ZERO
        for value, count in updates:
            if value:
                total = total.plus(Distribution.binomial(count, user_rate, value))
        outcomes += [(v, p * times / _COIN_DRAWS) for v, p in total.outcomes]
    return Distribution.of(*outcomes)


# --- command -------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, help="a folder of `uedp detect`")
    parser.add_argument("--released-code", action="store_true", help="its noise as well")
    parser.add_argument("--user-rate", type=float, default=USER_RATE)
    parser.add_argument("--noise", type=float, default=NOISE, help="the paper's z")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--runs", type=int, help="on either corpus of a world; default: by time")
    parser.add_argument("--quick", action="store_true", help="fewer runs")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--out", type=Path, help="save the results as JSON")
    given = parser.parse_args(arguments)
    incidence = None if given.corpus is None else Incidence.of(given.corpus)
    cases = [
        case
        for released in ((False, True) if given.released_code else (False,))
        for case in uedp_alg_cases(
            incidence,
            released_code=released,
            user_rate=given.user_rate,
            noise=given.noise,
            rounds=given.rounds,
        )
    ]
    audits = [
        case.audit(
            runs=given.runs or case.runs_in(1.0 if given.quick else 20.0),
            seed=None if given.seed is None else given.seed + number,
            among=len(cases),
            fit_curve=not given.quick,
        )
        for number, case in enumerate(cases)
    ]
    if given.out is not None:
        given.out.write_text(json.dumps(document(audits), indent=2, allow_nan=False) + "\n")
    for one in audits:
        proven = "no finite epsilon" if one.proven is None else f"{one.proven:.4g}"
        print(
            f"{one.name}: at least {one.threshold.epsilon:.2f}, by a Gaussian fit "
            f"{one.gaussian.epsilon:.2f}; proven: {proven}; published: {one.published:.2f}"
        )
    print(published.NOT_A_GUARANTEE, *conclusion(audits), sep="\n")


if __name__ == "__main__":
    main()
