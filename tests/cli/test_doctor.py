"""`uedp doctor`: it finds what is wrong, says what to do, and exits accordingly."""

import contextlib
import fcntl
import json
import math
import shutil
import tempfile
import tomllib
from pathlib import Path

import pytest
from scipy import stats

from tests.cli.story import TINY, typed
from uedp.audit.bounds import gaussian_epsilon
from uedp.cli import checks
from uedp.mechanism.clip.engine import Engine

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A corpus and a run on it."""
    folder = tmp_path_factory.mktemp("made")
    with contextlib.chdir(folder):
        typed("sample --people 30 --out messages.jsonl")
        typed("detect messages.jsonl --out corpus --detector labels")
        typed(f"train --corpus corpus --epsilon 8 --out run {TINY} --method user-level")
    return folder


@pytest.fixture
def here(made, tmp_path, monkeypatch):
    shutil.copytree(made, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


@pytest.fixture
def quick(monkeypatch):
    """Without the checks that take a second, for tests of others."""
    for name in ("accelerator", "processor", "randomness", "accountant", "private_round", "hub"):
        monkeypatch.setattr(checks, name, lambda *_: iter(()))


def found(run, *arguments):
    done = run("doctor", *arguments, "--json")
    assert done.err == ""
    answer = json.loads(done.out)
    assert done.code == (1 if answer["problems"] else 0)
    return {one["name"]: one for one in answer["checks"]}


def test_a_working_installation(here, run):
    done = run("doctor", "corpus", "run")
    assert done.code == 0, done.out
    assert "everything needed works" in done.out
    for name in ("libraries", "randomness", "accountant", "private round", "corpus: digests"):
        assert any(
            line.startswith("ok ") and f" {name} " in line for line in done.out.splitlines()
        ), name
    assert "run: certificate" in done.out


def test_extras_are_those_of_the_package():
    optional = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    assert set(checks.EXTRAS) == set(optional) - {"test", "dev", "docs", "browser"}
    for extra, (_, names) in checks.EXTRAS.items():
        assert any(line.startswith(names[0]) for line in optional[extra])


@pytest.mark.parametrize("noise", [0.7, 2.0, 9.0])
def test_the_formula_of_the_gaussian(noise):
    epsilon, low, high = gaussian_epsilon(1 / noise, 1e-5), 1 / (2 * noise), -1 / (2 * noise)
    near, far = stats.norm.cdf(low - epsilon * noise), stats.norm.cdf(high - epsilon * noise)
    assert near - math.exp(epsilon) * far == pytest.approx(1e-5, rel=1e-6)


UNCHANGED = Engine.clipped_sum


def clip_users_only(self, losses, owners, clips, update_clip):
    return UNCHANGED(self, losses, owners, clips + 1e9, update_clip)


BROKEN = {
    "uedp.accounting.proven.epsilon": (lambda *_: 1.0, "accountant"),
    "uedp.mechanism.clip.engine.Engine.clipped_sum": (clip_users_only, "private round"),
    "uedp.mechanism.noise.SecureNoise.add_": (lambda *_: None, "randomness"),
    "os.urandom": (bytes, "randomness"),
}


@pytest.mark.parametrize("target", BROKEN)
def test_a_broken_mechanism_is_a_problem(target, monkeypatch):
    broken, name = BROKEN[target]
    monkeypatch.setattr(target, broken)
    (one,) = checks.run_check(name, getattr(checks, name.replace(" ", "_")))
    monkeypatch.undo()
    assert (one.name, one.status) == (name, "problem")
    assert one.remedy


def test_locks_that_do_not_lock(here, run, quick, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    assert found(run)["file locks"]["status"] == "problem"


def test_no_temporary_files(here, run, quick, monkeypatch):
    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    one = found(run)["temporary files"]
    assert (one["status"], "TMPDIR" in one["remedy"]) == ("problem", True)


def test_an_old_library_has_its_command(here, run, quick, monkeypatch):
    real = checks.installed
    monkeypatch.setattr(checks, "installed", lambda name: "0.1" if name == "peft" else real(name))
    one = found(run)["peft"]
    assert one["status"] == "problem"
    assert one["remedy"].startswith("pip install 'peft")


def test_a_missing_extra_is_no_problem(here, run, quick, monkeypatch):
    monkeypatch.setattr(checks, "installed", lambda name: None if name == "wandb" else "99")
    one = found(run)["wandb"]
    assert one["status"] == "ok"
    assert one["remedy"] == "pip install 'uedp[wandb]'"


def test_a_check_that_fails_is_told(here, run, quick, monkeypatch):
    def fail():
        raise RuntimeError("no\nluck")

    monkeypatch.setattr(checks, "python", fail)
    one = found(run)["python"]
    assert (one["status"], one["found"]) == ("problem", "RuntimeError: no luck")


def test_the_network_is_asked_only_if_told(monkeypatch):
    asked = []

    def refuse(request, timeout):
        asked.append(request.full_url)
        raise OSError("no route")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("urllib.request.urlopen", refuse)
    list(checks.hub(False))
    assert not asked
    (one,) = checks.hub(True)
    assert len(asked) == 1
    assert (one.status, "no route" in one.found) == ("warning", True)


def test_a_changed_corpus(here, run, quick):
    path = here / "corpus" / "corpus.json"
    info = json.loads(path.read_text())
    path.write_text(json.dumps({**info, "text_digest": "0" * 64}))
    one = found(run, "corpus")["corpus: corpus"]
    assert (one["status"], "changed since detection" in one["found"]) == ("problem", True)
    assert "detect the corpus again" in one["remedy"]
    path.write_text(json.dumps({**info, "format": 1}))
    assert found(run, "corpus")["corpus: corpus"]["status"] == "problem"


def test_a_changed_certificate(here, run, quick):
    path = here / "run" / "certificate.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "epsilon": 0.1}))
    assert found(run, "run")["run: certificate"]["status"] == "problem"


def test_a_run_that_was_killed(here, run, quick):
    (here / "run" / "result.json").unlink()
    (here / "run" / "config.yaml.partial").touch()
    (here / "run" / ".model.0123456789ab").mkdir()
    (here / "run").chmod(0o755)
    rows = found(run, "run")
    assert rows["run: state"]["remedy"] == "uedp train --resume --out run"
    for name in ("state", "leftovers", "permissions"):
        assert rows[f"run: {name}"]["status"] == "warning"
    assert ".partial" in rows["run: leftovers"]["found"]
    with (here / "run" / "run.json").open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert found(run, "run")["run: state"]["found"] == "in use by another process"


@pytest.mark.parametrize("folder", ["nowhere", "."])
def test_another_folder_is_a_mistake(folder, here, run):
    done = run("doctor", folder)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: ")
