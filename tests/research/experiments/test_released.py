"""The page about the released code's noise, from what was run."""

import json
from pathlib import Path

import pytest

from research.base import Options, run_experiment
from research.catalogue import EXPERIMENTS
from research.experiments import released


def audited(alarm: float) -> dict[str, object]:
    finding = {
        "kind": "user",
        "score": "black box",
        "canaries": 40,
        "guesses": 30,
        "correct": 29,
        "epsilon": alarm + 0.2,
        "most": 2.5,
        "alarm": alarm,
        "claim": None,
    }
    return {
        "config": {"privacy": {"rounds": 42}},
        "vocabulary": 8882,
        "validation": {"perplexity": 900.0},
        "test": {"perplexity": 1234.5},
        "noise": {"stated": 1e-5, "released": 1e-10, "too_small": 1e5},
        "published": 0.5,
        "canaries": {"users": 40, "entities": 0},
        "findings": [finding],
    }


@pytest.fixture
def options(tmp_path: Path) -> Options:
    given = Options(tmp_path / "data", tmp_path / "results" / ".work" / "released")
    (given.trials.parent / released.FOLDER).mkdir(parents=True)
    given.trials.mkdir()
    return given


def write(options: Options, name: str, content: object) -> None:
    path = options.trials.parent / released.FOLDER / f"{name}.json"
    path.write_text(json.dumps(content))


def test_what_was_not_run_is_named(options: Options) -> None:
    page = released.table(released.measure(options))
    for name in released.MODELS:
        assert f"not run (`python -m research.audit_released {name}`)" in page


@pytest.mark.parametrize(("bound", "verdict"), [(1.9, "refutes"), (0.45, "does not refute")])
def test_bounds_stand_beside_the_published_epsilon(
    options: Options, bound: float, verdict: str
) -> None:
    write(options, "small-lstm", audited(bound))
    page = released.table(released.measure(options))
    assert "AWD-LSTM of 200 units | - | not run | 1,234 after 42 rounds |" in page
    assert f"29 of 30 | {bound + 0.2:.2f} | 2.50 |" in page
    assert f"at least {bound:.2f}, which {verdict} the published 0.50" in page
    assert "100,000 times less noise than the text states" in page


def test_a_model_without_canaries_has_no_bound_and_the_page_says_so(options: Options) -> None:
    write(options, "lstm", audited(0.0) | {"findings": [], "canaries": None})
    page = released.table(released.measure(options))
    assert "AWD-LSTM | - | not run | 1,234 after 42 rounds |" in page
    assert "without canaries: nothing bounds its epsilon from below." in page
    assert "does not refute" not in page


def test_training_without_noise_stands_beside(options: Options) -> None:
    trial = {"measure": "perplexity", "test": {"perplexity": 630.7}}
    trial |= {"config": {"privacy": {"rounds": 150}}}
    (options.trials / "lstm-noiseless.json").write_text(json.dumps(trial))
    assert "630.7" not in released.table(released.measure(options))
    write(options, "lstm", audited(0.0))
    page = released.table(released.measure(options))
    assert "without noise or clipping reaches 630.7 after 150 rounds;" in page
    assert "with the noise of the code reaches 1,234 after 42 rounds." in page


def test_the_stated_noise_is_that_of_a_trial_or_of_its_own_run(options: Options) -> None:
    trial = {"measure": "perplexity", "test": {"perplexity": 198.6}}
    trial |= {"config": {"privacy": {"rounds": 10}}}
    (options.trials / "conll-uedp-alg.json").write_text(json.dumps(trial))
    write(options, "small-lstm-stated", audited(0.0) | {"test": {"perplexity": 9000.0}})
    page = released.table(released.measure(options))
    assert "| 35.09 (0.185); 29.24 (0.2) | 198.6 after 10 rounds | not run |" in page
    assert "AWD-LSTM of 200 units | - | 9,000 after 42 rounds | not run |" in page


def test_how_far_the_code_can_go_is_told(options: Options) -> None:
    reach = {"rounds": 197, "radius": 5e-7, "model": "tiny", "sentences": 3}
    reach |= {"perplexity": 101.0, "least_perplexity": 100.0, "paper": 29.24}
    write(options, "reach", reach)
    page = released.table(released.measure(options))
    assert "For tiny that changes the perplexity, 101 on 3 sentences of the test part" in page
    assert "by less than 1.00%" in page


def test_files_and_plot_are_written(options: Options, tmp_path: Path) -> None:
    write(options, "small-lstm", audited(1.9))
    run_experiment(EXPERIMENTS["released"], options, tmp_path / "results")
    assert (tmp_path / "results" / "released.png").is_file()
    stored = json.loads((tmp_path / "results" / "released.json").read_text())
    assert stored["models"]["small-lstm"]["released"]["bound"] == 1.9
    assert "claim" not in stored["models"]["small-lstm"]["released"]["findings"][0]
