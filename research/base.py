"""What an experiment is: a name, a function that measures, one that draws, one that tells."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uedp
from uedp.errors import UserError
from uedp.progress import SILENT, Progress

Result = dict[str, Any]  # what JSON can hold


@dataclass(frozen=True)
class Options:
    """Where an experiment reads and writes, and how much of it is run.

    `data` holds a folder per data set (conll2003, ag_news, edgar, presidio_synth); `work` keeps
    what lets an interrupted experiment go on. `models` names saved models by their part: `gpt`,
    `bert`, `ner` (a spaCy pipeline), `words` (a public tokenizer.json). With `finished_only`
    nothing is trained: runs without a result are left out, and named as not run.
    """

    data: Path
    work: Path
    quick: bool = False
    models: Mapping[str, str] = field(default_factory=dict)
    jobs: int = 1
    progress: Progress = SILENT
    finished_only: bool = False

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise UserError(f"--jobs {self.jobs}: at least one is needed")

    @property
    def common(self) -> Path:
        """What several experiments share, such as a corpus that took minutes to detect."""
        return self.work.parent / "common"

    @property
    def trials(self) -> Path:
        """The results of single trainings, one file each, beside those of experiments."""
        return self.work.parent.parent / "trials"


@dataclass(frozen=True)
class Experiment:
    """One table or figure.

    `table` gives the Markdown of a result: tables, and what they say of the paper's claims. It and
    `draw` read the result alone, so that both can be made again from the JSON.
    """

    name: str
    title: str
    measure: Callable[[Options], Result]
    draw: Callable[[Result, Path], None]
    table: Callable[[Result], str]


def run_experiment(experiment: Experiment, options: Options, out: Path) -> Result:
    """Measure, then write NAME.json, NAME.png and NAME.svg into a folder."""
    options.work.mkdir(parents=True, exist_ok=True)
    (options.work.parent / ".gitignore").write_text("*\n")  # results are kept, what led to them not
    result = experiment.measure(options)
    out.mkdir(parents=True, exist_ok=True)
    for suffix in (".png", ".svg"):
        experiment.draw(result, out / f"{experiment.name}{suffix}")
    _write(out / f"{experiment.name}.json", result)
    return result


def kept(work: Path, what: Mapping[str, Any], compute: Callable[[], Result]) -> Result:
    """The result of a step: from disk if it was finished before, else computed and put there.

    Guarantees:
      - a step is known by `what`, all of it, and by the version of this package
      - a step that was interrupted is computed again
    """
    path = work / f"{digest(what)}.json"
    if path.is_file():
        found: Result = json.loads(path.read_text(encoding="utf-8"))
        return found["result"]  # type: ignore[no-any-return]
    result = compute()
    work.mkdir(parents=True, exist_ok=True)
    _write(path, {"what": dict(what), "result": result})
    return result


def digest(what: Mapping[str, Any]) -> str:
    """A short name for some settings."""
    text = json.dumps([uedp.__version__, dict(what)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def code_of(*parts: str) -> str:
    """A short name for the source of some parts of the package, such as `accounting`.

    For steps that a change of the code changes, though none of their settings did.
    """
    found = hashlib.sha256()
    for part in parts:
        files = sorted((Path(uedp.__file__).parent / part).rglob("*.py"))
        assert files, f"no part {part}"
        for path in files:
            found.update(path.read_bytes())
    return found.hexdigest()[:16]


def _write(path: Path, content: Result) -> None:
    from uedp.files import write_atomically

    lines = json.dumps(content, indent=1)
    # a list of numbers on a line of its own: easier to read, and to compare with another version
    lines = re.sub(r'\[\n[^][{}"]*\]', lambda found: " ".join(found[0].split()), lines)
    write_atomically(path, lines + "\n")
