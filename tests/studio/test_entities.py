"""The Entities page as a browser asks for it, without a browser."""

import html
import re
import time

import pytest
from starlette.testclient import TestClient

from tests.studio.conftest import ADDRESS, HERE, LONG, QUOTES, SCRIPT
from uedp.corpus.store import Corpus
from uedp.entities.detection import lists_of
from uedp.studio.list_files import list_file
from uedp.studio.server import create_app
from uedp.studio.settings import Settings

CHANGES = ("list", "unlist", "protect", "undo", "discard", "apply")


def settled(studio):
    while (state := studio.get("/entities/state").json())["busy"]:
        time.sleep(0.01)
    return state


def shown_share(studio):
    text = html.unescape(studio.get("/entities?part=panel").text)
    return re.search(r'id="usable">([^<]*)<', text)[1]


def test_hostile_text_is_escaped(studio):
    page = studio.get("/entities").text
    for text in (SCRIPT, "<b>ien", "</p></main> -->"):
        assert text not in page
        assert text in html.unescape(page)
    assert "{{ 7*7 }}" in page
    assert "\x00" not in page
    assert QUOTES in html.unescape(page)
    assert LONG in page


def test_hostile_entries_are_escaped_in_every_part(studio):
    entry = f'"><script>alert("{len(SCRIPT)}")</script>'
    assert studio.post("/entities/list", kind="public", entry=entry, meaning=SCRIPT).is_success
    for path in ("/entities", "/entities?part=panel", f"/entities?find={SCRIPT}&entity={SCRIPT}"):
        assert "<script>" not in studio.get(path).text
        assert "onerror=alert(1)>" not in studio.get(path).text
    miss = studio.get("/entities/miss", params={"sentence": 0, "text": entry}).text
    assert "<script>" not in miss


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_from_elsewhere_is_refused(studio, corpus, change):
    """403 whatever is sent, and nothing is written."""
    path = f"{studio.settings.root}/entities/{change}"
    fields = {"kind": "public", "entry": "Bob", "meaning": "x", "category": "person"}
    for headers in (
        {},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site", "origin": ADDRESS},
    ):
        assert studio.client.post(path, data=fields, headers=headers).status_code == 403
    stranger = TestClient(create_app(studio.settings), ADDRESS)
    assert stranger.post(path, data=fields, headers=HERE).status_code == 403
    assert studio.get(f"/entities/{change}").status_code == 405
    assert not list_file(corpus.folder, "public").exists()


def test_a_miss_changes_list_and_numbers_and_apply_the_corpus(studio, corpus):
    before = shown_share(studio)
    answer = studio.post("/entities/list", kind="sensitive", entry="Smallville", meaning="gpe")
    assert answer.status_code == 200
    assert "Smallville,gpe" in list_file(corpus.folder, "sensitive").read_text()
    settled(studio)
    old, new = shown_share(studio).split(" → ")
    assert old == before
    assert float(new[:-1]) < float(old[:-1])
    assert "--deny" in html.unescape(studio.get("/entities").text)
    assert lists_of(Corpus(corpus.folder)).sensitive == {}
    assert studio.post("/entities/apply").status_code == 200
    settled(studio)
    assert lists_of(Corpus(corpus.folder)).sensitive == {"Smallville": "gpe"}
    assert shown_share(studio) == new
    assert "are applied" in studio.get("/entities").text


def test_undo_restores_the_numbers(studio):
    before = shown_share(studio)
    studio.post("/entities/list", kind="public", entry="Ann Lee", meaning="a false hit")
    settled(studio)
    assert shown_share(studio) != before
    studio.post("/entities/undo")
    assert shown_share(studio) == before
    assert studio.post("/entities/undo").json() == {"error": "there is nothing to undo"}


def test_a_form_without_script_returns_to_the_page(studio):
    path = f"{studio.settings.root}/entities/list"
    fields = {"kind": "public", "entry": "Bob", "meaning": "x", "back": "?find=a"}
    answer = studio.client.post(path, data=fields, headers=HERE)
    assert answer.status_code == 303
    assert answer.headers["location"] == f"{studio.settings.root}/entities?find=a"
    fields |= {"entry": "Ann Lee", "back": "//evil.example"}
    assert studio.client.post(path, data=fields, headers=HERE).status_code == 403


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/entities?part=other", 404),
        ("/entities?page=999999999", 200),
        ("/entities?page=-1&category=%00&detector=x&sentence=x&show=y", 200),
        ("/entities?sentence=99999", 200),
        ("/entities?find=%ff", 200),
        ("/entities/mention", 404),
        ("/entities/mention?sentence=0&index=99", 404),
        ("/entities/mention?sentence=99999&index=0", 404),
        ("/entities/mention?entity=nobody", 404),
        ("/entities/mention?entity=annlee", 200),
        ("/entities/miss?sentence=99999", 404),
        ("/entities/miss?sentence=0", 200),
    ],
)
def test_odd_addresses(studio, path, status):
    assert studio.get(path).status_code == status


def test_odd_forms(studio):
    path = f"{studio.settings.root}/entities/list"
    headers = {**HERE, "accept": "application/json"}
    many = b"&".join([b"a=1"] * 1001)
    for body in (b"\xff\xfe", b"kind=other&entry=a", b"a" * ((1 << 20) + 1), many):
        answer = studio.client.post(path, content=body, headers=headers)
        assert answer.status_code in (400, 404)
    for fields in (
        {"category": "nonsense", "detector": "labels"},
        {"category": "person", "detector": "no"},
        {"category": "person", "detector": "labels", "shipped": "x"},
    ):
        assert studio.post("/entities/protect", **fields).status_code == 400
    assert studio.post("/entities/nothing").status_code == 404


def test_pages_are_short_whatever_the_corpus(studio):
    """Twenty sentences at a time: a page does not grow with the corpus."""
    for number in (1, 2, 4, 5):
        page = studio.get(f"/entities?part=results&page={number}").text
        assert page.count('<li id="s') == (20 if number < 4 else 6)
    assert "page 4 of 4" in page


def test_without_a_corpus_the_budget_remains():
    settings = Settings()
    with TestClient(create_app(settings), ADDRESS) as client:
        page = client.get(f"/?token={settings.token}")
        assert page.url.path == f"{settings.root}/budget"
        assert "without a corpus" in client.get(f"{settings.root}/entities").text
        assert client.post(f"{settings.root}/entities/apply", headers=HERE).status_code == 404


def test_a_corpus_that_is_gone_is_an_error_in_words(studio, corpus):
    corpus.folder.rename(corpus.folder.with_name("moved"))
    answer = studio.get("/entities")
    assert answer.status_code == 400
    assert "not a corpus" in answer.text or "No such file" in answer.text
