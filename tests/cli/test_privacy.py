"""The commands on guarantees, as a person types them."""

import json

import pytest

from uedp.accounting.certificate import CERTIFICATE, Shape, issue
from uedp.accounting.ledger import RunLedger
from uedp.accounting.proven import Rotation, epsilon


def answer(outcome):
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)


def test_published(run):
    found = answer(
        run(
            *"account published --method f_e_plus --users 946 --users-per-round 50".split(),
            *"--entity-rate .5 --sensitive 11176 --sentences 14040 --noise 2 --rounds 50".split(),
            *"--delta 1e-5 --json".split(),
        )
    )
    assert found["epsilon"] == pytest.approx(0.52, abs=0.01)
    assert found["guarantee"] is False
    assert "not a privacy guarantee" in found["words"]


def test_proven(run):
    how = "account proven --user-rate .05 --rounds 200 --noise 1.039 --entity-share .5".split()
    found = answer(run(*how, "--json"))
    assert found["epsilon"] == pytest.approx(8, rel=0.01)
    assert found["guarantee"] is True
    assert "one user together with one sensitive entity" in found["words"]
    assert "these texts emptied" in found["words"]
    coin = answer(run(*how, "--entity-rate", 0.5, "--extended-rate", 0.5, "--json"))
    assert coin["epsilon"] != found["epsilon"]
    user = answer(run(*how[:-1], 0, "--json"))
    assert "Entities that several users mention are not protected" in user["words"]


def test_alg(run):
    how = "account alg --users 946 --holders 12 --user-rate 0.0528541 --noise 2 --rounds 50".split()
    found = answer(run(*how, "--json"))
    assert found["epsilon"] == pytest.approx(0.542, abs=0.002)
    assert found["guarantee"] is True


def test_no_finite_epsilon_is_no_guarantee(run):
    how = "account proven --user-rate .05 --rounds 200 --noise 0 --entity-share .5".split()
    found = answer(run(*how, "--json"))
    assert found["epsilon"] is None
    assert found["guarantee"] is False
    assert "none that is finite" in run(*how).out


@pytest.mark.parametrize("missing", ["noise", "rounds", "entity-share"])
def test_calibrate_finds_what_is_left_out(run, missing):
    given = {"noise": 1.2, "rounds": 200, "entity-share": 0.3}
    del given[missing]
    flags = [part for name, value in given.items() for part in (f"--{name}", value)]
    found = answer(run("calibrate", "--epsilon", 6, "--user-rate", 0.05, *flags, "--json"))
    profile = Rotation(found["noise"], 0.05, found["entity_share"])
    assert epsilon(profile, found["rounds"], 1e-5) <= 6
    assert found["epsilon"] > 5.9
    assert found["guarantee"] is True


def test_plan_from_counts_and_from_a_corpus(run, conll, tmp_path):
    few = "--user-rate .1 --user-rate .2 --rounds 50 --entity-share .2 --entity-share .5".split()
    counts = ("plan", "--epsilon", 8, "--users", 1000, "--sentences", 12000, *few)
    found = answer(run(*counts, "--json"))
    merits = [option["merit"] for option in found["options"]]
    assert len(merits) == 4
    assert merits == sorted(merits, reverse=True)
    plot = tmp_path / "p.svg"
    shown = run(*counts, "--plot", plot)
    assert "merit" in shown.out
    assert plot.read_text().startswith("<?xml")
    run("detect", conll, "--reader", "conll", "--detector", "labels", "--out", tmp_path / "c")
    small = run("plan", tmp_path / "c", "--epsilon", 8, *few)
    assert "(few)" in small.out


@pytest.fixture
def run_folder(tmp_path):
    shape = Shape(digest="d" * 64, users=30, sentences=400, entities=250)
    with RunLedger.open(tmp_path, "r", shape.digest, Rotation(1.5, 0.1, 0.3), 50) as ledger:
        ledger.spend(50)
    issue(tmp_path, 1e-5, shape)
    return tmp_path


def test_certificate(run, run_folder):
    shown = run("certificate", "show", run_folder)
    assert shown.out.startswith("The model is (")
    assert "not protected" in shown.out
    assert answer(run("certificate", "show", run_folder, "--json"))["rounds_planned"] == 50
    assert answer(run("certificate", "verify", run_folder, "--json"))["verified"] is True
    path = run_folder / CERTIFICATE
    path.write_text(path.read_text().replace('"rounds_planned": 50', '"rounds_planned": 5'))
    refused = run("certificate", "verify", run_folder)
    assert refused.code == 2
    assert "rounds_planned is 5" in refused.err


def test_schema(run):
    assert answer(run("certificate", "schema"))["title"] == "Certificate"


REFUSED = {
    "rate": ("account proven --user-rate 1.5 --rounds 2 --noise 1 --entity-share .5", "user rate"),
    "share": (
        "account proven --user-rate .5 --rounds 2 --noise 1 --entity-share 3",
        "entity share",
    ),
    "delta": (
        "account proven --user-rate .5 --rounds 2 --noise 1 --entity-share 1 --delta 1e-300",
        "lost in rounding",
    ),
    "rounds": ("account proven --user-rate .5 --rounds -2 --noise 1 --entity-share 1", "rounds -2"),
    "holders": ("account alg --users 9 --holders 9 --user-rate .1 --noise 1 --rounds 2", "holders"),
    "epsilon": ("calibrate --epsilon 0 --user-rate .1 --rounds 9 --entity-share .1", "epsilon"),
    "two missing": ("calibrate --epsilon 1 --user-rate .1 --rounds 9", "exactly one"),
    "no counts": ("plan --epsilon 8", "--users"),
    "no run": ("certificate verify nowhere", "nowhere"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_user_errors_are_one_line(case, run):
    command, expected = REFUSED[case]
    outcome = run(*command.split())
    assert outcome.code == 2
    assert len(outcome.err.splitlines()) == 1
    assert expected in outcome.err
