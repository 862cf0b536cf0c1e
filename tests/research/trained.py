"""Small data and models for the experiments that train, and runs without a process of their own."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from research import runs
from research.base import Experiment, Options, Result, run_experiment
from research.runs import Place, Trial
from tests.models import tiny

USERS = 14


def data(folder: Path) -> Path:
    """The three data sets, of 14 users each; some sentences name somebody, some nobody."""
    for part, users in (("train", USERS), ("testa", 3), ("testb", 3)):
        lines = []
        for user in range(users):
            lines += ["-DOCSTART- -X- O O", ""]
            lines += [f"Town{user % 5} NNP I-NP I-LOC", "waits VBZ I-VP O", ""]
            lines += [f"Ann{user} NNP I-NP I-PER", "left VBD I-VP O", "Acme NNP I-NP I-ORG", ""]
            lines += ["nothing NN I-NP O", "here RB I-NP O", ""]
        _packed(folder / "conll2003" / f"eng.{part}.gz", "\n".join(lines))
    for part, articles in (("train", 15 * USERS), ("test", 24)):
        rows = [
            f'{i % 4 + 1},"{"Acme" if i % 3 else "It"} sold {i} ships"' for i in range(articles)
        ]
        _packed(folder / "ag_news" / f"{part}.csv.gz", "\n".join(["label,text", *rows, ""]))
    for part, users in (("train", USERS), ("test", 3)):
        clauses = [
            {"user": f"{part}{user}", "text": text}
            for user in range(users)
            for text in ("Acme shall pay Ann Lee.", "The parties agree.", f"Item {user}.")
        ]
        _packed(folder / "edgar" / f"{part}.jsonl.gz", "\n".join(map(json.dumps, clauses)) + "\n")
    return folder


def models(folder: Path, ner: Path) -> dict[str, str]:
    words = tiny.tokenizer()
    words.save_pretrained(folder / "words")
    return {
        "ner": str(ner),
        "gpt": str(tiny.saved(folder / "gpt", tiny.llama())),
        "bert": str(tiny.saved(folder / "bert", tiny.bert())),
        "words": str(folder / "words" / "tokenizer.json"),
    }


def options(folder: Path, ner: Path, name: str, **changes: Any) -> Options:
    return Options(
        data(folder / "data"),
        folder / "out" / ".work" / name,
        quick=True,
        models=models(folder / "models", ner),
        **changes,
    )


class Here:
    """Stands in for `runs._start`: the same run in this process, and which were asked for."""

    def __init__(self) -> None:
        self.names: list[str] = []

    returncode = 0

    def poll(self) -> int:
        return 0

    def __call__(self, trial: Trial, place: Place) -> "Here":
        self.names.append(trial.name)
        (place.out / f"{trial.name}.log").touch()
        runs.run(trial, place)
        return self


def carried_out(experiment: Experiment, options: Options) -> tuple[Result, Here]:
    with pytest.MonkeyPatch.context() as patch:
        here = Here()
        patch.setattr(runs, "_start", here)
        patch.setattr("time.sleep", lambda _: None)
        return run_experiment(experiment, options, options.work.parent.parent), here


def _packed(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.write(text)
