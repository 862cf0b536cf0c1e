"""Running an experiment, and the cache of finished steps."""

import json
import sys
from pathlib import Path

import pytest

from research.base import (
    Experiment,
    Options,
    Result,
    cached,
    digest,
    run_experiment,
    source_digest,
)


def draw(result: Result, path: Path) -> None:
    path.write_text(path.suffix)


def plain() -> Experiment:
    """An experiment that measures nothing."""
    return Experiment(
        "breakdown",
        "a title",
        lambda options: {"quick": options.quick, "curve": [1, 2.5], "at": {"a b": 0.123456}},
        draw,
        lambda result: f"curve of {len(result['curve'])}",
    )


def options(folder: Path) -> Options:
    return Options(folder, folder / "results" / ".work" / "breakdown")


def test_an_experiment_writes_three_files(tmp_path: Path) -> None:
    run_experiment(plain(), options(tmp_path), tmp_path / "results")
    results = tmp_path / "results"
    assert sorted(path.name for path in results.iterdir()) == [
        ".work",
        "breakdown.json",
        "breakdown.png",
        "breakdown.svg",
    ]
    assert json.loads((results / "breakdown.json").read_text())["curve"] == [1, 2.5]
    assert '"curve": [ 1, 2.5 ]' in (results / "breakdown.json").read_text()
    assert (results / ".work" / ".gitignore").read_text() == "*\n"


def test_json_keeps_strings_that_look_like_lists(tmp_path: Path) -> None:
    content = {"text": "[ 1,\n   2 ]", "nested": [[1, 2], ["a  b"]]}
    experiment = Experiment("x", "", lambda _: content, draw, lambda _: "")
    run_experiment(experiment, options(tmp_path), tmp_path / "out")
    assert json.loads((tmp_path / "out" / "x.json").read_text()) == content


# --- the cache -----------------------------------------------------------------------------------


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a package `one` and a module `two`."""
    folder = tmp_path / "sources"
    (folder / "one" / "deep").mkdir(parents=True)
    for name in ("one/__init__.py", "one/deep/a.py", "two.py"):
        (folder / name).write_text("x = 1")
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for name in ("one", "two"):
        sys.modules.pop(name, None)


def test_a_finished_step_is_reused_for_the_same_key(tmp_path: Path, sources: Path) -> None:
    """Guarantee of `cached`."""
    calls = []

    def compute() -> Result:
        calls.append(1)
        return {"value": len(calls)}

    def step(key: int) -> Result:
        return cached(tmp_path / "w", {"a": key}, ["two"], compute)

    assert step(1) == {"value": 1}
    assert step(1) == {"value": 1}
    assert step(2) == {"value": 2}
    (sources / "two.py").write_text("x = 2")
    assert step(1) == {"value": 3}


def test_an_interrupted_step_is_computed_again(tmp_path: Path) -> None:
    """Guarantee of `cached`."""

    def interrupted() -> Result:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached(tmp_path, {"a": 1}, [], interrupted)
    assert list(tmp_path.iterdir()) == []
    assert cached(tmp_path, {"a": 1}, [], lambda: {"b": 2}) == {"b": 2}


@pytest.mark.parametrize(("module", "file"), [("one", "one/deep/a.py"), ("two", "two.py")])
def test_a_source_digest_changes_with_its_module_only(
    module: str, file: str, sources: Path
) -> None:
    before = source_digest(module)
    for other in {"one/__init__.py", "two.py"} - {f"{module}/__init__.py", file}:
        (sources / other).write_text("x = 2")
    assert source_digest(module) == before
    (sources / file).write_text("x = 3")
    assert source_digest(module) != before


def test_the_cache_depends_on_the_package_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guarantee of `cached`."""
    before = digest({"a": 1}, [])
    monkeypatch.setattr("uedp.__version__", "9.9")
    assert digest({"a": 1}, []) != before


@pytest.mark.parametrize("module", ["budget", "extended_rate", "integrity", "local_dp"])
def test_every_cached_step_depends_on_its_own_module(module: str) -> None:
    import importlib

    loaded = importlib.import_module(f"research.experiments.{module}")
    assert loaded.__name__ in loaded._SOURCES
    assert source_digest(*loaded._SOURCES)
