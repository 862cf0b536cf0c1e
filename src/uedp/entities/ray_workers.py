"""Workers of Ray that detect shards: on this machine, or on the cluster that RAY_ADDRESS names.

Ray's processes listen on the network, and whoever reaches one can run code in it. A cluster that is
started here therefore accepts its own random token only. Ray makes its folder readable by
everybody, so it lies in one that is not; and workers write nothing to Ray's logs, since a library
may print the text that it reads.
"""

import os
import secrets
import socket
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from uedp import files
from uedp.corpus.records import first_line
from uedp.entities.detectors import Detector, load_detector, own_loaders, register_detector
from uedp.entities.sharding import Outcome
from uedp.entities.shards import Shard, ShardSettings, detect_shard
from uedp.errors import UserError
from uedp.signals import deferred

ADDRESS = "RAY_ADDRESS"
AHEAD = 2  # shards in flight per worker, so that none is idle
_READY = 180.0  # seconds until some worker must have started
_ANSWER = 20.0  # seconds for the cluster to answer
_POLL = 1.0  # seconds
_OBJECT_STORE = 1 << 28  # bytes for each worker, of what is in flight
_LONGEST_FOLDER = 18  # characters, since the names of sockets are limited to 107
_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
_OF_OUR_CLUSTERS = {
    "RAY_AUTH_MODE": "token",
    # in seconds: processes that outlive a killed command notice, and end
    "RAY_gcs_rpc_server_reconnect_timeout_s": "30",
}
_TOKEN = "_uedp_token"  # of the clusters that this process starts: Ray reads it once


@contextmanager
def ray_workers(settings: ShardSettings, workers: int) -> Iterator["RayWorkers"]:
    """Workers that start with the first shard, and are gone at the end of the block."""
    with ExitStack() as stack:
        yield RayWorkers(_imported(stack), settings, workers, stack)


def _imported(stack: ExitStack) -> Any:
    """The module `ray`, which reads its settings from the environment when it is imported."""
    before = sys.modules.get("ray")
    if before is None or hasattr(before, _TOKEN):
        token = getattr(before, _TOKEN, secrets.token_hex(32))
        variables = dict(_ENVIRONMENT)
        if not _address():
            variables |= {**_OF_OUR_CLUSTERS, "RAY_AUTH_TOKEN": token}
        stack.enter_context(_environment(variables))
    elif not _address() and not before.is_initialized():
        raise UserError(
            "`engine='ray'`: `ray` was imported before, and would now start without a token; "
            "start it by `ray.init()`, or import it later"
        )
    try:
        import ray
    except ImportError as error:
        raise UserError(
            f"`engine='ray'`: Ray cannot be imported ({error}); run `pip install 'uedp[ray]'`"
        ) from None
    if before is None and not _address():
        setattr(ray, _TOKEN, token)
    return ray


def _address() -> str:
    """The cluster that is asked for; empty for one that is started here."""
    address = os.environ.get(ADDRESS, "")
    return "" if address == "local" else address


