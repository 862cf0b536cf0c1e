"""Benchmarks are run by hand; here, their imports resolve and their command lines parse."""

import ast
import importlib
import json
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
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


def test_rounds_of_training_are_measured_beside_plain_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, users, each = np.random.default_rng(0), 24, 3
    lengths = rng.integers(3, 20, users * each)
    mentioning = np.arange(0, users * each, 4)
    arrays = {
        "ids": rng.integers(1, 49152, lengths.sum()).astype(np.uint16),
        "lengths": lengths.astype(np.uint16),
        "user": np.repeat(np.arange(users), each),
        "mention_sentence": mentioning,
        "mention_entity": np.arange(len(mentioning)) // 2,
        "end": np.array(0),
    }
    np.savez(tmp_path / "ids.npz", **{f"conll_{name}": array for name, array in arrays.items()})
    options = f"run --prepared {tmp_path / 'ids.npz'} --out {tmp_path / 'out.json'} --device cpu"
    case = "smollm2/lora/next-word/conll/rotation"
    few = "--rate 0.5 --rounds 1 --warm-up 1 --trials 1 --sizes 4 --contenders ours plain tricks"
    monkeypatch.setattr(
        sys, "argv", ["train_step", *f"{options} --tiny --profile --cases {case} {few}".split()]
    )
    runpy.run_path(str(FOLDER / "train_step.py"), run_name="__main__")
    (row,) = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert 0 < row["sentences"] < users * each
    assert row["tokens"] > 3 * row["sentences"]  # with a start and an end token
    for name in ("ours", "plain", "tricks"):
        found = row["contenders"][name]
        assert len(found["each_seconds"]) == 2
        assert found["cpu_seconds"] > 0
    own, other = (row["contenders"][name]["each_seconds"] for name in ("ours", "plain"))
    assert min(b / a for a, b in zip(own, other, strict=True)) <= row["ours/plain"]
