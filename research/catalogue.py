"""The experiments by name; their modules are imported when one is run."""

import importlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from research.base import Experiment


def _lazy(module: str, function: str) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        loaded = importlib.import_module(f"research.experiments.{module}")
        return getattr(loaded, function)(*arguments)

    return call


def _experiment(name: str, title: str, module: str, measure: str = "measure") -> Experiment:
    """An experiment whose `measure`, `draw` and `table` are functions of a module.

    Experiments that share a module differ in their `measure`.
    """
    return Experiment(
        name, title, _lazy(module, measure), _lazy(module, "draw"), _lazy(module, "table")
    )


EXPERIMENTS: Mapping[str, Experiment] = MappingProxyType(
    {
        experiment.name: experiment
        for experiment in (
            _experiment(
                "breakdown", "The data sets: users, sentences, sensitive sentences", "breakdown"
            ),
            _experiment("integrity", "Coverage of human marks by detectors", "integrity"),
            _experiment("budget", "Epsilon against rounds, published and proven", "budget"),
            _experiment(
                "next-word-gpt",
                "Perplexity against epsilon, pretrained model",
                "next_word",
                "measure_gpt",
            ),
            _experiment(
                "next-word-lstm",
                "Perplexity against epsilon, AWD-LSTM from scratch",
                "next_word",
                "measure_lstm",
            ),
            _experiment("utility", "What protecting names costs, and where it falls", "utility"),
            _experiment(
                "released",
                "UeDP-Alg with the noise of its released code: perplexity, bounds on epsilon",
                "released",
            ),
            _experiment(
                "extended-rate",
                "The sampling rate of sentences without entities, measured and predicted",
                "extended_rate",
            ),
            _experiment(
                "classification", "Error rate against epsilon, AG's topics", "classification"
            ),
            _experiment("estimators", "Utility of f_E, f_E+ and user-level DP", "estimators"),
            _experiment("local-dp", "Local DP: DPNR, its budget published and proven", "local_dp"),
        )
    }
)
