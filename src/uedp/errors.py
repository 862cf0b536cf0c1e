"""The one exception that is the user's to mend."""


class UserError(Exception):
    """Something outside the program is wrong: an argument, a file, a missing install.

    The message names the thing (file and line, or field), the value, and the remedy, in one
    line. Commands print it without a traceback and exit with code 2; anything else that escapes
    is a bug and shows its traceback.
    """
