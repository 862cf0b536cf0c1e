"""A corpus from a file, a DataFrame or a data set."""

import json
from contextlib import contextmanager

import datasets
import numpy as np
import pandas
import pyarrow as pa
import pytest

from uedp.corpus.readers import SkippedRecords
from uedp.corpus.store import Corpus
from uedp.entities import build
from uedp.entities.build import build_corpus
from uedp.errors import UserError

ROWS = [
    {"who": who, "body": body, "topic": topic, "gold": gold}
    for who, body, topic, gold in (
        ("ann", "Ask Bob Lee at bob@mail.example.", "mail", [(4, 11, "PER")]),
        ("ben", "Bob Lee called on 12 March 2024. Zoë did not.", None, []),
        ("ann", "Nothing to see. Truly nothing.", "talk", []),
        ("zoë", "BOB LEE paid $30.", "mail", [(0, 7, "PER")]),
    )
]
for row in ROWS:
    row["gold"] = [dict(zip(("start", "end", "label"), mark, strict=True)) for mark in row["gold"]]
COLUMNS = {"user": "who", "text": "body", "label": "topic", "marks": "gold"}
DETECTORS = ("patterns", "labels")
OPTIONS = {
    "plain": {},
    "split and normalised": {"split": "en", "normalise": True},
    "assigned users": {"assign_users": (2, 0), "seed": 3},
    "one category": {"categories": "person", "propagate": False},
}


# of the four texts, two hold two sentences
SPLIT = {
    "language": "en",
    "texts": 4,
    "divided": 2,
    "sentences": 6,
    "max_words": 100,
    "cuts": 0,
}


def files_of(corpus: Corpus) -> dict[str, bytes]:
    """Every file; the manifest without the name of the source."""
    found = {
        str(path.relative_to(corpus.folder)): path.read_bytes()
        for path in sorted(corpus.folder.rglob("*"))
        if path.is_file() and path.name != "corpus.json"
    }
    origin = {
        key: value for key, value in corpus.info["source"].items() if key not in ("file", "reader")
    }
    return {**found, "corpus.json": json.dumps({**corpus.info, "source": origin}).encode()}