class RayWorkers:
    """Actors of Ray, each of which loads the detectors once.

    Guarantees:
      - at most `AHEAD` shards per worker are held at a time, and the next one
    """

    def __init__(self, ray: Any, settings: ShardSettings, workers: int, stack: ExitStack) -> None:
        self._ray, self._stack = ray, stack
        self._settings, self._workers = settings, workers
        self._starting: dict[Any, Any] = {}  # a promise that an actor is ready -> that actor
        self._loads: Counter[Any] = Counter()  # shards in flight of each actor that is ready
        self._started = False

    def run(self, shards: Iterator[tuple[int, Shard]]) -> Iterator[tuple[int, Outcome]]:
        in_flight: dict[Any, tuple[int, Any]] = {}
        following = next(shards, None)
        if following is not None and not self._started:
            self._start()
        deadline = time.monotonic() + _READY
        while following is not None or in_flight:
            actor = min(self._loads, key=lambda each: self._loads[each], default=None)
            if following is not None and actor is not None and self._loads[actor] < AHEAD:
                number, shard = following
                in_flight[actor.detect.remote(shard)] = number, actor
                self._loads[actor] += 1
                following = next(shards, None)
                continue
            promises = [*in_flight, *self._starting]
            for promise in self._ray.wait(promises, timeout=_POLL)[0]:
                if promise in self._starting:
                    actor = self._starting.pop(promise)
                    if isinstance(failure := self._result(promise), Exception):
                        raise failure
                    self._loads[actor] = 0
                else:
                    number, actor = in_flight.pop(promise)
                    self._loads[actor] -= 1
                    yield number, self._result(promise)
            if not self._loads and time.monotonic() > deadline:
                raise UserError(
                    f"`engine='ray'`: no worker has started in {_READY:.0f} seconds; see with "
                    "`ray status` whether the cluster has a free processor"
                )

    def _start(self) -> None:
        loaders = own_loaders(self._settings.detectors)
        if not self._ray.is_initialized():
            with deferred():  # Ray must know what it started; it also sets a handler of SIGTERM
                if address := _address():
                    self._connect(address)
                else:
                    self._start_local()
        actors = self._ray.remote(_Worker).options(num_cpus=1, max_restarts=1, max_task_retries=1)
        for _ in range(self._workers):
            actor = actors.remote(self._settings, loaders, str(Path.cwd()))
            self._stack.callback(self._end, actor)
            self._starting[actor.begin.remote()] = actor
        self._started = True

    def _start_local(self) -> None:
        """A cluster of this machine alone, for this command alone."""
        place = Path(tempfile.gettempdir())
        if len(str(place)) > _LONGEST_FOLDER:
            place = Path("/tmp")
        private = self._stack.enter_context(files.scratch_dir(place / "uedp-ray"))
        self._stack.callback(self._shut_down)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._ray.init(
                    address="local",
                    num_cpus=self._workers,
                    num_gpus=0,
                    include_dashboard=False,
                    log_to_driver=False,
                    configure_logging=False,
                    object_store_memory=_OBJECT_STORE * self._workers,
                    _temp_dir=str(private / "ray"),
                )
        except Exception as error:  # Ray has no class of its own for this
            raise UserError(
                f"`engine='ray'`: Ray cannot be started here ({first_line(error)}); if the machine "
                "is busy, try again, or use `engine='local'`"
            ) from None

    def _connect(self, address: str) -> None:
        self._stack.callback(self._shut_down)
        host, _, port = address.removeprefix("ray://").rpartition(":")
        try:
            if host and port.isdecimal():  # Ray ends the process if nobody answers
                socket.create_connection((host, int(port)), timeout=_ANSWER).close()
            self._ray.init(address=address, log_to_driver=False, configure_logging=False)
        except (OSError, ValueError, RuntimeError, OverflowError) as error:
            raise UserError(
                f"{ADDRESS}={address}: no cluster of Ray answers ({first_line(error)}); start one, "
                f"or unset {ADDRESS}"
            ) from None

    def _end(self, actor: Any) -> None:
        with deferred(), suppress(Exception):  # it may be dead already
            self._ray.kill(actor)

    def _shut_down(self) -> None:
        with deferred():
            self._ray.shutdown()

    def _result(self, promise: Any) -> Outcome:
        try:
            kind, value = self._ray.get(promise)
        except self._ray.exceptions.RayError as error:
            return UserError(
                f"`engine='ray'`: a worker failed ({type(error).__name__}); if it was out of "
                "memory, use fewer `workers=...`; the same version of uedp must be installed on "
                "every machine"
            )
        if kind == "detected":
            return bytes(value)
        made: Exception = _ERRORS[kind](*value)
        return made


# How an error of a worker reaches the command. No exception passes through Ray, which would log it.
_ERRORS: Mapping[str, Callable[..., Exception]] = {
    "mistake": UserError,
    "system": OSError,
    "bug": RuntimeError,
}


class _Worker:
    """One process of Ray."""

    def __init__(
        self,
        settings: ShardSettings,
        loaders: Mapping[str, Callable[[str | None], Detector]],
        folder: str,
    ) -> None:
        self._settings, self._loaders, self._folder = settings, loaders, folder
        self._detectors: list[Detector] | None = None
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(nowhere, stream)

    def begin(self) -> tuple[str, bytes]:
        return "detected", b""

    def detect(self, shard: Shard) -> tuple[str, Any]:
        try:
            if self._detectors is None:
                self._detectors = self._load()
            return "detected", detect_shard(shard, self._settings, self._detectors)
        except UserError as error:
            return "mistake", (str(error),)
        except OSError as error:
            return "system", (error.errno, error.strerror, error.filename)
        except Exception as error:
            # not its message, which may quote a text
            places = traceback.extract_tb(error.__traceback__)
            trace = " > ".join(f"{Path(p.filename).name}:{p.lineno} {p.name}" for p in places)
            return "bug", (f"{type(error).__name__} in a worker of Ray: {trace}",)

    def _load(self) -> list[Detector]:
        try:
            os.chdir(self._folder)  # paths are relative to it
        except OSError:
            raise UserError(
                f"{self._folder}: a worker of Ray does not see this folder; every machine must "
                "see the files under the same name"
            ) from None
        for kind, load in self._loaders.items():
            register_detector(kind)(load)
        return [load_detector(name) for name in self._settings.detectors]


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
