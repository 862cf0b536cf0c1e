"""The Entities page in a real browser."""

import random
import re
import time

import numpy as np
import pytest

from tests.browser import DESKTOP, PHONE
from tests.studio.conftest import HOSTILE, QUOTES, Served, make_corpus
from uedp.corpus.sentence import Sentence
from uedp.corpus.store import Corpus
from uedp.entities.detection import Detection, detect
from uedp.studio.browse import PER_PAGE, visible
from uedp.studio.list_files import list_file
from uedp.studio.settings import Settings

READY = "#panel-state[data-busy='0']"
# what the page shows of every sentence: its text, and the places and words of its spans
SPANS = """() => [...document.querySelectorAll(".sentences > li")].map((item) => {
  const text = item.querySelector(".text").cloneNode(true);
  text.querySelectorAll(".tag").forEach((tag) => tag.remove());
  const marks = [...item.querySelectorAll("mark")].map((mark) => {
    const tags = [...mark.querySelectorAll(".tag")];
    const inside = mark.querySelector("bdi").textContent;
    return [inside, tags.map((tag) => [+tag.dataset.start, +tag.dataset.end, tag.dataset.label])];
  });
  return [+item.dataset.sentence, text.textContent, marks];
})"""


# what has the focus, and whether that can be seen
FOCUS = """() => {
  const element = document.activeElement;
  const style = getComputedStyle(element);
  const seen = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0;
  return [element.textContent.trim(), element.id, seen];
}"""
# selects a word with the mouse, as it were
SELECT = """(word) => {
  const pieces = [...document.querySelectorAll(".text span")];
  const text = pieces.find((piece) => piece.textContent.includes(word)).firstChild;
  const start = text.data.indexOf(word);
  getSelection().setBaseAndExtent(text, start, text, start + word.length);
}"""


def generated(count: int) -> list[Sentence]:
    """Texts of words, names, addresses, emoji and right-to-left text, in random order."""
    rng = random.Random(7)
    words = [
        *"hello the of 𝔘𝔫𝔦 👩‍👩‍👧 🎉 שלום عليكم <b> &amp; {{x}} \" ' \\ a\u0301".split(" "),
        *"ann@example.org +1-202-555-0143 $5,000 10:30 2026-11-16 192.168.0.1".split(),
        *"https://example.org/?a=1&b=<2> bob.lee@mail.example.com 4111111111111111".split(),
    ]
    return [
        Sentence(f"u{n % 5}", " ".join(rng.choices(words, k=rng.randint(1, 12))))
        for n in range(count)
    ]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served") / "corpus"
    make_corpus(folder)
    with Served(Settings(folder)) as server:
        server.folder = folder
        yield server


