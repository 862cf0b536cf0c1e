"""The studio's server: Starlette on a loopback port."""

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from uedp.errors import UserError
from uedp.studio import budget, runs
from uedp.studio.entities import EntitiesPage
from uedp.studio.pages import BASE_STYLE, STATIC, error_page
from uedp.studio.security import Guard
from uedp.studio.settings import ForbiddenError, Settings, loopback

Handler = Callable[[Request, Exception], Response]
_WORDS = {403: "Not allowed", 404: "No such page", 405: "Not possible this way"}


def create_app(settings: Settings) -> Starlette:
    """The whole studio as an ASGI application; see `Guard` for who may ask it."""

    async def home(request: Request) -> Response:
        first = "budget" if settings.corpus is None else "entities"
        return RedirectResponse(f"{settings.root}/{first}", 303)

    entities = EntitiesPage(settings)
    routes: list[BaseRoute] = [
        Route("/", home),
        *entities.routes(),
        *budget.routes(settings),
        *runs.routes(settings),
        Route("/static/base.css", lambda request: FileResponse(BASE_STYLE)),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            entities.close()

    # inside of the guard, so that pages about errors have its headers, too
    inner = Starlette(routes=routes, exception_handlers=_handlers(settings))
    guard = Middleware(Guard, settings=settings)
    return Starlette(routes=[Mount("/", inner)], middleware=[guard], lifespan=lifespan)


def _handlers(settings: Settings) -> dict[Any, Handler]:
    def http(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        title = _WORDS.get(status, "This did not work")
        return error_page(settings, request, status, f"{status}: {title}", _http_text(status))

    def forbidden(request: Request, error: Exception) -> Response:
        return error_page(settings, request, 403, "403: Not allowed", str(error))

    def mistake(request: Request, error: Exception) -> Response:
        return error_page(settings, request, 400, "This did not work", str(error))

    def disk(request: Request, error: Exception) -> Response:
        what = f"{getattr(error, 'filename', None) or 'disk'}: {getattr(error, 'strerror', error)}"
        text = f"{what}; check the path, the permissions, and the room on the disk"
        return error_page(settings, request, 400, "This did not work", text)

    def bug(request: Request, error: Exception) -> Response:  # the terminal shows the traceback
        text = "This is a bug in the studio. The terminal it was started from shows the details."
        return error_page(settings, request, 500, "500: Something is broken", text)

    return {
        HTTPException: http,
        ForbiddenError: forbidden,
        UserError: mistake,
        OSError: disk,
        Exception: bug,
    }


def _http_text(status: int) -> str:
    if status == 404:
        return "There is no page at this address. The links above lead to those that there are."
    return "The studio cannot answer this request."


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens on a loopback address; port 0 takes a free one."""
    address = loopback(host)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
    except OSError as error:
        listener.close()
        raise UserError(
            f"`port={port}`: cannot be used on {address} ({error.strerror}); choose another, or 0"
        ) from None
    return listener


def address(settings: Settings, listener: socket.socket, once: bool = False) -> str:
    """The address that opens the studio, with the token, or with the one that opens it `once`."""
    host, port = listener.getsockname()[:2]
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}/?token={settings.once if once else settings.token}"


def serve(
    settings: Settings, listener: socket.socket, on_start: Callable[[], None] = lambda: None
) -> None:
    """Serve until a signal stops it.

    Args:
        on_start: called once it listens
    """
    config = uvicorn.Config(
        create_app(settings),
        log_level="warning",
        access_log=False,  # addresses hold tokens
        proxy_headers=False,
        server_header=False,
        ws="none",
        timeout_graceful_shutdown=2,
    )
    server = _Server(config, on_start)
    try:
        server.run(sockets=[listener])
    finally:
        listener.close()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, on_start: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_start = on_start

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_start()
