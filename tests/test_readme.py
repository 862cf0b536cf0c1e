"""The README's Python works as typed, and its commands exist."""

import json
import re
from pathlib import Path

import pytest
import torch
import typer

import uedp
from tests.models import tiny
from uedp.cli import app

README = (Path(__file__).parents[1] / "README.md").read_text()
TRAIN, ENGINE = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with the reader's messages and a small model under the name that is used."""
    monkeypatch.chdir(tmp_path)
    records = [{"author": f"user {n % 60}", "body": f"call 0{n % 9}0 7946 0958"} for n in range(90)]
    Path("messages.jsonl").write_text("\n".join(map(json.dumps, records)))
    tiny.saved(tmp_path / "gpt2", tiny.gpt2(layers=1))
    return tmp_path


def test_training_in_one_call(here, capsys):
    code = TRAIN.replace('out="run"', 'out="run", privacy={"rounds": 2}')
    exec(code, {})
    assert uedp.verify(here / "run").statement == capsys.readouterr().out.rstrip()


def test_engine_in_five_lines(here, capsys):
    model, tokenizer = tiny.gpt2(layers=1), tiny.tokenizer()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    names = {
        "uedp": uedp,
        "corpus": uedp.build_corpus("messages.jsonl", "corpus", user="author", text="body"),
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
