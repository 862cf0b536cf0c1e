"""The local-dp experiment on a few articles with a tiny encoder."""

import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from research.base import Options, Result, run_experiment
from research.baselines.dpnr import Dpnr
from research.catalogue import EXPERIMENTS
from research.experiments import local_dp
from tests.models import tiny
from uedp.errors import UserError
from uedp.training.vectors import Encoder

WORDS = ("xxxx", "QQQQ", "7777", "....")  # what an encoder of bytes can tell apart
ARTICLES = {"train": 40, "test": 20}  # of each class; more than that of the first


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = tiny.bert()
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # or it says much the same of all texts
            if parameter.dim() == 1:
                parameter.fill_(float(name.endswith("LayerNorm.weight")))
    return tiny.saved(tmp_path_factory.mktemp("models") / "tiny-bert", model)


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory, encoder: Path) -> Options:
    folder = tmp_path_factory.mktemp("local-dp")
    for part, each in ARTICLES.items():
        rows = ["label,text"]
        for label, word in enumerate(WORDS, 1):
            rows += [f"{label},{word}  {word} {i} {word}" for i in range(each + (label == 1))]
        write(folder / "data" / "ag_news" / f"{part}.csv.gz", rows)
    work = folder / "out" / ".work" / "local-dp"
    return Options(folder / "data", work, quick=True, models={"bert": str(encoder)})


def write(path: Path, rows: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.write("\n".join([*rows, ""]))


@pytest.fixture(scope="module")
def size() -> Iterator[None]:
    """With less noise as well: the tiny encoder separates classes worse than a trained one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_dp, "QUICK", local_dp.Scale(40, 20, 20, (0.05, 1.0, 1000.0)))
        yield


@pytest.fixture(scope="module")
def result(options: Options, size: None) -> Result:
    return run_experiment(EXPERIMENTS["local-dp"], options, options.work.parent.parent)


def at(result: Result, epsilon: float | None, dropout: float = 0.0) -> Result:
    (row,) = [r for r in result["rows"] if (r["epsilon"], r["dropout"]) == (epsilon, dropout)]
    return dict(row)


def test_budgets_are_the_mechanism_s(result: Result) -> None:
    k = result["dimensions"]
    assert k == 32
    for row in result["rows"]:
        if row["epsilon"] is None:
            assert not {"published", "proven", "least_error"} & row.keys()
            continue
        method = Dpnr(row["epsilon"], row["dropout"])
        assert row["published"] == method.published < row["proven"] == method.proven(k)
        assert row["proven_at_delta"] == method.proven_at(result["delta"], k)
        assert row["proven_all_visits"] == result["visits"] * row["proven"]
    assert at(result, local_dp.STATED / k)["proven"] == pytest.approx(local_dp.STATED)
    assert result["paper"]["proven"] == pytest.approx(38.4)
    over = result["over_visits"]
    assert over["proven"] == pytest.approx([0.05 * k * visits for visits in over["visits"]])
    least = result["out_of_reach"]
    exact = Dpnr(least["epsilons"][0]).least_error(k, 4)
    assert exact - 1e-4 <= least["least_error"][0] <= exact


def test_articles_are_balanced_and_errors_one_for_each_seed(result: Result) -> None:
    assert (result["train_articles"], result["test_articles"], result["classes"]) == (160, 80, 4)
    for row in result["rows"]:
        ways = {"once", "every_visit", "one_value"} if not row["dropout"] else {"once"}
        assert set(row["errors"]) == ({"noiseless"} if row["epsilon"] is None else ways)
        assert all(len(errors) == local_dp.SEEDS for errors in row["errors"].values())


def test_noise_costs_what_it_must(result: Result) -> None:
    """240 guesses of four classes at the least epsilon: below 60% wrong once in 10^7 times."""
    assert np.mean(at(result, None)["errors"]["noiseless"]) < 0.05
    assert np.mean(at(result, 0.05)["errors"]["once"]) > 0.6
    assert np.mean(at(result, 1000.0)["errors"]["once"]) < 0.3
    errors = at(result, 1.0)["errors"]
    assert np.mean(errors["one_value"]) < np.mean(errors["once"]) - 0.2  # no noise, in effect
    assert len(set(at(result, 1.0, 0.5)["errors"]["once"])) > 1  # seeds differ


def test_how_far_a_word_moves_a_representation(result: Result) -> None:
    word = result["one_word"]
    for kind in ("replaced", "removed", "another_article"):
        assert word[kind]["largest"] >= word[kind]["median"] > 0
        assert word[kind]["largest"] <= result["dimensions"]
    assert word["another_article"]["largest"] > 1  # so the published epsilon is no local DP


def test_the_result_is_written_rendered_and_drawn(result: Result, options: Options) -> None:
    out = options.work.parent.parent
    read = json.loads((out / "local-dp.json").read_text())
    assert read == result
    assert (out / "local-dp.png").read_bytes().startswith(b"\x89PNG")
    assert "epsilon as proven" in (out / "local-dp.svg").read_text()
    page = local_dp.table(read)
    lines = [line for line in page.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + len(result["rows"])
    assert len({line.count("|") for line in lines}) == 1
    assert "a proven 38.4" in page
    noiseless = np.mean(at(result, None)["errors"]["noiseless"])
    assert f"{noiseless:.1%} without noise" in page


def test_resuming_encodes_nothing_again(
    result: Result, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("encoded again")

    monkeypatch.setattr(Encoder, "_encode", refuse)
    assert local_dp.measure(options) == result
    longer = replace(options, work=options.work.parent / "elsewhere")
    with pytest.raises(AssertionError, match="encoded again"):
        local_dp.measure(longer)


def test_missing_models_and_data_are_named(options: Options, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--model bert"):
        local_dp.measure(replace(options, models={}))
    with pytest.raises(UserError, match=r"train.csv.gz: no such file"):
        local_dp.measure(replace(options, data=tmp_path))
    write(tmp_path / "ag_news" / "train.csv.gz", ["label,text", "1,a b", "1,c d"])
    with pytest.raises(UserError, match="one class"):
        local_dp.measure(replace(options, data=tmp_path))
