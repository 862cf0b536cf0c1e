"""Per-sentence and per-user clipping at little more than the cost of ordinary training."""

import uedp.mechanism.clip.layers  # noqa: F401 - registers the built-in rules
from uedp.mechanism.clip.clipping import Allowances
from uedp.mechanism.clip.engine import ClippedSum, Engine
from uedp.mechanism.clip.layout import Grams
from uedp.mechanism.clip.records import Record
from uedp.mechanism.clip.registry import clip_rule, trainable_layers
from uedp.mechanism.clip.rules import (
    ClipRule,
    MatrixWeight,
    SentenceGradients,
    allow_products,
    token_gram,
)

__all__ = [
    "Allowances",
    "ClipRule",
    "ClippedSum",
    "Engine",
    "Grams",
    "MatrixWeight",
    "Record",
    "SentenceGradients",
    "allow_products",
    "clip_rule",
    "token_gram",
    "trainable_layers",
]
