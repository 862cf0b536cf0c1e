"""The pictures of docs/studio.md: the studio on a small corpus of invented people, in Chromium.

python benchmarks/screenshots.py [--out docs/images]

It writes a sample, detects it, trains a small model for a few rounds (some minutes), serves the
studio on the loopback address and photographs each page.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from uedp.studio.server import address, bind, serve
from uedp.studio.settings import Settings

PAGES = ("entities", "budget", "runs")
SIZE = {"width": 1000, "height": 760}
CONFIG = """
privacy: {epsilon: 8, rounds: 12, user_rate: 0.1, entity_share: 0.4, sentences_per_user: 4}
data: {train: corpus, evaluate: others, evaluate_sentences: 200}
model:
  name: awd-lstm
  tokenizer: bytes
  sizes: {hidden_size: 64, embedding_size: 32, num_hidden_layers: 1}
  dropout: 0.0
  max_tokens: 64
optimiser: {rate: 0.03}
run: {evaluate_every: 3}
"""
STEPS = (
    "sample --people 400 --out messages.jsonl",
    "detect messages.jsonl --detector labels,patterns --out corpus --hold-out others",
    "train config.yaml --out runs/mail-8",
    "train config.yaml --epsilon 2 --out runs/mail-2",
)


def prepare(folder: Path) -> None:
    (folder / "config.yaml").write_text(CONFIG)
    for step in STEPS:
        command = [sys.executable, "-m", "uedp", *step.split()]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)


@contextmanager
def studio(folder: Path) -> Iterator[str]:
    """The address of a studio that is up; it ends with this process."""
    settings = Settings(folder / "corpus", (folder / "runs",))
    listener, up = bind("127.0.0.1", 0), threading.Event()
    threading.Thread(target=serve, args=(settings, listener, up.set), daemon=True).start()
    if not up.wait(60):
        raise TimeoutError("the studio did not start")
    yield address(settings, listener)


def photograph(page: Any, url: str, out: Path) -> None:
    page.goto(url)
    for name in PAGES:
        page.get_by_role("navigation").get_by_role("link", name=name.title()).first.click()
        page.wait_for_load_state("networkidle")
        page.wait_for_timeout(1500)  # figures that are computed after the page is there
        page.mouse.move(0, 400)  # away from the link
        if name == "entities":  # down to the sentences
            page.get_by_label("Find text").evaluate("element => element.scrollIntoView()")
        page.screenshot(path=out / f"studio-{name}.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    parser.add_argument("--folder", type=Path, help="One that an earlier call prepared.")
    options = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        if not (folder / "runs").exists():
            prepare(folder)
        with sync_playwright() as driver, studio(folder) as url:
            browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            photograph(browser.new_page(viewport=SIZE), url, options.out)
            browser.close()


if __name__ == "__main__":
    main()
