"""UserError: a mistake the user can fix; CorpusWarning: one that they may want to."""


class UserError(Exception):
    """A mistake the user can fix: a wrong argument or file, or a missing package.

    The message is one line that names the file or field, the value, and the remedy. Commands print
    it without a traceback and exit with code 2; any other exception is a bug and keeps its
    traceback.
    """


class CorpusWarning(UserWarning):
    """A corpus was written, but its entities, users or texts look wrong."""
