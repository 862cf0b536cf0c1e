"""From a file or a table to a corpus: read, assign users, split, detect."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from uedp.corpus import readers, users
from uedp.corpus.normalise import splitter
from uedp.corpus.readers import OnError, SkippedRecords, raise_error
from uedp.corpus.records import Columns
from uedp.corpus.sentence import Sentence
from uedp.corpus.source import Source, TableSource
from uedp.corpus.store import Corpus
from uedp.entities.categories import expand_categories
from uedp.entities.detection import Detection, detect
from uedp.entities.lists import read_lists
from uedp.entities.warnings import corpus_warnings
from uedp.errors import CorpusWarning, UserError
from uedp.progress import SILENT, Progress

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
    detectors: Sequence[str] = ("patterns",),
    categories: str | Iterable[str] = "default",
    split: str | None = None,
    normalise: bool = False,
    assign_users: tuple[float, float] | None = None,
    seed: int = 0,
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
        user, text, label, marks: the columns
        detectors: names such as `patterns`, `spacy:en_core_web_sm`, or one of your own
        categories: the categories to protect; unions such as `pii` are allowed. The default is
            all but percentages and years
        split: a language (`en`) by whose rules texts are split into sentences
        normalise: lower-case the text and remove punctuation, after detection
        assign_users: form users at random, of sizes with this mean and standard deviation
        seed: of `assign_users`
        propagate: what models found in enough of its places is protected in all of them
        allow_list, deny_list, aliases: CSV files, see `read_lists`
        public_lists: shipped lists of public entities to switch on, by name (`PUBLIC_LISTS`)
        skip_invalid: skip invalid records; a `SkippedRecords` counts them
        overwrite: replace `out` if it is a corpus
        on_warning: called with each of `corpus_warnings`; by default they are `CorpusWarning`s

    Guarantees:
      - a path, a DataFrame and a Dataset with the same rows give the same corpus, apart from the
        name of the source in `corpus.json`
      - `out` appears complete or not at all (`detect`)
    """
    opened: Source | TableSource
    if isinstance(source, str | Path):
        opened = Source(Path(source), encoding, delimiter)
    else:
        opened = TableSource(source)
    kind = readers.choose_reader(reader, opened) if isinstance(opened, Source) else str(opened)
    detection = Detection(
        detectors=tuple(detectors),
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
    split_record = splitter(split) if split else None

    def records(on_error: OnError) -> Iterator[Sentence]:
        return readers.read_sentences(opened, kind, columns, on_error)

    skipped = SkippedRecords() if skip_invalid is True else skip_invalid
    sentences: Iterable[Sentence] = records(skipped or raise_error)
    if groups:
        users.check_groups(*groups, seed)
        if not opened.rereadable:
            raise UserError(f"{opened}: a pipe; users are formed in two readings, give a file")
        count = _count(records(SkippedRecords() if skipped else raise_error), opened, progress)
        sentences = users.assign_users(sentences, users.random_groups(count, *groups, seed))
    if split_record:
        sentences = (sentence for record in sentences for sentence in split_record(record))
    corpus = detect(
        sentences,
        out,
        detection,
        origin={
            "file": opened.path.name if isinstance(opened, Source) else None,
            "reader": kind,
            "assigned_users": "{:g},{:g}".format(*groups) if groups else None,
            "split": split,
        },
        position=(lambda: opened.position) if opened.size else None,
        total=opened.size or None,
        overwrite=overwrite,
        progress=progress,
    )
    for warning in corpus_warnings(corpus):
        if on_warning:
            on_warning(warning)
        else:
            warnings.warn(warning, CorpusWarning, stacklevel=2)
    return corpus


def _count(records: Iterable[Sentence], source: Source | TableSource, progress: Progress) -> int:
    count = 0
    with progress.stage("counting records", source.size or None, "records") as meter:
        for _ in records:
            count += 1
            meter.advance(1, source.position if source.size else None)
    return count
