"""The README's Python works as typed, its commands exist, its numbers are measured."""

import json
import math
import re
import shlex
from pathlib import Path

import pytest
import spacy
import torch
import typer

import uedp
from research.select_results import PUBLIC_FIRST, best_setting, epsilon_of, is_search, mean_test
from tests.models import tiny
from uedp.cli import app
from uedp.methods import method_names

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
JOINED = re.sub(r"\\\n\s*", "", README)  # continued lines
COMMANDS = JOINED.partition("Two commands take your own messages")[2].partition("The same from")[0]
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
    """Options of whole command lines are checked with those of all pages (tests/docs)."""
    commands = typer.main.get_command(app).commands
    named = re.findall(r"`uedp ([a-z]+)((?: [a-z]+)?)", README)
    assert len(named) > 4
    for command, rest in named:
        assert command in commands
        if hasattr(commands[command], "commands"):
            assert rest.strip() in commands[command].commands


def test_methods_and_links_exist():
    for method in ("rotation", "fair-shares", "user-level"):
        assert method in method_names()
        assert f"`{method}`" in README
    linked = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", README)
    assert len(linked) > 20
    assert [path for path in linked if not (ROOT / path).exists()] == []


# --- numbers -------------------------------------------------------------------------------------


def result(path: str):
    return json.loads((ROOT / path).read_text())


def test_the_quoted_guarantee_is_that_of_the_demo():
    demo = result("benchmarks/results/demo.json")
    quoted = " ".join(re.findall(r"^>(.*)$", README, re.MULTILINE))
    first, second = (" ".join(part.split()) for part in quoted.split(" If the detector"))
    assert first == demo["certificate"]["statement"].splitlines()[0]
    missed = [f"in {one['words']}: epsilon {{}}" for one in demo["certificate"]["missed_mentions"]]
    told = re.findall(r"in ([a-z ]+): epsilon ([\d.]+\d)", f"If the detector {second}")
    assert [f"in {words}: epsilon {{}}" for words, _ in told] == missed
    for (_, number), one in zip(told, demo["certificate"]["missed_mentions"], strict=True):
        # never rounded down: what is printed must hold
        assert 0 <= float(number) - one["epsilon"] < 0.01
    before, after = demo["before"]["perplexity"], demo["after"]["perplexity"]
    assert f"from perplexity {before:.0f} to {after:.1f}" in " ".join(README.split())
    assert demo["seconds_in_all"] < 4 * 60


def best(experiment: str, data: str, method: str, epsilon: float | None) -> dict | None:
    """The setting that is best by validation, with the mean over its repeats."""
    rows = [
        row
        for row in result(f"results/{experiment}.json")["rows"]
        if row["data"] == data and not is_search(row)
    ]
    own = best_setting(rows, method=method, category="all", target=epsilon)
    if not own:
        return None
    return {"test": mean_test(own), "epsilon": None if epsilon is None else epsilon_of(own)}


def upwards(epsilon: float) -> str:
    return f"{math.ceil(10 * epsilon) / 10:g}"


@pytest.mark.parametrize(
    ("name", "data", "public"),
    [
        ("CoNLL-2003", "conll", ""),
        ("CoNLL-2003 after public news", "conll", PUBLIC_FIRST),
        ("EDGAR", "edgar", ""),
        ("blogs", "blogs", ""),
        ("AG, single sentences", "ag-sentences", ""),
    ],
)
def test_utility_is_that_of_the_results(name, data, public):
    (header,) = re.findall(r"^\| corpus \|(.*)\|$", README, re.MULTILINE)
    (row,) = re.findall(rf"^\| {name}, [0-9,]+ users \|(.*)\|$", README, re.MULTILINE)
    stated = [re.search(r"epsilon ([0-9.]+)", column) for column in header.split("|")[:2]]
    cells = [cell.strip() for cell in row.split("|")]
    for cell, method, usual in zip(cells, ("fair-shares", "user-level"), stated, strict=False):
        own = best("utility", data, method + public, 8)
        epsilon = re.search(r"epsilon ([0-9.]+)", cell) or usual
        assert cell.partition(" ")[0] == f"{own['test']:.1f}"
        # never rounded down: what is printed must hold
        assert own["epsilon"] <= float(epsilon[1]) < own["epsilon"] + 0.1
    for cell, method in zip(cells[2:], ("deidentified", "noiseless"), strict=True):
        own = None if public else best("next-word-gpt", data, method, None)
        assert cell == ("not run" if own is None else f"{own['test']:.1f}")


def test_numbers_in_prose():
    text = " ".join(README.split())
    both, user = (best("utility", "conll", name, 2) for name in ("fair-shares", "user-level"))
    epsilons = f"epsilon {upwards(both['epsilon'])} and {upwards(user['epsilon'])}"
    after, user_after = (
        best("utility", "conll", name + PUBLIC_FIRST, 2) for name in ("fair-shares", "user-level")
    )
    assert max(after["epsilon"], user_after["epsilon"]) <= 2
    assert (
        f"{epsilons} the first two columns are {both['test']:.1f} and {user['test']:.1f}, after "
        f"public news {after['test']:.1f} and {user_after['test']:.1f} at epsilon 2" in text
    )
    shares = {
        name: result(f"benchmarks/results/extraction/{name}.json")["greedy"]["64"]
        for name in ("noiseless", "user-level-8", "rotation-8")
    }
    assert all(share["count"] == 40 for share in shares.values())
    assert f"without privacy reproduces {shares['noiseless']['share']:.1%}" in text
    assert f"at epsilon 8 still {shares['user-level-8']['share']:.1%}" in text
    assert shares["rotation-8"]["share"] == 0


def test_speed_is_that_of_the_benchmarks():
    text = " ".join(README.split())

    def contenders(name: str) -> tuple[dict, dict, float]:
        (row,) = result(f"benchmarks/results/train_step_{name}.json")["rows"]
        return row["contenders"]["ours"], row["contenders"]["tricks"], row["sentences"]

    ours, other, sentences = contenders("h200_lora")
    seconds = f"{ours['seconds']:.3f} s instead of {other['seconds']:.3f} s"
    assert f"{seconds} for {sentences:,.0f} sentences" in text
    ours, other, _ = contenders("h200_full")
    assert f"{ours['seconds']:.3f} s instead of {other['seconds']:.3f} s" in text
    assert f"{ours['peak_gib']:.1f} GiB instead of {other['peak_gib']:.1f}" in text
    ours, other, _ = contenders("cpu_full")
    assert f"{ours['seconds']:.1f} s instead of {other['seconds']:.1f} s" in text
    assert f"{ours['peak_gib']:.1f} GiB instead of {other['peak_gib']:.1f}" in text
