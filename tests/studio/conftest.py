"""A corpus with everything that a page must show as text, and a studio that serves it."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import uvicorn
from starlette.testclient import TestClient

from tests.conftest import marked
from uedp.corpus.store import Corpus
from uedp.entities.detection import Detection, detect
from uedp.studio.server import address, bind, create_app
from uedp.studio.settings import Settings

ADDRESS = "http://127.0.0.1:8000"
HERE = {"origin": ADDRESS, "sec-fetch-site": "same-origin"}
SCRIPT = "<script>document.title='owned'</script><img src=x onerror=alert(1)>"
LONG = "x" * 10_000
QUOTES = """o'"br<b>ien&amp;"""
HOSTILE = [
    marked(QUOTES, f"Ann Lee said {SCRIPT} to Bob", ("Ann Lee", "PER"), ("Bob", "PER")),
    marked("רות", "שלום Ann Lee מה שלומך \u202e abc", ("Ann Lee", "PER")),
    marked("long", f"{LONG} met Ann Lee", ("Ann Lee", "PER"), (LONG, "ORG")),
    marked("👩‍👩‍👧", "👩‍👩‍👧🎉 Zoë 𝔘 wrote to zoe@example.org 🎉", ("Zoë 𝔘", "PER")),
    marked("ctrl", "a\x00b\x07c\r\nAnn Lee\ttab", ("Ann Lee", "PER")),
    marked("css", "{{ 7*7 }} </p></main> --> Bob's mail: bob@example.com", ("Bob", "PER")),
]
ORDINARY = [
    marked(f"u{n % 7}", f"Message {n}: Ann Lee met Cid{n}, call Smallville", ("Ann Lee", "PER"))
    if n % 3 == 0
    else marked(f"u{n % 7}", f"Message {n} of Cid{n} in Smallville")
    for n in range(60)
]


def make_corpus(folder: Path) -> Corpus:
    return detect(HOSTILE + ORDINARY, folder, Detection(("labels", "patterns")))


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not to be changed."""
    return make_corpus(tmp_path_factory.mktemp("studio") / "original").folder


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return make_corpus(tmp_path / "cor pus")


@dataclass
class Studio:
    """A client with the cookie, that asks as the studio's own page does."""

    client: TestClient
    settings: Settings

    def get(self, path: str, **options):
        return self.client.get(self.settings.root + path, **options)

    def post(self, path: str, **fields):
        headers = {**HERE, "accept": "application/json"}
        return self.client.post(self.settings.root + path, data=fields, headers=headers)


@pytest.fixture
def studio(corpus: Corpus) -> Iterator[Studio]:
    settings = Settings(corpus.folder)
    with TestClient(create_app(settings), ADDRESS, follow_redirects=False) as client:
        assert client.get(f"/?token={settings.token}").status_code == 303
        yield Studio(client, settings)


class Served:
    """A studio on a real port, in a thread."""

    def __init__(self, settings: Settings) -> None:
        self.listener = bind("127.0.0.1", 0)
        self.url = address(settings, self.listener)
        config = uvicorn.Config(create_app(settings), log_level="warning", ws="none")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self.listener],))

    def __enter__(self) -> "Served":
        self._thread.start()  # the socket queues requests until it listens
        self.listener.listen()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.should_exit = True
        self._thread.join()
        self.listener.close()
