"""UserError: a mistake the user can fix."""


class UserError(Exception):
    """A mistake the user can fix: a wrong argument or file, or a missing package.

    The message is one line that names the file or field, the value, and the remedy. Commands print
    it without a traceback and exit with code 2; any other exception is a bug and keeps its
    traceback.
    """
