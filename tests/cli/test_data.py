"""The commands as a person types them."""

import importlib
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

JSON_KEYS = {
    "warnings",
    "users",
    "sentences",
    "entities",
    "vocabulary",
    "sensitive",
    "holders",
    "sentences_per_user",
}


def test_detect_and_inspect(run, conll, tmp_path):
    out = tmp_path / "corpus"
    made = run("detect", conll, "--reader", "conll", "--detector", "labels", "--out", out)
    assert made.code == 0
    assert "2 users, 4 sentences, 3 of them sensitive, 5 entities" in made.out
    assert made.err == ""  # no progress bar where there is no terminal
    shown = run("inspect", out, "--json", "--plot", tmp_path / "h.png")
    numbers = json.loads(shown.out)
    assert set(numbers) == JSON_KEYS
    assert numbers["sensitive"]["all"] == 3
    assert numbers["holders"]["max"] == 2
    assert (tmp_path / "h.png").read_bytes().startswith(b"\x89PNG")
    table = run("inspect", out)
    assert "vocabulary" in table.out
    assert "EU" in table.out


def test_ag_users_are_formed(run, tmp_path):
    source = tmp_path / "ag.csv"
    source.write_text("label,text\n" + "".join(f"{i % 4 + 1},story {i}\n" for i in range(300)))
    assert run("detect", source, "--reader", "ag", "--out", tmp_path / "a").code == 0
    users = json.loads(run("inspect", tmp_path / "a", "--json").out)
    assert 17 <= users["users"] <= 24
    assert users["sentences"] == 300
    run("detect", source, "--reader", "ag", "--assign-users", "30,0", "--out", tmp_path / "b")
    assert json.loads(run("inspect", tmp_path / "b", "--json").out)["users"] == 10


def test_coverage(run, tmp_path):
    source = tmp_path / "m.jsonl"
    rows = [
        {
            "user": "a",
            "text": "to ann@x.example",
            "marks": [{"start": 3, "end": 16, "label": "EMAIL"}],
        },
        {"user": "b", "text": "hi Ann", "marks": [{"start": 3, "end": 6, "label": "PERSON"}]},
    ]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run("detect", source, "--detector", "labels", "--out", tmp_path / "c")
    result = json.loads(run("coverage", tmp_path / "c", "--detector", "patterns", "--json").out)
    assert result["categories"]["contact"]["span_recall_exact"] == 1.0
    assert result["categories"]["person"]["sentence_recall"] == 0.0
    assert result["categories"]["all"]["sentence_recall"] == 0.5
    assert result["precision"]["contact"]["precision"] == 1.0
    assert result["false_hits"]["usable"] == 1.0
    assert result["misses"]["categories"]["contact"]["found_everywhere"] == 1
    assert result["misses"]["categories"]["person"]["epsilon"]["p50"] > result["misses"]["epsilon"]
    shown = run("coverage", tmp_path / "c", "--detector", "patterns", "--by-label").out
    assert "sentences found" in shown
    assert "PERSON" in shown
    assert "precision" in shown
    assert "false hits: a round can use 100.0% of the sentences; without them 100.0%" in shown
    assert "in a run with epsilon 8 (200 rounds, user rate 0.1, entity share 0.3)" in shown


def test_coverage_of_a_corpus_as_it_is_can_be_put_on_record(run, tmp_path):
    source = tmp_path / "m.jsonl"
    row = {"user": "a", "text": "hi Ann", "marks": [{"start": 3, "end": 6, "label": "PERSON"}]}
    source.write_text(json.dumps(row) + "\n")
    made = tmp_path / "c"
    run("detect", source, "--marks", "marks", "--detector", "patterns", "--out", made)
    before = (made / "corpus.json").read_bytes()
    shown = run("coverage", made)
    assert "recall of patterns" in shown.out
    assert (made / "corpus.json").read_bytes() == before
    assert "leave out --detector" in run("coverage", made, "--record", "--detector", "labels").err
    assert run("coverage", made, "--record").code == 0
    recorded = json.loads((made / "corpus.json").read_text())
    assert recorded["coverage"] == {
        "marks": 1,
        "sentences_found": 0,
        "sentences_complete": 0,
        "precision": None,  # there is no mention
    }
    assert {**recorded, "coverage": None} == {**json.loads(before), "coverage": None}


def test_deidentify(run, conll, tmp_path):
    run("detect", conll, "--reader", "conll", "--detector", "labels", "--out", tmp_path / "c")
    made = run("deidentify", tmp_path / "c", "--out", tmp_path / "d")
    assert "6 mentions replaced" in made.out
    assert json.loads(run("inspect", tmp_path / "d", "--json").out)["sensitive"]["all"] == 0


