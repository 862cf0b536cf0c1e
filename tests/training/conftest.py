"""Saved models, made once, and a fixture that trains them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.training import worlds
from uedp.training import loop


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The folder of a tiny model, by kind and options."""

    def folder(kind: str = "gpt2", **options: Any) -> Path:
        return worlds.model(tmp_path_factory.getbasetemp() / "models", kind, **options)

    return folder


@pytest.fixture
def train(tmp_path, saved, monkeypatch):
    """Train by a config, with changes to it, into a directory; collects the reported lines."""
    # without the table of missed mentions, which takes a second
    monkeypatch.setattr("uedp.accounting.statement.MISSED_CASES", ())

    def run_config(
        out="run", *, resume=False, model=None, data=None, progress=None, say=None, **changes
    ):
        run_config.said = []
        config = worlds.config(model or saved(), **changes)
        options = {} if progress is None else {"progress": progress}
        return loop.run(
            config,
            tmp_path / out,
            data=data or worlds.training_data(tmp_path / "corpus"),
            resume=resume,
            say=say or run_config.said.append,
            **options,
        )

    return run_config
