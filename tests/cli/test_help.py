"""Help pages: every command has examples that can be typed, and a page that can be read."""

import os
import re
import shlex
import subprocess
import sys

import pytest
import typer

from uedp.cli import app
from uedp.cli.help import (
    CommandLineError,
    Commands,
    DocumentedCommand,
    DocumentedGroup,
    typed_lines,
)

MISSING = (
    "has no examples. End the docstring of its function with `Examples:` and one to three lines "
    "such as `  uedp report run --out report.html`; see cli/help.py"
)
WIDTH = 76  # with the indentation, a line of a terminal with 80 columns


def walk(command, path=("uedp",)):
    """All commands and groups with the words that name them."""
    yield " ".join(path), command
    for name, child in getattr(command, "commands", {}).items():
        yield from walk(child, (*path, name))


COMMANDS = dict(walk(typer.main.get_command(app)))
EXAMPLES = [
    (path, line)
    for path, command in COMMANDS.items()
    for line in typed_lines(getattr(command, "examples", ()))
]


def parsed(line):
    """The context of the last command of a line; fails as the command line would."""
    first, *words = shlex.split(line)
    assert first == "uedp", f"{line}: begin with uedp"
    command, name, context = COMMANDS["uedp"], "uedp", None
    while isinstance(command, DocumentedGroup):
        context = command.make_context(name, [], parent=context, resilient_parsing=True)
        name, command, words = command.resolve_command(context, words)
        if command is None:
            raise CommandLineError(f"{line}: no such command")
    return command.make_context(name, list(words), parent=context)


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_has_examples(path):
    command = COMMANDS[path]
    assert isinstance(command, DocumentedCommand | DocumentedGroup), (
        f"`{path}`: register it on a Commands of cli/help"
    )
    typed = typed_lines(command.examples)
    assert typed, f"`{path}` {MISSING}"
    assert len(typed) <= 4
    assert all(line.startswith(path) for line in typed), f"`{path}`: examples of another command"
    assert max(map(len, command.examples)) <= WIDTH, f"`{path}`: continue a long line with \\"


@pytest.mark.parametrize(("path", "line"), EXAMPLES)
def test_an_example_parses(path, line):
    parsed(line)


@pytest.mark.parametrize(
    "line",
    ["uedp train --epsilom 8", "uedp calibrate --epsilon eight", "uedp calibrate", "uedp audit it"],
)
def test_a_wrong_example_does_not_parse(line):
    """What the test above must find."""
    with pytest.raises(CommandLineError):
        parsed(line)


@pytest.mark.parametrize("path", COMMANDS)
def test_a_page_fits_a_terminal_and_a_pipe(path, run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = run(*path.split()[1:], "--help")
    assert shown.code == 0
    assert run(*path.split()[1:], "-h").out == shown.out
    assert max(map(len, shown.out.splitlines())) <= 80
    assert not re.search(r"^  -.*<(str|list)", shown.out, re.MULTILINE), "name it by a metavar"
    assert shown.out.isascii() or not re.search("[\u2500-\u257f\x1b]", shown.out)
    for line in COMMANDS[path].examples:
        assert f"\n  {line}\n" in shown.out  # not reflowed


@pytest.mark.parametrize("path", COMMANDS)
def test_every_option_is_explained(path):
    """A sentence, and what is expected where a value is."""
    for parameter in COMMANDS[path].params:
        assert parameter.help, f"`{path}`: {parameter.name} has no help"


def test_options_stand_in_sections(run):
    shown = run("train", "--help").out
    titles = re.findall(r"^(\w.*):$", shown, re.MULTILINE)
    assert titles[0] == "Arguments"
    assert titles[-2:] == ["Options", "Examples"]
    assert len(titles) >= 4


def test_the_page_of_all_commands_names_exit_codes(run):
    shown = run("--help").out
    assert re.findall(r"^  (\d+)  ", shown.partition("Exit codes:\n")[2], re.MULTILINE) == [
        *("0", "1", "2", "70", "130")
    ]


def test_a_group_without_a_command_shows_its_help(run):
    for words in ((), ("audit",), ("account",)):
        shown = run(*words)
        assert shown.code == 2
        assert shown.out == ""
        assert shown.err.rstrip("\n") == run(*words, "--help").out.rstrip("\n")


def test_colours_only_where_they_are_wanted(monkeypatch):
    toy = Commands()

    @toy.command()
    def toy_command() -> None:
        """Do nothing.

        Examples:
          # for nothing
          toy
        """

    def page(**environment):
        monkeypatch.delenv("NO_COLOR", raising=False)
        monkeypatch.setenv("TERM", "xterm")
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        command = typer.main.get_command(toy)
        return command.get_help(command.make_context("toy", [], resilient_parsing=True))

    assert "\x1b[36m-h, --help\x1b[0m" in page()
    assert "\x1b" not in page(NO_COLOR="1")
    assert "\x1b" not in page(TERM="dumb")


def test_help_in_any_locale():
    environment = os.environ | {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    arguments = [sys.executable, "-m", "uedp", "train", "--help"]
    ran = subprocess.run(arguments, env=environment, capture_output=True, check=True)
    assert ran.stdout.decode("ascii").startswith("Usage: uedp train")
