"""Natural mistakes of a new user: each is one line that says what is wrong and what to type."""

import json
import shlex
import sys

import openpyxl
import pytest

ROWS = [
    {"author": f"user {n % 12}", "body": f"Hello {n}, write to a{n}@x.example"} for n in range(60)
]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder as a person may have it: messages in many forms, a corpus, a config."""
    from uedp.entities.build import build_corpus

    folder = tmp_path_factory.mktemp("mistakes")

    def csv(name, header, delimiter=",", encoding="utf-8", rows=ROWS):
        lines = [delimiter.join(header)]
        lines += [f'{row["author"]}{delimiter}"{row["body"]}"' for row in rows]
        (folder / name).write_bytes("\n".join(lines).encode(encoding))

    csv("messages.csv", ("author", "body"))
    csv("ready.csv", ("user", "text"))
    csv("semicolons.csv", ("user", "text"), ";")
    csv("utf16.csv", ("user", "text"), encoding="utf-16-le")
    latin = [{"author": "Zoë", "body": "Grüße"}]
    csv("latin.csv", ("user", "text"), encoding="latin-1", rows=latin)
    csv("one.csv", ("user", "text"), rows=[{**row, "author": "me"} for row in ROWS])
    strangers = [{**row, "author": f"id-{n}"} for n, row in enumerate(ROWS)]
    csv("strangers.csv", ("user", "text"), rows=strangers)
    (folder / "numbers.jsonl").write_text('{"user": "a", "text": 17}\n')
    (folder / "nested.jsonl").write_text('{"user": {"id": 4}, "text": "hi"}\n')
    (folder / "empty.jsonl").write_text("")
    (folder / "array.jsonl").write_text(json.dumps(ROWS, indent=1))
    (folder / "lines.json").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (folder / "notes.txt").write_text("Hello\n")
    (folder / "old.xls").write_bytes(b"\xd0\xcf")
    (folder / "pictures").mkdir()
    (folder / "pictures" / "a.jpg").touch()
    book = openpyxl.Workbook()
    book.active.append(["user", "text"])
    book.save(folder / "book.xlsx")
    columns = {"user": "author", "text": "body", "on_warning": lambda _: None}
    build_corpus(folder / "messages.csv", folder / "corpus", **columns)
    (folder / "taken").mkdir()
    (folder / "taken" / "thesis.tex").touch()
    (folder / "public.csv").write_text("entity,reason\nParis,\n")
    config = "privacy: {epsilon: 8}\ndata: {train: corpus}\nmodel: {name: awd-lstm}\n"
    (folder / "epsilom.yaml").write_text(config.replace("epsilon", "epsilom"))
    (folder / "optimizer.yaml").write_text(f"{config}optimizer: {{rate: 0.1}}\n")
    (folder / "config.yaml").write_text(config)
    (folder / "short").write_text("00ff")
    (folder / "started").mkdir()
    (folder / "started" / "config.yaml").write_text(config)
    return folder


SMALL = "--set 'model.sizes={hidden_size: 8, embedding_size: 8, num_hidden_layers: 1}' "
SMALL += "--rounds 5 --user-rate 0.5 --set privacy.entity_share=0.3"
DETECT = "detect ready.csv --out new "
MODEL = "--model awd-lstm --tokenizer bytes "
TRAIN = f"train --corpus corpus {MODEL}--out new --epsilon 8 "
SERVER = "federate server --federation f --out new"
ROUNDS = "config.yaml --set privacy.rounds=5 --set privacy.user_rate=0.5"
# what is typed: what the error must say, the remedy last
MISTAKES = {
    "detect messages.csv --out new": (
        "messages.csv:1: no column 'user' or 'text'; the columns are author, body",
        "name them with --user author, --text body",
    ),
    "detect messages.csv --out new --user author --text bodi": (
        "no column 'bodi'",
        "name it with --text body",
    ),
    "detect nowhere.csv --out new": ("nowhere.csv: no such file", "check the path"),
    "detect empty.jsonl --out new": ("empty.jsonl: holds no sentences", "check the data"),
    "detect array.jsonl --out new": ("JSON over several lines", "use --reader json"),
    "detect lines.json --out new --user author --text body": (
        "an object without an array",
        "use --reader jsonl",
    ),
    "detect notes.txt --out new": ("notes.txt: no known suffix", "by --reader: ag, conll, csv"),
    "detect old.xls --out new": ("this format has no reader", "save it as .xlsx or .csv"),
    "detect semicolons.csv --out new --delimiter ,": (
        "semicolons.csv:1: a single column",
        "use --delimiter ';'",
    ),
    "detect utf16.csv --out new": ("UTF-16 without a byte order mark", "use --encoding utf-16-le"),
    "detect latin.csv --out new": ("latin.csv:2: invalid UTF-8", "use --encoding cp1252"),
    "detect pictures --out new --reader eml": ("holds no .eml file", "check the folder"),
    "detect pictures --out new": ("not a data set saved with save_to_disk", "pictures"),
    "detect book.xlsx --out new": ("openpyxl cannot be imported", "run `pip install 'uedp[xlsx]'`"),
    "detect numbers.jsonl --out new": ("'text' holds 17 (int), not text", "with --text"),
    "detect nested.jsonl --out new": ("an object with id", "a user is a string or a whole number"),
    DETECT + "--detector pattern": ("'pattern': unknown", "did you mean patterns?"),
    DETECT + "--reader excel": (
        "--reader excel: unknown reader",
        "presidio-research, txt, xlsx",
    ),
    DETECT + "--reader josnl": ("--reader josnl: unknown reader", "did you mean jsonl?"),
    DETECT + "--categories persons": ("unknown category", "did you mean person?"),
    DETECT + "--allow-list public.csv": ("public.csv:2: empty 'reason'", "give the reason"),
    DETECT + "--hold-out new": ("one lies in the other", "choose another folder"),
    DETECT + "--hold-out h --hold-out-share 10": ("--hold-out-share 10", "such as 0.1"),
    "detect one.csv --out new --hold-out h": ("of 1 users", "more users"),
    "detect ready.csv --out corpus": ("exists already", "or use --overwrite"),
    "detect ready.csv --out taken --overwrite": ("exists and is not a corpus", "move it away"),
    "inspect ready.csv": ("ready.csv: not a corpus", "make one with `uedp detect`"),
    TRAIN.replace("--corpus corpus", "--corpus ready.csv"): (
        "ready.csv: not a corpus",
        "make one with `uedp detect`",
    ),
    "train corpus --out new": ("corpus: is a corpus, not a config", "name it with --corpus"),
    "train ready.csv --out new": ("ready.csv", "sections such as privacy, data and model"),
    "train epsilom.yaml --out new": ("privacy.epsilom: no such field", "did you mean"),
    "train optimizer.yaml --out new": ("optimizer: no such field", "did you mean optimiser"),
    TRAIN.replace("epsilon 8", "epsilon 0"): ("privacy.epsilon (--epsilon) 0", "greater than 0"),
    TRAIN + f"{SMALL} --delta 0.5": (
        "privacy.delta (--delta) 0.5: must be below",
        "choose 0.008 or less",
    ),
    TRAIN + "--evaluate corpus": ("is the training corpus", "name a corpus of other users"),
    TRAIN.replace(MODEL, "--model models/none "): (
        "models/none",
        "name a folder with a saved model",
    ),
    TRAIN.replace("--out new", "--out taken"): ("taken", "choose another"),
    "train --resume --out new": ("new: holds no run to resume", "leave out --resume"),
    "evaluate taken": ("taken", "run"),
    TRAIN.replace("--tokenizer bytes ", ""): ("a new model needs a public", "--tokenizer"),
    "certificate show new": ("new", "run"),
    "report corpus": ("corpus: is a corpus, not a run", "name a folder that training wrote"),
    "account proven corpus": ("corpus: is a corpus, not a run", "name a folder"),
    "evaluate corpus": ("corpus: not a run directory", "name one that training wrote"),
    "train started --out new": ("started: is a run, not a config", "name started/config.yaml"),
    "doctor ready.csv": ("ready.csv: is a file", "name the folder of a corpus or a run"),
    "trian": ("no such command 'trian'; did you mean 'train'?", "see `uedp --help`"),
    "train --epsilom 8": ("no such option: --epsilom (there is --epsilon)", "uedp train --help"),
    "calibrate --epsilon eight": ("invalid value for '--epsilon': not a number", "--help"),
    "calibrate": ("missing option '--epsilon'", "see `uedp calibrate --help`"),
    "entities corpus --category place": ("--category place: unknown category", "choose among"),
    "federate client config.yaml --corpus corpus --key none": (
        "none: holds no key of a federation",
        "and not to the server",
    ),
    "federate client config.yaml --corpus corpus --key short --server host": (
        "short: holds no key of a federation",
    ),
    f"{SERVER} config.yaml": ("privacy.rounds: cannot be chosen by the time", "set it"),
    f"{SERVER} config.yaml --wait soon": ("--wait soon", "write a number with s, m, h or d"),
    f"{SERVER} config.yaml --certificate a.pem": ("give --certificate, --private-key and",),
    f"{SERVER} {ROUNDS} --set privacy.method=uedp-alg --set privacy.epsilon=null "
    "--set privacy.noise=9": (
        "privacy.method uedp-alg: its updates cannot come from clients",
        "choose rotation",
    ),
    f"{SERVER} {ROUNDS} --host 192.0.2.1": ("192.0.2.1: another machine needs TLS", "--authority"),
}


def test_there_are_at_least_twenty():
    assert len(MISTAKES) >= 20


@pytest.mark.parametrize("typed", MISTAKES)
def test_a_mistake_is_explained(typed, run, made, monkeypatch):
    monkeypatch.chdir(made)
    if "xlsx" in typed:
        monkeypatch.setitem(sys.modules, "openpyxl", None)
    before = sorted(made.rglob("*"))
    found = run(*shlex.split(typed))
    assert found.code == 2
    assert found.err.startswith("error: ")
    assert found.err.count("\n") == 1
    assert "Traceback" not in found.err
    for words in MISTAKES[typed]:
        assert words in found.err
    assert sorted(made.rglob("*")) == before


# what is not wrong, but looks so
DOUBTS = {
    "detect one.csv --out one": "by only one user",
    "detect strangers.csv --out strangers": "every text has a user of its own",
}


@pytest.mark.parametrize("typed", DOUBTS)
def test_a_doubt_is_told(typed, run, made, monkeypatch):
    monkeypatch.chdir(made)
    found = run(*shlex.split(typed))
    assert found.code == 0
    assert "--user" in found.err
    assert DOUBTS[typed] in found.err
