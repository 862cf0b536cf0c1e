"""From a file or a table to a corpus: read, assign users, split, detect."""

import os
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from uedp.corpus import readers, users
from uedp.corpus.folder import new_corpus_folder
from uedp.corpus.readers import SkippedRecords
from uedp.corpus.records import Columns
from uedp.corpus.sentence import Sentence
from uedp.corpus.store import USERS, Corpus, SentenceWriter, read_arrow, written_sentences
from uedp.entities.categories import expand_categories
from uedp.entities.detection import Batches, Detection, detect_into, on_this_machine
from uedp.entities.lists import read_lists
from uedp.entities.ray_workers import ray_workers
from uedp.entities.reading import InputTexts, Reading, language_of, open_reading
from uedp.entities.sharding import Executor, Start, over_shards, shard_settings
from uedp.entities.shards import ShardFolder
from uedp.entities.warnings import corpus_warnings
from uedp.errors import CorpusWarning, UserError
from uedp.progress import SILENT, Progress

ENGINES: dict[str, Start] = {"ray": ray_workers}  # beside `local`
DEFAULT_GROUPS = (15.0, 2.0)  # the paper's, for data sets without users


def build_corpus(
    source: Any,
    out: Path | str,
    *,
    reader: str = "auto",
    encoding: str | None = None,
    delimiter: str | None = None,
    user: str = "user",
    text: str = "text",
    label: str | None = None,
    marks: str | None = None,
    detectors: str | Sequence[str] = ("patterns",),
    categories: str | Iterable[str] = "default",
    split: str | None = "auto",
    normalise: bool = False,
    assign_users: tuple[float, float] | None = None,
    seed: int = 0,
    hold_out: Path | str | None = None,
    hold_out_share: float = 0.1,
    propagate: bool = True,
    allow_list: Path | str | None = None,
    deny_list: Path | str | None = None,
    aliases: Path | str | None = None,
    public_lists: Sequence[str] = (),
    workers: int = 1,
    engine: str = "local",
    skip_invalid: bool | SkippedRecords = False,
    overwrite: bool = False,
    on_warning: Callable[[str], None] | None = None,
    on_note: Callable[[str], None] | None = None,
    progress: Progress = SILENT,
) -> Corpus:
    """Read text, detect its entities, and write a corpus to the folder `out`.

    Args:
        source: a path (a file of any format in `READERS`, a folder of files of one format, from
            `save_to_disk` or of mail), a pandas or polars DataFrame, or a `datasets.Dataset`
        reader: the format of a file; `auto` goes by its suffix
        encoding: of a text file; by default UTF-8, or what its byte order mark says
        delimiter: of a CSV file; by default recognised from its header
        user: the column that names the author
        text: the column with the text
        label: the column with a class label, if any
        marks: the column with human marks, a list of `{start, end, label}`, if any
        detectors: names such as `patterns`, `spacy:en_core_web_sm`, or one of your own; a list, or
            separated by commas
        categories: the categories to protect; unions such as `pii` are allowed. The default is
            all but percentages, and years, months and weekdays alone
        split: the language by whose rules texts are split into sentences. `auto`: English, except
            for formats whose records are sentences already; None or `none`: every text stays whole
        normalise: lower-case the text and remove punctuation, after detection
        assign_users: form users at random, of sizes with this mean and standard deviation
        seed: of `assign_users` and `hold_out`
        hold_out: a second folder, for a corpus of users that are held out of the first. Measures
            on them are released without noise: use it for text you may look at
        hold_out_share: the probability that a user is held out
        propagate: what models found in enough of its places is protected in all of them
        allow_list: a CSV file of entities that are public (`read_lists`)
        deny_list: a CSV file of entities that are always sensitive
        aliases: a CSV file of other names of entities
        public_lists: shipped lists of public entities to switch on, by name (`PUBLIC_LISTS`)
        workers: processes that run detectors at the same time; the result is the same
        engine: `local`: processes of this machine. `ray`: those of Ray, on the cluster that the
            variable RAY_ADDRESS names or else on this machine. What was detected when the process
            is stopped or killed is kept, and taken up when it is started again in the same way
        skip_invalid: skip invalid records; a `SkippedRecords` counts them
        overwrite: replace `out` if it is a corpus
        on_warning: called with each of `corpus_warnings`; by default they are `CorpusWarning`s
        on_note: called at once if what an earlier process has detected cannot be used, or what
            this one has detected is kept for another attempt; by default a `CorpusWarning`, too

    Guarantees:
      - a path, a DataFrame and a Dataset with the same rows give the same corpus, apart from the
        name of the source in `corpus.json`
      - `out` appears complete or not at all (`detect`), and so do `out` and `hold_out` together
      - all texts of a user are on one side, which depends on the name and the seed alone
    """
    detection = Detection(
        detectors=_listed(detectors),
        categories=expand_categories(categories),
        propagate=propagate,
        normalised=normalise,
        lists=read_lists(allow_list, deny_list, aliases, public_lists),
        workers=workers,
    )
    reading = open_reading(
        source,
        reader=reader,
        encoding=encoding,
        delimiter=delimiter,
        columns=Columns(user, text, label, marks),
        detectors=detection.detectors,
        groups=lambda kind: (
            assign_users or (DEFAULT_GROUPS if kind in readers.WITHOUT_USERS else None)
        ),
        seed=seed,
        skip_invalid=skip_invalid,
    )
    language = language_of(split, reading.kind)
    if hold_out is not None:
        users.check_share(hold_out_share)
    run = _engine(engine, reading, language, detection, Path(out), on_note or _warn)
    if hold_out is None:
        with new_corpus_folder(Path(out), overwrite) as work, run as detector:
            records = reading.records(progress) if reading.groups else None
            texts = InputTexts(reading, language, reading.origin, records)
            batches = detector.batches(texts)
            detect_into(work, batches, detection, texts.origin, reading.total, progress)
            detector.finish(work.parent)
    else:
        chosen = {"share": hold_out_share, "seed": seed}
        rest = {**reading.origin, "hold_out": {**chosen, "side": "training"}}
        other = {**reading.origin, "hold_out": {**chosen, "side": "held out"}}
        with _two_folders(Path(out), Path(hold_out), overwrite) as (work, aside), run as detector:
            spool = aside / "texts"
            spool.mkdir()
            records = reading.records(progress)
            kept = _without_held_out(records, hold_out_share, seed, SentenceWriter(spool))
            batches = detector.batches(InputTexts(reading, language, rest, kept))
            detect_into(work, batches, detection, rest, reading.total, progress)
            _check_sides(work, spool, hold_out_share)
            again = InputTexts(reading, language, other, written_sentences(spool), metered=False)
            batches = detector.batches(again)
            detect_into(aside, batches, detection, other, progress=progress)
            shutil.rmtree(spool)
            detector.finish(work.parent)
    corpus = Corpus(out)
    for warning in corpus_warnings(corpus):
        (on_warning or _warn)(warning)
    return corpus


