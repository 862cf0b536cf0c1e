"""The pictures of docs/budget.md, from the accountant that every run uses.

python benchmarks/budget_pictures.py            # compute, write the JSON, draw
python benchmarks/budget_pictures.py --draw     # draw the JSON again
"""

import argparse
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from uedp.accounting.calibrate import noise_for
from uedp.accounting.missed import missed_epsilon
from uedp.accounting.profile import Profile
from uedp.accounting.proven import (
    Guarantee,
    RotationProfile,
    UserLevelProfile,
    epsilon,
    guarantee,
)
from uedp.report.charts import ChartMark, Line, line_chart

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "benchmarks" / "results" / "budget_pictures.json"
IMAGES = ROOT / "docs" / "images"
RATE, ROUNDS, DELTA, SHARE = 0.05, 200, 1e-5, 0.3
SHARES = (0.1, 0.3, 0.5, 1.0)
EPSILONS = (0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 5.6, 8.0, 10.0)
DENSE = tuple(round(0.25 * n, 2) for n in range(2, 41))  # where no noise is calibrated
FALSE_ALARMS = 0.01
_STYLE = """<style>
svg{background:#fff;--ink:#1d2433;--muted:#57607a;--grid:#d9dde7;--series-1:#2f4fb5;
--series-2:#b3450b;--series-3:#1b7a4b;--series-4:#8a3a8f;--series-5:#555;font-family:sans-serif}
@media (prefers-color-scheme:dark){svg{background:#1e2129;--ink:#e8eaf0;--muted:#aab1c2;
--grid:#3b4150;--series-1:#8fa8ff;--series-2:#ffab73;--series-3:#6fd3a0;--series-4:#e09be6;
--series-5:#bbb}}
</style>"""


@dataclass(frozen=True)
class Picture:
    """A chart as data: what is committed, and what is drawn from it."""

    title: str
    x_label: str
    y_label: str
    lines: dict[str, tuple[Sequence[float], Sequence[float]]]
    log_x: bool = False
    log_y: bool = False


def rotation(share: float, rate: float = RATE) -> Callable[[float], Profile]:
    if share == 0:
        return lambda noise: UserLevelProfile(noise, rate)
    return lambda noise: RotationProfile(noise, rate, share)


@cache
def calibrated(
    target: float, share: float, rate: float = RATE, rounds: int = ROUNDS, delta: float = DELTA
) -> float:
    """The noise multiplier that meets a target epsilon."""
    return noise_for(target, delta, rounds, rotation(share, rate))


@cache
def whole_run(target: float) -> Guarantee:
    return guarantee([(rotation(SHARE)(calibrated(target, SHARE)), ROUNDS)])


def right_guesses(target: float) -> float:
    """The most an attacker can guess right, between two equally likely corpora."""
    return (1 + whole_run(target).delta(0.0)) / 2


def caught(target: float) -> float:
    """The most an attacker can catch, accusing wrongly in `FALSE_ALARMS` of the cases."""
    run = whole_run(target)
    return min(_bound(float(loss), run.delta(float(loss))) for loss in np.linspace(0, 12, 241))


def _bound(loss: float, delta: float) -> float:
    """The largest rate of right accusations that an epsilon and a delta leave."""
    return min(
        math.exp(loss) * FALSE_ALARMS + delta, 1 - math.exp(-loss) * (1 - delta - FALSE_ALARMS)
    )


def any_guesses(target: float) -> float:
    """The same of any mechanism with this epsilon and delta."""
    return (math.exp(target) + DELTA) / (1 + math.exp(target))


def any_caught(target: float) -> float:
    return _bound(target, DELTA)


