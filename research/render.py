"""How an experiment that trains is told: paper, as published, proven; then the claims."""

from collections.abc import Iterator, Mapping, Sequence

from research import markdown
from research.base import Result
from research.select_results import Row, chosen, not_run, score

NOT_RUN = "not run"
MOST_NAMED = 12
NEAR = 0.05  # a change of the measure that is told as none
WITHIN = 1.1  # of user-level DP, which the project asks of rotation at equal epsilon
_ORDER = ("all", "person", "org", "loc", "misc", "gpe", "pii")
_OTHERS = {
    "user-level": "user-level DP",
    "deidentified": "de-identified",
    "noiseless": "noiseless",
}


def page(result: Result) -> str:
    """A table, and what it says."""
    return "\n\n".join([main_table(result), claims(result)])


def claims(result: Result) -> str:
    """What the rows say of the paper's claims, and which were not run."""
    return markdown.bullets(*account(result), *missing(result["rows"]))


def main_table(result: Result) -> str:
    header = (
        f"{result['measure']} on the test part",
        "paper (published epsilon)",
        "as published, honestly noised",
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
            yield [
                f"{title}, UeDP: {name}",
                printed(paper.get(category), result["measure"]),
                _alg(own, category, result["measure"]),
                _at_each(own, "rotation", category, result["measure"]),
            ]
    for method, name in _OTHERS.items():
        rows = [row for row in own if row["method"] == method]
        if not rows and method not in paper:
            continue
        ours = _at_each(own, method, "all", result["measure"])
        yield [
            f"{title}, {name}",
            printed(paper.get(method), result["measure"]),
            "-",
            ours if method == "user-level" or ours in (NOT_RUN, "-") else f"{ours} (no guarantee)",
        ]


def printed(values: Mapping[str, float] | None, measure: str) -> str:
    if not values:
        return "-"
    return "; ".join(f"{shown(v, measure)}{f' ({at})' if at else ''}" for at, v in values.items())


def shown(value: float, measure: str) -> str:
    if measure == "error rate":
        return f"{value:.1%}"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def spread(rows: Sequence[Row], measure: str) -> str:
    """The mean of repeats, and how far they lie apart."""
    tests = [row["test"] for row in rows]
    told = shown(sum(tests) / len(tests), measure)
    if len(tests) == 1:
        return told
    return f"{told} ({shown(min(tests), measure)} to {shown(max(tests), measure)})"


def _alg(rows: Sequence[Row], category: str, measure: str) -> str:
    wanted = {"method": "uedp-alg", "category": category}
    planned = [row for row in rows if all(row[k] == v for k, v in wanted.items())]
    planned = [row for row in planned if row["extended_rate"]]
    if not planned:
        return "-"
    if not (found := chosen(planned)):
        return NOT_RUN
    one = found[0]
    published = "" if one["published"] is None else f"published {one['published']:.2f}, "
    return f"{spread(found, measure)} ({published}proven {markdown.epsilon(one['epsilon'])})"


def _at_each(rows: Sequence[Row], method: str, category: str, measure: str) -> str:
    """At each epsilon that was asked for, the largest first."""
    planned = [row for row in rows if (row["method"], row["category"]) == (method, category)]
    planned = [row for row in planned if row["extended_rate"] == 1.0]
    if planned and not chosen(planned):
        return NOT_RUN
    parts = []
    for target in dict.fromkeys(row["target"] for row in planned):
        found = chosen(planned, target=target)
        told = spread(found, measure) if found else NOT_RUN
        parts.append(told if target is None else f"{told} at {target:g}")
    return "; ".join(parts) or "-"


def missing(rows: Sequence[Row]) -> Iterator[str]:
    if left := not_run(rows):
        begun = {row["setting"] for row in rows if row["test"] is not None}
        never = [row["setting"] for row in rows if row["test"] is None]
        names = [name for name in dict.fromkeys(never) if name not in begun]
        named = ", ".join(f"`{name}`" for name in names[:MOST_NAMED])
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        told = f"; never: {named}{more}" if names else ""
        yield f"Not run: {len(left)} of {len(rows)} trials{told}."


# --- what it says of the claims ------------------------------------------------------------------


def account(result: Result) -> Iterator[str]:
    for panel, title in result["panels"].items():
        own = [row for row in result["rows"] if row["panel"] == panel]
        yield from _against_user_level(own, title, result["measure"])
        yield from _against_deidentified(own, title, result["measure"])
        yield from _honestly_noised(own, title, result["measure"])


def _rotations(rows: Sequence[Row]) -> Iterator[tuple[float, list[Row]]]:
    own = [row for row in rows if row["method"] == "rotation" and row["extended_rate"] == 1.0]
    for target in dict.fromkeys(row["target"] for row in own):
        if found := chosen(own, target=target, category="all"):
            yield target, found


def _against_user_level(rows: Sequence[Row], title: str, measure: str) -> Iterator[str]:
    for target, found in _rotations(rows):
        user = chosen(rows, method="user-level", target=target)
        ours, theirs = score(found), score(user)
        if ours is None or theirs is None:
            continue
        verdict = "within" if ours <= WITHIN * theirs else "not within"
        idle = [name for name, own in (("the first", found), ("the second", user)) if _idle(own)]
        nothing = f" But {' and '.join(idle)} learned next to nothing." if idle else ""
        open_ = not_run(
            row
            for row in rows
            if row["method"] in ("rotation", "user-level")
            and (row["target"], row["category"], row["extended_rate"]) == (target, "all", 1.0)
            and row["name"] == row["setting"]
        )
        so_far = f" So far: {', '.join(f'`{n}`' for n in open_)} not run." if open_ else ""
        yield (
            f"{title}, proven epsilon {target:g}: users with entities {shown(ours, measure)}, "
            f"users alone {shown(theirs, measure)}: {ours / theirs:.2f} times, {verdict} 10%."
            f"{nothing}{so_far}"
        )


def _idle(rows: Sequence[Row]) -> bool:
    """Whether the measure is about what it was before training."""
    return all(abs(row["validation"] / row["before"] - 1) <= NEAR for row in rows)


def _against_deidentified(rows: Sequence[Row], title: str, measure: str) -> Iterator[str]:
    plain = score(chosen(rows, method="deidentified"))
    if plain is None:
        return
    for target, found in _rotations(rows):
        ours = score(found)
        assert ours is not None
        side = "below" if ours < plain else "not below"
        yield (
            f"{title}, proven epsilon {target:g}: {shown(ours, measure)} is {side} "
            f"de-identification ({shown(plain, measure)}), which has no guarantee."
        )


def _honestly_noised(rows: Sequence[Row], title: str, measure: str) -> Iterator[str]:
    used = [row for row in rows if row["extended_rate"]]
    found = chosen(used, method="uedp-alg", category="all")
    if not found:
        return
    one, test = found[0], score(found)
    assert test is not None
    before = one["before"]
    better = "improves on" if one["validation"] < before else "is worse than"
    verb = "stays near" if _idle(found) else better
    published = "" if one["published"] is None else f"{one['published']:.2f} published, "
    yield (
        f"{title}: UeDP-Alg with the noise its text describes ({one['rounds']} rounds; {published}"
        f"{markdown.epsilon(one['epsilon'])} proven for the most common entity) {verb} the model "
        f"it began with: {shown(one['validation'], measure)} on the validation part after "
        f"{shown(before, measure)}; test {shown(test, measure)}."
    )
