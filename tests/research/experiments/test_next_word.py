"""next-word-gpt and next-word-lstm on tiny data and models."""

from pathlib import Path

from research.base import Result
from research.catalogue import EXPERIMENTS
from research.experiments import next_word
from research.select_results import names_not_run
from tests.research import trained
from tests.research.conftest import Make

GPT, LSTM = "next-word-gpt", "next-word-lstm"


def test_names_are_unique_and_match_their_settings() -> None:
    trials = {trial.name: trial for trial in next_word.gpt_trials()}
    assert len(trials) == len(list(next_word.gpt_trials()))
    for data in ("conll", "ag", "edgar"):
        alg = trials[f"{data}-uedp-alg"].config["privacy"]
        assert (alg["noise"], alg["user_rate"], alg["entity_rate"]) == (2.5, 0.05, 0.5)
        for method in ("noiseless", "deidentified"):
            assert trials[f"{data}-{method}"].config["privacy"]["method"] == method
    assert trials["conll-noiseless"].config["optimiser"]["rate"] == 1e-3
    epsilons = {t.config["privacy"].get("epsilon") for t in next_word.lstm_trials()}
    assert epsilons == {8.0, 2.0, 0.5, None}
    assert {t.name for t in next_word.lstm_trials(quick=True)} < {
        t.name for t in next_word.lstm_trials()
    }


def test_every_quick_trial_is_run(gpt_result: Result) -> None:
    names = [row["name"] for row in gpt_result["rows"]]
    assert names == [trial.name for trial in next_word.gpt_trials(quick=True)]
    assert not names_not_run(gpt_result["rows"])
    assert list(gpt_result["panels"]) == ["conll", "ag", "edgar"]


def test_lstm(trained_options: Make) -> None:
    result = trained.measure_in_process(EXPERIMENTS[LSTM], trained_options(LSTM))
    assert len(result["rows"]) == 5
    assert not names_not_run(result["rows"])
    assert "CoNLL-2003, noiseless" in EXPERIMENTS[LSTM].table(result)


def test_the_figure(gpt_result: Result, tmp_path: Path) -> None:
    next_word.draw(gpt_result, tmp_path / "again.svg")
    drawn = (tmp_path / "again.svg").read_text()
    for words in ("hollow marks; not a guarantee", "CoNLL-2003", "noiseless (no guarantee)"):
        assert words in drawn
    empty = {**gpt_result, "rows": [{**row, "test": None} for row in gpt_result["rows"]]}
    next_word.draw(empty, tmp_path / "empty.svg")
    assert (tmp_path / "empty.svg").read_text().count("not run") == 3
