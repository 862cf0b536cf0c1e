"""Commands in the documentation exist, those of the first pages run, and numbers are measured."""

import json
import mailbox
import re
import shlex
from email.message import EmailMessage
from pathlib import Path

import datasets
import pytest
import spacy
import typer

from benchmarks import budget_pictures
from research.select_results import (
    PUBLIC_FIRST,
    best_setting,
    epsilon_of,
    is_search,
    mean_test,
)
from tests.models import tiny
from uedp.cli import app

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
QUICK = ("privacy.rounds=2", "privacy.user_rate=0.5", "privacy.entity_share=0.5")
QUICK += ("privacy.method=rotation", "privacy.sentences_per_user=2", "privacy.update_clip=0.5")
GREETINGS = ("Call Ada on 020 7946 0958.", "Is Bob back?", "See you on Monday!", "All fine here.")


def commands(page: Path) -> list[list[str]]:
    """What a reader would type: lines of code that begin with `uedp`, continued lines joined."""
    found, fenced = [], False
    for line in re.sub(r"\\\n\s*", "", page.read_text(encoding="utf-8")).splitlines():
        if line.startswith("```"):
            fenced = not fenced
        elif fenced or line.startswith("    "):
            code = line.strip().removeprefix("$ ")
            if code.startswith("uedp "):
                found.append(shlex.split(code, comments=True)[1:])
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_exist_with_their_options(page):
    for arguments in commands(page):
        command, rest = typer.main.get_command(app), list(arguments)
        while hasattr(command, "commands"):
            command = command.commands[rest.pop(0)]
        known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
        given = {word.partition("=")[0] for word in rest if word.startswith("--")}
        assert given <= known, arguments


