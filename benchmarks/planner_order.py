"""The planner's order of settings against the order measured, over all trials at hand.

    python benchmarks/planner_order.py collect --datasets FOLDER [--trials FOLDER ...]
    python benchmarks/planner_order.py table
    python benchmarks/planner_order.py plot

`collect` reads the trials of `results/trials` and `results/utility` that have a target epsilon, and
the incidences of their data (`research/datasets.py`). It writes what a prediction needs to
`benchmarks/results/planner_order.json`: the settings, the validation measure, and how many
sentences users offer a round. It fits the two parameters of the figure to the trials, and again
without each data set in turn. `table` and `plot` read that file; tests predict from it anew.

Trials are compared where only what the planner chooses or is given differs: data, model, trained
weights and learning rate, with its decay, are the same in a group; blogs of more or fewer users are
one data set, and EDGAR with the entities of another detector, since all are evaluated on the same
texts. Repeats are averaged. Where another version linked entities otherwise, the sentences that
users offer are scaled to those that the trial used.
Trials on de-identified texts, after public text, and of the search for more signal are left out.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any
from unittest.mock import patch

import numpy as np

from research.select_results import REPEAT, is_search
from research.utility import RANK
from uedp.accounting import planning
from uedp.accounting.planning import RoughNoise, Supply, run_signal
from uedp.accounting.proven import FairSharesProfile
from uedp.mechanism.fair import Sharing, fair_supply

TRIALS = (Path("results/trials"), Path("results/utility"))
OUT = Path(__file__).with_name("results") / "planner_order.json"
FEWEST = 4  # settings in a group
ALIGNMENTS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6)
COVERAGES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0)
BEFORE = (0.4, 0.0)  # alignment and coverage before trials were fitted
WITHIN = 1.02  # of the best measured: the target for the planner's default
TITLES = {
    "conll": "CoNLL-2003",
    "ag": "AG",
    "ag-sentences": "AG, sentences",
    "edgar": "EDGAR",
    "blogs": "blogs",
}
Row = dict[str, Any]


# --- from trials ---------------------------------------------------------------------------------


def settings_of(results: Iterable[Mapping[str, Any]]) -> list[Row]:
    """One row for each setting with a target epsilon: its repeats are averaged."""
    settings: dict[str, list[Mapping[str, Any]]] = {}
    for result in results:
        setting = result["name"].partition(REPEAT)[0]
        other = result.get("texts") or result.get("public") or is_search({"setting": setting})
        if not other and result["config"]["privacy"].get("epsilon") is not None:
            settings.setdefault(setting, []).append(result)
    return [_row(name, runs) for name, runs in settings.items()]


def _row(name: str, runs: Sequence[Mapping[str, Any]]) -> Row:
    first = runs[0]
    config, measure = first["config"], first["measure"]
    privacy, optimiser = config["privacy"], config["optimiser"]
    return {
        "name": name,
        "data": _data_of(first),
        "category": first["category"],
        "group": [
            _corpus(first["data"]),
            first["model"],
            _trained(config["model"]),
            f"{'decaying' if optimiser['decay'] != 'none' else 'rate'} {optimiser['rate']:g}",
        ],
        "method": privacy["method"],
        "epsilon": privacy["epsilon"],
        "delta": privacy["delta"],
        "user_rate": privacy["user_rate"],
        "rounds": privacy["rounds"],
        "share": privacy["entity_share"],
        "extended_rate": privacy["extended_rate"],
        "cap": privacy["sentences_per_user"],
        "noise": first["noise"],
        "sentences": mean(run["sentences"] for run in runs) / privacy["rounds"],
        "measure": measure,
        "before": mean(run["before"][measure] for run in runs),
        "validation": mean(run["validation"][measure] for run in runs),
        "runs": len(runs),
    }


def _data_of(result: Mapping[str, Any]) -> str:
    """EDGAR's entities were those of a news detector when trials did not yet record them."""
    earlier = result["data"] == "edgar" and "incidence" not in result
    return "edgar-news" if earlier else str(result["data"])


def _trained(model: Mapping[str, Any]) -> str:
    """The trained weights, with the rank of adapters that do not have the usual one."""
    usual = model.get("rank", RANK) == RANK
    return str(model["train"] if usual else f"{model['train']} of rank {model['rank']}")


def _corpus(data: str) -> str:
    """The corpus that a data set is a part of, or has other entities of."""
    return next((name for name in ("blogs", "edgar") if data.startswith(name)), data)


