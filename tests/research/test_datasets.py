"""Data sets prepared as plain files."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from research.datasets import load_incidence, load_texts, prepare_dataset
from research.sources import DATA_SETS
from uedp.errors import UserError


def test_conll_by_hand(data: Path, tmp_path: Path) -> None:
    prepare_dataset("conll", data, tmp_path / "conll")
    train = load_texts(tmp_path / "conll", "train")
    hidden = load_texts(tmp_path / "conll", "deidentified")
    assert len(train.texts) == len(hidden.texts) == 5
    assert "Peter Blackburn" in train.texts[1]
    assert "Peter" not in " ".join(hidden.texts)
    whole, people = load_incidence(tmp_path / "conll"), load_incidence(tmp_path / "conll", "person")
    assert (~whole.extended).tolist() == [True, True, True, False, True]
    assert (~people.extended).tolist() == [False, True, False, False, False]
    assert np.array_equal(whole.sentence_user, people.sentence_user)
    about = json.loads((tmp_path / "conll" / "about.json").read_text())
    assert about["all"]["sensitive"] == 4
    assert {*DATA_SETS["conll"].categories} < about.keys()


def test_names_are_known_in_every_part(data: Path, tmp_path: Path) -> None:
    prepare_dataset("conll", data, tmp_path / "conll")
    held_out = load_texts(tmp_path / "conll", "validation")
    assert held_out.mentions is not None
    named = [(held_out.texts[n][a:b], kind) for n, a, b, kind in held_out.mentions.rows()]
    assert named == [
        ("Ann Lee", "person"),
        ("Rome", "loc"),
        ("Acme", "org"),
        ("Big Corp", "org"),
    ]
    few = load_texts(tmp_path / "conll", "validation", 1)
    assert few.mentions is not None
    assert len(few.mentions) == 2


def test_entities_of_held_out_parts_are_detected(data: Path, ner: Path, tmp_path: Path) -> None:
    (tmp_path / "edgar").mkdir()
    for part in ("train", "test"):
        (tmp_path / "edgar" / f"{part}.jsonl.gz").write_bytes(
            (data / "edgar" / "train.jsonl.gz").read_bytes()
        )
    prepare_dataset("edgar", tmp_path, tmp_path / "out", str(ner))
    test = load_texts(tmp_path / "out", "test")
    assert test.mentions is not None
    found = {test.texts[n][a:b] for n, a, b, _ in test.mentions.rows()}
    assert found == {"Acme", "Ann Lee", "x@y.example"}


def test_a_data_set_without_marks_needs_a_pipeline(data: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="ner=PATH"):
        prepare_dataset("ag", data, tmp_path / "ag")


def test_mentions_and_surrogates(data: Path, tmp_path: Path) -> None:
    prepare_dataset("conll", data, tmp_path / "conll")
    train, other = (_content(tmp_path / "conll", part) for part in ("train", "surrogates"))
    named = [(row[0], train["texts"][row[0]][row[1] : row[2]], row[3]) for row in train["mentions"]]
    assert (1, "Peter Blackburn", "person") in named
    assert {number for number, *_ in named} == {0, 1, 2, 4}
    hidden = " ".join(other["texts"])
    assert not any(name in hidden for _, name, _ in named)
    assert "rejects" in hidden
    surrogates = {other["texts"][n][start:end] for n, start, end, _ in other["mentions"]}
    assert all(name and name == name.strip() for name in surrogates)
    of_eu = [other["texts"][n][a:b] for n, a, b, c in other["mentions"] if c == "org"]
    assert len(of_eu) == 2
    assert len(set(of_eu)) == 1  # the same entity in two sentences
    assert _content(tmp_path / "conll", "test")["mentions"] == [[0, 0, 4, "loc"]]


def _content(folder: Path, part: str) -> dict[str, Any]:
    with gzip.open(folder / f"{part}.json.gz", "rt", encoding="utf-8") as file:
        return json.load(file)
