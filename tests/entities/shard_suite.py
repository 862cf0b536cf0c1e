"""An executor of shards in this process, which ends them in any order, or dies."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

from uedp.entities.detectors import load_detector
from uedp.entities.sharding import Outcome
from uedp.entities.shards import Shard, ShardSettings, detect_shard


class Killed(BaseException):
    """Stands in for a signal that ends the process."""


class InProcess:
    """Holds some shards at a time and runs one of them, drawn at random."""

    def __init__(self, at_once: int = 1, seed: int = 0, dies_after: int | None = None) -> None:
        self.at_once, self.dies_after = at_once, dies_after
        self.ran: list[str] = []  # digests
        self.most = 0  # shards held at a time
        self._random = random.Random(seed)

    @contextmanager
    def start(self, settings: ShardSettings, workers: int) -> Iterator["InProcess"]:
        self.settings, self.workers = settings, workers
        yield self

    def run(self, shards: Iterator[tuple[int, Shard]]) -> Iterator[tuple[int, Outcome]]:
        detectors = [load_detector(name) for name in self.settings.detectors]
        held: list[tuple[int, Shard]] = []
        while True:
            while len(held) < self.at_once and (following := next(shards, None)):
                held.append(following)
            self.most = max(self.most, len(held))
            if not held:
                return
            number, shard = held.pop(self._random.randrange(len(held)))
            if len(self.ran) == self.dies_after:
                raise Killed
            self.ran.append(shard.digest)
            try:
                outcome: Outcome = detect_shard(shard, self.settings, detectors)
            except Exception as error:
                outcome = error.with_traceback(None)  # its frames hold a file open
            yield number, outcome
