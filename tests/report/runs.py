"""Run folders as training leaves them, without training: with real ledgers and certificates."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from tests.accounting.plans import planned
from tests.accounting.runs import ENTITIES, FILES, SHAPE
from uedp.accounting.certificate import issue
from uedp.accounting.ledger import CorpusTotal, RunLedger
from uedp.accounting.model_files import model_files
from uedp.accounting.profile import Profile
from uedp.accounting.proven import RotationProfile

PROFILE = RotationProfile(1.2, 0.05, 0.3)
MEASURES = {"perplexity": 900.0, "perplexity on names": 4000.0, "perplexity on other tokens": 700.0}
CONFIG_OF_RUN: dict[str, Any] = {
    "privacy": {"method": "rotation", "epsilon": 8.0, "rounds": 40, "delta": 1e-5},
    "data": {"train": "corpus", "evaluate": "others"},
    "model": {"name": "distilgpt2", "train": "lora"},
}
ERRORS = {"error rate": 0.5, "error rate with entities": 0.6, "error rate without entities": 0.4}


def finished_run(
    folder: Path,
    profile: Profile | None = PROFILE,
    rounds: int = 40,
    rounds_spent: int | None = None,
    *,
    run: str | None = None,
    method: str | None = None,
    measures: dict[str, float] = MEASURES,
    evaluate_every: int = 10,
    seed: int = 0,
    **setup: Any,
) -> Path:
    """A run; with fewer rounds spent it is not finished, and without a profile it has no noise."""
    folder.mkdir(parents=True)
    run = run or f"run-{folder.name}"
    spent = rounds if rounds_spent is None else rounds_spent
    done = spent == rounds
    decided = {"entities": ENTITIES, "chosen_by": "the curators, on public data", **setup}
    (folder / "run.json").write_text(json.dumps({"run": run}) + "\n")
    _write_config(folder, profile, rounds, method, measures)
    rows = list(_rows(rounds, spent, measures, evaluate_every, seed))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if done:
        for name, content in FILES.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(content)
        after = {name: value * 0.25 for name, value in measures.items()}
        result = {"before": measures, "after": after, "rounds": rounds}
        (folder / "result.json").write_text(json.dumps(result))
    if profile is not None:
        plan = planned(run, SHAPE.digest, profile, rounds, shape=SHAPE, **decided)
        with RunLedger.open(folder, plan) as ledger:
            if plan.setup.public is not None:
                ledger.record_public(plan.setup.public.steps)
            if spent:
                ledger.spend(spent)
            if done:
                ledger.record_saved(model_files(folder))
                ledger.record_corpus(TOTAL)
        issue(folder)
    return folder


TOTAL = CorpusTotal(
    epsilon=3.5,
    delta=1e-5,
    runs=2,
    unit="one user together with one sensitive entity",
    seal="f" * 64,
)


def _write_config(
    folder: Path,
    profile: Profile | None,
    rounds: int,
    method: str | None,
    measures: dict[str, float],
) -> None:
    method = method or ("noiseless" if profile is None else profile.method)
    config = {
        **CONFIG_OF_RUN,
        "privacy": CONFIG_OF_RUN["privacy"] | {"method": method, "rounds": rounds},
        "task": {"kind": "classification" if measures is ERRORS else "next-word"},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))


def _rows(
    rounds: int, spent: int, measures: dict[str, float], every: int, seed: int
) -> Iterator[dict[str, float]]:
    rng = np.random.default_rng(seed)
    users = rng.binomial(1000, 0.05, spent).tolist()
    clipped = rng.beta(20, 10, (spent, 3)).round(4).tolist()
    for at in range(spent):
        row: dict[str, float] = {
            "round": at + 1,
            "rate": 0.01,
            "users": users[at],
            "sentences": 7 * users[at],
            "sentences_clipped": clipped[at][0],
            "users_clipped": clipped[at][1],
            "mean_update": clipped[at][2],
        }
        if (at + 1) % every == 0 and at + 1 < rounds:
            left = 0.25 + 0.75 * np.exp(-4 * (at + 1) / rounds)
            row |= {name: round(value * left, 4) for name, value in measures.items()}
        yield row | {"seconds": 0.5}
