"""What all readers share: the registry, and what becomes of invalid records."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from uedp.corpus.records import Columns
from uedp.corpus.sentence import Sentence
from uedp.corpus.source import Source
from uedp.errors import UserError

# Called with the error of each invalid record: raises it, or returns to skip the record.
OnError = Callable[[UserError], None]
Reader = Callable[[Source, Columns, OnError], Iterator[Sentence]]


@dataclass(frozen=True)
class Format:
    """A reader, and what is known of the files it reads.

    Args:
        suffixes: file names that end in one of these are of this format
        has_users: whether a record names its user
        has_sentences: whether a record is one sentence (or a unit that people annotated) already
        numbers_users: whether its users are numbered from one in every file
        reads_folders: whether it reads a folder itself, as one source
    """

    read: Reader
    suffixes: tuple[str, ...] = ()
    has_users: bool = True
    has_sentences: bool = False
    numbers_users: bool = False
    reads_folders: bool = False


FORMATS: dict[str, Format] = {}


def register_reader(
    name: str,
    *suffixes: str,
    has_users: bool = True,
    has_sentences: bool = False,
    numbers_users: bool = False,
    reads_folders: bool = False,
) -> Callable[[Reader], Reader]:
    """Enter a reader under a name, see `Format`."""

    def register(read: Reader) -> Reader:
        FORMATS[name] = Format(
            read, suffixes, has_users, has_sentences, numbers_users, reads_folders
        )
        return read

    return register


def raise_error(error: UserError) -> None:
    """Stop at the first invalid record."""
    raise error


class SkippedRecords:
    """Skip invalid records; count them, and keep the first error."""

    def __init__(self) -> None:
        self.count = 0
        self.first = ""

    def __call__(self, error: UserError) -> None:
        self.first = self.first or str(error)
        self.count += 1


@contextmanager
def reported_to(on_error: OnError) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        on_error(error)
