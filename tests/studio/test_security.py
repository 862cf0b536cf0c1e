"""Who may ask the studio, and what every answer carries."""

import pytest
from starlette.testclient import TestClient

from uedp.errors import UserError
from uedp.studio.security import COOKIE, HEADERS
from uedp.studio.server import create_app
from uedp.studio.settings import ForbiddenError, Settings, inside, loopback

ADDRESS = "http://127.0.0.1:8000"
HERE = {"origin": ADDRESS, "sec-fetch-site": "same-origin"}


@pytest.fixture
def settings():
    return Settings()


@pytest.fixture
def stranger(settings):
    return TestClient(create_app(settings), ADDRESS, follow_redirects=False)


@pytest.fixture
def client(stranger, settings):
    assert stranger.get(f"/?token={settings.token}").status_code == 303
    return stranger


def test_the_token_is_exchanged_for_a_cookie_and_a_clean_address(stranger, settings):
    answer = stranger.get(f"/entities?token={settings.token}&page=2")
    assert answer.status_code == 303
    assert answer.headers["location"] == f"{settings.root}/entities?page=2"
    cookie = answer.headers["set-cookie"]
    assert f"Path={settings.root}/" in cookie
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert settings.token not in cookie
    assert stranger.get(answer.headers["location"]).status_code == 200


def test_the_token_on_a_command_line_opens_once(settings):
    """Other accounts can read the arguments of the browser that is started."""
    app = create_app(settings)
    address = f"/?token={settings.once}"
    assert TestClient(app, ADDRESS, follow_redirects=False).get(address).status_code == 303
    assert TestClient(app, ADDRESS, follow_redirects=False).get(address).status_code == 403


@pytest.mark.parametrize("path", ["/", "/entities", "/static/studio.css", "/favicon.ico", "/x"])
def test_without_the_token_nothing_is_shown(stranger, settings, path):
    for address in (path, settings.root + path):
        answer = stranger.get(address)
        assert answer.status_code == 403
        assert settings.root not in answer.text
        assert settings.token not in answer.text


def test_a_wrong_token_or_cookie_is_refused(stranger, settings):
    assert stranger.get("/?token=guess").status_code == 403
    assert stranger.get("/?token=").status_code == 403
    stranger.cookies.set(COOKIE, settings.token)  # the token is not the cookie
    assert stranger.get(f"{settings.root}/budget").status_code == 403


def test_the_cookie_is_worth_nothing_without_the_path(client, settings):
    """Cookies are sent to all ports of a machine, so another server may see one."""
    headers = {"cookie": f"{COOKIE}={settings.session}"}
    assert client.get("/budget", headers=headers).status_code == 403
    assert client.get(f"{settings.root}x/budget", headers=headers).status_code == 403
    assert client.get(f"{settings.root}/budget", headers=headers).status_code == 200


def test_a_cookie_of_another_server_does_not_lock_one_out(client, settings):
    headers = {"cookie": f"{COOKIE}=theirs; {COOKIE}={settings.session}; {COOKIE}=more"}
    assert client.get(f"{settings.root}/budget", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example:8000", "", "10.0.0.1:8000", "[::1"]
)
def test_another_name_is_refused(client, settings, host):
    """DNS rebinding: the name of another site that now resolves to this machine."""
    assert client.get(f"{settings.root}/budget", headers={"host": host}).status_code == 403
    assert client.get(f"/?token={settings.token}", headers={"host": host}).status_code == 403


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:8000", "[::1]:8000", "localhost:1"])
def test_names_of_this_machine_are_answered(client, settings, host):
    """Any port: it may have been forwarded by a tunnel."""
    headers = {"host": host, "cookie": f"{COOKIE}={settings.session}"}
    assert client.get(f"{settings.root}/budget", headers=headers).status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site", "anything"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_other_pages_are_refused(client, settings, site, method):
    """`same-site` too: a page on another port of this machine."""
    path = f"{settings.root}/budget"
    assert client.request(method, path, headers={"sec-fetch-site": site}).status_code == 403
    with_token = f"/?token={settings.token}"
    assert client.get(with_token, headers={"sec-fetch-site": site}).status_code == 403


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "http://127.0.0.1:9000", "http://localhost:8000", "null"]
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_other_origins_are_refused(client, settings, origin, method):
    headers = {"origin": origin}
    answer = client.request(method, f"{settings.root}/budget", headers=headers)
    assert answer.status_code == 403


