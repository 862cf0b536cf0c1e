"""Epsilon against rounds: by the paper's accountant, and as it can be proven.

**Published.** The paper's accountant at the paper's counts, which yields the epsilons it prints,
and at the counts of the data here. It is not a guarantee (`docs/privacy.md`, section 3).

**Proven, the same mechanism.** The noise of UeDP-Alg is `z (q_u |U| + 1)` in units of an update,
for f_E and f_E+ alike: their denominators scale signal and noise together. The proven epsilon
depends on the number of users who mention an entity (its holders). It is stated for three entities:
one with the median number of holders, the one with the most, and one that everybody mentions, which
bounds it for every entity. Holders are counted after hits are propagated to every mention: a
mention that the detector missed is still a mention.

**Proven, rotation at equal noise-to-signal ratio.** The signal of a round is the expected sum of
the largest norms that the sampled users' updates can have, in units of the update clip: the norm of
their sum if all were parallel. For UeDP-Alg it is `q_u |U|`, one full update per sampled user. For
rotation with share `s`, a user with `n` usable sentences contributes at most `min(1, s n)`, where
`n` counts the sentences whose entities are all lent to the user, averaged over lendings on the data
here. The user rate is the same, so at equal noise-to-signal ratio rotation's noise is UeDP-Alg's
times `sum over users of min(1, s n) / |U|`. This charges rotation for the sentences it cannot use
and for its second clip, while every update of UeDP-Alg is assumed to fill its clip.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from research import markdown
from research.base import Options, Result, cached
from research.corpora import detected_corpus, restrict_to_categories
from research.paper import COUNTS, ENTITY_RATE, EPSILONS, USERS_PER_ROUND
from research.sources import DATA_SETS
from research.supply import update_norms
from uedp.accounting import published
from uedp.accounting.calibrate import noise_for
from uedp.accounting.profile import Profile
from uedp.accounting.proven import RotationProfile, UedpAlgProfile, UserLevelProfile, epsilon
from uedp.accounting.published import PublishedMethod, PublishedSetting
from uedp.incidence import Incidence
from uedp.mechanism.sampling import supply_of

NOISE = 2.0  # the paper's z in this figure
DELTA = 1e-5
SHARE = 0.3  # entity share of rotation, the default of configs
CLAIMED_AT = 50  # rounds
ROUNDS = (1, 5, 10, 20, 35, 50, 100, 200, 300, 400, 500)
QUICK_ROUNDS = (1, 50, 500)
_SOURCES = ("uedp.accounting", "uedp.mechanism", "uedp.incidence", "research.experiments.budget")


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
    """All entities after the number of rounds that the paper discusses, then each category."""
    return "\n\n".join(
        [
            f"All entities, {result['claimed_at']} rounds, delta {result['delta']:g}:",
            _all_entities(result),
            "Each category; the last columns are for the entity of that category that most users "
            "mention:",
            _each_category(result),
            markdown.bullets(*_conclusions(result)),
        ]
    )


def _all_entities(result: Result) -> str:
    at = result["rounds"].index(result["claimed_at"])
    rows = []
    for data in result["data"].values():
        paper, proven = data["published"], data["proven"]
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
            rows.append([f"{data['title']}, {title}", *map(markdown.epsilon, values)])
        rotation = [proven["rotation"]["epsilon"][at]] * 4
        rows.append([f"{data['title']}, rotation", "-", "-", *map(markdown.epsilon, rotation)])
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
    for data in result["data"].values():
        for category, here in data["proven"]["categories"].items():
            curves = (
                data["published"]["f_e_plus"][category],
                here["published_f_e_plus"],
                here["most"],
            )
            values = [curve and curve[at] for curve in curves for at in places]
            rows.append(
                [
                    f"{data['title']}, {category}",
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
        "holders of the most common",
        "proven for it, T 50",
        "T 500",
    )
    return markdown.table(header, rows)


def _conclusions(result: Result) -> list[str]:
    rows = [row for data in result["data"].values() for row in data["published"]["printed"]]
    gaps = [abs(row["accountant"] - row["printed"]) for row in rows]
    near = sum(gap <= 0.01 for gap in gaps)
    at = result["rounds"].index(result["claimed_at"])
    lines = [
        f"The recovered accountant reproduces {near} of the {len(rows)} epsilons in the paper to "
        f"within 0.01 (largest difference {max(gaps):.3f}).",
        "f_E+ is cheaper than f_E by the published accountant, which is given a smaller sampling "
        "rate for it. The proven epsilon is the same: the two differ only in the denominator of "
        "both signal and noise.",
    ]
    for data in result["data"].values():
        proven, title = data["proven"], data["title"]
        claim, every = proven["claim"], proven["categories"]["all"]
        lines.append(
            f"{title}: the paper's {claim['epsilon']:g} is proven for entities that at most "
            f"{claim['most_holders_within']} users mention; {claim['entities_beyond']:,} of "
            f"{claim['entities']:,} have more, and they occur in "
            f"{markdown.share(claim['sentences_beyond'], every['sensitive'])} of the sensitive "
            f"sentences. For the entity that {every['most_holders']:,} users mention, "
            f"{markdown.epsilon(every['most'][at])} is proven; at user level "
            f"{markdown.epsilon(proven['user_alone'][at])}."
        )
        ratio = proven["noise_to_signal"] / claim["rotation_noise_to_signal"]
        lines.append(
            f"{title}: rotation at the same noise-to-signal ratio "
            f"({proven['noise_to_signal']:.3g}) has "
            f"{markdown.epsilon(proven['rotation']['epsilon'][at])} for every user with any "
            f"entity; it reaches {claim['epsilon']:g} with a ratio {ratio:.3g} times lower."
        )
    lines.append(
        "More sensitive sentences mean a higher epsilon by the published accountant, which counts "
        "them. The proven epsilon does not depend on them: that of UeDP-Alg depends on the holders "
        "of an entity, that of rotation on nothing in the data."
    )
    return lines


# --- measuring -----------------------------------------------------------------------------------


def _published(name: str, rounds: Sequence[int]) -> Result:
    """The accountant's curves at the paper's counts, and its value beside each printed one."""

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
        for (data, method, category, count), value in EPSILONS.items()
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
    corpus = detected_corpus(name, options)
    categories = DATA_SETS[name].paper_categories
    incidences = {c: restrict_to_categories(corpus, (c,)) for c in categories}
    incidences["all"] = restrict_to_categories(corpus, categories)
    key = {
        "step": "proven",
        "incidences": {category: own.digest for category, own in incidences.items()},
        "constants": [NOISE, DELTA, ENTITY_RATE, SHARE, CLAIMED_AT, USERS_PER_ROUND[name]],
        "rounds": list(rounds),
    }
    return cached(options.work, key, _SOURCES, lambda: _prove(name, incidences, options, rounds))


def _prove(
    name: str, incidences: dict[str, Incidence], options: Options, rounds: Sequence[int]
) -> Result:
    whole = incidences["all"]
    rate = USERS_PER_ROUND[name] / COUNTS[name]["users"]
    noise = NOISE * (rate * whole.users + 1)
    norms = update_norms(supply_of(whole), SHARE)
    computed: dict[tuple[Profile, int], float] = {}
    with options.progress.stage(f"proving, {name}", None, "epsilons") as meter:

        def spent(profile: Profile, count: int) -> float:
            if (profile, count) not in computed:
                computed[profile, count] = epsilon(profile, count, DELTA)
                meter.advance(1)
            return computed[profile, count]

        def curve(profile: Profile) -> list[float]:
            return [spent(profile, count) for count in rounds]

        def alg(holders: int) -> UedpAlgProfile:
            return UedpAlgProfile(NOISE, rate, whole.users, holders)

        def category(incidence: Incidence) -> Result:
            sensitive = int(np.count_nonzero(~incidence.extended))
            published_rate = rate * ENTITY_RATE * sensitive / incidence.sentences
            holders = np.asarray(incidence.holders.counts)
            median = int(np.quantile(holders, 0.5, method="inverted_cdf")) if len(holders) else None
            most = int(holders.max()) if len(holders) else None
            return {
                "sensitive": sensitive,
                "entities": incidence.entities,
                "median_holders": median,
                "most_holders": most,
                "published_f_e_plus": (
                    published.curve(published_rate, NOISE, rounds, DELTA) if sensitive else None
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
            "categories": {name: category(own) for name, own in incidences.items()},
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
    """The entities for which the paper's f_E+ epsilon is proven, and rotation's noise for it."""
    claimed = EPSILONS[name, PublishedMethod.f_e_plus, "all", CLAIMED_AT]
    low, high = -1, incidence.users  # within the claim for `low` holders, not for `high`
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
