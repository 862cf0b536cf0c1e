"""Small data sets in their own formats, a pipeline that knows three names, and trained results."""

import gzip
import json
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from research.__main__ import main
from research.base import Options, Result
from research.catalogue import EXPERIMENTS
from tests.conftest import Run, command_runner
from tests.research import trained
from uedp.entities.detectors import load_detector

Make = Callable[[str], Options]

CONLL = {
    # three users; EU is mentioned by two of them
    "train": (
        "-DOCSTART- -X- O O\n\n"
        "EU NNP I-NP I-ORG\nrejects VBZ I-VP O\nGerman JJ I-NP I-MISC\ncall NN I-NP O\n\n"
        "Peter NNP I-NP I-PER\nBlackburn NNP I-NP I-PER\n\n"
        "-DOCSTART- -X- O O\n\n"
        "Rome NNP I-NP I-LOC\nParis NNP I-NP B-LOC\nmet VBD I-VP O\nEU NNP I-NP I-ORG\n\n"
        "nothing NN I-NP O\nhere RB I-NP O\n\n"
        "-DOCSTART- -X- O O\n\n"
        "Oslo NNP I-NP I-LOC\nwaits VBZ I-VP O\n"
    ),
    # of six words in four marks the pipeline knows four: Ann, Lee, Rome, Acme
    "testa": (
        "-DOCSTART- -X- O O\n\n"
        "Ann NNP I-NP I-PER\nLee NNP I-NP I-PER\nleft VBD I-VP O\nRome NNP I-NP I-LOC\n\n"
        "Acme NNP I-NP I-ORG\nbought VBD I-VP O\nBig NNP I-NP I-ORG\nCorp NNP I-NP I-ORG\n"
    ),
    "testb": "-DOCSTART- -X- O O\n\nBonn NNP I-NP I-LOC\nsleeps VBZ I-VP O\n",
}
AG_ARTICLES = 45
EDGAR = [
    ("CIK1", "Acme shall pay Ann Lee."),
    ("CIK1", "Ann Lee may object within ten days."),
    ("CIK2", "The parties agree to this."),
    ("CIK3", "Notices go to x@y.example at once."),
]
PRESIDIO = [("Write to Ann Lee in Oslo", [("PERSON", "Ann Lee"), ("LOCATION", "Oslo")])]
NAMES = {"PER": "Ann Lee", "LOC": "Rome", "ORG": "Acme"}


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `python -m research` in this process, as the shell would see it."""
    return command_runner(main, capsys)


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A --data folder."""
    folder = tmp_path_factory.mktemp("data")
    for part, text in CONLL.items():
        _packed(folder / "conll2003" / f"eng.{part}.gz", text)
    articles = [
        f'{i % 4 + 1},"{"Acme" if i % 3 else "It"} sold {i} ships, again"'
        for i in range(AG_ARTICLES)
    ]
    _packed(folder / "ag_news" / "train.csv.gz", "\n".join(["label,text", *articles, ""]))
    clauses = (json.dumps({"user": user, "text": text}) + "\n" for user, text in EDGAR)
    _packed(folder / "edgar" / "train.jsonl.gz", "".join(clauses))
    records = [
        {
            "full_text": text,
            "masked": "",
            "spans": [
                {
                    "entity_type": kind,
                    "entity_value": value,
                    "start_position": text.index(value),
                    "end_position": text.index(value) + len(value),
                }
                for kind, value in spans
            ],
            "template_id": 1,
            "metadata": None,
        }
        for text, spans in PRESIDIO
    ]
    for name in ("synth_dataset_v2", "generated_large"):
        _packed(folder / "presidio_synth" / f"{name}.json.gz", json.dumps(records))
    return folder


@pytest.fixture(scope="session")
def ner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved spaCy pipeline."""
    folder = tmp_path_factory.mktemp("ner") / "pipeline"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import spacy

        nlp = spacy.blank("en")
        patterns = [{"label": label, "pattern": name} for label, name in NAMES.items()]
        nlp.add_pipe("entity_ruler").add_patterns(patterns)
        nlp.to_disk(folder)
    return folder


@pytest.fixture(scope="session")
def trained_options(tmp_path_factory: pytest.TempPathFactory, ner: Path) -> Make:
    """Options of the experiments that train; all share one folder of data, models and results."""
    folder = tmp_path_factory.mktemp("trained")
    data, models = trained.data(folder / "data"), trained.models(folder / "models", ner)
    return lambda name: Options(data, folder / "out" / ".work" / name, quick=True, models=models)


@pytest.fixture(scope="session")
def gpt_options(trained_options: Make) -> Options:
    return trained_options("next-word-gpt")


@pytest.fixture(scope="session")
def gpt_result(gpt_options: Options) -> Result:
    return trained.measure_in_process(EXPERIMENTS["next-word-gpt"], gpt_options)


@pytest.fixture
def trial_results(trained_options: Make) -> Iterator[Path]:
    """The folder of the trials' results; restored after the test."""
    folder = trained_options("any").common / "trials-quick"
    before = {path: path.read_bytes() for path in folder.glob("*.json")}
    yield folder
    for path in folder.glob("*.json"):
        path.unlink()
    for path, content in before.items():
        path.write_bytes(content)


@pytest.fixture
def options(data: Path, ner: Path, tmp_path: Path) -> Make:
    """Options of an experiment, as the command creates them."""
    return _options(data, ner, tmp_path / "out")


@pytest.fixture(scope="session")
def together(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("together")


@pytest.fixture(scope="session")
def shared(data: Path, ner: Path, together: Path) -> Make:
    """Options with one folder for all tests, in which finished steps are reused."""
    return _options(data, ner, together)


@pytest.fixture(scope="package", autouse=True)
def _detectors_load_once() -> Iterator[None]:
    """Detectors have no state, and loading one takes longer than its work on a few sentences."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("uedp.entities.parallel.load_detector", cache(load_detector))
        patch.setattr("research.experiments.integrity.load_detector", cache(load_detector))
        yield


def _options(data: Path, ner: Path, out: Path) -> Make:
    models = {"ner": str(ner)}
    return lambda name: Options(data, out / ".work" / name, quick=True, models=models)


def _packed(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.write(text)