def supply_key(row: Mapping[str, Any]) -> str:
    """The name of a setting's supply, which depends on share and cap for fair shares."""
    key = f"{row['data']} {row['category']}"
    if row["method"] != FairSharesProfile.method:
        return key
    return f"{key}, {row['method']} {row['share']:g}, at most {row['cap'] or 'all'}"


def collected_supply(row: Mapping[str, Any], incidence: Any) -> dict[str, Any]:
    """What a prediction for this setting needs to know of the incidence."""
    if row["method"] != FairSharesProfile.method:
        return supplies_of(incidence)
    supply = fair_supply(incidence, Sharing(row["share"], row["cap"]), row["extended_rate"])
    assert supply.weights is not None
    assert supply.squares is not None
    each = (supply.sentences_per_user, supply.weights, supply.squares)
    users = Counter(zip(*(np.round(one, 4).tolist() for one in each), strict=True))
    return {
        "users": incidence.users,
        "sentences": supply.sentences,
        "offered": [[*one, count] for one, count in sorted(users.items())],
    }


def supplies_of(incidence: Any) -> dict[str, Any]:
    """What users offer a round: usable sentences, those among them without an entity, and all."""
    from uedp.mechanism.sampling import supply_of

    supply = supply_of(incidence)
    own = np.bincount(incidence.sentence_user, minlength=incidence.users)
    assert supply.extended_per_user is not None
    users = Counter(
        zip(
            supply.sentences_per_user.tolist(),
            supply.extended_per_user.astype(int).tolist(),
            own.tolist(),
            strict=True,
        )
    )
    return {
        "users": incidence.users,
        "sentences": incidence.sentences,
        "offered": [[*one, count] for one, count in sorted(users.items())],
    }


# --- predicting ----------------------------------------------------------------------------------

_rough_noise = lru_cache(None)(RoughNoise)


def supply_for(row: Mapping[str, Any], stored: Mapping[str, Any]) -> Supply:
    """The supply of a trial, scaled to the sentences that it used; not scaled for fair shares."""
    usable, extended, own, counts = np.array(stored["offered"], dtype=float).T
    if row["method"] == FairSharesProfile.method:
        offered = [np.repeat(one, counts.astype(int)) for one in (usable, extended, own)]
        return Supply(stored["users"], offered[0], None, stored["sentences"], *offered[1:])
    if row["method"] == "user-level":
        return Supply(stored["users"], np.repeat(own, counts.astype(int)))
    offered = np.repeat(usable, counts.astype(int)), np.repeat(extended, counts.astype(int))
    expected = offered[0] - (1 - row["extended_rate"]) * offered[1]
    if row["cap"] is not None:
        expected = np.minimum(expected, row["cap"])
    scale = row["sentences"] / (row["user_rate"] * expected.sum())
    return Supply(stored["users"], offered[0] * scale, offered[1] * scale, stored["sentences"])


def figure_of(row: Mapping[str, Any], supplies: Mapping[str, Any]) -> float:
    """The planner's figure for a setting: as `training/choose.py` computes it."""
    supply = supply_for(row, supplies[supply_key(row)])
    alone = row["method"] == "user-level"
    share = 1.0 if alone else row["share"]
    shared = row["method"] == FairSharesProfile.method  # its weights know the rate and the cap
    extended = 1.0 if alone or shared else row["extended_rate"]
    signal = supply.signal(share, extended, row["cap"])
    rough = _rough_noise(row["epsilon"], row["delta"])
    noise = rough(row["rounds"], row["user_rate"], 0.0 if alone else share, shared)
    return run_signal(row["rounds"], row["user_rate"], signal, noise)


