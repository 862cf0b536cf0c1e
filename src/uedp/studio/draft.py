"""Changes to what a corpus protects, tried out before they are applied.

A draft is a set of lists, categories and detectors beside those the corpus was made with. Every
change is first estimated from the mentions that there are (a fraction of a second), then computed
exactly in a thread, by linking the raw hits again into a folder that is removed at the end. The
corpus itself is replaced only by `apply`.
"""

import shutil
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from uedp import files
from uedp.corpus.folder import ledgers_locked
from uedp.corpus.store import Corpus
from uedp.entities.canonical import Canon, canonical
from uedp.entities.categories import BASE, expand_categories
from uedp.entities.detection import lists_of, relink, relink_trial
from uedp.entities.lists import Lists
from uedp.errors import UserError
from uedp.incidence import Incidence
from uedp.mechanism.sampling import usable_share
from uedp.progress import Meter
from uedp.studio.browse import View
from uedp.studio.estimate import estimated_incidence
from uedp.studio.list_files import read_list_files, write_list_files
from uedp.studio.protection import Protection


@dataclass(frozen=True)
class Figures:
    """What a choice costs and covers; `exact` unless it is an estimate."""

    usable: float
    sentences: int
    sensitive: int
    entities: int
    exact: bool = True

    @classmethod
    def of(cls, incidence: Incidence, exact: bool = True) -> "Figures":
        named = incidence.entity_sentences.counts
        return cls(
            usable=usable_share(incidence),
            sentences=incidence.sentences,
            sensitive=incidence.sentences - int(incidence.extended.sum()),
            entities=int((named > 0).sum()),
            exact=exact,
        )


@dataclass(frozen=True)
class Progressed:
    """How far the work in the background is; `version` changes with everything the page shows."""

    version: int
    busy: bool
    stage: str = ""
    part: float = 0.0
    error: str = ""


class _Superseded(Exception):  # noqa: N818 - not an error
    """Another change came before this one was computed."""


