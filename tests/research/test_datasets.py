"""Data sets prepared as plain files."""

import json
from pathlib import Path

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


def test_a_data_set_without_marks_needs_a_pipeline(data: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="ner=PATH"):
        prepare_dataset("ag", data, tmp_path / "ag")
