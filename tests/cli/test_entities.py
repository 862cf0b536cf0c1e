"""`uedp entities`: look, correct, and look again."""

import csv
import json
import stat

import pytest

from tests.accounting.chains import PROFILE
from tests.accounting.plans import planned
from tests.conftest import marked
from uedp.accounting.ledger import CorpusLedger
from uedp.corpus.sentence import Sentence
from uedp.corpus.store import Corpus
from uedp.entities.categories import expand_categories
from uedp.entities.detection import Detection, detect

SENTENCES = [
    marked("ann", "Bob met Zoe in Paris.", ("Bob", "PER"), ("Zoe", "PER"), ("Paris", "LOC")),
    marked("ben", "Bob rose on Monday.", ("Bob", "PER")),
    marked("cy", "Big Bob fell.", ("Big Bob", "PER")),
    Sentence("cy", "Nothing to see here."),
]


@pytest.fixture
def corpus(tmp_path):
    detection = Detection(("labels", "patterns"), categories=expand_categories("all"))
    return detect(SENTENCES, tmp_path / "c", detection).folder


def write(path, content):
    path.write_text(content)
    return path


def surfaces(folder) -> set[str]:
    return set(Corpus(folder).entities["surface"].to_pylist())


def test_the_table_goes_by_users_in_pages(run, corpus):
    first = run("entities", corpus, "--per-page", 2)
    assert first.code == 0
    assert "private" in first.out
    lines = first.out.splitlines()
    assert lines[2].split()[:3] == ["Bob", "person", "2"]
    assert "page 1 of 3, 5 entities" in first.out
    last = run("entities", corpus, "--per-page", 2, "--page", 3).out
    assert "Big Bob" in last
    assert "Zoe" not in last
    past = run("entities", corpus, "--page", 9)
    assert (past.code, past.err) == (2, "error: --page 9: there are 1 of 25 entities\n")
    assert "no entity fits" in run("entities", corpus, "--find", "Quux").out


def test_json_and_csv(run, corpus, tmp_path):
    shown = json.loads(run("entities", corpus, "--json", "--find", "bob").out)
    assert (shown["entities"], shown["pages"]) == (2, 1)
    assert shown["rows"][0]["surface"] == "Bob"
    assert shown["rows"][0]["found"] == 1.0
    file = tmp_path / "all.csv"
    file.touch(0o644)  # a file that is there is closed to others, too
    assert run("entities", corpus, "--per-page", 1, "--csv", file).code == 0
    with file.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert {row["entity"] for row in rows} == surfaces(corpus)
    assert rows[0]["by"] == "labels"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_lists_are_applied_without_detecting_again_and_add_up(run, corpus, tmp_path):
    public = write(tmp_path / "public.csv", "entity,reason\nZoe,a public figure\n")
    deny = write(tmp_path / "deny.csv", "entity,category\nnothing,misc\n")
    alias = write(tmp_path / "alias.csv", "alias,entity\nBig Bob,Bob\n")
    first = run("entities", corpus, "--public", public, "--public-list", "months")
    assert first.code == 0
    assert "before: 5 entities" in first.out
    assert surfaces(corpus) == {"Bob", "Paris", "Big Bob"}
    second = run("entities", corpus, "--deny", deny, "--alias", alias)
    assert second.code == 0
    assert surfaces(corpus) == {"Bob", "Paris", "Nothing"}
    info = Corpus(corpus).info
    assert info["declared_public"] == {"Zoe": "a public figure"}
    assert list(info["public_lists"]) == ["months"]
    third = run("entities", corpus, "--replace-lists", "--categories", "person")
    assert third.code == 0
    assert surfaces(corpus) == {"Bob", "Zoe", "Big Bob"}


def test_a_new_folder_shares_the_ledger(run, corpus, tmp_path):
    CorpusLedger(corpus).reserve(planned("first", "as it was", PROFILE, 10))
    out = tmp_path / "new"
    made = run("entities", corpus, "--categories", "person", "--out", out)
    assert made.code == 0
    assert "1 earlier runs on these texts stay in the ledger" in made.err
    assert surfaces(corpus) == {"Bob", "Zoe", "Paris", "Big Bob", "Monday"}
    CorpusLedger(out).reserve(planned("second", "new", PROFILE, 10))
    shown = run("ledger", corpus)
    assert "all 2 runs together" in shown.out
    assert "each of the 2 detections that runs used found it" in shown.out
    again = run("entities", corpus, "--out", out)
    assert (again.code, "exists already" in again.err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--public-list", "planets"), "choose among countries, currencies, months"),
        (("--overwrite",), "--overwrite: is for --out"),
        (("--category", "planets"), "unknown category"),
        (("--public", "no-such-file.csv"), "no-such-file.csv"),
    ],
)
def test_mistakes_change_nothing(run, corpus, arguments, said):
    before = (corpus / "corpus.json").read_bytes()
    refused = run("entities", corpus, *arguments)
    assert refused.code == 2
    assert said in refused.err
    assert refused.err.count("\n") == 1
    assert (corpus / "corpus.json").read_bytes() == before


def test_detect_reports_what_became_of_hits(run, tmp_path):
    source = write(tmp_path / "m.jsonl", '{"user": "a", "text": "mail a@x.example in May 2020"}\n')
    done = run("detect", source, "--out", tmp_path / "c", "--public-list", "months,currencies")
    assert done.code == 0
    assert "hits: 2, of which 0 dropped" in done.out
    assert set(Corpus(tmp_path / "c").info["public_lists"]) == {"currencies", "months"}
