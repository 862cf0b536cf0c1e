"""Examples of help pages as typed, and JSON for programs: what is cheap, on one small story."""

import json
import re
import shlex
import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from tests.cli.story import TINY, tell
from tests.cli.test_help import COMMANDS, EXAMPLES

# what is not typed here, and why
LEFT_OUT = {
    r"uedp( \w+)* .*(gpt2|spacy:)": "needs a model from the hub",
    r"uedp unpack ": "downloads",
    r"uedp .*--engine ray": "starts Ray: tests/entities/test_ray.py",
    r"uedp (audit (mechanism|train|extract)|coverage|plan|report run-1)": "takes a while",
    r"uedp (generate .*--count 10000|(calibrate|account proven) .*--corpus)": "takes a while",
    r"uedp studio": "serves until it is stopped",
    r"uedp federate (server|client)": "waits for others",
}
TYPED = sorted(
    {
        line
        for path, line in EXAMPLES
        if path != "uedp" and not any(re.match(pattern, line) for pattern in LEFT_OUT)
    }
)
WRITTEN = ("--out", "--hold-out", "--held-out", "--secrets")
# what programs type, and keys that they rely on
DOCUMENTS = {
    "detect messages.jsonl --out new --json": "corpus users sentences sensitive_sentences entities "
    "held_out skipped_records propagation warnings",
    "inspect corpus --json": "users sentences entities vocabulary sensitive holders warnings",
    "extend corpus messages.jsonl --json": "epoch users sentences entities mentions late_mentions",
    "entities corpus --per-page 2 --json": "entities page pages rows",
    "deidentify corpus --out new --json": "corpus sentences mentions_replaced",
    "categories --json": "categories unions",
    "doctor corpus --json": "problems warnings checks",
    "account published --method user --users 90 --users-per-round 9 --noise 2 --rounds 5 --json": (
        "epsilon delta guarantee words"
    ),
    "account proven run --json": "epsilon delta guarantee words",
    "account alg --users 90 --holders 2 --user-rate 0.1 --noise 9 --rounds 2 --json": (
        "epsilon delta guarantee words"
    ),
    "calibrate --epsilon 8 --user-rate 0.1 --rounds 5 --entity-share 0.3 --json": (
        "epsilon noise rounds entity_share delta guarantee words"
    ),
    "plan --epsilon 8 --users 900 --sentences 9000 --user-rate 0.1 --rounds 5 --entity-share 0.3 "
    "--json": "epsilon delta options",
    "card run --json": "kind format guarantee facts hub",
    "ledger corpus --json": "runs epsilon delta unit",
    "certificate show run --json": "run epsilon delta statement",
    "certificate verify run --corpus corpus --json": "verified consistent problem private epsilon "
    "delta statement caveats not_checked",
    "evaluate run --json": "perplexity",
    "generate run --count 2 --tokens 4 --out new.jsonl --json": "counts settings guarantee",
    f"train --corpus corpus --evaluate others --epsilon 8 --out new {TINY} --json": "run finished "
    "rounds measures private epsilon delta statement corpus_total certificate",
    f"train --corpus corpus --epsilon 8 {TINY} --dry-run --json": "plan chosen words warnings "
    "command",
    "audit plant messages.jsonl --out new --secrets hidden.json --each 1 --json": "out secrets "
    "sentences with_secrets planted left_out",
    "audit extract run --secrets secrets.json --json": "runs",
    "audit synthetic texts.jsonl --corpus corpus --held-out others --json": "texts guarantee "
    "quality runs names p_values level alarms verdict",
    "unpack minilm-l6 --into models --json": "model folder",
}
ELSEWHERE = {"uedp audit mechanism", "uedp audit train", "uedp coverage"}  # in tests of their own


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    folder = tmp_path_factory.mktemp("story")
    tell(folder)
    return folder


@pytest.fixture
def here(told, tmp_path, monkeypatch):
    """A copy of the story, to change."""
    shutil.copytree(told, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")


@pytest.mark.parametrize("line", TYPED)
def test_an_example_works(line, here, run):
    words = shlex.split(line)[1:]
    for flag, value in pairwise(words):
        if flag in WRITTEN and words[:2] not in (["audit", "extract"], ["audit", "synthetic"]):
            path = Path(value)
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
            Path(f"{value}.pub").unlink(missing_ok=True)
    done = run(*words)
    assert done.code == 0, done.err
    assert done.out or done.err


@pytest.mark.parametrize("line", DOCUMENTS)
def test_one_document_and_nothing_else_on_stdout(line, here, run, monkeypatch):
    monkeypatch.setattr("uedp.models.packaged.unpack_model", lambda name, into, progress: into)
    done = run(*shlex.split(line))
    assert done.code == 0, done.err
    assert set(DOCUMENTS[line].split()) <= set(json.loads(done.out))


def test_all_commands_with_json_are_in_the_table():
    having = {
        path
        for path, command in COMMANDS.items()
        if any("--json" in parameter.opts for parameter in command.params)
    }
    typed = {path for path in having if any(f"uedp {x}".startswith(f"{path} ") for x in DOCUMENTS)}
    missing = having - typed - ELSEWHERE
    assert not missing, f"{missing}: add what a program types to DOCUMENTS, with the keys it needs"
