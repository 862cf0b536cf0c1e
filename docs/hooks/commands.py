"""The command reference, written from the Typer app when the site is built."""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from uedp.cli import EXIT_CODES, app

_TYPES: dict[Any, str] = {Path: "PATH", int: "INTEGER", float: "NUMBER"}
_TYPES |= {"path": "PATH", "integer": "INTEGER", "float": "NUMBER"}  # of Typer before 0.29
_OPENING = """\
# Commands

Every command with its options, written from the program itself. `uedp COMMAND --help` prints the
same in a terminal.
"""

_AROUND = """\
With `--json`, a command prints one JSON document on stdout
and everything else on stderr; keys are added, but not renamed. `null` stands for an epsilon that is
not finite.

## Shell completion

`uedp --install-completion` teaches bash, zsh, fish or PowerShell the commands, options, detectors,
categories, methods, and which folders are corpora or runs. Start a new terminal after it.

## If something does not work

`uedp doctor` checks libraries, machine, random source, accountant and clipping, and says what to
do; `uedp doctor CORPUS RUN` checks these, too. Send what it prints with a bug report, together with
`uedp --version --verbose`.
"""


def command_page() -> str:
    root = typer.main.get_command(app)
    commands = list(_commands(root, "uedp"))
    rows = [f"| [`{path}`](#{_anchor(path)}) | {_summary(command)} |" for path, command in commands]
    table = ["| command | what it does |", "|---|---|", *rows]
    sections = (_section(*one) for one in commands)
    return "\n".join([_OPENING, *table, "", _exit_codes(), _AROUND, *sections])


def _exit_codes() -> str:
    """The table of exit codes, from the words of `uedp --help`."""
    _, *lines = EXIT_CODES.splitlines()
    rows = (f"| {code} | {meaning} |" for code, meaning in (line.split(None, 1) for line in lines))
    return "\n".join(["## Exit codes", "", "| code | meaning |", "|---|---|", *rows, ""])


def _commands(group: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every command that can be run, in the order of `--help`."""
    for name, command in group.commands.items():
        if command.hidden:
            continue
        if hasattr(command, "commands"):
            yield from _commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def _section(path: str, command: Any) -> str:
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option"]
    usage = " ".join([path, *map(_metavar, arguments), "[OPTIONS]"])
    parts = [f"## {path} {{ #{_anchor(path)} }}", f"```\n{usage}\n```", _prose(command)]
    if arguments:
        parts.append(_table("argument", ((f"`{_metavar(one)}`", one) for one in arguments)))
    panels: dict[str, list[Any]] = {}
    for option in options:
        panels.setdefault(option.rich_help_panel or "option", []).append(option)
    for panel, members in panels.items():
        parts.append(_table(panel.lower(), ((_names(one), one) for one in members)))
    if command.examples:
        examples = "\n".join(command.examples)
        parts.append(f"Examples:\n\n```\n{examples}\n```")
    return "\n\n".join(parts) + "\n"


def _prose(command: Any) -> str:
    """The help of a command, a paragraph on each line."""
    text = inspect.cleandoc((command.help or "").replace("\f", "").replace("\b", ""))
    paragraphs = (" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text))
    return "\n\n".join(map(_escaped, filter(None, paragraphs)))


def _summary(command: Any) -> str:
    first = re.split(r"\n\s*\n", (command.help or "").strip())[0]
    return _escaped(" ".join(first.split()))


def _table(kind: str, rows: Any) -> str:
    lines = [f"| {kind} | meaning |", "|---|---|"]
    for name, parameter in rows:
        words = _escaped(" ".join((parameter.help or "").split()))
        lines.append(f"| {name} | {words}{_default(parameter)} |")
    return "\n".join(lines)


def _names(option: Any) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    return names if option.is_flag else f"{names} `{_metavar(option)}`"


def _metavar(parameter: Any) -> str:
    if parameter.metavar:
        return str(parameter.metavar).strip("[]")
    if parameter.param_type_name == "argument":
        name = parameter.name.upper()
        return name + "..." if parameter.nargs == -1 else name
    described = getattr(parameter, "type_descriptor", None)  # of newer releases of Typer
    kind = parameter.type.name.split()[0] if described is None else described.annotation
    return _TYPES.get(kind, "TEXT")


def _default(parameter: Any) -> str:
    """The default, unless the help says it."""
    if parameter.required:
        return " **Required.**"
    value = parameter.default
    shown = getattr(parameter, "show_default", False)
    if not shown or callable(value) or isinstance(value, bool) or not value:
        return ""
    words = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return f" Default: `{words}`."


def _escaped(text: str) -> str:
    """Text for a cell of a table; what is not code shows its brackets and stars as they are."""
    parts = re.split(r"(`[^`]*`)", text)
    for n in range(0, len(parts), 2):
        parts[n] = re.sub(r"([<>*_\[\]])", r"\\\1", parts[n])
    return "".join(parts).replace("|", "\\|")


def _anchor(path: str) -> str:
    return path.replace(" ", "-")
