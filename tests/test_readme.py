"""The README's Python works as typed, and its commands exist."""

import json
import re
import shlex
from pathlib import Path

import pytest
import spacy
import torch
import typer

import uedp
from tests.models import tiny
from uedp.cli import app

README = (Path(__file__).parents[1] / "README.md").read_text()
COMMANDS = README.partition("Two commands take your own messages")[2].partition("The same from")[0]
TRAIN, ENGINE = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with the reader's messages and a small model under the name that is used."""
    monkeypatch.chdir(tmp_path)
    rows = [f"user {n % 300},Call Ada on 0{n % 9}0 7946 0958. See you!" for n in range(600)]
    Path("messages.csv").write_text("\n".join(["author,body", *rows]))
    tiny.saved(tmp_path / "gpt2", tiny.gpt2(layers=1))
    names = spacy.blank("en")
    names.add_pipe("entity_ruler").add_patterns([{"label": "PERSON", "pattern": "Ada"}])
    names.to_disk("en_core_web_sm")
    return tmp_path


def test_two_commands_from_messages_to_a_consistent_certificate(here, run):
    """Exactly as printed; with a small model and a small pipeline under the printed names."""
    detect, train = re.findall(r"^uedp (?:detect|train) .*--out.*$", COMMANDS, re.MULTILINE)
    detected = run(*shlex.split(detect)[1:])
    assert detected.code == 0, detected.err
    assert run(*shlex.split(train)[1:], "--dry-run").code == 0
    trained = run(*shlex.split(train)[1:])
    assert trained.code == 0, trained.err
    assert "Chosen from counts of this corpus" in trained.out + trained.err
    verified = run("certificate", "verify", "run", "--corpus", "corpus")
    assert (verified.code, verified.out.partition(":")[0]) == (0, "consistent")
    certificate = json.loads(Path("run/certificate.json").read_text())
    assert certificate["private"]
    assert 7.5 < certificate["epsilon"] <= 8
    assert any("chosen by counts of this corpus" in line for line in certificate["caveats"])


def test_training_in_one_call(here, capsys):
    code = TRAIN.replace('out="run"', 'out="run", privacy={"rounds": 2}')
    exec(code, {})
    assert uedp.verify(here / "run").statement == capsys.readouterr().out.rstrip()


def test_engine_in_five_lines(here, capsys):
    model, tokenizer = tiny.gpt2(layers=1), tiny.tokenizer()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    names = {
        "uedp": uedp,
        "corpus": uedp.build_corpus("messages.csv", "corpus", user="author", text="body"),
        "model": model,
        "tokenizer": tokenizer,
        "optimizer": torch.optim.Adam(model.parameters()),
    }
    assert len(ENGINE.splitlines()) == 5
    exec(ENGINE.replace("rounds=200", "rounds=3"), names)
    issued = uedp.verify(here / "run", corpus=here / "corpus")
    assert (issued.rounds_spent, issued.private) == (3, True)
    assert 7.9 < issued.epsilon <= 8
    said = capsys.readouterr().out
    assert said.startswith("The model is (")  # before it trains
    assert said.rstrip().endswith(issued.statement)
    assert any(
        not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True)
    )


def test_commands_exist():
    commands = typer.main.get_command(app).commands
    listed = [line.split()[:2] for line in re.findall(r"^\| `uedp ([^`]+)`", README, re.MULTILINE)]
    assert {command for command, *_ in listed} == set(commands)
    for command, *rest in listed:
        for name in rest:
            if hasattr(commands[command], "commands"):
                assert name in commands[command].commands
