"""Pages from templates: all of them escape, and all have the same frame."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from uedp.accounting.statement import rounded
from uedp.errors import UserError
from uedp.report.charts import cut
from uedp.report.templates import environment
from uedp.studio.security import MAX_BODY
from uedp.studio.settings import Settings

FOLDER = Path(__file__).parent
STATIC = FOLDER / "static"
BASE_STYLE = FOLDER.parent / "report" / "templates" / "base.css"
SECTIONS = (("entities", "Entities"), ("budget", "Budget"), ("runs", "Runs"))


_TEMPLATES = environment("uedp.studio")
_TEMPLATES.filters["count"] = lambda value: f"{value:,}"
_TEMPLATES.filters["percent"] = lambda value: f"{value:.1%}"
_TEMPLATES.filters["cut"] = lambda value, most=48: cut(str(value), most)
_TEMPLATES.filters["rounded"] = rounded
_TEMPLATES.filters["drawn"] = Markup  # of a chart, which escapes its own text


def render(settings: Settings, template: str, **values: Any) -> str:
    """A template as text. It knows `settings`, `url` and `sections`, besides the values.

    `url("/budget", rate=1)` is an address in this studio; scripts find the same root in
    `document.documentElement.dataset.root`.
    """

    def url(path: str, **query: Any) -> str:
        given = {name: value for name, value in query.items() if value not in (None, "", False)}
        return settings.root + path + (f"?{urlencode(given)}" if given else "")

    return _TEMPLATES.get_template(template).render(
        settings=settings, url=url, sections=SECTIONS, **values
    )


def page(settings: Settings, template: str, *, status: int = 200, **values: Any) -> Response:
    """A page (or a part of one) as an answer."""
    return HTMLResponse(render(settings, template, **values), status)


def error_page(
    settings: Settings, request: Request, status: int, title: str, text: str
) -> Response:
    """An error: JSON for a script that asks for it, else a page."""
    if "application/json" in request.headers.get("accept", ""):
        return JSONResponse({"error": text}, status)
    return page(settings, "error.html", status=status, title=title, text=text, section=None)


async def form(request: Request) -> Mapping[str, list[str]]:
    """The fields of a posted form (URL-encoded), each with all its values."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY:
            raise UserError(f"a form of more than {MAX_BODY:,} bytes; mark less at a time")
    try:
        return parse_qs(body.decode(), keep_blank_values=True, errors="strict", max_num_fields=1000)
    except ValueError:
        raise UserError("a form that cannot be read; send it URL-encoded, as UTF-8") from None
