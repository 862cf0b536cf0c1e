"""Benchmarks are run by hand; here, their imports resolve and their command lines parse."""

import ast
import importlib
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))
OPTIONAL = {"opacus"}  # peers that need not be installed
NO_OPTIONS = {"draw", "incidence"}  # start at once


def imports(source: str) -> Iterator[tuple[str, str | None]]:
    """The (module, name) pairs that a file imports, inside functions too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((str(node.module), alias.name) for alias in node.names)


@pytest.fixture(autouse=True)
def _scripts_import_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


@pytest.mark.parametrize("name", NAMES)
def test_every_import_resolves(name: str) -> None:
    for module, attribute in imports((FOLDER / f"{name}.py").read_text(encoding="utf-8")):
        if module.split(".")[0] in OPTIONAL:
            continue
        loaded = importlib.import_module(module)
        if attribute is not None and not hasattr(loaded, attribute):
            importlib.import_module(f"{module}.{attribute}")


@pytest.mark.parametrize("name", sorted(set(NAMES) - NO_OPTIONS))
def test_help_is_shown(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    assert stop.value.code == 0
    assert "usage" in capsys.readouterr().out
