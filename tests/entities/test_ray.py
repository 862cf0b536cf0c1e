"""Ray itself, in commands of its own: the same corpus, nothing left, no text in errors and logs."""

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cli.test_signals import alive, wait_for
from tests.entities.test_sharding import contents, left_in, rows, shards_in, write
from uedp.corpus.records import Columns
from uedp.corpus.sentence import Sentence
from uedp.entities.build import build_corpus
from uedp.entities.ray_workers import RayWorkers
from uedp.entities.shards import ShardSettings, block_shard
from uedp.errors import UserError

pytest.importorskip("ray")
pytestmark = pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks into /proc")

SECRET = "Rumpelstiltskin"
SLOW = '''
import os, signal, sys, time
from pathlib import Path
from uedp.corpus.sentence import Span
from uedp.entities.detectors import register_detector


@register_detector("slow-of-ray", version="1")
class Slow:
    """Says what it reads, waits, and finds the first word; fails at a text that asks for it."""

    propagates = True

    def __init__(self, argument):
        with open("loaded", "a") as file:
            file.write(".")

    def detect(self, texts):
        for text in texts:
            print(text)
            print(text, file=sys.stderr, flush=True)
            if "please fail" in text:
                raise ValueError(text)
            if "please die" in text:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(float(os.environ.get("UEDP_WAIT", 0)))
            yield [Span(0, len(text.split()[0]), "PER")]
'''


@pytest.fixture
def place(tmp_path):
    """Files to detect, a detector, and a temporary folder where nothing may stay."""
    for number in range(6):
        write(tmp_path / "many" / f"part-{number}.jsonl", rows(20 * number, 20))
    text = {"user": "eve", "text": f"{SECRET} called."}
    with (tmp_path / "many" / "part-0.jsonl").open("a") as file:
        file.write(json.dumps(text) + "\n")
    (tmp_path / "slow.py").write_text(SLOW)
    (tmp_path / "loaded").touch()
    yield tmp_path
    wait_for(lambda: not processes(tmp_path), 60)


def command(*options, engine="ray"):
    return [
        *(sys.executable, "-m", "uedp", "detect", "many", "--engine", engine),
        *("--detector", "slow.py:slow-of-ray,patterns", *options),
    ]


def environment(place, **more):
    """Paths, and a mark by which the processes of this test are known."""
    path = os.pathsep.join([*filter(None, sys.path), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "UEDP_TEST": str(place), **more}


def detect(place, *options, engine="ray", **variables):
    return subprocess.run(
        command(*options, engine=engine),
        cwd=place,
        env=environment(place, **variables),
        capture_output=True,
        text=True,
        timeout=240,
    )


def local(place):
    """The corpus of the local engine."""
    with contextlib.chdir(place):
        detectors = ("slow.py:slow-of-ray", "patterns")
        build_corpus("many", "local", detectors=detectors, on_warning=lambda text: None)
    return contents(place / "local")


def processes(place):
    """Those that were started with the mark of this test."""
    mark, found = f"UEDP_TEST={place}\0".encode(), []
    for each in Path("/proc").iterdir():
        if each.name.isdigit() and alive(int(each.name)):
            try:
                if mark in (each / "environ").read_bytes() + b"\0":
                    found.append(int(each.name))
            except OSError:
                continue
    return found


def ray_folders():
    return {path for path in Path("/tmp").glob(".uedp-ray.*") if path.is_dir()}


def test_ray_gives_the_local_corpus_and_leaves_nothing(place):
    before = ray_folders()
    done = detect(place, "--out", "c", "--workers", "2")
    assert done.returncode == 0, done.stderr
    assert SECRET not in done.stdout + done.stderr
    assert (place / "loaded").read_text() in (".", "..")  # once in a worker, not in a batch
    assert not processes(place)
    assert ray_folders() <= before
    assert left_in(place) == []
    assert contents(place / "c") == local(place)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3])
def test_any_number_of_workers_gives_the_same(workers, place):
    assert detect(place, "--out", "c", "--workers", str(workers)).returncode == 0
    assert contents(place / "c") == local(place)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_command_is_continued(number, place):
    started = subprocess.Popen(
        command("--out", "c", "--workers", "2"),
        cwd=place,
        env=environment(place, UEDP_WAIT="0.1"),
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    wait_for(lambda: shards_in(place), 120)
    logs = b"".join(
        path.read_bytes()
        for folder in ray_folders()
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink()
    )
    assert logs
    assert SECRET.encode() not in logs
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in ray_folders()} == {0o700}
    if number == signal.SIGINT:  # as a terminal does, to all of them
        os.killpg(started.pid, number)
    else:
        os.kill(started.pid, number)
    began = time.monotonic()
    _, errors = started.communicate(timeout=60)
    if number != signal.SIGKILL:
        assert started.returncode == 128 + number
        assert errors.startswith(f"note: {place}/.c.shards: keeps ".encode())
        assert errors.count(b"\n") == 1
        assert time.monotonic() - began < 20
    wait_for(lambda: not processes(place), 60)
    kept = len(shards_in(place))
    assert 0 < kept < 6
    assert not (place / "c").exists()
    again = detect(place, "--out", "c", "--workers", "1")
    assert again.returncode == 0, again.stderr
    assert contents(place / "c") == local(place)
    assert left_in(place) == []


