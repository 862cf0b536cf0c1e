"""The `uedp` command: parse, call, print. Nothing is decided here."""

import errno
import sys

import typer

from uedp.cli import data
from uedp.errors import UserError

app = typer.Typer(
    help="Train language models under user-entity differential privacy.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
data.register(app)

# Trouble with the person's disk or paths, not with the program.
_OUTSIDE = {
    errno.ENOSPC,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOTDIR,
    errno.EEXIST,
    errno.EISDIR,
    errno.EDQUOT,
}


def main(arguments: list[str] | None = None) -> None:
    """Run a command. A user's error is one line on stderr and exit code 2; a bug is a traceback."""
    try:
        app(args=arguments)
    except UserError as error:
        _refuse(str(error))
    except OSError as error:
        if error.errno not in _OUTSIDE:
            raise
        _refuse(f"{error.filename or 'disk'}: {error.strerror}; choose another place, or make room")


def _refuse(message: str) -> None:
    sys.stdout.flush()
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)
