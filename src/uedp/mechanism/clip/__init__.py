"""Per-sentence and per-user clipping at the cost of little more than ordinary training."""

from uedp.mechanism.clip.engine import ClippedSum, Engine
from uedp.mechanism.clip.layout import Allowances

__all__ = ["Allowances", "ClippedSum", "Engine"]
