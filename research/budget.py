"""Epsilon against rounds: as the paper accounts for it, and as it can be proven.

**Published.** The paper's accountant at the paper's counts, which gives the epsilons it prints, and
at the counts of the data here. It is not a guarantee (`docs/privacy.md`, section 3).

**Proven, the same mechanism.** UeDP-Alg's noise is `z (q_u |U| + 1)` in units of an update, for
f_E and f_E+ alike: what they divide by scales signal and noise together. What can be proven of it
depends on how many users mention an entity, so it is stated for three: one with the median number
of holders, the one most users mention, and one that everybody mentions, which is the guarantee for
whatever entity there may be. Holders are counted with every mention of what was detected once: a
mention the detector overlooked is a mention all the same.

**Proven, rotation at equal noise-to-signal.** The signal of a round is the expected sum of the
norms that the drawn users' updates can have at most, in units of the update clip: what would come
through if all pulled the same way. For UeDP-Alg that is `q_u |U|`, a full update for each. For
rotation with share `s` a user who may use `n` sentences has at most `min(1, s n)`, where `n` counts
the sentences all of whose entities are lent to it, averaged over lendings on the data here. Both
draw users at the same rate, so equal noise-to-signal means that rotation's noise is UeDP-Alg's
times `sum over users of min(1, s n) / |U|`. This charges rotation for the sentences it cannot use
and for its second clip, while UeDP-Alg is taken to fill its clip with every update.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from research import markdown
from research.base import Options, Result, code_of, kept
from research.breakdown import PAPER as COUNTS
from research.corpora import detected, protecting
from research.sources import DATA_SETS
from uedp.accounting import published
from uedp.accounting.calibrate import noise_for
from uedp.accounting.planning import Supply
from uedp.accounting.profile import Profile
from uedp.accounting.proven import RotationProfile, UedpAlgProfile, UserLevelProfile, epsilon
from uedp.accounting.published import PublishedMethod, PublishedSetting
from uedp.incidence import Incidence

NOISE = 2.0  # the paper's z in this figure
DELTA = 1e-5
ENTITY_RATE = 0.5
SHARE = 0.3  # of an entity in rotation, as configs have it by default
CLAIMED_AT = 50  # rounds
USERS_PER_ROUND = {"conll": 50, "ag": 500, "edgar": 100}
ROUNDS = (1, 5, 10, 20, 35, 50, 100, 200, 300, 400, 500)
QUICK_ROUNDS = (1, 50, 500)

# Every epsilon the paper prints: (data set, method, category, rounds).
PRINTED = {
    ("conll", PublishedMethod.f_e_plus, "all", 50): 0.52,
    ("conll", PublishedMethod.f_e, "all", 50): 0.62,
    ("conll", PublishedMethod.user, "all", 50): 1.18,
    ("ag", PublishedMethod.f_e_plus, "all", 50): 0.50,
    ("ag", PublishedMethod.f_e, "all", 50): 0.75,
    ("ag", PublishedMethod.user, "all", 50): 1.48,
    ("edgar", PublishedMethod.f_e_plus, "all", 50): 0.40,
    ("edgar", PublishedMethod.f_e, "all", 50): 0.71,
    ("edgar", PublishedMethod.user, "all", 50): 1.40,
    ("edgar", PublishedMethod.f_e_plus, "gpe", 500): 0.19,
    ("edgar", PublishedMethod.f_e_plus, "loc", 500): 0.24,
    ("edgar", PublishedMethod.f_e_plus, "pii", 500): 0.26,
    ("edgar", PublishedMethod.f_e_plus, "org", 500): 0.73,
    ("edgar", PublishedMethod.f_e_plus, "all", 500): 0.81,
    ("edgar", PublishedMethod.user, "all", 500): 4.08,
}


def measure(options: Options) -> Result:
    rounds = QUICK_ROUNDS if options.quick else ROUNDS
    return {
        "quick": options.quick,
        "noise": NOISE,
        "delta": DELTA,
        "entity_rate": ENTITY_RATE,
        "claimed_at": CLAIMED_AT,
        "rounds": list(rounds),
        "data": {
            name: {
                "title": DATA_SETS[name].title,
                "published": _published(name, rounds),
                "proven": _proven(name, options, rounds),
            }
            for name in DATA_SETS
        },
    }


def draw(result: Result, path: Path) -> None:
    from research.plots.experiments import budget_panels

    budget_panels(result, path)


def table(result: Result) -> str:
    """All entities after the rounds the paper speaks of, then each category."""
    return "\n\n".join(
        [
            f"All entities, {result['claimed_at']} rounds, delta {result['delta']:g}:",
            _all_entities(result),
            "Each category; the last columns are for the entity of that category which most users "
            "mention:",
            _each_category(result),
            markdown.bullets(*_account(result)),
        ]
    )


def _all_entities(result: Result) -> str:
    at = result["rounds"].index(result["claimed_at"])
    rows = []
    for found in result["data"].values():
        paper, proven = found["published"], found["proven"]
        printed = {
            row["method"]: row["printed"]
            for row in paper["printed"]
            if (row["category"], row["rounds"]) == ("all", result["claimed_at"])
        }
        every = proven["categories"]["all"]
        alg = [proven["user_alone"], every["median"], every["most"], proven["everybody"]]
        for method, title, accountant, columns in (
            ("f_e_plus", "f_E+", paper["f_e_plus"]["all"], alg),
            ("f_e", "f_E", paper["f_e"], alg),
            ("user", "user-level", paper["user"], [proven["user_level_at_its_noise"], *[None] * 3]),
        ):
            values = [printed[method], accountant[at], *(c and c[at] for c in columns)]
            rows.append([f"{found['title']}, {title}", *map(markdown.epsilon, values)])
        rotation = [proven["rotation"]["epsilon"][at]] * 4
        rows.append([f"{found['title']}, rotation", "-", "-", *map(markdown.epsilon, rotation)])
    header = (
        "data, method",
        "paper",
        "published accountant (not a guarantee)",
        "proven: a user",
        "and the median entity",
        "and the most common",
        "and any entity",
    )
    return markdown.table(header, rows)


def _each_category(result: Result) -> str:
    places = [result["rounds"].index(count) for count in (50, 500)]
    rows = []
    for found in result["data"].values():
        for category, here in found["proven"]["categories"].items():
            curves = (
                found["published"]["f_e_plus"][category],
                here["published_f_e_plus"],
                here["most"],
            )
            values = [curve and curve[at] for curve in curves for at in places]
            rows.append(
                [
                    f"{found['title']}, {category}",
                    *map(markdown.epsilon, values[:4]),
                    markdown.count(here["entities"]),
                    markdown.count(here["most_holders"]),
                    *map(markdown.epsilon, values[4:]),
                ]
            )
    header = (
        "data, category",
        "published f_E+, paper's counts, T 50",
        "T 500",
        "published f_E+, counts here, T 50",
        "T 500",
        "entities",
        "holders of the commonest",
        "proven for it, T 50",
        "T 500",
    )
    return markdown.table(header, rows)


def _account(result: Result) -> list[str]:
    rows = [row for found in result["data"].values() for row in found["published"]["printed"]]
    gaps = [abs(row["accountant"] - row["printed"]) for row in rows]
    near = sum(gap <= 0.01 for gap in gaps)
    at = result["rounds"].index(result["claimed_at"])
    lines = [
        f"The recovered accountant gives {near} of the {len(rows)} epsilons that the paper prints "
        f"to within 0.01 (largest difference {max(gaps):.3f}).",
        "f_E+ is cheaper than f_E by the published accountant, which is handed a smaller sampling "
        "rate for it. What is proven is the same for both: they differ in what signal and noise "
        "are divided by.",
    ]
    for found in result["data"].values():
        proven, title = found["proven"], found["title"]
        claim, every = proven["claim"], proven["categories"]["all"]
        lines.append(
            f"{title}: the paper's {claim['epsilon']:g} is proven for entities that at most "
            f"{claim['most_holders_within']} users mention; {claim['entities_beyond']:,} of "
            f"{claim['entities']:,} have more, and they stand in "
            f"{markdown.share(claim['sentences_beyond'], every['sensitive'])} of the sensitive "
            f"sentences. For the one that {every['most_holders']:,} users mention, "
            f"{markdown.epsilon(every['most'][at])} is proven; for a user alone "
            f"{markdown.epsilon(proven['user_alone'][at])}."
        )
        ratio = proven["noise_to_signal"] / claim["rotation_noise_to_signal"]
        lines.append(
            f"{title}: rotation at the same noise-to-signal ({proven['noise_to_signal']:.3g}) has "
            f"{markdown.epsilon(proven['rotation']['epsilon'][at])} for every user with any "
            f"entity; {claim['epsilon']:g} it proves with {ratio:.3g} times less noise for its "
            "signal."
        )
    lines.append(
        "More sensitive sentences mean a higher epsilon in the published accountant, which counts "
        "them. In what is proven they do not matter: the holders of an entity do for UeDP-Alg, and "
        "nothing of the data for rotation."
    )
    return lines


# --- measuring -----------------------------------------------------------------------------------


def _published(name: str, rounds: Sequence[int]) -> Result:
    """The paper's curves at the paper's counts, and each printed value beside its own."""

    def at(method: PublishedMethod, category: str, counts: Sequence[int]) -> list[float]:
        setting = PublishedSetting(
            COUNTS[name]["users"],
            USERS_PER_ROUND[name],
            ENTITY_RATE,
            COUNTS[name]["sensitive"][category],
            COUNTS[name]["sentences"],
        )
        return published.curve(setting.rate(method), NOISE, counts, DELTA)

    printed = [
        {
            "method": method.value,
            "category": category,
            "rounds": count,
            "printed": value,
            "accountant": at(method, category, [count])[0],
        }
        for (data, method, category, count), value in PRINTED.items()
        if data == name
    ]
    categories = COUNTS[name]["sensitive"]
    return {
        "is": published.NOT_A_GUARANTEE,
        "users": COUNTS[name]["users"],
        "users_per_round": USERS_PER_ROUND[name],
        "printed": printed,
        "user": at(PublishedMethod.user, "all", rounds),
        "f_e": at(PublishedMethod.f_e, "all", rounds),
        "f_e_plus": {
            category: at(PublishedMethod.f_e_plus, category, rounds) for category in categories
        },
    }


def _proven(name: str, options: Options, rounds: Sequence[int]) -> Result:
    corpus = detected(name, options)
    chosen = DATA_SETS[name].paper_categories
    incidences = {category: protecting(corpus, (category,)) for category in chosen}
    incidences["all"] = protecting(corpus, chosen)
    what = {
        "step": "proven",
        "incidences": {category: found.digest for category, found in incidences.items()},
        "constants": [NOISE, DELTA, ENTITY_RATE, SHARE, CLAIMED_AT, USERS_PER_ROUND[name]],
        "rounds": list(rounds),
        "code": code_of("accounting", "mechanism"),
    }
    return kept(options.work, what, lambda: _prove(name, incidences, options, rounds))


def _prove(
    name: str, incidences: dict[str, Incidence], options: Options, rounds: Sequence[int]
) -> Result:
    whole = incidences["all"]
    rate = USERS_PER_ROUND[name] / COUNTS[name]["users"]
    noise = NOISE * (rate * whole.users + 1)
    norms = Supply.of_incidence(whole).norms(SHARE)
    known: dict[tuple[Profile, int], float] = {}
    with options.progress.stage(f"proving, {name}", None, "epsilons") as meter:

        def spent(profile: Profile, count: int) -> float:
            if (profile, count) not in known:
                known[profile, count] = epsilon(profile, count, DELTA)
                meter.advance(1)
            return known[profile, count]

        def curve(profile: Profile) -> list[float]:
            return [spent(profile, count) for count in rounds]

        def alg(holders: int) -> UedpAlgProfile:
            return UedpAlgProfile(NOISE, rate, whole.users, holders)

        def category(found: Incidence) -> Result:
            sensitive = int(np.count_nonzero(~found.extended))
            accountants = rate * ENTITY_RATE * sensitive / found.sentences
            holders = np.asarray(found.holders.counts)
            median = int(np.quantile(holders, 0.5, method="inverted_cdf")) if len(holders) else None
            most = int(holders.max()) if len(holders) else None
            return {
                "sensitive": sensitive,
                "entities": found.entities,
                "median_holders": median,
                "most_holders": most,
                "published_f_e_plus": (
                    published.curve(accountants, NOISE, rounds, DELTA) if sensitive else None
                ),
                "median": None if median is None else curve(alg(median)),
                "most": None if most is None else curve(alg(most)),
            }

        rotation = RotationProfile(noise * norms / whole.users, rate, SHARE)
        return {
            "users": whole.users,
            "sentences": whole.sentences,
            "user_rate": rate,
            "noise_in_updates": noise,
            "noise_to_signal": noise / (rate * whole.users),
            "user_alone": curve(UserLevelProfile(noise, rate)),
            "everybody": curve(alg(whole.users)),
            "user_level_at_its_noise": curve(UserLevelProfile(NOISE, rate)),
            "rotation": {
                "share": SHARE,
                "signal": norms / whole.users,
                "noise": rotation.noise,
                "epsilon": curve(rotation),
            },
            "categories": {key: category(found) for key, found in incidences.items()},
            "claim": _claim(name, whole, alg, lambda p: spent(p, CLAIMED_AT), rate, norms),
        }


def _claim(
    name: str,
    incidence: Incidence,
    alg: Callable[[int], UedpAlgProfile],
    spent: Callable[[Profile], float],
    rate: float,
    norms: float,
) -> Result:
    """For whom the paper's f_E+ epsilon is proven, and what rotation needs to prove it for all."""
    claimed = PRINTED[name, PublishedMethod.f_e_plus, "all", CLAIMED_AT]
    low, high = -1, incidence.users  # `low` holders are within the claim, `high` are not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if spent(alg(middle)) <= claimed else (low, middle)
    beyond = np.asarray(incidence.holders.counts) > low
    mentioned = incidence.sentence_entities
    sentences = np.unique(mentioned.row_of_value()[beyond[mentioned.values]])
    noise = noise_for(claimed, DELTA, CLAIMED_AT, lambda z: RotationProfile(z, rate, SHARE))
    return {
        "epsilon": claimed,
        "of_any_entity": spent(alg(incidence.users)),
        "most_holders_within": low,
        "entities_beyond": int(np.count_nonzero(beyond)),
        "entities": incidence.entities,
        "sentences_beyond": len(sentences),
        "rotation_noise": noise,
        "rotation_noise_to_signal": noise / (rate * norms),
    }
