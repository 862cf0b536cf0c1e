"""Memory and speed of `uedp detect --detector patterns` on corpora that do not fit in memory.

    python benchmarks/stream.py [--sentences 1000000 10000000] [--workers 1]

A synthetic JSONL file of each size is written, detected in a separate process, and deleted. Reports
sentences per second and the peak of anonymous memory, sampled from /proc every 50 ms; pages of
mapped files are not counted, since the system can drop them.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

TEXT = (
    "please send the report before our meeting about new budget plans and call me when you have "
    "time to talk about next steps for this project team client order invoice delivery question"
)
WORDS = TEXT.split(" ")


def write(path: Path, sentences: int, seed: int = 0) -> None:
    """One sentence in four has a phone number, e-mail address or date from a long-tailed pool."""
    rng = random.Random(seed)
    pool = 200_000
    with path.open("w") as out:
        for number in range(sentences):
            words = rng.choices(WORDS, k=14)
            if number % 4 == 0:
                rank = int(pool ** rng.random())
                extra = (
                    f"415-{200 + rank % 700}-{rank % 10000:04d}",
                    f"person{rank}@mail.example",
                    f"2024-{rank % 12 + 1:02d}-{rank % 28 + 1:02d}",
                )[rank % 3]
                words.insert(rng.randrange(14), extra)
            user = f"user{number // 100}"
            out.write(json.dumps({"user": user, "text": " ".join(words)}) + "\n")


def anonymous_bytes(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    line = next((row for row in status.splitlines() if row.startswith("RssAnon")), "RssAnon: 0 kB")
    return int(line.split()[1]) * 1024


def measure(sentences: int, workers: int) -> tuple[float, int]:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "texts.jsonl"
        write(source, sentences)
        command = [sys.executable, "-m", "uedp", "detect", str(source), "--detector", "patterns"]
        command += ["--workers", str(workers), "--out", f"{folder}/corpus"]
        began = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        peak = 0

        def watch() -> None:
            nonlocal peak
            while process.poll() is None:
                peak = max(peak, anonymous_bytes(process.pid))
                time.sleep(0.05)

        watcher = threading.Thread(target=watch)
        watcher.start()
        if process.wait() != 0:
            raise SystemExit("detect failed")
        watcher.join()
        return time.perf_counter() - began, peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sentences", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    print(f"{'sentences':>12} {'seconds':>8} {'per second':>11} {'anonymous MB':>13}", flush=True)
    for sentences in options.sentences:
        seconds, peak = measure(sentences, options.workers)
        print(
            f"{sentences:>12,} {seconds:>8.0f} {sentences / seconds:>11,.0f} {peak / 1e6:>13,.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
