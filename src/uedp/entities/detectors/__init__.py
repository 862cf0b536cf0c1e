"""Detectors find the entities of a text. One module each, one registry.

A detector is named `kind` or `kind:argument` (`patterns`, `spacy:en_core_web_sm`); one that a
user's own file registers is also named `path/to/file.py:kind`. docs/adding-a-detector.md shows how
to write one.
"""

import importlib.util
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from uedp.corpus.sentence import Span
from uedp.errors import UserError, did_you_mean


class Detector(Protocol):
    """Finds entities in texts.

    `propagates` says whether one hit is evidence for every other mention of the same surface:
    true for models that judge by context and so miss some mentions, false for human marks and
    for patterns that always find the same form.
    """

    propagates: bool

    def detect(self, texts: Sequence[str]) -> Iterator[Sequence[Span]]:
        """The spans of each text, in order: one sequence per text, empty ones included."""


class Registration(NamedTuple):
    """How a kind of detector is loaded, and its version; both from the name's argument."""

    load: Callable[[str | None], Detector]
    version: Callable[[str | None], str]


Loader = TypeVar("Loader", bound=Callable[[str | None], Detector])

# Each is the module of that name in this package, imported when it is first asked for.
BUILT_IN = ("labels", "patterns", "spacy", "presidio", "stanza", "transformers")
_FILE = "uedp detectors of "  # then a path: the module of a user's own file
_registry: dict[str, Registration] = {}


def register_detector(
    kind: str, *, version: str | Callable[[str | None], str] = "version unknown"
) -> Callable[[Loader], Loader]:
    """Register a detector under the name `kind`: a decorator for its class, or a function.

    The class or function is called with the text behind the colon in `kind:argument`, or None.
    It must stand at the top level of a module, so that worker processes can import it.

    Args:
        version: the library and the model, exactly; printed on certificates. A function of the
            argument must not load the model.
    """

    def register(load: Loader) -> Loader:
        if ":" in kind or kind.endswith(".py"):
            raise ValueError(f"a detector cannot be called {kind!r}")
        if kind in BUILT_IN and load.__module__ != f"{__name__}.{kind}":
            raise ValueError(f"{kind!r} is a detector of uedp; choose another name")
        _registry[kind] = Registration(load, version if callable(version) else lambda _: version)
        return load

    return register


def load_detector(name: str) -> Detector:
    """The detector called `name`, ready to run; imports only what that detector needs.

    Raises `UserError` with the exact install command when a library or model is missing.
    """
    registration, argument = _resolve(name)
    return registration.load(argument)


def detector_version(name: str) -> str:
    """The library and the model of the detector called `name`, with versions; loads no model."""
    registration, argument = _resolve(name)
    return registration.version(argument)


def own_loaders(names: Iterable[str]) -> dict[str, Callable[[str | None], Detector]]:
    """The loaders that worker processes must be given: of `names`, those registered by imports."""
    loaders = {}
    for name in names:
        kind = name.partition(":")[0]
        if kind in _registry and kind not in BUILT_IN:
            loaders[kind] = _registry[kind].load
            try:
                pickle.dumps(loaders[kind])
            except (AttributeError, TypeError, pickle.PicklingError) as error:
                raise UserError(
                    f"detector {name!r}: workers cannot import it ({error}); move it to the top "
                    "level of a module, or use `workers=1` with `engine='local'`"
                ) from None
    return loaders


def source_files(names: Iterable[str]) -> list[Path]:
    """Files and folders of the user's own that detectors are loaded from: code, and models."""
    found = []
    for name in names:
        kind, _, argument = name.partition(":")
        if kind.endswith(".py"):
            found.append(Path(kind).expanduser())
            argument = argument.partition(":")[2]
        elif kind in _registry and kind not in BUILT_IN:
            module = sys.modules.get(_registry[kind].load.__module__)
            found.append(Path(getattr(module, "__file__", None) or ""))
        found.append(Path(argument).expanduser())
    return [path for path in found if path != Path() and path.exists()]


@contextmanager
def required(asked: str, library: str, extra: str) -> Iterator[None]:
    """Around the import of a library: without it, an error with the exact install command."""
    try:
        yield
    except ImportError as error:
        raise UserError(
            f"{asked}: {library} cannot be imported ({error}); run `pip install '{extra}'`"
        ) from error


def package_version(name: str) -> str:
    """An installed package and its version."""
    try:
        return f"{name} {installed_version(name)}"
    except PackageNotFoundError:
        return f"{name}, version unknown"


def _resolve(name: str) -> tuple[Registration, str | None]:
    kind, _, argument = name.partition(":")
    if kind.endswith(".py"):
        _import_file(Path(kind))
        kind, _, argument = argument.partition(":")
    elif kind in BUILT_IN:
        importlib.import_module(f"{__name__}.{kind}")
    if kind not in _registry:
        known = dict.fromkeys((*BUILT_IN, *_registry))
        raise UserError(
            f"detector {name!r}: unknown; choose among {', '.join(known)}"
            f"{did_you_mean(kind, known)}"
        )
    return _registry[kind], argument or None


def _import_file(path: Path) -> None:
    """Run a user's own file, once per process."""
    module_name = f"{_FILE}{path.expanduser().resolve()}"
    if module_name in sys.modules:
        return
    if not path.expanduser().is_file():
        raise UserError(f"detector {str(path)!r}: no such file; check the path")
    spec = importlib.util.spec_from_file_location(module_name, path.expanduser())
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[module_name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[module_name]
        raise UserError(f"detector {str(path)!r}: its file fails ({error!r})") from error
