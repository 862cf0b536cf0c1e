"""Shell completion: scripts for the usual shells, and values, without the libraries of training."""

import contextlib
import os
import shutil
import subprocess
import sys
import time

import pytest
import typer

from uedp.cli import app, complete
from uedp.entities.categories import NAMES
from uedp.entities.detectors import BUILT_IN

SLOW = ("torch", "transformers", "numpy", "pyarrow", "pydantic", "scipy", "matplotlib", "datasets")


def started(words, environment):
    """What the program prints, with these settings of its environment."""
    everything = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"} | environment
    arguments = [sys.executable, "-m", "uedp", *words]
    return subprocess.run(arguments, env=everything, capture_output=True, text=True, check=True)


def completed(*words):
    """What is offered for the last word, as the shell asks for it."""
    *before, incomplete = words
    command, context = typer.main.get_command(app), None
    name = "uedp"
    rest = list(before)
    while True:
        context = command.make_context(name, [], parent=context, resilient_parsing=True)
        if not getattr(command, "commands", None) or not rest:
            break
        name, command, rest = command.resolve_command(context, rest)
    if not rest:
        arguments = [one for one in command.params if one.param_type_name == "argument"]
        if arguments and not incomplete.startswith("-"):
            return [item.value for item in arguments[0].shell_complete(context, incomplete)]
        return [item.value for item in command.shell_complete(context, incomplete)]
    (option,) = [one for one in command.params if rest[-1] in one.opts]
    return [item.value for item in option.shell_complete(context, incomplete)]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell(shell, monkeypatch):
    asked = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    script = started(["--show-completion", shell], asked).stdout
    assert "_UEDP_COMPLETE=complete_" + shell in script
    assert "python" not in script  # of the command, however it was started
    if found := shutil.which(shell):
        subprocess.run([found, "-n"], input=script, text=True, check=True)


def test_bash_asks_and_is_answered():
    asked = {"_UEDP_COMPLETE": "complete_bash", "COMP_WORDS": "uedp ca", "COMP_CWORD": "1"}
    assert started([], asked).stdout.split() == ["categories", "calibrate", "card"]


def test_values():
    assert completed("train", "--method", "ro") == ["rotation"]
    assert completed("train", "--task", "") == ["next-word", "classification"]
    assert completed("detect", "--reader", "js") == ["jsonl", "json"]
    assert completed("unpack", "smol") == ["smollm2-135m"]
    assert completed("detect", "--detector", "labels,pat") == ["labels,patterns"]
    assert completed("detect", "--detector", "labels,lab") == []
    assert completed("detect", "--categories", "person,lo") == ["person,loc"]
    assert completed("deidentify", "--style", "ps") == ["pseudonym"]
    assert completed("train", "--epsi") == ["--epsilon"]
    assert completed("certificate", "ver") == ["verify"]


def test_folders_by_what_they_hold(tmp_path):
    for name in ("mails/corpus.json", "runs/first/run.json", "runs/notes/a.txt", "my.yaml"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    with contextlib.chdir(tmp_path):
        assert completed("inspect", "") == ["mails"]
        assert completed("evaluate", "ru") == ["runs/first"]
        assert completed("evaluate", "runs/") == ["runs/first"]
        assert completed("evaluate", "no/such/") == []  # then the shell completes file names
        assert completed("train", "") == ["paper-gpt2", "paper-bert", "paper-awd-lstm", "my.yaml"]
        assert completed("doctor", "") == ["mails", "runs/first"]


def test_the_names_are_those_that_exist():
    """They are written down here, for the modules that define them are slow to import."""
    from uedp.corpus.readers import READERS
    from uedp.methods import method_named, method_names
    from uedp.models.packaged import PACKAGES
    from uedp.training.config import preset_path

    ours = {
        name for name in method_names() if method_named(name).__module__.startswith("uedp.")
    }  # tests register more
    assert set(complete.METHODS) == ours
    assert set(complete.READERS) == {"auto", *READERS}
    assert set(complete.MODELS) == set(PACKAGES)
    assert all(preset_path(name) for name in complete.PRESETS)
    assert {name.rstrip(":") for name in complete._DETECTORS} == set(BUILT_IN)
    assert set(complete.categories("")) == set(NAMES)


def test_completion_is_quick_and_imports_nothing_slow():
    asked = {"_UEDP_COMPLETE": "complete_bash", "COMP_CWORD": "3"}
    asked["COMP_WORDS"] = "uedp detect --detector spa"
    shortest = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        assert "spacy:" in started([], asked).stdout
        shortest = min(shortest, time.perf_counter() - began)
    assert shortest < 2  # 0.2 s on a quiet machine
    code = "import sys, uedp.cli.complete as c; c.detectors(''); c.categories(''); c.corpora('')"
    code += f"; print([name for name in {SLOW} if name in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