@pytest.mark.slow
def test_mistakes_are_one_line_and_bugs_do_not_quote(place):
    with (place / "many" / "part-3.jsonl").open("a") as file:
        file.write("{\n")
    results = {name: detect(place, "--out", "c", engine=name) for name in ("local", "ray")}
    assert {each.returncode for each in results.values()} == {2}
    note, error = results["ray"].stderr.splitlines()
    assert "finished shards, which are private" in note
    assert error == results["local"].stderr.splitlines()[-1]
    assert error.startswith("error: many/part-3.jsonl:21: broken JSON")
    write(place / "many" / "part-3.jsonl", [{"user": "u", "text": f"please fail {SECRET}"}])
    done = detect(place, "--out", "c")
    assert done.returncode == 70
    assert "ValueError in a worker of Ray: " in done.stderr
    assert "slow.py:" in done.stderr
    assert SECRET not in done.stderr
    write(place / "many" / "part-3.jsonl", [{"user": "u", "text": f"please die {SECRET}"}])
    dead = detect(place, "--out", "c")
    assert dead.returncode == 2
    assert "a worker failed (" in dead.stderr.splitlines()[-1]
    assert SECRET not in dead.stderr
    missing = detect(place, "--out", "d", "--detector", "spacy:no_such_pipeline")
    assert missing.returncode == 2
    assert "no_such_pipeline" in missing.stderr
    assert missing.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_cluster_that_does_not_answer_is_named(place):
    done = detect(place, "--out", "c", RAY_ADDRESS="127.0.0.1:1")
    assert done.returncode == 2
    assert done.stderr.startswith("error: RAY_ADDRESS=127.0.0.1:1: no cluster of Ray answers")
    assert left_in(place) == []


CLUSTER = """
import ray, sys, time
ray.init(address="local", num_cpus=1, include_dashboard=False, _temp_dir=sys.argv[1])
print("at", ray.get_runtime_context().gcs_address, flush=True)
time.sleep(300)
"""


@pytest.mark.slow
def test_a_cluster_with_fewer_processors_than_workers_is_used_and_stays(place):
    with (
        tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as folder,
        subprocess.Popen(
            [sys.executable, "-c", CLUSTER, folder],
            env=environment(place),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as cluster,
    ):
        try:
            line = cluster.stdout.readline().split()
            assert line[0] == "at"
            done = detect(place, "--out", "c", "--workers", "3", RAY_ADDRESS=line[1])
            assert done.returncode == 0, done.stderr
            again = detect(place, "--out", "d", RAY_ADDRESS=line[1])
            assert again.returncode == 0, again.stderr
            assert cluster.poll() is None
        finally:
            cluster.terminate()
    assert contents(place / "c") == contents(place / "d")
    assert contents(place / "c") == local(place)


@pytest.mark.slow
def test_whoever_has_no_token_is_not_let_in(place):
    started = subprocess.Popen(
        command("--out", "c"),
        cwd=place,
        env=environment(place, UEDP_WAIT="0.2"),
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(lambda: shards_in(place), 120)
        (port,) = {
            path.read_text()
            for folder in ray_folders()
            for path in folder.glob("ray/session_2*/gcs_server_port_*")
        }
        code = (
            f"import ray; ray.init('127.0.0.1:{port}', log_to_driver=False); "
            "print(ray.get(ray.remote(lambda: 'let in').remote()))"
        )
        told = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=120
        )
        assert told.returncode != 0
        assert "let in" not in told.stdout
    finally:
        started.terminate()
        started.wait(60)


def test_a_start_that_fails_is_one_line(tmp_path, monkeypatch):
    class Broken:
        def is_initialized(self):
            return False

        def init(self, **options):
            raise Exception("The current node timed out during startup.")

        def shutdown(self):
            pass

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    settings = ShardSettings(("labels",), None, "jsonl", Columns())
    before = ray_folders()
    shards = iter([(0, block_shard([Sentence("u", "x")], 0))])
    with ExitStack() as stack:
        workers = RayWorkers(Broken(), settings, 2, stack)
        with pytest.raises(UserError, match=r"cannot be started here \(The current"):
            list(workers.run(shards))
    assert ray_folders() <= before
