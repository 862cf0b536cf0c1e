"""Plans of runs, with little said where little matters."""

from typing import Any

from uedp.accounting.decisions import Setup, Shape
from uedp.accounting.ledger import PlannedRun
from uedp.accounting.profile import Profile
from uedp.accounting.vocabulary import VocabularyRelease


def planned(
    run: str,
    digest: str,
    profile: Profile | None,
    rounds: int,
    vocabulary: VocabularyRelease | None = None,
    **options: Any,
) -> PlannedRun:
    """`options` are fields of the plan, or of its setup, the origin of the vocabulary aside."""
    decided = {name: options.pop(name) for name in list(options) if name in Setup.model_fields}
    origin = "public" if vocabulary is None else "differentially private"
    decided["vocabulary"] = options.pop("vocabulary_origin", origin)
    values: dict[str, Any] = {
        "delta": 1e-5,
        "shape": Shape(digest=digest, users=946, sentences=14_040, entities=5000),
        "setup": Setup(**decided),
        **options,
    }
    return PlannedRun(run, profile, rounds, vocabulary=vocabulary, **values)
