"""The experiments by name. One is imported when it is run, so that listing them costs nothing."""

import importlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from research.base import Experiment


def _later(module: str, function: str) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        return getattr(importlib.import_module(f"research.{module}"), function)(*arguments)

    return call


def _experiment(name: str, title: str, module: str, measure: str = "measure") -> Experiment:
    """An experiment whose `measure`, `draw` and `table` are functions of a module.

    Several experiments of one module differ in the function that measures.
    """
    return Experiment(
        name, title, _later(module, measure), _later(module, "draw"), _later(module, "table")
    )


EXPERIMENTS: Mapping[str, Experiment] = MappingProxyType(
    {
        experiment.name: experiment
        for experiment in (
            _experiment(
                "breakdown", "The data sets: users, sentences, what is sensitive", "breakdown"
            ),
            _experiment("integrity", "How much of what people marked is detected", "integrity"),
            _experiment("budget", "Epsilon against rounds, published and proven", "budget"),
            _experiment(
                "next-word-gpt",
                "Perplexity against epsilon, pretrained model",
                "next_word",
                "measure_gpt",
            ),
            _experiment(
                "next-word-lstm",
                "Perplexity against epsilon, AWD-LSTM from nothing",
                "next_word",
                "measure_lstm",
            ),
            _experiment(
                "extended-rate",
                "How often sentences without entities are used, measured and predicted",
                "extended_rate",
            ),
            _experiment(
                "classification", "Error rate against epsilon, AG's topics", "classification"
            ),
            _experiment("estimators", "f_E, f_E+ and user-level DP in utility", "estimators"),
            _experiment("local-dp", "Local DP: DPNR, its budget published and proven", "local_dp"),
        )
    }
)
