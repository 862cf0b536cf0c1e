"""Help pages: options in sections, examples as they are typed, plain text in a pipe.

The examples of a command are the last part of its docstring, after a line `Examples:`. A line that
begins with # says what the next one is for.
"""

import inspect
import os
import re
from collections.abc import Callable, Iterable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

_HYPHEN = "\u2011"  # where a line must not be broken, as in awd-lstm
_EXAMPLES = "\n\nExamples:\n"
# what stands for a value that has no name of its own, in newer and older releases of Typer
_VALUES = {
    r"<(int|float)( range)?>|\b(INTEGER|FLOAT)( RANGE)?\b|<list\[(int|float)\]>": "NUMBER",
    r"<(path|list\[path\])>": "PATH",
}
_HELP_NAMES = ["-h", "--help"]

CommandLineError: Any = getattr(typer, "TyperException", typer.BadParameter.__mro__[2])
"""What Typer raises for a command line that it cannot read; it was Click's ClickException once."""


class _Page:
    """What help pages of commands and of groups have in common."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Arguments as they are written everywhere else: SOURCE and [CONFIG]."""
        pieces = super().collect_usage_pieces(ctx)  # type: ignore[misc]
        return [piece.replace("{", "").replace("}", "") for piece in pieces]

    def get_help(self, ctx: Any) -> str:
        return str(super().get_help(ctx)).replace(_HYPHEN, "-")  # type: ignore[misc]


class DocumentedCommand(_Page, TyperCommand):
    """A command whose help ends with its examples."""

    def __init__(self, name: str | None, *, help: str | None = None, **settings: Any) -> None:  # noqa: A002
        text, self.examples = split_examples(help)
        super().__init__(name, help=text, **settings)

    def format_options(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        _write_options(self.get_params(ctx), ctx, formatter)

    def format_epilog(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        _write_lines("Examples", self.examples, formatter)


class DocumentedGroup(_Page, TyperGroup):
    """A group of commands, listed in sections; its help ends with its examples."""

    def __init__(self, *, help: str | None = None, epilog: str | None = None, **settings: Any):  # noqa: A002
        text, self.examples = split_examples(help)
        super().__init__(help=text, epilog=epilog, **settings)

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help(), err=True)
            ctx.exit(2)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        self.format_commands(ctx, formatter)
        _write_options(self.get_params(ctx), ctx, formatter)

    def format_commands(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        sections: dict[str, list[tuple[str, str]]] = {}
        widest = max(map(len, self.commands), default=0)
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                first = (command.help or "").partition("\n\n")[0]
                section = getattr(command, "rich_help_panel", None) or "Commands"
                padded = name.ljust(widest)  # one column for all sections
                sections.setdefault(section, []).append((_option_style(padded), _one_line(first)))
        for section, rows in sections.items():
            _write_rows(section, rows, formatter)

    def format_epilog(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        _write_lines("Examples", self.examples, formatter)
        title, _, rest = inspect.cleandoc(self.epilog or "").partition("\n")
        _write_lines(title.rstrip(":"), rest.splitlines(), formatter)


class Commands(typer.Typer):
    """A Typer whose commands and groups have our help pages."""

    def __init__(self, **settings: Any) -> None:
        settings.setdefault("context_settings", {"help_option_names": _HELP_NAMES})
        super().__init__(
            cls=DocumentedGroup, rich_markup_mode=None, pretty_exceptions_enable=False, **settings
        )

    def command(self, name: str | None = None, **settings: Any) -> Callable[..., Any]:
        settings.setdefault("cls", DocumentedCommand)
        return super().command(name, **settings)


def split_examples(text: str | None) -> tuple[str, list[str]]:
    """A docstring without its examples, and the lines of these."""
    description, _, examples = inspect.cleandoc(text or "").partition(_EXAMPLES)
    lines = inspect.cleandoc(examples).splitlines()
    return description, [line for line in lines if line.strip()]


def typed_lines(examples: Iterable[str]) -> list[str]:
    """The commands among the lines of examples, those continued by a backslash as one."""
    joined = "\n".join(line for line in examples if not line.startswith("#"))
    return [line for line in joined.replace("\\\n", " ").splitlines() if line.strip()]


def _write_options(parameters: Iterable[Any], ctx: typer.Context, formatter: Any) -> None:
    sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
    for parameter in parameters:
        record = parameter.get_help_record(ctx)
        if record is None:  # hidden
            continue
        name, text = record
        for typed, value in _VALUES.items():
            name = re.sub(typed, value, name)
        if parameter.param_type_name == "argument":
            section, name = "Arguments", (parameter.metavar or parameter.name.upper()).strip("[]")
        else:
            section = getattr(parameter, "rich_help_panel", None) or "Options"
        sections.setdefault(section, []).append((_option_style(name), _one_line(text)))
    last = sections.pop("Options")  # with --help; the others are what a command is about
    for section, rows in {**sections, "Options": last}.items():
        _write_rows(section, rows, formatter)


def _write_rows(title: str, rows: list[tuple[str, str]], formatter: Any) -> None:
    if rows:
        with formatter.section(_heading_style(title)):
            formatter.write_dl(rows, col_max=26)


def _write_lines(title: str, lines: Iterable[str], formatter: Any) -> None:
    """A section whose lines stay as they are."""
    lines = list(lines)
    if lines:
        with formatter.section(_heading_style(title)):
            for line in lines:
                shown = typer.style(line, dim=True) if line.startswith("#") and _colour() else line
                formatter.write(f"  {shown}\n")


def _one_line(text: str) -> str:
    text = " ".join(text.replace("\\[", "[").split())  # as Typer writes for Rich
    return re.sub(r"(?<=\w)-(?=\w)", _HYPHEN, text)


def _option_style(text: str) -> str:
    return typer.style(text, fg="cyan") if _colour() else text


def _heading_style(text: str) -> str:
    return typer.style(text, bold=True) if _colour() else text


def _colour() -> bool:
    """Whether colours are wanted; where output is no terminal, Typer removes them."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
