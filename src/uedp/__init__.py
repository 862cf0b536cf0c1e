"""Train language models so that neither a user nor an entity named in the text can be inferred."""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from uedp.corpus.readers import SkippedRecords, read_sentences
    from uedp.corpus.records import Columns
    from uedp.corpus.sentence import Sentence, Span
    from uedp.corpus.source import Source
    from uedp.corpus.store import Corpus
    from uedp.entities.breakdown import breakdown
    from uedp.entities.build import build_corpus
    from uedp.entities.coverage import coverage
    from uedp.entities.deidentify import deidentify
    from uedp.entities.detection import Detection, detect
    from uedp.entities.detectors import register_detector
    from uedp.errors import UserError
    from uedp.incidence import Incidence
    from uedp.training.api import train
    from uedp.training.config import Config

# Imported when first asked for: one part should not pay for the libraries of another.
_HOME = {
    "Columns": "uedp.corpus.records",
    "Config": "uedp.training.config",
    "Corpus": "uedp.corpus.store",
    "Detection": "uedp.entities.detection",
    "Incidence": "uedp.incidence",
    "Sentence": "uedp.corpus.sentence",
    "Source": "uedp.corpus.source",
    "Span": "uedp.corpus.sentence",
    "SkippedRecords": "uedp.corpus.readers",
    "UserError": "uedp.errors",
    "build_corpus": "uedp.entities.build",
    "breakdown": "uedp.entities.breakdown",
    "coverage": "uedp.entities.coverage",
    "deidentify": "uedp.entities.deidentify",
    "detect": "uedp.entities.detection",
    "register_detector": "uedp.entities.detectors",
    "read_sentences": "uedp.corpus.readers",
    "train": "uedp.training.api",
}

__all__ = [
    "Columns",
    "Config",
    "Corpus",
    "Detection",
    "Incidence",
    "Sentence",
    "SkippedRecords",
    "Source",
    "Span",
    "UserError",
    "breakdown",
    "build_corpus",
    "coverage",
    "deidentify",
    "detect",
    "read_sentences",
    "register_detector",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'uedp' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)