@pytest.fixture
def jsonl(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@pytest.fixture
def frame():
    return pandas.DataFrame(ROWS)


@pytest.fixture
def dataset():
    return datasets.Dataset.from_list(ROWS)


@pytest.mark.parametrize("case", OPTIONS)
def test_the_same_rows_give_the_same_corpus(case, tmp_path, jsonl, frame, dataset):
    sources = {"path": jsonl, "frame": frame, "dataset": dataset}
    if case == "plain":
        dataset.save_to_disk(str(tmp_path / "saved"))
        frame.to_parquet(tmp_path / "rows.parquet")
        sources |= {
            "string": str(jsonl),
            "reversed twice": dataset.select([3, 2, 1, 0]).select([3, 2, 1, 0]),
            "saved": tmp_path / "saved",
            "parquet": tmp_path / "rows.parquet",
        }
    corpora = {
        name: build_corpus(
            source, tmp_path / f"{name}.corpus", detectors=DETECTORS, **COLUMNS, **OPTIONS[case]
        )
        for name, source in sources.items()
    }
    expected = files_of(corpora["path"])
    assert {"sentences.arrow", "mentions.arrow", "incidence/sentence_user.npy"} < set(expected)
    assert corpora["path"].info["mentions"] >= 2
    for name, corpus in corpora.items():
        assert files_of(corpus) == expected, name


def test_the_source_is_on_record(tmp_path, jsonl, frame, dataset):
    for source, expected in (
        (jsonl, {"file": "rows.jsonl", "reader": "jsonl"}),
        (frame, {"file": None, "reader": "DataFrame"}),
        (dataset, {"file": None, "reader": "Dataset"}),
    ):
        corpus = build_corpus(
            source, tmp_path / expected["reader"], user="who", text="body", assign_users=(2, 1)
        )
        assert corpus.info["source"] == {**expected, "assigned_users": "2,1", "split": SPLIT}


def test_a_dataset_keeps_its_own_order_and_ignores_its_format(tmp_path, dataset):
    turned = dataset.select([3, 1]).with_format("numpy")
    corpus = build_corpus(turned, tmp_path / "c", user="who", text="body")
    assert " ".join(s.text for s in corpus) == f"{ROWS[3]['body']} {ROWS[1]['body']}"


class Stream:
    """A table known by Arrow's C stream alone, with string views, as polars has."""

    def __init__(self, table):
        views = [
            column.cast(pa.string_view()) if pa.types.is_string(column.type) else column
            for column in table.columns
        ]
        self._table = pa.table(views, names=table.column_names)

    def __arrow_c_stream__(self, requested_schema=None):
        return self._table.__arrow_c_stream__(requested_schema)


def test_tables_with_an_arrow_stream(tmp_path, frame):
    expected = list(build_corpus(frame, tmp_path / "frame", **COLUMNS))
    table = pa.Table.from_pylist(ROWS)
    for number, source in enumerate((table, Stream(table))):
        assert list(build_corpus(source, tmp_path / str(number), **COLUMNS)) == expected


def test_missing_values_and_marks_in_arrays(tmp_path):
    frame = pandas.DataFrame(
        {
            "user": pandas.array([1, 1, None], dtype="Int64"),
            "text": pandas.Categorical(["Ann", "x", "y"]),
            "label": [np.nan, 2.5, np.nan],
            "marks": [np.array([{"start": 0, "end": 3, "label": "PER"}]), None, []],
        }
    )
    skipped = SkippedRecords()
    corpus = build_corpus(
        frame,
        tmp_path / "c",
        label="label",
        detectors=["labels"],
        skip_invalid=skipped,
    )
    assert [(s.user, s.text, s.label) for s in corpus] == [("1", "Ann", None), ("1", "x", "2.5")]
    assert corpus.info["mentions"] == 1
    assert (skipped.count, skipped.first.split(";")[0]) == (
        1,
        "DataFrame: row 3: null user in 'user'",
    )


def test_invalid_records_stop_it_unless_skipped(tmp_path, jsonl):
    jsonl.write_text(jsonl.read_text() + '{"who": "eve"}\n')
    with pytest.raises(UserError, match=r"rows.jsonl:5: no column 'body'"):
        build_corpus(jsonl, tmp_path / "c", user="who", text="body")
    assert not (tmp_path / "c").exists()
    kept = build_corpus(jsonl, tmp_path / "c", user="who", text="body", skip_invalid=True)
    assert len(kept) == SPLIT["sentences"]


def test_bad_tables_are_refused_by_name(tmp_path, frame, dataset):
    def refused(source, match, **options):
        with pytest.raises(UserError, match=match):
            build_corpus(source, tmp_path / "c", **{"user": "who", "text": "body", **options})
        assert not (tmp_path / "c").exists()

    refused(datasets.DatasetDict(train=dataset), "DatasetDict: holds train; give one")
    refused([1, 2], "list: give a path, a pandas or polars DataFrame, or a datasets.Dataset")
    refused(frame, "DataFrame: no column 'txt'; the columns are who, body", text="txt")
    refused(dataset, "Dataset: no column 'txt'; the columns are who, body", text="txt")
    refused(frame.iloc[:0], "DataFrame: holds no sentences")
    refused(frame.assign(who=["a", 1, 2, 3]), "DataFrame: column 'who' mixes types")
    refused(frame.assign(body=pandas.Timestamp("2024-01-01")), "'body' holds timestamp")
    twice = frame.rename(columns={"topic": "who"})
    refused(twice, "DataFrame: two columns are called 'who'")


def test_an_existing_corpus_is_replaced_only_when_asked(tmp_path, frame):
    folder = tmp_path / "c"
    build_corpus(frame, folder, user="who", text="body")
    with pytest.raises(UserError, match="`overwrite=True`"):
        build_corpus(frame[:2], folder, user="who", text="body")
    assert Corpus(folder).users == 3
    assert build_corpus(frame[:2], folder, user="who", text="body", overwrite=True).users == 2


def test_lists_apply(tmp_path, frame):
    (tmp_path / "allow.csv").write_text("entity,reason\nbob@mail.example,published\n")
    (tmp_path / "deny.csv").write_text("entity,category\nBob Lee,person\n")
    corpus = build_corpus(
        frame,
        tmp_path / "c",
        user="who",
        text="body",
        allow_list=tmp_path / "allow.csv",
        deny_list=str(tmp_path / "deny.csv"),
    )
    assert corpus.info["declared_public"] == {"bob@mail.example": "published"}
    assert corpus.entities["surface"].to_pylist() == ["Bob Lee", "12 March 2024", "$30"]


# --- splitting -----------------------------------------------------------------------------------


def test_texts_are_split_unless_they_are_sentences(tmp_path, frame, conll):
    columns = {"user": "who", "text": "body", "label": "topic"}
    whole = build_corpus(frame, tmp_path / "whole", split=None, **columns)
    assert [s.text for s in whole] == [row["body"] for row in ROWS]
    assert whole.info["source"]["split"] is None
    assert len(build_corpus(frame, tmp_path / "none", split="none", **columns)) == len(ROWS)
    split = build_corpus(frame, tmp_path / "split", **columns)
    assert split.info["source"]["split"] == SPLIT
    assert [(s.user, s.label) for s in split][-3:] == [
        ("ann", "talk"),
        ("ann", "talk"),
        ("zoë", "mail"),
    ]
    tokens = build_corpus(conll, tmp_path / "conll", reader="conll")
    assert tokens.info["source"]["split"] is None


# --- held-out users ------------------------------------------------------------------------------


def many(users=40, texts=3):
    return pandas.DataFrame(
        [
            {"user": f"user {n % users}", "text": f"Message {n} to a{n % 5}@mail.example. Bye {n}."}
            for n in range(users * texts)
        ]
    )


MANY = many()


def test_held_out_users_with_all_their_text(tmp_path):
    frame = many()
    both = build_corpus(frame, tmp_path / "both")
    kept = build_corpus(frame, tmp_path / "c", hold_out=tmp_path / "h", hold_out_share=0.25)
    held = Corpus(tmp_path / "h")
    names = [set(corpus.user_names.to_pylist()) for corpus in (kept, held)]
    assert not names[0] & names[1]
    assert 4 <= held.users <= 16
    assert kept.users + held.users == both.users
    texts = sorted((s.user, s.text) for corpus in (kept, held) for s in corpus)
    assert texts == sorted((s.user, s.text) for s in both)
    assert held.info["mentions"] == 3 * held.users
    assert held.info["source"]["split"]["texts"] == 3 * held.users
    assert held.info["source"]["hold_out"]["side"] == "held out"
    assert not list((tmp_path / "h").glob("texts"))


def test_the_side_of_a_user_does_not_depend_on_others(tmp_path):
    frame = many()
    build_corpus(frame, tmp_path / "c", hold_out=tmp_path / "h")
    build_corpus(frame[::-1][:90], tmp_path / "c2", hold_out=tmp_path / "h2")
    sides = [set(Corpus(tmp_path / name).user_names.to_pylist()) for name in ("h", "h2")]
    present = set(frame["user"][::-1][:90])
    assert sides[1] == sides[0] & present
    build_corpus(frame, tmp_path / "c3", hold_out=tmp_path / "h3", seed=1)
    assert set(Corpus(tmp_path / "h3").user_names.to_pylist()) != sides[0]


def test_both_corpora_or_none(tmp_path, monkeypatch):
    def refused(match, out="c", hold_out="h", frame=MANY, **options):
        with pytest.raises(UserError, match=match):
            build_corpus(frame, tmp_path / out, hold_out=tmp_path / hold_out, **options)
        assert not (tmp_path / "c").exists()
        assert not (tmp_path / "h").exists()

    refused("at least 2 are needed on either side", frame=many(users=3))
    refused("holds out 40 of 40", hold_out_share=0.9999)
    for share in (0, 1, -0.1, float("nan")):
        refused("must be between 0 and 1", hold_out_share=share)
    refused("one lies in the other", hold_out="c")
    refused("one lies in the other", hold_out="c/h")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    refused("taken: exists already", hold_out="taken")
    refused("taken: exists already", out="taken")
    mixed = many()
    mixed.loc[119, "user"] = ""
    refused("row 120: null user", frame=mixed)
    before = sorted(tmp_path.iterdir())
    # the folder that is placed last is in the way only when the first is in place
    place = build.new_corpus_folder

    @contextmanager
    def blocked(path, overwrite):
        with place(path, overwrite) as work:
            yield work
        if path.name == "h":
            (tmp_path / "c").mkdir()
            (tmp_path / "c" / "file").touch()

    monkeypatch.setattr(build, "new_corpus_folder", blocked)
    with pytest.raises(UserError, match="c: exists already"):
        build_corpus(many(), tmp_path / "c", hold_out=tmp_path / "h")
    assert sorted(tmp_path.iterdir()) == sorted([*before, tmp_path / "c"])
