"""The library names parameters and config fields; only the command line names flags."""

import ast
import re
from pathlib import Path

import pytest
import typer

import uedp
from uedp.cli import app
from uedp.cli.terminal import with_flags

SOURCE = Path(uedp.__file__).parent
# a flag such as --out, or a command such as `uedp train`
COMMAND_LINE = re.compile(r"(?<![\w-])--[a-z][a-z-]+|`uedp [a-z]")
PARAMETER = re.compile(r"`([a-z][a-z_]*)=[^`]+`")
# the first calls pip with its own flags, the second starts the programs of Flower with theirs; the
# third writes a page for people with a model only
OTHER_PROGRAMS = {"models/packaged.py", "distributed/nodes.py", "accounting/card.py"}
LIBRARY = sorted(
    path.relative_to(SOURCE).as_posix()
    for path in SOURCE.rglob("*.py")
    if path.parent.name not in ("cli", "studio")  # the studio shows commands to copy
)


def strings(path: Path) -> list[tuple[int, str]]:
    """The string literals of a module with their lines, the parts of f-strings joined by `{}`."""
    found = []
    inside = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            inside.update(id(part) for part in node.values)
            parts = (part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
            found.append((node.lineno, "".join(map(str, parts))))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found += [] if id(node) in inside else [(node.lineno, node.value)]
    return found


@pytest.mark.parametrize("module", LIBRARY)
def test_the_library_names_no_flags_and_no_commands(module):
    if module in OTHER_PROGRAMS:
        pytest.skip("flags of another program, or for other people")
    named = [
        f"{module}:{line}: {text}"
        for line, text in strings(SOURCE / module)
        if COMMAND_LINE.search(text)
    ]
    assert not named


def test_a_flag_is_recognised(tmp_path):
    """The search itself, on what it must find and what it must not."""
    module = tmp_path / "module.py"
    for text in ('"use --out"', 'f"{x}: add --resume"', '"see `uedp detect`"'):
        module.write_text(f"x = {text}")
        assert any(COMMAND_LINE.search(each) for _, each in strings(module)), text
    module.write_text('x = ("a -- b", "`out=...`", "a--b", f"{x}---")')
    assert not any(COMMAND_LINE.search(each) for _, each in strings(module))


def errors(path: Path) -> list[str]:
    """The string literals in the user errors of a module."""
    calls = [
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "UserError"
    ]
    return [
        node.value
        for call in calls
        for node in ast.walk(call)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def options(command) -> set[str]:
    names = {name for parameter in command.params for name in parameter.opts}
    for child in getattr(command, "commands", {}).values():
        names |= options(child)
    return names


def test_parameters_in_errors_have_a_flag():
    """What `with_flags` makes of them exists in some command."""
    known = options(typer.main.get_command(app))
    named = {
        with_flags(f"`{name}=...`")
        for module in LIBRARY
        for text in errors(SOURCE / module)
        for name in PARAMETER.findall(text)
    }
    assert named - known == set()
