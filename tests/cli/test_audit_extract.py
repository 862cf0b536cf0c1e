"""`uedp audit plant`, `extract` and `synthetic`, and texts in files, as a person types them."""

import contextlib
import io
import json
from pathlib import Path

import pytest

from tests.conftest import Run
from uedp.cli import main

FLAGS = [
    *"--model awd-lstm --tokenizer bytes --user-rate 0.5 --rate 0.03 --rounds 2".split(),
    *"--set model.max_tokens=24 --set model.dropout=0 --set".split(),
    "model.sizes={embedding_size: 8, num_hidden_layers: 1}",
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus with secrets in it, another, and two runs."""
    folder = tmp_path_factory.mktemp("made")
    said = io.StringIO()

    def command(line: str, *more: str) -> None:
        with pytest.raises(SystemExit) as ended:
            main([*line.split(), *more])
        assert not ended.value.code

    with contextlib.chdir(folder), contextlib.redirect_stdout(said):
        command("sample --out m.jsonl --held-out h.jsonl --people 40")
        said.truncate(said.seek(0))
        command(
            "audit plant m.jsonl --out p.jsonl --secrets secrets.json --marks marks "
            "--repeats 1,4 --each 2 --left-out 6 --mask 212-555-0###"
        )
        (folder / "said").write_text(said.getvalue())
        for source, name in (("p.jsonl", "corpus"), ("h.jsonl", "held-out")):
            command(f"detect {source} --out {name} --detector labels")
        for method, more in (("noiseless", ""), ("rotation", "--epsilon 8")):
            command(
                f"train --corpus corpus --evaluate held-out --method {method} --out {method}",
                *more.split(),
                *FLAGS,
            )
    return folder


@pytest.fixture
def here(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(made)
    return made


def test_planting_says_what_it_did(here: Path) -> None:
    lines = (here / "said").read_text().splitlines()
    assert lines[0].endswith("10 with one of 4 secrets")
    assert lines[1] == "secrets.json: these secrets, and 6 that are not planted"
    rows = [json.loads(line) for line in (here / "p.jsonl").read_text().splitlines()]
    told = [row for row in rows if row["user"].startswith("planted-")]
    assert len(told) == 10
    assert [mark["label"] for mark in told[0]["marks"]] == ["PERSON", "PHONE"]


def test_secrets_of_two_runs_side_by_side(here: Path, run: Run, tmp_path: Path) -> None:
    files = ("--out", tmp_path / "found.json", "--plot", tmp_path / "found.png")
    found = run(
        *"audit extract noiseless rotation --secrets secrets.json --beams 2".split(), *files
    )
    assert found.code == 0
    assert "4 secrets planted, 6 left out, each ranked among 1,000" in found.out
    assert "exact, at most 10.0 bits, by chance 1.44 on average" in found.out
    for name, epsilon in (("noiseless", "none"), ("rotation", "8")):
        (row,) = (line.split() for line in found.out.splitlines() if line.startswith(name))
        assert row[1:3] == [name, epsilon]
        assert row[-3:-1] == ["-", "-"]  # six that were left out show no rate below a sixth
    assert [line.split()[0] for line in found.out.splitlines() if " users " in line] == ["1", "4"]
    saved = json.loads((tmp_path / "found.json").read_text())
    assert [one["run"] for one in saved["runs"]] == ["noiseless", "rotation"]
    assert len(saved["runs"][0]["found"]) == 10
    assert saved["runs"][1]["perplexity"] > 0
    assert (tmp_path / "found.png").stat().st_size > 10_000


def test_entities_of_the_runs_own_corpus(here: Path, run: Run) -> None:
    line = "audit extract rotation --entities 10 --others 6 --json"
    found = run(*line.split())
    assert found.code == 0
    (one,) = json.loads(found.out)["runs"]
    assert one["kind"] == "entities"
    groups = one["summary"]["groups"]
    assert groups["held in"]["count"] == groups["held out"]["count"] > 5
    assert all(item["among"] <= 7 for item in one["found"])
    shown = run(*line.replace("--json", "--held-out held-out --reference noiseless").split())
    assert shown.code == 0
    assert "entities held in" in shown.out
    assert "written" not in shown.out


def test_texts_are_written_to_a_file_and_compared_with_the_corpus(
    here: Path, run: Run, tmp_path: Path
) -> None:
    out = tmp_path / "texts.jsonl"
    line = f"generate rotation --count 12 --tokens 20 --seed 3 --drop duplicates --out {out}"
    found = run(*line.split())
    assert found.code == 0
    assert f"{out}: 12 texts, seed 3" in found.out
    assert "0 equal to an earlier one (left out)" in found.out
    assert "its guarantee covers all of them" in found.out
    assert "The model is (8, " in found.out
    assert "does not cover the prompts" in found.out
    assert f"next, for the curator: uedp audit synthetic {out} --run rotation" in found.out
    assert "add --resume to continue it" in run(*line.split()).err
    again = run(*line.split(), "--resume", "--json")
    assert json.loads(again.out)["counts"]["written"] == 12
    audit = f"audit synthetic {out} --run rotation --secrets secrets.json"
    page, saved = tmp_path / "texts.html", tmp_path / "found.json"
    shown = run(*audit.split(), "--html", page, "--out", saved, "--show", "2")
    assert shown.code == 0
    assert shown.out.startswith("For the curator only: ")
    assert "its guarantee covers all of them" in shown.out
    assert "0 of 4 (0.0% to 60.2%)" in shown.out  # Clopper and Pearson
    assert "No test finds the texts closer" in shown.out
    assert json.loads(saved.read_text())["alarms"] == []
    assert "Do not publish this page." in page.read_text()
    assert json.loads(run(*audit.split(), "--json").out)["texts"] == 12


def test_copied_texts_end_with_code_1_and_private_ones_say_they_are_not_covered(
    here: Path, run: Run, tmp_path: Path
) -> None:
    rows = [json.loads(line) for line in (here / "m.jsonl").read_text().splitlines()]
    hostile = {"text": "<script>alert(1)</script>"}
    copied = tmp_path / "<b>.jsonl"
    copied.write_text("".join(json.dumps(row) + "\n" for row in [*rows, hostile]))
    page = tmp_path / "page.html"
    audit = ["audit", "synthetic", copied, "--corpus", "corpus", "--held-out", "held-out"]
    found = run(*audit, "--html", page, "--show", "1")
    assert found.code == 1
    assert "ALARM (" in found.out
    assert "no privacy guarantee" in found.out
    assert "words in the training text: " in found.out
    assert "<b>" not in page.read_text()
    assert "&lt;b&gt;.jsonl" in page.read_text()
    assert "<script" not in page.read_text()
    noiseless = run(
        *"generate noiseless --count 2 --tokens 9".split(), "--out", tmp_path / "n.jsonl"
    )
    assert "no privacy guarantee" in noiseless.out


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("audit extract nowhere", "nowhere: not a run"),
        ("audit extract rotation rotation", "a run is named twice"),
        ("audit extract rotation --secrets none.json", "none.json: cannot be read"),
        ("audit extract rotation --plot x.txt", "must end in .png, .svg or .pdf"),
        ("audit extract rotation --out corpus", "--out corpus: is a folder"),
        ("audit synthetic p.jsonl", "name the run with --run"),
        ("audit synthetic p.jsonl --run nowhere", "nowhere"),
        ("audit synthetic p.jsonl --corpus corpus --out corpus", "corpus: is a folder"),
        ("audit synthetic nothing.jsonl --corpus corpus", "nothing.jsonl: no such file"),
        ("generate rotation --top-p 0.5", "--top-p is for texts in a file; name it with --out"),
        ("generate rotation --out b.txt", "ends in .jsonl"),
        ("generate rotation --out b.jsonl --drop x", "--drop x: must be some of"),
        ("generate rotation --out b.jsonl --top-p 2", "--top-p 2: must be above 0"),
        ("generate rotation --out rotation/b.jsonl", "lies in the folder of the model"),
        ("generate rotation --out b.jsonl --prompt a --prompts m.jsonl", "not both"),
        ("generate rotation --out b.jsonl --prompts m.jsonl", "m.jsonl: line 1: write"),
        ("audit plant m.jsonl --out p.jsonl --secrets s.json", "p.jsonl: exists already"),
        ("audit plant m.jsonl --out a/b.jsonl --secrets s.json", "a: no such folder"),
        ("audit plant m.jsonl --out b.jsonl --secrets s.json --repeats x", "--repeats x: write"),
        ("audit plant m.jsonl --out b.jsonl --secrets s.json --mask 5#", "too few to hide"),
    ],
)
def test_mistakes_take_one_line(here: Path, run: Run, line: str, said: str) -> None:
    found = run(*line.split())
    assert found.code == 2
    assert found.err.startswith("error: ")
    assert said in found.err
    assert found.err.count("\n") == 1
    assert not (here / "b.jsonl").exists()
    assert not (here / "s.json").exists()
