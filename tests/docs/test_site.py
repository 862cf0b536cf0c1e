"""The documentation builds without a warning, needs no network, and can be searched from a file."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import uedp
from tests.browser import DESKTOP, PHONE
from uedp.cli import app

ROOT = Path(__file__).parents[2]
# what a browser loads by itself; a link that a person clicks is none of it
LOADED = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|embed)\b[^>]*?\bsrc=["']?([^"'\s>]+)"""
    r"""|<link\b(?=[^>]*\brel=["']?(?:stylesheet|icon|preload|preconnect|prefetch))"""
    r"""[^>]*?\bhref=["']?([^"'\s>]+)""",
    re.IGNORECASE,
)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    assert built.stdout == ""
    return folder


def test_no_page_loads_anything_from_elsewhere(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    loaded = {src or href for page in pages for src, href in LOADED.findall(page.read_text())}
    assert len(loaded) > 10
    assert [path for path in loaded if re.match(r"(https?:)?//", path)] == []
    sheets = "".join(path.read_text() for path in site.rglob("*.css"))
    assert re.findall(r"(?:@import|url\()\s*[\"']?https?:[^)\"']*", sheets) == []


def test_every_page_of_the_folder_is_in_the_navigation(site):
    home = (site / "index.html").read_text()
    pages = (path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md"))
    missing = [
        page
        for page in map(str, pages)
        if page != "index.md" and f'href="{page.removesuffix("md")}html"' not in home
    ]
    assert missing == []


def test_commands_are_written_from_the_program(site):
    page = (site / "commands.html").read_text()
    for path, command in _commands(typer.main.get_command(app), "uedp"):
        assert f'id="{path.replace(" ", "-")}"' in page
        shown = [one for one in command.params if one.param_type_name == "option"]
        for option in shown:
            assert option.hidden or all(f"<code>{name}</code>" in page for name in option.opts)


def _commands(group, path):
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{path} {name}")
        elif not command.hidden:
            yield f"{path} {name}", command


def test_every_public_name_is_in_the_reference(site):
    page = (ROOT / "docs" / "api.md").read_text()
    assert sorted(re.findall(r"^::: uedp\.(\w+)$", page, re.MULTILINE)) == sorted(uedp.__all__)
    built = (site / "api.html").read_text()
    assert [name for name in uedp.__all__ if f'id="uedp.{name}"' not in built] == []


def test_files_of_the_repository_that_pages_link_to_are_in_the_site(site):
    page = (site / "budget.html").read_text()
    (linked,) = re.findall(r'href="(repository/[^"]*budget_pictures\.json)"', page)
    original = ROOT / "benchmarks" / "results" / "budget_pictures.json"
    assert (site / linked).read_bytes() == original.read_bytes()


def test_search_works_from_a_file_without_a_network(site, browser):
    with browser.page(DESKTOP) as watched:
        page, requests = watched.page, []
        page.on("request", lambda request: requests.append(request.url))
        page.goto((site / "index.html").as_uri())
        page.locator("input.md-search__input").click()
        page.keyboard.type("canaries")
        page.locator(".md-search-result__link").first.wait_for(state="visible")
        assert requests
        assert [url for url in requests if not url.startswith(("file:", "data:", "about:"))] == []


@pytest.mark.parametrize("name", ["index", "budget", "compare", "commands", "privacy"])
def test_pages_fit_a_phone(site, browser, name):
    with browser.page(PHONE) as watched:
        watched.page.goto((site / f"{name}.html").as_uri())
        watched.page.locator("h1").first.wait_for()
        assert not watched.overflows()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["index", "compare", "privacy", "commands", "api"])
def test_pages_are_accessible(site, browser, name, scheme):
    with browser.page(DESKTOP, color_scheme=scheme) as watched:
        watched.page.goto((site / f"{name}.html").as_uri())
        watched.page.locator("h1").first.wait_for()
        found = watched.accessibility_violations()
    # the theme's own script gives every copy button a landmark, all without a name
    assert [line for line in found if not line.startswith("landmark-unique: ")] == []
