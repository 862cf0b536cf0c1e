"""The code of docs/contributing.md works as typed: each extension is one file of its own."""

import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
import yaml

from tests.mechanism.clip.test_engine import agree
from tests.mechanism.lending_suite import run_suite
from tests.mechanism.sharing_suite import run_suite as run_sharing_suite
from tests.training import worlds
from uedp.accounting import certificate, profile
from uedp.entities import detectors
from uedp.mechanism.clip import registry
from uedp.methods import base
from uedp.training import loop

PAGE = (Path(__file__).parents[1] / "docs" / "contributing.md").read_text()
BLOCKS = re.findall(
    r"^```(?:python|yaml) (\w+)=(\w+\.py)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE
)
CHECKED = ("scale.py", "by_holder.py", "equal_parts.py", "codenames.py")
REGISTRIES = (
    (base, "_METHODS"),
    (profile, "_PROFILES"),
    (registry, "_BY_TYPE"),
)


def block(kind: str, file: str) -> str:
    (text,) = (text for role, name, text in BLOCKS if (role, name) == (kind, file))
    return text


@pytest.fixture
def extension(tmp_path, monkeypatch):
    """Save a file of the page and import it; the registries are restored afterwards."""
    for module, name in REGISTRIES:
        monkeypatch.setattr(module, name, dict(getattr(module, name)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def load(file: str) -> ModuleType:
        (tmp_path / file).write_text(block("file", file))
        name = file.removesuffix(".py")
        monkeypatch.delitem(sys.modules, name, raising=False)
        module = __import__(name)
        monkeypatch.setitem(sys.modules, name, module)
        return module

    yield load
    # not a copy: built-in detectors register when first used, which must last
    detectors._registry.pop("codenames", None)


def run_check(module: ModuleType, file: str) -> dict:
    names = dict(vars(module))
    exec(compile(block("check", file), file, "exec"), names)
    return names


def train(tmp_path: Path, **changes) -> certificate.Certificate:
    config = worlds.config(worlds.model(tmp_path, "gpt2"), **changes)
    loop.run(config, tmp_path / "run", data=worlds.training_data(tmp_path / "corpus"))
    return certificate.verify(tmp_path / "run", corpus=tmp_path / "corpus")


def test_clip_rule(extension):
    module = extension("scale.py")
    run_check(module, "scale.py")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), module.Scale(5), torch.nn.Linear(5, 2))
    x = torch.randn(6, 4, 3, dtype=torch.float64)

    def losses(net, order):
        return net(x[order].to(net[0].weight.dtype)).square().sum((1, 2))

    agree(model, losses, [0, 1, 1, 0, 2, 0], 0.5, 0.8)


def test_clip_rule_is_needed(extension):
    module = extension("scale.py")
    del registry._BY_TYPE[module.Scale]
    with pytest.raises(Exception, match="has no clip rule"):
        run_check(module, "scale.py")


def test_lending_rule(extension, tmp_path):
    module = extension("by_holder.py")
    run_check(module, "by_holder.py")
    run_suite(lambda: module.lend_by_holder)
    calls = []

    def counted(incidence, key):
        calls.append(key)
        return module.lend_by_holder(incidence, key)

    module.RotationByHolder.lending_rule = staticmethod(counted)
    issued = train(tmp_path, privacy__method="rotation-by-holder")
    assert issued.private
    assert len(set(calls)) == 4  # a key per round; the rule is checked before it is used


def test_sharing_rule(extension, tmp_path):
    module = extension("equal_parts.py")
    run_check(module, "equal_parts.py")
    run_sharing_suite(lambda: module.equal_parts)
    issued = train(tmp_path, privacy__method="equal-parts")
    assert issued.private


def test_method(extension, tmp_path):
    extension("few_sentences.py")
    sections = yaml.safe_load(block("config", "few_sentences.py"))
    changes = {
        f"{section}__{field}": value
        for section, fields in sections.items()
        for field, value in fields.items()
    }
    issued = train(tmp_path, privacy__noise=None, **changes)
    assert issued.method == "few-sentences-per-user"
    assert 7.9 < issued.epsilon <= 8
    assert "one user, with a few sentences in each round" in issued.statement


def test_detector(extension, tmp_path):
    names = run_check(extension("codenames.py"), "codenames.py")
    assert np.asarray(names["corpus"].incidence.extended).tolist() == [False, True]


def test_every_block_is_executed_and_each_walk_touches_one_file():
    executed = {
        *(("file", name) for name in (*CHECKED, "few_sentences.py")),
        *(("check", name) for name in CHECKED),
        ("config", "few_sentences.py"),
    }
    assert {(kind, file) for kind, file, _ in BLOCKS} == executed
    assert PAGE.count("```") == 2 * len(BLOCKS) == 2 * len(executed)
    touched = re.findall(r"^Files touched: (.*)\.$", PAGE, re.MULTILINE)
    assert touched == [f"`{file}`" for kind, file, _ in BLOCKS if kind == "file"]
