"""Renders an experiment that trains: a table (paper, as published, proven), then the claims."""

from collections.abc import Iterator, Mapping, Sequence

from research import markdown, parts
from research.base import Result
from research.markdown import format_measure
from research.select_results import (
    Row,
    best_setting,
    epsilon_of,
    mean_test,
    names_not_run,
    targets_of,
)
from uedp.accounting.statement import epsilon_text

NOT_RUN = "not run"
_MOST_NAMES = 12
_NO_CHANGE = 0.05  # a relative change of the measure that counts as none
_WITHIN = 1.1  # of user-level DP: the target for rotation at equal epsilon
_ORDER = ("all", "person", "org", "loc", "misc", "gpe", "pii")
_BOTH = {"rotation": "rotation", "fair-shares": "fair shares"}  # protect users and entities
_PROVEN = ("fair-shares", "user-level")
_OTHERS = {
    "fair-shares": "UeDP by fair shares: all entities",
    "user-level": "user-level DP",
    "deidentified": "de-identified",
    "noiseless": "noiseless",
}


def page(result: Result) -> str:
    """The table, where the cost falls, and the conclusions."""
    return "\n\n".join(filter(None, (main_table(result), parts.table(result), conclusions(result))))


def conclusions(result: Result) -> str:
    """What the rows imply for the paper's claims, and the trials that were not run."""
    return markdown.bullets(*_claims(result), *not_run_note(result["rows"]))


def main_table(result: Result) -> str:
    header = (
        f"{result['measure']} on the test part",
        "paper (published epsilon)",
        "as published, with the stated noise",
        "proven",
    )
    rows = [line for panel in result["panels"] for line in _panel(result, panel)]
    return markdown.table(header, rows)


def _panel(result: Result, panel: str) -> Iterator[list[str]]:
    title, paper = result["panels"][panel], result["paper"].get(panel, {})
    own = [row for row in result["rows"] if row["panel"] == panel]
    here = {row["category"] for row in own}
    for category in _ORDER:
        if category in here or category in paper:
            name = "all entities" if category == "all" else category
            by = ("rotation",) if category == "all" else tuple(_BOTH)
            yield [
                f"{title}, UeDP: {name}",
                format_printed(paper.get(category), result["measure"]),
                _alg(own, category, result["measure"]),
                _at_each(own, by, category, result["measure"]),
            ]
    for method, name in _OTHERS.items():
        rows = [row for row in own if row["method"] == method]
        if not rows and method not in paper:
            continue
        ours = _at_each(own, (method,), "all", result["measure"])
        yield [
            f"{title}, {name}",
            format_printed(paper.get(method), result["measure"]),
            "-",
            ours if method in _PROVEN or ours in (NOT_RUN, "-") else f"{ours} (no guarantee)",
        ]


def format_printed(values: Mapping[str, float] | None, measure: str) -> str:
    if not values:
        return "-"
    return "; ".join(
        f"{format_measure(v, measure)}{f' ({at})' if at else ''}" for at, v in values.items()
    )


def format_repeats(rows: Sequence[Row], measure: str) -> str:
    """The mean of repeats, and their range."""
    tests = [row["test"] for row in rows]
    average, low, high = (
        format_measure(value, measure)
        for value in (sum(tests) / len(tests), min(tests), max(tests))
    )
    return average if len(tests) == 1 else f"{average} ({low} to {high})"


def _alg(rows: Sequence[Row], category: str, measure: str) -> str:
    wanted = {"method": "uedp-alg", "category": category}
    planned = [row for row in rows if all(row[k] == v for k, v in wanted.items())]
    planned = [row for row in planned if row["extended_rate"]]
    if not planned:
        return "-"
    if not (best := best_setting(planned)):
        return NOT_RUN
    one = best[0]
    published = "" if one["published"] is None else f"published {one['published']:.2f}, "
    return f"{format_repeats(best, measure)} ({published}proven {markdown.epsilon(one['epsilon'])})"


def _at_each(rows: Sequence[Row], methods: tuple[str, ...], category: str, measure: str) -> str:
    """The best setting of some methods at each target epsilon, the largest first."""
    planned = [row for row in rows if row["method"] in methods and row["category"] == category]
    planned = [row for row in planned if row["extended_rate"] == 1.0]
    if planned and not best_setting(planned):
        return NOT_RUN
    parts = []
    for target in targets_of(planned):
        best = best_setting(planned, target=target)
        value = format_repeats(best, measure) if best else NOT_RUN
        if target is not None:
            value += f" at {_proven_at(best) if best else f'{target:g}'}"
        parts.append(value)
    return "; ".join(parts) or "-"


def _proven_at(rows: Sequence[Row]) -> str:
    return epsilon_text(epsilon_of(rows), 3)


