"""`uedp audit mechanism`, as a person types it: small audits of every method."""

import json

import numpy as np
import pytest

import uedp.audit.mechanism
import uedp.audit.plans
import uedp.audit.sensitivity
import uedp.mechanism.sampling
from tests.conftest import marked
from uedp.audit.verdict import MechanismAudit
from uedp.entities.detection import Detection, detect

MECHANISM = ["audit", "mechanism", "--seed", "3"]
USER = [*MECHANISM, "--method", "user-level", "--rounds", "5", "--runs", "2000"]


@pytest.fixture
def few_rounds(monkeypatch):
    """Measure one round instead of four: what is tested is not the measurement."""

    def short(*arguments, **options):
        return measure(*arguments, **{**options, "rounds": 1, "scanned": 20})

    measure = uedp.audit.sensitivity.measure
    monkeypatch.setattr(uedp.audit.plans, "measure", short)


def answer(run, *arguments):
    outcome = run(*arguments, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    return json.loads(outcome.out)


def test_all_methods_in_one_table(few_rounds, run):
    outcome = run(*MECHANISM, "--noise", "1", "--rounds", "5", "--runs", "300", "--quick")
    assert (outcome.code, outcome.err) == (0, "")
    head, columns, *rows = (line for line in outcome.out.splitlines() if line)
    assert head == (
        "lower bounds on epsilon at delta 1e-05 after 5 rounds, each with 95% confidence"
    )
    for column in ("threshold", "Gaussian fit", "curve", "proven"):
        assert column in columns
    assert [row.split("  ")[0] for row in rows[:12]] == [
        *["fair-shares"] * 4,
        *["rotation"] * 4,
        *["uedp-alg"] * 3,
        "user-level",
    ]
    assert "no lower bound exceeds the proven epsilon" in rows
    assert rows[-1] == "probability of any false alarm: at most 0.05"


def test_what_is_printed_is_what_was_found(run, tmp_path):
    lines = run(*USER, "--out", tmp_path / "found.json").out.splitlines()
    found = json.loads((tmp_path / "found.json").read_text())
    row, measured = (line for line in lines if line.startswith("user-level"))
    one = MechanismAudit.of(found["audits"][0])
    cells = [float(cell) for cell in row.replace("/", " ").split()[3:]]
    bounds = [
        one.directions[side][bound].epsilon
        for bound in ("threshold", "gaussian")
        for side in ("full", "emptied")
    ]
    assert cells == pytest.approx([*bounds, one.curve.epsilon, one.proven], rel=0.02)
    assert all(cell <= bound for cell, bound in zip(cells, bounds, strict=False))  # rounded down
    assert cells[-1] >= one.proven
    assert one.proven == pytest.approx(8, rel=0.01)
    assert not one.refutes_proven
    (rounds,) = found["measured"]
    shift = rounds["shifts"]["user"]
    numbers = [float(cell) for cell in measured.split("user  ")[1].split()]
    assert numbers == pytest.approx([12, shift["found"], 1, rounds["noise"]], rel=1e-3)
    assert "published" not in lines[-1]


def test_an_alarm_has_its_own_exit_code(few_rounds, run, monkeypatch, tmp_path):
    """Half the noise it says it adds; what was found is saved all the same."""
    add = uedp.audit.mechanism.add_once_

    def weak(noise, sums, deviation):
        add(noise, sums, deviation / 2)

    monkeypatch.setattr(uedp.audit.mechanism, "add_once_", weak)
    outcome = run(*USER, "--quick", "--out", tmp_path / "found.json")
    assert (outcome.code, outcome.err) == (1, "")
    assert "ALARM: user-level, user: the attack does better than the proven epsilon" in outcome.out
    assert json.loads((tmp_path / "found.json").read_text())["alarm"] is True


def test_a_round_that_moves_too_far_is_an_alarm(run, monkeypatch):
    """Sentences that mention the same entity get a whole share each."""
    monkeypatch.setattr(
        uedp.mechanism.sampling, "crowding", lambda mentions: np.ones(len(mentions), int)
    )
    line = [*MECHANISM, "--method", "rotation", "--noise", 1, "--rounds", 3, "--runs", 40]
    outcome = run(*line, "--quick")
    assert (outcome.code, outcome.err) == (1, "")
    assert "ALARM: rotation: emptying an entity moved a round's sum by" in outcome.out


CONFIG = """
privacy: {{method: {method}, noise: 2.0, rounds: 3, user_rate: 0.5, extended_rate: 0.8}}
data: {{train: {corpus}}}
model: {{name: model}}
"""


@pytest.fixture
def config(tmp_path):
    """Of a run on forty users."""
    folder = tmp_path / "forty"
    names = ("Ann", "Bob", "Eve")
    sentences = [
        marked(str(user), f"{name} is good.", (name, "PER"))
        for user in range(40)
        for name in names[: 1 + user % 3]
    ]
    detect(sentences, folder, Detection(("labels",)))

    def written(method: str = "rotation"):
        path = tmp_path / "config.yaml"
        path.write_text(CONFIG.format(method=method, corpus=folder))
        return path

    return written


def test_the_plan_of_a_config(few_rounds, run, config):
    """Its rates, its rounds, its corpus; and the same from the folder of a run."""
    line = ["audit", "mechanism", config(), "--seed", 3, "--runs", 40, "--quick"]
    found = answer(run, *line)
    one = found["audits"][2]
    assert (one["rounds"], one["parameters"]["noise"]) == (3, 2.0)
    assert (one["parameters"]["user_rate"], one["parameters"]["extended_rate"]) == (0.5, 0.8)
    assert [rounds["on"] for rounds in found["measured"]] == ["a stress corpus", "the corpus"]
    changed = answer(
        run, "audit", "mechanism", config().parent, *line[3:], "--set", "privacy.method=user-level"
    )
    (one,) = changed["audits"]
    assert (one["method"], one["rounds"], one["parameters"]["noise"]) == ("user-level", 3, 2.0)


def test_the_plan_of_the_papers_method(run, config):
    line = ["audit", "mechanism", config("uedp-alg"), "--seed", 3, "--runs", 40, "--quick"]
    found = answer(run, *line)
    assert [one["method"] for one in found["audits"]] == ["uedp-alg"] * 3
    assert found["audits"][0]["parameters"]["users"] == 40
    assert found["measured"] == []


def test_what_a_config_says_is_not_said_again(run, config):
    for wrong, why in (
        (["--rounds", "3"], "--rounds: "),
        (["--method", "rotation"], "--method: "),
        (["--set", "privacy.method=noiseless", "--set", "privacy.noise=null"], "no guarantee"),
    ):
        outcome = run("audit", "mechanism", config(), *wrong)
        assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
        assert why in outcome.err
    outcome = run("audit", "mechanism", "--set", "privacy.rounds=3")
    assert outcome.code == 2
    assert "changes a config; name one" in outcome.err


def test_saved_and_drawn(few_rounds, run, tmp_path):
    out, plot = tmp_path / "some" / "found.json", tmp_path / "other" / "bounds.png"
    found = answer(run, *USER, "--quick", "--out", out, "--plot", plot)
    assert json.loads(out.read_text()) == found
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert found["audits"][0]["curve"] is None
    assert found["audits"][0]["runs"] == 2000


def test_repeatable_by_seed(few_rounds, run):
    assert answer(run, *USER, "--quick") == answer(run, *USER, "--quick")
    without = ["audit", "mechanism", "--method", "user-level", "--quick", "--runs", "100"]
    outcome = run(*without, "--json")  # one run in twenty is a false alarm, which is 1
    assert outcome.code in (0, 1)
    assert json.loads(outcome.out)["audits"][0]["noise_source"] == "cipher"


def test_options_reach_the_audit(few_rounds, run):
    options = (
        "--method rotation --epsilon 4 --user-rate 0.3 --entity-share 0.5 --delta 1e-4".split()
    )
    found = answer(
        run, *MECHANISM, *options, "--rounds", 3, "--runs", 40, "--quick", "--confidence", 0.9
    )
    pairs = [one["pair"] for one in found["audits"]]
    assert pairs == ["user", "entity", "user and entity", "missed mention"]
    one = found["audits"][2]
    assert one["parameters"]["user_rate"] == 0.3
    assert one["parameters"]["entity_share"] == 0.5
    assert (one["rounds"], one["delta"], one["confidence"]) == (3, 1e-4, 0.9)
    assert one["proven"] == pytest.approx(4, rel=0.01)
    # four pairs and the noise of rounds share one chance of a false alarm, two tests each
    assert one["alarm"]["confidence"] == pytest.approx(1 - 0.1 / 10)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (["--method", "rotate"], "privacy.method"),
        (["--epsilon", "1", "--noise", "1"], "give one of them"),
        (["--runs", "2"], "runs 2: must be at least 4"),
        (["--rounds", "0"], "privacy.rounds"),
        (["--confidence", "95"], "confidence 95"),
        (["--plot", "bounds.txt"], "must end in .png"),
        (["--out", "."], "is a folder"),
        (["--delta", "2"], "privacy.delta"),
    ],
)
def test_refusals_are_one_line(run, tmp_path, monkeypatch, wrong, why):
    monkeypatch.chdir(tmp_path)
    outcome = run(*MECHANISM, "--noise" if "--epsilon" not in wrong else "--user-rate", "1", *wrong)
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.count("\n") == 1
    assert why in outcome.err
    assert not list(tmp_path.iterdir())
