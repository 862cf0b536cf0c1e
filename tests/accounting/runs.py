"""Runs with ledgers, and models where all rounds are spent."""

from pathlib import Path
from typing import Any

from tests.accounting.plans import planned
from uedp.accounting.decisions import DeclaredText, Entities, EntityList, Shape
from uedp.accounting.ledger import CorpusTotal, PlannedRun, RunLedger
from uedp.accounting.model_files import model_files
from uedp.accounting.profile import Profile
from uedp.accounting.proven import RotationProfile

PROFILE = RotationProfile(20.0, 0.5, 0.33)


SHAPE = Shape(digest="d" * 64, users=946, sentences=14_040, entities=5000)


ENTITIES = Entities(
    detectors={"patterns": "uedp 1", "spacy:en": "spaCy 3, en 3.1"},
    categories=("person", "contact"),
    propagated=True,
    lists={"sensitive": EntityList(entries=3, digest="ab" * 32)},
)


SETUP = {
    "chosen_by": "the curators, on public data",
    "sentences_per_user": 2,
    "entities": ENTITIES,
    "texts": "t" * 64,
}


PUBLIC = DeclaredText(
    name="news.txt", digest="ab" * 32, sentences=1200, steps=70, sentences_per_step=50
)


FILES = {"config.json": b"{}", "model.safetensors": b"weights", "adapter/adapter_model.bin": b"a"}


TOTAL = CorpusTotal(epsilon=3.5, delta=1e-5, runs=2, unit="one user", seal="f" * 64)


def make_run(
    folder: Path, profile: Profile = PROFILE, rounds: int = 20, spent: int = 5, **options: Any
) -> Path:
    """A run, with its model if all rounds are spent."""
    folder.mkdir()
    plan = plan_of(profile, rounds, **options)
    with RunLedger.open(folder, plan) as ledger:
        if plan.setup.public is not None:
            ledger.record_public(plan.setup.public.steps)
        for _ in range(spent):
            ledger.spend()
        if spent == rounds:
            for name, content in FILES.items():
                (folder / name).parent.mkdir(exist_ok=True)
                (folder / name).write_bytes(content)
            ledger.record_saved(model_files(folder))
        ledger.record_corpus(TOTAL)
    return folder


def plan_of(profile: Profile = PROFILE, rounds: int = 20, **options: Any) -> PlannedRun:
    return planned("run-1", SHAPE.digest, profile, rounds, shape=SHAPE, **options)
