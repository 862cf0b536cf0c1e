"""A certified run, and keys to sign it."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.accounting.runs import SETUP, make_run
from uedp.accounting.certificate import issue
from uedp.accounting.signature import generate_key


@pytest.fixture(scope="package", autouse=True)
def short_table() -> Iterator[None]:
    """Two rows of missed mentions instead of three: they take most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("uedp.accounting.statement.MISSED_CASES", ((1, 1), (1, None)))
        yield


@pytest.fixture(scope="package")
def issued(short_table: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = make_run(tmp_path_factory.mktemp("issued") / "run", rounds=20, spent=20, **SETUP)
    issue(made)
    return made


@pytest.fixture
def folder(issued: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(issued, tmp_path / "run"))


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    private = tmp_path / "key.pem"
    return private, generate_key(private)
