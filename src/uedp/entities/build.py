"""From a file or a table to a corpus: read, assign users, split, detect."""

import os
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from uedp.corpus import readers, users
from uedp.corpus.folder import new_corpus_folder
from uedp.corpus.normalise import Splitter
from uedp.corpus.readers import OnError, SkippedRecords, raise_error
from uedp.corpus.records import Columns
from uedp.corpus.sentence import Sentence
from uedp.corpus.source import Source, TableSource
from uedp.corpus.store import USERS, Corpus, SentenceWriter, read_arrow, written_sentences
from uedp.entities.categories import expand_categories
from uedp.entities.detection import Detection, detect_into
from uedp.entities.lists import read_lists
from uedp.entities.warnings import corpus_warnings
from uedp.errors import CorpusWarning, UserError
from uedp.progress import SILENT, Progress

_AUTO, _NONE, _DEFAULT_LANGUAGE = "auto", "none", "en"
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
    skip_invalid: bool | SkippedRecords = False,
    overwrite: bool = False,
    on_warning: Callable[[str], None] | None = None,
    progress: Progress = SILENT,
) -> Corpus:
    """Read text, detect its entities, and write a corpus to the folder `out`.

    Args:
        source: a path (a file of any format in `READERS`, a folder from `save_to_disk` or one of
            mail), a pandas or polars DataFrame, or a `datasets.Dataset`
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
        skip_invalid: skip invalid records; a `SkippedRecords` counts them
        overwrite: replace `out` if it is a corpus
        on_warning: called with each of `corpus_warnings`; by default they are `CorpusWarning`s

    Guarantees:
      - a path, a DataFrame and a Dataset with the same rows give the same corpus, apart from the
        name of the source in `corpus.json`
      - `out` appears complete or not at all (`detect`), and so do `out` and `hold_out` together
      - all texts of a user are on one side, which depends on the name and the seed alone
    """
    opened: Source | TableSource
    if isinstance(source, str | Path):
        opened = Source(Path(source), encoding, delimiter)
    else:
        opened = TableSource(source)
    kind = readers.choose_reader(reader, opened) if isinstance(opened, Source) else str(opened)
    detection = Detection(
        detectors=_listed(detectors),
        categories=expand_categories(categories),
        propagate=propagate,
        normalised=normalise,
        lists=read_lists(allow_list, deny_list, aliases, public_lists),
        workers=workers,
    )
    if marks is None and "labels" in detection.detectors:
        marks = "marks"
    groups = assign_users or (DEFAULT_GROUPS if kind in readers.WITHOUT_USERS else None)
    columns = Columns(None if groups else user, text, label, marks)
    language = language_of(split, kind)
    if hold_out is not None:
        users.check_share(hold_out_share)

    def records(on_error: OnError) -> Iterator[Sentence]:
        return readers.read_sentences(opened, kind, columns, on_error)

    skipped = SkippedRecords() if skip_invalid is True else skip_invalid
    sentences: Iterable[Sentence] = records(skipped or raise_error)
    if groups:
        users.check_groups(*groups, seed)
        if not opened.rereadable:
            raise UserError(f"{opened}: a pipe; users are formed in two readings, give a file")
        count = count_records(
            records(SkippedRecords() if skipped else raise_error), opened, progress
        )
        if isinstance(opened, Source):
            opened.dropped.clear()  # it is counted again
        sentences = users.assign_users(sentences, users.random_groups(count, *groups, seed))
    origin = {
        "file": opened.path.name if isinstance(opened, Source) else None,
        "reader": kind,
        "assigned_users": "{:g},{:g}".format(*groups) if groups else None,
    }

    def pieces(texts: Iterable[Sentence], origin: dict[str, Any]) -> Iterator[Sentence]:
        return split_texts(texts, language, opened, origin)

    reading: dict[str, Any] = {
        "position": (lambda: opened.position) if opened.size else None,
        "total": opened.size or None,
    }
    if hold_out is None:
        with new_corpus_folder(Path(out), overwrite) as work:
            texts = pieces(sentences, origin)
            detect_into(work, texts, detection, origin, progress=progress, **reading)
    else:
        chosen = {"share": hold_out_share, "seed": seed}
        rest = {**origin, "hold_out": {**chosen, "side": "training"}}
        other = {**origin, "hold_out": {**chosen, "side": "held out"}}
        with _two_folders(Path(out), Path(hold_out), overwrite) as (work, aside):
            spool = aside / "texts"
            spool.mkdir()
            kept = _without_held_out(sentences, hold_out_share, seed, SentenceWriter(spool))
            texts = pieces(kept, rest)
            detect_into(work, texts, detection, rest, progress=progress, **reading)
            _check_sides(work, spool, hold_out_share)
            texts = pieces(written_sentences(spool), other)
            detect_into(aside, texts, detection, other, progress=progress)
            shutil.rmtree(spool)
    corpus = Corpus(out)
    for warning in corpus_warnings(corpus):
        if on_warning:
            on_warning(warning)
        else:
            warnings.warn(warning, CorpusWarning, stacklevel=2)
    return corpus


def split_texts(
    texts: Iterable[Sentence],
    language: str | None,
    source: Source | TableSource,
    origin: dict[str, Any],
) -> Iterator[Sentence]:
    """The sentences of texts; at the end, what was split and dropped is entered in `origin`."""
    divide = Splitter(language) if language else None
    for each in texts:
        yield from divide(each) if divide else (each,)
    origin["split"] = divide.counts() if divide else None
    if isinstance(source, Source) and source.dropped:
        origin["dropped"] = dict(source.dropped)


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


def language_of(split: str | None, kind: str) -> str | None:
    """The language to split by; None for no splitting."""
    if split == _AUTO:
        return None if kind in readers.WITH_SENTENCES else _DEFAULT_LANGUAGE
    if split in (None, _NONE):
        return None
    Splitter(split)  # refuses what is no language
    return split


def _listed(detectors: str | Sequence[str]) -> tuple[str, ...]:
    names = detectors.split(",") if isinstance(detectors, str) else detectors
    return tuple(name.strip() for name in names)


def count_records(
    records: Iterable[Sentence], source: Source | TableSource, progress: Progress
) -> int:
    count = 0
    with progress.stage("counting records", source.size or None, "records") as meter:
        for _ in records:
            count += 1
            meter.advance(1, source.position if source.size else None)
    return count
