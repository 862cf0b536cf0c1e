"""Who may ask the studio: one browser on this machine, and none of the other pages it shows.

The studio serves private text on a port that every process of the machine, and every page in the
browser, can reach. Hence, for every request: the name it was asked by (against DNS rebinding), the
page that asks (against requests of other pages), the path and the cookie (against other accounts).
"""

import hmac
from collections.abc import Iterable
from urllib.parse import parse_qs, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from uedp.studio.settings import ForbiddenError, Settings

COOKIE = "uedp_studio"
HOSTS = frozenset({"127.0.0.1", "::1", "localhost"})
MAX_BODY = 1 << 20  # bytes of a form
_OWN_PAGES = frozenset({"same-origin", "none"})  # `none`: typed, or clicked outside the browser
_READING = frozenset({"GET", "HEAD"})

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}

_REFUSED = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>403: not allowed</title>
<meta name="viewport" content="width=device-width"></head>
<body><main><h1>403: not allowed</h1><p>{}.</p>
<p>Open the address that the studio printed in the terminal, token included, by pasting it into the
address bar.</p></main></body></html>
"""


class Guard:
    """ASGI middleware around everything the studio serves.

    Guarantees:
      - nothing is answered but 403 unless the request was made by a loopback name, from the
        studio's own pages or by hand, below its root, with its cookie; the one exception is the
        address with the token, which sets the cookie
      - a request that changes something says that it comes from the studio's own pages
      - secrets are compared in constant time
      - every answer carries `HEADERS`; a page may only replace the content policy by its own
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app, self._settings = app, settings
        self._unused = [settings.once]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            raise RuntimeError("the studio speaks HTTP only")

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    if name != "Content-Security-Policy" or name not in headers:
                        headers[name] = value
            await send(message)

        response = self._answer(scope)
        if response is None:
            await self._app(self._below_root(scope), receive, send_with_headers)
        else:
            await response(scope, receive, send_with_headers)

    def _answer(self, scope: Scope) -> Response | None:
        """The answer to a request that must not reach a page, or None."""
        headers = Headers(scope=scope)
        try:
            check_host(headers)
            check_page(headers, scope["method"])
            check_path(scope["path"])
            if (token := _token(scope)) is not None:
                if not self._opens(token):
                    raise ForbiddenError("The token is not that of this studio")
                return self._admit(scope)
            if not self._is_below_root(scope["path"]) or not self._has_cookie(headers):
                raise ForbiddenError("The token is missing")
        except ForbiddenError as error:
            return refused(str(error))
        return None

    def _opens(self, token: str) -> bool:
        if self._unused and _same(token, self._unused[0]):
            self._unused.clear()
            return True
        return _same(token, self._settings.token)

    def _admit(self, scope: Scope) -> Response:
        """Set the cookie, and go to the same address without the token."""
        root, path = self._settings.root, scope["path"]
        target = path if self._is_below_root(path) else f"{root}{path}"
        rest = [(k, v) for k, values in _query(scope).items() for v in values if k != "token"]
        response = RedirectResponse(target + ("?" + urlencode(rest) if rest else ""), 303)
        response.set_cookie(
            COOKIE, self._settings.session, path=f"{root}/", httponly=True, samesite="strict"
        )
        return response

    def _is_below_root(self, path: str) -> bool:
        root = self._settings.root
        return _same(path[: len(root)], root) and path[len(root) :].startswith("/")

    def _has_cookie(self, headers: Headers) -> bool:
        # every one of that name: another local server may have set one, too
        sent = [value for name, value in _cookies(headers) if name == COOKIE]
        return any(_same(value, self._settings.session) for value in sent)

    def _below_root(self, scope: Scope) -> Scope:
        root = self._settings.root
        return {**scope, "root_path": scope.get("root_path", "") + root}


def check_host(headers: Headers) -> None:
    """Refuse a request by another name: a page whose name now resolves to this machine."""
    if len(headers.getlist("host")) != 1 or _host(headers["host"]) not in HOSTS:
        raise ForbiddenError("The studio answers to 127.0.0.1, [::1] and localhost only")


def check_page(headers: Headers, method: str) -> None:
    """Refuse requests of other pages, and changes that do not say where they come from."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None and site not in _OWN_PAGES:
        raise ForbiddenError("The request comes from another page")
    own = origin is not None and origin == f"http://{headers['host']}"
    # a form of a page with `no-referrer` has the origin `null`
    if origin is not None and not own and not (origin == "null" and site == "same-origin"):
        raise ForbiddenError("The request comes from another page")
    if method not in _READING and not own and site != "same-origin":
        raise ForbiddenError("The request does not say which page it comes from")


def check_path(path: str) -> None:
    """Refuse paths that lead out of where they begin."""
    if "\0" in path or "\\" in path or ".." in path.split("/"):
        raise ForbiddenError("The path leads outside of what is shown")


def refused(why: str) -> Response:
    return HTMLResponse(_REFUSED.format(why), 403)


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())


def _host(authority: str) -> str:
    try:
        return urlsplit(f"//{authority}").hostname or ""
    except ValueError:
        return ""


def _query(scope: Scope) -> dict[str, list[str]]:
    return parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)


def _token(scope: Scope) -> str | None:
    tokens = _query(scope).get("token")
    return None if tokens is None or scope["method"] != "GET" else tokens[0]


def _cookies(headers: Headers) -> Iterable[tuple[str, str]]:
    for header in headers.getlist("cookie"):
        for part in header.split(";"):
            name, _, value = part.strip().partition("=")
            yield name, value
