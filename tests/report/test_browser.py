"""Reports in a real Chromium: errors, keyboard, accessibility, widths, time to draw."""

import json
import time
from pathlib import Path

import pytest

from tests.browser import DESKTOP, PHONE
from tests.report.runs import PROFILE, finished_run
from tests.report.test_attacks import mechanism
from tests.report.test_page import HOSTILE
from uedp.report.page import report

NAME = "<script>alert(1)</script> 'it' \"is\" שלום 🙂"


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("reports")
    hostile = mechanism()
    hostile["audits"][0] |= {"method": HOSTILE, "pair": HOSTILE}
    (folder / "audit.json").write_text(json.dumps(hostile))
    sound = finished_run(folder / "mails")
    strange = finished_run(folder / NAME.replace("/", "∕"), chosen_by=HOSTILE, run=HOSTILE[:150])
    broken = finished_run(folder / "broken")
    (broken / "model.safetensors").write_bytes(b"others")
    kinds = {
        "internal": ([sound], "internal"),
        "public": ([sound], "public"),
        "several": ([sound, strange, broken], "internal"),
        "hostile": ([strange], "internal"),
        "failed": ([broken], "public"),
    }
    for name, (runs, kind) in kinds.items():
        audits = [folder / "audit.json"] if name in ("hostile", "internal") else []
        report(runs, kind, audits=audits).write(folder / f"{name}.html")
    return {name: folder / f"{name}.html" for name in kinds}


@pytest.mark.parametrize(
    ("name", "size", "scheme"),
    [
        ("internal", DESKTOP, "light"),
        ("internal", PHONE, "dark"),
        ("public", DESKTOP, "dark"),
        ("public", PHONE, "light"),
        ("several", PHONE, "light"),
        ("hostile", PHONE, "dark"),
        ("failed", PHONE, "light"),
    ],
)
def test_a_page_is_accessible_and_fits(browser, pages, name, size, scheme):
    with browser.page(size, color_scheme=scheme) as watched:
        watched.page.goto(pages[name].as_uri())
        watched.page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        assert watched.accessibility_violations() == []
        assert not watched.overflows()


def test_hostile_names_are_shown_as_text(browser, pages):
    with browser.page() as watched:
        watched.page.on("dialog", lambda dialog: pytest.fail("a script ran"))
        watched.page.goto(pages["hostile"].as_uri())
        heading = watched.page.inner_text("h1")
        assert "<script>alert(1)<∕script> 'it' \"is\" שלום 🙂" in heading
        assert watched.page.locator("script").count() == 1


def test_a_page_loads_nothing(browser, pages):
    with browser.page() as watched:
        requests = []
        watched.page.on("request", lambda request: requests.append(request.url))
        watched.page.goto(pages["several"].as_uri())
        assert requests == [pages["several"].as_uri()]


def test_runs_open_by_keyboard(browser, pages):
    with browser.page() as watched:
        page = watched.page
        page.goto(pages["several"].as_uri())
        first = page.locator("details.run").first
        assert not first.evaluate("part => part.open")
        seen = []
        for _ in range(60):
            page.keyboard.press("Tab")
            seen.append(page.evaluate("document.activeElement.tagName"))
            if page.evaluate(
                "document.activeElement === document.querySelector('details.run > summary')"
            ):
                break
        assert seen[0] == "A"  # skip to the report
        assert seen[-1] == "SUMMARY"
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none"
        page.keyboard.press("Enter")
        assert first.evaluate("part => part.open")


def test_a_link_opens_its_run(browser, pages):
    with browser.page() as watched:
        watched.page.goto(pages["several"].as_uri())
        watched.page.click("table a[href='#run-1']")
        assert watched.page.locator("#run-1").evaluate("part => part.open")


def test_paper_is_white_and_complete(browser, pages):
    with browser.page(color_scheme="dark") as watched:
        page = watched.page
        page.goto(pages["several"].as_uri())
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        page.emulate_media(media="print", color_scheme="dark")
        assert page.evaluate("[...document.querySelectorAll('details')].every(part => part.open)")
        assert (
            page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        )
        assert page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"


@pytest.mark.slow  # most of it to make up the runs
def test_fifty_runs_of_ten_thousand_rounds(browser, tmp_path):
    """Under 5 MB, and drawn in under 2 seconds."""
    runs = [
        finished_run(tmp_path / f"run-{n}", PROFILE, 10_000, evaluate_every=25, seed=n)
        for n in range(50)
    ]
    report(runs).write(tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size < 5e6
    with browser.page() as watched:
        start = time.monotonic()
        watched.page.goto((tmp_path / "report.html").as_uri())
        # two frames after loading: the first is on the screen
        watched.page.evaluate(
            "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )
        assert time.monotonic() - start < 2
        assert watched.page.locator("details.run").count() == 50
