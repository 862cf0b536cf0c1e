"""From a file or a table to the next epoch of a corpus: read as the corpus was, then extend it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from uedp.corpus import readers, users
from uedp.corpus.readers import SkippedRecords
from uedp.corpus.records import Columns
from uedp.corpus.sentence import Sentence
from uedp.corpus.store import Corpus
from uedp.entities.detection import detection_of
from uedp.entities.extension import Extension, extend
from uedp.entities.reading import InputTexts, language_of, open_reading
from uedp.errors import UserError
from uedp.progress import SILENT, Progress

_SAME = "same"


def extend_corpus(
    corpus: Corpus | Path | str,
    source: Any = None,
    *,
    forget: Sequence[str] = (),
    reader: str = "auto",
    encoding: str | None = None,
    delimiter: str | None = None,
    user: str = "user",
    text: str = "text",
    label: str | None = None,
    marks: str | None = None,
    split: str | None = _SAME,
    workers: int = 1,
    seed: int = 0,
    skip_invalid: bool | SkippedRecords = False,
    progress: Progress = SILENT,
) -> Extension:
    """Add text to a corpus, in place, as its next epoch; or let users leave it.

    Detectors, categories, lists and rules are those that the corpus was made with. A user of the
    same name is the same user. Of a corpus with users held out, new text is divided by the same
    rule; of one with users formed at random, the new texts form new users.

    Args:
        source: as for `build_corpus`; None if users only leave.
        forget: names of users who leave: no round from this epoch on uses their text, neither
            that of before nor any that comes later.
        split: as for `build_corpus`; by default as the corpus was.
        seed: of users formed at random.

    Guarantees:
      - those of `extension.extend`
    """
    opened = corpus if isinstance(corpus, Corpus) else Corpus(corpus)
    if len(opened.epochs) != len(Corpus(opened.folder).epochs):
        raise UserError(f"{opened.folder}: is opened at an earlier epoch; open it anew")
    detection = replace(detection_of(opened), workers=workers)
    if source is None:
        if not forget:
            raise UserError("nothing to add: name new data, or users to forget")
        return extend(opened, (), detection, forget=forget, progress=progress)
    made = opened.info["source"]
    if not isinstance(made, dict):
        made = {}
    if "deidentified" in made:
        raise UserError(f"{opened.folder}: is de-identified; extend the corpus that it came from")
    reading = open_reading(
        source,
        reader=reader,
        encoding=encoding,
        delimiter=delimiter,
        columns=Columns(user, text, label, marks),
        detectors=detection.detectors,
        groups=lambda kind: _groups(opened.folder, made, kind),
        seed=seed,
        skip_invalid=skip_invalid,
        otherwise=made.get("reader"),
    )
    sentences: Iterable[Sentence] = reading.records(progress)
    if reading.groups:
        number = len(opened.epochs) + 1  # groups of other texts are other users
        formed = sentences
        sentences = (replace(one, user=f"epoch-{number:04d}-{one.user}") for one in formed)
    origin = {
        **reading.origin,
        "assigned_users": made.get("assigned_users"),
        "hold_out": made.get("hold_out"),
    }
    if held := made.get("hold_out"):
        sentences = _on_side(sentences, held, origin)
    texts = InputTexts(reading, _language(split, reading.kind, made), origin, sentences)
    return extend(
        opened,
        filter(None, texts.sentences()),
        detection,
        forget=forget,
        origin=origin,
        position=reading.position,
        total=reading.total,
        progress=progress,
    )


def _groups(corpus: Path, made: dict[str, Any], kind: str) -> tuple[float, float] | None:
    """The sizes of users that are formed at random, if those of the corpus were."""
    if not (assigned := made.get("assigned_users")):
        if kind in readers.WITHOUT_USERS:
            raise UserError(
                f"{corpus}: its users are people, and {kind} has no users; give data with users"
            )
        return None
    mean, std = str(assigned).split(",")
    return float(mean), float(std)


def _language(split: str | None, kind: str, made: dict[str, Any]) -> str | None:
    if split != _SAME:
        return language_of(split, kind)
    before = made.get("split")
    return str(before["language"]) if isinstance(before, dict) else None


def _on_side(
    sentences: Iterable[Sentence], held: dict[str, Any], origin: dict[str, Any]
) -> Iterator[Sentence]:
    """The texts of users on the side of a hold-out that the corpus is on."""
    wanted, other = held["side"] == "held out", 0
    for sentence in sentences:
        if users.held_out(sentence.user, held["share"], held["seed"]) == wanted:
            yield sentence
        else:
            other += 1
    origin["on_the_other_side"] = other
