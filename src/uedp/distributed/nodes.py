"""Flower's processes: a SuperLink with the server in this one, or a SuperNode with a client.

Flower would send a bundle of code to every SuperNode and run it beside the texts, in a new process
for each message. Here both run without Flower's executor ("process isolation"): this process asks
for tasks, and answers them by the app that is installed here. No code travels, whoever may submit
some to the SuperLink, and a client loads its model once.
"""

import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uedp.distributed import FLOWER_ENVIRONMENT, require_flower
from uedp.errors import UserError

_SECONDS = 60.0  # to start
_PAUSE = 0.1
_PROGRAMS = {
    "superlink": ("flwr.superlink.cli", "flower_superlink"),
    "supernode": ("flwr.supernode.cli", "flower_supernode"),
}
_PROJECT = b"""[project]
name = "uedp-federated"
version = "1.0.0"
description = "Rounds by clients that have uedp installed"
[tool.flwr.app]
publisher = "uedp"
[tool.flwr.app.components]
serverapp = "uedp_federated:app"
clientapp = "uedp_federated:app"
"""


@dataclass(frozen=True)
class Tls:
    """Files of a server's certificate and key, and of the authority that signed it."""

    authority: Path
    certificate: Path | None = None
    key: Path | None = None

    def __post_init__(self) -> None:
        for path in (self.authority, self.certificate, self.key):
            if path is not None and not path.is_file():
                raise UserError(f"{path}: no such file; name a file in PEM format")


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
    require_flower()
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
            connection = _Connection(f"{local}:{port}", tls, secret)
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
    node_config: Mapping[str, int] | None = None,
    log: Path | None = None,
    stop: Callable[[], bool] = lambda: False,
    say: Callable[[str], object] = lambda line: None,
) -> None:
    """Start a SuperNode that connects to a SuperLink, and answer its messages by a ClientApp.

    Returns when `stop` says so.

    Guarantees:
      - the code of a run that the SuperLink sends is not executed, nor installed
      - the SuperNode ends with this call, however it ends, and with this process
    """
    require_flower()
    host, _, number = server.rpartition(":")
    if not host or not number.isdigit():
        raise UserError(f"`server='{server}'`: not an address; give it as HOST:PORT")
    _refuse_open(host, tls)
    secret, port = secrets.token_bytes(32), free_port()
    with _workspace(secret) as (folder, secret_file):
        arguments = [
            *("--isolation", "process", "--superlink", server),
            *("--host", "127.0.0.1", "--port", str(port)),
            *("--superexec-auth-secret-file", str(secret_file)),
        ]
        if node_config:
            shown = " ".join(f"{name}={value}" for name, value in node_config.items())
            arguments += ["--node-config", shown]
        arguments += ["--insecure"] if tls is None else ["--root-certificates", str(tls.authority)]
        with _process("supernode", arguments, folder, log) as process:
            _wait_for("127.0.0.1", port, process, log or folder / "supernode.log")
            say(f"connecting to {server}")
            connection = _Connection(f"127.0.0.1:{port}", None, secret)
            while not stop():
                if process.poll() is not None:
                    raise UserError(
                        f"`server='{server}'`: the SuperNode ended: "
                        f"{_last_line(log or folder / 'supernode.log')}"
                    )
                if not connection.answer_one(app):
                    time.sleep(_PAUSE)


# --- what Flower does in processes of its own ----------------------------------------------------


