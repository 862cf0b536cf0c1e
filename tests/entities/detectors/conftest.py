import socket
from collections.abc import Iterator
from typing import NoReturn

import pytest


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails a test that looks up a host or connects, even if the library swallows the error."""
    attempts: list[object] = []

    def refuse(*args: object, **_: object) -> NoReturn:
        attempts.append(args)
        raise OSError("no network in this test")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    yield
    assert not attempts
