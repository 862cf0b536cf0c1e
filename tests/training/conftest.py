"""Saved models, made once."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.training import worlds


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The folder of a tiny model, by kind and options."""

    def folder(kind: str = "gpt2", **options: Any) -> Path:
        return worlds.model(tmp_path_factory.getbasetemp() / "models", kind, **options)

    return folder
