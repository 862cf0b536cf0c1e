"""Per-sentence and per-user clipping at the cost of little more than ordinary training."""

from uedp.mechanism.clip.engine import ClippedSum, Engine, values
from uedp.mechanism.clip.layout import Allowances
from uedp.mechanism.clip.recording import Packed, Rows

__all__ = ["Allowances", "ClippedSum", "Engine", "Packed", "Rows", "values"]
