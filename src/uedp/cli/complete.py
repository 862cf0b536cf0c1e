"""Values for shell completion. Each key press starts a process: nothing slow is imported here."""

from collections.abc import Callable, Iterable
from importlib import metadata
from itertools import islice
from pathlib import Path

METHODS = ("rotation", "fair-shares", "user-level", "uedp-alg", "deidentified", "noiseless")
MODELS = ("smollm2-135m", "minilm-l6")
PRESETS = ("paper-gpt2", "paper-bert", "paper-awd-lstm")
PUBLIC_LISTS = ("countries", "currencies", "months")
READERS = (
    *("auto", "jsonl", "json", "csv", "xlsx", "parquet", "hf", "mbox", "eml", "conll", "ag", "txt"),
    "presidio-research",
)
TASKS = ("next-word", "classification")
TRAINED = ("lora", "lora-b", "probe", "full")

_DETECTORS = ("labels", "patterns", "spacy:", "presidio", "stanza:", "transformers:")
_MOST = 500  # folders to look into


def one_of(values: Iterable[str]) -> Callable[[str], list[str]]:
    """Completion by one of some values."""
    known = tuple(values)

    def complete(incomplete: str) -> list[str]:
        return [value for value in known if value.startswith(incomplete)]

    return complete


def detectors(incomplete: str) -> list[str]:
    """Detectors, the last of several with commas; spaCy with the models that are installed."""
    models = [f"spacy:{model.name}" for model in metadata.entry_points(group="spacy_models")]
    known = [name for name in _DETECTORS if name != "spacy:" or not models]
    return _last_of(incomplete, (*known, *models))


def categories(incomplete: str) -> list[str]:
    """Categories, the last of several with commas."""
    from uedp.entities.categories import NAMES

    return _last_of(incomplete, NAMES)


def corpora(incomplete: str) -> list[str]:
    """Folders with a corpus; none: the shell completes file names."""
    return _folders_with("corpus.json", incomplete)


def runs(incomplete: str) -> list[str]:
    """Folders with a run."""
    return _folders_with("run.json", incomplete)


def folders(incomplete: str) -> list[str]:
    """Folders with a corpus or a run."""
    return sorted({*corpora(incomplete), *runs(incomplete)})


def configs(incomplete: str) -> list[str]:
    """Presets and YAML files."""
    files = (str(path) for path in islice(_matches(incomplete), _MOST) if path.suffix == ".yaml")
    return [*one_of(PRESETS)(incomplete), *files]


audited_methods = one_of(METHODS[:4])
entity_methods = one_of(METHODS[:2])
methods = one_of(METHODS)
models = one_of(MODELS)
public_lists = one_of(PUBLIC_LISTS)
readers = one_of(READERS)
tasks = one_of(TASKS)
trained = one_of(TRAINED)


def _last_of(incomplete: str, known: Iterable[str]) -> list[str]:
    before, comma, last = incomplete.rpartition(",")
    given = before.split(",")
    return [before + comma + name for name in known if name.startswith(last) and name not in given]


def _folders_with(name: str, incomplete: str) -> list[str]:
    """Folders that hold a file, and begin as typed or lie in a folder that does."""
    found = []
    for folder in islice(_matches(incomplete), _MOST):
        inner = islice(folder.iterdir(), _MOST) if folder.is_dir() else ()
        found += [str(each) for each in (folder, *inner) if (each / name).is_file()]
    return found


def _matches(incomplete: str) -> Iterable[Path]:
    typed = Path(incomplete)
    parent, prefix = (typed, "") if incomplete.endswith("/") else (typed.parent, typed.name)
    try:
        yield from sorted(path for path in parent.iterdir() if path.name.startswith(prefix))
    except OSError:
        return
