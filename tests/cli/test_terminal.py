import io
import re
import time

import pytest
from rich.console import Console

from uedp.cli import main, terminal
from uedp.errors import UserError
from uedp.progress import SILENT


@pytest.fixture
def screen(monkeypatch):
    """What a person at a terminal would see, and a short patience."""
    console = Console(force_terminal=True, width=120, record=True, file=io.StringIO())
    monkeypatch.setattr(terminal, "Console", lambda **options: console)
    monkeypatch.setattr(terminal, "_QUIET_SECONDS", 0.2)
    return console


def test_a_stage_that_never_advances_still_shows(screen):
    with terminal.TerminalProgress().stage("thinking", None, "thoughts"):
        time.sleep(0.6)
    assert "thinking" in screen.export_text()


def test_a_quick_stage_shows_nothing(screen):
    with terminal.TerminalProgress().stage("blinking", 10, "blinks") as meter:
        meter.advance(10)
    time.sleep(0.3)
    assert "blinking" not in screen.export_text()


def test_rate_and_position_are_shown(screen):
    with terminal.TerminalProgress().stage("reading", 1000, "records") as meter:
        for _ in range(6):
            time.sleep(0.11)
            meter.advance(1000, 100)
        time.sleep(0.2)
    shown = screen.export_text()
    assert "6,000 records" in shown
    assert "/s" in shown


def test_a_note_stands_under_the_bar(screen):
    with terminal.TerminalProgress().stage("training", 60, "rounds") as meter:
        time.sleep(0.3)
        meter.advance(1)
        meter.note("epsilon 3.2\n of 8")
        time.sleep(0.2)
    lines = screen.export_text().splitlines()
    assert "  epsilon 3.2\\n of 8" in [line.rstrip() for line in lines]


def test_what_was_done_before_does_not_count_as_speed(screen, monkeypatch):
    shown = []
    monkeypatch.setattr(terminal._Bars, "update", lambda *_, rate="", **others: shown.append(rate))
    with terminal.TerminalProgress().stage("training", 2000, "rounds") as meter:
        meter.advance(1000, 1000)
        for done in range(1001, 1004):
            time.sleep(0.15)
            meter.advance(1, done)
    assert shown[-1].startswith("1,003 rounds")
    assert not re.search(r"\d{2}/s", shown[-1])


def test_counting_many_items_is_cheap(screen):
    with terminal.TerminalProgress().stage("reading", None, "records") as meter:
        began = time.perf_counter()
        for _ in range(100_000):
            meter.advance(1)
        assert time.perf_counter() - began < 2  # Rich itself needs tens of microseconds each


def test_silence_without_a_terminal():
    assert terminal.progress() is SILENT


def test_plain():
    assert terminal.plain("naïve 名 a\nb\x1b[2J\u202ec") == "naïve 名 a\\nb\\x1b[2J\\u202ec"


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("run: exists; add `overwrite=True`", "run: exists; add --overwrite"),
        ("no owner; use `assign_users=...`", "no owner; use --assign-users"),
        ("`detectors=...`: name at least one", "--detector: name at least one"),
        ("`workers=0`: at least one is needed", "--workers 0: at least one is needed"),
        ("a folder; use `reader='hf'`, or a file", "a folder; use --reader hf, or a file"),
        ("or leave out `propagate=False`", "or leave out --no-propagate"),
        ("`a_b=True` or `c=...`", "--a-b or --c"),
        ("write `privacy.epsilon=4`", "write `privacy.epsilon=4`"),
        ("name one of `labels`, `spacy:NAME`", "name one of `labels`, `spacy:NAME`"),
        ("name=True and epsilon=4", "name=True and epsilon=4"),
    ],
)
def test_parameters_become_flags(message, shown):
    assert terminal.with_flags(message) == shown


def test_errors_name_flags_on_the_command_line_only(monkeypatch, capsys, tmp_path):
    def refuse(*arguments, **options):
        raise UserError(f"{tmp_path}: exists already; add `overwrite=True`")

    monkeypatch.setattr("uedp.entities.deidentify.deidentify", refuse)
    monkeypatch.setattr("uedp.corpus.store.Corpus", lambda path: path)
    with pytest.raises(SystemExit) as ended:
        main(["deidentify", "corpus", "--out", str(tmp_path)])
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"error: {tmp_path}: exists already; add --overwrite\n"
