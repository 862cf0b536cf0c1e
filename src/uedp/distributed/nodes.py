"""Flower's processes: a SuperLink with the server in this one, or a SuperNode with a client.

Flower would send a bundle of code to every SuperNode and run it beside the texts, in a new process
for each message. Here both run without Flower's executor ("process isolation"): this process asks
for tasks, and answers them by the app that is installed here. No code travels, whoever may submit
some to the SuperLink, and a client loads its model once.
"""

import logging
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from uedp.distributed import FLOWER_ENVIRONMENT, require_flower
from uedp.distributed.runtime import SECONDS, Connection, Tls
from uedp.errors import UserError

_BRIEFLY = 5.0  # for a process on this machine
_ATTEMPTS = 5  # of a SuperNode that answered nothing
_PAUSE = 0.1
_PROGRAMS = {
    "superlink": ("flwr.superlink.cli", "flower_superlink"),
    "supernode": ("flwr.supernode.cli", "flower_supernode"),
}


# --- the server ----------------------------------------------------------------------------------


def run_server(
    train: Callable[[Any], object],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    tls: Tls | None = None,
    log: Path | None = None,
) -> None:
    """Start a SuperLink, and call `train` with a grid of the SuperNodes that connect to it.

    Guarantees:
      - the SuperLink ends with this call, however it ends, and with this process
    """
    _set_up()
    _refuse_open(host, tls)
    secret = secrets.token_bytes(32)
    with _workspace(secret) as (folder, secret_file):
        arguments = [
            *("--isolation", "process", "--host", host, "--port", str(port)),
            *("--fleet-api-address", f"127.0.0.1:{free_port()}"),
            *("--control-api-address", f"127.0.0.1:{free_port()}"),
            *("--superexec-auth-secret-file", str(secret_file)),
            "--disable-runtime-dependency-installation",
        ]
        if tls is None:
            arguments.append("--insecure")
        else:
            arguments += ["--ssl-certfile", str(tls.certificate), "--ssl-keyfile", str(tls.key)]
            arguments += ["--ssl-ca-certfile", str(tls.authority)]
        local = "127.0.0.1" if host == "0.0.0.0" else host
        if _listening(local, port):
            raise UserError(f"`port={port}`: in use on {local}; choose another")
        with _process("superlink", arguments, folder, log) as process:
            _wait_for(local, port, process, log or folder / "superlink.log")
            connection = Connection(f"{local}:{port}", tls, secret)
            run = connection.start_run()
            token = connection.acquire("flwr-serverapp", run)
            with connection.grid(token) as grid:
                train(grid)


# --- a client ------------------------------------------------------------------------------------


def run_client(
    app: Any,
    server: str,
    *,
    tls: Tls | None = None,
    log: Path | None = None,
    stop: Callable[[], bool] = lambda: False,
    say: Callable[[str], object] = lambda line: None,
) -> None:
    """Start a SuperNode that connects to a SuperLink, and answer its messages by a ClientApp.

    Returns when `stop` says so. A SuperNode that ends, as it does when its server was started
    again, is started again.

    Guarantees:
      - the code of a run that the SuperLink sends is not executed, nor installed
      - the SuperNode ends with this call, however it ends, and with this process
    """
    _set_up()
    host, _, number = server.rpartition(":")
    if not host or not number.isdigit():
        raise UserError(f"`server='{server}'`: not an address; give it as HOST:PORT")
    _refuse_open(host, tls)
    failures = 0
    while not stop():
        say(f"connecting to {server}")
        answered, reason = _answer_all(app, server, tls, log, stop)
        failures = 0 if answered else failures + 1
        if failures == _ATTEMPTS:
            raise UserError(f"`server='{server}'`: the SuperNode cannot stay connected: {reason}")


def _answer_all(
    app: Any, server: str, tls: Tls | None, log: Path | None, stop: Callable[[], bool]
) -> tuple[int, str]:
    """Answer the messages of a SuperNode until it ends: how many, and what it said last."""
    import httpx

    secret, port, answered = secrets.token_bytes(32), free_port(), 0
    with _workspace(secret) as (folder, secret_file):
        arguments = [
            *("--isolation", "process", "--superlink", server),
            *("--host", "127.0.0.1", "--port", str(port)),
            *("--superexec-auth-secret-file", str(secret_file)),
        ]
        arguments += ["--insecure"] if tls is None else ["--root-certificates", str(tls.authority)]
        with _process("supernode", arguments, folder, log) as process:
            kept = log or folder / "supernode.log"
            _wait_for("127.0.0.1", port, process, kept)
            connection = Connection(f"127.0.0.1:{port}", None, secret, _BRIEFLY)
            while not stop() and process.poll() is None:
                try:
                    done = connection.answer_one(app)
                except httpx.HTTPError:  # it is about to end
                    done = False
                answered += done
                if not done:
                    time.sleep(_PAUSE)
            connection.close()
            return answered, _last_line(kept)


# --- processes ---------------------------------------------------------------------------------


def _set_up() -> None:
    require_flower()
    import flwr.supercore  # noqa: F401 - sets the level of its logger

    logging.getLogger("flwr").setLevel(logging.ERROR)  # what is worth knowing is said in our words


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _workspace(secret: bytes) -> Iterator[tuple[Path, Path]]:
    """A folder in place of Flower's in the home directory, gone afterwards; and a secret in it."""
    folder = Path(tempfile.mkdtemp(prefix="uedp-flower-"))
    try:
        path = folder / "secret"
        path.touch(0o600)
        path.write_bytes(secret)
        yield folder, path
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _process(
    name: str, arguments: list[str], folder: Path, log: Path | None
) -> Iterator[subprocess.Popen[bytes]]:
    """A program of Flower in a process of its own, until the end of the block."""
    environment = {**os.environ, **FLOWER_ENVIRONMENT, "FLWR_HOME": str(folder / "home")}
    command = [sys.executable, "-m", __name__, name, str(os.getpid()), *arguments]
    with (log or folder / f"{name}.log").open("ab") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C is for this process, which ends that one
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for(host: str, port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + SECONDS
    while not _listening(host, port):
        if process.poll() is not None or time.monotonic() > end:
            raise UserError(f"Flower did not start: {_last_line(log)}")
        time.sleep(_PAUSE)


def _listening(host: str, port: int) -> bool:
    with suppress(OSError), socket.create_connection((host, port), timeout=1):
        return True
    return False


def _last_line(log: Path) -> str:
    with suppress(OSError):
        lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
        return next((" ".join(line.split()) for line in reversed(lines) if line.strip()), "")
    return "see its log"


def _refuse_open(host: str, tls: Tls | None) -> None:
    """Without TLS, only this machine: orders and updates would be readable on the way."""
    if tls is None and host not in ("127.0.0.1", "localhost", "::1"):
        raise UserError(
            f"{host}: another machine needs TLS, or updates of single users could be read on the "
            "way; give its certificate with `authority=...`"
        )


def _end_with(parent: int) -> None:
    """End this process soon after its parent."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _main() -> None:
    name, parent, *arguments = sys.argv[1:]
    _end_with(int(parent))
    module, function = _PROGRAMS[name]
    sys.argv = [f"flower-{name}", *arguments]
    getattr(__import__(module, fromlist=[function]), function)()


if __name__ == "__main__":
    _main()
