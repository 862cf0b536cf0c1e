"""The commands on guarantees, as a person types them."""

import json
import re

import pytest

from tests.accounting.plans import planned
from tests.accounting.runs import SETUP, SHAPE, make_run
from uedp.accounting.certificate import CERTIFICATE, issue, schema
from uedp.accounting.growth import PastRun
from uedp.accounting.ledger import RUN_LEDGER, CorpusLedger, RunLedger
from uedp.accounting.model_files import model_files
from uedp.accounting.proven import FairSharesProfile, RotationProfile, epsilon
from uedp.accounting.statement import EXACT_ARITHMETIC

PUBLISHED = (
    "account published --users 946 --users-per-round 50 --entity-rate 0.5 --sensitive 11176 "
    "--sentences 14040 --noise 2 --rounds 50 --delta 1e-5"
).split()
PROVEN = "account proven --user-rate 0.05 --rounds 200 --noise 1.039 --entity-share 0.5".split()
ALG = "account alg --users 946 --user-rate 0.052854 --noise 2 --rounds 50".split()
CALIBRATE = "calibrate --epsilon 8 --user-rate 0.05".split()


def answer(run, *arguments):
    outcome = run(*arguments, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    return json.loads(outcome.out)


# --- account --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "printed"), [("f_e_plus", 0.52), ("f_e", 0.62), ("user", 1.18)])
def test_published(run, method, printed):
    found = answer(run, *PUBLISHED, "--method", method)
    assert found["epsilon"] == pytest.approx(printed, abs=0.01)
    assert found["guarantee"] is False
    assert "not a privacy guarantee" in found["words"]
    assert "not a privacy guarantee" in run(*PUBLISHED, "--method", method).out


def test_proven(run):
    found = answer(run, *PROVEN, "--delta", "1e-5")
    assert found["epsilon"] == pytest.approx(8, rel=0.02)
    assert found["guarantee"] is True
    assert found["delta"] == 1e-5
    assert "one user together with one sensitive entity" in found["words"]
    assert "emptied" in found["words"]
    assert "differentially private" in run(*PROVEN).out


def test_proven_with_coins(run):
    both = answer(run, *PROVEN, "--entity-rate", "0.5", "--extended-rate", "0.5")
    one = answer(run, *PROVEN, "--entity-rate", "0.5")
    assert both["epsilon"] < one["epsilon"]


def test_share_zero_is_user_level_and_says_so(run):
    found = answer(run, *PROVEN[:-1], "0")
    assert found["epsilon"] < 8
    assert "Entities that several users mention are not protected" in found["words"]


def test_no_noise_is_no_guarantee(run):
    line = "account proven --user-rate 0.05 --rounds 2 --noise 0 --entity-share 0.5".split()
    found = answer(run, *line)
    assert found["epsilon"] is None
    assert found["guarantee"] is False
    assert found["words"].startswith("This run has no privacy guarantee.")
    assert "no finite epsilon" in run(*line).out


def test_alg(run):
    found = answer(run, *ALG, "--holders", "10")
    assert found["epsilon"] == pytest.approx(0.48, abs=0.01)
    assert found["guarantee"] is True
    assert "at most the stated number of other users" in found["words"]


# --- calibrate ------------------------------------------------------------------------------------


def test_calibrate_noise(run):
    found = answer(run, *CALIBRATE, "--rounds", "50", "--entity-share", "0.33")
    assert found["epsilon"] <= 8
    assert found["epsilon"] == epsilon(RotationProfile(found["noise"], 0.05, 0.33), 50, 1e-5)
    assert found["guarantee"] is True
    assert "differentially private" in found["words"]
    assert found["rounds"] == 50


def test_calibrate_rounds(run):
    found = answer(run, *CALIBRATE, "--noise", "1.0", "--entity-share", "0")
    assert found["epsilon"] <= 8
    assert isinstance(found["rounds"], int)


def test_calibrate_share(run):
    found = answer(run, *CALIBRATE, "--noise", "1.0", "--rounds", "200")
    assert 0 < found["entity_share"] < 2
    assert found["epsilon"] <= 8


def test_printed_numbers_meet_the_target_when_typed_in_again(run):
    """Six digits are printed, each rounded to the safe side."""
    line = [*CALIBRATE, "--rounds", "20", "--entity-share", "0.3"]
    shown = dict(row.split(": ") for row in run(*line).out.splitlines()[:4])
    exact = answer(run, *line)
    assert float(shown["noise"]) >= exact["noise"]
    assert float(shown["noise"]) == pytest.approx(exact["noise"], rel=1e-5)
    assert shown["rounds"] == "20"
    assert shown["entity share"] == "0.3"
    found = dict(
        row.split(": ")
        for row in run(*CALIBRATE, "--rounds", "200", "--noise", "1.1").out.splitlines()[:4]
    )
    assert epsilon(RotationProfile(1.1, 0.05, float(found["entity share"])), 200, 1e-5) <= 8
    assert found["noise"] == "1.1"


# --- plan -----------------------------------------------------------------------------------------

OPTIONS = "--user-rate 0.3 --rounds 20 --entity-share 0.5 --entity-share 0.1".split()


def test_plan_from_counts(run):
    line = ["plan", "--epsilon", "4", "--users", "30", "--sentences", "90", *OPTIONS]
    options = answer(run, *line)["options"]
    assert len(options) == 2
    assert [row["merit"] for row in options] == sorted((r["merit"] for r in options), reverse=True)
    for row in options:
        profile = RotationProfile(row["noise"], row["user_rate"], row["entity_share"])
        assert epsilon(profile, row["rounds"], 1e-5) <= 4
        assert row["users_per_round"] == pytest.approx(9)
        assert row["merit"] > 0
    title, _header, *rows = run(*line, "--best", "1").out.splitlines()
    assert title.startswith("epsilon 4, delta 1e-05")
    assert rows[0].split()[:3] == ["rotation", "0.3", "20"]
    assert "(few)" in rows[0]  # 9 users a round
    assert rows[1] == ""  # only the best was asked for
    missed = {name: values for name, *values in (re.split(" {2,}", line) for line in rows)}
    best, halved = missed["the best plan"], missed["half the entity share"]
    assert len(best) == len(halved) == 4  # the noise, and epsilon in three cases
    assert float(best[1]) > 4  # more than what is not missed has
    assert float(halved[1]) < float(best[1])
    alone = missed["at most 1 sentence per user"]
    assert alone[3] == alone[1] == best[1]  # all sentences of a user are one
    assert {"half the user rate", "twice the user rate"} <= set(missed)


def test_plan_counts_less_than_a_sentence_per_user(run):
    line = ["plan", "--epsilon", "4", "--users", "10000000000", "--sentences", "1000000000"]
    only = ["--user-rate", "0.1", "--rounds", "5", "--entity-share", "0.5"]
    (option,) = answer(run, *line, *only)["options"]
    assert option["merit"] > 0


def test_plan_from_a_corpus_with_a_plot(run, conll, tmp_path):
    run("detect", conll, "--reader", "conll", "--detector", "labels", "--out", tmp_path / "corpus")
    plot = tmp_path / "curve.png"
    shown = run("plan", tmp_path / "corpus", "--epsilon", "4", *OPTIONS[:6], "--plot", plot)
    assert shown.code == 0
    assert "merit" in shown.out
    assert EXACT_ARITHMETIC in shown.out
    assert {"rotation", "fair-shares"} <= {line.split()[0] for line in shown.out.splitlines()[2:4]}
    assert str(plot) in shown.out
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    """A corpus of forty people."""
    import uedp
    from uedp.sample.generate import sample_sentences

    made = tmp_path_factory.mktemp("sample") / "corpus"
    uedp.detect(sample_sentences(1, 40), made, uedp.Detection(("labels",)))
    return made


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_corpus_takes_the_place_of_numbers(run, sample):
    solved = answer(run, "calibrate", "--epsilon", "8", "--corpus", sample)
    assert solved["epsilon"] <= 8
    assert solved["user_rate"] * 40 >= 20
    shown = run("calibrate", "--epsilon", "8", "--corpus", sample)
    assert shown.out.startswith("Chosen from counts of this corpus: ")
    given = ["--user-rate", "0.6", "--rounds", "5", "--entity-share", "0.4"]
    typed = answer(run, "calibrate", "--epsilon", "8", "--corpus", sample, *given)
    assert (typed["user_rate"], typed["rounds"], typed["entity_share"]) == (0.6, 5, 0.4)
    proven = answer(run, "account", "proven", "--corpus", sample, "--noise", typed["noise"], *given)
    assert proven["epsilon"] == typed["epsilon"]
    assert f"\nmethod: {solved['method']}\n" in shown.out
    for method, profile in (("rotation", RotationProfile), ("fair-shares", FairSharesProfile)):
        line = ["calibrate", "--epsilon", "8", "--corpus", sample, *given, "--method", method]
        kept = answer(run, *line)
        assert kept["method"] == method
        assert kept["epsilon"] == epsilon(profile(kept["noise"], 0.6, 0.4), 5, kept["delta"])
        assert ("In exact arithmetic" in kept["words"]) is (profile is FairSharesProfile)


def test_a_run_has_its_numbers(run, folder):
    found = answer(run, "account", "proven", folder)
    assert found["epsilon"] == epsilon(RotationProfile(20.0, 0.5, 0.33), 20, 1e-5)
    assert answer(run, "account", "proven", folder, "--delta", "1e-4")["delta"] == 1e-4


def test_a_run_that_trained_on_has_the_epsilon_of_all_runs(run, tmp_path):
    """That of its certificate: the rounds of the model before it count."""
    profile = RotationProfile(1.0, 0.05, 0.3)
    first = PastRun("first", profile, 20, SHAPE.digest, "t")
    plan = planned("second", SHAPE.digest, profile, 30, shape=SHAPE, texts="t", earlier=(first,))
    with RunLedger.open(tmp_path, plan) as ledger:
        ledger.spend(30)
    found = answer(run, "account", "proven", tmp_path)
    assert found["epsilon"] == issue(tmp_path).epsilon > 1.1 * epsilon(profile, 30, 1e-5)


def test_the_numbers_of_a_run_come_with_its_caveats(run, tmp_path):
    made = make_run(tmp_path / "groups", **{**SETUP, "users": "assigned at random"})
    shown = run("account", "proven", made).out
    assert "put together at random" in shown
    assert "Entities: found by " in shown


def test_a_plan_with_a_model_shows_the_time(run, sample, monkeypatch):
    monkeypatch.setattr("uedp.accounting.missed.neighbours", lambda *_: iter(()))
    model = [
        "--model",
        "awd-lstm",
        "--set",
        "model.tokenizer=bytes",
        "--set",
        "model.max_tokens=16",
    ]
    sizes = "model.sizes={embedding_size: 4, hidden_size: 4, num_hidden_layers: 1}"
    line = ["plan", sample, "--epsilon", "8", *OPTIONS[:6], *model, "--set", sizes]
    shown = run(*line, "--set", "privacy.user_rate=0.6", "--set", "privacy.rounds=5")
    assert shown.code == 0
    assert "time/round" in shown.out
    assert "time in all" in shown.out
    assert re.search(r"uedp train --method (rotation|fair-shares) --epsilon 8 ", shown.out)
    found = answer(run, *line, "--set", "privacy.user_rate=0.6", "--set", "privacy.rounds=5")
    assert found["options"][0]["seconds"] > 0
    assert found["estimate"]["epsilon"] <= 8


# --- certificate ----------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "run"
    made.mkdir()
    (made / "config.json").write_text("{}")
    with RunLedger.open(
        made, planned("run-1", "d" * 64, RotationProfile(20.0, 0.5, 0.33), 20)
    ) as ledger:
        ledger.spend(20)
        ledger.record_saved(model_files(made))
    issue(made)
    return made


def test_certificate_show(run, folder):
    shown = run("certificate", "show", folder)
    assert shown.code == 0
    for words in (
        "not verified: ",
        "Caveat: which entities",
        "differentially private",
        "user without entity",
        "missed in five sentences of five users",
        "If the detector missed the entity in one sentence: epsilon ",
        "that a user took part",
        "who chose the clip bounds",
        "20, 20",
    ):
        assert words in shown.out
    assert answer(run, "certificate", "show", folder) == json.loads(
        (folder / CERTIFICATE).read_text()
    )


def test_certificate_verify(run, folder):
    shown = run("certificate", "verify", folder).out
    assert shown.startswith("consistent: ledger intact")
    assert "verified" not in shown.splitlines()[0]
    assert "Caveat: which entities were looked for" in shown
    assert shown.splitlines()[-1].startswith("- ")
    assert "Not checked:\n- who issued this" in shown
    found = answer(run, "certificate", "verify", folder)
    assert (found["verified"], found["consistent"]) == (False, True)
    assert any("code which ran" in text for text in found["not_checked"])
    path = folder / CERTIFICATE
    values = json.loads(path.read_text())
    path.write_text(json.dumps({**values, "epsilon": 0.5}))
    refused = run("certificate", "verify", folder)
    assert refused.code == 1  # an answer, not a mistake
    failed = run("certificate", "verify", folder, "--json")
    assert failed.code == 1
    assert failed.err == ""
    told = json.loads(failed.out)
    assert (told["verified"], told["consistent"]) == (False, False)
    assert "epsilon is 0.5, not" in told["problem"]
    assert "epsilon is 0.5, not" in refused.err
    assert refused.err.count("\n") == 1
    path.write_text(json.dumps(values))
    ledger = folder / RUN_LEDGER
    ledger.write_bytes(ledger.read_bytes().replace(b'"count": 20', b'"count": 19'))
    assert "ledger was changed" in run("certificate", "verify", folder).err


def test_only_a_signature_makes_it_verified(run, folder, tmp_path):
    key = tmp_path / "key.pem"
    made = run("certificate", "keygen", "--out", key)
    assert made.code == 0
    assert f"public key: {key}.pub" in made.out
    unsigned = run("certificate", "verify", folder, "--public-key", f"{key}.pub")
    assert unsigned.code == 1
    assert "no signature" in unsigned.err
    assert run("certificate", "verify", folder, "--public-key", tmp_path / "none").code == 2
    assert run("certificate", "verify", folder, "--corpus", tmp_path / "none").code == 2
    assert run("certificate", "sign", folder, "--key", key).code == 0
    shown = run("certificate", "verify", folder, "--public-key", f"{key}.pub")
    assert shown.code == 0
    assert shown.out.startswith(f"verified: signed by {key}.pub, ledger intact")
    assert "who issued this" not in shown.out
    assert answer(run, "certificate", "verify", folder, "--public-key", f"{key}.pub")["verified"]
    assert run("certificate", "verify", folder).out.startswith("consistent: ")
    (folder / "config.json").write_text('{"other": 1}')
    refused = run("certificate", "verify", folder, "--public-key", f"{key}.pub")
    assert (refused.code, refused.out) == (1, "")
    assert "config.json: is not the file that was certified" in refused.err


def test_what_does_not_agree_is_not_signed(run, folder, tmp_path):
    run("certificate", "keygen", "--out", tmp_path / "key")
    (folder / "model.safetensors").write_bytes(b"x")
    assert run("certificate", "sign", folder, "--key", tmp_path / "key").code == 2
    assert not (folder / "certificate.sig").exists()


@pytest.mark.parametrize("out", ["", ".", "/"])
def test_a_key_without_a_name_is_refused(run, out):
    made = run("certificate", "keygen", "--out", out)
    assert (made.code, made.out) == (2, "")
    assert "not the name of a file" in made.err


def test_a_field_that_stands_twice_is_refused(run, folder):
    path = folder / CERTIFICATE
    path.write_text(path.read_text().replace("{", '{"epsilon": 0.01,', 1))
    for command in ("show", "verify"):
        assert "'epsilon' stands twice" in run("certificate", command, folder).err


HOSTILE = "[bold red]verified[/bold red] \x1b[2J \u202egnp.exe [link=http://x]click[/link]"


@pytest.mark.parametrize("field", ["statement", "adjacency", "method", "unit"])
def test_a_hostile_certificate_is_shown_as_text(run, folder, field):
    path = folder / CERTIFICATE
    values = json.loads(path.read_text())
    values[field] = HOSTILE
    values["caveats"] = values["not_protected"] = [HOSTILE]
    values["parameters"] |= {HOSTILE: 1}
    values["files"] = {HOSTILE: HOSTILE}
    path.write_text(json.dumps(values))
    shown = run("certificate", "show", folder)
    assert shown.code == 0
    assert shown.out.startswith("not verified: ")
    assert "\x1b" not in shown.out
    assert "\u202e" not in shown.out
    assert "[bold red]verified[/bold red]" in shown.out
    assert "[link=http://x]" in shown.out


# --- the ledger of a corpus -----------------------------------------------------------------------


@pytest.fixture
def corpus(run, conll, tmp_path):
    made = tmp_path / "corpus"
    run("detect", conll, "--reader", "conll", "--detector", "labels", "--out", made)
    return made


def test_the_ledger_of_a_corpus(run, corpus, tmp_path):
    assert run("ledger", corpus).out == "no run was made on this corpus\n"
    assert answer(run, "ledger", corpus)["runs"] == []
    ledger, profile, made = (
        CorpusLedger(corpus),
        RotationProfile(2.0, 0.1, 0.3),
        tmp_path / "stopped",
    )
    made.mkdir()
    stopped = planned("stopped", "d", profile, 200)
    ledger.reserve(planned("done", "d", profile, 10))
    ledger.close("done", 10)
    ledger.reserve(stopped)
    with RunLedger.open(made, stopped, corpus) as opened:
        opened.spend()
    before = answer(run, "ledger", corpus)
    assert before["epsilon"] == pytest.approx(epsilon(profile, 210, 1e-5), rel=1e-6)
    assert [entry["closed"] for entry in before["runs"]] == [True, False]
    shown = run("ledger", corpus).out
    assert "open: charged for all planned rounds" in shown
    assert "all 2 runs together: epsilon" in shown
    closed = run("ledger", corpus, "--close", made)
    assert closed.code == 0
    assert "closed: run stopped after 1 rounds" in closed.out
    after = answer(run, "ledger", corpus)
    assert after["epsilon"] == pytest.approx(epsilon(profile, 11, 1e-5), rel=1e-6)
    assert after["runs"][1]["rounds_counted"] == 1
    assert run("certificate", "verify", made).code == 0
    ledger.reserve(planned("open", "d", None, 5, without_noise="noiseless"))
    assert answer(run, "ledger", corpus)["epsilon"] is None
    assert "no noise was added" in run("ledger", corpus).out


def test_closing_a_signed_run_says_that_its_signature_is_gone(run, corpus, tmp_path):
    ledger, made = CorpusLedger(corpus), tmp_path / "run"
    made.mkdir()
    plan = planned("run-1", "d", RotationProfile(2.0, 0.1, 0.3), 20)
    ledger.reserve(plan)
    with RunLedger.open(made, plan, corpus) as opened:
        opened.spend()
    issue(made)
    run("certificate", "keygen", "--out", tmp_path / "key")
    assert run("certificate", "sign", made, "--key", tmp_path / "key").code == 0
    closed = run("ledger", corpus, "--close", made)
    assert "certificate.sig: removed, its certificate was replaced" in closed.err
    assert "\nthis run: epsilon" in closed.out
    assert not (made / "certificate.sig").exists()


def test_ledgers_that_are_none(run, corpus, tmp_path):
    assert "not a corpus" in run("ledger", tmp_path).err
    assert "no such ledger" in run("ledger", corpus, "--close", tmp_path).err


def test_certificate_schema(run):
    assert json.loads(run("certificate", "schema").out) == schema()


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            "users per round 99",
            "account published --method user --users 9 --users-per-round 99 --noise 2 --rounds 5",
        ),
        (
            "noise 0",
            "account published --method user --users 9 --users-per-round 3 --noise 0 --rounds 5",
        ),
        ("user rate 2", "account proven --user-rate 2 --rounds 5 --noise 1 --entity-share 0.1"),
        ("entity share 3", "account proven --user-rate 0.1 --rounds 5 --noise 1 --entity-share 3"),
        (
            "entity share nan",
            "account proven --user-rate 0.1 --rounds 5 --noise 1 --entity-share nan",
        ),
        ("noise -1", "account proven --user-rate 0.1 --rounds 5 --noise -1 --entity-share 0.1"),
        ("rounds -5", "account proven --user-rate 0.1 --rounds -5 --noise 1 --entity-share 0.1"),
        (
            "delta 1",
            "account proven --user-rate 0.1 --rounds 5 --noise 1 --entity-share 0.1 --delta 1",
        ),
        (
            "lost in rounding",
            "account proven --user-rate 0.1 --rounds 5 --noise 1 --entity-share 0.1 --delta 1e-300",
        ),
        ("holders 10", "account alg --users 9 --holders 10 --user-rate 0.1 --noise 1 --rounds 5"),
        ("left out: noise, rounds, entity share", "calibrate --epsilon 8 --user-rate 0.1"),
        ("give --user-rate, or --corpus", "calibrate --epsilon 8 --rounds 5"),
        ("give a RUN, or --noise", "account proven --user-rate 0.1 --rounds 5 --entity-share 1"),
        ("has no ledger", "account proven nowhere"),
        ("--model needs a CORPUS", "plan --epsilon 8 --users 9 --sentences 9 --model awd-lstm"),
        (
            "left out: none",
            "calibrate --epsilon 8 --user-rate 0.1 --rounds 5 --noise 1 --entity-share 0.1",
        ),
        ("epsilon 0.0", "calibrate --epsilon 0 --user-rate 0.1 --rounds 5 --entity-share 0.1"),
        (
            "delta 0",
            "calibrate --epsilon 1 --user-rate 0.1 --rounds 5 --entity-share 0.1 --delta 0",
        ),
        (
            "a single round exceeds the target",
            "calibrate --epsilon 0.01 --user-rate 0.5 --noise 0.5 --entity-share 0.1",
        ),
        (
            "too small even for a user",
            "calibrate --epsilon 0.01 --user-rate 0.5 --noise 0.5 --rounds 5",
        ),
        ("a plan needs a corpus, or --users and --sentences", "plan --epsilon 8"),
        ("must be above 0", "plan --epsilon 8 --users 0 --sentences 5"),
        ("user rate 7", "plan --epsilon 8 --users 5 --sentences 5 --user-rate 7"),
        ("no certificate", "certificate show nowhere"),
        ("no certificate", "certificate verify nowhere"),
    ],
)
def test_refusals_are_one_line_and_code_two(run, words, line):
    refused = run(*line.split())
    assert refused.code == 2
    assert refused.out == ""
    assert refused.err.startswith("error: ")
    assert refused.err.count("\n") == 1
    assert words in refused.err