class _Connection:
    """The part of Flower's Runtime API that an executor uses, and the start of a run."""

    def __init__(self, address: str, tls: Tls | None, secret: bytes) -> None:
        self._address, self._tls, self._secret = address, tls, secret
        self._authority = None if tls is None else tls.authority.read_bytes()
        self._executor = self._client(None)

    def _client(self, token: str | None) -> Any:
        from flwr.supercore.interceptors import (
            RuntimeTokenHttpInterceptor,
            RuntimeVersionHttpInterceptor,
            SuperExecAuthHttpInterceptor,
        )
        from flwr.supercore.retry import make_simple_http_retry_invoker
        from flwr.supercore.runtime import RuntimeHttpClient

        interceptors: list[Any] = [RuntimeVersionHttpInterceptor(component_name="SuperExec")]
        if token is None:
            interceptors.append(
                SuperExecAuthHttpInterceptor(
                    master_secret=self._secret,
                    protected_methods=frozenset({"/flwr.proto.Runtime/AcquireTask"}),
                )
            )
        else:
            interceptors.append(RuntimeTokenHttpInterceptor(token))
        retry = make_simple_http_retry_invoker()
        retry.max_time = _SECONDS
        return RuntimeHttpClient.from_server_address(
            server_address=self._address,
            insecure=self._tls is None,
            root_certificates=self._authority,
            interceptors=interceptors,
            retry_invoker=retry,
        )

    def start_run(self) -> int:
        """Submit a run whose bundle holds no code that anybody executes."""
        import hashlib

        from flwr.cli.build import build_fab_from_files
        from flwr.common.serde import fab_to_proto
        from flwr.proto.control_pb2 import StartRunRequest
        from flwr.supercore.control import ControlHttpClient
        from flwr.supercore.fab import Fab
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

        files = {
            "pyproject.toml": _PROJECT,
            "uedp_federated.py": b"app = None  # the app is part of uedp, on every machine\n",
        }
        bundle, _ = build_fab_from_files(files)
        control = ControlHttpClient.from_server_address(
            server_address=self._address,
            insecure=self._tls is None,
            root_certificates=self._authority,
            interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
        )
        try:
            fab = Fab(hashlib.sha256(bundle).hexdigest(), bundle, {})
            return int(control.StartRun(StartRunRequest(fab=fab_to_proto(fab))).run_id)
        finally:
            control.close()

    def acquire(self, kind: str, run: int) -> str:
        """The token of this run's task."""
        end = time.monotonic() + _SECONDS
        while time.monotonic() < end:
            found = self._acquired(kind)
            if found is not None and found.task.run_id == run:  # others are somebody else's
                return str(found.token)
            time.sleep(_PAUSE)
        raise UserError("the SuperLink did not begin the run; see its log, and start again")

    def _acquired(self, kind: str) -> Any:
        from flwr.proto.runtime_pb2 import AcquireTaskRequest

        found = self._executor.AcquireTask(AcquireTaskRequest(supported_task_types=[kind]))
        return found if found.HasField("task") and found.token else None

    @contextmanager
    def grid(self, token: str) -> Iterator[Any]:
        """The grid of a server's task, which is kept alive."""
        from flwr.common.constant import SubStatus
        from flwr.common.serde import run_from_proto
        from flwr.proto.runtime_pb2 import PullTaskInputRequest, PushTaskOutputRequest
        from flwr.superlink.grid import HttpGrid

        grid = HttpGrid(self._address, self._tls is None, self._authority, token=token)
        client = self._client(token)
        with _heartbeat(client):
            found = client.PullTaskInput(PullTaskInputRequest())
            _identify(found)
            grid.set_run(run_from_proto(found.run))
            status, details = SubStatus.FAILED, "stopped"
            try:
                yield grid
                status, details = SubStatus.COMPLETED, ""
            finally:
                with suppress(Exception):
                    client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=details))
                grid.close()

    def answer_one(self, app: Any) -> bool:
        """Answer a message by an app, if there is one."""
        from flwr.app import Error, Message
        from flwr.common.constant import ErrorCode, SubStatus
        from flwr.supernode.runtime.run_clientapp import (
            pull_task_input,
            push_message,
            push_task_output,
        )

        found = self._acquired("flwr-clientapp")
        if found is None:
            return False
        client = self._client(found.token)
        status, context = SubStatus.FAILED, None
        with _heartbeat(client):
            try:
                message, context, _, _ = pull_task_input(client)  # its bundle is left alone
                try:
                    reply = app(message=message, context=context)
                except Exception:  # a message that no version of this program sends
                    failed = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "not a known message")
                    reply = Message(failed, reply_to=message)
                push_message(client, reply, context)
                status = SubStatus.COMPLETED
            except RuntimeError:  # the run ended meanwhile
                pass
            finally:
                push_task_output(client, context, status, "")
        client.close()
        return True


@contextmanager
def _heartbeat(client: Any) -> Iterator[None]:
    from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http

    sender = HeartbeatSender(make_task_heartbeat_fn_http(client))
    sender.start()
    try:
        yield
    finally:
        if sender.is_running:
            sender.stop()


def _identify(found: Any) -> None:
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.task_id = found.task_id
    TaskIdentity.run_id = found.run.run_id
    TaskIdentity.node_id = found.context.node_id


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
    end = time.monotonic() + _SECONDS
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