def test_spans_on_the_page_are_the_detectors(browser, tmp_path):
    corpus = detect(generated(100) + HOSTILE, tmp_path / "c", Detection(("patterns", "labels")))
    assert corpus.info["mentions"] > 150
    texts, spans = corpus.texts(np.arange(len(corpus))), list(corpus.spans())
    seen = []

    def compare(page):
        for number, text, marks in page.evaluate(SPANS):
            if page.query_selector(f"#s{number} >> text=characters more"):
                continue
            assert text == visible(texts[number])
            places = sorted(tuple(place) for _, tags in marks for place in tags)
            assert places == sorted(span for span, _ in spans[number])
            for inside, tags in marks:
                start, end = min(t[0] for t in tags), max(t[1] for t in tags)
                assert inside == visible(texts[number][start:end])
            seen.append(number)

    with Served(Settings(corpus.folder)) as server, browser.page() as shown:
        shown.page.goto(server.url)
        compare(shown.page)
        for number in range(2, -(-len(corpus) // PER_PAGE) + 1):
            shown.page.click("a[rel=next]")
            shown.page.wait_for_selector(f"#results-title:has-text('page {number} of')")
            compare(shown.page)
        shown.page.click("text=show the whole text")
        shown.page.wait_for_selector("#results-title:has-text('1 sentence')")
        compare(shown.page)
    seen.sort()
    assert seen == list(range(len(corpus)))


@pytest.mark.parametrize(("size", "scheme"), [(DESKTOP, "light"), (PHONE, "dark")])
def test_the_page_is_accessible_and_fits(browser, served, size, scheme):
    with browser.page(size, color_scheme=scheme) as shown:
        shown.page.goto(served.url)
        shown.page.wait_for_selector(READY)
        for details in shown.page.query_selector_all("details"):
            details.evaluate("each => { each.open = true; }")
        assert not shown.overflows()
        assert shown.accessibility_violations() == []
        shown.page.click(".tag >> nth=0")
        shown.page.wait_for_selector("dialog[open] #reason")
        assert not shown.overflows()
        assert shown.accessibility_violations() == []
        title = shown.page.title()
        assert title == "Entities · uedp studio"
        assert QUOTES in shown.page.inner_text("#results")


def test_a_miss_is_marked_by_keyboard_alone(browser, tmp_path):
    folder = make_corpus(tmp_path / "c").folder
    with Served(Settings(folder)) as server, browser.page() as shown:
        page = shown.page
        page.goto(server.url)
        before = page.inner_text("#usable")
        reached, focus = set(), None
        for _ in range(60):
            page.keyboard.press("Tab")
            focus = page.evaluate(FOCUS)
            assert focus[2], f"no visible focus on {focus}"
            reached.add(focus[1] or focus[0])
            if focus[0].startswith("Mark a miss"):
                break
        assert {"Entities", "Budget", "Runs", "find", "category", "detector", "show"} <= reached
        page.keyboard.press("Enter")
        page.wait_for_selector("dialog[open] #entry:focus")
        page.keyboard.type("Smallville")
        page.keyboard.press("Enter")
        page.wait_for_selector("dialog:not([open])", state="attached")
        page.wait_for_selector(f"{READY}:has(#usable-after)")
        assert list_file(folder, "sensitive").read_text() == "entity,category\nSmallville,person\n"
        old, new = page.inner_text("#usable").split(" → ")
        assert old == before
        assert float(new[:-1]) < float(old[:-1])
        page.wait_for_selector('mark:has-text("Smallville")')
        # the dialog gives the focus back, and Escape closes it
        assert page.evaluate("document.activeElement.textContent").startswith("Mark a miss")
        page.keyboard.press("Enter")
        page.wait_for_selector("dialog[open]")
        page.keyboard.press("Escape")
        page.wait_for_selector("dialog:not([open])", state="attached")
        page.focus('form[action$="/undo"] button')
        page.keyboard.press("Enter")
        page.wait_for_selector("#usable-after", state="detached")
        assert page.inner_text("#usable") == before
        assert not list_file(folder, "sensitive").exists()


def test_the_list_follows_work_that_is_done_before_the_panel_is_read(browser, tmp_path):
    folder = make_corpus(tmp_path / "c").folder
    with Served(Settings(folder)) as server, browser.page() as shown:
        page = shown.page
        page.goto(server.url)

        def read_late(route):
            time.sleep(1)  # the few sentences are linked again in less
            route.continue_()

        page.route(re.compile("part=panel"), read_late)
        page.click("button:has-text('Mark a miss')")
        page.fill("#entry", "Smallville")
        page.keyboard.press("Enter")
        page.wait_for_selector(f"{READY}:has(#usable-after)")
        page.wait_for_selector('mark:has-text("Smallville")', timeout=5000)


def test_selected_words_are_marked_and_applied(browser, tmp_path):
    folder = make_corpus(tmp_path / "c").folder
    with Served(Settings(folder)) as server, browser.page(PHONE) as shown:
        page = shown.page
        page.goto(server.url)
        page.goto(f"{page.url}?find=Smallville")
        page.evaluate(SELECT, "Smallville")
        page.click("#protect-selection")
        page.wait_for_selector("dialog[open] #entry")
        assert page.input_value("#entry") == "Smallville"
        page.select_option("#kind", "gpe")
        page.click('button:has-text("Always protect")')
        page.wait_for_selector(f"{READY}:has(#usable-after)")
        assert not shown.overflows()
        assert shown.accessibility_violations() == []
        page.click('button:has-text("Apply")')
        page.wait_for_selector("text=The changes are applied")
        assert Corpus(folder).info["declared_sensitive"] == {"Smallville": "gpe"}
        assert page.query_selector("#usable-after") is None


def test_without_a_corpus_the_page_says_how_to_make_one(browser):
    with Served(Settings()) as server, browser.page() as shown:
        shown.page.goto(server.url)
        shown.page.click("nav >> text=Entities")
        assert "uedp studio corpus" in shown.page.inner_text("main")
        assert shown.accessibility_violations() == []