def test_split_and_skip(run, tmp_path):
    source = tmp_path / "x.jsonl"
    source.write_text('{"user": "a", "text": "One. Two."}\n{"user": "", "text": "Three."}\n')
    made = run("detect", source, "--split", "en", "--skip-invalid", "--out", tmp_path / "c")
    assert "2 sentences" in made.out
    assert "skipped 1 invalid records" in made.err


def test_sample_to_breakdown(run, tmp_path):
    messages = tmp_path / "m.jsonl"
    assert run("sample", "--out", messages, "--people", 20).code == 0
    assert run("sample", "--out", messages).code == 2
    made = run(
        "detect",
        messages,
        "--label",
        "label",
        "--detector",
        "labels,patterns",
        "--out",
        tmp_path / "c",
    )
    assert made.code == 0
    assert json.loads(run("inspect", tmp_path / "c", "--json").out)["sensitive"]["contact"] > 0


def test_categories(run):
    listed = json.loads(run("categories", "--json").out)
    assert "PER" in listed["categories"]["person"]["CoNLL-2003, Stanza (four classes)"]
    assert run("categories").out.splitlines()[0].startswith("category")


REFUSED = {
    "missing file": (["detect", "nowhere.jsonl", "--out", "o"], "nowhere.jsonl: no such file"),
    "unknown reader": (["detect", "good.jsonl", "--reader", "xml", "--out", "o"], "unknown reader"),
    "unknown detector": (["detect", "good.jsonl", "--detector", "magic", "--out", "o"], "'magic'"),
    "detector argument": (
        ["detect", "good.jsonl", "--detector", "labels:x", "--out", "o"],
        "no argument",
    ),
    "unknown category": (
        ["detect", "good.jsonl", "--categories", "people", "--out", "o"],
        "--categories people: unknown",
    ),
    "missing column": (["detect", "good.jsonl", "--text", "body", "--out", "o"], "good.jsonl:1:"),
    "broken line": (["detect", "bad.jsonl", "--out", "o"], "bad.jsonl:2:"),
    "existing folder": (["detect", "good.jsonl", "--out", "taken"], "exists already"),
    "out under a file": (["detect", "good.jsonl", "--out", "good.jsonl/o"], "good.jsonl"),
    "assign nonsense": (
        ["detect", "good.jsonl", "--assign-users", "x", "--out", "o"],
        "such as 15,2",
    ),
    "assign three": (
        ["detect", "good.jsonl", "--assign-users", "15,2,1", "--out", "o"],
        "such as 15,2",
    ),
    "assign not a number": (
        ["detect", "good.jsonl", "--assign-users", "nan,2", "--out", "o"],
        "mean must be at least 1",
    ),
    "assign without end": (
        ["detect", "good.jsonl", "--assign-users", "15,inf", "--out", "o"],
        "both finite",
    ),
    "assign before reading": (
        ["detect", "bad.jsonl", "--assign-users", "0", "--out", "o"],
        "mean must be at least 1",
    ),
    "seed below zero": (
        ["detect", "good.jsonl", "--assign-users", "15", "--seed", "-1", "--out", "o"],
        "--seed -1",
    ),
    "users from a pipe": (
        ["detect", "pipe", "--reader", "jsonl", "--assign-users", "15", "--out", "o"],
        "pipe: a pipe; users are formed in two readings",
    ),
    "AG from a pipe": (["detect", "pipe", "--reader", "ag", "--out", "o"], "in two readings"),
    "no such language": (["detect", "good.jsonl", "--split", "English", "--out", "o"], "--split"),
    "column that would beep": (
        ["detect", "good.jsonl", "--text", "b\n\x1b[31m\x07", "--out", "o"],
        "no column",
    ),
    "file that is not allowed": (["detect", "n" * 300 + ".jsonl", "--out", "o"], "too long"),
    "name that is not allowed": (["detect", "good.jsonl", "--out", "n" * 300], "too long"),
    "deep and bad": (["detect", "bad.jsonl", "--out", "a/b/c"], "bad.jsonl:2:"),
    "sample into nowhere": (["sample", "--out", "nodir/x.jsonl"], "nodir: no such folder"),
    "sample onto a file": (["sample", "--out", "good.jsonl"], "exists already"),
    "sample twice the same": (
        ["sample", "--out", "x.jsonl", "--held-out", "x.jsonl"],
        "x.jsonl: named twice",
    ),
    "sample of few": (
        ["sample", "--out", "x.jsonl", "--held-out", "y.jsonl", "--people", 4],
        "at least 5 are needed",
    ),
    "no workers": (["detect", "good.jsonl", "--workers", "0", "--out", "o"], "--workers 0"),
    "not a corpus": (["inspect", "taken"], "taken: not a corpus"),
    "plot format": (["inspect", "corpus", "--plot", "h.txt"], "h.txt"),
    "no marks": (["coverage", "corpus", "--detector", "patterns"], "corpus: has no human marks"),
    "no marks to wait for": (["coverage", "corpus", "--detector", "magic"], "no human marks"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_user_errors_are_one_line_and_leave_nothing(case, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("good.jsonl").write_text('{"user": "a", "text": "fine"}\n')
    Path("bad.jsonl").write_text('{"user": "a", "text": "fine"}\n{"user": "a", "text": \n')
    Path("taken").mkdir()
    os.mkfifo("pipe")
    assert run("detect", "good.jsonl", "--out", "corpus").code == 0
    before = sorted(str(p) for p in tmp_path.rglob("*"))
    arguments, expected = REFUSED[case]
    outcome = run(*arguments)
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.startswith("error: ")
    assert len(outcome.err.splitlines()) == 1
    assert outcome.err.rstrip("\n").isprintable()
    assert expected in outcome.err
    assert sorted(str(p) for p in tmp_path.rglob("*")) == before


def _damage_incidence(corpus: Path) -> None:
    (corpus / "incidence" / "sentence_user.npy").unlink()


def _damage_manifest(corpus: Path) -> None:
    (corpus / "corpus.json").write_text("")


def _damage_mentions(corpus: Path) -> None:
    path = corpus / "mentions.arrow"
    path.write_bytes(path.read_bytes()[:-9])


@pytest.mark.parametrize(
    ("damage", "file"),
    [
        (_damage_incidence, "sentence_user.npy"),
        (_damage_manifest, "corpus.json"),
        (_damage_mentions, "mentions.arrow"),
    ],
)
def test_a_damaged_corpus_is_the_users_to_mend(damage, file, run, conll, tmp_path):
    corpus = tmp_path / "corpus"
    run("detect", conll, "--reader", "conll", "--detector", "labels", "--out", corpus)
    damage(corpus)
    outcome = run("inspect", corpus)
    assert outcome.code == 2
    assert len(outcome.err.splitlines()) == 1
    assert file in outcome.err


@pytest.mark.parametrize(
    "error",
    [
        OSError("8192 requested and 4096 written"),  # NumPy's, which has no number
        OSError(28, "Error writing bytes to file. Detail: No space left on device"),  # Arrow's
        OSError(27, "File too large", "x"),
    ],
    ids=["numpy", "arrow", "system"],
)
def test_a_full_disk_is_a_user_error(error, run, conll, tmp_path, monkeypatch):
    def full(*arguments, **options):
        raise error

    monkeypatch.setattr("numpy.save", full)
    before = sorted(tmp_path.rglob("*"))
    outcome = run("detect", conll, "--reader", "conll", "--out", tmp_path / "a" / "corpus")
    assert outcome.code == 2
    assert len(outcome.err.splitlines()) == 1
    assert re.search("(room|space left) on the disk", outcome.err)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_file_that_cannot_grow(conll, tmp_path):
    """The same with the system's own limit, at whichever write it strikes."""
    limited = (
        "import resource, uedp.cli; resource.setrlimit(resource.RLIMIT_FSIZE, (600, 600)); "
        f"uedp.cli.main(['detect', {str(conll)!r}, '--reader', 'conll', '--out', 'corpus'])"
    )
    made = subprocess.run(
        [sys.executable, "-c", limited], capture_output=True, text=True, cwd=tmp_path
    )
    assert made.returncode == 2, made.stderr
    assert len(made.stderr.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == [conll.name]


def test_what_a_terminal_would_obey_is_shown_as_text(run, tmp_path):
    source = tmp_path / "x.jsonl"
    mark = {"start": 0, "end": 4, "label": "PER\x1b[2J"}
    rows = [
        {"user": "a", "text": "A\n\x1bB met", "marks": [mark]},
        {"user": "a", "text": "b", "marks": [{"start": 0, "end": 9, "label": "\x1b[2J"}]},
    ]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = run(
        *("detect", source, "--detector", "labels", "--skip-invalid", "--out", tmp_path / "c")
    )
    assert "skipped 1 invalid" in made.err
    shown = run("inspect", tmp_path / "c").out
    assert "A\\n\\x1bB" in shown
    covered = run("coverage", tmp_path / "c", "--detector", "labels", "--by-label").out
    assert "PER\\x1b[2J" in covered
    assert "\x1b" not in made.err + made.out + shown + covered


def test_coverage_works_beside_the_corpus_and_leaves_nothing(run, conll, tmp_path, monkeypatch):
    corpus = tmp_path / "corpus"
    run("detect", conll, "--reader", "conll", "--detector", "labels", "--out", corpus)
    before = sorted(tmp_path.rglob("*"))
    places = []
    module = importlib.import_module("uedp.entities.coverage")
    real = module.detect

    def watched(sentences, out, *arguments, **options):
        places.append(out)
        return real(sentences, out, *arguments, **options)

    monkeypatch.setattr(module, "detect", watched)
    monkeypatch.chdir(corpus)
    assert run("coverage", ".", "--detector", "labels").code == 0
    ((place,),) = [places]
    assert place.parent.parent == tmp_path
    assert place.parent.name.startswith(".corpus.")
    assert sorted(tmp_path.rglob("*")) == before


def test_pipes_are_read_once(run, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    line = '{"user": "a", "text": "fine"}\n'
    writer = threading.Thread(target=pipe.write_text, args=(line,))
    writer.start()
    assert run("detect", pipe, "--reader", "jsonl", "--out", tmp_path / "c").code == 0
    writer.join()


@pytest.mark.parametrize("reader", ["jsonl", "json", "csv"])
def test_users_are_held_out_of_a_pipe(reader, run, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    rows = [{"user": f"user {n % 30}", "text": f"One {n}. Two {n}."} for n in range(90)]
    text = {
        "jsonl": "".join(json.dumps(row) + "\n" for row in rows),
        "json": json.dumps(rows),
        "csv": "user,text\n" + "".join(f"{row['user']},{row['text']}\n" for row in rows),
    }[reader]
    writer = threading.Thread(target=pipe.write_text, args=(text,))
    writer.start()
    made = run(
        *("detect", pipe, "--reader", reader, "--out", tmp_path / "c"),
        *("--hold-out", tmp_path / "h", "--hold-out-share", 0.3),
    )
    writer.join()
    assert made.code == 0
    sizes = [json.loads((tmp_path / name / "corpus.json").read_text()) for name in ("c", "h")]
    assert sum(size["users"] for size in sizes) == 30
    assert sum(size["sentences"] for size in sizes) == 180
    assert [line.split(":")[0] for line in made.out.splitlines()] == [
        str(tmp_path / "c"),
        str(tmp_path / "h"),
    ]
    assert "--evaluate" in made.err
    assert "no guarantee covers them" in made.err


def test_what_mail_leaves_out_is_told(run, tmp_path):
    (tmp_path / "x.eml").write_text("From: a@b.example\n\nHi. Bye.\n\nOn Monday, Ben wrote:\n> x\n")
    made = run("detect", tmp_path, "--out", tmp_path / "c")
    assert "left out of the mail: 2 quoted lines" in made.err
    assert "split 1 of 1 texts into sentences (--no-split keeps texts whole)" in made.err
    assert run("detect", tmp_path, "--out", tmp_path / "d", "--no-split").code == 0
    assert "1 sentences" in run("detect", tmp_path, "--out", tmp_path / "e", "--no-split").out


def test_skipped_records_are_counted_once(run, tmp_path):
    source = tmp_path / "x.jsonl"
    source.write_text('{"text": "one"}\n{broken\n{"text": "two"}\n')
    made = run(
        *("detect", source, "--assign-users", "1,0", "--skip-invalid", "--out", tmp_path / "c")
    )
    assert "2 users, 2 sentences" in made.out
    assert made.err.startswith("skipped 1 invalid records, the first: ")


def test_module_runs_and_a_bug_shows_its_traceback(tmp_path):
    listed = subprocess.run(
        [sys.executable, "-m", "uedp", "--help"], capture_output=True, text=True
    )
    assert listed.returncode == 0
    assert "detect" in listed.stdout
    broken = (
        "import uedp.corpus.store as s, uedp.cli; s.Corpus = None; uedp.cli.main(['inspect', 'x'])"
    )
    crash = subprocess.run([sys.executable, "-c", broken], capture_output=True, text=True)
    assert crash.returncode == 70
    assert "Traceback" in crash.stderr


def test_help_is_quick():
    """Heavy libraries must not load before they are needed."""
    heavy = ("torch", "spacy", "matplotlib", "datasets")
    probe = f"import sys, uedp.cli; print([m for m in {heavy} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    assert found.stdout.strip() == "[]"