def pictures() -> dict[str, Picture]:
    """All pictures, computed; takes a minute or two."""
    percent = lambda values: [100 * value for value in values]  # noqa: E731
    deltas = tuple(10.0**-n for n in range(4, 11))
    rates = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64)
    rounds = (1, 2, 5, 10, 20, 40, 60, 80, 100, 120, 140, 160, 180, 200)
    users = tuple(range(1, 7))
    at_8 = calibrated(8.0, SHARE)
    return {
        "guesses": Picture(
            "The largest share of right guesses about one person and one name",
            "epsilon",
            "right guesses, %",
            {
                "what epsilon alone allows": (DENSE, percent(map(any_guesses, DENSE))),
                "what the noise of a run allows": (EPSILONS, percent(map(right_guesses, EPSILONS))),
            },
        ),
        "caught": Picture(
            "The largest share of people an attacker can catch with one false alarm in a hundred",
            "epsilon",
            "caught, %",
            {
                "what epsilon alone allows": (DENSE, percent(map(any_caught, DENSE))),
                "what the noise of a run allows": (EPSILONS, percent(map(caught, EPSILONS))),
            },
        ),
        "noise": Picture(
            "The noise multiplier that an epsilon needs",
            "epsilon",
            "noise multiplier",
            {
                **{
                    f"user and entity, share {share:g}": (
                        EPSILONS,
                        [calibrated(target, share) for target in EPSILONS],
                    )
                    for share in reversed(SHARES)
                },
                "user only": (EPSILONS, [calibrated(target, 0.0) for target in EPSILONS]),
            },
            log_x=True,
            log_y=True,
        ),
        "delta": Picture(
            "The noise multiplier that a delta needs",
            "delta",
            "noise multiplier",
            {
                f"epsilon {target:g}": (
                    deltas,
                    [calibrated(target, SHARE, delta=delta) for delta in deltas],
                )
                for target in (1.0, 2.0, 8.0)
            },
            log_x=True,
        ),
        "rate": Picture(
            "The noise beside the users of a round",
            "user rate",
            "noise per drawn user",
            {
                f"epsilon {target:g}": (
                    rates,
                    [calibrated(target, SHARE, rate) / (1000 * rate) for rate in rates],
                )
                for target in (1.0, 2.0, 8.0)
            },
            log_x=True,
            log_y=True,
        ),
        "rounds": Picture(
            "Epsilon spent, round by round",
            "rounds",
            "epsilon",
            {
                "user and entity": (
                    rounds,
                    [epsilon(rotation(SHARE)(at_8), n, DELTA) for n in rounds],
                ),
                "user only, same noise": (
                    rounds,
                    [epsilon(rotation(0.0)(at_8), n, DELTA) for n in rounds],
                ),
            },
        ),
        "missed": Picture(
            "Epsilon of an entity that was missed in some sentences",
            "users with one missed sentence each",
            "epsilon",
            {
                f"share {share:g}": (
                    users,
                    [
                        missed_epsilon(rotation(share)(calibrated(8.0, share)), ROUNDS, DELTA, n, 1)
                        for n in users
                    ],
                )
                for share in (0.5, 0.3, 0.1)
            },
        ),
    }


def to_record(found: dict[str, Picture]) -> dict[str, Any]:
    setting = {"user_rate": RATE, "rounds": ROUNDS, "delta": DELTA, "entity_share": SHARE}
    charts = {
        name: {
            **{key: getattr(one, key) for key in ("title", "x_label", "y_label", "log_x", "log_y")},
            "lines": [{"label": k, "x": list(x), "y": list(y)} for k, (x, y) in one.lines.items()],
        }
        for name, one in found.items()
    }
    return {"setting": setting, "false_alarms": FALSE_ALARMS, "pictures": charts}


def draw(record: dict[str, Any], out: Path) -> None:
    """One SVG per picture, with colours for light and dark, and the digest of its data."""
    out.mkdir(parents=True, exist_ok=True)
    for name, one in record["pictures"].items():
        lines = [Line(line["label"], line["x"], line["y"]) for line in one["lines"]]
        mark = ChartMark("epsilon 8", x=8.0) if name in ("guesses", "caught") else None
        svg = line_chart(
            lines,
            one["title"],
            one["x_label"],
            one["y_label"],
            log_x=one["log_x"],
            log_y=one["log_y"],
            mark=mark,
            size=(440, 280),
        )
        head, _, rest = svg.partition(">")
        if "xmlns=" not in head:
            head = head.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
        comment = f"<!-- data {digest(one)} -->"
        (out / f"budget-{name}.svg").write_text(f"{head}>{comment}{_STYLE}{rest}\n")


def digest(picture: dict[str, Any]) -> str:
    return sha256(json.dumps(picture, sort_keys=True).encode()).hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draw", action="store_true", help="Draw the committed JSON again.")
    if not parser.parse_args().draw:
        record = to_record(pictures())
        RESULT.write_text(json.dumps(record, indent=1) + "\n")
    draw(json.loads(RESULT.read_text()), IMAGES)


if __name__ == "__main__":
    main()
