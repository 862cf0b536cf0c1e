"""Small data and models for the experiments that train, and training in this process."""

import gzip
import json
from pathlib import Path

import pytest

from research import runs
from research.base import Experiment, Options, Result
from research.runs import TrainingTrial, Workspace
from tests.models import tiny

USERS = 14


def data(folder: Path) -> Path:
    """The three data sets, 14 users each; some sentences mention an entity, some do not."""
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


class InProcess:
    """Replaces `runs._start`: trains in this process, and records the names of the trials."""

    def __init__(self) -> None:
        self.names: list[str] = []

    returncode = 0

    def poll(self) -> int:
        return 0

    def __call__(self, trial: TrainingTrial, workspace: Workspace) -> "InProcess":
        self.names.append(trial.name)
        (workspace.out / f"{trial.name}.log").touch()
        runs.run(trial, workspace)
        return self


def measure_in_process(experiment: Experiment, options: Options) -> Result:
    """Measure an experiment; trains exactly the trials that have no result yet."""
    results = options.common / "trials-quick"
    before = {path.stem for path in results.glob("*.json")}
    with pytest.MonkeyPatch.context() as patch:
        trained = InProcess()
        patch.setattr(runs, "_start", trained)
        patch.setattr("time.sleep", lambda _: None)
        result = experiment.measure(options)
    after = {path.stem for path in results.glob("*.json")}
    assert set(trained.names) == after - before
    return result


def _packed(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.write(text)
