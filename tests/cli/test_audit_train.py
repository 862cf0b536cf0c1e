"""`uedp audit train`, as a person types it."""

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Run
from tests.training import worlds
from uedp.audit.training import TrainingAudit
from uedp.cli import main

CONFIG = """
privacy: {method: rotation, noise: 4, rounds: 6, user_rate: 0.5, seed: 3}
data: {train: corpus}
model: {name: llama, train: full, max_tokens: 32}
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus, a config and a model."""
    folder = tmp_path_factory.mktemp("made")
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()):
        for line in (
            "sample --out m.jsonl --people 50",
            "detect m.jsonl --out corpus --detector labels",
        ):
            with pytest.raises(SystemExit):
                main(line.split())
    (folder / "config.yaml").write_text(CONFIG)
    worlds.model(folder, "llama")
    return folder


@pytest.fixture
def here(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(made)
    return made


LINE: list[Any] = ["audit", "train", "config.yaml", "--seed", 5]


SHORT: list[Any] = ["--set", "privacy.rounds=2"]


def test_a_table_a_file_and_a_figure(here: Path, run: Run) -> None:
    before = sorted(path.name for path in (here / "corpus").iterdir())
    found = run(*LINE, "--users", 24, "--entities", 24, "--out", "audited", *SHORT)
    assert found.code == 0, found.err
    assert found.out.startswith("This run has no privacy guarantee")  # its seed is fixed
    assert "one run of rotation, 2 rounds: lower bounds on epsilon at delta 1e-05" in found.out
    audited = TrainingAudit.from_json((here / "audited" / "audit.json").read_text())
    lines = found.out.splitlines()
    for one in audited.findings:
        (line,) = (row for row in lines if row.startswith(f"{one.kind} ") and one.score in row)
        numbers = line.split(one.score)[1].split()
        assert [int(n) for n in numbers[:3]] == [one.canaries, one.guesses, one.correct]
        assert float(numbers[3]) <= one.epsilon < float(numbers[3]) + 0.01
        assert audited.proven is not None
        assert float(numbers[4]) <= one.most < float(numbers[4]) + 0.01
        assert float(numbers[5]) >= audited.proven
        assert line.endswith("not refuted")
    assert len(audited.findings) == 4
    assert "probability of any false alarm: at most 0.05" in found.out
    assert (here / "audited" / "scores.png").stat().st_size > 5000
    assert sorted(path.name for path in (here / "audited").iterdir()) == [
        "audit.json",
        "canaries.json",
        "scores.png",
        "seen.json",
    ]
    # the corpus has spent nothing
    assert sorted(path.name for path in (here / "corpus").iterdir()) == before
    again = run(*LINE, "--out", "audited", "--resume", *SHORT)
    assert "nothing is left to do" in again.out
    assert again.out.splitlines()[1:] == lines[-len(again.out.splitlines()) + 1 :]


def test_a_false_claim_is_an_alarm(here: Path, run: Run) -> None:
    found = run(
        *(*LINE, "--users", 40, "--entities", 0, "--claimed", 0.01, "--json"),
        *("--set", "privacy.method=noiseless", "--set", "privacy.noise=null"),
    )
    assert found.code == 1, found.err
    answer = json.loads(found.out)
    assert answer["proven"] is None
    assert answer["findings"][0]["alarm"] > 0.5
    assert not (here / "audit").exists()


BAD: dict[str, tuple[list[Any], str]] = {
    "config": (["audit", "train", "no.yaml"], "no.yaml: cannot be read"),
    "resume": ([*LINE, "--resume"], "name the folder to resume with --out"),
    "nothing": ([*LINE, "--resume", "--out", "x"], "x: holds no audit to resume"),
    "few": ([*LINE, "--users", 3], "users 3: fewer than 20 canaries prove nothing"),
    "method": (
        [*LINE, "--set", "privacy.method=uedp-alg", "--out", "x"],
        "privacy.method uedp-alg: this audit attacks gradients",
    ),
    "not an audit": ([*LINE, "--out", "corpus"], "corpus: exists and is not an audit"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_leaves_nothing(here: Path, run: Run, case: str) -> None:
    arguments, said = BAD[case]
    found = run(*arguments)
    assert found.code == 2
    assert found.err.startswith("error: ")
    assert found.err.count("\n") == 1
    assert said in found.err
    assert not (here / "x").exists()
