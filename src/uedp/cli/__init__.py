"""The `uedp` command: parse, call, print. Nothing is decided here."""

import sys
from types import FrameType

import typer

from uedp.cli import audit, data, entities, privacy, train
from uedp.cli.processor import set_up_threads
from uedp.cli.terminal import plain, with_flags
from uedp.errors import UserError
from uedp.signals import handled_by

app = typer.Typer(
    help="Train language models under user-entity differential privacy.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
for command in (
    *(data.sample, data.detect, data.inspect, entities.entities, data.coverage),
    *(data.deidentify, data.categories),
    *(privacy.calibrate, privacy.plan, privacy.ledger),
    *(train.train, train.evaluate, train.generate, train.unpack),
):
    app.command()(command)
app.add_typer(privacy.account, name="account")
app.add_typer(privacy.certificate, name="certificate")
app.add_typer(audit.audit, name="audit")


def main(arguments: list[str] | None = None) -> None:
    set_up_threads()
    run_app(app, arguments)


def run_app(app: typer.Typer, arguments: list[str] | None, program: str | None = None) -> None:
    """Run a command. A user error is one line on stderr and exit code 2; a bug is a traceback."""
    try:
        with handled_by(_stop):
            app(args=arguments, prog_name=program)
    except UserError as error:
        _refuse(str(error))
    except OSError as error:  # the person's disk, paths or permissions
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        _refuse(f"{what or 'disk'}; check the path, the permissions, and the room on the disk")


def _stop(number: int, frame: FrameType | None) -> None:
    """Unwind the stack, so that whatever was begun is cleared away."""
    raise SystemExit(128 + number)


def _refuse(message: str) -> None:
    sys.stdout.flush()
    print(f"error: {plain(with_flags(message))}", file=sys.stderr)
    sys.exit(2)