def test_commands_are_found():
    assert sum(len(commands(page)) for page in PAGES) > 50


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a small model and a small pipeline under the names that pages use."""
    monkeypatch.chdir(tmp_path)
    for name in ("gpt2", "smollm2-135m"):
        tiny.saved(tmp_path / name, tiny.gpt2(layers=1))
    names = spacy.blank("en")
    patterns = [{"label": "PERSON", "pattern": name} for name in ("Ada", "Bob")]
    names.add_pipe("entity_ruler").add_patterns(patterns)
    names.to_disk("en_core_web_sm")
    Path("public.csv").write_text("entity,reason\nMonday,a weekday\n")
    return tmp_path


def run_page(run, name: str, **replaced: str) -> None:
    """Run every command of a page in its order; training for two rounds, without a search."""
    for arguments in commands(DOCS / name):
        words = [replaced.get(word, word) for word in arguments]
        if words[0] == "unpack":  # a download; the fixture has a small one
            continue
        if words[0] == "train":
            words += [part for setting in QUICK for part in ("--set", setting)]
        done = run(*words)
        assert done.code == 0, (words, done.err)


def test_five_minute_start(here, run):
    run_page(run, "start.md", **{"4000": "150"})
    assert "consistent" in run("certificate", "verify", "run").out


def test_mailbox(here, run):
    box = mailbox.mbox(here / "mail.mbox")
    for n in range(240):
        message = EmailMessage()
        message["From"] = f"user{n % 80}@example.org"
        message.set_content(f"{GREETINGS[n % 4]}\n\n> {GREETINGS[(n + 1) % 4]}\n")
        box.add(message)
    box.close()
    run_page(run, "data/mailbox.md")
    assert json.loads((here / "run" / "certificate.json").read_text())["private"]


def test_csv(here, run):
    rows = [f"user {n % 80},{GREETINGS[n % 4]}" for n in range(240)]
    Path("messages.csv").write_text("\n".join(["author,body", *rows]))
    run_page(run, "data/csv.md")
    assert json.loads((here / "run" / "certificate.json").read_text())["private"]


def test_data_set(here, run, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", (DOCS / "data/dataset.md").read_text(), re.DOTALL)
    names = {"authors": [f"user {n % 80}" for n in range(240)], "bodies": [*GREETINGS] * 60}
    rows = datasets.Dataset.from_dict({"author": names["authors"], "body": names["bodies"]})
    rows.save_to_disk("rows")
    names["QUICKLY"] = {"rounds": 2, "user_rate": 0.5, "entity_share": 0.5, "method": "rotation"}
    exec(code.replace('out="run"', 'out="run", privacy=QUICKLY'), names)
    assert "differentially private for one user together with" in capsys.readouterr().out
    run_page(run, "data/dataset.md")


# --- numbers ------------------------------------------------------------------------------------


PICTURES = json.loads(budget_pictures.RESULT.read_text())


def line(picture: str, label: str) -> dict[float, float]:
    (found,) = (one for one in PICTURES["pictures"][picture]["lines"] if one["label"] == label)
    return dict(zip(found["x"], found["y"], strict=True))


def test_numbers_of_the_budget_page_are_those_of_its_pictures():
    text = " ".join((DOCS / "budget.md").read_text().split())
    run, alone = "what the noise of a run allows", "what epsilon alone allows"
    noise, delta = line("noise", "user and entity, share 0.3"), line("delta", "epsilon 8")
    rate = line("rate", "epsilon 8")
    assert f"in more than {line('guesses', run)[8]:.1f}% of the cases" in text
    assert f"would allow {line('guesses', alone)[8]:.2f}%" in text
    caught = line("caught", run)
    assert f"this run allows {caught[8]:.1f}%, at epsilon 2 it allows {caught[2]:.1f}%" in text
    assert f"from {line('noise', 'user only')[8]:.3f} for the user alone to {noise[8]:.3f}" in text
    missed = [line("missed", f"share {share}")[1] for share in (0.3, 0.1)]
    assert f"epsilon is {missed[0]:.1f} at a share of 0.3, and {missed[1]:.1f} at 0.1" in text
    assert f"takes {delta[1e-8] / delta[1e-5] - 1:.0%} more noise" in text
    assert "more than fourfold from a rate of 0.01 to 0.32" in text
    assert 4 < rate[0.01] / rate[0.32] < 5


def test_pictures_are_drawn_from_the_committed_numbers():
    for name, one in PICTURES["pictures"].items():
        svg = (budget_pictures.IMAGES / f"budget-{name}.svg").read_text()
        assert f"<!-- data {budget_pictures.digest(one)} -->" in svg
        assert f"budget-{name}.svg" in (DOCS / "budget.md").read_text()


def test_pictures_have_the_values_of_the_accountant():
    assert line("noise", "user only")[8] == pytest.approx(budget_pictures.calibrated(8.0, 0.0))
    assert line("guesses", "what the noise of a run allows")[8] == pytest.approx(
        100 * budget_pictures.right_guesses(8.0)
    )
    assert line("caught", "what the noise of a run allows")[8] == pytest.approx(
        100 * budget_pictures.caught(8.0)
    )


def result(name: str) -> dict:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


def measured(data: str, method: str, epsilon: float) -> tuple[float, float]:
    """The test perplexity of the best setting of the utility study, and what is proven of it."""
    rows = json.loads((ROOT / "results" / "utility.json").read_text())["rows"]
    own = [row for row in rows if row["data"] == data and not is_search(row)]
    best = best_setting(own, method=method, category="all", target=epsilon)
    level = mean_test(best)
    assert level is not None
    return level, epsilon_of(best)


def ratio(data: str, public: str, epsilon: float) -> float:
    both, user = (measured(data, name + public, epsilon) for name in ("fair-shares", "user-level"))
    return both[0] / user[0]


def test_the_cost_in_the_comparison_is_measured():
    page = " ".join((DOCS / "compare.md").read_text().split())
    told = re.search(r"at epsilon ([0-9.]+) is ([0-9.]+) times that of user-level DP at 8", page)
    assert told
    proven = measured("conll", "fair-shares", 8)[1]
    assert proven <= float(told[1]) < proven + 0.1
    assert measured("conll", "user-level", 8)[1] <= 8
    assert told[2] == f"{ratio('conll', '', 8):.2f}"
    assert f"after public news {ratio('conll', PUBLIC_FIRST, 8):.2f} times" in page
    assert f"on blogs of 8,000 people {ratio('blogs', '', 8):.2f} times" in page
    assert f"on AG's news {ratio('ag-sentences', '', 8):.2f} times" in page


def test_the_gain_of_public_text_is_measured():
    page = " ".join((DOCS / "training.md").read_text().split())
    eight, two = (
        [measured("conll", f"fair-shares{public}", at)[0] for public in ("", PUBLIC_FIRST)]
        for at in (8, 2)
    )
    assert f"perplexity {eight[0]:.1f} to {eight[1]:.1f} at epsilon 8" in page
    assert f"from {two[0]:.1f} to {two[1]:.1f} at 2" in page
    plain, rewritten = result("public_format")["rows"]
    assert (
        f"{plain['steps']} steps on AG's news lower perplexity on it from {plain['before']:.1f} to "
        f"{plain['after']:.1f}" in page
    )
    assert f"to {rewritten['after']:.1f} (`benchmarks/results/public_format.json`)" in page
    before, after = (
        [f"{ratio('conll', public, at) - 1:.0%}" for at in (8, 2)] for public in ("", PUBLIC_FIRST)
    )
    assert f"from {before[0]} and {before[1]} to {after[0]}" in page
    assert after[0] == after[1]


def test_what_a_better_ratio_gains_is_measured():
    now = result("planner_order")["now"]
    gains = {
        name.partition(",")[0]: f"{1 - 2 ** found['slope']:.0%}"
        for name, found in sorted(now["groups"].items(), key=lambda item: item[1]["settings"])
        if ", gpt," in name  # of each corpus the group with most settings
    }
    page = " ".join((DOCS / "budget.md").read_text().split())
    assert f"Of {now['pairs']} pairs" in page
    assert f"it puts {now['pairs_right']} in the right order" in page
    assert (
        f"by {gains['conll']} on CoNLL-2003, {gains['ag']} on AG, {gains['edgar']} on EDGAR and "
        f"{gains['blogs']} on blogs" in page
    )


def test_speed_in_the_comparison_is_measured():
    page = (DOCS / "compare.md").read_text()
    (table,) = re.findall(r"^\| tool \| speed.*?\n\n", page, re.MULTILINE | re.DOTALL)
    _, _, *rows = [
        [cell.strip() for cell in row.split("|")[1:-1]] for row in table.split("\n")[:-2]
    ]
    speeds = {name.split("**")[1]: cells for name, *cells in rows}
    own = []
    for name in ("h200_lora", "h200_full", "cpu_full"):
        (row,) = result(f"train_step_{name}")["rows"]
        ours, other = row["contenders"]["ours"], row["contenders"]["tricks"]
        own.append(f"{ours['tokens_per_second'] / other['tokens_per_second']:.2f}")
        if name == "h200_full":
            memory = f"{ours['peak_gib'] / other['peak_gib']:.1f}"
    clipping = [row["throughput"] for row in result("clip_cpu")["rows"]]
    own.append(f"{min(clipping):.2f} to {max(clipping):.2f}")
    assert speeds.pop("uedp") == own
    assert f"takes {memory} times the memory" in " ".join(page.split())
    # no script here has timed them: their cells say so, also where their authors state a number
    assert {cell for cells in speeds.values() for cell in cells} == {
        "not measured",
        "not a trainer",
    }
    assert all(row["opacus_seconds"] is None for row in result("clip_h200")["rows"])
