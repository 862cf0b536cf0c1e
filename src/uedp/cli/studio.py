"""The command `uedp studio`: look at entities, budgets and runs in a browser."""

import os
import sys
import threading
import webbrowser
from pathlib import Path

from typer import Argument, Option

from uedp.cli.terminal import STOPPED, say


def studio(
    corpus: Path | None = Argument(
        None, metavar="CORPUS", help="A folder made by `uedp detect`; without it, Budget only."
    ),
    runs: list[Path] = Option(
        [], "--runs", metavar="DIR", help="A run, or a folder of runs, to show. Repeat."
    ),
    port: int = Option(0, min=0, max=65535, help="The port to listen on; 0 takes a free one."),
    host: str = Option(
        "127.0.0.1", metavar="ADDRESS", help="The loopback address: 127.0.0.1 or ::1."
    ),
    no_open: bool = Option(False, "--no-open", help="Do not open a browser."),
) -> None:
    """Explore entities, budgets and runs on a local page. Nothing leaves this machine.

    Entities: look at what is protected, correct it, and see what that does to the text that can be
    used. Budget: epsilon for the rounds, rates and noise you choose. Runs: curves, certificates.

    Examples:

        # look at a corpus, correct its entities
        uedp studio corpus
        # from another machine: ssh -L 8000:127.0.0.1:8000 THIS-MACHINE
        uedp studio corpus --runs runs --port 8000 --no-open
        # plan a budget without any data
        uedp studio
    """
    from uedp.corpus.store import Corpus
    from uedp.errors import UserError
    from uedp.studio.server import address, bind, serve
    from uedp.studio.settings import Settings

    if corpus is not None:
        corpus = Corpus(corpus).folder
    for folder in runs:
        if not folder.is_dir():
            raise UserError(f"--runs {folder}: no such folder; name a run, or a folder of runs")
    settings = Settings(corpus, tuple(runs))
    listener = bind(host, port)
    url = address(settings, listener)

    def started() -> None:
        say("The studio shows private text, on this machine only. Open it at")
        say(f"\n    {url}")
        say("\nCtrl-C stops it.")
        if not no_open and _has_display():
            once = address(settings, listener, once=True)
            threading.Thread(target=webbrowser.open, args=(once,), daemon=True).start()

    try:
        serve(settings, listener, started)
    except SystemExit as stop:
        if stop.code != STOPPED:
            raise
        say("The studio has stopped.")  # Ctrl-C is how it ends


def _has_display() -> bool:
    """Whether a browser would be a window, rather than a program in this terminal."""
    if sys.platform != "linux":
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
