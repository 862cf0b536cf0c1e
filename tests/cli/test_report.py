"""The command `uedp report`."""

import json

import pytest

from tests.report.runs import finished_run
from tests.report.test_attacks import mechanism


@pytest.fixture
def here(tmp_path, monkeypatch):
    finished_run(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_report_lies_in_the_folder_of_its_run_which_still_verifies(here, run):
    for kind, name in (("internal", "report.html"), ("public", "report-public.html")):
        made = run("report", "run", "--kind", kind)
        assert made.code == 0
        assert made.out.startswith(f"{kind} report: run/{name}\n")
        assert ("do not publish it" in made.out) == (kind == "internal")
        assert (here / "run" / name).read_text().startswith("<!doctype html>")
    assert run("certificate", "verify", "run").code == 0


def test_a_run_that_does_not_verify_is_reported_and_exits_with_1(here, run):
    (here / "run" / "model.safetensors").write_bytes(b"others")
    made = run("report", "run", "--out", "out/page.html")
    assert made.code == 1
    assert made.err == "error: run: does not verify; the report says why\n"
    assert "This run does not verify" in (here / "out" / "page.html").read_text()


def test_audits_are_shown_and_open_questions_name_flags(here, run):
    (here / "audit.json").write_text(json.dumps(mechanism()))
    assert run("report", "run", "--audit", "audit.json").code == 0
    page = (here / "run" / "report.html").read_text()
    assert "What attacks really reached" in page
    assert "verify it with --public-key" in page
    assert "public_key=" not in page


def test_the_corpus_is_described_and_must_know_the_run(here, run, conll):
    assert (
        run("detect", conll, "--reader", "conll", "--out", "corpus", "--detector", "labels").code
        == 0
    )
    made = run("report", "run", "--corpus", "corpus")
    assert made.code == 1
    page = (here / "run" / "report.html").read_text()
    assert "What the corpus holds" in page
    assert "Record of the corpus" in page
    assert "guesses are right" not in page


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("none",), "error: none: no such folder; name the folder of a run\n"),
        (("run", "run"), "error: a run is named twice; name each once\n"),
        (("run", "--out", "run"), "error: --out run: is a folder; name a file\n"),
        (("run", "--audit", "no"), "error: no: no such file; name the result of an audit\n"),
    ],
)
def test_mistakes_are_one_line(here, run, arguments, said):
    made = run("report", *arguments)
    assert (made.code, made.err) == (2, said)