def not_run_note(rows: Sequence[Row]) -> Iterator[str]:
    if outdated := [row["name"] for row in rows if row.get("outdated")]:
        named = ", ".join(f"`{name}`" for name in outdated[:_MOST_NAMES])
        more = f" and {len(outdated) - _MOST_NAMES} more" if len(outdated) > _MOST_NAMES else ""
        yield f"Left out, of a mechanism that is no longer in the code: {named}{more}."
    rows = [row for row in rows if not row.get("outdated")]
    if not_run := names_not_run(rows):
        run_once = {row["setting"] for row in rows if row["test"] is not None}
        open_settings = dict.fromkeys(row["setting"] for row in rows if row["test"] is None)
        names = [name for name in open_settings if name not in run_once]
        named = ", ".join(f"`{name}`" for name in names[:_MOST_NAMES])
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        settings = f"; settings without any run: {named}{more}" if names else ""
        yield f"Not run: {len(not_run)} of {len(rows)} trials{settings}."


# --- the claims ----------------------------------------------------------------------------------


def _claims(result: Result) -> Iterator[str]:
    for panel, title in result["panels"].items():
        own = [row for row in result["rows"] if row["panel"] == panel]
        yield from _against_user_level(own, title, result["measure"])
        yield from _against_deidentified(own, title, result["measure"])
        yield from _as_published(own, title, result["measure"])


def _protecting_both(rows: Sequence[Row]) -> Iterator[tuple[str, float | None, list[Row]]]:
    """The best settings of methods that protect users and entities, at each epsilon."""
    for method in _BOTH:
        own = [row for row in rows if row["method"] == method and row["extended_rate"] == 1.0]
        for target in targets_of(own):
            if best := best_setting(own, target=target, category="all"):
                yield method, target, best


def _against_user_level(rows: Sequence[Row], title: str, measure: str) -> Iterator[str]:
    for method, target, both in _protecting_both(rows):
        user = best_setting(rows, method="user-level", target=target)
        ours, theirs = mean_test(both), mean_test(user)
        if ours is None or theirs is None:
            continue
        verdict = "within" if ours <= _WITHIN * theirs else "not within"
        compared = ((_BOTH[method], both), ("user-level DP", user))
        unchanged = [name for name, own in compared if _unchanged(own)]
        nothing = f" But {' and '.join(unchanged)} learned almost nothing." if unchanged else ""
        open_ = names_not_run(
            row
            for row in rows
            if row["method"] in (method, "user-level")
            and (row["target"], row["category"], row["extended_rate"]) == (target, "all", 1.0)
            and row["name"] == row["setting"]
        )
        so_far = f" Preliminary: {', '.join(f'`{n}`' for n in open_)} not run." if open_ else ""
        proven, of_user = _proven_at(both), _proven_at(user)
        user_level = format_measure(theirs, measure)
        user_level += "" if of_user == proven else f" at {of_user}"
        yield (
            f"{title}, proven epsilon {proven}: {_BOTH[method]} (users and entities) "
            f"{format_measure(ours, measure)}, user-level DP {user_level}: "
            f"a factor of {ours / theirs:.2f}, {verdict} 10%."
            f"{nothing}{so_far}"
        )


def _unchanged(rows: Sequence[Row]) -> bool:
    """Whether the measure is about the same as before training."""
    return all(abs(row["validation"] / row["before"] - 1) <= _NO_CHANGE for row in rows)


def _against_deidentified(rows: Sequence[Row], title: str, measure: str) -> Iterator[str]:
    plain = mean_test(best_setting(rows, method="deidentified"))
    if plain is None:
        return
    for method, _, both in _protecting_both(rows):
        ours = mean_test(both)
        assert ours is not None
        side = "below" if ours < plain else "not below"
        yield (
            f"{title}, {_BOTH[method]}, proven epsilon {_proven_at(both)}: "
            f"{format_measure(ours, measure)} is {side} "
            f"de-identification ({format_measure(plain, measure)}), which has no guarantee."
        )


def _as_published(rows: Sequence[Row], title: str, measure: str) -> Iterator[str]:
    used = [row for row in rows if row["extended_rate"]]
    best = best_setting(used, method="uedp-alg", category="all")
    if not best:
        return
    one, test = best[0], mean_test(best)
    assert test is not None
    before = one["before"]
    better = "improves on" if one["validation"] < before else "is worse than"
    verb = "stays near" if _unchanged(best) else better
    published = "" if one["published"] is None else f"{one['published']:.2f} published, "
    yield (
        f"{title}: UeDP-Alg with the noise its text describes ({one['rounds']} rounds; {published}"
        f"{markdown.epsilon(one['epsilon'])} proven for the most common entity) {verb} the initial "
        f"model: {format_measure(one['validation'], measure)} on the validation part, from "
        f"{format_measure(before, measure)} before training; test {format_measure(test, measure)}."
    )