def groups_of(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Settings that can be compared; without groups of few, or where nothing was learned."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(", ".join(row["group"]), []).append(row)
    return {
        name: own
        for name, own in groups.items()
        if len(own) >= FEWEST and len({row["validation"] for row in own}) > 1
    }


def order(rows: Sequence[Row], supplies: Mapping[str, Any]) -> dict[str, Any]:
    """Rank correlations of figure and measure, and the fit of a power law between them."""
    from scipy import stats

    figures = [figure_of(row, supplies) for row in rows]
    losses = [-row["validation"] for row in rows]
    x, y = np.log(figures), np.log([row["validation"] for row in rows])
    slope, offset = np.polyfit(x, y, 1)
    return {
        "settings": len(rows),
        "spearman": float(stats.spearmanr(figures, losses).statistic),
        "kendall": float(stats.kendalltau(figures, losses).statistic),
        "slope": float(slope),
        "off_by": float(np.sqrt(np.mean((slope * x + offset - y) ** 2))),
        "unexplained": float(np.mean((slope * x + offset - y) ** 2) / np.var(y)),
        "figures": figures,
    }


def orders(groups: Mapping[str, Sequence[Row]], supplies: Mapping[str, Any]) -> dict[str, Any]:
    """The order in each group, and over all pairs of settings that share a group."""
    each = {name: order(rows, supplies) for name, rows in groups.items()}
    pairs = right = 0
    for name, rows in groups.items():
        losses, figures = [row["validation"] for row in rows], each[name]["figures"]
        for i, j in product(range(len(rows)), repeat=2):
            if i < j and losses[i] != losses[j]:
                pairs += 1
                right += (losses[i] < losses[j]) == (figures[i] > figures[j])
    weights = [one["settings"] for one in each.values()]
    return {
        "groups": each,
        "pairs": pairs,
        "pairs_right": right,
        "kendall": 2 * right / pairs - 1,
        "spearman": float(np.average([one["spearman"] for one in each.values()], weights=weights)),
        "off_by": float(np.average([one["off_by"] for one in each.values()], weights=weights)),
    }


def wrong_pairs(
    groups: Mapping[str, Sequence[Row]], found: Mapping[str, Any], least: float = 0.02
) -> Iterator[tuple[str, str, float, float]]:
    """Pairs in the wrong order whose measures differ by more than `least`: better, worse, ratios.

    The ratio of measures, then that of figures.
    """
    for name, rows in groups.items():
        figures = found["groups"][name]["figures"]
        for (a, one), (b, other) in product(zip(figures, rows, strict=True), repeat=2):
            apart = other["validation"] / one["validation"]
            if apart > 1 + least and a < b:
                yield one["name"], other["name"], apart, b / a


def with_parameters(alignment: float, coverage: float) -> Any:
    return patch.multiple(planning, ALIGNMENT=alignment, COVERAGE=coverage)


def fit(groups: Mapping[str, Sequence[Row]], supplies: Mapping[str, Any]) -> tuple[float, float]:
    """The alignment and coverage whose figure is closest to a power law of the measure.

    By the part of the variance that the law leaves unexplained, on a log scale; data sets count the
    same. A law tells parameters apart that give the same order.
    """

    def off_by(parameters: tuple[float, float]) -> float:
        with with_parameters(*parameters):
            each = orders(groups, supplies)["groups"]
        data: dict[str, list[float]] = {}
        for name, own in each.items():
            data.setdefault(name.partition(",")[0], []).append(own["unexplained"])
        return mean(mean(own) for own in data.values())

    return min(product(ALIGNMENTS, COVERAGES), key=off_by)


def left_out(groups: Mapping[str, Sequence[Row]], supplies: Mapping[str, Any]) -> list[Row]:
    """For each data set: parameters fitted without it, and the order they give on it."""
    rows = []
    for data in dict.fromkeys(name.partition(",")[0] for name in groups):
        own = {name: g for name, g in groups.items() if name.partition(",")[0] == data}
        others = {name: g for name, g in groups.items() if name not in own}
        if not others:
            continue
        alignment, coverage = fit(others, supplies)
        found: Row = {"data": data, "alignment": alignment, "coverage": coverage}
        for name, parameters in (
            ("before", BEFORE),
            ("fitted on others", (alignment, coverage)),
            ("chosen", (planning.ALIGNMENT, planning.COVERAGE)),
        ):
            with with_parameters(*parameters):
                result = orders(own, supplies)
            found[name] = {key: result[key] for key in ("spearman", "kendall", "off_by")}
        rows.append(found)
    return rows


# --- the planner's defaults ----------------------------------------------------------------------

_FIELDS = ("user_rate", "rounds", "share")


def defaults(rows: Sequence[Row], supplies: Mapping[str, Any], incidences: Any) -> list[Row]:
    """What the planner chooses without a time limit, beside the nearest and the best measured."""
    tables = []
    for data, method, epsilon in dict.fromkeys(
        (row["data"], row["method"], row["epsilon"]) for row in rows
    ):
        measured = [
            row
            for row in rows
            if (row["data"], row["method"], row["epsilon"]) == (data, method, epsilon)
            and (row["category"], row["extended_rate"]) == ("all", 1.0)
            and row["group"][1:3] == ["gpt", "lora"]
        ]
        if measured:
            tables.append(_default(measured, supplies, incidences(data)))
    return tables


def _default(measured: Sequence[Row], supplies: Mapping[str, Any], incidence: Any) -> Row:
    from uedp.training.choose import choose
    from uedp.training.config import parse_config

    first = measured[0]
    config = parse_config(
        {
            "privacy": {"method": first["method"], "epsilon": first["epsilon"]},
            "data": {"train": "."},
            "model": {"name": "gpt"},
        }
    )
    privacy = choose(config, incidence).config.privacy
    chosen = {
        "user_rate": privacy.user_rate,
        "rounds": privacy.rounds,
        "share": privacy.entity_share,
        "cap": privacy.sentences_per_user,
    }
    own = _FIELDS if first["method"] != "user-level" else _FIELDS[:2]

    def distance(row: Row) -> tuple[float, float]:
        apart = sum(abs(float(np.log(row[f] / chosen[f]))) for f in own)
        return round(apart, 6), row["validation"]

    nearest, best = min(measured, key=distance), min(measured, key=lambda row: row["validation"])
    return {
        **{key: first[key] for key in ("data", "method", "epsilon")},
        "chosen": chosen,
        "measured": len(measured),
        "nearest": {key: nearest[key] for key in ("name", *_FIELDS, "validation")},
        "distance": distance(nearest)[0],
        "best": {key: best[key] for key in ("name", *_FIELDS, "validation")},
        "ratio": nearest["validation"] / best["validation"],
    }


# --- commands ------------------------------------------------------------------------------------


def collect(datasets: Path, folders: Iterable[Path], out: Path) -> None:
    from research.datasets import load_incidence

    rows: list[Row] = []
    for folder in folders:
        results = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
        rows += settings_of(results)
    missing = {row["data"] for row in rows if not (datasets / row["data"] / "about.json").is_file()}
    if missing:
        print(f"left out, not in {datasets}: {', '.join(sorted(missing))}")
    rows = [row for row in rows if row["data"] not in missing]
    supplies = {
        key: collected_supply(row, load_incidence(datasets / row["data"], row["category"]))
        for key, row in {supply_key(row): row for row in rows}.items()
    }
    groups = groups_of(rows)
    with with_parameters(*BEFORE):
        before = orders(groups, supplies)
    incidences = lru_cache(None)(lambda data: load_incidence(datasets / data))
    fitted = fit(groups, supplies)
    result = {
        "parameters": {"alignment": planning.ALIGNMENT, "coverage": planning.COVERAGE},
        "fitted": {"alignment": fitted[0], "coverage": fitted[1]},
        "before": before,
        "now": orders(groups, supplies),
        "left_out": left_out(groups, supplies),
        "defaults": defaults(rows, supplies, incidences),
        "rows": rows,
        "supplies": supplies,
    }
    out.write_text(_text(result))


def _text(result: Mapping[str, Any]) -> str:
    """JSON with the numbers of a list, and of users, on one line."""
    import re

    text = json.dumps(result, indent=1)
    text = re.sub(r'\[\n[^][{}"]*\]', lambda match: " ".join(match[0].split()), text)
    return re.sub(r'"offered": \[[^a-z]*\]', lambda m: " ".join(m[0].split()), text) + "\n"


def lines(result: Mapping[str, Any]) -> Iterator[str]:
    yield "rank correlation of the planner's figure with what was measured"
    yield f"{'group':34} {'settings':>8} {'Spearman':>15} {'Kendall':>15} {'off by':>13}"
    before, now = result["before"], result["now"]
    everything = [*((name, *_pair(before, now, name)) for name in now["groups"])]
    for name, old, new in [*everything, ("all", before, now)]:
        count = new.get("settings", sum(g["settings"] for g in now["groups"].values()))
        yield (
            f"{name:34} {count:>8} {old['spearman']:>6.2f} -> {new['spearman']:>5.2f} "
            f"{old['kendall']:>6.2f} -> {new['kendall']:>5.2f} "
            f"{old['off_by']:>5.1%} -> {new['off_by']:>4.1%}"
        )
    yield f"{now['pairs_right']} of {now['pairs']} pairs in order; {before['pairs_right']} before"
    yield "in the wrong order and more than 2% apart: better, worse, ratio of measures, of figures"
    for one, other, measures, figures in wrong_pairs(groups_of(result["rows"]), now):
        yield f"  {one:40} {other:40} {measures:.3f} {figures:.2f}"
    yield ""
    yield "parameters fitted without a data set, and the order they give on it"
    for row in result["left_out"]:
        orders_ = ", ".join(
            f"{name} {row[name]['kendall']:.2f} ({row[name]['off_by']:.1%})"
            for name in ("before", "fitted on others", "chosen")
        )
        yield f"{row['data']:8} {row['alignment']:.2f} {row['coverage']:.3f}  Kendall: {orders_}"
    fitted = result["fitted"]
    yield f"all      {fitted['alignment']:.2f} {fitted['coverage']:.3f}"
    yield ""
    yield (
        f"{'default for':22} {'rate, rounds, share, cap':26} {'nearest measured':34} {'best':>7} "
        f"{'ratio':>6}"
    )
    for row in result["defaults"]:
        chosen, nearest = row["chosen"], row["nearest"]
        what = f"{row['data']} {row['method']} {row['epsilon']:g}"
        chose = f"{chosen['user_rate']:g}, {chosen['rounds']}, {chosen['share']:g}, {chosen['cap']}"
        near = f"{nearest['user_rate']:g}, {nearest['rounds']}, {nearest['share']:g}"
        yield (
            f"{what:22} {chose:26} {near:14} {nearest['validation']:>7.2f}, one of "
            f"{row['measured']:<2} {row['best']['validation']:>7.2f} {row['ratio']:>6.3f}"
        )


def _pair(before: Mapping[str, Any], now: Mapping[str, Any], name: str) -> tuple[Any, Any]:
    return before["groups"][name], now["groups"][name]


def plot(result: Mapping[str, Any], path: Path) -> None:
    """Predicted against measured, one panel for each group."""
    from research.plots import style
    from research.plots.style import BLUE, GREEN, ORANGE, RED

    colours = {"rotation": BLUE, "user-level": RED, "fair-shares": GREEN}
    groups = groups_of(result["rows"])
    figure, panels = style.stacked_panels(path, [3.6] * len(groups))
    for axes, (name, rows) in zip(panels, groups.items(), strict=True):
        found = result["now"]["groups"][name]
        for row, value in zip(rows, found["figures"], strict=True):
            axes.plot(
                value,
                row["validation"],
                "o" if row["epsilon"] >= 8 else "s",
                color=colours.get(row["method"], ORANGE),
                fillstyle="full" if row["category"] == "all" else "none",
            )
        line = np.array([min(found["figures"]), max(found["figures"])])
        middle = np.exp(np.mean(np.log([row["validation"] for row in rows])))
        anchor = np.exp(np.mean(np.log(found["figures"])))
        axes.plot(line, middle * (line / anchor) ** found["slope"], color="0.7", zorder=0)
        axes.set(xscale="log", yscale="log")
        style.plain_numbers(axes.xaxis)
        style.plain_numbers(axes.yaxis, range(1, 10))
        style.label_axes(axes, "the planner's figure", f"{rows[0]['measure']}, validation")
        order_ = f"Spearman {found['spearman']:.2f}, Kendall {found['kendall']:.2f}"
        axes.set_title(
            f"{TITLES.get(rows[0]['group'][0], name)}: {name}. {order_}", loc="left", size=10
        )
    first = panels[0]
    for name, colour in colours.items():
        if any(row["method"] == name for row in result["rows"]):
            first.plot([], [], "o", color=colour, label=name)
    first.plot([], [], "ks", label="epsilon below 8")
    first.plot([], [], "ko", fillstyle="none", label="one category protected")
    style.legend_above(figure, panels, columns=5)
    style.save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    collecting = commands.add_parser("collect")
    collecting.add_argument("--datasets", type=Path, required=True)
    collecting.add_argument("--trials", type=Path, nargs="+", default=TRIALS)
    commands.add_parser("table")
    commands.add_parser("plot")
    given = parser.parse_args()
    if given.command == "collect":
        collect(given.datasets, given.trials, OUT)
    result = json.loads(OUT.read_text())
    if given.command == "plot":
        plot(result, OUT.with_suffix(".png"))
    else:
        print("\n".join(lines(result)))


if __name__ == "__main__":
    main()