class _Engine(Protocol):
    """What runs the detectors."""

    def batches(self, texts: InputTexts) -> Batches: ...

    def finish(self, scratch: Path) -> None:
        """All of it is on disk; what else is kept goes to a folder that is removed."""


class _Local:
    def __init__(self, detection: Detection) -> None:
        self._detection = detection

    def batches(self, texts: InputTexts) -> Batches:
        return on_this_machine(texts.sentences(), self._detection, texts.position)

    def finish(self, scratch: Path) -> None:
        pass


class _Sharded:
    def __init__(self, folder: ShardFolder, executor: Executor) -> None:
        self._folder, self._executor = folder, executor

    def batches(self, texts: InputTexts) -> Batches:
        return over_shards(texts, self._folder, self._executor)

    def finish(self, scratch: Path) -> None:
        self._folder.say_unused()
        self._folder.move_into(scratch)


@contextmanager
def _engine(
    name: str,
    reading: Reading,
    language: str | None,
    detection: Detection,
    out: Path,
    on_note: Callable[[str], None],
) -> Iterator[_Engine]:
    if name == "local":
        yield _Local(detection)
        return
    if name not in ENGINES:
        known = ", ".join(("local", *ENGINES))
        raise UserError(f"`engine={name!r}`: unknown; choose among {known}")
    settings = shard_settings(reading, language, detection.detectors)
    folder = ShardFolder(out, settings.digest(), on_note)
    with folder.opened(), ENGINES[name](settings, detection.workers) as executor:
        yield _Sharded(folder, executor)


def _warn(warning: str) -> None:
    warnings.warn(warning, CorpusWarning, stacklevel=3)


_FEWEST = 2  # users on either side of a hold-out


def _without_held_out(
    records: Iterable[Sentence], share: float, seed: int, held: SentenceWriter
) -> Iterator[Sentence]:
    """The records of users that are not held out; those of the others are written to `held`."""
    for record in records:
        if users.held_out(record.user, share, seed):
            held.append(record)
        else:
            yield record
    held.close()


def _check_sides(work: Path, spool: Path, share: float) -> None:
    kept, held = (read_arrow(side / "users.arrow", USERS).num_rows for side in (work, spool))
    if min(kept, held) < _FEWEST:
        raise UserError(
            f"`hold_out_share={share:g}`: holds out {held} of {kept + held} users; at least "
            f"{_FEWEST} are needed on either side: choose another share, or more users"
        )


@contextmanager
def _two_folders(one: Path, other: Path, overwrite: bool) -> Iterator[tuple[Path, Path]]:
    """Two new corpora: both appear if the block succeeds, and neither if it fails.

    Only a process killed between two renames leaves `other` alone, and only with `overwrite` may a
    failure at that moment leave `other` new and `one` old.
    """
    first, second = (Path(os.path.realpath(path)) for path in (one, other))
    if first == second or first in second.parents or second in first.parents:
        raise UserError(
            f"`hold_out={str(other)!r}`: is the folder of the corpus, or one lies in the other; "
            "choose another folder"
        )
    existed, placed = os.path.lexists(second), False
    try:
        with new_corpus_folder(one, overwrite) as work:
            with new_corpus_folder(other, overwrite) as aside:
                yield work, aside
            placed = True
    except BaseException:
        if placed and not existed:
            shutil.rmtree(second, ignore_errors=True)
        raise


def _listed(detectors: str | Sequence[str]) -> tuple[str, ...]:
    names = detectors.split(",") if isinstance(detectors, str) else detectors
    return tuple(name.strip() for name in names)
