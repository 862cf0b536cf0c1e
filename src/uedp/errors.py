"""UserError: a mistake the user can fix; CorpusWarning: one that they may want to."""

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(Exception):
    """A mistake the user can fix: a wrong argument or file, or a missing package.

    The message is one line that names the file or field, the value, and the remedy. Commands print
    it without a traceback and exit with code 2; any other exception is a bug and keeps its
    traceback.
    """


class CheckFailedError(UserError):
    """A check that was asked for gave the answer no; commands exit with code 1."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """For the end of an error about a name: `; did you mean X?`, or nothing."""
    close = get_close_matches(name.lower(), list(known), 1, 0.6)
    return f"; did you mean {close[0]}?" if close else ""


class CorpusWarning(UserWarning):
    """A corpus was written, but its entities, users or texts look wrong."""
