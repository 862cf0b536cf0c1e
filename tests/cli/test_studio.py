"""The command `uedp studio` as a person starts and stops it."""

import signal
import socket
import subprocess
import sys

import httpx
import pytest

from tests.studio.conftest import make_corpus


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_it_starts_answers_and_stops(tmp_path, number, code):
    folder = make_corpus(tmp_path / "corpus").folder
    command = [sys.executable, "-m", "uedp", "studio", folder, "--runs", tmp_path, "--no-open"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        lines = iter(process.stdout.readline, "")
        url = next(line.strip() for line in lines if "http" in line)
        assert url.startswith("http://127.0.0.1:")
        with httpx.Client(follow_redirects=True, trust_env=False) as client:
            page = client.get(url)
            assert page.status_code == 200
            assert "token" not in str(page.url)
            fields = {"kind": "public", "entry": "Bob", "meaning": "x"}
            origin = {"origin": str(page.url.copy_with(path="/"))[:-1]}
            # something is being computed when it stops
            assert client.post(f"{page.url}/list", data=fields, headers=origin).status_code == 200
            process.send_signal(number)
        rest, errors = process.communicate()
    assert process.returncode == code
    assert errors == ""
    assert ("The studio has stopped." in rest) == (code == 0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus", "corpus.lists"]


def test_wrong_arguments_are_refused_in_one_line(run, tmp_path):
    assert "listens on this machine only" in run("studio", "--host", "0.0.0.0").err
    assert "no such folder" in run("studio", "--runs", tmp_path / "none").err
    assert "not a corpus" in run("studio", tmp_path).err
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        outcome = run("studio", "--port", port)
    assert outcome.code == 2
    assert f"--port {port}: cannot be used on 127.0.0.1" in outcome.err
    assert outcome.err.count("\n") == 1
