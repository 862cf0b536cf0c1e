"""A real Chromium for tests of pages; console errors fail a test, and axe checks accessibility."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

REQUIRED = "UEDP_BROWSER"  # set to `required` where a missing browser is a failure, not a skip
DESKTOP, PHONE = (1280, 900), (390, 844)
_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@dataclass
class Browser:
    """Chromium, started once for a test module; each `page` is a fresh profile."""

    chromium: Any

    @contextmanager
    def page(self, size: tuple[int, int] = DESKTOP, **context: Any) -> Iterator["Watched"]:
        """A page that fails the test if the console reported an error while it was open."""
        width, height = size
        opened = self.chromium.new_context(viewport={"width": width, "height": height}, **context)
        try:
            watched = Watched(opened.new_page())
            yield watched
            assert watched.errors == []
        finally:
            opened.close()


@dataclass
class Watched:
    """A Playwright page with what went wrong on it."""

    page: Any
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.set_default_timeout(20_000)
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(f"{message.type}: {message.text}")

    def accessibility_violations(self) -> list[str]:
        """What axe finds against WCAG 2.1 A and AA and its best practices."""
        from axe_playwright_python.sync_playwright import Axe

        # axe would fetch style sheets again, which a page opened from a file may not
        found = Axe().run(self.page, options={"preload": False}).response["violations"]
        return [
            f"{item['id']}: {item['help']}: {node['html'][:120]}"
            for item in found
            for node in item["nodes"]
        ]

    def overflows(self) -> bool:
        """Whether the page must be scrolled sideways."""
        return bool(
            self.page.evaluate(
                "document.documentElement.scrollWidth > document.documentElement.clientWidth + 1"
            )
        )


@pytest.fixture(scope="module")  # Playwright's event loop must not outlive the tests that need it
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chrome")
    if path is None:
        message = "no Chromium found; on Debian: apt-get install chromium"
        if os.environ.get(REQUIRED) == "required":
            pytest.fail(message)
        pytest.skip(message)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=path, args=list(_FLAGS))
        try:
            yield Browser(chromium)
        finally:
            chromium.close()
