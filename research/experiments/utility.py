"""What protecting names costs: the trials of `research/utility.py`, read from their results.

They need an accelerator: `python -m research.utility train` runs them there. Copy the JSON files
that it writes into `OUT/utility`; this experiment trains nothing. Every comparison is of the best
setting by validation among those that all methods were given; the search for more signal stands
apart.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

from research import markdown, parts, runs
from research.base import Options, Result
from research.markdown import format_measure
from research.render import format_repeats, not_run_note
from research.search_table import AS_IT_IS, KEPT, search_table
from research.select_results import (
    PUBLIC_FIRST,
    REPEAT,
    SEARCH,
    Row,
    best_setting,
    epsilon_of,
    group_by_setting,
    is_search,
    mean_test,
    targets_of,
    user_level_like,
)
from research.settings import EPSILONS
from research.sources import TRAINING_SETS
from research.trial_runner import measured_apart
from research.utility import DATA, RANK, SEARCHED, SETTINGS, SHORT, SMALLER, VARIANTS
from uedp.accounting.proven import FairSharesProfile
from uedp.accounting.proven import epsilon as proven_epsilon
from uedp.accounting.statement import epsilon_text
from uedp.errors import UserError

FOLDER = "utility"
MEASURE = "perplexity"
PROTECTS_BOTH = ("fair-shares", "rotation")
NAMES = {
    "user-level": "user-level DP",
    "fair-shares": "fair shares: users and entities",
    "rotation": "rotation: users and entities",
    f"user-level{PUBLIC_FIRST}": "user-level DP, public text first",
    f"fair-shares{PUBLIC_FIRST}": "fair shares, public text first",
    "user-level-deidentified": "user-level DP on placeholders",
    "user-level-surrogates": "user-level DP on surrogates",
    "noiseless": "noiseless (no guarantee)",
    "deidentified": "placeholders (no guarantee)",
    "noiseless-surrogates": "surrogates (no guarantee)",
}
_RATES = ("noise", "user_rate", "entity_share", "extended_rate")


def measure(options: Options) -> Result:
    found = trial_rows(options)
    _refuse_other_entities(found)
    known = {row["data"] for row in found}
    return {
        "quick": options.quick,
        "measure": MEASURE,
        "panels": {data: TRAINING_SETS[data].title for data in DATA if data in known},
        "paper": {},
        "rows": found,
        "by_users": list(_by_users(found)),
    }


def trial_rows(options: Options) -> list[Result]:
    """A row for each result that is there."""
    folder = options.work.parent.parent / FOLDER
    return [_row(result) for result in runs.load_results(folder)] if folder.is_dir() else []


def _refuse_other_entities(rows: Sequence[Row]) -> None:
    """Trials of one corpus whose entities a different detector found are not comparable."""
    known: dict[tuple[str, str], Row] = {}
    for row in rows:
        first = known.setdefault((row["data"], row["category"]), row)
        if row["incidence"] != first["incidence"]:
            raise UserError(
                f"{row['name']} and {first['name']}: trained with different entities, so that they "
                "cannot be compared; prepare the data with one detector, or name one of them apart"
            )


def _row(result: Mapping[str, Any]) -> Result:
    privacy, key = result["config"]["privacy"], result["measure"]
    row: Result = {
        "name": result["name"],
        "setting": result["name"].partition(REPEAT)[0],
        "data": result["data"],
        "panel": result["data"],
        "category": result["category"],
        "method": _method(result),
        "target": privacy["epsilon"],
        "epsilon": _proven_today(result),
        "noise": result["noise"],
        "user_rate": privacy["user_rate"],
        "rounds": privacy["rounds"],
        "share": privacy["entity_share"],
        "rank": result["config"]["model"]["rank"],
        "precision": result.get("precision"),
        "extended_rate": privacy["extended_rate"],
        "published": None,
        "incidence": result["incidence"],
        "seconds": result["seconds"],
        "outdated": runs.is_outdated(result),
        "parts": measured_apart(result["test"]),
    }
    row |= {part: result[part][key] for part in ("before", "validation", "test")}
    row["after_public"] = (result.get("after_public") or {}).get(key)
    return row | ({"test": None, "parts": None} if row["outdated"] else {})


def _proven_today(result: Mapping[str, Any]) -> float | None:
    """The epsilon of a trial; counted again where rounding did not count in it when it ran."""
    epsilon: float | None = result["epsilon"]
    parameters = result.get("certificate", {}).get("parameters", {})
    if result["config"]["privacy"]["method"] != FairSharesProfile.method or not parameters:
        return epsilon
    rates = {name: parameters[name] for name in _RATES}
    counted = FairSharesProfile(**rates).with_margin(parameters["rounding_margin"])
    privacy = result["config"]["privacy"]
    return proven_epsilon(counted, privacy["rounds"], privacy["delta"])


def _method(result: Mapping[str, Any]) -> str:
    """The method, with what it was trained on if that is not the text of the corpus."""
    name: str = result["config"]["privacy"]["method"]
    name += f"-{result['texts']}" if result.get("texts") else ""
    return name + (PUBLIC_FIRST if result.get("public") else "")


def _compared(rows: Sequence[Row], data: str) -> list[Row]:
    """The rows of a data set that are comparable: all entities, and no search for more signal."""
    return [
        row
        for row in rows
        if (row["data"], row["category"]) == (data, "all") and not is_search(row)
    ]


def _by_users(rows: Sequence[Row]) -> Iterator[Result]:
    """The ratio to user-level DP for each number of users of the same corpus."""
    for data in (*SMALLER[::-1], "blogs"):
        own = _compared(rows, data)
        for method in PROTECTS_BOTH:
            for target in _targets(own):
                ratio = _ratio(own, method, target)
                if ratio is not None:
                    users = SETTINGS[data].users
                    best = best_setting(own, method=method, target=target)
                    yield {
                        "users": users,
                        "method": method,
                        "target": target,
                        "ratio": ratio,
                        "epsilon": max(row["epsilon"] for row in best),
                    }


def _targets(rows: Sequence[Row]) -> list[float]:
    return [target for target in targets_of(rows) if target is not None]


def _ratio(rows: Sequence[Row], method: str, target: float) -> float | None:
    ours = mean_test(best_setting(rows, method=method, target=target))
    theirs = mean_test(best_setting(rows, method=user_level_like(method), target=target))
    return None if ours is None or theirs is None else ours / theirs


# --- for the results page ------------------------------------------------------------------------


def draw(result: Result, path: Path) -> None:
    from research.plots.utility import against_epsilon

    shown = [row for row in result["rows"] if not is_search(row)]
    against_epsilon({**result, "rows": shown}, path)


def table(result: Result) -> str:
    """All methods and their ratios, where the cost falls, users, categories, more signal."""
    rows = result["rows"]
    if not rows:
        return "*not run*"
    compared = [row for row in rows if not is_search(row)]
    sections = (
        _main_table(result),
        markdown.bullets(*_public_notes(result)),
        _users_table(result["by_users"]),
        parts.table({**result, "rows": compared}),
        _categories_table(result),
        _ranks_table(result),
        _search_table(result),
        markdown.bullets(*not_run_note(rows)),
    )
    return "\n\n".join(filter(None, sections))


def _main_table(result: Result) -> str:
    targets = _targets(result["rows"])
    header = (
        f"{MEASURE} on the test part",
        *(f"epsilon {target:g}" for target in targets),
        *(f"ratio to user-level DP at {target:g}" for target in targets),
        "without noise",
    )
    lines = []
    for data, title in result["panels"].items():
        own = _compared(result["rows"], data)
        for method, name in NAMES.items():
            if not any(row["method"] == method for row in own):
                continue
            at = [_cell(best_setting(own, method=method, target=target)) for target in targets]
            ratios = [_ratio(own, method, target) for target in targets]
            plain = _cell(best_setting(own, method=method, target=None))
            shown = ["-" if ratio is None else f"{ratio:.2f}" for ratio in ratios]
            lines.append([f"{title}, {name}", *at, *shown, plain])
    return markdown.table(header, lines)


def _public_notes(result: Result) -> Iterator[str]:
    """What public text does without any private text, of the validation part."""
    for data, title in result["panels"].items():
        own = [row for row in result["rows"] if row["data"] == data and row["after_public"]]
        if own:
            before = format_measure(mean(row["before"] for row in own), MEASURE)
            after = format_measure(mean(row["after_public"] for row in own), MEASURE)
            yield (
                f"{title}: the public text alone takes {MEASURE} on the validation part from "
                f"{before} to {after}."
            )


def _cell(rows: Sequence[Row]) -> str:
    """The measure, with the epsilon that is proven if that is more than was aimed at."""
    if not rows:
        return "-"
    return format_repeats(rows, MEASURE) + _more(epsilon_of(rows), rows[0]["target"])


def _more(proven: float, target: float | None) -> str:
    return f" (epsilon {epsilon_text(proven, 3)})" if target is not None and proven > target else ""


def _users_table(by_users: Sequence[Row]) -> str:
    if not by_users:
        return ""
    counts = sorted({one["users"] for one in by_users})
    known = {
        (one["method"], one["target"], one["users"]): f"{one['ratio']:.2f}"
        + _more(one["epsilon"], one["target"])
        for one in by_users
    }
    lines = []
    for method, target in dict.fromkeys(key[:2] for key in known):
        cells = (known.get((method, target, users), "-") for users in counts)
        lines.append([f"{NAMES[method].partition(':')[0]}, epsilon {target:g}", *cells])
    header = ("blogs, ratio to user-level DP", *(f"{users:,} users" for users in counts))
    return markdown.table(header, lines)


def _categories_table(result: Result) -> str:
    """One category protected, beside all of them."""
    header = ("fair shares, one category protected", "epsilon", MEASURE)
    lines = []
    for data, title in result["panels"].items():
        own = [row for row in result["rows"] if row["data"] == data]
        for category in sorted({row["category"] for row in own} - {"all"}):
            for target in _targets(own):
                best = best_setting(own, method="fair-shares", target=target, category=category)
                if best:
                    lines.append([f"{title}, {category}", f"{target:g}", _cell(best)])
    return markdown.table(header, lines) if lines else ""


def _ranks_table(result: Result) -> str:
    """Adapters of another rank beside the usual one, all else equal."""
    lines = []
    for own in group_by_setting(row for row in result["rows"] if row["rank"] != RANK):
        first = own[0]
        if first["data"] not in result["panels"] or is_search(first):
            continue
        whole = first["setting"].removesuffix(f"-rank-{first['rank']}")
        others = [row for row in result["rows"] if row["setting"] == whole]
        name = f"{result['panels'][first['data']]}, {NAMES[first['method']].partition(':')[0]}"
        rank = f"{first['target']:g}, rank {first['rank']}"
        lines.append([f"{name}, epsilon {rank}", _validated(own), _validated(others)])
    header = (f"{MEASURE} on the validation part", "this rank", f"rank {RANK}")
    return markdown.table(header, lines) if lines else ""


def _validated(rows: Sequence[Row]) -> str:
    return format_measure(mean(row["validation"] for row in rows), MEASURE) if rows else "-"


def _search_table(result: Result) -> str:
    """By validation, for each method, and what gains on two data sets at the same epsilon."""
    columns = {
        (data, method, target): f"{result['panels'][data]}, "
        f"{NAMES[method].partition(':')[0]}, {target:g}"
        for data, method, target in product(result["panels"], SEARCHED, EPSILONS)
    }
    variants = [name for name in VARIANTS if name != AS_IT_IS]
    table, better = search_table(
        MEASURE, columns, variants, lambda key, name: _searched(result["rows"], *key, name)
    )
    if not table:
        return ""
    kept = []
    for name, where in better.items():
        targets = [target for _, method, target in where if method == PROTECTS_BOTH[0]]
        if any(targets.count(target) > 1 for target in EPSILONS):
            kept.append(f"`{name.strip('-')}`")
    told = f"Better by {KEPT:.0%} on two data sets: {', '.join(kept) or 'none of them'}."
    return "\n\n".join([table, markdown.bullets(told)])


def _searched(
    rows: Sequence[Row], data: str, method: str, target: float, name: str
) -> float | None:
    setting = f"{data}-{SHORT[method]}-{target:g}-{SEARCH}{name}"
    own = [row["validation"] for row in rows if row["setting"] == setting and not row["outdated"]]
    return mean(own) if own else None
