"""One module per method, and their registry."""

from uedp.methods import fair_shares, plain, rotation, uedp_alg, user_level  # registers them
from uedp.methods.base import (
    UNATTENDED,
    Attempt,
    Autocast,
    Gradient,
    Method,
    MethodOptions,
    PrivacySettings,
    RoundSettings,
    SentenceTask,
    half_precision,
    method_named,
    method_names,
    register_method,
)
from uedp.methods.clipped import ClippedMethod

__all__ = [
    "UNATTENDED",
    "Attempt",
    "Autocast",
    "ClippedMethod",
    "Gradient",
    "Method",
    "MethodOptions",
    "PrivacySettings",
    "RoundSettings",
    "SentenceTask",
    "fair_shares",
    "half_precision",
    "method_named",
    "method_names",
    "plain",
    "register_method",
    "rotation",
    "uedp_alg",
    "user_level",
]
