"""`python -m research` as a user types it: --quick, on small data."""

import json
import re
from pathlib import Path

import pytest

from research.catalogue import EXPERIMENTS
from tests.conftest import Run


def test_list_and_help(run: Run) -> None:
    listed = run("--list")
    assert listed.code == 0
    for experiment in EXPERIMENTS.values():
        assert experiment.name in listed.out
        assert experiment.title in listed.out
    assert run().out.count("Usage") == 1
    unknown = run("magic", "--data", ".", "--out", "x")
    assert unknown.code == 2
    assert "magic" in unknown.err


@pytest.mark.parametrize("name", ["breakdown", "integrity", "budget"])
def test_quick(name: str, run: Run, data: Path, ner: Path, together: Path) -> None:
    out = together
    arguments = (name, "--data", data, "--out", out, "--quick")
    made = run(*arguments, "--model", f"ner={ner}")
    assert (made.code, made.err) == (0, "")
    result = json.loads((out / f"{name}.json").read_text())
    assert result["quick"] is True
    assert str(data.parent.parent) not in (out / f"{name}.json").read_text()
    assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    drawn = (out / f"{name}.svg").read_text()
    assert "<dc:date>" not in drawn
    again = out / f"again-{name}.svg"
    EXPERIMENTS[name].draw(result, again)  # from the JSON alone
    ids = re.compile(r"[a-z]?[0-9a-f]{10}")  # salted by the file's name
    assert ids.sub("", again.read_text()) == ids.sub("", drawn)


def test_report(run: Run, together: Path, tmp_path: Path) -> None:
    made = run("report", "--results", together, "--out", tmp_path / "docs" / "results.md")
    assert made.code == 0
    assert "next-word-gpt" in made.out
    page = (tmp_path / "docs" / "results.md").read_text()
    assert page.count("*Measured with `--quick`") == 3
    assert "| CoNLL-2003, f_E+ | 0.52 | 0.52 |" in page
    assert "not run: `python -m research next-word-gpt" in page
    assert "{{" not in page


REFUSED: dict[str, tuple[list[str], str]] = {
    "no data": (["--data", "nowhere", "--model", "ner=x"], "--data nowhere: no such folder"),
    "no pipeline": ([], "--model ner=FOLDER: missing"),
    "not a pipeline": (["--model", "ner=nowhere"], "--model ner=nowhere: not a saved spaCy"),
    "model without a part": (["--model", "nowhere"], "write PART=PATH"),
    "no jobs": (["--jobs", "0", "--model", "ner=x"], "--jobs 0"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_user_errors_are_one_line(case: str, run: Run, data: Path, tmp_path: Path) -> None:
    given, expected = REFUSED[case]
    arguments: list[object] = list(given) if "--data" in given else ["--data", data, *given]
    outcome = run("integrity", "--out", tmp_path / "out", *arguments)
    assert outcome.code == 2
    assert outcome.err.startswith("error: ")
    assert len(outcome.err.splitlines()) == 1
    assert expected in outcome.err


def test_a_data_set_that_is_missing_is_named(
    run: Run, data: Path, ner: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    outcome = run(
        *("breakdown", "--data", tmp_path / "empty", "--out", tmp_path / "out"),
        *("--model", f"ner={ner}"),
    )
    assert outcome.code == 2
    assert "conll2003/eng.train.gz: no such file; --data must hold" in outcome.err