class Draft:
    """The changes that a person makes to one corpus.

    Guarantees:
      - lists are on disk before a change is answered (`list_files`), and read again at the start
      - the corpus changes by `apply` only, and then as `relink` does it
      - requests never wait for a computation: `figures` and `view` are the latest there are
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.RLock()
        self._stack = ExitStack()
        self._scratch: Path | None = None
        self._thread: threading.Thread | None = None  # that computes the present choice
        self._threads: list[threading.Thread] = []  # with those that have yet to give up
        self._generation = self._version = 0
        self._stage, self._part, self._error, self.said = "", 0.0, "", ""
        self._applying = False
        self._history: list[Protection] = []
        self._open()
        self.choice = self._with_files(self.applied)
        self._begin()

    def _open(self) -> None:
        """Read the corpus as it is on disk now."""
        corpus = Corpus(self.folder)
        self._signature = self._stat()
        self.base = self.view = View(corpus)
        self.before = self.after = Figures.of(corpus.incidence)
        self.refusal = _why_not_editable(corpus)
        lists = Lists() if self.refusal else lists_of(corpus)
        self.applied = Protection(
            lists,
            expand_categories(corpus.info["categories"]),
            frozenset(corpus.detectors),
            bool(corpus.info.get("propagated")),
        )

    def _stat(self) -> tuple[int, int]:
        status = (self.folder / "corpus.json").stat()
        return status.st_ino, status.st_mtime_ns

    def refresh(self) -> None:
        """Follow the corpus if another process has replaced it."""
        with self._lock:
            if self._applying or self._signature == self._stat():
                return
            unchanged = self.choice == self.applied
            self._open()
            self.choice = self.applied if unchanged else self._with_files(self.applied)
            self._history.clear()
            self._begin()

    def _with_files(self, choice: Protection) -> Protection:
        if self.refusal:
            return choice
        return replace(choice, lists=choice.lists.with_more(read_list_files(self.folder)))

    # ---- changes ----

    def add(self, kind: str, entry: str, meaning: str) -> None:
        """Put an entry on a list: `public` (with the reason), `sensitive` (with the category),
        or `aliases` (with the entity it stands for). The last word on an entity holds.
        """
        entry, meaning = entry.strip(), meaning.strip()
        if not entry or not meaning:
            raise UserError("both fields are needed; fill in the empty one")
        if kind == "sensitive" and meaning not in BASE:
            raise UserError(f"unknown category {meaning!r}; choose one of the list")
        lists = _without(self.choice.lists, kind, entry)
        self._set_list(lists, kind, {**getattr(lists, kind), entry: meaning})

    def remove(self, kind: str, entry: str) -> None:
        """Take an entry off a list."""
        mapping = dict(getattr(self.choice.lists, kind))
        if mapping.pop(entry, None) is None:
            raise UserError(f"{entry!r} is not on the list; reload the page")
        self._set_list(self.choice.lists, kind, mapping)

    def _set_list(self, lists: Lists, kind: str, entries: dict[str, str]) -> None:
        given: dict[str, Any] = {kind: entries}
        self._set(replace(self.choice, lists=replace(lists, **given)))

    def protect(
        self,
        categories: frozenset[str],
        detectors: frozenset[str],
        shipped: tuple[str, ...],
        propagate: bool,
    ) -> None:
        """Choose the categories, detectors and shipped lists."""
        if not categories or not detectors & self.applied.detectors:
            raise UserError("at least one category and one detector must stay on")
        lists = replace(self.choice.lists, shipped=shipped)
        detectors &= self.applied.detectors
        self._set(Protection(lists, expand_categories(categories), detectors, propagate))

    def undo(self) -> None:
        """Take back the last change."""
        with self._lock:
            if not self._history:
                raise UserError("there is nothing to undo")
            last = self._history.pop()
            self._set(last, remember=False)

    def discard(self) -> None:
        """Take back all changes."""
        self._set(self.applied)

    @property
    def can_undo(self) -> bool:
        return bool(self._history)

    @property
    def changed(self) -> bool:
        return self.choice != self.applied

    def _set(self, choice: Protection, remember: bool = True) -> None:
        if self.refusal:
            raise UserError(self.refusal)
        Canon(choice.lists.aliases)  # refuses aliases that contradict each other
        with self._lock:
            if self._applying:
                raise UserError("the changes are being applied; wait until they are")
            if choice == self.choice:
                return
            try:
                write_list_files(self.folder, choice.lists)
            except UserError:
                write_list_files(self.folder, self.choice.lists)
                raise
            if remember:
                self._history.append(self.choice)
            self.choice, self.said = choice, ""
            self._begin()

    # ---- what is computed in the background ----

    @property
    def progressed(self) -> Progressed:
        with self._lock:
            busy = self._thread is not None
            return Progressed(self._version, busy, self._stage, self._part, self._error)

    def _begin(self) -> None:
        """Compute what the choice amounts to; what was being computed for another is given up."""
        with self._lock:
            self._generation += 1
            self._version += 1
            self._error = self._stage = ""
            self._part, self._thread = 0.0, None
            if not self.changed:
                self.view, self.after = self.base, self.before
                return
            self._start(self._compute, self._generation, self.choice)

    def _start(self, work: Any, *arguments: Any) -> None:
        self._threads = [each for each in self._threads if each.is_alive()]
        self._thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(self._thread)
        self._thread.start()

    def _compute(self, generation: int, choice: Protection) -> None:
        work: Path | None = None
        try:
            estimate = estimated_incidence(self.base, self.applied, choice)
            if estimate is not None:
                self._publish(generation, after=Figures.of(estimate, exact=False))
            work = self._folder() / f"trial-{generation}"
            work.mkdir(mode=0o700)
            corpus = relink_trial(
                work,
                self.base.corpus,
                lists=choice.lists,
                categories=choice.categories,
                propagate=choice.propagate,
                detectors=choice.detectors,
                progress=_Watched(self, generation),
            )
            view = View(corpus)
            view.load()
            self._publish(generation, after=Figures.of(corpus.incidence), view=view, done=True)
        except _Superseded:
            pass
        except BaseException as error:
            self._failed(generation, error)
        finally:
            if work is not None:  # maps of files that are gone stay readable
                shutil.rmtree(work, ignore_errors=True)

    def _publish(
        self, generation: int, after: Figures, view: View | None = None, done: bool = False
    ) -> None:
        with self._lock:
            self._check(generation)
            self.after = after
            self.view = view or self.view
            self._version += 1
            if done:
                self._thread = None

    def _check(self, generation: int) -> None:
        if generation != self._generation:
            raise _Superseded

    def _failed(self, generation: int, error: BaseException, done: bool = True) -> None:
        if not isinstance(error, UserError | OSError):
            traceback.print_exception(error)
        with self._lock:
            if generation == self._generation:
                self._thread = None if done else self._thread
                self._version += 1
                self._error = str(error) or type(error).__name__

    def _folder(self) -> Path:
        with self._lock:
            if self._scratch is None:
                beside = Path(self.folder).resolve()
                self._scratch = self._stack.enter_context(files.scratch_dir(beside))
            return self._scratch

    # ---- applying ----

    def locked_by_a_run(self) -> bool:
        """Whether a run has the corpus in use, so that it cannot be replaced now."""
        try:
            with ledgers_locked(self.folder.resolve()):
                return False
        except UserError:
            return True

    def apply(self) -> None:
        """Replace the corpus by one with these changes, in the background."""
        if self.refusal:
            raise UserError(self.refusal)
        if self.choice.detectors != self.applied.detectors:
            raise UserError("switch all detectors on to apply; to drop one, detect again without")
        if self.locked_by_a_run():
            raise UserError(
                "a training run is using this corpus; its entities stay fixed until the run has "
                "ended. The lists are kept: apply them then"
            )
        with self._lock:
            if self._applying or not self.changed:
                raise UserError("there is nothing to apply, or it is being applied already")
            self._generation += 1
            self._version += 1
            self._applying, self._error = True, ""
            self._start(self._apply, self._generation, self.choice)

    def _apply(self, generation: int, choice: Protection) -> None:
        try:
            relink(
                self.base.corpus,
                lists=choice.lists,
                categories=choice.categories,
                propagate=choice.propagate,
                progress=_Watched(self, generation),
            )
            with self._lock:
                self._open()
                self.choice = self.applied
                self._history.clear()
                self._thread, self._version = None, self._version + 1
                self.said = "The changes are applied: the corpus was linked again."
        except _Superseded:
            pass
        except BaseException as error:
            with self._lock:
                self._applying = False
                if generation == self._generation:
                    self._begin()  # `apply` gave up what was being computed
                    self._failed(self._generation, error, done=False)
        finally:
            self._applying = False

    def close(self) -> None:
        """Give up what is being computed, and remove it from the disk."""
        with self._lock:
            self._generation += 1
            threads = list(self._threads)
        for thread in threads:
            thread.join(timeout=10)
        self._stack.close()


class _Watched:
    """Progress that the page asks for; it ends the work that nobody waits for any more."""

    def __init__(self, draft: Draft, generation: int) -> None:
        self._draft, self._generation = draft, generation
        self._name, self._total, self._done = "", 0, 0

    @contextmanager
    def stage(self, name: str, total: int | None, unit: str) -> Iterator[Meter]:
        self._name, self._total, self._done = name, total or 0, 0
        yield self

    def advance(self, items: int, position: int | None = None) -> None:
        self._done += items
        draft = self._draft
        draft._check(self._generation)
        draft._stage, draft._part = self._name, min(self._done / max(self._total, 1), 1.0)

    def within(self, part: float, text: str) -> None:
        pass

    def note(self, text: str) -> None:
        pass


def _why_not_editable(corpus: Corpus) -> str:
    """Why a corpus can be looked at only; empty if it can be corrected."""
    if type(corpus.info.get("hits")) is int:
        return ""
    why = (
        "its text was normalised" if corpus.info.get("normalised") else "it is of an older version"
    )
    return f"this corpus keeps no hits ({why}), so it can be looked at but not corrected"


def _without(lists: Lists, kind: str, entry: str) -> Lists:
    """The lists without what contradicts a new entry."""
    form = canonical(entry)

    def others(mapping: Mapping[str, str]) -> dict[str, str]:
        return {name: value for name, value in mapping.items() if canonical(name) != form}

    if kind == "public":
        return replace(lists, sensitive=others(lists.sensitive), aliases=others(lists.aliases))
    if kind == "sensitive":
        return replace(lists, public=others(lists.public))
    return replace(lists, public=others(lists.public), aliases=others(lists.aliases))