def test_a_change_says_where_it_comes_from(client, settings):
    path = f"{settings.root}/no-such-page"
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert client.request(method, path).status_code == 403
        assert client.request(method, path, headers={"sec-fetch-site": "none"}).status_code == 403
        for headers in ({"origin": ADDRESS}, {"origin": "null", "sec-fetch-site": "same-origin"}):
            assert client.request(method, path, headers=headers).status_code == 404


@pytest.mark.parametrize(
    "path", ["/static/%2e%2e/server.py", "/static/..%2fserver.py", "/static/a%5c..", "/x%00"]
)
def test_paths_that_lead_outside_are_refused(client, settings, path):
    assert client.get(settings.root + path).status_code == 403


def test_files_outside_a_folder_are_refused(tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "in").write_text("x")
    (tmp_path / "out").write_text("x")
    (folder / "link").symlink_to(tmp_path / "out")
    assert inside(folder, "in") == folder / "in"
    for path in ("../out", "/etc/passwd", "link", "in/../../out", "a\0b"):
        with pytest.raises(ForbiddenError):
            inside(folder, path)


@pytest.mark.parametrize("path", ["/budget", "/no-such-page", "/static/studio.css", "/"])
def test_every_answer_has_the_headers(client, settings, path):
    for answer in (client.get(settings.root + path), client.get(path)):
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS
    policy = HEADERS["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "connect-src 'self'" in policy


def test_errors_are_plain_pages(settings):
    app = create_app(settings)
    client = TestClient(app, ADDRESS, raise_server_exceptions=False)
    client.get(f"/?token={settings.token}")
    missing = client.get(f"{settings.root}/no-such-page")
    assert missing.status_code == 404
    assert "<h1>404: No such page</h1>" in missing.text
    asked = client.get(f"{settings.root}/no-such-page", headers={"accept": "application/json"})
    assert list(asked.json()) == ["error"]
    assert client.put(f"{settings.root}/budget", headers=HERE).status_code == 405


def test_a_bug_shows_no_details_on_the_page(settings, monkeypatch):
    def broken(*arguments, **values):
        raise RuntimeError("a secret")

    monkeypatch.setattr("uedp.studio.budget.page", broken)
    client = TestClient(create_app(settings), ADDRESS, raise_server_exceptions=False)
    client.get(f"/?token={settings.token}")
    answer = client.get(f"{settings.root}/budget")
    assert answer.status_code == 500
    assert "bug in the studio" in answer.text
    assert "a secret" not in answer.text
    assert answer.headers["X-Frame-Options"] == "DENY"


def test_static_files_have_their_types(client, settings):
    types = {"studio.css": "text/css; charset=utf-8", "icon.svg": "image/svg+xml"}
    for name, kind in types.items():
        assert client.get(f"{settings.root}/static/{name}").headers["content-type"] == kind


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "example.org", ""])
def test_other_hosts_are_not_listened_on(host):
    with pytest.raises(UserError, match="this machine only"):
        loopback(host)


def test_loopback_hosts():
    assert [loopback(h) for h in ("127.0.0.1", "[::1]", "::1", "localhost")] == [
        *("127.0.0.1", "::1", "::1", "127.0.0.1")
    ]


def test_secrets_are_drawn_anew_and_not_shown():
    one, other = Settings(), Settings()
    secrets = {s for x in (one, other) for s in (x.token, x.once, x.session, x.root)}
    assert len(secrets) == 8
    assert not any(secret in repr(one) for secret in secrets)
