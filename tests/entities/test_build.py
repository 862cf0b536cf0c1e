"""A corpus from a file, a DataFrame or a data set."""

import json

import datasets
import numpy as np
import pandas
import pytest

from uedp.corpus.readers import SkippedRecords
from uedp.corpus.store import Corpus
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
        assert corpus.info["source"] == {**expected, "assigned_users": "2,1", "split": None}


def test_a_dataset_keeps_its_own_order_and_ignores_its_format(tmp_path, dataset):
    turned = dataset.select([3, 1]).with_format("numpy")
    corpus = build_corpus(turned, tmp_path / "c", user="who", text="body")
    assert [s.text for s in corpus] == [ROWS[3]["body"], ROWS[1]["body"]]


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
    assert len(build_corpus(jsonl, tmp_path / "c", user="who", text="body", skip_invalid=True)) == 4


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
    assert len(Corpus(folder)) == 4
    assert len(build_corpus(frame[:2], folder, user="who", text="body", overwrite=True)) == 2


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
