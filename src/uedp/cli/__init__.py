"""The `uedp` command: parse, call, print. Nothing is decided here."""

import errno
import re
import sys
import traceback
from io import TextIOWrapper
from types import FrameType
from typing import Any

import typer
from typer import Option

from uedp.cli import (
    account,
    certificate,
    coverage,
    data,
    detect,
    doctor,
    entities,
    extend,
    federate,
    plan,
    report,
    studio,
    synthetic,
    train,
)
from uedp.cli.help import CommandLineError, Commands
from uedp.cli.processor import set_up_threads
from uedp.cli.terminal import plain, with_flags
from uedp.cli.version import show_version
from uedp.errors import CheckFailedError, UserError
from uedp.signals import handled_by

CLOSED_PIPE = 141  # 128 + SIGPIPE
BUG = 70  # EX_SOFTWARE of sysexits.h: not 1, which is an answer
EXIT_CODES = """Exit codes:
  0    success
  1    the answer is no: a check failed, an audit refuted a guarantee
  2    a mistake in the command, its files or the machine, named in one line
  70   a bug in uedp, with a traceback: please report it
  130  stopped by Ctrl-C (128 + the number of any other signal)
"""

# messages of Typer and Click in words for a person at a terminal; older ones word them otherwise
_REWORDED = (
    (
        r"Input should be a valid number, .* as a number|'[^']*' is not a valid float",
        "not a number",
    ),
    (
        r"Input should be a valid integer, .*integer|'[^']*' is not a valid integer",
        "not a whole number",
    ),
    (r"Value error, ", ""),
    (r"\. Did you mean", "; did you mean"),
    (r"(; did you mean '.*'\?) Did you mean '.*'\?", r"\1"),
    (r"\(Possible options: ", "(there is "),
    (r"[;.] \(?[Dd]id you mean(?: one of:)? ((?:'-[\w-]+'(?:, )?)+)\?\)?", r" (there is \1)"),
    (r"'(-[\w-]+)'(?=[,)])", r"\1"),
    (r"No such option '(-[\w-]+)'", r"No such option: \1"),
)

app = Commands(epilog=EXIT_CODES)
# the sections of the help page, in the order in which a person needs them
_SECTIONS = {
    "Text and entities": (
        *(data.sample, detect.detect, extend.extend, data.inspect, entities.entities),
        *(coverage.coverage, data.deidentify, data.categories),
    ),
    "Budget": (account.account, account.calibrate, plan.plan, certificate.ledger),
    "Models": (*(train.train, federate.federate, train.evaluate, train.generate, train.unpack),),
    "Evidence": (
        *(report.report, certificate.certificate, certificate.card, synthetic.audit),
        studio.studio,
    ),
    "Installation": (doctor.doctor,),
}
for _section, _commands in _SECTIONS.items():
    for _command in _commands:
        if isinstance(_command, typer.Typer):
            app.add_typer(_command, rich_help_panel=_section)
        else:
            app.command(rich_help_panel=_section)(_command)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: bool = Option(False, "--version", help="Show the version and exit."),
    verbose: bool = Option(
        False, "--verbose", help="With --version: also the versions of what it uses."
    ),
) -> None:
    """Train language models under user-entity differential privacy.

    Examples:
      uedp sample --out messages.jsonl
      uedp detect messages.jsonl --detector labels,patterns --out corpus
      uedp train --corpus corpus --model gpt2 --epsilon 8 --out run
    """
    if version:
        show_version(verbose)
    elif context.invoked_subcommand is None:
        context.fail("missing command")
    elif verbose:
        context.fail("--verbose is for --version")


def main(arguments: list[str] | None = None) -> None:
    set_up_threads()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # names in text need not fit the terminal's encoding
            stream.reconfigure(errors="backslashreplace")
    run_app(app, arguments, "uedp")


def run_app(app: typer.Typer, arguments: list[str] | None, program: str | None = None) -> None:
    """Run a command, and exit with its code.

    A user error is one line on stderr and exit code 2; a failed check, 1; a bug, a traceback.
    """
    try:
        with handled_by(_stop):
            code = app(args=arguments, prog_name=program, standalone_mode=False)
    except SystemExit as stop:
        # so Typer and Rich end when a reader such as `head` has closed stdout: no answer
        sys.exit(CLOSED_PIPE if stop.code == 1 else stop.code)
    except CommandLineError as error:
        _refuse(_usage(error))
    except UserError as error:
        _refuse(str(error), 1 if isinstance(error, CheckFailedError) else 2)
    except OSError as error:  # the person's disk, paths or permissions
        if error.errno == errno.ENOSPC:
            where = f"{error.filename}: " if error.filename else ""
            _refuse(f"{where}no space left on the disk; free some, or choose another disk")
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        _refuse(f"{what or 'disk'}; check the path, the permissions, and the room on the disk")
    except Exception:
        sys.stdout.flush()
        traceback.print_exc()
        print("this is a bug in uedp; please report it, with `uedp doctor`", file=sys.stderr)
        sys.exit(BUG)
    sys.exit(code if isinstance(code, int) else 0)


def _usage(error: Any) -> str:
    """What is wrong with the words that were typed, and where to read about them."""
    message = " ".join(error.format_message().split())
    for words, better in _REWORDED:
        message = re.sub(words, better, message)
    context = getattr(error, "ctx", None)
    hint = "" if context is None else f"; see `{context.command_path} --help`"
    return message[:1].lower() + message[1:].rstrip(".") + hint


def _stop(number: int, frame: FrameType | None) -> None:
    """Unwind the stack, so that whatever was begun is cleared away."""
    raise SystemExit(128 + number)


def _refuse(message: str, code: int = 2) -> None:
    sys.stdout.flush()
    print(f"error: {plain(with_flags(message))}", file=sys.stderr)
    sys.exit(code)
