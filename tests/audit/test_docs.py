"""The tables of `docs/audit.md` say what the committed results say, lower bounds rounded down."""

import json
import math
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = json.loads((ROOT / "benchmarks/results/audit_mechanism.json").read_text())
TEXT = (ROOT / "docs/audit.md").read_text()


def number(value: float | None, digits: int, up: bool = False) -> str:
    if value is None:
        return ""
    digits = max(digits, 1 - math.floor(math.log10(value))) if 0 < value < 0.1 else digits
    rounded = (math.ceil if up else math.floor)(round(value * 10**digits, 6)) / 10**digits
    return f"{rounded:.{digits}f}" if value else "0"


def cell(value: float, digits: int = 2) -> str:
    return number(value, 1 if value >= 10 else digits)


def near(value: float | None) -> str:
    """What is computed, not bounded, is rounded to the nearest."""
    return "" if value is None else f"{value:.2g}" if value < 0.1 else f"{value:#.3g}"


def reached(audit: dict) -> str:
    bounds = (audit[name]["epsilon"] for name in ("threshold", "gaussian", "curve"))
    cells = [f"{cell(b)} ({number(b / audit['proven'], 2)[1:]})" for b in bounds]
    ends = [near(audit["attainable"]), near(audit["proven"])]
    return " | ".join([f"{audit['runs']:,}", *cells, *ends])


def refuted(audit: dict) -> str:
    cells = [cell(audit[name]["epsilon"]) for name in ("threshold", "gaussian")]
    ends = [near(audit["attainable"]), near(audit["proven"]) or "none"]
    return " | ".join([f"{audit['runs']:,}", *cells, *ends])


@pytest.mark.parametrize(("name", "audit"), RESULTS["audits"].items())
def test_every_audit_is_in_a_table_or_in_words(name, audit):
    if name.startswith("uedp-alg"):
        assert f"| {refuted(audit)} |".replace("|  |", "| |") in TEXT
    elif name.startswith(("rotation, user, ", "rotation, entity, ")):
        words = " ".join(TEXT.split("*Pairs that are less")[1].split("- *")[0].split())
        assert f"{audit['attainable'] / audit['proven']:.2f}"[1:] in words
    else:
        assert f"| {reached(audit)} |" in TEXT


def test_the_words_beside_the_tables():
    words = " ".join(TEXT.split())
    repeated, entities, corpus = (RESULTS[key] for key in ("repetitions", "entities", "corpus"))
    total = sum(one["repetitions"] for one in repeated.values())
    assert f"of each of {len(repeated)} cases" in words
    assert f"any alarm in all {total:,}" in words
    assert all(one["threshold_above_proven"] == one["alarms"] == 0 for one in repeated.values())
    assert sum(one["excess_above_0"] for one in repeated.values()) == 1
    assert (
        f"false for {entities['claim_is_false_for']} of the {entities['looked_at']} entities"
    ) in words
    assert f"the rarest of these has {entities['fewest_holders_of_these']} holders" in words
    assert (
        f"{corpus['users']} users, {corpus['sentences']:,} sentences, {corpus['entities']:,} "
        f"entities, the most common of which {corpus['most_holders']} users mention"
    ) in words
    whole = next(a for k, a in RESULTS["audits"].items() if "user and entity, CoNLL (" in k)
    claim = whole["published"]
    assert f"{number(whole['threshold']['epsilon'] / claim, 1)} times the published" in words
    assert f"{number(whole['attainable'] / claim, 1)} times is attainable" in words
    code = RESULTS["audits"]["uedp-alg, released code, user, CoNLL"]
    assert f"{2 / code['parameters']['noise']:,.0f} times too small" in words
