"""Train language models so that neither a user nor an entity named in the text can be inferred."""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from uedp.accounting.certificate import verify as verify
    from uedp.corpus.readers import SkippedRecords as SkippedRecords
    from uedp.corpus.readers import read_sentences as read_sentences
    from uedp.corpus.records import Columns as Columns
    from uedp.corpus.sentence import Sentence as Sentence
    from uedp.corpus.sentence import Span as Span
    from uedp.corpus.source import Source as Source
    from uedp.corpus.store import Corpus as Corpus
    from uedp.entities.breakdown import breakdown as breakdown
    from uedp.entities.build import build_corpus as build_corpus
    from uedp.entities.coverage import coverage as coverage
    from uedp.entities.deidentify import deidentify as deidentify
    from uedp.entities.detection import Detection as Detection
    from uedp.entities.detection import detect as detect
    from uedp.entities.detectors import register_detector as register_detector
    from uedp.entities.extend import extend_corpus as extend_corpus
    from uedp.entities.warnings import corpus_warnings as corpus_warnings
    from uedp.errors import UserError as UserError
    from uedp.incidence import Incidence as Incidence
    from uedp.methods import register_method as register_method
    from uedp.training.api import evaluate as evaluate
    from uedp.training.api import generate as generate
    from uedp.training.api import train as train
    from uedp.training.config import Config as Config
    from uedp.training.engine import PrivacyEngine as PrivacyEngine
    from uedp.training.trainer import UedpTrainer as UedpTrainer

# Imported when first asked for: one part should not pay for the libraries of another.
_HOME = {
    "Columns": "uedp.corpus.records",
    "Config": "uedp.training.config",
    "Corpus": "uedp.corpus.store",
    "Detection": "uedp.entities.detection",
    "Incidence": "uedp.incidence",
    "PrivacyEngine": "uedp.training.engine",
    "Sentence": "uedp.corpus.sentence",
    "SkippedRecords": "uedp.corpus.readers",
    "Source": "uedp.corpus.source",
    "Span": "uedp.corpus.sentence",
    "UedpTrainer": "uedp.training.trainer",
    "UserError": "uedp.errors",
    "breakdown": "uedp.entities.breakdown",
    "build_corpus": "uedp.entities.build",
    "corpus_warnings": "uedp.entities.warnings",
    "coverage": "uedp.entities.coverage",
    "deidentify": "uedp.entities.deidentify",
    "detect": "uedp.entities.detection",
    "evaluate": "uedp.training.api",
    "extend_corpus": "uedp.entities.extend",
    "generate": "uedp.training.api",
    "read_sentences": "uedp.corpus.readers",
    "register_detector": "uedp.entities.detectors",
    "register_method": "uedp.methods",
    "train": "uedp.training.api",
    "verify": "uedp.accounting.certificate",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'uedp' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
