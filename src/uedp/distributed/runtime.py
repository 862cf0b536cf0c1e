"""Flower's Runtime API as an executor uses it: tasks are asked for, and answered, here."""

import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uedp.errors import UserError

SECONDS = 60.0  # to wait for what should come at once
_PAUSE = 0.1
BUNDLE = {
    "pyproject.toml": b"""[project]
name = "uedp-federated"
version = "1.0.0"
description = "Rounds by clients that have uedp installed"
[tool.flwr.app]
publisher = "uedp"
[tool.flwr.app.components]
serverapp = "uedp_federated:app"
clientapp = "uedp_federated:app"
""",
    "uedp_federated.py": b"app = None  # the app is part of uedp, on every machine\n",
}
"""What Flower wants to send to SuperNodes; nobody executes it."""


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


class Connection:
    """The part of Flower's Runtime API that an executor uses, and the start of a run."""

    def __init__(
        self, address: str, tls: Tls | None, secret: bytes, patience: float = SECONDS
    ) -> None:
        self._address, self._tls, self._secret = address, tls, secret
        self._patience = patience
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
        retry.max_time = self._patience
        return RuntimeHttpClient.from_server_address(
            server_address=self._address,
            insecure=self._tls is None,
            root_certificates=self._authority,
            interceptors=interceptors,
            retry_invoker=retry,
        )

    def start_run(self) -> int:
        """Submit a run whose bundle holds no code that anybody executes."""
        from flwr.cli.build import build_fab_from_files
        from flwr.common.serde import fab_to_proto
        from flwr.proto.control_pb2 import StartRunRequest
        from flwr.supercore.control import ControlHttpClient
        from flwr.supercore.fab import Fab
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

        bundle, _ = build_fab_from_files(BUNDLE)
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
        end = time.monotonic() + SECONDS
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
        status, details = SubStatus.FAILED, "stopped"
        try:
            with _heartbeat(client):
                found = client.PullTaskInput(PullTaskInputRequest())
                _identify(found)
                grid.set_run(run_from_proto(found.run))
                yield grid
                status, details = SubStatus.COMPLETED, ""
        finally:
            with suppress(Exception):
                client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=details))
            for one in (grid, client, self._executor):
                one.close()

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
        try:
            with _heartbeat(client):
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

    def close(self) -> None:
        self._executor.close()


@contextmanager
def _heartbeat(client: Any) -> Iterator[None]:
    from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http

    beat = make_task_heartbeat_fn_http(client)

    def beat_if_possible() -> bool:
        with suppress(Exception):  # the task ended, or its owner did: others notice
            beat()
        return True

    sender = HeartbeatSender(beat_if_possible)
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
