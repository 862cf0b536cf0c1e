"""The `Experiment` type, its options, and the cache of finished steps."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import uedp
from uedp.errors import UserError
from uedp.progress import SILENT, Progress

Result = dict[str, Any]  # serialisable as JSON


@dataclass(frozen=True)
class Options:
    """Where an experiment reads and writes, and how much of it is run.

    `data` holds one folder per data set (conll2003, ag_news, edgar, presidio_synth). `work` holds
    intermediate files, with which an interrupted experiment resumes. `models` maps a part to a
    saved model: `gpt`, `bert`, `ner` (a spaCy pipeline), `words` (a public tokenizer.json). With
    `finished_only` nothing is trained; trials without a result are reported as not run.
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
            raise UserError(f"--jobs {self.jobs}: must be at least 1")

    @property
    def common(self) -> Path:
        """Intermediate files that several experiments share, such as detected corpora."""
        return self.work.parent / "common"

    @property
    def trials(self) -> Path:
        """The results of single training runs, one file each, beside those of experiments."""
        return self.work.parent.parent / "trials"


@dataclass(frozen=True)
class Experiment:
    """One table or figure.

    `table` renders a result as Markdown: tables, and what they imply for the paper's claims.
    `table` and `draw` read nothing but the result, so both can be repeated from the JSON file.
    """

    name: str
    title: str
    measure: Callable[[Options], Result]
    draw: Callable[[Result, Path], None]
    table: Callable[[Result], str]


def run_experiment(experiment: Experiment, options: Options, out: Path) -> Result:
    """Measure, then write NAME.json, NAME.png and NAME.svg into a folder."""
    options.work.mkdir(parents=True, exist_ok=True)
    (options.work.parent / ".gitignore").write_text("*\n")  # intermediate files are not results
    result = experiment.measure(options)
    out.mkdir(parents=True, exist_ok=True)
    for suffix in (".png", ".svg"):
        experiment.draw(result, out / f"{experiment.name}{suffix}")
    _write(out / f"{experiment.name}.json", result)
    return result


def cached(
    work: Path, key: Mapping[str, Any], sources: Sequence[str], compute: Callable[[], Result]
) -> Result:
    """The result of a step: read from `work` if it finished before, else computed and stored.

    Args:
        key: everything the result depends on, apart from code.
        sources: the modules and packages whose code it depends on.

    Guarantees:
      - a stored result is used only for the same key, package version and source code
      - an interrupted step is computed again
    """
    path = work / f"{digest(key, sources)}.json"
    if path.is_file():
        return json.loads(path.read_text(encoding="utf-8"))["result"]  # type: ignore[no-any-return]
    result = compute()
    work.mkdir(parents=True, exist_ok=True)
    _write(path, {"key": dict(key), "result": result})
    return result


def digest(key: Mapping[str, Any], sources: Sequence[str]) -> str:
    """A short name for a key, the package version, and the code of some modules."""
    text = json.dumps([uedp.__version__, source_digest(*sources), dict(key)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def source_digest(*modules: str) -> str:
    """A short digest of the source files of modules and packages, such as `uedp.accounting`."""
    state = hashlib.sha256()
    for module in modules:
        spec = find_spec(module)
        assert spec is not None, f"no module {module}"
        assert spec.origin is not None, f"no source file for {module}"
        package = spec.submodule_search_locations is not None
        origin = Path(spec.origin)
        for path in sorted(origin.parent.rglob("*.py")) if package else [origin]:
            state.update(path.read_bytes())
    return state.hexdigest()[:16]


def _write(path: Path, content: Result) -> None:
    from uedp.files import write_atomically

    text = json.dumps(content, indent=1)
    # a list of numbers on one line: easier to read and to compare with another version
    text = re.sub(r'\[\n[^][{}"]*\]', lambda match: " ".join(match[0].split()), text)
    write_atomically(path, text + "\n")
