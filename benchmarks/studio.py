"""How fast the studio's Entities page is on a large corpus.

    python benchmarks/studio.py --work DIR [--people 5000] [--out JSON]

The corpus (bundled messages, 130,000 sentences for 5,000 people) is built in `DIR` once. Times are
of whole requests through the application, in seconds, and pages in bytes. After a change,
*estimate* is the time until the page has a first number, *exact* until it has the exact one;
*meanwhile* are pages that are asked for while that is computed.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from uedp.corpus.store import Corpus
from uedp.entities.build import build_corpus
from uedp.sample.generate import write_sample
from uedp.studio.list_files import lists_folder
from uedp.studio.server import create_app
from uedp.studio.settings import Settings

ADDRESS = "http://127.0.0.1:8000"
PAGES = {
    "first": "",
    "far": "?page=3000",
    "text": "?find=invoice",
    "doubtful": "?doubtful=1",
    "category and detector": "?category=person&detector=labels",
    "entity": "?entity=september",
}
REPEATS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--people", type=int, default=5000)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    result = measure(corpus_of(arguments.work, arguments.people))
    print(json.dumps(result, indent=2))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")


def corpus_of(work: Path, people: int) -> Corpus:
    folder = work / f"studio-{people}"
    if not folder.exists():
        work.mkdir(parents=True, exist_ok=True)
        messages = work / "messages.jsonl"
        write_sample(messages, people=people)
        build_corpus(messages, folder, detectors="labels,patterns", on_warning=print)
    return Corpus(folder)


def measure(corpus: Corpus) -> dict[str, Any]:
    settings = Settings(corpus.folder)
    with TestClient(create_app(settings), ADDRESS) as client:

        def get(path: str) -> tuple[float, int]:
            began = time.perf_counter()
            answer = client.get(f"{settings.root}/entities{path}")
            assert answer.status_code == 200
            return time.perf_counter() - began, len(answer.content)

        began = time.perf_counter()
        client.get(f"/?token={settings.token}")
        opening = time.perf_counter() - began
        pages = {}
        for name, path in PAGES.items():
            times, sizes = zip(*(get(path) for _ in range(REPEATS)), strict=True)
            first, median = round(times[0], 4), round(statistics.median(times), 4)
            pages[name] = {"first": first, "median": median, "bytes": max(sizes)}
        began = time.perf_counter()
        fields = {"kind": "public", "entry": "tomorrow", "meaning": "an ordinary word"}
        client.post(
            f"{settings.root}/entities/list", data=fields, headers={"origin": ADDRESS}
        ).raise_for_status()
        answered = time.perf_counter() - began
        seen: dict[int, float] = {}
        meanwhile = []
        while True:
            state = client.get(f"{settings.root}/entities/state").json()
            seen.setdefault(state["version"], time.perf_counter() - began)
            if not state["busy"]:
                break
            meanwhile.append(get(f"?page={len(meanwhile) + 1}")[0])
            time.sleep(0.1)
        estimate, exact = list(seen.values())[-2:]
    for path in lists_folder(corpus.folder).iterdir():
        path.unlink()
    lists_folder(corpus.folder).rmdir()
    return {
        "sentences": len(corpus),
        "users": corpus.users,
        "mentions": corpus.info["mentions"],
        "open": round(opening, 3),
        "pages": pages,
        "change": {
            "answered": round(answered, 3),
            "estimate": round(estimate, 3),
            "exact": round(exact, 3),
            "meanwhile": {"median": statistics.median(meanwhile), "max": max(meanwhile)},
        },
    }


if __name__ == "__main__":
    main()
